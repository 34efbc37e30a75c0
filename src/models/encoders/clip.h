/* CLIP: a tower for images and one for texts, which end in vectors of one length that can be compared. clip.c has the networks,
 * clip_config.c what can be chosen about them, clip_names.c the names of the published files. */
#ifndef MHLA_MODELS_ENCODERS_CLIP_H
#define MHLA_MODELS_ENCODERS_CLIP_H

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/roles.h"
#include "models/settings.h"

typedef struct mhla_clip_tower {
    int width, layers, heads, hidden; /* hidden: of the MLP */
    int activation;                   /* an index of "quick_gelu|gelu" */
    double eps;
} mhla_clip_tower;

typedef struct mhla_clip_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from; "": another program's */
    mhla_clip_tower text, image;
    int vocabulary, positions; /* of a text */
    int side, patch, channels; /* of an image, pixels */
    int dims;                  /* of the vectors */
    double mean[3], deviation[3];
} mhla_clip_config;

#define MHLA_CLIP_PRESETS "clip_vit_b32|clip_vit_b16|clip_vit_l14|clip_nano"

/* ---- clip_config.c ---- */

const mhla_recipe_row *mhla_clip_rows(void);
mhla_status mhla_clip_from_recipe(mhla_clip_config *c, const mhla_recipe *given, const char *prefix);
/* A config.json of Hugging Face's CLIPModel; one of open_clip, of which tensors say the rest. */
mhla_status mhla_clip_config_read(mhla_clip_config *c, const json_t *tree, const char *path);
mhla_status mhla_clip_open_config_read(mhla_clip_config *c, const json_t *tree, const char *path);
json_t *mhla_clip_config_tree(const mhla_clip_config *c);
mhla_status mhla_clip_config_check(const mhla_clip_config *c);

/* ---- clip_names.c ---- */

/* Are these the tensors of a CLIP? By the names of Hugging Face, or of OpenAI and open_clip. */
int mhla_clip_fits(const mhla_safetensors *file);
/* Without a config.json: OpenAI's sizes, as far as the tensors do not say others. */
mhla_status mhla_clip_config_guess(mhla_clip_config *c, const mhla_safetensors *file);
/* Every parameter from the file, whatever its names. */
mhla_status mhla_clip_load(mhla_params *params, const mhla_clip_config *c, const mhla_safetensors *file);

/* ---- clip.c ---- */

typedef struct mhla_clip mhla_clip;

mhla_status mhla_clip_create(mhla_clip **net, const mhla_clip_config *config); /* parameters are zeros */
void mhla_clip_free(mhla_clip *m);
const mhla_clip_config *mhla_clip_config_of(const mhla_clip *m);
mhla_params *mhla_clip_params(const mhla_clip *m);
/* Vectors [B,dims] of ids [B,positions], which live until the tape begins anew, and of pixels [B,3,side,side], value / 255 minus mean
 * over deviation. trace, unless NULL, gets the rows before the first layer and behind each [layers + 1]. */
mhla_tensor *mhla_clip_texts(mhla_tape *t, mhla_clip *m, const int32_t *ids, int64_t B, mhla_tensor **trace);
mhla_tensor *mhla_clip_images(mhla_tape *t, mhla_clip *m, mhla_tensor *pixels, mhla_tensor **trace);
int64_t mhla_clip_multiply_adds(const mhla_clip_config *c); /* of an image and a text */

#endif
