"""The linear recurrences as torch.library ops: mhla::gla, simple_gla, gated_delta.

They have one list of arguments and one kernel each way; a name stands for its kind of plan. q, k and v are float32 or bfloat16, all else
float32. What the kernels cannot do, plain PyTorch does token by token; _dispatch.py says when.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from torch import Tensor

from . import _mhla, _plain
from ._carry import ends_of
from ._dispatch import Signature, address, check_storage, define, expect, flat, place, rows, transformed, unwrapped
from ._plans import Error, Options, make_plan

_ARGUMENTS = ("Tensor q, Tensor k, Tensor v, Tensor g, Tensor? beta, Tensor? initial_state, Tensor? cu_seqlens, float scale, "
              "bool qk_l2norm, str precision, bool output_final_state")
_NAMES = ("q", "k", "v", "g", "beta", "initial_state", "cu_seqlens")
_GRADS = 6
_KINDS = ("simple_gla", "gla", "gated_delta")
_CODES = {torch.float32: 0, torch.bfloat16: 1}


# ---- Shapes ------------------------------------------------------------------------------------------------------------

def _sizes(name: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], state: Optional[Tensor],
           cu: Optional[Tensor]) -> tuple:
    """(sequences, H, K, V) of a call whose shapes fit."""
    for x, what in ((q, "q"), (k, "k"), (v, "v")):
        if x.dim() != 4:
            raise Error(f"{what} has shape {tuple(x.shape)}: expected 4 axes, [B,T,H,{'V' if what == 'v' else 'K'}]")
    if q.dtype not in _CODES:
        raise Error(f"q has dtype {q.dtype}: expected torch.float32 or torch.bfloat16")
    (B, T, G, K), (H, V) = q.shape, v.shape[2:]
    expect("k", k, (B, T, G, K), q.dtype)
    expect("v", v, (B, T, H, V), q.dtype)
    if min(G, H, K, V) < 1:
        raise Error(f"q has shape {tuple(q.shape)}, v {tuple(v.shape)}: heads and channels may not be empty")
    if H % G or (name == "gla" and H != G):
        raise Error(f"v has {H} heads, q and k have {G}: expected {'as many' if name == 'gla' else 'a multiple'}")
    expect("the log-decay", g, (B, T, H, K) if name == "gla" else (B, T, H), torch.float32)
    expect("beta", beta, (B, T, H), torch.float32)
    N = B
    if cu is not None:
        if cu.dim() != 1 or cu.shape[0] < 2 or cu.dtype != torch.int64:
            raise Error(f"cu_seqlens is {cu.dtype} {tuple(cu.shape)}: expected torch.int64 [sequences + 1]")
        if B != 1:
            raise Error(f"q has a batch of {B}: with cu_seqlens it must be 1")
        N = cu.shape[0] - 1
    expect("initial_state", state, (N, H, K, V), torch.float32)
    return N, H, K, V


_seen: Dict[tuple, tuple] = {}


def _prepare(name: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple:
    """(plan, shape of a state); what was seen before costs a look into a dictionary. rest: the other arguments but the last."""
    *tensors, scale, qk_l2norm, precision = rest
    key = (name, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, scale, qk_l2norm, precision,
           *[None if x is None else (x.shape, x.dtype) for x in tensors])
    found = _seen.get(key)
    if found is None:
        N, H, K, V = _sizes(name, q, k, v, *tensors)
        G = q.shape[2]
        options = Options(scale=scale, key_heads=0 if G == H else G, qk_l2norm=qk_l2norm, precision=precision)
        plan = make_plan(name, _CODES[q.dtype], H, H, K, V, None, 0, options)
        if len(_seen) >= 4096:
            _seen.clear()
        found = _seen[key] = (plan, (N, H, K, V))
    return found


# ---- Kernels -----------------------------------------------------------------------------------------------------------

def _strided(x: Optional[Tensor]) -> Optional[Tensor]:
    """x [B,T,H] or [B,T,H,K], or a copy where its strides cannot be passed on."""
    return rows(x) if x is None or x.dim() == 4 or any(x.stride()) else x.contiguous()


def _make_forward(name: str) -> Any:
    def forward(q, k, v, g, beta, state, cu, scale, qk_l2norm, precision, output_final_state):
        if q.numel() == 0:
            return _plainly(name, (q, k, v, g, beta, state, cu, scale, qk_l2norm, precision, output_final_state))
        plan, shape = _prepare(name, q, k, v, g, beta, state, cu, scale, qk_l2norm, precision)
        q, k, v, g, beta, state, cu = rows(q), rows(k), rows(v), _strided(g), _strided(beta), flat(state), flat(cu)
        o = torch.empty((*v.shape[:3], shape[3]), dtype=q.dtype)
        final = torch.empty(shape if output_final_state else 0, dtype=torch.float32)
        _mhla.recur(plan, q.shape[0], q.shape[1], *place(q), *place(k), *place(v), *place(o), *place(g), *place(beta), address(cu),
                    0 if cu is None else shape[0], address(state), address(final) if output_final_state else 0)
        return o, final

    return forward


def _make_backward(name: str) -> Any:
    def backward(do, dfinal, wanted: List[bool], q, k, v, g, beta, state, cu, scale, qk_l2norm, precision, output_final_state):
        inputs = (q, k, v, g, beta, state)
        if q.numel() == 0:
            grads = [torch.zeros(x.shape, dtype=torch.float32) for x, want in zip(inputs, wanted) if want]
            if wanted[-1] and dfinal is not None:
                grads[-1] += dfinal  # no token: the final state is the initial one
            return grads
        plan, shape = _prepare(name, q, k, v, g, beta, state, cu, scale, qk_l2norm, precision)
        expect("the gradient of o", do, (*v.shape[:3], shape[3]), q.dtype)
        expect("the gradient of the final state", dfinal, shape, torch.float32)
        do, q, k, v, g, beta = rows(do), rows(q), rows(k), rows(v), _strided(g), _strided(beta)
        state, cu, dfinal = flat(state), flat(cu), flat(dfinal)
        grads = [torch.empty(x.shape, dtype=torch.float32) if want else None for x, want in zip(inputs, wanted)]
        _mhla.recur_backward(plan, q.shape[0], q.shape[1], *place(q), *place(k), *place(v), *place(do), *place(g), *place(beta),
                             address(cu), 0 if cu is None else shape[0], address(state), 0, *map(address, grads), address(dfinal))
        return [x for x in grads if x is not None]

    return backward


def _make_fake(name: str) -> Any:
    def fake(q, k, v, g, beta, state, cu, scale, qk_l2norm, precision, output_final_state):
        if q.dim() != 4 or v.dim() != 4:
            raise Error("q, k and v are [B,T,H,K]: expected 4 axes")
        N = q.shape[0] if cu is None else cu.shape[0] - 1
        shape = (N, v.shape[2], q.shape[3], v.shape[3]) if output_final_state else (0,)
        return q.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)

    return fake


# ---- Plain PyTorch -------------------------------------------------------------------------------------------------------

def _walk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], S: Tensor, scale: float) -> tuple:
    """o [B,T,H,V] and the state after, token by token; S [B,H,K,V] is the one before."""
    decay = g.exp()[..., None] if g.dim() == 4 else g.exp()[..., None, None]  # [B,T,H,K or 1,1]
    o = []
    for t in range(q.shape[1]):
        S, u = decay[:, t] * S, v[:, t]
        if beta is not None:
            u = beta[:, t, :, None] * (u - torch.einsum("bhk,bhkv->bhv", k[:, t], S))
        S = S + k[:, t, ..., None] * u[:, :, None]
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, 1) if o else v[:, :0].clone(), S


def _plainly(name: str, args: tuple) -> tuple:
    q, k, v, g, beta, state, cu, scale, qk_l2norm, precision, output_final_state = args
    if transformed():
        cu = unwrapped("cu_seqlens", cu)
    check_storage(_NAMES, (q, k, v, g, beta, state))
    if not torch.compiler.is_compiling():
        if not q.is_cpu:
            _plain.note(q.device)
        _prepare(name, q, k, v, g, beta, state, cu, scale, qk_l2norm, precision)
    dtype, H = q.dtype, v.shape[2]
    q, k = (x.float().repeat_interleave(H // x.shape[2], 2) for x in (q, k))
    if qk_l2norm:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    tokens = (q, k, v.float(), g, beta)
    ends = None if cu is None else ends_of(cu.tolist(), q.shape[1])
    if state is None:
        state = q.new_zeros(q.shape[0] if ends is None else len(ends) - 1, H, q.shape[3], v.shape[3])
    if ends is None:
        o, final = _walk(*tokens, state, scale)
    else:
        parts = [_walk(*[None if x is None else x[:, a:b] for x in tokens], state[s : s + 1], scale)
                 for s, (a, b) in enumerate(zip(ends, ends[1:]))]
        o, final = torch.cat([o for o, _ in parts], 1), torch.cat([S for _, S in parts])
    return o.to(dtype), final.clone() if output_final_state else final.new_empty(0)


for _name in _KINDS:
    define(_name, Signature(_NAMES, _GRADS, 4, 1, True, _plainly), _ARGUMENTS, "(Tensor o, Tensor final_state)",
           "Tensor do, Tensor? dfinal_state", _make_forward(_name), _make_backward(_name), _make_fake(_name))
