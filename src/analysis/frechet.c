/* The Fréchet distance of two Gaussians. tr (S1 S2)^(1/2) is the sum of the square roots of the eigenvalues of S1 S2; with
 * S1 = L L^T these are those of L^T S2 L, which is symmetric: no root of a matrix and no eigenvectors are needed. L comes
 * from a Cholesky decomposition with pivots, which also serves where there are fewer pictures than features, and the
 * eigenvalues from a tridiagonal form (Householder) by implicit QL. All in double; some seconds for 2,048 features. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/analysis.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"

static mhla_status no_memory(int64_t n) {
    return mhla_fail(MHLA_ENOMEM, "no memory for matrices of %lld features", (long long)n);
}

/* ---- C [I,J] (+)= A^T B, A [R,I], B [R,J]: the one product that is needed ------------------------------------------- */

enum { TILE_I = 4, TILE_J = 8, PANEL = 16 }; /* PANEL: rows of C of a task */

typedef struct product {
    double *C;
    const double *A, *B;
    int64_t R, I, J, lda, ldb, ldc;
    int add;
} product;

static void tile(const product *p, int64_t i0, int64_t j0) {
    double sum[TILE_I][TILE_J] = {{0}};
    const double *a = p->A + i0, *b = p->B + j0;
    for (int64_t r = 0; r < p->R; r++, a += p->lda, b += p->ldb)
        for (int i = 0; i < TILE_I; i++)
            for (int j = 0; j < TILE_J; j++) sum[i][j] += a[i] * b[j];
    for (int i = 0; i < TILE_I; i++)
        for (int j = 0; j < TILE_J; j++) {
            double *c = p->C + (i0 + i) * p->ldc + j0 + j;
            *c = p->add ? *c + sum[i][j] : sum[i][j];
        }
}

static void edge(const product *p, int64_t i, int64_t j) {
    double sum = 0.0;
    for (int64_t r = 0; r < p->R; r++) sum += p->A[r * p->lda + i] * p->B[r * p->ldb + j];
    double *c = p->C + i * p->ldc + j;
    *c = p->add ? *c + sum : sum;
}

static void product_task(void *arg, int64_t task, int worker) {
    const product *p = arg;
    (void)worker;
    const int64_t begin = task * PANEL, end = begin + PANEL < p->I ? begin + PANEL : p->I;
    const int64_t whole = p->J / TILE_J * TILE_J;
    for (int64_t j = 0; j < whole; j += TILE_J)
        for (int64_t i = begin; i + TILE_I <= end; i += TILE_I) tile(p, i, j);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = i < begin + (end - begin) / TILE_I * TILE_I ? whole : 0; j < p->J; j++) edge(p, i, j);
}

static void multiply(const product *p) {
    mhla_parallel(NULL, (p->I + PANEL - 1) / PANEL, product_task, (void *)(uintptr_t)p);
}

/* ---- Means and covariances --------------------------------------------------------------------------------------------- */

enum { ROWS = 256 }; /* centred at a time: they stay in cache */

mhla_status mhla_covariance(double *covariance, double *mean, const float *x, int64_t n, int dims) {
    const size_t D = (size_t)dims;
    double *centred = mhla_alloc(ROWS * D * sizeof *centred);
    if (centred == NULL) return no_memory(dims);
    memset(mean, 0, D * sizeof *mean);
    memset(covariance, 0, D * D * sizeof *covariance);
    for (int64_t r = 0; r < n; r++)
        for (size_t i = 0; i < D; i++) mean[i] += x[(size_t)r * D + i];
    int finite = 1;
    for (size_t i = 0; i < D; i++) finite &= isfinite(mean[i] /= (double)n) != 0;
    for (int64_t at = 0; at < n && finite; at += ROWS) {
        const int64_t rows = n - at < ROWS ? n - at : ROWS;
        for (int64_t r = 0; r < rows; r++)
            for (size_t i = 0; i < D; i++) centred[(size_t)r * D + i] = (double)x[(size_t)(at + r) * D + i] - mean[i];
        multiply(&(product){.C = covariance,
                            .A = centred,
                            .B = centred,
                            .R = rows,
                            .I = dims,
                            .J = dims,
                            .lda = dims,
                            .ldb = dims,
                            .ldc = dims,
                            .add = 1});
    }
    for (size_t i = 0; i < D * D; i++) covariance[i] /= (double)(n - 1);
    mhla_free(centred);
    if (!finite) return mhla_fail(MHLA_ERANGE, "features of these pictures are not finite numbers");
    return MHLA_OK;
}

/* ---- Cholesky with pivots ------------------------------------------------------------------------------------------------ */

typedef struct column {
    double *L, *left; /* left [n]: what the diagonal still has */
    const double *S;
    const int *done; /* [n]: rows that were pivots */
    int n, k, pivot;
} column;

enum { CHOLESKY_ROWS = 64 };

