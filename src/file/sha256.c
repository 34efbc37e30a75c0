#include "file/sha256.h"

#include <stdio.h>
#include <string.h>

/* Fractional parts of the cube roots of the first 64 primes (FIPS 180-4). */
static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void add_block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t x = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t y = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        for (int j = 7; j > 0; j--) v[j] = v[j - 1];
        v[4] += x;
        v[0] = x + y;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void mhla_sha256_begin(mhla_sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, start, sizeof start);
    s->bytes = 0;
}

void mhla_sha256_add(mhla_sha256 *s, const void *bytes, size_t size) {
    const uint8_t *p = bytes;
    size_t used = s->bytes % 64;
    s->bytes += size;
    if (used > 0) {
        const size_t n = size < 64 - used ? size : 64 - used;
        memcpy(s->block + used, p, n);
        p += n;
        size -= n;
        if (used + n < 64) return;
        add_block(s->h, s->block);
    }
    for (; size >= 64; p += 64, size -= 64) add_block(s->h, p);
    if (size > 0) memcpy(s->block, p, size);
}

void mhla_sha256_end(mhla_sha256 *s, char text[65]) {
    const uint64_t bits = s->bytes * 8;
    uint8_t tail[72] = {0x80};
    const size_t used = s->bytes % 64, pad = (used < 56 ? 56 : 120) - used;
    for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    mhla_sha256_add(s, tail, pad + 8);
    for (int i = 0; i < 8; i++) snprintf(text + (size_t)(8 * i), 9, "%08x", s->h[i]);
}

void mhla_sha256_of(const void *bytes, size_t size, char text[65]) {
    mhla_sha256 s;
    mhla_sha256_begin(&s);
    mhla_sha256_add(&s, bytes, size);
    mhla_sha256_end(&s, text);
}
