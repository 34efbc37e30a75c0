/* WebP: what is written can be read, its text too; files that are cut off or changed are refused or read, never overrun. */
#include "image/webp.h"
#include "support.h"

enum { W = 40, H = 24, FRAMES = 3 };
static const char words[] = "{\"made_by\": \"mhla sample\"}";

static void fill(mhla_image *image, int channels, int frame) {
    ASSERT_OK(mhla_image_reserve(image, W, H, channels));
    for (int i = 0; i < W * H * channels; i++) {
        const int x = i / channels % W, y = i / channels / W;
        image->data[i] = (uint8_t)(40 * frame + 2 * x + 2 * y);
    }
}

/* A file of `frames` frames; skips the test where the library is not installed. */
static uint8_t *made(size_t *size, int channels, int frames) {
    static const int milliseconds[] = {62, 63, 100};
    mhla_image images[FRAMES] = {{0}};
    uint8_t *bytes = NULL;
    for (int i = 0; i < frames; i++) fill(&images[i], channels, i);
    const mhla_status status = mhla_image_encode_webp(&bytes, size, images, milliseconds, frames, 90, words);
    for (int i = 0; i < frames; i++) mhla_image_free(&images[i]);
    if (status == MHLA_ENOTSUP) {
        print_message("[   SKIP   ] %s\n", mhla_message());
        skip();
    }
    ASSERT_OK(status);
    return bytes;
}

static void there_and_back(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        const int channels = kind % 2 ? 3 : 1, frames = kind / 2 ? FRAMES : 1;
        size_t size;
        char *text;
        mhla_image image = {0}, last = {0};
        uint8_t *bytes = made(&size, channels, frames);
        assert_true(mhla_image_is_webp(bytes, size));
        ASSERT_OK(mhla_image_decode_webp(&image, &text, bytes, size, "file"));
        assert_string_equal(text, words);
        fill(&last, channels, frames - 1);
        assert_true(image.width == W && image.height == H && image.channels == 3);
        double sum = 0.0;
        for (int i = 0; i < 3 * W * H; i++) {
            const double off = (double)image.data[i] - (double)last.data[channels == 3 ? i : i / 3];
            sum += off * off;
        }
        assert_true(sum / (3 * W * H) < 30.0); /* it is lossy */
        free(text);
        free(bytes);
        mhla_image_free(&image);
        mhla_image_free(&last);
    }
}

/* The chunks of an animation, as the format has them. */
static void chunks(void **state) {
    (void)state;
    static const int milliseconds[] = {62, 63, 100};
    size_t size;
    int found = 0;
    uint8_t *bytes = made(&size, 3, FRAMES);
    assert_int_equal(bytes[4] | bytes[5] << 8 | bytes[6] << 16, (int)size - 8);
    assert_memory_equal(bytes + 8, "WEBPVP8X\x0a\0\0\0\2\0\0\0\x27\0\0\x17\0\0ANIM\6\0\0\0", 30);
    for (size_t at = 12; at < size;) {
        const size_t n = (size_t)bytes[at + 4] | (size_t)bytes[at + 5] << 8 | (size_t)bytes[at + 6] << 16;
        if (memcmp(bytes + at, "ANMF", 4) == 0) {
            assert_int_equal(bytes[at + 8 + 6], W - 1);
            assert_int_equal(bytes[at + 8 + 9], H - 1);
            assert_int_equal(bytes[at + 8 + 12], milliseconds[found++]);
        }
        at += 8 + n + n % 2;
        assert_true(at <= size);
    }
    assert_int_equal(found, FRAMES);
    free(bytes);
}

static void broken(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = made(&size, 3, FRAMES), *copy = new_bytes(size);
    mhla_image image = {0};
    char *text = NULL;
    ASSERT_FAILS(mhla_image_decode_webp(&image, &text, bytes, 29, "file"), MHLA_EDATA, "file: the chunk at byte 12");
    ASSERT_FAILS(mhla_image_decode_webp(&image, &text, "RIFF\4\0\0\0WEBP", 12, "file"), MHLA_EDATA, "without an image");
    for (size_t n = 12; n < size; n++) { /* exactly so much memory, for the sanitizers */
        uint8_t *part = new_bytes(n);
        memcpy(part, bytes, n);
        (void)mhla_image_decode_webp(&image, &text, part, n, "file");
        free(text);
        free(part);
    }
    for (size_t i = 12; i < size; i++) {
        memcpy(copy, bytes, size);
        copy[i] ^= (uint8_t)(1 << i % 8);
        (void)mhla_image_decode_webp(&image, &text, copy, size, "file");
        free(text);
    }
    mhla_image_free(&image);
    free(bytes);
    free(copy);
}

static void refused(void **state) {
    (void)state;
    mhla_image images[2] = {{0}};
    const int milliseconds[] = {1, 1};
    uint8_t *bytes;
    size_t size;
    free(made(&size, 3, 1));
    fill(&images[0], 3, 0);
    ASSERT_OK(mhla_image_reserve(&images[1], W, H + 1, 3));
    ASSERT_FAILS(mhla_image_encode_webp(&bytes, &size, images, milliseconds, 2, 90, NULL), MHLA_EINVAL,
                 "frame 1 is 40 x 25");
    mhla_image_free(&images[0]);
    mhla_image_free(&images[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back), cmocka_unit_test(chunks),
                                       cmocka_unit_test(broken), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
