/* Few rows times a weight as it is stored, bfloat16 or Q8_0: reading the weight is the work, so every number is widened
 * in registers once per tile and never written. What comes out is what gemm makes of the widened panel, bit for bit. */
#include "simd/kernels/isa.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef int8_t vb __attribute__((vector_size(LANES), aligned(1), may_alias));

enum {
    BLOCK = 32,  /* numbers of a block of Q8_0 */
    VECTORS = 4, /* most of a tile: of one panel, or of two */
    AHEAD = 4096 /* bytes: one row has to be read as fast as memory gives it */
};

/* float16: shifted into place the exponent is 112 too small, which a multiplication mends, subnormals included. */
INLINE vf load_half(const uint16_t *p) {
    const vu h = __builtin_convertvector(*(const vh *)p, vu), rest = (h & 0x7fffu) << 13;
    const vu scaled = (vu)((vf)rest * 0x1p112f), beyond = (vu)(rest >= 0x7c00u << 13); /* infinite, or NaN */
    return (vf)((h & 0x8000u) << 16 | scaled | (beyond & 0x7f800000u));
}

/* By hand where the compiler would take the bytes apart one by one. */
INLINE vf load_bytes(const int8_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#elif defined(__SSE2__)
    int32_t four;
    memcpy(&four, p, sizeof four);
    const __m128i x = _mm_cvtsi32_si128(four), twice = _mm_unpacklo_epi8(x, x);
    return (vf)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const vb *)p, vi), vf);
#endif
}

INLINE int64_t block_bytes(int width) { return (int64_t)(BLOCK + 2) * width; }

void KERNEL(widen_q8)(float *q, float *d, const void *src, int k, int width) {
    const unsigned char *b = src;
    for (int p = 0; p < k; p += BLOCK, b += block_bytes(width), d += width) {
        const int8_t *from = (const int8_t *)(b + 2 * width);
        for (int j = 0; j < width; j += LANES) vstore(d + j, load_half((const uint16_t *)b + j));
        for (int j = 0; j < BLOCK * width; j += LANES, q += LANES) vstore(q, load_bytes(from + j));
    }
}

/* ---- A tile: mr rows by np panels of nv vectors ---- */

/* acc += A(:,p) w, w the widened numbers of row p of B. */
INLINE void add_products(vf acc[MHLA_FEW_ROWS][VECTORS], const int mr, const int n, const float *const a[], int p,
                         const vf w[VECTORS]) {
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        const float x = a[i][p];
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) acc[i][j] += x * w[j];
    }
}

INLINE void sum_q8(vf acc[MHLA_FEW_ROWS][VECTORS], const mhla_few *g, const float *const a[], const int mr,
                   const int nv, const int np) {
    const int width = nv * LANES;
    const unsigned char *b[MHLA_FEW_PANELS];
    for (int q = 0; q < np; q++) b[q] = g->b[q];
    for (int p = 0; p < g->k; p += BLOCK) {
        vf t[MHLA_FEW_ROWS][VECTORS]; /* the block's sums, before its scales */
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv * np; j++) t[i][j] = vset(-0.0f);
#pragma GCC unroll 2
        for (int r = 0; r < BLOCK; r++) {
            vf w[VECTORS];
#pragma GCC unroll 2
            for (int q = 0; q < np; q++) {
                const int8_t *row = (const int8_t *)(b[q] + (2 + r) * width);
                __builtin_prefetch(row + AHEAD, 0, 3);
#pragma GCC unroll 4
                for (int j = 0; j < nv; j++) w[q * nv + j] = load_bytes(row + j * LANES);
            }
            add_products(t, mr, nv * np, a, p + r, w);
        }
#pragma GCC unroll 4
        for (int j = 0; j < nv * np; j++) {
            const vf d = load_half((const uint16_t *)b[j / nv] + j % nv * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < mr; i++) acc[i][j] += d * t[i][j];
        }
        for (int q = 0; q < np; q++) b[q] += block_bytes(width);
    }
}

