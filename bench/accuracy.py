#!/usr/bin/env python3
"""Trains what a run of `mhla train` trained once more in plain PyTorch, and prints the two beside each other.

    mhla train recipes/cifar10-8k2k.toml --epochs 30 --randaugment none --erasing 0 --mixup 0 --cutmix 0 --out runs/ours
    python bench/accuracy.py runs/ours                            the same recipe in PyTorch
    python bench/accuracy.py runs/ours --seed 1 --jsonl out.jsonl

Model, initial distributions, augmentation, schedule, AdamW with its groups, clipping, drop path and the average of the
weights are those of the run's recipe.json; random numbers are PyTorch's own, so that equal means equal up to chance: compare
several seeds. First the run's last weights are evaluated in PyTorch: accuracy and loss must be those that the run noted.
Understood are pictures of one size (IDX, CIFAR's binary files) with pad crops and flips.
"""
import argparse
import copy
import gzip
import json
import math
import pathlib
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn

# ---- The model of structure "equal", under the names of its checkpoints ------------------------------------------------


class Mixing(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.conv = nn.Conv2d(blocks[0] * blocks[1], blocks[0] * blocks[1], 1, bias=False)
        y, x = numpy.divmod(numpy.arange(blocks[0] * blocks[1]), blocks[1])
        d = numpy.hypot(y[:, None] - y, x[:, None] - x)
        w = 1 - d / numpy.maximum(d.max(1, keepdims=True), 1e-9)
        self.conv.weight.data[:, :, 0, 0] = torch.from_numpy(w / w.sum(1, keepdims=True))


class Attention(nn.Module):
    """x [B,T,D] in raster order of the grid."""

    def __init__(self, c, grid):
        super().__init__()
        D, softmax = c["dim"], c["attention"] == "softmax"
        self.c, self.grid, self.names = c, grid, ("qkv", "proj") if softmax else ("to_qkv", "to_out")
        self.add_module(self.names[0], nn.Linear(D, 3 * D, bias=c["qkv_bias"]))
        if c["qk_norm"]:
            self.q_norm, self.k_norm = (nn.RMSNorm(D, eps=c["qk_norm_eps"]) for _ in range(2))
        if c["lepe"]:
            self.lepe = nn.Conv2d(D, D, c["lepe"], padding=c["lepe"] // 2, groups=D)
        if c["attention"] == "mhla":
            self.piece_attn = Mixing(c["blocks"])
        self.add_module(self.names[1], nn.Linear(D, D) if softmax else nn.Sequential(nn.Linear(D, D)))

    def forward(self, x):
        (B, T, D), (h, w), heads = x.shape, self.grid, self.c["heads"]
        q, k, v = getattr(self, self.names[0])(x).chunk(3, -1)
        lepe = 0
        if self.c["lepe"]:
            lepe = self.lepe(v.transpose(1, 2).reshape(B, D, h, w)).flatten(2).transpose(1, 2)
        if self.c["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.c["attention"] == "softmax":
            q, k, v = (y.view(B, T, heads, -1).transpose(1, 2) for y in (q, k, v))
            o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D)
        else:
            q, k = F.relu(q) + self.c["feature_eps"], F.relu(k) + self.c["feature_eps"]
            mhla = self.c["attention"] == "mhla"
            a, b = self.c["blocks"] if mhla else (1, 1)

            def blocked(y):  # [B,H,M,n,K]
                y = y.view(B, a, h // a, b, w // b, heads, D // heads)
                return y.permute(0, 5, 1, 3, 2, 4, 6).reshape(B, heads, a * b, T // (a * b), -1)
            q, k, v = blocked(q), blocked(k), blocked(v)
            S, z = k.transpose(-1, -2) @ v, k.sum(3)  # summaries [B,H,M,K,V], [B,H,M,K]
            if mhla:
                m = self.piece_attn.conv.weight.flatten(1)
                S, z = torch.einsum("ij,bhjkv->bhikv", m, S), torch.einsum("ij,bhjk->bhik", m, z)
            o = q @ S / ((q * z.unsqueeze(3)).sum(-1, keepdim=True) + self.c["den_eps"])
            o = o.view(B, heads, a, b, h // a, w // b, -1).permute(0, 2, 4, 3, 5, 1, 6).reshape(B, T, D)
        return getattr(self, self.names[1])(o + lepe)


class Block(nn.Module):
    def __init__(self, c, grid, drop):
        super().__init__()
        D, hidden = c["dim"], int(c["dim"] * c["mlp_ratio"])
        self.norm1, self.norm2 = (nn.LayerNorm(D, eps=c["norm_eps"]) for _ in range(2))
        self.attn, self.drop = Attention(c, grid), drop
        self.mlp = nn.ModuleDict(dict(fc1=nn.Linear(D, hidden), fc2=nn.Linear(hidden, D)))

    def join(self, x, branch):
        if not self.training or self.drop == 0:
            return x + branch
        return x + branch * torch.empty(len(x), 1, 1).bernoulli_(1 - self.drop) / (1 - self.drop)

    def forward(self, x):
        x = self.join(x, self.attn(self.norm1(x)))
        return self.join(x, self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x)))))


class DeiT(nn.Module):
    def __init__(self, c, drop_path):
        super().__init__()
        grid = [(c["image"][a] + 2 * c["padding"][a]) // c["patch"] for a in range(2)]
        D, depth = c["dim"], c["depth"]
        self.padding = c["padding"]
        self.pos_embed = nn.Parameter(torch.zeros(1, grid[0] * grid[1], D))
        self.patch_embed = nn.ModuleDict(dict(proj=nn.Conv2d(c["channels"], D, c["patch"], c["patch"])))
        self.blocks = nn.ModuleList(Block(c, grid, drop_path * i / max(depth - 1, 1)) for i in range(depth))
        self.fc_norm, self.head = nn.LayerNorm(D, eps=c["norm_eps"]), nn.Linear(D, c["classes"])
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x):
        (y, x_), x = self.padding, x
        x = self.patch_embed["proj"](F.pad(x, (x_, x_, y, y))).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.fc_norm(x.mean(1)))


