/* Element-wise functions on vectors: own polynomials, no table look-ups. */
#ifndef MHLA_SIMD_MATH_H
#define MHLA_SIMD_MATH_H

#include "simd/kernels/isa.h"

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

#endif
