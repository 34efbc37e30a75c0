/* What the entry points of operators find out about the tensors of a call before anything runs: strides, extents, overlap, packed
 * sequences. */
#ifndef MHLA_OPS_TENSORS_H
#define MHLA_OPS_TENSORS_H

#include "ops/op.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return mhla_fail(MHLA_EINVAL, __VA_ARGS__);                                                  \
    } while (0)

typedef struct tensor {
    const char *name;
    const void *data;
    mhla_dtype dtype;
    int64_t size[4];   /* batch, tokens, heads, dim */
    int64_t stride[4]; /* elements */
} tensor;

/* Contiguous strides where all are zero; refuses negative ones and sizes whose addresses overflow. */
static inline mhla_status fill_strides(mhla_strides *s, const char *name, int64_t B, int64_t T, int64_t H, int64_t D) {
    int64_t elements;
    if (__builtin_mul_overflow(B, T, &elements) || __builtin_mul_overflow(elements, H, &elements) ||
        __builtin_mul_overflow(elements, D, &elements) || elements > INT64_MAX / 64)
        return mhla_fail(MHLA_EINVAL, "%s has %lld x %lld x %lld x %lld elements: too many", name, (long long)B,
                         (long long)T, (long long)H, (long long)D);
    CHECK(s->batch >= 0 && s->token >= 0 && s->head >= 0, "strides of %s are %lld, %lld, %lld: negative", name,
          (long long)s->batch, (long long)s->token, (long long)s->head);
    if (s->batch == 0 && s->token == 0 && s->head == 0) {
        *s = (mhla_strides){T * H * D, H * D, D};
        return MHLA_OK;
    }
    int64_t b, t, h;
    if (__builtin_mul_overflow(s->batch, B, &b) || __builtin_mul_overflow(s->token, T, &t) ||
        __builtin_mul_overflow(s->head, H, &h) || b > INT64_MAX / 64 || t > INT64_MAX / 64 || h > INT64_MAX / 64)
        return mhla_fail(MHLA_EINVAL, "strides of %s are %lld, %lld, %lld: too large", name, (long long)s->batch,
                         (long long)s->token, (long long)s->head);
    return MHLA_OK;
}

static inline tensor make_tensor(const char *name, const void *data, mhla_dtype dtype, const mhla_strides *s, int64_t B,
                                 int64_t T, int64_t H, int64_t D) {
    return (tensor){name, data, dtype, {B, T, H, D}, {s->batch, s->token, s->head, 1}};
}

static inline tensor make_flat(const char *name, const void *data, int64_t count) {
    return (tensor){name, data, MHLA_F32, {1, 1, 1, count}, {0, 0, 0, 1}};
}

static inline int64_t extent(const tensor *t) { /* elements from the first to one past the last */
    int64_t n = 1;
    for (int a = 0; a < 4; a++) n += (t->size[a] - 1) * t->stride[a];
    return n;
}

/* No two elements of an output at one address: each axis must step over all that finer axes cover. */
static inline int overlaps_itself(const tensor *t) {
    int axis[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++)
        for (int j = i + 1; j < 3; j++)
            if (t->stride[axis[j]] < t->stride[axis[i]]) {
                const int x = axis[i];
                axis[i] = axis[j];
                axis[j] = x;
            }
    int64_t covered = t->size[3];
    for (int i = 0; i < 3; i++) {
        const int a = axis[i];
        if (t->size[a] == 1) continue;
        if (t->stride[a] < covered) return 1;
        covered = (t->size[a] - 1) * t->stride[a] + covered;
    }
    return 0;
}

/* Slices of one buffer interleave: their ranges meet but, with equal token and batch strides, their columns do not. */
static inline int interleaved(const tensor *x, const tensor *y) {
    if (x->dtype != y->dtype || x->stride[1] != y->stride[1] || x->stride[1] == 0) return 0;
    if (x->stride[0] != y->stride[0] && x->size[0] > 1 && y->size[0] > 1) return 0;
    if ((x->size[0] > 1 && x->stride[0] % x->stride[1]) || (y->size[0] > 1 && y->stride[0] % y->stride[1])) return 0;
    const int64_t period = x->stride[1], element = (int64_t)mhla_dtype_size(x->dtype);
    const int64_t wx = (x->size[2] - 1) * x->stride[2] + x->size[3], wy = (y->size[2] - 1) * y->stride[2] + y->size[3];
    const int64_t bytes = (const char *)y->data - (const char *)x->data;
    if (bytes % element) return 0;
    const int64_t shift = ((bytes / element) % period + period) % period;
    return shift >= wx && shift + wy <= period;
}

static inline mhla_status check_output(const tensor *out, const tensor *others, int n) {
    CHECK(!overlaps_itself(out), "strides of %s let its elements overlap", out->name);
    const uintptr_t lo = (uintptr_t)out->data, hi = lo + (uintptr_t)extent(out) * mhla_dtype_size(out->dtype);
    for (int i = 0; i < n; i++) {
        const tensor *x = &others[i];
        if (x->data == NULL) continue;
        const uintptr_t xlo = (uintptr_t)x->data, xhi = xlo + (uintptr_t)extent(x) * mhla_dtype_size(x->dtype);
        CHECK(lo >= xhi || xlo >= hi || interleaved(out, x), "%s overlaps %s", out->name, x->name);
    }
    return MHLA_OK;
}

/* cu_seqlens [sequences + 1] of packed sequences, or NULL. */
static inline mhla_status check_sequences(int64_t batch, int64_t tokens, const int64_t *cu_seqlens, int64_t sequences) {
    if (cu_seqlens == NULL) {
        CHECK(sequences == 0, "sequences is %lld but cu_seqlens is NULL", (long long)sequences);
        return MHLA_OK;
    }
    CHECK(batch == 1, "batch is %lld: with cu_seqlens it must be 1", (long long)batch);
    CHECK(sequences >= 1, "sequences is %lld: expected 1 or more", (long long)sequences);
    CHECK(cu_seqlens[0] == 0, "cu_seqlens[0] is %lld: expected 0", (long long)cu_seqlens[0]);
    for (int64_t s = 0; s < sequences; s++)
        CHECK(cu_seqlens[s] <= cu_seqlens[s + 1], "cu_seqlens[%lld] is %lld, less than %lld before it",
              (long long)s + 1, (long long)cu_seqlens[s + 1], (long long)cu_seqlens[s]);
    CHECK(cu_seqlens[sequences] == tokens, "cu_seqlens ends with %lld: expected tokens, %lld",
          (long long)cu_seqlens[sequences], (long long)tokens);
    return MHLA_OK;
}

/* *to is the caller's workspace or, where that is NULL, *own, which the caller of this frees. */
static inline mhla_status take_workspace(char **to, void **own, void *ws, size_t bytes) {
    *own = NULL;
    CHECK(((uintptr_t)ws & (MHLA_ALIGN - 1)) == 0, "ws is not aligned to %d bytes", MHLA_ALIGN);
    *to = ws;
    if (ws) return MHLA_OK;
    *to = *own = mhla_alloc(bytes > 0 ? bytes : 1);
    return *own ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a workspace of %zu bytes", bytes);
}

#endif
