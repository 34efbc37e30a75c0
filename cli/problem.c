/* An attention call with every buffer it needs, filled at random: what the benchmark times and the check compares. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli.h"

double random_unit(uint64_t *seed) { /* splitmix64 */
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(x >> 11) * 0x1p-52 - 1.0;
}

void random_fill(void *x, mhla_dtype dtype, int64_t count, uint64_t *seed) {
    for (int64_t i = 0; i < count; i++) {
        const float f = (float)random_unit(seed);
        if (dtype == MHLA_F32) {
            ((float *)x)[i] = f;
        } else {
            uint32_t bits;
            memcpy(&bits, &f, sizeof bits);
            ((uint16_t *)x)[i] = (uint16_t)(bits >> 16); /* any bfloat16 will do: no rounding */
        }
    }
}

int small_pages;

void *aligned_new(size_t bytes) {
    if (bytes > SIZE_MAX - 64) return NULL;
    char *x = aligned_alloc(64, (bytes / 64 + 1) * 64);
#if defined(MADV_HUGEPAGE)
    const size_t page = 4096, inside = (size_t)(-(uintptr_t)x % page); /* madvise takes whole pages */
    if (x && !small_pages && bytes > (4u << 20)) madvise(x + inside, (bytes - inside) / page * page, MADV_HUGEPAGE);
#endif
    return x;
}

/* An array that lives as long as the problem, full of NaN (0xff in every byte). */
static void *own(problem *p, int64_t count, size_t element) {
    if (count < 0 || (uint64_t)count > SIZE_MAX / 2 / element) return NULL;
    if (p->owned_count == sizeof p->owned / sizeof *p->owned) return NULL;
    const size_t bytes = (size_t)count * element;
    void *x = aligned_new(bytes);
    if (x == NULL) return NULL;
    memset(x, 0xff, bytes);
    return p->owned[p->owned_count++] = x;
}

static float *own_f32(problem *p, int64_t count) { return own(p, count, sizeof(float)); }

static void *own_random(problem *p, mhla_dtype dtype, int64_t count, uint64_t *seed) {
    void *x = own(p, count, dtype == MHLA_F32 ? 4 : 2);
    if (x) random_fill(x, dtype, count, seed);
    return x;
}

/* Rows that sum to 1, no weight zero. */
static void fill_mix(float *mix, int64_t rows, int64_t M, uint64_t *seed) {
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < M; j++) sum += mix[i * M + j] = (float)(1.001 + random_unit(seed));
        for (int64_t j = 0; j < M; j++) mix[i * M + j] = (float)(mix[i * M + j] / sum);
    }
}

static int has_decay(mhla_kind kind) {
    return kind == MHLA_KIND_SIMPLE_GLA || kind == MHLA_KIND_GLA || kind == MHLA_KIND_GATED_DELTA;
}

/* Summaries that a state of so many tokens has: N0 and N1 of mhla_call. */
static int64_t state_chunks(const mhla_plan_desc *d, const mhla_plan *plan, int64_t tokens) {
    if (d->kind == MHLA_KIND_LINEAR_CAUSAL || has_decay(d->kind)) return 1;
    const int64_t C = mhla_plan_chunk(plan);
    return (tokens + C - 1) / C;
}

static int make_state(problem *p, const problem_desc *desc, uint64_t *seed) {
    const mhla_plan_desc *d = &desc->plan;
    const int64_t sequences = p->call.cu_seqlens ? p->call.sequences : p->call.batch;
    const int64_t G = d->kv_heads ? d->kv_heads : d->heads, K = d->key_dim, V = d->value_dim;
    const int z = d->denominator != MHLA_DEN_NONE;
    p->n_z = sequences * state_chunks(d, p->plan, p->call.past + p->call.tokens) * G * K;
    p->n_state = p->n_z * V;
    if (!(p->call.final_state = own_f32(p, p->n_state))) return 0;
    if (z && !(p->call.final_z = own_f32(p, p->n_z))) return 0;
    if (desc->backward && !(p->grads.dfinal_state = own_random(p, MHLA_F32, p->n_state, seed))) return 0;
    if (desc->backward && z && !(p->grads.dfinal_z = own_random(p, MHLA_F32, p->n_z, seed))) return 0;
    if (p->call.past == 0) return 1;
    p->n_z0 = sequences * state_chunks(d, p->plan, p->call.past) * G * K;
    p->n_state0 = p->n_z0 * V;
    if (!(p->call.initial_state = own_random(p, MHLA_F32, p->n_state0, seed))) return 0;
    if (desc->backward && !(p->grads.dinitial_state = own_f32(p, p->n_state0))) return 0;
    if (!z) return 1;
    float *initial_z = own_random(p, MHLA_F32, p->n_z0, seed);
    if (initial_z == NULL) return 0;
    for (int64_t i = 0; i < p->n_z0; i++) initial_z[i] += 2.0f; /* a sum of features, hence positive */
    p->call.initial_z = initial_z;
    return !desc->backward || (p->grads.dinitial_z = own_f32(p, p->n_z0)) != NULL;
}

