/* Mamba's selective scan as a layer: the operator of libmhla on the tape. */
#include <string.h>

#include "nn/op.h"
#include "ops/scan/scan.h"

enum { U, DELTA, B, C, Z, INPUTS };

typedef struct scan {
    mhla_record r;
    mhla_nn_scan p;
    mhla_tensor *in[INPUTS], *y;
    float *A; /* [I,N] -exp(A_log) */
} scan;

static mhla_strides rows_of(const mhla_tensor *x, int64_t ld) { return (mhla_strides){x->shape[1] * ld, ld, x->cols}; }
static mhla_strides strides(const mhla_tensor *x) { return rows_of(x, x->ld); }

static mhla_scan_call call_of(const mhla_tape *t, const scan *op) {
    const mhla_tensor *u = op->in[U];
    return (mhla_scan_call){.size = sizeof(mhla_scan_call),
                            .context = t->context,
                            .batch = u->shape[0],
                            .tokens = u->shape[1],
                            .channels = u->cols,
                            .states = op->in[B]->cols,
                            .delta_softplus = 1,
                            .u = strides(u),
                            .delta = strides(op->in[DELTA]),
                            .B = strides(op->in[B]),
                            .C = strides(op->in[C]),
                            .y = strides(op->y),
                            .D = op->p.D->data,
                            .delta_bias = op->p.bias->data,
                            .z = op->in[Z]->data,
                            .z_strides = strides(op->in[Z]),
                            .cu_seqlens = op->p.cu_seqlens,
                            .sequences = op->p.cu_seqlens ? op->p.sequences : 0};
}

/* A = -exp(A_log):  dA_log = dA A */
static void scan_backward(mhla_tape *t, void *p) {
    const scan *op = p;
    const mhla_scan_call call = call_of(t, op);
    const int64_t I = call.channels, count = I * call.states;
    mhla_slot s[INPUTS];
    for (int i = 0; i < INPUTS; i++) s[i] = mhla_tape_grad(t, op->in[i]);
    const int add = mhla_tape_join(t, s, op->in, INPUTS);
    const mhla_slot dA = mhla_tape_param_grad(t, op->p.A_log), dD = mhla_tape_param_grad(t, op->p.D),
                    dbias = mhla_tape_param_grad(t, op->p.bias);
    const size_t own = (sizeof(float) * (size_t)(count + 2 * I) + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    char *ws = mhla_tape_scratch(t, own + mhla_scan_backward_workspace(&call));
    if (mhla_tape_dry(t) || t->status != MHLA_OK) return;
    float *sums = (float *)(void *)ws; /* the parameters' gradients, to be written or added */
    memset(sums, 0, own);
    const mhla_scan_grads grads = {.size = sizeof grads,
                                   .du = s[U].data,
                                   .ddelta = s[DELTA].data,
                                   .dz = s[Z].data,
                                   .dB = s[B].data,
                                   .dC = s[C].data,
                                   .du_strides = rows_of(op->in[U], s[U].ld),
                                   .ddelta_strides = rows_of(op->in[DELTA], s[DELTA].ld),
                                   .dz_strides = rows_of(op->in[Z], s[Z].ld),
                                   .dB_strides = rows_of(op->in[B], s[B].ld),
                                   .dC_strides = rows_of(op->in[C], s[C].ld),
                                   .dA = sums,
                                   .dD = sums + count,
                                   .ddelta_bias = sums + count + I,
                                   .accumulate = add};
    const mhla_status status =
        mhla_scan_backward(&call, &grads, mhla_tape_arrived(op->y), op->in[U]->data, op->in[DELTA]->data, op->A,
                           op->in[B]->data, op->in[C]->data, ws + own);
    if (status != MHLA_OK) {
        mhla_tape_fail(t, status, "selective scan: %s", mhla_message());
        return;
    }
    for (int64_t i = 0; i < count; i++) sums[i] *= op->A[i];
    if (dA.wanted) mhla_tape_reduce(t, dA.data, dA.add, sums, 1, 0, count);
    if (dD.wanted) mhla_tape_reduce(t, dD.data, dD.add, sums + count, 1, 0, I);
    if (dbias.wanted) mhla_tape_reduce(t, dbias.data, dbias.add, sums + count + I, 1, 0, I);
}

static mhla_status run(const mhla_tape *t, const scan *op, const mhla_scan_call *call, void *ws) {
    const int64_t count = op->p.A_log->count;
    mhla_tensor *const *in = op->in;
    t->kernels->vexp(op->A, op->p.A_log->data, count);
    for (int64_t i = 0; i < count; i++) op->A[i] = -op->A[i];
    if (op->p.states)
        return mhla_scan_continue(call, op->p.states, op->y->data, in[U]->data, in[DELTA]->data, op->A, in[B]->data,
                                  in[C]->data, ws);
    return mhla_scan_forward(call, op->y->data, in[U]->data, in[DELTA]->data, op->A, in[B]->data, in[C]->data, ws);
}

mhla_tensor *mhla_nn_selective_scan(mhla_tape *t, const mhla_nn_scan *p, mhla_tensor *u, mhla_tensor *delta,
                                    mhla_tensor *b, mhla_tensor *c, mhla_tensor *z) {
    mhla_tensor *const in[INPUTS] = {u, delta, b, c, z};
    for (int i = 0; i < INPUTS; i++) MHLA_GIVEN(t, in[i]);
    const int64_t I = u->cols, N = b->cols;
    MHLA_NEED(t, u->dims == 3 && mhla_same_shape(u, delta) && mhla_same_shape(u, z) && mhla_same_shape(b, c),
              "the scan's u, delta and z differ in shape, or its B and C");
    MHLA_NEED(t, p->A_log->count == I * N && p->D->count == I && p->bias->count == I,
              "%s has %lld elements: expected [%lld, %lld]", p->A_log->name, (long long)p->A_log->count, (long long)I,
              (long long)N);
    scan *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, u->shape, u->dims) : NULL;
    if (y == NULL) return NULL;
    op->p = *p;
    op->y = y;
    memcpy(op->in, in, sizeof op->in);
    op->A = mhla_tape_floats(t, I * N);
    const mhla_scan_call call = call_of(t, op);
    void *ws = mhla_tape_scratch(t, mhla_scan_forward_workspace(&call));
    if (t->status == MHLA_OK && !mhla_tape_dry(t)) {
        const mhla_status status = run(t, op, &call, ws);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "selective scan: %s", mhla_message());
    }
    int needs = mhla_param_trains(p->A_log) || mhla_param_trains(p->D) || mhla_param_trains(p->bias);
    for (int i = 0; i < INPUTS; i++) needs |= in[i]->needs_grad;
    return mhla_tape_record(t, &op->r, scan_backward, y, needs);
}
