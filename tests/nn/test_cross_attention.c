/* Softmax cross attention with a number of keys for each sample: against its definition in double, and the same bits whatever the
 * batch and the threads. */
#include "layer_case.h"

#define X(i) (c->in[i].x)
#define D(i) (c->in[i].d)

typedef struct cross {
    int H, G, K, V;
    int64_t B, Tq, Tk;
    const int32_t *lengths;
    mhla_plan *plan;
} cross;

static mhla_tensor *cross_build(mhla_tape *t, const layer_case *c) {
    const cross *a = c->arg;
    return mhla_nn_cross_attention(t, a->plan, a->lengths, X(0), X(1), X(2));
}

static void cross_reference(double *y, const layer_case *c) {
    const cross *a = c->arg;
    double p[64];
    for (int64_t row = 0; row < a->B * a->Tq; row++)
        for (int h = 0; h < a->H; h++) {
            const int64_t b = row / a->Tq, g = h / (a->H / a->G), n = a->lengths ? a->lengths[b] : a->Tk;
            double sum = 0.0, *o = y + (row * a->H + h) * a->V;
            for (int j = 0; j < a->V; j++) o[j] = 0.0;
            for (int64_t u = 0; u < n; u++) {
                p[u] = 0.0;
                for (int j = 0; j < a->K; j++)
                    p[u] += D(0)[(row * a->H + h) * a->K + j] * D(1)[((b * a->Tk + u) * a->G + g) * a->K + j];
                sum += p[u] = exp(p[u] / sqrt((double)a->K));
            }
            for (int64_t u = 0; u < n; u++)
                for (int j = 0; j < a->V; j++) o[j] += p[u] / sum * D(2)[((b * a->Tk + u) * a->G + g) * a->V + j];
        }
}

static void make_plan(cross *a) {
    const mhla_plan_desc d = {.size = sizeof d,
                              .kind = MHLA_KIND_SOFTMAX,
                              .heads = a->H,
                              .kv_heads = a->G,
                              .key_dim = a->K,
                              .value_dim = a->V};
    ASSERT_OK(mhla_plan_create(&a->plan, &d));
}

static void definition(void **state) {
    (void)state;
    static const int32_t some[] = {3, 0, 7}, one[] = {1, 1, 1};
    cross cases[] = {{2, 2, 4, 4, 3, 5, 7, some, NULL},
                     {4, 2, 3, 5, 3, 2, 7, one, NULL},
                     {2, 2, 5, 2, 3, 18, 4, NULL, NULL},
                     {2, 1, 3, 3, 3, 40, 7, some, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cross *a = &cases[i];
        rng r = {i + 1};
        make_plan(a);
        layer_case c = {.name = "cross attention", .build = cross_build, .reference = cross_reference, .arg = a};
        VARIABLE(&c, &r, a->B, a->Tq, (int64_t)a->H * a->K);
        VARIABLE(&c, &r, a->B, a->Tk, (int64_t)a->G * a->K);
        VARIABLE(&c, &r, a->B, a->Tk, (int64_t)a->G * a->V);
        check_case(&c);
        mhla_plan_free(a->plan);
    }
}

/* ---- The same bits ---- */

enum { B = 3, TQ = 70, TK = 300, HEADS = 4, DIM = 24, WIDTH = HEADS * DIM };

typedef struct result {
    float *o, *dq, *dkv;
} result;

/* Samples first .. first+n-1: the output and the gradients, k and v slices of one tensor. */
static result run(const cross *a, const float *q, const float *kv, const float *dy, int64_t first, int64_t n,
                  int threads, mhla_dtype precision) {
    mhla_context *context = new_context(threads);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, context));
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tape_set_precision(t, precision);
    mhla_tensor *x = mhla_nn_variable(t, q + first * TQ * WIDTH, MHLA_SHAPE(n, TQ, WIDTH));
    mhla_tensor *y = mhla_nn_variable(t, kv + first * TK * 2 * WIDTH, MHLA_SHAPE(n, TK, 2 * WIDTH));
    mhla_tensor *o = mhla_nn_cross_attention(t, a->plan, a->lengths + first, x, mhla_nn_slice(t, y, 0, WIDTH),
                                             mhla_nn_slice(t, y, WIDTH, WIDTH));
    ASSERT_OK(mhla_tape_status(t));
    ASSERT_OK(mhla_tape_backward_from(t, o, dy + first * TQ * WIDTH));
    result r = {new_poisoned(n * TQ * WIDTH), new_poisoned(n * TQ * WIDTH), new_poisoned(n * TK * 2 * WIDTH)};
    memcpy(r.o, o->data, sizeof(float) * (size_t)(n * TQ * WIDTH));
    memcpy(r.dq, mhla_tensor_grad(x), sizeof(float) * (size_t)(n * TQ * WIDTH));
    memcpy(r.dkv, mhla_tensor_grad(y), sizeof(float) * (size_t)(n * TK * 2 * WIDTH));
    mhla_tape_free(t);
    mhla_context_free(context);
    return r;
}

