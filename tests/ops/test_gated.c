/* Simple GLA, GLA and the gated delta rule against their reference: awkward sizes, states, packed sequences, strides, every instruction set, numbers of
 * threads; the reference's own gradients against finite differences; strong decays; what callers get wrong. */
#include "gated_case.h"

enum { O, FINAL, DQ, DK, DV, DDECAY, DBETA, DINITIAL, RESULTS };
static const char *const result_names[RESULTS] = {"o",  "final_state", "dq",    "dk",
                                                  "dv", "ddecay",      "dbeta", "dinitial_state"};

typedef struct results {
    float *x[RESULTS];
    int64_t n[RESULTS];
} results;

/* What there is before the call: NaN, or a number that is added to. */
static results new_results(const gated_case *c, float value) {
    const int64_t n[RESULTS] = {c->o.count,
                                c->state,
                                c->q.count,
                                c->k.count,
                                c->v.count,
                                c->decay.count,
                                c->d.kind == MHLA_KIND_GATED_DELTA ? c->beta.count : 0,
                                c->state};
    results g;
    for (int i = 0; i < RESULTS; i++) {
        g.n[i] = n[i];
        g.x[i] = new_poisoned(n[i]);
        for (int64_t e = 0; e < n[i]; e++) g.x[i][e] = value;
    }
    return g;
}

static void free_results(results *g) {
    for (int i = 0; i < RESULTS; i++) free(g->x[i]);
}

static void run_case(const gated_case *c, const results *g, const mhla_context *context, int reference,
                     int accumulate) {
    mhla_call call = c->call;
    call.context = context;
    call.accumulate = accumulate;
    call.final_state = g->x[FINAL];
    float *o = within(&c->o, g->x[O]);
    if (reference)
        ASSERT_OK(mhla_forward_reference(c->plan, &call, o, c->q.data, c->k.data, c->v.data, NULL));
    else
        ASSERT_OK(mhla_forward(c->plan, &call, o, c->q.data, c->k.data, c->v.data, NULL, NULL));
    mhla_grads grads = {.size = sizeof grads,
                        .dq = within(&c->q, g->x[DQ]),
                        .dk = within(&c->k, g->x[DK]),
                        .dv = within(&c->v, g->x[DV]),
                        .dq_strides = c->q.s,
                        .dk_strides = c->k.s,
                        .dv_strides = c->v.s,
                        .ddecay = within(&c->decay, g->x[DDECAY]),
                        .ddecay_strides = c->decay.s,
                        .dinitial_state = g->x[DINITIAL],
                        .dfinal_state = c->dfinal,
                        .accumulate = accumulate};
    if (call.beta) {
        grads.dbeta = within(&c->beta, g->x[DBETA]);
        grads.dbeta_strides = c->beta.s;
    }
    call.final_state = NULL;
    if (reference)
        ASSERT_OK(mhla_backward_reference(c->plan, &call, &grads, c->dO.data, c->q.data, c->k.data, c->v.data, NULL));
    else
        ASSERT_OK(mhla_backward(c->plan, &call, &grads, c->dO.data, c->q.data, c->k.data, c->v.data, NULL, NULL));
}

static double largest(const float *x, int64_t n) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++)
        if (fabs((double)x[i]) > most) most = fabs((double)x[i]);
    return most;
}

/* float32 sums over sequences of up to 1000 tokens; gradients of decays are differences of sums over the rest of a chunk. Where they
 * are 0 in truth (one token without a past), the reference's double has rounding of its own, 1e-16. */
static void compare(const gated_case *c, const results *got, const results *want, const char *isa) {
    for (int i = 0; i < RESULTS; i++) {
        /* One number divided by its own length is 1 or -1: these gradients are 1e-6 of equal numbers' difference. */
        if ((i == DQ || i == DK) && c->d.qk_l2norm && c->d.key_dim == 1) continue;
        if (i == DDECAY && largest(want->x[i], want->n[i]) < 1e-12 && largest(got->x[i], got->n[i]) < 1e-12) continue;
        ASSERT_CLOSE(got->x[i], want->x[i], got->n[i], 1e-5, "%s, %s, %s", result_names[i], isa, c->text);
    }
}

