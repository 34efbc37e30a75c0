/* How the tokens of a bidirectional plan fall into blocks: from a grid, or as the caller lists them. Also the
 * operator's registry row. */
#include "ops/bidirectional/bidirectional.h"

static mhla_status allocate(mhla_plan *p, int permuted) {
    p->offsets = mhla_alloc((size_t)(p->M + 1) * sizeof *p->offsets);
    if (permuted) p->perm = mhla_alloc((size_t)p->T * sizeof *p->perm);
    if (p->offsets == NULL || (permuted && p->perm == NULL))
        return mhla_fail(MHLA_ENOMEM, "no memory for the layout of %lld tokens", (long long)p->T);
    return MHLA_OK;
}

/* Axis a is cut at floor(i * g / m). */
static int64_t cut(int64_t i, int64_t g, int64_t m) { return i * g / m; }

static mhla_status from_grid(mhla_plan *p) {
    const mhla_plan_desc *d = &p->d;
    int64_t g[3] = {1, 1, 1}, m[3] = {1, 1, 1}; /* missing axes come first, with one block of one token */
    p->T = p->M = 1;
    for (int a = 0; a < d->axes; a++) {
        const int64_t ga = d->grid[a], ma = d->blocks[a];
        if (ga < 1) return mhla_fail(MHLA_EINVAL, "grid[%d] is %lld: expected 1 or more", a, (long long)ga);
        if (ma < 1 || ma > ga)
            return mhla_fail(MHLA_EINVAL, "blocks[%d] is %lld: expected 1 to grid[%d] = %lld", a, (long long)ma, a,
                             (long long)ga);
        g[3 - d->axes + a] = ga;
        m[3 - d->axes + a] = ma;
        p->T *= ga;
        p->M *= ma;
        if (p->T > INT32_MAX) return mhla_fail(MHLA_EINVAL, "the grid has more than %d tokens", INT32_MAX);
    }
    MHLA_TRY(allocate(p, d->order == MHLA_ORDER_RASTER && p->M > 1));
    int64_t at = 0, block = 0;
    for (int64_t i = 0; i < m[0]; i++)
        for (int64_t j = 0; j < m[1]; j++)
            for (int64_t k = 0; k < m[2]; k++) {
                p->offsets[block++] = at;
                for (int64_t x = cut(i, g[0], m[0]); x < cut(i + 1, g[0], m[0]); x++)
                    for (int64_t y = cut(j, g[1], m[1]); y < cut(j + 1, g[1], m[1]); y++)
                        for (int64_t z = cut(k, g[2], m[2]); z < cut(k + 1, g[2], m[2]); z++, at++)
                            if (p->perm) p->perm[at] = (int32_t)((x * g[1] + y) * g[2] + z);
            }
    p->offsets[block] = at;
    return MHLA_OK;
}

