"""The operators, for NumPy arrays and for torch tensors.

Tensors are token-major: q [B,T,H,K], k [B,T,G,K], v [B,T,G,V], G key/value heads (H is a multiple of G). Strides are
taken as they are, so slices of a fused projection and transposed [B,H,T,K] tensors cost no copy; only the last axis must
be contiguous. They are float32 or bfloat16.

Products have the type of the tensors, with float32 sums; `precision`, ``"float32"`` or ``"bfloat16"`` (or torch's dtypes), changes it, forward and
backward, and under torch.autocast to bfloat16 they are bfloat16. (attention and linear_attention without `causal` multiply bfloat16 tensors as
they are in the forward pass, also with ``"float32"``.) A CPU that does not multiply bfloat16 computes in float32. With torch, everything but integers and rotary tables has a
gradient; tensors on other devices than the CPU are computed by plain PyTorch. Under autocast, tensors of different dtypes, or of
float16, become float32.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Sequence, Tuple, TypedDict, TypeVar, overload

import numpy as np

from . import _carry, _numpy
from ._carry import CausalState
from ._plans import PRECISIONS, Error, Options

try:
    import torch

    from . import _cross, _torch  # noqa: F401
except ImportError:
    torch = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

Array = Any  # numpy.ndarray or torch.Tensor
ArrayT = TypeVar("ArrayT", "NDArray[Any]", "Tensor")  # what q, k and v are, the result is


def _run(name: str, kind: str, tensors: tuple, rope: Optional[Tuple[Array, Array]], cu_seqlens: Optional[Array],
         block_offsets: Optional[Array], permutation: Optional[Array], past: int, output_final_state: bool, options: tuple, precision: Any):
    """To torch's op or to the NumPy call. tensors: q, k, v, mix (or focus), q2, k2, initial_state, initial_z; options: those
    of the op's schema, meaning (without the precision), numbers and sizes."""
    cos, sin = (None, None) if rope is None else rope
    factors = precision_of(tensors[0], precision)
    if torch is not None and isinstance(tensors[0], torch.Tensor):
        q, k, v, mix, q2, k2, state, z = tensors
        q, k, v, q2, k2 = _floats(q, k, v, q2, k2)
        where = q.device
        return _torch.call(name, (q, k, v, _single(mix, "mix", where), q2, k2, _single(state, "initial_state", where),
                                  _single(z, "initial_z", where), _single(cos, "rope", where), _single(sin, "rope", where),
                                  _long(cu_seqlens, where), _long(block_offsets, where), _long(permutation, where), past,
                                  output_final_state, f"{options[0]} {factors}", *options[1:]))
    rope_style, feature, denominator, order, beyond = options[0].split()
    chunk, max_tokens, causal, window, *cuts = options[2]
    axes = len(cuts) // 2
    raw = _raw(block_offsets, "block_offsets"), _raw(permutation, "permutation")
    chosen = Options(rope_style, feature, options[1][0], denominator, options[1][1], options[1][2], tuple(cuts[:axes]),
                     tuple(cuts[axes:]), order, chunk, beyond, max_tokens, bool(causal), window, *raw, int(options[1][3]), precision=factors)
    result = _numpy.forward(kind, chosen, *tensors, rope_cos=cos, rope_sin=sin, cu_seqlens=cu_seqlens, past=past,
                            output_final_state=output_final_state)
    return result if name in ("causal_attention", "linear_attention") else result[0]


def _floats(q: Any, k: Any, v: Any, q2: Any, k2: Any) -> tuple:
    """Torch tensors all, under autocast of one dtype."""
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        raise Error(f"q is a torch tensor, k {type(k).__name__}, v {type(v).__name__}: all three have to be of one library")
    if not all(x is None or isinstance(x, torch.Tensor) for x in (q2, k2)):
        raise Error(f"q is a torch tensor, q2 {type(q2).__name__}, k2 {type(k2).__name__}: all have to be of one library")
    if not q.is_meta and torch.is_autocast_enabled(q.device.type):
        return _torch.widest(q, k, v, q2, k2)
    return q, k, v, q2, k2


def precision_of(q: Any, given: Any) -> str:
    """Of products: what is given, under autocast to bfloat16 that, otherwise that of the tensors."""
    if given is None:
        if torch is None or not isinstance(q, torch.Tensor) or q.is_meta or not torch.is_autocast_enabled(q.device.type):
            return "tensors"
        return "bfloat16" if torch.get_autocast_dtype(q.device.type) is torch.bfloat16 else "tensors"
    name = str(given).replace("torch.", "")
    if name not in PRECISIONS:
        raise Error(f"precision is {given!r}: expected one of {', '.join(PRECISIONS)}")
    return name


