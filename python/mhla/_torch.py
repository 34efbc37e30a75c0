"""The operators as torch.library ops: mhla::attention, causal_attention, linear_attention, softmax_attention and those of
vision models, focused_attention, inline_attention, mala_attention, rala_attention.

All have one list of arguments, one CPU kernel, one fake kernel and one backward; a name stands for its kind of plan.
The low-level API (Library.define and impl) is used, and an autograd kernel of our own: a call through custom_op or
register_autograd costs several times as much as all of this.

What the kernels cannot do, plain PyTorch does (_plain.py): tensors on other devices, forward-mode derivatives, the
transformations of torch.func, second derivatives, batches of nothing.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _plain
from ._numpy import whole
from ._plans import Error, Options, Prepared, Shapes, prepare
from .mixing import rope_table

# Three lists instead of a dozen options, because every argument costs 0.2 us, twice. meaning: "rope feature denominator
# order beyond", numbers: feature_eps, den_eps, scale, focus_power, sizes: chunk, max_tokens, causal, window, *grid, *blocks. No
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
_NONE = (0, 0, 0, 0)
_below_autograd = torch._C._AutoDispatchBelowAutograd
_library = torch.library.Library("mhla", "DEF")


def _kind(name: str, causal: bool) -> str:
    return "linear_causal" if name == "linear_attention" and causal else _KINDS[name]


# ---- Tensors as addresses --------------------------------------------------------------------------------------------

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


def _flat(x: Optional[Tensor]) -> Optional[Tensor]:
    return x if x is None else x.contiguous()


def _address(x: Optional[Tensor]) -> int:
    return 0 if x is None else x.data_ptr()


# ---- Plans -----------------------------------------------------------------------------------------------------------

_seen: Dict[tuple, Prepared] = {}


def _bytes(x: Optional[Tensor], dtype: Any, name: str) -> Optional[bytes]:
    """Inside a transformation of torch.func by a list, because any operation of torch would hide the numbers."""
    if x is None:
        return None
    return whole(np.array(x.tolist(), np.int64) if _transformed() else x.cpu().numpy(), dtype, name).tobytes()


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
    rope, feature, denominator, order, beyond = meaning.split()
    feature_eps, den_eps, scale, power = numbers
    chunk, max_tokens, causal, window, *cuts = sizes
    axes = len(cuts) // 2
    return Options(rope, feature, feature_eps, denominator, den_eps, scale, tuple(cuts[:axes]), tuple(cuts[axes:]), order, chunk,
                   beyond, max_tokens, bool(causal), window, _bytes(offsets, np.int64, "block_offsets"),
                   _bytes(permutation, np.int32, "permutation"), int(power))


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
        _, _, denominator, _, beyond = meaning.split()
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


def _fake_backward(do, dfinal, dfinal_z, wanted, q, *rest):
    return [q.new_empty(x.shape, dtype=torch.float32) for x, want in zip((q, *rest), wanted) if want]


# ---- Below autograd --------------------------------------------------------------------------------------------------

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_modes, _profiling = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
_keys = torch._C._dispatch_keys
_transformed = torch._C._are_functorch_transforms_active
wrapped, _tracing = torch._C._functorch.is_functorch_wrapped_tensor, torch._C._is_tracing
with torch.inference_mode():
    _inference = torch.empty(1)
# The dispatch keys of ordinary tensors of the CPU. Whatever else a tensor is (on another device, sparse, a negated view,
# batched by vmap, ...), it has others.
_ORDINARY = frozenset(_keys(x).raw_repr() for x in (torch.empty(1), _inference))


def _below(name: str, ops: dict, kernels: dict, args: tuple):
    """ops[name](*args) below autograd. Where nobody could see the difference, no mode that looks at ops, no profiler, all
    ordinary tensors, its kernel is called by name, which saves the dispatcher's 6 us."""
    if _modes() == 0 and not _profiling():
        for x in args:
            if isinstance(x, Tensor) and (type(x) not in _PLAIN or _keys(x).raw_repr() not in _ORDINARY):
                break
        else:
            return kernels[name](*args)
    _check_storage(args)
    with _below_autograd():
        return ops[name](*args)  # the dispatcher resolves negated views


def _check_storage(args: tuple) -> None:
    """Refuses what has no kernel, in a sentence. args: those of an op, or of its backward."""
    tensors = args[len(args) - _TENSORS - 5 :][:_TENSORS]
    q = tensors[0]
    for name, x in zip(_NAMES, tensors):
        if x is None:
            continue
        if x.is_nested:
            raise Error(f"{name} is a nested tensor: pack the sequences and pass cu_seqlens")
        if x.layout is not torch.strided or x.is_quantized:
            what = "quantised" if x.is_quantized else str(x.layout).replace("torch.", "")
            raise Error(f"{name} is a {what} tensor: expected a dense one")
        if x.device != q.device:
            raise Error(f"{name} is on {x.device}, q on {q.device}: expected one device")


