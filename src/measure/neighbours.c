/* Precision and recall by nearest neighbours, and the Inception score. Distances of all pairs come from the packed product,
 * |a - b|^2 = a.a + b.b - 2 a.b, a block of rows at a time, after both sets were moved to the mean of the first, which
 * changes no distance and keeps the numbers small. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "measure/measure.h"

enum { BLOCK = 256, MAX_NEIGHBOURS = 64 };

typedef struct set {
    float *x;        /* [n,dims] */
    double *squares; /* [n] */
    double *radius;  /* [n]: squared distance of the k-th neighbour */
    mhla_weight *packed;
    int64_t n;
} set;

static void set_free(set *s) {
    mhla_free(s->x);
    free(s->squares);
    free(s->radius);
    mhla_weight_free(s->packed);
}

static mhla_status set_make(set *s, const float *x, int64_t n, int dims, const double *centre) {
    s->n = n;
    s->x = mhla_alloc((size_t)n * (size_t)dims * sizeof *s->x);
    s->squares = calloc((size_t)n, sizeof *s->squares);
    s->radius = calloc((size_t)n, sizeof *s->radius);
    if (s->x == NULL || s->squares == NULL || s->radius == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for features of %lld images", (long long)n);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < dims; i++) {
            const float v = (float)((double)x[r * dims + i] - centre[i]);
            s->x[r * dims + i] = v;
            s->squares[r] += (double)v * v;
        }
    return mhla_weight_pack(&s->packed, s->x, MHLA_F32, n, dims, 0);
}

typedef struct pairs {
    const set *rows, *cols;
    int64_t first; /* row of the block */
    const float *products;
    int k, dims;
    double *radius; /* of the rows, to be found; or NULL: */
    int *inside;    /* rows that lie within the radius of a column */
} pairs;

static double exact(const pairs *p, int64_t r, int64_t c) {
    const float *a = p->rows->x + r * p->dims, *b = p->cols->x + c * p->dims;
    double sum = 0.0;
    for (int i = 0; i < p->dims; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

/* The product in float32 tells which distances can matter; those are computed again. */
static void pairs_task(void *arg, int64_t task, int worker) {
    const pairs *p = arg;
    (void)worker;
    const int64_t r = p->first + task;
    const float *dot = p->products + task * p->cols->n;
    double nearest[MAX_NEIGHBOURS]; /* the first k, sorted */
    double *last = &nearest[p->k > 0 ? p->k - 1 : 0];
    int inside = 0;
    for (int i = 0; i < MAX_NEIGHBOURS; i++) nearest[i] = INFINITY;
    for (int64_t c = 0; c < p->cols->n && !inside; c++) {
        const double norms = p->rows->squares[r] + p->cols->squares[c];
        const double least = norms - 2.0 * (double)dot[c] - 1.2e-7 * p->dims * norms;
        if (p->radius == NULL) {
            inside = least <= p->cols->radius[c] && exact(p, r, c) <= p->cols->radius[c];
            continue;
        }
        if (c == r || least >= *last) continue; /* a row is not its own neighbour */
        const double d = exact(p, r, c);
        if (d >= *last) continue;
        double *at = last;
        for (; at > nearest && at[-1] > d; at--) *at = at[-1];
        *at = d;
    }
    if (p->radius)
        p->radius[r] = *last;
    else
        p->inside[r] = inside;
}

/* All rows of one set against all of another. */
static mhla_status compare(pairs *p, float *products) {
    p->products = products;
    for (p->first = 0; p->first < p->rows->n; p->first += BLOCK) {
        const int64_t rows = p->rows->n - p->first < BLOCK ? p->rows->n - p->first : BLOCK;
        const mhla_linear_desc d = {.size = sizeof d, .rows = rows};
        MHLA_TRY(mhla_linear_forward(&d, products, p->rows->x + p->first * p->dims, p->cols->packed));
        mhla_parallel(NULL, rows, pairs_task, p);
    }
    return MHLA_OK;
}

static mhla_status share_inside(double *share, const set *rows, const set *cols, int dims, float *products) {
    int *inside = calloc((size_t)rows->n, sizeof *inside);
    if (inside == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)rows->n);
    const mhla_status status = compare(&(pairs){.rows = rows, .cols = cols, .dims = dims, .inside = inside}, products);
    int64_t n = 0;
    for (int64_t i = 0; i < rows->n; i++) n += inside[i];
    *share = (double)n / (double)rows->n;
    free(inside);
    return status;
}

mhla_status mhla_precision_recall(double *precision, double *recall, const float *x, int64_t nx, const float *y,
                                  int64_t ny, int dims, int k) {
    if (k < 1 || k > MAX_NEIGHBOURS || nx <= k || ny <= k)
        return mhla_fail(MHLA_EINVAL, "%d neighbours of %lld and %lld images: expected 1 to %d, and more images", k,
                         (long long)nx, (long long)ny, MAX_NEIGHBOURS);
    set sets[2] = {{0}, {0}};
    const int64_t most = nx > ny ? nx : ny;
    float *products = mhla_alloc((size_t)most * BLOCK * sizeof *products);
    double *centre = calloc((size_t)dims, sizeof *centre);
    mhla_status status =
        products && centre ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)most);
    for (int64_t r = 0; r < nx && status == MHLA_OK; r++)
        for (int i = 0; i < dims; i++) centre[i] += (double)x[r * dims + i] / (double)nx;
    if (status == MHLA_OK) status = set_make(&sets[0], x, nx, dims, centre);
    if (status == MHLA_OK) status = set_make(&sets[1], y, ny, dims, centre);
    for (int i = 0; i < 2 && status == MHLA_OK; i++)
        status = compare(&(pairs){.rows = &sets[i], .cols = &sets[i], .k = k, .dims = dims, .radius = sets[i].radius},
                         products);
    if (status == MHLA_OK) status = share_inside(precision, &sets[1], &sets[0], dims, products);
    if (status == MHLA_OK) status = share_inside(recall, &sets[0], &sets[1], dims, products);
    set_free(&sets[0]);
    set_free(&sets[1]);
    mhla_free(products);
    free(centre);
    return status;
}

