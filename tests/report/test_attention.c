/* One name and one colour for each attention, wherever it stands. */
#include "report/attention.h"
#include "report/chart.h"
#include "support.h"

static void names(void **state) {
    (void)state;
    assert_string_equal(mhla_attention_title("mhla"), "MHLA");
    assert_string_equal(mhla_attention_title("focused"), "Focused LA");
    assert_string_equal(mhla_attention_title("something"), "something");
    assert_string_equal(mhla_attention_title(""), "");
    assert_int_equal(mhla_attention_colour("mhla"), mhla_attention_colour("mhla-uniform"));
    assert_int_equal(mhla_attention_colour("mhlax"), -1);
    assert_int_equal(mhla_attention_colour(""), -1);
}

static void colours(void **state) {
    (void)state;
    static const char *const all[] = {"linear", "other", "mhla", "mhla-bare", NULL, "softmax", "linear-16", "linear"};
    enum { N = sizeof all / sizeof *all };
    int in_order[N], turned[N];
    const char *backwards[N];
    mhla_attention_colours(in_order, all, N);
    for (int i = 0; i < N; i++) backwards[i] = all[N - 1 - i];
    mhla_attention_colours(turned, backwards, N);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) assert_true(in_order[i] != in_order[k] && turned[i] != turned[k]);
    for (int i = 0; i < N; i++) { /* the same wherever it stands */
        const int colour = all[i] ? mhla_attention_colour(all[i]) : -1;
        if (colour < 0) continue;
        assert_int_equal(in_order[i] % MHLA_CHART_COLOURS, colour);
        assert_int_equal(turned[N - 1 - i] % MHLA_CHART_COLOURS, colour);
    }
    assert_true(in_order[1] < MHLA_CHART_COLOURS && in_order[4] < MHLA_CHART_COLOURS); /* no dashes: some are free */
    for (int i = 0; i < N; i++)
        if (i != 1 && i != 4)
            assert_true(in_order[i] % MHLA_CHART_COLOURS != in_order[1] &&
                        in_order[i] % MHLA_CHART_COLOURS != in_order[4]);
}

/* A variant has one dash in all colours, and no other variant has it. */
static void variants(void **state) {
    (void)state;
    static const char *const all[] = {"mhla",      "mhla-uniform", "linear",        "softmax",
                                      "mhla-bare", "linear-bare",  "gated_deltanet"};
    enum { N = sizeof all / sizeof *all };
    static const int dashes[N] = {0, 1, 0, 0, 2, 2, 0};
    int c[N];
    mhla_attention_colours(c, all, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c[i] % MHLA_CHART_COLOURS, mhla_attention_colour(all[i]));
        assert_int_equal(c[i] / MHLA_CHART_COLOURS, dashes[i]);
    }
}

/* Every attention that a model may have is known, and no two share a colour. */
static void each_its_colour(void **state) {
    (void)state;
    static const char *const all[] = {"mhla", "softmax", "linear", "focused", "inline", "mala",
                                      "rala", "gla",     "retnet", "mamba",   "mamba2", "gated_deltanet"};
    enum { N = sizeof all / sizeof *all };
    for (int i = 0; i < N; i++) {
        assert_in_range(mhla_attention_colour(all[i]), 0, MHLA_CHART_COLOURS - 2);
        for (int k = 0; k < i; k++) assert_true(mhla_attention_colour(all[i]) != mhla_attention_colour(all[k]));
    }
    assert_string_equal(mhla_attention_title("gated_deltanet"), "Gated DeltaNet");
}

static void one_attention(void **state) {
    (void)state;
    static const char *const same[] = {"linear", "linear-a", NULL, "linear-b"};
    int c[4];
    mhla_attention_colours(c, same, 4);
    assert_int_equal(c[0], mhla_attention_colour("linear"));
    for (int i = 0; i < 4; i++) {
        assert_true(c[i] < MHLA_CHART_COLOURS);
        for (int k = 0; k < i; k++) assert_true(c[i] != c[k]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(colours), cmocka_unit_test(variants),
                                       cmocka_unit_test(each_its_colour), cmocka_unit_test(one_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
