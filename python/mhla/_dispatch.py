"""What all ops of torch.library have in common here: their way through autograd, torch.func, modes and devices.

An op is a name, a signature and four functions: its CPU kernel, the kernel of its backward, its fake kernel, and the same result by
plain PyTorch. The low-level API (Library.define and impl) is used, and an autograd kernel of our own: a call through custom_op or
register_autograd costs several times as much as all of this.

What the kernels cannot do, plain PyTorch does: tensors on other devices, forward-mode derivatives, the transformations of
torch.func, second derivatives.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._plans import Error

library = torch.library.Library("mhla", "DEF")


class Signature(NamedTuple):
    """The arguments of an op: its tensors, then the rest. Its results: one, or one and the state behind it."""

    names: Tuple[str, ...]  # of the tensors
    grads: int  # the first of them, which may have a gradient
    rest: int  # arguments after the tensors
    finals: int  # gradients of a state that its backward takes, after that of the first result
    states: bool  # returns a tuple
    plain: Callable[[str, tuple], Any]  # plain(name, args): the result by plain PyTorch


SIGNATURES: Dict[str, Signature] = {}
OPS: Dict[str, Any] = {}
BACKWARD: Dict[str, Any] = {}
KERNELS: Dict[str, Callable] = {}
KERNELS_BACKWARD: Dict[str, Callable] = {}
AUTOGRAD: Dict[str, Callable] = {}
AUTOGRAD_BACKWARD: Dict[str, Callable] = {}


# ---- Tensors as addresses --------------------------------------------------------------------------------------------

def rows(x: Optional[Tensor]) -> Optional[Tensor]:
    """x, or a copy where its strides cannot be passed on (last axis not contiguous; all others 0, which means default)."""
    if x is None or x.dim() != 4:
        return x
    s = x.stride()
    if (s[3] == 1 or x.shape[3] == 1) and (s[0] or s[1] or s[2]):
        return x
    return x.contiguous()


def place(x: Optional[Tensor]) -> tuple:
    if x is None:
        return 0, 0, 0, 0
    s = x.stride()
    return x.data_ptr(), s[0], s[1], s[2]


def flat(x: Optional[Tensor]) -> Optional[Tensor]:
    return x if x is None else x.contiguous()


def address(x: Optional[Tensor]) -> int:
    return 0 if x is None else x.data_ptr()


# ---- Below autograd --------------------------------------------------------------------------------------------------

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_modes, _profiling = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
_keys = torch._C._dispatch_keys
_below_autograd = torch._C._AutoDispatchBelowAutograd
transformed = torch._C._are_functorch_transforms_active
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
    signature = SIGNATURES[name]
    n = len(signature.names)
    check_storage(signature.names, args[len(args) - n - signature.rest :][:n])
    with _below_autograd():
        return ops[name](*args)  # the dispatcher resolves negated views


def expect(name: str, x: Optional[Tensor], shape: tuple, dtype: torch.dtype = torch.float32) -> None:
    """Refuses a tensor of another shape or dtype."""
    if x is not None and x.dtype != dtype:
        raise Error(f"{name} has dtype {x.dtype}: expected {dtype}")
    if x is not None and tuple(x.shape) != tuple(shape):
        raise Error(f"{name} has shape {tuple(x.shape)}: expected {tuple(shape)}")


def check_storage(names: Tuple[str, ...], tensors: tuple) -> None:
    """Refuses what has no kernel, in a sentence."""
    first = tensors[0]
    for name, x in zip(names, tensors):
        if x is None:
            continue
        if x.is_nested:
            raise Error(f"{name} is a nested tensor: pack the sequences and pass cu_seqlens")
        if x.layout is not torch.strided or x.is_quantized:
            what = "quantised" if x.is_quantized else str(x.layout).replace("torch.", "")
            raise Error(f"{name} is a {what} tensor: expected a dense one")
        if x.device != first.device:
            raise Error(f"{name} is on {x.device}, {names[0]} on {first.device}: expected one device")


def unwrapped(name: str, x: Optional[Tensor]) -> Optional[Tensor]:
    """Integers that torch.func has wrapped; they are read, so they cannot be many."""
    while x is not None and wrapped(x):
        if torch._C._functorch.is_batchedtensor(x):
            raise Error(f"{name} is batched by vmap: expected the same for all")
        x = torch._C._functorch.get_unwrapped(x)
    return x


# ---- Autograd --------------------------------------------------------------------------------------------------------

class _Function(torch.autograd.Function):
    """An op, recorded: nothing is kept but its inputs. It gets only the tensors that are there, because torch looks at
    every argument more than once; `present` says which of the op's tensors they are."""

    @staticmethod
    def forward(ctx: Any, name: str, present: List[int], rest: tuple, *tensors: Tensor):
        signature = SIGNATURES[name]
        args: List[Optional[Tensor]] = [None] * len(signature.names)
        for i, x in zip(present, tensors):
            args[i] = x
        result = _below(name, OPS, KERNELS, (*args, *rest))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.name, ctx.present, ctx.rest = name, present, rest
        ctx.shape = result[0].shape if signature.states else result.shape
        return result

    @staticmethod
    def backward(ctx: Any, do: Optional[Tensor], *finals: Optional[Tensor]):
        signature = SIGNATURES[ctx.name]
        args: List[Optional[Tensor]] = [None] * len(signature.names)
        wanted = [False] * signature.grads
        for i, x, want in zip(ctx.present, ctx.saved_tensors, ctx.needs_input_grad[3:]):
            args[i] = x
            if i < signature.grads:
                wanted[i] = want
        if do is None:
            do = args[0].new_zeros(ctx.shape)  # type: ignore[union-attr]
        arrived = [None if x is None or x.numel() == 0 else x for x in finals] or [None] * signature.finals
        grads = iter(AUTOGRAD_BACKWARD[ctx.name](do, *arrived, wanted, *args, *ctx.rest))
        typed = (next(grads).to(args[i].dtype) if i < signature.grads and wanted[i] else None for i in ctx.present)
        return (None, None, None, *typed)


