/* The backward pass of the gated delta rule. States are [K] panelled over V; Y and dX, which the passes over states make and the
 * chunks read, [C][ldv]. README.md has the formulas. */
#include "ops/gated_delta/gated_delta.h"

/* The panels first .. last-1, and where they begin. */
typedef struct part {
    int begin;
    mhla_panels p;
} part;

static part take_part(const mhla_panels *all, int first, int last) {
    const int begin = mhla_panel_begin(all, first), end = mhla_panel_begin(all, last);
    part x = {begin, *all};
    x.p.n = (end < all->n ? end : all->n) - begin;
    x.p.vectors = (end - begin) / all->unit;
    x.p.count = last - first;
    x.p.extra = all->extra < first ? 0 : all->extra - first;
    return x;
}

static float *state_at(const mhla_gated_back *job, float *all, int64_t number) { return all + number * job->w->E; }
static float *rows_at(const mhla_gated_back *job, float *all, int64_t number) {
    return all + number * job->w->C * job->w->ldv;
}

/* ---- States in the caller's layout, [K,V], and ours ---- */

static void copy_state(const mhla_gated *w, float *S, float *theirs, const part *v, int load, int add) {
    for (int i = 0; i < v->p.count; i++) {
        const int begin = mhla_panel_begin(&v->p, i), width = mhla_panel_begin(&v->p, i + 1) - begin;
        const int cols = v->p.n - begin < width ? v->p.n - begin : width;
        for (int r = 0; r < w->K; r++) {
            float *row = S + (int64_t)w->K * (v->begin + begin) + (int64_t)r * width;
            float *other = theirs ? theirs + (int64_t)r * w->V + v->begin + begin : NULL;
            if (load) {
                memset(row, 0, (size_t)width * sizeof *row);
                if (other) memcpy(row, other, (size_t)cols * sizeof *row);
                continue;
            }
            for (int j = 0; j < cols; j++) other[j] = row[j] + (add ? other[j] : 0.0f);
        }
    }
}

/* to = total from + a^T x (+ a2^T x2), a [n][ldk], x [n][ldv] */
static void next_state(const mhla_gated *w, mhla_gated_scratch *z, float *to, const float *from, const part *v, int n,
                       const float *a, const float *x, const float *a2, const float *x2) {
    const int64_t at = (int64_t)w->K * v->begin, cols = mhla_panels_width(&v->p);
    const mhla_blend decayed = {.n = 1, .cols = w->K * cols, .y = to + at, .x = from + at, .alpha = z->total[0]};
    w->run->kernels->blend(&decayed);
    mhla_gemm g = {.m = w->K, .n = v->p, .store = MHLA_STORE_ADD, .c = to + at, .c_rows = w->K};
    g.f = (mhla_factor){.k = n, .a = a, .a_row = 1, .a_k = w->ldk, .b = x + v->begin, .b_k = w->ldv};
    mhla_multiply(w->run, &g);
    if (a2 == NULL) return;
    g.f = (mhla_factor){.k = n, .a = a2, .a_row = 1, .a_k = w->ldk, .b = x2 + v->begin, .b_k = w->ldv};
    mhla_multiply(w->run, &g);
}

/* Y of a chunk from the state S before it: X = v - e^b k S, Y = (I + N)^-1 X */
static void make_y(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h, const part *v,
                   float *Y, const float *S) {
    const mhla_run *run = w->run;
    const int n = c->n;
    mhla_rows rows = mhla_gated_rows(c, run->v, run->plan->d.dtype, &run->call.v, h);
    run->kernels->copy_rows(z->v, w->ldv, &rows, n, w->V, NULL);
    mhla_gemm rest = {.m = n, .n = v->p, .store = MHLA_STORE_ADD, .c = z->v + v->begin, .c_row = w->ldv};
    rest.f = (mhla_factor){
        .k = w->K, .a = z->kb, .a_row = w->ldk, .a_k = 1, .b = S + (int64_t)w->K * v->begin, .b_rows = w->K};
    mhla_multiply(run, &rest);
    mhla_gemm solve = {
        .m = n, .n = v->p, .f2_lower = 1, .f2_lead = 1, .store = MHLA_STORE_SET, .c = Y + v->begin, .c_row = w->ldv};
    solve.f2 = (mhla_factor){
        .k = n, .a = mhla_delta_inverse(w, z, c->x, h), .a_row = w->ldc, .a_k = 1, .b = z->v + v->begin, .b_k = w->ldv};
    run->kernels->gemm(&solve);
}

