/* Bidirectional MHLA and linear attention, backward. Nothing is kept from the forward: summaries and mixtures are made
 * again, transposed ([V][K]), because then all products but one find their right factor ready in panels.
 *
 *   o_t = scale q~_t^T S'_i / den_t,  den_t = scale q~_t.z'_i + eps       (eq4; README.md has `released`)
 *   g_t = scale do_t / den_t          h_t = S'_i g_t          w_t = -(q~_t . h_t) scale / den_t
 *   dq~ = h + w z'    dS' = sum q~ g^T    dz' = sum w q~    dm = <dS',S> + <dz',z>
 *   dS = m^T dS'      dz = m^T dz'        dv = k~ dS        dk~ = v dS^T + dz */
#include "ops/bidirectional/head.h"

/* What one head needs: summaries and their gradients (linear attention: 1 of each and a scratch one). */
typedef struct head_memory {
    float *S;  /* [k.M][ld]: S_b^T, z_b */
    float *D;  /* [q.M][ld]: dS'_i^T, dz'_i */
    float *dd; /* `released`: [M][ldn] gradient of the bracket in den, then its mixture */
    float *dc; /* `released`: [M][ldn] */
    mhla_buffers dens;
} head_memory;

typedef struct backward_job {
    const mhla_run *run;
    mhla_geometry g;
    int64_t first;
    mhla_buffers *buffers; /* [threads] */
    head_memory *memory;   /* [threads * team] */
    float **P;             /* [heads that are split]: mixtures [q.M][ld], then dS [k.M][ld] */
    float *dmix;           /* [heads][q.M*k.M]: summed over batch (and heads) at the end, in order */
} backward_job;

static int64_t blocks_kept(const mhla_geometry *g, const mhla_side *side) { return g->linear ? 1 : side->M; }
static int64_t mix_size(const mhla_geometry *g) { return g->q.M * g->k.M; }

static int piece_count(const mhla_geometry *g, int64_t begin, int64_t end) {
    return (int)((end - begin + g->piece - 1) / g->piece);
}
static int64_t piece_at(int64_t begin, int64_t end, int pieces, int p) { return begin + p * (end - begin) / pieces; }

static void load_values(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n) {
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const mhla_rows v = mhla_head_rows(x, &x->g->k, x->run->v, dtype, &x->run->call.v, at);
    x->run->kernels->copy_rows(buf->v, x->g->ldv, &v, n, x->g->V, NULL);
}

/* S_b^T = sum_t v_t k~_t^T, z_b: the forward's sums, transposed. */
static void summarise(const mhla_head *x, const mhla_buffers *buf, int64_t block, float *S) {
    const mhla_geometry *g = x->g;
    const int64_t begin = mhla_head_begin(&g->k, block), end = mhla_head_begin(&g->k, block + 1);
    const int pieces = piece_count(g, begin, end);
    const int64_t vk = (int64_t)g->V * mhla_panels_width(&g->pk);
    const mhla_dtype dtype = x->run->plan->d.dtype;
    memset(S + vk, 0, (size_t)(g->ld - vk) * 4);
    for (int p = 0; p < pieces; p++) {
        const int64_t at = piece_at(begin, end, pieces, p);
        const int n = (int)(piece_at(begin, end, pieces, p + 1) - at);
        mhla_head_keys(x, buf, at, n, g->normalised ? S + g->z : NULL);
        load_values(x, buf, at, n);
        const int64_t next = at + n;
        const int ahead = (int)(g->k.T - next < n ? g->k.T - next : n), element = (int)mhla_dtype_size(dtype);
        const mhla_prefetch fetch[2] = {
            {mhla_head_rows(x, &g->k, x->run->k, dtype, &x->run->call.k, next), ahead, g->K * element},
            {mhla_head_rows(x, &g->k, x->run->v, dtype, &x->run->call.v, next), ahead, g->V * element},
        };
        mhla_multiply(x->run,
                      &(mhla_gemm){.m = g->V,
                                   .n = g->pk,
                                   .f = {.k = n, .a = buf->v, .a_row = 1, .a_k = g->ldv, .b = buf->k, .b_k = g->ldk},
                                   .store = p == 0 ? MHLA_STORE_SET : MHLA_STORE_ADD,
                                   .c = S,
                                   .c_rows = g->V,
                                   .prefetch = fetch,
                                   .n_prefetch = 2});
    }
}

