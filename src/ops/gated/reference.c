/* The recurrences by their definition, token by token, in double, one thread:
 *
 *   X = diag(exp g_t) S_{t-1}        S_t = X + k_t u_t^T        o_t = scale S_t^T q_t
 *
 * with u_t = v_t or, in the delta rule, beta_t (v_t - X^T k_t); and their gradient. With dS_t, the gradient that arrives at S_t, which
 * begins with that of the final state:
 *
 *   dS_t += scale q_t do_t^T,  dq_t = scale S_t do_t,  du_t = dS_t^T k_t,  dk_t = dS_t u_t,  dX = dS_t
 *   delta rule: dbeta_t = du_t . (v_t - X^T k_t),  dv_t = beta_t du_t,  dk_t -= X dv_t,  dX -= k_t dv_t^T;  else dv_t = du_t
 *   dg_t = the sum of dX X over V; one decay per head: over K, too;  dS_{t-1} = diag(exp g_t) dX
 *
 * States are kept at every SEGMENT tokens and made again between them. */
#include <math.h>

#include "ops/gated/gated.h"

enum { SEGMENT = 32 };

typedef struct ref_head {
    const mhla_run *run;
    int delta;
    int64_t s, h, b, begin, T, K, V, D;
    double *S, *dS, *X;                    /* [K,V] */
    double *q, *k, *g, *v, *u, *rest, *dO; /* of a token; rest = v - X^T k */
    double beta, q_norm, k_norm;
    double *dq, *dk; /* [T,K] of all heads that share them */
    double *du, *dx; /* [V], [K] */
    double *kept;    /* [segments][K,V] states before each segment, then [SEGMENT][K,V] before each token of one */
} ref_head;

static void load(double *x, const void *from, mhla_dtype dtype, const mhla_strides *st, const ref_head *r, int64_t t,
                 int64_t h, int64_t n) {
    for (int64_t j = 0; j < n; j++) x[j] = mhla_get(from, dtype, st, r->b, r->begin + t, h, j);
}

static int64_t key_head(const ref_head *r) { return r->h / (r->run->plan->d.heads / r->run->plan->k_heads); }

/* x divided by its length; the factor. */
static double normalise(const ref_head *r, double *x) {
    if (!r->run->plan->d.qk_l2norm) return 1.0;
    double sum = 1e-6;
    for (int64_t i = 0; i < r->K; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < r->K; i++) x[i] /= sqrt(sum);
    return 1.0 / sqrt(sum);
}

