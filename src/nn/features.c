/* Feature maps of linear attention that the operators do not have inside: each works on the K dims of one head. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

typedef struct features {
    mhla_record r;
    mhla_tensor *x, *y;
    int64_t K, F; /* dims of a head before and after */
    int released, norm;
    mhla_feature phi;
    mhla_slot dx;
    void (*forward)(const struct features *op, float *y, const float *x);
    /* dx (=, +=); y is what forward made of x */
    void (*backward)(const struct features *op, float *dx, const float *dy, const float *y, const float *x);
} features;

enum { ROWS = 16, MOST = 1024 }; /* rows of a task; dims of a head at most */

static void forward_task(void *arg, int64_t i, int worker) {
    const features *op = arg;
    (void)worker;
    for (int64_t r = i * ROWS; r < (i + 1) * ROWS && r < op->x->rows; r++)
        for (int64_t h = 0; h < op->x->cols / op->K; h++)
            op->forward(op, op->y->data + r * op->y->ld + h * op->F, op->x->data + r * op->x->ld + h * op->K);
}

static void backward_task(void *arg, int64_t i, int worker) {
    const features *op = arg;
    (void)worker;
    for (int64_t r = i * ROWS; r < (i + 1) * ROWS && r < op->x->rows; r++)
        for (int64_t h = 0; h < op->x->cols / op->K; h++) {
            const int64_t to = r * op->y->ld + h * op->F;
            op->backward(op, op->dx.data + r * op->dx.ld + h * op->K, mhla_tape_arrived(op->y) + to, op->y->data + to,
                         op->x->data + r * op->x->ld + h * op->K);
        }
}

static void features_backward(mhla_tape *t, void *p) {
    features *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, (op->x->rows + ROWS - 1) / ROWS, backward_task, op);
}

static mhla_tensor *make(mhla_tape *t, mhla_tensor *x, features given) {
    MHLA_NEED(t, given.K > 0 && given.F <= MOST && x->cols % given.K == 0,
              "a feature map of heads of %lld dims in rows of %lld", (long long)given.K, (long long)x->cols);
    int64_t shape[MHLA_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->dims - 1] = x->cols / given.K * given.F;
    features *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, shape, x->dims) : NULL;
    if (y == NULL) return NULL;
    *op = given;
    op->x = x;
    op->y = y;
    mhla_tape_run(t, (x->rows + ROWS - 1) / ROWS, forward_task, op);
    return mhla_tape_record(t, &op->r, features_backward, y, x->needs_grad);
}

/* ---- Hedgehog: y = softmax([2x, -2x]) ---- */

static void hedgehog(const features *op, float *y, const float *x) {
    float most = 0.0f, sum = 0.0f;
    for (int64_t j = 0; j < op->K; j++) most = fmaxf(most, fabsf(x[j]));
    for (int64_t j = 0; j < op->K; j++) {
        y[j] = expf(2.0f * (x[j] - most));
        y[op->K + j] = expf(2.0f * (-x[j] - most));
        sum += y[j] + y[op->K + j];
    }
    for (int64_t j = 0; j < op->F; j++) y[j] /= sum;
}

/* dz = y (dy - y.dy), dx = 2 (dz[first half] - dz[second half]) */
static void hedgehog_backward(const features *op, float *dx, const float *dy, const float *y, const float *x) {
    (void)x;
    float dot = 0.0f;
    for (int64_t j = 0; j < op->F; j++) dot += y[j] * dy[j];
    for (int64_t j = 0; j < op->K; j++) {
        const float d = 2.0f * (y[j] * (dy[j] - dot) - y[op->K + j] * (dy[op->K + j] - dot));
        dx[j] = op->dx.add ? dx[j] + d : d;
    }
}

mhla_tensor *mhla_nn_hedgehog(mhla_tape *t, int64_t K, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, x, (features){.K = K, .F = 2 * K, .forward = hedgehog, .backward = hedgehog_backward});
}

/* ---- DPFP: z = [relu(x), relu(-x)], y = [z roll(z,1), .., z roll(z,4)], roll(z,i)[j] = z[j-i] ---- */

