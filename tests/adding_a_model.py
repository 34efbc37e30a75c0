#!/usr/bin/env python3
"""adding_a_model.py BUILD: follows docs/adding-a-model.md as a reader would.

Writes the files that the page shows, adds its lines to the lists it names, compiles these files against the libraries in BUILD,
links a new program from the objects of the old one, and runs the page's commands in an empty folder. Every command must
succeed. Files that exist in the tree must not change, except by one line in a list each.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "adding-a-model.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
ADDED = re.compile(r"the\s+list\s+`(\w+)`\s+in\s+`([\w/.]+)`:\s+```c\n\s*(.+?)\n```", re.S)


def run(command, **options):
    shown = command if isinstance(command, str) else shlex.join(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    if done.returncode:
        sys.exit(f"adding_a_model: exit code {done.returncode}: {shown[:300]}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def new_files(page, tree):
    """The page's files, written below `tree`; a file names itself in its first line."""
    found = []
    for language, text in BLOCK.findall(page):
        named = re.match(r"/\* (src/[\w/]+\.[ch]):", text)
        if language == "c" and named:
            assert not (ROOT / named[1]).exists(), f"{named[1]} is in the tree already"
            path = tree / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            found.append(path)
    return found


def longer_lists(page, tree):
    """Copies of the files that hold lists, with the page's line behind the others."""
    changed = {}
    for name, source, line in ADDED.findall(page):
        text = changed.get(source) or (ROOT / source).read_text()
        longer, count = re.subn(rf"(#define {name}\(X\)(?:.*\\\n)+.*)\n", lambda m: f"{m[1]} \\\n    {line}\n", text)
        assert count == 1, f"{source}: no list {name}"
        changed[source] = longer
    for source, text in changed.items():
        (tree / source).parent.mkdir(parents=True, exist_ok=True)
        (tree / source).write_text(text)
    return [tree / source for source in changed]


def compile_all(build, tree, sources):
    """Objects of the page's files, with the flags that the library itself was built with."""
    flags = (build / "CMakeFiles/mhla_nn.dir/flags.make").read_text()
    words = [w for key in ("C_DEFINES", "C_INCLUDES", "C_FLAGS") for w in shlex.split(re.search(rf"^{key} = (.*)$", flags, re.M)[1])]
    compiler = re.search(r"^CMAKE_C_COMPILER:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]
    objects = []
    for source in sources:
        objects.append(source.with_suffix(".o"))
        run([compiler, f"-I{tree / 'src'}", *words, "-Werror", "-c", source, "-o", objects[-1]])
    return objects


def link(build, tree, objects, name):
    """A program of BUILD with the new objects in front: the library's own of the same name are then not taken."""
    command = shlex.split((build / f"CMakeFiles/{name}.dir/link.txt").read_text())
    at = command.index("-o")
    program = tree / "bin" / name
    program.parent.mkdir(exist_ok=True)
    command[at + 1] = str(program)
    run(command[:at] + [str(o) for o in objects] + command[at:], cwd=build)
    return program


def shapes(folder):
    """A dataset for the page's commands: 8 x 8 grey images of four textures: dark, bright, stripes across, stripes down."""
    kinds = (lambda y, x: 30, lambda y, x: 220, lambda y, x: 240 * (y % 2), lambda y, x: 240 * (x % 2))
    folder.mkdir(parents=True)
    for split, count in (("train", 96), ("t10k", 24)):
        pixels = bytes(min(255, kinds[i % 4](y, x) + (i * 7 + y * 3 + x * 5) % 13) for i in range(count) for y in range(8) for x in range(8))
        head = count.to_bytes(4, "big")
        (folder / f"{split}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + head + 2 * (8).to_bytes(4, "big") + pixels)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + head + bytes(i % 4 for i in range(count)))


def words(folder):
    """Text for the page's commands."""
    folder.mkdir(parents=True)
    lines = [f"The {a} sat on the {b} and looked at the {c}.\n\f\n" for a in ("cat", "dog", "bird") for b in ("mat", "roof") for c in ("sun", "moon", "rain")]
    (folder / "train.txt").write_text("".join(4 * lines))
    (folder / "validation.txt").write_text("".join(lines[:3]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a build folder of this tree")
    build = parser.parse_args().build.resolve()
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        files, lists = new_files(page, tree), longer_lists(page, tree)
        assert files and len(lists) == len({s for _, s, _ in ADDED.findall(page)}), "the page shows no files, or adds no line"
        objects = compile_all(build, tree, files + lists)
        program = link(build, tree, objects, "mhla")
        if (build / "test_mixers").exists():  # the page's mixer is tested as all are
            print(run([link(build, tree, objects, "test_mixers")])[-300:])
        else:
            print("adding_a_model: skipped test_mixers, which is not built")
        work = tree / "work"
        work.mkdir()
        shapes(work / "data" / "shapes")
        words(work / "data" / "words")
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "OMP_WAIT_POLICY": "passive"}
        commands = [line for language, text in BLOCK.findall(page) if language == "sh" for line in text.splitlines()]
        for command in commands:
            print(f"$ {command}")
            print(run(command, shell=True, cwd=work, env=environment)[-800:])
    print(f"adding_a_model: {len(files)} new files, {len(lists)} lists, {len(commands)} commands")


if __name__ == "__main__":
    main()
