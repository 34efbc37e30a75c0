/* GLA, gated linear attention: a decay for each key channel. The engine is ../gated. */
#include "ops/gla/gla.h"

const mhla_op mhla_op_gla = {
    .name = "GLA",
    .check_plan = mhla_gated_check_plan,
    .check_call = mhla_gated_check_call,
    .workspace = mhla_gated_workspace,
    .forward = mhla_gated_forward,
    .backward = mhla_gated_backward,
    .forward_reference = mhla_gla_forward_reference,
    .backward_reference = mhla_gla_backward_reference,
};
