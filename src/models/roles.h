/* What a model can do: roles. Code that uses a model asks for a role and gets a description of it, or one sentence that says
 * what the model is instead; it never asks which architecture it has. A role is a table of functions of the network
 * (`net`), which only its architecture knows (model.h).
 *
 *   classifier    images to logits and features
 *   denoiser      a noisy array, times and a condition to a prediction
 *   decoder       token ids to hidden states, with memory (language/sequence.h)
 *   encoder       token ids to rows that a denoiser is conditioned on
 *   autoencoder   pixels to latents and back
 *   comparer      images and texts to vectors that can be compared */
#ifndef MHLA_MODELS_ROLES_H
#define MHLA_MODELS_ROLES_H

#include <mhla/nn.h>

#include "nn/nn.h"

/* How tokens lie in the attention of image models, or in one stage of a model whose grid shrinks from stage to stage. */
typedef struct mhla_token_view {
    int from; /* layers of the stages before */
    int layers, heads;
    int first;                /* tokens in front of the grid: a class token */
    int grid[2];              /* rows, columns */
    int blocks[2];            /* MHLA's pieces of them, or what they would be */
    int frames, frame_blocks; /* of clips, whose tokens come by frames, rows, columns; 0: images */
    /* NULL: tokens come by rows. Else [cycle][grid], which token of the grid comes t-th in layers i, i + cycle, ...; lives as long
     * as the model */
    const int32_t *orders;
    int cycle;
} mhla_token_view;

enum { MHLA_STAGES = 4 }; /* at most */

/* What a forward pass may be told. Zero: none of these. */
typedef struct mhla_network_run {
    float drop_path;        /* at the last block, growing from 0 at the first */
    int recompute;          /* blocks are computed again in the backward pass instead of kept */
    mhla_tensor **trace;    /* gets what comes out of each block, and what is read out */
    mhla_tensor **features; /* classifiers: gets the rows that the last layer reads */
} mhla_network_run;

/* ---- Classifier ---- */

typedef struct mhla_classifier_info {
    int channels, height, width; /* of an image */
    int padding[2];              /* zero pixels that the model adds above and below, left and right */
    double mean[3], deviation[3],
        crop;              /* how images become inputs: value / 255, minus mean, over deviation; part of the
                                          image's side that an evaluation sees */
    int classes, features; /* features: of the rows that the last layer reads */
    int64_t tokens;
    int stages;
    mhla_token_view view[MHLA_STAGES];
} mhla_classifier_info;

typedef struct mhla_classifier {
    void (*describe)(const void *net, mhla_classifier_info *info);
    /* logits [B,classes] of images [B,channels,height,width] */
    mhla_tensor *(*forward)(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *images);
} mhla_classifier;

mhla_status mhla_classifier_query(const mhla_model *model, mhla_classifier_info *info);
mhla_tensor *mhla_classifier_forward(mhla_tape *t, const mhla_model *model, const mhla_network_run *run,
                                     mhla_tensor *images);

/* ---- Denoiser ---- */

/* Sizes of an array without its channels. frames 0: an image, x is [B,channels,height,width]; else a clip,
 * [B,channels,frames,height,width]. */
typedef struct mhla_extent {
    int64_t frames, height, width;
} mhla_extent;

/* What a prediction is conditioned on: labels [B], or rows of text [B,longest,width], of which lengths [B] count (NULL: all).
 * All of it lives until backward. */
typedef struct mhla_condition {
    const int32_t *labels;
    const float *rows;
    const int32_t *lengths;
    int64_t longest;
} mhla_condition;

typedef struct mhla_denoiser_info {
    int channels, answers; /* of x, of the prediction: twice as many where the variance is learned, too */
    mhla_extent extent;    /* in training */
    int patch;             /* height and width are multiples of it; 0: 1 */
    int process;           /* an index of mhla_process_names */
    int classes;           /* 0: it takes no labels */
    int null_label;        /* 1: label `classes` means none */
    int text_width;        /* of the rows that it takes; 0: none */
    int64_t text_rows;     /* of a text, at most; 0: any number */
    mhla_token_view view;
} mhla_denoiser_info;

