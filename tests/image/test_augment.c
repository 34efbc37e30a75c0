/* Augmentation: each operation against Pillow's result (hashes), policies by their rules, batches by their arithmetic; and that a sample
 * depends on its key alone. */
#include "image/augment.h"
#include "pictures.h"

/* RGB, grey */
static const struct {
    const char *what;
    uint64_t hash[2];
} wanted[] = {
    {"flip", {0x7ca111be1e9daf6cu, 0x0db61f6d6851791cu}},
    {"invert", {0x61e942310202cc63u, 0x23211fb5eaf971b1u}},
    {"autocontrast", {0x2fec35e2f1a94948u, 0x420ba84a179c0251u}},
    {"equalize", {0xcdf8e594dddb8188u, 0x1b31207c8ed2dff6u}},
    {"posterize 3", {0x6472ee3fde70d517u, 0xbe5532145203833fu}},
    {"solarize 100", {0x70b06f5ea9319eb4u, 0xcc23be140f2411fcu}},
    {"solarize_add 60", {0x7ccf5321a12dbda0u, 0xa0e4f394ae6bb0c4u}},
    {"color 0.19", {0x7a195371aa8b9e0eu, 0x002ac1a1904d223cu}},
    {"contrast 0.19", {0xf69f5f48e911e1cdu, 0x5e96ab9fbbf9cfadu}},
    {"brightness 0.19", {0x37d08a7cca6d391eu, 0xe87da902647df00eu}},
    {"sharpness 0.19", {0x0a80c1ccddf42df3u, 0x2ecdd8ca0c88c410u}},
    {"color 1.81", {0x9fc51f27190fe7d1u, 0x002ac1a1904d223cu}},
    {"contrast 1.81", {0x7c69e15208c64289u, 0x7212d9b188586397u}},
    {"brightness 1.81", {0x7690d720c90ad86bu, 0xd586ec33fb154603u}},
    {"sharpness 1.81", {0x21cf34322ad1e74du, 0x9a796970c7762a87u}},
    {"shear x bicubic", {0x054865511e5fd116u, 0xb032b13ceab592efu}},
    {"shear y bicubic", {0xcecd22fc225a9685u, 0xf8e67cffc29c6950u}},
    {"translate x bicubic", {0x8c9bdc27314666ecu, 0xda872d1b9d03e60bu}},
    {"translate y bicubic", {0xd2da5e4672fa5591u, 0xe9ec02b8d0beda17u}},
    {"rotate 27 bicubic", {0x99678f7da6650549u, 0xb55f5eb4f6a8b8e7u}},
    {"rotate -9.5 bicubic", {0x6d9c95be74b47532u, 0xc33dea9e2e064e12u}},
    {"shear x bilinear", {0xba440c7e67b8d175u, 0x759c69e20e75ddf4u}},
    {"shear y bilinear", {0x63e3a898977d3c0cu, 0xbb971686f432a9cfu}},
    {"translate x bilinear", {0x23dd15b688ee25c6u, 0x51a5aaf4e51b3347u}},
    {"translate y bilinear", {0x05a4069db190b784u, 0xcd1f064c464ebd2fu}},
    {"rotate 27 bilinear", {0x760dd7e1a211b1c4u, 0x828a4823be736df5u}},
    {"rotate -9.5 bilinear", {0x7af79a852228343eu, 0x1c2b1517c8bbae31u}},
};

static size_t next_wanted;

static void expect(const char *what, const mhla_image *m) {
    if (strcmp(wanted[next_wanted].what, what) != 0) fail_msg("%s before %s", wanted[next_wanted].what, what);
    if (image_hash(m) != wanted[next_wanted].hash[m->channels == 1])
        fail_msg("%s, %d channels: other pixels", what, m->channels);
    next_wanted++;
}

/* Runs `call` on a copy named m, or into m from in. */
#define ON_COPY(what, source, call)                                                                                    \
    do {                                                                                                               \
        ASSERT_OK(mhla_image_crop(&m, &(source), (mhla_rect){0, 0, 37, 29}));                                          \
        call;                                                                                                          \
        expect(what, &m);                                                                                              \
    } while (0)
