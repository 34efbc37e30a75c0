"""The operators in plain PyTorch, with the argument list of the ops of _torch.py.

For tensors that the library's kernels cannot take: those on other devices than the CPU, and those whose derivatives are
asked for in a way that only PyTorch's own operations know (forward mode, vmap, second derivatives). Nothing of size T*T is
made, except by softmax attention where it has to be differentiated twice.

Arithmetic is float32; results have the dtype of q. Letters as in mhla.h: i, e count chunks, s, t tokens of one of them,
g key/value heads, r the query heads of one, m, n blocks and their tokens.
"""
from __future__ import annotations

import functools
import warnings
from typing import List, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ._carry import ends_of
from ._plans import Options

_noted = False


def note(device: torch.device, how: str = "computed by plain PyTorch") -> None:
    """Says once in a process that the library's own kernels are not at work, or have to be fed from elsewhere."""
    global _noted
    if not _noted:
        _noted = True
        warnings.warn(f"mhla has kernels for the CPU only: tensors on {device} are {how}", stacklevel=7)


# ---- Parts that the operators share ----------------------------------------------------------------------------------

def _feature(x: Tensor, o: Options) -> Tensor:
    x = x.float()
    if o.feature == "relu":
        return x.relu() + o.feature_eps
    return F.elu(x) + 1 if o.feature == "elu" else x


