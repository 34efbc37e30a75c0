/* Resizing against Pillow's results (hashes; no byte may differ), crops against torchvision's rules. */
#include "image/resize.h"
#include "pictures.h"

static const struct {
    int width, height, channels, to_width, to_height;
    uint64_t hash[4]; /* by mhla_filter */
} cases[] = {
    {50, 40, 3, 23, 31, {0x9c68e7ec6cfb8b19u, 0x748eec3be6f7751cu, 0x6ad6edbcaa0b248cu, 0xcd861fc697b2ffeau}},
    {50, 40, 3, 77, 90, {0x07471f86b4146fbbu, 0xd8453c6a07d6657fu, 0xa0503287c6d78f10u, 0xe07cd195a7c59874u}},
    {17, 90, 3, 33, 8, {0xe2f25796332fd8c2u, 0xe34ca2d7991c03bcu, 0x709cc6afaa650e35u, 0xb2be63384ddf28e1u}},
    {40, 40, 1, 12, 13, {0x5aecbb07aa9f0e12u, 0xbe33f1583087a2ebu, 0x04527dc9e24909f3u, 0xa76bfc67f10d9396u}},
    {5, 7, 3, 1, 1, {0x2bcf00192bfc3ab3u, 0x333916192fd4e9cdu, 0x46cec6193b916ff7u, 0x4524fb193a26d70bu}},
    {1, 1, 3, 9, 4, {0x167bfc0045c0c1b5u, 0x167bfc0045c0c1b5u, 0x167bfc0045c0c1b5u, 0x167bfc0045c0c1b5u}},
    {64, 48, 1, 64, 20, {0x2c87f4a6f3dd49bau, 0xdcb3ce3807e3858eu, 0x5fb4d002cc7947b2u, 0x50caad133e1cab7au}},
    {64, 48, 3, 20, 48, {0x778166f81bf72eceu, 0xa4877ba1a2ff31dcu, 0x24a3f3f26639c2d9u, 0xcbfc93dd977715fdu}},
    {31, 200, 3, 30, 30, {0xc0363e9292630b1bu, 0x31fbc106a8699a8fu, 0x28bddb8d3e7447dbu, 0x2a2704e679a031f5u}},
    {200, 31, 1, 30, 30, {0xc25b607af0e082e3u, 0x85aeb8554309fa25u, 0xc4bddc62da9962d8u, 0xf9ccf5799fe7ab45u}},
    {16, 16, 3, 224, 224, {0x21f22a12acaca43cu, 0x22db33c2e98c97e8u, 0xa327599e53f366e1u, 0x241a474f7bcb69d3u}},
};

static void test_pillow(void **state) {
    (void)state;
    mhla_image out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_image in = picture(cases[i].width, cases[i].height, cases[i].channels);
        for (int f = 0; f < 4; f++) {
            ASSERT_OK(mhla_image_resize(&out, &in, cases[i].to_width, cases[i].to_height, (mhla_filter)f, NULL));
            if (image_hash(&out) != cases[i].hash[f]) fail_msg("case %zu, filter %d: other pixels", i, f);
        }
        mhla_image_free(&in);
    }
    mhla_image in = picture(60, 50, 3);
    ASSERT_OK(mhla_image_resize(&out, &in, 19, 23, MHLA_FILTER_BICUBIC, &(mhla_rect){7, 5, 30, 41}));
    assert_true(image_hash(&out) == 0x9fcb26ff487fdcd8u);
    mhla_image_free(&in);
    mhla_image_free(&out);
}

/* A part is as if it had been cropped first: nothing around it is seen. */
static void test_part(void **state) {
    (void)state;
    mhla_image in = picture(60, 50, 3), cut = {0}, a = {0}, b = {0};
    const mhla_rect part = {7, 5, 30, 41};
    ASSERT_OK(mhla_image_crop(&cut, &in, part));
    for (int f = 0; f < 4; f++) {
        ASSERT_OK(mhla_image_resize(&a, &in, 19, 23, (mhla_filter)f, &part));
        ASSERT_OK(mhla_image_resize(&b, &cut, 19, 23, (mhla_filter)f, NULL));
        assert_memory_equal(a.data, b.data, 19 * 23 * 3);
    }
    static const mhla_rect outside[] = {{-1, 0, 5, 5}, {0, 0, 61, 5}, {0, 46, 5, 5}, {0, 0, 0, 5}, {60, 0, 1, 1}};
    for (size_t i = 0; i < 5; i++) {
        ASSERT_FAILS(mhla_image_resize(&a, &in, 5, 5, MHLA_FILTER_BOX, &outside[i]), MHLA_EINVAL, "not inside");
        ASSERT_FAILS(mhla_image_crop(&a, &in, outside[i]), MHLA_EINVAL, "not inside");
    }
    ASSERT_FAILS(mhla_image_resize(&a, &in, 0, 5, MHLA_FILTER_BOX, NULL), MHLA_EINVAL, "resizing to 0 x 5");
    mhla_image_free(&in);
    mhla_image_free(&cut);
    mhla_image_free(&a);
    mhla_image_free(&b);
}

