/* What the files of the selective scan share: the checked call, and how channels are cut into slabs of tiles. */
#ifndef MHLA_OPS_SCAN_H
#define MHLA_OPS_SCAN_H

#include "ops/op.h"

/* CHUNK: tokens that a kernel takes at once. A slab is SLAB channels, or what a group has left: the work of one task. */
enum { MHLA_SCAN_CHUNK = 32, MHLA_SCAN_SLAB = 64, MHLA_SCAN_TILES = MHLA_SCAN_SLAB / MHLA_SCAN_TILE };

/* A call after validation; strides are filled in. */
typedef struct mhla_scan_run {
    mhla_scan_call call;
    mhla_scan_grads grads;
    const float *u, *delta, *A, *B, *C, *dy;
    float *y;
    float *const *states; /* streaming: [sequences] states [I,N], before and after, instead of those of the call */
    const mhla_kernels *kernels;
    int threads;
    int64_t N, G;        /* states, groups */
    int64_t group_slabs; /* slabs of one group */
    int64_t slabs;       /* of all */
    char *ws;
} mhla_scan_run;

/* Sequence s covers `tokens` rows from row `begin` of batch entry `batch` on. */
typedef struct mhla_span {
    int64_t batch, begin, tokens;
} mhla_span;
static inline int64_t mhla_scan_sequences(const mhla_scan_call *c) { return c->cu_seqlens ? c->sequences : c->batch; }
static inline mhla_span mhla_scan_span(const mhla_scan_call *c, int64_t s) {
    if (c->cu_seqlens == NULL) return (mhla_span){s, 0, c->tokens};
    return (mhla_span){0, c->cu_seqlens[s], c->cu_seqlens[s + 1] - c->cu_seqlens[s]};
}

/* Channels [first, first + count) of group g, in `tiles` tiles. */
typedef struct mhla_slab_range {
    int64_t g, first;
    int count, tiles;
} mhla_slab_range;
static inline mhla_slab_range mhla_scan_slab(const mhla_scan_run *run, int64_t i) {
    const int64_t of_group = run->call.channels / run->G, g = i / run->group_slabs,
                  at = i % run->group_slabs * MHLA_SCAN_SLAB;
    const int count = of_group - at < MHLA_SCAN_SLAB ? (int)(of_group - at) : MHLA_SCAN_SLAB;
    return (mhla_slab_range){g, g * of_group + at, count, (count + MHLA_SCAN_TILE - 1) / MHLA_SCAN_TILE};
}

/* What a thread needs for a slab: parameters as tiles, and the scratch of the kernels. */
typedef struct mhla_scan_scratch {
    float *A, *h;          /* [tiles][N][16] */
    float *D, *bias;       /* [tiles][16] */
    float *step, *x, *sum; /* [CHUNK][16] */
} mhla_scan_scratch;
mhla_scan_scratch mhla_scan_carve(mhla_carver *c, const mhla_scan_run *run);

/* A, D and bias of a slab. */
void mhla_scan_load(const mhla_scan_run *run, mhla_scan_scratch *z, const mhla_slab_range *slab);
/* A state [I,N] of the caller to tiles (NULL = zeros), and back. */
void mhla_scan_state_in(const mhla_scan_run *run, float *h, const float *state, const mhla_slab_range *slab);
void mhla_scan_state_out(const mhla_scan_run *run, float *state, const float *h, const mhla_slab_range *slab);
/* The kernel's view of `n` tokens from token t of the sequence on, of tile `tile`. y is not set. */
mhla_scan mhla_scan_at(const mhla_scan_run *run, const mhla_scan_scratch *z, const mhla_slab_range *slab,
                       const mhla_span *span, int64_t t, int n, int tile);

mhla_status mhla_scan_check(mhla_scan_run *run, const mhla_scan_call *call);
mhla_status mhla_scan_check_forward(mhla_scan_run *run, const mhla_scan_call *call, float *y, const float *u,
                                    const float *delta, const float *A, const float *B, const float *C);
mhla_status mhla_scan_check_backward(mhla_scan_run *run, const mhla_scan_call *call, const mhla_scan_grads *grads,
                                     const float *dy, const float *u, const float *delta, const float *A,
                                     const float *B, const float *C);

/* mhla_scan_forward of sequences that go on: states[s] is the state of sequence s, [I,N], before and after. */
mhla_status mhla_scan_continue(const mhla_scan_call *call, float *const *states, float *y, const float *u,
                               const float *delta, const float *A, const float *B, const float *C, void *ws);

#endif
