"""Every kind of derivative that PyTorch can ask for, of each operator, against the definitions in double: forward mode, torch.func,
second derivatives. What reverse mode gives is in test_random.py and test_vision.py."""
import pytest
import reference
import torch
from torch.autograd import forward_ad

import mhla

B, T, H, K, V, C = 2, 12, 2, 4, 3, 4
ROPE = tuple(map(torch.from_numpy, mhla.rope_table((3, 4), (2, 2))))
IDS = reference.block_of_tokens((3, 4), (1, 2), "raster")
NINE, THREE = reference.block_of_tokens((9,), (2,), "raster"), reference.block_of_tokens((3, 4), (3, 1), "raster")
FIRST = tuple(map(torch.from_numpy, mhla.rope_table(9, 4)))
OFFSETS, ORDER = torch.tensor([0, 6, 12]), IDS.argsort(stable=True)
OPTIONS = dict(feature="elu", denominator="eq4", rope=ROPE)

# ours, the definition, the shape of the learned parameter
OPS = {
    "attention": (lambda q, k, v, m: mhla.attention(q, k, v, m, (3, 4), (1, 2), **OPTIONS),
                  lambda q, k, v, m: reference.attention(q, k, v, m, IDS, **OPTIONS), (2, 2)),
    "released": (lambda q, k, v, m: mhla.attention(q, k, v, m, (3, 4), (1, 2), feature="elu", denominator="released"),
                 lambda q, k, v, m: reference.attention(q, k, v, m, IDS, feature="elu", denominator="released"), (2, 2)),
    "offsets": (lambda q, k, v, m: mhla.attention(q, k, v, m, block_offsets=OFFSETS, permutation=ORDER, feature="elu"),
                lambda q, k, v, m: reference.attention(q, k, v, m, IDS, feature="elu"), (2, 2)),
    "cross": (lambda q, k, v, m: mhla.attention(q[:, :9], k, v, m, 9, 2, key_grid=(3, 4), key_blocks=(3, 1), feature="elu", rope=FIRST,
                                               key_rope=ROPE),
              lambda q, k, v, m: reference.attention(q[:, :9], k, v, m, NINE, feature="elu", rope=FIRST, key_ids=THREE, key_rope=ROPE),
              (2, 3)),
    "causal": (lambda q, k, v, m: mhla.causal_attention(q, k, v, m, chunk_size=C, **OPTIONS)[0],
               lambda q, k, v, m: reference.causal_attention(q, k, v, m, None, C, **OPTIONS)[0], (3, 3)),
    "linear": (lambda q, k, v, m: mhla.linear_attention(q, k, v, feature="elu", rope=ROPE)[0],
               lambda q, k, v, m: reference.linear_attention(q, k, v, feature="elu", rope=ROPE)[0], ()),
    "linear-causal": (lambda q, k, v, m: mhla.linear_attention(q, k, v, feature="elu", causal=True)[0],
                      lambda q, k, v, m: reference.linear_attention(q, k, v, feature="elu", causal=True)[0], ()),
    "softmax": (lambda q, k, v, m: mhla.softmax_attention(q, k, v, causal=True, window=5, rope=ROPE),
                lambda q, k, v, m: reference.softmax_attention(q, k, v, None, True, 5, ROPE), ()),
    "focused": (lambda q, k, v, m: mhla.focused_attention(q, k, v, m, feature_eps=0.1),
                lambda q, k, v, m: reference.focused_attention(q, k, v, m, feature_eps=0.1), (H * K,)),
    "inline": (lambda q, k, v, m: mhla.inline_attention(q, k, v), lambda q, k, v, m: reference.inline_attention(q, k, v), ()),
    "mala": (lambda q, k, v, m: mhla.mala_attention(q, k, v, rope=ROPE),
             lambda q, k, v, m: reference.mala_attention(q, k, v, rope=ROPE), ()),
    "rala": (lambda q, k, v, m: mhla.rala_attention(q, k, v, rope=ROPE),
             lambda q, k, v, m: reference.rala_attention(q, k, v, rope=ROPE), ()),
}
EACH = pytest.mark.parametrize("name", OPS)


