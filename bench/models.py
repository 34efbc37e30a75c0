#!/usr/bin/env python3
"""Whole models beside PyTorch and onnxruntime, in one run on one machine.

    python bench/models.py                                       every row of `mhla bench models`
    python bench/models.py deit-t-32 deit-t-train-32 --rounds 8 --threads 1
    python bench/models.py --no-compile --jsonl out.jsonl

Rounds visit the variants in turn, so that a busy minute of the machine falls on all of them alike. Timed are single calls on
random images: inference, or a whole training step (loss, gradients, AdamW). Percent is of the rate of multiply-adds that
`mhla info` measures in every round; every product is counted, a training step three times. Memory is the most that a process
of its own has held for two calls, and how much of that came after everything was imported. Variants:

    mhla             the program's own loop (`mhla bench --engine models`)
    torch, compiled  the same model in PyTorch as a user would write it; through torch.compile
    ... bf16         products in bfloat16: ours as --dtype bfloat16 does it, PyTorch under autocast
    onnxruntime      inference only, if it and torch.onnx's needs are installed

Where the package `mhla` is installed, PyTorch's logits are compared with ours first. PyTorch's own speed depends on malloc:
where tcmalloc is installed (Debian: libtcmalloc-minimal4), it is preloaded.
"""
import argparse
import contextlib
import io
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch import nn

import peers

ROWS = {  # name: (model, attention, batch, training)
    "deit-t-32": ("deit", "mhla", 32, False),
    "deit-t-1": ("deit", "mhla", 1, False),
    "deit-t-softmax-32": ("deit", "softmax", 32, False),
    "deit-t-softmax-1": ("deit", "softmax", 1, False),
    "deit-t-train-32": ("deit", "mhla", 32, True),
    "deit-t-softmax-train-32": ("deit", "softmax", 32, True),
    **{f"deit-t-{name}-{train}32": ("deit", name, 32, bool(train)) for name in ("focused", "inline", "mala", "rala")
       for train in ("", "train-")},
    "dit-s-8": ("dit", "mhla", 8, False),
    "dit-s-1": ("dit", "mhla", 1, False),
    "dit-s-softmax-8": ("dit", "softmax", 8, False),
    "dit-s-softmax-1": ("dit", "softmax", 1, False),
    "dit-s-train-8": ("dit", "mhla", 8, True),
    "dit-s-softmax-train-8": ("dit", "softmax", 8, True),
}
EPS = 1e-6


# ---- DeiT-T as released, in PyTorch ----------------------------------------------------------------------------------

def raster(x, M=4, n=4):
    """Tokens [B, blocks, tokens of a block, D] -> [B, D, rows, columns]."""
    return x.view(-1, M, M, n, n, x.shape[-1]).permute(0, 5, 1, 3, 2, 4).reshape(-1, x.shape[-1], M * n, M * n)


def blocked(x, M=4, n=4):
    """[B, D, rows, columns] -> [B, blocks, tokens of a block, D]."""
    return x.view(-1, x.shape[1], M, n, M, n).permute(0, 2, 4, 3, 5, 1).reshape(-1, M * M, n * n, x.shape[1])