static mhla_unpack unpack_rows(const mhla_head *x, const mhla_side *side, float *dx, const mhla_strides *to,
                               const void *src, const mhla_strides *from, int64_t at, int n) {
    const mhla_plan_desc *d = &x->run->plan->d;
    return (mhla_unpack){.dx = mhla_head_rows(x, side, dx, MHLA_F32, to, at),
                         .x = mhla_head_rows(x, side, src, d->dtype, from, at),
                         .n = n,
                         .K = x->g->K,
                         .ld = x->g->ldk,
                         .feature = d->feature,
                         .eps = d->feature_eps,
                         .rope = d->rope,
                         .rope_dim = d->rope_dim,
                         .cos = side->cos,
                         .sin = side->sin,
                         .rope_row = side->layout && side->layout->perm ? 0 : at,
                         .accumulate = x->run->grads.accumulate};
}

/* The gradient of un-rotated queries (or of q2): dqn_t = w_t z, for n tokens. `add` to what dq already got. */
static void store_query_den(const mhla_head *x, int64_t at, int n, const float *w, const float *z, int add) {
    const mhla_call *c = &x->run->call;
    const mhla_grads *out = &x->run->grads;
    float *dx = c->q2 ? out->dq2 : out->dq;
    if (dx == NULL) return;
    mhla_unpack u = c->q2 ? unpack_rows(x, &x->g->q, dx, &out->dq2_strides, c->q2, &c->q2_strides, at, n)
                          : unpack_rows(x, &x->g->q, dx, &out->dq_strides, x->run->q, &c->q, at, n);
    u.w = w;
    u.z = z;
    if (add) u.accumulate = 1;
    x->run->kernels->unpack(&u);
}

/* sum += sum_t w_t qn_t over n tokens, qn the un-rotated features that the denominator uses; buf->q has the rotated
 * ones, which will do where nothing is rotated. */
static void add_weighted_queries(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, const float *w,
                                 float *sum, int have_q) {
    const mhla_call *c = &x->run->call;
    const float *q = buf->q;
    if (!have_q || c->q2 || x->run->plan->d.rope != MHLA_ROPE_NONE) {
        const mhla_pack p = c->q2 ? mhla_head_pack(x, &x->g->q, buf->k, c->q2, &c->q2_strides, at, n, 0)
                                  : mhla_head_pack(x, &x->g->q, buf->k, x->run->q, &c->q, at, n, 0);
        x->run->kernels->pack(&p);
        q = buf->k;
    }
    for (int i = 0; i < n; i++) x->run->kernels->axpy(sum, w[i], q + i * x->g->ldk, x->g->K);
}

