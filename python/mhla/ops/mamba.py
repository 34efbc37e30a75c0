"""The scans of Mamba2 and Mamba under the names of mamba_ssm."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _dispatch, _scan  # noqa: F401  registers the ops
from ..functional import _long
from ._common import Error, floats, recur, refuse, sequences_of

__all__ = ["mamba_chunk_scan_combined", "selective_scan", "selective_scan_fn", "selective_state_update"]


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
    if seq_idx is not None and cu_seqlens is not None:
        raise Error("seq_idx and cu_seqlens are given: each of them says where sequences end, pass one")
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
        cu = sequences_of(seq_idx, batch, T)
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


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None, z: Optional[Tensor] = None,
                   delta_bias: Optional[Tensor] = None, delta_softplus: bool = False, initial_state: Optional[Tensor] = None,
                   output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
    """Mamba's scan, token-major, so that nothing is transposed: h_t = e^(d_t A) h_{t-1} + d_t u_t B_t^T, y_t = h_t C_t + D u_t, times
    silu(z_t).

    Args:
        u, delta, z: [B,T,I]; d is delta + delta_bias, and softplus of it with delta_softplus.
        A: [I,N]; B, C: [B,T,G,N], channel i reads group i // (I/G); D, delta_bias: [I].
        initial_state: [sequences,I,N]; cu_seqlens: as in :func:`chunk_gla`.

    Returns:
        (y like u, final state, or None).

    >>> import torch
    >>> from mhla.ops import selective_scan
    >>> u, delta, B, C = torch.randn(2, 9, 6), torch.rand(2, 9, 6), torch.randn(2, 9, 1, 4), torch.randn(2, 9, 1, 4)
    >>> selective_scan(u, delta, -torch.rand(6, 4), B, C)[0].shape
    torch.Size([2, 9, 6])
    """
    y, final = _dispatch.call("selective_scan", (*floats(u, delta, A, B, C, D, z, delta_bias, initial_state),
                                                 _long(cu_seqlens, u.device), bool(delta_softplus), bool(output_final_state)))
    return y.to(u.dtype), final if output_final_state else None


def _grouped(name: str, x: Tensor, u: Tensor) -> Tensor:
    """[D,N], [batch,N,T] or [batch,G,N,T] as [batch,T,groups,N]."""
    if x.dim() == 2:  # the same for all tokens, another one for each channel
        return x.expand(u.shape[0], u.shape[2], *x.shape)
    if x.dim() not in (3, 4):
        raise Error(f"{name} has shape {tuple(x.shape)}: expected [D,N], [batch,N,T] or [batch,G,N,T]")
    return x.transpose(1, 2)[:, :, None] if x.dim() == 3 else x.permute(0, 3, 1, 2)


def selective_scan_fn(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None, z: Optional[Tensor] = None,
                      delta_bias: Optional[Tensor] = None, delta_softplus: bool = False, return_last_state: bool = False,
                      cu_seqlens: Optional[Tensor] = None) -> Any:
    """:func:`selective_scan` with channels before tokens, as mamba_ssm has it.

    Args:
        u, delta, z: [batch,D,T]; A: [D,N], real; B, C: [D,N], [batch,N,T] or [batch,G,N,T]; D, delta_bias: [D].
        return_last_state: also return the state after the last token, [batch,D,N], with a gradient.
        cu_seqlens: [sequences + 1]: batch is 1 and holds packed sequences, none of which sees another.

    >>> import torch
    >>> from mhla.ops import selective_scan_fn
    >>> u, delta, B, C = torch.randn(2, 6, 9), torch.rand(2, 6, 9), torch.randn(2, 4, 9), torch.randn(2, 4, 9)
    >>> y, state = selective_scan_fn(u, delta, -torch.rand(6, 4), B, C, return_last_state=True)
    >>> y.shape, state.shape
    (torch.Size([2, 6, 9]), torch.Size([2, 6, 4]))
    """
    if u.dim() != 3:
        raise Error(f"u has shape {tuple(u.shape)}: expected [batch,D,T]")
    if any(x.is_complex() for x in (A, B, C)):
        raise Error("A, B or C is complex: only the real scan is supported")
    B, C = _grouped("B", B, u), _grouped("C", C, u)
    if B.shape[2] != C.shape[2] and u.shape[1] % B.shape[2] == 0 and u.shape[1] % C.shape[2] == 0:
        B, C = (x.repeat_interleave(u.shape[1] // x.shape[2], 2) for x in (B, C))
    y, final = selective_scan(u.transpose(1, 2), delta.transpose(1, 2), A, B, C, D, None if z is None else z.transpose(1, 2), delta_bias,
                              delta_softplus, None, return_last_state, cu_seqlens)
    y = y.transpose(1, 2)
    return (y, final[-u.shape[0]:]) if return_last_state else y


def selective_state_update(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None,
                           z: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, dt_softplus: bool = False,
                           state_batch_indices: Optional[Tensor] = None) -> Tensor:
    """The next token of Mamba or Mamba2, as mamba_ssm has it; state is updated in place, without a gradient.

    Args:
        state: [batch,D,N], or [batch,heads,P,N] of Mamba2. x, dt, z: as the state without N. A: the same without batch.
        B, C: [batch,N], or [batch,groups,N]. D, dt_bias: [D], or [heads,P].
        state_batch_indices: refused.

    >>> import torch
    >>> from mhla.ops import selective_state_update
    >>> state = torch.zeros(2, 6, 4)
    >>> x = torch.ones(2, 6)
    >>> selective_state_update(state, x, x, -torch.ones(6, 4), torch.ones(2, 4), torch.ones(2, 4))[0, 0].item()
    4.0
    """
    refuse(state_batch_indices, "state_batch_indices", "select the rows of state before the call")
    heads = state.dim() == 4
    h, A, B, C, u, dt, D, z, dt_bias = floats(state, A, B, C, x, dt, D, z, dt_bias)
    if heads:  # [batch,groups,N] -> [batch,heads,1,N]
        if state.shape[1] % B.shape[1]:
            raise Error(f"B and C have {B.shape[1]} groups: expected a divisor of {state.shape[1]} heads")
        B, C = (t.repeat_interleave(state.shape[1] // t.shape[1], 1)[:, :, None] for t in (B, C))
    else:
        B, C = B[:, None], C[:, None]
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt)[..., None]
    h = (dt * A).exp() * h + dt * u[..., None] * B
    y = (h * C).sum(-1)
    y = y if D is None else y + D * u
    with torch.no_grad():
        state.copy_(h)
    return (y if z is None else y * F.silu(z)).to(x.dtype)
