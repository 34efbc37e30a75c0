#include "measure/needle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"
#include "core/status.h"
#include "measure/evaluate_lm.h"

enum { VALUES = MHLA_NEEDLE_VALUES, GROUP = 16, GROUP_TOKENS = 4096, STANDARD = 2048, MOST_LENGTH = 1 << 26 };

/* ---- A text ---- */

static const char *const subjects[] = {"The gardener", "A young doctor", "The old captain", "My neighbour",
                                       "The teacher",  "A tall woman",   "The baker",       "The village clerk"};
static const char *const verbs[] = {"walked to",  "looked at", "talked about", "came back from",
                                    "thought of", "waited at", "drove past",   "wrote about"};
static const char *const places[] = {"the river",  "the market",  "the long bridge", "the station",
                                     "the school", "the harbour", "the empty field", "the library"};
static const char *const times[] = {"in the morning",   "on a cold day", "after the rain", "before noon",
                                    "when it was late", "in the spring", "for a while",    "with a friend"};
static const char *const adjectives[] = {"quiet", "green", "narrow", "golden", "broken", "early", "heavy", "distant"};
static const char *const nouns[] = {"lantern", "orchard", "compass", "window", "violin", "meadow", "ladder", "basket"};

#define PICK(rng, list) ((list)[mhla_rng_below(rng, sizeof(list) / sizeof *(list))])

typedef struct words {
    char needle[128], question[96], values[VALUES][16];
    int gold;
} words;

/* Ten numbers of seven digits that differ, and the sentence with one of them. */
static void draw_words(words *w, mhla_rng *rng) {
    const char *adjective = PICK(rng, adjectives), *noun = PICK(rng, nouns);
    w->gold = (int)mhla_rng_below(rng, VALUES);
    for (int i = 0; i < VALUES; i++) {
        int again = 1;
        while (again) {
            snprintf(w->values[i], sizeof w->values[i], " %u", 1000000 + mhla_rng_below(rng, 9000000));
            again = 0;
            for (int j = 0; j < i; j++) again |= strcmp(w->values[i], w->values[j]) == 0;
        }
    }
    snprintf(w->question, sizeof w->question, "The magic number of the %s %s is", adjective, noun);
    char right[sizeof *w->values];
    memcpy(right, w->values[w->gold], sizeof right);
    snprintf(w->needle, sizeof w->needle, "The magic number of the %s %s is%s. ", adjective, noun, right);
}

static mhla_status add_sentence(mhla_chars *text, mhla_rng *rng) {
    char sentence[128];
    const char *subject = PICK(rng, subjects), *verb = PICK(rng, verbs), *place = PICK(rng, places);
    const int n = snprintf(sentence, sizeof sentence, "%s %s %s %s. ", subject, verb, place, PICK(rng, times));
    return mhla_chars_append(text, sentence, (size_t)n);
}

/* The first `count` sentences of the stream, the needle among them, and the question. */
static mhla_status compose(mhla_chars *text, const words *w, mhla_rng rng, int64_t count, double depth) {
    const int64_t before = llround((double)count * depth / 100.0);
    text->count = 0;
    for (int64_t i = 0; i <= count; i++) {
        if (i == before) MHLA_TRY(mhla_chars_append(text, w->needle, strlen(w->needle)));
        if (i < count) MHLA_TRY(add_sentence(text, &rng));
    }
    MHLA_TRY(mhla_chars_append(text, w->question, strlen(w->question)));
    return mhla_chars_append(text, "", 1);
}

/* Ids of the question's text and of all values after it; *all is what the longest of them reads. */
static mhla_status encode(mhla_scoring *s, int64_t *all, const mhla_haystack *h, const mhla_chars *text,
                          const words *w) {
    int64_t most = 0;
    for (int i = 0; i < VALUES; i++) {
        s->context.count = s->continuations[i].ids.count = 0;
        if (h->prefix >= 0) MHLA_TRY(mhla_ids_append(&s->context, &h->prefix, 1));
        mhla_ids context = {0};
        mhla_status status =
            mhla_pair_encode(h->tokenizer, h->prefix, &context, &s->continuations[i].ids, text->data, w->values[i]);
        if (status == MHLA_OK) status = mhla_ids_append(&s->context, context.data, context.count);
        mhla_ids_free(&context);
        if (status != MHLA_OK) return status;
        if (s->continuations[i].ids.count > most) most = s->continuations[i].ids.count;
    }
    *all = s->context.count + most - 1;
    return MHLA_OK;
}

