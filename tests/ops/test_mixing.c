/* The mixing matrix and the rotary table against their formulas, written here a second time from the coordinates. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mhla/mhla.h>

static const struct grid {
    int axes, blocks[3];
} grids[] = {{1, {2}},    {1, {7}},       {2, {2, 2}},    {2, {4, 4}},    {2, {1, 5}},
             {2, {3, 2}}, {3, {2, 2, 2}}, {3, {3, 5, 2}}, {3, {1, 1, 3}}, {3, {2, 1, 4}}};
enum { GRIDS = sizeof grids / sizeof *grids, MOST = 64 };

static double dist(const struct grid *g, int i, int j) {
    int ci[3], cj[3];
    for (int a = g->axes - 1; a >= 0; a--) {
        ci[a] = i % g->blocks[a], i /= g->blocks[a];
        cj[a] = j % g->blocks[a], j /= g->blocks[a];
    }
    double s = 0;
    for (int a = 0; a < g->axes; a++) s += (ci[a] - cj[a]) * (ci[a] - cj[a]);
    return sqrt(s);
}

static int count(const struct grid *g) {
    int M = 1;
    for (int a = 0; a < g->axes; a++) M *= g->blocks[a];
    return M;
}

/* The table of the README, by brute force over all pairs. */
static void expected(double *m, const struct grid *g, mhla_mix_init init, double param) {
    const int M = count(g);
    double dmax = 0;
    for (int i = 0; i < M * M; i++) dmax = fmax(dmax, dist(g, i / M, i % M));
    for (int i = 0; i < M; i++) {
        double rmax = 0;
        for (int j = 0; j < M; j++) rmax = fmax(rmax, dist(g, i, j));
        for (int j = 0; j < M; j++) {
            const double d = dist(g, i, j), r = d / dmax;
            const double all[] = {1 - d / rmax,
                                  1 - r,
                                  cos(acos(-1) / 4 * r),
                                  exp(-d / (param > 0 ? param : 3)),
                                  exp(-4.5 * r * r),
                                  d <= (param > 0 ? param : 1.5),
                                  1,
                                  j <= i};
            m[i * M + j] = all[init];
        }
    }
    const int rows = init == MHLA_MIX_PAPER || init == MHLA_MIX_UNIFORM || init == MHLA_MIX_CAUSAL;
    if (init == MHLA_MIX_GAUSSIAN) return;
    for (int i = 0; i < M; i++) {
        double s = 0;
        for (int j = 0; j < M; j++) s += rows ? m[i * M + j] : m[j * M + i];
        for (int j = 0; j < M; j++) m[rows ? i * M + j : j * M + i] /= s;
    }
}

static void fill_matches_formulas(void **state) {
    (void)state;
    double want[MOST * MOST];
    float got[MOST * MOST + 1];
    for (int n = 0; n < GRIDS; n++)
        for (int init = 0; mhla_mix_name((mhla_mix_init)init); init++)
            for (int p = 0; p < 3; p++) {
                const double param = (double[]){0, 1, 2.3}[p]; /* 1: a distance that occurs */
                const int M = count(&grids[n]);
                for (int i = 0; i <= M * M; i++) got[i] = NAN;
                assert_int_equal(mhla_mix_fill(got, (mhla_mix_init)init, grids[n].axes, grids[n].blocks, param), 0);
                expected(want, &grids[n], (mhla_mix_init)init, param);
                for (int i = 0; i < M * M; i++)
                    if (!(fabs((double)got[i] - want[i]) <= 1e-7))
                        fail_msg("%s, grid %d, element %d: %g, not %g", mhla_mix_name((mhla_mix_init)init), n, i,
                                 (double)got[i], want[i]);
                assert_true(isnan(got[M * M]));
            }
}

/* ---- Rectangles: the README's formulas, from coordinates in an extent of 1 ---- */

