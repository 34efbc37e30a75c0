/* GLA, gated linear attention: a decay for each key channel. The definition is the recurrence of
 * ../gated/reference.c, with K decays for each head and token. */
#include "ops/gla/gla.h"

mhla_status mhla_gla_forward_reference(const mhla_run *run) { return mhla_gated_reference(run, 0); }
mhla_status mhla_gla_backward_reference(const mhla_run *run) { return mhla_gated_reference(run, 1); }
