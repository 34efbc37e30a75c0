#!/usr/bin/env python3
"""The 340M language model beside PyTorch and llama.cpp, in one run on one machine.

    python bench/lm.py                                           every work
    python bench/lm.py decode-128 prompt-2048 --rounds 8 --threads 2
    python bench/lm.py decode-8192 --storage q8_0 --no-torch --jsonl out.jsonl
    python bench/lm.py --quick decode-128                        a toy model: does everything run?

Rounds visit the variants in turn, so that a busy minute of the machine falls on all of them alike. Weights are random: they
cost what trained ones do. Works:

    decode-N     one token after a context of N: tokens/s
    prompt-N     reading N tokens, logits of the last: tokens/s
    train-N      loss, gradients and AdamW of one sequence of N tokens: tokens/s

Variants, each for the storage types it knows (float32, bfloat16, q8_0):

    mhla, softmax           the program's own loop (`mhla bench --engine lm-340m`), with MHLA and as Transformer++
    torch mhla, softmax     the same networks in PyTorch as a user would write them; with --compile also through torch.compile
    llama.cpp               the Transformer++ as a GGUF file, by llama-cpp-python, if that and the package gguf are installed;
                            flash attention off, which is faster on a CPU

Percent is of what the memory could deliver for decoding (weights read once per token at the bandwidth that `mhla info`
measures), and of the rate of multiply-adds for the others. Training in bfloat16 is PyTorch's autocast, and --dtype bfloat16 of ours.
PyTorch's own speed depends on malloc: where tcmalloc is installed (Debian: libtcmalloc-minimal4), it is preloaded.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

import peers

DIM, LAYERS, HIDDEN, VOCAB, EPS = 1024, 24, 2816, 32000, 1e-6
CHUNK, BLOCKS = 64, 32
WORKS = ["decode-128", "decode-2048", "prompt-2048", "train-2048"]
LONG = ["decode-8192", "decode-65536"]  # by name only
STORAGES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "q8_0": None}
QUICK = False  # sizes of a toy, whose figures mean nothing


def parts(work):
    """("decode", 128) of "decode-128"."""
    kind, n = work.split("-")
    return kind, min(int(n), 2 * CHUNK) if QUICK else int(n)


# ---- The networks in PyTorch ------------------------------------------------------------------------------------------

def rotary(x, first):
    """x [B,T,H,D], halves turned by position."""
    half = x.shape[-1] // 2
    angle = torch.arange(first, first + x.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Softmax(nn.Module):
    """Transformer++: 16 heads of 64."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def new_cache(self, n, dtype):
        return [torch.zeros(1, 16, n, 64, dtype=dtype) for _ in range(2)]

    def forward(self, x, cache, first):
        B, T, _ = x.shape
        q, k, v = (w(x).view(B, T, 16, 64) for w in (self.q, self.k, self.v))
        q, k, v = rotary(q, first).transpose(1, 2), rotary(k, first).transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            cache[0][:, :, first : first + T], cache[1][:, :, first : first + T] = k, v
            k, v = cache[0][:, :, : first + T], cache[1][:, :, : first + T]
        o = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        return self.o(o.transpose(1, 2).reshape(B, T, DIM))


