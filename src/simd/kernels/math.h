/* Element-wise functions on vectors: own polynomials, no table look-ups. */
#ifndef MHLA_SIMD_MATH_H
#define MHLA_SIMD_MATH_H

#include "simd/kernels/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* exp(x), relative error below 1e-7 for normal results; overflow gives inf, underflow 0, NaN stays NaN.
 * x = n ln2 + r with |r| <= ln2/2, then a polynomial of degree 6 in r. 2^n is applied in two halves, so that results
 * near the ends of the range come out right. */
INLINE vf vexpf(vf x) {
    const vf big = vset(104.0f);
    const vi over = x > big, under = x < -big;
    vf y = vselect(over, big, vselect(under, -big, x));
    const vf magic = vset(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    const vf shifted = y * 1.44269504088896341f + magic;
    const vf n = shifted - magic;
    vf r = y - n * 0.693145751953125f; /* ln2 in two parts; n * the first one is exact */
    r = r - n * 1.42860682030941723e-6f;
    vf p = vset(1.98412698e-4f) * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const vi i = (vi)shifted - (vi)magic;
    const vi half = i >> 1;
    const vf a = (vf)((half + 127) << 23), b = (vf)((i - half + 127) << 23);
    return vselect(x != x, x, p * a * b);
}

/* The larger and the smaller of x and a number; NaN stays NaN. */
#if defined(__AVX512F__)
INLINE vf vmax(vf x, float low) { return (vf)_mm512_max_ps(_mm512_set1_ps(low), (__m512)x); }
INLINE vf vmin(vf x, float high) { return (vf)_mm512_min_ps(_mm512_set1_ps(high), (__m512)x); }
#elif defined(__AVX2__)
INLINE vf vmax(vf x, float low) { return (vf)_mm256_max_ps(_mm256_set1_ps(low), (__m256)x); }
INLINE vf vmin(vf x, float high) { return (vf)_mm256_min_ps(_mm256_set1_ps(high), (__m256)x); }
#else
INLINE vf vmax(vf x, float low) { return vselect(x < low, vset(low), x); }
INLINE vf vmin(vf x, float high) { return vselect(x > high, vset(high), x); }
#endif

/* 2^x for use in 1 / (1 + 2^x) and the like: relative error 1e-7 plus that of x; 0 below 2^-127, inf above 2^127.5,
 * and NaN stays NaN. */
INLINE vf vexp2_flush(vf x) {
    const vf y = vmax(vmin(x, 128.25f), -127.25f);
    const vf magic = vset(12583039.0f); /* 1.5 * 2^23: adding it rounds to an integer; + 127, the exponent of 1 */
    const vf shifted = y + magic, r = y - (shifted - magic);
    vf p = vset(1.534581038e-4f) * r + 1.339993121e-3f;
    p = p * r + 9.618488963e-3f;
    p = p * r + 5.550328777e-2f;
    p = p * r + 2.402264689e-1f;
    p = p * r + 6.931472057e-1f;
    p = p * r + 1.0f;
    return p * (vf)((vu)shifted << 23); /* the low bits of `shifted` are the integer, and 127 */
}

/* Phi(x), the normal distribution, to 4e-8: 1/2 + t Q(t^2), t = x cut off at NORMAL_END, where Phi is 1 but for
 * 3e-8. Q is of degree 14, in a variable that runs from -1 to 1 so that its terms do not cancel. */
#define NORMAL_END 5.4f
INLINE vf vnormal(vf x) {
    const vf t = vmax(vmin(x, NORMAL_END), -NORMAL_END);
    const vf s = t * t * 6.858710562e-2f - 1.0f; /* 2 / NORMAL_END^2 */
    vf q = vset(4.060729698e-04f) * s - 1.039807685e-03f;
    q = q * s + 8.366419934e-04f;
    q = q * s - 1.154240919e-03f;
    q = q * s + 3.701613052e-03f;
    q = q * s - 6.749736611e-03f;
    q = q * s + 9.628209285e-03f;
    q = q * s - 1.394590177e-02f;
    q = q * s + 1.965128258e-02f;
    q = q * s - 2.575067617e-02f;
    q = q * s + 3.211585060e-02f;
    q = q * s - 3.920638189e-02f;
    q = q * s + 4.849962145e-02f;
    q = q * s - 6.532806903e-02f;
    q = q * s + 1.309281141e-01f;
    return t * q + 0.5f;
}

/* tanh(x), relative error below 2e-7: a polynomial near 0, where the other form cancels. */
INLINE vf vtanhf(vf x) {
    const vf z = x * x, far = 1.0f - 2.0f / (1.0f + vexp2_flush(2.88539008f * x));
    vf q = vset(-6.10495e-3f) * z + 2.100364e-2f;
    q = q * z - 5.38525e-2f;
    q = q * z + 1.3332782e-1f;
    q = q * z - 3.3333329e-1f;
    return vselect((x < 0.625f) & (x > -0.625f), x + x * z * q, far);
}

#endif
