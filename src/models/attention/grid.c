/* What all variants of attention over a grid share: the list, checks, projections, plans of a size, costs. */
#include "models/attention/grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"

static const mhla_grid_kind *const kinds[MHLA_GRID_KINDS] = {
#define X(NAME, name, text) &mhla_grid_##name,
    MHLA_GRID_LIST(X)
#undef X
};

static const char *const names[MHLA_GRID_KINDS] = {
#define X(NAME, name, text) text,
    MHLA_GRID_LIST(X)
#undef X
};

const char *mhla_grid_name(int attention) { return names[attention]; }

int mhla_grid_named(const char *name) {
    for (int i = 0; i < MHLA_GRID_KINDS; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

int64_t mhla_grid_blocks(const mhla_grid_settings *s) { return (int64_t)s->blocks[0] * s->blocks[1] + s->class_token; }

void mhla_grid_preset(mhla_grid_settings *s) {
    if (kinds[s->attention]->preset) kinds[s->attention]->preset(s);
}

/* ---- Checks ------------------------------------------------------------------------------------------------------------ */

static mhla_status check_blocks(const mhla_grid_settings *s, int64_t H, int64_t W) {
    const int64_t grid[2] = {H, W};
    for (int a = 0; a < 2; a++) {
        if (s->blocks[a] > grid[a])
            return mhla_fail(MHLA_EINVAL, "blocks is %d on an axis of %lld patches: at most one block per patch",
                             s->blocks[a], (long long)grid[a]);
        if (s->denominator == MHLA_DEN_RELEASED && grid[a] % s->blocks[a] != 0)
            return mhla_fail(
                MHLA_EINVAL,
                "denominator \"released\" needs equal blocks: %lld patches are not a multiple of %d blocks",
                (long long)grid[a], s->blocks[a]);
    }
    if (s->class_token && s->denominator == MHLA_DEN_RELEASED)
        return mhla_fail(MHLA_EINVAL,
                         "denominator \"released\" needs equal blocks, and a class token is a block of one "
                         "token: set denominator to eq4, or class_token to false");
    return MHLA_OK;
}

static mhla_status check_widths(const mhla_grid_settings *s) {
    const double expand[2] = {s->expand_k, s->expand_v};
    for (int i = 0; i < 2; i++) {
        const int width = (int)mhla_grid_width(s, expand[i]);
        if (width < s->heads || width % s->heads != 0 || width / s->heads > 512)
            return mhla_fail(MHLA_EINVAL,
                             "%s %g makes %s of %d numbers: expected a multiple of heads %d, at most 512 each",
                             i ? "expand_v" : "expand_k", expand[i], i ? "values" : "keys", width, s->heads);
    }
    return MHLA_OK;
}

mhla_status mhla_grid_check(const mhla_grid_settings *s, int64_t H, int64_t W) {
    if (s->dim % s->heads != 0) return mhla_fail(MHLA_EINVAL, "dim %d is not a multiple of heads %d", s->dim, s->heads);
    if (kinds[s->attention]->op == MHLA_KIND_BIDIRECTIONAL) MHLA_TRY(check_blocks(s, H, W));
    if (s->rope && !s->pointwise && s->attention != MHLA_GRID_MALA && s->attention != MHLA_GRID_RALA)
        return mhla_fail(MHLA_EINVAL, "rope is true: only the attentions mala and rala have it");
    if (s->rope && s->dim / s->heads % 4 != 0)
        return mhla_fail(MHLA_EINVAL,
                         "dim %d over heads %d is %d per head: an axial rotary embedding (rope) needs a multiple of 4",
                         s->dim, s->heads, s->dim / s->heads);
    if ((s->power > 0) != (s->attention == MHLA_GRID_FOCUSED))
        return mhla_fail(MHLA_EINVAL, "power is %d: the attention focused has one, 1 to 16, the others none (0)",
                         s->power);
    if (s->attention == MHLA_GRID_LIT && (s->gate || s->inner_norm || s->qk_norm))
        return mhla_fail(MHLA_EINVAL, "%s is true: the attention lit has none",
                         s->gate         ? "gate"
                         : s->inner_norm ? "inner_norm"
                                         : "qk_norm");
    if (s->attention == MHLA_GRID_GLA || s->attention == MHLA_GRID_GLA_MHLA) MHLA_TRY(check_widths(s));
    if (s->lepe && s->lepe % 2 == 0)
        return mhla_fail(MHLA_EINVAL, "lepe is %d: kernels are odd, or 0 for none", s->lepe);
    if (s->dim / s->heads > 512)
        return mhla_fail(MHLA_EINVAL, "dim %d over heads %d is more than 512 per head", s->dim, s->heads);
    return MHLA_OK;
}

/* ---- Parameters -------------------------------------------------------------------------------------------------------- */

const char *mhla_grid_part(const char *name, const char *part) {
    static _Thread_local char text[160];
    snprintf(text, sizeof text, "%s.%s", name, part);
    return text;
}

void mhla_grid_declare(mhla_grid_attention *a, mhla_params *ps, const mhla_grid_settings *s, const char *name) {
    *a = (mhla_grid_attention){.settings = s};
    (s->pointwise ? mhla_grid_declare_pointwise : kinds[s->attention]->declare)(a, ps, name);
}

void mhla_grid_declare_inputs(mhla_grid_attention *a, mhla_params *ps, const char *name, const char *qkv) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim;
    if (s->inner_norm && a->norm.w == NULL) a->norm = mhla_layer_norm(ps, D, 1, mhla_grid_part(name, "norm"));
    static const char *const apart[] = {"to_q", "to_k", "to_v"};
    for (int i = 0; i < 3 && s->apart; i++)
        a->apart[i] = mhla_layer_matrix(ps, D, D, s->qkv_bias, s->weights, mhla_grid_part(name, apart[i]));
    if (a->qkv.w == NULL && !s->apart)
        a->qkv = mhla_layer_matrix(ps, 3 * D, D, s->qkv_bias, s->weights, mhla_grid_part(name, qkv));
    if (!s->qk_norm) return;
    a->q_norm = mhla_layer_norm(ps, D, 0, mhla_grid_part(name, s->apart ? "norm_q" : "q_norm")).w;
    a->k_norm = mhla_layer_norm(ps, D, 0, mhla_grid_part(name, s->apart ? "norm_k" : "k_norm")).w;
}

void mhla_grid_declare_lepe(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    if (s->lepe) a->lepe = mhla_layer_depthwise(ps, s->dim, s->lepe, s->filters, mhla_grid_part(name, "lepe"));
}

void mhla_grid_declare_outputs(mhla_grid_attention *a, mhla_params *ps, const char *name, const char *out) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim;
    if (s->gate) a->gate = mhla_layer_matrix(ps, D, D, 1, s->weights, mhla_grid_part(name, "g"));
    if (s->gate && s->gate_norm) a->gate_norm = mhla_layer_norm(ps, D / s->heads, 0, mhla_grid_part(name, "g_norm")).w;
    a->out = mhla_layer_matrix(ps, D, D, 1, s->weights, mhla_grid_part(name, out));
}

