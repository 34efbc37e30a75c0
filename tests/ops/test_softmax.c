/* Softmax attention against its reference, outputs and gradients, in every instruction set of this CPU; the reference
 * against finite differences; and the properties that no tolerance can hide: what is masked is not touched, and the
 * number of threads or of batch entries changes nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mhla/mhla.h>

#include "ops/op.h"

enum { MAX_ISAS = 8 };

static uint64_t seed;

static uint32_t random_bits(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static float random_float(void) { return (float)(random_bits() & 0xffffff) / 0x800000 - 1.0f; }

/* ---- One problem: a plan, a call, its tensors ---- */

enum { Q, KEY, VAL, OUT, DOUT, DQ, DK, DV, TENSORS };

typedef struct problem {
    mhla_plan_desc d;
    mhla_call c;
    int layout; /* 0 [B,T,H,D], 1 [B,H,T,D], 2 padded rows */
    int accumulate;
    mhla_plan *plan;
    struct {
        void *data;
        mhla_dtype dtype;
        mhla_strides s;
        int64_t B, T, H, D, extent;
    } x[TENSORS];
    float *cos, *sin;
} problem;

static void *allocate(size_t bytes) {
    void *p = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(p);
    return p;
}

static size_t tensor_bytes(const problem *p, int i) { return (size_t)p->x[i].extent * mhla_dtype_size(p->x[i].dtype); }

static void make_tensor(problem *p, int i, mhla_dtype dtype, int64_t B, int64_t T, int64_t H, int64_t D) {
    mhla_strides s = {T * H * D, H * D, D};
    if (p->layout == 1) s = (mhla_strides){H * T * D, D, T * D};
    if (p->layout == 2) s = (mhla_strides){T * (H * (D + 3) + 5) + 7, H * (D + 3) + 5, D + 3};
    p->x[i].dtype = dtype;
    p->x[i].s = s;
    p->x[i].B = B, p->x[i].T = T, p->x[i].H = H, p->x[i].D = D;
    p->x[i].extent = (B - 1) * s.batch + (T - 1) * s.token + (H - 1) * s.head + D;
    p->x[i].data = allocate(tensor_bytes(p, i));
    memset(p->x[i].data, 0xff, tensor_bytes(p, i)); /* NaN, between the rows too */
}

static void set(problem *p, int i, int64_t b, int64_t t, int64_t h, int64_t j, float value) {
    mhla_put(p->x[i].data, p->x[i].dtype, &p->x[i].s, b, t, h, j, (double)value, 0);
}

static void fill_token(problem *p, int i, int64_t b, int64_t t, float value) {
    for (int64_t h = 0; h < p->x[i].H; h++)
        for (int64_t j = 0; j < p->x[i].D; j++) set(p, i, b, t, h, j, value);
}

static void fill_random(problem *p, int i, float size) {
    for (int64_t b = 0; b < p->x[i].B; b++)
        for (int64_t t = 0; t < p->x[i].T; t++)
            for (int64_t h = 0; h < p->x[i].H; h++)
                for (int64_t j = 0; j < p->x[i].D; j++) set(p, i, b, t, h, j, size * random_float());
}

static void setup(problem *p) {
    p->d.size = sizeof p->d;
    p->d.kind = MHLA_KIND_SOFTMAX;
    p->c.size = sizeof p->c;
    if (mhla_plan_create(&p->plan, &p->d) != MHLA_OK) fail_msg("%s", mhla_message());
    const int64_t B = p->c.batch, T = p->c.tokens, Tk = p->c.kv_tokens ? p->c.kv_tokens : T;
    const int H = p->d.heads, G = p->d.kv_heads ? p->d.kv_heads : H, K = p->d.key_dim, V = p->d.value_dim;
    make_tensor(p, Q, p->d.dtype, B, T, H, K);
    make_tensor(p, KEY, p->d.kv_bfloat16 ? MHLA_BF16 : p->d.dtype, B, Tk, G, K);
    make_tensor(p, VAL, p->d.kv_bfloat16 ? MHLA_BF16 : p->d.dtype, B, Tk, G, V);
    make_tensor(p, OUT, p->d.dtype, B, T, H, V);
    make_tensor(p, DOUT, p->d.dtype, B, T, H, V);
    make_tensor(p, DQ, MHLA_F32, B, T, H, K);
    make_tensor(p, DK, MHLA_F32, B, Tk, G, K);
    make_tensor(p, DV, MHLA_F32, B, Tk, G, V);
    fill_random(p, Q, 2.0f);
    fill_random(p, KEY, 2.0f);
    fill_random(p, VAL, 1.0f);
    fill_random(p, DOUT, 1.0f);
    p->c.q = p->x[Q].s, p->c.k = p->x[KEY].s, p->c.v = p->x[VAL].s, p->c.o = p->x[OUT].s;
    if (p->d.rope) {
        const int half = (p->d.rope_dim ? p->d.rope_dim : K) / 2;
        const int64_t rows = T > Tk ? T : Tk;
        p->cos = allocate((size_t)(rows * half) * sizeof(float));
        p->sin = allocate((size_t)(rows * half) * sizeof(float));
        for (int64_t i = 0; i < rows * half; i++) {
            const double angle = (double)(i / half) * pow(100.0, -(double)(i % half) / half);
            p->cos[i] = (float)cos(angle);
            p->sin[i] = (float)sin(angle);
        }
        p->c.rope_cos = p->cos, p->c.rope_sin = p->sin, p->c.rope_rows = rows;
    }
}

