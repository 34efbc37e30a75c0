/* What stands around recurrences with decay, and recurrences themselves as layers: against definitions in double, gradients
 * by differences. */
#include "layer_case.h"

#define X(i) (c->in[i].x)
#define P(i) (c->in[i].p)
#define D(i) (c->in[i].d)
#define S(i, a) (c->in[i].shape[a])

static double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }
static double softplus(double x) { return log1p(exp(x)); }

/* ---- Functions of rows ---- */

enum { LOG_SIGMOID, BOUNDED, SIGMOID, STEPS, LIMITED, RATES, CHANNELS, MUL, SKIP, REPEAT, KINDS };

static mhla_tensor *row_build(mhla_tape *t, const layer_case *c) {
    switch (*(const int *)c->arg) {
    case LOG_SIGMOID: return mhla_nn_log_sigmoid(t, 16.0f, -INFINITY, X(0));
    case BOUNDED: return mhla_nn_log_sigmoid(t, 2.0f, -0.35f, X(0));
    case SIGMOID: return mhla_nn_sigmoid(t, 2.0f, X(0));
    case STEPS: return mhla_nn_time_steps(t, P(1), 0.0f, INFINITY, X(0));
    case LIMITED: return mhla_nn_time_steps(t, P(1), 0.5f, 1.0f, X(0));
    case RATES: return mhla_nn_rates(t, P(1), X(0));
    case CHANNELS: return mhla_nn_channels(t, P(1), X(0));
    case MUL: return mhla_nn_mul_heads(t, X(0), X(1));
    case SKIP: return mhla_nn_skip_heads(t, P(1), X(0), X(2));
    default: return mhla_nn_repeat_heads(t, 2, 3, X(0));
    }
}

static void row_reference(double *y, const layer_case *c) {
    const int kind = *(const int *)c->arg;
    const int64_t cols = S(0, 2), rows = S(0, 0) * S(0, 1);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            const double x = D(0)[r * cols + j];
            double *to = &y[r * cols + j];
            if (kind == LOG_SIGMOID) *to = log(logistic(x)) / 16.0;
            if (kind == BOUNDED) *to = fmax(log(logistic(x)) / 2.0, (double)-0.35f);
            if (kind == SIGMOID) *to = 2.0 * logistic(x);
            if (kind == STEPS) *to = softplus(x + D(1)[j]);
            if (kind == LIMITED) *to = fmin(fmax(softplus(x + D(1)[j]), 0.5), 1.0);
            if (kind == RATES) *to = -exp(D(1)[j]) * x;
            if (kind == CHANNELS) *to = D(1)[j] * x;
            if (kind == MUL) *to = x * D(1)[r * (cols / 2) + j / 2];
            if (kind == SKIP) *to = D(2)[r * cols + j] + D(1)[j / 2] * x;
            for (int k = 0; k < 3 && kind == REPEAT; k++) y[r * cols * 3 + j / 2 * 6 + k * 2 + j % 2] = x;
        }
}

static void rows(void **state) {
    (void)state;
    rng r = {1};
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t T = 1; T <= 40; T += 39) {
            layer_case c = {.name = "gate", .build = row_build, .reference = row_reference, .arg = &kind};
            VARIABLE(&c, &r, 2, T, 4);
            if (kind == STEPS || kind == LIMITED || kind == RATES || kind == CHANNELS) PARAMETER(&c, &r, 4);
            if (kind == MUL) VARIABLE(&c, &r, 2, T, 2);
            if (kind == SKIP) {
                PARAMETER(&c, &r, 2);
                VARIABLE(&c, &r, 2, T, 4);
            }
            check_case(&c);
        }
}

/* Far out nothing overflows. */
static void far_out(void **state) {
    (void)state;
    static const float x[] = {-1000.0f, -80.0f, 0.0f, 80.0f, 1000.0f};
    static const float wanted[] = {-1000.0f, -80.0f, -0.693147181f, 0.0f, 0.0f};
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *in = mhla_nn_variable(t, x, MHLA_SHAPE(1, 1, 5));
    mhla_tensor *y = mhla_nn_log_sigmoid(t, 1.0f, -INFINITY, in);
    ASSERT_OK(mhla_tape_backward_from(t, y, (const float[]){1, 1, 1, 1, 1}));
    for (int i = 0; i < 5; i++) {
        assert_true(fabsf(y->data[i] - wanted[i]) <= 1e-6f * fabsf(wanted[i]) + 1e-30f);
        assert_true(mhla_tensor_grad(in)[i] >= 0.0f && mhla_tensor_grad(in)[i] <= 1.0f);
    }
    mhla_tape_free(t);
}

/* ---- Recurrences ---- */

typedef struct recurrence {
    mhla_kind kind;
    int H, G, K, V;
    const int64_t *cu;
    int64_t sequences;
    mhla_plan *plan;
    const float *fixed; /* [H], or NULL: there is a decay with a gradient */
} recurrence;

