"""The whole DeiT in torch, by the same config.json as the program's: for gradients, torch.compile, export.

Its parameters have the names that the checkpoints have, so a run's model.safetensors is its state_dict.
"""
from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import (attention, focused_attention, inline_attention, linear_attention, mala_attention, rala_attention,
                          softmax_attention)
from ..model import load
from ._parts import Mixing, Rotary, depthwise, heads_of
from .image import axial_rope


def _local(conv: nn.Module, x: Tensor, grid: Sequence[int]) -> Tensor:
    """A depthwise convolution of patches on their grid; a class token in front of them gets nothing."""
    first = x.shape[1] - grid[0] * grid[1]
    return F.pad(depthwise(conv, x[:, first:], grid), (0, 0, first, 0))


def _linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Of a linear layer or of the 1x1 convolution that it may be."""
    return F.linear(x, layer.weight.flatten(1), layer.bias)


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


def _rope(grid: Sequence[int], head_dim: int, class_token: bool) -> tuple:
    cos, sin = axial_rope(grid, head_dim)
    if class_token:  # which does not turn
        cos, sin = F.pad(cos, (0, 0, 1, 0), value=1.0), F.pad(sin, (0, 0, 1, 0))
    return cos, sin


def _division(grid: Sequence[int], blocks: Sequence[int]) -> dict:
    """Of a class token and the patches behind it: token 0 is block 0."""
    cuts = [[range(i * g // m, (i + 1) * g // m) for i in range(m)] for g, m in zip(grid, blocks)]
    parts = [[0]] + [[1 + y * grid[1] + x for y in rows for x in columns] for rows in cuts[0] for columns in cuts[1]]
    with torch.device("cpu"):  # they are read, also where the module is made on "meta"
        offsets = torch.tensor([0] + [len(part) for part in parts]).cumsum(0)
        return dict(block_offsets=offsets, permutation=torch.tensor(sum(parts, []), dtype=torch.int32))


class _Attention(nn.Module):
    """MHLA and linear attention under the names of MHLA's release, the others under timm's."""

    def __init__(self, c: Mapping[str, Any], grid: Sequence[int]):
        super().__init__()
        self.c, self.grid, D, K = c, grid, c["dim"], c["dim"] // c["heads"]
        self.kind, self.gate, k = c["attention"], c.get("gate", False), c["lepe"]
        ours, convolved = self.kind in ("mhla", "linear"), self.kind in ("mala", "rala")

        def layer(rows: int, bias: bool) -> nn.Module:
            return nn.Conv2d(D, rows, 1, bias=bias) if convolved else nn.Linear(D, rows, bias=bias)

        if c["inner_norm"]:
            self.norm = nn.LayerNorm(D, eps=1e-5)
        self.first = "to_qkv" if ours else "qkvo" if self.gate else "qkv"
        self.add_module(self.first, layer((4 if self.gate else 3) * D, c["qkv_bias"]))
        if c["qk_norm"]:
            self.q_norm, self.k_norm = (nn.RMSNorm(D, eps=c["qk_norm_eps"]) for _ in range(2))
        if self.kind == "focused":
            self.scale = nn.Parameter(torch.zeros(1, 1, D))
            self.positional_encoding = nn.Parameter(torch.zeros(1, grid[0] * grid[1] + c["class_token"], D))
        if k and self.kind == "focused":
            self.dwc = nn.Conv2d(K, K, k, padding=k // 2, groups=K)
        elif k and self.kind == "inline":
            self.residual = nn.Sequential(nn.Conv1d(D, D, 1, groups=c["heads"]), nn.GELU(), nn.Conv1d(D, k * k * D, 1, groups=c["heads"]))
        elif k:
            self.lepe = nn.Conv2d(D, D, k, padding=k // 2, groups=D)
        if self.kind == "mhla":
            self.piece_attn = (_Mixing if c["class_token"] else Mixing)(c["blocks"], c["mix"])
            self.division = _division(grid, c["blocks"]) if c["class_token"] else dict(grid=grid, blocks=c["blocks"])
        self._rotary = Rotary(_rope, tuple(grid), K, bool(c["class_token"])) if c.get("rope") else None
        self.add_module("to_out" if ours else "proj", nn.Sequential(nn.Linear(D, D)) if ours else layer(D, True))

    def _operator(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        c = self.c
        heads = [heads_of(y, c["heads"]) for y in (q, k, v)]
        rope, den = None if self._rotary is None else self._rotary(q.device), dict(den_eps=c["den_eps"])
        if self.kind == "softmax":
            return softmax_attention(*heads)
        if self.kind == "linear":
            return linear_attention(*heads, feature_eps=c["feature_eps"], **den)[0]
        if self.kind == "focused":
            return focused_attention(*heads, self.scale.flatten(), power=c["power"], feature_eps=c["feature_eps"], **den)
        if self.kind == "inline":
            return inline_attention(*heads)
        if self.kind in ("mala", "rala"):
            return (mala_attention if self.kind == "mala" else rala_attention)(*heads, rope=rope, **den)
        return attention(*heads, self.piece_attn(), denominator=c["denominator"], feature_eps=c["feature_eps"], **self.division, **den)

    def _local(self, x: Tensor, v: Tensor) -> Tensor:
        """What a convolution makes of v: filters that heads share, or that each image predicts, or LePE."""
        c, (B, T, D) = self.c, v.shape
        if self.kind == "focused":
            shared = v.unflatten(-1, (c["heads"], -1)).transpose(1, 2).flatten(0, 1)  # [B*H,T,K]
            return _local(self.dwc, shared, self.grid).unflatten(0, (B, -1)).transpose(1, 2).flatten(2)
        if self.kind == "inline":
            k = c["lepe"]
            kernels = self.residual(x.mean(1).unsqueeze(-1)).view(B * D, 1, k, k)
            patches = v[:, T - self.grid[0] * self.grid[1] :].transpose(1, 2).reshape(1, B * D, *self.grid)
            y = F.conv2d(patches, kernels, padding=k // 2, groups=B * D).view(B, D, -1).transpose(1, 2)
            return F.pad(y, (0, 0, T - y.shape[1], 0))
        return _local(self.lepe, v, self.grid)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        if c["inner_norm"]:
            x = self.norm(x)
        q, k, v, *gate = _linear(getattr(self, self.first), x).split(c["dim"], -1)
        if c["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.kind == "focused":
            k = k + self.positional_encoding
        o = self._operator(q, k, v).flatten(2)
        if c["lepe"]:
            o = o + self._local(x, v)
        if gate:
            o = o * gate[0]
        return self.to_out(o) if self.kind in ("mhla", "linear") else _linear(self.proj, o)


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
