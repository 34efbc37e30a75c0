/* The short convolution of linear attention and Mamba, silu behind it, as a layer: the operator of libmhla on the tape. */
#include <string.h>

#include "nn/op.h"

typedef struct conv {
    mhla_record r;
    mhla_tensor *x, *y;
    mhla_param *w, *b; /* [D,1,W]; [D] or NULL */
    const int64_t *cu_seqlens;
    int64_t sequences;
} conv;

static mhla_strides rows_of(const mhla_tensor *x, int64_t ld) { return (mhla_strides){x->shape[1] * ld, ld, 0}; }

static mhla_short_conv_call call_of(const mhla_tape *t, const conv *op) {
    return (mhla_short_conv_call){.size = sizeof(mhla_short_conv_call),
                                  .context = t->context,
                                  .batch = op->x->shape[0],
                                  .tokens = op->x->shape[1],
                                  .channels = op->x->cols,
                                  .width = (int)op->w->shape[2],
                                  .activation = MHLA_ACT_SILU,
                                  .x = rows_of(op->x, op->x->ld),
                                  .y = rows_of(op->y, op->y->ld),
                                  .bias = op->b ? op->b->data : NULL,
                                  .cu_seqlens = op->cu_seqlens,
                                  .sequences = op->cu_seqlens ? op->sequences : 0};
}

static void conv_backward(mhla_tape *t, void *p) {
    const conv *op = p;
    const mhla_short_conv_call call = call_of(t, op);
    const int64_t D = op->x->cols, count = op->w->count;
    const mhla_slot dx = mhla_tape_grad(t, op->x), dw = mhla_tape_param_grad(t, op->w),
                    db = mhla_tape_param_grad(t, op->b);
    const size_t own = (sizeof(float) * (size_t)(count + D) + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    char *ws = mhla_tape_scratch(t, own + mhla_short_conv_backward_workspace(&call));
    if (mhla_tape_dry(t) || t->status != MHLA_OK) return;
    float *sums = (float *)(void *)ws; /* the parameters' gradients, to be written or added */
    memset(sums, 0, own);
    const mhla_short_conv_grads grads = {.size = sizeof grads,
                                         .dx = dx.data,
                                         .dx_strides = rows_of(op->x, dx.ld),
                                         .dw = sums,
                                         .dbias = op->b ? sums + count : NULL,
                                         .accumulate = dx.add};
    const mhla_status status =
        mhla_short_conv_backward(&call, &grads, mhla_tape_arrived(op->y), op->x->data, op->w->data, ws + own);
    if (status != MHLA_OK) {
        mhla_tape_fail(t, status, "%s: %s", op->w->name, mhla_message());
        return;
    }
    if (dw.wanted) mhla_tape_reduce(t, dw.data, dw.add, sums, 1, 0, count);
    if (db.wanted) mhla_tape_reduce(t, db.data, db.add, sums + count, 1, 0, D);
}

mhla_tensor *mhla_nn_short_conv(mhla_tape *t, mhla_param *w, mhla_param *b, const int64_t *cu_seqlens,
                                int64_t sequences, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96];
    MHLA_NEED(t, x->dims == 3 && w->dims == 3 && w->shape[0] == x->cols && w->shape[1] == 1,
              "%s is %s: expected [%lld, 1, W] for tokens [B, T, %lld]", w->name,
              mhla_shape_text(text, w->shape, w->dims), (long long)x->cols, (long long)x->cols);
    MHLA_NEED(t, b == NULL || b->count == x->cols, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)x->cols);
    MHLA_NEED(t, cu_seqlens == NULL || (x->shape[0] == 1 && sequences > 0), "packed sequences need a batch of 1");
    conv *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (conv){.x = x, .y = y, .w = w, .b = b, .cu_seqlens = cu_seqlens, .sequences = sequences};
    const mhla_short_conv_call call = call_of(t, op);
    void *ws = mhla_tape_scratch(t, mhla_short_conv_forward_workspace(&call));
    if (t->status == MHLA_OK && !mhla_tape_dry(t)) {
        const mhla_status status = mhla_short_conv_forward(&call, y->data, x->data, w->data, ws);
        if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s: %s", w->name, mhla_message());
    }
    return mhla_tape_record(t, &op->r, conv_backward, y, x->needs_grad || mhla_param_trains(w) || mhla_param_trains(b));
}
