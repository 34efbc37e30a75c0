/* Any bytes as a tokenizer.json: refused, or text goes through it and back without harm. */
#include "tokenizer_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_tokenizer *t;
    if (mhla_tokenizer_parse_json(&t, (const char *)data, size, "fuzz") == MHLA_OK) tokenize_both_ways(t);
    return 0;
}
