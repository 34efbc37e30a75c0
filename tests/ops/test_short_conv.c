/* The short convolution against its reference: widths, awkward sizes, caches, packed sequences, strides, every instruction set, numbers
 * of threads; the reference's own gradients against finite differences; what callers get wrong. */
#include "support.h"

enum { Y, FINAL, DX, DW, DBIAS, DINITIAL, RESULTS };
static const char *const result_names[RESULTS] = {"y", "final_cache", "dx", "dw", "dbias", "dinitial_cache"};

typedef struct sizes {
    int64_t B, T, D;
    int W, layout, packed, start, bare;
    mhla_activation activation;
} sizes;

typedef struct conv_case {
    mhla_short_conv_call call;
    placed x, y, dy;
    float *w, *bias, *initial, *dfinal;
    int64_t cache;
    int64_t cu[6];
    char text[160];
} conv_case;

static placed new_placed(rng *r, int layout, int64_t B, int64_t T, int64_t D) {
    const placed p = place(layout, B, T, 1, D);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < D; j++) placed_at(&p, b, t, 0)[j] = rng_signed(r);
    return p;
}

static void make_case(conv_case *c, rng *r, const sizes *z) {
    memset(c, 0, sizeof *c);
    c->x = new_placed(r, z->layout, z->B, z->T, z->D);
    c->y = new_placed(r, z->layout, z->B, z->T, z->D);
    c->dy = new_placed(r, z->layout, z->B, z->T, z->D);
    c->w = new_random(r, z->D * z->W);
    c->bias = new_random(r, z->D);
    c->call = (mhla_short_conv_call){.size = sizeof c->call,
                                     .batch = z->B,
                                     .tokens = z->T,
                                     .channels = z->D,
                                     .width = z->W,
                                     .activation = z->activation,
                                     .x = c->x.s,
                                     .y = c->y.s,
                                     .bias = z->bare ? NULL : c->bias};
    int64_t sequences = z->B;
    if (z->packed) { /* the first and a middle one empty, one shorter than the taps where T allows it */
        const int64_t cuts[6] = {0, 0, z->T / 5, z->T / 5, z->T - z->T / 40, z->T};
        memcpy(c->cu, cuts, sizeof cuts);
        c->call.cu_seqlens = c->cu;
        c->call.sequences = sequences = 5;
    }
    c->cache = sequences * z->D * z->W;
    c->initial = new_random(r, c->cache);
    c->dfinal = new_random(r, c->cache);
    if (z->start) c->call.initial_cache = c->initial;
    snprintf(c->text, sizeof c->text, "B %lld T %lld D %lld W %d layout %d packed %d start %d bare %d activation %d",
             (long long)z->B, (long long)z->T, (long long)z->D, z->W, z->layout, z->packed, z->start, z->bare,
             (int)z->activation);
}

static void drop_case(conv_case *c) {
    placed *all[] = {&c->x, &c->y, &c->dy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    float *flat[] = {c->w, c->bias, c->initial, c->dfinal};
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++) free(flat[i]);
}

typedef struct results {
    float *x[RESULTS];
    int64_t n[RESULTS];
} results;

static results new_results(const conv_case *c, float value) {
    const int64_t D = c->call.channels;
    const int64_t n[RESULTS] = {c->y.count, c->cache, c->x.count, D * c->call.width, D, c->cache};
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

static float *within(const placed *p, float *buffer) { return buffer + (p->data - p->memory); }

static void run_case(const conv_case *c, const results *g, const mhla_context *context, int reference, int accumulate) {
    mhla_short_conv_call call = c->call;
    call.context = context;
    call.accumulate = accumulate;
    call.final_cache = g->x[FINAL];
    const mhla_short_conv_grads grads = {.size = sizeof grads,
                                         .dx = within(&c->x, g->x[DX]),
                                         .dx_strides = c->x.s,
                                         .dw = g->x[DW],
                                         .dbias = call.bias ? g->x[DBIAS] : NULL,
                                         .dinitial_cache = g->x[DINITIAL],
                                         .dfinal_cache = c->dfinal,
                                         .accumulate = accumulate};
    float *y = within(&c->y, g->x[Y]);
    if (reference) {
        ASSERT_OK(mhla_short_conv_forward_reference(&call, y, c->x.data, c->w));
        ASSERT_OK(mhla_short_conv_backward_reference(&call, &grads, c->dy.data, c->x.data, c->w));
    } else {
        ASSERT_OK(mhla_short_conv_forward(&call, y, c->x.data, c->w, NULL));
        ASSERT_OK(mhla_short_conv_backward(&call, &grads, c->dy.data, c->x.data, c->w, NULL));
    }
}

static void compare_case(rng *r, const sizes *z, const char *isa) {
    conv_case c;
    make_case(&c, r, z);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        results want = new_results(&c, accumulate ? 0.5f : NAN), got = new_results(&c, accumulate ? 0.5f : NAN);
        run_case(&c, &want, NULL, 1, accumulate);
        run_case(&c, &got, NULL, 0, accumulate);
        for (int i = 0; i < RESULTS; i++)
            ASSERT_CLOSE(got.x[i], want.x[i], want.n[i], 1e-5, "%s of %s, %s, accumulate %d", result_names[i], c.text,
                         isa, accumulate);
        free_results(&want);
        free_results(&got);
    }
    drop_case(&c);
}

