/* Inside of Focused LA: see README.md. */
#ifndef MHLA_OPS_FOCUSED_H
#define MHLA_OPS_FOCUSED_H

#include "ops/op.h"

mhla_status mhla_focused_forward_reference(const mhla_run *run);
mhla_status mhla_focused_backward_reference(const mhla_run *run);

#endif
