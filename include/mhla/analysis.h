/* analysis.h - what attention does inside a model: rank, entropy, maps, mixing matrices. On top of nn.h and lm.h.
 *
 *   1. analysing a model        2. what was found        3. files and reports
 *
 * The matrix that is analysed is the one that the model uses: A [T,T] of a layer and a head, formed in double from the
 * model's own q and k, with A v = what that layer's attention gives, before depthwise terms, gates and projections. Of
 * language models, what is above the diagonal is 0; their rank is that of the scores without this mask, because the mask
 * alone makes almost any matrix one of full rank.
 *
 * Manners are those of nn.h: statuses with one sentence in mhla_message(), structs that begin with their size, zero is
 * always the default, handles belong to the caller. */
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
    const char
        *data; /* images: a dataset's name, a folder with pictures, an .npy, or one picture; NULL: what the run that the
                             model was opened from was trained on. Language models: a file of text (UTF-8), or
                             a folder or set with validation.txt; a model without a tokenizer reads its bytes */
    const char *split; /* of a dataset: "test" (default), "train" */
    int64_t
        samples; /* images, or windows of text, evenly spread over the data: entropies and shares are means over them;
                             0: 500 images, 16 windows. Fewer where there are no more */
    int64_t
        rank_samples; /* of these, evenly spread, so many are decomposed for ranks; 0: 64 up to 128 tokens, 16 up to 256, else
                             4; negative: none */
    int64_t rows;   /* of every matrix only so many rows, evenly spread, are formed: for long sequences. 0: all, and
                             MHLA_ERANGE beyond MHLA_ANALYSIS_TOKENS */
    int64_t window; /* tokens of a window of text; 0: the model's context, 512 at most */
    int64_t maps;   /* so many samples (the first ones) keep their matrices for mhla_analysis_map and for reports; 0: 4,
                             negative: none. Fewer where they would take more than MHLA_ANALYSIS_MAPS bytes */
    double time;    /* diffusion models: images are seen with the noise of this time, up to 1000; 0: 500 */
    /* Matrices as files for NumPy: dump is a folder, made if it is not there, that gets sample-S.layer-L.head-H.A.npy
     * [rows,T] float64, .v.npy [T,V] and .o.npy [T,V] float32; of causal attention .scores.npy, A without the mask, which
     * the rank is of; .rows.npy where not all rows were formed. */
    const char *dump;
    int64_t dump_sample;
    int dump_layer, dump_head; /* from 0; -1: all */
    mhla_progress_fn progress; /* steps done of all; a step is a sample of a layer */
    void *user;
    /* Tokens whose attention maps go into the JSON (section 3), of every sample that keeps maps, all layers and heads. */
    const int64_t *tokens;
    int token_count;
    int chunk; /* language models: tokens of a block, which own, near and far are told by; 0: the chunks of MHLA layers, or 64.
                  Models that stand side by side need the same */
    /* Models whose grid shrinks from stage to stage: the stage whose layers are analysed, from 1; 0: the first. */
    int stage;
} mhla_analysis_desc;

enum { MHLA_ANALYSIS_TOKENS = 4096, MHLA_ANALYSIS_MAPS = 64 << 20 };

/* Runs the model over the data. One sample's matrices are in memory at a time for each thread. MHLA_ENOTSUP for a kind of
 * attention that has no explicit matrix here; MHLA_ERANGE for more than MHLA_ANALYSIS_TOKENS tokens without `rows`. */
MHLA_API mhla_status mhla_analysis_create(mhla_analysis **analysis, mhla_model *model, const mhla_analysis_desc *desc);
MHLA_API void mhla_analysis_free(mhla_analysis *analysis); /* NULL is legal */

/* ---- 2. What was found ------------------------------------------------------------------------------------------- */

