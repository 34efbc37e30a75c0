/* The short convolution of linear attention and Mamba, silu behind it, as a layer: the operator of libmhla on the tape. */
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
    void *ws = mhla_tape_scratch(t, mhla_short_conv_backward_workspace(&call));
    const mhla_slot dw = mhla_tape_param_grad(t, op->w), db = mhla_tape_param_grad(t, op->b),
                    dx = mhla_tape_grad(t, op->x);
    const struct {
        const mhla_slot *slot;
        mhla_short_conv_grads grads;
    } parts[] = {
        {&dw, {.dw = dw.data}},
        {&db, {.dbias = db.data}},
        {&dx, {.dx = dx.data, .dx_strides = rows_of(op->x, dx.ld)}},
    };
    if (mhla_tape_dry(t) || t->status != MHLA_OK) return;
    /* gradients that are written and those that are added to, each in one call */
    for (int add = 0; add < 2; add++) {
        mhla_short_conv_grads grads = {.size = sizeof grads, .accumulate = add};
        int any = 0;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            if (!parts[i].slot->wanted || parts[i].slot->add != add) continue;
            any = 1;
            if (parts[i].grads.dw) grads.dw = parts[i].grads.dw;
            if (parts[i].grads.dbias) grads.dbias = parts[i].grads.dbias;
            if (parts[i].grads.dx) grads.dx = parts[i].grads.dx, grads.dx_strides = parts[i].grads.dx_strides;
        }
        if (!any) continue;
        const mhla_status status = mhla_short_conv_backward(&call, &grads, mhla_tape_arrived(op->y), op->x->data, op->w->data, ws);
        if (status != MHLA_OK) mhla_tape_fail(t, status, "%s: %s", op->w->name, mhla_message());
    }
}