#define INTO(what, call)                                                                                               \
    do {                                                                                                               \
        ASSERT_OK(call);                                                                                               \
        expect(what, &m);                                                                                              \
    } while (0)

static void test_operations(void **state) {
    (void)state;
    static const uint8_t fill[3] = {124, 116, 104};
    for (int c = 3; c >= 1; c -= 2) {
        mhla_image in = picture(37, 29, c), dull = picture(37, 29, c), m = {0};
        for (int i = 0; i < 37 * 29 * c; i++) dull.data[i] = (uint8_t)(dull.data[i] / 3 + 40);
        next_wanted = 0;
        ON_COPY("flip", in, mhla_image_flip(&m));
        ON_COPY("invert", in, mhla_image_invert(&m));
        ON_COPY("autocontrast", dull, mhla_image_autocontrast(&m));
        ON_COPY("equalize", dull, mhla_image_equalize(&m));
        ON_COPY("posterize 3", in, mhla_image_posterize(&m, 3));
        ON_COPY("solarize 100", in, mhla_image_solarize(&m, 100));
        ON_COPY("solarize_add 60", in, mhla_image_solarize_add(&m, 60, 128));
        for (int k = 0; k < 2; k++) {
            const double f = k ? 1.81 : 0.19;
            ON_COPY(k ? "color 1.81" : "color 0.19", in, mhla_image_color(&m, f));
            ON_COPY(k ? "contrast 1.81" : "contrast 0.19", in, mhla_image_contrast(&m, f));
            ON_COPY(k ? "brightness 1.81" : "brightness 0.19", in, mhla_image_brightness(&m, f));
            INTO(k ? "sharpness 1.81" : "sharpness 0.19", mhla_image_sharpness(&m, &in, f));
        }
        for (int k = 0; k < 2; k++) {
            const mhla_filter f = k ? MHLA_FILTER_BILINEAR : MHLA_FILTER_BICUBIC;
            static const double maps[4][6] = {
                {1, .27, 0, 0, 1, 0}, {1, 0, 0, -.3, 1, 0}, {1, 0, .405 * 37, 0, 1, 0}, {1, 0, 0, 0, 1, -.2 * 29}};
            static const char *const names[] = {"shear x", "shear y", "translate x", "translate y"};
            char what[40];
            for (int i = 0; i < 4; i++) {
                snprintf(what, sizeof what, "%s %s", names[i], k ? "bilinear" : "bicubic");
                INTO(what, mhla_image_affine(&m, &in, maps[i], f, fill));
            }
            INTO(k ? "rotate 27 bilinear" : "rotate 27 bicubic", mhla_image_rotate(&m, &in, 27.0, f, fill));
            INTO(k ? "rotate -9.5 bilinear" : "rotate -9.5 bicubic", mhla_image_rotate(&m, &in, -9.5, f, fill));
        }
        assert_int_equal(next_wanted, sizeof wanted / sizeof *wanted);
        mhla_image_free(&in);
        mhla_image_free(&dull);
        mhla_image_free(&m);
    }
}

/* Pictures too small or too plain for an operation stay as they are. */
static void test_edges(void **state) {
    (void)state;
    mhla_image m = {0}, out = {0};
    ASSERT_OK(mhla_image_reserve(&m, 2, 1, 3));
    memset(m.data, 77, 6);
    mhla_image_autocontrast(&m);
    mhla_image_equalize(&m);
    mhla_image_contrast(&m, 1.9);
    mhla_image_posterize(&m, 8);
    mhla_image_solarize(&m, 256);
    ASSERT_OK(mhla_image_sharpness(&out, &m, 1.9));
    for (int i = 0; i < 6; i++) assert_int_equal(out.data[i], 77);
    mhla_image_posterize(&m, 0);
    assert_int_equal(m.data[0], 0);
    mhla_image_free(&m);
    mhla_image_free(&out);
}

static mhla_augment paper(int size) {
    mhla_augment a = {.height = size,
                      .crop = MHLA_CROP_RANDOM,
                      .flip = 0.5f,
                      .erase = 0.25f,
                      .mean = {0.485f, 0.456f, 0.406f},
                      .std = {0.229f, 0.224f, 0.225f}};
    ASSERT_OK(mhla_augment_parse(&a, "rand-m9-mstd0.5-inc1"));
    ASSERT_OK(mhla_augment_prepare(&a));
    return a;
}

