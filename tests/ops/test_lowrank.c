/* Focused LA, InLine, MALA and RALA: every kernel of every instruction set against the references over a seeded array of
 * awkward shapes, outputs and gradients; the references against differences; what the mathematics promises. */
#include "support.h"

enum { FIRST = MHLA_KIND_FOCUSED, LAST = MHLA_KIND_RALA };
static const char *const kind_names[] = {"focused", "inline", "mala", "rala"};

/* One randomly drawn description with its inputs. */
typedef struct shape_case {
    mhla_plan_desc d;
    int64_t B, T;
    mhla_plan *plan;
    mhla_call call;
    placed q, k, v, o, dO;
    float *focus, *cos, *sin;
    char text[120];
} shape_case;

static void fill(rng *r, const placed *p, int64_t B, int64_t T, int64_t H, int64_t D) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t j = 0; j < D; j++) placed_at(p, b, t, h)[j] = rng_signed(r);
}

static placed place_filled(rng *r, int64_t B, int64_t T, int64_t H, int64_t D) {
    const placed p = place(rng_below(r, 3), B, T, H, D);
    fill(r, &p, B, T, H, D);
    return p;
}

static shape_case make_case(rng *r, mhla_kind kind, int64_t B, int64_t T, int H, int K, int V) {
    shape_case c = {.B = B, .T = T};
    mhla_plan_desc *d = &c.d;
    *d = (mhla_plan_desc){.size = sizeof *d, .kind = kind, .heads = H, .key_dim = K, .value_dim = V};
    if (kind == MHLA_KIND_FOCUSED) {
        static const int powers[] = {0, 0, 1, 2, 5};
        d->focus_power = RNG_PICK(r, powers);
        d->feature_eps = rng_below(r, 2) ? 0.0f : 0.125f;
    } else {
        d->scale = rng_below(r, 2) ? 0.0f : 0.75f;
    }
    d->den_eps = rng_below(r, 2) ? 0.0f : 0.25f;
    if (T <= 2 || K == 1) d->den_eps = 0.25f * (float)K; /* with a small one dq is 0 there but for rounding */
    if ((kind == MHLA_KIND_MALA || kind == MHLA_KIND_RALA) && K >= 2 && rng_below(r, 4)) {
        d->rope = rng_below(r, 4) ? MHLA_ROPE_INTERLEAVED : MHLA_ROPE_HALF;
        d->rope_dim = rng_below(r, 2) ? K / 2 * 2 : 2 * (1 + rng_below(r, K / 2));
    }
    ASSERT_OK(mhla_plan_create(&c.plan, d));
    c.q = place_filled(r, B, T, H, K);
    c.k = place_filled(r, B, T, H, K);
    c.v = place_filled(r, B, T, H, V);
    c.o = place(rng_below(r, 3), B, T, H, V);
    c.dO = c.o;
    c.dO.memory = new_poisoned(c.o.count);
    c.dO.data = c.dO.memory + (c.o.data - c.o.memory);
    fill(r, &c.dO, B, T, H, V);
    c.call =
        (mhla_call){.size = sizeof c.call, .batch = B, .tokens = T, .q = c.q.s, .k = c.k.s, .v = c.v.s, .o = c.o.s};
    if (kind == MHLA_KIND_FOCUSED) c.call.focus = c.focus = new_random(r, (int64_t)H * K);
    if (d->rope != MHLA_ROPE_NONE) {
        const int half = d->rope_dim / 2;
        c.call.rope_cos = c.cos = new_poisoned(T * half);
        c.call.rope_sin = c.sin = new_poisoned(T * half);
        c.call.rope_rows = T;
        for (int64_t i = 0; i < T * half; i++) {
            const float angle = 3.0f * rng_signed(r);
            c.cos[i] = cosf(angle);
            c.sin[i] = sinf(angle);
        }
    }
    snprintf(c.text, sizeof c.text, "%s B %lld T %lld H %d K %d V %d rope %d power %d", kind_names[kind - FIRST],
             (long long)B, (long long)T, H, K, V, (int)d->rope, d->focus_power);
    return c;
}

