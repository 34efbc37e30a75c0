/* The engine of the models: parameters, an eager tape on arenas, and the layers.
 *
 *   1. parameters: handles by name        3. layers
 *   2. the tape: modes, marks, backward   4. losses
 *
 * A layer is a function of the tape: it computes at once, puts its result into the tape's arena and, while the tape
 * records, leaves what its backward needs. Failures stick to the tape: a layer that is given NULL, or a tape that has
 * failed, does nothing and returns NULL, so that a model reads like its paper and asks mhla_tape_status() once, at the
 * end. Results are bit-identical for any number of threads.
 *
 *   mhla_tape_begin(t, MHLA_TAPE_RECORD | MHLA_TAPE_DROP);
 *   mhla_tensor *loss = mhla_nn_cross_entropy(t, model(t, m, mhla_nn_input(t, images, MHLA_SHAPE(B, 3, 224, 224))), ...);
 *   mhla_tape_backward(t, loss, 1.0f);       gradients are added to those of the parameters
 *   if (mhla_tape_status(t)) ...
 *
 * Tensors are float32 [..., cols]; images [B,C,H,W]; tokens [B,T,D]; token grids [B,H*W,C], raster order. */
#ifndef MHLA_NN_NN_H
#define MHLA_NN_NN_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

enum { MHLA_MAX_DIMS = 6 };

/* MHLA_SHAPE(B, T, D): two arguments, the sizes and their number. */
#define MHLA_SHAPE(...) (const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* ---- 1. Parameters -------------------------------------------------------------------------------------------
 *
 * A parameter is a handle: models pass it to layers and never look inside, so that other storage types need no change
 * in a model. Files and optimisers read and write `data`; whoever writes it calls mhla_param_touch. A matrix that only
 * infers may be kept as bfloat16 or Q8_0 (storage, below): then `data` is NULL, and rows go in and out by
 * mhla_param_set_rows and mhla_param_get_rows, which work on any parameter. */

enum {
    MHLA_PARAM_DECAY = 1,       /* weight decay applies */
    MHLA_PARAM_FROZEN = 2,      /* no gradient is computed, no optimiser touches it; may be set and cleared any time */
    MHLA_PARAM_MIX = 4,         /* a mixing matrix: clipped to [mix_low, mix_high] after each optimiser step */
    MHLA_PARAM_RENORMALISE = 8, /* and its rows divided by their sums */
    MHLA_PARAM_CAUSAL = 16,     /* of it only the lower triangle is touched */
    MHLA_PARAM_BUFFER = 32,     /* not trained and not counted as a parameter, but stored (and averaged by an EMA) */
    MHLA_PARAM_MATRIX = 64, /* seen as [shape[0], the rest] by mhla_nn_linear, mhla_nn_patch_embed and mhla_nn_embedding
                               alone: other storage will do */
    MHLA_PARAM_COUNTER = 128 /* one whole number, below 2^24: an int64 without axes in files, copied by an EMA */
};

/* Initial values, said where a parameter is declared. They are a function of (seed, the parameter's name) alone. */
struct mhla_param;
typedef struct mhla_initial {
    enum {
        MHLA_INITIAL_CONSTANT,     /* number */
        MHLA_INITIAL_NORMAL,       /* deviation `number` */
        MHLA_INITIAL_TRUNC_NORMAL, /* the same, cut at +-2 as timm's: in units of 1 */
        MHLA_INITIAL_XAVIER,       /* uniform, sqrt(6 / (fan_in + fan_out)) times `number` (0: 1); shape [out, in...] */
        MHLA_INITIAL_TORCH,     /* PyTorch's default of linear and convolution: uniform, 1/sqrt(`number`), the fan_in */
        MHLA_INITIAL_IDENTITY,  /* of a square matrix */
        MHLA_INITIAL_CENTRE,    /* depthwise kernels [D,1,k,k]: the middle 1, all else 0 */
        MHLA_INITIAL_LOG_COUNT, /* log(1), log(2), ... along the last axis */
        MHLA_INITIAL_LOG_UNIFORM, /* the logarithm of a uniform number up to `number` */
        MHLA_INITIAL_TIME_STEPS,  /* softplus of it is between 0.001 and 0.1, uniform in its logarithm */
        MHLA_INITIAL_CALL         /* whatever `fill` writes; `of` is handed to it and lives as long as the parameter */
    } kind;
    double number;
    mhla_status (*fill)(struct mhla_param *param, const void *of);
    const void *of;
} mhla_initial;

#define MHLA_ZERO ((mhla_initial){.kind = MHLA_INITIAL_CONSTANT})
#define MHLA_ONE ((mhla_initial){.kind = MHLA_INITIAL_CONSTANT, .number = 1.0})
#define MHLA_NORMAL(deviation) ((mhla_initial){.kind = MHLA_INITIAL_NORMAL, .number = (deviation)})
#define MHLA_TRUNC_NORMAL(deviation) ((mhla_initial){.kind = MHLA_INITIAL_TRUNC_NORMAL, .number = (deviation)})
#define MHLA_XAVIER ((mhla_initial){.kind = MHLA_INITIAL_XAVIER})
#define MHLA_TORCH(fan_in) ((mhla_initial){.kind = MHLA_INITIAL_TORCH, .number = (double)(fan_in)})

/* Where the rows of a table of positions [1,first + H*W,D] lie: on a grid of H x W patches, of which the outermost pad[] on each
 * side lie outside of the image. size 0: not such a table. */