static void load_token(ref_head *r, int64_t t) {
    const mhla_run *run = r->run;
    const mhla_call *c = &run->call;
    const mhla_dtype dtype = run->plan->d.dtype;
    load(r->q, run->q, dtype, &c->q, r, t, key_head(r), r->K);
    load(r->k, run->k, dtype, &c->k, r, t, key_head(r), r->K);
    r->q_norm = normalise(r, r->q);
    r->k_norm = normalise(r, r->k);
    load(r->v, run->v, dtype, &c->v, r, t, r->h, r->V);
    for (int64_t j = 0; j < r->K; j++)
        r->g[j] = mhla_get(c->decay, MHLA_F32, &c->decay_strides, r->b, r->begin + t, r->h, r->D == 1 ? 0 : j);
    if (r->delta) r->beta = mhla_get(c->beta, MHLA_F32, &c->beta_strides, r->b, r->begin + t, r->h, 0);
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

/* S from S_{t-1} to S_t, by way of X. */
static void step(ref_head *r) {
    const int64_t K = r->K, V = r->V;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) r->X[i * V + j] = exp(r->g[i]) * r->S[i * V + j];
    for (int64_t j = 0; j < V; j++) {
        double held = 0.0;
        for (int64_t i = 0; r->delta && i < K; i++) held += r->X[i * V + j] * r->k[i];
        r->rest[j] = r->v[j] - held;
        r->u[j] = r->delta ? r->beta * r->rest[j] : r->v[j];
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) r->S[i * V + j] = r->X[i * V + j] + r->k[i] * r->u[j];
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

/* to += dx taken back through the division by the length, x being what came out of it. */
static void add_normalised(const ref_head *r, double *to, const double *dx, const double *x, double norm) {
    double along = 0.0;
    for (int64_t i = 0; r->run->plan->d.qk_l2norm && i < r->K; i++) along += x[i] * dx[i];
    for (int64_t i = 0; i < r->K; i++) to[i] += norm * (dx[i] - along * x[i]);
}

/* Token t: S is S_t, X is there; dS goes from t to t - 1. */
static void backward_token(ref_head *r, int64_t t) {
    const mhla_run *run = r->run;
    const mhla_grads *g = &run->grads;
    const double scale = (double)run->plan->d.scale;
    const int64_t K = r->K, V = r->V;
    for (int64_t i = 0; i < K; i++) {
        r->dx[i] = 0.0;
        for (int64_t j = 0; j < V; j++) {
            r->dx[i] += scale * r->S[i * V + j] * r->dO[j];
            r->dS[i * V + j] += scale * r->q[i] * r->dO[j];
        }
    }
    add_normalised(r, r->dq + t * K, r->dx, r->q, r->q_norm);
    double dbeta = 0.0, all = 0.0;
    for (int64_t j = 0; j < V; j++) {
        r->du[j] = 0.0;
        for (int64_t i = 0; i < K; i++) r->du[j] += r->dS[i * V + j] * r->k[i];
        dbeta += r->du[j] * r->rest[j];
    }
    for (int64_t i = 0; i < K; i++) {
        r->dx[i] = 0.0;
        for (int64_t j = 0; j < V; j++) {
            r->dx[i] += r->dS[i * V + j] * r->u[j];
            if (!r->delta) continue;
            r->dx[i] -= r->X[i * V + j] * r->beta * r->du[j];
            r->dS[i * V + j] -= r->k[i] * r->beta * r->du[j];
        }
    }
    add_normalised(r, r->dk + t * K, r->dx, r->k, r->k_norm);
    for (int64_t j = 0; g->dv && j < V; j++)
        mhla_put(g->dv, MHLA_F32, &g->dv_strides, r->b, r->begin + t, r->h, j, r->delta ? r->beta * r->du[j] : r->du[j],
                 g->accumulate);
    if (g->dbeta) mhla_put(g->dbeta, MHLA_F32, &g->dbeta_strides, r->b, r->begin + t, r->h, 0, dbeta, g->accumulate);
    for (int64_t i = 0; i < K; i++) {
        double dg = 0.0;
        for (int64_t j = 0; j < V; j++) {
            dg += r->dS[i * V + j] * r->X[i * V + j];
            r->dS[i * V + j] *= exp(r->g[i]);
        }
        all += dg;
        if (g->ddecay && r->D > 1)
            mhla_put(g->ddecay, MHLA_F32, &g->ddecay_strides, r->b, r->begin + t, r->h, i, dg, g->accumulate);
    }
    if (g->ddecay && r->D == 1)
        mhla_put(g->ddecay, MHLA_F32, &g->ddecay_strides, r->b, r->begin + t, r->h, 0, all, g->accumulate);
}

static void backward_head(ref_head *r) {
    const int64_t n = r->K * r->V, segments = (r->T + SEGMENT - 1) / SEGMENT;
    const size_t bytes = (size_t)n * sizeof *r->S;
    double *inside = r->kept + segments * n;
    load_state(r->S, r->run->call.initial_state, r);
    for (int64_t t = 0; t < r->T; t++) {
        if (t % SEGMENT == 0) memcpy(r->kept + t / SEGMENT * n, r->S, bytes);
        load_token(r, t);
        step(r);
    }
    load_state(r->dS, r->run->grads.dfinal_state, r);
    for (int64_t segment = segments - 1; segment >= 0; segment--) {
        const int64_t begin = segment * SEGMENT, end = begin + SEGMENT < r->T ? begin + SEGMENT : r->T;
        memcpy(r->S, r->kept + segment * n, bytes);
        for (int64_t t = begin; t < end; t++) {
            memcpy(inside + (t - begin) * n, r->S, bytes);
            load_token(r, t);
            step(r);
        }
        for (int64_t t = end - 1; t >= begin; t--) {
            memcpy(r->S, inside + (t - begin) * n, bytes);
            load_token(r, t);
            step(r);
            backward_token(r, t);
        }
    }
    store_state(r->run->grads.dinitial_state, r->dS, r, r->run->grads.accumulate);
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
    const int64_t T = backward ? run->call.tokens : 0, states = backward ? (T + SEGMENT - 1) / SEGMENT + SEGMENT : 0;
    const int64_t doubles = (3 + states) * K * V + 5 * V + 4 * K + 2 * T * K;
    double *memory = mhla_alloc_zero((size_t)doubles * sizeof *memory);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reference");
    ref_head r = {
        .run = run, .K = K, .V = V, .D = mhla_decay_dim(run->plan), .delta = d->kind == MHLA_KIND_GATED_DELTA};
    double *at = memory;
    r.S = at, r.dS = at += K * V, r.X = at += K * V, r.kept = at += K * V, r.v = at += states * K * V;
    r.u = at += V, r.rest = at += V, r.dO = at += V, r.du = at += V;
    r.q = at += V, r.k = at += K, r.g = at += K, r.dx = at += K, r.dq = at += K, r.dk = at + T * K;
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
