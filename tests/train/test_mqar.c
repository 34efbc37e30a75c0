/* Associative recall: the sequences are what the recipe says, distances follow its law, a seed always gives the same. */
#include "train/mqar.h"

#include "support.h"

enum { L = 128, D = 16, V = 512 };

static void sequences(void **state) {
    (void)state;
    int32_t ids[L], labels[L], again[L], more[L];
    for (uint64_t number = 0; number < 200; number++) {
        const mhla_mqar_shape s = {.vocabulary = V, .length = L, .pairs = D, .random_filler = number % 2 == 1};
        ASSERT_OK(mhla_mqar_make(ids, labels, &s, 7, number));
        int32_t value_of[V];
        for (int i = 0; i < V; i++) value_of[i] = -1;
        int values[V] = {0}, asked = 0;
        for (int i = 0; i < D; i++) {
            const int32_t key = ids[2 * i], value = ids[2 * i + 1];
            assert_in_range(key, 1, V / 2 - 1);
            assert_in_range(value, V / 2, V - 1);
            assert_int_equal(value_of[key], -1);
            assert_int_equal(values[value]++, 0);
            value_of[key] = value;
        }
        for (int t = 0; t < L; t++) {
            if (labels[t] < 0) {
                if (t >= 2 * D && !s.random_filler) assert_int_equal(ids[t], 0);
                continue;
            }
            assert_true(t >= 2 * D && t % 2 == 0);
            assert_int_equal(value_of[ids[t]], labels[t]);
            value_of[ids[t]] = -1; /* each key is asked for once */
            asked++;
        }
        assert_int_equal(asked, D);
        ASSERT_OK(mhla_mqar_make(again, more, &s, 7, number));
        assert_memory_equal(ids, again, sizeof ids);
        assert_memory_equal(labels, more, sizeof labels);
        ASSERT_OK(mhla_mqar_make(again, more, &s, 7, number + 1));
        assert_memory_not_equal(ids, again, sizeof ids);
    }
}

/* One pair: the slot of its query has probability proportional to i^(a-1). */
static void distances(void **state) {
    (void)state;
    const mhla_mqar_shape s = {.vocabulary = V, .length = 34, .pairs = 1, .power = 0.25};
    enum { SLOTS = 16, DRAWS = 20000 };
    int seen[SLOTS] = {0};
    double weights = 0.0;
    int32_t ids[34], labels[34];
    for (int i = 0; i < DRAWS; i++) {
        ASSERT_OK(mhla_mqar_make(ids, labels, &s, 1, (uint64_t)i));
        for (int t = 2; t < 34; t++) seen[(t - 2) / 2] += labels[t] >= 0;
    }
    for (int i = 0; i < SLOTS; i++) weights += pow(i + 1.0, -0.75);
    for (int i = 0; i < SLOTS; i++) {
        const double p = pow(i + 1.0, -0.75) / weights, deviation = sqrt(p * (1.0 - p) / DRAWS);
        assert_true(fabs((double)seen[i] / DRAWS - p) < 5.0 * deviation);
    }
}

static void bad_shapes(void **state) {
    (void)state;
    mhla_mqar_shape s = {.vocabulary = V, .length = 63, .pairs = 4};
    ASSERT_FAILS(mhla_mqar_check(&s), MHLA_EINVAL, "length is 63");
    s.length = 64;
    ASSERT_OK(mhla_mqar_check(&s));
    s.pairs = 17;
    ASSERT_FAILS(mhla_mqar_check(&s), MHLA_EINVAL, "pairs is 17");
    s.pairs = 16;
    s.vocabulary = 64;
    ASSERT_FAILS(mhla_mqar_check(&s), MHLA_EINVAL, "vocabulary is 64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences),
        cmocka_unit_test(distances),
        cmocka_unit_test(bad_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
