/* The selective scan against its reference: awkward sizes, groups, states, packed sequences, strides, every instruction set, numbers
 * of threads; the reference's own gradients against finite differences; what callers get wrong. */
#include "support.h"

enum { Y, FINAL, DU, DDELTA, DZ, DB, DC, DA, DD, DBIAS, DINITIAL, RESULTS };
static const char *const result_names[RESULTS] = {"y",  "final_state", "du",          "ddelta",        "dz", "dB", "dC",
                                                  "dA", "dD",          "ddelta_bias", "dinitial_state"};

typedef struct sizes {
    int64_t B, T, I, N, G;
    int layout, packed, start; /* start: initial and final state */
    int bare;                  /* no D, z, bias, softplus */
} sizes;

typedef struct scan_case {
    mhla_scan_call call;
    placed u, delta, z, b, c, y, dy;
    float *A, *D, *bias, *initial, *dfinal;
    int64_t state;
    int64_t cu[5];
    char text[160];
} scan_case;

static void fill(rng *r, const placed *p, int64_t B, int64_t T, int64_t H, int64_t D) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t j = 0; j < D; j++) placed_at(p, b, t, h)[j] = rng_signed(r);
}

static placed new_placed(rng *r, int layout, int64_t B, int64_t T, int64_t H, int64_t D) {
    const placed p = place(layout, B, T, H, D);
    fill(r, &p, B, T, H, D);
    return p;
}

static void make_case(scan_case *c, rng *r, const sizes *z) {
    memset(c, 0, sizeof *c);
    const int64_t G = z->G ? z->G : 1;
    c->u = new_placed(r, z->layout, z->B, z->T, 1, z->I);
    c->delta = new_placed(r, z->layout, z->B, z->T, 1, z->I);
    c->z = new_placed(r, z->layout, z->B, z->T, 1, z->I);
    c->y = new_placed(r, z->layout, z->B, z->T, 1, z->I);
    c->dy = new_placed(r, z->layout, z->B, z->T, 1, z->I);
    c->b = new_placed(r, z->layout, z->B, z->T, G, z->N);
    c->c = new_placed(r, z->layout, z->B, z->T, G, z->N);
    c->A = new_random(r, z->I * z->N);
    for (int64_t i = 0; i < z->I * z->N; i++) c->A[i] = -0.1f - 2.0f * fabsf(c->A[i]);
    c->D = new_random(r, z->I);
    c->bias = new_random(r, z->I);
    c->call = (mhla_scan_call){.size = sizeof c->call,
                               .batch = z->B,
                               .tokens = z->T,
                               .channels = z->I,
                               .states = z->N,
                               .groups = z->G,
                               .u = c->u.s,
                               .delta = c->delta.s,
                               .B = c->b.s,
                               .C = c->c.s,
                               .y = c->y.s};
    if (!z->bare) {
        c->call.delta_softplus = 1;
        c->call.D = c->D;
        c->call.z = c->z.data;
        c->call.z_strides = c->z.s;
        c->call.delta_bias = c->bias;
    }
    int64_t sequences = z->B;
    if (z->packed) { /* one of them empty */
        const int64_t cuts[5] = {0, z->T / 5, z->T / 5, z->T / 5 + z->T / 2, z->T};
        memcpy(c->cu, cuts, sizeof cuts);
        c->call.cu_seqlens = c->cu;
        c->call.sequences = sequences = 4;
    }
    c->state = sequences * z->I * z->N;
    c->initial = new_random(r, c->state);
    c->dfinal = new_random(r, c->state);
    if (z->start) c->call.initial_state = c->initial;
    snprintf(c->text, sizeof c->text, "B %lld T %lld I %lld N %lld G %lld layout %d packed %d start %d bare %d",
             (long long)z->B, (long long)z->T, (long long)z->I, (long long)z->N, (long long)G, z->layout, z->packed,
             z->start, z->bare);
}

static void drop_case(scan_case *c) {
    placed *all[] = {&c->u, &c->delta, &c->z, &c->b, &c->c, &c->y, &c->dy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    float *flat[] = {c->A, c->D, c->bias, c->initial, c->dfinal};
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++) free(flat[i]);
}

typedef struct results {
    float *x[RESULTS];
    int64_t n[RESULTS];
} results;

