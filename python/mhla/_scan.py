"""Mamba's operators as torch.library ops: mhla::selective_scan, short_conv. Tensors are float32 and token-major [B,T,channels].

What the kernels cannot do, plain PyTorch does; _dispatch.py says when.
"""
from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from . import _mhla, _plain
from ._carry import ends_of
from ._dispatch import Signature, address, check_storage, define, expect, flat, place, transformed, unwrapped
from ._plans import Error


def _tokens(name: str, x: Tensor, cu: Optional[Tensor]) -> tuple:
    """(B, T, channels, sequences) of x."""
    if x.dim() != 3:
        raise Error(f"{name} has shape {tuple(x.shape)}: expected 3 axes")
    B, T, D = x.shape
    if cu is None:
        return B, T, D, B
    if cu.dim() != 1 or cu.shape[0] < 2 or cu.dtype != torch.int64:
        raise Error(f"cu_seqlens is {cu.dtype} {tuple(cu.shape)}: expected torch.int64 [sequences + 1]")
    if B != 1:
        raise Error(f"{name} has a batch of {B}: with cu_seqlens it must be 1")
    return B, T, D, cu.shape[0] - 1


def _strided(x: Optional[Tensor]) -> Optional[Tensor]:
    """x, or a copy where its strides cannot be passed on (last axis not contiguous; all others 0, which means default)."""
    if x is None or ((x.stride(-1) == 1 or x.shape[-1] == 1) and any(x.stride()[:-1])):
        return x
    return x.contiguous()


def _place(x: Optional[Tensor]) -> tuple:
    """Address and strides of [B,T,channels], which has no heads, or of [B,T,G,N]."""
    return place(x) if x is None or x.dim() == 4 else (x.data_ptr(), x.stride(0), x.stride(1), 0)


def _sequences(cu: Optional[Tensor]) -> int:
    return 0 if cu is None else cu.shape[0] - 1


def _grads(inputs: tuple, wanted: List[bool]) -> list:
    return [torch.empty(x.shape, dtype=torch.float32) if want else None for x, want in zip(inputs, wanted)]


def _no_token(grads: list, dfinal: Optional[Tensor]) -> list:
    """The gradients where the final state is the initial one, whose gradient is the last."""
    for x in grads:
        if x is not None:
            x.zero_()
    if grads[-1] is not None and dfinal is not None:
        grads[-1].copy_(dfinal)
    return [x for x in grads if x is not None]


def _start(names: Tuple[str, ...], tensors: tuple, cu: Optional[Tensor], check: Any) -> Optional[list]:
    """The checks of a call in plain PyTorch, and cu_seqlens as a list."""
    if transformed():
        cu = unwrapped("cu_seqlens", cu)
    check_storage(names, tensors)
    if not torch.compiler.is_compiling():
        if not tensors[0].is_cpu:
            _plain.note(tensors[0].device)
        check()
    return None if cu is None else ends_of(cu.tolist(), tensors[0].shape[1])


def _apart(ends: Optional[list], tokens: tuple, state: Tensor, one: Any) -> tuple:
    """one(*tokens, state) -> (y, final), of each sequence."""
    if ends is None:
        return one(*tokens, state)
    parts = [one(*[None if x is None else x[:, a:b] for x in tokens], state[s : s + 1]) for s, (a, b) in enumerate(zip(ends, ends[1:]))]
    return torch.cat([y for y, _ in parts], 1), torch.cat([S for _, S in parts])


# ---- Selective scan ------------------------------------------------------------------------------------------------------

_SCAN = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state", "cu_seqlens")
_SCAN_ARGUMENTS = ("Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
                   "Tensor? initial_state, Tensor? cu_seqlens, bool softplus, bool output_final_state")


