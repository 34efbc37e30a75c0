"""The operators of mhla.ops by definition, token by token in float64: what their results and gradients are compared with."""
import torch
import torch.nn.functional as F


def recurrence(q, k, v, g, beta=None, state=None, scale=None, l2norm=False):
    """GLA (g [B,T,H,K]), simple GLA (g [B,T,H]) and the gated delta rule (beta): (o, state)."""
    B, T, H, V = v.shape
    q, k = (x.repeat_interleave(H // x.shape[2], 2) for x in (q, k))
    if l2norm:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    K = q.shape[-1]
    S = torch.zeros(B, H, K, V, dtype=q.dtype) if state is None else state
    o = []
    for t in range(T):
        S = S * (g[:, t].exp()[..., None] if g.dim() == 4 else g[:, t].exp()[..., None, None])
        u = v[:, t] if beta is None else beta[:, t, :, None] * (v[:, t] - (k[:, t, ..., None] * S).sum(2))
        S = S + k[:, t, ..., None] * u[:, :, None]
        o.append((q[:, t, ..., None] * S).sum(2) * (K**-0.5 if scale is None else scale))
    return torch.stack(o, 1), S


def ssd(x, dt, A, B, C, D=None, z=None, dt_bias=None, state=None, softplus=False, limit=(0.0, float("inf"))):
    """Mamba2's scan: (y, state [batch,H,P,N])."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if softplus else dt).clamp(*limit)
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))
    S = torch.zeros(x.shape[0], *x.shape[2:], B.shape[3], dtype=x.dtype) if state is None else state
    y = []
    for t in range(x.shape[1]):
        S = (dt[:, t] * A).exp()[..., None, None] * S + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        y.append((S * C[:, t, :, None]).sum(-1))
    y = torch.stack(y, 1)
    y = y if D is None else y + x * (D[:, None] if D.dim() == 1 else D)
    return y if z is None else y * F.silu(z), S


def scan(u, delta, A, B, C, D=None, z=None, bias=None, state=None, softplus=False):
    """Mamba's scan, channels first; B, C [D,N], [batch,N,T] or [batch,G,N,T]: (y, state)."""
    delta = delta if bias is None else delta + bias[:, None]
    delta = F.softplus(delta) if softplus else delta
    dim, T = u.shape[1:]

    def full(x):  # [batch,dim,N,T]
        x = x[None, :, :, None].expand(u.shape[0], -1, -1, T) if x.dim() == 2 else x[:, None] if x.dim() == 3 else x
        return x.repeat_interleave(dim // x.shape[1], 1)

    B, C = full(B), full(C)
    h = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype) if state is None else state
    y = []
    for t in range(T):
        h = (delta[:, :, t, None] * A).exp() * h + (delta[:, :, t] * u[:, :, t])[..., None] * B[..., t]
        y.append((h * C[..., t]).sum(-1))
    y = torch.stack(y, 2)
    y = y if D is None else y + D[:, None] * u
    return y if z is None else y * F.silu(z), h


def conv(x, weight, bias=None, state=None, silu=False):
    """Token-major: (y, the last W inputs [B,D,W])."""
    W, T = weight.shape[1], x.shape[1]
    before = torch.zeros(x.shape[0], x.shape[2], W, dtype=x.dtype) if state is None else state
    whole = torch.cat([before, x.transpose(1, 2)], 2)
    y = F.conv1d(whole[:, :, 1:], weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)
    return F.silu(y) if silu else y, whole[:, :, T:]
