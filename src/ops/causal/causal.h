/* What the files of the causal operators share: the layout of summaries in memory and the machine that walks over one
 * sequence and key/value head ("unit") group by group, as forward, backward and prompt reading do. README.md has the
 * mathematics. */
#ifndef MHLA_OPS_CAUSAL_H
#define MHLA_OPS_CAUSAL_H

#include "ops/op.h"

/* Entries of the list that a state of so many tokens has, and the chunk that entry 0 stands for: entry e > 0 is chunk
 * first + e, entry 0 the sum of all chunks up to `first`. Linear: one entry for everything. */
static inline void mhla_causal_list(const mhla_plan *plan, int64_t tokens, int64_t *entries, int64_t *first) {
    const int64_t chunks = (tokens + plan->d.chunk - 1) / plan->d.chunk;
    *entries = mhla_state_chunks(plan, tokens);
    *first = plan->d.kind == MHLA_KIND_LINEAR_CAUSAL ? INT64_MAX / 4 : chunks - *entries;
}

/* Summaries as flat vectors: S [rows][panels] panelled, then z. A "list" of up to `cap` of them is stored piece by
 * piece, a piece being one row of one panel: [piece][cap+1][width]. So the mixture of many summaries reads memory in
 * order, and the odd cap+1 keeps pieces from falling on each other's cache sets. Forward: rows are K, panels over V.
 * Backward works on the transpose: rows are V, panels over K, which leaves one transposition in all. */
typedef struct mhla_summary_shape {
    int K, V, transposed;
    int rows;
    mhla_panels n;  /* of S */
    mhla_panels nz; /* of z, over K; count 0 without denominator */
    int64_t F;      /* floats of S */
    int64_t E;      /* floats of S and z */
    int pieces;
} mhla_summary_shape;

typedef struct mhla_piece {
    int64_t at; /* offset in the flat vector */
    int width;
    mhla_panels n;      /* the piece as a matrix of one panel */
    int row, column, z; /* S: row and first column, z = 0; else z = 1 and its first column */
} mhla_piece;

/* `vectors` vectors of `unit` floats, cut into `count` panels. */
static inline mhla_panels mhla_panels_cut(int n, int unit, int vectors, int count) {
    return (mhla_panels){n, unit, vectors, count, vectors / count, vectors % count};
}

void mhla_summary_shape_make(mhla_summary_shape *s, const mhla_plan *plan, const mhla_kernels *kernels, int transposed);
mhla_piece mhla_summary_piece(const mhla_summary_shape *s, int j);

/* A list: element x of row r of piece p is at data[(cap+1) * p.at + r * p.width + x]. */
typedef struct mhla_summary_list {
    float *data;
    int64_t cap;
} mhla_summary_list;

static inline int64_t mhla_list_floats(const mhla_summary_shape *s, int64_t cap) { return (cap + 1) * s->E; }
static inline float *mhla_list_at(const mhla_summary_list *l, const mhla_piece *p, int64_t r) {
    return l->data + (l->cap + 1) * p->at + r * p->width;
}

/* Piece p of a summary in the caller's layout, S [K,V] and z [K] (may be NULL: zeros), into dst [width]; and back. */
void mhla_piece_load(const mhla_summary_shape *s, const mhla_piece *p, float *dst, const float *S, const float *z);
void mhla_piece_store(const mhla_summary_shape *s, const mhla_piece *p, const float *src, float *S, float *z, int add);

/* How a plan is worked on. Tokens are taken in blocks: whole chunks where these are short ("direct": P of many blocks
 * by one product), else pieces of a chunk ("running": P grows along the chunk). A linear plan is one endless chunk. */