static void teardown(problem *p) {
    for (int i = 0; i < TENSORS; i++) free(p->x[i].data);
    free(p->cos);
    free(p->sin);
    mhla_plan_free(p->plan);
}

/* Outputs before the call: NaN, or numbers where something is added to them. */
static void clear_outputs(problem *p) {
    static const int outputs[] = {OUT, DQ, DK, DV};
    for (int i = 0; i < 4; i++) {
        memset(p->x[outputs[i]].data, 0xff, tensor_bytes(p, outputs[i]));
        const uint64_t kept = seed;
        seed = 99;
        if (p->accumulate) fill_random(p, outputs[i], 1.0f);
        seed = kept;
    }
}

static void run(problem *p, int reference) {
    const mhla_grads g = {.size = sizeof g,
                          .dq = p->x[DQ].data,
                          .dk = p->x[DK].data,
                          .dv = p->x[DV].data,
                          .dq_strides = p->x[DQ].s,
                          .dk_strides = p->x[DK].s,
                          .dv_strides = p->x[DV].s,
                          .accumulate = p->accumulate};
    clear_outputs(p);
    p->c.accumulate = p->accumulate;
    const void *q = p->x[Q].data, *k = p->x[KEY].data, *v = p->x[VAL].data, *dO = p->x[DOUT].data;
    mhla_status status = reference ? mhla_forward_reference(p->plan, &p->c, p->x[OUT].data, q, k, v, NULL)
                                   : mhla_forward(p->plan, &p->c, p->x[OUT].data, q, k, v, NULL, NULL);
    if (status == MHLA_OK)
        status = reference ? mhla_backward_reference(p->plan, &p->c, &g, dO, q, k, v, NULL)
                           : mhla_backward(p->plan, &p->c, &g, dO, q, k, v, NULL, NULL);
    if (status != MHLA_OK) fail_msg("%s", mhla_message());
}

static double element(const problem *p, int i, const void *data, int64_t at) {
    return mhla_get(data, p->x[i].dtype, &(mhla_strides){0, 0, 0}, 0, 0, 0, at);
}

/* Copies of the four outputs. */
typedef struct outputs {
    void *data[TENSORS];
} outputs;

static outputs keep(const problem *p) {
    outputs o = {{NULL}};
    for (int i = 0; i < TENSORS; i++) {
        if (i == Q || i == KEY || i == VAL || i == DOUT) continue;
        o.data[i] = allocate(tensor_bytes(p, i));
        memcpy(o.data[i], p->x[i].data, tensor_bytes(p, i));
    }
    return o;
}
static void forget(outputs *o) {
    for (int i = 0; i < TENSORS; i++) free(o->data[i]);
}

/* Largest difference of a whole buffer, gaps between rows included (NaN must be NaN), over the largest value. */
static double difference(const problem *p, int i, const void *expected) {
    double worst = 0.0, largest = 1e-3;
    for (int64_t at = 0; at < p->x[i].extent; at++) {
        const double e = element(p, i, expected, at), x = element(p, i, p->x[i].data, at);
        if (isnan(e) && isnan(x)) continue;
        const double diff = isnan(e) || isnan(x) ? INFINITY : fabs(x - e);
        if (diff > worst) worst = diff;
        if (fabs(e) > largest) largest = fabs(e);
    }
    return worst / largest;
}

static void describe(char *text, size_t size, const problem *p, const char *isa) {
    snprintf(text, size,
             "%s: B %d Tq %d Tk %d H %d G %d K %d V %d causal %d window %d cap %g rope %d/%d dtype %d layout %d acc %d "
             "packed %d",
             isa, (int)p->c.batch, (int)p->c.tokens, (int)p->x[KEY].T, p->d.heads, p->d.kv_heads, p->d.key_dim,
             p->d.value_dim, p->d.causal, (int)p->d.window, p->d.softcap, (int)p->d.rope, p->d.rope_dim,
             (int)p->d.dtype, p->layout, p->accumulate, (int)p->c.sequences);
}

