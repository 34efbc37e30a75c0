/* The gradient of one causal block: everything that stays inside it, and dP. README.md has the formulas, with the names
 * used here: a = scale * do / den, w = m_ii, e = scale * dden. */
#include "ops/causal/backward.h"

/* out[n-1-u][n-1-t] = factor * in[t][u] for t >= u: lower triangular again, rows back to front. */
static void turn(float *out, const float *in, int64_t ld, int n, float factor) {
    for (int u = 0; u < n; u++) {
        float *row = out + (int64_t)(n - 1 - u) * ld;
        for (int t = u; t < n; t++) row[n - 1 - t] = factor * in[t * ld + u];
    }
}

/* C[u] (=, +=) sum over t >= u of factor * A[t][u] B[t], A [n][n] lower triangular, B and C [n][ld]. Nothing of a row
 * t < u is touched. */
static void times_turned(const mhla_kernels *kernels, mhla_back_scratch *b, const mhla_panels *cols, float *C,
                         const float *A, const float *B, int64_t ld, int n, float factor, int add) {
    turn(b->turned, A, b->x.ld_scores, n, factor);
    mhla_gemm g = {.m = n,
                   .n = *cols,
                   .f2_lower = 1,
                   .f2_lead = 1,
                   .store = add ? MHLA_STORE_ADD : MHLA_STORE_SET,
                   .c = C + (n - 1) * ld,
                   .c_row = -ld};
    g.f2 = (mhla_factor){.k = n, .a = b->turned, .a_row = b->x.ld_scores, .a_k = 1, .b = B + (n - 1) * ld, .b_k = -ld};
    kernels->gemm(&g);
}

/* den_t = scale q2_t . (z' + w cs_t) + eps: with e_t = scale * dden_t,
 *   dq2_t = e_t (z' + w cs_t),  dz' = sum e_t q2_t,  dk2_u += w sum_{t>=u} e_t q2_t,  dw += sum e_t q2_t . cs_t
 * dden_t = -(do_t . o_t)/den_t = -(q~_t . dq~_t)/den_t. Returns dw's part; leaves dz' in x.z. */
static float denominator_backward(const mhla_back_unit *bu, mhla_back_scratch *b, int r, int block, int n) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    const mhla_kernels *k = w->run->kernels;
    const mhla_plan_desc *d = &w->run->plan->d;
    mhla_causal_scratch *x = &b->x;
    const int64_t i = mhla_causal_chunk(u, block), ld = w->Kp;
    const float m = mhla_causal_unit_weight(u, r, i, i);
    const float *z = mhla_causal_P(u, r, block) + w->shape.F;
    const int past = mhla_causal_has_past(u, block);
    float dw = 0.0f;
    k->row_dots(x->dots, x->q, ld, b->dq, ld, n, d->key_dim);
    for (int t = 0; t < n; t++) x->scale[t] = -d->scale * x->dots[t] / x->den[t]; /* e_t */
    k->row_dots(x->dots, x->q2, ld, x->cs, ld, n, d->key_dim);
    for (int t = 0; t < n; t++) dw += x->scale[t] * x->dots[t];
    memset(x->z, 0, (size_t)ld * sizeof(float));
    if (r == 0) memset(b->dk2, 0, (size_t)(n * ld) * sizeof(float));
    for (int t = n - 1; t >= 0; t--) {
        float *plain = b->plain + t * ld;
        memset(plain, 0, (size_t)ld * sizeof(float));
        k->axpy(plain, x->scale[t] * m, x->cs + t * ld, d->key_dim);
        if (past) k->axpy(plain, x->scale[t], z, d->key_dim);
        k->axpy(x->z, x->scale[t], x->q2 + t * ld, d->key_dim);
        k->axpy(b->dk2 + t * ld, m, x->z, d->key_dim);
    }
    return dw;
}

void mhla_causal_unpack(const mhla_causal_unit *u, float *dx, const mhla_strides *dst, const void *x,
                        const mhla_strides *st, int64_t head, int64_t t, int n, const float *d, const float *plain,
                        const float *z, int accumulate) {
    const mhla_run *run = u->w->run;
    const mhla_plan_desc *desc = &run->plan->d;
    if (dx == NULL) return;
    const mhla_unpack p = {.dx = mhla_causal_rows(u, dx, MHLA_F32, dst, head, t),
                           .x = mhla_causal_rows(u, x, desc->dtype, st, head, t),
                           .n = n,
                           .K = desc->key_dim,
                           .ld = u->w->Kp,
                           .feature = desc->feature,
                           .eps = desc->feature_eps,
                           .rope = desc->rope,
                           .rope_dim = desc->rope_dim,
                           .cos = run->call.rope_cos,
                           .sin = run->call.rope_sin,
                           .rope_row = run->call.past + t,
                           .d = d,
                           .plain = plain,
                           .z = z,
                           .accumulate = accumulate};
    run->kernels->unpack(&p);
}

