"""The gated delta rule: with S = e^g_t S_{t-1}, S_t = S + k_t (beta_t (v_t - S^T k_t))^T, o_t = scale S_t^T q_t."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ._common import Error, keywords, recur, refuse

__all__ = ["chunk_gated_delta_rule", "chunk_gdn", "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn"]


def _gates(v: Tensor, g: Optional[Tensor], beta: Optional[Tensor], use_gate: bool, A_log: Optional[Tensor], dt_bias: Optional[Tensor],
           use_sigmoid: bool, allow_neg_eigval: bool) -> Tuple[Tensor, Tensor]:
    """Log-decays and betas [B,T,HV], of which fla may leave the last steps to its kernels."""
    if allow_neg_eigval and not use_sigmoid:
        raise Error("allow_neg_eigval is True: it needs use_beta_sigmoid_in_kernel, and multiplies what that makes by 2")
    if use_gate:
        if g is None or A_log is None:
            raise Error("use_gate_in_kernel is True: it needs g and A_log")
        g = g.float() if dt_bias is None else g.float() + dt_bias.float()
        g = -A_log.float().exp() * F.softplus(g)
    elif A_log is not None or dt_bias is not None:
        raise Error("A_log or dt_bias is given: they need use_gate_in_kernel=True")
    if g is None:
        g = torch.zeros(v.shape[2], device=v.device).expand(v.shape[:3])
    if beta is None:
        beta = torch.ones(v.shape[2], device=v.device).expand(v.shape[:3])
    elif use_sigmoid:
        beta = beta.float().sigmoid() * (2 if allow_neg_eigval else 1)
    return g, beta


def chunk_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Optional[float] = None,
                           initial_state: Optional[Tensor] = None, output_final_state: bool = False,
                           use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
                           state_v_first: bool = False, cu_seqlens: Optional[Tensor] = None, cu_seqlens_cpu: Optional[Tensor] = None,
                           chunk_indices: Optional[Tensor] = None, cp_context: Any = None, **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """The gated delta rule: a token replaces beta of what its key holds.

    Args:
        q, k, v: [B,T,H,K], [B,T,H,K], [B,T,HV,V]; HV is a multiple of H, and head j of v uses head j // (HV/H) of q and k.
        g: log-decays [B,T,HV], 0 or less.
        beta: [B,T,HV], usually 0 to 1, or to 2.
        scale, initial_state, output_final_state, state_v_first, cu_seqlens: as in :func:`chunk_gla`; states are [N,HV,K,V].
        use_qk_l2norm_in_kernel: q and k are divided by sqrt(sum of squares + 1e-6), head by head.
        use_beta_sigmoid_in_kernel: beta is sigmoid(beta), with allow_neg_eigval twice that.
        use_gate_in_kernel, A_log, dt_bias: by keyword; g is then -exp(A_log) softplus(g + dt_bias).
        cu_seqlens_cpu, chunk_indices: not read; fla's copies of what cu_seqlens says.
        cp_context: refused.

    >>> import torch
    >>> from mhla.ops import chunk_gated_delta_rule
    >>> q, k, v = torch.randn(3, 1, 100, 2, 8)
    >>> g, beta = -torch.rand(1, 100, 2), torch.rand(1, 100, 2)
    >>> o, state = chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
    >>> o.shape, state.shape
    (torch.Size([1, 100, 2, 8]), torch.Size([1, 2, 8, 8]))
    """
    refuse(cp_context, "cp_context", "sequences are not divided between processes here")
    kwargs = dict(kwargs)
    gate = [kwargs.pop(name, None) for name in ("use_gate_in_kernel", "A_log", "dt_bias")]
    g, beta = _gates(v, g, beta, *gate, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return recur("gated_delta", q, k, v, g, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                 cu_seqlens=cu_seqlens, state_v_first=keywords("chunk_gated_delta_rule", kwargs, state_v_first),
                 qk_l2norm=use_qk_l2norm_in_kernel)


def fused_recurrent_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None, gk: Optional[Tensor] = None,
                                     gv: Optional[Tensor] = None, beta: Optional[Tensor] = None, scale: Optional[float] = None,
                                     initial_state: Optional[Tensor] = None, output_final_state: bool = False,
                                     use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
                                     A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None,
                                     use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
                                     cu_seqlens: Optional[Tensor] = None, **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """:func:`chunk_gated_delta_rule` under the name that decoders call. g None is no decay, beta None is 1.

    >>> import torch
    >>> from mhla.ops import fused_recurrent_gated_delta_rule
    >>> x = torch.randn(1, 1, 2, 8)
    >>> o, state = fused_recurrent_gated_delta_rule(x, x, x, -torch.rand(1, 1, 2), output_final_state=True)
    """
    refuse(gk, "gk", "decays of key channels are not supported by the delta rule")
    refuse(gv, "gv", "decays of value channels are not supported")
    g, beta = _gates(v, g, beta, use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return recur("gated_delta", q, k, v, g, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                 cu_seqlens=cu_seqlens, state_v_first=keywords("fused_recurrent_gated_delta_rule", kwargs, state_v_first),
                 qk_l2norm=use_qk_l2norm_in_kernel)


chunk_gdn, fused_recurrent_gdn = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