/* C [n][ldv] = A^T B, after F D where D is given; A [n][ldc] lower triangular. Rows go from the last to the first. */
static void times_turned(const mhla_gated *w, mhla_gated_scratch *z, const part *v, int n, float *C, const float *A,
                         const float *B, const float *F, const float *D) {
    mhla_gated_turn(z->turned, A, w->ldc, n);
    const int64_t last = (n - 1) * w->ldv + v->begin;
    mhla_gemm g = {
        .m = n, .n = v->p, .f2_lower = 1, .f2_lead = 1, .store = MHLA_STORE_SET, .c = C + last, .c_row = -w->ldv};
    if (D)
        g.f = (mhla_factor){.k = w->K,
                            .a = F + (n - 1) * w->ldk,
                            .a_row = -w->ldk,
                            .a_k = 1,
                            .b = D + (int64_t)w->K * v->begin,
                            .b_rows = w->K};
    g.f2 = (mhla_factor){.k = n, .a = z->turned, .a_row = w->ldc, .a_k = 1, .b = B + last, .b_k = -w->ldv};
    if (D)
        mhla_multiply(w->run, &g);
    else
        w->run->kernels->gemm(&g);
}

/* dX of a chunk from the gradient D of the state after it: dY = P^T do + k' D, dX = (I + N)^-T dY */
static void make_dx(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h, const part *v,
                    float *dX, const float *D) {
    const mhla_rows rows = mhla_gated_rows(c, w->run->dO, w->run->plan->d.dtype, &w->run->call.o, h);
    w->run->kernels->copy_rows(z->a, w->ldv, &rows, c->n, w->V, NULL);
    times_turned(w, z, v, c->n, z->du, mhla_delta_scores(w, z, c->x, h), z->a, z->kd, D);
    times_turned(w, z, v, c->n, dX, mhla_delta_inverse(w, z, c->x, h), z->du, NULL, NULL);
}

static void run_states(const mhla_gated_back *job, mhla_gated_scratch *z, int64_t unit, int64_t r, int first, int last,
                       int back) {
    const mhla_gated *w = job->w;
    const mhla_call *call = &w->run->call;
    const mhla_grads *grads = &w->run->grads;
    const part v = take_part(&w->pv, first, last);
    const int64_t s = unit / w->G, h = unit % w->G * w->R + r, n = mhla_gated_unit_chunks(w, unit);
    const int64_t number = mhla_gated_state_number(job, unit, r, 0), at = (s * w->H + h) * w->K * w->V;
    const float *theirs = back ? grads->dfinal_state : call->initial_state;
    copy_state(w, state_at(job, back ? job->D : job->S, number + (back ? n : 0)),
               theirs ? (float *)(uintptr_t)theirs + at : NULL, &v, 1, 0);
    for (int64_t e = 0; e < n; e++) {
        const int64_t i = number + (back ? n - 1 - e : e);
        const mhla_gated_chunk c = mhla_gated_at(w, w->first[s] + i - number);
        mhla_gated_decays(w, z, &c, h);
        mhla_delta_betas(w, z, &c, h);
        mhla_delta_factors(w, z, &c, h);
        if (back) {
            float *dX = rows_at(job, job->dX, i), *D = state_at(job, job->D, i + 1);
            make_dx(w, z, &c, h, &v, dX, D);
            next_state(w, z, state_at(job, job->D, i), D, &v, c.n, z->qd, z->a, z->kb, dX);
        } else {
            float *Y = rows_at(job, job->Y, i), *S = state_at(job, job->S, i);
            make_y(w, z, &c, h, &v, Y, S);
            if (e + 1 < n) next_state(w, z, state_at(job, job->S, i + 1), S, &v, c.n, z->kd, Y, NULL, NULL);
        }
    }
    if (back && grads->dinitial_state)
        copy_state(w, state_at(job, job->D, number), grads->dinitial_state + at, &v, 0, grads->accumulate);
}

