/* The reference of GLA. */
#ifndef MHLA_OPS_GLA_H
#define MHLA_OPS_GLA_H

#include "ops/gated/gated.h"

mhla_status mhla_gla_forward_reference(const mhla_run *run);
mhla_status mhla_gla_backward_reference(const mhla_run *run);

#endif
