/* The recurrence by its definition, token by token, in double, one thread:
 *
 *   S_t = diag(exp g_t) S_{t-1} + k_t v_t^T        o_t = scale S_t^T q_t
 *
 * and its gradient. With dS_t, the gradient that arrives at S_t, which begins with that of the final state:
 *
 *   dS_t += scale q_t do_t^T,  dq_t = scale S_t do_t,  dk_t = dS_t v_t,  dv_t = dS_t^T k_t,  dS_{t-1} = diag(exp g_t) dS_t
 *   dg_t = sum over s >= t of (q_s dq_s - k_s dk_s), plus the sum of S_T dS_T over V; one decay per head: summed over K
 *
 * The last line needs no state of the past; the tests compare it with finite differences. */
#include <math.h>

#include "ops/gated/gated.h"

typedef struct ref_head {
    const mhla_run *run;
    int64_t s, h, b, begin, T, K, V, D;
    double *S, *dS;             /* [K,V] */
    double *q, *k, *v, *g, *dO; /* [K], [K], [V], [K], [V] of a token */
    double *dq, *dk;            /* [T,K] of all heads that share them */
    double *own_q, *own_k, *dg; /* [T,K], [T,K], [K] of this head */
} ref_head;

static void load(double *x, const void *from, mhla_dtype dtype, const mhla_strides *st, const ref_head *r, int64_t t,
                 int64_t h, int64_t n) {
    for (int64_t j = 0; j < n; j++) x[j] = mhla_get(from, dtype, st, r->b, r->begin + t, h, j);
}

static int64_t key_head(const ref_head *r) { return r->h / (r->run->plan->d.heads / r->run->plan->k_heads); }

static void load_token(ref_head *r, int64_t t) {
    const mhla_run *run = r->run;
    const mhla_call *c = &run->call;
    const mhla_dtype dtype = run->plan->d.dtype;
    load(r->q, run->q, dtype, &c->q, r, t, key_head(r), r->K);
    load(r->k, run->k, dtype, &c->k, r, t, key_head(r), r->K);
    load(r->v, run->v, dtype, &c->v, r, t, r->h, r->V);
    for (int64_t j = 0; j < r->K; j++)
        r->g[j] = mhla_get(c->decay, MHLA_F32, &c->decay_strides, r->b, r->begin + t, r->h, r->D == 1 ? 0 : j);
    if (run->dO) load(r->dO, run->dO, dtype, &c->o, r, t, r->h, r->V);
}

static void load_state(double *S, const float *from, const ref_head *r) {
    const int64_t n = r->K * r->V;
    for (int64_t i = 0; i < n; i++) S[i] = from ? (double)from[(r->s * r->run->plan->d.heads + r->h) * n + i] : 0.0;
}

static void store_state(float *to, const double *S, const ref_head *r, int accumulate) {
    const int64_t n = r->K * r->V;
    if (to == NULL) return;
    to += (r->s * r->run->plan->d.heads + r->h) * n;
    for (int64_t i = 0; i < n; i++) to[i] = (float)(S[i] + (accumulate ? (double)to[i] : 0.0));
}

/* S_t = diag(exp g_t) S_{t-1} + k_t v_t^T */
static void step(ref_head *r) {
    for (int64_t i = 0; i < r->K; i++)
        for (int64_t j = 0; j < r->V; j++) {
            double *x = &r->S[i * r->V + j];
            *x = exp(r->g[i]) * *x + r->k[i] * r->v[j];
        }
}

static void forward_head(ref_head *r) {
    const mhla_run *run = r->run;
    const mhla_plan_desc *d = &run->plan->d;
    load_state(r->S, run->call.initial_state, r);
    for (int64_t t = 0; t < r->T; t++) {
        load_token(r, t);
        step(r);
        for (int64_t j = 0; j < r->V; j++) {
            double o = 0.0;
            for (int64_t i = 0; i < r->K; i++) o += r->q[i] * r->S[i * r->V + j];
            mhla_put(run->o, d->dtype, &run->call.o, r->b, r->begin + t, r->h, j, (double)d->scale * o,
                     run->call.accumulate);
        }
    }
    store_state(run->call.final_state, r->S, r, 0);
}

