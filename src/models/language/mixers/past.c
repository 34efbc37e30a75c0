/* Short convolutions with memory. */
#include "models/language/mixers/past.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "nn/op.h"

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

typedef struct convolution {
    const mhla_pass *pass;
    int layer;
    size_t offset;
    const mhla_param *w, *b;
    const mhla_tensor *x;
    mhla_tensor *y;
} convolution;

static void convolve_task(void *arg, int64_t i, int worker) {
    const convolution *c = arg;
    (void)worker;
    const mhla_segment *g = &c->pass->segments[i];
    mhla_past *past = (mhla_past *)(void *)((char *)g->memory[c->layer] + c->offset);
    const int64_t D = c->x->cols, W = c->w->count / D, before = W - 1;
    const float *w = c->w->data;
    for (int64_t t = 0; t < g->n; t++) {
        float *y = c->y->data + (g->row + t) * c->y->ld;
        if (c->b)
            memcpy(y, c->b->data, sizeof *y * (size_t)D);
        else
            memset(y, 0, sizeof *y * (size_t)D);
        for (int64_t j = 0; j < W; j++) {
            const int64_t u = t - before + j;
            const float *in = u < 0 ? past->rows + (u + before) * D : c->x->data + (g->row + u) * c->x->ld;
            for (int64_t d = 0; d < D; d++) y[d] += w[d * W + j] * in[d];
        }
        for (int64_t d = 0; d < D; d++) y[d] = y[d] / (1.0f + expf(-y[d]));
    }
    const int64_t fresh = g->n < before ? g->n : before;
    if (fresh > 0) {
        memmove(past->rows, past->rows + fresh * D, sizeof *past->rows * (size_t)((before - fresh) * D));
        for (int64_t t = 0; t < fresh; t++)
            memcpy(past->rows + (before - fresh + t) * D, c->x->data + (g->row + g->n - fresh + t) * c->x->ld,
                   sizeof *past->rows * (size_t)D);
    }
    past->at += g->n;
}

mhla_tensor *mhla_past_convolve(mhla_tape *t, const mhla_pass *pass, int layer, size_t offset, const mhla_param *w,
                                const mhla_param *b, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    convolution c = {pass, layer, offset, w, b, x, mhla_tape_tensor(t, x->shape, x->dims)};
    if (c.y == NULL) return NULL;
    mhla_parallel(t->context, pass->n, convolve_task, &c);
    return c.y;
}
