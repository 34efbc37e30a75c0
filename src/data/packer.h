/* Batches of tokens: the documents of an epoch in an order that is a function of (seed, epoch), each as BOS, tokens, EOS,
 * one after the other in one long stream; that is cut into windows of T tokens, and the windows into batches, again in an
 * order of (seed, epoch). Token t of a window has token t+1 of the stream for its label. What a batch holds is a
 * function of (seed, epoch, batch) alone.
 *
 * With `documents` no document sees another: a document's first token is nobody's label, and a batch is one packed sequence
 * with cu_seqlens, in which every window and every document begins anew. Without, windows are rows [B,T] that go on over
 * the borders of documents, as in the paper's runs.
 *
 * Where a tokenizer has only one of BOS and EOS it serves as both; without `documents` it then stands once between two. */
#ifndef MHLA_DATA_PACKER_H
#define MHLA_DATA_PACKER_H

#include "data/corpus.h"

enum { MHLA_NO_LABEL = -100 };

typedef struct mhla_packer_desc {
    const mhla_corpus *corpus; /* kept by the caller, longer than the packer */
    int64_t window;            /* T */
    int rows;                  /* B: windows of a batch */
    int documents;
    int train; /* shuffled, endless, whole batches; 0: in order, all of it, the last batch and window may be short */
    int64_t limit;    /* evaluation: documents spread over the corpus with about so many tokens; 0 = all */
    int32_t bos, eos; /* of the corpus, or others; -1: none */
    uint64_t seed;
} mhla_packer_desc;

typedef struct mhla_token_batch {
    int32_t *ids, *labels; /* [tokens]; MHLA_NO_LABEL: nothing to predict */
    int64_t *cu_seqlens;   /* [sequences + 1] */
    int64_t tokens, sequences;
    int64_t counted; /* labels that count */
    int64_t epoch, batch;
} mhla_token_batch;

typedef struct mhla_packer mhla_packer;

mhla_status mhla_packer_create(mhla_packer **packer, const mhla_packer_desc *desc);
void mhla_packer_free(mhla_packer *packer);

int64_t mhla_packer_batches(const mhla_packer *packer); /* of an epoch */
int64_t mhla_packer_bytes(const mhla_packer *packer);   /* of text that an epoch holds */
size_t mhla_packer_memory(const mhla_packer *packer);

/* The next batch; valid until the next call. Evaluation: tokens = 0 after the last one, once, then from the start. */
mhla_status mhla_packer_next(mhla_packer *packer, const mhla_token_batch **batch);
/* Go on with that batch of that epoch. batch may be mhla_packer_batches: the next epoch. */
mhla_status mhla_packer_seek(mhla_packer *packer, int64_t epoch, int64_t batch);

#endif
