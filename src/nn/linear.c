/* The linear layer on libmhla's packed product. Embedding by look-up. */
#include <string.h>

#include "nn/op.h"
#include "ops/product/product.h"

typedef struct linear {
    mhla_record r;
    mhla_tensor *x, *y, *residual;
    mhla_param *w, *b;
    mhla_activation activation;
    int needs;    /* gradients */
    float *pre;   /* [rows,N] before the activation, kept for backward */
    float *alpha; /* [B] drop path's factors, or NULL */
} linear;

static mhla_linear_desc describe(const mhla_tape *t, const mhla_tensor *x, const mhla_tensor *y) {
    return (mhla_linear_desc){.size = sizeof(mhla_linear_desc),
                              .context = t->context,
                              .rows = x->rows,
                              .ldx = x->ld,
                              .ldy = y->ld,
                              .precision = t->precision};
}

static void linear_backward(mhla_tape *t, void *op);

/* Each sample of a tensor like y times its factor, from src to dst, plus residual or NULL. */
static void drop(mhla_tape *t, const linear *op, float *dst, const float *src, const mhla_tensor *residual) {
    const mhla_tensor *y = op->y;
    const int64_t n = y->rows / y->shape[0], step = n * y->cols;
    mhla_tape_blends(t,
                     &(mhla_blends){.b = {.n = n,
                                          .cols = y->cols,
                                          .y = dst,
                                          .ldy = y->cols,
                                          .x = src,
                                          .ldx = y->cols,
                                          .r = residual ? residual->data : NULL,
                                          .ldr = residual ? residual->ld : 0},
                                    .y_step = step,
                                    .x_step = step,
                                    .r_step = residual ? n * residual->ld : 0,
                                    .alpha = op->alpha},
                     y->shape[0]);
}

/* Makes y and the operation, with what backward will need; *d says what is to be computed. */
static mhla_tensor *begin(mhla_tape *t, const linear *given, linear **made, mhla_linear_desc *d) {
    char text[96];
    const mhla_param *w = given->w, *b = given->b;
    const mhla_tensor *x = given->x, *residual = given->residual;
    const int64_t N = w->shape[0], K = w->count / N;
    MHLA_NEED(t, x->cols == K, "%s is %s: its input has rows of %lld", w->name,
              mhla_shape_text(text, w->shape, w->dims), (long long)x->cols);
    MHLA_NEED(t, b == NULL || b->count == N, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)N);
    int64_t shape[MHLA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->dims - 1] = N;
    linear *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    MHLA_NEED(t, residual == NULL || (residual->rows == y->rows && residual->cols == N),
              "the residual of %s has the shape %s", w->name, mhla_shape_text(text, residual->shape, residual->dims));
    *op = *given;
    op->y = y;
    op->needs =
        x->needs_grad || mhla_param_trains(w) || mhla_param_trains(b) || (residual != NULL && residual->needs_grad);
    if (op->activation != MHLA_ACT_NONE && mhla_tape_keeps(t, op->needs)) op->pre = mhla_tape_floats(t, y->rows * N);
    *d = describe(t, x, y);
    d->bias = b ? b->data : NULL;
    d->activation = op->activation;
    d->residual = residual && !op->alpha ? residual->data : NULL;
    d->ldr = d->residual ? residual->ld : 0;
    d->pre_activation = op->pre;
    *made = op;
    return y;
}

