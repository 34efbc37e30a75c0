/* One random causal problem for tests: plan, call, inputs and room for every output and gradient, all poisoned. Used
 * by the tests of the parallel and of the streaming form. */
#ifndef MHLA_TESTS_CAUSAL_CASE_H
#define MHLA_TESTS_CAUSAL_CASE_H

#include "ops/op.h"
#include "support.h"

enum { MOST_SEQUENCES = 5 };

typedef struct causal_case {
    mhla_plan_desc d;
    mhla_plan *plan;
    mhla_call c;
    int64_t cu[MOST_SEQUENCES + 1];
    int64_t T, mixes;               /* tokens; floats of mix */
    int64_t state0, state1, z0, z1; /* floats of initial and final state */
    placed q, k, v, o, q2, k2, dO;
    void *q_in, *k_in, *v_in, *q2_in, *k2_in, *dO_in; /* as the plan's dtype */
    float *mix, *cos, *sin, *initial, *initial_z;
} causal_case;

/* What a run writes. */
typedef struct causal_result {
    float *o, *final, *final_z;
    void *o_raw;
    float *dq, *dk, *dv, *dq2, *dk2, *dmix, *dinitial, *dinitial_z;
    int64_t nq, nk, nv, no;
} causal_result;

typedef struct causal_options {
    int T, C, K, V, H, G, batch, layout;
    int linear, clamp, M; /* M 0: as many as needed */
    int packed, rope, second, normed, per_head, accumulate, past, feature, bf16;
} causal_options;

static inline void fill_placed(placed *p, rng *r, int64_t B, int64_t T, int64_t H, int64_t D) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t j = 0; j < D; j++) placed_at(p, b, t, h)[j] = rng_signed(r);
}

static inline void *as_dtype(const placed *p, int bf16) {
    return bf16 ? (void *)new_bf16(p->memory, p->count) : (void *)p->data;
}

static inline int64_t most_chunks(const causal_options *x) {
    return (x->past + x->T + (x->C ? x->C : 64) - 1) / (x->C ? x->C : 64);
}