static int isas(const char *names[]) {
    const mhla_kernels *tables[MAX_ISAS];
    const int n = mhla_kernels_available(tables, MAX_ISAS);
    for (int i = 0; i < n; i++) names[i] = tables[i]->name;
    return n;
}

/* ---- Against the reference ---- */

static void compare(problem *p) {
    static const char *const names[TENSORS] = {[OUT] = "o", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};
    const char *isa[MAX_ISAS];
    const int n = isas(isa);
    run(p, 1);
    outputs expected = keep(p);
    for (int a = 0; a < n; a++) {
        assert_int_equal(mhla_set_isa(isa[a]), MHLA_OK);
        run(p, 0);
        for (int i = 0; i < TENSORS; i++) {
            if (names[i] == NULL) continue;
            const double tolerance = p->x[i].dtype == MHLA_BF16 ? 1.0 / 128 : i == OUT ? 4e-6 : 8e-6;
            const double diff = difference(p, i, expected.data[i]);
            char text[256];
            describe(text, sizeof text, p, isa[a]);
            if (!(diff <= tolerance)) fail_msg("%s: %s differs by %.3g", text, names[i], diff);
        }
    }
    mhla_set_isa(NULL);
    forget(&expected);
}

static int pick(const int *list, int n) { return list[random_bits() % (uint32_t)n]; }

static void test_reference(void **state) {
    (void)state;
    static const int tokens[] = {1, 2, 63, 64, 65, 200}, sizes[] = {1, 7, 60, 64, 72, 128};
    static const int windows[] = {0, 0, 1, 5, 64, 130}, key_tokens[] = {1, 2, 63, 65, 200, 600};
    for (int i = 0; i < 48; i++) {
        seed = 1000 + (uint64_t)i;
        random_bits();
        problem p = {0};
        p.c.tokens = tokens[i % 6];
        if (i / 6 % 3 == 1) p.c.kv_tokens = pick(key_tokens, 6);
        p.c.batch = 1 + random_bits() % 2;
        p.d.kv_heads = 1 + (int)(random_bits() % 2);
        p.d.heads = p.d.kv_heads * (1 + (int)(random_bits() % 3));
        p.d.key_dim = sizes[i / 2 % 6];
        p.d.value_dim = pick(sizes, 6);
        p.d.causal = i / 6 % 2;
        if (p.d.causal) p.d.window = pick(windows, 6);
        p.d.dtype = i % 5 == 0 ? MHLA_BF16 : MHLA_F32;
        p.d.kv_bfloat16 = i % 3 == 1;
        if (p.d.key_dim > 1 && i % 3 == 0 && (p.d.causal || p.c.kv_tokens == 0)) {
            p.d.rope = i % 2 ? MHLA_ROPE_HALF : MHLA_ROPE_INTERLEAVED;
            p.d.rope_dim = random_bits() % 2 ? p.d.key_dim / 2 * 2 : (p.d.key_dim + 3) / 4 * 2;
        }
        if (i % 7 == 3) p.d.scale = -0.2f;
        if (i % 4 == 2) p.d.softcap = 0.5 + i % 3;
        p.layout = (int)(random_bits() % 3);
        p.accumulate = i % 4 == 1;
        setup(&p);
        compare(&p);
        teardown(&p);
    }
}

static void test_packed(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 1, 1, 66, 130, 331};
    for (int i = 0; i < 6; i++) {
        seed = 77 + (uint64_t)i;
        problem p = {.d = {.heads = 4, .kv_heads = 2, .key_dim = i == 2 ? 7 : 60, .value_dim = 24, .causal = i > 0}};
        p.c = (mhla_call){.batch = 1, .tokens = 331, .cu_seqlens = cu, .sequences = 5};
        p.d.window = i == 3 ? 33 : 0;
        p.d.rope = i == 4 ? MHLA_ROPE_HALF : MHLA_ROPE_NONE;
        p.d.softcap = i == 3 ? 2.0 : 0.0;
        p.d.dtype = i == 5 ? MHLA_BF16 : MHLA_F32;
        p.layout = i % 3;
        setup(&p);
        compare(&p);
        teardown(&p);
    }
}