def _raw(x: Optional[Any], name: str) -> Optional[bytes]:
    """The bytes of block_offsets, int64, or of a permutation, int32, for NumPy's calls."""
    dtype = np.int32 if name.endswith("permutation") else np.int64
    return None if x is None else _numpy.whole(np.asarray(x), dtype, name).tobytes()


def _single(x: Optional[Any], name: str, device: Any):
    """The mixing matrix, states and tables are float32, whatever a module was cast to; NumPy's and lists are welcome."""
    if x is None or (isinstance(x, torch.Tensor) and x.dtype is torch.float32):
        return x
    if not isinstance(x, torch.Tensor):
        return torch.from_numpy(_numpy.flat(x, np.float32, name)).to(device)
    if x.dtype.is_complex:
        raise Error(f"{name} has dtype {x.dtype}: expected real numbers")
    return x.float()


def _long(x: Optional[Any], device: Any):
    """Integers are int64, and where q is."""
    if x is None or (isinstance(x, torch.Tensor) and x.dtype is torch.int64 and x.device == device):
        return x
    x = torch.as_tensor(x)
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise Error(f"cu_seqlens, block_offsets or permutation has dtype {x.dtype}: expected integers")
    return x.to(device, torch.int64)


def _axes(grid: Any, blocks: Any) -> tuple:
    """grid and blocks as two lists of one length."""
    grid, blocks = ([] if x is None else [x] if isinstance(x, (int, np.integer)) else list(x) for x in (grid, blocks))
    if any(isinstance(n, float) for n in (*grid, *blocks)):
        raise Error(f"grid is {grid}, blocks is {blocks}: expected whole numbers")
    if len(grid) != len(blocks):
        raise Error(f"grid is {grid}, blocks is {blocks}: expected as many pieces as axes")
    return grid, blocks


def _options(rope: Optional[tuple], rope_style: str, feature: str, feature_eps: float, denominator: str, den_eps: float,
             scale: Optional[float], order: str = "raster", chunk: int = 0, beyond: str = "error", max_tokens: int = 0,
             causal: bool = False, window: int = 0, grid: Sequence[int] = (), blocks: Sequence[int] = (), power: int = 0) -> tuple:
    """The three lists of the op's schema. A scale of 0 is the library's word for the default, so nobody may mean it."""
    if torch is not None and isinstance(scale, torch.Tensor):
        if scale.requires_grad or _torch.wrapped(scale):
            raise Error("scale is a tensor with a gradient, which it would lose: multiply q by it")
        scale = float(scale)
    if scale == 0:
        raise Error("scale is 0: everything would be; None is the default")
    style = "none" if rope is None else rope_style
    meaning = f"{style} {feature} {denominator} {order} {beyond}"
    if len(meaning.split()) != 5:
        raise Error(f"one of these is not a name: rope_style {style!r}, feature {feature!r}, denominator {denominator!r}, order {order!r}, "
                    f"beyond {beyond!r}")
    return (meaning, [feature_eps, den_eps, scale or 0.0, float(power)],
            [chunk, max_tokens, int(causal), window, *grid, *blocks])


