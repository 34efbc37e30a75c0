/* Products in bfloat16: the emulations of vdpbf16ps and tdpbf16ps against known bits and, where the CPU has them, against the
 * instructions; linear layers, forward and backward, with the same bits wherever one of the two is computed, by hardware or emulated,
 * for any number of threads; the copies that products read. */
#include "support.h"

#include "core/numbers.h"
#include "ops/product/product.h"

enum { TABLES = 16 };

/* Every table that multiplies bfloat16, emulated ones first. */
static int multiplying(const mhla_kernels *tables[TABLES]) {
    const mhla_kernels *real[TABLES];
    int n = mhla_kernels_emulated(tables, TABLES);
    const int count = mhla_kernels_available(real, TABLES);
    for (int i = 0; i < count; i++)
        if (real[i]->gemm_bf16) tables[n++] = real[i];
    return n;
}

/* ---- The emulations ---- */

static void test_known_bits(void **state) {
    (void)state;
    /* c, pairs a and b (upper half = odd element), what the instruction makes of them */
    static const struct {
        uint32_t c, a, b, want;
    } rows[] = {
        {0x00000000, 0x3f803f80, 0x40004040, 0x40a00000}, /* 2 + 3 */
        {0x4b800000, 0x3f803f80, 0x3f803f80, 0x4b800000}, /* 2^24 + 1 + 1: each is rounded on its own, ties to even */
        {0x4b800001, 0x3f80bf80, 0x3f803f80, 0x4b800002}, /* the odd product is first: + 1 up to even, then - 1, too */
        {0x4b800001, 0xbf803f80, 0x3f803f80, 0x4b800000}, /* - 1 down to even, then + 1, too */
        {0x00400000, 0x00003f80, 0x00000000, 0x00000000}, /* a subnormal sum is 0 */
        {0x80400000, 0x80003f80, 0x00008000, 0x80000000}, /* -0 */
        {0x00000000, 0x00000040, 0x00007f00, 0x00000000}, /* a subnormal factor is 0 */
        {0x00800000, 0x00001a00, 0x00009980, 0x00800000}, /* 2^-126 - 2^-151: halfway, to even */
        {0x00800000, 0x00001a01, 0x00009980, 0x00000000}, /* a little below: too small after rounding to 24 bits */
        {0x7f7fffff, 0x00007f7f, 0x00003f80, 0x7f800000}, /* too large */
        {0xff7fffff, 0x00007f7f, 0x00004000, 0x7f7e0001}, /* not where the product alone would be */
        {0x7f800000, 0x0000ff80, 0x00003f80, 0x7fc00000}, /* inf - inf */
        {0x00000000, 0x00000000, 0x00007f80, 0x7fc00000}, /* 0 inf */
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        const float got = mhla_dot_bf16(mhla_float_of_bits(rows[i].c), rows[i].a, rows[i].b);
        const float want = mhla_float_of_bits(rows[i].want);
        if (isnan(want) ? !isnan(got) : mhla_bits_of_float(got) != rows[i].want)
            fail_msg("row %u: got %08x, wanted %08x", i, mhla_bits_of_float(got), rows[i].want);
    }
}

static void test_known_bits_of_tiles(void **state) {
    (void)state;
    /* c, then at most two pairs of a, and of b */
    static const struct {
        int pairs;
        uint32_t c, a[2], b[2], want;
    } rows[] = {
        {1, 0x00000000, {0x3f803f80}, {0x40004040}, 0x40a00000}, /* 2 + 3 */
        {1, 0x4b800000, {0x3f803f80}, {0x3f803f80}, 0x4b800001}, /* 2^24 + (1 + 1) */
        {1, 0x4b800001, {0x3f80bf80}, {0x3f803f80}, 0x4b800001}, /* 1 - 1 first */
        {2,
         0x00000000,
         {0x00004b80, 0x3f803f80},
         {0x00003f80, 0x3f803f80},
         0x4b800000}, /* 2^24 + 1, to even; + 1, too */
        {2,
         0x00000000,
         {0x3f804b80, 0x3f800000},
         {0x3f803f80, 0x3f803f80},
         0x4b800001}, /* 2^24 + (1 + 1) of odd ones */
        {2, 0x00000000, {0x00000080, 0x00008080}, {0x00003f80, 0x00003f81}, 0x00000000}, /* a subnormal sum is 0, */
        {1, 0x80400000, {0x80003f80}, {0x00008000}, 0x00000000},                         /* so is c */
        {1, 0x00000000, {0x00000040}, {0x00007f00}, 0x00000000},                         /* a subnormal factor is 0 */
        {1, 0x7f7fffff, {0x00007f7f}, {0x00003f80}, 0x7f800000},                         /* too large */
        {1, 0xff7fffff, {0x00007f7f}, {0x00004000}, 0x7f800000},                         /* the product alone is */
        {1, 0x7f800000, {0x0000ff80}, {0x00003f80}, 0x7fc00000},                         /* inf - inf */
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        const float got = mhla_dots_amx(mhla_float_of_bits(rows[i].c), rows[i].a, rows[i].b, rows[i].pairs);
        const float want = mhla_float_of_bits(rows[i].want);
        if (isnan(want) ? !isnan(got) : mhla_bits_of_float(got) != rows[i].want)
            fail_msg("row %u: got %08x, wanted %08x", i, mhla_bits_of_float(got), rows[i].want);
    }
}

