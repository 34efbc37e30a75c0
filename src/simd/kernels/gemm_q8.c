/* Rows times a weight of Q8_0. A row is narrowed to 16 bits, each 32 numbers with a scale of their own, so that the products
 * are those of integers, two of them in a 32-bit lane: twice the rate of float32, exact within a block, and as fast as memory
 * where there is one row (which comes by itself: fetching ahead made it slower). The error is that of the 16 bits, 1/65536 of the largest of the 32: next to the eight bits of the
 * weight it is nothing. */
#include "simd/kernels/isa.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { BLOCK = 32, VECTORS = 4, MOST = 8 /* rows of a tile */ };

typedef int16_t vs __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

/* The largest of 32 sizes, as the bits of a float, which are ordered as the sizes are: infinity and then NaN above all. */
INLINE float largest(const float *x) {
    vi most = {0};
    for (int j = 0; j < BLOCK; j += LANES) {
        const vi size = *(const vi *)(x + j) & 0x7fffffff;
        most = (vi)vselect(size > most, (vf)size, (vf)most);
    }
    int32_t bits = 0;
    for (int j = 0; j < LANES; j++) bits = most[j] > bits ? most[j] : bits;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void KERNEL(narrow_q8)(int16_t *dst, float *scale, int64_t ld, const float *src, int64_t lds, int n, int cols) {
    for (int i = 0; i < n; i++, dst += ld, scale += ld / BLOCK, src += lds)
        for (int b = 0; b < cols / BLOCK; b++) {
            const float *x = src + b * BLOCK, most = largest(x);
            /* What is too small to be divided by is nothing; what is not finite makes the row NaN. */
            const float inverse = most > 1e-30f && most <= 3.4e38f ? 32767.0f / most : 0.0f;
            scale[b] = most <= 3.4e38f ? most / 32767.0f : NAN;
            for (int j = 0; j < BLOCK; j += LANES) { /* the adder rounds; the integer is what its lower bits say */
                const vi rounded = (vi)(inverse * vload(x + j) + 0x1.8p23f);
                *(vs *)(dst + b * BLOCK + j) = __builtin_convertvector(rounded, vs);
            }
        }
}

/* ---- A lane of 32 bits: two numbers of a column of B, or of a row of A ---- */

#if defined(__AVX512BW__)
typedef __m512i pairs;
INLINE pairs load_pairs(const int8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vi add_dots(vi t, pairs w, int32_t a) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)t, w, _mm512_set1_epi32(a));
#else
    return t + (vi)_mm512_madd_epi16(w, _mm512_set1_epi32(a));
#endif
}
#elif defined(__AVX2__)
typedef __m256i pairs;
INLINE pairs load_pairs(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi add_dots(vi t, pairs w, int32_t a) { return t + (vi)_mm256_madd_epi16(w, _mm256_set1_epi32(a)); }
#elif defined(__SSE2__)
typedef __m128i pairs;
INLINE pairs load_pairs(const int8_t *p) {
    const __m128i x = _mm_loadl_epi64((const __m128i *)p);
    return _mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8);
}
INLINE vi add_dots(vi t, pairs w, int32_t a) { return t + (vi)_mm_madd_epi16(w, _mm_set1_epi32(a)); }
#else
typedef vi pairs; /* two bytes, the first one lowest */
INLINE pairs load_pairs(const int8_t *p) { return (vi) __builtin_convertvector(*(const vh *)p, vu); }
INLINE vi add_dots(vi t, pairs w, int32_t a) {
    const int32_t even = (int16_t)(a & 0xffff), odd = a >> 16;
    return t + ((vi)((vu)w << 24) >> 24) * even + ((vi)((vu)w << 16) >> 24) * odd;
}
#endif