static void test_parse(void **state) {
    (void)state;
    mhla_augment a = paper(32);
    assert_true(a.rand_layers == 2 && a.rand_m == 9.0 && a.rand_std == 0.5 && a.rand_increasing == 1 &&
                a.rand_prob == 0.5);
    assert_true(a.scale[0] == 0.08 && a.ratio[1] == 4.0 / 3.0 && a.channels == 3);
    ASSERT_OK(mhla_augment_parse(&a, "rand-m7-n3-p1"));
    assert_true(a.rand_layers == 3 && a.rand_m == 7.0 && a.rand_std == 0.0 && a.rand_increasing == 0 &&
                a.rand_prob == 1.0);
    ASSERT_OK(mhla_augment_parse(&a, "none"));
    assert_int_equal(a.rand_layers, 0);
    ASSERT_FAILS(mhla_augment_parse(&a, "augmix-m3"), MHLA_EINVAL, "expected none or rand-");
    ASSERT_FAILS(mhla_augment_parse(&a, "rand-m9-x1"), MHLA_EINVAL, "\"x1\" is not understood");
    ASSERT_FAILS(mhla_augment_parse(&a, "rand-m"), MHLA_EINVAL, "\"m\" is not understood");
    ASSERT_FAILS(mhla_augment_parse(&a, "rand-m9-"), MHLA_EINVAL, "is not understood");
    a.height = 0;
    ASSERT_FAILS(mhla_augment_prepare(&a), MHLA_EINVAL, "image size 0");
    a = (mhla_augment){.height = 8, .channels = 2};
    ASSERT_FAILS(mhla_augment_prepare(&a), MHLA_EINVAL, "2 channels");
    a = (mhla_augment){.height = 8, .scale = {0.5, 1.5}};
    ASSERT_FAILS(mhla_augment_prepare(&a), MHLA_EINVAL, "from 0.5 to 1.5");
    a = (mhla_augment){.height = 8, .std = {1.0f, 0.0f, 1.0f}};
    ASSERT_FAILS(mhla_augment_prepare(&a), MHLA_EINVAL, "channel 1");
}

/* The same key gives the same numbers, whatever was done before with the scratch; other keys others. */
static void test_keys(void **state) {
    (void)state;
    enum { S = 24, N = 3 * S * S };
    const mhla_augment a = paper(S);
    mhla_image in = picture(50, 41, 3), small = picture(9, 8, 1);
    mhla_augment_scratch one = {0}, two = {0};
    float x[N], y[N];
    int different = 0;
    for (uint64_t sample = 0; sample < 60; sample++) {
        ASSERT_OK(mhla_augment_apply(x, &in, &a, &one, 3, 1, sample));
        ASSERT_OK(mhla_augment_apply(y, &small, &a, &two, 3, 2, sample * 7));
        ASSERT_OK(mhla_augment_apply(y, &in, &a, &two, 3, 1, sample));
        assert_memory_equal(x, y, sizeof x);
        ASSERT_OK(mhla_augment_apply(y, &in, &a, &two, 3, 2, sample));
        different += memcmp(x, y, sizeof x) != 0;
        for (int i = 0; i < N; i++) assert_true(isfinite(x[i]));
    }
    assert_int_equal(different, 60);
    mhla_augment_scratch_free(&one);
    mhla_augment_scratch_free(&two);
    mhla_image_free(&in);
    mhla_image_free(&small);
}

