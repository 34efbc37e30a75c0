/* What the two files of the causal gradient share: a worker's scratch and a unit on its way through both walks. */
#ifndef MHLA_OPS_CAUSAL_BACKWARD_H
#define MHLA_OPS_CAUSAL_BACKWARD_H

#include "ops/causal/causal.h"

typedef struct mhla_back_scratch {
    mhla_causal_scratch x;
    float *a;                     /* [block][Vw]: scale * do / den */
    float *vT;                    /* panelled [V][block] */
    float *ds;                    /* [block][ld_scores]: a v^T */
    float *turned;                /* [block][ld_scores]: a triangle, transposed and back to front */
    float *dq, *dk, *plain, *dk2; /* [block][Kp] */
    float *dv;                    /* [block][Vw] */
    float *dS;                    /* panelled [K][V] */
} mhla_back_scratch;

typedef struct mhla_back_unit {
    mhla_causal_unit u;
    int64_t blocks, chunk_lo, chunk_hi; /* blocks with tokens; chunks [lo, hi) whose dS is wanted */
    int64_t first_chunk;                /* first one with tokens */
    mhla_summary_list *D;               /* [mixes]: dP of block i is row blocks - 1 - i */
    mhla_summary_list *Dc;              /* [mixes], running: the same summed over each chunk, row chunk_hi - 1 - i */
    int64_t done;                       /* blocks before the group */
    float *diagonal;                    /* [group][ratio]: the blocks' own part of dm_ii */
    float *dots;                        /* [mixes][group], running: <D, R> of the blocks */
    float *products;                    /* [mixes][group+1][cap] <D, S> */
    float *W;                           /* [mixes][rows][.] weights of the backward walk */
    float *T;     /* [group+1][P_row]: dS of the group's blocks; running: row `group` is carried on */
    float *dmix;  /* [mixes][M,M] of the unit, or NULL */
    int64_t tail; /* CLAMP: D rows up to here are merged into this one */
    int64_t top;  /* backward walk: chunk of T row 0 */
    int rows, starts;
    int64_t inside, left; /* backward walk, running: blocks still to come of the chunk at hand, and of all before it */
} mhla_back_unit;

/* Forward walk, one block: dq, the block's own part of dk and dv, D; all query heads. */
void mhla_causal_block_backward(const mhla_back_unit *bu, mhla_back_scratch *b, int block);

/* d (rotated) and plain or z (not) through the feature map into the caller's rows; dx NULL: not wanted. */
void mhla_causal_unpack(const mhla_causal_unit *u, float *dx, const mhla_strides *dst, const void *x,
                        const mhla_strides *st, int64_t head, int64_t t, int n, const float *d, const float *plain,
                        const float *z, int accumulate);

#endif
