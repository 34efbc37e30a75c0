/* Multiple choice by likelihood: the answer whose tokens are likeliest after the question (acc), or likeliest per character
 * (acc_norm); or the context after which one ending is. A question's context is read once; each answer goes on from a fork of
 * it. Questions go several at a time, so that short texts still make large products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/status.h"
#include "file/file.h"
#include "file/lists.h"
#include "measure/evaluate_lm.h"

enum { GROUP = 16, GROUP_TOKENS = 4096 };

/* ---- Ids ---- */

mhla_status mhla_pair_encode(const mhla_tokenizer *tokenizer, int32_t prefix, mhla_ids *context, mhla_ids *continuation,
                             const char *before, const char *after) {
    const size_t n = strlen(before), m = strlen(after), stripped = mhla_text_stripped(before, n);
    mhla_ids both = {0};
    char *text = malloc(n + m + 1);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a question");
    snprintf(text, n + m + 1, "%s%s", before, after);
    mhla_status status = mhla_tokenizer_encode(tokenizer, context, text, stripped, 0);
    if (status == MHLA_OK) status = mhla_tokenizer_encode(tokenizer, &both, text, n + m, 0);
    const int64_t from = context->count;
    if (status == MHLA_OK && both.count <= from)
        status = mhla_fail(MHLA_EDATA, "%s adds no token to its context", MHLA_QUOTE(after));
    if (status == MHLA_OK && from == 0) status = mhla_ids_append(context, &prefix, 1);
    if (status == MHLA_OK) {
        memmove(both.data, both.data + from, (size_t)(both.count - from) * sizeof *both.data);
        both.count -= from;
        mhla_ids_free(continuation);
        *continuation = both;
    } else
        mhla_ids_free(&both);
    free(text);
    return status;
}

/* ---- Scoring ---- */

typedef struct answer {
    mhla_ids ids;
    int32_t *inputs;  /* [count] what is read beyond what its question has in common */
    int32_t *targets; /* [count], negative where nothing is asked */
    float *logprobs;  /* [count] */
    int32_t *best;    /* [count] */
    int64_t count;
    mhla_sequence *sequence;
} answer;

typedef struct asked {
    json_t *row;
    mhla_question question;
    int64_t number;
    mhla_ids context;
    answer *answers;     /* [question.count] */
    mhla_sequence *base; /* has read the context but its last token; NULL where answers begin on their own */
    int64_t tokens;
} asked;

typedef struct examiner {
    mhla_model *model;
    mhla_choices *result;
    const mhla_tokenizer *tokenizer;
    int32_t prefix;
    int64_t longest; /* inputs that the model takes */
    mhla_choice_fn report;
    void *user;
    asked group[GROUP];
    int count;
    int64_t tokens, number, limit;
} examiner;

static void forget(asked *a) {
    for (int i = 0; a->answers && i < a->question.count; i++) {
        mhla_ids_free(&a->answers[i].ids);
        free(a->answers[i].inputs);
        free(a->answers[i].targets);
        free(a->answers[i].logprobs);
        free(a->answers[i].best);
        mhla_sequence_free(a->answers[i].sequence);
    }
    free(a->answers);
    mhla_ids_free(&a->context);
    mhla_sequence_free(a->base);
    mhla_question_release(&a->question);
    json_decref(a->row);
    *a = (asked){0};
}

/* What answer x reads, after `skip` tokens of the context: the rest of the context, then itself but for its last token. */
static mhla_status lay_out(answer *x, const mhla_ids *context, int64_t skip) {
    const int64_t rest = context->count - skip, n = rest + x->ids.count - 1;
    x->count = n;
    x->inputs = malloc((size_t)n * sizeof *x->inputs);
    x->targets = malloc((size_t)n * sizeof *x->targets);
    x->logprobs = malloc((size_t)n * sizeof *x->logprobs);
    x->best = malloc((size_t)n * sizeof *x->best);
    if (!x->inputs || !x->targets || !x->logprobs || !x->best)
        return mhla_fail(MHLA_ENOMEM, "no memory for a question");
    for (int64_t i = 0; i < n; i++) {
        x->inputs[i] = i < rest ? context->data[skip + i] : x->ids.data[i - rest];
        x->targets[i] = i < rest - 1 ? -1 : x->ids.data[i - rest + 1];
    }
    return MHLA_OK;
}

/* Ids of a context, its own or the question's, and of what follows it. */
static mhla_status encode_answer(const examiner *e, asked *a, int i, const char *name) {
    const mhla_question *q = &a->question;
    const char *before = q->ending ? q->choices[i] : q->context, *after = q->ending ? q->ending : q->choices[i];
    const size_t n = strlen(q->delimiter), m = strlen(after);
    char *text = malloc(n + m + 1);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a choice");
    snprintf(text, n + m + 1, "%s%s", q->delimiter, after);
    a->context.count = 0;
    mhla_status status = mhla_pair_encode(e->tokenizer, e->prefix, &a->context, &a->answers[i].ids, before, text);
    free(text);
    if (status != MHLA_OK) return mhla_fail(status, "%s: choice %d: %s", name, i, mhla_message());
    const int64_t own = a->answers[i].ids.count;
    if (own > e->longest)
        return mhla_fail(MHLA_ERANGE, "%s: a choice of %lld tokens: the model reads %lld", name, (long long)own,
                         (long long)e->longest);
    a->tokens += own;
    return MHLA_OK;
}

