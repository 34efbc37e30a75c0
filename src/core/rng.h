/* Random numbers without a state: a number is a function of where it is used, never of what was drawn before. Resuming,
 * recomputation and any number of workers or machines therefore see the same ones.
 *
 * A stream is keyed by (seed, step, sample, place); `place` is a number of the list in core/places.h.
 * Its words come in blocks of four by index. Philox4x32 with 10 rounds. */
#ifndef MHLA_CORE_RNG_H
#define MHLA_CORE_RNG_H

#include <math.h>
#include <stdint.h>

#include "core/places.h"

typedef struct mhla_rng {
    uint32_t key[2]; /* seed */
    uint32_t step, sample, place;
    uint32_t used; /* words that mhla_rng_next handed out */
} mhla_rng;

static inline mhla_rng mhla_rng_make(uint64_t seed, uint64_t step, uint64_t sample, uint32_t place) {
    return (mhla_rng){
        {(uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(step >> 32) ^ (uint32_t)(sample >> 32) * 0x9e3779b9u},
        (uint32_t)step,
        (uint32_t)sample,
        place,
        0};
}

/* Words 4 * index .. 4 * index + 3 of the stream. */
static inline void mhla_rng_block(const mhla_rng *r, uint32_t index, uint32_t out[4]) {
    uint32_t c[4] = {index, r->place, r->sample, r->step}, k0 = r->key[0], k1 = r->key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        const uint32_t n[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                               (uint32_t)a};
        for (int i = 0; i < 4; i++) c[i] = n[i];
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

/* In [0, 1), 24 bits. */
static inline float mhla_rng_unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

/* One after the other, for code that draws a few. */
static inline uint32_t mhla_rng_next(mhla_rng *r) {
    uint32_t w[4];
    mhla_rng_block(r, r->used / 4, w);
    return w[r->used++ % 4];
}
static inline float mhla_rng_uniform(mhla_rng *r) { return mhla_rng_unit(mhla_rng_next(r)); }
/* In 0 .. n-1. */
static inline uint32_t mhla_rng_below(mhla_rng *r, uint32_t n) {
    return (uint32_t)((uint64_t)mhla_rng_next(r) * n >> 32);
}
/* Normal with mean 0 and deviation 1. */
static inline double mhla_rng_normal(mhla_rng *r) {
    const double u = ((double)mhla_rng_next(r) + 1.0) * 0x1p-32, v = (double)mhla_rng_next(r) * 0x1p-32;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
/* The first n normal numbers of a stream that is drawn in no other way. */
void mhla_rng_normals(const mhla_rng *r, float *out, int64_t n);

#endif
