/* Short convolutions with memory. */
#include "models/language/mixers/past.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "nn/op.h"
#include "ops/short_conv/short_conv.h"

mhla_status mhla_past_make(mhla_past *past, int64_t width, int64_t D) {
    *past = (mhla_past){.floats = width > 1 ? (width - 1) * D : 0};
    if (past->floats == 0) return MHLA_OK;
    past->rows = mhla_alloc_zero(mhla_past_bytes(past));
    return past->rows ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
}

void mhla_past_copy(mhla_past *to, const mhla_past *from) {
    if (from->floats > 0) memcpy(to->rows, from->rows, mhla_past_bytes(from));
    to->at = from->at;
}

void mhla_pass_sequences(const mhla_pass *pass, int64_t cu_seqlens[MHLA_PASS + 1]) {
    for (int i = 0; i < pass->n; i++) cu_seqlens[i] = pass->segments[i].row;
    cu_seqlens[pass->n] = pass->rows;
}

mhla_tensor *mhla_past_convolve(mhla_tape *t, const mhla_pass *pass, int layer, size_t offset, const mhla_param *w,
                                const mhla_param *b, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    int64_t cu_seqlens[MHLA_PASS + 1];
    float *rows[MHLA_PASS];
    mhla_past *pasts[MHLA_PASS];
    mhla_tensor *y = mhla_tape_tensor(t, x->shape, x->dims);
    if (y == NULL) return NULL;
    for (int i = 0; i < pass->n; i++) {
        pasts[i] = (mhla_past *)(void *)((char *)pass->segments[i].memory[layer] + offset);
        rows[i] = pasts[i]->rows;
    }
    mhla_pass_sequences(pass, cu_seqlens);
    const mhla_short_conv_call call = {.size = sizeof call,
                                       .context = t->context,
                                       .batch = 1,
                                       .tokens = pass->rows,
                                       .channels = x->cols,
                                       .width = (int)(w->count / x->cols),
                                       .activation = MHLA_ACT_SILU,
                                       .x = {0, x->ld, 0},
                                       .y = {0, y->ld, 0},
                                       .bias = b ? b->data : NULL,
                                       .cu_seqlens = cu_seqlens,
                                       .sequences = pass->n};
    void *ws = mhla_tape_scratch(t, mhla_short_conv_forward_workspace(&call));
    if (t->status != MHLA_OK) return NULL;
    const mhla_status status = mhla_short_conv_continue(&call, rows, y->data, x->data, w->data, ws);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s: %s", w->name, mhla_message());
    for (int i = 0; i < pass->n; i++) pasts[i]->at += pass->segments[i].n;
    return y;
}
