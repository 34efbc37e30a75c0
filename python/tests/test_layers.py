"""The recurrent layers of mhla.nn: goldens with all gradients, names of parameters, decoding, padding, packing, bad input."""
import json
import os
import pathlib
import pickle

import pytest
import torch
from test_ops import close

import mhla
from mhla import nn

ROOT = pathlib.Path(__file__).parents[2]
GOLDENS = pathlib.Path(os.environ.get("MHLA_GOLDENS", ROOT.parent / "shared" / "goldens")) / "lm" / "layers"
KINDS = {"gla": nn.GatedLinearAttention, "retnet": nn.MultiScaleRetention, "mamba": nn.Mamba, "mamba2": nn.Mamba2,
         "gated_deltanet": nn.GatedDeltaNet}
SMALL = {"gla": dict(hidden_size=32, num_heads=2), "gla_conv": dict(hidden_size=32, num_heads=4, num_kv_heads=2, use_short_conv=True),
         "retnet": dict(hidden_size=32, num_heads=4, num_kv_heads=2), "mamba": dict(hidden_size=32, intermediate_size=64, state_size=8),
         "mamba2": dict(hidden_size=32, head_dim=16, state_size=8, n_groups=2),
         "gated_deltanet": dict(hidden_size=32, head_dim=12, num_heads=2, num_v_heads=4)}


def layer(name, **more):
    torch.manual_seed(0)
    return KINDS[name.split("_conv")[0]](**SMALL[name], **more)


