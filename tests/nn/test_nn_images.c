/* Convolutions and resampling of images against their definitions in double, outputs and gradients. */
#include "core/rng.h"
#include "layer_case.h"
#include "ops/product/product.h"

#define X(i) (c->in[i].x)
#define P(i) (c->in[i].p)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

/* ---- Convolutions ---- */

typedef struct conv_arg {
    int64_t H, W;
    int stride, pad, groups, bias, residual; /* residual: 1 another tensor, 2 x itself; stride 0: mhla_nn_depthwise */
    int after;
} conv_arg;

static mhla_tensor *conv_build(mhla_tape *t, const layer_case *c) {
    const conv_arg *a = c->arg;
    mhla_param *b = a->bias ? P(2) : NULL;
    if (a->stride == 0)
        return mhla_nn_depthwise(t, P(1), b, a->H, a->W,
                                 a->residual == 1 ? X(2 + a->bias)
                                 : a->residual    ? X(0)
                                                  : NULL,
                                 X(0));
    const mhla_conv conv = {a->H, a->W, a->stride, a->pad, a->groups, a->after};
    if (a->residual) return mhla_nn_conv2d(t, P(1), b, conv, X(2 + a->bias), X(0));
    return mhla_nn_conv(t, P(1), b, conv, X(0));
}
static void conv_reference(double *y, const layer_case *c) {
    const conv_arg *a = c->arg;
    const int64_t B = S(0, 0), I = S(0, 2), O = S(1, 0), per = S(1, 1), kh = S(1, 2), kw = S(1, 3);
    const int64_t stride = a->stride ? a->stride : 1, pad = a->stride ? a->pad : kh / 2;
    const int64_t Ho = (a->H + 2 * pad + a->after - kh) / stride + 1;
    const int64_t Wo = (a->W + 2 * pad + a->after - kw) / stride + 1;
    for (int64_t b = 0; b < B; b++)
        for (int64_t at = 0; at < Ho * Wo; at++)
            for (int64_t o = 0; o < O; o++) {
                double s = a->bias ? D(2)[o] : 0.0;
                for (int64_t ky = 0; ky < kh; ky++)
                    for (int64_t kx = 0; kx < kw; kx++) {
                        const int64_t h = at / Wo * stride + ky - pad, w = at % Wo * stride + kx - pad;
                        if (h < 0 || h >= a->H || w < 0 || w >= a->W) continue;
                        for (int64_t i = 0; i < per; i++)
                            s += D(1)[((o * per + i) * kh + ky) * kw + kx] *
                                 D(0)[(b * a->H * a->W + h * a->W + w) * I + o / (O / (I / per)) * per + i];
                    }
                const int64_t e = (b * Ho * Wo + at) * O + o;
                y[e] = s + (a->residual == 1 ? D(2 + a->bias)[e] : a->residual ? D(0)[e] : 0.0);
            }
}
static void convolutions(void **state) {
    (void)state;
    rng r = {3};
    const struct {
        conv_arg a;
        int64_t I, O, per, kh, kw;
    } cases[] = {
        {{5, 6, 0, 0, 0, 1, 0, 0}, 3, 3, 1, 3, 3},   {{5, 6, 0, 0, 0, 1, 1, 0}, 19, 19, 1, 3, 3},
        {{6, 9, 0, 0, 0, 1, 0, 0}, 17, 17, 1, 5, 5}, {{3, 2, 0, 0, 0, 0, 2, 0}, 5, 5, 1, 5, 5},
        {{4, 5, 0, 0, 0, 1, 1, 0}, 4, 4, 1, 7, 7},   {{1, 1, 0, 0, 0, 1, 0, 0}, 1, 1, 1, 3, 3},
        {{5, 6, 1, 1, 1, 1, 0, 0}, 3, 4, 3, 3, 3},   {{7, 6, 2, 1, 1, 1, 0, 0}, 3, 4, 3, 3, 2},
        {{5, 6, 2, 2, 2, 1, 0, 0}, 4, 6, 2, 3, 3},   {{5, 5, 1, 1, 4, 0, 0, 0}, 4, 4, 1, 3, 3},
        {{6, 8, 2, 0, 1, 1, 0, 1}, 3, 5, 3, 3, 3},   {{5, 7, 2, 0, 1, 1, 0, 1}, 4, 5, 4, 3, 3},
        {{4, 3, 1, 0, 1, 1, 1, 0}, 6, 5, 6, 1, 1},   {{5, 4, 2, 0, 1, 1, 0, 0}, 3, 5, 3, 1, 1},
        {{5, 6, 1, 1, 1, 0, 1, 0}, 2, 3, 2, 3, 3},   {{7, 5, 3, 2, 1, 1, 0, -1}, 1, 2, 1, 4, 2},
        {{2, 1, 1, 2, 1, 1, 0, 0}, 3, 2, 3, 5, 3},   {{1, 1, 1, 1, 1, 1, 1, 0}, 1, 1, 1, 3, 3},
        {{5, 37, 1, 1, 1, 1, 0, 0}, 3, 67, 3, 3, 3}, {{9, 3, 1, 1, 1, 1, 1, 0}, 67, 3, 67, 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const conv_arg *a = &cases[i].a;
        layer_case c = {.name = "conv", .build = conv_build, .reference = conv_reference, .arg = a};
        VARIABLE(&c, &r, 2, a->H * a->W, cases[i].I);
        PARAMETER(&c, &r, cases[i].O, cases[i].per, cases[i].kh, cases[i].kw);
        if (a->bias) PARAMETER(&c, &r, cases[i].O);
        if (a->residual == 1) VARIABLE(&c, &r, 2, a->H * a->W, cases[i].O);
        check_case(&c);
    }
}

/* Frames: of three, `there` says which are (bit 0: the oldest), kernels k x k over all of them. */
typedef struct frames_arg {
    int64_t H, W;
    int k, stride, pad, there, residual;
} frames_arg;

static mhla_tensor *frames_build(mhla_tape *t, const layer_case *c) {
    const frames_arg *a = c->arg;
    mhla_tensor *x[3] = {NULL};
    int at = 2;
    for (int d = 0; d < 3; d++)
        if (a->there >> d & 1) x[d] = X(at++);
    return mhla_nn_conv3d(t, P(0), P(1), (mhla_conv){a->H, a->W, a->stride, a->pad, 0, 0}, a->residual ? X(at) : NULL,
                          x);
}
static void frames_reference(double *y, const layer_case *c) {
    const frames_arg *a = c->arg;
    const int64_t O = S(0, 0), C = S(0, 1), k = a->k, B = S(2, 0);
    const int64_t Ho = (a->H + 2 * a->pad - k) / a->stride + 1, Wo = (a->W + 2 * a->pad - k) / a->stride + 1;
    for (int64_t e = 0; e < B * Ho * Wo * O; e++) {
        const int64_t o = e % O, p = e / O, i = p / Wo % Ho, j = p % Wo, b = p / Wo / Ho;
        int at = 2;
        y[e] = D(1)[o];
        for (int64_t d = 0; d < 3; d++) {
            if (!(a->there >> d & 1)) continue;
            for (int64_t tap = 0; tap < k * k; tap++) {
                const int64_t h = i * a->stride + tap / k - a->pad, w = j * a->stride + tap % k - a->pad;
                for (int64_t n = 0; n < C && h >= 0 && h < a->H && w >= 0 && w < a->W; n++)
                    y[e] += D(0)[((o * C + n) * 3 + d) * k * k + tap] * D(at)[((b * a->H + h) * a->W + w) * C + n];
            }
            at++;
        }
        if (a->residual) y[e] += D(at)[e];
    }
}
static void convolutions_of_frames(void **state) {
    (void)state;
    rng r = {31};
    static const struct {
        frames_arg a;
        int64_t C, O;
    } cases[] = {{{4, 5, 3, 1, 1, 7, 1}, 3, 4}, {{4, 5, 3, 1, 1, 6, 0}, 4, 3}, {{3, 3, 3, 1, 1, 4, 1}, 5, 17},
                 {{5, 4, 1, 1, 0, 7, 0}, 6, 5}, {{2, 3, 1, 1, 0, 4, 0}, 3, 2}, {{5, 6, 3, 2, 1, 5, 0}, 3, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const frames_arg *a = &cases[i].a;
        layer_case c = {.name = "conv3d", .build = frames_build, .reference = frames_reference, .arg = a};
        PARAMETER(&c, &r, cases[i].O, cases[i].C, 3, a->k, a->k);
        PARAMETER(&c, &r, cases[i].O);
        for (int d = 0; d < 3; d++)
            if (a->there >> d & 1) VARIABLE(&c, &r, 2, a->H * a->W, cases[i].C);
        if (a->residual) VARIABLE(&c, &r, 2, a->H * a->W, cases[i].O);
        check_case(&c);
    }
}

/* A convolution too large for differences: more than one block of outputs, chunk of the sum, panel, block and segment of dw. Each
 * gradient against its definition, in both precisions, and for two numbers of threads, which must agree to the last bit. */
typedef struct large_conv {
    int64_t B, H, W, C, O, k;
    int stride, pad, after;
    mhla_dtype precision;
} large_conv;

static void large_reference(const large_conv *a, const float *x, const float *w, const float *dy, double *y, double *dx,
                            double *dw) {
    const int64_t Ho = (a->H + 2 * a->pad + a->after - a->k) / a->stride + 1;
    const int64_t Wo = (a->W + 2 * a->pad + a->after - a->k) / a->stride + 1, taps = a->k * a->k;
    for (int64_t p = 0; p < a->B * Ho * Wo; p++)
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t h = p / Wo % Ho * a->stride + tap / a->k - a->pad;
            const int64_t v = p % Wo * a->stride + tap % a->k - a->pad;
            if (h < 0 || h >= a->H || v < 0 || v >= a->W) continue;
            const int64_t at = ((p / Wo / Ho * a->H + h) * a->W + v) * a->C;
            for (int64_t o = 0; o < a->O; o++)
                for (int64_t c = 0; c < a->C; c++) {
                    const int64_t e = (o * a->C + c) * taps + tap;
                    const double d = (double)dy[p * a->O + o];
                    y[p * a->O + o] += (double)w[e] * (double)x[at + c];
                    dx[at + c] += (double)w[e] * d;
                    dw[e] += (double)x[at + c] * d;
                }
        }
}

static void check_large_part(const char *what, const float *got, const double *want, int64_t n, double tolerance) {
    const double size = largest(want, n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * size)) {
            print_error("%s %lld is %g, expected %g\n", what, (long long)i, (double)got[i], want[i]);
            fail();
        }
}

