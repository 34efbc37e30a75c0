/* MALA: what it asks of the engine that src/ops/lowrank has, and the registry row. */
#include "ops/lowrank/lowrank.h"
#include "ops/mala/mala.h"

static mhla_status check_plan(mhla_plan *plan) { return mhla_lowrank_check_plan(plan, MHLA_FEATURE_ELU); }

static size_t workspace(const mhla_run *run, int backward) {
    (void)run;
    (void)backward;
    return 64;
}

const mhla_op mhla_op_mala = {
    .name = "mala",
    .check_plan = check_plan,
    .check_call = mhla_lowrank_check_call,
    .workspace = workspace,
    .forward = mhla_mala_forward_reference,
    .backward = mhla_mala_backward_reference,
    .forward_reference = mhla_mala_forward_reference,
    .backward_reference = mhla_mala_backward_reference,
};
