/* The Gaussian that an encoder makes of an image: a mean and a log variance for each number of a latent. Latents are drawn from it,
 * and its divergence from a standard normal is part of the loss. Samples are independent; sums are in double and in their order. */
#include <math.h>

#include "nn/op.h"

static const float least = -30.0f, most = 20.0f; /* of a log variance; outside it counts as these, without a gradient */

typedef struct posterior {
    mhla_record r;
    mhla_tensor *x, *y;  /* [B,2L,...]: means, then log variances */
    const float *noise;  /* [B,L,...]; NULL: the divergence */
    int64_t N;           /* numbers of a latent */
    double *divergences; /* [B] */
    float factor;
    mhla_slot dx;
} posterior;

static float bounded(float v) { return v < least ? least : v > most ? most : v; } /* NaN stays */
static int inside(float v) { return v > least && v < most; }

static int fits(const mhla_tensor *x) { return x->dims >= 3 && x->shape[1] % 2 == 0 && x->ld == x->cols; }

static posterior *make(mhla_tape *t, mhla_tensor *x, const float *noise) {
    posterior *op = mhla_tape_op(t, sizeof *op);
    if (op) *op = (posterior){.x = x, .noise = noise, .N = x->rows * x->cols / x->shape[0] / 2};
    return op;
}

/* z = mean + exp(v/2) noise */
static void sample_task(void *arg, int64_t b, int worker) {
    const posterior *op = arg;
    (void)worker;
    const float *mean = op->x->data + 2 * b * op->N, *v = mean + op->N, *noise = op->noise + b * op->N;
    float *z = op->y->data + b * op->N;
    for (int64_t i = 0; i < op->N; i++) z[i] = mean[i] + expf(0.5f * bounded(v[i])) * noise[i];
}

/* dmean += dz, dv += dz exp(v/2) noise / 2 */
static void sample_grad_task(void *arg, int64_t b, int worker) {
    const posterior *op = arg;
    (void)worker;
    const float *v = op->x->data + (2 * b + 1) * op->N, *noise = op->noise + b * op->N;
    const float *dz = mhla_tape_arrived(op->y) + b * op->N;
    float *dmean = op->dx.data + 2 * b * op->N, *dv = dmean + op->N;
    for (int64_t i = 0; i < op->N; i++) {
        const float d = inside(v[i]) ? 0.5f * dz[i] * expf(0.5f * v[i]) * noise[i] : 0.0f;
        dmean[i] = op->dx.add ? dmean[i] + dz[i] : dz[i];
        dv[i] = op->dx.add ? dv[i] + d : d;
    }
}

static void sample_backward(mhla_tape *t, void *arg) {
    posterior *op = arg;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->shape[0], sample_grad_task, op);
}

mhla_tensor *mhla_nn_posterior(mhla_tape *t, const float *noise, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    MHLA_NEED(t, fits(x), "means and log variances of %s", mhla_shape_text(text, x->shape, x->dims));
    MHLA_NEED(t, noise != NULL || mhla_tape_dry(t), "the noise is NULL");
    int64_t shape[MHLA_MAX_DIMS];
    for (int i = 0; i < x->dims; i++) shape[i] = i == 1 ? x->shape[i] / 2 : x->shape[i];
    posterior *op = make(t, x, noise);
    if (op) op->y = mhla_tape_tensor(t, shape, x->dims);
    if (op == NULL || op->y == NULL) return NULL;
    mhla_tape_run(t, x->shape[0], sample_task, op);
    return mhla_tape_record(t, &op->r, sample_backward, op->y, x->needs_grad);
}

/* of a sample: sum (mean^2 + exp(v) - 1 - v) / 2 */
static void divergence_task(void *arg, int64_t b, int worker) {
    const posterior *op = arg;
    (void)worker;
    const float *mean = op->x->data + 2 * b * op->N, *v = mean + op->N;
    double sum = 0.0;
    for (int64_t i = 0; i < op->N; i++) {
        const double m = (double)mean[i], l = (double)bounded(v[i]);
        sum += 0.5 * (m * m + exp(l) - 1.0 - l);
    }
    op->divergences[b] = sum;
}

/* dmean += mean / B, dv += (exp(v) - 1) / 2B */
static void divergence_grad_task(void *arg, int64_t b, int worker) {
    const posterior *op = arg;
    (void)worker;
    const float *mean = op->x->data + 2 * b * op->N, *v = mean + op->N;
    float *dmean = op->dx.data + 2 * b * op->N, *dv = dmean + op->N;
    for (int64_t i = 0; i < op->N; i++) {
        const float m = op->factor * mean[i], d = inside(v[i]) ? 0.5f * op->factor * (expf(v[i]) - 1.0f) : 0.0f;
        dmean[i] = op->dx.add ? dmean[i] + m : m;
        dv[i] = op->dx.add ? dv[i] + d : d;
    }
}

static void divergence_backward(mhla_tape *t, void *arg) {
    posterior *op = arg;
    op->dx = mhla_tape_grad(t, op->x);
    if (!op->dx.wanted || mhla_tape_dry(t)) return;
    op->factor = mhla_tape_arrived(op->y)[0] / (float)op->x->shape[0];
    mhla_tape_run(t, op->x->shape[0], divergence_grad_task, op);
}

mhla_tensor *mhla_nn_divergence(mhla_tape *t, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    MHLA_NEED(t, fits(x), "means and log variances of %s", mhla_shape_text(text, x->shape, x->dims));
    const int64_t B = x->shape[0];
    posterior *op = make(t, x, NULL);
    if (op) op->y = mhla_tape_tensor(t, MHLA_SHAPE(1));
    if (op == NULL || op->y == NULL) return NULL;
    op->divergences = mhla_tape_scratch(t, sizeof(double) * (size_t)B);
    if (op->divergences == NULL) return NULL;
    mhla_tape_run(t, B, divergence_task, op);
    if (!mhla_tape_dry(t)) {
        double sum = 0.0;
        for (int64_t b = 0; b < B; b++) sum += op->divergences[b];
        op->y->data[0] = (float)(sum / (double)B);
    }
    return mhla_tape_record(t, &op->r, divergence_backward, op->y, x->needs_grad);
}