typedef struct mhla_denoiser {
    void (*describe)(const void *net, mhla_denoiser_info *info);
    /* Can x be of this size, too? MHLA_EINVAL names the axis. */
    mhla_status (*check)(const void *net, mhla_extent extent);
    int64_t (*tokens)(const void *net, mhla_extent extent);
    /* Multiply-adds of one sample: every product; or, as the paper counts, the linear layers and convolutions alone. */
    int64_t (*cost)(const void *net, mhla_extent extent, int as_paper);
    /* What comes out for a sample is the same, bit by bit, whatever the batch around it and the number of threads. times [B]
     * and the condition live until backward. */
    mhla_tensor *(*forward)(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *x, const float *times,
                            const mhla_condition *condition);
} mhla_denoiser;

mhla_status mhla_denoiser_query(const mhla_model *model, mhla_denoiser_info *info);
mhla_status mhla_denoiser_check(const mhla_model *model, mhla_extent extent);
int64_t mhla_denoiser_tokens(const mhla_model *model, mhla_extent extent);
int64_t mhla_denoiser_cost(const mhla_model *model, mhla_extent extent, int as_paper);
mhla_tensor *mhla_denoiser_forward(mhla_tape *t, const mhla_model *model, const mhla_network_run *run, mhla_tensor *x,
                                   const float *times, const mhla_condition *condition);
/* An input of the tape of n samples of this size. */
mhla_tensor *mhla_denoiser_input(mhla_tape *t, const float *x, int64_t n, int channels, mhla_extent extent);
/* Numbers of a sample of one channel. */
static inline int64_t mhla_extent_pixels(mhla_extent e) { return (e.frames ? e.frames : 1) * e.height * e.width; }

/* ---- Text decoder ---- */

typedef struct mhla_text_info {
    int vocabulary, width, layers;
    int heads;       /* the most that a layer has */
    int chunk;       /* tokens of MHLA's chunks; 0: no layer has any */
    int64_t context; /* tokens that it was made for; 0: not known */
    int64_t longest; /* tokens that a text may have at once; 0: any number */
    double softcap;  /* of the logits; 0: none */
} mhla_text_info;

typedef struct mhla_text_run {
    int recompute; /* layers are computed again in the backward pass instead of kept */
    const int64_t
        *cu_seqlens;   /* packed: B = 1, sequence s is tokens cu_seqlens[s] .. [s+1]-1; none sees another. Lives */
    int64_t sequences; /* until backward */
} mhla_text_run;

typedef struct mhla_text_decoder {
    void (*describe)(const void *net, mhla_text_info *info);
    /* Hidden states [B,T,width] of ids [B*T], which live until backward. An id out of range fails the tape. */
    mhla_tensor *(*forward)(mhla_tape *t, void *net, const mhla_text_run *run, const int32_t *ids, int64_t B,
                            int64_t T);
    mhla_param *(*output)(const void *net); /* [vocabulary,width]: logits = hidden times its transpose, capped */
} mhla_text_decoder;

mhla_status mhla_text_query(const mhla_model *model, mhla_text_info *info);
mhla_tensor *mhla_text_forward(mhla_tape *t, const mhla_model *model, const mhla_text_run *run, const int32_t *ids,
                               int64_t B, int64_t T);
mhla_param *mhla_text_output(const mhla_model *model);
/* mhla_nn_linear_cross_entropy of the logits of hidden states. */
mhla_tensor *mhla_text_loss(mhla_tape *t, const mhla_model *model, mhla_tensor *hidden, const int32_t *labels,
                            float scale, float *losses);

/* ---- Text encoder ---- */

typedef struct mhla_encoder_info {
    int vocabulary, width;
    int64_t longest; /* tokens that it takes; 0: any number */
    int together;    /* texts go through at once, each as if it were alone: weights are read once */
} mhla_encoder_info;

