"""Recurrent layers of language models with fla's constructors, parameter names and calls: fla's state_dicts load unchanged."""
from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._plans import Error
from ..ops import (causal_conv1d, chunk_gated_delta_rule, chunk_gla, chunk_retention, mamba_chunk_scan_combined, selective_scan)
from ._parts import heads_of
from .lm import _Rotary


def _sqrelu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "sigmoid": torch.sigmoid, "logsigmoid": F.logsigmoid,
                                                       "silu": F.silu, "swish": F.silu, "sqrelu": _sqrelu, "gelu": _gelu}


def _activation(name: str, what: str, known: Tuple[str, ...] = tuple(_ACTIVATIONS)) -> Callable[[Tensor], Tensor]:
    if name not in known:
        raise Error(f"{what} is {name!r}: expected one of {', '.join(known)}")
    return _ACTIVATIONS[name]


def _whole(value: float, what: str) -> int:
    if not math.isclose(value, round(value)):
        raise Error(f"{what} is {value}: expected a whole number")
    return round(value)


def _divides(part: int, whole: int, what: str, of: str) -> None:
    if part < 1 or whole % part:
        raise Error(f"{what} is {part}: expected a divisor of {of}, {whole}")


def _step_sizes(count: int, low: float, high: float, floor: float) -> Tensor:
    """The inverse softplus of step sizes whose logarithms are uniform, Mamba's initial bias of dt."""
    dt = torch.exp(torch.rand(count) * (math.log(high) - math.log(low)) + math.log(low)).clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


def _undecayed(x: Tensor) -> nn.Parameter:
    """A parameter with the mark by which optimisers exempt it from weight decay."""
    p = nn.Parameter(x)
    p._no_weight_decay = True  # type: ignore[attr-defined]
    return p