/* ---- A size ------------------------------------------------------------------------------------------------------------ */

/* Token 0 is block 0; the grid behind it is cut at floor(i g / b) on each axis, as a plan with a grid is. */
static mhla_status plan_with_class(mhla_grid_place *g, mhla_plan_desc *desc, const int blocks[2]) {
    const int H = g->H, W = g->W, T = 1 + H * W;
    int64_t *offsets = malloc((size_t)(blocks[0] * blocks[1] + 2) * sizeof *offsets);
    int32_t *order = malloc((size_t)T * sizeof *order);
    mhla_status status = offsets && order ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of %d tokens", T);
    if (status == MHLA_OK) {
        int64_t M = 0, n = 0;
        offsets[M++] = 0;
        order[n++] = 0;
        for (int i = 0; i < blocks[0]; i++)
            for (int j = 0; j < blocks[1]; j++) {
                offsets[M++] = n;
                for (int y = i * H / blocks[0]; y < (i + 1) * H / blocks[0]; y++)
                    for (int x = j * W / blocks[1]; x < (j + 1) * W / blocks[1]; x++) order[n++] = 1 + y * W + x;
            }
        offsets[M] = T;
        desc->n_blocks = M;
        desc->n_tokens = T;
        desc->block_offsets = offsets;
        desc->permutation = order;
        status = mhla_plan_create(&g->plan, desc);
    }
    free(offsets);
    free(order);
    return status;
}

static mhla_status make_plan(mhla_grid_place *g, const mhla_grid_settings *s) {
    mhla_plan_desc desc = {
        .size = sizeof desc,
        .kind = kinds[s->attention]->op,
        .heads = s->heads,
        .key_dim = s->dim / s->heads,
        .value_dim = s->dim / s->heads,
    };
    if (kinds[s->attention]->plan) kinds[s->attention]->plan(&desc, s, g->first + (int64_t)g->H * g->W);
    if (s->rope) desc.rope = MHLA_ROPE_INTERLEAVED;
    if (desc.kind == MHLA_KIND_BIDIRECTIONAL) {
        if (g->first) return plan_with_class(g, &desc, s->blocks);
        desc.axes = 2;
        desc.grid[0] = g->H;
        desc.grid[1] = g->W;
        for (int a = 0; a < 2; a++) desc.blocks[a] = s->blocks[a];
    }
    return mhla_plan_create(&g->plan, &desc);
}

/* The base of the frequencies base^(-i/n), n = K/4, for rows and as many for columns: the last is 1/10000 itself. */
static double rope_base(int K) {
    const int n = K / 4;
    return n > 1 ? pow(10000.0, (double)n / (n - 1)) : 10000.0;
}

double mhla_grid_frequency(int K, int i) {
    const int n = K / 4;
    return pow(rope_base(K), -(double)i / n);
}

