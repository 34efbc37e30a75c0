"""The examples in Python run as a visitor runs them, and come to what they promise; so does the tutorial."""
import pathlib
import re
import runpy
import sys

import pytest
import tiny_lm
import torchvision_for_cpu

import mhla

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not beside the tests")


def run(monkeypatch, capsys, name: str, *arguments: str) -> str:
    """In this process, which has torch already."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_streaming(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "streaming.py")
    assert "<mhla.State of 256 tokens" in out and "pickled" in out


def test_language_model(monkeypatch, capsys, tmp_path):
    out = run(monkeypatch, capsys, "language_model.py", str(tiny_lm.write(tmp_path / "model")), "--prompt", "hello world", "--tokens", "9")
    assert "'hello world' is [262, 263, 264, 111, 103]" in out and "seed 3, " in out
    assert "forks of [9, 10] tokens, logits (2, 265); the sequence is still at 5" in out and "brings back 5 tokens" in out


def test_samplers(monkeypatch, capsys, tmp_path):
    out = run(monkeypatch, capsys, "samplers.py", "--steps", "10")
    assert [float(x) < 1e-4 for x in re.findall(r": (\S+) from the data", out)] == [True] * 4
    mhla.create("dit_micro", depth=1, image=8, blocks=2).save(tmp_path)
    out = run(monkeypatch, capsys, "samplers.py", str(tmp_path), "--steps", "3", "--guidance", "2", "--out", str(tmp_path / "x.npy"))
    assert "ddpm of linear, 3 steps>: (2, 3, 8, 8)" in out and (tmp_path / "x.npy").exists()


def test_finetune(monkeypatch, capsys, tmp_path):
    pytest.importorskip("safetensors")
    out = run(monkeypatch, capsys, "finetune.py", "--steps", "25", "--out", str(tmp_path / "model"))
    assert "made anew: blocks.*.attn.piece_attn.conv.weight\n" in out
    assert int(re.findall(r"(\d+) % of new images right", out)[-1]) >= 75
    assert (tmp_path / "model" / "config.json").exists() and (tmp_path / "model" / "model.safetensors").exists()


def test_timm_vit(monkeypatch, capsys):
    torchvision_for_cpu.allow()
    try:
        out = run(monkeypatch, capsys, "timm_vit.py", "--steps", "10", "--depth", "2")
    except SystemExit as missing:
        pytest.skip(str(missing))
    first, last = map(float, re.search(r"loss ([\d.]+) at first, ([\d.]+) at last", out).groups())
    assert "50 more in mixing matrices" in out and last < first / 2


def test_sana_diffusers(monkeypatch, capsys, tmp_path):
    try:
        out = run(monkeypatch, capsys, "sana_diffusers.py", "--out", str(tmp_path))
    except SystemExit as missing:
        pytest.skip(str(missing))
    assert float(re.search(r"ones: (\S+) from", out)[1]) < 1e-5
    first, last = map(float, re.search(r"loss ([\d.]+) at first, ([\d.]+) at last", out).groups())
    assert last < 0.9 * first and mhla.load(tmp_path).config["attention"] == "mhla"


def test_fla_script(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "fla_script.py", "--steps", "60")
    losses = [tuple(map(float, pair)) for pair in re.findall(r"loss ([\d.]+) at first, ([\d.]+) at last", out)]
    assert len(losses) == 2 and all(last < 0.8 * first for first, last in losses)
    assert float(re.search(r"is (\S+) from the whole", out)[1]) < 1e-4


def test_tutorial(capsys):
    """What a comment behind a print promises is what is printed."""
    page = (EXAMPLES.parent / "docs" / "tutorial.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    exec(compile(code, "tutorial.md", "exec"), {})
    said = re.findall(r"^ *print\(.*\) +# (True|[\d., ]+?)(?::.*)?$", code, re.M)
    assert len(said) >= 8
    promised = [float(x) for line in said for x in re.findall(r"[\d.]+", line.replace("True", "1"))]
    printed = [float(x) for x in re.findall(r"[\d.]+", capsys.readouterr().out.replace("True", "1"))]
    assert printed == pytest.approx(promised, abs=0.006)
