/* What the operators share: the checked plan, the checked call ("run"), and the registry row of an operator. The
 * public entry points in plan.c validate everything once; operators trust what they get here. */
#ifndef MHLA_OPS_OP_H
#define MHLA_OPS_OP_H

#include <mhla/mhla.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "simd/kernels.h"

typedef struct mhla_op mhla_op;

/* How tokens fall into blocks. */
typedef struct mhla_layout {
    int64_t M, T;      /* blocks, tokens */
    int64_t *offsets;  /* [M+1] first token position of each block, in block order */
    int32_t *perm;     /* [T] token at each position of the block order; NULL = the same */
    int64_t max_block; /* tokens in the largest block */
    int equal_blocks;
} mhla_layout;

struct mhla_plan {
    mhla_plan_desc d; /* as given, with defaults filled in: kv_heads, scale, rope_dim, chunk */
    const mhla_op *op;
    int64_t M, Mk; /* blocks of queries and keys: rows and columns of the mixing matrix; linear causal: 1; else 0 */
    int64_t T, Tk; /* tokens of a bidirectional plan, else 0 */
    int q_heads, k_heads, v_heads; /* heads of q, of k, of v and of a state */
    /* bidirectional MHLA only, else NULL; one and the same where the layouts are equal */
    const mhla_layout *queries, *keys;
    mhla_layout layouts[2]; /* where they are; the second may be empty */
};

/* A call after validation. Strides are filled in; kv_tokens, too. */
typedef struct mhla_run {
    const mhla_plan *plan;
    mhla_call call;
    mhla_grads grads; /* backward only; strides filled in */
    void *o;
    const void *dO, *q, *k, *v;
    const float *mix;
    const mhla_kernels *kernels;
    int pairs; /* products are of bfloat16 */
    int threads;
    char *ws; /* the workspace */
} mhla_run;

/* A product of tokens with tokens or summaries, in the precision of the call. */
static inline void mhla_multiply(const mhla_run *run, const mhla_gemm *g) {
    if (run->pairs)
        mhla_gemm_narrowed(run->kernels, g);
    else
        run->kernels->gemm(g);
}

/* Sequences of a causal or softmax call: batch entries, or the packed ones. Sequence s covers tokens
 * [mhla_seq_begin, mhla_seq_end) of batch entry mhla_seq_batch. */
static inline int64_t mhla_seq_count(const mhla_call *c) { return c->cu_seqlens ? c->sequences : c->batch; }
static inline int64_t mhla_seq_begin(const mhla_call *c, int64_t s) { return c->cu_seqlens ? c->cu_seqlens[s] : 0; }
static inline int64_t mhla_seq_end(const mhla_call *c, int64_t s) {
    return c->cu_seqlens ? c->cu_seqlens[s + 1] : c->tokens;
}
static inline int64_t mhla_seq_batch(const mhla_call *c, int64_t s) { return c->cu_seqlens ? 0 : s; }

static inline size_t mhla_dtype_size(mhla_dtype dtype) { return dtype == MHLA_F32 ? 4 : 2; }

/* Address of element [b,t,h,0]; of a tensor that is not there, NULL. */
static inline const void *mhla_at(const void *x, mhla_dtype dtype, const mhla_strides *s, int64_t b, int64_t t,
                                  int64_t h) {
    if (x == NULL) return NULL;
    return (const char *)x + (b * s->batch + t * s->token + h * s->head) * (int64_t)mhla_dtype_size(dtype);
}

