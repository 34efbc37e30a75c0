/* What the layers of a network do beside products: norms, depthwise convolution, element-wise combinations of rows, sums
 * over rows, dropout, the update of AdamW. */
#include "core/rng.h"
#include "simd/kernels/activations.h"

INLINE vf load_some(const float *p, int lanes) { return lanes == LANES ? vload(p) : vload_n(p, lanes); }
INLINE void store_some(float *p, vf x, int lanes) {
    if (lanes == LANES)
        vstore(p, x);
    else
        vstore_n(p, x, lanes);
}
INLINE int lanes_at(int64_t j, int64_t n) { return n - j < LANES ? (int)(n - j) : LANES; }

/* ---- The middle of a SwiGLU ---- */

void KERNEL(swiglu)(float *y, const float *gate, const float *up, int64_t n) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) vstore(y + j, silu(vload(gate + j)) * vload(up + j));
    const int left = (int)(n - j);
    if (left) vstore_n(y + j, silu(vload_n(gate + j, left)) * vload_n(up + j, left), left);
}

/* y = silu(gate) up:  with s = logistic(gate), dup = dy gate s, dgate = dy up (s + gate s (1-s)) */
INLINE void swiglu_vector(float *dgate, const int add_gate, float *dup, const int add_up, const float *dy,
                          const float *gate, const float *up, const int n) {
    const vf g = vmax(vmin(load_some(gate, n), 87.0f), -87.0f), d = load_some(dy, n);
    const vf e = vexp2_flush(-1.44269504f * g), s = 1.0f / (1.0f + e);
    if (dup) {
        vf t = d * load_some(gate, n) * s;
        if (add_up) t += load_some(dup, n);
        store_some(dup, t, n);
    }
    if (dgate) {
        vf t = d * load_some(up, n) * (s + g * s * (e * s));
        if (add_gate) t += load_some(dgate, n);
        store_some(dgate, t, n);
    }
}

void KERNEL(swiglu_backward)(float *dgate, int add_gate, float *dup, int add_up, const float *dy, const float *gate,
                             const float *up, int64_t n) {
    int64_t j = 0;
    if (dgate && dup && !add_gate && !add_up)
        for (; j + LANES <= n; j += LANES) swiglu_vector(dgate + j, 0, dup + j, 0, dy + j, gate + j, up + j, LANES);
    for (; j < n; j += LANES)
        swiglu_vector(dgate ? dgate + j : NULL, add_gate, dup ? dup + j : NULL, add_up, dy + j, gate + j, up + j,
                      lanes_at(j, n));
}

/* ---- Norms ---- */

INLINE vf power_of(vf t, const int power) {
    if (power == 2) return t * t;
    return t;
}

/* sum of (x - mean)^power over n elements */
INLINE float power_sum(const float *x, int n, float mean, const int power) {
    vf s[4] = {0};
    int j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) s[i] += power_of(vload(x + j + i * LANES) - mean, power);
    for (; j + LANES <= n; j += LANES) s[0] += power_of(vload(x + j) - mean, power);
    if (j < n) s[1] += power_of(vload_n(x + j, n - j) - vfirst(vset(mean), n - j), power);
    return vsum((s[0] + s[1]) + (s[2] + s[3]));
}

enum { NORM_PLAIN = 1, NORM_PLUS }; /* affine: by w, by 1 + w */
INLINE int norm_affine(const mhla_norm *p) { return p->w == NULL ? 0 : p->plus_one ? NORM_PLUS : NORM_PLAIN; }
INLINE vf norm_weight(const mhla_norm *p, int j, const int affine, int n) {
    vf w = load_some(p->w + j, n);
    if (affine == NORM_PLUS) w += 1.0f;
    return w;
}

/* One vector, of which n lanes count, of y = (x - mean) rstd w + b, times silu(gate). */
INLINE void norm_vector(const mhla_norm *p, float *y, const float *x, const float *gate, float mean, float rstd, int j,
                        const int affine, const int bias, const int gated, int n) {
    vf t = (load_some(x + j, n) - mean) * rstd;
    if (affine) t *= norm_weight(p, j, affine, n);
    if (bias) t += load_some(p->b + j, n);
    if (gated) t *= silu(load_some(gate + j, n));
    store_some(y + j, t, n);
}

