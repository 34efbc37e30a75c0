/* VLT, the hierarchical backbone of RALA's authors, as a classifier: four stages on ever smaller grids, linear attention in the
 * first two (MHLA, RALA or MALA), softmax attention in the others. vlt.c is the network, vlt_config.c what can be chosen,
 * vlt_model.c makes an architecture of it. */
#ifndef MHLA_MODELS_VISION_VLT_H
#define MHLA_MODELS_VISION_VLT_H

#include <mhla/mhla.h>
#include <stdint.h>

#include "file/json.h"
#include "file/recipe.h"
#include "models/attention/grid.h"
#include "models/roles.h"
#include "models/settings.h"

#define MHLA_VLT_PRESETS                                                                                               \
    "vlt_nano|mhla_vlt_tiny|mhla_vlt_small|ravlt_tiny|ravlt_small|ravlt_base|ravlt_large|mavit_tiny|mavit_small|"      \
    "mavit_base|mavit_large"

enum { MHLA_VLT_STAGES = MHLA_STAGES };

typedef struct mhla_vlt_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int attention;                  /* of stages 1 and 2: an index of mhla|rala|mala */

    int image[2], channels; /* height, width of what is given to the model */
    int dims[4], depths[4], heads[4];
    double mlp_ratios[4], layer_scale[4]; /* layer_scale: what it starts from, 0 = none */
    int projection, classes;              /* width of the layer before the last */

    int gate, rope, lepe, qk_norm; /* of the attention, see mhla_grid_settings */
    double qk_norm_eps;
    /* MHLA in stages 1 and 2 */
    int blocks[4]; /* rows and columns of stage 1, of stage 2 */
    int phi;       /* mhla_feature: relu or elu */
    double feature_eps, den_eps;
    int denominator, mix;
    double mix_low;
    int mix_decay;

    double mean[3], deviation[3], crop;
} mhla_vlt_config;

mhla_status mhla_vlt_preset(mhla_vlt_config *c, const char *model);
const mhla_recipe_row *mhla_vlt_rows(void);
/* Preset, then what `given`, a recipe of the rows above with `prefix` before their names, was given. */
mhla_status mhla_vlt_from_recipe(mhla_vlt_config *c, const mhla_recipe *given, const char *prefix);
json_t *mhla_vlt_config_tree(const mhla_vlt_config *c);
mhla_status mhla_vlt_config_read(mhla_vlt_config *c, const json_t *tree, const char *path);
/* Sizes fit together? Everything else trusts a checked config. */
mhla_status mhla_vlt_config_check(const mhla_vlt_config *c);

/* The grid of stage s = 0..3, or (s = -1) what the first convolution makes of the image. */
void mhla_vlt_grid(int grid[2], const mhla_vlt_config *c, int s);
/* The attention of stage s. */
mhla_grid_settings mhla_vlt_attention_of(const mhla_vlt_config *c, int s);

/* ---- The model ---- */

typedef struct mhla_vlt mhla_vlt;

/* All parameters zero: mhla_params_init or a file fills them. */
mhla_status mhla_vlt_create(mhla_vlt **model, const mhla_vlt_config *config);
void mhla_vlt_free(mhla_vlt *model); /* NULL is legal */
const mhla_vlt_config *mhla_vlt_config_of(const mhla_vlt *model);
mhla_params *mhla_vlt_params(const mhla_vlt *model);

/* logits [B,classes] of images [B,channels,height,width]. With MHLA_TAPE_DROP batch norms take the statistics of the batch. */
mhla_tensor *mhla_vlt_forward(mhla_tape *t, mhla_vlt *model, const mhla_network_run *run, mhla_tensor *images);

/* Multiply-adds of one image: every product; or, as papers count, the convolutions alone. */
int64_t mhla_vlt_multiply_adds(const mhla_vlt_config *c, int as_paper);

#endif
