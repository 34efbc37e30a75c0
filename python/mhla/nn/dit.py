"""The whole DiT in torch, by the same config.json as the program's: for gradients, torch.compile, export.

Its parameters have the names that the checkpoints have: those of facebookresearch's DiT for softmax attention, of MHLA's
release for the others. So a run's model.safetensors, or a published checkpoint, is its state_dict.
"""
from __future__ import annotations

import math
from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import attention, linear_attention, softmax_attention
from ..model import Model, Path, load
from ._parts import Mixing, depthwise, heads_of

_FREQUENCIES = 256  # numbers that a time becomes


def _positions(grid: Sequence[int], dim: int) -> Tensor:
    """[1,T,dim]: the first half of a row tells the column, the second the row, each [sin, cos] of dim/4 frequencies."""
    frequencies = 10000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    rows, columns = (torch.arange(side, dtype=torch.float64)[:, None] * frequencies for side in grid)
    row, column = torch.cat([rows.sin(), rows.cos()], 1), torch.cat([columns.sin(), columns.cos()], 1)
    both = torch.cat([column[None].expand(grid[0], -1, -1), row[:, None].expand(-1, grid[1], -1)], -1)
    return both.reshape(1, -1, dim).float()


def _block_order(grid: Sequence[int], blocks: Sequence[int]) -> Tensor:
    """The tokens block after block, as the released code has them."""
    cuts = [[range(i * g // m, (i + 1) * g // m) for i in range(m)] for g, m in zip(grid, blocks)]
    return torch.tensor([y * grid[1] + x for rows in cuts[0] for columns in cuts[1] for y in rows for x in columns])


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def _ada(dim: int, parts: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(dim, parts * dim))


class _Attention(nn.Module):
    def __init__(self, c: Mapping[str, Any]):
        super().__init__()
        D, self.c, self.kind = c["dim"], c, c["attention"]
        if self.kind not in ("mhla", "linear", "softmax"):
            raise ValueError(f"attention is {self.kind!r}: expected mhla, linear or softmax")
        ours = self.kind != "softmax"
        if c["inner_norm"]:
            self.norm = nn.LayerNorm(D, eps=1e-5)
        self.add_module("to_qkv" if ours else "qkv", nn.Linear(D, 3 * D, bias=c["qkv_bias"]))
        if c["qk_norm"]:
            self.q_norm, self.k_norm = (nn.RMSNorm(D, eps=c["qk_norm_eps"]) for _ in range(2))
        if c["lepe"]:
            self.lepe = nn.Conv2d(D, D, c["lepe"], padding=c["lepe"] // 2, groups=D)
        if self.kind == "mhla":
            self.piece_attn = Mixing(c["blocks"], c["mix"])
        if c["gate"]:
            self.g = nn.Linear(D, D)
        if c["gate"] and c["gate_norm"]:
            self.g_norm = nn.RMSNorm(D // c["heads"], eps=1e-6)
        out = nn.Linear(D, D)
        self.add_module("to_out" if ours else "proj", nn.Sequential(out, nn.Dropout(c["dropout"])) if ours else out)

    def forward(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        c, H = self.c, self.c["heads"]
        if c["inner_norm"]:
            x = self.norm(x)
        q, k, v = (self.qkv if self.kind == "softmax" else self.to_qkv)(x).chunk(3, -1)
        if c["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        heads = [heads_of(y, H) for y in (q, k, v)]
        if self.kind == "softmax":
            o = softmax_attention(*heads)
        elif self.kind == "linear":
            o = linear_attention(*heads, feature_eps=c["feature_eps"], den_eps=c["den_eps"])[0]
        else:
            o = attention(*heads, self.piece_attn(), grid, c["blocks"], denominator=c["denominator"],
                          feature_eps=c["feature_eps"], den_eps=c["den_eps"])
        if c["gate"]:
            o = (self.g_norm(o) if c["gate_norm"] else o) * F.silu(heads_of(self.g(x), H))
        y = o.flatten(2)
        if c["lepe"]:
            y = y + depthwise(self.lepe, v, grid)
        if self.kind == "softmax":
            return F.dropout(self.proj(y), c["dropout"], self.training)
        return self.to_out(y)


class _MLP(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class _Block(nn.Module):
    def __init__(self, c: Mapping[str, Any]):
        super().__init__()
        D, self.c = c["dim"], c
        self.attn, self.mlp = _Attention(c), _MLP(D, int(D * c["mlp_ratio"]))
        self.adaLN_modulation = _ada(D, 6)
        if c["cpe"] != "none":
            self.dw_conv = nn.Conv2d(D, D, 3, padding=1, groups=D)

    def forward(self, x: Tensor, c: Tensor, grid: Sequence[int]) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, 1)
        x = x + gate1[:, None] * self.attn(_modulate(x, shift1, scale1), grid)
        x = x + gate2[:, None] * self.mlp(_modulate(x, shift2, scale2))
        if self.c["cpe"] == "grid":
            x = depthwise(self.dw_conv, x, grid)
        elif self.c["cpe"] == "folded":  # as released, on the list of tokens block after block, folded into a square
            order = _block_order(grid, self.c["blocks"]).to(x.device)
            side = math.isqrt(x.shape[1])
            x = depthwise(self.dw_conv, x[:, order], (side, side))[:, order.argsort()]
        return x


class _Time(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(_FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        half = _FREQUENCIES // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float64, device=t.device) / half)
        angle = t.double()[:, None] * frequencies  # in double: float32 would be off by 3e-5 at the last steps
        return self.mlp(torch.cat([angle.cos(), angle.sin()], 1).to(self.mlp[0].weight.dtype))


class _Labels(nn.Module):
    def __init__(self, rows: int, dim: int):
        super().__init__()
        self.embedding_table = nn.Embedding(rows, dim)

    def forward(self, y: Tensor) -> Tensor:
        return self.embedding_table(y)


class _Patches(nn.Module):
    def __init__(self, channels: int, dim: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class _Final(nn.Module):
    def __init__(self, dim: int, out: int):
        super().__init__()
        self.linear, self.adaLN_modulation = nn.Linear(dim, out), _ada(dim, 2)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.linear(_modulate(x, *self.adaLN_modulation(c).chunk(2, 1)))


class DiT(nn.Module):
    """The diffusion transformer that a config.json describes: ``mhla.load(path).config``, or the file itself.

    ``net(x, t, y)`` is called as facebookresearch's. :meth:`load` brings the weights along; by hand
    ``net.load_state_dict(...)`` takes a published checkpoint. The weights of a new one are torch's defaults:
    ``DiT.load(mhla.create("dit_nano"))`` has the published initialisation.

    >>> import torch, mhla, mhla.nn
    >>> model = mhla.create("dit_micro", depth=1)
    >>> net = mhla.nn.DiT.load(model)
    >>> x, t, y = torch.randn(2, 3, 32, 32), torch.tensor([10.0, 900.0]), torch.tensor([3, 10])
    >>> torch.allclose(net(x, t, y), model(x, t, y), atol=1e-5)
    True
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        if config.get("model_type", "mhla_dit") != "mhla_dit":
            raise ValueError(f"a config of {config['model_type']}: mhla.nn.DiT takes one of mhla_dit")
        c, D = config, config["dim"]
        self.patch, self.channels = c["patch"], c["channels"]
        self.grid = [side // c["patch"] for side in c["image"]]
        self.pos_embed = nn.Parameter(_positions(self.grid, D), requires_grad=False)
        self.x_embedder = _Patches(c["channels"], D, c["patch"])
        self.t_embedder = _Time(D)
        self.y_embedder = _Labels(c["classes"] + bool(c["null_label"]), D)
        self.blocks = nn.ModuleList(_Block(c) for _ in range(c["depth"]))
        self.final_layer = _Final(D, c["patch"] ** 2 * c["channels"] * (2 if c["learn_sigma"] else 1))

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """The answer [n,C,H,W], with learned sigma [n,2C,H,W], to noisy x [n,C,H,W] at times t [n] (0 to 1000) with labels y
        [n]; the number of classes stands for none. H and W are any multiples of the patch."""
        p, (B, _, height, width) = self.patch, x.shape
        if height % p or width % p:
            raise ValueError(f"x has shape {list(x.shape)}: height and width are multiples of the patch, {p}")
        grid = [height // p, width // p]
        position = self.pos_embed if grid == self.grid else _positions(grid, self.pos_embed.shape[-1]).to(self.pos_embed)
        c = self.t_embedder(t) + self.y_embedder(y)
        h = self.x_embedder(x) + position
        for block in self.blocks:
            h = block(h, c, grid)
        h = self.final_layer(h, c).view(B, *grid, p, p, -1)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(B, -1, height, width)

    @classmethod
    def load(cls, path: Union[Path, Model], weights: Optional[str] = None) -> "DiT":
        """Of anything that :func:`mhla.load` opens, or of a model in hand. In evaluation mode; ``net.train()`` brings the
        dropout of a config back."""
        model = path if isinstance(path, Model) else load(path, weights)
        if model.info["kind"] != "diffusion":
            raise ValueError(f"{model.info['name']} is not a diffusion model: mhla.nn.DiT takes one")
        net = cls(model.config)
        net.load_state_dict({name: torch.from_numpy(x) for name, x in model.state_dict().items()})
        return net.eval()