/* Large heads, many queries of many heads, more than one chunk of queries and more keys than a tile. */
static void test_large(void **state) {
    (void)state;
    static const struct {
        int T, Tk, H, G, K, V, causal, window, more; /* more: 1 bfloat16, 2 rotary */
    } cases[] = {
        {3, 5, 1, 1, 1024, 1024, 1, 0, 0}, {70, 300, 2, 1, 300, 520, 0, 0, 0}, {2051, 0, 1, 1, 2, 3, 1, 0, 0},
        {1100, 40, 1, 1, 3, 2, 0, 0, 0},   {2050, 0, 2, 1, 1, 1, 1, 300, 0},   {1, 1500, 24, 2, 16, 16, 1, 0, 0},
        {9, 700, 8, 1, 20, 16, 1, 0, 0},   {300, 20, 3, 1, 8, 8, 1, 0, 0},     {4, 513, 2, 2, 64, 64, 1, 100, 0},
        {1, 1500, 8, 2, 16, 33, 1, 0, 0},  {2, 1300, 4, 1, 72, 60, 1, 600, 1}, {8, 1100, 1, 1, 7, 5, 1, 0, 0},
        {3, 1030, 2, 2, 34, 72, 1, 0, 2},  {1, 2000, 3, 3, 20, 128, 0, 0, 3},  {5, 600, 1, 1, 130, 65, 1, 3, 2},
        {8, 3, 1, 1, 4, 4, 1, 0, 2},       {40, 90, 2, 1, 12, 8, 1, 0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        seed = 5 + i;
        problem p = {
            .d = {.heads = cases[i].H, .kv_heads = cases[i].G, .key_dim = cases[i].K, .value_dim = cases[i].V}};
        p.d.causal = cases[i].causal, p.d.window = cases[i].window;
        p.d.dtype = cases[i].more & 1 ? MHLA_BF16 : MHLA_F32;
        p.d.kv_bfloat16 = i % 2;
        p.d.softcap = i % 3 == 1 ? 1.0 : 0.0;
        p.d.rope = cases[i].more & 2 ? MHLA_ROPE_HALF : MHLA_ROPE_NONE;
        p.c = (mhla_call){.batch = 1 + i % 2, .tokens = cases[i].T, .kv_tokens = cases[i].Tk};
        p.layout = (int)(i % 3);
        p.accumulate = i % 4 == 3;
        setup(&p);
        compare(&p);
        teardown(&p);
    }
}

/* ---- The reference's gradients, by finite differences ---- */

static double loss(problem *p) {
    clear_outputs(p);
    if (mhla_forward_reference(p->plan, &p->c, p->x[OUT].data, p->x[Q].data, p->x[KEY].data, p->x[VAL].data, NULL))
        fail_msg("%s", mhla_message());
    double sum = 0.0;
    for (int64_t at = 0; at < p->x[OUT].extent; at++) {
        const double o = element(p, OUT, p->x[OUT].data, at);
        if (!isnan(o)) sum += o * element(p, DOUT, p->x[DOUT].data, at);
    }
    return sum;
}

static void test_finite_differences(void **state) {
    (void)state;
    for (int variant = 0; variant < 5; variant++) {
        seed = 300 + (uint64_t)variant;
        problem p = {.d = {.heads = 2, .kv_heads = 1, .key_dim = 6, .value_dim = 3, .causal = variant > 0}};
        p.d.window = variant == 2 ? 3 : 0;
        p.d.rope = variant == 3 ? MHLA_ROPE_HALF : MHLA_ROPE_NONE;
        p.d.rope_dim = variant == 3 ? 4 : 0;
        p.d.softcap = variant == 4 ? 1.5 : 0.0;
        p.c = (mhla_call){.batch = 1, .tokens = 5, .kv_tokens = variant == 1 ? 4 : 7};
        setup(&p);
        run(&p, 1);
        outputs grads = keep(&p);
        static const int input[] = {Q, KEY, VAL}, gradient[] = {DQ, DK, DV};
        for (int i = 0; i < 3; i++)
            for (int64_t at = 0; at < p.x[input[i]].extent; at++) {
                float *x = (float *)p.x[input[i]].data + at;
                const float kept = *x, h = 0.0625f;
                double f[4];
                static const float step[] = {-2.0f, -1.0f, 1.0f, 2.0f};
                for (int s = 0; s < 4; s++) {
                    *x = kept + step[s] * h;
                    f[s] = loss(&p);
                }
                *x = kept;
                const double slope = (8.0 * (f[2] - f[1]) - (f[3] - f[0])) / (12.0 * (double)h);
                const double given = element(&p, gradient[i], grads.data[gradient[i]], at);
                if (!(fabs(slope - given) <= 2e-4))
                    fail_msg("variant %d, input %d[%d]: %g, expected %g", variant, i, (int)at, given, slope);
            }
        forget(&grads);
        teardown(&p);
    }
}

/* ---- Properties ---- */

static int same_token(const problem *p, int i, const void *expected, int64_t t) {
    for (int64_t h = 0; h < p->x[i].H; h++) {
        const int64_t at = t * p->x[i].s.token + h * p->x[i].s.head;
        const size_t size = mhla_dtype_size(p->x[i].dtype);
        if (memcmp((const char *)expected + (size_t)at * size, (const char *)p->x[i].data + (size_t)at * size,
                   (size_t)p->x[i].D * size) != 0)
            return 0;
    }
    return 1;
}

/* A NaN key and value: queries that do not see it keep their output and dq to the bit. A NaN query and dO: keys that
 * it does not see keep dk and dv. */
static void test_masked_is_untouched(void **state) {
    (void)state;
    static const int bad[] = {0, 1, 7, 8, 63, 64, 100, 127, 128, 149};
    const char *isa[MAX_ISAS];
    const int n = isas(isa);
    for (int a = 0; a < n; a++)
        for (int i = 0; i < 40; i++) {
            seed = 11;
            const int64_t at = bad[i % 10], window = i >= 20 ? 20 : 0;
            static const int64_t cu[] = {0, 90, 150};
            problem p = {
                .d = {.heads = 2, .kv_heads = 1, .key_dim = 20, .value_dim = 36, .causal = 1, .window = window}};
            p.c = (mhla_call){.batch = 1, .tokens = 150};
            const int packed = i % 3 == 0;
            if (packed) p.c.cu_seqlens = cu, p.c.sequences = 2;
            setup(&p);
            assert_int_equal(mhla_set_isa(isa[a]), MHLA_OK);
            run(&p, 0);
            outputs clean = keep(&p);
            const int as_key = i / 10 % 2 == 0;
            fill_token(&p, as_key ? KEY : Q, 0, at, NAN);
            fill_token(&p, as_key ? VAL : DOUT, 0, at, NAN);
            run(&p, 0);
            for (int64_t t = 0; t < 150; t++) {
                const int64_t query = as_key ? t : at, key = as_key ? at : t;
                const int sees =
                    key <= query && (window == 0 || key > query - window) && (!packed || (key < 90) == (query < 90));
                for (int x = as_key ? OUT : DK; x <= (as_key ? DQ : DV); x++) {
                    if (x == DOUT) continue;
                    const int same = same_token(&p, x, clean.data[x], t);
                    if (same == sees)
                        fail_msg("%s: NaN at %d, token %d, tensor %d, window %d", isa[a], (int)at, (int)t, x,
                                 (int)window);
                }
            }
            forget(&clean);
            teardown(&p);
        }
    mhla_set_isa(NULL);
}

/* The same while decoding: queries 0..3 stand at keys 146..149. */
static void test_masked_decode(void **state) {
    (void)state;
    const char *isa[MAX_ISAS];
    const int n = isas(isa);
    for (int a = 0; a < n; a++)
        for (int i = 0; i < 12; i++) {
            seed = 13;
            const int64_t window = i % 2 ? 20 : 0, at = i % 2 ? 125 + i / 2 : 144 + i / 2;
            problem p = {
                .d = {.heads = 2, .kv_heads = 1, .key_dim = 20, .value_dim = 37, .causal = 1, .window = window}};
            p.c = (mhla_call){.batch = 1, .tokens = 4, .kv_tokens = 150};
            setup(&p);
            assert_int_equal(mhla_set_isa(isa[a]), MHLA_OK);
            run(&p, 0);
            outputs clean = keep(&p);
            fill_token(&p, KEY, 0, at, NAN);
            fill_token(&p, VAL, 0, at, NAN);
            run(&p, 0);
            for (int64_t t = 0; t < 4; t++) {
                const int sees = at <= t + 146 && (window == 0 || at > t + 146 - window);
                assert_int_equal(same_token(&p, OUT, clean.data[OUT], t), !sees);
                assert_int_equal(same_token(&p, DQ, clean.data[DQ], t), !sees);
            }
            forget(&clean);
            teardown(&p);
        }
    mhla_set_isa(NULL);
}

static void test_infinities(void **state) {
    (void)state;
    for (int decoding = 0; decoding < 2; decoding++) {
        seed = 4;
        problem p = {.d = {.heads = 1, .key_dim = 1, .value_dim = 5}};
        p.c = (mhla_call){.batch = 1, .tokens = decoding ? 1 : 30, .kv_tokens = 1400};
        setup(&p);
        for (int64_t t = 0; t < p.c.tokens; t++) fill_token(&p, Q, 0, t, 1.0f);
        for (int64_t t = 0; t < 700; t++) fill_token(&p, KEY, 0, t, -INFINITY); /* whole tiles of weight 0 */
        run(&p, 1);
        outputs expected = keep(&p);
        run(&p, 0);
        assert_true(difference(&p, OUT, expected.data[OUT]) < 4e-6);
        assert_true(difference(&p, DV, expected.data[DV]) < 8e-6);
        assert_false(isnan(element(&p, OUT, p.x[OUT].data, 0)));
        for (int64_t t = 700; t < 1400; t++) fill_token(&p, KEY, 0, t, -INFINITY); /* 0 / 0 */
        run(&p, 0);
        assert_true(isnan(element(&p, OUT, p.x[OUT].data, 0)));
        fill_token(&p, KEY, 0, 1399, INFINITY); /* inf - inf */
        run(&p, 0);
        assert_true(isnan(element(&p, OUT, p.x[OUT].data, 0)));
        forget(&expected);
        teardown(&p);
    }
}

/* Causal with more queries than keys: the first ones see nothing. */
static void test_blind_queries(void **state) {
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        seed = 8;
        problem p = {.d = {.heads = 2, .key_dim = 4, .value_dim = 4, .causal = 1, .rope = MHLA_ROPE_HALF}};
        p.c = (mhla_call){.batch = 2, .tokens = 200, .kv_tokens = 3};
        p.accumulate = accumulate;
        setup(&p);
        clear_outputs(&p);
        outputs before = keep(&p);
        fill_token(&p, Q, 0, 196, NAN);
        fill_token(&p, DOUT, 1, 0, NAN);
        run(&p, 0);
        static const int blind[] = {OUT, DQ};
        for (int i = 0; i < 2; i++)
            for (int64_t at = 0; at < 197 * 8; at++) {
                const double x = element(&p, blind[i], p.x[blind[i]].data, at);
                assert_true(x == (accumulate ? element(&p, blind[i], before.data[blind[i]], at) : 0.0));
            }
        assert_false(isnan(element(&p, DV, p.x[DV].data, 0)));
        forget(&before);
        teardown(&p);
    }
}