typedef struct mhla_causal_work {
    const mhla_run *run;
    mhla_summary_shape shape;
    int64_t C, M; /* chunk (endless: INT64_MAX / 8) and side of mix */
    int running;
    int block;       /* tokens of a block */
    int group;       /* blocks of a group */
    int clamp;       /* window of M chunks, the rest in a tail */
    int ratio;       /* query heads per key/value head */
    int mixes;       /* sets of weights in a unit: ratio with mix_per_head, else 1 */
    int normed;      /* has a denominator */
    int Kp, Vw;      /* row length of q~, k~ in scratch; of v */
    int64_t cap;     /* rows of the list of summaries */
    int64_t P_row;   /* floats from one P to the next */
    int64_t longest; /* tokens of the longest sequence */
} mhla_causal_work;

/* `crew`: units that share all threads, block by block; 0: each unit is one worker's, who keeps a group in its cache. */
void mhla_causal_work_make(mhla_causal_work *w, const mhla_run *run, int transposed, int64_t crew);

/* Blocks of the group at hand: blocks 0..n-1, block x in chunk chunk0 + (running ? 0 : x). */
typedef struct mhla_causal_group {
    int64_t chunk0;
    int n;
    int64_t token0;   /* first token (of the sequence) */
    int starts, ends; /* running: the group begins / completes (or is the last of) its chunk */
} mhla_causal_group;

/* One sequence and key/value head on its way. */
typedef struct mhla_causal_unit {
    const mhla_causal_work *w;
    int64_t s, g, batch, begin, T; /* sequence, key/value head, where its tokens are */
    int64_t base, count;           /* list: row r is chunk base + r, row 0 with all before it */
    int64_t entries0, first0;      /* initial list */
    int open;                      /* the first chunk has tokens before ours, summarised in the last initial entry */
    mhla_causal_group grp;
    int live;                /* there is a group */
    mhla_summary_list S;     /* [cap] chunks */
    mhla_summary_list parts; /* running: [group] blocks; direct: unused */
    float *P;                /* [mixes][group+1][P_row] */
    float *W;                /* [mixes][group][cap] weights of the group */
    mhla_summary_list R;     /* running, backward with dmix: [group] in-chunk prefixes; data NULL = not wanted */
} mhla_causal_unit;

/* Scratch of a worker for packing blocks. */
typedef struct mhla_causal_scratch {
    float *q, *k, *kT;   /* [block][Kp], [block][Kp], panelled [Kp][block] */
    float *q2, *k2, *cs; /* denominator: plain features, running sums of k2 [block][Kp] */
    float *v;            /* [block][Vw] panelled */
    float *scores;       /* [block][ld_scores] */
    int64_t ld_scores;
    float *den, *dots, *scale, *diagonal; /* [block] */
    float *z;                             /* [Kp] */
} mhla_causal_scratch;

void mhla_causal_unit_carve(mhla_carver *c, const mhla_causal_work *w, mhla_causal_unit *u, int keep_prefix);
void mhla_causal_scratch_carve(mhla_carver *c, const mhla_causal_work *w, mhla_causal_scratch *x);

/* Walking: begin, the loop over pieces that loads the initial list, then next_group until it returns 0; in each group the three
 * loops below, each of which may be run in parallel, one after the other. */
void mhla_causal_begin(mhla_causal_unit *u, const mhla_causal_work *w, int64_t s, int64_t g);
void mhla_causal_load(mhla_causal_unit *u, int piece);
int mhla_causal_next_group(mhla_causal_unit *u);
/* Loop 1, over blocks 0..grp.n-1: S of the block, and its weights. */
void mhla_causal_summarise(mhla_causal_unit *u, int block, mhla_causal_scratch *x);
/* Loop 2, over pieces: P of every block. */
void mhla_causal_mix(mhla_causal_unit *u, int piece);
/* After the last group, over pieces: the final state into the caller's memory. */
void mhla_causal_final(mhla_causal_unit *u, int piece);
/* Zeros behind a short sequence's entries. */
void mhla_causal_final_fill(mhla_causal_unit *u);

