/* The encoder of umT5, whose rows Wan's videos are conditioned on: a transformer with a table of distances in each layer. umt5.c has the
 * network, umt5_config.c what can be chosen about it and the names of its files, umt5_model.c the files. */
#ifndef MHLA_MODELS_ENCODERS_UMT5_H
#define MHLA_MODELS_ENCODERS_UMT5_H

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/roles.h"
#include "models/settings.h"

/* The keys of Hugging Face's config.json. */
typedef struct mhla_umt5_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int vocabulary, width, layers, heads;
    int head_dim, hidden;  /* d_kv, d_ff */
    int buckets, distance; /* relative_attention_num_buckets, relative_attention_max_distance */
    double eps;
} mhla_umt5_config;

#define MHLA_UMT5_PRESETS "umt5_xxl|umt5_nano"

const mhla_recipe_row *mhla_umt5_rows(void);
mhla_status mhla_umt5_from_recipe(mhla_umt5_config *c, const mhla_recipe *given, const char *prefix);
mhla_status mhla_umt5_config_read(mhla_umt5_config *c, const json_t *tree, const char *path);
json_t *mhla_umt5_config_tree(const mhla_umt5_config *c);

/* ---- Names: Hugging Face's, which are ours, and Wan's ---- */

/* Whose names a file has. 0: it is no encoder of this kind. */
int mhla_umt5_layout_of(int *original, const mhla_safetensors *file);
/* What the parameter is called in such a file. */
void mhla_umt5_name(char name[256], int original, const char *parameter);
/* The sizes of a file without a config.json. */
mhla_status mhla_umt5_config_guess(mhla_umt5_config *c, const mhla_safetensors *file);

/* ---- umt5.c ---- */

typedef struct mhla_umt5 mhla_umt5;

/* lending: matrices have no memory until they are lent (mhla_param_lend). */
mhla_status mhla_umt5_create(mhla_umt5 **model, const mhla_umt5_config *config, int lending, mhla_dtype precision);
void mhla_umt5_free(mhla_umt5 *model);
const mhla_umt5_config *mhla_umt5_config_of(const mhla_umt5 *model);
mhla_params *mhla_umt5_params(const mhla_umt5 *model);

/* Rows [B,T,width] of ids [B,T], of which lengths [B] count; NULL: all. The rest are zeros. All texts go through a layer before the next,
 * so that each matrix is needed once; products are of one text alone. `trace`, which may be NULL, gets [layers] what comes out of each
 * layer, of texts of one length and while the tape records. */
mhla_tensor *mhla_umt5_forward(mhla_tape *t, mhla_umt5 *model, mhla_tensor **trace, const int32_t *ids,
                               const int32_t *lengths, int64_t B, int64_t T);

/* Multiply-adds of a text of so many tokens, every product. */
int64_t mhla_umt5_multiply_adds(const mhla_umt5_config *c, int64_t tokens);

#endif