/* One row of angles for each token. A class token, which has no place in the image, does not turn. */
static mhla_status make_rope(mhla_grid_place *g, const mhla_grid_settings *s) {
    const int K = s->dim / s->heads, dims[2] = {K / 2, K / 2}, grid[2] = {g->H, g->W};
    const int64_t T = g->first + (int64_t)g->H * g->W, half = K / 2, first = g->first * half;
    g->cos = mhla_alloc((size_t)(2 * T * half) * sizeof *g->cos);
    if (g->cos == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a rotary table of %lld rows", (long long)T);
    g->sin = g->cos + T * half;
    for (int64_t j = 0; j < first; j++) {
        g->cos[j] = 1.0f;
        g->sin[j] = 0.0f;
    }
    return mhla_rope_table(g->cos + first, g->sin + first, 2, grid, dims, rope_base(K));
}

mhla_status mhla_grid_place_make(mhla_grid_place *g, const mhla_grid_settings *s, int H, int W) {
    *g = (mhla_grid_place){.H = H, .W = W, .first = s->class_token};
    mhla_status status = make_plan(g, s);
    if (status == MHLA_OK && s->rope) status = make_rope(g, s);
    if (status != MHLA_OK) mhla_grid_place_free(g);
    return status;
}

void mhla_grid_place_free(mhla_grid_place *g) {
    mhla_plan_free(g->plan);
    mhla_free(g->cos);
    *g = (mhla_grid_place){0};
}

/* ---- Forward: x is [B,T,D] throughout ---------------------------------------------------------------------------------- */

mhla_tensor *mhla_grid_forward(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    return (a->settings->pointwise ? mhla_grid_pointwise : kinds[a->settings->attention]->forward)(t, a, g, h);
}

mhla_grid_parts mhla_grid_project(mhla_tape *t, const mhla_grid_attention *a, mhla_tensor *h) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim;
    mhla_grid_parts p = {.h = h};
    mhla_tensor *made[4] = {NULL}; /* q, k, v or qkv; gate */
    if (s->inner_norm) p.h = mhla_nn_layer_norm(t, a->norm.w, a->norm.b, 1e-5f, h);
    if (s->apart) {
        mhla_nn_linears(t, made, (const mhla_layer[]){a->apart[0], a->apart[1], a->apart[2], a->gate},
                        a->gate.w ? 4 : 3, p.h);
        p.q = made[0];
        p.k = made[1];
        p.v = made[2];
        p.rest = made[3];
    } else {
        mhla_nn_linears(t, made, (const mhla_layer[]){a->qkv, a->gate}, a->gate.w ? 2 : 1, p.h);
        p.q = mhla_nn_slice(t, made[0], 0, D);
        p.k = mhla_nn_slice(t, made[0], D, D);
        p.v = mhla_nn_slice(t, made[0], 2 * D, D);
        p.rest = a->gate.w || made[0] == NULL ? made[1]
                 : made[0]->cols > 3 * D      ? mhla_nn_slice(t, made[0], 3 * D, D)
                                              : NULL;
    }
    if (s->qk_norm) {
        p.q = mhla_nn_rms_norm(t, a->q_norm, (float)s->qk_norm_eps, 0, p.q);
        p.k = mhla_nn_rms_norm(t, a->k_norm, (float)s->qk_norm_eps, 0, p.k);
    }
    return p;
}

mhla_tensor *mhla_grid_lepe(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *residual,
                            mhla_tensor *x) {
    return mhla_nn_depthwise(t, a->lepe.w, a->lepe.b, g->H, g->W, residual, x);
}

mhla_tensor *mhla_grid_plain(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    const mhla_grid_settings *s = a->settings;
    const mhla_grid_parts p = mhla_grid_project(t, a, h);
    mhla_tensor *lepe = s->lepe && !s->gate ? mhla_grid_lepe(t, a, g, NULL, p.v) : NULL;
    mhla_tensor *o = mhla_nn_attention_onto(t, g->plan, NULL, a->mix, lepe, p.q, p.k, p.v);
    if (!s->gate) return o;
    o = s->gate_norm ? mhla_nn_rms_norm_gated(t, a->gate_norm, 1e-6f, s->dim / s->heads, o, p.rest)
                     : mhla_nn_swiglu(t, p.rest, o);
    return s->lepe ? mhla_grid_lepe(t, a, g, o, p.v) : o;
}

/* ---- Costs -------------------------------------------------------------------------------------------------------------- */

int64_t mhla_grid_cost(const mhla_grid_settings *s, int64_t T, int64_t patches, int as_paper) {
    const int64_t D = s->dim;
    const mhla_grid_kind *kind = kinds[s->attention];
    const int64_t token = kind->projections ? kind->projections(s) : D * ((s->gate ? 4 : 3) * D + D);
    return T * token + patches * D * s->lepe * s->lepe + kind->cost(s, T, as_paper);
}

int64_t mhla_grid_linear_cost(const mhla_grid_settings *s, int64_t T) {
    const int64_t D = s->dim, K = s->dim / s->heads;
    return 2 * T * D * K + T * D;
}
