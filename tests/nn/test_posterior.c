/* What an autoencoder learns by: absolute errors, latents drawn from Gaussians, their divergence from a standard normal; against
 * their definitions. */
#include "layer_case.h"

#define X(i) (c->in[i].x)
#define D(i) (c->in[i].d)

enum { B = 3, L = 2, H = 2, W = 3, N = L * H * W };

static double bounded(double v) { return v < -30.0 ? -30.0 : v > 20.0 ? 20.0 : v; }

/* ---- Drawn ---- */

static mhla_tensor *drawn_build(mhla_tape *t, const layer_case *c) { return mhla_nn_posterior(t, c->arg, X(0)); }
static void drawn_reference(double *y, const layer_case *c) {
    const float *noise = c->arg;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < N; i++)
            y[b * N + i] =
                D(0)[2 * b * N + i] + exp(bounded(D(0)[(2 * b + 1) * N + i]) / 2.0) * (double)noise[b * N + i];
}

/* ---- The divergence of a Gaussian from a standard normal ---- */

static mhla_tensor *divergence_build(mhla_tape *t, const layer_case *c) { return mhla_nn_divergence(t, X(0)); }
static void divergence_reference(double *y, const layer_case *c) {
    y[0] = 0.0;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < N; i++) {
            const double m = D(0)[2 * b * N + i], v = bounded(D(0)[(2 * b + 1) * N + i]);
            y[0] += (m * m + exp(v) - 1.0 - v) / 2.0 / B;
        }
}

static void gaussians(void **state) {
    (void)state;
    rng r = {21};
    float *noise = new_random(&r, B * N);
    layer_case draws = {
        .name = "drawn", .build = drawn_build, .reference = drawn_reference, .arg = noise, .no_slices = 1};
    layer_case divergence = {
        .name = "divergence", .build = divergence_build, .reference = divergence_reference, .no_slices = 1};
    VARIABLE(&draws, &r, B, 2 * L, H, W);
    VARIABLE(&divergence, &r, B, 2 * L, H, W);
    for (int i = 0; i < 2 * B * N; i++) {
        draws.in[0].d[i] *= 4.0;
        divergence.in[0].d[i] *= 4.0;
    }
    draws.in[0].d[N + 1] = -31.0; /* a log variance that is out of bounds has no gradient */
    check_case(&draws);
    check_case(&divergence);
    free(noise);
}

/* A standard normal is what it is compared with; bounds hold on both sides. */
static void bounds(void **state) {
    (void)state;
    float x[2 * N] = {0}, noise[N];
    mhla_tape *t;
    for (int i = 0; i < N; i++) noise[i] = 1.0f;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tensor *y = mhla_nn_divergence(t, mhla_nn_input(t, x, MHLA_SHAPE(1, 2 * L, H, W)));
    ASSERT_OK(mhla_tape_status(t));
    assert_true(y->data[0] == 0.0f);
    x[N] = 1000.0f, x[N + 1] = -1000.0f;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *v = mhla_nn_variable(t, x, MHLA_SHAPE(1, 2 * L, H, W));
    y = mhla_nn_posterior(t, noise, v);
    ASSERT_OK(mhla_tape_status(t));
    assert_true(fabsf(y->data[0] / expf(10.0f) - 1.0f) < 1e-5f && fabsf(y->data[1] / expf(-15.0f) - 1.0f) < 1e-5f);
    ASSERT_OK(mhla_tape_backward_from(t, y, noise));
    const float *grad = mhla_tensor_grad(v);
    assert_true(grad[0] == 1.0f && grad[N] == 0.0f && grad[N + 1] == 0.0f && grad[N + 2] == 0.5f);
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(mhla_nn_posterior(t, noise, mhla_nn_input(t, x, MHLA_SHAPE(1, 3, 2, W))));
    assert_non_null(strstr(mhla_message(), "[1, 3, 2, 3]"));
    mhla_tape_free(t);
}

/* ---- Absolute errors ---- */

static mhla_tensor *l1_build(mhla_tape *t, const layer_case *c) { return mhla_nn_l1(t, X(0), c->arg); }
static void l1_reference(double *y, const layer_case *c) {
    const float *target = c->arg;
    y[0] = 0.0;
    for (int i = 0; i < 4 * 6; i++) y[0] += fabs(D(0)[i] - (double)target[i]) / 24.0;
}
static void absolute(void **state) {
    (void)state;
    rng r = {22};
    float *target = new_random(&r, 24);
    layer_case c = {.name = "l1", .build = l1_build, .reference = l1_reference, .arg = target};
    VARIABLE(&c, &r, 4, 6);
    check_case(&c);
    free(target);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gaussians), cmocka_unit_test(bounds),
                                       cmocka_unit_test(absolute)};
    return cmocka_run_group_tests(tests, poison, NULL);
}
