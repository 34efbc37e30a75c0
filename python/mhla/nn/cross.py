"""Cross attention with MHLA: queries on one grid, keys and values on another."""
from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import Tensor, nn

from ..functional import attention
from ..mixing import mix_init
from ._parts import heads_of


class CrossAttention(nn.Module):
    """Every block of queries reads its learned mixture of the summaries of another grid or sequence.

    Args:
        dim: width of the queries and of the result.
        grid, blocks: tokens and pieces per axis of the queries, 1 to 3 axes.
        key_grid, key_blocks: the same of the context.
        context_dim: width of the context; default: dim.
        mix: initialisation of the mixing matrix ``mix`` [Mq,Mk], a name of :func:`mhla.mix_init`.
        per_head: one matrix for each head, [heads,Mq,Mk].

    >>> import torch, mhla.nn
    >>> layer = mhla.nn.CrossAttention(24, 3, (8, 8), (2, 2), key_grid=(10,), key_blocks=(5,), context_dim=16, mix="uniform")
    >>> layer(torch.randn(2, 64, 24), torch.randn(2, 10, 16)).shape
    torch.Size([2, 64, 24])
    """

    def __init__(self, dim: int, heads: int, grid: Sequence[int], blocks: Sequence[int], key_grid: Sequence[int],
                 key_blocks: Sequence[int], *, context_dim: Optional[int] = None, mix: str = "paper", per_head: bool = False,
                 bias: bool = False):
        super().__init__()
        self.heads, self.grid, self.blocks = heads, tuple(grid), tuple(blocks)
        self.key_grid, self.key_blocks = tuple(key_grid), tuple(key_blocks)
        self.to_q = nn.Linear(dim, dim, bias=bias)
        self.to_kv = nn.Linear(context_dim or dim, 2 * dim, bias=bias)
        self.to_out = nn.Linear(dim, dim)
        start = torch.from_numpy(mix_init(mix, self.blocks, key_blocks=self.key_blocks))
        self.mix = nn.Parameter(start.repeat(heads, 1, 1) if per_head else start)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """x [B,Tq,dim], context [B,Tk,context_dim], both in raster order."""
        k, v = self.to_kv(context).chunk(2, -1)
        o = attention(heads_of(self.to_q(x), self.heads), heads_of(k, self.heads), heads_of(v, self.heads), self.mix, self.grid,
                      self.blocks, key_grid=self.key_grid, key_blocks=self.key_blocks)
        return self.to_out(o.flatten(2))
