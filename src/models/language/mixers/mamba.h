/* What the mixers of Mamba and Mamba2 share: keys of config.json, and what their decoders have otherwise. And the settings of both, for those
 * who read and write files of other programs (lm_gguf_mamba.c). */
#ifndef MHLA_MODELS_MIXER_MAMBA_H
#define MHLA_MODELS_MIXER_MAMBA_H

#include "models/language/lm.h"

typedef struct mhla_mamba_settings {
    int expand; /* inner channels over hidden_size */
    int state_size;
    int conv_kernel;
    int use_bias, use_conv_bias;
    /* settled */
    int inner; /* I, inner channels */
} mhla_mamba_settings;

typedef struct mhla_mamba1_settings {
    mhla_mamba_settings m;
    int time_step_rank; /* R; 0: a sixteenth of hidden_size */
} mhla_mamba1_settings;

typedef struct mhla_mamba2_settings {
    mhla_mamba_settings m;
    int num_heads, head_dim; /* 0: what the other one leaves; settled: H, P */
    int n_groups;            /* G, of keys and queries */
    int norm_groups;         /* parts of the channels that are normed by themselves; 0: all together */
    double limit[2];         /* of time steps */
} mhla_mamba2_settings;

extern const mhla_mixer mhla_mixer_mamba, mhla_mixer_mamba2;

/* Its rows of a table of settings; F is the table's macro. */
#define MHLA_MAMBA_FIELDS(F)                                                                                           \
    F("expand", INT, INT, m.expand, 1, 64, NULL, "inner channels over hidden_size"),                                   \
        F("state_size", INT, INT, m.state_size, 1, 1024, NULL, "numbers of a channel's state"),                        \
        F("conv_kernel", INT, INT, m.conv_kernel, 1, 64, NULL, "width of the convolution"),                            \
        F("use_bias", BOOL, BOOL, m.use_bias, 0, 0, NULL, "biases of in_proj and out_proj"),                           \
        F("use_conv_bias", BOOL, BOOL, m.use_conv_bias, 0, 0, NULL, "a bias of the convolution")

/* Rows of a mhla_mixer: a decoder without MLPs, twice as many layers. */
void mhla_mamba_decoder(mhla_lm_config *c, const mhla_lm_size *size);
/* layer_norm_epsilon, as transformers has it. */
mhla_status mhla_mamba_read(mhla_lm_config *c, const json_t *tree, const char *path);
void mhla_mamba_write(json_t *tree, const mhla_lm_config *c);

#endif
