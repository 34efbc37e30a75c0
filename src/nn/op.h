/* What the files of the layers share: how a layer asks its tape for memory, leaves a record, and finds gradients.
 *
 * A layer's forward: mhla_tape_op for its structure (which begins with a mhla_record), mhla_tape_tensor for the result,
 * mhla_tape_run for the work, mhla_tape_record at the end. In a dry run all of that happens, but tasks do not run and
 * data points nowhere. */
#ifndef MHLA_NN_OP_H
#define MHLA_NN_OP_H

#include "core/memory.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/status.h"
#include "nn/nn.h"
#include "simd/kernels.h"

enum { MHLA_BLOCKS = 64, MHLA_FREE_GRADS = 256 };

/* Memory that is only given back as a whole, or down to a mark. Blocks are kept; mhla_arena_reset makes one of many. */
typedef struct mhla_arena {
    char *blocks[MHLA_BLOCKS];
    size_t sizes[MHLA_BLOCKS];
    int count;
    struct mhla_place at; /* block in use, bytes used of it, bytes handed out in all */
    size_t high;          /* most of the latter */
    int dry;              /* only counts */
} mhla_arena;

typedef struct mhla_record {
    struct mhla_record *previous;
    void (*backward)(mhla_tape *t, void *op);
    mhla_tensor *out;
} mhla_record;

struct mhla_tape {
    const mhla_context *context;
    const mhla_kernels *kernels;
    unsigned mode;
    int recording;
    mhla_dtype precision; /* of products */
    mhla_status status;
    uint64_t seed, step, first_sample;
    uint32_t place;    /* counts the layers that draw */
    int64_t serial;    /* counts tensors */
    int64_t recompute; /* tensors before this one were made outside the block that is recomputed */
    mhla_arena meta, data, grads;
    struct {
        float *memory;
        size_t bytes;
    } free[MHLA_FREE_GRADS]; /* gradients whose tensor is done, by exact size */
    int n_free;
    char *scratch; /* one layer's workspace */
    size_t scratch_bytes, scratch_high;
    mhla_record *last;
    mhla_attended_fn watch; /* of attentions, or NULL */
    void *watcher;
    int64_t attended;         /* attentions since begin; counted only while somebody watches */
    void (*after)(void *arg); /* mhla_tape_after */
    void *after_arg;
};

/* Places of random numbers: the tape's layers count from here; below are those of data loading. */

/* ---- Forward ---- */

/* Zeroed memory for a layer's structure; NULL if the tape has failed. */
void *mhla_tape_op(mhla_tape *t, size_t bytes);
mhla_tensor *mhla_tape_tensor(mhla_tape *t, const int64_t *shape, int dims);
/* A tensor in x's memory; width 0 where it is no range of x's columns. */
mhla_tensor *mhla_tape_view(mhla_tape *t, mhla_tensor *x, int64_t offset, int64_t width);
/* Floats that live as long as tensors do. NULL without memory. */
float *mhla_tape_floats(mhla_tape *t, int64_t count);
/* One workspace for the present layer; the next request may move it. */
void *mhla_tape_scratch(mhla_tape *t, size_t bytes);
/* Whether a layer whose inputs need gradients or not must keep things for its backward. */
static inline int mhla_tape_keeps(const mhla_tape *t, int needs) { return t->recording && needs; }
/* Ends a layer; returns y, or NULL if the tape has failed meanwhile. */
mhla_tensor *mhla_tape_record(mhla_tape *t, mhla_record *r, void (*backward)(mhla_tape *t, void *op), mhla_tensor *y,
                              int needs);

static inline int mhla_tape_dry(const mhla_tape *t) { return (t->mode & MHLA_TAPE_DRY) != 0; }
static inline void mhla_tape_run(mhla_tape *t, int64_t n, mhla_task_fn task, void *arg) {
    if (t->status == MHLA_OK && !mhla_tape_dry(t)) mhla_parallel(t->context, n, task, arg);
}

/* The tape fails and the function returns NULL unless the condition holds. */
#define MHLA_NEED(t, condition, ...)                                                                                   \
    do {                                                                                                               \
        if (!(condition)) return mhla_tape_fail(t, MHLA_EINVAL, __VA_ARGS__);                                          \
    } while (0)
