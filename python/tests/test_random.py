"""Random descriptions through torch against the double implementation of reference.py, outputs and all gradients: the
library's kernels, and the plain PyTorch that takes their place on other devices."""
import random

import pytest
import reference
import torch

import mhla
from mhla import _plain, _torch
from mhla._dispatch import SIGNATURES

N = 40  # descriptions of each operator


def make(rng, shape, dtype, layout=None):
    """A random leaf and the tensor that the operator gets: as it is, a slice, a transposition, or strided to the last."""
    layout = layout or rng.choice(["plain", "fused", "transposed", "strided"])
    B, T, H, D = shape
    if layout == "fused":
        leaf = torch.randn(B, T, H * D * 3 + 5).to(dtype).requires_grad_()
        return leaf, leaf[..., 5 : 5 + H * D].unflatten(-1, (H, D))
    if layout == "transposed":
        leaf = torch.randn(B, H, T, D).to(dtype).requires_grad_()
        return leaf, leaf.transpose(1, 2)
    if layout == "strided":
        leaf = torch.randn(B, T, H, 2 * D).to(dtype).requires_grad_()
        return leaf, leaf[..., ::2]
    leaf = torch.randn(shape).to(dtype).requires_grad_()
    return leaf, leaf


class Problem:
    """Float tensors for the operator and their double twins."""

    def __init__(self, seed, dtype):
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype, self.ours, self.twins = dtype, [], []

    def tensor(self, shape, positive=False, dtype=None):
        leaf, x = make(self.rng, shape, dtype or self.dtype)
        return self.add(leaf, x, positive)

    def flat(self, x):
        return self.add(x.clone().requires_grad_(), None, False)

    def add(self, leaf, x, positive):
        twin = (leaf if x is None else x).detach().double().requires_grad_()
        given = leaf if x is None else x
        self.ours.append(given.abs() + 0.1 if positive else given)
        # the twin's value is that of the rounded input
        if positive:
            twin = self.ours[-1].detach().double().requires_grad_()
        self.twins.append(twin)
        return self.ours[-1], twin


def check(problem, got, expected, out_tolerance, grad_tolerance):
    """got, expected: lists of outputs."""
    ours, theirs = [], []
    for y, e in zip(got, expected):
        assert y.shape == e.shape
        size = e.abs().max().item()
        assert (y.detach().double() - e.detach()).abs().max().item() <= out_tolerance * max(size, 1e-30)
        d = torch.randn_like(e)
        d = d.to(y.dtype).double()
        ours.append((y.double() * d).sum())
        theirs.append((e * d).sum())
    a = torch.autograd.grad(sum(ours), problem.ours, allow_unused=True)
    b = torch.autograd.grad(sum(theirs), problem.twins, allow_unused=True)
    largest = max(x.abs().max().item() for x in b if x is not None)
    for x, y, leaf in zip(a, b, problem.ours):
        y = torch.zeros(leaf.shape, dtype=torch.double) if y is None else y
        x = torch.zeros_like(leaf) if x is None else x
        assert x.dtype == leaf.dtype and x.shape == y.shape
        # a denominator makes some gradients differences of nearly equal terms (dmix with one block is 0 in truth)
        size = max(y.abs().max().item(), largest if y.numel() == 1 else 0.1 * largest)
        assert (x.double() - y).abs().max().item() <= grad_tolerance * max(size, 1e-30)


def tolerances(dtype, narrow=(1e-5, 5e-5)):
    return narrow if dtype == torch.float32 else (2e-2, 3e-2)


