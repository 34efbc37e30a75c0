/* The benchmark's language model of 340M parameters with fresh weights, which cost what trained ones do: decoding after a
 * context, reading a prompt, a step of training. It is large, so only whoever names the group gets it. */
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

typedef enum lm_work { DECODE, PROMPT, TRAIN, BATCH } lm_work;

static const struct lm_shape {
    const char *name;
    int64_t tokens;
    lm_work work;
    int by_name; /* takes minutes to prepare */
} shapes[] = {
    {"decode-128", 128, DECODE, 0},   {"decode-2048", 2048, DECODE, 0},   {"prompt-512", 512, PROMPT, 0},
    {"prompt-2048", 2048, PROMPT, 0}, {"train-512", 512, TRAIN, 0},       {"train-2048", 2048, TRAIN, 1},
    {"decode-8192", 8192, DECODE, 1}, {"decode-65536", 65536, DECODE, 1}, {"micro", 70, DECODE, 1},
    {"batch-8", 128, BATCH, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, PIECE = 2048, TOGETHER = 8, GROWTH = 64 };

int bench_lm_has(const char *shape) {
    for (int i = 0; i < SHAPES; i++)
        if (strcmp(shapes[i].name, shape) == 0) return 1;
    return 0;
}

typedef struct lm_bench {
    mhla_model *model;
    mhla_sequence *context;  /* of decoding: what was read before, */
    mhla_sequence *sequence; /* and up to GROWTH tokens after it, then from the context again */
    mhla_sequence *forks[TOGETHER];
    int32_t *ids; /* [tokens] */
    int64_t tokens;
    float *logits; /* [vocabulary] */
} lm_bench;

static mhla_status new_sequence(mhla_sequence **sequence, mhla_model *model) {
    const mhla_sequence_desc desc = {.size = sizeof desc, .beyond = MHLA_BEYOND_CLAMP};
    return mhla_sequence_create(sequence, model, &desc);
}

static mhla_status read_tokens(lm_bench *w, mhla_sequence *sequence, int64_t first, int64_t count, float *logits) {
    const mhla_feed feed = {
        .size = sizeof feed, .sequence = sequence, .ids = w->ids + first, .count = count, .logits = logits};
    return mhla_lm_feed(w->model, &feed, 1);
}

static mhla_status decode(void *arg) {
    lm_bench *w = arg;
    if (w->sequence == NULL || mhla_sequence_tokens(w->sequence) >= w->tokens + GROWTH) {
        mhla_sequence_free(w->sequence);
        const mhla_status status = mhla_sequence_fork(&w->sequence, w->context);
        if (status != MHLA_OK) return status;
    }
    return read_tokens(w, w->sequence, 0, 1, w->logits);
}

/* A token for each of several sequences: weights are read once for all. */
static mhla_status decode_batch(void *arg) {
    lm_bench *w = arg;
    mhla_feed feeds[TOGETHER];
    for (int i = 0; i < TOGETHER; i++)
        feeds[i] = (mhla_feed){
            .size = sizeof *feeds, .sequence = w->forks[i], .ids = w->ids + i, .count = 1, .logits = w->logits};
    return mhla_lm_feed(w->model, feeds, TOGETHER);
}

static mhla_status prompt(void *arg) {
    lm_bench *w = arg;
    mhla_sequence *sequence = NULL;
    mhla_status status = new_sequence(&sequence, w->model);
    if (status == MHLA_OK) status = read_tokens(w, sequence, 0, w->tokens, w->logits);
    mhla_sequence_free(sequence);
    return status;
}

static mhla_status train(void *arg) {
    lm_bench *w = arg;
    return mhla_lm_train_step(w->model, NULL, w->ids, 1, w->tokens, 1e-4);
}

static mhla_status make(lm_bench *w, const struct lm_shape *s, const char *attention, mhla_dtype dtype, const bench *b,
                        mhla_lm_info *info) {
    char setting[32];
    const char *settings[] = {setting};
    snprintf(setting, sizeof setting, "attention=%s", attention);
    *w = (lm_bench){.tokens = s->tokens};
    mhla_status status =
        mhla_model_create(&w->model, strcmp(s->name, "micro") == 0 ? "lm_micro" : "lm_340m", settings, 1, 1);
    if (status == MHLA_OK && dtype != MHLA_F32)
        status = (s->work == TRAIN ? mhla_model_set_precision : mhla_lm_store)(w->model, bench_dtype_names[dtype]);
    if (status == MHLA_OK) status = mhla_lm_query(w->model, info);
    if (status != MHLA_OK) return status;
    mhla_model_set_context(w->model, b->context);
    w->ids = malloc((size_t)s->tokens * sizeof *w->ids);
    w->logits = malloc((size_t)info->vocabulary * sizeof *w->logits);
    if (w->ids == NULL || w->logits == NULL) return MHLA_ENOMEM;
    for (int64_t i = 0; i < s->tokens; i++) w->ids[i] = (int32_t)(i * 37 % info->vocabulary);
    if (s->work != DECODE && s->work != BATCH) return MHLA_OK;
    status = new_sequence(&w->context, w->model);
    for (int64_t i = 0; i < s->tokens && status == MHLA_OK; i += PIECE)
        status = read_tokens(w, w->context, i, s->tokens - i < PIECE ? s->tokens - i : PIECE, NULL);
    for (int i = 0; i < TOGETHER && s->work == BATCH && status == MHLA_OK; i++)
        status = mhla_sequence_fork(&w->forks[i], w->context);
    return status;
}

static void drop(lm_bench *w) {
    for (int i = 0; i < TOGETHER; i++) mhla_sequence_free(w->forks[i]);
    mhla_sequence_free(w->sequence);
    mhla_sequence_free(w->context);
    mhla_model_free(w->model);
    free(w->ids);
    free(w->logits);
}

/* ---- A row: tokens/s, beside what memory or the products would allow ---- */

/* What is needed: the logits of a prompt are those of its last token. What a token costs is told for the trained length,
 * which is right for MHLA and linear attention; softmax, whose T tokens see T/2 on average, is reckoned here. */
static double flops_of(const struct lm_shape *s, const char *attention, const mhla_lm_info *info) {
    const double T = (double)s->tokens, logits = (double)info->vocabulary * info->width;
    double each = (double)info->multiply_adds - logits;
    if (strcmp(attention, "softmax") == 0)
        each = (double)info->parameters - logits + (T + 1.0) * info->width * info->layers;
    return s->work == TRAIN ? 6.0 * T * (each + logits) : 2.0 * (T * each + logits);
}

static void report(bench *b, const struct lm_shape *s, const char *attention, mhla_dtype dtype, const timing *t,
                   const lm_bench *w, const mhla_lm_info *info) {
    static int head;
    if (b->format == BENCH_SIMULATE) {
        bench_simulated("lm-340m", s->name, attention, dtype, t->best);
        return;
    }
    char best[32], median[32], weights[32], state[32] = "", moved[32] = "";
    const int decoding = s->work == DECODE || s->work == BATCH;
    const double tokens = s->work == DECODE ? 1.0 : s->work == BATCH ? TOGETHER : (double)s->tokens;
    const double bandwidth = b->format == BENCH_ENGINE ? 0.0 : bandwidth_of(b->context, 0.1);
    const size_t bytes = w->context ? mhla_sequence_bytes(w->context) : 0;
    const size_t step = decoding ? mhla_sequence_step_bytes(w->context) : 0;
    const double limit = decoding ? 1e9 * bandwidth * tokens / ((double)info->weight_bytes + tokens * (double)step)
                                  : 1e9 * t->peak * tokens / flops_of(s, attention, info);
    const double percent = limit > 0.0 ? 100.0 * tokens / t->best / limit : 0.0;
    bench_begin(b);
    if (b->format == BENCH_ENGINE) {
        printf("{\"variant\": \"engine-%s-%s\", \"ms\": [", attention, bench_dtype_names[dtype]);
        for (int64_t i = 0; i < t->count; i++) printf("%s%.6g", i ? ", " : "", 1e3 * t->samples[i]);
        printf("]}\n");
    } else if (b->format == BENCH_JSON) {
        json_put_open(NULL, '{');
        json_put_text("group", "lm-340m");
        json_put_text("shape", s->name);
        json_put_text("variant", attention);
        json_put_text("dtype", bench_dtype_names[dtype]);
        json_put_real("best_ms", 1e3 * t->best);
        json_put_real("median_ms", 1e3 * t->median);
        json_put_int("calls", t->count);
        json_put_real("tokens_per_second", tokens / t->best);
        json_put_int("weight_bytes", (int64_t)info->weight_bytes);
        if (limit > 0.0) json_put_real(decoding ? "memory_allows" : "peak_allows", limit);
        if (limit > 0.0) json_put_real(decoding ? "percent_of_memory" : "percent_of_peak", percent);
        if (bytes) json_put_int("state_bytes", (int64_t)bytes);
        if (step) json_put_int("state_bytes_per_token", (int64_t)step);
        json_put_close('}');
    } else {
        if (!head++)
            printf("\nlanguage model of 340M parameters; allowed: by memory, a call of decoding reading every weight "
                   "once, and\n"
                   "of each sequence what a token reads and writes; else by the rate of multiply-adds\n"
                   "%-14s %-14s %-10s %10s %10s %10s %10s %5s %9s %10s %10s\n",
                   "", "", "", "best", "median", "tokens/s", "allowed", "of it", "weights", "state", "per token");
        if (bytes) text_bytes(state, sizeof state, (double)bytes);
        if (step) text_bytes(moved, sizeof moved, (double)step);
        printf("%-14s %-14s %-10s %10s %10s %10.1f ", s->name, attention, bench_dtype_names[dtype],
               text_time(best, sizeof best, t->best), text_time(median, sizeof median, t->median), tokens / t->best);
        if (limit > 0.0)
            printf("%10.1f %3.0f %%", limit, percent);
        else
            printf("%10s %5s", "", "");
        printf(" %9s %10s %10s\n", text_bytes(weights, sizeof weights, (double)info->weight_bytes), state, moved);
    }
    fflush(stdout);
}

/* Mixers of whole models. */
static const char *const attentions[OPERATORS] = {
    [OPERATOR_MHLA] = "mhla",       [OPERATOR_LINEAR] = "linear",
    [OPERATOR_SOFTMAX] = "softmax", [OPERATOR_GLA] = "gla",
    [OPERATOR_RETNET] = "retnet",   [OPERATOR_MAMBA] = "mamba",
    [OPERATOR_MAMBA2] = "mamba2",   [OPERATOR_GATED_DELTANET] = "gated_deltanet"};

static mhla_status bench_one(bench *b, const struct lm_shape *s, bench_operator op, mhla_dtype dtype) {
    static const work_fn works[] = {decode, prompt, train, decode_batch};
    mhla_lm_info info = {.size = sizeof info};
    timing t = {0};
    lm_bench w = {0};
    mhla_status status = make(&w, s, attentions[op], dtype, b, &info);
    if (status == MHLA_OK)
        status = timing_run(&t, works[s->work], &w, b->context, MHLA_F32, b->seconds, bench_rates(b));
    if (status == MHLA_OK) report(b, s, attentions[op], dtype, &t, &w, &info);
    timing_free(&t);
    drop(&w);
    return status;
}

mhla_status bench_lm(bench *b) {
    mhla_status status = MHLA_OK;
    int named = 0, shape = 0;
    for (int i = 0; i < b->names; i++) {
        named |= strcmp(b->name[i], "lm-340m") == 0 || bench_lm_has(b->name[i]);
        shape |= bench_lm_has(b->name[i]);
    }
    for (int i = 0; named && i < SHAPES; i++) {
        if (!bench_wants(b, "lm-340m", shapes[i].name) || (shapes[i].by_name && !shape)) continue;
        for (int dtype = MHLA_F32; dtype <= MHLA_Q8_0; dtype++)
            for (int op = OPERATOR_MHLA; op < OPERATORS && status == MHLA_OK; op++)
                if ((b->dtypes & 1 << dtype) && (b->operators & 1 << op) && attentions[op] &&
                    (shapes[i].work != TRAIN || dtype != MHLA_Q8_0))
                    status = bench_one(b, &shapes[i], (bench_operator)op, (mhla_dtype)dtype);
    }
    return status;
}
