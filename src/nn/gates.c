/* What stands around recurrences with decay: log-decays, time steps and gates of a token, and products of a head with one number. Each is a
 * function of rows; a row's gradients stand under it. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

enum { X, Z, W, WANTED }; /* what has a gradient: rows, other rows, a parameter */

typedef struct gate {
    mhla_record r;
    mhla_tensor *x, *z, *y; /* z or NULL */
    mhla_param *w;          /* or NULL */
    int64_t P;              /* columns of x for each of z or w */
    int times;              /* copies of a head */
    float factor, least, most;
    void (*forward)(const struct gate *op, float *y, const float *x, const float *z);
    /* The gradient of `which` [its columns], of a row; of W it is added to. */
    void (*backward)(const struct gate *op, int which, float *d, const float *dy, const float *x, const float *z);
    int64_t parts;
    int which;
    mhla_slot to;
    float *rows; /* [parts][longest row] */
} gate;

enum { LEAST_ROWS = 16 };

static const float *row_of(const mhla_tensor *x, int64_t r) { return x ? x->data + r * x->ld : NULL; }

static void forward_task(void *arg, int64_t part, int worker) {
    const gate *op = arg;
    (void)worker;
    const int64_t rows = op->x->rows;
    for (int64_t r = part * rows / op->parts; r < (part + 1) * rows / op->parts; r++)
        op->forward(op, op->y->data + r * op->y->ld, row_of(op->x, r), row_of(op->z, r));
}

static void backward_task(void *arg, int64_t part, int worker) {
    const gate *op = arg;
    (void)worker;
    const int64_t rows = op->x->rows;
    const int64_t cols = op->which == W ? op->w->count : op->which == Z ? op->z->cols : op->x->cols;
    float *line = op->rows + part * cols;
    if (op->which == W) memset(line, 0, sizeof *line * (size_t)cols);
    for (int64_t r = part * rows / op->parts; r < (part + 1) * rows / op->parts; r++) {
        const float *dy = mhla_tape_arrived(op->y) + r * op->y->ld;
        float *d = op->which == W || op->to.add ? line : op->to.data + r * op->to.ld;
        op->backward(op, op->which, d, dy, row_of(op->x, r), row_of(op->z, r));
        if (op->which == W || !op->to.add) continue;
        float *to = op->to.data + r * op->to.ld;
        for (int64_t j = 0; j < cols; j++) to[j] += line[j];
    }
}

static void gate_backward(mhla_tape *t, void *p) {
    gate *op = p;
    for (op->which = X; op->which < WANTED; op->which++) {
        mhla_tensor *x = op->which == X ? op->x : op->which == Z ? op->z : NULL;
        op->to = op->which == W ? mhla_tape_param_grad(t, op->w) : mhla_tape_grad(t, x);
        if (!op->to.wanted) continue;
        const int64_t cols = op->which == W ? op->w->count : x->cols;
        op->rows = mhla_tape_scratch(t, sizeof(float) * (size_t)(op->parts * cols));
        mhla_tape_run(t, op->parts, backward_task, op);
        if (op->which == W) mhla_tape_reduce(t, op->to.data, op->to.add, op->rows, op->parts, cols, cols);
    }
}

static mhla_tensor *make(mhla_tape *t, const gate *given, int64_t cols) {
    mhla_tensor *x = given->x;
    int64_t shape[MHLA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->dims - 1] = cols;
    gate *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = *given;
    op->y = y;
    op->parts = mhla_row_parts(x->rows, LEAST_ROWS);
    mhla_tape_run(t, op->parts, forward_task, op);
    return mhla_tape_record(t, &op->r, gate_backward, y,
                            x->needs_grad || (op->z && op->z->needs_grad) || mhla_param_trains(op->w));
}

static float logistic(float x) { return x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : 1.0f - 1.0f / (1.0f + expf(x)); }
static float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
static float between(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

/* ---- y = max(logsigmoid(x) / divisor, least) ---- */

static void log_sigmoid(const gate *op, float *y, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) y[j] = between(-op->factor * softplus(-x[j]), op->least, 0.0f);
}

