/* Bidirectional MHLA by definition (README.md), in double, one thread, no cleverness: what the kernels are held to.
 * Linear attention is the case of one block. */
#include "ops/bidirectional/bidirectional.h"
#include "ops/features.h"

/* Queries, or keys and values. Positions p are in block order: token(p) is the row in memory. */
typedef struct side {
    const mhla_layout *layout; /* NULL: one block */
    int64_t T, M;
    const float *cos, *sin;
} side;

/* One (batch, head) in double. */
typedef struct head {
    const mhla_run *run;
    side queries, keys;
    int64_t b, h, K, V;
    double *q, *k, *v; /* [Tq,K], [Tk,K] features, rotated; [Tk,V] */
    double *qn, *kn;   /* features for the denominator, not rotated */
    double *mix;       /* [Mq,Mk] */
    double *S, *z;     /* [Mk,K,V], [Mk,K] */
    double *Sm, *zm;   /* S' [Mq,K,V], z' [Mq,K] */
    double *den;       /* [Tq] */
} head;

static int64_t block_begin(const side *s, int64_t i) { return s->layout ? s->layout->offsets[i] : i * s->T; }
static int64_t token(const side *s, int64_t p) { return s->layout && s->layout->perm ? s->layout->perm[p] : p; }

static void load_features(double *out, double *plain, const head *x, const side *of, const void *src,
                          const mhla_strides *s, int rotate) {
    const mhla_plan_desc *d = &x->run->plan->d;
    for (int64_t p = 0; p < of->T; p++) {
        double *row = out + p * x->K;
        for (int64_t j = 0; j < x->K; j++)
            row[j] = mhla_feature_value(d->feature, mhla_get(src, d->dtype, s, x->b, token(of, p), x->h, j),
                                        (double)d->feature_eps);
        if (plain) memcpy(plain + p * x->K, row, (size_t)x->K * sizeof *row);
        if (rotate && d->rope != MHLA_ROPE_NONE)
            mhla_rotate_row(row, d->rope, d->rope_dim, of->cos, of->sin, token(of, p), 1.0);
    }
}

/* S_b, z_b, their mixtures, and the denominators. */
static void summarise(head *x) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const side *q = &x->queries, *k = &x->keys;
    const int64_t Mq = q->M, Mk = k->M, K = x->K, V = x->V;
    memset(x->S, 0, (size_t)(Mk * K * V) * sizeof *x->S);
    memset(x->z, 0, (size_t)(Mk * K) * sizeof *x->z);
    memset(x->Sm, 0, (size_t)(Mq * K * V) * sizeof *x->Sm);
    memset(x->zm, 0, (size_t)(Mq * K) * sizeof *x->zm);
    for (int64_t b = 0; b < Mk; b++)
        for (int64_t p = block_begin(k, b); p < block_begin(k, b + 1); p++)
            for (int64_t i = 0; i < K; i++) { /* S_b = sum_t k~_t v_t^T, z_b = sum_t k~_t */
                x->z[b * K + i] += x->kn[p * K + i];
                for (int64_t j = 0; j < V; j++) x->S[(b * K + i) * V + j] += x->k[p * K + i] * x->v[p * V + j];
            }
    for (int64_t i = 0; i < Mq; i++)
        for (int64_t b = 0; b < Mk; b++) { /* S'_i = sum_b m[i,b] S_b */
            const double m = x->mix[i * Mk + b];
            for (int64_t e = 0; e < K * V; e++) x->Sm[i * K * V + e] += m * x->S[b * K * V + e];
            for (int64_t e = 0; e < K; e++) x->zm[i * K + e] += m * x->z[b * K + e];
        }
    for (int64_t i = 0; i < Mq; i++)
        for (int64_t p = block_begin(q, i); p < block_begin(q, i + 1); p++) {
            double den = 0.0;
            if (d->denominator == MHLA_DEN_EQ4) { /* q~ . z'_i */
                for (int64_t e = 0; e < K; e++) den += x->qn[p * K + e] * x->zm[i * K + e];
            } else if (d->denominator == MHLA_DEN_RELEASED) { /* sum_b m[i,b] q~_{b,w} . z_b */
                const int64_t w = p - block_begin(q, i);
                for (int64_t b = 0; b < Mk; b++)
                    for (int64_t e = 0; e < K; e++)
                        den += x->mix[i * Mk + b] * x->qn[(block_begin(q, b) + w) * K + e] * x->z[b * K + e];
            }
            x->den[p] = d->denominator == MHLA_DEN_NONE ? 1.0 : (double)d->scale * den + (double)d->den_eps;
        }
}

