/* What the callers of linear layers may get wrong, found before anything is written. */
#include "ops/product/product.h"

enum { MOST = 1 << 30 }; /* of N and K */

mhla_status mhla_product_overlap(mhla_view out, mhla_view in) {
    if (in.base == NULL || out.base == NULL) return MHLA_OK;
    const uintptr_t a = (uintptr_t)out.base, b = (uintptr_t)in.base;
    const uintptr_t a_end = a + 4 * (uintptr_t)((out.rows - 1) * out.ld + out.cols);
    const uintptr_t b_end = b + 4 * (uintptr_t)((in.rows - 1) * in.ld + in.cols);
    if (a_end <= b || b_end <= a) return MHLA_OK;
    if (out.ld == in.ld) { /* columns of the same rows, side by side */
        const uintptr_t row = 4 * (uintptr_t)out.ld, at = b >= a ? (b - a) % row : (row - (a - b) % row) % row;
        if (at >= 4 * (uintptr_t)out.cols && at + 4 * (uintptr_t)in.cols <= row) return MHLA_OK;
    }
    return mhla_fail(MHLA_EINVAL, "%s overlaps %s", out.name, in.name);
}

static mhla_status check_stride(const char *name, int64_t *ld, int64_t rows, int64_t cols) {
    if (*ld == 0) *ld = cols;
    CHECK(*ld >= cols, "%s is %lld: expected 0, or at least the row's %lld elements", name, (long long)*ld,
          (long long)cols);
    CHECK(*ld <= INT64_MAX / 64 / rows, "%s is %lld and rows %lld: more than memory can hold", name, (long long)*ld,
          (long long)rows);
    return MHLA_OK;
}

static mhla_status check_sizes(int64_t N, int64_t K) {
    CHECK(N >= 1 && N <= MOST, "N is %lld: expected 1 to %d", (long long)N, MOST);
    CHECK(K >= 1 && K <= MOST, "K is %lld: expected 1 to %d", (long long)K, MOST);
    return MHLA_OK;
}

mhla_status mhla_check_storage(mhla_dtype dtype, int64_t N, int64_t K) {
    CHECK((unsigned)dtype <= MHLA_Q8_0, "dtype is %d: no such data type", (int)dtype);
    MHLA_TRY(check_sizes(N, K));
    CHECK(dtype != MHLA_Q8_0 || K % 32 == 0, "K is %lld: rows of Q8_0 have a multiple of 32", (long long)K);
    return MHLA_OK;
}

mhla_status mhla_check_weight_shape(const void *w, mhla_dtype dtype, int64_t N, int64_t K, int64_t *ldw) {
    CHECK(w != NULL, "w is NULL");
    MHLA_TRY(mhla_check_storage(dtype, N, K));
    MHLA_TRY(check_stride("ldw", ldw, N, K));
    CHECK(dtype != MHLA_Q8_0 || *ldw % 32 == 0, "ldw is %lld: rows of Q8_0 have a multiple of 32", (long long)*ldw);
    return MHLA_OK;
}

mhla_status mhla_linear_check(mhla_linear_desc *d, const mhla_linear_desc *given, int64_t N, int64_t K) {
    MHLA_TRY(mhla_struct_in(d, sizeof *d, given, "mhla_linear_desc"));
    MHLA_TRY(check_sizes(N, K));
    CHECK(d->rows >= 1, "rows is %lld: expected 1 or more", (long long)d->rows);
    CHECK((unsigned)d->precision <= MHLA_BF16, "precision is %d: expected float32 or bfloat16", (int)d->precision);
    MHLA_TRY(check_stride("ldx", &d->ldx, d->rows, K));
    return check_stride("ldy", &d->ldy, d->rows, N);
}

mhla_status mhla_linear_check_forward(mhla_linear_desc *d, const mhla_linear_desc *given, const float *y,
                                      const float *x, int64_t N, int64_t K) {
    CHECK(y != NULL, "y is NULL");
    CHECK(x != NULL, "x is NULL");
    MHLA_TRY(mhla_linear_check(d, given, N, K));
    CHECK((unsigned)d->activation <= MHLA_ACT_SILU, "activation is %d: no such activation", (int)d->activation);
    if (d->residual)
        MHLA_TRY(check_stride("ldr", &d->ldr, d->rows, N));
    else
        CHECK(d->ldr == 0, "ldr is %lld but residual is NULL", (long long)d->ldr);
    CHECK(N <= INT64_MAX / 64 / d->rows, "rows is %lld and N %lld: more than memory can hold", (long long)d->rows,
          (long long)N);
    const mhla_view out = {"y", y, d->rows, N, d->ldy}, pre = {"pre_activation", d->pre_activation, d->rows, N, N};
    const mhla_view in = {"x", x, d->rows, K, d->ldx}, bias = {"bias", d->bias, 1, N, N};
    const mhla_view residual = {"residual", d->residual, d->rows, N, d->ldr};
    MHLA_TRY(mhla_product_overlap(out, in));
    MHLA_TRY(mhla_product_overlap(out, bias));
    MHLA_TRY(mhla_product_overlap(out, pre));
    MHLA_TRY(mhla_product_overlap(pre, in));
    MHLA_TRY(mhla_product_overlap(pre, bias));
    MHLA_TRY(mhla_product_overlap(pre, residual));
    if (d->residual == y && d->ldr == d->ldy) return MHLA_OK;
    return mhla_product_overlap(out, residual);
}
