"""A script written for flash-linear-attention, on a CPU: only its import has changed.

Trains two layers, GLA and Gated DeltaNet, to recall a value by its key: pairs come first, then one of the keys again.

    python fla_script.py            # needs torch
    python fla_script.py --steps 20
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

from mhla.ops.gated_delta_rule import chunk_gated_delta_rule  # was: from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from mhla.ops.gla import chunk_gla, fused_recurrent_gla  # was: from fla.ops.gla import ...

H, K, HIDDEN, SYMBOLS = 2, 16, 64, 16


class Layer(nn.Module):
    """A mixer and an MLP; `rule` is one of fla's operators."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule
        self.norm, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * H * K, bias=False), nn.Linear(H * K, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, H * K if rule is chunk_gla else H)
        self.beta = nn.Linear(HIDDEN, H)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 128), nn.SiLU(), nn.Linear(128, HIDDEN))
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 2, padding=1, groups=HIDDEN)

    def forward(self, x):
        h = self.norm(x)
        h = self.conv(h.transpose(1, 2))[..., :-1].transpose(1, 2)  # a token sees the one before it
        q, k, v = self.qkv(h).view(*h.shape[:2], H, 3 * K).split(K, -1)
        g = F.logsigmoid(self.gate(h)) / 16
        if self.rule is chunk_gla:
            o, _ = chunk_gla(q, F.silu(k), v, g.view_as(q))
        else:
            o, _ = chunk_gated_delta_rule(q, k, v, g, self.beta(h).sigmoid(), use_qk_l2norm_in_kernel=True)
        x = x + self.out(o.flatten(2))
        return x + self.mlp(self.norm2(x))


def batch(n=64, pairs=4):
    keys = torch.stack([torch.randperm(SYMBOLS)[:pairs] for _ in range(n)])
    values = torch.randint(SYMBOLS, (n, pairs)) + SYMBOLS
    asked = torch.randint(pairs, (n, 1))
    tokens = torch.cat([torch.stack([keys, values], 2).flatten(1), keys.gather(1, asked)], 1)
    return tokens, values.gather(1, asked)[:, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    for rule in (chunk_gla, chunk_gated_delta_rule):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(2 * SYMBOLS, HIDDEN), Layer(rule), Layer(rule), nn.Linear(HIDDEN, 2 * SYMBOLS))
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        for step in range(steps):
            tokens, answer = batch()
            loss = F.cross_entropy(model(tokens)[:, -1], answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 0:
                first = loss.item()
        tokens, answer = batch(512)
        right = (model(tokens)[:, -1].argmax(-1) == answer).float().mean().item()
        print(f"{rule.__name__}: loss {first:.2f} at first, {loss.item():.2f} at last; {100 * right:.0f} % of answers right")

    q, k, v, g = torch.randn(4, 1, 100, H, K)  # a prompt, then one token at a time
    g = F.logsigmoid(g)
    whole, _ = chunk_gla(q, k, v, g)
    o, state = chunk_gla(q[:, :90], k[:, :90], v[:, :90], g[:, :90], output_final_state=True)
    for t in range(90, 100):
        now = slice(t, t + 1)
        o, state = fused_recurrent_gla(q[:, now], k[:, now], v[:, now], g[:, now], initial_state=state, output_final_state=True)
    off = (o - whole[:, -1:]).abs().max()
    print(f"the last token, decoded, is {off:.1g} from the whole")
    if off > 1e-4:
        raise SystemExit("that is too far")


if __name__ == "__main__":
    main()
