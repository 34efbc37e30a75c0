/* What is alike in the plans and calls of Focused LA, InLine, MALA and RALA. */
#include <math.h>

#include "ops/lowrank/lowrank.h"

mhla_status mhla_lowrank_check_plan(mhla_plan *plan, mhla_feature own) {
    mhla_plan_desc *d = &plan->d;
    const char *name = plan->op->name;
    if (d->kv_heads != d->heads)
        return mhla_fail(MHLA_EINVAL, "kv_heads is %d: %s attention needs heads, %d", d->kv_heads, name, d->heads);
    if (d->chunk || d->chunks || d->max_tokens || d->causal || d->window || d->beyond || d->axes || d->n_blocks ||
        d->n_tokens || d->block_offsets || d->permutation || d->mix_per_head)
        return mhla_fail(MHLA_EINVAL, "a field of blocks, chunks, mixing or softmax is set: %s attention has none",
                         name);
    if (d->feature != (mhla_feature)0 && d->feature != own)
        return mhla_fail(MHLA_EINVAL, "feature is %d: %s attention has its own, leave it 0", (int)d->feature, name);
    if (d->denominator != MHLA_DEN_EQ4)
        return mhla_fail(MHLA_EINVAL, "denominator is %d: %s attention has its own, leave it 0", (int)d->denominator,
                         name);
    d->feature = own;
    if (d->den_eps == 0.0f) d->den_eps = 1e-6f;
    if (d->scale == 0.0f) d->scale = (float)(1.0 / sqrt((double)d->key_dim));
    return MHLA_OK;
}

mhla_status mhla_lowrank_check_call(const mhla_run *run) {
    if (run->call.q2)
        return mhla_fail(MHLA_EINVAL, "q2 and k2 are given: %s attention has no second pair", run->plan->op->name);
    return MHLA_OK;
}
