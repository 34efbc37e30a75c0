/* Linear layers against their definition in double: every instruction set, awkward sizes, strides, each epilogue, the
 * gradients, threads, and bad input. Outputs are poisoned with NaN; what lies beside them must not change. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/product/product.h"

static uint64_t seed = 1;

static float uniform(void) { /* [-1, 1) */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) / 2147483648.0f;
}

static float *random_floats(int64_t n) {
    float *p = malloc(sizeof(float) * (size_t)n);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = uniform();
    return p;
}

static float *poisoned(int64_t n) {
    float *p = malloc(sizeof(float) * (size_t)n);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = NAN;
    return p;
}

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static float from_bf16(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* What n float32 products of numbers up to 1 may lose on their way into one sum. */
static double rounding(int64_t n) { return 2e-6 + 1e-7 * (double)n; }

/* |got - want| <= tolerance, and the same columns beyond each row still NaN. */
static void expect_close(const char *what, const float *got, const double *want, int64_t rows, int64_t cols, int64_t ld,
                         double tolerance) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < (i == rows - 1 ? cols : ld); j++) {
            const double g = (double)got[i * ld + j];
            if (j >= cols) {
                if (!isnan(g)) fail_msg("%s: [%d,%d] beside the output was written", what, (int)i, (int)j);
            } else if (!(fabs(g - want[i * cols + j]) <= tolerance)) {
                fail_msg("%s: [%d,%d] is %.9g, not %.9g", what, (int)i, (int)j, g, want[i * cols + j]);
            }
        }
}

typedef struct layer {
    int64_t rows, N, K, ldx, ldy, ldr;
    float *x, *w, *bias, *residual;
} layer;

static layer make_layer(int64_t rows, int64_t N, int64_t K, int strided) {
    layer l = {rows, N, K, K + strided * 3, N + strided * 5, N + strided * 7, NULL, NULL, NULL, NULL};
    l.x = random_floats(rows * l.ldx);
    l.w = random_floats(N * K);
    l.bias = random_floats(N);
    l.residual = random_floats(rows * l.ldr);
    for (int64_t i = 0; i < rows; i++) /* what lies between the rows must not matter */
        for (int64_t j = K; j < l.ldx; j++) l.x[i * l.ldx + j] = NAN;
    return l;
}

static void free_layer(layer *l) {
    free(l->x);
    free(l->w);
    free(l->bias);
    free(l->residual);
}

/* x W^T in double. */
static double *products(const layer *l, const float *x, const float *w) {
    double *p = malloc(sizeof(double) * (size_t)(l->rows * l->N));
    for (int64_t i = 0; i < l->rows; i++)
        for (int64_t n = 0; n < l->N; n++) {
            double s = 0;
            for (int64_t k = 0; k < l->K; k++) s += (double)x[i * l->ldx + k] * (double)w[n * l->K + k];
            p[i * l->N + n] = s;
        }
    return p;
}

/* Runs one description and compares it with products + the epilogue written out here. */
static void check_forward(const layer *l, const double *sums, const mhla_weight *weight, int bias, int activation,
                          int residual, int pre, int accumulate, const mhla_context *context) {
    float *y = poisoned(l->rows * l->ldy), *kept = poisoned(l->rows * l->N);
    double *want = malloc(sizeof(double) * (size_t)(l->rows * l->N)),
           *want_pre = malloc(sizeof(double) * (size_t)(l->rows * l->N));
    /* residual 2: y itself */
    if (residual == 2 || accumulate)
        for (int64_t i = 0; i < l->rows; i++)
            memcpy(y + i * l->ldy, l->residual + i * l->ldr, sizeof(float) * (size_t)l->N);
    mhla_linear_desc d = {.size = sizeof d,
                          .context = context,
                          .rows = l->rows,
                          .ldx = l->ldx,
                          .ldy = l->ldy,
                          .bias = bias ? l->bias : NULL,
                          .activation = (mhla_activation)activation,
                          .residual = residual == 2 ? y
                                      : residual    ? l->residual
                                                    : NULL,
                          .ldr = residual == 2 ? l->ldy
                                 : residual    ? l->ldr
                                               : 0,
                          .pre_activation = pre ? kept : NULL,
                          .accumulate = accumulate};
    for (int64_t i = 0; i < l->rows * l->N; i++) {
        const double r = (double)l->residual[i / l->N * l->ldr + i % l->N];
        want_pre[i] = sums[i] + (bias ? (double)l->bias[i % l->N] : 0.0);
        want[i] =
            mhla_activation_value((mhla_activation)activation, want_pre[i]) + (residual ? r : 0) + (accumulate ? r : 0);
    }
    assert_int_equal(mhla_linear_forward(&d, y, l->x, weight), MHLA_OK);
    char what[160];
    snprintf(what, sizeof what, "%s rows %d N %d K %d bias %d activation %d residual %d accumulate %d",
             weight->kernels->name, (int)l->rows, (int)l->N, (int)l->K, bias, activation, residual, accumulate);
    const double tolerance = rounding(l->K);
    expect_close(what, y, want, l->rows, l->N, l->ldy, tolerance);
    if (pre) expect_close("pre_activation", kept, want_pre, l->rows, l->N, l->N, tolerance);
    free(y);
    free(kept);
    free(want);
    free(want_pre);
}

