/* Fuzzes the reader of IDX, compressed or not: bytes are refused, or all the numbers that they promise can be read. */
#include <stdlib.h>

#include "data/dataset_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int axes = 1; axes <= 3; axes += 2) {
        mhla_idx idx;
        if (mhla_idx_read(&idx, data, size, axes, "fuzz") != MHLA_OK) continue;
        size_t count = 1;
        for (int i = 0; i < axes; i++) count *= idx.size[i];
        volatile uint8_t sum = 0;
        for (size_t i = 0; i < count; i++) sum = (uint8_t)(sum + idx.data[i]);
        free(idx.owned);
    }
    return 0;
}
