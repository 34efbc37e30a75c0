/* Rows of q and k on their way in (feature map, rotary, column sums, denominators) and gradients on their way out. */
#include "simd/kernels/features.h"

/* (x_a, x_b) -> (x_a cos - x_b sin, x_a sin + x_b cos) for every pair of the row; sign = -1 turns back. */
static void rotate_half(float *row, int dim, const float *cos, const float *sin, float sign) {
    const int half = dim / 2;
    int j = 0;
    for (; j + LANES <= half; j += LANES) {
        const vf a = vload(row + j), b = vload(row + half + j), c = vload(cos + j), s = sign * vload(sin + j);
        vstore(row + j, a * c - b * s);
        vstore(row + half + j, a * s + b * c);
    }
    for (; j < half; j++) {
        const float a = row[j], b = row[half + j], c = cos[j], s = sign * sin[j];
        row[j] = a * c - b * s;
        row[half + j] = a * s + b * c;
    }
}

/* a1 a0 a3 a2 ..., and LANES/2 numbers as p0 p0 p1 p1 ... */
#if defined(__AVX512F__)
INLINE vf swap_pairs(vf a) {
    return __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}
INLINE vf twice(const float *p) {
    const vf a = vload_n(p, 8);
    return __builtin_shufflevector(a, a, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}
#elif defined(__AVX2__)
INLINE vf swap_pairs(vf a) { return __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6); }
INLINE vf twice(const float *p) {
    const vf a = vload_n(p, 4);
    return __builtin_shufflevector(a, a, 0, 0, 1, 1, 2, 2, 3, 3);
}
#else
INLINE vf swap_pairs(vf a) { return __builtin_shufflevector(a, a, 1, 0, 3, 2); }
INLINE vf twice(const float *p) {
    const vf a = vload_n(p, 2);
    return __builtin_shufflevector(a, a, 0, 0, 1, 1);
}
#endif

static void rotate_interleaved(float *row, int dim, const float *cos, const float *sin, float sign) {
    vf signs; /* the first of a pair takes -sin, the second sin */
    for (int e = 0; e < LANES; e++) signs[e] = e & 1 ? sign : -sign;
    int j = 0;
    for (; j + LANES <= dim; j += LANES) {
        const vf x = vload(row + j);
        vstore(row + j, x * twice(cos + j / 2) + swap_pairs(x) * (signs * twice(sin + j / 2)));
    }
    for (j /= 2; j < dim / 2; j++) {
        const float a = row[2 * j], b = row[2 * j + 1], c = cos[j], s = sign * sin[j];
        row[2 * j] = a * c - b * s;
        row[2 * j + 1] = a * s + b * c;
    }
}

static void rotate(float *row, mhla_rope rope, int dim, const float *cos, const float *sin, int64_t at, float sign) {
    const int64_t offset = at * (dim / 2);
    if (rope == MHLA_ROPE_HALF)
        rotate_half(row, dim, cos + offset, sin + offset, sign);
    else
        rotate_interleaved(row, dim, cos + offset, sin + offset, sign);
}

/* The body; K, feature, dtype and what else is wanted are constants where the caller knows them at compile time. Sums and
 * denominators are of the un-rotated features. Everything is copied out of *given first: the stores below might alias
 * it for all the compiler knows. */
INLINE void pack_body(const mhla_pack *given, const int K, const mhla_feature feature, const mhla_dtype dtype,
                      const int want_sum, const int want_den) {
    const mhla_pack p = *given;
    const vf eps = vset(p.eps);
    const int whole = K / LANES * LANES, tail = K - whole;
    vf sum[1024 / LANES];
    if (want_sum)
        for (int j = 0; j < K; j += LANES) sum[j / LANES] = vload(p.sum + j);
    for (int i = 0; i < p.n; i++) {
        const int64_t at = p.src.idx ? p.src.idx[i] : i;
        const char *x = (const char *)p.src.base + at * p.src.stride * (dtype == MHLA_F32 ? 4 : 2);
        float *y = p.dst + i * p.ld;
        vf den = vset(0.0f);
#pragma GCC unroll 8
        for (int j = 0; j < K; j += LANES) {
            vf f;
            if (j < whole)
                f = feature_apply(feature, row_load(x, dtype, j), eps);
            else /* phi(0) need not be 0 */
                f = vfirst(feature_apply(feature, row_load_n(x, dtype, j, tail), eps), tail);
            vstore(y + j, f);
            if (want_sum) sum[j / LANES] += f;
            if (want_den) den += f * vload(p.z + j);
        }
        for (int j = (K + LANES - 1) / LANES * LANES; j < (K + 15) / 16 * 16; j += LANES) vstore(y + j, vset(0.0f));
        if (want_den) p.den[i] = vsum(den);
        if (p.plain) memcpy(p.plain + i * p.ld, y, (size_t)(K + 15) / 16 * 64);
        if (p.rope != MHLA_ROPE_NONE) rotate(y, p.rope, p.rope_dim, p.cos, p.sin, p.rope_row + at, 1.0f);
    }
    if (want_sum)
        for (int j = 0; j < K; j += LANES) vstore(p.sum + j, sum[j / LANES]);
}

