/* JPEG by libjpeg-turbo: grey, YCbCr, RGB, CMYK and YCCK in, grey and RGB out. libjpeg's errors come back by longjmp. The file's
 * end is ours to judge: a missing end marker is forgiven, missing pixels are not. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "core/status.h"
#include "image/image_codec.h"

/* A progressive file of many scans over many pixels takes hours to decode and a few kilobytes to write. */
enum { MAX_SCANS = 200 };

typedef struct reading {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr input;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    char message[JMSG_LENGTH_MAX];
    int ended;     /* the file's bytes are used up, an end marker was made up */
    uint8_t *cmyk; /* a row of them */
} reading;

static void on_error(j_common_ptr c) {
    reading *r = c->client_data;
    c->err->format_message(c, r->message);
    longjmp(r->leave, 1);
}

static void stop(reading *r, const char *message) {
    snprintf(r->message, sizeof r->message, "%s", message);
    longjmp(r->leave, 1);
}

static void on_message(j_common_ptr c, int level) {
    reading *r = c->client_data;
    if (level >= 0) return;
    c->err->num_warnings++;
    if (r->ended && (c->err->msg_code == JWRN_HIT_MARKER || c->err->msg_code == JWRN_JPEG_EOF))
        stop(r, "the file ends in the middle");
}

static void say_nothing(j_common_ptr c) { (void)c; }

static void watch_scans(j_common_ptr c) {
    reading *r = c->client_data;
    if (r->jpeg.input_scan_number > MAX_SCANS) stop(r, "it has more than 200 scans");
}

static void no_source(j_decompress_ptr j) { (void)j; }

static boolean fill(j_decompress_ptr j) {
    static const JOCTET end[2] = {0xff, JPEG_EOI};
    ((reading *)j->client_data)->ended = 1;
    j->src->next_input_byte = end;
    j->src->bytes_in_buffer = 2;
    return TRUE;
}

static void skip(j_decompress_ptr j, long count) {
    if (count <= 0) return;
    if ((size_t)count > j->src->bytes_in_buffer) {
        fill(j);
        return;
    }
    j->src->next_input_byte += count;
    j->src->bytes_in_buffer -= (size_t)count;
}

/* After this, a failure inside libjpeg goes to setjmp(r->leave). */
static void prepare(reading *r, const mhla_source *s) {
    memset(r, 0, sizeof *r);
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = say_nothing;
    r->jpeg.client_data = r;
    r->input.init_source = no_source;
    r->input.fill_input_buffer = fill;
    r->input.skip_input_data = skip;
    r->input.resync_to_restart = jpeg_resync_to_restart;
    r->input.term_source = no_source;
    r->input.next_input_byte = s->data;
    r->input.bytes_in_buffer = s->size;
    r->progress.progress_monitor = watch_scans;
}

static mhla_status broken(reading *r, const mhla_source *s) {
    jpeg_destroy_decompress(&r->jpeg);
    free(r->cmyk);
    return mhla_fail(MHLA_EDATA, "%s: broken JPEG: %s", s->name, r->message);
}

/* Reads up to the sizes, inside of the caller's setjmp. */
static mhla_status read_header(reading *r, const mhla_source *s) {
    jpeg_create_decompress(&r->jpeg);
    r->jpeg.client_data = r;
    r->jpeg.src = &r->input;
    r->jpeg.progress = &r->progress;
    jpeg_read_header(&r->jpeg, TRUE);
    const int n = r->jpeg.num_components;
    if (n != 1 && n != 3 && n != 4)
        return mhla_fail(MHLA_EDATA, "%s: a JPEG of %d channels, expected 1, 3 or 4", s->name, n);
    /* a block of 8 x 8 costs a bit at least, but for arithmetic coding */
    const uint64_t pixels = (uint64_t)r->jpeg.image_width * r->jpeg.image_height;
    return mhla_codec_check_size(s, r->jpeg.image_width, r->jpeg.image_height, r->jpeg.arith_code ? 0 : pixels / 512);
}

mhla_status mhla_jpeg_probe(int *width, int *height, int *channels, const mhla_source *s) {
    reading r;
    prepare(&r, s);
    if (setjmp(r.leave)) return broken(&r, s);
    const mhla_status status = read_header(&r, s);
    if (status == MHLA_OK) {
        *width = (int)r.jpeg.image_width;
        *height = (int)r.jpeg.image_height;
        *channels = r.jpeg.num_components == 1 ? 1 : 3;
    }
    jpeg_destroy_decompress(&r.jpeg);
    return status;
}

static unsigned divide255(unsigned x) {
    x += 128;
    return ((x >> 8) + x) >> 8;
}

