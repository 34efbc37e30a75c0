/* Every layer but convolutions against its definition in double, outputs and gradients. */
#include "core/rng.h"
#include "layer_case.h"
#include "ops/product/product.h"

#define X(i) (c->in[i].x)
#define P(i) (c->in[i].p)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

/* ---- Linear ---- */

typedef struct linear_arg {
    mhla_activation activation;
    int bias, residual;
} linear_arg;

static mhla_tensor *linear_build(mhla_tape *t, const layer_case *c) {
    const linear_arg *a = c->arg;
    return mhla_nn_linear(t, P(1), a->bias ? P(2) : NULL, a->activation, a->residual ? X(2 + a->bias) : NULL, X(0));
}
static void linear_reference(double *y, const layer_case *c) {
    const linear_arg *a = c->arg;
    const int64_t K = S(1, 1), N = S(1, 0), rows = c->in[0].count / K;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            double s = a->bias ? D(2)[n] : 0.0;
            for (int64_t k = 0; k < K; k++) s += D(0)[r * K + k] * D(1)[n * K + k];
            y[r * N + n] = mhla_activation_value(a->activation, s) + (a->residual ? D(2 + a->bias)[r * N + n] : 0.0);
        }
}
static void linear(void **state) {
    (void)state;
    rng r = {1};
    for (int activation = MHLA_ACT_NONE; activation <= MHLA_ACT_SILU; activation++)
        for (int parts = 0; parts < 4; parts++) {
            const linear_arg a = {(mhla_activation)activation, parts & 1, parts >> 1};
            layer_case c = {.name = "linear", .build = linear_build, .reference = linear_reference, .arg = &a};
            VARIABLE(&c, &r, 2, 5, 7);
            PARAMETER(&c, &r, 11, 7);
            if (a.bias) PARAMETER(&c, &r, 11);
            if (a.residual) VARIABLE(&c, &r, 2, 5, 11);
            check_case(&c);
        }
}

/* ---- Norms ---- */

typedef struct norm_arg {
    int centred, w, b, gate;
    int64_t group;
    int plus_one;
} norm_arg;

static mhla_tensor *norm_build(mhla_tape *t, const layer_case *c) {
    const norm_arg *a = c->arg;
    mhla_param *w = a->w ? P(1) : NULL, *b = a->b ? P(2) : NULL;
    if (a->centred) return mhla_nn_layer_norm(t, w, b, 1e-5f, X(0));
    if (a->b) return mhla_nn_rms_norm_bias(t, w, b, 1e-5f, X(0));
    if (a->gate) return mhla_nn_rms_norm_gated(t, w, 1e-5f, a->group, X(0), X(1 + a->w));
    if (a->plus_one) return mhla_nn_rms_norm_plus_one(t, w, 1e-5f, a->group, X(0));
    return mhla_nn_rms_norm(t, w, 1e-5f, a->group, X(0));
}
static void norm_reference(double *y, const layer_case *c) {
    const norm_arg *a = c->arg;
    const int64_t cols = S(0, 1), G = a->group ? a->group : cols;
    for (int64_t at = 0; at < c->in[0].count; at += G) {
        const double *x = D(0) + at;
        double mean = 0.0, square = 0.0;
        for (int64_t j = 0; j < G && a->centred; j++) mean += x[j] / (double)G;
        for (int64_t j = 0; j < G; j++) square += (x[j] - mean) * (x[j] - mean) / (double)G;
        for (int64_t j = 0; j < G; j++) {
            double v = (x[j] - mean) / sqrt(square + (double)1e-5f);
            if (a->w) v *= D(1)[j] + a->plus_one;
            if (a->b) v += D(2)[j];
            if (a->gate) v *= mhla_activation_value(MHLA_ACT_SILU, D(1 + a->w)[at + j]);
            y[at + j] = v;
        }
    }
}
static void norms(void **state) {
    (void)state;
    rng r = {2};
    const norm_arg cases[] = {{1, 1, 1, 0, 0, 0}, {1, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0},
                              {0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 5, 0}, {0, 1, 0, 1, 0, 0}, {0, 0, 0, 1, 7, 0},
                              {0, 1, 0, 0, 0, 1}, {0, 1, 0, 0, 5, 1}, {0, 1, 1, 0, 0, 0}};
    const int64_t widths[] = {35, 70, 140};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int w = 0; w < 3; w++) {
            const norm_arg *a = &cases[i];
            layer_case c = {
                .name = "norm", .build = norm_build, .reference = norm_reference, .arg = a, .tolerance = 4e-5};
            VARIABLE(&c, &r, 3, widths[w]);
            if (a->w) PARAMETER(&c, &r, a->group ? a->group : widths[w]);
            if (a->b) PARAMETER(&c, &r, widths[w]);
            if (a->gate) VARIABLE(&c, &r, 3, widths[w]);
            check_case(&c);
        }
}

