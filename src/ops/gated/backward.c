/* The backward pass. States are kept transposed, [V] panelled over K: S[c], the state before chunk c, made again front to back,
 * and D[c], its gradient, back to front. Then each chunk is alone. Units (a sequence and a head of q and k) are taken in waves whose
 * states fit into WAVE floats, or one by one. README.md has the formulas. */
#include "ops/gated/gated.h"

enum { WAVE = 4 << 20 };

typedef struct back_job {
    const mhla_gated *w;
    mhla_gated_scratch *scratch;
    float *S, *D;         /* [states of the wave][E] */
    int64_t begin, end;   /* units of the wave */
    int64_t *unit_states; /* [units + 1] states before each unit of the wave */
    int pieces;           /* of K's panels */
} back_job;

static int64_t unit_chunks(const mhla_gated *w, int64_t unit) {
    const int64_t s = unit / w->G;
    return w->first[s + 1] - w->first[s];
}

/* A unit's states, of all its heads: [R][chunks + 1]. The same for all units of a sequence. */
static int64_t sequence_states(const mhla_gated *w, int64_t s) {
    const mhla_call *c = &w->run->call;
    const int64_t T = mhla_seq_end(c, s) - mhla_seq_begin(c, s);
    return ((T + w->C - 1) / w->C + 1) * w->R;
}

/* One past the last unit of the wave that begins with `begin`; its states. */
static int64_t wave_end(const mhla_gated *w, int64_t begin, int64_t *states) {
    int64_t end = begin;
    *states = 0;
    while (end < w->N * w->G) {
        const int64_t more = sequence_states(w, end / w->G);
        if (end > begin && (*states + more) * w->E > WAVE) break;
        *states += more;
        end++;
    }
    return end;
}

static float *state_at(const back_job *job, float *all, int64_t unit, int64_t r, int64_t c) {
    const int64_t at = job->unit_states[unit - job->begin] + r * (unit_chunks(job->w, unit) + 1) + c;
    return all + at * job->w->E;
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

/* to = total * from + rows^T keys, panels first .. last-1; rows [n] are of v or do. */
static void next_state(const mhla_gated *w, mhla_gated_scratch *z, float *to, const float *from, const mhla_rows *rows,
                       const float *keys, int n, int first, int last) {
    const mhla_run *run = w->run;
    const float *a = rows->base;
    int64_t lda = rows->stride;
    if (rows->dtype != MHLA_F32) {
        run->kernels->copy_rows(z->v, w->ldv, rows, n, w->V, NULL);
        a = z->v;
        lda = w->ldv;
    }
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
                       .c_row = width};
        g.f = (mhla_factor){.k = n, .a = a, .a_row = 1, .a_k = lda, .b = keys + begin, .b_k = w->ldk};
        mhla_multiply(run, &g);
    }
}

/* ---- S front to back, D back to front: a head, or some of its panels ---- */

static void run_states(const back_job *job, int64_t i, int worker, int back) {
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const mhla_grads *grads = &run->grads;
    const mhla_dtype dtype = run->plan->d.dtype;
    mhla_gated_scratch *z = &job->scratch[worker];
    const int piece = (int)(i % job->pieces);
    const int64_t r = i / job->pieces % w->R, unit = job->begin + i / job->pieces / w->R;
    const int64_t s = unit / w->G, key_head = unit % w->G, h = key_head * w->R + r, n = unit_chunks(w, unit);
    const int first = piece * w->pk.count / job->pieces, last = (piece + 1) * w->pk.count / job->pieces;
    const int64_t at = (s * w->H + h) * w->K * w->V;
    if (back)
        load_panels(w, state_at(job, job->D, unit, r, n), grads->dfinal_state ? grads->dfinal_state + at : NULL, first,
                    last);
    else
        load_panels(w, state_at(job, job->S, unit, r, 0), c->initial_state ? c->initial_state + at : NULL, first, last);
    for (int64_t e = 0; e < (back ? n : n - 1); e++) { /* nothing reads S after the last chunk */
        const int64_t chunk = back ? n - 1 - e : e;
        const mhla_gated_chunk x = mhla_gated_at(w, w->first[s] + chunk);
        mhla_gated_decays(w, z, &x, h);
        const mhla_rows keys = back ? mhla_gated_rows(&x, run->q, dtype, &c->q, key_head)
                                    : mhla_gated_rows(&x, run->k, dtype, &c->k, key_head);
        const mhla_rows rows =
            back ? mhla_gated_rows(&x, run->dO, dtype, &c->o, h) : mhla_gated_rows(&x, run->v, dtype, &c->v, h);
        mhla_gated_decayed(w, z, z->kd, &keys, x.n, back ? z->eb : z->ek, back ? run->plan->d.scale : 1.0f);
        float *all = back ? job->D : job->S;
        next_state(w, z, state_at(job, all, unit, r, back ? chunk : chunk + 1),
                   state_at(job, all, unit, r, back ? chunk + 1 : chunk), &rows, z->kd, x.n, first, last);
    }
    if (back && grads->dinitial_state)
        store_panels(w, grads->dinitial_state + at, state_at(job, job->D, unit, r, 0), first, last, grads->accumulate);
}

