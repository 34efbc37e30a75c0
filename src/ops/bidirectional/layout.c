/* How the tokens of a bidirectional plan, queries and keys, fall into blocks: from a grid, or as the caller lists them. Also
 * the operator's registry row. */
#include "ops/bidirectional/bidirectional.h"

/* The part of a description that cuts the tokens of one side; key is "" or "key_", for messages. */
typedef struct division {
    const char *key;
    mhla_order order;
    int axes;
    const int *grid, *blocks;
    int64_t n_blocks, n_tokens;
    const int64_t *block_offsets;
    const int32_t *permutation;
} division;

static mhla_status allocate(mhla_layout *l, int permuted) {
    l->offsets = mhla_alloc((size_t)(l->M + 1) * sizeof *l->offsets);
    if (permuted) l->perm = mhla_alloc((size_t)l->T * sizeof *l->perm);
    if (l->offsets == NULL || (permuted && l->perm == NULL))
        return mhla_fail(MHLA_ENOMEM, "no memory for the layout of %lld tokens", (long long)l->T);
    return MHLA_OK;
}

/* Axis a is cut at floor(i * g / m). */
static int64_t cut(int64_t i, int64_t g, int64_t m) { return i * g / m; }

static mhla_status from_grid(mhla_layout *l, const division *d) {
    int64_t g[3] = {1, 1, 1}, m[3] = {1, 1, 1}; /* missing axes come first, with one block of one token */
    l->T = l->M = 1;
    for (int a = 0; a < d->axes; a++) {
        const int64_t ga = d->grid[a], ma = d->blocks[a];
        if (ga < 1) return mhla_fail(MHLA_EINVAL, "%sgrid[%d] is %lld: expected 1 or more", d->key, a, (long long)ga);
        if (ma < 1 || ma > ga)
            return mhla_fail(MHLA_EINVAL, "%sblocks[%d] is %lld: expected 1 to %sgrid[%d] = %lld", d->key, a,
                             (long long)ma, d->key, a, (long long)ga);
        g[3 - d->axes + a] = ga;
        m[3 - d->axes + a] = ma;
        l->T *= ga;
        l->M *= ma;
        if (l->T > INT32_MAX) return mhla_fail(MHLA_EINVAL, "the %sgrid has more than %d tokens", d->key, INT32_MAX);
    }
    MHLA_TRY(allocate(l, d->order == MHLA_ORDER_RASTER && l->M > 1));
    int64_t at = 0, block = 0;
    for (int64_t i = 0; i < m[0]; i++)
        for (int64_t j = 0; j < m[1]; j++)
            for (int64_t k = 0; k < m[2]; k++) {
                l->offsets[block++] = at;
                for (int64_t x = cut(i, g[0], m[0]); x < cut(i + 1, g[0], m[0]); x++)
                    for (int64_t y = cut(j, g[1], m[1]); y < cut(j + 1, g[1], m[1]); y++)
                        for (int64_t z = cut(k, g[2], m[2]); z < cut(k + 1, g[2], m[2]); z++, at++)
                            if (l->perm) l->perm[at] = (int32_t)((x * g[1] + y) * g[2] + z);
            }
    l->offsets[block] = at;
    return MHLA_OK;
}

static mhla_status from_list(mhla_layout *l, const division *d) {
    if (d->n_tokens < 1 || d->n_tokens > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "%sn_tokens is %lld: expected 1 to %d (or set %saxes and %sgrid)", d->key,
                         (long long)d->n_tokens, INT32_MAX, d->key, d->key);
    if (d->n_blocks < 1 || d->n_blocks > d->n_tokens)
        return mhla_fail(MHLA_EINVAL, "%sn_blocks is %lld: expected 1 to %sn_tokens = %lld", d->key,
                         (long long)d->n_blocks, d->key, (long long)d->n_tokens);
    if (d->block_offsets == NULL)
        return mhla_fail(MHLA_EINVAL, "%sblock_offsets is NULL and %saxes is 0", d->key, d->key);
    l->T = d->n_tokens;
    l->M = d->n_blocks;
    if (d->block_offsets[0] != 0 || d->block_offsets[l->M] != l->T)
        return mhla_fail(MHLA_EINVAL, "%sblock_offsets run from %lld to %lld: expected 0 to %sn_tokens = %lld", d->key,
                         (long long)d->block_offsets[0], (long long)d->block_offsets[l->M], d->key, (long long)l->T);
    for (int64_t b = 0; b < l->M; b++)
        if (d->block_offsets[b + 1] <= d->block_offsets[b] || d->block_offsets[b + 1] > l->T)
            return mhla_fail(MHLA_EINVAL, "%sblock_offsets[%lld] is %lld after %lld: blocks may not be empty", d->key,
                             (long long)b + 1, (long long)d->block_offsets[b + 1], (long long)d->block_offsets[b]);
    MHLA_TRY(allocate(l, d->permutation != NULL));
    memcpy(l->offsets, d->block_offsets, (size_t)(l->M + 1) * sizeof *l->offsets);
    if (d->permutation == NULL) return MHLA_OK;
    unsigned char *seen = mhla_alloc_zero((size_t)l->T);
    if (seen == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to check a permutation of %lld", (long long)l->T);
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < l->T && status == MHLA_OK; i++) {
        const int32_t t = d->permutation[i];
        if (t < 0 || t >= l->T || seen[t])
            status = mhla_fail(MHLA_EINVAL, "%spermutation[%lld] is %d: %s", d->key, (long long)i, (int)t,
                               t < 0 || t >= l->T ? "no such token" : "this token came before");
        else
            seen[t] = 1;
        l->perm[i] = t;
    }
    mhla_free(seen);
    return status;
}