static void sizes_and_instruction_sets(void **state) {
    (void)state;
    static const int64_t T[] = {1, 2, 3, 7, 63, 64, 65, 130}, D[] = {3, 16, 17, 64, 600};
    static const mhla_activation activations[] = {MHLA_ACT_NONE, MHLA_ACT_SILU, MHLA_ACT_SILU, MHLA_ACT_GELU_TANH};
    const char *names[8];
    const int isas = isa_names(names, 8);
    rng r = {1};
    for (int k = 0; k < isas; k++) {
        ASSERT_OK(mhla_set_isa(names[k]));
        for (int i = 0; i < 80; i++) {
            sizes z = {.B = 1 + rng_below(&r, 3),
                       .T = RNG_PICK(&r, T),
                       .D = RNG_PICK(&r, D),
                       .W = i % 2 ? 4 : 1 + rng_below(&r, 8),
                       .layout = rng_below(&r, 3),
                       .packed = rng_below(&r, 3) == 0,
                       .start = rng_below(&r, 2),
                       .bare = rng_below(&r, 3) == 0,
                       .activation = RNG_PICK(&r, activations)};
            if (z.packed) z.B = 1;
            compare_case(&r, &z, names[k]);
        }
        compare_case(&r, &(sizes){.B = 1, .T = 130, .D = 20, .W = 64, .start = 1, .packed = 1}, names[k]);
        compare_case(&r, &(sizes){.B = 2, .T = 70, .D = 20, .W = 11, .start = 1}, names[k]);
        compare_case(&r, &(sizes){.B = 3, .T = 2000, .D = 5, .W = 4, .start = 1, .activation = MHLA_ACT_SILU},
                     names[k]);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* Bit by bit the same on any number of threads and, forward, in any split. */
static void threads_and_splits(void **state) {
    (void)state;
    rng r = {2};
    conv_case c;
    make_case(&c, &r, &(sizes){.B = 2, .T = 300, .D = 700, .W = 4, .start = 1, .activation = MHLA_ACT_SILU});
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
    float *y = new_poisoned(c.y.count), *cache = new_bytes(sizeof *cache * (size_t)c.cache);
    memcpy(cache, c.initial, sizeof *cache * (size_t)c.cache);
    for (int64_t t = 0, n; t < 300; t += n) {
        n = 1 + rng_below(&r, rng_below(&r, 2) ? 3 : 100);
        if (t + n > 300) n = 300 - t;
        mhla_short_conv_call call = c.call;
        call.tokens = n;
        call.initial_cache = call.final_cache = cache;
        ASSERT_OK(mhla_short_conv_forward(&call, y + t * c.y.s.token, c.x.data + t * c.x.s.token, c.w, NULL));
    }
    assert_memory_equal(y, one.x[Y], sizeof *y * (size_t)(c.y.count - 8)); /* place() leaves 8 over */
    assert_memory_equal(cache, one.x[FINAL], sizeof *cache * (size_t)c.cache);
    free(y);
    free(cache);
    free_results(&one);
    mhla_context_free(single);
    drop_case(&c);
}

static double loss(const conv_case *c, const results *g) {
    mhla_short_conv_call call = c->call;
    call.final_cache = g->x[FINAL];
    ASSERT_OK(mhla_short_conv_forward_reference(&call, g->x[Y], c->x.data, c->w));
    double sum = 0.0;
    for (int64_t i = 0; i < call.batch * call.tokens * call.channels; i++)
        sum += (double)g->x[Y][i] * (double)c->dy.data[i];
    for (int64_t i = 0; i < c->cache; i++) sum += (double)g->x[FINAL][i] * (double)c->dfinal[i];
    return sum;
}

static void reference_gradients(void **state) {
    (void)state;
    rng r = {3};
    for (int64_t T = 1; T < 7; T += 2) {
        conv_case c;
        make_case(&c, &r, &(sizes){.B = 2, .T = T, .D = 3, .W = 4, .start = 1, .activation = MHLA_ACT_SILU});
        results g = new_results(&c, NAN);
        run_case(&c, &g, NULL, 1, 0);
        const struct {
            int what;
            float *x;
            int64_t n;
        } inputs[] = {{DX, c.x.data, 6 * T}, {DW, c.w, 12}, {DBIAS, c.bias, 3}, {DINITIAL, c.initial, 24}};
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
            for (int64_t i = 0; i < inputs[k].n; i++) {
                const float kept = inputs[k].x[i], step = 1.0f / 256;
                inputs[k].x[i] = kept + step;
                const double up = loss(&c, &g);
                inputs[k].x[i] = kept - step;
                const double wanted = (up - loss(&c, &g)) / (2.0 * (double)step);
                inputs[k].x[i] = kept;
                if (fabs(wanted - (double)g.x[inputs[k].what][i]) > 1e-3 * (1.0 + fabs(wanted))) {
                    print_error("%s[%lld] is %g, by differences %g\n", result_names[inputs[k].what], (long long)i,
                                (double)g.x[inputs[k].what][i], wanted);
                    fail();
                }
            }
        free_results(&g);
        drop_case(&c);
    }
}

static void wrong_calls(void **state) {
    (void)state;
    rng r = {5};
    conv_case c;
    make_case(&c, &r, &(sizes){.B = 1, .T = 4, .D = 6, .W = 4});
    float *y = new_poisoned(24);
#define TRY_CONV(change, text)                                                                                         \
    do {                                                                                                               \
        mhla_short_conv_call call = c.call;                                                                            \
        change;                                                                                                        \
        ASSERT_FAILS(mhla_short_conv_forward(&call, y, c.x.data, c.w, NULL), MHLA_EINVAL, text);                       \
        assert_true(isnan(y[0]));                                                                                      \
    } while (0)
    TRY_CONV(call.tokens = 0, "tokens is 0");
    TRY_CONV(call.batch = 0, "batch is 0");
    TRY_CONV(call.channels = -2, "channels is -2");
    TRY_CONV(call.width = 0, "width is 0: expected 1 to 64");
    TRY_CONV(call.width = 65, "width is 65: expected 1 to 64");
    TRY_CONV(call.activation = (mhla_activation)9, "activation is 9");
    const int64_t cu[] = {0, 5};
    TRY_CONV((call.cu_seqlens = cu, call.sequences = 1), "cu_seqlens ends with 5");
    TRY_CONV(call.final_cache = y, "final_cache overlaps y");
    TRY_CONV(call.y.token = 3, "strides of y");
    ASSERT_FAILS(mhla_short_conv_forward(&c.call, c.x.data, c.x.data, c.w, NULL), MHLA_EINVAL, "y overlaps x");
    ASSERT_FAILS(mhla_short_conv_forward(&c.call, y, c.x.data, NULL, NULL), MHLA_EINVAL, "w is NULL");
    mhla_short_conv_call call = c.call;
    call.bias = NULL;
    const mhla_short_conv_grads grads = {.size = sizeof grads, .dbias = y};
    ASSERT_FAILS(mhla_short_conv_backward(&call, &grads, c.dy.data, c.x.data, c.w, NULL), MHLA_EINVAL,
                 "dbias is given without bias");
    free(y);
    drop_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_and_instruction_sets),
        cmocka_unit_test(threads_and_splits),
        cmocka_unit_test(reference_gradients),
        cmocka_unit_test(wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