static mhla_tensor *softcap_build(mhla_tape *t, const layer_case *c) {
    return mhla_nn_softcap(t, *(const float *)c->arg, X(0));
}
static void softcap_reference(double *y, const layer_case *c) {
    const double cap = (double)*(const float *)c->arg;
    for (int64_t i = 0; i < c->in[0].count; i++) y[i] = cap > 0.0 ? cap * tanh(D(0)[i] / cap) : D(0)[i];
}
static void softcap(void **state) {
    (void)state;
    rng r = {3};
    static const float caps[] = {0.3f, 1.0f, 50.0f};
    for (int i = 0; i < 3; i++) {
        layer_case c = {.name = "softcap", .build = softcap_build, .reference = softcap_reference, .arg = &caps[i]};
        VARIABLE(&c, &r, 3, 37);
        check_case(&c);
    }
}

typedef struct group_arg {
    int groups, w, b;
    mhla_activation activation;
} group_arg;

static mhla_tensor *group_build(mhla_tape *t, const layer_case *c) {
    const group_arg *a = c->arg;
    return mhla_nn_group_norm(t, a->w ? P(1) : NULL, a->b ? P(1 + a->w) : NULL, a->groups, 1e-5f, a->activation, X(0));
}
static void group_reference(double *y, const layer_case *c) {
    const group_arg *a = c->arg;
    const int64_t B = S(0, 0), T = S(0, 1), C = S(0, 2), per = C / a->groups;
    for (int64_t b = 0; b < B; b++)
        for (int64_t g = 0; g < a->groups; g++) {
            double mean = 0.0, square = 0.0;
            for (int pass = 0; pass < 3; pass++)
                for (int64_t i = 0; i < T * per; i++) {
                    const int64_t ch = g * per + i % per, e = (b * T + i / per) * C + ch;
                    const double d = D(0)[e] - mean, n = (double)(T * per);
                    if (pass == 1) square += d * d / n;
                    if (pass == 2)
                        y[e] = mhla_activation_value(a->activation,
                                                     d / sqrt(square + (double)1e-5f) * (a->w ? D(1)[ch] : 1.0) +
                                                         (a->b ? D(1 + a->w)[ch] : 0.0));
                    if (pass == 0) y[e] = D(0)[e] / n;
                    if (pass == 0 && i == T * per - 1)
                        for (int64_t j = 0; j < T * per; j++) mean += y[(b * T + j / per) * C + g * per + j % per];
                }
        }
}
static void group_norms(void **state) {
    (void)state;
    rng r = {5};
    const struct {
        group_arg a;
        int64_t T, C;
    } cases[] = {{{1, 1, 1, MHLA_ACT_NONE}, 5, 3},   {{2, 1, 1, MHLA_ACT_SILU}, 7, 6},
                 {{4, 0, 1, MHLA_ACT_SILU}, 130, 4}, {{3, 1, 0, MHLA_ACT_NONE}, 1, 21},
                 {{2, 0, 0, MHLA_ACT_NONE}, 9, 34},  {{5, 1, 1, MHLA_ACT_SILU}, 3, 35}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const group_arg *a = &cases[i].a;
        layer_case c = {
            .name = "group norm", .build = group_build, .reference = group_reference, .arg = a, .tolerance = 4e-5};
        VARIABLE(&c, &r, 2, cases[i].T, cases[i].C);
        if (a->w) PARAMETER(&c, &r, cases[i].C);
        if (a->b) PARAMETER(&c, &r, cases[i].C);
        check_case(&c);
    }
}

/* A mean that is a thousand deviations away from 0: statistics lose nothing. */
static void group_norm_far(void **state) {
    (void)state;
    enum { T = 5000, C = 8 };
    rng r = {6};
    float *x = new_random(&r, (int64_t)T * C);
    double sum = 0.0, square = 0.0;
    for (int i = 0; i < T * C; i++) sum += (double)(x[i] += 1000.0f);
    for (int i = 0; i < T * C; i++) square += pow((double)x[i] - sum / (T * C), 2.0);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    const mhla_tensor *y =
        mhla_nn_group_norm(t, NULL, NULL, 1, 1e-6f, MHLA_ACT_NONE, mhla_nn_input(t, x, MHLA_SHAPE(1, T, C)));
    ASSERT_OK(mhla_tape_status(t));
    for (int i = 0; i < T * C; i++)
        assert_true(fabs((double)y->data[i] - ((double)x[i] - sum / (T * C)) / sqrt(square / (T * C) + 1e-6)) < 4e-4);
    mhla_tape_free(t);
    free(x);
}

/* ---- Linear layers of groups ---- */

static mhla_tensor *grouped_build(mhla_tape *t, const layer_case *c) {
    return mhla_nn_grouped_linear(t, P(1), c->n > 2 ? P(2) : NULL, *(const int *)c->arg, X(0));
}
static void grouped_reference(double *y, const layer_case *c) {
    const int64_t K = S(0, 1), N = S(1, 0), n = S(1, 1), groups = *(const int *)c->arg;
    for (int64_t r = 0; r < S(0, 0); r++)
        for (int64_t o = 0; o < N; o++) {
            double s = c->n > 2 ? D(2)[o] : 0.0;
            for (int64_t i = 0; i < n; i++) s += D(1)[o * n + i] * D(0)[r * K + o / (N / groups) * n + i];
            y[r * N + o] = s;
        }
}
static void grouped(void **state) {
    (void)state;
    rng r = {32};
    for (int groups = 1; groups < 4; groups++) {
        layer_case c = {.name = "grouped", .build = grouped_build, .reference = grouped_reference, .arg = &groups};
        VARIABLE(&c, &r, 3, 5 * groups);
        PARAMETER(&c, &r, 7 * groups, 5, 1);
        if (groups > 1) PARAMETER(&c, &r, 7 * groups);
        check_case(&c);
    }
}

