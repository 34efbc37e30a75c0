"""What torch expects of an operator: opcheck, compile, dtypes, layouts, devices, errors."""
import threading

import numpy as np
import pytest
import torch

import mhla
from mhla import _torch
from mhla._dispatch import SIGNATURES


def problem(dtype=torch.float32, T=16, B=2, H=2, K=8, V=6, G=None, grad=True):
    torch.manual_seed(0)
    q = torch.randn(B, T, H, K, dtype=dtype, requires_grad=grad)
    k, v = (torch.randn(B, T, G or H, D, dtype=dtype, requires_grad=grad) for D in (K, V))
    return q, k, v


def mix_of(*blocks, name="paper", grad=True):
    return torch.from_numpy(mhla.mix_init(name, blocks)).requires_grad_(grad)


ROPE = tuple(map(torch.from_numpy, mhla.rope_table((4, 4), (2, 2))))


# one call of each operator, with much of what it can take
def attention(q, k, v, mix):
    return mhla.attention(q, k, v, mix, (4, 4), (2, 2), rope=ROPE, rope_style="interleaved", q2=q + 1, k2=k + 1)


def cross(q, k, v, mix):
    return mhla.attention(q[:, :12], k, v, mix, (3, 4), (1, 2), key_block_offsets=[0, 3, 11, 16], key_permutation=torch.arange(16).flip(0),
                          rope=ROPE, key_rope=ROPE, q2=q[:, :12] + 1, k2=k + 1)


def causal(q, k, v, mix):
    o, (s, z, *_) = mhla.causal_attention(q, k, v, mix, output_final_state=True, chunk_size=4, denominator="eq4", feature="elu")
    return o.float().sum() + s.square().sum() + z.sum()


def linear(q, k, v, mix):
    return mhla.linear_attention(q, k, v, causal=True, feature="elu", output_final_state=True)[0]


def softmax(q, k, v, mix):
    return mhla.softmax_attention(q, k, v, causal=True, window=5)


def focused(q, k, v, focus):
    return mhla.focused_attention(q, k, v, focus)


def rala(q, k, v, mix):
    return mhla.rala_attention(q, k, v, rope=ROPE)


FUNCTIONS = {"attention": (attention, mix_of(2, 2)), "cross": (cross, torch.ones(2, 3).requires_grad_()), "causal": (causal, mix_of(4, name="causal")), "linear": (linear, None),
             "softmax": (softmax, None), "focused": (focused, torch.linspace(-1, 1, 16).requires_grad_()), "rala": (rala, None)}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_opcheck(name, dtype, monkeypatch):
    """Records the very arguments that the op gets, then lets torch check it and its backward."""
    function, mix = FUNCTIONS[name]
    calls = []

    def record(op, args):
        calls.append((op, args))
        return _torch.AUTOGRAD[op](*args)

    monkeypatch.setattr(_torch, "call", record)
    function(*problem(dtype), mix)
    for op, args in calls:
        args = tuple(a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args)
        torch.library.opcheck(_torch.OPS[op], args)
        with torch.no_grad():
            result = _torch.OPS[op](*args)
        result = result if isinstance(result, tuple) else (result, None, None)
        given = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        finals = [t if t is not None and t.numel() else None for t in result[1:]]
        wanted = [a is not None for a in args[: SIGNATURES[op].grads]]
        arrived = (result[0], *finals)[: 1 + SIGNATURES[op].finals]
        torch.library.opcheck(_torch.BACKWARD[op], (*arrived, wanted, *given))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compile_without_a_graph_break(name, dynamic):
    function, mix = FUNCTIONS[name]
    torch._dynamo.reset()
    leaves = [x for x in (*problem(), mix) if x is not None]
    compiled = torch.compile(lambda *a: function(*a, *([None] * (4 - len(a)))).square().mean(), fullgraph=True, dynamic=dynamic)
    eager = function(*leaves, *([None] * (4 - len(leaves)))).square().mean()
    got = compiled(*leaves)
    assert torch.allclose(got, eager, rtol=1e-5)
    for a, b in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(eager, leaves)):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_compile_other_lengths():
    torch._dynamo.reset()
    mix = mix_of(8, name="causal")
    compiled = torch.compile(lambda q, k, v: mhla.causal_attention(q, k, v, mix, chunk_size=4)[0], fullgraph=True)
    for T in (5, 9, 17, 30):
        q, k, v = problem(T=T)
        assert torch.equal(compiled(q, k, v), mhla.causal_attention(q, k, v, mix, chunk_size=4)[0])