class Mixing(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.conv = nn.Conv2d(blocks, blocks, 1, bias=False)
        nn.init.constant_(self.conv.weight, 1 / blocks)


class MHLA(nn.Module):
    """x [B,M,n,D], block after block; summaries of blocks, mixed by one product, read by the block's queries."""

    def __init__(self, D, heads, kernel=5, qkv_bias=False, qk_norm=True):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(D, eps=1e-5)
        self.to_qkv = nn.Linear(D, 3 * D, bias=qkv_bias)
        self.q_norm, self.k_norm = (nn.RMSNorm(D), nn.RMSNorm(D)) if qk_norm else (nn.Identity(), nn.Identity())
        self.lepe = nn.Conv2d(D, D, kernel, padding=kernel // 2, groups=D)
        self.piece_attn = Mixing(16)
        self.to_out = nn.Sequential(nn.Linear(D, D))

    def forward(self, x):
        B, M, n, D = x.shape
        q, k, values = self.to_qkv(self.norm(x)).chunk(3, -1)
        q, k = F.relu(self.q_norm(q)) + EPS, F.relu(self.k_norm(k)) + EPS
        q, k, v = (y.view(B, M, n, self.heads, -1).permute(0, 3, 1, 2, 4) for y in (q, k, values))  # [B,H,M,n,K]
        m = self.piece_attn.conv.weight.view(M, M)
        S = k.transpose(-1, -2) @ v
        o = q @ (m @ S.flatten(3)).view_as(S)
        o = o / ((m @ (q * k.sum(3, keepdim=True)).sum(-1)).unsqueeze(-1) + EPS)
        return self.to_out(o.permute(0, 2, 3, 1, 4).reshape(B, M, n, D) + blocked(self.lepe(raster(values))))


class Softmax(nn.Module):
    def __init__(self, D, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D))


class Focused(nn.Module):
    """As in FLatten-Transformer, power 3: x [B,T,D] on a square grid."""

    def __init__(self, D, heads, T=196):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.scale, self.positional_encoding = nn.Parameter(torch.zeros(1, 1, D)), nn.Parameter(torch.zeros(1, T, D))
        self.dwc = nn.Conv2d(D // heads, D // heads, 5, padding=2, groups=D // heads)

    def focus(self, x):
        x = (F.relu(x) + EPS) / F.softplus(self.scale)
        cubes = x ** 3
        return cubes / cubes.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self.focus(q), self.focus(k + self.positional_encoding)
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        z = 1 / (q @ k.mean(-2, keepdim=True).transpose(-2, -1) + EPS)
        o = q @ ((k.transpose(-2, -1) * T ** -0.5) @ (v * T ** -0.5)) * z
        side = math.isqrt(T)
        local = self.dwc(v.reshape(B * self.heads, side, side, -1).permute(0, 3, 1, 2))
        o = o + local.permute(0, 2, 3, 1).reshape(B, self.heads, T, -1)
        return self.proj(o.transpose(1, 2).reshape(B, T, D))


class InLine(nn.Module):
    """As in InLine-DeiT: token 0 is the class token; each image predicts the 3x3 kernels of its residual."""

    def __init__(self, D, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.residual = nn.Sequential(nn.Conv1d(D, D, 1, groups=heads), nn.GELU(), nn.Conv1d(D, 9 * D, 1, groups=heads))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        kernels = self.residual(x.mean(1).unsqueeze(-1)).view(B * D, 1, 3, 3)
        s, side = (D // self.heads) ** -0.5, math.isqrt(T - 1)
        o = q @ ((k.transpose(-2, -1) * (s / T) ** 0.5) @ (v * (s / T) ** 0.5))
        o = o + (1 - s * (q @ k.mean(-2, keepdim=True).transpose(-2, -1))) * v.mean(-2, keepdim=True)
        o = o.transpose(1, 2).reshape(B, T, D)
        grid = v[:, :, 1:].transpose(-2, -1).reshape(1, B * D, side, side)
        local = F.conv2d(grid, kernels, padding=1, groups=B * D).view(B, D, T - 1).transpose(1, 2)
        return self.proj(torch.cat([o[:, :1], o[:, 1:] + local], 1))


class Rotated(nn.Module):
    """What MALA and RALA share, as published on [B,D,rows,columns]: 1x1 convolutions, elu + 1, axial rotary, LePE, gate."""

    def __init__(self, D, heads, side=14):
        super().__init__()
        self.heads, self.qkvo, self.proj = heads, nn.Conv2d(D, 4 * D, 1), nn.Conv2d(D, D, 1)
        self.lepe = nn.Conv2d(D, D, 5, padding=2, groups=D)
        n = D // heads // 4
        theta = 10000.0 ** -torch.linspace(0, 1, n)
        angle = torch.stack([torch.arange(side)[:, None, None].expand(side, side, 1) * theta,
                             torch.arange(side)[None, :, None].expand(side, side, 1) * theta], 2).flatten(2)
        angle = angle.repeat_interleave(2, -1).flatten(0, 1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def turn(self, x):
        return x * self.cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * self.sin

    def forward(self, x):
        B, T, D = x.shape
        side = math.isqrt(T)
        q, k, v, gate = self.qkvo(x.transpose(1, 2).reshape(B, D, side, side)).chunk(4, 1)
        local = self.lepe(v)
        q, k, v = (y.reshape(B, self.heads, -1, T).transpose(-2, -1) for y in (q, k, v))
        o = self.core(F.elu(q) + 1, F.elu(k) + 1, v)
        o = o.transpose(-2, -1).reshape(B, D, side, side)
        return self.proj((o + local) * gate).flatten(2).transpose(1, 2)


class MALA(Rotated):
    def core(self, q, k, v):
        T, s = q.shape[-2], q.shape[-1] ** -0.5
        z = q @ k.mean(-2, keepdim=True).transpose(-2, -1) * s
        kv = (self.turn(k).transpose(-2, -1) * (s / T) ** 0.5) @ (v * (s / T) ** 0.5)
        return self.turn(q) @ kv * (1 + 1 / (z + EPS)) - z * v.mean(-2, keepdim=True)


class RALA(Rotated):
    def core(self, q, k, v):
        T, s = q.shape[-2], q.shape[-1] ** -0.5
        k = k * (q.mean(-2, keepdim=True) * s @ k.transpose(-2, -1)).softmax(-1).transpose(-2, -1) * T
        z = 1 / (q @ k.mean(-2, keepdim=True).transpose(-2, -1) + EPS)
        return self.turn(q) @ ((self.turn(k).transpose(-2, -1) * T ** -0.5) @ (v * T ** -0.5)) * z


ATTENTIONS = {"mhla": MHLA, "softmax": Softmax, "focused": Focused, "inline": InLine, "mala": MALA, "rala": RALA}


class Block(nn.Module):
    def __init__(self, attention, D, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6)
        self.attn = attention(D, heads)
        self.mlp = nn.ModuleDict(dict(fc1=nn.Linear(D, 4 * D), fc2=nn.Linear(4 * D, D)))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class DeiT(nn.Module):
    def __init__(self, attention, D=192, depth=12, heads=3, classes=1000):
        super().__init__()
        self.mhla, self.token = attention == "mhla", attention in ("softmax", "inline")
        heads = 6 if attention == "inline" else heads
        if self.token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, D))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 256 if self.mhla else 196 + self.token, D))
        self.patch_embed = nn.ModuleDict(dict(proj=nn.Conv2d(3, D, 16, 16)))
        self.blocks = nn.ModuleList(Block(ATTENTIONS[attention], D, heads) for _ in range(depth))
        self.add_module("norm" if self.token else "fc_norm", nn.LayerNorm(D, eps=1e-6))
        self.head = nn.Linear(D, classes)

    def forward(self, images):
        if self.mhla:
            x = self.patch_embed["proj"](F.pad(images, (16, 16, 16, 16)))
            x = blocked(x + self.pos_embed.transpose(1, 2).view(1, -1, 16, 16))
        else:
            x = self.patch_embed["proj"](images).flatten(2).transpose(1, 2)
            x = (torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) if self.token else x) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0] if self.token else self.fc_norm(x.flatten(1, -2).mean(1)))


