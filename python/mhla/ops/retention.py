"""RetNet's retention: simple GLA whose head h has the decay 1 - 2^(-5-h)."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .simple_gla import chunk_simple_gla, fused_recurrent_simple_gla, parallel_simple_gla

__all__ = ["chunk_retention", "fused_chunk_retention", "fused_recurrent_retention", "parallel_retention"]


def _gamma(q: Tensor) -> Tensor:
    h = torch.arange(q.shape[2], dtype=torch.float64, device=q.device)
    return torch.log1p(-(2.0 ** (-5.0 - h))).float()


def chunk_retention(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
                    output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None,
                    **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """Retention; arguments as in :func:`chunk_simple_gla`.

    >>> import torch
    >>> from mhla.ops import chunk_retention
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> chunk_retention(q, k, v)[0].shape
    torch.Size([1, 100, 2, 8])
    """
    return chunk_simple_gla(q, k, v, None, _gamma(q), scale, initial_state, output_final_state, False, cu_seqlens, **kwargs)


def fused_recurrent_retention(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
                              output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
                              cu_seqlens: Optional[Tensor] = None, **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """:func:`chunk_retention` under the name that decoders call.

    >>> import torch
    >>> from mhla.ops import fused_recurrent_retention
    >>> x = torch.randn(1, 1, 2, 8)
    >>> o, state = fused_recurrent_retention(x, x, x, output_final_state=True)
    """
    return fused_recurrent_simple_gla(q, k, v, None, _gamma(q), scale, initial_state, output_final_state, reverse, state_v_first,
                                      cu_seqlens, **kwargs)


def fused_chunk_retention(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
                          output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
    """The name of another of fla's kernels for :func:`chunk_retention`.

    >>> import torch
    >>> from mhla.ops import fused_chunk_retention
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> fused_chunk_retention(q, k, v)[0].shape
    torch.Size([1, 100, 2, 8])
    """
    return chunk_retention(q, k, v, scale, initial_state, output_final_state, cu_seqlens)


def parallel_retention(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float] = None, output_attentions: bool = False,
                       cu_seqlens: Optional[Tensor] = None) -> Tuple[Tensor, None]:
    """The name of another of fla's kernels for :func:`chunk_retention`; output_attentions is refused.

    >>> import torch
    >>> from mhla.ops import parallel_retention
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> parallel_retention(q, k, v)[0].shape
    torch.Size([1, 100, 2, 8])
    """
    return parallel_simple_gla(q, k, v, _gamma(q).expand(q.shape[:3]), scale, output_attentions, cu_seqlens)