/* What there is before the call: NaN, or a number that is added to. */
static results new_results(const scan_case *c, float value) {
    const int64_t I = c->call.channels, flat = I * c->call.states;
    const int64_t n[RESULTS] = {c->y.count, c->state, c->u.count, c->delta.count, c->z.count, c->b.count, c->c.count,
                                flat,       I,        I,          c->state};
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

/* The place in another buffer that p's data has in its own. */
static float *within(const placed *p, float *buffer) { return buffer + (p->data - p->memory); }

static mhla_scan_grads gradients(const scan_case *c, const results *g, int accumulate) {
    return (mhla_scan_grads){.size = sizeof(mhla_scan_grads),
                             .du = within(&c->u, g->x[DU]),
                             .ddelta = within(&c->delta, g->x[DDELTA]),
                             .dz = c->call.z ? within(&c->z, g->x[DZ]) : NULL,
                             .dB = within(&c->b, g->x[DB]),
                             .dC = within(&c->c, g->x[DC]),
                             .du_strides = c->u.s,
                             .ddelta_strides = c->delta.s,
                             .dz_strides = c->z.s,
                             .dB_strides = c->b.s,
                             .dC_strides = c->c.s,
                             .dA = g->x[DA],
                             .dD = c->call.D ? g->x[DD] : NULL,
                             .ddelta_bias = c->call.delta_bias ? g->x[DBIAS] : NULL,
                             .dinitial_state = g->x[DINITIAL],
                             .dfinal_state = c->dfinal,
                             .accumulate = accumulate};
}

static void run_case(const scan_case *c, const results *g, const mhla_context *context, int reference, int accumulate) {
    mhla_scan_call call = c->call;
    call.context = context;
    call.accumulate = accumulate;
    call.final_state = g->x[FINAL];
    float *y = within(&c->y, g->x[Y]);
    const mhla_scan_grads grads = gradients(c, g, accumulate);
    const float *u = c->u.data, *delta = c->delta.data, *B = c->b.data, *C = c->c.data, *dy = c->dy.data;
    if (reference) {
        ASSERT_OK(mhla_scan_forward_reference(&call, y, u, delta, c->A, B, C));
        ASSERT_OK(mhla_scan_backward_reference(&call, &grads, dy, u, delta, c->A, B, C));
    } else {
        ASSERT_OK(mhla_scan_forward(&call, y, u, delta, c->A, B, C, NULL));
        ASSERT_OK(mhla_scan_backward(&call, &grads, dy, u, delta, c->A, B, C, NULL));
    }
}

/* A gradient of one or two numbers may cancel to almost nothing, while its terms are of the size of 1: the error is then measured
 * against a quarter. */
static double slack(const float *x, int64_t n) {
    double size = 1e-30;
    for (int64_t i = 0; i < n; i++)
        if (fabs((double)x[i]) > size) size = fabs((double)x[i]);
    return n < 64 && size < 0.25 ? 0.25 / size : 1.0;
}

static void compare_case(rng *r, const sizes *z, const char *isa) {
    scan_case c;
    make_case(&c, r, z);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        results want = new_results(&c, accumulate ? 0.5f : NAN), got = new_results(&c, accumulate ? 0.5f : NAN);
        run_case(&c, &want, NULL, 1, accumulate);
        run_case(&c, &got, NULL, 0, accumulate);
        for (int i = 0; i < RESULTS; i++)
            ASSERT_CLOSE(got.x[i], want.x[i], want.n[i], 1e-5 * slack(want.x[i], want.n[i]),
                         "%s of %s, %s, accumulate %d", result_names[i], c.text, isa, accumulate);
        free_results(&want);
        free_results(&got);
    }
    drop_case(&c);
}

