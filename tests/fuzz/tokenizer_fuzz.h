/* What the fuzzers of tokenizers do with one that was opened: a text goes through it and back, at once and id by id. */
#ifndef MHLA_TESTS_TOKENIZER_FUZZ_H
#define MHLA_TESTS_TOKENIZER_FUZZ_H

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void tokenize_both_ways(mhla_tokenizer *t) {
    static const char text[] = "  Hello, <s>w\xc3\xb6rld</s> it's 1234\n\n\xe2\x96\x81 \xf0\x9f\x98\x80 e\xcc\x81 "
                               "<|endoftext|>x  ";
    for (unsigned flags = 0; flags < 8; flags++) {
        mhla_ids ids = {0};
        mhla_chars whole = {0}, parts = {0};
        mhla_decoder *d;
        if (mhla_tokenizer_encode(t, &ids, text, sizeof text - 1, flags) == MHLA_OK &&
            mhla_decoder_create(&d, t, flags & 1) == MHLA_OK) {
            for (int64_t i = 0; i < ids.count; i++)
                if (mhla_decoder_push(d, &parts, ids.data[i]) != MHLA_OK) abort();
            if (mhla_decoder_finish(d, &parts) != MHLA_OK) abort();
            if (mhla_tokenizer_decode(t, &whole, ids.data, ids.count, flags & 1) != MHLA_OK) abort();
            if (whole.count != parts.count || (whole.count && memcmp(whole.data, parts.data, whole.count) != 0))
                abort();
            mhla_decoder_free(d);
        }
        mhla_ids_free(&ids);
        mhla_chars_free(&whole);
        mhla_chars_free(&parts);
    }
    mhla_tokenizer_free(t);
}

#endif
