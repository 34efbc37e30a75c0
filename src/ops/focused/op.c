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

static size_t workspace(const mhla_run *run, int backward) {
    (void)run;
    (void)backward;
    return 64;
}

const mhla_op mhla_op_focused = {
    .name = "focused",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = mhla_focused_forward_reference,
    .backward = mhla_focused_backward_reference,
    .forward_reference = mhla_focused_forward_reference,
    .backward_reference = mhla_focused_backward_reference,
};
