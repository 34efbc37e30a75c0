/* Streaming states: equal to the parallel form for any split, forks, rollback, bytes, no memory, bad input. */
#include "causal_case.h"

/* Feeds tokens [from, to) of batch entry b to a state; o is shaped like the case's. */
static mhla_status feed_with(const mhla_context *context, const causal_case *p, mhla_state *s, float *o, int64_t b,
                             int64_t from, int64_t to) {
    mhla_call c = {.size = sizeof c,
                   .context = context,
                   .batch = 1,
                   .tokens = to - from,
                   .q = p->c.q,
                   .k = p->c.k,
                   .v = p->c.v,
                   .o = p->c.o,
                   .rope_cos = p->c.rope_cos,
                   .rope_sin = p->c.rope_sin,
                   .rope_rows = p->c.rope_rows};
    if (p->c.q2) {
        c.q2 = placed_at(&p->q2, b, from, 0);
        c.k2 = placed_at(&p->k2, b, from, 0);
        c.q2_strides = p->q2.s;
        c.k2_strides = p->k2.s;
    }
    float *out = o + (p->o.data - p->o.memory) + b * p->o.s.batch + from * p->o.s.token;
    return mhla_step(p->plan, &c, &s, 1, out, placed_at(&p->q, b, from, 0), placed_at(&p->k, b, from, 0),
                     placed_at(&p->v, b, from, 0), p->mix);
}

static mhla_status feed(const causal_case *p, mhla_state *s, float *o, int64_t b, int64_t from, int64_t to) {
    return feed_with(NULL, p, s, o, b, from, to);
}

static void feed_in_pieces(const causal_case *p, mhla_state *s, float *o, int64_t b, int64_t from, int64_t to, rng *r,
                           int longest) {
    while (from < to) {
        int64_t n = 1 + (rng_below(r, 3) ? 0 : rng_below(r, longest));
        if (n > to - from) n = to - from;
        ASSERT_OK(feed(p, s, o, b, from, from + n));
        from += n;
    }
    assert_int_equal(mhla_state_tokens(s), to);
}

static mhla_state *new_state(const causal_case *p) {
    mhla_state *s;
    ASSERT_OK(mhla_state_create(&s, p->plan, p->mix));
    return s;
}

static causal_options stream_options(rng *r) {
    static const int Ts[] = {1, 2, 65, 130, 200, 300}, Cs[] = {1, 7, 16, 64, 130, 0}, dims[] = {1, 7, 60, 64, 72};
    static const int heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
    const int h = rng_below(r, 4);
    causal_options x = {.T = RNG_PICK(r, Ts),
                        .C = RNG_PICK(r, Cs),
                        .K = RNG_PICK(r, dims),
                        .V = RNG_PICK(r, dims),
                        .H = heads[h][0],
                        .G = heads[h][1],
                        .batch = 1,
                        .layout = rng_below(r, 3)};
    x.linear = rng_below(r, 4) == 0;
    x.clamp = rng_below(r, 2);
    x.rope = x.K > 7 ? rng_below(r, 3) : 0;
    x.normed = rng_below(r, 2);
    x.second = rng_below(r, 2);
    x.per_head = rng_below(r, 2);
    x.feature = rng_below(r, 2);
    if (x.clamp) x.M = 1 + rng_below(r, 5);
    return x;
}

/* The case, without the initial state that a parallel call may have. */
static causal_case *stream_case(const causal_options *x, rng *r) {
    causal_case *p = new_case(x, r);
    p->c.initial_state = p->c.initial_z = NULL;
    return p;
}

