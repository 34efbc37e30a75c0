/* States of the selective scan and the short convolution: random splits, several sequences, forks and restored bytes against one
 * call; altered bytes; what callers get wrong. */
#include "support.h"

enum { I = 37, N = 5, W = 4, T = 120, SEQUENCES = 3 };

/* Inputs of SEQUENCES sequences, and what one call makes of them. */
typedef struct state_case {
    int scan;
    float *u, *delta, *B, *C, *A, *w, *bias, *y;
    float *got;
} state_case;

static mhla_scan_call scan_call(const state_case *c, int64_t batch, int64_t tokens) {
    return (mhla_scan_call){.size = sizeof(mhla_scan_call),
                            .batch = batch,
                            .tokens = tokens,
                            .channels = I,
                            .states = N,
                            .delta_softplus = 1,
                            .D = c->bias,
                            .u = {T * I, I, 0},
                            .delta = {T * I, I, 0},
                            .y = {T * I, I, 0},
                            .B = {T * N, N, 0},
                            .C = {T * N, N, 0}};
}
static mhla_short_conv_call conv_call(const state_case *c, int64_t batch, int64_t tokens) {
    return (mhla_short_conv_call){.size = sizeof(mhla_short_conv_call),
                                  .batch = batch,
                                  .tokens = tokens,
                                  .channels = I,
                                  .width = W,
                                  .activation = MHLA_ACT_SILU,
                                  .x = {T * I, I, 0},
                                  .y = {T * I, I, 0},
                                  .bias = c->bias};
}

static void make_case(state_case *c, int scan) {
    rng r = {(uint64_t)scan + 7};
    const int64_t all = SEQUENCES * T * I, states = SEQUENCES * T * N;
    *c = (state_case){.scan = scan,
                      .u = new_random(&r, all),
                      .delta = new_random(&r, all),
                      .B = new_random(&r, states),
                      .C = new_random(&r, states),
                      .A = new_random(&r, I * N),
                      .w = new_random(&r, I * W),
                      .bias = new_random(&r, I),
                      .y = new_poisoned(all),
                      .got = new_poisoned(all)};
    for (int i = 0; i < I * N; i++) c->A[i] = -1.0f - c->A[i];
    const mhla_scan_call scans = scan_call(c, SEQUENCES, T);
    const mhla_short_conv_call convs = conv_call(c, SEQUENCES, T);
    if (scan)
        ASSERT_OK(mhla_scan_forward(&scans, c->y, c->u, c->delta, c->A, c->B, c->C, NULL));
    else
        ASSERT_OK(mhla_short_conv_forward(&convs, c->y, c->u, c->w, NULL));
}

