/* Fingerprints in the manner of FNV-1a, over words of eight bytes, the lowest first on every machine; fast enough for megabytes, sensitive to every bit. No defence
 * against somebody who wants two texts to have the same one. */
#ifndef MHLA_CORE_HASH_H
#define MHLA_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Goes on from h. What comes in several calls counts as one where all but the last are multiples of eight bytes. */
static inline uint64_t mhla_hash_fold(uint64_t h, const void *bytes, size_t size) {
    const unsigned char *p = bytes;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) w = __builtin_bswap64(w);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    for (; size > 0; size--, p++) h = (h ^ *p) * 0x100000001b3u;
    return h;
}

/* A last stir. */
static inline uint64_t mhla_hash_end(uint64_t h) {
    h = (h ^ (h >> 32)) * 0xBF58476D1CE4E5B9u;
    return h ^ (h >> 29);
}

static inline uint64_t mhla_hash(uint64_t seed, const void *bytes, size_t size) {
    return mhla_hash_end(mhla_hash_fold(seed ^ 0xcbf29ce484222325u, bytes, size));
}

#endif