static void sizes_and_instruction_sets(void **state) {
    (void)state;
    static const int64_t T[] = {1, 2, 31, 32, 33, 63, 130}, I[] = {1, 5, 16, 17, 64, 80}, N[] = {1, 3, 4, 16};
    const char *names[8];
    const int isas = isa_names(names, 8);
    rng r = {1};
    for (int k = 0; k < isas; k++) {
        ASSERT_OK(mhla_set_isa(names[k]));
        for (int i = 0; i < 60; i++) {
            sizes z = {.B = 1 + rng_below(&r, 3),
                       .T = RNG_PICK(&r, T),
                       .I = RNG_PICK(&r, I),
                       .N = RNG_PICK(&r, N),
                       .layout = rng_below(&r, 3),
                       .packed = rng_below(&r, 3) == 0,
                       .start = rng_below(&r, 2),
                       .bare = rng_below(&r, 3) == 0};
            if (z.I % 2 == 0 && rng_below(&r, 3) == 0) z.G = 2;
            if (z.packed) z.B = 1;
            compare_case(&r, &z, names[k]);
        }
        compare_case(&r, &(sizes){.B = 1, .T = 1000, .I = 5, .N = 16, .start = 1}, names[k]);
        compare_case(&r, &(sizes){.B = 20, .T = 3, .I = 20, .N = 2, .start = 1}, names[k]);
        compare_case(&r, &(sizes){.B = 2, .T = 9, .I = 6, .N = 3, .G = 6}, names[k]);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* Bit by bit the same on any number of threads and, forward, in any split. */
static void threads_and_splits(void **state) {
    (void)state;
    rng r = {2};
    scan_case c;
    make_case(&c, &r, &(sizes){.B = 2, .T = 100, .I = 200, .N = 16, .start = 1});
    results one = new_results(&c, NAN);
    mhla_context *single = new_context(1);
    run_case(&c, &one, single, 0, 0);
    for (int threads = 2; threads < 6; threads++) {
        mhla_context *context = new_context(threads);
        results many = new_results(&c, NAN);
        run_case(&c, &many, context, 0, 0);
        for (int i = 0; i < RESULTS; i++) assert_memory_equal(one.x[i], many.x[i], sizeof(float) * (size_t)one.n[i]);
        free_results(&many);
        mhla_context_free(context);
    }
    float *y = new_poisoned(c.y.count), *h = new_bytes(sizeof *h * (size_t)c.state);
    memcpy(h, c.initial, sizeof *h * (size_t)c.state);
    for (int64_t t = 0, n; t < 100; t += n) {
        n = 1 + rng_below(&r, 40);
        if (t + n > 100) n = 100 - t;
        mhla_scan_call call = c.call;
        call.tokens = n;
        call.initial_state = call.final_state = h;
        call.z = c.z.data + t * c.z.s.token;
        ASSERT_OK(mhla_scan_forward(&call, y + t * c.y.s.token, c.u.data + t * c.u.s.token,
                                    c.delta.data + t * c.delta.s.token, c.A, c.b.data + t * c.b.s.token,
                                    c.c.data + t * c.c.s.token, NULL));
    }
    assert_memory_equal(y, one.x[Y], sizeof *y * (size_t)(c.y.count - 8)); /* place() leaves 8 over */
    assert_memory_equal(h, one.x[FINAL], sizeof *h * (size_t)c.state);
    free(y);
    free(h);
    free_results(&one);
    mhla_context_free(single);
    drop_case(&c);
}

/* sum of y dy and of final_state dfinal, by the reference */
static double loss(const scan_case *c, const results *g) {
    mhla_scan_call call = c->call;
    call.final_state = g->x[FINAL];
    ASSERT_OK(mhla_scan_forward_reference(&call, g->x[Y], c->u.data, c->delta.data, c->A, c->b.data, c->c.data));
    double sum = 0.0;
    for (int64_t i = 0; i < call.batch * call.tokens * call.channels; i++)
        sum += (double)g->x[Y][i] * (double)c->dy.data[i];
    for (int64_t i = 0; i < c->state; i++) sum += (double)g->x[FINAL][i] * (double)c->dfinal[i];
    return sum;
}

static void reference_gradients(void **state) {
    (void)state;
    rng r = {3};
    scan_case c;
    make_case(&c, &r, &(sizes){.B = 2, .T = 6, .I = 4, .N = 3, .G = 2, .start = 1});
    results g = new_results(&c, NAN);
    run_case(&c, &g, NULL, 1, 0);
    const struct {
        int what;
        float *x;
        int64_t n;
    } inputs[] = {{DU, c.u.data, 48}, {DDELTA, c.delta.data, 48}, {DZ, c.z.data, 48},
                  {DB, c.b.data, 72}, {DC, c.c.data, 72},         {DA, c.A, 12},
                  {DD, c.D, 4},       {DBIAS, c.bias, 4},         {DINITIAL, c.initial, 24}};
    for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
        for (int64_t i = 0; i < inputs[k].n; i++) {
            const float kept = inputs[k].x[i], step = 1.0f / 256;
            inputs[k].x[i] = kept + step;
            const double up = loss(&c, &g);
            inputs[k].x[i] = kept - step;
            const double down = loss(&c, &g);
            inputs[k].x[i] = kept;
            const double wanted = (up - down) / (2.0 * (double)step);
            if (fabs(wanted - (double)g.x[inputs[k].what][i]) > 2e-3 * (1.0 + fabs(wanted))) {
                print_error("%s[%lld] is %g, by differences %g\n", result_names[inputs[k].what], (long long)i,
                            (double)g.x[inputs[k].what][i], wanted);
                fail();
            }
        }
    free_results(&g);
    drop_case(&c);
}

/* Large steps forget everything, large inputs of softplus pass through, NaN stays in its channel and its sequence. */
static void unusual_numbers(void **state) {
    (void)state;
    rng r = {4};
    scan_case c;
    make_case(&c, &r, &(sizes){.B = 1, .T = 40, .I = 20, .N = 5, .start = 1});
    for (int64_t i = 0; i < 800; i++) c.delta.data[i] *= i % 3 ? 60.0f : 500.0f;
    results want = new_results(&c, NAN), got = new_results(&c, NAN);
    run_case(&c, &want, NULL, 1, 0);
    run_case(&c, &got, NULL, 0, 0);
    for (int i = 0; i < RESULTS; i++)
        ASSERT_CLOSE(got.x[i], want.x[i], want.n[i], 2e-5, "%s, large steps", result_names[i]);
    c.u.data[10 * 20 + 3] = NAN;
    run_case(&c, &got, NULL, 0, 0);
    for (int64_t t = 0; t < 40; t++)
        for (int64_t i = 0; i < 20; i++) assert_int_equal(isnan(got.x[Y][t * 20 + i]) != 0, t >= 10 && i == 3);
    free_results(&want);
    free_results(&got);
    drop_case(&c);
}

static void wrong_calls(void **state) {
    (void)state;
    rng r = {5};
    scan_case c;
    make_case(&c, &r, &(sizes){.B = 1, .T = 4, .I = 6, .N = 2});
    float *y = new_poisoned(24);
#define TRY_SCAN(change, text)                                                                                         \
    do {                                                                                                               \
        mhla_scan_call call = c.call;                                                                                  \
        change;                                                                                                        \
        ASSERT_FAILS(mhla_scan_forward(&call, y, c.u.data, c.delta.data, c.A, c.b.data, c.c.data, NULL), MHLA_EINVAL,  \
                     text);                                                                                            \
        assert_true(isnan(y[0]));                                                                                      \
    } while (0)
    TRY_SCAN(call.tokens = 0, "tokens is 0");
    TRY_SCAN(call.batch = -1, "batch is -1");
    TRY_SCAN(call.channels = 0, "channels is 0");
    TRY_SCAN(call.states = 0, "states is 0");
    TRY_SCAN(call.states = 1025, "states is 1025: expected 1 to 1024");
    TRY_SCAN(call.groups = 4, "channels is 6: not a multiple of groups 4");
    TRY_SCAN(call.delta_softplus = 2, "delta_softplus is 2");
    TRY_SCAN(call.u.token = -1, "strides of u");
    const int64_t cu[] = {0, 3};
    TRY_SCAN((call.cu_seqlens = cu, call.sequences = 1), "cu_seqlens ends with 3");
    TRY_SCAN(call.final_state = y, "final_state overlaps y");
    mhla_scan_call call = c.call;
    ASSERT_FAILS(mhla_scan_forward(&call, y, NULL, c.delta.data, c.A, c.b.data, c.c.data, NULL), MHLA_EINVAL,
                 "u is NULL");
    ASSERT_FAILS(mhla_scan_forward(&call, c.u.data, c.u.data, c.delta.data, c.A, c.b.data, c.c.data, NULL), MHLA_EINVAL,
                 "y overlaps u");
    ASSERT_FAILS(mhla_scan_forward(&call, y, c.u.data, c.delta.data, c.A, c.b.data, c.c.data, (char *)y + 4),
                 MHLA_EINVAL, "ws is not aligned");
    call.D = NULL;
    const mhla_scan_grads grads = {.size = sizeof grads, .dD = y};
    ASSERT_FAILS(mhla_scan_backward(&call, &grads, c.dy.data, c.u.data, c.delta.data, c.A, c.b.data, c.c.data, NULL),
                 MHLA_EINVAL, "dD is given without D");
    mhla_set_allocator(scarce_alloc, scarce_free);
    scarce.allowed = 0;
    ASSERT_FAILS(mhla_scan_forward(&c.call, y, c.u.data, c.delta.data, c.A, c.b.data, c.c.data, NULL), MHLA_ENOMEM,
                 "no memory");
    mhla_set_allocator(NULL, NULL);
    free(y);
    drop_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_and_instruction_sets),
        cmocka_unit_test(threads_and_splits),
        cmocka_unit_test(reference_gradients),
        cmocka_unit_test(unusual_numbers),
        cmocka_unit_test(wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