static void check_sizes(const sizes *z, uint64_t seed) {
    rng r = {seed};
    gated_case c;
    make_case(&c, &r, z);
    const char *isas[8];
    const int n = isa_names(isas, 8);
    for (int add = 0; add < 2; add++) {
        results want = new_results(&c, add ? 0.5f : NAN);
        run_case(&c, &want, NULL, 1, add);
        for (int i = 0; i < n; i++) {
            if (add && i < n - 1) continue;
            ASSERT_OK(mhla_set_isa(isas[i]));
            results got = new_results(&c, add ? 0.5f : NAN);
            run_case(&c, &got, NULL, 0, add);
            compare(&c, &got, &want, isas[i]);
            free_results(&got);
        }
        free_results(&want);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    drop_case(&c);
}

static void test_lengths(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 130, 1000};
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            const sizes z = {
                kinds[k],         lengths[i] > 500 ? 1 : 2,    lengths[i], 2, 0, 24, 20, .start = i % 2 == 0,
                .strength = 0.2f, .norm = k == 2 && i % 3 == 0};
            check_sizes(&z, 100 * k + i);
        }
}

static void test_dims(void **state) {
    (void)state;
    static const int keys[] = {1, 60, 64, 128}, values[] = {1, 64, 256};
    for (size_t k = 0; k < KINDS; k++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 3; j++) {
                const sizes z = {kinds[k],
                                 1,
                                 70,
                                 2,
                                 0,
                                 keys[i],
                                 values[j],
                                 .layout = (i + j) % 3,
                                 .start = 1,
                                 .strength = 0.3f,
                                 .norm = k == 2 && j % 2};
                check_sizes(&z, 1000 + (uint64_t)(i * 3 + j));
            }
}

static void test_random(void **state) {
    (void)state;
    static const int dims[] = {1, 7, 16, 33, 72}, lengths[] = {1, 5, 63, 64, 66, 150, 200},
                     chunks[] = {0, 1, 16, 48, 100, 100000};
    static const float strengths[] = {0.0f, 0.05f, 1.0f, 5.0f, 60.0f};
    const int cases = getenv("MHLA_TEST_QUICK") ? 30 : 120;
    for (int i = 0; i < cases; i++) {
        rng r = {(uint64_t)i * 77 + 5};
        const int ratio = 1 + rng_below(&r, 3), G = 1 + rng_below(&r, 2), shares = i % KINDS != 1;
        const int packed = rng_below(&r, 3) == 0;
        const sizes z = {kinds[i % KINDS],
                         packed ? 1 : 1 + rng_below(&r, 2),
                         RNG_PICK(&r, lengths),
                         G * (shares ? ratio : 1),
                         shares ? G : 0,
                         RNG_PICK(&r, dims),
                         RNG_PICK(&r, dims),
                         RNG_PICK(&r, chunks),
                         rng_below(&r, 3),
                         packed,
                         rng_below(&r, 2),
                         RNG_PICK(&r, strengths),
                         i % KINDS == 2 && rng_below(&r, 2)};
        check_sizes(&z, (uint64_t)i);
    }
}

/* ---- The reference's gradients against differences of its outputs ---- */

static double loss(const gated_case *c) {
    results g = new_results(c, 0.0f);
    mhla_call call = c->call;
    call.final_state = g.x[FINAL];
    ASSERT_OK(mhla_forward_reference(c->plan, &call, within(&c->o, g.x[O]), c->q.data, c->k.data, c->v.data, NULL));
    double sum = 0.0;
    for (int64_t i = 0; i < c->o.count; i++)
        if (!isnan(c->dO.memory[i])) sum += (double)g.x[O][i] * (double)c->dO.memory[i];
    for (int64_t i = 0; i < c->state; i++) sum += (double)g.x[FINAL][i] * (double)c->dfinal[i];
    free_results(&g);
    return sum;
}