/* Adobe writes CMYK inverted, and everybody follows: K is 255 for no ink. */
static void from_cmyk(uint8_t *rgb, const uint8_t *cmyk, int width) {
    for (int x = 0; x < width; x++)
        for (int c = 0; c < 3; c++) {
            const unsigned white = cmyk[4 * x + 3];
            rgb[3 * x + c] = (uint8_t)(white - divide255((255u - cmyk[4 * x + c]) * white));
        }
}

mhla_status mhla_jpeg_decode(mhla_image *image, const mhla_source *s, int channels) {
    reading r;
    prepare(&r, s);
    if (setjmp(r.leave)) return broken(&r, s);
    mhla_status status = read_header(&r, s);
    if (status == MHLA_OK) {
        const int ink = r.jpeg.num_components == 4, grey = r.jpeg.num_components == 1 && channels != 3;
        r.jpeg.out_color_space = ink ? JCS_CMYK : grey ? JCS_GRAYSCALE : JCS_RGB;
        status = mhla_image_reserve(image, (int)r.jpeg.image_width, (int)r.jpeg.image_height, grey ? 1 : 3);
        if (status == MHLA_OK && ink) {
            r.cmyk = malloc(4 * (size_t)image->width);
            if (r.cmyk == NULL) status = mhla_fail(MHLA_ENOMEM, "%s: no memory for a row", s->name);
        }
    }
    if (status == MHLA_OK) {
        const size_t row = (size_t)image->width * (size_t)image->channels;
        jpeg_start_decompress(&r.jpeg);
        while (r.jpeg.output_scanline < r.jpeg.output_height) {
            uint8_t *out = image->data + r.jpeg.output_scanline * row;
            JSAMPROW lines[1] = {r.cmyk ? r.cmyk : out};
            if (jpeg_read_scanlines(&r.jpeg, lines, 1) != 1) stop(&r, "no more rows");
            if (r.cmyk) from_cmyk(out, r.cmyk, image->width);
        }
        /* scans of a progressive file that are not there leave no trace but a blurred picture */
        if (r.ended && jpeg_has_multiple_scans(&r.jpeg)) stop(&r, "the file ends in the middle");
    }
    jpeg_destroy_decompress(&r.jpeg); /* without finishing: what follows the pixels does not matter */
    free(r.cmyk);
    return status;
}

/* ---- Writing ---- */

typedef struct writing {
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf leave;
    char message[JMSG_LENGTH_MAX];
    unsigned char *data;
    unsigned long size;
} writing;

static void on_write_error(j_common_ptr c) {
    writing *w = c->client_data;
    c->err->format_message(c, w->message);
    longjmp(w->leave, 1);
}

mhla_status mhla_image_encode_jpeg(uint8_t **bytes, size_t *size, const mhla_image *image, int quality) {
    *bytes = NULL;
    *size = 0;
    if (quality < 1 || quality > 100) return mhla_fail(MHLA_EINVAL, "quality is %d: expected 1 to 100", quality);
    if (image->width > JPEG_MAX_DIMENSION || image->height > JPEG_MAX_DIMENSION)
        return mhla_fail(MHLA_EINVAL, "a JPEG cannot have %d x %d pixels", image->width, image->height);
    writing w;
    memset(&w, 0, sizeof w);
    w.jpeg.err = jpeg_std_error(&w.errors);
    w.errors.error_exit = on_write_error;
    w.errors.output_message = say_nothing;
    w.jpeg.client_data = &w;
    if (setjmp(w.leave)) {
        jpeg_destroy_compress(&w.jpeg); /* libjpeg does not tell which memory it has by now: a leak, not a crash */
        return mhla_fail(MHLA_ENOMEM, "a JPEG could not be made: %s", w.message);
    }
    jpeg_create_compress(&w.jpeg);
    jpeg_mem_dest(&w.jpeg, &w.data, &w.size);
    w.jpeg.image_width = (JDIMENSION)image->width;
    w.jpeg.image_height = (JDIMENSION)image->height;
    w.jpeg.input_components = image->channels;
    w.jpeg.in_color_space = image->channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&w.jpeg);
    jpeg_set_quality(&w.jpeg, quality, TRUE);
    jpeg_start_compress(&w.jpeg, TRUE);
    while (w.jpeg.next_scanline < w.jpeg.image_height) {
        JSAMPROW lines[1] = {image->data + w.jpeg.next_scanline * (size_t)image->width * (size_t)image->channels};
        jpeg_write_scanlines(&w.jpeg, lines, 1);
    }
    jpeg_finish_compress(&w.jpeg);
    jpeg_destroy_compress(&w.jpeg);
    *bytes = w.data;
    *size = w.size;
    return MHLA_OK;
}
