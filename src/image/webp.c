/* The container (RIFF): a header VP8X, for animations ANIM and a chunk ANMF for each frame, around what libwebp makes of one image, and a
 * chunk of ours behind them, which other programs pass over. Numbers are little-endian, chunks are padded to even lengths. */
#include "image/webp.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

typedef size_t encode_fn(const uint8_t *rgb, int width, int height, int stride, float quality, uint8_t **output);
typedef uint8_t *decode_fn(const uint8_t *data, size_t size, uint8_t *to, size_t room, int stride);
typedef int info_fn(const uint8_t *data, size_t size, int *width, int *height);
typedef void free_fn(void *memory);

static const char library_name[] = "libwebp.so.7";
static struct {
    pthread_mutex_t lock;
    void *library; /* stays loaded */
    encode_fn *encode;
    decode_fn *decode;
    info_fn *info;
    free_fn *release;
} webp = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int find(void *function, const char *name) {
    void *found = dlsym(webp.library, name);
    memcpy(function, &found, sizeof found); /* C has no cast from an object to a function */
    return found != NULL;
}

static mhla_status load(void) {
    mhla_status status = MHLA_OK;
    pthread_mutex_lock(&webp.lock);
    if (webp.library == NULL) {
        webp.library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
        if (webp.library == NULL || !find(&webp.encode, "WebPEncodeRGB") || !find(&webp.decode, "WebPDecodeRGBInto") ||
            !find(&webp.info, "WebPGetInfo") || !find(&webp.release, "WebPFree")) {
            status = mhla_fail(MHLA_ENOTSUP, "WebP needs %s, which cannot be loaded: install Debian's package libwebp7",
                               library_name);
            if (webp.library) dlclose(webp.library);
            webp.library = NULL;
        }
    }
    pthread_mutex_unlock(&webp.lock);
    return status;
}

/* ---- Writing ---- */

typedef struct buffer {
    uint8_t *bytes;
    size_t size, room;
    int lost; /* memory */
} buffer;

static void put(buffer *b, const void *bytes, size_t n) {
    if (b->size + n > b->room) {
        const size_t room = 2 * (b->size + n) + 4096;
        uint8_t *larger = realloc(b->bytes, room);
        if (larger == NULL) {
            b->lost = 1;
            return;
        }
        b->bytes = larger;
        b->room = room;
    }
    memcpy(b->bytes + b->size, bytes, n);
    b->size += n;
}

static void put_number(buffer *b, uint32_t x, int bytes) {
    uint8_t to[4];
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(x >> 8 * i);
    put(b, to, (size_t)bytes);
}

static void put_head(buffer *b, const char *name, size_t size) {
    put(b, name, 4);
    put_number(b, (uint32_t)size, 4);
}

static void put_chunk(buffer *b, const char *name, const void *bytes, size_t size) {
    put_head(b, name, size);
    put(b, bytes, size);
    if (size % 2) put(b, "", 1);
}

static uint32_t number_at(const uint8_t *at, int bytes) {
    uint32_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint32_t)at[i] << 8 * i;
    return x;
}

