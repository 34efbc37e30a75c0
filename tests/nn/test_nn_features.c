/* Layers of language models against their definitions in double, outputs and gradients: SwiGLU, feature maps, the short
 * convolution. */
#include "layer_case.h"

#define X(i) (c->in[i].x)
#define P(i) (c->in[i].p)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

static double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }

static mhla_tensor *swiglu_build(mhla_tape *t, const layer_case *c) { return mhla_nn_swiglu(t, X(0), X(1)); }
static void swiglu_reference(double *y, const layer_case *c) {
    for (int64_t i = 0; i < c->in[0].count; i++) y[i] = D(0)[i] * logistic(D(0)[i]) * D(1)[i];
}
static void swiglu(void **state) {
    (void)state;
    rng r = {1};
    static const int widths[] = {1, 7, 16, 37};
    for (int i = 0; i < 4; i++) {
        layer_case c = {.name = "swiglu", .build = swiglu_build, .reference = swiglu_reference};
        VARIABLE(&c, &r, 2, 3, widths[i]);
        VARIABLE(&c, &r, 2, 3, widths[i]);
        check_case(&c);
    }
}

typedef struct map_arg {
    int64_t K;
    int which, norm; /* 0 hedgehog, 1 dpfp, 2 dpfp as released, 3.. feature(which - 3) */
} map_arg;

static mhla_tensor *map_build(mhla_tape *t, const layer_case *c) {
    const map_arg *a = c->arg;
    if (a->which == 0) return mhla_nn_hedgehog(t, a->K, X(0));
    if (a->which < 3) return mhla_nn_dpfp(t, a->K, a->which == 2, X(0));
    return mhla_nn_feature(t, (mhla_feature)(a->which - 3), a->K, a->norm, X(0));
}
static void map_head(double *y, const double *x, const map_arg *a) {
    const int64_t K = a->K;
    double z[64], sum = 0.0;
    if (a->which == 0) {
        for (int64_t j = 0; j < K; j++) sum += exp(2.0 * x[j]) + exp(-2.0 * x[j]);
        for (int64_t j = 0; j < K; j++) {
            y[j] = exp(2.0 * x[j]) / sum;
            y[K + j] = exp(-2.0 * x[j]) / sum;
        }
    } else if (a->which < 3) {
        for (int64_t j = 0; j < K; j++) {
            z[j] = fmax(x[j], 0.0);
            z[K + j] = a->which == 2 ? -z[j] : fmax(-x[j], 0.0);
        }
        for (int64_t i = 1; i <= 4; i++)
            for (int64_t j = 0; j < 2 * K; j++) *y++ = z[j] * z[((j - i) % (2 * K) + 2 * K) % (2 * K)];
    } else {
        for (int64_t j = 0; j < K; j++) {
            y[j] = x[j];
            if (a->which - 3 == MHLA_FEATURE_RELU) y[j] = fmax(x[j], 0.0);
            if (a->which - 3 == MHLA_FEATURE_ELU) y[j] = x[j] > 0.0 ? x[j] + 1.0 : exp(x[j]);
            sum += y[j];
        }
        for (int64_t j = 0; j < K && a->norm; j++) y[j] /= sum + 1e-4;
    }
}
static void map_reference(double *y, const layer_case *c) {
    const map_arg *a = c->arg;
    const int64_t F = a->which == 0 ? 2 * a->K : a->which < 3 ? 8 * a->K : a->K;
    for (int64_t h = 0; h < c->in[0].count / a->K; h++) map_head(y + h * F, D(0) + h * a->K, a);
}
static void maps(void **state) {
    (void)state;
    rng r = {2};
    for (int which = 0; which < 6; which++)
        for (int norm = 0; norm < 2; norm++)
            for (int64_t K = norm ? 2 : 1; K <= 5; K += 3) {              /* one dim over itself is 1 */
                if (norm && which - 3 == MHLA_FEATURE_IDENTITY) continue; /* a sum near 0 is nobody's business */
                const map_arg a = {K, which, norm};
                layer_case c = {.name = "map", .build = map_build, .reference = map_reference, .arg = &a};
                c.tolerance = 1e-4;
                VARIABLE(&c, &r, 2, 3, 2 * K);
                check_case(&c);
            }
}

