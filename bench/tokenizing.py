#!/usr/bin/env python3
"""How fast text becomes ids, beside the Python libraries, in one run on one thread.

    python bench/tokenizing.py data/text/tokenizer.json data/text/validation.txt
    python bench/tokenizing.py model/tokenizer.model book.txt --rounds 8

A tokenizer.json is compared with the package `tokenizers`, a SentencePiece model with `sentencepiece`. The text goes in as
one piece, and for the libraries also line by line, which is the faster way for some of them; ids must be the same. A library
that is not installed is left out.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def library(path):
    """Its name, and a function from text to ids; ImportError where it is not installed."""
    if path.endswith(".model"):
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        return f"sentencepiece {sentencepiece.__version__}", model.encode
    import tokenizers
    model = tokenizers.Tokenizer.from_file(path)
    return f"tokenizers {tokenizers.__version__}", lambda text: model.encode(text, add_special_tokens=False).ids


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("text", help="UTF-8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default=str(pathlib.Path(__file__).resolve().parent.parent / "build" / "mhla"))
    args = parser.parse_args()
    text = pathlib.Path(args.text).read_text(encoding="utf-8")
    size, lines = len(text.encode()), text.splitlines(keepends=True)
    def ours(*flags):
        done = subprocess.run([args.program, "tokenize", args.tokenizer, args.text, "--json", *flags],
                              check=True, capture_output=True, text=True)
        return json.loads(done.stdout)[0]

    ids, calls = ours()["ids"], {"mhla": lambda: ours("--time")["seconds"]}
    said = "no library beside it"
    try:
        name, encode = library(args.tokenizer)
        if ids != list(encode(text)):
            sys.exit(f"the ids of {args.text} differ from those of {name}")
        said = "the same from both"
        calls[name] = lambda: timed(lambda: encode(text))
        calls[f"{name}, by lines"] = lambda: timed(lambda: [encode(line) for line in lines])
    except ImportError as error:
        print("the library is left out:", error)
    best = {who: min(call() for _ in range(args.rounds)) for who, call in calls.items()}
    print(f"{args.text}: {size:,} bytes, {len(ids):,} ids, {said}")
    for who, seconds in best.items():
        print(f"{who:40}{size / seconds / 1e6:8.1f} MB/s")


if __name__ == "__main__":
    main()