static shape_case draw(uint64_t seed, mhla_kind kind) {
    static const int dims[] = {1, 4, 32, 60, 64, 72}, lengths[] = {1, 2, 63, 64, 65, 130, 520};
    rng r = {seed * 8 + (uint64_t)kind};
    const int64_t B = 1 + rng_below(&r, 3), T = RNG_PICK(&r, lengths);
    const int H = 1 + rng_below(&r, 3), K = RNG_PICK(&r, dims), V = RNG_PICK(&r, dims);
    return make_case(&r, kind, T > 100 ? 1 : B, T, T > 300 ? 1 : H, K, V);
}

static void drop(shape_case *c) {
    mhla_plan_free(c->plan);
    placed *all[] = {&c->q, &c->k, &c->v, &c->o, &c->dO};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    free(c->focus);
    free(c->cos);
    free(c->sin);
}

/* ---- Running ---- */

enum { O, DQ, DK, DV, DFOCUS, RESULTS };
static const char *const result_names[RESULTS] = {"o", "dq", "dk", "dv", "dfocus"};

/* Output and gradients where the strides of q, k, v and o say, everything else poisoned. */
typedef struct results {
    placed x[RESULTS];
} results;

static results new_results(const shape_case *c, float value) {
    results g = {.x = {c->o, c->q, c->k, c->v, {.count = c->focus ? (int64_t)c->d.heads * c->d.key_dim : 0}}};
    for (int i = 0; i < RESULTS; i++) {
        const int64_t offset = i == DFOCUS ? 0 : g.x[i].data - g.x[i].memory;
        g.x[i].memory = g.x[i].count ? new_poisoned(g.x[i].count) : NULL;
        g.x[i].data = g.x[i].memory ? g.x[i].memory + offset : NULL;
        for (int64_t e = 0; e < g.x[i].count; e++) g.x[i].memory[e] = value;
    }
    return g;
}

static void free_results(results *g) {
    for (int i = 0; i < RESULTS; i++) free(g->x[i].memory);
}

static mhla_grads as_grads(const shape_case *c, const results *g, int accumulate) {
    return (mhla_grads){.size = sizeof(mhla_grads),
                        .dq = g->x[DQ].data,
                        .dk = g->x[DK].data,
                        .dv = g->x[DV].data,
                        .dq_strides = c->q.s,
                        .dk_strides = c->k.s,
                        .dv_strides = c->v.s,
                        .dfocus = g->x[DFOCUS].data,
                        .accumulate = accumulate};
}

static results run(const shape_case *c, const mhla_context *context, int reference, float value) {
    results g = new_results(c, value);
    mhla_call call = c->call;
    call.context = context;
    call.accumulate = !isnan(value);
    const mhla_grads grads = as_grads(c, &g, call.accumulate);
    const void *q = c->q.data, *k = c->k.data, *v = c->v.data, *dO = c->dO.data;
    if (reference) {
        ASSERT_OK(mhla_forward_reference(c->plan, &call, g.x[O].data, q, k, v, NULL));
        ASSERT_OK(mhla_backward_reference(c->plan, &call, &grads, dO, q, k, v, NULL));
    } else {
        ASSERT_OK(mhla_forward(c->plan, &call, g.x[O].data, q, k, v, NULL, NULL));
        ASSERT_OK(mhla_backward(c->plan, &call, &grads, dO, q, k, v, NULL, NULL));
    }
    return g;
}

static void compare(const results *got, const results *want, double tolerance, const char *what, const char *text) {
    for (int i = 0; i < RESULTS; i++) /* whole buffers: nothing else is written */
        if (got->x[i].count)
            ASSERT_CLOSE(got->x[i].memory, want->x[i].memory, got->x[i].count, tolerance, "%s %s %s", result_names[i],
                         what, text);
}

