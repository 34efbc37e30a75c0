/* Inside of the bidirectional operator (MHLA over a grid, and linear attention): see README.md. */
#ifndef MHLA_OPS_BIDIRECTIONAL_H
#define MHLA_OPS_BIDIRECTIONAL_H

#include "ops/op.h"

mhla_status mhla_bidirectional_forward(const mhla_run *run);
mhla_status mhla_bidirectional_backward(const mhla_run *run);
size_t mhla_bidirectional_workspace(const mhla_run *run, int backward);
mhla_status mhla_bidirectional_forward_reference(const mhla_run *run);
mhla_status mhla_bidirectional_backward_reference(const mhla_run *run);

#endif
