/* Softmax cross attention: queries of one tensor read keys and values of another, of which each sample has its own number. A
 * sample is a call of the operator, so that its result does not depend on the samples beside it. */
#include <string.h>

#include "nn/op.h"
#include "ops/op.h"

enum { Q, K, V, INPUTS };

typedef struct cross {
    mhla_record r;
    const mhla_plan *plan;
    mhla_call call; /* of one sample; kv_tokens is set for each */
    const int32_t *lengths;
    mhla_tensor *in[INPUTS], *o;
} cross;

/* Keys of sample b. */
static int64_t length(const cross *op, int64_t b) { return op->lengths ? op->lengths[b] : op->in[K]->shape[1]; }

/* The call of a sample with n keys. */
static mhla_call call_of(const cross *op, int64_t n) {
    mhla_call call = op->call;
    call.kv_tokens = n;
    return call;
}

/* The most that the call of any sample needs; 0 where the operator refuses it. */
static size_t workspace(const mhla_tape *t, const cross *op, size_t (*of)(const mhla_plan *, const mhla_call *)) {
    const mhla_call longest = call_of(op, op->in[K]->shape[1]);
    size_t most = of(op->plan, &longest);
    for (int64_t b = 0; b < op->o->shape[0] && most && op->lengths && !mhla_tape_dry(t); b++) {
        if (length(op, b) == 0) continue;
        const mhla_call call = call_of(op, length(op, b));
        const size_t bytes = of(op->plan, &call);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Rows first .. end-1 of x, of which `ld` floats apart each has `cols`. */
static void clear(float *x, int64_t ld, int64_t cols, int64_t first, int64_t end) {
    for (int64_t r = first; r < end; r++) memset(x + r * ld, 0, (size_t)cols * sizeof *x);
}

/* o = softmax(scale q k^T) v: the operator's own backward, from the inputs alone. Rows behind the length get 0. */
static void cross_backward(mhla_tape *t, void *p) {
    cross *op = p;
    const mhla_plan_desc *d = &op->plan->d;
    const int dims[INPUTS] = {d->key_dim, d->key_dim, d->value_dim};
    mhla_slot s[INPUTS];
    for (int i = 0; i < INPUTS; i++) s[i] = mhla_tape_grad(t, op->in[i]);
    const int added = mhla_tape_join(t, s, op->in, INPUTS);
    void *ws = mhla_tape_scratch(t, workspace(t, op, mhla_backward_workspace));
    const float *dO = mhla_tape_arrived(op->o);
    for (int64_t b = 0; b < op->o->shape[0] && t->status == MHLA_OK && !mhla_tape_dry(t); b++) {
        const int64_t n = length(op, b);
        const float *x[INPUTS];
        float *dx[INPUTS];
        mhla_strides strides[INPUTS];
        for (int i = 0; i < INPUTS; i++) {
            const int64_t rows = op->in[i]->shape[1];
            x[i] = op->in[i]->data + b * rows * op->in[i]->ld;
            dx[i] = s[i].wanted ? s[i].data + b * rows * s[i].ld : NULL;
            strides[i] = (mhla_strides){rows * s[i].ld, s[i].ld, dims[i]};
            if (dx[i] && !added) clear(dx[i], s[i].ld, op->in[i]->cols, i != Q ? n : n ? rows : 0, rows);
        }
        if (n == 0) continue;
        const mhla_call call = call_of(op, n);
        const mhla_grads grads = {.size = sizeof grads,
                                  .dq = dx[Q],
                                  .dk = dx[K],
                                  .dv = dx[V],
                                  .dq_strides = strides[Q],
                                  .dk_strides = strides[K],
                                  .dv_strides = strides[V],
                                  .accumulate = added};
        const mhla_status status =
            mhla_backward(op->plan, &call, &grads, dO + b * call.o.batch, x[Q], x[K], x[V], NULL, ws);
        if (status != MHLA_OK) mhla_tape_fail(t, status, "cross attention: %s", mhla_message());
    }
}

mhla_tensor *mhla_nn_cross_attention(mhla_tape *t, const mhla_plan *plan, const int32_t *lengths, mhla_tensor *q,
                                     mhla_tensor *k, mhla_tensor *v) {
    char text[96];
    MHLA_GIVEN(t, plan);
    MHLA_GIVEN(t, q);
    MHLA_GIVEN(t, k);
    MHLA_GIVEN(t, v);
    const mhla_plan_desc *d = &plan->d;
    MHLA_NEED(t, d->kind == MHLA_KIND_SOFTMAX && d->dtype == MHLA_F32 && !d->causal && d->rope == MHLA_ROPE_NONE,
              "the plan of cross attention is not of softmax in float32 without order and rotary embedding");
    MHLA_NEED(t, q->dims == 3 && q->cols == (int64_t)d->heads * d->key_dim, "q is %s: expected [B, T, %lld]",
              mhla_shape_text(text, q->shape, q->dims), (long long)d->heads * d->key_dim);
    MHLA_NEED(t, k->dims == 3 && k->cols == (int64_t)d->kv_heads * d->key_dim && k->shape[0] == q->shape[0],
              "k is %s: expected [%lld, T, %lld]", mhla_shape_text(text, k->shape, k->dims), (long long)q->shape[0],
              (long long)d->kv_heads * d->key_dim);
    MHLA_NEED(t,
              v->dims == 3 && v->cols == (int64_t)d->kv_heads * d->value_dim && v->shape[0] == k->shape[0] &&
                  v->shape[1] == k->shape[1],
              "v is %s: expected [%lld, %lld, %lld]", mhla_shape_text(text, v->shape, v->dims), (long long)k->shape[0],
              (long long)k->shape[1], (long long)d->kv_heads * d->value_dim);
    MHLA_NEED(t, q != k && q != v && k != v, "q, k and v of cross attention must differ");
    for (int64_t b = 0; b < q->shape[0] && lengths && !mhla_tape_dry(t); b++)
        MHLA_NEED(t, lengths[b] >= 0 && lengths[b] <= k->shape[1], "lengths[%lld] is %d: expected 0 to %lld",
                  (long long)b, lengths[b], (long long)k->shape[1]);
    cross *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *o =
        op ? mhla_tape_tensor(t, MHLA_SHAPE(q->shape[0], q->shape[1], (int64_t)d->heads * d->value_dim)) : NULL;
    if (o == NULL) return NULL;
    *op = (cross){.plan = plan, .lengths = lengths, .in = {q, k, v}, .o = o};
    op->call = (mhla_call){.size = sizeof op->call,
                           .context = t->context,
                           .batch = 1,
                           .tokens = q->shape[1],
                           .q = {q->shape[1] * q->ld, q->ld, d->key_dim},
                           .k = {k->shape[1] * k->ld, k->ld, d->key_dim},
                           .v = {v->shape[1] * v->ld, v->ld, d->value_dim},
                           .o = {o->shape[1] * o->ld, o->ld, d->value_dim},
                           .precision = t->precision};
    const size_t bytes = workspace(t, op, mhla_forward_workspace);
    if (bytes == 0) return mhla_tape_fail(t, MHLA_EINVAL, "cross attention: %s", mhla_message());
    void *ws = mhla_tape_scratch(t, bytes);
    for (int64_t b = 0; b < o->shape[0] && t->status == MHLA_OK && !mhla_tape_dry(t); b++) {
        const mhla_call call = call_of(op, length(op, b));
        float *to = o->data + b * call.o.batch;
        if (call.kv_tokens == 0) {
            clear(to, o->ld, o->cols, 0, o->shape[1]);
            continue;
        }
        const mhla_status status = mhla_forward(plan, &call, to, q->data + b * call.q.batch, k->data + b * call.k.batch,
                                                v->data + b * call.v.batch, NULL, ws);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "cross attention: %s", mhla_message());
    }
    return mhla_tape_record(t, &op->r, cross_backward, o, q->needs_grad || k->needs_grad || v->needs_grad);
}
