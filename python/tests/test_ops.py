"""mhla.ops: values and all gradients against definitions in float64, packed sequences, states, dtypes, compile, bad input."""
import inspect
import json
import os
import pathlib

import naive
import pytest
import torch
import torch.nn.functional as F

import mhla
from mhla import _dispatch, ops

ROOT = pathlib.Path(__file__).parents[2]
GOLDENS = pathlib.Path(os.environ.get("MHLA_GOLDENS", ROOT.parent / "shared" / "goldens")) / "lm" / "ops"
CLOSE = 5e-5  # of the largest number: float32 over some hundred tokens


def close(got, expected, what="", tolerance=CLOSE):
    got, expected = got.detach(), expected.detach()
    assert got.shape == expected.shape, f"{what}: {tuple(got.shape)} instead of {tuple(expected.shape)}"
    off = (got.double() - expected.double()).abs().max() if expected.numel() else torch.tensor(0.0)
    assert off <= tolerance * max(1e-3, float(expected.double().abs().max()) if expected.numel() else 0), f"{what} is off by {off:.3g}"


def compare(function, definition, inputs, tolerance=CLOSE):
    """Results and gradients of both, all results with random weights; inputs: name -> tensor or None."""
    given = {n: x if x is None else x.clone().requires_grad_() for n, x in inputs.items()}
    exact = {n: x if x is None else x.double().requires_grad_() for n, x in inputs.items()}
    got, expected = function(**given), definition(**exact)
    arrived = [torch.randn(y.shape) for y in expected]
    for i, (a, b) in enumerate(zip(got, expected)):
        close(a, b, f"result {i}", tolerance)
    names = [n for n, x in inputs.items() if x is not None]
    dx = torch.autograd.grad(got, [given[n] for n in names], [w.to(y.dtype) for w, y in zip(arrived, got)])
    dy = torch.autograd.grad(expected, [exact[n] for n in names], [w.double() for w in arrived], allow_unused=True)
    for n, a, b in zip(names, dx, dy):
        close(a, torch.zeros_like(a) if b is None else b, f"the gradient of {n}", tolerance)


def tokens(B, T, H, HV, K, V, channels=False, delta=False, state=False, strong=1.0):
    g = -strong * torch.rand(B, T, HV, *((K,) if channels else ())) ** 2
    x = {"q": torch.randn(B, T, H, K), "k": torch.randn(B, T, H, K), "v": torch.randn(B, T, HV, V), "g": g}
    if delta:
        x["k"] = F.normalize(x["k"], dim=-1)
        x["beta"] = 2 * torch.rand(B, T, HV)
    x["state"] = torch.randn(B, HV, K, V) if state else None
    return x


SHAPES = [(1, 1, 1, 1, 1, 1), (2, 1, 2, 2, 8, 6), (1, 63, 2, 2, 1, 5), (2, 65, 1, 1, 60, 1), (1, 130, 3, 3, 16, 20), (2, 37, 2, 2, 64, 33)]


def gla(q, k, v, g, state, **options):
    return ops.chunk_gla(q, k, v, g, initial_state=state, output_final_state=True, **options)


def simple_gla(q, k, v, g, state, **options):
    return ops.chunk_simple_gla(q, k, v, g, initial_state=state, output_final_state=True, **options)


def delta_rule(q, k, v, g, beta, state, **options):
    return ops.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True, **options)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("state", [False, True], ids=["empty", "state"])
@pytest.mark.parametrize("name", ["gla", "simple_gla", "delta"])
def test_recurrences(name, shape, state):
    torch.manual_seed(1)
    x = tokens(*shape, channels=name == "gla", delta=name == "delta", state=state)
    function = {"gla": gla, "simple_gla": simple_gla, "delta": delta_rule}[name]
    compare(function, lambda q, k, v, g, state, beta=None: naive.recurrence(q, k, v, g, beta, state), x)


def test_groups_scale_and_strong_decay():
    torch.manual_seed(2)
    compare(lambda **x: simple_gla(**x, scale=0.3), lambda q, k, v, g, state: naive.recurrence(q, k, v, g, None, state, 0.3),
            tokens(2, 70, 2, 6, 8, 12, state=True))
    compare(lambda **x: delta_rule(**x, use_qk_l2norm_in_kernel=True),
            lambda q, k, v, g, beta, state: naive.recurrence(q, k, v, g, beta, state, None, True),
            tokens(1, 70, 2, 4, 8, 12, delta=True, state=True))
    compare(gla, lambda q, k, v, g, state: naive.recurrence(q, k, v, g, None, state), tokens(1, 100, 2, 2, 8, 8, channels=True, strong=60.0))


