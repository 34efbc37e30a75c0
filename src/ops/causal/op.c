/* Causal MHLA and causal linear attention: checks, workspace and the forward pass. The walk over a sequence stands in
 * summaries.c, the backward in backward.c, streaming in step.c. */
#include <math.h>

#include "ops/causal/causal.h"
#include "ops/causal/state.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return mhla_fail(MHLA_EINVAL, __VA_ARGS__);                                                  \
    } while (0)

/* ---- Checks ---- */

static mhla_status check_plan(mhla_plan *plan) {
    mhla_plan_desc *d = &plan->d;
    const int linear = d->kind == MHLA_KIND_LINEAR_CAUSAL;
    CHECK(d->axes == 0 && d->n_blocks == 0 && d->n_tokens == 0 && d->block_offsets == NULL && d->permutation == NULL &&
              d->order == MHLA_ORDER_RASTER,
          "axes, n_blocks, n_tokens, block_offsets, permutation or order is given: causal operators have chunks");
    CHECK(d->causal == 0 && d->window == 0, "causal or window is given: those are softmax's");
    CHECK(d->chunk >= 0 && d->chunk <= 1 << 30, "chunk is %d: expected 1 to 2^30, or 0 for the default", d->chunk);
    CHECK(d->max_tokens >= 0, "max_tokens is %lld", (long long)d->max_tokens);
    CHECK(d->max_tokens == 0 || d->beyond == MHLA_BEYOND_CHUNK,
          "max_tokens is %lld but beyond is not MHLA_BEYOND_CHUNK", (long long)d->max_tokens);
    if (d->scale == 0.0f) d->scale = (float)(1.0 / sqrt((double)d->key_dim));
    if (linear) {
        CHECK(d->chunks == 0, "chunks is %lld: linear attention has no mixing matrix", (long long)d->chunks);
        CHECK(d->beyond == MHLA_BEYOND_ERROR, "beyond is %d: linear attention has no end", (int)d->beyond);
        CHECK(d->mix_per_head == 0, "mix_per_head is 1: linear attention has no mixing matrix");
        plan->M = plan->Mk = 1;
    } else {
        CHECK(d->chunks >= 1 && d->chunks <= 1 << 20, "chunks is %lld: expected 1 to 2^20", (long long)d->chunks);
        plan->M = plan->Mk = d->chunks;
    }
    if (d->beyond == MHLA_BEYOND_CHUNK) {
        CHECK(d->chunk == 0, "chunk is %d: MHLA_BEYOND_CHUNK chooses it", d->chunk);
        CHECK(d->max_tokens >= 1, "max_tokens is %lld: MHLA_BEYOND_CHUNK needs it", (long long)d->max_tokens);
        const int64_t chunk = (d->max_tokens - 1) / plan->M + 1;
        CHECK(chunk <= 1 << 30, "max_tokens is %lld: too many for %lld chunks", (long long)d->max_tokens,
              (long long)plan->M);
        d->chunk = (int)chunk;
    }
    if (d->chunk == 0) d->chunk = 64;
    return MHLA_OK;
}

static mhla_status check_call(const mhla_run *run) {
    const mhla_plan *plan = run->plan;
    const mhla_plan_desc *d = &plan->d;
    const mhla_call *c = &run->call;
    const int linear = d->kind == MHLA_KIND_LINEAR_CAUSAL, normed = d->denominator != MHLA_DEN_NONE;
    CHECK(d->rope != MHLA_ROPE_NONE || (c->rope_cos == NULL && c->rope_sin == NULL && c->rope_rows == 0),
          "rope_cos, rope_sin or rope_rows is given but the plan's rope is MHLA_ROPE_NONE");
    CHECK(normed || c->initial_z == NULL, "initial_z is given but there is no denominator");
    CHECK(normed || c->final_z == NULL, "final_z is given but there is no denominator");
    CHECK(c->past == 0 || linear || c->initial_state != NULL, "past is %lld but initial_state is NULL",
          (long long)c->past);
    CHECK(c->past > 0 || linear || c->initial_state == NULL, "initial_state is given but past is 0");
    CHECK(c->initial_state != NULL || c->initial_z == NULL, "initial_z is given but initial_state is NULL");
    CHECK(!normed || c->initial_state == NULL || c->initial_z != NULL,
          "initial_z is NULL: the denominator needs it beside initial_state");
    if (linear || d->beyond == MHLA_BEYOND_CLAMP) return MHLA_OK;
    for (int64_t s = 0; s < mhla_seq_count(c); s++) {
        const int64_t tokens = c->past + mhla_seq_end(c, s) - mhla_seq_begin(c, s);
        const int64_t chunks = (tokens - 1) / d->chunk + 1;
        if (tokens > 0 && chunks > plan->M)
            return mhla_fail(MHLA_ERANGE,
                             "sequence %lld has %lld tokens (past included), %lld chunks of %d: mix has %lld",
                             (long long)s, (long long)tokens, (long long)chunks, d->chunk, (long long)plan->M);
        if (c->cu_seqlens == NULL) break;
    }
    return MHLA_OK;
}

