/* Rows of scores on their way to softmax weights, and back: the running maximum, exp, sums, the gradient of a score.
 * A row sees the columns first..last-1 of its tile; what lies outside may hold anything, NaN included, and is not
 * touched but by writing 0 into lanes of the same vector. */
#include "simd/kernels/isa.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

/* a > b ? a : b, so that a NaN in a gives b, one in b stays. */
INLINE vf vlarger(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vselect(a > b, a, b);
#endif
}

INLINE float vlargest(vf x) {
    float s[LANES];
    memcpy(s, &x, sizeof s);
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) s[i] = s[i] > s[i + w] ? s[i] : s[i + w];
    return s[0];
}

/* exp(x) for x <= 0 or NaN, relative error below 1e-7; 0 below -87.7. As vexpf, but one end of the range needs no
 * care: x is held at -127 ln2, where 2^n has the bits of 0. The polynomial is minimax on |r| <= ln2/2. */
INLINE vf exp_down(vf x) {
    const vf y = vlarger(vset(-88.0296919f), x);
    const vf magic = vset(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, left in the low bits */
    const vf shifted = y * 1.44269504088896341f + magic;
    const vf n = shifted - magic;
    vf r = y - n * 0.693145751953125f; /* ln2 in two parts; n * the first one is exact */
    r = r - n * 1.42860682030941723e-6f;
    vf p = vset(1.3814540e-3f) * r + 8.3687451e-3f;
    p = p * r + 4.1668391e-2f;
    p = p * r + 1.66665204e-1f;
    p = p * r + 4.99999934e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (vf)(((vu)shifted << 23) + (127u << 23)); /* unsigned: lanes behind the mask hold anything */
}

typedef struct span {
    int first, last; /* columns that the row sees */
    int inner, end;  /* whole vectors of them are at inner .. end-1, both multiples of LANES */
} span;

INLINE span row_span(const mhla_scores *t, int i) {
    int first = 0, last = t->n;
    if (t->masked) {
        first = t->first + i > 0 && t->windowed ? t->first + i : 0;
        last = t->last + i < t->n ? t->last + i : t->n;
    }
    const int inner = (first + LANES - 1) / LANES * LANES, end = last / LANES * LANES;
    return (span){first, last, inner, end > inner ? end : inner};
}

/* Lanes of the vector at column `at` that the row sees. */
INLINE vi lanes_seen(const span *s, int at) {
    vi lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    lane += at;
    return (lane >= s->first) & (lane < s->last);
}

/* The vectors that are seen in part lie before `inner` and from `end` on: at most one each. */
INLINE int has_head(const span *s) { return s->first < s->inner && s->first < s->last; }
INLINE int has_tail(const span *s) { return s->end < s->last && s->end >= s->inner && s->last > s->inner; }

static float largest(const float *x, const span *s, float floor) {
    vf a = vset(floor), b = a;
    int j = s->inner;
    for (; j + LANES < s->end; j += 2 * LANES) {
        a = vlarger(vload(x + j), a);
        b = vlarger(vload(x + j + LANES), b);
    }
    if (j < s->end) a = vlarger(vload(x + j), a);
    const vf low = vset(floor);
    if (has_head(s)) {
        const int at = s->inner - LANES;
        b = vlarger(vselect(lanes_seen(s, at), vload(x + at), low), b);
    }
    if (has_tail(s)) b = vlarger(vselect(lanes_seen(s, s->end), vload(x + s->end), low), b);
    return vlargest(vlarger(a, b));
}

void KERNEL(scores_max)(const mhla_scores *t) {
    for (int i = 0; i < t->m; i++) {
        const span s = row_span(t, i);
        if (s.first < s.last) t->max[i] = largest(t->s + i * t->ld, &s, t->max[i]);
    }
}

/* What is subtracted: the maximum, but 0 for a row of -inf only, whose weights so far are then 0, not NaN. */
INLINE float pivot(float max) { return max == -INFINITY ? 0.0f : max; }

/* x = exp(x - m) where seen; returns the sum. */
INLINE float exp_row(float *x, const span *s, vf m) {
    const vf zero = vset(0.0f);
    vf a = zero, b = zero;
    int j = s->inner;
    for (; j + LANES < s->end; j += 2 * LANES) {
        const vf p = exp_down(vload(x + j) - m), q = exp_down(vload(x + j + LANES) - m);
        vstore(x + j, p);
        vstore(x + j + LANES, q);
        a += p;
        b += q;
    }
    if (j < s->end) {
        const vf p = exp_down(vload(x + j) - m);
        vstore(x + j, p);
        a += p;
    }
    if (has_head(s)) {
        const int at = s->inner - LANES;
        const vf p = vselect(lanes_seen(s, at), exp_down(vload(x + at) - m), zero);
        vstore(x + at, p);
        b += p;
    }
    if (has_tail(s)) {
        const vf p = vselect(lanes_seen(s, s->end), exp_down(vload(x + s->end) - m), zero);
        vstore(x + s->end, p);
        b += p;
    }
    return vsum(a + b);
}

void KERNEL(scores_online)(const mhla_scores *t) {
    for (int i = 0; i < t->m; i++) {
        float *x = t->s + i * t->ld;
        const span s = row_span(t, i);
        if (s.first >= s.last) continue;
        const float old = t->max[i], max = largest(x, &s, old), m = pivot(max);
        if (max > old) { /* what was summed under the old maximum shrinks */
            float line[LANES];
            vstore(line, exp_down(vset(old - m)));
            const float shrink = line[0];
            t->max[i] = max;
            t->sum[i] *= shrink;
            float *o = t->o + i * t->ldo;
            for (int64_t j = 0; j < t->ldo; j += LANES) vstore(o + j, shrink * vload(o + j));
        }
        t->sum[i] += exp_row(x, &s, vset(m));
    }
}

/* x = exp(x - m) where seen; sum and dot += the row sums of x and of x * y. */
INLINE void exp_dot_row(float *x, const float *y, const span *s, vf m, float *sum, float *dot) {
    const vf zero = vset(0.0f);
    vf a = zero, b = zero;
    for (int j = s->inner; j < s->end; j += LANES) {
        const vf p = exp_down(vload(x + j) - m);
        vstore(x + j, p);
        a += p;
        b += p * vload(y + j);
    }
    for (int edge = 0; edge < 2; edge++) {
        if (edge == 0 ? !has_head(s) : !has_tail(s)) continue;
        const int at = edge == 0 ? s->inner - LANES : s->end;
        const vi seen = lanes_seen(s, at);
        const vf p = vselect(seen, exp_down(vload(x + at) - m), zero);
        vstore(x + at, p);
        a += p;
        b += vselect(seen, p * vload(y + at), zero);
    }
    *sum += vsum(a);
    *dot += vsum(b);
}

void KERNEL(scores_weights)(const mhla_scores *t) {
    for (int i = 0; i < t->m; i++) {
        const span s = row_span(t, i);
        if (s.first < s.last)
            exp_dot_row(t->s + i * t->ld, t->ds + i * t->ld, &s, vset(pivot(t->max[i])), &t->sum[i], &t->dot[i]);
    }
}

void KERNEL(scores_grad)(const mhla_scores *t) {
    for (int i = 0; i < t->m; i++) {
        const span s = row_span(t, i);
        const float *p = t->s + i * t->ld;
        float *d = t->ds + i * t->ld;
        const vf mean = vset(t->dot[i]);
        const float *slope = t->slope ? t->slope + i * t->ld : NULL;
        for (int j = s.first / LANES * LANES; j < s.last; j += LANES) {
            vf ds = vload(p + j) * (vload(d + j) - mean);
            if (slope) ds *= vload(slope + j);
            vstore(d + j, ds);
        }
    }
}

/* The last LANES columns of a row that is long enough overlap whole vectors before them; that is cheaper than a part
 * of a vector. */
void KERNEL(scores_in)(float *dst, int64_t ld, const mhla_rows *from, int n, int cols, float factor,
                       const float *scale) {
    const mhla_rows src = *from;
    const int whole = cols / LANES * LANES, padded = (cols + 15) / 16 * 16;
    for (int i = 0; i < n; i++) {
        const void *x = row_at(&src, i);
        float *y = dst + i * ld;
        const float s = scale ? factor * scale[i] : factor;
        for (int j = 0; j < whole; j += LANES) vstore(y + j, s * row_load(x, src.dtype, j));
        for (int j = whole; j < padded; j += LANES) vstore(y + j, vset(0.0f));
        if (whole < cols && cols > LANES)
            vstore(y + cols - LANES, s * row_load(x, src.dtype, cols - LANES));
        else if (whole < cols)
            vstore_n(y, s * row_load_n(x, src.dtype, 0, cols), cols);
    }
}

void KERNEL(scores_out)(const mhla_rows *to, const float *o, int64_t ldo, int n, int cols, const float *scale,
                        int accumulate) {
    const mhla_rows out = *to;
    const int whole = cols / LANES * LANES, rest = cols - whole;
    for (int i = 0; i < n; i++) {
        void *y = row_at(&out, i);
        const float *x = o + i * ldo, s = scale ? scale[i] : 1.0f;
        for (int j = 0; j < whole; j += LANES) {
            vf v = s * vload(x + j);
            if (accumulate) v += row_load(y, out.dtype, j);
            row_store(y, out.dtype, j, v);
        }
        if (rest > 0 && whole > 0 && !accumulate) {
            row_store(y, out.dtype, cols - LANES, s * vload(x + cols - LANES));
        } else if (rest > 0) {
            vf v = s * vload(x + whole);
            if (accumulate) v += row_load_n(y, out.dtype, whole, rest);
            row_store_n(y, out.dtype, whole, v, rest);
        }
    }
}

/* ---- Few queries: every key and value is read once, from memory, so that only the reading counts ---- */

enum { FEW_KEYS = 4, FEW_VECTORS = 4, FEW_NEAR = 16 };

/* Rows i .. i+n-1 of what is read next, towards L2: rows of a head are often a multiple of 2 KiB apart and would push each
 * other out of L1. */
INLINE void fetch_next(const mhla_rows *next, int i, int n, int bytes) {
    for (int r = i; next && r < i + n; r++)
        for (int at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)row_at(next, r) + at, 0, 2);
}

