/* Writing GGUF: sizes first, so that every offset is known, then the header, then tensors a few rows at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "file/gguf_types.h"
#include "file/text.h"

enum { ALIGNMENT = 32, PIECE = 1 << 16 /* numbers in memory at a time, or one row */ };

static int64_t rows_of(const mhla_gguf_storable *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank - 1; i++) n *= t->shape[i];
    return n;
}
static int64_t cols_of(const mhla_gguf_storable *t) { return t->shape[t->rank - 1]; }
static uint64_t padded(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int text_order(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Names [count]: sorts them and looks for two alike. */
static mhla_status check_names(const char **names, int64_t count, const char *what, const char *path) {
    qsort(names, (size_t)count, sizeof *names, text_order);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return mhla_fail(MHLA_EINVAL, "%s: the %s %s would occur twice", path, what, MHLA_QUOTE(names[i]));
    return MHLA_OK;
}

static mhla_status check_tensor(const mhla_gguf_storable *t, const char *path) {
    const mhla_gguf_layout *l = mhla_gguf_layout_of((uint32_t)t->type);
    int64_t count = 1;
    int bad = t->rank < 1 || t->rank > MHLA_GGUF_RANK;
    for (int i = 0; !bad && i < t->rank; i++)
        bad = t->shape[i] < 1 || __builtin_mul_overflow(count, t->shape[i], &count) || count > INT64_MAX / 64;
    if (bad) return mhla_fail(MHLA_EINVAL, "%s: tensor %s has a shape that GGUF has not", path, MHLA_QUOTE(t->name));
    if (t->type != MHLA_GGUF_F32 && t->type != MHLA_GGUF_F16 && t->type != MHLA_GGUF_BF16 && t->type != MHLA_GGUF_Q8_0)
        return mhla_fail(MHLA_EINVAL, "%s: tensor %s: type %s is not written", path, MHLA_QUOTE(t->name),
                         mhla_gguf_type_text(t->type));
    if (cols_of(t) % l->block != 0)
        return mhla_fail(MHLA_EINVAL, "%s: tensor %s: rows of %lld cannot be %s, which has blocks of %d", path,
                         MHLA_QUOTE(t->name), (long long)cols_of(t), l->text, l->block);
    return MHLA_OK;
}

static mhla_status check_all(const char *path, const mhla_gguf_pair *pairs, int64_t pair_count,
                             const mhla_gguf_storable *tensors, int64_t tensor_count) {
    const int64_t most = pair_count > tensor_count ? pair_count : tensor_count;
    const char **names = malloc(((size_t)most + 1) * sizeof *names);
    if (names == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < pair_count; i++) names[i] = pairs[i].key;
    if (pair_count) status = check_names(names, pair_count, "key", path);
    for (int64_t i = 0; i < tensor_count; i++) names[i] = tensors[i].name;
    if (tensor_count && status == MHLA_OK) status = check_names(names, tensor_count, "tensor", path);
    for (int64_t i = 0; i < tensor_count && status == MHLA_OK; i++) status = check_tensor(&tensors[i], path);
    free(names);
    return status;
}

/* ---- The header; a failed write shows at the commit ---- */

static void put(FILE *f, const void *bytes, size_t size) { fwrite(bytes, 1, size, f); }
static void put_u32(FILE *f, uint32_t n) { put(f, &n, sizeof n); }
static void put_u64(FILE *f, uint64_t n) { put(f, &n, sizeof n); }
static void put_text(FILE *f, const char *text, size_t length) {
    put_u64(f, length);
    put(f, text, length);
}

static void put_pair(FILE *f, const mhla_gguf_pair *p) {
    put_text(f, p->key, strlen(p->key));
    if (p->array) put_u32(f, MHLA_GGUF_ARRAY);
    put_u32(f, (uint32_t)p->kind);
    if (p->array) put_u64(f, (uint64_t)p->count);
    if (p->kind == MHLA_GGUF_STRING)
        for (int64_t i = 0; i < p->count; i++) put_text(f, p->strings[i].data, p->strings[i].length);
    else
        put(f, p->data, (size_t)p->count * mhla_gguf_kind_size(p->kind));
}

static void put_zeros(FILE *f, uint64_t at) {
    static const char zeros[ALIGNMENT];
    put(f, zeros, (size_t)(padded(at) - at));
}

static void put_header(FILE *f, const mhla_gguf_pair *pairs, int64_t pair_count, const mhla_gguf_storable *tensors,
                       int64_t tensor_count) {
    uint64_t offset = 0;
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, (uint64_t)tensor_count);
    put_u64(f, (uint64_t)pair_count);
    for (int64_t i = 0; i < pair_count; i++) put_pair(f, &pairs[i]);
    for (int64_t i = 0; i < tensor_count; i++) {
        const mhla_gguf_storable *t = &tensors[i];
        put_text(f, t->name, strlen(t->name));
        put_u32(f, (uint32_t)t->rank);
        for (int j = t->rank - 1; j >= 0; j--) put_u64(f, (uint64_t)t->shape[j]);
        put_u32(f, (uint32_t)t->type);
        put_u64(f, offset);
        offset += padded((uint64_t)rows_of(t) * mhla_gguf_row_bytes(t->type, cols_of(t)));
    }
}

/* ---- Tensors ---- */

/* Does anything finite become infinite? For Q8_0 the scale does. */
static int too_large(const float *x, int64_t count, mhla_gguf_type type) {
    const float most = type == MHLA_GGUF_F16    ? 65519.996f
                       : type == MHLA_GGUF_Q8_0 ? 127.0f * 65519.996f
                       : type == MHLA_GGUF_BF16 ? 0x1.fefffep127f
                                                : INFINITY;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(x[i]) && fabsf(x[i]) > most) return 1;
    return 0;
}

