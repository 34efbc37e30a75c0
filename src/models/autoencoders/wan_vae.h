/* The autoencoder of Wan, AutoencoderKLWan: clips of 1 + 4n frames to latents of 1 + n frames of an 8th of the size, and back. wan_vae.c has
 * the network, wan_vae_config.c what can be chosen about it, wan_vae_names.c the names of the published files. */
#ifndef MHLA_MODELS_AUTOENCODERS_WAN_VAE_H
#define MHLA_MODELS_AUTOENCODERS_WAN_VAE_H

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/model.h"
#include "models/settings.h"

enum { MHLA_WAN_VAE_LATENTS = 256 };

/* The keys of diffusers' config.json. */
typedef struct mhla_wan_vae_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int in_channels, out_channels;
    int base, latents;                  /* base_dim, z_dim */
    int widths[MHLA_SETTING_LIST_MOST]; /* dim_mult: of each level, times base; each halves the sides but the last */
    int layers;                         /* num_res_blocks of a level; one more in the decoder */
    int time[MHLA_SETTING_LIST_MOST];   /* temperal_downsample: levels that halve the number of frames, too */
    int side;                           /* sample_size, which diffusers does not have */
    float mean[MHLA_WAN_VAE_LATENTS], deviation[MHLA_WAN_VAE_LATENTS]; /* a diffusion sees (z - mean) / deviation */
    int encoder, decoder;                                              /* files may have one of them only */
} mhla_wan_vae_config;

#define MHLA_WAN_VAE_PRESETS "wan_vae|wan_vae_nano"

const mhla_recipe_row *mhla_wan_vae_rows(void);
mhla_status mhla_wan_vae_from_recipe(mhla_wan_vae_config *c, const mhla_recipe *given, const char *prefix);
mhla_status mhla_wan_vae_config_read(mhla_wan_vae_config *c, const json_t *tree, const char *path);
json_t *mhla_wan_vae_config_tree(const mhla_wan_vae_config *c);
mhla_status mhla_wan_vae_config_check(const mhla_wan_vae_config *c);
/* Levels, pixels per latent on each side, frames per latent behind the first. */
int mhla_wan_vae_levels(const mhla_wan_vae_config *c);
static inline int mhla_wan_vae_factor(const mhla_wan_vae_config *c) { return 1 << (mhla_wan_vae_levels(c) - 1); }
int mhla_wan_vae_frames(const mhla_wan_vae_config *c);

/* ---- wan_vae_names.c ---- */

typedef enum mhla_wan_vae_layout {
    MHLA_WAN_VAE_CURRENT, /* diffusers: encoder.down_blocks.0.conv1, which are our names */
    MHLA_WAN_VAE_ORIGINAL /* encoder.downsamples.0.residual.2 */
} mhla_wan_vae_layout;

/* Whose names a file has. 0: it is no autoencoder of this kind. */
int mhla_wan_vae_layout_of(mhla_wan_vae_layout *layout, const mhla_safetensors *file);
/* What the parameter is called in such a file. */
void mhla_wan_vae_name(char name[256], mhla_wan_vae_layout layout, const mhla_wan_vae_config *c, const char *parameter);
/* What the halves of a file are, and without a config.json its sizes. */
mhla_status mhla_wan_vae_config_complete(mhla_wan_vae_config *c, const mhla_safetensors *file, int guess);
/* Every parameter from the file, whatever its names. */
mhla_status mhla_wan_vae_load(mhla_params *params, const mhla_wan_vae_config *c, const mhla_safetensors *file);

/* ---- wan_vae.c ---- */

typedef struct mhla_wan_vae mhla_wan_vae;

mhla_status mhla_wan_vae_create(mhla_wan_vae **model, const mhla_wan_vae_config *config);
void mhla_wan_vae_free(mhla_wan_vae *v);
const mhla_wan_vae_config *mhla_wan_vae_config_of(const mhla_wan_vae *v);
mhla_params *mhla_wan_vae_params(const mhla_wan_vae *v);

/* Is shown each frame of tokens [B,H*W,C] that a part of the network makes, by diffusers' names. */
typedef struct mhla_wan_vae_watch {
    void (*fn)(void *user, const char *name, int level, const mhla_tensor *x, int64_t H, int64_t W);
    void *user;
} mhla_wan_vae_watch;

/* Mean and log variance [B,2*latents,1+n,H/8,W/8] of clips [B,in,1+4n,H,W]; clips of latents. A clip goes through frame by frame; while
 * the tape does not record, each convolution remembers two frames, so that memory hardly grows with the clip. watch may be NULL. */
mhla_tensor *mhla_wan_vae_encode(mhla_tape *t, mhla_wan_vae *v, const mhla_wan_vae_watch *watch, mhla_tensor *clip);
mhla_tensor *mhla_wan_vae_decode(mhla_tape *t, mhla_wan_vae *v, const mhla_wan_vae_watch *watch, mhla_tensor *latents);

/* Multiply-adds of a clip, every product; convolutions at borders as inside. */
int64_t mhla_wan_vae_multiply_adds(const mhla_wan_vae_config *c, mhla_extent extent, int decode);

#endif