# ---- Data --------------------------------------------------------------------------------------------------------------

def read_split(folder, train):
    """Pictures [N,C,H,W] and labels [N], bytes."""
    folder = pathlib.Path(folder)
    cifar = folder / ("train.bin" if train else "test.bin")
    if cifar.exists():
        rows = torch.from_numpy(numpy.fromfile(cifar, numpy.uint8)).view(-1, 1 + 3 * 32 * 32)
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()

    def idx(name):
        file = folder / name
        data = file.read_bytes() if file.exists() else gzip.decompress((folder / (name + ".gz")).read_bytes())
        sizes = numpy.frombuffer(data, ">u4", count=data[3], offset=4).tolist()  # the fourth byte: how many axes
        return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).copy()).view(sizes)
    part = "train" if train else "t10k"
    return idx(part + "-images-idx3-ubyte")[:, None], idx(part + "-labels-idx1-ubyte").long()


def crops(x, pad, flip, rng):
    """Shifted by up to `pad` pixels with black around, flipped with this probability; each picture its own way."""
    B, C, H, W = x.shape
    if pad:
        x = F.pad(x, (pad,) * 4)
        y0, x0 = (torch.randint(2 * pad + 1, (B, 1), generator=rng) for _ in range(2))
        rows, columns = y0 + torch.arange(H), x0 + torch.arange(W)
        x = x[torch.arange(B)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    flipped = torch.rand(B, generator=rng) < flip
    return torch.where(flipped[:, None, None, None], x.flip(3), x)


def load_weights(model, path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    state = {name: torch.frombuffer(bytearray(data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]),
                                    dtype=torch.float32).view(t["shape"])
             for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
    model.load_state_dict(state)


# ---- Training ------------------------------------------------------------------------------------------------------------

@torch.no_grad()
def evaluate(model, images, labels):
    model.eval()
    logits = torch.cat([model(x) for x in images.split(64)])
    model.train()
    return (logits.argmax(1) == labels).float().mean().item(), F.cross_entropy(logits, labels).item()


def check(recipe, c):
    t, a = recipe["train"], recipe["augment"]
    wrong = [f"augment.{k}" for k in ("erasing", "mixup", "cutmix") if a[k]]
    wrong += [f"train.{k}" for k in ("init", "freeze", "mix_renormalise") if t.get(k)]
    wrong += ["augment.randaugment"] if a["randaugment"] not in ("", "none") else []
    wrong += ["augment.crop"] if a["crop"] == "random" else []
    wrong += [f"train.{k}" for k, v in (("optimizer", "adamw"), ("schedule", "cosine")) if t[k] != v]
    wrong += [f"model.{k}" for k, v in (("structure", "equal"), ("crop", 1.0), ("class_token", False), ("inner_norm", False),
                                        ("cpe", 0), ("norm", "layer"), ("denominator", "eq4"), ("mix", "paper")) if c[k] != v]
    if wrong:
        sys.exit(f"accuracy: {wrong[0]} of this run is not understood here: switch it off")


def train(recipe, c, splits, seed, epochs, tell):
    t, a = recipe["train"], recipe["augment"]
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 1)
    model = DeiT(c, t["drop_path"])
    average = copy.deepcopy(model).eval()
    mixing = [p for name, p in model.named_parameters() if "piece_attn" in name]
    decayed = [p for name, p in model.named_parameters() if p.dim() > 1 and name != "pos_embed"]
    plain = [p for name, p in model.named_parameters() if p.dim() == 1 or name == "pos_embed"]
    optimiser = torch.optim.AdamW([dict(params=decayed, weight_decay=t["weight_decay"]), dict(params=plain, weight_decay=0.0)],
                                  betas=(t["beta1"], t["beta2"]), eps=t["eps"], fused=True)
    (images, labels), (test, test_labels) = splits
    mean, std = (torch.tensor(c[k]).view(1, -1, 1, 1) for k in ("mean", "deviation"))
    test = (test / 255 - mean) / std
    per_epoch = len(images) // t["batch"]
    total, warmup = per_epoch * epochs, round(per_epoch * t["warmup_epochs"])
    losses, start = [], time.monotonic()
    for step in range(total):
        if step % per_epoch == 0:
            order = torch.randperm(len(images), generator=rng)
        at = order[step % per_epoch * t["batch"]:][:t["batch"]]
        x = images[at]
        if a["crop"] == "pad" or a["flip"]:
            x = crops(x, a["pad"] if a["crop"] == "pad" else 0, a["flip"], rng)
        rate = t["min_rate"] + (t["rate"] - t["min_rate"]) * (1 + math.cos(math.pi * step / total)) / 2
        if step < warmup:
            rate = t["warmup_rate"] + (t["rate"] - t["warmup_rate"]) * step / warmup
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(model((x / 255 - mean) / std), labels[at], label_smoothing=t["smoothing"])
        optimiser.zero_grad()
        loss.backward()
        if t["clip"]:
            nn.utils.clip_grad_norm_(model.parameters(), t["clip"])
        optimiser.step()
        with torch.no_grad():
            for p in mixing:
                p.clamp_(1e-6, 1)
            if t["ema"]:
                for p, e in zip(model.parameters(), average.parameters()):
                    e.lerp_(p, 1 if step == 0 else 1 - t["ema"])
        losses.append(loss.item())
        done = step + 1
        every = recipe["eval"]["epochs"] * per_epoch
        if done == total or (every >= 1 and done // every > step // every):
            accuracy, test_loss = evaluate(model, test, test_labels)
            row = dict(seed=seed, epoch=done / per_epoch, train_loss=sum(losses) / len(losses), loss=test_loss, accuracy=accuracy,
                       seconds=time.monotonic() - start)
            if t["ema"]:
                row["ema_accuracy"] = evaluate(average, test, test_labels)[0]
            losses = []
            tell(row)


# ---- Beside the run ------------------------------------------------------------------------------------------------------

def rows_of(run):
    """Test rows of a run, each with the mean of the losses that it noted since the one before."""
    losses, rows = [], []
    for line in open(run / "metrics.jsonl"):
        row = json.loads(line)
        if row["kind"] == "step":
            losses.append(row["loss"])
        if row["kind"] == "test":
            rows.append(dict(row, train_loss=sum(losses) / max(len(losses), 1)))
            losses = []
    return rows


def same_model(run, c, splits):
    """What the run noted last must come out of its weights in PyTorch, too."""
    last = rows_of(run)[-1]
    model = DeiT(c, 0.0)
    load_weights(model, run / "last" / "model.safetensors")
    mean, std = (torch.tensor(c[k]).view(1, -1, 1, 1) for k in ("mean", "deviation"))
    accuracy, loss = evaluate(model, (splits[1][0] / 255 - mean) / std, splits[1][1])
    print(f"the run's last weights in PyTorch: accuracy {100 * accuracy:.2f} %, loss {loss:.5f}; "
          f"the run noted {100 * last['accuracy']:.2f} %, {last['loss']:.5f}", flush=True)
    if abs(loss - last["loss"]) > 1e-3 * last["loss"]:
        sys.exit("accuracy: these are not the same model")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="a run of mhla train, finished")
    parser.add_argument("--data", help="the folder of its data; default: as in the recipe, under data/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="default: the run's")
    parser.add_argument("--threads", type=int, help="default: PyTorch's")
    parser.add_argument("--jsonl", help="also append a JSON object per evaluation to this file")
    parser.add_argument("--no-check", dest="check", action="store_false", help="the run is not finished: train only")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    recipe = json.load(open(args.run / "recipe.json"))
    c = json.load(open(args.run / "last" / "config.json"))
    check(recipe, c)
    known = {"cifar10-test": "data/cifar10-test-8k2k", "fashion-mnist": "data/fashion-mnist"}
    source = recipe["data"]["source"]
    folder = args.data or known.get(source, source)
    splits = read_split(folder, True), read_split(folder, False)
    ours = {}
    if args.check:
        same_model(args.run, c, splits)
        ours = {round(row["epoch"], 3): row for row in rows_of(args.run)}
    print(f"{'':>7} | {'PyTorch':^42} | {'mhla':^42}")
    print(f"{'epoch':>7}" + f" | {'training':>9}{'test loss':>11}{'accuracy':>11}{'average':>11}" * 2, flush=True)

    def tell(row):
        def side(r):
            if r is None:
                return " " * 42
            ema = f"{100 * r['ema_accuracy']:9.2f} %" if r.get("ema_accuracy") is not None else " " * 11
            return f"{r['train_loss']:9.4f}{r['loss']:11.4f}{100 * r['accuracy']:9.2f} %{ema}"
        print(f"{row['epoch']:7.2f} | {side(row)} | {side(ours.get(round(row['epoch'], 3)))}", flush=True)
        if args.jsonl:
            with open(args.jsonl, "a") as f:
                f.write(json.dumps(row) + "\n")
    train(recipe, c, splits, args.seed, args.epochs or round(recipe["train"]["epochs"]), tell)


if __name__ == "__main__":
    main()