def attention(q: ArrayT, k: ArrayT, v: ArrayT, mix: Array, grid: Optional[Sequence[int]] = None,
              blocks: Optional[Sequence[int]] = None, scale: Optional[float] = None, *, order: str = "raster",
              block_offsets: Optional[Array] = None, permutation: Optional[Array] = None, feature: str = "relu",
              feature_eps: float = 1e-6, denominator: str = "eq4", den_eps: float = 1e-6,
              rope: Optional[Tuple[Array, Array]] = None, rope_style: str = "half", q2: Optional[Array] = None,
              k2: Optional[Array] = None, key_grid: Optional[Sequence[int]] = None, key_blocks: Optional[Sequence[int]] = None,
              key_block_offsets: Optional[Array] = None, key_permutation: Optional[Array] = None,
              key_rope: Optional[Tuple[Array, Array]] = None, precision: Any = None) -> ArrayT:
    """Bidirectional MHLA: every query reads the mixture of block summaries that its block has learned.

    The arguments that begin with `key_` select cross attention: keys and values have another layout than queries, and
    their number may differ.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,H,V]; in cross attention [B,Tq,H,K], [B,Tk,H,K], [B,Tk,H,V].
        mix: the mixing matrix, [M,M] or [H,M,M], row i = query block i; in cross attention [Mq,Mk] or [H,Mq,Mk].
        grid, blocks: tokens and pieces per axis, 1 to 3 axes; axis a is cut at floor(i * grid[a] / blocks[a]).
        scale: multiplies q~.k~ (also in the denominator); default 1.
        order: the tokens come in ``"raster"`` order of the grid, or block after block (``"blocks"``).
        block_offsets, permutation: instead of a grid, any division: block b holds the tokens
            permutation[block_offsets[b]:block_offsets[b+1]]; without permutation 0..T-1.
        feature: ``"relu"`` (max(x,0) + feature_eps), ``"elu"`` (elu(x) + 1) or ``"identity"``.
        denominator: ``"eq4"`` (the paper's), ``"released"`` (the released image models') or ``"none"``.
        rope: (cos, sin), each [T, dim/2] (see :func:`rope_table`), turns q~ and k~ in the numerator.
        rope_style: ``"half"``: pairs (j, j + dim/2); ``"interleaved"``: pairs (2j, 2j+1).
        q2, k2: an explicit second pair for the denominator, shaped like q and k.
        key_grid, key_blocks: the grid of keys and values; or
        key_block_offsets, key_permutation: any division of them. Default: those of the queries. `order` applies to both grids.
            ``"released"`` needs equal ones.
        key_rope: (cos, sin), each [Tk, dim/2], for the keys; default: `rope`.
        precision: of products, ``"float32"`` or ``"bfloat16"``; default: that of the tensors, or of torch.autocast.

    Returns:
        o [B,T,H,V].

    >>> import numpy as np, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), dtype=np.float32)
    >>> o = mhla.attention(q, k, v, mhla.mix_init("paper", (2, 2)), grid=(4, 4), blocks=(2, 2))
    >>> o.shape
    (1, 16, 2, 8)
    >>> mix = mhla.mix_init("paper", (2, 2), key_blocks=(3, 1))
    >>> mhla.attention(q, k[:, :6], v[:, :6], mix, grid=(4, 4), blocks=(2, 2), key_grid=(3, 2), key_blocks=(3, 1)).shape
    (1, 16, 2, 8)
    """
    grid, blocks = _axes(grid, blocks)
    if not (key_grid is key_blocks is key_block_offsets is key_permutation is key_rope is None):
        return _cross_attention((q, k, v, mix, q2, k2), rope, key_rope, (block_offsets, permutation, key_block_offsets, key_permutation),
                                _axes(key_grid, key_blocks),
                                _options(rope, rope_style, feature, feature_eps, denominator, den_eps, scale, order, grid=grid,
                                         blocks=blocks), precision)
    return _run("attention", "bidirectional", (q, k, v, mix, q2, k2, None, None), rope, None, block_offsets, permutation, 0, False,
                _options(rope, rope_style, feature, feature_eps, denominator, den_eps, scale, order, grid=grid, blocks=blocks), precision)


def _cross_attention(tensors: tuple, rope: Optional[tuple], key_rope: Optional[tuple], divisions: tuple, key_cuts: tuple,
                     options: tuple, precision: Any):
    """tensors: q, k, v, mix, q2, k2; divisions: offsets and permutation of queries, then of keys; options: as in _run."""
    meaning, (feature_eps, den_eps, scale, _), sizes = options
    style, feature, denominator, order, _ = meaning.split()
    cuts = sizes[4:]
    axes = len(cuts) // 2
    q, k, v, mix, q2, k2 = tensors
    factors = precision_of(q, precision)
    tables = (*(rope or (None, None)), *(key_rope or (None, None)))
    if torch is not None and isinstance(q, torch.Tensor):
        q, k, v, q2, k2 = _floats(q, k, v, q2, k2)
        where = q.device
        tables = tuple(_single(x, name, where) for x, name in zip(tables, ("rope", "rope", "key_rope", "key_rope")))
        return _torch.call("cross_attention", (q, k, v, _single(mix, "mix", where), q2, k2, *tables,
                                               *(_long(x, where) for x in divisions), f"{style} {feature} {denominator} {order} {factors}",
                                               [feature_eps, den_eps, scale], [axes, *cuts, *key_cuts[0], *key_cuts[1]]))
    raw = [_raw(x, name) for x, name in zip(divisions, ("block_offsets", "permutation", "key_block_offsets", "key_permutation"))]
    chosen = Options(style, feature, feature_eps, denominator, den_eps, scale, tuple(cuts[:axes]), tuple(cuts[axes:]), order,
                     block_offsets=raw[0], permutation=raw[1], key_grid=tuple(key_cuts[0]), key_blocks=tuple(key_cuts[1]),
                     key_block_offsets=raw[2], key_permutation=raw[3], precision=factors)
    return _numpy.forward("bidirectional", chosen, q, k, v, mix, q2, k2, rope_cos=tables[0], rope_sin=tables[1],
                          key_cos=tables[2], key_sin=tables[3])[0]


