/* A square of vectors turned round in registers. */
#ifndef MHLA_SIMD_TURN_H
#define MHLA_SIMD_TURN_H

#include "simd/kernels/isa.h"

/* a0 b0 a1 b1 ... of the lower, and of the upper halves. */
#if defined(__AVX512F__)
INLINE vf zip_low(vf a, vf b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
INLINE vf zip_high(vf a, vf b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX2__)
INLINE vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
INLINE vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
INLINE vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
INLINE vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

/* A square of LANES x LANES in registers: zipping row i with row i + LANES/2 turns the bits of (row, column) by one;
 * after log2(LANES) times they have changed places. */
INLINE void turn_square(vf a[LANES]) {
    vf b[LANES];
#pragma GCC unroll 4
    for (int stage = 1; stage < LANES; stage *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            b[2 * i] = zip_low(a[i], a[i + LANES / 2]);
            b[2 * i + 1] = zip_high(a[i], a[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) a[i] = b[i];
    }
}

#endif