static const struct pair {
    struct grid queries, keys;
} pairs[] = {{{1, {4}}, {1, {2}}},       {{1, {2}}, {1, {4}}},       {{1, {1}}, {1, {2}}},
             {{1, {5}}, {1, {1}}},       {{1, {7}}, {1, {3}}},       {{2, {2, 3}}, {2, {4, 3}}},
             {{2, {1, 1}}, {2, {2, 2}}}, {{2, {4, 1}}, {2, {1, 4}}}, {{3, {2, 3, 1}}, {3, {3, 2, 2}}}};

static double least(double a, double b) { return a < b ? a : b; }

static void expected_cross(double *m, const struct pair *p, mhla_mix_init init, double param) {
    const int Mq = count(&p->queries), Mk = count(&p->keys), axes = p->queries.axes;
    double dmax = 0;
    for (int a = 0; a < axes; a++) {
        const double n = p->queries.blocks[a], k = p->keys.blocks[a];
        dmax += pow(least(n, k) * (1 - 1 / fmax(n, k)), 2);
    }
    dmax = sqrt(dmax);
    for (int i = 0; i < Mq; i++)
        for (int j = 0; j < Mk; j++) {
            double d = 0, far = 0;
            for (int a = axes - 1, x = i, y = j; a >= 0; a--) {
                const int n = p->queries.blocks[a], k = p->keys.blocks[a];
                const double unit = least(n, k), end = 0.5 / fmax(n, k), at = (x % n + 0.5) / n;
                d += pow(unit * (at - (y % k + 0.5) / k), 2);
                far += pow(unit * fmax(at - end, 1 - end - at), 2);
                x /= n, y /= k;
            }
            d = sqrt(d), far = sqrt(far);
            const double r = d / dmax, paper = fabs(1 - d / far) < 1e-12 ? 0 : 1 - d / far;
            const double all[] = {paper,
                                  1 - r,
                                  cos(acos(-1) / 4 * r),
                                  exp(-d / (param > 0 ? param : 3)),
                                  exp(-4.5 * r * r),
                                  d <= (param > 0 ? param : 1.5),
                                  1};
            m[i * Mk + j] = all[init];
        }
    if (init == MHLA_MIX_GAUSSIAN) return;
    const int rows = init == MHLA_MIX_PAPER || init == MHLA_MIX_UNIFORM;
    for (int i = 0; i < (rows ? Mq : Mk); i++) {
        const int length = rows ? Mk : Mq, first = rows ? i * Mk : i, step = rows ? 1 : Mk;
        double sum = 0;
        for (int e = 0; e < length; e++) sum += m[first + e * step];
        for (int e = 0; e < length; e++) m[first + e * step] = sum > 0 ? m[first + e * step] / sum : 1.0 / length;
    }
}

static void fill_of_rectangles(void **state) {
    (void)state;
    double want[MOST * MOST];
    float got[MOST * MOST + 1];
    for (size_t n = 0; n < sizeof pairs / sizeof *pairs; n++)
        for (int init = 0; init < MHLA_MIX_CAUSAL; init++)
            for (int v = 0; v < 3; v++) {
                const double param = (double[]){0, 0.3, 2.3}[v];
                const struct pair *p = &pairs[n];
                const int size = count(&p->queries) * count(&p->keys);
                for (int i = 0; i <= size; i++) got[i] = NAN;
                assert_int_equal(mhla_mix_fill_cross(got, (mhla_mix_init)init, p->queries.axes, p->queries.blocks,
                                                     p->keys.blocks, param),
                                 0);
                expected_cross(want, p, (mhla_mix_init)init, param);
                for (int i = 0; i < size; i++)
                    if (!(fabs((double)got[i] - want[i]) <= 1e-7))
                        fail_msg("%s, pair %d, param %g, element %d: %g, not %g", mhla_mix_name((mhla_mix_init)init),
                                 (int)n, param, i, (double)got[i], want[i]);
                assert_true(isnan(got[size]));
            }
}