/* One query block: dq, dS'_i, dz'_i (into D) from P = S'_i^T, z'_i. `released` leaves w in dd for later. */
static void queries(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int64_t block, const float *P,
                    float *D) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const mhla_call *c = &x->run->call;
    const mhla_grads *out = &x->run->grads;
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const int eq4 = g->normalised && !g->released;
    const int64_t begin = mhla_head_begin(&g->q, block), end = mhla_head_begin(&g->q, block + 1);
    const int pieces = piece_count(g, begin, end);
    const int64_t vk = (int64_t)g->V * mhla_panels_width(&g->pk);
    memset(D + vk, 0, (size_t)(g->ld - vk) * 4);
    for (int p = 0; p < pieces; p++) {
        const int64_t at = piece_at(begin, end, pieces, p), next = piece_at(begin, end, pieces, p + 1);
        const int n = (int)(next - at);
        mhla_head_queries(x, buf, at, n, P + g->z);
        const float *den = !g->normalised ? NULL
                           : g->released  ? m->dens.dens + block * g->ldn + (at - begin)
                                          : buf->den;
        mhla_head_row_scale(x, buf->row_scale, den, n);
        const mhla_rows dO = mhla_head_rows(x, &g->q, x->run->dO, dtype, &c->o, at);
        kernels->copy_rows(buf->g, g->ldv, &dO, n, g->V, buf->row_scale); /* g = scale do / den */
        const int ahead = (int)(g->q.T - next < n ? g->q.T - next : n), element = (int)mhla_dtype_size(dtype);
        const mhla_prefetch fetch[3] = {
            {mhla_head_rows(x, &g->q, x->run->q, dtype, &c->q, next), ahead, g->K * element},
            {mhla_head_rows(x, &g->q, x->run->dO, dtype, &c->o, next), ahead, g->V * element},
            {mhla_head_rows(x, &g->q, out->dq, MHLA_F32, &out->dq_strides, at), n, g->K * 4},
        };
        mhla_multiply(x->run,
                      &(mhla_gemm){/* h = S' g */
                                   .m = n,
                                   .n = g->pk,
                                   .f = {.k = g->V, .a = buf->g, .a_row = g->ldv, .a_k = 1, .b = P, .b_rows = g->V},
                                   .store = MHLA_STORE_SET,
                                   .c = buf->h,
                                   .c_row = g->ldk,
                                   .prefetch = fetch,
                                   .n_prefetch = 2});
        mhla_multiply(x->run,
                      &(mhla_gemm){/* dS'^T = sum_t g_t q~_t^T */
                                   .m = g->V,
                                   .n = g->pk,
                                   .f = {.k = n, .a = buf->g, .a_row = 1, .a_k = g->ldv, .b = buf->q, .b_k = g->ldk},
                                   .store = p == 0 ? MHLA_STORE_SET : MHLA_STORE_ADD,
                                   .c = D,
                                   .c_rows = g->V,
                                   .prefetch = fetch + 2,
                                   .n_prefetch = out->dq != NULL});
        float *w = g->released ? m->dd + block * g->ldn + (at - begin) : buf->den;
        if (g->normalised) { /* w = -(q~ . h) scale / den */
            kernels->row_dots(w, buf->q, g->ldk, buf->h, g->ldk, n, g->K);
            for (int i = 0; i < n; i++) w[i] *= -buf->row_scale[i];
        }
        if (out->dq) { /* dq~ = h + w z' */
            mhla_unpack u = unpack_rows(x, &g->q, out->dq, &out->dq_strides, x->run->q, &c->q, at, n);
            u.d = buf->h;
            if (eq4 && !c->q2) {
                u.w = w;
                u.z = P + g->z;
            }
            kernels->unpack(&u);
        }
        if (eq4) {
            if (c->q2) store_query_den(x, at, n, w, P + g->z, 0);
            add_weighted_queries(x, buf, at, n, w, D + g->z, 1); /* dz' = sum w q~ */
        }
    }
}

/* The `released` denominator reads the queries of every block: den_{i,w} = scale sum_b m[i,b] dots[b,w] + eps with
 * dots[b,w] = q~_{b,w}.z_b. With dd the gradient of the sum:
 *   dc = m^T dd,  dq~_{b,w} += dc[b,w] z_b,  dm[i,b] += sum_w dd[i,w] dots[b,w]   (dz_b follows in keys()). */
