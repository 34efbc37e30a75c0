/* Inside of RALA: see README.md. */
#ifndef MHLA_OPS_RALA_H
#define MHLA_OPS_RALA_H

#include "ops/op.h"

mhla_status mhla_rala_forward_reference(const mhla_run *run);
mhla_status mhla_rala_backward_reference(const mhla_run *run);

#endif
