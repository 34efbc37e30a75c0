"""MHLA in SANA's transformer as diffusers has it: the weights stay, the linear attention of every block becomes MHLA.

    pip install torch diffusers                 # once, beside `pip install .` in this repository
    python examples/sana_diffusers.py [--transformer DIR] [--size 16] [--blocks 4 4] [--steps 40] [--out DIR]

DIR is the folder `transformer` of a SANA pipeline; without one a small model is made. A mixing matrix of ones gives SANA's own
output. From there the matrices are trained, here to make one fixed latent out of noise: your latents and texts go in its place.
"""
import argparse

import torch
from torch import nn

import mhla

try:
    from diffusers import SanaTransformer2DModel
except ImportError as error:
    raise SystemExit(f"this example needs diffusers ({error}): pip install torch diffusers")

SMALL = dict(in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=2, num_cross_attention_heads=2,
             cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=24, mlp_ratio=2.0, sample_size=16)


class Mixture(nn.Module):
    """Holds the matrix under the name that the released checkpoints of MHLA give it: piece_attn.conv.weight, [M,M,1,1]."""

    def __init__(self, mix: torch.Tensor):
        super().__init__()
        self.conv = nn.Conv2d(*mix.shape, 1, bias=False)
        self.conv.weight.data = mix[:, :, None, None].clone()


class Processor:
    """Takes the place of SanaLinearAttnProcessor2_0: the same projections, MHLA between them."""

    def __init__(self, blocks, place: dict):
        self.blocks, self.place = blocks, place  # `place` is told the grid of tokens before each forward pass

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):
        q, k, v = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
        q, k = attn.norm_q(q) if attn.norm_q else q, attn.norm_k(k) if attn.norm_k else k
        q, k, v = (x.unflatten(-1, (attn.heads, -1)) for x in (q, k, v))
        mix = attn.piece_attn.conv.weight[:, :, 0, 0]
        o = mhla.attention(q, k, v, mix, grid=self.place["grid"], blocks=self.blocks, feature_eps=0.0, den_eps=1e-15)
        return attn.to_out[1](attn.to_out[0](o.flatten(2)))


def with_mhla(model, blocks, mix: torch.Tensor) -> list:
    """Changes the model; its mixing matrices."""
    place = {}

    def tell(_, inputs, named):
        latents = named["hidden_states"] if "hidden_states" in named else inputs[0]
        place["grid"] = [n // model.config.patch_size for n in latents.shape[-2:]]

    model.register_forward_pre_hook(tell, with_kwargs=True)
    for block in model.transformer_blocks:
        block.attn1.piece_attn = Mixture(mix)
        block.attn1.set_processor(Processor(blocks, place))
    return [block.attn1.piece_attn.conv.weight for block in model.transformer_blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transformer", help="the folder of published weights")
    parser.add_argument("--size", type=int, default=16, help="sides of the latents")
    parser.add_argument("--blocks", type=int, nargs=2, default=(4, 4))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", help="save the model here")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = SanaTransformer2DModel.from_pretrained(args.transformer) if args.transformer else SanaTransformer2DModel(**SMALL)
    c = model.config
    latent = torch.randn(2, c.in_channels, args.size, args.size)
    text, times = torch.randn(2, 7, c.caption_channels), torch.tensor([900.0, 100.0])
    with torch.no_grad():
        before = model(latent, text, times).sample
        mixes = with_mhla(model, args.blocks, torch.ones(args.blocks[0] * args.blocks[1], args.blocks[0] * args.blocks[1]))
        error = (model(latent, text, times).sample - before).abs().max() / before.abs().max()
    print(f"a mixing matrix of ones: {error:.1e} from SANA's own output")

    data = torch.randn(1, c.in_channels, args.size, args.size)
    for mix in mixes:  # the matrix that the paper begins with: weights fall with the distance of blocks
        mix.data = torch.from_numpy(mhla.mix_init("paper", args.blocks))[:, :, None, None].clone()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    losses = []
    for step in range(args.steps):
        sigma, noise = torch.rand(4, 1, 1, 1), torch.randn(4, *data.shape[1:])
        x = (1 - sigma) * data + sigma * noise
        velocity = model(x, text[:1].expand(4, -1, -1), 1000 * sigma.flatten()).sample
        loss = (velocity - (noise - data)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for mix in mixes:  # weights of a mixture stay in (0, 1]
            mhla.mix_clip(mix.detach()[:, :, 0, 0])
        losses.append(loss.item())
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    print(f"loss {first:.3f} at first, {last:.3f} at last")
    if args.out:
        model.save_pretrained(args.out)
        print(f"saved in {args.out}")


if __name__ == "__main__":
    main()