/* fn for each instruction set of this CPU. */
static void for_each_isa(void (*fn)(void)) {
    const mhla_kernels *tables[8];
    const int n = mhla_kernels_available(tables, 8);
    for (int i = 0; i < n; i++) {
        assert_int_equal(mhla_set_isa(tables[i]->name), MHLA_OK);
        seed = 1;
        fn();
    }
    assert_int_equal(mhla_set_isa(NULL), MHLA_OK);
}

static const int row_sizes[] = {1, 2, 5, 63, 64, 65, 200}, sizes[] = {1, 7, 60, 64, 72, 100, 300, 1000};
enum { ROW_SIZES = 7, SIZES = 8 };

/* Every pair of N and K, rows and epilogue taken in turn so that each meets each several times. */
static void forward_sizes(void) {
    int turn = 0;
    for (int n = 0; n < SIZES; n++)
        for (int k = 0; k < SIZES; k++, turn++) {
            layer l = make_layer(row_sizes[turn % ROW_SIZES], sizes[n], sizes[k], turn % 2);
            double *sums = products(&l, l.x, l.w);
            mhla_weight *w;
            assert_int_equal(mhla_weight_pack(&w, l.w, MHLA_F32, l.N, l.K, 0), MHLA_OK);
            check_forward(&l, sums, w, 0, 0, 0, 0, 0, NULL);
            check_forward(&l, sums, w, turn % 3 > 0, turn % 4, turn % 5 % 3, turn / 2 % 2, turn / 3 % 2, NULL);
            mhla_weight_free(w);
            free(sums);
            free_layer(&l);
        }
}

static void forward_epilogues(void) {
    const int shapes[][3] = {{5, 72, 60}, {65, 100, 1000}};
    for (int s = 0; s < 2; s++) {
        layer l = make_layer(shapes[s][0], shapes[s][1], shapes[s][2], 1);
        double *sums = products(&l, l.x, l.w);
        mhla_weight *w;
        assert_int_equal(mhla_weight_pack(&w, l.w, MHLA_F32, l.N, l.K, 0), MHLA_OK);
        for (int i = 0; i < 2 * 4 * 3 * 2 * 2; i++)
            check_forward(&l, sums, w, i % 2, i / 2 % 4, i / 8 % 3, i / 24 % 2, i / 48, NULL);
        mhla_weight_free(w);
        free(sums);
        free_layer(&l);
    }
}

/* bfloat16 weights: exact in the definition; x is rounded where the CPU multiplies bfloat16. */
static void forward_bf16(void) {
    const int shapes[][3] = {{1, 1, 1},       {2, 72, 7},     {5, 64, 64},   {65, 100, 300},
                             {63, 300, 1000}, {200, 7, 1000}, {1, 1000, 777}};
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        layer l = make_layer(shapes[s][0], shapes[s][1], shapes[s][2], (int)s % 2);
        const int64_t ldw = l.K + 2;
        uint16_t *half = malloc(sizeof *half * (size_t)(l.N * ldw));
        float *exact = malloc(sizeof(float) * (size_t)(l.N * l.K)),
              *x = malloc(sizeof(float) * (size_t)(l.rows * l.ldx));
        memset(half, 0xff, sizeof *half * (size_t)(l.N * ldw)); /* NaN between the rows */
        for (int64_t i = 0; i < l.N * l.K; i++) {
            half[i / l.K * ldw + i % l.K] = to_bf16(l.w[i]);
            exact[i] = from_bf16(to_bf16(l.w[i]));
        }
        mhla_weight *a, *b;
        assert_int_equal(mhla_weight_pack(&a, half, MHLA_BF16, l.N, l.K, ldw), MHLA_OK);
        for (int64_t i = 0; i < l.rows * l.ldx; i++) x[i] = a->kernels->gemm_bf16 ? from_bf16(to_bf16(l.x[i])) : l.x[i];
        double *sums = products(&l, x, exact);
        check_forward(&l, sums, a, 0, 0, 0, 0, 0, NULL);
        check_forward(&l, sums, a, 1, 1 + (int)s % 3, (int)s % 3, 1, (int)s % 2, NULL);
        /* the same from float32 into a bfloat16 handle; and bfloat16 into a float32 handle */
        assert_int_equal(mhla_weight_update(a, half, MHLA_BF16, ldw), MHLA_OK);
        float *zeros = calloc((size_t)(l.N * l.K), sizeof(float));
        assert_int_equal(mhla_weight_update(a, zeros, MHLA_F32, 0), MHLA_OK);
        assert_int_equal(mhla_weight_update(a, l.w, MHLA_F32, 0), MHLA_OK);
        check_forward(&l, sums, a, 0, 0, 0, 0, 0, NULL);
        assert_int_equal(mhla_weight_pack(&b, zeros, MHLA_F32, l.N, l.K, 0), MHLA_OK);
        assert_int_equal(mhla_weight_update(b, half, MHLA_BF16, ldw), MHLA_OK);
        double *sums32 = products(&l, l.x, exact);
        check_forward(&l, sums32, b, 0, 0, 0, 0, 0, NULL);
        mhla_weight_free(a);
        mhla_weight_free(b);
        free(sums);
        free(sums32);
        free(half);
        free(exact);
        free(zeros);
        free(x);
        free_layer(&l);
    }
}