static void released_mix(const mhla_head *x, const head_memory *m) {
    const mhla_geometry *g = x->g;
    mhla_panels pn;
    x->run->kernels->panels(&pn, (int)g->max_block);
    x->run->kernels->gemm(
        &(mhla_gemm){.m = (int)g->k.M,
                     .n = pn,
                     .f = {.k = (int)g->q.M, .a = x->mix, .a_row = 1, .a_k = g->k.M, .b = m->dd, .b_k = g->ldn},
                     .store = MHLA_STORE_SET,
                     .c = m->dc,
                     .c_row = g->ldn});
}
static void released_queries(const mhla_head *x, const head_memory *m, int64_t b) {
    const mhla_geometry *g = x->g;
    store_query_den(x, mhla_head_begin(&g->q, b), (int)g->max_block, m->dc + b * g->ldn, m->S + b * g->ld + g->z,
                    x->run->call.q2 == NULL);
}

/* Rows i0 .. i1-1, columns b0 .. b1-1. */
static void mix_gradient(const mhla_head *x, const head_memory *m, float *dmix, int64_t i0, int64_t i1, int64_t b0,
                         int64_t b1) {
    enum { SLAB = 1024 }; /* floats of each summary at a time, so that a tile's rows stay in L1 */
    const mhla_geometry *g = x->g;
    for (int64_t at = 0; at < g->used; at += SLAB) /* dm[i,b] = <dS'_i, S_b> + <dz'_i, z_b> */
        x->run->kernels->dots(dmix + i0 * g->k.M + b0, g->k.M, m->D + i0 * g->ld + at, g->ld, (int)(i1 - i0),
                              m->S + b0 * g->ld + at, g->ld, (int)(b1 - b0), g->used - at < SLAB ? g->used - at : SLAB,
                              at > 0);
    if (g->released)
        x->run->kernels->dots(dmix + i0 * g->k.M + b0, g->k.M, m->dd + i0 * g->ldn, g->ldn, (int)(i1 - i0),
                              m->dens.dots + b0 * g->ldn, g->ldn, (int)(b1 - b0), g->ldn, 1);
}

/* One key block: dv = k~ dS, dk~ = v dS^T + dz, from dS = dS_b^T, dz_b and its transpose t. */
static void keys(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int64_t block, float *dS,
                 const float *t) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const mhla_call *c = &x->run->call;
    const mhla_grads *out = &x->run->grads;
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const int64_t begin = mhla_head_begin(&g->k, block), end = mhla_head_begin(&g->k, block + 1);
    const int pieces = piece_count(g, begin, end);
    if (g->released) /* dz_b += sum_w dc[b,w] q~_{b,w} */
        for (int p = 0; p < pieces; p++) {
            const int64_t at = piece_at(begin, end, pieces, p);
            add_weighted_queries(x, buf, at, (int)(piece_at(begin, end, pieces, p + 1) - at),
                                 m->dc + block * g->ldn + (at - begin), dS + g->z, 0);
        }
    for (int p = 0; p < pieces; p++) {
        const int64_t at = piece_at(begin, end, pieces, p), next = piece_at(begin, end, pieces, p + 1);
        const int n = (int)(next - at), element = (int)mhla_dtype_size(dtype);
        const int ahead = (int)(g->k.T - next < n ? g->k.T - next : n);
        if (out->dv) {
            mhla_head_keys(x, buf, at, n, NULL);
            const mhla_prefetch fetch[2] = {
                {mhla_head_rows(x, &g->k, x->run->k, dtype, &c->k, next), ahead, g->K * element},
                {mhla_head_rows(x, &g->k, out->dv, MHLA_F32, &out->dv_strides, next), ahead, g->V * 4},
            };
            mhla_multiply(x->run,
                          &(mhla_gemm){.m = n,
                                       .n = g->pv,
                                       .f = {.k = g->K, .a = buf->k, .a_row = g->ldk, .a_k = 1, .b = t, .b_rows = g->K},
                                       .store = MHLA_STORE_ROWS,
                                       .out = mhla_head_rows(x, &g->k, out->dv, MHLA_F32, &out->dv_strides, at),
                                       .accumulate = out->accumulate,
                                       .prefetch = fetch,
                                       .n_prefetch = 2});
        }
        if (out->dk) {
            load_values(x, buf, at, n);
            const mhla_prefetch fetch[2] = {
                {mhla_head_rows(x, &g->k, x->run->v, dtype, &c->v, next), ahead, g->V * element},
                {mhla_head_rows(x, &g->k, out->dk, MHLA_F32, &out->dk_strides, at), n, g->K * 4},
            };
            mhla_multiply(
                x->run, &(mhla_gemm){.m = n,
                                     .n = g->pk,
                                     .f = {.k = g->V, .a = buf->v, .a_row = g->ldv, .a_k = 1, .b = dS, .b_rows = g->V},
                                     .store = MHLA_STORE_SET,
                                     .c = buf->h,
                                     .c_row = g->ldk,
                                     .prefetch = fetch,
                                     .n_prefetch = 2});
            mhla_unpack u = unpack_rows(x, &g->k, out->dk, &out->dk_strides, x->run->k, &c->k, at, n);
            u.d = buf->h;
            if (g->normalised && !c->k2) u.z = dS + g->z;
            kernels->unpack(&u);
        }
        if (out->dk2) {
            mhla_unpack u = unpack_rows(x, &g->k, out->dk2, &out->dk2_strides, c->k2, &c->k2_strides, at, n);
            u.z = dS + g->z;
            kernels->unpack(&u);
        }
    }
}