BFLOAT16 = {"attention": lambda q, k, v: mhla.attention(q, k, v, mix_of(4, 4, grad=False), (16, 16), (4, 4)),
            "causal_attention": lambda q, k, v: mhla.causal_attention(q, k, v, mix_of(4, name="causal", grad=False))[0],
            "softmax_attention": lambda q, k, v: mhla.softmax_attention(q, k, v)}


@pytest.mark.parametrize("name", BFLOAT16)
def test_products_of_bfloat16_tensors(name, monkeypatch):
    """They round their factors to bfloat16 where the CPU multiplies it (emulated here), and are float32 elsewhere. Looked at are
    gradients, which the backward op returns in float32."""
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(1, 256, 2, 64, generator=generator).bfloat16() for _ in range(4)]

    def gradients(dtype, isa):
        seen = []
        backward = _torch.AUTOGRAD_BACKWARD[name]
        with monkeypatch.context() as patch:
            patch.setitem(_torch.AUTOGRAD_BACKWARD, name, lambda *args: seen.extend(backward(*args)) or seen)
            leaves = [x.to(dtype).requires_grad_() for x in given[:3]]
            mhla.set_isa(isa)
            try:
                BFLOAT16[name](*leaves).backward(given[3].to(dtype))
            finally:
                mhla.set_isa(None)
        return torch.cat([x.flatten() for x in seen])

    exact = gradients(torch.float32, "plain")
    assert (gradients(torch.bfloat16, "plain") - exact).norm() <= 1e-5 * exact.norm()
    assert 1e-4 * exact.norm() < (gradients(torch.bfloat16, "plain-bf16") - exact).norm() < 1e-2 * exact.norm()


def test_layouts_are_equal_bit_by_bit():
    q, k, v = problem(grad=False, V=8)
    mix = mix_of(2, 2, grad=False)
    plain = mhla.attention(q, k, v, mix, (4, 4), (2, 2))
    fused = torch.stack([q, k, v], 2).flatten(3)  # [B,T,3,H*K]
    slices = [fused[:, :, i].unflatten(-1, (2, 8)) for i in range(3)]
    assert torch.equal(mhla.attention(*slices, mix, (4, 4), (2, 2)), plain)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(mhla.attention(*turned, mix, (4, 4), (2, 2)), plain)
    strided = [torch.stack([x, x * 0], -1)[..., 0] for x in (q, k, v)]
    assert strided[0].stride(-1) == 2
    assert torch.equal(mhla.attention(*strided, mix, (4, 4), (2, 2)), plain)
    assert torch.equal(mhla.attention(q, k, v, mix.t().contiguous().t(), (4, 4), (2, 2)), plain)


def test_broadcast_inputs():
    """Strides of 0 mean what they say, also where all of them are 0."""
    mix = mix_of(2, 2, grad=False)
    one = torch.randn(8)
    q = one.expand(2, 16, 2, 8)
    v = torch.randn(1, 16, 1, 8).expand(2, 16, 2, 8)
    got = mhla.attention(q, q, v, mix, (4, 4), (2, 2))
    assert torch.equal(got, mhla.attention(q.contiguous(), q.contiguous(), v.contiguous(), mix, (4, 4), (2, 2)))
    k = torch.randn(2, 16, 2, 8, requires_grad=True)
    mhla.attention(q, k, v, mix, (4, 4), (2, 2)).sum().backward()  # the gradient that arrives is broadcast too
    assert k.grad.abs().sum() > 0


def test_only_wanted_gradients():
    q, k, v = problem(grad=False)
    mix = mix_of(2, 2)
    mhla.attention(q, k, v, mix, (4, 4), (2, 2)).sum().backward()
    assert mix.grad is not None and q.grad is None