/* Every instruction set, plain and accumulated. */
static void compare_case(const shape_case *c, const mhla_context *context, double tolerance) {
    results want = run(c, context, 1, NAN), more = new_results(c, 1.0f);
    for (int i = 0; i < RESULTS; i++)
        for (int64_t e = 0; e < want.x[i].count; e++)
            if (!isnan(want.x[i].memory[e])) more.x[i].memory[e] += want.x[i].memory[e];
    const char *isa[8];
    const int isas = isa_names(isa, 8);
    for (int i = 0; i < isas; i++) {
        ASSERT_OK(mhla_set_isa(isa[i]));
        results got = run(c, context, 0, NAN), added = run(c, context, 0, 1.0f);
        if (c->T > 1) compare(&got, &want, tolerance, isa[i], c->text); /* one token: dq = dk = 0 but for rounding */
        compare(&added, &more, tolerance, "accumulated", c->text);
        free_results(&got);
        free_results(&added);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    free_results(&want);
    free_results(&more);
}

static void test_against_reference(void **state) {
    (void)state;
    mhla_context *context = new_context(3);
    for (int kind = FIRST; kind <= LAST; kind++)
        for (uint64_t seed = 1; seed <= 10; seed++) {
            shape_case c = draw(seed, (mhla_kind)kind);
            compare_case(&c, context, 5e-5);
            drop(&c);
        }
    mhla_context_free(context);
}

/* The shapes that are always there. */
static void test_named_shapes(void **state) {
    (void)state;
    static const int shapes[][5] = {
        {1, 1, 1, 1, 1}, {2, 1, 3, 64, 4}, {1, 1000, 1, 60, 24}, {1, 256, 3, 64, 64}, {1, 65, 6, 32, 32}};
    mhla_context *context = new_context(2);
    for (int kind = FIRST; kind <= LAST; kind++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            rng r = {i + 1};
            const int *s = shapes[i];
            shape_case c = make_case(&r, (mhla_kind)kind, s[0], s[1], s[2], s[3], s[4]);
            compare_case(&c, context, 5e-5);
            drop(&c);
        }
    mhla_context_free(context);
}

static void test_threads_change_no_bit(void **state) {
    (void)state;
    for (int kind = FIRST; kind <= LAST; kind++)
        for (uint64_t seed = 200; seed < 208; seed++) {
            shape_case c = draw(seed, (mhla_kind)kind);
            mhla_context *one = new_context(1);
            results want = run(&c, one, 0, NAN);
            mhla_context_free(one);
            for (int threads = 2; threads <= 64; threads = threads < 5 ? threads + 1 : 64 + (threads == 64)) {
                mhla_context *many = new_context(threads);
                results got = run(&c, many, 0, NAN);
                for (int i = 0; i < RESULTS; i++)
                    if (got.x[i].count)
                        assert_memory_equal(got.x[i].memory, want.x[i].memory, (size_t)got.x[i].count * sizeof(float));
                free_results(&got);
                mhla_context_free(many);
            }
            free_results(&want);
            drop(&c);
        }
}

/* ---- References against differences ---- */

static double loss(const shape_case *c) {
    ASSERT_OK(mhla_forward_reference(c->plan, &c->call, c->o.data, c->q.data, c->k.data, c->v.data, NULL));
    double sum = 0.0;
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t t = 0; t < c->T; t++)
            for (int h = 0; h < c->d.heads; h++)
                for (int j = 0; j < c->d.value_dim; j++)
                    sum += (double)placed_at(&c->o, b, t, h)[j] * (double)placed_at(&c->dO, b, t, h)[j];
    return sum;
}

static double difference(const shape_case *c, float *at) {
    const float x = *at, step = 0.004f;
    *at = x + step;
    const double up = loss(c), x1 = (double)*at;
    *at = x - step;
    const double down = loss(c), x0 = (double)*at;
    *at = x;
    return (up - down) / (x1 - x0);
}