/* dx = dy W, dw = dy^T x, db: against sums written out here. */
static void gradients_of(int64_t rows, int64_t N, int64_t K, int strided, int accumulate, mhla_dtype dtype) {
    layer l = make_layer(rows, N, K, strided);
    uint16_t *half = malloc(sizeof *half * (size_t)(N * K));
    for (int64_t i = 0; i < N * K; i++) half[i] = to_bf16(l.w[i]);
    for (int64_t i = 0; i < N * K && dtype == MHLA_BF16; i++) l.w[i] = from_bf16(half[i]);
    float *dy = random_floats(rows * l.ldy), *dx = poisoned(rows * l.ldx), *dw = poisoned(N * K), *db = poisoned(N);
    double *want_x = calloc((size_t)(rows * K), 8), *want_w = calloc((size_t)(N * K), 8),
           *want_b = calloc((size_t)N, 8);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = N; j < l.ldy; j++) dy[i * l.ldy + j] = NAN;
        for (int64_t n = 0; n < N; n++) {
            const double g = (double)dy[i * l.ldy + n];
            want_b[n] += g;
            for (int64_t k = 0; k < K; k++) {
                want_x[i * K + k] += g * (double)l.w[n * K + k];
                want_w[n * K + k] += g * (double)l.x[i * l.ldx + k];
            }
        }
    }
    if (accumulate) {
        for (int64_t i = 0; i < rows * K; i++) dx[i / K * l.ldx + i % K] = 1.0f, want_x[i] += 1;
        for (int64_t i = 0; i < N * K; i++) dw[i] = 2.0f, want_w[i] += 2;
        for (int64_t i = 0; i < N; i++) db[i] = 3.0f, want_b[i] += 3;
    }
    mhla_weight *w;
    assert_int_equal(mhla_weight_pack(&w, dtype == MHLA_BF16 ? (void *)half : l.w, dtype, N, K, 0), MHLA_OK);
    const mhla_linear_desc d = {.size = sizeof d, .rows = rows, .ldx = l.ldx, .ldy = l.ldy, .accumulate = accumulate};
    assert_int_equal(mhla_linear_backward_input(&d, dx, dy, w), MHLA_OK);
    assert_int_equal(mhla_linear_backward_weight(&d, dw, db, dy, l.x, N, K), MHLA_OK);
    char what[96];
    snprintf(what, sizeof what, "%s rows %d N %d K %d", w->kernels->name, (int)rows, (int)N, (int)K);
    expect_close(what, dx, want_x, rows, K, l.ldx, rounding(N));
    expect_close(what, dw, want_w, N, K, K, rounding(rows));
    expect_close(what, db, want_b, 1, N, N, rounding(rows));
    if (!accumulate) { /* one without the other */
        for (int64_t i = 0; i < N * K; i++) dw[i] = NAN;
        for (int64_t i = 0; i < N; i++) db[i] = NAN;
        assert_int_equal(mhla_linear_backward_weight(&d, dw, NULL, dy, l.x, N, K), MHLA_OK);
        assert_int_equal(mhla_linear_backward_weight(&d, NULL, db, dy, NULL, N, K), MHLA_OK);
        expect_close("dw alone", dw, want_w, N, K, K, rounding(rows));
        expect_close("db alone", db, want_b, 1, N, N, rounding(rows));
    }
    mhla_weight_free(w);
    free(half);
    free(dy);
    free(dx);
    free(dw);
    free(db);
    free(want_x);
    free(want_w);
    free(want_b);
    free_layer(&l);
}

static void gradients(void) {
    int turn = 0;
    for (int n = 0; n < SIZES; n++)
        for (int k = 0; k < SIZES; k++, turn++)
            if (sizes[n] * sizes[k] <= 100000)
                gradients_of(row_sizes[turn % ROW_SIZES], sizes[n], sizes[k], turn % 2, turn / 2 % 2,
                             (mhla_dtype)(turn % 3 == 2));
    gradients_of(3000, 70, 60, 0, 0, MHLA_F32); /* several chunks, and segments */
    gradients_of(5000, 10, 33, 1, 1, MHLA_F32);
    gradients_of(70, 900, 30, 0, 0, MHLA_BF16);
}

