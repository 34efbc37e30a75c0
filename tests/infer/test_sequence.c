/* Sequences against the parallel form: any split, forks, rollback, many at once, beyond the trained length, hybrids. */
#include "lm_case.h"

static const struct policy {
    mhla_beyond beyond;
    int64_t max_tokens;
} policies[] = {{MHLA_BEYOND_ERROR, 0}, {MHLA_BEYOND_CLAMP, 0}, {MHLA_BEYOND_CHUNK, 150}};

/* Three attentions of one config, each with heads and features of its own. */
static const char *const two[] = {"num_hidden_layers=3",
                                  "chunk_size=8",
                                  "num_blocks=6",
                                  "linear_layers=1",
                                  "linear_feature_map=elu",
                                  "linear_norm_feature_map=true",
                                  NULL};
static const char *const three[] = {"num_hidden_layers=5", "chunk_size=8",        "num_blocks=6",
                                    "num_heads=4",         "num_kv_heads=2",      "attn_layers=1",
                                    "attn_num_heads=2",    "attn_window_size=11", "linear_layers=0,3",
                                    "linear_num_heads=2",  "linear_expand_k=0.5", NULL};
static const char *const convolved[] = {"num_hidden_layers=2",
                                        "chunk_size=8",
                                        "num_blocks=6",
                                        "linear_layers=0",
                                        "linear_use_short_conv=true",
                                        "linear_conv_size=3",
                                        NULL};

/* Two settings of one kind: other chunks, other windows. */
static const char *const chunks[] = {"num_hidden_layers=3", "chunk_size=8",      "num_blocks=6",  "mhla_layers=1",
                                     "mhla_chunk_size=12",  "mhla_num_blocks=4", "attn_layers=2", NULL};
static const char *const windows[] = {"attention=softmax",
                                      "num_hidden_layers=3",
                                      "window_size=40",
                                      "attn_layers=1",
                                      "attn_num_heads=8",
                                      "attn_window_size=9",
                                      NULL};

static const lm_case cases[] = {
    {"m", 8, 6, MHLA_LM_RELU, 0, NULL},
    {"s", 0, 0, 0, 0, NULL},
    {"l", 0, 0, MHLA_LM_ELU, 0, NULL},
    {"w", 0, 0, 0, 0, NULL},
    {"msl", 8, 6, MHLA_LM_RELU, 0, NULL},
    {"mwml", 16, 3, MHLA_LM_ELU, 0, NULL},
    {"lm", 8, 6, MHLA_LM_HEDGEHOG, 0, NULL},
    {"mm", 4, 1, MHLA_LM_IDENTITY, 0, NULL},
    {"ml", 8, 6, MHLA_LM_RELU, 4, NULL},
    {"mlm", 8, 6, 0, 0, two},
    {"lsmlm", 8, 6, 0, 0, three},
    {"lm", 8, 6, 0, 3, convolved},
    {"sws", 0, 0, 0, 0, NULL},
    {"mms", 8, 6, 0, 0, chunks},
    {"sss", 0, 0, 0, 0, windows},
};
enum { CASES = sizeof cases / sizeof *cases, POLICIES = sizeof policies / sizeof *policies };
static const double tolerance = 3e-5;

/* How many tokens make sense: within the trained length, or past it. */
static int64_t length_of(const lm_case *c, const struct policy *p) {
    const int mhla = strchr(c->layers, 'm') != NULL;
    if (p->beyond == MHLA_BEYOND_ERROR && mhla) return c->C * c->M;
    return p->beyond == MHLA_BEYOND_CHUNK ? p->max_tokens : 170;
}
/* Policies are about MHLA. */
static int applies(const lm_case *c, const struct policy *p) {
    return p->beyond == MHLA_BEYOND_ERROR || strchr(c->layers, 'm');
}

