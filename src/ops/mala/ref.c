/* MALA by definition (README.md), in double. */
#include "ops/lowrank/reference.h"
#include "ops/mala/mala.h"

static void forward(mhla_ref_head *x) {
    const double s = x->scale, T = (double)x->T;
    mhla_ref_mean(x->kbar, x->k, x->T, x->K);
    mhla_ref_mean(x->vbar, x->v, x->T, x->V);
    mhla_ref_summary(x->S, NULL, x->kr, x->v, x->T, x->K, x->V);
    for (int64_t t = 0; t < x->T; t++) { /* o_t = (1 + 1/(z_t + eps)) n_t - z_t vbar, n_t = (s/T) rot(q~_t)^T S */
        const double z = s * mhla_ref_dot(x->q + t * x->K, x->kbar, x->K), factor = 1.0 + 1.0 / (z + x->eps);
        for (int64_t j = 0; j < x->V; j++) x->o[t * x->V + j] = -z * x->vbar[j];
        for (int64_t i = 0; i < x->K; i++)
            mhla_ref_add(x->o + t * x->V, factor * s / T * x->qr[t * x->K + i], x->S + i * x->V, x->V);
    }
}

static void backward(mhla_ref_head *x) {
    const double s = x->scale, T = (double)x->T;
    for (int64_t t = 0; t < x->T; t++) { /* o_t = (1 + 1/(z_t + eps)) n_t - z_t vbar, n_t = (s/T) rot(q~_t)^T S */
        const double *q = x->q + t * x->K, *qr = x->qr + t * x->K, *dO = x->dO + t * x->V;
        const double z = s * mhla_ref_dot(q, x->kbar, x->K), factor = 1.0 + 1.0 / (z + x->eps);
        double dfactor = 0.0;
        for (int64_t i = 0; i < x->K; i++) {
            const double h = s / T * mhla_ref_dot(x->S + i * x->V, dO, x->V);
            dfactor += qr[i] * h;
            x->dqr[t * x->K + i] += factor * h;
            mhla_ref_add(x->dS + i * x->V, factor * s / T * qr[i], dO, x->V);
        }
        const double dz = -dfactor / ((z + x->eps) * (z + x->eps)) - mhla_ref_dot(dO, x->vbar, x->V);
        mhla_ref_add(x->dvbar, -z, dO, x->V);
        mhla_ref_add(x->dq + t * x->K, s * dz, x->kbar, x->K); /* z_t = s q~_t . kbar */
        mhla_ref_add(x->dkbar, s * dz, q, x->K);
    }
    mhla_ref_summary_backward(x->dkr, x->dv, NULL, x->dS, NULL, x->kr, x->v, x->T, x->K, x->V);
    mhla_ref_mean_backward(x->dk, x->dkbar, x->T, x->K);
    mhla_ref_mean_backward(x->dv, x->dvbar, x->T, x->V);
}

static const mhla_ref_op reference = {forward, backward, NULL, NULL};
mhla_status mhla_mala_forward_reference(const mhla_run *run) { return mhla_reference_forward(run, &reference); }
mhla_status mhla_mala_backward_reference(const mhla_run *run) { return mhla_reference_backward(run, &reference); }
