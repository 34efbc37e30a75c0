"""The examples in Python run as a visitor runs them, and come to what they promise; so does the tutorial."""
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not beside the tests")

# The torchvision of PyPI is made for the torch of PyPI; beside a torch for CPUs its operators do not load, and it cannot be
# imported because two of them are unknown. timm uses neither: declared they are enough.
WITH_TORCHVISION = """
import runpy, sys, torch
try:
    import torchvision
except ImportError:
    pass  # the example itself says what is missing
except RuntimeError:
    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            pass
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(monkeypatch, capsys, name: str, *arguments: str) -> str:
    """In this process, which has torch already."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_streaming(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "streaming.py")
    assert "<mhla.State of 256 tokens" in out and "pickled" in out


def test_finetune(monkeypatch, capsys, tmp_path):
    pytest.importorskip("safetensors")
    out = run(monkeypatch, capsys, "finetune.py", "--steps", "25", "--out", str(tmp_path / "model"))
    assert "made anew: blocks.*.attn.piece_attn.conv.weight\n" in out
    assert int(re.findall(r"(\d+) % of new pictures right", out)[-1]) >= 75
    assert (tmp_path / "model" / "config.json").exists() and (tmp_path / "model" / "model.safetensors").exists()


def test_timm_vit():
    done = subprocess.run([sys.executable, "-c", WITH_TORCHVISION, str(EXAMPLES / "timm_vit.py"), "--steps", "10", "--depth", "2"],
                          capture_output=True, text=True, timeout=600)
    if "this example needs" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.search(r"loss ([\d.]+) at first, ([\d.]+) at last", done.stdout).groups())
    assert "50 more in mixing matrices" in done.stdout and last < first / 2


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
