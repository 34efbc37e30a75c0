/* Streaming states of the recurrences with decay: equal to the reference for any split, several at once, forks, rollback, bytes, threads,
 * no memory, bad input. */
#include "gated_case.h"

/* The call of tokens [from, to) of batch entry b, and their places. */
static mhla_status feed(const gated_case *c, mhla_state *s, float *o, int64_t b, int64_t from, int64_t to,
                        const mhla_context *context) {
    mhla_call call = c->call;
    call.context = context;
    call.batch = 1;
    call.tokens = to - from;
    call.cu_seqlens = NULL;
    call.sequences = 0;
    call.initial_state = NULL;
    call.decay = placed_at(&c->decay, b, from, 0);
    if (call.beta) call.beta = placed_at(&c->beta, b, from, 0);
    return mhla_step(c->plan, &call, &s, 1, within(&c->o, o) + b * c->o.s.batch + from * c->o.s.token,
                     placed_at(&c->q, b, from, 0), placed_at(&c->k, b, from, 0), placed_at(&c->v, b, from, 0), NULL);
}

static void feed_in_pieces(const gated_case *c, mhla_state *s, float *o, int64_t b, int64_t from, int64_t to, rng *r) {
    static const int longest[] = {1, 3, 6, 70, 300};
    while (from < to) {
        int64_t n = 1 + rng_below(r, RNG_PICK(r, longest));
        if (n > to - from) n = to - from;
        ASSERT_OK(feed(c, s, o, b, from, from + n, NULL));
        from += n;
    }
    assert_int_equal(mhla_state_tokens(s), to);
}

static mhla_state *new_state(const gated_case *c) {
    mhla_state *s;
    ASSERT_OK(mhla_state_create(&s, c->plan, NULL));
    return s;
}

static unsigned char *saved(const mhla_state *s, size_t *size) {
    *size = mhla_state_save_size(s);
    unsigned char *bytes = new_bytes(*size);
    ASSERT_OK(mhla_state_save(s, bytes, *size));
    return bytes;
}

