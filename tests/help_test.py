#!/usr/bin/env python3
"""help_test.py: every script of scripts/, bench/ and tests/ that is a program answers --help, and writes nothing.

Those that need PyTorch are asked with the Python of .venv, and left out where there is none."""
import pathlib
import subprocess
import sys
import tempfile

PACKAGES = ("torch", "numpy", "mhla")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def programs():
    own = ROOT / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    for folder in ("scripts", "bench", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            text = path.read_text() if path.suffix in (".py", ".sh") else ""
            if path.suffix == ".py" and '__name__ == "__main__"' in text and path.name != "help_test.py":
                yield path, [python, str(path)]
            elif folder == "scripts" and path.suffix == ".sh" and text.startswith("#!"):
                yield path, ["sh", str(path)]


def main():
    bad = 0
    for path, command in programs():
        with tempfile.TemporaryDirectory() as empty:
            run = subprocess.run(command + ["--help"], cwd=empty, capture_output=True, text=True, timeout=60)
            left = [p.name for p in pathlib.Path(empty).iterdir()]
        missing = [p for p in PACKAGES if f"No module named '{p}'" in run.stderr]
        if missing:
            print(f"{path.relative_to(ROOT)}: left out, {missing[0]} is not installed")
        elif run.returncode or run.stderr or path.stem not in run.stdout or left:
            print(f"{path.relative_to(ROOT)} --help: exit code {run.returncode}, left {left}: {run.stdout[:200]}{run.stderr[-200:]}")
            bad += 1
    print(f"{bad} scripts do not answer --help")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
