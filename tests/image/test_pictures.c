/* Pictures with a text, animations, and the text that says how a picture was made: written, read back, torn and lied about. */
#include <mhla/diffusion.h>
#include <zlib.h>

#include "folders.h"
#include "image/image.h"
#include "support.h"

static uint32_t word(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

/* ---- Texts ---- */

/* A chunk of its own in front of the pixels (behind IHDR) of a PNG; free() it. */
static uint8_t *with_chunk(size_t *size, const uint8_t *png, size_t n, const char *type, const void *data,
                           size_t length) {
    const size_t at = 33;
    uint8_t *out = new_bytes(n + length + 12);
    memcpy(out, png, at);
    for (int i = 0; i < 4; i++) out[at + (size_t)i] = (uint8_t)(length >> (24 - 8 * i));
    memcpy(out + at + 4, type, 4);
    memcpy(out + at + 8, data, length);
    const uint32_t crc = (uint32_t)crc32(0, out + at + 4, (uInt)length + 4);
    for (int i = 0; i < 4; i++) out[at + 8 + length + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    memcpy(out + at + 12 + length, png + at, n - at);
    *size = n + length + 12;
    return out;
}

static void finds(const char *type, const void *data, size_t length, const char *wanted) {
    uint8_t pixels[1 + MHLA_IMAGE_SLACK] = {7}, *png, *more;
    const mhla_image one = {1, 1, 1, pixels, 1};
    size_t n, size;
    char *text;
    ASSERT_OK(mhla_image_encode_png(&png, &n, &one, NULL, 0));
    more = with_chunk(&size, png, n, type, data, length);
    mhla_image back = {0};
    if (wanted) {
        ASSERT_OK(mhla_image_find_text(&text, more, size, "key", "t.png"));
        assert_non_null(text);
        assert_string_equal(text, wanted);
        ASSERT_OK(mhla_image_decode(&back, more, size, 0, "t.png"));
        free(text);
    } else {
        ASSERT_FAILS(mhla_image_find_text(&text, more, size, "key", "t.png"), MHLA_EDATA, "t.png: byte 33: broken PNG");
        assert_null(text);
    }
    ASSERT_OK(mhla_image_find_text(&text, more, size, "ke", "t.png"));
    assert_null(text);
    mhla_image_free(&back);
    free(png), free(more);
}

static void texts(void **state) {
    (void)state;
    finds("tEXt", "key\0plain", 9, "plain");
    finds("tEXt", "key\0gr\xfc\xdf", 8, "gr\xc3\xbc\xc3\x9f"); /* Latin-1 */
    finds("tEXt", "key\0", 4, "");
    finds("iTXt", "key\0\0\0en\0Key\0gr\xc3\xbc\xc3\x9f", 19, "gr\xc3\xbc\xc3\x9f");
    uint8_t packed[64] = "key\0\1\0\0\0"; /* language and key in it are empty */
    uLongf length = sizeof packed - 8;
    assert_int_equal(compress(packed + 8, &length, (const Bytef *)"packed", 6), Z_OK);
    finds("iTXt", packed, 8 + length, "packed");
    finds("iTXt", packed, 8 + length - 3, NULL); /* torn inside */
    memmove(packed + 5, packed + 8, length);
    packed[4] = 0;
    finds("zTXt", packed, 5 + length, "packed");
    packed[4] = 1;
    finds("zTXt", packed, 5 + length, NULL); /* no such packing */
    finds("zTXt", "key", 4, NULL);
    finds("iTXt", "key\0\0", 5, NULL);
    finds("iTXt", "key\0\0\0no end", 12, NULL);
    finds("iTXt", "key\0\2\0\0\0x", 9, NULL);
}

/* Of a file cut anywhere, or with any bit turned, a text is found, is not, or is refused; nothing is read outside. */
static void torn(void **state) {
    (void)state;
    uint8_t pixels[12 + MHLA_IMAGE_SLACK] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, *png;
    const mhla_image small = {2, 2, 3, pixels, 12};
    const mhla_image_text said[] = {{"Comment", "none of ours"}, {"mhla", "{\"made_by\": \"gr\xc3\xbc\xc3\x9f\"}"}};
    size_t n;
    char *text;
    ASSERT_OK(mhla_image_encode_png(&png, &n, &small, said, 2));
    ASSERT_OK(mhla_image_find_text(&text, png, n, "mhla", "t.png"));
    assert_string_equal(text, said[1].text);
    free(text);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *part = new_bytes(cut);
        memcpy(part, png, cut);
        text = NULL;
        const mhla_status status = mhla_image_find_text(&text, part, cut, "mhla", "t.png");
        assert_true(status == MHLA_OK || status == MHLA_EDATA);
        if (text) assert_string_equal(text, said[1].text);
        free(text), free(part);
    }
    for (size_t bit = 0; bit < 8 * n; bit++) {
        png[bit / 8] ^= (uint8_t)(1u << bit % 8);
        text = NULL;
        const mhla_status status = mhla_image_find_text(&text, png, n, "mhla", "t.png");
        assert_true(status == MHLA_OK || status == MHLA_EDATA);
        if (text) assert_string_equal(text, said[1].text);
        free(text);
        png[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(png);
}

/* A small text that would unpack to gigabytes. */
static void bomb(void **state) {
    (void)state;
    enum { N = 64 << 20 };
    Bytef *zeros = calloc(N, 1);
    uLongf length = compressBound(N);
    uint8_t *chunk = new_bytes(length + 8);
    memcpy(chunk, "key\0\1\0\0\0", 8);
    memset(zeros, 'x', N);
    assert_int_equal(compress(chunk + 8, &length, zeros, N), Z_OK);
    assert_true(length < 100000);
    finds("iTXt", "key\0\0\0\0\0x", 9, "x");
    uint8_t pixels[1 + MHLA_IMAGE_SLACK] = {7}, *png;
    const mhla_image one = {1, 1, 1, pixels, 1};
    size_t n, size;
    char *text;
    ASSERT_OK(mhla_image_encode_png(&png, &n, &one, NULL, 0));
    uint8_t *more = with_chunk(&size, png, n, "iTXt", chunk, 8 + length);
    ASSERT_FAILS(mhla_image_find_text(&text, more, size, "key", "t.png"), MHLA_EDATA, "makes no sense");
    free(zeros), free(chunk), free(png), free(more);
}

/* ---- Animations ---- */

static void animation(void **state) {
    (void)state;
    enum { F = 3, W = 5, H = 4 };
    uint8_t pixels[F][W * H * 3 + MHLA_IMAGE_SLACK], *bytes;
    mhla_image frames[F];
    rng r = {3};
    for (int f = 0; f < F; f++) {
        for (int i = 0; i < W * H * 3; i++) pixels[f][i] = (uint8_t)rng_next(&r);
        frames[f] = (mhla_image){W, H, 3, pixels[f], W * H * 3};
    }
    const int milliseconds[F] = {40, 50, 70000};
    const mhla_image_text said = {"mhla", "moving"};
    size_t n;
    char *text;
    ASSERT_OK(mhla_image_encode_apng(&bytes, &n, frames, milliseconds, F, &said, 1));
    ASSERT_OK(mhla_image_find_text(&text, bytes, n, "mhla", "a.png"));
    assert_string_equal(text, "moving");
    free(text);

    /* who knows no animation sees the last frame */
    mhla_image back = {0};
    ASSERT_OK(mhla_image_decode(&back, bytes, n, 0, "a.png"));
    assert_memory_equal(back.data, pixels[F - 1], W * H * 3);

    /* by the specification: acTL before IDAT; fcTL and fdAT numbered through; each frame unpacks to its own pixels */
    uint32_t sequence = 0;
    int frame = -1, seen_pixels = 0, seen_control = 0, ended = 0;
    for (size_t at = 8; at < n;) {
        const uint32_t length = word(bytes + at);
        const uint8_t *type = bytes + at + 4, *data = bytes + at + 8;
        assert_int_equal(word(data + length), crc32(0, type, length + 4));
        if (memcmp(type, "acTL", 4) == 0) {
            assert_false(seen_pixels);
            assert_int_equal(word(data), F);
            assert_int_equal(word(data + 4), 0);
            seen_control = 1;
        } else if (memcmp(type, "IDAT", 4) == 0) {
            assert_true(seen_control && frame < 0);
            seen_pixels = 1;
        } else if (memcmp(type, "fcTL", 4) == 0) {
            assert_true(seen_pixels);
            assert_int_equal(length, 26);
            assert_int_equal(word(data), sequence++);
            assert_true(word(data + 4) == W && word(data + 8) == H && word(data + 12) == 0 && word(data + 16) == 0);
            frame++;
            const int wanted = milliseconds[frame] > 65535 ? 65535 : milliseconds[frame];
            assert_int_equal(data[20] << 8 | data[21], wanted);
            assert_int_equal(data[22] << 8 | data[23], 1000);
        } else if (memcmp(type, "fdAT", 4) == 0) {
            assert_int_equal(word(data), sequence++);
            /* the same pixels as a still picture: its IDAT replaced by what is here */
            uint8_t *still;
            size_t m;
            ASSERT_OK(mhla_image_encode_png(&still, &m, &frames[frame], NULL, 0));
            assert_int_equal(word(still + 33), length - 4);
            assert_memory_equal(still + 41, data + 4, length - 4);
            free(still);
        } else if (memcmp(type, "IEND", 4) == 0) {
            ended = 1;
        }
        at += 12 + length;
    }
    assert_true(ended);
    assert_int_equal(frame, F - 1);
    free(bytes);
    frames[1].width = 4;
    ASSERT_FAILS(mhla_image_encode_apng(&bytes, &n, frames, milliseconds, F, NULL, 0), MHLA_EINVAL, "frame 1");
    ASSERT_FAILS(mhla_image_encode_apng(&bytes, &n, frames, milliseconds, 0, NULL, 0), MHLA_EINVAL, "without frames");
    mhla_image_free(&back);
}

/* ---- Files ---- */

static void files(void **state) {
    (void)state;
    char folder[512], path[600];
    new_folder(folder);
    snprintf(path, sizeof path, "%s/p.png", folder);
    /* 2 x 1 pixels and 1 x 2 of them: grey stays grey */
    const float values[4] = {-1.0f, 1.0f, 7.0f, 0.0f};
    mhla_picture p = {.size = sizeof p}, back = {.size = sizeof back};
    ASSERT_OK(mhla_picture_tile(&p, values, 2, 1, 1, 2, 5));
    assert_true(p.width == 6 && p.height == 1 && p.channels == 1);
    const uint8_t wanted[6] = {0, 255, 255, 255, 255, 128};
    assert_memory_equal(p.pixels, wanted, 6);
    p.text = strdup("{\"a\": 1}");
    ASSERT_OK(mhla_picture_write(path, &p, 1, NULL));
    ASSERT_OK(mhla_picture_read(&back, path));
    assert_true(back.width == 6 && back.height == 1 && back.channels == 1);
    assert_memory_equal(back.pixels, wanted, 6);
    assert_string_equal(back.text, "{\"a\": 1}");
    const mhla_picture moving[2] = {back, p};
    ASSERT_OK(mhla_picture_write(path, moving, 2, (const double[]){0.1, 2.0}));
    mhla_picture again = {.size = sizeof again};
    ASSERT_OK(mhla_picture_read(&again, path));
    assert_memory_equal(again.pixels, wanted, 6);
    ASSERT_FAILS(mhla_picture_tile(&p, values, 1, 4, 1, 1, 1), MHLA_EINVAL, "4 channels");
    ASSERT_FAILS(mhla_picture_tile(&p, values, 0, 1, 1, 1, 1), MHLA_EINVAL, "0 images");
    ASSERT_FAILS(mhla_picture_write(path, &p, 0, NULL), MHLA_EINVAL, "0 frames");
    ASSERT_FAILS(mhla_picture_write(path, NULL, 1, NULL), MHLA_EINVAL, "frames is NULL");
    ASSERT_FAILS(mhla_picture_write(path, &(mhla_picture){.size = sizeof p}, 1, NULL), MHLA_EINVAL, "pixels is NULL");
    ASSERT_FAILS(mhla_picture_write("/nowhere/at/all.png", &p, 1, NULL), MHLA_EIO, "/nowhere/at/all.png");
    mhla_picture_free(&p);
    mhla_picture_free(&back);
    mhla_picture_free(&again);
    mhla_picture_free(&again);
    remove_folder(folder);
}

/* ---- How a picture was made ---- */

static void records(void **state) {
    (void)state;
    int32_t classes[3] = {3, 0, 10};
    uint64_t seeds[3] = {0, 7, INT64_MAX};
    char model[] = "runs/a \"b\" \xc3\xbc";
    mhla_sample_record r = {.size = sizeof r,
                            .model = model,
                            .images = 3,
                            .classes = classes,
                            .seeds = seeds,
                            .method = "dpm++",
                            .steps = 25,
                            .clip = 1,
                            .eta = 0.1,
                            .shift = 1.0,
                            .guidance = 4.3,
                            .guided_channels = 3,
                            .height = 28,
                            .width = 20,
                            .columns = 2,
                            .animated = 9,
                            .version = "0.4.0",
                            .isa = "avx2",
                            .weights = "abc",
                            .choice = "ema"};
    mhla_sample_record b = {.size = sizeof b};
    char *text;
    ASSERT_OK(mhla_sample_record_write(&text, &r));
    ASSERT_OK(mhla_sample_record_read(&b, text, "x.png"));
    assert_string_equal(b.model, model);
    assert_memory_equal(b.classes, classes, sizeof classes);
    assert_memory_equal(b.seeds, seeds, sizeof seeds);
    assert_true(b.images == 3 && b.steps == 25 && b.clip == 1 && b.eta == r.eta && b.guidance == r.guidance);
    assert_true(b.guided_channels == 3 && b.height == 28 && b.width == 20 && b.columns == 2 && b.animated == 9);
    assert_string_equal(b.method, "dpm++");
    assert_string_equal(b.weights, "abc");
    assert_string_equal(b.choice, "ema");
    mhla_sample_record_free(&b);
    mhla_sample_record_free(&b);

    /* every text that has lost or changed something is refused, or is another record; never more */
    const size_t n = strlen(text);
    char *copy = new_bytes(n + 1);
    for (size_t i = 0; i < n; i++)
        for (int how = 0; how < 3; how++) {
            memcpy(copy, text, n + 1);
            if (how == 0) copy[i] = '\0';
            if (how == 1) copy[i] = '"';
            if (how == 2) copy[i] = '9';
            const mhla_status status = mhla_sample_record_read(&b, copy, "x.png");
            assert_true(status == MHLA_OK || status == MHLA_EDATA);
            if (status != MHLA_OK) assert_non_null(strstr(mhla_message(), "x.png"));
            mhla_sample_record_free(&b);
        }
    free(copy), free(text);
    ASSERT_FAILS(mhla_sample_record_read(&b, NULL, "x.png"), MHLA_EDATA, "x.png: its text is not one of mhla sample");
    ASSERT_FAILS(mhla_sample_record_read(&b, "a photo", "x.png"), MHLA_EDATA, "not one of mhla sample");
    ASSERT_FAILS(mhla_sample_record_read(&b, "{\"made_by\": \"me\"}", "x.png"), MHLA_EDATA, "not one of mhla sample");
    ASSERT_FAILS(mhla_sample_record_read(&b, "{\"made_by\": \"mhla sample\"}", "x.png"), MHLA_EDATA,
                 "lacks \"weights\"");
    /* what could write to the terminal that it is shown on */
    for (int i = 0; i < 3; i++) {
        char *const at[] = {model, r.weights, r.isa}, was = *at[i];
        static const char *const messages[] = {"\"model\" has a control", "\"weights\" has a control",
                                               "\"isa\" has a control"};
        *at[i] = '\033';
        ASSERT_OK(mhla_sample_record_write(&text, &r));
        ASSERT_FAILS(mhla_sample_record_read(&b, text, "x.png"), MHLA_EDATA, messages[i]);
        *at[i] = was;
        free(text);
    }
    seeds[1] = (uint64_t)INT64_MAX + 1;
    ASSERT_FAILS(mhla_sample_record_write(&text, &r), MHLA_EINVAL, "2^63");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),     cmocka_unit_test(torn),  cmocka_unit_test(bomb),
        cmocka_unit_test(animation), cmocka_unit_test(files), cmocka_unit_test(records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