static void drop_case(state_case *c) {
    float *all[] = {c->u, c->delta, c->B, c->C, c->A, c->w, c->bias, c->y, c->got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static mhla_channel_state *new_state(const state_case *c) {
    mhla_channel_state *s;
    if (c->scan)
        ASSERT_OK(mhla_scan_state_create(&s, I, N));
    else
        ASSERT_OK(mhla_short_conv_state_create(&s, I, W));
    return s;
}

/* Tokens at .. at+n-1 of `count` sequences from `first` on. */
static void feed(const state_case *c, mhla_channel_state *const *states, int first, int count, int64_t at, int64_t n) {
    const int64_t row = (int64_t)first * T + at;
    if (c->scan) {
        const mhla_scan_call call = scan_call(c, count, n);
        ASSERT_OK(mhla_scan_step(&call, states, count, c->got + row * I, c->u + row * I, c->delta + row * I, c->A,
                                 c->B + row * N, c->C + row * N));
    } else {
        const mhla_short_conv_call call = conv_call(c, count, n);
        ASSERT_OK(mhla_short_conv_step(&call, states, count, c->got + row * I, c->u + row * I, c->w));
    }
}

static void assert_same(const state_case *c) { assert_memory_equal(c->got, c->y, sizeof(float) * SEQUENCES * T * I); }

static mhla_channel_state *through_bytes(const state_case *c, mhla_channel_state *s) {
    const size_t size = mhla_channel_state_save_size(s);
    unsigned char *bytes = new_bytes(size);
    ASSERT_OK(mhla_channel_state_save(s, bytes, size));
    mhla_channel_state *t = new_state(c);
    ASSERT_OK(mhla_channel_state_load(t, bytes, size));
    assert_int_equal(mhla_channel_state_tokens(t), mhla_channel_state_tokens(s));
    mhla_channel_state_free(s);
    free(bytes);
    return t;
}

static void splits(void **state) {
    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        state_case c;
        make_case(&c, scan);
        rng r = {9};
        for (int round = 0; round < 6; round++) {
            mhla_channel_state *states[SEQUENCES];
            for (int i = 0; i < SEQUENCES; i++) states[i] = new_state(&c);
            for (int64_t i = 0; i < SEQUENCES * T * I; i++) c.got[i] = NAN;
            for (int64_t at = 0, n; at < T; at += n) {
                n = round == 0 ? 1 : 1 + rng_below(&r, round == 1 ? 3 : 50);
                if (at + n > T) n = T - at;
                if (rng_below(&r, 2))
                    feed(&c, states, 0, SEQUENCES, at, n);
                else
                    for (int i = 0; i < SEQUENCES; i++) feed(&c, &states[i], i, 1, at, n);
                const int one = rng_below(&r, SEQUENCES);
                if (rng_below(&r, 4) == 0) states[one] = through_bytes(&c, states[one]);
                if (rng_below(&r, 4) == 0) { /* a fork that reads something else does not matter */
                    mhla_channel_state *fork;
                    ASSERT_OK(mhla_channel_state_fork(&fork, states[one]));
                    mhla_channel_state *kept = states[one];
                    float *got = c.got;
                    c.got = new_poisoned(SEQUENCES * T * I);
                    feed(&c, &fork, one, 1, 3, 5);
                    free(c.got);
                    c.got = got;
                    assert_int_equal(mhla_channel_state_tokens(fork), at + n + 5);
                    assert_int_equal(mhla_channel_state_tokens(kept), at + n);
                    mhla_channel_state_free(fork);
                }
            }
            assert_same(&c);
            assert_true(mhla_channel_state_bytes(states[0]) > 100);
            for (int i = 0; i < SEQUENCES; i++) mhla_channel_state_free(states[i]);
        }
        drop_case(&c);
    }
}

/* Sequences of different lengths in one call, one of them empty; back to the beginning; a fork goes on as its original does. */
static void packed_and_back(void **state) {
    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        state_case c;
        make_case(&c, scan);
        mhla_channel_state *states[SEQUENCES];
        for (int i = 0; i < SEQUENCES; i++) states[i] = new_state(&c);
        const int64_t cu[] = {0, 2, 2, T}; /* of the rows of the first sequence, each state being fresh */
        if (scan) {
            mhla_scan_call call = scan_call(&c, 1, T);
            call.cu_seqlens = cu;
            call.sequences = SEQUENCES;
            ASSERT_OK(mhla_scan_step(&call, states, SEQUENCES, c.got, c.u, c.delta, c.A, c.B, c.C));
        } else {
            mhla_short_conv_call call = conv_call(&c, 1, T);
            call.cu_seqlens = cu;
            call.sequences = SEQUENCES;
            ASSERT_OK(mhla_short_conv_step(&call, states, SEQUENCES, c.got, c.u, c.w));
        }
        assert_int_equal(mhla_channel_state_tokens(states[0]), 2);
        assert_int_equal(mhla_channel_state_tokens(states[1]), 0);
        assert_int_equal(mhla_channel_state_tokens(states[2]), T - 2);
        assert_memory_equal(c.got, c.y, sizeof(float) * 2 * I);
        feed(&c, &states[0], 0, 1, 2, T - 2);
        assert_memory_equal(c.got, c.y, sizeof(float) * T * I);
        ASSERT_FAILS(mhla_channel_state_rollback(states[0], 5), MHLA_ERANGE, "tokens is 5");
        ASSERT_OK(mhla_channel_state_rollback(states[0], T));
        assert_int_equal(mhla_channel_state_tokens(states[0]), T);
        ASSERT_OK(mhla_channel_state_rollback(states[0], 0));
        feed(&c, &states[0], 0, 1, 0, T);
        assert_memory_equal(c.got, c.y, sizeof(float) * T * I);
        for (int i = 0; i < SEQUENCES; i++) mhla_channel_state_free(states[i]);
        drop_case(&c);
    }
    mhla_channel_state_free(NULL);
}