/* D = a^T q~ and dz' into the block's row. */
static void store_dP(const mhla_back_unit *bu, mhla_back_scratch *b, int r, int block, int64_t t, int n) {
    const mhla_causal_work *w = bu->u.w;
    const mhla_summary_shape *s = &w->shape;
    const mhla_summary_list *D = &bu->D[w->mixes > 1 ? r : 0];
    const int64_t row = bu->blocks - 1 - (bu->done + block);
    const int add = w->mixes == 1 && r > 0;
    for (int i = 0; i < s->n.count; i++) {
        const mhla_piece p = mhla_summary_piece(s, i * s->rows);
        const mhla_run *run = w->run;
        const mhla_dtype dtype = run->plan->d.dtype;
        const mhla_prefetch next[] = {mhla_causal_next_rows(&bu->u, run->v, dtype, &run->call.v, bu->u.g, t, n, s->V),
                                      mhla_causal_next_rows(&bu->u, run->k, dtype, &run->call.k, bu->u.g, t, n, s->K)};
        mhla_gemm g = {.m = s->rows,
                       .n = p.n,
                       .store = add ? MHLA_STORE_ADD : MHLA_STORE_SET,
                       .c = mhla_list_at(D, &p, row),
                       .c_row = (D->cap + 1) * p.width,
                       .prefetch = next,
                       .n_prefetch = i == 0 ? 2 : 0};
        g.f = (mhla_factor){.k = n, .a = b->a, .a_row = 1, .a_k = w->Vw, .b = b->x.q + p.column, .b_k = w->Kp};
        mhla_multiply(run, &g);
    }
    for (int j = s->rows * s->n.count; j < s->pieces; j++) {
        const mhla_piece p = mhla_summary_piece(s, j);
        float *dst = mhla_list_at(D, &p, row);
        for (int e = 0; e < p.width; e++) dst[e] = (add ? dst[e] : 0.0f) + b->x.z[p.column + e];
    }
}

/* One query head of a block. n_t = q~_t P + w sum_{u<=t} (q~_t . k~_u) v_u, o = scale n / den:
 *   dq~ = a P^T + w tril(a v^T) k~,  dk~ += w tril(a v^T)^T q~,  dv += w tril(q~ k~^T)^T a,  dP = q~^T a,
 *   dw = sum_{u<=t} (q~_t . k~_u)(a_t . v_u) */
