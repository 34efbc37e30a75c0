/* What the files of the short convolution share: the checked call, and how rows are cut. */
#ifndef MHLA_OPS_SHORT_CONV_H
#define MHLA_OPS_SHORT_CONV_H

#include "ops/op.h"

/* A call after validation; strides are filled in. */
typedef struct mhla_short_conv_run {
    mhla_short_conv_call call;
    mhla_short_conv_grads grads;
    const float *x, *w, *dy;
    float *y;
    float *const
        *pasts; /* streaming: [sequences] the last inputs [W-1,D], before and after, instead of caches of the call */
    const mhla_kernels *kernels;
    int threads, W;
    int64_t D, rows; /* channels; B*T */
    char *ws;
} mhla_short_conv_run;

static inline int64_t mhla_short_conv_sequences(const mhla_short_conv_call *c) {
    return c->cu_seqlens ? c->sequences : c->batch;
}
/* Sequence s is rows [begin, end) of all B*T. */
static inline int64_t mhla_short_conv_begin(const mhla_short_conv_call *c, int64_t s) {
    return c->cu_seqlens ? c->cu_seqlens[s] : s * c->tokens;
}
static inline int64_t mhla_short_conv_end(const mhla_short_conv_call *c, int64_t s) {
    return mhla_short_conv_begin(c, s + 1);
}
/* The sequence of a row. */
int64_t mhla_short_conv_sequence(const mhla_short_conv_call *c, int64_t row);

/* The cache of a sequence before the call, [D,W]; NULL = zeros. */
static inline const float *mhla_short_conv_before(const mhla_short_conv_run *run, int64_t s) {
    return run->call.initial_cache ? run->call.initial_cache + s * run->D * run->W : NULL;
}

/* Element strides of rows: row r of all. */
static inline int64_t mhla_row_offset(const mhla_short_conv_call *c, const mhla_strides *s, int64_t r) {
    return r / c->tokens * s->batch + r % c->tokens * s->token;
}

mhla_status mhla_short_conv_check(mhla_short_conv_run *run, const mhla_short_conv_call *call);
mhla_status mhla_short_conv_check_forward(mhla_short_conv_run *run, const mhla_short_conv_call *call, float *y,
                                          const float *x, const float *w);
mhla_status mhla_short_conv_check_backward(mhla_short_conv_run *run, const mhla_short_conv_call *call,
                                           const mhla_short_conv_grads *grads, const float *dy, const float *x,
                                           const float *w);

/* mhla_short_conv_forward of sequences that go on: pasts[s] are the last W-1 inputs of sequence s, [W-1,D], the newest last. */
mhla_status mhla_short_conv_continue(const mhla_short_conv_call *call, float *const *pasts, float *y, const float *x,
                                     const float *w, void *ws);

#endif