/* Rows go in pairs, because each waits for its own sums: first the sums of both, then both results. */
INLINE void norm_forward_body(const mhla_norm *given, const int centred, const int affine, const int bias,
                              const int gated) {
    enum { PAIR = 2 };
    const mhla_norm p = *given;
    const int groups = p.cols / p.group, whole = p.group / LANES * LANES;
    const int64_t count = p.rows * groups;
    const float inverse = 1.0f / (float)p.group;
    for (int64_t first = 0; first < count; first += PAIR) {
        const int n = count - first < PAIR ? (int)(count - first) : PAIR;
        const float *x[PAIR], *gate[PAIR];
        float *y[PAIR], mean[PAIR], rstd[PAIR];
        for (int i = 0; i < n; i++) {
            const int64_t r = (first + i) / groups, at = (first + i) % groups * p.group;
            x[i] = p.x + r * p.ldx + at;
            y[i] = p.y + r * p.ldy + at;
            gate[i] = gated ? p.gate + r * p.ldgate + at : NULL;
            mean[i] = centred ? power_sum(x[i], p.group, 0.0f, 1) * inverse : 0.0f;
        }
        for (int i = 0; i < n; i++) {
            rstd[i] = 1.0f / sqrtf(power_sum(x[i], p.group, mean[i], 2) * inverse + p.eps);
            if (p.rstd) p.rstd[first + i] = rstd[i];
            if (p.mean) p.mean[first + i] = mean[i];
        }
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < whole; j += LANES)
                norm_vector(&p, y[i], x[i], gate[i], mean[i], rstd[i], j, affine, bias, gated, LANES);
            if (whole < p.group)
                norm_vector(&p, y[i], x[i], gate[i], mean[i], rstd[i], whole, affine, bias, gated, p.group - whole);
        }
    }
}

void KERNEL(norm_forward)(const mhla_norm *p) {
    const int affine = norm_affine(p);
    if (p->centred && affine == NORM_PLAIN && p->b && !p->gate)
        norm_forward_body(p, 1, NORM_PLAIN, 1, 0);
    else if (!p->centred && affine == NORM_PLAIN && !p->b && !p->gate)
        norm_forward_body(p, 0, NORM_PLAIN, 0, 0);
    else if (!p->centred && affine == NORM_PLUS && !p->b && !p->gate)
        norm_forward_body(p, 0, NORM_PLUS, 0, 0);
    else
        norm_forward_body(p, p->centred, affine, p->b != NULL, p->gate != NULL);
}

/* With n = (x - mean) rstd and e the gradient of n w + b:
 *   dx = rstd (e w - mean(e w) - n mean(e w n)), dw += e n, db += e, dgate = dy (n w + b) silu'(gate) */
INLINE void norm_backward_body(const mhla_norm *given, const int centred, const int affine, const int sums,
                               const int gated) {
    const mhla_norm p = *given;
    const int groups = p.cols / p.group;
    for (int64_t r = 0; r < p.rows; r++)
        for (int g = 0; g < groups; g++) {
            const int64_t at = (int64_t)g * p.group;
            const float *x = p.x + r * p.ldx + at, *dy = p.dy + r * p.lddy + at;
            const float *gate = gated ? p.gate + r * p.ldgate + at : NULL;
            const float rstd = p.rstd[r * groups + g], mean = centred ? p.mean[r * groups + g] : 0.0f;
            vf se = {0}, sen = {0};
            for (int j = 0; j < p.group; j += LANES) {
                const int n = lanes_at(j, p.group);
                vf hat = (load_some(x + j, n) - mean) * rstd, e = load_some(dy + j, n);
                if (gated) {
                    const vf z = load_some(gate + j, n);
                    vf t = hat;
                    if (affine) t *= norm_weight(&p, j, affine, n);
                    if (p.b) t += load_some(p.b + j, n);
                    if (p.dgate) {
                        float *d = p.dgate + r * p.lddgate + at + j;
                        vf dz = silu_grad(z, e * t);
                        if (p.add_gate) dz += load_some(d, n);
                        store_some(d, dz, n);
                    }
                    e *= silu(z);
                }
                if (sums) {
                    if (p.dw) store_some(p.dw + j, load_some(p.dw + j, n) + e * hat, n);
                    if (p.db) store_some(p.db + j, load_some(p.db + j, n) + e, n);
                }
                if (affine) e *= norm_weight(&p, j, affine, n);
                se += e; /* lanes beyond n are 0, as those of dy */
                sen += e * hat;
            }
            if (p.dx == NULL) continue;
            const float me = centred ? vsum(se) / (float)p.group : 0.0f, men = vsum(sen) / (float)p.group;
            float *dx = p.dx + r * p.lddx + at;
            for (int j = 0; j < p.group; j += LANES) {
                const int n = lanes_at(j, p.group);
                const vf hat = (load_some(x + j, n) - mean) * rstd;
                vf e = load_some(dy + j, n);
                if (gated) e *= silu(load_some(gate + j, n));
                if (affine) e *= norm_weight(&p, j, affine, n);
                vf d = rstd * (e - me - hat * men);
                if (p.add) d += load_some(dx + j, n);
                store_some(dx + j, d, n);
            }
        }
}

