"""Layers of the language models: MHLA as released, softmax and linear attention as flash-linear-attention has them."""
from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional, Tuple, overload

import torch
from torch import Tensor, nn

from .._carry import ARRAYS, CausalState, ends_of
from .._plans import Error
from .._torch import rope_rows
from ..functional import causal_attention, linear_attention, softmax_attention
from ..mixing import mix_init, rope_table
from ._parts import Rotary, feature_map, heads_of, refuse_mask


def _rope(rows: int, dim: int, base: float) -> tuple:
    return tuple(map(torch.from_numpy, rope_table(rows, dim, base)))


class _Rotary(Rotary):
    """A rotary table that grows with the longest sequence seen."""

    def __init__(self, dim: int, base: float, rows: int = 2048):
        super().__init__(_rope, rows, dim, base)
        self.rows = rows

    def forward(self, rows: int, device: torch.device) -> tuple:  # type: ignore[override]
        if rows > self.rows:
            if torch.compiler.is_compiling():  # an op, because a graph cannot change this module
                return rope_rows(rows, *self.args[1:], device)
            self.rows = 1 << (rows - 1).bit_length()
            self.args = (self.rows, *self.args[1:])
            self.table = self._made()
        return super().forward(device)


class LMState(NamedTuple):
    """What :class:`LMAttention` carries from one piece of a sequence to the next: the operator's state, and the last tokens
    that its convolutions have seen, [B,width-1,channels] each."""

    attention: CausalState
    conv: Optional[Tuple[Tensor, Tensor, Tensor]]

    def detach(self) -> "LMState":
        """The same numbers without their history."""
        return LMState(self.attention.detach(), self.conv and tuple(x.detach() for x in self.conv))  # type: ignore[arg-type]


