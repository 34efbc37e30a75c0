#!/usr/bin/env python3
"""Runs the golden cases of a folder: python tests/goldens/goldens.py DIR (or `make goldens GOLDENS=DIR`).

Every safetensors file in DIR is one case, known by what its metadata says (`case`, `op`, `layer`), never by its name or
place, so that other goldens of the same kinds run too; so is every list of texts, ids or questions in JSON, known by its keys. A
line for each: its errors, each with the tolerance it is held to. Errors are max |got - golden| / max |golden|; outputs must be
within 1e-5, gradients within 2e-5. Ends with `N passed, N failed, N skipped`; the exit status is 1 if one failed. `-v` shows
every tensor.

Here are operators and attentions, which the Python package runs, and single layers; golden_decay.py has recurrences with decay,
golden_images.py models of images and diffusion, golden_wan.py Wan's, golden_pipelines.py whole pipelines, golden_text.py has language models, tokenizers, sampling and evaluation.
"""
import argparse
import math
import pathlib
import re
import sys
import tempfile

import torch

import golden_case
import golden_decay  # noqa: F401 its cases are known from now on
import golden_images  # noqa: F401 its cases are known from now on
import golden_mamba  # noqa: F401 its cases are known from now on
import golden_mixers  # noqa: F401 its cases are known from now on
import golden_pipelines  # noqa: F401 its cases are known from now on
import golden_text
import golden_wan  # noqa: F401 its cases are known from now on
import mhla
import mhla.nn
from golden_case import GRAD, OUT, Case, Skip, known, program, run_model, runner, write_safetensors

@known(case="mixing-init.*")
def mixing(case):
    names = {"linear": "released-linear"}
    usual = {"exp": "exp_sigma", "local": "local_thres"}  # what a transform is told where its name does not say it
    for name, golden in case.group("out.").items():
        kind, grid = re.fullmatch(r"(.+)\.([\dx]+)", name).groups()
        blocks = tuple(map(int, grid.split("x")))
        if kind == "dist":  # block centres only, no matrix: the transforms below pin it
            continue
        base, param = re.fullmatch(r"([a-z]+)(?:_(?:sigma|thres)([\d.]+))?", kind).groups()
        param = param or (case["defaults"] or {}).get(usual.get(base), 0)
        got = mhla.mix_init(names.get(base, base), blocks, float(param))
        case.compare(f"out.{name}", torch.from_numpy(got), golden, OUT)


def square(tokens):
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise Skip(f"{tokens} tokens are no square grid")
    return side


@known(case="(deit|dit)-mhla-attention")
def image_attention(case):
    grid, blocks = case["grid"], case["blocks"]
    if grid is None:  # as released: squares
        side, inner = square(case["embed_len"]), square(case.first("window_size", "block_size"))
        grid, blocks = (side, side), (side // inner,) * 2
    kind = mhla.nn.DeiTAttention if case["case"].startswith("deit") else mhla.nn.DiTAttention
    lepe = case.tensors["param.lepe.weight"].shape[-1]
    case.module(kind(case["dim"], case["heads"], grid, blocks, qk_norm="param.q_norm.weight" in case.tensors,
                     qkv_bias="param.to_qkv.bias" in case.tensors, lepe=lepe, denominator=case["denominator"]))


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
    state = getattr(state, "attention", state).summaries
    leaves = {"in.x": inputs["x"]} | {f"param.{n}": p for n, p in layer.named_parameters()}
    case.backward({"y": y, name: state}, leaves)


@known(layer="mhla")
def fla_mhla(case):
    M = case.tensors["param.mixing_matrix"].shape[0]
    layer = mhla.nn.LMAttention(case["hidden_size"], case["expand_k"], case["expand_v"], case["num_heads"], case["num_kv_heads"],
                                case["feature_map"], use_short_conv=bool(case["use_short_conv"]), conv_size=case["conv_size"] or 4,
                                use_output_gate="param.g_proj.weight" in case.tensors, norm_eps=case["norm_eps"],
                                chunk_size=case["chunk_size"], num_chunks=M, rope_base=case.first("rope_theta", "rope_base") or 10000.0)
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
                                       qk_norm=bool(case["qk_norm"]), window_size=case["window_size"],
                                       rope_theta=case["rope_theta"] or 10000.0)
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
    case.backward({"o": o, "final_state": state.summaries}, {f"in.{n}": t for n, t in x.items()})


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


