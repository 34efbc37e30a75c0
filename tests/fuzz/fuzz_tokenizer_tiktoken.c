/* Any bytes as a file of tiktoken: refused, or text goes through it and back without harm. */
#include "tokenizer_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_tokenizer *t;
    mhla_tiktoken_is(data, size);
    if (mhla_tokenizer_parse_tiktoken(&t, (const char *)data, size, "qwen", "fuzz") == MHLA_OK) tokenize_both_ways(t);
    return 0;
}