def _unwrapped(name: str, x: Optional[Tensor]) -> Optional[Tensor]:
    """Integers that torch.func has wrapped; they are read, so they cannot be many."""
    while x is not None and wrapped(x):
        if torch._C._functorch.is_batchedtensor(x):
            raise Error(f"{name} is batched by vmap: expected the same for all")
        x = torch._C._functorch.get_unwrapped(x)
    return x


# ---- Plain PyTorch ---------------------------------------------------------------------------------------------------

def _plainly(name: str, args: tuple):
    """The op's result by plain PyTorch, which records what it does for any kind of derivative."""
    tensors, (past, output_final_state, meaning, numbers, sizes) = args[:_TENSORS], args[_TENSORS:]
    if _transformed():
        tensors = (*tensors[:10], *map(_unwrapped, _NAMES[10:], tensors[10:]))
    q = tensors[0]
    compiling = torch.compiler.is_compiling()
    _check_storage((*tensors[:10], None, None, None, *args[_TENSORS:]))  # integers may be anywhere
    if not q.is_cpu and not compiling:
        _plain.note(q.device)
    if not compiling:
        _prepare(name, tensors, past, meaning, numbers, sizes)
    options = _options(meaning, numbers, sizes, *tensors[11:])
    fused = not (_transformed() or forward_ad._current_level >= 0 or q.is_cpu)
    return _plain.run(_kind(name, options.causal), options, fused, *tensors[:11], past, output_final_state)


def _plainly_backward(name: str, do, dfinal, dfinal_z, wanted: List[bool], *args) -> List[Tensor]:
    """The backward op's result, recorded: autograd's gradients of plain PyTorch."""
    again = _grad_enabled()
    with torch.enable_grad():
        # views, so that one tensor given twice is two
        given = [x.view_as(x) if isinstance(x, Tensor) and i < _GRADS else x for i, x in enumerate(args)]
        for x, want in zip(given, wanted):
            if want and not x.requires_grad:
                x.requires_grad_()
        result = _plainly(name, tuple(given))
        result = result if isinstance(result, tuple) else (result,)
        outputs = [(y, dy) for y, dy in zip(result, (do, dfinal, dfinal_z)) if dy is not None and y.requires_grad]
        inputs = [x for x, want in zip(given, wanted) if want]
        grads = torch.autograd.grad([y for y, _ in outputs], inputs, [dy for _, dy in outputs], create_graph=again,
                                    allow_unused=True)
    return [torch.zeros_like(x) if dx is None else dx for x, dx in zip(inputs, grads)]


# ---- Autograd --------------------------------------------------------------------------------------------------------

class _Function(torch.autograd.Function):
    """An op, recorded: nothing is kept but its inputs. It gets only the tensors that are there, because torch looks at
    every argument more than once; `present` says which of the op's tensors they are."""

    @staticmethod
    def forward(ctx: Any, name: str, present: List[int], rest: tuple, *tensors: Tensor):
        args: List[Optional[Tensor]] = [None] * _TENSORS
        for i, x in zip(present, tensors):
            args[i] = x
        result = _below(name, OPS, KERNELS, (*args, *rest))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.name, ctx.present, ctx.rest = name, present, rest
        ctx.shape = result[0].shape if name in _STATES else result.shape
        return result

    @staticmethod
    def backward(ctx: Any, do: Optional[Tensor], dfinal: Optional[Tensor] = None, dfinal_z: Optional[Tensor] = None):
        args: List[Optional[Tensor]] = [None] * _TENSORS
        wanted = [False] * _GRADS
        for i, x, want in zip(ctx.present, ctx.saved_tensors, ctx.needs_input_grad[3:]):
            args[i] = x
            if i < _GRADS:
                wanted[i] = want
        if do is None:
            do = args[0].new_zeros(ctx.shape)  # type: ignore[union-attr]
        if dfinal is not None and dfinal.numel() == 0:
            dfinal = None
        if dfinal_z is not None and dfinal_z.numel() == 0:
            dfinal_z = None
        grads = iter(AUTOGRAD_BACKWARD[ctx.name](do, dfinal, dfinal_z, wanted, *args, *ctx.rest))
        typed = (next(grads).to(args[i].dtype) if i < _GRADS and wanted[i] else None for i in ctx.present)
        return (None, None, None, *typed)


_grad_enabled, _any_requires_grad = torch.is_grad_enabled, torch._C._any_requires_grad


