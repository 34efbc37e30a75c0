/* Any bytes as a shard: refused, or its documents follow one another and its ids are of the vocabulary. */
#include <stdlib.h>

#include "data/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_shard *s;
    if (mhla_shard_parse(&s, data, size, "fuzz") != MHLA_OK) return 0;
    const mhla_shard_head *h = mhla_shard_head_of(s);
    int64_t at = 0;
    for (int64_t i = 0; i <= h->documents; i++) {
        if (mhla_shard_start(s, i) < at) abort();
        at = mhla_shard_start(s, i);
    }
    if (at != h->tokens) abort();
    int32_t *ids = malloc(((size_t)h->tokens + 1) * sizeof *ids);
    if (ids && mhla_shard_read(s, ids, 0, h->tokens) == MHLA_OK)
        for (int64_t i = 0; i < h->tokens; i++)
            if (ids[i] < 0 || ids[i] >= h->vocabulary) abort();
    free(ids);
    mhla_shard_free(s);
    return 0;
}
