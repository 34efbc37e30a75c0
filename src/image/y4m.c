#include "image/y4m.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"

enum { LINE = 1024 }; /* most characters of a header */

/* ---- Headers: words between blanks, up to the end of the line ---- */

typedef struct word {
    const char *text;
    size_t size;
} word;

static int is_word(word w, const char *text) { return w.size == strlen(text) && memcmp(w.text, text, w.size) == 0; }

/* The word at *at of a line of `end` characters; *at moves behind it. Size 0: there is none. */
static word next_word(const char *line, size_t *at, size_t end) {
    while (*at < end && line[*at] == ' ') ++*at;
    const size_t from = *at;
    while (*at < end && line[*at] != ' ') ++*at;
    return (word){line + from, *at - from};
}

/* Characters of the line that begins at `from`, without its end; -1: no line of at most LINE ends there. */
static int64_t line_at(const uint8_t *bytes, size_t size, size_t from) {
    const size_t most = size - from < LINE ? size - from : LINE;
    const uint8_t *end = memchr(bytes + from, '\n', most);
    return end ? end - (bytes + from) : -1;
}

static mhla_status read_side(int *side, word w, const char *name) {
    int64_t value = 0;
    for (size_t i = 1; i < w.size && value <= 1 << 16; i++) {
        if (w.text[i] < '0' || w.text[i] > '9') value = 1 << 20;
        value = 10 * value + (w.text[i] - '0');
    }
    const mhla_quoted quoted = mhla_quote_bytes(w.text + 1, w.size < 40 ? w.size - 1 : 39);
    if (value < 1 || value > 16384)
        return mhla_fail(MHLA_EDATA, "%s: the %s is %s: expected 1 to 16384", name, *w.text == 'W' ? "width" : "height",
                         quoted.text);
    *side = (int)value;
    return MHLA_OK;
}

static mhla_status read_chroma(mhla_y4m *v, word w, const char *name) {
    static const char *const halves[] = {"C420", "C420jpeg", "C420mpeg2", "C420paldv"};
    v->subsampled = v->grey = 0;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) v->subsampled |= is_word(w, halves[i]);
    v->grey = is_word(w, "Cmono");
    if (v->subsampled || v->grey || is_word(w, "C444")) return MHLA_OK;
    const mhla_quoted quoted = mhla_quote_bytes(w.text, w.size < 40 ? w.size : 40);
    return mhla_fail(MHLA_ENOTSUP, "%s: its colours are %s: only 8 bits of C420, C444 and Cmono are read", name,
                     quoted.text);
}

static mhla_status read_header(mhla_y4m *v, const char *line, size_t end, const char *name) {
    size_t at = 0;
    (void)next_word(line, &at, end); /* YUV4MPEG2 */
    for (word w = next_word(line, &at, end); w.size; w = next_word(line, &at, end)) {
        switch (*w.text) {
        case 'W': MHLA_TRY(read_side(&v->width, w, name)); break;
        case 'H': MHLA_TRY(read_side(&v->height, w, name)); break;
        case 'C': MHLA_TRY(read_chroma(v, w, name)); break;
        case 'I':
            if (!is_word(w, "Ip") && !is_word(w, "I?"))
                return mhla_fail(MHLA_ENOTSUP, "%s: its frames are interlaced: only progressive ones are read", name);
            break;
        case 'X':
            if (is_word(w, "XCOLORRANGE=FULL")) v->full = 1;
            break;
        default: break; /* rate, shape of pixels, comments */
        }
    }
    if (v->width == 0 || v->height == 0)
        return mhla_fail(MHLA_EDATA, "%s: its header has no %s", name, v->width ? "height" : "width");
    if ((int64_t)v->width * v->height > MHLA_IMAGE_MAX_PIXELS)
        return mhla_fail(MHLA_EDATA, "%s: frames of %d x %d pixels are too large", name, v->width, v->height);
    return MHLA_OK;
}

/* ---- Frames ---- */

static size_t chroma_side(const mhla_y4m *v, int side) { return v->subsampled ? ((size_t)side + 1) / 2 : (size_t)side; }