static void test_reference_gradients(void **state) {
    (void)state;
    for (int kind = FIRST; kind <= LAST; kind++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            rng r = {seed * 100 + (uint64_t)kind};
            shape_case c = make_case(&r, (mhla_kind)kind, 2, 3 + rng_below(&r, 20), 2, 4 + rng_below(&r, 5), 5);
            results g = run(&c, NULL, 1, NAN);
            float *inputs[RESULTS] = {NULL, c.q.memory, c.k.memory, c.v.memory, c.focus};
            for (int i = DQ; i < RESULTS; i++) {
                double size = 1e-3;
                for (int64_t e = 0; e < g.x[i].count; e++)
                    if (!isnan(g.x[i].memory[e])) size = fmax(size, fabs((double)g.x[i].memory[e]));
                for (int tries = 0; tries < 12 && g.x[i].count; tries++) {
                    const int64_t e = rng_below(&r, (int)g.x[i].count);
                    if (isnan(g.x[i].memory[e])) continue;               /* between the rows */
                    if (i < DV && fabsf(inputs[i][e]) < 0.02f) continue; /* the kink of relu */
                    const double want = difference(&c, &inputs[i][e]), got = (double)g.x[i].memory[e];
                    if (fabs(want - got) > 2e-3 * size)
                        fail_msg("%s: %g, differences give %g: %s", result_names[i], got, want, c.text);
                }
            }
            free_results(&g);
            drop(&c);
        }
}

/* ---- Properties ---- */

/* v = 1 gives 1: rows of InLine's matrix, and of MALA's without rotary, sum to 1 (MALA but for its epsilon). */
static void test_rows_sum_to_one(void **state) {
    (void)state;
    for (int kind = MHLA_KIND_INLINE; kind <= MHLA_KIND_RALA; kind++) {
        rng r = {7};
        shape_case c = make_case(&r, (mhla_kind)kind, 1, 70, 2, 12, 8);
        mhla_plan_free(c.plan);
        c.d.rope = MHLA_ROPE_NONE;
        c.d.rope_dim = 0;
        c.d.den_eps = 0.0f;
        ASSERT_OK(mhla_plan_create(&c.plan, &c.d));
        for (int64_t i = 0; i < c.v.count; i++) c.v.memory[i] = 1.0f;
        ASSERT_OK(mhla_forward(c.plan, &c.call, c.o.data, c.q.data, c.k.data, c.v.data, NULL, NULL));
        for (int t = 0; t < 70; t++)
            for (int j = 0; j < 8; j++) assert_true(fabsf(placed_at(&c.o, 0, t, 1)[j] - 1.0f) < 2e-5f);
        drop(&c);
    }
}

/* Rows of negative numbers: cubes of 1e-6, whose squares float32 does not have. */
static void test_focus_of_negative_rows(void **state) {
    (void)state;
    rng r = {5};
    shape_case c = make_case(&r, MHLA_KIND_FOCUSED, 1, 40, 3, 16, 16);
    mhla_plan_free(c.plan);
    c.d.focus_power = 0;
    c.d.feature_eps = 0.0f;
    ASSERT_OK(mhla_plan_create(&c.plan, &c.d));
    for (int t = 0; t < 40; t += 3)
        for (int h = 0; h < 3; h++)
            for (int j = 0; j < 16; j++) {
                float *q = placed_at(&c.q, 0, t, h) + j, *k = placed_at(&c.k, 0, t / 2, h) + j;
                *q = -fabsf(*q);
                *k = -fabsf(*k);
            }
    compare_case(&c, NULL, 5e-5);
    ASSERT_OK(mhla_forward(c.plan, &c.call, c.o.data, c.q.data, c.k.data, c.v.data, NULL, NULL));
    for (int t = 0; t < 40; t++)
        for (int j = 0; j < 16; j++) assert_true(isfinite(placed_at(&c.o, 0, t, 2)[j]));
    drop(&c);
}

