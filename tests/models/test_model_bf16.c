/* Models that are kept and multiplied as bfloat16 or q8_0: classifiers of every attention, diffusion and language models answer
 * nearly as in float32; an answer does not depend on the batch or on threads; files, and what is refused. */
#include "folders.h"

#include <mhla/diffusion.h>
#include <mhla/lm.h>
#include <mhla/nn.h>

#include "models/model.h"

static const char *const types[] = {"bfloat16", "q8_0"};

/* Random values everywhere: what starts at zero would hide what is multiplied by it. */
static void fill(mhla_model *m) {
    rng r = {3};
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        const float size = p->dims > 1 ? 1.0f / sqrtf((float)(p->count / p->shape[0])) : 0.2f;
        if (p->flags & MHLA_PARAM_MIX) continue;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(&r);
        mhla_param_touch(p);
    }
}

static mhla_model *new_model(const char *preset, const char *setting) {
    mhla_model *m;
    const char *const settings[] = {setting};
    ASSERT_OK(mhla_model_create(&m, preset, settings, setting != NULL, 1));
    fill(m);
    return m;
}

static float *classify(mhla_model *m, int64_t first, int64_t n, int *classes) {
    mhla_model_info info = {.size = sizeof info};
    rng r = {4};
    ASSERT_OK(mhla_model_query(m, &info));
    const int64_t pixels = (int64_t)info.channels * info.height * info.width;
    float *images = new_random(&r, (first + n) * pixels), *logits = new_poisoned(n * info.classes);
    ASSERT_OK(mhla_model_forward(m, logits, images + first * pixels, n));
    *classes = info.classes;
    free(images);
    return logits;
}

static void test_classifiers(void **state) {
    (void)state;
    static const char *const attentions[] = {"mhla", "linear", "softmax", "focused", "inline", "mala", "rala"};
    for (int a = 0; a < 7; a++)
        for (int t = 0; t < 2; t++) {
            char setting[40];
            int classes;
            snprintf(setting, sizeof setting, "attention=%s", attentions[a]);
            mhla_model *m = new_model("deit_nano", setting), *s = new_model("deit_nano", setting);
            mhla_context *one = new_context(1), *three = new_context(3);
            ASSERT_OK(mhla_model_store(s, types[t]));
            mhla_model_set_context(s, three);
            float *want = classify(m, 0, 5, &classes), *got = classify(s, 0, 5, &classes);
            const double error = relative_error(got, want, 5 * classes);
            if (!(error > 1e-6 && error < 0.1)) fail_msg("%s as %s: error %g", attentions[a], types[t], error);
            mhla_model *lonely = new_model("deit_nano", setting);
            ASSERT_OK(mhla_model_store(lonely, types[t]));
            mhla_model_set_context(lonely, one);
            float *alone = classify(lonely, 3, 1, &classes);
            assert_memory_equal(alone, got + 3 * classes, sizeof(float) * (size_t)classes);
            free(want), free(got), free(alone);
            mhla_model_free(m), mhla_model_free(s), mhla_model_free(lonely);
            mhla_context_free(one), mhla_context_free(three);
        }
}

static void test_diffusion(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        mhla_model *m = new_model("dit_nano", NULL), *s = new_model("dit_nano", NULL);
        mhla_model_info info = {.size = sizeof info};
        ASSERT_OK(mhla_model_query(m, &info));
        ASSERT_OK(mhla_model_store(s, types[t]));
        const int64_t n = (int64_t)info.channels * info.height * info.width;
        rng r = {5};
        float *x = new_random(&r, 2 * n), *want = new_poisoned(4 * n), *got = new_poisoned(4 * n);
        const float times[] = {3.0f, 700.0f};
        const int32_t labels[] = {0, 1};
        const mhla_denoise d = {.size = sizeof d, .count = 2, .x = x, .times = times, .labels = labels};
        ASSERT_OK(mhla_model_denoise(m, want, &d));
        ASSERT_OK(mhla_model_denoise(s, got, &d));
        int64_t answers = 0; /* one or two channels for each: what was written */
        while (answers < 4 * n && !isnan(want[answers])) answers++;
        const double error = relative_error(got, want, answers);
        if (!(answers >= 2 * n && error > 1e-6 && error < 0.1)) fail_msg("%s: error %g", types[t], error);
        free(x), free(want), free(got);
        mhla_model_free(m), mhla_model_free(s);
    }
}

