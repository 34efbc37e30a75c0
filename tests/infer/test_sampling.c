/* Sampling: every golden case, candidate by candidate and stage by stage; a slow definition beside it on random logits
 * of all sizes; draws that follow the probabilities; refusals. */
#include <mhla/lm.h>

#include "file/json.h"
#include "goldens.h"
#include "infer/token_sampler.h"

/* ---- Goldens ---- */

static double real_of(const json_t *object, const char *key, double otherwise) {
    const json_t *v = json_object_get(object, key);
    return v ? json_number_value(v) : otherwise;
}

static float logit_of(const json_t *v) {
    if (json_is_string(v)) return json_string_value(v)[0] == '-' ? -INFINITY : INFINITY;
    return (float)json_number_value(v);
}

/* The settings of a case in which only the stages up to `stages` of its order act. */
static mhla_sampling settings_of(const json_t *params, size_t stages, mhla_bias *bias) {
    mhla_sampling s = {.size = sizeof s, .temperature = 1.0};
    const json_t *order = json_object_get(params, "order"), *list = json_object_get(params, "logit_bias");
    for (size_t i = 0; i < stages; i++) {
        const char *stage = json_string_value(json_array_get(order, i));
        if (strcmp(stage, "temperature") == 0) {
            s.temperature = real_of(params, "temperature", 1.0);
            if (i + 1 < json_array_size(order)) s.order = MHLA_SAMPLING_HF;
        } else if (strcmp(stage, "top_k") == 0) {
            s.top_k = (int)real_of(params, "top_k", 0.0);
        } else if (strcmp(stage, "top_p") == 0) {
            s.top_p = real_of(params, "top_p", 1.0);
            if (s.top_p == 0.0) s.top_p = 1e-300; /* ours: 0 is off, and so little keeps one */
        } else if (strcmp(stage, "min_p") == 0) {
            s.min_p = real_of(params, "min_p", 0.0);
        }
    }
    s.min_keep = (int)real_of(params, "min_keep", 0.0);
    s.repeat_penalty = real_of(params, "repeat_penalty", 0.0);
    s.presence_penalty = real_of(params, "presence_penalty", 0.0);
    s.frequency_penalty = real_of(params, "frequency_penalty", 0.0);
    s.repeat_last = (int)real_of(params, "repeat_last_n", 64.0);
    if (s.repeat_last == 0) s.repeat_penalty = s.presence_penalty = s.frequency_penalty = 0.0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        bias[i] = (mhla_bias){(int32_t)json_integer_value(json_array_get(pair, 0)), logit_of(json_array_get(pair, 1))};
        s.biases = (int)i + 1;
    }
    s.bias = bias;
    return s;
}

static void golden_cases(void **state) {
    (void)state;
    json_t *cases;
    char path[512];
    ASSERT_OK(mhla_json_load(&cases, golden_path(path, "lm/sampling/cases.json")));
    assert_true(json_array_size(cases) > 0);
    size_t c;
    json_t *row;
    json_array_foreach(cases, c, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        const json_t *params = json_object_get(row, "params"), *in = json_object_get(row, "logits"),
                     *last = json_object_get(params, "last_tokens"), *expected = json_object_get(row, "expected"),
                     *wanted = json_object_get(expected, "candidates"), *sizes = json_object_get(expected, "sizes");
        const int V = (int)json_array_size(in), n = (int)json_array_size(last);
        float *logits = new_bytes(sizeof *logits * (size_t)V);
        int32_t *recent = new_bytes(sizeof *recent * (size_t)n);
        mhla_candidate *got = new_bytes(sizeof *got * (size_t)V);
        mhla_bias *bias = new_bytes(sizeof *bias * (json_array_size(json_object_get(params, "logit_bias")) + 1));
        for (int i = 0; i < V; i++) logits[i] = logit_of(json_array_get(in, (size_t)i));
        for (int i = 0; i < n; i++) recent[i] = (int32_t)json_integer_value(json_array_get(last, (size_t)i));
        for (size_t stages = 1; stages <= json_array_size(sizes); stages++) {
            const mhla_sampling s = settings_of(params, stages, bias);
            int count = -1;
            ASSERT_OK(mhla_sample_candidates(&s, logits, V, recent, n, got, &count));
            const int size = (int)json_integer_value(json_array_get(json_array_get(sizes, stages - 1), 1));
            if (count != size) fail_msg("%s: %d survive stage %zu, expected %d", name, count, stages, size);
        }
        for (size_t i = 0; i < json_array_size(wanted); i++) {
            const json_t *pair = json_array_get(wanted, i);
            const double p = json_number_value(json_array_get(pair, 1));
            if (got[i].id != json_integer_value(json_array_get(pair, 0)) || fabs((double)got[i].probability - p) > 1e-6)
                fail_msg("%s: candidate %zu is %d with %.9g", name, i, (int)got[i].id, (double)got[i].probability);
        }
        free(logits);
        free(recent);
        free(got);
        free(bias);
    }
    print_message("%zu cases\n", json_array_size(cases));
    json_decref(cases);
}

