/* The engine of Focused LA, InLine, MALA and RALA: see README.md. */
#ifndef MHLA_OPS_LOWRANK_H
#define MHLA_OPS_LOWRANK_H

#include "ops/op.h"

/* What is alike in the plans and calls of the four. `own` is the feature map that the operator has. */
mhla_status mhla_lowrank_check_plan(mhla_plan *plan, mhla_feature own);
mhla_status mhla_lowrank_check_call(const mhla_run *run);

#endif
