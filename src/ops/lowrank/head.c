/* The steps of the forward on a block of one head: features, weights, summary, outputs. README.md has the formulas. */
#include "ops/lowrank/head.h"

#include <math.h>

mhla_rows mhla_low_rows(const mhla_low_head *x, const void *base, mhla_dtype dtype, const mhla_strides *s, int64_t at) {
    return (mhla_rows){
        .base = (void *)(uintptr_t)mhla_at(base, dtype, s, x->b, at, x->h), .stride = s->token, .dtype = dtype};
}

/* n rows that will be needed soon, to be fetched while a product runs; none where there is no tensor. */
mhla_prefetch mhla_low_fetch(const mhla_low_head *x, const void *base, mhla_dtype dtype, const mhla_strides *s,
                             int64_t at, int n, int cols) {
    if (base == NULL) return (mhla_prefetch){.n = 0};
    return (mhla_prefetch){mhla_low_rows(x, base, dtype, s, at), n, cols * (int)mhla_dtype_size(dtype)};
}

/* The same for k and v of the head that comes next; how many lists that are. */
int mhla_low_fetch_next(const mhla_low_head *x, mhla_prefetch fetch[2], int64_t at, int n) {
    const mhla_run *run = x->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    mhla_low_head y = *x;
    y.h = x->next;
    if (x->next < 0) return 0;
    fetch[0] = mhla_low_fetch(&y, run->k, dtype, &run->call.k, at, n, x->g->K);
    fetch[1] = mhla_low_fetch(&y, run->v, dtype, &run->call.v, at, n, x->g->V);
    return 2;
}

/* ---- Features of a block, kept until another one is asked for ---- */

static void load(const mhla_low_head *x, int which, int64_t block, float *f, float *plain) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_call *c = &x->run->call;
    const int64_t at = mhla_low_begin(x->g, block);
    const int n = (int)(mhla_low_begin(x->g, block + 1) - at);
    if (x->op->focused) {
        mhla_low_focus_features(x, which, at, n, f);
        return;
    }
    x->run->kernels->pack(&(mhla_pack){.dst = f,
                                       .ld = x->g->ldk,
                                       .src = which ? mhla_low_rows(x, x->run->k, d->dtype, &c->k, at)
                                                    : mhla_low_rows(x, x->run->q, d->dtype, &c->q, at),
                                       .n = n,
                                       .K = x->g->K,
                                       .feature = d->feature,
                                       .eps = d->feature_eps,
                                       .rope = d->rope,
                                       .rope_dim = d->rope_dim,
                                       .cos = c->rope_cos,
                                       .sin = c->rope_sin,
                                       .rope_row = at,
                                       .plain = x->g->rotated ? plain : NULL});
}

static int64_t block_id(const mhla_low_head *x, int64_t block) {
    return (x->b * x->run->plan->d.heads + x->h) * x->g->blocks + block;
}

void mhla_low_queries(const mhla_low_head *x, int64_t block) {
    if (x->buf->queries_of == block_id(x, block)) return;
    load(x, 0, block, x->buf->q, x->buf->q_plain);
    x->buf->queries_of = block_id(x, block);
}

void mhla_low_keys(const mhla_low_head *x, int64_t block) {
    if (x->buf->keys_of == block_id(x, block)) return;
    load(x, 1, block, x->buf->k, x->buf->k_plain);
    x->buf->keys_of = block_id(x, block);
}

/* n rows of v in float32, whole vectors of them readable, times scale: the caller's own where they will do. */
mhla_rows mhla_low_values(const mhla_low_head *x, int64_t at, int n, const float *scale) {
    const mhla_low_geometry *g = x->g;
    const mhla_dtype dtype = x->run->plan->d.dtype;
    const mhla_rows v = mhla_low_rows(x, x->run->v, dtype, &x->run->call.v, at);
    if (dtype == MHLA_F32 && scale == NULL && g->V == mhla_panels_width(&g->pv) && v.stride > 0) return v;
    x->run->kernels->copy_rows(x->buf->v, g->ldv, &v, n, g->V, scale);
    return (mhla_rows){.base = x->buf->v, .stride = g->ldv, .dtype = MHLA_F32};
}