/* ---- One head, in steps that may be spread over threads ---- */

static void step_summaries(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int64_t block) {
    summarise(x, buf, block, m->S + block * x->g->ld);
}

/* Groups of blocks, for the heads of a team: x, buf, m [team]. Each head's mixtures lie in its part of P. */
static void query_group(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int team, int64_t group) {
    const mhla_geometry *g = x->g;
    const int64_t i0 = group * g->q.M / g->groups, i1 = (group + 1) * g->q.M / g->groups;
    for (int j = 0; j < team; j++) mhla_head_mix(&x[j], &buf[j], m[j].S, i0, i1);
    for (int64_t i = i0; i < i1; i++)
        for (int j = 0; j < team; j++)
            queries(&x[j], &buf[j], &m[j], i, buf[j].P + (i - i0) * g->ld, m[j].D + i * g->ld);
}

static void key_block(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int64_t block, float *dS) {
    if (x->run->grads.dv) x->run->kernels->transpose_panels(buf->t, &x->g->pv, dS, &x->g->pk);
    keys(x, buf, m, block, dS, buf->t);
}

static void key_group(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int team, int64_t group) {
    const mhla_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const int64_t b0 = group * g->k.M / g->key_groups, b1 = (group + 1) * g->k.M / g->key_groups;
    mhla_panels flat;
    kernels->panels(&flat, (int)g->used);
    for (int j = 0; j < team; j++)
        kernels->gemm(&(mhla_gemm){
            /* dS_b = sum_i m[i,b] dS'_i, dz_b alike */
            .m = (int)(b1 - b0),
            .n = flat,
            .f = {.k = (int)g->q.M, .a = x[j].mix + b0, .a_row = 1, .a_k = g->k.M, .b = m[j].D, .b_k = g->ld},
            .store = MHLA_STORE_SET,
            .c = buf[j].P,
            .c_row = g->ld});
    for (int64_t b = b0; b < b1; b++)
        for (int j = 0; j < team; j++) key_block(&x[j], &buf[j], &m[j], b, buf[j].P + (b - b0) * g->ld);
}

static void between(const mhla_head *x, const head_memory *m, float *dmix) {
    if (x->g->released) {
        released_mix(x, m);
        for (int64_t b = 0; b < x->g->q.M; b++) released_queries(x, m, b);
    }
    if (x->run->grads.dmix) mix_gradient(x, m, dmix, 0, x->g->q.M, 0, x->g->k.M);
}

static int wants_keys(const mhla_run *run) { return run->grads.dk || run->grads.dv || run->grads.dk2; }