/* Scores of RALA that differ by hundreds between tokens and blocks: a softmax that is shifted as it should be. */
static void test_large_scores(void **state) {
    (void)state;
    rng r = {6};
    shape_case c = make_case(&r, MHLA_KIND_RALA, 1, 1100, 1, 8, 8);
    for (int t = 0; t < 1100; t++)
        for (int j = 0; j < 8; j++) {
            placed_at(&c.q, 0, t, 0)[j] *= 20.0f;
            placed_at(&c.k, 0, t, 0)[j] *= t < 600 ? 1.0f : 15.0f;
        }
    compare_case(&c, NULL, 2e-4);
    drop(&c);
}

/* What is not wanted is not computed into anything; what is wanted stays the same. */
static void test_wanted_gradients(void **state) {
    (void)state;
    for (int kind = FIRST; kind <= LAST; kind++) {
        rng r = {8};
        shape_case c = make_case(&r, (mhla_kind)kind, 2, 66, 2, 20, 12);
        results all = run(&c, NULL, 0, NAN);
        for (int wanted = 0; wanted < 16; wanted++) {
            results some = new_results(&c, NAN);
            mhla_grads g = as_grads(&c, &some, 0);
            if (!(wanted & 1)) g.dq = NULL;
            if (!(wanted & 2)) g.dk = NULL;
            if (!(wanted & 4)) g.dv = NULL;
            if (!(wanted & 8)) g.dfocus = NULL;
            ASSERT_OK(mhla_backward(c.plan, &c.call, &g, c.dO.data, c.q.data, c.k.data, c.v.data, NULL, NULL));
            for (int i = DQ; i < RESULTS; i++)
                for (int64_t e = 0; e < some.x[i].count; e++) {
                    const float x = some.x[i].memory[e], want = wanted >> (i - DQ) & 1 ? all.x[i].memory[e] : NAN;
                    assert_true(isnan(want) ? isnan(x) : x == want);
                }
            free_results(&some);
        }
        free_results(&all);
        drop(&c);
    }
}

/* bfloat16 storage: inputs read exactly, float32 inside, the result rounded once. */
static void test_bf16(void **state) {
    (void)state;
    enum { B = 2, T = 70, H = 2, K = 20, V = 36 };
    for (int kind = FIRST; kind <= LAST; kind++) {
        rng r = {10};
        shape_case c = make_case(&r, (mhla_kind)kind, B, T, H, K, V);
        mhla_plan *plan;
        mhla_plan_desc d = c.d;
        d.dtype = MHLA_BF16;
        ASSERT_OK(mhla_plan_create(&plan, &d));
        mhla_call call = c.call;
        call.q = call.k = call.v = call.o = (mhla_strides){0};
        float *x = new_random(&r, B * T * H * (2 * K + 2 * V));
        uint16_t *q = new_bf16(x, B * T * H * (2 * K + 2 * V)), *k = q + B * T * H * K, *v = k + B * T * H * K;
        uint16_t *dO = v + B * T * H * V, *o = new_bytes(B * T * H * V * 4), *want = o + B * T * H * V;
        float *g = new_poisoned(2 * B * T * H * (2 * K + V)), *gw = g + B * T * H * (2 * K + V);
        float *a = new_poisoned(B * T * H * V), *b = new_poisoned(B * T * H * V);
        mhla_grads grads = {.size = sizeof grads, .dq = g, .dk = g + B * T * H * K, .dv = g + 2 * B * T * H * K};
        mhla_grads wanted = {.size = sizeof grads, .dq = gw, .dk = gw + B * T * H * K, .dv = gw + 2 * B * T * H * K};
        ASSERT_OK(mhla_forward_reference(plan, &call, want, q, k, v, NULL));
        ASSERT_OK(mhla_backward_reference(plan, &call, &wanted, dO, q, k, v, NULL));
        const char *isa[8];
        const int isas = isa_names(isa, 8);
        for (int i = 0; i < isas; i++) {
            ASSERT_OK(mhla_set_isa(isa[i]));
            memset(o, 0xff, B * T * H * V * 2);
            ASSERT_OK(mhla_forward(plan, &call, o, q, k, v, NULL, NULL));
            for (int e = 0; e < B * T * H * V; e++) a[e] = from_bf16(o[e]), b[e] = from_bf16(want[e]);
            ASSERT_CLOSE(a, b, B * T * H * V, 0.008, "bf16 %s %s", isa[i], c.text); /* one rounding */
            ASSERT_OK(mhla_backward(plan, &call, &grads, dO, q, k, v, NULL, NULL));
            ASSERT_CLOSE(g, gw, B * T * H * (2 * K + V), 5e-5, "bf16 gradients %s %s", isa[i], c.text);
        }
        ASSERT_OK(mhla_set_isa(NULL));
        mhla_plan_free(plan);
        free(x), free(q), free(o), free(g), free(a), free(b);
        drop(&c);
    }
}

