/* Simple GLA: a decay for each head and token; RetNet and Mamba2 are it. The engine is ../gated. */
#include "ops/simple_gla/simple_gla.h"

const mhla_op mhla_op_simple_gla = {
    .name = "simple GLA",
    .check_plan = mhla_gated_check_plan,
    .check_call = mhla_gated_check_call,
    .workspace = mhla_gated_workspace,
    .forward = mhla_gated_forward,
    .backward = mhla_gated_backward,
    .forward_reference = mhla_simple_gla_forward_reference,
    .backward_reference = mhla_simple_gla_backward_reference,
};
