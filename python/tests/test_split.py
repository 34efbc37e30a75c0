"""A sequence in pieces, with the state carried along, is the whole sequence: outputs, final states and all gradients, for any
split, every policy beyond M, every dtype."""
import random

import numpy as np
import pytest
import torch

import mhla
import mhla.nn
from mhla import _torch

SPLITS = 6  # random ones of each case
C = 16

CASES = {
    "plain": dict(M=10),
    "eq4": dict(M=10, denominator="eq4", feature="elu"),
    "rope": dict(M=10, rope=True),
    "clamp": dict(M=3, beyond="clamp"),
    "clamp-one": dict(M=1, beyond="clamp", denominator="eq4", feature="elu"),
    "chunk": dict(M=4, beyond="chunk", max_tokens=130, rope=True),
    "chunk-eq4": dict(M=7, beyond="chunk", max_tokens=129, denominator="eq4", feature="elu"),
    "linear": dict(M=0, rope=True),
    "linear-normalized": dict(M=0, denominator="eq4", feature="elu", rope=True),
}


def splits(T, rng):
    """Lengths of pieces: each alone, awkward ones, random ones."""
    yield [1] * min(T, 40) + ([T - 40] if T > 40 else [])
    for first in (1, C - 1, C, C + 1, 2 * C, 63):
        if first < T:
            yield [first, T - first]
    for _ in range(SPLITS):
        sizes = []
        while sum(sizes) < T:
            sizes.append(min(rng.choice([1, 2, C - 1, C, C + 1, rng.randint(1, 63)]), T - sum(sizes)))
        yield sizes


def call(case, tensors, mix, **state):
    options = {n: x for n, x in case.items() if n != "M"}
    if options.pop("rope", False):
        options["rope"] = tuple(map(torch.from_numpy, mhla.rope_table(200, 8)))
    if not case["M"]:
        normalize = options.pop("denominator", "none") == "eq4"
        return mhla.linear_attention(*tensors, causal=True, normalize=normalize, output_final_state=True, **options, **state)
    return mhla.causal_attention(*tensors, mix, output_final_state=True, chunk_size=C, **options, **state)


def pieces(case, tensors, mix, sizes):
    outputs, state, at = [], None, 0
    for n in sizes:
        o, state = call(case, [x[:, at : at + n] for x in tensors], mix, initial_state=state)
        at += n
        outputs.append(o)
        assert state.past == at
    return torch.cat(outputs, 1), state


def close(a, b, tolerance, size=0.0):
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape
    far = (a - b).abs().max().item() if a.numel() else 0.0
    assert far <= tolerance * max(b.abs().max().item() if b.numel() else 0.0, size, 1e-6)


def close_all(gradients, expected, tolerance):
    """A gradient may be a difference of nearly equal terms: compared with the largest of them all."""
    size = max(x.abs().max().item() for x in expected)
    for a, b in zip(gradients, expected):
        close(a, b, tolerance, size)