/* A bfloat16 of the kind: of a usual size, near the least, near the largest, anything at all. */
static uint16_t number(rng *r, int kind) {
    const uint64_t u = rng_next(r);
    const uint16_t rest = (uint16_t)(u & 0x807f);
    static const int from[] = {120, 60, 186}, range[] = {16, 10, 8};
    if (kind == 3) return (uint16_t)u;
    return (uint16_t)(rest | (uint16_t)((from[kind] + (int)((u >> 20) % (unsigned)range[kind])) << 7));
}

static void compare(const mhla_kernels *k, rng *r, int kind, int m, int width, int pairs) {
    uint16_t *a = malloc(sizeof *a * (size_t)(2 * m * pairs)), *b = malloc(sizeof *b * (size_t)(2 * width * pairs));
    float *c = malloc(sizeof *c * (size_t)(m * width)), *d = malloc(sizeof *d * (size_t)(m * width));
    for (int i = 0; i < 2 * m * pairs; i++) a[i] = number(r, kind);
    for (int i = 0; i < 2 * width * pairs; i++) b[i] = number(r, kind);
    for (int add = 0; add < 2; add++) {
        for (int i = 0; i < m * width; i++) c[i] = d[i] = from_bf16(number(r, kind));
        mhla_gemm_bf16 g = {.m = m, .width = width, .pairs = pairs, .a = a, .b = b, .c = c, .c_row = width, .add = add};
        g.a_row = 2 * pairs;
        k->gemm_bf16(&g);
        g.c = d;
        k->same_bits(&g);
        for (int i = 0; i < m * width; i++)
            if (isnan(c[i]) ? !isnan(d[i]) : mhla_bits_of_float(c[i]) != mhla_bits_of_float(d[i]))
                fail_msg("kind %d, %dx%dx%d, number %d: %s %08x, emulated %08x", kind, m, width, pairs, i, k->name,
                         mhla_bits_of_float(c[i]), mhla_bits_of_float(d[i]));
    }
    free(a), free(b), free(c), free(d);
}

static void test_hardware(void **state) {
    (void)state;
    const mhla_kernels *tables[TABLES];
    const int n = mhla_kernels_available(tables, TABLES);
    int compared = 0;
    rng r = {1};
    for (int i = 0; i < n; i++) {
        if (tables[i]->gemm_bf16 == NULL) continue;
        compared++;
        for (int kind = 0; kind < 4; kind++)
            for (int width = 16; width <= 64; width += 16)
                for (int m = 1; m <= 34; m += 1 + (m > 8))
                    for (int pairs = 1; pairs <= 48; pairs = pairs == 13 ? 16 : 3 * pairs + pairs % 2)
                        compare(tables[i], &r, kind, m, width, pairs);
    }
    if (compared == 0) skip();
}

/* narrow_columns: what narrow_rows makes of the transpose, and nothing beside it. */
static void test_columns(void **state) {
    (void)state;
    const mhla_kernels *tables[TABLES];
    const int count = mhla_kernels_available(tables, TABLES);
    rng r = {4};
    for (int i = 0; i < count; i++)
        for (int n = 1; n <= 70; n += 1 + n / 8)
            for (int cols = 1; cols <= 40; cols += 3) {
                const int lds = cols + 3, ld = (n + 1) / 2 * 2 + 4;
                float *src = new_random(&r, (int64_t)n * lds), *turned = new_poisoned((int64_t)cols * n);
                uint16_t *got = new_bytes((size_t)(cols * ld) * sizeof *got), want[72];
                memset(got, 0x5a, (size_t)(cols * ld) * sizeof *got);
                for (int j = 0; j < cols; j++)
                    for (int e = 0; e < n; e++) turned[j * n + e] = src[e * lds + j];
                tables[i]->narrow_columns(got, ld, src, lds, n, cols);
                for (int j = 0; j < cols; j++) {
                    tables[i]->narrow_rows(want, ld - 4, turned + j * n, n, 1, n);
                    assert_memory_equal(got + j * ld, want, (size_t)(ld - 4) * sizeof *want);
                    for (int e = ld - 4; e < ld; e++) assert_int_equal(got[j * ld + e], 0x5a5a);
                }
                free(src), free(turned), free(got);
            }
}

