/* The gated delta rule. The definition is the recurrence of ../gated/reference.c with its beta. */
#include "ops/gated_delta/gated_delta.h"

mhla_status mhla_delta_forward_reference(const mhla_run *run) { return mhla_gated_reference(run, 0); }
mhla_status mhla_delta_backward_reference(const mhla_run *run) { return mhla_gated_reference(run, 1); }