/* Values and slopes over the whole range, and at the places where formulas break. */
static void activations(void) {
    enum { COUNT = 40001, SPECIAL = 8 };
    static const float special[SPECIAL] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, FLT_MAX, -FLT_MAX, 1e-40f};
    static const double at_special[SPECIAL] = {NAN, INFINITY, 0, 0, 0, FLT_MAX, 0, 0};
    static const double slope_special[SPECIAL] = {NAN, 1, 0, 0.5, 0.5, 1, 0, 0.5};
    const mhla_kernels *kernels = mhla_kernels_get();
    float *x = malloc(sizeof(float) * COUNT), *y = poisoned(COUNT + 1), *ones = malloc(sizeof(float) * COUNT);
    for (int i = 0; i < COUNT; i++) {
        x[i] = i < SPECIAL ? special[i] : (float)((i - COUNT / 2) * (i % 10 ? 8e-4 : 1e-2));
        ones[i] = 1.0f;
    }
    for (int a = 1; a < 4; a++) {
        const mhla_epilogue e = {.src = x, .m = 1, .n = COUNT, .activation = (mhla_activation)a, .y = y};
        kernels->epilogue(&e);
        for (int i = 0; i < COUNT; i++) {
            const double v = i < SPECIAL ? at_special[i] : mhla_activation_value((mhla_activation)a, (double)x[i]);
            const double error = fabs((double)y[i] - v), scale = i < SPECIAL ? 0 : fabs((double)x[i]);
            if (isnan(v)   ? !isnan(y[i])
                : isinf(v) ? (double)y[i] != v
                           : !(error <= 2e-7 * (scale + (i < SPECIAL ? fabs(v) + 1e-30 : 0))))
                fail_msg("%s activation %d of %g is %.9g, not %.9g", kernels->name, a, (double)x[i], (double)y[i], v);
        }
        assert_int_equal(mhla_activation_backward(y, ones, x, COUNT, (mhla_activation)a, NULL), MHLA_OK);
        for (int i = 0; i < COUNT; i++) {
            const double v = i < SPECIAL ? slope_special[i] : mhla_activation_slope((mhla_activation)a, (double)x[i]);
            if (isnan(v) ? !isnan(y[i]) : !(fabs((double)y[i] - v) <= 3e-7))
                fail_msg("%s slope %d at %g is %.9g, not %.9g", kernels->name, a, (double)x[i], (double)y[i], v);
        }
        /* in place, and multiplied by dy */
        memcpy(y, x, sizeof(float) * COUNT);
        for (int i = 0; i < COUNT; i++) ones[i] = 2.0f;
        assert_int_equal(mhla_activation_backward(y, ones, y, COUNT, (mhla_activation)a, NULL), MHLA_OK);
        assert_float_equal(y[COUNT / 2 + 3], 2 * mhla_activation_slope((mhla_activation)a, (double)x[COUNT / 2 + 3]),
                           1e-6);
        for (int i = 0; i < COUNT; i++) ones[i] = 1.0f;
    }
    assert_true(isnan(y[COUNT]));
    assert_int_equal(mhla_activation_backward(y, ones, x, 5, MHLA_ACT_NONE, NULL), MHLA_OK);
    assert_true(y[4] == 1.0f);
    free(x);
    free(y);
    free(ones);
}

/* The definition's own slopes, by central differences. */
static void slopes_are_slopes(void **state) {
    (void)state;
    for (int a = 0; a < 4; a++)
        for (double x = -8; x <= 8; x += 0.37) {
            const double h = 1e-5, d = (mhla_activation_value((mhla_activation)a, x + h) -
                                        mhla_activation_value((mhla_activation)a, x - h)) /
                                       (2 * h);
            assert_true(fabs(d - mhla_activation_slope((mhla_activation)a, x)) < 1e-9);
        }
}

static void forward_reference(void **state) {
    (void)state;
    layer l = make_layer(5, 7, 60, 1);
    double *sums = products(&l, l.x, l.w);
    uint16_t half[7 * 60];
    for (int i = 0; i < 7 * 60; i++) half[i] = to_bf16(l.w[i]);
    float *y = poisoned(5 * l.ldy);
    mhla_linear_desc d = {
        .size = sizeof d, .rows = 5, .ldx = l.ldx, .ldy = l.ldy, .bias = l.bias, .activation = MHLA_ACT_SILU};
    assert_int_equal(mhla_linear_forward_reference(&d, y, l.x, l.w, MHLA_F32, 7, 60, 0), MHLA_OK);
    for (int i = 0; i < 35; i++) sums[i] = mhla_activation_value(MHLA_ACT_SILU, sums[i] + (double)l.bias[i % 7]);
    expect_close("reference", y, sums, 5, 7, l.ldy, 1e-6);
    assert_int_equal(mhla_linear_forward_reference(&d, y, l.x, half, MHLA_BF16, 7, 60, 0), MHLA_OK);
    expect_close("reference", y, sums, 5, 7, l.ldy, 0.1);
    assert_int_equal(mhla_linear_forward_reference(&d, y, l.x, NULL, MHLA_BF16, 7, 60, 0), MHLA_EINVAL);
    free(sums);
    free(y);
    free_layer(&l);
}

