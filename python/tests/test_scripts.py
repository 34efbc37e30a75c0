"""Every script of bench/ runs, in its shortest form, and every example has its test: a script without one fails here. Figures
are not looked at. What a script compares itself with (llama.cpp, onnxruntime, tokenizers) it leaves out where it is missing."""
import json
import pathlib
import re
import runpy
import shutil
import struct
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BENCH, PROGRAM = ROOT / "bench", ROOT / "build" / "mhla"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="the scripts are not beside the tests")
BRIEF = ["--rounds", "1", "--seconds", "0.01"]

# name: arguments, each a list, and what must be printed; {tmp} is a folder, in which prepare() has put what some of them read
SCRIPTS = {
    "accuracy.py": ([["{tmp}/run", "--data", "{tmp}/data", "--epochs", "1", "--jsonl", "{tmp}/out.jsonl"]], "the run's last weights in PyTorch"),
    "lm.py": ([["--quick", "--storage", "float32", "bfloat16", "q8_0", "--jsonl", "{tmp}/out.jsonl", *BRIEF]], "train-2048"),
    "models.py": ([["dit-s-1", "--no-compile", "--jsonl", "{tmp}/out.jsonl", *BRIEF]], "images/s"),
    "peers.py": ([["--case", "forward", "--shape", "deit-t", "--jsonl", "{tmp}/out.jsonl", *BRIEF],
                  ["--case", "causal-backward", "--shape", "T2048", *BRIEF]], "mhla.torch"),
    "precision.py": ([["--quick", "--seeds", "1", "--images", "{tmp}/clothes", "--text", "{tmp}/text", "--folder", "{tmp}/precision"]], "bits per byte"),
    "resolution.py": ([["{tmp}/out.svg", "--tokens", "256", "--seconds", "0.01"]], "softmax"),
    "threads.py": ([["--seconds", "0.01"]], "its backward"),
    "tokenizing.py": ([["{tmp}/tokenizer.json", "{tmp}/text.txt", "--rounds", "1"]], "MB/s"),
    "vision.py": ([["--kind", "focused", "mala", "--case", "forward", "backward", *BRIEF]], "mhla.torch"),
}


def test_every_script_is_here():
    assert sorted(SCRIPTS) == sorted(p.name for p in BENCH.glob("*.py"))
    tested = (ROOT / "python" / "tests" / "test_examples.py").read_text()
    assert [p.name for p in (ROOT / "examples").glob("*.py") if f'"{p.name}"' not in tested] == []
    page = (BENCH / "README.md").read_text()
    assert [name for name in SCRIPTS if f"`{name}`" not in page] == []


def mhla(*arguments):
    subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True, text=True)


def images(folder, side):
    """Pictures of side x side, bright in the quarter that is their class."""
    folder.mkdir()
    half = side // 2
    for split, n in (("train", 48), ("t10k", 24)):
        pixels = bytes(40 + 7 * ((i + x * y) % 13) + 90 * (2 * (y // half) + x // half == i % 4)
                       for i in range(n) for y in range(side) for x in range(side))
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, n, side, side) + pixels)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, n) + bytes(i % 4 for i in range(n)))


def prepare(tmp):
    """Pictures, a run on the smaller ones, a text and its tokenizer."""
    images(tmp / "data", 8)
    images(tmp / "clothes", 28)
    mhla("train", "--source", tmp / "data", "--image", 8, "--padding", 0, "--patch", 2, "--dim", 16, "--depth", 2, "--model.crop", 1, "--mean", 0.4,
         "--deviation", 0.25, "--batch", 16, "--epochs", 2, "--warmup_epochs", 1, "--ema", 0.9, "--randaugment", "none", "--erasing", 0,
         "--mixup", 0, "--cutmix", 0, "--out", tmp / "run", "--quiet")
    (tmp / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 20)
    mhla("tokenize", "train", tmp / "tokenizer.json", tmp / "text.txt", "--vocabulary", 280)
    (tmp / "text").mkdir()
    for name in ("train.txt", "validation.txt"):
        shutil.copy(tmp / "text.txt", tmp / "text" / name)
    shutil.copy(tmp / "tokenizer.json", tmp / "text")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}: make")
    tmp = tmp_path_factory.mktemp("scripts")
    prepare(tmp)
    return tmp


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script(name, prepared, monkeypatch, capsys):
    import torch

    threads = torch.get_num_threads()
    commands, said = SCRIPTS[name]
    monkeypatch.syspath_prepend(str(BENCH))  # they import each other
    (prepared / "out.jsonl").unlink(missing_ok=True)
    monkeypatch.setenv("LD_PRELOAD", "")  # or the script would start itself again, with tcmalloc, in place of the tests
    for arguments in commands:
        monkeypatch.setattr(sys, "argv", [name, *(a.format(tmp=prepared) for a in arguments)])
        try:
            runpy.run_path(str(BENCH / name), run_name="__main__")  # in this process, which has torch already
        finally:
            torch.set_num_threads(threads)
        printed = capsys.readouterr().out
        assert said in printed and not re.search(r"\b(nan|inf)\b", printed), printed
        if "{tmp}/out.jsonl" in arguments:
            assert all(json.loads(line) for line in (prepared / "out.jsonl").read_text().splitlines())