/* Scores of m queries with `keys` keys from row i on. The part of a vector at the end of a row is read with what stands
 * before it, which is then masked. */
INLINE void few_scores_tile(float *s, int64_t lds, const float *q, int64_t ldq, const int m, const mhla_rows *k, int i,
                            const int keys, int K, const mhla_dtype dtype) {
    vf acc[2][FEW_KEYS];
    const void *row[FEW_KEYS];
    const int whole = K / LANES * LANES;
#pragma GCC unroll 4
    for (int j = 0; j < keys; j++) {
        row[j] = row_at(k, i + j);
#pragma GCC unroll 2
        for (int r = 0; r < m; r++) acc[r][j] = vset(0.0f);
    }
    for (int c = 0; c < whole; c += LANES)
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++) {
            const vf x = row_load(row[j], dtype, c);
#pragma GCC unroll 2
            for (int r = 0; r < m; r++) acc[r][j] += x * vload(q + r * ldq + c);
        }
    if (whole < K) {
        const int at = K > LANES ? K - LANES : 0;
        const vi fresh = lanes_seen(&(span){whole, K, 0, 0}, at);
        for (int j = 0; j < keys; j++) {
            const vf x = K > LANES ? row_load(row[j], dtype, at) : row_load_n(row[j], dtype, 0, K);
            for (int r = 0; r < m; r++) acc[r][j] += (vf)(fresh & (vi)x) * (vf)(fresh & (vi)vload(q + r * ldq + at));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < m; r++)
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++) s[r * lds + i + j] = vsum(acc[r][j]);
}

