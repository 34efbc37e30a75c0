/* What the callers of a selective scan may get wrong, found before anything is written. */
#include "ops/scan/scan.h"
#include "ops/tensors.h"

enum { MOST_STATES = 1024, MOST_TENSORS = 24 };

mhla_status mhla_scan_check(mhla_scan_run *run, const mhla_scan_call *call) {
    memset(run, 0, sizeof *run);
    MHLA_TRY(mhla_struct_in(&run->call, sizeof run->call, call, "mhla_scan_call"));
    mhla_scan_call *c = &run->call;
    CHECK(c->batch >= 1, "batch is %lld: expected 1 or more", (long long)c->batch);
    CHECK(c->tokens >= 1, "tokens is %lld: expected 1 or more", (long long)c->tokens);
    CHECK(c->channels >= 1 && c->channels <= INT32_MAX, "channels is %lld: expected 1 or more", (long long)c->channels);
    CHECK(c->states >= 1 && c->states <= MOST_STATES, "states is %lld: expected 1 to %d", (long long)c->states,
          MOST_STATES);
    CHECK(c->groups >= 0, "groups is %lld", (long long)c->groups);
    if (c->groups == 0) c->groups = 1;
    CHECK(c->channels % c->groups == 0, "channels is %lld: not a multiple of groups %lld", (long long)c->channels,
          (long long)c->groups);
    CHECK(c->delta_softplus == 0 || c->delta_softplus == 1, "delta_softplus is %d: expected 0 or 1", c->delta_softplus);
    MHLA_TRY(check_sequences(c->batch, c->tokens, c->cu_seqlens, c->sequences));
    MHLA_TRY(fill_strides(&c->u, "u", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&c->delta, "delta", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&c->z_strides, "z", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&c->y, "y", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&c->B, "B", c->batch, c->tokens, c->groups, c->states));
    MHLA_TRY(fill_strides(&c->C, "C", c->batch, c->tokens, c->groups, c->states));
    int64_t floats;
    CHECK(!__builtin_mul_overflow(mhla_scan_sequences(c), c->channels * c->states, &floats) && floats < INT64_MAX / 64,
          "states of %lld sequences are too many", (long long)mhla_scan_sequences(c));
    run->kernels = mhla_kernels_get();
    run->threads = mhla_context_threads(c->context);
    run->N = c->states;
    run->G = c->groups;
    run->group_slabs = (c->channels / c->groups + MHLA_SCAN_SLAB - 1) / MHLA_SCAN_SLAB;
    run->slabs = run->group_slabs * c->groups;
    return MHLA_OK;
}

/* [B,T,I] */
static tensor of_tokens(const mhla_scan_call *c, const char *name, const float *data, const mhla_strides *s) {
    return make_tensor(name, data, MHLA_F32, s, c->batch, c->tokens, 1, c->channels);
}
/* [B,T,G,N] */
static tensor of_groups(const mhla_scan_call *c, const char *name, const float *data, const mhla_strides *s) {
    return make_tensor(name, data, MHLA_F32, s, c->batch, c->tokens, c->groups, c->states);
}

static int64_t state_floats(const mhla_scan_call *c) { return mhla_scan_sequences(c) * c->channels * c->states; }

static mhla_status check_inputs(mhla_scan_run *run, const float *u, const float *delta, const float *A, const float *B,
                                const float *C) {
    CHECK(u != NULL, "u is NULL");
    CHECK(delta != NULL, "delta is NULL");
    CHECK(A != NULL, "A is NULL");
    CHECK(B != NULL, "B is NULL");
    CHECK(C != NULL, "C is NULL");
    run->u = u;
    run->delta = delta;
    run->A = A;
    run->B = B;
    run->C = C;
    return MHLA_OK;
}