/* By hand: queries in 4 blocks have their centres at 1/8, 3/8, .., keys in 2 at 1/4 and 3/4; the unit is 1/2. */
static void known_rectangles(void **state) {
    (void)state;
    float m[8];
    const int four = 4, two = 2, one = 1;
    assert_int_equal(mhla_mix_fill_cross(m, MHLA_MIX_PAPER, 1, &four, &two, 0), 0);
    assert_float_equal(m[0], 5.0 / 6, 1e-6); /* distances 1/4 and 5/4 of at most 3/2: 5/6 and 1/6 */
    assert_float_equal(m[1], 1.0 / 6, 1e-6);
    assert_float_equal(m[2], 3.0 / 4, 1e-6); /* 1/4 and 3/4 of at most 1: 3/4 and 1/4 */
    assert_true(m[6] == m[1] && m[7] == m[0]);
    assert_int_equal(mhla_mix_fill_cross(m, MHLA_MIX_PAPER, 1, &one, &two, 0), 0); /* both as far as can be */
    assert_true(m[0] == 0.5f && m[1] == 0.5f);
}

/* Numbers taken from a hand calculation, so that the formulas above are not their own judge. */
static void fill_known_values(void **state) {
    (void)state;
    float m[16];
    const int two = 2, line[] = {3}, square[] = {2, 2}, causal[] = {4};
    assert_int_equal(mhla_mix_fill(m, MHLA_MIX_PAPER, 1, &two, 0), 0);
    assert_true(m[0] == 1 && m[1] == 0 && m[2] == 0 && m[3] == 1);
    assert_int_equal(mhla_mix_fill(m, MHLA_MIX_PAPER, 1, line, 0), 0); /* middle row: nothing but itself */
    assert_float_equal(m[0], 2.0 / 3, 1e-6);
    assert_float_equal(m[1], 1.0 / 3, 1e-6);
    assert_true(m[2] == 0 && m[3] == 0 && m[4] == 1 && m[5] == 0);
    assert_int_equal(mhla_mix_fill(m, MHLA_MIX_RELEASED_LINEAR, 2, square, 0), 0);
    assert_float_equal(m[0], 0.6306019, 1e-6); /* 1 / (1 + 2 (1 - 1/sqrt 2)) */
    assert_float_equal(m[1], 0.1846990, 1e-6);
    assert_true(m[3] == 0);
    assert_int_equal(mhla_mix_fill(m, MHLA_MIX_CAUSAL, 1, causal, 0), 0);
    assert_true(m[0] == 1 && m[1] == 0 && m[4] == 0.5f && m[5] == 0.5f && m[6] == 0 && m[12] == 0.25f);
}

static void one_block_is_one(void **state) {
    (void)state;
    const int ones[] = {1, 1, 1};
    for (int init = 0; mhla_mix_name((mhla_mix_init)init); init++)
        for (int axes = 1; axes <= 3; axes++) {
            float m[2] = {NAN, NAN};
            assert_int_equal(mhla_mix_fill(m, (mhla_mix_init)init, axes, ones, 0), 0);
            assert_true(m[0] == 1 && isnan(m[1]));
        }
}

static void names(void **state) {
    (void)state;
    int n = 0;
    for (; mhla_mix_name((mhla_mix_init)n); n++) {
        mhla_mix_init back = (mhla_mix_init)-1;
        assert_int_equal(mhla_mix_from_name(&back, mhla_mix_name((mhla_mix_init)n)), 0);
        assert_int_equal(back, n);
    }
    assert_int_equal(n, 8);
    assert_string_equal(mhla_mix_name(MHLA_MIX_RELEASED_LINEAR), "released-linear");
    assert_null(mhla_mix_name((mhla_mix_init)-1));
    mhla_mix_init back = MHLA_MIX_COS;
    assert_int_equal(mhla_mix_from_name(&back, "linear"), MHLA_EINVAL);
    assert_int_equal(back, MHLA_MIX_COS);
    assert_non_null(strstr(mhla_message(), "linear"));
    assert_int_equal(mhla_mix_from_name(&back, NULL), MHLA_EINVAL);
    assert_int_equal(mhla_mix_from_name(NULL, "paper"), MHLA_EINVAL);
}

