/* GLA inside a chunk: A[t][u] = sum over channels of q_t k_u exp(sum of g over u+1..t), and its gradient, by products of
 * matrices whose factors have no exponents above MOST. README.md has the two levels.
 *
 * The chunk is cut into parts: one, if no channel's decays sum to less than -MOST in all of it, else parts of PART tokens. Rows of
 * part i are multiplied with
 *   qs_t = q_t exp(sum of g from the begin of part i to t), and
 *   X_u = k_u F_u, F_u = exp(sum of g from u+1 to the begin of part i) for u before part i,
 *                  F_u = exp(-sum of g from the begin of part i to u) inside it, where that is at most exp(MOST). */
#include "ops/gated/gated.h"

enum { PART = 16 };
static const float MOST = 16.0f;

typedef struct part {
    int begin, end;
    int fast; /* the diagonal block is a product, too */
} part;

/* Is the sum of n rows of g, in every channel, -MOST or more? NaN is not. */
static int is_mild(const mhla_gated *w, mhla_gated_scratch *z, int begin, int end) {
    memset(z->sums, 0, (size_t)w->ldk * sizeof *z->sums);
    w->run->kernels->column_sums(z->sums, z->g + begin * w->ldk, w->ldk, NULL, 0, end - begin, w->ldk);
    int mild = 1;
    for (int j = 0; j < w->K; j++) mild &= z->sums[j] >= -MOST;
    return mild;
}

static int part_tokens(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    return n > PART && !is_mild(w, z, 0, n) ? PART : n;
}

/* ec_t = sums from the begin of t's part, qs. */
static void begin_parts(const mhla_gated *w, mhla_gated_scratch *z, int n, int size) {
    const mhla_kernels *k = w->run->kernels;
    for (int t = 0; t < n; t++) {
        float *row = z->ec + t * w->ldk;
        memcpy(row, z->g + t * w->ldk, (size_t)w->ldk * sizeof *row);
        if (t % size > 0) k->axpy(row, 1.0f, row - w->ldk, w->ldk);
    }
    const mhla_blend turn = {
        .n = n, .cols = w->ldk, .y = z->minus, .x = z->ec, .ldy = w->ldk, .ldx = w->ldk, .alpha = -1.0f};
    k->blend(&turn);
    k->vexp(z->ec, z->ec, n * w->ldk);
    mhla_gated_times(w, z->qs, z->q, z->ec, w->ldk, n, 1.0f, 0);
}

/* F and X as part i, [begin, end), needs them. Parts are taken in order. */
static part take_part(const mhla_gated *w, mhla_gated_scratch *z, int n, int size, int i) {
    const mhla_kernels *k = w->run->kernels;
    const int64_t ld = w->ldk;
    part p = {.begin = i * size, .end = (i + 1) * size < n ? (i + 1) * size : n};
    if (i > 0) { /* the part before: sums to its end; those before it: all of its decay */
        const int before = p.begin - size;
        memset(z->F + (p.begin - 1) * ld, 0, (size_t)ld * sizeof *z->F);
        for (int t = p.begin - 2; t >= before; t--) {
            memcpy(z->F + t * ld, z->g + (t + 1) * ld, (size_t)ld * sizeof *z->F);
            k->axpy(z->F + t * ld, 1.0f, z->F + (t + 1) * ld, ld);
        }
        k->vexp(z->F + before * ld, z->F + before * ld, size * ld);
        mhla_gated_times(w, z->F, z->F, z->ec + (p.begin - 1) * ld, 0, before, 1.0f, 0);
    }
    p.fast = is_mild(w, z, p.begin, p.end);
    if (p.fast) k->vexp(z->F + p.begin * ld, z->minus + p.begin * ld, (p.end - p.begin) * ld);
    mhla_gated_times(w, z->X, z->k, z->F, ld, p.fast ? p.end : p.begin, 1.0f, 0);
    return p;
}

/* e [ldk] = exp of the sum of g over u+1..t, whose logarithm grows with t in `sum`. */
static void next_factor(const mhla_gated *w, mhla_gated_scratch *z, float *e, float *sum, int t) {
    w->run->kernels->axpy(sum, 1.0f, z->g + t * w->ldk, w->ldk);
    w->run->kernels->vexp(e, sum, w->ldk);
}

/* ---- Scores ---- */

static void exact_scores(const mhla_gated *w, mhla_gated_scratch *z, float *A, const part *p) {
    float *e = z->T, *sum = z->sums;
    for (int u = p->begin; u < p->end; u++) {
        memset(sum, 0, (size_t)w->ldk * sizeof *sum);
        const float *k = z->k + u * w->ldk;
        w->run->kernels->row_dots(&A[u * w->ldc + u], z->q + u * w->ldk, 0, k, 0, 1, w->K);
        for (int t = u + 1; t < p->end; t++) {
            next_factor(w, z, e, sum, t);
            mhla_gated_times(w, e, e, k, 0, 1, 1.0f, 0);
            w->run->kernels->row_dots(&A[t * w->ldc + u], z->q + t * w->ldk, 0, e, 0, 1, w->K);
        }
    }
}

