/* Inside of InLine attention: see README.md. */
#ifndef MHLA_OPS_INLINE_H
#define MHLA_OPS_INLINE_H

#include "ops/op.h"

mhla_status mhla_inline_forward_reference(const mhla_run *run);
mhla_status mhla_inline_backward_reference(const mhla_run *run);

#endif
