/* Any bytes as a vocab.json, a zero and its merges.txt, or as CLIP's list of merges: refused, or text goes through it and back
 * without harm. */
#include "tokenizer_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_tokenizer *t;
    const char *text = (const char *)data, *zero = size ? memchr(text, '\0', size) : NULL;
    const size_t vocab = zero ? (size_t)(zero - text) : 0;
    const mhla_status status =
        zero ? mhla_tokenizer_parse_merges(&t, text, vocab, zero + 1, size - vocab - 1, NULL, "fuzz")
             : mhla_tokenizer_parse_merges(&t, NULL, 0, text, size, NULL, "fuzz");
    if (status == MHLA_OK) tokenize_both_ways(t);
    return 0;
}