static mhla_buffers with_dens(const mhla_buffers *own, const head_memory *m) {
    mhla_buffers b = *own;
    b.dots = m->dens.dots;
    b.dens = m->dens.dens;
    return b;
}

static void prepare_released(const mhla_head *x, const mhla_buffers *buf, const head_memory *m) {
    if (!x->g->released) return;
    const size_t bytes = (size_t)(x->g->q.M * x->g->ldn) * 4; /* columns past the block must be 0 in the dots of dm */
    memset(m->dd, 0, bytes);
    memset(m->dens.dots, 0, bytes);
    mhla_head_released(x, buf, m->S);
}

static void whole_mhla(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int team, float *dmix) {
    const mhla_geometry *g = x->g;
    for (int64_t b = 0; b < g->k.M; b++)
        for (int j = 0; j < team; j++) step_summaries(&x[j], &buf[j], &m[j], b);
    for (int j = 0; j < team; j++) prepare_released(&x[j], &buf[j], &m[j]);
    for (int64_t group = 0; group < g->groups; group++) query_group(x, buf, m, team, group);
    for (int j = 0; j < team; j++) between(&x[j], &m[j], dmix + j * mix_size(g));
    if (!wants_keys(x->run)) return;
    for (int64_t group = 0; group < g->key_groups; group++) key_group(x, buf, m, team, group);
}

/* Linear attention: every query reads the sum of the summaries, every key the sum of the gradients. */
static void add_block(const mhla_head *x, float *sum, const float *part, int64_t block) {
    if (block == 0)
        memcpy(sum, part, (size_t)x->g->used * 4);
    else
        x->run->kernels->axpy(sum, 1.0f, part, x->g->used);
}

static void whole_linear(const mhla_head *x, const mhla_buffers *buf, const head_memory *m, int team) {
    const mhla_geometry *g = x->g;
    for (int64_t b = 0; b < g->k.M; b++)
        for (int j = 0; j < team; j++) {
            summarise(&x[j], &buf[j], b, buf[j].P);
            add_block(&x[j], m[j].S, buf[j].P, b);
        }
    for (int64_t b = 0; b < g->q.M; b++)
        for (int j = 0; j < team; j++) {
            queries(&x[j], &buf[j], &m[j], b, m[j].S, buf[j].P);
            add_block(&x[j], m[j].D, buf[j].P, b);
        }
    if (!wants_keys(x->run)) return;
    for (int j = 0; j < team; j++) x->run->kernels->transpose_panels(buf[j].P, &g->pv, m[j].D, &g->pk);
    for (int64_t b = 0; b < g->k.M; b++)
        for (int j = 0; j < team; j++) keys(&x[j], &buf[j], &m[j], b, m[j].D, buf[j].P);
}

static void whole_team(void *arg, int64_t task, int worker) {
    const backward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const int team = g->team;
    mhla_head x[MHLA_MAX_TEAM];
    mhla_buffers buf[MHLA_MAX_TEAM];
    const head_memory *m = &job->memory[worker * team];
    int j = 0;
    do { /* a team has one head at least */
        x[j] = mhla_bidirectional_head(job->run, g, task * team + j);
        buf[j] = with_dens(&job->buffers[worker], &m[j]);
        buf[j].P += j * g->group * g->ld;
    } while (++j < team);
    if (g->linear)
        whole_linear(x, buf, m, team);
    else
        whole_mhla(x, buf, m, team, job->dmix + task * team * mix_size(g));
}

/* ---- Split heads ---- */

typedef struct split_task {
    mhla_head x;
    mhla_buffers buf;
    const head_memory *m;
    int64_t part;
    float *P, *dmix;
} split_task;

