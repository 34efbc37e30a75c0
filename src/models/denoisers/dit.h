/* DiT, the diffusion transformer, with MHLA, linear or softmax attention: what a model of this family is (its config), its
 * parameters by name, its forward pass. dit.c is the paper; dit_config.c has what can be chosen. */
#ifndef MHLA_MODELS_DENOISERS_DIT_H
#define MHLA_MODELS_DENOISERS_DIT_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/attention/grid.h"
#include "models/roles.h"
#include "models/settings.h"

/* Where a depthwise 3x3 convolution ends each block (without residual, from the identity): nowhere; on the grid of patches;
 * or, as released, on the list of tokens block after block, folded into a square, where neighbours are not the image's. */
enum { MHLA_DIT_CPE_NONE, MHLA_DIT_CPE_GRID, MHLA_DIT_CPE_FOLDED };

/* What the model is trained for; the order of src/diffusion. */
enum { MHLA_DIT_LINEAR, MHLA_DIT_COSINE, MHLA_DIT_FLOW };

typedef struct mhla_dit_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int structure; /* MHLA_STRUCTURE_*; released: MHLA as published with the paper, softmax as facebookresearch's DiT */
    int process;   /* MHLA_DIT_LINEAR ... */

    int image[2], channels; /* height, width, channels of x in training: pixels or latents */
    int patch;
    int depth, classes;
    double mlp_ratio;
    int learn_sigma; /* the answer has twice the channels: noise, then variance. Not with flows */
    int null_label;  /* the label table has a row more, `classes`: no class, for guidance */

    int cpe;                 /* MHLA_DIT_CPE_* */
    double dropout;          /* of the attention's result, in training */
    mhla_grid_settings attn; /* dim and heads among them; inner_norm comes after the modulation */
} mhla_dit_config;

#define MHLA_DIT_PRESETS                                                                                               \
    "dit_nano|dit_micro|dit_s_2|dit_s_4|dit_s_8|dit_b_2|dit_b_4|dit_b_8|dit_l_2|dit_l_4|dit_l_8|dit_xl_2|dit_xl_4|"    \
    "dit_xl_8"

/* The sizes of a preset in a structure, for an attention and a process. MHLA_EINVAL lists the presets. */
mhla_status mhla_dit_preset(mhla_dit_config *c, const char *model, int structure, int attention, int process);

/* The keys of config.json: rows as a recipe wants them, without values of their own (presets give those), ended by an
 * empty one. */
const mhla_recipe_row *mhla_dit_rows(void);

/* Preset, then what `given`, a recipe of the rows above with `prefix` before their names, was given. */
mhla_status mhla_dit_from_recipe(mhla_dit_config *c, const mhla_recipe *given, const char *prefix);

/* config.json and back: an object with every key (a new reference, NULL without memory). `path` is for messages. */
json_t *mhla_dit_config_tree(const mhla_dit_config *c);
mhla_status mhla_dit_config_read(mhla_dit_config *c, const json_t *tree, const char *path);

/* Sizes fit together? Everything else trusts a checked config. */
mhla_status mhla_dit_config_check(const mhla_dit_config *c);
/* Can x be of this height and width, too? Any multiple of the patch with no more blocks than patches. */
mhla_status mhla_dit_check_size(const mhla_dit_config *c, int64_t height, int64_t width);

/* ---- The model ---- */

typedef struct mhla_dit mhla_dit;

/* All parameters zero but the position table: mhla_params_init or a file fills them. */
mhla_status mhla_dit_create(mhla_dit **model, const mhla_dit_config *config);
void mhla_dit_free(mhla_dit *model); /* NULL is legal */
const mhla_dit_config *mhla_dit_config_of(const mhla_dit *model);
mhla_params *mhla_dit_params(const mhla_dit *model);

/* [B, channels or 2*channels, H, W] of noisy x [B,channels,H,W] at times [B] (0..1000) with labels [B] (0..classes-1, or
 * `classes` where there is a null label), which live until backward. H and W may be others than in config (see
 * mhla_dit_check_size): the position table and the plan of that grid are made when first needed, and kept. What comes out
 * for a sample is the same, bit by bit, whatever the batch around it and the number of threads. */
mhla_tensor *mhla_dit_forward(mhla_tape *t, mhla_dit *model, const mhla_network_run *run, mhla_tensor *x,
                              const float *times, const int32_t *labels);

/* Multiply-adds of one sample of this height and width: every product. as_paper: the linear layers and convolutions alone. */
int64_t mhla_dit_multiply_adds(const mhla_dit_config *c, int64_t height, int64_t width, int as_paper);
int64_t mhla_dit_tokens(const mhla_dit_config *c, int64_t height, int64_t width);

/* What a model without config.json is, by its tensors: facebookresearch's DiT, or MHLA's as released. MHLA_EDATA for anything
 * else. */
mhla_status mhla_dit_config_guess(mhla_dit_config *config, const mhla_safetensors *file);

#endif
