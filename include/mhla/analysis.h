/* analysis.h - the attention inside a model: rank, entropy, maps, mixing matrices. On top of nn.h and lm.h.
 *
 *   1. analysing a model        2. results               3. files and reports
 *
 * The analysed matrix is the one that the model uses: A [T,T] of a layer and a head, computed in double from the model's q
 * and k. A v is the output of the attention before depthwise terms, gates and projections. In language models, entries
 * above the diagonal are 0. Their rank is measured without this mask, because the mask alone gives almost any matrix full
 * rank.
 *
 * The conventions are those of nn.h: statuses with one sentence in mhla_message(), structs that begin with their size,
 * zero is always the default, handles belong to the caller. */
#ifndef MHLA_ANALYSIS_H
#define MHLA_ANALYSIS_H

#include <mhla/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Analysing a model ---------------------------------------------------------------------------------------- */

typedef struct mhla_analysis mhla_analysis;

typedef struct mhla_analysis_desc {
    size_t size;
    const char *data;     /* images: the name of a dataset, a folder of images, an .npy, or one image; models of clips: a dataset
                             of clips; NULL: the training data of the model's run. Language models: a UTF-8 text file, or a folder or dataset with
                             validation.txt; a model without a tokenizer reads bytes */
    const char *split;    /* of a dataset: "test" (default), "train" */
    int64_t samples;      /* number of images or windows of text, evenly spread; entropies and shares are means over them.
                             0: 500 images, 16 windows. Fewer if the data has fewer */
    int64_t rank_samples; /* number of these samples, evenly spread, whose rank is computed; 0: 64 up to 128 tokens, 16 up to
                             256, otherwise 4; negative: none */
    int64_t rows;         /* number of rows of each matrix, spread over it, for long sequences. 0: all; then MHLA_ERANGE beyond
                             MHLA_ANALYSIS_TOKENS tokens */
    int64_t window;       /* tokens in a window of text; 0: the model's context, at most 512 */
    int64_t maps;         /* number of samples (the first ones) whose matrices are kept for mhla_analysis_map and for reports;
                             0: 4, negative: none. Fewer if they would take more than MHLA_ANALYSIS_MAPS bytes */
    double time;          /* diffusion models: noise level of the images, up to 1000; 0: 500 */
    /* Writes matrices for NumPy: dump is a folder, created if it does not exist, for sample-S.layer-L.head-H.A.npy [rows,T]
     * float64, .v.npy [T,V] and .o.npy [T,V] float32. Causal attention also gets .scores.npy, A without the mask, whose rank
     * is measured. .rows.npy lists the rows if not all were computed. */
    const char *dump;
    int64_t dump_sample;
    int dump_layer, dump_head; /* from 0; -1: all */
    mhla_progress_fn progress; /* a step is one sample of one layer */
    void *user;
    /* Tokens whose attention maps go into the JSON (section 3), for each sample with maps, all layers and heads. */
    const int64_t *tokens;
    int token_count;
    int chunk; /* language models: tokens in a block, for own, near and far; 0: the chunks of MHLA layers, or 64. Use the same
                  number for models that you compare */
    int stage; /* models whose grid shrinks from stage to stage: the stage whose layers are analysed, from 1; 0: the first */
} mhla_analysis_desc;

enum { MHLA_ANALYSIS_TOKENS = 4096, MHLA_ANALYSIS_MAPS = 64 << 20 };

/* Analyses the model on the data. Each thread has the matrices of one sample in memory. MHLA_ENOTSUP for a kind of
 * attention whose matrix cannot be computed; MHLA_ERANGE for more than MHLA_ANALYSIS_TOKENS tokens without `rows`. */
MHLA_API mhla_status mhla_analysis_create(mhla_analysis **analysis, mhla_model *model, const mhla_analysis_desc *desc);
MHLA_API void mhla_analysis_free(mhla_analysis *analysis); /* NULL is legal */

/* ---- 2. Results -------------------------------------------------------------------------------------------------- */

