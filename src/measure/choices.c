/* Multiple choice by likelihood: the answer whose tokens are likeliest after the question (acc), or likeliest per character
 * (acc_norm); or the context after which one ending is. A question's context is read once; each answer goes on from a fork of
 * it. Questions go several at a time, so that short texts still make large products. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/status.h"
#include "measure/evaluate_lm.h"
#include "measure/exams.h"
#include "measure/score.h"

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

typedef struct asked {
    json_t *row;
    mhla_question question;
    int64_t number;
    mhla_scoring scorings[MHLA_CHOICES_MOST]; /* [scored] one of all choices, or one of each where they are contexts */
    int scored;
} asked;

typedef struct examiner {
    mhla_model *model;
    mhla_choices *result;
    double squares;        /* of deviations of log-likelihoods from their mean so far */
    const mhla_exam *task; /* NULL: rows say themselves what they ask */
    const mhla_tokenizer *tokenizer;
    int32_t prefix;
    int64_t longest; /* inputs that the model takes */
    mhla_choice_fn report;
    void *user;
    asked *group; /* [GROUP] */
    int count;
    int64_t tokens, number, limit;
    int check; /* rows are only looked at: a mistake in the last one shows before the first one is scored */
} examiner;

static void forget(asked *a) {
    for (int i = 0; i < a->scored; i++) mhla_scoring_release(&a->scorings[i]);
    a->scored = 0;
    mhla_question_release(&a->question);
    json_decref(a->row);
    a->row = NULL;
}

/* Ids of a context, its own or the question's, and of what follows it. */
static mhla_status encode_answer(const examiner *e, const mhla_question *q, int i, mhla_ids *context, mhla_ids *ids,
                                 const char *name) {
    const char *before = q->ending ? q->choices[i] : q->context, *after = q->ending ? q->ending : q->choices[i];
    const size_t n = strlen(q->delimiter), m = strlen(after);
    char *text = malloc(n + m + 1);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a choice");
    snprintf(text, n + m + 1, "%s%s", q->delimiter, after);
    context->count = 0;
    mhla_status status = mhla_pair_encode(e->tokenizer, e->prefix, context, ids, before, text);
    free(text);
    if (status != MHLA_OK) return mhla_fail(status, "%s: choice %d: %s", name, i, mhla_message());
    if (ids->count > e->longest)
        return mhla_fail(MHLA_ERANGE, "%s: a choice of %lld tokens: the model reads %lld", name, (long long)ids->count,
                         (long long)e->longest);
    return MHLA_OK;
}

static mhla_status encode(examiner *e, asked *a, const char *name) {
    const mhla_question *q = &a->question;
    const int each = q->ending ? 1 : q->count;
    for (int i = 0; i < q->count; i++) {
        mhla_scoring *s = &a->scorings[q->ending ? i : 0];
        if (i == 0 || q->ending) {
            a->scored++;
            MHLA_TRY(mhla_scoring_make(s, each));
        }
        mhla_ids *ids = &s->continuations[q->ending ? 0 : i].ids;
        MHLA_TRY(encode_answer(e, q, i, &s->context, ids, name));
        e->tokens += ids->count + (i == 0 || q->ending ? s->context.count : 0);
    }
    return MHLA_OK;
}

