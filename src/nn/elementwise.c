/* Activations and sums of tensors of one shape. Each backward stands under its forward. */
#include "nn/op.h"

typedef struct pointwise {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *a, *b, *y;
    mhla_activation activation;
    float factor;
    float *slope; /* [rows,cols] of a soft cap; NULL: not wanted */
    int64_t rows; /* of a task */
} pointwise;

static pointwise *make(mhla_tape *t, mhla_tensor *a, mhla_tensor *b) {
    char one[96], other[96];
    if (b && !mhla_same_shape(a, b)) {
        mhla_tape_fail(t, MHLA_EINVAL, "two tensors of shapes %s and %s", mhla_shape_text(one, a->shape, a->dims),
                       mhla_shape_text(other, b->shape, b->dims));
        return NULL;
    }
    pointwise *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, a->shape, a->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (pointwise){.kernels = t->kernels, .a = a, .b = b, .y = y, .rows = a->cols < 16384 ? 16384 / a->cols : 1};
    return op;
}

/* ---- y = activation(x) ---- */

static void activation_task(void *arg, int64_t i, int worker) {
    const pointwise *op = arg;
    (void)worker;
    const int64_t first = i * op->rows, n = op->a->rows - first < op->rows ? op->a->rows - first : op->rows;
    op->kernels->epilogue(&(mhla_epilogue){.src = op->a->data + first * op->a->ld,
                                           .ld = op->a->ld,
                                           .m = (int)n,
                                           .n = (int)op->a->cols,
                                           .activation = op->activation,
                                           .y = op->y->data + first * op->y->ld,
                                           .ldy = op->y->ld});
}

static void activation_grad_task(void *arg, int64_t i, int worker) {
    const pointwise *op = arg;
    (void)worker;
    const int64_t first = i * op->rows, n = op->a->rows - first < op->rows ? op->a->rows - first : op->rows;
    for (int64_t r = first; r < first + n; r++) {
        float *d = mhla_tape_arrived(op->y) + r * op->y->ld;
        op->kernels->activation_backward(d, d, op->a->data + r * op->a->ld, op->a->cols, op->activation);
    }
}

/* y = activation(x):  dx += dy activation'(x) */
static void activation_backward(mhla_tape *t, void *p) {
    pointwise *op = p;
    mhla_tape_run(t, (op->a->rows + op->rows - 1) / op->rows, activation_grad_task, op);
    mhla_tape_pass_grad(t, op->a, op->y);
}

mhla_tensor *mhla_nn_activation(mhla_tape *t, mhla_activation activation, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    pointwise *op = make(t, x, NULL);
    if (op == NULL) return NULL;
    op->activation = activation;
    mhla_tape_run(t, (x->rows + op->rows - 1) / op->rows, activation_task, op);
    return mhla_tape_record(t, &op->r, activation_backward, op->y, x->needs_grad);
}

/* ---- y = cap tanh(x / cap) ---- */

static void softcap_task(void *arg, int64_t i, int worker) {
    const pointwise *op = arg;
    (void)worker;
    const int64_t first = i * op->rows, n = op->a->rows - first < op->rows ? op->a->rows - first : op->rows;
    for (int64_t r = first; r < first + n; r++)
        op->kernels->softcap(op->y->data + r * op->y->ld, op->slope ? op->slope + r * op->a->cols : NULL,
                             op->a->data + r * op->a->ld, op->a->cols, op->factor);
}

static void softcap_grad_task(void *arg, int64_t i, int worker) {
    const pointwise *op = arg;
    (void)worker;
    const int64_t first = i * op->rows, n = op->a->rows - first < op->rows ? op->a->rows - first : op->rows;
    for (int64_t r = first; r < first + n; r++) {
        float *d = mhla_tape_arrived(op->y) + r * op->y->ld;
        for (int64_t j = 0; j < op->a->cols; j++) d[j] *= op->slope[r * op->a->cols + j];
    }
}

/* y = cap tanh(x / cap):  dx += dy (1 - tanh(x / cap)^2) */
static void softcap_backward(mhla_tape *t, void *p) {
    pointwise *op = p;
    mhla_tape_run(t, (op->a->rows + op->rows - 1) / op->rows, softcap_grad_task, op);
    mhla_tape_pass_grad(t, op->a, op->y);
}

mhla_tensor *mhla_nn_softcap(mhla_tape *t, float cap, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, cap >= 0.0f, "a soft cap of %g", (double)cap);
    if (cap == 0.0f) return x;
    pointwise *op = make(t, x, NULL);
    if (op == NULL) return NULL;
    op->factor = cap;
    if (mhla_tape_keeps(t, x->needs_grad)) op->slope = mhla_tape_floats(t, x->rows * x->cols);
    mhla_tape_run(t, (x->rows + op->rows - 1) / op->rows, softcap_task, op);
    return mhla_tape_record(t, &op->r, softcap_backward, op->y, x->needs_grad);
}

/* ---- y = a + b, a b, factor a ---- */

static mhla_blend whole(const pointwise *op) {
    return (mhla_blend){.n = op->y->rows,
                        .cols = op->y->cols,
                        .y = op->y->data,
                        .ldy = op->y->ld,
                        .x = op->a->data,
                        .ldx = op->a->ld,
                        .alpha = 1.0f};
}

