/* Losses: tensors of one element. Rows are summed in double and in their order, so that the number of threads does not
 * show. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

/* ---- Cross entropy ---- */

typedef struct entropy {
    mhla_record r;
    const mhla_kernels *kernels;
    mhla_tensor *x, *y, *p; /* logits [rows,N], the loss, softmax(logits) */
    const int32_t *labels;
    const float *targets;
    float smoothing;
    int64_t counted; /* rows */
    double *losses;  /* [rows] */
    float factor;    /* of the gradient */
    mhla_slot dx;
} entropy;

/* The target of row i, class j: (1 - e) target + e/N times the sum of the row's targets, which is 1 or that of soft ones. */
typedef struct target_row {
    const float *soft;
    int32_t label;
    double keep, each;
} target_row;

static target_row target_of(const entropy *op, int64_t i) {
    const int64_t N = op->x->cols;
    const double e = (double)op->smoothing;
    target_row r = {NULL, -1, 1.0 - e, e / (double)N};
    if (op->labels) {
        r.label = op->labels[i];
        return r;
    }
    r.soft = op->targets + i * N;
    double sum = 0.0;
    for (int64_t j = 0; j < N; j++) sum += (double)r.soft[j];
    r.each *= sum;
    return r;
}

static double target_at(const target_row *r, int64_t j) {
    return r->each + r->keep * (r->soft ? (double)r->soft[j] : j == r->label ? 1.0 : 0.0);
}

/* p = softmax(x); loss_i = sum_j t_j (log sum exp x - x_j) */
static void entropy_task(void *arg, int64_t i, int worker) {
    const entropy *op = arg;
    (void)worker;
    const int64_t N = op->x->cols;
    const float *x = op->x->data + i * op->x->ld;
    float *p = op->p->data + i * N, most = x[0];
    for (int64_t j = 1; j < N; j++) most = x[j] > most || x[j] != x[j] ? x[j] : most; /* NaN stays */
    for (int64_t j = 0; j < N; j++) p[j] = x[j] - most;
    op->kernels->vexp(p, p, N);
    double sum = 0.0;
    for (int64_t j = 0; j < N; j++) sum += (double)p[j];
    const float inverse = (float)(1.0 / sum);
    for (int64_t j = 0; j < N; j++) p[j] *= inverse;
    op->losses[i] = 0.0;
    if (op->labels && op->labels[i] < 0) return;
    const target_row r = target_of(op, i);
    const double log_sum = log(sum) + (double)most;
    double loss = 0.0;
    if (r.soft || op->smoothing != 0.0f)
        for (int64_t j = 0; j < N; j++) loss += target_at(&r, j) * (log_sum - (double)x[j]);
    else
        loss = log_sum - (double)x[r.label];
    op->losses[i] = loss;
}

/* loss = mean over rows of sum_j t_j (log sum exp x - x_j):  dx_j += (p_j sum t - t_j) / rows */
static void entropy_grad_task(void *arg, int64_t i, int worker) {
    const entropy *op = arg;
    (void)worker;
    const int64_t N = op->x->cols;
    const float *p = op->p->data + i * N;
    float *dx = op->dx.data + i * op->dx.ld;
    const int counts = !(op->labels && op->labels[i] < 0);
    if (!counts && !op->dx.add) memset(dx, 0, sizeof(float) * (size_t)N);
    if (!counts) return;
    const target_row r = target_of(op, i);
    double sum = 1.0;
    if (r.soft) {
        sum = 0.0;
        for (int64_t j = 0; j < N; j++) sum += target_at(&r, j);
    }
    for (int64_t j = 0; j < N; j++) {
        const float d = op->factor * (float)((double)p[j] * sum - target_at(&r, j));
        dx[j] = op->dx.add ? dx[j] + d : d;
    }
}

static void entropy_backward(mhla_tape *t, void *arg) {
    entropy *op = arg;
    op->dx = mhla_tape_grad(t, op->x);
    if (!op->dx.wanted || mhla_tape_dry(t)) return;
    op->factor = mhla_tape_arrived(op->y)[0] / (float)op->counted;
    mhla_tape_run(t, op->x->rows, entropy_grad_task, op);
}

mhla_tensor *mhla_nn_cross_entropy(mhla_tape *t, mhla_tensor *logits, const int32_t *labels, const float *targets,
                                   float smoothing, mhla_tensor **probabilities) {
    if (probabilities) *probabilities = NULL;
    MHLA_GIVEN(t, logits);
    mhla_tensor *x = logits;
    const int dry = mhla_tape_dry(t);
    MHLA_NEED(t, dry || (labels == NULL) != (targets == NULL), "either labels or targets must be given");
    MHLA_NEED(t, smoothing >= 0.0f && smoothing < 1.0f, "label smoothing of %g: expected 0 to 1", (double)smoothing);
    int64_t counted = x->rows;
    for (int64_t i = 0; i < x->rows && labels && !dry; i++) {
        MHLA_NEED(t, labels[i] < x->cols, "labels[%lld] is %d: there are %lld classes", (long long)i, labels[i],
                  (long long)x->cols);
        counted -= labels[i] < 0;
    }
    entropy *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *p = op ? mhla_tape_tensor(t, x->shape, x->dims) : NULL;
    mhla_tensor *y = p ? mhla_tape_tensor(t, MHLA_SHAPE(1)) : NULL;
    double *losses = y ? mhla_tape_scratch(t, sizeof(double) * (size_t)x->rows) : NULL;
    if (losses == NULL) return NULL;
    *op = (entropy){.kernels = t->kernels,
                    .x = x,
                    .y = y,
                    .p = p,
                    .labels = labels,
                    .targets = targets,
                    .smoothing = smoothing,
                    .counted = counted > 0 ? counted : 1,
                    .losses = losses};
    mhla_tape_run(t, x->rows, entropy_task, op);
    if (!dry) {
        double sum = 0.0;
        for (int64_t i = 0; i < x->rows; i++) sum += losses[i];
        y->data[0] = (float)(sum / (double)op->counted);
    }
    if (probabilities) *probabilities = p;
    return mhla_tape_record(t, &op->r, entropy_backward, y, x->needs_grad);
}