INLINE void pack_sized(const mhla_pack *p, const int K, const mhla_feature feature, const mhla_dtype dtype) {
    if (p->sum && p->z)
        pack_body(p, K, feature, dtype, 1, 1);
    else if (p->sum)
        pack_body(p, K, feature, dtype, 1, 0);
    else if (p->z)
        pack_body(p, K, feature, dtype, 0, 1);
    else
        pack_body(p, K, feature, dtype, 0, 0);
}

INLINE int pack_relu(const mhla_pack *p, const mhla_dtype dtype) {
    switch (p->K) { /* the head sizes of the paper's models */
    case 64: pack_sized(p, 64, MHLA_FEATURE_RELU, dtype); return 1;
    case 72: pack_sized(p, 72, MHLA_FEATURE_RELU, dtype); return 1;
    case 128: pack_sized(p, 128, MHLA_FEATURE_RELU, dtype); return 1;
    default: return 0;
    }
}

void KERNEL(pack)(const mhla_pack *p) {
    if (p->feature == MHLA_FEATURE_RELU &&
        (p->src.dtype == MHLA_F32 ? pack_relu(p, MHLA_F32) : pack_relu(p, MHLA_BF16)))
        return;
    pack_sized(p, p->K, p->feature, p->src.dtype);
}

INLINE void unpack_body(const mhla_unpack *given, const mhla_feature feature, const mhla_dtype dtype, const int rope) {
    const mhla_unpack u = *given;
    const int whole = u.K / LANES * LANES;
    float line[1024 + LANES], zeros[1024 + LANES];
    if (u.d == NULL) memset(zeros, 0, sizeof zeros);
    for (int i = 0; i < u.n; i++) {
        const int64_t at = u.x.idx ? u.x.idx[i] : i;
        const float *d = u.d ? u.d + i * u.ld : zeros;
        if (rope && u.d) {
            memcpy(line, d, (size_t)u.K * 4);
            rotate(line, u.rope, u.rope_dim, u.cos, u.sin, u.rope_row + at, -1.0f);
            d = line;
        }
        const float *plain = u.plain ? u.plain + i * u.ld : zeros;
        const float w = u.w ? u.w[i] : 1.0f;
        const void *x = row_at(&u.x, i);
        float *dx = row_at(&u.dx, i);
        for (int j = 0; j < whole; j += LANES) {
            vf f = vload(d + j);
            if (u.z) f += w * vload(u.z + j);
            if (u.plain) f += vload(plain + j);
            f = feature_grad(feature, row_load(x, dtype, j), f);
            if (u.accumulate) f += vload(dx + j);
            vstore(dx + j, f);
        }
        const int tail = u.K - whole;
        if (tail) {
            vf f = vload_n(d + whole, tail);
            if (u.z) f += w * vload_n(u.z + whole, tail);
            if (u.plain) f += vload_n(plain + whole, tail);
            f = feature_grad(feature, row_load_n(x, dtype, whole, tail), f);
            if (u.accumulate) f += vload_n(dx + whole, tail);
            vstore_n(dx + whole, f, tail);
        }
    }
}

void KERNEL(unpack)(const mhla_unpack *u) {
    const int rope = u->rope != MHLA_ROPE_NONE;
    if (u->feature == MHLA_FEATURE_RELU && u->x.dtype == MHLA_F32 && !rope)
        unpack_body(u, MHLA_FEATURE_RELU, MHLA_F32, 0);
    else
        unpack_body(u, u->feature, u->x.dtype, rope);
}

