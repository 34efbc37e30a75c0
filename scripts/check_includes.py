#!/usr/bin/env python3
"""Checks who includes whom: each room of src/ knows only the rooms below it, everybody outside only the public header.

Run from the top of the tree. Prints every line that looks the wrong way and exits with 1 if there is one.
"""
import argparse
import pathlib
import re
import sys

# room -> the rooms it knows; what those know, it knows as well. docs/architecture.md draws the same picture
KNOWS = {
    "src/core": [],
    "src/simd": ["src/core"],
    "src/ops": ["src/simd"],
    "src/nn": ["src/ops"],
    "src/file": ["src/core"],
    "src/image": ["src/file"],
    "src/text": ["src/file"],
    "src/data": ["src/image", "src/text"],
    "src/models": ["src/nn", "src/image", "src/text"],
    "src/diffusion": ["src/core"],
    "src/infer": ["src/models", "src/diffusion"],
    "src/dist": ["src/core"],
    "src/report": ["src/image"],
    "src/measure": ["src/data", "src/infer", "src/dist"],
    "src/train": ["src/measure", "src/report"],
    "src/analysis": ["src/measure", "src/report"],
    "src/lab": ["src/train", "src/analysis"],
    "cli": [],
    "python": [],
    "examples": [],
    "bench": [],
    "tests": ["src/lab"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    return next((room for room in KNOWS if path.startswith(room + "/")), None)


def known_to(room):
    """The rooms that `room` may include, itself among them."""
    known, more = {room}, list(KNOWS[room])
    while more:
        known.add(more[-1])
        more += KNOWS[more.pop()]
    return known


def target_of(source, name):
    """The file in this tree that `name` means, or None for the system's headers."""
    for base in (source.parent, *map(pathlib.Path, ("src", "cli", "tests", "tests/support"))):
        path = pathlib.Path(base, name)
        if path.is_file():
            return path.resolve().relative_to(pathlib.Path.cwd()).as_posix()
    return None


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    wrong = 0
    for path in sorted(pathlib.Path("src").iterdir()):
        if path.is_dir() and path.as_posix() not in KNOWS:
            print(f"{path}: a room that is not in the table of {sys.argv[0]}")
            wrong += 1
    files = sorted(p for room in KNOWS for p in pathlib.Path(room).rglob("*.[ch]"))
    for source in files:
        room = room_of(source.as_posix())
        for number, line in enumerate(source.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or pathlib.Path("include", match[2]).is_file():
                continue
            target = target_of(source, match[2])
            if target is None:
                complaint = "no such file in the tree" if match[1] == '"' else None
            else:
                seen = room_of(target)
                complaint = None if seen in known_to(room) else f"{room} may not know {seen}"
            if complaint:
                print(f"{source}:{number}: {line.strip()}: {complaint}")
                wrong += 1
    print(f"includes: {len(files)} files, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
