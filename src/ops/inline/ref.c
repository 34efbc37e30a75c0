/* InLine attention by definition (README.md), in double. */
#include "ops/inline/inline.h"
#include "ops/lowrank/reference.h"

static void forward(mhla_ref_head *x) {
    const double s = x->scale, T = (double)x->T;
    mhla_ref_mean(x->kbar, x->k, x->T, x->K);
    mhla_ref_mean(x->vbar, x->v, x->T, x->V);
    mhla_ref_summary(x->S, NULL, x->k, x->v, x->T, x->K, x->V);
    for (int64_t t = 0; t < x->T; t++) { /* o_t = (s/T) q_t^T S + (1 - s q_t . kbar) vbar */
        const double *q = x->q + t * x->K;
        const double rest = 1.0 - s * mhla_ref_dot(q, x->kbar, x->K);
        for (int64_t j = 0; j < x->V; j++) x->o[t * x->V + j] = rest * x->vbar[j];
        for (int64_t i = 0; i < x->K; i++) mhla_ref_add(x->o + t * x->V, s / T * q[i], x->S + i * x->V, x->V);
    }
}

static void backward(mhla_ref_head *x) {
    const double s = x->scale, T = (double)x->T;
    for (int64_t t = 0; t < x->T; t++) { /* o_t = (s/T) q_t^T S + (1 - s q_t . kbar) vbar */
        const double *q = x->q + t * x->K, *dO = x->dO + t * x->V;
        const double drest = mhla_ref_dot(dO, x->vbar, x->V), rest = 1.0 - s * mhla_ref_dot(q, x->kbar, x->K);
        mhla_ref_add(x->dvbar, rest, dO, x->V);
        mhla_ref_add(x->dq + t * x->K, -s * drest, x->kbar, x->K);
        mhla_ref_add(x->dkbar, -s * drest, q, x->K);
        for (int64_t i = 0; i < x->K; i++) {
            x->dq[t * x->K + i] += s / T * mhla_ref_dot(x->S + i * x->V, dO, x->V);
            mhla_ref_add(x->dS + i * x->V, s / T * q[i], dO, x->V);
        }
    }
    mhla_ref_summary_backward(x->dk, x->dv, NULL, x->dS, NULL, x->k, x->v, x->T, x->K, x->V);
    mhla_ref_mean_backward(x->dk, x->dkbar, x->T, x->K);
    mhla_ref_mean_backward(x->dv, x->dvbar, x->T, x->V);
}

static const mhla_ref_op reference = {forward, backward, NULL, NULL};
mhla_status mhla_inline_forward_reference(const mhla_run *run) { return mhla_reference_forward(run, &reference); }
mhla_status mhla_inline_backward_reference(const mhla_run *run) { return mhla_reference_backward(run, &reference); }