static void altered_bytes(void **state) {
    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        state_case c;
        make_case(&c, scan);
        mhla_channel_state *s = new_state(&c);
        feed(&c, &s, 0, 1, 0, 50);
        const size_t size = mhla_channel_state_save_size(s);
        unsigned char *bytes = new_bytes(size + 1), *again = new_bytes(size);
        ASSERT_FAILS(mhla_channel_state_save(s, bytes, size - 1), MHLA_EINVAL, "capacity is");
        ASSERT_OK(mhla_channel_state_save(s, bytes, size));
        mhla_channel_state *t = new_state(&c);
        for (size_t i = 0; i < size; i++) {
            bytes[i] ^= (unsigned char)(1u << i % 8);
            if (mhla_channel_state_load(t, bytes, size) != MHLA_EDATA) fail_msg("byte %zu is altered and taken", i);
            assert_int_equal(mhla_channel_state_tokens(t), 0);
            bytes[i] ^= (unsigned char)(1u << i % 8);
        }
        for (size_t n = 0; n < size; n += 13) ASSERT_FAILS(mhla_channel_state_load(t, bytes, n), MHLA_EDATA, "size");
        ASSERT_FAILS(mhla_channel_state_load(t, bytes, size + 1), MHLA_EDATA, "size");
        mhla_channel_state *other;
        ASSERT_OK(mhla_short_conv_state_create(&other, I, W + 1));
        ASSERT_FAILS(mhla_channel_state_load(other, bytes, size), MHLA_EDATA,
                     scan ? "operator (byte 16)" : "sizes (byte 24)");
        ASSERT_OK(mhla_channel_state_load(t, bytes, size));
        ASSERT_OK(mhla_channel_state_save(t, again, size));
        assert_memory_equal(again, bytes, size);
        mhla_channel_state_free(other);
        mhla_channel_state_free(s);
        mhla_channel_state_free(t);
        free(bytes);
        free(again);
        drop_case(&c);
    }
}

static void wrong_calls(void **state) {
    (void)state;
    state_case c;
    make_case(&c, 1);
    mhla_channel_state *s = new_state(&c), *conv, *twice[2] = {s, s};
    ASSERT_OK(mhla_short_conv_state_create(&conv, I, W));
    ASSERT_FAILS(mhla_scan_state_create(&twice[0], 0, N), MHLA_EINVAL, "channels is 0");
    ASSERT_FAILS(mhla_short_conv_state_create(&twice[0], I, 65), MHLA_EINVAL, "width is 65");
    twice[0] = s;
    mhla_scan_call call = scan_call(&c, 1, 4);
#define STEP(states, n) mhla_scan_step(&call, states, n, c.got, c.u, c.delta, c.A, c.B, c.C)
    ASSERT_FAILS(STEP(&s, 2), MHLA_EINVAL, "n is 2: the call has 1");
    ASSERT_FAILS(STEP(&conv, 1), MHLA_EINVAL, "states[0] is one of a short convolution");
    ASSERT_FAILS(STEP(NULL, 1), MHLA_EINVAL, "states is NULL");
    call.batch = 2;
    ASSERT_FAILS(STEP(twice, 2), MHLA_EINVAL, "states[1] occurs twice");
    twice[1] = NULL;
    ASSERT_FAILS(STEP(twice, 2), MHLA_EINVAL, "states[1] is NULL");
    call.batch = 1;
    call.states = N + 1;
    ASSERT_FAILS(STEP(&s, 1), MHLA_EINVAL, "states[0] is of 37 x 5: the call has 37 x 6");
    call.states = N;
    call.initial_state = c.A;
    ASSERT_FAILS(STEP(&s, 1), MHLA_EINVAL, "a state is given");
    call.initial_state = NULL;
    assert_true(isnan(c.got[0]));
    ASSERT_OK(STEP(&s, 1));
    assert_int_equal(mhla_channel_state_tokens(s), 4);
    mhla_channel_state_free(s);
    mhla_channel_state_free(conv);
    drop_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits),
        cmocka_unit_test(packed_and_back),
        cmocka_unit_test(altered_bytes),
        cmocka_unit_test(wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
