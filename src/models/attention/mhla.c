/* MHLA over a grid, under the names of its release: the tokens are cut into blocks, and each block of queries reads its own
 * mixture of the blocks' summaries. */
#include "core/status.h"
#include "models/attention/grid.h"

/* The mixing matrix by distance between blocks. A class token is near to all of them: it takes from each alike, and a
 * block takes from it with the weight that it has for itself, its row summing up as before. */
static mhla_status fill_mix(mhla_param *p, const void *of) {
    const mhla_grid_settings *s = of;
    const int64_t M = mhla_grid_blocks(s), first = s->class_token;
    MHLA_TRY(mhla_mix_fill(p->data, (mhla_mix_init)s->mix, 2, s->blocks, 0.0));
    /* [M-1,M-1] grows to [M,M], from its end, because both are in the same place */
    for (int64_t i = M - 1; first && i > 0; i--) {
        const float *old = p->data + (i - 1) * (M - 1);
        float *row = p->data + i * M;
        double sum = 0.0;
        for (int64_t b = 0; b < M - 1; b++) sum += (double)old[b];
        const double own = (double)old[i - 1], scale = sum / (sum + own);
        for (int64_t b = M - 1; b > 0; b--) row[b] = (float)(scale * (double)old[b - 1]);
        row[0] = (float)(scale * own);
    }
    for (int64_t b = 0; first && b < M; b++) p->data[b] = (float)(1.0 / (double)M);
    return MHLA_OK;
}

void mhla_grid_declare_mix(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const int64_t M = mhla_grid_blocks(s);
    const mhla_initial initial = {.kind = MHLA_INITIAL_CALL, .fill = fill_mix, .of = s};
    a->mix = mhla_params_add(ps, mhla_grid_part(name, "piece_attn.conv.weight"), MHLA_SHAPE(M, M, 1, 1),
                             MHLA_PARAM_MIX | (s->mix_constant ? 0 : MHLA_PARAM_DECAY), initial);
    if (a->mix == NULL) return;
    a->mix->mix_low = (float)s->mix_low;
    a->mix->grid = (mhla_param_grid){s->class_token, {s->blocks[0], s->blocks[1]}, {0.0, 0.0}};
}

static void declare(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    mhla_grid_declare_inputs(a, ps, name, "to_qkv");
    mhla_grid_declare_lepe(a, ps, name);
    mhla_grid_declare_mix(a, ps, name);
    mhla_grid_declare_outputs(a, ps, name, "to_out.0");
}

static void plan(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    (void)T;
    desc->denominator = (mhla_denominator)s->denominator;
    desc->feature = s->elu ? MHLA_FEATURE_ELU : MHLA_FEATURE_RELU;
    desc->feature_eps = s->elu ? 0.0f : (float)s->feature_eps;
    desc->den_eps = (float)s->den_eps;
}

int64_t mhla_grid_mhla_cost(const mhla_grid_settings *s, int64_t T, int64_t keys, int64_t values) {
    const int64_t V = values / s->heads, M = mhla_grid_blocks(s);
    int64_t all = (2 * T + M * M) * keys * V;                         /* S = sum k v, S' = m S, q S' */
    if (s->denominator != MHLA_DEN_NONE) all += T * keys;             /* q z' */
    if (s->denominator == MHLA_DEN_EQ4) all += M * M * keys;          /* z' = m z */
    if (s->denominator == MHLA_DEN_RELEASED) all += M * T * s->heads; /* of the products */
    return all;
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : mhla_grid_mhla_cost(s, T, s->dim, s->dim);
}

const mhla_grid_kind mhla_grid_mhla = {MHLA_KIND_BIDIRECTIONAL, NULL, declare, plan, mhla_grid_plain, cost, NULL};
