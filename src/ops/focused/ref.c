/* Focused LA by definition (README.md), in double. */
#include <math.h>

#include "ops/focused/focused.h"
#include "ops/lowrank/reference.h"

static double softplus(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* Where channel c of token t is in x [H,T,K]. */
static int64_t at(const mhla_ref_map *m, int64_t t, int64_t c) { return (c / m->K * m->T + t) * m->K + c % m->K; }

/* a = (max(x,0) + eps) / softplus(focus) of token t, into m->row [H*K], and its norms |a|, |a^p|. */
static void scale_row(double *norm, double *norm_p, const double *x, const mhla_ref_map *m, int64_t t) {
    const mhla_plan_desc *d = &m->run->plan->d;
    double sum = 0.0, sum_p = 0.0;
    for (int64_t c = 0; c < m->H * m->K; c++) {
        const double a = mhla_feature_value(MHLA_FEATURE_RELU, x[at(m, t, c)], (double)d->feature_eps);
        m->row[c] = a / softplus(m->focus[c]);
        sum += m->row[c] * m->row[c];
        sum_p += pow(m->row[c], 2.0 * d->focus_power);
    }
    *norm = sqrt(sum);
    *norm_p = sqrt(sum_p);
}

/* f(a) = a^p |a| / |a^p| */
static void map(double *f, const double *x, const mhla_ref_map *m) {
    for (int64_t t = 0; t < m->T; t++) {
        double norm, norm_p;
        scale_row(&norm, &norm_p, x, m, t);
        for (int64_t c = 0; c < m->H * m->K; c++)
            f[at(m, t, c)] = pow(m->row[c], m->run->plan->d.focus_power) * norm / norm_p;
    }
}

static void map_backward(double *dx, const double *df, const double *x, const mhla_ref_map *m) {
    const int p = m->run->plan->d.focus_power;
    for (int64_t t = 0; t < m->T; t++) { /* f = a^p |a| / |a^p| */
        double norm, norm_p, sum = 0.0;  /* sum = sum_c df_c a_c^p */
        scale_row(&norm, &norm_p, x, m, t);
        for (int64_t c = 0; c < m->H * m->K; c++) sum += df[at(m, t, c)] * pow(m->row[c], p);
        for (int64_t c = 0; c < m->H * m->K; c++) {
            const double a = m->row[c], scale = softplus(m->focus[c]), v = x[at(m, t, c)];
            const double da = df[at(m, t, c)] * p * pow(a, p - 1) * norm / norm_p        /* a^p */
                              + sum / norm_p * a / norm                                  /* |a| */
                              - sum * norm / pow(norm_p, 3) * p * pow(a, 2.0 * p - 1.0); /* 1 / |a^p| */
            dx[at(m, t, c)] = da / scale * mhla_feature_slope(MHLA_FEATURE_RELU, v); /* a = (max(x,0) + eps) / scale */
            m->dfocus[c] -= da * a / scale / (1.0 + exp(-m->focus[c]));              /* scale = softplus(focus) */
        }
    }
}

static void forward(mhla_ref_head *x) {
    mhla_ref_mean(x->kbar, x->k, x->T, x->K);
    mhla_ref_summary(x->S, NULL, x->k, x->v, x->T, x->K, x->V);
    for (int64_t t = 0; t < x->T; t++) { /* o_t = q~_t^T (S/T) / (q~_t . kbar + eps) */
        const double den = mhla_ref_dot(x->q + t * x->K, x->kbar, x->K) + x->eps;
        memset(x->o + t * x->V, 0, (size_t)x->V * sizeof(double));
        for (int64_t i = 0; i < x->K; i++)
            mhla_ref_add(x->o + t * x->V, x->q[t * x->K + i] / ((double)x->T * den), x->S + i * x->V, x->V);
    }
}

static void backward(mhla_ref_head *x) {
    const double T = (double)x->T;
    for (int64_t t = 0; t < x->T; t++) { /* o_t = q~_t^T (S/T) / (q~_t . kbar + eps) */
        const double *q = x->q + t * x->K, *dO = x->dO + t * x->V;
        const double den = mhla_ref_dot(q, x->kbar, x->K) + x->eps;
        double dden = 0.0;
        for (int64_t i = 0; i < x->K; i++) {
            const double h = mhla_ref_dot(x->S + i * x->V, dO, x->V) / (T * den);
            dden -= q[i] * h / den;
            x->dq[t * x->K + i] += h;
            mhla_ref_add(x->dS + i * x->V, q[i] / (T * den), dO, x->V);
        }
        mhla_ref_add(x->dq + t * x->K, dden, x->kbar, x->K);
        mhla_ref_add(x->dkbar, dden, q, x->K);
    }
    mhla_ref_summary_backward(x->dk, x->dv, NULL, x->dS, NULL, x->k, x->v, x->T, x->K, x->V);
    mhla_ref_mean_backward(x->dk, x->dkbar, x->T, x->K);
}

static const mhla_ref_op reference = {forward, backward, map, map_backward};
mhla_status mhla_focused_forward_reference(const mhla_run *run) { return mhla_reference_forward(run, &reference); }
mhla_status mhla_focused_backward_reference(const mhla_run *run) { return mhla_reference_backward(run, &reference); }
