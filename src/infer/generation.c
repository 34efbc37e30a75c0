/* Generations: a sequence that goes on by itself. A step reads the pending tokens of all of them in one pass, draws a token
 * for each, turns it into text and holds back what may still become a stop string. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/lists.h"
#include "file/text.h"
#include "infer/stop.h"
#include "infer/token_sampler.h"
#include "models/language/sequence.h"

struct mhla_generation {
    mhla_sequence *sequence;
    const mhla_tokenizer *tokenizer; /* NULL: ids only */
    mhla_sampling sampling;          /* checked; its bias is ours */
    int vocabulary, pieces; /* of the model; of the tokenizer, whose text may be of fewer: such tokens have none */
    int64_t max_tokens, drawn;
    mhla_stops stops; /* ours */
    int32_t *stop_ids;
    int *stop_id_of; /* [stop_id_count] the stop string that this id spells, or -1 */
    int stop_id_count;
    int tops;
    mhla_token_sampler sampler;
    float *logits;       /* [vocabulary] */
    mhla_candidate *top; /* [tops] */
    mhla_ids pending;    /* to be read before the next token is drawn */
    mhla_decoder *decoder;
    mhla_chars held;  /* text that was not handed out before this step */
    size_t given;     /* of it, what this step hands out */
    mhla_piece piece; /* of the last step; its text is held.data */
    mhla_finish finish;
};

/* ---- Creation ---- */