/* Weights stay float32 and products are bfloat16: the same answers as of weights that are kept so. */
static void test_precision(void **state) {
    (void)state;
    int classes;
    mhla_model *m = new_model("deit_nano", NULL), *s = new_model("deit_nano", NULL);
    ASSERT_OK(mhla_model_store(m, "bfloat16"));
    ASSERT_OK(mhla_model_set_precision(s, "bfloat16"));
    float *a = classify(m, 0, 2, &classes), *b = classify(s, 0, 2, &classes);
    assert_memory_equal(a, b, sizeof(float) * 2 * (size_t)classes);
    ASSERT_FAILS(mhla_model_set_precision(s, "q8_0"), MHLA_EINVAL, "precision");
    ASSERT_FAILS(mhla_model_store(s, "int3"), MHLA_EINVAL, "int3");
    ASSERT_FAILS(mhla_model_store(NULL, "bfloat16"), MHLA_EINVAL, "model is NULL");
    ASSERT_FAILS(mhla_model_store(s, NULL), MHLA_EINVAL, "storage is NULL");
    float loss;
    const int32_t label = 0;
    rng r = {6};
    mhla_model_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_query(m, &info));
    float *image = new_random(&r, (int64_t)info.channels * info.height * info.width);
    ASSERT_FAILS(mhla_model_step(m, &loss, image, &label, 1, 1e-3), MHLA_EINVAL, "cannot be trained");
    ASSERT_OK(mhla_model_step(s, &loss, image, &label, 1, 1e-3));
    assert_true(isfinite(loss));
    ASSERT_FAILS(mhla_model_store(s, "float32"), MHLA_EINVAL, "before a model is used");
    free(a), free(b), free(image);
    mhla_model_free(m), mhla_model_free(s);
}

/* A file of float32 opened as bfloat16 is the model that was rounded; saved, it is half as large and opens the same. */
static void test_files(void **state) {
    (void)state;
    int classes;
    char folder[40], full[64], half[64];
    new_folder(folder);
    snprintf(full, sizeof full, "%s/full", folder);
    snprintf(half, sizeof half, "%s/half", folder);
    mhla_model *m = new_model("deit_nano", "attention=mala"), *opened, *again;
    ASSERT_OK(mhla_model_save(m, full));
    const mhla_open_desc desc = {.size = sizeof desc, .storage = "bfloat16"};
    ASSERT_OK(mhla_model_open_as(&opened, full, &desc));
    ASSERT_OK(mhla_model_save(opened, half));
    ASSERT_OK(mhla_model_open_as(&again, half, &desc));
    ASSERT_OK(mhla_model_store(m, "bfloat16"));
    float *a = classify(m, 0, 2, &classes), *b = classify(opened, 0, 2, &classes), *c = classify(again, 0, 2, &classes);
    assert_memory_equal(a, b, sizeof(float) * 2 * (size_t)classes);
    assert_memory_equal(a, c, sizeof(float) * 2 * (size_t)classes);
    mhla_model_free(opened);
    const mhla_open_desc wrong = {.size = sizeof wrong, .storage = "int3"};
    ASSERT_FAILS(mhla_model_open_as(&opened, full, &wrong), MHLA_EINVAL, "int3");
    free(a), free(b), free(c);
    mhla_model_free(m), mhla_model_free(again);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classifiers),
        cmocka_unit_test(test_diffusion),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
