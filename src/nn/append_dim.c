/* A dim more for each head: what keys count, as a term of the scores. With 1 behind every query and log(n) / scale behind a key,
 * softmax counts that key n times. */
#include <string.h>

#include "nn/op.h"

enum { ROWS = 16 }; /* of a task */

typedef struct appended {
    mhla_record r;
    const float *numbers;
    mhla_tensor *x, *y;
    int64_t K;
    mhla_slot dx;
} appended;

static void append_task(void *arg, int64_t task, int worker) {
    const appended *op = arg;
    const int64_t K = op->K, H = op->x->cols / K;
    (void)worker;
    for (int64_t r = task * ROWS; r < (task + 1) * ROWS && r < op->x->rows; r++)
        for (int64_t h = 0; h < H; h++) {
            float *y = op->y->data + r * op->y->ld + h * (K + 1);
            memcpy(y, op->x->data + r * op->x->ld + h * K, sizeof *y * (size_t)K);
            y[K] = op->numbers ? op->numbers[r] : 1.0f;
        }
}

static void append_back_task(void *arg, int64_t task, int worker) {
    const appended *op = arg;
    const int64_t K = op->K, H = op->x->cols / K;
    (void)worker;
    for (int64_t r = task * ROWS; r < (task + 1) * ROWS && r < op->x->rows; r++)
        for (int64_t h = 0; h < H; h++) {
            const float *dy = mhla_tape_arrived(op->y) + r * op->y->ld + h * (K + 1);
            float *dx = op->dx.data + r * op->dx.ld + h * K;
            for (int64_t j = 0; j < K; j++) dx[j] = op->dx.add ? dx[j] + dy[j] : dy[j];
        }
}

/* y = [x, number] in each head:  dx += dy without its last dim */
static void append_backward(mhla_tape *t, void *p) {
    appended *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, (op->x->rows + ROWS - 1) / ROWS, append_back_task, op);
}

mhla_tensor *mhla_nn_append_dim(mhla_tape *t, int64_t K, const float *numbers, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    MHLA_NEED(t, K > 0 && x->cols % K == 0, "heads of %lld dims in a tensor of shape %s", (long long)K,
              mhla_shape_text(text, x->shape, x->dims));
    int64_t shape[MHLA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->dims - 1] = x->cols / K * (K + 1);
    appended *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = (appended){.numbers = numbers, .x = x, .y = y, .K = K};
    mhla_tape_run(t, (x->rows + ROWS - 1) / ROWS, append_task, op);
    return mhla_tape_record(t, &op->r, append_backward, y, x->needs_grad);
}
