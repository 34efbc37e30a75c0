/* Inside a chunk: scores, masks, and the one triangular solve, as an inverse that all columns of v share. */
#include <math.h>

#include "ops/gated_delta/gated_delta.h"

static void load_rows(const mhla_gated *w, float *dst, const mhla_rows *rows, int n, const float *norm) {
    w->run->kernels->copy_rows(dst, w->ldk, rows, n, w->K, norm);
}

void mhla_delta_load(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t key_head) {
    const mhla_run *run = w->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    const mhla_rows q = mhla_gated_rows(c, run->q, dtype, &run->call.q, key_head);
    const mhla_rows k = mhla_gated_rows(c, run->k, dtype, &run->call.k, key_head);
    load_rows(w, z->q, &q, c->n, mhla_delta_norms(w, c->x, key_head, 0));
    load_rows(w, z->k, &k, c->n, mhla_delta_norms(w, c->x, key_head, 1));
}

/* 1 / sqrt(sum of squares + 1e-6) of the rows of q or k */
static void make_norms(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t key_head,
                       int of_k) {
    const mhla_run *run = w->run;
    float *norm = mhla_delta_norms(w, c->x, key_head, of_k);
    const mhla_rows rows =
        mhla_gated_rows(c, of_k ? run->k : run->q, run->plan->d.dtype, of_k ? &run->call.k : &run->call.q, key_head);
    load_rows(w, z->q, &rows, c->n, NULL);
    run->kernels->row_dots(norm, z->q, w->ldk, z->q, w->ldk, c->n, w->K);
    for (int t = 0; t < c->n; t++) norm[t] = 1.0f / sqrtf(norm[t] + 1e-6f);
}

void mhla_delta_squares(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    const mhla_panels p = mhla_gated_score_panels(w->run->kernels, n);
    w->run->kernels->transpose(z->T, &p, z->k, w->ldk, w->K);
    mhla_gated_lower(w, z->A, z->q, w->ldk, z->T, w->K, n);
    mhla_gated_lower(w, z->kk, z->k, w->ldk, z->T, w->K, n);
}

void mhla_delta_betas(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h) {
    const mhla_call *call = &w->run->call;
    const mhla_rows rows = mhla_gated_rows(c, call->beta, MHLA_F32, &call->beta_strides, h);
    for (int t = 0; t < c->n; t++) z->beta[t] = ((const float *)rows.base)[t * rows.stride];
}

/* y [n][ldc] = alpha x z, a row stride of 0 repeating z */
static void times_square(const mhla_gated *w, float *y, const float *x, const float *z, int64_t ldz, int n,
                         float alpha) {
    const mhla_blend p = {
        .n = n, .cols = n, .y = y, .x = x, .z = z, .ldy = w->ldc, .ldx = w->ldc, .ldz = ldz, .alpha = alpha};
    w->run->kernels->blend(&p);
}

void mhla_delta_masks(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h) {
    mhla_gated_decays(w, z, c, h);
    mhla_delta_betas(w, z, c, h);
    mhla_gated_mask(w, z, c->n);
    times_square(w, z->LB, z->L, z->beta, 0, c->n, 1.0f);
}

/* dst = rows, row t times norm_t, then times factor e_t more_t: rounded alike, whether rows have been divided by their length or not */
static void scaled_rows(const mhla_gated *w, mhla_gated_scratch *z, float *dst, const mhla_rows *rows, int n,
                        const float *norm, const float *e, const float *more, float factor) {
    const mhla_rows loaded = {dst, NULL, w->ldk, MHLA_F32};
    if (norm) load_rows(w, dst, rows, n, norm);
    for (int t = 0; t < n; t++) z->scale[t] = factor * e[t] * (more ? more[t] : 1.0f);
    load_rows(w, dst, norm ? &loaded : rows, n, z->scale);
}

void mhla_delta_factors(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h) {
    const mhla_run *run = w->run;
    const mhla_dtype dtype = run->plan->d.dtype;
    const int64_t key_head = h / w->R;
    const mhla_rows loaded[2] = {{z->q, NULL, w->ldk, MHLA_F32}, {z->k, NULL, w->ldk, MHLA_F32}};
    const mhla_rows q = w->fused ? loaded[0] : mhla_gated_rows(c, run->q, dtype, &run->call.q, key_head);
    const mhla_rows k = w->fused ? loaded[1] : mhla_gated_rows(c, run->k, dtype, &run->call.k, key_head);
    const float *q_norm = w->fused ? NULL : mhla_delta_norms(w, c->x, key_head, 0);
    const float *k_norm = w->fused ? NULL : mhla_delta_norms(w, c->x, key_head, 1);
    scaled_rows(w, z, z->qd, &q, c->n, q_norm, z->eb, NULL, run->plan->d.scale);
    scaled_rows(w, z, z->kb, &k, c->n, k_norm, z->eb, NULL, -1.0f);
    scaled_rows(w, z, z->kd, &k, c->n, k_norm, z->ek, z->beta, 1.0f);
}

