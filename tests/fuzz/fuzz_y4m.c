/* Any bytes as a .y4m file: refused, or every frame can be drawn. */
#include <stdlib.h>

#include "image/y4m.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_y4m clip;
    if (mhla_y4m_open(&clip, data, size, "fuzz") != MHLA_OK) return 0;
    const size_t bytes = (size_t)clip.width * (size_t)clip.height * 3;
    uint8_t *rgb = malloc(bytes);
    if (clip.frames < 1 || rgb == NULL) abort();
    for (int64_t i = 0; i < clip.frames; i++) {
        mhla_y4m_frame(&clip, i, rgb);
        if (clip.at[i] >= size) abort();
    }
    free(rgb);
    mhla_y4m_close(&clip);
    return 0;
}
