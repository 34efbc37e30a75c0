/* Settings as tables: keys and texts that do not fit are errors, not other keys and texts. */
#include <stddef.h>

#include "models/settings.h"
#include "support.h"

typedef struct config {
    char model[MHLA_SETTING_CHARS];
    int width;
} config;

/* fits alone, and not with "model." in front */
#define LONG "a_key_of_fifty_eight_characters_which_is_one_more_than_fits_"
_Static_assert(sizeof LONG<MHLA_RECIPE_KEY && sizeof LONG + sizeof "model." - 1> MHLA_RECIPE_KEY,
               "a key for this test");

static const mhla_setting fields[] = {
    {{"model", MHLA_RECIPE_TEXT, NULL, 0, 0, NULL, ""}, MHLA_SETTING_TEXT, offsetof(config, model)},
    {{LONG, MHLA_RECIPE_INT, NULL, 0, 100, NULL, ""}, MHLA_SETTING_INT, offsetof(config, width)},
};
static const mhla_settings table = {fields, 2, offsetof(config, width)};

static void keys(void **state) {
    (void)state;
    mhla_recipe *r;
    config c = {0};
    ASSERT_OK(mhla_recipe_create(&r, mhla_settings_rows(&table)));
    ASSERT_OK(mhla_recipe_set(r, LONG, "5"));
    ASSERT_OK(mhla_settings_take(&c, &table, 0, 2, r, "")); /* as config.json has it, it fits */
    assert_int_equal(c.width, 5);
    ASSERT_FAILS(mhla_settings_take(&c, &table, 0, 2, r, "model."), MHLA_EINVAL, "is too long");
    mhla_recipe_free(r);
}

static void texts(void **state) {
    (void)state;
    mhla_recipe *r;
    config c = {0};
    ASSERT_OK(mhla_recipe_create(&r, mhla_settings_rows(&table)));
    ASSERT_OK(mhla_recipe_set(r, "model", "a_text_of_thirty_one_characters"));
    ASSERT_OK(mhla_settings_take(&c, &table, 0, 1, r, ""));
    assert_string_equal(c.model, "a_text_of_thirty_one_characters");
    ASSERT_OK(mhla_recipe_set(r, "model", "a_text_of_thirty_two_characters_"));
    ASSERT_FAILS(mhla_settings_take(&c, &table, 0, 1, r, ""), MHLA_EINVAL, "at most 31 bytes");
    mhla_recipe_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys), cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
