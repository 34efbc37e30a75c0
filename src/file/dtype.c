#include "file/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/numbers.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors in files are little-endian and used as they lie");

static const struct {
    const char *text;
    size_t size;
} types[MHLA_IO_DTYPES] = {
    [MHLA_IO_BOOL] = {"BOOL", 1}, [MHLA_IO_U8] = {"U8", 1},   [MHLA_IO_I8] = {"I8", 1},     [MHLA_IO_I16] = {"I16", 2},
    [MHLA_IO_U16] = {"U16", 2},   [MHLA_IO_F16] = {"F16", 2}, [MHLA_IO_BF16] = {"BF16", 2}, [MHLA_IO_I32] = {"I32", 4},
    [MHLA_IO_U32] = {"U32", 4},   [MHLA_IO_F32] = {"F32", 4}, [MHLA_IO_F64] = {"F64", 8},   [MHLA_IO_I64] = {"I64", 8},
    [MHLA_IO_U64] = {"U64", 8},
};

size_t mhla_io_dtype_size(mhla_io_dtype dtype) { return types[dtype].size; }
const char *mhla_io_dtype_text(mhla_io_dtype dtype) { return types[dtype].text; }
int mhla_io_dtype_is_float(mhla_io_dtype dtype) {
    return dtype == MHLA_IO_F32 || dtype == MHLA_IO_F16 || dtype == MHLA_IO_BF16 || dtype == MHLA_IO_F64;
}

int mhla_io_dtype_named(const char *text) {
    static const struct {
        const char *name;
        mhla_io_dtype dtype;
    } names[] = {{"float32", MHLA_IO_F32}, {"bfloat16", MHLA_IO_BF16}, {"float16", MHLA_IO_F16},
                 {"float64", MHLA_IO_F64}, {"f32", MHLA_IO_F32},       {"bf16", MHLA_IO_BF16},
                 {"f16", MHLA_IO_F16},     {"f64", MHLA_IO_F64}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(text, names[i].name) == 0) return names[i].dtype;
    return -1;
}

/* memcpy of each number: the bytes may lie anywhere, and compilers make plain loads of it. */
#define EACH(type, expression)                                                                                         \
    for (size_t i = 0; i < count; i++) {                                                                               \
        type x;                                                                                                        \
        memcpy(&x, (const char *)from + i * sizeof x, sizeof x);                                                       \
        to[i] = expression;                                                                                            \
    }

void mhla_io_to_f32(float *to, const void *from, mhla_io_dtype dtype, size_t count) {
    switch (dtype) {
    case MHLA_IO_F32:
        if (count) memcpy(to, from, count * sizeof *to);
        break;
    case MHLA_IO_F64: EACH(double, (float)x) break;
    case MHLA_IO_F16: EACH(uint16_t, mhla_half_to_float(x)) break;
    case MHLA_IO_BF16: EACH(uint16_t, mhla_bf16_to_float(x)) break;
    default: break;
    }
}

#define EACH_TO(type, expression)                                                                                      \
    for (size_t i = 0; i < count; i++) {                                                                               \
        const type x = expression;                                                                                     \
        memcpy((char *)to + i * sizeof x, &x, sizeof x);                                                               \
    }

void mhla_io_from_f32(void *to, const float *from, mhla_io_dtype dtype, size_t count) {
    switch (dtype) {
    case MHLA_IO_F32:
        if (count) memcpy(to, from, count * sizeof *from);
        break;
    case MHLA_IO_F64: EACH_TO(double, from[i]) break;
    case MHLA_IO_F16: EACH_TO(uint16_t, mhla_float_to_half(from[i])) break;
    case MHLA_IO_BF16: EACH_TO(uint16_t, mhla_float_to_bf16(from[i])) break;
    default: break;
    }
}

const char *mhla_io_shape_text(char *text, size_t size, int rank, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}