/* Each kind of randomness alone follows seed, epoch and sample. */
static void test_places(void **state) {
    (void)state;
    enum { S = 16, N = 3 * S * S, TRIES = 12 };
    mhla_image in = picture(30, 25, 3);
    mhla_augment_scratch s = {0};
    static float x[4][TRIES][N];
    for (int kind = 0; kind < 4; kind++) {
        mhla_augment a = {.height = S, .crop = kind == 0 ? MHLA_CROP_RANDOM : MHLA_CROP_SQUASH};
        if (kind == 1) a.flip = 0.5f;
        if (kind == 2) ASSERT_OK(mhla_augment_parse(&a, "rand-m9-mstd0.5-inc1-p1"));
        if (kind == 3) a.erase = 0.7f;
        ASSERT_OK(mhla_augment_prepare(&a));
        for (uint64_t i = 0; i < TRIES; i++) {
            ASSERT_OK(mhla_augment_apply(x[0][i], &in, &a, &s, 5, 6, i));
            ASSERT_OK(mhla_augment_apply(x[1][i], &in, &a, &s, 4, 6, i));
            ASSERT_OK(mhla_augment_apply(x[2][i], &in, &a, &s, 5, 7, i));
            ASSERT_OK(mhla_augment_apply(x[3][i], &in, &a, &s, 5, 6, i + 1));
        }
        for (int k = 1; k < 4; k++) /* another seed, epoch, sample */
            if (memcmp(x[0], x[k], sizeof x[0]) == 0) fail_msg("kind %d does not follow key %d", kind, k);
    }
    mhla_augment_scratch_free(&s);
    mhla_image_free(&in);
}

static void test_normalised(void **state) {
    (void)state;
    mhla_augment a = {
        .height = 4, .crop = MHLA_CROP_EVAL, .crop_pct = 1.0, .mean = {0.5f, 0.4f, 0.3f}, .std = {0.2f, 0.3f, 0.4f}};
    ASSERT_OK(mhla_augment_prepare(&a));
    mhla_image in = picture(4, 4, 3), grey = picture(4, 4, 1);
    mhla_augment_scratch s = {0};
    float x[48];
    ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 0, 0, 0));
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 16; i++)
            assert_true(x[c * 16 + i] == ((float)in.data[i * 3 + c] / 255.0f - a.mean[c]) / a.std[c]);
    ASSERT_OK(mhla_augment_apply(x, &grey, &a, &s, 0, 0, 0)); /* grey as three equal channels */
    for (int i = 0; i < 16; i++) assert_true(x[32 + i] == ((float)grey.data[i] / 255.0f - a.mean[2]) / a.std[2]);
    a.channels = 1;
    ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 0, 0, 0)); /* and RGB as its luma */
    for (int i = 0; i < 16; i++) {
        const unsigned v =
            (in.data[3 * i] * 19595u + in.data[3 * i + 1] * 38470u + in.data[3 * i + 2] * 7471u + 0x8000u) >> 16;
        assert_true(x[i] == ((float)v / 255.0f - a.mean[0]) / a.std[0]);
    }
    mhla_augment_scratch_free(&s);
    mhla_image_free(&in);
    mhla_image_free(&grey);
}

/* Padded by 2 and cropped: every pixel is one of the picture at one of the 25 shifts, or black; all shifts occur. */
static void test_pad(void **state) {
    (void)state;
    mhla_augment a = {.height = 8, .crop = MHLA_CROP_PAD, .pad = 2, .channels = 1};
    ASSERT_OK(mhla_augment_prepare(&a));
    mhla_image in = {0};
    ASSERT_OK(mhla_image_reserve(&in, 8, 8, 1));
    for (int i = 0; i < 64; i++) in.data[i] = (uint8_t)(i + 1);
    mhla_augment_scratch s = {0};
    float x[100];
    int seen = 0;
    for (uint64_t k = 0; k < 500; k++) {
        ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 1, 0, k));
        const int first = (int)lrintf(x[27] * 255.0f) - 1 - 27; /* where pixel (3, 3) came from */
        const int dy = (first + 18) / 8 - 2, dx = first - 8 * dy;
        assert_true(dx >= -2 && dx <= 2 && dy >= -2 && dy <= 2);
        seen |= 1 << ((dy + 2) * 5 + dx + 2);
        for (int y = 0; y < 8; y++)
            for (int c = 0; c < 8; c++) {
                const int sy = y + dy, sx = c + dx, inside = sy >= 0 && sy < 8 && sx >= 0 && sx < 8;
                assert_int_equal(lrintf(x[y * 8 + c] * 255.0f), inside ? in.data[sy * 8 + sx] : 0);
            }
    }
    assert_int_equal(seen, (1 << 25) - 1);
    a.height = a.width = 13;
    ASSERT_FAILS(mhla_augment_apply(x, &in, &a, &s, 1, 0, 0), MHLA_EDATA, "too small for a crop of 13");
    a.height = a.width = 10;
    a.crop = MHLA_CROP_CENTRE;
    ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 1, 0, 0));
    assert_true(x[0] == 0.0f && x[9] == 0.0f && lrintf(x[11] * 255.0f) == 1 && lrintf(x[88] * 255.0f) == 64 &&
                x[99] == 0.0f);
    mhla_augment_scratch_free(&s);
    mhla_image_free(&in);
}