/* ---- Linear layers ---- */

static void round_all(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = from_bf16(to_bf16(x[i]));
}

typedef struct layer {
    int64_t rows, N, K, ldx, ldy;
    float *x, *w, *dy, *bias, *residual;     /* [rows,ldx], [N,K], [rows,ldy], [N], [rows,ldy] */
    float *y, *dx, *dw;                      /* of the first table: the bits that all others must have */
    float *wanted_dx, *wanted_dw, *wanted_y; /* by definition, of the rounded numbers */
} layer;

static layer make_layer(rng *r, int64_t rows, int64_t N, int64_t K) {
    layer l = {.rows = rows, .N = N, .K = K, .ldx = K + 3, .ldy = N + 5};
    l.x = new_random(r, rows * l.ldx);
    l.w = new_random(r, N * K);
    l.dy = new_random(r, rows * l.ldy);
    l.bias = new_random(r, N);
    l.residual = new_random(r, rows * l.ldy);
    round_all(l.w, N * K);
    float *x = new_poisoned(rows * l.ldx), *dy = new_poisoned(rows * l.ldy);
    for (int64_t i = 0; i < rows * l.ldx; i++) x[i] = from_bf16(to_bf16(l.x[i]));
    for (int64_t i = 0; i < rows * l.ldy; i++) dy[i] = from_bf16(to_bf16(l.dy[i]));
    l.wanted_y = new_poisoned(rows * N);
    l.wanted_dx = new_poisoned(rows * K);
    l.wanted_dw = new_poisoned(N * K);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t n = 0; n < N; n++) {
            double s = 0.0;
            for (int64_t k = 0; k < K; k++) s += (double)x[i * l.ldx + k] * (double)l.w[n * K + k];
            l.wanted_y[i * N + n] = (float)(s + (double)l.bias[n] + (double)l.residual[i * l.ldy + n]);
        }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < K; k++) {
            double s = 0.0;
            for (int64_t n = 0; n < N; n++) s += (double)dy[i * l.ldy + n] * (double)l.w[n * K + k];
            l.wanted_dx[i * K + k] = (float)s;
        }
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            double s = 0.0;
            for (int64_t i = 0; i < rows; i++) s += (double)dy[i * l.ldy + n] * (double)x[i * l.ldx + k];
            l.wanted_dw[n * K + k] = (float)s;
        }
    free(x), free(dy);
    return l;
}

static void free_layer(layer *l) {
    free(l->x), free(l->w), free(l->dy), free(l->bias), free(l->residual);
    free(l->y), free(l->dx), free(l->dw);
    free(l->wanted_dx), free(l->wanted_dw), free(l->wanted_y);
}

static void keep(float **first, float *now, int64_t n, const layer *l, const char *what, const char *isa) {
    if (*first == NULL) {
        *first = now;
        return;
    }
    if (memcmp(*first, now, sizeof(float) * (size_t)n) != 0)
        fail_msg("%s of %dx%dx%d: other bits on %s", what, (int)l->rows, (int)l->N, (int)l->K, isa);
    free(now);
}

