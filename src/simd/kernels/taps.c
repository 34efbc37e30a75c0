/* Short convolutions over rows: channels in lanes, a few taps, a list of rows. */
#include "simd/kernels/activations.h"

INLINE vf part_load(const float *p, int n) { return n >= LANES ? vload(p) : vload_n(p, n); }
INLINE void part_store(float *p, vf x, int n) {
    if (n >= LANES)
        vstore(p, x);
    else
        vstore_n(p, x, n);
}

INLINE void taps_body(const mhla_taps *given, const int W, const mhla_activation activation) {
    const mhla_taps p = *given;
    for (int t = 0; t < p.n; t++)
        for (int64_t c = 0; c < p.cols; c += LANES) {
            const int n = p.cols - c < LANES ? (int)(p.cols - c) : LANES;
            vf s = p.bias ? part_load(p.bias + c, n) : vset(0.0f);
#pragma GCC unroll 4
            for (int j = 0; j < W; j++) s += part_load(p.w + j * p.ld + c, n) * part_load(p.rows[t + j] + c, n);
            float *y = p.y + t * p.ldy + c;
            s = p.dy ? activation_grad(activation, s, part_load(p.dy + t * p.lddy + c, n))
                     : activation_apply(activation, s);
            if (p.accumulate) s += part_load(y, n);
            part_store(y, s, n);
        }
}

void KERNEL(taps)(const mhla_taps *p) {
    if (p->W == 4 && p->activation == MHLA_ACT_SILU)
        taps_body(p, 4, MHLA_ACT_SILU);
    else if (p->W == 4 && p->activation == MHLA_ACT_NONE)
        taps_body(p, 4, MHLA_ACT_NONE);
    else
        taps_body(p, p->W, p->activation);
}

enum { AT_ONCE = 4 }; /* taps whose sums stay in registers */

/* Taps first .. first+count-1, and the bias with the first of all. */
INLINE void taps_weight_body(const mhla_taps *given, const int first, const int count) {
    const mhla_taps p = *given;
    for (int64_t c = 0; c < p.cols; c += LANES) {
        const int n = p.cols - c < LANES ? (int)(p.cols - c) : LANES;
        vf dw[AT_ONCE], db = vset(0.0f);
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) dw[j] = part_load(p.dw + (first + j) * p.ld + c, n);
        for (int t = 0; t < p.n; t++) {
            const vf d = part_load(p.y + t * p.ldy + c, n);
            db += d;
#pragma GCC unroll 4
            for (int j = 0; j < count; j++) dw[j] += d * part_load(p.rows[t + first + j] + c, n);
        }
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) part_store(p.dw + (first + j) * p.ld + c, dw[j], n);
        if (first == 0) part_store(p.dbias + c, part_load(p.dbias + c, n) + db, n);
    }
}

void KERNEL(taps_weight)(const mhla_taps *p) {
    int j = 0;
    for (; j + AT_ONCE <= p->W; j += AT_ONCE) taps_weight_body(p, j, AT_ONCE);
    for (; j < p->W; j++) taps_weight_body(p, j, 1);
}
