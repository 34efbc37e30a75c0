/* Feature maps of q and k, config: feature_map. */
#ifndef MHLA_MODELS_MIXER_FEATURES_H
#define MHLA_MODELS_MIXER_FEATURES_H

#include "models/language/mixer.h"

/* All but the first three are computed here, the operator then takes them as they are; hedgehog makes 2K of K dims, dpfp 8K. */
enum {
    MHLA_LM_RELU,
    MHLA_LM_ELU,
    MHLA_LM_IDENTITY,
    MHLA_LM_HEDGEHOG,            /* softmax([2(Wx+b), -2(Wx+b)]) */
    MHLA_LM_T2R,                 /* relu(Wx) */
    MHLA_LM_DPFP,                /* as released: products of [relu(x), -relu(x)] with itself, rolled by 1..4 */
    MHLA_LM_ELEMENTWISE_PRODUCT, /* (W1x+b1)(W2x+b2) */
    MHLA_LM_DPFP_PAPER,          /* relu(-x) where the release has -relu(x) */
    MHLA_LM_SWISH,               /* x sigmoid(x), under either of its names */
    MHLA_LM_SILU
};
#define MHLA_LM_FEATURES "relu|elu|identity|hedgehog|t2r|dpfp|elementwise_product|dpfp_paper|swish|silu"

/* Matrices [K,K] of a map, applied to every head alike; which of them there are depends on the map. */
typedef struct mhla_feature_map {
    mhla_layer first, second;
} mhla_feature_map;

/* Dims of a head of K after the map, and matrices that it has. */
int mhla_feature_dims(int map, int K);
int mhla_feature_matrices(int map);
/* What the operator itself does of a map. */
mhla_feature mhla_feature_of_plan(int map);
mhla_feature_map mhla_feature_map_add(mhla_params *ps, int map, int64_t K, mhla_initial usual, const char *name);
/* Each head of x [B,T,heads*K] -> [B,T,heads*F]. whole: what the operator would do is done, too, and with `norm` features are divided
 * by their sum. */
mhla_tensor *mhla_feature_map_apply(mhla_tape *t, const mhla_feature_map *m, int map, int64_t K, int whole, int norm,
                                    mhla_tensor *x);

#endif
