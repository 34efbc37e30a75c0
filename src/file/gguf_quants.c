/* Quantised blocks of GGUF files. Scales are float16 (d, m), quantised numbers q have 2 to 8 bits. Products are rounded to
 * float32 one by one, in the order written here; the file is compiled without fused multiply-adds, so that the numbers are
 * those of the format to the last bit.
 *
 * Blocks of 32: q of number i is in byte i mod 16, in the low half for i < 16. A fifth bit is bit i of qh.
 * Blocks of 256 (K-quants) have a scale, and some a minimum, for each group of 16 or 32 numbers. */
#include "file/gguf_quants.h"

#include <stdint.h>
#include <string.h>

#include "core/numbers.h"

static float half_at(const unsigned char *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return mhla_half_to_float(h);
}

/* ---- Blocks of 32 ---- */

/* d (q + bias); qh: four bytes with the fifth bits, or NULL. */
static void widen_32(float *to, const unsigned char *nibbles, const unsigned char *qh, int bias, float d) {
    for (int i = 0; i < 32; i++) {
        const int high = qh ? qh[i / 8] >> i % 8 & 1 : 0;
        const int q = (nibbles[i % 16] >> (i < 16 ? 0 : 4) & 15) + 16 * high;
        to[i] = d * (float)(q + bias);
    }
}

static void add_32(float *to, float m) {
    for (int i = 0; i < 32; i++) to[i] += m;
}

void mhla_gguf_widen_q4_0(float *to, const unsigned char *block) { widen_32(to, block + 2, NULL, -8, half_at(block)); }
void mhla_gguf_widen_q4_1(float *to, const unsigned char *block) {
    widen_32(to, block + 4, NULL, 0, half_at(block));
    add_32(to, half_at(block + 2));
}
void mhla_gguf_widen_q5_0(float *to, const unsigned char *block) {
    widen_32(to, block + 6, block + 2, -16, half_at(block));
}
void mhla_gguf_widen_q5_1(float *to, const unsigned char *block) {
    widen_32(to, block + 8, block + 4, 0, half_at(block));
    add_32(to, half_at(block + 2));
}
void mhla_gguf_widen_q8_0(float *to, const unsigned char *block) {
    mhla_q8_block b;
    memcpy(&b, block, sizeof b);
    mhla_q8_widen(to, &b);
}

/* ---- Blocks of 256 ---- */

/* Two bits of number i: 64 bytes hold four numbers each, which are 32 apart; a half of the block has 32 of the bytes. */
static int two_bits(const unsigned char *bytes, int i) {
    return bytes[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
}

/* Scales and minima of the eight groups of Q4_K and Q5_K, six bits each, in 12 bytes. */
static void scales_of_eight(int scale[8], int least[8], const unsigned char *b) {
    for (int k = 0; k < 4; k++) {
        scale[k] = b[k] & 63;
        least[k] = b[k + 4] & 63;
        scale[k + 4] = (b[k + 8] & 15) + 16 * (b[k] >> 6);
        least[k + 4] = (b[k + 8] >> 4) + 16 * (b[k + 4] >> 6);
    }
}

/* (d scale) q - dmin least; qh: 32 bytes, bit k is the fifth bit in group k, or NULL. */
static void widen_eight_groups(float *to, const unsigned char *block, const unsigned char *qh,
                               const unsigned char *nibbles) {
    const float d = half_at(block), dmin = half_at(block + 2);
    int scale[8], least[8];
    scales_of_eight(scale, least, block + 4);
    for (int i = 0; i < 256; i++) {
        const int k = i / 32, high = qh ? qh[i % 32] >> k & 1 : 0;
        const int q = (nibbles[32 * (k / 2) + i % 32] >> (k % 2 ? 4 : 0) & 15) + 16 * high;
        to[i] = d * (float)scale[k] * (float)q - dmin * (float)least[k];
    }
}

void mhla_gguf_widen_q4_k(float *to, const unsigned char *block) { widen_eight_groups(to, block, NULL, block + 16); }
void mhla_gguf_widen_q5_k(float *to, const unsigned char *block) {
    widen_eight_groups(to, block, block + 16, block + 48);
}

void mhla_gguf_widen_q2_k(float *to, const unsigned char *block) {
    const unsigned char *scales = block, *qs = block + 16;
    const float d = half_at(block + 80), dmin = half_at(block + 82);
    for (int i = 0; i < 256; i++)
        to[i] = d * (float)(scales[i / 16] & 15) * (float)two_bits(qs, i) - dmin * (float)(scales[i / 16] >> 4);
}

/* q has three bits: where the third is 0, four are subtracted. Scales have six, four of them beside each other. */
void mhla_gguf_widen_q3_k(float *to, const unsigned char *block) {
    const unsigned char *third = block, *qs = block + 32, *scales = block + 96;
    const float d = half_at(block + 108);
    for (int i = 0; i < 256; i++) {
        const int k = i / 16;
        const int scale = (scales[k % 8] >> 4 * (k / 8) & 15) + 16 * (scales[8 + k % 4] >> 2 * (k / 4) & 3) - 32;
        const int q = two_bits(qs, i) - (third[i % 32] >> i / 32 & 1 ? 0 : 4);
        to[i] = d * (float)scale * (float)q;
    }
}

/* Four low bits of number i lie in 128 bytes, the two high ones in 64. */
void mhla_gguf_widen_q6_k(float *to, const unsigned char *block) {
    const unsigned char *low = block, *high = block + 128, *scales = block + 192;
    const float d = half_at(block + 208);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, r = i % 128;
        const int q = (low[64 * half + r % 64] >> (r < 64 ? 0 : 4) & 15) + 16 * two_bits(high, i) - 32;
        to[i] = d * (float)(int8_t)scales[i / 16] * (float)q;
    }
}