def _recorded(args: tuple) -> bool:
    return _grad_enabled() and _any_requires_grad(*args)


def _batched(tensors: tuple) -> bool:
    """By the older vmap, that of torch.autograd.grad(is_grads_batched=True)."""
    return any(x is not None and _keys(x).raw_repr() not in _ORDINARY and "Batched" in str(_keys(x))
               for x in tensors)


def _make_autograd(name: str):
    def autograd(*args):
        q = args[0]
        if forward_ad._current_level >= 0 or _transformed() or not (q.is_cpu or q.is_meta):
            return _plainly(name, args)
        if _recorded(args[:_GRADS]):
            present = [i for i, x in enumerate(args[:_TENSORS]) if x is not None]
            return _Function.apply(name, present, args[_TENSORS:], *[x for x in args[:_TENSORS] if x is not None])
        return _below(name, OPS, KERNELS, args)

    return autograd


def _make_autograd_backward(name: str):
    def autograd(*args):
        if _recorded((*args[:3], *args[4 : 4 + _GRADS])) or _transformed() or _batched(args[:3]):
            return _plainly_backward(name, *args)
        return _below(name, BACKWARD, KERNELS_BACKWARD, args)

    return autograd


def widest(*tensors: Optional[Tensor]) -> tuple:
    """Under autocast: tensors of different dtypes, or of one that has no kernel, as float32."""
    dtypes = {x.dtype for x in tensors if x is not None}
    if len(dtypes) == 1 and dtypes <= _CODES.keys():
        return tensors
    return tuple(x.float() if x is not None and x.dtype.is_floating_point else x for x in tensors)


def call(name: str, args: tuple):
    """OPS[name](*args), in eager mode without a detour through the dispatcher's autograd layer."""
    q = args[0]
    if (torch.compiler.is_compiling() or _tracing()) and (q.is_cpu or q.is_meta):
        return OPS[name](*args)
    return AUTOGRAD[name](*args)


# ---- Registration ----------------------------------------------------------------------------------------------------

def _make_plain(name: str):
    return lambda *args: _plainly(name, args)


def _make_plain_backward(name: str):
    return lambda *args: _plainly_backward(name, *args)


def _register() -> None:
    tags = (torch.Tag.pt2_compliant_tag,)
    for name in _KINDS:
        results = "(Tensor o, Tensor final_state, Tensor final_z)" if name in _STATES else "Tensor"
        _library.define(f"{name}({_ARGUMENTS}) -> {results}", tags=tags)
        _library.define(f"{name}_backward(Tensor do, Tensor? dfinal_state, Tensor? dfinal_z, bool[] wanted, {_ARGUMENTS}) -> "
                        "Tensor[]", tags=tags)
        for op, kernel, elsewhere, fake, autograd in (
                (name, KERNELS[name], _make_plain(name), _make_fake(name), AUTOGRAD[name]),
                (name + "_backward", KERNELS_BACKWARD[name], _make_plain_backward(name), _fake_backward, AUTOGRAD_BACKWARD[name])):
            _library.impl(op, kernel, "CPU")
            _library.impl(op, autograd, "Autograd")
            for key in ("CUDA", "XPU", "MPS", "PrivateUse1"):
                _library.impl(op, elsewhere, key)
            torch.library.register_fake(f"mhla::{op}", fake, lib=_library)


KERNELS = {name: _make_forward(name) for name in _KINDS}
KERNELS_BACKWARD = {name: _make_backward(name) for name in _KINDS}
AUTOGRAD = {name: _make_autograd(name) for name in _KINDS}
AUTOGRAD_BACKWARD = {name: _make_autograd_backward(name) for name in _KINDS}
_register()
OPS = {name: getattr(torch.ops.mhla, name).default for name in _KINDS}
BACKWARD = {name: getattr(torch.ops.mhla, name + "_backward").default for name in _KINDS}


# ---- Rotary tables inside a graph --------------------------------------------------------------------------------------

_library.define("rope_table(SymInt rows, int dim, float base, Device device) -> (Tensor cos, Tensor sin)",
                tags=(torch.Tag.pt2_compliant_tag,))


def _rope_kernel(rows: int, dim: int, base: float, device: torch.device):
    return tuple(torch.from_numpy(x).to(device) for x in rope_table(rows, dim, base))


def _rope_fake(rows: int, dim: int, base: float, device: torch.device):
    return torch.empty(rows, dim // 2, device=device), torch.empty(rows, dim // 2, device=device)


_library.impl("rope_table", _rope_kernel, "BackendSelect")
torch.library.register_fake("mhla::rope_table", _rope_fake, lib=_library)
rope_rows = torch.ops.mhla.rope_table.default