static void test_differences(void **state) {
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k],
                         1,
                         9,
                         kinds[k] == MHLA_KIND_GLA ? 2 : 4,
                         kinds[k] == MHLA_KIND_GLA ? 0 : 2,
                         3,
                         2,
                         .packed = k == 0,
                         .start = 1,
                         .strength = 0.8f,
                         .norm = k == 2};
        rng r = {k + 9};
        gated_case c;
        make_case(&c, &r, &z);
        results g = new_results(&c, NAN);
        run_case(&c, &g, NULL, 1, 0);
        const struct {
            float *x, *dx;
            int64_t n;
        } inputs[] = {{c.q.memory, g.x[DQ], c.q.count},        {c.k.memory, g.x[DK], c.k.count},
                      {c.v.memory, g.x[DV], c.v.count},        {c.decay.memory, g.x[DDECAY], c.decay.count},
                      {c.beta.memory, g.x[DBETA], g.n[DBETA]}, {c.initial, g.x[DINITIAL], c.state}};
        for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
            for (int64_t e = 0; e < inputs[i].n; e++) {
                const float x = inputs[i].x[e], h = 1e-2f;
                if (isnan(x)) continue;
                float low = x - h, high = x + h;
                if (inputs[i].x == c.decay.memory && high > 0.0f) high = 0.0f, low = -2 * h;
                inputs[i].x[e] = high;
                const double up = loss(&c);
                inputs[i].x[e] = low;
                const double down = loss(&c), slope = (up - down) / ((double)high - (double)low);
                inputs[i].x[e] = x;
                if (inputs[i].x == c.decay.memory && x > -h) continue; /* not the middle */
                if (fabs(slope - (double)inputs[i].dx[e]) > 2e-3)
                    fail_msg("input %zu, element %lld: %g, by differences %g: %s", i, (long long)e,
                             (double)inputs[i].dx[e], slope, c.text);
            }
        free_results(&g);
        drop_case(&c);
    }
}

/* ---- Threads ---- */

static void test_threads(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 64};
    for (int n = 0; n < 4 * KINDS;
         n++) { /* strong decays or not; heads that share q and k, or walks that make the scores */
        const int k = n % KINDS, shared = n / KINDS % 2 && k != 1;
        const sizes z = {kinds[k],
                         2,
                         150,
                         shared ? 6 : 3,
                         shared ? 2 : 0,
                         40,
                         200,
                         .start = 1,
                         .strength = n / KINDS / 2 ? 3.0f : 0.1f,
                         .norm = k == 2};
        rng r = {4};
        gated_case c;
        make_case(&c, &r, &z);
        results first = {0};
        for (int i = 0; i < 4; i++) {
            mhla_context *context = new_context(counts[i]);
            results got = new_results(&c, NAN);
            run_case(&c, &got, context, 0, 0);
            mhla_context_free(context);
            if (i == 0) {
                first = got;
                continue;
            }
            for (int e = 0; e < RESULTS; e++)
                if (memcmp(first.x[e], got.x[e], (size_t)got.n[e] * sizeof(float)) != 0)
                    fail_msg("%s differs with %d threads: %s", result_names[e], counts[i], c.text);
            free_results(&got);
        }
        free_results(&first);
        drop_case(&c);
    }
}

/* ---- bfloat16: stored, and multiplied ---- */

