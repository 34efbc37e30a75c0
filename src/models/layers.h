/* Layers by name: a weight and perhaps a bias, declared together under the names of the published checkpoints. */
#ifndef MHLA_MODELS_LAYERS_H
#define MHLA_MODELS_LAYERS_H

#include "nn/nn.h"

/* NAME.weight and, with a bias, NAME.bias. `initial` is the weight's; a bias starts at 0, but as PyTorch has it where the
 * weight does (MHLA_TORCH).
 *   linear     [N,K]
 *   matrix     the same, which may be stored as bfloat16 or Q8_0
 *   pointwise  [N,K,1,1], a matrix in all but its shape
 *   grouped    [N,K,1], groups that each have K inputs
 *   depthwise  [D,1,k,k]
 *   conv       [N,K,k,k], with a bias */
mhla_layer mhla_layer_linear(mhla_params *ps, int64_t N, int64_t K, int bias, mhla_initial initial, const char *name);
mhla_layer mhla_layer_matrix(mhla_params *ps, int64_t N, int64_t K, int bias, mhla_initial initial, const char *name);
mhla_layer mhla_layer_pointwise(mhla_params *ps, int64_t N, int64_t K, int bias, mhla_initial initial,
                                const char *name);
mhla_layer mhla_layer_grouped(mhla_params *ps, int64_t N, int64_t K, mhla_initial initial, const char *name);
mhla_layer mhla_layer_depthwise(mhla_params *ps, int64_t D, int k, mhla_initial initial, const char *name);
/* A dense convolution [D,C,k,k] for mhla_nn_conv. */
mhla_layer mhla_layer_conv(mhla_params *ps, int64_t D, int64_t C, int64_t k, mhla_initial initial, const char *name);
/* A norm over D: weights 1 and, for LayerNorm, biases 0. */
mhla_layer mhla_layer_norm(mhla_params *ps, int64_t D, int bias, const char *name);
/* Batch norm over D channels with its running statistics, as PyTorch names and begins them: eps 1e-5, momentum 0.1. */
mhla_batch_norm mhla_layer_batch_norm(mhla_params *ps, int64_t D, const char *name);
/* Patches of p x p pixels of C channels to D: [D,C,p,p], stored as a matrix may be, PyTorch's default or another start of the weight alone. */
mhla_layer mhla_layer_patches(mhla_params *ps, int64_t D, int64_t C, int64_t p, mhla_initial initial, const char *name);

#endif
