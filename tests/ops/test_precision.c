/* Operators with products of bfloat16: outputs, states and gradients of every kind near the reference at awkward sizes, on this
 * CPU and emulated; the same bits for any number of threads; nothing masked is touched; float32 where nothing is asked for. */
#include "causal_case.h"

/* bfloat16 has 8 bits: a product errs by 2^-8 at most, sums of many by less; gradients take two of them and cancel. */
static const double NEAR = 0.02, NEAR_GRADIENT = 0.05;

enum { TABLES = 16 };

static int tables_of(const mhla_kernels *tables[TABLES]) {
    int n = mhla_kernels_emulated(tables, getenv("MHLA_TEST_QUICK") ? 2 : TABLES);
    const mhla_kernels *real[TABLES];
    const int count = mhla_kernels_available(real, TABLES);
    for (int i = 0; i < count; i++)
        if (real[i]->gemm_bf16) tables[n++] = real[i];
    return n;
}

/* ---- Bidirectional kinds and softmax ---- */

typedef struct problem {
    mhla_plan_desc d;
    mhla_plan *plan;
    mhla_call c;
    int64_t n_q, n_k, n_v, n_o, n_mix;
    float *q, *k, *v, *dO, *mix, *cos, *sin;
} problem;

typedef struct result {
    float *o, *dq, *dk, *dv, *dmix;
} result;

static problem *new_problem(rng *r, mhla_kind kind, int B, int T, int Tk, int H, int G, int K, int V) {
    problem *p = new_bytes(sizeof *p);
    memset(p, 0, sizeof *p);
    const int mixes = kind == MHLA_KIND_BIDIRECTIONAL, focused = kind == MHLA_KIND_FOCUSED;
    p->d = (mhla_plan_desc){
        .size = sizeof p->d, .kind = kind, .heads = H, .kv_heads = G, .key_dim = K, .value_dim = V, .scale = 0.125f};
    if (kind == MHLA_KIND_BIDIRECTIONAL || kind == MHLA_KIND_LINEAR) p->d.feature_eps = p->d.den_eps = 1e-3f;
    if (focused) p->d.scale = 0.0f;
    if (mixes) {
        p->d.axes = 1;
        p->d.grid[0] = T;
        p->d.blocks[0] = T >= 8 ? 3 : 1;
    }
    p->c = (mhla_call){.size = sizeof p->c, .batch = B, .tokens = T, .kv_tokens = Tk, .precision = MHLA_BF16};
    p->n_q = (int64_t)B * T * H * K;
    p->n_k = (int64_t)B * Tk * G * K;
    p->n_v = (int64_t)B * Tk * G * V;
    p->n_o = (int64_t)B * T * H * V;
    p->n_mix = mixes ? (int64_t)p->d.blocks[0] * p->d.blocks[0] : focused ? (int64_t)H * K : 0;
    p->q = new_random(r, p->n_q);
    p->k = new_random(r, p->n_k);
    p->v = new_random(r, p->n_v);
    p->dO = new_random(r, p->n_o);
    p->mix = new_random(r, p->n_mix);
    for (int64_t i = 0; mixes && i < p->n_mix; i++) p->mix[i] = 0.6f + 0.4f * p->mix[i];
    if (focused) p->c.focus = p->mix;
    return p;
}

static void free_problem(problem *p) {
    free(p->q), free(p->k), free(p->v), free(p->dO), free(p->mix);
    mhla_plan_free(p->plan);
    free(p);
}