/* ---- Bad input ---- */

static void test_bad_plans(void **state) {
    (void)state;
    static const int64_t offsets[] = {0, 1};
    mhla_plan *plan;
#define BAD(which, change, text)                                                                                       \
    do {                                                                                                               \
        mhla_plan_desc d = {.size = sizeof d, .kind = (which), .heads = 2, .key_dim = 8, .value_dim = 8};              \
        change;                                                                                                        \
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, text);                                                  \
        assert_null(plan);                                                                                             \
    } while (0)
    for (int kind = FIRST; kind <= LAST; kind++) {
        BAD((mhla_kind)kind, d.kv_heads = 1, "kv_heads is 1");
        BAD((mhla_kind)kind, d.axes = 1, "blocks, chunks");
        BAD((mhla_kind)kind, d.block_offsets = offsets, "blocks, chunks");
        BAD((mhla_kind)kind, d.chunk = 64, "blocks, chunks");
        BAD((mhla_kind)kind, d.causal = 1, "softmax");
        BAD((mhla_kind)kind, d.mix_per_head = 1, "mixing");
        BAD((mhla_kind)kind, d.denominator = MHLA_DEN_NONE, "denominator is 2");
        BAD((mhla_kind)kind, d.scale = NAN, "NaN");
        if (kind != MHLA_KIND_INLINE) BAD((mhla_kind)kind, d.feature = MHLA_FEATURE_IDENTITY, "feature is 2");
        if (kind != MHLA_KIND_FOCUSED) BAD((mhla_kind)kind, d.focus_power = 3, "focus_power is 3");
    }
    BAD(MHLA_KIND_INLINE, d.feature = MHLA_FEATURE_ELU, "feature is 1");
    BAD(MHLA_KIND_INLINE, d.rope = MHLA_ROPE_HALF, "rope is 1");
    BAD(MHLA_KIND_FOCUSED, d.rope = MHLA_ROPE_INTERLEAVED, "rope is 2");
    BAD(MHLA_KIND_FOCUSED, d.scale = 0.5f, "scale is 0.5");
    BAD(MHLA_KIND_FOCUSED, d.focus_power = 17, "focus_power is 17");
    BAD(MHLA_KIND_FOCUSED, d.focus_power = -1, "focus_power is -1");
    BAD(MHLA_KIND_FOCUSED, d.feature_eps = -1.0f, "feature_eps is -1");
    BAD(MHLA_KIND_MALA, d.rope_dim = 4, "rope_dim is 4");
#undef BAD
}

