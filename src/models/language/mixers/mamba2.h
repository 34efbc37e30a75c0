/* Mamba2's settings, for those who read and write files of other programs (lm_gguf_mamba.c). */
#ifndef MHLA_MODELS_MIXER_MAMBA2_H
#define MHLA_MODELS_MIXER_MAMBA2_H

#include "models/language/mixers/mamba.h"

typedef struct mhla_mamba2_settings {
    mhla_mamba_settings m;
    int num_heads, head_dim; /* 0: what the other one leaves; settled: H, P */
    int n_groups;            /* G, of keys and queries */
    double limit[2];         /* of time steps */
} mhla_mamba2_settings;

extern const mhla_mixer mhla_mixer_mamba2;

#endif
