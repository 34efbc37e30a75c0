/* Simple GLA: a decay for each head and token; RetNet and Mamba2 are it. The definition is the recurrence of
 * ../gated/reference.c, with one decay for each head and token. */
#include "ops/simple_gla/simple_gla.h"

mhla_status mhla_simple_gla_forward_reference(const mhla_run *run) { return mhla_gated_reference(run, 0); }
mhla_status mhla_simple_gla_backward_reference(const mhla_run *run) { return mhla_gated_reference(run, 1); }
