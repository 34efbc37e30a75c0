/* The Inception network against the published features, where the weights are (data/inception, or MHLA_INCEPTION); its
 * convolutions and pools, which the file keeps to itself, against plain loops in double; how pictures come to its size. */
#include "measure/inception.c" /* NOLINT(bugprone-suspicious-include) */

#include "folders.h"
#include "goldens.h"

/* ---- Layers ---- */

static void check_conv(rng *r, layer l, int H, int W, int ld_in, int ld_out) {
    mhla_inception net = {.layers = {l}, .count = 1};
    layer *m = &net.layers[0];
    const int64_t K = (int64_t)l.kh * l.kw * l.in;
    float *w = new_random(r, l.out * K), *x = new_random(r, (int64_t)H * W * ld_in),
          *fields = new_poisoned(FIELD_FLOATS);
    m->bias = new_random(r, l.out);
    ASSERT_OK(mhla_weight_pack(&m->weight, w, MHLA_F32, l.out, K, 0));
    run state = {.net = &net, .fields = fields};
    const int Ho = (H + 2 * l.pad_h - l.kh) / l.stride + 1, Wo = (W + 2 * l.pad_w - l.kw) / l.stride + 1;
    float *y = new_poisoned((int64_t)Ho * Wo * ld_out);
    const map out = conv(&state, y, ld_out, (map){x, H, W, l.in, ld_in});
    ASSERT_OK(state.status);
    assert_int_equal(out.H, Ho);
    assert_int_equal(out.W, Wo);
    for (int p = 0; p < Ho * Wo; p++)
        for (int o = 0; o < ld_out; o++) {
            double sum = o < l.out ? m->bias[o] : 0.0;
            if (o >= l.out) { /* another tower's */
                assert_true(isnan(y[p * ld_out + o]));
                continue;
            }
            for (int ky = 0; ky < l.kh; ky++)
                for (int kx = 0; kx < l.kw; kx++) {
                    const int h = p / Wo * l.stride + ky - l.pad_h, v = p % Wo * l.stride + kx - l.pad_w;
                    for (int c = 0; c < l.in && h >= 0 && h < H && v >= 0 && v < W; c++)
                        sum += (double)w[o * K + (ky * l.kw + kx) * l.in + c] * x[(h * W + v) * ld_in + c];
                }
            if (!(fabs(y[p * ld_out + o] - fmax(sum, 0.0)) < 1e-4))
                fail_msg("%d x %d: output %d of pixel %d is %g: expected %g", l.kh, l.kw, o, p, y[p * ld_out + o], sum);
        }
    mhla_weight_free(m->weight);
    free(m->bias), free(w), free(x), free(y), free(fields);
}

static void test_conv(void **state) {
    (void)state;
    rng r = {1};
    check_conv(&r, LAYER(5, 3, 3, 3, 2, 0), 11, 9, 3, 5);
    check_conv(&r, LAYER(6, 4, 1, 7, 1, 1), 5, 6, 4, 17);
    check_conv(&r, LAYER(6, 4, 7, 1, 1, 1), 5, 6, 9, 6);
    check_conv(&r, LAYER(33, 20, 5, 5, 1, 1), 4, 7, 20, 40);
    check_conv(&r, LAYER(7, 16, 1, 1, 1, 1), 8, 8, 20, 9);
    check_conv(&r, LAYER(3, 300, 3, 3, 1, 1), 13, 12, 300, 3); /* fields in several pieces */
}

static void test_pool(void **state) {
    (void)state;
    rng r = {2};
    enum { H = 9, W = 7, C = 5, LD = 8 };
    float *x = new_random(&r, H * W * LD);
    for (int stride = 1; stride < 3; stride++)
        for (int average = 0; average < 2; average++) {
            run s = {0};
            const int pad = stride == 1, Ho = (H + 2 * pad - 3) / stride + 1, Wo = (W + 2 * pad - 3) / stride + 1;
            float *y = new_poisoned((int64_t)Ho * Wo * C);
            pool(&s, y, 0, (map){x, H, W, C, LD}, stride, average);
            for (int p = 0; p < Ho * Wo; p++)
                for (int c = 0; c < C; c++) {
                    double most = -INFINITY, sum = 0.0;
                    int n = 0;
                    for (int k = 0; k < 9; k++) {
                        const int h = p / Wo * stride + k / 3 - pad, v = p % Wo * stride + k % 3 - pad;
                        if (h < 0 || h >= H || v < 0 || v >= W) continue;
                        const double value = x[(h * W + v) * LD + c];
                        most = fmax(most, value), sum += value, n++;
                    }
                    assert_true(fabs(y[p * C + c] - (average ? sum / n : most)) < 1e-6);
                }
            free(y);
        }
    free(x);
}

/* The list adds up to the published network. */
static void test_layers(void **state) {
    (void)state;
    mhla_inception net = {.count = 0};
    list_layers(&net);
    assert_int_equal(net.count, LAYERS);
    int64_t numbers = 0;
    for (int i = 0; i < net.count; i++) {
        const layer *l = &net.layers[i];
        numbers += (int64_t)l->out * l->in * l->kh * l->kw + 3 * l->out; /* beta, mean, variance */
        assert_true(l->out <= 512);
    }
    assert_int_equal(numbers, 21802784);
}