static mhla_tensor *patch_build(mhla_tape *t, const layer_case *c) {
    return mhla_nn_patch_embed(t, P(1), P(2), mhla_nn_pad_image(t, 1, 2, 3, 0, X(0)));
}
static void patch_reference(double *y, const layer_case *c) { /* 3x5 images padded to 6x8, patches of 2 */
    for (int64_t b = 0; b < 2; b++)
        for (int64_t token = 0; token < 12; token++)
            for (int64_t o = 0; o < 4; o++) {
                double s = D(2)[o];
                for (int64_t e = 0; e < 12; e++) {
                    const int64_t ch = e / 4, h = token / 4 * 2 + e / 2 % 2 - 1, w = token % 4 * 2 + e % 2 - 3;
                    if (h >= 0 && h < 3 && w >= 0) s += D(1)[o * 12 + e] * D(0)[((b * 3 + ch) * 3 + h) * 5 + w];
                }
                y[(b * 12 + token) * 4 + o] = s;
            }
}
static void patches(void **state) {
    (void)state;
    rng r = {4};
    layer_case c = {.name = "patch_embed", .build = patch_build, .reference = patch_reference, .no_slices = 1};
    VARIABLE(&c, &r, 2, 3, 3, 5);
    PARAMETER(&c, &r, 4, 3, 2, 2);
    PARAMETER(&c, &r, 4);
    check_case(&c);
}

/* 2x3 patches of 2x2 with 3 channels, numbers of a token by row, column, channel */
static mhla_tensor *unpatch_build(mhla_tape *t, const layer_case *c) { return mhla_nn_unpatch(t, 2, 2, 3, X(0)); }
static void unpatch_reference(double *y, const layer_case *c) {
    for (int64_t i = 0; i < 2 * 3 * 4 * 6; i++) {
        const int64_t w = i % 6, h = i / 6 % 4, ch = i / 24 % 3, b = i / 72;
        y[i] = D(0)[((b * 6 + h / 2 * 3 + w / 2) * 4 + h % 2 * 2 + w % 2) * 3 + ch];
    }
}
static void unpatch(void **state) {
    (void)state;
    rng r = {14};
    layer_case c = {.name = "unpatch", .build = unpatch_build, .reference = unpatch_reference};
    VARIABLE(&c, &r, 2, 6, 12);
    check_case(&c);
}

/* ---- adaLN: modulate(layer_norm(x)) ---- */

static mhla_tensor *modulated_build(mhla_tape *t, const layer_case *c) {
    return mhla_nn_modulated_norm(t, 1e-6f, X(1), X(2), X(0));
}
static void modulated_reference(double *y, const layer_case *c) {
    const int64_t B = S(0, 0), T = S(0, 1), w = S(0, 2);
    for (int64_t i = 0; i < B * T; i++) {
        const double *x = D(0) + i * w, *shift = D(1) + i / T * w, *scale = D(2) + i / T * w;
        double mean = 0.0, square = 0.0;
        for (int64_t j = 0; j < w; j++) mean += x[j] / (double)w;
        for (int64_t j = 0; j < w; j++) square += (x[j] - mean) * (x[j] - mean) / (double)w;
        for (int64_t j = 0; j < w; j++)
            y[i * w + j] = (x[j] - mean) / sqrt(square + (double)1e-6f) * (1.0 + scale[j]) + shift[j];
    }
}
static void modulated(void **state) {
    (void)state;
    rng r = {15};
    for (int which = 0; which < 3; which++) { /* few rows, many parts of a sample, wide ones */
        layer_case c = {.name = "modulated_norm", .build = modulated_build, .reference = modulated_reference};
        const int64_t T = which == 1 ? 35 : 3, w = which == 2 ? 70 : 5;
        VARIABLE(&c, &r, 2, T, w);
        VARIABLE(&c, &r, 2, w);
        VARIABLE(&c, &r, 2, w);
        check_case(&c);
    }
}

/* ---- Element-wise ---- */