/* As many sentences as fit: the number is guessed from the text so far and corrected. */
static mhla_status make_text(mhla_scoring *s, int *gold, const mhla_haystack *h, int64_t length, double depth,
                             mhla_rng rng) {
    words w;
    mhla_chars text = {0};
    int64_t all = 0, alone = 0, fits = 0, most = INT64_MAX, count = 0;
    draw_words(&w, &rng);
    mhla_status status = MHLA_OK;
    for (;;) {
        status = compose(&text, &w, rng, count, depth);
        if (status == MHLA_OK) status = encode(s, &all, h, &text, &w);
        if (status != MHLA_OK) break;
        if (count == 0) alone = all;
        if (alone > length) {
            status = mhla_fail(MHLA_ERANGE, "length %lld: the needle and its question alone take %lld tokens",
                               (long long)length, (long long)alone);
            break;
        }
        if (all <= length)
            fits = count;
        else
            most = count;
        if (all <= length && fits + 1 >= most) break;
        const double each = count ? (double)(all - alone) / (double)count : 12.0;
        int64_t next = (int64_t)((double)(length - alone) / (each > 1.0 ? each : 1.0));
        if (next <= fits) next = fits + (most == INT64_MAX ? 1 : 0);
        if (next >= most) next = most - 1;
        if (next == count) next = count + 1 < most ? count + 1 : fits;
        count = next;
    }
    *gold = w.gold;
    mhla_chars_free(&text);
    return status;
}

/* ---- Ids, for a model without a tokenizer ---- */

/* An id that is not among taken [n] and no special one. */
static int32_t draw_id(const mhla_haystack *h, mhla_rng *rng, const int32_t *taken, int n) {
    for (;;) {
        const int32_t id = (int32_t)mhla_rng_below(rng, (uint32_t)h->vocabulary);
        int bad = id == h->bos || id == h->eos;
        for (int i = 0; i < n; i++) bad |= id == taken[i];
        if (!bad) return id;
    }
}

/* Two ids, then one of ten others; around them ids that are none of those. */
static mhla_status make_ids(mhla_scoring *s, int *gold, const mhla_haystack *h, int64_t length, double depth,
                            mhla_rng rng) {
    enum { KEY = 2, NEEDLE = 3, OWN = KEY + VALUES };
    int32_t own[OWN];
    const int64_t ends = h->prefix >= 0, hay = length - ends - NEEDLE - KEY;
    if (h->vocabulary < 2 * OWN)
        return mhla_fail(MHLA_ERANGE, "a vocabulary of %d ids: a needle needs %d", h->vocabulary, 2 * OWN);
    if (hay < 0)
        return mhla_fail(MHLA_ERANGE, "length %lld: the needle and its question alone take %lld tokens",
                         (long long)length, (long long)(length - hay));
    for (int i = 0; i < OWN; i++) own[i] = draw_id(h, &rng, own, i);
    *gold = (int)mhla_rng_below(&rng, VALUES);
    const int64_t before = llround((double)hay * depth / 100.0);
    if (ends) MHLA_TRY(mhla_ids_append(&s->context, &h->prefix, 1));
    for (int64_t i = 0; i <= hay; i++) {
        if (i == before) {
            MHLA_TRY(mhla_ids_append(&s->context, own, KEY));
            MHLA_TRY(mhla_ids_append(&s->context, &own[KEY + *gold], 1));
        }
        if (i == hay) break;
        const int32_t id = draw_id(h, &rng, own, OWN);
        MHLA_TRY(mhla_ids_append(&s->context, &id, 1));
    }
    MHLA_TRY(mhla_ids_append(&s->context, own, KEY));
    for (int i = 0; i < VALUES; i++) MHLA_TRY(mhla_ids_append(&s->continuations[i].ids, &own[KEY + i], 1));
    return MHLA_OK;
}