void KERNEL(copy_rows)(float *dst, int64_t ld, const mhla_rows *from, int n, int cols, const float *scale) {
    const mhla_rows src = *from;
    const int whole = cols / LANES * LANES, tail = cols - whole;
    for (int i = 0; i < n; i++) {
        const void *x = row_at(&src, i);
        float *y = dst + i * ld;
        const float s = scale ? scale[i] : 1.0f;
        if (src.dtype == MHLA_F32)
            for (int j = 0; j < whole; j += LANES) vstore(y + j, s * vload((const float *)x + j));
        else
            for (int j = 0; j < whole; j += LANES) vstore(y + j, s * row_load(x, MHLA_BF16, j));
        if (tail) vstore_n(y + whole, s * row_load_n(x, src.dtype, whole, tail), tail);
        for (int64_t j = cols; j < ld; j++) y[j] = 0.0f;
    }
}

/* n rows of nv vectors of `lanes` floats into one panel; float32 sources only. */
typedef float half_vf __attribute__((vector_size(LANES * 2), aligned(4), may_alias));

INLINE void copy_panel(float *panel, const int nv, const int whole, const mhla_rows *from, int begin, int n,
                       const float *scale) {
    const mhla_rows src = *from;
    const int lanes = whole ? LANES : LANES / 2;
    for (int r = 0; r < n; r++) {
        const float *x = (const float *)row_at(&src, r) + begin;
        const float s = scale ? scale[r] : 1.0f;
        float *y = panel + (int64_t)r * nv * lanes;
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            if (whole)
                vstore(y + j * LANES, s * vload(x + j * LANES));
            else
                *(half_vf *)(y + j * lanes) = s * *(const half_vf *)(x + j * lanes);
        }
    }
}

void KERNEL(copy_panels)(float *dst, const mhla_panels *p, const mhla_rows *src, int n, const float *scale) {
    for (int i = 0; i < p->count; i++) {
        const int begin = mhla_panel_begin(p, i), width = mhla_panel_begin(p, i + 1) - begin;
        const int cols = p->n - begin < width ? p->n - begin : width;
        float *panel = dst + (int64_t)n * begin;
        if (cols == width && src->dtype == MHLA_F32) {
            switch (width / p->unit + (p->unit == LANES ? 0 : 10)) {
            case 1: copy_panel(panel, 1, 1, src, begin, n, scale); continue;
            case 2: copy_panel(panel, 2, 1, src, begin, n, scale); continue;
            case 3: copy_panel(panel, 3, 1, src, begin, n, scale); continue;
            case 4: copy_panel(panel, 4, 1, src, begin, n, scale); continue;
            case 12: copy_panel(panel, 2, 0, src, begin, n, scale); continue;
            case 13: copy_panel(panel, 3, 0, src, begin, n, scale); continue;
            default: break;
            }
        }
        for (int r = 0; r < n; r++) { /* width may be half a vector more, or its last columns mean nothing */
            const void *x = row_at(src, r);
            float *y = panel + (int64_t)r * width;
            const float s = scale ? scale[r] : 1.0f;
            for (int j = 0; j < width; j += LANES) {
                const int valid = cols - j < LANES ? (cols > j ? cols - j : 0) : LANES;
                const int room = width - j < LANES ? width - j : LANES;
                if (valid == LANES)
                    vstore(y + j, s * row_load(x, src->dtype, begin + j));
                else
                    vstore_n(y + j, s * row_load_n(x, src->dtype, begin + j, valid), room);
            }
        }
    }
}

void KERNEL(store_rows)(const mhla_rows *dst, const float *src, int64_t ld, int n, int cols, int accumulate) {
    for (int i = 0; i < n; i++) {
        void *y = row_at(dst, i);
        for (int j = 0; j < cols; j += LANES) {
            const int w = cols - j < LANES ? cols - j : LANES;
            vf x = vload_n(src + i * ld + j, w);
            if (accumulate) x = row_load_n(y, dst->dtype, j, w) + x;
            row_store_n(y, dst->dtype, j, x, w);
        }
    }
}