typedef struct mhla_param_grid {
    int first, size[2];
    double pad[2];
} mhla_param_grid;

typedef struct mhla_param {
    const char *name; /* as in the published checkpoints */
    int dims;
    int64_t shape[MHLA_MAX_DIMS];
    int64_t count;    /* elements */
    mhla_dtype dtype; /* of storage; MHLA_F32 unless mhla_param_store said otherwise */
    unsigned flags;   /* the creator's to set */
    mhla_initial initial;
    mhla_param_grid grid;
    float mix_low, mix_high;
    float *data;  /* [count] master values; NULL where dtype is not MHLA_F32: `packed` is all there is */
    float *grad;  /* [count], NULL until training; meaningful where has_grad */
    int has_grad; /* something has been added since mhla_params_clear_grads */
    int touched;  /* how often a layer has added to grad; whoever counts sets it to 0 */
    float kept;   /* of a buffer that follows batches: the share of its old value that a batch leaves, 1 of a counter */
    uint64_t version;    /* of data */
    mhla_weight *packed; /* for the layer that multiplies by it; of packed_version */
    int packed_order;    /* see mhla_param_place, op.h */
    mhla_dtype packs_as; /* of `packed`; `dtype` where that is not MHLA_F32 */
    uint64_t packed_version;
    struct mhla_slab **slab;          /* the list's, where packed copies are */
    const struct mhla_lender *lender; /* of a lent one, and what is handed to it */
    const void *of;
} mhla_param;

typedef struct mhla_params mhla_params;

/* Whoever has the numbers of a lent parameter: rows first .. first+count-1 of `cols` numbers each as float32; and that those that have
 * been read are not needed soon. Both may be called by several threads. */
typedef struct mhla_lender {
    void (*read)(const void *of, float *rows, int64_t first, int64_t count, int64_t cols);
    void (*done)(const void *of);
} mhla_lender;

mhla_status mhla_params_create(mhla_params **params);
void mhla_params_free(mhla_params *params); /* and all handles; NULL is legal */

/* A new handle, owned by the list, all zeros; the name is copied. NULL without memory or where the name exists: the list
 * keeps that failure for mhla_params_status, and adding goes on, so that a model asks once. */
mhla_param *mhla_params_add(mhla_params *params, const char *name, const int64_t *shape, int dims, unsigned flags,
                            mhla_initial initial);
/* The same with the name made by printf:
 * mhla_params_addf(ps, MHLA_SHAPE(D, D), flags, MHLA_XAVIER, "blocks.%d.attn.to_qkv.weight", i) */
mhla_param *mhla_params_addf(mhla_params *params, const int64_t *shape, int dims, unsigned flags, mhla_initial initial,
                             const char *format, ...) __attribute__((format(printf, 6, 7)));
mhla_status mhla_params_status(const mhla_params *params);

int mhla_params_count(const mhla_params *params);                          /* handles */
mhla_param *mhla_params_at(const mhla_params *params, int i);              /* in the order of adding */
mhla_param *mhla_params_find(const mhla_params *params, const char *name); /* NULL if there is none */
int64_t mhla_params_elements(const mhla_params *params); /* of all but buffers: the number of parameters */

void mhla_param_touch(mhla_param *param); /* data has changed */
void mhla_params_clear_grads(mhla_params *params);
/* Bytes that values, packed copies and, if training, gradients occupy or will. */
size_t mhla_params_bytes(const mhla_params *params, int training);

/* ---- Storage: matrices of a model that only infers
 *
 * What MHLA_PARAM_MATRIX marks is added as this type from now on, all zeros, without ever taking float32's memory. Q8_0
 * needs rows of a multiple of 32: a matrix with others stays float32. */
void mhla_params_set_storage(mhla_params *params, mhla_dtype dtype);
/* Changes the storage of one parameter, whatever it has now; values are rounded, or widened. MHLA_EINVAL for one that is no
 * MATRIX or has rows that Q8_0 cannot hold. What is not float32 cannot be trained, averaged or initialised. */
mhla_status mhla_param_store(mhla_param *param, mhla_dtype dtype);
/* The same of every MATRIX that it fits, and the precision with it. */
mhla_status mhla_params_store(mhla_params *params, mhla_dtype dtype);
/* A MATRIX whose numbers stay where they are, in a mapped file: it has neither `data` nor a packed copy, but while layers use it. Until
 * mhla_param_return gives that copy back, which a model calls behind the last product of a matrix. `dtype`: what the numbers are
 * there. After _set_lending, matrices are added without any memory, to be lent before they are used. */
void mhla_params_set_lending(mhla_params *params, int lending);
/* While it is on, for this thread: matrices have no memory either, but the type of their storage. For models that are only looked at. */
void mhla_params_outline(int on);
void mhla_param_lend(mhla_param *param, mhla_dtype dtype, const mhla_lender *lender, const void *of);
void mhla_param_return(mhla_param *param);       /* nothing of one that is not lent */
int mhla_params_lent(const mhla_params *params); /* is any? */
/* Precision of products: MHLA_BF16 packs every weight as bfloat16 for the linear layer; `data`, gradients and all tensors stay
 * float32, so that this is also for training. Storage as bfloat16 implies it. Elsewhere than on a CPU that multiplies bfloat16
 * the products are float32, of the rounded weights. */
