/* Any bytes as a recipe, in TOML and in JSON, and as a flag; what was taken must come back from its own JSON. */
#include <stdlib.h>
#include <string.h>

#include "file/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const mhla_recipe_row rows[] = {
    {"seed", MHLA_RECIPE_INT, "0", 0, 0, NULL, ""},
    {"train.epochs", MHLA_RECIPE_INT, "300", 1, 1e6, NULL, ""},
    {"train.rate", MHLA_RECIPE_REAL, "5e-4", 0, 10, NULL, ""},
    {"train.ema", MHLA_RECIPE_BOOL, "false", 0, 0, NULL, ""},
    {"train.mixup.alpha", MHLA_RECIPE_REAL, NULL, 0, 1, NULL, ""},
    {"model.attention", MHLA_RECIPE_TEXT, "mhla", 0, 0, "mhla|softmax|linear", ""},
    {"model.name", MHLA_RECIPE_TEXT, NULL, 0, 0, NULL, ""},
    {"a", MHLA_RECIPE_INTS, "224,224", 1, 4096, NULL, ""},
    {"b", MHLA_RECIPE_REALS, "0.5", 0, 0, NULL, ""},
    {"c", MHLA_RECIPE_TEXTS, "", 0, 0, NULL, ""},
    {0},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int json = 0; json < 2; json++) {
        mhla_recipe *r, *again;
        if (mhla_recipe_create(&r, rows) != MHLA_OK || mhla_recipe_create(&again, rows) != MHLA_OK) abort();
        if (mhla_recipe_parse(r, (const char *)data, size, json, "fuzz") == MHLA_OK) {
            json_t *tree = mhla_recipe_tree(r);
            char *text = json_dumps(tree, JSON_REAL_PRECISION(17));
            if (text == NULL || mhla_recipe_parse(again, text, strlen(text), 1, "again") != MHLA_OK) abort();
            json_t *tree2 = mhla_recipe_tree(again);
            if (!json_equal(tree, tree2)) abort();
            json_decref(tree);
            json_decref(tree2);
            free(text);
        }
        mhla_recipe_free(r);
        mhla_recipe_free(again);
    }
    char *flag = malloc(size + 1);
    mhla_recipe *r;
    if (flag && mhla_recipe_create(&r, rows) == MHLA_OK) {
        memcpy(flag, data, size);
        flag[size] = '\0';
        (void)mhla_recipe_assign(r, flag);
        for (int i = 0; rows[i].name; i++) (void)mhla_recipe_set(r, rows[i].name, flag);
        mhla_recipe_free(r);
    }
    free(flag);
    return 0;
}
