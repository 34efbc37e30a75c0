"""The operators as torch.library ops: mhla::attention, causal_attention, linear_attention, softmax_attention.

All four have one schema, one CPU kernel, one fake kernel and one backward; a name stands for its kind of plan. The
low-level API is used (Library.define and impl), because a call through it costs a third of what custom_op costs.
"""
from __future__ import annotations

from typing import Any, List, Optional

import torch
from torch import Tensor

from ._plans import Error, Options, Shapes, prepare

# No defaults: the dispatcher drops trailing arguments that equal them on the way to a Python kernel.
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mix, Tensor? q2, Tensor? k2, Tensor? initial_state, Tensor? initial_z, "
    "Tensor? rope_cos, Tensor? rope_sin, Tensor? cu_seqlens, Tensor? block_offsets, Tensor? permutation, SymInt past, "
    "bool output_final_state, str rope, str feature, float feature_eps, str denominator, float den_eps, float scale, "
    "int[] grid, int[] blocks, str order, int chunk, str beyond, int max_tokens, bool causal, int window"
)
_KINDS = {"attention": "bidirectional", "causal_attention": "causal", "linear_attention": "linear",
          "softmax_attention": "softmax"}
_CODES = {torch.float32: 0, torch.bfloat16: 1}
_NONE = (0, 0, 0, 0)

_library = torch.library.Library("mhla", "DEF")


def _kind(name: str, causal: bool) -> str:
    return "linear_causal" if name == "linear_attention" and causal else _KINDS[name]


def _rows(x: Optional[Tensor]) -> Optional[Tensor]:
    """x, or a copy where its strides cannot be passed on (last axis not contiguous; all others 0, which means default)."""
    if x is None or x.dim() != 4:
        return x
    s = x.stride()
    if (s[3] == 1 or x.shape[3] == 1) and (s[0] or s[1] or s[2]):
        return x
    return x.contiguous()


def _place(x: Optional[Tensor]) -> tuple:
    if x is None:
        return _NONE
    s = x.stride()
    return x.data_ptr(), s[0], s[1], s[2]


def _flat(x: Optional[Tensor], dtype: torch.dtype, name: str) -> Optional[Tensor]:
    if x is None:
        return None
    if x.dtype != dtype:
        raise Error(f"{name} has dtype {x.dtype}: expected {dtype}")
    return x.contiguous()


def _address(x: Optional[Tensor]) -> int:
    return 0 if x is None else x.data_ptr()


def _bytes(x: Optional[Tensor], dtype: torch.dtype) -> Optional[bytes]:
    return None if x is None else x.to(dtype).contiguous().numpy().tobytes()


def _options(block_offsets: Optional[Tensor], permutation: Optional[Tensor], options: tuple) -> Options:
    rope, feature, feature_eps, denominator, den_eps, scale, grid, blocks, *rest = options
    return Options(rope, feature, feature_eps, denominator, den_eps, scale, tuple(grid), tuple(blocks), *rest,
                   _bytes(block_offsets, torch.int64), _bytes(permutation, torch.int32))


def _prepare(name: str, q: Tensor, k: Tensor, v: Tensor, mix: Optional[Tensor], q2: Optional[Tensor], k2: Optional[Tensor],
             state: Optional[Tensor], z: Optional[Tensor], cos: Optional[Tensor], sin: Optional[Tensor],
             cu: Optional[Tensor], past: int, options: Options):
    code = _CODES.get(q.dtype)
    if code is None:
        raise Error(f"q has dtype {q.dtype}: expected torch.float32 or torch.bfloat16")
    for x, what in ((k, "k"), (v, "v"), (q2, "q2"), (k2, "k2")):
        if x is not None and x.dtype != q.dtype:
            raise Error(f"{what} has dtype {x.dtype}, q has {q.dtype}")
    shapes = Shapes(*(x if x is None else x.shape for x in (q, k, v, mix, q2, k2, state, z, cos, sin, cu)))
    return prepare(_kind(name, options.causal), code, shapes, past, options)


