/* The engine of Focused LA, InLine, MALA and RALA: see README.md. An operator says what kind of features, weights and
 * coefficients it has; the engine does the rest. */
#ifndef MHLA_OPS_LOWRANK_H
#define MHLA_OPS_LOWRANK_H

#include "ops/op.h"

/* o_t = alpha_t (q^_t^T S + ratio_t sum_u v_u), alpha and ratio being functions of x_t = q~_t . sum_u k~_u, for n tokens. */
typedef struct mhla_coefficients {
    int n;
    float T, scale, eps;
    const float *x;
    float *alpha, *ratio; /* [n] */
    /* backward: alpha_t times the gradients of alpha_t and of alpha_t ratio_t come in, that of x_t goes out */
    const float *dalpha, *dbeta;
    float *dx;
} mhla_coefficients;

/* What an operator asks of the engine. */
typedef struct mhla_lowrank {
    int focused;  /* features by the focusing map over all heads of a token */
    int weighted; /* S and sum_u k~_u weigh the tokens by softmax_u(scale mean_t q~_t . k~_u) */
    int shifted;  /* ratio is not 0 */
    void (*coefficients)(const mhla_coefficients *c);
    void (*slopes)(const mhla_coefficients *c);
} mhla_lowrank;

size_t mhla_lowrank_workspace(const mhla_run *run, const mhla_lowrank *op, int backward);
mhla_status mhla_lowrank_forward(const mhla_run *run, const mhla_lowrank *op);
mhla_status mhla_lowrank_backward(const mhla_run *run, const mhla_lowrank *op);

/* What is alike in the plans and calls of the four. `own` is the feature map that the operator has. */
mhla_status mhla_lowrank_check_plan(mhla_plan *plan, mhla_feature own);
mhla_status mhla_lowrank_check_call(const mhla_run *run);

#endif