def goldens():
    safetensors = pytest.importorskip("safetensors")
    found = []
    for path in sorted(GOLDENS.glob("*.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            case = json.loads(file.metadata()["config"])
        if case["layer"] in KINDS:
            found.append(pytest.param(path, case, id=path.stem))
    return found


@pytest.mark.skipif(not GOLDENS.exists(), reason="no goldens: set MHLA_GOLDENS")
@pytest.mark.parametrize("path, case", goldens())
def test_goldens(path, case):
    from safetensors.torch import load_file

    tensors = load_file(path)
    known = {"hidden_size", "num_heads", "norm_eps", "expand_k", "expand_v", "gate_logit_normalizer", "num_kv_heads", "use_short_conv",
             "conv_size", "feature_map", "clamp_min", "head_dim", "num_v_heads", "use_gate", "allow_neg_eigval", "intermediate_size", "expand",
             "state_size", "n_groups", "conv_kernel", "chunk_size"}
    options = {n: x for n, x in case.items() if n in known}
    if case["layer"] == "mamba":
        options["dt_rank"] = case["time_step_rank"]
        options = {n: x for n, x in options.items() if n not in ("expand", "norm_eps")}
    module = KINDS[case["layer"]](**options, layer_idx=0)
    module.load_state_dict({n[6:]: x for n, x in tensors.items() if n.startswith("param.")}, strict=True)
    x, cache = tensors["in.x"].requires_grad_(), nn.Cache()
    y, _, cache = module(x, past_key_values=cache, use_cache=True)
    entry = cache[0]
    got = {"y": y, "recurrent_state": entry["recurrent_state"], "ssm_state": entry["recurrent_state"], "conv_state": entry["conv_state"]}
    names = [n[4:] for n in tensors if n.startswith("out.")]
    for n in names:
        close(got[n], tensors["out." + n], n)
    arriving = [n for n in names if "dout." + n in tensors]
    leaves = {"x": x} | dict(module.named_parameters())
    wanted = [n for n in tensors if n.startswith("grad.")]
    grads = torch.autograd.grad([got[n] for n in arriving], [leaves[n[5:].removeprefix("in.")] for n in wanted],
                                [tensors["dout." + n] for n in arriving])
    for n, g in zip(wanted, grads):
        close(g, tensors[n], n)


@pytest.mark.parametrize("name", SMALL)
def test_decoding(name):
    """A prompt, then token by token, equals the whole; so does any split."""
    module = layer(name, layer_idx=3)
    x = torch.randn(2, 20, 32)
    with torch.no_grad():
        whole, nothing, none = module(x)
        assert nothing is None and none is None
        for pieces in ([9] + [1] * 11, [1, 2, 3, 14]):
            cache = nn.Cache()
            parts = [module(part, past_key_values=cache, use_cache=True)[0] for part in x.split(pieces, 1)]
            close(torch.cat(parts, 1), whole)
            assert cache.get_seq_length(3) == 20 and cache.get_seq_length(0) == 0


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", SMALL)
def test_padding(name, side):
    """A padded batch equals its sequences alone, in a prompt and in the steps that follow it."""
    module = layer(name, layer_idx=0)
    lengths, x = [12, 7, 1], torch.randn(3, 12, 32)
    mask = torch.stack([(torch.arange(12) >= 12 - n) if side == "left" else (torch.arange(12) < n) for n in lengths]).long()
    more = torch.randn(3, 2, 32)
    cache = nn.Cache()
    with torch.no_grad():
        y, _, _ = module(x, mask, past_key_values=cache, use_cache=True)
        mask = torch.cat([mask, torch.ones(3, 2, dtype=torch.long)], 1)
        z, _, _ = module(more, mask, past_key_values=cache, use_cache=True)
        for i, n in enumerate(lengths):
            part = x[i : i + 1, 12 - n :] if side == "left" else x[i : i + 1, :n]
            alone = module(torch.cat([part, more[i : i + 1]], 1))[0]
            close(y[i : i + 1, 12 - n :] if side == "left" else y[i : i + 1, :n], alone[:, :n])
            close(z[i : i + 1], alone[:, n:])
            assert not (y[i, : 12 - n] if side == "left" else y[i, n:]).any()


@pytest.mark.parametrize("name", SMALL)
def test_packing_and_gradients(name):
    module = layer(name)
    x = torch.randn(1, 30, 32, requires_grad=True)
    packed = module(x, cu_seqlens=torch.tensor([0, 13, 30]))[0]
    apart = torch.cat([module(x[:, :13])[0], module(x[:, 13:])[0]], 1)
    close(packed, apart)
    inputs = [x, *module.parameters()]
    for a, b in zip(torch.autograd.grad(packed.square().sum(), inputs), torch.autograd.grad(apart.square().sum(), inputs)):
        close(a, b)


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16(name):
    module, x = layer(name), torch.randn(1, 30, 32)
    expected = module(x)[0]
    got = module.bfloat16()(x.bfloat16())[0]
    assert got.dtype is torch.bfloat16
    close(got, expected, tolerance=4e-2)


def test_compile():
    torch._dynamo.reset()
    x = torch.randn(1, 30, 32)
    for name in SMALL:
        module = layer(name)
        close(torch.compile(module, fullgraph=True, backend="aot_eager")(x)[0], module(x)[0], name)


def test_pickles():
    x = torch.randn(1, 5, 32)
    for name in SMALL:
        module = layer(name, layer_idx=0)
        cache = nn.Cache()
        module(x, past_key_values=cache, use_cache=True)
        twin, cache2 = pickle.loads(pickle.dumps((module, cache)))
        assert torch.equal(twin(x, past_key_values=cache2, use_cache=True)[0], module(x, past_key_values=cache, use_cache=True)[0])


def test_options():
    """Those of the constructors that change names or results."""
    assert "g_norm.weight" in nn.GatedLinearAttention(hidden_size=32, num_heads=2, fuse_norm=False).state_dict()
    assert "g_norm.weight" in nn.GatedLinearAttention(hidden_size=32, num_heads=2, gate_fn="gelu").state_dict()
    assert "g_proj.weight" not in nn.MultiScaleRetention(hidden_size=32, num_heads=2, use_output_gate=False).state_dict()
    assert nn.GatedLinearAttention(hidden_size=32, num_heads=2, use_short_conv=True, conv_bias=True).q_conv1d.bias.shape == (16,)
    assert not [n for n in nn.MultiScaleRetention(hidden_size=32, num_heads=2, elementwise_affine=False).state_dict() if "norm" in n]
    assert nn.Mamba2(hidden_size=32, head_dim=16, D_has_hdim=True).D.shape == (64,)
    assert "norm.weight" not in nn.Mamba2(hidden_size=32, head_dim=16, rmsnorm=False).state_dict()
    x = torch.randn(1, 9, 32)
    for options in (dict(rmsnorm=False), dict(norm_before_gate=True), dict(D_has_hdim=True), dict(norm_group_size=32), dict(conv_init=0.1)):
        assert nn.Mamba2(hidden_size=32, head_dim=16, state_size=8, **options)(x)[0].shape == x.shape
    fused, apart = (nn.GatedLinearAttention(hidden_size=32, num_heads=2, fuse_norm=f) for f in (True, False))
    apart.load_state_dict({n.replace("g_norm_swish_gate", "g_norm"): p for n, p in fused.state_dict().items()})
    close(fused(x)[0], apart(x)[0])
    for name in ("A_log", "dt_bias"):
        assert getattr(nn.GatedDeltaNet(hidden_size=32, head_dim=8, num_heads=2), name)._no_weight_decay


BAD = {
    "mode": (lambda: nn.GatedLinearAttention(mode="fast"), "mode is 'fast'"),
    "heads": (lambda: nn.GatedLinearAttention(hidden_size=32, num_heads=3), "num_heads is 3: expected a divisor"),
    "kv heads": (lambda: nn.MultiScaleRetention(hidden_size=32, num_heads=4, num_kv_heads=3), "num_kv_heads is 3"),
    "expand_k": (lambda: nn.GatedLinearAttention(hidden_size=30, expand_k=0.33), "expected a whole number"),
    "feature map": (lambda: nn.GatedLinearAttention(hidden_size=32, feature_map="cos"), "feature_map is 'cos'"),
    "groups": (lambda: nn.Mamba2(hidden_size=32, head_dim=16, n_groups=3), "n_groups is 3"),
    "num_heads of Mamba2": (lambda: nn.Mamba2(num_heads=3, hidden_size=32, head_dim=16), "num_heads is 3"),
    "v heads": (lambda: nn.GatedDeltaNet(hidden_size=32, num_heads=2, num_v_heads=3), "num_heads is 2: expected a divisor of num_v_heads, 3"),
    "hidden_act": (lambda: nn.Mamba(hidden_act="relu"), "hidden_act is 'relu'"),
    "a mask of three axes": (lambda: layer("gla")(torch.ones(1, 4, 32), torch.ones(1, 4, 4)), "attention_mask has shape"),
    "no layer_idx": (lambda: layer("gla")(torch.ones(1, 4, 32), past_key_values=nn.Cache()), "needs a layer_idx"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    function, message = BAD[name]
    with pytest.raises(mhla.Error, match=message):
        function()