def _make_forward(name: str):
    def forward(q: Tensor, k: Tensor, v: Tensor, mix: Optional[Tensor], q2: Optional[Tensor], k2: Optional[Tensor],
                initial_state: Optional[Tensor], initial_z: Optional[Tensor], rope_cos: Optional[Tensor],
                rope_sin: Optional[Tensor], cu_seqlens: Optional[Tensor], block_offsets: Optional[Tensor],
                permutation: Optional[Tensor], past: int, output_final_state: bool, *options: Any):
        q, k, v, q2, k2 = _rows(q), _rows(k), _rows(v), _rows(q2), _rows(k2)
        f32 = torch.float32
        mix, state, z = _flat(mix, f32, "mix"), _flat(initial_state, f32, "initial_state"), _flat(initial_z, f32, "initial_z")
        cos, sin, cu = _flat(rope_cos, f32, "rope"), _flat(rope_sin, f32, "rope"), _flat(cu_seqlens, torch.int64, "cu_seqlens")
        p = _prepare(name, q, k, v, mix, q2, k2, state, z, cos, sin, cu, past, _options(block_offsets, permutation, options))
        o = torch.empty(p.o, dtype=q.dtype)
        final = torch.empty(p.final_state if output_final_state else 0)
        final_z = torch.empty(p.final_z if output_final_state and p.final_z else 0)
        p.plan.forward(p.o[0], p.o[1], k.shape[1], *_place(q), *_place(k), *_place(v), *_place(o), _address(mix),
                       *_place(q2), *_place(k2), _address(cos), _address(sin), p.rope_rows, _address(cu), p.sequences,
                       past, _address(state), _address(z), final.data_ptr(), final_z.data_ptr())
        return o, final, final_z

    return forward


def _make_fake(name: str):
    def fake(q, k, v, mix, q2, k2, initial_state, initial_z, rope_cos, rope_sin, cu_seqlens, block_offsets, permutation,
             past, output_final_state, *options):
        rope, feature, feature_eps, denominator, den_eps, scale, grid, blocks, order, chunk, beyond, max_tokens, causal, _ = options
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
            raise Error("q, k and v are [B,T,H,K]: expected 4 axes")
        B, T, H, K = q.shape
        G, V = k.shape[2], v.shape[3]
        o = q.new_empty((B, T, H, V))
        none = q.new_empty((0,), dtype=torch.float32)
        kind = _kind(name, causal)
        if not output_final_state or kind not in ("causal", "linear_causal"):
            return o, none, torch.empty_like(none)
        N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        lead = (N,)
        if kind == "causal":
            M = mix.shape[-1]
            C = (max_tokens + M - 1) // M if beyond == "chunk" else chunk or 64
            n = (past + T + C - 1) // C
            lead = (N, torch.sym_min(n, M) if beyond == "clamp" else n)
        final = q.new_empty((*lead, G, K, V), dtype=torch.float32)
        z = torch.empty_like(none) if denominator == "none" else q.new_empty((*lead, G, K), dtype=torch.float32)
        return o, final, z

    return fake


