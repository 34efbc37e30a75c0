/* Perplexity of a language model: texts are cut into rolling windows, windows are read several at once, each by a sequence
 * of its own. What is counted belongs to the whole corpus, never to the mean of its documents. Several processes take turns: all cut the
 * texts, each reads every ranks-th batch, and they exchange what it said of the tokens. */
#include "measure/evaluate_lm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/status.h"
#include "dist/dist.h"
#include "file/sha256.h"

enum { OWNED = MHLA_UP_TO(mhla_perplexity, bucket_tokens) };

/* Without a number of windows: so many tokens at once, which is enough for the products and little for the memory. */
enum { BATCH_TOKENS = 4096, BATCH_MOST = 64, WINDOW_STANDARD = 2048, BYTES_OF_TOKEN = 32 };

typedef struct batch {
    mhla_window windows[BATCH_MOST];
    int count;
} batch;

/* A batch for each rank; the numbers are those of the own one. */
typedef struct turn {
    batch *batches; /* [ranks] */
    int filling;    /* batches before this one are full */
    mhla_sequence *sequences[BATCH_MOST];
    mhla_feed feeds[BATCH_MOST];
    int most;
    int64_t m;              /* inputs of a window, at most */
    int32_t *ids, *targets; /* [most, m] */
    float *logprobs;        /* [most, m] */
    float *all;             /* [ranks, most, m] */
} turn;

typedef struct evaluation {
    mhla_model *model;
    mhla_perplexity *result;
    mhla_sequence_desc sequence;
    const mhla_tokenizer *tokenizer;
    int32_t prefix;
    int64_t limit; /* tokens that may still be scored */
    turn turn;
    double *bucket_sum; /* [buckets] of log-likelihoods */
    mhla_progress_fn progress;
    void *user;
    int64_t bytes_before, bytes_all;
} evaluation;

mhla_status mhla_lm_prefix(const mhla_lm_info *info, int32_t *prefix) {
    *prefix = info->bos >= 0 ? info->bos : info->eos;
    if (*prefix >= 0) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "the model has neither a BOS nor an EOS token to begin a text with");
}

static void count_window(evaluation *e, const mhla_window *w, const float *logprobs) {
    mhla_perplexity *r = e->result;
    for (int64_t at = w->inputs - w->scored; at < w->inputs; at++) {
        const double x = logprobs[at];
        r->loglikelihood += x;
        e->bucket_sum[at / r->bucket] += x;
        r->bucket_tokens[at / r->bucket]++;
    }
    r->tokens += w->scored;
}

/* Reads the windows of the own batch. */
static mhla_status read_own(evaluation *e) {
    turn *x = &e->turn;
    const batch *b = &x->batches[mhla_dist_rank()];
    mhla_status status = MHLA_OK;
    int made = 0;
    for (; made < b->count && status == MHLA_OK; made++) {
        status = mhla_sequence_create(&x->sequences[made], e->model, &e->sequence);
        if (status != MHLA_OK) break;
        x->feeds[made] = (mhla_feed){.size = sizeof(mhla_feed),
                                     .sequence = x->sequences[made],
                                     .ids = x->ids + made * x->m,
                                     .count = b->windows[made].inputs,
                                     .targets = x->targets + made * x->m,
                                     .logprobs = x->logprobs + made * x->m};
    }
    if (status == MHLA_OK && b->count > 0) status = mhla_lm_feed(e->model, x->feeds, b->count);
    for (int i = 0; i < made; i++) mhla_sequence_free(x->sequences[i]);
    return status;
}

/* Reads all windows that wait. */
static mhla_status flush(evaluation *e) {
    turn *x = &e->turn;
    const size_t each = (size_t)x->most * (size_t)x->m;
    mhla_status status = mhla_dist_agree(read_own(e));
    if (status == MHLA_OK) status = mhla_dist_gather_all(x->all, x->logprobs, each * sizeof *x->all);
    for (int r = 0; r < mhla_dist_ranks(); r++) {
        batch *b = &x->batches[r];
        for (int i = 0; i < b->count && status == MHLA_OK; i++)
            count_window(e, &b->windows[i], x->all + (size_t)r * each + (size_t)i * (size_t)x->m);
        b->count = 0;
    }
    x->filling = 0;
    return status;
}

