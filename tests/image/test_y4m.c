/* .y4m: pixels against BT.601 in double, chroma of odd sides, what is refused and where; every cut and thousands of changed files are
 * refused or read, never read beyond their end (run with a sanitizer to see it). */
#include "support.h"

#include <math.h>

#include "core/status.h"
#include "image/y4m.h"

enum { W = 5, H = 3, CW = 3, CH = 2, LUMA = W * H, MOST = 4096 };

/* A file of `frames` frames of random planes of `each` bytes; its size. */
static size_t make(uint8_t *bytes, const char *header, const char *frame, int frames, int each, uint64_t seed) {
    rng r = {seed};
    size_t n = 0;
    n += (size_t)sprintf((char *)bytes, "YUV4MPEG2 %s\n", header);
    for (int i = 0; i < frames; i++) {
        n += (size_t)sprintf((char *)bytes + n, "FRAME%s\n", frame);
        for (int j = 0; j < each; j++) bytes[n++] = (uint8_t)rng_below(&r, 256);
    }
    return n;
}

static double level(double x) { return x < 0.0 ? 0.0 : x > 255.0 ? 255.0 : x; }

/* One of the three by the standard: luma 16 .. 235 and chroma 16 .. 240, or all levels. */
static void check_pixel(const uint8_t rgb[3], int y, int cb, int cr, int full) {
    const double l = full ? y : (y - 16) * 255.0 / 219.0, k = full ? 1.0 : 255.0 / 224.0;
    const double u = (cb - 128) * k, v = (cr - 128) * k;
    const double r = l + 1.402 * v, b = l + 1.772 * u, g = (l - 0.299 * r - 0.114 * b) / 0.587;
    const double all[] = {r, g, b};
    for (int c = 0; c < 3; c++) assert_true(fabs((double)rgb[c] - level(all[c])) <= 0.51);
}

static void pixels(void **state) {
    (void)state;
    static const struct {
        const char *header, *frame;
        int each, subsampled, grey, full;
    } cases[] = {{"W5 H3 F25:1 Ip A1:1 C420jpeg XYSCSS=420JPEG", "", LUMA + 2 * CW * CH, 1, 0, 0},
                 {"W5 H3", " Ip", LUMA + 2 * CW * CH, 1, 0, 0},
                 {"H3 W5 C420mpeg2 XCOLORRANGE=LIMITED", "", LUMA + 2 * CW * CH, 1, 0, 0},
                 {"W5 H3 I? C444 XCOLORRANGE=FULL", "", 3 * LUMA, 0, 0, 1},
                 {"W5  H3 C444 ", " Xa b", 3 * LUMA, 0, 0, 0},
                 {"Cmono W5 H3", "", LUMA, 0, 1, 0}};
    uint8_t bytes[MOST], rgb[3 * LUMA];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const size_t size = make(bytes, cases[k].header, cases[k].frame, 3, cases[k].each, k);
        mhla_y4m v;
        ASSERT_OK(mhla_y4m_open(&v, bytes, size, "clip"));
        assert_true(v.width == W && v.height == H && v.frames == 3);
        for (int64_t i = 0; i < 3; i++) {
            const uint8_t *planes =
                bytes + size - (size_t)((3 - i) * cases[k].each) - (size_t)(2 - i) * (strlen(cases[k].frame) + 6);
            mhla_y4m_frame(&v, i, rgb);
            for (int y = 0; y < H; y++)
                for (int x = 0; x < W; x++) {
                    const int half = cases[k].subsampled, cw = half ? CW : W, ch = half ? CH : H;
                    const int at = (half ? y / 2 : y) * cw + (half ? x / 2 : x);
                    check_pixel(rgb + 3 * (y * W + x), planes[y * W + x], cases[k].grey ? 128 : planes[LUMA + at],
                                cases[k].grey ? 128 : planes[LUMA + cw * ch + at], cases[k].full);
                }
        }
        mhla_y4m_close(&v);
        mhla_y4m_close(&v);
    }
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        mhla_status status;
        const char *message;
    } cases[] = {
        {"RIFF....AVI LIST", MHLA_EDATA, "clip: not a .y4m file"},
        {"YUV4MPEG2 W5 H3", MHLA_EDATA, "clip: its header does not end within 1024 bytes"},
        {"YUV4MPEG2 W5 C420\nFRAME\n", MHLA_EDATA, "clip: its header has no height"},
        {"YUV4MPEG2 W0 H3\n", MHLA_EDATA, "clip: the width is"},
        {"YUV4MPEG2 W5 H99999999999999999999\n", MHLA_EDATA, "clip: the height is"},
        {"YUV4MPEG2 W5 H-3\n", MHLA_EDATA, "clip: the height is"},
        {"YUV4MPEG2 W H3\n", MHLA_EDATA, "clip: the width is"},
        {"YUV4MPEG2 W16384 H16384\n", MHLA_EDATA, "are too large"},
        {"YUV4MPEG2 W5 H3 C420p10\n", MHLA_ENOTSUP, "only 8 bits of C420, C444 and Cmono"},
        {"YUV4MPEG2 W5 H3 C422\n", MHLA_ENOTSUP, "its colours are"},
        {"YUV4MPEG2 W5 H3 It\n", MHLA_ENOTSUP, "interlaced"},
        {"YUV4MPEG2 W5 H3\n", MHLA_EDATA, "clip: no frame in it"},
        {"YUV4MPEG2 W5 H3\nFRAMES\n", MHLA_EDATA, "clip: byte 16: no frame begins here, where frame 0 is due"},
        {"YUV4MPEG2 W5 H3\nFRAME\n0123", MHLA_EDATA, "clip: frame 0 is cut off: it has 4 of 27 bytes from byte 22"}};
    mhla_y4m v;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mhla_y4m_open(&v, cases[i].text, strlen(cases[i].text), "clip"), cases[i].status);
        if (strstr(mhla_message(), cases[i].message) == NULL) fail_msg("%s: %s", cases[i].text, mhla_message());
    }
}

/* Bytes in a block of their own size, so that a sanitizer sees the first one that is too many. */
static int try_bytes(const uint8_t *bytes, size_t size) {
    uint8_t *own = new_bytes(size ? size : 1), rgb[3 * 64 * 64];
    mhla_y4m v;
    memcpy(own, bytes, size);
    const int read = mhla_y4m_open(&v, own, size, "clip") == MHLA_OK;
    for (int64_t i = 0; read && i < v.frames && v.width <= 64 && v.height <= 64; i++) mhla_y4m_frame(&v, i, rgb);
    if (read) mhla_y4m_close(&v);
    free(own);
    return read;
}

static void hostile(void **state) {
    (void)state;
    uint8_t whole[MOST], bytes[MOST];
    const size_t each = LUMA + 2 * CW * CH, size = make(whole, "W5 H3 C420jpeg", "", 4, (int)each, 7);
    const uint32_t all = size > 40 ? (uint32_t)size : 40;
    int read = 0;
    for (size_t n = 0; n < size; n++) read += try_bytes(whole, n);
    assert_int_equal(read, 3); /* cut between two frames, it is a shorter clip */
    rng r = {11};
    for (int i = 0; i < 20000; i++) {
        memcpy(bytes, whole, size);
        for (int k = 1 + (int)rng_below(&r, 4); k > 0; k--)
            bytes[rng_below(&r, k % 2 ? 40 : all)] = (uint8_t)rng_below(&r, 256);
        read += try_bytes(bytes, size);
    }
    assert_true(read > 100 && read < 20000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pixels), cmocka_unit_test(refused), cmocka_unit_test(hostile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
