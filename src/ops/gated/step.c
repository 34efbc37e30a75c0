/* Streaming of the recurrences with decay. The state is S [H][K,V] as callers know it. Few tokens go through the recurrence, one by
 * one, which reads and writes the state once; more of them through the chunk form, in slices, so that memory does not grow. */
#include <math.h>

#include "ops/causal/state.h"
#include "ops/gated/gated.h"

enum { FEW = 4, SLICE = 4096, MOST_K = 1024, MOST_V = 512 };

typedef struct few_job {
    const mhla_run *run;
    mhla_state *const *states;
    int pieces; /* of V */
} few_job;

static mhla_rows rows_at(const mhla_run *run, const void *x, mhla_dtype dtype, const mhla_strides *st, int64_t s,
                         int64_t t, int64_t h, int64_t column) {
    const mhla_call *c = &run->call;
    const char *at = mhla_at(x, dtype, st, mhla_seq_batch(c, s), mhla_seq_begin(c, s) + t, h);
    return (mhla_rows){(void *)(uintptr_t)(at + (size_t)column * mhla_dtype_size(dtype)), NULL, st->token, dtype};
}

/* x [K] = a row of q or k, of length 1 where the plan says so. */
static void load_key(const mhla_run *run, float *x, const mhla_rows *row) {
    const int K = run->plan->d.key_dim;
    run->kernels->copy_rows(x, (K + 15) / 16 * 16, row, 1, K, NULL);
    if (!run->plan->d.qk_l2norm) return;
    float sum;
    run->kernels->row_dots(&sum, x, 0, x, 0, 1, K);
    const float norm = 1.0f / sqrtf(sum + 1e-6f);
    for (int i = 0; i < K; i++) x[i] *= norm;
}

/* Factors of the K rows of the state. */
static void load_decay(const mhla_run *run, float *e, const float *g) {
    const int K = run->plan->d.key_dim, D = mhla_decay_dim(run->plan);
    run->kernels->vexp(e, g, D);
    for (int i = D; i < K; i++) e[i] = e[0];
}

/* Some columns of a head, all its tokens. */
static void few_tokens(void *arg, int64_t task, int worker) {
    (void)worker;
    const few_job *job = arg;
    const mhla_run *run = job->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const int64_t piece = task % job->pieces, h = task / job->pieces % d->heads, s = task / job->pieces / d->heads;
    const int64_t T = mhla_seq_end(c, s) - mhla_seq_begin(c, s), lines = (d->value_dim + 15) / 16;
    if (T >= FEW) return;
    const int64_t begin = piece * lines / job->pieces * 16, end = (piece + 1) * lines / job->pieces * 16;
    const int64_t key_head = h / (d->heads / run->plan->k_heads);
    float q[MOST_K], k[MOST_K], e[MOST_K], v[MOST_V], o[MOST_V];
    mhla_recur step = {.K = d->key_dim,
                       .cols = (int)((end < d->value_dim ? end : d->value_dim) - begin),
                       .S = job->states[s]->S + h * d->key_dim * d->value_dim + begin,
                       .lds = d->value_dim,
                       .q = q,
                       .k = k,
                       .decay = e,
                       .v = v,
                       .delta = d->kind == MHLA_KIND_GATED_DELTA,
                       .scale = d->scale,
                       .o = o};
    for (int64_t t = 0; t < T; t++) {
        const mhla_rows qs = rows_at(run, run->q, d->dtype, &c->q, s, t, key_head, 0);
        const mhla_rows ks = rows_at(run, run->k, d->dtype, &c->k, s, t, key_head, 0);
        const mhla_rows vs = rows_at(run, run->v, d->dtype, &c->v, s, t, h, begin);
        const mhla_rows os = rows_at(run, run->o, d->dtype, &c->o, s, t, h, begin);
        load_key(run, q, &qs);
        load_key(run, k, &ks);
        load_decay(run, e, rows_at(run, c->decay, MHLA_F32, &c->decay_strides, s, t, h, 0).base);
        if (step.delta) step.beta = *(float *)rows_at(run, c->beta, MHLA_F32, &c->beta_strides, s, t, h, 0).base;
        run->kernels->copy_rows(v, (step.cols + 15) / 16 * 16, &vs, 1, step.cols, NULL);
        run->kernels->recur(&step);
        run->kernels->store_rows(&os, o, step.cols, 1, step.cols, c->accumulate);
    }
}

/* Tokens [t, t+n) of sequence s as a call of their own, with the state before and after them. */
static mhla_run slice_run(const mhla_run *run, int64_t s, mhla_state *state, int64_t t, int64_t n) {
    mhla_run r = *run;
    mhla_call *c = &r.call;
    const mhla_dtype dtype = run->plan->d.dtype;
    r.q = rows_at(run, run->q, dtype, &c->q, s, t, 0, 0).base;
    r.k = rows_at(run, run->k, dtype, &c->k, s, t, 0, 0).base;
    r.v = rows_at(run, run->v, dtype, &c->v, s, t, 0, 0).base;
    r.o = rows_at(run, run->o, dtype, &c->o, s, t, 0, 0).base;
    c->decay = rows_at(run, run->call.decay, MHLA_F32, &c->decay_strides, s, t, 0, 0).base;
    if (c->beta) c->beta = rows_at(run, run->call.beta, MHLA_F32, &c->beta_strides, s, t, 0, 0).base;
    c->batch = 1;
    c->tokens = c->kv_tokens = n;
    c->cu_seqlens = NULL;
    c->sequences = 0;
    c->initial_state = state->tokens + t > 0 ? state->S : NULL;
    c->final_state = state->S;
    return r;
}

mhla_status mhla_gated_step(const mhla_run *run, mhla_state *const *states) {
    MHLA_TRY(mhla_gated_check_decay(run));
    const mhla_call *c = &run->call;
    const mhla_plan_desc *d = &run->plan->d;
    const int64_t n = mhla_seq_count(c);
    size_t bytes = 0;
    int few = 0;
    for (int64_t s = 0; s < n; s++) {
        const int64_t T = mhla_seq_end(c, s) - mhla_seq_begin(c, s);
        few |= T > 0 && T < FEW;
        if (T < FEW) continue;
        const mhla_run r = slice_run(run, s, states[s], 0, T < SLICE ? T : SLICE);
        const size_t needed = run->plan->op->workspace(&r, 0);
        if (needed > bytes) bytes = needed;
    }
    void *memory = bytes ? mhla_alloc(bytes) : NULL;
    if (bytes && memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu bytes of scratch", bytes);
    if (few) {
        few_job job = {run, states, mhla_gated_pieces(n * d->heads, (d->value_dim + 63) / 64, run->threads)};
        mhla_parallel(c->context, n * d->heads * job.pieces, few_tokens, &job);
    }
    mhla_status status = MHLA_OK;
    for (int64_t s = 0; s < n; s++) {
        const int64_t T = mhla_seq_end(c, s) - mhla_seq_begin(c, s);
        for (int64_t t = 0; T >= FEW && t < T && status == MHLA_OK; t += SLICE) {
            mhla_run r = slice_run(run, s, states[s], t, T - t < SLICE ? T - t : SLICE);
            r.ws = memory;
            status = run->plan->op->forward(&r);
        }
        states[s]->tokens += T;
    }
    mhla_free(memory);
    return status;
}
