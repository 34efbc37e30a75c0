"""The scans of Mamba2 and Mamba under the names of mamba_ssm."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .._carry import ends_of
from ._common import Error, floats, recur, refuse

__all__ = ["mamba_chunk_scan_combined"]


def _starts(seq_idx: Tensor) -> Tensor:
    """Where a sequence ends in the batch laid out as one row: each row of seq_idx [B,T] begins one, and so does each change in it."""
    begins = torch.ones_like(seq_idx, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    first = begins.flatten().nonzero().flatten()
    return torch.cat([first, first.new_tensor([seq_idx.numel()])])


def mamba_chunk_scan_combined(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Optional[Tensor] = None,
                              z: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, initial_states: Optional[Tensor] = None,
                              seq_idx: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None, dt_softplus: bool = False,
                              dt_limit: Tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False,
                              return_varlen_states: bool = False) -> Any:
    """Mamba2's scan: S_t = e^(dt_t A) S_{t-1} + dt_t x_t B_t^T, y_t = S_t C_t + D x_t, times silu(z_t).

    Args:
        x: [batch, T, heads, P]; dt: [batch, T, heads]; A: [heads], 0 or less.
        B, C: [batch, T, groups, N]; head h reads group h // (heads / groups).
        chunk_size: not read; results do not depend on it.
        D: [heads] or [heads, P]. z: like x. dt_bias: [heads].
        initial_states: [batch, heads, P, N]; with cu_seqlens one for each sequence.
        seq_idx: [batch, T], the sequence that a token belongs to. A state ends where it changes; initial_states go to the first
            sequence of each row.
        cu_seqlens: [sequences + 1]: batch is 1 and holds packed sequences, none of which sees another.
        dt_softplus: dt is softplus(dt + dt_bias); it is then clamped to dt_limit.
        return_final_states: also return the state after the last token, [batch, heads, P, N].
        return_varlen_states: also return those after each sequence of cu_seqlens, [sequences, heads, P, N].

    Returns:
        y like x, or a tuple of it and the states asked for.

    >>> import torch
    >>> from mhla.ops import mamba_chunk_scan_combined
    >>> x, dt, B, C = torch.randn(1, 9, 4, 8), torch.rand(1, 9, 4), torch.randn(1, 9, 2, 16), torch.randn(1, 9, 2, 16)
    >>> y, state = mamba_chunk_scan_combined(x, dt, -torch.rand(4), B, C, 256, return_final_states=True)
    >>> y.shape, state.shape
    (torch.Size([1, 9, 4, 8]), torch.Size([1, 4, 8, 16]))
    """
    if x.dim() != 4 or dt.shape != x.shape[:3]:
        raise Error(f"x has shape {tuple(x.shape)}, dt {tuple(dt.shape)}: expected [batch, T, heads, P] and [batch, T, heads]")
    batch, T, H, P = x.shape
    if seq_idx is not None and (cu_seqlens is not None or tuple(seq_idx.shape) != (batch, T)):
        raise Error(f"seq_idx has shape {tuple(seq_idx.shape)}{' and cu_seqlens is given' if cu_seqlens is not None else ''}: expected "
                    f"{(batch, T)}, or cu_seqlens instead")
    for name, p, shapes in (("A", A, [(H,)]), ("dt_bias", dt_bias, [(H,)]), ("D", D, [(H,), (H, P)]), ("z", z, [(batch, T, H, P)])):
        if p is not None and tuple(p.shape) not in shapes:
            raise Error(f"{name} has shape {tuple(p.shape)}: expected {' or '.join(map(str, shapes))}")
    refuse(return_varlen_states and cu_seqlens is None, "return_varlen_states", "it needs cu_seqlens")
    dtype = x.dtype
    x, dt, A, B, C, D, z, dt_bias, state = floats(x, dt, A, B, C, D, z, dt_bias, initial_states)
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    cu, q, k, v, g = cu_seqlens, C, B, x * dt[..., None], dt * A
    if seq_idx is not None:
        cu = _starts(seq_idx)
        q, k, v, g = (t.flatten(0, 1)[None] for t in (q, k, v, g))
        if state is not None:  # in each row the first sequence, which begins at a multiple of T, goes on from it
            state = state.new_zeros(len(cu) - 1, H, P, B.shape[3]).index_put(((cu[:-1] % T == 0).nonzero().flatten(),), state)
    y, final = recur("simple_gla", q, k, v, g, scale=1.0, initial_state=state, output_final_state=return_final_states or
                     return_varlen_states, cu_seqlens=cu, state_v_first=True)
    y = y.reshape(x.shape)
    if D is not None:
        y = y + x * (D[:, None] if D.dim() == 1 else D)
    y = (y if z is None else y * F.silu(z)).to(dtype)
    results = [y]
    if return_final_states:  # of the last sequence of each row
        results.append(final if cu is None else final[-1:] if seq_idx is None else final[(cu[1:] % T == 0).nonzero().flatten()])
    if return_varlen_states:
        results.append(final)
    return tuple(results) if len(results) > 1 else y
