"""Golden cases of Wan: its attentions, which both the Python package and run_model compute, its blocks, whole models under the names of
its authors and of diffusers."""
import math
import re

import torch

import mhla.nn
from golden_case import GRAD, OUT, known, run_block, run_model
from golden_images import depth_of


# ---- Attentions and blocks alone ----


def part_config(case, attention, dim, grid):
    """A Wan of one layer whose tokens are single numbers."""
    return {"model_type": "mhla_wan", "attention": attention, "hybrid": 0, "frames": grid[0], "image": list(grid[1:]), "channels": 1,
            "patch": 1, "dim": dim, "ffn": 1, "depth": 1, "heads": case.first("heads", "num_heads"),
            "eps": case.first("rmsnorm_eps", "eps") or 1e-6, "classes": 0}


def mhla_fields(case, parameters, prefix=""):
    blocks = case.first("blocks", "bl", "block_layout")
    released = case.first("normalize_out", "norm_output")
    return {"blocks": blocks, "gate": f"{prefix}g.weight" in parameters, "lepe": f"{prefix}lepe.weight" in parameters,
            "denominator": "released" if released else "none"}


def compare_part(case, what, config):
    inputs = case.group("in.") | {}
    inputs = {f"in.{n}": x.float() for n, x in inputs.items()} | {n: case.tensors[n] for n in ("dout.y",) if n in case.tensors}
    got = run_block(config, case.group("param."), inputs, "wan", what)
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    for name, golden in case.group("grad.").items():
        if f"grad.{name}" in got:
            case.compare(f"grad.{name}", got[f"grad.{name}"], golden, GRAD)
        else:
            case.same(f"grad.{name}, which nothing has", False)


@known(case="wan-mhla-uni-attention|wan_mhla_attn.*")
def wan_attention(case):
    blocks, parameters = case.first("blocks", "bl"), case.group("param.")
    case.module(mhla.nn.WanAttention(case["dim"], case["heads"], case["grid"], blocks, gated="g.weight" in parameters,
                                     lepe="lepe.weight" in parameters, normalize=bool(case["normalize_out"] or case["norm_output"]),
                                     eps=case.first("rmsnorm_eps", "eps")))
    if "out.released_linear_init" in case.tensors:
        case.compare("out.released_linear_init", torch.from_numpy(mhla.mix_init("released-linear", blocks)),
                     case.tensors["out.released_linear_init"], OUT)
    compare_part(case, "attention", part_config(case, "mhla", case["dim"], case["grid"]) | mhla_fields(case, parameters))


@known(case="wan-softmax-self-attention")
def wan_softmax(case):
    case.module(mhla.nn.WanSoftmaxAttention(case["dim"], case["heads"], case["grid"], case["rmsnorm_eps"]))
    compare_part(case, "attention", part_config(case, "softmax", case["dim"], case["grid"]))


@known(case="wan-cross-attention")
def wan_cross(case):
    case.module(mhla.nn.WanCrossAttention(case["dim"], case["heads"], case["rmsnorm_eps"]), "x", "context")
    compare_part(case, "cross", part_config(case, "softmax", case["dim"], [1, 1, 1]))


@known(case=r"wan-linear-attention.*")
def wan_linear(case):
    case.module(mhla.nn.WanLinearAttention(case["dim"], case["heads"], case["grid"], case["rmsnorm_eps"]))
    compare_part(case, "attention", part_config(case, "linear", case["dim"], case["grid"]))


@known(case="wan-block-(mhla|softmax|linear)")
def wan_block(case):
    parameters, attention = case.group("param."), case["case"].split("-")[2]
    config = part_config(case, attention, case["dim"], case["grid"]) | {"ffn": len(parameters["ffn.0.weight"])}
    if attention == "mhla":
        config |= mhla_fields(case, parameters, "self_attn.")
    compare_part(case, "block", config)


# ---- Whole models ----