# ---- Single layers of the engine: run_model computes them ---------------------------------------------------------------


def layer(case, name, inputs, parameters, output="y", eps=0.0, group=0):
    """What the engine's layer makes of tensors under the names that it has for them."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "in.safetensors"
        write_safetensors(file, {f"in.{n}": x for n, x in inputs.items()} | {f"param.{n}": x for n, x in parameters.items()} |
                          {f"dout.{output}": case.tensors[f"dout.{output}"].reshape(case.tensors[f"out.{output}"].shape)})
        return program("layer", name, file, "{out}", eps, group)


def compare_layer(case, got, output="y"):
    case.compare(f"out.{output}", got[f"out.{output}"], case.tensors[f"out.{output}"], OUT)
    for name, golden in case.group("grad.").items():
        found = got.get(f"grad.in.{name}", got.get(f"grad.param.{name}"))
        if found is None:
            case.same(f"grad.{name}, which nothing has", False)
        else:
            case.compare(f"grad.{name}", found, golden, GRAD)


@known(op="rmsnorm")
def rms_norm(case):
    compare_layer(case, layer(case, "rms_norm", case.group("in."), case.group("param."), eps=case["eps"]))


@known(op="rmsnorm_gated")
def rms_norm_gated(case):
    swish, first = case["activation"] in ("swish", "silu"), case["norm_before_gate"] is not False
    name = {(True, True): "rms_norm_gated", (True, False): "gate_rms_norm", (False, True): "rms_norm_sigmoid"}.get((swish, first))
    if name is None or not (swish or case["activation"] == "sigmoid") or (case["group_size"] and first):
        raise Skip("no layer here has an RMS norm with this gate")
    compare_layer(case, layer(case, name, case.group("in."), case.group("param."), eps=case["eps"], group=case["group_size"] or 0))


@known(op="swiglu|swiglu_mlp")
def swiglu(case):
    compare_layer(case, layer(case, case["op"], case.group("in."), case.group("param.")))


@known(op="cross_entropy")
def cross_entropy(case):
    labels = case.tensors["in.labels"].clone()
    labels[labels == (case["ignore_index"] if case["ignore_index"] is not None else -100)] = -1
    compare_layer(case, layer(case, "cross_entropy", {"logits": case.tensors["in.logits"], "labels": labels}, {}, "loss"), "loss")


@known(case="gguf-quants")
def quantised(case):
    missing = []
    for name, golden in case.group("out.").items():
        try:
            got = program("dequantize", case.path, "{out}", name, case[name]["ggml_type"])[f"out.{name}"]
        except Skip:
            missing.append(name)
            continue
        case.same(f"out.{name}, bit by bit", torch.equal(got, golden))
    if missing and not case.results:
        raise Skip(f"no {', '.join(missing)} here yet")
    case.note = f"without {', '.join(missing)}" if missing else ""


@known(case="clip_preprocess")
def clip_preprocess(case):
    older = int(str(case["pillow"] or "13").split(".")[0]) < 13  # which made the columns first, whatever the picture
    got = program("resize", case.path, "{out}", case["size"], int(older))
    mean, std, size = torch.tensor(case["image_mean"]), torch.tensor(case["image_std"]), case["size"]
    for name, golden in case.group("out.resized").items():
        image = got[f"out.image{name}"]
        case.same(f"out.resized{name}, bit by bit", torch.equal(image, golden.float()))
        top, left = (round((n - size) / 2) for n in image.shape[:2])
        seen = (image[top : top + size, left : left + size] / 255 - mean) / std
        case.compare(f"out.pixel_values{name}", seen.permute(2, 0, 1), case.tensors[f"out.pixel_values{name}"], OUT)


def openai_names(parameters):
    """The same CLIP under the names of OpenAI's files, q, k and v in one matrix, projections transposed."""
    towers, out = {"text_model.": "", "vision_model.": "visual."}, {}
    names = {"embeddings.token_embedding.weight": "token_embedding.weight", "embeddings.position_embedding.weight": "positional_embedding",
             "final_layer_norm": "ln_final", "embeddings.class_embedding": "class_embedding", "pre_layrnorm": "ln_pre",
             "embeddings.patch_embedding.weight": "conv1.weight", "post_layernorm": "ln_post", "layer_norm": "ln_",
             "encoder.layers": "transformer.resblocks", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "self_attn.": "attn."}
    for name, x in parameters.items():
        if name.endswith("_projection.weight"):
            out["text_projection" if name.startswith("text") else "visual.proj"] = x.t().contiguous()
            continue
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            x = torch.cat([parameters[name.replace(".q_proj.", f".{n}_proj.")] for n in "qkv"])
            name = name.replace("q_proj.", "in_proj_")
        for tower, start in towers.items():
            if name.startswith(tower):
                name = start + name[len(tower):]
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        out[name] = x
    return out


