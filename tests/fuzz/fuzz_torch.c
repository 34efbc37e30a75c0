/* Any bytes as a PyTorch checkpoint. The zip archive's checksums keep the fuzzer out of its pickles, the older format's
 * pickles are open to it; both lead to the same tensors. */
#include <stdlib.h>
#include <string.h>

#include "file/safetensors.h"
#include "file/torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_safetensors *f;
    if (!mhla_torch_file_is(data, size)) return 0;
    if (mhla_safetensors_open_bytes(&f, data, size, "fuzz") != MHLA_OK) return 0;
    size_t copied = 0;
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
        const mhla_stored *t = mhla_safetensors_at(f, i);
        if (mhla_safetensors_find(f, t->name) != t) abort();
        if (t->bytes != (size_t)t->count * mhla_io_dtype_size(t->dtype)) abort();
        if (t->bytes == 0) continue;
        if (t->data < data || t->data >= data + size) copied += t->bytes;
        unsigned char *all = malloc(t->bytes); /* every byte is readable */
        if (all) memcpy(all, t->data, t->bytes);
        free(all);
    }
    if (copied > size) abort();
    mhla_safetensors_close(f);
    return 0;
}
