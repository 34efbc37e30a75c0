#!/usr/bin/env python3
"""Runs the golden cases of a folder: python tests/goldens.py DIR (or `make goldens GOLDENS=DIR`).

Every safetensors file in DIR is one case, known by what its metadata says (`case`, `op`, `layer`), never by its name or
place, so that other goldens of the same kinds run too. A line for each: its errors, each with the tolerance it is held to.
Errors are max |got - golden| / max |golden|; outputs must be within 1e-5, gradients within 2e-5. Ends with
`N passed, N failed, N skipped`; the exit status is 1 if one failed. `-v` shows every tensor.
"""
import argparse
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch

import mhla
import mhla.nn

OUT, GRAD = 1e-5, 2e-5
PROGRAM = "build/run_model"
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


class Skip(Exception):
    """This case needs something that is not built yet."""


class Case:
    """One file: tensors, and the metadata's config with its other keys beside it."""

    def __init__(self, path):
        self.path = path
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        meta = header.pop("__metadata__", {})
        self.config = json.loads(meta.get("config", "{}"))
        for key in ("case", "note"):
            self.config.setdefault(key, meta.get(key, ""))
        self.tensors = {}
        for name, entry in header.items():
            if entry["dtype"] in DTYPES:
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                self.tensors[name] = torch.from_numpy(np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy())
        self.results = []  # (name, error, tolerance)

    def __getitem__(self, key):
        return self.config.get(key)

    def group(self, prefix):
        return {name[len(prefix) :]: x for name, x in self.tensors.items() if name.startswith(prefix)}

    def inputs(self):
        """in.* by name, those that are real numbers with a gradient."""
        return {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in self.group("in.").items()}

    def compare(self, name, got, golden, tolerance):
        got, golden = got.detach().double().reshape(golden.shape), golden.double()
        error, size = float((got - golden).abs().max()), float(golden.abs().max())
        relative = float((self["f32_vs_f64_rel"] or {}).get(name, 0))
        kind = name.split(".")[0] + "."
        largest = max((float(x.abs().max()) for n, x in self.tensors.items() if n.startswith(kind) and x.numel()), default=size)
        if relative > tolerance / 2 or (kind == "grad." and size < 1e-4 * largest):
            # nearly zero in truth, a difference of equal terms: float32 has no digits of it, so it is judged absolutely
            size, name = largest, name + " (absolutely)"
        self.results.append((name, error / size if size > 0 else error, tolerance))
        if not math.isfinite(error):
            self.results[-1] = (name, math.inf, tolerance)

    def backward(self, outputs, leaves):
        """Compares outputs by name, sends dout.* back and compares gradients, under any of the names that files use."""
        for name, y in outputs.items():
            self.compare(f"out.{name}", y, self.tensors[f"out.{name}"], OUT)
        pairs = [(y, self.tensors[f"dout.{n}"]) for n, y in outputs.items() if f"dout.{n}" in self.tensors]
        if not pairs:
            return
        torch.autograd.backward([y for y, _ in pairs], [d for _, d in pairs])
        found = 0
        for name, leaf in leaves.items():
            for golden in (f"grad.{name}", f"grad.{name.split('.', 1)[1]}", f"out.grad.{name}"):
                if golden in self.tensors:
                    grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                    self.compare(golden, grad, self.tensors[golden], GRAD)
                    found += 1
                    break
        wanted = sum(n.startswith(("grad.", "out.grad.")) for n in self.tensors)
        if found != wanted:
            self.results.append((f"{wanted - found} gradients that nothing has", math.inf, GRAD))

    def module(self, module, *names, output="y"):
        """A module with param.* as its state_dict, fed with in.<names>."""
        module.load_state_dict(self.group("param."), strict=True)
        module.eval()
        inputs = self.inputs()
        y = module(*(inputs[n] for n in names or ("x",)))
        leaves = {f"in.{n}": x for n, x in inputs.items()} | {f"param.{n}": p for n, p in module.named_parameters()}
        self.backward({output: y}, leaves)


# ---- What is known ---------------------------------------------------------------------------------------------------

KNOWN = []


def known(**conditions):
    """Registers a runner for cases whose config matches: each value is a regular expression."""

    def register(function):
        KNOWN.append((conditions, function))
        return function

    return register


