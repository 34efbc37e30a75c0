/* Wan 2.1: a transformer that denoises clips which a text describes, with softmax attention as published, with MHLA, or with linear
 * attention. x is [B,channels,frames,height,width], latents or pixels; tokens are patches of one frame, by frames, rows, columns.
 *
 *   e = linear2(silu(linear0(sinusoids of the time))),  m = linear(silu(e)) [6,D]
 *   y = mlp(rows of text, zeros behind them up to text_length)       or, of a model of classes, a row of a table
 *   shift1, scale1, gate1, shift2, scale2, gate2 = modulation + m                                   a block, depth times
 *   x = x + gate1 attention(norm(x) (1 + scale1) + shift1),  x = x + cross(norm3(x), y)
 *   x = x + gate2 mlp(norm(x) (1 + scale2) + shift2)
 *   velocity = clip(linear(norm(x) (1 + scale) + shift)),  shift, scale = modulation + e
 *
 * The zeros behind a text are all the same row, and every block attends to them: they are one row that counts as many. */
#ifndef MHLA_MODELS_DENOISERS_WAN_H
#define MHLA_MODELS_DENOISERS_WAN_H

#include "models/attention/grid.h"
#include "models/model.h"
#include "models/settings.h"

/* ---- wan_config.c ---- */

#define MHLA_WAN_PRESETS "wan_nano|wan_micro|wan_1300m"

enum { MHLA_WAN_DEPTH = 256 };

typedef struct mhla_wan_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from */
    int attention;                  /* MHLA_GRID_MHLA, LINEAR, SOFTMAX: of the layers ... */
    int hybrid;                     /* ... but that layers 0, hybrid, 2 hybrid, ... are softmax; 0: none is */
    int frames, image[2], channels; /* of x in training */
    int patch, dim, ffn, depth, heads;
    int frequencies; /* numbers that a time becomes */
    int text_width, text_length;
    int classes; /* 0: text; else one of so many classes, and one more for none */
    double eps;  /* of all norms */
    /* MHLA */
    int gate, lepe; /* silu of a projection; 3x3x3 convolution of v */
    int blocks[3];
    int denominator, mix;
    int mix_clip;                        /* after each update the matrix is clipped to (0,1) */
    unsigned char kinds[MHLA_WAN_DEPTH]; /* of each layer: MHLA_GRID_*; from the two above, or from the file */
} mhla_wan_config;

mhla_status mhla_wan_preset(mhla_wan_config *c, const char *model);
const mhla_recipe_row *mhla_wan_rows(void);
mhla_status mhla_wan_from_recipe(mhla_wan_config *c, const mhla_recipe *given, const char *prefix);
/* config.json of ours; tensors, where there are any, tell gate, LePE, blocks and the kinds of layers. */
mhla_status mhla_wan_config_read(mhla_wan_config *c, const json_t *tree, const char *path);
json_t *mhla_wan_config_tree(const mhla_wan_config *c);
mhla_status mhla_wan_check(const mhla_wan_config *c);
/* Can x be of this size? MHLA_EINVAL names the axis. */
mhla_status mhla_wan_check_size(const mhla_wan_config *c, mhla_extent e);
/* Frames, rows, columns of tokens. */
void mhla_wan_grid(int grid[3], const mhla_wan_config *c, mhla_extent e);
static inline mhla_extent mhla_wan_extent(const mhla_wan_config *c) {
    return (mhla_extent){c->frames, c->image[0], c->image[1]};
}

/* ---- wan_attention.c ---- */

/* Under the names of the published files. */
typedef struct mhla_wan_attention {
    int kind;
    mhla_layer q, k, v, o;
    mhla_param *q_norm, *k_norm; /* [D] */
    mhla_layer gate, lepe;       /* MHLA: [D,D], [D,1,3,3,3] */
    mhla_param *g_norm, *mix;    /* MHLA: [K], [M,M,1,1] */
} mhla_wan_attention;

/* What belongs to a size of clip: made when first seen, kept as long as the model. */
typedef struct mhla_wan_place {
    struct mhla_wan_place *next;
    int grid[3];
    mhla_plan *plans[3]; /* by kind; NULL: no layer is of it */
    float *cos, *sin;    /* [tokens, K/2], one allocation */
    int *kept;           /* [kept_count] the blocks that have tokens; NULL: all have */
    int kept_count;
} mhla_wan_place;

void mhla_wan_declare_attention(mhla_wan_attention *a, mhla_params *ps, const mhla_wan_config *c, int kind,
                                const char *name);
mhla_status mhla_wan_place_make(mhla_wan_place *p, const mhla_wan_config *c, const int grid[3]);
void mhla_wan_place_free(mhla_wan_place *p);
/* The plan of cross attention over text; counted: heads have a dim more, for what keys count. */
mhla_status mhla_wan_cross_plan(mhla_plan **plan, const mhla_wan_config *c, int counted);
/* Attention of h [B,T,D] over the grid, output layer included. */
mhla_tensor *mhla_wan_attend(mhla_tape *t, const mhla_wan_attention *a, const mhla_wan_config *c,
                             const mhla_wan_place *place, mhla_tensor *h);