def _side(mix: Array) -> int:
    """M of a mixing matrix."""
    if mix is None:
        raise Error("mix is missing")
    shape = mix.shape if hasattr(mix, "shape") else np.shape(mix)
    if len(shape) < 2 or shape[-1] == 0:
        raise Error(f"mix has shape {tuple(shape)}: expected [M,M] or [H,M,M]")
    return shape[-1]


def _made(feature: str, feature_eps: float, denominator: str, rope: Optional[tuple], rope_style: str, k2: Optional[Array]) -> tuple:
    """What the numbers of a state depend on, besides chunks."""
    return (("feature", feature), ("feature_eps", feature_eps), ("denominator", denominator),
            ("rope", "none" if rope is None else f"{rope_style} of {2 * rope[0].shape[-1]} dims"),
            ("k2", "given" if k2 is not None and denominator != "none" else "none"))


class LinearOptions(TypedDict, total=False):
    """The keyword arguments of :func:`linear_attention`, for type checkers."""

    causal: bool
    past: Optional[int]
    feature: str
    feature_eps: float
    den_eps: float
    rope: Optional[Tuple[Array, Array]]
    rope_style: str
    q2: Optional[Array]
    k2: Optional[Array]
    precision: Any


class CausalOptions(TypedDict, total=False):
    """The keyword arguments of :func:`causal_attention`, for type checkers."""

    chunk_size: int
    past: Optional[int]
    feature: str
    feature_eps: float
    denominator: str
    den_eps: float
    rope: Optional[Tuple[Array, Array]]
    rope_style: str
    q2: Optional[Array]
    k2: Optional[Array]
    beyond: str
    max_tokens: int
    precision: Any


@overload
def causal_attention(q: ArrayT, k: ArrayT, v: ArrayT, mix: Array, scale: Optional[float] = ..., initial_state: Any = ..., *, output_final_state: Literal[True],
                     cu_seqlens: Optional[Array] = ..., **options: "Unpack[CausalOptions]") -> Tuple[ArrayT, CausalState]: ...
@overload
def causal_attention(q: ArrayT, k: ArrayT, v: ArrayT, mix: Array, scale: Optional[float], initial_state: Any, output_final_state: Literal[True],
                     cu_seqlens: Optional[Array] = ..., **options: "Unpack[CausalOptions]") -> Tuple[ArrayT, CausalState]: ...
@overload
def causal_attention(q: ArrayT, k: ArrayT, v: ArrayT, mix: Array, scale: Optional[float] = ..., initial_state: Any = ..., output_final_state: Literal[False] = ...,
                     cu_seqlens: Optional[Array] = ..., **options: "Unpack[CausalOptions]") -> Tuple[ArrayT, None]: ...
@overload
def causal_attention(q: ArrayT, k: ArrayT, v: ArrayT, mix: Array, scale: Optional[float] = ..., initial_state: Any = ..., output_final_state: bool = ...,
                     cu_seqlens: Optional[Array] = ..., **options: "Unpack[CausalOptions]") -> Tuple[ArrayT, Optional[CausalState]]: ...
