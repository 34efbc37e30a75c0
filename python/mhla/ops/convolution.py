"""The short convolution under the names of fla (token-major) and of causal_conv1d (channels first)."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _dispatch, _scan  # noqa: F401  registers the ops
from ..functional import _long
from ._common import Error, floats, keywords, refuse, sequences_of

__all__ = ["causal_conv1d", "causal_conv1d_fn", "causal_conv1d_update"]


def _silu(activation: Optional[str]) -> bool:
    if activation not in (None, "silu", "swish"):
        raise Error(f"activation is {activation!r}: expected None, 'silu' or 'swish'")
    return activation is not None


def causal_conv1d(x: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, residual: Optional[Tensor] = None,
                  initial_state: Optional[Tensor] = None, output_final_state: Optional[bool] = False, activation: Optional[str] = None,
                  backend: Optional[str] = "triton", cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
                  chunk_indices: Optional[Tensor] = None, cp_context: Any = None, **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """Causal depthwise convolution of few taps: y_t = activation(bias + sum_j weight[:,j] x_{t-W+1+j}) + residual_t.

    Args:
        x: [B,T,D]; weight: [D,W], W at most 64; bias: [D]; residual: like x.
        initial_state: the last W inputs of each sequence, oldest first, [N,D,W]; the first of them is not read.
        output_final_state: also return them as they are after the last token.
        activation: None, ``"silu"`` or ``"swish"``, which are the same.
        cu_seqlens: [N+1]: B is 1 and holds N packed sequences, none of which sees another.
        backend, cu_seqlens_cpu, chunk_indices: not read; they choose among fla's kernels.
        cp_context: refused.

    Returns:
        (y like x, final state, or None).

    >>> import torch
    >>> from mhla.ops import causal_conv1d
    >>> y, state = causal_conv1d(torch.randn(2, 9, 6), torch.randn(6, 4), activation="silu", output_final_state=True)
    >>> y.shape, state.shape
    (torch.Size([2, 9, 6]), torch.Size([2, 6, 4]))
    """
    refuse(cp_context, "cp_context", "sequences are not divided between processes here")
    keywords("causal_conv1d", kwargs)
    if weight is None:
        raise Error("weight is None: expected [D,W]")
    dtype = x.dtype
    y, final = _dispatch.call("short_conv", (*floats(x, weight, bias, initial_state), _long(cu_seqlens, x.device), _silu(activation),
                                             bool(output_final_state)))
    y = y.to(dtype) if residual is None else (y + residual).to(dtype)
    return y, final.to(dtype) if output_final_state else None


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, seq_idx: Optional[Tensor] = None,
                     initial_states: Optional[Tensor] = None, return_final_states: bool = False,
                     final_states_out: Optional[Tensor] = None, activation: Optional[str] = None) -> Any:
    """:func:`causal_conv1d` with channels before tokens, as the package causal_conv1d has it.

    Args:
        x: [B,D,T]; weight: [D,W]; bias: [D].
        seq_idx: [B,T], the sequence that a token belongs to: none sees another. Not with states.
        initial_states: the last W-1 inputs, [B,D,W-1].
        return_final_states: also return them as they are after the last token; final_states_out, if given, is where they go.

    Returns:
        y like x, or (y, final states).

    >>> import torch
    >>> from mhla.ops import causal_conv1d_fn
    >>> causal_conv1d_fn(torch.randn(2, 6, 9), torch.randn(6, 4)).shape
    torch.Size([2, 6, 9])
    """
    if x.dim() != 3 or weight.dim() != 2:
        raise Error(f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}: expected [B,D,T] and [D,W]")
    if seq_idx is not None and (initial_states is not None or return_final_states):
        raise Error("seq_idx is given: it comes without initial_states and return_final_states")
    B, D, T = x.shape
    rows, cu = x.transpose(1, 2), None
    if seq_idx is not None:
        rows, cu = rows.reshape(1, B * T, D), sequences_of(seq_idx, B, T)
    state = None if initial_states is None else F.pad(initial_states, (1, 0))
    y, final = causal_conv1d(rows, weight, bias, None, state, return_final_states, activation, cu_seqlens=cu)
    y = y.reshape(B, T, D).transpose(1, 2)
    if not return_final_states:
        return y
    final = final[..., 1:]  # type: ignore[index]
    return y, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None,
                         cache_seqlens: Optional[Tensor] = None, conv_state_indices: Optional[Tensor] = None) -> Tensor:
    """The next tokens of a stream, as the package causal_conv1d has it; conv_state is updated in place, without a gradient.

    Args:
        x: [B,D] or [B,D,T]; conv_state: the last inputs, [B,D,W-1 or more]; weight: [D,W]; bias: [D].
        cache_seqlens, conv_state_indices: refused.

    >>> import torch
    >>> from mhla.ops import causal_conv1d_update
    >>> state = torch.zeros(2, 6, 3)
    >>> causal_conv1d_update(torch.ones(2, 6), state, torch.randn(6, 4)).shape, state[0, 0].tolist()
    (torch.Size([2, 6]), [0.0, 0.0, 1.0])
    """
    refuse(cache_seqlens, "cache_seqlens", "circular buffers are not supported")
    refuse(conv_state_indices, "conv_state_indices", "select the rows of conv_state before the call")
    W, kept = weight.shape[-1], conv_state.shape[-1]
    if kept < W - 1:
        raise Error(f"conv_state has shape {tuple(conv_state.shape)}: expected {W - 1} inputs or more")
    new = x[..., None] if x.dim() == 2 else x
    y = causal_conv1d_fn(new, weight, bias, None, conv_state[..., kept - W + 1 :], activation=activation)
    with torch.no_grad():
        conv_state.copy_(torch.cat([conv_state, new], -1)[..., -kept:] if kept else conv_state)
    return y[..., 0] if x.dim() == 2 else y