class MHLA(nn.Module):
    """4 heads, keys of 128, values of 256; chunks of 64. A cache has the summaries [M,H,K,V] of all chunks."""

    def __init__(self):
        super().__init__()
        self.q, self.k = (nn.Linear(DIM, DIM // 2, bias=False) for _ in range(2))
        self.v, self.g, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.norm = nn.RMSNorm(256, EPS)
        rows = torch.arange(1.0, BLOCKS + 1)
        self.mix = nn.Parameter(torch.tril(torch.ones(BLOCKS, BLOCKS) / rows[:, None]))

    def new_cache(self, n, dtype):
        return [torch.zeros(BLOCKS, 4, 128, 256), torch.zeros(4, 128, 256)]

    def forward(self, x, cache, first):
        B, T, _ = x.shape
        q, k = (rotary(F.relu(w(x)).view(B, T, 4, 128), first) for w in (self.q, self.k))
        v = self.v(x).view(B, T, 4, 256)
        if cache is None:
            m = self.mix[: T // CHUNK, : T // CHUNK]
            o = peers.causal_bmm(q, k, v, m, peers.Shape(B, 4, T, 128, 256, chunk=CHUNK))
        else:
            o = self.step(q[0, 0].float(), k[0, 0].float(), v[0, 0].float(), cache, first)[None, None].to(x.dtype)
        o = self.norm(o) * F.silu(self.g(x)).view(B, T, 4, 256)
        return self.o(o.reshape(B, T, DIM))

    def step(self, q, k, v, cache, first):
        """One token: q, k [H,K], v [H,V]. Beyond M chunks the work is right, the numbers are not."""
        S, past = cache
        i = min(first // CHUNK, BLOCKS - 1)
        if first % CHUNK == 0:  # a chunk opens: the prefix mixture
            past.copy_(torch.einsum("b,bhkv->hkv", self.mix[i, :i].float(), S[:i]) if i else torch.zeros_like(past))
            S[i] = 0
        S[i] += k[:, :, None] * v[:, None]
        return torch.einsum("hk,hkv->hv", q * 128 ** -0.5, past + self.mix[i, i].float() * S[i])


class Layer(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.RMSNorm(DIM, EPS), nn.RMSNorm(DIM, EPS), attention()
        self.gate, self.up = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x, cache=None, first=0):
        x = x + self.attn(self.norm1(x), cache, first)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LM(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM, EPS)
        self.layers = nn.ModuleList(Layer(attention) for _ in range(LAYERS))
        for p in self.parameters():
            if p.dim() == 2 and p.shape[0] != BLOCKS:
                nn.init.normal_(p, std=0.02)

    def hidden(self, ids, caches=None, first=0):
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, caches[i] if caches else None, first)
        return self.norm(x)

    def forward(self, ids, caches=None, first=0):
        """Logits of the last token."""
        return F.linear(self.hidden(ids, caches, first)[:, -1], self.embed.weight)

    def loss(self, ids):
        logits = F.linear(self.hidden(ids), self.embed.weight)
        return F.cross_entropy(logits[0, :-1].float(), ids[0, 1:])


def check():
    """Token by token is the same as all at once."""
    torch.manual_seed(1)
    x = torch.randn(1, 2 * CHUNK, DIM)
    for attention in (MHLA, Softmax):
        layer = Layer(attention)
        with torch.inference_mode():
            cache = layer.attn.new_cache(x.shape[1], torch.float32)
            got = torch.cat([layer(x[:, i : i + 1], cache, i) for i in range(x.shape[1])], 1)
            error = ((got - layer(x)).abs().max() / got.abs().max()).item()
        if not error < 1e-4:
            sys.exit(f"lm: {attention.__name__} in PyTorch is off by {error:.1e} token by token")


def torch_call(work, attention, dtype, compiled):
    """A call without arguments."""
    kind, n = parts(work)
    torch.manual_seed(0)
    net = LM(MHLA if attention == "mhla" else Softmax).to(torch.float32 if kind == "train" else dtype)
    ids = torch.randint(VOCAB, (1, n if kind != "decode" else 1))
    if kind == "train":
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        loss = torch.compile(net.loss, dynamic=False) if compiled else net.loss

        def step():
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                y = loss(ids)
            y.float().backward()
            optimiser.step()
        return step
    net.requires_grad_(False)
    run = torch.compile(net, dynamic=False) if compiled else net
    if kind == "prompt":
        def prompt():
            with torch.inference_mode():
                run(ids)
        return prompt
    # what the context holds does not matter for the time
    caches = [layer.attn.new_cache(n + 1, dtype) for layer in net.layers]

    def decode():
        with torch.inference_mode():
            run(ids, caches, n)
    return decode


# ---- llama.cpp --------------------------------------------------------------------------------------------------------

def write_gguf(path, storage):
    """The Transformer++ with random weights."""
    import gguf
    import numpy as np
    kind = gguf.GGMLQuantizationType[{"float32": "F32", "bfloat16": "BF16", "q8_0": "Q8_0"}[storage]]
    random = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(131072)
    w.add_embedding_length(DIM)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(16)
    w.add_head_count_kv(16)
    w.add_layer_norm_rms_eps(EPS)
    w.add_rope_dimension_count(64)
    w.add_vocab_size(VOCAB)
    w.add_tokenizer_model("no_vocab")

    def add(name, *shape):
        if len(shape) == 1:
            return w.add_tensor(name, np.ones(shape, np.float32))
        w.add_tensor(name, gguf.quants.quantize(0.02 * random.standard_normal(shape, np.float32), kind), raw_dtype=kind)

    add("token_embd.weight", VOCAB, DIM)
    add("output_norm.weight", DIM)
    for i in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}.weight", DIM)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}.weight", DIM, DIM)
        for name, shape in (("ffn_gate", (HIDDEN, DIM)), ("ffn_up", (HIDDEN, DIM)), ("ffn_down", (DIM, HIDDEN))):
            add(f"blk.{i}.{name}.weight", *shape)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_call(work, storage, folder):
    """None where it cannot be had."""
    kind, n = parts(work)
    if kind == "train":
        return None
    try:
        import gguf  # noqa: F401
        import llama_cpp as L
    except ImportError as error:
        print("llama.cpp is left out:", error)
        return None
    path = pathlib.Path(folder) / f"lm-340m-{storage}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_gguf(str(path), storage)
    quiet = L.llama_log_callback(lambda level, text, user: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch = n + 64, min(n + 64, 2048)
    params.n_threads = params.n_threads_batch = torch.get_num_threads()
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 0
    context = L.llama_init_from_model(model, params) if model else None
    if not context:
        print("llama.cpp is left out: it does not open", path)
        return None
    ids = (L.llama_token * (n + 1))(*(i * 37 % VOCAB for i in range(n + 1)))

    def read(first, count):
        at = ctypes.cast(ctypes.byref(ids, first * ctypes.sizeof(L.llama_token)), ctypes.POINTER(L.llama_token))
        if L.llama_decode(context, L.llama_batch_get_one(at, count)):
            sys.exit("lm: llama_decode failed")
        L.llama_synchronize(context)

    def forget(first):
        L.llama_memory_seq_rm(L.llama_get_memory(context), 0, first, -1)

    def prompt():
        forget(0)
        for first in range(0, n, 2048):
            read(first, min(2048, n - first))

    def decode():
        read(n, 1)
        forget(n)
    if kind == "prompt":
        prompt.keep = (quiet, model, context)
        return prompt
    prompt()
    decode.keep = (quiet, model, context)  # the callback must live
    return decode


# ---- One work ---------------------------------------------------------------------------------------------------------

def engine(program, work, attention, storage, seconds):
    """Single calls of the program, in ms."""
    env = dict(os.environ, BENCH_SECONDS=f"{seconds:.3f}", OMP_NUM_THREADS=str(torch.get_num_threads()))
    env.pop("LD_PRELOAD", None)
    argv = [program, "bench", "--engine", "--operator", attention, "--dtype", storage, "lm-340m", "micro" if QUICK else work]
    out = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["ms"]


def ceilings(program):
    """GFLOP/s and GB/s of this machine."""
    env = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()))
    out = json.loads(subprocess.run([program, "info", "--json"], env=env, check=True, capture_output=True, text=True).stdout)
    return out["peak_f32_gflops"], out["read_gbytes_per_s"]


