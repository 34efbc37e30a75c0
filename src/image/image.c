#include "image/image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/status.h"
#include "file/file.h"
#include "image/image_codec.h"

void mhla_image_free(mhla_image *image) {
    free(image->data);
    *image = (mhla_image){0};
}

mhla_status mhla_image_reserve(mhla_image *image, int width, int height, int channels) {
    if (width < 1 || height < 1 || (channels != 1 && channels != 3))
        return mhla_fail(MHLA_EINVAL, "an image of %d x %d pixels and %d channels cannot be", width, height, channels);
    const uint64_t pixels = (uint64_t)width * (uint64_t)height;
    if (pixels > MHLA_IMAGE_MAX_PIXELS)
        return mhla_fail(MHLA_EINVAL, "%d x %d pixels are more than the %d that are allowed", width, height,
                         MHLA_IMAGE_MAX_PIXELS);
    const size_t bytes = (size_t)pixels * (size_t)channels;
    if (bytes > image->capacity) {
        uint8_t *data = malloc(bytes + MHLA_IMAGE_SLACK);
        if (data == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d x %d pixels", width, height);
        free(image->data);
        image->data = data;
        image->capacity = bytes;
    }
    memset(image->data + bytes, 0, MHLA_IMAGE_SLACK); /* read with weight 0 */
    image->width = width;
    image->height = height;
    image->channels = channels;
    return MHLA_OK;
}

/* The sizes are believed no further than the file's own size allows: `fewest` bytes at least are needed for them. */
mhla_status mhla_codec_check_size(const mhla_source *s, uint64_t width, uint64_t height, uint64_t fewest) {
    if (width == 0 || height == 0)
        return mhla_fail(MHLA_EDATA, "%s: says it has %llu x %llu pixels", s->name, (unsigned long long)width,
                         (unsigned long long)height);
    if (width > MHLA_IMAGE_MAX_PIXELS || height > MHLA_IMAGE_MAX_PIXELS || width * height > MHLA_IMAGE_MAX_PIXELS)
        return mhla_fail(MHLA_EDATA, "%s: says it has %llu x %llu pixels, more than the %d that are allowed", s->name,
                         (unsigned long long)width, (unsigned long long)height, MHLA_IMAGE_MAX_PIXELS);
    if (s->size < fewest)
        return mhla_fail(MHLA_EDATA, "%s: says it has %llu x %llu pixels, which its %zu bytes cannot hold", s->name,
                         (unsigned long long)width, (unsigned long long)height, s->size);
    return MHLA_OK;
}

/* ITU-R 601 luma in 16 bits of fraction, rounded: Pillow's convert("L"). In place, front to back. */
void mhla_image_to_grey(mhla_image *image) {
    if (image->channels == 1) return;
    const size_t n = (size_t)image->width * (size_t)image->height;
    uint8_t *x = image->data;
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)((x[3 * i] * 19595u + x[3 * i + 1] * 38470u + x[3 * i + 2] * 7471u + 0x8000u) >> 16);
    image->channels = 1;
}

int mhla_image_avx2(void) {
#ifdef MHLA_X86
    const char *isa = getenv("MHLA_ISA");
    return (isa == NULL || strcmp(isa, "plain") != 0) && __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}

typedef enum kind { NEITHER, PNG, JPEG } kind;

static kind kind_of(const mhla_source *s) {
    if (s->size >= 8 && memcmp(s->data, "\x89PNG\r\n\x1a\n", 8) == 0) return PNG;
    if (s->size >= 3 && memcmp(s->data, "\xff\xd8\xff", 3) == 0) return JPEG;
    return NEITHER;
}

static mhla_status refuse(const mhla_source *s) {
    if (s->size == 0) return mhla_fail(MHLA_EDATA, "%s: the file is empty", s->name);
    return mhla_fail(MHLA_EDATA, "%s: neither PNG nor JPEG by its first bytes", s->name);
}

mhla_status mhla_image_decode(mhla_image *image, const void *bytes, size_t size, int channels, const char *name) {
    const mhla_source s = {bytes, size, name};
    if (channels != 0 && channels != 1 && channels != 3)
        return mhla_fail(MHLA_EINVAL, "%s: channels is %d: expected 0, 1 or 3", name, channels);
    switch (kind_of(&s)) {
    case PNG: MHLA_TRY(mhla_png_decode(image, &s, channels)); break;
    case JPEG: MHLA_TRY(mhla_jpeg_decode(image, &s, channels)); break;
    case NEITHER: return refuse(&s);
    }
    if (channels == 1) mhla_image_to_grey(image);
    return MHLA_OK;
}

mhla_status mhla_image_read(mhla_image *image, const char *path, int channels) {
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_image_decode(image, file.data, file.size, channels, path);
    mhla_file_unmap(&file);
    return status;
}

mhla_status mhla_image_probe(int *width, int *height, int *channels, const void *bytes, size_t size, const char *name) {
    const mhla_source s = {bytes, size, name};
    switch (kind_of(&s)) {
    case PNG: return mhla_png_probe(width, height, channels, &s);
    case JPEG: return mhla_jpeg_probe(width, height, channels, &s);
    case NEITHER: break;
    }
    return refuse(&s);
}

static int ends_with(const char *name, const char *ending) {
    const size_t n = strlen(name), m = strlen(ending);
    return n > m && strcasecmp(name + n - m, ending) == 0;
}

static kind kind_by_name(const char *name) {
    if (ends_with(name, ".png")) return PNG;
    return ends_with(name, ".jpg") || ends_with(name, ".jpeg") ? JPEG : NEITHER;
}

int mhla_image_name(const char *name) { return kind_by_name(name) != NEITHER; }

mhla_status mhla_image_write(const char *path, const mhla_image *image) {
    uint8_t *bytes = NULL;
    size_t size = 0;
    switch (kind_by_name(path)) {
    case PNG: MHLA_TRY(mhla_image_encode_png(&bytes, &size, image, NULL, 0)); break;
    case JPEG: MHLA_TRY(mhla_image_encode_jpeg(&bytes, &size, image, 90)); break;
    case NEITHER: return mhla_fail(MHLA_EINVAL, "%s: expected a name that ends with .png, .jpg or .jpeg", path);
    }
    mhla_writer w;
    mhla_status status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        fwrite(bytes, 1, size, w.stream); /* commit asks for errors */
        status = mhla_writer_commit(&w);
    }
    free(bytes);
    return status;
}