static void assert_same_state(const mhla_state *a, const mhla_state *b) {
    size_t na, nb;
    void *x = saved(a, &na), *y = saved(b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(x, y, na);
    free(x);
    free(y);
}

static sizes random_sizes(rng *r, int kind, int64_t B, int64_t T) {
    static const int dims[] = {1, 7, 16, 33, 64, 72, 130};
    static const float strengths[] = {0.0f, 0.05f, 1.0f, 20.0f};
    const int G = 1 + rng_below(r, 2), ratio = kind == 1 ? 1 : 1 + rng_below(r, 3);
    return (sizes){kinds[kind],
                   B,
                   T,
                   G * ratio,
                   kind == 1 ? 0 : G,
                   RNG_PICK(r, dims),
                   RNG_PICK(r, dims),
                   .layout = rng_below(r, 3),
                   .strength = RNG_PICK(r, strengths),
                   .norm = kind == 2 && rng_below(r, 2)};
}

/* Random splits, with forks and restored bytes on the way: outputs and the state are those of one call. */
static void test_any_split(void **state) {
    (void)state;
    const char *isa[8];
    const int isas = isa_names(isa, 8), cases = getenv("MHLA_TEST_QUICK") ? 30 : 120;
    for (int i = 0; i < cases; i++) {
        rng r = {(uint64_t)i * 131 + 7};
        static const int lengths[] = {1, 2, 65, 130, 300};
        const sizes z = random_sizes(&r, i % KINDS, 1, RNG_PICK(&r, lengths));
        gated_case c;
        make_case(&c, &r, &z);
        ASSERT_OK(mhla_set_isa(isa[i % isas]));
        float *want = new_poisoned(c.o.count), *got = new_poisoned(c.o.count), *final = new_poisoned(c.state);
        mhla_call call = c.call;
        call.final_state = final;
        ASSERT_OK(mhla_forward_reference(c.plan, &call, within(&c.o, want), c.q.data, c.k.data, c.v.data, NULL));
        mhla_state *s = new_state(&c), *other;
        feed_in_pieces(&c, s, got, 0, 0, z.T / 2, &r);
        ASSERT_OK(mhla_state_fork(&other, s));
        assert_same_state(s, other);
        feed_in_pieces(&c, s, got, 0, z.T / 2, z.T, &r); /* the fork does not see it */
        mhla_state_free(s);
        size_t size;
        void *bytes = saved(other, &size);
        mhla_state_free(other);
        ASSERT_OK(mhla_state_load(&s, bytes, size, c.plan, NULL));
        free(bytes);
        feed_in_pieces(&c, s, got, 0, z.T / 2, z.T, &r);
        ASSERT_CLOSE(got, want, c.o.count, 1e-5, "o, %s, %s", isa[i % isas], c.text);
        bytes = saved(s, &size);
        ASSERT_CLOSE((float *)bytes + 16, final, c.state, 1e-5, "state, %s, %s", isa[i % isas], c.text);
        free(bytes);
        ASSERT_OK(mhla_state_rollback(s, z.T, c.plan, NULL));
        assert_int_equal(mhla_state_nearest(s, z.T - 1), 0);
        if (z.T > 1) ASSERT_FAILS(mhla_state_rollback(s, 1, c.plan, NULL), MHLA_ERANGE, "goes back to 0 only");
        ASSERT_OK(mhla_state_rollback(s, 0, c.plan, NULL));
        mhla_state *fresh = new_state(&c);
        assert_same_state(s, fresh);
        mhla_state_free(fresh);
        mhla_state_free(s);
        free(want), free(got), free(final);
        drop_case(&c);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* Longer than a slice of the chunk form. */
static void test_long_prompt(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 1, 9000, 1, 0, 8, 8, .strength = 0.3f};
        rng r = {12};
        gated_case c;
        make_case(&c, &r, &z);
        float *want = new_poisoned(c.o.count), *got = new_poisoned(c.o.count);
        ASSERT_OK(mhla_forward_reference(c.plan, &c.call, want, c.q.data, c.k.data, c.v.data, NULL));
        mhla_state *s = new_state(&c);
        ASSERT_OK(feed(&c, s, got, 0, 0, 3, NULL));
        ASSERT_OK(feed(&c, s, got, 0, 3, 9000, NULL));
        ASSERT_CLOSE(got, want, c.o.count, 1e-5, "%s", c.text);
        mhla_state_free(s);
        free(want), free(got);
        drop_case(&c);
    }
}

/* States fed together, packed or not, one of them with no token, some with many; alone; with any number of threads: bit by bit. */
static void test_many_states(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 1, 200, k == 1 ? 2 : 4, k == 1 ? 0 : 2, 40, 150, .strength = 0.3f, .norm = k == 2};
        rng r = {5};
        gated_case c;
        make_case(&c, &r, &z);
        const int64_t cu[] = {0, 1, 3, 3, 103, 200};
        float *want = new_poisoned(c.o.count);
        mhla_state *alone[5], *all[5];
        for (int s = 0; s < 5; s++) {
            alone[s] = new_state(&c);
            if (cu[s] < cu[s + 1]) ASSERT_OK(feed(&c, alone[s], want, 0, cu[s], cu[s + 1], NULL));
        }
        static const int counts[] = {1, 2, 3, 64};
        for (int i = 0; i < 4; i++) {
            mhla_context *context = new_context(counts[i]);
            float *got = new_poisoned(c.o.count);
            for (int s = 0; s < 5; s++) all[s] = new_state(&c);
            mhla_call call = c.call;
            call.context = context;
            call.cu_seqlens = cu;
            call.sequences = 5;
            ASSERT_OK(mhla_step(c.plan, &call, all, 5, got, c.q.data, c.k.data, c.v.data, NULL));
            if (memcmp(got, want, (size_t)c.o.count * 4) != 0)
                fail_msg("o differs with %d threads: %s", counts[i], c.text);
            for (int s = 0; s < 5; s++) {
                assert_same_state(all[s], alone[s]);
                mhla_state_free(all[s]);
            }
            free(got);
            mhla_context_free(context);
        }
        for (int s = 0; s < 5; s++) mhla_state_free(alone[s]);
        free(want);
        drop_case(&c);
    }
}

