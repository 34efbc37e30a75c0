"""Streaming: any split equals the parallel form; fork, rollback, save, load, pickle; many at once; misuse."""
import copy
import pickle
import random
import threading

import numpy as np
import pytest
import torch

import mhla


def tokens(T, H=4, G=2, K=8, V=6, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((T, n, D), dtype=np.float32) for n, D in ((H, K), (G, K), (G, V))]


def new(M=8, chunk=4, H=4, G=2, K=8, V=6, **options):
    mix = mhla.mix_init("causal", M) if M else None
    return mhla.State(mix, H, K, V, G, chunk_size=chunk, **options)


def feed(state, q, k, v, sizes):
    out, t = [], 0
    for n in sizes:
        out.append(state.step(q[t : t + n], k[t : t + n], v[t : t + n]))
        t += n
    assert t == len(q)
    return np.concatenate(out)


def splits(T, rng):
    while T:
        n = rng.choice([1, 1, 2, 3, 5, 9, T])
        n = min(n, T)
        T -= n
        yield n


OPTIONS = [dict(), dict(denominator="eq4", feature="elu"), dict(rope=mhla.rope_table(64, 8)), dict(beyond="clamp", M=3),
           dict(beyond="chunk", max_tokens=32, M=5), dict(M=0), dict(M=0, denominator="eq4", feature="elu")]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_any_split_equals_the_parallel_form(options):
    q, k, v = tokens(30)
    M = options.get("M", 8)
    rest = {n: x for n, x in options.items() if n != "M"}
    batch = [x[None] for x in (q, k, v)]
    if M:
        size = {} if rest.get("beyond") == "chunk" else {"chunk_size": 4}
        expected, _ = mhla.causal_attention(*batch, mhla.mix_init("causal", M), **size, **rest)
    else:
        expected, _ = mhla.linear_attention(*batch, normalize="denominator" in rest, causal=True, feature=rest.get("feature", "relu"))
    rng = random.Random(0)
    for sizes in ([30], [1] * 30, *(list(splits(30, rng)) for _ in range(4))):
        state = new(**options)
        assert np.abs(feed(state, q, k, v, sizes) - expected[0]).max() < 1e-5 * np.abs(expected).max()
        assert state.tokens == 30 and state.nbytes > 0


def test_fork_rollback_and_copies():
    q, k, v = tokens(32)
    state = new()
    before = feed(state, q[:10], k[:10], v[:10], [10])
    twin, other = state.fork(), copy.deepcopy(state)
    feed(state, q[10:], k[10:], v[10:], [22])
    assert twin.tokens == other.tokens == 10 and state.tokens == 32
    state.rollback(8)
    again = feed(state, q[8:10], k[8:10], v[8:10], [2])
    assert (again == before[8:]).all() or np.allclose(again, before[8:], atol=1e-6)
    a, b = (feed(s, q[10:], k[10:], v[10:], [22]) for s in (twin, other))
    assert (a == b).all()
    with pytest.raises(mhla.Error):
        twin.rollback(30)


def test_save_load_pickle():
    q, k, v = tokens(32)
    state = new()
    feed(state, q[:10], k[:10], v[:10], [10])
    data = state.save()
    twin = new()
    twin.load(data)
    third = pickle.loads(pickle.dumps(state))
    results = [feed(s, q[10:], k[10:], v[10:], [22]) for s in (state, twin, third)]
    assert all((r == results[0]).all() for r in results)
    for bad in (data[:-1], data[:5], b"", bytes([data[0] ^ 1]) + data[1:], data[:40] + bytes([data[40] ^ 8]) + data[41:]):
        with pytest.raises(mhla.Error):
            new().load(bad)
    with pytest.raises(mhla.Error):
        mhla.State(np.tril(np.ones((8, 8), np.float32)), 4, 8, 6, 2, chunk_size=4).load(data)  # another matrix
    with pytest.raises(mhla.Error):
        new(chunk=8).load(data)


def test_a_refused_load_leaves_the_state():
    q, k, v = tokens(8)
    state = new()
    feed(state, q, k, v, [8])
    with pytest.raises(mhla.Error):
        state.load(b"nonsense")
    assert state.tokens == 8


def test_many_states_in_one_call():
    q, k, v = tokens(24)
    apart = [new() for _ in range(3)]
    together = [new() for _ in range(3)]
    for i, s in enumerate(apart + together):  # different positions
        n = (i % 3) * 3 + 1
        feed(s, q[:n], k[:n], v[:n], [n])
    one = np.concatenate([s.step(x[None], y[None], z[None])[None] for s, x, y, z in zip(apart, q, k, v)])
    many = mhla.step(together, q[:3, None], k[:3, None], v[:3, None])
    assert (one == many).all()
    cu = np.array([0, 2, 2, 7])
    packed = mhla.step(together, q[None, :7], k[None, :7], v[None, :7], cu)
    parts = [s.step(q[a:b], k[a:b], v[a:b]) for s, a, b in zip(apart, cu, cu[1:]) if b > a]
    assert np.allclose(packed[0], np.concatenate(parts), atol=1e-6)
    assert [s.tokens for s in together] == [s.tokens for s in apart]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_tensors(dtype):
    q, k, v = (torch.from_numpy(x).to(dtype) for x in tokens(20))
    mix = torch.from_numpy(mhla.mix_init("causal", 8))
    expected, _ = mhla.causal_attention(q[None], k[None], v[None], mix, chunk_size=4)
    state = mhla.State(mix, 4, 8, 6, 2, chunk_size=4, bfloat16=dtype == torch.bfloat16)
    o = torch.cat([state.step(q[t : t + 1], k[t : t + 1], v[t : t + 1]) for t in range(20)])
    assert o.dtype == dtype
    assert (o.float() - expected[0].float()).abs().max() <= (1e-5 if dtype == torch.float32 else 2e-2) * expected.float().abs().max()


def test_misuse_is_refused_and_changes_nothing():
    q, k, v = tokens(40)
    state = new()
    feed(state, q[:30], k[:30], v[:30], [30])
    with pytest.raises(mhla.Error, match="chunks"):
        state.step(q[30:], k[30:], v[30:])  # beyond M
    assert state.tokens == 30
    with pytest.raises(mhla.Error, match="q has dtype"):
        state.step(q[:1].astype(float), k[:1], v[:1])
    with pytest.raises(mhla.Error, match="k has shape"):
        state.step(q[:1], k[:1, :1], v[:1])
    with pytest.raises(mhla.Error, match="states is empty"):
        mhla.step([], q[None], k[None], v[None])
    with pytest.raises(mhla.Error, match="different descriptions"):
        mhla.step([state, new(chunk=8)], q[:2, None], k[:2, None], v[:2, None])
    with pytest.raises(mhla.Error):
        mhla.step([state, state], q[:2, None], k[:2, None], v[:2, None])  # twice the same
    assert state.tokens == 30


def test_two_threads_on_one_state():
    """One of them is told so; nothing is torn."""
    q, k, v = (np.repeat(x, 400, 0)[None] for x in tokens(1))
    state = mhla.State(mhla.mix_init("causal", 3), 4, 8, 6, 2, chunk_size=4, beyond="clamp")
    refused, fed = [], []

    def work():
        for _ in range(30):
            try:
                state.step(q, k, v)
                fed.append(1)
            except RuntimeError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert state.tokens == 400 * len(fed) and len(fed) + len(refused) == 120
