/* SentencePiece's rules of normalisation as its models carry them (precompiled_charsmap): a double array of bytes that leads from
 * a text to what stands in its place. */
#ifndef MHLA_TEXT_CHARSMAP_H
#define MHLA_TEXT_CHARSMAP_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mhla_charsmap {
    uint32_t *units; /* [count] the double array */
    size_t count;
    char *texts; /* [bytes], each ended by a zero */
    size_t bytes;
} mhla_charsmap;

/* Bytes as the files have them: their number, the double array, the texts. MHLA_EDATA says what is wrong; `name` is the
 * file. Free it in any case. */
mhla_status mhla_charsmap_read(mhla_charsmap *map, const unsigned char *bytes, size_t size, const char *name);
void mhla_charsmap_free(mhla_charsmap *map);

/* What stands in the place of the beginning of a text, and how long that beginning is: the longest that there is a rule for,
 * or the shortest. NULL: there is none. */
const char *mhla_charsmap_find(const mhla_charsmap *map, const char *text, size_t bytes, int shortest, size_t *length);

#endif
