/* Weights kept as bfloat16 or Q8_0: few rows and many against the definition in double, every instruction set, awkward
 * sizes; the same bits for any number of rows and threads; rows in and out in pieces. */
#include "support.h"

#include "core/numbers.h"
#include "ops/product/product.h"

static void *stored(const float *w, mhla_dtype dtype, int64_t count) {
    char *to = new_bytes(mhla_row_bytes(dtype, count));
    for (int64_t i = 0; dtype == MHLA_F32 && i < count; i++) ((float *)to)[i] = w[i];
    for (int64_t i = 0; dtype == MHLA_BF16 && i < count; i++) ((uint16_t *)to)[i] = to_bf16(w[i]);
    for (int64_t i = 0; dtype == MHLA_Q8_0 && i < count; i += 32) mhla_q8_quantise((mhla_q8_block *)to + i / 32, w + i);
    return to;
}

enum { MOST = 40 };

static void check_shape(rng *r, mhla_dtype dtype, int64_t N, int64_t K, const char *isa) {
    const int64_t ldx = K + 3, ldy = N + 5;
    float *w = new_random(r, N * K), *x = new_random(r, MOST * ldx), *bias = new_random(r, N);
    float *want = new_poisoned(MOST * N), *all = new_poisoned(MOST * ldy), *y = new_poisoned(MOST * ldy);
    if (dtype == MHLA_BF16) /* where the CPU multiplies it, x is rounded too */
        for (int64_t i = 0; i < MOST * ldx; i++) x[i] = from_bf16(to_bf16(x[i]));
    if (dtype == MHLA_Q8_0) /* rows are taken in 16 bits: such as these have, the largest of each block being 1 */
        for (int64_t i = 0; i < MOST * ldx; i++)
            x[i] = i % ldx % 32 == 0 ? 1.0f : rintf(x[i] / 4.0f * 32767.0f) / 32767.0f;
    void *s = stored(w, dtype, N * K);
    mhla_weight *weight;
    mhla_context *one = new_context(1), *three = new_context(3);
    ASSERT_OK(mhla_weight_pack(&weight, s, dtype, N, K, 0));
    mhla_linear_desc d = {
        .size = sizeof d, .context = three, .rows = MOST, .ldx = ldx, .bias = bias, .activation = MHLA_ACT_SILU};
    ASSERT_OK(mhla_linear_forward_reference(&d, want, x, s, dtype, N, K, 0));
    d.ldy = ldy;
    ASSERT_OK(mhla_linear_forward(&d, all, x, weight));
    for (int64_t i = 0; i < MOST; i++) memcpy(y + i * N, all + i * ldy, sizeof(float) * (size_t)N);
    ASSERT_CLOSE(y, want, MOST * N, 2e-6 + 3e-8 * (double)K, "%s %d: %dx%d", isa, (int)dtype, (int)N, (int)K);
    d.context = one; /* each number of rows: the bits of the many, and nothing beside them */
    for (d.rows = 1; d.rows <= 11; d.rows += 1 + (d.rows > 8)) {
        for (int64_t i = 0; i < MOST * ldy; i++) y[i] = NAN;
        ASSERT_OK(mhla_linear_forward(&d, y, x + 7 * ldx, weight));
        for (int64_t i = 0; i < d.rows; i++) {
            if (memcmp(y + i * ldy, all + (7 + i) * ldy, sizeof(float) * (size_t)N) != 0)
                fail_msg("%s %d: %dx%d: row %d of %d differs", isa, (int)dtype, (int)N, (int)K, (int)i, (int)d.rows);
            for (int64_t j = N; j < ldy; j++) assert_true(isnan(y[i * ldy + j]));
        }
    }
    mhla_weight_free(weight);
    mhla_context_free(one);
    mhla_context_free(three);
    free(w), free(x), free(bias), free(want), free(all), free(y), free(s);
}

