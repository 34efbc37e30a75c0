/* The backward pass of simple GLA and GLA. States are kept transposed, [V] panelled over K. README.md has the formulas; waves.c says
 * in which order the passes go. */
#include "ops/gated/gated.h"

static float *state_at(const mhla_gated_back *job, float *all, int64_t unit, int64_t r, int64_t c) {
    return all + mhla_gated_state_number(job, unit, r, c) * job->w->E;
}

/* ---- States in the caller's layout, [K,V], and ours: panels first .. last-1 ---- */

static void load_panels(const mhla_gated *w, float *S, const float *from, int first, int last) {
    for (int i = first; i < last; i++) {
        const int begin = mhla_panel_begin(&w->pk, i), width = mhla_panel_begin(&w->pk, i + 1) - begin;
        float *panel = S + (int64_t)w->V * begin;
        if (from == NULL || begin + width > w->K) memset(panel, 0, (size_t)w->V * (size_t)width * sizeof *panel);
        for (int r = begin; from && r < begin + width && r < w->K; r++)
            for (int j = 0; j < w->V; j++) panel[j * width + r - begin] = from[(int64_t)r * w->V + j];
    }
}

static void store_panels(const mhla_gated *w, float *to, const float *S, int first, int last, int add) {
    for (int i = first; i < last; i++) {
        const int begin = mhla_panel_begin(&w->pk, i), width = mhla_panel_begin(&w->pk, i + 1) - begin;
        const float *panel = S + (int64_t)w->V * begin;
        for (int r = begin; r < begin + width && r < w->K; r++)
            for (int j = 0; j < w->V; j++) {
                float *x = &to[(int64_t)r * w->V + j];
                *x = panel[j * width + r - begin] + (add ? *x : 0.0f);
            }
    }
}

/* to = total * from + rows^T keys, panels first .. last-1; rows [n] are of v or do, and copied, since columns of the caller's may
 * all lie in the same set of the cache. `fetch` [2] is read next, or NULL. */
static void next_state(const mhla_gated *w, mhla_gated_scratch *z, float *to, const float *from, const mhla_rows *rows,
                       const float *keys, int n, int first, int last, const mhla_prefetch *fetch) {
    const mhla_run *run = w->run;
    run->kernels->copy_rows(z->v, w->ldv, rows, n, w->V, NULL);
    for (int i = first; i < last; i++) {
        const int begin = mhla_panel_begin(&w->pk, i), width = mhla_panel_begin(&w->pk, i + 1) - begin;
        const int vectors = width / w->pk.unit;
        const int64_t at = (int64_t)w->V * begin;
        mhla_blend copy = {.n = w->V,
                           .cols = width,
                           .y = to + at,
                           .x = from + at,
                           .z = z->total + begin,
                           .ldy = width,
                           .ldx = width,
                           .alpha = 1.0f};
        run->kernels->blend(&copy);
        mhla_gemm g = {.m = w->V,
                       .n = {width, w->pk.unit, vectors, 1, vectors, 0},
                       .store = MHLA_STORE_ADD,
                       .c = to + at,
                       .c_row = width,
                       .prefetch = fetch,
                       .n_prefetch = fetch && i == first ? 2 : 0};
        g.f = (mhla_factor){.k = n, .a = z->v, .a_row = 1, .a_k = w->ldv, .b = keys + begin, .b_k = w->ldk};
        mhla_multiply(run, &g);
    }
}

/* ---- S front to back, D back to front: a head, or some of its panels ---- */

/* What a chunk adds to a state, k and v, or to its gradient, q and do. */
typedef struct state_rows {
    mhla_rows keys, values;
} state_rows;

static state_rows rows_of(const mhla_gated *w, const mhla_gated_chunk *x, int64_t h, int back) {
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const mhla_dtype dtype = run->plan->d.dtype;
    const int64_t key_head = h / w->R;
    if (back)
        return (state_rows){mhla_gated_rows(x, run->q, dtype, &c->q, key_head),
                            mhla_gated_rows(x, run->dO, dtype, &c->o, h)};
    return (state_rows){mhla_gated_rows(x, run->k, dtype, &c->k, key_head),
                        mhla_gated_rows(x, run->v, dtype, &c->v, h)};
}