INLINE void few_scores_rows(float *s, int64_t lds, const float *q, int64_t ldq, const int m, const mhla_rows *k, int n,
                            int K, const mhla_dtype dtype) {
    int i = 0;
    for (; i + FEW_KEYS <= n; i += FEW_KEYS) few_scores_tile(s, lds, q, ldq, m, k, i, FEW_KEYS, K, dtype);
    for (; i < n; i++) few_scores_tile(s, lds, q, ldq, m, k, i, 1, K, dtype);
}

void KERNEL(few_scores)(float *s, int64_t lds, const float *q, int64_t ldq, int m, const mhla_rows *k, int n, int K,
                        const mhla_rows *next) {
    const mhla_rows rows = *k;
    const int bytes = K * (rows.dtype == MHLA_F32 ? 4 : 2);
    for (int near = 0; near < n; near += FEW_NEAR) { /* keys that stay in the nearest cache for all queries */
        const int some = n - near < FEW_NEAR ? n - near : FEW_NEAR;
        mhla_rows at = rows;
        at.base = row_at(&rows, near);
        fetch_next(next, near, some, bytes);
        for (int r = 0; r < m; r += 2) {
            float *to = s + r * lds + near;
            const float *from = q + r * ldq;
            if (rows.dtype == MHLA_F32 && m - r > 1)
                few_scores_rows(to, lds, from, ldq, 2, &at, some, K, MHLA_F32);
            else if (rows.dtype == MHLA_F32)
                few_scores_rows(to, lds, from, ldq, 1, &at, some, K, MHLA_F32);
            else if (m - r > 1)
                few_scores_rows(to, lds, from, ldq, 2, &at, some, K, MHLA_BF16);
            else
                few_scores_rows(to, lds, from, ldq, 1, &at, some, K, MHLA_BF16);
        }
    }
}