typedef struct mhla_analysis_info {
    size_t size;
    const char *model;     /* "deit_nano"; this and other texts live as long as the analysis */
    const char *kind;      /* "classifier", "diffusion", "language" */
    const char *attention; /* "mhla", "linear", "softmax", ...; "mixed" where layers differ */
    int layers, heads;     /* heads of the layer that has most */
    int64_t tokens;        /* T */
    int64_t rows;          /* of each matrix, as formed */
    int grid[2];           /* patches per axis; a language model: {T, 1} */
    int first;             /* tokens in front of the grid: 1 for a class token */
    int blocks[2];         /* that near and far are told by: the mixing matrix's, or those of the config */
    int64_t samples, rank_samples, maps; /* as used */
    double seconds, svd_seconds;         /* in all; of these the SVDs, added up over threads and divided by them */
    int causal;
    double loss; /* language models: nats per token; else NaN */
    int chunk;   /* language models: tokens of a block; else 0 */
} mhla_analysis_info;
MHLA_API mhla_status mhla_analysis_query(const mhla_analysis *analysis, mhla_analysis_info *info);

/* Of a layer and a head: means over samples, and deviations between samples. */
typedef struct mhla_head_analysis {
    size_t size;
    const char *attention;
    int64_t bound; /* the most that the rank can be: T of softmax; min(T, sum_b min(n_b, K)) of MHLA; K of linear,
                                Focused and RALA; K + 1 of InLine and MALA; T of recurrences with decay. At most `rows` */
    double rank,
        rank_deviation; /* singular values above max(rows, T) 2^-52 times the largest; NaN without rank samples */
    double effective_rank, effective_rank_deviation; /* exp of the entropy of the singular values over their sum */
    double entropy, entropy_deviation; /* -sum a ln a, mean over rows; negative weights are 0 and rows sum to 1 there */
    double clipped; /* sum of what was negative, over the sum of all absolute values; mean over rows */
    double dead;    /* share of rows that have no weight at all: they count for no mean */
    double own, near,
        far;         /* shares of weight, as for the entropy, on the query's own block, on the blocks around it (up
                                to 1.5 away, centre to centre), on the others. A class token's row and column stay out */
    double distance; /* mean distance from the query of what it attends to, in patches or tokens; likewise */
} mhla_head_analysis;
MHLA_API mhla_status mhla_analysis_head(const mhla_analysis *analysis, int layer, int head, mhla_head_analysis *result);

/* The mixing matrix of a layer, before training (as the config makes it) and now, both [blocks, blocks]; row i is what query
 * block i takes. MHLA_EINVAL for a layer that has none. */
typedef struct mhla_mix_analysis {
    size_t size;
    int64_t blocks; /* M */
    int grid[2];    /* of these, behind `first` blocks for a class token */
    int first;
    const float *before, *after;    /* the analysis's */
    double own[2], near[2], far[2]; /* shares of weight, before and after, mean over rows */
} mhla_mix_analysis;
MHLA_API mhla_status mhla_analysis_mix(const mhla_analysis *analysis, int layer, mhla_mix_analysis *result);

/* weights [T]: what token `token` of sample `sample` (below `maps`) attends to: its row of A, as the model has it. */
MHLA_API mhla_status mhla_analysis_map(const mhla_analysis *analysis, float *weights, int64_t sample, int layer,
                                       int head, int64_t token);

/* Language models: *loss [*positions] is the mean loss, nats, of the token that follows position i of a window. */
MHLA_API mhla_status mhla_analysis_positions(const mhla_analysis *analysis, const double **loss, int64_t *positions);

/* ---- 3. Files and reports ------------------------------------------------------------------------------------------ */

/* Writes `count` analyses, called `names`, whole or not at all. By the ending of `path`: .json (all figures), .csv (a line
 * per layer and head), .html (one self-contained page of less than 5 MB: charts, mixing matrices, and attention maps that
 * answer mouse and keyboard). */
MHLA_API mhla_status mhla_analysis_write(const char *path, const mhla_analysis *const *analyses,
                                         const char *const *names, int count);

#ifdef __cplusplus
}
#endif
#endif