/* L[i][k] = (S[i][pivot] - L[i] . L[pivot]) / L[pivot][k], for rows that were no pivots yet. */
static void column_task(void *arg, int64_t task, int worker) {
    const column *c = arg;
    (void)worker;
    const int begin = (int)task * CHOLESKY_ROWS, end = begin + CHOLESKY_ROWS < c->n ? begin + CHOLESKY_ROWS : c->n;
    const double *p = c->L + (size_t)c->pivot * (size_t)c->n;
    for (int i = begin; i < end; i++) {
        double *l = c->L + (size_t)i * (size_t)c->n;
        if (c->done[i]) continue;
        double sum[4] = {0};
        int j = 0;
        for (; j + 4 <= c->k; j += 4)
            for (int u = 0; u < 4; u++) sum[u] += l[j + u] * p[j + u];
        for (; j < c->k; j++) sum[0] += l[j] * p[j];
        const double s = c->S[(size_t)i * (size_t)c->n + (size_t)c->pivot];
        l[c->k] = (s - (sum[0] + sum[1] + sum[2] + sum[3])) / p[c->k];
        c->left[i] -= l[c->k] * l[c->k];
    }
}

mhla_status mhla_cholesky(double *L, int *rank, const double *S, int n) {
    double *left = malloc((size_t)n * sizeof *left);
    int *done = calloc((size_t)n, sizeof *done);
    *rank = 0;
    if (left == NULL || done == NULL) {
        free(left);
        free(done);
        return no_memory(n);
    }
    memset(L, 0, (size_t)n * (size_t)n * sizeof *L);
    double most = 0.0;
    for (int i = 0; i < n; i++) most = fmax(most, left[i] = S[(size_t)i * (size_t)n + (size_t)i]);
    const double least = most * (double)n * 2.3e-16; /* below is rounding */
    for (int k = 0; k < n; k++) {
        int pivot = -1;
        for (int i = 0; i < n; i++)
            if (!done[i] && (pivot < 0 || left[i] > left[pivot])) pivot = i;
        if (!(left[pivot] > least)) break;
        L[(size_t)pivot * (size_t)n + (size_t)k] = sqrt(left[pivot]);
        done[pivot] = 1;
        column c = {.L = L, .left = left, .S = S, .done = done, .n = n, .k = k, .pivot = pivot};
        mhla_parallel(NULL, (n + CHOLESKY_ROWS - 1) / CHOLESKY_ROWS, column_task, &c);
        *rank = k + 1;
    }
    free(left);
    free(done);
    return MHLA_OK;
}

/* ---- Eigenvalues ------------------------------------------------------------------------------------------------------------ */

typedef struct reflection {
    double *A;
    const double *v, *v_before, *w_before; /* v [k]; of the step before [k+1], or NULL */
    double *p;                             /* [k] = A v */
    int n, k;
} reflection;

enum { REFLECT_ROWS = 32 };

/* Rows of A get what the reflection before has left to do, A -= v w^T + w v^T, and are multiplied with the new v. */
static void reflect_task(void *arg, int64_t task, int worker) {
    const reflection *h = arg;
    (void)worker;
    const int begin = (int)task * REFLECT_ROWS, end = begin + REFLECT_ROWS < h->k ? begin + REFLECT_ROWS : h->k;
    for (int i = begin; i < end; i++) {
        double *a = h->A + (size_t)i * (size_t)h->n;
        double sum[4] = {0};
        if (h->v_before) {
            const double v = h->v_before[i], w = h->w_before[i];
            for (int j = 0; j < h->k; j++) a[j] -= v * h->w_before[j] + w * h->v_before[j];
        }
        int j = 0;
        for (; j + 4 <= h->k; j += 4)
            for (int u = 0; u < 4; u++) sum[u] += a[j + u] * h->v[j + u];
        for (; j < h->k; j++) sum[0] += a[j] * h->v[j];
        h->p[i] = sum[0] + sum[1] + sum[2] + sum[3];
    }
}

/* A becomes tridiagonal from its last row up: diagonal d [n], below it e [n] (e[i] between i-1 and i). work [5n]. */
static void tridiagonal(double *d, double *e, double *A, int n, double *work) {
    double *v = work, *w = work + n, *v_before = work + 2 * n, *w_before = work + 3 * n, *p = work + 4 * n;
    int pending = 0;
    for (int k = n - 1; k >= 0; k--) {
        double *row = A + (size_t)k * (size_t)n;
        if (pending)
            for (int j = 0; j <= k; j++) row[j] -= v_before[k] * w_before[j] + w_before[k] * v_before[j];
        d[k] = row[k];
        e[k] = 0.0;
        if (k == 0) break;
        /* the reflection that leaves of row[0..k-1] its last element alone */
        double scale = 0.0, h = 0.0;
        for (int j = 0; j < k; j++) scale = fmax(scale, fabs(row[j]));
        for (int j = 0; j < k; j++) {
            v[j] = scale > 0.0 ? row[j] / scale : 0.0;
            h += v[j] * v[j];
        }
        if (scale > 0.0) {
            const double root = v[k - 1] > 0.0 ? -sqrt(h) : sqrt(h);
            e[k] = scale * root;
            h -= v[k - 1] * root; /* v^T v / 2 of the new v */
            v[k - 1] -= root;
        }
        reflection task = {.A = A, .v = v, .p = p, .n = n, .k = k};
        if (pending) task.v_before = v_before, task.w_before = w_before;
        mhla_parallel(NULL, (k + REFLECT_ROWS - 1) / REFLECT_ROWS, reflect_task, &task);
        pending = scale > 0.0;
        if (!pending) continue;
        double dot = 0.0;
        for (int j = 0; j < k; j++) dot += v[j] * p[j];
        for (int j = 0; j < k; j++) w[j] = (p[j] - dot / (2.0 * h) * v[j]) / h;
        double *swap = v;
        v = v_before, v_before = swap;
        swap = w, w = w_before, w_before = swap;
    }
}

