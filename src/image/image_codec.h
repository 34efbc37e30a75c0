/* What the files about pictures share: sources of bytes for the two that know libpng and libjpeg, conversions, the choice of code. */
#ifndef MHLA_IMAGE_IMAGE_CODEC_H
#define MHLA_IMAGE_IMAGE_CODEC_H

#include "image/image.h"

typedef struct mhla_source {
    const uint8_t *data;
    size_t size;
    const char *name; /* begins messages */
} mhla_source;

/* channels 3: RGB; 0 or 1: what the file has, grey or RGB. */
mhla_status mhla_png_decode(mhla_image *image, const mhla_source *s, int channels);
/* RGB over a grey background, where the picture has an alpha channel or transparent colours. */
mhla_status mhla_png_decode_over(mhla_image *image, const mhla_source *s, uint8_t background);
mhla_status mhla_jpeg_decode(mhla_image *image, const mhla_source *s, int channels);
mhla_status mhla_png_probe(int *width, int *height, int *channels, const mhla_source *s);
mhla_status mhla_jpeg_probe(int *width, int *height, int *channels, const mhla_source *s);

mhla_status mhla_codec_check_size(const mhla_source *s, uint64_t width, uint64_t height, uint64_t fewest);

void mhla_image_to_grey(mhla_image *image);

/* Whether the copies for AVX2 may run: this CPU has it, and MHLA_ISA=plain does not forbid it. */
int mhla_image_avx2(void);

#endif