def compare_model(case, config, inputs, out, blocks=True):
    inputs |= {"dout.y": case.tensors[n] for n in ("dout.y", "in.gy") if n in case.tensors}
    got = run_model("wan-model", config, case.group("param."), inputs)
    case.compare(out, got["out.y"], case.tensors[out], OUT)
    case.compare(out, got["out.inferred"], case.tensors[out], OUT)
    for i in range(depth_of(case.group("param.")) if blocks else 0):
        if f"out.blocks.{i}" in case.tensors:
            case.compare(f"out.blocks.{i}", got[f"out.blocks.{i}"], case.tensors[f"out.blocks.{i}"], OUT)
    for name, golden in (case.group("grad.") | case.group("out.grad.")).items():
        found = got.get(f"grad.in.x" if name in ("x", "in.x", "latent", "in.latent") else f"grad.param.{name.removeprefix('param.')}")
        if found is None:
            case.same(f"grad.{name}, which nothing has", False)
        else:
            case.compare(f"grad.{name}", found, golden, GRAD)


def our_config(case, x, text_length):
    """Of ours, because no file but ours says how large a clip is in training."""
    parameters = case.group("param.")
    patch, up = parameters["patch_embedding.weight"], parameters["blocks.0.ffn.0.weight"]
    first = min((int(m[1]) for n in parameters if (m := re.match(r"blocks\.(\d+)\.self_attn\.block_attn", n))), default=None)
    config = {"model_type": "mhla_wan", "attention": "softmax" if first is None else "mhla", "hybrid": 0, "frames": x.shape[2],
              "image": list(x.shape[3:]), "channels": x.shape[1], "patch": patch.shape[-1], "dim": len(patch), "ffn": len(up),
              "depth": depth_of(parameters), "heads": case.first("heads", "num_heads"), "eps": case["eps"] or 1e-6,
              "frequencies": parameters["time_embedding.0.weight"].shape[1],
              "text_width": parameters["text_embedding.0.weight"].shape[1], "text_length": text_length, "classes": 0}
    if first is not None:
        config |= mhla_fields(case, parameters, f"blocks.{first}.self_attn.")
    return config


@known(case="wan-model")
def wan_model(case):
    """Each text has its own length; zeros behind it up to text_len are attended."""
    texts = [case.tensors[f"in.context{i}"] for i in range(len(case.tensors["in.x"]))]
    rows = torch.full((len(texts), max(map(len, texts)), texts[0].shape[1]), math.nan)  # what is behind a text is not read
    for row, text in zip(rows, texts):
        row[: len(text)] = text
    inputs = {"in.x": case.tensors["in.x"], "in.t": case.tensors["in.t"].float(), "in.rows": rows,
              "in.lengths": torch.tensor([len(text) for text in texts])}
    compare_model(case, our_config(case, case.tensors["in.x"], case["text_len"]), inputs, "out.y")


def library_inputs(case):
    """All rows are attended, also those that are zero."""
    return {"in.x": case.tensors["in.latent"], "in.t": case.tensors["in.timestep"].float(), "in.rows": case.tensors["in.text"]}


@known(case="wan_mhla_model.*")
def wan_mhla_model(case):
    inputs = library_inputs(case)
    compare_model(case, our_config(case, inputs["in.x"], inputs["in.rows"].shape[1]), inputs, "out.sample")
    # a text without the zeros behind it is the same text
    rows = inputs["in.rows"]
    lengths = [1 + max((i for i, row in enumerate(text) if row.any()), default=-1) for text in rows]
    inputs["in.lengths"] = torch.tensor(lengths)
    inputs["in.rows"] = rows[:, : max(max(lengths), 1)].contiguous()
    compare_model(case, our_config(case, inputs["in.x"], rows.shape[1]), inputs, "out.sample", blocks=False)


@known(case="wan_transformer.*")
def wan_transformer(case):
    """diffusers' names and config."""
    inputs = library_inputs(case)
    config = {"_class_name": "WanTransformer3DModel", "text_len": inputs["in.rows"].shape[1]} | case.config
    compare_model(case, {k: v for k, v in config.items() if k not in ("case", "note")}, inputs, "out.sample")
