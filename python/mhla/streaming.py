"""Streaming: a state that is fed one token, or n, at a time."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from . import _mhla, _numpy
from ._plans import Error, Options, make_plan
from .functional import ArrayT

Array = Any


def _as_numpy(x: Any) -> np.ndarray:
    """A view of a torch tensor's memory (bfloat16 as uint16), a copy if it is not on the CPU; or the array itself."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):  # torch
        import torch
        from torch.autograd import forward_ad

        if torch._C._functorch.is_functorch_wrapped_tensor(x) or (
                forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None):
            raise Error("streams, models and samplers compute outside PyTorch: neither torch.func nor forward-mode derivatives see "
                        "through them; mhla.nn and the functions on tensors have both")
        if not x.is_cpu:  # a stream lives on the CPU, wherever its tokens come from
            from . import _plain

            _plain.note(x.device, "copied to the CPU")
        x = x.detach().cpu().resolve_neg()
        return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
    return np.asarray(x)


def _result_like(x: Any, o: np.ndarray) -> Any:
    if isinstance(x, np.ndarray) or not hasattr(x, "detach"):
        return o.view(x.dtype) if getattr(x, "dtype", o.dtype) != o.dtype else o
    import torch

    o = torch.from_numpy(o)
    return (o.view(torch.bfloat16) if x.dtype == torch.bfloat16 else o).to(x.device)