class Cache:
    """What layers carry from call to call, an entry for each `layer_idx`; fla's own caches serve as well.

    >>> import torch, mhla.nn
    >>> layer, cache = mhla.nn.GatedLinearAttention(hidden_size=32, num_heads=2, layer_idx=0), mhla.nn.Cache()
    >>> for x in torch.randn(1, 9, 32).split(1, 1):
    ...     y, _, cache = layer(x, past_key_values=cache, use_cache=True)
    >>> cache.get_seq_length()
    9
    """

    def __init__(self) -> None:
        self.states: List[Optional[Dict[str, Any]]] = []
        self._seen: List[int] = []

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, layer_idx: int) -> Optional[Dict[str, Any]]:
        return self.states[layer_idx]

    def update(self, recurrent_state: Any = None, conv_state: Any = None, layer_idx: int = 0, offset: int = 1) -> Dict[str, Any]:
        while len(self.states) <= layer_idx:
            self.states.append(None)
            self._seen.append(0)
        entry = {"recurrent_state": recurrent_state, "conv_state": conv_state}
        self.states[layer_idx] = entry
        self._seen[layer_idx] += offset
        return entry

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that the layer has seen, padding included."""
        return self._seen[layer_idx] if layer_idx < len(self._seen) else 0


class _Conv(nn.Conv1d):
    """fla's ShortConvolution."""

    def __init__(self, dim: int, width: int, bias: bool = False):
        super().__init__(dim, dim, width, groups=dim, bias=bias, padding=width - 1)

    def forward(self, x: Tensor, cache: Optional[Tensor], keep: bool, cu: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:  # type: ignore[override]
        return causal_conv1d(x, self.weight[:, 0], self.bias, None, cache, keep, "silu", cu_seqlens=cu)


class _GatedNorm(nn.RMSNorm):
    """RMSNorm times an activation of the gate: after it, or, with gate_first, before it."""

    def __init__(self, dim: int, eps: float, affine: bool = True, activation: str = "swish", gate_first: bool = False,
                 group_size: Optional[int] = None):
        super().__init__(dim, eps=eps, elementwise_affine=affine)
        self.gate, self.gate_first, self.group_size = _activation(activation, "gate_fn"), gate_first, group_size or dim

    def forward(self, x: Tensor, g: Tensor) -> Tensor:  # type: ignore[override]
        if self.gate_first:
            x = x * self.gate(g)
        groups = x.unflatten(-1, (-1, self.group_size))
        y = F.rms_norm(groups, (self.group_size,), None, self.eps).flatten(-2)
        y = y if self.weight is None else y * self.weight
        return y if self.gate_first else y * self.gate(g)


class _Mixer(nn.Module):
    """fla's call of a layer around :meth:`mix`, which sees one batch, or packed sequences, and the state before them."""

    layer_idx: Optional[int]

    def mix(self, x: Tensor, last: Dict[str, Any], keep: bool, cu: Optional[Tensor], first: Any) -> Tuple[Tensor, Any, Any]:
        """(y, recurrent state, convolution states); first: the position of the first token of each sequence."""
        raise NotImplementedError

    def forward(self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None, past_key_values: Any = None,
                use_cache: Optional[bool] = False, output_attentions: Optional[bool] = False,
                **kwargs: Any) -> Tuple[Tensor, None, Any]:
        """fla's call.

        Args:
            hidden_states: [B,T,hidden_size].
            attention_mask: [B,T or more], 0 where a token is padding, on either side; its output is 0.
            past_key_values: a :class:`Cache` (or fla's), which holds the state of the tokens before; the layer needs its layer_idx.
            use_cache: keep the state after the last token in past_key_values.
            cu_seqlens: by keyword, [N+1]: B is 1 and holds N packed sequences, none of which sees another.

        Returns:
            (y like hidden_states, None, past_key_values).
        """
        if past_key_values is not None and self.layer_idx is None:
            raise Error(f"past_key_values is given: {type(self).__name__} needs a layer_idx")
        B, T, _ = hidden_states.shape
        cu, mask, x, first = kwargs.get("cu_seqlens"), None, hidden_states, 0
        if past_key_values is not None and len(past_key_values) > self.layer_idx:
            first = past_key_values.get_seq_length(self.layer_idx)
        if attention_mask is not None and cu is None:
            if attention_mask.dim() != 2 or attention_mask.shape[1] < T:
                raise Error(f"attention_mask has shape {tuple(attention_mask.shape)}: expected [{B},{T}], 0 at padding")
            whole = attention_mask.bool()
            mask = whole[:, attention_mask.shape[1] - T :]
            cu = F.pad(mask.sum(1).cumsum(0), (1, 0))
            x = x[mask][None]
            if first:
                first = first - (~whole).sum(1)
        last = past_key_values[self.layer_idx] if past_key_values is not None and len(past_key_values) > self.layer_idx else None
        y, state, conv = self.mix(x, last or {}, bool(use_cache), cu, first)
        if past_key_values is not None and use_cache:
            past_key_values.update(recurrent_state=state, conv_state=conv, layer_idx=self.layer_idx, offset=T)
        if mask is not None:
            y = y.new_zeros(B, T, y.shape[-1]).masked_scatter(mask[..., None], y)
        return y, None, past_key_values


class _Attention(_Mixer):
    """What GLA, retention and Gated DeltaNet share: projections, perhaps convolved, and the gated norm."""

    def _project(self, hidden: int, key: int, keys: int, values: int, use_short_conv: bool, conv_size: int, conv_bias: bool) -> None:
        self.q_proj = nn.Linear(hidden, key, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, values, bias=False)
        self.use_short_conv = use_short_conv
        if use_short_conv:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (_Conv(dim, conv_size, conv_bias) for dim in (key, keys, values))

    def _qkv(self, x: Tensor, last: Dict[str, Any], keep: bool, cu: Optional[Tensor]) -> Tuple[List[Tensor], Any]:
        qkv = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        if not self.use_short_conv:
            return qkv, None
        before = last.get("conv_state") or (None, None, None)
        done = [f(y, c, keep, cu) for f, y, c in zip((self.q_conv1d, self.k_conv1d, self.v_conv1d), qkv, before)]
        return [y for y, _ in done], tuple(c for _, c in done)

    def _norm(self, dim: int, use_output_gate: bool, gate_fn: str, affine: Optional[bool], eps: float, fuse_norm: bool) -> None:
        """fla's two names for one formula."""
        self.use_output_gate, self.gate_fn = use_output_gate, _activation(gate_fn, "gate_fn")
        self.fused = gate_fn == "swish" and fuse_norm and use_output_gate
        if self.fused:
            self.g_norm_swish_gate = _GatedNorm(dim, eps, bool(affine), gate_fn)
        else:
            self.g_norm = nn.RMSNorm(dim, eps=eps, elementwise_affine=bool(affine))

    def _gated(self, o: Tensor, x: Tensor) -> Tensor:
        if self.fused:
            return self.g_norm_swish_gate(o, heads_of(self.g_proj(x), o.shape[2])).flatten(2)
        y = self.g_norm(o).flatten(2)
        return y * self.gate_fn(self.g_proj(x)) if self.use_output_gate else y


def _expanded(x: Tensor, heads: int, groups: int) -> Tensor:
    """[B,T,heads*K] -> [B,T,heads*groups,K], each head `groups` times."""
    x = heads_of(x, heads)
    return x if groups == 1 else x.repeat_interleave(groups, 2)


class GatedLinearAttention(_Attention):
    """GLA: gk = logsigmoid(low-rank gate) / gate_logit_normalizer -> chunk_gla -> RMSNorm per head * swish gate -> o_proj.

    The arguments are fla's. mode and fuse_norm choose among fla's kernels; here one kernel serves all.

    >>> import torch, mhla.nn
    >>> y, *_ = mhla.nn.GatedLinearAttention(hidden_size=32, num_heads=2)(torch.randn(1, 100, 32))
    >>> y.shape
    torch.Size([1, 100, 32])
    """

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 0.5, expand_v: float = 1.0, num_heads: int = 4,
                 num_kv_heads: Optional[int] = None, feature_map: Optional[str] = None, use_short_conv: bool = False, conv_size: int = 4,
                 conv_bias: bool = False, use_output_gate: bool = True, gate_fn: str = "swish", elementwise_affine: Optional[bool] = True,
                 norm_eps: float = 1e-5, gate_logit_normalizer: int = 16, gate_low_rank_dim: int = 16, clamp_min: Optional[float] = None,
                 fuse_norm: bool = True, layer_idx: Optional[int] = None):
        super().__init__()
        _shape(self, mode, ("chunk", "fused_recurrent", "fused_chunk"), hidden_size, expand_k, expand_v, num_heads, num_kv_heads, feature_map)
        self.gate_logit_normalizer, self.clamp_min, self.layer_idx = gate_logit_normalizer, clamp_min, layer_idx
        keys, values = self.key_dim // self.num_kv_groups, self.value_dim // self.num_kv_groups
        self._project(hidden_size, self.key_dim, keys, values, use_short_conv, conv_size, conv_bias)
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.gk_proj = nn.Sequential(nn.Linear(hidden_size, gate_low_rank_dim, bias=False), nn.Linear(gate_low_rank_dim, keys))
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        self._norm(self.value_dim // num_heads, use_output_gate, gate_fn, elementwise_affine, norm_eps, fuse_norm)

    def mix(self, x, last, keep, cu, first):
        (q, k, v), conv = self._qkv(x, last, keep, cu)
        q, (k, v, gk) = heads_of(q, self.num_heads), (_expanded(t, self.num_kv_heads, self.num_kv_groups) for t in (k, v, self.gk_proj(x)))
        gk = F.logsigmoid(gk.float()) / self.gate_logit_normalizer
        if self.clamp_min is not None:
            gk = gk.clamp(min=self.clamp_min)
        if self.feature_map is not None:
            q, k = self.feature_map(q), self.feature_map(k)
        o, state = chunk_gla(q, k, v, gk, None, last.get("recurrent_state"), keep, cu_seqlens=cu)
        return self.o_proj(self._gated(o, x)), state, conv


def _shape(self: Any, mode: str, modes: Tuple[str, ...], hidden_size: int, expand_k: float, expand_v: float, num_heads: int,
           num_kv_heads: Optional[int], feature_map: Optional[str]) -> None:
    """The sizes of GLA and retention."""
    if mode not in modes:
        raise Error(f"mode is {mode!r}: expected one of {', '.join(modes)}")
    self.mode, self.hidden_size, self.num_heads, self.num_kv_heads = mode, hidden_size, num_heads, num_kv_heads or num_heads
    self.key_dim, self.value_dim = _whole(hidden_size * expand_k, "hidden_size * expand_k"), _whole(hidden_size * expand_v, "hidden_size * expand_v")
    _divides(self.num_kv_heads, num_heads, "num_kv_heads", "num_heads")
    _divides(num_heads, self.key_dim, "num_heads", "hidden_size * expand_k")
    _divides(num_heads, self.value_dim, "num_heads", "hidden_size * expand_v")
    self.num_kv_groups = num_heads // self.num_kv_heads
    self.feature_map = None if feature_map is None else _activation(feature_map, "feature_map")


class MultiScaleRetention(_Attention):
    """RetNet's layer: rotary -> chunk_retention -> RMSNorm per head * swish gate -> o_proj.

    The arguments are fla's; mode and fuse_norm as in :class:`GatedLinearAttention`.

    >>> import torch, mhla.nn
    >>> y, *_ = mhla.nn.MultiScaleRetention(hidden_size=32, num_heads=2)(torch.randn(1, 100, 32))
    >>> y.shape
    torch.Size([1, 100, 32])
    """

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, expand_k: float = 1.0, expand_v: float = 2.0, num_heads: int = 8,
                 num_kv_heads: Optional[int] = None, feature_map: Optional[str] = None, use_short_conv: bool = False, conv_size: int = 4,
                 conv_bias: bool = False, use_output_gate: bool = True, gate_fn: str = "swish", elementwise_affine: Optional[bool] = True,
                 norm_eps: float = 1e-5, fuse_norm: bool = True, layer_idx: Optional[int] = None):
        super().__init__()
        _shape(self, mode, ("chunk", "fused_chunk", "parallel", "fused_recurrent"), hidden_size, expand_k, expand_v, num_heads, num_kv_heads,
               feature_map)
        self.layer_idx = layer_idx
        keys, values = self.key_dim // self.num_kv_groups, self.value_dim // self.num_kv_groups
        self._project(hidden_size, self.key_dim, keys, values, use_short_conv, conv_size, conv_bias)
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        self._norm(self.value_dim // num_heads, use_output_gate, gate_fn, elementwise_affine, norm_eps, fuse_norm)
        self._rotary = _Rotary(self.key_dim // num_heads, 10000.0)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def mix(self, x, last, keep, cu, first):
        (q, k, v), conv = self._qkv(x, last, keep, cu)
        q, k, v = heads_of(q, self.num_heads), heads_of(k, self.num_kv_heads), _expanded(v, self.num_kv_heads, self.num_kv_groups)
        if self.feature_map is not None:
            q, k = self.feature_map(q), self.feature_map(k)
        T = x.shape[1]
        if cu is None:
            cos, sin = (t[first : first + T, None] for t in self._rotary(first + T, x.device))
        else:  # the position of a token in its own sequence
            s = torch.searchsorted(cu[1:], torch.arange(T, device=x.device), right=True)
            at = torch.arange(T, device=x.device) - cu[s] + (first[s] if isinstance(first, Tensor) else first)
            cos, sin = (t[at, None] for t in self._rotary(int(at.max()) + 1, x.device))
        q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
        k = k if self.num_kv_groups == 1 else k.repeat_interleave(self.num_kv_groups, 2)
        o, state = chunk_retention(q, k, v, None, last.get("recurrent_state"), keep, cu)
        return self.o_proj(self._gated(o, x)), state, conv


class GatedDeltaNet(_Attention):
    """Gated DeltaNet: short convolutions, l2 norms of q and k, gated delta rule, RMSNorm per head * gate, o_proj.

    The arguments are fla's; mode chooses among fla's kernels.

    >>> import torch, mhla.nn
    >>> y, *_ = mhla.nn.GatedDeltaNet(hidden_size=32, head_dim=12, num_heads=2)(torch.randn(1, 100, 32))
    >>> y.shape
    torch.Size([1, 100, 32])
    """

    def __init__(self, hidden_size: int = 2048, expand_v: float = 2, head_dim: int = 256, num_heads: int = 6,
                 num_v_heads: Optional[int] = None, mode: str = "chunk", use_gate: bool = True, use_short_conv: bool = True,
                 allow_neg_eigval: bool = False, conv_size: int = 4, conv_bias: bool = False, layer_idx: Optional[int] = None,
                 norm_eps: float = 1e-5, output_gate_activation: str = "swish"):
        super().__init__()
        if mode not in ("chunk", "fused_recurrent"):
            raise Error(f"mode is {mode!r}: expected one of chunk, fused_recurrent")
        self.mode, self.hidden_size, self.allow_neg_eigval, self.layer_idx = mode, hidden_size, allow_neg_eigval, layer_idx
        self.head_k_dim, self.head_v_dim = head_dim, _whole(head_dim * expand_v, "head_dim * expand_v")
        self.num_heads, self.num_v_heads = num_heads, num_v_heads or num_heads
        _divides(num_heads, self.num_v_heads, "num_heads", "num_v_heads")
        key, value = num_heads * head_dim, self.num_v_heads * self.head_v_dim
        self._project(hidden_size, key, key, value, use_short_conv, conv_size, conv_bias)
        self.a_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        self.A_log = _undecayed(torch.empty(self.num_v_heads).uniform_(0, 16).log())
        self.dt_bias = _undecayed(_step_sizes(self.num_v_heads, 0.001, 0.1, 1e-4))
        self.use_gate = use_gate
        _activation(output_gate_activation, "output_gate_activation", ("swish", "silu", "sigmoid"))
        if use_gate:
            self.g_proj = nn.Linear(hidden_size, value, bias=False)
            self.o_norm: nn.Module = _GatedNorm(self.head_v_dim, norm_eps, activation=output_gate_activation)
        else:
            self.o_norm = nn.RMSNorm(self.head_v_dim, eps=norm_eps)
        self.o_proj = nn.Linear(value, hidden_size, bias=False)

    def mix(self, x, last, keep, cu, first):
        qkv, conv = self._qkv(x, last, keep, cu)
        q, k, v = qkv if self.use_short_conv else map(F.silu, qkv)
        o, state = chunk_gated_delta_rule(
            heads_of(q, self.num_heads), heads_of(k, self.num_heads), heads_of(v, self.num_v_heads), self.a_proj(x), self.b_proj(x),
            initial_state=last.get("recurrent_state"), output_final_state=keep, use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, allow_neg_eigval=self.allow_neg_eigval, cu_seqlens=cu, use_gate_in_kernel=True,
            A_log=self.A_log, dt_bias=self.dt_bias)
        o = self.o_norm(o, heads_of(self.g_proj(x), self.num_v_heads)) if self.use_gate else self.o_norm(o)
        return self.o_proj(o.flatten(2)), state, conv


class Mamba(_Mixer):
    """Mamba's mixer: in_proj -> short convolution -> selective scan, gated -> out_proj.

    The arguments are fla's; backend chooses among fla's kernels.

    >>> import torch, mhla.nn
    >>> y, *_ = mhla.nn.Mamba(hidden_size=32, intermediate_size=64)(torch.randn(1, 100, 32))
    >>> y.shape
    torch.Size([1, 100, 32])
    """

    def __init__(self, hidden_size: int = 2048, state_size: int = 16, conv_kernel: int = 4, use_conv_bias: bool = True,
                 intermediate_size: int = 2048, dt_rank: Union[int, str] = "auto", dt_min: float = 0.001, dt_max: float = 0.1,
                 dt_init: str = "random", dt_scale: float = 1.0, dt_init_floor: float = 1e-4, use_bias: bool = False,
                 hidden_act: str = "silu", layer_idx: Optional[int] = None, backend: str = "cuda"):
        super().__init__()
        _activation(hidden_act, "hidden_act", ("silu", "swish"))
        self.hidden_size, self.intermediate_size, self.ssm_state_size, self.layer_idx = hidden_size, intermediate_size, state_size, layer_idx
        self.dt_rank: int = math.ceil(hidden_size / 16) if dt_rank == "auto" else int(dt_rank)
        self.conv1d = _Conv(intermediate_size, conv_kernel, use_conv_bias)
        self.in_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=use_bias)
        self.x_proj = nn.Linear(intermediate_size, self.dt_rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, intermediate_size)
        spread = self.dt_rank**-0.5 * dt_scale
        if dt_init not in ("constant", "random"):
            raise Error(f"dt_init is {dt_init!r}: expected 'constant' or 'random'")
        with torch.no_grad():
            self.dt_proj.weight.fill_(spread) if dt_init == "constant" else self.dt_proj.weight.uniform_(-spread, spread)
            self.dt_proj.bias.copy_(_step_sizes(intermediate_size, dt_min, dt_max, dt_init_floor))
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]  # fla's word to initialisers of whole models
        self.A_log = _undecayed(torch.arange(1.0, state_size + 1).log().repeat(intermediate_size, 1))
        self.D = _undecayed(torch.ones(intermediate_size))
        self.out_proj = nn.Linear(intermediate_size, hidden_size, bias=use_bias)

    def mix(self, x, last, keep, cu, first):
        u, z = self.in_proj(x).chunk(2, -1)
        u, conv = self.conv1d(u, last.get("conv_state"), keep, cu)
        dt, B, C = self.x_proj(u).split([self.dt_rank, self.ssm_state_size, self.ssm_state_size], -1)
        y, state = selective_scan(u, F.linear(dt, self.dt_proj.weight), -self.A_log.float().exp(), B[:, :, None], C[:, :, None], self.D, z,
                                  self.dt_proj.bias, True, last.get("recurrent_state"), keep, cu)
        return self.out_proj(y), state, conv


