/* NumPy's .npy: one array in a file. Versions 1 and 2 (and 3) are read, 1 is written. Row-major little-endian only. */
#ifndef MHLA_FILE_NPY_H
#define MHLA_FILE_NPY_H

#include <mhla/mhla.h>

#include "file/dtype.h"
#include "file/file.h"

enum { MHLA_NPY_RANK = 8 }; /* most axes of an array */

typedef struct mhla_npy {
    mhla_io_dtype dtype; /* F32, F64, F16, U8, I64, I32 or BOOL */
    int rank;
    int64_t shape[MHLA_NPY_RANK];
    int64_t count;             /* product of shape */
    const unsigned char *data; /* in the mapping */
    size_t bytes;
    mhla_file file;
} mhla_npy;

/* MHLA_EDATA with a sentence that names the file and the byte, MHLA_ENOTSUP for column-major arrays and other types. */
mhla_status mhla_npy_open(mhla_npy *array, const char *path);
/* The same of bytes in memory, which must outlive it; `name` stands for the path. */
mhla_status mhla_npy_open_bytes(mhla_npy *array, const void *bytes, size_t size, const char *name);
void mhla_npy_close(mhla_npy *array); /* harmless when repeated */

/* Atomically; data in row-major order. */
mhla_status mhla_npy_write(const char *path, mhla_io_dtype dtype, int rank, const int64_t *shape, const void *data);

#endif
