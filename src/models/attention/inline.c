/* InLine attention over a grid: injective linear attention, and a convolution of v whose filters each image predicts from the
 * mean of its tokens, each head for itself. Heads have 32 dims. */
#include "models/attention/grid.h"

enum { SQUEEZE_W, SQUEEZE_B, WIDEN_W, WIDEN_B }; /* own: [D,K,1] and [k*k*D,K,1], with biases */

static void preset(mhla_grid_settings *s) {
    s->qkv_bias = 1;
    s->qk_norm = 0;
    s->lepe = 3;
    s->heads = s->dim / MHLA_GRID_INLINE_HEAD;
}

static void declare(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    const mhla_grid_settings *s = a->settings;
    const int64_t D = s->dim, K = D / s->heads, k2 = (int64_t)s->lepe * s->lepe;
    mhla_grid_declare_inputs(a, ps, name, "qkv");
    if (s->lepe) {
        const mhla_layer squeeze = mhla_layer_grouped(ps, D, K, MHLA_TORCH(K), mhla_grid_part(name, "residual.0"));
        const mhla_layer widen = mhla_layer_grouped(ps, k2 * D, K, MHLA_TORCH(K), mhla_grid_part(name, "residual.2"));
        a->own[SQUEEZE_W] = squeeze.w;
        a->own[SQUEEZE_B] = squeeze.b;
        a->own[WIDEN_W] = widen.w;
        a->own[WIDEN_B] = widen.b;
    }
    mhla_grid_declare_outputs(a, ps, name, "proj");
}

/* The kernels [B,k*k*D] of each image. */
static mhla_tensor *predict(mhla_tape *t, const mhla_grid_attention *a, mhla_tensor *h) {
    const int heads = a->settings->heads;
    mhla_tensor *u = mhla_nn_grouped_linear(t, a->own[SQUEEZE_W], a->own[SQUEEZE_B], heads, mhla_nn_mean_tokens(t, h));
    return mhla_nn_grouped_linear(t, a->own[WIDEN_W], a->own[WIDEN_B], heads,
                                  mhla_nn_activation(t, MHLA_ACT_GELU_ERF, u));
}

static mhla_tensor *forward(mhla_tape *t, const mhla_grid_attention *a, const mhla_grid_place *g, mhla_tensor *h) {
    const int k = a->settings->lepe;
    const mhla_grid_parts p = mhla_grid_project(t, a, h);
    mhla_tensor *local = k ? mhla_nn_depthwise_own(t, predict(t, a, p.h), k, g->H, g->W, NULL, p.v) : NULL;
    return mhla_nn_attention_onto(t, g->plan, NULL, NULL, local, p.q, p.k, p.v);
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    const int64_t D = s->dim, k2 = (int64_t)s->lepe * s->lepe;
    const int64_t kernels = k2 ? D * (D / s->heads) * (1 + k2) : 0;
    return kernels + (as_paper ? 0 : mhla_grid_linear_cost(s, T) + T * D);
}

const mhla_grid_kind mhla_grid_inline = {MHLA_KIND_INLINE, preset, declare, NULL, forward, cost, NULL};
