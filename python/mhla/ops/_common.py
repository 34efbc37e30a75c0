"""What the operators share: options that fla passes by keyword, dtypes, packed sequences, layouts of a state."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from .. import _dispatch, _recurrent  # noqa: F401  registers the ops
from .._plans import Error
from .._torch import widest
from ..functional import _long, precision_of

__all__ = ["Error", "floats", "keywords", "recur", "refuse", "sequences_of"]


def keywords(function: str, kwargs: Dict[str, Any], state_v_first: bool = False) -> bool:
    """Checks fla's further keywords; returns state_v_first. chunk_size changes how fla works, not what it returns."""
    kwargs = dict(kwargs)
    kwargs.pop("chunk_size", None)
    state_v_first = kwargs.pop("transpose_state_layout", state_v_first)
    for name in kwargs:
        if name == "head_first":
            raise Error("head_first is given: tensors are [B,T,H,...], transpose those that are not")
        raise Error(f"{name} is given: {function} has no such option")
    return state_v_first


def refuse(value: Any, name: str, why: str) -> None:
    """An option that would change the result and is not offered."""
    if value is not None and value is not False:
        raise Error(f"{name} is given: {why}")


def floats(*tensors: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    """float32 of each, and of None nothing."""
    return tuple(None if x is None else x.float() for x in tensors)


def sequences_of(seq_idx: Tensor, batch: int, tokens: int) -> Tensor:
    """cu_seqlens of the batch laid out as one row: each row of seq_idx [B,T] begins a sequence, and so does each change in it."""
    if tuple(seq_idx.shape) != (batch, tokens):
        raise Error(f"seq_idx has shape {tuple(seq_idx.shape)}: expected {(batch, tokens)}")
    begins = torch.ones_like(seq_idx, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    first = begins.flatten().nonzero().flatten()
    return torch.cat([first, first.new_tensor([seq_idx.numel()])])


def _reversed(cu: Optional[Tensor], T: int, device: torch.device) -> Tensor:
    """The tokens of each sequence, last first."""
    t = torch.arange(T, device=device)
    if cu is None:
        return t.flip(0)
    s = torch.searchsorted(cu, t, right=True)
    return cu[s - 1] + cu[s] - 1 - t


def recur(op: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor] = None, *, scale: Optional[float],
          initial_state: Optional[Tensor], output_final_state: bool, cu_seqlens: Any, state_v_first: bool = False, reverse: bool = False,
          qk_l2norm: bool = False) -> Tuple[Tensor, Optional[Tensor]]:
    """The op on fla's arguments."""
    if not torch.compiler.is_compiling():
        _dispatch.check_storage(("q", "k", "v", "the log-decay", "beta", "initial_state"), (q, k, v, g, beta, initial_state))
    precision = precision_of(q, None)
    if not q.is_meta and torch.is_autocast_enabled(q.device.type):
        q, k, v = widest(q, k, v)
    dtype = q.dtype
    if dtype is torch.float16 and k.dtype == v.dtype == dtype:
        q, k, v = q.float(), k.float(), v.float()
    if isinstance(scale, Tensor):
        refuse(scale.requires_grad or None, "scale with a gradient", "it would lose it, multiply q by it")
        scale = float(scale)
    if scale == 0:
        raise Error("scale is 0: everything would be; None is the default")
    cu = _long(cu_seqlens, q.device)
    if initial_state is not None:
        initial_state = initial_state.float()
        initial_state = initial_state.transpose(-1, -2) if state_v_first else initial_state
    tensors = (q, k, v, *floats(g, beta))
    order = _reversed(cu, q.shape[1], q.device) if reverse else None
    if order is not None:
        tensors = tuple(None if x is None else x.index_select(1, order) for x in tensors)
    o, final = _dispatch.call(op, (*tensors, initial_state, cu, max(1, q.shape[-1]) ** -0.5 if scale is None else scale, bool(qk_l2norm),
                                   precision, bool(output_final_state)))
    if order is not None:
        o = o.index_select(1, order)  # the way back is the same
    if not output_final_state:
        return o.to(dtype), None
    return o.to(dtype), final.transpose(-1, -2) if state_v_first else final
