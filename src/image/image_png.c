/* PNG by libpng: every colour type and depth in, grey and RGB of 8 bits out. libpng leaves by longjmp on errors, so what lives
 * across a call of it is kept in a structure, never in a local variable that changes. */
#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "image/image_codec.h"

typedef struct reading {
    mhla_source source;
    size_t used;
    char message[160];
    png_structp png;
    png_infop info;
    png_bytep *rows;
    uint8_t *pixels; /* with alpha */
} reading;

static void on_error(png_structp png, png_const_charp message) {
    char *text = png_get_error_ptr(png);
    strncpy(text, message, 159);
    text[159] = '\0';
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message) { (void)png, (void)message; }

static void read_bytes(png_structp png, png_bytep out, size_t count) {
    reading *r = png_get_io_ptr(png);
    if (count > r->source.size - r->used) png_error(png, "the file ends in the middle");
    memcpy(out, r->source.data + r->used, count);
    r->used += count;
}

static void close_reading(reading *r) {
    free(r->rows);
    r->rows = NULL;
    free(r->pixels);
    r->pixels = NULL;
    png_destroy_read_struct(&r->png, &r->info, NULL);
}

/* Up to the sizes, which are checked. On failure all is closed. */
static mhla_status open_reading(reading *r, const mhla_source *s) {
    *r = (reading){.source = *s};
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r->message, on_error, on_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (r->info == NULL) {
        close_reading(r);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for reading it", s->name);
    }
    if (setjmp(png_jmpbuf(r->png))) {
        close_reading(r);
        return mhla_fail(MHLA_EDATA, "%s: broken PNG: %s", s->name, r->message);
    }
    png_set_read_fn(r->png, r, read_bytes);
    png_set_user_limits(r->png, MHLA_IMAGE_MAX_PIXELS, MHLA_IMAGE_MAX_PIXELS);
    png_set_chunk_malloc_max(r->png, 8u << 20); /* text and profiles that would unpack to gigabytes */
    png_set_chunk_cache_max(r->png, 64);
    png_read_info(r->png, r->info);
    /* zlib packs at most 1,032 to 1 */
    const uint64_t raw = (uint64_t)png_get_image_height(r->png, r->info) * (png_get_rowbytes(r->png, r->info) + 1);
    const mhla_status status = mhla_codec_check_size(s, png_get_image_width(r->png, r->info),
                                                     png_get_image_height(r->png, r->info), raw / 1040);
    if (status != MHLA_OK) close_reading(r);
    return status;
}

static int has_color(const reading *r) { return (png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_COLOR) != 0; }

mhla_status mhla_png_probe(int *width, int *height, int *channels, const mhla_source *s) {
    reading r;
    MHLA_TRY(open_reading(&r, s));
    *width = (int)png_get_image_width(r.png, r.info);
    *height = (int)png_get_image_height(r.png, r.info);
    *channels = has_color(&r) ? 3 : 1;
    close_reading(&r);
    return MHLA_OK;
}

