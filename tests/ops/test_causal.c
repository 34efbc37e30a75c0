/* Causal MHLA and causal linear attention: every kernel against the reference, outputs, final states and gradients,
 * at awkward sizes; the reference's gradients against finite differences; properties; bad input. */
#include "causal_case.h"

static void describe(const causal_options *x, char *text, size_t size) {
    snprintf(
        text, size,
        "T %d C %d K %d V %d H %d G %d B %d layout %d linear %d clamp %d M %d packed %d rope %d second %d normed %d "
        "per_head %d acc %d past %d feature %d bf16 %d",
        x->T, x->C, x->K, x->V, x->H, x->G, x->batch, x->layout, x->linear, x->clamp, x->M, x->packed, x->rope,
        x->second, x->normed, x->per_head, x->accumulate, x->past, x->feature, x->bf16);
}

/* A seeded choice over all axes; sizes are bounded so that the reference stays quick. */
static causal_options random_options(rng *r) {
    static const int Ts[] = {1, 2, 63, 64, 65, 130, 200}, Cs[] = {1, 7, 16, 64, 130, 0},
                     dims[] = {1, 7, 60, 64, 72, 128};
    causal_options x = {.T = RNG_PICK(r, Ts), .C = RNG_PICK(r, Cs), .K = RNG_PICK(r, dims), .V = RNG_PICK(r, dims)};
    if (x.T > 100 && x.K * x.V > 5000) x.T = 65;
    static const int heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
    const int h = rng_below(r, 4);
    x.H = heads[h][0];
    x.G = heads[h][1];
    x.batch = 1 + rng_below(r, 2);
    x.layout = rng_below(r, 3);
    x.linear = rng_below(r, 4) == 0;
    x.clamp = rng_below(r, 3) == 0;
    x.packed = rng_below(r, 3) == 0 ? 1 + rng_below(r, MOST_SEQUENCES) : 0;
    x.rope = x.K > 1 ? rng_below(r, 3) : 0;
    if (x.rope && x.K <= 4) x.rope = 0;
    if (x.rope && x.K == 7) x.rope = 1;
    x.normed = rng_below(r, 2);
    x.second = rng_below(r, 2);
    x.per_head = rng_below(r, 2);
    x.accumulate = rng_below(r, 3) == 0;
    static const int pasts[] = {0, 0, 3, 16, 61, 128};
    x.past = RNG_PICK(r, pasts);
    x.feature = rng_below(r, 3);
    if (x.clamp) x.M = 1 + rng_below(r, 5);
    return x;
}

/* Largest difference allowed, relative to the largest magnitude: float32 sums of a few hundred terms. */
static const double TOLERANCE = 2e-5;

static void compare(const causal_case *p, const causal_result *a, const causal_result *b, int backward,
                    const char *what) {
    if (!backward) {
        ASSERT_CLOSE(a->o, b->o, a->no, p->d.dtype == MHLA_BF16 ? 1e-2 : TOLERANCE, "%s", what);
        ASSERT_CLOSE(a->final, b->final, p->state1, TOLERANCE, "%s", what);
        if (p->d.denominator != MHLA_DEN_NONE) ASSERT_CLOSE(a->final_z, b->final_z, p->z1, TOLERANCE, "%s", what);
        return;
    }
    const double tolerance = 3e-5;
    ASSERT_CLOSE(a->dq, b->dq, a->nq, tolerance, "%s", what);
    ASSERT_CLOSE(a->dk, b->dk, a->nk, tolerance, "%s", what);
    ASSERT_CLOSE(a->dv, b->dv, a->nv, tolerance, "%s", what);
    ASSERT_CLOSE(a->dq2, b->dq2, a->nq, tolerance, "%s", what);
    ASSERT_CLOSE(a->dk2, b->dk2, a->nk, tolerance, "%s", what);
    /* with a denominator the two halves of dmix cancel: of one chunk, o hardly depends on its weight at all */
    ASSERT_CLOSE(a->dmix, b->dmix, p->mixes, p->d.denominator != MHLA_DEN_NONE ? 2e-4 : tolerance, "%s", what);
    ASSERT_CLOSE(a->dinitial, b->dinitial, p->state0, tolerance, "%s", what);
    ASSERT_CLOSE(a->dinitial_z, b->dinitial_z, p->z0, tolerance, "%s", what);
}

