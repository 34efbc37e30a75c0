/* What is alike in the plans and calls of the recurrences with decay. */
#include <math.h>
#include <stdatomic.h>

#include "ops/gated/gated.h"

mhla_status mhla_gated_check_plan(mhla_plan *plan) {
    mhla_plan_desc *d = &plan->d;
    const char *name = plan->op->name;
    if (d->kv_heads != d->heads)
        return mhla_fail(MHLA_EINVAL,
                         "kv_heads is %d: %s has heads, %d, of values; key_heads says how many q and k have",
                         d->kv_heads, name, d->heads);
    if (d->chunks || d->max_tokens || d->causal || d->window || d->beyond || d->axes || d->n_blocks || d->n_tokens ||
        d->block_offsets || d->permutation || d->mix_per_head || d->order)
        return mhla_fail(MHLA_EINVAL, "a field of blocks, mixing or softmax is set: %s has none", name);
    if (d->feature != (mhla_feature)0 && d->feature != MHLA_FEATURE_IDENTITY)
        return mhla_fail(MHLA_EINVAL, "feature is %d: %s has no feature map, leave it 0", (int)d->feature, name);
    if (d->denominator != (mhla_denominator)0 && d->denominator != MHLA_DEN_NONE)
        return mhla_fail(MHLA_EINVAL, "denominator is %d: %s has none, leave it 0", (int)d->denominator, name);
    if (d->rope != MHLA_ROPE_NONE) return mhla_fail(MHLA_EINVAL, "rope is %d: %s has none", (int)d->rope, name);
    if (d->chunk < 0 || d->chunk > 1 << 30)
        return mhla_fail(MHLA_EINVAL, "chunk is %d: expected 1 to 2^30, or 0 for the default", d->chunk);
    d->feature = MHLA_FEATURE_IDENTITY;
    d->denominator = MHLA_DEN_NONE;
    if (d->scale == 0.0f) d->scale = (float)(1.0 / sqrt((double)d->key_dim));
    return MHLA_OK;
}

mhla_status mhla_gated_check_call(const mhla_run *run) {
    const mhla_call *c = &run->call;
    if (c->initial_z || c->final_z)
        return mhla_fail(MHLA_EINVAL, "initial_z or final_z is given: %s has no denominator", run->plan->op->name);
    return MHLA_OK;
}

/* ---- Log-decays above 0 ---- */

enum { ROWS = 128 }; /* tokens of a task */

typedef struct decay_scan {
    const mhla_run *run;
    atomic_int found;
} decay_scan;

/* Is one of n numbers above 0? NaN is not. */
static int any_above(const float *x, int64_t n) {
    int found = 0;
    for (int64_t i = 0; i < n; i++) found |= x[i] > 0.0f;
    return found;
}

static const float *decay_at(const mhla_run *run, int64_t b, int64_t t, int64_t h) {
    return mhla_at(run->call.decay, MHLA_F32, &run->call.decay_strides, b, t, h);
}

static void scan_rows(void *arg, int64_t i, int worker) {
    (void)worker;
    decay_scan *scan = arg;
    const mhla_run *run = scan->run;
    const int64_t H = run->plan->d.heads, T = run->call.tokens, D = mhla_decay_dim(run->plan);
    const int64_t begin = i * ROWS, end = run->call.batch * T < begin + ROWS ? run->call.batch * T : begin + ROWS;
    const int whole = run->call.decay_strides.head == D; /* the heads of a token lie side by side */
    int found = 0;
    for (int64_t row = begin; row < end; row++)
        for (int64_t h = 0; h < (whole ? 1 : H); h++)
            found |= any_above(decay_at(run, row / T, row % T, h), whole ? H * D : D);
    if (found) atomic_store_explicit(&scan->found, 1, memory_order_relaxed);
}

mhla_status mhla_gated_check_decay(const mhla_run *run) {
    const int64_t B = run->call.batch, T = run->call.tokens, H = run->plan->d.heads, D = mhla_decay_dim(run->plan);
    decay_scan scan = {.run = run};
    atomic_init(&scan.found, 0);
    mhla_parallel(run->call.context, (B * T + ROWS - 1) / ROWS, scan_rows, &scan);
    if (!atomic_load_explicit(&scan.found, memory_order_relaxed)) return MHLA_OK;
    for (int64_t row = 0; row < B * T; row++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t e = 0; e < D; e++) {
                const float x = decay_at(run, row / T, row % T, h)[e];
                if (!(x > 0.0f)) continue;
                if (D == 1)
                    return mhla_fail(MHLA_EINVAL,
                                     "decay is %g at batch %lld, token %lld, head %lld: a log-decay is 0 or less",
                                     (double)x, (long long)(row / T), (long long)(row % T), (long long)h);
                return mhla_fail(
                    MHLA_EINVAL,
                    "decay is %g at batch %lld, token %lld, head %lld, channel %lld: a log-decay is 0 or less",
                    (double)x, (long long)(row / T), (long long)(row % T), (long long)h, (long long)e);
            }
    return MHLA_OK;
}
