/* Feature maps of q and k. */
#include "models/language/mixers/features.h"

#include <stdio.h>

#include "models/layers.h"

int mhla_feature_dims(int map, int K) {
    switch (map) {
    case MHLA_LM_HEDGEHOG: return 2 * K;
    case MHLA_LM_DPFP:
    case MHLA_LM_DPFP_PAPER: return 8 * K;
    default: return K;
    }
}

int mhla_feature_matrices(int map) {
    return map == MHLA_LM_ELEMENTWISE_PRODUCT ? 2 : map == MHLA_LM_HEDGEHOG || map == MHLA_LM_T2R ? 1 : 0;
}

mhla_feature mhla_feature_of_plan(int map) {
    return map == MHLA_LM_ELU                          ? MHLA_FEATURE_ELU
           : map == MHLA_LM_RELU || map == MHLA_LM_T2R ? MHLA_FEATURE_RELU
                                                       : MHLA_FEATURE_IDENTITY;
}

/* Small matrices, read as they are. */
mhla_feature_map mhla_feature_map_add(mhla_params *ps, int map, int64_t K, mhla_initial usual, const char *name) {
    mhla_feature_map m = {0};
    char part[160];
    const int matrices = mhla_feature_matrices(map), bias = map != MHLA_LM_T2R;
    const mhla_initial start = map == MHLA_LM_HEDGEHOG ? (mhla_initial){.kind = MHLA_INITIAL_IDENTITY} : usual;
    for (int i = 0; i < matrices; i++) {
        snprintf(part, sizeof part, matrices > 1 ? "%s.layer%d" : "%s.layer", name, i + 1);
        *(i ? &m.second : &m.first) = mhla_layer_linear(ps, K, K, bias, start, part);
    }
    return m;
}

static mhla_tensor *linear(mhla_tape *t, mhla_layer l, mhla_tensor *x) {
    return mhla_nn_linear(t, l.w, l.b, MHLA_ACT_NONE, NULL, x);
}

mhla_tensor *mhla_feature_map_apply(mhla_tape *t, const mhla_feature_map *m, int map, int64_t K, int whole, int norm,
                                    mhla_tensor *x) {
    if (x == NULL) return NULL;
    const int64_t B = x->shape[0], T = x->shape[1], heads = x->cols / K;
    mhla_tensor *y = x;
    if (m->first.w) {
        x = mhla_nn_reshape(t, x, MHLA_SHAPE(B, T, heads, K));
        y = linear(t, m->first, x);
        if (m->second.w) y = mhla_nn_mul(t, y, linear(t, m->second, x));
        y = mhla_nn_reshape(t, y, MHLA_SHAPE(B, T, heads * K));
    }
    if (map == MHLA_LM_HEDGEHOG) y = mhla_nn_hedgehog(t, K, y);
    if (map == MHLA_LM_DPFP || map == MHLA_LM_DPFP_PAPER) y = mhla_nn_dpfp(t, K, map == MHLA_LM_DPFP, y);
    if (map == MHLA_LM_SWISH || map == MHLA_LM_SILU) y = mhla_nn_activation(t, MHLA_ACT_SILU, y);
    if (whole && (norm || mhla_feature_of_plan(map) != MHLA_FEATURE_IDENTITY))
        y = mhla_nn_feature(t, mhla_feature_of_plan(map), mhla_feature_dims(map, (int)K), norm, y);
    return y;
}