static void clip(void **state) {
    (void)state;
    float m[] = {-1, 0.5f, 2, 0.25f, 0.25f, 0};
    assert_int_equal(mhla_mix_clip(m, 2, 3, 1e-6f, 1, 0, 0), 0);
    assert_true(m[0] == 1e-6f && m[1] == 0.5f && m[2] == 1 && m[3] == 0.25f && m[5] == 1e-6f);
    float r[] = {-1, 3, 1, 0.5f, 0.25f, 0.25f};
    assert_int_equal(mhla_mix_clip(r, 2, 3, 0, 1, 1, 0), 0);
    assert_true(r[0] == 0 && r[1] == 0.5f && r[2] == 0.5f && r[3] == 0.5f && r[4] == 0.25f);
    float zero[] = {-1, 0};
    assert_int_equal(mhla_mix_clip(zero, 1, 2, 0, 1, 1, 0), 0);
    assert_true(zero[0] == 0 && zero[1] == 0);
    float bad[] = {NAN, 2, 3, 1}; /* a NaN shows in its row, and in no other */
    assert_int_equal(mhla_mix_clip(bad, 2, 2, 0, 1, 0, 0), 0);
    assert_true(isnan(bad[0]) && bad[1] == 1 && bad[2] == 1);
}

static void clip_causal(void **state) {
    (void)state;
    float m[] = {5, NAN, -3, 1, 9, 8, 0, 0}; /* two heads of 2 x 2 */
    assert_int_equal(mhla_mix_clip(m, 4, 2, 0.5f, 1, 1, 1), 0);
    assert_true(m[0] == 1 && isnan(m[1]));
    assert_float_equal(m[2], 1.0 / 3, 1e-7);
    assert_float_equal(m[3], 2.0 / 3, 1e-7);
    assert_true(m[4] == 1 && m[5] == 8 && m[6] == 0.5f && m[7] == 0.5f);
}

static void rope_one_axis(void **state) {
    (void)state;
    enum { P = 1000, D = 64 };
    float *c = malloc(sizeof(float) * P * D / 2), *s = malloc(sizeof(float) * P * D / 2);
    const int grid = P, dims = D;
    assert_int_equal(mhla_rope_table(c, s, 1, &grid, &dims, 10000), 0);
    for (int p = 0; p < P; p++)
        for (int j = 0; j < D / 2; j++) {
            const double angle = p * exp(-2.0 * j / D * log(10000.0));
            assert_true(fabs((double)c[p * D / 2 + j] - cos(angle)) < 1e-7);
            assert_true(fabs((double)s[p * D / 2 + j] - sin(angle)) < 1e-7);
        }
    free(c);
    free(s);
}

static void rope_three_axes(void **state) {
    (void)state;
    const int grid[] = {3, 2, 5}, dims[] = {8, 0, 6};
    float c[30 * 7 + 1], s[30 * 7 + 1];
    c[30 * 7] = s[30 * 7] = NAN;
    assert_int_equal(mhla_rope_table(c, s, 3, grid, dims, 100), 0);
    for (int t = 0; t < 30; t++)
        for (int j = 0; j < 7; j++) {
            const int axis_0 = j < 4, at = axis_0 ? t / 10 : t % 5, pair = axis_0 ? j : j - 4;
            const double angle = at * pow(100, -2.0 * pair / (axis_0 ? 8 : 6));
            assert_true(fabs((double)c[t * 7 + j] - cos(angle)) < 1e-7);
            assert_true(fabs((double)s[t * 7 + j] - sin(angle)) < 1e-7);
        }
    assert_true(isnan(c[30 * 7]) && isnan(s[30 * 7]));
}

#define REFUSED(call, word)                                                                                            \
    do {                                                                                                               \
        assert_int_equal(call, MHLA_EINVAL);                                                                           \
        if (!strstr(mhla_message(), word)) fail_msg("\"%s\" does not name %s", mhla_message(), word);                  \
        assert_true(isnan(m[0]));                                                                                      \
    } while (0)

