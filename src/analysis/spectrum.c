/* What is measured of an attention matrix: its rank and effective rank by a singular value decomposition, and, row by row, its
 * entropy and where its weight lies. */
#include <float.h>
#include <math.h>

#include "analysis/matrix.h"
#include "core/memory.h"
#include "core/status.h"
#include "measure/lapack.h"

mhla_status mhla_spectrum(int64_t *rank, double *effective, double *values, double *A, int64_t rows, int64_t T) {
    const int64_t n = rows < T ? rows : T;
    double *own = values ? NULL : mhla_alloc((size_t)n * sizeof *own), *s = values ? values : own;
    if (s == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld singular values", (long long)n);
    for (int64_t i = 0; i < rows * T; i++)
        if (!isfinite(A[i])) {
            mhla_free(own);
            return mhla_fail(MHLA_ERANGE, "the attention matrix is not finite at row %lld, column %lld",
                             (long long)(i / T), (long long)(i % T));
        }
    const mhla_status status = mhla_singular_values(s, A, rows, T);
    if (status != MHLA_OK) {
        mhla_free(own);
        return status;
    }
    const double least = (double)(rows > T ? rows : T) * DBL_EPSILON * s[0];
    double sum = 0.0, entropy = 0.0;
    *rank = 0;
    for (int64_t i = 0; i < n; i++) {
        *rank += s[i] > least;
        sum += s[i];
    }
    for (int64_t i = 0; i < n && sum > 0.0; i++)
        if (s[i] > 0.0) entropy -= s[i] / sum * log(s[i] / sum);
    *effective = sum > 0.0 ? exp(entropy) : 0.0;
    mhla_free(own);
    return MHLA_OK;
}

void mhla_rows_measure(mhla_row_measures *m, double *A, const int64_t *rows, int64_t count, int64_t T,
                       const mhla_place_of *place) {
    double shares[3] = {0.0, 0.0, 0.0}; /* own, near, far */
    int64_t alive = 0, placed = 0;
    *m = (mhla_row_measures){0};
    for (int64_t i = 0; i < count; i++) {
        double *a = A + i * T, sum = 0.0, negative = 0.0, entropy = 0.0;
        const int64_t t = rows ? rows[i] : i;
        for (int64_t u = 0; u < T; u++)
            if (a[u] < 0.0) {
                negative -= a[u];
                a[u] = 0.0;
            } else {
                sum += a[u];
            }
        if (sum + negative > 0.0) m->clipped += negative / (sum + negative);
        if (!(sum > 0.0)) continue;
        alive++;
        double part[3] = {0.0, 0.0, 0.0}, distance = 0.0;
        for (int64_t u = 0; u < T; u++) {
            a[u] /= sum;
            if (a[u] > 0.0) entropy -= a[u] * log(a[u]);
            const mhla_place_of *p = &place[t], *q = &place[u];
            if (p->block[0] < 0 || q->block[0] < 0) continue;
            int64_t d2 = 0, from = 0;
            for (int axis = 0; axis < 3; axis++) {
                const int64_t d = p->block[axis] - q->block[axis], e = p->at[axis] - q->at[axis];
                d2 += d * d;
                from += e * e;
            }
            part[d2 == 0 ? 0 : d2 <= 2 ? 1 : 2] += a[u]; /* up to 1.5 away: sides and corners */
            distance += a[u] * sqrt((double)from);
        }
        m->entropy += entropy;
        const double all = part[0] + part[1] + part[2];
        if (!(all > 0.0)) continue;
        placed++;
        for (int j = 0; j < 3; j++) shares[j] += part[j] / all;
        m->distance += distance / all;
    }
    m->entropy = alive ? m->entropy / (double)alive : NAN;
    m->clipped = count ? m->clipped / (double)count : NAN;
    m->dead = count ? 1.0 - (double)alive / (double)count : NAN;
    m->own = placed ? shares[0] / (double)placed : NAN;
    m->near = placed ? shares[1] / (double)placed : NAN;
    m->far = placed ? shares[2] / (double)placed : NAN;
    m->distance = placed ? m->distance / (double)placed : NAN;
}
