/* Needle in a haystack, inside: one text with its question. mhla_lm_needle (mhla/lm.h) measures a model with many. */
#ifndef MHLA_MEASURE_NEEDLE_H
#define MHLA_MEASURE_NEEDLE_H

#include "measure/score.h"

enum { MHLA_NEEDLE_VALUES = 10 };

typedef struct mhla_haystack {
    const mhla_tokenizer *tokenizer; /* NULL: token ids */
    int32_t prefix;                  /* in front of all; -1: none */
    int vocabulary;                  /* ids are below it */
    int32_t bos, eos;                /* never drawn; -1: none */
    uint64_t seed;
} mhla_haystack;

/* Text number `sample` of so many tokens, at most, with the needle at `depth` percent: its context ends with the question, its
 * continuations are ten values, of which *gold is the right one. Where text grows by sentences, length is missed by less
 * than one. The same sample has the same words and values at every depth. */
mhla_status mhla_needle_make(mhla_scoring *scoring, int *gold, const mhla_haystack *haystack, int64_t length,
                             double depth, int64_t sample);

#endif
