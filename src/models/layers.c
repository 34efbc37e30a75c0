/* Layers by name: a weight and perhaps a bias, declared together under the names of the published checkpoints. */
#include "models/layers.h"

static mhla_layer declare(mhla_params *ps, const int64_t *shape, int dims, unsigned flags, int bias,
                          mhla_initial initial, const char *name) {
    const mhla_initial start = initial.kind == MHLA_INITIAL_TORCH ? initial : MHLA_ZERO;
    mhla_layer l = {.w = mhla_params_addf(ps, shape, dims, MHLA_PARAM_DECAY | flags, initial, "%s.weight", name)};
    if (bias) l.b = mhla_params_addf(ps, MHLA_SHAPE(shape[0]), 0, start, "%s.bias", name);
    return l;
}

mhla_layer mhla_layer_linear(mhla_params *ps, int64_t N, int64_t K, int bias, mhla_initial initial, const char *name) {
    return declare(ps, MHLA_SHAPE(N, K), 0, bias, initial, name);
}

mhla_layer mhla_layer_matrix(mhla_params *ps, int64_t N, int64_t K, int bias, mhla_initial initial, const char *name) {
    return declare(ps, MHLA_SHAPE(N, K), MHLA_PARAM_MATRIX, bias, initial, name);
}

mhla_layer mhla_layer_pointwise(mhla_params *ps, int64_t N, int64_t K, int bias, mhla_initial initial,
                                const char *name) {
    return declare(ps, MHLA_SHAPE(N, K, 1, 1), MHLA_PARAM_MATRIX, bias, initial, name);
}

mhla_layer mhla_layer_grouped(mhla_params *ps, int64_t N, int64_t K, mhla_initial initial, const char *name) {
    return declare(ps, MHLA_SHAPE(N, K, 1), 0, 1, initial, name);
}

mhla_layer mhla_layer_depthwise(mhla_params *ps, int64_t D, int k, mhla_initial initial, const char *name) {
    return declare(ps, MHLA_SHAPE(D, 1, k, k), 0, 1, initial, name);
}

mhla_layer mhla_layer_conv(mhla_params *ps, int64_t D, int64_t C, int64_t k, mhla_initial initial, const char *name) {
    return declare(ps, MHLA_SHAPE(D, C, k, k), 0, 1, initial, name);
}

mhla_layer mhla_layer_patches(mhla_params *ps, int64_t D, int64_t C, int64_t p, mhla_initial initial,
                              const char *name) {
    return declare(ps, MHLA_SHAPE(D, C, p, p), MHLA_PARAM_MATRIX, 1, initial, name);
}

mhla_layer mhla_layer_norm(mhla_params *ps, int64_t D, int bias, const char *name) {
    mhla_layer l = {.w = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ONE, "%s.weight", name)};
    if (bias) l.b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "%s.bias", name);
    return l;
}

mhla_batch_norm mhla_layer_batch_norm(mhla_params *ps, int64_t D, const char *name) {
    const mhla_layer l = mhla_layer_norm(ps, D, 1, name);
    const mhla_batch_norm n = {
        .w = l.w,
        .b = l.b,
        .mean = mhla_params_addf(ps, MHLA_SHAPE(D), MHLA_PARAM_BUFFER, MHLA_ZERO, "%s.running_mean", name),
        .var = mhla_params_addf(ps, MHLA_SHAPE(D), MHLA_PARAM_BUFFER, MHLA_ONE, "%s.running_var", name),
        .batches = mhla_params_addf(ps, MHLA_SHAPE(1), MHLA_PARAM_BUFFER | MHLA_PARAM_COUNTER, MHLA_ZERO,
                                    "%s.num_batches_tracked", name),
        .eps = 1e-5f,
        .momentum = 0.1f};
    if (n.mean) n.mean->kept = 1.0f - n.momentum;
    if (n.var) n.var->kept = 1.0f - n.momentum;
    if (n.batches) n.batches->kept = 1.0f;
    return n;
}