static mhla_status put_tensor(FILE *f, const mhla_gguf_storable *t, const char *path) {
    const int64_t rows = rows_of(t), cols = cols_of(t);
    const size_t row_bytes = mhla_gguf_row_bytes(t->type, cols);
    int64_t step = PIECE / cols > 1 ? PIECE / cols : 1;
    if (step > rows) step = rows;
    float *wide = malloc((size_t)(step * cols) * sizeof *wide);
    char *bytes = malloc((size_t)step * row_bytes);
    mhla_status status = wide && bytes ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    for (int64_t i = 0; i < rows && status == MHLA_OK; i += step) {
        const int64_t n = rows - i < step ? rows - i : step;
        status = t->fill(wide, i, n, t->arg);
        if (status == MHLA_OK && too_large(wide, n * cols, t->type))
            status = mhla_fail(MHLA_EDATA, "%s: tensor %s has a number that is too large for %s", path,
                               MHLA_QUOTE(t->name), mhla_gguf_type_text(t->type));
        if (status != MHLA_OK) break;
        mhla_gguf_from_f32(bytes, wide, t->type, n * cols);
        put(f, bytes, (size_t)n * row_bytes);
    }
    free(wide);
    free(bytes);
    if (status == MHLA_OK) put_zeros(f, (uint64_t)rows * row_bytes);
    return status;
}

mhla_status mhla_gguf_write(const char *path, const mhla_gguf_pair *pairs, int64_t pair_count,
                            const mhla_gguf_storable *tensors, int64_t tensor_count) {
    MHLA_TRY(check_all(path, pairs, pair_count, tensors, tensor_count));
    mhla_writer w;
    MHLA_TRY(mhla_writer_open(&w, path));
    put_header(w.stream, pairs, pair_count, tensors, tensor_count);
    const long at = ftell(w.stream);
    mhla_status status = at < 0 ? mhla_fail(MHLA_EIO, "%s: not a file that can be written", path) : MHLA_OK;
    if (status == MHLA_OK) put_zeros(w.stream, (uint64_t)at);
    for (int64_t i = 0; i < tensor_count && status == MHLA_OK; i++) status = put_tensor(w.stream, &tensors[i], path);
    if (status == MHLA_OK) return mhla_writer_commit(&w);
    mhla_writer_discard(&w);
    return status;
}
