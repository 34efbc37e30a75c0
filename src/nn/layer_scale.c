/* The end of a branch with layer scale: y = x + alpha_b w z, one weight for each channel, alpha_b of drop path. */
#include <string.h>

#include "nn/op.h"

enum { LEAST_ROWS = 256 };

typedef struct scaled {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *z, *y; /* [B,T,C] */
    mhla_param *w;
    float *alpha;   /* [B], or NULL: 1 */
    int64_t parts;  /* of a sample's rows */
    float *partial; /* [B][parts][C] of dw */
} scaled;

/* All rows times w, to y or from dy. */
static mhla_blends weighted(const scaled *op) {
    const int64_t T = op->x->shape[1];
    return (mhla_blends){.b = {.n = T, .cols = op->x->cols, .z = op->w->data, .alpha = 1.0f}, .alpha = op->alpha};
}

static void weight_task(void *arg, int64_t task, int worker) {
    const scaled *op = arg;
    const int64_t T = op->x->shape[1], C = op->x->cols, b = task / op->parts, part = task % op->parts;
    const int64_t first = b * T + part * T / op->parts, last = b * T + (part + 1) * T / op->parts;
    float *sums = op->partial + task * C;
    (void)worker;
    memset(sums, 0, sizeof(float) * (size_t)C);
    op->kernels->column_sums(sums, mhla_tape_arrived(op->y) + first * op->y->ld, op->y->ld,
                             op->z->data + first * op->z->ld, op->z->ld, last - first, C);
    for (int64_t c = 0; c < C && op->alpha; c++) sums[c] *= op->alpha[b];
}

/* y = x + alpha_b w z:  dw += sum of alpha_b dy z, dz += alpha_b w dy, dx += dy */
static void scaled_backward(mhla_tape *t, void *p) {
    scaled *op = p;
    const int64_t B = op->x->shape[0], T = op->x->shape[1], C = op->x->cols;
    if (mhla_param_trains(op->w)) {
        op->partial = mhla_tape_scratch(t, sizeof(float) * (size_t)(B * op->parts * C));
        mhla_tape_run(t, B * op->parts, weight_task, op);
        const mhla_slot dw = mhla_tape_param_grad(t, op->w);
        mhla_tape_reduce(t, dw.data, dw.add, op->partial, B * op->parts, C, C);
    }
    const mhla_slot dz = mhla_tape_grad(t, op->z);
    if (dz.wanted) {
        mhla_blends s = weighted(op);
        s.b.y = dz.data;
        s.b.ldy = dz.ld;
        s.b.add = dz.add;
        s.y_step = T * dz.ld;
        s.b.x = mhla_tape_arrived(op->y);
        s.b.ldx = op->y->ld;
        s.x_step = T * op->y->ld;
        mhla_tape_blends(t, &s, B);
    }
    mhla_tape_pass_grad(t, op->x, op->y);
}

mhla_tensor *mhla_nn_scaled_add(mhla_tape *t, float rate, mhla_param *w, mhla_tensor *x, mhla_tensor *branch) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    MHLA_GIVEN(t, branch);
    MHLA_NEED(t, x->dims == 3 && mhla_same_shape(x, branch) && w->count == x->cols,
              "%s scales %lld channels: a residual of another shape than its branch", w->name, (long long)w->count);
    scaled *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    float *alpha = NULL;
    if (y == NULL || !mhla_tape_drop_path(t, rate, x->shape[0], &alpha)) return NULL;
    op->kernels = t->kernels;
    op->x = x;
    op->z = branch;
    op->y = y;
    op->w = w;
    op->alpha = alpha;
    op->parts = mhla_row_parts(x->shape[1], LEAST_ROWS);
    mhla_blends s = weighted(op);
    s.b.y = y->data;
    s.b.ldy = y->ld;
    s.y_step = x->shape[1] * y->ld;
    s.b.x = branch->data;
    s.b.ldx = branch->ld;
    s.x_step = x->shape[1] * branch->ld;
    s.b.r = x->data;
    s.b.ldr = x->ld;
    s.r_step = x->shape[1] * x->ld;
    mhla_tape_blends(t, &s, x->shape[0]);
    return mhla_tape_record(t, &op->r, scaled_backward, y, x->needs_grad || branch->needs_grad || mhla_param_trains(w));
}
