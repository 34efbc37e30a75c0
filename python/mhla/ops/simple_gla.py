"""Gated linear attention with one decay for each head: S_t = e^g_t S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ._common import Error, keywords, recur, refuse

__all__ = ["chunk_simple_gla", "fused_chunk_simple_gla", "fused_recurrent_simple_gla", "parallel_simple_gla"]


def _decay(v: Tensor, g: Optional[Tensor], g_gamma: Optional[Tensor]) -> Tensor:
    """Log-decays [B,T,H] of the two ways to give them."""
    if g is None:
        H = v.shape[2]
        gamma = torch.zeros(H, device=v.device) if g_gamma is None else g_gamma
        if gamma.shape != (H,):
            raise Error(f"g_gamma has shape {tuple(gamma.shape)}: expected ({H},)")
        return gamma.expand(v.shape[:3])
    return g if g_gamma is None else g + g_gamma


def chunk_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, g_gamma: Optional[Tensor] = None,
                     scale: Optional[float] = None, initial_state: Optional[Tensor] = None, output_final_state: bool = False,
                     state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
                     **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """Linear attention with one log-decay for each head and token.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,HV,V]; HV is a multiple of H, and head j of v uses head j // (HV/H) of q and k.
        g: log-decays [B,T,HV], 0 or less.
        g_gamma: log-decays [HV], the same for all tokens. With g their sum counts, with neither there is no decay.

    The rest is as in :func:`chunk_gla`.

    >>> import torch
    >>> from mhla.ops import chunk_simple_gla
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> o, state = chunk_simple_gla(q, k, v, -torch.rand(1, 100, 2))
    >>> o.shape, state
    (torch.Size([1, 100, 2, 8]), None)
    """
    return recur("simple_gla", q, k, v, _decay(v, g, g_gamma), scale=scale, initial_state=initial_state,
                 output_final_state=output_final_state, cu_seqlens=cu_seqlens,
                 state_v_first=keywords("chunk_simple_gla", kwargs, state_v_first))


def fused_recurrent_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, g_gamma: Optional[Tensor] = None,
                               scale: Optional[float] = None, initial_state: Optional[Tensor] = None, output_final_state: bool = False,
                               reverse: bool = False, state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None,
                               **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """:func:`chunk_simple_gla` under the name that decoders call; reverse: each sequence is read from its last token to its first.

    >>> import torch
    >>> from mhla.ops import fused_recurrent_simple_gla
    >>> x = torch.randn(1, 1, 2, 8)
    >>> o, state = fused_recurrent_simple_gla(x, x, x, -torch.rand(1, 1, 2), output_final_state=True)
    """
    return recur("simple_gla", q, k, v, _decay(v, g, g_gamma), scale=scale, initial_state=initial_state,
                 output_final_state=output_final_state, cu_seqlens=cu_seqlens,
                 state_v_first=keywords("fused_recurrent_simple_gla", kwargs, state_v_first), reverse=reverse)


def fused_chunk_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, g_gamma: Optional[Tensor] = None,
                           scale: Optional[float] = None, initial_state: Optional[Tensor] = None, output_final_state: bool = False,
                           cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
    """The name of another of fla's kernels for :func:`chunk_simple_gla`.

    >>> import torch
    >>> from mhla.ops import fused_chunk_simple_gla
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> fused_chunk_simple_gla(q, k, v, -torch.rand(1, 100, 2))[0].shape
    torch.Size([1, 100, 2, 8])
    """
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, False, cu_seqlens)


def parallel_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, scale: Optional[float] = None,
                        output_attentions: bool = False, cu_seqlens: Optional[Tensor] = None,
                        cu_seqlens_cpu: Optional[Tensor] = None) -> Tuple[Tensor, None]:
    """The name of another of fla's kernels for :func:`chunk_simple_gla`; output_attentions is refused.

    >>> import torch
    >>> from mhla.ops import parallel_simple_gla
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> parallel_simple_gla(q, k, v, -torch.rand(1, 100, 2))[0].shape
    torch.Size([1, 100, 2, 8])
    """
    refuse(output_attentions, "output_attentions", "no matrix is made here")
    return chunk_simple_gla(q, k, v, g, None, scale, cu_seqlens=cu_seqlens)[0], None
