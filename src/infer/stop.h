/* Stop strings in text that arrives in pieces: what has been matched, and what must be held back because it may become
 * a match. What comes out does not depend on how the text was cut. */
#ifndef MHLA_INFER_STOP_H
#define MHLA_INFER_STOP_H

#include <stddef.h>

typedef struct mhla_stops {
    const char *const *text;
    int count;
} mhla_stops;

/* Of the matches in text [size] that end after byte `seen`, the one that ends first, of several the longest: its number,
 * with *at where it begins; -1: there is none. */
int mhla_stops_find(const mhla_stops *s, const char *text, size_t size, size_t seen, size_t *at);
/* How many bytes at the end of text may be the beginning of a match. */
size_t mhla_stops_hold(const mhla_stops *s, const char *text, size_t size);

#endif