static void load_head(head *x, int64_t b, int64_t h) {
    const mhla_run *run = x->run;
    const mhla_call *c = &run->call;
    const mhla_plan_desc *d = &run->plan->d;
    x->b = b;
    x->h = h;
    load_features(x->q, c->q2 ? NULL : x->qn, x, &x->queries, run->q, &c->q, 1);
    load_features(x->k, c->k2 ? NULL : x->kn, x, &x->keys, run->k, &c->k, 1);
    if (c->q2) load_features(x->qn, NULL, x, &x->queries, c->q2, &c->q2_strides, 0);
    if (c->k2) load_features(x->kn, NULL, x, &x->keys, c->k2, &c->k2_strides, 0);
    for (int64_t p = 0; p < x->keys.T; p++)
        for (int64_t j = 0; j < x->V; j++)
            x->v[p * x->V + j] = mhla_get(run->v, d->dtype, &c->v, b, token(&x->keys, p), h, j);
    const int64_t n = x->queries.M * x->keys.M;
    for (int64_t e = 0; e < n; e++) x->mix[e] = run->mix ? (double)run->mix[(d->mix_per_head ? h * n : 0) + e] : 1.0;
    summarise(x);
}

static head make_head(const mhla_run *run, mhla_carver *w) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const mhla_layout *queries = run->plan->queries, *keys = run->plan->keys;
    head x = {.run = run,
              .queries = {queries, c->tokens, queries ? queries->M : 1, c->rope_cos, c->rope_sin},
              .keys = {keys, c->kv_tokens, keys ? keys->M : 1, c->key_rope_cos, c->key_rope_sin},
              .K = d->key_dim,
              .V = d->value_dim};
    const int64_t Tq = x.queries.T, Tk = x.keys.T, Mq = x.queries.M, Mk = x.keys.M, K = x.K, V = x.V;
    double **list[] = {&x.q, &x.k, &x.qn, &x.kn, &x.v, &x.mix, &x.S, &x.Sm, &x.z, &x.zm, &x.den};
    const int64_t size[] = {Tq * K,     Tk * K,     Tq * K, Tk * K, Tk * V, Mq * Mk,
                            Mk * K * V, Mq * K * V, Mk * K, Mq * K, Tq};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) *list[i] = mhla_carve(w, (size_t)size[i] * sizeof(double));
    return x;
}

mhla_status mhla_bidirectional_forward_reference(const mhla_run *run) {
    mhla_carver w = {0};
    make_head(run, &w);
    void *memory = mhla_alloc(w.used);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reference of %zu bytes", w.used);
    w = (mhla_carver){.base = memory};
    head x = make_head(run, &w);
    const mhla_plan_desc *d = &run->plan->d;
    for (int64_t b = 0; b < run->call.batch; b++)
        for (int64_t h = 0; h < d->heads; h++) {
            load_head(&x, b, h);
            const side *queries = &x.queries;
            for (int64_t i = 0; i < queries->M; i++)
                for (int64_t p = block_begin(queries, i); p < block_begin(queries, i + 1); p++)
                    for (int64_t j = 0; j < x.V; j++) { /* o_t = (q~_t^T S'_i) / den_t */
                        double o = 0.0;
                        for (int64_t e = 0; e < x.K; e++) o += x.q[p * x.K + e] * x.Sm[(i * x.K + e) * x.V + j];
                        mhla_put(run->o, d->dtype, &run->call.o, b, token(queries, p), h, j,
                                 (double)d->scale * o / x.den[p], run->call.accumulate);
                    }
        }
    mhla_free(memory);
    return MHLA_OK;
}

/* ---- Backward ---- */

typedef struct head_grads {
    double *dq, *dk, *dqn, *dkn, *dv, *dmix; /* as in head */
    double *dS, *dz, *dSm, *dzm;
} head_grads;

