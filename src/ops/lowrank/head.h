/* Inside of the engine: the geometry of a call, the buffers of a thread, the memory of a head, and the steps on a block of its
 * tokens. */
#ifndef MHLA_OPS_LOWRANK_HEAD_H
#define MHLA_OPS_LOWRANK_HEAD_H

#include "ops/lowrank/lowrank.h"

typedef struct mhla_low_geometry {
    int K, V, rotated;
    mhla_panels pv, pk;      /* columns V, columns K */
    int64_t T, blocks, most; /* tokens; blocks of a head; tokens of the largest */
    int64_t ldk, ldv;        /* row strides of features and of values */
    int64_t size;            /* floats of S, panelled [K][V] (backward: [V][K]) */
    int64_t ks, vs, ld;      /* in a summary, which is ld floats: where the sums of k~ and of v are */
} mhla_low_geometry;

/* Scratch memory of one thread. */
typedef struct mhla_low_buffers {
    float *q, *q_plain, *k, *k_plain; /* [most][ldk] features of a block, rotated and not; without rotary the same */
    int64_t queries_of, keys_of;      /* which block these are, -1 at first */
    float *v, *g, *h;                 /* a piece: [n][ldv], [n][ldv], [n][ldk] */
    float *x, *alpha, *ratio;         /* [most] see mhla_coefficients */
    float *dalpha, *dbeta, *dx, *ones;
} mhla_low_buffers;

/* What belongs to one head while it is worked on. */
typedef struct mhla_low_memory {
    float *S, *D;                /* [blocks][ld] summaries, their gradients; [0] is the total once they are joined */
    float *t;                    /* [K] panelled over V: the gradient of S, turned */
    float *mean, *dmean;         /* weighted: [blocks][ldk] sums of q~, then the mean; its gradient */
    float *a, *da;               /* weighted: [T] weights; weight times its gradient */
    float *peak, *total, *shift; /* weighted: [blocks] largest score, sum of weights, sum of da */
} mhla_low_memory;

/* Focused: what the map needs from all heads of a token. [2] is q, k. */
typedef struct mhla_low_focus {
    float *inverse;                      /* [H][ldk] 1 / softplus(focus), 0 from K on */
    float *reach[2], *gain[2], *unit[2]; /* [B][T] */
    int64_t first;                       /* backward: batch entry that the following begin with */
    float *df[2], *along[2];             /* [entries][H][T][ldk] gradients of features; [entries][H][T] df . f */
    float *sums, *total;                 /* [entries][blocks][H][ldk] sums of a da; [H][ldk] of all entries so far */
} mhla_low_focus;

typedef struct mhla_low_head {
    const mhla_run *run;
    const mhla_lowrank *op;
    const mhla_low_geometry *g;
    const mhla_low_focus *focus;
    mhla_low_buffers *buf;
    const mhla_low_memory *m;
    int64_t b, h;
    int64_t next; /* the head of this batch entry that the thread takes after this one, or -1 */
} mhla_low_head;

/* A stage of the work on a head: `step` on each block, in any order, then `join` (or NULL) once. */
typedef struct mhla_low_stage {
    void (*step)(const mhla_low_head *x, int64_t block);
    void (*join)(const mhla_low_head *x);
} mhla_low_stage;

static inline int64_t mhla_low_begin(const mhla_low_geometry *g, int64_t block) { return block * g->T / g->blocks; }

/* Tokens of a piece: what a product's tile reads stays in L1. Piece p of n tokens begins at p * n / pieces. */
enum { MHLA_LOW_PIECE = 128 };
static inline int mhla_low_pieces(int n) { return (n + MHLA_LOW_PIECE - 1) / MHLA_LOW_PIECE; }

mhla_rows mhla_low_rows(const mhla_low_head *x, const void *base, mhla_dtype dtype, const mhla_strides *s, int64_t at);
mhla_prefetch mhla_low_fetch(const mhla_low_head *x, const void *base, mhla_dtype dtype, const mhla_strides *s,
                             int64_t at, int n, int cols);
int mhla_low_fetch_next(const mhla_low_head *x, mhla_prefetch fetch[2], int64_t at, int n);
void mhla_low_queries(const mhla_low_head *x, int64_t block);
void mhla_low_keys(const mhla_low_head *x, int64_t block);
mhla_rows mhla_low_values(const mhla_low_head *x, int64_t at, int n, const float *scale);
void mhla_low_sum(const mhla_low_head *x, float *sum, const mhla_panels *p, const float *w, const float *rows,
                  int64_t ld, int n, mhla_store store);
mhla_coefficients mhla_low_coefficients(const mhla_low_head *x, int n);

/* Stages of the forward, of which the first two belong to the backward as well (there S is transposed). */
void mhla_low_mean_step(const mhla_low_head *x, int64_t block);
void mhla_low_mean_join(const mhla_low_head *x);
void mhla_low_summary_step(const mhla_low_head *x, int64_t block);
void mhla_low_summary_join(const mhla_low_head *x);
void mhla_low_output_step(const mhla_low_head *x, int64_t block);

/* backward.c */
void mhla_low_query_step(const mhla_low_head *x, int64_t block);
void mhla_low_query_join(const mhla_low_head *x);
void mhla_low_key_step(const mhla_low_head *x, int64_t block);
void mhla_low_weight_step(const mhla_low_head *x, int64_t block);
void mhla_low_weight_join(const mhla_low_head *x);
void mhla_low_spread_step(const mhla_low_head *x, int64_t block);

/* focus.c: of q (which = 0) or k (1) */
void mhla_low_focus_inverse(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus);
void mhla_low_focus_norms(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, int64_t b,
                          int64_t block);
void mhla_low_focus_features(const mhla_low_head *x, int which, int64_t at, int n, float *f);
void mhla_low_focus_keep(const mhla_low_head *x, int which, int64_t at, int n, const float *f, const mhla_unpack *u);
void mhla_low_focus_finish(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, float *along,
                           int64_t b, int64_t block);
void mhla_low_focus_add(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus, int64_t entries);
void mhla_low_focus_store(const mhla_run *run, const mhla_low_geometry *g, const mhla_low_focus *focus);

#endif
