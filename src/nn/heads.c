/* Heads of several tensors as one tensor: rows beside each other, or each third head, where q, k and v of a head follow one another. */
#include <string.h>

#include "nn/op.h"

enum { MOST = 8 };

typedef struct heads {
    mhla_record r;
    mhla_tensor *x[MOST], *y;
    int count;
    int64_t K, first, every; /* head i of y is head first + every i of all x */
    int which;               /* of x, in the backward pass */
    int64_t before;          /* its first head */
    mhla_slot dx;
} heads;

static void forward_task(void *arg, int64_t row, int worker) {
    const heads *op = arg;
    (void)worker;
    float *y = op->y->data + row * op->y->ld;
    int64_t at = op->first; /* the next head, counted from x[i]'s first one */
    for (int i = 0; i < op->count; i++) {
        const int64_t n = op->x[i]->cols / op->K;
        const float *x = op->x[i]->data + row * op->x[i]->ld;
        for (; at < n; at += op->every, y += op->K) memcpy(y, x + at * op->K, sizeof *y * (size_t)op->K);
        at -= n;
    }
}

/* y_i = x_{first + every i}:  dx_{first + every i} += dy_i, and no others */
static void backward_task(void *arg, int64_t row, int worker) {
    const heads *op = arg;
    (void)worker;
    const int64_t n = op->x[op->which]->cols / op->K;
    float *dx = op->dx.data + row * op->dx.ld;
    const float *dy = mhla_tape_arrived(op->y) + row * op->y->ld;
    if (!op->dx.add) memset(dx, 0, sizeof *dx * (size_t)(n * op->K));
    const int64_t passed = op->before > op->first ? (op->before - op->first + op->every - 1) / op->every : 0;
    for (int64_t i = passed, at = op->first + passed * op->every - op->before; at < n; i++, at += op->every)
        for (int64_t k = 0; k < op->K; k++) dx[at * op->K + k] += dy[i * op->K + k];
}

static void heads_backward(mhla_tape *t, void *p) {
    heads *op = p;
    op->before = 0;
    for (op->which = 0; op->which < op->count; op->which++) {
        op->dx = mhla_tape_grad(t, op->x[op->which]);
        if (op->dx.wanted) mhla_tape_run(t, op->y->rows, backward_task, op);
        op->before += op->x[op->which]->cols / op->K;
    }
}

mhla_tensor *mhla_nn_heads(mhla_tape *t, int64_t K, int first, int every, mhla_tensor *const *x, int count) {
    MHLA_NEED(t, count >= 1 && count <= MOST && K > 0 && first >= 0 && every > first,
              "heads %d, %d + %d ... of %d tensors", first, first, every, count);
    int64_t all = 0;
    int needs = 0;
    for (int i = 0; i < count; i++) {
        MHLA_GIVEN(t, x[i]);
        MHLA_NEED(
            t, x[i]->dims == 3 && x[i]->shape[0] == x[0]->shape[0] && x[i]->rows == x[0]->rows && x[i]->cols % K == 0,
            "heads of %lld dims in tensor %d, [%lld, %lld, %lld]", (long long)K, i, (long long)x[i]->shape[0],
            (long long)(x[i]->rows / x[i]->shape[0]), (long long)x[i]->cols);
        all += x[i]->cols / K;
        needs |= x[i]->needs_grad;
    }
    heads *op = mhla_tape_op(t, sizeof *op);
    if (op == NULL) return NULL;
    const int64_t n = (all - first + every - 1) / every;
    *op = (heads){.count = count, .K = K, .first = first, .every = every};
    memcpy(op->x, x, sizeof *x * (size_t)count);
    op->y = mhla_tape_tensor(t, MHLA_SHAPE(x[0]->shape[0], x[0]->shape[1], n * K));
    if (op->y == NULL) return NULL;
    mhla_tape_run(t, op->y->rows, forward_task, op);
    return mhla_tape_record(t, &op->r, heads_backward, op->y, needs);
}