static int list_inputs(const mhla_scan_run *run, tensor *t) {
    const mhla_scan_call *c = &run->call;
    int n = 0;
    t[n++] = of_tokens(c, "u", run->u, &c->u);
    t[n++] = of_tokens(c, "delta", run->delta, &c->delta);
    t[n++] = of_tokens(c, "z", c->z, &c->z_strides);
    t[n++] = of_groups(c, "B", run->B, &c->B);
    t[n++] = of_groups(c, "C", run->C, &c->C);
    t[n++] = make_flat("A", run->A, c->channels * c->states);
    t[n++] = make_flat("D", c->D, c->channels);
    t[n++] = make_flat("delta_bias", c->delta_bias, c->channels);
    t[n++] = make_flat("initial_state", c->initial_state, state_floats(c));
    return n;
}

mhla_status mhla_scan_check_forward(mhla_scan_run *run, const mhla_scan_call *call, float *y, const float *u,
                                    const float *delta, const float *A, const float *B, const float *C) {
    MHLA_TRY(mhla_scan_check(run, call));
    const mhla_scan_call *c = &run->call;
    CHECK(y != NULL, "y is NULL");
    MHLA_TRY(check_inputs(run, u, delta, A, B, C));
    run->y = y;
    tensor t[MOST_TENSORS];
    int n = list_inputs(run, t);
    const tensor out = of_tokens(c, "y", y, &c->y);
    MHLA_TRY(check_output(&out, t, n));
    if (c->final_state == NULL) return MHLA_OK;
    const tensor state = make_flat("final_state", c->final_state, state_floats(c));
    if (c->final_state == c->initial_state) n--; /* the last of the list */
    t[n++] = out;
    return check_output(&state, t, n);
}

mhla_status mhla_scan_check_backward(mhla_scan_run *run, const mhla_scan_call *call, const mhla_scan_grads *grads,
                                     const float *dy, const float *u, const float *delta, const float *A,
                                     const float *B, const float *C) {
    MHLA_TRY(mhla_scan_check(run, call));
    const mhla_scan_call *c = &run->call;
    CHECK(dy != NULL, "dy is NULL");
    MHLA_TRY(check_inputs(run, u, delta, A, B, C));
    run->dy = dy;
    MHLA_TRY(mhla_struct_in(&run->grads, sizeof run->grads, grads, "mhla_scan_grads"));
    mhla_scan_grads *g = &run->grads;
    CHECK(c->z != NULL || g->dz == NULL, "dz is given without z");
    CHECK(c->D != NULL || g->dD == NULL, "dD is given without D");
    CHECK(c->delta_bias != NULL || g->ddelta_bias == NULL, "ddelta_bias is given without delta_bias");
    MHLA_TRY(fill_strides(&g->du_strides, "du", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&g->ddelta_strides, "ddelta", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&g->dz_strides, "dz", c->batch, c->tokens, 1, c->channels));
    MHLA_TRY(fill_strides(&g->dB_strides, "dB", c->batch, c->tokens, c->groups, c->states));
    MHLA_TRY(fill_strides(&g->dC_strides, "dC", c->batch, c->tokens, c->groups, c->states));
    tensor t[MOST_TENSORS];
    int n = list_inputs(run, t);
    t[n++] = of_tokens(c, "dy", dy, &c->y);
    t[n++] = make_flat("dfinal_state", g->dfinal_state, state_floats(c));
    const tensor out[] = {
        of_tokens(c, "du", g->du, &g->du_strides),
        of_tokens(c, "ddelta", g->ddelta, &g->ddelta_strides),
        of_tokens(c, "dz", g->dz, &g->dz_strides),
        of_groups(c, "dB", g->dB, &g->dB_strides),
        of_groups(c, "dC", g->dC, &g->dC_strides),
        make_flat("dA", g->dA, c->channels * c->states),
        make_flat("dD", g->dD, c->channels),
        make_flat("ddelta_bias", g->ddelta_bias, c->channels),
        make_flat("dinitial_state", g->dinitial_state, state_floats(c)),
    };
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (out[i].data) {
            MHLA_TRY(check_output(&out[i], t, n));
            t[n++] = out[i];
        }
    return MHLA_OK;
}