static int make_table(problem *p, const float **cos, const float **sin, int64_t *count, int64_t most, int dim,
                      double base) {
    const int rows = (int)most;
    float *cosines = own_f32(p, most * dim / 2), *sines = own_f32(p, most * dim / 2);
    if (!cosines || !sines || mhla_rope_table(cosines, sines, 1, &rows, &dim, base) != MHLA_OK) return 0;
    *cos = cosines;
    *sin = sines;
    *count = rows;
    return 1;
}

/* The keys of cross attention have a table of their own. */
static int make_rope(problem *p, const problem_desc *desc, int64_t Tk) {
    const int dim = desc->plan.rope_dim ? desc->plan.rope_dim : desc->plan.key_dim;
    mhla_call *c = &p->call;
    const int cross = Tk != c->tokens && desc->plan.kind != MHLA_KIND_SOFTMAX;
    const int64_t rows = (c->tokens > Tk || cross ? c->tokens : Tk) + c->past;
    if (!make_table(p, &c->rope_cos, &c->rope_sin, &c->rope_rows, rows, dim, 10000.0)) return 0;
    return !cross || make_table(p, &c->key_rope_cos, &c->key_rope_sin, &c->key_rope_rows, Tk, dim, 100.0);
}

/* The keys of a problem: as its call says, as its plan does, or as many as its queries. */
static int64_t keys_of(const problem *p) {
    if (p->call.kv_tokens) return p->call.kv_tokens;
    const int64_t Tk = mhla_plan_key_tokens(p->plan);
    return Tk ? Tk : p->call.tokens;
}

static int make_inputs(problem *p, const problem_desc *desc, uint64_t *seed) {
    const mhla_plan_desc *d = &desc->plan;
    const mhla_call *c = &p->call;
    const int64_t B = c->batch, T = c->tokens, Tk = keys_of(p), H = d->heads, G = d->kv_heads ? d->kv_heads : H;
    const int64_t shared = d->key_heads; /* heads that q and k have, if not the usual ones */
    p->n_q = B * T * (shared ? shared : H) * d->key_dim;
    p->n_k = B * Tk * (shared ? shared : G) * d->key_dim;
    p->n_v = B * Tk * G * d->value_dim;
    p->n_o = B * T * H * d->value_dim;
    p->q = own_random(p, d->dtype, p->n_q, seed);
    p->k = own_random(p, d->dtype, p->n_k, seed);
    p->v = own_random(p, d->dtype, p->n_v, seed);
    p->o = own(p, p->n_o, d->dtype == MHLA_F32 ? 4 : 2);
    if (!p->q || !p->k || !p->v || !p->o) return 0;
    if (d->kind == MHLA_KIND_BIDIRECTIONAL || d->kind == MHLA_KIND_CAUSAL) {
        const int64_t M = mhla_plan_blocks(p->plan), rows = (d->mix_per_head ? H : 1) * M;
        const int64_t columns = mhla_plan_key_blocks(p->plan);
        p->n_mix = rows * columns;
        if (!(p->mix = own_f32(p, p->n_mix))) return 0;
        fill_mix(p->mix, rows, columns, seed);
    }
    if (d->kind == MHLA_KIND_FOCUSED) {
        p->n_focus = H * d->key_dim;
        if (!(p->call.focus = own_random(p, MHLA_F32, p->n_focus, seed))) return 0;
    }
    if (has_decay(d->kind)) { /* from 0 to -0.1 */
        p->n_decay = B * T * H * (d->kind == MHLA_KIND_GLA ? d->key_dim : 1);
        float *decay = own_f32(p, p->n_decay);
        if (decay == NULL) return 0;
        for (int64_t i = 0; i < p->n_decay; i++) decay[i] = (float)(0.05 * random_unit(seed) - 0.05);
        p->call.decay = decay;
    }
    if (d->kind == MHLA_KIND_GATED_DELTA) { /* from 0 to 2 */
        p->n_beta = B * T * H;
        float *beta = own_f32(p, p->n_beta);
        if (beta == NULL) return 0;
        for (int64_t i = 0; i < p->n_beta; i++) beta[i] = (float)(1.0 + random_unit(seed));
        p->call.beta = beta;
    }
    if (desc->second_pair) {
        p->call.q2 = own_random(p, d->dtype, p->n_q, seed);
        p->call.k2 = own_random(p, d->dtype, p->n_k, seed);
        if (!p->call.q2 || !p->call.k2) return 0;
    }
    return (d->rope == MHLA_ROPE_NONE || make_rope(p, desc, Tk)) && (!desc->state || make_state(p, desc, seed));
}

