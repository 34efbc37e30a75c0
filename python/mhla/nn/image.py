"""Attention modules of the image models: DeiT, DiT, VLT, and the baselines beside them.

Parameters carry the names of the released checkpoints, so that a state_dict loads unmapped. Each can take the place of the
attention in a block of timm, whose attn_mask=None and is_causal=False they accept; a mask is for SoftmaxAttention only.
"""
from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import Tensor, nn

from .._plans import Error
from ..functional import attention, linear_attention, mala_attention, rala_attention, softmax_attention
from ._parts import Mixing, Rotary, depthwise, heads_of, refuse_mask, to_blocks, to_raster


class _ReleasedAttention(nn.Module):
    """norm -> to_qkv -> (q_norm, k_norm) -> MHLA with the released denominator + LePE -> to_out."""

    def __init__(self, dim: int, heads: int, grid: Sequence[int], blocks: Sequence[int], qk_norm: bool, qkv_bias: bool, lepe: int,
                 mix: str, denominator: str, dropout: float):
        super().__init__()
        self.heads, self.grid, self.blocks, self.denominator = heads, tuple(grid), tuple(blocks), denominator
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        if qk_norm:  # over all heads at once
            self.q_norm = nn.RMSNorm(dim, eps=torch.finfo(torch.float32).eps)
            self.k_norm = nn.RMSNorm(dim, eps=torch.finfo(torch.float32).eps)
        self.qk_norm = qk_norm
        self.piece_attn = Mixing(blocks, mix)
        self.lepe = nn.Conv2d(dim, dim, lepe, padding=lepe // 2, groups=dim)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        """x [B, blocks, tokens of a block, dim], block after block, or [B,T,dim] in raster order."""
        refuse_mask(attn_mask, is_causal)
        shape, blocked = x.shape, x.dim() == 4
        q, k, v = self.to_qkv(self.norm(x.flatten(1, -2))).chunk(3, -1)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        o = attention(heads_of(q, self.heads), heads_of(k, self.heads), heads_of(v, self.heads), self.piece_attn(), self.grid,
                      self.blocks, order="blocks" if blocked else "raster", denominator=self.denominator)
        local = depthwise(self.lepe, to_raster(v, self.grid, self.blocks) if blocked else v, self.grid)
        if blocked:
            local = to_blocks(local, self.grid, self.blocks)
        return self.to_out(o.flatten(2) + local).view(shape)


class DeiTAttention(_ReleasedAttention):
    """The released DeiT's attention: RMSNorm of q and k, LePE 5x5.

    Args:
        grid, blocks: rows and columns of tokens, and into how many pieces each is cut.
        mix: initialisation of the mixing matrix (``piece_attn.conv.weight``), a name of :func:`mhla.mix_init`.
        denominator: ``"released"`` for published checkpoints, ``"eq4"`` for the paper's.

    >>> import torch, mhla.nn
    >>> layer = mhla.nn.DeiTAttention(dim=24, heads=3, grid=(8, 8), blocks=(2, 2))
    >>> layer(torch.randn(2, 64, 24)).shape
    torch.Size([2, 64, 24])
    >>> layer(torch.randn(2, 4, 16, 24)).shape
    torch.Size([2, 4, 16, 24])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int] = (16, 16), blocks: Sequence[int] = (4, 4), *,
                 qk_norm: bool = True, qkv_bias: bool = False, lepe: int = 5, mix: str = "cos", denominator: str = "released",
                 dropout: float = 0.0):
        super().__init__(dim, heads, grid, blocks, qk_norm, qkv_bias, lepe, mix, denominator, dropout)


class DiTAttention(_ReleasedAttention):
    """The released DiT's attention: biases, no norm of q and k, LePE 3x3, dropout 0.1 of the output in training.

    >>> import torch, mhla.nn
    >>> layer = mhla.nn.DiTAttention(dim=32, heads=2, grid=(8, 8), blocks=(2, 2))
    >>> layer(torch.randn(1, 4, 16, 32)).shape
    torch.Size([1, 4, 16, 32])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int] = (16, 16), blocks: Sequence[int] = (4, 4), *,
                 qk_norm: bool = False, qkv_bias: bool = True, lepe: int = 3, mix: str = "released-linear",
                 denominator: str = "released", dropout: float = 0.1):
        super().__init__(dim, heads, grid, blocks, qk_norm, qkv_bias, lepe, mix, denominator, dropout)


