#!/usr/bin/env python3
"""check_docs.py PROGRAM: what the pages of this repository say can be followed and typed.

Of every Markdown file: relative links, anchors and pictures lead somewhere; whole programs in C compile; Python, JSON and TOML
parse; commands `mhla VERB --flag` have verbs and flags that PROGRAM knows (it is asked: VERB --help), those of scripts in Python have
flags that the script knows, `make X` has a target; scripts, recipes, source files and names of functions that are mentioned exist.
The table of models in docs/models.md is what PROGRAM says today, the front page of the results what its pages say. A line for each fault; exit code 1 if there is one. First it convinces itself, by a page full of faults, that
each kind is found.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import pages

try:
    import tomllib
except ImportError:  # Python before 3.11
    tomllib = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = "src|cli|include|python|tests|bench|examples|docs|recipes|scripts|cmake"
NAMELESS = {"", "sh", "bash", "console", "shell"}  # languages of code that may hold commands


class Program:
    """The program's verbs and flags, by its own help."""

    def __init__(self, path: str):
        self.path, self.known = path, {}
        self.verbs = set(re.findall(r"^  (\w+) ", self.say("--help"), re.M))
        assert "train" in self.verbs, f"{path} --help lists no verbs"

    def say(self, *arguments: str) -> str:
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=120).stdout

    def experiments(self) -> list:
        return re.findall(r"^  ([a-z-]+) ", self.say("reproduce", "--help"), re.M)

    def flags(self, verb: str, sub: str = "") -> set:
        """Those that its help lists; a key of a recipe is a flag by its last part, too."""
        if (verb, sub) not in self.known:
            text = self.say(verb, *([sub] if sub else []), "--help")
            found = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w.-]*", text))
            self.known[verb, sub] = found | {"--" + f.rsplit(".", 1)[1] for f in found if "." in f} | {"--help"}
        return self.known[verb, sub]


