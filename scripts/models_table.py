#!/usr/bin/env python3
"""models_table.py PROGRAM: writes the tables of docs/models.md, between its marks, from what `PROGRAM info` says.

    models_table.py PROGRAM --check      compares them instead; exit code 1 if they differ
    models_table.py PROGRAM --memory     prints the table of the recipes' peak memory: trains each for three updates, in a folder
                                         in which `data` holds what `mhla data` fetched; recipes without data are left out
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
IMAGES = ["deit_nano", "deit_tiny", "deit_small", "deit_base"]
VLT = ["vlt_nano"] + [f"{name}_{size}" for name in ("mhla_vlt", "ravlt", "mavit") for size in ("tiny", "small")] + [
    f"{name}_{size}" for name in ("ravlt", "mavit") for size in ("base", "large")]
DIFFUSION = ["dit_micro", "dit_nano"] + [f"dit_{size}_{patch}" for size in ("s", "b", "l", "xl") for patch in (2, 4, 8)]
GATED = [f"dig_{size}" for size in ("micro", "nano", "s", "b", "l", "xl")]
CLIPS = ["wan_micro", "wan_nano", "wan_1300m"]
LANGUAGE = ["lm_micro", "lm_nano", "lm_340m"]
MIXERS = {"mhla": "MHLA", "softmax": "Transformer++", "linear": "linear attention", "gla": "GLA", "retnet": "RetNet", "mamba": "Mamba",
          "mamba": "Mamba", "mamba2": "Mamba2",
          "gated_deltanet": "Gated DeltaNet", "gated_deltanet, lm_480m": "Gated DeltaNet, larger"}
ATTENTIONS = ["mhla", "linear", "softmax", "focused", "inline", "mala", "rala"]
MARKS = {"images": IMAGES, "attentions": ATTENTIONS, "vlt": VLT, "diffusion": DIFFUSION, "gated": GATED, "clips": CLIPS, "language": LANGUAGE,
         "mixers": list(MIXERS)}


def size(bytes_: float) -> str:
    for unit in ("KiB", "MiB", "GiB"):
        bytes_ /= 1024
        if bytes_ < 1000:
            break
    return f"{bytes_:.3g} {unit}" if bytes_ < 100 else f"{bytes_:.0f} {unit}"


def operations(n: float) -> str:
    return f"{n / 1e12:.3g} T" if n >= 1e12 else f"{n / 1e9:.3g} G" if n >= 1e9 else f"{n / 1e6:.3g} M"


def info(program: str, *model: str) -> dict:
    return json.loads(subprocess.run([program, "info", "--no-measure", "--json", *model], capture_output=True, text=True, check=True).stdout)


def row(program: str, name: str, kind: str) -> str:
    if kind == "attentions":
        counts = [info(program, preset, "structure=released", f"attention={name}")["parameters"] for preset in IMAGES[1:]]
        return f"| `{name}` | " + " | ".join(f"{n:,}" for n in counts) + " |"
    if kind == "mixers":
        attention, _, preset = name.partition(", ")
        model = [preset or "lm_340m", f"attention={attention}"]
        x, untied = info(program, *model), info(program, *model, "tie_word_embeddings=false")
        return (f"| `{name}` | {MIXERS[name]} | {x['layers']} | {x['parameters']:,} | {untied['parameters']:,} | {operations(x['multiply_adds'])} | "
                f"{size(x['state_bytes'])} |")
    x = info(program, name)
    p = x["parameters"]
    cells = [f"`{name}`"]
    if kind == "language":
        cells += [f"{x['vocabulary']:,} tokens", f"{x['context']:,}"]
    else:
        frames = f"{x['frames']} x " if x.get("frames") else ""
        cells += [f"{x['channels']} x {frames}{x['height']} x {x['width']}", f"{x['tokens']:,}"]
    cells += [f"{p:,}", operations(x["multiply_adds"]), size(4 * p)]
    cells.append(size(4 * p + 12 * x.get("trainable", p)))
    if kind == "language":
        cells.append(size(x["state_bytes"]))
    return "| " + " | ".join(cells) + " |"


def memory(program: str) -> None:
    print("| recipe | model | batch | peak memory of training |\n| --- | --- | --- | --- |")
    for recipe in sorted((ROOT / "recipes").glob("*.toml")):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--train.steps", "3", "--train.warmup_steps", "1", "--eval.limit", "64", "--quiet", "--out", folder + "/run"]
            if 'task = "diffusion"' in recipe.read_text():
                flags += ["--sample.columns", "0"]
            child = os.fork()
            if child == 0:  # a process of its own, so that the peak is that of this recipe
                done = subprocess.run([program, "train", str(recipe), *flags], capture_output=True, text=True)
                peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
                text = recipe.read_text()
                found = {k: re.search(rf"^{k} = \"?([\w]+)", text, re.M) for k in ("model", "batch", "accumulate")}
                batch = found["batch"][1] + (f" in {found['accumulate'][1]} parts" if found["accumulate"] else "")
                if done.returncode == 0:
                    print(f"| `recipes/{recipe.name}` | `{found['model'][1]}` | {batch} | {size(peak)} |", flush=True)
                else:
                    print(f"{recipe.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                os._exit(0)
            os.waitpid(child, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    program, check = args.program, args.check
    if args.memory:
        memory(program)
        return 0
    text, stale = PAGE.read_text(), 0
    for mark, names in MARKS.items():
        found = re.search(rf"(<!-- {mark}: .*?-->\n\n\|.*\n\| ---.*\n)((?:\|.*\n)*)", text)
        old = found[2].splitlines()
        if check:
            rows = {line.split("`")[1]: line for line in old}
            if list(rows) != names:
                print(f"docs/models.md lists {', '.join(rows)}; the program knows {', '.join(names)}")
                stale += 1
            for name, line in rows.items():
                if row(program, name, mark) != line:
                    print(f"docs/models.md: {name} is out of date: scripts/models_table.py writes it anew")
                    stale += 1
        else:
            rows = "".join(row(program, name, mark) + "\n" for name in names)
            text = text.replace(found[0], found[1] + rows)
    if not check:
        PAGE.write_text(text)
    return stale > 0


if __name__ == "__main__":
    sys.exit(main())
