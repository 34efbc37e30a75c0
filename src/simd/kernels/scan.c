/* A tile of a selective scan: channels in lanes, states in registers a few at a time, tokens one after the other. */
#include "simd/kernels/activations.h"

enum {
    TILE = MHLA_SCAN_TILE,
    STATES = REGISTERS == 32 ? 4 : 2,
    AHEAD = 32
}; /* STATES: states that are walked at once; AHEAD: tokens of a chunk */

#define LOG2_E 1.44269504088896341f

/* The lanes of a tile that are there, from lane j on. */
INLINE vf tile_load(const float *p, int j, int channels) {
    const int n = channels - j;
    return n >= LANES ? vload(p + j) : n > 0 ? vload_n(p + j, n) : vset(0.0f);
}
INLINE void tile_store(float *p, int j, int channels, vf x, int add) {
    const int n = channels - j;
    if (n <= 0) return;
    if (add) x += tile_load(p, j, channels);
    if (n >= LANES)
        vstore(p + j, x);
    else
        vstore_n(p + j, x, n);
}

/* log(1 + exp(x)) = max(x, 0) + log1p(e), e = exp(-|x|); log1p(e) = 2 atanh(s), s = e / (2 + e) <= 1/3, by its series. */
INLINE vf softplus(vf x) {
    const vf e = vexp2_flush(-LOG2_E * vselect(x < 0.0f, -x, x)), s = e / (2.0f + e), q = s * s;
    vf p = q * (1.0f / 15.0f) + 1.0f / 13.0f;
    p = p * q + 1.0f / 11.0f;
    p = p * q + 1.0f / 9.0f;
    p = p * q + 1.0f / 7.0f;
    p = p * q + 1.0f / 5.0f;
    p = p * q + 1.0f / 3.0f;
    p = p * q + 1.0f;
    return vmax(x, 0.0f) + 2.0f * s * p;
}
INLINE vf logistic(vf x) { return 1.0f / (1.0f + vexp2_flush(-LOG2_E * x)); }

/* The tile's line of row t of x comes near. There need be no such row: fetching ahead never faults. */
INLINE void fetch(const float *x, int64_t ld, int t) {
    if (x) __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)(4 * t * ld)));
}

/* ---- Forward ---- */

/* `count` states from state k on: h = exp(d A) h + x B, sum += h C */
INLINE void walk_states(const mhla_scan *p, int j, int k, const int count, const int keep) {
    vf h[STATES], A[STATES];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
        h[i] = vload(p->h + (k + i) * TILE + j);
        A[i] = vload(p->A + (k + i) * TILE + j) * LOG2_E;
    }
    for (int t = 0; t < p->n; t++) {
        const float *B = p->B + t * p->ldB + k, *C = p->C + t * p->ldC + k;
        const int64_t at = ((int64_t)t * p->N + k) * TILE + j;
        const vf d = vload(p->step + t * TILE + j), x = vload(p->x + t * TILE + j);
        vf sum = vload(p->sum + t * TILE + j);
        if (k == 0 && !keep) {
            fetch(p->u, p->ldu, t + AHEAD);
            fetch(p->delta, p->lddelta, t + AHEAD);
            fetch(p->z, p->ldz, t + AHEAD);
        }
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) {
            const vf e = vexp2_flush(d * A[i]);
            if (keep) {
                vstore(p->states + at + i * TILE, h[i]);
                vstore(p->decays + at + i * TILE, e);
            }
            h[i] = e * h[i] + x * B[i];
            sum += h[i] * C[i];
        }
        vstore(p->sum + t * TILE + j, sum);
    }
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) vstore(p->h + (k + i) * TILE + j, h[i]);
}

INLINE void walk_all(const mhla_scan *p, int j, const int keep) {
    int k = 0;
    for (; k + STATES <= p->N; k += STATES) walk_states(p, j, k, STATES, keep);
    for (; k < p->N; k++) walk_states(p, j, k, 1, keep);
}

void KERNEL(scan_forward)(const mhla_scan *given) {
    const mhla_scan p = *given;
    for (int j = 0; j < TILE; j += LANES) {
        for (int t = 0; t < p.n; t++) {
            vf d = tile_load(p.delta + t * p.lddelta, j, p.channels) + vload(p.bias + j);
            if (p.softplus) d = softplus(d);
            vstore(p.step + t * TILE + j, d);
            vstore(p.x + t * TILE + j, d * tile_load(p.u + t * p.ldu, j, p.channels));
            vstore(p.sum + t * TILE + j, vset(0.0f));
        }
        if (p.states)
            walk_all(&p, j, 1);
        else
            walk_all(&p, j, 0);
        if (p.y == NULL) continue;
        for (int t = 0; t < p.n; t++) {
            vf y = vload(p.sum + t * TILE + j) + vload(p.D + j) * tile_load(p.u + t * p.ldu, j, p.channels);
            if (p.z) y *= silu(tile_load(p.z + t * p.ldz, j, p.channels));
            tile_store(p.y + t * p.ldy, j, p.channels, y, p.accumulate);
        }
    }
}

