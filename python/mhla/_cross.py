"""mhla::cross_attention: bidirectional MHLA with a separate layout or rotary table for the keys.

An op beside those of _torch.py, so that their lists of arguments, and with them the cost of a call, stay as short as they are.
"""
from __future__ import annotations

from typing import List

import numpy as np
import torch

from . import _plain
from ._dispatch import Signature, address, check_storage, define, flat, place, rows, transformed, unwrapped
from ._plans import Error, Options, Prepared, Shapes, prepare
from ._torch import _bytes, _check_dtypes, _shape

# meaning: "rope feature denominator order precision", numbers: feature_eps, den_eps, scale, sizes: axes, *grid, *blocks, *key_grid,
# *key_blocks. Nothing has a default: see _torch.py.
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mix, Tensor? q2, Tensor? k2, Tensor? rope_cos, Tensor? rope_sin, Tensor? key_cos, "
    "Tensor? key_sin, Tensor? block_offsets, Tensor? permutation, Tensor? key_block_offsets, Tensor? key_permutation, "
    "str meaning, float[] numbers, int[] sizes"
)
_NAMES = ("q", "k", "v", "mix", "q2", "k2", "rope's cos", "rope's sin", "key_rope's cos", "key_rope's sin", "block_offsets",
          "permutation", "key_block_offsets", "key_permutation")
_GRADS, _FLOATS, _TENSORS = 6, 10, 14


def _options(tensors: tuple, meaning: str, numbers: List[float], sizes: List[int]) -> Options:
    rope, feature, denominator, order, precision = meaning.split()
    axes, *cuts = sizes
    queries, keys = cuts[: 2 * axes], cuts[2 * axes :]
    raw = [_bytes(x, dtype, name) for x, dtype, name in zip(tensors[_FLOATS:], (np.int64, np.int32) * 2, _NAMES[_FLOATS:])]
    return Options(rope, feature, numbers[0], denominator, numbers[1], numbers[2], tuple(queries[:axes]), tuple(queries[axes:]),
                   order, block_offsets=raw[0], permutation=raw[1], key_grid=tuple(keys[: len(keys) // 2]),
                   key_blocks=tuple(keys[len(keys) // 2 :]), key_block_offsets=raw[2], key_permutation=raw[3], precision=precision)


def _prepare(tensors: tuple, options: Options) -> Prepared:
    q, k, v, mix, q2, k2, cos, sin, key_cos, key_sin = tensors[:_FLOATS]
    code = _check_dtypes(q, k, v, mix, q2, k2, None, None, cos, sin, None)
    for x, name in ((key_cos, _NAMES[8]), (key_sin, _NAMES[9])):
        if x is not None and x.dtype != torch.float32:
            raise Error(f"{name} has dtype {x.dtype}: expected {torch.float32}")
    shapes = [_shape(x) for x in (q, k, v, mix, q2, k2, None, None, cos, sin, None, key_cos, key_sin)]
    return prepare("bidirectional", code, Shapes(*shapes), 0, options)


def _call(tensors: tuple, p: Prepared, o) -> tuple:
    """The ints of a plan's call, but those of its gradients; o stands for the gradient that arrives, too."""
    q, k, v, mix, q2, k2, cos, sin = tensors[:8]
    return (p.o[0], p.o[1], k.shape[1], *place(q), *place(k), *place(v), *place(o), address(mix), *place(q2), *place(k2),
            address(cos), address(sin), p.rope_rows, 0, 0, 0, 0, 0, 0, 0)


def _keys(tensors: tuple, p: Prepared) -> tuple:
    return (address(tensors[8]), address(tensors[9]), p.key_rope_rows)


def _addressable(tensors: tuple) -> tuple:
    q, k, v, mix, q2, k2 = tensors[:6]
    return (rows(q), rows(k), rows(v), flat(mix), rows(q2), rows(k2), *map(flat, tensors[6:_FLOATS]), *tensors[_FLOATS:])


def _forward(*args):
    if args[0].shape[0] == 0:
        return _plainly("cross_attention", args)
    tensors = _addressable(args[:_TENSORS])
    p = _prepare(tensors, _options(tensors, *args[_TENSORS:]))
    o = torch.empty(p.o, dtype=tensors[0].dtype)
    p.plan.forward(*_call(tensors, p, o), *_keys(tensors, p))
    return o


def _fake(q, k, v, *rest):
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise Error("q, k and v are [B,T,H,K]: expected 4 axes")
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _backward(do, wanted: List[bool], *args):
    given = args[:_GRADS]
    if args[0].shape[0] == 0:
        return [torch.zeros(x.shape) for x, want in zip(given, wanted) if want]
    tensors, do = _addressable(args[:_TENSORS]), rows(do)
    p = _prepare(tensors, _options(tensors, *args[_TENSORS:]))
    if do.shape != p.o or do.dtype != tensors[0].dtype:
        raise Error(f"the gradient of o is {do.dtype} {tuple(do.shape)}: expected {tensors[0].dtype} {p.o}")
    grads = [torch.empty(x.shape, dtype=torch.float32) if want else None for x, want in zip(given, wanted)]
    p.plan.backward(*_call(tensors, p, do), *map(address, grads), 0, 0, 0, 0, *_keys(tensors, p))
    return [x for x in grads if x is not None]


def _plainly(name: str, args: tuple):
    """By plain PyTorch, as _torch.py's."""
    tensors, rest = args[:_TENSORS], args[_TENSORS:]
    if transformed():
        tensors = (*tensors[:_FLOATS], *map(unwrapped, _NAMES[_FLOATS:], tensors[_FLOATS:]))
    q, k, v, mix, q2, k2, cos, sin, key_cos, key_sin = tensors[:_FLOATS]
    compiling = torch.compiler.is_compiling()
    check_storage(_NAMES, tensors[:_FLOATS])
    options = _options(tensors, *rest)
    if not compiling:
        if not q.is_cpu:
            _plain.note(q.device)
        _prepare(tensors, options)
    return _plain.run("bidirectional", options, False, q, k, v, mix, q2, k2, None, None, cos, sin, None, 0, False, key_cos, key_sin)


define("cross_attention", Signature(_NAMES, _GRADS, 3, 0, False, _plainly), _ARGUMENTS, "Tensor", "Tensor do", _forward, _backward,
       _fake)
