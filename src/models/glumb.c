/* SANA's gated convolution. */
#include "models/glumb.h"

#include <stdio.h>

mhla_glumb mhla_glumb_declare(mhla_params *ps, int64_t D, int64_t hidden, const char *name) {
    char text[160];
#define NAME(part) (snprintf(text, sizeof text, "%.120s.%s", name, part), text)
    return (mhla_glumb){
        .inverted = mhla_layer_pointwise(ps, 2 * hidden, D, 1, MHLA_TORCH(D), NAME("conv_inverted")),
        .depth = mhla_layer_depthwise(ps, 2 * hidden, 3, MHLA_TORCH(9), NAME("conv_depth")),
        .point = mhla_layer_pointwise(ps, D, hidden, 0, MHLA_TORCH(hidden), NAME("conv_point")),
    };
#undef NAME
}

mhla_tensor *mhla_glumb_forward(mhla_tape *t, const mhla_glumb *g, int64_t H, int64_t W, mhla_tensor *x) {
    const int64_t hidden = g->inverted.w ? g->inverted.w->shape[0] / 2 : 0;
    x = mhla_nn_linear(t, g->inverted.w, g->inverted.b, MHLA_ACT_SILU, NULL, x);
    x = mhla_nn_depthwise(t, g->depth.w, g->depth.b, H, W, NULL, x);
    x = mhla_nn_swiglu(t, mhla_nn_slice(t, x, hidden, hidden), mhla_nn_slice(t, x, 0, hidden));
    return mhla_nn_linear(t, g->point.w, NULL, MHLA_ACT_NONE, NULL, x);
}

int64_t mhla_glumb_cost(int64_t D, int64_t hidden) { return 3 * D * hidden + 18 * hidden; }
