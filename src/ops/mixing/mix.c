/* The mixing matrix: its initialisations (README.md has the table), their names, and the clip after an optimiser
 * step. Everything is computed in double and rounded once. To add an initialisation: its row in MHLA_MIX_LIST and its
 * case in `weight`, and in `normalised` if its rows or columns are to sum to 1. */
#include <math.h>
#include <string.h>

#include "core/status.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return mhla_fail(MHLA_EINVAL, __VA_ARGS__);                                                  \
    } while (0)

enum { MAX_AXES = 3 };

typedef enum sums { SUMS_FREE, SUMS_ROWS, SUMS_COLUMNS } sums;

typedef struct shape {
    mhla_mix_init init;
    int axes;
    int64_t rows[MAX_AXES], columns[MAX_AXES]; /* blocks of queries and of keys */
    int64_t Mq, Mk;
    double dmax;
    double param;
} shape;

/* Both grids are scaled to the same extent, and a block of the coarser one is the unit of distances. Along axis a, with n blocks
 * of queries and m of keys, the centres of i and j are min(n,m) |(i + 1/2)/n - (j + 1/2)/m| apart. Exact where n = m. */
static double apart(int64_t n, int64_t m, int64_t i, int64_t j) {
    const int64_t coarser = n < m ? n : m;
    return fabs((double)(coarser * ((2 * i + 1) * m - (2 * j + 1) * n)) / (double)(2 * n * m));
}

/* Euclidean distance of the centres of blocks i and j; blocks are numbered in raster order. */
static double distance(const shape *s, int64_t i, int64_t j) {
    double square = 0.0;
    for (int a = s->axes - 1; a >= 0; a--) {
        const double d = apart(s->rows[a], s->columns[a], i % s->rows[a], j % s->columns[a]);
        square += d * d;
        i /= s->rows[a];
        j /= s->columns[a];
    }
    return sqrt(square);
}

/* The distances below are to the blocks of the finer grid, whichever has the keys: a weight that falls to 0 there leaves some to
 * every block of a coarser one. */
static double finer_end(const shape *s, int a, double centre) {
    const int64_t n = s->rows[a], m = s->columns[a], finer = n > m ? n : m, coarser = n < m ? n : m;
    const double left = centre - 0.5 * (double)coarser / (double)finer, right = (double)coarser - 2.0 * centre + left;
    return left > right ? left : right;
}

/* Distance of query block i to the corner that is farthest away. */
static double farthest(const shape *s, int64_t i) {
    double square = 0.0;
    for (int a = s->axes - 1; a >= 0; a--) {
        const int64_t n = s->rows[a], coarser = n < s->columns[a] ? n : s->columns[a];
        const double d = finer_end(s, a, (double)(coarser * (2 * (i % n) + 1)) / (double)(2 * n));
        square += d * d;
        i /= n;
    }
    return sqrt(square);
}

/* Largest distance of all. */
static double largest(const shape *s) {
    double square = 0.0;
    for (int a = s->axes - 1; a >= 0; a--) {
        const int64_t n = s->rows[a], m = s->columns[a], finer = n > m ? n : m;
        const double d = (double)((n < m ? n : m) * (finer - 1)) / (double)finer;
        square += d * d;
    }
    return sqrt(square);
}

/* m[i,j] before normalising; one of the grids has more than one block. */
static double weight(const shape *s, int64_t i, int64_t j) {
    const double d = distance(s, i, j);
    switch (s->init) {
    case MHLA_MIX_PAPER: return 1.0 - d / farthest(s, i);
    case MHLA_MIX_RELEASED_LINEAR: return 1.0 - d / s->dmax;
    case MHLA_MIX_COS: return cos(0.78539816339744830962 * d / s->dmax); /* pi/4 */
    case MHLA_MIX_EXP: return exp(-d / s->param);
    case MHLA_MIX_GAUSSIAN: return exp(-d * d / (2.0 * (s->dmax / 3.0) * (s->dmax / 3.0)));
    case MHLA_MIX_LOCAL: return d <= s->param ? 1.0 : 0.0;
    case MHLA_MIX_UNIFORM: return 1.0;
    case MHLA_MIX_CAUSAL: return j <= i ? 1.0 : 0.0;
    }
    return 0.0;
}

static sums normalised(mhla_mix_init init) {
    switch (init) {
    case MHLA_MIX_RELEASED_LINEAR:
    case MHLA_MIX_COS:
    case MHLA_MIX_EXP:
    case MHLA_MIX_LOCAL: return SUMS_COLUMNS;
    case MHLA_MIX_GAUSSIAN: return SUMS_FREE;
    default: return SUMS_ROWS;
    }
}