typedef struct mhla_analysis_info {
    size_t size;
    const char *model; /* "deit_nano"; this and other texts live as long as the analysis */
    const char *kind;  /* "classifier", "diffusion", "language" */
    const char *attention; /* "mhla", "linear", "softmax", ...; "mixed" if layers differ */
    int layers, heads;     /* the largest number of heads of a layer */
    int64_t tokens;        /* T */
    int64_t rows;          /* computed rows of each matrix */
    int grid[2];           /* patches per axis, of one frame; a language model: {T, 1} */
    int first;             /* tokens before the grid: 1 for a class token */
    int blocks[2];         /* blocks for own, near and far: those of the mixing matrix, or of the config */
    int64_t samples, rank_samples, maps; /* the numbers that were used */
    double seconds, svd_seconds;         /* in all; for SVDs, the mean over threads */
    int causal;
    double loss;           /* language models: nats per token; else NaN */
    int chunk;             /* language models: tokens in a block; else 0 */
    int frames, frame_blocks; /* of clips: frames, and blocks over them; images: 0 */
} mhla_analysis_info;
MHLA_API mhla_status mhla_analysis_query(const mhla_analysis *analysis, mhla_analysis_info *info);

/* For a layer and a head: means over samples, and deviations between samples. */
typedef struct mhla_head_analysis {
    size_t size;
    const char *attention;
    int64_t bound;           /* upper bound of the rank: T for softmax; min(T, sum_b min(n_b, K)) for MHLA; K for linear,
                                Focused and RALA; K + 1 for InLine and MALA; T for recurrences with decay. At most `rows` */
    double rank, rank_deviation; /* number of singular values above max(rows, T) 2^-52 times the largest; NaN without rank samples */
    double effective_rank, effective_rank_deviation; /* exp of the entropy of the singular values over their sum */
    double entropy, entropy_deviation; /* -sum a ln a, mean over rows, with negative weights set to 0 and rows scaled to sum 1 */
    double clipped;          /* negative weight as a share of the sum of absolute values; mean over rows */
    double dead;             /* share of rows without any positive weight: they are left out of the means */
    double own, near, far;   /* shares of weight, as for the entropy, on the query's own block, on the blocks around it (up
                                to 1.5 away, centre to centre), and on the others. The class token is left out */
    double distance;         /* mean distance between the query and its keys, in patches (a frame counts as one) or tokens;
                                without the class token */
} mhla_head_analysis;
MHLA_API mhla_status mhla_analysis_head(const mhla_analysis *analysis, int layer, int head, mhla_head_analysis *result);

/* The mixing matrix of a layer, before training (from the config) and now, both [blocks, blocks]; row i has the weights of
 * query block i. MHLA_EINVAL for a layer that has none. */
typedef struct mhla_mix_analysis {
    size_t size;
    int64_t blocks;             /* M */
    int grid[2];                /* of these blocks, after `first` blocks for a class token */
    int first;
    const float *before, *after; /* owned by the analysis */
    double own[2], near[2], far[2]; /* shares of weight, before and after, mean over rows */
    int frames;                 /* of clips: blocks over frames, which come first, then rows and columns; images: 0 */
} mhla_mix_analysis;
MHLA_API mhla_status mhla_analysis_mix(const mhla_analysis *analysis, int layer, mhla_mix_analysis *result);

/* weights [T]: what token `token` of sample `sample` (less than `maps`) attends to: its row of A. */
MHLA_API mhla_status mhla_analysis_map(const mhla_analysis *analysis, float *weights, int64_t sample, int layer,
                                       int head, int64_t token);

/* Language models: (*loss)[i], i < *positions, is the mean loss in nats of the token that follows position i of a window. */
MHLA_API mhla_status mhla_analysis_positions(const mhla_analysis *analysis, const double **loss, int64_t *positions);

/* ---- 3. Files and reports ------------------------------------------------------------------------------------------ */

/* Writes `count` analyses under these `names`, whole or not at all. The ending of `path` chooses the format: .json (all
 * figures), .csv (a line for each layer and head), .html (one self-contained page of less than 5 MB with charts, mixing
 * matrices, and attention maps that follow mouse and keyboard). */
MHLA_API mhla_status mhla_analysis_write(const char *path, const mhla_analysis *const *analyses,
                                         const char *const *names, int count);

#ifdef __cplusplus
}
#endif
#endif