static inline causal_case *new_case(const causal_options *x, rng *r) {
    causal_case *p = new_bytes(sizeof *p);
    memset(p, 0, sizeof *p);
    const int M = x->M ? x->M : (int)most_chunks(x) + 1;
    p->d = (mhla_plan_desc){.size = sizeof p->d,
                            .kind = x->linear ? MHLA_KIND_LINEAR_CAUSAL : MHLA_KIND_CAUSAL,
                            .dtype = x->bf16 ? MHLA_BF16 : MHLA_F32,
                            .heads = x->H,
                            .kv_heads = x->G,
                            .key_dim = x->K,
                            .value_dim = x->V,
                            .feature = (mhla_feature)x->feature,
                            .feature_eps = 0.01f,
                            .denominator = x->normed ? MHLA_DEN_EQ4 : MHLA_DEN_NONE,
                            .den_eps = 0.5f,
                            .rope = (mhla_rope)x->rope,
                            .rope_dim = x->rope && x->K > 4 ? x->K / 4 * 2 : 0,
                            .mix_per_head = x->per_head && !x->linear,
                            .chunk = x->C,
                            .chunks = x->linear ? 0 : M,
                            .beyond = x->clamp && !x->linear ? MHLA_BEYOND_CLAMP : MHLA_BEYOND_ERROR};
    if (x->feature == MHLA_FEATURE_IDENTITY && x->normed) p->d.den_eps = 40.0f; /* keep the quotient tame */
    ASSERT_OK(mhla_plan_create(&p->plan, &p->d));
    const int64_t B = x->packed ? 1 : x->batch, T = x->T, H = x->H, G = x->G, K = x->K, V = x->V;
    const int64_t seqs = x->packed ? x->packed : B;
    p->T = T;
    p->c = (mhla_call){.size = sizeof p->c, .batch = B, .tokens = T, .past = x->past, .accumulate = x->accumulate};
    if (x->packed) {
        for (int i = 1; i < x->packed; i++) p->cu[i] = rng_below(r, (int)T + 1);
        p->cu[x->packed] = T;
        for (int i = 1; i < x->packed; i++)
            for (int j = i + 1; j < x->packed; j++)
                if (p->cu[j] < p->cu[i]) {
                    const int64_t s = p->cu[i];
                    p->cu[i] = p->cu[j];
                    p->cu[j] = s;
                }
        p->c.cu_seqlens = p->cu;
        p->c.sequences = x->packed;
    }
    p->q = place(x->layout, B, T, H, K);
    p->k = place(x->layout, B, T, G, K);
    p->v = place(x->layout, B, T, G, V);
    p->o = place(x->layout, B, T, H, V);
    p->dO = place(x->layout, B, T, H, V);
    fill_placed(&p->q, r, B, T, H, K);
    fill_placed(&p->k, r, B, T, G, K);
    fill_placed(&p->v, r, B, T, G, V);
    fill_placed(&p->dO, r, B, T, H, V);
    p->c.q = p->q.s;
    p->c.k = p->k.s;
    p->c.v = p->v.s;
    p->c.o = p->o.s;
    p->q_in = as_dtype(&p->q, x->bf16);
    p->k_in = as_dtype(&p->k, x->bf16);
    p->v_in = as_dtype(&p->v, x->bf16);
    p->dO_in = as_dtype(&p->dO, x->bf16);
    if (x->bf16) { /* fused rows begin inside */
        p->q_in = (uint16_t *)p->q_in + (p->q.data - p->q.memory);
        p->k_in = (uint16_t *)p->k_in + (p->k.data - p->k.memory);
        p->v_in = (uint16_t *)p->v_in + (p->v.data - p->v.memory);
        p->dO_in = (uint16_t *)p->dO_in + (p->dO.data - p->dO.memory);
    }
    if (x->second && x->normed && !x->bf16) {
        p->q2 = place(0, B, T, H, K);
        p->k2 = place(0, B, T, G, K);
        fill_placed(&p->q2, r, B, T, H, K);
        fill_placed(&p->k2, r, B, T, G, K);
        p->c.q2 = p->q2_in = p->q2.data;
        p->c.k2 = p->k2_in = p->k2.data;
    }
    p->mixes = x->linear ? 0 : (int64_t)M * M * (p->d.mix_per_head ? H : 1);
    if (!x->linear) {
        p->mix = new_bytes((size_t)p->mixes * sizeof *p->mix);
        for (int64_t i = 0; i < p->mixes; i++)
            p->mix[i] = i % M > i / M % M ? NAN : 0.6f + 0.4f * rng_signed(r); /* above the diagonal: never read */
    }
    if (x->rope) {
        const int64_t half = (p->d.rope_dim ? p->d.rope_dim : K) / 2, rows = T + x->past;
        p->cos = new_bytes((size_t)(rows * half) * sizeof(float));
        p->sin = new_bytes((size_t)(rows * half) * sizeof(float));
        const int grid = (int)rows, dims = (int)half * 2;
        ASSERT_OK(mhla_rope_table(p->cos, p->sin, 1, &grid, &dims, 100.0));
        p->c.rope_cos = p->cos;
        p->c.rope_sin = p->sin;
        p->c.rope_rows = rows;
    }
    const int64_t N0 = mhla_state_chunks(p->plan, x->past), N1 = mhla_state_chunks(p->plan, x->past + T);
    p->z0 = seqs * N0 * G * K;
    p->z1 = seqs * N1 * G * K;
    p->state0 = p->z0 * V;
    p->state1 = p->z1 * V;
    if (x->past > 0 || (x->linear && x->layout)) {
        p->c.initial_state = p->initial = new_random(r, p->state0);
        p->initial_z = new_random(r, p->z0);
        for (int64_t i = 0; i < p->z0; i++) p->initial_z[i] = fabsf(p->initial_z[i]);
        if (x->normed) p->c.initial_z = p->initial_z;
    }
    return p;
}

static inline void free_placed(placed *p) { free(p->memory); }