def problem(name, batch=B):
    torch.manual_seed(1)
    ours, exact, shape = OPS[name]
    given = [torch.randn(batch, T, H, K), torch.randn(batch, T, H, K), torch.randn(batch, T, H, V), torch.rand(shape) + 0.2]
    n = 4 if shape else 3
    pad = [None] * (4 - n)
    return (lambda *x: ours(*x, *pad)), (lambda *x: exact(*x, *pad)), given[:n]


def double(tensors):
    return [x.double() for x in tensors]


def close(got, want, tolerance=1e-4):
    assert got.shape == want.shape and (got.double() - want).abs().max() <= tolerance * want.abs().max()


@EACH
def test_forward_mode_keeps_the_tangent(name):
    ours, exact, x = problem(name)
    tangents = [torch.randn_like(y) for y in x]
    o, t = torch.func.jvp(exact, tuple(double(x)), tuple(double(tangents)))
    for got in (torch.func.jvp(ours, tuple(x), tuple(tangents)),):
        close(got[0], o)
        close(got[1], t)
    with forward_ad.dual_level():
        dual = ours(*(forward_ad.make_dual(y, d) for y, d in zip(x, tangents)))
        close(forward_ad.unpack_dual(dual).tangent, t)
        leaf = [y.clone().requires_grad_() for y in x]  # reverse over forward as well
        dual = ours(*(forward_ad.make_dual(y, d) for y, d in zip(leaf, tangents)))
        close(forward_ad.unpack_dual(dual).tangent, t)
        one = ours(forward_ad.make_dual(x[0], tangents[0]), *x[1:])
        assert forward_ad.unpack_dual(one).tangent is not None
        assert forward_ad.unpack_dual(ours(*x)).tangent is None


@EACH
def test_func_grad_and_vmap(name):
    ours, exact, x = problem(name)
    every = tuple(range(len(x)))

    def loss(f):
        return lambda *y: f(*y).square().sum()

    for got, want in zip(torch.func.grad(loss(ours), every)(*x), torch.func.grad(loss(exact), every)(*double(x))):
        close(got, want)
    many = [torch.stack([y, 2 * y, -y]) for y in x[:3]]
    dims = (0, 0, 0, *[None] * (len(x) - 3))
    close(torch.func.vmap(ours, dims)(*many, *x[3:]), torch.stack([exact(*double(y), *double(x[3:])) for y in zip(*many)]))
    per_sample = torch.func.vmap(torch.func.grad(loss(ours), every), dims)(*many, *x[3:])
    for i, got in enumerate(per_sample):
        want = torch.stack([torch.func.grad(loss(exact), every)(*double(y), *double(x[3:]))[i] for y in zip(*many)])
        close(got, want)


@EACH
def test_jacobians_and_hessians(name):
    ours, exact, x = problem(name, batch=1)
    rest, twin = x[1:], double(x[1:])

    def of(f, others):
        return lambda q: f(q, *others).square().sum((0, 1))

    q = x[0]
    want = torch.func.jacrev(of(exact, twin))(q.double())
    close(torch.func.jacrev(of(ours, rest))(q), want)
    close(torch.func.jacfwd(of(ours, rest))(q), want)
    close(torch.autograd.functional.jacobian(of(ours, rest), q), want)
    close(torch.autograd.functional.jacobian(of(ours, rest), q, vectorize=True), want)
    want = torch.func.hessian(lambda y: of(exact, twin)(y).sum())(q.double())
    close(torch.func.hessian(lambda y: of(ours, rest)(y).sum())(q), want)
    close(torch.autograd.functional.hessian(lambda y: of(ours, rest)(y).sum(), q), want)


@EACH
def test_second_derivatives(name):
    """A penalty on gradients: of all inputs, through all inputs; also where one tensor is q and k."""
    ours, exact, x = problem(name)
    results = []
    for f, given in ((ours, x), (exact, double(x))):
        leaves = [y.clone().requires_grad_() for y in given]
        first = torch.autograd.grad(f(*leaves).square().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
        q = given[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(f(q, q, *given[2:]).square().sum(), q, create_graph=True)
        results[-1] += torch.autograd.grad(first.square().sum(), q)
    largest = max(b.abs().max() for b in results[1])
    for a, b in zip(*results):
        assert (a.double() - b).abs().max() <= 2e-4 * largest


def test_second_derivatives_through_a_state():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 10, 2, 4))
    mix = torch.rand(4, 4)
    first, state = mhla.causal_attention(q[:, :5], k[:, :5], v[:, :5], mix, output_final_state=True, chunk_size=C)
    second, _ = mhla.causal_attention(q[:, 5:], k[:, 5:], v[:, 5:], mix, initial_state=state, chunk_size=C)
    whole, _ = mhla.causal_attention(q, k, v, mix, chunk_size=C)
    results = []
    for o in (torch.cat([first, second], 1), whole):
        (dk,) = torch.autograd.grad(o.square().sum(), k, create_graph=True)
        results.append(torch.autograd.grad(dk.square().sum(), (q, k, v)))
    for a, b in zip(*results):
        close(a, b.double())


