"""Attention modules of Wan2.1: MHLA (the released `mhla_uni`), softmax, cross and linear, under their own names."""
from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import Tensor, nn

from ..functional import attention, linear_attention, softmax_attention
from ..mixing import rope_table
from ._parts import Mixing, Rotary, depthwise, heads_of, refuse_mask


def _rope(grid: Sequence[int], head_dim: int, base: float = 10000.0) -> tuple:
    """Frames turn the first dims of a head, rows and columns 2 * (head_dim // 6) each: 44/42/42 of 128."""
    small = 2 * (head_dim // 6)
    cos, sin = rope_table(grid, (head_dim - 2 * small, small, small), base)
    return torch.from_numpy(cos), torch.from_numpy(sin)


class _WanBase(nn.Module):
    """q, k, v, o with biases, RMSNorm of q and k over all heads, the 3-D rotary table."""

    def __init__(self, dim: int, heads: int, grid: Sequence[int] | None, eps: float):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=eps), nn.RMSNorm(dim, eps=eps)
        self.grid = None if grid is None else tuple(grid)
        self._rotary = None if grid is None else Rotary(_rope, tuple(grid), dim // heads)

    def project(self, x: Tensor, context: Tensor | None = None) -> tuple:
        context = x if context is None else context
        q, k, v = self.norm_q(self.q(x)), self.norm_k(self.k(context)), self.v(context)
        return tuple(heads_of(y, self.heads) for y in (q, k, v))


class WanAttention(_WanBase):
    """MHLA of the released `mhla_uni`: relu + 1e-6, 3-D rotary, g_norm per head, perhaps a gate and LePE.

    Args:
        grid, blocks: frames, rows, columns of tokens, and the pieces of each; tokens are in raster order.
        gated, lepe: whether the checkpoint has ``g.weight`` and ``lepe.weight``.
        normalize: the released denominator (False in the released configs).

    >>> import torch, mhla.nn
    >>> layer = mhla.nn.WanAttention(dim=32, heads=2, grid=(3, 4, 6), blocks=(3, 2, 3))
    >>> layer(torch.randn(1, 72, 32)).shape
    torch.Size([1, 72, 32])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int], blocks: Sequence[int] = (3, 5, 10), *, gated: bool = False,
                 lepe: bool = False, normalize: bool = False, eps: float = 1e-6, mix: str = "released-linear"):
        super().__init__(dim, heads, grid, eps)
        self.blocks, self.denominator = tuple(blocks), "released" if normalize else "none"
        self.block_attn = Mixing(blocks, mix)
        self.g_norm = nn.RMSNorm(dim // heads, eps=eps)
        self.gated, self.local = gated, lepe
        if gated:
            self.g = nn.Linear(dim, dim)
        if lepe:
            self.lepe = nn.Conv3d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        refuse_mask(attn_mask, is_causal)
        q, k, v = self.project(x)
        o = attention(q, k, v, self.block_attn(), self.grid, self.blocks, denominator=self.denominator,
                      rope=self._rotary(x.device), rope_style="interleaved")
        y = self.g_norm(o).flatten(2)
        if self.gated:
            y = y * nn.functional.silu(self.g(x))
        if self.local:
            y = y + depthwise(self.lepe, v.flatten(2), self.grid)
        return self.o(y)


class WanSoftmaxAttention(_WanBase):
    """Wan's own self attention.

    >>> import torch, mhla.nn
    >>> mhla.nn.WanSoftmaxAttention(dim=32, heads=2, grid=(3, 4, 6))(torch.randn(1, 72, 32)).shape
    torch.Size([1, 72, 32])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int], eps: float = 1e-6):
        super().__init__(dim, heads, grid, eps)

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        refuse_mask(attn_mask, is_causal)
        q, k, v = self.project(x)
        return self.o(softmax_attention(q, k, v, rope=self._rotary(x.device), rope_style="interleaved").flatten(2))


class WanCrossAttention(_WanBase):
    """Wan's attention to the text; no rotary, no mask.

    >>> import torch, mhla.nn
    >>> mhla.nn.WanCrossAttention(dim=32, heads=2)(torch.randn(1, 72, 32), torch.randn(1, 7, 32)).shape
    torch.Size([1, 72, 32])
    """

    def __init__(self, dim: int, heads: int, eps: float = 1e-6):
        super().__init__(dim, heads, None, eps)

    def forward(self, x: Tensor, context: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        refuse_mask(attn_mask, is_causal)
        return self.o(softmax_attention(*self.project(x, context)).flatten(2))


class WanLinearAttention(_WanBase):
    """The released linear attention: rotary before relu, so it is computed outside the operator.

    >>> import torch, mhla.nn
    >>> mhla.nn.WanLinearAttention(dim=32, heads=2, grid=(3, 4, 6))(torch.randn(1, 72, 32)).shape
    torch.Size([1, 72, 32])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int], eps: float = 1e-6):
        super().__init__(dim, heads, grid, eps)

    def turn(self, x: Tensor) -> Tensor:
        a, b = x[..., 0::2], x[..., 1::2]
        cos, sin = (t[:, None] for t in self._rotary(x.device))  # float32, and so is the result
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, x: Tensor, attn_mask: Optional[Tensor] = None, is_causal: bool = False) -> Tensor:
        refuse_mask(attn_mask, is_causal)
        q, k, v = self.project(x)
        o, _ = linear_attention(self.turn(q), self.turn(k), v.float())
        return self.o(o.flatten(2).to(v.dtype))
