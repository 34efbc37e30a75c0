/* Attention as a matrix: for every kind of attention A v is what the operator gives, alone and inside models; ranks,
 * effective ranks and entropies of matrices whose values are known. */
#include "support.h"

#include "analysis/matrix.h"
#include "lm_case.h"
#include "models/denoisers/dit.h"
#include "models/language/lm.h"
#include "models/model.h"
#include "models/vision/deit.h"
#include "ops/op.h"

/* ---- A v = o ---- */

/* The largest difference of A v from o, over the largest o, for all samples and heads. */
static double worst(const mhla_attended *a) {
    const mhla_call *c = a->call;
    const mhla_plan_desc *d = &a->plan->d;
    const int64_t T = c->tokens, V = d->value_dim;
    double error = 0.0, most = 0.0, *A = new_bytes((size_t)(T * T) * sizeof *A);
    for (int64_t b = 0; b < c->batch; b++)
        for (int h = 0; h < d->heads; h++) {
            ASSERT_OK(mhla_matrix_form(A, a, b, h, NULL, T, 1));
            const int g = h / (d->heads / d->kv_heads);
            for (int64_t t = 0; t < T; t++)
                for (int64_t j = 0; j < V; j++) {
                    double sum = 0.0;
                    for (int64_t u = 0; u < T; u++)
                        sum += A[t * T + u] * (double)a->v[b * c->v.batch + u * c->v.token + g * c->v.head + j];
                    const double o = (double)a->o[b * c->o.batch + t * c->o.token + h * c->o.head + j];
                    error = fmax(error, fabs(sum - o));
                    most = fmax(most, fabs(o));
                }
        }
    free(A);
    assert_true(most > 0.0);
    return error / most;
}

