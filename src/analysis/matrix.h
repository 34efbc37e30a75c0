/* Attention as a matrix: what an operator of libmhla computes, written out as A [T,T] with A v = o, in double; and what is
 * measured of such a matrix. */
#ifndef MHLA_ANALYSIS_MATRIX_H
#define MHLA_ANALYSIS_MATRIX_H

#include <mhla/mhla.h>
#include <stdint.h>

#include "nn/nn.h"

/* ---- matrix.c ---- */

/* MHLA_ENOTSUP for an attention that is not written out here (packed sequences, a denominator of its own). */
mhla_status mhla_matrix_check(const mhla_attended *a);

/* A [count,T]: rows `rows` (NULL: 0 .. count-1) of the matrix of sample b and head h. masked 0: of a causal attention, scores
 * as if every token saw all others (softmax: over all of them; MHLA: of its own and earlier chunks, its mixing matrix has no
 * others; recurrences with decay: masked, because decays go one way), denominators as they are. */
mhla_status mhla_matrix_form(double *A, const mhla_attended *a, int64_t b, int h, const int64_t *rows, int64_t count,
                             int masked);

/* The most that its rank can be (spec of each operator; vision-baselines), for `count` rows. */
int64_t mhla_matrix_bound(const mhla_plan *plan, int64_t T, int64_t count);
const char *mhla_matrix_name(const mhla_plan *plan); /* "mhla", "linear", "softmax", ... */
int mhla_matrix_causal(const mhla_plan *plan);

/* ---- spectrum.c ---- */

/* Of A [rows,T], which is overwritten: how many singular values are above max(rows, T) 2^-52 times the largest, and exp of the
 * entropy of the singular values over their sum; both 0 for a matrix of zeros. values [min(rows,T)], unless NULL, gets them, the
 * largest first. MHLA_ERANGE for what is not finite. */
mhla_status mhla_spectrum(int64_t *rank, double *effective, double *values, double *A, int64_t rows, int64_t T);

typedef struct mhla_row_measures {
    double entropy;        /* mean over rows with weight, nats */
    double clipped;        /* share of negative weight, mean over rows */
    double dead;           /* share of rows without weight */
    double own, near, far; /* shares of weight by distance of blocks; NaN where no row counts */
    double distance;       /* mean, between tokens */
} mhla_row_measures;

/* Where a token is: its block and itself, by row, column and, of clips, frame. Block -1: nowhere; its row and column stay out of
 * shares and distances. */
typedef struct mhla_place_of {
    int32_t block[3], at[3];
} mhla_place_of;

/* Of A [count,T], place [T]; rows as above. A is clipped at 0 and its rows are made to sum to 1. */
void mhla_rows_measure(mhla_row_measures *m, double *A, const int64_t *rows, int64_t count, int64_t T,
                       const mhla_place_of *place);

#endif