/* A rectangle of normal noise, of 2 % to a third of the area, in a quarter of the pictures. */
static void test_erase(void **state) {
    (void)state;
    enum { S = 32 };
    mhla_augment a = {.height = S, .crop = MHLA_CROP_EVAL, .crop_pct = 1.0, .channels = 1, .erase = 0.25f};
    ASSERT_OK(mhla_augment_prepare(&a));
    mhla_image in = {0};
    ASSERT_OK(mhla_image_reserve(&in, S, S, 1));
    memset(in.data, 255, S * S);
    mhla_augment_scratch s = {0};
    float x[S * S];
    int erased = 0, pixels = 0;
    double sum = 0.0, squares = 0.0;
    for (uint64_t k = 0; k < 2000; k++) {
        ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 9, 0, k));
        int n = 0, top = S, bottom = 0, left = S, right = 0;
        for (int i = 0; i < S * S; i++)
            if (x[i] != 1.0f) {
                n++;
                sum += x[i];
                squares += (double)x[i] * x[i];
                top = i / S < top ? i / S : top;
                bottom = i / S > bottom ? i / S : bottom;
                left = i % S < left ? i % S : left;
                right = i % S > right ? i % S : right;
            }
        if (n == 0) continue;
        erased++;
        pixels += n;
        assert_int_equal(n, (bottom - top + 1) * (right - left + 1));
        assert_true(n >= 12 && n <= 400);
    }
    assert_true(erased > 420 && erased < 580);
    assert_true(fabs(sum / pixels) < 0.02 && fabs(squares / pixels - 1.0) < 0.03);
    mhla_augment_scratch_free(&s);
    mhla_image_free(&in);
}

/* Higher than wide, or wider than high: crops, shifts and erased rectangles stay inside and reach every corner. */
static void test_oblong(void **state) {
    (void)state;
    enum { H = 9, W = 14, N = H * W };
    mhla_augment_scratch s = {0};
    mhla_image in = {0}, resized = {0};
    float x[N + 1], corners[4] = {0};
    ASSERT_OK(mhla_image_reserve(&in, W, H, 1));
    for (int i = 0; i < N; i++) in.data[i] = (uint8_t)(i + 1);
    mhla_augment a = {.height = H, .width = W, .crop = MHLA_CROP_PAD, .pad = 2, .channels = 1};
    ASSERT_OK(mhla_augment_prepare(&a));
    for (uint64_t k = 0; k < 50; k++) {
        x[N] = 77.0f;
        ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 1, 0, k));
        const int first = (int)lrintf(x[4 * W + 4] * 255.0f) - 1, dy = first / W - 4, dx = first % W - 4;
        for (int i = 0; i < N; i++) {
            const int row = i / W + dy, column = i % W + dx;
            const int inside = row >= 0 && row < H && column >= 0 && column < W;
            assert_int_equal(lrintf(x[i] * 255.0f), inside ? in.data[row * W + column] : 0);
        }
        assert_true(x[N] == 77.0f);
    }
    /* to another shape, and as it is with erasing alone */
    mhla_image_free(&in);
    in = picture(20, 30, 1);
    a = (mhla_augment){.height = H, .width = W, .crop = MHLA_CROP_SQUASH, .channels = 1};
    ASSERT_OK(mhla_augment_prepare(&a));
    ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 1, 0, 0));
    ASSERT_OK(mhla_image_resize(&resized, &in, W, H, a.filter, NULL));
    for (int i = 0; i < N; i++) assert_int_equal(lrintf(x[i] * 255.0f), resized.data[i]);
    memset(in.data, 255, 600);
    a.erase = 1.0f;
    a.crop = MHLA_CROP_RANDOM;
    for (uint64_t k = 0; k < 2000; k++) {
        ASSERT_OK(mhla_augment_apply(x, &in, &a, &s, 1, 0, k));
        int n = 0, top = H, bottom = -1, left = W, right = -1;
        for (int i = 0; i < N; i++)
            if (x[i] != 1.0f) {
                n++;
                top = i / W < top ? i / W : top;
                bottom = i / W > bottom ? i / W : bottom;
                left = i % W < left ? i % W : left;
                right = i % W > right ? i % W : right;
            }
        assert_int_equal(n, (bottom - top + 1) * (right - left + 1));
        corners[0] += x[0] != 1.0f;
        corners[1] += x[W - 1] != 1.0f;
        corners[2] += x[N - W] != 1.0f;
        corners[3] += x[N - 1] != 1.0f;
    }
    for (int i = 0; i < 4; i++) assert_true(corners[i] > 5.0f);
    mhla_image_free(&in);
    mhla_image_free(&resized);
    mhla_augment_scratch_free(&s);
}

