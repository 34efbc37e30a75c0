/* The autoencoder of Stable Diffusion, AutoencoderKL: pixels to latents of an 8th of the size and back. sd.c has the network, sd_config.c
 * what can be chosen about it, sd_names.c the names of the published files. */
#ifndef MHLA_MODELS_AUTOENCODERS_SD_H
#define MHLA_MODELS_AUTOENCODERS_SD_H

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/roles.h"
#include "models/settings.h"

/* The keys of diffusers' config.json. */
typedef struct mhla_sd_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int in_channels, out_channels, latent_channels;
    int widths
        [MHLA_SETTING_LIST_MOST]; /* block_out_channels: of each level, ended by 0; each halves the sides but the last */
    int layers, groups;           /* layers_per_block, norm_num_groups */
    int attention, quant, post_quant; /* mid_block_add_attention, use_quant_conv, use_post_quant_conv */
    int side;                         /* sample_size */
    double scale, shift;              /* a diffusion sees (z - shift) * scale */
    int encoder, decoder;             /* files may have one of them only */
} mhla_sd_config;

#define MHLA_SD_PRESETS "sd_vae|sd_vae_nano|kl_f4|kl_f8"

const mhla_recipe_row *mhla_sd_rows(void);
mhla_status mhla_sd_from_recipe(mhla_sd_config *c, const mhla_recipe *given, const char *prefix);
mhla_status mhla_sd_config_read(mhla_sd_config *c, const json_t *tree, const char *path);
json_t *mhla_sd_config_tree(const mhla_sd_config *c);
mhla_status mhla_sd_config_check(const mhla_sd_config *c);
static inline int mhla_sd_levels(const mhla_sd_config *c) {
    int n = 0;
    while (n < MHLA_SETTING_LIST_MOST && c->widths[n]) n++;
    return n;
}
static inline int mhla_sd_factor(const mhla_sd_config *c) {
    const int levels = mhla_sd_levels(c);
    return levels > 1 ? 1 << (levels - 1) : 1;
}

/* ---- sd_names.c ---- */

typedef enum mhla_sd_layout {
    MHLA_SD_CURRENT,   /* diffusers: ...attentions.0.to_q, which are our names */
    MHLA_SD_PUBLISHED, /* as diffusers had them when the files were published: ...attentions.0.query */
    MHLA_SD_ORIGINAL   /* latent diffusion: encoder.down.0.block.0 */
} mhla_sd_layout;

/* Whose names a file has, and what stands in front of each. 0: it is no autoencoder of this kind. */
int mhla_sd_layout_of(mhla_sd_layout *layout, const char **prefix, const mhla_safetensors *file);
/* What the parameter is called in such a file with so many levels. */
void mhla_sd_name(char name[256], mhla_sd_layout layout, const char *prefix, int levels, const char *parameter);
/* What the halves of a file are, and without a config.json its sizes. */
mhla_status mhla_sd_config_complete(mhla_sd_config *c, const mhla_safetensors *file, int guess);
/* Every parameter from the file, whatever its names. */
mhla_status mhla_sd_load(mhla_params *params, const mhla_sd_config *c, const mhla_safetensors *file);

/* ---- sd.c ---- */

typedef struct mhla_sd mhla_sd;

mhla_status mhla_sd_create(mhla_sd **model, const mhla_sd_config *config);
void mhla_sd_free(mhla_sd *model);
const mhla_sd_config *mhla_sd_config_of(const mhla_sd *model);
mhla_params *mhla_sd_params(const mhla_sd *model);
void mhla_sd_rescale(mhla_sd *model, double scale); /* scaling_factor */

/* Mean and log variance [B,2*latents,H/f,W/f] of images [B,in,H,W], f the factor; images [B,out,f*H,f*W] of latents [B,latents,H,W].
 * trace, which may be NULL, gets tokens: of the decoder conv_in, the middle, each level. */
mhla_tensor *mhla_sd_encode(mhla_tape *t, mhla_sd *model, mhla_tensor *images);
mhla_tensor *mhla_sd_decode(mhla_tape *t, mhla_sd *model, mhla_tensor **trace, mhla_tensor *latents);

/* Multiply-adds of an image of H x W pixels, encoded or decoded: every product; convolutions at borders as inside. */
int64_t mhla_sd_multiply_adds(const mhla_sd_config *c, int64_t H, int64_t W, int decode);

#endif
