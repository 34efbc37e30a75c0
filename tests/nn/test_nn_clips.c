/* Layers of clips, whose tokens lie on a grid of frames, rows and columns: patches and back, depthwise convolutions. */
#include "layer_case.h"

#define X(i) (c->in[i].x)
#define P(i) (c->in[i].p)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

/* ---- Depthwise convolution ---- */

typedef struct clip_arg {
    int64_t grid[3], k, C, filters;
    int residual; /* 1 another tensor, 2 x itself */
} clip_arg;

static mhla_tensor *clip_build(mhla_tape *t, const layer_case *c) {
    const clip_arg *a = c->arg;
    mhla_tensor *residual = a->residual == 1 ? X(3) : a->residual ? X(0) : NULL;
    return mhla_nn_depthwise_clip(t, P(1), P(2), a->grid, residual, X(0));
}

static void clip_reference(double *y, const layer_case *c) {
    const clip_arg *a = c->arg;
    const int64_t F = a->grid[0], H = a->grid[1], W = a->grid[2], k = a->k, e = k / 2;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const int64_t ch = i % a->C, w = i / a->C % W, h = i / a->C / W % H, f = i / a->C / W / H % F;
        y[i] = D(2)[ch % a->filters] + (a->residual == 1 ? D(3)[i] : a->residual ? D(0)[i] : 0.0);
        for (int64_t n = 0; n < k * k * k; n++) {
            const int64_t df = n / k / k - e, dh = n / k % k - e, dw = n % k - e;
            if (f + df < 0 || f + df >= F || h + dh < 0 || h + dh >= H || w + dw < 0 || w + dw >= W) continue;
            y[i] += D(1)[ch % a->filters * k * k * k + n] * D(0)[i + ((df * H + dh) * W + dw) * a->C];
        }
    }
}

static void depthwise(void **state) {
    (void)state;
    rng r = {3};
    static const clip_arg cases[] = {{{3, 4, 5}, 3, 3, 3, 0}, {{4, 2, 6}, 3, 19, 19, 1}, {{1, 3, 3}, 3, 2, 2, 2},
                                     {{2, 3, 1}, 5, 4, 2, 1}, {{5, 1, 2}, 1, 3, 3, 0},   {{2, 9, 3}, 3, 66, 66, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const clip_arg *a = &cases[i];
        const int64_t T = a->grid[0] * a->grid[1] * a->grid[2], B = a->C > 60 ? 1 : 2;
        layer_case c = {.name = "depthwise of a clip", .build = clip_build, .reference = clip_reference, .arg = a};
        VARIABLE(&c, &r, B, T, a->C);
        PARAMETER(&c, &r, a->filters, 1, a->k, a->k, a->k);
        PARAMETER(&c, &r, a->filters);
        if (a->residual == 1) VARIABLE(&c, &r, B, T, a->C);
        check_case(&c);
    }
}

/* ---- Patches and back ---- */

static mhla_tensor *embed_build(mhla_tape *t, const layer_case *c) { return mhla_nn_patch_embed(t, P(1), P(2), X(0)); }

static void embed_reference(double *y, const layer_case *c) {
    const int64_t C = S(0, 1), F = S(0, 2), H = S(0, 3), W = S(0, 4), O = S(1, 0), p = S(1, 4), h = H / p, w = W / p;
    for (int64_t i = 0; i < S(0, 0) * F * h * w * O; i++) {
        const int64_t o = i % O, at = i / O, column = at % w, row = at / w % h, f = at / w / h % F, b = at / w / h / F;
        y[i] = D(2)[o];
        for (int64_t n = 0; n < C * p * p; n++) {
            const int64_t ch = n / p / p, di = n / p % p, dj = n % p;
            y[i] += D(1)[o * C * p * p + n] * D(0)[(((b * C + ch) * F + f) * H + row * p + di) * W + column * p + dj];
        }
    }
}

static const int64_t grid[3] = {3, 2, 4};

static mhla_tensor *unpatch_build(mhla_tape *t, const layer_case *c) {
    return mhla_nn_unpatch_clip(t, *(const int *)c->arg, grid, X(0));
}

static void unpatch_reference(double *y, const layer_case *c) {
    const int64_t p = *(const int *)c->arg, F = grid[0], H = grid[1] * p, W = grid[2] * p, C = S(0, 2) / p / p;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const int64_t w = i % W, h = i / W % H, f = i / W / H % F, ch = i / W / H / F % C, b = i / W / H / F / C;
        const int64_t token = ((b * F + f) * grid[1] + h / p) * grid[2] + w / p;
        y[i] = D(0)[token * C * p * p + (h % p * p + w % p) * C + ch];
    }
}

static void patches(void **state) {
    (void)state;
    rng r = {4};
    for (int p = 1; p < 4; p++) {
        layer_case c = {
            .name = "patches of a clip", .build = embed_build, .reference = embed_reference, .no_slices = 1};
        VARIABLE(&c, &r, 2, 3, 4, 2 * p, 3 * p);
        PARAMETER(&c, &r, 5, 3, 1, p, p);
        PARAMETER(&c, &r, 5);
        check_case(&c);
        layer_case back = {
            .name = "a clip of patches", .build = unpatch_build, .reference = unpatch_reference, .arg = &p};
        VARIABLE(&back, &r, 2, grid[0] * grid[1] * grid[2], 3 * p * p);
        check_case(&back);
    }
}

static void refused(void **state) {
    (void)state;
    const float zeros[64] = {0};
    mhla_tape *t;
    mhla_params *ps;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ASSERT_OK(mhla_params_create(&ps));
    mhla_param *flat = mhla_params_add(ps, "flat", MHLA_SHAPE(4, 1, 3, 3), 0, MHLA_ZERO);
    mhla_param *cube = mhla_params_add(ps, "cube", MHLA_SHAPE(4, 1, 3, 3, 3), 0, MHLA_ZERO);
    mhla_param *deep = mhla_params_add(ps, "deep", MHLA_SHAPE(4, 1, 2, 2, 2), 0, MHLA_ZERO);
    const int64_t cut[3] = {2, 2, 4};
    for (int i = 0; i < 3; i++) {
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        mhla_tensor *x = mhla_nn_input(t, zeros, MHLA_SHAPE(1, i == 1 ? 15 : 16, 4));
        if (i < 2) assert_null(mhla_nn_depthwise_clip(t, i ? cube : flat, NULL, cut, NULL, x));
        if (i == 2) assert_null(mhla_nn_patch_embed(t, deep, NULL, mhla_nn_reshape(t, x, MHLA_SHAPE(1, 1, 4, 4, 4))));
        assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
        static const char *const says[] = {"flat is [4, 1, 3, 3]: expected [C, 1, k, k, k], k odd",
                                           "cube convolves a grid of 2 x 2 x 4", "expected [D, C, p, p] or"};
        if (strstr(mhla_message(), says[i]) == NULL) fail_msg("%s", mhla_message());
    }
    mhla_tape_free(t);
    mhla_params_free(ps);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(depthwise), cmocka_unit_test(patches),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, poison, NULL);
}