static split_task split(const backward_job *job, int64_t task, int64_t parts, int worker) {
    const int64_t i = task / parts;
    return (split_task){.x = mhla_bidirectional_head(job->run, &job->g, job->first + i),
                        .buf = with_dens(&job->buffers[worker], &job->memory[i]),
                        .m = &job->memory[i],
                        .part = task % parts,
                        .P = job->P[i],
                        .dmix = job->dmix + (job->first + i) * mix_size(&job->g)};
}

/* Loops over (head, block) and (head, slab of the summaries) in turn, as in the forward. */
static void split_summaries(void *arg, int64_t task, int worker) {
    const backward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const split_task s = split(job, task, g->k.M, worker);
    step_summaries(&s.x, &s.buf, s.m, s.part);
    if (!g->released) return;
    memset(s.m->dd + s.part * g->ldn, 0, (size_t)g->ldn * 4); /* as in prepare_released */
    memset(s.m->dens.dots + s.part * g->ldn, 0, (size_t)g->ldn * 4);
    mhla_head_released_dots(&s.x, &s.buf, s.part, s.m->S + s.part * g->ld + g->z);
}
static void split_mix(void *arg, int64_t task, int worker) {
    const backward_job *job = arg;
    const mhla_geometry *g = &job->g;
    const split_task s = split(job, task, g->slabs + g->released, worker);
    if (s.part == g->slabs)
        mhla_head_released_mix(&s.x, &s.buf);
    else
        mhla_head_mix_slab(&s.x, s.P, s.m->S, s.part, 0);
}
static void split_queries(void *arg, int64_t task, int worker) {
    const backward_job *job = arg;
    const split_task s = split(job, task, job->g.q.M, worker);
    queries(&s.x, &s.buf, s.m, s.part, s.P + s.part * job->g.ld, s.m->D + s.part * job->g.ld);
}

/* What all queries have left: tiles of dmix, then slabs of dS, then the mixture of `released`. */
enum { TILE_ROWS = 12, TILE_COLUMNS = 16 };
static int64_t tile_columns(const mhla_geometry *g) { return (g->k.M + TILE_COLUMNS - 1) / TILE_COLUMNS; }
static int64_t tiles(const backward_job *job) {
    return job->run->grads.dmix ? (job->g.q.M + TILE_ROWS - 1) / TILE_ROWS * tile_columns(&job->g) : 0;
}
static int64_t key_slabs(const backward_job *job) { return wants_keys(job->run) ? job->g.slabs : 0; }
static void split_between(void *arg, int64_t task, int worker) {
    const backward_job *job = arg;
    const int64_t Mq = job->g.q.M, Mk = job->g.k.M, first = tiles(job), slabs = key_slabs(job);
    const split_task s = split(job, task, first + slabs + job->g.released, worker);
    if (s.part < first) {
        const int64_t i = s.part / tile_columns(&job->g) * TILE_ROWS, b = s.part % tile_columns(&job->g) * TILE_COLUMNS;
        mix_gradient(&s.x, s.m, s.dmix, i, i + TILE_ROWS < Mq ? i + TILE_ROWS : Mq, b,
                     b + TILE_COLUMNS < Mk ? b + TILE_COLUMNS : Mk);
    } else if (s.part < first + slabs) {
        mhla_head_mix_slab(&s.x, s.P, s.m->D, s.part - first, 1);
    } else {
        released_mix(&s.x, s.m);
    }
}
static void split_keys(void *arg, int64_t task, int worker) {
    const backward_job *job = arg;
    const split_task s = split(job, task, job->g.k.M, worker);
    if (job->g.released) released_queries(&s.x, s.m, s.part);
    if (wants_keys(job->run)) key_block(&s.x, &s.buf, s.m, s.part, s.P + s.part * job->g.ld);
}

