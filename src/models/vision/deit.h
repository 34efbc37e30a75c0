/* DeiT with MHLA or one of the attentions beside it: what can be chosen (its config), its parameters by name, its forward
 * pass. deit.c is the paper, deit_config.c reads and writes what can be chosen, deit_model.c makes an architecture of it. */
#ifndef MHLA_MODELS_VISION_DEIT_H
#define MHLA_MODELS_VISION_DEIT_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

#include "file/json.h"
#include "file/recipe.h"
#include "models/attention/grid.h"
#include "models/roles.h"
#include "models/settings.h"

#define MHLA_DEIT_PRESETS "deit_nano|deit_tiny|deit_small|deit_base"

enum { MHLA_NORM_LAYER, MHLA_NORM_RMS };

typedef struct mhla_deit_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int structure;                  /* MHLA_STRUCTURE_* */

    int image[2], channels; /* height, width of what is given to the model */
    int padding[2];         /* zero pixels added above and below, left and right */
    int patch;
    int depth, classes;
    double mlp_ratio;
    int norm; /* of blocks and output */
    double norm_eps;
    int cpe; /* kernel of the depthwise convolution before each block's attention, 0 = none */

    mhla_grid_settings attn; /* dim and heads among them; class_token 0: the mean of all tokens is read out */

    /* How images become inputs: value / 255, minus mean, over deviation; part of the image that an evaluation sees. */
    double mean[3], deviation[3], crop;
} mhla_deit_config;

/* The sizes of a preset in a structure, for an attention. MHLA_EINVAL lists the presets.
 *
 * Equal: image, padding, pooling, norms, MLP and, among MHLA, linear and softmax attention, q/k norm, bias and LePE are the
 * same for all. Focused LA, InLine, MALA and RALA are modules of their authors: what stands under `attn.` is theirs in both
 * structures (a bias of q, k, v, no q/k norm, the convolution, the gate), and so is the size of a head of InLine, 32.
 * Released: as published; of Focused LA, MALA and RALA, of which no DeiT is public, the unpadded image makes the difference,
 * InLine's has a class token besides. */
mhla_status mhla_deit_preset(mhla_deit_config *c, const char *model, int structure, int attention);

/* The keys of config.json: rows as a recipe wants them, without values of their own (presets give those), ended by an
 * empty one. */
const mhla_recipe_row *mhla_deit_rows(void);

/* Preset, then what `given`, a recipe of the rows above with `prefix` before their names, was given. */
mhla_status mhla_deit_from_recipe(mhla_deit_config *c, const mhla_recipe *given, const char *prefix);

/* config.json, ours or timm's, and back: an object with every key (a new reference, NULL without memory). `path` is for messages. */
json_t *mhla_deit_config_tree(const mhla_deit_config *c);
mhla_status mhla_deit_config_read(mhla_deit_config *c, const json_t *tree, const char *path);

/* Sizes fit together? Everything else trusts a checked config. */
mhla_status mhla_deit_config_check(const mhla_deit_config *c);

/* ---- The model ---- */

typedef struct mhla_deit mhla_deit;

/* All parameters zero: mhla_params_init or a file fills them. */
mhla_status mhla_deit_create(mhla_deit **model, const mhla_deit_config *config);
void mhla_deit_free(mhla_deit *model); /* NULL is legal */

const mhla_deit_config *mhla_deit_config_of(const mhla_deit *model);
mhla_params *mhla_deit_params(const mhla_deit *model);

/* What the attention of block i, its projections included, makes of x [B,T,dim]; no residual. For tests and analyses. */
mhla_tensor *mhla_deit_attention(mhla_tape *t, const mhla_deit *model, int i, mhla_tensor *x);

/* logits [B,classes] of images [B,channels,height,width]. */
mhla_tensor *mhla_deit_forward(mhla_tape *t, mhla_deit *model, const mhla_network_run *run, mhla_tensor *images);

/* Multiply-adds of one image: every product at the real number of tokens; or, as the paper counts, the linear layers and
 * convolutions alone, at the tokens that there are without padding. */
int64_t mhla_deit_multiply_adds(const mhla_deit_config *c, int as_paper);
int64_t mhla_deit_tokens(const mhla_deit_config *c); /* padding and class token counted */

#endif