static void test_any_split(void **state) {
    (void)state;
    const char *isa[8];
    const int isas = isa_names(isa, 8);
    const int from = getenv("MHLA_SEED") ? atoi(getenv("MHLA_SEED")) : 1;
    const int count = getenv("MHLA_CASES") ? atoi(getenv("MHLA_CASES")) : 60;
    for (int seed = from; seed < from + count; seed++) {
        rng r = {(uint64_t)seed * 7919u};
        const causal_options x = stream_options(&r);
        causal_case *p = stream_case(&x, &r);
        causal_result want = new_result(p, 1), got = new_result(p, 1);
        ASSERT_OK(mhla_set_isa(isa[seed % isas]));
        run_forward(p, &want, NULL, 1);
        static const int longest[] = {1, 5, 70, 300};
        mhla_state *s = new_state(p);
        feed_in_pieces(p, s, got.o, 0, 0, p->T, &r, RNG_PICK(&r, longest));
        ASSERT_CLOSE(got.o, want.o, want.no, 2e-5,
                     "seed %d, %s: T %d C %d K %d V %d H %d G %d linear %d clamp %d M %d rope %d normed %d per_head %d",
                     seed, isa[seed % isas], x.T, x.C, x.K, x.V, x.H, x.G, x.linear, x.clamp, x.M, x.rope, x.normed,
                     x.per_head);
        mhla_state_free(s);
        free_result(&want);
        free_result(&got);
        free_case(p);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* A decode batch: states at different positions, fed together, packed and not, equal those fed alone, bit by bit. */
static void test_many_states(void **state) {
    (void)state;
    rng r = {5};
    const causal_options x = {
        .T = 90, .C = 16, .K = 20, .V = 24, .H = 4, .G = 2, .batch = 3, .per_head = 1, .normed = 1};
    causal_case *p = stream_case(&x, &r);
    causal_result alone = new_result(p, 1), together = new_result(p, 1);
    mhla_state *a[3], *b[3];
    for (int s = 0; s < 3; s++) {
        a[s] = new_state(p);
        b[s] = new_state(p);
        ASSERT_OK(feed(p, a[s], alone.o, s, 0, 5 * s + 1));
        ASSERT_OK(feed(p, b[s], together.o, s, 0, 5 * s + 1));
    }
    mhla_call c = {.size = sizeof c, .batch = 3, .tokens = 1};
    const int64_t H = 4, G = 2, K = 20, V = 24;
    for (int round = 0; round < 60; round++) {
        float q[3 * 4 * 20], k[3 * 2 * 20], v[3 * 2 * 24], o[3 * 4 * 24];
        for (int s = 0; s < 3; s++) {
            const int64_t t = 5 * s + 1 + round;
            ASSERT_OK(feed(p, a[s], alone.o, s, t, t + 1));
            memcpy(q + s * H * K, placed_at(&p->q, s, t, 0), (size_t)(H * K) * 4);
            memcpy(k + s * G * K, placed_at(&p->k, s, t, 0), (size_t)(G * K) * 4);
            memcpy(v + s * G * V, placed_at(&p->v, s, t, 0), (size_t)(G * V) * 4);
        }
        int64_t cu[] = {0, 1, 2, 3};
        c.batch = round % 2 ? 1 : 3;
        c.tokens = round % 2 ? 3 : 1;
        c.cu_seqlens = round % 2 ? cu : NULL;
        c.sequences = round % 2 ? 3 : 0;
        ASSERT_OK(mhla_step(p->plan, &c, b, 3, o, q, k, v, p->mix));
        for (int s = 0; s < 3; s++)
            memcpy(together.o + ((int64_t)s * 90 + 5 * s + 1 + round) * H * V, o + s * H * V, (size_t)(H * V) * 4);
    }
    assert_memory_equal(alone.o, together.o, (size_t)(3 * 90 * H * V) * 4);
    ASSERT_FAILS(mhla_step(p->plan, &(mhla_call){.size = sizeof c, .batch = 2, .tokens = 1},
                           (mhla_state *[]){b[0], b[0]}, 2, alone.o, p->q.data, p->k.data, p->v.data, p->mix),
                 MHLA_EINVAL, "twice");
    for (int s = 0; s < 3; s++) {
        mhla_state_free(a[s]);
        mhla_state_free(b[s]);
    }
    free_result(&alone);
    free_result(&together);
    free_case(p);
}

/* As far back as a clamped state goes, and then all the rest in one go, by the parallel form. */
static void test_far_back(void **state) {
    (void)state;
    for (int M = 1; M <= 5; M++)
        for (int C = 1; C <= 16; C *= 4) {
            rng r = {(uint64_t)(M * 100 + C)};
            const causal_options x = {
                .T = C * 60, .C = C, .K = 8, .V = 12, .H = 2, .G = 1, .batch = 1, .clamp = 1, .M = M, .normed = M % 2};
            causal_case *p = stream_case(&x, &r);
            causal_result want = new_result(p, 1), got = new_result(p, 1);
            run_forward(p, &want, NULL, 1);
            int64_t first = (int64_t)C * 40;
            for (int64_t to = first; to >= 0 && first > 0; to -= C) {
                mhla_state *s = new_state(p);
                feed_in_pieces(p, s, got.o, 0, 0, (int64_t)C * 40 + 1, &r, 5);
                first = mhla_state_nearest(s, to); /* 0 once it cannot */
                ASSERT_OK(mhla_state_rollback(s, first, p->plan, p->mix));
                ASSERT_OK(feed(p, s, got.o, 0, first, p->T));
                ASSERT_CLOSE(got.o, want.o, want.no, 2e-5, "M %d, C %d, back to %lld", M, C, (long long)first);
                mhla_state_free(s);
            }
            free_result(&want);
            free_result(&got);
            free_case(p);
        }
}

static void *saved(const mhla_state *s, size_t *size) {
    *size = mhla_state_save_size(s);
    void *bytes = new_bytes(*size);
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

/* The number of threads changes no bit of an output nor of the state: few heads are divided among many threads by columns, whole
 * panels, parts of them, and a last one with fewer columns. */
static void test_threads(void **state) {
    (void)state;
    static const causal_options list[] = {
        {.T = 40, .C = 16, .K = 128, .V = 200, .H = 2, .G = 2, .batch = 1, .normed = 1},
        {.T = 40, .C = 16, .K = 128, .V = 72, .H = 4, .G = 2, .batch = 1, .per_head = 1, .clamp = 1, .M = 2},
        {.T = 40, .C = 16, .K = 100, .V = 130, .H = 2, .G = 1, .batch = 1, .normed = 1, .second = 1},
        {.T = 40, .C = 16, .K = 128, .V = 256, .H = 1, .G = 1, .batch = 1, .linear = 1},
    };
    const char *isa[8];
    const int isas = isa_names(isa, 8);
    for (size_t i = 0; i < sizeof list / sizeof *list * (size_t)isas; i++) {
        rng r = {70 + i};
        ASSERT_OK(mhla_set_isa(isa[i % (size_t)isas]));
        causal_case *p = stream_case(&list[i / (size_t)isas], &r);
        causal_result one = new_result(p, 1);
        mhla_state *alone = new_state(p);
        for (int64_t t = 0; t < p->T; t++) ASSERT_OK(feed(p, alone, one.o, 0, t, t + 1));
        for (int threads = 1; threads <= 64; threads = threads < 16 ? 4 * threads : threads + 24) {
            mhla_context *c = new_context(threads);
            causal_result many = new_result(p, 1);
            mhla_state *s = new_state(p);
            for (int64_t t = 0; t < p->T; t++) ASSERT_OK(feed_with(c, p, s, many.o, 0, t, t + 1));
            assert_memory_equal(one.o, many.o, (size_t)one.no * 4);
            assert_same_state(alone, s);
            mhla_state_free(s);
            free_result(&many);
            mhla_context_free(c);
        }
        mhla_state_free(alone);
        free_result(&one);
        free_case(p);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

static const causal_options kinds[] = {
    {.T = 260, .C = 16, .K = 12, .V = 20, .H = 4, .G = 2, .batch = 1, .normed = 1, .per_head = 1},
    {.T = 260, .C = 16, .K = 12, .V = 20, .H = 2, .G = 2, .batch = 1, .clamp = 1, .M = 4, .normed = 1},
    {.T = 260, .C = 7, .K = 5, .V = 9, .H = 2, .G = 1, .batch = 1, .clamp = 1, .M = 2},
    {.T = 260, .C = 7, .K = 5, .V = 9, .H = 2, .G = 1, .batch = 1, .clamp = 1, .M = 1, .normed = 1},
    {.T = 500, .C = 150, .K = 8, .V = 8, .H = 1, .G = 1, .batch = 1, .normed = 1, .rope = 1},
    {.T = 260, .C = 16, .K = 12, .V = 20, .H = 2, .G = 2, .batch = 1, .linear = 1, .normed = 1},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void test_fork(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        rng r = {9};
        causal_case *p = stream_case(&kinds[i], &r);
        causal_result a = new_result(p, 1), b = new_result(p, 1);
        mhla_state *s = new_state(p), *alone = new_state(p), *fork;
        feed_in_pieces(p, s, a.o, 0, 0, 133, &r, 40);
        rng again = r;
        ASSERT_OK(mhla_state_fork(&fork, s));
        assert_same_state(fork, s);
        ASSERT_OK(feed(p, fork, b.o, 0, 5, 75)); /* other tokens than s will see */
        ASSERT_OK(feed(p, s, a.o, 0, 133, 200));
        mhla_state_free(s);
        ASSERT_OK(feed(p, fork, b.o, 0, 75, 90));
        mhla_state_free(fork);
        /* what a fork does leaves no trace: the same splits without it */
        s = new_state(p);
        r = (rng){9};
        free_case(p);
        p = stream_case(&kinds[i], &r);
        feed_in_pieces(p, s, b.o, 0, 0, 133, &r, 40);
        assert_int_equal(r.s, again.s);
        ASSERT_OK(feed(p, s, b.o, 0, 133, 200));
        const int64_t row = p->o.s.token;
        assert_memory_equal(a.o, b.o, (size_t)(200 * row) * 4);
        mhla_state_free(s);
        mhla_state_free(alone);
        free_result(&a);
        free_result(&b);
        free_case(p);
    }
}

static void test_rollback(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const int64_t C = kinds[i].linear ? 1000 : kinds[i].C, M = kinds[i].M;
        rng r = {11};
        causal_case *p = stream_case(&kinds[i], &r);
        causal_result y = new_result(p, 1);
        const int64_t end = kinds[i].T - 20;
        for (int64_t chunk = end / C; chunk >= 0; chunk--) {
            mhla_state *s = new_state(p), *never = new_state(p);
            const int64_t to = chunk * C;
            for (int64_t t = 0; t < end; t += 10) ASSERT_OK(feed(p, s, y.o, 0, t, t + 10 < end ? t + 10 : end));
            size_t n;
            void *before = saved(s, &n);
            const int64_t nearest = mhla_state_nearest(s, to + C - 1 < end ? to + C - 1 : to);
            const mhla_status status = mhla_state_rollback(s, to, p->plan, p->mix);
            assert_int_equal(nearest, status == MHLA_OK ? to : 0);
            const int kept = to == 0 || !kinds[i].clamp || chunk > end / C - M;
            if (kept) {
                assert_int_equal(status, MHLA_OK);
                assert_int_equal(mhla_state_tokens(s), to);
                for (int64_t t = 0; t < to; t += 10) ASSERT_OK(feed(p, never, y.o, 0, t, t + 10 < to ? t + 10 : to));
                for (int64_t t = to; t < end + 20; t += 3) { /* the rest, bit by bit */
                    const int64_t u = t + 3 < end + 20 ? t + 3 : end + 20;
                    float *o = y.o + (p->o.data - p->o.memory) + t * p->o.s.token, mine[3 * 200];
                    ASSERT_OK(feed(p, s, y.o, 0, t, u));
                    memcpy(mine, o, (size_t)((u - t) * p->o.s.token) * 4);
                    ASSERT_OK(feed(p, never, y.o, 0, t, u));
                    assert_memory_equal(mine, o, (size_t)((u - t) * p->o.s.token) * 4);
                }
            } else {
                assert_int_equal(status, MHLA_ERANGE);
                size_t m;
                void *after = saved(s, &m);
                assert_int_equal(n, m);
                assert_memory_equal(before, after, n);
                free(after);
            }
            free(before);
            mhla_state_free(s);
            mhla_state_free(never);
        }
        mhla_state *s = new_state(p);
        ASSERT_OK(feed(p, s, y.o, 0, 0, 101));
        ASSERT_OK(mhla_state_rollback(s, 101, p->plan, p->mix));
        assert_int_equal(mhla_state_nearest(s, 1000), 101);
        assert_int_equal(mhla_state_nearest(s, 0), 0);
        ASSERT_FAILS(mhla_state_rollback(s, 102, p->plan, p->mix), MHLA_ERANGE, "tokens is 102");
        ASSERT_FAILS(mhla_state_rollback(s, -1, p->plan, p->mix), MHLA_ERANGE, "tokens is -1");
        if (!kinds[i].linear) ASSERT_FAILS(mhla_state_rollback(s, 97, p->plan, p->mix), MHLA_ERANGE, "tokens is 97");
        mhla_state_free(s);
        free_result(&y);
        free_case(p);
    }
}

static void test_save_and_load(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        rng r = {13};
        causal_case *p = stream_case(&kinds[i], &r);
        causal_result a = new_result(p, 1), b = new_result(p, 1);
        for (int64_t at = 0; at < kinds[i].T - 30; at += 37) {
            mhla_state *s = new_state(p), *copy;
            for (int64_t t = 0; t < at; t += 20) ASSERT_OK(feed(p, s, a.o, 0, t, t + 20 < at ? t + 20 : at));
            size_t n;
            void *bytes = saved(s, &n);
            ASSERT_FAILS(mhla_state_save(s, bytes, n - 1), MHLA_EINVAL, "capacity");
            ASSERT_OK(mhla_state_load(&copy, bytes, n, p->plan, p->mix));
            assert_same_state(copy, s);
            for (int64_t t = at; t < at + 30; t++) {
                ASSERT_OK(feed(p, s, a.o, 0, t, t + 1));
                ASSERT_OK(feed(p, copy, b.o, 0, t, t + 1));
            }
            const int64_t row = p->o.s.token;
            assert_memory_equal(a.o + at * row, b.o + at * row, (size_t)(30 * row) * 4);
            mhla_state_free(s);
            mhla_state_free(copy);
            free(bytes);
        }
        free_result(&a);
        free_result(&b);
        free_case(p);
    }
}

/* Every flipped bit pattern, every truncation, and foreign plans and matrices are refused. */
static void test_hostile_bytes(void **state) {
    (void)state;
    rng r = {17};
    const causal_options x = {
        .T = 40, .C = 8, .K = 3, .V = 5, .H = 2, .G = 1, .batch = 1, .clamp = 1, .M = 3, .normed = 1};
    causal_case *p = stream_case(&x, &r);
    causal_result y = new_result(p, 1);
    mhla_state *s = new_state(p), *t;
    ASSERT_OK(feed(p, s, y.o, 0, 0, 37));
    size_t n;
    unsigned char *bytes = saved(s, &n);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit += 1 + (int)(i % 7)) {
            bytes[i] ^= (unsigned char)(1 << bit);
            assert_int_equal(mhla_state_load(&t, bytes, n, p->plan, p->mix), MHLA_EDATA);
            assert_null(t);
            bytes[i] ^= (unsigned char)(1 << bit);
        }
    for (size_t i = 0; i < n; i++) {
        unsigned char *cut = new_bytes(i); /* of exactly that size: an overread shows */
        memcpy(cut, bytes, i);
        assert_int_equal(mhla_state_load(&t, cut, i, p->plan, p->mix), MHLA_EDATA);
        free(cut);
    }
    p->mix[0] += 0.25f;
    ASSERT_FAILS(mhla_state_load(&t, bytes, n, p->plan, p->mix), MHLA_EDATA, "mixing matrix");
    p->mix[0] -= 0.25f;
    mhla_plan_desc d = p->d;
    d.den_eps *= 2;
    mhla_plan *other;
    ASSERT_OK(mhla_plan_create(&other, &d));
    ASSERT_FAILS(mhla_state_load(&t, bytes, n, other, p->mix), MHLA_EDATA, "plan");
    ASSERT_OK(mhla_state_load(&t, bytes, n, p->plan, p->mix));
    mhla_state_free(t);
    mhla_plan_free(other);
    free(bytes);
    mhla_state_free(s);
    free_result(&y);
    free_case(p);
}

/* ---- No memory ---- */

static void test_no_memory(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        rng r = {19};
        scarce.allowed = 1 << 30;
        mhla_set_allocator(scarce_alloc, scarce_free);
        causal_case *p = stream_case(&kinds[i], &r);
        causal_result y = new_result(p, 1);
        mhla_state *s = new_state(p), *t = NULL;
        ASSERT_OK(feed(p, s, y.o, 0, 0, 30));
        for (int step = 0; step < 4; step++) { /* feeding a prompt, fork, save and load, create */
            size_t n;
            void *bytes = saved(s, &n);
            mhla_status status = MHLA_ENOMEM;
            int tries = 0;
            for (; status == MHLA_ENOMEM; tries++) {
                const int before = scarce.living;
                scarce.allowed = tries;
                t = NULL;
                status = step == 0   ? feed(p, s, y.o, 0, 30, 240)
                         : step == 1 ? mhla_state_fork(&t, s)
                         : step == 2 ? mhla_state_load(&t, bytes, n, p->plan, p->mix)
                                     : mhla_state_create(&t, p->plan, p->mix);
                scarce.allowed = 1 << 30;
                if (status != MHLA_ENOMEM) break;
                assert_null(t);
                size_t m;
                void *after = saved(s, &m);
                assert_int_equal(n, m);
                assert_memory_equal(bytes, after, n);
                free(after);
                if (step > 0) assert_int_equal(scarce.living, before);
            }
            assert_int_equal(status, MHLA_OK);
            assert_true(tries > 0);
            mhla_state_free(t);
            free(bytes);
        }
        mhla_state_free(s);
        free_result(&y);
        free_case(p);
        assert_int_equal(scarce.living, 0);
        mhla_set_allocator(NULL, NULL);
    }
}

/* ---- Bad input ---- */

static void test_bad_input(void **state) {
    (void)state;
    rng r = {23};
    const causal_options x = {.T = 40, .C = 8, .K = 4, .V = 4, .H = 2, .G = 2, .batch = 1, .M = 4, .rope = 0};
    causal_options fits = x;
    fits.T = 32;
    causal_case *p = stream_case(&fits, &r);
    causal_result y = new_result(p, 1);
    mhla_state *s, *t;
    ASSERT_FAILS(mhla_state_create(NULL, p->plan, p->mix), MHLA_EINVAL, "state is NULL");
    ASSERT_FAILS(mhla_state_create(&s, NULL, p->mix), MHLA_EINVAL, "plan is NULL");
    ASSERT_FAILS(mhla_state_create(&s, p->plan, NULL), MHLA_EINVAL, "mix is NULL");
    s = new_state(p);
    ASSERT_OK(feed(p, s, y.o, 0, 0, 30));
    size_t n;
    void *before = saved(s, &n);
    ASSERT_FAILS(feed(p, s, y.o, 0, 0, 3), MHLA_ERANGE, "30 tokens");
    mhla_call c = {.size = sizeof c, .batch = 1, .tokens = 1};
#define STEP(states, count) mhla_step(p->plan, &c, states, count, y.o, p->q.data, p->k.data, p->v.data, p->mix)
    ASSERT_FAILS(STEP(NULL, 1), MHLA_EINVAL, "states is NULL");
    ASSERT_FAILS(STEP((mhla_state *[]){NULL}, 1), MHLA_EINVAL, "states[0] is NULL");
    ASSERT_FAILS(STEP(&s, 2), MHLA_EINVAL, "n is 2");
    c.past = 3;
    assert_int_equal(STEP(&s, 1), MHLA_EINVAL);
    c.past = 0;
    p->mix[3 * 4 + 1] += 1.0f; /* the row that the open chunk reads */
    ASSERT_FAILS(STEP(&s, 1), MHLA_EINVAL, "row 3");
    p->mix[3 * 4 + 1] -= 1.0f;
    size_t m;
    void *after = saved(s, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    assert_int_equal(mhla_state_fork(NULL, s), MHLA_EINVAL);
    assert_int_equal(mhla_state_fork(&t, NULL), MHLA_EINVAL);
    assert_int_equal(mhla_state_save(s, NULL, 1000), MHLA_EINVAL);
    assert_int_equal(mhla_state_load(&t, NULL, 1000, p->plan, p->mix), MHLA_EINVAL);
    assert_int_equal(mhla_state_save_size(NULL), 0);
    mhla_state_free(NULL);
    free(before);
    free(after);
    mhla_state_free(s);
    free_result(&y);
    free_case(p);
}

/* CLAMP: memory stays the same for ever. */
static void test_memory_is_flat(void **state) {
    (void)state;
    rng r = {29};
    const causal_options x = {.T = 400, .C = 4, .K = 4, .V = 4, .H = 1, .G = 1, .batch = 1, .clamp = 1, .M = 3};
    causal_case *p = stream_case(&x, &r);
    causal_result y = new_result(p, 1);
    mhla_state *s = new_state(p);
    size_t early = 0;
    for (int round = 0; round < 50; round++) {
        for (int64_t t = 0; t < 400; t += round % 3 ? 1 : 90)
            ASSERT_OK(feed(p, s, y.o, 0, t, round % 3 ? t + 1 : t + 90 < 400 ? t + 90 : 400));
        if (round == 3) early = mhla_state_bytes(s);
    }
    assert_int_equal(mhla_state_bytes(s), early);
    mhla_state_free(s);
    free_result(&y);
    free_case(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split),      cmocka_unit_test(test_many_states), cmocka_unit_test(test_fork),
        cmocka_unit_test(test_rollback),       cmocka_unit_test(test_far_back),    cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_hostile_bytes),  cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_memory_is_flat), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
