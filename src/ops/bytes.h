/* Saved states: numbers as bytes that are the same on every machine, little-endian, and their checksum. */
#ifndef MHLA_OPS_BYTES_H
#define MHLA_OPS_BYTES_H

#include <stdint.h>
#include <string.h>

#include "core/hash.h"

static inline void put64(unsigned char *to, uint64_t x) {
    for (int i = 0; i < 8; i++) to[i] = (unsigned char)(x >> (8 * i));
}
static inline uint64_t get64(const unsigned char *from) {
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x |= (uint64_t)from[i] << (8 * i);
    return x;
}
static inline unsigned char *put_floats(unsigned char *to, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++, to += 4) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        for (int b = 0; b < 4; b++) to[b] = (unsigned char)(u >> (8 * b));
    }
    return to;
}
static inline const unsigned char *get_floats(float *x, const unsigned char *from, int64_t n) {
    for (int64_t i = 0; i < n; i++, from += 4) {
        const uint32_t u = from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
        memcpy(x + i, &u, sizeof u);
    }
    return from;
}

static inline uint64_t checksum_of(const unsigned char *p, size_t size) {
    return mhla_hash_end(mhla_hash_fold(0x6d686c61u, p, size));
}

#endif