/* 2100 queries are two chunks, 3100 three, which few heads split among threads and many do not; 197 are cut for many threads. */
static void test_threads_and_batch(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 7, 64};
    for (int variant = 0; variant < 5; variant++) {
        seed = 21;
        problem p = {.d = {.heads = 2, .kv_heads = 1, .key_dim = 4, .value_dim = 5, .causal = variant == 1}};
        p.c = (mhla_call){.batch = variant == 2 ? 9 : 1, .tokens = variant == 2 ? 130 : 2100 + 1000 * variant};
        if (variant == 3) p.c.batch = 9, p.c.tokens = 3, p.c.kv_tokens = 2000; /* decoding */
        if (variant == 4) p.c.batch = 9, p.c.tokens = 197;
        setup(&p);
        outputs first = {{NULL}};
        for (int i = 0; i < 5; i++) {
            mhla_context *context;
            const mhla_context_desc desc = {
                .size = sizeof desc, .backend = MHLA_BACKEND_PTHREADS, .threads = threads[i]};
            assert_int_equal(mhla_context_create(&context, &desc), MHLA_OK);
            p.c.context = context;
            run(&p, 0);
            mhla_context_free(context);
            if (i == 0)
                first = keep(&p);
            else
                for (int x = OUT; x < TENSORS; x++)
                    if (first.data[x]) assert_memory_equal(first.data[x], p.x[x].data, tensor_bytes(&p, x));
        }
        if (variant >= 2) { /* the first entry alone */
            p.c.context = NULL;
            p.c.batch = 1;
            run(&p, 0);
            for (int x = OUT; x < TENSORS; x++)
                if (first.data[x]) assert_memory_equal(first.data[x], p.x[x].data, tensor_bytes(&p, x) / 9);
        }
        forget(&first);
        teardown(&p);
    }
}