/* Element as double, for the references. */
static inline double mhla_get(const void *x, mhla_dtype dtype, const mhla_strides *s, int64_t b, int64_t t, int64_t h,
                              int64_t j) {
    const int64_t i = b * s->batch + t * s->token + h * s->head + j;
    if (dtype == MHLA_F32) return (double)((const float *)x)[i];
    const uint32_t u = (uint32_t)((const uint16_t *)x)[i] << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

static inline uint16_t mhla_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* x (=, +=) value, for the references. */
static inline void mhla_put(void *x, mhla_dtype dtype, const mhla_strides *s, int64_t b, int64_t t, int64_t h,
                            int64_t j, double value, int accumulate) {
    if (accumulate) value += mhla_get(x, dtype, s, b, t, h, j);
    const int64_t i = b * s->batch + t * s->token + h * s->head + j;
    if (dtype == MHLA_F32)
        ((float *)x)[i] = (float)value;
    else
        ((uint16_t *)x)[i] = mhla_to_bf16((float)value);
}

/* The operator's registry row. forward and backward have a workspace of the size that `workspace` told. */
struct mhla_op {
    const char *name;
    mhla_status (*check_plan)(mhla_plan *plan);     /* what plan.c does not know; may fill in plan->M, T, offsets */
    mhla_status (*check_call)(const mhla_run *run); /* the same for a call; may be NULL */
    size_t (*workspace)(const mhla_run *run, int backward);
    mhla_status (*forward)(const mhla_run *run);
    mhla_status (*backward)(const mhla_run *run);
    mhla_status (*forward_reference)(const mhla_run *run);
    mhla_status (*backward_reference)(const mhla_run *run);
};

extern const mhla_op mhla_op_bidirectional, mhla_op_causal, mhla_op_softmax;
extern const mhla_op mhla_op_focused, mhla_op_inline, mhla_op_mala, mhla_op_rala;
extern const mhla_op mhla_op_simple_gla, mhla_op_gla, mhla_op_gated_delta;

/* Linear recurrences with decay. */
static inline int mhla_decays(mhla_kind kind) {
    return kind == MHLA_KIND_SIMPLE_GLA || kind == MHLA_KIND_GLA || kind == MHLA_KIND_GATED_DELTA;
}
/* Those whose q and k may have fewer heads than v. */
static inline int mhla_shares_keys(mhla_kind kind) {
    return kind == MHLA_KIND_SIMPLE_GLA || kind == MHLA_KIND_GATED_DELTA;
}
/* Numbers in the decay of one head and token. */
static inline int mhla_decay_dim(const mhla_plan *plan) { return plan->d.kind == MHLA_KIND_GLA ? plan->d.key_dim : 1; }
/* Kinds whose calls have states. */
static inline int mhla_has_state(mhla_kind kind) {
    return kind == MHLA_KIND_CAUSAL || kind == MHLA_KIND_LINEAR_CAUSAL || mhla_decays(kind);
}

/* A run for mhla_step and for tests: validates plan and call as mhla_forward does. */
mhla_status mhla_run_check(mhla_run *run, const mhla_plan *plan, const mhla_call *call, void *o, const void *q,
                           const void *k, const void *v, const float *mix);

/* Is there a layout of keys? */
static inline int mhla_has_key_layout(const mhla_plan_desc *d) {
    return d->key_axes || d->key_n_blocks || d->key_n_tokens || d->key_block_offsets || d->key_permutation;
}

/* Numbers in the mixing matrix, or in those of all heads. */
static inline int64_t mhla_mix_size(const mhla_plan *plan) {
    return plan->M * plan->Mk * (plan->d.mix_per_head ? plan->d.heads : 1);
}

/* Summaries that a state of so many tokens keeps (N0 and N1 of mhla_call). */
static inline int64_t mhla_state_chunks(const mhla_plan *plan, int64_t tokens) {
    if (plan->d.kind == MHLA_KIND_LINEAR_CAUSAL || mhla_decays(plan->d.kind)) return 1;
    const int64_t n = (tokens + plan->d.chunk - 1) / plan->d.chunk;
    return plan->d.beyond == MHLA_BEYOND_CLAMP && n > plan->M ? plan->M : n;
}

/* Weight by which chunk i reads chunk b <= i, from row-major mix [M,M], policy CLAMP included (spec: past M the
 * distance decides). */
static inline float mhla_causal_weight(const float *mix, int64_t M, int64_t i, int64_t b) {
    if (i < M) return mix[i * M + b];
    const int64_t d = i - b;
    return mix[(M - 1) * M + (d < M ? M - 1 - d : 0)];
}

#endif