static mhla_tensor *pointwise_build(mhla_tape *t, const layer_case *c) {
    const int which = *(const int *)c->arg;
    if (which == 0) return mhla_nn_add(t, X(0), X(1));
    if (which == 1) return mhla_nn_mul(t, X(0), X(1));
    if (which == 2) return mhla_nn_scale(t, -1.5f, X(0));
    if (which == 6) return mhla_nn_mul(t, X(0), mhla_nn_add(t, X(0), X(0)));
    return mhla_nn_activation(t, (mhla_activation)(which - 2), X(0));
}
static void pointwise_reference(double *y, const layer_case *c) {
    const int which = *(const int *)c->arg;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const double a = D(0)[i], b = which < 2 ? D(1)[i] : 0.0;
        y[i] = which == 0   ? a + b
               : which == 1 ? a * b
               : which == 2 ? -1.5 * a
               : which == 6 ? 2.0 * a * a
                            : mhla_activation_value((mhla_activation)(which - 2), a);
    }
}
static void pointwise(void **state) {
    (void)state;
    rng r = {5};
    for (int which = 0; which < 7; which++) {
        layer_case c = {.name = "pointwise", .build = pointwise_build, .reference = pointwise_reference, .arg = &which};
        VARIABLE(&c, &r, 3, 21);
        if (which < 2) VARIABLE(&c, &r, 3, 21);
        check_case(&c);
    }
}

/* ---- Tokens: x [2,3,D], vectors [2,D] ---- */

enum { MODULATE, GATE_ADD, POSITION, PREPEND, CONCAT, SLICE, MEAN, TAKE, REORDER, RESHAPE, TOKENS_END };

static const int32_t taken[] = {4, 0, 4, 1, 5}; /* of 6 rows */
static const int32_t reordered[] = {2, 0, 1};

static mhla_tensor *tokens_build(mhla_tape *t, const layer_case *c) {
    switch (*(const int *)c->arg) {
    case MODULATE: return mhla_nn_modulate(t, X(1), X(2), X(0));
    case GATE_ADD: return mhla_nn_gate_add(t, X(0), X(1), X(2));
    case POSITION: return mhla_nn_add_position(t, P(1), X(0));
    case PREPEND: return mhla_nn_prepend(t, P(1), X(0));
    case CONCAT: return mhla_nn_concat_tokens(t, X(0), X(1));
    case SLICE: return mhla_nn_slice_tokens(t, X(0), 1, 1);
    case MEAN: return mhla_nn_mean_tokens(t, X(0));
    case TAKE: return mhla_nn_take_rows(t, taken, 5, X(0));
    case REORDER: return mhla_nn_reorder(t, reordered, X(0));
    default: break;
    }
    /* views of views, one of them of half the columns */
    mhla_tensor *flat = mhla_nn_reshape(t, X(0), MHLA_SHAPE(6, S(0, 2)));
    return mhla_nn_scale(t, 2.0f, mhla_nn_slice(t, flat, 1, S(0, 2) / 2));
}
static void tokens_reference(double *y, const layer_case *c) {
    const int which = *(const int *)c->arg;
    const int64_t w = S(0, 2);
    const double *x = D(0);
    int64_t at = 0;
    for (int64_t i = 0; which == TAKE && i < 5 * w; i++) y[i] = x[taken[i / w] * w + i % w];
    for (int64_t b = 0; b < 2; b++) {
        for (int64_t i = 0; which == PREPEND && i < 2 * w; i++) y[at++] = D(1)[i];
        for (int64_t j = 0; which == MEAN && j < w; j++)
            y[at++] = (x[b * 3 * w + j] + x[(b * 3 + 1) * w + j] + x[(b * 3 + 2) * w + j]) / 3.0;
        for (int64_t k = 0; k < 3 && which != MEAN; k++)
            for (int64_t j = 0; j < w; j++) {
                const double v = x[(b * 3 + k) * w + j];
                if (which == MODULATE) y[at++] = v * (1.0 + D(2)[b * w + j]) + D(1)[b * w + j];
                if (which == GATE_ADD) y[at++] = v + D(1)[b * w + j] * D(2)[(b * 3 + k) * w + j];
                if (which == REORDER) y[at++] = x[(b * 3 + reordered[k]) * w + j];
                if (which == POSITION) y[at++] = v + D(1)[k * w + j];
                if (which == PREPEND || which == CONCAT || (which == SLICE && k == 1)) y[at++] = v;
                if (which == RESHAPE && j >= 1 && j < 1 + w / 2) y[at++] = 2.0 * v;
            }
        for (int64_t i = 0; which == CONCAT && i < 4 * w; i++) y[at++] = D(1)[b * 4 * w + i];
    }
}
static void tokens(void **state) {
    (void)state;
    rng r = {6};
    for (int which = 0; which < TOKENS_END; which++)
        for (int64_t w = 5; w < 80; w += 32) {
            layer_case c = {.name = "tokens", .build = tokens_build, .reference = tokens_reference, .arg = &which};
            VARIABLE(&c, &r, 2, 3, w);
            if (which == MODULATE || which == GATE_ADD) VARIABLE(&c, &r, 2, w);
            if (which == MODULATE) VARIABLE(&c, &r, 2, w);
            if (which == GATE_ADD) VARIABLE(&c, &r, 2, 3, w);
            if (which == POSITION) PARAMETER(&c, &r, 1, 3, w);
            if (which == PREPEND) PARAMETER(&c, &r, 1, 2, w);
            if (which == CONCAT) VARIABLE(&c, &r, 2, 4, w);
            check_case(&c);
        }
}

/* ---- Views that cut their base exactly, of which some get no gradient, or some of it goes past them ---- */