static int make_gradients(problem *p, const problem_desc *desc, uint64_t *seed) {
    p->dO = own_random(p, desc->plan.dtype, p->n_o, seed);
    p->grads.dq = own_f32(p, p->n_q);
    p->grads.dk = own_f32(p, p->n_k);
    p->grads.dv = own_f32(p, p->n_v);
    if (!p->dO || !p->grads.dq || !p->grads.dk || !p->grads.dv) return 0;
    if (p->mix && !(p->grads.dmix = own_f32(p, p->n_mix))) return 0;
    if (p->n_focus && !(p->grads.dfocus = own_f32(p, p->n_focus))) return 0;
    if (p->n_decay && !(p->grads.ddecay = own_f32(p, p->n_decay))) return 0;
    if (p->n_beta && !(p->grads.dbeta = own_f32(p, p->n_beta))) return 0;
    if (!desc->second_pair) return 1;
    p->grads.dq2 = own_f32(p, p->n_q);
    p->grads.dk2 = own_f32(p, p->n_k);
    return p->grads.dq2 && p->grads.dk2;
}

/* The sizes come from the library; 0 is legal only where its message is about something else. */
static mhla_status make_workspaces(problem *p, int backward) {
    p->ws_bytes = mhla_forward_workspace(p->plan, &p->call);
    if (!(p->ws = own(p, (int64_t)p->ws_bytes, 1))) return MHLA_ENOMEM;
    if (!backward) return MHLA_OK;
    p->ws_backward_bytes = mhla_backward_workspace(p->plan, &p->call);
    return (p->ws_backward = own(p, (int64_t)p->ws_backward_bytes, 1)) ? MHLA_OK : MHLA_ENOMEM;
}

/* Would the elements of q, k, v or o overflow? */
static int too_many(const problem_desc *desc) {
    const mhla_plan_desc *d = &desc->plan;
    const mhla_call *c = &desc->call;
    int64_t n = c->tokens > c->kv_tokens ? c->tokens : c->kv_tokens;
    const int64_t widest = d->key_dim > d->value_dim ? d->key_dim : d->value_dim;
    return __builtin_mul_overflow(n, c->batch, &n) || __builtin_mul_overflow(n, (int64_t)d->heads, &n) ||
           __builtin_mul_overflow(n, widest, &n) || n > INT64_MAX / 64;
}

mhla_status problem_create(problem *p, const problem_desc *desc) {
    uint64_t seed = desc->seed;
    *p = (problem){.call = desc->call, .grads = {.size = sizeof p->grads}, .dtype = desc->plan.dtype};
    p->call.size = sizeof p->call;
    mhla_plan_desc plan = desc->plan;
    plan.size = sizeof plan;
    mhla_status status = mhla_plan_create(&p->plan, &plan);
    if (status != MHLA_OK) return status;
    status = MHLA_ENOMEM;
    if (!too_many(desc) && make_inputs(p, desc, &seed) && (!desc->backward || make_gradients(p, desc, &seed)))
        status = make_workspaces(p, desc->backward);
    if (status != MHLA_OK) problem_free(p);
    return status;
}

void problem_free(problem *p) {
    for (int i = 0; i < p->owned_count; i++) free(p->owned[i]);
    mhla_plan_free(p->plan);
    *p = (problem){0};
}

mhla_status problem_forward(problem *p) {
    return mhla_forward(p->plan, &p->call, p->o, p->q, p->k, p->v, p->mix, p->ws);
}

mhla_status problem_backward(problem *p) {
    return mhla_backward(p->plan, &p->call, &p->grads, p->dO, p->q, p->k, p->v, p->mix, p->ws_backward);
}