/* Each gradient alone is the same as with the others. */
static void test_wanted_gradients(void **state) {
    (void)state;
    seed = 31;
    problem p = {.d = {.heads = 2, .key_dim = 9, .value_dim = 10, .causal = 1}, .c = {.batch = 1, .tokens = 100}};
    setup(&p);
    run(&p, 0);
    outputs all = keep(&p);
    for (int x = DQ; x <= DV; x++) {
        mhla_grads g = {.size = sizeof g};
        *(x == DQ ? &g.dq : x == DK ? &g.dk : &g.dv) = p.x[x].data;
        clear_outputs(&p);
        assert_int_equal(
            mhla_backward(p.plan, &p.c, &g, p.x[DOUT].data, p.x[Q].data, p.x[KEY].data, p.x[VAL].data, NULL, NULL),
            MHLA_OK);
        for (int y = DQ; y <= DV; y++) {
            if (y == x) assert_memory_equal(all.data[y], p.x[y].data, tensor_bytes(&p, y));
            if (y != x) assert_true(isnan(element(&p, y, p.x[y].data, 0)));
        }
    }
    forget(&all);
    teardown(&p);
}

/* The weights of one row: exp to rounding, over the whole range. */
static void test_exp(void **state) {
    (void)state;
    const mhla_kernels *tables[MAX_ISAS];
    const int n = mhla_kernels_available(tables, MAX_ISAS);
    for (int a = 0; a < n; a++)
        for (int i = 0; i < 400; i++) {
            float s[64], kept[64], max = -INFINITY, sum = 0.0f, o[16] = {0};
            s[0] = 0.0f;
            for (int j = 1; j < 64; j++) s[j] = -0.22f * (float)i + 0.0034f * (float)j - 0.22f;
            memcpy(kept, s, sizeof s);
            const mhla_scores t = {.s = s, .ld = 64, .m = 1, .n = 61, .max = &max, .sum = &sum, .o = o, .ldo = 16};
            tables[a]->scores_online(&t);
            assert_true(max == 0.0f && s[0] == 1.0f);
            double total = 0.0;
            for (int j = 0; j < 61; j++) {
                const double e = exp((double)kept[j]);
                total += e;
                if (kept[j] > -87.3f && !(fabs((double)s[j] / e - 1.0) < 1.3e-7))
                    fail_msg("%s: exp(%.9g) = %.9g", tables[a]->name, (double)kept[j], (double)s[j]);
                if (kept[j] < -87.7f && s[j] != 0.0f)
                    fail_msg("%s: exp(%.9g) = %.9g", tables[a]->name, (double)kept[j], (double)s[j]);
            }
            assert_true(fabs((double)sum / total - 1.0) < 1e-6);
        }
}

