/* The focusing map of Focused LA, f(a) = a^p |a| / |a^p| with norms over all heads of a token, and its gradient. Rows are
 * divided by their largest element first, which changes nothing but keeps powers away from the ends of the range: a row of
 * negative inputs is eps everywhere, and the squares of its cubes would be 0. */
#include "simd/kernels/features.h"

INLINE vf power_of(vf b, const int p) {
    vf y = vset(1.0f);
    for (int i = 0; i < p; i++) y *= b;
    return y;
}

/* a of one row of a head, vector j. Lanes from K on are 0, because `inverse` is. */
INLINE vf scaled(const void *x, mhla_dtype dtype, int j, int K, const float *inverse, vf eps) {
    const vf v = K - j >= LANES ? row_load(x, dtype, j) : row_load_n(x, dtype, j, K - j);
    return relu(v, eps) * vload(inverse + j);
}

INLINE float largest(vf x) {
    float t[LANES], max;
    vstore(t, x);
    max = t[0];
    for (int e = 1; e < LANES; e++) max = t[e] > max ? t[e] : max;
    return max;
}

INLINE void norms_body(const mhla_focus *given, const mhla_dtype dtype, const int power) {
    const mhla_focus p = *given;
    const vf eps = vset(p.eps);
    const int64_t element = dtype == MHLA_F32 ? 4 : 2;
    for (int i = 0; i < p.n; i++) {
        const char *row = row_at(&p.x, i);
        vf max = vset(0.0f), sum = vset(0.0f), sum_p = vset(0.0f);
        for (int h = 0; h < p.heads; h++)
            for (int j = 0; j < p.K; j += LANES) {
                const vf a = scaled(row + h * p.head * element, dtype, j, p.K, p.inverse + h * p.ld, eps);
                max = vselect(a > max, a, max);
            }
        const float reach = 1.0f / largest(max);
        for (int h = 0; h < p.heads; h++)
            for (int j = 0; j < p.K; j += LANES) {
                const vf b = reach * scaled(row + h * p.head * element, dtype, j, p.K, p.inverse + h * p.ld, eps);
                const vf c = power_of(b, power);
                sum += b * b;
                sum_p += c * c;
            }
        const float squares = vsum(sum);
        p.reach[i] = reach;
        p.gain[i] = sqrtf(squares / vsum(sum_p)) / reach;
        p.unit[i] = reach * reach / squares;
    }
}

void KERNEL(focus_norms)(const mhla_focus *p) {
    if (p->x.dtype == MHLA_F32 && p->power == 3)
        norms_body(p, MHLA_F32, 3);
    else
        norms_body(p, p->x.dtype, p->power);
}

INLINE void pack_body(const mhla_focus *given, const mhla_dtype dtype, const int power) {
    const mhla_focus p = *given;
    const vf eps = vset(p.eps);
    for (int i = 0; i < p.n; i++) {
        const void *x = row_at(&p.x, i);
        float *f = p.f + i * p.ld;
        int j = 0;
        for (; j < p.K; j += LANES) /* f = gain (reach a)^power */
            vstore(f + j, p.gain[i] * power_of(p.reach[i] * scaled(x, dtype, j, p.K, p.inverse, eps), power));
        for (; j < (p.K + 15) / 16 * 16; j += LANES) vstore(f + j, vset(0.0f));
    }
}

void KERNEL(focus_pack)(const mhla_focus *p) {
    if (p->x.dtype == MHLA_F32 && p->power == 3)
        pack_body(p, MHLA_F32, 3);
    else
        pack_body(p, p->x.dtype, p->power);
}

/* With b = reach a and along = df . f / |a|^2:
 *   da = power gain reach b^(power-1) (df - f along) + a along     dx = da inverse where x > 0 */
INLINE void unpack_body(const mhla_focus *given, const mhla_dtype dtype, const int power) {
    const mhla_focus p = *given;
    const vf eps = vset(p.eps);
    for (int i = 0; i < p.n; i++) {
        const void *x = row_at(&p.x, i);
        float *dx = p.dx.base ? row_at(&p.dx, i) : NULL;
        const float reach = p.reach[i], gain = p.gain[i], along = p.along[i];
        for (int j = 0; j < p.K; j += LANES) {
            const int lanes = p.K - j < LANES ? p.K - j : LANES;
            const vf a = scaled(x, dtype, j, p.K, p.inverse, eps), b = reach * a;
            const vf lower = gain * power_of(b, power - 1), f = lower * b;
            const vf da = (float)power * reach * lower * (vload(p.df + i * p.ld + j) - f * along) + a * along;
            vstore(p.sum + j, vload(p.sum + j) + a * da);
            if (dx == NULL) continue;
            vf d = relu_grad(row_load_n(x, dtype, j, lanes), da * vload(p.inverse + j));
            if (p.accumulate) d += vload_n(dx + j, lanes);
            vstore_n(dx + j, d, lanes);
        }
    }
}

void KERNEL(focus_unpack)(const mhla_focus *p) {
    if (p->x.dtype == MHLA_F32 && p->power == 3)
        unpack_body(p, MHLA_F32, 3);
    else
        unpack_body(p, p->x.dtype, p->power);
}
