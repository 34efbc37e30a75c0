"""The whole VLT in torch, with the config.json of the program: for gradients, torch.compile, export.

Its parameters and buffers have the names of RALA's public code, so that a state_dict of RAVLT or MAViT, and a run's
model.safetensors, is its state_dict.
"""
from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model import load
from .image import VLTAttention


def _tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


class _Norm(nn.Module):
    """LayerNorm over the channels of a map."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class _FFN(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(dim, hidden, 1), nn.Conv2d(hidden, dim, 1)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)

    def forward(self, x: Tensor) -> Tensor:
        u = F.gelu(self.fc1(x))
        return self.fc2(u + self.dwconv(u))


class _Block(nn.Module):
    def __init__(self, c: Mapping[str, Any], s: int, grid: Sequence[int]):
        super().__init__()
        D = c["dims"][s]
        kind = c["attention"] if s < 2 else "softmax"
        if c["layer_scale"][s]:
            self.gamma_1, self.gamma_2 = (nn.Parameter(torch.full((1, D, 1, 1), float(c["layer_scale"][s]))) for _ in range(2))
        else:
            self.gamma_1 = self.gamma_2 = 1.0
        self.norm1 = _Norm(D)
        self.attn = VLTAttention(D, c["heads"][s], grid, c["blocks"][2 * s : 2 * s + 2] if kind == "mhla" else None, gate=c["gate"],
                                 rope=c["rope"], feature=c["phi"], lepe=c["lepe"], mix=c["mix"], den_eps=c["den_eps"], kind=kind,
                                 qk_norm=c["qk_norm_eps"] if c["qk_norm"] else None, denominator=c["denominator"],
                                 feature_eps=c["feature_eps"])
        self.norm2 = _Norm(D)
        self.ffn = _FFN(D, int(D * c["mlp_ratios"][s]))
        self.pos = nn.Conv2d(D, D, 3, padding=1, groups=D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos(x)
        x = x + self.gamma_1 * self.attn(_tokens(self.norm1(x))).transpose(1, 2).reshape(x.shape)
        return x + self.gamma_2 * self.ffn(self.norm2(x))


class _RoPE(nn.Module):
    """The frequencies of a stage, each twice: published state_dicts have them."""

    def __init__(self, head_dim: int):
        super().__init__()
        n = head_dim // 4
        angle = 1.0 / 10000 ** (torch.arange(n) / max(n - 1, 1))
        self.register_buffer("angle", angle.repeat_interleave(2))


class _Downsample(nn.Module):
    def __init__(self, dim: int, out: int):
        super().__init__()
        self.reduction, self.norm = nn.Conv2d(dim, out, 3, 2, 1), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.reduction(x))


class _Stage(nn.Module):
    def __init__(self, c: Mapping[str, Any], s: int, grid: Sequence[int]):
        super().__init__()
        dims = c["dims"]
        if c["rope"]:
            self.RoPE = _RoPE(dims[s] // c["heads"][s])
        self.blocks = nn.ModuleList(_Block(c, s, grid) for _ in range(c["depths"][s]))
        self.downsample = _Downsample(dims[s], dims[s + 1]) if s < 3 else None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class _Stem(nn.Module):
    def __init__(self, channels: int, dim: int):
        super().__init__()
        layers, sizes = [], [channels, dim // 2, dim // 2, dim // 2, dim]
        for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
            layers += [nn.Conv2d(a, b, 3, 2 if i in (0, 3) else 1, 1), nn.BatchNorm2d(b), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class VLT(nn.Module):
    """The model that a config.json describes: ``mhla.load(path).config``, or the file itself.

    :meth:`load` brings the weights along. The weights of a new one are torch's defaults: :func:`mhla.create` has the published
    initialisation. It has no drop path.

    >>> import torch, mhla, mhla.nn, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mhla.create("vlt_nano", classes=10).save(folder)
    ...     model, net = mhla.load(folder), mhla.nn.VLT.load(folder).eval()
    >>> images = torch.randn(2, 3, 32, 32)
    >>> torch.allclose(net(images), model(images), atol=1e-5)
    True
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        c, grid = config, [-(-side // 4) for side in config["image"]]
        self.patch_embed = _Stem(c["channels"], c["dims"][0])
        self.layers = nn.ModuleList()
        for s in range(4):
            self.layers.append(_Stage(c, s, grid))
            grid = [-(-side // 2) for side in grid]
        self.proj = nn.Conv2d(c["dims"][3], c["projection"], 1)
        self.norm = nn.BatchNorm2d(c["projection"])
        self.head = nn.Conv2d(c["projection"], c["classes"], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n,classes] of normalised images [n,C,H,W]."""
        x = self.patch_embed(images)
        for stage in self.layers:
            x = stage(x)
        x = F.silu(self.norm(self.proj(x)))
        return self.head(x.mean((2, 3), keepdim=True)).flatten(1)

    @classmethod
    def load(cls, path: Any) -> "VLT":
        """Of anything that :func:`mhla.load` opens."""
        model = load(path)
        net = cls(model.config)
        net.load_state_dict({name: torch.from_numpy(x) for name, x in model.state_dict().items()})
        return net
