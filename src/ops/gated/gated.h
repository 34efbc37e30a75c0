/* The engine of linear recurrences with decay, simple GLA and GLA: see README.md. Sequences are cut into chunks; inside a
 * chunk everything is a product of matrices, between chunks a state is carried. */
#ifndef MHLA_OPS_GATED_H
#define MHLA_OPS_GATED_H

#include "ops/op.h"

/* The geometry of a call. */
typedef struct mhla_gated {
    const mhla_run *run;
    int channels;          /* a decay for each key channel */
    int K, V, C;           /* C: tokens of a chunk */
    int64_t N, H, G, R;    /* sequences, heads, heads of q and k, H / G */
    mhla_panels pk, pv;    /* columns K, columns V */
    int64_t ldk, ldv, ldc; /* row strides of q and k, of v, of scores */
    int64_t E;             /* floats of a state of the backward, [V] panelled over K */
    int64_t chunks;        /* of all sequences */
    int64_t *first;        /* [N+1] chunks before each sequence */
    float *scores;         /* [chunks][G][C][ldc] lower triangles: q k^T; GLA: with decays */
} mhla_gated;

/* Tokens [t, t+n) of batch entry b: chunk number x of all, of sequence s. */
typedef struct mhla_gated_chunk {
    int64_t x, s, b, t;
    int n;
} mhla_gated_chunk;

/* Scratch memory of a thread. */
typedef struct mhla_gated_scratch {
    float *q, *k, *qd, *kd;          /* [C][ldk]; with the decay from the chunk's begin, to its end */
    float *v, *vp, *a;               /* [C][ldv]; panelled [C][V]; scale * do */
    float *g, *eb, *ek;              /* [C], GLA [C][ldk]: log-decays, exp of their sums from the begin, to the end */
    float *total;                    /* [ldk] exp of the sum over the chunk */
    float *turned, *A, *L, *dA, *M;  /* [C][ldc] */
    float *T;                        /* transposed rows */
    float *S;                        /* [K] panelled over V */
    float *dq, *dk, *x, *y;          /* [C][ldk] */
    float *qs, *F, *X, *ec, *minus;  /* GLA: [C][ldk], see intra.c */
    float *scale, *db, *sums, *ones; /* [C]; db GLA [C][ldk]; sums [C or ldk] */
} mhla_gated_scratch;

void mhla_gated_make(mhla_gated *w, const mhla_run *run, mhla_carver *c);
mhla_gated_scratch mhla_gated_carve(mhla_carver *c, const mhla_gated *w, int backward);
mhla_gated_chunk mhla_gated_at(const mhla_gated *w, int64_t x);
mhla_rows mhla_gated_rows(const mhla_gated_chunk *c, const void *x, mhla_dtype dtype, const mhla_strides *s,
                          int64_t head);
static inline float *mhla_gated_scores_at(const mhla_gated *w, int64_t x, int64_t key_head) {
    return w->scores + (x * w->G + key_head) * w->C * w->ldc;
}

/* g, eb, ek and total of head h. */
void mhla_gated_decays(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h);
/* dst [n][ldk] = factor * rows of q or k * e, e being eb or ek. */
void mhla_gated_decayed(const mhla_gated *w, mhla_gated_scratch *z, float *dst, const mhla_rows *rows, int n,
                        const float *e, float factor);
/* L [n][ldc] = exp of the sum of g over u+1..t, for u <= t, one decay per token. */
void mhla_gated_mask(const mhla_gated *w, mhla_gated_scratch *z, int n);
/* The scores of all chunks. */
void mhla_gated_score(const mhla_gated *w, mhla_gated_scratch *scratch);

/* c [n][ldc] = lower triangle of a b^T, bT transposed and panelled as mhla_gated_score_panels says; more may be written. */
mhla_panels mhla_gated_score_panels(const mhla_kernels *kernels, int n);
void mhla_gated_lower(const mhla_gated *w, float *c, const float *a, int64_t lda, const float *bT, int cols, int n);
/* out[n-1-u][n-1-t] = in[t][u] for t >= u: lower triangular again, rows back to front. */
void mhla_gated_turn(float *out, const float *in, int64_t ld, int n);
/* C[u] (=, +=) sum over t >= u (lead 0: t > u) of A[t][u] B[t], A [n][ldc], B and C [n][ldk]. */
void mhla_gated_times_turned(const mhla_gated *w, mhla_gated_scratch *z, float *C, const float *A, const float *B,
                             int n, int lead, int add);
/* y [n][ldk] (=, +=) alpha x e, element by element; a row stride of 0 repeats e. */
void mhla_gated_times(const mhla_gated *w, float *y, const float *x, const float *e, int64_t lde, int n, float alpha,
                      int add);

/* intra.c: GLA inside a chunk, from q, k and g in z. dq and dk get what tokens before t and after u add: no diagonal. */
void mhla_gla_scores(const mhla_gated *w, mhla_gated_scratch *z, float *A, int n);
void mhla_gla_scores_backward(const mhla_gated *w, mhla_gated_scratch *z, const float *dA, int n);

/* What is alike in plans and calls. */
mhla_status mhla_gated_check_plan(mhla_plan *plan);
mhla_status mhla_gated_check_call(const mhla_run *run);
/* MHLA_EINVAL if a log-decay is above 0, with its place. */
mhla_status mhla_gated_check_decay(const mhla_run *run);

size_t mhla_gated_workspace(const mhla_run *run, int backward);
mhla_status mhla_gated_forward(const mhla_run *run);
mhla_status mhla_gated_backward(const mhla_run *run);
size_t mhla_gated_backward_workspace(const mhla_run *run);

/* reference.c: the recurrence in double, decays of one or of K numbers per head and token. */
mhla_status mhla_gated_reference(const mhla_run *run, int backward);

/* How many pieces of at most `most` each of `items` is cut into, so that all threads have work. */
static inline int mhla_gated_pieces(int64_t items, int most, int threads) {
    int pieces = 1;
    while (pieces < most && items * pieces < 4 * (int64_t)threads && items * pieces % threads != 0) pieces++;
    return pieces;
}

#endif