void mhla_params_set_precision(mhla_params *params, mhla_dtype precision);
mhla_dtype mhla_params_precision(const mhla_params *params);
/* Rows first .. first+count-1 of the parameter seen as [shape[0], the rest], from rows of any type (MHLA_Q8_0: blocks as
 * GGUF has them), row after row without gaps; the same type goes in unchanged. Raises the version. A file is so loaded in
 * pieces. And out, as float32 [count, the rest]. MHLA_EINVAL for rows outside. */
mhla_status mhla_param_set_rows(mhla_param *param, int64_t first, int64_t count, const void *rows, mhla_dtype dtype);
mhla_status mhla_param_get_rows(float *rows, const mhla_param *param, int64_t first, int64_t count);
/* MHLA_EINVAL naming the first parameter that has no `data`: "x is stored as q8_0: it cannot be trained". */
mhla_status mhla_params_need_data(const mhla_params *params, const char *what);

/* Gives one parameter, or all of them, their initial values. What is not kept as float32 stays as it is. */
mhla_status mhla_param_init(mhla_param *param, uint64_t seed);
mhla_status mhla_params_init(mhla_params *params, uint64_t seed);

/* ---- 2. The tape --------------------------------------------------------------------------------------------- */

typedef struct mhla_tape mhla_tape;

typedef struct mhla_tensor {
    float *data; /* not to be touched in a dry run */
    int dims;
    int64_t shape[MHLA_MAX_DIMS];
    int64_t rows, cols; /* cols = the last size, rows = the product of the others */
    int64_t ld;         /* from row to row; cols unless this is a slice of wider rows */
    int needs_grad;
    /* the tape's, see tape.c */
    float *grad;              /* of a tensor that is no view */
    int has_grad;             /* all of the gradient is there; of a tensor with views, perhaps only in their columns */
    int64_t serial;           /* in the order of making */
    struct mhla_tensor *base; /* whose memory and gradient this one shares, or NULL */
    int64_t offset;           /* elements from base->data */
    int64_t column, width;    /* what a view covers of the rows of base; width 0: something else */
    struct mhla_tensor *views, *next_view;
} mhla_tensor;

enum {
    MHLA_TAPE_INFER = 0,
    MHLA_TAPE_RECORD = 1,   /* backward can follow */
    MHLA_TAPE_DROP = 2,     /* training: dropout and drop path act, batch norms take the statistics of the batch */
    MHLA_TAPE_DRY = 4,      /* shapes only: nothing is computed, no tensor has memory, peaks are counted */
    MHLA_TAPE_RECOMPUTE = 8 /* autoencoders: blocks are computed again in the backward pass instead of kept */
};

mhla_status mhla_tape_create(mhla_tape **tape, const mhla_context *context);
void mhla_tape_free(mhla_tape *tape); /* NULL is legal */
/* Called in the backward pass after each layer's, to look which gradients of parameters are there; NULL: no more. */
void mhla_tape_after(mhla_tape *tape, void (*after)(void *arg), void *arg);

/* Starts anew: all tensors of before are gone, their memory is kept for the ones to come, a failure is forgotten. */
void mhla_tape_begin(mhla_tape *tape, unsigned mode);
/* MHLA_BF16: until the next begin, attentions and the backward of linear layers multiply bfloat16 with sums in float32, where
 * the CPU does that. A model's forward pass sets it as its parameters have it (mhla_params_precision). */
void mhla_tape_set_precision(mhla_tape *tape, mhla_dtype precision);
/* What randomness is keyed by, until changed: sample i of the batch is number first_sample + i of update `step`. Two
 * halves of a batch, the second with first_sample B/2, draw what the whole would. */
void mhla_tape_key(mhla_tape *tape, uint64_t seed, uint64_t step, uint64_t first_sample);