static void test_products(void **state) {
    (void)state;
    static const int64_t N[] = {1, 15, 16, 17, 64, 72, 100, 200}, K[] = {32, 64, 256, 288, 1056};
    const char *names[8];
    const int isas = isa_names(names, 8);
    rng r = {1};
    for (int i = 0; i < isas; i++) {
        ASSERT_OK(mhla_set_isa(names[i]));
        for (size_t n = 0; n < sizeof N / sizeof *N; n++)
            for (size_t k = 0; k < sizeof K / sizeof *K; k++) {
                check_shape(&r, MHLA_Q8_0, N[n], K[k], names[i]);
                check_shape(&r, MHLA_BF16, N[n], K[k] - (n & 1), names[i]);
            }
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

static double largest_of_32(const float *x) {
    float most = 0.0f;
    for (int e = 0; e < 32; e++)
        if (fabsf(x[e]) > most) most = fabsf(x[e]);
    return (double)most;
}

/* Rows of Q8_0 have 16 bits: any x is as near as that says, block by block; what is not finite stays in its row. */
static void test_rows_of_16_bits(void **state) {
    (void)state;
    enum { N = 33, K = 96, ROWS = 11 };
    const char *names[8];
    const int isas = isa_names(names, 8);
    rng r = {3};
    float *w = new_random(&r, N * K), *x = new_random(&r, ROWS * K), *want = new_poisoned(ROWS * N);
    float *y = new_poisoned(ROWS * N);
    for (int i = 0; i < ROWS * K; i++) /* sizes of blocks from nothing to huge, and some that are all zero */
        x[i] = i / 32 % 9 == 4 ? 0.0f : ldexpf(x[i], i / 32 * 37 % 200 - 120);
    void *s = stored(w, MHLA_Q8_0, N * K);
    for (int i = 0; i < isas; i++) {
        mhla_weight *weight;
        ASSERT_OK(mhla_set_isa(names[i]));
        ASSERT_OK(mhla_weight_pack(&weight, s, MHLA_Q8_0, N, K, 0));
        mhla_linear_desc d = {.size = sizeof d, .rows = ROWS};
        ASSERT_OK(mhla_linear_forward_reference(&d, want, x, s, MHLA_Q8_0, N, K, 0));
        for (d.rows = 1; d.rows <= ROWS; d.rows += 5) {
            ASSERT_OK(mhla_linear_forward(&d, y, x, weight));
            for (int j = 0; j < d.rows * N; j++) {
                double room = 1e-30;
                for (int k = 0; k < K; k++)
                    room += largest_of_32(x + j / N * K + k / 32 * 32) / 32767.0 * fabs((double)w[j % N * K + k]);
                if (fabs((double)y[j] - (double)want[j]) > room) fail_msg("%s: %d of row %d", names[i], j % N, j / N);
            }
        }
        const float bad[] = {INFINITY, -INFINITY, NAN};
        for (int b = 0; b < 3; b++)
            for (d.rows = 2; d.rows <= 10; d.rows += 8) {
                const float was = x[K + 40];
                x[K + 40] = bad[b];
                ASSERT_OK(mhla_linear_forward(&d, y, x, weight));
                for (int n = 0; n < N; n++) assert_true(isnan(y[N + n]) && isfinite(y[n]));
                x[K + 40] = was;
            }
        mhla_weight_free(weight);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    free(w), free(x), free(want), free(y), free(s);
}

/* Values that float16 has few of: the scales of zero, of subnormal and of huge blocks. */
static void test_scales(void **state) {
    (void)state;
    const char *names[8];
    const int isas = isa_names(names, 8);
    enum { ROWS = 66, COLS = 64 };
    float w[ROWS * COLS], x[9 * COLS], want[9 * ROWS], y[9 * ROWS], back[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = i / COLS == 3 ? 0.0f : ldexpf((float)((i * 37) % 255 - 127) / 127.0f, i / COLS % 40 - 17);
    for (int i = 0; i < 9 * COLS; i++) x[i] = i % 32 ? (float)((i % 13) - 6) : 32767.0f; /* exact in 16 bits */
    void *s = stored(w, MHLA_Q8_0, ROWS * COLS);
    for (int i = 0; i < isas; i++) {
        mhla_weight *weight;
        ASSERT_OK(mhla_set_isa(names[i]));
        ASSERT_OK(mhla_weight_pack(&weight, s, MHLA_Q8_0, ROWS, COLS, 0));
        ASSERT_OK(mhla_weight_get_rows(weight, 0, ROWS, back, 0));
        for (int j = 0; j < ROWS * COLS; j += 32) {
            float exact[32];
            mhla_q8_widen(exact, (mhla_q8_block *)s + j / 32);
            assert_memory_equal(exact, back + j, sizeof exact);
        }
        mhla_linear_desc d = {.size = sizeof d, .rows = 9};
        ASSERT_OK(mhla_linear_forward_reference(&d, want, x, s, MHLA_Q8_0, ROWS, COLS, 0));
        for (d.rows = 1; d.rows <= 9; d.rows += 8) {
            ASSERT_OK(mhla_linear_forward(&d, y, x, weight));
            for (int n = 0; n < ROWS; n++)
                ASSERT_CLOSE(y + n, want + n, 1, 1e-4, "%s: column %d of %d rows", names[i], n, (int)d.rows);
        }
        mhla_weight_free(weight);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    free(s);
}

static void test_pieces(void **state) {
    (void)state;
    enum { N = 150, K = 96 };
    static const mhla_dtype types[] = {MHLA_F32, MHLA_BF16, MHLA_Q8_0};
    const char *names[8];
    const int isas = isa_names(names, 8);
    rng r = {2};
    float *w = new_random(&r, N * K), *got = new_poisoned(N * K), *exact = new_poisoned(N * K);
    for (int isa = 0; isa < isas; isa++)
        for (int to = 0; to < 3; to++)
            for (int from = 0; from < 3; from++) {
                ASSERT_OK(mhla_set_isa(names[isa]));
                char *s = stored(w, types[from], N * K);
                mhla_weight *pieces, *whole;
                ASSERT_OK(mhla_weight_create(&pieces, types[to], N, K));
                ASSERT_OK(mhla_weight_create(&whole, types[to], N, K));
                ASSERT_OK(mhla_weight_update(whole, s, types[from], 0));
                for (int64_t at = 0, n = 1; at < N; at += n, n = n * 2 + 1) {
                    if (n > N - at) n = N - at;
                    ASSERT_OK(mhla_weight_set_rows(pieces, at, n, s + mhla_row_bytes(types[from], K) * (size_t)at,
                                                   types[from], 0));
                }
                assert_int_equal(mhla_weight_dtype(pieces), types[to]);
                assert_memory_equal(pieces->data, whole->data, mhla_weight_bytes(whole));
                ASSERT_OK(mhla_weight_get_rows(pieces, 0, N, got, 0));
                /* what rounding to `from`, then to `to`, makes of w */
                memcpy(exact, w, sizeof(float) * N * K);
                for (int step = 0; step < 2; step++) {
                    const mhla_dtype t = types[step ? to : from];
                    void *round = stored(exact, t, N * K);
                    for (int i = 0; t == MHLA_BF16 && i < N * K; i++) exact[i] = from_bf16(((uint16_t *)round)[i]);
                    for (int i = 0; t == MHLA_Q8_0 && i < N * K; i += 32)
                        mhla_q8_widen(exact + i, (mhla_q8_block *)round + i / 32);
                    free(round);
                }
                assert_memory_equal(got, exact, sizeof(float) * N * K);
                mhla_weight_free(pieces);
                mhla_weight_free(whole);
                free(s);
            }
    ASSERT_OK(mhla_set_isa(NULL));
    free(w), free(got), free(exact);
}

static void test_refused(void **state) {
    (void)state;
    mhla_weight *w;
    float x[128] = {0}, y[128];
    ASSERT_FAILS(mhla_weight_create(&w, MHLA_Q8_0, 4, 33), MHLA_EINVAL, "K is 33");
    ASSERT_FAILS(mhla_weight_create(&w, (mhla_dtype)3, 4, 32), MHLA_EINVAL, "dtype is 3");
    ASSERT_FAILS(mhla_weight_pack(&w, x, MHLA_Q8_0, 2, 32, 40), MHLA_EINVAL, "ldw is 40");
    ASSERT_OK(mhla_weight_create(&w, MHLA_Q8_0, 4, 32));
    ASSERT_FAILS(mhla_weight_set_rows(w, 3, 2, x, MHLA_F32, 0), MHLA_EINVAL, "rows 3 to 4");
    ASSERT_FAILS(mhla_weight_get_rows(w, -1, 1, x, 0), MHLA_EINVAL, "rows -1");
    const mhla_linear_desc d = {.size = sizeof d, .rows = 1};
    ASSERT_FAILS(mhla_linear_backward_input(&d, x, y, w), MHLA_ENOTSUP, "Q8_0");
    mhla_weight_free(w);
    mhla_plan *plan;
    const mhla_plan_desc p = {
        .size = sizeof p, .kind = MHLA_KIND_SOFTMAX, .heads = 1, .key_dim = 8, .value_dim = 8, .dtype = MHLA_Q8_0};
    ASSERT_FAILS(mhla_plan_create(&plan, &p), MHLA_EINVAL, "dtype");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_rows_of_16_bits), cmocka_unit_test(test_scales),
        cmocka_unit_test(test_pieces),   cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
