/* One step of training on tokens of the caller's: the loss falls on a text that is seen again and again, and begins where
 * chance is; other storage of a model's matrices before it is used, and not after. */
#include <mhla/lm.h>

#include "support.h"

enum { B = 2, T = 40, STEPS = 30 };

static mhla_model *make(const char *const settings[3]) {
    mhla_model *model;
    ASSERT_OK(mhla_model_create(&model, "lm_micro", settings, 3, 3));
    return model;
}

static void learns(void **state) {
    (void)state;
    static const char *const attentions[][3] = {
        {"attention=mhla", "num_hidden_layers=2", "num_heads=2"},
        {"attention=softmax", "num_hidden_layers=2", "num_heads=4"},
        {"attention=linear", "num_hidden_layers=2", "num_heads=2"},
        {"linear_layers=1", "num_hidden_layers=2", "num_heads=2"},
        {"linear_layers=2", "num_hidden_layers=3", "attn_layers=0"},
    };
    for (int a = 0; a < 5; a++) {
        mhla_model *model = make(attentions[a]);
        mhla_lm_info info = {.size = sizeof info};
        ASSERT_OK(mhla_lm_query(model, &info));
        int32_t ids[B * T];
        for (int i = 0; i < B * T; i++) ids[i] = (i * i + 5 * i) % 97 % info.vocabulary;
        float first, loss = NAN;
        ASSERT_OK(mhla_lm_train_step(model, &first, ids, B, T, 3e-3));
        assert_true(fabs((double)first - log(info.vocabulary)) < 0.5);
        for (int i = 0; i < STEPS; i++) ASSERT_OK(mhla_lm_train_step(model, &loss, ids, B, T, 3e-3));
        assert_true(loss < 0.7f * first);
        ASSERT_FAILS(mhla_lm_store(model, "bfloat16"), MHLA_EINVAL, "before a model is used");
        ASSERT_FAILS(mhla_lm_train_step(model, NULL, ids, 1, 1, 1e-3), MHLA_EINVAL, "2 tokens");
        ASSERT_FAILS(mhla_lm_train_step(model, NULL, NULL, B, T, 1e-3), MHLA_EINVAL, "ids is NULL");
        ids[3] = info.vocabulary;
        ASSERT_FAILS(mhla_lm_train_step(model, NULL, ids, B, T, 1e-3), MHLA_EINVAL, "");
        mhla_model_free(model);
    }
}

static void other_storage(void **state) {
    (void)state;
    mhla_model *model = make((const char *const[3]){"attention=mhla", "num_heads=2", "num_hidden_layers=2"});
    ASSERT_FAILS(mhla_lm_store(model, "int4"), MHLA_EINVAL, "int4");
    ASSERT_OK(mhla_lm_store(model, "float32"));
    mhla_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns), cmocka_unit_test(other_storage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
