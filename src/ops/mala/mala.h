/* Inside of MALA: see README.md. */
#ifndef MHLA_OPS_MALA_H
#define MHLA_OPS_MALA_H

#include "ops/op.h"

mhla_status mhla_mala_forward_reference(const mhla_run *run);
mhla_status mhla_mala_backward_reference(const mhla_run *run);

#endif