static mhla_status encode(const examiner *e, asked *a, const char *name) {
    mhla_question *q = &a->question;
    int64_t longest = 0;
    a->answers = calloc((size_t)q->count, sizeof *a->answers);
    if (a->answers == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d choices", q->count);
    for (int i = 0; i < q->count; i++) {
        MHLA_TRY(encode_answer(e, a, i, name));
        if (a->answers[i].ids.count > longest) longest = a->answers[i].ids.count;
        if (q->ending == NULL) continue;
        const int64_t cut = a->context.count + a->answers[i].ids.count - 1 - e->longest;
        MHLA_TRY(lay_out(&a->answers[i], &a->context, cut > 0 ? cut : 0)); /* each with a context of its own */
        a->tokens += a->context.count;
    }
    if (q->ending) return MHLA_OK;
    const int64_t together = a->context.count + longest - 1;
    a->tokens += a->context.count;
    for (int i = 0; i < q->count; i++) { /* a context that is too long loses its beginning, for each answer its own */
        const int64_t cut = a->context.count + a->answers[i].ids.count - 1 - e->longest;
        MHLA_TRY(lay_out(&a->answers[i], &a->context,
                         together <= e->longest ? a->context.count - 1
                         : cut > 0              ? cut
                                                : 0));
    }
    if (together > e->longest || a->context.count < 2) return MHLA_OK;
    return mhla_sequence_create(&a->base, e->model, &(mhla_sequence_desc){.size = sizeof(mhla_sequence_desc)});
}

static mhla_status read_contexts(examiner *e) {
    mhla_feed feeds[GROUP];
    int n = 0;
    for (int i = 0; i < e->count; i++)
        if (e->group[i].base)
            feeds[n++] = (mhla_feed){.size = sizeof(mhla_feed),
                                     .sequence = e->group[i].base,
                                     .ids = e->group[i].context.data,
                                     .count = e->group[i].context.count - 1};
    return n ? mhla_lm_feed(e->model, feeds, n) : MHLA_OK;
}

static mhla_status read_answers(examiner *e) {
    const mhla_sequence_desc desc = {.size = sizeof desc};
    int all = 0, n = 0;
    for (int i = 0; i < e->count; i++) all += e->group[i].question.count;
    if (all == 0) return MHLA_OK;
    mhla_feed *feeds = malloc((size_t)all * sizeof *feeds);
    mhla_status status = feeds ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d choices", all);
    for (int i = 0; i < e->count && status == MHLA_OK; i++) {
        asked *a = &e->group[i];
        for (int j = 0; j < a->question.count && status == MHLA_OK; j++) {
            answer *x = &a->answers[j];
            if (a->base && j == a->question.count - 1) { /* the last one needs no copy */
                x->sequence = a->base;
                a->base = NULL;
            } else
                status = a->base ? mhla_sequence_fork(&x->sequence, a->base)
                                 : mhla_sequence_create(&x->sequence, e->model, &desc);
            feeds[n++] = (mhla_feed){.size = sizeof *feeds,
                                     .sequence = x->sequence,
                                     .ids = x->inputs,
                                     .count = x->count,
                                     .targets = x->targets,
                                     .logprobs = x->logprobs,
                                     .best = x->best};
        }
    }
    if (status == MHLA_OK && n > 0) status = mhla_lm_feed(e->model, feeds, n);
    free(feeds);
    return status;
}

static int most(const double *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void judge(examiner *e, const asked *a) {
    double sum[MHLA_CHOICES_MOST], normalised[MHLA_CHOICES_MOST];
    int greedy[MHLA_CHOICES_MOST];
    const mhla_question *q = &a->question;
    for (int j = 0; j < q->count; j++) {
        const answer *x = &a->answers[j];
        sum[j] = 0.0;
        greedy[j] = 1;
        for (int64_t i = x->count - x->ids.count; i < x->count; i++) {
            sum[j] += x->logprobs[i];
            greedy[j] &= x->best[i] == x->targets[i];
        }
        normalised[j] = sum[j] / (double)mhla_text_characters(q->choices[j], strlen(q->choices[j]));
    }
    const int best = most(sum, q->count), best_normalised = most(normalised, q->count);
    if (q->gold >= 0) {
        e->result->questions++;
        e->result->right += best == q->gold;
        e->result->right_norm += best_normalised == q->gold;
    }
    if (e->report)
        e->report(e->user, &(mhla_choice_event){.size = sizeof(mhla_choice_event),
                                                .question = a->number,
                                                .choices = q->count,
                                                .gold = q->gold,
                                                .loglikelihood = sum,
                                                .normalised = normalised,
                                                .greedy = greedy,
                                                .best = best,
                                                .best_normalised = best_normalised,
                                                .context = q->ending ? NULL : q->context,
                                                .texts = q->choices,
                                                .ending = q->ending});
}

static mhla_status flush(examiner *e) {
    mhla_status status = read_contexts(e);
    if (status == MHLA_OK) status = read_answers(e);
    for (int i = 0; i < e->count; i++) {
        if (status == MHLA_OK) judge(e, &e->group[i]);
        forget(&e->group[i]);
    }
    e->count = 0;
    e->tokens = 0;
    return status;
}

/* Takes the reference to row. */
static mhla_status ask(examiner *e, json_t *row, const char *name) {
    asked *a = &e->group[e->count];
    *a = (asked){.row = row, .number = e->number++};
    mhla_status status = mhla_question_read(&a->question, row, name);
    if (status == MHLA_OK) status = encode(e, a, name);
    if (status != MHLA_OK) {
        forget(a);
        return status;
    }
    e->count++;
    e->tokens += a->tokens;
    return e->count == GROUP || e->tokens >= GROUP_TOKENS ? flush(e) : MHLA_OK;
}

static int wanted(const examiner *e) { return e->limit == 0 || e->number < e->limit; }

static mhla_status read_lines(examiner *e, const mhla_file *file, const char *path) {
    const char *at = (const char *)file->data, *end = at + file->size;
    for (int64_t line = 1; at < end && wanted(e); line++) {
        char name[4200];
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        const size_t size = (size_t)(stop - at);
        if (mhla_text_stripped(at, size) > 0) {
            json_t *row = NULL;
            snprintf(name, sizeof name, "%s: line %lld", path, (long long)line);
            MHLA_TRY(mhla_json_parse(&row, at, size, name));
            MHLA_TRY(ask(e, row, name));
        }
        at = stop + 1;
    }
    return MHLA_OK;
}

/* One document {"examples": [...]}, as BIG-bench has them; the whole list is parsed at once. */
static mhla_status read_examples(examiner *e, const json_t *tree, const char *path) {
    const json_t *list = json_object_get(tree, "examples");
    const size_t n = json_array_size(list);
    if (!json_is_array(list)) return mhla_fail(MHLA_EDATA, "%s: there is no array \"examples\"", path);
    for (size_t i = 0; i < n && wanted(e); i++) {
        char name[4200];
        snprintf(name, sizeof name, "%s: example %zu", path, i);
        MHLA_TRY(ask(e, json_incref(json_array_get(list, i)), name));
    }
    return MHLA_OK;
}

static mhla_status read_file(examiner *e, const char *path) {
    const size_t n = strlen(path);
    mhla_status status;
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        json_t *tree = NULL;
        MHLA_TRY(mhla_json_load(&tree, path));
        status = read_examples(e, tree, path);
        json_decref(tree);
    } else {
        mhla_file file;
        MHLA_TRY(mhla_file_map(&file, path));
        status = read_lines(e, &file, path);
        mhla_file_unmap(&file);
    }
    return status == MHLA_OK ? flush(e) : status;
}

mhla_status mhla_lm_choices(mhla_model *model, mhla_choices *result, const char *path, int64_t limit,
                            mhla_choice_fn report, void *user) {
    mhla_lm_info info = {.size = sizeof info};
    mhla_choices full = {.size = sizeof full};
    if (model == NULL || path == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", model ? "path" : "model");
    MHLA_TRY(mhla_struct_check(result, 0, "mhla_choices"));
    if (limit < 0) return mhla_fail(MHLA_EINVAL, "limit is %lld", (long long)limit);
    MHLA_TRY(mhla_lm_query(model, &info));
    examiner *e = calloc(1, sizeof *e);
    if (e == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for questions");
    *e = (examiner){.model = model, .result = &full, .report = report, .user = user, .limit = limit};
    e->tokenizer = mhla_lm_tokenizer(model);
    e->longest = info.context ? info.context : INT64_MAX;
    mhla_status status = e->tokenizer ? mhla_lm_prefix(&info, &e->prefix) : MHLA_EINVAL;
    const double begin = mhla_seconds();
    if (status == MHLA_OK) status = read_file(e, path);
    full.seconds = mhla_seconds() - begin;
    if (status == MHLA_OK && e->number == 0) status = mhla_fail(MHLA_EDATA, "%s: there are no questions", path);
    for (int i = 0; i < e->count; i++) forget(&e->group[i]);
    free(e);
    return status == MHLA_OK ? mhla_struct_out(result, &full, sizeof full, "mhla_choices") : status;
}
