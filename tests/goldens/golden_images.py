"""Golden cases of models of images: classifiers, diffusion models, their optimisers, noise levels, steps and samplers. run_model
computes all of them; sizes are those of the tensors wherever tensors have them."""
import math
import re

import torch

import mhla
from golden_case import GRAD, OUT, Case, Skip, known, program, run_block, run_model
from golden_formula import formula_parameters


def depth_of(parameters):
    """Blocks of a transformer, by its tensors."""
    return 1 + max(int(found[1]) for name in parameters if (found := re.match(r"blocks\.(\d+)\.", name)))


def square_blocks(mix):
    side = math.isqrt(mix.shape[0])
    if side * side != mix.shape[0]:
        raise Skip(f"{mix.shape[0]} blocks are no square, and the case does not say how they lie")
    return [side, side]


# ---- Classifiers ----


def deit_config(case, parameters, x, heads, attention, padded=None, **more):
    """A DeiT for images like x [B,C,H,W], which zeros around it make `padded` pixels high and wide, or [height, width]; the rest
    as its tensors tell."""
    proj, attn = parameters["patch_embed.proj.weight"], "blocks.0.attn."
    dim, image, lepe = proj.shape[0], list(x.shape[-2:]), parameters.get(attn + "lepe.weight")
    sides = padded if isinstance(padded, list) else [padded] * 2
    config = {"model": "deit_tiny", "structure": "released", "attention": attention, "image": image, "channels": proj.shape[1],
              "padding": [((side or n) - n) // 2 for side, n in zip(sides, image)], "patch": proj.shape[-1], "dim": dim, "depth": depth_of(parameters),
              "heads": heads, "classes": len(parameters["head.weight"]), "class_token": "cls_token" in parameters,
              "mlp_ratio": len(parameters["blocks.0.mlp.fc1.weight"]) / dim, "lepe": 0 if lepe is None else lepe.shape[-1],
              "qkv_bias": any(attn + n in parameters for n in ("to_qkv.bias", "qkv.bias")), "qk_norm": attn + "q_norm.weight" in parameters}
    mix = parameters.get(attn + "piece_attn.conv.weight")
    if mix is not None:
        config["blocks"] = case["blocks"] or square_blocks(mix)
    return config | more


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
    attention = case["case"].split("-")[1]
    config = deit_config(case, parameters, x, case["num_heads"], attention, case["img_size"])
    if attention == "mhla":  # the release keeps tokens block after block, we in raster order
        (a, b), (h, w) = config["blocks"], ((n + 2 * p) // config["patch"] for n, p in zip(config["image"], config["padding"]))
        features = case.tensors["out.features"]
        B, T, C = features.shape
        features = features.view(B, a, b, h // a, w // b, C).transpose(2, 3).reshape(B, T, C)
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
    cpe = next((p.shape[-1] for name, p in parameters.items() if re.fullmatch(r"blocks\.0\.cpe.*weight", name)), case["cpe"] or 0)
    more = own_fields(case, case["attention"], parameters, "blocks.0.attn.") if case["attention"] in OTHERS else {}
    config = deit_config(case, parameters, x, case["heads"], case["attention"], cpe=cpe, norm=case["norm"], norm_eps=case["norm_eps"], **more)
    compare_model(case, config, parameters, x, [f"out.blocks.{i}" for i in range(config["depth"])] + ["out.logits"], {"image": "in.x"})


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
    config = deit_config(case, model, torch.empty(1, 1, *grid), case["heads"], attention, **own_fields(case, attention, parameters, ""))
    got = run_model("attention", config, model, {"in.x": x, "dout.y": case.tensors["dout.y"]})
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    for name, golden in case.group("grad.").items():
        own = "grad.in.x" if name in ("x", "in.x") else f"grad.param.blocks.0.attn.{name.removeprefix('param.')}"
        if own in got:
            case.compare(f"grad.{name}", got[own], golden, GRAD)
        else:
            case.results.append((f"grad.{name} that nothing has", math.inf, GRAD))


@known(case="deit_[a-z]+_mhla full size.*")
def deit_full(case):
    parameters, x = formula_parameters(case), case.tensors["in.x"]
    patch, tokens = parameters["patch_embed.proj.weight"].shape[-1], parameters["pos_embed"].shape[1]
    heads = case["heads"] or parameters["pos_embed"].shape[-1] // 64  # heads of 64 in all published sizes
    config = deit_config(case, parameters, x, heads, "mhla", patch * math.isqrt(tokens))
    got = run_model("forward", config, parameters, {"in.x": x})
    case.compare("out.logits", got["out.logits"], case.tensors["out.logits"], OUT)
    channels = case.tensors["out.block_probe"].shape[-1]
    probe = torch.stack([got[f"out.blocks.{i}"][0, 0, :channels] for i in range(config["depth"])])
    case.compare("out.block_probe", probe, case.tensors["out.block_probe"], OUT)


# ---- VLT ----


def stage_of(parameters, stage, name):
    return parameters[f"layers.{stage}.{name}"]


def vlt_config(case, parameters, image):
    """A VLT for images like `image`; sizes are those of its tensors."""
    attn = "layers.0.blocks.0.attn."
    stages = range(4)
    dims = [len(stage_of(parameters, s, "blocks.0.norm1.norm.weight")) for s in stages]
    depths = [1 + max(int(found[1]) for name in parameters if (found := re.match(rf"layers\.{s}\.blocks\.(\d+)\.", name))) for s in stages]
    hidden = [len(stage_of(parameters, s, "blocks.0.ffn.fc1.weight")) for s in stages]
    kinds = case["attention"] if isinstance(case["attention"], list) else [case["attention"]] * 2 + ["softmax"] * 2
    if kinds[0] != kinds[1] or kinds[0] not in ("mhla", "rala", "mala") or kinds[2:] != ["softmax"] * 2:
        raise Skip(f"no VLT with {kinds} in its stages")
    lepe = parameters.get(attn + "lepe.weight")
    config = {"model": "mhla_vlt_tiny", "attention": kinds[0], "image": list(image.shape[-2:]), "channels": image.shape[1],
              "dims": dims, "depths": depths, "heads": case["num_heads"], "mlp_ratios": [(h + 0.5) / d for h, d in zip(hidden, dims)],
              "layer_scale": [float(f"layers.{s}.blocks.0.gamma_1" in parameters) for s in stages],
              "projection": len(parameters["proj.weight"]), "classes": len(parameters["head.weight"]),
              "gate": attn + "qkvo.weight" in parameters, "rope": case["rope"] is not False, "lepe": 0 if lepe is None else lepe.shape[-1],
              "qk_norm": attn + "q_norm.weight" in parameters, "den_eps": case["eps"] or 1e-6}
    if kinds[0] == "mhla":
        blocks = case["blocks"] or [square_blocks(stage_of(parameters, s, "blocks.0.attn.piece_attn.conv.weight")) for s in (0, 1)]
        config |= {"blocks": [n for pair in blocks for n in pair], "denominator": case["denominator"] or "eq4",
                   "phi": "relu" if str(case["phi"]).startswith("relu") else "elu"}
    return config


def channels_first(x, golden):
    """Rows of tokens as the map that the golden is."""
    return x.transpose(1, 2).reshape(golden.shape) if x.dim() == 3 else x.reshape(golden.shape)


@known(case="vlt_(mhla|rala|mala).*")
def vlt_model(case):
    parameters, image = case.group("param."), case.tensors["in.image"]
    parameters |= {name: x.reshape(1) if x.dim() == 0 else x for name, x in case.group("buf.").items()}
    config = vlt_config(case, parameters, image)
    inputs = {"in.x": image} | {n: case.tensors[n] for n in ("dout.logits",) if n in case.tensors}
    got = run_model("training" if case["mode"] == "train" else "forward", config, parameters, inputs)
    blocks = [f"out.layers.{s}.blocks.{i}" for s, depth in enumerate(config["depths"]) for i in range(depth)]
    found = {name: got[f"out.blocks.{n}"] for n, name in enumerate(blocks)} | {"out.avgpool": got["out.rows"], "out.logits": got["out.logits"]}
    for name, x in found.items():
        if name in case.tensors:
            case.compare(name, channels_first(x, case.tensors[name]), case.tensors[name], OUT)
    for name, golden in case.group("out.buf.").items():
        case.compare(f"out.buf.{name}", got[f"out.buf.{name}"], golden, OUT)
    for name, golden in case.group("grad.").items():
        own = got.get(f"grad.in.x" if name in ("image", "in.image") else f"grad.param.{name.removeprefix('param.')}")
        if own is None:
            case.results.append((f"grad.{name} that nothing has", math.inf, GRAD))
        else:
            case.compare(f"grad.{name}", own, golden, GRAD)


# ---- Diffusion models ----


def dit_config(case, parameters, x, heads, classes, attention="mhla"):
    """A released DiT for x [B,C,H,W]: what no tensor tells is given."""
    proj, attn = parameters["x_embedder.proj.weight"], "blocks.0.attn."
    (dim, channels), patch = proj.shape[:2], proj.shape[-1]
    lepe, mix = parameters.get(attn + "lepe.weight"), parameters.get(attn + "piece_attn.conv.weight")
    config = {"model_type": "mhla_dit", "model": "dit_s_2", "structure": "released", "attention": attention, "image": list(x.shape[-2:]),
              "channels": channels, "patch": patch, "dim": dim, "depth": depth_of(parameters), "heads": heads, "classes": classes,
              "mlp_ratio": len(parameters["blocks.0.mlp.fc1.weight"]) / dim, "qk_norm": attn + "q_norm.weight" in parameters,
              "qkv_bias": any(name.endswith("qkv.bias") for name in parameters),
              "null_label": len(parameters["y_embedder.embedding_table.weight"]) > classes,
              "cpe": "folded" if "blocks.0.dw_conv.weight" in parameters else "none",
              "learn_sigma": len(parameters["final_layer.linear.weight"]) // patch**2 == 2 * channels,
              "lepe": 0 if lepe is None else lepe.shape[-1]}
    if mix is not None:
        config["blocks"] = case["blocks"] or square_blocks(mix)
    return config


def dit_inputs(case):
    return {name: case.tensors[name].to(torch.int64) if name == "in.label" else case.tensors[name].float()
            for name in ("in.x", "in.t", "in.label", "dout.y") if name in case.tensors}


@known(case="dit-(mhla|softmax)-model")
def dit_model(case):
    parameters = case.group("param.")
    config = dit_config(case, parameters, case.tensors["in.x"], case["heads"], case["classes"], case["case"].split("-")[1])
    got = run_model("forward", config, parameters, dit_inputs(case))
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    for name, golden in case.group("grad.").items():
        case.compare(f"grad.{name}", got[f"grad.{name}"], golden, GRAD)


def parameters_of(case):
    """Its own, or those of the case in the same folder that says the same of its model."""
    own = {"B", "case", "cfg_scale", "note"}

    def said(other):
        return {k: v for k, v in other.config.items() if k not in own and not k.startswith("f32_vs")}

    for path in [case.path, *sorted(case.path.parent.glob("*.safetensors"))]:
        other = Case(path)
        if other["case"] in (case["case"], case["case"].removesuffix("-cfg")) and said(other) == said(case) and other.group("param."):
            return other.group("param.")
    raise Skip("no case with its parameters beside it")


@known(case="dit-(mhla|softmax)-model-cfg")
def dit_guided(case):
    """Guided answers: the first half of the batch goes through with both halves' labels; channels of the noise are mixed."""
    parameters = parameters_of(case)
    config = dit_config(case, parameters, case.tensors["in.x"], case["heads"], case["classes"], case["case"].split("-")[1])
    inputs = dit_inputs(case)
    case.compare("out.plain", run_model("forward", config, parameters, inputs)["out.y"], case.tensors["out.plain"], OUT)
    half, noise = len(inputs["in.x"]) // 2, config["channels"]
    inputs["in.x"] = torch.cat([inputs["in.x"][:half]] * 2)
    y = run_model("forward", config, parameters, inputs)["out.y"]
    guided = y[half:, :noise] + case["cfg_scale"] * (y[:half, :noise] - y[half:, :noise])
    case.compare("out.y", torch.cat([torch.cat([guided, guided]), y[:, noise:]], 1), case.tensors["out.y"], OUT)


def positions(dim, grid):
    """The fixed table of a grid [rows, columns], [tokens, dim], out of a fresh model."""
    heads = next(h for h in range(1, dim + 1) if dim % h == 0 and dim // h <= 128)  # of any size that a head may have
    model = mhla.create("dit_micro", dim=dim, heads=heads, depth=1, patch=2, image=[2 * n for n in grid], attention="linear")
    return torch.from_numpy(model.state_dict()["pos_embed"])[0]


@known(case="dit-embeddings")
def dit_embeddings(case):
    """The sinusoid of the time is inside the network: the cases of whole models compare it."""
    for name, golden in case.group("out.").items():
        found = re.fullmatch(r"pos_embed_d(\d+)_g(\d+)(?:x(\d+))?", name)
        if found:
            dim, rows, columns = int(found[1]), int(found[2]), int(found[3] or found[2])
            case.compare(f"out.{name}", positions(dim, (rows, columns)), golden, OUT)


@known(case=r"DiT-(S|B|L|XL)/\d+ full size.*")
def dit_full(case):
    parameters, x = formula_parameters(case), case.tensors["in.x"]
    heads = case["heads"] or {"S": 6, "B": 12, "L": 16, "XL": 16}[re.match(r"DiT-([A-Z]+)/", case["case"])[1]]
    classes = case["classes"] or len(parameters["y_embedder.embedding_table.weight"]) - 1
    config = dit_config(case, parameters, x, heads, classes)
    parameters["pos_embed"] = positions(config["dim"], [n // config["patch"] for n in config["image"]])[None]
    got = run_model("forward", config, parameters, dit_inputs(case))
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)


# ---- DiG, LiT ----


def compare_frame(case, what, config):
    """A block of DiT or DiG, or its attention alone."""
    inputs = {name: case.tensors[name] for name in ("in.x", "in.c") if name in case.tensors} | {"dout.y": case.tensors["in.gy"]}
    compare_block(case, run_block(config, case.group("param."), inputs, "frame", what))


def compare_block(case, got):
    """A part of a model, forward and gradients; what the file has of the way between is not looked at."""
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    for name, golden in case.group("out.grad.").items():
        if f"grad.{name}" in got:
            case.compare(f"grad.{name}", got[f"grad.{name}"], golden, GRAD)
        else:
            case.results.append((f"grad.{name} that nothing has", math.inf, GRAD))


def dig_config(case, parameters, dim, heads, grid):
    """A DiG whose first block has these tensors, of `grid` patches of 1."""
    def width(name):
        return len(parameters[name]) / dim if name in parameters else 0

    released, mix = "attn.to_qkv.weight" in parameters, "attn.piece_attn.conv.weight" in parameters
    lepe = parameters.get("attn.lepe.weight")
    config = {"model_type": "mhla_dig", "model": "dig_s", "attention": "mhla-dit" if released else "mhla" if mix else "gla", "image": list(grid),
              "patch": 1, "dim": dim, "depth": 1, "heads": heads, "expand_k": width("attn.q_proj.weight"), "expand_v": width("attn.v_proj.weight"),
              "gate": any(name in parameters for name in ("attn.g_proj.weight", "attn.g.weight")), "lepe": 0 if lepe is None else lepe.shape[-1],
              "mlp_hidden": parameters["mlp.down_proj.weight"].shape[1] if "mlp.down_proj.weight" in parameters else 1,
              "cpe": "grid" if "dw_conv.weight" in parameters else "none"}
    if mix:
        config |= {"blocks": case["blocks"] or square_blocks(parameters["attn.piece_attn.conv.weight"]), "denominator": case["mode"] or "eq4",
                   "feature_eps": case.first("pe", "feature_eps") or 0.0, "den_eps": case.first("de", "den_eps") or 0.0}
    else:
        config |= {"gate_low_rank_dim": len(parameters["attn.gk_proj.0.weight"]), "gate_logit_normalizer": case["gate_logit_normalizer"] or 16}
    return config


@known(case="dig_gla_layer.*")
def dig_layer(case):
    B, T, D = case.tensors["in.x"].shape
    heads = case.first("num_heads", "heads")
    compare_frame(case, "attention", dig_config(case, {f"attn.{n}": p for n, p in case.group("param.").items()}, D, heads, [1, T]))


@known(case="dig_(mhla|gla)_block.*")
def dig_block(case):
    x = case.tensors["in.x"]
    side = math.isqrt(x.shape[1])
    compare_frame(case, "block", dig_config(case, case.group("param."), x.shape[2], case.first("heads", "num_heads"), case["grid"] or [side, side]))


@known(case="dig_model.*")
def dig_model(case):
    parameters, x, T = case.group("param."), case.tensors["in.latent"], case.tensors
    first = {name.removeprefix("blocks.0."): p for name, p in parameters.items() if name.startswith("blocks.0.")}
    (dim, channels), patch = parameters["x_embedder.proj.weight"].shape[:2], parameters["x_embedder.proj.weight"].shape[-1]
    classes = case["num_classes"] or len(parameters["y_embedder.embedding_table.weight"]) - 1
    config = dig_config(case, first, dim, case.first("num_heads", "heads"), x.shape[-2:])
    config |= {"patch": patch, "channels": channels, "depth": depth_of(parameters), "classes": classes,
               "null_label": len(parameters["y_embedder.embedding_table.weight"]) > classes,
               "learn_sigma": len(parameters["final_layer.linear.weight"]) // patch**2 == 2 * channels}
    inputs = {"in.x": x, "in.t": T["in.timestep"].float(), "in.label": T["in.label"].to(torch.int64)}
    got = run_model("forward", config, parameters, inputs)
    for name, mine in [("out.sample", "out.y")] + [(f"out.blocks.{i}",) * 2 for i in range(config["depth"])]:
        case.compare(name, got[mine], T[name], OUT)


@known(case="lit_attn.*")
def lit_attention(case):
    dwc = case.tensors.get("param.dwc.weight")
    config = {"model_type": "mhla_dit", "model": "dit_s_2", "attention": "lit", "image": case["grid"], "patch": 1, "dim": case.tensors["in.x"].shape[2],
              "heads": case["heads"], "depth": 1, "lepe": 0 if dwc is None else dwc.shape[-1], "qkv_bias": "param.q.bias" in case.tensors,
              "feature_eps": case["pe"], "den_eps": case["de"]}
    compare_frame(case, "attention", config)


# ---- SANA ----


def kept_rows(rows, mask):
    """Rows of text that a mask keeps, first, and how many they are."""
    order = torch.sort((mask == 0).to(torch.int8), dim=1, stable=True).indices
    return rows.gather(1, order[..., None].expand_as(rows)), (mask != 0).sum(1).to(torch.int64)


@known(case="sana_transformer.*")
def sana_model(case):
    T = case.tensors
    config = {"_class_name": "SanaTransformer2DModel"} | {k: v for k, v in case.config.items() if k not in ("case", "note")}
    rows, lengths = kept_rows(T["in.encoder_hidden_states"], T["in.encoder_attention_mask"])
    got = run_model("forward", config, case.group("param."), {"in.x": T["in.latent"], "in.t": T["in.timestep"].float(), "in.rows": rows, "in.lengths": lengths})
    case.compare("out.sample", got["out.y"], T["out.sample"], OUT)
    for i in range(config["num_layers"]):
        if f"out.transformer_blocks.{i}" in T:
            case.compare(f"out.transformer_blocks.{i}", got[f"out.blocks.{i}"], T[f"out.transformer_blocks.{i}"], OUT)


@known(case="sana_(mhla|linear)_block.*")
def sana_block(case):
    T, parameters = case.tensors, case.group("param.")
    mhla = "attn1.piece_attn.conv.weight" in parameters
    config = {"attention": "mhla" if mhla else "linear", "num_layers": 1, "num_attention_heads": case["heads"], "attention_head_dim": case["hd"],
              "num_cross_attention_heads": case["ch"], "cross_attention_head_dim": case["cd"], "cross_attention_dim": case["dim"],
              "mlp_ratio": case["mlp_ratio"], "norm_eps": case["norm_eps"], "feature_eps": case["pe"], "den_eps": case["de"], "grid": case["grid"],
              "sample_size": max(case["grid"]), "qk_norm": "rms_norm_across_heads" if "attn1.norm_q.weight" in parameters else None}
    if mhla:
        config["blocks"] = case["blocks"]
    rows, lengths = kept_rows(T["in.encoder"], T["in.encoder_mask"])
    inputs = {f"in.{name}": T[f"in.{name}"] for name in ("x", "time_mod", "gy")} | {"in.encoder": rows, "in.lengths": lengths}
    got = run_block(config, parameters, inputs, "sana")
    bias = "grad.param.attn2.to_k.bias"  # 0 in exact arithmetic: what is stored is rounding noise
    if f"out.{bias}" in T:
        case.results.append((bias, float(got.pop(bias).abs().max()) / float(T["out.grad.param.attn2.to_k.weight"].abs().max()), GRAD))
        del T[f"out.{bias}"]
    compare_block(case, got)


# ---- Optimisers ----


@known(case="optimiser-deit")
def deit_optimiser(case):
    parameters = case.group("param.")
    compare_steps(case, deit_config(case, parameters, case.tensors["in.x.0"], case["config"]["heads"], "mhla", case["config"]["img_size"]), parameters)


@known(case="optimiser-dit")
def dit_optimiser(case):
    parameters, c = case.group("param."), case["config"]
    compare_steps(case, dit_config(case, parameters, case.tensors["in.x.0"], c["heads"], c["classes"]), parameters)


def compare_steps(case, config, parameters):
    inputs = {n: x for n, x in case.tensors.items() if n.startswith("in.")}
    got = run_model("steps", config, parameters, inputs, case["lr"], case["weight_decay"] or 0, case["ema_decay"] or 0,
                    *(case["betas"] or (0.9, 0.999)), case["eps"] or 1e-8)
    recorded = case["f32_vs_f64_maxabs"] or {}
    for name, golden in case.group("out.").items():
        name = f"out.{name}"
        # Adam divides a gradient by its own size: an entry whose gradient is nearly zero moves by rounding, up to the rate.
        # The file records how far float32 itself is off; twice that is allowed where it is more than the rule. Averages,
        # for which it records nothing, consist of the parameters.
        error, size = float((got[name] - golden).abs().max()), float(golden.abs().max())
        own = re.sub(r"\.ema(\d+)\.", r".step\1.", name)
        allowed = max(OUT * size, 2 * float(recorded.get(own, 0)))
        case.results.append((name, error / allowed * OUT, OUT))


@known(case="lr-schedules")
def schedules(case):
    """Of each schedule the config says its numbers in a sentence."""

    def said(key, *patterns):
        found = [re.search(pattern.replace("N", r"([\d.]+(?:e-?\d+)?)"), case[key] or "") for pattern in patterns]
        if not all(found):
            raise Skip(f"nothing of {key} that is understood here")
        return [float(number) for match in found for number in match.groups()]

    def rates(kind, base, floor, start, warmup, total, count):
        return program("schedule", kind, "{out}", base, floor, start, int(warmup), int(total), int(count))["out.rates"]

    for name, golden in case.group("out.").items():
        if re.fullmatch("deit_timm_cosine", name):
            epochs, updates, warmup, start, base, floor = said("deit", "N epochs of N updates", "N warm-up epochs from N", "base N", "min N")
            got = rates("cosine", base, floor, start, warmup * updates, epochs * updates, len(golden))
        elif found := re.fullmatch(r"lm_cosine_min_lr_(first|every)(\d+)", name):
            base, warmup, total, floor = said("lm", "base N", "N warm-up", "N steps", "floor N")
            got = rates("cosine-after", base, floor, 0, warmup, total, total)
            got = got[: int(found[2])] if found[1] == "first" else got[:: int(found[2])]
        else:
            raise Skip(f"no schedule called {name} here")
        case.compare(f"out.{name}", got, golden, OUT)


# ---- Noise ----


@known(case="diffusion-schedules")
def diffusion_schedules(case):
    """Names say the levels: linear1000, squaredcos500, respaced250, ddim50, sections_10_15_20, the last three of 1000 or _of_300."""
    forms = {"respaced": lambda n: n, "ddim": lambda n: f"ddim{n}", "sections_": lambda n: n.replace("_", ","), "linear": None, "squaredcos": None}
    for name in sorted({n.split(".")[0] for n in case.group("out.")}):
        found = re.fullmatch(r"(squaredcos_|linear_)?(respaced|ddim|sections_|linear|squaredcos)([\d_]+?)(?:_of_(\d+))?", name)
        if not found:
            raise Skip(f"no levels called {name} here")
        process = "cosine" if "squaredcos" in name else "linear"
        chosen = forms[found[2]]
        levels, respacing = (found[4] or 1000, chosen(found[3])) if chosen else (found[3], "")
        got = program("levels", process, "{out}", levels, respacing)
        for column, golden in case.group(f"out.{name}.").items():
            case.compare(f"out.{name}.{column}", got[f"out.{column}"], golden, OUT)


@known(case="diffusion-steps")
def diffusion_steps(case):
    process = "cosine" if "cos" in str(case.first("noise_schedule", "schedule", "betas")) else "linear"
    levels = case.first("diffusion_steps", "num_timesteps", "num_train_timesteps") or 1000
    got = program("diffusion", case.path, "{out}", process, levels, case["respacing"] or "", int(bool(case["clip_denoised"])))
    for name, golden in case.group("out.").items():
        case.compare(f"out.{name}", got[f"out.{name}"], golden, GRAD if "grad" in name else OUT)


@known(case="sched_.*", kind="(FlowMatchEuler|DPMSolver.*|UniPC.*)")
def flow_sampler(case):
    found = re.fullmatch(r"(FlowMatchEuler|DPMSolver\+\+ 2M flow|UniPC bh2 flow)(?: \((library|Wan original)\))?", case["kind"])
    if not found or case["num_train_timesteps"] not in (None, 1000):
        raise Skip(f"no sampler {case['kind']} of {case['num_train_timesteps']} levels here yet")
    method = {"F": "euler", "D": "dpm++", "U": "unipc"}[found[1][0]]
    got = program("flow", case.path, "{out}", method, "wan" if found[2] == "Wan original" else "library", case["steps"], case["shift"])
    for name, golden in case.group("out.").items():
        case.compare(f"out.{name}", got[f"out.{name}"], golden, OUT)
    if "out.timesteps" in case.tensors:
        case.same("out.timesteps to the last bit", torch.equal(got["out.timesteps"].double(), case.tensors["out.timesteps"].double()))


# ---- Autoencoders ----------------------------------------------------------------------------------------------------


@known(case="sdvae_.*")
def sd_autoencoder(case):
    config = {"_class_name": "AutoencoderKL"} | {k: v for k, v in case.config.items() if k not in ("case", "note")}
    got = run_model("autoencoder", config, case.group("param."), {f"in.{n}": x for n, x in case.group("in.").items()})
    for name, golden in case.group("out.").items():
        gradient = name.startswith("grad.")
        found = got.get(name if gradient else f"out.{name}")
        if found is None:
            case.same(f"out.{name}, which nothing has", False)
        else:
            case.compare(f"out.{name}", found, golden, GRAD if gradient else OUT)


@known(case="wanvae_.*")
def wan_autoencoder(case):
    config = {"_class_name": "AutoencoderKLWan"} | {k: v for k, v in case.config.items() if k not in ("case", "note")}
    got = run_model("clips", config, case.group("param."), {f"in.{n}": x for n, x in case.group("in.").items()})
    for name, golden in case.group("out.").items():
        if f"out.{name}" not in got:
            case.same(f"out.{name}, which nothing has", False)
        else:
            case.compare(f"out.{name}", got[f"out.{name}"], golden, OUT)


@known(case="dcae_.*")
def dc_autoencoder(case):
    config = {"_class_name": "AutoencoderDC"} | {k: v for k, v in case.config.items() if k not in ("case", "note")}
    got = run_model("deep", config, case.group("param."), {f"in.{n}": x for n, x in case.group("in.").items()})
    for name, golden in case.group("out.").items():
        if f"out.{name}" not in got:
            case.same(f"out.{name}, which nothing has", False)
        else:
            case.compare(f"out.{name}", got[f"out.{name}"], golden, OUT)