/* A ramp is a ramp again: between centres of pixels, or from the first corner. Grey is thrice the same. */
static void test_input(void **state) {
    (void)state;
    mhla_image image = {0};
    enum { S = MHLA_INCEPTION_SIZE };
    float *x = new_poisoned((int64_t)S * S * 3);
    ASSERT_OK(mhla_image_reserve(&image, 10, 5, 1));
    for (int i = 0; i < 50; i++) image.data[i] = (uint8_t)(20 * (i % 10));
    ASSERT_OK(mhla_inception_input(x, &image, MHLA_INCEPTION_TORCH));
    for (int i = 0; i < S; i++) {
        double at = (i + 0.5) * 10 / S - 0.5;
        at = at < 0 ? 0 : at > 9 ? 9 : at;
        for (int c = 0; c < 3; c++) assert_true(fabs(x[(7 * S + i) * 3 + c] - (20 * at / 127.5 - 1)) < 1e-5);
    }
    ASSERT_OK(mhla_inception_input(x, &image, MHLA_INCEPTION_TF1));
    for (int i = 0; i < S; i++) {
        const double at = fmin(i * 10.0 / S, 9.0);
        assert_true(fabs(x[(298 * S + i) * 3] - (20 * at - 128) / 128) < 1e-5);
    }
    mhla_image_free(&image);
    free(x);
}

/* A file that lacks something, or has it in another shape. */
static void test_wrong_files(void **state) {
    (void)state;
    char folder[40];
    new_folder(folder);
    const float zeros[32 * 27] = {0};
    const int64_t shape[] = {32, 3, 3, 3}, other[] = {32, 27}, row[] = {32};
    mhla_storable tensors[] = {{"net.layers.conv.weight", 4, shape, zeros, MHLA_IO_F32, MHLA_IO_F32},
                               {"net.layers.conv.beta", 1, row, zeros, MHLA_IO_F32, MHLA_IO_F32}};
    mhla_safetensors *f;
    mhla_inception *net;
    ASSERT_OK(mhla_safetensors_write(in_folder(folder, "a.safetensors"), tensors, 2, NULL, 0));
    ASSERT_OK(mhla_safetensors_open(&f, in_folder(folder, "a.safetensors")));
    assert_true(mhla_inception_fits(f));
    ASSERT_FAILS(mhla_inception_open(&net, f, NULL), MHLA_EDATA, "net.layers.conv.mean");
    mhla_safetensors_close(f);
    tensors[0].rank = 2, tensors[0].shape = other;
    ASSERT_OK(mhla_safetensors_write(in_folder(folder, "b.safetensors"), tensors, 2, NULL, 0));
    ASSERT_OK(mhla_safetensors_open(&f, in_folder(folder, "b.safetensors")));
    ASSERT_FAILS(mhla_inception_open(&net, f, NULL), MHLA_EDATA, "net.layers.conv.weight");
    mhla_safetensors_close(f);
    tensors[0].name = "something";
    ASSERT_OK(mhla_safetensors_write(in_folder(folder, "c.safetensors"), tensors, 2, NULL, 0));
    ASSERT_OK(mhla_safetensors_open(&f, in_folder(folder, "c.safetensors")));
    assert_false(mhla_inception_fits(f));
    mhla_safetensors_close(f);
    remove_folder(folder);
}

/* ---- All of it ---- */