/* The first failure since begin; mhla_message() has its sentence, unless another call of this thread failed since. */
mhla_status mhla_tape_status(const mhla_tape *tape);
/* Makes the tape fail; for models: `return mhla_tape_fail(t, MHLA_EINVAL, "...", ...)`. Always NULL. */
mhla_tensor *mhla_tape_fail(mhla_tape *tape, mhla_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const mhla_context *mhla_tape_context(const mhla_tape *tape);
unsigned mhla_tape_mode(const mhla_tape *tape);

/* d(scale * loss) of every parameter that is not frozen is added to its gradient. loss has one element. Once per begin.
 * The scale is 1/n where n batches are accumulated. */
mhla_status mhla_tape_backward(mhla_tape *tape, mhla_tensor *loss, float scale);
/* The same from a given gradient dy of y, contiguous; for tests and for users of a part of a model. */
mhla_status mhla_tape_backward_from(mhla_tape *tape, mhla_tensor *y, const float *dy);
/* After backward: the gradient of an input that was made with needs_grad (mhla_nn_variable), else NULL. */
const float *mhla_tensor_grad(mhla_tensor *x);

/* Small inference: everything made after the mark is forgotten, but `keep`, which moves down to the mark. Mark once,
 * before the first layer, and release after each block; where the tape records this does nothing and returns keep. */
typedef struct mhla_mark {
    struct mhla_place {
        int block;
        size_t used, live;
    } meta, data;
} mhla_mark;
mhla_mark mhla_tape_mark(const mhla_tape *tape);
mhla_tensor *mhla_tape_release(mhla_tape *tape, mhla_mark mark, mhla_tensor *keep);

/* For networks that go through their input piece by piece and remember some of it: room for a tensor, made before the mark, and a
 * copy of x in that room, which outlives the release. Where the tape records there is no room, and what is kept is x itself. */
mhla_tensor *mhla_tape_room(mhla_tape *tape, const int64_t *shape, int dims);
mhla_tensor *mhla_tape_keep(mhla_tape *t, mhla_tensor *place, mhla_tensor *x);

/* Recomputation: y = block(t, arg, x) without keeping what is inside; backward runs the block again, recorded. arg must
 * live until then. Same numbers, bit by bit. Where the tape does not record, the block's scratch is given back. */
typedef mhla_tensor *(*mhla_block_fn)(mhla_tape *tape, const void *arg, mhla_tensor *x);
mhla_tensor *mhla_nn_checkpoint(mhla_tape *tape, mhla_block_fn block, const void *arg, mhla_tensor *x);

/* Most bytes that tensors, gradients of tensors and workspaces have taken at once since the tape was made. After a dry
 * run of forward and backward this is what the real one will take; parameters and optimisers come on top
 * (mhla_params_bytes, mhla_optim_bytes, mhla_ema_bytes). */
size_t mhla_tape_peak(const mhla_tape *tape);

/* ---- 3. Layers ------------------------------------------------------------------------------------------------
 *
 * Outputs are new tensors unless a comment says view. b, residual and the like may be NULL where "or NULL" stands. */

/* The caller's memory as a tensor, contiguous; it must live and stay until the next begin. In a dry run data may be
 * NULL. _variable wants its gradient. */
mhla_tensor *mhla_nn_input(mhla_tape *t, const float *data, const int64_t *shape, int dims);
mhla_tensor *mhla_nn_variable(mhla_tape *t, const float *data, const int64_t *shape, int dims);

/* Views: no copy, gradients flow into the same memory. Slice: cols [first, first+count) of the last axis, e.g. q of a
 * fused qkv. Reshape needs contiguous rows. */
mhla_tensor *mhla_nn_slice(mhla_tape *t, mhla_tensor *x, int64_t first, int64_t count);
mhla_tensor *mhla_nn_reshape(mhla_tape *t, mhla_tensor *x, const int64_t *shape, int dims);

/* y [...,N] = activation(x [...,K] W^T + b) + residual; W [N,K] (any shape whose first axis is N and whose others
 * multiply to K), b [N] or NULL, residual like y or NULL. */
mhla_tensor *mhla_nn_linear(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_activation activation,
                            mhla_tensor *residual, mhla_tensor *x);

/* Up to four layers that read the same x, y[i] [...,N_i] = x W_i^T + b_i, computed in one loop over threads. */
typedef struct mhla_layer {
    mhla_param *w, *b;
} mhla_layer;
void mhla_nn_linears(mhla_tape *t, mhla_tensor **y, const mhla_layer *layers, int count, mhla_tensor *x);

/* residual + drop_path(x W^T + b), the end of a branch, in one go; see drop path below. */
mhla_tensor *mhla_nn_linear_drop(mhla_tape *t, float rate, mhla_param *w, mhla_param *b, mhla_tensor *residual,
                                 mhla_tensor *x);

/* (x - mean) / sqrt(var + eps) * w + b over the last axis; w, b [cols] or NULL. */
mhla_tensor *mhla_nn_layer_norm(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, mhla_tensor *x);
/* x / sqrt(mean x^2 + eps) * w over groups of `group` of the last axis (0 = all of it; K = each head); w [group],
 * shared by the groups, or NULL. */
mhla_tensor *mhla_nn_rms_norm(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x);
/* activation of the same; where the tape does not record, in place. */
mhla_tensor *mhla_nn_rms_norm_act(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_activation activation,
                                  mhla_tensor *x);
/* mhla_nn_rms_norm times 1 + w instead of w. */
mhla_tensor *mhla_nn_rms_norm_plus_one(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x);
/* mhla_nn_rms_norm over the whole last axis plus b [cols]. */
mhla_tensor *mhla_nn_rms_norm_bias(mhla_tape *t, mhla_param *w, mhla_param *b, float eps, mhla_tensor *x);
/* mhla_nn_rms_norm times silu(gate), gate like x. */
mhla_tensor *mhla_nn_rms_norm_gated(mhla_tape *t, mhla_param *w, float eps, int64_t group, mhla_tensor *x,
                                    mhla_tensor *gate);

/* activation((x - mean) / sqrt(var + eps) * w + b), channel by channel. With MHLA_TAPE_DROP mean and var are those of the rows
 * of x, of which there must be two, and the running ones follow: running = (1 - momentum) running + momentum batch's, of the
 * variance the unbiased one; a block that is recomputed moves them once. Else they are the running ones. */
typedef struct mhla_batch_norm {
    mhla_param *w, *b, *mean, *var, *batches; /* [C]; batches [1]: how often the running ones have moved */
    float eps, momentum;
} mhla_batch_norm;
mhla_tensor *mhla_nn_batch_norm(mhla_tape *t, const mhla_batch_norm *n, mhla_activation activation, mhla_tensor *x);
/* activation((x - mean) / sqrt(var + eps) * w + b) of x [B,T,C], statistics over all tokens of a sample and each C/groups channels;
 * w, b [C] or NULL. */
mhla_tensor *mhla_nn_group_norm(mhla_tape *t, mhla_param *w, mhla_param *b, int groups, float eps,
                                mhla_activation activation, mhla_tensor *x);

/* y [B,T,D] = rows ids[b*T+t] of w [rows,D]. ids live until backward. */
mhla_tensor *mhla_nn_embedding(mhla_tape *t, mhla_param *w, const int32_t *ids, int64_t B, int64_t T);

/* Images x [B,C,H,W] with zeros around them. */
mhla_tensor *mhla_nn_pad_image(mhla_tape *t, int top, int bottom, int left, int right, mhla_tensor *x);
/* Images x [B,C,H,W] -> tokens [B, H/p*W/p, C*p*p], a patch's numbers by channel, row, column; p = 1: a token grid of its pixels.
 * Clips [B,C,F,H,W]: the patches of each frame, [B, F*H/p*W/p, C*p*p]. */
mhla_tensor *mhla_nn_patches(mhla_tape *t, int p, mhla_tensor *x);
/* Images x [B,C,H,W] -> tokens [B, H/p*W/p, D]: the convolution with w [D,C,p,p], b [D] or NULL, stride p. Clips: w [D,C,1,p,p]. */
mhla_tensor *mhla_nn_patch_embed(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_tensor *x);
/* Frame f of clips [B,C,F,H,W] as tokens [B,H*W,C]; and clips of frames of tokens, put in one after the other. */
mhla_tensor *mhla_nn_frame(mhla_tape *t, int64_t f, mhla_tensor *clip);
typedef struct mhla_nn_clip mhla_nn_clip;
mhla_nn_clip *mhla_nn_clip_begin(mhla_tape *t, int64_t B, int64_t C, int64_t F, int64_t H, int64_t W);
void mhla_nn_clip_put(mhla_tape *t, mhla_nn_clip *op, mhla_tensor *x);
mhla_tensor *mhla_nn_clip_end(mhla_tape *t, mhla_nn_clip *op);
/* Tokens x [B, H*W, p*p*C], a patch's numbers by row, column, channel -> images [B,C,H*p,W*p]. */
mhla_tensor *mhla_nn_unpatch(mhla_tape *t, int p, int64_t H, int64_t W, mhla_tensor *x);
/* The same of clips: tokens [B, F*H*W, p*p*C] -> [B,C,F,H*p,W*p]; grid is F, H, W. */
mhla_tensor *mhla_nn_unpatch_clip(mhla_tape *t, int p, const int64_t grid[3], mhla_tensor *x);

/* Depthwise convolution of a token grid x [B,H*W,C] with w [C,1,k,k], k odd, zero padding k/2, b [C] or NULL, plus
 * residual like x or NULL (x itself makes a CPE). 3x3 and 5x5 are fast. w and b may have fewer filters n that divide C:
 * channel c has filter c mod n. A token before the grid, x [B,1+H*W,C], stays out of it: its result is the residual, or 0. */
mhla_tensor *mhla_nn_depthwise(mhla_tape *t, mhla_param *w, mhla_param *b, int64_t H, int64_t W, mhla_tensor *residual,
                               mhla_tensor *x);
/* The same over a grid with frames, x [B,F*H*W,C] with w [C,1,k,k,k]; grid is F, H, W. */
mhla_tensor *mhla_nn_depthwise_clip(mhla_tape *t, mhla_param *w, mhla_param *b, const int64_t grid[3],
                                    mhla_tensor *residual, mhla_tensor *x);
/* The same with kernels of each sample's own: w [B,C*k*k], those of channel c from c*k*k on. No bias. */
mhla_tensor *mhla_nn_depthwise_own(mhla_tape *t, mhla_tensor *w, int k, int64_t H, int64_t W, mhla_tensor *residual,
                                   mhla_tensor *x);
/* Any convolution of a token grid x [B,H*W,I] with w [O,I/groups,kh,kw] -> [B,H'*W',O], H' = (H + 2 pad + after - kh)/stride + 1:
 * zeros around, `pad` rows and columns on each side and `after` more at the bottom and on the right. */
typedef struct mhla_conv {
    int64_t H, W;
    int stride, pad, groups; /* stride, groups 0 = 1 */
    int after;               /* without groups only */
} mhla_conv;
mhla_tensor *mhla_nn_conv(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_conv c, mhla_tensor *x);
/* The same without groups, plus residual like the result or NULL. */
mhla_tensor *mhla_nn_conv2d(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_conv c, mhla_tensor *residual,
                            mhla_tensor *x);
/* The same over frames: w [O,C,depth,kh,kw], x[depth] the frames that the result reads, the newest last, all of one shape; NULL: a
 * frame of zeros. The convolution of a clip that is causal in time reads each frame and the depth - 1 before it. */
mhla_tensor *mhla_nn_conv3d(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_conv c, mhla_tensor *residual,
                            mhla_tensor *const *x);
/* Every pixel of a token grid x [B,H*W,C] twice along rows and columns: [B,2H*2W,C]. */
mhla_tensor *mhla_nn_upsample(mhla_tape *t, int64_t H, int64_t W, mhla_tensor *x);
/* A token grid x [B,H*W,n] to one of f times the sides, [B,fH*fW,channels]: channel c of pixel (f i + a, f j + b) is channel
 * f*f c + f a + b of pixel (i, j), after each channel is repeated f*f*channels/n times. And back: x [B,fH*fW,n] to [B,H*W,channels], of
 * f*f*n/channels neighbouring channels the mean. */
mhla_tensor *mhla_nn_pixel_shuffle(mhla_tape *t, int f, int64_t H, int64_t W, int64_t channels, mhla_tensor *x);
mhla_tensor *mhla_nn_pixel_unshuffle(mhla_tape *t, int f, int64_t H, int64_t W, int64_t channels, mhla_tensor *x);
/* y [...,N] = x [...,K] in groups, each read by N/groups outputs: w [N,K/groups] (or more axes), b [N] or NULL. */
mhla_tensor *mhla_nn_grouped_linear(mhla_tape *t, mhla_param *w, mhla_param *b, int groups, mhla_tensor *x);

mhla_tensor *mhla_nn_activation(mhla_tape *t, mhla_activation activation, mhla_tensor *x);
mhla_tensor *mhla_nn_add(mhla_tape *t, mhla_tensor *a, mhla_tensor *b); /* same shapes */
mhla_tensor *mhla_nn_mul(mhla_tape *t, mhla_tensor *a, mhla_tensor *b);
mhla_tensor *mhla_nn_scale(mhla_tape *t, float factor, mhla_tensor *x);
mhla_tensor *mhla_nn_softcap(mhla_tape *t, float cap, mhla_tensor *x); /* cap tanh(x / cap); cap 0: x itself */

/* silu(gate) * up, same shapes: the middle of a SwiGLU. */
mhla_tensor *mhla_nn_swiglu(mhla_tape *t, mhla_tensor *gate, mhla_tensor *up);

/* Feature maps of each head of x [...,heads*K].
 * hedgehog: softmax([2x, -2x]), 2K dims. dpfp: z = [relu(x), relu(-x)] (released: -relu(x) instead), then z times itself
 * rolled by 1, 2, 3, 4, one after the other: 8K dims. feature: phi(x) (relu without eps, elu + 1, identity), if `norm`
 * over its sum + 1e-4; K dims. */
mhla_tensor *mhla_nn_hedgehog(mhla_tape *t, int64_t K, mhla_tensor *x);
mhla_tensor *mhla_nn_dpfp(mhla_tape *t, int64_t K, int released, mhla_tensor *x);
mhla_tensor *mhla_nn_feature(mhla_tape *t, mhla_feature kind, int64_t K, int norm, mhla_tensor *x);

/* silu of the causal depthwise convolution of x [B,T,D] along the tokens with w [D,1,W]: y_t = silu(sum_j w[.,j]
 * x_{t-W+1+j} + b), b [D] or NULL, zeros before the first token. Packed sequences (B = 1; cu_seqlens lives until backward) each
 * begin anew. */
mhla_tensor *mhla_nn_short_conv(mhla_tape *t, mhla_param *w, mhla_param *b, const int64_t *cu_seqlens,
                                int64_t sequences, mhla_tensor *x);

/* Mamba's selective scan with softplus (mhla_scan_forward): u, delta and z [B,T,I], B and C [B,T,N]. A = -exp(A_log). With states, which
 * sequence s leaves its state in and takes it from, the tape must not record. */
typedef struct mhla_nn_scan {
    mhla_param *A_log, *D, *bias; /* [I,N], [I], [I] */
    const int64_t *cu_seqlens;    /* lives until backward; NULL: not packed */
    int64_t sequences;
    float *const *states; /* [sequences] of [I,N]; or NULL */
} mhla_nn_scan;
mhla_tensor *mhla_nn_selective_scan(mhla_tape *t, const mhla_nn_scan *p, mhla_tensor *u, mhla_tensor *delta,
                                    mhla_tensor *B, mhla_tensor *C, mhla_tensor *z);

/* Around recurrences with decay.
 *   log_sigmoid   max(logsigmoid(x) / divisor, least); least -INFINITY: no bound
 *   sigmoid       factor sigmoid(x)
 *   time_steps    softplus(x + b) from `least` to `most`, b [cols]
 *   rates         -exp(a) x, a [cols]: the log-decays of time steps x
 *   channels      w x, w [cols]
 *   mul_heads     x [...,H*P] times z [...,H]
 *   skip_heads    z + w x, x and z [...,H*P], w [H]
 *   repeat_heads  each head of x [...,H*dims] so many times: [...,H*times*dims] */
mhla_tensor *mhla_nn_log_sigmoid(mhla_tape *t, float divisor, float least, mhla_tensor *x);
mhla_tensor *mhla_nn_sigmoid(mhla_tape *t, float factor, mhla_tensor *x);
mhla_tensor *mhla_nn_time_steps(mhla_tape *t, mhla_param *b, float least, float most, mhla_tensor *x);
mhla_tensor *mhla_nn_rates(mhla_tape *t, mhla_param *a, mhla_tensor *x);
mhla_tensor *mhla_nn_channels(mhla_tape *t, mhla_param *w, mhla_tensor *x);
mhla_tensor *mhla_nn_mul_heads(mhla_tape *t, mhla_tensor *x, mhla_tensor *z);
mhla_tensor *mhla_nn_skip_heads(mhla_tape *t, mhla_param *w, mhla_tensor *x, mhla_tensor *z);
mhla_tensor *mhla_nn_repeat_heads(mhla_tape *t, int64_t dims, int times, mhla_tensor *x);
/* Heads of K dims of x[count], up to 8 tensors [B,T,...] beside each other, as one tensor: first, first + every, first + 2 every, ...;
 * 0 and 1: all of them. */
mhla_tensor *mhla_nn_heads(mhla_tape *t, int64_t K, int first, int every, mhla_tensor *const *x, int count);

/* adaLN: x [B,T,D] * (1 + scale [B,D]) + shift [B,D]; and x + gate [B,D] * z. The vectors may be slices. */
mhla_tensor *mhla_nn_modulate(mhla_tape *t, mhla_tensor *shift, mhla_tensor *scale, mhla_tensor *x);
/* modulate(layer_norm(x)) in one go, the norm without weight and bias. */
mhla_tensor *mhla_nn_modulated_norm(mhla_tape *t, float eps, mhla_tensor *shift, mhla_tensor *scale, mhla_tensor *x);
mhla_tensor *mhla_nn_gate_add(mhla_tape *t, mhla_tensor *x, mhla_tensor *gate, mhla_tensor *z);

/* x [B,T,D] + p [1,T,D] (or [T,D]). */
mhla_tensor *mhla_nn_add_position(mhla_tape *t, mhla_param *p, mhla_tensor *x);
/* [B,n+T,D]: p [1,n,D] (class token), then x. */
mhla_tensor *mhla_nn_prepend(mhla_tape *t, mhla_param *p, mhla_tensor *x);
mhla_tensor *mhla_nn_concat_tokens(mhla_tape *t, mhla_tensor *a, mhla_tensor *b);
/* [B,T,D] of x[B], each [1,n,D] with n up to T; zeros behind it. NULL: a sample of zeros. */
mhla_tensor *mhla_nn_stack(mhla_tape *t, mhla_tensor *const *x, int64_t B, int64_t T, int64_t D);
mhla_tensor *mhla_nn_slice_tokens(mhla_tape *t, mhla_tensor *x, int64_t first, int64_t count); /* a copy */
/* [n,D]: rows `rows` of x [...,D], any order, repeated or not; they live until backward. */
mhla_tensor *mhla_nn_take_rows(mhla_tape *t, const int32_t *rows, int64_t n, mhla_tensor *x);
/* y[b,t] = x[b,order[t]] of x [B,T,D]; order [T], a permutation of 0..T-1, lives until backward. */
mhla_tensor *mhla_nn_reorder(mhla_tape *t, const int32_t *order, mhla_tensor *x);
mhla_tensor *mhla_nn_mean_tokens(mhla_tape *t, mhla_tensor *x); /* [B,T,D] -> [B,D] */

/* Only where the mode has MHLA_TAPE_DROP; else x itself. Dropout by element; drop path drops the branch of a whole
 * sample and divides the others by 1 - rate. _add is x + drop_path(branch) in one go; scaled_add x + drop_path(w branch), w
 * [cols]: layer scale. */
mhla_tensor *mhla_nn_dropout(mhla_tape *t, float rate, mhla_tensor *x);
mhla_tensor *mhla_nn_drop_path(mhla_tape *t, float rate, mhla_tensor *x);
mhla_tensor *mhla_nn_drop_path_add(mhla_tape *t, float rate, mhla_tensor *x, mhla_tensor *branch);
mhla_tensor *mhla_nn_scaled_add(mhla_tape *t, float rate, mhla_param *w, mhla_tensor *x, mhla_tensor *branch);

/* Turns the first rope_dim dims of each head of x [B,T,H*K] by row t of the table [T, rope_dim/2] (mhla_rope_table).
 * Attention can do it on the way in (below); this one stands alone. */
typedef struct mhla_rotary {
    mhla_rope rope;
    int head_dim, rope_dim; /* K; 0 = K */
    const float *cos, *sin; /* live until backward */
} mhla_rotary;
mhla_tensor *mhla_nn_rotary(mhla_tape *t, mhla_rotary a, mhla_tensor *x);

/* Every attention of libmhla: o [B,T,H*V] of q [B,T,H*K], k [B,T',G*K], v [B,T',G*V], which may be slices of a fused qkv. mix
 * as the plan wants it ([M,M], [M,M,1,1], [H,M,M]; Focused LA: its scale [H*K]; NULL for other baselines). Plan, rope table
 * and cu_seqlens live until backward. `call` NULL, or one whose rope_*, cu_seqlens, sequences are used (batch = 1 then). */
mhla_tensor *mhla_nn_attention(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_param *mix,
                               mhla_tensor *q, mhla_tensor *k, mhla_tensor *v);
/* The same added into `onto` [B,T,H*V], which is overwritten: a fresh result of depthwise, add or linear without
 * activation that nobody else reads (LePE: onto = depthwise(v)). NULL = as above. */
mhla_tensor *mhla_nn_attention_onto(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_param *mix,
                                    mhla_tensor *onto, mhla_tensor *q, mhla_tensor *k, mhla_tensor *v);

/* Softmax attention of q [B,Tq,H*K] over k [B,Tk,G*K] and v [B,Tk,G*V], of which the first lengths [B] of a sample count (NULL: all;
 * 0: its output is 0). Rows behind them are not read; their gradient is 0. The plan is of MHLA_KIND_SOFTMAX, not causal, without
 * rotary embedding. A sample's result does not depend on the batch. Plan and lengths live until backward. */
mhla_tensor *mhla_nn_cross_attention(mhla_tape *t, const mhla_plan *plan, const int32_t *lengths, mhla_tensor *q,
                                     mhla_tensor *k, mhla_tensor *v);

/* Each head of x [...,H*K] with a dim more, [...,H*(K+1)]: numbers[row], or 1 where NULL. With 1 behind queries and log(n) / scale
 * behind a key, softmax counts this key n times. */
mhla_tensor *mhla_nn_append_dim(mhla_tape *t, int64_t K, const float *numbers, mhla_tensor *x);
/* Softmax attention as T5 has it: o_i = softmax_j(q_i k_j + w[bucket(j - i), head]) v_j, not scaled; q, k, v [B,T,H*K], w [buckets,H].
 * Buckets: half of them for each direction; of these the first half have one distance each, the others distances in equal
 * ratios up to `distance`. For inference: it has no backward. */
mhla_tensor *mhla_nn_position_attention(mhla_tape *t, mhla_param *w, int distance, mhla_tensor *q, mhla_tensor *k,
                                        mhla_tensor *v);
int mhla_position_bucket(int64_t relative, int buckets, int distance);

/* Recurrences with decay (MHLA_KIND_GLA, SIMPLE_GLA, GATED_DELTA): the same with log-decays [B,T,H*K] or [B,T,H], which have gradients.
 * NULL: those of `call`, which are constants and live until backward. beta [B,T,H] of GATED_DELTA, else NULL. */
mhla_tensor *mhla_nn_recurrence(mhla_tape *t, const mhla_plan *plan, const mhla_call *call, mhla_tensor *q,
                                mhla_tensor *k, mhla_tensor *v, mhla_tensor *decay, mhla_tensor *beta);

/* Looking on: `fn` is told of every attention from now on (fn NULL: nobody is) what goes into it and what it makes of that, alone
 * even where it is added to something: a look costs a second computation there. Not in a dry run. */
typedef struct mhla_attended {
    int64_t index; /* attentions since begin: the layer, where each layer has one */
    const mhla_plan *plan;
    const mhla_call *call; /* sizes and strides, o's too; rotary table */
    const mhla_param *mix; /* or NULL */
    const float *q, *k, *v, *o;
} mhla_attended;
typedef void (*mhla_attended_fn)(void *user, const mhla_attended *a);
void mhla_tape_watch(mhla_tape *t, mhla_attended_fn fn, void *user);

/* Without gradients, for whoever keeps states of sequences. y [rows][ldy] = heads of x [rows][ldx] after the feature map,
 * row r then turned by row r of a table of its own: rows are tokens anywhere in any sequence. */
typedef struct mhla_turn {
    int heads, head_dim; /* K */
    mhla_feature feature;
    float eps;
    mhla_rope rope;
    int rope_dim;
    const float *cos, *sin; /* [rows, rope_dim/2] */
} mhla_turn;
void mhla_nn_turn(const mhla_context *context, const mhla_turn *a, float *y, int64_t ldy, const float *x, int64_t ldx,
                  int64_t rows);

/* Of logits [rows,N]: the natural logarithm of the probability of targets[r] (negative: 0 is written), and the likeliest,
 * the first of equals. Either output may be NULL. */
void mhla_nn_likelihoods(const mhla_context *context, float *logprobs, int32_t *best, const float *logits,
                         const int32_t *targets, int64_t rows, int64_t N);

/* ---- 4. Losses: tensors of one element ---------------------------------------------------------------------------- */

/* Mean over rows of -sum target log softmax(logits [...,N]). Either labels [rows] (a negative one: the row does not
 * count) or targets [rows,N]; smoothing e mixes e/N into either. *probabilities, unless NULL, gets softmax(logits). Both
 * arrays live until backward. */
mhla_tensor *mhla_nn_cross_entropy(mhla_tape *t, mhla_tensor *logits, const int32_t *labels, const float *targets,
                                   float smoothing, mhla_tensor **probabilities);
/* The same of logits = x [...,D] W^T, W [N,D], with labels [rows], without ever holding all of them: rows go in pieces.
 * While the tape records, a piece's gradients are made at once: those of scale * loss are added to W's here already, so
 * that mhla_tape_backward must follow with this very scale. losses [rows], unless NULL, gets each row's own (0 where it
 * does not count). Labels and losses live until backward. */
mhla_tensor *mhla_nn_linear_cross_entropy(mhla_tape *t, mhla_param *w, mhla_tensor *x, const int32_t *labels,
                                          float scale, float *losses);
/* The same of logits cap tanh(x W^T / cap). */
mhla_tensor *mhla_nn_capped_cross_entropy(mhla_tape *t, mhla_param *w, float cap, mhla_tensor *x, const int32_t *labels,
                                          float scale, float *losses);
/* Mean of (x - target)^2, of |x - target|, over all elements. */
mhla_tensor *mhla_nn_mse(mhla_tape *t, mhla_tensor *x, const float *target);
mhla_tensor *mhla_nn_l1(mhla_tape *t, mhla_tensor *x, const float *target);
/* Gaussians x [B,2L,...], contiguous: L channels of means, L of log variances, which count as -30 to 20. Draws from them, mean +
 * exp(log variance / 2) noise [B,L,...]; noise is like the result and lives until backward. */
mhla_tensor *mhla_nn_posterior(mhla_tape *t, const float *noise, mhla_tensor *x);
/* And their divergence from a standard normal, in nats: summed over a sample, the mean of all samples. */
mhla_tensor *mhla_nn_divergence(mhla_tape *t, mhla_tensor *x);
/* A loss of x that the caller has worked out, with its gradient dx, contiguous, like x; that lives until backward. */
mhla_tensor *mhla_nn_judged(mhla_tape *t, float loss, const float *dx, mhla_tensor *x);

#endif