def weights(storage):
    """Bytes of the matrices: what a token reads."""
    numbers = VOCAB * DIM + LAYERS * (4 * DIM * DIM + 3 * DIM * HIDDEN)
    return numbers * {"float32": 4, "bfloat16": 2, "q8_0": 34 / 32}[storage]


def flops(work, attention):
    """Products that are needed; triangles count half. A training step counts three times and has all logits."""
    kind, n = parts(work)
    if attention == "mhla":
        mixing = peers.Shape(1, 4, n, 128, 256, chunk=CHUNK).flops("mhla")
    else:
        mixing = peers.Shape(1, 16, n, 64, 64, chunk=CHUNK).flops("sdpa")
    layers = LAYERS * (2 * n * (4 * DIM * DIM + 3 * DIM * HIDDEN) + mixing)  # MHLA's five matrices are as large as the four
    logits = 2 * VOCAB * DIM * (n if kind == "train" else 1)
    return (3 if kind == "train" else 1) * (layers + logits)


def variants(work, args, folder):
    """{(name, storage): call, or None for our own}"""
    kind, found = parts(work)[0], {}
    for storage in [s for s in args.storage if kind != "train" or STORAGES[s]]:
        found["mhla", storage] = found["softmax", storage] = None
        if args.torch and STORAGES[storage] and kind != "train":
            for attention in ("mhla", "softmax"):
                for compiled in [False, True] if args.compile else [False]:
                    name = f"torch {attention}{' compiled' if compiled else ''}"
                    found[name, storage] = (work, attention, STORAGES[storage], compiled)
        elif args.torch and kind == "train":
            for attention in ("mhla", "softmax"):
                found[f"torch {attention}", storage] = (work, attention, STORAGES[storage], False)
        if args.llama:
            found["llama.cpp", storage] = (work, storage, folder)
    return found