static void run_forward(void *arg, int64_t i, int worker) { run_states(arg, i, worker, 0); }
static void run_back(void *arg, int64_t i, int worker) { run_states(arg, i, worker, 1); }

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

/* The decay of token t acts on what goes from before it to t or later, and on nothing else. With P = dA A:
 *   dg_t = sum_{u<t<=s} P[s][u] + sum_{s>=t} q_s.x_s eb_s + sum_{u<t} k_u.y_u ek_u + total sum S D
 * No term is added that another one takes away. */
static void decay_gradient(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                           const float *S, const float *D) {
    const mhla_kernels *k = w->run->kernels;
    const mhla_grads *grads = &w->run->grads;
    const int n = c->n;
    state_sums(w, z, S, D);
    float through = 0.0f;
    for (int j = 0; j < w->K; j++) through += z->sums[j];
    through *= z->total[0];
    float *below = z->sums, *dg = z->db; /* below[u] = sum_{s>=t} P[s][u] */
    memset(below, 0, (size_t)w->ldc * sizeof *below);
    for (int t = n - 1; t >= 0; t--) {
        const mhla_blend add = {
            .n = 1, .cols = t, .y = below, .x = z->dA + t * w->ldc, .z = z->A + t * w->ldc, .alpha = 1.0f, .add = 1};
        k->blend(&add);
        k->row_dots(&dg[t], below, 0, z->ones, 0, 1, t);
    }
    float *dots = z->sums, sum = through;
    k->row_dots(dots, z->k, w->ldk, z->y, w->ldk, n, w->K);
    for (int t = 0; t < n; t++) {
        dg[t] += sum;
        sum += z->ek[t] * dots[t];
    }
    k->row_dots(dots, z->q, w->ldk, z->x, w->ldk, n, w->K);
    const mhla_rows out = mhla_gated_rows(c, grads->ddecay, MHLA_F32, &grads->ddecay_strides, h);
    sum = 0.0f;
    for (int t = n - 1; t >= 0; t--) {
        sum += z->eb[t] * dots[t];
        float *to = (float *)out.base + t * out.stride;
        *to = dg[t] + sum + (grads->accumulate ? *to : 0.0f);
    }
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

static void head_backward(const back_job *job, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t unit,
                          int64_t r) {
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_kernels *k = run->kernels;
    const mhla_dtype dtype = run->plan->d.dtype;
    const int64_t key_head = unit % w->G, h = key_head * w->R + r, chunk = c->x - w->first[c->s];
    const int n = c->n;
    const float *S = state_at(job, job->S, unit, r, chunk), *D = state_at(job, job->D, unit, r, chunk + 1);
    const float *A = mhla_gated_scores_at(w, c->x, key_head);
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

/* Chunk i of the wave's units. */
static void run_chunk(void *arg, int64_t i, int worker) {
    const back_job *job = arg;
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_grads *grads = &run->grads;
    const mhla_dtype dtype = run->plan->d.dtype;
    mhla_gated_scratch *z = &job->scratch[worker];
    int64_t unit = job->begin;
    for (; i >= unit_chunks(w, unit); unit++) i -= unit_chunks(w, unit);
    const int64_t s = unit / w->G, key_head = unit % w->G;
    const mhla_gated_chunk c = mhla_gated_at(w, w->first[s] + i);
    const mhla_rows q = mhla_gated_rows(&c, run->q, dtype, &run->call.q, key_head);
    const mhla_rows k = mhla_gated_rows(&c, run->k, dtype, &run->call.k, key_head);
    run->kernels->copy_rows(z->q, w->ldk, &q, c.n, w->K, NULL);
    run->kernels->copy_rows(z->k, w->ldk, &k, c.n, w->K, NULL);
    if (!w->channels) {
        memset(z->M, 0, (size_t)(w->C * w->ldc) * sizeof *z->M);
        memset(z->dq, 0, (size_t)(c.n * w->ldk) * sizeof *z->dq);
        memset(z->dk, 0, (size_t)(c.n * w->ldk) * sizeof *z->dk);
    }
    for (int64_t r = 0; r < w->R; r++) head_backward(job, z, &c, unit, r);
    if (!w->channels) { /* dq += M k, dk += M^T q */
        mhla_gemm g = {
            .m = c.n, .n = w->pk, .f2_lower = 1, .f2_lead = 1, .store = MHLA_STORE_ADD, .c = z->dq, .c_row = w->ldk};
        g.f2 = (mhla_factor){.k = c.n, .a = z->M, .a_row = w->ldc, .a_k = 1, .b = z->k, .b_k = w->ldk};
        run->kernels->gemm(&g);
        mhla_gated_times_turned(w, z, z->dk, z->M, z->q, c.n, 1, 1);
    }
    if (grads->dq) {
        const mhla_rows out = mhla_gated_rows(&c, grads->dq, MHLA_F32, &grads->dq_strides, key_head);
        run->kernels->store_rows(&out, z->dq, w->ldk, c.n, w->K, grads->accumulate);
    }
    if (grads->dk) {
        const mhla_rows out = mhla_gated_rows(&c, grads->dk, MHLA_F32, &grads->dk_strides, key_head);
        run->kernels->store_rows(&out, z->dk, w->ldk, c.n, w->K, grads->accumulate);
    }
}

/* ---- Waves ---- */

static back_job carve_job(mhla_carver *c, const mhla_gated *w) {
    back_job job = {.w = w};
    job.scratch = mhla_carve(c, (size_t)w->run->threads * sizeof *job.scratch);
    for (int i = 0; i < w->run->threads; i++) {
        const mhla_gated_scratch one = mhla_gated_carve(c, w, 1);
        if (job.scratch) job.scratch[i] = one;
    }
    int64_t most = 0, units = 0;
    for (int64_t begin = 0; begin < w->N * w->G;) {
        int64_t states;
        const int64_t end = wave_end(w, begin, &states);
        if (states > most) most = states;
        if (end - begin > units) units = end - begin;
        begin = end;
    }
    job.unit_states = mhla_carve(c, (size_t)(units + 1) * sizeof *job.unit_states);
    job.S = mhla_carve_floats(c, most * w->E);
    job.D = mhla_carve_floats(c, most * w->E);
    return job;
}

size_t mhla_gated_backward_workspace(const mhla_run *run) {
    mhla_carver c = {0};
    mhla_gated w;
    mhla_gated_make(&w, run, &c);
    carve_job(&c, &w);
    return c.used;
}

mhla_status mhla_gated_backward(const mhla_run *run) {
    MHLA_TRY(mhla_gated_check_decay(run));
    mhla_carver c = {.base = run->ws};
    mhla_gated w;
    mhla_gated_make(&w, run, &c);
    back_job job = carve_job(&c, &w);
    mhla_gated_score(&w, job.scratch);
    for (job.begin = 0; job.begin < w.N * w.G; job.begin = job.end) {
        int64_t states, chunks = 0, before = 0;
        job.end = wave_end(&w, job.begin, &states);
        for (int64_t unit = job.begin; unit < job.end; unit++) {
            job.unit_states[unit - job.begin] = before;
            before += sequence_states(&w, unit / w.G);
            chunks += unit_chunks(&w, unit);
        }
        const int64_t heads = (job.end - job.begin) * w.R;
        job.pieces = mhla_gated_pieces(heads, w.pk.count, run->threads);
        mhla_parallel(run->call.context, heads * job.pieces, run_forward, &job);
        mhla_parallel(run->call.context, heads * job.pieces, run_back, &job);
        mhla_parallel(run->call.context, chunks, run_chunk, &job);
    }
    return MHLA_OK;
}
