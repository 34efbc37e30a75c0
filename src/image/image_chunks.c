/* PNG as a list of chunks: finding a text in any file, and putting frames that libpng packed together into an animation
 * (acTL, fcTL, fdAT of the APNG specification). A chunk is: length, type, data, CRC of type and data; all numbers have their
 * highest byte first. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/status.h"
#include "file/text.h"
#include "image/image.h"

enum { SIGNATURE = 8, AROUND = 12 /* bytes of a chunk besides its data */, TEXT_MOST = 8 << 20 };
static const unsigned char signature[SIGNATURE] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

typedef struct chunk {
    const uint8_t *type, *data;
    size_t size;
} chunk;

/* The chunk at *at, which moves behind it; 0 where none fits into what is left. */
static int next_chunk(chunk *c, const uint8_t *bytes, size_t size, size_t *at) {
    if (size - *at < AROUND) return 0;
    c->size = get32(bytes + *at);
    c->type = bytes + *at + 4;
    c->data = c->type + 4;
    if (c->size > size - *at - AROUND) return 0;
    *at += AROUND + c->size;
    return 1;
}
static int is_type(const chunk *c, const char *type) { return memcmp(c->type, type, 4) == 0; }
static int crc_holds(const chunk *c) { return get32(c->data + c->size) == (uint32_t)crc32_z(0, c->type, c->size + 4); }

/* ---- Finding a text ---- */

/* Latin-1 as UTF-8. */
static mhla_status from_latin(char **text, const uint8_t *data, size_t n) {
    unsigned char *out = malloc(2 * n + 1);
    if (out == NULL) return MHLA_ENOMEM;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += (size_t)mhla_utf8_put(out + used, data[i]);
    out[used] = '\0';
    *text = (char *)out;
    return MHLA_OK;
}

static mhla_status from_packed(char **text, const uint8_t *data, size_t n) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)n};
    size_t room = 0, used = 0;
    char *out = NULL;
    if (inflateInit(&z) != Z_OK) return MHLA_ENOMEM;
    int code = Z_OK;
    mhla_status status = MHLA_OK;
    while (code == Z_OK && status == MHLA_OK) {
        if (room - used < 2) {
            char *larger = room < TEXT_MOST ? realloc(out, room = 2 * room + 4096) : NULL;
            if (larger == NULL) {
                status = room < TEXT_MOST ? MHLA_ENOMEM : MHLA_EDATA;
                break;
            }
            out = larger;
        }
        z.next_out = (Bytef *)out + used;
        z.avail_out = (uInt)(room - used - 1);
        code = inflate(&z, Z_NO_FLUSH);
        used = room - 1 - z.avail_out;
    }
    inflateEnd(&z);
    if (status == MHLA_OK && code != Z_STREAM_END) status = MHLA_EDATA;
    if (status != MHLA_OK) {
        free(out);
        return status;
    }
    out[used] = '\0';
    *text = out;
    return MHLA_OK;
}

/* The text of a chunk whose key has passed: tEXt (the text), zTXt (0, packed text), iTXt (is it packed, 0, language, 0, key in
 * that language, 0, text). */
static mhla_status read_text(char **text, const chunk *c, size_t key) {
    const uint8_t *p = c->data + key + 1, *end = c->data + c->size;
    if (is_type(c, "tEXt")) return from_latin(text, p, (size_t)(end - p));
    if (is_type(c, "zTXt")) {
        char *packed = NULL;
        if (end - p < 1 || p[0] != 0) return MHLA_EDATA;
        mhla_status status = from_packed(&packed, p + 1, (size_t)(end - p - 1));
        if (status == MHLA_OK) status = from_latin(text, (uint8_t *)packed, strlen(packed));
        free(packed);
        return status;
    }
    if (end - p < 2 || p[0] > 1 || p[1] != 0) return MHLA_EDATA;
    const int packed = p[0];
    p += 2;
    for (int i = 0; i < 2; i++) { /* language, key in it */
        const uint8_t *zero = memchr(p, 0, (size_t)(end - p));
        if (zero == NULL) return MHLA_EDATA;
        p = zero + 1;
    }
    if (packed) return from_packed(text, p, (size_t)(end - p));
    *text = strndup((const char *)p, (size_t)(end - p));
    return *text ? MHLA_OK : MHLA_ENOMEM;
}

mhla_status mhla_image_find_text(char **text, const void *bytes, size_t size, const char *key, const char *name) {
    const uint8_t *b = bytes;
    const size_t length = strlen(key);
    size_t at = SIGNATURE;
    chunk c;
    *text = NULL;
    if (size < SIGNATURE || memcmp(b, signature, SIGNATURE) != 0) return MHLA_OK;
    for (size_t from = at; at < size; from = at) {
        if (!next_chunk(&c, b, size, &at))
            return mhla_fail(MHLA_EDATA, "%s: byte %zu: broken PNG: a part is longer than the file", name, from);
        if (is_type(&c, "IEND")) break;
        if (!is_type(&c, "tEXt") && !is_type(&c, "zTXt") && !is_type(&c, "iTXt")) continue;
        if (c.size <= length || memcmp(c.data, key, length) != 0 || c.data[length] != 0) continue;
        if (c.size > TEXT_MOST || !crc_holds(&c))
            return mhla_fail(MHLA_EDATA, "%s: byte %zu: broken PNG: the text \"%s\" %s", name, from, key,
                             c.size > TEXT_MOST ? "is too long" : "does not have its checksum");
        const mhla_status status = read_text(text, &c, length);
        if (status == MHLA_ENOMEM) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
        if (status != MHLA_OK)
            return mhla_fail(MHLA_EDATA, "%s: byte %zu: broken PNG: the text \"%s\" makes no sense", name, from, key);
        return MHLA_OK;
    }
    return MHLA_OK;
}

