/* Every call of nn.h that takes or fills a struct with a size, and what callbacks are told: see structs.h. */
#include "structs.h"

#include <mhla/nn.h>

#include "train_case.h"

static mhla_model *model;

static mhla_status mhla_model_query__mhla_model_info(void *given) { return mhla_model_query(model, given); }
static mhla_status mhla_model_tensor__mhla_tensor_info(void *given) { return mhla_model_tensor(model, 1, given); }
static mhla_status mhla_model_evaluate__mhla_evaluation(void *given) {
    return mhla_model_evaluate(model, given, in_root("data"), "test", 8, NULL, NULL);
}
static mhla_status mhla_model_evaluate_beside__mhla_evaluation(void *given) {
    return mhla_model_evaluate_beside(model, model, given, in_root("data"), "test", 8, NULL, NULL);
}
static mhla_status mhla_evaluation_free__mhla_evaluation(void *given) {
    mhla_evaluation_free(given);
    return MHLA_OK;
}
static void free_evaluation(void *given) { mhla_evaluation_free(given); }
static mhla_status mhla_recipe_query__mhla_recipe_key(void *given) { return mhla_recipe_query(0, given); }
static mhla_status mhla_data_query__mhla_data_info(void *given) { return mhla_data_query(0, given); }

static mhla_status convert(const mhla_convert_desc *desc, mhla_convert_result *result) {
    const char *out = in_root("out.safetensors");
    const mhla_status status = mhla_convert(out, in_root("model"), desc, result);
    if (status != MHLA_OK) assert_int_not_equal(access(out, F_OK), 0);
    unlink(out);
    return status;
}
static mhla_status mhla_convert__mhla_convert_desc(void *given) { return convert(given, NULL); }
static mhla_status mhla_convert__mhla_convert_result(void *given) { return convert(NULL, given); }

static void every_size(void **state) {
    (void)state;
    static const mhla_convert_desc convert_desc = {.size = sizeof convert_desc, .dtype = "float16"};
    static const mhla_evaluation empty = {.size = sizeof empty};
    const size_t owned = MHLA_UP_TO(mhla_evaluation, class_right);
    const struct_case rows[] = {
        FILLS(mhla_model_query, mhla_model_info),
        FILLS(mhla_model_tensor, mhla_tensor_info),
        FILLS(mhla_model_evaluate, mhla_evaluation, .least = owned, .compared = offsetof(mhla_evaluation, seconds),
              .release = free_evaluation),
        FILLS(mhla_model_evaluate_beside, mhla_evaluation, .least = owned,
              .compared = offsetof(mhla_evaluation, seconds), .release = free_evaluation),
        FREES(mhla_evaluation_free, mhla_evaluation, .value = &empty, .least = owned),
        FILLS(mhla_recipe_query, mhla_recipe_key),
        TAKES(mhla_convert, mhla_convert_desc, .value = &convert_desc, .optional = 1),
        FILLS(mhla_convert, mhla_convert_result, .optional = 1),
        FILLS(mhla_data_query, mhla_data_info),
    };
    STRUCTS_TRY(rows);
}

static int told[MHLA_TRAIN_CHECKPOINT + 1];

static void hear(void *user, const mhla_train_event *e) {
    (void)user;
    IS_TOLD(mhla_train_fn, mhla_train_event, e);
    told[e->kind]++;
}

static void see(void *user, const mhla_preview_picture *p) {
    IS_TOLD(mhla_preview_fn, mhla_preview_picture, p);
    ++*(int *)user;
}

static void callbacks(void **state) {
    (void)state;
    mhla_trainer *t;
    int finished, pictures = 0;
    char source[128];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *settings[] = {source,          "model.image=8", "model.padding=0",
                              "model.patch=2", "model.dim=16",  "model.crop=1"};
    ASSERT_OK(create(&t, "run", "train.steps=2", "eval.steps=1", NULL));
    ASSERT_OK(mhla_trainer_run(t, hear, NULL, &finished));
    mhla_trainer_free(t);
    for (int i = MHLA_TRAIN_STEP; i <= MHLA_TRAIN_CHECKPOINT; i++) assert_true(told[i] > 0);
    ASSERT_OK(mhla_train_preview(in_root("a.png"), NULL, settings, 6, 3, 3, see, &pictures));
    assert_int_equal(pictures, 3);
}

static int begin(void **state) {
    const char *settings[] = {"image=8,8", "channels=1", "padding=0,0", "patch=2", "dim=16", "depth=1", "classes=4"};
    set_up(state);
    ASSERT_OK(mhla_model_create(&model, "deit_nano", settings, 7, 1));
    ASSERT_OK(mhla_model_save(model, in_root("model")));
    return 0;
}

static int end(void **state) {
    mhla_model_free(model);
    return tear_down(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size), cmocka_unit_test(callbacks)};
    return cmocka_run_group_tests(tests, begin, end);
}