/* Layers of one x in one go; y[i] is NULL, all of them, if the tape fails. */
static void make(mhla_tape *t, mhla_tensor **y, const linear *given, int count) {
    linear *ops[MHLA_PRODUCTS] = {NULL};
    mhla_product_call calls[MHLA_PRODUCTS];
    size_t most = 0;
    int ready = 1; /* there is something to compute with */
    for (int i = 0; i < count; i++) y[i] = NULL;
    for (int i = 0; i < count; i++) {
        if (begin(t, &given[i], &ops[i], &calls[i].desc) == NULL) return;
        const size_t bytes =
            mhla_linears_workspace(&calls[i].desc, ops[i]->y->cols, ops[i]->x->cols, ops[i]->w->packs_as);
        if (bytes > most) most = bytes;
        calls[i].y = ops[i]->y->data;
    }
    calls[0].desc.workspace = mhla_tape_scratch(t, most);
    for (int i = 0; i < count; i++) {
        calls[i].weight = mhla_param_pack(t, ops[i]->w);
        ready &= calls[i].weight != NULL;
    }
    if (ready) {
        const mhla_status status = mhla_linears_forward(calls, count, ops[0]->x->data);
        if (status != MHLA_OK) {
            mhla_tape_fail(t, status, "%s: %s", ops[0]->w->name, mhla_message());
            return;
        }
    }
    for (int i = 0; i < count; i++) {
        if (ops[i]->alpha) drop(t, ops[i], ops[i]->y->data, ops[i]->y->data, ops[i]->residual);
        y[i] = mhla_tape_record(t, &ops[i]->r, linear_backward, ops[i]->y, ops[i]->needs);
    }
}

mhla_tensor *mhla_nn_linear(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_activation activation,
                            mhla_tensor *residual, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    mhla_tensor *y;
    make(t, &y, &(linear){.x = x, .residual = residual, .w = w, .b = b, .activation = activation}, 1);
    return y;
}

void mhla_nn_linears(mhla_tape *t, mhla_tensor **y, const mhla_layer *layers, int count, mhla_tensor *x) {
    linear given[MHLA_PRODUCTS];
    for (int i = 0; i < count; i++) {
        y[i] = NULL;
        given[i] = (linear){.x = x, .w = layers[i].w, .b = layers[i].b};
    }
    if (t->status == MHLA_OK && x) make(t, y, given, count);
}

mhla_tensor *mhla_nn_linear_drop(mhla_tape *t, float rate, mhla_param *w, mhla_param *b, mhla_tensor *residual,
                                 mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    linear given = {.x = x, .residual = residual, .w = w, .b = b};
    mhla_tensor *y;
    if (!mhla_tape_drop_path(t, rate, x->shape[0], &given.alpha)) return NULL;
    make(t, &y, &given, 1);
    return y;
}

/* y = alpha activation(x W^T + b) + residual, alpha = 1 but for drop path:
 *   dpre = alpha dy activation'(pre), dW += dpre^T x, db += sum dpre, dx += dpre W, dresidual += dy */
static void linear_backward(mhla_tape *t, void *p) {
    linear *op = p;
    const mhla_tensor *y = op->y;
    const int64_t N = y->cols, K = op->x->cols;
    const int dry = mhla_tape_dry(t);
    float *dy = mhla_tape_arrived(y), *dropped = NULL;
    if (op->alpha) {
        dropped = mhla_tape_borrow(t, y);
        if (dropped == NULL) return;
        drop(t, op, dropped, dy, NULL);
        dy = dropped;
    }
    mhla_linear_desc d = describe(t, op->x, y);
    d.workspace = mhla_tape_scratch(t, mhla_linear_workspace(&d, N, K, op->w->packs_as));
    mhla_status status = MHLA_OK;
    if (op->activation != MHLA_ACT_NONE) {
        if (op->residual) /* gets dy as it is */
            for (mhla_slot dr = mhla_tape_grad(t, op->residual); dr.wanted; dr.wanted = 0)
                mhla_tape_blend(t, &(mhla_blend){.n = y->rows,
                                                 .cols = N,
                                                 .y = dr.data,
                                                 .ldy = dr.ld,
                                                 .x = dy,
                                                 .ldx = N,
                                                 .alpha = 1.0f,
                                                 .add = dr.add});
        if (!dry) status = mhla_activation_backward(dy, dy, op->pre, y->rows * N, op->activation, t->context);
    }
    mhla_slot dw = mhla_tape_param_grad(t, op->w), db = mhla_tape_param_grad(t, op->b);
    if (!dry && status == MHLA_OK && dw.wanted && (!db.wanted || db.add == dw.add)) {
        d.accumulate = dw.add;
        status = mhla_linear_backward_weight(&d, dw.data, db.data, dy, op->x->data, N, K);
        db.wanted = 0;
    } else if (!dry && status == MHLA_OK && dw.wanted) {
        d.accumulate = dw.add;
        status = mhla_linear_backward_weight(&d, dw.data, NULL, dy, op->x->data, N, K);
    }
    if (!dry && status == MHLA_OK && db.wanted) {
        d.accumulate = db.add;
        status = mhla_linear_backward_weight(&d, NULL, db.data, dy, op->x->data, N, K);
    }
    const mhla_slot dx = mhla_tape_grad(t, op->x);
    if (dx.wanted && !dry && status == MHLA_OK) {
        const mhla_weight *packed = mhla_param_pack(t, op->w);
        d.ldx = dx.ld;
        d.accumulate = dx.add;
        if (packed) status = mhla_linear_backward_input(&d, dx.data, dy, packed);
    }
    mhla_tape_return(t, y, dropped);
    if (op->activation == MHLA_ACT_NONE) mhla_tape_pass_grad(t, op->residual, op->y);
    if (status != MHLA_OK) mhla_tape_fail(t, status, "%s: %s", op->w->name, mhla_message());
}

