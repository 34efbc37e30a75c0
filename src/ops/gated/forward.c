/* The forward pass: scores of all chunks first, since heads may share them; then a walk over the chunks of each head, which
 * carries the state. Where heads are few, a walk takes a part of the columns of v. */
#include "ops/gated/gated.h"

typedef struct walk_job {
    const mhla_gated *w;
    mhla_gated_scratch *scratch;
    mhla_gated_walk_fn *chunk;
    int pieces; /* of V */
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

void mhla_gated_next_state(const mhla_gated *w, mhla_gated_scratch *z, const float *values, int n, const mhla_panels *p,
                           int fresh) {
    const mhla_run *run = w->run;
    mhla_gemm next = {.m = w->K,
                      .n = *p,
                      .store = fresh ? MHLA_STORE_SET : MHLA_STORE_ADD,
                      .c = z->S,
                      .c_rows = w->K,
                      .row_decay = z->total};
    next.f = (mhla_factor){.k = n, .a = z->kd, .a_row = 1, .a_k = w->ldk, .b = values, .b_rows = n};
    if (run->pairs && !fresh) { /* products of bfloat16 only add to what is there */
        decay_state(w, z->S, z->total, p);
        next.row_decay = NULL;
    }
    mhla_multiply(run, &next);
}

/* o = q' S + A v, S = total S + k'^T v */
static void walk_chunk(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                       const mhla_gated_columns *cols, int fresh) {
    const mhla_run *run = w->run;
    const mhla_kernels *kernels = run->kernels;
    const mhla_plan_desc *d = &run->plan->d;
    const int64_t key_head = h / w->R;
    const int n = c->n;
    const size_t element = mhla_dtype_size(d->dtype);
    mhla_gated_decays(w, z, c, h);
    const mhla_rows q = mhla_gated_rows(c, run->q, d->dtype, &run->call.q, key_head);
    const mhla_rows k = mhla_gated_rows(c, run->k, d->dtype, &run->call.k, key_head);
    mhla_rows v = mhla_gated_rows(c, run->v, d->dtype, &run->call.v, h);
    mhla_rows o = mhla_gated_rows(c, run->o, d->dtype, &run->call.o, h);
    v.base = (char *)v.base + (size_t)cols->begin * element;
    o.base = (char *)o.base + (size_t)cols->begin * element;
    mhla_gated_decayed(w, z, z->qd, &q, n, z->eb, d->scale);
    mhla_gated_decayed(w, z, z->kd, &k, n, z->ek, 1.0f);
    kernels->copy_panels(z->vp, &cols->p, &v, n, NULL);
    const float *scores = mhla_gated_scores_at(w, c->x, key_head);
    mhla_blend scaled = {.n = n, .cols = n, .y = z->A, .x = scores, .ldy = w->ldc, .ldx = w->ldc, .alpha = d->scale};
    if (!w->channels) {
        mhla_gated_mask(w, z, n);
        scaled.z = z->L;
        scaled.ldz = w->ldc;
    }
    kernels->blend(&scaled);
    mhla_gemm out = {.m = n,
                     .n = cols->p,
                     .f2_lower = 1,
                     .f2_lead = 1,
                     .store = MHLA_STORE_ROWS,
                     .out = o,
                     .accumulate = run->call.accumulate};
    if (!fresh) out.f = (mhla_factor){.k = w->K, .a = z->qd, .a_row = w->ldk, .a_k = 1, .b = z->S, .b_rows = w->K};
    out.f2 = (mhla_factor){.k = n, .a = z->A, .a_row = w->ldc, .a_k = 1, .b = z->vp, .b_rows = n};
    if (fresh)
        kernels->gemm(&out);
    else
        mhla_multiply(run, &out);
    mhla_gated_next_state(w, z, z->vp, n, &cols->p, fresh);
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
    const int64_t piece = i % job->pieces, h = i / job->pieces % w->H, s = i / job->pieces / w->H;
    const int vectors = w->pv.vectors, unit = w->pv.unit;
    const int first = (int)(piece * vectors / job->pieces) * unit,
              end = (int)((piece + 1) * vectors / job->pieces) * unit;
    mhla_gated_columns cols = {.begin = first};
    w->run->kernels->panels(&cols.p, (end < w->V ? end : w->V) - first);
    const int64_t state = (s * w->H + h) * w->K * w->V;
    int fresh = c->initial_state == NULL && !begins_with_nan(w, s, h);
    if (!fresh) load_state(w, z->S, c->initial_state ? c->initial_state + state : NULL, &cols);
    for (int64_t x = w->first[s]; x < w->first[s + 1]; x++) {
        const mhla_gated_chunk chunk = mhla_gated_at(w, x);
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
    mhla_gated_make(&w, run, &c);
    mhla_gated_carve_all(&c, &w, 0);
    return c.used;
}

void mhla_gated_walk(const mhla_gated *w, mhla_gated_scratch *scratch, mhla_gated_walk_fn *chunk) {
    const int most = w->pv.vectors * w->pv.unit / 32; /* pieces of 32 columns or more */
    walk_job job = {w, scratch, chunk, 1};
    job.pieces = mhla_gated_pieces(w->N * w->H, most < w->pv.vectors ? most : w->pv.vectors, w->run->threads);
    mhla_parallel(w->run->call.context, w->N * w->H * job.pieces, walk, &job);
}

mhla_status mhla_gated_forward(const mhla_run *run) {
    MHLA_TRY(mhla_gated_check_decay(run));
    mhla_carver c = {.base = run->ws};
    mhla_gated w;
    mhla_gated_make(&w, run, &c);
    mhla_gated_scratch *scratch = mhla_gated_carve_all(&c, &w, 0);
    mhla_gated_score(&w, scratch);
    mhla_gated_walk(&w, scratch, walk_chunk);
    return MHLA_OK;
}