/* sum (=, +=) sum_i w_i rows_i over n rows, whole vectors of them. */
void mhla_low_sum(const mhla_low_head *x, float *sum, const mhla_panels *p, const float *w, const float *rows,
                  int64_t ld, int n, mhla_store store) {
    x->run->kernels->gemm(&(mhla_gemm){.m = 1,
                                       .n = *p,
                                       .f = {.k = n, .a = w, .a_row = n, .a_k = 1, .b = rows, .b_k = ld},
                                       .store = store,
                                       .c = sum,
                                       .c_row = 1});
}

/* ---- The mean query, for weights ---- */

void mhla_low_mean_step(const mhla_low_head *x, int64_t block) {
    const mhla_low_geometry *g = x->g;
    const int n = (int)(mhla_low_begin(g, block + 1) - mhla_low_begin(g, block));
    mhla_low_queries(x, block);
    mhla_low_sum(x, x->m->mean + block * g->ldk, &g->pk, x->buf->ones, x->buf->q_plain, g->ldk, n, MHLA_STORE_SET);
}

void mhla_low_mean_join(const mhla_low_head *x) {
    const mhla_low_geometry *g = x->g;
    float *mean = x->m->mean;
    for (int64_t b = 1; b < g->blocks; b++) x->run->kernels->axpy(mean, 1.0f, mean + b * g->ldk, g->K);
    for (int j = 0; j < g->K; j++) mean[j] /= (float)g->T;
}

/* ---- Summaries ---- */

/* a_u = exp(score_u - the block's largest), for the tokens of one block; joining them makes a softmax of it. */
static void weigh(const mhla_low_head *x, int64_t block, float *a, int n) {
    const mhla_low_geometry *g = x->g;
    const float scale = x->run->plan->d.scale;
    x->run->kernels->row_dots(a, x->buf->k_plain, g->ldk, x->m->mean, 0, n, g->K);
    float peak = -INFINITY;
    for (int i = 0; i < n; i++) {
        a[i] *= scale;
        peak = a[i] > peak ? a[i] : peak;
    }
    for (int i = 0; i < n; i++) a[i] -= peak;
    x->run->kernels->vexp(a, a, n);
    double total = 0.0;
    for (int i = 0; i < n; i++) total += (double)a[i];
    x->m->peak[block] = peak;
    x->m->total[block] = (float)total;
}

/* S = sum_u a_u k^_u v_u^T (backward: transposed), sum_u a_u k~_u, and sum_u v_u where it is used. */
void mhla_low_summary_step(const mhla_low_head *x, int64_t block) {
    const mhla_low_geometry *g = x->g;
    const mhla_run *run = x->run;
    const mhla_call *c = &run->call;
    const mhla_dtype dtype = run->plan->d.dtype;
    const int transposed = x->m->D != NULL;
    const int64_t begin = mhla_low_begin(g, block);
    const int n = (int)(mhla_low_begin(g, block + 1) - begin), pieces = mhla_low_pieces(n);
    float *S = x->m->S + block * g->ld;
    memset(S + g->size, 0, (size_t)(g->ld - g->size) * sizeof *S);
    mhla_low_keys(x, block);
    const float *a = x->op->weighted ? x->m->a + begin : NULL;
    if (a) weigh(x, block, x->m->a + begin, n);
    mhla_low_sum(x, S + g->ks, &g->pk, a ? a : x->buf->ones, x->buf->k_plain, g->ldk, n, MHLA_STORE_SET);
    for (int p = 0; p < pieces; p++) {
        const int at = p * n / pieces, count = (p + 1) * n / pieces - at;
        const float *k = x->buf->k + at * g->ldk;
        const mhla_rows v = mhla_low_values(x, begin + at, count, a ? a + at : NULL);
        const mhla_prefetch fetch[2] = {
            mhla_low_fetch(x, run->q, dtype, &c->q, begin + at, count, g->K),
            mhla_low_fetch(x, transposed ? run->dO : run->o, dtype, &c->o, begin + at, count, g->V),
        };
        mhla_gemm product = {.m = transposed ? g->V : g->K,
                             .n = transposed ? g->pk : g->pv,
                             .f = {.k = count, .a = k, .a_row = 1, .a_k = g->ldk, .b = v.base, .b_k = v.stride},
                             .store = p == 0 ? MHLA_STORE_SET : MHLA_STORE_ADD,
                             .c = S,
                             .c_rows = transposed ? g->V : g->K,
                             .prefetch = fetch,
                             .n_prefetch = 2};
        if (transposed)
            product.f = (mhla_factor){.k = count, .a = v.base, .a_row = 1, .a_k = v.stride, .b = k, .b_k = g->ldk};
        mhla_multiply(run, &product);
        if (x->op->shifted)
            mhla_low_sum(x, S + g->vs, &g->pv, x->buf->ones, v.base, v.stride, count,
                         p == 0 ? MHLA_STORE_SET : MHLA_STORE_ADD);
    }
}