/* One layer of random numbers with this plan. */
static void check_plan(mhla_plan_desc d, int64_t T, uint64_t seed) {
    rng r = {seed};
    mhla_plan *plan;
    d.size = sizeof d;
    d.heads = 2;
    d.key_dim = 8;
    d.value_dim = 5;
    ASSERT_OK(mhla_plan_create(&plan, &d));
    const int64_t B = 2, H = 2, K = 8, V = 5, M = mhla_plan_blocks(plan);
    float *q = new_random(&r, B * T * H * K), *k = new_random(&r, B * T * H * K), *v = new_random(&r, B * T * H * V),
          *o = new_poisoned(B * T * H * V), *mix = new_random(&r, M * M + 1), *focus = new_random(&r, H * K),
          *table = new_random(&r, 2 * T * K / 2);
    for (int64_t i = 0; i < M * M; i++) mix[i] = 0.6f + 0.4f * mix[i];
    for (int64_t i = 0; i < T * K / 2; i++) { /* angles */
        const float angle = 3.0f * table[i];
        table[i] = cosf(angle);
        table[T * K / 2 + i] = sinf(angle);
    }
    const int decays = d.kind == MHLA_KIND_GLA || d.kind == MHLA_KIND_SIMPLE_GLA || d.kind == MHLA_KIND_GATED_DELTA;
    const int64_t G = decays && d.key_heads ? d.key_heads : H;
    float *decay = new_random(&r, B * T * H * K), *beta = new_random(&r, B * T * H);
    for (int64_t i = 0; i < B * T * H * K; i++) decay[i] = i % 17 == 5 ? -INFINITY : -2.0f * fabsf(decay[i]);
    const int mixes = d.kind == MHLA_KIND_BIDIRECTIONAL || d.kind == MHLA_KIND_CAUSAL;
    const mhla_call call = {.size = sizeof call,
                            .batch = B,
                            .tokens = T,
                            .q = {T * G * K, G * K, K},
                            .k = {T * G * K, G * K, K},
                            .v = {T * H * V, H * V, V},
                            .o = {T * H * V, H * V, V},
                            .rope_cos = d.rope ? table : NULL,
                            .rope_sin = d.rope ? table + T * K / 2 : NULL,
                            .rope_rows = d.rope ? T : 0,
                            .focus = d.kind == MHLA_KIND_FOCUSED ? focus : NULL,
                            .decay = decays ? decay : NULL,
                            .beta = d.kind == MHLA_KIND_GATED_DELTA ? beta : NULL};
    ASSERT_OK(mhla_forward(plan, &call, o, q, k, v, mixes ? mix : NULL, NULL));
    const mhla_param param = {.name = "mix", .data = mix, .count = M * M};
    const mhla_attended a = {.plan = plan, .call = &call, .mix = mixes ? &param : NULL, .q = q, .k = k, .v = v, .o = o};
    ASSERT_OK(mhla_matrix_check(&a));
    const double error = worst(&a);
    if (error > 1e-5) fail_msg("%s, kind %d: A v is off by %g", mhla_matrix_name(plan), (int)d.kind, error);
    /* a few rows are those of the whole */
    double *A = new_bytes((size_t)(T * T) * sizeof *A), *some = new_bytes((size_t)(2 * T) * sizeof *some);
    const int64_t rows[2] = {1, T - 1};
    ASSERT_OK(mhla_matrix_form(A, &a, 1, 1, NULL, T, 1));
    ASSERT_OK(mhla_matrix_form(some, &a, 1, 1, rows, 2, 1));
    for (int i = 0; i < 2; i++) assert_memory_equal(some + i * T, A + rows[i] * T, (size_t)T * sizeof *A);
    void *all[] = {q, k, v, o, mix, focus, table, A, some, decay, beta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    mhla_plan_free(plan);
}

static void operators(void **state) {
    (void)state;
    const mhla_plan_desc even = {.axes = 2, .grid = {6, 4}, .blocks = {2, 2}, .feature_eps = 1e-6f, .den_eps = 1e-6f};
    mhla_plan_desc d = even;
    check_plan(d, 24, 1);
    d.denominator = MHLA_DEN_RELEASED;
    check_plan(d, 24, 2);
    d.denominator = MHLA_DEN_NONE;
    d.rope = MHLA_ROPE_INTERLEAVED;
    check_plan(d, 24, 3);
    d = even;
    d.grid[0] = 5; /* blocks of different sizes */
    d.feature = MHLA_FEATURE_ELU;
    d.rope = MHLA_ROPE_HALF;
    check_plan(d, 20, 4);
    d.axes = 3; /* a clip */
    d.grid[0] = 3, d.grid[1] = 2, d.grid[2] = 5;
    d.blocks[0] = d.blocks[1] = d.blocks[2] = 2;
    d.denominator = MHLA_DEN_NONE;
    check_plan(d, 30, 4);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_LINEAR, .den_eps = 1e-6f}, 11, 5);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_CAUSAL, .denominator = MHLA_DEN_NONE, .chunk = 4, .chunks = 3}, 11,
               6);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_CAUSAL,
                                .chunk = 4,
                                .chunks = 3,
                                .rope = MHLA_ROPE_HALF,
                                .feature_eps = 1e-3f,
                                .den_eps = 1e-6f},
               12, 7);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_CAUSAL,
                                .chunk = 2,
                                .chunks = 3,
                                .beyond = MHLA_BEYOND_CLAMP,
                                .denominator = MHLA_DEN_NONE},
               13, 8);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_LINEAR_CAUSAL, .feature_eps = 1e-3f, .den_eps = 1e-6f}, 9, 9);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_SOFTMAX}, 10, 10);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_SOFTMAX, .causal = 1, .window = 4, .rope = MHLA_ROPE_HALF}, 10, 11);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_FOCUSED}, 13, 12);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_FOCUSED, .focus_power = 2}, 13, 13);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_INLINE}, 13, 14);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_MALA, .rope = MHLA_ROPE_INTERLEAVED}, 13, 15);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_RALA, .rope = MHLA_ROPE_INTERLEAVED}, 13, 16);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_GLA}, 19, 17);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_SIMPLE_GLA, .scale = 1.0f, .key_heads = 1}, 19, 18);
    check_plan((mhla_plan_desc){.kind = MHLA_KIND_GATED_DELTA, .key_heads = 1, .qk_l2norm = 1}, 19, 19);
}

typedef struct counted {
    int layers;
    double error;
} counted;

static void count(void *user, const mhla_attended *a) {
    counted *c = user;
    assert_int_equal(a->index, c->layers++);
    ASSERT_OK(mhla_matrix_check(a));
    c->error = fmax(c->error, worst(a));
}

static mhla_tape *watched(counted *c) {
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, single_thread()));
    mhla_tape_watch(t, count, c);
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    return t;
}

/* LePE is added to attention in DeiT and DiT: what is seen is without it. */
static void check_deit(const char *attention, const char *structure, const char *more) {
    char text[2][40];
    snprintf(text[0], sizeof text[0], "attention=%s", attention);
    snprintf(text[1], sizeof text[1], "structure=%s", structure);
    const char *settings[] = {text[0],     text[1],   "image=16,16", "patch=2",    more,
                              "classes=3", "heads=2", "dim=32",      "padding=0,0"};
    mhla_model *m;
    counted c = {0};
    rng r = {7};
    ASSERT_OK(mhla_model_create(&m, "deit_nano", settings, 9, 5));
    mhla_tape *t = watched(&c);
    const mhla_deit_config *k = mhla_deit_config_of(((mhla_deit *)m->net));
    float *x = new_random(&r, 2 * k->channels * 256);
    mhla_deit_forward(t, ((mhla_deit *)m->net), &(mhla_network_run){0},
                      mhla_nn_input(t, x, MHLA_SHAPE(2, k->channels, 16, 16)));
    ASSERT_OK(mhla_tape_status(t));
    assert_int_equal(c.layers, k->depth);
    if (c.error > 1e-5) fail_msg("%s, %s: A v is off by %g", attention, structure, c.error);
    mhla_tape_free(t);
    mhla_model_free(m);
    free(x);
}

