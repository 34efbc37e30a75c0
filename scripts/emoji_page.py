#!/usr/bin/env python3
"""emoji_page.py PROGRAM MHLA LINEAR CLASSIFIER CAPTIONS [--folder DIR] [--remark TEXT] [--prompts FILE]: writes docs/text-to-image.md, a page about two runs of
recipes/sana-emoji.toml, with MHLA and with linear attention, judged by a run of recipes/deit-emoji.toml. CAPTIONS is the folder that mhla
captions made. Every figure is read from the runs' files or drawn here with the seeds 0, 1, ..: nothing is selected. The captions of the images
are those of recipes/sana-emoji.txt, which was fixed before the training.

--folder DIR writes into DIR instead of docs; --remark TEXT is a sentence about the machine that trained them; --prompts FILE
has other captions than recipes/sana-emoji.txt.
"""
import argparse
import base64
import html
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = ROOT / "recipes" / "sana-emoji.txt"
COLUMNS, STEPS, GUIDANCE = 4, 25, 3
ARMS = ("mhla", "linear")
NAMES = {"mhla": "MHLA", "linear": "linear attention"}
COLOURS = {"mhla": "#c2410c", "linear": "#1d4ed8"}


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def tests_of(run):
    """(update, loss of the better weights) of every evaluation."""
    return [(line["step"], min(line["loss"], line.get("ema_loss", line["loss"]))) for line in lines_of(run) if line["kind"] == "test"]


def best_of(run):
    step = json.loads((run / "best" / "state.json").read_text())["step"]
    return step, dict(tests_of(run))[step]


def trained(run):
    """Updates, passes, and minutes at the median pace."""
    recipe = json.loads((run / "recipe.json").read_text())
    steps = [line for line in lines_of(run) if line["kind"] == "step"]
    batch, pace = recipe["train"]["batch"], statistics.median(line["images_per_second"] for line in steps)
    last = steps[-1]["step"]
    return (f"{last:,} updates of {batch} images, {steps[-1]['epoch']:.1f} passes, {last * batch / pace / 60:.0f} minutes at "
            f"{pace:.0f} images per second")


def tell(program, *args):
    return subprocess.run([program, *args], check=True, capture_output=True, text=True).stdout


def sample(given, run, prompts, count, out):
    rows = run / "captions"  # of all captions: the encoder is not needed
    if not rows.exists():
        rows.symlink_to(given.captions.resolve())
    tell(given.program, "sample", "-m", run, "--prompts", prompts, "-n", str(count), "--seed", "0", "--sampler", "euler", "--steps", str(STEPS),
         "--guidance", str(GUIDANCE), "-o", out, "--quiet")


def guess(given, files):
    """The class that the judge gives each file."""
    found = []
    for i in range(0, len(files), 200):
        told = json.loads(tell(given.program, "classify", *files[i:i + 200], "--model", given.classifier, "--top", "1", "--json"))
        found += [row["classes"][0]["name"] for row in told]
    return found


def share(found, wanted):
    return f"{100 * sum(a == b for a, b in zip(found, wanted)) / len(wanted):.1f} %"


# ---- Figures ----

def write_svg(path, width, height, body):
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                    f'font-family="sans-serif" font-size="13" fill="#222"><rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n')


def write_images(path, captions, held, grids):
    """A row for each caption, the images of both arms beside it."""
    sizes = [struct.unpack(">II", grid[16:24]) for grid in grids]
    left, top, scale = 200, 30, 2
    width = left + sum(scale * w + 20 for w, _ in sizes)
    high = scale * (sizes[0][1] + 2) / len(captions)
    body, x = [], left
    for arm, grid, (w, h) in zip(ARMS, grids, sizes):
        body.append(f'<text x="{x}" y="20">{NAMES[arm]}</text>')
        body.append(f'<image x="{x}" y="{top}" width="{scale * w}" height="{scale * h}" style="image-rendering:pixelated" '
                    f'href="data:image/png;base64,{base64.b64encode(grid).decode()}"/>')
        x += scale * w + 20
    for i, caption in enumerate(captions):
        body.append(f'<text x="{left - 12}" y="{top + high * (i + .5) + 4:.0f}" text-anchor="end" '
                    f'font-weight="{"bold" if held[i] else "normal"}">{html.escape(caption)}</text>')
    write_svg(path, width, top + scale * sizes[0][1] + 10, "\n".join(body))


def write_losses(path, curves):
    width, height, left, top, wide, high = 640, 300, 60, 20, 560, 230
    steps = max(step for curve in curves.values() for step, _ in curve)
    shown = {arm: [(s, y) for s, y in curve if s > 0] for arm, curve in curves.items()}
    low, most = min(y for c in shown.values() for _, y in c), max(y for c in shown.values() for _, y in c)
    span = (most - low) or 1.0
    place = lambda s, y: f"{left + wide * s / steps:.1f},{top + high * (1 - (y - low) / span):.1f}"  # noqa: E731
    body = [f'<path d="M{left},{top}V{top + high}H{left + wide}" fill="none" stroke="#888"/>']
    for k in range(5):
        y = low + span * k / 4
        body.append(f'<text x="{left - 8}" y="{top + high * (1 - k / 4) + 4:.0f}" text-anchor="end">{y:.3f}</text>')
        body.append(f'<text x="{left + wide * k / 4:.0f}" y="{top + high + 18}" text-anchor="middle">{steps * k // 4:,}</text>')
    for i, (arm, curve) in enumerate(shown.items()):
        body.append(f'<polyline points="{" ".join(place(*p) for p in curve)}" fill="none" stroke="{COLOURS[arm]}" stroke-width="2"/>')
        body.append(f'<text x="{left + wide - 130}" y="{top + 16 + 18 * i}" fill="{COLOURS[arm]}">{NAMES[arm]}</text>')
    body.append(f'<text x="{left + wide / 2:.0f}" y="{height - 12}" text-anchor="middle">updates</text>')
    write_svg(path, width, height, "\n".join(body))


