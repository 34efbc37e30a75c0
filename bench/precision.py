#!/usr/bin/env python3
"""What bfloat16 costs: trains the recipes in float32 and in bfloat16 with several seeds and compares what they reach.

    mhla data fashion-mnist && mhla data text && mhla tokenize train data/text/tokenizer.json data/text/train.txt
    python bench/precision.py                                  # a classifier, a diffusion model, a language model
    python bench/precision.py --task language --seeds 5
    python bench/precision.py --quick                          # a few updates of toy models: does all of it run here?

Each model is trained, evaluated and sampled in one type. Runs of one seed start from the same weights and see the same data in the
same order, so the table also has the difference of each pair. Finished runs in --folder are kept, and a killed one is
resumed: the same command continues. The Fréchet distance uses the features of the float32 classifier of the first seed.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
TYPES = ["float32", "bfloat16"]
# task: recipe, its data, settings that differ from the recipe, further ones of a quick run
TASKS = {
    "classifier": ("fashion-mnist", "images", ["--epochs", "3"], ["--steps", "4", "--warmup_epochs", "0.1", "--dim", "16", "--depth", "1", "--batch", "4"]),
    "diffusion": ("dit-fashion", "images", ["--steps", "1500"],
                  ["--steps", "4", "--warmup_steps", "1", "--dim", "16", "--depth", "1", "--batch", "4"]),
    "language": ("lm-laptop", "text", ["--steps", "150", "--warmup_steps", "15"],
                 ["--steps", "2", "--warmup_steps", "1", "--model", "lm_micro", "--context", "64", "--eval.limit", "500"]),
}
MEASURES = {"classifier": [("accuracy", "accuracy, %", 100, 2), ("loss", "test loss", 1, 4)],
            "diffusion": [("loss", "test loss", 1, 4), ("frechet", "Fréchet distance", 1, 3), ("named", "given the right class, %", 100, 1)],
            "language": [("bits_per_byte", "bits per byte", 1, 4)]}


def run(arguments, *command):
    """Runs the program; progress goes to this script's standard error, what it prints comes back."""
    command = [arguments.program, *map(str, command)]
    if arguments.threads:
        command += ["--threads", str(arguments.threads)] if command[1] in ("train", "sample") else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


def train(arguments, task, seed, dtype):
    """The folder of a finished run."""
    recipe, data, settings, quick = TASKS[task]
    folder = pathlib.Path(arguments.folder) / f"{task}-{seed}-{dtype}"
    if (folder / "checkpoints").exists():
        run(arguments, "train", "--resume", folder, "--quiet")
    else:
        run(arguments, "train", ROOT / "recipes" / f"{recipe}.toml", "--source", getattr(arguments, data), "--seed", seed, "--dtype", dtype,
            *settings, *(quick if arguments.quick else []), "--out", folder, "--quiet")
    return folder


def measure(arguments, task, seed, dtype):
    """What a run of this task reaches, by name."""
    folder = train(arguments, task, seed, dtype)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "test"][-1]
    if task == "diffusion":
        count, images = 1 if arguments.quick else 100, folder / "images"
        run(arguments, "sample", "-m", folder, "-n", count, "--guidance", 2, "--steps", 2 if arguments.quick else 25, "--dtype", dtype, "-o", images,
            "--quiet")
        judge = train(arguments, "classifier", 0, "float32")
        compared = json.loads(run(arguments, "measure", arguments.images, images, "--features", judge, "--size", "28x28", "--limit", 10 * count, "--json"))
        found["frechet"], found["named"] = compared["frechet_distance"], compared["accuracy"]
    return found


def table(results):
    print("| | float32 | bfloat16 | bfloat16 - float32, same seed |\n| --- | --- | --- | --- |")
    for task, seeds in results.items():
        for key, title, scale, digits in MEASURES[task]:
            columns = [[scale * row[dtype][key] for row in seeds] for dtype in TYPES]
            columns.append([b - a for a, b in zip(*columns)])
            cells = [f"{statistics.mean(c):{'+' if i == 2 else ''}.{digits}f}" + (f" ± {statistics.stdev(c):.{digits}f}" if len(c) > 1 else "")
                     for i, c in enumerate(columns)]
            print(f"| {task}, {title} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", default="fashion-mnist", help="dataset of the classifier and the diffusion model")
    parser.add_argument("--text", default="text", help="corpus of the language model")
    parser.add_argument("--folder", default="runs/precision")
    parser.add_argument("--program", default=str(ROOT / "build" / "mhla"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for task in arguments.task:
        results[task] = [{dtype: measure(arguments, task, seed, dtype) for dtype in TYPES} for seed in range(arguments.seeds)]
    table(results)


if __name__ == "__main__":
    main()