static void run_states(const mhla_gated_back *job, mhla_gated_scratch *z, int64_t unit, int64_t r, int first, int last,
                       int back) {
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const mhla_grads *grads = &run->grads;
    const int64_t s = unit / w->G, h = unit % w->G * w->R + r, n = mhla_gated_unit_chunks(w, unit);
    const int64_t at = (s * w->H + h) * w->K * w->V;
    if (back)
        load_panels(w, state_at(job, job->D, unit, r, n), grads->dfinal_state ? grads->dfinal_state + at : NULL, first,
                    last);
    else
        load_panels(w, state_at(job, job->S, unit, r, 0), c->initial_state ? c->initial_state + at : NULL, first, last);
    float *all = back ? job->D : job->S;
    const int64_t steps = back ? n : n - 1; /* nothing reads S after the last chunk */
    for (int64_t e = 0; e < steps; e++) {
        const int64_t chunk = back ? n - 1 - e : e, from = chunk + back, to = chunk + !back;
        const mhla_gated_chunk x = mhla_gated_at(w, w->first[s] + chunk);
        const state_rows at_hand = rows_of(w, &x, h, back);
        mhla_prefetch fetch[2];
        if (e + 1 < steps) {
            const mhla_gated_chunk next = mhla_gated_at(w, w->first[s] + to - back);
            const state_rows later = rows_of(w, &next, h, back);
            const int element = (int)mhla_dtype_size(run->plan->d.dtype);
            fetch[0] = (mhla_prefetch){later.keys, next.n, w->K * element};
            fetch[1] = (mhla_prefetch){later.values, next.n, w->V * element};
        }
        mhla_gated_decays(w, z, &x, h);
        mhla_gated_decayed(w, z, z->kd, &at_hand.keys, x.n, back ? z->eb : z->ek, back ? run->plan->d.scale : 1.0f);
        next_state(w, z, state_at(job, all, unit, r, to), state_at(job, all, unit, r, from), &at_hand.values, z->kd,
                   x.n, first, last, e + 1 < steps ? fetch : NULL);
    }
    if (back && grads->dinitial_state)
        store_panels(w, grads->dinitial_state + at, state_at(job, job->D, unit, r, 0), first, last, grads->accumulate);
}

/* ---- A chunk ---- */

/* x [n][ldk] = rows [n][ldv] S */
static void times_state(const mhla_gated *w, float *x, const float *rows, const float *S, int n) {
    mhla_gemm g = {.m = n, .n = w->pk, .store = MHLA_STORE_SET, .c = x, .c_row = w->ldk};
    g.f = (mhla_factor){.k = w->V, .a = rows, .a_row = w->ldv, .a_k = 1, .b = S, .b_rows = w->V};
    mhla_multiply(w->run, &g);
}

/* dv = k' D + A^T a, row by row from the last */
static void value_gradient(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                           const float *A, const float *D) {
    const mhla_grads *grads = &w->run->grads;
    const int n = c->n;
    if (grads->dv == NULL) return;
    w->run->kernels->transpose_panels(z->S, &w->pv, D, &w->pk);
    mhla_gated_turn(z->turned, A, w->ldc, n);
    mhla_rows out = mhla_gated_rows(c, grads->dv, MHLA_F32, &grads->dv_strides, h);
    out.base = (float *)out.base + (n - 1) * out.stride;
    out.stride = -out.stride;
    mhla_gemm g = {.m = n,
                   .n = w->pv,
                   .f2_lower = 1,
                   .f2_lead = 1,
                   .store = MHLA_STORE_ROWS,
                   .out = out,
                   .accumulate = grads->accumulate};
    g.f =
        (mhla_factor){.k = w->K, .a = z->kd + (n - 1) * w->ldk, .a_row = -w->ldk, .a_k = 1, .b = z->S, .b_rows = w->K};
    g.f2 =
        (mhla_factor){.k = n, .a = z->turned, .a_row = w->ldc, .a_k = 1, .b = z->a + (n - 1) * w->ldv, .b_k = -w->ldv};
    mhla_multiply(w->run, &g);
}