/* ---- Mean squared and mean absolute error ---- */

typedef struct errors {
    mhla_record r;
    mhla_tensor *x, *y;
    const float *target;
    int absolute;
    double *losses; /* [rows] */
    float factor;
    mhla_slot dx;
} errors;

static void errors_task(void *arg, int64_t i, int worker) {
    const errors *op = arg;
    (void)worker;
    const int64_t n = op->x->cols;
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        const double d = (double)op->x->data[i * op->x->ld + j] - (double)op->target[i * n + j];
        sum += op->absolute ? fabs(d) : d * d;
    }
    op->losses[i] = sum;
}

/* loss = sum (x - target)^2 / count:  dx += 2 (x - target) / count;  of |x - target|:  dx += sign(x - target) / count */
static void errors_grad_task(void *arg, int64_t i, int worker) {
    const errors *op = arg;
    (void)worker;
    const int64_t n = op->x->cols;
    for (int64_t j = 0; j < n; j++) {
        const float e = op->x->data[i * op->x->ld + j] - op->target[i * n + j];
        const float d = op->factor * (op->absolute ? (float)((e > 0.0f) - (e < 0.0f)) : 2.0f * e);
        float *dx = op->dx.data + i * op->dx.ld + j;
        *dx = op->dx.add ? *dx + d : d;
    }
}

static void errors_backward(mhla_tape *t, void *arg) {
    errors *op = arg;
    op->dx = mhla_tape_grad(t, op->x);
    if (!op->dx.wanted || mhla_tape_dry(t)) return;
    op->factor = mhla_tape_arrived(op->y)[0] / (float)(op->x->rows * op->x->cols);
    mhla_tape_run(t, op->x->rows, errors_grad_task, op);
}

static mhla_tensor *mean_error(mhla_tape *t, mhla_tensor *x, const float *target, int absolute) {
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, target != NULL || mhla_tape_dry(t), "the target is NULL");
    errors *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(1)) : NULL;
    double *losses = y ? mhla_tape_scratch(t, sizeof(double) * (size_t)x->rows) : NULL;
    if (losses == NULL) return NULL;
    *op = (errors){.x = x, .y = y, .target = target, .absolute = absolute, .losses = losses};
    mhla_tape_run(t, x->rows, errors_task, op);
    if (!mhla_tape_dry(t)) {
        double sum = 0.0;
        for (int64_t i = 0; i < x->rows; i++) sum += losses[i];
        y->data[0] = (float)(sum / (double)(x->rows * x->cols));
    }
    return mhla_tape_record(t, &op->r, errors_backward, y, x->needs_grad);
}

mhla_tensor *mhla_nn_mse(mhla_tape *t, mhla_tensor *x, const float *target) { return mean_error(t, x, target, 0); }
mhla_tensor *mhla_nn_l1(mhla_tape *t, mhla_tensor *x, const float *target) { return mean_error(t, x, target, 1); }

/* ---- Judged elsewhere ---- */

typedef struct judged {
    mhla_record r;
    mhla_tensor *x, *y;
    const float *dx; /* like x */
    float factor;
    mhla_slot slot;
} judged;

static void judged_grad_task(void *arg, int64_t i, int worker) {
    const judged *op = arg;
    (void)worker;
    const int64_t n = op->x->cols;
    float *to = op->slot.data + i * op->slot.ld;
    for (int64_t j = 0; j < n; j++) {
        const float d = op->factor * op->dx[i * n + j];
        to[j] = op->slot.add ? to[j] + d : d;
    }
}

static void judged_backward(mhla_tape *t, void *arg) {
    judged *op = arg;
    op->slot = mhla_tape_grad(t, op->x);
    if (!op->slot.wanted || mhla_tape_dry(t)) return;
    op->factor = mhla_tape_arrived(op->y)[0];
    mhla_tape_run(t, op->x->rows, judged_grad_task, op);
}

mhla_tensor *mhla_nn_judged(mhla_tape *t, float loss, const float *dx, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, dx != NULL || mhla_tape_dry(t), "the gradient is NULL");
    judged *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(1)) : NULL;
    if (y == NULL) return NULL;
    *op = (judged){.x = x, .y = y, .dx = dx};
    if (!mhla_tape_dry(t)) y->data[0] = loss;
    return mhla_tape_record(t, &op->r, judged_backward, y, x->needs_grad);
}