static void test_mix(void **state) {
    (void)state;
    enum { B = 6, H = 12, W = 10, N = 2 * H * W, K = 5 };
    static const int labels[B] = {0, 1, 2, 2, 4, 0};
    static float x[B * N], t[B * K];
    double sum = 0.0;
    int cut = 0, mixed = 0;
    for (uint64_t step = 0; step < 400; step++) {
        const mhla_mix mix = {.mixup = 0.2, .cutmix = 1.0, .smoothing = 0.1, .prob = 0.9};
        for (int i = 0; i < B * N; i++) x[i] = (float)(1 << (i / N)); /* image i is full of 2^i */
        mhla_mix_batch(x, t, labels, B, 2, H, W, K, &mix, 11, step);
        /* the part that stayed, from the first image: 1 = lambda + 32 (1 - lambda) on average */
        double mean = 0.0;
        int whole = 1;
        for (int i = 0; i < N; i++) {
            mean += x[i] / N;
            whole &= x[i] == 1.0f || x[i] == 32.0f;
        }
        const double lambda = (32.0 - mean) / 31.0;
        assert_true(lambda > -1e-5 && lambda < 1.00001);
        for (int i = 0; i < B; i++) {
            double part = 0.0, total = 0.0;
            for (int j = 0; j < N; j++) part += x[i * N + j] / N;
            assert_true(fabs(part - ((1 << i) * lambda + (32 >> i) * (1.0 - lambda))) < 1e-3);
            for (int c = 0; c < K; c++) {
                total += t[i * K + c];
                const double on = 0.92 * ((labels[i] == c) * lambda + (labels[B - 1 - i] == c) * (1.0 - lambda));
                const double off = 0.02 * ((labels[i] != c) * lambda + (labels[B - 1 - i] != c) * (1.0 - lambda));
                assert_true(fabs(t[i * K + c] - on - off) < 1e-5);
            }
            assert_true(fabs(total - 1.0) < 1e-5);
        }
        if (lambda < 0.9999 && whole) cut++;
        if (!whole) mixed++, sum += fabs(lambda - 0.5);
    }
    assert_true(cut > 130 && cut < 200 && mixed > 150 && mixed < 215);
    assert_true(sum / mixed > 0.33 && sum / mixed < 0.43); /* Beta(0.2, 0.2) keeps near 0 and 1: 0.379 */
    /* neither: smoothed labels; a picture that is missing has no target */
    const int some[2] = {3, -1};
    for (int i = 0; i < 2 * N; i++) x[i] = 1.0f;
    mhla_mix_batch(x, t, some, 2, 2, H, W, K, &(mhla_mix){.smoothing = 0.5}, 11, 0);
    assert_true(t[3] == 0.6f && t[0] == 0.1f && t[5] == 0.0f && t[9] == 0.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations), cmocka_unit_test(test_edges),  cmocka_unit_test(test_parse),
        cmocka_unit_test(test_keys),       cmocka_unit_test(test_places), cmocka_unit_test(test_normalised),
        cmocka_unit_test(test_pad),        cmocka_unit_test(test_erase),  cmocka_unit_test(test_oblong),
        cmocka_unit_test(test_mix),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    setenv("MHLA_ISA", "plain", 1); /* the same without vectors of this CPU */
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
