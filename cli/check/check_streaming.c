/* The check's streaming: a state fed in uneven pieces, forked, rolled back, saved and loaded on the way, must give what
 * the parallel form's reference gives for the whole sequence. */
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

static const struct stream_case {
    const char *name;
    int64_t T;
    mhla_plan_desc plan; /* dtype and eps are filled in */
} cases[] = {
    {"64x48, chunks of 16",
     130,
     {.kind = MHLA_KIND_CAUSAL,
      .heads = 2,
      .key_dim = 64,
      .value_dim = 48,
      .chunk = 16,
      .chunks = 9,
      .denominator = MHLA_DEN_NONE}},
    {"clamp beyond 3 chunks",
     90,
     {.kind = MHLA_KIND_CAUSAL,
      .heads = 2,
      .key_dim = 24,
      .value_dim = 33,
      .chunk = 8,
      .chunks = 3,
      .beyond = MHLA_BEYOND_CLAMP,
      .denominator = MHLA_DEN_NONE}},
    {"eq4, rotary, fewer kv heads",
     100,
     {.kind = MHLA_KIND_CAUSAL,
      .heads = 4,
      .kv_heads = 2,
      .key_dim = 40,
      .value_dim = 24,
      .chunk = 32,
      .chunks = 4,
      .rope = MHLA_ROPE_HALF}},
    {"128x256, chunks of 64",
     140,
     {.kind = MHLA_KIND_CAUSAL,
      .heads = 1,
      .key_dim = 128,
      .value_dim = 256,
      .chunk = 64,
      .chunks = 3,
      .denominator = MHLA_DEN_NONE}},
    {"linear, 72x60",
     80,
     {.kind = MHLA_KIND_LINEAR_CAUSAL, .heads = 2, .key_dim = 72, .value_dim = 60, .denominator = MHLA_DEN_NONE}},
    {"linear, eq4", 70, {.kind = MHLA_KIND_LINEAR_CAUSAL, .heads = 2, .key_dim = 24, .value_dim = 30}},
    {"simple GLA, 4 heads share q and k",
     130,
     {.kind = MHLA_KIND_SIMPLE_GLA,
      .heads = 4,
      .key_heads = 1,
      .key_dim = 128,
      .value_dim = 64,
      .denominator = MHLA_DEN_NONE}},
    {"GLA, 60x33",
     90,
     {.kind = MHLA_KIND_GLA, .heads = 2, .key_dim = 60, .value_dim = 33, .denominator = MHLA_DEN_NONE}},
    {"delta rule, 2 heads share q and k",
     130,
     {.kind = MHLA_KIND_GATED_DELTA,
      .heads = 2,
      .key_heads = 1,
      .key_dim = 64,
      .value_dim = 130,
      .denominator = MHLA_DEN_NONE,
      .qk_l2norm = 1}},
};
enum { CASES = sizeof cases / sizeof *cases, BRIEF = 2 };

static size_t width(const problem *p) { return p->dtype == MHLA_F32 ? 4 : 2; }

/* Tokens [begin, end) of the problem's one sequence, outputs in their places. */
static mhla_status feed(problem *p, mhla_state *state, const mhla_plan_desc *d, int64_t begin, int64_t end) {
    const int64_t G = d->kv_heads ? d->kv_heads : d->heads, Gq = d->key_heads ? d->key_heads : d->heads,
                  Gk = d->key_heads ? d->key_heads : G;
    mhla_call call = p->call;
    call.tokens = end - begin;
    if (call.decay) call.decay += begin * (d->kind == MHLA_KIND_GLA ? d->heads * d->key_dim : d->heads);
    if (call.beta) call.beta += begin * d->heads;
    const char *q = p->q, *k = p->k, *v = p->v;
    char *o = p->o;
    const int64_t bytes = begin * (int64_t)width(p);
    return mhla_step(p->plan, &call, &state, 1, o + bytes * d->heads * d->value_dim, q + bytes * Gq * d->key_dim,
                     k + bytes * Gk * d->key_dim, v + bytes * G * d->value_dim, p->mix);
}