static mhla_tensor *views_build(mhla_tape *t, const layer_case *c) {
    const int which = *(const int *)c->arg;
    mhla_tensor *x = mhla_nn_scale(t, 3.0f, X(0)); /* [4,15], memory of gradients that was used before */
    mhla_tensor *a = mhla_nn_slice(t, x, 0, 5), *b = mhla_nn_slice(t, x, 5, 5), *d = mhla_nn_slice(t, x, 10, 5);
    if (which == 0) return mhla_nn_scale(t, 2.0f, b);
    if (which == 5) { /* columns of other rows than the base's: elements 1 to 3 of each 5 */
        mhla_tensor *inner = mhla_nn_slice(t, mhla_nn_reshape(t, x, MHLA_SHAPE(12, 5)), 1, 3);
        b = mhla_nn_reshape(t, mhla_nn_slice(t, b, 0, 3), MHLA_SHAPE(1, 4, 3));
        return mhla_nn_concat_tokens(t, b, mhla_nn_reshape(t, mhla_nn_scale(t, 1.0f, inner), MHLA_SHAPE(1, 12, 3)));
    }
    if (which == 1) return mhla_nn_add(t, mhla_nn_mul(t, a, d), a);
    /* the base itself, before and after a view in the order of backward */
    mhla_tensor *whole = mhla_nn_slice(t, mhla_nn_scale(t, 2.0f, x), 10, 5);
    mhla_tensor *y = which == 2 ? mhla_nn_add(t, whole, b) : mhla_nn_add(t, mhla_nn_scale(t, 1.0f, b), whole);
    return which == 4 ? mhla_nn_add(t, y, mhla_nn_slice(t, x, 3, 5)) : y; /* one that overlaps the others */
}
static void views_reference(double *y, const layer_case *c) {
    const int which = *(const int *)c->arg;
    for (int64_t i = 0; which == 5 && i < 48; i++)
        y[i] = 3.0 * (i < 12 ? D(0)[i / 3 * 15 + 5 + i % 3] : D(0)[(i - 12) / 3 * 5 + 1 + i % 3]);
    for (int64_t i = 0; which != 5 && i < 20; i++) {
        const double *x = D(0) + i / 5 * 15 + i % 5;
        y[i] = which == 0   ? 6.0 * x[5]
               : which == 1 ? 9.0 * x[0] * x[10] + 3.0 * x[0]
                            : 6.0 * x[10] + 3.0 * x[5] + (which == 4 ? 3.0 * x[3] : 0.0);
    }
}
static void views(void **state) {
    (void)state;
    rng r = {12};
    for (int which = 0; which < 6; which++) {
        layer_case c = {.name = "views", .build = views_build, .reference = views_reference, .arg = &which};
        VARIABLE(&c, &r, 4, 15);
        check_case(&c);
    }
}

/* ---- Randomness: sample b of the batch is number 10 + b, seed 7, step 3; the first layer that draws is place 65536 ---- */

static mhla_tensor *drop_build(mhla_tape *t, const layer_case *c) {
    const int which = *(const int *)c->arg;
    if (which == 0) return mhla_nn_dropout(t, 0.4f, X(0));
    if (which == 1) return mhla_nn_drop_path(t, 0.4f, X(0));
    if (which == 3) return mhla_nn_linear_drop(t, 0.4f, P(2), P(3), X(1), X(0));
    return mhla_nn_drop_path_add(t, 0.4f, X(1), X(0));
}
static void drop_reference(double *y, const layer_case *c) {
    const int which = *(const int *)c->arg;
    const int64_t T = S(0, 1), w = S(0, 2);
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const int64_t b = i / (T * w), word = which ? 0 : i / w % T * ((w + 3) / 4 * 4) + i % w;
        const mhla_rng g = mhla_rng_make(7, 3, 10 + (uint64_t)b, 65536);
        uint32_t words[4];
        mhla_rng_block(&g, (uint32_t)(word / 4), words);
        const double kept = mhla_rng_unit(words[word % 4]) < 0.4f ? 0.0 : 1.0 / (double)(1.0f - 0.4f);
        y[i] = kept * D(0)[i] + (which == 2 ? D(1)[i] : 0.0);
        if (which < 3) continue;
        double s = D(3)[i % w]; /* W [7,7] */
        for (int64_t k = 0; k < w; k++) s += D(0)[i / w * w + k] * D(2)[i % w * w + k];
        y[i] = kept * s + D(1)[i];
    }
}
static void drops(void **state) {
    (void)state;
    rng r = {7};
    for (int which = 0; which < 3; which++) {
        layer_case c = {
            .name = "drop", .build = drop_build, .reference = drop_reference, .arg = &which, .drop = MHLA_TAPE_DROP};
        VARIABLE(&c, &r, 6, 2, 7);
        if (which >= 2) VARIABLE(&c, &r, 6, 2, 7);
        if (which == 3) PARAMETER(&c, &r, 7, 7);
        if (which == 3) PARAMETER(&c, &r, 7);
        check_case(&c);
    }
}

/* ---- Rotary, embedding ---- */