def rotary(rng, rows, K):
    if K < 2 or rng.random() < 0.6:
        return None, "half"
    dim = 2 * rng.randint(1, K // 2)
    angles = torch.rand(rows, dim // 2) * 6
    return (angles.cos(), angles.sin()), rng.choice(["half", "interleaved"])


def choose_features(rng):
    feature = rng.choice(["relu", "elu", "identity"])
    return dict(feature=feature, feature_eps=rng.choice([0.0, 1e-6, 0.1]) if feature == "relu" else 0.0)


@pytest.fixture(params=["kernels", "plain"], autouse=True)
def engine(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(_torch, "call", lambda name, args: SIGNATURES[name].plain(name, args))
    return request.param


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


@DTYPES
@pytest.mark.parametrize("seed", range(N))
def test_attention(seed, dtype):
    p = Problem(seed, dtype)
    rng = p.rng
    axes = rng.randint(1, 3)
    grid = [rng.randint(1, (60, 9, 6)[axes - 1]) for _ in range(axes)]
    blocks = [rng.randint(1, min(g, 5)) for g in grid]
    T, M = torch.tensor(grid).prod().item(), torch.tensor(blocks).prod().item()
    B, H, K, V = rng.randint(1, 3), rng.randint(1, 3), rng.choice([1, 2, 5, 8, 16, 33]), rng.choice([1, 3, 8, 17, 32])
    even = all(g % m == 0 for g, m in zip(grid, blocks))
    options = choose_features(rng)
    denominator = rng.choice(["eq4", "none"] + ["released"] * even)
    positive = denominator != "none" and options["feature"] == "identity"
    if denominator != "none" and options["feature"] == "relu":
        options["feature_eps"] = 0.1
    options.update(denominator=denominator, den_eps=rng.choice([1e-6, 1e-2]), scale=rng.choice([None, 0.3]))
    options["rope"], options["rope_style"] = rotary(rng, T, K)
    (q, q_), (k, k_) = (p.tensor((B, T, H, K), positive) for _ in range(2))
    v, v_ = p.tensor((B, T, H, V))
    mix, mix_ = p.flat(torch.rand((M, M) if rng.random() < 0.7 else (H, M, M)) + 0.05)
    second = {}
    if denominator != "none" and rng.random() < 0.3:
        (q2, q2_), (k2, k2_) = (p.tensor((B, T, H, K), positive) for _ in range(2))
        second = dict(q2=q2, k2=k2)
    how = rng.choice(["raster", "blocks", "offsets"])
    if how == "offsets":  # any division, equal where it must be
        even = denominator == "released"
        sizes = [T // M] * M if even else None
        if sizes is None:
            cuts = sorted(rng.sample(range(1, T), M - 1)) if M > 1 else []
            sizes = [b - a for a, b in zip([0] + cuts, cuts + [T])]
        offsets = torch.tensor([0] + sizes).cumsum(0)
        perm = torch.randperm(T)
        ids = torch.empty(T, dtype=torch.long)
        ids[perm] = torch.repeat_interleave(torch.arange(M), torch.tensor(sizes))
        if even:  # the reference lists a block's members in ascending order: so must the permutation
            perm = ids.argsort(stable=True)
        o = mhla.attention(q, k, v, mix, block_offsets=offsets, permutation=perm, **options, **second)
    else:
        ids = reference.block_of_tokens(grid, blocks, how)
        o = mhla.attention(q, k, v, mix, grid, blocks, order=how, **options, **second)
    scale = options.pop("scale")
    twin = dict(q2=q2_, k2=k2_) if second else {}
    expected = reference.attention(q_, k_, v_, mix_, ids, scale, **options, **twin)
    check(p, [o], [expected], *tolerances(dtype))


def layout(rng):
    """(the arguments of a division of tokens, by the names that queries have; block of each token; tokens; blocks)"""
    axes = rng.randint(1, 3)
    grid = [rng.randint(1, (60, 9, 6)[axes - 1]) for _ in range(axes)]
    blocks = [rng.randint(1, min(g, 5)) for g in grid]
    T, M = torch.tensor(grid).prod().item(), torch.tensor(blocks).prod().item()
    if rng.random() < 0.6:
        return dict(grid=grid, blocks=blocks), reference.block_of_tokens(grid, blocks, "raster"), T, M
    cuts = sorted(rng.sample(range(1, T), M - 1)) if M > 1 else []
    sizes = torch.tensor([b - a for a, b in zip([0] + cuts, cuts + [T])])
    perm, ids = torch.randperm(T), torch.empty(T, dtype=torch.long)
    ids[perm] = torch.repeat_interleave(torch.arange(M), sizes)
    return dict(block_offsets=torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]), permutation=perm), ids, T, M


@DTYPES
@pytest.mark.parametrize("seed", range(300, 300 + N))
def test_cross_attention(seed, dtype):
    p = Problem(seed, dtype)
    rng = p.rng
    (queries, ids, T, M), (keys, key_ids, Tk, Mk) = layout(rng), layout(rng)
    B, H, K, V = rng.randint(1, 3), rng.randint(1, 3), rng.choice([1, 2, 5, 8, 16, 60, 64]), rng.choice([1, 3, 8, 17, 64])
    options = choose_features(rng)
    denominator = rng.choice(["eq4", "none"])
    positive = denominator != "none" and options["feature"] == "identity"
    if denominator != "none" and options["feature"] == "relu":
        options["feature_eps"] = 0.1
    # one block of keys: with a small epsilon the denominator cancels mix, whose gradient would be rounding alone
    epsilons = [1e-6, 1e-2] if Mk > 1 else [1.0]
    options.update(denominator=denominator, den_eps=rng.choice(epsilons), scale=rng.choice([None, 0.3]))
    options["rope"], options["rope_style"] = rotary(rng, max(T, Tk), K)
    if options["rope"] and rng.random() < 0.7:
        angles = torch.rand(Tk, options["rope"][0].shape[1]) * 6
        options["key_rope"] = angles.cos(), angles.sin()
    (q, q_), (k, k_) = p.tensor((B, T, H, K), positive), p.tensor((B, Tk, H, K), positive)
    v, v_ = p.tensor((B, Tk, H, V))
    mix, mix_ = p.flat(torch.rand((M, Mk) if rng.random() < 0.7 else (H, M, Mk)) + 0.05)
    second, twins = {}, {}
    if denominator != "none" and rng.random() < 0.3:
        (q2, q2_), (k2, k2_) = p.tensor((B, T, H, K), positive), p.tensor((B, Tk, H, K), positive)
        second, twins = dict(q2=q2, k2=k2), dict(q2=q2_, k2=k2_)
    o = mhla.attention(q, k, v, mix, **queries, **{f"key_{name}": x for name, x in keys.items()}, **options, **second)
    expected = reference.attention(q_, k_, v_, mix_, ids, key_ids=key_ids, **options, **twins)
    check(p, [o], [expected], *tolerances(dtype))


@DTYPES
@pytest.mark.parametrize("seed", range(N))
def test_causal_attention(seed, dtype):
    p = Problem(1000 + seed, dtype)
    rng = p.rng
    C, T = rng.choice([1, 3, 16, 64]), rng.choice([1, 2, 15, 16, 17, 40, 65, 130])
    G = rng.randint(1, 2)
    H, K, V = G * rng.randint(1, 3), rng.choice([1, 2, 5, 8, 33]), rng.choice([1, 3, 8, 17])
    packed = rng.random() < 0.3
    B = 1 if packed else rng.randint(1, 3)
    cu = None
    if packed:
        cu = sorted([0, T] + [rng.randint(0, T) for _ in range(rng.randint(0, 3))])
        cu = sorted(set(cu))
    sequences = len(cu) - 1 if packed else B
    past = rng.choice([0, 0, C, 2 * C + rng.randint(0, C - 1)]) if rng.random() < 0.6 else 0
    n0, n1 = -(-past // C), -(-(past + T) // C)
    beyond = rng.choice(["error", "clamp", "chunk"])
    M = n1 + rng.randint(0, 2)
    options = choose_features(rng)
    options.update(denominator=rng.choice(["none", "none", "eq4"]), den_eps=rng.choice([1e-6, 1e-2]), scale=rng.choice([None, 0.3]))
    if beyond == "clamp" and past == 0:
        M = max(1, n1 // 2)
    positive = options["denominator"] != "none" and options["feature"] == "identity"
    if options["denominator"] != "none" and options["feature"] == "relu":
        options["feature_eps"] = 0.1
    options["rope"], options["rope_style"] = rotary(rng, past + T, K)
    q, q_ = p.tensor((B, T, H, K), positive)
    k, k_ = p.tensor((B, T, G, K), positive)
    v, v_ = p.tensor((B, T, G, V))
    mix, mix_ = p.flat(torch.rand((M, M) if rng.random() < 0.7 else (H, M, M)) + 0.05)
    initial = state_ = z_ = None
    if n0:
        initial, state_ = p.flat(torch.randn(sequences, n0, G, K, V))
        if options["denominator"] != "none":
            z, z_ = p.flat(torch.rand(sequences, n0, G, K) + 0.5)
            initial = (initial, z)
    second, twin = {}, {}
    if options["denominator"] != "none" and rng.random() < 0.3:
        q2, q2_ = p.tensor((B, T, H, K), positive)
        k2, k2_ = p.tensor((B, T, G, K), positive)
        second, twin = dict(q2=q2, k2=k2), dict(q2=q2_, k2=k2_)
    final = rng.random() < 0.5 and n1 <= M
    cover = dict(chunk_size=C, beyond=beyond)
    if beyond == "chunk":  # some maximum that gives this chunk
        cover = dict(beyond="chunk", max_tokens=M * C)
    scale = options.pop("scale")
    o, state = mhla.causal_attention(q, k, v, mix, scale, initial, final, None if cu is None else torch.tensor(cu), past=past, **cover,
                                     **options, **second)
    e, S, zs = reference.causal_attention(q_, k_, v_, mix_, scale, C, past, state_, z_, beyond=beyond, cu=cu, **options, **twin)
    got, expected = [o], [e]
    if final:
        got += [x for x in (state.summaries, state.z) if x is not None]
        expected += [S, zs][: len(got) - 1]
    check(p, got, expected, *tolerances(dtype))


@DTYPES
@pytest.mark.parametrize("seed", range(N))
def test_linear_attention(seed, dtype):
    p = Problem(2000 + seed, dtype)
    rng = p.rng
    causal, T = rng.random() < 0.6, rng.choice([1, 2, 17, 64, 65, 130])
    G = rng.randint(1, 2)
    H, K, V = G * (rng.randint(1, 3) if causal else 1), rng.choice([1, 2, 5, 8, 33]), rng.choice([1, 3, 8, 17])
    cu = sorted({0, T, rng.randint(0, T)}) if causal and rng.random() < 0.3 else None
    B = 1 if cu else rng.randint(1, 3)
    sequences = len(cu) - 1 if cu else B
    normalize = rng.random() < 0.5
    options = choose_features(rng)
    positive = normalize and options["feature"] == "identity"
    if normalize and options["feature"] == "relu":
        options["feature_eps"] = 0.1
    past = rng.choice([0, 5]) if causal else 0
    options["rope"], options["rope_style"] = rotary(rng, past + T, K)
    q, q_ = p.tensor((B, T, H, K), positive)
    k, k_ = p.tensor((B, T, G, K), positive)
    v, v_ = p.tensor((B, T, G, V))
    initial = state_ = z_ = None
    if causal and rng.random() < 0.5:
        initial, state_ = p.flat(torch.randn(sequences, G, K, V))
        if normalize:
            z, z_ = p.flat(torch.rand(sequences, G, K) + 0.5)
            initial = (initial, z)
    scale, final = rng.choice([None, 0.3]), causal and rng.random() < 0.5
    o, state = mhla.linear_attention(q, k, v, scale, initial, final, normalize, None if cu is None else torch.tensor(cu), causal=causal,
                                     past=past, **options)
    e, S, zs = reference.linear_attention(q_, k_, v_, scale, causal, normalize, past, state_, z_, cu=cu, **options)
    got, expected = [o], [e]
    if final:
        got += [x for x in (state.summaries, state.z) if x is not None]
        expected += [S, zs][: len(got) - 1]
    check(p, got, expected, *tolerances(dtype))


@DTYPES
@pytest.mark.parametrize("seed", range(N))
def test_softmax_attention(seed, dtype, engine, monkeypatch):
    p = Problem(3000 + seed, dtype)
    rng = p.rng
    if engine == "plain" and rng.random() < 0.5:  # as on other devices
        run = _plain.run
        monkeypatch.setattr(_plain, "run", lambda kind, o, fused, *rest: run(kind, o, True, *rest))
    Tk, causal = rng.choice([1, 2, 17, 64, 65, 130]), rng.random() < 0.5
    G = rng.randint(1, 2)
    H, K, V = G * rng.randint(1, 3), rng.choice([1, 2, 5, 8, 33]), rng.choice([1, 3, 8, 17])
    cu = sorted({0, Tk, rng.randint(0, Tk)}) if rng.random() < 0.3 else None
    Tq = Tk if cu else rng.choice([Tk, max(1, Tk // 3)])
    B = 1 if cu else rng.randint(1, 3)
    window = rng.choice([0, 1, 7]) if causal else 0
    rope, style = rotary(rng, Tk, K)
    q, q_ = p.tensor((B, Tq, H, K))
    k, k_ = p.tensor((B, Tk, G, K))
    v, v_ = p.tensor((B, Tk, G, V))
    scale = rng.choice([None, 0.3])
    o = mhla.softmax_attention(q, k, v, scale, causal, window, None if cu is None else torch.tensor(cu), rope=rope, rope_style=style)
    e = reference.softmax_attention(q_, k_, v_, scale, causal, window, rope, style, cu)
    check(p, [o], [e], *tolerances(dtype))