class Checker:
    def __init__(self, program: Program):
        self.program, self.faults, self.counts = program, [], {}
        self.anchors = {}
        makefile = (ROOT / "Makefile").read_text()
        self.targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
        # every name with our prefix; that of a test or a struct's tag is one as well
        sources = [p for room in ("include", "src", "cli", "python/src", "examples") for p in (ROOT / room).rglob("*.[ch]")]
        sources += [ROOT / "CMakeLists.txt", *(ROOT / "cmake").iterdir(), *(ROOT / "python" / "mhla").rglob("*.py")]
        self.names = set(re.findall(r"\b_?mhla_\w+", "\n".join(p.read_text() for p in sources)))

    def fault(self, page, line: int, text: str) -> None:
        shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
        self.faults.append(f"{shown}:{line}: {text}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def anchors_of(self, page: pathlib.Path) -> set:
        if page not in self.anchors:
            self.anchors[page] = {b.slug for b in pages.walk(pages.parse(page.read_text())) if b.kind == "heading"}
        return self.anchors[page]

    def link(self, page, line: int, target: str) -> None:
        self.count("links")
        if re.match(r"[a-z]+:", target):
            return
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if path and not other.exists():
            self.fault(page, line, f"dead link {target}")
        elif anchor and other.suffix == ".md" and anchor not in self.anchors_of(other):
            self.fault(page, line, f"{target}: {path or 'this page'} has no heading #{anchor}")

    def command(self, page, line: int, words: list) -> None:
        while words and (re.fullmatch(r"\w+=\S*", words[0]) or words[0] in ("$", "time", "env", "sudo", "taskset", "&&")):
            words = words[3:] if words[0] == "taskset" else words[1:]  # taskset -c 0
        if not words:
            return
        if words[0] == "make" and len(words) > 1 and words[1] not in "-=":
            for word in words[1:]:
                if re.fullmatch(r"[a-z][\w-]*", word):
                    self.count("targets of make")
                    if word not in self.targets:
                        self.fault(page, line, f"make {word}: no such target")
        elif words[0] in ("python", "python3", ".venv/bin/python") or re.match(r"(scripts|bench|tests)/", words[0]):
            script = words[1] if words[0].endswith(("python", "python3")) and len(words) > 1 else words[0]
            if re.match(rf"({ROOMS})/", script) and not (ROOT / script).exists():
                self.fault(page, line, f"{script}: no such file")
            elif re.match(rf"({ROOMS})/.*\.py$", script):
                self.count("commands")
                text = (ROOT / script).read_text()
                for flag in (m[0] for w in words if (m := re.match(r"--[a-zA-Z][\w-]*", w))):
                    if f'"{flag}"' not in text:
                        self.fault(page, line, f"{script} {flag}: no such option")
        elif words[0] in ("mhla", "build/mhla", "./build/mhla") and len(words) > 1:
            verb = words[1]
            if verb.startswith(("-", "[")) or verb.isupper() or not re.match(r"[a-zA-Z]", verb):
                return
            self.count("commands")
            if verb not in self.program.verbs:
                self.fault(page, line, f"mhla {verb}: no such verb")
                return
            known = self.program.flags(verb)
            if verb in ("reproduce", "tokenize") and len(words) > 2:  # have verbs of their own; NAME stands for any
                for sub in [words[2]] if re.fullmatch("[a-z]+", words[2]) else self.program.experiments():
                    known = known | self.program.flags(verb, sub)
            if words[1:3] in (["data", "show"], ["bench", "mpi"]):
                known = self.program.flags(*words[1:3])
            for word in words[2:]:
                flag = re.match(r"--[a-zA-Z][\w.-]*|-[a-zA-Z]$", word)
                if flag and flag[0] not in known:
                    self.fault(page, line, f"mhla {verb} {flag[0]}: no such option")

    def shell(self, page, line: int, text: str) -> None:
        for i, row in enumerate(re.sub(r"\\\n", "  ", text).split("\n")):
            for part in re.split(r"&&|\|\||[|;](?=\s|$)", re.sub(r"(^|\s)#.*", "", row)):
                try:
                    words = shlex.split(part)
                except ValueError:  # an apostrophe in prose beside the command
                    words = part.split()
                self.command(page, line + i, words)

    def code(self, page, block) -> None:
        text, language = block.text, block.language
        first = block.line + (1 if language else 0)
        if language == "c" and re.search(r"\bint main\(", text):
            self.count("programs in C")
            with tempfile.NamedTemporaryFile("w", suffix=".c") as source:
                source.write(text + "\n")
                source.flush()
                done = subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                       "-I", str(ROOT / "include"), source.name], capture_output=True, text=True)
            if done.returncode:
                self.fault(page, first, "does not compile: " + next((x for x in done.stderr.split("\n") if "error" in x), done.stderr))
        elif language == "python":
            self.parses(page, first, text, "Python", lambda t: compile(t, "block", "exec"))
        elif language == "json":
            self.parses(page, first, text, "JSON", json.loads)
        elif language == "toml" and tomllib:
            self.parses(page, first, text, "TOML", tomllib.loads)
        elif language in NAMELESS:
            if text.strip() and all(row.startswith('{"') for row in text.strip().split("\n")):
                for row in text.strip().split("\n"):
                    self.parses(page, first, row, "JSON", json.loads)
            self.shell(page, block.line, text)

    def parses(self, page, line: int, text: str, what: str, parser) -> None:
        self.count(f"blocks of {what}")
        try:
            parser(text)
        except (ValueError, SyntaxError) as error:
            self.fault(page, line, f"is no {what}: {error}")

    def mention(self, page, line: int, text: str) -> None:
        """Code in running text: a path, a function, a command."""
        bare = " ".join(text.split())
        if re.fullmatch(rf"({ROOMS})/[\w./-]*\w/?", bare):
            self.count("paths")
            if not (ROOT / bare).exists():
                self.fault(page, line, f"`{bare}`: no such file or folder")
        elif match := re.fullmatch(r"(mhla_[a-z0-9_]+)(\*?)(\(\))?", bare):
            self.count("names")
            if not (any(n.startswith(match[1]) for n in self.names) if match[2] else match[1] in self.names):
                self.fault(page, line, f"`{bare}`: no such name")
        elif re.match(r"(build/)?mhla [a-z]|make [a-z]", bare):
            self.shell(page, line, bare)

    def page(self, page: pathlib.Path, text: str) -> None:
        self.count("pages")
        blocks = list(pages.walk(pages.parse(text)))
        self.anchors[page] = {b.slug for b in blocks if b.kind == "heading"}
        for block in blocks:
            if block.kind == "code":
                self.code(page, block)
            for target, _ in pages.links(block):
                self.link(page, block.line, target)
            running = [block.text] if block.kind in ("heading", "paragraph") else [c for row in block.rows for c in row]
            for span in (m[2] for t in running for m in re.finditer(r"(`+)(.+?)\1", t, re.S)):
                self.mention(page, block.line, span)
            for recipe in re.findall(r"(?<![\w/-])recipes/[\w-]+\.(?:toml|json)", " ".join([block.text, *running])):
                if not (ROOT / recipe).exists():
                    self.fault(page, block.line, f"{recipe}: no such recipe")


