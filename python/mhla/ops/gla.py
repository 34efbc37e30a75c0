"""Gated linear attention: S_t = diag(e^g_t) S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ._common import keywords, recur, refuse

__all__ = ["chunk_gla", "fused_recurrent_gla"]


def chunk_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
              output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
              cu_seqlens_cpu: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
    """Gated linear attention with a log-decay for each key channel.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,H,V].
        g: log-decays [B,T,H,K], 0 or less; -inf forgets everything before its token.
        scale: default K^-1/2.
        initial_state: [N,H,K,V], N sequences (B of them without cu_seqlens).
        output_final_state: also return the state after the last token.
        state_v_first: states are [N,H,V,K].
        cu_seqlens: [N+1]: B is 1 and holds N packed sequences, none of which sees another.
        cu_seqlens_cpu: not read; fla's copy of cu_seqlens.

    Returns:
        (o [B,T,H,V], final state, or None).

    >>> import torch
    >>> from mhla.ops import chunk_gla
    >>> q, k, v, g = torch.randn(4, 1, 100, 2, 8)
    >>> o, state = chunk_gla(q, k, v, torch.nn.functional.logsigmoid(g), output_final_state=True)
    >>> o.shape, state.shape
    (torch.Size([1, 100, 2, 8]), torch.Size([1, 2, 8, 8]))
    """
    return recur("gla", q, k, v, g, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                 cu_seqlens=cu_seqlens, state_v_first=state_v_first)


def fused_recurrent_gla(q: Tensor, k: Tensor, v: Tensor, gk: Optional[Tensor] = None, gv: Optional[Tensor] = None,
                        scale: Optional[float] = None, initial_state: Optional[Tensor] = None, output_final_state: bool = False,
                        reverse: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
                        **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """:func:`chunk_gla` under the name that decoders call.

    Args:
        gk: log-decays [B,T,H,K]; None is no decay.
        reverse: each sequence is read from its last token to its first.

    >>> import torch
    >>> from mhla.ops import fused_recurrent_gla
    >>> x, state = torch.randn(1, 1, 2, 8), torch.zeros(1, 2, 8, 8)
    >>> o, state = fused_recurrent_gla(x, x, x, -x.abs(), initial_state=state, output_final_state=True)
    """
    refuse(gv, "gv", "decays of value channels are not supported")
    state_v_first = keywords("fused_recurrent_gla", kwargs, state_v_first)
    if gk is None:
        gk = torch.zeros(q.shape[3], device=q.device).expand(q.shape)
    return recur("gla", q, k, v, gk, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                 cu_seqlens=cu_seqlens, state_v_first=state_v_first, reverse=reverse)