static const float angles_cos[] = {1.0f, 1.0f, 0.6f, -0.8f, 0.28f, 0.96f}, /* [3,2] */
    angles_sin[] = {0.0f, 0.0f, 0.8f, 0.6f, -0.96f, 0.28f};

static mhla_tensor *rotary_build(mhla_tape *t, const layer_case *c) {
    const mhla_rope rope = *(const mhla_rope *)c->arg;
    return mhla_nn_rotary(t, (mhla_rotary){rope, 5, 4, angles_cos, angles_sin}, X(0));
}
static void rotary_reference(double *y, const layer_case *c) {
    const int half = *(const mhla_rope *)c->arg == MHLA_ROPE_HALF;
    for (int64_t i = 0; i < c->in[0].count; i += 5) { /* heads of 5, 4 dims turn */
        const double *x = D(0) + i;
        const int64_t token = i / 10 % 3;
        for (int j = 0; j < 2; j++) {
            const int a = half ? j : 2 * j, b = half ? j + 2 : 2 * j + 1;
            const double co = (double)angles_cos[token * 2 + j], si = (double)angles_sin[token * 2 + j];
            y[i + a] = x[a] * co - x[b] * si;
            y[i + b] = x[b] * co + x[a] * si;
        }
        y[i + 4] = x[4];
    }
}
static void rotary(void **state) {
    (void)state;
    rng r = {8};
    for (mhla_rope rope = MHLA_ROPE_HALF; rope <= MHLA_ROPE_INTERLEAVED; rope++) {
        layer_case c = {.name = "rotary", .build = rotary_build, .reference = rotary_reference, .arg = &rope};
        VARIABLE(&c, &r, 2, 3, 10);
        check_case(&c);
    }
}

static const int32_t ids[] = {3, 0, 3, 3, 1, 0};
static mhla_tensor *embedding_build(mhla_tape *t, const layer_case *c) { return mhla_nn_embedding(t, P(0), ids, 2, 3); }
static void embedding_reference(double *y, const layer_case *c) {
    for (int i = 0; i < 6; i++)
        for (int64_t j = 0; j < 19; j++) y[i * 19 + j] = D(0)[ids[i] * 19 + j];
}
static void embedding(void **state) {
    (void)state;
    rng r = {9};
    layer_case c = {.name = "embedding", .build = embedding_build, .reference = embedding_reference};
    PARAMETER(&c, &r, 5, 19);
    check_case(&c);
}

/* ---- Losses ---- */

typedef struct loss_arg {
    int kind; /* 0 labels, 1 soft targets, 2 squares, 3 the same worked out here */
    float smoothing;
    float targets[4 * 6];
    float *gradient; /* likewise */
} loss_arg;
static const int32_t labels[] = {2, -1, 5, 0};

static mhla_tensor *loss_build(mhla_tape *t, const layer_case *c) {
    const loss_arg *a = c->arg;
    if (a->kind == 2) return mhla_nn_mse(t, X(0), a->targets);
    if (a->kind == 3) {
        mhla_tensor *x = X(0);
        float loss = 0.0f;
        for (int i = 0; i < 24 && !(mhla_tape_mode(t) & MHLA_TAPE_DRY); i++) {
            const float d = x->data[i / 6 * x->ld + i % 6] - a->targets[i];
            loss += d * d / 24.0f;
            a->gradient[i] = 2.0f * d / 24.0f;
        }
        return mhla_nn_judged(t, loss, a->gradient, x);
    }
    mhla_tensor *p,
        *loss = mhla_nn_cross_entropy(t, X(0), a->kind ? NULL : labels, a->kind ? a->targets : NULL, a->smoothing, &p);
    if (loss) {
        double sum = 0.0;
        for (int j = 0; j < 6; j++) sum += (double)p->data[6 + j];
        assert_true(fabs(sum - 1.0) < 1e-6);
    }
    return loss;
}
static void loss_reference(double *y, const layer_case *c) {
    const loss_arg *a = c->arg;
    double loss = 0.0, rows = a->kind ? 4.0 : 3.0, e = (double)a->smoothing;
    for (int i = 0; i < 4; i++) {
        const double *x = D(0) + i * 6;
        double sum = 0.0, all = 0.0;
        for (int j = 0; j < 6; j++) sum += exp(x[j]);
        for (int j = 0; j < 6; j++) all += (double)a->targets[i * 6 + j];
        for (int j = 0; j < 6; j++) {
            const double d = x[j] - (double)a->targets[i * 6 + j];
            const double soft = (1.0 - e) * (double)a->targets[i * 6 + j] + e / 6.0 * all;
            const double hard = (1.0 - e) * (j == labels[i]) + e / 6.0;
            if (a->kind >= 2) loss += d * d / 24.0;
            if (a->kind == 1) loss += soft * (log(sum) - x[j]) / rows;
            if (a->kind == 0 && labels[i] >= 0) loss += hard * (log(sum) - x[j]) / rows;
        }
    }
    y[0] = loss;
}
static void losses(void **state) {
    (void)state;
    rng r = {10};
    for (int kind = 0; kind < 4; kind++)
        for (int smooth = 0; smooth < 2; smooth++) {
            float gradient[4 * 6];
            loss_arg a = {kind, smooth ? 0.1f : 0.0f, {0}, gradient};
            for (int i = 0; i < 24; i++) a.targets[i] = fabsf(rng_signed(&r));
            layer_case c = {.name = "loss", .build = loss_build, .reference = loss_reference, .arg = &a};
            VARIABLE(&c, &r, 4, 6);
            check_case(&c);
        }
}

