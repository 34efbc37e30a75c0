/* Properties of characters. Tokenizers are tied to a version of Unicode: that of classes and categories is 16.0, which the
 * regular expressions of the reference libraries have, whatever versions the libraries that we are linked with know. */
#ifndef MHLA_TEXT_UNICODE_H
#define MHLA_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum {
    MHLA_CHAR_LETTER = 1,
    MHLA_CHAR_NUMBER = 2,
    MHLA_CHAR_SPACE = 4,
    MHLA_CHAR_WORD = 8,
    MHLA_CHAR_PUNCTUATION = 16 /* of Unicode 8, as in the reference library */
};

/* Bits of the above of a code point. */
unsigned mhla_char_class(uint32_t code);
/* Its general category, a UTF8PROC_CATEGORY_. */
int mhla_char_category(uint32_t code);
/* 1: a mark, a decomposition or a part of one that Unicode 9 does not have. The reference library's normal forms, and its
 * accents, are those of that version: to it, such a character is one like any other. */
int mhla_char_newer(uint32_t code);

/* What some table says of characters: ranges in ascending order, which do not overlap. */
typedef struct mhla_char_range {
    uint32_t first, last, value;
} mhla_char_range;
/* The range that a code point is in, or NULL. */
const mhla_char_range *mhla_char_find(const mhla_char_range *ranges, size_t count, uint32_t code);

/* Characters whose category is not the same in all versions of Unicode from 14 to 18; the value is that of 16.0. Of any
 * other character each library of these versions says the same. */
extern const mhla_char_range mhla_char_changes[];
extern const size_t mhla_char_change_count;

/* The code point at `at`, which is valid UTF-8, and its length. */
static inline uint32_t mhla_char_read(const char *at, size_t *length) {
    const unsigned char *c = (const unsigned char *)at;
    if (c[0] < 0x80) return *length = 1, c[0];
    if (c[0] < 0xe0) return *length = 2, (uint32_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    if (c[0] < 0xf0) return *length = 3, (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3f);
    return *length = 4,
           (uint32_t)(c[0] & 0x07) << 18 | (uint32_t)(c[1] & 0x3f) << 12 | (uint32_t)(c[2] & 0x3f) << 6 | (c[3] & 0x3f);
}

#endif