void KERNEL(norm_backward)(const mhla_norm *p) {
    const int sums = p->dw || p->db, affine = norm_affine(p);
    if (p->centred && affine == NORM_PLAIN && sums && !p->gate)
        norm_backward_body(p, 1, NORM_PLAIN, 1, 0);
    else if (!p->centred && affine == NORM_PLAIN && sums && !p->gate)
        norm_backward_body(p, 0, NORM_PLAIN, 1, 0);
    else
        norm_backward_body(p, p->centred, affine, sums, p->gate != NULL);
}

/* ---- Rows ---- */

INLINE void blend_body(const mhla_blend *given, const int z, const int r, const int add) {
    const mhla_blend p = *given;
    for (int64_t i = 0; i < p.n; i++)
        for (int64_t j = 0; j < p.cols; j += LANES) {
            const int n = lanes_at(j, p.cols);
            vf t = p.alpha * load_some(p.x + i * p.ldx + j, n);
            if (z) t *= load_some(p.z + i * p.ldz + j, n) + p.beta;
            if (r) t += load_some(p.r + i * p.ldr + j, n);
            float *y = p.y + i * p.ldy + j;
            if (add) t += load_some(y, n);
            store_some(y, t, n);
        }
}

void KERNEL(blend)(const mhla_blend *p) {
    switch ((p->z ? 4 : 0) + (p->r ? 2 : 0) + (p->add ? 1 : 0)) {
    case 0: blend_body(p, 0, 0, 0); break;
    case 1: blend_body(p, 0, 0, 1); break;
    case 2: blend_body(p, 0, 1, 0); break;
    case 3: blend_body(p, 0, 1, 1); break;
    default: blend_body(p, p->z != NULL, p->r != NULL, p->add);
    }
}

void KERNEL(column_sums)(float *s, const float *x, int64_t ldx, const float *z, int64_t ldz, int64_t n, int64_t cols) {
    enum { WIDE = 4 };
    int64_t j = 0;
    for (; j + WIDE * LANES <= cols; j += WIDE * LANES) {
        vf t[WIDE] = {0};
        for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 4
            for (int e = 0; e < WIDE; e++) {
                vf v = vload(x + i * ldx + j + e * LANES);
                if (z) v *= vload(z + i * ldz + j + e * LANES);
                t[e] += v;
            }
        for (int e = 0; e < WIDE; e++) vstore(s + j + e * LANES, vload(s + j + e * LANES) + t[e]);
    }
    for (; j < cols; j += LANES) {
        const int lanes = lanes_at(j, cols);
        vf t = {0};
        for (int64_t i = 0; i < n; i++) {
            vf v = load_some(x + i * ldx + j, lanes);
            if (z) v *= load_some(z + i * ldz + j, lanes);
            t += v;
        }
        store_some(s + j, load_some(s + j, lanes) + t, lanes);
    }
}

void KERNEL(dropout)(float *y, const float *x, int64_t n, const mhla_rng *rng, uint32_t block, float rate, int add) {
    const float scale = 1.0f / (1.0f - rate);
    for (int64_t i = 0; i < n; i += 4, block++) {
        uint32_t w[4];
        mhla_rng_block(rng, block, w);
        for (int e = 0; e < 4 && i + e < n; e++) {
            const float t = mhla_rng_unit(w[e]) < rate ? 0.0f : x[i + e] * scale;
            y[i + e] = add ? y[i + e] + t : t;
        }
    }
}

/* ---- Depthwise convolution ---- */

enum { ACROSS = 4 }; /* outputs side by side that share what they read */

