/* The forward pass: scores of all chunks first, where heads share them; then a walk over the chunks of each head, which
 * carries the state. Where heads are few, a walk takes a part of the columns of v. A walk that needs all of a head's scores, and is alone
 * in that, makes them on its way. */
#include "ops/gated/gated.h"

typedef struct walk_job {
    const mhla_gated *w;
    mhla_gated_scratch *scratch;
    mhla_gated_score_fn *score;
    mhla_gated_walk_fn *chunk;
} walk_job;

static void load_state(const mhla_gated *w, float *S, const float *from, const mhla_gated_columns *v) {
    for (int i = 0; i < v->p.count; i++) {
        const int begin = mhla_panel_begin(&v->p, i), width = mhla_panel_begin(&v->p, i + 1) - begin;
        const int cols = v->p.n - begin < width ? v->p.n - begin : width;
        for (int r = 0; r < w->K; r++) {
            float *row = S + (int64_t)w->K * begin + (int64_t)r * width;
            memset(row, 0, (size_t)width * sizeof *row);
            if (from) memcpy(row, from + (int64_t)r * w->V + v->begin + begin, (size_t)cols * sizeof *row);
        }
    }
}

static void store_state(const mhla_gated *w, float *to, const float *S, const mhla_gated_columns *v, int zero) {
    for (int i = 0; i < v->p.count; i++) {
        const int begin = mhla_panel_begin(&v->p, i), width = mhla_panel_begin(&v->p, i + 1) - begin;
        const int cols = v->p.n - begin < width ? v->p.n - begin : width;
        for (int r = 0; r < w->K; r++) {
            float *row = to + (int64_t)r * w->V + v->begin + begin;
            if (zero)
                memset(row, 0, (size_t)cols * sizeof *row);
            else
                memcpy(row, S + (int64_t)w->K * begin + (int64_t)r * width, (size_t)cols * sizeof *row);
        }
    }
}

static void decay_state(const mhla_gated *w, float *S, const float *total, const mhla_panels *p) {
    for (int i = 0; i < p->count; i++) {
        const int begin = mhla_panel_begin(p, i), width = mhla_panel_begin(p, i + 1) - begin;
        float *panel = S + (int64_t)w->K * begin;
        for (int r = 0; r < w->K; r++)
            for (int j = 0; j < width; j++) panel[r * width + j] *= total[r];
    }
}

enum { FETCHES = 5 };

/* What the chunk after c reads and writes; how many lists of rows that is. */
static int list_next(const mhla_gated *w, mhla_prefetch *list, const mhla_gated_chunk *c, int64_t h,
                     const mhla_gated_columns *cols) {
    const mhla_run *run = w->run;
    const mhla_call *call = &run->call;
    const mhla_dtype dtype = run->plan->d.dtype;
    if (c->x + 1 >= w->first[c->s + 1]) return 0;
    const mhla_gated_chunk next = mhla_gated_at(w, c->x + 1);
    const int size = (int)mhla_dtype_size(dtype), keys = w->K * size, values = cols->p.n * size;
    int n = 0;
    list[n++] = (mhla_prefetch){mhla_gated_rows(&next, run->q, dtype, &call->q, h / w->R), next.n, keys};
    list[n++] = (mhla_prefetch){mhla_gated_rows(&next, run->k, dtype, &call->k, h / w->R), next.n, keys};
    if (w->channels)
        list[n++] = (mhla_prefetch){mhla_gated_rows(&next, call->decay, MHLA_F32, &call->decay_strides, h), next.n,
                                    w->K * (int)sizeof(float)};
    list[n++] = (mhla_prefetch){mhla_gated_rows(&next, run->v, dtype, &call->v, h), next.n, values};
    list[n++] = (mhla_prefetch){mhla_gated_rows(&next, run->o, dtype, &call->o, h), next.n, values};
    for (int i = n - 2; i < n; i++) list[i].rows.base = (char *)list[i].rows.base + (ptrdiff_t)cols->begin * size;
    return n;
}

