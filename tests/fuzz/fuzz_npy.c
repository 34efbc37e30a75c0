/* Any bytes as an .npy file: refused, or the array fills what follows its header. */
#include <stdlib.h>

#include "file/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_npy a;
    if (mhla_npy_open_bytes(&a, data, size, "fuzz") != MHLA_OK) return 0;
    if (a.bytes != (size_t)a.count * mhla_io_dtype_size(a.dtype)) abort();
    if (a.bytes && (a.data < data || a.data + a.bytes != data + size)) abort();
    mhla_npy_close(&a);
    return 0;
}
