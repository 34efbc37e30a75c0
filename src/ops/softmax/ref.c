/* Softmax attention by definition: one query at a time, in double, nothing clever. README.md has the formulas. */
#include <math.h>

#include "ops/features.h"
#include "ops/softmax/softmax.h"

/* Row [b,t,h] of q or k in double, turned by row `at` of the table. */
static void read_row(double *row, const mhla_run *run, const void *x, mhla_dtype dtype, const mhla_strides *s,
                     int64_t b, int64_t t, int64_t h, int64_t at) {
    const mhla_plan_desc *d = &run->plan->d;
    for (int j = 0; j < d->key_dim; j++) row[j] = mhla_get(x, dtype, s, b, t, h, j);
    if (d->rope != MHLA_ROPE_NONE)
        mhla_rotate_row(row, d->rope, d->rope_dim, run->call.rope_cos, run->call.rope_sin, at, 1.0);
}

static double dot(const double *x, const double *y, int n) {
    double sum = 0.0;
    for (int j = 0; j < n; j++) sum += x[j] * y[j];
    return sum;
}

/* The score of a query and a key, with its soft cap; *slope: how it grows with the score without. */
static double score(const mhla_plan_desc *d, const double *q, const double *k, double *slope) {
    const double s = (double)d->scale * dot(q, k, d->key_dim), t = d->softcap > 0.0 ? tanh(s / d->softcap) : 0.0;
    *slope = 1.0 - t * t;
    return d->softcap > 0.0 ? d->softcap * t : s;
}

/* p[u] = softmax over the keys u in first..last-1 of their scores; q is the query as read. */
static void weights(double *p, double *q, double *k, const mhla_run *run, const mhla_soft_sequence *s, int64_t t,
                    int64_t h, int64_t first, int64_t last) {
    const mhla_plan_desc *d = &run->plan->d;
    const int64_t g = h / (d->heads / d->kv_heads);
    read_row(q, run, run->q, d->dtype, &run->call.q, s->batch, s->q_begin + t, h, t + s->Tk - s->Tq);
    double max = -INFINITY, sum = 0.0, slope;
    for (int64_t u = first; u < last; u++) {
        read_row(k, run, run->k, mhla_soft_kv(d), &run->call.k, s->batch, s->k_begin + u, g, u);
        p[u] = score(d, q, k, &slope);
        if (p[u] > max) max = p[u];
    }
    for (int64_t u = first; u < last; u++) sum += p[u] = exp(p[u] - max);
    for (int64_t u = first; u < last; u++) p[u] /= sum;
}

mhla_status mhla_soft_forward_reference(const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const int K = d->key_dim, V = d->value_dim, ratio = d->heads / d->kv_heads;
    double *p = mhla_alloc(((size_t)c->kv_tokens + 2 * (size_t)K) * sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    double *q = p + c->kv_tokens, *k = q + K;
    for (int64_t i = 0; i < mhla_seq_count(c); i++) {
        const mhla_soft_sequence s = mhla_soft_sequence_at(c, i);
        for (int64_t t = 0; t < s.Tq; t++)
            for (int64_t h = 0; h < d->heads; h++) {
                const int64_t first = mhla_soft_max(0, mhla_soft_first(d, &s, t)), last = mhla_soft_last(d, &s, t);
                if (first < last) weights(p, q, k, run, &s, t, h, first, last);
                for (int j = 0; j < V; j++) { /* o_t = sum_u p_tu v_u */
                    double sum = 0.0;
                    for (int64_t u = first; u < last; u++)
                        sum += p[u] * mhla_get(run->v, mhla_soft_kv(d), &c->v, s.batch, s.k_begin + u, h / ratio, j);
                    mhla_put(run->o, d->dtype, &c->o, s.batch, s.q_begin + t, h, j, sum, c->accumulate);
                }
            }
    }
    mhla_free(p);
    return MHLA_OK;
}

/* Scratch of the backward reference, all double. */
typedef struct scratch {
    double *p, *dp; /* [Tk] weights of a query and their gradient */
    double *q, *k;  /* [K] */
    double *dq;     /* [K] */
    double *dk;     /* [Tk,K] of one key head, rotated */
    double *dv;     /* [Tk,V] */
} scratch;

/* Adds what query t of head h gives to dk and dv of its key head; leaves its own gradient in dq. */
static void backward_query(const scratch *w, const mhla_run *run, const mhla_soft_sequence *s, int64_t t, int64_t h) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const int K = d->key_dim, V = d->value_dim;
    const int64_t g = h / (d->heads / d->kv_heads);
    const int64_t first = mhla_soft_max(0, mhla_soft_first(d, s, t)), last = mhla_soft_last(d, s, t);
    for (int j = 0; j < K; j++) w->dq[j] = 0.0;
    if (first >= last) return;
    weights(w->p, w->q, w->k, run, s, t, h, first, last);
    double mean = 0.0;
    for (int64_t u = first; u < last; u++) { /* o_t = sum_u p_tu v_u */
        w->dp[u] = 0.0;
        for (int j = 0; j < V; j++) {
            const double dO = mhla_get(run->dO, d->dtype, &c->o, s->batch, s->q_begin + t, h, j);
            w->dp[u] += dO * mhla_get(run->v, mhla_soft_kv(d), &c->v, s->batch, s->k_begin + u, g, j);
            w->dv[u * V + j] += w->p[u] * dO;
        }
        mean += w->p[u] * w->dp[u];
    }
    for (int64_t u = first; u < last; u++) { /* p = softmax(cap(scale * q_t . k_u)) */
        double slope;
        read_row(w->k, run, run->k, mhla_soft_kv(d), &c->k, s->batch, s->k_begin + u, g, u);
        score(d, w->q, w->k, &slope);
        const double ds = (double)d->scale * w->p[u] * (w->dp[u] - mean) * slope;
        for (int j = 0; j < K; j++) {
            w->dq[j] += ds * w->k[j];
            w->dk[u * K + j] += ds * w->q[j];
        }
    }
    if (d->rope != MHLA_ROPE_NONE)
        mhla_rotate_row(w->dq, d->rope, d->rope_dim, c->rope_cos, c->rope_sin, t + s->Tk - s->Tq, -1.0);
}