static void test_bf16(void **state) {
    (void)state;
    const char *isas[16];
    int n = isa_names(isas, 8);
    isas[n++] = "plain-bf16";
    for (size_t k = 0; k < KINDS; k++)
        for (int i = 0; i < n; i++) {
            ASSERT_OK(mhla_set_isa(isas[i]));
            const sizes z = {kinds[k], 1, 130, 2, 0, 32, 48, .start = 1, .strength = 0.3f};
            rng r = {8};
            gated_case c;
            make_case(&c, &r, &z);
            results want = new_results(&c, NAN), got = new_results(&c, NAN);
            run_case(&c, &want, NULL, 1, 0);
            c.call.precision = MHLA_BF16;
            run_case(&c, &got, NULL, 0, 0);
            for (int e = 0; e < RESULTS; e++)
                ASSERT_CLOSE(got.x[e], want.x[e], got.n[e], 2e-2, "%s, %s, products of bfloat16", result_names[e],
                             isas[i]);
            c.d.dtype = MHLA_BF16;
            mhla_plan *plan;
            ASSERT_OK(mhla_plan_create(&plan, &c.d));
            placed *in[] = {&c.q, &c.k, &c.v};
            uint16_t *small[3], *o = new_bytes((size_t)c.o.count * 2), *o_ref = new_bytes((size_t)c.o.count * 2);
            for (int e = 0; e < 3; e++) small[e] = new_bf16(in[e]->memory, in[e]->count);
            c.call.precision = MHLA_F32;
            ASSERT_OK(mhla_forward(plan, &c.call, o, small[0], small[1], small[2], NULL, NULL));
            ASSERT_OK(mhla_forward_reference(plan, &c.call, o_ref, small[0], small[1], small[2], NULL));
            for (int64_t e = 0; e < z.T * z.H * z.V; e++)
                if (fabsf(from_bf16(o[e]) - from_bf16(o_ref[e])) > 0.01f * (1.0f + fabsf(from_bf16(o_ref[e]))))
                    fail_msg("stored as bfloat16, %s: element %lld", isas[i], (long long)e);
            uint16_t *dO = new_bf16(c.dO.memory, c.dO.count);
            mhla_grads grads = {.size = sizeof grads, .dq = got.x[DQ], .dv = got.x[DV], .ddecay = got.x[DDECAY]};
            ASSERT_OK(mhla_backward(plan, &c.call, &grads, dO, small[0], small[1], small[2], NULL, NULL));
            grads.dq = want.x[DQ], grads.dv = want.x[DV], grads.ddecay = want.x[DDECAY];
            ASSERT_OK(mhla_backward_reference(plan, &c.call, &grads, dO, small[0], small[1], small[2], NULL));
            static const int stored[] = {DQ, DV, DDECAY};
            for (int e = 0; e < 3; e++)
                ASSERT_CLOSE(got.x[stored[e]], want.x[stored[e]],
                             z.T * z.H *
                                 (stored[e] == DQ   ? 32
                                  : stored[e] == DV ? 48
                                                    : 1),
                             4e-5, "%s, %s, stored as bfloat16", result_names[stored[e]], isas[i]);
            mhla_plan_free(plan);
            for (int e = 0; e < 3; e++) free(small[e]);
            free(o), free(o_ref), free(dO);
            free_results(&want);
            free_results(&got);
            drop_case(&c);
        }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* ---- Decays that are no ordinary numbers ---- */

static void test_forgetting(void **state) {
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 1, 140, 1, 0, 20, 24, .start = 1, .strength = 0.2f};
        rng r = {3};
        gated_case c;
        make_case(&c, &r, &z);
        const int D = kinds[k] == MHLA_KIND_GLA ? 20 : 1;
        static const int at[] = {0, 5, 63, 64, 65, 100};
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < D; j++)
                if (i < 5 || j % 2 == 0) c.decay.data[at[i] * D + j] = -INFINITY;
        results want = new_results(&c, NAN), got = new_results(&c, NAN);
        run_case(&c, &want, NULL, 1, 0);
        run_case(&c, &got, NULL, 0, 0);
        compare(&c, &got, &want, "-inf");
        c.decay.data[30 * D] =
            NAN; /* before the decay of token 63, which 0 * NaN does not survive: NaN from here on, in o */
        run_case(&c, &got, NULL, 0, 0);
        for (int t = 0; t < z.T; t++)
            if (isnan(got.x[O][t * z.V]) != (t >= 30))
                fail_msg("NaN at token 30: o of token %d is %g, %s", t, (double)got.x[O][t * z.V], c.text);
        c.decay.data[0] = NAN; /* NaN times a state of 0, too */
        c.call.initial_state = NULL;
        run_case(&c, &got, NULL, 0, 0);
        if (!isnan(got.x[O][0])) fail_msg("NaN at token 0: o is %g, %s", (double)got.x[O][0], c.text);
        free_results(&want);
        free_results(&got);
        drop_case(&c);
    }
}

