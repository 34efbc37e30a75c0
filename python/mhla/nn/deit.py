"""The whole DeiT in torch, by the same config.json as the program's: for gradients, torch.compile, export.

Its parameters have the names that the checkpoints have, so a run's model.safetensors is its state_dict.
"""
from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import attention, linear_attention, softmax_attention
from ..model import load
from ._parts import Mixing, depthwise, heads_of


def _local(conv: nn.Module, x: Tensor, grid: Sequence[int]) -> Tensor:
    """A depthwise convolution of patches on their grid; a class token in front of them gets nothing."""
    first = x.shape[1] - grid[0] * grid[1]
    return F.pad(depthwise(conv, x[:, first:], grid), (0, 0, first, 0))


class _Mixing(Mixing):
    """With a class token as block 0: it takes from all blocks alike, and they from it as from themselves."""

    def __init__(self, blocks: Sequence[int], init: str):
        super().__init__(blocks, init)
        mix = super().forward().detach()
        own, rows = mix.diag().unsqueeze(1), mix.sum(1, keepdim=True)
        M = len(mix) + 1
        mix = torch.cat([torch.full((1, M), 1 / M), torch.cat([own, mix], 1) * rows / (rows + own)])
        self.conv = nn.Conv2d(M, M, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(mix.view(M, M, 1, 1))


def _division(grid: Sequence[int], blocks: Sequence[int]) -> dict:
    """Of a class token and the patches behind it: token 0 is block 0."""
    cuts = [[range(i * g // m, (i + 1) * g // m) for i in range(m)] for g, m in zip(grid, blocks)]
    parts = [[0]] + [[1 + y * grid[1] + x for y in rows for x in columns] for rows in cuts[0] for columns in cuts[1]]
    offsets = torch.tensor([0] + [len(part) for part in parts]).cumsum(0)
    return dict(block_offsets=offsets, permutation=torch.tensor(sum(parts, []), dtype=torch.int32))


class _Attention(nn.Module):
    def __init__(self, c: Mapping[str, Any], grid: Sequence[int]):
        super().__init__()
        self.c, self.grid, D = c, grid, c["dim"]
        self.softmax = c["attention"] == "softmax"  # under timm's names
        if c["inner_norm"]:
            self.norm = nn.LayerNorm(D, eps=1e-5)
        self.add_module("qkv" if self.softmax else "to_qkv", nn.Linear(D, 3 * D, bias=c["qkv_bias"]))
        if c["qk_norm"]:
            self.q_norm, self.k_norm = (nn.RMSNorm(D, eps=c["qk_norm_eps"]) for _ in range(2))
        if c["lepe"]:
            self.lepe = nn.Conv2d(D, D, c["lepe"], padding=c["lepe"] // 2, groups=D)
        if c["attention"] == "mhla":
            self.piece_attn = (_Mixing if c["class_token"] else Mixing)(c["blocks"], c["mix"])
            self.division = _division(grid, c["blocks"]) if c["class_token"] else dict(grid=grid, blocks=c["blocks"])
        self.add_module("proj" if self.softmax else "to_out", nn.Linear(D, D) if self.softmax else nn.Sequential(nn.Linear(D, D)))

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        if c["inner_norm"]:
            x = self.norm(x)
        q, k, v = (self.qkv if self.softmax else self.to_qkv)(x).chunk(3, -1)
        if c["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        heads = [heads_of(y, c["heads"]) for y in (q, k, v)]
        eps = dict(feature_eps=c["feature_eps"], den_eps=c["den_eps"])
        if self.softmax:
            o = softmax_attention(*heads)
        elif c["attention"] == "linear":
            o = linear_attention(*heads, **eps)[0]
        else:
            o = attention(*heads, self.piece_attn(), denominator=c["denominator"], **self.division, **eps)
        o = o.flatten(2)
        if c["lepe"]:
            o = o + _local(self.lepe, v, self.grid)
        return (self.proj if self.softmax else self.to_out)(o)


class _MLP(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class _Block(nn.Module):
    def __init__(self, c: Mapping[str, Any], grid: Sequence[int], norm: Any):
        super().__init__()
        self.grid, D = grid, c["dim"]
        self.cpe = nn.Conv2d(D, D, c["cpe"], padding=c["cpe"] // 2, groups=D) if c["cpe"] else None
        self.norm1, self.norm2 = norm(), norm()
        self.attn = _Attention(c, grid)
        self.mlp = _MLP(D, int(D * c["mlp_ratio"]))

    def forward(self, x: Tensor) -> Tensor:
        if self.cpe is not None:
            x = x + _local(self.cpe, x, self.grid)
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _PatchEmbed(nn.Module):
    def __init__(self, channels: int, dim: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class DeiT(nn.Module):
    """The model that a config.json describes: ``mhla.load(path).config``, or the file itself.

    :meth:`load` brings the weights along; by hand ``net.load_state_dict(safetensors.torch.load_file(".../model.safetensors"))``
    does. The weights of a new one are torch's defaults: :func:`mhla.create` has the published initialisation.

    >>> import torch, mhla, mhla.nn, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mhla.create("deit_nano", classes=10).save(folder)
    ...     model, net = mhla.load(folder), mhla.nn.DeiT.load(folder)
    >>> images = torch.randn(2, 3, 28, 28)
    >>> torch.allclose(net(images), model(images), atol=1e-5)
    True
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        c, D = config, config["dim"]
        self.padding = [c["padding"][1]] * 2 + [c["padding"][0]] * 2
        grid = [(side + 2 * pad) // c["patch"] for side, pad in zip(c["image"], c["padding"])]
        norm = nn.LayerNorm if c["norm"] == "layer" else nn.RMSNorm

        def make() -> nn.Module:
            return norm(D, eps=c["norm_eps"])

        self.cls_token = nn.Parameter(torch.zeros(1, 1, D)) if c["class_token"] else None
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, grid[0] * grid[1] + c["class_token"], D), std=0.02))
        self.patch_embed = _PatchEmbed(c["channels"], D, c["patch"])
        self.blocks = nn.ModuleList(_Block(c, grid, make) for _ in range(c["depth"]))
        self.add_module("norm" if c["class_token"] else "fc_norm", make())
        self.head = nn.Linear(D, c["classes"])

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n,classes] of normalised images [n,C,H,W]."""
        x = self.patch_embed(F.pad(images, self.padding))
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.fc_norm(x.mean(1)) if self.cls_token is None else self.norm(x)[:, 0])

    @classmethod
    def load(cls, path: Any) -> "DeiT":
        """Of anything that :func:`mhla.load` opens."""
        model = load(path)
        net = cls(model.config)
        net.load_state_dict({name: torch.from_numpy(x) for name, x in model.state_dict().items()})
        return net
