/* The gated convolution on a grid of tokens that SANA and its autoencoder have for an MLP:
 *
 *   point(u silu(w)),  [u, w] = depthwise3x3(silu(inverted(x)))
 *
 * under diffusers' names: conv_inverted, conv_depth, conv_point. */
#ifndef MHLA_MODELS_GLUMB_H
#define MHLA_MODELS_GLUMB_H

#include "models/layers.h"

typedef struct mhla_glumb {
    mhla_layer inverted, depth, point; /* [2h,D,1,1] and [2h,1,3,3] with biases, [D,h,1,1] without */
} mhla_glumb;

mhla_glumb mhla_glumb_declare(mhla_params *ps, int64_t D, int64_t hidden, const char *name);
/* Of x [B,H*W,D]. */
mhla_tensor *mhla_glumb_forward(mhla_tape *t, const mhla_glumb *g, int64_t H, int64_t W, mhla_tensor *x);
/* Numbers in its kernels: multiply-adds of a token. */
int64_t mhla_glumb_cost(int64_t D, int64_t hidden);

#endif