static mhla_status copy_stops(mhla_generation *g, const mhla_generation_desc *d) {
    if (d->stops < 0 || (d->stops > 0 && d->stop == NULL))
        return mhla_fail(MHLA_EINVAL, "stops is %d and stop is %s", d->stops, d->stop ? "given" : "NULL");
    if (d->stops == 0) return MHLA_OK;
    if (g->tokenizer == NULL) return mhla_fail(MHLA_EINVAL, "stop strings need the model's tokenizer, and it has none");
    char **copy = calloc((size_t)d->stops, sizeof *copy);
    if (copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for stop strings");
    g->stops.text = (const char *const *)copy;
    for (int i = 0; i < d->stops; i++) {
        if (d->stop[i] == NULL || d->stop[i][0] == '\0') return mhla_fail(MHLA_EINVAL, "stop string %d is empty", i);
        const size_t size = strlen(d->stop[i]);
        for (size_t at = 0; at < size;) {
            const int n = mhla_utf8_length((const unsigned char *)d->stop[i] + at, size - at);
            if (n == 0) return mhla_fail(MHLA_EINVAL, "stop string %d is not UTF-8 at byte %zu", i, at);
            at += (size_t)n;
        }
        copy[i] = strdup(d->stop[i]);
        if (copy[i] == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for stop strings");
        g->stops.count = i + 1;
    }
    return MHLA_OK;
}

/* The special token that `text` spells, which decoding would pass over; -1: none. */
static int32_t special_id(const mhla_generation *g, const char *text) {
    const int32_t id = mhla_tokenizer_id(g->tokenizer, text);
    mhla_chars shown = {0};
    const int hidden = id >= 0 &&
                       mhla_tokenizer_decode(g->tokenizer, &shown, &id, 1, MHLA_DECODE_SKIP_SPECIAL) == MHLA_OK &&
                       shown.count == 0;
    mhla_chars_free(&shown);
    return hidden ? id : -1;
}

static mhla_status copy_stop_ids(mhla_generation *g, const mhla_generation_desc *d, const mhla_lm_info *info) {
    if (d->stop_id_count < 0 || (d->stop_id_count > 0 && d->stop_ids == NULL))
        return mhla_fail(MHLA_EINVAL, "stop_id_count is %d and stop_ids is %s", d->stop_id_count,
                         d->stop_ids ? "given" : "NULL");
    const size_t most = (size_t)d->stop_id_count + (size_t)d->stops + (size_t)info->end_count + 1;
    g->stop_ids = malloc(most * sizeof *g->stop_ids);
    g->stop_id_of = malloc(most * sizeof *g->stop_id_of);
    if (g->stop_ids == NULL || g->stop_id_of == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for stop tokens");
    int n = 0;
    for (int i = 0; i < d->stops; i++) {
        const int32_t id = special_id(g, d->stop[i]);
        if (id < 0) continue;
        g->stop_id_of[n] = i;
        g->stop_ids[n++] = id;
    }
    for (int i = 0; i < d->stop_id_count; i++) {
        if (d->stop_ids[i] < 0 || d->stop_ids[i] >= g->vocabulary)
            return mhla_fail(MHLA_EINVAL, "stop token %d is %d; tokens are 0 to %d", i, (int)d->stop_ids[i],
                             g->vocabulary - 1);
        g->stop_id_of[n] = -1;
        g->stop_ids[n++] = d->stop_ids[i];
    }
    for (int i = 0; i < info->end_count && !d->ignore_eos; i++) {
        g->stop_id_of[n] = -1;
        g->stop_ids[n++] = info->ends[i];
    }
    g->stop_id_count = n;
    return MHLA_OK;
}

/* ignore_eos: tokens for the end are never drawn, rather than drawn and passed over: what would follow them is another
 * text, and models know it. */
static mhla_status copy_sampling(mhla_generation *g, const mhla_sampling *sampling, const int32_t *never, int nevers) {
    const mhla_sampling greedy = {.size = sizeof greedy};
    MHLA_TRY(mhla_sampling_check(&g->sampling, sampling ? sampling : &greedy, g->vocabulary));
    const mhla_bias *given = g->sampling.bias;
    const size_t count = (size_t)g->sampling.biases;
    mhla_bias *copy = malloc((count + (size_t)nevers + 1) * sizeof *copy);
    g->sampling.bias = copy;
    if (copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for biases");
    if (count > 0) memcpy(copy, given, count * sizeof *copy);
    for (int i = 0; i < nevers; i++) copy[g->sampling.biases++] = (mhla_bias){never[i], -INFINITY};
    return MHLA_OK;
}

/* What is to be read first: the prompt, or the last token again, whose logits nobody kept. */
static mhla_status set_pending(mhla_generation *g, const int32_t *prompt, int64_t count) {
    if (count > 0) return mhla_ids_append(&g->pending, prompt, count);
    const int64_t tokens = mhla_sequence_tokens(g->sequence);
    const int32_t last = mhla_sequence_ids(g->sequence)[tokens - 1];
    MHLA_TRY(mhla_ids_append(&g->pending, &last, 1));
    return mhla_sequence_rollback(g->sequence, tokens - 1);
}

/* The decoder of text that goes on: tokenizers that take the space from the front of a text must not take it from the first
 * word after a prompt. So it hears the token before, unless that is a special one, and what it says of it is left out. */
static mhla_status open_decoder(mhla_generation *g, int32_t before) {
    mhla_chars text = {0};
    MHLA_TRY(mhla_decoder_create(&g->decoder, g->tokenizer, MHLA_DECODE_SKIP_SPECIAL));
    mhla_status status = before < g->pieces ? mhla_decoder_push(g->decoder, &text, before) : MHLA_OK;
    if (status == MHLA_OK) status = mhla_decoder_finish(g->decoder, &text);
    mhla_chars_free(&text);
    return status;
}

static mhla_status fill(mhla_generation *g, const int32_t *prompt, int64_t count, const mhla_generation_desc *d) {
    mhla_lm_info info = {.size = sizeof info};
    mhla_model *model = g->sequence->reader->model;
    MHLA_TRY(mhla_lm_query(model, &info));
    g->vocabulary = info.vocabulary;
    g->tokenizer = mhla_lm_tokenizer(model);
    for (int64_t i = 0; i < count; i++)
        if (prompt[i] < 0 || prompt[i] >= g->vocabulary)
            return mhla_fail(MHLA_EINVAL, "token %lld of the prompt is %d; tokens are 0 to %d", (long long)i,
                             (int)prompt[i], g->vocabulary - 1);
    if (d->max_tokens < 0) return mhla_fail(MHLA_EINVAL, "max_tokens is %lld", (long long)d->max_tokens);
    if (d->logprobs < 0) return mhla_fail(MHLA_EINVAL, "logprobs is %d", d->logprobs);
    g->max_tokens = d->max_tokens;
    g->tops = d->logprobs < g->vocabulary ? d->logprobs : g->vocabulary;
    MHLA_TRY(copy_sampling(g, d->sampling, info.ends, d->ignore_eos ? info.end_count : 0));
    MHLA_TRY(copy_stops(g, d));
    MHLA_TRY(copy_stop_ids(g, d, &info));
    MHLA_TRY(mhla_token_sampler_init(&g->sampler, g->vocabulary));
    g->logits = mhla_alloc(sizeof *g->logits * (size_t)g->vocabulary);
    g->top = malloc(sizeof *g->top * ((size_t)g->tops + 1));
    if (g->logits == NULL || g->top == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d logits", g->vocabulary);
    if (g->tokenizer) {
        mhla_tokenizer_info tokens = {.size = sizeof tokens};
        MHLA_TRY(mhla_tokenizer_query(g->tokenizer, &tokens));
        g->pieces = tokens.vocabulary;
        const int64_t have = mhla_sequence_tokens(g->sequence);
        MHLA_TRY(open_decoder(g, count > 0 ? prompt[count - 1] : mhla_sequence_ids(g->sequence)[have - 1]));
    }
    return set_pending(g, prompt, count);
}

mhla_status mhla_generation_create(mhla_generation **generation, mhla_sequence *sequence, const int32_t *prompt,
                                   int64_t count, const mhla_generation_desc *desc) {
    mhla_generation_desc d;
    if (generation == NULL || sequence == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL", generation ? "sequence" : "generation");
    MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_generation_desc"));
    if (count < 0 || (count > 0 && prompt == NULL))
        return mhla_fail(MHLA_EINVAL, "count is %lld and prompt is %s", (long long)count, prompt ? "given" : "NULL");
    if (count == 0 && mhla_sequence_tokens(sequence) == 0)
        return mhla_fail(MHLA_EINVAL, "there is neither a prompt nor anything in the sequence");
    mhla_generation *g = calloc(1, sizeof *g);
    if (g == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a generation");
    g->sequence = sequence;
    g->piece = (mhla_piece){.size = sizeof g->piece, .id = -1, .text = ""};
    const mhla_status status = fill(g, prompt, count, &d);
    if (status != MHLA_OK) {
        mhla_generation_free(g);
        return status;
    }
    *generation = g;
    return MHLA_OK;
}

void mhla_generation_free(mhla_generation *g) {
    if (g == NULL) return;
    for (int i = 0; i < g->stops.count; i++) free((char *)g->stops.text[i]);
    free((void *)g->stops.text);
    free((void *)g->sampling.bias);
    free(g->stop_ids);
    free(g->stop_id_of);
    free(g->top);
    mhla_free(g->logits);
    mhla_token_sampler_release(&g->sampler);
    mhla_ids_free(&g->pending);
    mhla_chars_free(&g->held);
    mhla_decoder_free(g->decoder);
    free(g);
}

/* ---- A step ---- */

/* What the last step handed out goes; nothing is handed out yet. */
static void begin_piece(mhla_generation *g) {
    if (g->given > 0) memmove(g->held.data, g->held.data + g->given, g->held.count - g->given);
    g->held.count -= g->given;
    g->given = 0;
    g->piece = (mhla_piece){.size = sizeof g->piece, .id = -1, .text = ""};
}

/* Text [seen ..] of held is new: how much of all is certain. */
static void watch(mhla_generation *g, size_t seen) {
    size_t at;
    const int found = mhla_stops_find(&g->stops, g->held.data, g->held.count, seen, &at);
    if (found >= 0) {
        g->held.count = g->given = at;
        g->finish = MHLA_FINISH_STOP;
        g->piece.stopped_by = g->stops.text[found];
        return;
    }
    g->given = g->finish ? g->held.count : g->held.count - mhla_stops_hold(&g->stops, g->held.data, g->held.count);
}

static mhla_status end_text(mhla_generation *g) {
    const size_t seen = g->held.count;
    if (g->decoder) MHLA_TRY(mhla_decoder_finish(g->decoder, &g->held));
    watch(g, seen);
    return MHLA_OK;
}

static void close_piece(mhla_generation *g) {
    g->piece.text = g->given > 0 ? g->held.data : "";
    g->piece.bytes = g->given;
    g->piece.finish = g->finish;
}

static mhla_status draw(mhla_generation *g) {
    int32_t id;
    const int64_t tokens = mhla_sequence_tokens(g->sequence);
    g->pending.count = 0;
    const mhla_status status = mhla_token_sampler_draw(&g->sampler, &g->sampling, g->logits,
                                                       mhla_sequence_ids(g->sequence), tokens, (uint64_t)tokens, &id);
    if (status !=
        MHLA_OK) { /* stepped again it fails again, instead of making the others' feed fail with nothing to read */
        const mhla_status again = set_pending(g, NULL, 0);
        return again == MHLA_OK ? status : again;
    }
    MHLA_TRY(mhla_token_sampler_logprobs(&g->sampler, g->logits, id, &g->piece.logprob, g->tops, g->top));
    g->piece.id = id;
    g->piece.top = g->top;
    g->piece.tops = g->tops;
    g->drawn++;
    for (int i = 0; i < g->stop_id_count; i++) {
        if (g->stop_ids[i] != id) continue;
        const int by = g->stop_id_of[i];
        g->finish = by >= 0 ? MHLA_FINISH_STOP : MHLA_FINISH_EOS;
        if (by >= 0) g->piece.stopped_by = g->stops.text[by];
        return end_text(g);
    }
    MHLA_TRY(mhla_ids_append(&g->pending, &id, 1));
    const size_t seen = g->held.count;
    if (g->decoder && id < g->pieces) MHLA_TRY(mhla_decoder_push(g->decoder, &g->held, id));
    watch(g, seen);
    if (g->finish == MHLA_FINISH_NONE && g->max_tokens > 0 && g->drawn >= g->max_tokens) {
        g->finish = MHLA_FINISH_LENGTH;
        return end_text(g);
    }
    return MHLA_OK;
}

static mhla_feed feed_of(mhla_generation *g) {
    return (mhla_feed){.size = sizeof(mhla_feed),
                       .sequence = g->sequence,
                       .ids = g->pending.data,
                       .count = g->pending.count,
                       .logits = g->logits};
}

/* One of several sequences is full: each on its own. Who has drawn something ends here, as by max_tokens; a prompt that does
 * not fit is the caller's to hear of. */
static mhla_status feed_alone(mhla_model *model, mhla_generation *g) {
    const mhla_feed feed = feed_of(g);
    const mhla_status status = mhla_lm_feed(model, &feed, 1);
    if (status == MHLA_OK) return draw(g);
    if (status != MHLA_ERANGE || g->drawn == 0) return status;
    g->finish = MHLA_FINISH_LENGTH;
    return end_text(g);
}

mhla_status mhla_generation_step(mhla_model *model, mhla_generation *const *generations, int64_t n) {
    if (model == NULL || n < 0 || (n > 0 && generations == NULL))
        return mhla_fail(MHLA_EINVAL, "model is %s, generations is %s, n is %lld", model ? "given" : "NULL",
                         generations ? "given" : "NULL", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (generations[i] == NULL) return mhla_fail(MHLA_EINVAL, "generation %lld is NULL", (long long)i);
    mhla_feed *feeds = calloc((size_t)n + 1, sizeof *feeds);
    if (feeds == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld generations", (long long)n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        begin_piece(generations[i]);
        if (generations[i]->finish == MHLA_FINISH_NONE) feeds[count++] = feed_of(generations[i]);
    }
    mhla_status status = mhla_lm_feed(model, feeds, count), last = MHLA_OK;
    free(feeds);
    const int alone = status == MHLA_ERANGE;
    char why[512] = ""; /* others that end at their limit would leave their message instead */
    for (int64_t i = 0; i < n && (status == MHLA_OK || alone); i++) {
        mhla_generation *g = generations[i];
        if (g->finish == MHLA_FINISH_NONE) {
            const mhla_status own = alone ? feed_alone(model, g) : draw(g);
            if (own != MHLA_OK) snprintf(why, sizeof why, "%s", mhla_message());
            if (own != MHLA_OK) last = own;
        }
        close_piece(g);
    }
    if (status != MHLA_OK && !alone) return status;
    return last == MHLA_OK ? MHLA_OK : mhla_fail(last, "%s", why);
}

mhla_status mhla_generation_piece(const mhla_generation *g, mhla_piece *piece) {
    return mhla_struct_out(piece, &g->piece, sizeof g->piece, "mhla_piece");
}

mhla_finish mhla_generation_finish(const mhla_generation *g) { return g->finish; }