def causal_attention(q: ArrayT, k: ArrayT, v: ArrayT, mix: Array, scale: Optional[float] = None, initial_state: Any = None,
                     output_final_state: bool = False, cu_seqlens: Optional[Array] = None, *, chunk_size: int = 64,
                     past: Optional[int] = None, feature: str = "relu", feature_eps: float = 0.0, denominator: str = "none",
                     den_eps: float = 1e-6, rope: Optional[Tuple[Array, Array]] = None, rope_style: str = "half",
                     q2: Optional[Array] = None, k2: Optional[Array] = None, beyond: str = "error",
                     max_tokens: int = 0, precision: Any = None) -> Tuple[ArrayT, Optional[CausalState]]:
    """Causal MHLA over chunks: row i of mix weighs the summaries of the chunks before chunk i, and chunk i itself.

    Args:
        q, k, v: [B,T,H,K], [B,T,G,K], [B,T,G,V].
        mix: [M,M] or [H,M,M], of which the lower triangle is read; M * chunk_size >= past + T.
        scale: default K^-1/2.
        initial_state: the :class:`CausalState` of the tokens before, as a call with output_final_state returned it; it may end
            anywhere, also inside a chunk. Or plain summaries [B,N0,G,K,V], N0 = ceil(past / chunk_size) (with a denominator the
            pair of them and their [B,N0,G,K] sums of keys), and `past`.
        output_final_state: also return the state after the last token.
        cu_seqlens: [sequences + 1]: B is 1 and holds packed sequences, none of which sees another; states then have
            one entry for each sequence.
        past: tokens that plain summaries stand for; a CausalState knows it.
        denominator: ``"none"`` or ``"eq4"``.
        rope: (cos, sin), each [rows, dim/2]; the row of a token is its index in its sequence plus `past`.
        beyond: past chunk M-1, ``"error"``, ``"clamp"`` (weights by distance) or ``"chunk"`` (the chunk size is chosen
            so that M chunks cover max_tokens).
        precision: of products, ``"float32"`` or ``"bfloat16"``; default: that of the tensors, or of torch.autocast.

    Returns:
        (o, final_state); final_state is None unless asked for.

    >>> import numpy as np, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 100, 2, 8), dtype=np.float32)
    >>> mix = mhla.mix_init("causal", 4)
    >>> o, state = mhla.causal_attention(q, k, v, mix, output_final_state=True, chunk_size=32)
    >>> o.shape, state.summaries.shape
    ((1, 100, 2, 8), (1, 4, 2, 8, 8))
    >>> head, state = mhla.causal_attention(q[:, :50], k[:, :50], v[:, :50], mix, output_final_state=True, chunk_size=32)
    >>> tail, _ = mhla.causal_attention(q[:, 50:], k[:, 50:], v[:, 50:], mix, initial_state=state, chunk_size=32)
    >>> bool(np.allclose(np.concatenate([head, tail], 1), o, atol=1e-5))
    True
    """
    M = _side(mix)
    C = -(-max_tokens // M) if beyond == "chunk" else chunk_size
    made = (("operator", "causal"), ("chunk_size", C), ("M", M), ("beyond", beyond),
            *_made(feature, feature_eps, denominator, rope, rope_style, k2))
    state, z, past = _carry.initial(initial_state, past, made)
    if isinstance(past, _carry.ARRAYS):  # sequences at different positions
        return _carry.apart(lambda t, one: causal_attention(
            *t[:3], mix, scale, one, output_final_state, chunk_size=chunk_size, feature=feature, feature_eps=feature_eps,
            denominator=denominator, den_eps=den_eps, rope=rope, rope_style=rope_style, q2=t[3], k2=t[4], beyond=beyond,
            max_tokens=max_tokens, precision=precision), (q, k, v, q2, k2), initial_state, cu_seqlens, output_final_state)
    o, final, z = _run("causal_attention", "causal", (q, k, v, mix, q2, k2, state, z), rope, cu_seqlens, None, None, past,
                       output_final_state,
                       _options(rope, rope_style, feature, feature_eps, denominator, den_eps, scale,
                                chunk=0 if beyond == "chunk" else chunk_size, beyond=beyond, max_tokens=max_tokens), precision)
    if not output_final_state:
        return o, None
    return o, _carry.final(final, None if denominator == "none" else z, past, q.shape[1], cu_seqlens, made)


@overload
def linear_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = ..., initial_state: Any = ..., *, output_final_state: Literal[True],
                     normalize: bool = ..., cu_seqlens: Optional[Array] = ..., **options: "Unpack[LinearOptions]") -> Tuple[ArrayT, CausalState]: ...
@overload
def linear_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float], initial_state: Any, output_final_state: Literal[True],
                     normalize: bool = ..., cu_seqlens: Optional[Array] = ..., **options: "Unpack[LinearOptions]") -> Tuple[ArrayT, CausalState]: ...
