/* Streaming states: their summaries, fingerprints, making and freeing, and the mixtures of the past. README.md,
 * "Streaming", says how a state is kept; step.c feeds it. */
#include "ops/causal/state.h"

#include <limits.h>

#include "core/hash.h"

/* ---- Summaries ---- */

mhla_summary *mhla_summary_new(const mhla_state *s) {
    const size_t head = MHLA_ALIGN, bytes = (size_t)(s->G * s->shape.E) * sizeof(float);
    char *memory = mhla_alloc(head + bytes);
    if (memory == NULL) return NULL;
    mhla_summary *x = (mhla_summary *)memory;
    atomic_init(&x->refs, 1);
    x->data = (float *)(memory + head);
    return x;
}

void mhla_summary_drop(mhla_summary *x) {
    if (x && atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) == 1) mhla_free(x);
}

static mhla_status grow(mhla_summary ***array, int64_t *capacity, int64_t used, int64_t wanted) {
    if (wanted <= *capacity) return MHLA_OK;
    int64_t size = *capacity * 2 > wanted ? *capacity * 2 : wanted;
    mhla_summary **bigger = mhla_alloc((size_t)size * sizeof *bigger);
    if (bigger == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a list of %lld summaries", (long long)size);
    if (used > 0) memcpy(bigger, *array, (size_t)used * sizeof *bigger);
    mhla_free(*array);
    *array = bigger;
    *capacity = size;
    return MHLA_OK;
}

/* Room and summaries for so many chunks to come. Under CLAMP the oldest ones come back as spares. */
mhla_status mhla_state_reserve(mhla_state *s, int64_t pushes) {
    const int64_t keep = mhla_state_keep(s);
    int64_t fresh = pushes;
    if (s->clamp && fresh > keep + 2) fresh = keep + 2; /* a shared list, one before a prompt, one after it */
    MHLA_TRY(grow(&s->list, &s->capacity, s->n - s->lo, s->clamp ? keep + 1 : s->n - s->lo + pushes));
    MHLA_TRY(grow(&s->spare, &s->spare_capacity, s->spares, s->clamp ? 2 * keep + 3 : pushes));
    while (s->spares < fresh) {
        mhla_summary *x = mhla_summary_new(s);
        if (x == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for a summary of %lld floats", (long long)(s->G * s->shape.E));
        s->spare[s->spares++] = x;
    }
    return MHLA_OK;
}

void mhla_state_drop_spares(mhla_state *s) {
    while (s->spares > 0) mhla_summary_drop(s->spare[--s->spares]);
}

/* The oldest chunk goes into the tail, whose memory for head g is touched here; the list moves in push. */
static int push_merges(const mhla_state *s) { return s->clamp && s->n + 1 - s->lo > mhla_state_keep(s); }

void mhla_state_merge_head(const mhla_state *s, int64_t g) {
    if (!push_merges(s)) return;
    const mhla_summary *oldest = s->n > s->lo ? s->list[0] : s->spare[s->spares - 1];
    s->kernels->axpy(s->tail + g * s->shape.E, 1.0f, oldest->data + g * s->shape.E, s->shape.E);
}

void mhla_state_push(mhla_state *s) {
    mhla_summary *x = s->spare[--s->spares];
    if (push_merges(s)) {
        mhla_summary *oldest = x;
        if (s->n > s->lo) {
            oldest = s->list[0];
            memmove(s->list, s->list + 1, (size_t)(s->n - s->lo - 1) * sizeof *s->list);
            s->list[s->n - s->lo - 1] = x;
        }
        s->lo++;
        s->n++;
        if (atomic_load_explicit(&oldest->refs, memory_order_acquire) == 1)
            s->spare[s->spares++] = oldest; /* nobody else's: to be used again */
        else
            mhla_summary_drop(oldest);
        return;
    }
    s->list[s->n - s->lo] = x;
    s->n++;
}

/* ---- Fingerprints ---- */

static uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

uint64_t mhla_plan_print(const mhla_plan *plan) {
    const mhla_plan_desc *d = &plan->d;
    const uint64_t fields[] = {(uint64_t)d->kind,      (uint64_t)d->dtype,         (uint64_t)d->heads,
                               (uint64_t)d->kv_heads,  (uint64_t)d->key_dim,       (uint64_t)d->value_dim,
                               (uint64_t)d->feature,   float_bits(d->feature_eps), (uint64_t)d->denominator,
                               float_bits(d->den_eps), float_bits(d->scale),       (uint64_t)d->rope,
                               (uint64_t)d->rope_dim,  (uint64_t)d->mix_per_head,  (uint64_t)d->chunk,
                               (uint64_t)plan->M,      (uint64_t)d->beyond};
    const uint64_t print = mhla_hash(1, fields, sizeof fields),
                   more[] = {(uint64_t)d->key_heads, (uint64_t)d->qk_l2norm};
    return mhla_decays(d->kind) ? mhla_hash(print, more, sizeof more) : print;
}

static uint64_t row_print(const mhla_state *s, const float *mix, int64_t set, int64_t i) {
    return mhla_hash(2, mix + (set * s->M + i) * s->M, (size_t)(i + 1) * sizeof *mix);
}

mhla_status mhla_state_check(const mhla_state *s, const mhla_plan *plan, const float *mix, int64_t from, int64_t to) {
    if (s->plan_print != mhla_plan_print(plan)) return mhla_fail(MHLA_EINVAL, "the state was made for another plan");
    if (s->kind != MHLA_KIND_CAUSAL)
        return mix ? mhla_fail(MHLA_EINVAL, "mix is given: this operator has none") : MHLA_OK;
    if (mix == NULL) return mhla_fail(MHLA_EINVAL, "mix is NULL");
    const int64_t sets = plan->d.mix_per_head ? s->H : 1;
    for (int64_t set = 0; set < sets; set++)
        for (int64_t i = from; i <= to; i++) {
            const int64_t row = i < s->M ? i : s->M - 1;
            if (s->row_print[set * s->M + row] != row_print(s, mix, set, row))
                return mhla_fail(MHLA_EINVAL,
                                 "mix is not the matrix that the state was made with: row %lld of head %lld differs",
                                 (long long)row, (long long)set);
            if (i >= s->M - 1) break;
        }
    return MHLA_OK;
}

/* ---- Making and freeing ---- */

static void carve_state(mhla_carver *c, mhla_state *s) {
    const int64_t G = s->G, E = s->shape.E;
    const int ahead = s->clamp ? 1 : MHLA_LOOKAHEAD, cut = s->block < s->C;
    s->tail = s->clamp ? mhla_carve_floats(c, G * E) : NULL;
    s->ring_k = mhla_carve_floats(c, G * s->block * s->Kp);
    s->ring_v = mhla_carve_floats(c, G * s->block * s->Vw);
    s->z = s->normed ? mhla_carve_floats(c, G * s->Kp) : NULL;
    s->grown = cut ? mhla_carve_floats(c, G * E) : NULL;
    s->ahead = mhla_carve_floats(c, ahead * G * s->mixes * E);
    s->P_own = cut ? mhla_carve_floats(c, G * s->mixes * E) : NULL;
    /* q~, q2~ [ratio][Kp], scores [ratio][block+16], v [Vw], k2 [Kp], den, dots [ratio] */
    s->scratch_head = (s->ratio * (2 * s->Kp + s->block + 32) + s->Vw + s->Kp + 15) / 16 * 16;
    s->scratch = mhla_carve_floats(c, G * s->scratch_head);
}

/* A recurrence: zeros. */
static mhla_status make_recurrent(mhla_state **state, const mhla_plan *plan, const mhla_kernels *kernels) {
    const mhla_plan_desc *d = &plan->d;
    const size_t bytes = (size_t)d->heads * (size_t)d->key_dim * (size_t)d->value_dim * sizeof(float);
    mhla_state *s = mhla_alloc_zero(sizeof *s);
    float *S = mhla_alloc_zero(bytes);
    if (s == NULL || S == NULL) {
        mhla_free(s);
        mhla_free(S);
        return mhla_fail(MHLA_ENOMEM, "no memory for a state of %zu bytes", bytes);
    }
    *s = (mhla_state){.kernels = kernels,
                      .plan_print = mhla_plan_print(plan),
                      .kind = d->kind,
                      .H = d->heads,
                      .G = d->heads,
                      .K = d->key_dim,
                      .V = d->value_dim,
                      .M = 1,
                      .C = 1,
                      .clamp = 1,
                      .block = 1,
                      .S = S,
                      .memory = S,
                      .bytes = bytes};
    *state = s;
    return MHLA_OK;
}

mhla_status mhla_state_make(mhla_state **state, const mhla_plan *plan, const float *mix, const mhla_kernels *kernels) {
    const mhla_plan_desc *d = &plan->d;
    mhla_state *s = mhla_alloc_zero(sizeof *s);
    if (s == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a state");
    mhla_run run = {.plan = plan, .kernels = kernels, .threads = 1, .call = {.batch = 1, .tokens = 1}};
    mhla_causal_work w;
    mhla_causal_work_make(&w, &run, 0, 0);
    *s = (mhla_state){.kernels = kernels,
                      .shape = w.shape,
                      .plan_print = mhla_plan_print(plan),
                      .kind = d->kind,
                      .H = d->heads,
                      .G = d->kv_heads,
                      .K = d->key_dim,
                      .V = d->value_dim,
                      .Kp = w.Kp,
                      .Vw = w.Vw,
                      .normed = w.normed,
                      .mixes = w.mixes,
                      .ratio = w.ratio,
                      .per_head = d->mix_per_head,
                      .M = plan->M,
                      .C = w.C > INT_MAX ? w.block : w.C,
                      .clamp = w.clamp || w.C > INT_MAX,
                      .block = w.block};
    mhla_carver c = {0};
    carve_state(&c, s);
    s->bytes = c.used;
    s->memory = mhla_alloc_zero(c.used);
    const int64_t sets = mix ? (d->mix_per_head ? d->heads : 1) : 0;
    if (mix) s->row_print = mhla_alloc((size_t)(sets * s->M) * sizeof *s->row_print);
    if (s->memory == NULL || (mix && s->row_print == NULL)) {
        mhla_state_free(s);
        return mhla_fail(MHLA_ENOMEM, "no memory for a state of %zu bytes", c.used);
    }
    c = (mhla_carver){s->memory, 0};
    carve_state(&c, s);
    for (int64_t set = 0; set < sets; set++)
        for (int64_t i = 0; i < s->M; i++) s->row_print[set * s->M + i] = row_print(s, mix, set, i);
    if (mix) s->mix_print = mhla_hash(3, s->row_print, (size_t)(sets * s->M) * sizeof *s->row_print);
    s->ahead_end = 1; /* nothing before: the mixture is 0 */
    s->P = s->P_own ? s->P_own : s->ahead;
    *state = s;
    return MHLA_OK;
}

mhla_status mhla_state_create(mhla_state **state, const mhla_plan *plan, const float *mix) {
    if (state == NULL) return mhla_fail(MHLA_EINVAL, "state is NULL");
    *state = NULL;
    if (plan == NULL) return mhla_fail(MHLA_EINVAL, "plan is NULL");
    if (!mhla_has_state(plan->d.kind))
        return mhla_fail(MHLA_EINVAL, "kind of the plan is %d: only causal operators stream", (int)plan->d.kind);
    if (plan->d.kind == MHLA_KIND_CAUSAL && mix == NULL) return mhla_fail(MHLA_EINVAL, "mix is NULL");
    if (plan->d.kind != MHLA_KIND_CAUSAL && mix != NULL)
        return mhla_fail(MHLA_EINVAL, "mix is given: this operator has none");
    if (mhla_decays(plan->d.kind)) return make_recurrent(state, plan, mhla_kernels_get());
    return mhla_state_make(state, plan, mix, mhla_kernels_get());
}

void mhla_state_free(mhla_state *s) {
    if (s == NULL) return;
    for (int64_t i = 0; i < s->n - s->lo; i++) mhla_summary_drop(s->list[i]);
    mhla_state_drop_spares(s);
    mhla_free(s->list);
    mhla_free(s->spare);
    mhla_free(s->row_print);
    mhla_free(s->memory);
    mhla_free(s);
}

int64_t mhla_state_tokens(const mhla_state *s) { return s ? s->tokens : 0; }

size_t mhla_state_bytes(const mhla_state *s) {
    if (s == NULL) return 0;
    const size_t summary = MHLA_ALIGN + (size_t)(s->G * s->shape.E) * sizeof(float);
    const size_t prints = s->row_print ? (size_t)(s->M * (s->per_head ? s->H : 1)) * sizeof(uint64_t) : 0;
    return sizeof *s + s->bytes + prints + (size_t)(s->n - s->lo + s->spares) * summary +
           (size_t)(s->capacity + s->spare_capacity) * sizeof *s->list;
}

/* ---- Mixtures of the past ---- */

float mhla_state_weight(const mhla_state *s, const float *mix, int64_t g, int r, int64_t i, int64_t b) {
    if (mix == NULL) return 1.0f;
    return mhla_causal_weight(mix + (s->per_head ? (g * s->ratio + r) * s->M * s->M : 0), s->M, i, b);
}

enum { STRIP = 1024 }; /* floats: a strip of every mixture at hand stays in the first cache */

/* P_j = sum over finished b of w(j,b) S_b for chunks j = i .. i+count-1, in the order of b, so that it does not matter
 * when which of them was added. CLAMP: what the window no longer tells apart is summed first. */
void mhla_state_mix_all(mhla_state *s, const float *mix, int64_t g, const mhla_summary *extra) {
    const int64_t E = s->shape.E, n = s->n + (extra != NULL), i = n;
    int count = s->clamp ? 1 : MHLA_LOOKAHEAD;
    if (!s->clamp && i + count > s->M) count = (int)(s->M - i);
    if (!s->clamp && i >= s->M) return; /* full: no chunk will follow */
    const int64_t alike = s->clamp && i >= s->M - 1 ? (i - s->M + 1 < n - 1 ? i - s->M + 1 : n - 1) : -1;
    float strip[STRIP];
    for (int64_t at = 0; at < E; at += STRIP) {
        const int64_t size = E - at < STRIP ? E - at : STRIP;
        for (int j = 0; j < count; j++)
            for (int r = 0; r < s->mixes; r++)
                memset(mhla_state_ahead(s, j, g, r) + at, 0, (size_t)size * sizeof *strip);
        int64_t b = s->lo;
        if (s->clamp && (s->lo > 0 || alike >= 0)) {
            memcpy(strip, s->tail + g * E + at, (size_t)size * sizeof *strip);
            for (; b <= alike; b++) {
                const mhla_summary *x = b < s->n ? s->list[b - s->lo] : extra;
                s->kernels->axpy(strip, 1.0f, x->data + g * E + at, size);
            }
            for (int r = 0; r < s->mixes; r++)
                s->kernels->axpy(mhla_state_ahead(s, 0, g, r) + at, mhla_state_weight(s, mix, g, r, i, b - 1), strip,
                                 size);
        }
        for (; b < n; b++) {
            const mhla_summary *x = b < s->n ? s->list[b - s->lo] : extra;
            for (int j = 0; j < count; j++)
                for (int r = 0; r < s->mixes; r++)
                    s->kernels->axpy(mhla_state_ahead(s, j, g, r) + at, mhla_state_weight(s, mix, g, r, i + j, b),
                                     x->data + g * E + at, size);
        }
    }
}

/* Long chunks: P of the block at hand is the chunk's plus m_ii times what has grown. */
void mhla_state_block_P(mhla_state *s, const float *mix, int64_t g) {
    if (s->P_own == NULL) return;
    const int64_t E = s->shape.E, i = s->n;
    for (int r = 0; r < s->mixes; r++) {
        float *P = s->P_own + (g * s->mixes + r) * E;
        memcpy(P, mhla_state_ahead(s, s->ahead_at, g, r), (size_t)E * sizeof *P);
        s->kernels->axpy(P, mhla_state_weight(s, mix, g, r, i, i), s->grown + g * E, E);
    }
}

/* ---- After a prompt, a rollback, a load ---- */

typedef struct remix {
    mhla_state *s;
    const float *mix;
} remix;

static void remix_task(void *arg, int64_t g, int worker) {
    (void)worker;
    const remix *x = arg;
    mhla_state_mix_all(x->s, x->mix, g, NULL);
    mhla_state_block_P(x->s, x->mix, g);
}

void mhla_state_remix(mhla_state *s, const float *mix, const mhla_context *context) {
    const int64_t room = s->M - s->n;
    s->ahead_at = 0;
    s->ahead_end = s->clamp ? 1 : room < 1 ? 1 : room < MHLA_LOOKAHEAD ? (int)room : MHLA_LOOKAHEAD;
    s->P = s->P_own ? s->P_own : s->ahead;
    remix x = {s, mix};
    mhla_parallel(context, s->G, remix_task, &x);
}