/* One window of ids [n], in front of which stands the prefix. */
static mhla_status add_window(evaluation *e, const int32_t *ids, const mhla_window *w) {
    turn *x = &e->turn;
    batch *b = &x->batches[x->filling];
    int32_t *in = x->ids + b->count * x->m, *target = x->targets + b->count * x->m;
    for (int64_t i = 0; i < w->inputs && x->filling == mhla_dist_rank(); i++) {
        in[i] = w->begin + i == 0 ? e->prefix : ids[w->begin + i - 1];
        target[i] = i < w->inputs - w->scored ? -1 : ids[w->begin + i];
    }
    b->windows[b->count++] = *w;
    if (b->count < x->most) return MHLA_OK;
    return ++x->filling == mhla_dist_ranks() ? flush(e) : MHLA_OK;
}

/* A text that the limit cuts: as many bytes as its first `tokens` tokens stand for. */
static mhla_status cut_bytes(const evaluation *e, size_t *bytes, const int32_t *ids, int64_t tokens) {
    mhla_chars text = {0};
    const mhla_status status = mhla_tokenizer_decode(e->tokenizer, &text, ids, tokens, 0);
    if (text.count < *bytes) *bytes = text.count;
    mhla_chars_free(&text);
    return status;
}

static mhla_status add_document(evaluation *e, const char *text, size_t bytes, int64_t number) {
    mhla_perplexity *r = e->result;
    const size_t whole = bytes;
    mhla_ids ids = {0};
    if (e->limit < (int64_t)(bytes / BYTES_OF_TOKEN)) { /* no need to encode all of it */
        bytes = (size_t)e->limit * BYTES_OF_TOKEN;
        while (bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80) bytes--;
    }
    mhla_status status = mhla_tokenizer_encode(e->tokenizer, &ids, text, bytes, 0);
    if (status != MHLA_OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", mhla_message());
        status = mhla_fail(status, "document %lld: %s", (long long)number, why);
    }
    if (status == MHLA_OK && ids.count > e->limit) {
        ids.count = e->limit;
        status = cut_bytes(e, &bytes, ids.data, ids.count);
    }
    if (status == MHLA_OK) {
        e->limit -= ids.count;
        r->documents++;
        r->bytes += (int64_t)bytes;
        r->words += mhla_text_words(text, bytes);
    }
    mhla_window w = {0};
    while (status == MHLA_OK && mhla_window_next(&w, ids.count, e->turn.m)) {
        status = add_window(e, ids.data, &w);
        if (e->progress)
            e->progress(e->user,
                        e->bytes_before + (int64_t)((double)whole * (double)(w.begin + w.inputs) / (double)ids.count),
                        e->bytes_all);
    }
    e->bytes_before += (int64_t)whole;
    mhla_ids_free(&ids);
    return status;
}

static mhla_status prepare(evaluation *e, const mhla_perplexity_desc *d) {
    mhla_lm_info info = {.size = sizeof info};
    mhla_perplexity *r = e->result;
    MHLA_TRY(mhla_lm_query(e->model, &info));
    MHLA_TRY(mhla_lm_prefix(&info, &e->prefix));
    e->tokenizer = mhla_lm_tokenizer(e->model);
    if (e->tokenizer == NULL) return MHLA_EINVAL; /* with its message */
    const int64_t window = d->window ? d->window : info.context ? info.context : WINDOW_STANDARD;
    if (window < 2 || window > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "window is %lld: expected 2 tokens or more", (long long)window);
    if (d->bucket < 0 || d->limit < 0 || d->batch < 0)
        return mhla_fail(MHLA_EINVAL, "%s is negative", d->bucket < 0 ? "bucket" : d->limit < 0 ? "limit" : "batch");
    turn *b = &e->turn;
    b->m = window - 1; /* the last token is predicted, not read */
    int64_t most = d->batch ? d->batch : BATCH_TOKENS / b->m;
    b->most = (int)(most < 1 ? 1 : most > BATCH_MOST ? BATCH_MOST : most);
    e->sequence = (mhla_sequence_desc){.size = sizeof(mhla_sequence_desc),
                                       .beyond = d->beyond,
                                       .max_tokens = d->beyond == MHLA_BEYOND_CHUNK ? b->m : 0};
    e->limit = d->limit ? d->limit : INT64_MAX;
    r->bucket = d->bucket ? d->bucket : window / 16 > 1 ? window / 16 : 1;
    r->buckets = (int)((b->m + r->bucket - 1) / r->bucket);
    const size_t cells = (size_t)b->most * (size_t)b->m;
    b->ids = mhla_alloc(cells * sizeof *b->ids);
    b->targets = mhla_alloc(cells * sizeof *b->targets);
    b->logprobs = mhla_alloc(cells * sizeof *b->logprobs);
    b->all = mhla_alloc((size_t)mhla_dist_ranks() * cells * sizeof *b->all);
    b->batches = calloc((size_t)mhla_dist_ranks(), sizeof *b->batches);
    e->bucket_sum = calloc((size_t)r->buckets, sizeof *e->bucket_sum);
    r->bucket_bits = calloc((size_t)r->buckets, sizeof *r->bucket_bits);
    r->bucket_tokens = calloc((size_t)r->buckets, sizeof *r->bucket_tokens);
    if (!b->ids || !b->targets || !b->logprobs || !b->all || !b->batches || !e->bucket_sum || !r->bucket_bits ||
        !r->bucket_tokens)
        return mhla_fail(MHLA_ENOMEM, "no memory for windows of %lld tokens", (long long)window);
    return MHLA_OK;
}

