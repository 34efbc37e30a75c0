/* DeiT with MHLA or one of the attentions beside it: what a model of this family is (its config), its parameters by name, its
 * forward pass. deit.c is the paper; config.c reads and writes what can be chosen. */
#ifndef MHLA_MODELS_DEIT_H
#define MHLA_MODELS_DEIT_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

#include "io/json.h"
#include "io/recipe.h"
#include "models/kinds.h"
#include "nn/nn.h"

enum { MHLA_NORM_LAYER, MHLA_NORM_RMS };

typedef struct mhla_deit_config {
    char model[32]; /* the preset that the sizes come from */
    int structure;
    int attention;

    int image[2], channels; /* height, width of what is given to the model */
    int padding[2];         /* zero pixels added above and below, left and right */
    int patch;
    int dim, depth, heads, classes;
    double mlp_ratio;

    int class_token; /* 1: a token in front of the patches is read out; 0: the mean of all tokens is */
    int norm;        /* of blocks and output */
    double norm_eps;
    int cpe; /* kernel of the depthwise convolution before each block's attention, 0 = none */

    int inner_norm; /* the attention's own LayerNorm, eps 1e-5, after the block's: two in series, as released */
    int qkv_bias;
    int qk_norm; /* RMS norm of q and k over all heads */
    double qk_norm_eps;
    int lepe; /* kernel of the depthwise convolution of v that is added to the attention, 0 = none. Focused LA: its filters
                 are shared by heads (dwc); InLine: each image predicts its own (residual) */
    int gate;  /* MALA, RALA: the result times a fourth part of the projection */
    int rope;  /* MALA, RALA: axial rotary embedding, a class token stays unturned */
    int power; /* Focused LA: of its features */
    double feature_eps, den_eps;
    int blocks[2];   /* MHLA: pieces per axis of the grid of patches */
    int denominator; /* MHLA: mhla_denominator */
    int mix;         /* MHLA: mhla_mix_init */

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

/* config.json and back: an object with every key (a new reference, NULL without memory). `path` is for messages. */
json_t *mhla_deit_config_tree(const mhla_deit_config *c);
mhla_status mhla_deit_config_read(mhla_deit_config *c, const json_t *tree, const char *path);

/* Sizes fit together? Everything else trusts a checked config. */
mhla_status mhla_deit_config_check(const mhla_deit_config *c);

/* ---- The model ---- */

typedef struct mhla_deit mhla_deit;

/* All parameters zero; fill them by mhla_deit_init or from a file. */
mhla_status mhla_deit_create(mhla_deit **model, const mhla_deit_config *config);
void mhla_deit_free(mhla_deit *model); /* NULL is legal */
/* Fresh values, a function of the seed and of each parameter's name. */
mhla_status mhla_deit_init(mhla_deit *model, uint64_t seed);
/* The same for one of its parameters. */
mhla_status mhla_deit_init_param(mhla_deit *model, mhla_param *param, uint64_t seed);

const mhla_deit_config *mhla_deit_config_of(const mhla_deit *model);
mhla_params *mhla_deit_params(const mhla_deit *model);

/* What a forward pass may be told: how much drop path (at the last block, growing from 0 at the first), whether blocks are
 * computed again in the backward pass instead of kept, and where to leave what comes out of each block (depth tensors,
 * then the tokens that are read out) or the rows [B,dim] that the head reads. Zero: none of these. */
typedef struct mhla_deit_run {
    float drop_path;
    int recompute;
    mhla_tensor **trace, **features;
} mhla_deit_run;

/* What the attention of block i, its projections included, makes of x [B,T,dim]; no residual. For tests and analyses. */
mhla_tensor *mhla_deit_attention(mhla_tape *t, const mhla_deit *model, int i, mhla_tensor *x);

/* logits [B,classes] of images [B,channels,height,width]. */
mhla_tensor *mhla_deit_forward(mhla_tape *t, mhla_deit *model, const mhla_deit_run *run, mhla_tensor *images);

/* Multiply-adds of one image: every product at the real number of tokens; or, as the paper counts, the linear layers and
 * convolutions alone, at the tokens that there are without padding. */
int64_t mhla_deit_multiply_adds(const mhla_deit_config *c, int as_paper);
int64_t mhla_deit_tokens(const mhla_deit_config *c); /* padding and class token counted */

#endif