def test_functional_call_and_per_sample_gradients_of_a_module():
    import mhla.nn

    torch.manual_seed(0)
    layer = mhla.nn.LMAttention(16, num_heads=2, chunk_size=4, num_chunks=4)
    x = torch.randn(3, 9, 16)
    parameters = dict(layer.named_parameters())

    def loss(p, one):
        return torch.func.functional_call(layer, p, (one[None],)).square().sum()

    many = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i in range(3):
        layer.zero_grad()
        layer(x[i : i + 1]).square().sum().backward()
        for name, p in layer.named_parameters():
            close(many[name][i], p.grad.double())


def test_divisions_among_the_arguments():
    """Integers that a transformation wraps with the rest; vmap cannot have a division for each."""
    _, _, (q, k, v, mix) = problem("attention", 1)
    calls = {"cu_seqlens": (lambda q, d: mhla.softmax_attention(q, k, v, cu_seqlens=d)),
             "block_offsets": (lambda q, d: mhla.attention(q, k, v, mix, block_offsets=d)),
             "key_block_offsets": (lambda q, d: mhla.attention(q, k, v, mix, (3, 4), (1, 2), key_block_offsets=d))}
    for name, call in calls.items():
        division = torch.tensor([0, 5, 12])
        leaf = q.clone().requires_grad_()
        want, = torch.autograd.grad(call(leaf, division).square().sum(), leaf)
        close(torch.func.grad(lambda q, d: call(q, d).square().sum())(q, division), want.double())
        close(torch.func.vmap(call, (0, None))(torch.stack([q, -q]), division)[0], call(q, division).double())
        with pytest.raises(mhla.Error, match=f"{name} is batched by vmap: expected the same for all"):
            torch.func.vmap(call)(torch.stack([q, q]), torch.tensor([[0, 5, 12], [0, 6, 12]]))


MODEL = mhla.create("deit_nano", classes=3, depth=1)
OUTSIDE = {
    "model": (lambda x: MODEL(x), (1, 3, 28, 28)),
    "stream": (lambda x: mhla.State(None, 2, 4, 4).step(x, x, x), (3, 2, 4)),
    "sampler": (lambda x: mhla.diffusion.Sampler(method="ddim", steps=3).step(x, x), (1, 3, 4, 4)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_computes_outside_pytorch_refuses(name):
    f, shape = OUTSIDE[name]
    x = torch.randn(shape)
    refused = pytest.raises(mhla.Error, match="compute outside PyTorch: neither torch.func nor forward-mode")
    with refused:
        torch.func.grad(lambda x: f(x).sum())(x)
    with refused:
        torch.func.jvp(f, (x,), (x,))
    with refused:
        torch.func.vmap(f)(x[None])
    with forward_ad.dual_level():
        with refused:
            f(forward_ad.make_dual(x, x))
        assert f(x).shape[0] == x.shape[0]


def test_a_scale_with_a_gradient_is_refused():
    _, _, (q, k, v) = problem("softmax")
    assert torch.equal(mhla.softmax_attention(q, k, v, torch.tensor(0.5)), mhla.softmax_attention(q, k, v, 0.5))
    with pytest.raises(mhla.Error, match="scale is a tensor with a gradient, which it would lose: multiply q by it"):
        mhla.softmax_attention(q, k, v, torch.tensor(0.5, requires_grad=True))
    with pytest.raises(mhla.Error, match="scale is a tensor with a gradient"):
        torch.func.grad(lambda s: mhla.softmax_attention(q, k, v, s).sum())(torch.tensor(0.5))