static head_grads make_grads(const head *x, mhla_carver *w) {
    head_grads g;
    double **list[] = {&g.dq, &g.dk, &g.dqn, &g.dkn, &g.dv, &g.dmix, &g.dS, &g.dSm, &g.dz, &g.dzm};
    const int64_t Tq = x->queries.T, Tk = x->keys.T, Mq = x->queries.M, Mk = x->keys.M, K = x->K, V = x->V;
    const int64_t size[] = {Tq * K, Tk * K, Tq * K, Tk * K, Tk * V, Mq * Mk, Mk * K * V, Mq * K * V, Mk * K, Mq * K};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) *list[i] = mhla_carve(w, (size_t)size[i] * sizeof(double));
    return g;
}

static void differentiate(const head *x, head_grads *g) {
    const mhla_plan_desc *d = &x->run->plan->d;
    const side *q = &x->queries, *k = &x->keys;
    const int64_t Mq = q->M, Mk = k->M, K = x->K, V = x->V, Tq = q->T, Tk = k->T;
    const double scale = (double)d->scale;
    memset(g->dq, 0, (size_t)(Tq * K) * sizeof(double));
    memset(g->dk, 0, (size_t)(Tk * K) * sizeof(double));
    memset(g->dqn, 0, (size_t)(Tq * K) * sizeof(double));
    memset(g->dkn, 0, (size_t)(Tk * K) * sizeof(double));
    memset(g->dv, 0, (size_t)(Tk * V) * sizeof(double));
    memset(g->dmix, 0, (size_t)(Mq * Mk) * sizeof(double));
    memset(g->dS, 0, (size_t)(Mk * K * V) * sizeof(double));
    memset(g->dSm, 0, (size_t)(Mq * K * V) * sizeof(double));
    memset(g->dz, 0, (size_t)(Mk * K) * sizeof(double));
    memset(g->dzm, 0, (size_t)(Mq * K) * sizeof(double));
    for (int64_t i = 0; i < Mq; i++)
        for (int64_t p = block_begin(q, i); p < block_begin(q, i + 1); p++) {
            double dd = 0.0;                  /* gradient of den_t */
            for (int64_t j = 0; j < V; j++) { /* o_t = scale q~_t^T S'_i / den_t */
                const double go =
                    scale / x->den[p] * mhla_get(x->run->dO, d->dtype, &x->run->call.o, x->b, token(q, p), x->h, j);
                for (int64_t e = 0; e < K; e++) {
                    const double s = x->Sm[(i * K + e) * V + j];
                    g->dq[p * K + e] += go * s;
                    g->dSm[(i * K + e) * V + j] += go * x->q[p * K + e];
                    dd -= go * x->q[p * K + e] * s / x->den[p];
                }
            }
            dd *= scale;                          /* den_t = scale * (...) + eps */
            if (d->denominator == MHLA_DEN_EQ4) { /* (...) = q~ . z'_i */
                for (int64_t e = 0; e < K; e++) {
                    g->dqn[p * K + e] += dd * x->zm[i * K + e];
                    g->dzm[i * K + e] += dd * x->qn[p * K + e];
                }
            } else if (d->denominator == MHLA_DEN_RELEASED) { /* (...) = sum_b m[i,b] q~_{b,w} . z_b */
                const int64_t w = p - block_begin(q, i);
                for (int64_t b = 0; b < Mk; b++)
                    for (int64_t e = 0; e < K; e++) {
                        const double m = x->mix[i * Mk + b], z = x->z[b * K + e];
                        const int64_t at = (block_begin(q, b) + w) * K + e;
                        g->dqn[at] += dd * m * z;
                        g->dz[b * K + e] += dd * m * x->qn[at];
                        g->dmix[i * Mk + b] += dd * x->qn[at] * z;
                    }
            }
        }
    for (int64_t i = 0; i < Mq; i++)
        for (int64_t b = 0; b < Mk; b++) { /* S'_i = sum_b m[i,b] S_b, z'_i alike */
            const double m = x->mix[i * Mk + b];
            for (int64_t e = 0; e < K * V; e++) {
                g->dmix[i * Mk + b] += g->dSm[i * K * V + e] * x->S[b * K * V + e];
                g->dS[b * K * V + e] += m * g->dSm[i * K * V + e];
            }
            for (int64_t e = 0; e < K; e++) {
                g->dmix[i * Mk + b] += g->dzm[i * K + e] * x->z[b * K + e];
                g->dz[b * K + e] += m * g->dzm[i * K + e];
            }
        }
    for (int64_t b = 0; b < Mk; b++)
        for (int64_t p = block_begin(k, b); p < block_begin(k, b + 1); p++)
            for (int64_t e = 0; e < K; e++) { /* S_b = sum_t k~_t v_t^T, z_b = sum_t k~_t */
                g->dkn[p * K + e] += g->dz[b * K + e];
                for (int64_t j = 0; j < V; j++) {
                    const double ds = g->dS[(b * K + e) * V + j];
                    g->dk[p * K + e] += ds * x->v[p * V + j];
                    g->dv[p * V + j] += ds * x->k[p * K + e];
                }
            }
}