/* dx = dy sigmoid(-x) / divisor, where it was not cut */
static void log_sigmoid_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    (void)which, (void)z;
    for (int64_t j = 0; j < op->x->cols; j++)
        d[j] = -op->factor * softplus(-x[j]) < op->least ? 0.0f : dy[j] * op->factor * logistic(-x[j]);
}

mhla_tensor *mhla_nn_log_sigmoid(mhla_tape *t, float divisor, float least, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(
        t,
        &(gate){
            .x = x, .factor = 1.0f / divisor, .least = least, .forward = log_sigmoid, .backward = log_sigmoid_backward},
        x->cols);
}

/* ---- y = factor sigmoid(x) ---- */

static void sigmoid(const gate *op, float *y, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) y[j] = op->factor * logistic(x[j]);
}

/* dx = dy factor sigmoid(x) sigmoid(-x) */
static void sigmoid_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    (void)which, (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) d[j] = dy[j] * op->factor * logistic(x[j]) * logistic(-x[j]);
}

mhla_tensor *mhla_nn_sigmoid(mhla_tape *t, float factor, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, &(gate){.x = x, .factor = factor, .forward = sigmoid, .backward = sigmoid_backward}, x->cols);
}

/* ---- y = softplus(x + b), from `least` to `most` ---- */

static void time_steps(const gate *op, float *y, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) y[j] = between(softplus(x[j] + op->w->data[j]), op->least, op->most);
}

/* dx = dy sigmoid(x + b), where it was not cut; db is the sum of them */
static void time_steps_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) {
        const float a = x[j] + op->w->data[j], step = softplus(a);
        const float g = step < op->least || step > op->most ? 0.0f : dy[j] * logistic(a);
        d[j] = which == W ? d[j] + g : g;
    }
}

mhla_tensor *mhla_nn_time_steps(mhla_tape *t, mhla_param *b, float least, float most, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, b);
    MHLA_NEED(t, b->count == x->cols, "%s has %lld elements: expected %lld", b->name, (long long)b->count,
              (long long)x->cols);
    return make(
        t,
        &(gate){.x = x, .w = b, .least = least, .most = most, .forward = time_steps, .backward = time_steps_backward},
        x->cols);
}

/* ---- y = -exp(a) x ---- */

static void rates(const gate *op, float *y, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) y[j] = -expf(op->w->data[j]) * x[j];
}

/* dx = -exp(a) dy, da += dy y */
static void rates_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) {
        const float g = -expf(op->w->data[j]) * dy[j];
        d[j] = which == W ? d[j] + g * x[j] : g;
    }
}

mhla_tensor *mhla_nn_rates(mhla_tape *t, mhla_param *a, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, a);
    MHLA_NEED(t, a->count == x->cols, "%s has %lld elements: expected %lld", a->name, (long long)a->count,
              (long long)x->cols);
    return make(t, &(gate){.x = x, .w = a, .forward = rates, .backward = rates_backward}, x->cols);
}

/* ---- y = w x ---- */

static void channels(const gate *op, float *y, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) y[j] = op->w->data[j] * x[j];
}

/* dx = w dy, dw += dy x */
static void channels_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    (void)z;
    for (int64_t j = 0; j < op->x->cols; j++) d[j] = which == W ? d[j] + dy[j] * x[j] : op->w->data[j] * dy[j];
}

mhla_tensor *mhla_nn_channels(mhla_tape *t, mhla_param *w, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    MHLA_NEED(t, w->count == x->cols, "%s has %lld elements: expected %lld", w->name, (long long)w->count,
              (long long)x->cols);
    return make(t, &(gate){.x = x, .w = w, .forward = channels, .backward = channels_backward}, x->cols);
}

/* ---- y = z x, z one number for P columns of x ---- */

static void mul_heads(const gate *op, float *y, const float *x, const float *z) {
    for (int64_t h = 0; h < op->z->cols; h++)
        for (int64_t j = h * op->P; j < (h + 1) * op->P; j++) y[j] = z[h] * x[j];
}