/* ---- Channels to pixels and back ---- */

typedef struct shuffle_arg {
    int up, f;
    int64_t H, W, channels;
} shuffle_arg;

static mhla_tensor *shuffle_build(mhla_tape *t, const layer_case *c) {
    const shuffle_arg *a = c->arg;
    return (a->up ? mhla_nn_pixel_shuffle : mhla_nn_pixel_unshuffle)(t, a->f, a->H, a->W, a->channels, X(0));
}
static void shuffle_reference(double *y, const layer_case *c) {
    const shuffle_arg *a = c->arg;
    const int64_t B = S(0, 0), n = S(0, 2), f = a->f, fine = a->up ? a->channels : n, coarse = a->up ? n : a->channels;
    const int64_t r = f * f * fine / coarse;
    for (int64_t i = 0; i < B * a->H * a->W * coarse && !a->up; i++) y[i] = 0.0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < f * a->H; h++)
            for (int64_t w = 0; w < f * a->W; w++)
                for (int64_t ch = 0; ch < fine; ch++) {
                    const int64_t at = ((b * f * a->H + h) * f * a->W + w) * fine + ch;
                    const int64_t from =
                        (b * a->H * a->W + h / f * a->W + w / f) * coarse + (f * f * ch + h % f * f + w % f) / r;
                    if (a->up) y[at] = D(0)[from];
                    if (!a->up) y[from] += D(0)[at] / (double)r;
                }
}
static void shuffles(void **state) {
    (void)state;
    rng r = {13};
    static const shuffle_arg cases[] = {{1, 2, 3, 2, 3},  {1, 2, 2, 3, 6}, {1, 1, 2, 2, 12},
                                        {0, 2, 3, 2, 12}, {0, 2, 2, 1, 6}, {0, 1, 2, 2, 4}};
    static const int64_t channels[] = {12, 12, 4, 3, 12, 12};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const shuffle_arg *a = &cases[i];
        layer_case c = {.name = "shuffle", .build = shuffle_build, .reference = shuffle_reference, .arg = a};
        VARIABLE(&c, &r, 2, a->H * a->W * (a->up ? 1 : a->f * a->f), channels[i]);
        check_case(&c);
    }
}

/* ---- Attention: against the references of libmhla, with q, k, v slices of one fused tensor ---- */