/* The state saved and loaded again, in place of the old one. */
static mhla_status reload(const problem *p, mhla_state **state) {
    const size_t size = mhla_state_save_size(*state);
    void *bytes = malloc(size);
    if (bytes == NULL) return MHLA_ENOMEM;
    mhla_state *loaded = NULL;
    mhla_status status = mhla_state_save(*state, bytes, size);
    if (status == MHLA_OK) status = mhla_state_load(&loaded, bytes, size, p->plan, p->mix);
    free(bytes);
    if (status != MHLA_OK) return status;
    mhla_state_free(*state);
    *state = loaded;
    return MHLA_OK;
}

/* Feeds `ahead` tokens and takes them back, where the position allows it. */
static mhla_status astray(problem *p, mhla_state *state, const mhla_plan_desc *d, int64_t at, int64_t ahead) {
    const int C = mhla_plan_chunk(p->plan);
    if (d->kind != MHLA_KIND_CAUSAL || at % C || at == 0) return MHLA_OK;
    const mhla_status status = feed(p, state, d, at, at + ahead);
    return status != MHLA_OK ? status : mhla_state_rollback(state, at, p->plan, p->mix);
}

static mhla_status stream(problem *p, const mhla_plan_desc *d, int64_t T, uint64_t *seed) {
    mhla_state *state = NULL, *copy = NULL;
    mhla_status status = mhla_state_create(&state, p->plan, p->mix);
    for (int64_t at = 0; at < T && status == MHLA_OK;) {
        int64_t n = 1 + (int64_t)((random_unit(seed) + 1.0) * (random_unit(seed) + 1.0) * 6.0);
        if (n > T - at) n = T - at;
        status = astray(p, state, d, at, n);
        if (status == MHLA_OK) status = mhla_state_fork(&copy, state);
        if (status != MHLA_OK) break;
        mhla_state_free(state);
        state = copy;
        copy = NULL;
        if (at > T / 3 && at < T / 2) status = reload(p, &state);
        if (status == MHLA_OK) status = feed(p, state, d, at, at + n);
        at += n;
    }
    mhla_state_free(state);
    return status;
}

static mhla_status check_case(check_row *row, const check_isas *isas, const struct stream_case *c, uint64_t seed) {
    problem p;
    problem_desc desc = {.plan = c->plan, .call = {.batch = 1, .tokens = c->T}, .seed = seed};
    desc.plan.dtype = row->dtype;
    desc.plan.feature_eps = desc.plan.den_eps = 1e-6f;
    mhla_status status = problem_create(&p, &desc);
    if (status != MHLA_OK) return status;
    double *want = malloc((size_t)p.n_o * sizeof *want);
    if (want == NULL) status = MHLA_ENOMEM;
    if (status == MHLA_OK) status = mhla_forward_reference(p.plan, &p.call, p.o, p.q, p.k, p.v, p.mix);
    for (int64_t j = 0; j < p.n_o && status == MHLA_OK; j++) {
        uint32_t bits =
            row->dtype == MHLA_BF16 ? (uint32_t)((const uint16_t *)p.o)[j] << 16 : ((const uint32_t *)p.o)[j];
        float x;
        memcpy(&x, &bits, sizeof x);
        want[j] = (double)x;
    }
    for (int i = 0; i < isas->count && status == MHLA_OK; i++) {
        memset(p.o, 0xff, (size_t)p.n_o * width(&p));
        status = mhla_set_isa(isas->name[i]);
        if (status == MHLA_OK) status = stream(&p, &desc.plan, c->T, &seed);
        if (status == MHLA_OK) check_compare(row, i, "o", c->name, p.o, p.dtype, want, p.n_o);
    }
    row->cases++;
    free(want);
    problem_free(&p);
    return status;
}

mhla_status check_streaming(check_row *row, const check_isas *isas, int brief) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < (brief ? BRIEF : CASES) && status == MHLA_OK; i++)
        status = check_case(row, isas, &cases[i], (uint64_t)i + 100);
    return status;
}
