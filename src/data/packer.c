#include "data/packer.h"

#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/status.h"

/* Places of random numbers, beside those of image/augment.h and of the tape's layers. */

struct mhla_packer {
    mhla_packer_desc desc;
    int before, after; /* tokens that a document has around its own */
    int64_t chosen;    /* documents of an epoch */
    int64_t stream;    /* tokens of its stream */
    int64_t windows, batches, bytes;
    int64_t *order;   /* [chosen] documents as they follow one another */
    int64_t *starts;  /* [chosen + 1] where they begin in the stream */
    int64_t *shuffle; /* [windows], training */
    int64_t made;     /* the epoch that these are of, -1: none */
    int64_t epoch, next;
    int32_t *scratch; /* [T + 1] */
    mhla_token_batch batch;
};

/* Fisher and Yates, by numbers of (seed, epoch, place) only. */
static void permute(int64_t *list, int64_t n, uint64_t seed, int64_t epoch, uint32_t place) {
    mhla_rng rng = mhla_rng_make(seed, (uint64_t)epoch, 0, place);
    for (int64_t i = n - 1; i > 0; i--) {
        const uint64_t high = mhla_rng_next(&rng), random = high << 32 | mhla_rng_next(&rng);
        const int64_t j = (int64_t)(((__uint128_t)random * (uint64_t)(i + 1)) >> 64), x = list[i];
        list[i] = list[j];
        list[j] = x;
    }
}

static int64_t length_of(const mhla_packer *p, int64_t document) {
    return p->before + p->after + mhla_corpus_start(p->desc.corpus, document + 1) -
           mhla_corpus_start(p->desc.corpus, document);
}

/* The order of an epoch. Which documents are in it does not depend on that. */
static void arrange(mhla_packer *p, int64_t epoch) {
    if (p->made == epoch) return;
    const int64_t all = mhla_corpus_head(p->desc.corpus)->documents;
    for (int64_t i = 0; i < p->chosen; i++) p->order[i] = (int64_t)((__int128_t)i * all / p->chosen);
    if (p->desc.train) permute(p->order, p->chosen, p->desc.seed, epoch, MHLA_PLACE_DOCUMENTS);
    p->starts[0] = 0;
    for (int64_t i = 0; i < p->chosen; i++) p->starts[i + 1] = p->starts[i] + length_of(p, p->order[i]);
    for (int64_t i = 0; i < p->windows && p->shuffle; i++) p->shuffle[i] = i;
    if (p->shuffle) permute(p->shuffle, p->windows, p->desc.seed, epoch, MHLA_PLACE_WINDOWS);
    p->made = epoch;
}