static void check_layer(layer *l, const mhla_kernels *k, int threads, int own_workspace) {
    mhla_context *context = new_context(threads);
    mhla_weight *weight;
    const int64_t rows = l->rows, N = l->N, K = l->K;
    ASSERT_OK(mhla_set_isa(k->name));
    ASSERT_OK(mhla_weight_create(&weight, MHLA_BF16, N, K));
    ASSERT_OK(mhla_weight_update(weight, l->w, MHLA_F32, 0));
    mhla_linear_desc d = {.size = sizeof d, .context = context, .rows = rows, .ldx = l->ldx, .precision = MHLA_BF16};
    mhla_linear_desc f = d;
    f.bias = l->bias;
    f.residual = l->residual;
    f.ldr = l->ldy;
    float *y = new_poisoned(rows * N), *dx = new_poisoned(rows * l->ldx), *dw = new_poisoned(N * K);
    float *db = new_poisoned(N), *tight = new_poisoned(rows * K);
    ASSERT_OK(mhla_linear_forward(&f, y, l->x, weight));
    ASSERT_CLOSE(y, l->wanted_y, rows * N, 1e-6 + 3e-8 * (double)K, "%s: y of %dx%dx%d", k->name, (int)rows, (int)N,
                 (int)K);
    keep(&l->y, y, rows * N, l, "y", k->name);
    d.ldy = l->ldy;
    const size_t bytes = mhla_linear_workspace(&d, N, K, MHLA_BF16);
    char *guarded = new_bytes(bytes + 2 * MHLA_ALIGN), *ws = NULL;
    if (own_workspace) {
        ws = guarded + (MHLA_ALIGN - (uintptr_t)guarded % MHLA_ALIGN) % MHLA_ALIGN;
        memset(ws + bytes, 0x5a, MHLA_ALIGN);
        d.workspace = ws;
    }
    ASSERT_OK(mhla_linear_backward_input(&d, dx, l->dy, weight));
    for (int64_t i = 0; i < rows; i++) {
        memcpy(tight + i * K, dx + i * l->ldx, sizeof(float) * (size_t)K);
        for (int64_t j = K; j < l->ldx; j++) assert_true(isnan(dx[i * l->ldx + j]));
    }
    ASSERT_CLOSE(tight, l->wanted_dx, rows * K, 1e-6 + 3e-8 * (double)N, "%s: dx of %dx%dx%d", k->name, (int)rows,
                 (int)N, (int)K);
    keep(&l->dx, tight, rows * K, l, "dx", k->name);
    ASSERT_OK(mhla_linear_backward_weight(&d, dw, db, l->dy, l->x, N, K));
    ASSERT_CLOSE(dw, l->wanted_dw, N * K, 1e-6 + 3e-8 * (double)rows, "%s: dw of %dx%dx%d", k->name, (int)rows, (int)N,
                 (int)K);
    for (int64_t i = 0; ws && i < MHLA_ALIGN; i++) assert_int_equal(ws[bytes + (size_t)i], 0x5a);
    keep(&l->dw, dw, N * K, l, "dw", k->name);
    mhla_weight_free(weight);
    mhla_context_free(context);
    ASSERT_OK(mhla_set_isa(NULL));
    free(dx), free(db), free(guarded);
}

static void test_layers(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1},     {2, 7, 33},   {8, 17, 16},  {9, 64, 65},
                                       {65, 100, 72}, {300, 33, 5}, {40, 5, 800}, {2100, 18, 20}};
    const mhla_kernels *tables[TABLES];
    const int n = multiplying(tables);
    void (*const bits[])(const mhla_gemm_bf16 *) = {mhla_emulated_gemm_bf16, mhla_emulated_gemm_amx};
    rng r = {2};
    for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        layer l = make_layer(&r, sizes[s][0], sizes[s][1], sizes[s][2]);
        for (int b = 0; b < 2; b++) {
            for (int i = n - 1; i >= 0; i--)
                for (int threads = 1; tables[i]->same_bits == bits[b] && threads <= (l.y ? 1 : 5); threads += 2)
                    check_layer(&l, tables[i], threads, (int)s % 2);
            free(l.y), free(l.dx), free(l.dw);
            l.y = l.dx = l.dw = NULL;
        }
        free_layer(&l);
    }
}

/* A CPU without such products computes in float32, whatever the precision. */
static void test_without(void **state) {
    (void)state;
    enum { ROWS = 20, N = 30, K = 40 };
    rng r = {3};
    float *x = new_random(&r, ROWS * K), *dy = new_random(&r, ROWS * N), *w = new_random(&r, N * K);
    float *a = new_poisoned(N * K), *b = new_poisoned(N * K), *c = new_poisoned(ROWS * K), *d = new_poisoned(ROWS * K);
    mhla_weight *weight;
    ASSERT_OK(mhla_set_isa("plain"));
    ASSERT_OK(mhla_weight_pack(&weight, w, MHLA_F32, N, K, 0));
    mhla_linear_desc desc = {.size = sizeof desc, .rows = ROWS};
    ASSERT_OK(mhla_linear_backward_weight(&desc, a, NULL, dy, x, N, K));
    ASSERT_OK(mhla_linear_backward_input(&desc, c, dy, weight));
    desc.precision = MHLA_BF16;
    ASSERT_OK(mhla_linear_backward_weight(&desc, b, NULL, dy, x, N, K));
    ASSERT_OK(mhla_linear_backward_input(&desc, d, dy, weight));
    assert_memory_equal(a, b, sizeof(float) * N * K);
    assert_memory_equal(c, d, sizeof(float) * ROWS * K);
    desc.precision = MHLA_Q8_0;
    ASSERT_FAILS(mhla_linear_backward_input(&desc, d, dy, weight), MHLA_EINVAL, "precision is 2");
    ASSERT_OK(mhla_set_isa(NULL));
    mhla_weight_free(weight);
    free(x), free(dy), free(w), free(a), free(b), free(c), free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_bits), cmocka_unit_test(test_known_bits_of_tiles),
        cmocka_unit_test(test_hardware),   cmocka_unit_test(test_columns),
        cmocka_unit_test(test_layers),     cmocka_unit_test(test_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