static void test_bad_calls(void **state) {
    (void)state;
    enum { T = 6, N = T * 2 * 8 };
    float x[3][N] = {{0}}, o[N], mix[1] = {1};
    for (int i = 0; i < N; i++) o[i] = 7.0f;
    for (int kind = FIRST; kind <= LAST; kind++) {
        mhla_plan_desc d = {.size = sizeof d, .kind = (mhla_kind)kind, .heads = 2, .key_dim = 8, .value_dim = 8};
        mhla_plan *plan;
        ASSERT_OK(mhla_plan_create(&plan, &d));
        mhla_call c = {.size = sizeof c, .batch = 1, .tokens = T};
        if (kind == MHLA_KIND_FOCUSED) {
            ASSERT_FAILS(mhla_forward(plan, &c, o, x[0], x[1], x[2], NULL, NULL), MHLA_EINVAL, "focus is NULL");
            c.focus = x[0];
        } else {
            mhla_call given = c;
            given.focus = x[0];
            ASSERT_FAILS(mhla_forward(plan, &given, o, x[0], x[1], x[2], NULL, NULL), MHLA_EINVAL, "focus is given");
            const mhla_grads g = {.size = sizeof g, .dfocus = x[2]};
            ASSERT_FAILS(mhla_backward(plan, &c, &g, o, x[0], x[1], x[2], NULL, NULL), MHLA_EINVAL, "dfocus is given");
        }
        ASSERT_FAILS(mhla_forward(plan, &c, o, x[0], x[1], x[2], mix, NULL), MHLA_EINVAL, "mix is given");
        mhla_call pair = c;
        pair.q2 = x[0];
        pair.k2 = x[1];
        ASSERT_FAILS(mhla_forward(plan, &pair, o, x[0], x[1], x[2], NULL, NULL), MHLA_EINVAL, "second pair");
        mhla_call past = c;
        past.past = 1;
        ASSERT_FAILS(mhla_forward(plan, &past, o, x[0], x[1], x[2], NULL, NULL), MHLA_EINVAL, "past");
        mhla_plan_free(plan);
    }
    for (int i = 0; i < N; i++) assert_true(o[i] == 7.0f);
}

/* The workspace that the library tells is enough, nothing beyond it is written, and without memory nothing happens. */
static void test_memory(void **state) {
    (void)state;
    for (int kind = FIRST; kind <= LAST; kind++) {
        rng r = {3};
        shape_case c = make_case(&r, (mhla_kind)kind, 1, 600, 3, 33, 50);
        results want = run(&c, NULL, 0, NAN), got = new_results(&c, NAN);
        const mhla_grads g = as_grads(&c, &got, 0);
        const void *q = c.q.data, *k = c.k.data, *v = c.v.data;
        const size_t bytes[] = {mhla_forward_workspace(c.plan, &c.call), mhla_backward_workspace(c.plan, &c.call)};
        for (int i = 0; i < 2; i++) {
            unsigned char *ws = aligned_alloc(64, (bytes[i] + 127) / 64 * 64);
            assert_non_null(ws);
            memset(ws, 0xff, bytes[i] + 64);
            mhla_set_allocator(scarce_alloc, scarce_free);
            scarce.allowed = 0;
            const mhla_status with = i ? mhla_backward(c.plan, &c.call, &g, c.dO.data, q, k, v, NULL, ws)
                                       : mhla_forward(c.plan, &c.call, got.x[O].data, q, k, v, NULL, ws);
            const mhla_status without = i ? mhla_backward(c.plan, &c.call, &g, c.dO.data, q, k, v, NULL, NULL)
                                          : mhla_forward(c.plan, &c.call, got.x[O].data, q, k, v, NULL, NULL);
            const mhla_status naive = i ? mhla_backward_reference(c.plan, &c.call, &g, c.dO.data, q, k, v, NULL)
                                        : mhla_forward_reference(c.plan, &c.call, got.x[O].data, q, k, v, NULL);
            mhla_set_allocator(NULL, NULL);
            assert_int_equal(with, MHLA_OK);
            assert_int_equal(without, MHLA_ENOMEM);
            assert_int_equal(naive, MHLA_ENOMEM);
            for (int j = 0; j < 64; j++) assert_int_equal(ws[bytes[i] + (size_t)j], 0xff);
            free(ws);
        }
        for (int i = 0; i < RESULTS; i++)
            if (got.x[i].count)
                assert_memory_equal(got.x[i].memory, want.x[i].memory, (size_t)got.x[i].count * sizeof(float));
        free_results(&want);
        free_results(&got);
        drop(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_named_shapes),
        cmocka_unit_test(test_threads_change_no_bit),
        cmocka_unit_test(test_reference_gradients),
        cmocka_unit_test(test_rows_sum_to_one),
        cmocka_unit_test(test_focus_of_negative_rows),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_wanted_gradients),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
