/* Weights in the panels that the product reads: W [N,K] becomes W^T, cut into panels of whole vectors. */
#include <string.h>

#include "core/memory.h"
#include "ops/product/product.h"

mhla_panels mhla_product_panels(const mhla_kernels *kernels, int64_t n, mhla_dtype dtype) {
    mhla_panels p, padded;
    kernels->panels(&p, (int)n);
    kernels->panels(&padded, (int)((n + 15) / 16 * 16));
    /* Panels of half vectors suit narrow matrices only; pairs of bfloat16 come in whole ones. */
    if (padded.unit > p.unit && (dtype == MHLA_BF16 || n > 128)) {
        p = padded;
        p.n = (int)n;
    }
    return p;
}

static size_t data_bytes(const mhla_weight *w) {
    const size_t columns = (size_t)mhla_panels_width(&w->panels);
    return w->dtype == MHLA_F32 ? columns * (size_t)w->K * 4 : columns * (size_t)((w->K + 1) / 2) * 4;
}

/* One panel by way of two squares in float32: rows of W as they are, then transposed. */
enum { DEPTH = 256 };

static void fill_panel(mhla_weight *w, int i, const void *src, mhla_dtype dtype, int64_t ldw, float *rows,
                       float *columns) {
    const int begin = mhla_panel_begin(&w->panels, i);
    const mhla_panels one = mhla_one_panel(&w->panels, i);
    const int width = mhla_panels_width(&one);
    for (int64_t k = 0; k < w->K; k += DEPTH) {
        const int depth = w->K - k < DEPTH ? (int)(w->K - k) : DEPTH;
        const size_t at = ((size_t)begin * (size_t)ldw + (size_t)k) * (dtype == MHLA_F32 ? 4 : 2);
        const mhla_rows from = {(char *)src + at, NULL, ldw, dtype};
        w->kernels->copy_rows(rows, DEPTH, &from, one.n, depth, NULL);
        w->kernels->transpose(columns, &one, rows, DEPTH, depth); /* [depth][width] */
        if (w->dtype == MHLA_BF16) {
            uint16_t *to = (uint16_t *)w->data + (w->K + 1) / 2 * 2 * begin + k * width;
            w->kernels->narrow_pairs(to, columns, depth, width);
        } else {
            memcpy((float *)w->data + w->K * begin + k * width, columns, sizeof(float) * (size_t)depth * (size_t)width);
        }
    }
}

static mhla_status fill(mhla_weight *w, const void *src, mhla_dtype dtype, int64_t ldw) {
    if (dtype == MHLA_F32 && w->dtype == MHLA_F32) {
        w->kernels->transpose(w->data, &w->panels, src, ldw, (int)w->K);
        return MHLA_OK;
    }
    float *squares = mhla_alloc(sizeof(float) * 2 * DEPTH * MHLA_WIDEST);
    if (squares == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to pack a weight");
    for (int i = 0; i < w->panels.count; i++) fill_panel(w, i, src, dtype, ldw, squares, squares + DEPTH * MHLA_WIDEST);
    mhla_free(squares);
    return MHLA_OK;
}

mhla_status mhla_weight_pack(mhla_weight **weight, const void *w, mhla_dtype dtype, int64_t N, int64_t K, int64_t ldw) {
    CHECK(weight != NULL, "weight is NULL");
    *weight = NULL;
    MHLA_TRY(mhla_check_weight_shape(w, dtype, N, K, &ldw));
    mhla_weight *p = mhla_alloc_zero(sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a weight");
    p->kernels = mhla_kernels_get();
    p->dtype = dtype;
    p->N = N;
    p->K = K;
    p->panels = mhla_product_panels(p->kernels, N, dtype);
    p->data = mhla_alloc(data_bytes(p));
    mhla_status status =
        p->data ? fill(p, w, dtype, ldw)
                : mhla_fail(MHLA_ENOMEM, "no memory for a weight of %lld x %lld", (long long)N, (long long)K);
    if (status != MHLA_OK) {
        mhla_weight_free(p);
        return status;
    }
    *weight = p;
    return MHLA_OK;
}

void mhla_weight_free(mhla_weight *weight) {
    if (weight == NULL) return;
    mhla_free(weight->data);
    mhla_free(weight);
}

mhla_status mhla_weight_update(mhla_weight *weight, const void *w, mhla_dtype dtype, int64_t ldw) {
    CHECK(weight != NULL, "weight is NULL");
    MHLA_TRY(mhla_check_weight_shape(w, dtype, weight->N, weight->K, &ldw));
    return fill(weight, w, dtype, ldw);
}
