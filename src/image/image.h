/* Pictures of 8 bits: PNG and JPEG from and to memory, with the pixels that Pillow's convert("RGB") and convert("L") give:
 * alpha is dropped, 16-bit channels lose their low byte, palettes are looked up, a JPEG's orientation tag is ignored.
 * One difference: Pillow clips 16-bit grey at 255, which makes nearly all of it white; here it loses its low byte as well.
 * All of it is hostile-input code: a file that lies about its size, is cut off or makes no sense is refused with one
 * sentence that begins with its name. */
#ifndef MHLA_IMAGE_IMAGE_H
#define MHLA_IMAGE_IMAGE_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

/* More pixels than this are refused, whatever the file says. */
enum { MHLA_IMAGE_MAX_PIXELS = 89478485 };
/* Readable bytes behind the last pixel: kernels load pixels in fours. */
enum { MHLA_IMAGE_SLACK = 16 };

typedef struct mhla_image {
    int width, height, channels; /* 1 grey or 3 RGB */
    uint8_t *data;               /* [height,width,channels], by mhla_image_reserve only */
    size_t capacity;             /* bytes that data can hold: an image is reused without new memory */
} mhla_image;

/* Start from (mhla_image){0}. The contents after reserve are undefined. */
mhla_status mhla_image_reserve(mhla_image *image, int width, int height, int channels);
void mhla_image_free(mhla_image *image); /* harmless when repeated */

/* PNG or JPEG, told apart by their first bytes. channels 1 or 3 asks for grey or RGB, 0 for what the file has. `name`
 * begins the message of a failure (MHLA_EDATA, MHLA_ENOMEM); the image then keeps its memory, not its contents. */
mhla_status mhla_image_decode(mhla_image *image, const void *bytes, size_t size, int channels, const char *name);
mhla_status mhla_image_read(mhla_image *image, const char *path, int channels);

/* Only what the file says about itself; the pixels may still be broken. */
mhla_status mhla_image_probe(int *width, int *height, int *channels, const void *bytes, size_t size, const char *name);

/* Text that goes along with a PNG, e.g. the prompt or the command that made it. */
typedef struct mhla_image_text {
    const char *key, *text; /* key: 1 to 79 Latin-1 characters; text: UTF-8 */
} mhla_image_text;

/* *bytes is malloc'ed: free() it. Quality is 1 to 100. */
mhla_status mhla_image_encode_png(uint8_t **bytes, size_t *size, const mhla_image *image, const mhla_image_text *texts,
                                  int count);
/* The first text of a PNG under `key` as UTF-8, malloc'ed: free() it; *text is NULL where there is none, or the bytes are no
 * PNG. MHLA_EDATA, with the byte, for chunks that cannot be. Pixels are not looked at. */
mhla_status mhla_image_find_text(char **text, const void *bytes, size_t size, const char *key, const char *name);
/* An animated PNG of frames of one size and kind, frame i shown for milliseconds[i], over and over. Who knows no animation
 * shows the last frame. */
mhla_status mhla_image_encode_apng(uint8_t **bytes, size_t *size, const mhla_image *frames, const int *milliseconds,
                                   int frame_count, const mhla_image_text *texts, int text_count);
mhla_status mhla_image_encode_jpeg(uint8_t **bytes, size_t *size, const mhla_image *image, int quality);
/* By the path's ending: .png, .jpg, .jpeg. Whole or not at all. */
mhla_status mhla_image_write(const char *path, const mhla_image *image);

enum { MHLA_IMAGE_GAP = 2 }; /* pixels between the pictures of a grid, white */

/* n pictures [n,channels,height,width] of -1 .. 1, `columns` in a row, with white gaps between them; one picture has none. */
mhla_status mhla_image_grid(mhla_image *grid, const float *images, int64_t n, int channels, int height, int width,
                            int columns);

/* Does the name end like that of a picture we read? */
int mhla_image_name(const char *name);

#endif