static void classifiers(void **state) {
    (void)state;
    static const char *const kinds[] = {"mhla", "linear", "softmax", "focused", "inline", "mala", "rala"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) check_deit(kinds[i], "equal", "depth=2");
    check_deit("mhla", "released", "depth=2");
    check_deit("softmax", "released", "class_token=true");
    check_deit("mhla", "equal", "class_token=true"); /* a block of its own */
}

static void generators(void **state) {
    (void)state;
    const char *settings[] = {"image=16,16", "channels=1", "patch=2", "attention=mhla"};
    mhla_model *m;
    counted c = {0};
    rng r = {8};
    ASSERT_OK(mhla_model_create(&m, "dit_micro", settings, 4, 5));
    mhla_tape *t = watched(&c);
    float *x = new_random(&r, 256);
    mhla_frame_forward(t, ((mhla_frame *)m->net), &(mhla_network_run){0}, mhla_nn_input(t, x, MHLA_SHAPE(1, 1, 16, 16)),
                       (float[]){300.0f}, (int32_t[]){0});
    ASSERT_OK(mhla_tape_status(t));
    assert_int_equal(c.layers, ((const mhla_frame *)m->net)->config.depth);
    assert_true(c.error < 1e-5);
    mhla_tape_free(t);
    mhla_model_free(m);
    free(x);
}

static void decoders(void **state) {
    (void)state;
    mhla_model *m = new_lm(&(lm_case){.layers = "mslw", .C = 4, .M = 6}, 3);
    counted c = {0};
    int32_t ids[22];
    for (int i = 0; i < 22; i++) ids[i] = i * 5 % VOCABULARY;
    mhla_tape *t = watched(&c);
    mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids, 1, 22);
    ASSERT_OK(mhla_tape_status(t));
    assert_int_equal(c.layers, 4);
    assert_true(c.error < 1e-5);
    mhla_tape_free(t);
    mhla_model_free(m);
}

/* What has no matrix is told. */
static void without_matrix(void **state) {
    (void)state;
    mhla_plan plan = {.d = {.kind = (mhla_kind)99}};
    mhla_call call = {.tokens = 4, .kv_tokens = 4};
    const mhla_attended a = {.index = 3, .plan = &plan, .call = &call};
    assert_int_equal(mhla_matrix_check(&a), MHLA_ENOTSUP);
    assert_non_null(strstr(mhla_message(), "attention 3: its kind (99) has no explicit matrix"));
    plan.d.kind = MHLA_KIND_SOFTMAX;
    ASSERT_OK(mhla_matrix_check(&a));
    call.kv_tokens = 5;
    assert_int_equal(mhla_matrix_check(&a), MHLA_ENOTSUP);
    call.kv_tokens = 4;
    call.cu_seqlens = (const int64_t[]){0, 4};
    assert_int_equal(mhla_matrix_check(&a), MHLA_ENOTSUP);
}

/* ---- Numbers of known matrices ---- */

static void check_spectrum(const double *A, int64_t rows, int64_t T, int64_t rank, double effective) {
    double *copy = new_bytes((size_t)(rows * T) * sizeof *copy), found;
    int64_t count;
    memcpy(copy, A, (size_t)(rows * T) * sizeof *copy);
    ASSERT_OK(mhla_spectrum(&count, &found, NULL, copy, rows, T));
    assert_int_equal(count, rank);
    if (effective > 0.0) assert_true(fabs(found - effective) < 1e-9 * effective);
    free(copy);
}

static void spectra(void **state) {
    (void)state;
    enum { T = 40 };
    static double A[T * T];
    rng r = {2};
    check_spectrum(A, T, T, 0, 0.0);
    for (int i = 0; i < T; i++) A[i * T + i] = 1.0; /* identity: all values alike */
    check_spectrum(A, T, T, T, T);
    for (int i = 0; i < T * T; i++) A[i] = 1.0 / T; /* uniform attention */
    check_spectrum(A, T, T, 1, 1.0);
    memset(A, 0, sizeof A);
    A[0] = 3.0; /* values 3 and 1: exp of -(.75 ln .75 + .25 ln .25) */
    A[T + 1] = -1.0;
    check_spectrum(A, T, T, 2, exp(-0.75 * log(0.75) - 0.25 * log(0.25)));
    memset(A, 0, sizeof A);
    for (int k = 0; k < 3; k++) {
        double x[T], y[T];
        for (int i = 0; i < T; i++) x[i] = (double)rng_signed(&r), y[i] = (double)rng_signed(&r);
        for (int i = 0; i < T * T; i++) A[i] += x[i / T] * y[i % T];
    }
    check_spectrum(A, T, T, 3, 0.0);
    check_spectrum(A, 7, T, 3, 0.0); /* some rows, wide and tall */
    check_spectrum(A, 2, T, 2, 0.0);
    for (int i = 0; i < T; i++) /* its first columns */
        memmove(A + (size_t)i * 7, A + (size_t)i * T, 7 * sizeof *A);
    check_spectrum(A, T, 7, 3, 0.0);
    A[5] = NAN;
    int64_t rank;
    double effective;
    assert_int_equal(mhla_spectrum(&rank, &effective, NULL, A, T, T), MHLA_ERANGE);
    assert_non_null(strstr(mhla_message(), "row 0, column 5"));
}