static void test_splits(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int k = 0; k < POLICIES; k++) {
            const struct policy *p = &policies[k];
            if (!applies(&cases[i], p)) continue;
            rng r = {(uint64_t)(100 + i)};
            mhla_model *model = new_lm(&cases[i], 7);
            const int64_t T = length_of(&cases[i], p);
            int32_t *ids = new_ids(&r, T);
            float *wanted = parallel_logits(model, p->beyond, p->max_tokens, ids, T);
            for (int split = 0; split < 4; split++) { /* one by one, all at once, at random */
                mhla_sequence *s = new_sequence(model, p->beyond, p->max_tokens);
                float *got = new_poisoned(T * VOCABULARY);
                for (int64_t t = 0, n; t < T; t += n) {
                    n = split == 0 ? 1 : split == 1 ? T : 1 + rng_below(&r, split == 2 ? 7 : 60);
                    if (n > T - t) n = T - t;
                    ASSERT_OK(feed_one(model, s, ids + t, n, got + t * VOCABULARY));
                }
                ASSERT_CLOSE(got, wanted, T * VOCABULARY, tolerance, "%s, policy %d, split %d", cases[i].layers, k,
                             split);
                assert_int_equal(mhla_sequence_tokens(s), T);
                assert_memory_equal(mhla_sequence_ids(s), ids, sizeof *ids * (size_t)T);
                free(got);
                mhla_sequence_free(s);
            }
            free(wanted);
            free(ids);
            mhla_model_free(model);
        }
}

/* Longer than a pass, and than a window's cache. */
static void test_long(void **state) {
    (void)state;
    const lm_case c = {"mwl", 64, 32, MHLA_LM_RELU, 0, NULL};
    mhla_model *model = new_lm(&c, 3);
    rng r = {5};
    const int64_t T = 2000;
    int32_t *ids = new_ids(&r, T);
    float *wanted = parallel_logits(model, MHLA_BEYOND_ERROR, 0, ids, T);
    float *got = new_poisoned(T * VOCABULARY);
    for (int split = 0; split < 2; split++) {
        mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0);
        for (int64_t t = 0, n; t < T; t += n) {
            n = split ? 1 + rng_below(&r, 400) : T;
            if (n > T - t) n = T - t;
            ASSERT_OK(feed_one(model, s, ids + t, n, got + t * VOCABULARY));
        }
        ASSERT_CLOSE(got, wanted, T * VOCABULARY, tolerance, "split %d", split);
        /* far back, where layers disagree about the places they have */
        for (int64_t back = T - 1; back > 0; back -= 337) {
            ASSERT_OK(mhla_sequence_rollback(s, back));
            const int64_t n = T - back < 20 ? T - back : 20;
            ASSERT_OK(feed_one(model, s, ids + back, n, got));
            ASSERT_CLOSE(got, wanted + back * VOCABULARY, n * VOCABULARY, tolerance, "back to %lld", (long long)back);
            ASSERT_OK(mhla_sequence_rollback(s, back));
        }
        mhla_sequence_free(s);
    }
    free(got);
    free(wanted);
    free(ids);
    mhla_model_free(model);
}

/* A window forgets: going back behind what is kept starts from the beginning. */
static void test_window(void **state) {
    (void)state;
    mhla_model *model = new_lm(&cases[3], 3);
    rng r = {5};
    const int64_t T = 1500, back = 300;
    int32_t *ids = new_ids(&r, T);
    float *wanted = parallel_logits(model, MHLA_BEYOND_ERROR, 0, ids, T), *got = new_poisoned((int64_t)20 * VOCABULARY);
    mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0);
    for (int64_t t = 0; t < T; t += 100) ASSERT_OK(feed_one(model, s, ids + t, 100, NULL));
    const mhla_mixer *mixer = mhla_lm_group_of(mhla_lm_config_of(model->net), 0)->mixer;
    int64_t first = 1;
    const int64_t window = 20; /* lm_case.h */
    while (mixer->nearest(s->memory[0], first, 0) != first) first++;
    first -= window - 1; /* what the window has before the first token that it can go back to */
    assert_true(first > back);
    /* the last place whose window is gone, the first whose window is there; of a fork, which has all that its origin has */
    for (int64_t to = first + window - 2; to < first + window; to++) {
        mhla_sequence *fork;
        ASSERT_OK(mhla_sequence_fork(&fork, s));
        ASSERT_OK(mhla_sequence_rollback(fork, to));
        assert_int_equal(fork->ready, to == first + window - 1 ? to : 0);
        ASSERT_OK(feed_one(model, fork, ids + to, 5, got));
        ASSERT_CLOSE(got, wanted + to * VOCABULARY, (int64_t)5 * VOCABULARY, tolerance, "back to %lld", (long long)to);
        mhla_sequence_free(fork);
    }
    for (int64_t to = back; to < back + 20; to += 10) { /* what was forgotten is there again */
        ASSERT_OK(mhla_sequence_rollback(s, to));
        assert_int_equal(s->ready, to == back ? 0 : to);
        ASSERT_OK(feed_one(model, s, ids + to, 20, got));
        ASSERT_CLOSE(got, wanted + to * VOCABULARY, (int64_t)20 * VOCABULARY, tolerance, "back to %lld", (long long)to);
    }
    free(got);
    free(wanted);
    free(ids);
    mhla_sequence_free(s);
    mhla_model_free(model);
}