static void backward_head(const scratch *w, const mhla_run *run, const mhla_soft_sequence *s, int64_t g) {
    const mhla_plan_desc *d = &run->plan->d;
    const mhla_call *c = &run->call;
    const mhla_grads *out = &run->grads;
    const int K = d->key_dim, V = d->value_dim, ratio = d->heads / d->kv_heads;
    for (int64_t i = 0; i < s->Tk * K; i++) w->dk[i] = 0.0;
    for (int64_t i = 0; i < s->Tk * V; i++) w->dv[i] = 0.0;
    for (int64_t h = g * ratio; h < (g + 1) * ratio; h++)
        for (int64_t t = 0; t < s->Tq; t++) {
            backward_query(w, run, s, t, h);
            for (int j = 0; j < K && out->dq; j++)
                mhla_put(out->dq, MHLA_F32, &out->dq_strides, s->batch, s->q_begin + t, h, j, w->dq[j],
                         out->accumulate);
        }
    for (int64_t u = 0; u < s->Tk; u++) {
        if (d->rope != MHLA_ROPE_NONE)
            mhla_rotate_row(w->dk + u * K, d->rope, d->rope_dim, c->rope_cos, c->rope_sin, u, -1.0);
        for (int j = 0; j < K && out->dk; j++)
            mhla_put(out->dk, MHLA_F32, &out->dk_strides, s->batch, s->k_begin + u, g, j, w->dk[u * K + j],
                     out->accumulate);
        for (int j = 0; j < V && out->dv; j++)
            mhla_put(out->dv, MHLA_F32, &out->dv_strides, s->batch, s->k_begin + u, g, j, w->dv[u * V + j],
                     out->accumulate);
    }
}

mhla_status mhla_soft_backward_reference(const mhla_run *run) {
    const mhla_plan_desc *d = &run->plan->d;
    const size_t K = (size_t)d->key_dim, V = (size_t)d->value_dim, T = (size_t)run->call.kv_tokens;
    scratch w = {.p = mhla_alloc((2 * T + 3 * K + T * (K + V)) * sizeof(double))};
    if (w.p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the reference");
    w.dp = w.p + T;
    w.q = w.dp + T;
    w.k = w.q + K;
    w.dq = w.k + K;
    w.dk = w.dq + K;
    w.dv = w.dk + T * K;
    for (int64_t i = 0; i < mhla_seq_count(&run->call); i++) {
        const mhla_soft_sequence s = mhla_soft_sequence_at(&run->call, i);
        for (int64_t g = 0; g < d->kv_heads; g++) backward_head(&w, run, &s, g);
    }
    mhla_free(w.p);
    return MHLA_OK;
}
