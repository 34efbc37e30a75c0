#!/usr/bin/env python3
"""libmhla beside what a PyTorch user can write, in one run on one machine.

    python bench/peers.py                                      every shape, forward
    python bench/peers.py --case backward --shape deit-t lm
    python bench/peers.py --case causal --rounds 8 --jsonl out.jsonl --compile

Rounds visit the variants in turn, so that a busy minute of the machine falls on all of them alike. Timed are single calls
on token-major float32 tensors [B,T,H,*] in raster order. PyTorch gets the features of q and k ready made; libmhla applies
them inside. Percent is of the rate of multiply-adds that `mhla info` measures in every round. Variants:

    mhla        the program's own loop (`mhla bench --engine`): the C call
    mhla.torch  the same from Python, if the package is installed
    bmm, einsum MHLA in PyTorch, with batched matrix products or einsum; with --compile also through torch.compile
    linear      linear attention in PyTorch, sdpa  F.scaled_dot_product_attention; rated by their own arithmetic
    ... bf16    the same on bfloat16 tensors: of both sides

PyTorch's own speed depends on malloc: where tcmalloc is installed (Debian: libtcmalloc-minimal4), it is preloaded.
"""
import argparse
import ctypes.util
import dataclasses
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

try:
    import mhla
except ImportError:
    mhla = None

EPS = 1e-6
DTYPES = {"mhla": "float32", "mhla bf16": "bfloat16"}
LONGEST = 20e12  # FLOP of one call beyond which a variant is left out


@dataclasses.dataclass(frozen=True)
class Shape:
    """A layer: `blocks` pieces per axis of the grid, or causal chunks of `chunk` tokens."""
    B: int
    H: int
    T: int
    K: int
    V: int
    grid: tuple = ()
    blocks: tuple = ()
    divide: bool = False  # by the denominator of Eq. 4
    chunk: int = 0

    @property
    def M(self):
        return self.T // self.chunk if self.chunk else math.prod(self.blocks)

    def flops(self, variant):
        """Of a forward call. Triangles count half."""
        T, K, V, M, C = self.T, self.K, self.V, self.M, self.chunk
        if variant == "sdpa":
            each = 2 * T * T * (K + V) / (2 if C else 1)
        else:
            each = 4 * T * K * V + (T * (C + 1) * (K + V) if C else 0)
            if variant != "linear":
                each += M * (M - 1) * K * V if C else 2 * M * M * K * V
        return self.B * self.H * each


SHAPES = {
    "deit-t": Shape(32, 3, 256, 64, 64, (16, 16), (4, 4), True),
    "dit-s-512": Shape(8, 6, 1024, 64, 64, (32, 32), (4, 4), True),
    "wan-480p": Shape(1, 12, 31500, 128, 128, (21, 30, 50), (7, 3, 5)),
    "lm": Shape(1, 4, 2048, 128, 256, (2048,), (32,)),
    "dit-xl": Shape(1, 16, 4096, 72, 72, (64, 64), (4, 4), True),
    "T2048": Shape(1, 4, 2048, 128, 256, chunk=64),
    "T8192": Shape(1, 4, 8192, 128, 256, chunk=64),
    "T65536": Shape(1, 4, 65536, 128, 256, chunk=64),
}


# ---- MHLA in PyTorch: q, k are features, [B,T,H,K]; v [B,T,H,V]; m [M,M] ---------------------------------------------