/* Linear layers keep marks: going back some way does not read everything again. */
static void test_marks(void **state) {
    (void)state;
    const lm_case c = {"ls", 0, 0, MHLA_LM_ELU, 0, NULL};
    mhla_model *model = new_lm(&c, 3);
    rng r = {5};
    const int64_t T = 9000;
    int32_t *ids = new_ids(&r, T);
    mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0), *fork;
    for (int64_t t = 0; t < T; t += 100) {
        const mhla_feed f = {.size = sizeof f, .sequence = s, .ids = ids + t, .count = 100};
        ASSERT_OK(mhla_lm_feed(model, &f, 1));
    }
    assert_true(s->n_marks <= MHLA_MARKS);
    for (int64_t back = 100; back < T / 2; back *= 3) {
        ASSERT_OK(mhla_sequence_fork(&fork, s));
        ASSERT_OK(mhla_sequence_rollback(fork, T - back));
        assert_true(T - fork->ready <= 8 * back + 2560);
        mhla_sequence_free(fork);
    }
    free(ids);
    mhla_sequence_free(s);
    mhla_model_free(model);
}

/* A walk of everything: feeds of several sequences at once, forks, rollbacks, files. After each feed the predictions are
 * those of the parallel form. */
enum { POOL = 5 };

static void check(mhla_model *model, const struct policy *p, const mhla_sequence *s, const float *logits,
                  const char *what) {
    const int64_t T = mhla_sequence_tokens(s);
    float *wanted = parallel_logits(model, p->beyond, p->max_tokens, mhla_sequence_ids(s), T);
    ASSERT_CLOSE(logits, wanted + (T - 1) * VOCABULARY, VOCABULARY, tolerance, "%s, %lld tokens", what, (long long)T);
    free(wanted);
}

