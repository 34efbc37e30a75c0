/* An analysis, inside: what was found, sample by sample, and what a page needs to show it. look.c runs a model and fills it,
 * look_inputs.c feeds the model, look_files.c and page*.c write it. */
#ifndef MHLA_ANALYSIS_LOOK_H
#define MHLA_ANALYSIS_LOOK_H

#include <mhla/analysis.h>
#include <stdio.h>

#include "analysis/matrix.h"
#include "image/image.h"
#include "models/model.h"

/* Of one sample, layer and head. */
typedef struct mhla_found {
    double rank, effective; /* NaN where it was not decomposed */
    mhla_row_measures rows;
    double svd_seconds;
} mhla_found;

typedef struct mhla_found_layer {
    const char *attention;
    int heads, causal;
    int64_t bound;
    mhla_mix_analysis mix; /* blocks 0: there is none; matrices are ours */
} mhla_found_layer;

struct mhla_analysis {
    int text; /* the model is a text decoder: samples are windows of text, and there is a loss by position */
    char model[64], kind[16], attention[16], data[256];
    int staged, from; /* the model has several stages; layers before the one that is looked into */
    int layers, heads;
    int64_t T, rows;
    int64_t *which; /* [rows], NULL: all */
    int grid[2], first, blocks[2], chunk;
    int frames, frame_blocks; /* of clips; 0: images, texts */
    const int32_t *orders;    /* [cycle][T] of layers that read the grid in another order (mhla_token_view), or NULL */
    int cycle;
    mhla_place_of *place; /* [T] */
    int64_t samples, rank_samples, maps;
    mhla_found_layer *layer; /* [layers] */
    mhla_found *found;       /* [layers,heads,samples] */
    float *map;              /* [maps,layers,heads,rows,T] */
    /* what maps are of: pictures as the model sees them, padding counted, and their class or ""; or the text of each token */
    mhla_image *pictures; /* [maps] */
    char **titles;        /* [maps] */
    char **pieces;        /* [maps,T], language models */
    double *position;     /* [T] sums of losses, then means */
    double loss;
    double seconds, svd_seconds;
    int64_t *tokens; /* [token_count] whose maps are written */
    int token_count;
};

static inline mhla_found *mhla_found_at(const mhla_analysis *a, int layer, int head, int64_t sample) {
    return a->found + ((int64_t)layer * a->heads + head) * a->samples + sample;
}
static inline float *mhla_map_at(const mhla_analysis *a, int64_t sample, int layer, int head) {
    return a->map + ((sample * a->layers + layer) * a->heads + head) * a->rows * a->T;
}

/* ---- look_inputs.c: samples for a model ---- */

typedef struct mhla_inputs mhla_inputs;

/* Opens what desc names, evenly spread; *samples: how many there are at most. T of a language model is a->T. */
mhla_status mhla_inputs_open(mhla_inputs **inputs, mhla_model *model, const mhla_analysis_desc *desc, mhla_analysis *a);
void mhla_inputs_free(mhla_inputs *inputs);
int64_t mhla_inputs_count(const mhla_inputs *inputs);
/* Runs samples first .. first+count-1 through the model, on a tape that is watched. Of those below a->maps what the page
 * shows of them is kept; of language models losses are added to a->position. */
mhla_status mhla_inputs_run(mhla_inputs *inputs, mhla_tape *tape, mhla_analysis *a, int64_t first, int64_t count);

int mhla_frames_across(int frames);

/* ---- mix.c: mixing matrices ---- */

enum { MHLA_MIX_FRAMES, MHLA_MIX_ROWS, MHLA_MIX_COLUMNS, MHLA_MIX_AXES };

/* The matrix of layer l as it is, and as its config would make it. */
mhla_status mhla_mix_read(mhla_analysis *a, mhla_found_layer *l, mhla_param *p);
/* Blocks on an axis. */
int mhla_mix_places(const mhla_mix_analysis *x, int axis);
/* share [n,n] of the n places on an axis: what of its weight a query block at place i gives to blocks at place j, mean over the query
 * blocks there; negative weights count as 0, and a class token stays out. */
void mhla_mix_along(float *share, const float *m, const mhla_mix_analysis *x, int axis);

/* ---- page.c ---- */

mhla_status mhla_analysis_page(FILE *out, const mhla_analysis *const *list, const char *const *names, int count);

/* ---- page.css, page.js: attention maps that follow the pointer or the arrow keys, all models at once. A map is decoded
 * when it is first shown. ---- */

extern const char mhla_page_css[], mhla_page_js[];

#endif