/* ---- The forward pass ---- */

/* Units that fill all threads go whole, one to a worker; the left-over ones in crews. */
typedef struct job {
    mhla_causal_work w;
    int units, workers;
    mhla_causal_unit *unit;       /* [units]: one per worker, or those of a crew */
    mhla_causal_scratch *scratch; /* [workers] */
    int64_t *first;               /* [units + 1] */
    mhla_causal_crew crew;
    mhla_causal_unit *now;        /* [crew.units] */
    const mhla_causal_hook *hook; /* of a streaming state, or NULL */
} job;

static int64_t unit_count(const mhla_run *run) { return mhla_seq_count(&run->call) * run->plan->d.kv_heads; }

/* crew 0: for whole units */
static void carve(mhla_carver *c, job *j, const mhla_run *run, int64_t crew) {
    mhla_causal_work_make(&j->w, run, 0, crew);
    j->workers = run->threads;
    j->units = crew ? (int)crew : j->workers; /* any worker may get one */
    j->unit = mhla_carve(c, (size_t)j->units * sizeof *j->unit);
    j->scratch = mhla_carve(c, (size_t)j->workers * sizeof *j->scratch);
    j->first = mhla_carve(c, (size_t)(j->units + 1) * sizeof *j->first);
    mhla_causal_unit unit;
    mhla_causal_scratch scratch;
    for (int i = 0; i < j->units; i++) mhla_causal_unit_carve(c, &j->w, c->base ? &j->unit[i] : &unit, 0);
    for (int i = 0; i < j->workers; i++) mhla_causal_scratch_carve(c, &j->w, c->base ? &j->scratch[i] : &scratch);
}

/* Whole units and crews have the same memory, one after the other. */
static size_t workspace(const mhla_run *run, int backward) {
    if (backward) return mhla_causal_backward_workspace(run);
    const int64_t all = unit_count(run), whole = mhla_causal_whole_units(run);
    mhla_carver wholes = {0}, crews = {0};
    job j;
    if (whole > 0) carve(&wholes, &j, run, 0);
    if (whole < all) carve(&crews, &j, run, mhla_causal_crew_size(run, all - whole));
    return wholes.used > crews.used ? wholes.used : crews.used;
}

/* o = row scale * (q~ P + scores v), panel by panel of V; with each panel comes P's next one. */
static void output_panels(const mhla_causal_unit *u, int block, int r, int64_t t, int n, const mhla_causal_scratch *x) {
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const mhla_panels *all = &w->shape.n;
    const int K = d->key_dim, V = d->value_dim, past = mhla_causal_has_past(u, block);
    const int64_t h = u->g * w->ratio + r;
    const float *P = mhla_causal_P(u, r, block);
    const mhla_prefetch q = mhla_causal_next_rows(u, run->q, d->dtype, &c->q, h, t, n, K);
    const mhla_prefetch k = mhla_causal_next_rows(u, run->k, d->dtype, &c->k, u->g, t, n, K);
    const mhla_prefetch v = mhla_causal_next_rows(u, run->v, d->dtype, &c->v, u->g, t, n, V);
    const mhla_prefetch o = mhla_causal_next_rows(u, run->o, d->dtype, &c->o, h, t, n, V);
    for (int i = 0; i < all->count; i++) {
        const int begin = mhla_panel_begin(all, i), width = mhla_panel_begin(all, i + 1) - begin;
        const int last = i + 1 == all->count;
        const float *next = last ? P + w->P_row : P + (int64_t)K * (begin + width);
        const mhla_prefetch fetch[] = {
            {{(void *)(uintptr_t)next, NULL, width, MHLA_F32}, last && block + 1 == u->grp.n ? 0 : K, width * 4},
            mhla_prefetch_share(q, i, all->count),
            mhla_prefetch_share(k, i, all->count),
            mhla_prefetch_share(v, i, all->count),
            mhla_prefetch_share(o, i, all->count)};
        mhla_gemm g = {.m = n,
                       .n = mhla_panels_cut(V - begin < width ? V - begin : width, all->unit, width / all->unit, 1),
                       .f2_lower = 1,
                       .f2_lead = 1,
                       .store = MHLA_STORE_ROWS,
                       .out = mhla_causal_rows(u, run->o, d->dtype, &c->o, h, t),
                       .row_scale = x->scale,
                       .accumulate = c->accumulate,
                       .prefetch = fetch,
                       .n_prefetch = 5};
        g.out.base = (char *)g.out.base + begin * (int64_t)mhla_dtype_size(d->dtype);
        if (past)
            g.f = (mhla_factor){.k = K, .a = x->q, .a_row = w->Kp, .a_k = 1, .b = P + (int64_t)K * begin, .b_rows = K};
        g.f2 = (mhla_factor){
            .k = n, .a = x->scores, .a_row = x->ld_scores, .a_k = 1, .b = x->v + (int64_t)n * begin, .b_rows = n};
        mhla_multiply(run, &g);
    }
}

