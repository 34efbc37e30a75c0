/* Unigram language models over pieces: of all ways to cut a text into pieces the one whose scores add up to most (Viterbi). A
 * character that is no piece counts as unknown, ten below the lowest score. Ids are those of the reference libraries, ties and
 * the rounding of long sums included. */
#ifndef MHLA_TEXT_UNIGRAM_H
#define MHLA_TEXT_UNIGRAM_H

#include "text/vocabulary.h"

typedef struct mhla_unigram {
    double *scores;      /* [count], or NULL: this is no such model */
    unsigned char *user; /* [count] 1: a piece of the user, which is meant to win */
    size_t count;
    int sentencepiece; /* sums are float32 and begin anew now and then; unknown characters are looked at one by one */
    size_t longest;    /* piece, in bytes */
    double least;      /* of the scores */
    /* a tree of the bytes of all pieces that may be found: slot = node and byte, and the child */
    uint64_t *slots; /* [mask + 1] key << 32 | child, 0: empty */
    size_t mask;
    int32_t *ids; /* [nodes] piece that ends there, -1 */
    size_t nodes, node_capacity;
} mhla_unigram;

typedef struct mhla_unigram_work {
    struct mhla_unigram_step *steps; /* [bytes + 1] the best way to each byte */
    size_t capacity;
} mhla_unigram_work;

/* Room for `count` scores and the tree of pieces of `bytes` bytes in all. Free it in any case. */
mhla_status mhla_unigram_create(mhla_unigram *u, size_t count, size_t bytes, const char *file);
void mhla_unigram_free(mhla_unigram *u);
/* A piece that may be found in text. */
mhla_status mhla_unigram_add(mhla_unigram *u, int32_t id, const char *piece, size_t bytes, const char *file);

/* Appends the ids of a text, which is UTF-8. `unk` and `spare` (ids of bytes, -1) stand for what is unknown; pieces are those
 * of the whole vocabulary. */
mhla_status mhla_unigram_encode(const mhla_unigram *u, mhla_unigram_work *work, const mhla_vocabulary *pieces,
                                int32_t unk, const int32_t spare[256], mhla_ids *ids, const char *text, size_t bytes);
void mhla_unigram_work_free(mhla_unigram_work *work);

#endif
