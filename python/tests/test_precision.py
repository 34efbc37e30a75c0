"""The precision of products: by argument, by autocast, by the dtype of the tensors; forward and backward, of every operator that has one.
Products of bfloat16 are emulated, so that every CPU has them."""
import numpy as np
import pytest
import torch

import mhla
import mhla.nn
from mhla import ops

MIX, CROSS, CAUSAL = (torch.from_numpy(m) for m in (mhla.mix_init("paper", (2, 2)), mhla.mix_init("paper", (2, 2), key_blocks=(4, 1)),
                                                     mhla.mix_init("causal", 4)))
CALLS = {
    "attention": lambda q, k, v, **p: mhla.attention(q, k, v, MIX, (16, 8), (2, 2), **p),
    "cross": lambda q, k, v, **p: mhla.attention(q, k, v, CROSS, (16, 8), (2, 2), key_grid=(128, 1), key_blocks=(4, 1), **p),
    "causal": lambda q, k, v, **p: mhla.causal_attention(q, k, v, CAUSAL, chunk_size=32, **p)[0],
    "linear": lambda q, k, v, **p: mhla.linear_attention(q, k, v, **p)[0],
    "linear-causal": lambda q, k, v, **p: mhla.linear_attention(q, k, v, causal=True, normalize=False, **p)[0],
    "softmax": lambda q, k, v, **p: mhla.softmax_attention(q, k, v, **p),
    "focused": lambda q, k, v, **p: mhla.focused_attention(q, k, v, torch.zeros(128), **p),
    "inline": lambda q, k, v, **p: mhla.inline_attention(q, k, v, **p),
    "mala": lambda q, k, v, **p: mhla.mala_attention(q, k, v, **p),
    "rala": lambda q, k, v, **p: mhla.rala_attention(q, k, v, **p),
}
DECAYS = -torch.rand(1, 128, 2, generator=torch.Generator().manual_seed(7))
RECURRENCES = {
    "gla": lambda q, k, v: ops.chunk_gla(q, k, v, DECAYS[..., None].expand(1, 128, 2, 64))[0],
    "simple-gla": lambda q, k, v: ops.chunk_simple_gla(q, k, v, DECAYS)[0],
    "gated-delta": lambda q, k, v: ops.chunk_gated_delta_rule(q, k, v, DECAYS, -DECAYS, use_qk_l2norm_in_kernel=True)[0],
}


@pytest.fixture(autouse=True)
def emulated():
    mhla.set_isa("plain-bf16")
    yield
    mhla.set_isa(None)


def given():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(1, 128, 2, 64, generator=generator) for _ in range(4)]


def both(call, **options):
    """The output and the gradients of q, k and v, in one row."""
    *leaves, do = given()
    leaves = [x.requires_grad_() for x in leaves]
    o = call(*leaves, **options)
    o.backward(do)
    return [x.detach().flatten() for x in (o, *(x.grad for x in leaves))]


def autocast(call, dtype=torch.bfloat16):
    with torch.autocast("cpu", dtype):
        return both(call)


def rounded(found, exact):
    """Each of them is near the exact one, and not as near as float32."""
    return all(3e-4 * b.norm() < (a - b).norm() < 3e-2 * b.norm() for a, b in zip(found, exact))


@pytest.mark.parametrize("name", CALLS)
def test_the_argument_and_autocast(name):
    exact = both(CALLS[name])
    found = both(CALLS[name], precision="bfloat16")
    assert rounded(found, exact)
    for same in (autocast(CALLS[name]), both(CALLS[name], precision=torch.bfloat16)):
        assert all(torch.equal(a, b) for a, b in zip(found, same))
    for same in (autocast(CALLS[name], torch.float16), both(CALLS[name], precision="float32")):
        assert all(torch.equal(a, b) for a, b in zip(exact, same))


@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences_under_autocast(name):
    assert rounded(autocast(RECURRENCES[name]), both(RECURRENCES[name]))


# the forward pass of the others multiplies bfloat16 tensors as they are
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"attention", "cross", "linear"}))
def test_float32_products_of_bfloat16_tensors(name):
    q, k, v, _ = (x.bfloat16() for x in given())
    found = CALLS[name](q, k, v, precision="float32")
    assert found.dtype is torch.bfloat16
    mhla.set_isa("plain")  # which multiplies no bfloat16
    assert torch.equal(found, CALLS[name](q, k, v))


def test_modules_under_autocast():
    torch.manual_seed(0)
    layer, x = mhla.nn.GatedLinearAttention(hidden_size=128, num_heads=2), torch.randn(1, 128, 128)
    exact = layer(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)[0]
    assert 1e-3 * exact.norm() < (found.float() - exact).norm() < 5e-2 * exact.norm()


def test_numpy():
    q, k, v, _ = (x.numpy() for x in given())
    exact, found = (mhla.attention(q, k, v, MIX.numpy(), (16, 8), (2, 2), precision=p) for p in (None, "bfloat16"))
    assert 3e-4 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 3e-2
    assert np.array_equal(exact, mhla.attention(q, k, v, MIX.numpy(), (16, 8), (2, 2), precision="float32"))


def test_compiled():
    q, k, v, _ = given()
    compiled = torch.compile(CALLS["causal"], fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, v, precision="bfloat16"), CALLS["causal"](q, k, v, precision="bfloat16"))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(q, k, v), CALLS["causal"](q, k, v))


@pytest.mark.parametrize("wrong", ["float16", "tensors", torch.float64, 8])
def test_other_names_are_refused(wrong):
    q, k, v, _ = given()
    with pytest.raises(mhla.Error, match="precision is .*: expected one of float32, bfloat16"):
        mhla.attention(q, k, v, MIX, (16, 8), (2, 2), precision=wrong)