static int most(const double *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* The right choice of one more question: Welford's sums, so that the deviation needs no second pass. */
static void count_right(examiner *e, double loglikelihood, int greedy) {
    mhla_choices *r = e->result;
    const double before = r->questions ? r->loglikelihood / (double)r->questions : 0.0;
    r->questions++;
    r->loglikelihood += loglikelihood;
    r->greedy += greedy;
    e->squares += (loglikelihood - before) * (loglikelihood - r->loglikelihood / (double)r->questions);
}

static void judge(examiner *e, const asked *a) {
    double sum[MHLA_CHOICES_MOST], normalised[MHLA_CHOICES_MOST];
    int greedy[MHLA_CHOICES_MOST] = {0};
    const mhla_question *q = &a->question;
    for (int j = 0; j < q->count; j++) {
        const mhla_continuation *x = &a->scorings[q->ending ? j : 0].continuations[q->ending ? 0 : j];
        sum[j] = x->loglikelihood;
        greedy[j] = x->greedy;
        normalised[j] = sum[j] / (double)mhla_text_characters(q->choices[j], strlen(q->choices[j]));
    }
    const int word = e->task && e->task->kind == MHLA_TASK_WORD; /* there are other words than the one choice */
    const int best = word && !greedy[0] ? -1 : most(sum, q->count);
    const int best_normalised = word ? best : most(normalised, q->count);
    if (q->gold >= 0) {
        count_right(e, sum[q->gold], greedy[q->gold]);
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
    const mhla_sequence_desc desc = {.size = sizeof desc};
    mhla_scoring *all = malloc((size_t)GROUP * MHLA_CHOICES_MOST * sizeof *all);
    mhla_status status = all ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for questions");
    int n = 0;
    for (int i = 0; i < e->count && all; i++)
        for (int j = 0; j < e->group[i].scored; j++) all[n++] = e->group[i].scorings[j]; /* their lists are shared */
    if (status == MHLA_OK) status = mhla_lm_score(e->model, all, n, e->longest, &desc);
    for (int i = 0; i < e->count; i++) {
        if (status == MHLA_OK) judge(e, &e->group[i]);
        forget(&e->group[i]);
    }
    free(all);
    e->count = 0;
    e->tokens = 0;
    return status;
}

static mhla_status ask(void *user, json_t *row, const char *name, int *stop) {
    examiner *e = user;
    asked *a = &e->group[e->count];
    a->number = e->number++;
    *stop = e->limit && e->number == e->limit;
    mhla_status status =
        e->task ? mhla_exam_read(e->task, &a->question, row, name) : mhla_question_read(&a->question, row, name);
    if (status != MHLA_OK) return status;
    a->row = json_incref(row);
    if (!e->check) status = encode(e, a, name);
    if (status != MHLA_OK || e->check) {
        forget(a);
        return status;
    }
    e->count++;
    return e->count == GROUP || e->tokens >= GROUP_TOKENS ? flush(e) : MHLA_OK;
}

static mhla_status read_files(examiner *e, const char *const *paths, int count, int check) {
    e->check = check;
    e->number = 0;
    for (int i = 0; i < count && (e->limit == 0 || e->number < e->limit); i++) {
        const int64_t before = e->number;
        MHLA_TRY(mhla_rows_read(paths[i], e->task == NULL, ask, e));
        if (e->number == before) return mhla_fail(MHLA_EDATA, "%s: no questions", paths[i]);
    }
    return check ? MHLA_OK : flush(e);
}

static mhla_status examine(mhla_model *model, mhla_choices *result, const mhla_exam *task, const char *const *paths,
                           int count, int64_t limit, mhla_choice_fn report, void *user) {
    mhla_lm_info info = {.size = sizeof info};
    mhla_choices full = {.size = sizeof full};
    MHLA_TRY(mhla_struct_check(result, 0, "mhla_choices"));
    if (limit < 0) return mhla_fail(MHLA_EINVAL, "limit is %lld", (long long)limit);
    MHLA_TRY(mhla_lm_query(model, &info));
    examiner e = {.model = model, .result = &full, .task = task, .report = report, .user = user, .limit = limit};
    e.tokenizer = mhla_lm_tokenizer(model);
    e.longest = info.context ? info.context : INT64_MAX;
    e.group = calloc(GROUP, sizeof *e.group);
    mhla_status status = e.group ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for questions");
    if (status == MHLA_OK) status = e.tokenizer ? mhla_lm_prefix(&info, &e.prefix) : MHLA_EINVAL;
    const double begin = mhla_seconds();
    if (status == MHLA_OK) status = read_files(&e, paths, count, 1);
    if (status == MHLA_OK) status = read_files(&e, paths, count, 0);
    full.seconds = mhla_seconds() - begin;
    full.deviation = full.questions > 1 ? sqrt(e.squares / (double)(full.questions - 1)) : 0.0;
    for (int i = 0; e.group && i < GROUP; i++) forget(&e.group[i]);
    free(e.group);
    return status == MHLA_OK ? mhla_struct_out(result, &full, sizeof full, "mhla_choices") : status;
}

mhla_status mhla_lm_choices(mhla_model *model, mhla_choices *result, const char *path, int64_t limit,
                            mhla_choice_fn report, void *user) {
    if (model == NULL || path == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", model ? "path" : "model");
    return examine(model, result, NULL, &path, 1, limit, report, user);
}

mhla_status mhla_lm_task(mhla_model *model, mhla_choices *result, const char *task, const char *const *paths, int count,
                         int64_t limit, mhla_choice_fn report, void *user) {
    const mhla_exam *known = NULL;
    if (model == NULL || paths == NULL || count < 1)
        return mhla_fail(MHLA_EINVAL, "%s", model == NULL ? "model is NULL" : "there are no paths");
    MHLA_TRY(mhla_exam_find(&known, task));
    if (known->kind == MHLA_TASK_PAGES)
        return mhla_fail(MHLA_EINVAL, "task %s has pages: mhla_lm_task_pages reads them", task);
    return examine(model, result, known, paths, count, limit, report, user);
}