@known(case="clip_model.*")
def clip_model(case):
    """As Hugging Face has it; and under OpenAI's names, which say the activation and the heads of 64 dims by saying nothing."""
    config = {"model_type": "clip", "text_config": case["text"], "vision_config": case["vision"],
              "projection_dim": case["projection_dim"]}
    for names in ("", "OpenAI's names: "):
        parameters = openai_names(case.group("param.")) if names else case.group("param.")
        got = run_model("clip", config, parameters, {f"in.{n}": case.tensors[f"in.{n}"] for n in ("input_ids", "pixel_values")})
        for name in ("clip_score", "logits_per_image"):
            got[f"out.{name}"] = torch.stack([got[f"out.{name}.{b}"] for b in range(len(case.tensors[f"out.{name}"]))])
        for name, golden in case.group("out.").items():
            if f"out.{name}" in got:
                case.compare(f"{names}out.{name}", got[f"out.{name}"], golden, OUT)
            elif not re.fullmatch(r".*(pooled|final_norm|image.embeddings)", name):
                case.same(f"out.{name}, which nothing has", False)


@known(test=lambda case: {"in.lowres", "out.features"} <= set(case.tensors))
def inception(case):
    raise Skip("needs published weights (`mhla data inception`): the test test_inception compares it where they are")


# ---- Running ---------------------------------------------------------------------------------------------------------


def what(config):
    return config.get("op") or config.get("layer") or config.get("case") or "such case"


def run(case, function, shown, verbose):
    """One line; returns "passed", "failed" or "skipped"."""
    try:
        if function is None:
            raise Skip(f"no {what(case.config)} here yet")
        function(case)
    except Skip as reason:
        print(f"{shown}: skipped: {reason}", flush=True)
        return "skipped"
    except Exception as error:  # a case that does not run is a failed one
        print(f"{shown}: FAILED: {type(error).__name__}: {error}", flush=True)
        return "failed"
    failed = [r for r in case.results if not r[1] <= r[2]]
    parts = []
    for kind, chosen in (("grad", [r for r in case.results if r[2] == GRAD]), ("out", [r for r in case.results if r[2] != GRAD])):
        if chosen:
            name, error, tolerance = max(chosen, key=lambda r: r[1] / r[2])
            parts.insert(0, f"{kind} {error:.1e} of {tolerance:.0e} ({len(chosen)})")
    note = getattr(case, "note", "")
    print(f"{shown}: {'FAILED' if failed or not parts else 'passed'}: {', '.join(parts) or 'nothing compared'}{note and ', ' + note}", flush=True)
    for name, error, tolerance in case.results if verbose else failed:
        print(f"    {name}: {error:.2e} of {tolerance:.0e}")
    return "failed" if failed or not parts else "passed"


def cases(folder):
    """(case, runner or None) of all files, in their order."""
    for path in sorted(folder.rglob("*.safetensors")):
        case = Case(path)
        if any(name.startswith("out.") for name in case.tensors):
            yield case, runner(case)
    yield from golden_text.cases(folder)


def main():
    parser = argparse.ArgumentParser(description="Runs the golden cases of a folder.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="show every tensor")
    parser.add_argument("--run-model", default=golden_case.PROGRAM, help="the program that runs layers and whole models")
    options = parser.parse_args()
    golden_case.PROGRAM = options.run_model
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case, function in cases(options.folder):
        counts[run(case, function, case.path.relative_to(options.folder), options.verbose)] += 1
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