typedef struct conv_arg {
    const int64_t *cu;
    int64_t sequences;
} conv_arg;
static mhla_tensor *conv_build(mhla_tape *t, const layer_case *c) {
    const conv_arg *a = c->arg;
    return mhla_nn_short_conv(t, P(1), c->n > 2 ? P(2) : NULL, a->cu, a->sequences, X(0));
}
static void conv_reference(double *y, const layer_case *c) {
    const conv_arg *a = c->arg;
    const int64_t B = S(0, 0), T = S(0, 1), N = S(0, 2), W = S(1, 2);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            int64_t first = 0;
            for (int64_t s = 0; a->cu && s < a->sequences; s++)
                if (a->cu[s] <= t) first = a->cu[s];
            for (int64_t d = 0; d < N; d++) {
                double sum = c->n > 2 ? D(2)[d] : 0.0;
                for (int64_t j = 0; j < W; j++)
                    if (t - W + 1 + j >= first) sum += D(1)[d * W + j] * D(0)[(b * T + t - W + 1 + j) * N + d];
                y[(b * T + t) * N + d] = sum * logistic(sum);
            }
        }
}
static void short_conv(void **state) {
    (void)state;
    rng r = {3};
    static const int64_t cu[] = {0, 1, 1, 6, 9};
    const conv_arg plain = {0}, packed = {cu, 4};
    static const int lengths[] = {1, 2, 9};
    for (int i = 0; i < 3; i++)
        for (int W = 1; W <= 4; W += 3) {
            layer_case c = {.name = "short conv", .build = conv_build, .reference = conv_reference, .arg = &plain};
            VARIABLE(&c, &r, 2, lengths[i], 5);
            PARAMETER(&c, &r, 5, 1, W);
            if (i > 0) PARAMETER(&c, &r, 5);
            check_case(&c);
        }
    layer_case c = {.name = "packed short conv", .build = conv_build, .reference = conv_reference, .arg = &packed};
    VARIABLE(&c, &r, 1, 9, 3);
    PARAMETER(&c, &r, 3, 1, 4);
    check_case(&c);
}

/* u, delta, z in columns of one input, B and C in those of another, as a model has them; A = -exp(A_log). */
static mhla_tensor *scan_build(mhla_tape *t, const layer_case *c) {
    const conv_arg *a = c->arg;
    const int64_t N = S(2, 1), width = S(2, 0);
    mhla_tensor *x = X(0), *bc = X(1);
    const mhla_nn_scan p = {P(2), P(3), P(4), a->cu, a->sequences, NULL};
    return mhla_nn_selective_scan(t, &p, mhla_nn_slice(t, x, 0, width), mhla_nn_slice(t, x, width, width),
                                  mhla_nn_slice(t, bc, 0, N), mhla_nn_slice(t, bc, N, N),
                                  mhla_nn_slice(t, x, 2 * width, width));
}
static void scan_reference(double *y, const layer_case *c) {
    const conv_arg *a = c->arg;
    const int64_t B = S(0, 0), T = S(0, 1), I = S(2, 0), N = S(2, 1);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < I; i++) {
            double h[8] = {0};
            for (int64_t t = 0; t < T; t++) {
                const double *x = D(0) + (b * T + t) * 3 * I, *bc = D(1) + (b * T + t) * 2 * N;
                const double d = log1p(exp(x[I + i] + D(4)[i])), z = x[2 * I + i];
                double sum = D(3)[i] * x[i];
                for (int64_t s = 0; a->cu && s < a->sequences; s++)
                    if (a->cu[s] == t) memset(h, 0, sizeof h);
                for (int64_t n = 0; n < N; n++) {
                    h[n] = exp(-d * exp(D(2)[i * N + n])) * h[n] + d * x[i] * bc[n];
                    sum += h[n] * bc[N + n];
                }
                y[(b * T + t) * I + i] = sum * z * logistic(z);
            }
        }
}
static void selective_scan(void **state) {
    (void)state;
    rng r = {4};
    static const int64_t cu[] = {0, 1, 1, 6, 9};
    const conv_arg args[] = {{0}, {cu, 4}};
    for (int packed = 0; packed < 2; packed++) {
        layer_case c = {.name = "scan", .build = scan_build, .reference = scan_reference, .arg = &args[packed]};
        VARIABLE(&c, &r, packed ? 1 : 2, 9, 3 * 5);
        VARIABLE(&c, &r, packed ? 1 : 2, 9, 2 * 3);
        PARAMETER(&c, &r, 5, 3);
        PARAMETER(&c, &r, 5);
        PARAMETER(&c, &r, 5);
        check_case(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu),
        cmocka_unit_test(maps),
        cmocka_unit_test(short_conv),
        cmocka_unit_test(selective_scan),
    };
    return cmocka_run_group_tests(tests, poison, NULL);
}