/* o [nv vectors] += s v over n rows, columns from `column` on. */
INLINE void few_sums_tile(float *o, const float *s, const int nv, const mhla_rows *v, int n, int column,
                          const mhla_dtype dtype) {
    vf acc[FEW_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) acc[j] = vload(o + column + j * LANES);
    for (int i = 0; i < n; i++) {
        const void *x = row_at(v, i);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) acc[j] += s[i] * row_load(x, dtype, column + j * LANES);
    }
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) vstore(o + column + j * LANES, acc[j]);
}

INLINE void few_sums_row(float *o, const float *s, const mhla_rows *v, int n, int V, const mhla_dtype dtype) {
    int c = 0;
    for (; c + FEW_VECTORS * LANES <= V; c += FEW_VECTORS * LANES) few_sums_tile(o, s, FEW_VECTORS, v, n, c, dtype);
    for (; c + LANES <= V; c += LANES) few_sums_tile(o, s, 1, v, n, c, dtype);
    if (c < V)
        for (int i = 0; i < n; i++) {
            const vf x = row_load_n(row_at(v, i), dtype, c, V - c);
            vstore(o + c, vload(o + c) + s[i] * x);
        }
}

void KERNEL(few_sums)(float *o, int64_t ldo, const float *s, int64_t lds, int m, const mhla_rows *v, int n, int V,
                      const mhla_rows *next) {
    const mhla_rows rows = *v;
    const int bytes = V * (rows.dtype == MHLA_F32 ? 4 : 2);
    for (int near = 0; near < n; near += FEW_NEAR) {
        const int some = n - near < FEW_NEAR ? n - near : FEW_NEAR;
        mhla_rows at = rows;
        at.base = row_at(&rows, near);
        fetch_next(next, near, some, bytes);
        for (int r = 0; r < m; r++) {
            if (rows.dtype == MHLA_F32)
                few_sums_row(o + r * ldo, s + r * lds + near, &at, some, V, MHLA_F32);
            else
                few_sums_row(o + r * ldo, s + r * lds + near, &at, some, V, MHLA_BF16);
        }
    }
}
