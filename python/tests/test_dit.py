"""Diffusion models: a state_dict of facebookresearch's DiT, written here from its definition, and what forward takes."""
import math

import numpy as np
import pytest

import mhla

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

D, HEADS, CLASSES = 384, 6, 10


def modulate(x, shift, scale):
    return F.layer_norm(x, (D,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def ada(n):
    return nn.Sequential(nn.SiLU(), nn.Linear(D, n * D))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.mlp = nn.ModuleDict(dict(fc1=nn.Linear(D, 4 * D), fc2=nn.Linear(4 * D, D)))
        self.adaLN_modulation = ada(6)

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, 1)
        x = x + gate1[:, None] * self.attn(modulate(x, shift1, scale1))
        return x + gate2[:, None] * self.mlp["fc2"](F.gelu(self.mlp["fc1"](modulate(x, shift2, scale2)), approximate="tanh"))


def positions(G):
    w = 1 / 10000 ** (torch.arange(D // 4, dtype=torch.float64) / (D // 4))
    row, column = (x.flatten()[:, None] * w for x in torch.meshgrid(*2 * [torch.arange(G, dtype=torch.float64)], indexing="ij"))
    return torch.cat([column.sin(), column.cos(), row.sin(), row.cos()], 1)[None].float()


class DiT(nn.Module):
    def __init__(self, depth=2, G=4):
        super().__init__()
        self.pos_embed = nn.Parameter(positions(G), requires_grad=False)
        self.x_embedder = nn.ModuleDict(dict(proj=nn.Conv2d(4, D, 2, 2)))
        self.t_embedder = nn.ModuleDict(dict(mlp=nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D))))
        self.y_embedder = nn.ModuleDict(dict(embedding_table=nn.Embedding(CLASSES + 1, D)))
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.final_layer = nn.ModuleDict(dict(linear=nn.Linear(D, 32), adaLN_modulation=ada(2)))

    def forward(self, x, t, y):
        angle = t[:, None].double() * torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float64) / 128)
        c = self.t_embedder["mlp"](torch.cat([angle.cos(), angle.sin()], 1).float()) + self.y_embedder["embedding_table"](y)
        h = self.x_embedder["proj"](x)
        B, _, H, W = h.shape
        h = h.flatten(2).transpose(1, 2) + (self.pos_embed if H * W == self.pos_embed.shape[1] else positions(H))
        for block in self.blocks:
            h = block(h, c)
        h = self.final_layer["linear"](modulate(h, *self.final_layer["adaLN_modulation"](c).chunk(2, 1)))
        return h.view(B, H, W, 2, 2, 8).permute(0, 5, 1, 3, 2, 4).reshape(B, 8, 2 * H, 2 * W)


@pytest.mark.parametrize("whole", [None, "model", "ema"])
def test_state_dict(tmp_path, whole):
    torch.manual_seed(0)
    theirs = DiT().eval()
    path = tmp_path / "DiT-S-2.pt"
    state = theirs.state_dict()
    other = {"model": {name: torch.zeros_like(x) for name, x in state.items()}} if whole == "ema" else {}
    torch.save({**other, whole: state, "opt": {"state": {}}} if whole else state, path)
    ours = mhla.load(path)
    assert ours.info["kind"] == "diffusion" and ours.info["parameters"] - ours.info["trainable"] == 16 * D
    t, y = torch.tensor([0.0, 500.0, 999.0]), torch.tensor([3, 7, CLASSES])
    for side in (8, 12):  # as in training, and another size
        x = torch.randn(3, 4, side, side)
        with torch.no_grad():
            want = theirs(x, t, y)
        got = ours(x, t, y)
        assert isinstance(got, torch.Tensor)
        assert float((got - want).abs().max()) < 2e-5 * float(want.abs().max())
    t = torch.tensor([0, 500, 512])  # which bfloat16 has
    assert torch.equal(ours(x, t.bfloat16(), y), ours(x, t, y))


def test_what_it_takes():
    model = mhla.create("dit_micro", depth=1, image=8, blocks=2, null_label=False)
    x, t, y = np.zeros((2, 3, 8, 12), np.float32), [1, 2], [0, 9]
    assert model(x, t, y).shape == (2, 3, 8, 12)
    assert model(x[:0], [], []).shape == (0, 3, 8, 12)
    for arguments, says in (((x,), "times and labels"), ((x, t, [0]), r"labels has shape \[1\]"), ((x[:, :2], t, y), "float32"),
                            ((x, t, [0, 10]), "10 classes and no label for none"), ((x, t, [0.5, 1]), "labels are float64"),
                            ((x, t, [0, 2**40]), "labels are int64"), ((x[..., :7], t, y), "width is 7")):
        with pytest.raises(mhla.Error, match=says):
            model(*arguments)
    with pytest.raises(mhla.Error, match="not a diffusion model"):
        mhla.create("deit_nano")(np.zeros((1, 3, 28, 28), np.float32), [1], [0])
