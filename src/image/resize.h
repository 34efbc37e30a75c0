/* Antialiased resizing, equal to Pillow's to the last bit: two passes, each with coefficients in fixed point and a rounding
 * to 8 bits; and the crops of timm's and torchvision's pipelines. */
#ifndef MHLA_IMAGE_RESIZE_H
#define MHLA_IMAGE_RESIZE_H

#include "core/rng.h"
#include "image/image.h"

typedef enum mhla_filter {
    MHLA_FILTER_BICUBIC,
    MHLA_FILTER_BILINEAR,
    MHLA_FILTER_BOX,
    MHLA_FILTER_LANCZOS
} mhla_filter;

typedef struct mhla_rect {
    int x, y, width, height;
} mhla_rect;

/* out [height,width] from the part of `in` (NULL: all of it); pixels around the part are not looked at, as if it had been cropped
 * first. out may not be in. MHLA_EINVAL for a part outside of the image. */
mhla_status mhla_image_resize(mhla_image *out, const mhla_image *in, int width, int height, mhla_filter filter,
                              const mhla_rect *part);
mhla_status mhla_image_crop(mhla_image *out, const mhla_image *in, mhla_rect part);

/* timm's evaluation: resized so that the picture just covers floor(width / crop_pct) x floor(height / crop_pct), then the
 * centre. With a picture of that size nothing is resampled. */
mhla_status mhla_image_eval_crop(mhla_image *out, const mhla_image *in, int width, int height, double crop_pct,
                                 mhla_filter filter);

/* torchvision's random resized crop: a part of scale[0]..scale[1] of the area and ratio[0]..ratio[1] of width to height,
 * ten tries, then the centre. */
mhla_rect mhla_random_crop(mhla_rng *rng, int width, int height, const double scale[2], const double ratio[2]);

#endif
