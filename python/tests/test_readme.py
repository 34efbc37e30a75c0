"""The README's Python example runs as it is printed."""
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.skipif(not README.exists(), reason="the README is not beside the tests")
def test_example_runs(capsys):
    pytest.importorskip("torch")
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.S).group(1)
    exec(compile(code, "README.md", "exec"), {})
    assert "torch.Size([2, 1024, 6, 64])" in capsys.readouterr().out
