/* Rows of parameters in and out. All of them are float32 so far. */
#include <string.h>

#include "nn/op.h"

void mhla_params_set_storage(mhla_params *params, mhla_dtype dtype) {
    (void)params;
    (void)dtype;
}

mhla_status mhla_param_store(mhla_param *p, mhla_dtype dtype) {
    (void)p;
    (void)dtype;
    return MHLA_OK;
}

static mhla_status check(const mhla_param *p, int64_t first, int64_t count) {
    if (first >= 0 && count >= 0 && first <= p->shape[0] - count) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s: rows %lld .. %lld of %lld", p->name, (long long)first,
                     (long long)(first + count), (long long)p->shape[0]);
}

mhla_status mhla_param_set_rows(mhla_param *p, int64_t first, int64_t count, const void *rows, mhla_dtype dtype) {
    const int64_t cols = p->count / p->shape[0];
    MHLA_TRY(check(p, first, count));
    if (dtype != MHLA_F32) return mhla_fail(MHLA_ENOTSUP, "%s: rows that are not float32", p->name);
    memcpy(p->data + first * cols, rows, sizeof(float) * (size_t)(count * cols));
    mhla_param_touch(p);
    return MHLA_OK;
}

mhla_status mhla_param_get_rows(float *rows, const mhla_param *p, int64_t first, int64_t count) {
    const int64_t cols = p->count / p->shape[0];
    MHLA_TRY(check(p, first, count));
    memcpy(rows, p->data + first * cols, sizeof(float) * (size_t)(count * cols));
    return MHLA_OK;
}