static inline void free_case(causal_case *p) {
    const int bf16 = p->d.dtype == MHLA_BF16;
    if (bf16) {
        free((uint16_t *)p->q_in - (p->q.data - p->q.memory));
        free((uint16_t *)p->k_in - (p->k.data - p->k.memory));
        free((uint16_t *)p->v_in - (p->v.data - p->v.memory));
        free((uint16_t *)p->dO_in - (p->dO.data - p->dO.memory));
    }
    placed *all[] = {&p->q, &p->k, &p->v, &p->o, &p->dO, &p->q2, &p->k2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_placed(all[i]);
    free(p->mix);
    free(p->cos);
    free(p->sin);
    free(p->initial);
    free(p->initial_z);
    mhla_plan_free(p->plan);
    free(p);
}

/* Room for a result; what is accumulated to starts from equal random numbers, everything else from NaN. */
static inline causal_result new_result(const causal_case *p, uint64_t seed) {
    rng r = {seed};
    const mhla_plan_desc *d = &p->d;
    const int64_t rows = p->c.batch * p->T;
    causal_result y = {.no = p->o.count,
                       .nq = rows * d->heads * d->key_dim,
                       .nk = rows * d->kv_heads * d->key_dim,
                       .nv = rows * d->kv_heads * d->value_dim};
    const int add = p->c.accumulate;
    y.o = new_poisoned(y.no);
    if (add)
        for (int64_t i = 0; i < y.no; i++) y.o[i] = rng_signed(&r);
    if (d->dtype == MHLA_BF16) {
        y.o_raw = new_bf16(y.o, y.no);
    }
    y.final = new_poisoned(p->state1);
    y.final_z = new_poisoned(p->z1);
    y.dq = add ? new_random(&r, y.nq) : new_poisoned(y.nq);
    y.dk = add ? new_random(&r, y.nk) : new_poisoned(y.nk);
    y.dv = add ? new_random(&r, y.nv) : new_poisoned(y.nv);
    y.dq2 = add ? new_random(&r, y.nq) : new_poisoned(y.nq);
    y.dk2 = add ? new_random(&r, y.nk) : new_poisoned(y.nk);
    y.dmix = add ? new_random(&r, p->mixes) : new_poisoned(p->mixes);
    y.dinitial = add ? new_random(&r, p->state0) : new_poisoned(p->state0);
    y.dinitial_z = add ? new_random(&r, p->z0) : new_poisoned(p->z0);
    return y;
}

static inline void free_result(causal_result *y) {
    void *all[] = {y->o,  y->o_raw, y->final, y->final_z, y->dq,       y->dk,
                   y->dv, y->dq2,   y->dk2,   y->dmix,    y->dinitial, y->dinitial_z};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static inline void run_forward(const causal_case *p, causal_result *y, const mhla_context *context, int reference) {
    mhla_call c = p->c;
    c.context = context;
    c.final_state = y->final;
    if (p->d.denominator != MHLA_DEN_NONE) c.final_z = y->final_z;
    const int64_t inside = p->o.data - p->o.memory;
    void *o = y->o_raw ? (void *)((uint16_t *)y->o_raw + inside) : (void *)(y->o + inside);
    if (reference)
        ASSERT_OK(mhla_forward_reference(p->plan, &c, o, p->q_in, p->k_in, p->v_in, p->mix));
    else
        ASSERT_OK(mhla_forward(p->plan, &c, o, p->q_in, p->k_in, p->v_in, p->mix, NULL));
    if (y->o_raw)
        for (int64_t i = 0; i < y->no; i++) y->o[i] = from_bf16(((uint16_t *)y->o_raw)[i]);
}

/* The gradients that arrive at the final state are random but the same for equal seeds. */
static inline void run_backward(const causal_case *p, causal_result *y, const mhla_context *context, int reference) {
    mhla_call c = p->c;
    c.context = context;
    rng r = {77};
    const int normed = p->d.denominator != MHLA_DEN_NONE;
    float *df = new_random(&r, p->state1), *dfz = new_random(&r, p->z1);
    const mhla_grads g = {.size = sizeof g,
                          .dq = y->dq,
                          .dk = y->dk,
                          .dv = y->dv,
                          .dmix = p->mix ? y->dmix : NULL,
                          .dq2 = c.q2 ? y->dq2 : NULL,
                          .dk2 = c.k2 ? y->dk2 : NULL,
                          .dinitial_state = c.initial_state ? y->dinitial : NULL,
                          .dinitial_z = c.initial_z ? y->dinitial_z : NULL,
                          .dfinal_state = df,
                          .dfinal_z = normed ? dfz : NULL,
                          .accumulate = c.accumulate};
    if (reference)
        ASSERT_OK(mhla_backward_reference(p->plan, &c, &g, p->dO_in, p->q_in, p->k_in, p->v_in, p->mix));
    else
        ASSERT_OK(mhla_backward(p->plan, &c, &g, p->dO_in, p->q_in, p->k_in, p->v_in, p->mix, NULL));
    free(df);
    free(dfz);
}

#endif
