/* Types of the numbers in files, and their way to float32 and back. Bytes are little-endian, as they lie in the file,
 * and need no alignment. */
#ifndef MHLA_FILE_DTYPE_H
#define MHLA_FILE_DTYPE_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

/* In the order by which the safetensors library sorts what it writes: wider ones last. */
typedef enum mhla_io_dtype {
    MHLA_IO_BOOL = 0,
    MHLA_IO_U8,
    MHLA_IO_I8,
    MHLA_IO_I16,
    MHLA_IO_U16,
    MHLA_IO_F16,
    MHLA_IO_BF16,
    MHLA_IO_I32,
    MHLA_IO_U32,
    MHLA_IO_F32,
    MHLA_IO_F64,
    MHLA_IO_I64,
    MHLA_IO_U64,
    MHLA_IO_DTYPES
} mhla_io_dtype;

size_t mhla_io_dtype_size(mhla_io_dtype dtype);      /* bytes of one */
const char *mhla_io_dtype_text(mhla_io_dtype dtype); /* "BF16", as safetensors calls it */
int mhla_io_dtype_is_float(mhla_io_dtype dtype);     /* F16, BF16, F32, F64: those that convert */
/* "float32", "bfloat16", "float16", "float64", also "f32", "F32", ...: -1 for what is no floating-point type */
int mhla_io_dtype_named(const char *text);

/* count numbers to or from float32; dtype is one of the floating-point types. Rounds to nearest even, keeps NaN, turns
 * what is too large into infinity. */
void mhla_io_to_f32(float *to, const void *from, mhla_io_dtype dtype, size_t count);
void mhla_io_from_f32(void *to, const float *from, mhla_io_dtype dtype, size_t count);

/* "[2, 3]" of a shape, as much of it as fits; returns text. */
const char *mhla_io_shape_text(char *text, size_t size, int rank, const int64_t *shape);

#endif
