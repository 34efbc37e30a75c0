"""Images out of noise in a loop of one's own: the samplers of `mhla sample`, any network, any noise. NumPy is enough.

    pip install .                               # once, in this repository
    python examples/samplers.py runs/emoji --classes 0,1,2 --guidance 2      # a diffusion model of mhla train
    python examples/samplers.py                 # without one: data that is known, so that the answer is
"""
import argparse

import numpy as np

import mhla

parser = argparse.ArgumentParser()
parser.add_argument("model", nargs="?", help="a folder, a run, or a published DiT's state_dict")
parser.add_argument("--classes", default="0,1")
parser.add_argument("--guidance", type=float, default=1.0)
parser.add_argument("--method", help="ddpm (the default), ddim, dpm++, unipc; of flows euler (the default), dpm++, unipc")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", help="a .npy file for the images")
given = parser.parse_args()


def sample(model, classes, seeds):
    """What `mhla sample` does: image i is a function of seeds[i], its class and the settings."""
    c, none = model.config, model.info["classes"]
    sampler = mhla.diffusion.Sampler(c["process"], given.method, given.steps, clip=c["channels"] in (1, 3),
                                     learned_sigma=c["learn_sigma"])
    shape, labels = (c["channels"], *c["image"]), np.array(classes)
    x = mhla.diffusion.noise(seeds, shape)
    for i, time in enumerate(sampler):
        answer = model(x, np.full(len(x), time), labels)
        if given.guidance != 1:  # away from the answer for no class; the variance stays
            n = c["channels"]
            without = model(x, np.full(len(x), time), np.full(len(x), none))
            answer[:, :n] = without[:, :n] + np.float32(given.guidance) * (answer[:, :n] - without[:, :n])
        noise = mhla.diffusion.noise(seeds, shape, i + 1) if sampler.wants_noise else None
        x = sampler.step(x, answer, noise)
    return sampler, x


def known_data(method, steps):
    """A network that knows the data is one pattern: noise = (x - sqrt(abar) data) / sqrt(1 - abar). Every sampler finds it."""
    data = np.sin(np.arange(64, dtype=np.float32)).reshape(1, 1, 8, 8)
    abar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))  # of the process "linear"
    sampler = mhla.diffusion.Sampler("linear", method, steps)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 1, 8, 8), dtype=np.float32)
    for time in sampler:
        a = abar[round(time)]
        answer = ((x - np.sqrt(a) * data) / np.sqrt(1 - a)).astype(np.float32)
        x = sampler.step(x, answer, rng.standard_normal(x.shape, dtype=np.float32) if sampler.wants_noise else None)
    return np.abs(sampler.predicted - data).max()


if given.model is None:
    for method in ("ddpm", "ddim", "dpm++", "unipc"):
        print(f"{method}: {known_data(method, given.steps):.1e} from the data")
else:
    model = mhla.load(given.model)
    classes = [int(x) for x in given.classes.split(",")]
    sampler, images = sample(model, classes, [given.seed] * len(classes))
    print(f"{model}: {sampler}: {images.shape}, {images.min():.3f} to {images.max():.3f}")
    if given.out:
        np.save(given.out, images)
