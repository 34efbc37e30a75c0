#!/usr/bin/env python3
"""structs.py: every public call that takes or fills a struct with a size has its row in tests/*/test_structs*.c.

Reads include/mhla/*.h. A struct, a call or a callback without a row is an error; so is a row for something that is not in the headers,
and a struct that is not made as mhla.h, section 1, says: `size_t size` comes first, and no struct with a size lies inside another,
because that one could not grow.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
READS, WRITES = {"TAKES", "IS_TOLD"}, {"FILLS", "CHANGES", "FREES"}


def sized_structs(text):
    """{name: fields} of the structs that have a size, and what is wrong with them."""
    found, wrong = {}, []
    for name, fields in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S):
        if "size_t size;" in fields:
            found[name] = fields
            if not fields.lstrip().startswith("size_t size;"):
                wrong.append(f"{name}: size_t size is not its first field")
    for name, fields in found.items():
        wrong += [f"{name}: {other} lies inside it: make it a pointer" for other in found if re.search(rf"\b{other}\s+\w", fields)]
    if len(found) != text.count("size_t size;"):
        wrong.append(f"{text.count('size_t size;')} times \"size_t size;\" in {len(found)} structs: one is not understood")
    return found, wrong


def calls_of(text, structs):
    """{(function or callback, struct): is it only read} of everything whose arguments are structs with a size, or point to one."""
    calls = {}

    def add(name, arguments):
        for const, struct in re.findall(r"(const )?\b(\w+) \*", arguments):
            if struct in structs and (name, struct) not in calls:
                calls[name, struct] = bool(const)
                add(name, structs[struct])
    for name, arguments in re.findall(r"MHLA_API [^;(]*?\b(mhla_\w+)\(([^;]*)\);", text):
        add(name, arguments)
    for name, arguments in re.findall(r"typedef \w+ \(\*(mhla_\w+)\)\(([^;]*)\);", text):
        add(name, arguments)
    return calls


def check_myself():
    text = """typedef struct a { size_t size; int x; } a; typedef struct b { size_t size; const a *first; } b;
        typedef struct c { size_t size; a inside; } c; typedef struct d { int x; } d;
        MHLA_API mhla_status mhla_one(const b *given, d *other,\n int n); MHLA_API void mhla_two(a *filled);
        typedef void (*mhla_fn)(void *user, const c *event);"""
    structs, wrong = sized_structs(text)
    assert sorted(structs) == ["a", "b", "c"] and wrong == ["c: a lies inside it: make it a pointer"], (structs, wrong)
    calls = calls_of(text, structs)
    assert calls == {("mhla_one", "b"): True, ("mhla_one", "a"): True, ("mhla_two", "a"): False, ("mhla_fn", "c"): True}, calls


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    check_myself()
    headers = "\n".join(p.read_text() for p in sorted((ROOT / "include" / "mhla").glob("*.h")))
    headers = re.sub(r"/\*.*?\*/", " ", headers, flags=re.S)
    structs, wrong = sized_structs(headers)
    calls = calls_of(headers, structs)
    rows = {}
    for path in sorted(ROOT.glob("tests/*/test_structs*.c")):
        for kind, function, struct in re.findall(r"\b(TAKES|FILLS|CHANGES|FREES|IS_TOLD)\((mhla_\w+), (mhla_\w+)", path.read_text()):
            rows.setdefault((function, struct), []).append((kind, path.relative_to(ROOT)))
    for (function, struct), only_read in sorted(calls.items()):
        if (function, struct) not in rows:
            wrong.append(f"{function} has a {struct}: it needs a row in a test_structs*.c")
        for kind, path in rows.get((function, struct), []):
            if (kind in READS) != only_read:
                wrong.append(f"{path}: {kind}({function}, {struct}): the header says {'const' if only_read else 'not const'}")
    wrong += [f"{rows[row][0][1]}: {row[0]} has no {row[1]} in the headers" for row in sorted(rows) if row not in calls]
    wrong += [f"{name}: no call has it" for name in sorted(structs) if name not in {struct for _, struct in calls}]
    for line in wrong:
        print(f"structs.py: {line}", file=sys.stderr)
    if not wrong:
        print(f"{len(structs)} structs with a size, {len(calls)} calls and callbacks: each has a row")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
