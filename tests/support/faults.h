/* Faults on purpose, for tests. A test program whose source includes this header is linked with faults.c and crash_disk.c, and
 * its calls of the functions that are listed in cmake/faults.txt (malloc, open, write, fsync, rename, ...) go through them
 * (ld's --wrap: only calls from this program and the static libraries in it; jansson is told by faults_start). So
 *
 *   - the n-th call of a kind fails, once or from then on (faults_arm), and
 *   - what is still allocated, open or mapped after a case is known (faults_held): no sanitizer is needed for that.
 *
 * faults_try runs a case for n = 1, 2, 3, .. until a run has fewer than n calls: MHLA_FULL=1 for every n, else only a few of
 * the larger ones. Each must end with MHLA_OK or with a status that fits and a message of its own, and must hold nothing.
 *
 * Streams that are opened for writing are cookies over open and write here, because stdio's own calls are not wrapped. */
#ifndef MHLA_TESTS_FAULTS_H
#define MHLA_TESTS_FAULTS_H

#include <mhla/mhla.h>

typedef enum fault_kind {
    FAULT_MEMORY, /* malloc, calloc, realloc, strdup, strndup, asprintf, realpath, open_memstream and its growing; jansson's */
    FAULT_OPEN,   /* open, fopen, fdopen, opendir */
    FAULT_READ,   /* read, pread, fread, fstat, mmap of a file */
    FAULT_WRITE,  /* write, also half of it; ftruncate */
    FAULT_SYNC,   /* fsync */
    FAULT_CLOSE,  /* close, fclose; the descriptor is closed all the same */
    FAULT_RENAME, /* rename, symlink */
    FAULT_MAKE,   /* mkdir */
    FAULT_REMOVE, /* unlink, unlinkat, rmdir, remove */
    FAULT_THREAD, /* pthread_create */
    FAULT_KINDS
} fault_kind;

void faults_start(void); /* first of all: jansson allocates here from now on */

/* The n-th call of the kind from now on fails, and those after it where `on`. */
void faults_arm(fault_kind kind, long n, int on);
/* Ends it. Whether it has failed. */
int faults_disarm(void);
long faults_calls(void); /* of that kind, since it was armed */

typedef struct fault_held {
    long blocks, bytes, maps, descriptors;
} fault_held;
fault_held faults_held(void);

/* A case: `before` prepares without faults, `run` is tried, `after` tells by failing of cmocka what is wrong with what is left
 * (status: of run). All may be NULL but run. */
typedef struct fault_case {
    const char *name;
    void (*before)(void);
    mhla_status (*run)(void);
    void (*after)(mhla_status status);
    unsigned kinds; /* bits 1 << FAULT_...; 0: all */
} fault_case;

void faults_try(const fault_case *c);

#endif