/* `across` outputs from column w of row h on, channels c .. c + LANES - 1. */
INLINE void depthwise_outputs(const mhla_depthwise *p, const int k, const int across, int h, int w, int64_t c) {
    const int lanes = lanes_at(c, p->C);
    vf acc[ACROSS];
#pragma GCC unroll 4
    for (int e = 0; e < across; e++) acc[e] = p->bias ? vload(p->bias + c) : vset(0.0f);
#pragma GCC unroll 5
    for (int i = 0; i < k; i++) {
        const float *x = p->tile + ((int64_t)(h + i) * (p->W + k - 1) + w) * p->ct + c;
        const float *t = p->w + (int64_t)i * k * p->ct + c;
#pragma GCC unroll 5
        for (int j = 0; j < k; j++)
#pragma GCC unroll 4
            for (int e = 0; e < across; e++) acc[e] += vload(x + (e + j) * p->ct) * vload(t + j * p->ct);
    }
#pragma GCC unroll 4
    for (int e = 0; e < across; e++) {
        vf s = acc[e];
        float *y = p->y + h * p->y_row + (w + e) * p->y_col + c;
        if (p->residual) s += load_some(p->residual + h * p->r_row + (w + e) * p->r_col + c, lanes);
        if (p->add) s += load_some(y, lanes);
        store_some(y, s, lanes);
    }
}

INLINE void depthwise_body(const mhla_depthwise *given, const int k) {
    const mhla_depthwise p = *given;
    for (int h = 0; h < p.rows; h++)
        for (int64_t c = 0; c < p.C; c += LANES) {
            int w = 0;
            for (; w + ACROSS <= p.W; w += ACROSS) depthwise_outputs(&p, k, ACROSS, h, w, c);
            for (; w < p.W; w++) depthwise_outputs(&p, k, 1, h, w, c);
        }
}

void KERNEL(depthwise)(const mhla_depthwise *p) {
    if (p->k == 3)
        depthwise_body(p, 3);
    else if (p->k == 5)
        depthwise_body(p, 5);
    else
        depthwise_body(p, p->k);
}

/* Row i of the taps: `across` positions from column w of row h on. */
INLINE void depthwise_products(vf acc[], const mhla_depthwise *p, const int k, const int across, int i, int h, int w,
                               int64_t c, int lanes) {
    const float *x = p->tile + ((int64_t)(h + i) * (p->W + k - 1) + w) * p->ct + c;
    const float *d = p->y + h * p->y_row + w * p->y_col + c;
#pragma GCC unroll 4
    for (int e = 0; e < across; e++) {
        const vf t = load_some(d + e * p->y_col, lanes);
#pragma GCC unroll 5
        for (int j = 0; j < k; j++) acc[j] += t * vload(x + (e + j) * p->ct);
    }
}

enum { WIDEST_KERNEL = MHLA_WIDEST_DEPTHWISE };

INLINE void depthwise_weight_body(const mhla_depthwise *given, const int k) {
    const mhla_depthwise p = *given;
    for (int64_t c = 0; c < p.C; c += LANES) {
        const int lanes = lanes_at(c, p.C);
        for (int i = 0; i < k; i++) {
            vf acc[WIDEST_KERNEL];
#pragma GCC unroll 5
            for (int j = 0; j < k; j++) acc[j] = vset(0.0f);
            for (int h = 0; h < p.rows; h++) {
                int w = 0;
                for (; w + ACROSS <= p.W; w += ACROSS) depthwise_products(acc, &p, k, ACROSS, i, h, w, c, lanes);
                for (; w < p.W; w++) depthwise_products(acc, &p, k, 1, i, h, w, c, lanes);
            }
#pragma GCC unroll 5
            for (int j = 0; j < k; j++) {
                float *dw = p.dw + (int64_t)(i * k + j) * p.ct + c;
                vstore(dw, vload(dw) + acc[j]);
            }
        }
    }
}

void KERNEL(depthwise_weight)(const mhla_depthwise *p) {
    if (p->k == 3)
        depthwise_weight_body(p, 3);
    else if (p->k == 5)
        depthwise_weight_body(p, 5);
    else
        depthwise_weight_body(p, p->k);
}

/* ---- AdamW ---- */

INLINE vf vsqrt(vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    vf y;
    for (int i = 0; i < LANES; i++) y[i] = sqrtf(x[i]);
    return y;
#endif
}

void KERNEL(adamw)(float *p, float *m, float *v, const float *g, int64_t n, const mhla_adamw *a) {
    for (int64_t j = 0; j < n; j += LANES) {
        const int lanes = lanes_at(j, n);
        const vf d = load_some(g + j, lanes) * a->grad_scale;
        vf m1 = load_some(m + j, lanes), v1 = load_some(v + j, lanes);
        m1 += (d - m1) * a->one_minus_beta1;
        v1 = v1 * a->beta2 + a->one_minus_beta2 * d * d;
        const vf denominator = vsqrt(v1) * a->inverse_sqrt_bias2 + a->eps;
        store_some(p + j, load_some(p + j, lanes) * a->decay - a->step * m1 / denominator, lanes);
        store_some(m + j, m1, lanes);
        store_some(v + j, v1, lanes);
    }
}
