/* MALA: what it asks of the engine that src/ops/lowrank has, and the registry row. */
#include "ops/lowrank/lowrank.h"
#include "ops/mala/mala.h"

static mhla_status check_plan(mhla_plan *plan) { return mhla_lowrank_check_plan(plan, MHLA_FEATURE_ELU); }

/* z = x s/T, alpha = (1 + 1/(z + eps)) s/T, beta = alpha ratio = -z/T */
static void coefficients(const mhla_coefficients *c) {
    const float s = c->scale / c->T;
    for (int i = 0; i < c->n; i++) {
        const float z = s * c->x[i];
        c->alpha[i] = s + s / (z + c->eps);
        c->ratio[i] = -z / (c->T * c->alpha[i]);
    }
}

static void slopes(const mhla_coefficients *c) {
    const float s = c->scale / c->T;
    for (int i = 0; i < c->n; i++) {
        const float z = s * c->x[i] + c->eps;
        c->dx[i] = -s / c->alpha[i] * (s / (z * z) * c->dalpha[i] + c->dbeta[i] / c->T);
    }
}

static const mhla_lowrank engine = {.shifted = 1, .coefficients = coefficients, .slopes = slopes};

static size_t workspace(const mhla_run *run, int backward) { return mhla_lowrank_workspace(run, &engine, backward); }
static mhla_status forward(const mhla_run *run) { return mhla_lowrank_forward(run, &engine); }
static mhla_status backward(const mhla_run *run) { return mhla_lowrank_backward(run, &engine); }

const mhla_op mhla_op_mala = {
    .name = "mala",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .forward_reference = mhla_mala_forward_reference,
    .backward_reference = mhla_mala_backward_reference,
};