static mhla_status make_layout(mhla_layout *l, const division *d) {
    if (d->axes < 0 || d->axes > 3)
        return mhla_fail(MHLA_EINVAL, "%saxes is %d: expected 1, 2, 3, or 0 with %sblock_offsets", d->key, d->axes,
                         d->key);
    if (d->axes > 0 && (d->n_blocks || d->n_tokens || d->block_offsets || d->permutation))
        return mhla_fail(MHLA_EINVAL,
                         "%saxes is %d and %sblock_offsets, %spermutation, %sn_blocks or %sn_tokens is set: choose one",
                         d->key, d->axes, d->key, d->key, d->key, d->key);
    MHLA_TRY(d->axes > 0 ? from_grid(l, d) : from_list(l, d));
    if (l->M > 65536) return mhla_fail(MHLA_EINVAL, "%lld %sblocks: expected 65536 at most", (long long)l->M, d->key);
    l->equal_blocks = 1;
    for (int64_t b = 0; b < l->M; b++) {
        const int64_t n = l->offsets[b + 1] - l->offsets[b];
        if (n > l->max_block) l->max_block = n;
        if (n != l->offsets[1]) l->equal_blocks = 0;
    }
    return MHLA_OK;
}

static int token_at(const mhla_layout *l, int64_t p) { return l->perm ? l->perm[p] : (int32_t)p; }

static int same_layout(const mhla_layout *a, const mhla_layout *b) {
    if (a->T != b->T || a->M != b->M) return 0;
    if (memcmp(a->offsets, b->offsets, (size_t)(a->M + 1) * sizeof *a->offsets) != 0) return 0;
    for (int64_t p = 0; p < a->T; p++)
        if (token_at(a, p) != token_at(b, p)) return 0;
    return 1;
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
    const division of_queries = {"",          d->order,    d->axes,          d->grid,       d->blocks,
                                 d->n_blocks, d->n_tokens, d->block_offsets, d->permutation};
    const division of_keys = {"key_",          d->order,        d->key_axes,          d->key_grid,       d->key_blocks,
                              d->key_n_blocks, d->key_n_tokens, d->key_block_offsets, d->key_permutation};
    mhla_layout *queries = &p->layouts[0], *keys = &p->layouts[1];
    MHLA_TRY(make_layout(queries, &of_queries));
    p->queries = p->keys = queries;
    if (mhla_has_key_layout(d)) {
        MHLA_TRY(make_layout(keys, &of_keys));
        if (!same_layout(queries, keys)) p->keys = keys;
    }
    p->T = queries->T;
    p->M = queries->M;
    p->Tk = p->keys->T;
    p->Mk = p->keys->M;
    if (d->denominator == MHLA_DEN_RELEASED && p->keys != queries)
        return mhla_fail(
            MHLA_EINVAL,
            "denominator is MHLA_DEN_RELEASED: it needs equal layouts of queries and keys, these have %lld "
            "tokens in %lld blocks and %lld in %lld",
            (long long)p->T, (long long)p->M, (long long)p->Tk, (long long)p->Mk);
    if (d->denominator == MHLA_DEN_RELEASED && !queries->equal_blocks)
        return mhla_fail(MHLA_EINVAL,
                         "denominator is MHLA_DEN_RELEASED: it needs equal blocks, these have up to %lld tokens "
                         "and the first has %lld",
                         (long long)queries->max_block, (long long)queries->offsets[1]);
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
