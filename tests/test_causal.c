/* Causal MHLA and causal linear attention: every kernel against the reference, outputs, final states and gradients,
 * at awkward sizes; the reference's gradients against finite differences; properties; bad input. */
#include "causal_case.h"

static void describe(const causal_options *x, char *text, size_t size) {
    snprintf(text, size,
             "T %d C %d K %d V %d H %d G %d B %d layout %d linear %d clamp %d M %d packed %d rope %d second %d normed %d "
             "per_head %d acc %d past %d feature %d bf16 %d",
             x->T, x->C, x->K, x->V, x->H, x->G, x->batch, x->layout, x->linear, x->clamp, x->M, x->packed, x->rope,
             x->second, x->normed, x->per_head, x->accumulate, x->past, x->feature, x->bf16);
}

/* A seeded choice over all axes; sizes are bounded so that the reference stays quick. */
static causal_options random_options(rng *r) {
    static const int Ts[] = {1, 2, 63, 64, 65, 130, 200}, Cs[] = {1, 7, 16, 64, 130, 0}, dims[] = {1, 7, 60, 64, 72, 128};
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

static void compare(const causal_case *p, const causal_result *a, const causal_result *b, int backward, const char *what) {
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
    const int count = getenv("MHLA_CASES") ? atoi(getenv("MHLA_CASES")) : 60;
    for (int seed = from; seed < from + count; seed++) {
        rng r = {(uint64_t)seed * 1000003u};
        const causal_options x = random_options(&r);
        check_case(&x, (uint64_t)seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covering_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