def _make_backward(name: str):
    def backward(do: Tensor, dfinal: Optional[Tensor], dfinal_z: Optional[Tensor], wanted: List[bool], q: Tensor, k: Tensor,
                 v: Tensor, mix: Optional[Tensor], q2: Optional[Tensor], k2: Optional[Tensor],
                 initial_state: Optional[Tensor], initial_z: Optional[Tensor], rope_cos: Optional[Tensor],
                 rope_sin: Optional[Tensor], cu_seqlens: Optional[Tensor], block_offsets: Optional[Tensor],
                 permutation: Optional[Tensor], past: int, output_final_state: bool, *options: Any):
        do, q, k, v, q2, k2 = _rows(do), _rows(q), _rows(k), _rows(v), _rows(q2), _rows(k2)
        f32 = torch.float32
        mix, state, z = _flat(mix, f32, "mix"), _flat(initial_state, f32, "initial_state"), _flat(initial_z, f32, "initial_z")
        cos, sin, cu = _flat(rope_cos, f32, "rope"), _flat(rope_sin, f32, "rope"), _flat(cu_seqlens, torch.int64, "cu_seqlens")
        dfinal, dfinal_z = _flat(dfinal, f32, "the gradient of final_state"), _flat(dfinal_z, f32, "that of final_z")
        p = _prepare(name, q, k, v, mix, q2, k2, state, z, cos, sin, cu, past, _options(block_offsets, permutation, options))
        if do.shape != p.o or do.dtype != q.dtype:
            raise Error(f"the gradient of o is {do.dtype} {tuple(do.shape)}: expected {q.dtype} {p.o}")
        grads = [torch.empty(x.shape if want and x is not None else 0, dtype=f32)
                 for x, want in zip((q, k, v, mix, q2, k2, state, z), wanted)]
        p.plan.backward(p.o[0], p.o[1], k.shape[1], *_place(q), *_place(k), *_place(v), *_place(do), _address(mix),
                        *_place(q2), *_place(k2), _address(cos), _address(sin), p.rope_rows, _address(cu), p.sequences,
                        past, _address(state), _address(z), 0, 0, *(g.data_ptr() for g in grads),
                        _address(dfinal), _address(dfinal_z))
        return tuple(grads)

    return backward


def _fake_backward(do, dfinal, dfinal_z, wanted, q, k, v, mix, q2, k2, initial_state, initial_z, *rest):
    return tuple(x.new_empty(x.shape if want else (0,), dtype=torch.float32) if x is not None else
                 q.new_empty((0,), dtype=torch.float32)
                 for x, want in zip((q, k, v, mix, q2, k2, initial_state, initial_z), wanted))


def _setup_context(ctx, inputs, output) -> None:
    tensors = 13
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:tensors])
    ctx.rest = inputs[tensors:]
    ctx.shape = output[0].shape


def _make_autograd(name: str):
    op = getattr(torch.ops.mhla, name + "_backward").default

    def backward(ctx, do, dfinal, dfinal_z):
        saved = ctx.saved_tensors
        q = saved[0]
        wanted = list(ctx.needs_input_grad[:8])
        do = q.new_zeros(ctx.shape) if do is None else do
        empty = [d is None or d.numel() == 0 for d in (dfinal, dfinal_z)]
        grads = op(do, None if empty[0] else dfinal, None if empty[1] else dfinal_z, wanted, *saved, *ctx.rest)
        typed = [g.to(x.dtype) if want and x is not None else None for g, x, want in zip(grads, saved, wanted)]
        return (*typed, *(None,) * (len(saved) - 8 + len(ctx.rest)))

    return backward


def _refuse_second(ctx, *grads):
    raise RuntimeError("mhla has no second derivatives: call backward without create_graph")


def _refuse_device(*args, **kwargs):
    tensors = [x for x in args if isinstance(x, Tensor) and x.device.type != "cpu"]
    where = f": got one on {tensors[0].device}" if tensors else ""
    raise RuntimeError(f"mhla works on CPU tensors{where}; move them with .cpu()")


for _name in _KINDS:
    _library.define(f"{_name}({_ARGUMENTS}) -> (Tensor o, Tensor final_state, Tensor final_z)", tags=(torch.Tag.pt2_compliant_tag,))
    _library.define(f"{_name}_backward(Tensor do, Tensor? dfinal_state, Tensor? dfinal_z, bool[] wanted, {_ARGUMENTS}) -> "
                    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
    for _op, _kernel, _abstract in ((_name, _make_forward(_name), _make_fake(_name)),
                                    (_name + "_backward", _make_backward(_name), _fake_backward)):
        _library.impl(_op, _kernel, "CPU")
        for _key in ("CUDA", "XPU", "MPS"):
            _library.impl(_op, _refuse_device, _key)
        torch.library.register_fake(f"mhla::{_op}", _abstract, lib=_library)
    torch.library.register_autograd(f"mhla::{_name}", _make_autograd(_name), setup_context=_setup_context, lib=_library)
    torch.library.register_autograd(f"mhla::{_name}_backward", _refuse_second, lib=_library)

OPS = {name: getattr(torch.ops.mhla, name).default for name in _KINDS}