INLINE void sum_bf16(vf acc[MHLA_FEW_ROWS][VECTORS], const mhla_few *g, const float *const a[], const int mr,
                     const int nv, const int np) {
    const int width = nv * LANES;
    const uint16_t *b[MHLA_FEW_PANELS];
    for (int q = 0; q < np; q++) b[q] = g->b[q];
    for (int p = 0; p < g->k; p += 2) {
        vf low[VECTORS], high[VECTORS];
#pragma GCC unroll 2
        for (int q = 0; q < np; q++) {
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) {
                const vu u = *(const vu *)(b[q] + 2 * j * LANES);
                if (j * LANES % 16 == 0) __builtin_prefetch(b[q] + 2 * j * LANES + AHEAD / 2, 0, 3);
                low[q * nv + j] = (vf)(u << 16);
                high[q * nv + j] = (vf)(u & 0xffff0000u);
            }
            b[q] += 2 * width;
        }
        add_products(acc, mr, nv * np, a, p, low);
        if (p + 1 < g->k) add_products(acc, mr, nv * np, a, p + 1, high);
    }
}

INLINE void tile(const mhla_few *g, int row, const int q8, const int mr, const int nv, const int np) {
    vf acc[MHLA_FEW_ROWS][VECTORS];
    const float *a[MHLA_FEW_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        a[i] = g->a + (row + i) * g->a_row;
#pragma GCC unroll 4
        for (int j = 0; j < nv * np; j++) acc[i][j] = vset(-0.0f); /* what changes nothing that is added to it */
    }
    if (q8)
        sum_q8(acc, g, a, mr, nv, np);
    else
        sum_bf16(acc, g, a, mr, nv, np);
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv * np; j++) {
            float *c = g->c[j / nv] + (row + i) * g->c_row + j % nv * LANES;
            if (g->add) acc[i][j] = vload(c) + acc[i][j];
            vstore(c, acc[i][j]);
        }
}

/* Rows of a tile of n vectors: accumulators, a scale each, and something to work with. */
#define MOST_ROWS(n) (REGISTERS == 32 ? ((n) == 4 ? 6 : 8) : ((n) <= 1 ? 8 : (n) == 2 ? 5 : (n) == 3 ? 3 : 2))

#define CASE(mr)                                                                                                       \
    case mr:                                                                                                           \
        if ((mr) <= MOST_ROWS(nv * np)) tile(g, row, q8, (mr) <= MOST_ROWS(nv * np) ? (mr) : 1, nv, np);               \
        break;

INLINE void rows_of(const mhla_few *g, const int q8, const int nv, const int np) {
    const int most = MOST_ROWS(nv * np), tiles = (g->m + most - 1) / most;
    for (int t = 0, row = 0; t < tiles; t++) {
        const int mr = g->m / tiles + (t < g->m % tiles);
        switch (mr) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
        row += mr;
    }
}

#define INSTANCE(name, q8, nv, np)                                                                                     \
    static __attribute__((noinline)) void name(const mhla_few *g) { rows_of(g, q8, nv, np); }
INSTANCE(q8_1, 1, 1, 1)
INSTANCE(q8_2, 1, 2, 1)
INSTANCE(q8_3, 1, 3, 1)
INSTANCE(q8_4, 1, 4, 1)
INSTANCE(q8_11, 1, 1, 2)
INSTANCE(q8_22, 1, 2, 2)
INSTANCE(bf_1, 0, 1, 1)
INSTANCE(bf_2, 0, 2, 1)
INSTANCE(bf_3, 0, 3, 1)
INSTANCE(bf_4, 0, 4, 1)
INSTANCE(bf_11, 0, 1, 2)
INSTANCE(bf_22, 0, 2, 2)

void KERNEL(few)(const mhla_few *g) {
    static void (*const table[2][2][VECTORS + 1])(const mhla_few *g) = {
        {{NULL, bf_1, bf_2, bf_3, bf_4}, {NULL, bf_11, bf_22}},
        {{NULL, q8_1, q8_2, q8_3, q8_4}, {NULL, q8_11, q8_22}},
    };
    table[g->dtype == MHLA_Q8_0][g->panels == 2][g->vectors](g);
}
