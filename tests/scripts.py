#!/usr/bin/env python3
"""scripts.py PROGRAM: every script of scripts/ runs in its shortest form, and does what it says; one without a row here is an error.

Scripts in Python and shell that need nothing but the tree, the program and Python. Long ones (lint, fuzzing, slow checks) run only
as far as they get in a second; what they do in full is what `make lint`, `make fuzz` and `make check-slow` are for. A tool that is
missing is named, and its script skipped. Those of bench/ and examples/ need torch: python/tests/test_scripts.py.
"""
import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program", nargs="?", default=ROOT / "build" / "mhla", metavar="PROGRAM")
PROGRAM = str(pathlib.Path(parser.parse_args().program).resolve())


class Skip(Exception):
    pass


def run(*command, code=0, said="", cwd=ROOT):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=cwd, timeout=300)
    text = done.stdout + done.stderr
    if done.returncode != code or said not in text:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}, expected {code} and \"{said}\":\n{text[-2000:]}")
    return done.stdout


def python(script, *arguments, **expected):
    return run(sys.executable, ROOT / "scripts" / script, *arguments, **expected)


def need(tool):
    if not shutil.which(tool):
        raise Skip(f"no {tool} here")


def module(name, check):
    """One that others import: it is imported, and asked for something."""
    run(sys.executable, "-c", f"import sys; sys.path.insert(0, 'scripts'); import {name}; {check}")


def grey_png():
    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(28)) for y in range(28))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def latents_page(tmp):
    """Runs of one update on a set of two images of a class."""
    for split in ("train", "test"):
        (tmp / "data" / split / "some").mkdir(parents=True)
        for i in range(2):
            (tmp / "data" / split / "some" / f"{i}.png").write_bytes(grey_png())
    few = ("--batch", 1, "--steps", 1, "--warmup_steps", 0, "--sample.columns", 1, "--quiet", "--out")
    run(PROGRAM, "train", ROOT / "recipes" / "vae-emoji.toml", "--source", tmp / "data", "--sample_size", 8, "--block_out_channels", "8,8,8", *few, tmp / "vae")
    run(PROGRAM, "latents", tmp / "data", "--vae", tmp / "vae", "--out", tmp / "latents", "--quiet")
    run(PROGRAM, "train", ROOT / "recipes" / "dit-emoji-latents.toml", "--source", tmp / "latents", "--vae", tmp / "vae", "--patch", 1, "--dim", 16, "--depth", 1, "--heads", 1,
        "--sample.steps", 1, *few, tmp / "dit")
    (tmp / "docs").mkdir()
    python("latents_page.py", PROGRAM, tmp / "vae", tmp / "latents", tmp / "dit", "--folder", tmp / "docs", "--remark", "A remark.", said="latents.md")
    page = (tmp / "docs" / "latents.md").read_text()
    assert "A remark." in page and "| 2 test images" in page and "latents | 4 x 2 x 2 of images of 8 x 8" in page, page
    assert len(list((tmp / "docs").glob("latents-*.png"))) == 2
    python("latents_page.py", code=2, said="usage")


def emoji_page(tmp):
    """Runs of one update on a set of two images of two classes, whose captions an untrained language model has read."""
    (tmp / "texts").mkdir()
    for name in ("train", "validation"):
        (tmp / "texts" / f"{name}.txt").write_text("one grey thing and another grey thing\n" * 40)
    for split in ("train", "test"):
        for kind in ("some", "others"):
            (tmp / "data" / split / kind).mkdir(parents=True)
            (tmp / "data" / split / kind / "1.png").write_bytes(grey_png())
        (tmp / "data" / split / "metadata.jsonl").write_text("".join(
            json.dumps({"file_name": f"{kind}/1.png", "text": f"{split} {kind}"}) + "\n" for kind in ("some", "others")))
    (tmp / "prompts").write_text("train some\ntest others\n")
    mhla = lambda *args: run(PROGRAM, *args)  # noqa: E731
    few = ("--batch", 1, "--steps", 1, "--quiet", "--out")
    mhla("tokenize", "train", tmp / "texts" / "tokenizer.json", tmp / "texts" / "train.txt", "--vocabulary", 280)
    mhla("train", "--model", "lm_micro", "--source", tmp / "texts", "--attention", "softmax", "--hidden_size", 16, "--num_hidden_layers", 1, "--num_heads", 1,
         "--intermediate_size", 16, "--context", 16, *few, tmp / "encoder")
    mhla("captions", tmp / "data", "--encoder", tmp / "encoder", "--instruction", "A ", "--out", tmp / "captions", "--quiet")
    for attention in ("mhla", "linear"):
        mhla("train", "--source", tmp / "data", "--captions", tmp / "captions", "--model", "sana_nano", "--attention", attention, "--in_channels", 3,
             "--sample_size", 8, "--patch_size", 2, "--blocks", 2, "--sample.columns", 0, *few, tmp / attention)
    mhla("train", "--source", tmp / "data", "--model", "deit_nano", "--image", 8, "--channels", 3, "--patch", 4, "--dim", 16, "--depth", 1, "--heads", 1,
         "--padding", 0, *few, tmp / "judge")
    (tmp / "docs").mkdir()
    python("emoji_page.py", PROGRAM, tmp / "mhla", tmp / "linear", tmp / "judge", tmp / "captions", "--folder", tmp / "docs", "--remark", "A remark.",
           "--prompts", tmp / "prompts", said="text-to-image.md")
    page = (tmp / "docs" / "text-to-image.md").read_text()
    assert "A remark." in page and "| right group, held out captions | " in page and "2 of 4 captions were held out" in page, page
    assert len(list((tmp / "docs").glob("text-to-image-*.svg"))) == 2
    python("emoji_page.py", code=2, said="usage")


