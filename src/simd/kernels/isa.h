/* What one instruction set looks like to the kernels: vector types, lanes, registers. A kernel file includes this and
 * is compiled once per MHLA_ISA; symbols get its name. */
#ifndef MHLA_SIMD_ISA_H
#define MHLA_SIMD_ISA_H

#include <math.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "simd/kernels.h"

#define ISA_PASTE_(a, b, c) a##b##_##c
#define ISA_PASTE(a, b, c) ISA_PASTE_(a, b, c)
#define KERNEL(name) ISA_PASTE(mhla_, MHLA_ISA, name)
#define ISA_TEXT_(x) #x
#define ISA_TEXT(x) ISA_TEXT_(x)

#if defined(__AVX512F__)
enum { LANES = 16, REGISTERS = 32 };
#elif defined(__AVX2__)
enum { LANES = 8, REGISTERS = 16 };
#elif defined(__aarch64__)
enum { LANES = 4, REGISTERS = 32 };
#else
enum { LANES = 4, REGISTERS = 16 };
#endif

#define INLINE static inline __attribute__((always_inline))

/* Vectors with the alignment of their elements, so that a dereference is an unaligned load or store. */
typedef float vf __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE vf vload(const float *p) { return *(const vf *)p; }
INLINE void vstore(float *p, vf x) { *(vf *)p = x; }
INLINE vf vset(float x) { return x - (vf){0}; }
/* mask ? a : b, lane by lane */
INLINE vf vselect(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* The sum of all lanes, by halves. */
INLINE float vsum(vf x) {
    typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__AVX512F__)
    typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
    const v8 h = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    const v4 q = __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#elif defined(__AVX2__)
    const v4 q = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    const v4 q = x;
#endif
    return (q[0] + q[2]) + (q[1] + q[3]);
}

/* The first n lanes only, 0 <= n <= LANES; a load gives 0 in the others. */
#if defined(__AVX512F__)
INLINE vf vload_n(const float *p, int n) {
    if (__builtin_constant_p(n) && n == 8) return (vf)_mm512_zextps256_ps512(_mm256_loadu_ps(p));
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
INLINE void vstore_n(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)x); }
#elif defined(__AVX2__)
INLINE __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vload_n(const float *p, int n) { return (vf)_mm256_maskload_ps(p, first_lanes(n)); }
INLINE void vstore_n(float *p, vf x, int n) { _mm256_maskstore_ps(p, first_lanes(n), (__m256)x); }
#else
INLINE vf vload_n(const float *p, int n) {
    float t[LANES] = {0};
    memcpy(t, p, (size_t)n * 4);
    return vload(t);
}
INLINE void vstore_n(float *p, vf x, int n) {
    float t[LANES];
    vstore(t, x);
    memcpy(p, t, (size_t)n * 4);
}
#endif
/* x with zeros in all lanes but the first n */
INLINE vf vfirst(vf x, int n) {
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_mov_ps((__mmask16)((1u << n) - 1u), (__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_and_ps((__m256)x, _mm256_castsi256_ps(first_lanes(n)));
#endif
    float t[LANES];
    vstore(t, x);
    return vload_n(t, n);
}

/* bfloat16: the upper half of a float32; rounding to nearest even, NaN kept quiet. */
INLINE float bf16_to_f32(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
INLINE uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
INLINE vf vload_bf16(const uint16_t *p) {
    const vh h = *(const vh *)p;
    return (vf)(__builtin_convertvector(h, vu) << 16);
}
INLINE void vstore_bf16(uint16_t *p, vf x) {
#if defined(__AVX512BF16__)
    const __m256bh h = _mm512_cvtneps_pbh((__m512)x);
    memcpy(p, &h, sizeof h);
    return;
#endif
    const vu u = (vu)x;
    const vu nan = (vu)((u & 0x7fffffffu) > 0x7f800000u);
    const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const vu quiet = (u >> 16) | 0x40u;
    *(vh *)p = __builtin_convertvector((nan & quiet) | (~nan & rounded), vh);
}

/* Loads and stores of a row of the caller's, whole vectors or the first n lanes. */
INLINE vf row_load(const void *row, mhla_dtype dtype, int64_t at) {
    return dtype == MHLA_F32 ? vload((const float *)row + at) : vload_bf16((const uint16_t *)row + at);
}
INLINE vf row_load_n(const void *row, mhla_dtype dtype, int64_t at, int n) {
    if (dtype == MHLA_F32) return vload_n((const float *)row + at, n);
    uint16_t t[LANES] = {0};
    memcpy(t, (const uint16_t *)row + at, (size_t)n * 2);
    return vload_bf16(t);
}
INLINE void row_store(void *row, mhla_dtype dtype, int64_t at, vf x) {
    if (dtype == MHLA_F32)
        vstore((float *)row + at, x);
    else
        vstore_bf16((uint16_t *)row + at, x);
}
INLINE void row_store_n(void *row, mhla_dtype dtype, int64_t at, vf x, int n) {
    if (dtype == MHLA_F32) {
        vstore_n((float *)row + at, x, n);
        return;
    }
    uint16_t t[LANES];
    vstore_bf16(t, x);
    memcpy((uint16_t *)row + at, t, (size_t)n * 2);
}
INLINE void *row_at(const mhla_rows *r, int64_t i) {
    const int64_t element = (r->idx ? r->idx[i] : i) * r->stride;
    return (char *)r->base + element * (r->dtype == MHLA_F32 ? 4 : 2);
}

/* The lines of all prefetch lists, one list after the other, to be fetched one by one while a product runs; what
 * exceeds MAX_LINES is left to the hardware. */
enum { MAX_LINES = 2048 };

INLINE int list_lines(const char *line[MAX_LINES + LANES], const mhla_prefetch *lists, int count) {
    typedef uint64_t vl __attribute__((vector_size(LANES * 4), aligned(8), may_alias));
    enum { STEP = LANES / 2 };
    vl offset;
    for (int j = 0; j < STEP; j++) offset[j] = (uint64_t)j * 64;
    int n = 0;
    for (int f = 0; f < count; f++) {
        const mhla_prefetch list = lists[f];
        const int most = (list.bytes + 63) / 64 + 1; /* a row need not begin on a line */
        const int room = (MAX_LINES - n) / most, rows = list.n < room ? list.n : room;
        for (int r = 0; r < rows; r++) {
            const uint64_t p = (uint64_t)(uintptr_t)row_at(&list.rows, r), first = p & ~(uint64_t)63;
            const int lines = (int)((p + (uint64_t)list.bytes + 63 - first) / 64);
            for (int j = 0; j < lines; j += STEP) *(vl *)(line + n + j) = first + (uint64_t)j * 64 + offset;
            n += lines;
        }
    }
    return n;
}

static const char nowhere[64];
static const char *const no_line = nowhere; /* a line to fetch where there is nothing to fetch */

#endif
