/* DiG's attention: GLA in the order of the tokens, or MHLA in its place with the same projections and the same gate. Keys are
 * narrower than values; nothing but the log-decays has a bias.
 *
 *   GLA    S_t = decay_t S_{t-1} + k_t v_t^T,  o_t = K^-1/2 q_t^T S_t,  decay_t = sigmoid(gk_proj h_t)^(1/16), gk_proj of low rank
 *   MHLA   o = attention over blocks of relu(q) and relu(k)
 *   both   rms_norm(o) silu(g), each head for itself */
#include <math.h>

#include "core/status.h"
#include "models/attention/grid.h"

enum { Q, K, V, LOW, HIGH, HIGH_B }; /* own: [keys,D] twice, [values,D]; gk_proj: [R,D], [keys,R], [keys] */
static const float EPS = 1e-6f;      /* of the norm */

static void preset(mhla_grid_settings *s) {
    s->gate = 1;
    s->expand_k = 0.5;
    s->expand_v = 1.0;
    s->qkv_bias = s->qk_norm = s->lepe = 0;
    if (s->attention != MHLA_GRID_GLA) return;
    s->rank = 16;
    s->divisor = 16.0;
}

static int64_t keys_of(const mhla_grid_settings *s) { return mhla_grid_width(s, s->expand_k); }
static int64_t values_of(const mhla_grid_settings *s) { return mhla_grid_width(s, s->expand_v); }

static void declare_first(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim, keys = keys_of(s), values = values_of(s);
    a->own[Q] = mhla_layer_matrix(ps, keys, D, 0, s->weights, mhla_grid_part(name, "q_proj")).w;
    a->own[K] = mhla_layer_matrix(ps, keys, D, 0, s->weights, mhla_grid_part(name, "k_proj")).w;
    a->own[V] = mhla_layer_matrix(ps, values, D, 0, s->weights, mhla_grid_part(name, "v_proj")).w;
    if (s->gate) a->gate = mhla_layer_matrix(ps, values, D, 0, s->weights, mhla_grid_part(name, "g_proj"));
}

static void declare_last(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const char *norm = s->gate ? "g_norm_swish_gate" : "g_norm";
    a->out = mhla_layer_matrix(ps, s->dim, values_of(s), 0, s->weights, mhla_grid_part(name, "o_proj"));
    a->gate_norm = mhla_layer_norm(ps, values_of(s) / s->heads, 0, mhla_grid_part(name, norm)).w;
}

static void declare_gla(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    declare_first(a, ps, name);
    a->own[LOW] = mhla_layer_matrix(ps, s->rank, s->dim, 0, s->weights, mhla_grid_part(name, "gk_proj.0")).w;
    const mhla_layer high =
        mhla_layer_matrix(ps, keys_of(s), s->rank, 1, s->weights, mhla_grid_part(name, "gk_proj.1"));
    a->own[HIGH] = high.w;
    a->own[HIGH_B] = high.b;
    declare_last(a, ps, name);
}

static void declare_mhla(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    declare_first(a, ps, name);
    mhla_grid_declare_mix(a, ps, name);
    declare_last(a, ps, name);
}

static void plan_gla(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    (void)T;
    desc->key_dim = (int)keys_of(s) / s->heads;
    desc->value_dim = (int)values_of(s) / s->heads;
}

static void plan_mhla(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    plan_gla(desc, s, T);
    mhla_grid_mhla.plan(desc, s, T);
}

static mhla_tensor *forward(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    const mhla_grid_settings *s = a->settings;
    const mhla_layer layers[] = {{a->own[Q], NULL}, {a->own[K], NULL}, {a->own[V], NULL}, a->gate};
    mhla_tensor *y[] = {NULL, NULL, NULL, NULL}, *o;
    mhla_nn_linears(t, y, layers, s->gate ? 4 : 3, h);
    if (a->own[LOW]) {
        mhla_tensor *low = mhla_nn_linear(t, a->own[LOW], NULL, MHLA_ACT_NONE, NULL, h);
        mhla_tensor *logits = mhla_nn_linear(t, a->own[HIGH], a->own[HIGH_B], MHLA_ACT_NONE, NULL, low);
        mhla_tensor *decay = mhla_nn_log_sigmoid(t, (float)s->divisor, -INFINITY, logits);
        o = mhla_nn_recurrence(t, g->plan, NULL, y[Q], y[K], y[V], decay, NULL);
    } else {
        o = mhla_nn_attention(t, g->plan, NULL, a->mix, y[Q], y[K], y[V]);
    }
    const int64_t head = values_of(s) / s->heads;
    return s->gate ? mhla_nn_rms_norm_gated(t, a->gate_norm, EPS, head, o, y[3])
                   : mhla_nn_rms_norm(t, a->gate_norm, EPS, head, o);
}

static int64_t projections(const mhla_grid_settings *s) {
    const int64_t keys = keys_of(s), values = values_of(s);
    const int64_t decays = s->attention == MHLA_GRID_GLA ? s->rank * (s->dim + keys) : 0;
    return s->dim * (2 * keys + (s->gate ? 3 : 2) * values) + decays;
}

static int64_t cost_gla(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : 3 * T * keys_of(s) * (values_of(s) / s->heads); /* decay, k v, q S */
}

static int64_t cost_mhla(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : mhla_grid_mhla_cost(s, T, keys_of(s), values_of(s));
}

const mhla_grid_kind mhla_grid_gla = {MHLA_KIND_GLA, preset, declare_gla, plan_gla, forward, cost_gla, projections};
const mhla_grid_kind mhla_grid_gla_mhla = {
    MHLA_KIND_BIDIRECTIONAL, preset, declare_mhla, plan_mhla, forward, cost_mhla, projections};