# ---- DiT-S/2: MHLA as released, softmax as facebookresearch's ----------------------------------------------------------

class DiTBlock(nn.Module):
    def __init__(self, attention, D, heads):
        super().__init__()
        self.attn = MHLA(D, heads, kernel=3, qkv_bias=True, qk_norm=False) if attention == "mhla" else Softmax(D, heads)
        self.mlp = nn.ModuleDict(dict(fc1=nn.Linear(D, 4 * D), fc2=nn.Linear(4 * D, D)))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))

    def forward(self, x, c):  # x [B,...,D], c [B,D]
        one, many = (len(x),) + (1,) * (x.dim() - 2) + (-1,), x.shape[-1:]
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).view(one).chunk(6, -1)
        x = x + gate1 * self.attn(F.layer_norm(x, many, eps=1e-6) * (1 + scale1) + shift1)
        h = self.mlp["fc1"](F.layer_norm(x, many, eps=1e-6) * (1 + scale2) + shift2)
        return x + gate2 * self.mlp["fc2"](F.gelu(h, approximate="tanh"))


class DiT(nn.Module):
    """Latents [B,4,32,32], times [B], labels [B] -> noise and variance [B,8,32,32]; 256 tokens."""

    def __init__(self, attention, D=384, depth=12, heads=6, classes=1000):
        super().__init__()
        self.mhla = attention == "mhla"
        self.x_embedder = nn.ModuleDict(dict(proj=nn.Conv2d(4, D, 2, 2)))
        self.t_embedder = nn.ModuleDict(dict(mlp=nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D))))
        self.y_embedder = nn.ModuleDict(dict(embedding_table=nn.Embedding(classes + 1, D)))
        self.pos_embed = nn.Parameter(torch.zeros(1, 256, D), requires_grad=False)
        self.blocks = nn.ModuleList(DiTBlock(attention, D, heads) for _ in range(depth))
        self.final_layer = nn.ModuleDict(dict(adaLN_modulation=nn.Sequential(nn.SiLU(), nn.Linear(D, 2 * D)),
                                              linear=nn.Linear(D, 2 * 2 * 8)))

    def forward(self, x, times, labels):
        angles = times[:, None] * torch.exp(-math.log(10000) / 128 * torch.arange(128))
        c = self.t_embedder["mlp"](torch.cat([angles.cos(), angles.sin()], 1)) + self.y_embedder["embedding_table"](labels)
        x = self.x_embedder["proj"](x).flatten(2).transpose(1, 2) + self.pos_embed
        if self.mhla:
            x = blocked(x.transpose(1, 2).reshape(len(x), -1, 16, 16))
        for block in self.blocks:
            x = block(x, c)
        if self.mhla:
            x = raster(x).flatten(2).transpose(1, 2)
        shift, scale = self.final_layer["adaLN_modulation"](c)[:, None].chunk(2, -1)
        x = self.final_layer["linear"](F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)
        return x.view(-1, 16, 16, 2, 2, 8).permute(0, 5, 1, 3, 2, 4).reshape(-1, 8, 32, 32)


