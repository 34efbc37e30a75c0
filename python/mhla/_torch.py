"""The operators as torch.library ops: mhla::attention, causal_attention, linear_attention, softmax_attention and those of
vision models, focused_attention, inline_attention, mala_attention, rala_attention.

All have one list of arguments, one CPU kernel, one fake kernel and one backward; a name stands for its kind of plan.
What the kernels cannot do, plain PyTorch does (_plain.py); _dispatch.py says when. Batches of nothing are among it.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _plain
from ._dispatch import (AUTOGRAD, AUTOGRAD_BACKWARD, BACKWARD, OPS, Signature, call, check_storage, define, library,  # noqa: F401
                        transformed, unwrapped, wrapped)
from ._dispatch import address as _address, flat as _flat, place as _place, rows as _rows
from ._numpy import whole
from ._plans import Error, Options, Prepared, Shapes, prepare
from .mixing import rope_table

# Three lists instead of a dozen options, because every argument costs 0.2 us, twice. meaning: "rope feature denominator
# order beyond precision", numbers: feature_eps, den_eps, scale, focus_power, sizes: chunk, max_tokens, causal, window, *grid, *blocks. No
# defaults: the dispatcher drops trailing arguments that equal them on the way to a Python kernel.
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mix, Tensor? q2, Tensor? k2, Tensor? initial_state, Tensor? initial_z, "
    "Tensor? rope_cos, Tensor? rope_sin, Tensor? cu_seqlens, Tensor? block_offsets, Tensor? permutation, SymInt past, "
    "bool output_final_state, str meaning, float[] numbers, int[] sizes"
)
_NAMES = ("q", "k", "v", "mix", "q2", "k2", "initial_state", "initial_z", "rope's cos", "rope's sin", "cu_seqlens",
          "block_offsets", "permutation")
_GRADS = 8  # the first arguments, which may have a gradient
_TENSORS = 13  # all tensors
_KINDS = {"attention": "bidirectional", "causal_attention": "causal", "linear_attention": "linear",
          "softmax_attention": "softmax", "focused_attention": "focused", "inline_attention": "inline",
          "mala_attention": "mala", "rala_attention": "rala"}
_STATES = ("causal_attention", "linear_attention")  # those that return (o, final_state, final_z) instead of o
_CODES = {torch.float32: 0, torch.bfloat16: 1}


def _kind(name: str, causal: bool) -> str:
    return "linear_causal" if name == "linear_attention" and causal else _KINDS[name]


# ---- Plans -----------------------------------------------------------------------------------------------------------

_seen: Dict[tuple, Prepared] = {}


def _bytes(x: Optional[Tensor], dtype: Any, name: str) -> Optional[bytes]:
    """Inside a transformation of torch.func by a list, because any operation of torch would hide the numbers."""
    if x is None:
        return None
    return whole(np.array(x.tolist(), np.int64) if transformed() else x.cpu().numpy(), dtype, name).tobytes()


def _shape(x: Optional[Tensor]):
    return None if x is None else x.shape


def _check_dtypes(q, k, v, mix, q2, k2, state, z, cos, sin, cu) -> int:
    if q.dtype not in _CODES:
        raise Error(f"q has dtype {q.dtype}: expected torch.float32 or torch.bfloat16")
    for x, name, dtype in ((k, "k", q.dtype), (v, "v", q.dtype), (q2, "q2", q.dtype), (k2, "k2", q.dtype),
                           (mix, "mix", torch.float32), (state, "initial_state", torch.float32),
                           (z, "initial_z", torch.float32), (cos, "rope's cos", torch.float32),
                           (sin, "rope's sin", torch.float32), (cu, "cu_seqlens", torch.int64)):
        if x is not None and x.dtype != dtype:
            raise Error(f"{name} has dtype {x.dtype}: expected {dtype}")
    return _CODES[q.dtype]


def _options(meaning: str, numbers: List[float], sizes: List[int], offsets: Optional[Tensor], permutation: Optional[Tensor]) -> Options:
    rope, feature, denominator, order, beyond, precision = meaning.split()
    feature_eps, den_eps, scale, power = numbers
    chunk, max_tokens, causal, window, *cuts = sizes
    axes = len(cuts) // 2
    return Options(rope, feature, feature_eps, denominator, den_eps, scale, tuple(cuts[:axes]), tuple(cuts[axes:]), order, chunk,
                   beyond, max_tokens, bool(causal), window, _bytes(offsets, np.int64, "block_offsets"),
                   _bytes(permutation, np.int32, "permutation"), int(power), precision=precision)


def _prepare(name: str, tensors: tuple, past: int, meaning: str, numbers: List[float], sizes: List[int]) -> Prepared:
    """The checked plan of a call; what was seen before costs a look into a dictionary."""
    q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation = tensors
    plain = q2 is k2 is state is z is cos is cu is offsets is permutation is None
    key = ()
    if plain:  # nothing but q, k, v and mix: the common case has the short key
        key = (name, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, None if mix is None else (mix.shape, mix.dtype),
               past, meaning, *numbers, *sizes)
        found = _seen.get(key)
        if found is not None:
            return found
    code = _check_dtypes(*tensors[:11])
    options = _options(meaning, numbers, sizes, offsets, permutation)
    found = prepare(_kind(name, options.causal), code, Shapes(*map(_shape, tensors[:11])), past, options)
    if plain:
        if len(_seen) >= 4096:
            _seen.clear()
        _seen[key] = found
    return found


# ---- Kernels ---------------------------------------------------------------------------------------------------------

def _make_forward(name: str):
    states = name in _STATES

    def forward(q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation, past, output_final_state, meaning,
                numbers, sizes):
        if q.shape[0] == 0:
            return _plainly(name, (q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation, past,
                                   output_final_state, meaning, numbers, sizes))
        q, k, v, q2, k2 = _rows(q), _rows(k), _rows(v), _rows(q2), _rows(k2)
        mix, state, z, cos, sin, cu = _flat(mix), _flat(state), _flat(z), _flat(cos), _flat(sin), _flat(cu)
        p = _prepare(name, (q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation), past, meaning,
                     numbers, sizes)
        o = torch.empty(p.o, dtype=q.dtype)
        final = final_z = None
        if states:
            final = torch.empty(p.final_state if output_final_state else 0)
            final_z = torch.empty(p.final_z if output_final_state and p.final_z else 0)
        p.plan.forward(p.o[0], p.o[1], k.shape[1], *_place(q), *_place(k), *_place(v), *_place(o), _address(mix),
                       *_place(q2), *_place(k2), _address(cos), _address(sin), p.rope_rows, _address(cu), p.sequences,
                       past, _address(state), _address(z), _address(final), _address(final_z))
        return (o, final, final_z) if states else o

    return forward


def _make_fake(name: str):
    def fake(q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation, past, output_final_state, meaning,
                numbers, sizes):
        _, _, denominator, _, beyond, _ = meaning.split()
        chunk, max_tokens, causal = sizes[:3]
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
            raise Error("q, k and v are [B,T,H,K]: expected 4 axes")
        B, T, H, K = q.shape
        G, V = k.shape[2], v.shape[3]
        o = q.new_empty((B, T, H, V))
        if name not in _STATES:
            return o
        kind = _kind(name, causal)
        empty = q.new_empty((0,), dtype=torch.float32)
        if not output_final_state or kind == "linear":
            return o, empty, torch.empty_like(empty)
        lead = (B if cu is None else cu.shape[0] - 1,)
        if kind == "causal":  # N1 of the header
            M = mix.shape[-1]
            C = (max_tokens + M - 1) // M if beyond == "chunk" else chunk or 64
            n = (past + T + C - 1) // C
            lead += (torch.sym_min(n, M) if beyond == "clamp" else n,)
        final = q.new_empty((*lead, G, K, V), dtype=torch.float32)
        return o, final, empty if denominator == "none" else q.new_empty((*lead, G, K), dtype=torch.float32)

    return fake


def _make_backward(name: str):
    def backward(do, dfinal, dfinal_z, wanted: List[bool], q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation,
                 past, output_final_state, meaning,
                numbers, sizes):
        if q.shape[0] == 0:
            return [torch.zeros(x.shape) for x, want in zip((q, k, v, mix, q2, k2, state, z), wanted) if want]
        do, q, k, v, q2, k2 = _rows(do), _rows(q), _rows(k), _rows(v), _rows(q2), _rows(k2)
        mix, state, z, cos, sin, cu = _flat(mix), _flat(state), _flat(z), _flat(cos), _flat(sin), _flat(cu)
        dfinal, dfinal_z = _flat(dfinal), _flat(dfinal_z)
        p = _prepare(name, (q, k, v, mix, q2, k2, state, z, cos, sin, cu, offsets, permutation), past, meaning,
                     numbers, sizes)
        if do.shape != p.o or do.dtype != q.dtype:
            raise Error(f"the gradient of o is {do.dtype} {tuple(do.shape)}: expected {q.dtype} {p.o}")
        for x, expected in ((dfinal, p.final_state), (dfinal_z, p.final_z)):
            if x is not None and (x.shape != expected or x.dtype != torch.float32):
                raise Error(f"the gradient of a final state is {x.dtype} {tuple(x.shape)}: expected float32 {expected}")
        grads, places = [], []
        for x, want in zip((q, k, v, mix, q2, k2, state, z), wanted):
            if want:
                grads.append(torch.empty(x.shape, dtype=torch.float32))
            places.append(grads[-1].data_ptr() if want else 0)
        p.plan.backward(p.o[0], p.o[1], k.shape[1], *_place(q), *_place(k), *_place(v), *_place(do), _address(mix),
                        *_place(q2), *_place(k2), _address(cos), _address(sin), p.rope_rows, _address(cu), p.sequences,
                        past, _address(state), _address(z), 0, 0, *places, _address(dfinal),
                        _address(dfinal_z))
        return grads

    return backward


# ---- Plain PyTorch ---------------------------------------------------------------------------------------------------

def _plainly(name: str, args: tuple):
    """The op's result by plain PyTorch, which records what it does for any kind of derivative."""
    tensors, (past, output_final_state, meaning, numbers, sizes) = args[:_TENSORS], args[_TENSORS:]
    if transformed():
        tensors = (*tensors[:10], *map(unwrapped, _NAMES[10:], tensors[10:]))
    q = tensors[0]
    compiling = torch.compiler.is_compiling()
    check_storage(_NAMES, tensors[:10])  # integers may be anywhere
    if not q.is_cpu and not compiling:
        _plain.note(q.device)
    if not compiling:
        _prepare(name, tensors, past, meaning, numbers, sizes)
    options = _options(meaning, numbers, sizes, *tensors[11:])
    fused = not (transformed() or forward_ad._current_level >= 0 or q.is_cpu)
    return _plain.run(_kind(name, options.causal), options, fused, *tensors[:11], past, output_final_state)