/* ---- Embedding: rows by number ---- */

typedef struct embedding {
    mhla_record r;
    mhla_tensor *y;
    mhla_param *w;
    const int32_t *ids;
    mhla_slot dw;
} embedding;

static void embedding_task(void *arg, int64_t i, int worker) {
    const embedding *op = arg;
    (void)worker;
    (void)mhla_param_get_rows(op->y->data + i * op->y->cols, op->w, op->ids[i], 1); /* ids were checked */
}

enum { STRIP = 16 }; /* columns of a task of the backward: each goes through all tokens in their order */

/* y_i = w[ids_i]:  dw[ids_i] += dy_i */
static void embedding_grad_task(void *arg, int64_t task, int worker) {
    const embedding *op = arg;
    (void)worker;
    const int64_t D = op->y->cols, first = task * STRIP, n = D - first < STRIP ? D - first : STRIP;
    const float *dy = mhla_tape_arrived(op->y) + first;
    float *dw = op->dw.data + first;
    for (int64_t i = 0; i < op->w->shape[0] && !op->dw.add; i++) memset(dw + i * D, 0, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < op->y->rows; i++)
        for (int64_t j = 0; j < n; j++) dw[op->ids[i] * D + j] += dy[i * D + j];
}

static void embedding_backward(mhla_tape *t, void *p) {
    embedding *op = p;
    op->dw = mhla_tape_param_grad(t, op->w);
    if (op->dw.wanted) mhla_tape_run(t, (op->y->cols + STRIP - 1) / STRIP, embedding_grad_task, op);
}

mhla_tensor *mhla_nn_embedding(mhla_tape *t, mhla_param *w, const int32_t *ids, int64_t B, int64_t T) {
    MHLA_GIVEN(t, w);
    MHLA_NEED(t, w->dims == 2, "%s has %d axes: expected 2", w->name, w->dims);
    MHLA_NEED(t, ids != NULL || mhla_tape_dry(t), "ids is NULL");
    if (!mhla_tape_dry(t))
        for (int64_t i = 0; i < B * T; i++)
            MHLA_NEED(t, ids[i] >= 0 && ids[i] < w->shape[0], "ids[%lld] is %d: %s has %lld rows", (long long)i, ids[i],
                      w->name, (long long)w->shape[0]);
    embedding *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(B, T, w->shape[1])) : NULL;
    if (y == NULL) return NULL;
    *op = (embedding){.y = y, .w = w, .ids = ids};
    mhla_tape_run(t, B * T, embedding_task, op);
    return mhla_tape_record(t, &op->r, embedding_backward, y, mhla_param_trains(w));
}