/* ---- A chunk ---- */

/* x [n][ldk] = rows [n][ldv] S^T, S^T being in z->turned_state */
static void times_turned_state(const mhla_gated *w, mhla_gated_scratch *z, float *x, const float *rows, int n) {
    mhla_gemm g = {.m = n, .n = w->pk, .store = MHLA_STORE_SET, .c = x, .c_row = w->ldk};
    g.f = (mhla_factor){.k = w->V, .a = rows, .a_row = w->ldv, .a_k = 1, .b = z->turned_state, .b_rows = w->V};
    mhla_multiply(w->run, &g);
}

/* y [n][ldc] (=, +=) alpha x z */
static void times_square(const mhla_gated *w, float *y, const float *x, const float *z, int n, float alpha, int add) {
    const mhla_blend p = {.n = n,
                          .cols = n,
                          .y = y,
                          .x = x,
                          .z = z,
                          .ldy = w->ldc,
                          .ldx = w->ldc,
                          .ldz = w->ldc,
                          .alpha = alpha,
                          .add = add};
    w->run->kernels->blend(&p);
}

/* dbeta_u = sum over t >= u of W[t][u], and e^(B-b_u) k_u . (D Y_u), which is in early */
static void put_beta(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h, const float *W) {
    const mhla_grads *grads = &w->run->grads;
    memset(z->sums, 0, (size_t)w->ldc * sizeof *z->sums);
    for (int t = 0; t < c->n; t++) w->run->kernels->axpy(z->sums, 1.0f, W + t * w->ldc, t + 1);
    const mhla_rows out = mhla_gated_rows(c, grads->dbeta, MHLA_F32, &grads->dbeta_strides, h);
    for (int t = 0; t < c->n; t++) {
        float *to = (float *)out.base + t * out.stride;
        *to = z->sums[t] + z->early[t] + (grads->accumulate ? *to : 0.0f);
    }
}

/* A head: its dv, dbeta and ddecay, what it adds to dq and dk and, by way of M and N, to the gradients of q k^T and k k^T. */
static void head_backward(const mhla_gated_back *job, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t unit,
                          int64_t r) {
    const mhla_gated *w = job->w;
    const mhla_run *run = w->run;
    const mhla_kernels *k = run->kernels;
    const mhla_grads *grads = &run->grads;
    const float scale = run->plan->d.scale;
    const int64_t h = unit % w->G * w->R + r, i = mhla_gated_state_number(job, unit, r, c->x - w->first[c->s]);
    const float *S = state_at(job, job->S, i), *D = state_at(job, job->D, i + 1);
    const float *Y = rows_at(job, job->Y, i), *dX = rows_at(job, job->dX, i);
    const int n = c->n;
    mhla_delta_masks(w, z, c, h);
    const mhla_rows dO = mhla_gated_rows(c, run->dO, run->plan->d.dtype, &run->call.o, h);
    k->copy_rows(z->a, w->ldv, &dO, n, w->V, NULL);
    if (grads->dv) {
        const mhla_rows dv = mhla_gated_rows(c, grads->dv, MHLA_F32, &grads->dv_strides, h);
        k->store_rows(&dv, dX, w->ldv, n, w->V, grads->accumulate);
    }
    /* dP = do Y^T and minus the gradient of N, dX Y^T */
    float *dP = z->dA, *dN = z->dN, *W = z->W;
    const mhla_panels p = mhla_gated_score_panels(k, n);
    k->transpose(z->T, &p, Y, w->ldv, w->V);
    mhla_gated_lower(w, dP, z->a, w->ldv, z->T, w->V, n);
    mhla_gated_lower(w, dN, dX, w->ldv, z->T, w->V, n);
    for (int t = 0; t < n; t++) dN[t * w->ldc + t] = 0.0f;
    times_square(w, z->M, dP, z->LB, n, scale, 1);
    times_square(w, z->N, dN, z->LB, n, -1.0f, 1);
    /* W = what arrives at the mask times beta */
    times_square(w, W, dP, z->A, n, scale, 0);
    times_square(w, W, dN, z->kk, n, -1.0f, 1);
    times_square(w, W, W, z->L, n, 1.0f, 0);
    /* the states */
    k->transpose_panels(z->turned_state, &w->pk, S, &w->pv);
    times_turned_state(w, z, z->x, z->a, n);
    times_turned_state(w, z, z->w, dX, n);
    k->transpose_panels(z->turned_state, &w->pk, D, &w->pv);
    times_turned_state(w, z, z->y, Y, n);
    float *early = z->early, *late = z->late;
    k->row_dots(early, z->k, w->ldk, z->y, w->ldk, n, w->K);
    for (int t = 0; t < n; t++) early[t] *= z->ek[t];
    if (grads->dbeta) put_beta(w, z, c, h, W);
    for (int t = 0; t < n; t++) {
        early[t] *= z->beta[t];
        k->axpy(z->dq + t * w->ldk, scale * z->eb[t], z->x + t * w->ldk, w->K);
        k->axpy(z->dk + t * w->ldk, -z->eb[t], z->w + t * w->ldk, w->K);
        k->axpy(z->dk + t * w->ldk, z->beta[t] * z->ek[t], z->y + t * w->ldk, w->K);
    }
    if (grads->ddecay == NULL) return;
    float through;
    k->row_dots(&through, S, 0, D, 0, 1, w->K * mhla_panels_width(&w->pv));
    k->row_dots(late, z->q, w->ldk, z->x, w->ldk, n, w->K);
    k->row_dots(z->sums, z->k, w->ldk, z->w, w->ldk, n, w->K);
    for (int t = 0; t < n; t++) late[t] = z->eb[t] * (scale * late[t] - z->sums[t]);
    mhla_gated_put_decay(w, z, c, h, W, z->beta, 0, early, late, z->total[0] * through);
}

