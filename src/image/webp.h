/* Animations as WebP: frames are compressed by libwebp, which is loaded when it is first used; the file around them is ours. */
#ifndef MHLA_IMAGE_WEBP_H
#define MHLA_IMAGE_WEBP_H

#include "image/image.h"

enum { MHLA_WEBP_SIDE = 16383 }; /* the most that the format has */

/* Frame i shown for milliseconds[i], over and over; one frame is a still image. *bytes is malloc'ed. text: kept in a chunk of its own, or
 * NULL. Quality is 1 to 100. MHLA_ENOTSUP without libwebp. */
mhla_status mhla_image_encode_webp(uint8_t **bytes, size_t *size, const mhla_image *frames, const int *milliseconds,
                                   int count, int quality, const char *text);
/* Do the bytes say that they are a WebP? */
int mhla_image_is_webp(const void *bytes, size_t size);
/* The last frame as RGB, and the text, malloc'ed, or NULL where there is none. MHLA_EDATA names the byte. */
mhla_status mhla_image_decode_webp(mhla_image *image, char **text, const void *bytes, size_t size, const char *name);

#endif
