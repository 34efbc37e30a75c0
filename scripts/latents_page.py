#!/usr/bin/env python3
"""latents_page.py PROGRAM VAE LATENTS MODEL.. [--folder DIR] [--remark TEXT]: writes docs/latents.md, a page about an autoencoder, the latents that it made and
diffusion models of them, each in its run's folder. Every figure is read from the runs' files; the images are a run's own grid of
test images, and samples drawn here with the seeds 0, 1, ...: nothing is selected.

--folder DIR writes into DIR instead of docs; --remark TEXT is a sentence about the machine that trained them.
"""
import argparse
import json
import math
import pathlib
import shutil
import statistics
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 8


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def best_of(run):
    """Its step, and the line of its test."""
    step = json.loads((run / "best" / "state.json").read_text())["step"]
    return step, next(line for line in lines_of(run) if line["kind"] == "test" and line["step"] == step)


def tensors(path):
    """Numbers of a safetensors file of float32 and int32, by name."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__", None)
    places = {name: (8 + size + t["data_offsets"][0], 8 + size + t["data_offsets"][1], t["dtype"]) for name, t in head.items()}
    return {name: memoryview(data)[first:end].cast("f" if kind == "F32" else "i") for name, (first, end, kind) in places.items()}


def parameters(program, run):
    told = subprocess.run([program, "info", run, "--json", "--no-measure"], check=True, capture_output=True, text=True).stdout
    return json.loads(told)["parameters"]


def trained(run):
    """Updates, passes, and minutes at the median pace; the minutes once more."""
    recipe = json.loads((run / "recipe.json").read_text())
    steps = [line for line in lines_of(run) if line["kind"] == "step"]
    batch, pace = recipe["train"]["batch"], statistics.median(line["images_per_second"] for line in steps)
    last = steps[-1]["step"]
    minutes = last * batch / pace / 60
    return (f"{last:,} updates of {batch} images, {steps[-1]['epoch']:.1f} passes, {minutes:.0f} minutes at "
            f"{pace:.0f} images per second (the median)"), minutes


def moments(folder, split):
    """Mean and deviation of what a diffusion model sees: latents drawn from their Gaussians."""
    sums = [0.0, 0.0, 0]
    for path in sorted(folder.glob(f"{split}-*.safetensors")):
        found = tensors(path)
        sums[0] += math.fsum(found["mean"])
        sums[1] += math.fsum(m * m for m in found["mean"]) + math.fsum(d * d for d in found["deviation"])
        sums[2] += len(found["mean"])
    mean = sums[0] / sums[2]
    return mean, math.sqrt(sums[1] / sums[2] - mean * mean)


def about_model(given, run, about, sides):
    """A section: figures of a run and its samples, which are drawn here."""
    step, test = best_of(run)
    config = json.loads((run / "best" / "config.json").read_text())
    weights = ["the weights as trained", "their average"][json.loads((run / "best" / "state.json").read_text())["weights"] == "ema"]
    samples = given.folder / f"latents-{run.name}.png"
    subprocess.run([given.program, "sample", "-m", run, "--vae", given.vae, "--classes", "all", "-n", str(COLUMNS), "--steps", "25",
                    "--guidance", "2", "--seed", "0", "--out", samples, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return f"""## {config["model"]}, {config["attention"]}

| | |
| --- | --- |
| parameters | {parameters(given.program, run):,} |
| attention | {config["attention"]}, {sides[0] * sides[1] // config["patch"] ** 2} tokens |
| trained | {trained(run)[0]} |
| test loss, at the best of its evaluations (update {step:,}) | {min(test["loss"], test.get("ema_loss", math.inf)):.4f} |
| samples drawn with | {weights} |

{COLUMNS} samples of each class, of the seeds 0 to {COLUMNS - 1} of each, in this order of classes: {", ".join(about["classes"])}.

![samples, a class in each row]({samples.name})
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "vae", "latents"):
        parser.add_argument(name, type=pathlib.Path, metavar=name.upper())
    parser.add_argument("models", type=pathlib.Path, nargs="+", metavar="MODEL")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs", metavar="DIR")
    parser.add_argument("--remark", default="", metavar="TEXT")
    given = parser.parse_args()
    about = json.loads((given.latents / "latents.json").read_text())
    step, test = best_of(given.vae)
    sides = [about["height"] // about["factor"], about["width"] // about["factor"]]
    mean, deviation = moments(given.latents, "train")
    shutil.copy(given.vae / "samples" / f"step-{step:08}.png", given.folder / "latents-reconstructions.png")
    minutes = sum(trained(run)[1] for run in [given.vae, *given.models])
    sections = [about_model(given, run, about, sides) for run in given.models]
    (given.folder / "latents.md").write_text(f"""# Latents of our own

An autoencoder trained here, and diffusion models on the latents that it makes: {minutes:.0f} minutes of training. The commands:

    mhla data emoji
    mhla train vae-emoji --out runs/vae-emoji
    mhla latents emoji --vae runs/vae-emoji --out latents/emoji
    mhla train dit-emoji-latents --out runs/dit-emoji-latents
    mhla train dig-emoji-latents --attention mhla --out runs/dig-emoji-latents
    mhla sample -m runs/dit-emoji-latents --vae runs/vae-emoji --classes all -n {COLUMNS} --steps 25 --guidance 2 --seed 0 --out emoji.png

`scripts/latents_page.py` wrote this page out of the runs' files. Nothing on it is selected. These are small models of few images, trained
for a short time: look at them as a test of the path, not as good images. {given.remark}

## The autoencoder

| | |
| --- | --- |
| parameters | {parameters(given.program, given.vae):,} |
| trained | {trained(given.vae)[0]} |
| latents | {about["channels"]} x {sides[0]} x {sides[1]} of images of {about["width"]} x {about["height"]} |
| {test["images"]} test images: absolute error, -1 to 1 | {test["l1"]:.4f} |
| peak signal-to-noise ratio | {test["psnr"]:.2f} dB |
| divergence, nats of an image | {test["divergence"]:.0f} |

The `scaling_factor` in config.json, {about["scale"]:.4f}, is 1 / deviation of the latents of the test images. The latents of the
{about["train"]:,} training images then have deviation {deviation:.3f} (mean {mean:.3f}).

Test images, spread evenly over all of them, and below each row its reconstruction:

![test images and their reconstructions](latents-reconstructions.png)

{chr(10).join(sections)}""")
    print(given.folder / "latents.md")


if __name__ == "__main__":
    main()
