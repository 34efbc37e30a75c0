/* InLine attention: what it asks of the engine that src/ops/lowrank has, and the registry row. */
#include "ops/inline/inline.h"
#include "ops/lowrank/lowrank.h"

static mhla_status check_plan(mhla_plan *plan) {
    mhla_plan_desc *d = &plan->d;
    if (d->rope != MHLA_ROPE_NONE) return mhla_fail(MHLA_EINVAL, "rope is %d: InLine has none", (int)d->rope);
    return mhla_lowrank_check_plan(plan, MHLA_FEATURE_IDENTITY);
}

static size_t workspace(const mhla_run *run, int backward) {
    (void)run;
    (void)backward;
    return 64;
}

const mhla_op mhla_op_inline = {
    .name = "inline",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = mhla_inline_forward_reference,
    .backward = mhla_inline_backward_reference,
    .forward_reference = mhla_inline_forward_reference,
    .backward_reference = mhla_inline_backward_reference,
};
