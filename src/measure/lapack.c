/* LAPACK by its Fortran names, from whichever liblapack.so.3 the system has: the reference one, or OpenBLAS. OpenBLAS starts
 * threads when it is loaded; threads are ours to start, so it gets one unless the user's environment says otherwise. And it
 * waits for ever where it gets no memory: see take_buffer. */
#include "measure/lapack.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "core/memory.h"
#include "core/status.h"

/* Fortran appends the length of each string to the arguments. Matrices are in columns: ours are their transposes. */
typedef void dgesdd_fn(const char *job, const int *m, const int *n, double *a, const int *lda, double *s, double *u,
                       const int *ldu, double *vt, const int *ldvt, double *work, const int *lwork, int *iwork,
                       int *info, size_t);
typedef void dsyevd_fn(const char *job, const char *uplo, const int *n, double *a, const int *lda, double *w,
                       double *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
typedef void dgemm_fn(const char *ta, const char *tb, const int *m, const int *n, const int *k, const double *alpha,
                      const double *a, const int *lda, const double *b, const int *ldb, const double *beta, double *c,
                      const int *ldc, size_t, size_t);
typedef void dpstrf_fn(const char *uplo, const int *n, double *a, const int *lda, int *pivots, int *rank,
                       const double *tolerance, double *work, int *info, size_t);

static const char library_name[] = "liblapack.so.3";

static struct {
    pthread_mutex_t lock; /* of this structure */
    pthread_mutex_t turn; /* of the calls, where `in_turn` */
    void *library;        /* stays loaded */
    int in_turn;
    dgesdd_fn *dgesdd;
    dsyevd_fn *dsyevd;
    dpstrf_fn *dpstrf;
} lapack = {.lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_MUTEX_INITIALIZER};

static mhla_status find(void *function, void *library, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) return mhla_fail(MHLA_ENOTSUP, "%s has no %s", library_name, name);
    memcpy(function, &found, sizeof found); /* C has no cast from an object to a function */
    return MHLA_OK;
}

/* OpenBLAS maps 128 MiB for each call that runs at the same time as others, keeps them for later ones, and tries for ever
 * where it cannot. With a limited address space it gets one such buffer, now, and calls take turns. */
static mhla_status take_buffer(void *library) {
    enum { BUFFER = 136 << 20, N = 160 };
    struct rlimit limit;
    dgemm_fn *dgemm = NULL;
    if (dlsym(library, "openblas_get_config") == NULL) return MHLA_OK;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return MHLA_OK;
    MHLA_TRY(find(&dgemm, library, "dgemm_"));
    double *x = mhla_alloc_zero((size_t)2 * N * N * sizeof *x);
    void *room = mmap(NULL, BUFFER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED) munmap(room, BUFFER);
    const int ok = x && dgemm && room != MAP_FAILED, n = N;
    const double one = 1.0, zero = 0.0;
    if (ok) dgemm("N", "N", &n, &n, &n, &one, x, &n, x, &n, &zero, x + (size_t)N * N, &n, 1, 1);
    mhla_free(x);
    if (!ok) return mhla_fail(MHLA_ENOMEM, "no memory for OpenBLAS, which takes %d MB", BUFFER >> 20);
    lapack.in_turn = 1;
    return MHLA_OK;
}

static mhla_status load(void) {
    static const char threads[] = "OPENBLAS_NUM_THREADS"; /* read by OpenBLAS when it is loaded */
    const int unset = getenv(threads) == NULL;
    if (unset) setenv(threads, "1", 0);
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    const char *why = library ? NULL : dlerror();
    if (unset) unsetenv(threads);
    if (library == NULL)
        return mhla_fail(MHLA_ENOTSUP,
                         "LAPACK is needed and cannot be loaded (%s): install Debian's package liblapack3",
                         why ? why : library_name);
    mhla_status status = find(&lapack.dgesdd, library, "dgesdd_");
    if (status == MHLA_OK) status = find(&lapack.dsyevd, library, "dsyevd_");
    if (status == MHLA_OK) status = find(&lapack.dpstrf, library, "dpstrf_");
    if (status == MHLA_OK) status = take_buffer(library);
    if (status == MHLA_OK)
        lapack.library = library;
    else
        dlclose(library);
    return status;
}

mhla_status mhla_lapack_load(void) {
    pthread_mutex_lock(&lapack.lock);
    const mhla_status status = lapack.library ? MHLA_OK : load();
    pthread_mutex_unlock(&lapack.lock);
    return status;
}

static void enter(void) {
    if (lapack.in_turn) pthread_mutex_lock(&lapack.turn);
}