/* ---- The Inception score -------------------------------------------------------------------------------------------------- */

/* order [n]: numpy's RandomState(2020).permutation(n), by the Mersenne Twister: torch-fidelity's order, so that the parts hold
 * the same pictures as its parts do. */
static void shuffle(int64_t *order, int64_t n) {
    enum { WORDS = 624, MIDDLE = 397, SEED = 2020 };
    uint32_t state[WORDS] = {SEED};
    int at = WORDS;
    for (uint32_t i = 1; i < WORDS; i++) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t mask = (uint32_t)i, j;
        for (int s = 1; s < 32; s *= 2) mask |= mask >> s;
        do {
            if (at == WORDS)
                for (at = 0; at < WORDS; at++) { /* the next 624 numbers */
                    const uint32_t y = (state[at] & 0x80000000u) | (state[(at + 1) % WORDS] & 0x7fffffffu);
                    state[at] = state[(at + MIDDLE) % WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
                }
            if (at == WORDS) at = 0;
            uint32_t y = state[at++];
            y ^= y >> 11;
            y ^= y << 7 & 0x9d2c5680u;
            y ^= y << 15 & 0xefc60000u;
            j = (y ^ y >> 18) & mask;
        } while (j > (uint32_t)i);
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static double score_of_part(const float *p, const int64_t *rows, int64_t n, int classes) {
    double kl = 0.0;
    for (int c = 0; c < classes; c++) {
        double mean = 0.0;
        for (int64_t r = 0; r < n; r++) mean += p[rows[r] * classes + c] / (double)n;
        for (int64_t r = 0; r < n; r++) {
            const double q = p[rows[r] * classes + c];
            if (q > 0.0) kl += q * (log(q) - log(mean));
        }
    }
    return exp(kl / (double)n);
}

mhla_status mhla_inception_score(double *mean, double *deviation, const float *p, int64_t n, int classes, int parts) {
    double sum = 0.0, squares = 0.0;
    if (n < parts) parts = (int)n;
    int64_t *order = malloc((size_t)n * sizeof *order + 1);
    double *scores = malloc((size_t)parts * sizeof *scores + 1);
    mhla_status status = order && scores ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the score");
    if (status != MHLA_OK) goto end;
    shuffle(order, n);
    for (int64_t i = 0; i < parts; i++) {
        const int64_t from = i * n / parts, to = (i + 1) * n / parts;
        sum += scores[i] = score_of_part(p, order + from, to - from, classes);
    }
    *mean = sum / parts;
    for (int i = 0; i < parts; i++) squares += (scores[i] - *mean) * (scores[i] - *mean);
    *deviation = sqrt(squares / parts);
end:
    free(order);
    free(scores);
    return status;
}