static void bad_input(void **state) {
    (void)state;
    float m[4] = {NAN, 0, 0, 0}, other[4];
    const int two[] = {2, 1, 1}, zero[] = {2, 0, 1}, huge[] = {2147483647, 2147483647, 2147483647}, odd[] = {3, 2, 2};
    REFUSED(mhla_mix_fill(NULL, MHLA_MIX_PAPER, 1, two, 0), "mix");
    REFUSED(mhla_mix_fill(m, (mhla_mix_init)8, 1, two, 0), "init is 8");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_PAPER, 0, two, 0), "axes is 0");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_PAPER, 4, two, 0), "axes is 4");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_PAPER, 1, NULL, 0), "blocks");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_PAPER, 2, zero, 0), "blocks[1] is 0");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_PAPER, 3, huge, 0), "blocks");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_EXP, 1, two, -1), "param is -1");
    REFUSED(mhla_mix_fill(m, MHLA_MIX_EXP, 1, two, NAN), "param");
    REFUSED(mhla_mix_fill_cross(m, MHLA_MIX_PAPER, 1, two, NULL, 0), "key_blocks is NULL");
    REFUSED(mhla_mix_fill_cross(m, MHLA_MIX_PAPER, 2, two, zero, 0), "key_blocks[1] is 0");
    REFUSED(mhla_mix_fill_cross(m, MHLA_MIX_PAPER, 3, two, huge, 0), "key_blocks multiply");
    REFUSED(mhla_mix_fill_cross(m, MHLA_MIX_CAUSAL, 1, two, odd, 0), "a causal matrix is square");
    REFUSED(mhla_mix_clip(NULL, 1, 1, 0, 1, 0, 0), "mix");
    REFUSED(mhla_mix_clip(m, 0, 1, 0, 1, 0, 0), "rows is 0");
    REFUSED(mhla_mix_clip(m, 1, -1, 0, 1, 0, 0), "cols is -1");
    REFUSED(mhla_mix_clip(m, INT64_MAX / 2, 3, 0, 1, 0, 0), "too many");
    REFUSED(mhla_mix_clip(m, 1, 1, 1, 0, 0, 0), "low is 1");
    REFUSED(mhla_mix_clip(m, 1, 1, NAN, 1, 0, 0), "low");
    REFUSED(mhla_rope_table(NULL, m, 1, two, two, 1e4), "cos");
    REFUSED(mhla_rope_table(m, NULL, 1, two, two, 1e4), "sin");
    REFUSED(mhla_rope_table(m, other, 0, two, two, 1e4), "axes is 0");
    REFUSED(mhla_rope_table(m, other, 1, NULL, two, 1e4), "grid");
    REFUSED(mhla_rope_table(m, other, 1, two, NULL, 1e4), "dims");
    REFUSED(mhla_rope_table(m, other, 2, zero, two, 1e4), "grid[1] is 0");
    REFUSED(mhla_rope_table(m, other, 1, two, odd, 1e4), "dims[0] is 3");
    REFUSED(mhla_rope_table(m, other, 1, two, zero + 1, 1e4), "dims sum to 0");
    REFUSED(mhla_rope_table(m, other, 3, huge, two, 1e4), "dims[1] is 1");
    REFUSED(mhla_rope_table(m, other, 3, huge, (const int[]){2, 2, 2}, 1e4), "grid");
    REFUSED(mhla_rope_table(m, other, 1, two, two, 0), "base is 0");
    REFUSED(mhla_rope_table(m, other, 1, two, two, NAN), "base");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill_matches_formulas),
        cmocka_unit_test(fill_known_values),
        cmocka_unit_test(fill_of_rectangles),
        cmocka_unit_test(known_rectangles),
        cmocka_unit_test(one_block_is_one),
        cmocka_unit_test(names),
        cmocka_unit_test(clip),
        cmocka_unit_test(clip_causal),
        cmocka_unit_test(rope_one_axis),
        cmocka_unit_test(rope_three_axes),
        cmocka_unit_test(bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
