/* mhla_model_step: steps on one batch learn it by heart, whatever the number of threads, and bad batches are refused. */
#include "support.h"

#include <mhla/nn.h>

enum { N = 8, STEPS = 12, PIXELS = 3 * 28 * 28 };

static void batch(float *images, int32_t *labels) {
    rng r = {7};
    for (int i = 0; i < N * PIXELS; i++) images[i] = rng_signed(&r);
    for (int i = 0; i < N; i++) labels[i] = i % 5;
}

/* Losses [STEPS] and, at the end, logits [N,5]. */
static void learn(float *losses, float *logits, int threads) {
    static float images[N * PIXELS];
    int32_t labels[N];
    const char *settings[] = {"classes=5", "depth=2"};
    mhla_model *m = NULL;
    mhla_context *context = NULL;
    const mhla_context_desc desc = {.size = sizeof desc, .threads = threads};
    batch(images, labels);
    assert_int_equal(mhla_context_create(&context, &desc), MHLA_OK);
    assert_int_equal(mhla_model_create(&m, "deit_nano", settings, 2, 1), MHLA_OK);
    mhla_model_set_context(m, context);
    for (int i = 0; i < STEPS; i++) assert_int_equal(mhla_model_step(m, &losses[i], images, labels, N, 2e-3), MHLA_OK);
    assert_int_equal(mhla_model_forward(m, logits, images, N), MHLA_OK);
    mhla_model_free(m);
    mhla_context_free(context);
}

static void learns(void **state) {
    (void)state;
    float losses[3][STEPS], logits[3][N * 5];
    for (int threads = 1; threads <= 3; threads++) learn(losses[threads - 1], logits[threads - 1], threads);
    assert_true(fabsf(losses[0][0] - logf(5.0f)) < 0.3f);
    assert_true(losses[0][STEPS - 1] < 0.5f * losses[0][0]);
    for (int i = 1; i < 3; i++) {
        assert_memory_equal(losses[0], losses[i], sizeof losses[0]);
        assert_memory_equal(logits[0], logits[i], sizeof logits[0]);
    }
}

static void refused(void **state) {
    (void)state;
    static float images[N * PIXELS];
    int32_t labels[N];
    const char *settings[] = {"classes=5", "depth=1"};
    mhla_model *m = NULL;
    batch(images, labels);
    assert_int_equal(mhla_model_create(&m, "deit_nano", settings, 2, 1), MHLA_OK);
    assert_int_equal(mhla_model_step(NULL, NULL, images, labels, N, 1e-3), MHLA_EINVAL);
    assert_int_equal(mhla_model_step(m, NULL, NULL, labels, N, 1e-3), MHLA_EINVAL);
    assert_int_equal(mhla_model_step(m, NULL, images, NULL, N, 1e-3), MHLA_EINVAL);
    assert_int_equal(mhla_model_step(m, NULL, images, labels, 0, 1e-3), MHLA_EINVAL);
    labels[3] = 5;
    assert_int_equal(mhla_model_step(m, NULL, images, labels, N, 1e-3), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "labels[3] is 5: the model has 5 classes");
    mhla_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