def test_gradient_through_the_final_state_only():
    q, k, v = problem()
    _, state = mhla.causal_attention(q, k, v, mix_of(4, name="causal"), output_final_state=True, chunk_size=4)
    state.summaries.sum().backward()
    assert k.grad.abs().sum() > 0 and v.grad.abs().sum() > 0


def test_torch_and_numpy_agree():
    q, k, v = problem(grad=False)
    mix = mix_of(2, 2, grad=False)
    a = mhla.attention(q, k, v, mix, (4, 4), (2, 2)).numpy()
    b = mhla.attention(q.numpy(), k.numpy(), v.numpy(), mix.numpy(), (4, 4), (2, 2))
    assert isinstance(b, np.ndarray) and (a == b).all()


def test_threads_do_not_change_a_bit():
    q, k, v = problem(T=256, H=3, K=32, V=32)
    mix = mix_of(4, 4)
    results = []
    for n in (1, 2, 3, 5):
        mhla.set_num_threads(n)
        o = mhla.attention(q, k, v, mix, (16, 16), (4, 4))
        results.append((o, *torch.autograd.grad(o.sum(), (q, k, v, mix))))
    mhla.set_num_threads(0)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_calls_from_eight_threads():
    """The GIL is free while the library works, and plans are shared."""
    q, k, v = problem(T=256, H=2, K=16, V=16, grad=False)
    mix = mix_of(4, 4, grad=False)
    expected = mhla.attention(q, k, v, mix, (16, 16), (4, 4))
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(mhla.attention(q, k, v, mix, (16, 16), (4, 4)), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_meta_tensors_have_the_shapes():
    q, k, v = (x.detach().to("meta") for x in problem())
    o, state = mhla.causal_attention(q, k, v, torch.empty(4, 4, device="meta"), output_final_state=True, chunk_size=4)
    assert o.shape == (2, 16, 2, 6) and state.summaries.shape == (2, 4, 2, 8, 6) and o.device.type == "meta"


def test_other_devices_have_kernels():
    """test_unusual.py runs them."""
    for op in ("attention", "attention_backward", "softmax_attention"):
        for key in ("CUDA", "XPU", "MPS", "PrivateUse1"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"mhla::{op}", key)


def test_the_op_of_a_rotary_table():
    torch.library.opcheck(_torch.rope_rows, (5, 8, 100.0, torch.device("cpu")))
    cos, sin = _torch.rope_rows(5, 8, 100.0, torch.device("cpu"))
    expected = mhla.rope_table(5, 8, 100.0)
    assert (cos.numpy() == expected[0]).all() and (sin.numpy() == expected[1]).all()


@pytest.mark.parametrize("change, message", [
    (dict(k=torch.randn(2, 15, 2, 8)), "kv_tokens is 15|v has shape"),
    (dict(k=torch.randn(2, 16, 2, 7)), "k has shape"),
    (dict(v=torch.randn(2, 15, 2, 6)), "v has shape"),
    (dict(q=torch.randn(16, 2, 8)), "q has shape .* expected 4 axes"),
    (dict(q=torch.randn(2, 16, 2, 8, dtype=torch.float64)), "q has dtype torch.float64"),
    (dict(k=torch.randn(2, 16, 2, 8).bfloat16()), "k has dtype torch.bfloat16"),
    (dict(mix=torch.ones(3, 3)), "mix has shape .3, 3.: there are 4 blocks"),
    (dict(mix=torch.ones(4, 3)), "mix has shape"),
    (dict(grid=(4, 5)), "tokens is 16: the plan's grid has 20"),
    (dict(grid=(4, 4, 1)), "as many pieces as axes"),
    (dict(blocks=(2, 5)), "blocks.1. is 5"),
    (dict(feature="tanh"), "feature is 'tanh'"),
    (dict(denominator="sum"), "denominator is 'sum'"),
    (dict(order="random"), "order is 'random'"),
    (dict(scale=0.0), "scale is 0"),
    (dict(scale=float("nan")), "scale is NaN"),
    (dict(q2=torch.randn(2, 16, 2, 8)), "q2 and k2 come together"),
    (dict(rope=(torch.ones(16, 4), torch.ones(16, 3))), "rope's sin has shape"),
    (dict(rope=(torch.ones(7, 4), torch.ones(7, 4))), "rope_rows is 7"),
    (dict(rope=(torch.ones(16, 4), torch.ones(16, 4)), rope_style="spiral"), "rope_style is 'spiral'"),
    (dict(denominator="released", grid=(16,), blocks=(3,), mix=torch.ones(3, 3)), "equal blocks"),
    (dict(permutation=torch.arange(16), grid=None, blocks=None), "permutation is given without block_offsets"),
    (dict(block_offsets=torch.tensor([0, 4, 4, 9, 16]), grid=None, blocks=None), "blocks may not be empty"),
    (dict(block_offsets=torch.tensor([0.0, 16.0]), grid=None, blocks=None), "expected integers"),
    (dict(block_offsets=torch.tensor([0, 4, 8, 12, 16]), permutation=torch.zeros(16, dtype=torch.long), grid=None, blocks=None),
     "permutation.1. is 0"),
])
def test_attention_says_what_is_wrong(change, message):
    q, k, v = problem(grad=False)
    given = dict(q=q, k=k, v=v, mix=mix_of(2, 2, grad=False), grid=(4, 4), blocks=(2, 2)) | change
    with pytest.raises(mhla.Error, match=message):
        mhla.attention(**given)
    assert issubclass(mhla.Error, ValueError)


@pytest.mark.parametrize("change, message", [
    (dict(cu_seqlens=torch.tensor([0, 9, 5, 16])), "cu_seqlens"),
    (dict(cu_seqlens=torch.tensor([0, 9, 17])), "cu_seqlens ends with 17"),
    (dict(cu_seqlens=torch.tensor([0.0, 16.0])), "expected integers"),
    (dict(chunk_size=3), "6 chunks of 3: mix has 4"),
    (dict(chunk_size=-1), "chunk is -1"),
    (dict(initial_state=torch.zeros(1, 1, 2, 8, 6), past=9), "initial_state has shape"),
    (dict(past=4), "past is 4 but initial_state is NULL"),
    (dict(beyond="wrap"), "beyond is 'wrap'"),
])
def test_causal_attention_says_what_is_wrong(change, message):
    q, k, v = problem(grad=False, B=1)
    given = dict(q=q, k=k, v=v, mix=mix_of(4, name="causal", grad=False), chunk_size=4) | change
    with pytest.raises(mhla.Error, match=message):
        mhla.causal_attention(**given)


def test_softmax_attention_says_what_is_wrong():
    q, k, v = problem(grad=False)
    with pytest.raises(mhla.Error, match="window is 3 but causal is 0"):
        mhla.softmax_attention(q, k, v, window=3)
    with pytest.raises(mhla.Error, match="heads is 2: not a multiple of kv_heads 3"):
        mhla.softmax_attention(q, torch.randn(2, 16, 3, 8), torch.randn(2, 16, 3, 6))


def test_nan_stays_where_it_belongs():
    q, k, v = problem(grad=False, T=40)
    mix = mix_of(10, name="causal", grad=False)
    clean, _ = mhla.causal_attention(q, k, v, mix, chunk_size=4)
    k[:, 21] = float("nan")
    dirty, _ = mhla.causal_attention(q, k, v, mix, chunk_size=4)
    assert torch.equal(clean[:, :21], dirty[:, :21]) and dirty[:, 21:].isnan().all()


def test_mixing_helpers_take_tensors():
    mix = torch.nn.Parameter(torch.tensor([[2.0, -1.0], [0.5, 0.5]]))
    assert mhla.mix_clip(mix, renormalise=True) is mix
    assert torch.allclose(mix.detach().sum(1), torch.ones(2)) and mix.min() > 0
    assert mhla.mix_init("paper", 1).tolist() == [[1.0]]
    for name in mhla.mix_names():
        blocks = 5 if name == "causal" else (2, 3)
        assert np.isfinite(mhla.mix_init(name, blocks)).all()
    with pytest.raises(mhla.Error):
        mhla.mix_init("nonsense", 3)


# ---- Cross attention ---------------------------------------------------------------------------------------------------

def across(T=12, Tk=16, **options):
    q, k, v = problem(grad=False)
    given = dict(q=q[:, :T], k=k[:, :Tk], v=v[:, :Tk], mix=torch.ones(2, 4), grid=(3, 4), blocks=(1, 2), key_grid=(4, 4), key_blocks=(2, 2))
    given.update(options)
    return given


def test_numpy_computes_cross_attention_alike():
    table = tuple(x[:12] for x in ROPE)
    for options in ({}, dict(rope=table, key_rope=ROPE), dict(key_grid=None, key_blocks=None, key_block_offsets=torch.tensor([0, 1, 5, 15, 16]),
                                                              key_permutation=torch.arange(16).flip(0))):
        given = across(**options)
        arrays = {name: tuple(y.numpy() for y in x) if name.endswith("rope") else x.numpy() if isinstance(x, torch.Tensor) else x
                  for name, x in given.items()}
        assert (mhla.attention(**given).numpy() == mhla.attention(**arrays)).all()


def test_keys_where_queries_are():
    """The layout of the queries, said again, has the bits of the operator that has one layout."""
    q, k, v = problem()
    mix = mix_of(2, 2)
    results = []
    for keys in ({}, dict(key_grid=(4, 4), key_blocks=(2, 2))):
        o = mhla.attention(q, k, v, mix, (4, 4), (2, 2), rope=ROPE, denominator="released", **keys)
        results.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v, mix))])
    assert all(torch.equal(a, b) for a, b in zip(*results))


