/* Texts that go into messages: foreign names made harmless, and the name that was probably meant. */
#ifndef MHLA_FILE_TEXT_H
#define MHLA_FILE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* A foreign text in quotes for a message: control characters become '?', a long one is cut ("abc..."). */
typedef struct mhla_quoted {
    char text[104];
} mhla_quoted;
mhla_quoted mhla_quote(const char *foreign);
mhla_quoted mhla_quote_bytes(const char *foreign, size_t size);
#define MHLA_QUOTE(foreign) (mhla_quote(foreign).text)

/* Bytes of the UTF-8 character at `at` (size of them follow), 0 if there is none. */
int mhla_utf8_length(const unsigned char *at, size_t size);
/* The place of the first byte that is no UTF-8, or size. */
size_t mhla_utf8_broken(const unsigned char *text, size_t size);
/* Writes a code point as UTF-8 and returns its length. */
int mhla_utf8_put(unsigned char to[4], uint32_t code);

/* Changes (insert, delete, replace, swap of neighbours) from a to b; a number above `limit` if there are more. */
int mhla_edit_distance(const char *a, const char *b, int limit);
/* The nearest name, if it is near enough to be meant, of names offered one by one. */
typedef struct mhla_nearest {
    const char *name; /* that was asked for */
    const char *best; /* NULL: none so far */
    int distance;
} mhla_nearest;
mhla_nearest mhla_nearest_begin(const char *name);
void mhla_nearest_offer(mhla_nearest *n, const char *candidate);

#endif