static void rows(void **state) {
    (void)state;
    enum { T = 9 };
    double A[T * T];
    mhla_place_of place[T];
    mhla_row_measures m;
    for (int t = 0; t < T; t++) /* a block of each */
        place[t] = (mhla_place_of){{t / 3, t % 3}, {t / 3, t % 3}};
    for (int i = 0; i < T * T; i++) A[i] = 0.25; /* rows need not sum to 1 */
    mhla_rows_measure(&m, A, NULL, T, T, place);
    assert_true(fabs(m.entropy - log(T)) < 1e-12 && m.clipped == 0.0 && m.dead == 0.0);
    assert_true(fabs(m.own - 1.0 / 9) < 1e-12); /* corners see 3 others near, sides 5, the middle 8 */
    assert_true(fabs(m.near - (4 * 3 + 4 * 5 + 8) / 81.0) < 1e-12);
    assert_true(fabs(m.own + m.near + m.far - 1.0) < 1e-12);
    for (int i = 0; i < T * T; i++) A[i] = i % (T + 1) == 0 ? 1.0 : 0.0;
    mhla_rows_measure(&m, A, NULL, T, T, place);
    assert_true(m.entropy == 0.0 && m.own == 1.0 && m.distance == 0.0);
    /* one row of 3, 1 and -1: a fifth is clipped; the other is dead */
    double B[2 * T] = {3.0, 1.0, -1.0};
    mhla_rows_measure(&m, B, (const int64_t[]){0, 8}, 2, T, place);
    assert_true(fabs(m.entropy + 0.75 * log(0.75) + 0.25 * log(0.25)) < 1e-12);
    assert_true(fabs(m.clipped - 0.1) < 1e-12 && m.dead == 0.5);
    assert_true(fabs(m.own - 0.75) < 1e-12 && fabs(m.near - 0.25) < 1e-12);
    assert_true(fabs(m.distance - 0.25) < 1e-12);
    place[0].block[0] = -1; /* a class token counts for no share */
    double C[T] = {0.5, 0.25, 0.25};
    mhla_rows_measure(&m, C, (const int64_t[]){1}, 1, T, place);
    assert_true(fabs(m.own - 0.5) < 1e-12 && fabs(m.near - 0.5) < 1e-12);
}

/* ---- Bounds ---- */

static int64_t bound_of(mhla_plan_desc d, int64_t T) {
    mhla_plan *plan;
    d.size = sizeof d;
    d.heads = 1;
    d.key_dim = d.value_dim = 8;
    ASSERT_OK(mhla_plan_create(&plan, &d));
    const int64_t bound = mhla_matrix_bound(plan, T, T);
    mhla_plan_free(plan);
    return bound;
}

static void bounds(void **state) {
    (void)state;
    const mhla_plan_desc grid = {.axes = 2, .grid = {7, 7}, .blocks = {2, 2}}; /* blocks of 9, 12, 12, 16 */
    assert_int_equal(bound_of(grid, 49), 32);
    mhla_plan_desc small = grid;
    small.blocks[0] = small.blocks[1] = 3; /* of 4, 4, 6 ...: fewer tokens than dims */
    assert_int_equal(bound_of(small, 49), 4 + 4 + 6 + 4 + 4 + 6 + 6 + 6 + 8);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_CAUSAL, .chunk = 16, .chunks = 4}, 50), 8 * 3 + 2);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_LINEAR}, 49), 8);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_LINEAR}, 5), 5);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_SOFTMAX}, 49), 49);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_FOCUSED}, 49), 8);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_RALA}, 49), 8);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_INLINE}, 49), 9);
    assert_int_equal(bound_of((mhla_plan_desc){.kind = MHLA_KIND_MALA}, 49), 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators), cmocka_unit_test(classifiers),    cmocka_unit_test(generators),
        cmocka_unit_test(decoders),  cmocka_unit_test(without_matrix), cmocka_unit_test(spectra),
        cmocka_unit_test(rows),      cmocka_unit_test(bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
