/* A call of a recurrence with decay: inputs at random, by sizes. */
#ifndef MHLA_TESTS_GATED_CASE_H
#define MHLA_TESTS_GATED_CASE_H

#include "support.h"

typedef struct gated_case {
    mhla_plan *plan;
    mhla_plan_desc d;
    mhla_call call;
    placed q, k, v, o, dO, decay, beta;
    float *initial, *dfinal;
    int64_t state, sequences; /* floats of all states */
    int64_t cu[5];
    char text[160];
} gated_case;

typedef struct sizes {
    mhla_kind kind;
    int64_t B, T;
    int H, G, K, V, chunk;
    int layout, packed, start;
    float strength; /* log-decays from 0 to -strength */
    int norm;       /* delta rule: q and k are divided by their lengths */
} sizes;

static inline void fill(rng *r, const placed *p, int64_t B, int64_t T, int64_t H, int64_t D, float low, float high) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t j = 0; j < D; j++)
                    placed_at(p, b, t, h)[j] = low + (high - low) * 0.5f * (rng_signed(r) + 1.0f);
}

static inline void make_case(gated_case *c, rng *r, const sizes *z) {
    memset(c, 0, sizeof *c);
    const int G = z->G ? z->G : z->H, D = z->kind == MHLA_KIND_GLA ? z->K : 1;
    const int delta = z->kind == MHLA_KIND_GATED_DELTA;
    const float length =
        delta && !z->norm ? 1.5f / sqrtf((float)z->K) : 1.0f; /* beta |k|^2 above 2 grows without end */
    c->d = (mhla_plan_desc){.size = sizeof c->d,
                            .kind = z->kind,
                            .heads = z->H,
                            .key_heads = z->G,
                            .key_dim = z->K,
                            .value_dim = z->V,
                            .chunk = z->chunk,
                            .qk_l2norm = z->norm};
    ASSERT_OK(mhla_plan_create(&c->plan, &c->d));
    c->q = place(z->layout, z->B, z->T, G, z->K);
    c->k = place(z->layout, z->B, z->T, G, z->K);
    c->v = place(z->layout, z->B, z->T, z->H, z->V);
    c->o = place(z->layout, z->B, z->T, z->H, z->V);
    c->dO = place(z->layout, z->B, z->T, z->H, z->V);
    c->decay = place(z->layout, z->B, z->T, z->H, D);
    fill(r, &c->q, z->B, z->T, G, z->K, -1.0f, 1.0f);
    fill(r, &c->k, z->B, z->T, G, z->K, -length, length);
    fill(r, &c->v, z->B, z->T, z->H, z->V, -1.0f, 1.0f);
    fill(r, &c->dO, z->B, z->T, z->H, z->V, -1.0f, 1.0f);
    fill(r, &c->decay, z->B, z->T, z->H, D, -z->strength, 0.0f);
    c->beta = place(z->layout, z->B, z->T, z->H, 1);
    fill(r, &c->beta, z->B, z->T, z->H, 1, 0.0f, 2.0f);
    c->sequences = z->B;
    c->call = (mhla_call){.size = sizeof c->call,
                          .batch = z->B,
                          .tokens = z->T,
                          .q = c->q.s,
                          .k = c->k.s,
                          .v = c->v.s,
                          .o = c->o.s,
                          .decay = c->decay.data,
                          .decay_strides = c->decay.s};
    if (delta) {
        c->call.beta = c->beta.data;
        c->call.beta_strides = c->beta.s;
    }
    if (z->packed) { /* one of them empty */
        const int64_t cuts[5] = {0, z->T / 5, z->T / 5, z->T / 5 + z->T / 2, z->T};
        memcpy(c->cu, cuts, sizeof cuts);
        c->call.cu_seqlens = c->cu;
        c->call.sequences = c->sequences = 4;
    }
    c->state = c->sequences * z->H * z->K * z->V;
    if (z->start) c->call.initial_state = c->initial = new_random(r, c->state);
    if (z->start) c->dfinal = new_random(r, c->state);
    snprintf(c->text, sizeof c->text,
             "kind %d B %lld T %lld H %d G %d K %d V %d chunk %d layout %d packed %d start %d norm %d", (int)z->kind,
             (long long)z->B, (long long)z->T, z->H, G, z->K, z->V, z->chunk, z->layout, z->packed, z->start, z->norm);
}

static inline void drop_case(gated_case *c) {
    mhla_plan_free(c->plan);
    placed *all[] = {&c->q, &c->k, &c->v, &c->o, &c->dO, &c->decay, &c->beta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    free(c->initial);
    free(c->dfinal);
}

enum { KINDS = 3 };
static const mhla_kind kinds[KINDS] = {MHLA_KIND_SIMPLE_GLA, MHLA_KIND_GLA, MHLA_KIND_GATED_DELTA};

/* The place in another buffer that p's data has in its own. */
static inline float *within(const placed *p, float *buffer) { return buffer + (p->data - p->memory); }

#endif
