/* Any bytes as a safetensors file: refused, or every tensor inside them. Input that begins with '{' is taken as a header
 * up to its first NUL, with the length set for it, so that the fuzzer need not guess that. */
#include <stdlib.h>
#include <string.h>

#include "file/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try(const uint8_t *bytes, size_t size) {
    mhla_safetensors *f;
    if (mhla_safetensors_open_bytes(&f, bytes, size, "fuzz") != MHLA_OK) return;
    const uint8_t *expected = NULL;
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
        const mhla_stored *t = mhla_safetensors_at(f, i);
        if (mhla_safetensors_find(f, t->name) != t) abort();
        if (t->bytes != (size_t)t->count * mhla_io_dtype_size(t->dtype)) abort();
        if (t->bytes == 0) continue;
        if (t->data < bytes || t->data + t->bytes > bytes + size) abort();
        if (expected && t->data != expected) abort(); /* neither gap nor overlap */
        expected = t->data + t->bytes;
        float *x = malloc((size_t)t->count * sizeof *x);
        if (x) (void)mhla_stored_read(x, t);
        free(x);
    }
    if (expected && expected != bytes + size) abort();
    const mhla_stored *t;
    (void)mhla_safetensors_need(&t, f, "blocks.0.attn.to_qkv.weight");
    for (int64_t i = 0; i < mhla_safetensors_metadata_count(f); i++) {
        const char *key, *value;
        mhla_safetensors_metadata_at(f, i, &key, &value);
        if (mhla_safetensors_metadata(f, key) != value) abort();
    }
    mhla_safetensors_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try(data, size);
    if (size == 0 || data[0] != '{') return 0;
    const uint8_t *nul = memchr(data, 0, size);
    const size_t header = nul ? (size_t)(nul - data) : size;
    uint8_t *file = malloc(8 + size);
    if (file == NULL) return 0;
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)header >> (8 * i));
    memcpy(file + 8, data, size);
    try(file, 8 + size);
    free(file);
    return 0;
}
