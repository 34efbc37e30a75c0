#!/usr/bin/env python3
"""Focused LA, InLine, MALA and RALA beside their PyTorch originals, at the shapes of DeiT-T, in one run on one machine.

    python bench/vision.py
    python bench/vision.py --kind mala --rounds 10 --threads 1

What is timed is what stands between the projections, from q, k, v [B,T,H,K] to o [B,T,H*V], float32: 32 images of 256 tokens, 3
heads of 64 (InLine: 6 of 32). The originals are plain PyTorch in the published modules' order of operations; `compiled` is the same
through torch.compile (with --compile). Rounds visit the variants in turn, so that a busy minute of the machine falls on all of them alike.
`mhla` is the program's own loop (`mhla bench --engine`), `mhla.torch` the same from Python, if the package is installed.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from peers import calls

try:
    import mhla
except ImportError:
    mhla = None

EPS = 1e-6
SHAPES = {"focused": (32, 256, 3, 64), "inline": (32, 256, 6, 32), "mala": (32, 256, 3, 64), "rala": (32, 256, 3, 64)}


# ---- The originals: q, k, v [B,T,H,K] -> [B,T,H*K] ------------------------------------------------------------------------

def heads(*tensors):
    return (x.transpose(1, 2) for x in tensors)


def tokens(x):
    return x.transpose(1, 2).flatten(2)


def focused(q, k, v, focus, table):
    B, T, H, K = q.shape
    scale = F.softplus(focus)
    q, k = (F.relu(x.flatten(2)) + EPS for x in (q, k))
    q, k = q / scale, k / scale
    q_norm, k_norm = q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True)
    q, k = q**3, k**3
    q = (q / q.norm(dim=-1, keepdim=True)) * q_norm
    k = (k / k.norm(dim=-1, keepdim=True)) * k_norm
    q, k, v = heads(q.view(B, T, H, K), k.view(B, T, H, K), v)
    z = 1 / (q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) + EPS)
    kv = (k.transpose(-2, -1) * T**-0.5) @ (v * T**-0.5)
    return tokens(q @ kv * z)


def inline(q, k, v, focus, table):
    T, scale = q.shape[1], q.shape[3] ** -0.5
    q, k, v = heads(q, k, v)
    kv = (k.transpose(-2, -1) * (scale / T) ** 0.5) @ (v * (scale / T) ** 0.5)
    mean = v.mean(dim=2, keepdim=True)
    return tokens(q @ kv + mean - (q @ k.mean(dim=2, keepdim=True).transpose(-2, -1) * scale) * mean)


def rotate_every_two(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)


def shift(x, table):
    cos, sin = table
    return x * cos + rotate_every_two(x) * sin


def mala(q, k, v, focus, table):
    T, scale = q.shape[1], q.shape[3] ** -0.5
    q, k, v = heads(q, k, v)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    z = q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) * scale
    q, k = shift(q, table), shift(k, table)
    kv = (k.transpose(-2, -1) * (scale / T) ** 0.5) @ (v * (scale / T) ** 0.5)
    return tokens(q @ kv * (1 + 1 / (z + EPS)) - z * v.mean(dim=2, keepdim=True))


def rala(q, k, v, focus, table):
    T, scale = q.shape[1], q.shape[3] ** -0.5
    q, k, v = heads(q, k, v)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weight = torch.softmax(scale * q.mean(dim=-2, keepdim=True) @ k.transpose(-1, -2), dim=-1).transpose(-1, -2)
    k = k * weight * T
    z = 1 / (q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) + EPS)
    q, k = shift(q, table), shift(k, table)
    kv = (k.transpose(-2, -1) * T**-0.5) @ (v * T**-0.5)
    return tokens(q @ kv * z)


ORIGINALS = {"focused": focused, "inline": inline, "mala": mala, "rala": rala}


def ours(kind, rope):
    if kind == "focused":
        return lambda q, k, v, focus, table: mhla.focused_attention(q, k, v, focus).flatten(2)
    function = getattr(mhla, kind + "_attention")
    options = {"rope": rope} if kind in ("mala", "rala") else {}
    return lambda q, k, v, focus, table: function(q, k, v, **options).flatten(2)


def inputs(kind):
    """Leaves, the table of the originals (each angle twice) and ours."""
    B, T, H, K = SHAPES[kind]
    g = torch.Generator().manual_seed(0)
    leaves = [torch.randn(B, T, H, K, generator=g).requires_grad_() for _ in range(3)]
    leaves.append(torch.zeros(H * K).requires_grad_())
    n = K // 4
    theta = 10000 ** -torch.linspace(0, 1, n)
    side = torch.arange(int(T**0.5))
    angles = torch.cat([(side[:, None] * theta)[:, None].expand(-1, len(side), -1),
                        (side[:, None] * theta)[None].expand(len(side), -1, -1)], -1).reshape(T, 2 * n)
    rope = (angles.cos(), angles.sin())
    return leaves, [x.repeat_interleave(2, -1) for x in rope], rope


def engine(program, kind, case, seconds):
    """Single calls of the program, in ms."""
    _, _, H, K = SHAPES[kind]
    sizes = ["--heads", str(H), "--key", str(K), "--value", str(K)] if kind == "inline" else []
    env = dict(os.environ, BENCH_SECONDS=f"{seconds:.3f}", OMP_NUM_THREADS=str(torch.get_num_threads()))
    env.pop("LD_PRELOAD", None)
    command = [program, "bench", "--engine", case, "deit-t", "--operator", kind, *sizes]
    return json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)["ms"]


def variants(kind, case, compile_):
    """{name: call without arguments}; what is timed computes the same thing."""
    leaves, table, rope = inputs(kind)
    found = {"torch": ORIGINALS[kind]}
    if compile_:
        found["compiled"] = torch.compile(ORIGINALS[kind], dynamic=False)
    if mhla:
        found["mhla.torch"] = ours(kind, rope)
        error = (found["mhla.torch"](*leaves, table) - found["torch"](*leaves, table)).abs().max()
        if not error < 1e-4:
            sys.exit(f"vision: {kind} is off by {error:.1e}")
    wanted = leaves if kind == "focused" else leaves[:3]
    do = torch.randn(leaves[0].shape[0], leaves[0].shape[1], leaves[0].shape[2] * leaves[0].shape[3])

    def bind(function):
        if case == "backward":
            return lambda: torch.autograd.grad(function(*leaves, table), wanted, do)

        def forward():
            with torch.no_grad():
                function(*leaves, table)
        return forward

    return {name: bind(function) for name, function in found.items()}


def run(kind, case, args):
    found = {"mhla": None} | variants(kind, case, args.compile)
    ms = {name: [] for name in found}
    for _ in range(args.rounds):
        for name, function in found.items():
            ms[name] += calls(function, args.seconds) if function else engine(args.program, kind, case, args.seconds)
    first = min(ms["mhla"])
    for name, values in ms.items():
        print(f"{kind:8} {case:9} {name:12}{min(values):10.3f}{statistics.median(values):10.3f}{min(values) / first:9.2f}", flush=True)


def main():
    built = Path(__file__).resolve().parent.parent / "build" / "mhla"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--case", nargs="+", default=["forward", "backward"], choices=["forward", "backward"],
                        help="backward: forward and backward together")
    parser.add_argument("--program", default=str(built) if built.exists() else shutil.which("mhla"), help="default: build/mhla")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each variant in each round")
    parser.add_argument("--threads", type=int, help="default: PyTorch's")
    parser.add_argument("--compile", action="store_true", help="also through torch.compile")
    args = parser.parse_args()
    if not args.program:
        parser.error("no program mhla: run make first, or say --program")
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n{'':31}{'best ms':>10}{'median':>10}{'x mhla':>9}")
    for kind in args.kind:
        for case in args.case:
            run(kind, case, args)


if __name__ == "__main__":
    main()