/* Implicit QL on a tridiagonal matrix: d becomes the eigenvalues. */
static int implicit_ql(double *d, double *e, int n) {
    for (int i = 1; i < n; i++) e[i - 1] = e[i];
    e[n - 1] = 0.0;
    for (int l = 0; l < n; l++)
        for (int turns = 0;; turns++) {
            int m = l;
            for (; m < n - 1; m++)
                if (fabs(e[m]) <= 2.3e-16 * (fabs(d[m]) + fabs(d[m + 1]))) break;
            if (m == l) break;
            if (turns == 100) return 0;
            double g = (d[l + 1] - d[l]) / (2.0 * e[l]), r = hypot(g, 1.0);
            g = d[m] - d[l] + e[l] / (g + copysign(r, g));
            double s = 1.0, c = 1.0, p = 0.0;
            int i = m - 1;
            for (; i >= l; i--) {
                const double f = s * e[i], b = c * e[i];
                e[i + 1] = r = hypot(f, g);
                if (r == 0.0) { /* split here */
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2.0 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
            }
            if (r == 0.0 && i >= l) continue;
            d[l] -= p;
            e[l] = g;
            e[m] = 0.0;
        }
    return 1;
}

mhla_status mhla_eigenvalues(double *values, double *A, int n) {
    double *work = malloc((size_t)n * 6 * sizeof *work);
    if (work == NULL) return no_memory(n);
    tridiagonal(values, work, A, n, work + n);
    const int ok = implicit_ql(values, work, n);
    free(work);
    return ok ? MHLA_OK : mhla_fail(MHLA_ERANGE, "the eigenvalues of %d features could not be found", n);
}

/* ---- The distance ------------------------------------------------------------------------------------------------------------ */

/* Sum of the square roots of the eigenvalues of S1 S2; all three are overwritten. */
static mhla_status root_trace(double *trace, const double *S1, double *S2, double *L, double *T, double *values,
                              int n) {
    int rank = 0;
    *trace = 0.0;
    MHLA_TRY(mhla_cholesky(L, &rank, S1, n));
    if (rank == 0) return MHLA_OK;
    multiply(&(product){.C = T, .A = S2, .B = L, .R = n, .I = n, .J = rank, .lda = n, .ldb = n, .ldc = n});
    multiply(&(product){.C = S2, .A = L, .B = T, .R = n, .I = rank, .J = rank, .lda = n, .ldb = n, .ldc = rank});
    MHLA_TRY(mhla_eigenvalues(values, S2, rank));
    for (int i = 0; i < rank; i++) *trace += sqrt(fmax(values[i], 0.0));
    return MHLA_OK;
}

mhla_status mhla_frechet_distance(double *distance, const float *x, int64_t nx, const float *y, int64_t ny, int dims) {
    const size_t D = (size_t)dims, square = D * D;
    if (nx < 2 || ny < 2)
        return mhla_fail(MHLA_EINVAL, "%lld and %lld pictures: a covariance takes two at least", (long long)nx,
                         (long long)ny);
    double *memory = mhla_alloc((4 * square + 3 * D) * sizeof *memory);
    if (memory == NULL) return no_memory(dims);
    double *S1 = memory, *S2 = S1 + square, *L = S2 + square, *T = L + square, *m1 = T + square, *m2 = m1 + D,
           *values = m2 + D;
    double trace = 0.0, sum = 0.0;
    mhla_status status = mhla_covariance(S1, m1, x, nx, dims);
    if (status == MHLA_OK) status = mhla_covariance(S2, m2, y, ny, dims);
    for (size_t i = 0; i < D && status == MHLA_OK; i++)
        sum += (m1[i] - m2[i]) * (m1[i] - m2[i]) + S1[i * D + i] + S2[i * D + i];
    if (status == MHLA_OK) status = root_trace(&trace, S1, S2, L, T, values, dims);
    mhla_free(memory);
    *distance = fmax(sum - 2.0 * trace, 0.0); /* below 0 is rounding */
    return status;
}
