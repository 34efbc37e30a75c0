"""The baselines of vision models against their definitions: outputs and gradients, layouts, dtypes, errors."""
import numpy as np
import pytest
import torch

import mhla
import reference

NAMES = ("focused_attention", "inline_attention", "mala_attention", "rala_attention")


def problem(name, B=2, T=20, H=2, K=8, V=6, dtype=torch.float32):
    """Leaves of the call, and the options that the reference knows as well."""
    g = torch.Generator().manual_seed(3)
    leaves = [torch.randn(B, T, H, d, generator=g).to(dtype).requires_grad_() for d in (K, K, V)]
    if name == "focused_attention":
        leaves.append(torch.randn(H * K, generator=g, requires_grad=True))
    options = {}
    if name in ("mala_attention", "rala_attention"):
        options["rope"] = tuple(map(torch.from_numpy, mhla.rope_table((4, T // 4), (K // 2, K // 2))))
    return leaves, options


def compare(name, leaves, options, tolerance):
    do = torch.randn(*leaves[0].shape[:3], leaves[2].shape[3], generator=torch.Generator().manual_seed(4))
    exact = [x.detach().double().requires_grad_() for x in leaves]
    want = getattr(reference, name)(*exact, **options)
    got = getattr(mhla, name)(*leaves, **options)
    assert got.dtype == leaves[0].dtype
    results = zip((got, *torch.autograd.grad(got, leaves, do.to(got.dtype))),
                  (want, *torch.autograd.grad(want, exact, do.to(got.dtype).double())))
    for i, (a, b) in enumerate(results):
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max(), f"{name}: {i}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [{}, dict(B=1, T=68, H=3, K=64, V=64), dict(T=4, H=1, K=4, V=33)])
def test_against_the_definition(name, sizes):
    leaves, options = problem(name, **sizes)
    compare(name, leaves, options, 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name):
    leaves, options = problem(name, dtype=torch.bfloat16)
    compare(name, leaves, options, 1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_and_fused_layout_agree(name):
    leaves, options = problem(name, V=8)
    q, k, v, *rest = (x.detach() for x in leaves)
    function = getattr(mhla, name)
    plain = function(q, k, v, *rest, **options)
    fused = torch.stack([q, k, v], 2).flatten(3)
    slices = [fused[:, :, i].unflatten(-1, (2, 8)) for i in range(3)]
    assert torch.equal(function(*slices, *rest, **options), plain)
    arrays = {key: tuple(t.numpy() for t in pair) for key, pair in options.items()}
    numpy = function(*(x.numpy() for x in (q, k, v, *rest)), **arrays)
    assert isinstance(numpy, np.ndarray) and (numpy == plain.numpy()).all()


@pytest.mark.parametrize("name", NAMES)
def test_broadcast_inputs(name):
    leaves, options = problem(name)
    q, k, v, *rest = (x.detach() for x in leaves)
    function = getattr(mhla, name)
    given = [q[:, :1].expand_as(q), k[:, :, :1].expand_as(k), v[:1, :1].expand_as(v)]
    assert torch.equal(function(*given, *rest, **options), function(*(x.contiguous() for x in given), *rest, **options))


def test_focus_has_a_power_and_a_shape():
    (q, k, v, focus), _ = problem("focused_attention")
    for power in (1, 2, 4):
        want = reference.focused_attention(*(x.double() for x in (q, k, v, focus)), power=power)
        assert torch.allclose(mhla.focused_attention(q, k, v, focus, power=power).double(), want, atol=1e-5)
    for power in (0, 1.5, 99):  # none of them becomes another one in silence
        with pytest.raises(mhla.Error, match=f"power is {power}: expected a whole number, 1 to 16"):
            mhla.focused_attention(q, k, v, focus, power=power)
    with pytest.raises(mhla.Error, match="k ndarray, v Tensor: all three have to be of one library"):
        mhla.focused_attention(q, k.detach().numpy(), v, focus)
    with pytest.raises(mhla.Error, match="focus has shape .15,.: expected .16,."):
        mhla.focused_attention(q, k, v, focus[:-1])
    with pytest.raises(mhla.Error, match="kv_heads is 1"):
        mhla.inline_attention(q, k[:, :, :1], v[:, :, :1])
