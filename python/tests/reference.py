"""The operators by their definition, with all T x T scores, in double, by PyTorch's own autograd. Written from the
mathematics, without a look at the library."""
import math

import torch


def features(x, feature, eps):
    if feature == "relu":
        return x.relu() + eps
    return torch.nn.functional.elu(x) + 1 if feature == "elu" else x


def rotate(x, rope, style, first=0):
    """x [B,T,H,K], token t by row first + t."""
    if rope is None:
        return x
    cos, sin = (t.double()[first : first + x.shape[1], None] for t in rope)
    n = cos.shape[-1]
    turned, rest = x[..., : 2 * n], x[..., 2 * n :]
    if style == "half":
        a, b = turned[..., :n], turned[..., n:]
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def block_of_tokens(grid, blocks, order):
    """Block index of each token, in the order in which tokens come."""
    ids = torch.zeros((), dtype=torch.long)
    for g, m in zip(grid, blocks):
        cuts = [i * g // m for i in range(m + 1)]
        axis = torch.tensor([max(i for i in range(m) if cuts[i] <= x) for x in range(g)])
        ids = ids[..., None] * m + axis
    ids = ids.flatten()
    return ids if order == "raster" else ids.sort().values


def scores(q, k):
    return torch.einsum("bthk,buhk->bhtu", q, k)


def gather(a, v):
    return torch.einsum("bhtu,buhv->bthv", a, v)


def attention(q, k, v, mix, ids, scale=None, feature="relu", feature_eps=1e-6, denominator="eq4", den_eps=1e-6, rope=None,
              rope_style="half", q2=None, k2=None, key_ids=None, key_rope=None):
    scale = 1.0 if scale is None else scale
    weight = (mix[None] if mix.dim() == 2 else mix)[:, ids][:, :, ids if key_ids is None else key_ids]  # [1 or H,Tq,Tk]
    fq, fk = features(q, feature, feature_eps), features(k, feature, feature_eps)
    o = gather(scale * scores(rotate(fq, rope, rope_style), rotate(fk, key_rope or rope, rope_style)) * weight, v)
    if denominator == "none":
        return o
    dq, dk = (fq, fk) if q2 is None else (features(q2, feature, feature_eps), features(k2, feature, feature_eps))
    if denominator == "eq4":
        den = scale * (scores(dq, dk) * weight).sum(-1)  # [B,H,T]
        return o / (den.transpose(1, 2)[..., None] + den_eps)
    # released: sum_b m[i,b] q~_{b,w} . z_b, w the token's place inside its own block
    M = mix.shape[-1]
    members = torch.stack([(ids == b).nonzero().flatten() for b in range(M)])  # [M,n]
    qb, z = dq[:, members], dk[:, members].sum(2)  # [B,M,n,H,K], [B,M,H,K]
    dots = torch.einsum("bmnhk,bmhk->bmnh", qb, z)
    mixed = torch.einsum("him,bmnh->binh", mix.expand(q.shape[2], M, M) if mix.dim() == 2 else mix, dots)
    den = torch.zeros(q.shape[:3], dtype=torch.double)
    den = den.index_copy(1, members.flatten(), scale * mixed.flatten(1, 2))
    return o / (den[..., None] + den_eps)


def chunk_weight(mix, i, b, beyond):
    """Weight by which chunk i reads chunk b."""
    M = mix.shape[-1]
    if i < M:
        return mix[..., i, b]
    assert beyond == "clamp"
    return mix[..., M - 1, max(M - 1 - (i - b), 0)]


def causal_sequence(q, k, v, mix, scale, chunk, past, state, z, feature, feature_eps, denominator, den_eps, rope, rope_style, q2,
                    k2, beyond):
    """One batch of sequences; also returns summaries of all chunks."""
    B, T, H, K = q.shape
    G = k.shape[2]
    fq, fk = features(q, feature, feature_eps), features(k, feature, feature_eps)
    dq, dk = (fq, fk) if q2 is None else (features(q2, feature, feature_eps), features(k2, feature, feature_eps))
    rq, rk = rotate(fq, rope, rope_style, past), rotate(fk, rope, rope_style, past)
    rep = lambda x: x.repeat_interleave(H // G, 2)  # noqa: E731
    where = [(past + t) // chunk for t in range(T)]
    n = max(where) + 1
    per_head = mix if mix.dim() == 3 else mix.expand(H, *mix.shape)
    table = torch.stack([torch.stack([chunk_weight(per_head, i, b, beyond) if b <= i else torch.zeros(H, dtype=torch.double)
                                      for b in range(n)], -1) for i in range(n)], 1)  # [H,n,n]
    rows = table[:, where]  # [H,T,n]
    inner = rows[:, :, where].tril()
    o = gather(scale * scores(rq, rep(rk)) * inner, rep(v))
    den = scale * (scores(dq, rep(dk)) * inner).sum(-1).transpose(1, 2)
    if state is not None:
        before = rows[:, :, : state.shape[1]]  # [H,T,N0]
        o = o + scale * torch.einsum("bthk,hti,bihkv->bthv", rq, before, state.repeat_interleave(H // G, 2))
        if z is not None:
            den = den + scale * torch.einsum("bthk,hti,bihk->bth", dq, before, z.repeat_interleave(H // G, 2))
    if denominator != "none":
        o = o / (den[..., None] + den_eps)
    member = torch.nn.functional.one_hot(torch.tensor(where), n).double()
    S, zs = torch.einsum("ti,btgk,btgv->bigkv", member, rk, v), torch.einsum("ti,btgk->bigk", member, dk)
    if state is not None:
        pad = n - state.shape[1]
        S = S + torch.cat([state, state.new_zeros(B, pad, *state.shape[2:])], 1)
        if z is not None:
            zs = zs + torch.cat([z, z.new_zeros(B, pad, *z.shape[2:])], 1)
    return o, S, zs


def causal_attention(q, k, v, mix, scale=None, chunk=64, past=0, state=None, z=None, feature="relu", feature_eps=0.0,
                     denominator="none", den_eps=1e-6, rope=None, rope_style="half", q2=None, k2=None, beyond="error", cu=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rest = (feature, feature_eps, denominator, den_eps, rope, rope_style)
    if cu is None:
        return causal_sequence(q, k, v, mix, scale, chunk, past, state, z, *rest, q2, k2, beyond)
    parts = []
    total = math.ceil((past + q.shape[1]) / chunk)
    for s, (a, b) in enumerate(zip(cu, cu[1:])):
        cut = lambda x: None if x is None else x[:, a:b]  # noqa: E731, B023
        one = lambda x: None if x is None else x[s : s + 1]  # noqa: E731, B023
        if a == b:
            continue
        o, S, zs = causal_sequence(cut(q), cut(k), cut(v), mix, scale, chunk, past, one(state), one(z), *rest, cut(q2), cut(k2), beyond)
        fill = lambda x: torch.cat([x, x.new_zeros(1, total - x.shape[1], *x.shape[2:])], 1)  # noqa: E731
        parts.append((o, fill(S), fill(zs)))
    o, S, zs = zip(*parts)
    return torch.cat(o, 1), torch.cat(S), torch.cat(zs)


def linear_attention(q, k, v, scale=None, causal=False, normalize=True, past=0, state=None, z=None, feature="relu", feature_eps=0.0,
                     den_eps=1e-6, rope=None, rope_style="half", q2=None, k2=None, cu=None):
    T = q.shape[1]
    one = torch.ones(1, 1, dtype=torch.double)
    if not causal:
        return attention(q, k, v, one, torch.zeros(T, dtype=torch.long), scale, feature, feature_eps, "eq4" if normalize else "none",
                         den_eps, rope, rope_style, q2, k2), None, None
    state, z = (None if x is None else x[:, None] for x in (state, z))
    length = 10**9  # one chunk for ever
    o, S, zs = causal_attention(q, k, v, one, scale, length, past, state, z, feature, feature_eps, "eq4" if normalize else "none", den_eps,
                                rope, rope_style, q2, k2, cu=cu)
    return o, S[:, 0], zs[:, 0]


def softmax_attention(q, k, v, scale=None, causal=False, window=0, rope=None, rope_style="half", cu=None):
    if cu is not None:
        return torch.cat([softmax_attention(q[:, a:b], k[:, a:b], v[:, a:b], scale, causal, window, rope, rope_style)
                          for a, b in zip(cu, cu[1:]) if b > a], 1)
    Tq, Tk, H, G = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k = rotate(q, rope, rope_style, Tk - Tq), rotate(k, rope, rope_style)
    s = scale * scores(q, k.repeat_interleave(H // G, 2))
    if causal:
        t, u = torch.arange(Tq)[:, None] + Tk - Tq, torch.arange(Tk)
        hidden = u > t
        if window:
            hidden = hidden | (u <= t - window)
        s = s.masked_fill(hidden, -math.inf)
    return gather(s.softmax(-1).nan_to_num(0.0), v.repeat_interleave(H // G, 2))


# ---- Linear attentions of vision models: every row of weights [T,T], then times v ---------------------------------------

def row_dots(q, x):
    """q_t . x for each query: [B,T,H,K], [B,H,K] -> [B,H,T,1]."""
    return torch.einsum("bthk,bhk->bht", q, x)[..., None]


def focused_attention(q, k, v, focus, power=3, feature_eps=1e-6, den_eps=1e-6):
    def focused(x):
        a = (x.relu() + feature_eps).flatten(2) / torch.nn.functional.softplus(focus)
        f = a**power * a.norm(dim=-1, keepdim=True) / (a**power).norm(dim=-1, keepdim=True)
        return f.view_as(x)

    q, k = focused(q), focused(k)
    return gather(scores(q, k) / (q.shape[1] * (row_dots(q, k.mean(1)) + den_eps)), v)


def inline_attention(q, k, v, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return gather((1 + scale * (scores(q, k) - row_dots(q, k.mean(1)))) / q.shape[1], v)


def mala_attention(q, k, v, scale=None, den_eps=1e-6, rope=None, rope_style="interleaved"):
    T, scale = q.shape[1], q.shape[-1] ** -0.5 if scale is None else scale
    q, k = features(q, "elu", 0), features(k, "elu", 0)
    z = scale * row_dots(q, k.mean(1))
    turned = scores(rotate(q, rope, rope_style), rotate(k, rope, rope_style))
    return gather(scale / T * (1 + 1 / (z + den_eps)) * turned - z / T, v)


def rala_attention(q, k, v, scale=None, den_eps=1e-6, rope=None, rope_style="interleaved"):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k = features(q, "elu", 0), features(k, "elu", 0)
    a = torch.softmax(scale * torch.einsum("bhk,buhk->bhu", q.mean(1), k), -1)[:, :, None]
    den = (scores(q, k) * a).sum(-1, keepdim=True) + den_eps
    return gather(scores(rotate(q, rope, rope_style), rotate(k, rope, rope_style)) * a / den, v)