static void check_large(const large_conv *a) {
    rng r = {17};
    const int64_t Ho = (a->H + 2 * a->pad + a->after - a->k) / a->stride + 1;
    const int64_t Wo = (a->W + 2 * a->pad + a->after - a->k) / a->stride + 1;
    const int64_t nx = a->B * a->H * a->W * a->C, ny = a->B * Ho * Wo * a->O, nw = a->O * a->C * a->k * a->k;
    float *x = new_random(&r, nx), *dy = new_random(&r, ny), *first = NULL;
    double *want = new_bytes(sizeof(double) * (size_t)(nx + ny + nw));
    memset(want, 0, sizeof(double) * (size_t)(nx + ny + nw));
    mhla_params *params;
    ASSERT_OK(mhla_params_create(&params));
    mhla_param *w = mhla_params_add(params, "w", MHLA_SHAPE(a->O, a->C, a->k, a->k), 0, MHLA_ZERO);
    mhla_params_set_precision(params, a->precision);
    for (int64_t i = 0; i < nw; i++) w->data[i] = rng_signed(&r);
    large_reference(a, x, w->data, dy, want, want + ny, want + ny + nx);
    for (int threads = 1; threads <= 3; threads += 2) {
        mhla_context *context = new_context(threads);
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, context));
        mhla_params_clear_grads(params);
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tape_set_precision(t, a->precision);
        mhla_tensor *in = mhla_nn_variable(t, x, MHLA_SHAPE(a->B, a->H * a->W, a->C));
        mhla_tensor *y = mhla_nn_conv(t, w, NULL, (mhla_conv){a->H, a->W, a->stride, a->pad, 0, a->after}, in);
        ASSERT_OK(mhla_tape_status(t));
        assert_int_equal(y->rows * y->cols, ny);
        float *all = new_bytes(sizeof(float) * (size_t)(nx + ny + nw));
        memcpy(all, y->data, sizeof(float) * (size_t)ny);
        ASSERT_OK(mhla_tape_backward_from(t, y, dy));
        memcpy(all + ny, mhla_tensor_grad(in), sizeof(float) * (size_t)nx);
        memcpy(all + ny + nx, w->grad, sizeof(float) * (size_t)nw);
        const double tolerance = a->precision == MHLA_BF16 ? 1e-2 : 2e-6;
        check_large_part("output", all, want, ny, tolerance);
        check_large_part("gradient of x", all + ny, want + ny, nx, tolerance);
        check_large_part("gradient of w", all + ny + nx, want + ny + nx, nw, tolerance);
        if (first) assert_memory_equal(first, all, sizeof(float) * (size_t)(nx + ny + nw));
        free(first);
        first = all;
        mhla_tape_free(t);
        mhla_context_free(context);
    }
    mhla_params_free(params);
    free(first);
    free(want);
    free(x);
    free(dy);
}