void mhla_gated_next_state(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                           const float *values, const mhla_gated_columns *cols, int fresh) {
    const mhla_run *run = w->run;
    mhla_prefetch list[FETCHES];
    mhla_gemm next = {.m = w->K,
                      .n = cols->p,
                      .store = fresh ? MHLA_STORE_SET : MHLA_STORE_ADD,
                      .c = z->S,
                      .c_rows = w->K,
                      .row_decay = z->total,
                      .prefetch = list,
                      .n_prefetch = list_next(w, list, c, h, cols)};
    next.f = (mhla_factor){.k = c->n, .a = z->kd, .a_row = 1, .a_k = w->ldk, .b = values, .b_rows = c->n};
    if (run->pairs && !fresh) { /* products of bfloat16 only add to what is there */
        decay_state(w, z->S, z->total, &cols->p);
        next.row_decay = NULL;
    }
    mhla_multiply(run, &next);
}

/* Decays, qd and kd of head h; of simple GLA with the scale in it. */
static void make_factors(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h) {
    const mhla_run *run = w->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    mhla_rows q = mhla_gated_rows(c, run->q, dtype, &run->call.q, h / w->R);
    mhla_rows k = mhla_gated_rows(c, run->k, dtype, &run->call.k, h / w->R);
    if (w->fused) { /* they are there */
        q = (mhla_rows){z->q, NULL, w->ldk, MHLA_F32};
        k = (mhla_rows){z->k, NULL, w->ldk, MHLA_F32};
    }
    if (w->fused && w->channels) {
        mhla_gated_decays_left(w, z, c->n);
        mhla_gated_times(w, z->kd, z->k, z->ek, w->ldk, c->n, 1.0f, 0);
        return;
    }
    mhla_gated_decays(w, z, c, h);
    mhla_gated_decayed(w, z, z->qd, &q, c->n, z->eb, w->channels ? 1.0f : run->plan->d.scale);
    mhla_gated_decayed(w, z, z->kd, &k, c->n, z->ek, 1.0f);
}

/* o = q' S + A v, S = total S + k'^T v; GLA's o is multiplied with the scale at the end */
static void walk_chunk(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                       const mhla_gated_columns *cols, int fresh) {
    const mhla_run *run = w->run;
    const mhla_kernels *kernels = run->kernels;
    const mhla_plan_desc *d = &run->plan->d;
    const int n = c->n;
    const size_t before = (size_t)cols->begin * mhla_dtype_size(d->dtype);
    mhla_rows v = mhla_gated_rows(c, run->v, d->dtype, &run->call.v, h);
    mhla_rows o = mhla_gated_rows(c, run->o, d->dtype, &run->call.o, h);
    v.base = (char *)v.base + before;
    o.base = (char *)o.base + before;
    make_factors(w, z, c, h);
    kernels->copy_panels(z->vp, &cols->p, &v, n, NULL);
    const float *A = mhla_gated_scores_at(w, z, c->x, h / w->R);
    mhla_gemm out = {.m = n,
                     .n = cols->p,
                     .f2_lower = 1,
                     .f2_lead = 1,
                     .store = MHLA_STORE_ROWS,
                     .out = o,
                     .accumulate = run->call.accumulate};
    if (w->channels) {
        for (int t = 0; t < n; t++) z->scale[t] = d->scale;
        out.row_scale = z->scale;
    } else {
        mhla_gated_mask(w, z, n);
        const mhla_blend masked = {.n = n,
                                   .cols = n,
                                   .y = z->A,
                                   .x = A,
                                   .z = z->L,
                                   .ldy = w->ldc,
                                   .ldx = w->ldc,
                                   .ldz = w->ldc,
                                   .alpha = d->scale};
        kernels->blend(&masked);
        A = z->A;
    }
    if (!fresh) out.f = (mhla_factor){.k = w->K, .a = z->qd, .a_row = w->ldk, .a_k = 1, .b = z->S, .b_rows = w->K};
    out.f2 = (mhla_factor){.k = n, .a = A, .a_row = w->ldc, .a_k = 1, .b = z->vp, .b_rows = n};
    if (fresh)
        kernels->gemm(&out);
    else
        mhla_multiply(run, &out);
    mhla_gated_next_state(w, z, c, h, z->vp, cols, fresh);
}

