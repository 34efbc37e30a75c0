/* Focused LA: what it asks of the engine that src/ops/lowrank has, and the registry row. */
#include "ops/focused/focused.h"
#include "ops/lowrank/lowrank.h"

static mhla_status check_plan(mhla_plan *plan) {
    mhla_plan_desc *d = &plan->d;
    if (d->rope != MHLA_ROPE_NONE) return mhla_fail(MHLA_EINVAL, "rope is %d: Focused LA has none", (int)d->rope);
    if (d->scale != 0.0f) return mhla_fail(MHLA_EINVAL, "scale is %g: Focused LA has none", (double)d->scale);
    if (d->focus_power == 0) d->focus_power = 3;
    if (d->focus_power < 1 || d->focus_power > 16)
        return mhla_fail(MHLA_EINVAL, "focus_power is %d: expected 1 to 16, or 0 for 3", d->focus_power);
    if (d->feature_eps == 0.0f) d->feature_eps = 1e-6f;
    if (d->feature_eps < 0.0f) return mhla_fail(MHLA_EINVAL, "feature_eps is %g: negative", (double)d->feature_eps);
    d->scale = 1.0f;
    return mhla_lowrank_check_plan(plan, MHLA_FEATURE_RELU);
}

/* alpha = 1 / (x + T eps): (q~^T S/T) / (x/T + eps) */
static void coefficients(const mhla_coefficients *c) {
    for (int i = 0; i < c->n; i++) c->alpha[i] = 1.0f / (c->x[i] + c->T * c->eps);
}

static void slopes(const mhla_coefficients *c) {
    for (int i = 0; i < c->n; i++) c->dx[i] = -c->alpha[i] * c->dalpha[i];
}

static const mhla_lowrank engine = {.focused = 1, .coefficients = coefficients, .slopes = slopes};

static size_t workspace(const mhla_run *run, int backward) { return mhla_lowrank_workspace(run, &engine, backward); }
static mhla_status forward(const mhla_run *run) { return mhla_lowrank_forward(run, &engine); }
static mhla_status backward(const mhla_run *run) { return mhla_lowrank_backward(run, &engine); }

const mhla_op mhla_op_focused = {
    .name = "focused",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .forward_reference = mhla_focused_forward_reference,
    .backward_reference = mhla_focused_backward_reference,
};