/* ---- The definition: sort everything, then cut ---- */

typedef struct entry {
    double logit, p;
    int32_t id;
} entry;

static int by_logit(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void softmax(entry *e, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += exp(e[i].logit - e[0].logit);
    for (int i = 0; i < n; i++) e[i].p = exp(e[i].logit - e[0].logit) / sum;
}

static int define(entry *e, const mhla_sampling *s, const float *logits, int V, const int32_t *recent, int n) {
    for (int i = 0; i < V; i++) e[i] = (entry){(double)logits[i], 0.0, i};
    for (int i = 0; i < V; i++) {
        int seen = 0;
        for (int j = n > 64 ? n - 64 : 0; j < n; j++) seen += recent[j] == i;
        if (seen == 0) continue;
        const double r = s->repeat_penalty > 0.0 ? s->repeat_penalty : 1.0;
        e[i].logit = e[i].logit <= 0.0 ? e[i].logit * r : e[i].logit / r;
        e[i].logit -= seen * s->frequency_penalty + s->presence_penalty;
    }
    int count = V;
    if (s->order == MHLA_SAMPLING_HF)
        for (int i = 0; i < V; i++) e[i].logit /= s->temperature;
    qsort(e, (size_t)V, sizeof *e, by_logit);
    if (s->top_k > 0 && s->top_k < count) count = s->top_k;
    if (s->top_p > 0.0 && s->top_p < 1.0) {
        softmax(e, count);
        double sum = 0.0;
        int i = 0;
        while (i < count && !(sum >= s->top_p)) sum += e[i++].p;
        count = i;
    }
    while (s->min_p > 0.0 && count > 1 && e[count - 1].logit < e[0].logit + log(s->min_p)) count--;
    if (s->order == MHLA_SAMPLING_LLAMA)
        for (int i = 0; i < count; i++) e[i].logit /= s->temperature;
    softmax(e, count);
    return count;
}

static void against_definition(void **state) {
    (void)state;
    rng r = {7};
    static const int vocabularies[] = {1, 2, 3, 17, 100, 1023, 5000, 50257};
    static const double spreads[] = {0.0, 1e-6, 0.1, 1.0, 10.0, 300.0};
    static const double ps[] = {0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0};
    for (int turn = 0; turn < 400; turn++) {
        const int V = turn < 380 ? vocabularies[rng_below(&r, 7)] : 50257;
        const double spread = RNG_PICK(&r, spreads);
        float *logits = new_random(&r, V);
        for (int i = 0; i < V; i++) {
            const float x = logits[i];
            logits[i] = (float)spread * (turn % 3 ? x : x * x * x);
            if (turn % 5 == 0) logits[i] = roundf(logits[i]); /* ties */
            if (turn % 7 == 0 && i > 0 && rng_below(&r, 3) == 0) logits[i] = -INFINITY;
        }
        int32_t recent[100];
        const int n = rng_below(&r, 100);
        for (int i = 0; i < n; i++) recent[i] = rng_below(&r, V);
        mhla_sampling s = {.size = sizeof s, .temperature = 0.2 + 0.3 * rng_below(&r, 6)};
        s.order = rng_below(&r, 2) ? MHLA_SAMPLING_HF : MHLA_SAMPLING_LLAMA;
        if (rng_below(&r, 2)) s.top_k = 1 + rng_below(&r, 2 * V);
        if (rng_below(&r, 2)) s.top_p = RNG_PICK(&r, ps);
        if (rng_below(&r, 2)) s.min_p = RNG_PICK(&r, ps);
        if (rng_below(&r, 2)) {
            s.repeat_penalty = 1.3;
            s.presence_penalty = 0.5;
            s.frequency_penalty = -0.1;
        }
        entry *e = new_bytes(sizeof *e * (size_t)V);
        mhla_candidate *got = new_bytes(sizeof *got * (size_t)V);
        const int wanted = define(e, &s, logits, V, recent, n);
        int count;
        ASSERT_OK(mhla_sample_candidates(&s, logits, V, recent, n, got, &count));
        /* a sum that meets top_p to the last bit may end one token earlier or later */
        if (count != wanted) {
            const double border = e[count < wanted ? count : wanted].p;
            if (abs(count - wanted) > 1 || s.top_p == 0.0)
                fail_msg("turn %d: %d survive, expected %d (V %d, k %d, p %g, min %g, border %g)", turn, count, wanted,
                         V, s.top_k, s.top_p, s.min_p, border);
            free(logits);
            free(e);
            free(got);
            continue;
        }
        for (int i = 0; i < count; i++)
            if (got[i].id != e[i].id || fabs((double)got[i].probability - e[i].p) > 1e-6)
                fail_msg("turn %d: candidate %d is %d (%g), expected %d (%g)", turn, i, (int)got[i].id,
                         (double)got[i].probability, (int)e[i].id, e[i].p);
        /* a draw is one of them */
        for (uint64_t d = 0; d < 8; d++) {
            int32_t id = -1;
            ASSERT_OK(mhla_sample(&s, logits, V, recent, n, d, &id));
            int i = 0;
            while (i < count && got[i].id != id) i++;
            assert_true(i < count);
            assert_true(got[i].probability > 0.0F || spread >= 10.0);
        }
        free(logits);
        free(e);
        free(got);
    }
}

/* Chi-square of 20,000 draws against the probabilities, truncated and not; the same seed draws the same. */
static void draws_follow(void **state) {
    (void)state;
    rng r = {3};
    enum { V = 300, N = 20000 };
    float *logits = new_random(&r, V);
    for (int i = 0; i < V; i++) logits[i] *= 2.0F;
    const mhla_sampling kinds[] = {
        {.size = sizeof *kinds, .temperature = 1.0, .seed = 5},
        {.size = sizeof *kinds, .temperature = 0.7, .top_k = 20, .seed = 6},
        {.size = sizeof *kinds, .temperature = 1.5, .top_p = 0.8, .seed = 7, .order = MHLA_SAMPLING_HF},
        {.size = sizeof *kinds, .temperature = 0.3, .seed = 8},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        mhla_candidate got[V];
        int count, drawn[V] = {0};
        ASSERT_OK(mhla_sample_candidates(&kinds[k], logits, V, NULL, 0, got, &count));
        for (uint64_t d = 0; d < N; d++) {
            int32_t id, again;
            ASSERT_OK(mhla_sample(&kinds[k], logits, V, NULL, 0, d, &id));
            if (d < 10) {
                ASSERT_OK(mhla_sample(&kinds[k], logits, V, NULL, 0, d, &again));
                assert_int_equal(id, again);
            }
            drawn[id]++;
        }
        double chi = 0.0;
        for (int i = 0; i < count; i++) {
            const double e = (double)N * (double)got[i].probability;
            chi += (drawn[got[i].id] - e) * (drawn[got[i].id] - e) / (e > 1e-9 ? e : 1e-9);
        }
        /* mean count-1, deviation sqrt(2(count-1)); rare tokens widen it */
        if (chi > count + 6.0 * sqrt(2.0 * count) + 20.0) fail_msg("kind %zu: chi-square %g of %d", k, chi, count);
    }
    free(logits);
}

static void logprobs(void **state) {
    (void)state;
    enum { V = 1000 };
    rng r = {9};
    float *logits = new_random(&r, V);
    logits[17] = logits[900] = 3.0F;
    mhla_token_sampler s;
    ASSERT_OK(mhla_token_sampler_init(&s, V));
    mhla_candidate top[V];
    float own;
    ASSERT_OK(mhla_token_sampler_logprobs(&s, logits, 17, &own, V, top));
    double sum = 0.0, all = 0.0;
    for (int i = 0; i < V; i++) all += exp((double)logits[i]);
    for (int i = 0; i < V; i++) sum += exp((double)top[i].probability);
    assert_true(fabs(sum - 1.0) < 1e-5);
    assert_int_equal(top[0].id, 17);
    assert_int_equal(top[1].id, 900);
    assert_true(top[0].probability == own);
    assert_true(fabs((double)own - (3.0 - log(all))) < 1e-6);
    mhla_token_sampler_release(&s);
    free(logits);
}

/* Bias and penalties by hand: as OpenAI and llama.cpp define them, logit + bias - count * frequency - (count > 0) * presence,
 * over the last tokens. */
static void penalties_and_bias(void **state) {
    (void)state;
    const float logits[5] = {2.0F, 1.0F, 0.0F, -1.0F, 0.5F};
    const int32_t recent[6] = {4, 4, 0, 2, 0, 0};
    const mhla_bias bias[2] = {{3, 1.5F}, {1, -INFINITY}};
    const mhla_sampling s = {.size = sizeof s,
                             .temperature = 0.5,
                             .repeat_last = 4, /* the first two do not count */
                             .presence_penalty = 0.5,
                             .frequency_penalty = 0.25,
                             .bias = bias,
                             .biases = 2};
    /* 2 - 3/4 - 1/2; never; 0 - 1/4 - 1/2; -1 + 3/2; as it was */
    const double changed[5] = {0.75, -INFINITY, -0.75, 0.5, 0.5};
    double sum = 0.0;
    mhla_candidate got[5];
    int count = 0, seen[5] = {0};
    for (int i = 0; i < 5; i++) sum += exp(changed[i] / 0.5);
    ASSERT_OK(mhla_sample_candidates(&s, logits, 5, recent, 6, got, &count));
    for (int i = 0; i < count; i++) {
        seen[got[i].id] = 1;
        assert_true(fabs((double)got[i].probability - exp(changed[got[i].id] / 0.5) / sum) < 1e-6);
    }
    assert_true(seen[0] && seen[2] && seen[3] && seen[4]);
    assert_int_equal(got[0].id, 0);
    /* what is drawn has these probabilities: 20,000 draws, six standard deviations */
    int drawn[5] = {0};
    for (uint64_t d = 0; d < 20000; d++) {
        int32_t id;
        ASSERT_OK(mhla_sample(&s, logits, 5, recent, 6, d, &id));
        drawn[id]++;
    }
    assert_int_equal(drawn[1], 0);
    for (int i = 0; i < 5; i++) {
        const double p = exp(changed[i] / 0.5) / sum;
        assert_true(fabs(drawn[i] / 20000.0 - p) <= 6.0 * sqrt(p * (1.0 - p) / 20000.0));
    }
}

static void refusals(void **state) {
    (void)state;
    float logits[4] = {0.0F, 1.0F, 2.0F, 3.0F};
    const int32_t recent[1] = {1};
    mhla_candidate got[4];
    int count;
    int32_t id;
    mhla_sampling s = {.size = sizeof s, .temperature = 1.0};
#define TRY(status, text) ASSERT_FAILS(mhla_sample_candidates(&s, logits, 4, recent, 1, got, &count), status, text)
    s.temperature = NAN;
    TRY(MHLA_EINVAL, "temperature");
    s.temperature = 1.0;
    s.top_p = -0.5;
    TRY(MHLA_EINVAL, "top_p is -0.5");
    s.top_p = 2.0;
    TRY(MHLA_EINVAL, "top_p is 2: expected 0 to 1");
    s.top_p = 0.0;
    s.temperature = -1.0;
    TRY(MHLA_EINVAL, "temperature is -1");
    s.temperature = 1.0;
    s.presence_penalty = INFINITY;
    TRY(MHLA_EINVAL, "presence_penalty");
    s.presence_penalty = 0.0;
    s.min_p = 1.5;
    TRY(MHLA_EINVAL, "min_p is 1.5");
    s.min_p = 0.0;
    s.top_k = -1;
    TRY(MHLA_EINVAL, "top_k is -1");
    s.top_k = 0;
    const mhla_bias outside = {4, 1.0F}, wrong = {0, NAN}, never = {3, -INFINITY};
    s.biases = 1;
    TRY(MHLA_EINVAL, "bias");
    s.bias = &outside;
    TRY(MHLA_EINVAL, "token 4");
    s.bias = &wrong;
    TRY(MHLA_EINVAL, "token 0");
    s.bias = &never;
    for (uint64_t d = 0; d < 200; d++) {
        ASSERT_OK(mhla_sample(&s, logits, 4, recent, 1, d, &id));
        assert_true(id != 3);
    }
    s.temperature = 0.0;
    ASSERT_OK(mhla_sample(&s, logits, 4, recent, 1, 0, &id));
    assert_int_equal(id, 2);
    s.temperature = 1.0;
    s.biases = 0;
    s.top_k = 1; /* so many survive all the same */
    s.min_keep = 3;
    ASSERT_OK(mhla_sample_candidates(&s, logits, 4, recent, 1, got, &count));
    assert_int_equal(count, 3);
    s.top_k = s.min_keep = 0;
    logits[2] = NAN;
    TRY(MHLA_EDATA, "token 2 is");
    logits[2] = INFINITY;
    TRY(MHLA_EDATA, "token 2 is");
    for (int i = 0; i < 4; i++) logits[i] = -INFINITY;
    TRY(MHLA_EDATA, "no token is possible");
    ASSERT_FAILS(mhla_sample(&s, logits, 0, NULL, 0, 0, &id), MHLA_EINVAL, "vocabulary is 0");
    ASSERT_FAILS(mhla_sample(&s, NULL, 4, NULL, 0, 0, &id), MHLA_EINVAL, "logits");
    ASSERT_FAILS(mhla_sample(&s, logits, 4, NULL, 3, 0, &id), MHLA_EINVAL, "recent");
    s.size = 0;
    TRY(MHLA_EINVAL, "size");
#undef TRY
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases), cmocka_unit_test(against_definition), cmocka_unit_test(draws_follow),
        cmocka_unit_test(logprobs),     cmocka_unit_test(penalties_and_bias), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