def inputs_of(model, batch):
    if model == "deit":
        return (torch.randn(batch, 3, 224, 224),)
    return torch.randn(batch, 4, 32, 32), torch.rand(batch) * 999, torch.randint(1000, (batch,))


def net_of(model, attention):
    return (DeiT if model == "deit" else DiT)(attention)


def check(rows):
    """What is timed computes the same thing. A fresh DiT answers with zeros, which would prove nothing: weights are shaken first."""
    try:
        import mhla
        from safetensors.torch import save_file
    except ImportError as error:
        print(f"{error}: PyTorch's logits are not compared with ours")
        return
    random = torch.Generator().manual_seed(0)
    for name, attention in dict.fromkeys(ROWS[row][:2] for row in rows):
        preset, net = {"deit": "deit_tiny", "dit": "dit_s_2"}[name], net_of(name, attention)
        with tempfile.TemporaryDirectory() as folder:
            fresh = mhla.create(preset, structure="released", attention=attention)
            fresh.save(folder)
            state = {key: torch.from_numpy(x) for key, x in fresh.state_dict().items()}
            for key, x in state.items():
                if name == "deit" or key != "pos_embed":  # the table of DiT is fixed
                    x += 0.02 * (torch.rand if "piece_attn" in key else torch.randn)(x.shape, generator=random)
            save_file(state, pathlib.Path(folder) / "model.safetensors")
            model = mhla.load(folder)
        net.load_state_dict(state)
        x = inputs_of(name, 2)
        with torch.no_grad():
            want, got = model(*x), net(*x)
        error, size = (got - want).abs().max().item(), want.abs().max().item()
        if not (size > 0 and error < 1e-4 * size):
            sys.exit(f"models: {preset} with {attention} in PyTorch is off by {error:.1e} of {size:.1e}")


# ---- Variants ---------------------------------------------------------------------------------------------------------

def torch_call(row, compiled, bf16=False):
    """A call without arguments."""
    model, attention, batch, training = ROWS[row]
    torch.manual_seed(0)
    net = net_of(model, attention).train(training)
    run = torch.compile(net, dynamic=False) if compiled else net
    inputs, labels = inputs_of(model, batch), torch.randint(1000, (batch,))
    if not training:
        def infer():
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                run(*inputs)
        return infer
    optimiser = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.05, fused=True)

    def step():
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            y = run(*inputs)
        y = y.float()
        (F.cross_entropy(y, labels) if model == "deit" else F.mse_loss(y[:, :4], inputs[0])).backward()
        optimiser.step()
    return step