/* Returns NULL where the tape has failed or an input is NULL (its maker's failure, or a caller's slip). */
#define MHLA_GIVEN(t, x)                                                                                               \
    do {                                                                                                               \
        if ((t)->status != MHLA_OK) return NULL;                                                                       \
        if ((x) == NULL) return mhla_tape_fail(t, MHLA_EINVAL, "%s: %s is NULL", __func__, #x);                        \
    } while (0)

/* "[2, 16, 192]" for messages; lives in the caller's buffer. */
const char *mhla_shape_text(char text[96], const int64_t *shape, int dims);
int mhla_same_shape(const mhla_tensor *a, const mhla_tensor *b);

static inline int mhla_param_trains(const mhla_param *p) {
    return p && p->data && !(p->flags & (MHLA_PARAM_FROZEN | MHLA_PARAM_BUFFER));
}

/* ---- Backward ---- */

/* Where a gradient goes: rows of stride ld, written where add is 0, added to else. All of it must be written before the
 * next slot is asked for: it may be the same tensor's. */
typedef struct mhla_slot {
    int wanted, add;
    float *data;
    int64_t ld;
} mhla_slot;

mhla_slot mhla_tape_grad(mhla_tape *t, mhla_tensor *x); /* NULL x: not wanted */
mhla_slot mhla_tape_param_grad(mhla_tape *t, mhla_param *p);
/* The gradient that has arrived at y. */
float *mhla_tape_arrived(const mhla_tensor *y);
/* x gets y's gradient; the memory itself if it can, so this is the last thing that a backward does with it. */
void mhla_tape_pass_grad(mhla_tape *t, mhla_tensor *x, mhla_tensor *y);
/* Operators take one flag for all gradients of tokens: if one of the slots s of x [n] (NULL: none) is to be added to, the others are
 * zeroed here. Returns the flag. */
int mhla_tape_join(const mhla_tape *t, const mhla_slot *s, mhla_tensor *const *x, int n);
/* Memory like y's gradient, for the time of one backward. NULL if the tape has failed. */
float *mhla_tape_borrow(mhla_tape *t, const mhla_tensor *y);
void mhla_tape_return(mhla_tape *t, const mhla_tensor *y, float *memory);

/* ---- Work on rows ---- */

/* blend, many rows by many threads; see simd/kernels.h. */
void mhla_tape_blend(mhla_tape *t, const mhla_blend *b);

/* The same for each of B samples: pointers advance by their steps from sample to sample, b.n is the rows of one. */
typedef struct mhla_blends {
    mhla_blend b; /* of the first sample */
    int64_t y_step, x_step, z_step, r_step;
    const float *alpha; /* [B] instead of b.alpha, or NULL */
} mhla_blends;
void mhla_tape_blends(mhla_tape *t, const mhla_blends *s, int64_t B);

/* Drop path at the next place: [B] factors, 0 or 1 / (1 - rate). *factors is NULL where nothing is dropped; 0 if the tape
 * has failed. */
int mhla_tape_drop_path(mhla_tape *t, float rate, int64_t B, float **factors);

/* Sums over many rows in a fixed cut: rows of a part, at most MHLA_PARTS parts. */
enum { MHLA_PARTS = 64 };
static inline int64_t mhla_row_parts(int64_t rows, int64_t least) {
    const int64_t n = (rows + least - 1) / least;
    return n < MHLA_PARTS ? (n > 0 ? n : 1) : MHLA_PARTS;
}
/* dst [count] (=, +=) part 0 + part 1 + ..., parts [n][stride] */
void mhla_tape_reduce(mhla_tape *t, float *dst, int add, const float *parts, int64_t n, int64_t stride, int64_t count);

/* The packed copy of a parameter as a matrix [shape[0], the rest], made or renewed where it is old. NULL and a failed
 * tape without memory. */
const mhla_weight *mhla_param_pack(mhla_tape *t, mhla_param *p);
/* Its memory as [N,K], for a layer that packs in another order (1: taps before channels, as dense convolutions do; 0 is
 * mhla_param_pack's). *old: it must be filled now. */
mhla_weight *mhla_param_place(mhla_tape *t, mhla_param *p, int64_t N, int64_t K, int order, int *old);

#endif
