/* What a network draws becomes bytes: one picture, or many side by side. */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "image/image.h"

enum { GAP = MHLA_IMAGE_GAP };

/* (x / 2 + 1/2) * 255, rounded; what is outside of -1 .. 1 is cut off, NaN is black. */
static uint8_t byte_of(float x) {
    const float unit = 0.5f * x + 0.5f;
    return (uint8_t)lrintf(255.0f * (unit > 0.0f ? unit < 1.0f ? unit : 1.0f : 0.0f));
}

mhla_status mhla_image_grid(mhla_image *grid, const float *images, int64_t n, int channels, int height, int width,
                            int columns) {
    const int64_t rows = (n + columns - 1) / columns;
    const int64_t wide = columns * (int64_t)(width + GAP) - GAP, high = rows * (height + GAP) - GAP;
    if (n < 1 || wide > INT32_MAX || high > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "a grid of %lld images of %d x %d", (long long)n, width, height);
    MHLA_TRY(mhla_image_reserve(grid, (int)wide, (int)high, channels));
    memset(grid->data, 255, (size_t)(wide * high * channels));
    for (int64_t i = 0; i < n; i++) {
        const float *from = images + i * channels * height * width;
        uint8_t *to = grid->data + (i / columns * (height + GAP) * wide + i % columns * (width + GAP)) * channels;
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++)
                for (int c = 0; c < channels; c++)
                    to[(y * wide + x) * channels + c] = byte_of(from[((int64_t)c * height + y) * width + x]);
    }
    return MHLA_OK;
}