@overload
def linear_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = ..., initial_state: Any = ..., output_final_state: Literal[False] = ...,
                     normalize: bool = ..., cu_seqlens: Optional[Array] = ..., **options: "Unpack[LinearOptions]") -> Tuple[ArrayT, None]: ...
@overload
def linear_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = ..., initial_state: Any = ..., output_final_state: bool = ...,
                     normalize: bool = ..., cu_seqlens: Optional[Array] = ..., **options: "Unpack[LinearOptions]") -> Tuple[ArrayT, Optional[CausalState]]: ...
def linear_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = None, initial_state: Any = None,
                     output_final_state: bool = False, normalize: bool = True, cu_seqlens: Optional[Array] = None, *,
                     causal: bool = False, past: Optional[int] = None, feature: str = "relu", feature_eps: float = 0.0,
                     den_eps: float = 1e-6, rope: Optional[Tuple[Array, Array]] = None, rope_style: str = "half",
                     q2: Optional[Array] = None, k2: Optional[Array] = None,
                     precision: Any = None) -> Tuple[ArrayT, Optional[CausalState]]:
    """Plain linear attention, the baseline: every query reads the sum of all summaries, or of those before it.

    Args:
        q, k, v: [B,T,H,K], [B,T,G,K], [B,T,G,V] (G = H unless causal).
        scale: default 1, causal K^-1/2.
        initial_state, output_final_state: causal only; a :class:`CausalState` as in :func:`causal_attention`. Or plain sums
            [B,G,K,V], with normalize the pair of them and [B,G,K].
        normalize: divide by scale * q~ . sum k~ + den_eps.
        feature: of q and k; pass ``"identity"`` for features computed elsewhere.
        past: tokens that plain sums stand for; it only shifts the rows of `rope`.
        precision: as in :func:`attention`.

    Returns:
        (o, final_state); final_state is None unless asked for.

    >>> import numpy as np, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 9, 2, 8), dtype=np.float32)
    >>> o, state = mhla.linear_attention(q, k, v, causal=True, normalize=False, output_final_state=True)
    >>> o.shape, state.summaries.shape, state.past
    ((2, 9, 2, 8), (2, 2, 8, 8), 9)
    """
    if output_final_state and not causal:
        raise Error("output_final_state is given without causal: only causal attention has a state")
    denominator = "eq4" if normalize else "none"
    made = (("operator", "linear"), *_made(feature, feature_eps, denominator, rope, rope_style, k2))
    state, z, past = _carry.initial(initial_state, past, made, rope is None)
    if isinstance(past, _carry.ARRAYS):  # sequences at different positions
        return _carry.apart(lambda t, one: linear_attention(
            *t[:3], scale, one, output_final_state, normalize, causal=causal, feature=feature, feature_eps=feature_eps,
            den_eps=den_eps, rope=rope, rope_style=rope_style, q2=t[3], k2=t[4], precision=precision), (q, k, v, q2, k2),
            initial_state, cu_seqlens, output_final_state)
    o, final, z = _run("linear_attention", "linear_causal" if causal else "linear", (q, k, v, None, q2, k2, state, z), rope,
                       cu_seqlens, None, None, past, output_final_state,
                       _options(rope, rope_style, feature, feature_eps, denominator, den_eps, scale, causal=causal), precision)
    if not output_final_state:
        return o, None
    return o, _carry.final(final, z if normalize else None, past, q.shape[1], cu_seqlens, made)


def softmax_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = None, causal: bool = False, window: int = 0,
                      cu_seqlens: Optional[Array] = None, *, rope: Optional[Tuple[Array, Array]] = None,
                      rope_style: str = "half", precision: Any = None) -> ArrayT:
    """Softmax attention, the baseline, in memory linear in T.

    Args:
        q, k, v: [B,Tq,H,K], [B,Tk,G,K], [B,Tk,G,V].
        scale: default K^-1/2.
        causal: token t of Tq sees keys up to t + Tk - Tq.
        window: with causal, only the last `window` of those; 0 = all.
        rope: (cos, sin), each [rows, dim/2]; query t turns by row t + Tk - Tq, key u by row u.
        precision: as in :func:`attention`.

    Returns:
        o [B,Tq,H,V].

    >>> import numpy as np, mhla
    >>> q = np.zeros((1, 1, 2, 4), np.float32)
    >>> k, v = np.ones((1, 3, 1, 4), np.float32), np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)
    >>> mhla.softmax_attention(q, k, v).ravel().tolist()
    [1.0, 1.0]
    """
    return _run("softmax_attention", "softmax", (q, k, v, None, None, None, None, None), rope, cu_seqlens, None, None, 0, False,
                _options(rope, rope_style, "relu", 0.0, "eq4", 0.0, scale, causal=causal, window=window), precision)


