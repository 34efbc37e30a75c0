/* RALA: what it asks of the engine that src/ops/lowrank has, and the registry row. */
#include "ops/lowrank/lowrank.h"
#include "ops/rala/rala.h"

static mhla_status check_plan(mhla_plan *plan) { return mhla_lowrank_check_plan(plan, MHLA_FEATURE_ELU); }

/* alpha = 1 / (x + eps) */
static void coefficients(const mhla_coefficients *c) {
    for (int i = 0; i < c->n; i++) c->alpha[i] = 1.0f / (c->x[i] + c->eps);
}

static void slopes(const mhla_coefficients *c) {
    for (int i = 0; i < c->n; i++) c->dx[i] = -c->alpha[i] * c->dalpha[i];
}

static const mhla_lowrank engine = {.weighted = 1, .coefficients = coefficients, .slopes = slopes};

static size_t workspace(const mhla_run *run, int backward) { return mhla_lowrank_workspace(run, &engine, backward); }
static mhla_status forward(const mhla_run *run) { return mhla_lowrank_forward(run, &engine); }
static mhla_status backward(const mhla_run *run) { return mhla_lowrank_backward(run, &engine); }

const mhla_op mhla_op_rala = {
    .name = "rala",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .forward_reference = mhla_rala_forward_reference,
    .backward_reference = mhla_rala_backward_reference,
};