mhla_status mhla_mix_fill_cross(float *mix, mhla_mix_init init, int axes, const int *blocks, const int *key_blocks,
                                double param) {
    CHECK(mix != NULL, "mix is NULL");
    CHECK(mhla_mix_name(init) != NULL, "init is %d: no such initialisation", (int)init);
    CHECK(axes >= 1 && axes <= MAX_AXES, "axes is %d: expected 1 to %d", axes, MAX_AXES);
    CHECK(blocks != NULL, "blocks is NULL");
    CHECK(key_blocks != NULL, "key_blocks is NULL");
    CHECK(param >= 0.0 && isfinite(param), "param is %g: expected a number, 0 or more", param);
    shape s = {.init = init, .axes = axes, .Mq = 1, .Mk = 1, .param = param};
    for (int a = 0; a < axes; a++) {
        CHECK(blocks[a] >= 1, "blocks[%d] is %d: expected 1 or more", a, blocks[a]);
        CHECK(key_blocks[a] >= 1, "key_blocks[%d] is %d: expected 1 or more", a, key_blocks[a]);
        CHECK(s.Mq <= (1 << 24) / blocks[a], "blocks multiply to more than %d", 1 << 24);
        CHECK(s.Mk <= (1 << 24) / key_blocks[a], "key_blocks multiply to more than %d", 1 << 24);
        CHECK(init != MHLA_MIX_CAUSAL || blocks[a] == key_blocks[a],
              "blocks[%d] is %d, key_blocks[%d] %d: a causal matrix is square", a, blocks[a], a, key_blocks[a]);
        s.rows[a] = blocks[a];
        s.columns[a] = key_blocks[a];
        s.Mq *= blocks[a];
        s.Mk *= key_blocks[a];
    }
    if (s.Mq == 1 && s.Mk == 1) { /* most of the formulas are 0/0 here */
        mix[0] = 1.0f;
        return MHLA_OK;
    }
    s.dmax = largest(&s);
    if (param == 0.0) s.param = init == MHLA_MIX_LOCAL ? 1.5 : 3.0;
    const sums kind = normalised(init);
    const int by_column = kind == SUMS_COLUMNS;
    const int64_t lines = by_column ? s.Mk : s.Mq, length = by_column ? s.Mq : s.Mk;
    for (int64_t i = 0; i < lines; i++) {
        /* line i: a row, or a column where columns sum to 1 */
        double sum = kind == SUMS_FREE ? 1.0 : 0.0;
        for (int64_t j = 0; kind != SUMS_FREE && j < length; j++)
            sum += by_column ? weight(&s, j, i) : weight(&s, i, j);
        for (int64_t j = 0; j < length; j++) {
            const int64_t row = by_column ? j : i, column = by_column ? i : j;
            mix[row * s.Mk + column] = (float)(sum == 0.0 ? 1.0 / (double)length : weight(&s, row, column) / sum);
        }
    }
    return MHLA_OK;
}

mhla_status mhla_mix_fill(float *mix, mhla_mix_init init, int axes, const int *blocks, double param) {
    return mhla_mix_fill_cross(mix, init, axes, blocks, blocks, param);
}

const char *mhla_mix_name(mhla_mix_init init) {
    switch (init) {
#define X(name, text)                                                                                                  \
    case MHLA_MIX_##name: return text;
        MHLA_MIX_LIST(X)
#undef X
    }
    return NULL;
}

mhla_status mhla_mix_from_name(mhla_mix_init *init, const char *name) {
    CHECK(init != NULL, "init is NULL");
    CHECK(name != NULL, "name is NULL");
#define X(id, text)                                                                                                    \
    if (strcmp(name, text) == 0) {                                                                                     \
        *init = MHLA_MIX_##id;                                                                                         \
        return MHLA_OK;                                                                                                \
    }
    MHLA_MIX_LIST(X)
#undef X
    return mhla_fail(MHLA_EINVAL, "name is \"%.64s\": no such initialisation of the mixing matrix", name);
}

mhla_status mhla_mix_clip(float *mix, int64_t rows, int64_t cols, float low, float high, int renormalise, int causal) {
    CHECK(mix != NULL, "mix is NULL");
    CHECK(rows >= 1, "rows is %lld: expected 1 or more", (long long)rows);
    CHECK(cols >= 1, "cols is %lld: expected 1 or more", (long long)cols);
    CHECK(rows <= INT64_MAX / 64 / cols, "mix has %lld x %lld elements: too many", (long long)rows, (long long)cols);
    CHECK(low <= high, "low is %g and high is %g: expected low <= high", (double)low, (double)high);
    for (int64_t i = 0; i < rows; i++) {
        float *row = mix + i * cols;
        const int64_t end = causal ? i % cols + 1 : cols; /* the row's own block is the last that it reads */
        double sum = 0.0;
        for (int64_t j = 0; j < end; j++) {
            if (row[j] < low) row[j] = low; /* a NaN is neither: it stays, and shows */
            if (row[j] > high) row[j] = high;
            sum += (double)row[j];
        }
        if (!renormalise || sum == 0.0) continue; /* low = 0: a row of zeros stays one */
        for (int64_t j = 0; j < end; j++) row[j] = (float)((double)row[j] / sum);
    }
    return MHLA_OK;
}
