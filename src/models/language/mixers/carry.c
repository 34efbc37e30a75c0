/* What recurrent layers remember (carry.h). */
#include "models/language/mixers/carry.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "nn/op.h"

enum { FEW = 16 }; /* tokens of a sequence, at most, where sequences are shared out among threads */

/* ---- Memory ---- */

mhla_status mhla_carry_policy(void **to, void *shared, const mhla_terms *terms, int64_t *limit) {
    (void)shared, (void)terms, (void)limit;
    *to = NULL;
    return MHLA_OK;
}
void mhla_carry_policy_free(void *of) { (void)of; }

static size_t bytes_of(const mhla_carry *m) { return sizeof(float) * (size_t)m->numbers; }

void mhla_carry_forget(void *of) {
    mhla_carry *m = of;
    if (m) mhla_free(m->state);
    mhla_free(m);
}

mhla_status mhla_carry_remember(void **to, void *layer, const void *policy) {
    const mhla_carry_size *size = layer;
    mhla_carry *m = mhla_alloc_zero(sizeof *m);
    (void)policy;
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    m->size = size;
    m->numbers = size->state;
    for (int i = 0; i < MHLA_CARRY_CONVS; i++)
        m->numbers += m->past[i].floats = size->width > 1 ? (size->width - 1) * size->convs[i] : 0;
    m->state = mhla_alloc_zero(bytes_of(m));
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
    MHLA_TRY(mhla_carry_remember(to, (void *)(uintptr_t)m->size, NULL));
    mhla_carry *copy = *to;
    set(copy, m->state, m->at);
    for (int i = 0; i < MHLA_CARRY_CONVS; i++) copy->past[i].at = m->past[i].at;
    return MHLA_OK;
}

size_t mhla_carry_memory_bytes(const void *of) { return sizeof(mhla_carry) + bytes_of(of); }

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

mhla_status mhla_carry_back(void *of, int64_t place, const unsigned char *mark) {
    if (place_of(of) != place) set(of, place > 0 ? mark : NULL, place);
    return MHLA_OK;
}

size_t mhla_carry_bytes(const void *of) { return mhla_saved_size(bytes_of(of)); }

void mhla_carry_mark(const void *of, unsigned char *to) { memcpy(to, ((const mhla_carry *)of)->state, bytes_of(of)); }

mhla_status mhla_carry_save(const void *of, mhla_sink *sink) {
    mhla_sink_put(sink, ((const mhla_carry *)of)->state, bytes_of(of));
    return MHLA_OK;
}