/* A decay of NaN makes NaN even of a state of 0. Later in a chunk it is in the mask. */
static int begins_with_nan(const mhla_gated *w, int64_t s, int64_t h) {
    const mhla_call *c = &w->run->call;
    if (w->first[s] == w->first[s + 1]) return 0;
    const float *g = mhla_at(c->decay, MHLA_F32, &c->decay_strides, mhla_seq_batch(c, s), mhla_seq_begin(c, s), h);
    int found = 0;
    for (int j = 0; j < (w->channels ? w->K : 1); j++) found |= g[j] != g[j];
    return found;
}

static void walk(void *arg, int64_t i, int worker) {
    const walk_job *job = arg;
    const mhla_gated *w = job->w;
    const mhla_call *c = &w->run->call;
    mhla_gated_scratch *z = &job->scratch[worker];
    const int64_t piece = i % w->pieces, h = i / w->pieces % w->H, s = i / w->pieces / w->H;
    const int vectors = w->pv.vectors, unit = w->pv.unit;
    const int first = (int)(piece * vectors / w->pieces) * unit, end = (int)((piece + 1) * vectors / w->pieces) * unit;
    mhla_gated_columns cols = {.begin = first};
    w->run->kernels->panels(&cols.p, (end < w->V ? end : w->V) - first);
    const int64_t state = (s * w->H + h) * w->K * w->V;
    int fresh = c->initial_state == NULL && !begins_with_nan(w, s, h);
    if (!fresh) load_state(w, z->S, c->initial_state ? c->initial_state + state : NULL, &cols);
    for (int64_t x = w->first[s]; x < w->first[s + 1]; x++) {
        const mhla_gated_chunk chunk = mhla_gated_at(w, x);
        if (w->fused) job->score(w, z, &chunk, h);
        job->chunk(w, z, &chunk, h, &cols, fresh);
        fresh = 0;
    }
    if (c->final_state) store_state(w, c->final_state + state, z->S, &cols, fresh);
}

mhla_gated_scratch *mhla_gated_carve_all(mhla_carver *c, const mhla_gated *w, int backward) {
    mhla_gated_scratch *scratch = mhla_carve(c, (size_t)w->run->threads * sizeof *scratch);
    for (int i = 0; i < w->run->threads; i++) {
        const mhla_gated_scratch one = mhla_gated_carve(c, w, backward);
        if (scratch) scratch[i] = one;
    }
    return scratch;
}

size_t mhla_gated_workspace(const mhla_run *run, int backward) {
    if (backward) return mhla_gated_backward_workspace(run);
    mhla_carver c = {0};
    mhla_gated w;
    mhla_gated_make(&w, run, &c, 0);
    mhla_gated_carve_all(&c, &w, 0);
    return c.used;
}

mhla_status mhla_gated_run_forward(const mhla_run *run, mhla_gated_score_fn *score, mhla_gated_walk_fn *chunk) {
    MHLA_TRY(mhla_gated_check_decay(run));
    mhla_carver c = {.base = run->ws};
    mhla_gated w;
    mhla_gated_make(&w, run, &c, 0);
    walk_job job = {&w, mhla_gated_carve_all(&c, &w, 0), score, chunk};
    if (!w.fused) mhla_gated_score_all(&w, job.scratch, score);
    mhla_parallel(run->call.context, w.N * w.H * w.pieces, walk, &job);
    return MHLA_OK;
}

mhla_status mhla_gated_forward(const mhla_run *run) {
    return mhla_gated_run_forward(run, mhla_gated_score, walk_chunk);
}