@pytest.mark.parametrize("name", ["gla", "simple_gla", "retention", "delta"])
def test_second_names(name):
    """fused_recurrent_*, states with V first, and reading backwards."""
    torch.manual_seed(3)
    x = tokens(2, 50, 2, 2, 8, 6, channels=name == "gla", delta=name == "delta", state=True)
    q, k, v, g, S, beta = x["q"], x["k"], x["v"], x["g"], x["state"], x.get("beta")
    if name == "retention":
        g = torch.log(1 - 2.0 ** -torch.tensor([5.0, 6.0])).expand(2, 50, 2)
    expected = naive.recurrence(*(t.double() for t in (q, k, v, g)), None if beta is None else beta.double(), S.double())
    options = {"initial_state": S.transpose(-1, -2), "output_final_state": True, "state_v_first": True}
    fused = {"gla": lambda q, k, v, g, **o: ops.fused_recurrent_gla(q, k, v, g, **o),
             "simple_gla": lambda q, k, v, g, **o: ops.fused_recurrent_simple_gla(q, k, v, g, **o),
             "retention": lambda q, k, v, g, **o: ops.fused_recurrent_retention(q, k, v, **o),
             "delta": lambda q, k, v, g, **o: ops.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, **o)}[name]
    o, final = fused(q, k, v, g, **options)
    close(o, expected[0])
    close(final, expected[1].transpose(-1, -2))
    if name != "delta":  # fla has no `reverse` there
        flipped = naive.recurrence(*(t.double().flip(1) for t in (q, k, v, g)), None, S.double())
        o, final = fused(q, k, v, g, reverse=True, **options)
        close(o, flipped[0].flip(1))
        close(final, flipped[1].transpose(-1, -2))
        cu = torch.tensor([0, 20, 20, 50])
        apart = torch.cat([fused(q[:1, a:b], k[:1, a:b], v[:1, a:b], g[:1, a:b], reverse=True)[0] for a, b in ((0, 20), (20, 50))], 1)
        close(fused(q[:1], k[:1], v[:1], g[:1], reverse=True, cu_seqlens=cu)[0], apart)
    if name == "retention":
        close(ops.chunk_retention(q, k, v)[0], naive.recurrence(*(t.double() for t in (q, k, v, g)))[0])


def test_other_names():
    """fused_chunk_* and parallel_* have the bits of chunk_*."""
    torch.manual_seed(3)
    x = tokens(1, 50, 2, 2, 8, 6, state=True)
    q, k, v, g, S = (x[n] for n in ("q", "k", "v", "g", "state"))
    for a, b in ((ops.fused_chunk_simple_gla(q, k, v, g, None, 0.5, S, True), ops.chunk_simple_gla(q, k, v, g, None, 0.5, S, True)),
                 (ops.fused_chunk_retention(q, k, v, 0.5, S, True), ops.chunk_retention(q, k, v, 0.5, S, True))):
        assert all(map(torch.equal, a, b))
    cu = torch.tensor([0, 20, 50])
    assert torch.equal(ops.parallel_simple_gla(q, k, v, g, cu_seqlens=cu)[0], ops.chunk_simple_gla(q, k, v, g, cu_seqlens=cu)[0])
    o, none = ops.parallel_retention(q, k, v, cu_seqlens=cu)
    assert torch.equal(o, ops.chunk_retention(q, k, v, cu_seqlens=cu)[0]) and none is None


def test_gates_in_the_kernel():
    """What fla's Gated DeltaNet leaves to its kernels."""
    torch.manual_seed(4)
    x = tokens(1, 40, 2, 4, 8, 6, delta=True)
    raw, bias, A_log = torch.randn(1, 40, 4), torch.randn(4), torch.randn(4)
    got, _ = ops.chunk_gated_delta_rule(x["q"], x["k"], x["v"], raw, x["beta"], use_gate_in_kernel=True, A_log=A_log, dt_bias=bias,
                                        use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True)
    g = -A_log.exp() * F.softplus(raw + bias)
    expected, _ = naive.recurrence(*(t.double() for t in (x["q"], x["k"], x["v"], g, 2 * x["beta"].sigmoid())))
    close(got, expected)
    again, _ = ops.fused_recurrent_gated_delta_rule(x["q"], x["k"], x["v"], raw, beta=x["beta"], use_gate_in_kernel=True, A_log=A_log,
                                                    dt_bias=bias, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True)
    assert torch.equal(got, again)
    plain, _ = ops.fused_recurrent_gated_delta_rule(x["q"], x["k"], x["v"])
    close(plain, naive.recurrence(*(t.double() for t in (x["q"], x["k"], x["v"], torch.zeros(1, 40, 4), torch.ones(1, 40, 4))))[0])


def mamba2(batch, T, H, P, G, N, state=False, **more):
    x = {"x": torch.randn(batch, T, H, P), "dt": torch.randn(batch, T, H), "A": -torch.rand(H), "B": torch.randn(batch, T, G, N),
         "C": torch.randn(batch, T, G, N), **more}
    x["state"] = torch.randn(batch, H, P, N) if state else None
    return x


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 1), (2, 65, 4, 6, 2, 8), (1, 70, 3, 8, 1, 16)], ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["D", "D of channels"])
def test_mamba2(shape, wide):
    torch.manual_seed(5)
    H, P = shape[2:4]
    x = mamba2(*shape, state=True, D=torch.randn(H, P) if wide else torch.randn(H), z=torch.randn(*shape[:4]), dt_bias=torch.randn(H))
    limit = (0.05, 1.5) if wide else (0.0, float("inf"))

    def scan(x, dt, A, B, C, D, z, dt_bias, state):
        return ops.mamba_chunk_scan_combined(x, dt, A, B, C, 64, D, z, dt_bias, state, dt_softplus=True, dt_limit=limit,
                                             return_final_states=True)

    compare(scan, lambda **t: naive.ssd(**t, softplus=True, limit=limit), x)