static result run(const problem *p, const mhla_context *context, int reference) {
    const int focused = p->d.kind == MHLA_KIND_FOCUSED;
    const float *mix = p->n_mix && !focused ? p->mix : NULL;
    result y = {new_poisoned(p->n_o), new_poisoned(p->n_q), new_poisoned(p->n_k), new_poisoned(p->n_v),
                new_poisoned(p->n_mix)};
    mhla_call c = p->c;
    c.context = context;
    const mhla_grads g = {.size = sizeof g,
                          .dq = y.dq,
                          .dk = y.dk,
                          .dv = y.dv,
                          .dmix = mix ? y.dmix : NULL,
                          .dfocus = focused ? y.dmix : NULL};
    if (reference) {
        ASSERT_OK(mhla_forward_reference(p->plan, &c, y.o, p->q, p->k, p->v, mix));
        ASSERT_OK(mhla_backward_reference(p->plan, &c, &g, p->dO, p->q, p->k, p->v, mix));
    } else {
        ASSERT_OK(mhla_forward(p->plan, &c, y.o, p->q, p->k, p->v, mix, NULL));
        ASSERT_OK(mhla_backward(p->plan, &c, &g, p->dO, p->q, p->k, p->v, mix, NULL));
    }
    return y;
}

static void free_result_of(result *y) { free(y->o), free(y->dq), free(y->dk), free(y->dv), free(y->dmix); }

static int same(const problem *p, const result *a, const result *b) {
    return memcmp(a->o, b->o, (size_t)p->n_o * 4) == 0 && memcmp(a->dq, b->dq, (size_t)p->n_q * 4) == 0 &&
           memcmp(a->dk, b->dk, (size_t)p->n_k * 4) == 0 && memcmp(a->dv, b->dv, (size_t)p->n_v * 4) == 0 &&
           memcmp(a->dmix, b->dmix, (size_t)p->n_mix * 4) == 0;
}

static void check(problem *p, const char *what) {
    ASSERT_OK(mhla_plan_create(&p->plan, &p->d));
    const mhla_kernels *tables[TABLES];
    const int n = tables_of(tables);
    mhla_context *one = new_context(1), *three = new_context(3), *many = new_context(19);
    result want = run(p, NULL, 1);
    for (int i = 0; i < n; i++) {
        ASSERT_OK(mhla_set_isa(tables[i]->name));
        result y = run(p, three, 0), again = run(p, one, 0), more = run(p, many, 0);
        const char *isa = tables[i]->name;
        /* these two subtract: what is left is smaller than what was rounded */
        const int subtracts = p->d.kind == MHLA_KIND_INLINE || p->d.kind == MHLA_KIND_MALA;
        ASSERT_CLOSE(y.o, want.o, p->n_o, subtracts ? NEAR_GRADIENT : NEAR, "%s on %s", what, isa);
        ASSERT_CLOSE(y.dq, want.dq, p->n_q, NEAR_GRADIENT, "%s on %s", what, isa);
        ASSERT_CLOSE(y.dk, want.dk, p->n_k, NEAR_GRADIENT, "%s on %s", what, isa);
        ASSERT_CLOSE(y.dv, want.dv, p->n_v, NEAR_GRADIENT, "%s on %s", what, isa);
        ASSERT_CLOSE(y.dmix, want.dmix, p->n_mix, NEAR_GRADIENT, "%s on %s", what, isa);
        if (!same(p, &y, &again) || !same(p, &y, &more)) fail_msg("%s on %s: threads show", what, isa);
        free_result_of(&y);
        free_result_of(&again);
        free_result_of(&more);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    free_result_of(&want);
    mhla_context_free(one);
    mhla_context_free(three);
    mhla_context_free(many);
    free_problem(p);
}

static void test_kinds(void **state) {
    (void)state;
    static const mhla_kind kinds[] = {MHLA_KIND_BIDIRECTIONAL, MHLA_KIND_LINEAR, MHLA_KIND_SOFTMAX, MHLA_KIND_FOCUSED,
                                      MHLA_KIND_INLINE,        MHLA_KIND_MALA,   MHLA_KIND_RALA};
    static const int sizes[][3] = {{1, 1, 1},    {17, 16, 16},  {30, 32, 40},  {63, 60, 72},
                                   {64, 64, 64}, {150, 20, 36}, {50, 130, 33}, {130, 300, 24}};
    rng r = {1};
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            char what[96];
            const int T = sizes[s][0], K = sizes[s][1], V = sizes[s][2];
            snprintf(what, sizeof what, "kind %d, T %d K %d V %d", (int)kinds[k], T, K, V);
            if (kinds[k] != MHLA_KIND_SOFTMAX && kinds[k] != MHLA_KIND_LINEAR && T == 1) continue;
            check(new_problem(&r, kinds[k], 2, T, T, 2, 2, K, V), what);
        }
}

