/* MALA and RALA over a grid: 1x1 convolutions for linear layers, a gate as the fourth part of the projection, an axial rotary
 * embedding. They differ in their operators and in nothing else; in the backbone that they were made for softmax attention and
 * MHLA stand in the same place (`pointwise`). */
#include "models/attention/grid.h"

static void preset(mhla_grid_settings *s) {
    s->qkv_bias = 1;
    s->qk_norm = 0;
    s->gate = s->rope = 1;
}

void mhla_grid_declare_pointwise(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim;
    if (s->inner_norm) a->norm = mhla_layer_norm(ps, D, 1, mhla_grid_part(name, "norm"));
    a->qkv = mhla_layer_pointwise(ps, (s->gate ? 4 : 3) * D, D, s->qkv_bias, s->weights,
                                  mhla_grid_part(name, s->gate ? "qkvo" : "qkv"));
    mhla_grid_declare_inputs(a, ps, name, NULL);
    if (s->lepe) a->lepe = mhla_layer_depthwise(ps, D, s->lepe, s->weights, mhla_grid_part(name, "lepe"));
    a->out = mhla_layer_pointwise(ps, D, D, 1, s->weights, mhla_grid_part(name, "proj"));
    if (s->attention == MHLA_GRID_MHLA) mhla_grid_declare_mix(a, ps, name);
}

static void plan(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    (void)T;
    desc->den_eps = (float)s->den_eps;
}

mhla_tensor *mhla_grid_pointwise(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    const mhla_grid_settings *s = a->settings;
    const mhla_grid_parts p = mhla_grid_project(t, a, h);
    const mhla_call rope = {.rope_cos = g->cos, .rope_sin = g->sin, .rope_rows = g->first + (int64_t)g->H * g->W};
    mhla_tensor *lepe = s->lepe ? mhla_grid_lepe(t, a, g, NULL, p.v) : NULL;
    mhla_tensor *o = mhla_nn_attention_onto(t, g->plan, s->rope ? &rope : NULL, a->mix, lepe, p.q, p.k, p.v);
    return s->gate ? mhla_nn_mul(t, o, p.rest) : o;
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    /* times the mean of v; RALA: mean of q, keys */
    return as_paper ? 0 : mhla_grid_linear_cost(s, T) + T * s->dim + (s->gate ? T * s->dim : 0);
}

const mhla_grid_kind mhla_grid_mala = {MHLA_KIND_MALA, preset, mhla_grid_declare_pointwise, plan, mhla_grid_pointwise,
                                       cost,           NULL};
const mhla_grid_kind mhla_grid_rala = {MHLA_KIND_RALA, preset, mhla_grid_declare_pointwise, plan, mhla_grid_pointwise,
                                       cost,           NULL};