def run(work, args, folder):
    """Variants are made one at a time, lest all of them stay in memory; a round visits each."""
    rows, (kind, n) = [], parts(work)
    ms, top, bandwidth = {}, 0.0, 0.0
    calls = {}
    for key, what in variants(work, args, folder).items():
        call = what and (llama_call(*what) if key[0] == "llama.cpp" else torch_call(*what))
        if what is None or call:
            calls[key], ms[key] = call, []
    for _ in range(args.rounds):
        peak, gbs = ceilings(args.program)
        top, bandwidth = max(top, peak), max(bandwidth, gbs)
        for (name, storage), call in calls.items():
            ms[name, storage] += peers.calls(call, args.seconds) if call else engine(args.program, work, name, storage, args.seconds)
    for (name, storage), values in ms.items():
        attention, tokens = "mhla" if "mhla" in name else "softmax", 1 if kind == "decode" else n
        best = min(values) / 1e3
        percent = weights(storage) / bandwidth / best / 1e7 if kind == "decode" and bandwidth else 0.0
        if kind != "decode":
            percent = flops(work, attention) / best / top / 1e7
        rows.append(dict(work=work, variant=name, storage=storage, best_ms=1e3 * best, median_ms=statistics.median(values),
                         calls=len(values), tokens_per_second=tokens / best, percent=percent, peak_gflops=top, bandwidth_gbs=bandwidth,
                         threads=torch.get_num_threads(), torch=torch.__version__,
                         malloc=peers.malloc()))
    return rows


def table(rows):
    first = rows[0]
    of = f"memory {first['bandwidth_gbs']:.0f} GB/s" if first["work"].startswith("decode") else f"peak {first['peak_gflops']:.0f} GFLOP/s"
    print(f"\n{first['work']}   {of}, {first['threads']} threads, torch {first['torch']}, malloc {first['malloc']}")
    print(f"{'':24}{'storage':10}{'best ms':>10}{'median':>10}{'tokens/s':>10}{'of that':>10}")
    for r in rows:
        print(f"{r['variant']:24}{r['storage']:10}{r['best_ms']:10.2f}{r['median_ms']:10.2f}{r['tokens_per_second']:10.1f}"
              f"{r['percent']:8.1f} %", flush=True)


def main():
    built = pathlib.Path(__file__).resolve().parent.parent / "build" / "mhla"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"some of {', '.join(WORKS + LONG)}; default: the first {len(WORKS)}")
    parser.add_argument("--program", default=str(built), help="default: build/mhla")
    parser.add_argument("--storage", nargs="+", default=list(STORAGES), choices=list(STORAGES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each variant in each round")
    parser.add_argument("--threads", type=int, help="default: PyTorch's")
    parser.add_argument("--compile", action="store_true", help="also through torch.compile, which takes minutes")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--no-llama", dest="llama", action="store_false")
    parser.add_argument("--folder", help="where GGUF files are kept from run to run (1.4, 0.7 and 0.4 GB); default: nowhere")
    parser.add_argument("--jsonl", help="also write one JSON object per variant to this file")
    parser.add_argument("--quick", action="store_true", help="a toy of one layer instead of the 340M model, to see that all of this runs")
    args = parser.parse_args()
    peers.prefer_tcmalloc()
    if args.quick:
        globals().update(QUICK=True, LAYERS=1, HIDDEN=64, VOCAB=512)
        print("--quick: a toy model, and another one for each variant; the figures mean nothing")
    unknown = [work for work in args.works if work not in WORKS + LONG]
    if unknown:
        parser.error(f"no work {unknown[0]}: there are {', '.join(WORKS + LONG)}")
    if args.threads:
        torch.set_num_threads(args.threads)
    if not os.access(args.program, os.X_OK):
        parser.error(f"no program {args.program}: run make first, or say --program")
    if args.torch:
        check()
    with tempfile.TemporaryDirectory() as temporary:
        for work in args.works or WORKS:
            rows = run(work, args, args.folder or temporary)
            table(rows)
            if args.jsonl:
                with open(args.jsonl, "a") as f:
                    f.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