mhla_status mhla_needle_make(mhla_scoring *s, int *gold, const mhla_haystack *h, int64_t length, double depth,
                             int64_t sample) {
    const mhla_rng rng = mhla_rng_make(h->seed, (uint64_t)length, (uint64_t)sample, MHLA_PLACE_NEEDLE);
    *s = (mhla_scoring){0};
    mhla_status status = mhla_scoring_make(s, VALUES);
    if (status == MHLA_OK) status = (h->tokenizer ? make_text : make_ids)(s, gold, h, length, depth, rng);
    if (status != MHLA_OK) mhla_scoring_release(s);
    return status;
}

/* ---- Many of them ---- */

typedef struct search {
    mhla_model *model;
    mhla_haystack haystack;
    mhla_sequence_desc sequence;
    int64_t longest; /* tokens of all lengths, at most */
    mhla_scoring group[GROUP];
    mhla_needle_cell *cells[GROUP];
    int golds[GROUP], count;
    int64_t tokens;
} search;

static void judge(const mhla_scoring *s, int gold, mhla_needle_cell *cell) {
    const double right = s->continuations[gold].loglikelihood;
    double sum = 0.0;
    int first = 1;
    for (int i = 0; i < VALUES; i++) {
        sum += exp(s->continuations[i].loglikelihood - right);
        if (i != gold) first &= s->continuations[i].loglikelihood < right;
    }
    cell->asked++;
    cell->right += first;
    cell->probability += 1.0 / sum;
}

static mhla_status flush(search *x) {
    const mhla_status status = mhla_lm_score(x->model, x->group, x->count, x->longest, &x->sequence);
    for (int i = 0; i < x->count; i++) {
        if (status == MHLA_OK) judge(&x->group[i], x->golds[i], x->cells[i]);
        mhla_scoring_release(&x->group[i]);
    }
    x->count = 0;
    x->tokens = 0;
    return status;
}

static mhla_status ask(search *x, mhla_needle_cell *cell, int64_t sample) {
    const int i = x->count;
    MHLA_TRY(mhla_needle_make(&x->group[i], &x->golds[i], &x->haystack, cell->length, cell->depth, sample));
    x->cells[i] = cell;
    x->count++;
    x->tokens += x->group[i].context.count;
    return x->count == GROUP || x->tokens >= GROUP_TOKENS ? flush(x) : MHLA_OK;
}

static mhla_status check(const mhla_needle_desc *d) {
    if (d->samples < 1 || d->length_count < 1 || d->depth_count < 1 || d->length_count > 1024 || d->depth_count > 1024)
        return mhla_fail(MHLA_EINVAL, "%d samples of %d lengths and %d depths: expected 1 or more", d->samples,
                         d->length_count, d->depth_count);
    for (int i = 0; i < d->length_count; i++)
        if (d->lengths[i] < 1 || d->lengths[i] > MOST_LENGTH)
            return mhla_fail(MHLA_EINVAL, "a length of %lld tokens: expected 1 to %d", (long long)d->lengths[i],
                             MOST_LENGTH);
    for (int i = 0; i < d->depth_count; i++)
        if (!(d->depths[i] >= 0.0 && d->depths[i] <= 100.0))
            return mhla_fail(MHLA_EINVAL, "a depth of %g percent: expected 0 to 100", d->depths[i]);
    return MHLA_OK;
}

/* Of the standard lengths those that are too short for a needle go; the last one stays. */
static void drop_short(const search *x, mhla_needle_desc *d) {
    for (; d->length_count > 1; d->lengths++, d->length_count--) {
        mhla_scoring s;
        int gold;
        if (mhla_needle_make(&s, &gold, &x->haystack, d->lengths[0], 0.0, 0) == MHLA_OK) {
            mhla_scoring_release(&s);
            return;
        }
    }
}

