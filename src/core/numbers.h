/* Numbers that are stored in fewer bits than float32: float16, bfloat16, and the blocks of Q8_0, which are llama.cpp's.
 * One definition each, for files, for weights in memory and for references. */
#ifndef MHLA_CORE_NUMBERS_H
#define MHLA_CORE_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float mhla_float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t mhla_bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float mhla_half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return mhla_float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x400u) return mhla_float_of_bits(sign | ((rest << 13) + (112u << 23)));
    const float small = (float)rest * 0x1p-24f; /* zero and the subnormals: exact */
    return sign ? -small : small;
}

/* To nearest even; what is too large is infinite, NaN stays. */
static inline uint16_t mhla_float_to_half(float f) {
    const uint32_t u = mhla_bits_of_float(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 rounds up to infinity */
    if (rest < 0x38800000u) { /* below 2^-14: the adder rounds to a multiple of 2^-24 */
        const uint32_t sum = mhla_bits_of_float(mhla_float_of_bits(rest) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    return (uint16_t)(sign | ((rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13));
}

static inline float mhla_bf16_to_float(uint16_t h) { return mhla_float_of_bits((uint32_t)h << 16); }

static inline uint16_t mhla_float_to_bf16(float f) {
    const uint32_t u = mhla_bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* a NaN must not become infinity */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* ---- Q8_0: 32 numbers d q ---- */

enum { MHLA_Q8_COUNT = 32 };

typedef struct mhla_q8_block {
    uint16_t d; /* float16 */
    int8_t q[MHLA_Q8_COUNT];
} mhla_q8_block;
_Static_assert(sizeof(mhla_q8_block) == 34, "Q8_0 blocks lie in files without gaps");

/* As ggml's reference does it: d = largest / 127, q = x / d rounded half away from zero (by the unrounded d). Numbers that
 * are no numbers become 0. */
static inline void mhla_q8_quantise(mhla_q8_block *to, const float x[MHLA_Q8_COUNT]) {
    float most = 0.0f;
    for (int i = 0; i < MHLA_Q8_COUNT; i++) {
        const float size = fabsf(x[i]);
        if (size > most) most = size;
    }
    const float d = most / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    to->d = mhla_float_to_half(d);
    for (int i = 0; i < MHLA_Q8_COUNT; i++) {
        float r = x[i] * inverse;
        r = r >= 127.0f ? 127.0f : r > -127.0f ? r : r <= -127.0f ? -127.0f : 0.0f;
        const int whole = (int)r; /* towards zero; what is left is exact, so this is roundf and no call */
        const float left = r - (float)whole;
        to->q[i] = (int8_t)(whole + (left >= 0.5f) - (left <= -0.5f));
    }
}

/* d q, exact. */
static inline void mhla_q8_widen(float x[MHLA_Q8_COUNT], const mhla_q8_block *from) {
    const float d = mhla_half_to_float(from->d);
    for (int i = 0; i < MHLA_Q8_COUNT; i++) x[i] = d * (float)from->q[i];
}

#endif
