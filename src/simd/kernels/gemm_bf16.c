/* bfloat16: rounding and widening in the pair format, and, where the CPU has it, the product that takes two at a
 * time. A pair is one 32-bit lane, the even element in its lower half. */
#include "simd/kernels/turn.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

/* The bfloat16 nearest to x in the lower half of each lane; NaN quiet. */
INLINE vu round_bf16(vf x) {
#if defined(__AVX512BF16__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
#endif
    const vu u = (vu)x;
    const vu nan = (vu)((u & 0x7fffffffu) > 0x7f800000u);
    return (nan & ((u >> 16) | 0x40u)) | (~nan & ((u + 0x7fffu + ((u >> 16) & 1u)) >> 16));
}

/* Pairs of two rows of float32: the first in the lower halves. */
INLINE vu round_pair(vf low, vf high) {
#if defined(__AVX512BF16__)
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (vu)_mm512_permutexvar_epi16(interleave, (__m512i)both);
#endif
    return round_bf16(low) | round_bf16(high) << 16;
}

void KERNEL(narrow_pairs)(uint16_t *dst, const float *src, int k, int width) {
    for (int p = 0; p < k; p += 2, dst += 2 * width)
        for (int j = 0; j < width; j += LANES) {
            const vf low = vload(src + (int64_t)p * width + j);
            const vf high = p + 1 < k ? vload(src + (int64_t)(p + 1) * width + j) : (vf){0};
            *(vu *)(dst + 2 * j) = round_pair(low, high);
        }
}

void KERNEL(widen_pairs)(float *dst, const uint16_t *src, int k, int width) {
    for (int p = 0; p < k; p += 2, src += 2 * width)
        for (int j = 0; j < width; j += LANES) {
            const vu u = *(const vu *)(src + 2 * j);
            vstore(dst + (int64_t)p * width + j, (vf)(u << 16));
            if (p + 1 < k) vstore(dst + (int64_t)(p + 1) * width + j, (vf)(u & 0xffff0000u));
        }
}

void KERNEL(narrow_rows)(uint16_t *dst, int64_t ld, const float *src, int64_t lds, int n, int cols) {
    const int whole = cols / LANES * LANES;
    for (int i = 0; i < n; i++, dst += ld, src += lds) {
#if defined(__AVX512BF16__)
        int j = 0;
        for (; j + 2 * LANES <= whole; j += 2 * LANES) {
            const __m512bh h = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(src + j + LANES), _mm512_loadu_ps(src + j));
            memcpy(dst + j, &h, sizeof h);
        }
        if (j < whole) vstore_bf16(dst + j, vload(src + j));
#else
        for (int j = 0; j < whole; j += LANES) vstore_bf16(dst + j, vload(src + j));
#endif
        for (int e = whole; e < cols; e++) dst[e] = f32_to_bf16(src[e]);
        for (int64_t e = cols; e < ld; e++) dst[e] = 0;
    }
}

/* Columns j .. of rows x and y (y NULL: zeros) as pairs, `valid` of them there. */
INLINE vu zip_load(const void *x, const void *y, const mhla_dtype dtype, int j, int valid) {
    if (dtype == MHLA_F32 && valid == LANES)
        return round_pair(vload((const float *)x + j), y ? vload((const float *)y + j) : (vf){0});
    if (dtype == MHLA_F32)
        return round_pair(vload_n((const float *)x + j, valid), y ? vload_n((const float *)y + j, valid) : (vf){0});
    if (valid == LANES)
        return __builtin_convertvector(*(const vh *)((const uint16_t *)x + j), vu) |
               (y ? __builtin_convertvector(*(const vh *)((const uint16_t *)y + j), vu) : (vu){0}) << 16;
    return (vu)row_load_n(x, MHLA_BF16, j, valid) >> 16 | (y ? (vu)row_load_n(y, MHLA_BF16, j, valid) : (vu){0});
}

INLINE void zip_body(uint16_t *dst, const mhla_panels *p, const mhla_rows src, int n, const mhla_dtype dtype) {
    const int pairs = (n + 1) / 2;
    for (int i = 0; i < p->count; i++) {
        const int begin = mhla_panel_begin(p, i), width = mhla_panel_begin(p, i + 1) - begin;
        uint16_t *panel = dst + (int64_t)2 * pairs * begin;
        for (int r = 0; r < n; r += 2) {
            const void *x = row_at(&src, r), *y = r + 1 < n ? row_at(&src, r + 1) : NULL;
            for (int j = 0; j < width; j += LANES) {
                const int left = p->n - begin - j, valid = left < LANES ? (left > 0 ? left : 0) : LANES;
                *(vu *)(panel + (int64_t)r * width + 2 * j) = zip_load(x, y, dtype, begin + j, valid);
            }
        }
    }
}

void KERNEL(zip_rows)(uint16_t *dst, const mhla_panels *p, const mhla_rows *src, int n) {
    if (src->dtype == MHLA_F32)
        zip_body(dst, p, *src, n, MHLA_F32);
    else
        zip_body(dst, p, *src, n, MHLA_BF16);
}