static void scale_by(float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

/* The blocks of a softmax have their own maxima: each is brought to the common one and divided by the common sum. */
static void join_weights(const mhla_low_head *x) {
    const mhla_low_geometry *g = x->g;
    const mhla_low_memory *m = x->m;
    float peak = m->peak[0];
    double total = 0.0;
    for (int64_t b = 1; b < g->blocks; b++) peak = m->peak[b] > peak ? m->peak[b] : peak;
    for (int64_t b = 0; b < g->blocks; b++) total += exp((double)(m->peak[b] - peak)) * (double)m->total[b];
    for (int64_t b = 0; b < g->blocks; b++) {
        const float factor = (float)(exp((double)(m->peak[b] - peak)) / total);
        scale_by(m->S + b * g->ld, factor, g->ld);
        scale_by(m->a + mhla_low_begin(g, b), factor, mhla_low_begin(g, b + 1) - mhla_low_begin(g, b));
    }
}

void mhla_low_summary_join(const mhla_low_head *x) {
    const mhla_low_geometry *g = x->g;
    if (x->op->weighted) join_weights(x);
    for (int64_t b = 1; b < g->blocks; b++) x->run->kernels->axpy(x->m->S, 1.0f, x->m->S + b * g->ld, g->ld);
}

/* ---- Outputs ---- */

/* x, alpha and ratio of a block whose queries are loaded. */
mhla_coefficients mhla_low_coefficients(const mhla_low_head *x, int n) {
    const mhla_low_buffers *buf = x->buf;
    const mhla_plan_desc *d = &x->run->plan->d;
    const mhla_coefficients c = {.n = n,
                                 .T = (float)x->g->T,
                                 .scale = d->scale,
                                 .eps = d->den_eps,
                                 .x = buf->x,
                                 .alpha = buf->alpha,
                                 .ratio = buf->ratio,
                                 .dalpha = buf->dalpha,
                                 .dbeta = buf->dbeta,
                                 .dx = buf->dx};
    x->run->kernels->row_dots(buf->x, buf->q_plain, x->g->ldk, x->m->S + x->g->ks, 0, n, x->g->K);
    x->op->coefficients(&c);
    return c;
}

/* o_t = alpha_t (q^_t^T S + ratio_t sum_u v_u) */
void mhla_low_output_step(const mhla_low_head *x, int64_t block) {
    const mhla_low_geometry *g = x->g;
    const int64_t begin = mhla_low_begin(g, block);
    const int n = (int)(mhla_low_begin(g, block + 1) - begin), pieces = mhla_low_pieces(n);
    mhla_low_queries(x, block);
    const mhla_coefficients c = mhla_low_coefficients(x, n);
    for (int p = 0; p < pieces; p++) {
        const int at = p * n / pieces, count = (p + 1) * n / pieces - at;
        mhla_prefetch fetch[2];
        const int lists = mhla_low_fetch_next(x, fetch, begin + at, count);
        mhla_multiply(
            x->run,
            &(mhla_gemm){
                .m = count,
                .n = g->pv,
                .f = {.k = g->K, .a = x->buf->q + at * g->ldk, .a_row = g->ldk, .a_k = 1, .b = x->m->S, .b_rows = g->K},
                .f2 = {.k = x->op->shifted, .a = c.ratio + at, .a_row = 1, .a_k = 1, .b = x->m->S + g->vs, .b_rows = 1},
                .store = MHLA_STORE_ROWS,
                .out = mhla_low_rows(x, x->run->o, x->run->plan->d.dtype, &x->run->call.o, begin + at),
                .row_scale = c.alpha + at,
                .accumulate = x->run->call.accumulate,
                .prefetch = fetch,
                .n_prefetch = lists});
    }
}