static void test_eval_crop(void **state) {
    (void)state;
    static const struct {
        int width, height, to_width, to_height;
        double crop_pct;
        uint64_t hash;
    } rows[] = {
        {100, 70, 32, 32, 0.875, 0x20cb740f7b837589u}, {70, 100, 32, 32, 0.9, 0x7e2accda1aa4c970u},
        {64, 64, 64, 64, 1.0, 0x19bd831bd2ebd627u},    {41, 40, 40, 40, 1.0, 0x244fec7dd9e7ba3du},
        {33, 90, 16, 16, 0.95, 0x2e1a89edda9696f5u},   {100, 70, 48, 32, 0.875, 0x168883c9da6de51u},
        {100, 70, 20, 32, 0.9, 0x1689fee1850e305du},   {70, 100, 33, 17, 1.0, 0x2247db53fa9a1565u},
        {48, 32, 48, 32, 1.0, 0xb0c0542042524433u},    {64, 64, 40, 60, 0.95, 0x4d6bce46d77de271u},
    };
    mhla_image out = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mhla_image in = picture(rows[i].width, rows[i].height, 3);
        ASSERT_OK(mhla_image_eval_crop(&out, &in, rows[i].to_width, rows[i].to_height, rows[i].crop_pct,
                                       MHLA_FILTER_BICUBIC));
        if (image_hash(&out) != rows[i].hash) fail_msg("crop %zu: other pixels", i);
        mhla_image_free(&in);
    }
    mhla_image in = picture(3, 3, 3);
    ASSERT_FAILS(mhla_image_eval_crop(&out, &in, 32, 32, 1.5, MHLA_FILTER_BICUBIC), MHLA_EINVAL, "crop_pct 1.5");
    ASSERT_FAILS(mhla_image_eval_crop(&out, &in, 8, 0, 0.9, MHLA_FILTER_BICUBIC), MHLA_EINVAL, "a crop of 8 x 0");
    mhla_image thin = picture(1, 70000, 1);
    ASSERT_FAILS(mhla_image_eval_crop(&out, &thin, 16384, 16384, 1.0, MHLA_FILTER_BICUBIC), MHLA_EDATA, "too thin");
    mhla_image_free(&thin);
    mhla_image_free(&in);
    mhla_image_free(&out);
}

static void test_random_crop(void **state) {
    (void)state;
    const double scale[2] = {0.08, 1.0}, ratio[2] = {3.0 / 4.0, 4.0 / 3.0};
    double area = 0.0;
    int wider = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        mhla_rng numbers = mhla_rng_make(1, 0, i, 7), again = numbers;
        const mhla_rect r = mhla_random_crop(&numbers, 400, 300, scale, ratio),
                        s = mhla_random_crop(&again, 400, 300, scale, ratio);
        assert_memory_equal(&r, &s, sizeof r);
        assert_true(r.x >= 0 && r.y >= 0 && r.width > 0 && r.x + r.width <= 400 && r.y + r.height <= 300);
        const double aspect = (double)r.width / r.height, part = (double)r.width * r.height / 120000.0;
        assert_true(aspect > 0.74 && aspect < 1.36 && part > 0.079 && part <= 1.0);
        area += part;
        wider += r.width > r.height;
    }
    /* torchvision's own: 0.433 of the area, 0.576 of them wider than high, since the others fit less often */
    assert_true(fabs(area / 4000.0 - 0.433) < 0.012 && fabs(wider / 4000.0 - 0.576) < 0.025);
    /* nothing fits: the centre, as wide or high as allowed */
    mhla_rng numbers = mhla_rng_make(1, 0, 0, 7);
    mhla_rect r = mhla_random_crop(&numbers, 1000, 10, (double[]){0.9, 1.0}, ratio);
    assert_true(r.width == 13 && r.height == 10 && r.x == 493 && r.y == 0);
    r = mhla_random_crop(&numbers, 1, 500, (double[]){0.9, 1.0}, ratio);
    assert_true(r.width == 1 && r.height == 1 && r.y == 249);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pillow),
        cmocka_unit_test(test_part),
        cmocka_unit_test(test_eval_crop),
        cmocka_unit_test(test_random_crop),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    setenv("MHLA_ISA", "plain", 1); /* the same without vectors of this CPU */
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