/* Rows of `row` bytes into `to`. */
static mhla_status read_rows(reading *r, uint8_t *to, size_t row) {
    const size_t height = png_get_image_height(r->png, r->info), width = png_get_rowbytes(r->png, r->info);
    if (width != row) return mhla_fail(MHLA_EDATA, "%s: broken PNG: rows of %zu bytes", r->source.name, width);
    r->rows = malloc(height * sizeof *r->rows);
    if (r->rows == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its rows", r->source.name);
    for (size_t y = 0; y < height; y++) r->rows[y] = to + y * row;
    png_read_image(r->png, r->rows); /* what follows the pixels is not looked at */
    return MHLA_OK;
}

mhla_status mhla_png_decode(mhla_image *image, const mhla_source *s, int channels) {
    reading r;
    MHLA_TRY(open_reading(&r, s));
    if (setjmp(png_jmpbuf(r.png))) {
        close_reading(&r);
        return mhla_fail(MHLA_EDATA, "%s: broken PNG: %s", s->name, r.message);
    }
    const int planes = channels == 3 || has_color(&r) ? 3 : 1;
    png_set_strip_16(r.png);
    png_set_expand(r.png); /* palette to RGB, 1, 2, 4 bits to 8, tRNS to alpha, which goes: */
    png_set_strip_alpha(r.png);
    if (planes == 3) png_set_gray_to_rgb(r.png);
    png_set_interlace_handling(r.png);
    png_read_update_info(r.png, r.info);
    mhla_status status = mhla_image_reserve(image, (int)png_get_image_width(r.png, r.info),
                                            (int)png_get_image_height(r.png, r.info), planes);
    if (status == MHLA_OK) status = read_rows(&r, image->data, (size_t)image->width * (size_t)planes);
    close_reading(&r);
    return status;
}

mhla_status mhla_png_decode_over(mhla_image *image, const mhla_source *s, uint8_t background) {
    reading r;
    MHLA_TRY(open_reading(&r, s));
    if (setjmp(png_jmpbuf(r.png))) {
        close_reading(&r);
        return mhla_fail(MHLA_EDATA, "%s: broken PNG: %s", s->name, r.message);
    }
    png_set_strip_16(r.png);
    png_set_expand(r.png);
    png_set_gray_to_rgb(r.png);
    png_set_add_alpha(r.png, 255, PNG_FILLER_AFTER);
    png_set_interlace_handling(r.png);
    png_read_update_info(r.png, r.info);
    mhla_status status =
        mhla_image_reserve(image, (int)png_get_image_width(r.png, r.info), (int)png_get_image_height(r.png, r.info), 3);
    const size_t n = (size_t)image->width * (size_t)image->height;
    if (status == MHLA_OK && (r.pixels = calloc(4, n)) == NULL)
        status = mhla_fail(MHLA_ENOMEM, "%s: no memory for its pixels", s->name);
    if (status == MHLA_OK) status = read_rows(&r, r.pixels, 4 * (size_t)image->width);
    for (size_t i = 0; i < n && status == MHLA_OK; i++) {
        const unsigned alpha = r.pixels[4 * i + 3];
        for (size_t c = 0; c < 3; c++)
            image->data[3 * i + c] = (uint8_t)((r.pixels[4 * i + c] * alpha + background * (255 - alpha) + 127) / 255);
    }
    close_reading(&r);
    return status;
}

/* ---- Writing ---- */

typedef struct writing {
    uint8_t *data;
    size_t size, capacity;
    char message[160];
    png_structp png;
    png_infop info;
    png_text *texts;
} writing;

static void write_bytes(png_structp png, png_bytep in, size_t count) {
    writing *w = png_get_io_ptr(png);
    if (count > w->capacity - w->size) {
        const size_t capacity = (w->capacity + count) * 3 / 2 + 1024;
        uint8_t *data = realloc(w->data, capacity);
        if (data == NULL) png_error(png, "no memory");
        w->data = data;
        w->capacity = capacity;
    }
    memcpy(w->data + w->size, in, count);
    w->size += count;
}

static void flush_nothing(png_structp png) { (void)png; }

static int is_ascii(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text >= 128) return 0;
    return 1;
}

mhla_status mhla_image_encode_png(uint8_t **bytes, size_t *size, const mhla_image *image, const mhla_image_text *texts,
                                  int count) {
    writing w = {0};
    *bytes = NULL;
    *size = 0;
    for (int i = 0; i < count; i++)
        if (strlen(texts[i].key) < 1 || strlen(texts[i].key) > 79)
            return mhla_fail(MHLA_EINVAL, "the key \"%.90s\" of a PNG's text: expected 1 to 79 characters",
                             texts[i].key);
    w.texts = calloc((size_t)count + 1, sizeof *w.texts);
    w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, w.message, on_error, on_warning);
    w.info = w.png ? png_create_info_struct(w.png) : NULL;
    mhla_status status = MHLA_OK;
    if (w.texts == NULL || w.info == NULL) {
        status = mhla_fail(MHLA_ENOMEM, "no memory for writing a PNG");
    } else if (setjmp(png_jmpbuf(w.png))) {
        status = mhla_fail(MHLA_ENOMEM, "a PNG could not be made: %s", w.message);
    } else {
        png_set_write_fn(w.png, &w, write_bytes, flush_nothing);
        png_set_IHDR(w.png, w.info, (png_uint_32)image->width, (png_uint_32)image->height, 8,
                     image->channels == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                     PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
        for (int i = 0; i < count; i++) {
            w.texts[i].compression = is_ascii(texts[i].text) ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
            w.texts[i].key = (char *)(uintptr_t)texts[i].key; /* libpng copies them */
            w.texts[i].text = (char *)(uintptr_t)texts[i].text;
        }
        if (count > 0) png_set_text(w.png, w.info, w.texts, count);
        png_write_info(w.png, w.info);
        for (int y = 0; y < image->height; y++)
            png_write_row(w.png, image->data + (size_t)y * (size_t)image->width * (size_t)image->channels);
        png_write_end(w.png, w.info);
    }
    png_destroy_write_struct(&w.png, &w.info);
    free(w.texts);
    if (status != MHLA_OK) {
        free(w.data);
        return status;
    }
    *bytes = w.data;
    *size = w.size;
    return MHLA_OK;
}