typedef struct mhla_encoder {
    void (*describe)(const void *net, mhla_encoder_info *info);
    /* rows [B,T,width] of ids [B,T], of which the first lengths [B] count (NULL: all). Both live until backward. Rows behind them are
     * of no meaning, but do not change the others; their ids are in range. Text decoders have this role, too: their hidden states. */
    mhla_tensor *(*forward)(mhla_tape *t, void *net, const int32_t *ids, const int32_t *lengths, int64_t B, int64_t T);
} mhla_encoder;

mhla_status mhla_encoder_query(const mhla_model *model, mhla_encoder_info *info);
mhla_tensor *mhla_encoder_forward(mhla_tape *t, const mhla_model *model, const int32_t *ids, const int32_t *lengths,
                                  int64_t B, int64_t T);

/* ---- Autoencoder ---- */

typedef struct mhla_autoencoder_info {
    int channels, outputs, latents; /* of pixels that are encoded, that are decoded, of latents */
    int factor;                     /* pixels per latent on each side */
    int frames;                     /* frames per latent behind the first, which has one of its own; 0: images alone */
    int side;                       /* of an image in training */
    double scale, shift;            /* diffusions see (z - shift) * scale, */
    const float *mean,
        *deviation;       /* or (z - mean) / deviation [latents], as long as the model; NULL: scale and shift */
    int encodes, decodes; /* files may have one half only */
    int certain;          /* pixels have one latent, which is not drawn: encoding makes no variance */
} mhla_autoencoder_info;

typedef struct mhla_autoencoder {
    void (*describe)(const void *net, mhla_autoencoder_info *info);
    /* Multiply-adds of pixels of this size, every product. */
    int64_t (*cost)(const void *net, mhla_extent extent, int decode);
    /* Mean and log variance [B,2*latents,...] of pixels [B,channels,...], -1..1, or, where they are certain, latents [B,latents,...];
     * pixels of latents, all without scale and shift. Images have four axes; where there are frames, clips have five, of images, too. Sizes
     * that do not fit fail the tape, and so does a half that is not there. */
    mhla_tensor *(*encode)(mhla_tape *t, void *net, mhla_tensor *pixels);
    mhla_tensor *(*decode)(mhla_tape *t, void *net, mhla_tensor *latents);
    /* Sets `scale`, which training measures. NULL: an autoencoder that is not trained here. */
    void (*rescale)(void *net, double scale);
} mhla_autoencoder;

mhla_status mhla_autoencoder_query(const mhla_model *model, mhla_autoencoder_info *info);
int64_t mhla_autoencoder_cost(const mhla_model *model, mhla_extent extent, int decode);
mhla_tensor *mhla_autoencoder_encode(mhla_tape *t, const mhla_model *model, mhla_tensor *pixels);
mhla_tensor *mhla_autoencoder_decode(mhla_tape *t, const mhla_model *model, mhla_tensor *latents);
/* From now on, and in config.json. MHLA_ENOTSUP where training cannot measure it. */
mhla_status mhla_autoencoder_rescale(mhla_model *model, double scale);

/* ---- Comparer ---- */

typedef struct mhla_comparer_info {
    int vocabulary;
    int64_t tokens;               /* of every text, padded with zeros behind the token that ends it */
    int channels, side;           /* of an image */
    double mean[3], deviation[3]; /* value / 255, minus mean, over deviation */
    int dims;                     /* of a vector */
} mhla_comparer_info;

typedef struct mhla_comparer {
    void (*describe)(const void *net, mhla_comparer_info *info);
    /* Vectors [B,dims], of any length, of ids [B,tokens], which live until the tape begins anew, and of pixels
     * [B,channels,side,side]. */
    mhla_tensor *(*texts)(mhla_tape *t, void *net, const int32_t *ids, int64_t B);
    mhla_tensor *(*images)(mhla_tape *t, void *net, mhla_tensor *pixels);
} mhla_comparer;

mhla_status mhla_comparer_query(const mhla_model *model, mhla_comparer_info *info);
mhla_tensor *mhla_comparer_texts(mhla_tape *t, const mhla_model *model, const int32_t *ids, int64_t B);
mhla_tensor *mhla_comparer_images(mhla_tape *t, const mhla_model *model, mhla_tensor *pixels);

#endif
