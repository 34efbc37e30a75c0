"""What the modules share: holders of a mixing matrix and of a rotary table, block order, feature maps of the language model."""
from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from .._plans import Error
from ..mixing import mix_init


class Mixing(nn.Module):
    """A mixing matrix under the name that the released checkpoints give it: ``conv.weight`` [M,M,1,1]."""

    def __init__(self, blocks: Sequence[int], init: str = "paper", param: float = 0.0):
        super().__init__()
        M = math.prod(blocks)
        self.conv = nn.Conv2d(M, M, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.from_numpy(mix_init(init, blocks, param)).view(M, M, 1, 1))

    def forward(self) -> Tensor:
        return self.conv.weight.flatten(1)


class Rotary(nn.Module):
    """The table (cos, sin) that make(*args) gives. It follows its module to another device and stays float32. It is no buffer:
    .bfloat16() would round that, and after "meta" and .to_empty() it would hold anything."""

    def __init__(self, make: Callable[..., tuple], *args: Any):
        super().__init__()
        self.make, self.args = make, args
        self.table = self._made()

    def _made(self) -> tuple:
        with torch.device("cpu"):  # whatever torch.device a module is made under
            return self.make(*self.args)

    def _place(self, device: torch.device) -> None:
        if self.table[0].device != device:
            table = self._made() if self.table[0].is_meta else self.table
            self.table = tuple(t.to(device) for t in table)

    def _apply(self, fn: Any, recurse: bool = True) -> "Rotary":
        self._place(fn(self.table[0]).device)
        return self

    def forward(self, device: torch.device) -> tuple:
        self._place(device)
        return self.table


def to_raster(x: Tensor, grid: Sequence[int], blocks: Sequence[int]) -> Tensor:
    """[B,T,C] block after block -> [B,T,C] raster; even 2-D grids."""
    B, T, C = x.shape
    (gh, gw), (mh, mw) = grid, blocks
    return x.view(B, mh, mw, gh // mh, gw // mw, C).transpose(2, 3).reshape(B, T, C)


def to_blocks(x: Tensor, grid: Sequence[int], blocks: Sequence[int]) -> Tensor:
    """The way back."""
    B, T, C = x.shape
    (gh, gw), (mh, mw) = grid, blocks
    return x.view(B, mh, gh // mh, mw, gw // mw, C).transpose(2, 3).reshape(B, T, C)


def depthwise(conv: nn.Module, x: Tensor, grid: Sequence[int]) -> Tensor:
    """A depthwise convolution of tokens [B,T,C] on their raster grid."""
    B, T, C = x.shape
    return conv(x.transpose(1, 2).reshape(B, C, *grid)).flatten(2).transpose(1, 2)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[B,T,H*K] -> [B,T,H,K], a view."""
    return x.unflatten(-1, (heads, -1))


def refuse_mask(attn_mask: Optional[Tensor], is_causal: bool = False) -> None:
    """The arguments that timm's blocks pass to an attention; which token sees which is settled here."""
    if attn_mask is not None or is_causal:
        raise Error(f"{'attn_mask' if attn_mask is not None else 'is_causal'} is given: this attention has no mask")


class Hedgehog(nn.Module):
    """softmax([2Wx + 2b, -2Wx - 2b]), K -> 2K."""

    def __init__(self, dim: int):
        super().__init__()
        self.layer = nn.Linear(dim, dim)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = 2 * self.layer(x)
        return torch.cat([x, -x], -1).softmax(-1)


class T2R(nn.Module):
    """relu(Wx)."""

    def __init__(self, dim: int):
        super().__init__()
        self.layer = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


class ElementwiseProduct(nn.Module):
    """(W1 x + b1) * (W2 x + b2)."""

    def __init__(self, dim: int):
        super().__init__()
        self.layer1 = nn.Linear(dim, dim)
        self.layer2 = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(x) * self.layer2(x)


class DPFP(nn.Module):
    """z * roll(z, j), j = 1..nu, K -> 2 nu K. z is [relu(x), -relu(x)] as released, [relu(x), relu(-x)] as meant."""

    def __init__(self, released: bool = True, nu: int = 4):
        super().__init__()
        self.released, self.nu = released, nu

    def forward(self, x: Tensor) -> Tensor:
        z = torch.cat([x.relu(), -x.relu() if self.released else (-x).relu()], -1)
        return torch.cat([z * z.roll(j, -1) for j in range(1, self.nu + 1)], -1)


def feature_map(name: str, dim: int) -> Tuple[str, nn.Module, int]:
    """(feature of the operator, module before it, mapped size) of the language model's feature maps."""
    if name in ("relu", "elu", "identity"):
        return name, nn.Identity(), dim
    if name == "hedgehog":
        return "identity", Hedgehog(dim), 2 * dim
    if name == "t2r":
        return "identity", T2R(dim), dim
    if name == "elementwise_product":
        return "identity", ElementwiseProduct(dim), dim
    if name in ("dpfp", "dpfp_paper"):
        return "identity", DPFP(name == "dpfp"), 8 * dim
    raise ValueError(f"feature_map is {name!r}: expected relu, elu, identity, hedgehog, t2r, elementwise_product, dpfp or dpfp_paper")
