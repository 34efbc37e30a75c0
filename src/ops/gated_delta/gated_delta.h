/* The gated delta rule on the engine of ../gated: see README.md. */
#ifndef MHLA_OPS_GATED_DELTA_H
#define MHLA_OPS_GATED_DELTA_H

#include "ops/gated/gated.h"

/* What a chunk and head needs, [C][ldc] each: P = scale q k^T times the mask, columns times beta; and the inverse of I + N. */
static inline float *mhla_delta_scores(const mhla_gated *w, const mhla_gated_scratch *z, int64_t x, int64_t h) {
    return w->fused ? z->own : w->scores + (x * w->H + h) * 2 * w->C * w->ldc;
}
static inline float *mhla_delta_inverse(const mhla_gated *w, const mhla_gated_scratch *z, int64_t x, int64_t h) {
    return mhla_delta_scores(w, z, x, h) + w->C * w->ldc;
}

/* What the rows of q, or of k, are multiplied with; NULL = 1. */
static inline float *mhla_delta_norms(const mhla_gated *w, int64_t x, int64_t key_head, int of_k) {
    return w->norms ? w->norms + ((x * w->G + key_head) * 2 + of_k) * w->C : NULL;
}

mhla_gated_score_fn mhla_delta_score; /* scores.c: P and the inverse */
/* z->q, z->k [n][ldk] of a head of q and k, of length 1 where the plan says so. */
void mhla_delta_load(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t key_head);
/* z->A, z->kk = lower triangles of q k^T and k k^T, of what is in z->q and z->k. */
void mhla_delta_squares(const mhla_gated *w, mhla_gated_scratch *z, int n);
/* Decays, beta, the mask L, and LB = L with columns times beta, of head h. */
void mhla_delta_masks(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h);
/* beta of head h. */
void mhla_delta_betas(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h);
/* The factors of products with states: qd = scale e^b q, kb = -e^b k, kd = beta e^(B-b) k, of head h, whose decays and beta are in z. */
void mhla_delta_factors(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h);

mhla_status mhla_delta_backward(const mhla_run *run);

mhla_status mhla_delta_forward_reference(const mhla_run *run);
mhla_status mhla_delta_backward_reference(const mhla_run *run);

#endif