static size_t frame_bytes(const mhla_y4m *v) {
    const size_t luma = (size_t)v->width * (size_t)v->height;
    return luma + (v->grey ? 0 : 2 * chroma_side(v, v->width) * chroma_side(v, v->height));
}

static mhla_status add_frame(mhla_y4m *v, int64_t *room, size_t at, const char *name) {
    if (v->frames == *room) {
        *room = 2 * *room + 64;
        size_t *more = realloc(v->at, (size_t)*room * sizeof *more);
        if (more == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its %lld frames", name, (long long)*room);
        v->at = more;
    }
    v->at[v->frames++] = at;
    return MHLA_OK;
}

static mhla_status find_frames(mhla_y4m *v, size_t size, size_t at, const char *name) {
    const size_t each = frame_bytes(v);
    int64_t room = 0;
    while (at < size) {
        const int64_t line = line_at(v->data, size, at);
        if (line < 5 || memcmp(v->data + at, "FRAME", 5) != 0 || (line > 5 && v->data[at + 5] != ' '))
            return mhla_fail(MHLA_EDATA, "%s: byte %zu: no frame begins here, where frame %lld is due", name, at,
                             (long long)v->frames);
        at += (size_t)line + 1;
        if (size - at < each)
            return mhla_fail(MHLA_EDATA, "%s: frame %lld is cut off: it has %zu of %zu bytes from byte %zu on", name,
                             (long long)v->frames, size - at, each, at);
        MHLA_TRY(add_frame(v, &room, at, name));
        at += each;
    }
    return v->frames ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: no frame in it", name);
}

mhla_status mhla_y4m_open(mhla_y4m *v, const void *bytes, size_t size, const char *name) {
    static const char magic[] = "YUV4MPEG2 ";
    *v = (mhla_y4m){.data = bytes, .subsampled = 1}; /* without a C it is 4:2:0 */
    if (size < sizeof magic || memcmp(bytes, magic, sizeof magic - 1) != 0)
        return mhla_fail(MHLA_EDATA, "%s: not a .y4m file: it does not begin with YUV4MPEG2", name);
    const int64_t line = line_at(bytes, size, 0);
    if (line < 0) return mhla_fail(MHLA_EDATA, "%s: its header does not end within %d bytes", name, LINE);
    mhla_status status = read_header(v, bytes, (size_t)line, name);
    if (status == MHLA_OK) status = find_frames(v, size, (size_t)line + 1, name);
    if (status != MHLA_OK) mhla_y4m_close(v);
    return status;
}

void mhla_y4m_close(mhla_y4m *v) {
    free(v->at);
    *v = (mhla_y4m){0};
}

/* ---- Colours: BT.601, in 16 bits of fixed point, so that every machine has the same bytes ---- */

static uint8_t to_byte(int x) {
    const int rounded = (x + 32768) >> 16;
    return (uint8_t)(rounded < 0 ? 0 : rounded > 255 ? 255 : rounded);
}

void mhla_y4m_frame(const mhla_y4m *v, int64_t i, uint8_t *rgb) {
    static const int limited[] = {76309, 104597, 25675, 53279, 132201}, full[] = {65536, 91881, 22554, 46802, 116130};
    const int *k = v->full ? full : limited, black = v->full ? 0 : 16;
    const size_t W = (size_t)v->width, H = (size_t)v->height, CW = chroma_side(v, v->width);
    const uint8_t *Y = v->data + v->at[i], *U = Y + W * H, *V = U + CW * chroma_side(v, v->height);
    for (size_t y = 0; y < H; y++)
        for (size_t x = 0; x < W; x++) {
            const size_t c = (v->subsampled ? y / 2 : y) * CW + (v->subsampled ? x / 2 : x);
            const int luma = k[0] * (Y[y * W + x] - black), u = v->grey ? 0 : U[c] - 128, w = v->grey ? 0 : V[c] - 128;
            *rgb++ = to_byte(luma + k[1] * w);
            *rgb++ = to_byte(luma - k[2] * u - k[3] * w);
            *rgb++ = to_byte(luma + k[4] * u);
        }
}