/* ---- Animations ---- */

typedef struct builder {
    uint8_t *data;
    size_t size, capacity;
    int failed; /* no memory */
} builder;

static void put(builder *w, const void *bytes, size_t n) {
    if (n > w->capacity - w->size) {
        const size_t capacity = (w->capacity + n) * 3 / 2 + 1024;
        uint8_t *data = w->failed ? NULL : realloc(w->data, capacity);
        w->failed |= data == NULL;
        if (w->failed) return;
        w->data = data;
        w->capacity = capacity;
    }
    memcpy(w->data + w->size, bytes, n);
    w->size += n;
}
static void put32(builder *w, uint32_t x) {
    put(w, (const uint8_t[]){(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x}, 4);
}
static void put16(builder *w, unsigned x) { put(w, (const uint8_t[]){(uint8_t)(x >> 8), (uint8_t)x}, 2); }

/* What was put since the length of a chunk at `from` is its type and data. */
static void end_chunk(builder *w, size_t from) {
    if (w->failed) return;
    const size_t n = w->size - from - 8;
    const uint32_t length = (uint32_t)n, crc = (uint32_t)crc32_z(0, w->data + from + 4, n + 4);
    for (int i = 0; i < 4; i++) w->data[from + (size_t)i] = (uint8_t)(length >> (24 - 8 * i));
    put32(w, crc);
}

/* Frame i: how long it is shown, then its packed pixels, each part with its number in the sequence. */
static void put_frame(builder *w, const mhla_image *frame, int milliseconds, uint32_t *sequence, const uint8_t *png,
                      size_t size) {
    size_t at = SIGNATURE, from = w->size;
    put32(w, 0), put(w, "fcTL", 4);
    put32(w, (*sequence)++), put32(w, (uint32_t)frame->width), put32(w, (uint32_t)frame->height);
    put32(w, 0), put32(w, 0); /* where it stands */
    put16(w, (unsigned)(milliseconds < 0 ? 0 : milliseconds > 65535 ? 65535 : milliseconds)), put16(w, 1000);
    put(w, "\0\0", 2); /* stays until the next, which replaces it */
    end_chunk(w, from);
    for (chunk c; next_chunk(&c, png, size, &at);) {
        if (!is_type(&c, "IDAT")) continue;
        from = w->size;
        put32(w, 0), put(w, "fdAT", 4), put32(w, (*sequence)++), put(w, c.data, c.size);
        end_chunk(w, from);
    }
}

mhla_status mhla_image_encode_apng(uint8_t **bytes, size_t *size, const mhla_image *frames, const int *milliseconds,
                                   int frame_count, const mhla_image_text *texts, int text_count) {
    *bytes = NULL;
    *size = 0;
    for (int i = 1; i < frame_count; i++)
        if (frames[i].width != frames[0].width || frames[i].height != frames[0].height ||
            frames[i].channels != frames[0].channels)
            return mhla_fail(MHLA_EINVAL, "frame %d of an animation is of another size or kind than the first", i);
    if (frame_count < 1) return mhla_fail(MHLA_EINVAL, "an animation without frames");
    builder w = {0};
    uint8_t *last = NULL, *png = NULL;
    size_t last_size = 0, png_size = 0, at = SIGNATURE, begin = 0;
    uint32_t sequence = 0;
    /* the last frame as a PNG of its own, up to its end; the animation's parts stand before and after its pixels */
    mhla_status status = mhla_image_encode_png(&last, &last_size, &frames[frame_count - 1], texts, text_count);
    if (status != MHLA_OK) return status;
    for (chunk c; next_chunk(&c, last, last_size, &at) && !is_type(&c, "IDAT");) begin = at;
    put(&w, last, begin);
    const size_t from = w.size;
    put32(&w, 0), put(&w, "acTL", 4), put32(&w, (uint32_t)frame_count), put32(&w, 0);
    end_chunk(&w, from);
    put(&w, last + begin, last_size - begin - AROUND);
    for (int i = 0; i < frame_count && status == MHLA_OK; i++) {
        status = mhla_image_encode_png(&png, &png_size, &frames[i], NULL, 0);
        if (status == MHLA_OK) put_frame(&w, &frames[i], milliseconds[i], &sequence, png, png_size);
        free(png);
        png = NULL;
    }
    put(&w, last + last_size - AROUND, AROUND); /* IEND */
    free(last);
    if (status == MHLA_OK && w.failed) status = mhla_fail(MHLA_ENOMEM, "no memory for an animation");
    if (status != MHLA_OK) {
        free(w.data);
        return status;
    }
    *bytes = w.data;
    *size = w.size;
    return MHLA_OK;
}