_grad_enabled, _any_requires_grad = torch.is_grad_enabled, torch._C._any_requires_grad


def _recorded(args: tuple) -> bool:
    return _grad_enabled() and _any_requires_grad(*args)


def _batched(tensors: tuple) -> bool:
    """By the older vmap, that of torch.autograd.grad(is_grads_batched=True)."""
    return any(x is not None and _keys(x).raw_repr() not in _ORDINARY and "Batched" in str(_keys(x))
               for x in tensors)


def _make_autograd(name: str, signature: Signature):
    grads, n = signature.grads, len(signature.names)

    def autograd(*args):
        q = args[0]
        if forward_ad._current_level >= 0 or transformed() or not (q.is_cpu or q.is_meta):
            return signature.plain(name, args)
        if _recorded(args[:grads]):
            present = [i for i, x in enumerate(args[:n]) if x is not None]
            return _Function.apply(name, present, args[n:], *[x for x in args[:n] if x is not None])
        return _below(name, OPS, KERNELS, args)

    return autograd


def _make_autograd_backward(name: str, signature: Signature):
    m, grads = 1 + signature.finals, signature.grads  # of the gradients that arrive; after them `wanted`

    def autograd(*args):
        if _recorded((*args[:m], *args[m + 1 : m + 1 + grads])) or transformed() or _batched(args[:m]):
            return _plainly_backward(name, args[:m], args[m], args[m + 1 :])
        return _below(name, BACKWARD, KERNELS_BACKWARD, args)

    return autograd


def _plainly_backward(name: str, arrived: tuple, wanted: List[bool], args: tuple) -> List[Tensor]:
    """The backward op's result, recorded: autograd's gradients of plain PyTorch."""
    again, signature = _grad_enabled(), SIGNATURES[name]
    with torch.enable_grad():
        # views, so that one tensor given twice is two
        given = [x.view_as(x) if isinstance(x, Tensor) and i < signature.grads else x for i, x in enumerate(args)]
        for x, want in zip(given, wanted):
            if want and not x.requires_grad:
                x.requires_grad_()
        result = signature.plain(name, tuple(given))
        result = result if isinstance(result, tuple) else (result,)
        outputs = [(y, dy) for y, dy in zip(result, arrived) if dy is not None and y.requires_grad]
        inputs = [x for x, want in zip(given, wanted) if want]
        grads = torch.autograd.grad([y for y, _ in outputs], inputs, [dy for _, dy in outputs], create_graph=again,
                                    allow_unused=True)
    return [torch.zeros_like(x) if dx is None else dx for x, dx in zip(inputs, grads)]


def call(name: str, args: tuple):
    """OPS[name](*args), in eager mode without a detour through the dispatcher's autograd layer."""
    q = args[0]
    if (torch.compiler.is_compiling() or _tracing()) and (q.is_cpu or q.is_meta):
        return OPS[name](*args)
    return AUTOGRAD[name](*args)


# ---- Registration ----------------------------------------------------------------------------------------------------

def _fake_backward(signature: Signature):
    def fake(*args):
        wanted, tensors = args[1 + signature.finals], args[2 + signature.finals :]
        return [tensors[0].new_empty(x.shape, dtype=torch.float32) for x, want in zip(tensors, wanted) if want]

    return fake


def define(name: str, signature: Signature, arguments: str, results: str, arriving: str, kernel: Callable, backward: Callable,
           fake: Callable) -> None:
    """mhla::name(arguments) -> results and mhla::name_backward, whose gradients that arrive are called `arriving`."""
    SIGNATURES[name], KERNELS[name], KERNELS_BACKWARD[name] = signature, kernel, backward
    AUTOGRAD[name], AUTOGRAD_BACKWARD[name] = _make_autograd(name, signature), _make_autograd_backward(name, signature)
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(f"{name}({arguments}) -> {results}", tags=tags)
    library.define(f"{name}_backward({arriving}, bool[] wanted, {arguments}) -> Tensor[]", tags=tags)

    def elsewhere(*args):
        return signature.plain(name, args)

    def elsewhere_backward(*args):
        m = 1 + signature.finals
        return _plainly_backward(name, args[:m], args[m], args[m + 1 :])

    for op, cpu, other, meta, autograd in ((name, kernel, elsewhere, fake, AUTOGRAD[name]),
                                           (name + "_backward", backward, elsewhere_backward, _fake_backward(signature),
                                            AUTOGRAD_BACKWARD[name])):
        library.impl(op, cpu, "CPU")
        library.impl(op, autograd, "Autograd")
        for key in ("CUDA", "XPU", "MPS", "PrivateUse1"):
            library.impl(op, other, key)
        torch.library.register_fake(f"mhla::{op}", meta, lib=library)
    OPS[name] = getattr(torch.ops.mhla, name).default
    BACKWARD[name] = getattr(torch.ops.mhla, name + "_backward").default
