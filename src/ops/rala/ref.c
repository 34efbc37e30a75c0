/* RALA by definition (README.md), in double. */
#include <math.h>

#include "ops/lowrank/reference.h"
#include "ops/rala/rala.h"

/* a_u = softmax_u(s qbar . k~_u) */
static void weights(mhla_ref_head *x) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t u = 0; u < x->T; u++) {
        x->a[u] = x->scale * mhla_ref_dot(x->qbar, x->k + u * x->K, x->K);
        if (x->a[u] > max) max = x->a[u];
    }
    for (int64_t u = 0; u < x->T; u++) sum += x->a[u] = exp(x->a[u] - max);
    for (int64_t u = 0; u < x->T; u++) x->a[u] /= sum;
}

/* k^_u = T a_u k~_u: 1/T sum_u rot(k^_u) v_u^T = sum_u a_u rot(k~_u) v_u^T, and mean_u k^_u = sum_u a_u k~_u. */
static void forward(mhla_ref_head *x) {
    mhla_ref_mean(x->qbar, x->q, x->T, x->K);
    weights(x);
    mhla_ref_summary(x->S, x->a, x->kr, x->v, x->T, x->K, x->V);
    memset(x->kbar, 0, (size_t)x->K * sizeof(double));
    for (int64_t u = 0; u < x->T; u++) mhla_ref_add(x->kbar, x->a[u], x->k + u * x->K, x->K);
    for (int64_t t = 0; t < x->T; t++) { /* o_t = rot(q~_t)^T S / (q~_t . kbar + eps) */
        const double den = mhla_ref_dot(x->q + t * x->K, x->kbar, x->K) + x->eps;
        memset(x->o + t * x->V, 0, (size_t)x->V * sizeof(double));
        for (int64_t i = 0; i < x->K; i++)
            mhla_ref_add(x->o + t * x->V, x->qr[t * x->K + i] / den, x->S + i * x->V, x->V);
    }
}

static void backward(mhla_ref_head *x) {
    for (int64_t t = 0; t < x->T; t++) { /* o_t = rot(q~_t)^T S / (q~_t . kbar + eps) */
        const double *q = x->q + t * x->K, *qr = x->qr + t * x->K, *dO = x->dO + t * x->V;
        const double den = mhla_ref_dot(q, x->kbar, x->K) + x->eps;
        double dden = 0.0;
        for (int64_t i = 0; i < x->K; i++) {
            const double h = mhla_ref_dot(x->S + i * x->V, dO, x->V) / den;
            dden -= qr[i] * h / den;
            x->dqr[t * x->K + i] += h;
            mhla_ref_add(x->dS + i * x->V, qr[i] / den, dO, x->V);
        }
        mhla_ref_add(x->dq + t * x->K, dden, x->kbar, x->K);
        mhla_ref_add(x->dkbar, dden, q, x->K);
    }
    mhla_ref_summary_backward(x->dkr, x->dv, x->da, x->dS, x->a, x->kr, x->v, x->T, x->K, x->V);
    double sum = 0.0;
    for (int64_t u = 0; u < x->T; u++) { /* kbar = sum_u a_u k~_u */
        x->da[u] += mhla_ref_dot(x->dkbar, x->k + u * x->K, x->K);
        mhla_ref_add(x->dk + u * x->K, x->a[u], x->dkbar, x->K);
        sum += x->a[u] * x->da[u];
    }
    for (int64_t u = 0; u < x->T; u++) { /* a_u = softmax_u(s qbar . k~_u) */
        const double dscore = x->scale * x->a[u] * (x->da[u] - sum);
        mhla_ref_add(x->dk + u * x->K, dscore, x->qbar, x->K);
        mhla_ref_add(x->dqbar, dscore, x->k + u * x->K, x->K);
    }
    mhla_ref_mean_backward(x->dq, x->dqbar, x->T, x->K);
}

static const mhla_ref_op reference = {forward, backward, NULL, NULL};
mhla_status mhla_rala_forward_reference(const mhla_run *run) { return mhla_reference_forward(run, &reference); }
mhla_status mhla_rala_backward_reference(const mhla_run *run) { return mhla_reference_backward(run, &reference); }