class LinearAttention(nn.Module):
    """The released DeiT's linear-attention baseline.

    >>> import torch, mhla.nn
    >>> mhla.nn.LinearAttention(dim=24, heads=3)(torch.randn(2, 49, 24)).shape
    torch.Size([2, 49, 24])
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(dim, eps=1e-6)
        self.to_out = nn.Sequential(nn.Linear(dim, dim))

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        refuse_mask(attn_mask, is_causal)
        q, k, v = self.to_qkv(x).chunk(3, -1)
        q, k = self.q_norm(q), self.k_norm(k)
        o, _ = linear_attention(heads_of(q, self.heads), heads_of(k, self.heads), heads_of(v, self.heads))
        return self.to_out(o.flatten(2))


class SoftmaxAttention(nn.Module):
    """DeiT's softmax attention.

    >>> import torch, mhla.nn
    >>> mhla.nn.SoftmaxAttention(dim=24, heads=3)(torch.randn(2, 49, 24)).shape
    torch.Size([2, 49, 24])
    """

    def __init__(self, dim: int, heads: int, qkv_bias: bool = True):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        """attn_mask: as in torch's scaled_dot_product_attention, which then does the work."""
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(x).chunk(3, -1))
        if attn_mask is None:
            o = softmax_attention(q, k, v, causal=is_causal)
        elif is_causal:
            raise Error("attn_mask and is_causal are both given: expected one of them")
        else:
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            o = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask).transpose(1, 2)
        return self.proj(o.flatten(2))


def axial_rope(grid: Sequence[int], head_dim: int) -> tuple:
    """The rotary table of RALA's and MALA's backbone: the first half of a head turns with the row, the second with the
    column, by frequencies spaced over the closed interval [1, 1e-4]."""
    n = head_dim // 4
    theta = 10000.0 ** -torch.linspace(0, 1, n, dtype=torch.float64)
    rows = torch.arange(grid[0], dtype=torch.float64)[:, None, None] * theta
    columns = torch.arange(grid[1], dtype=torch.float64)[None, :, None] * theta
    angles = torch.cat([rows.expand(*grid, n), columns.expand(*grid, n)], -1).view(-1, 2 * n)
    return angles.cos().float(), angles.sin().float()


class VLTAttention(nn.Module):
    """Attention of the VLT backbone: qkvo as a 1x1 convolution, rotary, LePE, a gate without activation.

    Args:
        grid: rows and columns of tokens.
        blocks: pieces per axis; None makes it the softmax attention of stages 3 and 4.
        feature: "elu" or "relu" (+ feature_eps).
        kind: "mhla", "softmax", "rala" or "mala"; None: as blocks say.
        qk_norm: the eps of an RMS norm of q and k, None for none.

    >>> import torch, mhla.nn
    >>> mhla.nn.VLTAttention(dim=24, heads=2, grid=(6, 8), blocks=(3, 2))(torch.randn(2, 48, 24)).shape
    torch.Size([2, 48, 24])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int], blocks: Optional[Sequence[int]], *, gate: bool = True,
                 rope: bool = True, feature: str = "elu", lepe: int = 5, mix: str = "paper", den_eps: float = 1e-6,
                 kind: Optional[str] = None, qk_norm: Optional[float] = None, denominator: str = "eq4", feature_eps: float = 1e-6):
        super().__init__()
        self.heads, self.grid, self.blocks = heads, tuple(grid), None if blocks is None else tuple(blocks)
        self.kind = kind or ("softmax" if blocks is None else "mhla")
        self.gate, self.feature, self.den_eps, self.denominator, self.feature_eps = gate, feature, den_eps, denominator, feature_eps
        setattr(self, "qkvo" if gate else "qkv", nn.Conv2d(dim, (4 if gate else 3) * dim, 1))
        if qk_norm is not None:
            self.q_norm, self.k_norm = (nn.RMSNorm(dim, eps=qk_norm) for _ in range(2))
        self.qk_norm = qk_norm is not None
        self.lepe = nn.Conv2d(dim, dim, lepe, padding=lepe // 2, groups=dim) if lepe else None
        self.proj = nn.Conv2d(dim, dim, 1)
        if blocks is not None:
            self.piece_attn = Mixing(blocks, mix)
        self._rotary = Rotary(axial_rope, tuple(grid), dim // heads) if rope else None

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        """x [B,T,dim], raster order."""
        refuse_mask(attn_mask, is_causal)
        first = self.qkvo if self.gate else self.qkv
        parts = nn.functional.linear(x, first.weight.flatten(1), first.bias).chunk(4 if self.gate else 3, -1)
        normed = (self.q_norm(parts[0]), self.k_norm(parts[1])) if self.qk_norm else parts[:2]
        q, k, v = (heads_of(y, self.heads) for y in (*normed, parts[2]))
        rope = None if self._rotary is None else self._rotary(x.device)
        if self.kind == "softmax":
            o = softmax_attention(q, k, v, rope=rope, rope_style="interleaved")
        elif self.kind == "mhla":
            o = attention(q, k, v, self.piece_attn(), self.grid, self.blocks, feature=self.feature, den_eps=self.den_eps, rope=rope,
                          feature_eps=self.feature_eps, denominator=self.denominator, rope_style="interleaved")
        else:
            o = (mala_attention if self.kind == "mala" else rala_attention)(q, k, v, rope=rope, den_eps=self.den_eps)
        y = o.flatten(2)
        if self.lepe is not None:
            y = y + depthwise(self.lepe, parts[2], self.grid)
        if self.gate:
            y = y * parts[3]
        return nn.functional.linear(y, self.proj.weight.flatten(1), self.proj.bias)