/* sums [K] = the sum over V of S D, S before the chunk, D after it */
static void state_sums(const mhla_gated *w, mhla_gated_scratch *z, const float *S, const float *D) {
    memset(z->sums, 0, (size_t)w->ldk * sizeof *z->sums);
    for (int i = 0; i < w->pk.count; i++) {
        const int begin = mhla_panel_begin(&w->pk, i), width = mhla_panel_begin(&w->pk, i + 1) - begin;
        const int64_t at = (int64_t)w->V * begin;
        w->run->kernels->column_sums(z->sums + begin, S + at, width, D + at, width, w->V, width);
    }
}

static void decay_gradient(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                           const float *S, const float *D) {
    const mhla_kernels *k = w->run->kernels;
    const int n = c->n;
    state_sums(w, z, S, D);
    float through = 0.0f;
    for (int j = 0; j < w->K; j++) through += z->sums[j];
    k->row_dots(z->early, z->k, w->ldk, z->y, w->ldk, n, w->K);
    k->row_dots(z->late, z->q, w->ldk, z->x, w->ldk, n, w->K);
    for (int t = 0; t < n; t++) {
        z->early[t] *= z->ek[t];
        z->late[t] *= z->eb[t];
    }
    mhla_gated_put_decay(w, z, c, h, z->dA, z->A, w->ldc, z->early, z->late, z->total[0] * through);
}

/* One decay per token: what a head adds to dq, dk and M, the sum over heads of dA L; its dg. */
static void head_simple(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                        const float *S, const float *D) {
    const mhla_kernels *k = w->run->kernels;
    const int n = c->n;
    const mhla_blend add = {.n = n,
                            .cols = n,
                            .y = z->M,
                            .x = z->dA,
                            .z = z->L,
                            .ldy = w->ldc,
                            .ldx = w->ldc,
                            .ldz = w->ldc,
                            .alpha = 1.0f,
                            .add = 1};
    k->blend(&add);
    for (int t = 0; t < n; t++) {
        k->axpy(z->dq + t * w->ldk, z->eb[t], z->x + t * w->ldk, w->K);
        k->axpy(z->dk + t * w->ldk, z->ek[t], z->y + t * w->ldk, w->K);
    }
    if (w->run->grads.ddecay) decay_gradient(w, z, c, h, S, D);
}

/* A decay per channel: dg as above, but what stays inside the chunk is the sum over s >= t of q_s dq_s - k_s dk_s, of those parts of
 * dq and dk that come from A without its diagonal, on which no decay acts. */
static void head_channels(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                          const float *S, const float *D) {
    const mhla_kernels *k = w->run->kernels;
    const mhla_grads *grads = &w->run->grads;
    const int64_t ld = w->ldk;
    const int n = c->n;
    mhla_gated_times(w, z->x, z->x, z->eb, ld, n, 1.0f, 0);
    mhla_gated_times(w, z->y, z->y, z->ek, ld, n, 1.0f, 0);
    memset(z->dq, 0, (size_t)(n * ld) * sizeof(float));
    memset(z->dk, 0, (size_t)(n * ld) * sizeof(float));
    mhla_gla_scores_backward(w, z, z->dA, n);
    if (grads->ddecay) {
        float *dg = z->db, *sum = z->sums;
        mhla_gated_times(w, dg, z->q, z->dq, ld, n, 1.0f, 0);
        mhla_gated_times(w, dg, z->k, z->dk, ld, n, -1.0f, 1);
        mhla_gated_times(w, dg, z->q, z->x, ld, n, 1.0f, 1);
        for (int t = n - 2; t >= 0; t--) k->axpy(dg + t * ld, 1.0f, dg + (t + 1) * ld, w->K);
        state_sums(w, z, S, D);
        mhla_gated_times(w, sum, sum, z->total, 0, 1, 1.0f, 0);
        for (int t = 0; t < n; t++) {
            k->axpy(dg + t * ld, 1.0f, sum, w->K);
            mhla_gated_times(w, sum, z->k + t * ld, z->y + t * ld, 0, 1, 1.0f, 1);
        }
        const mhla_rows out = mhla_gated_rows(c, grads->ddecay, MHLA_F32, &grads->ddecay_strides, h);
        k->store_rows(&out, dg, ld, n, w->K, grads->accumulate);
    }
    k->axpy(z->dq, 1.0f, z->x, n * ld);
    k->axpy(z->dk, 1.0f, z->y, n * ld);
    for (int t = 0; t < n; t++) {
        k->axpy(z->dq + t * ld, z->dA[t * w->ldc + t], z->k + t * ld, w->K);
        k->axpy(z->dk + t * ld, z->dA[t * w->ldc + t], z->q + t * ld, w->K);
    }
}