@known(case="mixing-init.*")
def mixing(case):
    names = {"linear": "released-linear"}
    for name, golden in case.group("out.").items():
        kind, grid = re.fullmatch(r"(.+)\.([\dx]+)", name).groups()
        blocks = tuple(map(int, grid.split("x")))
        if kind == "dist":  # block centres only, no matrix: the transforms below pin it
            continue
        base, param = re.fullmatch(r"([a-z]+)(?:_(?:sigma|thres)([\d.]+))?", kind).groups()
        got = mhla.mix_init(names.get(base, base), blocks, float(param or 0))
        case.compare(f"out.{name}", torch.from_numpy(got), golden, OUT)


def square(tokens):
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise Skip(f"{tokens} tokens are no square grid")
    return side


@known(case="(deit|dit)-mhla-attention")
def image_attention(case):
    side, inner = square(case["embed_len"]), square(case["window_size"] or case["block_size"])
    kind = mhla.nn.DeiTAttention if case["case"].startswith("deit") else mhla.nn.DiTAttention
    case.module(kind(case["dim"], case["heads"], (side, side), (side // inner,) * 2, qk_norm=bool(case["qk_norm"]),
                     qkv_bias=case["qkv_bias"], lepe=case["lepe_kernel"], denominator=case["denominator"]))


@known(case="deit-linear-attention|attn_linear.*")
def image_linear(case):
    case.module(mhla.nn.LinearAttention(case["dim"], case["heads"]))


@known(case="attn_softmax.*")
def image_softmax(case):
    case.module(mhla.nn.SoftmaxAttention(case["dim"], case["heads"], "param.qkv.bias" in case.tensors))


@known(case="attn_(mhla_vlt|vlt_softmax).*")
def vlt_attention(case):
    gate, rope = case["gate"] is not False, case["rope"] is not False
    feature = "relu" if str(case["phi"]).startswith("relu") else "elu"
    case.module(mhla.nn.VLTAttention(case["dim"], case["heads"], case["grid"], case["blocks"], gate=gate, rope=rope,
                                     feature=feature, lepe=case["lepe"], den_eps=case["eps"] or 1e-6))


@known(case="wan-mhla-uni-attention|wan_mhla_attn.*")
def wan_attention(case):
    blocks = case["blocks"] or case["bl"]
    case.module(mhla.nn.WanAttention(case["dim"], case["heads"], case["grid"], blocks, gated=bool(case["is_gated"]),
                                     lepe=bool(case["is_lepe"]), normalize=bool(case["normalize_out"] or case["norm_output"]),
                                     eps=case["eps"]))
    if "out.released_linear_init" in case.tensors:
        case.compare("out.released_linear_init", torch.from_numpy(mhla.mix_init("released-linear", blocks)),
                     case.tensors["out.released_linear_init"], OUT)


@known(case="wan-softmax-self-attention")
def wan_softmax(case):
    case.module(mhla.nn.WanSoftmaxAttention(case["dim"], case["heads"], case["grid"], case["rmsnorm_eps"]))


@known(case="wan-cross-attention")
def wan_cross(case):
    case.module(mhla.nn.WanCrossAttention(case["dim"], case["heads"], case["rmsnorm_eps"]), "x", "context")


@known(case=r"wan-linear-attention.*")
def wan_linear(case):
    case.module(mhla.nn.WanLinearAttention(case["dim"], case["heads"], case["grid"], case["rmsnorm_eps"]))


@known(case="lm-mhla-layer")
def lm_layer(case):
    case.module(mhla.nn.LMAttention(case["hidden"], case["expand_k"], case["expand_v"], case["heads"], case["kv_heads"],
                                    case["feature_map"], use_output_gate=case["output_gate"], norm_eps=case["norm_eps"],
                                    chunk_size=case["chunk"], num_chunks=case["M"], rope_base=case["rope_base"]))


def with_state(case, layer, name):
    """A layer that also returns its state."""
    layer.load_state_dict(case.group("param."), strict=True)
    inputs = case.inputs()
    y, state = layer(inputs["x"], output_final_state=True)
    state = state[0] if isinstance(state, tuple) else state
    leaves = {"in.x": inputs["x"]} | {f"param.{n}": p for n, p in layer.named_parameters()}
    case.backward({"y": y, name: state}, leaves)


@known(layer="mhla")
def fla_mhla(case):
    M = case.tensors["param.mixing_matrix"].shape[0]
    layer = mhla.nn.LMAttention(case["hidden_size"], case["expand_k"], case["expand_v"], case["num_heads"], case["num_kv_heads"],
                                case["feature_map"], use_short_conv=bool(case["use_short_conv"]), conv_size=case["conv_size"] or 4,
                                use_output_gate="param.g_proj.weight" in case.tensors, norm_eps=case["norm_eps"],
                                chunk_size=case["chunk_size"], num_chunks=M)
    with_state(case, layer, "chunk_states")


@known(layer="linear_attn")
def fla_linear(case):
    layer = mhla.nn.LMLinearAttention(case["hidden_size"], case["num_heads"], case["expand_k"], case["expand_v"], case["feature_map"],
                                      norm_q=bool(case["norm_q"]), norm_k=bool(case["norm_k"]),
                                      norm_feature_map=bool(case["norm_feature_map"]), norm_eps=case["norm_eps"])
    with_state(case, layer, "recurrent_state")


@known(layer="transformer")
def fla_softmax(case):
    layer = mhla.nn.LMSoftmaxAttention(case["hidden_size"], case["num_heads"], case["num_kv_heads"], qkv_bias=bool(case["qkv_bias"]),
                                       qk_norm=bool(case["qk_norm"]), window_size=case["window_size"], rope_theta=case["rope_theta"])
    case.module(layer)


def number(value):
    return float(value) if isinstance(value, (int, float)) else None


def stream(case, q, k, v, mix, chunk, scale, golden):
    """The same tokens one by one."""
    K, V = q.shape[-1], v.shape[-1]
    outputs = []
    for b in range(q.shape[0]):
        state = mhla.State(mix, q.shape[2], K, V, k.shape[2], scale=scale, chunk_size=chunk, feature="identity")
        outputs.append(torch.stack([state.step(q[b, t : t + 1], k[b, t : t + 1], v[b, t : t + 1])[0] for t in range(q.shape[1])]))
    case.compare(golden + " (streamed)", torch.stack(outputs), case.tensors[golden], OUT)


@known(case="causal-chunk-operator")
def causal_operator(case):
    x = case.inputs()
    mix = x["mix"].flatten(1)
    o, _ = mhla.causal_attention(x["q"], x["k"], x["v"], mix, number(case["scale"]), chunk_size=case["chunk"], feature="identity")
    case.backward({"o": o}, {f"in.{n}": t for n, t in x.items()})
    stream(case, x["q"], x["k"], x["v"], mix, case["chunk"], number(case["scale"]), "out.o")


@known(case="LABELLED EXAMPLE OF WRONG BEHAVIOUR.*")
def wrong_example(case):
    x = case.inputs()
    mix = x["mix"].flatten(1)
    o, _ = mhla.causal_attention(x["q"], x["k"], x["v"], mix, chunk_size=case["chunk"], feature="identity")
    case.compare("out.o_correct_chunk", o, case.tensors["out.o_correct_chunk"], OUT)
    stream(case, x["q"], x["k"], x["v"], mix, case["chunk"], None, "out.o_correct_chunk")


@known(op="linear_attn")
def linear_operator(case):
    x = case.inputs()
    normalize = bool(case["normalize"])
    start = x.get("initial_state")
    if start is not None and normalize:
        raise Skip("an initial state without its sum of keys")
    o, state = mhla.linear_attention(x["q"], x["k"], x["v"], number(case["scale"]), start, True, normalize, x.get("cu_seqlens"),
                                     causal=True, feature="identity", den_eps=1e-10)
    case.backward({"o": o, "final_state": state[0] if normalize else state}, {f"in.{n}": t for n, t in x.items()})


@known(op="causal_softmax_attention")
def softmax_operator(case):
    x = case.inputs()
    o = mhla.softmax_attention(x["q"], x["k"], x["v"], number(case["scale"]), True, case["window"] or 0, x.get("cu_seqlens"))
    case.backward({"o": o}, {f"in.{n}": t for n, t in x.items()})


@known(op="feature_map")
def feature_maps(case):
    from mhla.nn._parts import feature_map

    x = case.inputs()["x"]
    feature, module, _ = feature_map(case["kind"], x.shape[-1])
    names = {"weight": "layer.weight", "bias": "layer.bias", "weight1": "layer1.weight", "bias1": "layer1.bias",
             "weight2": "layer2.weight", "bias2": "layer2.bias"}
    module.load_state_dict({names.get(n, n): p for n, p in case.group("param.").items()}, strict=True)
    y = module(x) if feature == "identity" else through_operator(x, feature, None)
    back = {value: key for key, value in names.items()}
    case.backward({"y": y}, {"in.x": x} | {f"param.{back[n]}": p for n, p in module.named_parameters()})


def through_operator(x, feature, rope, style="half"):
    """x [B,T,H,D] as the operator sees a query: D key tokens whose summary is the identity, read by every token of x.

    The keys come first and are a block of their own; phi(k) v^T sums to the identity because v undoes phi.
    """
    B, T, H, D = x.shape
    keys = torch.eye(D) * 8 - 4  # far from every kink: relu and elu of it are easily undone
    mapped = keys.relu() if feature == "relu" else torch.nn.functional.elu(keys) + 1 if feature == "elu" else keys
    values = torch.linalg.inv(mapped.double()).T.contiguous().float()
    # sum_i mapped[i,:]^T values[i,:] = mapped^T values = identity
    spread = lambda t, n: t[None, :, None].expand(B, n, H, D)  # noqa: E731
    q = torch.cat([torch.zeros(B, D, H, D), x], 1)
    k = torch.cat([spread(keys, D), torch.zeros(B, T, H, D)], 1)
    v = torch.cat([spread(values, D), torch.zeros(B, T, H, D)], 1)
    mix = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    if rope is not None:  # rows of the keys do not turn
        rope = tuple(torch.cat([torch.full((D, t.shape[1]), fill), t]) for t, fill in zip(rope, (1.0, 0.0)))
    o = mhla.attention(q, k, v, mix, block_offsets=[0, D, D + T], feature=feature, feature_eps=0.0, denominator="none", rope=rope,
                       rope_style=style)
    return o[:, D:]


@known(op="rope")
def rotary(case):
    x = case.inputs()["x"]
    offset, T = case["offset"], x.shape[1]
    table = tuple(torch.from_numpy(t[offset:]) for t in mhla.rope_table(offset + T, case["rotary_dim"], case["base"]))
    y = through_operator(x, "identity", table, "interleaved" if case["interleaved"] else "half")
    case.backward({"y": y}, {"in.x": x})


# ---- Whole models: tests/nn/run_model.c runs them, files go to and fro ----------------------------------------------------


def write_safetensors(path, tensors):
    header, at, parts = {}, 0, []
    for name, x in tensors.items():
        data = x.detach().contiguous().numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[x.dtype]
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def run_model(verb, config, parameters, inputs, *arguments):
    """What run_model writes, by name."""
    program = pathlib.Path(PROGRAM)
    if not program.is_file():
        raise Skip(f"{program} is not built")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
            write_safetensors(folder / "model.safetensors", parameters)
            write_safetensors(folder / "in.safetensors", inputs)
            command = [program, verb, folder, folder / "in.safetensors", folder / "out.safetensors", *arguments]
        else:
            command = [program, verb, arguments[0], folder / "out.safetensors", *arguments[1:]]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return Case(folder / "out.safetensors").tensors


def deit_config(parameters, image, patch, dim, depth, heads, classes, attention, padding=0, **more):
    config = {"model": "deit_tiny", "structure": "released", "attention": attention, "image": [image, image],
              "channels": parameters["patch_embed.proj.weight"].shape[1],
              "padding": [padding, padding], "patch": patch, "dim": dim, "depth": depth, "heads": heads, "classes": classes, **more}
    mix = parameters.get("blocks.0.attn.piece_attn.conv.weight")
    if mix is not None:
        config["blocks"] = [math.isqrt(mix.shape[0])] * 2
    return config


def compare_model(case, config, parameters, x, out, aliases=()):
    inputs = {"in.x": x}
    for name in ("in.target", "dout.logits"):
        if name in case.tensors:
            inputs[name] = case.tensors[name]
    got = run_model("forward", config, parameters, inputs)
    for name in out:
        case.compare(name, got[name], case.tensors[name], OUT)
    for name, golden in case.group("grad.").items():
        name = dict(aliases).get(name, name)
        found = got.get(f"grad.{name}", got.get(f"grad.param.{name}"))
        if found is None:
            case.results.append((f"grad.{name} that nothing has", math.inf, GRAD))
        else:
            case.compare(f"grad.{name}", found, golden, GRAD)


@known(case="deit-(mhla|linear|softmax)-model")
def deit_model(case):
    parameters, x = case.group("param."), case.tensors["in.x"]
    attention, image = case["case"].split("-")[1], x.shape[-1]
    config = deit_config(parameters, image, case["patch_size"], case["embed_dim"], case["depth"], case["num_heads"],
                         case["num_classes"], attention, (case["img_size"] - image) // 2)
    if attention == "mhla":  # the release keeps tokens block after block, we in raster order
        pieces = config["blocks"][0]
        side = (image + 2 * config["padding"][0]) // config["patch"]
        features = case.tensors["out.features"]
        B, T, C = features.shape
        features = features.view(B, pieces, pieces, side // pieces, side // pieces, C).transpose(2, 3).reshape(B, T, C)
        case.tensors["out.features"] = features
    compare_model(case, config, parameters, x, ["out.features", "out.logits", "out.loss"])


def own_fields(case, attention, parameters, prefix):
    """What a case says about an attention of another author, or what its tensors tell."""
    kernel = next((parameters[prefix + n].shape[-1] for n in ("dwc.weight", "lepe.weight") if prefix + n in parameters), 0)
    if attention == "inline" and prefix + "residual.2.bias" in parameters:
        kernel = math.isqrt(len(parameters[prefix + "residual.2.bias"]) // len(parameters[prefix + "residual.0.bias"]))
    fields = {"lepe": kernel, "qkv_bias": any(prefix + n in parameters for n in ("qkv.bias", "qkvo.bias"))}
    if attention == "focused":
        fields["power"] = case["focusing_factor"] or 3
    if attention in ("mala", "rala"):
        fields |= {"gate": prefix + "qkvo.weight" in parameters, "rope": case["rope"] is not False}
    return fields


@known(case="deit_(mhla|softmax|linear|focused|inline|mala|rala).*")
def deit_skeleton(case):
    parameters, x = case.group("param."), case.tensors["in.image"]
    more = own_fields(case, case["attention"], parameters, "blocks.0.attn.") if case["attention"] in OTHERS else {}
    config = deit_config(parameters, x.shape[-1], case["patch"], case["dim"], case["depth"], case["heads"], case["num_classes"],
                         case["attention"], class_token=bool(case["class_token"]), cpe=case["cpe"] or 0, norm=case["norm"],
                         norm_eps=case["norm_eps"], mlp_ratio=case["mlp_ratio"] or 4, **more)
    config["image"] = list(x.shape[-2:])
    compare_model(case, config, parameters, x, [f"out.blocks.{i}" for i in range(case["depth"])] + ["out.logits"], {"image": "in.x"})


OTHERS = ("focused", "inline", "mala", "rala")


@known(case="attn_(focused|inline|mala|rala).*")
def deit_attention(case):
    """An attention alone: the first block of a classifier whose other parameters are zero."""
    attention, parameters, x = case["case"].split("_")[1], case.group("param."), case.tensors["in.x"]
    (B, T, C), grid, token = x.shape, case["grid"], bool(case["class_token"])
    norm = "norm" if token else "fc_norm"
    shapes = {"pos_embed": [1, T, C], "patch_embed.proj.weight": [C, 1, 1, 1], "patch_embed.proj.bias": [C], "head.weight": [1, C],
              "head.bias": [1], "blocks.0.mlp.fc1.weight": [C, C], "blocks.0.mlp.fc1.bias": [C], "blocks.0.mlp.fc2.weight": [C, C],
              "blocks.0.mlp.fc2.bias": [C], **({"cls_token": [1, 1, C]} if token else {}),
              **{f"{n}.{w}": [C] for n in ("blocks.0.norm1", "blocks.0.norm2", norm) for w in ("weight", "bias")}}
    model = {name: torch.zeros(shape) for name, shape in shapes.items()} | {f"blocks.0.attn.{n}": p for n, p in parameters.items()}
    config = deit_config(model, 1, 1, C, 1, case["heads"], 1, attention, class_token=token, mlp_ratio=1,
                         **own_fields(case, attention, parameters, ""))
    config["image"] = list(grid)
    got = run_model("attention", config, model, {"in.x": x, "dout.y": case.tensors["dout.y"]})
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    for name, golden in case.group("grad.").items():
        own = "grad.in.x" if name in ("x", "in.x") else f"grad.param.blocks.0.attn.{name.removeprefix('param.')}"
        if own in got:
            case.compare(f"grad.{name}", got[own], golden, GRAD)
        else:
            case.results.append((f"grad.{name} that nothing has", math.inf, GRAD))


def formula_parameters(names):
    """Parameters of the real-size files: see the goldens' README."""
    parameters = {}
    for j, line in enumerate(line for line in names.read_text().splitlines() if not line.startswith("#")):
        name, shape = line.split()
        shape = [int(n) for n in shape.split("x")]
        z = (np.uint64(j) << np.uint64(32)) + np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
        z = z * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        u = ((z >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32)
        base, amp = 0.0, math.sqrt(3 / math.prod(shape[1:])) if len(shape) > 1 else 0.0
        if "piece_attn" in name:
            base, amp = 1 / shape[0], 0.5 / shape[0]
        elif name.endswith("bias"):
            amp = 0.1
        elif len(shape) == 1:
            base, amp = 1.0, 0.1
        elif name == "pos_embed":
            amp = 0.5
        parameters[name] = torch.from_numpy((np.float32(base) + np.float32(amp) * u).reshape(shape))
    return parameters


@known(case="deit_(tiny|small|base)_mhla full size.*")
def deit_full(case):
    names = next((p / case["names"] for p in case.path.parents if (p / case["names"]).is_file()), None)
    if names is None:
        raise Skip(f"no {case['names']} around")
    parameters, x = formula_parameters(names), case.tensors["in.x"]
    dim = parameters["pos_embed"].shape[-1]
    config = deit_config(parameters, 224, 16, dim, 12, dim // 64, 1000, "mhla", 16)
    got = run_model("forward", config, parameters, {"in.x": x})
    case.compare("out.logits", got["out.logits"], case.tensors["out.logits"], OUT)
    probe = torch.stack([got[f"out.blocks.{i}"][0, 0, :8] for i in range(12)])
    case.compare("out.block_probe", probe, case.tensors["out.block_probe"], OUT)


def dit_config(parameters, said, attention="mhla"):
    """A released DiT: sizes as the case says them, the rest as its tensors tell."""
    config = {"model_type": "mhla_dit", "model": "dit_s_2", "structure": "released", "attention": attention,
              "image": [said["input_size"]] * 2, "channels": parameters["x_embedder.proj.weight"].shape[1], "patch": said["patch"],
              "dim": said["hidden"], "depth": said["depth"], "heads": said["heads"], "classes": said["classes"],
              "mlp_ratio": said.get("mlp_ratio") or 4.0, "qk_norm": "blocks.0.attn.q_norm.weight" in parameters,
              "qkv_bias": any(name.endswith("qkv.bias") for name in parameters),
              "null_label": len(parameters["y_embedder.embedding_table.weight"]) > said["classes"],
              "cpe": "folded" if "blocks.0.dw_conv.weight" in parameters else "none"}
    channels = parameters["final_layer.linear.weight"].shape[0] // said["patch"] ** 2
    config["learn_sigma"] = channels == 2 * config["channels"]
    lepe, mix = parameters.get("blocks.0.attn.lepe.weight"), parameters.get("blocks.0.attn.piece_attn.conv.weight")
    config["lepe"] = 0 if lepe is None else lepe.shape[-1]
    if mix is not None:
        config["blocks"] = [math.isqrt(mix.shape[0])] * 2
    return config


def dit_inputs(case):
    return {name: case.tensors[name].to(torch.int64) if name == "in.label" else case.tensors[name].float()
            for name in ("in.x", "in.t", "in.label", "dout.y") if name in case.tensors}


@known(case="dit-(mhla|softmax)-model")
def dit_model(case):
    parameters = case.group("param.")
    got = run_model("forward", dit_config(parameters, case.config, case["case"].split("-")[1]), parameters, dit_inputs(case))
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    for name, golden in case.group("grad.").items():
        case.compare(f"grad.{name}", got[f"grad.{name}"], golden, GRAD)


@known(case="dit-(mhla|softmax)-model-cfg")
def dit_guided(case):
    """Guided answers: the first half of the batch goes through with both halves' labels; channels of the noise are mixed."""
    plain = case.path.with_name(case.path.name.replace("_cfg", ""))
    parameters = case.group("param.") or (Case(plain).group("param.") if plain.is_file() else {})
    if not parameters:
        raise Skip(f"no {plain.name} with the parameters")
    config = dit_config(parameters, case.config, case["case"].split("-")[1])
    inputs = dit_inputs(case)
    case.compare("out.plain", run_model("forward", config, parameters, inputs)["out.y"], case.tensors["out.plain"], OUT)
    half, noise = len(inputs["in.x"]) // 2, config["channels"]
    inputs["in.x"] = torch.cat([inputs["in.x"][:half]] * 2)
    y = run_model("forward", config, parameters, inputs)["out.y"]
    guided = y[half:, :noise] + case["cfg_scale"] * (y[:half, :noise] - y[half:, :noise])
    case.compare("out.y", torch.cat([torch.cat([guided, guided]), y[:, noise:]], 1), case.tensors["out.y"], OUT)


@known(case="dit-embeddings")
def dit_embeddings(case):
    for name, golden in case.group("out.").items():
        found = re.fullmatch(r"pos_embed_d(\d+)_g(\d+)", name)
        if found:  # the timestep's table is not told by a model: the cases above pin it
            dim, grid = map(int, found.groups())
            model = mhla.create("dit_micro", dim=dim, heads=4, depth=1, image=2 * grid, attention="linear")
            case.compare(f"out.{name}", torch.from_numpy(model.state_dict()["pos_embed"])[0], golden, OUT)


@known(case="DiT-[SBLX]+/2 full size.*")
def dit_full(case):
    names = next((p / case["names"] for p in case.path.parents if (p / case["names"]).is_file()), None)
    if names is None:
        raise Skip(f"no {case['names']} around")
    parameters, side = formula_parameters(names), case.tensors["in.x"].shape[-1]
    dim, (depth, heads) = parameters["pos_embed"].shape[-1], {384: (12, 6), 768: (12, 12), 1024: (24, 16), 1152: (28, 16)}[
        parameters["pos_embed"].shape[-1]]
    config = dit_config(parameters, dict(input_size=side, patch=2, hidden=dim, depth=depth, heads=heads, classes=1000))
    parameters["pos_embed"] = torch.from_numpy(
        mhla.create("dit_micro", dim=dim, heads=heads, depth=1, image=side, attention="linear").state_dict()["pos_embed"])
    got = run_model("forward", config, parameters, dit_inputs(case))
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)


@known(case="optimiser-deit")
def deit_optimiser(case):
    c, parameters = case["config"], case.group("param.")
    config = deit_config(parameters, c["in_img"], c["patch_size"], c["dim"], c["depth"], c["heads"], c["num_classes"], "mhla",
                         (c["img_size"] - c["in_img"]) // 2)
    compare_steps(case, config, parameters)


@known(case="optimiser-dit")
def dit_optimiser(case):
    parameters = case.group("param.")
    compare_steps(case, dit_config(parameters, case["config"]), parameters)


def compare_steps(case, config, parameters):
    inputs = {n: x for n, x in case.tensors.items() if n.startswith("in.")}
    got = run_model("steps", config, parameters, inputs, case["lr"], case["weight_decay"], case["ema_decay"])
    recorded = case["f32_vs_f64_maxabs"] or {}
    for name, golden in case.group("out.").items():
        name = f"out.{name}"
        # Adam divides a gradient by its own size: an entry whose gradient is nearly zero moves by rounding, up to the rate.
        # The file records how far float32 itself is off; twice that is allowed where it is more than the rule. Averages,
        # for which it records nothing, consist of the parameters.
        error, size = float((got[name] - golden).abs().max()), float(golden.abs().max())
        own = re.sub(r"\.ema(\d)\.", r".step\1.", name)
        allowed = max(OUT * size, 2 * float(recorded.get(own, 0)))
        case.results.append((name, error / allowed * OUT, OUT))


@known(case="lr-schedules")
def schedules(case):
    deit = run_model("schedule", None, None, None, "cosine", 1e-3, 0, 1e-6, 100, 2000, 2001)["out.rates"]
    case.compare("out.deit_timm_cosine", deit, case.tensors["out.deit_timm_cosine"], OUT)
    lm = run_model("schedule", None, None, None, "cosine-after", 3e-4, 3e-5, 0, 1024, 20480, 20480)["out.rates"]
    case.compare("out.lm_cosine_min_lr_first1100", lm[:1100], case.tensors["out.lm_cosine_min_lr_first1100"], OUT)
    case.compare("out.lm_cosine_min_lr_every64", lm[::64], case.tensors["out.lm_cosine_min_lr_every64"], OUT)


# ---- Diffusion ----


def program(*arguments):
    """The results of a verb of run_model that writes to the place {out}."""
    if not pathlib.Path(PROGRAM).is_file():
        raise Skip(f"{PROGRAM} is not built")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.safetensors"
        done = subprocess.run([PROGRAM, *(str(a).format(out=out) for a in arguments)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return Case(out).tensors


@known(case="diffusion-schedules")
def diffusion_schedules(case):
    forms = [(r"linear(\d+)", "linear", lambda n: (n, "")), (r"squaredcos(\d+)", "cosine", lambda n: (n, "")),
             (r"respaced(\d+)", "linear", lambda n: (1000, n)), (r"ddim(\d+)", "linear", lambda n: (1000, f"ddim{n}")),
             (r"sections_([\d_]+)_of_(\d+)", "linear", lambda s, n: (n, s.replace("_", ",")))]
    for name in sorted({n.split(".")[0] for n in case.group("out.")}):
        found = [(process, arguments(*m.groups())) for form, process, arguments in forms if (m := re.fullmatch(form, name))]
        if not found:
            raise Skip(f"no levels called {name} here")
        ((process, (levels, respacing)),) = found
        got = program("levels", process, "{out}", levels, respacing)
        for column, golden in case.group(f"out.{name}.").items():
            case.compare(f"out.{name}.{column}", got[f"out.{column}"], golden, OUT)


@known(case="diffusion-steps")
def diffusion_steps(case):
    got = program("diffusion", case.path, "{out}", case["respacing"] or "", int(case["clip_denoised"]))
    for name, golden in case.group("out.").items():
        case.compare(f"out.{name}", got[f"out.{name}"], golden, GRAD if "grad" in name else OUT)


@known(case="sched_(flow_euler|dpmpp_flow|unipc_flow|wan_unipc|wan_dpmpp)_.*")
def flow_sampler(case):
    kind = re.fullmatch("sched_(.*)_n.*", case["case"])[1]
    method = {"flow_euler": "euler", "dpmpp_flow": "dpm++", "wan_dpmpp": "dpm++"}.get(kind, "unipc")
    got = program("flow", case.path, "{out}", method, "wan" if kind.startswith("wan") else "library", case["steps"], case["shift"])
    for name, golden in case.group("out.").items():
        case.compare(f"out.{name}", got[f"out.{name}"], golden, OUT)
    if not torch.equal(got["out.timesteps"].double(), case.tensors["out.timesteps"].double()):
        case.results.append(("out.timesteps to the last bit", math.inf, OUT))


# ---- Running ---------------------------------------------------------------------------------------------------------


def runner(config):
    for conditions, function in KNOWN:
        if all(re.fullmatch(pattern, str(config.get(key) or "")) for key, pattern in conditions.items()):
            return function
    return None


def what(config):
    return config.get("op") or config.get("layer") or config.get("case") or "this"


def run(path, shown, verbose):
    """One line; returns "passed", "failed", "skipped", or None where the file is no case."""
    case = Case(path)
    if not any(name.startswith("out.") for name in case.tensors):
        return None
    function = runner(case.config)
    try:
        if function is None:
            raise Skip(f"no {what(case.config)} here yet")
        function(case)
    except Skip as reason:
        print(f"{shown}: skipped: {reason}")
        return "skipped"
    except Exception as error:  # a case that does not run is a failed one
        print(f"{shown}: FAILED: {type(error).__name__}: {error}")
        return "failed"
    failed = [r for r in case.results if not r[1] <= r[2]]
    parts = []
    for prefix, tolerance in (("out", OUT), ("grad", GRAD)):
        chosen = [r for r in case.results if r[2] == tolerance]
        if chosen:
            name, error, _ = max(chosen, key=lambda r: r[1])
            parts.append(f"{prefix} {error:.1e} of {tolerance:.0e} ({len(chosen)})")
    print(f"{shown}: {'FAILED' if failed or not parts else 'passed'}: {', '.join(parts) or 'nothing compared'}")
    for name, error, tolerance in case.results if verbose else failed:
        print(f"    {name}: {error:.2e} of {tolerance:.0e}")
    return "failed" if failed or not parts else "passed"


def main():
    parser = argparse.ArgumentParser(description="Runs the golden cases of a folder.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="show every tensor")
    parser.add_argument("--run-model", default=PROGRAM, help="the program that runs whole models")
    options = parser.parse_args()
    globals()["PROGRAM"] = options.run_model
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(options.folder.rglob("*.safetensors")):
        verdict = run(path, path.relative_to(options.folder), options.verbose)
        if verdict:
            counts[verdict] += 1
    for folder in sorted({p.parent for p in options.folder.rglob("*cases*.json")} | {p.parent for p in options.folder.rglob("*.jsonl")}):
        print(f"{folder.relative_to(options.folder)}: skipped: no reader of these here yet")
        counts["skipped"] += 1
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