enum { NU = 4 };

static void halves(const features *op, float *z, const float *x) {
    for (int64_t j = 0; j < op->K; j++) {
        z[j] = fmaxf(x[j], 0.0f);
        z[op->K + j] = op->released ? -z[j] : fmaxf(-x[j], 0.0f);
    }
}

static void dpfp(const features *op, float *y, const float *x) {
    float z[MOST] = {0};
    const int64_t n = 2 * op->K;
    halves(op, z, x);
    for (int64_t i = 1; i <= NU; i++)
        for (int64_t j = 0; j < n; j++) *y++ = z[j] * z[(j - i + NU * n) % n];
}

/* dz[j] += dy_i[j] z[j-i] and dz[j-i] += dy_i[j] z[j]; then through the halves */
static void dpfp_backward(const features *op, float *dx, const float *dy, const float *y, const float *x) {
    (void)y;
    float z[MOST] = {0}, dz[MOST] = {0};
    const int64_t n = 2 * op->K;
    halves(op, z, x);
    for (int64_t i = 1; i <= NU; i++)
        for (int64_t j = 0; j < n; j++, dy++) {
            const int64_t other = (j - i + NU * n) % n;
            dz[j] += *dy * z[other];
            dz[other] += *dy * z[j];
        }
    for (int64_t j = 0; j < op->K; j++) {
        float d = x[j] > 0.0f ? dz[j] : 0.0f;
        if (op->released)
            d -= x[j] > 0.0f ? dz[op->K + j] : 0.0f;
        else
            d -= x[j] < 0.0f ? dz[op->K + j] : 0.0f;
        dx[j] = op->dx.add ? dx[j] + d : d;
    }
}

mhla_tensor *mhla_nn_dpfp(mhla_tape *t, int64_t K, int released, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(t, x,
                (features){.K = K, .F = 2 * NU * K, .released = released, .forward = dpfp, .backward = dpfp_backward});
}

/* ---- phi(x), or phi(x) / (sum phi(x) + 1e-4) ---- */

#define SUM_EPS 1e-4f

static float phi(mhla_feature kind, float x) {
    if (kind == MHLA_FEATURE_RELU) return x < 0.0f ? 0.0f : x; /* not fmaxf, which hides NaN */
    if (kind == MHLA_FEATURE_ELU) return x > 0.0f ? x + 1.0f : expf(x);
    return x;
}

static float phi_grad(mhla_feature kind, float x) {
    if (kind == MHLA_FEATURE_RELU) return x > 0.0f ? 1.0f : 0.0f;
    if (kind == MHLA_FEATURE_ELU) return x > 0.0f ? 1.0f : expf(x);
    return 1.0f;
}

static void feature(const features *op, float *y, const float *x) {
    float sum = 0.0f;
    for (int64_t j = 0; j < op->K; j++) sum += y[j] = phi(op->phi, x[j]);
    for (int64_t j = 0; j < op->K && op->norm; j++) y[j] /= sum + SUM_EPS;
}

/* dphi = (dy - y.dy) / (sum + eps), or dy; dx = dphi phi'(x) */
static void feature_backward(const features *op, float *dx, const float *dy, const float *y, const float *x) {
    float sum = 0.0f, dot = 0.0f;
    for (int64_t j = 0; j < op->K && op->norm; j++) {
        sum += phi(op->phi, x[j]);
        dot += y[j] * dy[j];
    }
    const float factor = op->norm ? 1.0f / (sum + SUM_EPS) : 1.0f;
    for (int64_t j = 0; j < op->K; j++) {
        const float d = (dy[j] - dot) * factor * phi_grad(op->phi, x[j]);
        dx[j] = op->dx.add ? dx[j] + d : d;
    }
}

mhla_tensor *mhla_nn_feature(mhla_tape *t, mhla_feature kind, int64_t K, int norm, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return make(
        t, x, (features){.K = K, .F = K, .phi = kind, .norm = norm, .forward = feature, .backward = feature_backward});
}
