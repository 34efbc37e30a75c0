/* What recurrent layers remember (carry.h). */
#include "models/language/mixers/carry.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "nn/op.h"
#include "ops/op.h"

/* ---- Memory ---- */

mhla_status mhla_carry_policy(void **to, void *shared, const mhla_terms *terms, int64_t *limit) {
    (void)shared, (void)terms, (void)limit;
    *to = NULL;
    return MHLA_OK;
}
void mhla_carry_policy_free(void *of) { (void)of; }

static size_t bytes_of(const mhla_carry *m) { return sizeof(float) * (size_t)m->numbers; }
static size_t stream_bytes(const mhla_carry *m) {
    return m->stream ? mhla_saved_size(mhla_state_save_size(m->stream)) : 0;
}

void mhla_carry_forget(void *of) {
    mhla_carry *m = of;
    if (m) mhla_state_free(m->stream);
    if (m) mhla_free(m->state);
    mhla_free(m);
}

/* Without a stream. */
static mhla_status make(mhla_carry **to, const mhla_carry_size *size) {
    mhla_carry *m = mhla_alloc_zero(sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    m->size = size;
    m->numbers = size->state;
    for (int i = 0; i < MHLA_CARRY_CONVS; i++)
        m->numbers += m->past[i].floats = size->width > 1 ? (size->width - 1) * size->convs[i] : 0;
    m->state = mhla_alloc_zero(bytes_of(m) + 1);
    if (m->state == NULL) {
        mhla_carry_forget(m);
        return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    }
    float *rows = m->state + size->state;
    for (int i = 0; i < MHLA_CARRY_CONVS; rows += m->past[i++].floats)
        m->past[i].rows = m->past[i].floats ? rows : NULL;
    *to = m;
    return MHLA_OK;
}

mhla_status mhla_carry_remember(void **to, void *layer, const void *policy) {
    const mhla_carry_size *size = layer;
    mhla_carry *m = NULL;
    (void)policy;
    MHLA_TRY(make(&m, size));
    const mhla_status status = size->plan ? mhla_state_create(&m->stream, size->plan, NULL) : MHLA_OK;
    if (status != MHLA_OK) {
        mhla_carry_forget(m);
        return status;
    }
    *to = m;
    return MHLA_OK;
}

/* The numbers after so many tokens; NULL: zeros. */
static void set(mhla_carry *m, const void *bytes, int64_t tokens) {
    if (bytes)
        memcpy(m->state, bytes, bytes_of(m));
    else
        memset(m->state, 0, bytes_of(m));
    m->at = tokens;
    for (int i = 0; i < MHLA_CARRY_CONVS; i++) m->past[i].at = tokens;
}

mhla_status mhla_carry_fork(void **to, const void *of) {
    const mhla_carry *m = of;
    mhla_carry *copy = NULL;
    MHLA_TRY(make(&copy, m->size));
    const mhla_status status = m->stream ? mhla_state_fork(&copy->stream, m->stream) : MHLA_OK;
    if (status != MHLA_OK) {
        mhla_carry_forget(copy);
        return status;
    }
    set(copy, m->state, m->at);
    for (int i = 0; i < MHLA_CARRY_CONVS; i++) copy->past[i].at = m->past[i].at;
    *to = copy;
    return MHLA_OK;
}

size_t mhla_carry_memory_bytes(const void *of) {
    const mhla_carry *m = of;
    return sizeof *m + bytes_of(m) + (m->stream ? mhla_state_bytes(m->stream) : 0);
}

/* All of it is read and written. */
size_t mhla_carry_step_bytes(const void *of, int64_t tokens) {
    const mhla_carry *m = of;
    const mhla_plan *plan = m->size->plan;
    (void)tokens;
    const int64_t numbers = plan ? (int64_t)plan->d.heads * plan->d.key_dim * plan->d.value_dim : 0;
    return 2 * (bytes_of(m) + (size_t)numbers * sizeof(float));
}

/* The place where state and convolutions are; -1: they differ, because a pass failed between them. */
static int64_t place_of(const mhla_carry *m) {
    for (int i = 0; i < MHLA_CARRY_CONVS; i++)
        if (m->past[i].rows && m->past[i].at != m->at) return -1;
    return m->at;
}

int64_t mhla_carry_nearest(const void *of, int64_t tokens, int64_t mark) {
    const int64_t at = place_of(of);
    return at >= 0 && at <= tokens ? at : mark;
}

/* ---- Bytes: those of the stream, if there is one, then the numbers ---- */

size_t mhla_carry_bytes(const void *of) { return stream_bytes(of) + mhla_saved_size(bytes_of(of)); }

void mhla_carry_mark(const void *of, unsigned char *to) {
    const mhla_carry *m = of;
    if (m->stream) mhla_state_save(m->stream, to, stream_bytes(m));
    memcpy(to + stream_bytes(m), m->state, bytes_of(m));
}

/* NULL: to the beginning. */
static mhla_status load_stream(mhla_carry *m, const unsigned char *bytes) {
    mhla_state *other;
    if (m->stream == NULL) return MHLA_OK;
    if (bytes == NULL) return mhla_state_rollback(m->stream, 0, m->size->plan, NULL);
    MHLA_TRY(mhla_state_load(&other, bytes, mhla_state_save_size(m->stream), m->size->plan, NULL));
    mhla_state_free(m->stream);
    m->stream = other;
    return MHLA_OK;
}

mhla_status mhla_carry_back(void *of, int64_t place, const unsigned char *mark) {
    mhla_carry *m = of;
    if (place_of(m) == place) return MHLA_OK;
    if (place == 0) mark = NULL;
    MHLA_TRY(load_stream(m, mark));
    set(m, mark ? mark + stream_bytes(m) : NULL, place);
    return MHLA_OK;
}

mhla_status mhla_carry_save(const void *of, mhla_sink *sink) {
    const mhla_carry *m = of;
    const size_t size = m->stream ? mhla_state_save_size(m->stream) : 0;
    void *bytes = size ? mhla_alloc(size) : NULL;
    if (size && bytes == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu bytes of a layer", size);
    const mhla_status status = size ? mhla_state_save(m->stream, bytes, size) : MHLA_OK;
    if (status == MHLA_OK && size) mhla_sink_put(sink, bytes, size);
    mhla_free(bytes);
    if (status == MHLA_OK) mhla_sink_put(sink, m->state, bytes_of(m));
    return status;
}

mhla_status mhla_carry_load(void *of, mhla_saved *in, int64_t tokens) {
    mhla_carry *m = of;
    const size_t size = m->stream ? mhla_state_save_size(m->stream) : 0;
    const unsigned char *stream = mhla_saved_take(in, size), *bytes = stream ? mhla_saved_take(in, bytes_of(m)) : NULL;
    if (bytes == NULL) return mhla_fail(MHLA_EDATA, "fewer than the %zu bytes of its state", mhla_carry_bytes(m));
    const mhla_status status = size ? load_stream(m, stream) : MHLA_OK;
    if (status != MHLA_OK) return status == MHLA_ENOMEM ? status : mhla_fail(MHLA_EDATA, "%s", mhla_message());
    if (m->stream && mhla_state_tokens(m->stream) != tokens)
        return mhla_fail(MHLA_EDATA, "it has read %lld tokens: expected %lld", (long long)mhla_state_tokens(m->stream),
                         (long long)tokens);
    set(m, bytes, tokens);
    return MHLA_OK;
}

/* ---- Convolutions ---- */

mhla_tensor *mhla_carry_convolve(mhla_tape *t, const mhla_carry_size *size, const mhla_mixer_run *run, int i,
                                 mhla_param *w, mhla_param *b, mhla_tensor *x) {
    if (w == NULL || x == NULL) return x;
    if (run->pass == NULL) return mhla_nn_short_conv(t, w, b, run->cu_seqlens, run->sequences, x);
    return mhla_past_convolve(t, run->pass, size->index, offsetof(mhla_carry, past) + (size_t)i * sizeof(mhla_past), w,
                              b, x);
}

/* ---- Recurrences ---- */

static mhla_strides heads_of(const mhla_tensor *x, int64_t dim) { return (mhla_strides){x->rows * x->ld, x->ld, dim}; }

/* One step of all sequences. */
static mhla_tensor *recur_memory(mhla_tape *t, const mhla_carry_size *size, const mhla_pass *pass,
                                 const mhla_plan_desc *d, const mhla_carried *in) {
    int64_t cu[MHLA_PASS + 1];
    mhla_state *states[MHLA_PASS];
    mhla_tensor *o = mhla_tape_tensor(t, MHLA_SHAPE(1, pass->rows, (int64_t)d->heads * d->value_dim));
    if (o == NULL) return NULL;
    mhla_pass_sequences(pass, cu);
    for (int i = 0; i < pass->n; i++) states[i] = ((const mhla_carry *)pass->segments[i].memory[size->index])->stream;
    mhla_call call = {.size = sizeof call,
                      .context = t->context,
                      .batch = 1,
                      .tokens = pass->rows,
                      .q = heads_of(in->q, d->key_dim),
                      .k = heads_of(in->k, d->key_dim),
                      .v = heads_of(in->v, d->value_dim),
                      .o = heads_of(o, d->value_dim),
                      .decay = in->fixed,
                      .decay_strides = {0, 0, 1},
                      .cu_seqlens = cu,
                      .sequences = pass->n};
    if (in->decay) {
        call.decay = in->decay->data;
        call.decay_strides = heads_of(in->decay, in->decay->cols / d->heads);
    }
    if (in->beta) {
        call.beta = in->beta->data;
        call.beta_strides = heads_of(in->beta, 1);
    }
    const mhla_status status =
        mhla_step(size->plan, &call, states, pass->n, o->data, in->q->data, in->k->data, in->v->data, NULL);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "layer %d: %s", size->index, mhla_message());
    for (int i = 0; i < pass->n; i++) {
        mhla_carry *m = pass->segments[i].memory[size->index];
        m->at = mhla_state_tokens(m->stream);
    }
    return o;
}

mhla_tensor *mhla_carry_recur(mhla_tape *t, const mhla_carry_size *size, const mhla_mixer_run *run,
                              const mhla_carry_plan *plan, mhla_carried in) {
    if (in.q == NULL || in.k == NULL || in.v == NULL || (in.decay == NULL && in.fixed == NULL)) return NULL;
    if (run->pass) return recur_memory(t, size, run->pass, &plan->desc, &in);
    const mhla_call call = {.size = sizeof call,
                            .cu_seqlens = run->cu_seqlens,
                            .sequences = run->sequences,
                            .decay = in.fixed,
                            .decay_strides = {0, 0, 1}};
    return mhla_nn_recurrence(t, plan->plan, &call, in.q, in.k, in.v, in.decay, in.beta);
}