/* Tokens [*t, *t + n) of block x; returns n. */
int mhla_causal_block(const mhla_causal_unit *u, int x, int64_t *t);
/* Does block x have anything before it? */
int mhla_causal_has_past(const mhla_causal_unit *u, int x);
/* Weight of query head g*ratio + r's chunk i for chunk b. */
float mhla_causal_unit_weight(const mhla_causal_unit *u, int r, int64_t i, int64_t b);
static inline int64_t mhla_causal_chunk(const mhla_causal_unit *u, int x) {
    return u->grp.chunk0 + (u->w->running ? 0 : x);
}
static inline float *mhla_causal_P(const mhla_causal_unit *u, int r, int x) {
    return u->P + ((int64_t)(u->w->mixes > 1 ? r : 0) * (u->w->group + 1) + x) * u->w->P_row;
}

/* Packing into scratch. */
mhla_rows mhla_causal_rows(const mhla_causal_unit *u, const void *x, mhla_dtype dtype, const mhla_strides *st,
                           int64_t head, int64_t t);
void mhla_causal_pack(const mhla_causal_unit *u, float *dst, float *plain, const void *x, const mhla_strides *st,
                      int64_t head, int64_t t, int n, int rope);
void mhla_causal_pack_values(const mhla_causal_unit *u, float *dst, int64_t t, int n);
mhla_prefetch mhla_causal_next_rows(const mhla_causal_unit *u, const void *x, mhla_dtype dtype, const mhla_strides *st,
                                    int64_t head, int64_t t, int n, int cols);
/* Part i of `parts` of a list, so that it is spread over as many products. */
mhla_prefetch mhla_prefetch_share(mhla_prefetch all, int i, int parts);
/* k2~ of the block and its running sums: scratch->k2, cs. `k` plain must be there if there is no second pair. */
void mhla_causal_running_keys(const mhla_causal_unit *u, mhla_causal_scratch *x, int64_t t, int n);
/* den [n] of head r: needs q2 (plain) and cs. */
void mhla_causal_denominators(const mhla_causal_unit *u, mhla_causal_scratch *x, int r, int block, int n);
/* Lower triangle of factor * a b^T, a [n][cols], b transposed and panelled (mhla_causal_score_panels). */
mhla_panels mhla_causal_score_panels(const mhla_kernels *kernels, int n);
void mhla_causal_scores(const mhla_run *run, mhla_causal_scratch *x, float *scores, const float *a, int64_t lda,
                        const float *bT, int cols, int n, float factor);

/* A crew: units that go through their loops side by side. One unit's blocks are too few for many threads, so those of all units
 * are one loop. A worker who has a unit to itself is a crew of one, which is not split. */
typedef struct mhla_causal_crew {
    const mhla_context *context;
    int split; /* tasks go to all threads; else `worker` does them */
    int worker;
    int units;
    int64_t *first; /* [units + 1]: number of each unit's first task */
    void (*task)(void *arg, int unit, int64_t i, int worker);
    void *arg;
} mhla_causal_crew;

enum { MHLA_CAUSAL_PIECES = 16 }; /* of a task: enough to be worth handing out */
static inline int64_t mhla_causal_piece_tasks(const mhla_causal_work *w) {
    return (w->shape.pieces + MHLA_CAUSAL_PIECES - 1) / MHLA_CAUSAL_PIECES;
}

/* Units that no worker takes whole, and how many of them make a crew: enough for all threads, no more, for each has memory of its
 * own. */
int64_t mhla_causal_whole_units(const mhla_run *run);
int64_t mhla_causal_crew_size(const mhla_run *run, int64_t left);
/* task(arg, unit, i, worker) for each i < count(arg, unit) of every unit. */
void mhla_causal_crew_run(mhla_causal_crew *c, int64_t (*count)(const void *arg, int unit),
                          void (*task)(void *arg, int unit, int64_t i, int worker), void *arg);

mhla_status mhla_causal_check_grads(const mhla_run *run);
size_t mhla_causal_backward_workspace(const mhla_run *run);
mhla_status mhla_causal_backward(const mhla_run *run);
mhla_status mhla_causal_forward_reference(const mhla_run *run);
mhla_status mhla_causal_backward_reference(const mhla_run *run);

#endif
