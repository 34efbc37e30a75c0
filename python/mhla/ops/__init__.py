"""The operators of language models under the names, signatures and defaults of flash-linear-attention, mamba_ssm and causal_conv1d.

A script written for one of them runs on a CPU after its import has changed: ``fla.ops.gla`` becomes ``mhla.ops.gla``. Every function
is a custom op or uses one, with gradients of all its tensors, states included, and torch.compile does not break at it. An option
that changes results and that these kernels do not have raises :class:`mhla.Error`.

Tensors are [B,T,H,K] as in fla, float32 or bfloat16. float16 is computed in float32. Log-decays, betas and states are read as
float32, whatever their dtype. A log-decay is 0 or less. ``chunk_*``,
``fused_recurrent_*``, ``fused_chunk_*`` and ``parallel_*`` are names for one operator.
"""
try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"mhla.ops needs PyTorch, the package torch ({error}): pip install torch") from error

from .convolution import causal_conv1d, causal_conv1d_fn, causal_conv1d_update
from .gated_delta_rule import chunk_gated_delta_rule, chunk_gdn, fused_recurrent_gated_delta_rule, fused_recurrent_gdn
from .gla import chunk_gla, fused_recurrent_gla
from .mamba import mamba_chunk_scan_combined, selective_scan, selective_scan_fn, selective_state_update
from .retention import chunk_retention, fused_chunk_retention, fused_recurrent_retention, parallel_retention
from .simple_gla import chunk_simple_gla, fused_chunk_simple_gla, fused_recurrent_simple_gla, parallel_simple_gla

__all__ = ["causal_conv1d", "causal_conv1d_fn", "causal_conv1d_update", "chunk_gated_delta_rule", "chunk_gdn", "chunk_gla",
           "chunk_retention", "chunk_simple_gla", "fused_chunk_retention", "fused_chunk_simple_gla",
           "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn", "fused_recurrent_gla", "fused_recurrent_retention",
           "fused_recurrent_simple_gla", "mamba_chunk_scan_combined", "parallel_retention", "parallel_simple_gla",
           "selective_scan", "selective_scan_fn", "selective_state_update"]
