/* The deep compression autoencoder of SANA, AutoencoderDC: pixels to latents of a 32nd of the size and back. dc.c has the network,
 * dc_config.c what can be chosen about it, dc_names.c the names of the published files. */
#ifndef MHLA_MODELS_AUTOENCODERS_DC_H
#define MHLA_MODELS_AUTOENCODERS_DC_H

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/roles.h"
#include "models/settings.h"

enum { MHLA_DC_STAGES = MHLA_SETTING_LIST_MOST, MHLA_DC_SCALES = 4 };

/* A half's stages, from pixels to latents; a width of 0 ends them. */
typedef struct mhla_dc_stages {
    int widths[MHLA_DC_STAGES];  /* encoder_block_out_channels; each stage halves the sides but the last */
    int layers[MHLA_DC_STAGES];  /* encoder_layers_per_block */
    int attends[MHLA_DC_STAGES]; /* encoder_block_types: EfficientViTBlock, not ResBlock */
    int scales[MHLA_DC_STAGES][MHLA_DC_SCALES]; /* encoder_qkv_multiscales: sides of depthwise kernels, ended by 0 */
} mhla_dc_stages;

/* The keys of diffusers' config.json. */
typedef struct mhla_dc_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int channels, latents;          /* in_channels, latent_channels */
    int head_dim;                   /* attention_head_dim */
    mhla_dc_stages encoder, decoder;
    int shuffle,
        unshuffle; /* upsample_block_type: pixel_shuffle, not interpolate; downsample_block_type: pixel_unshuffle, not conv */
    int out_shortcut, in_shortcut; /* encoder_out_shortcut, decoder_in_shortcut */
    int end;                       /* decoder_conv_act_fn: silu, not relu */
    int side;                      /* sample_size, which diffusers does not have */
    double scale;                  /* a diffusion sees latents times this */
    int encodes, decodes;          /* files may have one half only */
} mhla_dc_config;

#define MHLA_DC_PRESETS "dc_ae|dc_ae_nano"

const mhla_recipe_row *mhla_dc_rows(void);
mhla_status mhla_dc_preset(mhla_dc_config *c, const char *model);
mhla_status mhla_dc_from_recipe(mhla_dc_config *c, const mhla_recipe *given, const char *prefix);
/* tree NULL, or one without sizes: the published autoencoder. */
mhla_status mhla_dc_config_read(mhla_dc_config *c, const json_t *tree, const char *path);
json_t *mhla_dc_config_tree(const mhla_dc_config *c);
mhla_status mhla_dc_config_check(const mhla_dc_config *c);
int mhla_dc_count(const mhla_dc_stages *s);
static inline int mhla_dc_factor(const mhla_dc_config *c) { return 1 << (mhla_dc_count(&c->encoder) - 1); }

/* ---- dc_names.c ---- */

/* Are these tensors such an autoencoder's, under names of diffusers, which are ours, or its authors'? */
int mhla_dc_fits_tensors(const mhla_safetensors *file);
/* Which halves a file has, and with `guess`, for want of a config.json, its sizes. */
mhla_status mhla_dc_config_complete(mhla_dc_config *c, const mhla_safetensors *file, int guess);
/* Every parameter from the file, whatever its names. */
mhla_status mhla_dc_load(mhla_params *params, const mhla_safetensors *file);

/* ---- dc.c ---- */

typedef struct mhla_dc mhla_dc;

mhla_status mhla_dc_create(mhla_dc **model, const mhla_dc_config *config);
void mhla_dc_free(mhla_dc *model);
const mhla_dc_config *mhla_dc_config_of(const mhla_dc *model);
mhla_params *mhla_dc_params(const mhla_dc *model);
void mhla_dc_rescale(mhla_dc *model, double scale); /* scaling_factor */

/* Latents [B,latents,H/f,W/f] of images [B,channels,H,W], f the factor, and images of latents. trace, which may be NULL, gets tokens: of the
 * decoder conv_in, the attention of the first block of the last stage (NULL: it has none), the stages from the last to the first. */
mhla_tensor *mhla_dc_encode(mhla_tape *t, mhla_dc *model, mhla_tensor *images);
mhla_tensor *mhla_dc_decode(mhla_tape *t, mhla_dc *model, mhla_tensor **trace, mhla_tensor *latents);

/* Multiply-adds of an image of H x W pixels, encoded or decoded: every product; convolutions at borders as inside. */
int64_t mhla_dc_multiply_adds(const mhla_dc_config *c, int64_t H, int64_t W, int decode);

#endif