/* Bit by bit the same for any number of threads, any number of rows beside it, and after a turn through another set. */
static void same_bits(void) {
    const int64_t N = 300, K = 1700, rows = 210;
    layer l = make_layer(rows, N, K, 0);
    uint16_t *half = malloc(sizeof *half * (size_t)(N * K));
    for (int64_t i = 0; i < N * K; i++) half[i] = to_bf16(l.w[i]);
    float *y[2] = {poisoned(rows * N), poisoned(rows * N)}, *dx[2] = {poisoned(rows * K), poisoned(rows * K)};
    float *dw[2] = {poisoned(N * K), poisoned(N * K)}, *db[2] = {poisoned(N), poisoned(N)};
    for (int type = 0; type < 2; type++) {
        mhla_weight *w;
        assert_int_equal(mhla_weight_pack(&w, type ? (void *)half : l.w, (mhla_dtype)type, N, K, 0), MHLA_OK);
        mhla_linear_desc d = {.size = sizeof d, .rows = rows, .bias = l.bias, .activation = MHLA_ACT_GELU_ERF};
        for (int threads = 1; threads <= 64; threads = threads < 7 ? threads + 2 : 64 + (threads == 64)) {
            const mhla_context_desc cd = {.size = sizeof cd, .backend = MHLA_BACKEND_PTHREADS, .threads = threads};
            mhla_context *context;
            assert_int_equal(mhla_context_create(&context, &cd), MHLA_OK);
            const int at = threads > 1;
            d.context = context;
            assert_int_equal(mhla_linear_forward(&d, y[at], l.x, w), MHLA_OK);
            assert_int_equal(mhla_linear_backward_input(&d, dx[at], y[0], w), MHLA_OK);
            assert_int_equal(mhla_linear_backward_weight(&d, dw[at], db[at], y[0], l.x, N, K), MHLA_OK);
            if (at) {
                assert_memory_equal(y[0], y[1], sizeof(float) * (size_t)(rows * N));
                assert_memory_equal(dx[0], dx[1], sizeof(float) * (size_t)(rows * K));
                assert_memory_equal(dw[0], dw[1], sizeof(float) * (size_t)(N * K));
                assert_memory_equal(db[0], db[1], sizeof(float) * (size_t)N);
            }
            mhla_context_free(context);
        }
        d.context = NULL;
        for (int64_t n = 1; n <= 100; n += n < 9 ? 1 : 23) { /* the last n rows alone */
            d.rows = n;
            assert_int_equal(mhla_linear_forward(&d, y[1], l.x + (rows - n) * K, w), MHLA_OK);
            assert_memory_equal(y[0] + (rows - n) * N, y[1], sizeof(float) * (size_t)(n * N));
        }
        mhla_weight_free(w);
    }
    for (int i = 0; i < 2; i++) {
        free(y[i]);
        free(dx[i]);
        free(dw[i]);
        free(db[i]);
    }
    free(half);
    free_layer(&l);
}

/* Four weights of other types and sizes in one loop, in a slab or not: bit for bit what each alone gives. */
static void several_at_once(void) {
    enum { K = 320 };
    static const int widths[MHLA_PRODUCTS] = {96, 1, 300, 64};
    static const mhla_dtype types[MHLA_PRODUCTS] = {MHLA_Q8_0, MHLA_F32, MHLA_BF16, MHLA_F32};
    static const int rows[] = {1, 3, 16, 130};
    mhla_weight *weights[MHLA_PRODUCTS];
    mhla_slab *slab = NULL;
    float *bias = random_floats(300);
    for (int i = 0; i < MHLA_PRODUCTS; i++) {
        float *w = random_floats((int64_t)widths[i] * K);
        if (i % 2)
            assert_int_equal(mhla_weight_create(&weights[i], types[i], widths[i], K), MHLA_OK);
        else
            assert_int_equal(mhla_weight_create_in(&weights[i], &slab, types[i], widths[i], K), MHLA_OK);
        assert_int_equal(mhla_weight_set_rows(weights[i], 0, widths[i], w, MHLA_F32, K), MHLA_OK);
        free(w);
    }
    for (int r = 0; r < 4; r++) {
        float *x = random_floats((int64_t)rows[r] * K);
        mhla_product_call calls[MHLA_PRODUCTS];
        for (int i = 0; i < MHLA_PRODUCTS; i++) {
            calls[i] = (mhla_product_call){
                .desc = {.size = sizeof calls[i].desc, .rows = rows[r], .bias = i == 2 ? bias : NULL},
                .y = poisoned((int64_t)rows[r] * widths[i]),
                .weight = weights[i]};
        }
        for (int count = 1; count <= MHLA_PRODUCTS; count++)
            assert_int_equal(mhla_linears_forward(calls, count, x), MHLA_OK);
        for (int i = 0; i < MHLA_PRODUCTS; i++) { /* afterwards: what this leaves in memory must not help */
            float *alone = poisoned((int64_t)rows[r] * widths[i]);
            assert_int_equal(mhla_linear_forward(&calls[i].desc, alone, x, weights[i]), MHLA_OK);
            assert_memory_equal(calls[i].y, alone, sizeof(float) * (size_t)(rows[r] * widths[i]));
            free(calls[i].y);
            free(alone);
        }
        free(x);
    }
    for (int i = 0; i < MHLA_PRODUCTS; i++) mhla_weight_free(weights[i]);
    mhla_slab_free(slab);
    free(bias);
}