/* A frame without the header of its own file: the chunk VP8. */
static mhla_status put_frame(buffer *b, const mhla_image *f, const int *milliseconds, int quality) {
    const uint8_t *rgb = f->data;
    uint8_t *wide = NULL, *made = NULL;
    const size_t n = (size_t)f->width * (size_t)f->height;
    if (f->channels == 1) {
        wide = malloc(3 * n + 1);
        if (wide == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an image of %d x %d", f->width, f->height);
        for (size_t i = 0; i < 3 * n; i++) wide[i] = f->data[i / 3];
        rgb = wide;
    }
    const size_t size = webp.encode(rgb, f->width, f->height, 3 * f->width, (float)quality, &made);
    free(wide);
    if (size < 20 || made == NULL || memcmp(made, "RIFF", 4) != 0) {
        if (made) webp.release(made);
        return mhla_fail(MHLA_ENOMEM, "libwebp cannot compress an image of %d x %d", f->width, f->height);
    }
    if (milliseconds) {
        put_head(b, "ANMF", 16 + size - 12);
        put_number(b, 0, 3);
        put_number(b, 0, 3);
        put_number(b, (uint32_t)f->width - 1, 3);
        put_number(b, (uint32_t)f->height - 1, 3);
        put_number(b, (uint32_t)*milliseconds, 3);
        put_number(b, 2, 1); /* not blended with the frame before */
    }
    put(b, made + 12, size - 12);
    webp.release(made);
    return MHLA_OK;
}

mhla_status mhla_image_encode_webp(uint8_t **bytes, size_t *size, const mhla_image *frames, const int *milliseconds,
                                   int count, int quality, const char *text) {
    buffer b = {0};
    const mhla_image *f = frames;
    const int moves = count > 1;
    *bytes = NULL;
    MHLA_TRY(load());
    for (int i = 0; i < count; i++)
        if (f[i].width != f->width || f[i].height != f->height || f->width > MHLA_WEBP_SIDE ||
            f->height > MHLA_WEBP_SIDE)
            return mhla_fail(MHLA_EINVAL, "frame %d is %d x %d: expected the size of the first, at most %d a side", i,
                             f[i].width, f[i].height, MHLA_WEBP_SIDE);
    put_head(&b, "RIFF", 0);
    put(&b, "WEBP", 4);
    put_head(&b, "VP8X", 10);
    put_number(&b, moves ? 2 : 0, 4);
    put_number(&b, (uint32_t)f->width - 1, 3);
    put_number(&b, (uint32_t)f->height - 1, 3);
    if (moves) put_chunk(&b, "ANIM", "\377\377\377\377\0\0", 6); /* white behind it; for ever */
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count && status == MHLA_OK; i++)
        status = put_frame(&b, &f[i], moves ? &milliseconds[i] : NULL, quality);
    if (text) put_chunk(&b, "MHLA", text, strlen(text));
    if (status == MHLA_OK && (b.lost || b.size > UINT32_MAX - 8))
        status =
            mhla_fail(MHLA_ENOMEM, "no memory for an animation of %d frames of %d x %d", count, f->width, f->height);
    if (status != MHLA_OK) {
        free(b.bytes);
        return status;
    }
    for (int i = 0; i < 4; i++) b.bytes[4 + i] = (uint8_t)((b.size - 8) >> 8 * i);
    *bytes = b.bytes;
    *size = b.size;
    return MHLA_OK;
}

/* ---- Reading ---- */

int mhla_image_is_webp(const void *bytes, size_t size) {
    return size >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp((const char *)bytes + 8, "WEBP", 4) == 0;
}

/* The image in chunks [first, last) as a file of its own. */
static mhla_status decode(mhla_image *image, const uint8_t *first, const uint8_t *last, const char *name) {
    buffer b = {0};
    int width = 0, height = 0;
    put_head(&b, "RIFF", 4 + (size_t)(last - first));
    put(&b, "WEBP", 4);
    put(&b, first, (size_t)(last - first));
    mhla_status status = b.lost ? mhla_fail(MHLA_ENOMEM, "%s: no memory for a frame", name) : MHLA_OK;
    if (status == MHLA_OK && (!webp.info(b.bytes, b.size, &width, &height) || width < 1 || height < 1 ||
                              (int64_t)width * height > MHLA_IMAGE_MAX_PIXELS))
        status = mhla_fail(MHLA_EDATA, "%s: a frame that is not an image", name);
    if (status == MHLA_OK) status = mhla_image_reserve(image, width, height, 3);
    if (status == MHLA_OK &&
        webp.decode(b.bytes, b.size, image->data, 3 * (size_t)width * (size_t)height, 3 * width) == NULL)
        status = mhla_fail(MHLA_EDATA, "%s: a frame that is not an image", name);
    free(b.bytes);
    return status;
}

mhla_status mhla_image_decode_webp(mhla_image *image, char **text, const void *bytes, size_t size, const char *name) {
    const uint8_t *from = bytes, *found[3] = {NULL, NULL, NULL}, *last = NULL; /* found: frame, still image, text */
    size_t text_size = 0;
    *text = NULL;
    MHLA_TRY(load());
    for (size_t at = 12; at < size;) {
        const size_t left = size - at, n = left >= 8 ? number_at(from + at + 4, 4) : 0;
        if (left < 8 || n > left - 8)
            return mhla_fail(MHLA_EDATA, "%s: the chunk at byte %zu does not end within the file", name, at);
        const uint8_t *chunk = from + at;
        if (memcmp(chunk, "ANMF", 4) == 0 && n >= 24) found[0] = chunk + 24, last = chunk + 8 + n;
        if (memcmp(chunk, "VP8", 3) == 0 && chunk[3] != 'X' && found[0] == NULL) found[1] = chunk, last = chunk + 8 + n;
        if (memcmp(chunk, "MHLA", 4) == 0 && memchr(chunk + 8, 0, n) == NULL) found[2] = chunk + 8, text_size = n;
        at += 8 + n + (n % 2 && n < left - 8);
    }
    const uint8_t *first = found[0] ? found[0] : found[1];
    if (first == NULL) return mhla_fail(MHLA_EDATA, "%s: a WebP without an image", name);
    MHLA_TRY(decode(image, first, last, name));
    if (found[2] == NULL) return MHLA_OK;
    *text = strndup((const char *)found[2], text_size);
    return *text ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
}
