/* What models of images share: layers by name, attention over a grid of patches, and what that costs. */
#ifndef MHLA_MODELS_PARTS_H
#define MHLA_MODELS_PARTS_H

#include "models/kinds.h"
#include "nn/nn.h"

typedef struct mhla_part {
    mhla_param *w, *b; /* b NULL where there is no bias */
} mhla_part;

/* NAME.weight [N,K] and, with a bias, NAME.bias [N]; of a depthwise convolution [D,1,k,k] and [D]; of a 1x1 convolution, which
 * is a linear layer in all but its shape, [N,K,1,1], and of one of groups that each have K inputs, [N,K,1]. */
mhla_part mhla_part_linear(mhla_params *params, int64_t N, int64_t K, int bias, const char *name);
mhla_part mhla_part_depthwise(mhla_params *params, int64_t D, int k, const char *name);
mhla_part mhla_part_pointwise(mhla_params *params, int64_t N, int64_t K, int bias, const char *name);
mhla_part mhla_part_grouped(mhla_params *params, int64_t N, int64_t K, const char *name);

/* A choice of attention, as a config says it. */
typedef struct mhla_grid_attention {
    int attention; /* MHLA_ATTENTION_* */
    int dim, heads;
    double feature_eps, den_eps; /* phi(x) = relu(x) + eps; all but softmax */
    int denominator;             /* MHLA */
    int rope;                    /* MALA, RALA: interleaved pairs of a whole head turn */
    int power;                   /* Focused LA */
} mhla_grid_attention;

/* Its plan; of MHLA with axes, grid and blocks, or n_blocks and what goes with it, left to the caller. */
mhla_plan_desc mhla_grid_attention_plan(const mhla_grid_attention *a);
/* Multiply-adds of its own for T tokens in M blocks. */
int64_t mhla_grid_attention_cost(const mhla_grid_attention *a, int64_t T, int64_t M);
/* The mixing matrix of M blocks under this name. After each update it is clipped: to [0,1] as released, to the open interval
 * of the paper otherwise. */
mhla_param *mhla_part_mix(mhla_params *params, int64_t M, int structure, const char *name);

#endif
