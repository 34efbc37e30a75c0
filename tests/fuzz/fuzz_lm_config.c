/* Any bytes as the config.json of a language model: refused, or a config that is written and read again to the same. */
#include <stdlib.h>

#include "models/language/lm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *tree;
    if (mhla_json_parse(&tree, (const char *)data, size, "fuzz") != MHLA_OK) return 0;
    mhla_lm_config config, again;
    if (json_is_object(tree) && mhla_lm_config_read(&config, tree, NULL, "fuzz") == MHLA_OK) {
        if (mhla_lm_multiply_adds(&config, 64) < 1 || mhla_lm_state_bytes(&config, 64) < 1) abort();
        json_t *written = mhla_lm_config_tree(&config);
        if (written == NULL || mhla_lm_config_read(&again, written, NULL, "again") != MHLA_OK) abort();
        json_t *twice = mhla_lm_config_tree(&again);
        if (!json_equal(written, twice)) abort();
        json_decref(written);
        json_decref(twice);
    }
    json_decref(tree);
    return 0;
}
