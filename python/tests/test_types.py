"""Type hints: `mypy --strict` of a user's program over the whole public API, and of the package itself."""
import pathlib
import subprocess
import sys

import pytest

import mhla

HERE = pathlib.Path(__file__).parent
pytest.importorskip("mypy", reason="mypy is not installed")


def check(*arguments: str) -> str:
    """What mypy says, with the package found where this process found it. What it learns of torch is kept in the environment."""
    place, cache = pathlib.Path(mhla.__file__).parents[1], pathlib.Path(sys.prefix) / "mypy-cache"
    run = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache), *arguments],
                         cwd=HERE if place.name == "site-packages" else place, capture_output=True, text=True, timeout=1800)
    return run.stdout + run.stderr


def test_a_user_s_program():
    assert check("--strict", "--config-file=", str(HERE / "typed_program.py")) == ""


def test_the_program_uses_all():
    text = (HERE / "typed_program.py").read_text()
    missing = [name for name in mhla.__all__ if f"mhla.{name}" not in text]
    assert missing == []


def test_wrong_programs_are_refused(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import mhla\n"
                     "x: str = mhla.mix_names()\n"
                     "mhla.LanguageModel.load('x').generate('x', temprature=1.0)\n"
                     "mhla.load('x', storag='q8_0')\n")
    said = check("--strict", "--config-file=", str(wrong))
    assert sorted({line.split(":")[1] for line in said.splitlines() if ": error:" in line}) == ["2", "3", "4"], said


def test_the_package():
    config = HERE.parents[1] / "pyproject.toml"
    if not config.exists():
        pytest.skip("pyproject.toml is not beside the tests")
    assert check("--config-file", str(config)) == ""