/* o = scale/den * (q~ P + m_ii tril(q~ k~^T) v) for one block, all query heads of the unit. */
static void output_block(const mhla_causal_unit *u, int block, mhla_causal_scratch *x) {
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const int K = d->key_dim, second = c->q2 != NULL;
    int64_t t;
    const int n = mhla_causal_block(u, block, &t);
    const int64_t i = mhla_causal_chunk(u, block);
    mhla_causal_pack(u, x->k, w->normed && !second ? x->k2 : NULL, run->k, &c->k, u->g, t, n, 1);
    if (w->normed) mhla_causal_running_keys(u, x, t, n);
    const mhla_panels ps = mhla_causal_score_panels(run->kernels, n);
    run->kernels->transpose(x->kT, &ps, x->k, w->Kp, K);
    mhla_causal_pack_values(u, x->v, t, n);
    for (int r = 0; r < w->ratio; r++) {
        const int64_t h = u->g * w->ratio + r;
        mhla_causal_pack(u, x->q, w->normed && !second ? x->q2 : NULL, run->q, &c->q, h, t, n, 1);
        if (second) mhla_causal_pack(u, x->q2, NULL, c->q2, &c->q2_strides, h, t, n, 0);
        if (w->normed) mhla_causal_denominators(u, x, r, block, n);
        for (int a = 0; a < n; a++) x->scale[a] = w->normed ? d->scale / x->den[a] : d->scale;
        mhla_causal_scores(run, x, x->scores, x->q, w->Kp, x->kT, K, n, mhla_causal_unit_weight(u, r, i, i));
        output_panels(u, block, r, t, n, x);
    }
}

/* ---- Tasks of a unit: each loop's number of them, and one of them ---- */

static int64_t count_blocks(const void *arg, int unit) {
    const mhla_causal_unit *u = &((const job *)arg)->now[unit];
    return u->live ? u->grp.n : 0;
}
static int64_t count_pieces(const void *arg, int unit) {
    const job *j = arg;
    return j->now[unit].live ? mhla_causal_piece_tasks(&j->w) : 0;
}
static int64_t all_pieces(const void *arg, int unit) {
    (void)unit;
    return mhla_causal_piece_tasks(&((const job *)arg)->w);
}
static int64_t one_each(const void *arg, int unit) {
    (void)arg;
    (void)unit;
    return 1;
}

