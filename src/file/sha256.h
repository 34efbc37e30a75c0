/* SHA-256, for checking that what was fetched is what is meant. */
#ifndef MHLA_FILE_SHA256_H
#define MHLA_FILE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct mhla_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
} mhla_sha256;

void mhla_sha256_begin(mhla_sha256 *s);
void mhla_sha256_add(mhla_sha256 *s, const void *bytes, size_t size);
/* 64 hexadecimal digits and their end. */
void mhla_sha256_end(mhla_sha256 *s, char text[65]);

void mhla_sha256_of(const void *bytes, size_t size, char text[65]);

#endif
