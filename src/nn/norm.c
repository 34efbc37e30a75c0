/* Layer norm and RMS norm, plain, gated and modulated: one kernel (simd/kernels/layers.c) over parts of the rows. */
#include <string.h>

#include "nn/op.h"

typedef struct norm {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *gate, *y;
    mhla_param *w, *b;
    mhla_norm n;                /* all rows */
    int64_t parts;              /* of the rows, by their number alone */
    float *partial;             /* [parts][2][group]: dw, db of each part */
    mhla_activation activation; /* of y in place; not where the tape records */
} norm;

enum { LEAST_ROWS = 16, FORWARD_ROWS = 8 }; /* of a part; of a task of forward, which sums nothing over rows */

static mhla_norm rows_of_part(const norm *op, int64_t part, int64_t parts, int64_t *first) {
    mhla_norm n = op->n;
    const int64_t from = part * n.rows / parts, to = (part + 1) * n.rows / parts, groups = n.cols / n.group;
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
    mhla_norm n = rows_of_part(op, part, mhla_row_parts(op->n.rows, FORWARD_ROWS), &first);
    n.y += first * n.ldy;
    op->kernels->norm_forward(&n);
    if (op->activation == MHLA_ACT_NONE) return;
    op->kernels->epilogue(&(mhla_epilogue){
        .src = n.y, .ld = n.ldy, .m = (int)n.rows, .n = n.cols, .activation = op->activation, .y = n.y, .ldy = n.ldy});
}

