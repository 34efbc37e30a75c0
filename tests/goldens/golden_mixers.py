"""Mixers of language models, one layer each: outputs, gradients, and what a layer remembers after reading in pieces."""
import json
import pathlib
import tempfile

import torch

from golden_case import GRAD, OUT, known, program, write_safetensors

KEPT = ("num_heads", "num_kv_heads", "head_dim", "num_v_heads", "expand_k", "expand_v", "expand", "feature_map", "use_short_conv", "conv_size",
        "conv_kernel", "state_size", "n_groups", "time_step_rank", "time_step_limit", "use_bias", "use_conv_bias", "use_gate", "use_output_gate",
        "gate_logit_normalizer", "gate_low_rank_dim", "clamp_min", "allow_neg_eigval", "output_gate_activation", "norm_eps", "hidden_size")
# keys of a layer that the model's config names alike, but as another default where it is absent
OWN = {"gla": {"attn_extends": "gla"}}


def config_of(case):
    said = {key: case[key] for key in KEPT if case[key] is not None}
    return {"model_type": case["layer"], "num_hidden_layers": 1, "vocab_size": 4, "tie_word_embeddings": True} | OWN.get(case["layer"], {}) | said


def states_of(case, got, name, golden):
    """The state of each sequence, [H,K,V] here; transposed where a file has [H,V,K], as Mamba2's."""
    batch = [got[f"out.state.{b}"] for b in range(golden.shape[0])]
    if case["layer"] == "mamba2":
        H, P, N = golden.shape[1:]
        batch = [x.reshape(H, N, P).transpose(1, 2) for x in batch]
    case.compare(f"out.{name}", torch.stack([x.reshape(golden.shape[1:]) for x in batch]), golden, OUT)


@known(layer="gla|retnet|mamba2|mamba|gated_deltanet")
def mixer(case):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config_of(case)))
        write_safetensors(folder / "in.safetensors", {n: x for n, x in case.tensors.items() if n.startswith(("in.", "param.", "dout."))})
        got = program("mixer", folder / "config.json", folder / "in.safetensors", "{out}")
    case.compare("out.y", got["out.y"], case.tensors["out.y"], OUT)
    case.compare("out.y (in pieces)", got["out.streamed"], case.tensors["out.y"], OUT)
    for name, golden in case.group("out.").items():
        if name in ("recurrent_state", "ssm_state"):
            states_of(case, got, name, golden)
        elif name == "conv_state":  # its first input is of no use to anybody
            pasts = [got[f"out.past0.{b}"].T for b in range(golden.shape[0])]
            case.compare("out.conv_state", torch.stack(pasts), golden[:, :, 1:], OUT)
        elif name != "y":
            case.same(f"out.{name}, which nothing has", False)
    for name, golden in case.group("grad.").items():
        found = got.get(f"grad.{name}", got.get(f"grad.param.{name}", got.get(f"grad.in.{name}")))
        if found is None:
            case.same(f"grad.{name}, which nothing has", False)
        else:
            case.compare(f"grad.{name}", found, golden, GRAD)