class Mamba2(_Mixer):
    """Mamba2's mixer: in_proj -> short convolution of x, B and C -> mamba_chunk_scan_combined -> gated RMSNorm -> out_proj.

    The arguments are fla's; chunk_size and backend choose among its kernels. The norm runs over all channels;
    mamba_ssm, today's fla and transformers since 5.23 have one for each group, `norm_group_size` = expand * hidden_size / n_groups,
    which is the same for one group.

    >>> import torch, mhla.nn
    >>> y, *_ = mhla.nn.Mamba2(hidden_size=32, head_dim=16, state_size=8)(torch.randn(1, 100, 32))
    >>> y.shape
    torch.Size([1, 100, 32])
    """

    def __init__(self, num_heads: Optional[int] = None, head_dim: int = 64, hidden_size: int = 2048, state_size: int = 128, expand: int = 2,
                 n_groups: int = 1, conv_kernel: int = 4, conv_init: Optional[float] = None, use_conv_bias: bool = True,
                 hidden_act: str = "silu", A_init_range: Tuple[float, float] = (1, 16), D_has_hdim: bool = False, rmsnorm: bool = True,
                 norm_before_gate: bool = False, dt_min: float = 0.001, dt_max: float = 0.1, dt_init_floor: float = 1e-4,
                 dt_limit: Tuple[float, float] = (0.0, float("inf")), use_bias: bool = False, norm_eps: float = 1e-5,
                 chunk_size: int = 256, layer_idx: Optional[int] = None, backend: str = "cuda", *, norm_group_size: Optional[int] = None):
        super().__init__()
        _activation(hidden_act, "hidden_act", ("silu", "swish"))
        self.hidden_size, self.intermediate_size = hidden_size, _whole(expand * hidden_size, "expand * hidden_size")
        self.head_dim, self.ssm_state_size, self.n_groups, self.chunk_size = head_dim, state_size, n_groups, chunk_size
        _divides(head_dim, self.intermediate_size, "head_dim", "expand * hidden_size")
        self.num_heads = self.intermediate_size // head_dim
        if num_heads and num_heads != self.num_heads:
            raise Error(f"num_heads is {num_heads}, head_dim {head_dim}: their product has to be expand * hidden_size, {self.intermediate_size}")
        _divides(n_groups, self.num_heads, "n_groups", "the number of heads")
        self.dt_limit, self.rmsnorm, self.D_has_hdim, self.layer_idx = tuple(dt_limit), rmsnorm, D_has_hdim, layer_idx
        self.conv_dim = self.intermediate_size + 2 * n_groups * state_size
        self.conv1d = _Conv(self.conv_dim, conv_kernel, use_conv_bias)
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        self.in_proj = nn.Linear(hidden_size, self.intermediate_size + self.conv_dim + self.num_heads, bias=use_bias)
        self.dt_bias = _undecayed(_step_sizes(self.num_heads, dt_min, dt_max, dt_init_floor))
        self.A_log = _undecayed(torch.empty(self.num_heads).uniform_(*A_init_range).log())
        self.D = _undecayed(torch.ones(self.intermediate_size if D_has_hdim else self.num_heads))
        if rmsnorm:
            _divides(norm_group_size or 1, self.intermediate_size, "norm_group_size", "expand * hidden_size")
            self.norm = _GatedNorm(self.intermediate_size, norm_eps, gate_first=not norm_before_gate, group_size=norm_group_size)
        self.out_proj = nn.Linear(self.intermediate_size, hidden_size, bias=use_bias)

    def mix(self, x, last, keep, cu, first):
        I, N, G = self.intermediate_size, self.ssm_state_size, self.n_groups
        z, xBC, dt = self.in_proj(x).split([I, self.conv_dim, self.num_heads], -1)
        xBC, conv = self.conv1d(xBC, last.get("conv_state"), keep, cu)
        u, B, C = xBC.split([I, G * N, G * N], -1)
        gate = None if self.rmsnorm else heads_of(z, self.num_heads)
        D = self.D.view(self.num_heads, -1) if self.D_has_hdim else self.D
        result = mamba_chunk_scan_combined(
            heads_of(u, self.num_heads), dt, -self.A_log.float().exp(), heads_of(B, G), heads_of(C, G), self.chunk_size, D, gate, self.dt_bias,
            last.get("recurrent_state"), None, cu, True, self.dt_limit, keep and cu is None, keep and cu is not None)
        y, state = result if keep else (result, None)
        y = self.norm(y.flatten(2), z) if self.rmsnorm else y.flatten(2)
        return self.out_proj(y.to(x.dtype)), state, conv
