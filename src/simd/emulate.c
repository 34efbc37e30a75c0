/* The products of bfloat16 pairs in plain C, bit for bit what vdpbf16ps and tdpbf16ps compute: for tests on CPUs that lack them,
 * and to compare with on those that have them. A table of any other instruction set with such a product is "<its name>-bf16" or
 * "<its name>-amx". It is far too slow to be chosen by itself. */
#include <math.h>

#include "core/numbers.h"
#include "simd/kernels.h"

/* Numbers too small for a normal float32 count as 0, on the way in and on the way out; the sign stays. */
static float flushed(float x) {
    const uint32_t u = mhla_bits_of_float(x);
    return u & 0x7f800000u ? x : mhla_float_of_bits(u & 0x80000000u);
}

/* c + a b rounded once, to nearest even. Whether a result is too small is decided after rounding to 24 bits with exponents
 * without limit: just below the least normal number fmaf rounds up to it, the instruction to 0. There the sum is exact in
 * double, because c is a multiple of 2^-149 and a b has 16 bits. */
static float multiply_add(float c, float a, float b) {
    c = flushed(c);
    a = flushed(a);
    b = flushed(b);
    const float r = flushed(fmaf(a, b, c));
    if (fabsf(r) == 0x1p-126f && fabs((double)c + (double)a * (double)b) < 0x1p-126 - 0x1p-151)
        return copysignf(0.0f, r);
    return r;
}

float mhla_dot_bf16(float c, uint32_t a, uint32_t b) {
    c = multiply_add(c, mhla_float_of_bits(a & 0xffff0000u), mhla_float_of_bits(b & 0xffff0000u));
    return multiply_add(c, mhla_float_of_bits(a << 16), mhla_float_of_bits(b << 16));
}

static uint32_t pair(const uint16_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 16; }

void mhla_emulated_gemm_bf16(const mhla_gemm_bf16 *g) {
    for (int i = 0; i < g->m; i++)
        for (int j = 0; j < g->width; j++) {
            float sum = 0.0f, *c = g->c + i * g->c_row + j;
            for (int p = 0; p < g->pairs; p++)
                sum =
                    mhla_dot_bf16(sum, pair(g->a + i * g->a_row + 2 * p), pair(g->b + 2 * ((int64_t)p * g->width + j)));
            *c = g->add ? *c + sum : sum;
        }
}

float mhla_dots_amx(float c, const uint32_t *a, const uint32_t *b, int pairs) {
    float even = 0.0f, odd = 0.0f;
    for (int p = 0; p < pairs; p++) {
        even = multiply_add(even, mhla_float_of_bits(a[p] << 16), mhla_float_of_bits(b[p] << 16));
        odd = multiply_add(odd, mhla_float_of_bits(a[p] & 0xffff0000u), mhla_float_of_bits(b[p] & 0xffff0000u));
    }
    return flushed(flushed(c) + flushed(even + odd));
}

void mhla_emulated_gemm_amx(const mhla_gemm_bf16 *g) {
    for (int i = 0; i < g->m; i++)
        for (int j = 0; j < g->width; j++) {
            float *c = g->c + i * g->c_row + j, sum = g->add ? *c : 0.0f;
            for (int p = 0; p < g->pairs; p += MHLA_TILE_PAIRS) {
                const int n = g->pairs - p < MHLA_TILE_PAIRS ? g->pairs - p : MHLA_TILE_PAIRS;
                uint32_t a[MHLA_TILE_PAIRS], b[MHLA_TILE_PAIRS];
                for (int q = 0; q < n; q++) {
                    a[q] = pair(g->a + i * g->a_row + 2 * (p + q));
                    b[q] = pair(g->b + 2 * ((int64_t)(p + q) * g->width + j));
                }
                sum = mhla_dots_amx(sum, a, b, n);
            }
            *c = sum;
        }
}
