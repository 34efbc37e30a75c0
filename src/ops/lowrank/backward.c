/* The steps of the backward on a block of one head. Nothing is kept from the forward: the summary is made again, transposed
 * ([V][K]), because then all products but one find their right factor ready in panels.
 *
 *   o_t = alpha_t n_t + beta_t v+     n_t = q^_t^T S     x_t = q~_t . k+     k+ = sum_u a_u k~_u     v+ = sum_u v_u
 *   g_t = alpha_t do_t                h_t = S g_t        alpha dalpha = q^_t . h_t     alpha dbeta = g_t . v+
 *   dq^ = h    dq~ = dx_t k+          dS = sum_t q^_t g_t^T     dk+ = sum_t dx_t q~_t     dv+ = sum_t ratio_t g_t
 *   dv_u = a_u dS^T k^_u + dv+        dk^_u = a_u dS v_u        dk~_u = a_u dk+ */
#include "ops/lowrank/head.h"

/* The gradient of n features of q or k (which = 1) from token `at` on: dx (=, +=) phi' (unrotate(d) + w z), d NULL = 0. */
static void store(const mhla_low_head *x, int which, int64_t at, int n, const float *features, const float *d,
                  const float *w, const float *z, int add) {
    const mhla_run *run = x->run;
    const mhla_plan_desc *p = &run->plan->d;
    const mhla_call *c = &run->call;
    const mhla_grads *out = &run->grads;
    mhla_unpack u = {.n = n,
                     .K = x->g->K,
                     .ld = x->g->ldk,
                     .feature = p->feature,
                     .eps = p->feature_eps,
                     .rope = p->rope,
                     .rope_dim = p->rope_dim,
                     .cos = c->rope_cos,
                     .sin = c->rope_sin,
                     .rope_row = at,
                     .d = d,
                     .w = w,
                     .z = z,
                     .accumulate = add || out->accumulate};
    if (x->op->focused) {
        mhla_low_focus_keep(x, which, at, n, features, &u);
        return;
    }
    float *dx = which ? out->dk : out->dq;
    if (dx == NULL) return;
    u.x = which ? mhla_low_rows(x, run->k, p->dtype, &c->k, at) : mhla_low_rows(x, run->q, p->dtype, &c->q, at);
    u.dx = mhla_low_rows(x, dx, MHLA_F32, which ? &out->dk_strides : &out->dq_strides, at);
    run->kernels->unpack(&u);
}

/* dq, dS, dk+ and dv+ of a block of queries. */
void mhla_low_query_step(const mhla_low_head *x, int64_t block) {
    const mhla_low_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const mhla_low_buffers *buf = x->buf;
    const mhla_grads *out = &x->run->grads;
    const int64_t begin = mhla_low_begin(g, block);
    const int n = (int)(mhla_low_begin(g, block + 1) - begin), pieces = mhla_low_pieces(n);
    const float *S = x->m->S;
    float *D = x->m->D + block * g->ld;
    memset(D + g->size, 0, (size_t)(g->ld - g->size) * sizeof *D);
    mhla_low_queries(x, block);
    const mhla_coefficients all = mhla_low_coefficients(x, n);
    for (int p = 0; p < pieces; p++) {
        const int at = p * n / pieces, count = (p + 1) * n / pieces - at;
        const mhla_store how = p == 0 ? MHLA_STORE_SET : MHLA_STORE_ADD;
        const float *q = buf->q + at * g->ldk, *plain = buf->q_plain + at * g->ldk;
        mhla_coefficients c = all;
        c.n = count;
        c.x += at;
        c.alpha += at;
        c.ratio += at;
        const mhla_rows dO = mhla_low_rows(x, x->run->dO, x->run->plan->d.dtype, &x->run->call.o, begin + at);
        kernels->copy_rows(buf->g, g->ldv, &dO, count, g->V, c.alpha); /* g = alpha do */
        const mhla_prefetch fetch[3] = {
            mhla_low_fetch(x, x->op->focused ? NULL : out->dq, MHLA_F32, &out->dq_strides, begin + at, count, g->K),
            mhla_low_fetch(x, x->op->focused ? NULL : out->dk, MHLA_F32, &out->dk_strides, begin + at, count, g->K),
            mhla_low_fetch(x, out->dv, MHLA_F32, &out->dv_strides, begin + at, count, g->V),
        };
        mhla_multiply(x->run,
                      &(mhla_gemm){/* h = S g */
                                   .m = count,
                                   .n = g->pk,
                                   .f = {.k = g->V, .a = buf->g, .a_row = g->ldv, .a_k = 1, .b = S, .b_rows = g->V},
                                   .store = MHLA_STORE_SET,
                                   .c = buf->h,
                                   .c_row = g->ldk,
                                   .prefetch = fetch,
                                   .n_prefetch = 1});
        mhla_multiply(x->run,
                      &(mhla_gemm){/* dS^T = sum_t g_t q^_t^T */
                                   .m = g->V,
                                   .n = g->pk,
                                   .f = {.k = count, .a = buf->g, .a_row = 1, .a_k = g->ldv, .b = q, .b_k = g->ldk},
                                   .store = how,
                                   .c = D,
                                   .c_rows = g->V,
                                   .prefetch = fetch + 1,
                                   .n_prefetch = 2});
        kernels->row_dots(buf->dalpha, q, g->ldk, buf->h, g->ldk, count, g->K);
        if (x->op->shifted) kernels->row_dots(buf->dbeta, buf->g, g->ldv, S + g->vs, 0, count, g->V);
        x->op->slopes(&c);
        mhla_low_sum(x, D + g->ks, &g->pk, c.dx, plain, g->ldk, count, how);                         /* dk+ */
        if (x->op->shifted) mhla_low_sum(x, D + g->vs, &g->pv, c.ratio, buf->g, g->ldv, count, how); /* dv+ */
        store(x, 0, begin + at, count, q, buf->h, c.dx, S + g->ks, 0); /* dq = phi' (unrotate(h) + dx k+) */
    }
}