/* dx (=, +=) alpha dy z */
static void grad_product(mhla_tape *t, const pointwise *op, mhla_tensor *x, float alpha, const mhla_tensor *z) {
    const mhla_slot dx = mhla_tape_grad(t, x);
    if (!dx.wanted) return;
    mhla_tape_blend(t, &(mhla_blend){.n = x->rows,
                                     .cols = x->cols,
                                     .y = dx.data,
                                     .ldy = dx.ld,
                                     .add = dx.add,
                                     .x = mhla_tape_arrived(op->y),
                                     .ldx = op->y->ld,
                                     .z = z ? z->data : NULL,
                                     .ldz = z ? z->ld : 0,
                                     .alpha = alpha});
}

/* y = a + b:  db += dy, da += dy */
static void add_backward(mhla_tape *t, void *p) {
    pointwise *op = p;
    grad_product(t, op, op->b, 1.0f, NULL);
    mhla_tape_pass_grad(t, op->a, op->y);
}

mhla_tensor *mhla_nn_add(mhla_tape *t, mhla_tensor *a, mhla_tensor *b) {
    MHLA_GIVEN(t, a);
    MHLA_GIVEN(t, b);
    pointwise *op = make(t, a, b);
    if (op == NULL) return NULL;
    mhla_blend sum = whole(op);
    sum.r = b->data;
    sum.ldr = b->ld;
    mhla_tape_blend(t, &sum);
    return mhla_tape_record(t, &op->r, add_backward, op->y, a->needs_grad || b->needs_grad);
}

/* y = a b:  da += dy b, db += dy a */
static void mul_backward(mhla_tape *t, void *p) {
    pointwise *op = p;
    grad_product(t, op, op->a, 1.0f, op->b);
    grad_product(t, op, op->b, 1.0f, op->a);
}

mhla_tensor *mhla_nn_mul(mhla_tape *t, mhla_tensor *a, mhla_tensor *b) {
    MHLA_GIVEN(t, a);
    MHLA_GIVEN(t, b);
    pointwise *op = make(t, a, b);
    if (op == NULL) return NULL;
    mhla_blend product = whole(op);
    product.z = b->data;
    product.ldz = b->ld;
    mhla_tape_blend(t, &product);
    return mhla_tape_record(t, &op->r, mul_backward, op->y, a->needs_grad || b->needs_grad);
}

/* y = factor x:  dx += factor dy */
static void scale_backward(mhla_tape *t, void *p) {
    pointwise *op = p;
    grad_product(t, op, op->a, op->factor, NULL);
}

mhla_tensor *mhla_nn_scale(mhla_tape *t, float factor, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    pointwise *op = make(t, x, NULL);
    if (op == NULL) return NULL;
    op->factor = factor;
    mhla_blend product = whole(op);
    product.alpha = factor;
    mhla_tape_blend(t, &product);
    return mhla_tape_record(t, &op->r, scale_backward, op->y, x->needs_grad);
}

/* ---- y = silu(gate) up ---- */

typedef struct swiglu {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *gate, *up, *y;
    mhla_slot dgate, dup;
    int64_t rows; /* of a task */
} swiglu;

static void swiglu_task(void *arg, int64_t i, int worker) {
    const swiglu *op = arg;
    (void)worker;
    const int64_t first = i * op->rows, last = first + op->rows < op->y->rows ? first + op->rows : op->y->rows;
    for (int64_t r = first; r < last; r++)
        op->kernels->swiglu(op->y->data + r * op->y->ld, op->gate->data + r * op->gate->ld,
                            op->up->data + r * op->up->ld, op->y->cols);
}

/* y = silu(gate) up:  dgate += dy up silu'(gate), dup += dy silu(gate) */
static void swiglu_grad_task(void *arg, int64_t i, int worker) {
    const swiglu *op = arg;
    (void)worker;
    const int64_t first = i * op->rows, last = first + op->rows < op->y->rows ? first + op->rows : op->y->rows;
    for (int64_t r = first; r < last; r++)
        op->kernels->swiglu_backward(op->dgate.wanted ? op->dgate.data + r * op->dgate.ld : NULL, op->dgate.add,
                                     op->dup.wanted ? op->dup.data + r * op->dup.ld : NULL, op->dup.add,
                                     mhla_tape_arrived(op->y) + r * op->y->ld, op->gate->data + r * op->gate->ld,
                                     op->up->data + r * op->up->ld, op->y->cols);
}

static void swiglu_backward(mhla_tape *t, void *p) {
    swiglu *op = p;
    op->dgate = mhla_tape_grad(t, op->gate);
    op->dup = mhla_tape_grad(t, op->up);
    if (op->dgate.wanted || op->dup.wanted)
        mhla_tape_run(t, (op->y->rows + op->rows - 1) / op->rows, swiglu_grad_task, op);
}

mhla_tensor *mhla_nn_swiglu(mhla_tape *t, mhla_tensor *gate, mhla_tensor *up) {
    MHLA_GIVEN(t, gate);
    MHLA_GIVEN(t, up);
    char one[96], other[96];
    MHLA_NEED(t, mhla_same_shape(gate, up) && gate != up, "gate and up of a SwiGLU are %s and %s",
              mhla_shape_text(one, gate->shape, gate->dims), mhla_shape_text(other, up->shape, up->dims));
    swiglu *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, up->shape, up->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (swiglu){.kernels = t->kernels, .gate = gate, .up = up, .y = y};
    op->rows = y->cols < 16384 ? 16384 / y->cols : 1;
    mhla_tape_run(t, (y->rows + op->rows - 1) / op->rows, swiglu_task, op);
    return mhla_tape_record(t, &op->r, swiglu_backward, y, gate->needs_grad || up->needs_grad);
}