/* NaN of decays spreads to what the definition spreads it to, and to nothing else: in every result, of every instruction set; with walks that make
 * the scores and without, with heads that share keys, in the first chunk and later, with and without an initial state. */
static void test_nan(void **state) {
    (void)state;
    static const int at[] = {0, 1, 7, 16, 17, 40, 63, 64, 90, 139};
    const char *isas[8];
    const int n = isa_names(isas, 8);
    for (int i = 0; i < 16 * KINDS; i++) {
        const int k = i % KINDS, gla = kinds[k] == MHLA_KIND_GLA, shares = i / KINDS % 2 && !gla, D = gla ? 20 : 1;
        const sizes z = {kinds[k],
                         1,
                         140,
                         2,
                         shares ? 1 : 0,
                         20,
                         40,
                         .chunk = i % 5 == 0 ? 24 : 0,
                         .packed = i % 7 == 3,
                         .start = i % 2,
                         .strength = i % 4 < 2 ? 0.2f : 5.0f,
                         .norm = kinds[k] == MHLA_KIND_GATED_DELTA && i % 8 < 4};
        rng r = {(uint64_t)i};
        gated_case c;
        make_case(&c, &r, &z);
        const int places = 1 + rng_below(&r, 3), step = i / KINDS % 4 < 2 ? 1 : 7;
        for (int e = 0; e < places; e++) { /* some decays of one head; the other one's are ordinary */
            const int t = RNG_PICK(&r, at), forgets = RNG_PICK(&r, at);
            for (int j = 0; j < D; j++) placed_at(&c.decay, 0, forgets, 0)[j] = -INFINITY;
            for (int j = 0; j < D; j += step) placed_at(&c.decay, 0, t, 0)[j] = NAN;
        }
        results want = new_results(&c, 7.0f);
        run_case(&c, &want, NULL, 1, 0);
        for (int a = 0; a < n; a++)
            for (int threads = 1; threads < 9; threads += 7) {
                ASSERT_OK(mhla_set_isa(isas[a]));
                mhla_context *context = new_context(threads);
                results got = new_results(&c, 7.0f);
                run_case(&c, &got, context, 0, 0);
                compare(&c, &got, &want, isas[a]);
                free_results(&got);
                mhla_context_free(context);
            }
        free_results(&want);
        drop_case(&c);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* ---- What callers get wrong ---- */

static void test_errors(void **state) {
    (void)state;
    rng r = {2};
    for (size_t k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 2, 70, 4, 0, 8, 8, .start = 1, .strength = 0.2f};
        gated_case c;
        make_case(&c, &r, &z);
        results g = new_results(&c, NAN);
        mhla_plan *plan;
        mhla_plan_desc d = c.d;
        d.key_heads = 3;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL,
                     kinds[k] == MHLA_KIND_GLA ? "key_heads is 3" : "not a multiple of key_heads 3");
        d = c.d, d.kv_heads = 2;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, "kv_heads is 2");
        d = c.d, d.rope = MHLA_ROPE_HALF;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, "rope");
        d = c.d, d.feature = MHLA_FEATURE_ELU;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, "feature");
        d = c.d, d.chunk = -1;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, "chunk is -1");
        d = c.d, d.key_dim = 0;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, "key_dim");
        d = c.d, d.kind = MHLA_KIND_SOFTMAX, d.chunk = 0, d.key_heads = 2;
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, "key_heads is 2");

        float *o = g.x[O];
        const float *q = c.q.data, *kk = c.k.data, *v = c.v.data;
        mhla_call call = c.call;
        call.decay = NULL;
        ASSERT_FAILS(mhla_forward(c.plan, &call, o, q, kk, v, NULL, NULL), MHLA_EINVAL, "decay is NULL");
        call = c.call, call.final_z = g.x[FINAL];
        ASSERT_FAILS(mhla_forward(c.plan, &call, o, q, kk, v, NULL, NULL), MHLA_EINVAL, "final_z");
        call = c.call, call.decay = o;
        ASSERT_FAILS(mhla_forward(c.plan, &call, o, q, kk, v, NULL, NULL), MHLA_EINVAL, "o overlaps decay");
        call = c.call;
        *placed_at(&c.decay, 1, 65, 2) = 0.25f;
        const char *place = kinds[k] == MHLA_KIND_GLA ? "decay is 0.25 at batch 1, token 65, head 2, channel 0"
                                                      : "decay is 0.25 at batch 1, token 65, head 2";
        const mhla_grads grads = {.size = sizeof grads, .dq = g.x[DQ]};
        ASSERT_FAILS(mhla_forward(c.plan, &call, o, q, kk, v, NULL, NULL), MHLA_EINVAL, place);
        ASSERT_FAILS(mhla_forward_reference(c.plan, &call, o, q, kk, v, NULL), MHLA_EINVAL, place);
        ASSERT_FAILS(mhla_backward(c.plan, &call, &grads, c.dO.data, q, kk, v, NULL, NULL), MHLA_EINVAL, place);
        for (int64_t i = 0; i < g.n[O]; i++) assert_true(isnan(o[i])); /* nothing was written */
        for (int64_t i = 0; i < g.n[DQ]; i++) assert_true(isnan(g.x[DQ][i]));
        *placed_at(&c.decay, 1, 65, 2) = -0.25f;
        mhla_set_allocator(scarce_alloc, scarce_free);
        scarce.allowed = 0, scarce.living = 0;
        const mhla_status status = mhla_forward(c.plan, &call, o, q, kk, v, NULL, NULL);
        mhla_set_allocator(NULL, NULL);
        assert_int_equal(status, MHLA_ENOMEM);
        free_results(&g);
        drop_case(&c);
    }
    mhla_plan_desc delta = {
        .size = sizeof delta, .kind = MHLA_KIND_GATED_DELTA, .heads = 1, .key_dim = 4, .value_dim = 4, .qk_l2norm = 2};
    mhla_plan *rule;
    ASSERT_FAILS(mhla_plan_create(&rule, &delta), MHLA_EINVAL, "qk_l2norm is 2");
    delta.kind = MHLA_KIND_GLA, delta.qk_l2norm = 1;
    ASSERT_FAILS(mhla_plan_create(&rule, &delta), MHLA_EINVAL, "qk_l2norm is 1");
    delta.kind = MHLA_KIND_GATED_DELTA;
    ASSERT_OK(mhla_plan_create(&rule, &delta));
    float four[4] = {0}, more[4], minus[1] = {-1.0f};
    mhla_call without = {.size = sizeof without, .batch = 1, .tokens = 1, .decay = minus};
    ASSERT_FAILS(mhla_forward(rule, &without, more, four, four, four, NULL, NULL), MHLA_EINVAL, "beta is NULL");
    without.beta = more;
    ASSERT_FAILS(mhla_forward(rule, &without, more, four, four, four, NULL, NULL), MHLA_EINVAL, "o overlaps beta");
    mhla_plan_free(rule);
    const mhla_plan_desc soft = {
        .size = sizeof soft, .kind = MHLA_KIND_SOFTMAX, .heads = 1, .key_dim = 4, .value_dim = 4};
    mhla_plan *plan;
    ASSERT_OK(mhla_plan_create(&plan, &soft));
    float x[4] = {0}, o[4];
    mhla_call call = {.size = sizeof call, .batch = 1, .tokens = 1, .decay = x};
    ASSERT_FAILS(mhla_forward(plan, &call, o, x, x, x, NULL, NULL), MHLA_EINVAL, "decay is given");
    call.decay = NULL, call.beta = x;
    ASSERT_FAILS(mhla_forward(plan, &call, o, x, x, x, NULL, NULL), MHLA_EINVAL, "beta is given");
    mhla_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),     cmocka_unit_test(test_dims),    cmocka_unit_test(test_random),
        cmocka_unit_test(test_differences), cmocka_unit_test(test_threads), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_forgetting),  cmocka_unit_test(test_nan),     cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