/* bfloat16 in and out, added to what is there. */
static void test_bf16(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 1, 20, 2, 0, 24, 40, .strength = 0.3f};
        rng r = {6};
        gated_case c;
        make_case(&c, &r, &z);
        c.d.dtype = MHLA_BF16;
        mhla_plan *plan;
        ASSERT_OK(mhla_plan_create(&plan, &c.d));
        uint16_t *q = new_bf16(c.q.memory, c.q.count), *kk = new_bf16(c.k.memory, c.k.count),
                 *v = new_bf16(c.v.memory, c.v.count);
        const int64_t keys = z.H * z.K, values = z.H * z.V, D = z.kind == MHLA_KIND_GLA ? keys : z.H;
        uint16_t want[20 * 80], got[20 * 80];
        for (int i = 0; i < 20 * 80; i++) want[i] = got[i] = to_bf16(1.0f);
        mhla_call call = c.call;
        call.accumulate = 1;
        ASSERT_OK(mhla_forward_reference(plan, &call, want, q, kk, v, NULL));
        mhla_state *s;
        ASSERT_OK(mhla_state_create(&s, plan, NULL));
        call.tokens = 1;
        for (int t = 0; t < 20; t++) {
            call.decay = c.call.decay + t * D;
            if (call.beta) call.beta = c.call.beta + t * z.H;
            ASSERT_OK(
                mhla_step(plan, &call, &s, 1, got + t * values, q + t * keys, kk + t * keys, v + t * values, NULL));
        }
        for (int i = 0; i < 20 * 80; i++)
            if (fabsf(from_bf16(got[i]) - from_bf16(want[i])) > 0.01f * (1.0f + fabsf(from_bf16(want[i]))))
                fail_msg("%s: element %d", c.text, i);
        mhla_state_free(s);
        mhla_plan_free(plan);
        free(q), free(kk), free(v);
        drop_case(&c);
    }
}

/* -inf forgets; NaN makes NaN, also of a state of 0. */
static void test_forgetting(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 1, 12, 1, 0, 5, 6, .strength = 0.3f};
        rng r = {7};
        gated_case c;
        make_case(&c, &r, &z);
        const int64_t D = z.kind == MHLA_KIND_GLA ? 5 : 1;
        for (int64_t i = 0; i < D; i++) c.decay.data[6 * D + i] = -INFINITY;
        float *want = new_poisoned(c.o.count), *got = new_poisoned(c.o.count);
        ASSERT_OK(mhla_forward_reference(c.plan, &c.call, want, c.q.data, c.k.data, c.v.data, NULL));
        for (int from = 0; from < 2; from++) { /* token by token; and a state that has seen other ones before */
            mhla_state *s = new_state(&c);
            for (int64_t t = from * 6; t < 12; t++) ASSERT_OK(feed(&c, s, got, 0, t, t + 1, NULL));
            ASSERT_CLOSE(got + from * 36, want + from * 36, 72 - from * 36, 1e-5, "%s", c.text);
            mhla_state_free(s);
        }
        for (int from = 0; from < 2; from++) {
            c.decay.data[0] = c.decay.data[D] = NAN;
            mhla_state *s = new_state(&c);
            ASSERT_OK(feed(&c, s, got, 0, 0, from ? 8 : 1, NULL));
            assert_true(isnan(got[0]));
            mhla_state_free(s);
        }
        free(want), free(got);
        drop_case(&c);
    }
}

/* ---- Bytes and plans that are not the state's ---- */

