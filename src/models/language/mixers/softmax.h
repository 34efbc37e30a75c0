/* Softmax attention's settings, for those who read files in which it is the only mixer there is (lm_llama.c, lm_gguf.c). */
#ifndef MHLA_MODELS_MIXER_SOFTMAX_H
#define MHLA_MODELS_MIXER_SOFTMAX_H

#include "models/language/lm.h"
#include "models/language/mixers/angles.h"

typedef struct mhla_softmax_settings {
    int num_heads, num_kv_heads, head_dim; /* 0: as many; hidden_size / num_heads */
    int qkv_bias, out_bias;
    int qk_norm; /* RMS norm of each head of q and k */
    double qk_norm_eps;
    double rope_theta;
    int window_size;     /* tokens seen; 0: all */
    int unscaled;        /* the config's rope_scaling is not for these layers */
    double query_scalar; /* scores are divided by its root; 0: by that of the dims of a head */
    double softcap;      /* of the scores; 0: none */
    /* settled */
    int kv_heads, dim; /* G, K */
} mhla_softmax_settings;

extern const mhla_mixer mhla_mixer_softmax;

/* Its settings where all layers have it and are one group; NULL otherwise. */
const mhla_softmax_settings *mhla_softmax_alone(const mhla_lm_config *c);

/* Gemma's: those of the layers that see all [0] and of those that see a window [1], which differ in the window and the angles alone (lm_gemma.c);
 * 0 if the layers are of another kind. */
int mhla_lm_gemma_kinds(mhla_softmax_settings kinds[2], const mhla_lm_config *c);

#endif