/* Blocks of a slab are aligned and apart from each other, large ones and those that do not fit into the present one. */
static void slabs(void **state) {
    (void)state;
    static const size_t amounts[] = {1, 100, 70000, 3, 5 << 20, 64, 2 << 20, 9 << 20, 1000};
    enum { COUNT = sizeof amounts / sizeof *amounts };
    unsigned char *blocks[COUNT];
    mhla_slab *slab = NULL;
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = mhla_slab_alloc(&slab, amounts[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % MHLA_ALIGN, 0);
        memset(blocks[i], i + 1, amounts[i]);
    }
    mhla_slab_drop(blocks[4], amounts[4]);
    for (int i = 0; i < COUNT; i++)
        for (size_t j = 0; i != 4 && j<amounts[i]; j += amounts[i]> 1 ? amounts[i] - 1 : 1)
            assert_int_equal(blocks[i][j], i + 1);
    assert_null(mhla_slab_alloc(&slab, 0));
    assert_null(mhla_slab_alloc(&slab, SIZE_MAX - 100));
    mhla_slab_free(slab);
}

/* A handle goes on working, and with the same bits, when other kernels are chosen. */
static void handle_keeps_its_kernels(void **state) {
    (void)state;
    layer l = make_layer(9, 72, 100, 0);
    float *y = poisoned(9 * 72), *again = poisoned(9 * 72);
    const mhla_linear_desc d = {.size = sizeof d, .rows = 9};
    const mhla_kernels *tables[8];
    const int n = mhla_kernels_available(tables, 8);
    mhla_weight *w;
    assert_int_equal(mhla_set_isa(NULL), MHLA_OK);
    assert_int_equal(mhla_weight_pack(&w, l.w, MHLA_F32, 72, 100, 0), MHLA_OK);
    assert_int_equal(mhla_linear_forward(&d, y, l.x, w), MHLA_OK);
    for (int i = 0; i < n; i++) {
        assert_int_equal(mhla_set_isa(tables[i]->name), MHLA_OK);
        assert_int_equal(mhla_linear_forward(&d, again, l.x, w), MHLA_OK);
        assert_memory_equal(y, again, sizeof(float) * 9 * 72);
        assert_int_equal(mhla_weight_update(w, l.w, MHLA_F32, 0), MHLA_OK);
    }
    assert_int_equal(mhla_set_isa(NULL), MHLA_OK);
    mhla_weight_free(w);
    free(y);
    free(again);
    free_layer(&l);
}

/* A NaN stays in its row of x, and in its row of W. */
static void nan_stays(void) {
    layer l = make_layer(65, 70, 71, 0);
    l.x[3 * 71 + 70] = NAN;
    l.w[69 * 71 + 5] = INFINITY;
    for (int type = 0; type < 2; type++) {
        uint16_t half[70 * 71];
        for (int i = 0; i < 70 * 71; i++) half[i] = to_bf16(l.w[i]);
        mhla_weight *w;
        assert_int_equal(mhla_weight_pack(&w, type ? (void *)half : l.w, (mhla_dtype)type, 70, 71, 0), MHLA_OK);
        float *y = poisoned(65 * 70);
        const mhla_linear_desc d = {.size = sizeof d, .rows = 65};
        assert_int_equal(mhla_linear_forward(&d, y, l.x, w), MHLA_OK);
        for (int i = 0; i < 65 * 70; i++) {
            if (i / 70 == 3)
                assert_true(isnan(y[i]));
            else if (i % 70 == 69)
                assert_true(isinf(y[i]));
            else
                assert_true(isfinite(y[i]));
        }
        mhla_weight_free(w);
        free(y);
    }
    free_layer(&l);
}

#define REFUSED(call, word)                                                                                            \
    do {                                                                                                               \
        assert_int_equal(call, MHLA_EINVAL);                                                                           \
        if (!strstr(mhla_message(), word)) fail_msg("\"%s\" does not say \"%s\"", mhla_message(), word);               \
        for (int i_ = 0; i_ < 64; i_++) assert_true(isnan(y[i_]));                                                     \
    } while (0)