static void leave(void) {
    if (lapack.in_turn) pthread_mutex_unlock(&lapack.turn);
}

/* Its sizes are int. */
static mhla_status check_size(int64_t rows, int64_t columns) {
    if (rows > 0 && columns > 0 && rows <= INT_MAX / 16 && columns <= INT_MAX / 16) return MHLA_OK;
    return mhla_fail(MHLA_ERANGE, "a matrix of %lld x %lld is not one for LAPACK", (long long)rows, (long long)columns);
}

static mhla_status no_memory(int64_t rows, int64_t columns) {
    return mhla_fail(MHLA_ENOMEM, "no memory for decomposing a matrix of %lld x %lld", (long long)rows,
                     (long long)columns);
}

static mhla_status gave_up(const char *name, int info, int64_t rows, int64_t columns) {
    return mhla_fail(MHLA_ERANGE, "LAPACK's %s gave up (%d) on a matrix of %lld x %lld", name, info, (long long)rows,
                     (long long)columns);
}

mhla_status mhla_singular_values(double *s, double *A, int64_t rows, int64_t columns) {
    MHLA_TRY(check_size(rows, columns));
    MHLA_TRY(mhla_lapack_load());
    const int m = (int)columns, n = (int)rows, one = 1, ask = -1;
    double unused = 0.0, best = 0.0;
    int info = 0;
    int *iwork = mhla_alloc(8 * (size_t)(m < n ? m : n) * sizeof *iwork);
    if (iwork == NULL) return no_memory(rows, columns);
    lapack.dgesdd("N", &m, &n, A, &m, s, &unused, &one, &unused, &one, &best, &ask, iwork, &info, 1);
    const int size = info == 0 && best < INT_MAX ? (int)best : 0;
    double *work = mhla_alloc((size_t)size * sizeof *work);
    if (work) {
        enter();
        lapack.dgesdd("N", &m, &n, A, &m, s, &unused, &one, &unused, &one, work, &size, iwork, &info, 1);
        leave();
    }
    mhla_status status = MHLA_OK;
    if (info != 0)
        status = gave_up("dgesdd", info, rows, columns);
    else if (work == NULL)
        status = no_memory(rows, columns);
    mhla_free(work);
    mhla_free(iwork);
    return status;
}

mhla_status mhla_eigenvalues(double *values, double *A, int n) {
    MHLA_TRY(check_size(n, n));
    MHLA_TRY(mhla_lapack_load());
    const int ask = -1, one = 1;
    double best = 0.0;
    int iwork = 0, info = 0; /* without vectors one integer is enough */
    lapack.dsyevd("N", "U", &n, A, &n, values, &best, &ask, &iwork, &one, &info, 1, 1);
    const int size = info == 0 && best < INT_MAX ? (int)best : 0;
    double *work = mhla_alloc((size_t)size * sizeof *work);
    if (work) {
        enter();
        lapack.dsyevd("N", "U", &n, A, &n, values, work, &size, &iwork, &one, &info, 1, 1);
        leave();
    }
    mhla_status status = MHLA_OK;
    if (info != 0)
        status = gave_up("dsyevd", info, n, n);
    else if (work == NULL)
        status = no_memory(n, n);
    mhla_free(work);
    return status;
}

mhla_status mhla_cholesky(double *L, int *rank, double *S, int n) {
    *rank = 0;
    MHLA_TRY(check_size(n, n));
    MHLA_TRY(mhla_lapack_load());
    const size_t N = (size_t)n;
    const double usual = -1.0; /* n 2^-53 times the largest of the diagonal: below is rounding */
    int info = 0;
    double *work = mhla_alloc(2 * N * sizeof *work);
    int *pivots = mhla_alloc(N * sizeof *pivots);
    mhla_status status = work && pivots ? MHLA_OK : no_memory(n, n);
    if (status == MHLA_OK) {
        enter();
        lapack.dpstrf("U", &n, S, &n, pivots, rank, &usual, work, &info, 1);
        leave();
    }
    if (info < 0) status = gave_up("dpstrf", info, n, n); /* above 0: the rank is less than n */
    for (size_t i = 0; i < N && status == MHLA_OK; i++) { /* row i of the factor belongs to row pivots[i] of S */
        const size_t used = i + 1 < (size_t)*rank ? i + 1 : (size_t)*rank;
        double *row = L + (size_t)(pivots[i] - 1) * N;
        memcpy(row, S + i * N, used * sizeof *row);
        memset(row + used, 0, (N - used) * sizeof *row);
    }
    mhla_free(work);
    mhla_free(pivots);
    return status;
}