static void summarise_task(void *arg, int unit, int64_t i, int worker) {
    job *j = arg;
    mhla_causal_summarise(&j->now[unit], (int)i, &j->scratch[worker]);
}
static void pieces(mhla_causal_unit *u, int64_t i, void (*fn)(mhla_causal_unit *, int)) {
    const int64_t next = (i + 1) * MHLA_CAUSAL_PIECES;
    const int end = (int)(next < u->w->shape.pieces ? next : u->w->shape.pieces);
    for (int p = (int)i * MHLA_CAUSAL_PIECES; p < end; p++) fn(u, p);
}
static void load_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    pieces(&((job *)arg)->now[unit], i, mhla_causal_load);
}
static void mix_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    pieces(&((job *)arg)->now[unit], i, mhla_causal_mix);
}
static void output_task(void *arg, int unit, int64_t i, int worker) {
    job *j = arg;
    output_block(&j->now[unit], (int)i, &j->scratch[worker]);
}
static void final_task(void *arg, int unit, int64_t i, int worker) {
    (void)worker;
    pieces(&((job *)arg)->now[unit], i, mhla_causal_final);
}
static void begin_hook(void *arg, int unit, int64_t i, int worker) {
    (void)i;
    (void)worker;
    const job *j = arg;
    j->hook->begin(j->hook->arg, &j->now[unit]);
}
static void group_hook(void *arg, int unit, int64_t i, int worker) {
    (void)i;
    (void)worker;
    const job *j = arg;
    if (j->now[unit].live) j->hook->group(j->hook->arg, &j->now[unit]);
}

static void next_task(void *arg, int unit, int64_t i, int worker) {
    (void)i;
    (void)worker;
    mhla_causal_next_group(&((job *)arg)->now[unit]);
}

/* Those of the crew that have another group. With a window this may move the list. */
static int next_groups(job *j) {
    int live = 0;
    if (j->w.clamp) mhla_causal_crew_run(&j->crew, one_each, next_task, j);
    for (int i = 0; i < j->crew.units; i++) live += j->w.clamp ? j->now[i].live : mhla_causal_next_group(&j->now[i]);
    return live;
}

/* The crew's units are `number` and those after it. */
static void forward_crew(job *j, int64_t number) {
    const mhla_causal_work *w = &j->w;
    const mhla_call *c = &w->run->call;
    const int64_t G = w->run->plan->d.kv_heads;
    for (int i = 0; i < j->crew.units; i++) mhla_causal_begin(&j->now[i], w, (number + i) / G, (number + i) % G);
    if (c->initial_state) mhla_causal_crew_run(&j->crew, all_pieces, load_task, j);
    if (j->hook) mhla_causal_crew_run(&j->crew, one_each, begin_hook, j);
    while (next_groups(j)) {
        mhla_causal_crew_run(&j->crew, count_blocks, summarise_task, j);
        mhla_causal_crew_run(&j->crew, count_pieces, mix_task, j);
        mhla_causal_crew_run(&j->crew, count_blocks, output_task, j);
        if (j->hook) mhla_causal_crew_run(&j->crew, one_each, group_hook, j);
    }
    if (c->final_state == NULL && c->final_z == NULL) return;
    mhla_causal_crew_run(&j->crew, all_pieces, final_task, j);
    for (int i = 0; i < j->crew.units; i++) mhla_causal_final_fill(&j->now[i]);
}

static void unit_task(void *arg, int64_t i, int worker) {
    job j = *(job *)arg; /* a crew of this worker's own */
    j.crew = (mhla_causal_crew){.worker = worker, .units = 1};
    j.now = &j.unit[worker];
    forward_crew(&j, i);
}

void mhla_causal_walk(const mhla_run *run, const mhla_causal_hook *hook) {
    const int64_t whole = mhla_causal_whole_units(run), all = unit_count(run);
    job j = {.hook = hook};
    if (whole > 0) {
        carve(&(mhla_carver){run->ws, 0}, &j, run, 0);
        mhla_parallel(run->call.context, whole, unit_task, &j);
    }
    const int64_t size = mhla_causal_crew_size(run, all - whole);
    if (whole < all) carve(&(mhla_carver){run->ws, 0}, &j, run, size);
    j.now = j.unit;
    for (int64_t i = whole; i < all; i += size) {
        j.crew = (mhla_causal_crew){.context = run->call.context,
                                    .split = 1,
                                    .units = (int)(all - i < size ? all - i : size),
                                    .first = j.first};
        forward_crew(&j, i);
    }
}

size_t mhla_causal_walk_workspace(const mhla_run *run) { return workspace(run, 0); }

static mhla_status forward(const mhla_run *run) {
    mhla_causal_walk(run, NULL);
    return MHLA_OK;
}

const mhla_op mhla_op_causal = {
    .name = "causal",
    .check_plan = check_plan,
    .check_call = check_call,
    .workspace = workspace,
    .forward = forward,
    .backward = mhla_causal_backward,
    .forward_reference = mhla_causal_forward_reference,
    .backward_reference = mhla_causal_backward_reference,
};