static void backward_task(void *arg, int64_t part, int worker) {
    const norm *op = arg;
    (void)worker;
    int64_t first;
    mhla_norm n = rows_of_part(op, part, op->parts, &first);
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

enum { CENTRED = 1, PLUS_ONE = 2 };

static mhla_tensor *make(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, int kind, int64_t group,
                         mhla_activation activation, mhla_tensor *x, mhla_tensor *gate) {
    const int centred = (kind & CENTRED) != 0;
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
    *op = (norm){.kernels = t->kernels, .x = x, .gate = gate, .y = y, .w = w, .b = b, .activation = activation};
    op->n = (mhla_norm){.rows = x->rows,
                        .cols = (int)x->cols,
                        .group = (int)group,
                        .centred = centred,
                        .eps = eps,
                        .w = w ? w->data : NULL,
                        .b = b ? b->data : NULL,
                        .plus_one = (kind & PLUS_ONE) != 0,
                        .x = x->data,
                        .ldx = x->ld,
                        .gate = gate ? gate->data : NULL,
                        .ldgate = gate ? gate->ld : 0,
                        .y = y->data,
                        .ldy = y->ld};
    op->parts = mhla_row_parts(x->rows, LEAST_ROWS);
    const int needs =
        x->needs_grad || (gate != NULL && gate->needs_grad) || mhla_param_trains(w) || mhla_param_trains(b);
    if (mhla_tape_keeps(t, needs)) {
        const int64_t stats = x->rows * (x->cols / group);
        if (centred) op->n.mean = mhla_tape_floats(t, stats);
        op->n.rstd = mhla_tape_floats(t, stats);
    }
    mhla_tape_run(t, mhla_row_parts(x->rows, FORWARD_ROWS), forward_task, op);
    return mhla_tape_record(t, &op->r, norm_backward, y, needs);
}

mhla_tensor *mhla_nn_layer_norm(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, w, b, eps, CENTRED, 0, MHLA_ACT_NONE, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, w, NULL, eps, 0, group, MHLA_ACT_NONE, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm_act(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_activation activation,
                                  mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    if (t->recording) return mhla_nn_activation(t, activation, mhla_nn_rms_norm(t, w, eps, group, x));
    return make(t, w, NULL, eps, 0, group, activation, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm_plus_one(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, w, NULL, eps, PLUS_ONE, group, MHLA_ACT_NONE, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm_bias(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, w, b, eps, 0, 0, MHLA_ACT_NONE, x, NULL);
}

mhla_tensor *mhla_nn_rms_norm_gated(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x,
                                    mhla_tensor *gate) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, gate);
    return make(t, w, NULL, eps, 0, group, MHLA_ACT_NONE, x, gate);
}

/* ---- adaLN: y = (x - mean) rstd (1 + scale) + shift, weight and bias of each sample's own ---- */

typedef struct modulated {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *shift, *scale, *y; /* x, y [B,T,D]; shift, scale [B,D] */
    mhla_norm n;                        /* of one sample */
    int64_t parts;                      /* of a sample's rows */
    float *w;                           /* [B,D] 1 + scale */
    float *partial;                     /* [B][parts][2][D]: dscale, dshift of each part */
    mhla_slot dst;
} modulated;

static mhla_norm rows_of_sample(const modulated *op, int64_t task) {
    mhla_norm n = op->n;
    const int64_t b = task / op->parts, part = task % op->parts;
    const int64_t from = part * n.rows / op->parts, at = b * n.rows + from;
    n.rows = (part + 1) * n.rows / op->parts - from;
    n.x += at * n.ldx;
    if (n.mean) n.mean += at;
    if (n.rstd) n.rstd += at;
    n.y += at * n.ldy;
    if (n.dy) n.dy += at * n.lddy;
    if (n.dx) n.dx += at * n.lddx;
    n.w = op->w + b * n.group;
    n.b = op->shift->data + b * op->shift->ld;
    return n;
}

static void modulated_task(void *arg, int64_t task, int worker) {
    const modulated *op = arg;
    (void)worker;
    const mhla_norm n = rows_of_sample(op, task);
    op->kernels->norm_forward(&n);
}

static void modulated_backward_task(void *arg, int64_t task, int worker) {
    const modulated *op = arg;
    (void)worker;
    mhla_norm n = rows_of_sample(op, task);
    float *sums = op->partial + task * 2 * n.group;
    memset(sums, 0, sizeof(float) * 2 * (size_t)n.group);
    n.dw = sums;
    n.db = sums + n.group;
    op->kernels->norm_backward(&n);
}

/* dscale or dshift of sample b: its parts in their order. */
static void modulated_sum_task(void *arg, int64_t b, int worker) {
    const modulated *op = arg;
    (void)worker;
    const int64_t D = op->n.group;
    float *dst = op->dst.data + b * op->dst.ld;
    if (!op->dst.add) memset(dst, 0, sizeof(float) * (size_t)D);
    op->kernels->column_sums(dst, op->partial + b * op->parts * 2 * D, 2 * D, NULL, 0, op->parts, D);
}

static void modulated_backward(mhla_tape *t, void *p) {
    modulated *op = p;
    mhla_norm *n = &op->n;
    const int64_t B = op->x->shape[0], D = n->group;
    n->dy = mhla_tape_arrived(op->y);
    n->lddy = op->y->ld;
    op->partial = mhla_tape_scratch(t, sizeof(float) * 2 * (size_t)(B * op->parts * D));
    const mhla_slot dx = mhla_tape_grad(t, op->x);
    n->dx = dx.data;
    n->lddx = dx.ld;
    n->add = dx.add;
    mhla_tape_run(t, B * op->parts, modulated_backward_task, op);
    for (int shift = 0; shift < 2; shift++) {
        op->dst = mhla_tape_grad(t, shift ? op->shift : op->scale);
        if (op->dst.wanted) mhla_tape_run(t, B, modulated_sum_task, op);
        op->partial += D;
    }
}

mhla_tensor *mhla_nn_modulated_norm(mhla_tape *t, float eps, mhla_tensor *shift, mhla_tensor *scale, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, shift);
    MHLA_GIVEN(t, scale);
    const int64_t B = x->shape[0], D = x->cols;
    MHLA_NEED(t, x->dims == 3 && D <= INT32_MAX, "a tensor of %d axes where [B, T, D] is expected", x->dims);
    MHLA_NEED(t, shift->rows == B && shift->cols == D && scale->rows == B && scale->cols == D,
              "a shift of %lld x %lld and a scale of %lld x %lld where %lld x %lld are expected",
              (long long)shift->rows, (long long)shift->cols, (long long)scale->rows, (long long)scale->cols,
              (long long)B, (long long)D);
    modulated *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    float *w = y ? mhla_tape_floats(t, B * D) : NULL;
    if (w == NULL) return NULL;
    *op = (modulated){.kernels = t->kernels, .x = x, .shift = shift, .scale = scale, .y = y, .w = w};
    op->n = (mhla_norm){.rows = x->shape[1],
                        .cols = (int)D,
                        .group = (int)D,
                        .centred = 1,
                        .eps = eps,
                        .x = x->data,
                        .ldx = x->ld,
                        .y = y->data,
                        .ldy = y->ld};
    op->parts = mhla_row_parts(x->shape[1], LEAST_ROWS);
    const int needs = x->needs_grad || shift->needs_grad || scale->needs_grad;
    if (mhla_tape_keeps(t, needs)) {
        op->n.mean = mhla_tape_floats(t, x->rows);
        op->n.rstd = mhla_tape_floats(t, x->rows);
    }
    for (int64_t b = 0; b < B && !mhla_tape_dry(t); b++)
        for (int64_t j = 0; j < D; j++) w[b * D + j] = 1.0f + scale->data[b * scale->ld + j];
    mhla_tape_run(t, B * op->parts, modulated_task, op);
    return mhla_tape_record(t, &op->r, modulated_backward, y, needs);
}