static void attention(void **state) {
    (void)state;
    rng r = {11};
    const mhla_plan_desc plans[] = {
        {.size = sizeof *plans,
         .heads = 2,
         .key_dim = 5,
         .value_dim = 5,
         .feature_eps = 1e-6f,
         .den_eps = 1e-6f,
         .axes = 2,
         .grid = {4, 6},
         .blocks = {2, 3}},
        {.size = sizeof *plans,
         .heads = 2,
         .key_dim = 5,
         .value_dim = 5,
         .denominator = MHLA_DEN_RELEASED,
         .feature_eps = 1e-6f,
         .axes = 2,
         .grid = {4, 6},
         .blocks = {2, 2},
         .mix_per_head = 1},
        {.size = sizeof *plans,
         .kind = MHLA_KIND_CAUSAL,
         .rope = MHLA_ROPE_INTERLEAVED,
         .rope_dim = 2,
         .heads = 2,
         .key_dim = 5,
         .value_dim = 5,
         .denominator = MHLA_DEN_NONE,
         .chunk = 8,
         .chunks = 3},
        {.size = sizeof *plans, .kind = MHLA_KIND_LINEAR, .heads = 2, .key_dim = 5, .value_dim = 5, .den_eps = 1e-6f},
        {.size = sizeof *plans,
         .kind = MHLA_KIND_SOFTMAX,
         .rope = MHLA_ROPE_HALF,
         .rope_dim = 4,
         .heads = 2,
         .key_dim = 5,
         .value_dim = 5},
        {.size = sizeof *plans, .kind = MHLA_KIND_FOCUSED, .heads = 2, .key_dim = 5, .value_dim = 5},
        {.size = sizeof *plans, .kind = MHLA_KIND_INLINE, .heads = 2, .key_dim = 5, .value_dim = 5},
        {.size = sizeof *plans,
         .kind = MHLA_KIND_RALA,
         .rope = MHLA_ROPE_INTERLEAVED,
         .rope_dim = 4,
         .heads = 2,
         .key_dim = 5,
         .value_dim = 5}};
    enum { B = 2, T = 24, D = 10 };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        for (int onto = 0; onto < 2; onto++) {
            mhla_plan *plan;
            ASSERT_OK(mhla_plan_create(&plan, &plans[i]));
            const int64_t M = plans[i].kind <= MHLA_KIND_CAUSAL ? mhla_plan_blocks(plan) : 0,
                          H = plans[i].mix_per_head ? 2 : 1;
            float *qkv = new_random(&r, B * T * 3 * D), *dy = new_random(&r, B * T * D),
                  *base = new_random(&r, B * T * D);
            float cosines[T * 2], sines[T * 2];
            const int dims = plans[i].rope_dim ? plans[i].rope_dim : 2;
            ASSERT_OK(mhla_rope_table(cosines, sines, 1, (const int[]){T}, &dims, 100.0));
            const mhla_call rope = {.rope_cos = cosines, .rope_sin = sines, .rope_rows = T};
            const mhla_call *given = plans[i].rope ? &rope : NULL;
            mhla_params *ps;
            ASSERT_OK(mhla_params_create(&ps));
            const int focused = plans[i].kind == MHLA_KIND_FOCUSED;
            mhla_param *mix = M         ? mhla_params_add(ps, "mix", MHLA_SHAPE(H, M, M), 0, MHLA_ZERO)
                              : focused ? mhla_params_add(ps, "scale", MHLA_SHAPE(1, 1, D), 0, MHLA_ZERO)
                                        : NULL;
            for (int64_t e = 0; mix && e < mix->count; e++) mix->data[e] = fabsf(rng_signed(&r));
            mhla_tape *t;
            ASSERT_OK(mhla_tape_create(&t, NULL));
            mhla_tape_begin(t, MHLA_TAPE_RECORD);
            mhla_tensor *x = mhla_nn_variable(t, qkv, MHLA_SHAPE(B, T, 3 * D));
            mhla_tensor *b = mhla_nn_variable(t, base, MHLA_SHAPE(B, T, D));
            mhla_tensor *q = mhla_nn_slice(t, x, 0, D), *k = mhla_nn_slice(t, x, D, D),
                        *v = mhla_nn_slice(t, x, 2 * D, D);
            mhla_tensor *y =
                onto ? mhla_nn_attention_onto(t, plan, given, mix, mhla_nn_scale(t, 2.0f, b), q, k, v)
                     : mhla_nn_add(t, mhla_nn_scale(t, 2.0f, b), mhla_nn_attention(t, plan, given, mix, q, k, v));
            ASSERT_OK(mhla_tape_status(t));

            const mhla_strides s = {T * 3 * D, 3 * D, 5};
            mhla_call call = rope;
            call.size = sizeof call;
            call.batch = B;
            call.tokens = T;
            call.q = call.k = call.v = s;
            if (focused) call.focus = mix->data;
            const float *m = M ? mix->data : NULL;
            float *o = new_poisoned(B * T * D), *dqkv = new_poisoned(B * T * 3 * D),
                  *dmix = new_poisoned(M * M * H + D);
            ASSERT_OK(mhla_forward_reference(plan, &call, o, qkv, qkv + D, qkv + 2 * D, m));
            for (int64_t e = 0; e < B * T * D; e++) o[e] += 2.0f * base[e];
            ASSERT_CLOSE(y->data, o, B * T * D, 2e-6, "attention %zu, onto %d", i, onto);
            const mhla_grads grads = {.size = sizeof grads,
                                      .dq = dqkv,
                                      .dk = dqkv + D,
                                      .dv = dqkv + 2 * D,
                                      .dq_strides = s,
                                      .dk_strides = s,
                                      .dv_strides = s,
                                      .dmix = M ? dmix : NULL,
                                      .dfocus = focused ? dmix : NULL};
            ASSERT_OK(mhla_backward_reference(plan, &call, &grads, dy, qkv, qkv + D, qkv + 2 * D, m));
            ASSERT_OK(mhla_tape_backward_from(t, y, dy));
            ASSERT_CLOSE(mhla_tensor_grad(x), dqkv, B * T * 3 * D, 5e-6, "attention %zu, onto %d", i, onto);
            if (mix) ASSERT_CLOSE(mix->grad, dmix, mix->count, 5e-6, "attention %zu, onto %d", i, onto);
            for (int64_t e = 0; e < B * T * D; e++) assert_true(mhla_tensor_grad(b)[e] == 2.0f * dy[e]);
            free(qkv), free(dy), free(base), free(o), free(dqkv), free(dmix);
            mhla_tape_free(t);
            mhla_params_free(ps);
            mhla_plan_free(plan);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),      cmocka_unit_test(norms),          cmocka_unit_test(softcap),
        cmocka_unit_test(group_norms), cmocka_unit_test(group_norm_far), cmocka_unit_test(shuffles),
        cmocka_unit_test(grouped),     cmocka_unit_test(patches),        cmocka_unit_test(unpatch),
        cmocka_unit_test(modulated),   cmocka_unit_test(pointwise),      cmocka_unit_test(tokens),
        cmocka_unit_test(drops),       cmocka_unit_test(rotary),         cmocka_unit_test(embedding),
        cmocka_unit_test(losses),      cmocka_unit_test(attention),      cmocka_unit_test(views),
    };
    return cmocka_run_group_tests(tests, poison, NULL);
}
