/* What DiT and DiG have in common: the choices about them, what surrounds their blocks (patches, positions, the condition, the final
 * layer), the frame of a block, grids of other sizes, files, the role. What is their own, the MLP of a block and what ends it, is
 * in a row of functions, mhla_frame_kind; dit.c and dig.c are the two.
 *
 *   x = patches + position,  c = silu(time + label)
 *   shift1, scale1, gate1, shift2, scale2, gate2 = linear(c)                                        adaLN-Zero
 *   x = x + gate1 attention(norm(x) (1 + scale1) + shift1),  x = x + gate2 mlp(norm(x) (1 + scale2) + shift2)    depth times
 *   answer = image(linear(norm(x) (1 + scale) + shift)) */
#ifndef MHLA_MODELS_DENOISERS_FRAME_H
#define MHLA_MODELS_DENOISERS_FRAME_H

#include <mhla/mhla.h>

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/attention/grid.h"
#include "models/model.h"
#include "models/settings.h"

/* ---- Choices ---- */

/* Where a depthwise 3x3 convolution ends each block (without residual, from the identity): nowhere; on the grid of patches;
 * or, as released with DiT, on the list of tokens block after block, folded into a square, where neighbours are not the image's. */
enum { MHLA_CPE_NONE, MHLA_CPE_GRID, MHLA_CPE_FOLDED };

/* What the model is trained for; the order of src/diffusion. */
enum { MHLA_PROCESS_LINEAR, MHLA_PROCESS_COSINE, MHLA_PROCESS_FLOW };

/* A field that does not concern the model is 0. */
typedef struct mhla_frame_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int process;                    /* MHLA_PROCESS_* */
    int image[2], channels;         /* height, width, channels of x in training: pixels or latents */
    int patch;
    int depth, classes;
    int learn_sigma;         /* the answer has twice the channels: noise, then variance. Not with flows */
    int null_label;          /* the label table has a row more, `classes`: no class, for guidance */
    int cpe;                 /* MHLA_CPE_* */
    double dropout;          /* of the attention's result, in training */
    mhla_grid_settings attn; /* dim and heads among them; inner_norm comes after the modulation */

    /* DiT */
    int structure; /* MHLA_STRUCTURE_*; released: MHLA as published with the paper, softmax as facebookresearch's DiT */
    double mlp_ratio;
    /* DiG */
    int attention;  /* MHLA_DIG_* */
    int mlp_hidden; /* of the gated MLP; a recipe's 0: two thirds of 4 dim, up to a multiple of 256 */
    int scan;       /* MHLA_SCAN_* */
} mhla_frame_config;

/* A row of a table of settings, and runs of rows that both have. */
#define MHLA_FRAME_FIELD(name, type, kind, member, least, most, choices, help)                                         \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_frame_config, member)                                                                        \
    }
#define MHLA_FRAME_SIZES(F)                                                                                            \
    F("process", TEXT, CHOICE, process, 0, 0, "linear|cosine|flow",                                                    \
      "what it is trained for: a diffusion by its noise levels, or a flow"),                                           \
        F("image", INTS, INT2, image, 1, 16384, NULL, "height, width in training"),                                    \
        F("channels", INT, INT, channels, 1, 64, NULL, "1 grey, 3 colour, 4 latents"),                                 \
        F("patch", INT, INT, patch, 1, 256, NULL, "side of a patch"),                                                  \
        F("dim", INT, INT, attn.dim, 4, 16384, NULL, "width of a token"),                                              \
        F("depth", INT, INT, depth, 1, 256, NULL, "blocks of the transformer"),                                        \
        F("heads", INT, INT, attn.heads, 1, 256, NULL, "attention heads"),                                             \
        F("classes", INT, INT, classes, 1, 1000000, NULL, "how many classes")
#define MHLA_FRAME_ANSWER(F)                                                                                           \
    F("learn_sigma", BOOL, BOOL, learn_sigma, 0, 0, NULL,                                                              \
      "also predict the variance: the output has twice the channels"),                                                 \
        F("null_label", BOOL, BOOL, null_label, 0, 0, NULL, "an extra label for \"no class\", which guidance needs")