/* dmix (=, +=) the heads' parts, in order of batch, then of heads where the matrix is shared; a slice of the matrix to a task. */
enum { SLICE = 8192 };
static void reduce_task(void *arg, int64_t task, int worker) {
    (void)worker;
    const backward_job *job = arg;
    const mhla_run *run = job->run;
    const int64_t size = mix_size(&job->g), H = run->plan->d.heads, heads = run->call.batch * H;
    const int64_t matrices = run->plan->d.mix_per_head ? H : 1, at = task * SLICE;
    const int64_t n = size - at < SLICE ? size - at : SLICE;
    float *out = run->grads.dmix + at;
    for (int64_t i = 0; i < matrices && !run->grads.accumulate; i++) memset(out + i * size, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < heads; i++)
        run->kernels->axpy(out + (matrices > 1 ? i % H : 0) * size, 1.0f, job->dmix + i * size + at, n);
}

static backward_job make_backward(const mhla_run *run, mhla_carver *w) {
    backward_job job = {.run = run, .g = mhla_bidirectional_geometry(run, 1)};
    const mhla_geometry *g = &job.g;
    const int threads = run->threads;
    job.buffers = mhla_carve(w, (size_t)threads * sizeof *job.buffers);
    job.memory = mhla_carve(w, (size_t)(threads * g->team) * sizeof *job.memory);
    job.dmix = mhla_carve_floats(w, g->linear ? 0 : run->call.batch * run->plan->d.heads * mix_size(g));
    job.P = mhla_carve(w, (size_t)threads * sizeof *job.P);
    const int64_t left = g->linear ? 0 : run->call.batch * run->plan->d.heads % threads;
    for (int i = 0; i < threads; i++) {
        const mhla_buffers own = mhla_bidirectional_buffers(w, g, 1);
        float *P = i < left ? mhla_carve_floats(w, (g->q.M > g->k.M ? g->q.M : g->k.M) * g->ld + 16) : NULL;
        if (w->base) {
            job.buffers[i] = own;
            job.P[i] = P;
        }
    }
    for (int i = 0; i < threads * g->team; i++) {
        head_memory m = {0};
        m.S = mhla_carve_floats(w, blocks_kept(g, &g->k) * g->ld + 16);
        m.D = mhla_carve_floats(w, blocks_kept(g, &g->q) * g->ld + 16);
        if (g->released) {
            m.dd = mhla_carve_floats(w, g->q.M * g->ldn);
            m.dc = mhla_carve_floats(w, g->q.M * g->ldn);
            m.dens.dots = mhla_carve_floats(w, g->q.M * g->ldn);
            m.dens.dens = mhla_carve_floats(w, g->q.M * g->ldn);
        }
        if (w->base) job.memory[i] = m;
    }
    return job;
}

size_t mhla_bidirectional_workspace(const mhla_run *run, int backward) {
    if (!backward) return mhla_bidirectional_forward_workspace(run);
    mhla_carver w = {0};
    make_backward(run, &w);
    return w.used;
}

mhla_status mhla_bidirectional_backward(const mhla_run *run) {
    mhla_carver w = {.base = run->ws};
    backward_job job = make_backward(run, &w);
    const mhla_context *context = run->call.context;
    const mhla_geometry *g = &job.g;
    const int64_t heads = run->call.batch * run->plan->d.heads;
    /* Linear attention has no blocks to share out by; its heads always go whole. */
    const int64_t whole = g->linear ? heads : heads - heads % run->threads, left = heads - whole;
    mhla_parallel(context, whole / g->team, whole_team, &job);
    job.first = whole;
    if (left > 0) {
        mhla_parallel(context, left * g->k.M, split_summaries, &job);
        mhla_parallel(context, left * (g->slabs + g->released), split_mix, &job);
        mhla_parallel(context, left * g->q.M, split_queries, &job);
        mhla_parallel(context, left * (tiles(&job) + key_slabs(&job) + g->released), split_between, &job);
        if (wants_keys(run) || g->released) mhla_parallel(context, left * g->k.M, split_keys, &job);
    }
    if (run->grads.dmix) mhla_parallel(context, (mix_size(g) + SLICE - 1) / SLICE, reduce_task, &job);
    return MHLA_OK;
}