def widest(*tensors: Optional[Tensor]) -> tuple:
    """Under autocast: tensors of different dtypes, or of one that has no kernel, as float32."""
    dtypes = {x.dtype for x in tensors if x is not None}
    if len(dtypes) == 1 and dtypes <= _CODES.keys():
        return tensors
    return tuple(x.float() if x is not None and x.dtype.is_floating_point else x for x in tensors)


# ---- Registration ----------------------------------------------------------------------------------------------------

def _register() -> None:
    for name in _KINDS:
        states = name in _STATES
        define(name, Signature(_NAMES, _GRADS, 5, 2, states, _plainly), _ARGUMENTS,
               "(Tensor o, Tensor final_state, Tensor final_z)" if states else "Tensor",
               "Tensor do, Tensor? dfinal_state, Tensor? dfinal_z", _make_forward(name), _make_backward(name), _make_fake(name))


_register()


# ---- Rotary tables inside a graph --------------------------------------------------------------------------------------

library.define("rope_table(SymInt rows, int dim, float base, Device device) -> (Tensor cos, Tensor sin)",
                tags=(torch.Tag.pt2_compliant_tag,))


def _rope_kernel(rows: int, dim: int, base: float, device: torch.device):
    return tuple(torch.from_numpy(x).to(device) for x in rope_table(rows, dim, base))


def _rope_fake(rows: int, dim: int, base: float, device: torch.device):
    return torch.empty(rows, dim // 2, device=device), torch.empty(rows, dim // 2, device=device)


library.impl("rope_table", _rope_kernel, "BackendSelect")
torch.library.register_fake("mhla::rope_table", _rope_fake, lib=library)
rope_rows = torch.ops.mhla.rope_table.default
