/* One token of a linear recurrence: the state is read and written once, STRIP vectors of columns at a time. */
#include "simd/kernels/isa.h"

enum { STRIP = 4, AHEAD = 8 }; /* vectors; rows that are fetched before they are needed */

INLINE vf load_some(const float *p, int n) { return n == LANES ? vload(p) : vload_n(p, n); }
INLINE void store_some(float *p, vf x, int n) {
    if (n == LANES)
        vstore(p, x);
    else
        vstore_n(p, x, n);
}

/* nv vectors of columns from `at` on, the last of which has n of them. */
INLINE void strip(const mhla_recur *p, int64_t at, const int nv, const int n) {
    vf u[STRIP], sum[STRIP];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
        u[j] = load_some(p->v + at + j * LANES, j == nv - 1 ? n : LANES);
        sum[j] = vset(0.0f);
    }
    if (p->delta) {
        for (int i = 0; i < p->K; i++) {
            const float *row = p->S + i * p->lds + at;
            const vf x = vset(p->decay[i] * p->k[i]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) {
                __builtin_prefetch(row + AHEAD * p->lds + j * LANES, 1, 3);
                sum[j] += x * load_some(row + j * LANES, j == nv - 1 ? n : LANES);
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            u[j] = p->beta * (u[j] - sum[j]);
            sum[j] = vset(0.0f);
        }
    }
    for (int i = 0; i < p->K; i++) {
        float *row = p->S + i * p->lds + at;
        const vf d = vset(p->decay[i]), k = vset(p->k[i]), q = vset(p->q[i]);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            __builtin_prefetch(row + AHEAD * p->lds + j * LANES, 1, 3);
            const vf s = d * load_some(row + j * LANES, j == nv - 1 ? n : LANES) + k * u[j];
            store_some(row + j * LANES, s, j == nv - 1 ? n : LANES);
            sum[j] += q * s;
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) store_some(p->o + at + j * LANES, p->scale * sum[j], j == nv - 1 ? n : LANES);
}

void KERNEL(recur)(const mhla_recur *p) {
    int at = 0;
    for (; at + STRIP * LANES <= p->cols; at += STRIP * LANES) strip(p, at, STRIP, LANES);
    for (; at + LANES <= p->cols; at += LANES) strip(p, at, 1, LANES);
    if (at < p->cols) strip(p, at, 1, p->cols - at);
}
