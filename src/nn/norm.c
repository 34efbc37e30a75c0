/* Layer norm and RMS norm, plain and gated: one kernel (simd/kernels/layers.c) over parts of the rows. */
#include <string.h>

#include "nn/op.h"

typedef struct norm {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *gate, *y;
    mhla_param *w, *b;
    mhla_norm n;    /* all rows */
    int64_t parts;  /* of the rows, by their number alone */
    float *partial; /* [parts][2][group]: dw, db of each part */
} norm;

enum { LEAST_ROWS = 16 };

static mhla_norm rows_of_part(const norm *op, int64_t part, int64_t *first) {
    mhla_norm n = op->n;
    const int64_t from = part * n.rows / op->parts, to = (part + 1) * n.rows / op->parts, groups = n.cols / n.group;
    *first = from;
    n.rows = to - from;
    n.x += from * n.ldx;
    if (n.gate) n.gate += from * n.ldgate;
    if (n.mean) n.mean += from * groups;
    if (n.rstd) n.rstd += from * groups;
    return n;
}

static void forward_task(void *arg, int64_t part, int worker) {
    const norm *op = arg;
    (void)worker;
    int64_t first;
    mhla_norm n = rows_of_part(op, part, &first);
    n.y += first * n.ldy;
    op->kernels->norm_forward(&n);
}

static void backward_task(void *arg, int64_t part, int worker) {
    const norm *op = arg;
    (void)worker;
    int64_t first;
    mhla_norm n = rows_of_part(op, part, &first);
    n.dy += first * n.lddy;
    if (n.dx) n.dx += first * n.lddx;
    if (n.dgate) n.dgate += first * n.lddgate;
    float *sums = op->partial + part * 2 * n.group;
    memset(sums, 0, sizeof(float) * 2 * (size_t)n.group);
    n.dw = mhla_param_trains(op->w) ? sums : NULL;
    n.db = mhla_param_trains(op->b) ? sums + n.group : NULL;
    op->kernels->norm_backward(&n);
}

/* y = (x - mean) rstd w + b, times silu(gate); the gradient's formulas stand at the kernel */
static void norm_backward(mhla_tape *t, void *p) {
    norm *op = p;
    mhla_norm *n = &op->n;
    n->dy = mhla_tape_arrived(op->y);
    n->lddy = op->y->ld;
    op->partial = mhla_tape_scratch(t, sizeof(float) * 2 * (size_t)(op->parts * n->group));
    const mhla_slot dx = mhla_tape_grad(t, op->x), dgate = mhla_tape_grad(t, op->gate);
    n->dx = dx.data;
    n->lddx = dx.ld;
    n->add = dx.add;
    n->dgate = dgate.data;
    n->lddgate = dgate.ld;
    n->add_gate = dgate.add;
    mhla_tape_run(t, op->parts, backward_task, op);
    const mhla_slot dw = mhla_tape_param_grad(t, op->w), db = mhla_tape_param_grad(t, op->b);
    if (dw.wanted) mhla_tape_reduce(t, dw.data, dw.add, op->partial, op->parts, 2 * n->group, n->group);
    if (db.wanted) mhla_tape_reduce(t, db.data, db.add, op->partial + n->group, op->parts, 2 * n->group, n->group);
}

static mhla_tensor *make(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, int centred, int64_t group,
                         mhla_tensor *x, mhla_tensor *gate) {
    if (group == 0) group = x->cols;
    MHLA_NEED(t, group > 0 && x->cols % group == 0 && x->cols <= INT32_MAX, "groups of %lld in rows of %lld",
              (long long)group, (long long)x->cols);
    MHLA_NEED(t, w == NULL || w->count == group, "%s has %lld elements: expected %lld", w->name, (long long)w->count,
              (long long)group);
    MHLA_NEED(t, b == NULL || b->count == group, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)group);
    MHLA_NEED(t, gate == NULL || (gate != x && gate->rows == x->rows && gate->cols == x->cols),
              "the gate of a norm has rows of %lld: expected %lld", (long long)gate->cols, (long long)x->cols);
    norm *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (norm){.kernels = t->kernels, .x = x, .gate = gate, .y = y, .w = w, .b = b};
    op->n = (mhla_norm){.rows = x->rows,
                        .cols = (int)x->cols,
                        .group = (int)group,
                        .centred = centred,
                        .eps = eps,
                        .w = w ? w->data : NULL,
                        .b = b ? b->data : NULL,
                        .x = x->data,
                        .ldx = x->ld,
                        .gate = gate ? gate->data : NULL,
                        .ldgate = gate ? gate->ld : 0,
                        .y = y->data,
                        .ldy = y->ld};
    op->parts = mhla_part_count(x->rows, LEAST_ROWS);
    const int needs =
        x->needs_grad || (gate != NULL && gate->needs_grad) || mhla_param_trains(w) || mhla_param_trains(b);
    if (mhla_tape_keeps(t, needs)) {
        const int64_t stats = x->rows * (x->cols / group);
        if (centred) op->n.mean = mhla_tape_floats(t, stats);
        op->n.rstd = mhla_tape_floats(t, stats);
    }
    mhla_tape_run(t, op->parts, forward_task, op);
    return mhla_tape_record(t, &op->r, norm_backward, y, needs);
}

mhla_tensor *mhla_nn_layer_norm(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, w, b, eps, 1, 0, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, w, NULL, eps, 0, group, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm_gated(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x,
                                    mhla_tensor *gate) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, gate);
    return make(t, w, NULL, eps, 0, group, x, gate);
}