@pytest.mark.parametrize("engine", ["kernels", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("T", [1, C - 1, C, C + 1, 63, 129])
@pytest.mark.parametrize("name", CASES)
def test_any_split_is_the_whole(name, T, dtype, engine, monkeypatch):
    if engine == "plain":
        monkeypatch.setattr(_torch, "call", _torch._plainly)
    case, rng = CASES[name], random.Random(T)
    torch.manual_seed(T)
    leaves = [torch.randn(2, T, H, D).to(dtype).requires_grad_() for H, D in ((4, 8), (2, 8), (2, 6))]
    mix = (torch.rand(case["M"], case["M"]) + 0.1).requires_grad_() if case["M"] else None
    whole, last = call(case, leaves, mix)
    do, ds = torch.randn_like(whole), torch.randn_like(last.summaries)
    wanted = leaves if mix is None else [*leaves, mix]
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2

    def gradients(o, state):
        return torch.autograd.grad([o, state.summaries], wanted, [do, ds], allow_unused=True)

    expected = gradients(whole, last)
    for sizes in splits(T, rng):
        o, state = pieces(case, leaves, mix, sizes)
        close(o, whole, tolerance)
        close(state.summaries, last.summaries, tolerance)
        if last.z is not None:
            close(state.z, last.z, tolerance)
        close_all(gradients(o, state), expected, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_numpy_splits_as_well(name):
    rng = np.random.default_rng(0)
    case = CASES[name]
    tensors = [rng.standard_normal((1, 100, H, D), dtype=np.float32) for H, D in ((4, 8), (2, 8), (2, 6))]
    mix = rng.random((case["M"], case["M"]), np.float32) if case["M"] else None
    whole, _ = call(case, tensors, mix)
    for at in (1, 37, 64):
        head, state = call(case, [x[:, :at] for x in tensors], mix)
        tail, _ = call(case, [x[:, at:] for x in tensors], mix, initial_state=state)
        assert np.allclose(np.concatenate([head, tail], 1), whole, atol=1e-4 * np.abs(whole).max())


@pytest.mark.parametrize("name", CASES)
def test_packed_sequences_go_on_from_where_each_is(name):
    """Packed sequences of different lengths: packed again, as a batch, and one of them alone."""
    torch.manual_seed(0)
    case, cu, more = CASES[name], torch.tensor([0, 5, 5, 42, 60]), torch.tensor([0, 7, 10, 10, 13])
    tensors = [torch.randn(1, 60, H, D) for H, D in ((4, 8), (2, 8), (2, 6))]
    later = [torch.randn(1, 13, *x.shape[2:]) for x in tensors]
    mix = torch.rand(case["M"], case["M"]) + 0.1 if case["M"] else None
    _, state = call(case, tensors, mix, cu_seqlens=cu)
    assert state.past.tolist() == [5, 0, 37, 18]
    o, after = call(case, later, mix, initial_state=state, cu_seqlens=more)
    assert after.past.tolist() == [12, 3, 37, 21]
    for s in range(4):
        (a, b), (c, d) = (cu[s : s + 2], more[s : s + 2])
        joined = [torch.cat([x[:, a:b], y[:, c:d]], 1) for x, y in zip(tensors, later)]
        whole, last = call(case, joined, mix)
        close(o[:, c:d], whole[:, b - a :], 2e-5) if d > c else None
        close(after.take(s).summaries, last.summaries, 2e-5)
        if d > c:
            alone, _ = call(case, [y[:, c:d] for y in later], mix, initial_state=state.take(s))
            close(alone, whole[:, b - a :], 2e-5)
    rows = [x[:, :4].expand(4, -1, -1, -1) for x in later]
    o, _ = call(case, rows, mix, initial_state=state)
    for s in range(4):
        whole, _ = call(case, [torch.cat([x[:, cu[s] : cu[s + 1]], y[s : s + 1]], 1) for x, y in zip(tensors, rows)], mix)
        close(o[s : s + 1], whole[:, -4:], 2e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_packed_sequences_of_one_length_go_on(name, kind):
    torch.manual_seed(0)
    case = CASES[name]
    tensors, later = ([torch.randn(1, n, H, D) for H, D in ((4, 8), (2, 8), (2, 6))] for n in (60, 6))
    mix = torch.rand(case["M"], case["M"]) + 0.1 if case["M"] else None
    _, state = call(case, tensors, mix, cu_seqlens=kind([0, 20, 40, 60]))
    o, _ = call(case, later, mix, initial_state=state, cu_seqlens=kind([0, 2, 4, 6]))
    for s in range(3):
        joined = [torch.cat([x[:, 20 * s : 20 * s + 20], y[:, 2 * s : 2 * s + 2]], 1) for x, y in zip(tensors, later)]
        close(o[:, 2 * s : 2 * s + 2], call(case, joined, mix)[0][:, 20:], 2e-5)


def test_a_state_of_something_else_is_refused():
    q, k, v = torch.randn(3, 1, 20, 2, 8)
    mix = torch.rand(4, 4)
    _, state = mhla.causal_attention(q, k, v, mix, output_final_state=True, chunk_size=16)

    def again(message, **changed):
        given = dict(mix=mix, chunk_size=16) | changed
        with pytest.raises(mhla.Error, match=message):
            mhla.causal_attention(q, k, v, initial_state=state, **given)

    again("made with chunk_size 16: this call has 8", chunk_size=8)
    again("made with M 4: this call has 5", mix=torch.rand(5, 5))
    again("made with beyond error: this call has clamp", beyond="clamp")
    again("made with chunk_size 16: this call has 25", beyond="chunk", max_tokens=100)
    again("made with feature relu: this call has elu", feature="elu")
    again("made with denominator none: this call has eq4", denominator="eq4")
    again("made with rope none: this call has half of 8 dims", rope=mhla.rope_table(60, 8))
    again("past is 3: initial_state has seen 20 tokens", past=3)
    with pytest.raises(mhla.Error, match="made with operator causal: this call has linear"):
        mhla.linear_attention(q, k, v, initial_state=state, causal=True)
    with pytest.raises(mhla.Error, match="plain array: pass the state .* or say past="):
        mhla.causal_attention(q, k, v, mix, initial_state=state.summaries, chunk_size=16)
    with pytest.raises(mhla.Error, match="plain array"):
        mhla.linear_attention(q, k, v, initial_state=torch.zeros(1, 2, 8, 8), causal=True, normalize=False,
                              rope=mhla.rope_table(60, 8))
    with pytest.raises(mhla.Error, match="initial_state has shape"):  # of another batch
        mhla.causal_attention(*(x.expand(2, -1, -1, -1) for x in (q, k, v)), mix, initial_state=state, chunk_size=16)
    o, _ = mhla.causal_attention(q, k, v, mix, initial_state=state.summaries, past=20, chunk_size=16)
    assert torch.equal(o, mhla.causal_attention(q, k, v, mix, initial_state=state, chunk_size=16)[0])


def test_a_state_needs_causal():
    q, k, v = torch.randn(3, 1, 20, 2, 8)
    with pytest.raises(mhla.Error, match="output_final_state is given without causal"):
        mhla.linear_attention(q, k, v, output_final_state=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pieces_under_compile(dynamic):
    torch._dynamo.reset()
    mix = torch.rand(8, 8)
    q, k, v = torch.randn(3, 1, 100, 2, 8)

    def piece(q, k, v, state):
        return mhla.causal_attention(q, k, v, mix, initial_state=state, output_final_state=True, chunk_size=C)

    whole, _ = piece(q, k, v, None)
    compiled = torch.compile(piece, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    _, state = compiled(q[:, :37], k[:, :37], v[:, :37], None)
    tail, state = compiled(q[:, 37:], k[:, 37:], v[:, 37:], state)
    close(tail, whole[:, 37:], 2e-5)
    assert state.past == 100


def test_detach_cuts_the_history():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 20, 2, 8))
    _, state = mhla.causal_attention(q, k, v, torch.rand(4, 4), output_final_state=True, chunk_size=16, denominator="eq4")
    assert state.summaries.requires_grad and not state.detach().summaries.requires_grad and not state.detach().z.requires_grad


LAYERS = {
    "lm": dict(), "conv": dict(use_short_conv=True), "clamp": dict(use_short_conv=True, num_chunks=3, beyond="clamp"),
    "wide": dict(use_short_conv=True, conv_size=7, num_kv_heads=1, feature_map_name="hedgehog"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_split(name, dtype):
    torch.manual_seed(0)
    layer = mhla.nn.LMAttention(32, num_heads=2, chunk_size=C, **{"num_chunks": 10, **LAYERS[name]}).to(dtype)
    x = torch.randn(2, 63, 32).to(dtype).requires_grad_()
    wanted = [x, *layer.parameters()]
    whole, last = layer(x, output_final_state=True)
    dy = torch.randn_like(whole)
    expected = torch.autograd.grad(whole, wanted, dy)
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    for sizes in splits(63, random.Random(1)):
        state, outputs, at = None, [], 0
        for n in sizes:
            y, state = layer(x[:, at : at + n], initial_state=state, output_final_state=True)
            outputs.append(y)
            at += n
        close(torch.cat(outputs, 1), whole, tolerance)
        close(state.attention.summaries, last.attention.summaries, tolerance)
        close_all(torch.autograd.grad(torch.cat(outputs, 1), wanted, dy), expected, tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_packed_layers_go_on(name):
    torch.manual_seed(0)
    layer = mhla.nn.LMAttention(32, num_heads=2, chunk_size=C, **{"num_chunks": 10, **LAYERS[name]})
    x, y = torch.randn(1, 30, 32), torch.randn(1, 11, 32)
    cu, more = torch.tensor([0, 2, 2, 20, 30]), torch.tensor([0, 4, 6, 6, 11])
    _, state = layer(x, output_final_state=True, cu_seqlens=cu)
    got, after = layer(y, initial_state=state, output_final_state=True, cu_seqlens=more)
    for s in range(4):
        (a, b), (c, d) = cu[s : s + 2], more[s : s + 2]
        whole, last = layer(torch.cat([x[:, a:b], y[:, c:d]], 1), output_final_state=True)
        if d > c:
            close(got[:, c:d], whole[:, b - a :], 2e-5)
        if layer.use_short_conv:
            for one, other in zip(after.conv, last.conv):
                close(one[s : s + 1], other, 2e-5)


def test_layers_refuse_the_state_of_another():
    plain, conv = mhla.nn.LMAttention(32, num_heads=2), mhla.nn.LMAttention(32, num_heads=2, use_short_conv=True)
    x = torch.randn(1, 9, 32)
    _, state = plain(x, output_final_state=True)
    with pytest.raises(mhla.Error, match="initial_state has no tokens of the convolutions"):
        conv(x, initial_state=state)
    with pytest.raises(mhla.Error, match="initial_state is a plain array"):
        plain(x, initial_state=state.attention.summaries)
    linear = mhla.nn.LMLinearAttention(32, 2)
    whole = linear(torch.cat([x, x], 1))
    head, state = linear(x, output_final_state=True)
    close(torch.cat([head, linear(x, initial_state=state)], 1), whole, 2e-5)


# ---- What is refused ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ends", [[0, 3, 5], [0, 3, 9], [1, 3, 7], [0, -1, 7], [0, 5, 3]])
def test_wrong_ends_of_sequences_at_different_positions(ends):
    """Each of them is cut out on its own; none may end up with fewer tokens, or with others' tokens."""
    x, mix = torch.randn(1, 9, 2, 8), torch.rand(4, 4)
    _, state = mhla.causal_attention(x, x, x, mix, cu_seqlens=torch.tensor([0, 3, 9]), output_final_state=True)
    x = x[:, :7]
    for y, cu in ((x, torch.tensor(ends)), (x.numpy(), ends)):
        with pytest.raises(mhla.Error, match="expected 0, numbers that do not decrease, and the number of tokens, 7"):
            mhla.causal_attention(y, y, y, mix, initial_state=state, cu_seqlens=cu)
    with pytest.raises(mhla.Error, match="expected 1 token or more"):
        mhla.causal_attention(x[:, :0], x[:, :0], x[:, :0], mix, initial_state=state, cu_seqlens=torch.tensor([0, 0, 0]))
    layer = mhla.nn.LMAttention(16, num_heads=2, use_short_conv=True)
    with pytest.raises(mhla.Error, match="the number of tokens, 7"):
        layer(torch.randn(1, 7, 16), cu_seqlens=torch.tensor(ends))
    assert torch.equal(layer(torch.ones(1, 7, 16), cu_seqlens=[0, 7]), layer(torch.ones(1, 7, 16)))


def test_a_state_with_a_second_pair_is_not_mixed_with_one_without():
    x, mix = torch.rand(1, 9, 2, 8), torch.rand(4, 4)
    for second, other in ((dict(q2=x, k2=x), {}), ({}, dict(q2=x, k2=x))):
        _, state = mhla.causal_attention(x, x, x, mix, denominator="eq4", output_final_state=True, **second)
        mhla.causal_attention(x, x, x, mix, denominator="eq4", initial_state=state, **second)
        with pytest.raises(mhla.Error, match="initial_state was made with k2 (given|none): this call has (none|given)"):
            mhla.causal_attention(x, x, x, mix, denominator="eq4", initial_state=state, **other)


def test_a_layer_refuses_the_state_of_another():
    x = torch.randn(2, 9, 16)
    states = {width: mhla.nn.LMAttention(16, num_heads=2, use_short_conv=width > 0, conv_size=width)(x, output_final_state=True)[1]
              for width in (0, 3, 4)}
    plain = mhla.nn.LMAttention(16, num_heads=2)
    with pytest.raises(mhla.Error, match="has tokens of convolutions: this layer has none"):
        plain(x, initial_state=states[4])
    convolved = mhla.nn.LMAttention(16, num_heads=2, use_short_conv=True, conv_size=4)
    with pytest.raises(mhla.Error, match="has no tokens of the convolutions"):
        convolved(x, initial_state=states[0])
    with pytest.raises(mhla.Error, match=r"the tokens before have shape \(2, 2, 8\): expected \(2, 3, 8\)"):
        convolved(x, initial_state=states[3])
    with pytest.raises(mhla.Error, match=r"the tokens before have shape \(2, 3, 8\): expected \(1, 3, 8\)"):
        convolved(x[:1], initial_state=states[4])


def test_a_layer_with_longer_chunks():
    torch.manual_seed(0)
    layer = mhla.nn.LMAttention(16, num_heads=2, num_chunks=3, chunk_size=4, beyond="chunk", max_tokens=50)
    x = torch.randn(1, 50, 16)
    head, state = layer(x[:, :23], output_final_state=True)
    assert state.attention.summaries.shape[1] == 2  # of 17 tokens each
    assert torch.allclose(torch.cat([head, layer(x[:, 23:], initial_state=state)], 1), layer(x), atol=1e-5)