# ---- The page ----

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "mhla", "linear", "classifier", "captions"):
        parser.add_argument(name, type=pathlib.Path, metavar=name.upper())
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs", metavar="DIR")
    parser.add_argument("--remark", default="", metavar="TEXT")
    parser.add_argument("--prompts", type=pathlib.Path, default=PROMPTS, metavar="FILE")
    given = parser.parse_args()
    runs = {"mhla": given.mhla, "linear": given.linear}
    about = json.loads((given.captions / "captions.json").read_text())
    train, texts = about["train"], about["texts"]
    groups = [file.split("/")[1] for file in about["files"]]
    shown = given.prompts.read_text().splitlines()
    held = [texts.index(caption) >= train for caption in shown]
    # all that are held out, and as many that were trained, spread evenly
    test = list(range(train, len(texts)))
    parts = {"trained": [i * train // len(test) for i in range(len(test))], "held out": test}
    judged, reference = {}, {}
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        grids = []
        for arm, run in runs.items():
            sample(given, run, given.prompts, COLUMNS, place / f"{arm}.png")
            grids.append((place / f"{arm}.png").read_bytes())
            for part, list_ in parts.items():
                (place / "prompts.txt").write_text("".join(texts[i] + "\n" for i in list_))
                out = place / f"{arm}-{part}"
                sample(given, run, place / "prompts.txt", 1, out)
                files = sorted(out.glob("*.png"))
                if len(files) != len(list_):
                    raise SystemExit(f"{out}: {len(files)} images of {len(list_)} captions")
                judged[arm, part] = share(guess(given, files), [groups[i] for i in list_])
        for part, list_ in parts.items():
            files = [pathlib.Path(about["source"]) / about["files"][i] for i in list_]
            reference[part] = share(guess(given, files), [groups[i] for i in list_])
    write_images(given.folder / "text-to-image-samples.svg", shown, held, grids)
    write_losses(given.folder / "text-to-image-loss.svg", {arm: tests_of(run) for arm, run in runs.items()})
    facts = {}
    for arm, run in runs.items():
        config = json.loads((run / "best" / "config.json").read_text())
        step, loss = best_of(run)
        numbers = json.loads(tell(given.program, "info", run, "--json", "--no-measure"))["parameters"]
        side = config["sample_size"] // config["patch_size"]
        facts[arm] = (f"{numbers:,}", f"{side} x {side} tokens", trained(run), f"{loss:.4f} (update {step:,})")
    rows = "".join(f"| {what} | {facts['mhla'][i]} | {facts['linear'][i]} |\n"
                   for i, what in enumerate(("parameters", "grid", "trained", "test loss, the best of the evaluations")))
    rows += "".join(f"| right group, {part} captions | {judged['mhla', part]} | {judged['linear', part]} |\n" for part in parts)
    (given.folder / "text-to-image.md").write_text(f"""# From words to pictures

Two small models that draw emoji by their names, with MHLA and with SANA's own linear attention; everything else is the same. The commands:

    mhla data emoji
    mhla data smollm2
    mhla captions emoji --encoder data/smollm2 --instruction "An emoji: " --out captions/emoji
    mhla train sana-emoji --out runs/sana-emoji
    mhla train sana-emoji --attention linear --out runs/sana-linear
    mhla train deit-emoji --out runs/deit-emoji
    mhla sample -m runs/sana-emoji --prompts recipes/sana-emoji.txt -n {COLUMNS} --sampler euler --steps {STEPS} --guidance {GUIDANCE} -o emoji.png

`scripts/emoji_page.py` wrote this page out of the runs' files. Nothing on it is selected: the {len(shown)} captions were fixed before the training, and
each has the images of the seeds 0 to {COLUMNS - 1}. {len(texts) - train} of {len(texts):,} captions were held out, all tones of skin of an emoji together. {given.remark}

| | MHLA | linear |
| --- | --- | --- |
{rows}
"Right group": a classifier that was trained on real emoji names the group of the caption (nine groups), for {len(test)} captions that were trained,
spread evenly, and for all {len(test)} that were held out, an image each. Of the real images of the same captions it names {reference["trained"]}
and {reference["held out"]}.

Captions in bold were held out:

![images of the captions, of both models](text-to-image-samples.svg)

The loss on the held-out images and captions:

![test loss of both models](text-to-image-loss.svg)
""")
    print(given.folder / "text-to-image.md")


if __name__ == "__main__":
    main()
