"""The operators on NumPy arrays: forward only."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np

from ._plans import Error, Options, Shapes, prepare

_NONE = (0, 0, 0, 0)


def dtype_code(dtype: Any, name: str) -> int:
    """0 for float32, 1 for bfloat16 (of ml_dtypes)."""
    if dtype == np.float32:
        return 0
    if getattr(dtype, "name", "") == "bfloat16":
        return 1
    raise Error(f"{name} has dtype {dtype}: expected float32 or bfloat16")


def rows(x: np.ndarray) -> np.ndarray:
    """x, or a copy where its strides cannot be passed on: last axis not contiguous, negative or broken strides."""
    size, strides = x.itemsize, x.strides
    whole = strides[-1] == size or x.shape[-1] == 1
    if whole and all(s >= 0 and s % size == 0 for s in strides) and any(strides[:-1]) and x.flags.aligned:
        return x
    return np.ascontiguousarray(x)


def place(x: Optional[np.ndarray]) -> tuple:
    """Address and strides of a [B,T,H,*] array."""
    if x is None:
        return _NONE
    size = x.itemsize
    b, t, h, _ = x.strides
    return x.__array_interface__["data"][0], b // size, t // size, h // size


def address(x: Optional[np.ndarray]) -> int:
    return 0 if x is None else x.__array_interface__["data"][0]


def flat(x: Any, dtype: Any, name: str) -> Optional[np.ndarray]:
    """x as a contiguous array of this dtype, or None; nothing is lost but digits."""
    if x is None:
        return None
    x = unmasked(x, name)
    if np.issubdtype(dtype, np.integer):
        return whole(x, dtype, name)
    if x.dtype.kind in "cOSUMm":
        raise Error(f"{name} has dtype {x.dtype}: expected real numbers")
    return np.ascontiguousarray(x, dtype=dtype)


def whole(x: np.ndarray, dtype: Any, name: str) -> np.ndarray:
    """Integers as contiguous integers of this dtype, which must hold them."""
    if not np.issubdtype(x.dtype, np.integer):
        raise Error(f"{name} has dtype {x.dtype}: expected integers")
    if x.size and not np.can_cast(x.dtype, dtype):
        low, high = int(x.min()), int(x.max())
        if low < np.iinfo(dtype).min or high > np.iinfo(dtype).max:
            raise Error(f"{name} has numbers from {low} to {high}: expected {np.dtype(dtype).name}")
    return np.ascontiguousarray(x, dtype=dtype)


def unmasked(x: Any, name: str) -> np.ndarray:
    """x as an array; the hidden entries of a masked one would come to light again."""
    if isinstance(x, np.ma.MaskedArray):
        raise Error(f"{name} is a masked array: fill it first")
    return np.asarray(x)


def forward(kind: str, options: Options, q, k, v, mix=None, q2=None, k2=None, initial_state=None, initial_z=None, rope_cos=None,
            rope_sin=None, cu_seqlens=None, past: int = 0, output_final_state: bool = False, reference: bool = False, key_cos=None,
            key_sin=None) -> tuple:
    """(o, final_state, final_z); a state is None where it is not asked for."""
    given = {"q": q, "k": k, "v": v, "q2": q2, "k2": k2}
    code = dtype_code(np.asarray(q).dtype, "q")
    for name, x in given.items():
        if x is None:
            continue
        x = unmasked(x, name)
        if dtype_code(x.dtype, name) != code:
            raise Error(f"{name} has dtype {x.dtype}, q has {np.asarray(q).dtype}")
        given[name] = rows(x) if x.ndim == 4 else x
    q, k, v, q2, k2 = given.values()
    mix, initial_state, initial_z = (flat(x, np.float32, n) for x, n in
                                     ((mix, "mix"), (initial_state, "initial_state"), (initial_z, "initial_z")))
    rope_cos, rope_sin = flat(rope_cos, np.float32, "rope"), flat(rope_sin, np.float32, "rope")
    key_cos, key_sin = flat(key_cos, np.float32, "key_rope"), flat(key_sin, np.float32, "key_rope")
    cu_seqlens = flat(cu_seqlens, np.int64, "cu_seqlens")
    shapes = Shapes(*(x if x is None else x.shape for x in
                      (q, k, v, mix, q2, k2, initial_state, initial_z, rope_cos, rope_sin, cu_seqlens, key_cos, key_sin)))
    p = prepare(kind, code, shapes, past, options)
    o = np.empty(p.o, q.dtype)
    final_state = np.empty(p.final_state, np.float32) if output_final_state else None
    final_z = np.empty(p.final_z, np.float32) if output_final_state and p.final_z else None
    if p.o[0] == 0:
        return o, final_state, final_z
    run = p.plan.forward_reference if reference else p.plan.forward
    run(p.o[0], p.o[1], k.shape[1], *place(q), *place(k), *place(v), *place(o), address(mix), *place(q2), *place(k2),
        address(rope_cos), address(rope_sin), p.rope_rows, address(cu_seqlens), p.sequences, past, address(initial_state),
        address(initial_z), address(final_state), address(final_z),
        *((address(key_cos), address(key_sin), p.key_rope_rows) if p.key_rope_rows else ()))
    return o, final_state, final_z
