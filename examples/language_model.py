"""A language model from Python: tokens, logits, generation, sequences that fork and are kept. NumPy is enough.

    pip install .                               # once, in this repository
    mhla data smollm2                           # or any Llama of Hugging Face, a run of mhla train, a .gguf
    python examples/language_model.py data/smollm2 --prompt "The moon is"
"""
import argparse
import pathlib
import tempfile

import numpy as np

import mhla

parser = argparse.ArgumentParser()
parser.add_argument("model", help="a folder, a run, or a .gguf file")
parser.add_argument("--prompt", default="The moon is")
parser.add_argument("--tokens", type=int, default=24)
given = parser.parse_args()

model = mhla.LanguageModel.load(given.model)
print(f"{model}, {model.info['vocabulary']} tokens of vocabulary, weights as {model.info['storage']}")

# text to ids and back; what the model expects after each of them
ids = model.tokenizer.encode(given.prompt)
logits = model.logits(ids)  # [T,vocabulary]
best = np.argsort(-logits[-1])[:3]
print(f"{given.prompt!r} is {ids}; likeliest next: {[model.tokenizer.decode(i) for i in best]}")

# one continuation as it comes, then three at once from one reading of the prompt
for piece in model.generate(given.prompt, max_tokens=given.tokens, seed=1, stream=True):
    print(piece.text, end="", flush=True)
print()
for one in model.generate(given.prompt, max_tokens=given.tokens, seed=1, n=3):
    print(f"seed {one.seed}, {one.finish}: {one.text!r}, mean log-probability {np.mean(one.logprobs):.2f}")

# a sequence is what the model remembers: fork it to try endings, feed all of them in one step, roll it back
sequence = model.sequence()
sequence.feed(ids)
endings = [model.tokenizer.encode(text, special=False) for text in (" big", " small")]
forks = [sequence.fork() for _ in endings]
after = model.feed(forks, endings)  # [2,vocabulary]
print(f"forks of {[len(fork) for fork in forks]} tokens, logits {after.shape}; the sequence is still at {len(sequence)}")
forks[0].rollback(len(sequence))
assert np.allclose(forks[0].feed(endings[0]), after[0], atol=1e-3)

# kept on the disk, and taken up again by the same model
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "state"
    sequence.save(path)
    again = model.sequence()
    again.load(path)
    print(f"a file of {path.stat().st_size:,} bytes brings back {len(again)} tokens")
    assert (again.ids == ids).all()