def _rotate(x: Tensor, rope: Optional[tuple], style: str, first: int = 0) -> Tensor:
    """x [B,T,H,K], token t by row first + t; a row before 0 belongs to a query that sees nothing."""
    if rope is None:
        return x
    T, n = x.shape[1], rope[0].shape[1]
    if first < 0:
        return torch.cat([x[:, :-first], _rotate(x[:, -first:], rope, style)], 1)
    cos, sin = (t[first : first + T, None] for t in rope)
    turned, rest = x[..., : 2 * n], x[..., 2 * n :]
    a, b = (turned[..., :n], turned[..., n:]) if style == "half" else (turned[..., 0::2], turned[..., 1::2])
    both = a * cos - b * sin, a * sin + b * cos
    turned = torch.cat(both, -1) if style == "half" else torch.stack(both, -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def _second(q: Tensor, k: Tensor, q2: Optional[Tensor], k2: Optional[Tensor], o: Options) -> tuple:
    """Features for the denominator: those of q and k before rotary, or those of the second pair."""
    return (q, k) if q2 is None or k2 is None else (_feature(q2, o), _feature(k2, o))


# ---- Bidirectional MHLA and linear attention ---------------------------------------------------------------------------

@functools.lru_cache(maxsize=64)
def _division(grid: tuple, blocks: tuple, order: str, offsets: Optional[bytes], permutation: Optional[bytes]) -> tuple:
    """(tokens of each block [M,n], which of those are none, or None; place of each token in [M*n]). By NumPy: a tensor that
    is made inside a transformation must not be kept."""
    if offsets is None:
        ids = np.zeros((), np.int64)
        for g, m in zip(grid, blocks):
            cuts = [i * g // m for i in range(1, m)]
            ids = ids[..., None] * m + np.searchsorted(cuts, np.arange(g), side="right")
        ids = ids.ravel() if order == "raster" else np.sort(ids, None)
        members, sizes = np.argsort(ids, kind="stable"), np.bincount(ids)
    else:
        ends = np.frombuffer(offsets, np.int64)
        sizes = np.diff(ends)
        members = np.arange(ends[-1]) if permutation is None else np.frombuffer(permutation, np.int32).astype(np.int64)
    n = int(sizes.max())
    index, none = np.zeros((len(sizes), n), np.int64), np.ones((len(sizes), n), bool)
    place = np.empty(len(members), np.int64)
    for b, part in enumerate(np.split(members, np.cumsum(sizes)[:-1])):
        index[b, : len(part)], none[b, : len(part)] = part, False
        place[part] = b * n + np.arange(len(part))
    return index, none if none.any() else None, place


def _bidirectional(q, k, v, mix, q2, k2, rope, key_rope, o: Options, queries: tuple, keys: tuple) -> Tensor:
    scale = o.scale or 1.0
    fq, fk = _feature(q, o), _feature(k, o)
    dq, dk = _second(fq, fk, q2, k2, o)
    m = mix.expand(q.shape[2], *mix.shape[-2:]) if mix.dim() == 2 else mix
    _, none, place = queries

    def cut(x: Tensor, division: tuple) -> Tensor:
        index, none, _ = division
        x = x.float()[:, index]  # [B,M,n,H,*]
        return x if none is None else x.masked_fill(none[..., None, None], 0.0)

    S = torch.einsum("bmnhk,bmnhv->bmhkv", cut(_rotate(fk, key_rope, o.rope), keys), cut(v, keys))
    y = scale * torch.einsum("binhk,him,bmhkv->binhv", cut(_rotate(fq, rope, o.rope), queries), m, S)
    if o.denominator != "none":
        dq, z = cut(dq, queries), cut(dk, keys).sum(2)
        if o.denominator == "eq4":
            den = torch.einsum("binhk,him,bmhk->binh", dq, m, z)
        else:  # the query at the same place of block m
            den = torch.einsum("him,bmnh->binh", m, torch.einsum("bmnhk,bmhk->bmnh", dq, z))
        den = scale * den[..., None] + o.den_eps
        y = y / (den if none is None else den.masked_fill(none[..., None, None], 1.0))
    return y.flatten(1, 2)[:, place]


# ---- Causal MHLA and causal linear attention ---------------------------------------------------------------------------

def _weights(mix: Tensor, i: Tensor, b: Tensor) -> Tensor:
    """[.,I,E]: how chunk i weighs chunk b, 0 where b comes later. Beyond M it goes by distance."""
    M = mix.shape[-1]
    i = i[:, None]
    column = torch.where(i < M, b.clamp(max=M - 1), (M - 1 - (i - b)).clamp(0, M - 1))
    return mix[..., i.clamp(max=M - 1), column].masked_fill(b > i, 0.0)


def _causal(q, k, v, mix, q2, k2, state, z, rope, past: int, kept: int, o: Options, C: int) -> tuple:
    """One batch of sequences; (o, summaries, sums of keys), the last `kept` of them. mix None: every weight is 1."""
    (B, T, H, K), G = q.shape, k.shape[2]
    scale, R = o.scale or K**-0.5, H // G
    fq, fk = _feature(q, o), _feature(k, o)
    dq, dk = _second(fq, fk, q2, k2, o)
    linear = mix is None
    first = 0 if linear else past // C
    lead = 0 if linear else past - first * C  # tokens of the open chunk that came before
    n = (lead + T + C - 1) // C

    def cut(x: Tensor, *heads: int) -> Tensor:
        return F.pad(x.float(), (0, 0, 0, 0, lead, n * C - lead - T)).unflatten(1, (n, C)).unflatten(3, heads)

    rq, rk = _rotate(fq, rope, o.rope, past), _rotate(fk, rope, o.rope, past)
    qc, kc, vc = cut(rq, G, R), cut(rk, G), cut(v, G)  # [B,n,C,G,R,K], [B,n,C,G,*]
    S = torch.einsum("bitgk,bitgv->bigkv", kc, vc)
    before = 0 if state is None else state.shape[1]
    i = torch.arange(first, first + n, device=q.device)
    # a list's entry stands for the chunk with the largest number in it
    b = torch.arange((past + C - 1) // C - before, (past + C - 1) // C, device=q.device)
    if linear:
        W = q.new_ones(1, 1, n, before + n, dtype=torch.float32)
        W[..., before:] = W[..., before:].tril(-1)
        own = q.new_ones(1, 1, n, dtype=torch.float32)
    else:
        m = mix.float().unflatten(0, (G, R)) if mix.dim() == 3 else mix.float()[None, None]
        W = torch.cat([_weights(m, i, b), _weights(m, i, i).tril(-1)], -1)
        own = _weights(m, i, i).diagonal(dim1=-2, dim2=-1)  # [.,.,n]
    all_S = S if state is None else torch.cat([state, S], 1)

    def mixed(x: Tensor, y: Tensor, values: Tensor, summaries: Tensor) -> Tensor:
        """What queries x [b,i,s,g,r,k] take from the summaries of keys and values, and from the keys y of their own chunk."""
        P = torch.einsum("grie,begkv->bigrkv", W, summaries)
        scores = torch.einsum("bisgrk,bitgk->bigrst", x, y).tril() * own.permute(2, 0, 1)[:, :, :, None, None]
        return torch.einsum("bisgrk,bigrkv->bisgrv", x, P) + torch.einsum("bigrst,bitgv->bisgrv", scores, values)

    y = scale * mixed(qc, kc, vc, all_S)
    zs = None
    if o.denominator != "none":
        dqc, dkc = cut(dq, G, R), cut(dk, G)
        zs = dkc.sum(2)[..., None]  # [B,n,G,K,1]
        all_z = zs if z is None else torch.cat([z[..., None], zs], 1)
        ones = torch.ones_like(vc[..., :1])
        y = y / (scale * mixed(dqc, dkc, ones, all_z) + o.den_eps)
        zs = _kept(all_z, before, lead, kept, linear)[..., 0]
    y = y.flatten(1, 2)[:, lead : lead + T].flatten(2, 3)
    return y, _kept(all_S, before, lead, kept, linear), zs


def _kept(every: Tensor, before: int, lead: int, kept: int, linear: bool) -> Tensor:
    """The final list: what is in front of its last `kept` - 1 summaries is one sum."""
    if linear:
        return every.sum(1)
    if lead and every.shape[1] > before:  # the open chunk has gone on
        whole = every[:, before - 1 : before + 1].sum(1, keepdim=True)
        every = torch.cat([every[:, : before - 1], whole, every[:, before + 1 :]], 1)
    more = every.shape[1] - kept
    return every if more <= 0 else torch.cat([every[:, : more + 1].sum(1, keepdim=True), every[:, more + 1 :]], 1)


def _causal_call(q, k, v, mix, q2, k2, state, z, rope, ends: Optional[List[int]], past: int, o: Options) -> tuple:
    """Batches, or packed sequences one by one, whose states are filled up with zeros."""
    linear = mix is None
    M = 1 if linear else mix.shape[-1]
    C = 64 if linear else (o.max_tokens + M - 1) // M if o.beyond == "chunk" else o.chunk or 64
    if linear and state is not None:
        state, z = state[:, None], None if z is None else z[:, None]

    def length(tokens: int) -> int:
        n = (tokens + C - 1) // C
        return torch.sym_min(n, M) if o.beyond == "clamp" else n

    if ends is None:
        return _causal(q, k, v, mix, q2, k2, state, z, rope, past, length(past + q.shape[1]), o, C)
    parts = []
    for s, (a, b) in enumerate(zip(ends, ends[1:])):
        one = [None if x is None else x[:, a:b] for x in (q, k, v, q2, k2)]
        states = [None if x is None else x[s : s + 1] for x in (state, z)]
        y, S, zs = _causal(*one[:3], mix, *one[3:], *states, rope, past, length(past + b - a), o, C)
        if not linear:
            more = length(past + q.shape[1]) - S.shape[1]
            S = F.pad(S, (0, 0, 0, 0, 0, 0, 0, more))
            zs = None if zs is None else F.pad(zs, (0, 0, 0, 0, 0, more))
        parts.append((y, S, zs))
    ys, Ss, zss = zip(*parts)
    return torch.cat(ys, 1), torch.cat(Ss), None if zss[0] is None else torch.cat(zss)


# ---- Softmax attention -------------------------------------------------------------------------------------------------

def _softmax(q, k, v, rope, o: Options, fused: bool) -> Tensor:
    (_, Tq, H, K), (_, Tk, G, _) = q.shape, k.shape
    scale = o.scale or K**-0.5
    q, k = _rotate(q.float(), rope, o.rope, Tk - Tq), _rotate(k.float(), rope, o.rope)
    blind = max(Tq - Tk, 0) if o.causal else 0  # queries that see nothing
    q = q[:, blind:].transpose(1, 2)
    k, v = (x.float().transpose(1, 2).repeat_interleave(H // G, 1) for x in (k, v))
    seen = None
    if o.causal:
        t, u = torch.arange(blind, Tq, device=q.device)[:, None] + Tk - Tq, torch.arange(Tk, device=q.device)
        seen = (u <= t) & (u > t - o.window) if o.window else u <= t
    if fused:
        y = F.scaled_dot_product_attention(q, k, v, seen, scale=scale)
    else:
        scores = scale * q @ k.transpose(-1, -2)
        y = (scores if seen is None else scores.masked_fill(~seen, float("-inf"))).softmax(-1) @ v
    return F.pad(y.transpose(1, 2), (0, 0, 0, 0, blind, 0))


# ---- Linear attentions of vision models --------------------------------------------------------------------------------

def _focused(q, k, v, focus, o: Options) -> Tensor:
    def f(x: Tensor) -> Tensor:
        a = (x.float().relu() + o.feature_eps).flatten(2) / F.softplus(focus)
        # dividing by a number changes nothing, in the gradient neither; powers stay inside the range that way
        b = a / a.detach().amax(-1, keepdim=True)
        return (b**o.focus_power * (a.norm(dim=-1, keepdim=True) / (b**o.focus_power).norm(dim=-1, keepdim=True))).view_as(x)

    q, k = f(q), f(k)
    S = torch.einsum("bthk,bthv->bhkv", k, v.float()) / k.shape[1]
    den = torch.einsum("bthk,bhk->bth", q, k.mean(1))[..., None] + o.den_eps
    return torch.einsum("bthk,bhkv->bthv", q, S) / den


def _inline(q, k, v, o: Options) -> Tensor:
    q, k, v = q.float(), k.float(), v.float()
    scale = o.scale or q.shape[-1] ** -0.5
    S = torch.einsum("bthk,bthv->bhkv", k, v) / k.shape[1]
    rest = 1 - scale * torch.einsum("bthk,bhk->bth", q, k.mean(1))[..., None]
    return scale * torch.einsum("bthk,bhkv->bthv", q, S) + rest * v.mean(1, keepdim=True)


def _mala(q, k, v, rope, o: Options) -> Tensor:
    q, k, v = F.elu(q.float()) + 1, F.elu(k.float()) + 1, v.float()
    scale = o.scale or q.shape[-1] ** -0.5
    z = scale * torch.einsum("bthk,bhk->bth", q, k.mean(1))[..., None]
    S = torch.einsum("bthk,bthv->bhkv", _rotate(k, rope, o.rope), v) / k.shape[1]
    n = scale * torch.einsum("bthk,bhkv->bthv", _rotate(q, rope, o.rope), S)
    return n * (1 + 1 / (z + o.den_eps)) - z * v.mean(1, keepdim=True)


def _rala(q, k, v, rope, o: Options) -> Tensor:
    q, k, v = F.elu(q.float()) + 1, F.elu(k.float()) + 1, v.float()
    scale = o.scale or q.shape[-1] ** -0.5
    a = (scale * torch.einsum("bhk,bthk->bth", q.mean(1), k)).softmax(1)[..., None]
    S = torch.einsum("bthk,bthv->bhkv", a * _rotate(k, rope, o.rope), v)
    den = torch.einsum("bthk,bhk->bth", q, (a * k).sum(1))[..., None] + o.den_eps
    return torch.einsum("bthk,bhkv->bthv", _rotate(q, rope, o.rope), S) / den


# ---- One call ----------------------------------------------------------------------------------------------------------

def _ends(cu: Optional[Tensor], T: int) -> Optional[List[int]]:
    return None if cu is None else ends_of(cu.tolist(), T)


def run(kind: str, o: Options, fused: bool, q, k, v, mix, q2, k2, state, z, cos, sin, cu, past, output_final_state,
        key_cos=None, key_sin=None):
    """The result of the op of this kind: o, or (o, final_state, final_z), empty where there is none."""
    rope = None if cos is None else (cos, sin)
    key_rope = rope if key_cos is None else (key_cos, key_sin)
    dtype = q.dtype
    if kind in ("bidirectional", "linear"):
        if kind == "linear":
            mix = q.new_ones(1, 1, dtype=torch.float32)
            queries, keys = ((index[None], None, index) for index in (torch.arange(x.shape[1], device=q.device) for x in (q, k)))
        else:
            def division(*description) -> tuple:
                return tuple(x if x is None else torch.from_numpy(x).to(q.device) for x in _division(*description))

            queries = division(o.grid, o.blocks, o.order, o.block_offsets, o.permutation)
            keys = queries
            if o.key_grid or o.key_block_offsets is not None:
                keys = division(o.key_grid, o.key_blocks, o.order, o.key_block_offsets, o.key_permutation)
        y = _bidirectional(q, k, v, mix, q2, k2, rope, key_rope, o, queries, keys)
    elif kind in ("causal", "linear_causal"):
        y, S, zs = _causal_call(q, k, v, mix, q2, k2, state, z, rope, _ends(cu, q.shape[1]), past, o)
        nothing = q.new_empty(0, dtype=torch.float32)
        if not output_final_state:
            S, zs = nothing, None
        return y.to(dtype), S, nothing.clone() if zs is None else zs
    elif kind == "softmax":
        ends = _ends(cu, q.shape[1])
        parts = [(q, k, v)] if ends is None else [(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in zip(ends, ends[1:]) if b > a]
        y = torch.cat([_softmax(*part, rope, o, fused) for part in parts], 1)
    elif kind == "focused":
        y = _focused(q, k, v, mix, o)
    else:
        y = _inline(q, k, v, o) if kind == "inline" else (_mala if kind == "mala" else _rala)(q, k, v, rope, o)
    y = y.to(dtype)
    if kind == "linear":
        nothing = q.new_empty(0, dtype=torch.float32)
        return y, nothing, nothing.clone()
    return y