@pytest.mark.parametrize("change, message", [
    (dict(mix=torch.ones(4, 2)), r"mix has shape \(4, 2\): there are 2 blocks of queries and 4 of keys"),
    (dict(Tk=15), "kv_tokens is 15: the plan's keys are 16"),
    (dict(T=11), "tokens is 11: the plan's grid has 12"),
    (dict(denominator="released"), "equal layouts"),
    (dict(key_blocks=(2,)), "expected as many pieces as axes"),
    (dict(key_blocks=(5, 2)), r"key_blocks\[0\] is 5: expected 1 to key_grid\[0\] = 4"),
    (dict(key_permutation=torch.arange(16)), "key_permutation is given without key_block_offsets"),
    (dict(key_block_offsets=[0, 4, 8, 12, 16]), "choose one"),
    (dict(key_rope=ROPE), "key_rope is given without rope"),
    (dict(rope=ROPE, key_rope=(ROPE[0][:9], ROPE[1][:9])), "key_rope_rows is 9: there are 16 keys"),
    (dict(rope=ROPE, key_rope=(ROPE[0][:, :1], ROPE[1][:, :1])), "key_rope's cos has shape"),
    (dict(rope=ROPE, key_rope=(ROPE[0], None)), "key_rope is .cos, sin.: one of them is missing"),
])
def test_wrong_cross_attention(change, message):
    with pytest.raises(mhla.Error, match=message):
        mhla.attention(**across(**change))


def test_linear_attention_of_other_keys():
    q, k, v = problem(grad=False)
    o, _ = mhla.linear_attention(q[:, :5], k, v, feature_eps=0.1)
    one, = mhla.attention(q[:, :5], k, v, torch.ones(1, 1), 5, 1, key_grid=16, key_blocks=1, feature_eps=0.1)[None]
    assert torch.allclose(o, one, rtol=1e-5)


def test_mixing_of_rectangles():
    assert mhla.mix_init("exp", (2, 2), key_blocks=(3, 1)).shape == (4, 3)
    assert (mhla.mix_init("uniform", (2, 2), key_blocks=5) == np.float32(0.2)).all()
    with pytest.raises(mhla.Error, match="key_blocks has 1 axes, blocks has 2"):
        mhla.mix_init("paper", (2, 2), key_blocks=5)
    with pytest.raises(mhla.Error, match="a causal matrix is square"):
        mhla.mix_init("causal", 2, key_blocks=3)
