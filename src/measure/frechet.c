/* The Fréchet distance of two Gaussians. tr (S1 S2)^(1/2) is the sum of the square roots of the eigenvalues of S1 S2; with
 * S1 = L L^T these are those of L^T S2 L, which is symmetric: no root of a matrix and no eigenvectors are needed. L comes
 * from a Cholesky decomposition with pivots, which also serves where there are fewer pictures than features. Both are
 * LAPACK's; the products are ours, for every thread. All in double; some seconds for 2,048 features. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "measure/lapack.h"
#include "measure/measure.h"

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
    if (!finite) return mhla_fail(MHLA_ERANGE, "features of these images are not finite numbers");
    return MHLA_OK;
}

/* ---- The distance ------------------------------------------------------------------------------------------------------------ */

/* Sum of the square roots of the eigenvalues of S1 S2; both are overwritten. */
static mhla_status root_trace(double *trace, double *S1, double *S2, double *L, double *T, double *values, int n) {
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
        return mhla_fail(MHLA_EINVAL, "%lld and %lld images: a covariance needs at least two", (long long)nx,
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