/* The last document that begins at `at` or before. */
static int64_t document_at(const mhla_packer *p, int64_t at) {
    int64_t low = 0, high = p->chosen - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (p->starts[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Tokens at .. at+n-1 of the stream. */
static mhla_status read_stream(const mhla_packer *p, int32_t *ids, int64_t at, int64_t n) {
    const int32_t bos = p->desc.bos >= 0 ? p->desc.bos : p->desc.eos, eos = p->desc.eos >= 0 ? p->desc.eos : bos;
    int64_t done = 0;
    for (int64_t d = document_at(p, at); done < n; d++) {
        const int64_t own = p->starts[d + 1] - p->starts[d] - p->before - p->after;
        int64_t from = at + done - p->starts[d]; /* place in the document, BOS and EOS counted */
        if (from < p->before && done < n) ids[done++] = bos, from++;
        const int64_t left = own - (from - p->before), take = left < n - done ? left : n - done;
        if (take > 0) {
            const int64_t first = mhla_corpus_start(p->desc.corpus, p->order[d]) + from - p->before;
            MHLA_TRY(mhla_corpus_read(p->desc.corpus, ids + done, first, take));
            done += take;
        }
        if (p->after && done < n && at + done < p->starts[d + 1]) ids[done++] = eos;
    }
    return MHLA_OK;
}

/* One window at the end of the batch. Where a document begins inside of it, or right after it, its first token is no label;
 * where it begins inside, so does a sequence. */
static mhla_status fill(mhla_packer *p, int64_t window) {
    mhla_token_batch *b = &p->batch;
    const int64_t T = p->desc.window, at = window * T;
    const int64_t n = p->stream - at - 1 < T ? p->stream - at - 1 : T;
    int32_t *ids = b->ids + b->tokens, *labels = b->labels + b->tokens;
    MHLA_TRY(read_stream(p, p->scratch, at, n + 1));
    memcpy(ids, p->scratch, (size_t)n * sizeof *ids);
    memcpy(labels, p->scratch + 1, (size_t)n * sizeof *labels);
    b->cu_seqlens[b->sequences++] = b->tokens;
    for (int64_t d = document_at(p, at) + 1; p->desc.documents && d < p->chosen && p->starts[d] <= at + n; d++) {
        const int64_t i = p->starts[d] - at;
        labels[i - 1] = MHLA_NO_LABEL;
        if (i < n) b->cu_seqlens[b->sequences++] = b->tokens + i;
    }
    b->tokens += n;
    return MHLA_OK;
}

mhla_status mhla_packer_next(mhla_packer *p, const mhla_token_batch **batch) {
    mhla_token_batch *b = &p->batch;
    *batch = b;
    b->tokens = b->sequences = b->counted = 0;
    b->epoch = p->epoch;
    b->batch = p->next;
    if (p->next == p->batches) { /* only in evaluation */
        p->next = 0;
        return MHLA_OK;
    }
    arrange(p, p->epoch);
    const int64_t first = p->next * p->desc.rows;
    for (int64_t i = 0; i < p->desc.rows && first + i < p->windows; i++)
        MHLA_TRY(fill(p, p->shuffle ? p->shuffle[first + i] : first + i));
    b->cu_seqlens[b->sequences] = b->tokens;
    for (int64_t i = 0; i < b->tokens; i++) b->counted += b->labels[i] >= 0;
    p->next++;
    if (p->desc.train && p->next == p->batches) {
        p->next = 0;
        p->epoch++;
    }
    return MHLA_OK;
}

mhla_status mhla_packer_seek(mhla_packer *p, int64_t epoch, int64_t batch) {
    if (epoch < 0 || batch < 0 || batch > p->batches)
        return mhla_fail(MHLA_EINVAL, "batch %lld of epoch %lld: an epoch has %lld", (long long)batch, (long long)epoch,
                         (long long)p->batches);
    p->epoch = batch == p->batches ? epoch + 1 : epoch;
    p->next = batch == p->batches ? 0 : batch;
    return MHLA_OK;
}

/* How many documents, evenly spread, have about `limit` tokens. */
static int64_t choose(const mhla_packer *p, int64_t all) {
    const mhla_shard_head *h = mhla_corpus_head(p->desc.corpus);
    if (p->desc.limit <= 0 || p->desc.limit >= h->tokens) return all;
    const int64_t n = (int64_t)((double)all * (double)p->desc.limit / (double)h->tokens + 0.5);
    return n < 1 ? 1 : n;
}

static mhla_status make(mhla_packer *p) {
    const mhla_corpus *c = p->desc.corpus;
    const int one = p->desc.bos < 0 || p->desc.eos < 0 || p->desc.bos == p->desc.eos;
    const int any = p->desc.bos >= 0 || p->desc.eos >= 0;
    if (!any && p->desc.documents)
        return mhla_fail(MHLA_EINVAL, "the tokenizer has neither BOS nor EOS: nothing stands before a document's first "
                                      "token; train.packing=concatenation goes without");
    p->before = any;
    p->after = any && (p->desc.documents || !one);
    p->chosen = choose(p, mhla_corpus_head(c)->documents);
    p->order = malloc((size_t)p->chosen * sizeof *p->order);
    p->starts = malloc(((size_t)p->chosen + 1) * sizeof *p->starts);
    if (p->order == NULL || p->starts == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for the order of %lld documents", (long long)p->chosen);
    p->made = -1;
    arrange(p, 0);
    p->made = -1; /* without windows so far */
    p->stream = p->starts[p->chosen];
    for (int64_t i = 0; i < p->chosen; i++)
        p->bytes += mhla_corpus_byte(c, p->order[i] + 1) - mhla_corpus_byte(c, p->order[i]);
    const int64_t T = p->desc.window, B = p->desc.rows;
    p->windows = p->desc.train ? (p->stream - 1) / T : (p->stream - 1 + T - 1) / T;
    p->batches = p->desc.train ? p->windows / B : (p->windows + B - 1) / B;
    if (p->batches < 1)
        return mhla_fail(MHLA_EINVAL, "the text has %lld tokens, less than one batch of %lld x %lld",
                         (long long)p->stream, (long long)B, (long long)T);
    if (p->desc.train) p->shuffle = malloc((size_t)p->windows * sizeof *p->shuffle);
    p->scratch = malloc(((size_t)T + 1) * sizeof *p->scratch);
    p->batch.ids = malloc((size_t)(B * T) * sizeof *p->batch.ids);
    p->batch.labels = malloc((size_t)(B * T) * sizeof *p->batch.labels);
    p->batch.cu_seqlens = malloc(((size_t)(B * T) + 1) * sizeof *p->batch.cu_seqlens);
    if ((p->desc.train && p->shuffle == NULL) || p->scratch == NULL || p->batch.ids == NULL ||
        p->batch.labels == NULL || p->batch.cu_seqlens == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for batches of %lld x %lld tokens", (long long)B, (long long)T);
    return MHLA_OK;
}

mhla_status mhla_packer_create(mhla_packer **packer, const mhla_packer_desc *desc) {
    *packer = NULL;
    if (desc->window < 1 || desc->rows < 1 || desc->window > INT32_MAX / desc->rows)
        return mhla_fail(MHLA_EINVAL, "a batch of %d x %lld tokens", desc->rows, (long long)desc->window);
    mhla_packer *p = calloc(1, sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a packer");
    p->desc = *desc;
    const mhla_status status = make(p);
    if (status != MHLA_OK) {
        mhla_packer_free(p);
        return status;
    }
    *packer = p;
    return MHLA_OK;
}

void mhla_packer_free(mhla_packer *p) {
    if (p == NULL) return;
    free(p->order);
    free(p->starts);
    free(p->shuffle);
    free(p->scratch);
    free(p->batch.ids);
    free(p->batch.labels);
    free(p->batch.cu_seqlens);
    free(p);
}

int64_t mhla_packer_batches(const mhla_packer *p) { return p->batches; }
int64_t mhla_packer_bytes(const mhla_packer *p) { return p->bytes; }

size_t mhla_packer_memory(const mhla_packer *p) {
    const size_t tokens = (size_t)p->desc.rows * (size_t)p->desc.window;
    return tokens * 16 + 8 * (size_t)(2 * p->chosen + (p->shuffle ? p->windows : 0));
}