static mhla_tensor *recurrence_build(mhla_tape *t, const layer_case *c) {
    const recurrence *a = c->arg;
    const mhla_call call = {.size = sizeof call,
                            .cu_seqlens = a->cu,
                            .sequences = a->sequences,
                            .decay = a->fixed,
                            .decay_strides = {0, 0, 1}};
    mhla_tensor *decay = a->fixed ? NULL : mhla_nn_log_sigmoid(t, 2.0f, -INFINITY, X(3));
    return mhla_nn_recurrence(t, a->plan, &call, X(0), X(1), X(2), decay, c->n > 4 ? X(4) : NULL);
}

static void recurrence_reference(double *y, const layer_case *c) {
    const recurrence *a = c->arg;
    const int64_t B = S(0, 0), T = S(0, 1), H = a->H, G = a->G, K = a->K, V = a->V;
    const int64_t dims = a->kind == MHLA_KIND_GLA ? K : 1;
    double state[64], *s = state;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                int fresh = t == 0;
                for (int64_t i = 0; a->cu && i < a->sequences; i++) fresh |= a->cu[i] == t;
                if (fresh) memset(state, 0, sizeof state);
                const int64_t row = b * T + t, g = h / (H / G);
                const double *q = D(0) + (row * G + g) * K, *k = D(1) + (row * G + g) * K,
                             *v = D(2) + (row * H + h) * V;
                for (int64_t i = 0; i < K * V; i++)
                    s[i] *= exp(a->fixed ? (double)a->fixed[h]
                                         : log(logistic(D(3)[(row * H + h) * dims + i / V % dims])) / 2.0);
                for (int64_t j = 0; j < V; j++) {
                    double had = 0.0;
                    for (int64_t i = 0; i < K && c->n > 4; i++) had += s[i * V + j] * k[i];
                    const double put = c->n > 4 ? D(4)[row * H + h] * (v[j] - had) : v[j];
                    double sum = 0.0;
                    for (int64_t i = 0; i < K; i++) {
                        s[i * V + j] += k[i] * put;
                        sum += q[i] * s[i * V + j];
                    }
                    y[(row * H + h) * V + j] = sum / sqrt((double)K);
                }
            }
}

static void check_recurrence(recurrence a, int64_t B, int64_t T, uint64_t seed) {
    rng r = {seed};
    const mhla_plan_desc d = {.size = sizeof d,
                              .kind = a.kind,
                              .heads = a.H,
                              .key_heads = a.G == a.H ? 0 : a.G,
                              .key_dim = a.K,
                              .value_dim = a.V};
    ASSERT_OK(mhla_plan_create(&a.plan, &d));
    layer_case c = {.name = "recurrence", .build = recurrence_build, .reference = recurrence_reference, .arg = &a};
    VARIABLE(&c, &r, B, T, a.G * a.K);
    VARIABLE(&c, &r, B, T, a.G * a.K);
    VARIABLE(&c, &r, B, T, a.H * a.V);
    if (a.fixed == NULL) VARIABLE(&c, &r, B, T, a.H * (a.kind == MHLA_KIND_GLA ? a.K : 1));
    if (a.kind == MHLA_KIND_GATED_DELTA) VARIABLE(&c, &r, B, T, a.H);
    check_case(&c);
    mhla_plan_free(a.plan);
}

static void recurrences(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 1, 1, 6, 9};
    static const float fixed[] = {-0.1f, -0.5f};
    check_recurrence((recurrence){.kind = MHLA_KIND_GLA, .H = 2, .G = 2, .K = 3, .V = 5}, 2, 7, 1);
    check_recurrence((recurrence){.kind = MHLA_KIND_GLA, .H = 1, .G = 1, .K = 4, .V = 1, .cu = cu, .sequences = 4}, 1,
                     9, 2);
    check_recurrence((recurrence){.kind = MHLA_KIND_SIMPLE_GLA, .H = 2, .G = 1, .K = 3, .V = 4}, 2, 7, 3);
    check_recurrence((recurrence){.kind = MHLA_KIND_SIMPLE_GLA, .H = 2, .G = 2, .K = 3, .V = 4, .fixed = fixed}, 2, 7,
                     4);
    check_recurrence((recurrence){.kind = MHLA_KIND_GATED_DELTA, .H = 2, .G = 1, .K = 3, .V = 4}, 2, 7, 5);
    check_recurrence(
        (recurrence){.kind = MHLA_KIND_GATED_DELTA, .H = 2, .G = 2, .K = 2, .V = 3, .cu = cu, .sequences = 4}, 1, 9, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),
        cmocka_unit_test(far_out),
        cmocka_unit_test(recurrences),
    };
    return cmocka_run_group_tests(tests, poison, NULL);
}