static void result_free(result *r) { free(r->o), free(r->dq), free(r->dkv); }

static void same_bits(void **state) {
    (void)state;
    static const int32_t lengths[B] = {300, 17, 161};
    rng r = {8};
    cross a = {HEADS, HEADS, DIM, DIM, B, TQ, TK, lengths, NULL};
    make_plan(&a);
    float *q = new_random(&r, B * TQ * WIDTH), *kv = new_random(&r, B * TK * 2 * WIDTH),
          *dy = new_random(&r, B * TQ * WIDTH);
    for (int64_t b = 0; b < B; b++) /* what is behind the lengths is not read */
        for (int64_t i = lengths[b] * 2 * WIDTH; i < TK * 2 * WIDTH; i++) kv[b * TK * 2 * WIDTH + i] = NAN;
    for (int precision = MHLA_F32; precision <= MHLA_BF16; precision++) {
        result whole = run(&a, q, kv, dy, 0, B, 1, (mhla_dtype)precision);
        for (int64_t b = 0; b < B; b++)
            for (int threads = 1; threads <= 3; threads++) {
                result one = run(&a, q, kv, dy, b, 1, threads, (mhla_dtype)precision);
                assert_memory_equal(one.o, whole.o + b * TQ * WIDTH, sizeof(float) * TQ * WIDTH);
                assert_memory_equal(one.dq, whole.dq + b * TQ * WIDTH, sizeof(float) * TQ * WIDTH);
                assert_memory_equal(one.dkv, whole.dkv + b * TK * 2 * WIDTH, sizeof(float) * TK * 2 * WIDTH);
                for (int64_t i = lengths[b] * 2 * WIDTH; i < TK * 2 * WIDTH; i++) assert_true(one.dkv[i] == 0.0f);
                result_free(&one);
            }
        result_free(&whole);
    }
    free(q), free(kv), free(dy);
    mhla_plan_free(a.plan);
}

static void refusals(void **state) {
    (void)state;
    static const float data[64];
    static const int32_t long_one[] = {4}, negative[] = {-1};
    cross a = {2, 2, 4, 4, 1, 2, 3, NULL, NULL};
    make_plan(&a);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int i = 0; i < 4; i++) {
        const char *expected[] = {"lengths[0] is 4: expected 0 to 3", "lengths[0] is -1: expected 0 to 3",
                                  "k is [1, 3, 6]: expected [1, T, 8]", "v is [1, 2, 8]: expected [1, 3, 8]"};
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        mhla_tensor *q = mhla_nn_input(t, data, MHLA_SHAPE(1, 2, 8));
        mhla_tensor *k = mhla_nn_input(t, data, MHLA_SHAPE(1, 3, i == 2 ? 6 : 8));
        mhla_tensor *v = mhla_nn_input(t, data, MHLA_SHAPE(1, i == 3 ? 2 : 3, 8));
        assert_null(mhla_nn_cross_attention(t, a.plan, i == 0 ? long_one : i == 1 ? negative : NULL, q, k, v));
        assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
        assert_string_equal(mhla_message(), expected[i]);
    }
    mhla_tape_free(t);
    mhla_plan_free(a.plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definition),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, poison, NULL);
}