static void test_hostile_bytes(void **state) {
    (void)state;
    const sizes z = {MHLA_KIND_GATED_DELTA, 1, 9, 2, 1, 3, 5, .strength = 0.3f};
    rng r = {8};
    gated_case c;
    make_case(&c, &r, &z);
    float *o = new_poisoned(c.o.count);
    mhla_state *s = new_state(&c), *t;
    ASSERT_OK(feed(&c, s, o, 0, 0, 9, NULL));
    size_t n;
    unsigned char *bytes = saved(s, &n);
    ASSERT_FAILS(mhla_state_save(s, bytes, n - 1), MHLA_EINVAL, "capacity");
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[i] ^= (unsigned char)(1 << bit);
            assert_int_equal(mhla_state_load(&t, bytes, n, c.plan, NULL), MHLA_EDATA);
            assert_null(t);
            bytes[i] ^= (unsigned char)(1 << bit);
        }
    for (size_t i = 0; i < n; i++) {
        unsigned char *cut = new_bytes(i);
        memcpy(cut, bytes, i);
        assert_int_equal(mhla_state_load(&t, cut, i, c.plan, NULL), MHLA_EDATA);
        free(cut);
    }
    mhla_plan_desc others[5] = {c.d, c.d, c.d, c.d, c.d};
    others[0].key_heads = 2;
    others[1].qk_l2norm = 1;
    others[2].scale = 2.0f;
    others[3].value_dim = 4;
    others[4].kind = MHLA_KIND_SIMPLE_GLA;
    for (int i = 0; i < 5; i++) {
        mhla_plan *other;
        ASSERT_OK(mhla_plan_create(&other, &others[i]));
        ASSERT_FAILS(mhla_state_load(&t, bytes, n, other, NULL), MHLA_EDATA, "plan (byte 16) is another one");
        mhla_call call = c.call;
        call.tokens = 1;
        if (i == 4) call.beta = NULL;
        ASSERT_FAILS(mhla_step(other, &call, &s, 1, o, c.q.data, c.k.data, c.v.data, NULL), MHLA_EINVAL,
                     "another plan");
        ASSERT_FAILS(mhla_state_rollback(s, 0, other, NULL), MHLA_EINVAL, "another plan");
        mhla_plan_free(other);
    }
    free(bytes);
    mhla_state_free(s);
    free(o);
    drop_case(&c);
}

static void test_bad_input(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const sizes z = {kinds[k], 1, 70, 2, 0, 8, 8, .strength = 0.3f};
        rng r = {9};
        gated_case c;
        make_case(&c, &r, &z);
        float *o = new_poisoned(c.o.count), mix[1] = {1.0f};
        mhla_state *s = new_state(&c), *t;
        ASSERT_OK(feed(&c, s, o, 0, 0, 5, NULL));
        ASSERT_FAILS(mhla_state_create(&t, c.plan, mix), MHLA_EINVAL, "mix is given");
        mhla_state *const twice[] = {s, s};
        mhla_call call = c.call;
        const int64_t cu[] = {0, 30, 70};
        call.cu_seqlens = cu, call.sequences = 2;
        ASSERT_FAILS(mhla_step(c.plan, &call, twice, 2, o, c.q.data, c.k.data, c.v.data, NULL), MHLA_EINVAL, "twice");
        call = c.call, call.initial_state = o;
        ASSERT_FAILS(mhla_step(c.plan, &call, &s, 1, o, c.q.data, c.k.data, c.v.data, NULL), MHLA_EINVAL, "");
        size_t n, m;
        void *before = saved(s, &n);
        for (int64_t at = 6; at < 70; at += 60) { /* in a step of few tokens, and of many: nothing changes */
            float *decay = placed_at(&c.decay, 0, at, 1), kept = *decay;
            *decay = 0.5f;
            for (int64_t i = 0; i < c.o.count; i++) o[i] = NAN;
            ASSERT_FAILS(feed(&c, s, o, 0, 5, at + 1, NULL), MHLA_EINVAL, "decay is 0.5");
            *decay = kept;
            for (int64_t i = 0; i < c.o.count; i++) assert_true(isnan(o[i]));
            void *after = saved(s, &m);
            assert_int_equal(n, m);
            assert_memory_equal(before, after, n);
            free(after);
        }
        mhla_set_allocator(scarce_alloc, scarce_free);
        for (int allowed = 0;; allowed++) { /* create, fork, load, feed */
            scarce.allowed = allowed, scarce.living = 0;
            mhla_status status = mhla_state_create(&t, c.plan, NULL);
            mhla_state *copy = NULL, *loaded = NULL;
            if (status == MHLA_OK) status = mhla_state_fork(&copy, t);
            if (status == MHLA_OK) status = mhla_state_load(&loaded, before, n, c.plan, NULL);
            if (status == MHLA_OK) status = feed(&c, loaded, o, 0, 5, 70, NULL);
            mhla_state_free(t);
            mhla_state_free(copy);
            mhla_state_free(loaded);
            assert_int_equal(scarce.living, 0);
            if (status == MHLA_OK) break;
            assert_int_equal(status, MHLA_ENOMEM);
        }
        mhla_set_allocator(NULL, NULL);
        free(before);
        mhla_state_free(s);
        free(o);
        drop_case(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split), cmocka_unit_test(test_long_prompt), cmocka_unit_test(test_many_states),
        cmocka_unit_test(test_bf16),      cmocka_unit_test(test_forgetting),  cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