static void test_masks(void **state) {
    (void)state;
    rng r = {2};
    for (int way = 0; way < 4; way++) {
        const int Tq = way == 1 ? 40 : 130, Tk = 130;
        problem *p = new_problem(&r, MHLA_KIND_SOFTMAX, 1, Tq, Tk, 4, way == 3 ? 2 : 4, 24, 40);
        p->d.causal = way > 0;
        p->d.window = way == 2 ? 20 : 0;
        char what[64];
        snprintf(what, sizeof what, "softmax, way %d", way);
        check(p, what);
    }
}

/* A NaN in the last key and value of a causal softmax reaches the last query alone. */
static void test_nothing_masked(void **state) {
    (void)state;
    enum { T = 70, K = 32 };
    rng r = {3};
    problem *p = new_problem(&r, MHLA_KIND_SOFTMAX, 1, T, T, 1, 1, K, K);
    p->d.causal = 1;
    ASSERT_OK(mhla_plan_create(&p->plan, &p->d));
    for (int j = 0; j < K; j++) p->k[(T - 1) * K + j] = p->v[(T - 1) * K + j] = NAN;
    result y = run(p, NULL, 0);
    for (int64_t i = 0; i < p->n_o; i++) assert_int_equal(isnan(y.o[i]) != 0, i / K == T - 1);
    free_result_of(&y);
    free_problem(p);
}

/* ---- Causal kinds ---- */

static void near(const causal_case *p, const causal_result *a, const causal_result *b, const char *what) {
    const int normed = p->d.denominator != MHLA_DEN_NONE;
    ASSERT_CLOSE(a->o, b->o, a->no, NEAR, "%s", what);
    ASSERT_CLOSE(a->final, b->final, p->state1, NEAR, "%s", what);
    if (normed) ASSERT_CLOSE(a->final_z, b->final_z, p->z1, 2e-5, "%s", what); /* sums of k~ are float32 */
    ASSERT_CLOSE(a->dq, b->dq, a->nq, NEAR_GRADIENT, "%s", what);
    ASSERT_CLOSE(a->dk, b->dk, a->nk, NEAR_GRADIENT, "%s", what);
    ASSERT_CLOSE(a->dv, b->dv, a->nv, NEAR_GRADIENT, "%s", what);
    ASSERT_CLOSE(a->dmix, b->dmix, p->mixes, NEAR_GRADIENT, "%s", what);
    ASSERT_CLOSE(a->dinitial, b->dinitial, p->state0, NEAR_GRADIENT, "%s", what);
}

