#!/usr/bin/env python3
"""Checks who includes whom: each room of src/ knows only the rooms below it, everybody outside only the public header.

Run from the top of the tree. Prints every line that looks the wrong way and exits with 1 if there is one.
"""
import pathlib
import re
import sys

# room -> the rooms it may include besides itself and the public headers; docs/architecture.md draws the same picture
KNOWS = {
    "src/core": [],
    "src/simd": ["src/core"],
    "src/ops": ["src/core", "src/simd"],
    "src/nn": ["src/core", "src/simd", "src/ops"],
    "src/io": ["src/core"],
    "src/models": ["src/core", "src/nn", "src/io"],
    "src/diffusion": ["src/core"],
    "src/train": ["src/core", "src/nn", "src/io", "src/diffusion", "src/models"],
    "src/generate": ["src/core", "src/nn", "src/io", "src/diffusion", "src/models"],
    "src/analysis": ["src/core", "src/ops", "src/nn", "src/io", "src/diffusion", "src/models", "src/train"],
    "src/lab": ["src/core", "src/io", "src/models", "src/train", "src/analysis"],
    "cli": [],
    "python": [],
    "examples": [],
    "bench": [],
    "tests": ["src/core", "src/simd", "src/ops", "src/nn", "src/io", "src/models", "src/diffusion",
              "src/train", "src/generate", "src/analysis", "src/lab"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    return next((room for room in KNOWS if path.startswith(room + "/")), None)


def target_of(source, name):
    """The file in this tree that `name` means, or None for the system's headers."""
    for base in (source.parent, pathlib.Path("src"), pathlib.Path("tests")):
        path = pathlib.Path(base, name)
        if path.is_file():
            return path.resolve().relative_to(pathlib.Path.cwd()).as_posix()
    return None


def main():
    wrong = 0
    files = sorted(p for room in KNOWS for p in pathlib.Path(room).rglob("*.[ch]"))
    for source in files:
        room = room_of(source.as_posix())
        for number, line in enumerate(source.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or match[2] in ("mhla/mhla.h", "mhla/nn.h", "mhla/lm.h", "mhla/diffusion.h", "mhla/analysis.h",
                                         "mhla/lab.h"):
                continue
            target = target_of(source, match[2])
            if target is None:
                complaint = "no such file in the tree" if match[1] == '"' else None
            else:
                seen = room_of(target)
                complaint = None if seen == room or seen in KNOWS[room] else f"{room} may not know {seen}"
            if complaint:
                print(f"{source}:{number}: {line.strip()}: {complaint}")
                wrong += 1
    print(f"includes: {len(files)} files, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
