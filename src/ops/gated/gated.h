/* The engine of linear recurrences with decay, simple GLA, GLA and the gated delta rule: see README.md. Sequences are cut into
 * chunks; inside a chunk everything is a product of matrices, between chunks a state is carried. */
#ifndef MHLA_OPS_GATED_H
#define MHLA_OPS_GATED_H

#include "ops/op.h"

/* The geometry of a call. */
typedef struct mhla_gated {
    const mhla_run *run;
    int channels;          /* a decay for each key channel */
    int delta;             /* the delta rule */
    int pieces;            /* of V, in the walk of the forward pass */
    int fused;             /* the walk makes the scores of a chunk when it comes there: nobody else needs them */
    int K, V, C;           /* C: tokens of a chunk */
    int64_t N, H, G, R;    /* sequences, heads, heads of q and k, H / G */
    mhla_panels pk, pv;    /* columns K, columns V */
    int64_t ldk, ldv, ldc; /* row strides of q and k, of v, of scores */
    int64_t E;             /* floats of a state of the backward, [V] panelled over K; delta rule: [K] over V */
    int64_t chunks;        /* of all sequences */
    int64_t *first;        /* [N+1] chunks before each sequence */
    float *scores; /* [chunks][G][C][ldc] lower triangles: q k^T; GLA: with decays; delta rule: see its header */
    float *norms;  /* [chunks][G][2][C] what rows of q, and of k, are multiplied with; NULL = 1 */
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
    int whole;                       /* what mhla_gla_scores said */
    float *scale, *db, *sums, *ones; /* [C]; db GLA [C][ldk]; sums [C or ldk] */
    float *early, *late;             /* [C] */
    float *own;                      /* scores of the chunk at hand, where the walk makes them */
    /* delta rule */
    float *beta;         /* [C] */
    float *kb, *yp;      /* [C][ldk]; panelled [C][V] */
    float *kk, *N, *LB;  /* [C][ldc] */
    float *dN, *W;       /* [C][ldc] */
    float *turned_state; /* [V] panelled over K */
    float *w, *du;       /* [C][ldk], [C][ldv] */
} mhla_gated_scratch;

void mhla_gated_make(mhla_gated *w, const mhla_run *run, mhla_carver *c, int backward);
mhla_gated_scratch mhla_gated_carve(mhla_carver *c, const mhla_gated *w, int backward);
mhla_gated_chunk mhla_gated_at(const mhla_gated *w, int64_t x);
mhla_rows mhla_gated_rows(const mhla_gated_chunk *c, const void *x, mhla_dtype dtype, const mhla_strides *s,
                          int64_t head);
static inline float *mhla_gated_scores_at(const mhla_gated *w, const mhla_gated_scratch *z, int64_t x,
                                          int64_t key_head) {
    return w->fused ? z->own : w->scores + (x * w->G + key_head) * w->C * w->ldc;
}

/* Columns [begin, begin + p.n) of v and of the state, in the forward pass. */
typedef struct mhla_gated_columns {
    int begin;
    mhla_panels p;
} mhla_gated_columns;

/* The scores of a chunk and of the heads that share a head of q and k. */
typedef void mhla_gated_score_fn(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c,
                                 int64_t key_head);
/* A chunk of head h: writes o, moves the state z->S on. fresh: it is 0 before, and nothing is there. */
typedef void mhla_gated_walk_fn(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                                const mhla_gated_columns *cols, int fresh);
/* The forward pass: scores of all chunks, then each head's chunks in order; or both at once. */
mhla_status mhla_gated_run_forward(const mhla_run *run, mhla_gated_score_fn *score, mhla_gated_walk_fn *chunk);
void mhla_gated_score_all(const mhla_gated *w, mhla_gated_scratch *scratch, mhla_gated_score_fn *score);
mhla_gated_scratch *mhla_gated_carve_all(mhla_carver *c, const mhla_gated *w, int backward);
/* z->S = total z->S + kd^T values, values panelled [n][cols]; meanwhile what the next chunk will read is fetched. */
void mhla_gated_next_state(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                           const float *values, const mhla_gated_columns *cols, int fresh);

/* g, eb, ek and total of head h. */
void mhla_gated_decays(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h);
/* dst [n][ldk] = factor * rows of q or k * e, e being eb or ek. */
void mhla_gated_decayed(const mhla_gated *w, mhla_gated_scratch *z, float *dst, const mhla_rows *rows, int n,
                        const float *e, float factor);
