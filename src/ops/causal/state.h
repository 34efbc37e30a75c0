/* The streaming state's inside, shared by state.c (what it is), step.c (feeding) and state_io.c (fork, rollback, bytes). */
#ifndef MHLA_OPS_CAUSAL_STATE_H
#define MHLA_OPS_CAUSAL_STATE_H

#include <stdatomic.h>

#include "ops/causal/causal.h"

enum { MHLA_LOOKAHEAD = 4 }; /* mixtures made in one pass over the summaries */

/* A finished chunk's summary, all key/value heads [G][E], in the forward layout (mhla_summary_shape). Never written
 * again once it is in a state's list; forks share it. */
typedef struct mhla_summary {
    atomic_int refs;
    float *data;
} mhla_summary;

/* A recurrence with decay has S and none of the summaries, chunks and mixtures: M and C are 1 there.
 * Linear attention, and a mix of one chunk under CLAMP, is a clamped MHLA with M = 1 whose chunks are only our way of
 * working. */
struct mhla_state {
    const mhla_kernels *kernels; /* those of its creation: its layout is theirs */
    mhla_summary_shape shape;
    uint64_t plan_print, mix_print;
    uint64_t *row_print; /* [mix sets][M] fingerprints of the rows of mix, lower triangle */
    int kind, H, G, K, V, Kp, Vw, normed, mixes, ratio, per_head;
    int64_t M, C;     /* side of mix; tokens of a chunk */
    int clamp, block; /* tokens of a block: C, or a part of it where chunks are long */
    int64_t tokens;
    float *S; /* recurrences: [H][K,V] */
    /* Finished chunks: [lo, n) one by one, all before lo in the tail. */
    mhla_summary **list; /* chunk lo + i */
    int64_t lo, n, capacity;
    float *tail; /* [G][E], CLAMP only */
    /* The open chunk: its block at hand in the rings, its earlier blocks in `grown`. */
    float *ring_k; /* [G][block][Kp] */
    float *ring_v; /* [G] panelled [block][Vw] */
    float *z;      /* [G][Kp] sum of k2~ over the open block, with a denominator */
    float *grown;  /* [G][E], long chunks only */
    int fill;      /* tokens in the rings */
    /* Mixtures of the past: that of the open chunk, and of the next ones as far as the finished chunks go. */
    float *ahead;            /* [LOOKAHEAD][G*mixes][E] */
    int ahead_at, ahead_end; /* the open chunk's, and one past the last made */
    float *P;       /* [G*mixes][E] that of the block at hand: ahead's, or, in long chunks, with `grown` in it */
    float *P_own;   /* memory of P in long chunks */
    float *scratch; /* for one token: [G][scratch_head] */
    int64_t scratch_head;
    void *memory; /* of all the buffers */
    size_t bytes;
    /* during a step */
    mhla_summary **spare; /* new summaries, made before anything changes */
    int64_t spares, spare_capacity;
    int marked;
};

static inline int64_t mhla_state_position_chunk(const mhla_state *s) { return s->tokens / s->C; }
/* Chunks that are kept one by one under CLAMP: the window, and as many again that a rollback may need. */
static inline int64_t mhla_state_keep(const mhla_state *s) { return s->M == 1 ? 0 : 2 * s->M - 3; }

/* Over saved bytes; for the fuzzer too. */
uint64_t mhla_state_checksum(const unsigned char *p, size_t size);
uint64_t mhla_plan_print(const mhla_plan *plan);
mhla_status mhla_state_check(const mhla_state *s, const mhla_plan *plan, const float *mix, int64_t from, int64_t to);
mhla_status mhla_state_make(mhla_state **state, const mhla_plan *plan, const float *mix, const mhla_kernels *kernels);

mhla_summary *mhla_summary_new(const mhla_state *s);
void mhla_summary_drop(mhla_summary *x);
void mhla_state_drop_spares(mhla_state *s);
/* Under CLAMP, before a push: the chunk that leaves the list goes into the tail, one head. */
void mhla_state_merge_head(const mhla_state *s, int64_t g);
mhla_status mhla_state_reserve(mhla_state *s, int64_t pushes);
void mhla_state_push(mhla_state *s); /* the next spare, filled, becomes a finished chunk */
/* P of the open chunk from the list alone, one key/value head; `extra` counts as chunk n, or NULL. */
void mhla_state_mix_all(mhla_state *s, const float *mix, int64_t g, const mhla_summary *extra);
void mhla_state_block_P(mhla_state *s, const float *mix, int64_t g);
/* Both for all heads: after a prompt, a rollback, a load. */
void mhla_state_remix(mhla_state *s, const float *mix, const mhla_context *context);

static inline float *mhla_state_ahead(const mhla_state *s, int at, int64_t g, int r) {
    return s->ahead + (((int64_t)at * s->G + g) * s->mixes + r) * s->shape.E;
}
float mhla_state_weight(const mhla_state *s, const float *mix, int64_t g, int r, int64_t i, int64_t b);

/* ../gated/step.c: feeds the states of a recurrence, which have been checked. */
mhla_status mhla_gated_step(const mhla_run *run, mhla_state *const *states);

/* op.c: the forward walk over a run of whole chunks, with a hook that loads the list and takes the summaries. */
typedef struct mhla_causal_hook {
    void (*begin)(void *arg, mhla_causal_unit *u);
    void (*group)(void *arg, mhla_causal_unit *u); /* S of the group's chunks is there */
    void *arg;
} mhla_causal_hook;
size_t mhla_causal_walk_workspace(const mhla_run *run);
void mhla_causal_walk(const mhla_run *run, const mhla_causal_hook *hook);

#endif