static mhla_status from_list(mhla_plan *p) {
    const mhla_plan_desc *d = &p->d;
    if (d->n_tokens < 1 || d->n_tokens > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "n_tokens is %lld: expected 1 to %d (or set axes and grid)",
                         (long long)d->n_tokens, INT32_MAX);
    if (d->n_blocks < 1 || d->n_blocks > d->n_tokens)
        return mhla_fail(MHLA_EINVAL, "n_blocks is %lld: expected 1 to n_tokens = %lld", (long long)d->n_blocks,
                         (long long)d->n_tokens);
    if (d->block_offsets == NULL) return mhla_fail(MHLA_EINVAL, "block_offsets is NULL and axes is 0");
    p->T = d->n_tokens;
    p->M = d->n_blocks;
    if (d->block_offsets[0] != 0 || d->block_offsets[p->M] != p->T)
        return mhla_fail(MHLA_EINVAL, "block_offsets run from %lld to %lld: expected 0 to n_tokens = %lld",
                         (long long)d->block_offsets[0], (long long)d->block_offsets[p->M], (long long)p->T);
    for (int64_t b = 0; b < p->M; b++)
        if (d->block_offsets[b + 1] <= d->block_offsets[b] || d->block_offsets[b + 1] > p->T)
            return mhla_fail(MHLA_EINVAL, "block_offsets[%lld] is %lld after %lld: blocks may not be empty",
                             (long long)b + 1, (long long)d->block_offsets[b + 1], (long long)d->block_offsets[b]);
    MHLA_TRY(allocate(p, d->permutation != NULL));
    memcpy(p->offsets, d->block_offsets, (size_t)(p->M + 1) * sizeof *p->offsets);
    if (d->permutation == NULL) return MHLA_OK;
    unsigned char *seen = mhla_alloc_zero((size_t)p->T);
    if (seen == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to check a permutation of %lld", (long long)p->T);
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < p->T && status == MHLA_OK; i++) {
        const int32_t t = d->permutation[i];
        if (t < 0 || t >= p->T || seen[t])
            status = mhla_fail(MHLA_EINVAL, "permutation[%lld] is %d: %s", (long long)i, (int)t,
                               t < 0 || t >= p->T ? "no such token" : "this token came before");
        else
            seen[t] = 1;
        p->perm[i] = t;
    }
    mhla_free(seen);
    return status;
}

static mhla_status check_plan(mhla_plan *p) {
    mhla_plan_desc *d = &p->d;
    if (d->kv_heads != d->heads)
        return mhla_fail(MHLA_EINVAL, "kv_heads is %d: bidirectional operators need heads, %d", d->kv_heads, d->heads);
    if (d->chunk || d->chunks || d->max_tokens || d->causal || d->window || d->beyond)
        return mhla_fail(MHLA_EINVAL,
                         "chunk, chunks, beyond, max_tokens, causal or window is set: not for this operator");
    if (d->scale == 0.0f) d->scale = 1.0f;
    if (d->kind == MHLA_KIND_LINEAR) {
        if (d->axes || d->n_blocks || d->n_tokens || d->block_offsets || d->permutation || d->mix_per_head)
            return mhla_fail(MHLA_EINVAL, "blocks or mix_per_head are set: linear attention has no blocks");
        return MHLA_OK;
    }
    if (d->axes < 0 || d->axes > 3)
        return mhla_fail(MHLA_EINVAL, "axes is %d: expected 1, 2, 3, or 0 with block_offsets", d->axes);
    if (d->axes > 0 && (d->n_blocks || d->n_tokens || d->block_offsets || d->permutation))
        return mhla_fail(MHLA_EINVAL,
                         "axes is %d and block_offsets, permutation, n_blocks or n_tokens is set: choose one", d->axes);
    if (d->axes > 0)
        MHLA_TRY(from_grid(p));
    else
        MHLA_TRY(from_list(p));
    if (p->M > 65536) return mhla_fail(MHLA_EINVAL, "%lld blocks: expected 65536 at most", (long long)p->M);
    p->equal_blocks = 1;
    for (int64_t b = 0; b < p->M; b++) {
        const int64_t n = p->offsets[b + 1] - p->offsets[b];
        if (n > p->max_block) p->max_block = n;
        if (n != p->offsets[1]) p->equal_blocks = 0;
    }
    if (d->denominator == MHLA_DEN_RELEASED && !p->equal_blocks)
        return mhla_fail(MHLA_EINVAL,
                         "denominator is MHLA_DEN_RELEASED: it needs equal blocks, these have up to %lld tokens "
                         "and the first has %lld",
                         (long long)p->max_block, (long long)p->offsets[1]);
    return MHLA_OK;
}

const mhla_op mhla_op_bidirectional = {
    .name = "bidirectional",
    .check_plan = check_plan,
    .workspace = mhla_bidirectional_workspace,
    .forward = mhla_bidirectional_forward,
    .backward = mhla_bidirectional_backward,
    .forward_reference = mhla_bidirectional_forward_reference,
    .backward_reference = mhla_bidirectional_backward_reference,
};
