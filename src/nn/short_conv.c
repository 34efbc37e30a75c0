/* The short convolution of linear attention: causal, depthwise, a handful of tokens wide, silu behind it. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

typedef struct conv {
    mhla_record r;
    mhla_tensor *x, *y;
    mhla_param *w, *b; /* [D,1,W]; [D] or NULL */
    int64_t W;
    const int64_t *cu_seqlens;
    int64_t sequences;
    mhla_slot dx;
    float *dpre;    /* [rows,D] */
    float *partial; /* [parts][D*W + D]: dw, db of each part */
    int64_t parts;
} conv;

enum { LEAST_ROWS = 64 };

/* The first row after row `r`'s sequence, and the first of it. */
static void sequence_of(const conv *op, int64_t r, int64_t *first, int64_t *end) {
    const int64_t T = op->x->shape[1];
    *first = r / T * T;
    *end = *first + T;
    if (op->cu_seqlens == NULL) return;
    int64_t low = 0, high = op->sequences; /* cu[low] <= r < cu[high] */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (op->cu_seqlens[middle] <= r)
            low = middle;
        else
            high = middle;
    }
    *first = op->cu_seqlens[low];
    *end = op->cu_seqlens[high];
}

/* sum_j w[.,j] x_{r-W+1+j} + b into pre [D] */
static void convolve(const conv *op, float *pre, int64_t r, int64_t first) {
    const int64_t D = op->x->cols, W = op->W;
    const float *w = op->w->data;
    if (op->b)
        memcpy(pre, op->b->data, sizeof(float) * (size_t)D);
    else
        memset(pre, 0, sizeof(float) * (size_t)D);
    for (int64_t j = 0; j < W; j++) {
        const int64_t from = r - W + 1 + j;
        if (from < first) continue;
        const float *x = op->x->data + from * op->x->ld;
        for (int64_t d = 0; d < D; d++) pre[d] += w[d * W + j] * x[d];
    }
}

static void forward_task(void *arg, int64_t part, int worker) {
    const conv *op = arg;
    (void)worker;
    const int64_t rows = op->x->rows, D = op->x->cols;
    for (int64_t r = part * rows / op->parts; r < (part + 1) * rows / op->parts; r++) {
        int64_t first, end;
        float *y = op->y->data + r * op->y->ld;
        sequence_of(op, r, &first, &end);
        convolve(op, y, r, first);
        for (int64_t d = 0; d < D; d++) y[d] = y[d] / (1.0f + expf(-y[d]));
    }
}

/* y = silu(pre), pre_r = sum_j w_j x_{r-W+1+j}:  dpre = dy silu'(pre), dw_j += sum_r dpre_r x_{r-W+1+j}, db += sum_r dpre_r */
static void weight_task(void *arg, int64_t part, int worker) {
    const conv *op = arg;
    (void)worker;
    const int64_t rows = op->x->rows, D = op->x->cols, W = op->W;
    float *dw = op->partial + part * D * (W + 1), *db = dw + D * W;
    memset(dw, 0, sizeof(float) * (size_t)(D * (W + 1)));
    for (int64_t r = part * rows / op->parts; r < (part + 1) * rows / op->parts; r++) {
        int64_t first, end;
        float *dpre = op->dpre + r * D;
        const float *dy = mhla_tape_arrived(op->y) + r * op->y->ld;
        sequence_of(op, r, &first, &end);
        convolve(op, dpre, r, first);
        for (int64_t d = 0; d < D; d++) {
            const float s = 1.0f / (1.0f + expf(-dpre[d]));
            dpre[d] = dy[d] * (s + dpre[d] * s * (1.0f - s));
            db[d] += dpre[d];
        }
        for (int64_t j = 0; j < W; j++) {
            const int64_t from = r - W + 1 + j;
            if (from < first) continue;
            const float *x = op->x->data + from * op->x->ld;
            for (int64_t d = 0; d < D; d++) dw[d * W + j] += dpre[d] * x[d];
        }
    }
}

/* dx_r += sum_j w_j dpre_{r+W-1-j} */
static void input_task(void *arg, int64_t part, int worker) {
    const conv *op = arg;
    (void)worker;
    const int64_t rows = op->x->rows, D = op->x->cols, W = op->W;
    const float *w = op->w->data;
    for (int64_t r = part * rows / op->parts; r < (part + 1) * rows / op->parts; r++) {
        int64_t first, end;
        float *dx = op->dx.data + r * op->dx.ld;
        sequence_of(op, r, &first, &end);
        if (!op->dx.add) memset(dx, 0, sizeof(float) * (size_t)D);
        for (int64_t j = 0; j < W; j++) {
            const int64_t to = r + W - 1 - j;
            if (to >= end) continue;
            for (int64_t d = 0; d < D; d++) dx[d] += w[d * W + j] * op->dpre[to * D + d];
        }
    }
}

static void conv_backward(mhla_tape *t, void *p) {
    conv *op = p;
    const int64_t count = op->w->count, D = op->x->cols, all = count + D, numbers = op->x->rows * D;
    op->dpre = mhla_tape_scratch(t, sizeof(float) * (size_t)(numbers + op->parts * all));
    op->partial = op->dpre ? op->dpre + numbers : NULL;
    mhla_tape_run(t, op->parts, weight_task, op);
    const mhla_slot dw = mhla_tape_param_grad(t, op->w);
    if (dw.wanted) mhla_tape_reduce(t, dw.data, dw.add, op->partial, op->parts, all, count);
    const mhla_slot db = mhla_tape_param_grad(t, op->b);
    if (db.wanted) mhla_tape_reduce(t, db.data, db.add, op->partial + count, op->parts, all, D);
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->parts, input_task, op);
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
    *op = (conv){.x = x, .y = y, .w = w, .b = b, .W = w->shape[2], .cu_seqlens = cu_seqlens, .sequences = sequences};
    op->parts = mhla_row_parts(x->rows, LEAST_ROWS);
    mhla_tape_run(t, op->parts, forward_task, op);
    return mhla_tape_record(t, &op->r, conv_backward, y, x->needs_grad || mhla_param_trains(w) || mhla_param_trains(b));
}