/* ---- Bad input ---- */

static void refused(const mhla_plan_desc *d, const char *name) {
    mhla_plan *plan;
    assert_int_equal(mhla_plan_create(&plan, d), MHLA_EINVAL);
    assert_null(plan);
    if (strstr(mhla_message(), name) == NULL) fail_msg("\"%s\" does not name %s", mhla_message(), name);
}

static void test_bad_plans(void **state) {
    (void)state;
    const mhla_plan_desc good = {
        .size = sizeof good, .kind = MHLA_KIND_SOFTMAX, .heads = 4, .key_dim = 8, .value_dim = 8};
    static const int64_t offsets[] = {0, 1};
    static const int32_t permutation[] = {0};
#define REFUSED(field, value)                                                                                          \
    do {                                                                                                               \
        mhla_plan_desc d = good;                                                                                       \
        d.field = (value);                                                                                             \
        refused(&d, #field);                                                                                           \
    } while (0)
    REFUSED(feature, MHLA_FEATURE_ELU);
    REFUSED(feature_eps, 1e-6f);
    REFUSED(denominator, MHLA_DEN_NONE);
    REFUSED(den_eps, 1e-6f);
    REFUSED(axes, 1);
    REFUSED(grid[1], 4);
    REFUSED(blocks[2], 2);
    REFUSED(order, MHLA_ORDER_BLOCKS);
    REFUSED(n_blocks, 1);
    REFUSED(n_tokens, 1);
    REFUSED(block_offsets, offsets);
    REFUSED(permutation, permutation);
    REFUSED(mix_per_head, 1);
    REFUSED(chunk, 64);
    REFUSED(chunks, 4);
    REFUSED(beyond, MHLA_BEYOND_CLAMP);
    REFUSED(max_tokens, 100);
    REFUSED(causal, 2);
    REFUSED(causal, -1);
    REFUSED(window, -1);
    REFUSED(window, 5); /* without causal */
    REFUSED(softcap, -1.0);
    REFUSED(softcap, INFINITY);
    REFUSED(value_dim, 1025);
    REFUSED(kv_heads, 3);
#undef REFUSED
}

static void refused_call(const mhla_plan *plan, const mhla_call *c, const char *name) {
    static float x[4096], o[4096];
    memset(o, 0xff, sizeof o);
    assert_int_equal(mhla_forward(plan, c, o, x, x, x, NULL, NULL), MHLA_EINVAL);
    if (strstr(mhla_message(), name) == NULL) fail_msg("\"%s\" does not name %s", mhla_message(), name);
    for (int i = 0; i < 4096; i++) assert_true(isnan(o[i]));
    assert_int_equal(mhla_forward_workspace(plan, c), 0);
}

static void test_bad_calls(void **state) {
    (void)state;
    mhla_plan_desc d = {.size = sizeof d, .kind = MHLA_KIND_SOFTMAX, .heads = 2, .key_dim = 4, .value_dim = 4};
    mhla_plan *plain, *rotary;
    assert_int_equal(mhla_plan_create(&plain, &d), MHLA_OK);
    d.rope = MHLA_ROPE_HALF;
    assert_int_equal(mhla_plan_create(&rotary, &d), MHLA_OK);
    static const int64_t cu[] = {0, 3, 6}, down[] = {0, 4, 3, 6};
    static const float table[64];
    mhla_call c = {.size = sizeof c, .batch = 1, .tokens = 6, .kv_tokens = 7, .cu_seqlens = cu, .sequences = 2};
    refused_call(plain, &c, "kv_tokens");
    c = (mhla_call){.size = sizeof c, .batch = 1, .tokens = 6, .cu_seqlens = down, .sequences = 3};
    refused_call(plain, &c, "cu_seqlens");
    c = (mhla_call){.size = sizeof c,
                    .batch = 1,
                    .tokens = 6,
                    .kv_tokens = 5,
                    .rope_cos = table,
                    .rope_sin = table,
                    .rope_rows = 6};
    refused_call(rotary, &c, "kv_tokens");
    c.kv_tokens = 8;
    refused_call(rotary, &c, "rope_rows");
    c.kv_tokens = -1;
    refused_call(plain, &c, "kv_tokens");
    c = (mhla_call){.size = sizeof c, .batch = 1, .tokens = 6, .past = 1};
    refused_call(plain, &c, "past");
    mhla_plan_free(plain);
    mhla_plan_free(rotary);
}

static void *no_memory(size_t bytes) {
    (void)bytes;
    return NULL;
}

static void test_no_memory(void **state) {
    (void)state;
    seed = 2;
    problem p = {.d = {.heads = 2, .key_dim = 4, .value_dim = 4}, .c = {.batch = 1, .tokens = 10}};
    setup(&p);
    const mhla_grads g = {.size = sizeof g, .dq = p.x[DQ].data};
    const void *q = p.x[Q].data, *k = p.x[KEY].data, *v = p.x[VAL].data, *dO = p.x[DOUT].data;
    mhla_set_allocator(no_memory, free);
    assert_int_equal(mhla_forward(p.plan, &p.c, p.x[OUT].data, q, k, v, NULL, NULL), MHLA_ENOMEM);
    assert_int_equal(mhla_forward_reference(p.plan, &p.c, p.x[OUT].data, q, k, v, NULL), MHLA_ENOMEM);
    assert_int_equal(mhla_backward(p.plan, &p.c, &g, dO, q, k, v, NULL, NULL), MHLA_ENOMEM);
    assert_int_equal(mhla_backward_reference(p.plan, &p.c, &g, dO, q, k, v, NULL), MHLA_ENOMEM);
    mhla_set_allocator(NULL, NULL);
    assert_true(isnan(element(&p, OUT, p.x[OUT].data, 0)));
    teardown(&p);
}

/* The workspace that the library tells is enough, and nothing beyond it is written. */
static void test_workspace(void **state) {
    (void)state;
    seed = 3;
    problem p = {.d = {.heads = 2, .key_dim = 33, .value_dim = 50, .causal = 1}, .c = {.batch = 2, .tokens = 150}};
    setup(&p);
    run(&p, 0);
    outputs expected = keep(&p);
    const mhla_grads g = {.size = sizeof g, .dq = p.x[DQ].data, .dk = p.x[DK].data, .dv = p.x[DV].data};
    const size_t bytes[] = {mhla_forward_workspace(p.plan, &p.c), mhla_backward_workspace(p.plan, &p.c)};
    clear_outputs(&p);
    for (int i = 0; i < 2; i++) {
        unsigned char *ws = aligned_alloc(64, (bytes[i] + 127) / 64 * 64);
        assert_non_null(ws);
        memset(ws, 0xff, bytes[i] + 64);
        const void *q = p.x[Q].data, *k = p.x[KEY].data, *v = p.x[VAL].data;
        assert_int_equal(i == 0 ? mhla_forward(p.plan, &p.c, p.x[OUT].data, q, k, v, NULL, ws)
                                : mhla_backward(p.plan, &p.c, &g, p.x[DOUT].data, q, k, v, NULL, ws),
                         MHLA_OK);
        for (int j = 0; j < 64; j++) assert_int_equal(ws[bytes[i] + (size_t)j], 0xff);
        free(ws);
    }
    for (int x = OUT; x < TENSORS; x++)
        if (expected.data[x]) assert_memory_equal(expected.data[x], p.x[x].data, tensor_bytes(&p, x));
    forget(&expected);
    teardown(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_masked_is_untouched),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_masked_decode),
        cmocka_unit_test(test_blind_queries),
        cmocka_unit_test(test_threads_and_batch),
        cmocka_unit_test(test_wanted_gradients),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_workspace),
    };
    return cmocka_run_group_tests_name("softmax", tests, NULL, NULL);
}