FAULTY = '''# One

[nowhere](no/such/file.md), [no heading](#two), `src/no_such.c`, `mhla_no_such_name`, `mhla train --no-such-key 1`

    mhla fly --high
    mhla eval runs/x --clases && make no-such-target
    mhla train recipes/no-such.toml
    python bench/peers.py --no-such-flag

```c
int main(void) { return x; }
```

```json
{"a": 1,}
```

```toml
a = = 1
```

```python
def f(:
```
'''
EXPECTED = ["dead link no/such/file.md", "no heading #two", "`src/no_such.c`", "`mhla_no_such_name`", "mhla train --no-such-key",
            "mhla fly: no such verb", "mhla eval --clases", "make no-such-target", "recipes/no-such.toml", "bench/peers.py --no-such-flag", "does not compile",
            "is no JSON", "is no Python"] + (["is no TOML"] if tomllib else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default=str(ROOT / "build" / "mhla"), metavar="PROGRAM", help="default: build/mhla")
    program = Program(parser.parse_args().program)
    trial = Checker(program)
    trial.page(ROOT / "faulty.md", FAULTY)
    blind = [kind for kind in EXPECTED if not any(kind in fault for fault in trial.faults)]
    if blind or len(trial.faults) != len(EXPECTED):
        print("check_docs.py misses faults, or finds others:", blind, *trial.faults, sep="\n")
        return 1

    checker = Checker(program)
    away = re.compile(r"(^|/)(build[^/]*|\.venv|\.git|data|runs|node_modules|corpus)/")
    for page in sorted(ROOT.rglob("*.md")):
        if not away.search(str(page.relative_to(ROOT))):
            checker.page(page, page.read_text())
    table = subprocess.run([sys.executable, str(ROOT / "scripts" / "models_table.py"), program.path, "--check"], capture_output=True, text=True)
    if table.returncode:
        checker.faults += (table.stdout + table.stderr).strip().splitlines()[-20:]
    front = subprocess.run([sys.executable, str(ROOT / "scripts" / "results_page.py"), "--check"], capture_output=True, text=True)
    if front.returncode:
        checker.faults += (front.stdout + front.stderr).strip().splitlines()[-20:]
    for fault in checker.faults:
        print(fault)
    print("docs:", ", ".join(f"{n} {what}" for what, n in checker.counts.items()) + f"; {len(checker.faults)} faults")
    return len(checker.faults) > 0


if __name__ == "__main__":
    sys.exit(main())