/* L [n][ldc] = exp of the sum of g over u+1..t, for u <= t, one decay per token. */
void mhla_gated_mask(const mhla_gated *w, mhla_gated_scratch *z, int n);
mhla_gated_score_fn mhla_gated_score;
/* GLA, after its scores: total, ek, and what they left of eb and q e^b. */
void mhla_gated_decays_left(const mhla_gated *w, mhla_gated_scratch *z, int n);

/* c [n][ldc] = lower triangle of a b^T, bT transposed and panelled as mhla_gated_score_panels says; more may be written. */
mhla_panels mhla_gated_score_panels(const mhla_kernels *kernels, int n);
void mhla_gated_lower(const mhla_gated *w, float *c, const float *a, int64_t lda, const float *bT, int cols, int n);
/* out[n-1-u][n-1-t] = in[t][u] for t >= u: lower triangular again, rows back to front. */
void mhla_gated_turn(float *out, const float *in, int64_t ld, int n);
/* C[u] (=, +=) sum over t >= u (lead 0: t > u) of A[t][u] B[t], A [n][ldc], B and C [n][ldk]. */
void mhla_gated_times_turned(const mhla_gated *w, mhla_gated_scratch *z, float *C, const float *A, const float *B,
                             int n, int lead, int add);
/* C [n][ldk] += A B, A lower triangular with (lead 1) or without its diagonal. */
void mhla_gated_times_lower(const mhla_gated *w, float *C, const float *A, const float *B, int n, int lead);
/* y [n][ldk] (=, +=) alpha x e, element by element; a row stride of 0 repeats e. */
void mhla_gated_times(const mhla_gated *w, float *y, const float *x, const float *e, int64_t lde, int n, float alpha,
                      int add);

/* intra.c: GLA inside a chunk, from q, k and g in z. dq and dk get what tokens before t and after u add: no diagonal. */
int mhla_gla_scores(const mhla_gated *w, mhla_gated_scratch *z, float *A, int n); /* 1: ec and qs are eb and q e^b */
void mhla_gla_scores_backward(const mhla_gated *w, mhla_gated_scratch *z, const float *dA, int n);

/* ---- The backward pass ----
 *
 * S[c], the state before chunk c, is made again front to back, and D[c], its gradient, back to front. Then each chunk is alone. Units
 * (a sequence and a head of q and k) are taken in waves. */
typedef struct mhla_gated_back mhla_gated_back;
typedef struct mhla_gated_passes {
    const mhla_panels *panels; /* of a state, which a pass over states may take a part of */
    mhla_gated_score_fn *score;
    /* Panels first .. last-1 of the states, or of their gradients, of head h = unit's r-th. */
    void (*states)(const mhla_gated_back *job, mhla_gated_scratch *z, int64_t unit, int64_t r, int first, int last,
                   int back);
    /* A chunk of a unit: dv and all other gradients of its heads, and z->dq, z->dk. */
    void (*chunk)(const mhla_gated_back *job, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t unit);
} mhla_gated_passes;

struct mhla_gated_back {
    const mhla_gated *w;
    const mhla_gated_passes *passes;
    mhla_gated_scratch *scratch;
    float *S, *D;         /* [states of the wave][E] */
    float *Y, *dX;        /* delta rule: [states of the wave][C][ldv] */
    int64_t begin, end;   /* units of the wave */
    int64_t *unit_states; /* [units + 1] states before each unit of the wave */
    int pieces;           /* of the panels */
};

mhla_status mhla_gated_run_backward(const mhla_run *run, mhla_gated_passes *passes);
int64_t mhla_gated_unit_chunks(const mhla_gated *w, int64_t unit);
/* Number of the state before chunk c of the unit's r-th head, in the wave. */
int64_t mhla_gated_state_number(const mhla_gated_back *job, int64_t unit, int64_t r, int64_t c);
/* dq += M k, dk += M^T q */
void mhla_gated_square_backward(const mhla_gated *w, mhla_gated_scratch *z, int n);
/* ddecay of head h. The decay of token t acts on what goes from before it to t or later, and on nothing else:
 *   dg_t = sum_{u<t<=s} x[s][u] y[s][u] + sum_{s>=t} late_s + sum_{u<t} early_u + through */
void mhla_gated_put_decay(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                          const float *x, const float *y, int64_t ldy, const float *early, const float *late,
                          float through);

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