class ShortConvolution(nn.Conv1d):
    """Depthwise, causal, then SiLU; packed sequences start from zeros each, or from the tokens that came before them."""

    def __init__(self, dim: int, width: int):
        super().__init__(dim, dim, width, groups=dim, bias=False, padding=width - 1)

    def forward(self, x: Tensor, cu_seqlens: Optional[Tensor] = None, before: Optional[Tensor] = None) -> Tensor:  # type: ignore[override]
        """x [B,T,dim]; before: the last width-1 tokens in front of it, [B,width-1,dim], or of each packed sequence."""
        return self.carry(x, cu_seqlens, before)[0]

    def carry(self, x: Tensor, cu_seqlens: Optional[Tensor] = None, before: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """(result of forward, the last width-1 tokens now)."""
        if cu_seqlens is not None:
            ends = ends_of(cu_seqlens, x.shape[1])
            parts = [self.carry(x[:, a:b], None, None if before is None else before[s : s + 1])
                     for s, (a, b) in enumerate(zip(ends, ends[1:]))]
            return torch.cat([y for y, _ in parts], 1), torch.cat([last for _, last in parts])
        width = self.kernel_size[0]
        expected = (x.shape[0], width - 1, x.shape[2])
        if before is not None and before.shape != expected:
            raise Error(f"the tokens before have shape {tuple(before.shape)}: expected {expected}")
        x = nn.functional.pad(x, (0, 0, width - 1, 0)) if before is None else torch.cat([before.to(x.dtype), x], 1)
        last = x[:, x.shape[1] - width + 1 :]
        if x.shape[1] < width:  # no token
            return x[:, :0], last
        y = nn.functional.conv1d(x.transpose(1, 2), self.weight, groups=self.groups)
        return nn.functional.silu(y.transpose(1, 2)), last


class LMAttention(nn.Module):
    """The released language model's MHLA layer: features -> rotary -> causal MHLA -> RMSNorm per head * swish gate -> o_proj.

    Args:
        feature_map: relu, elu, identity, hedgehog, t2r, elementwise_product, dpfp (as released) or dpfp_paper.
        num_chunks: M, the side of ``mixing_matrix`` [M,M,1,1,1,1].
        clip: range of the mixing matrix that a forward sees, as the release clips it at its start; None = as it is.
        beyond, max_tokens: what happens past num_chunks * chunk_size tokens, as in :func:`mhla.causal_attention`.

    >>> import torch, mhla.nn
    >>> layer = mhla.nn.LMAttention(hidden_size=32, num_heads=2)
    >>> layer(torch.randn(1, 100, 32)).shape
    torch.Size([1, 100, 32])
    """

    def __init__(self, hidden_size: int = 1024, expand_k: float = 0.5, expand_v: float = 1.0, num_heads: int = 4,
                 num_kv_heads: Optional[int] = None, feature_map_name: str = "relu", *, use_short_conv: bool = False,
                 conv_size: int = 4, use_output_gate: bool = True, norm_eps: float = 1e-6, chunk_size: int = 64,
                 num_chunks: int = 32, rope_base: float = 10000.0, clip: Optional[Tuple[float, float]] = (1e-5, 1.0),
                 beyond: str = "error", max_tokens: int = 0):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        key_dim, value_dim = int(hidden_size * expand_k), int(hidden_size * expand_v)
        K, V, G = key_dim // num_heads, value_dim // num_heads, self.num_kv_heads
        self.chunk_size, self.clip, self.beyond, self.max_tokens = chunk_size, clip, beyond, max_tokens
        self.q_proj = nn.Linear(hidden_size, key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, G * K, bias=False)
        self.v_proj = nn.Linear(hidden_size, G * V, bias=False)
        self.use_short_conv = use_short_conv
        if use_short_conv:
            self.q_conv1d = ShortConvolution(key_dim, conv_size)
            self.k_conv1d = ShortConvolution(G * K, conv_size)
            self.v_conv1d = ShortConvolution(G * V, conv_size)
        self.feature, self.feature_map_q, _ = feature_map(feature_map_name, K)
        self.feature_map_k = feature_map(feature_map_name, K)[1]
        self.use_output_gate = use_output_gate
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, value_dim, bias=False)
            self.g_norm_swish_gate = nn.RMSNorm(V, eps=norm_eps)
        else:
            self.g_norm = nn.RMSNorm(V, eps=norm_eps)
        self.o_proj = nn.Linear(value_dim, hidden_size, bias=False)
        self.mixing_matrix = nn.Parameter(torch.tensor(mix_init("causal", num_chunks)).view(num_chunks, num_chunks, 1, 1, 1, 1))
        self._rotary = _Rotary(K, rope_base, max(2048, min(num_chunks * chunk_size, 1 << 16)))

    def mix(self) -> Tensor:
        """The matrix that a forward sees, [M,M]. The clip does not stop gradients, as the release clips in place."""
        w = self.mixing_matrix.flatten(1)
        return w if self.clip is None else w + (w.clamp(*self.clip) - w).detach()

    @overload
    def forward(self, x: Tensor, initial_state: Any = ..., *, output_final_state: Literal[True], cu_seqlens: Optional[Tensor] = ..., past: Optional[int] = ...,
                attn_mask: None = ..., is_causal: bool = ...) -> Tuple[Tensor, LMState]: ...
    @overload
    def forward(self, x: Tensor, initial_state: Any, output_final_state: Literal[True], cu_seqlens: Optional[Tensor] = ..., past: Optional[int] = ...,
                attn_mask: None = ..., is_causal: bool = ...) -> Tuple[Tensor, LMState]: ...
    @overload
    def forward(self, x: Tensor, initial_state: Any = ..., output_final_state: Literal[False] = ..., cu_seqlens: Optional[Tensor] = ..., past: Optional[int] = ...,
                attn_mask: None = ..., is_causal: bool = ...) -> Tensor: ...
    def forward(self, x: Tensor, initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Optional[Tensor] = None,
                past: Optional[int] = None, attn_mask: Optional[Tensor] = None, is_causal: bool = True) -> Any:
        """x [B,T,hidden]; returns y, or (y, :class:`LMState`) where it is asked for. initial_state: that of the tokens before, or
        as in :func:`mhla.causal_attention` where the layer has no convolutions. attn_mask, is_causal: what timm's blocks pass; no
        mask is taken, and the layer is causal in any case."""
        refuse_mask(attn_mask)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        before, conv = None, None
        if isinstance(initial_state, LMState):
            initial_state, before = initial_state
        if self.use_short_conv:
            if initial_state is not None and before is None:
                raise Error("initial_state has no tokens of the convolutions: pass what output_final_state=True returned")
            (q, q1), (k, k1), (v, v1) = (f.carry(y, cu_seqlens, None if before is None else before[i]) for i, (f, y) in enumerate(
                ((self.q_conv1d, q), (self.k_conv1d, k), (self.v_conv1d, v))))
            conv = q1, k1, v1
        elif before is not None:
            raise Error("initial_state has tokens of convolutions: this layer has none")
        q, k, v = heads_of(q, self.num_heads), heads_of(k, self.num_kv_heads), heads_of(v, self.num_kv_heads)
        first = initial_state.past if isinstance(initial_state, CausalState) else past or 0
        rows = (max(first.tolist()) if isinstance(first, ARRAYS) else first) + x.shape[1]
        o, state = causal_attention(self.feature_map_q(q), self.feature_map_k(k), v, self.mix(), None, initial_state,
                                    output_final_state, cu_seqlens, chunk_size=self.chunk_size, past=past,
                                    feature=self.feature, rope=self._rotary(rows, x.device), beyond=self.beyond,
                                    max_tokens=self.max_tokens)
        if self.use_output_gate:
            y = self.g_norm_swish_gate(o).flatten(2) * nn.functional.silu(self.g_proj(x))
        else:
            y = self.g_norm(o).flatten(2)
        y = self.o_proj(y)
        return (y, LMState(state, conv)) if output_final_state else y


