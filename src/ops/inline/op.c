/* InLine attention: what it asks of the engine that src/ops/lowrank has, and the registry row. */
#include "ops/inline/inline.h"
#include "ops/lowrank/lowrank.h"

static mhla_status check_plan(mhla_plan *plan) {
    mhla_plan_desc *d = &plan->d;
    if (d->rope != MHLA_ROPE_NONE) return mhla_fail(MHLA_EINVAL, "rope is %d: InLine has none", (int)d->rope);
    return mhla_lowrank_check_plan(plan, MHLA_FEATURE_IDENTITY);
}

/* alpha = s/T, beta = alpha ratio = (1 - alpha x) / T */
static void coefficients(const mhla_coefficients *c) {
    const float alpha = c->scale / c->T;
    for (int i = 0; i < c->n; i++) {
        c->alpha[i] = alpha;
        c->ratio[i] = (1.0f / alpha - c->x[i]) / c->T;
    }
}

static void slopes(const mhla_coefficients *c) {
    for (int i = 0; i < c->n; i++) c->dx[i] = -c->dbeta[i] / c->T;
}

static const mhla_lowrank engine = {.shifted = 1, .coefficients = coefficients, .slopes = slopes};

static size_t workspace(const mhla_run *run, int backward) { return mhla_lowrank_workspace(run, &engine, backward); }
static mhla_status forward(const mhla_run *run) { return mhla_lowrank_forward(run, &engine); }
static mhla_status backward(const mhla_run *run) { return mhla_lowrank_backward(run, &engine); }

const mhla_op mhla_op_inline = {
    .name = "inline",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .forward_reference = mhla_inline_forward_reference,
    .backward_reference = mhla_inline_backward_reference,
};