def test_mamba2_sequences():
    """seq_idx in a batch, and cu_seqlens, against each sequence alone."""
    torch.manual_seed(6)
    x = mamba2(2, 50, 4, 6, 2, 8, state=True)
    state = x.pop("state")
    x["dt"] = x["dt"].abs()

    def alone(row, a, b, first=None):
        part = {n: t if n == "A" else t[row : row + 1, a:b] for n, t in x.items()}
        return ops.mamba_chunk_scan_combined(**part, chunk_size=8, initial_states=first, return_final_states=True)

    index = torch.cat([torch.tensor([0] * 20 + [1] * 30)[None], torch.tensor([0] * 7 + [4] * 1 + [2] * 42)[None]])
    y, final = ops.mamba_chunk_scan_combined(**x, chunk_size=8, seq_idx=index, initial_states=state, return_final_states=True)
    rows = [[alone(0, 0, 20, state[:1]), alone(0, 20, 50)], [alone(1, 0, 7, state[1:]), alone(1, 7, 8), alone(1, 8, 50)]]
    for r, parts in enumerate(rows):
        close(y[r : r + 1], torch.cat([p[0] for p in parts], 1))
        close(final[r : r + 1], parts[-1][1])
    one = {n: t if n == "A" else t[:1] for n, t in x.items()}
    y, final, each = ops.mamba_chunk_scan_combined(**one, chunk_size=8, cu_seqlens=torch.tensor([0, 20, 50]), return_final_states=True,
                                                   return_varlen_states=True)
    parts = [alone(0, 0, 20), alone(0, 20, 50)]
    close(y, torch.cat([p[0] for p in parts], 1))
    close(each, torch.cat([p[1] for p in parts]))
    assert torch.equal(final, each[-1:])


def mamba(batch, T, D, N, kind="BNT", G=2):
    shape = {"DN": (D, N), "BNT": (batch, N, T), "BGNT": (batch, G, N, T)}[kind]
    return {"u": torch.randn(batch, D, T), "delta": torch.randn(batch, D, T), "A": -torch.rand(D, N) * 2, "B": torch.randn(shape),
            "C": torch.randn(shape), "D": torch.randn(D), "z": torch.randn(batch, D, T), "bias": torch.randn(D)}


@pytest.mark.parametrize("kind", ["DN", "BNT", "BGNT"])
@pytest.mark.parametrize("shape", [(1, 1, 2, 1), (2, 67, 6, 4), (1, 130, 20, 16)], ids=str)
def test_selective_scan(shape, kind):
    torch.manual_seed(7)

    def scan(u, delta, A, B, C, D, z, bias):
        return ops.selective_scan_fn(u, delta, A, B, C, D, z, bias, True, True)

    compare(scan, lambda **t: naive.scan(**t, softplus=True), mamba(*shape, kind=kind))


def test_selective_scan_mixed_packed_stepped():
    torch.manual_seed(8)
    x = mamba(1, 50, 6, 4)
    u, delta, A, B, C = (x[n] for n in ("u", "delta", "A", "B", "C"))
    close(ops.selective_scan_fn(u, delta, A, torch.ones(6, 4), C, delta_softplus=True),
          naive.scan(u.double(), delta.double(), A.double(), torch.ones(6, 4).double(), C.double(), softplus=True)[0])
    y, last = ops.selective_scan_fn(u, delta, A, B, C, delta_softplus=True, return_last_state=True, cu_seqlens=torch.tensor([0, 20, 50]))
    parts = [ops.selective_scan_fn(u[..., a:b], delta[..., a:b], A, B[..., a:b], C[..., a:b], None, None, None, True, True)
             for a, b in ((0, 20), (20, 50))]
    close(y, torch.cat([p[0] for p in parts], 2))
    close(last, parts[1][1])
    state = torch.zeros(1, 6, 4)  # token by token
    steps = [ops.selective_state_update(state, u[..., t], delta[..., t], A, B[..., t], C[..., t], x["D"], x["z"][..., t], x["bias"], True)
             for t in range(50)]
    y, last = ops.selective_scan_fn(*x.values(), True, True)
    close(torch.stack(steps, 2), y)
    close(state, last)


def test_mamba2_steps():
    torch.manual_seed(9)
    x = mamba2(2, 9, 4, 6, 2, 8, state=True)
    state, D, bias = x.pop("state"), torch.randn(4), torch.randn(4)
    y, last = ops.mamba_chunk_scan_combined(**x, chunk_size=8, D=D, dt_bias=bias, initial_states=state, dt_softplus=True,
                                            return_final_states=True)
    each = [ops.selective_state_update(state, x["x"][:, t], x["dt"][:, t, :, None].expand(2, 4, 6), x["A"][:, None, None].expand(4, 6, 8),
                                       x["B"][:, t], x["C"][:, t], D[:, None].expand(4, 6), None, bias[:, None].expand(4, 6), True)
            for t in range(9)]
    close(torch.stack(each, 1), y)
    close(state, last)