class LMSoftmaxAttention(nn.Module):
    """Transformer++'s attention: rotary, causal softmax, perhaps a window, fewer kv heads, norms of q and k.

    >>> import torch, mhla.nn
    >>> mhla.nn.LMSoftmaxAttention(hidden_size=32, num_heads=4)(torch.randn(1, 9, 32)).shape
    torch.Size([1, 9, 32])
    """

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: Optional[int] = None, *, qkv_bias: bool = False,
                 qk_norm: bool = False, window_size: Optional[int] = None, rope_theta: float = 10000.0):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.window = num_heads, num_kv_heads or num_heads, window_size or 0
        K = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * K, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * K, bias=qkv_bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(K, eps=1e-5), nn.RMSNorm(K, eps=1e-5)
        self._rotary = _Rotary(K, rope_theta)

    def forward(self, x: Tensor, cu_seqlens: Optional[Tensor] = None, attn_mask: Optional[Tensor] = None,
                is_causal: bool = True) -> Tensor:
        """attn_mask, is_causal: as in :class:`LMAttention`."""
        refuse_mask(attn_mask)
        q, k, v = heads_of(self.q_proj(x), self.num_heads), heads_of(self.k_proj(x), self.num_kv_heads), heads_of(
            self.v_proj(x), self.num_kv_heads)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        o = softmax_attention(q, k, v, None, True, self.window, cu_seqlens, rope=self._rotary(x.shape[1], x.device))
        return self.o_proj(o.flatten(2))


class LMLinearAttention(nn.Module):
    """Plain causal linear attention as flash-linear-attention's layer has it.

    Args:
        norm_feature_map: divide by the sum of weights (+ 1e-10).
        norm_q, norm_k: divide the features by their sum (+ 1e-4).

    >>> import torch, mhla.nn
    >>> mhla.nn.LMLinearAttention(hidden_size=32, num_heads=2)(torch.randn(1, 9, 32)).shape
    torch.Size([1, 9, 32])
    """

    def __init__(self, hidden_size: int, num_heads: int, expand_k: float = 1.0, expand_v: float = 1.0,
                 feature_map_name: str = "elementwise_product", *, norm_q: bool = False, norm_k: bool = False,
                 norm_feature_map: bool = False, norm_eps: float = 1e-6):
        super().__init__()
        self.num_heads, self.norm_q, self.norm_k, self.normalize = num_heads, norm_q, norm_k, norm_feature_map
        key_dim, value_dim = int(hidden_size * expand_k), int(hidden_size * expand_v)
        self.q_proj = nn.Linear(hidden_size, key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, value_dim, bias=False)
        self.o_proj = nn.Linear(value_dim, hidden_size, bias=False)
        self.feature, self.feature_map_q, _ = feature_map(feature_map_name, key_dim // num_heads)
        self.feature_map_k = feature_map(feature_map_name, key_dim // num_heads)[1]
        self.norm = nn.RMSNorm(value_dim // num_heads, eps=norm_eps)

    def features(self, x: Tensor, module: nn.Module, norm: bool) -> Tensor:
        x = module(heads_of(x, self.num_heads))
        x = x.relu() if self.feature == "relu" else nn.functional.elu(x) + 1 if self.feature == "elu" else x
        return x / (x.sum(-1, keepdim=True) + 1e-4) if norm else x

    @overload
    def forward(self, x: Tensor, initial_state: Any = ..., *, output_final_state: Literal[True], cu_seqlens: Optional[Tensor] = ...,
                attn_mask: None = ..., is_causal: bool = ...) -> Tuple[Tensor, CausalState]: ...
    @overload
    def forward(self, x: Tensor, initial_state: Any, output_final_state: Literal[True], cu_seqlens: Optional[Tensor] = ...,
                attn_mask: None = ..., is_causal: bool = ...) -> Tuple[Tensor, CausalState]: ...
    @overload
    def forward(self, x: Tensor, initial_state: Any = ..., output_final_state: Literal[False] = ..., cu_seqlens: Optional[Tensor] = ...,
                attn_mask: None = ..., is_causal: bool = ...) -> Tensor: ...
    def forward(self, x: Tensor, initial_state: Any = None, output_final_state: bool = False,
                cu_seqlens: Optional[Tensor] = None, attn_mask: Optional[Tensor] = None, is_causal: bool = True) -> Any:
        """attn_mask, is_causal: as in :class:`LMAttention`."""
        refuse_mask(attn_mask)
        q = self.features(self.q_proj(x), self.feature_map_q, self.norm_q)
        k = self.features(self.k_proj(x), self.feature_map_k, self.norm_k)
        o, state = linear_attention(q, k, heads_of(self.v_proj(x), self.num_heads), None, initial_state, output_final_state,
                                    self.normalize, cu_seqlens, causal=True, feature="identity", den_eps=1e-10)
        y = self.o_proj(self.norm(o).flatten(2))
        return (y, state) if output_final_state else y
