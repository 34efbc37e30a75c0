/* Pictures of what a model made: pixels of its numbers, tiles of many, files and animations. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/status.h"
#include "file/file.h"
#include "file/npy.h"
#include "image/image.h"
#include "image/webp.h"

#include <mhla/diffusion.h>

static const char keyword[] = "mhla";
enum { QUALITY = 90 }; /* of WebP */

static int is_webp(const char *path) {
    const size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".webp") == 0;
}

enum { OWNED = MHLA_UP_TO(mhla_picture, text) };

static mhla_status give(mhla_picture *picture, const mhla_image *image, char *text) {
    const mhla_picture full = {.size = sizeof full,
                               .width = image->width,
                               .height = image->height,
                               .channels = image->channels,
                               .pixels = image->data,
                               .text = text};
    mhla_picture_free(picture);
    return mhla_struct_out(picture, &full, sizeof full, "mhla_picture");
}

mhla_status mhla_picture_tile(mhla_picture *picture, const float *images, int64_t n, int channels, int height,
                              int width, int columns) {
    MHLA_TRY(mhla_struct_check(picture, OWNED, "mhla_picture"));
    if (channels != 1 && channels != 3)
        return mhla_fail(MHLA_EINVAL, "images of %d channels cannot be written: expected 1 (grey) or 3 (RGB)",
                         channels);
    if (n < 1 || height < 1 || width < 1 || columns < 1)
        return mhla_fail(MHLA_EINVAL, "%lld images of %d x %d in %d columns cannot be", (long long)n, width, height,
                         columns);
    if (images == NULL) return mhla_fail(MHLA_EINVAL, "images is NULL");
    mhla_image grid = {0};
    const mhla_status status =
        mhla_image_grid(&grid, images, n, channels, height, width, n < columns ? (int)n : columns);
    if (status == MHLA_OK) return give(picture, &grid, NULL);
    mhla_image_free(&grid);
    return status;
}

mhla_status mhla_picture_write(const char *path, const mhla_picture *frames, int64_t count, const double *seconds) {
    if (path == NULL || frames == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", path ? "frames" : "path");
    if (count < 1 || count > 100000) return mhla_fail(MHLA_EINVAL, "%s: %lld frames", path, (long long)count);
    if (count > 1 && seconds == NULL) return mhla_fail(MHLA_EINVAL, "%s: seconds is NULL", path);
    mhla_image *images = calloc((size_t)count, sizeof *images);
    int *milliseconds = calloc((size_t)count, sizeof *milliseconds);
    uint8_t *bytes = NULL;
    size_t size = 0;
    mhla_picture f = {0};
    mhla_status status = images && milliseconds ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory", path);
    for (int64_t i = 0; i < count && status == MHLA_OK; i++) {
        status = mhla_struct_in_at(&f, sizeof f, frames, i, "mhla_picture");
        if (status == MHLA_OK && f.pixels == NULL) status = mhla_fail(MHLA_EINVAL, "mhla_picture.pixels is NULL");
        images[i] = (mhla_image){f.width, f.height, f.channels, f.pixels, 0};
        if (count > 1)
            milliseconds[i] = seconds[i] >= 0.0 && seconds[i] < 65.0 ? (int)(1000.0 * seconds[i] + 0.5) : 65000;
    }
    if (status == MHLA_OK) {
        const mhla_image_text text = {keyword, f.text}; /* the last frame's */
        const int texts = text.text != NULL;
        status = is_webp(path)
                     ? mhla_image_encode_webp(&bytes, &size, images, milliseconds, (int)count, QUALITY, f.text)
                 : count == 1 ? mhla_image_encode_png(&bytes, &size, images, &text, texts)
                              : mhla_image_encode_apng(&bytes, &size, images, milliseconds, (int)count, &text, texts);
    }
    free(images);
    free(milliseconds);
    mhla_writer w;
    if (status == MHLA_OK) status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        fwrite(bytes, 1, size, w.stream); /* commit asks for errors */
        status = mhla_writer_commit(&w);
    }
    free(bytes);
    return status;
}

mhla_status mhla_picture_read(mhla_picture *picture, const char *path) {
    MHLA_TRY(mhla_struct_check(picture, OWNED, "mhla_picture"));
    mhla_file file;
    mhla_image image = {0};
    char *text = NULL;
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status;
    if (mhla_image_is_webp(file.data, file.size)) {
        status = mhla_image_decode_webp(&image, &text, file.data, file.size, path);
    } else {
        status = mhla_image_decode(&image, file.data, file.size, 0, path);
        if (status == MHLA_OK) status = mhla_image_find_text(&text, file.data, file.size, keyword, path);
    }
    mhla_file_unmap(&file);
    if (status != MHLA_OK) {
        mhla_image_free(&image);
        return status;
    }
    return give(picture, &image, text);
}

void mhla_picture_free(mhla_picture *picture) {
    const mhla_picture empty = {.size = sizeof empty};
    if (!mhla_struct_holds(picture, OWNED)) return;
    free(picture->pixels);
    free(picture->text);
    mhla_struct_out(picture, &empty, sizeof empty, "mhla_picture");
}

mhla_status mhla_clips_write(const char *path, const float *clips, int64_t n, int channels, int frames, int height,
                             int width) {
    const int64_t shape[] = {n, channels, frames, height, width};
    if (path == NULL || (clips == NULL && n > 0)) return mhla_fail(MHLA_EINVAL, "%s is NULL", path ? "clips" : "path");
    for (int i = 0; i < 5; i++)
        if (shape[i] < (i > 0)) return mhla_fail(MHLA_EINVAL, "axis %d of clips is %lld", i, (long long)shape[i]);
    return mhla_npy_write(path, MHLA_IO_F32, 5, shape, clips);
}

mhla_status mhla_images_write(const char *path, const float *images, int64_t n, int channels, int height, int width) {
    const int64_t shape[] = {n, channels, height, width};
    if (path == NULL || (images == NULL && n > 0))
        return mhla_fail(MHLA_EINVAL, "%s is NULL", path ? "images" : "path");
    for (int i = 0; i < 4; i++)
        if (shape[i] < (i > 0)) return mhla_fail(MHLA_EINVAL, "axis %d of images is %lld", i, (long long)shape[i]);
    return mhla_npy_write(path, MHLA_IO_F32, 4, shape, images);
}