static mhla_status finish(evaluation *e) {
    mhla_perplexity *r = e->result;
    if (r->tokens == 0) return mhla_fail(MHLA_EDATA, "the documents hold no tokens");
    r->token_perplexity = exp(-r->loglikelihood / (double)r->tokens);
    r->word_perplexity = exp(-r->loglikelihood / (double)r->words);
    r->byte_perplexity = exp(-r->loglikelihood / (double)r->bytes);
    r->bits_per_byte = -r->loglikelihood / ((double)r->bytes * log(2.0));
    for (int i = 0; i < r->buckets; i++)
        r->bucket_bits[i] = r->bucket_tokens[i] ? -e->bucket_sum[i] / ((double)r->bucket_tokens[i] * log(2.0)) : NAN;
    return MHLA_OK;
}

/* Several ranks share the windows only if they have the same texts and the same limits. */
static mhla_status compare_ranks(const evaluation *e, const char *const *documents, const size_t *bytes,
                                 int64_t count) {
    char sum[65], text[160];
    mhla_sha256 s;
    if (mhla_dist_ranks() == 1) return MHLA_OK;
    mhla_sha256_begin(&s);
    for (int64_t i = 0; i < count; i++) {
        mhla_sha256_add(&s, &bytes[i], sizeof bytes[i]);
        mhla_sha256_add(&s, documents[i], bytes[i]);
    }
    mhla_sha256_end(&s, sum);
    snprintf(text, sizeof text, "%.12s.., windows of %lld tokens, %d at once", sum, (long long)e->turn.m + 1,
             e->turn.most);
    return mhla_dist_same("SHA-256 of the texts", text);
}

mhla_status mhla_lm_perplexity(mhla_model *model, mhla_perplexity *result, const char *const *documents,
                               const size_t *bytes, int64_t count, const mhla_perplexity_desc *desc,
                               mhla_progress_fn progress, void *user) {
    mhla_perplexity_desc d = {.size = sizeof d};
    if (model == NULL || documents == NULL || bytes == NULL || count < 1)
        return mhla_fail(MHLA_EINVAL, "%s",
                         model == NULL       ? "model is NULL"
                         : documents == NULL ? "documents is NULL"
                         : bytes == NULL     ? "bytes is NULL"
                                             : "count is not positive");
    MHLA_TRY(mhla_struct_check(result, OWNED, "mhla_perplexity"));
    if (desc) MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_perplexity_desc"));
    mhla_perplexity full = {.size = sizeof full};
    evaluation e = {.model = model, .result = &full, .progress = progress, .user = user};
    const double begin = mhla_seconds();
    for (int64_t i = 0; i < count; i++) e.bytes_all += (int64_t)bytes[i];
    mhla_status status = mhla_dist_agree(prepare(&e, &d));
    if (status == MHLA_OK) status = compare_ranks(&e, documents, bytes, count);
    for (int64_t i = 0; i < count && status == MHLA_OK && e.limit > 0; i++)
        status = add_document(&e, documents[i], bytes[i], i + 1);
    if (status == MHLA_OK) status = flush(&e);
    if (status == MHLA_OK) status = finish(&e);
    full.seconds = mhla_seconds() - begin;
    if (status == MHLA_OK && progress) progress(user, e.bytes_all, e.bytes_all);
    mhla_free(e.turn.ids);
    mhla_free(e.turn.targets);
    mhla_free(e.turn.logprobs);
    mhla_free(e.turn.all);
    free(e.turn.batches);
    free(e.bucket_sum);
    if (status == MHLA_OK) return mhla_struct_out(result, &full, sizeof full, "mhla_perplexity");
    mhla_perplexity_free(&full);
    return status;
}

void mhla_perplexity_free(mhla_perplexity *result) {
    if (!mhla_struct_holds(result, OWNED)) return;
    free(result->bucket_bits);
    free(result->bucket_tokens);
    result->bucket_bits = NULL;
    result->bucket_tokens = NULL;
}