class State:
    """One sequence of causal MHLA (or, with mix None, of causal linear attention), all heads.

    Args:
        mix: [M,M] or [H,M,M] as in :func:`causal_attention`, or None.
        heads, key_dim, value_dim, kv_heads: H, K, V, G (default H).
        rope: (cos, sin) with a row for each position to come, or None.
        bfloat16: tensors that are fed are bfloat16 instead of float32.

    The rest is as in :func:`causal_attention`. Outputs equal those of the parallel form to rounding, for any split.
    States can be forked (sharing finished summaries), rolled back to a chunk boundary, saved, loaded and pickled. One
    thread at a time may use a state.

    >>> import numpy as np, pickle, mhla
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 10, 2, 8), dtype=np.float32)
    >>> state = mhla.State(mhla.mix_init("causal", 4), heads=2, key_dim=8, value_dim=8, chunk_size=4)
    >>> o = state.step(q[:5], k[:5], v[:5])
    >>> twin = pickle.loads(pickle.dumps(state))
    >>> bool((state.step(q[5:], k[5:], v[5:]) == twin.step(q[5:], k[5:], v[5:])).all())
    True
    >>> state.rollback(4)
    >>> state.tokens
    4
    """

    def __init__(self, mix: Optional[Array], heads: int, key_dim: int, value_dim: int, kv_heads: Optional[int] = None, *,
                 scale: Optional[float] = None, chunk_size: int = 64, feature: str = "relu", feature_eps: float = 0.0,
                 denominator: str = "none", den_eps: float = 1e-6, rope: Optional[Tuple[Array, Array]] = None,
                 rope_style: str = "half", beyond: str = "error", max_tokens: int = 0, bfloat16: bool = False):
        if scale == 0:
            raise Error("scale is 0: everything would be; None is the default")
        options = Options(rope="none" if rope is None else rope_style, feature=feature, feature_eps=feature_eps,
                          denominator=denominator, den_eps=den_eps, scale=scale or 0.0,
                          chunk=0 if beyond == "chunk" or mix is None else chunk_size, beyond=beyond, max_tokens=max_tokens)
        self._setup(None if mix is None else _as_numpy(mix), None if rope is None else tuple(map(_as_numpy, rope)),
                    (int(bfloat16), heads, kv_heads or heads, key_dim, value_dim), options)
        self._state = _mhla.State(self._plan, _numpy.address(self._mix))

    def _setup(self, mix: Optional[np.ndarray], rope: Optional[tuple], sizes: tuple, options: Options) -> None:
        # copies: the state must see the same matrix at each step
        self._mix = None if mix is None else np.array(mix, np.float32, order="C")
        self._rope = None if rope is None else tuple(np.array(x, np.float32, order="C") for x in rope)
        if self._rope and (self._rope[0].ndim != 2 or self._rope[0].shape != self._rope[1].shape):
            raise Error(f"rope has shapes {self._rope[0].shape} and {self._rope[1].shape}: expected two of [positions, dim/2]")
        self._sizes, self._options = sizes, options
        self._plan = make_plan("linear_causal" if mix is None else "causal", *sizes, None if mix is None else self._mix.shape,
                               2 * self._rope[0].shape[1] if self._rope else 0, options)

    def step(self, q: ArrayT, k: ArrayT, v: ArrayT) -> ArrayT:
        """Feeds the next tokens, q [T,H,K], k [T,G,K], v [T,G,V] (or with a batch axis of 1 in front); returns o [T,H,V]."""
        if q.ndim == 4:
            return step([self], q, k, v)
        return step([self], q[None], k[None], v[None])[0]

    @property
    def tokens(self) -> int:
        """Tokens seen so far."""
        return self._state.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of memory, summaries shared with forks included."""
        return self._state.nbytes

    def _like(self, state: "_mhla.State") -> "State":
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._state = state
        return copy

    def fork(self) -> "State":
        """A copy that shares the finished summaries."""
        return self._like(self._state.fork())

    __copy__ = fork

    def __deepcopy__(self, memo: dict) -> "State":
        return self.fork()

    def rollback(self, tokens: int) -> None:
        """Back to `tokens` tokens: a chunk boundary that is still kept, or the present position."""
        self._state.rollback(tokens, _numpy.address(self._mix))

    def save(self) -> bytes:
        """The state as bytes, versioned and checksummed; without mix, which :meth:`load` compares by a fingerprint."""
        return self._state.save()

    def load(self, data: bytes) -> None:
        """Becomes the state that was saved, by one of the same description and mix; refuses anything altered."""
        self._state = _mhla.State(self._plan, _numpy.address(self._mix), data)

    def __getstate__(self) -> dict:
        return {"mix": self._mix, "rope": self._rope, "sizes": self._sizes, "options": tuple(self._options), "data": self.save()}

    def __setstate__(self, pickled: dict) -> None:
        self._setup(pickled["mix"], pickled["rope"], pickled["sizes"], Options(*pickled["options"]))
        self.load(pickled["data"])

    def __repr__(self) -> str:
        return f"<mhla.State of {self.tokens} tokens, {self.nbytes} bytes>"


def step(states: Sequence[State], q: ArrayT, k: ArrayT, v: ArrayT, cu_seqlens: Optional[Array] = None) -> ArrayT:
    """Feeds many states, all different and of one description, in one call: the decode batch of a server.

    Args:
        states: n of them, sharing one mixing matrix.
        q, k, v: [n,T,H,K], [n,T,G,K], [n,T,G,V]; with cu_seqlens [n + 1] packed, [1,T,...], and state s gets tokens
            cu_seqlens[s] .. cu_seqlens[s+1]-1.

    Returns:
        o, shaped like q with V for K. If a state would go beyond its range, no state has changed.

    >>> import numpy as np, mhla
    >>> states = [mhla.State(None, heads=2, key_dim=8, value_dim=8) for _ in range(3)]
    >>> x = np.ones((3, 1, 2, 8), np.float32)
    >>> mhla.step(states, x, x, x).shape, [s.tokens for s in states]
    ((3, 1, 2, 8), [1, 1, 1])
    """
    states = list(states)
    if not states:
        raise Error("states is empty")
    first = states[0]
    for s in states:
        if s._plan is not first._plan:
            raise Error("states have different descriptions")
        if s._mix is not first._mix and not np.array_equal(s._mix, first._mix):
            raise Error("states have different mixing matrices")
    code, H, G, K, V = first._sizes
    arrays: List[np.ndarray] = []
    for name, x in (("q", q), ("k", k), ("v", v)):
        a = _as_numpy(x)
        got = 1 if a.dtype.name in ("bfloat16", "uint16") else 0 if a.dtype == np.float32 else -1
        if got != code:
            raise Error(f"{name} has dtype {getattr(x, 'dtype', a.dtype)}: expected {'bfloat16' if code else 'float32'}")
        arrays.append(_numpy.rows(a) if a.ndim == 4 else a)
    aq, ak, av = arrays
    cu = _numpy.flat(None if cu_seqlens is None else _as_numpy(cu_seqlens), np.int64, "cu_seqlens")
    B, T = (len(states), aq.shape[1] if aq.ndim == 4 else 0) if cu is None else (1, aq.shape[1] if aq.ndim == 4 else 0)
    for name, a, expected in (("q", aq, (B, T, H, K)), ("k", ak, (B, T, G, K)), ("v", av, (B, T, G, V))):
        if a.shape != expected:
            raise Error(f"{name} has shape {a.shape}: expected {expected}")
    if cu is not None and cu.shape != (len(states) + 1,):
        raise Error(f"cu_seqlens has shape {cu.shape}: expected ({len(states) + 1},)")
    o = np.empty((B, T, H, V), aq.dtype)
    cos, sin = first._rope or (None, None)
    place, address = _numpy.place, _numpy.address
    _mhla.step(first._plan, [s._state for s in states], B, T, T, *place(aq), *place(ak), *place(av), *place(o),
               address(first._mix), *place(None), *place(None), address(cos), address(sin),
               0 if cos is None else cos.shape[0], address(cu), 0 if cu is None else len(states), 0, 0, 0, 0, 0)
    return _result_like(q, o)