/* dx = z dy, dz = sum of dy x */
static void mul_heads_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    for (int64_t h = 0; h < op->z->cols; h++) {
        float sum = 0.0f;
        for (int64_t j = h * op->P; j < (h + 1) * op->P; j++) {
            if (which == X)
                d[j] = z[h] * dy[j];
            else
                sum += dy[j] * x[j];
        }
        if (which == Z) d[h] = sum;
    }
}

mhla_tensor *mhla_nn_mul_heads(mhla_tape *t, mhla_tensor *x, mhla_tensor *z) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, z);
    MHLA_NEED(t, z != x && z->rows == x->rows && x->cols % z->cols == 0,
              "%lld rows of %lld factors for %lld rows of %lld", (long long)z->rows, (long long)z->cols,
              (long long)x->rows, (long long)x->cols);
    return make(t,
                &(gate){.x = x, .z = z, .P = x->cols / z->cols, .forward = mul_heads, .backward = mul_heads_backward},
                x->cols);
}

/* ---- y = z + w x, w one number for P columns ---- */

static void skip_heads(const gate *op, float *y, const float *x, const float *z) {
    for (int64_t h = 0; h < op->w->count; h++)
        for (int64_t j = h * op->P; j < (h + 1) * op->P; j++) y[j] = z[j] + op->w->data[h] * x[j];
}

/* dx = w dy, dz = dy, dw += sum of dy x */
static void skip_heads_backward(const gate *op, int which, float *d, const float *dy, const float *x, const float *z) {
    (void)z;
    if (which == Z) memcpy(d, dy, sizeof *d * (size_t)op->x->cols);
    for (int64_t h = 0; h < op->w->count && which != Z; h++) {
        float sum = 0.0f;
        for (int64_t j = h * op->P; j < (h + 1) * op->P; j++) {
            if (which == X)
                d[j] = op->w->data[h] * dy[j];
            else
                sum += dy[j] * x[j];
        }
        if (which == W) d[h] += sum;
    }
}

mhla_tensor *mhla_nn_skip_heads(mhla_tape *t, mhla_param *w, mhla_tensor *x, mhla_tensor *z) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, z);
    MHLA_GIVEN(t, w);
    MHLA_NEED(t, z != x && mhla_same_shape(x, z) && x->cols % w->count == 0,
              "%s has %lld elements for rows of %lld and %lld", w->name, (long long)w->count, (long long)x->cols,
              (long long)z->cols);
    return make(
        t,
        &(gate){
            .x = x, .z = z, .w = w, .P = x->cols / w->count, .forward = skip_heads, .backward = skip_heads_backward},
        x->cols);
}

/* ---- Each head of P columns so many times, one copy beside the other ---- */

static void repeat_heads(const gate *op, float *y, const float *x, const float *z) {
    (void)z;
    for (int64_t h = 0; h < op->x->cols / op->P; h++)
        for (int i = 0; i < op->times; i++, y += op->P) memcpy(y, x + h * op->P, sizeof *y * (size_t)op->P);
}

/* dx = the sum over the copies */
static void repeat_heads_backward(const gate *op, int which, float *d, const float *dy, const float *x,
                                  const float *z) {
    (void)which, (void)x, (void)z;
    memset(d, 0, sizeof *d * (size_t)op->x->cols);
    for (int64_t h = 0; h < op->x->cols / op->P; h++)
        for (int i = 0; i < op->times; i++, dy += op->P)
            for (int64_t j = 0; j < op->P; j++) d[h * op->P + j] += dy[j];
}

mhla_tensor *mhla_nn_repeat_heads(mhla_tape *t, int64_t dims, int times, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, dims > 0 && times > 0 && x->cols % dims == 0, "%d copies of heads of %lld in rows of %lld", times,
              (long long)dims, (long long)x->cols);
    if (times == 1) return x;
    return make(t,
                &(gate){.x = x, .P = dims, .times = times, .forward = repeat_heads, .backward = repeat_heads_backward},
                x->cols * times);
}
