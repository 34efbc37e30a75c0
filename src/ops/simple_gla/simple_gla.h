/* The reference of simple GLA. */
#ifndef MHLA_OPS_SIMPLE_GLA_H
#define MHLA_OPS_SIMPLE_GLA_H

#include "ops/gated/gated.h"

mhla_status mhla_simple_gla_forward_reference(const mhla_run *run);
mhla_status mhla_simple_gla_backward_reference(const mhla_run *run);

#endif
