/* Settings of a decoder, before sizes are made of them: what the keys of config.json (lm_config_file.c), of a command line and
 * of a recipe (lm_config.c) write to. */
#ifndef MHLA_MODELS_LM_SETTINGS_H
#define MHLA_MODELS_LM_SETTINGS_H

#include "models/language/lm.h"

typedef struct mhla_lm_layer_list {
    unsigned char on[MHLA_LM_LAYERS]; /* 1: is one of them */
    int count;
} mhla_lm_layer_list;

typedef struct mhla_lm_settings {
    char model[32];
    int attention; /* of all layers but those of attn and linear */
    int vocab_size, hidden_size, num_hidden_layers, num_heads, num_kv_heads, head_dim, intermediate_size;
    double expand_k, expand_v, hidden_ratio, norm_eps, rope_theta, initializer_range;
    int feature_map, chunk_size, num_blocks, use_output_gate, use_short_conv, conv_size;
    int norm_q, norm_k, norm_feature_map;
    int qkv_bias, out_bias, mlp_bias, qk_norm, window_size;
    double qk_norm_eps;
    mhla_scaling scaling; /* softmax layers but those of attn */
    int tie_word_embeddings, max_position_embeddings, bos_token_id, eos_token_id;
    int names;
    struct { /* the softmax layers of a hybrid */
        mhla_lm_layer_list layers;
        int num_heads, num_kv_heads, qkv_bias, qk_norm, window_size;
        double rope_theta;
    } attn;
    struct { /* the linear layers among those of MHLA */
        mhla_lm_layer_list layers;
        int num_heads, num_kv_heads, feature_map, use_short_conv, conv_size, norm_q, norm_k, norm_feature_map;
        double expand_k, expand_v;
    } linear;
} mhla_lm_settings;

#define MHLA_LM_FEATURES "relu|elu|identity|hedgehog|t2r|dpfp|elementwise_product|dpfp_paper"

typedef enum mhla_lm_key_kind {
    MHLA_LM_TEXT,
    MHLA_LM_CHOICE,
    MHLA_LM_INT,
    MHLA_LM_REAL,
    MHLA_LM_BOOL,
    MHLA_LM_LAYERS_LIST
} mhla_lm_key_kind;

typedef struct mhla_lm_key {
    mhla_recipe_row row;
    mhla_lm_key_kind kind;
    size_t at; /* in the settings */
} mhla_lm_key;

/* All keys but those of the preset. Names that begin with attn_ or linear_ are those of an object "attn" or "linear" in
 * config.json. */
const mhla_lm_key *mhla_lm_keys(int *count);
/* The place of a text in "a|b|c", or -1. */
int mhla_lm_choice(const char *choices, const char *text);
/* What flash-linear-attention takes where config.json says nothing. */
mhla_lm_settings mhla_lm_standard(int attention);
void mhla_lm_set_layers(mhla_lm_layer_list *to, const json_t *list);
/* A checked config of settings. */
mhla_status mhla_lm_resolve(mhla_lm_config *c, const mhla_lm_settings *s);

#endif