/* The same weights under pytorch-fid's names, with a last layer: the same features, and logits of them. */
static void check_torch_names(const mhla_safetensors *file, const float *x, const float *expected) {
    enum { TENSORS = LAYERS * 5 + 2 };
    static char names[TENSORS][64];
    static const char *const ours[] = {"weight", "", "beta", "mean", "var"};
    static const char *const theirs[] = {"conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"};
    static mhla_storable tensors[TENSORS];
    static float ones[512], bias[CLASSES];
    const int64_t head[] = {CLASSES, MHLA_INCEPTION_FEATURES}, classes[] = {CLASSES};
    mhla_inception table = {.count = 0}, *net;
    mhla_safetensors *f;
    char folder[40], name[128];
    int64_t n = 0, lengths[LAYERS];
    rng r = {9};
    list_layers(&table);
    for (int i = 0; i < 512; i++) ones[i] = 1.0f;
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < 5; k++) {
            const mhla_stored *s = NULL;
            snprintf(names[n], sizeof names[n], "%s.%s", table.layers[i].torch, theirs[k]);
            snprintf(name, sizeof name, "net.layers.%s.%s", table.layers[i].name, ours[k]);
            lengths[i] = table.layers[i].out;
            if (k != 1) ASSERT_OK(mhla_safetensors_need(&s, file, name));
            tensors[n] = (mhla_storable){
                names[n],    s ? s->rank : 1, s ? s->shape : &lengths[i], s ? (const void *)s->data : ones,
                MHLA_IO_F32, MHLA_IO_F32};
            n++;
        }
    float *w = new_random(&r, (int64_t)CLASSES * MHLA_INCEPTION_FEATURES), y[2048], *p = new_poisoned(CLASSES);
    for (int i = 0; i < CLASSES; i++) bias[i] = rng_signed(&r);
    tensors[n++] = (mhla_storable){"fc.weight", 2, head, w, MHLA_IO_F32, MHLA_IO_F32};
    tensors[n++] = (mhla_storable){"fc.bias", 1, classes, bias, MHLA_IO_F32, MHLA_IO_F32};
    new_folder(folder);
    ASSERT_OK(mhla_safetensors_write(in_folder(folder, "fid.safetensors"), tensors, n, NULL, 0));
    ASSERT_OK(mhla_safetensors_open(&f, in_folder(folder, "fid.safetensors")));
    ASSERT_OK(mhla_inception_open(&net, f, NULL));
    assert_int_equal(mhla_inception_classes(net), CLASSES);
    ASSERT_OK(mhla_inception_run(net, y, NULL, p, x, 1));
    assert_memory_equal(y, expected, sizeof y);
    for (int i = 0; i < CLASSES; i++) {
        double logit = bias[i];
        for (int k = 0; k < 2048; k++) logit += (double)w[(size_t)i * 2048 + (size_t)k] * y[k];
        assert_true(fabs(p[i] - logit) < 1e-3);
    }
    mhla_inception_free(net);
    mhla_safetensors_close(f);
    remove_folder(folder);
    free(w), free(p);
}

static void test_golden(void **state) {
    (void)state;
    const char *weights = getenv("MHLA_INCEPTION");
    if (weights == NULL) weights = "../data/inception/inception-2015-12-05.safetensors";
    if (access(weights, R_OK) != 0) {
        print_message("[   SKIP   ] no %s: mhla data inception, or set MHLA_INCEPTION\n", weights);
        skip();
    }
    mhla_safetensors *g = open_golden("lm/real/inception-fid"), *file;
    ASSERT_OK(mhla_safetensors_open(&file, weights));
    assert_true(mhla_inception_fits(file));
    mhla_inception *net;
    ASSERT_OK(mhla_inception_open(&net, file, NULL));
    float *planes = golden(g, "in.", "x"), *small = golden(g, "in.", "lowres"),
          *expected = golden(g, "out.", "features");
    enum { N = 299 * 299, COPIES = 9 };
    const mhla_stored *s;
    ASSERT_OK(mhla_safetensors_need(&s, g, "in.lowres"));
    const int h = (int)s->shape[2], w = (int)s->shape[3], n = h * w;
    float *x = new_poisoned((int64_t)COPIES * N * 3), *lowres = new_poisoned(n * 3), *scaled = new_poisoned(N * 3),
          *y = new_poisoned(COPIES * 2048), *spatial = new_poisoned((int64_t)COPIES * MHLA_INCEPTION_SPATIAL);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < 3; c++) x[3 * i + c] = planes[c * N + i];
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) lowres[3 * i + c] = 2.0f * small[c * n + i] - 1.0f;
    /* preprocessing */
    mhla_inception_scale(scaled, lowres, h, w, 3, MHLA_INCEPTION_TORCH);
    for (int i = 0; i < 3 * N; i++)
        if (!(fabsf(scaled[i] - x[i]) < 2e-6f)) fail_msg("pixel %d is %g: expected %g", i, scaled[i], x[i]);
    /* features, the same for every place in a batch */
    for (int i = 1; i < COPIES; i++) memcpy(x + (size_t)i * N * 3, x, (size_t)N * 3 * sizeof *x);
    ASSERT_OK(mhla_inception_run(net, y, spatial, NULL, x, COPIES));
    float most = 0.0f, error = 0.0f;
    for (int i = 0; i < 2048; i++)
        most = fmaxf(most, fabsf(expected[i])), error = fmaxf(error, fabsf(y[i] - expected[i]));
    print_message("largest error %.2g of %.3g\n", error, most);
    assert_true(error < 1e-5f * most);
    for (int i = 1; i < COPIES; i++) assert_memory_equal(y + (size_t)i * 2048, y, 2048 * sizeof *y);
    for (int i = 0; i < MHLA_INCEPTION_SPATIAL; i++) assert_true(spatial[i] >= 0.0f); /* of relu; not NaN */
    for (int i = 1; i < COPIES; i++)
        assert_memory_equal(spatial + (size_t)i * MHLA_INCEPTION_SPATIAL, spatial, MHLA_INCEPTION_SPATIAL * sizeof *y);
    assert_int_equal(mhla_inception_classes(net), 0);
    check_torch_names(file, x, y);
    mhla_safetensors_close(file);
    mhla_inception_free(net);
    mhla_safetensors_close(g);
    free(planes), free(small), free(expected), free(x), free(lowres), free(scaled), free(y), free(spatial);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),  cmocka_unit_test(test_pool),        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_input), cmocka_unit_test(test_wrong_files), cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