/* Through rotary and feature map, into the caller's gradient. `other` (the un-rotated features' gradient) may be NULL. */
static void store_features(const head *x, const side *of, float *out, const mhla_strides *s, const void *src,
                           const mhla_strides *from, double *rotated, const double *other) {
    const mhla_plan_desc *d = &x->run->plan->d;
    if (out == NULL) return;
    for (int64_t p = 0; p < of->T; p++) {
        double zero[1024] = {0}, *row = rotated ? rotated + p * x->K : zero;
        if (rotated && d->rope != MHLA_ROPE_NONE)
            mhla_rotate_row(row, d->rope, d->rope_dim, of->cos, of->sin, token(of, p), -1.0);
        for (int64_t j = 0; j < x->K; j++) {
            const double slope =
                mhla_feature_slope(d->feature, mhla_get(src, d->dtype, from, x->b, token(of, p), x->h, j));
            mhla_put(out, MHLA_F32, s, x->b, token(of, p), x->h, j,
                     slope * (row[j] + (other ? other[p * x->K + j] : 0.0)), x->run->grads.accumulate);
        }
    }
}

static void store_head(const head *x, head_grads *g, double *dmix) {
    const mhla_run *run = x->run;
    const mhla_grads *out = &run->grads;
    const mhla_call *c = &run->call;
    const int pair = c->q2 != NULL;
    store_features(x, &x->queries, out->dq, &out->dq_strides, run->q, &c->q, g->dq, pair ? NULL : g->dqn);
    store_features(x, &x->keys, out->dk, &out->dk_strides, run->k, &c->k, g->dk, pair ? NULL : g->dkn);
    store_features(x, &x->queries, out->dq2, &out->dq2_strides, c->q2, &c->q2_strides, NULL, g->dqn);
    store_features(x, &x->keys, out->dk2, &out->dk2_strides, c->k2, &c->k2_strides, NULL, g->dkn);
    if (out->dv)
        for (int64_t p = 0; p < x->keys.T; p++)
            for (int64_t j = 0; j < x->V; j++)
                mhla_put(out->dv, MHLA_F32, &out->dv_strides, x->b, token(&x->keys, p), x->h, j, g->dv[p * x->V + j],
                         out->accumulate);
    const int64_t n = x->queries.M * x->keys.M;
    double *dm = dmix + (run->plan->d.mix_per_head ? x->h * n : 0);
    for (int64_t e = 0; e < n; e++) dm[e] += g->dmix[e];
}

mhla_status mhla_bidirectional_backward_reference(const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    mhla_carver w = {0};
    head x = make_head(run, &w);
    const int64_t n_mix = x.queries.M * x.keys.M * (d->mix_per_head ? d->heads : 1);
    make_grads(&x, &w);
    mhla_carve(&w, (size_t)n_mix * sizeof(double));
    void *memory = mhla_alloc(w.used);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reference of %zu bytes", w.used);
    w = (mhla_carver){.base = memory};
    x = make_head(run, &w);
    head_grads g = make_grads(&x, &w);
    double *dmix = mhla_carve(&w, (size_t)n_mix * sizeof(double));
    memset(dmix, 0, (size_t)n_mix * sizeof *dmix);
    for (int64_t b = 0; b < run->call.batch; b++)
        for (int64_t h = 0; h < d->heads; h++) {
            load_head(&x, b, h);
            differentiate(&x, &g);
            store_head(&x, &g, dmix);
        }
    if (run->grads.dmix)
        for (int64_t e = 0; e < n_mix; e++)
            run->grads.dmix[e] = (float)(dmix[e] + (run->grads.accumulate ? (double)run->grads.dmix[e] : 0.0));
    mhla_free(memory);
    return MHLA_OK;
}
