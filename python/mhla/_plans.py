"""From shapes and options to a checked plan.

Everything that the C library cannot see, because it gets addresses only, is checked here: shapes against each other.
A call whose shapes and options were seen before costs one look into a dictionary.
"""
from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from . import _mhla

Error = _mhla.Error

# names of the header's enumerations, in their order
KINDS = ("bidirectional", "causal", "linear", "linear_causal", "softmax", "focused", "inline", "mala", "rala",
         "simple_gla", "gla", "gated_delta")
FEATURES = ("relu", "elu", "identity")
DENOMINATORS = ("eq4", "released", "none")
ORDERS = ("raster", "blocks")
ROPES = ("none", "half", "interleaved")
BEYONDS = ("error", "clamp", "chunk")
PRECISIONS = ("float32", "bfloat16")


class Options(NamedTuple):
    """What a plan needs besides shapes. Sequences are tuples, so that it can be a key."""

    rope: str = "none"
    feature: str = "relu"
    feature_eps: float = 0.0
    denominator: str = "none"
    den_eps: float = 0.0
    scale: float = 0.0
    grid: tuple = ()
    blocks: tuple = ()
    order: str = "raster"
    chunk: int = 0
    beyond: str = "error"
    max_tokens: int = 0
    causal: bool = False
    window: int = 0
    block_offsets: Optional[bytes] = None
    permutation: Optional[bytes] = None
    focus_power: int = 0
    key_heads: int = 0
    qk_l2norm: bool = False
    key_grid: tuple = ()
    key_blocks: tuple = ()
    key_block_offsets: Optional[bytes] = None
    key_permutation: Optional[bytes] = None
    precision: str = "tensors"  # of products: that of the tensors, or a name of PRECISIONS


class Shapes(NamedTuple):
    """Shapes of a call's tensors, None where there is none. `mix` is the learned parameter: Focused LA's is its focus."""

    q: Sequence[int]
    k: Sequence[int]
    v: Sequence[int]
    mix: Optional[Sequence[int]] = None
    q2: Optional[Sequence[int]] = None
    k2: Optional[Sequence[int]] = None
    initial_state: Optional[Sequence[int]] = None
    initial_z: Optional[Sequence[int]] = None
    rope_cos: Optional[Sequence[int]] = None
    rope_sin: Optional[Sequence[int]] = None
    cu_seqlens: Optional[Sequence[int]] = None
    key_cos: Optional[Sequence[int]] = None
    key_sin: Optional[Sequence[int]] = None


class Prepared(NamedTuple):
    """A plan whose fit to the shapes is checked, and the shapes of its results."""

    plan: "_mhla.Plan"
    o: tuple
    final_state: tuple
    final_z: tuple
    sequences: int
    rope_rows: int
    key_rope_rows: int


_plans: dict = {}
_prepared: dict = {}
_LIMIT = 4096  # entries; a program with more different calls starts again