/* dx = norm (dx - x (x . dx)): back through the division by the length */
static void unnormalise(const mhla_gated *w, mhla_gated_scratch *z, float *dx, const float *x, const float *norm,
                        int n) {
    const mhla_kernels *k = w->run->kernels;
    k->row_dots(z->scale, x, w->ldk, dx, w->ldk, n, w->K);
    for (int t = 0; t < n; t++) {
        float *row = dx + t * w->ldk;
        k->axpy(row, -z->scale[t], x + t * w->ldk, w->K);
        const mhla_blend p = {.n = 1, .cols = w->ldk, .y = row, .x = row, .alpha = norm[t]};
        k->blend(&p);
    }
}

static void run_chunk(const mhla_gated_back *job, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t unit) {
    const mhla_gated *w = job->w;
    const int64_t key_head = unit % w->G;
    mhla_delta_load(w, z, c, key_head);
    mhla_delta_squares(w, z, c->n);
    memset(z->M, 0, (size_t)(w->C * w->ldc) * sizeof *z->M);
    memset(z->N, 0, (size_t)(w->C * w->ldc) * sizeof *z->N);
    memset(z->dq, 0, (size_t)(c->n * w->ldk) * sizeof *z->dq);
    memset(z->dk, 0, (size_t)(c->n * w->ldk) * sizeof *z->dk);
    for (int64_t r = 0; r < w->R; r++) head_backward(job, z, c, unit, r);
    mhla_gated_square_backward(w, z, c->n);
    mhla_gated_times_lower(w, z->dk, z->N, z->k, c->n, 0);
    mhla_gated_times_turned(w, z, z->dk, z->N, z->k, c->n, 0, 1);
    if (w->norms == NULL) return;
    unnormalise(w, z, z->dq, z->q, mhla_delta_norms(w, c->x, key_head, 0), c->n);
    unnormalise(w, z, z->dk, z->k, mhla_delta_norms(w, c->x, key_head, 1), c->n);
}

mhla_status mhla_delta_backward(const mhla_run *run) {
    mhla_gated_passes passes = {.score = mhla_delta_score, .states = run_states, .chunk = run_chunk};
    return mhla_gated_run_backward(run, &passes);
}