static void bad_input(void **state) {
    (void)state;
    float y[64], x[64] = {0}, m[64] = {0};
    for (int i = 0; i < 64; i++) y[i] = NAN;
    mhla_weight *w = (mhla_weight *)x;
    REFUSED(mhla_weight_pack(NULL, m, MHLA_F32, 4, 4, 0), "weight");
    REFUSED(mhla_weight_pack(&w, NULL, MHLA_F32, 4, 4, 0), "w is NULL");
    assert_null(w);
    REFUSED(mhla_weight_pack(&w, m, (mhla_dtype)3, 4, 4, 0), "dtype is 3");
    REFUSED(mhla_weight_pack(&w, m, MHLA_F32, 0, 4, 0), "N is 0");
    REFUSED(mhla_weight_pack(&w, m, MHLA_F32, 4, -4, 0), "K is -4");
    REFUSED(mhla_weight_pack(&w, m, MHLA_F32, INT64_MAX, 4, 0), "N is");
    REFUSED(mhla_weight_pack(&w, m, MHLA_F32, 4, 4, 3), "ldw is 3");
    REFUSED(mhla_weight_pack(&w, m, MHLA_F32, 4, 4, INT64_MAX), "ldw");
    assert_int_equal(mhla_weight_pack(&w, m, MHLA_F32, 4, 8, 0), MHLA_OK);
    REFUSED(mhla_weight_update(NULL, m, MHLA_F32, 0), "weight");
    REFUSED(mhla_weight_update(w, NULL, MHLA_F32, 0), "w is NULL");
    REFUSED(mhla_weight_update(w, m, MHLA_F32, 7), "ldw is 7");

    mhla_linear_desc d = {.size = sizeof d, .rows = 2};
    REFUSED(mhla_linear_forward(NULL, y, x, w), "linear_desc");
    REFUSED(mhla_linear_forward(&d, NULL, x, w), "y is NULL");
    REFUSED(mhla_linear_forward(&d, y, NULL, w), "x is NULL");
    REFUSED(mhla_linear_forward(&d, y, x, NULL), "weight is NULL");
    REFUSED(mhla_linear_forward(&d, y, y + 4, w), "y overlaps x");
    const struct {
        mhla_linear_desc d;
        const char *word;
    } bad[] = {
        {{.size = 0, .rows = 2}, "size is 0"},
        {{.size = sizeof d, .rows = 0}, "rows is 0"},
        {{.size = sizeof d, .rows = -1}, "rows is -1"},
        {{.size = sizeof d, .rows = INT64_MAX / 2}, "rows"},
        {{.size = sizeof d, .rows = 2, .ldx = 7}, "ldx is 7"},
        {{.size = sizeof d, .rows = 2, .ldx = -8}, "ldx is -8"},
        {{.size = sizeof d, .rows = 2, .ldx = INT64_MAX}, "ldx"},
        {{.size = sizeof d, .rows = 2, .ldy = 3}, "ldy is 3"},
        {{.size = sizeof d, .rows = 2, .activation = (mhla_activation)9}, "activation is 9"},
        {{.size = sizeof d, .rows = 2, .residual = m, .ldr = 2}, "ldr is 2"},
        {{.size = sizeof d, .rows = 2, .ldr = 4}, "ldr is 4 but"},
        {{.size = sizeof d, .rows = 2, .residual = y + 1}, "y overlaps residual"},
        {{.size = sizeof d, .rows = 2, .residual = y, .ldr = 5}, "y overlaps residual"},
        {{.size = sizeof d, .rows = 2, .bias = y + 2}, "y overlaps bias"},
        {{.size = sizeof d, .rows = 2, .pre_activation = y + 6}, "y overlaps pre_activation"},
        {{.size = sizeof d, .rows = 2, .pre_activation = x}, "pre_activation overlaps x"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        REFUSED(mhla_linear_forward(&bad[i].d, y, x, w), bad[i].word);

    REFUSED(mhla_linear_backward_input(&d, NULL, x, w), "dx is NULL");
    REFUSED(mhla_linear_backward_input(&d, y, NULL, w), "dy is NULL");
    REFUSED(mhla_linear_backward_input(&d, y, x, NULL), "weight is NULL");
    REFUSED(mhla_linear_backward_input(&d, y, y + 15, w), "dx overlaps dy");
    REFUSED(mhla_linear_backward_input(&bad[1].d, y, x, w), "rows is 0");
    REFUSED(mhla_linear_backward_weight(&d, NULL, NULL, x, m, 4, 8), "both NULL");
    REFUSED(mhla_linear_backward_weight(&d, y, NULL, NULL, m, 4, 8), "dy is NULL");
    REFUSED(mhla_linear_backward_weight(&d, y, NULL, x, NULL, 4, 8), "x is NULL");
    REFUSED(mhla_linear_backward_weight(&d, y, y + 31, x, m, 4, 8), "dw overlaps db");
    REFUSED(mhla_linear_backward_weight(&d, y, NULL, y + 5, m, 4, 8), "dw overlaps dy");
    REFUSED(mhla_linear_backward_weight(&d, NULL, y, y + 3, m, 4, 8), "db overlaps dy");
    REFUSED(mhla_linear_backward_weight(&d, y, NULL, x, m, 0, 8), "N is 0");
    REFUSED(mhla_activation_backward(NULL, x, m, 4, MHLA_ACT_SILU, NULL), "dpre");
    REFUSED(mhla_activation_backward(y, NULL, m, 4, MHLA_ACT_SILU, NULL), "dy");
    REFUSED(mhla_activation_backward(y, x, NULL, 4, MHLA_ACT_SILU, NULL), "pre");
    REFUSED(mhla_activation_backward(y, x, m, 0, MHLA_ACT_SILU, NULL), "count is 0");
    REFUSED(mhla_activation_backward(y, x, m, 4, (mhla_activation)-1, NULL), "activation is -1");
    REFUSED(mhla_activation_backward(y, y + 1, m, 4, MHLA_ACT_SILU, NULL), "dpre overlaps dy");
    mhla_weight_free(NULL);
    mhla_weight_free(w);
}

/* x and y as columns of one matrix: interleaved in memory, yet apart. */
static void side_by_side(void **state) {
    (void)state;
    float both[4 * 12], m[4 * 8];
    for (int i = 0; i < 48; i++) both[i] = i % 12 < 8 ? 1.0f : NAN;
    for (int i = 0; i < 32; i++) m[i] = (float)(i / 8);
    mhla_weight *w;
    assert_int_equal(mhla_weight_pack(&w, m, MHLA_F32, 4, 8, 0), MHLA_OK);
    const mhla_linear_desc d = {.size = sizeof d, .rows = 4, .ldx = 12, .ldy = 12};
    assert_int_equal(mhla_linear_forward(&d, both + 8, both, w), MHLA_OK);
    for (int i = 0; i < 48; i++) assert_true(both[i] == (i % 12 < 8 ? 1.0f : (float)(8 * (i % 12 - 8))));
    assert_int_equal(mhla_linear_forward(&d, both + 7, both, w), MHLA_EINVAL); /* x's last column */
    assert_int_equal(mhla_linear_forward(&d, both, both + 3, w), MHLA_EINVAL); /* y's last column */
    mhla_weight_free(w);
}

static int allowed; /* allocations until none are left */
static void *scarce(size_t bytes) { return allowed-- > 0 ? malloc(bytes) : NULL; }

static void out_of_memory(void **state) {
    (void)state;
    layer l = make_layer(3, 70, 1000, 0);
    uint16_t *half = calloc(70 * 1000, sizeof *half);
    float *y = poisoned(3 * 1000), *dw = poisoned(70 * 1000);
    const mhla_context_desc cd = {.size = sizeof cd, .backend = MHLA_BACKEND_PTHREADS, .threads = 1};
    mhla_context *context;
    assert_int_equal(mhla_context_create(&context, &cd), MHLA_OK);
    const mhla_linear_desc d = {.size = sizeof d, .rows = 3, .context = context, .bias = l.bias};
    for (int n = 0; n < 4; n++) {
        mhla_weight *w = NULL;
        mhla_set_allocator(scarce, free);
        allowed = n;
        const mhla_status packed = mhla_weight_pack(&w, half, MHLA_BF16, 70, 1000, 0);
        assert_int_equal(packed, n < 3 ? MHLA_ENOMEM : MHLA_OK);
        if (packed == MHLA_OK) {
            allowed = 0;
            assert_int_equal(mhla_weight_update(w, half, MHLA_BF16, 0), MHLA_ENOMEM);
            /* where the CPU has no products in bfloat16, few rows need no copy of x, and so no memory */
            const mhla_status forward = mhla_linear_forward(&d, y, l.x, w);
            assert_true(forward == MHLA_ENOMEM ? isnan(y[0]) : forward == MHLA_OK && !isnan(y[3 * 70 - 1]));
            y[0] = NAN;
            assert_int_equal(mhla_linear_backward_input(&d, y, l.x, w), MHLA_ENOMEM);
            assert_int_equal(mhla_linear_backward_weight(&d, dw, NULL, l.x, l.x, 70, 1000), MHLA_ENOMEM);
            assert_true(isnan(y[0]) && isnan(dw[0]));
            mhla_weight_free(w);
        } else {
            assert_null(w);
        }
        mhla_set_allocator(NULL, NULL);
    }
    mhla_context_free(context);
    free(half);
    free(y);
    free(dw);
    free_layer(&l);
}

static void test_forward_sizes(void **state) { (void)state, for_each_isa(forward_sizes); }
static void test_forward_epilogues(void **state) { (void)state, for_each_isa(forward_epilogues); }
static void test_forward_bf16(void **state) { (void)state, for_each_isa(forward_bf16); }
static void test_gradients(void **state) { (void)state, for_each_isa(gradients); }
static void test_activations(void **state) { (void)state, for_each_isa(activations); }
static void test_same_bits(void **state) { (void)state, for_each_isa(same_bits); }
static void test_several_at_once(void **state) { (void)state, for_each_isa(several_at_once); }
static void test_nan_stays(void **state) { (void)state, for_each_isa(nan_stays); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_sizes),
        cmocka_unit_test(test_forward_epilogues),
        cmocka_unit_test(test_forward_bf16),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(slopes_are_slopes),
        cmocka_unit_test(forward_reference),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(slabs),
        cmocka_unit_test(handle_keeps_its_kernels),
        cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(bad_input),
        cmocka_unit_test(side_by_side),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