void mhla_low_query_join(const mhla_low_head *x) {
    const mhla_low_geometry *g = x->g;
    for (int64_t b = 1; b < g->blocks; b++) x->run->kernels->axpy(x->m->D, 1.0f, x->m->D + b * g->ld, g->ld);
    x->run->kernels->transpose_panels(x->m->t, &g->pv, x->m->D, &g->pk);
}

/* dv and dk of a block of keys but for what comes by way of the weights, of which da gets a_u da_u. */
void mhla_low_key_step(const mhla_low_head *x, int64_t block) {
    const mhla_low_geometry *g = x->g;
    const mhla_kernels *kernels = x->run->kernels;
    const mhla_low_buffers *buf = x->buf;
    const mhla_grads *out = &x->run->grads;
    const int64_t begin = mhla_low_begin(g, block);
    const int n = (int)(mhla_low_begin(g, block + 1) - begin), pieces = mhla_low_pieces(n);
    const float *D = x->m->D;
    double shift = 0.0;
    mhla_low_keys(x, block);
    for (int p = 0; p < pieces; p++) {
        const int at = p * n / pieces, count = (p + 1) * n / pieces - at;
        const float *k = buf->k + at * g->ldk, *a = x->op->weighted ? x->m->a + begin + at : NULL;
        if (out->dv) /* dv = a dS^T k^ + dv+ */
            mhla_multiply(
                x->run,
                &(mhla_gemm){
                    .m = count,
                    .n = g->pv,
                    .f = {.k = g->K, .a = k, .a_row = g->ldk, .a_k = 1, .b = x->m->t, .b_rows = g->K},
                    .f2 = {.k = x->op->shifted, .a = buf->ones, .a_row = 1, .a_k = 1, .b = D + g->vs, .b_rows = 1},
                    .store = MHLA_STORE_ROWS,
                    .out = mhla_low_rows(x, out->dv, MHLA_F32, &out->dv_strides, begin + at),
                    .row_scale = a,
                    .accumulate = out->accumulate});
        const mhla_rows v = mhla_low_values(x, begin + at, count, a);
        mhla_prefetch fetch[2];
        const int lists = mhla_low_fetch_next(x, fetch, begin + at, count);
        mhla_multiply(x->run,
                      &(mhla_gemm){/* h = a dS v */
                                   .m = count,
                                   .n = g->pk,
                                   .f = {.k = g->V, .a = v.base, .a_row = v.stride, .a_k = 1, .b = D, .b_rows = g->V},
                                   .store = MHLA_STORE_SET,
                                   .c = buf->h,
                                   .c_row = g->ldk,
                                   .prefetch = fetch,
                                   .n_prefetch = lists});
        store(x, 1, begin + at, count, k, buf->h, a, D + g->ks, 0); /* dk = phi' (unrotate(h) + a dk+) */
        if (a == NULL) continue;
        float *da = x->m->da + begin + at;
        kernels->row_dots(da, k, g->ldk, buf->h, g->ldk, count, g->K);
        kernels->row_dots(buf->x, buf->k_plain + at * g->ldk, g->ldk, D + g->ks, 0, count, g->K);
        for (int i = 0; i < count; i++) {
            da[i] += a[i] * buf->x[i];
            shift += (double)da[i];
        }
    }
    if (x->op->weighted) x->m->shift[block] = (float)shift;
}

/* a = softmax(scale qbar . k~): a score's gradient is a_u (da_u - sum_w a_w da_w). */
void mhla_low_weight_step(const mhla_low_head *x, int64_t block) {
    const mhla_low_geometry *g = x->g;
    const int64_t begin = mhla_low_begin(g, block);
    const int n = (int)(mhla_low_begin(g, block + 1) - begin);
    float sum = 0.0f, *score = x->buf->x;
    for (int64_t b = 0; b < g->blocks; b++) sum += x->m->shift[b];
    for (int i = 0; i < n; i++) score[i] = x->run->plan->d.scale * (x->m->da[begin + i] - sum * x->m->a[begin + i]);
    mhla_low_keys(x, block);
    mhla_low_sum(x, x->m->dmean + block * g->ldk, &g->pk, score, x->buf->k_plain, g->ldk, n, MHLA_STORE_SET);
    store(x, 1, begin, n, NULL, NULL, score, x->m->mean, 1);
}

void mhla_low_weight_join(const mhla_low_head *x) {
    const mhla_low_geometry *g = x->g;
    float *dmean = x->m->dmean;
    for (int64_t b = 1; b < g->blocks; b++) x->run->kernels->axpy(dmean, 1.0f, dmean + b * g->ldk, g->K);
    for (int j = 0; j < g->K; j++) dmean[j] /= (float)g->T;
}

/* qbar = mean_t q~_t */
void mhla_low_spread_step(const mhla_low_head *x, int64_t block) {
    const int64_t begin = mhla_low_begin(x->g, block);
    store(x, 0, begin, (int)(mhla_low_begin(x->g, block + 1) - begin), NULL, NULL, NULL, x->m->dmean, 1);
}