static void head_backward(const mhla_back_unit *bu, mhla_back_scratch *b, int r, int block, int64_t t, int n) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const mhla_grads *gr = &run->grads;
    mhla_causal_scratch *x = &b->x;
    const int K = d->key_dim, V = d->value_dim, second = c->q2 != NULL;
    const int64_t h = u->g * w->ratio + r, i = mhla_causal_chunk(u, block), ld = x->ld_scores;
    const float m = mhla_causal_unit_weight(u, r, i, i);
    mhla_causal_pack(u, x->q, w->normed && !second ? x->q2 : NULL, run->q, &c->q, h, t, n, 1);
    if (second) mhla_causal_pack(u, x->q2, NULL, c->q2, &c->q2_strides, h, t, n, 0);
    if (w->normed) mhla_causal_denominators(u, x, r, block, n);
    for (int e = 0; e < n; e++) x->scale[e] = w->normed ? d->scale / x->den[e] : d->scale;
    const mhla_rows dO = mhla_causal_rows(u, run->dO, d->dtype, &c->o, h, t);
    run->kernels->copy_rows(b->a, w->Vw, &dO, n, V, x->scale);
    mhla_causal_scores(run, x, x->scores, x->q, w->Kp, x->kT, K, n, 1.0f);
    mhla_causal_scores(run, x, b->ds, b->a, w->Vw, b->vT, V, n, 1.0f);
    float dw = 0.0f;
    for (int e = 0; e < n; e++) {
        float row;
        run->kernels->row_dots(&row, x->scores + e * ld, 0, b->ds + e * ld, 0, 1, e + 1);
        dw += row;
    }
    times_turned(run->kernels, b, &w->shape.n, b->dk, b->ds, x->q, w->Kp, n, m, r > 0);
    mhla_panels pv;
    run->kernels->panels(&pv, V);
    times_turned(run->kernels, b, &pv, b->dv, x->scores, b->a, w->Vw, n, m, r > 0);
    for (int e = 0; e < n; e++)
        for (int f = 0; f <= e; f++) b->ds[e * ld + f] *= m;
    const mhla_prefetch next[] = {mhla_causal_next_rows(u, run->dO, d->dtype, &c->o, h, t, n, V),
                                  mhla_causal_next_rows(u, run->q, d->dtype, &c->q, h, t, n, K),
                                  mhla_causal_next_rows(u, gr->dq ? gr->dq : run->q, MHLA_F32,
                                                        gr->dq ? &gr->dq_strides : &c->q, h, t, n, gr->dq ? K : 0)};
    mhla_gemm g = {.m = n,
                   .n = w->shape.n,
                   .f2_lower = 1,
                   .f2_lead = 1,
                   .store = MHLA_STORE_SET,
                   .c = b->dq,
                   .c_row = w->Kp,
                   .prefetch = next,
                   .n_prefetch = gr->dq ? 3 : 2};
    if (mhla_causal_has_past(u, block))
        g.f = (mhla_factor){.k = V, .a = b->a, .a_row = w->Vw, .a_k = 1, .b = mhla_causal_P(u, r, block), .b_rows = V};
    g.f2 = (mhla_factor){.k = n, .a = b->ds, .a_row = ld, .a_k = 1, .b = x->k, .b_k = w->Kp};
    mhla_multiply(run, &g);
    if (w->normed) dw += denominator_backward(bu, b, r, block, n);
    bu->diagonal[block * w->ratio + r] = dw;
    mhla_causal_unpack(u, gr->dq, &gr->dq_strides, run->q, &c->q, h, t, n, b->dq,
                       w->normed && !second ? b->plain : NULL, NULL, gr->accumulate);
    if (second)
        mhla_causal_unpack(u, gr->dq2, &gr->dq2_strides, c->q2, &c->q2_strides, h, t, n, NULL, b->plain, NULL,
                           gr->accumulate);
    store_dP(bu, b, r, block, t, n);
}

void mhla_causal_block_backward(const mhla_back_unit *bu, mhla_back_scratch *b, int block) {
    const mhla_causal_unit *u = &bu->u;
    const mhla_causal_work *w = u->w;
    const mhla_run *run = w->run;
    const mhla_call *c = &run->call;
    const mhla_grads *gr = &run->grads;
    mhla_causal_scratch *x = &b->x;
    const int second = c->k2 != NULL;
    int64_t t;
    const int n = mhla_causal_block(u, block, &t);
    mhla_causal_pack(u, x->k, w->normed && !second ? x->k2 : NULL, run->k, &c->k, u->g, t, n, 1);
    if (w->normed) mhla_causal_running_keys(u, x, t, n);
    const mhla_rows values = mhla_causal_rows(u, run->v, run->plan->d.dtype, &c->v, u->g, t);
    run->kernels->copy_rows(x->v, w->Vw, &values, n, w->shape.V, NULL);
    const mhla_panels ps = mhla_causal_score_panels(run->kernels, n);
    run->kernels->transpose(x->kT, &ps, x->k, w->Kp, w->shape.K);
    run->kernels->transpose(b->vT, &ps, x->v, w->Vw, w->shape.V);
    for (int r = 0; r < w->ratio; r++) head_backward(bu, b, r, block, t, n);
    mhla_causal_unpack(u, gr->dk, &gr->dk_strides, run->k, &c->k, u->g, t, n, b->dk,
                       w->normed && !second ? b->dk2 : NULL, NULL, gr->accumulate);
    if (second)
        mhla_causal_unpack(u, gr->dk2, &gr->dk2_strides, c->k2, &c->k2_strides, u->g, t, n, NULL, b->dk2, NULL,
                           gr->accumulate);
    if (gr->dv) {
        const mhla_rows dv = mhla_causal_rows(u, gr->dv, MHLA_F32, &gr->dv_strides, u->g, t);
        run->kernels->store_rows(&dv, b->dv, w->Vw, n, w->shape.V, gr->accumulate);
    }
}