# ---- Linear attentions of vision models: what is between their projections, without convolutions and gates -------------

def focused_attention(q: ArrayT, k: ArrayT, v: ArrayT, focus: Array, *, power: int = 3, feature_eps: float = 1e-6,
                      den_eps: float = 1e-6, precision: Any = None) -> ArrayT:
    """Focused linear attention (FLatten-Transformer), a baseline: features sharpened by a power, their length kept.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,H,V].
        focus: [H*K], the scale of each channel before softplus, shared by q and k.
        power: p, 1 to 16, of f(a) = a^p |a| / |a^p|, a = (max(x,0) + feature_eps) / softplus(focus), norms over all heads.
        den_eps: added to q~ . mean k~.
        precision: as in :func:`attention`.

    Returns:
        o [B,T,H,V].

    >>> import numpy as np, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), dtype=np.float32)
    >>> mhla.focused_attention(q, k, v, np.zeros(16, np.float32)).shape
    (1, 16, 2, 8)
    """
    if power not in range(1, 17):
        raise Error(f"power is {power}: expected a whole number, 1 to 16")
    return _run("focused_attention", "focused", (q, k, v, focus, None, None, None, None), None, None, None, None, 0, False,
                _options(None, "none", "relu", feature_eps, "eq4", den_eps, None, power=power), precision)


def inline_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = None, *, precision: Any = None) -> ArrayT:
    """InLine attention, a baseline: no feature map, and a subtraction where others divide, so that rows sum to 1.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,H,V].
        scale: multiplies q.k; default K^-1/2.
        precision: as in :func:`attention`.

    Returns:
        o [B,T,H,V].

    >>> import numpy as np, mhla
    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 16, 2, 8), dtype=np.float32)
    >>> bool(np.allclose(mhla.inline_attention(q, k, np.ones_like(q)), 1, atol=1e-6))
    True
    """
    return _run("inline_attention", "inline", (q, k, v, None, None, None, None, None), None, None, None, None, 0, False,
                _options(None, "none", "relu", 0.0, "eq4", 0.0, scale), precision)


def mala_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = None, *, den_eps: float = 1e-6,
                   rope: Optional[Tuple[Array, Array]] = None, rope_style: str = "interleaved", precision: Any = None) -> ArrayT:
    """MALA, a baseline: elu + 1 features, scaled and shifted by the query's own magnitude instead of divided.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,H,V].
        scale: multiplies q~.k~; default K^-1/2.
        den_eps: added to z = scale q~ . mean k~ before it divides.
        rope: (cos, sin), each [T, dim/2], turns q~ and k~ in the numerator.
        precision: as in :func:`attention`.

    Returns:
        o [B,T,H,V].

    >>> import numpy as np, mhla
    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 16, 2, 8), dtype=np.float32)
    >>> bool(np.allclose(mhla.mala_attention(q, k, np.ones_like(q)), 1, atol=1e-5))
    True
    """
    return _run("mala_attention", "mala", (q, k, v, None, None, None, None, None), rope, None, None, None, 0, False,
                _options(rope, rope_style, "relu", 0.0, "eq4", den_eps, scale), precision)


def rala_attention(q: ArrayT, k: ArrayT, v: ArrayT, scale: Optional[float] = None, *, den_eps: float = 1e-6,
                   rope: Optional[Tuple[Array, Array]] = None, rope_style: str = "interleaved", precision: Any = None) -> ArrayT:
    """RALA, a baseline: elu + 1 features, the keys weighed by a softmax over tokens against the mean query.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,H,V].
        scale: of that softmax; default K^-1/2.
        den_eps: added to the denominator.
        rope: (cos, sin), each [T, dim/2], turns q~ and k~ in the numerator.
        precision: as in :func:`attention`.

    Returns:
        o [B,T,H,V].

    >>> import numpy as np, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), dtype=np.float32)
    >>> mhla.rala_attention(q, k, v).shape
    (1, 16, 2, 8)
    """
    return _run("rala_attention", "rala", (q, k, v, None, None, None, None, None), rope, None, None, None, 0, False,
                _options(rope, rope_style, "relu", 0.0, "eq4", den_eps, scale), precision)