def _scan_sizes(u, delta, A, B, C, D, z, bias, state, cu) -> tuple:
    """(B, T, I, N, G, sequences) of a call whose shapes fit."""
    b, T, I, sequences = _tokens("u", u, cu)
    if A.dim() != 2 or B.dim() != 4:
        raise Error(f"A has shape {tuple(A.shape)}, B {tuple(B.shape)}: expected [channels, N] and [B,T,groups,N]")
    N, G = A.shape[1], B.shape[2]
    if min(I, N, G) < 1 or I % G:
        raise Error(f"u has {I} channels, B and C have {G} groups: expected a divisor")
    for name, x, shape in (("u", u, (b, T, I)), ("delta", delta, (b, T, I)), ("A", A, (I, N)), ("B", B, (b, T, G, N)), ("C", C, (b, T, G, N)),
                           ("D", D, (I,)), ("z", z, (b, T, I)), ("delta_bias", bias, (I,)), ("initial_state", state, (sequences, I, N))):
        expect(name, x, shape)
    return b, T, I, N, G, sequences


def _scan_ints(sizes: tuple, softplus: bool, u, delta, A, B, C, D, z, bias, state, cu, y) -> tuple:
    return (*sizes[:5], int(softplus), *_place(u), *_place(delta), address(A), *_place(B), *_place(C), address(D), *_place(z),
            address(bias), *_place(y), address(cu), _sequences(cu), address(state))


def _scan_tensors(u, delta, A, B, C, D, z, bias, state, cu) -> tuple:
    return (*map(_strided, (u, delta)), flat(A), *map(_strided, (B, C)), flat(D), _strided(z), *map(flat, (bias, state, cu)))


def _scan(*args):
    *tensors, softplus, output_final_state = args
    if args[0].numel() == 0:
        return _scan_plainly("selective_scan", args)
    sizes = _scan_sizes(*tensors)
    tensors = _scan_tensors(*tensors)
    y = torch.empty(sizes[:3], dtype=torch.float32)
    final = torch.empty((sizes[5], *sizes[2:4]) if output_final_state else 0, dtype=torch.float32)
    _mhla.scan(*_scan_ints(sizes, softplus, *tensors, y), address(final) if output_final_state else 0)
    return y, final


def _scan_backward(dy, dfinal, wanted: List[bool], *args):
    *tensors, softplus, _ = args
    grads = _grads(tensors, wanted)
    if args[0].numel() == 0:
        return _no_token(grads, dfinal)
    sizes = _scan_sizes(*tensors)
    expect("the gradient of y", dy, sizes[:3])
    expect("the gradient of the final state", dfinal, (sizes[5], *sizes[2:4]))
    tensors, dy, dfinal = _scan_tensors(*tensors), _strided(dy), flat(dfinal)
    _mhla.scan_backward(*_scan_ints(sizes, softplus, *tensors, dy), 0, *map(address, grads), address(dfinal))
    return [x for x in grads if x is not None]


def _scan_fake(u, delta, A, B, C, D, z, bias, state, cu, softplus, output_final_state):
    N = u.shape[0] if cu is None else cu.shape[0] - 1
    return u.new_empty(u.shape), u.new_empty((N, u.shape[2], A.shape[1]) if output_final_state else (0,))