def to_blocks(x, s):
    """[B,T,H,D] in raster order -> [B,H,M,n,D]."""
    axes, B, H, D = len(s.grid), x.shape[0], x.shape[2], x.shape[3]
    cut = [size for g, b in zip(s.grid, s.blocks) for size in (b, g // b)]
    x = x.view(B, *cut, H, D)
    order = [0, 1 + 2 * axes] + [1 + 2 * a for a in range(axes)] + [2 + 2 * a for a in range(axes)] + [2 + 2 * axes]
    return x.permute(order).reshape(B, H, s.M, s.T // s.M, D)


def from_blocks(x, s):
    axes, (B, H, _, _, D) = len(s.grid), x.shape
    x = x.view(B, H, *s.blocks, *(g // b for g, b in zip(s.grid, s.blocks)), D)
    order = [0] + [2 + a + inner * axes for a in range(axes) for inner in (0, 1)] + [1, 2 + 2 * axes]
    return x.permute(order).reshape(B, s.T, H, D)


def mhla_bmm(q, k, v, m, s):
    q, k, v = (to_blocks(x, s) for x in (q, k, v))
    S = k.transpose(-1, -2) @ v
    o = q @ (m @ S.flatten(3).flatten(3)).view_as(S)
    if s.divide:
        o = o / ((q * (m @ k.sum(3)).unsqueeze(3)).sum(-1, keepdim=True) + EPS)
    return from_blocks(o, s)


def mhla_einsum(q, k, v, m, s):
    q, k, v = (to_blocks(x, s) for x in (q, k, v))
    mixed = torch.einsum("ij,bhjkv->bhikv", m, torch.einsum("bhjnk,bhjnv->bhjkv", k, v))
    o = torch.einsum("bhink,bhikv->bhinv", q, mixed)
    if s.divide:
        o = o / (torch.einsum("bhink,bhik->bhin", q, torch.einsum("ij,bhjk->bhik", m, k.sum(3))) + EPS).unsqueeze(-1)
    return from_blocks(o, s)


def causal_bmm(q, k, v, m, s):
    """Past chunks by mixed summaries, the own chunk by masked scores."""
    B, T, H, _ = q.shape
    q, k, v = (x.view(B, s.M, s.chunk, H, -1).permute(0, 3, 1, 2, 4) for x in (q * s.K ** -0.5, k, v))
    S = k.transpose(-1, -2) @ v
    past = (torch.tril(m, -1) @ S.flatten(3)).view_as(S)
    own = torch.tril(q @ k.transpose(-1, -2)) * m.diagonal().view(-1, 1, 1)
    return (q @ past + own @ v).permute(0, 2, 3, 1, 4).reshape(B, T, H, -1)


def linear(q, k, v, _, s):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = q @ (k.transpose(-1, -2) @ v)
    if s.divide:
        o = o / ((q * k.sum(2, keepdim=True)).sum(-1, keepdim=True) + EPS)
    return o.transpose(1, 2)


def sdpa(q, k, v, _, s):
    o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=bool(s.chunk))
    return o.transpose(1, 2)


def ours(q, k, v, m, s):
    m = m.float()  # mixing matrices are float32
    if s.chunk:
        return mhla.causal_attention(q, k, v, m, chunk_size=s.chunk)[0]
    return mhla.attention(q, k, v, m, grid=s.grid, blocks=s.blocks, feature_eps=EPS, denominator="eq4" if s.divide else "none")


def definition(q, k, v, m, s):
    """Scores of every pair of tokens, weighed by their blocks; in double, for small shapes."""
    if s.chunk:
        block = torch.arange(s.T) // s.chunk
        weight = torch.tril(m[block][:, block])
    else:
        number = torch.arange(s.M).view(1, 1, s.M, 1, 1).expand(1, 1, s.M, s.T // s.M, 1)
        block = from_blocks(number.contiguous(), s).flatten()
        weight = m[block][:, block]
    scores = torch.einsum("bthk,buhk->bhtu", q.double(), k.double()) * weight.double()
    o = torch.einsum("bhtu,buhv->bthv", scores * (s.K ** -0.5 if s.chunk else 1), v.double())
    return o / (scores.sum(-1) + EPS).transpose(1, 2).unsqueeze(-1) if s.divide else o


def inputs(s, grad=False, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(s.B, s.T, s.H, d, generator=g) + EPS for d in (s.K, s.K, s.V))
    m = torch.rand(s.M, s.M, generator=g)
    return [x.to(dtype).requires_grad_(grad) for x in (q, k, v, m / m.sum(1, keepdim=True))]


def check():
    """What is timed computes the same thing."""
    small = [Shape(2, 3, 24, 5, 7, (4, 6), (2, 3), divide) for divide in (False, True)]
    small += [Shape(1, 2, 60, 4, 6, (3, 4, 5), (3, 2, 5)), Shape(2, 2, 32, 8, 4, chunk=8)]
    for s in small:
        x = inputs(s)
        want = definition(*x, s)
        for fn in ([causal_bmm] if s.chunk else [mhla_bmm, mhla_einsum]) + ([ours] if mhla else []):
            error = ((fn(*x, s) - want).abs().max() / want.abs().max()).item()
            if not error < 1e-5:
                sys.exit(f"peers: {fn.__name__} is off by {error:.1e} at {s}")


# ---- Timing ---------------------------------------------------------------------------------------------------------

def prefer_tcmalloc():
    """Starts the script again with tcmalloc, if that is installed: PyTorch is up to several times faster with it."""
    library = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if library and "LD_PRELOAD" not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, LD_PRELOAD=library))


def malloc():
    return "tcmalloc" if "tcmalloc" in os.environ.get("LD_PRELOAD", "") else "default"


def engine(program, case, shape, seconds, dtype="float32"):
    """Single calls of the program, in ms; its groups are our cases."""
    env = dict(os.environ, BENCH_SECONDS=f"{seconds:.3f}", OMP_NUM_THREADS=str(torch.get_num_threads()))
    env.pop("LD_PRELOAD", None)
    out = subprocess.run([program, "bench", "--engine", case, shape, "--dtype", dtype], env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["ms"]


def calls(fn, seconds):
    fn()
    ms, end = [], time.perf_counter() + seconds
    while not ms or time.perf_counter() < end:
        start = time.perf_counter()
        fn()
        ms.append(1e3 * (time.perf_counter() - start))
    return ms


def peak(program):
    env = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()))
    out = subprocess.run([program, "info", "--json"], env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["peak_f32_gflops"]


def variants(s, backward, compile_, dtype):
    """{name: call without arguments}"""
    found = {"bmm": causal_bmm} if s.chunk else {"bmm": mhla_bmm, "einsum": mhla_einsum, "linear": linear}
    found["sdpa"] = sdpa
    if mhla:
        found["mhla.torch"] = ours
    x = inputs(s, backward, dtype)
    do = torch.rand(s.B, s.T, s.H, s.V).to(dtype)

    def bind(fn):
        if not backward:
            def forward():
                with torch.no_grad():
                    fn(*x, s)
            return forward
        wanted = x[:3] if fn in (linear, sdpa) else x
        return lambda: torch.autograd.grad(fn(*x, s), wanted, do)

    factor = 3 if backward else 1
    out = {name: bind(fn) for name, fn in found.items() if factor * s.flops(name) < LONGEST}
    if compile_:
        out |= {f"{name} compiled": bind(torch.compile(found[name], dynamic=False)) for name in ("bmm", "einsum", "linear") if name in found}
    return out


def run(case, shape, args):
    s, backward = SHAPES[shape], case.endswith("backward")
    found = {}
    for name in args.dtype:
        suffix = " bf16" if name == "bfloat16" else ""
        found |= {f"{key}{suffix}": fn for key, fn in ({"mhla": None} | variants(s, backward, args.compile, getattr(torch, name))).items()}
    ms, top = {name: [] for name in found}, 0.0
    for _ in range(args.rounds):
        top = max(top, peak(args.program))
        for name, fn in found.items():
            ms[name] += calls(fn, args.seconds) if fn else engine(args.program, case, shape, args.seconds, DTYPES[name])
    rows = []
    for name, values in ms.items():
        flops = (3 if backward else 1) * s.flops(name.split()[0])
        rows.append(dict(case=case, shape=shape, variant=name, best_ms=min(values), median_ms=statistics.median(values),
                         calls=len(values), gflops=flops / min(values) / 1e6, percent_of_peak=flops / min(values) / 1e4 / top,
                         peak_gflops=top, threads=torch.get_num_threads(), torch=torch.__version__,
                         malloc=malloc()))
    return rows


def table(rows):
    first = rows[0]
    print(f"\n{first['case']} {first['shape']}   peak {first['peak_gflops']:.0f} GFLOP/s, {first['threads']} threads, "
          f"torch {first['torch']}, malloc {first['malloc']}")
    print(f"{'':22}{'best ms':>10}{'median':>10}{'GFLOP/s':>10}{'of peak':>10}{'x mhla':>9}")
    for r in rows:
        print(f"{r['variant']:22}{r['best_ms']:10.3f}{r['median_ms']:10.3f}{r['gflops']:10.1f}{r['percent_of_peak']:8.1f} %"
              f"{r['best_ms'] / first['best_ms']:9.2f}", flush=True)


def main():
    built = pathlib.Path(__file__).resolve().parent.parent / "build" / "mhla"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=["forward"], choices=["forward", "backward", "causal", "causal-backward"])
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), help="default: all that the case has")
    parser.add_argument("--program", default=str(built) if built.exists() else shutil.which("mhla"), help="default: build/mhla")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each variant in each round")
    parser.add_argument("--threads", type=int, help="default: PyTorch's")
    parser.add_argument("--compile", action="store_true", help="also through torch.compile")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--jsonl", help="also write one JSON object per row to this file")
    args = parser.parse_args()
    prefer_tcmalloc()
    if not args.program:
        parser.error("no program mhla: run make first, or say --program")
    if args.threads:
        torch.set_num_threads(args.threads)
    check()
    for case in args.case:
        for shape, s in SHAPES.items():
            if bool(s.chunk) == case.startswith("causal") and (not args.shape or shape in args.shape):
                rows = run(case, shape, args)
                table(rows)
                if args.jsonl:
                    with open(args.jsonl, "a") as f:
                        f.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
