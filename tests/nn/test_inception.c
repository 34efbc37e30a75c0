/* The Inception network against the published features, where the weights are (data/inception, or MHLA_INCEPTION), and on
 * weights made here: against plain loops in double. */
#include <time.h>

#include "folders.h"
#include "goldens.h"
#include "models/inception.h"

static void test_golden(void **state) {
    (void)state;
    const char *weights = getenv("MHLA_INCEPTION");
    if (weights == NULL) weights = "../data/inception/inception-2015-12-05.safetensors";
    if (access(weights, R_OK) != 0) {
        print_message("[   SKIP   ] no %s: mhla data inception, or set MHLA_INCEPTION\n", weights);
        skip();
    }
    mhla_safetensors *g = open_golden("lm/real/inception-fid"), *file;
    ASSERT_OK(mhla_safetensors_open(&file, weights));
    assert_true(mhla_inception_fits(file));
    mhla_inception *net;
    ASSERT_OK(mhla_inception_open(&net, file, NULL));
    mhla_safetensors_close(file);
    float *planes = golden(g, "in.", "x"), *small = golden(g, "in.", "lowres"),
          *expected = golden(g, "out.", "features");
    enum { N = 299 * 299, COPIES = 9 };
    float *x = new_poisoned((int64_t)COPIES * N * 3), *lowres = new_poisoned(12 * 12 * 3),
          *scaled = new_poisoned(N * 3), *y = new_poisoned(COPIES * 2048);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < 3; c++) x[3 * i + c] = planes[c * N + i];
    for (int i = 0; i < 144; i++)
        for (int c = 0; c < 3; c++) lowres[3 * i + c] = 2.0f * small[c * 144 + i] - 1.0f;
    /* preprocessing */
    mhla_inception_scale(scaled, lowres, 12, 12, 3, MHLA_INCEPTION_TORCH);
    for (int i = 0; i < 3 * N; i++)
        if (!(fabsf(scaled[i] - x[i]) < 2e-6f)) fail_msg("pixel %d is %g: expected %g", i, scaled[i], x[i]);
    /* features, the same for every place in a batch */
    for (int i = 1; i < COPIES; i++) memcpy(x + (size_t)i * N * 3, x, (size_t)N * 3 * sizeof *x);
    ASSERT_OK(mhla_inception_run(net, y, NULL, x, COPIES));
    float most = 0.0f, error = 0.0f;
    for (int i = 0; i < 2048; i++)
        most = fmaxf(most, fabsf(expected[i])), error = fmaxf(error, fabsf(y[i] - expected[i]));
    print_message("largest error %.2g of %.3g\n", error, most);
    assert_true(error < 1e-5f * most);
    for (int i = 1; i < COPIES; i++) assert_memory_equal(y + (size_t)i * 2048, y, 2048 * sizeof *y);
    assert_int_equal(mhla_inception_classes(net), 0);
    mhla_inception_free(net);
    mhla_safetensors_close(g);
    free(planes), free(small), free(expected), free(x), free(lowres), free(scaled), free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