static mhla_status prepare(search *x, mhla_needle_desc *d, const mhla_lm_info *info, int64_t lengths[3]) {
    static const double depths[] = {0.0, 25.0, 50.0, 75.0, 100.0};
    for (int i = 0; i < 3; i++) lengths[i] = (info->context ? info->context : STANDARD) >> (2 - i);
    const int standard = d->lengths == NULL;
    if (standard) d->lengths = lengths, d->length_count = 3;
    if (d->depths == NULL) d->depths = depths, d->depth_count = 5;
    if (d->samples == 0) d->samples = 10;
    MHLA_TRY(check(d));
    for (int i = 0; i < d->length_count; i++)
        if (d->lengths[i] > x->longest) x->longest = d->lengths[i];
    if (d->beyond == MHLA_BEYOND_ERROR && info->context && x->longest > info->context)
        return mhla_fail(MHLA_ERANGE, "a length of %lld tokens: the model was made for %lld", (long long)x->longest,
                         (long long)info->context);
    x->sequence = (mhla_sequence_desc){.size = sizeof(mhla_sequence_desc),
                                       .beyond = d->beyond,
                                       .max_tokens = d->beyond == MHLA_BEYOND_CHUNK ? x->longest : 0};
    x->haystack = (mhla_haystack){.tokenizer = mhla_lm_tokenizer(x->model),
                                  .prefix = info->bos >= 0 ? info->bos : info->eos,
                                  .vocabulary = info->vocabulary,
                                  .bos = info->bos,
                                  .eos = info->eos,
                                  .seed = d->seed};
    if (standard) drop_short(x, d);
    return MHLA_OK;
}

mhla_status mhla_lm_needle(mhla_model *model, mhla_needle_result *result, const mhla_needle_desc *desc,
                           mhla_progress_fn progress, void *user) {
    mhla_needle_desc d = {.size = sizeof d};
    mhla_needle_result full = {.size = sizeof full};
    mhla_lm_info info = {.size = sizeof info};
    int64_t lengths[3];
    if (model == NULL) return mhla_fail(MHLA_EINVAL, "model is NULL");
    MHLA_TRY(mhla_struct_check(result, MHLA_UP_TO(mhla_needle_result, cells), "mhla_needle_result"));
    if (desc) MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_needle_desc"));
    MHLA_TRY(mhla_lm_query(model, &info));
    search x = {.model = model};
    const double begin = mhla_seconds();
    MHLA_TRY(prepare(&x, &d, &info, lengths));
    const int cells = d.length_count * d.depth_count;
    full.cells = calloc((size_t)cells, sizeof *full.cells);
    full.length_count = d.length_count;
    full.depth_count = d.depth_count;
    full.ids = x.haystack.tokenizer == NULL;
    mhla_status status = full.cells ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d cells", cells);
    for (int i = 0; i < cells && status == MHLA_OK; i++) {
        mhla_needle_cell *cell = &full.cells[i];
        cell->length = d.lengths[i / d.depth_count];
        cell->depth = d.depths[i % d.depth_count];
        for (int64_t k = 0; k < d.samples && status == MHLA_OK; k++) {
            status = ask(&x, cell, k);
            if (progress && status == MHLA_OK) progress(user, i * (int64_t)d.samples + k, (int64_t)cells * d.samples);
        }
    }
    if (status == MHLA_OK) status = flush(&x);
    for (int i = 0; i < x.count; i++) mhla_scoring_release(&x.group[i]);
    for (int i = 0; i < cells && status == MHLA_OK; i++) full.cells[i].probability /= (double)full.cells[i].asked;
    if (progress && status == MHLA_OK) progress(user, (int64_t)cells * d.samples, (int64_t)cells * d.samples);
    full.seconds = mhla_seconds() - begin;
    if (status == MHLA_OK) return mhla_struct_out(result, &full, sizeof full, "mhla_needle_result");
    mhla_needle_free(&full);
    return status;
}

void mhla_needle_free(mhla_needle_result *result) {
    if (!mhla_struct_holds(result, MHLA_UP_TO(mhla_needle_result, cells))) return;
    free(result->cells);
    result->cells = NULL;
}