int mhla_gla_scores(const mhla_gated *w, mhla_gated_scratch *z, float *A, int n) {
    const mhla_kernels *k = w->run->kernels;
    const int size = part_tokens(w, z, n), parts = (n + size - 1) / size;
    begin_parts(w, z, n, size);
    for (int i = 0; i < parts; i++) {
        const part p = take_part(w, z, n, size, i);
        const int columns = p.fast ? p.end : p.begin;
        if (columns > 0) {
            const mhla_panels all = mhla_gated_score_panels(k, columns);
            k->transpose(z->T, &all, z->X, w->ldk, w->K);
            if (parts == 1) {
                mhla_gated_lower(w, A, z->qs, w->ldk, z->T, w->K, n);
            } else {
                mhla_gemm g = {.m = p.end - p.begin,
                               .n = all,
                               .store = MHLA_STORE_SET,
                               .c = A + p.begin * w->ldc,
                               .c_row = w->ldc};
                g.f = (mhla_factor){
                    .k = w->K, .a = z->qs + p.begin * w->ldk, .a_row = w->ldk, .a_k = 1, .b = z->T, .b_rows = w->K};
                mhla_multiply(w->run, &g);
            }
        }
        if (!p.fast) exact_scores(w, z, A, &p);
    }
    return parts == 1;
}

/* ---- Gradients: A[t][u] = sum qs_t X_u, so dq_t += sum_u dA[t][u] X_u ec_t, dk_u += sum_t dA[t][u] qs_t F_u ---- */

static void exact_backward(const mhla_gated *w, mhla_gated_scratch *z, const float *dA, const part *p) {
    const int64_t ld = w->ldk;
    float *e = z->T, *f = z->T + ld, *sum = z->sums;
    for (int u = p->begin; u < p->end; u++) {
        memset(sum, 0, (size_t)ld * sizeof *sum);
        for (int t = u + 1; t < p->end; t++) {
            const float d = dA[t * w->ldc + u];
            next_factor(w, z, e, sum, t);
            mhla_gated_times(w, z->dk + u * ld, z->q + t * ld, e, 0, 1, d, 1);
            mhla_gated_times(w, f, z->k + u * ld, e, 0, 1, d, 0);
            w->run->kernels->axpy(z->dq + t * ld, 1.0f, f, ld);
        }
    }
}

void mhla_gla_scores_backward(const mhla_gated *w, mhla_gated_scratch *z, const float *dA, int n) {
    const int64_t ld = w->ldk;
    const int size = part_tokens(w, z, n), parts = (n + size - 1) / size;
    begin_parts(w, z, n, size);
    for (int i = 0; i < parts; i++) {
        const part p = take_part(w, z, n, size, i);
        const int rows = p.end - p.begin;
        const float *d = dA + p.begin * w->ldc;
        mhla_gemm g = {.m = rows,
                       .n = w->pk,
                       .f2_lower = 1,
                       .store = MHLA_STORE_SET,
                       .c = z->qd,
                       .c_row = ld,
                       .f = {.k = p.begin, .a = d, .a_row = w->ldc, .a_k = 1, .b = z->X, .b_k = ld}};
        if (p.fast)
            g.f2 = (mhla_factor){
                .k = rows, .a = d + p.begin, .a_row = w->ldc, .a_k = 1, .b = z->X + p.begin * ld, .b_k = ld};
        if (p.begin > 0 || p.fast) {
            w->run->kernels->gemm(&g);
            mhla_gated_times(w, z->dq + p.begin * ld, z->qd, z->ec + p.begin * ld, ld, rows, 1.0f, 1);
        }
        if (p.begin > 0) {
            mhla_gemm before = {.m = p.begin, .n = w->pk, .store = MHLA_STORE_SET, .c = z->qd, .c_row = ld};
            before.f =
                (mhla_factor){.k = rows, .a = d, .a_row = 1, .a_k = w->ldc, .b = z->qs + p.begin * ld, .b_k = ld};
            w->run->kernels->gemm(&before);
            mhla_gated_times(w, z->dk, z->qd, z->F, ld, p.begin, 1.0f, 1);
        }
        if (p.fast) {
            mhla_gated_times_turned(w, z, z->qd, d + p.begin, z->qs + p.begin * ld, rows, 0, 0);
            mhla_gated_times(w, z->dk + p.begin * ld, z->qd, z->F + p.begin * ld, ld, rows, 1.0f, 1);
        } else {
            exact_backward(w, z, dA, &p);
        }
    }
}
