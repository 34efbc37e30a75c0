/* What forward and backward of the bidirectional operator share: the geometry of a call, the buffers of a thread, and the
 * steps on one head. */
#ifndef MHLA_OPS_BIDIRECTIONAL_HEAD_H
#define MHLA_OPS_BIDIRECTIONAL_HEAD_H

#include "ops/bidirectional/bidirectional.h"

enum { MHLA_MAX_TEAM = 8 };

/* Queries, or keys and values: where they are and how they are cut. */
typedef struct mhla_side {
    const mhla_layout *layout; /* NULL for linear attention, whose blocks are only pieces of work */
    int64_t T, M;              /* tokens, blocks */
    const float *cos, *sin;    /* rotary */
} mhla_side;

typedef struct mhla_geometry {
    int K, V, linear, normalised, released;
    int pairs;              /* the forward multiplies bfloat16 pairs */
    mhla_panels pv, pk;     /* columns V, columns K */
    mhla_side q, k;         /* k.M blocks are summarised */
    int64_t rows;           /* of the mixing: q.M, or 1 for linear attention */
    int64_t max_block, ldn; /* tokens of the largest block; row stride of [M][max_block] buffers */
    int piece;              /* tokens packed at a time */
    int64_t ldk, ldv;       /* row strides of packed q~, k~ and of g */
    int64_t z, used, ld;    /* a summary: S panelled [K][V] (backward: [V][K]), z at `z`, `used` floats, `ld` apart */
    int team;               /* heads that go together */
    int64_t group;          /* mixture rows made at a time, at most */
    int64_t groups;         /* of them; of blocks of keys: */
    int64_t key_groups;
    int64_t slabs; /* of heads that are split among threads: parts of a summary that are mixed one by one */
} mhla_geometry;

/* Scratch memory of one thread. n = piece tokens. */
typedef struct mhla_buffers {
    float *P;                  /* [team][group][ld] mixtures */
    float *k, *q;              /* [n][ldk] */
    float *v;                  /* [n] panelled over V, or rows of ldv */
    float *den, *row_scale;    /* [n] */
    float *dots, *dens;        /* [M][ldn], `released`, where both sides have M blocks */
    float *h, *g;              /* backward: [n][ldk], [n][ldv] */
    float *t;                  /* backward: one summary, transposed */
    uint16_t *a16, *b16, *p16; /* bfloat16: [n][ldk] or [K][n+1], [n+1][V], [K+1][V] */
} mhla_buffers;

typedef struct mhla_head {
    const mhla_run *run;
    const mhla_geometry *g;
    int64_t b, h;
    const float *mix; /* [q.M][k.M]; NULL for linear attention */
} mhla_head;

mhla_geometry mhla_bidirectional_geometry(const mhla_run *run, int backward);
mhla_buffers mhla_bidirectional_buffers(mhla_carver *w, const mhla_geometry *g, int backward);
mhla_head mhla_bidirectional_head(const mhla_run *run, const mhla_geometry *g, int64_t index);
size_t mhla_bidirectional_forward_workspace(const mhla_run *run);
size_t mhla_bidirectional_backward_workspace(const mhla_run *run);

int64_t mhla_head_begin(const mhla_side *side, int64_t block);
mhla_rows mhla_head_rows(const mhla_head *x, const mhla_side *side, const void *base, mhla_dtype dtype,
                         const mhla_strides *s, int64_t at);
mhla_pack mhla_head_pack(const mhla_head *x, const mhla_side *side, float *dst, const void *src, const mhla_strides *s,
                         int64_t at, int n, int rotate);
void mhla_head_keys(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, float *z);
void mhla_head_queries(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, const float *zm);
void mhla_head_released(const mhla_head *x, const mhla_buffers *buf, const float *S);
/* Its two steps: of one block, whose z it reads, and after all of them. */
void mhla_head_released_dots(const mhla_head *x, const mhla_buffers *buf, int64_t block, const float *z);
void mhla_head_released_mix(const mhla_head *x, const mhla_buffers *buf);
void mhla_head_row_scale(const mhla_head *x, float *row_scale, const float *den, int n);
void mhla_head_mix(const mhla_head *x, const mhla_buffers *buf, const float *S, int64_t i0, int64_t i1);
/* Slab `slab` of P_i = sum_b m[i,b] S_b for all rows i, P [q.M][ld], S [k.M][ld]; `turned`: of P_b = sum_i m[i,b] S_i, P [k.M][ld],
 * S [q.M][ld]. */
void mhla_head_mix_slab(const mhla_head *x, float *P, const float *S, int64_t slab, int turned);

/* bf16.c */
void mhla_head_panels_bf16(mhla_panels *p, int n);
void mhla_head_summarise_bf16(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, float *S, int set,
                              const mhla_prefetch *fetch, int n_fetch);
void mhla_head_round_mixture(const mhla_head *x, const mhla_buffers *buf, const float *P);
void mhla_head_outputs_bf16(const mhla_head *x, const mhla_buffers *buf, int64_t at, int n, const mhla_prefetch *fetch,
                            int n_fetch);

#endif