def _scan_plainly(name: str, args: tuple) -> tuple:
    u, delta, A, B, C, D, z, bias, state, cu, softplus, output_final_state = args
    ends = _start(_SCAN, (u, delta, A, B, C, D, z, bias, state), cu, lambda: _scan_sizes(*args[:10]))
    B, C = (x.repeat_interleave(u.shape[2] // x.shape[2], 2) for x in (B, C))
    delta = delta if bias is None else delta + bias
    delta = F.softplus(delta) if softplus else delta
    if state is None:
        state = u.new_zeros(u.shape[0] if ends is None else len(ends) - 1, *A.shape)

    def walk(u, delta, B, C, h):
        y = []
        for t in range(u.shape[1]):
            h = (delta[:, t, :, None] * A).exp() * h + (delta[:, t] * u[:, t])[..., None] * B[:, t]
            y.append((h * C[:, t]).sum(-1))
        return torch.stack(y, 1) if y else u[:, :0].clone(), h

    y, final = _apart(ends, (u, delta, B, C), state, walk)
    y = y if D is None else y + D * u
    return y if z is None else y * F.silu(z), final.clone() if output_final_state else final.new_empty(0)


define("selective_scan", Signature(_SCAN, 9, 2, 1, True, _scan_plainly), _SCAN_ARGUMENTS, "(Tensor y, Tensor final_state)",
       "Tensor dy, Tensor? dfinal_state", _scan, _scan_backward, _scan_fake)


# ---- Short convolution ---------------------------------------------------------------------------------------------------

_CONV = ("x", "weight", "bias", "initial_state", "cu_seqlens")
_CONV_ARGUMENTS = ("Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? cu_seqlens, bool silu, "
                   "bool output_final_state")


def _conv_sizes(x, weight, bias, cache, cu) -> tuple:
    """(B, T, D, W, sequences) of a call whose shapes fit."""
    B, T, D, sequences = _tokens("x", x, cu)
    W = weight.shape[1] if weight.dim() == 2 else 0
    if D < 1 or W < 1:
        raise Error(f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}: expected [B,T,D] and [D,W]")
    for name, t, shape in (("x", x, (B, T, D)), ("weight", weight, (D, W)), ("bias", bias, (D,)), ("initial_state", cache, (sequences, D, W))):
        expect(name, t, shape)
    return B, T, D, W, sequences


def _conv_ints(sizes: tuple, silu: bool, x, weight, bias, cache, cu, y) -> tuple:
    return (*sizes[:4], int(silu), *_place(x), address(weight), address(bias), *_place(y), address(cu), _sequences(cu), address(cache))


def _conv(*args):
    *tensors, silu, output_final_state = args
    if args[0].numel() == 0:
        return _conv_plainly("short_conv", args)
    sizes = _conv_sizes(*tensors)
    tensors = (_strided(tensors[0]), *map(flat, tensors[1:]))
    y = torch.empty(sizes[:3], dtype=torch.float32)
    final = torch.empty((sizes[4], *sizes[2:4]) if output_final_state else 0, dtype=torch.float32)
    _mhla.short_conv(*_conv_ints(sizes, silu, *tensors, y), address(final) if output_final_state else 0)
    return y, final


def _conv_backward(dy, dfinal, wanted: List[bool], *args):
    *tensors, silu, _ = args
    grads = _grads(tensors, wanted)
    if args[0].numel() == 0:
        return _no_token(grads, dfinal)
    sizes = _conv_sizes(*tensors)
    expect("the gradient of y", dy, sizes[:3])
    expect("the gradient of the final state", dfinal, (sizes[4], *sizes[2:4]))
    tensors, dy, dfinal = (_strided(tensors[0]), *map(flat, tensors[1:])), _strided(dy), flat(dfinal)
    _mhla.short_conv_backward(*_conv_ints(sizes, silu, *tensors, dy), 0, *map(address, grads), address(dfinal))
    return [x for x in grads if x is not None]


def _conv_fake(x, weight, bias, cache, cu, silu, output_final_state):
    N = x.shape[0] if cu is None else cu.shape[0] - 1
    return x.new_empty(x.shape), x.new_empty((N, *weight.shape) if output_final_state else (0,))


def _conv_plainly(name: str, args: tuple) -> tuple:
    x, weight, bias, cache, cu, silu, output_final_state = args
    ends = _start(_CONV, (x, weight, bias, cache), cu, lambda: _conv_sizes(*args[:5]))
    W = weight.shape[1]
    if cache is None:
        cache = x.new_zeros(x.shape[0] if ends is None else len(ends) - 1, *weight.shape)

    def slide(x, cache):
        whole = torch.cat([cache, x.transpose(1, 2)], 2)  # [B,D,W+T]
        T = x.shape[1]
        y = sum(whole[:, :, j + 1 : j + 1 + T] * weight[:, j, None] for j in range(W)).transpose(1, 2)
        return y, whole[:, :, T:]

    y, final = _apart(ends, (x,), cache, slide)
    y = y if bias is None else y + bias
    return F.silu(y) if silu else y, final.clone() if output_final_state else final.new_empty(0)


define("short_conv", Signature(_CONV, 4, 2, 1, True, _conv_plainly), _CONV_ARGUMENTS, "(Tensor y, Tensor final_state)",
       "Tensor dy, Tensor? dfinal_state", _conv, _conv_backward, _conv_fake)
