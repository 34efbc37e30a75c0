#!/usr/bin/env python3
"""Checks the rows of mhla_char_changes in src/text/unicode.c, and prints what they should be where they differ.

The categories of Unicode 14.0 are those of Python 3.11, later ones those of the wheels of unicodedata2, which are
installed into a temporary folder."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

VERSIONS = ["15.0.0", "15.1.0", "16.0.0", "17.0.1", "18.0.0"]
REFERENCE = "16.0.0"
PRINT = "import json, {0} as u; print(json.dumps([u.unidata_version, [u.category(chr(c)) for c in range(0x110000)]]))"


def categories(module, path=None):
    code = f"import sys; sys.path.insert(0, {path!r}); " if path else ""
    return json.loads(subprocess.check_output([sys.executable, "-c", code + PRINT.format(module)]))


def changes(tables, reference):
    rows = []
    for code in range(0x110000):
        if len({t[code] for t in tables}) == 1:
            continue
        if rows and rows[-1][1] == code - 1 and rows[-1][2] == reference[code]:
            rows[-1][1] = code
        else:
            rows.append([code, code, reference[code]])
    return ["{0x%x, 0x%x, %s}" % (first, last, name.upper()) for first, last, name in rows]


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    version, table = categories("unicodedata")
    if version != "14.0.0":
        sys.exit(f"unicode_changes: Python 3.11 is needed, whose Unicode is 14.0; this one's is {version}")
    tables, reference = [table], None
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:",
                                   "--target", folder, f"unicodedata2=={version}"])
            tables.append(categories("unicodedata2", folder)[1])
        if version == REFERENCE:
            reference = tables[-1]
    wanted = changes(tables, reference)
    source = (pathlib.Path(__file__).parent.parent / "src/text/unicode.c").read_text()
    body = source.split("mhla_char_changes[] = {")[1].split("};")[0]
    if re.findall(r"\{[^}]*\}", body) == wanted:
        print(f"unicode_changes: all {len(wanted)} rows are right")
        return
    print(", ".join(wanted))
    sys.exit("unicode_changes: src/text/unicode.c has other rows than these")


if __name__ == "__main__":
    main()