def tutorial_figures(tmp):
    """Models as large as the tutorial's, fresh ones: 64 tokens, 4 layers; a picture; then figures elsewhere than docs/."""
    (tmp / "data" / "some").mkdir(parents=True)
    (tmp / "picture.png").write_bytes(grey_png())
    (tmp / "data" / "some" / "picture.png").write_bytes(grey_png())
    models = []
    for name in ("softmax", "linear", "mhla"):
        run(PROGRAM, "train", "--source", tmp / "data", "--attention", name, "--channels", 1, "--classes", 4, "--steps", 1, "--warmup_steps", 0, "--batch", 1,
            "--eval.limit", 1, "--dim", 16, "--patch", 4, "--out", tmp / "runs" / name, "--quiet", cwd=tmp)
        models += ["-m", tmp / "runs" / name]
    run(PROGRAM, "analyze", *models, "--data", tmp / "picture.png", "--samples", 1, "--out", tmp / "three")
    run(PROGRAM, "analyze", *models, "--data", tmp / "picture.png", "--samples", 1, "--no-rank", "--dump", tmp / "matrices")
    shutil.copytree(tmp / "three", tmp / "fine")
    analysis = json.loads((tmp / "fine" / "analysis.json").read_text())
    analysis["models"] = [m for m in analysis["models"] if m.get("mixing")]
    (tmp / "fine" / "analysis.json").write_text(json.dumps(analysis))
    (tmp / "docs").mkdir()
    python("tutorial_figures.py", tmp, tmp / "docs", said="tutorial-mixing.svg")
    assert len(list((tmp / "docs").glob("tutorial-*.svg"))) == 5
    python("tutorial_figures.py", code=2, said="usage")


def models_table(tmp):
    python("models_table.py", PROGRAM, "--check")
    python("models_table.py", PROGRAM, "--memory", cwd=tmp, said="peak memory of training")  # no data here: no rows
    python("models_table.py", code=2, said="usage")


def docs_sh(tmp):
    need("mandoc")
    tree = tmp / "tree"  # it writes into build/docs of the tree that it is in
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build*", ".venv", ".git", "data", "runs", "corpus"))
    run("sh", tree / "scripts" / "docs.sh")
    assert (tree / "build" / "docs" / "index.html").exists()


def lint_sh(tmp):
    need("clang-format")
    run("sh", "scripts/lint.sh", "includes", "scripts", said="lint: includes ok")
    run("sh", "scripts/lint.sh", "no-such-check", code=2, said="no-such-check")


def venv_sh(tmp):
    """What it would install it must not install here: a Python that only writes down how it was called stands in its place."""
    tree = tmp / "tree"
    (tree / "scripts").mkdir(parents=True)
    (tree / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "venv.sh", tree / "scripts")
    fake = tree / ".venv" / "bin" / "python"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{tree}/calls\n')
    fake.chmod(0o755)
    run("sh", tree / "scripts" / "venv.sh")
    calls = (tree / "calls").read_text()
    assert "torch==" in calls and calls.splitlines()[-1].endswith("install -q ."), calls
    assert (tree / ".venv" / "installed").exists()


SCRIPTS = {
    "api_reference.py": lambda tmp: module("api_reference", "assert api_reference.chunks('a;\\n\\nb;') == ['a;', 'b;']"),
    "check_docs.py": "the test `docs` runs it",
    "check_includes.py": lambda tmp: python("check_includes.py"),
    "check_slow.sh": lambda tmp: run("sh", "scripts/check_slow.sh", "no-such-stage", code=2, said="no-such-stage"),
    "docs.sh": docs_sh,
    "emoji_page.py": emoji_page,
    "fuzz.sh": lambda tmp: run("sh", "scripts/fuzz.sh", code=2, said="usage"),
    "latents_page.py": latents_page,
    "lint.sh": lint_sh,
    "make_docs.py": "the test `docs_pages` runs it",
    "models_table.py": models_table,
    "pages.py": lambda tmp: module("pages", "assert pages.parse('# One')"),
    "results_page.py": lambda tmp: python("results_page.py", "--check"),
    "setup.sh": lambda tmp: run("sh", "scripts/setup.sh", "no-such-group", code=2, said="usage"),
    "ship_model.sh": lambda tmp: run("sh", "scripts/ship_model.sh", "lm-small", code=2, said="usage"),  # else it measures for minutes
    "stages.sh": lambda tmp: run("sh", "-c", ". scripts/stages.sh; stage one true; stage two false; stages_end", code=1, said="1 passed, 1 failed"),
    "tutorial_figures.py": tutorial_figures,
    "unicode_changes.py": lambda tmp: python("unicode_changes.py", "--help", said="unicode.c"),  # else it fetches wheels
    "venv.sh": venv_sh,
}


def main():
    there = sorted(p.name for p in (ROOT / "scripts").iterdir() if p.suffix in (".py", ".sh"))
    failed = [f"scripts/{name}: no row for it in tests/scripts.py" for name in there if name not in SCRIPTS]
    failed += [f"tests/scripts.py: no scripts/{name}" for name in SCRIPTS if name not in there]
    for name, check in SCRIPTS.items():
        if isinstance(check, str):
            print(f"{name}: {check}")
            continue
        with tempfile.TemporaryDirectory() as tmp:
            try:
                check(pathlib.Path(tmp))
                print(f"{name}: ok", flush=True)
            except Skip as reason:
                print(f"{name}: skipped: {reason}", flush=True)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                failed.append(f"{name}: {error}")
    print(*failed, sep="\n")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
