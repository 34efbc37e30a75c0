/* Focused Linear Attention over a grid: features to a power, a learned position in every key, and a convolution of v whose
 * filters the heads share. */
#include "models/attention/grid.h"

enum { SCALE, POSITION }; /* own: [1,1,D] of the features, [1,T,D] */

static void preset(mhla_grid_settings *s) {
    s->qkv_bias = 1;
    s->qk_norm = 0;
    s->power = 3;
}

static void declare(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim;
    if (s->inner_norm) a->norm = mhla_layer_norm(ps, D, 1, mhla_grid_part(name, "norm"));
    a->own[SCALE] =
        mhla_params_add(ps, mhla_grid_part(name, "scale"), MHLA_SHAPE(1, 1, D), MHLA_PARAM_DECAY, MHLA_ZERO);
    a->own[POSITION] = mhla_params_add(ps, mhla_grid_part(name, "positional_encoding"), MHLA_SHAPE(1, s->tokens, D),
                                       MHLA_PARAM_DECAY, MHLA_ZERO);
    mhla_grid_declare_inputs(a, ps, name, "qkv");
    if (s->lepe)
        a->lepe =
            mhla_layer_depthwise(ps, D / s->heads, s->lepe, MHLA_TORCH(s->lepe * s->lepe), mhla_grid_part(name, "dwc"));
    mhla_grid_declare_outputs(a, ps, name, "proj");
}

static void plan(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    (void)T;
    desc->feature_eps = (float)s->feature_eps;
    desc->den_eps = (float)s->den_eps;
    desc->focus_power = s->power;
}

static mhla_tensor *forward(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    mhla_grid_parts p = mhla_grid_project(t, a, h);
    p.k = mhla_nn_add_position(t, a->own[POSITION], p.k);
    mhla_tensor *local = a->settings->lepe ? mhla_grid_lepe(t, a, g, NULL, p.v) : NULL;
    return mhla_nn_attention_onto(t, g->plan, NULL, a->own[SCALE], local, p.q, p.k, p.v);
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : mhla_grid_linear_cost(s, T);
}

const mhla_grid_kind mhla_grid_focused = {MHLA_KIND_FOCUSED, preset, declare, plan, forward, cost, NULL};