void KERNEL(narrow_columns)(uint16_t *dst, int64_t ld, const float *src, int64_t lds, int n, int cols) {
    for (int j = 0; j < cols; j += LANES) {
        const int some = cols - j < LANES ? cols - j : LANES;
        for (int i = 0; i < n; i += 2 * LANES) { /* LANES columns of pairs of rows */
            const int pairs = (n - i + 1) / 2 < LANES ? (n - i + 1) / 2 : LANES;
            const float *from = src + i * lds + j;
            vf a[LANES];
            if (some == LANES && n - i >= 2 * LANES) {
#pragma GCC unroll 16
                for (int r = 0; r < LANES; r++)
                    a[r] = (vf)round_pair(vload(from + 2 * r * lds), vload(from + (2 * r + 1) * lds));
            } else {
                for (int r = 0; r < LANES; r++)
                    a[r] = (vf)round_pair(i + 2 * r < n ? vload_n(from + 2 * r * lds, some) : (vf){0},
                                          i + 2 * r + 1 < n ? vload_n(from + (2 * r + 1) * lds, some) : (vf){0});
            }
            turn_square(a);
            uint16_t *to = dst + j * ld + i;
            if (some == LANES && pairs == LANES) {
#pragma GCC unroll 16
                for (int c = 0; c < LANES; c++) vstore((float *)(to + c * ld), a[c]);
            } else {
                for (int c = 0; c < some; c++) vstore_n((float *)(to + c * ld), a[c], pairs);
            }
        }
    }
}

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

enum { BF_ROWS = 8, BF_VECTORS = 4 };

INLINE __m512bh pair(const uint16_t *p) {
    int32_t both;
    memcpy(&both, p, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

INLINE void bf16_tile(const mhla_gemm_bf16 *g, int row, const int mr, const int nv, const char *const *line,
                      int64_t line_step) {
    __m512 acc[BF_ROWS][BF_VECTORS];
    const uint16_t *a[BF_ROWS], *b = g->b;
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        a[i] = g->a + (row + i) * g->a_row;
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) acc[i][j] = _mm512_setzero_ps();
    }
    for (int p = 0; p < g->pairs; p++, b += 2 * 16 * nv) {
        __m512bh v[BF_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) v[j] = (__m512bh)_mm512_loadu_si512(b + 32 * j);
        __builtin_prefetch(*line, 0, 2);
        line += line_step;
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            const __m512bh x = pair(a[i] + 2 * p);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], x, v[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        float *c = g->c + (row + i) * g->c_row;
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            __m512 x = acc[i][j];
            if (g->add) x = _mm512_add_ps(_mm512_loadu_ps(c + 16 * j), x);
            _mm512_storeu_ps(c + 16 * j, x);
        }
    }
}

#define INSTANCE(mr, nv)                                                                                               \
    static __attribute__((noinline)) void bf16_##mr##x##nv(const mhla_gemm_bf16 *g, int row, const char *const *line,  \
                                                           int64_t step) {                                             \
        bf16_tile(g, row, mr, nv, line, step);                                                                         \
    }
#define TO_6(nv) INSTANCE(1, nv) INSTANCE(2, nv) INSTANCE(3, nv) INSTANCE(4, nv) INSTANCE(5, nv) INSTANCE(6, nv)
#define TO_8(nv) TO_6(nv) INSTANCE(7, nv) INSTANCE(8, nv)
TO_8(1)
TO_8(2)
TO_8(3)
TO_6(4)
#undef TO_8
#undef TO_6
#undef INSTANCE

typedef void (*bf16_fn)(const mhla_gemm_bf16 *g, int row, const char *const *line, int64_t step);

static const bf16_fn bf16_tiles[BF_VECTORS + 1][BF_ROWS + 1] = {
    {NULL},
    {NULL, bf16_1x1, bf16_2x1, bf16_3x1, bf16_4x1, bf16_5x1, bf16_6x1, bf16_7x1, bf16_8x1},
    {NULL, bf16_1x2, bf16_2x2, bf16_3x2, bf16_4x2, bf16_5x2, bf16_6x2, bf16_7x2, bf16_8x2},
    {NULL, bf16_1x3, bf16_2x3, bf16_3x3, bf16_4x3, bf16_5x3, bf16_6x3, bf16_7x3, bf16_8x3},
    {NULL, bf16_1x4, bf16_2x4, bf16_3x4, bf16_4x4, bf16_5x4, bf16_6x4},
};

void KERNEL(gemm_bf16)(const mhla_gemm_bf16 *g) {
    const int nv = g->width / 16, most = nv == 4 ? 6 : 8, tiles = (g->m + most - 1) / most;
    const int rows = g->m / tiles, more = g->m % tiles, pairs = g->pairs;
    const char *line[MAX_LINES + LANES];
    const int lines = list_lines(line, g->prefetch, g->n_prefetch);
    for (int t = 0, row = 0, at = 0; t < tiles; t++) {
        const int mr = rows + (t < more);
        if (lines - at >= pairs) {
            bf16_tiles[nv][mr](g, row, line + at, 1);
            at += pairs;
        } else {
            for (; at < lines; at++) __builtin_prefetch(line[at], 0, 2);
            bf16_tiles[nv][mr](g, row, &no_line, 0);
        }
        row += mr;
    }
}

#endif