/* float16: shifted into place the exponent is 112 too small, which a multiplication mends, subnormals included. */
INLINE vf load_half(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#endif
    const vu h = __builtin_convertvector(*(const vh *)p, vu), rest = (h & 0x7fffu) << 13;
    const vu scaled = (vu)((vf)rest * 0x1p112f), beyond = (vu)(rest >= 0x7c00u << 13); /* infinite, or NaN */
    return (vf)((h & 0x8000u) << 16 | scaled | (beyond & 0x7f800000u));
}

/* mr rows by nv vectors. Sums of blocks are added up in C: registers are for the sums of the block at hand. */
INLINE void q8_tile(const mhla_gemm_q8 *g, int row, const int mr, const int nv, const char *const *line, int64_t step) {
    const int width = nv * LANES;
    const unsigned char *b = g->b;
    const int16_t *a = g->a + row * g->a_row;
    const float *scale = g->scale + row * (g->a_row / BLOCK);
    for (int k = 0; k < g->k; k += BLOCK, a += BLOCK, scale++) {
        vi t[MOST][VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) t[i][j] = (vi){0};
        const int8_t *q = (const int8_t *)(b + 2 * width);
#pragma GCC unroll 2
        for (int p = 0; p < BLOCK; p += 2, q += 2 * width) {
            pairs w[VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) w[j] = load_pairs(q + 2 * j * LANES);
            __builtin_prefetch(*line, 0, 2);
            line += step;
#pragma GCC unroll 8
            for (int i = 0; i < mr; i++) {
                int32_t two;
                memcpy(&two, a + i * g->a_row + p, sizeof two);
#pragma GCC unroll 4
                for (int j = 0; j < nv; j++) t[i][j] = add_dots(t[i][j], w[j], two);
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            const vf d = load_half((const uint16_t *)b + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < mr; i++) {
                float *c = g->c + (row + i) * g->c_row + j * LANES;
                vf sum = d * scale[i * (g->a_row / BLOCK)] * __builtin_convertvector(t[i][j], vf);
                if (g->add || k > 0) sum += vload(c);
                vstore(c, sum);
            }
        }
        b += (int64_t)(BLOCK + 2) * width;
    }
}

/* Rows of a tile of n vectors: sums, the weight's numbers, and something to work with. */
#define MOST_ROWS(n) (REGISTERS == 32 ? ((n) == 4 ? 6 : 8) : ((n) <= 1 ? 8 : (n) == 2 ? 5 : (n) == 3 ? 3 : 2))

#define CASE(mr)                                                                                                       \
    case mr:                                                                                                           \
        if ((mr) <= MOST_ROWS(nv)) q8_tile(g, row, (mr) <= MOST_ROWS(nv) ? (mr) : 1, nv, fetch, step);                 \
        break;

INLINE void rows_of(const mhla_gemm_q8 *g, const int nv) {
    const int most = MOST_ROWS(nv), tiles = (g->m + most - 1) / most, steps = g->k / 2;
    const char *line[MAX_LINES + LANES];
    const int lines = list_lines(line, g->prefetch, g->n_prefetch);
    for (int t = 0, row = 0, at = 0; t < tiles; t++) {
        const int mr = g->m / tiles + (t < g->m % tiles), some = lines - at >= steps;
        for (; !some && at < lines; at++) __builtin_prefetch(line[at], 0, 2);
        const char *const *fetch = some ? line + at : &no_line;
        const int64_t step = some;
        switch (mr) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
        if (some) at += steps;
        row += mr;
    }
}

#define INSTANCE(nv)                                                                                                   \
    static __attribute__((noinline)) void q8_##nv(const mhla_gemm_q8 *g) { rows_of(g, nv); }
INSTANCE(1)
INSTANCE(2)
INSTANCE(3)
INSTANCE(4)

void KERNEL(gemm_q8)(const mhla_gemm_q8 *g) {
    static void (*const table[VECTORS + 1])(const mhla_gemm_q8 *g) = {NULL, q8_1, q8_2, q8_3, q8_4};
    table[g->width / LANES](g);
}