/* ---- The inverse of I + N ---- */

enum { BLOCK = 16 };

/* inverse [BLOCK][BLOCK] of I + N, N [n][ld] strictly lower; row by row: e_t minus what the rows before make of N's row */
static void invert_block(float *inverse, const float *N, int64_t ld, int n) {
    memset(inverse, 0, BLOCK * BLOCK * sizeof *inverse);
    for (int t = 0; t < n; t++) {
        float *row = inverse + (ptrdiff_t)t * BLOCK;
        for (int u = 0; u < t; u++)
            for (int j = 0; j < BLOCK; j++) row[j] -= N[t * ld + u] * inverse[u * BLOCK + j];
        row[t] = 1.0f;
    }
}

/* Is one of n numbers NaN? */
static int any_nan(const float *x, int64_t n) {
    int found = 0;
    for (int64_t i = 0; i < n; i++) found |= x[i] != x[i];
    return found;
}

/* The same inverse by substitution alone, without a product with a zero of the triangle, which would make NaN of NaN. */
static void substitute(float *T, const float *N, int64_t ld, int n) {
    for (int t = 0; t < n; t++) {
        float *row = T + t * ld;
        memset(row, 0, (size_t)ld * sizeof *row);
        for (int u = 0; u < t; u++)
            for (int j = 0; j <= u; j++) row[j] -= N[t * ld + u] * T[u * ld + j];
        row[t] = 1.0f;
    }
}

/* T [n][ldc] = (I + N)^-1, zeros above the diagonal up to n's last vector: with blocks N_ij, and D_i the inverse of a diagonal one,
 *   T_ij = -D_i sum over j <= l < i of N_il T_lj
 * NaN in N makes NaN of rows by way of zeros above the diagonal: then it is made again. */
static void invert(const mhla_gated *w, mhla_gated_scratch *z, float *T, const float *N, int n) {
    float D[BLOCK * BLOCK], *sums = z->turned;
    const int64_t ld = w->ldc;
    for (int i = 0; i < n; i += BLOCK) {
        const int rows = n - i < BLOCK ? n - i : BLOCK;
        invert_block(D, N + i * ld + i, ld, rows);
        for (int t = 0; t < rows; t++) {
            float *row = T + (i + t) * ld + i;
            memset(row, 0, (size_t)(ld - i) * sizeof *row);
            memcpy(row, D + (ptrdiff_t)t * BLOCK, BLOCK * sizeof *row);
        }
        if (i == 0) continue;
        for (int e = 0; e < BLOCK * BLOCK; e++) D[e] = -D[e];
        mhla_gemm g = {.m = rows, .store = MHLA_STORE_SET, .c = sums, .c_row = ld};
        w->run->kernels->panels(&g.n, i);
        g.f = (mhla_factor){.k = i, .a = N + i * ld, .a_row = ld, .a_k = 1, .b = T, .b_k = ld};
        w->run->kernels->gemm(&g);
        g.c = T + i * ld;
        g.f.k = 0;
        g.f2_lower = g.f2_lead = 1;
        g.f2 = (mhla_factor){.k = rows, .a = D, .a_row = BLOCK, .a_k = 1, .b = sums, .b_k = ld};
        w->run->kernels->gemm(&g);
    }
    if (any_nan(T, (n - 1) * ld + n)) substitute(T, N, ld, n);
}

/* ---- A chunk and the heads that share q and k ---- */

void mhla_delta_score(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t key_head) {
    for (int of_k = 0; w->norms && of_k < 2; of_k++) make_norms(w, z, c, key_head, of_k);
    mhla_delta_load(w, z, c, key_head);
    mhla_delta_squares(w, z, c->n);
    for (int64_t h = key_head * w->R; h < (key_head + 1) * w->R; h++) {
        mhla_delta_masks(w, z, c, h);
        times_square(w, mhla_delta_scores(w, z, c->x, h), z->A, z->LB, w->ldc, c->n, w->run->plan->d.scale);
        times_square(w, z->N, z->kk, z->LB, w->ldc, c->n, 1.0f);
        invert(w, z, mhla_delta_inverse(w, z, c->x, h), z->N, c->n);
    }
}
