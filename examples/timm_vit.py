"""MHLA in a ViT of timm: every attention is replaced by one that keeps its projections, and the model is trained on.

    pip install torch torchvision timm          # once, beside `pip install .` in this repository
    python examples/timm_vit.py [--model vit_tiny_patch16_224] [--image 64] [--blocks 2 2] [--pretrained] [--steps 30]

Toy data (stripes in four directions) stand for yours. --pretrained lets timm fetch published weights first.
"""
import argparse
import math

import torch
from torch import nn

import mhla

try:
    import timm
except ImportError as error:
    raise SystemExit(f"this example needs timm ({error}): pip install torch torchvision timm")


class MHLA(nn.Module):
    """Takes the place of timm's Attention: the same qkv and proj, MHLA between them.

    The patches are cut into blocks on their grid; tokens in front of them (a class token) make a block of their own, which
    takes from all blocks alike, and from which all blocks take as much as from themselves.
    """

    def __init__(self, old: nn.Module, grid, blocks, prefix: int):
        super().__init__()
        self.heads, self.qkv, self.proj = old.num_heads, old.qkv, old.proj
        self.q_norm, self.k_norm = old.q_norm, old.k_norm
        mix = torch.from_numpy(mhla.mix_init("paper", blocks))
        cuts = [[range(i * g // m, (i + 1) * g // m) for i in range(m)] for g, m in zip(grid, blocks)]
        parts = [[prefix + y * grid[1] + x for y in rows for x in columns] for rows in cuts[0] for columns in cuts[1]]
        if prefix:
            M = len(mix) + 1
            mix = torch.cat([torch.full((1, M), 1 / M), torch.cat([mix.diag()[:, None], mix], 1)])
            mix, parts = mix / mix.sum(1, keepdim=True), [list(range(prefix))] + parts
        self.mix = nn.Parameter(mix)
        self.register_buffer("offsets", torch.tensor([0] + [len(p) for p in parts]).cumsum(0))
        self.register_buffer("permutation", torch.tensor(sum(parts, [])))

    def forward(self, x, attn_mask=None, **_):
        assert attn_mask is None, "MHLA has no mask"
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # [B,T,H,K] each: slices, not copies
        o = mhla.attention(self.q_norm(q), self.k_norm(k), v, self.mix, block_offsets=self.offsets, permutation=self.permutation)
        return self.proj(o.flatten(2))


def stripes(n: int, side: int):
    """Images [n,3,side,side] and their classes."""
    labels = torch.arange(n) % 4
    angle, phase = labels * (math.pi / 4), torch.rand(n) * 2 * math.pi
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    wave = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y
    return (wave * 0.7 + phase[:, None, None]).sin()[:, None].expand(-1, 3, -1, -1) + 0.3 * torch.randn(n, 3, side, side), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--image", type=int, default=64)
    parser.add_argument("--blocks", type=int, nargs=2, default=(2, 2))
    parser.add_argument("--depth", type=int, default=0, help="keep only so many blocks of the model")
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = timm.create_model(args.model, img_size=args.image, num_classes=4, pretrained=args.pretrained)
    if args.depth:
        model.blocks = model.blocks[: args.depth]
    before = sum(p.numel() for p in model.parameters())
    for block in model.blocks:
        block.attn = MHLA(block.attn, model.patch_embed.grid_size, args.blocks, model.num_prefix_tokens)
    after = sum(p.numel() for p in model.parameters())
    print(f"{args.model}: {before:,} parameters, and {after - before:,} more in mixing matrices")

    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    losses = []
    for step in range(args.steps):
        images, labels = stripes(16, args.image)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for block in model.blocks:  # weights of a mixture stay in (0, 1]
            mhla.mix_clip(block.attn.mix)
        losses.append(loss.item())
        if step % 10 == 9:
            print(f"step {step + 1:3}  loss {losses[-1]:.3f}")
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")


if __name__ == "__main__":
    main()