@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (2, 2, 6, 4), (2, 65, 17, 3), (1, 30, 8, 1)], ids=str)
@pytest.mark.parametrize("silu", [False, True], ids=["plain", "silu"])
def test_convolution(shape, silu):
    torch.manual_seed(10)
    B, T, D, W = shape
    x = {"x": torch.randn(B, T, D), "weight": torch.randn(D, W), "bias": torch.randn(D), "state": torch.randn(B, D, W)}

    def conv(x, weight, bias, state):
        return ops.causal_conv1d(x, weight, bias, None, state, True, "silu" if silu else None)

    compare(conv, lambda **t: naive.conv(**t, silu=silu), x)
    x.pop("state")

    def channels_first(x, weight, bias):
        y, final = ops.causal_conv1d_fn(x.transpose(1, 2), weight, bias, None, None, True, None, "swish" if silu else None)
        return y.transpose(1, 2), final

    def definition(**t):
        y, final = naive.conv(**t, silu=silu)
        return y, final[..., 1:]

    compare(channels_first, definition, x)


def test_convolution_sequences():
    torch.manual_seed(11)
    x, w, index = torch.randn(2, 5, 30), torch.randn(5, 4), torch.tensor([[0] * 10 + [1] * 20, [3] * 1 + [4] * 29])
    y = ops.causal_conv1d_fn(x, w, seq_idx=index)
    for r, cut in ((0, 10), (1, 1)):
        close(y[r : r + 1], torch.cat([ops.causal_conv1d_fn(x[r : r + 1, :, a:b], w) for a, b in ((0, cut), (cut, 30))], 2))
    residual = torch.randn(2, 30, 5)
    packed, final = ops.causal_conv1d(x.transpose(1, 2)[:1], w, None, residual[:1], output_final_state=True, cu_seqlens=torch.tensor([0, 10, 10, 30]))
    close(packed.transpose(1, 2) - residual[:1].transpose(1, 2), y[:1])
    assert final.shape == (3, 5, 4) and not final[1].any()
    state = torch.zeros(2, 5, 5)
    out = torch.zeros(2, 5, 3)
    whole, kept = ops.causal_conv1d_fn(x, w, return_final_states=True, final_states_out=out)
    steps = [ops.causal_conv1d_update(x[..., 0], state, w)[..., None], ops.causal_conv1d_update(x[..., 1:], state, w)]
    close(torch.cat(steps, 2), whole)
    assert kept is out and torch.equal(out, x[..., -3:]) and torch.equal(state, x[..., -5:])


# ---- Goldens ---------------------------------------------------------------------------------------------------------------