/* ---- Backward ---- */

/* y = (sum + D u) silu(z):  dz = dy (sum + D u) silu'(z), dsum = dy silu(z), dD += dsum u */
INLINE void gate_backward(const mhla_scan *p, int j) {
    const vf D = vload(p->D + j);
    vf dD = vload(p->dD + j);
    for (int t = 0; t < p->n; t++) {
        const vf u = tile_load(p->u + t * p->ldu, j, p->channels);
        vf dy = tile_load(p->dy + t * p->ldy, j, p->channels);
        if (p->z) {
            const vf z = tile_load(p->z + t * p->ldz, j, p->channels), sum = vload(p->sum + t * TILE + j) + D * u;
            if (p->dz) tile_store(p->dz + t * p->lddz, j, p->channels, silu_grad(z, dy * sum), p->add);
            dy *= silu(z);
        }
        vstore(p->dsum + t * TILE + j, dy);
        dD += dy * u;
    }
    vstore(p->dD + j, dD);
}

/* h_t = e h_{t-1} + x B, sum = h_t C, e = exp(d A), from the last token to the first:  g += dsum C, dC += dsum h_t, dB += g x,
 * dx += g B; then g = g e and, with r = g h_{t-1}, dd += r A, dA += r d */
INLINE void walk_back(const mhla_scan *p, int j, int k, const int count) {
    vf g[STATES], A[STATES], dA[STATES], h[STATES];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
        g[i] = vload(p->g + (k + i) * TILE + j);
        h[i] = vload(p->h + (k + i) * TILE + j);
        A[i] = vload(p->A + (k + i) * TILE + j);
        dA[i] = vload(p->dA + (k + i) * TILE + j);
    }
    for (int t = p->n - 1; t >= 0; t--) {
        const float *B = p->B + t * p->ldB + k, *C = p->C + t * p->ldC + k;
        const int64_t at = ((int64_t)t * p->N + k) * TILE + j;
        const vf d = vload(p->step + t * TILE + j), x = vload(p->x + t * TILE + j), s = vload(p->dsum + t * TILE + j);
        vf dx = vload(p->dx + t * TILE + j), dd = vload(p->dstep + t * TILE + j);
        if (k == 0) {
            fetch(p->u, p->ldu, t - AHEAD);
            fetch(p->delta, p->lddelta, t - AHEAD);
            fetch(p->z, p->ldz, t - AHEAD);
            fetch(p->dy, p->ldy, t - AHEAD);
        }
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) {
            const int64_t a = at + i * TILE;
            g[i] += s * C[i];
            vstore(p->dC + a, vload(p->dC + a) + s * h[i]);
            vstore(p->dB + a, vload(p->dB + a) + g[i] * x);
            dx += g[i] * B[i];
            h[i] = vload(p->states + a);
            g[i] *= vload(p->decays + a);
            const vf r = g[i] * h[i];
            dd += r * A[i];
            dA[i] += r * d;
        }
        vstore(p->dx + t * TILE + j, dx);
        vstore(p->dstep + t * TILE + j, dd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
        vstore(p->g + (k + i) * TILE + j, g[i]);
        vstore(p->dA + (k + i) * TILE + j, dA[i]);
    }
}

/* x = d u, y = .. + D u, d = softplus(delta + bias):  du = dx d + dsum D, dd += dx u, ddelta = dd logistic(delta + bias) */
INLINE void inputs_backward(const mhla_scan *p, int j) {
    const vf D = vload(p->D + j), bias = vload(p->bias + j);
    vf dbias = vload(p->dbias + j);
    for (int t = 0; t < p->n; t++) {
        const int64_t at = t * TILE + j;
        const vf dx = vload(p->dx + at);
        if (p->du)
            tile_store(p->du + t * p->lddu, j, p->channels, dx * vload(p->step + at) + vload(p->dsum + at) * D, p->add);
        vf dd = vload(p->dstep + at) + dx * tile_load(p->u + t * p->ldu, j, p->channels);
        if (p->softplus) dd *= logistic(tile_load(p->delta + t * p->lddelta, j, p->channels) + bias);
        if (p->ddelta) tile_store(p->ddelta + t * p->ldddelta, j, p->channels, dd, p->add);
        dbias += dd;
    }
    vstore(p->dbias + j, dbias);
}

void KERNEL(scan_backward)(const mhla_scan *given) {
    const mhla_scan p = *given;
    memset(p.dx, 0, sizeof(float) * TILE * (size_t)p.n);
    memset(p.dstep, 0, sizeof(float) * TILE * (size_t)p.n);
    for (int j = 0; j < TILE; j += LANES) {
        gate_backward(&p, j);
        int k = 0;
        for (; k + STATES <= p.N; k += STATES) walk_back(&p, j, k, STATES);
        for (; k < p.N; k++) walk_back(&p, j, k, 1);
        inputs_backward(&p, j);
    }
}
