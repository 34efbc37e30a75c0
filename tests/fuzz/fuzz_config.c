/* Any bytes as the config.json of a model: refused, or a config that is written and read again to the same. */
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "models/vision/deit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *tree;
    if (mhla_json_parse(&tree, (const char *)data, size, "fuzz") != MHLA_OK) return 0;
    mhla_deit_config config = {0}, again = {0};
    if (json_is_object(tree) && mhla_deit_config_read(&config, tree, "fuzz") == MHLA_OK) {
        if (mhla_deit_tokens(&config) < 1 || mhla_deit_multiply_adds(&config, 0) < 1) abort();
        (void)mhla_deit_multiply_adds(&config, 1);
        json_t *written = mhla_deit_config_tree(&config);
        if (written == NULL || mhla_deit_config_read(&again, written, "again") != MHLA_OK) abort();
        json_t *twice = mhla_deit_config_tree(&again);
        if (!json_equal(written, twice)) abort();
        json_decref(written);
        json_decref(twice);
    }
    json_decref(tree);
    return 0;
}
