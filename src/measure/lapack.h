/* What the analysis takes from LAPACK, all in double: singular values, eigenvalues, a Cholesky decomposition with pivots.
 * liblapack.so.3 is loaded at the first call, so that a program that needs none of this does not load it. Any thread may call.
 * MHLA_ENOTSUP with the name of a Debian package where the library is missing. */
#ifndef MHLA_MEASURE_LAPACK_H
#define MHLA_MEASURE_LAPACK_H

#include <mhla/mhla.h>

/* Loads it now. For who has much to do first, and before there are threads: the environment is changed for a moment. */
mhla_status mhla_lapack_load(void);
/* Singular values of A [rows,columns], the largest first; A is overwritten. s [min(rows,columns)]. */
mhla_status mhla_singular_values(double *s, double *A, int64_t rows, int64_t columns);
/* Eigenvalues of the symmetric A [n,n], the smallest first; A is overwritten. */
mhla_status mhla_eigenvalues(double *values, double *A, int n);
/* L [n,*rank], row stride n, with L L^T = S [n,n], which is semi-definite and overwritten. */
mhla_status mhla_cholesky(double *L, int *rank, double *S, int n);

#endif
