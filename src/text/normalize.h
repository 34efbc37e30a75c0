/* Normalizers of tokenizer.json: text to text before it is cut into words. */
#ifndef MHLA_TEXT_NORMALIZE_H
#define MHLA_TEXT_NORMALIZE_H

#include "text/charsmap.h"
#include "text/split.h"
#include "text/vocabulary.h"

typedef enum mhla_normalizer_kind {
    MHLA_NORMALIZE_PREPEND, /* `content` in front of what is not empty */
    MHLA_NORMALIZE_REPLACE, /* every match of `pattern` by `content` */
    MHLA_NORMALIZE_FORM,    /* NFC, NFD, NFKC, NFKD by `compose` and `compatible` */
    MHLA_NORMALIZE_LOWERCASE,
    MHLA_NORMALIZE_STRIP, /* spaces on the `left`, the `right` */
    MHLA_NORMALIZE_STRIP_ACCENTS,
    MHLA_NORMALIZE_PRECOMPILED,  /* by `map`, as the Python library of tokenizers applies it */
    MHLA_NORMALIZE_SENTENCEPIECE /* by `map`, and spaces: `squeeze`, `prefix`, `escape`, as SentencePiece does */
} mhla_normalizer_kind;

typedef struct mhla_normalizer {
    mhla_normalizer_kind kind;
    mhla_pattern pattern;
    char *content; /* [bytes] */
    size_t bytes;
    int compose, compatible, left, right;
    int final_sigma; /* LOWERCASE: that of a word's end is another one, as in Python */
    mhla_charsmap map;
    int squeeze, prefix, escape;
} mhla_normalizer;

void mhla_normalizer_free(mhla_normalizer *n);

/* Writes the text to `out`, which is emptied first. MHLA_OK with *same = 1 and nothing written: it is the text as it is. */
mhla_status mhla_normalize(const mhla_normalizer *n, mhla_matcher *m, mhla_chars *out, const char *text, size_t bytes,
                           int *same);

/* Of text that is about to be normalised `first` bytes in front count as its beginning (a Metaspace may mark what stands
 * there): how many do afterwards. What is put before the beginning belongs to it, what is stripped there takes it away. */
size_t mhla_normalize_first(const mhla_normalizer *n, const char *text, size_t bytes, size_t first);

#endif
