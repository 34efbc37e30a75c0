/* Fuzzes the readers of PNG and JPEG: whatever the bytes are, they are refused or become a picture as large as they say, which then
 * goes through a resize. A PNG's text is looked for, and read as what says how a picture was made. */
#include <mhla/diffusion.h>
#include <stdlib.h>

#include "image/resize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int channels[] = {0, 1, 3};
    mhla_image image = {0}, small = {0};
    int width = 0, height = 0, planes = 0;
    const mhla_status probed = mhla_image_probe(&width, &height, &planes, data, size, "fuzz");
    for (int i = 0; i < 3; i++) {
        if (mhla_image_decode(&image, data, size, channels[i], "fuzz") != MHLA_OK) continue;
        if (probed != MHLA_OK || image.width != width || image.height != height) abort();
        if (image.channels != (channels[i] ? channels[i] : planes)) abort();
        const mhla_rect corner = {0, 0, width < 64 ? width : 64, height < 64 ? height : 64};
        if (mhla_image_resize(&small, &image, 7, 5, MHLA_FILTER_BICUBIC, &corner) != MHLA_OK) abort();
    }
    char *text = NULL;
    mhla_sample_record record = {.size = sizeof record};
    if (mhla_image_find_text(&text, data, size, "mhla", "fuzz") != MHLA_OK && text) abort();
    if (text && mhla_sample_record_read(&record, text, "fuzz") == MHLA_OK && record.images < 1) abort();
    mhla_sample_record_free(&record);
    free(text);
    mhla_image_free(&image);
    mhla_image_free(&small);
    return 0;
}