static void backward_head(ref_head *r) {
    const mhla_run *run = r->run;
    const mhla_grads *g = &run->grads;
    const double scale = (double)run->plan->d.scale;
    const int64_t K = r->K, V = r->V;
    load_state(r->S, run->call.initial_state, r);
    for (int64_t t = 0; t < r->T; t++) { /* dq_t = scale S_t do_t */
        load_token(r, t);
        step(r);
        for (int64_t i = 0; i < K; i++) {
            double sum = 0.0;
            for (int64_t j = 0; j < V; j++) sum += r->S[i * V + j] * r->dO[j];
            r->own_q[t * K + i] = scale * sum;
        }
    }
    load_state(r->dS, g->dfinal_state, r);
    for (int64_t i = 0; i < K; i++) { /* dg_T has S_T dS_T */
        r->dg[i] = 0.0;
        for (int64_t j = 0; j < V; j++) r->dg[i] += r->S[i * V + j] * r->dS[i * V + j];
    }
    for (int64_t t = r->T - 1; t >= 0; t--) {
        load_token(r, t);
        for (int64_t i = 0; i < K; i++) {
            double sum = 0.0;
            for (int64_t j = 0; j < V; j++) {
                r->dS[i * V + j] += scale * r->q[i] * r->dO[j];
                sum += r->dS[i * V + j] * r->v[j];
            }
            r->own_k[t * K + i] = sum;
            r->dg[i] += r->q[i] * r->own_q[t * K + i] - r->k[i] * sum;
        }
        for (int64_t j = 0; g->dv && j < V; j++) {
            double sum = 0.0;
            for (int64_t i = 0; i < K; i++) sum += r->dS[i * V + j] * r->k[i];
            mhla_put(g->dv, MHLA_F32, &g->dv_strides, r->b, r->begin + t, r->h, j, sum, g->accumulate);
        }
        double all = 0.0;
        for (int64_t i = 0; i < K; i++) all += r->dg[i];
        for (int64_t i = 0; g->ddecay && i < r->D; i++)
            mhla_put(g->ddecay, MHLA_F32, &g->ddecay_strides, r->b, r->begin + t, r->h, i, r->D == 1 ? all : r->dg[i],
                     g->accumulate);
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < V; j++) r->dS[i * V + j] *= exp(r->g[i]);
    }
    store_state(g->dinitial_state, r->dS, r, g->accumulate);
    for (int64_t i = 0; i < r->T * K; i++) {
        r->dq[i] += r->own_q[i];
        r->dk[i] += r->own_k[i];
    }
}

static void store_keys(const ref_head *r) {
    const mhla_grads *g = &r->run->grads;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t i = 0; i < r->K; i++) {
            const int64_t h = key_head(r), at = t * r->K + i;
            if (g->dq) mhla_put(g->dq, MHLA_F32, &g->dq_strides, r->b, r->begin + t, h, i, r->dq[at], g->accumulate);
            if (g->dk) mhla_put(g->dk, MHLA_F32, &g->dk_strides, r->b, r->begin + t, h, i, r->dk[at], g->accumulate);
        }
}

mhla_status mhla_gated_reference(const mhla_run *run, int backward) {
    MHLA_TRY(mhla_gated_check_decay(run));
    const mhla_plan_desc *d = &run->plan->d;
    const int64_t K = d->key_dim, V = d->value_dim, H = d->heads, R = H / run->plan->k_heads;
    const int64_t T = backward ? run->call.tokens : 0;
    const int64_t floats = 2 * K * V + 2 * V + 4 * K + 4 * T * K;
    double *memory = mhla_alloc_zero((size_t)floats * sizeof *memory);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reference");
    ref_head r = {.run = run, .K = K, .V = V, .D = mhla_decay_dim(run->plan)};
    double *at = memory;
    r.S = at, r.dS = at += K * V, r.q = at += K * V, r.k = at += K, r.g = at += K, r.dg = at += K, r.v = at += K;
    r.dO = at += V, r.dq = at += V, r.dk = at += T * K, r.own_q = at += T * K, r.own_k = at + T * K;
    for (r.s = 0; r.s < mhla_seq_count(&run->call); r.s++) {
        r.b = mhla_seq_batch(&run->call, r.s);
        r.begin = mhla_seq_begin(&run->call, r.s);
        r.T = mhla_seq_end(&run->call, r.s) - r.begin;
        for (r.h = 0; r.h < H; r.h++) {
            if (!backward) {
                forward_head(&r);
                continue;
            }
            if (r.h % R == 0) memset(r.dq, 0, (size_t)(2 * T * K) * sizeof *r.dq);
            backward_head(&r);
            if (r.h % R == R - 1) store_keys(&r);
        }
    }
    mhla_free(memory);
    return MHLA_OK;
}
