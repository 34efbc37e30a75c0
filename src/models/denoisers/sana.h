/* SANA: a denoiser of latents that is told by rows of text what to make. Its blocks have linear attention over the grid, or MHLA in its
 * place, softmax cross attention to the text and a gated convolution; one MLP of the time serves all blocks (adaLN-single).
 *
 *   e = linear2(silu(linear1(sinusoids of the time))),  m = linear(silu(e)) [6D],  y = norm(mlp(text))
 *   shift1, scale1, gate1, shift2, scale2, gate2 = table + m
 *   x = x + gate1 attention(norm(x) (1 + scale1) + shift1)
 *   x = x + cross(x, y)
 *   x = x + gate2 glumb(norm(x) (1 + scale2) + shift2)                                              depth times
 *   answer = linear(norm(x) (1 + scale) + shift),  shift, scale = table + e
 *
 * sana.c has the network, sana_config.c what can be chosen about it, sana_names.c the names of its authors' files, sana_model.c the role. */
#ifndef MHLA_MODELS_DENOISERS_SANA_H
#define MHLA_MODELS_DENOISERS_SANA_H

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/attention/grid.h"
#include "models/glumb.h"
#include "models/model.h"
#include "models/settings.h"

/* ---- sana_config.c: the keys of diffusers' config.json, and MHLA's ---- */

#define MHLA_SANA_PRESETS "sana_nano|sana_600m|sana_1600m|sana15_1600m|sana15_4800m"

typedef struct mhla_sana_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from; "" of another program's file */
    int channels, out_channels;     /* out_channels 0: as many */
    int patch, side;                /* side: of a latent in training, both axes */
    int depth, heads, head_dim;     /* head_dim: numbers of a head; dim = heads * head_dim */
    int cross_heads, cross_head_dim;
    int cross_width; /* of the text after its projection: dim; 0: that */
    int text_width;  /* of a row of text as it comes */
    double mlp_ratio, norm_eps, timestep_scale, dropout;
    int qk_norm;             /* RMS norms of queries and keys over all heads, in both attentions */
    int bias;                /* of q, k and v in the attention over the grid */
    int attention;           /* MHLA_SANA_* */
    mhla_grid_settings attn; /* dim, heads, blocks, .. of it */
} mhla_sana_config;

enum { MHLA_SANA_LINEAR, MHLA_SANA_MHLA };

const mhla_recipe_row *mhla_sana_rows(void);
mhla_status mhla_sana_preset(mhla_sana_config *c, const char *model);
mhla_status mhla_sana_from_recipe(mhla_sana_config *c, const mhla_recipe *given, const char *prefix);
mhla_status mhla_sana_config_read(mhla_sana_config *c, const json_t *tree, const char *path);
json_t *mhla_sana_config_tree(const mhla_sana_config *c);
/* Fills in what follows from other fields, and says what does not fit together. */
mhla_status mhla_sana_settle(mhla_sana_config *c);
/* Can a latent be of this height and width? */
mhla_status mhla_sana_check_size(const mhla_sana_config *c, int64_t height, int64_t width);

static inline int64_t mhla_sana_tokens(const mhla_sana_config *c, int64_t height, int64_t width) {
    return height / c->patch * (width / c->patch);
}
static inline int64_t mhla_sana_hidden(const mhla_sana_config *c) { return (int64_t)(c->mlp_ratio * c->attn.dim); }
static inline int64_t mhla_sana_answers(const mhla_sana_config *c) {
    return c->out_channels ? c->out_channels : c->channels;
}

/* ---- sana.c ---- */

typedef struct mhla_sana_cross {
    mhla_layer q, k, v, out;
    mhla_param *q_norm, *k_norm;
} mhla_sana_cross;

typedef struct mhla_sana_block {
    mhla_param *table; /* [6,D] */
    mhla_grid_attention attn;
    mhla_sana_cross cross;
    mhla_glumb mlp;
} mhla_sana_block;

/* What belongs to a size of latent: made when first seen, kept as long as the model. */
typedef struct mhla_sana_grid {
    struct mhla_sana_grid *next;
    mhla_grid_place place;
} mhla_sana_grid;

typedef struct mhla_sana {
    mhla_sana_config config;
    mhla_params *params;
    mhla_layer patch, time1, time2, time, caption1, caption2, out;
    mhla_param *caption_norm, *table; /* [D], [2,D] */
    mhla_sana_block *blocks;          /* [depth] */
    mhla_plan *cross;                 /* of all cross attentions */
    mhla_sana_grid *grids;
} mhla_sana;

/* What a block is called with; lives on the tape until backward. */
typedef struct mhla_sana_call {
    const mhla_sana *model;
    const mhla_sana_block *b;
    const mhla_grid_place *place;
    mhla_tensor *time, *text; /* [B,6D]; [B,longest,cross_width] */
    const int32_t *lengths;
} mhla_sana_call;

mhla_status mhla_sana_create(mhla_sana **model, const mhla_sana_config *config);
void mhla_sana_free(mhla_sana *model);
/* The parameters of a block, NAME in front. */
void mhla_sana_declare_block(mhla_sana_block *b, mhla_params *ps, const mhla_sana_config *c, const char *name);
mhla_status mhla_sana_cross_plan(mhla_plan **plan, const mhla_sana_config *c);
/* A block, a mhla_sana_call, of x [B,T,D]. */
mhla_tensor *mhla_sana_run_block(mhla_tape *t, const void *call, mhla_tensor *x);
/* The parts of it: the attention over the grid of h [B,T,D], cross attention of x, output layers included. */
mhla_tensor *mhla_sana_attend(mhla_tape *t, const mhla_sana_call *a, mhla_tensor *h);
mhla_tensor *mhla_sana_read_text(mhla_tape *t, const mhla_sana_call *a, mhla_tensor *x);
mhla_tensor *mhla_sana_forward(mhla_tape *t, mhla_sana *m, const mhla_network_run *run, mhla_tensor *x,
                               const float *times, const mhla_condition *condition);
/* Multiply-adds of one sample with `rows` rows of text: every product; as_paper: the linear layers and convolutions alone. */
int64_t mhla_sana_multiply_adds(const mhla_sana_config *c, int64_t height, int64_t width, int64_t rows, int as_paper);

/* ---- sana_names.c ---- */

/* Do the tensors belong to a SANA, under whatever names? */
int mhla_sana_fits_tensors(const mhla_safetensors *file);
/* The config of a file without config.json. */
mhla_status mhla_sana_guess(mhla_sana_config *c, const mhla_safetensors *file);
/* The attention and its blocks by the mixing matrices, where config.json does not name them. */
mhla_status mhla_sana_find_mix(mhla_sana_config *c, const mhla_safetensors *file);
/* Every parameter from the file, under diffusers' names or its authors'. */
mhla_status mhla_sana_load(mhla_params *params, const mhla_safetensors *file);

#endif