static void check_case(const causal_options *x, uint64_t seed) {
    char what[400], text[320];
    describe(x, text, sizeof text);
    rng r = {seed};
    causal_case *p = new_case(x, &r);
    causal_result want = new_result(p, 5);
    run_forward(p, &want, NULL, 1);
    run_backward(p, &want, NULL, 1);
    const char *isa[8];
    const int n = isa_names(isa, 8);
    for (int i = 0; i < n; i++) {
        snprintf(what, sizeof what, "seed %llu, %s: %s", (unsigned long long)seed, isa[i], text);
        ASSERT_OK(mhla_set_isa(isa[i]));
        causal_result got = new_result(p, 5);
        run_forward(p, &got, NULL, 0);
        compare(p, &got, &want, 0, what);
        run_backward(p, &got, NULL, 0);
        compare(p, &got, &want, 1, what);
        free_result(&got);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    free_result(&want);
    free_case(p);
}

static void test_covering_array(void **state) {
    (void)state;
    const int from = getenv("MHLA_SEED") ? atoi(getenv("MHLA_SEED")) : 1;
    const int count = getenv("MHLA_CASES") ? atoi(getenv("MHLA_CASES")) : 45;
    for (int seed = from; seed < from + count; seed++) {
        rng r = {(uint64_t)seed * 1000003u};
        const causal_options x = random_options(&r);
        check_case(&x, (uint64_t)seed);
    }
}

/* Long chunks (cut into blocks), many groups, windows that move: sizes that the array above does not reach. */
static void test_long(void **state) {
    (void)state;
    static const causal_options list[] = {
        {.T = 700, .C = 8, .K = 6, .V = 5, .H = 1, .G = 1, .batch = 1, .normed = 1},
        {.T = 700, .C = 8, .K = 6, .V = 5, .H = 2, .G = 1, .batch = 1, .clamp = 1, .M = 6, .per_head = 1, .past = 100},
        {.T = 600, .C = 5, .K = 3, .V = 4, .H = 1, .G = 1, .batch = 1, .clamp = 1, .M = 2, .normed = 1},
        {.T = 900, .C = 200, .K = 6, .V = 5, .H = 2, .G = 1, .batch = 1, .normed = 1, .past = 130},
        {.T = 900,
         .C = 150,
         .K = 6,
         .V = 5,
         .H = 2,
         .G = 2,
         .batch = 1,
         .clamp = 1,
         .M = 3,
         .per_head = 1,
         .past = 700},
        {.T = 900,
         .C = 16,
         .K = 6,
         .V = 5,
         .H = 2,
         .G = 1,
         .batch = 1,
         .linear = 1,
         .normed = 1,
         .past = 20,
         .layout = 1},
        {.T = 2500, .C = 0, .K = 4, .V = 4, .H = 1, .G = 1, .batch = 1, .linear = 1},
        {.T = 130, .C = 64, .K = 33, .V = 40, .H = 2, .G = 2, .batch = 2, .packed = 3, .normed = 1, .rope = 2},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) check_case(&list[i], 1000 + i);
}

/* bfloat16 in and out: inputs read exactly, the output rounded once. */
static void test_bfloat16(void **state) {
    (void)state;
    for (int seed = 1; seed <= 12; seed++) {
        rng r = {(uint64_t)seed * 31u};
        causal_options x = random_options(&r);
        x.bf16 = 1;
        x.second = 0;
        check_case(&x, (uint64_t)seed);
    }
}

/* The reference's gradients are those of the reference: central differences of sum(o * dO) + sum(final * dfinal). */
static double loss(const causal_case *p) {
    causal_result y = new_result(p, 3);
    run_forward(p, &y, NULL, 1);
    rng r = {77};
    float *df = new_random(&r, p->state1), *dfz = new_random(&r, p->z1);
    double sum = 0.0;
    for (int64_t b = 0; b < p->c.batch; b++)
        for (int64_t t = 0; t < p->T; t++)
            for (int64_t h = 0; h < p->d.heads; h++)
                for (int64_t j = 0; j < p->d.value_dim; j++) {
                    const int64_t at = placed_at(&p->o, b, t, h) + j - p->o.memory;
                    sum += (double)y.o[at] * (double)placed_at(&p->dO, b, t, h)[j];
                }
    for (int64_t i = 0; i < p->state1; i++) sum += (double)y.final[i] * (double)df[i];
    for (int64_t i = 0; p->d.denominator != MHLA_DEN_NONE && i < p->z1; i++)
        sum += (double)y.final_z[i] * (double)dfz[i];
    free(df);
    free(dfz);
    free_result(&y);
    return sum;
}

static void check_differences(const causal_case *p, float *x, const float *dx, int64_t n, const char *name) {
    const float h = 1.0f / 64; /* exact in float32; outputs are smooth on this scale */
    for (int64_t i = 0; i < n; i += 1 + n / 9) {
        const float keep = x[i];
        if (isnan(keep)) continue;
        x[i] = keep + h;
        const double up = loss(p);
        x[i] = keep - h;
        const double down = loss(p);
        x[i] = keep;
        const double slope = (up - down) / (2.0 * (double)h), error = fabs(slope - (double)dx[i]);
        if (error > 2e-3 * (1.0 + fabs(slope)))
            fail_msg("%s[%lld]: gradient %g, difference %g", name, (long long)i, (double)dx[i], slope);
    }
}

static void test_reference_gradients(void **state) {
    (void)state;
    static const causal_options list[] = {
        {.T = 9,
         .C = 3,
         .K = 4,
         .V = 3,
         .H = 2,
         .G = 1,
         .batch = 1,
         .feature = MHLA_FEATURE_ELU,
         .normed = 1,
         .per_head = 1,
         .past = 4},
        {.T = 9,
         .C = 2,
         .K = 6,
         .V = 3,
         .H = 1,
         .G = 1,
         .batch = 1,
         .feature = MHLA_FEATURE_ELU,
         .clamp = 1,
         .M = 3,
         .normed = 1,
         .second = 1,
         .past = 9,
         .rope = 1},
        {.T = 7,
         .C = 4,
         .K = 4,
         .V = 3,
         .H = 2,
         .G = 2,
         .batch = 1,
         .feature = MHLA_FEATURE_IDENTITY,
         .packed = 2,
         .rope = 2},
        {.T = 6,
         .C = 4,
         .K = 4,
         .V = 2,
         .H = 2,
         .G = 1,
         .batch = 2,
         .feature = MHLA_FEATURE_ELU,
         .linear = 1,
         .normed = 1,
         .past = 3},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        rng r = {4 + i};
        causal_case *p = new_case(&list[i], &r);
        causal_result y = new_result(p, 3);
        run_backward(p, &y, NULL, 1);
        check_differences(p, p->q.data, y.dq, y.nq, "dq");
        check_differences(p, p->k.data, y.dk, y.nk, "dk");
        check_differences(p, p->v.data, y.dv, y.nv, "dv");
        if (p->c.q2) check_differences(p, p->q2.data, y.dq2, y.nq, "dq2");
        if (p->c.k2) check_differences(p, p->k2.data, y.dk2, y.nk, "dk2");
        if (p->mix) check_differences(p, p->mix, y.dmix, p->mixes, "dmix");
        if (p->initial) check_differences(p, p->initial, y.dinitial, p->state0, "dinitial");
        if (p->c.initial_z) check_differences(p, p->initial_z, y.dinitial_z, p->z0, "dinitial_z");
        free_result(&y);
        free_case(p);
    }
}

static void assert_same(const causal_case *p, const causal_result *a, const causal_result *b) {
    assert_memory_equal(a->o, b->o, (size_t)a->no * 4);
    assert_memory_equal(a->final, b->final, (size_t)p->state1 * 4);
    assert_memory_equal(a->dq, b->dq, (size_t)a->nq * 4);
    assert_memory_equal(a->dk, b->dk, (size_t)a->nk * 4);
    assert_memory_equal(a->dv, b->dv, (size_t)a->nv * 4);
    assert_memory_equal(a->dmix, b->dmix, (size_t)p->mixes * 4);
    assert_memory_equal(a->dinitial, b->dinitial, (size_t)p->state0 * 4);
}

/* The number of threads changes no bit, whether units are whole or shared by a crew, whose groups are larger where summaries are
 * (here of 100 x 120), chunks leave a window or not, and sequences end at different groups. */
static void test_threads(void **state) {
    (void)state;
    static const causal_options list[] = {
        {.T = 600, .C = 16, .K = 20, .V = 24, .H = 3, .G = 3, .batch = 1, .normed = 1, .past = 8},
        {.T = 600, .C = 16, .K = 20, .V = 24, .H = 4, .G = 2, .batch = 1, .clamp = 1, .M = 5, .per_head = 1},
        {.T = 600, .C = 140, .K = 20, .V = 24, .H = 2, .G = 1, .batch = 1, .normed = 1},
        {.T = 600, .C = 64, .K = 20, .V = 24, .H = 1, .G = 1, .batch = 1, .linear = 1},
        {.T = 600, .C = 16, .K = 20, .V = 24, .H = 5, .G = 5, .batch = 1, .packed = 5},
        {.T = 600, .C = 16, .K = 100, .V = 120, .H = 3, .G = 3, .batch = 1, .normed = 1, .past = 8},
        {.T = 600, .C = 16, .K = 100, .V = 120, .H = 2, .G = 1, .batch = 1, .clamp = 1, .M = 5, .past = 24},
        {.T = 600, .C = 16, .K = 100, .V = 120, .H = 4, .G = 2, .batch = 1, .clamp = 1, .M = 64, .per_head = 1},
        {.T = 600, .C = 300, .K = 100, .V = 120, .H = 3, .G = 3, .batch = 1, .normed = 1, .past = 70, .packed = 4},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        rng r = {40 + i};
        causal_case *p = new_case(&list[i], &r);
        causal_result one = new_result(p, 3);
        mhla_context *c1 = new_context(1);
        run_forward(p, &one, c1, 0);
        run_backward(p, &one, c1, 0);
        mhla_context_free(c1);
        for (int threads = 2; threads <= 64;
             threads = threads < 7 ? threads + 1 + (threads > 2) : 64 + (threads == 64)) {
            mhla_context *c = new_context(threads);
            causal_result many = new_result(p, 3);
            run_forward(p, &many, c, 0);
            run_backward(p, &many, c, 0);
            assert_same(p, &one, &many);
            free_result(&many);
            mhla_context_free(c);
        }
        free_result(&one);
        free_case(p);
    }
}

/* A NaN in token t of one sequence changes nothing before t, nothing in another sequence; gradients of q before t and
 * of k and v after t stay as they are too. */
static void test_nan_stays(void **state) {
    (void)state;
    static const causal_options list[] = {
        {.T = 100, .C = 16, .K = 20, .V = 24, .H = 2, .G = 1, .batch = 2, .normed = 1},
        {.T = 100, .C = 64, .K = 20, .V = 24, .H = 2, .G = 2, .batch = 2, .clamp = 1, .M = 1},
        {.T = 400, .C = 150, .K = 20, .V = 24, .H = 1, .G = 1, .batch = 2},
        {.T = 100, .C = 8, .K = 20, .V = 24, .H = 1, .G = 1, .batch = 2, .clamp = 1, .M = 3, .normed = 1},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int which = 0; which < 3; which++) {
            rng r = {50 + i};
            causal_case *p = new_case(&list[i], &r);
            causal_result clean = new_result(p, 3), dirty = new_result(p, 3);
            run_forward(p, &clean, NULL, 0);
            const int64_t t = 37, H = p->d.heads, V = p->d.value_dim;
            float *x = which == 0   ? placed_at(&p->q, 0, t, 0)
                       : which == 1 ? placed_at(&p->k, 0, t, 0)
                                    : placed_at(&p->v, 0, t, 0);
            x[3] = NAN;
            run_forward(p, &dirty, NULL, 0);
            assert_memory_equal(clean.o, dirty.o, (size_t)(t * H * V) * 4);
            assert_memory_equal(clean.o + p->T * H * V, dirty.o + p->T * H * V, (size_t)(p->T * H * V) * 4);
            assert_true(isnan(dirty.o[t * H * V + 3]));
            if (which == 0)
                assert_memory_equal(clean.o + (t + 1) * H * V, dirty.o + (t + 1) * H * V,
                                    (size_t)((p->T - t - 1) * H * V) * 4);
            x[3] = 0.5f;
            /* a NaN in dO reaches the past's keys only */
            run_backward(p, &clean, NULL, 0);
            placed_at(&p->dO, 0, t, 0)[2] = NAN;
            run_backward(p, &dirty, NULL, 0);
            const int64_t K = p->d.key_dim, G = p->d.kv_heads;
            const float *after = dirty.dk + (t + 1) * G * K;
            for (int64_t e = 0; e < (p->T - t - 1) * G * K; e++) assert_false(isnan(after[e]));
            for (int64_t e = 0; e < (p->T - t - 1) * G * V; e++) assert_false(isnan(dirty.dv[(t + 1) * G * V + e]));
            for (int64_t e = 0; e < t * H * K; e++) assert_false(isnan(dirty.dq[e]));
            assert_true(isnan(dirty.dq[t * H * K]) || clean.dq[t * H * K] == 0.0f);
            free_result(&clean);
            free_result(&dirty);
            free_case(p);
        }
}

/* M = 1 under CLAMP with weight 1 is linear attention; so is a matrix of ones. */
static void test_linear_is_mhla(void **state) {
    (void)state;
    const causal_options x = {
        .T = 150, .C = 16, .K = 20, .V = 24, .H = 2, .G = 2, .batch = 1, .linear = 1, .normed = 1};
    rng r = {60};
    causal_case *p = new_case(&x, &r);
    causal_result linear = new_result(p, 3), mhla = new_result(p, 3);
    run_forward(p, &linear, NULL, 0);
    float ones[100];
    for (int i = 0; i < 100; i++) ones[i] = 1.0f;
    for (int M = 1; M <= 10; M += 9) {
        mhla_plan_desc d = p->d;
        d.kind = MHLA_KIND_CAUSAL;
        d.chunks = M;
        d.beyond = M == 1 ? MHLA_BEYOND_CLAMP : MHLA_BEYOND_ERROR;
        mhla_plan *plan;
        ASSERT_OK(mhla_plan_create(&plan, &d));
        ASSERT_OK(mhla_forward(plan, &p->c, mhla.o, p->q_in, p->k_in, p->v_in, ones, NULL));
        ASSERT_CLOSE(mhla.o, linear.o, linear.no - 8, 2e-6, "M %d", M);
        mhla_plan_free(plan);
    }
    free_result(&linear);
    free_result(&mhla);
    free_case(p);
}

static void test_bad_input(void **state) {
    (void)state;
    const mhla_plan_desc good = {.size = sizeof good,
                                 .kind = MHLA_KIND_CAUSAL,
                                 .heads = 2,
                                 .key_dim = 4,
                                 .value_dim = 4,
                                 .denominator = MHLA_DEN_NONE,
                                 .chunk = 8,
                                 .chunks = 3};
    mhla_plan *plan;
#define BAD_PLAN(field, value, text)                                                                                   \
    do {                                                                                                               \
        mhla_plan_desc d_ = good;                                                                                      \
        d_.field = value;                                                                                              \
        ASSERT_FAILS(mhla_plan_create(&plan, &d_), MHLA_EINVAL, text);                                                 \
        assert_null(plan);                                                                                             \
    } while (0)
    BAD_PLAN(chunks, 0, "chunks is 0");
    BAD_PLAN(chunk, -1, "chunk is -1");
    BAD_PLAN(max_tokens, 5, "max_tokens is 5");
    BAD_PLAN(beyond, MHLA_BEYOND_CHUNK, "chunk is 8");
    BAD_PLAN(axes, 1, "axes");
    BAD_PLAN(window, 3, "window");
    BAD_PLAN(kind, MHLA_KIND_LINEAR_CAUSAL, "chunks is 3");
    mhla_plan_desc fits = good;
    fits.chunk = 0;
    fits.beyond = MHLA_BEYOND_CHUNK;
    fits.max_tokens = 100;
    ASSERT_OK(mhla_plan_create(&plan, &fits));
    assert_int_equal(mhla_plan_chunk(plan), 34);
    mhla_plan_free(plan);
    ASSERT_OK(mhla_plan_create(&plan, &good));
    float x[25 * 8] = {0}, o[25 * 8], mix[9] = {0}, state0[4 * 2 * 16] = {0};
    for (int i = 0; i < 25 * 8; i++) o[i] = 7.0f;
    mhla_call c = {.size = sizeof c, .batch = 1, .tokens = 25};
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_ERANGE, "25 tokens");
    c.tokens = 20;
    c.past = 8;
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_EINVAL, "initial_state is NULL");
    c.initial_state = state0;
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_ERANGE, "28 tokens");
    c.past = 0;
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_EINVAL, "past is 0");
    c.initial_state = NULL;
    c.final_z = state0;
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_EINVAL, "final_z");
    c.final_z = NULL;
    c.rope_rows = 3;
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_EINVAL, "rope");
    c.rope_rows = 0;
    const int64_t cu[] = {0, 12, 9, 20};
    c.cu_seqlens = cu;
    c.sequences = 3;
    ASSERT_FAILS(mhla_forward(plan, &c, o, x, x, x, mix, NULL), MHLA_EINVAL, "cu_seqlens[2]");
    for (int i = 0; i < 25 * 8; i++) assert_true(o[i] == 7.0f);
    mhla_plan_free(plan);
}

/* Out of memory is a status, and nothing leaks. */
static void test_no_memory(void **state) {
    (void)state;
    float x[40 * 8] = {0}, o[40 * 8], mix[25] = {0};
    mhla_set_allocator(scarce_alloc, scarce_free);
    mhla_status status = MHLA_ENOMEM;
    for (int n = 0; status == MHLA_ENOMEM; n++) {
        scarce.allowed = n;
        status = mhla_causal_attention(o, x, x, x, mix, 1, 40, 2, 4, 4, 8, 5);
        assert_int_equal(scarce.living, 0);
        assert_true(n > 0 || status == MHLA_ENOMEM);
    }
    mhla_set_allocator(NULL, NULL);
    assert_int_equal(status, MHLA_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covering_array),      cmocka_unit_test(test_long),      cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_reference_gradients), cmocka_unit_test(test_threads),   cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(test_linear_is_mhla),      cmocka_unit_test(test_bad_input), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
