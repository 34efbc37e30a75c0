/* Any bytes as JSON, read as a config is read. */
#include <stdlib.h>

#include "file/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const keys[] = {"depth", "rate", "name", "bias", "list", "inner", NULL};
    json_t *tree;
    if (mhla_json_parse(&tree, (const char *)data, size, "fuzz") != MHLA_OK) return 0;
    int64_t n = 0;
    double x = 0.0;
    int b = 0;
    const char *s = NULL;
    const json_t *j = NULL;
    (void)mhla_json_check_keys(tree, keys, "fuzz");
    (void)mhla_json_get_int(&n, tree, "depth", 1, 100, "fuzz");
    (void)mhla_json_get_real(&x, tree, "rate", "fuzz");
    (void)mhla_json_get_bool(&b, tree, "bias", "fuzz");
    (void)mhla_json_get_text(&s, tree, "name", "fuzz");
    (void)mhla_json_get_choice(&b, tree, "name", keys, "fuzz");
    (void)mhla_json_get_array(&j, tree, "list", "fuzz");
    (void)mhla_json_get_object(&j, tree, "inner", "fuzz");
    json_decref(tree);
    return 0;
}