class PlainRMSNorm(nn.Module):
    """For torch.onnx, which has no name for torch's own."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, torch.finfo(torch.float32).eps

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


def onnx_call(row):
    """None where it cannot be had."""
    model, attention, batch, training = ROWS[row]
    if training:
        return None
    net, inputs, file = net_of(model, attention).eval(), inputs_of(model, batch), io.BytesIO()
    names = ["x", "times", "labels"][:len(inputs)]
    for block in net.blocks if net.mhla and model == "deit" else []:
        block.attn.q_norm, block.attn.k_norm = PlainRMSNorm(block.attn.q_norm), PlainRMSNorm(block.attn.k_norm)
    try:
        import onnxruntime
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(net, inputs, file, input_names=names, output_names=["y"], opset_version=18, dynamo=False)
    except (ImportError, RuntimeError) as error:
        print("onnxruntime is left out:", str(error).splitlines()[0])
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    feed = {name: x.numpy() for name, x in zip(names, inputs)}
    return lambda: session.run(None, feed)


def call_of(row, variant):
    return onnx_call(row) if variant == "onnxruntime" else torch_call(row, "compiled" in variant, "bf16" in variant)


def memory(row, variant):
    """MiB at most in a process of its own, and the part of it that came after everything was imported."""
    argv = [sys.executable, __file__, row, "--memory-of", variant, "--threads", str(torch.get_num_threads())]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def print_memory(row, variant):
    def most():  # not ru_maxrss, which begins with that of the parent
        return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    before, call = most(), call_of(row, variant)
    for _ in range(2):
        call()
    print(json.dumps([most(), most() - before]))


def program_row(program, row, dtype):
    """Arithmetic and memory of our own row."""
    env = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()), BENCH_SECONDS="0.01")
    env.pop("LD_PRELOAD", None)
    out = subprocess.run([program, "bench", "--json", "models", row, "--dtype", dtype], env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["rows"][0]


def run(row, args):
    calls, own = {}, {}
    for dtype in args.dtype:
        suffix, bf16 = (" bf16", True) if dtype == "bfloat16" else ("", False)
        own[f"mhla{suffix}"] = program_row(args.program, row, dtype)
        calls[f"mhla{suffix}"], calls[f"torch{suffix}"] = None, torch_call(row, False, bf16)
        if args.compile:
            calls[f"compiled{suffix}"] = torch_call(row, True, bf16)
    gflop = next(iter(own.values()))["gflop"]
    onnx = onnx_call(row)
    if onnx:
        calls["onnxruntime"] = onnx
    ms, top = {name: [] for name in calls}, 0.0
    for _ in range(args.rounds):
        top = max(top, peers.peak(args.program))
        for name, fn in calls.items():
            ms[name] += peers.calls(fn, args.seconds) if fn else peers.engine(args.program, "models", row, args.seconds, peers.DTYPES[name])
    rows = []
    for name, values in ms.items():
        # the process that runs onnxruntime has exported the model, too: that is no figure
        mib = [own[name]["memory_bytes"] / 2**20] * 2 if name in own else [None] * 2 if name == "onnxruntime" else memory(row, name)
        rows.append(dict(row=row, variant=name, best_ms=min(values), median_ms=statistics.median(values), calls=len(values),
                         images_per_second=1e3 * ROWS[row][2] / min(values), percent_of_peak=1e5 * gflop / min(values) / top,
                         peak_mib=mib[0], own_mib=mib[1], peak_gflops=top, gflop=gflop, threads=torch.get_num_threads(),
                         torch=torch.__version__, malloc=peers.malloc()))
    return rows


def table(rows):
    first = rows[0]
    print(f"\n{first['row']}   {first['gflop']:.1f} GFLOP, peak {first['peak_gflops']:.0f} GFLOP/s, {first['threads']} threads, "
          f"torch {first['torch']}, malloc {first['malloc']}")
    print(f"{'':16}{'best ms':>10}{'median':>10}{'images/s':>10}{'of peak':>10}{'x mhla':>9}{'MiB':>8}{'own MiB':>9}")
    for r in rows:
        print(f"{r['variant']:16}{r['best_ms']:10.2f}{r['median_ms']:10.2f}{r['images_per_second']:10.1f}{r['percent_of_peak']:8.1f} %"
              f"{r['best_ms'] / first['best_ms']:9.2f}", end="")
        print(f"{r['peak_mib']:8.0f}{r['own_mib']:9.0f}" if r["peak_mib"] else f"{'-':>8}{'-':>9}", flush=True)


def main():
    built = pathlib.Path(__file__).resolve().parent.parent / "build" / "mhla"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(ROWS)}; default: all")
    parser.add_argument("--program", default=str(built), help="default: build/mhla")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each variant in each round")
    parser.add_argument("--threads", type=int, help="default: PyTorch's")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="without torch.compile")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--jsonl", help="also write one JSON object per variant to this file")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    peers.prefer_tcmalloc()
    unknown = [row for row in args.rows if row not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]}: there are {', '.join(ROWS)}")
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.memory_of:
        return print_memory(args.rows[0], args.memory_of)
    if not os.access(args.program, os.X_OK):
        parser.error(f"no program {args.program}: run make first, or say --program")
    check(args.rows or ROWS)
    for row in args.rows or ROWS:
        rows = run(row, args)
        table(rows)
        if args.jsonl:
            with open(args.jsonl, "a") as f:
                f.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