def _index(names: tuple, name: str, what: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise Error(f"{what} is {name!r}: expected one of {', '.join(names)}") from None


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise Error(message)


def make_plan(kind: str, dtype: int, heads: int, kv_heads: int, key_dim: int, value_dim: int, mix: Optional[Sequence[int]],
              rope_dim: int, options: Options) -> "_mhla.Plan":
    """The plan of this description, from the cache or new."""
    key = (kind, dtype, heads, kv_heads, key_dim, value_dim, mix and tuple(mix), rope_dim, options)
    plan = _plans.get(key)
    if plan is not None:
        return plan
    has_mix, focused = kind in ("bidirectional", "causal"), kind == "focused"
    if focused:
        channels = (heads * key_dim,)
        _expect(mix is not None and tuple(mix) == channels, f"focus has shape {mix and tuple(mix)}: expected {channels}")
        mix = None
    _expect(has_mix == (mix is not None), "mix is given: this operator has none" if mix is not None else "mix is missing")
    if mix is not None:
        fits = len(mix) in (2, 3) and (len(mix) == 2 or mix[0] == heads) and (kind == "bidirectional" or mix[-1] == mix[-2])
        _expect(fits, f"mix has shape {tuple(mix)}: expected [M,M] or [{heads},M,M]")
    o = options
    _expect(o.permutation is None or o.block_offsets is not None, "permutation is given without block_offsets")
    _expect(o.key_permutation is None or o.key_block_offsets is not None, "key_permutation is given without key_block_offsets")
    plan = _mhla.Plan(
        kind=_index(KINDS, kind, "kind"), dtype=dtype, heads=heads, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim,
        feature=_index(FEATURES, o.feature, "feature"), feature_eps=o.feature_eps,
        denominator=_index(DENOMINATORS, o.denominator, "denominator"), den_eps=o.den_eps, scale=o.scale,
        rope=_index(ROPES, o.rope, "rope_style"), rope_dim=rope_dim, grid=o.grid, blocks=o.blocks,
        order=_index(ORDERS, o.order, "order"), block_offsets=o.block_offsets, permutation=o.permutation,
        mix_per_head=int(mix is not None and len(mix) == 3), chunk=o.chunk,
        chunks=mix[-1] if kind == "causal" and mix is not None else 0, beyond=_index(BEYONDS, o.beyond, "beyond"),
        max_tokens=o.max_tokens, causal=int(o.causal and kind == "softmax"), window=o.window,
        focus_power=o.focus_power, key_heads=o.key_heads, qk_l2norm=o.qk_l2norm, key_grid=o.key_grid,
        key_blocks=o.key_blocks, key_block_offsets=o.key_block_offsets, key_permutation=o.key_permutation,
        precision=-1 if o.precision == "tensors" else _index(PRECISIONS, o.precision, "precision"))
    if kind == "bidirectional" and mix is not None:
        M, Mk = plan.blocks, plan.key_blocks
        _expect((M, Mk) == tuple(mix[-2:]), f"mix has shape {tuple(mix)}: there are {M} blocks" +
                (f" of queries and {Mk} of keys" if M != Mk else ""))
    if len(_plans) >= _LIMIT:
        _plans.clear()
    _plans[key] = plan
    return plan


def state_chunks(kind: str, tokens, chunk: int, blocks: int, beyond: str):
    """Summaries in a state of so many tokens (N0 and N1 of the header); works for symbolic sizes unless clamped."""
    if kind == "linear_causal":
        return 1
    n = (tokens + chunk - 1) // chunk
    return min(n, blocks) if beyond == "clamp" else n


def _same(name: str, shape: Optional[Sequence[int]], expected: tuple) -> None:
    if shape is not None and tuple(shape) != expected:
        raise Error(f"{name} has shape {tuple(shape)}: expected {expected}")


def prepare(kind: str, dtype: int, shapes: Shapes, past: int, options: Options) -> Prepared:
    """Checks a call's shapes and finds its plan."""
    key = (kind, dtype, shapes, past, options)
    found = _prepared.get(key)
    if found is not None:
        return found
    for name in ("q", "k", "v"):
        shape = getattr(shapes, name)
        _expect(len(shape) == 4, f"{name} has shape {tuple(shape)}: expected 4 axes, [B,T,H,K]")
    (B, T, H, K), (_, Tk, G, _), V = shapes.q, shapes.k, shapes.v[3]
    _same("k", shapes.k, (B, Tk, G, K))
    _same("v", shapes.v, (B, Tk, G, V))
    _expect(min(T, Tk, H, G, K, V) >= 1, f"q has shape {tuple(shapes.q)}, v {tuple(shapes.v)}: only the batch may be empty")
    _same("q2", shapes.q2, (B, T, H, K))
    _same("k2", shapes.k2, (B, Tk, G, K))
    _expect((shapes.q2 is None) == (shapes.k2 is None), "q2 and k2 come together: one of them is missing")
    rope_dim, rows = 0, 0
    if options.rope != "none":
        _expect(shapes.rope_cos is not None and shapes.rope_sin is not None, "rope is (cos, sin): one of them is missing")
        _expect(len(shapes.rope_cos) == 2, f"rope's cos has shape {tuple(shapes.rope_cos)}: expected [positions, dim/2]")
        _same("rope's sin", shapes.rope_sin, tuple(shapes.rope_cos))
        rows, rope_dim = shapes.rope_cos[0], 2 * shapes.rope_cos[1]
    key_rows = 0
    if shapes.key_cos is not None or shapes.key_sin is not None:
        _expect(shapes.key_cos is not None and shapes.key_sin is not None, "key_rope is (cos, sin): one of them is missing")
        _expect(options.rope != "none", "key_rope is given without rope")
        _same("key_rope's cos", shapes.key_cos, (shapes.key_cos[0], rope_dim // 2))
        _same("key_rope's sin", shapes.key_sin, tuple(shapes.key_cos))
        key_rows = shapes.key_cos[0]
    plan = make_plan(kind, dtype, H, G, K, V, shapes.mix, rope_dim, options)
    sequences = 0
    if shapes.cu_seqlens is not None:
        _expect(len(shapes.cu_seqlens) == 1 and shapes.cu_seqlens[0] >= 2,
                f"cu_seqlens has shape {tuple(shapes.cu_seqlens)}: expected [sequences + 1]")
        sequences = shapes.cu_seqlens[0] - 1
    states = kind in ("causal", "linear_causal")
    N = sequences or B
    final, z = (), ()
    if states:
        one = kind == "linear_causal"
        n0 = state_chunks(kind, past, plan.chunk, plan.blocks, options.beyond)
        n1 = state_chunks(kind, past + T, plan.chunk, plan.blocks, options.beyond)
        _same("initial_state", shapes.initial_state, (N, G, K, V) if one else (N, n0, G, K, V))
        _same("initial_z", shapes.initial_z, (N, G, K) if one else (N, n0, G, K))
        final, z = ((N, G, K, V), (N, G, K)) if one else ((N, n1, G, K, V), (N, n1, G, K))
        if options.denominator == "none":
            z = ()
    else:
        _expect(shapes.initial_state is None and shapes.initial_z is None,
                "initial_state is given: only causal operators have one")
    found = Prepared(plan, (B, T, H, V), final, z, sequences, rows, key_rows)
    if len(_prepared) >= _LIMIT:
        _prepared.clear()
    _prepared[key] = found
    return found