def goldens(*kinds):
    safetensors = pytest.importorskip("safetensors")
    found = []
    for path in sorted(GOLDENS.glob("*.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            case = json.loads(file.metadata()["config"])
        if case["op"] in kinds:
            found.append(pytest.param(path, case, id=path.stem))
    return found


def run_golden(case, x):
    """The results of a case's operator under their names in the file."""
    scale = case.get("scale") if isinstance(case.get("scale"), (int, float)) else None
    more = {"initial_state": x.get("initial_state"), "output_final_state": True, "cu_seqlens": x.get("cu_seqlens")}
    kind = case["op"]
    if kind == "gla":
        result = ops.chunk_gla(x["q"], x["k"], x["v"], x["gk"], scale, **more)
    elif kind == "simple_gla":
        result = ops.chunk_simple_gla(x["q"], x["k"], x["v"], x["g"], scale=scale, **more)
    elif kind == "retention":
        result = ops.chunk_retention(x["q"], x["k"], x["v"], scale, **more)
    elif kind == "gated_delta_rule":
        result = ops.chunk_gated_delta_rule(x["q"], x["k"], x["v"], x["g"], x["beta"], scale, use_qk_l2norm_in_kernel=case["qk_l2norm"], **more)
    elif kind == "short_conv":
        y, cache = ops.causal_conv1d(x["x"], x["weight"][:, 0], x.get("bias"), None, x.get("cache"), True, case["activation"],
                                     cu_seqlens=x.get("cu_seqlens"))
        return {"y": y, "final_cache": cache}
    elif kind == "ssd":
        limit = tuple(map(float, case["dt_limit"]))
        y, state = ops.mamba_chunk_scan_combined(x["x"], x["dt"], x["A"], x["B"], x["C"], 64, x.get("D"), x.get("z"), x.get("dt_bias"),
                                                 x.get("initial_state"), None, x.get("cu_seqlens"), case["dt_softplus"], limit, True)
        return {"y": y, "final_state": state}
    else:
        y, state = ops.selective_scan(x["u"], x["delta"], x["A"], x["B"][:, :, None], x["C"][:, :, None], x.get("D"), x.get("z"),
                                      x.get("delta_bias"), case["delta_softplus"], **more)
        return {"y": y, "final_state": state}
    return {"o": result[0], "final_state": result[1]}


@pytest.mark.skipif(not GOLDENS.exists(), reason="no goldens: set MHLA_GOLDENS")
@pytest.mark.parametrize("path, case", goldens("gla", "simple_gla", "retention", "ssd", "gated_delta_rule", "selective_scan", "short_conv"))
def test_goldens(path, case):
    from safetensors.torch import load_file

    tensors = load_file(path)
    leaves = {n: x.requires_grad_(x.is_floating_point()) for n, x in tensors.items() if n.startswith(("in.", "param."))}
    got = run_golden(case, {n.split(".", 1)[1]: x for n, x in leaves.items()})
    wanted = [n for n in tensors if n.startswith("grad.")]
    inputs = [next(x for p in ("", "in.", "param.") if (x := leaves.get(p + n[5:])) is not None) for n in wanted]
    for n, y in got.items():
        close(y, tensors["out." + n], n)
    grads = torch.autograd.grad(list(got.values()), inputs, [tensors["dout." + n] for n in got])
    for n, dx in zip(wanted, grads):
        close(dx, tensors[n], n)


# ---- Sequences, states, dtypes -----------------------------------------------------------------------------------------------

CALLS = {"gla": (gla, dict(channels=True)), "simple_gla": (simple_gla, {}), "delta": (delta_rule, dict(delta=True))}


@pytest.mark.parametrize("name", CALLS)
def test_packed_equals_separate(name):
    """Outputs, states and gradients; one of the sequences is empty."""
    torch.manual_seed(12)
    function, options = CALLS[name]
    ends = [0, 1, 66, 66, 130]
    x = tokens(1, 130, 2, 2, 8, 6, **options)
    x["state"] = torch.randn(4, 2, 8, 6)

    def packed(**t):
        return function(**t, cu_seqlens=torch.tensor(ends, dtype=torch.int32))

    def separate(state, **t):
        parts = [naive.recurrence(*(t[n][:, a:b] for n in "qkvg"), t["beta"][:, a:b] if "beta" in t else None, state[s : s + 1])
                 if b > a else (t["v"][:, :0], state[s : s + 1]) for s, (a, b) in enumerate(zip(ends, ends[1:]))]
        return torch.cat([o for o, _ in parts], 1), torch.cat([S for _, S in parts])

    compare(packed, separate, x)


@pytest.mark.parametrize("name", CALLS)
def test_split_equals_whole(name):
    torch.manual_seed(13)
    function, options = CALLS[name]
    x = tokens(2, 90, 2, 2, 8, 6, **options)
    o, final = function(**x)
    state, parts = None, []
    for a, b in ((0, 1), (1, 40), (40, 40), (40, 90)):
        part, state = function(**{n: t[:, a:b] for n, t in x.items() if n != "state"}, state=state)
        parts.append(part)
    close(torch.cat(parts, 1), o)
    close(state, final)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", CALLS)
def test_half(name, dtype, tolerance):
    """q, k, v in bfloat16 or float16; decays and states stay float32."""
    torch.manual_seed(14)
    function, options = CALLS[name]
    x = tokens(1, 70, 2, 2, 16, 16, **options, state=True)
    x = {n: t.to(dtype) if n in "qkv" else t for n, t in x.items()}
    compare(function, lambda q, k, v, g, state, beta=None: naive.recurrence(q, k, v, g, beta, state), x, tolerance)
    o, final = function(**x)
    assert o.dtype is dtype and final.dtype is torch.float32


def test_half_of_mamba():
    torch.manual_seed(15)
    x = {n: t.bfloat16() for n, t in mamba(1, 40, 6, 4).items()}
    y = ops.selective_scan_fn(*x.values(), True)
    assert y.dtype is torch.bfloat16
    close(y, naive.scan(*(t.double() for t in x.values()), softplus=True)[0], tolerance=1e-2)
    t = torch.randn(1, 40, 6).bfloat16()
    assert ops.causal_conv1d(t, torch.randn(6, 4).bfloat16())[0].dtype is torch.bfloat16
    x = {n: t.bfloat16() for n, t in mamba2(1, 40, 4, 6, 2, 8).items() if t is not None}
    assert ops.mamba_chunk_scan_combined(**x, chunk_size=64, dt_softplus=True).dtype is torch.bfloat16


def test_strides():
    """Slices of a fused projection, [B,H,T,K], broadcast inputs."""
    torch.manual_seed(16)
    qkvg = torch.randn(2, 40, 2, 32)
    q, k, v, g = qkvg.split(8, 3)
    g = -g.abs()
    close(ops.chunk_gla(q, k, v, g)[0], naive.recurrence(*(t.double() for t in (q, k, v, g)))[0])
    q, k, v = torch.randn(3, 2, 2, 40, 8).transpose(2, 3)
    g = -torch.rand(2, 2, 40).transpose(1, 2)
    close(ops.chunk_simple_gla(q, k, v, g)[0], naive.recurrence(*(t.double() for t in (q, k, v, g)))[0])
    one = -torch.rand(1, 1, 1, 1).expand(2, 40, 2, 8)
    close(ops.chunk_gla(q, k, v, one)[0], naive.recurrence(*(t.double() for t in (q, k, v, one)))[0])


# ---- torch -------------------------------------------------------------------------------------------------------------------

def arguments(name):
    """What reaches the op of a call with everything."""
    torch.manual_seed(17)
    grad = lambda *shape: torch.randn(shape, requires_grad=True)  # noqa: E731
    if name == "selective_scan":
        return (grad(2, 7, 6), grad(2, 7, 6), (-torch.rand(6, 4)).requires_grad_(), grad(2, 7, 2, 4), grad(2, 7, 2, 4), grad(6), grad(2, 7, 6),
                grad(6), grad(2, 6, 4), None, True, True)
    if name == "short_conv":
        return grad(2, 7, 6), grad(6, 4), grad(6), grad(2, 6, 4), None, True, True
    g = (-torch.rand(2, 7, 2, *((8,) if name == "gla" else ()))).requires_grad_()
    beta = torch.rand(2, 7, 2, requires_grad=True) if name == "gated_delta" else None
    return grad(2, 7, 2, 8), grad(2, 7, 2, 8), grad(2, 7, 2, 6), g, beta, grad(2, 2, 8, 6), None, 0.5, name == "gated_delta", "tensors", True


OPS = ["gla", "simple_gla", "gated_delta", "selective_scan", "short_conv"]


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name):
    args = arguments(name)
    torch.library.opcheck(_dispatch.OPS[name], args)
    result = _dispatch.OPS[name](*args)
    wanted = [isinstance(x, torch.Tensor) for x in args[: _dispatch.SIGNATURES[name].grads]]
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
    torch.library.opcheck(_dispatch.BACKWARD[name], (*(y.detach() for y in result), wanted, *given))


@pytest.mark.parametrize("name", OPS)
def test_plain_pytorch_agrees(name):
    """Other devices, forward mode, vmap and second derivatives run it."""
    args = arguments(name)
    signature = _dispatch.SIGNATURES[name]
    kernel, plain = _dispatch.call(name, args), signature.plain(name, args)
    inputs = [x for x in args[: signature.grads] if x is not None]
    arrived = [torch.randn_like(y) for y in kernel]
    for a, b in zip(kernel, plain):
        close(a, b)
    for a, b in zip(torch.autograd.grad(kernel, inputs, arrived, retain_graph=True), torch.autograd.grad(plain, inputs, arrived)):
        close(a, b)
    first = torch.autograd.grad(kernel[0].square().sum(), inputs[0], create_graph=True)[0]  # and twice
    again = torch.autograd.grad(signature.plain(name, args)[0].square().sum(), inputs[0], create_graph=True)[0]
    close(torch.autograd.grad(first.square().sum(), inputs[1])[0], torch.autograd.grad(again.square().sum(), inputs[1])[0])
    tangent = torch.func.jvp(lambda x: _dispatch.call(name, (x, *args[1:]))[0], (args[0].detach(),), (torch.ones_like(args[0]),))[1]
    assert tangent.shape == kernel[0].shape and tangent.any()


def test_compile():
    """No break in the graph, the same numbers and gradients, sizes that change."""
    torch._dynamo.reset()

    def model(q, k, v, g, beta, w):
        x, _ = ops.causal_conv1d(v.flatten(2), w, activation="silu")
        o, state = ops.chunk_gated_delta_rule(q, k, x.unflatten(2, (2, -1)), g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
        p, _ = ops.chunk_gla(q, k, o, -k.abs(), initial_state=state)
        y = ops.mamba_chunk_scan_combined(p, g.exp(), -w[:2, 0].abs(), k, q, 64)
        return ops.chunk_retention(q, k, y)[0].sum() + state.square().sum()

    torch.manual_seed(18)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (9, 30):
        x = tokens(2, T, 2, 2, 8, 8, delta=True)
        given = [x[n].requires_grad_() for n in ("q", "k", "v", "g", "beta")] + [torch.randn(16, 4, requires_grad=True)]
        got, expected = compiled(*given), model(*given)
        close(got, expected)
        for a, b in zip(torch.autograd.grad(got, given), torch.autograd.grad(expected, given)):
            close(a, b)


def test_vmap_and_nothing():
    torch.manual_seed(21)
    x = tokens(1, 9, 2, 2, 4, 4, channels=True)
    qs = torch.randn(3, 1, 9, 2, 4)
    got = torch.func.vmap(lambda q: ops.chunk_gla(q, x["k"], x["v"], x["g"])[0])(qs)
    close(got, torch.stack([ops.chunk_gla(q, x["k"], x["v"], x["g"])[0] for q in qs]))
    o, final = ops.chunk_gla(*(x[n][:0] for n in "qkvg"), output_final_state=True)  # no sequence
    assert o.shape == (0, 9, 2, 4) and final.shape == (0, 2, 4, 4)
    state = torch.randn(1, 2, 4, 4, requires_grad=True)
    o, final = ops.chunk_gla(*(x[n][:, :0] for n in "qkvg"), initial_state=state, output_final_state=True)  # no token
    final.sum().backward()
    assert o.shape == (1, 0, 2, 4) and torch.equal(final, state) and (state.grad == 1).all()
    y, last = ops.causal_conv1d(torch.zeros(2, 0, 3), torch.ones(3, 4), initial_state=torch.ones(2, 3, 4), output_final_state=True)
    assert y.shape == (2, 0, 3) and (last == 1).all()


def test_autocast():
    torch.manual_seed(19)
    x = tokens(1, 20, 2, 2, 8, 6)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = ops.chunk_simple_gla(x["q"].bfloat16(), x["k"], x["v"], x["g"].bfloat16())
    assert o.dtype is torch.float32


def test_signatures():
    """Names, order and defaults of fla, mamba_ssm and causal_conv1d."""
    expected = {
        "chunk_gla": "q k v g scale=None initial_state=None output_final_state=False state_v_first=False cu_seqlens=None cu_seqlens_cpu=None",
        "fused_recurrent_gla": "q k v gk=None gv=None scale=None initial_state=None output_final_state=False reverse=False "
                               "state_v_first=False cu_seqlens=None kwargs",
        "chunk_simple_gla": "q k v g=None g_gamma=None scale=None initial_state=None output_final_state=False state_v_first=False "
                            "cu_seqlens=None cu_seqlens_cpu=None kwargs",
        "fused_recurrent_simple_gla": "q k v g=None g_gamma=None scale=None initial_state=None output_final_state=False reverse=False "
                                      "state_v_first=False cu_seqlens=None kwargs",
        "fused_chunk_simple_gla": "q k v g=None g_gamma=None scale=None initial_state=None output_final_state=False cu_seqlens=None",
        "parallel_simple_gla": "q k v g=None scale=None output_attentions=False cu_seqlens=None cu_seqlens_cpu=None",
        "fused_chunk_retention": "q k v scale=None initial_state=None output_final_state=False cu_seqlens=None",
        "parallel_retention": "q k v scale=None output_attentions=False cu_seqlens=None",
        "chunk_retention": "q k v scale=None initial_state=None output_final_state=False cu_seqlens=None kwargs",
        "fused_recurrent_retention": "q k v scale=None initial_state=None output_final_state=False reverse=False state_v_first=False "
                                     "cu_seqlens=None kwargs",
        "chunk_gated_delta_rule": "q k v g beta scale=None initial_state=None output_final_state=False use_qk_l2norm_in_kernel=False "
                                  "use_beta_sigmoid_in_kernel=False allow_neg_eigval=False state_v_first=False cu_seqlens=None "
                                  "cu_seqlens_cpu=None chunk_indices=None cp_context=None kwargs",
        "fused_recurrent_gated_delta_rule": "q k v g=None gk=None gv=None beta=None scale=None initial_state=None output_final_state=False "
                                            "use_qk_l2norm_in_kernel=False use_gate_in_kernel=False A_log=None dt_bias=None "
                                            "use_beta_sigmoid_in_kernel=False allow_neg_eigval=False state_v_first=False cu_seqlens=None kwargs",
        "mamba_chunk_scan_combined": "x dt A B C chunk_size D=None z=None dt_bias=None initial_states=None seq_idx=None cu_seqlens=None "
                                     "dt_softplus=False dt_limit=(0.0, inf) return_final_states=False return_varlen_states=False",
        "selective_scan_fn": "u delta A B C D=None z=None delta_bias=None delta_softplus=False return_last_state=False cu_seqlens=None",
        "causal_conv1d": "x weight=None bias=None residual=None initial_state=None output_final_state=False activation=None backend=triton "
                         "cu_seqlens=None cu_seqlens_cpu=None chunk_indices=None cp_context=None kwargs",
        "causal_conv1d_fn": "x weight bias=None seq_idx=None initial_states=None return_final_states=False final_states_out=None "
                            "activation=None",
    }
    for name, text in expected.items():
        parameters = inspect.signature(getattr(ops, name)).parameters.values()
        assert " ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters) == text, name
    from mhla.ops.gated_delta_rule import chunk_gated_delta_rule  # fla's modules
    from mhla.ops.gla import chunk_gla

    assert chunk_gla is ops.chunk_gla and chunk_gated_delta_rule is mhla.ops.chunk_gdn


# ---- Bad input -----------------------------------------------------------------------------------------------------------------

X = torch.zeros(1, 4, 2, 8)
G = torch.zeros(1, 4, 2)
BAD = {
    "a decay above 0": (lambda: ops.chunk_gla(X, X, X, X + 0.5), "decay is 0.5 at batch 0, token 0, head 0, channel 0"),
    "a decay above 0 of a head": (lambda: ops.chunk_simple_gla(X, X, X, G + 1), "decay is 1 at batch 0, token 0, head 0"),
    "a positive A": (lambda: ops.mamba_chunk_scan_combined(X, G + 1, torch.ones(2), X, X, 64), "decay is 1 at"),
    "head_first": (lambda: ops.chunk_simple_gla(X, X, X, G, head_first=True), "head_first is given"),
    "an unknown option": (lambda: ops.chunk_retention(X, X, X, offset=3), "offset is given: chunk_simple_gla has no such option"),
    "gv": (lambda: ops.fused_recurrent_gla(X, X, X, gv=X), "gv is given: decays of value channels are not supported"),
    "gk of the delta rule": (lambda: ops.fused_recurrent_gated_delta_rule(X, X, X, gk=X), "gk is given"),
    "cp_context": (lambda: ops.chunk_gated_delta_rule(X, X, X, G, G, cp_context=object()), "cp_context is given"),
    "cp_context of a convolution": (lambda: ops.causal_conv1d(X[0], torch.ones(8, 4), cp_context=1), "cp_context is given"),
    "allow_neg_eigval alone": (lambda: ops.chunk_gated_delta_rule(X, X, X, G, G, allow_neg_eigval=True), "use_beta_sigmoid_in_kernel"),
    "A_log alone": (lambda: ops.chunk_gated_delta_rule(X, X, X, G, G, A_log=G[0, 0]), "use_gate_in_kernel=True"),
    "no A_log": (lambda: ops.chunk_gated_delta_rule(X, X, X, G, G, use_gate_in_kernel=True), "it needs g and A_log"),
    "a shape of k": (lambda: ops.chunk_gla(X, X[:, :3], X, X), r"k has shape \(1, 3, 2, 8\): expected \(1, 4, 2, 8\)"),
    "a shape of g": (lambda: ops.chunk_gla(X, X, X, G), "the log-decay has shape"),
    "heads of GLA": (lambda: ops.chunk_gla(X[:, :, :1], X[:, :, :1], X, X), "v has 2 heads, q and k have 1: expected as many"),
    "heads that do not divide": (lambda: ops.chunk_simple_gla(X, X, X[:, :, :1].expand(1, 4, 3, 8), G[:, :, :1].expand(1, 4, 3)),
                                 "v has 3 heads, q and k have 2: expected a multiple"),
    "groups of Mamba2": (lambda: ops.mamba_chunk_scan_combined(X[:, :, :1], G[:, :, :1], G[0, 0, :1], X, X, 64), "expected a multiple"),
    "groups of Mamba": (lambda: ops.selective_scan_fn(torch.ones(1, 3, 4), torch.ones(1, 3, 4), -torch.ones(3, 2), torch.ones(1, 2, 2, 4),
                                                      torch.ones(1, 2, 2, 4)), "3 channels, B and C have 2 groups"),
    "a complex A": (lambda: ops.selective_scan_fn(X[0], X[0], torch.ones(4, 2) * 1j, X[0], X[0]), "only the real scan"),
    "no key channel": (lambda: ops.chunk_gla(X[..., :0], X[..., :0], X, X[..., :0]), "heads and channels may not be empty"),
    "attentions": (lambda: ops.parallel_retention(X, X, X, output_attentions=True), "output_attentions is given"),
    "a dtype": (lambda: ops.chunk_gla(X.double(), X.double(), X.double(), X), "q has dtype torch.float64"),
    "dtypes that differ": (lambda: ops.chunk_gla(X, X.bfloat16(), X, X), "k has dtype torch.bfloat16: expected torch.float32"),
    "a sparse tensor": (lambda: ops.chunk_gla(X, X.to_sparse(), X, X), "k is a sparse_coo tensor: expected a dense one"),
    "another device": (lambda: ops.chunk_gla(X, X.to("meta"), X, X), "k is on meta, q on cpu"),
    "a nested tensor": (lambda: ops.chunk_gla(*[torch.nested.nested_tensor([torch.zeros(n, 2, 8) for n in (3, 5)])] * 4), "pass cu_seqlens"),
    "a state of another size": (lambda: ops.chunk_gla(X, X, X, X, initial_state=torch.zeros(1, 2, 8, 4)), "initial_state has shape"),
    "a batch and cu_seqlens": (lambda: ops.chunk_gla(*[X.expand(2, 4, 2, 8)] * 4, cu_seqlens=torch.tensor([0, 4])), "with cu_seqlens it must be 1"),
    "cu_seqlens that end early": (lambda: ops.chunk_gla(X, X, X, X, cu_seqlens=torch.tensor([0, 3])), "cu_seqlens ends with 3"),
    "cu_seqlens of a convolution": (lambda: ops.causal_conv1d(X[0, :, :1].transpose(0, 1), torch.ones(8, 4), cu_seqlens=torch.tensor([0, 3])), "cu_seqlens"),
    "cu_seqlens and seq_idx": (lambda: ops.mamba_chunk_scan_combined(X, G, G[0, 0], X, X, 64, seq_idx=torch.zeros(1, 4), cu_seqlens=torch.tensor([0, 4])),
                               "pass one"),
    "no weight": (lambda: ops.causal_conv1d(X[0]), "weight is None"),
    "an activation": (lambda: ops.causal_conv1d(X[0], torch.ones(8, 4), activation="relu"), "activation is 'relu'"),
    "states and seq_idx": (lambda: ops.causal_conv1d_fn(X[0], torch.ones(2, 4), seq_idx=G[0], return_final_states=True), "seq_idx is given"),
    "too many taps": (lambda: ops.causal_conv1d(X[0], torch.ones(8, 65)), "width is 65"),
    "a scale of 0": (lambda: ops.chunk_gla(X, X, X, X, scale=0.0), "scale is 0"),
    "varlen states without cu_seqlens": (lambda: ops.mamba_chunk_scan_combined(X, G, G[0, 0], X, X, 64, return_varlen_states=True), "needs cu_seqlens"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    function, message = BAD[name]
    with pytest.raises(mhla.Error, match=message):
        function()


@pytest.mark.parametrize("value", [float("nan"), -float("inf")], ids=["nan", "-inf"])
@pytest.mark.parametrize("name", CALLS)
def test_decays_that_are_no_numbers(name, value):
    """-inf forgets, NaN spreads to what depends on it and to nothing else; neither hangs."""
    torch.manual_seed(20)
    function, options = CALLS[name]
    x = tokens(1, 100, 1, 1, 8, 8, **options)
    x["g"][:, 50] = value
    o, final = function(**{n: t if t is None else t.requires_grad_() for n, t in x.items()})
    (o.sum() + final.sum()).backward()
    fresh = {n: t if t is None else t.detach()[:, 50:] for n, t in x.items()}
    fresh["g"] = fresh["g"].clone()
    fresh["g"][:, 0] = 0
    if value == -float("inf"):
        close(o[:, 50:], function(**fresh)[0])
    else:
        assert o[:, 50:].isnan().all() and final.isnan().all()
    assert not o[:, :50].isnan().any()
