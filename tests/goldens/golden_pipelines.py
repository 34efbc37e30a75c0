"""Golden cases of whole pipelines: the folder that diffusers would write, made of a case's parameters, and everything from the prompt to
the picture. The words of a prompt are characters that a tokenizer made for the case turns into its ids."""
import json
import pathlib
import tempfile

import torch

from golden_case import OUT, Skip, known, program, write_safetensors


def word(token):
    """A character without cases or other forms, which cleaning leaves as it is."""
    return chr(0x4E00 + token)


def tokenizer(tokens, first=None, last=None):
    special = [{"id": i, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i in (first, last) if i is not None]
    vocabulary = {f"<{i}>" if i in (first, last) else word(i): i for i in range(tokens)}
    template = [{"SpecialToken": {"id": f"<{first}>", "type_id": 0}}] * (first is not None) + [{"Sequence": {"id": "A", "type_id": 0}}]
    template += [{"SpecialToken": {"id": f"<{last}>", "type_id": 0}}] * (last is not None)
    return {"version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": None, "decoder": None,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            "post_processor": {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens":
                               {s["content"]: {"id": s["content"], "ids": [s["id"]], "tokens": [s["content"]]} for s in special}}}


SCHEDULERS = {"dpmpp_flow": {"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": True},
              "unipc_flow": {"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": True}}


def write_folder(folder, case, name, classes, configs, words):
    sampler = case["sampler"]
    if sampler["kind"] not in SCHEDULERS:
        raise Skip(f"no scheduler {sampler['kind']}")
    index = {"_class_name": name} | {part: ["diffusers", c] for part, c in classes.items()}
    (folder / "model_index.json").write_text(json.dumps(index))
    for part, config in configs.items():
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / part / "model.safetensors", case.group(f"param.{part}."))
    for part, file, tree in (("scheduler", "scheduler_config.json", SCHEDULERS[sampler["kind"]] | {"flow_shift": sampler["shift"]}),
                             ("tokenizer", "tokenizer.json", words)):
        (folder / part).mkdir()
        (folder / part / file).write_text(json.dumps(tree))


def compare(case, name, classes, configs, words, prompt, negative, instruction, rows, pixels):
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        write_folder(folder, case, name, classes, configs, words)
        write_safetensors(folder / "in.safetensors", {"in.noise": case.tensors["in.noise"]})
        texts = ["".join(map(word, ids)) for ids in (prompt, negative, instruction)]
        got = program("pipeline", folder, folder / "in.safetensors", "{out}", *texts, rows, case["sampler"]["steps"], case["sampler"]["cfg"])
    for part in ("text_rows", "negative_rows"):  # the rows that count; the goldens have padding as well
        golden, own = case.tensors[f"out.{part}"], got[f"out.{part}"]
        case.compare(f"out.{part}", own, golden[:, : own.shape[1]].contiguous(), OUT)
    for i in range(case["sampler"]["steps"]):
        case.compare(f"out.latent.{i}", got[f"out.latent.{i}"], case.tensors[f"out.latent.{i}"], OUT)
    golden = case.tensors[f"out.{pixels}"]
    own = got["out.pixels"].clamp(-1, 1) if float(golden.abs().max()) <= 1 else got["out.pixels"]
    case.compare(f"out.{pixels}", own, golden, OUT)
    bytes_ = ((got["out.pixels"] / 2 + 0.5).clamp(0, 1) * 255).round()
    off = int((bytes_ - case.tensors[f"out.{pixels}_u8"].double()).abs().max())
    case.same(f"out.{pixels}_u8: off by {off}", off <= 1)


@known(case="e2e_sana")
def sana(case):
    """Padding of the prompt is 0, and so are no tokens of it."""
    n = int(case.tensors["in.attention_mask"].sum())
    ids, chi = case.tensors["in.input_ids"][0, :n].tolist(), case["chi_tokens"]
    bos = ids[0]
    negative = case.tensors["in.negative_ids"][0, 1 : int(case.tensors["in.negative_mask"].sum())].tolist()
    vocabulary = len(case.tensors["param.text_encoder.embed_tokens.weight"])
    text = {"model_type": "gemma2", "architectures": ["Gemma2Model"], "vocab_size": vocabulary, "max_position_embeddings": 8192,
            "intermediate_size": len(case.tensors["param.text_encoder.layers.0.mlp.up_proj.weight"]), "bos_token_id": bos} | case["text"]
    vae = {"_class_name": "AutoencoderDC"} | case["vae"]
    vae |= {name.replace("decoder", "encoder"): value for name, value in vae.items()}  # it is not there, but has as many stages
    configs = {"text_encoder": text, "transformer": {"_class_name": "SanaTransformer2DModel"} | case["transformer"], "vae": vae}
    classes = {"text_encoder": "Gemma2Model", "transformer": "SanaTransformer2DModel", "vae": "AutoencoderDC"}
    compare(case, "SanaPipeline", classes, configs, tokenizer(vocabulary, first=bos), ids[chi:], negative, ids[1:chi],
            case["max_text_rows"], "image")


@known(case="e2e_wan_mhla")
def wan(case):
    """Texts end with a token of their own; zeros behind it are no part of them."""
    end = 1

    def until_end(ids):
        ids = ids[0].tolist()
        return ids[: ids.index(end)]

    parameters, model = case.group("param.transformer."), case["transformer"]
    frames, rows, columns = case.tensors["in.noise"].shape[2:]
    first = next(i for i in range(model["num_layers"]) if f"blocks.{i}.self_attn.block_attn.conv.weight" in parameters)
    others = [i for i in range(model["num_layers"]) if f"blocks.{i}.self_attn.block_attn.conv.weight" not in parameters]
    period = 0 if not others else model["num_layers"] if len(others) == 1 else others[1]
    transformer = {"model_type": "mhla_wan", "attention": "mhla", "hybrid": period, "frames": frames, "image": [rows, columns],
                   "channels": case.tensors["in.noise"].shape[1], "patch": parameters["patch_embedding.weight"].shape[-1],
                   "dim": model["dim"], "ffn": model["ffn_dim"], "depth": model["num_layers"], "heads": model["num_heads"],
                   "eps": 1e-6, "frequencies": model["freq_dim"], "text_width": model["text_dim"], "text_length": case["text_len"],
                   "classes": 0, "blocks": model["block_layout"], "gate": f"blocks.{first}.self_attn.g.weight" in parameters,
                   "lepe": f"blocks.{first}.self_attn.lepe.weight" in parameters,
                   "denominator": "released" if model["norm_output"] else "none"}
    configs = {"text_encoder": {"model_type": "umt5"} | case["text"], "transformer": transformer,
               "vae": {"_class_name": "AutoencoderKLWan"} | case["vae"]}
    classes = {"text_encoder": "UMT5EncoderModel", "transformer": "WanTransformer3DModel", "vae": "AutoencoderKLWan"}
    compare(case, "WanPipeline", classes, configs, tokenizer(case["text"]["vocab_size"], last=end),
            until_end(case.tensors["in.input_ids"]), until_end(case.tensors["in.negative_ids"]), [], case["text_len"], "video")