/* Rows of text as cross attention reads them. */
typedef struct mhla_wan_text {
    mhla_tensor *rows;      /* [B,S,D] */
    const int32_t *lengths; /* [B] rows of a sample; NULL: all */
    int counted;            /* 1: keys have a dim more: how often each counts ... */
    const float *counts;    /* ... which is this [B*S], the logarithm over the scale of scores */
} mhla_wan_text;
/* Keys, with counts where there are some, and values [B,S,...] of the text, which every step of sampling has in common. */
void mhla_wan_keys(mhla_tape *t, mhla_tensor *kv[2], const mhla_wan_attention *a, const mhla_wan_config *c,
                   const mhla_wan_text *text);
/* residual + attention of h to keys and values, output layer included. */
mhla_tensor *mhla_wan_cross(mhla_tape *t, const mhla_wan_attention *a, const mhla_wan_config *c, const mhla_plan *plan,
                            const mhla_wan_text *text, mhla_tensor *const kv[2], mhla_tensor *residual, mhla_tensor *h);
/* Multiply-adds of T tokens: projections and LePE, and, unless as_paper, what is between them. */
int64_t mhla_wan_attention_cost(const mhla_wan_config *c, int kind, int64_t T, int as_paper);

/* ---- wan.c ---- */

typedef struct mhla_wan_block {
    mhla_param *modulation; /* [1,6,D] */
    mhla_wan_attention attn, cross;
    mhla_layer norm3, up, down;
} mhla_wan_block;

typedef struct mhla_wan {
    mhla_wan_config config;
    mhla_params *params;
    mhla_layer patch, text0, text2, time0, time2, time, head;
    mhla_param *modulation; /* [1,2,D] of the head */
    mhla_param *labels;     /* [classes + 1, D] */
    mhla_wan_block *blocks; /* [depth] */
    mhla_plan *cross;
    mhla_wan_place *places;
    struct mhla_wan_prompt *prompts; /* wan_text.c */
    char *note;                      /* about the mixing matrices of a file, or NULL */
} mhla_wan;

/* What a block is called with; lives on the tape until backward. */
typedef struct mhla_wan_call {
    mhla_wan *model;
    const mhla_wan_block *b;
    const mhla_wan_place *place;
    int index;
    mhla_tensor *time; /* [B,6,D] */
    const mhla_wan_text *text;
    struct mhla_wan_prompt *const *prompts; /* [B] instead of text->rows, or NULL */
} mhla_wan_call;

mhla_status mhla_wan_create(mhla_wan **model, const mhla_wan_config *config);
void mhla_wan_free(mhla_wan *model);
void mhla_wan_declare_block(mhla_wan_block *b, mhla_params *ps, const mhla_wan_config *c, int kind, const char *name);
/* A block, a mhla_wan_call, of x [B,T,D]. */
mhla_tensor *mhla_wan_run_block(mhla_tape *t, const void *call, mhla_tensor *x);
mhla_tensor *mhla_wan_forward(mhla_tape *t, mhla_wan *m, const mhla_network_run *run, mhla_tensor *x,
                              const float *times, const mhla_condition *condition);
/* Multiply-adds of one sample: every product; as_paper: the linear layers and convolutions alone. */
int64_t mhla_wan_multiply_adds(const mhla_wan_config *c, mhla_extent e, int as_paper);

/* ---- wan_text.c: the condition, and what is kept of it while clips are made ---- */

typedef struct mhla_wan_prompt mhla_wan_prompt;

/* The text of the tape's batch, embedded. */
mhla_status mhla_wan_read_text(mhla_tape *t, mhla_wan_text *text, mhla_wan *m, int64_t B,
                               const mhla_condition *condition);
/* Keys and values of each sample's text for every block, from the last steps or computed now: list [B]. Not while the tape
 * records. */
mhla_status mhla_wan_find_prompts(mhla_tape *t, mhla_wan_prompt **list, mhla_wan *m, int64_t B,
                                  const mhla_condition *condition);
/* The keys and values of block i of a batch. */
void mhla_wan_prompt_keys(mhla_tape *t, mhla_tensor *kv[2], mhla_wan_text *text, const mhla_wan *m, int i,
                          mhla_wan_prompt *const *list, int64_t B);
void mhla_wan_prompts_free(mhla_wan *m);

/* ---- wan_files.c ---- */

/* Do the tensors belong to a Wan, under its authors' names or diffusers'? */
int mhla_wan_fits_tensors(const mhla_safetensors *file);
/* What one of our parameters is called in diffusers' files, or as it is: the text of the last call on this thread lives until the next. */
const char *mhla_wan_name(const char *ours, int diffusers);
/* What tensors tell: gate, LePE, number of blocks, kinds of layers. */
mhla_status mhla_wan_complete(mhla_wan_config *c, const mhla_safetensors *file);
/* The config of others' files: sizes from the tensors, the rest from their config.json, which may be NULL. */
mhla_status mhla_wan_guess(mhla_wan_config *c, const mhla_safetensors *file, const json_t *tree, const char *path);
mhla_status mhla_wan_load(mhla_wan *m, const mhla_safetensors *file);

#endif
