/* LiT's attention over a grid: linear attention of few heads, divided by the mean of its weights, and a convolution of v whose
 * filters the heads share. */
#include "models/attention/grid.h"

enum { Q_W, Q_B, KV_W, KV_B }; /* own: [D,D], [2D,D], with biases */

static void preset(mhla_grid_settings *s) {
    s->qkv_bias = 1;
    s->lepe = 5;
    s->heads = s->dim >= 1024 ? 4 : s->dim >= 768 ? 3 : s->dim >= 384 ? 2 : 1;
}

static void declare(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim;
    const mhla_layer q = mhla_layer_matrix(ps, D, D, s->qkv_bias, s->weights, mhla_grid_part(name, "q"));
    const mhla_layer kv = mhla_layer_matrix(ps, 2 * D, D, s->qkv_bias, s->weights, mhla_grid_part(name, "kv"));
    a->own[Q_W] = q.w;
    a->own[Q_B] = q.b;
    a->own[KV_W] = kv.w;
    a->own[KV_B] = kv.b;
    if (s->lepe)
        a->lepe =
            mhla_layer_depthwise(ps, D / s->heads, s->lepe, MHLA_TORCH(s->lepe * s->lepe), mhla_grid_part(name, "dwc"));
    mhla_grid_declare_outputs(a, ps, name, "proj");
}

/* q (sum k v / T) / (q sum k / T + eps) is what linear attention makes of T eps. */
static void plan(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    desc->feature_eps = (float)s->feature_eps;
    desc->den_eps = (float)((double)T * s->den_eps);
}

static mhla_tensor *forward(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    const int64_t D = a->settings->dim;
    const mhla_layer layers[] = {{a->own[Q_W], a->own[Q_B]}, {a->own[KV_W], a->own[KV_B]}};
    mhla_tensor *made[2] = {NULL, NULL};
    mhla_nn_linears(t, made, layers, 2, h);
    mhla_tensor *k = mhla_nn_slice(t, made[1], 0, D), *v = mhla_nn_slice(t, made[1], D, D);
    mhla_tensor *local = a->settings->lepe ? mhla_grid_lepe(t, a, g, NULL, v) : NULL;
    return mhla_nn_attention_onto(t, g->plan, NULL, NULL, local, made[0], k, v);
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : mhla_grid_linear_cost(s, T);
}

const mhla_grid_kind mhla_grid_lit = {MHLA_KIND_LINEAR, preset, declare, plan, forward, cost, NULL};
