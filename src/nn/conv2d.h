/* What the files of dense convolutions share: the grids that are convolved, and the tile that tasks copy of one. */
#ifndef MHLA_NN_CONV2D_H
#define MHLA_NN_CONV2D_H

#include "nn/op.h"

enum { MHLA_CONV_DEPTH = 3 }; /* frames that a kernel reads, at most */

/* Tokens [B,H*W,C] in rows of ld, and the kernel that runs over them: output (i,j) reads rows i*stride - top .. + kh - 1 and
 * columns j*stride - left .. + kw - 1, of each of `depth` frames. */
typedef struct mhla_conv_grid {
    const mhla_kernels *kernels;
    const float *x[MHLA_CONV_DEPTH]; /* NULL: a frame of zeros */
    int depth;
    int64_t ld, H, W, C;
    int64_t kh, kw, stride, top, left;
    int64_t Ho, Wo;
} mhla_conv_grid;

/* Outputs rows i .. i+rows-1, columns j .. j+cols-1 of sample b, and channels c .. c+n-1 of what they read in frame d. */
typedef struct mhla_conv_block {
    int64_t b, i, j, rows, cols, c, n;
    int d;
} mhla_conv_block;

/* Rows and columns of the tile that so many outputs read. */
static inline int64_t mhla_conv_reach(const mhla_conv_grid *g, int64_t outputs, int64_t taps) {
    return (outputs - 1) * g->stride + taps;
}

/* That part of the grid as [rows][columns][ct], zeros outside and from channel n on: float32, or bfloat16 if `pairs`. */
void mhla_conv_fill(const mhla_conv_grid *g, void *tile, int pairs, int64_t ct, const mhla_conv_block *k);

/* dw [O,C,depth,kh,kw] (=, +=) the sum over outputs of dy [B*Ho*Wo,O] times what they read; g is the grid of the forward. */
void mhla_conv_weight_grad(mhla_tape *t, const mhla_conv_grid *g, int64_t B, const mhla_param *w, const float *dy,
                           int64_t lddy, const mhla_slot *dw);

#endif