mhla_status mhla_carry_load(void *of, mhla_saved *in, int64_t tokens) {
    const size_t size = bytes_of(of);
    const unsigned char *bytes = mhla_saved_take(in, size);
    if (bytes == NULL) return mhla_fail(MHLA_EDATA, "fewer than the %zu bytes of its state", size);
    set(of, bytes, tokens);
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

typedef struct recurrence {
    const mhla_carry_size *size;
    const mhla_pass *pass;
    const mhla_carry_plan *plan;
    const mhla_context *context;
    const mhla_tensor *q, *k, *v, *decay;
    const float *fixed;
    mhla_tensor *o;
    float *states; /* what comes after, of each segment or of the one at hand */
    char *ws;
    size_t ws_bytes;    /* of a segment; 0: one for all */
    mhla_status *wrong; /* [segments] */
} recurrence;

static mhla_strides heads_of(const mhla_tensor *x, int64_t n, int64_t dim) {
    return (mhla_strides){n * x->ld, x->ld, dim};
}

static mhla_call call_of(const recurrence *x, const mhla_segment *g) {
    const mhla_plan_desc *d = &x->plan->desc;
    mhla_call call = {.size = sizeof call,
                      .context = x->context,
                      .batch = 1,
                      .tokens = g->n,
                      .q = heads_of(x->q, g->n, d->key_dim),
                      .k = heads_of(x->k, g->n, d->key_dim),
                      .v = heads_of(x->v, g->n, d->value_dim),
                      .o = heads_of(x->o, g->n, d->value_dim),
                      .decay = x->fixed,
                      .decay_strides = {0, 0, 1}};
    if (x->decay) {
        call.decay = x->decay->data + g->row * x->decay->ld;
        call.decay_strides = heads_of(x->decay, g->n, x->decay->cols / d->heads);
    }
    return call;
}

static void recur_task(void *arg, int64_t i, int worker) {
    const recurrence *x = arg;
    (void)worker;
    const mhla_segment *g = &x->pass->segments[i];
    mhla_carry *m = g->memory[x->size->index];
    const int64_t at = x->ws_bytes ? i : 0;
    mhla_call call = call_of(x, g);
    call.initial_state = m->state;
    call.final_state = x->states + at * x->size->state;
    x->wrong[i] = mhla_forward(x->plan->plan, &call, x->o->data + g->row * x->o->ld, x->q->data + g->row * x->q->ld,
                               x->k->data + g->row * x->k->ld, x->v->data + g->row * x->v->ld, NULL,
                               x->ws + x->ws_bytes * (size_t)at);
    if (x->wrong[i] != MHLA_OK) return;
    memcpy(m->state, call.final_state, sizeof *m->state * (size_t)x->size->state);
    m->at += g->n;
}

static mhla_tensor *recur_memory(mhla_tape *t, recurrence *x) {
    const mhla_pass *pass = x->pass;
    mhla_status wrong[MHLA_PASS] = {MHLA_OK};
    size_t most = 0;
    int side = pass->n > 1; /* sequences side by side, or one after the other, each by all threads */
    for (int i = 0; i < pass->n; i++) side &= pass->segments[i].n <= FEW;
    x->context = side ? pass->alone : t->context;
    for (int i = 0; i < pass->n; i++) {
        const mhla_call call = call_of(x, &pass->segments[i]);
        const size_t bytes = mhla_forward_workspace(x->plan->plan, &call);
        if (bytes == 0) return mhla_tape_fail(t, MHLA_EINVAL, "layer %d: %s", x->size->index, mhla_message());
        if (bytes > most) most = (bytes + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    }
    const int64_t copies = side ? pass->n : 1;
    x->wrong = wrong;
    x->ws_bytes = side ? most : 0;
    x->states = mhla_tape_floats(t, copies * x->size->state);
    x->ws = mhla_tape_scratch(t, most * (size_t)copies);
    if (t->status != MHLA_OK) return NULL;
    if (side)
        mhla_parallel(t->context, pass->n, recur_task, x);
    else
        for (int i = 0; i < pass->n; i++) recur_task(x, i, 0);
    for (int i = 0; i < pass->n; i++)
        if (wrong[i] != MHLA_OK) return mhla_tape_fail(t, wrong[i], "layer %d: %s", x->size->index, mhla_message());
    return x->o;
}

mhla_tensor *mhla_carry_recur(mhla_tape *t, const mhla_carry_size *size, const mhla_mixer_run *run,
                              const mhla_carry_plan *plan, mhla_tensor *q, mhla_tensor *k, mhla_tensor *v,
                              mhla_tensor *decay, const float *fixed) {
    if (q == NULL || k == NULL || v == NULL || (decay == NULL && fixed == NULL)) return NULL;
    if (run->pass == NULL) {
        const mhla_call call = {.size = sizeof call,
                                .cu_seqlens = run->cu_seqlens,
                                .sequences = run->sequences,
                                .decay = fixed,
                                .decay_strides = {0, 0, 1}};
        return mhla_nn_recurrence(t, plan->plan, &call, q, k, v, decay);
    }
    recurrence x = {
        .size = size, .pass = run->pass, .plan = plan, .q = q, .k = k, .v = v, .decay = decay, .fixed = fixed};
    x.o = mhla_tape_tensor(t, MHLA_SHAPE(1, run->pass->rows, (int64_t)plan->desc.heads * plan->desc.value_dim));
    return x.o ? recur_memory(t, &x) : NULL;
}