#define MHLA_FRAME_MHLA(F)                                                                                             \
    F("dropout", REAL, REAL, dropout, 0, 0.99, NULL, "of the attention's result, in training"),                        \
        F("feature_eps", REAL, REAL, attn.feature_eps, 0, 1, NULL, "added to relu features"),                          \
        F("den_eps", REAL, REAL, attn.den_eps, 0, 1, NULL, "added to the denominator"),                                \
        F("blocks", INTS, INT2, attn.blocks, 1, 256, NULL, "MHLA: pieces per axis of the grid of patches"),            \
        F("denominator", TEXT, CHOICE, attn.denominator, 0, 0, "eq4|released|none", "MHLA: which denominator"),        \
        F("mix", TEXT, MIX, attn.mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",                    \
          "MHLA: the mixing matrix before training")

/* A published or small size. */
typedef struct mhla_frame_size {
    const char *name;
    int image, channels, patch, dim, depth, heads, classes, blocks;
} mhla_frame_size;
/* The sizes of `model` out of a list, with what all have: MHLA by Eq. 4, relu features, no convolutions. MHLA_EINVAL says what
 * there is. */
mhla_status mhla_frame_preset(mhla_frame_config *c, const mhla_frame_size *sizes, int count, const char *known,
                              const char *model, int process);

/* ---- The network ---- */

typedef struct mhla_frame mhla_frame;

/* Under the names of the published checkpoints. */
typedef struct mhla_frame_block {
    mhla_grid_attention attn;
    mhla_layer up, down; /* of the MLP */
    mhla_layer ada;      /* [6D,D] */
    mhla_layer cpe;      /* [D,1,3,3] */
} mhla_frame_block;

/* What belongs to a size of image: made when first seen, kept as long as the model. */
typedef struct mhla_frame_grid {
    struct mhla_frame_grid *next;
    mhla_grid_place place;
    mhla_params *own; /* holds `position` where it is not the checkpoint's */
    mhla_param *position;
    int32_t *order; /* [orders][T] of the kind's, or NULL */
} mhla_frame_grid;

/* What a block is called with; lives on the tape until backward. */
typedef struct mhla_frame_call {
    const mhla_frame *model;
    const mhla_frame_block *b;
    const mhla_frame_grid *g;
    int index;      /* of the block */
    mhla_tensor *c; /* [B,D] silu(time + label) */
} mhla_frame_call;

typedef struct mhla_frame_kind {
    const char *name, *model_type, *standard; /* "DiT"; of config.json; the preset where a recipe names none */
    const mhla_settings *table;
    int first; /* fields of the table that choose the preset; the rest change it */
    /* The preset of what `chosen` has in these fields. */
    mhla_status (*preset)(mhla_frame_config *c, const mhla_frame_config *chosen);
    void (*settle)(mhla_frame_config *c); /* fills in what follows from other fields; NULL: nothing does */
    /* Do the fields of the kind fit together, and can an image have H x W patches? */
    mhla_status (*check)(const mhla_frame_config *c, int64_t H, int64_t W);
    /* The preset of a model without config.json, and what its tensors tell of a block; `c` has its dim. */
    mhla_status (*guess)(mhla_frame_config *c, const mhla_safetensors *file);

    int (*orders)(const mhla_frame_config *c); /* orders of tokens that a grid has */
    void (*order)(int32_t *order, const mhla_frame_config *c, int H, int W);
    int64_t (*mlp_weights)(const mhla_frame_config *c); /* numbers in the MLP's matrices */
    void (*declare_mlp)(mhla_frame_block *b, mhla_params *ps, const mhla_frame_config *c, const char *name);
    mhla_tensor *(*mlp)(mhla_tape *t, const mhla_frame_block *b, mhla_tensor *h);
    mhla_tensor *(*convolve)(mhla_tape *t, const mhla_frame_call *a, mhla_tensor *x); /* the CPE */
    /* The tokens that block i - 1 left as block i wants them; i is 1 to depth, where the final layer is. NULL: as they are. */
    mhla_tensor *(*arrange)(mhla_tape *t, const mhla_frame_grid *g, const mhla_frame_config *c, int i, mhla_tensor *x);
    void (*view)(const mhla_frame *m, mhla_token_view *view); /* what analyses need beyond the grid; NULL: nothing */
} mhla_frame_kind;

struct mhla_frame {
    const mhla_frame_kind *kind;
    mhla_frame_config config;
    mhla_params *params;
    mhla_frame_grid *grids;
    mhla_param *pos_embed;
    mhla_layer patch, time0, time2, final, final_ada;
    mhla_param *labels;       /* [classes + 1, D] */
    mhla_frame_block *blocks; /* [depth] */
    int turned;               /* DiG: the file's weights are of four scans and become those of the raster */
};

/* Sizes fit together? Everything else trusts a checked config. */
mhla_status mhla_frame_check(const mhla_frame_kind *kind, const mhla_frame_config *c);
/* Can x be of this height and width, too? Any multiple of the patch that the kind does not refuse. */
mhla_status mhla_frame_check_size(const mhla_frame_kind *kind, const mhla_frame_config *c, int64_t height,
                                  int64_t width);
/* Preset, then what `given`, a recipe with `prefix` before the names of the kind's table, was given. */
mhla_status mhla_frame_from_recipe(mhla_frame_config *c, const mhla_frame_kind *kind, const mhla_recipe *given,
                                   const char *prefix);
/* config.json and back: an object with every key (a new reference, NULL without memory). `path` is for messages. */
json_t *mhla_frame_config_tree(const mhla_frame_config *c, const mhla_frame_kind *kind);
mhla_status mhla_frame_config_read(mhla_frame_config *c, const mhla_frame_kind *kind, const json_t *tree,
                                   const char *path);
/* What a bare file is a model of. MHLA_EDATA for what is none of the kind. */
mhla_status mhla_frame_guess(mhla_frame_config *c, const mhla_frame_kind *kind, const mhla_safetensors *file);
/* A tensor of a file with that many axes, each of a size that can be. */
mhla_status mhla_frame_need(const mhla_stored **tensor, const mhla_safetensors *file, const char *name, int rank);

/* All parameters zero but the position table: mhla_params_init or a file fills them. */
mhla_status mhla_frame_create(mhla_frame **model, const mhla_frame_kind *kind, const mhla_frame_config *config);
void mhla_frame_free(mhla_frame *model); /* NULL is legal */
/* The grid of an image of this size, made when first seen. */
mhla_status mhla_frame_grid_of(const mhla_frame_grid **found, mhla_frame *m, int64_t height, int64_t width);

/* [B, channels or 2*channels, H, W] of noisy x [B,channels,H,W] at times [B] (0..1000) with labels [B] (0..classes-1, or
 * `classes` where there is a null label), which live until backward. H and W may be others than in config (see
 * mhla_frame_check_size). What comes out for a sample is the same, bit by bit, whatever the batch around it and the number of
 * threads. */
mhla_tensor *mhla_frame_forward(mhla_tape *t, mhla_frame *model, const mhla_network_run *run, mhla_tensor *x,
                                const float *times, const int32_t *labels);
/* The parameters of block i. */
void mhla_frame_declare_block(mhla_frame_block *b, const mhla_frame *m, int i);
/* A block, a mhla_frame_call, of x [B,T,D]; and what its attention makes of h [B,T,D], output layer and dropout included. */
mhla_tensor *mhla_frame_run_block(mhla_tape *t, const void *call, mhla_tensor *x);
mhla_tensor *mhla_frame_attend(mhla_tape *t, const mhla_frame_call *a, mhla_tensor *h);

int64_t mhla_frame_tokens(const mhla_frame_config *c, int64_t height, int64_t width);
/* Multiply-adds of one sample of this height and width: every product. as_paper: the linear layers and convolutions alone. */
int64_t mhla_frame_multiply_adds(const mhla_frame_kind *kind, const mhla_frame_config *c, int64_t height, int64_t width,
                                 int as_paper);

/* ---- For the rows in the list of architectures: `net` is a mhla_frame ---- */

mhla_status mhla_frame_create_net(void **net, const mhla_frame_kind *kind, const mhla_recipe *given,
                                  const char *prefix);
mhla_status mhla_frame_read(void **net, const mhla_frame_kind *kind, const mhla_evidence *e);
void mhla_frame_free_net(void *net);
mhla_params *mhla_frame_params(const void *net);
json_t *mhla_frame_tree(const void *net);
void mhla_frame_query(const mhla_model *model, mhla_model_info *info);
/* Files with this model_type, or without config.json and with the tensors of a frame. */
int mhla_frame_fits(const mhla_evidence *e, const char *model_type);
extern const mhla_denoiser mhla_frame_denoiser;

#define MHLA_FRAME_ROWS                                                                                                \
    .kind = "diffusion", .what = "a diffusion model", .free = mhla_frame_free_net, .params = mhla_frame_params,        \
    .tree = mhla_frame_tree, .query = mhla_frame_query, .denoiser = &mhla_frame_denoiser

#endif