static void walk(const lm_case *c, const struct policy *p, uint64_t seed, int steps) {
    mhla_model *model = new_lm(c, seed);
    rng r = {seed};
    const int64_t most = length_of(c, p);
    mhla_sequence *pool[POOL] = {0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/mhla-test-sequence-%d", (int)getpid());
    pool[0] = new_sequence(model, p->beyond, p->max_tokens);
    for (int step = 0; step < steps; step++) {
        const int at = rng_below(&r, POOL), other = rng_below(&r, POOL);
        switch (rng_below(&r, 6)) {
        case 0:
            if (pool[at] == NULL || at == other) break;
            mhla_sequence_free(pool[other]);
            ASSERT_OK(mhla_sequence_fork(&pool[other], pool[at]));
            break;
        case 1:
            if (pool[at] == NULL) break;
            ASSERT_OK(mhla_sequence_rollback(pool[at], rng_below(&r, (int)mhla_sequence_tokens(pool[at]) + 1)));
            break;
        case 2:
            if (pool[at] == NULL) break;
            ASSERT_OK(mhla_sequence_save(pool[at], path));
            mhla_sequence_free(pool[at]);
            ASSERT_OK(mhla_sequence_load(&pool[at], model, path));
            break;
        default: {
            mhla_feed feeds[POOL];
            int32_t *ids[POOL];
            float logits[POOL][VOCABULARY];
            int n = 0;
            for (int i = 0; i < POOL; i++) {
                if (pool[i] == NULL || rng_below(&r, 4) == 0) continue;
                const int64_t room = most - mhla_sequence_tokens(pool[i]);
                int64_t count = 1 + rng_below(&r, rng_below(&r, 2) ? 3 : 50);
                if (count > room) count = room;
                if (count == 0) continue;
                ids[n] = new_ids(&r, count);
                feeds[n] = (mhla_feed){
                    .size = sizeof *feeds, .sequence = pool[i], .ids = ids[n], .count = count, .logits = logits[n]};
                n++;
            }
            ASSERT_OK(mhla_lm_feed(model, feeds, n));
            for (int i = 0; i < n; i++) {
                check(model, p, feeds[i].sequence, logits[i], c->layers);
                free(ids[i]);
            }
        }
        }
    }
    for (int i = 0; i < POOL; i++) mhla_sequence_free(pool[i]);
    unlink(path);
    mhla_model_free(model);
}

static void test_walks(void **state) {
    (void)state;
    const int steps = getenv("MHLA_TEST_QUICK") ? 40 : 150;
    for (int i = 0; i < CASES; i++)
        for (int k = 0; k < POLICIES; k++)
            if (applies(&cases[i], &policies[k])) walk(&cases[i], &policies[k], (uint64_t)(31 * i + k), steps);
}

/* Different policies in one feed, and many sequences: as one by one. */
static void test_many(void **state) {
    (void)state;
    enum { N = 40 };
    mhla_model *model = new_lm(&cases[4], 9);
    rng r = {2};
    mhla_sequence *alone[N], *together[N];
    for (int i = 0; i < N; i++) {
        const struct policy *p = &policies[i % POLICIES];
        alone[i] = new_sequence(model, p->beyond, p->max_tokens);
        together[i] = new_sequence(model, p->beyond, p->max_tokens);
    }
    for (int step = 0; step < 4; step++) {
        mhla_feed feeds[N];
        static float a[N][VOCABULARY], b[N][VOCABULARY];
        int32_t *ids[N];
        for (int i = 0; i < N; i++) {
            const int64_t n = step == 3 ? 1 : 1 + rng_below(&r, i % 7 == 0 ? 14 : 4);
            ids[i] = new_ids(&r, n);
            feeds[i] =
                (mhla_feed){.size = sizeof *feeds, .sequence = together[i], .ids = ids[i], .count = n, .logits = a[i]};
        }
        ASSERT_OK(mhla_lm_feed(model, feeds, N));
        for (int i = 0; i < N; i++) {
            feeds[i].sequence = alone[i];
            feeds[i].logits = b[i];
            ASSERT_OK(mhla_lm_feed(model, &feeds[i], 1));
            ASSERT_CLOSE(a[i], b[i], VOCABULARY, tolerance, "sequence %d, step %d", i, step);
            free(ids[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        mhla_sequence_free(alone[i]);
        mhla_sequence_free(together[i]);
    }
    mhla_model_free(model);
}

/* Log-probabilities and the likeliest are those of the logits; and threads do not show. */
static void test_wanted(void **state) {
    (void)state;
    mhla_model *model = new_lm(&cases[4], 9);
    rng r = {2};
    enum { T = 48 };
    int32_t *ids = new_ids(&r, T), *targets = new_ids(&r, T);
    int32_t best[T];
    static float all[T * VOCABULARY], again[T * VOCABULARY], last[VOCABULARY];
    float logprobs[T];
    targets[3] = targets[40] = -1;
    for (int threads = 1; threads <= 3; threads += 2) {
        mhla_context *context = new_context(threads);
        mhla_model_set_context(model, context);
        mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0);
        const mhla_feed f = {.size = sizeof f,
                             .sequence = s,
                             .ids = ids,
                             .count = T,
                             .logits = last,
                             .all_logits = threads == 1 ? all : again,
                             .targets = targets,
                             .logprobs = logprobs,
                             .best = best};
        ASSERT_OK(mhla_lm_feed(model, &f, 1));
        mhla_sequence_free(s);
        mhla_model_set_context(model, single_thread());
        mhla_context_free(context);
    }
    assert_memory_equal(all, again, sizeof all);
    assert_memory_equal(last, all + (size_t)(T - 1) * VOCABULARY, sizeof last);
    for (int t = 0; t < T; t++) {
        const float *x = all + (size_t)t * VOCABULARY;
        double sum = 0.0;
        int most = 0;
        for (int j = 0; j < VOCABULARY; j++) {
            sum += exp((double)x[j]);
            if (x[j] > x[most]) most = j;
        }
        assert_int_equal(best[t], most);
        const double p = targets[t] < 0 ? 0.0 : (double)x[targets[t]] - log(sum);
        assert_true(fabs((double)logprobs[t] - p) < 1e-4);
    }
    free(ids);
    free(targets);
    mhla_model_free(model);
}

/* Under clamp neither memory nor what a state keeps grows, but for the ids. */
static void test_flat(void **state) {
    (void)state;
    const lm_case c = {"mm", 8, 4, MHLA_LM_RELU, 0, NULL};
    mhla_model *model = new_lm(&c, 9);
    rng r = {2};
    mhla_sequence *s = new_sequence(model, MHLA_BEYOND_CLAMP, 0);
    int32_t *ids = new_ids(&r, 500);
    size_t bytes = 0;
    for (int step = 0; step < 8; step++) {
        const mhla_feed f = {.size = sizeof f, .sequence = s, .ids = ids, .count = 500};
        ASSERT_OK(mhla_lm_feed(model, &f, 1));
        const size_t now = mhla_sequence_bytes(s) - sizeof *ids * (size_t)s->capacity;
        assert_true(step == 0 || now == bytes);
        bytes = now;
    }
    free(ids);
    mhla_sequence_free(s);
    mhla_model_free(model);
}

/* The policy is the same whatever the attention: 20 tokens, by the chunks of MHLA or by max_position_embeddings. */
static void test_trained_length(void **state) {
    (void)state;
    static const char *const softmax[] = {"attention=softmax", "max_position_embeddings=20", NULL},
                             *const linear[] = {"attention=linear", "max_position_embeddings=20", NULL},
                             *const mhla[] = {"attention=mhla", "chunk_size=5", "num_blocks=4", NULL},
                             *const unknown[] = {"attention=softmax", "max_position_embeddings=0", NULL};
    const char *const *const all[] = {softmax, linear, mhla, unknown};
    int32_t ids[31];
    for (int i = 0; i < 31; i++) ids[i] = i % VOCABULARY;
    for (int i = 0; i < 4; i++) {
        mhla_model *model;
        const char *settings[8] = {"vocab_size=61", "hidden_size=32", "intermediate_size=48", "num_hidden_layers=1"};
        int n = 4;
        for (int k = 0; all[i][k]; k++) settings[n++] = all[i][k];
        ASSERT_OK(mhla_model_create(&model, "lm_micro", settings, n, 1));
        mhla_lm_info info = {.size = sizeof info};
        ASSERT_OK(mhla_lm_query(model, &info));
        assert_int_equal(info.context, i < 3 ? 20 : 0);
        for (int p = 0; p < 3; p++) {
            const int64_t most = p == 2 ? 30 : p == 0 && i < 3 ? 20 : 31;
            mhla_sequence *s = new_sequence(model, (mhla_beyond)p, p == 2 ? 30 : 0);
            mhla_feed feed = {.size = sizeof feed, .sequence = s, .ids = ids, .count = 19};
            ASSERT_OK(mhla_lm_feed(model, &feed, 1));
            feed.count = most - 19;
            ASSERT_OK(mhla_lm_feed(model, &feed, 1));
            feed.count = 1;
            if (p == 0 && i < 3) ASSERT_FAILS(mhla_lm_feed(model, &feed, 1), MHLA_ERANGE, "trained for 20");
            if (p == 2) ASSERT_FAILS(mhla_lm_feed(model, &feed, 1), MHLA_ERANGE, "made for 30");
            assert_int_equal(mhla_sequence_tokens(s), most);
            mhla_sequence_free(s);
        }
        mhla_model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trained_length), cmocka_unit_test(test_splits), cmocka_unit_test(test_long),
        cmocka_unit_test(test_marks),          cmocka_unit_test(test_walks),  cmocka_unit_test(test_many),
        cmocka_unit_test(test_wanted),         cmocka_unit_test(test_flat),   cmocka_unit_test(test_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