static void large_convolutions(void **state) {
    (void)state;
    const char *isas[8];
    const large_conv cases[] = {
        {2, 17, 41, 130, 150, 3, 1, 1, 0, MHLA_F32}, {1, 6, 40, 322, 9, 3, 1, 1, 0, MHLA_F32},
        {3, 33, 70, 5, 139, 3, 2, 0, 1, MHLA_F32},   {1, 4, 5, 21, 530, 3, 1, 1, 0, MHLA_F32},
        {2, 19, 35, 65, 70, 4, 3, 1, 0, MHLA_F32},
    };
    for (int i = isa_names(isas, 8) - 1; i >= 0; i--) {
        ASSERT_OK(mhla_set_isa(isas[i]));
        for (size_t e = 0; e < sizeof cases / sizeof *cases; e++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                large_conv c = cases[e];
                c.precision = bf16 ? MHLA_BF16 : MHLA_F32;
                check_large(&c);
            }
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

static mhla_tensor *upsample_build(mhla_tape *t, const layer_case *c) { return mhla_nn_upsample(t, 3, 2, X(0)); }
static void upsample_reference(double *y, const layer_case *c) {
    const int64_t C = S(0, 2);
    for (int64_t i = 0; i < c->in[0].count * 4; i++) {
        const int64_t pixel = i / C % 24, b = i / C / 24;
        y[i] = D(0)[(b * 6 + pixel / 4 / 2 * 2 + pixel % 4 / 2) * C + i % C];
    }
}
static mhla_tensor *pixels_build(mhla_tape *t, const layer_case *c) { return mhla_nn_patches(t, 1, X(0)); }
static void pixels_reference(double *y, const layer_case *c) {
    const int64_t n = S(0, 2) * S(0, 3), C = S(0, 1);
    for (int64_t i = 0; i < c->in[0].count; i++) y[i] = D(0)[(i / C / n * C + i % C) * n + i / C % n];
}
static void upsampling(void **state) {
    (void)state;
    rng r = {32};
    layer_case c = {.name = "upsample", .build = upsample_build, .reference = upsample_reference};
    VARIABLE(&c, &r, 2, 6, 5);
    check_case(&c);
    layer_case d = {.name = "pixels", .build = pixels_build, .reference = pixels_reference, .no_slices = 1};
    VARIABLE(&d, &r, 2, 3, 4, 5);
    check_case(&d);
}

/* Filters that channels share, or a kernel of each sample's own (an input instead of a parameter); a token before the grid. */
typedef struct filters_arg {
    int64_t H, W, filters; /* 0: own */
    int k, residual, alone;
} filters_arg;

static mhla_tensor *filters_build(mhla_tape *t, const layer_case *c) {
    const filters_arg *a = c->arg;
    mhla_tensor *residual = a->residual == 1 ? X(c->n - 1) : a->residual ? X(0) : NULL;
    return a->filters ? mhla_nn_depthwise(t, P(1), P(2), a->H, a->W, residual, X(0))
                      : mhla_nn_depthwise_own(t, X(1), a->k, a->H, a->W, residual, X(0));
}
static void filters_reference(double *y, const layer_case *c) {
    const filters_arg *a = c->arg;
    const int64_t C = S(0, 2), T = S(0, 1), k2 = (int64_t)a->k * a->k;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const int64_t ch = i % C, b = i / C / T, place = i / C % T - a->alone, h = place / a->W, w = place % a->W;
        const double *kernel = D(1) + (a->filters ? ch % a->filters : b * C + ch) * k2;
        y[i] = a->residual == 1 ? D(c->n - 1)[i] : a->residual ? D(0)[i] : 0.0;
        if (place < 0) continue;
        if (a->filters) y[i] += D(2)[ch % a->filters];
        for (int64_t e = 0; e < k2; e++) {
            const int64_t row = h + e / a->k - a->k / 2, column = w + e % a->k - a->k / 2;
            if (row >= 0 && row < a->H && column >= 0 && column < a->W)
                y[i] += kernel[e] * D(0)[(b * T + a->alone + row * a->W + column) * C + ch];
        }
    }
}
static void filters(void **state) {
    (void)state;
    rng r = {31};
    static const filters_arg cases[] = {{3, 4, 2, 5, 0, 0}, {4, 3, 3, 3, 1, 0}, {2, 2, 1, 3, 0, 1}, {3, 4, 0, 3, 0, 0},
                                        {4, 3, 0, 3, 1, 0}, {2, 5, 0, 5, 0, 1}, {3, 2, 6, 3, 1, 1}, {3, 2, 6, 5, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const filters_arg *a = &cases[i];
        const int64_t C = 6, B = 3, T = a->alone + a->H * a->W;
        layer_case c = {.name = "filters", .build = filters_build, .reference = filters_reference, .arg = a};
        VARIABLE(&c, &r, B, T, C);
        if (a->filters) {
            PARAMETER(&c, &r, a->filters, 1, a->k, a->k);
            PARAMETER(&c, &r, a->filters);
        } else {
            VARIABLE(&c, &r, B, C * a->k * a->k);
        }
        if (a->residual == 1) VARIABLE(&c, &r, B, T, C);
        check_case(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),
        cmocka_unit_test(convolutions_of_frames),
        cmocka_unit_test(large_convolutions),
        cmocka_unit_test(upsampling),
        cmocka_unit_test(filters),
    };
    return cmocka_run_group_tests(tests, poison, NULL);
}
