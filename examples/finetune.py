"""Fine-tuning: a DeiT with softmax attention gets MHLA in its place and is trained on, in torch, on the engine's operators.

    pip install . torch safetensors             # once, in this repository
    python examples/finetune.py [CHECKPOINT] [--out runs/finetuned] [--steps 40]

CHECKPOINT is anything that mhla.load opens as a DeiT: a run of `mhla train`, a released checkpoint, timm's deit_tiny as timm
saves it. Without one a small model is first taught from nothing. What comes out is a folder that `mhla eval`, `mhla classify`
and mhla.load open. Toy data (stripes in four directions) stand for yours.

By the program alone it is one command: mhla train recipes/fashion-mnist.toml --init runs/softmax --out runs/finetuned
"""
import argparse
import json
import math
import pathlib
import re
import tempfile

import torch
from safetensors.torch import save_file
from torch import nn

import mhla
import mhla.nn

CLASSES = ["vertical", "rising", "horizontal", "falling"]


def stripes(n: int, config: dict):
    """Images [n,C,H,W] as the model wants them, and their classes."""
    C, (H, W) = config["channels"], config["image"]
    labels = torch.arange(n) % len(CLASSES)
    angle, phase = labels * (math.pi / 4), torch.rand(n) * 2 * math.pi
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    wave = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y + phase[:, None, None]
    return wave.sin()[:, None].expand(-1, C, -1, -1) + 0.5 * torch.randn(n, C, H, W), labels


def train(net: nn.Module, config: dict, steps: int, rate: float, say: str) -> None:
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.05)
    for step in range(steps):
        images, labels = stripes(16, config)
        loss = nn.functional.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for block in net.blocks:  # weights of a mixture stay in (0, 1]
            if hasattr(block.attn, "piece_attn"):
                mhla.mix_clip(block.attn.piece_attn.conv.weight.flatten(1))
    with torch.no_grad():
        images, labels = stripes(128, config)
        right = (net(images).argmax(1) == labels).float().mean().item()
    print(f"{say}: loss {loss.item():.3f}, {100 * right:.0f} % of new images right")


def save(folder: pathlib.Path, net: nn.Module, config: dict) -> None:
    """What the program and mhla.load open: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: x.contiguous() for name, x in net.state_dict().items()}, folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--out", default="")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    scratch = tempfile.TemporaryDirectory()

    if not args.checkpoint:  # something to start from
        args.checkpoint = f"{scratch.name}/softmax"
        mhla.create("deit_nano", attention="softmax", image=(16, 16), channels=1, padding=(0, 0), patch=2, dim=32, depth=2, heads=2,
                    classes=len(CLASSES)).save(args.checkpoint)
        net, config = mhla.nn.DeiT.load(args.checkpoint), mhla.load(args.checkpoint).config
        train(net, config, 2 * args.steps, 2e-3, "softmax, from nothing")
        save(pathlib.Path(args.checkpoint), net, config)

    # The same config with another attention and other classes; of the weights all that fits: softmax DeiTs call the projections
    # qkv and proj, ours to_qkv and to_out.0. New are the mixing matrices and, where the number of classes differs, the head.
    old = mhla.load(args.checkpoint)
    config = old.config | {"attention": "mhla", "classes": len(CLASSES), "class_names": CLASSES}
    config |= {key: value for key, value in mhla.create("deit_nano").config.items() if key not in config or key == "mix"}
    grid = [(side + 2 * pad) // config["patch"] for side, pad in zip(config["image"], config["padding"])]
    config["blocks"] = [max(1, round(g ** 0.5)) for g in grid]  # M * M <= tokens keeps the cost linear
    net = mhla.nn.DeiT(config)
    wanted, taken = net.state_dict(), {}
    for name, x in old.state_dict().items():
        name = name.replace(".attn.qkv.", ".attn.to_qkv.").replace(".attn.proj.", ".attn.to_out.0.")
        if name in wanted and tuple(wanted[name].shape) == x.shape:
            taken[name] = torch.from_numpy(x)
    net.load_state_dict(taken, strict=False)
    anew = sorted({re.sub(r"\d+", "*", name, count=1) for name in wanted.keys() - taken.keys()})
    print(f"taken over: {len(taken)} of {len(wanted)} tensors; made anew: {', '.join(anew)}")

    train(net, config, 1, 1e-4, "MHLA, one step later")
    train(net, config, args.steps, 1e-3, f"MHLA, {args.steps} steps later")

    out = pathlib.Path(args.out or f"{scratch.name}/finetuned")
    save(out, net, config)
    images = stripes(4, config)[0]
    with torch.no_grad():
        difference = (mhla.load(out)(images) - net(images)).abs().max().item()
    print(f"saved to {out}; the engine's logits differ from torch's by {difference:.1e}")
    assert difference < 1e-3


if __name__ == "__main__":
    main()