static void head_backward(const mhla_gated_back *job, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t unit,
                          int64_t r) {
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_kernels *k = run->kernels;
    const mhla_dtype dtype = run->plan->d.dtype;
    const int64_t key_head = unit % w->G, h = key_head * w->R + r, chunk = c->x - w->first[c->s];
    const int n = c->n;
    const float *S = state_at(job, job->S, unit, r, chunk), *D = state_at(job, job->D, unit, r, chunk + 1);
    const float *A = mhla_gated_scores_at(w, z, c->x, key_head);
    mhla_gated_decays(w, z, c, h);
    for (int t = 0; t < n; t++) z->scale[t] = run->plan->d.scale;
    const mhla_rows dO = mhla_gated_rows(c, run->dO, dtype, &run->call.o, h);
    const mhla_rows v = mhla_gated_rows(c, run->v, dtype, &run->call.v, h);
    k->copy_rows(z->a, w->ldv, &dO, n, w->V, z->scale);
    k->copy_rows(z->v, w->ldv, &v, n, w->V, NULL);
    const mhla_panels p = mhla_gated_score_panels(k, n);
    k->transpose(z->T, &p, z->v, w->ldv, w->V);
    mhla_gated_lower(w, z->dA, z->a, w->ldv, z->T, w->V, n);
    if (!w->channels) {
        mhla_gated_mask(w, z, n);
        const mhla_blend masked = {.n = n,
                                   .cols = n,
                                   .y = z->A,
                                   .x = A,
                                   .z = z->L,
                                   .ldy = w->ldc,
                                   .ldx = w->ldc,
                                   .ldz = w->ldc,
                                   .alpha = 1.0f};
        k->blend(&masked);
        A = z->A;
    }
    const mhla_rows keys = {z->k, NULL, w->ldk, MHLA_F32};
    mhla_gated_decayed(w, z, z->kd, &keys, n, z->ek, 1.0f);
    value_gradient(w, z, c, h, A, D);
    times_state(w, z->x, z->a, S, n);
    times_state(w, z->y, z->v, D, n);
    if (w->channels)
        head_channels(w, z, c, h, S, D);
    else
        head_simple(w, z, c, h, S, D);
}

static void run_chunk(const mhla_gated_back *job, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t unit) {
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    const int64_t key_head = unit % w->G;
    const mhla_rows q = mhla_gated_rows(c, run->q, dtype, &run->call.q, key_head);
    const mhla_rows k = mhla_gated_rows(c, run->k, dtype, &run->call.k, key_head);
    run->kernels->copy_rows(z->q, w->ldk, &q, c->n, w->K, NULL);
    run->kernels->copy_rows(z->k, w->ldk, &k, c->n, w->K, NULL);
    if (!w->channels) {
        memset(z->M, 0, (size_t)(w->C * w->ldc) * sizeof *z->M);
        memset(z->dq, 0, (size_t)(c->n * w->ldk) * sizeof *z->dq);
        memset(z->dk, 0, (size_t)(c->n * w->ldk) * sizeof *z->dk);
    }
    for (int64_t r = 0; r < w->R; r++) head_backward(job, z, c, unit, r);
    if (!w->channels) mhla_gated_square_backward(w, z, c->n);
}

mhla_status mhla_gated_backward(const mhla_run *run) {
    mhla_gated_passes passes = {.score = mhla_gated_score, .states = run_states, .chunk = run_chunk};
    return mhla_gated_run_backward(run, &passes);
}
