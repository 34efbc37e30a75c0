/* What forward, backward and reference of softmax attention share: who sees whom, and the sizes of tiles. */
#ifndef MHLA_OPS_SOFTMAX_H
#define MHLA_OPS_SOFTMAX_H

#include "ops/op.h"

/* One sequence: tokens q_begin .. of the queries and k_begin .. of the keys of a batch entry. */
typedef struct mhla_soft_sequence {
    int64_t batch, q_begin, k_begin, Tq, Tk;
} mhla_soft_sequence;

static inline mhla_soft_sequence mhla_soft_sequence_at(const mhla_call *c, int64_t s) {
    const int64_t begin = mhla_seq_begin(c, s), Tq = mhla_seq_end(c, s) - begin;
    return (mhla_soft_sequence){mhla_seq_batch(c, s), begin, begin, Tq, c->cu_seqlens ? Tq : c->kv_tokens};
}

/* Query t sees keys first .. last-1, both growing with t; first >= last: none. Neither is clipped to 0. */
static inline int64_t mhla_soft_last(const mhla_plan_desc *d, const mhla_soft_sequence *s, int64_t t) {
    return d->causal ? t + 1 + s->Tk - s->Tq : s->Tk;
}
static inline int64_t mhla_soft_first(const mhla_plan_desc *d, const mhla_soft_sequence *s, int64_t t) {
    return d->window > 0 ? mhla_soft_last(d, s, t) - d->window : 0;
}

/* The first query that sees a key: causal ones with fewer keys than queries begin late. */
static inline int64_t mhla_soft_start(const mhla_plan_desc *d, const mhla_soft_sequence *s) {
    return d->causal && s->Tq > s->Tk ? s->Tq - s->Tk : 0;
}

static inline int64_t mhla_soft_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mhla_soft_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Tiles. They depend on K and V only, so that results depend on nothing else. A tile of keys (transposed keys and
 * values) and of scores stay in the L2 of a core, 512 KiB or more, beside the queries and outputs of a task. */
enum { SOFT_STRIP = 8, SOFT_FEW = 16 };

typedef struct mhla_soft_tiling {
    int keys;         /* of a tile */
    int rows;         /* queries of a tile of scores */
    int task;         /* forward: rows of a task */
    int64_t ldk, ldv; /* row strides of buffers of K and V columns */
    int64_t lds;      /* of scores */
} mhla_soft_tiling;

mhla_soft_tiling mhla_soft_tiles(const mhla_plan_desc *d);

/* Rows of the caller at [batch, t, head], as a list. */
/* Storage of keys and values. */
static inline mhla_dtype mhla_soft_kv(const mhla_plan_desc *d) { return d->kv_bfloat16 ? MHLA_BF16 : d->dtype; }

static inline mhla_rows mhla_soft_rows(const void *x, mhla_dtype dtype, const mhla_strides *s, int64_t b, int64_t t,
                                       int64_t h) {
    union { /* inputs are read only; mhla_rows serves outputs, too */
        const void *from;
        void *to;
    } at = {mhla_at(x, dtype, s, b, t, h)};
    return (mhla_rows){at.to, NULL, s->token, dtype};
}

/* n rows of q or k, times factor, into dst [n][ld] as float32, turned by table rows rope_row .. if the plan has a
 * rotary embedding. */
void mhla_soft_pack(const mhla_run *run, float *dst, int64_t ld, mhla_rows src, int n, int64_t rope_row, float factor);

/* How a tile of scores is masked: rows are queries t, t+1, .. of s, columns keys from k0 on. */
void mhla_soft_mask(mhla_scores *tile, const mhla_plan_desc *d, const mhla_soft_sequence *s, int64_t t, int64_t k0);

/* Columns that row i of a masked tile sees. */
typedef struct mhla_soft_span {
    int first, last;
} mhla_soft_span;

static inline mhla_soft_span mhla_soft_row_span(const mhla_scores *t, int i) {
    mhla_soft_span s = {0, t->n};
    if (t->masked && t->last + i < t->n) s.last = t->last + i > 0 ? t->last + i : 0;
    if (t->windowed && t->first + i > 0) s.first = t->first + i;
    return s;
}

/* The soft cap of the plan, if it has one, on the scores that rows of a tile see; their slopes, NULL: not wanted. */
static inline void mhla_soft_cap(const mhla_run *run, const mhla_scores *t, float *slope) {
    const float cap = (float)run->plan->d.softcap;
    for (int i = 0; cap > 0.0f && i < t->m; i++) {
        const mhla_soft_span s = mhla_soft_row_span(t, i);
        float *row = t->s + i * t->ld + s.first;
        if (s.first < s.last)
            run->kernels->softcap(row, slope ? slope + i * t->ld + s.first : NULL, row, s.last - s.first, cap);
    }
}

/* Panels of scores that some row of the tile sees; the others need not be computed. */
static inline mhla_panels mhla_soft_panels(const mhla_run *run, const mhla_scores *t) {
    mhla_panels p;
    run->kernels->panels(&p, t->n);
    const int last = mhla_soft_row_span(t, t->m - 1).last;
    while (p.count > 1 && mhla_panel_begin(&p, p.count - 1) >= last) p.count--;
    p.vectors = mhla_panel_begin(&p, p.count) / p.unit;
    if (p.n > mhla_panels_width(&p)) p.n = mhla_panels_width(&p);
    return p;
}

/* c [m][ldc] += the visible part of a [m][t->ld] times b [n][ldb], cols columns, where a has the mask of t. */
void mhla_soft_product(const mhla_run *run, const mhla_scores *t, const float *a, float *c, int64_t ldc, const float *b,
                       int64_t ldb, int cols);

mhla_status mhla_soft_forward_reference(const mhla_run *run);
mhla_status mhla_soft_backward_reference(const mhla_run *run);

/* Few queries of one sequence: another way to work, see decode.c. */
int mhla_soft_is_decode(const mhla_run *run);
size_t mhla_soft_decode_workspace(const mhla_run *run);
mhla_status mhla_soft_decode(const mhla_run *run);

size_t mhla_soft_backward_workspace(const mhla_run *run);
mhla_status mhla_soft_backward(const mhla_run *run);

#endif