static void test_causal(void **state) {
    (void)state;
    static const causal_options list[] = {
        {.T = 65, .C = 16, .K = 20, .V = 36, .H = 2, .G = 2, .batch = 1},
        {.T = 63, .C = 64, .K = 64, .V = 72, .H = 2, .G = 1, .batch = 2, .layout = 2, .rope = 1, .past = 16},
        {.T = 200, .C = 40, .K = 32, .V = 48, .H = 2, .G = 2, .batch = 1, .clamp = 1, .M = 3, .per_head = 1},
        {.T = 300, .C = 150, .K = 24, .V = 16, .H = 1, .G = 1, .batch = 1, .past = 61},
        {.T = 130, .C = 16, .K = 24, .V = 40, .H = 2, .G = 2, .batch = 1, .packed = 3, .accumulate = 1},
        {.T = 130, .C = 0, .K = 33, .V = 65, .H = 4, .G = 2, .batch = 1, .linear = 1, .layout = 1},
        {.T = 1, .C = 7, .K = 16, .V = 16, .H = 1, .G = 1, .batch = 1, .past = 3},
        /* positive features and a denominator */
        {.T = 96, .C = 32, .K = 24, .V = 40, .H = 2, .G = 2, .batch = 1, .normed = 1, .feature = 1},
    };
    const mhla_kernels *tables[TABLES];
    const int n = tables_of(tables);
    mhla_context *one = new_context(1), *three = new_context(3);
    for (unsigned s = 0; s < sizeof list / sizeof *list; s++) {
        rng r = {s + 10};
        causal_case *p = new_case(&list[s], &r);
        causal_result want = new_result(p, 5);
        run_forward(p, &want, NULL, 1);
        run_backward(p, &want, NULL, 1);
        p->c.precision = MHLA_BF16;
        for (int i = 0; i < n; i++) {
            char what[64];
            snprintf(what, sizeof what, "case %u on %s", s, tables[i]->name);
            ASSERT_OK(mhla_set_isa(tables[i]->name));
            causal_result y = new_result(p, 5), again = new_result(p, 5);
            run_forward(p, &y, three, 0);
            run_backward(p, &y, three, 0);
            near(p, &y, &want, what);
            run_forward(p, &again, one, 0);
            run_backward(p, &again, one, 0);
            assert_memory_equal(y.final, again.final, (size_t)p->state1 * 4);
            assert_memory_equal(y.dq, again.dq, (size_t)y.nq * 4);
            assert_memory_equal(y.dk, again.dk, (size_t)y.nk * 4);
            assert_memory_equal(y.dv, again.dv, (size_t)y.nv * 4);
            assert_memory_equal(y.dmix, again.dmix, (size_t)p->mixes * 4);
            free_result(&y);
            free_result(&again);
        }
        ASSERT_OK(mhla_set_isa(NULL));
        free_result(&want);
        free_case(p);
    }
    mhla_context_free(one);
    mhla_context_free(three);
}

/* Products of bfloat16 are used where they are asked for, and only there. */
static void test_asked(void **state) {
    (void)state;
    const mhla_kernels *tables[TABLES];
    const int n = tables_of(tables);
    static const mhla_kind kinds[] = {MHLA_KIND_BIDIRECTIONAL, MHLA_KIND_SOFTMAX, MHLA_KIND_MALA};
    for (int k = 0; k < 3; k++) {
        rng r = {4};
        problem *p = new_problem(&r, kinds[k], 1, 96, 96, 1, 1, 64, 64);
        ASSERT_OK(mhla_plan_create(&p->plan, &p->d));
        ASSERT_OK(mhla_set_isa(tables[n - 1]->name));
        result narrow = run(p, NULL, 0);
        p->c.precision = MHLA_F32;
        result exact = run(p, NULL, 0), want = run(p, NULL, 1);
        ASSERT_CLOSE(exact.o, want.o, p->n_o, 2e-5, "kind %d", (int)kinds[k]);
        assert_true(relative_error(narrow.o, want.o, p->n_o) > 1e-4);
        assert_true(relative_error(narrow.dk, want.dk, p->n_k) > 1e-4);
        p->c.precision = MHLA_Q8_0;
        ASSERT_FAILS(mhla_forward(p->plan, &p->c, exact.o, p->q, p->k, p->v, k ? NULL : p->mix, NULL), MHLA_EINVAL,
                     "precision is 2");
        ASSERT_OK(mhla_set_isa(NULL));
        free_result_of(&narrow);
        free_result_of(&exact);
        free_result_of(&want);
        free_problem(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),  cmocka_unit_test(test_masks), cmocka_unit_test(test_nothing_masked),
        cmocka_unit_test(test_causal), cmocka_unit_test(test_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
