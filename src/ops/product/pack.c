/* Weights in the panels that the product reads: W [N,K] becomes W^T, cut into panels of whole vectors. */
#include <string.h>

#include "core/memory.h"
#include "core/numbers.h"
#include "ops/product/product.h"

mhla_panels mhla_product_panels(const mhla_kernels *kernels, int64_t n, mhla_dtype dtype) {
    mhla_panels p, padded;
    kernels->panels(&p, (int)n);
    kernels->panels(&padded, (int)((n + 15) / 16 * 16));
    /* Panels of half vectors suit narrow matrices only; other types come in whole ones. */
    if (padded.unit > p.unit && (dtype != MHLA_F32 || n > 128)) {
        p = padded;
        p.n = (int)n;
    }
    return p;
}

static size_t data_bytes(const mhla_weight *w) {
    return (size_t)mhla_storage_bytes(w->dtype, w->K, mhla_panels_width(&w->panels));
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

static mhla_status put_rows(mhla_weight *w, int64_t first, int64_t count, const void *src, mhla_dtype dtype,
                            int64_t ldw);

static mhla_status fill(mhla_weight *w, const void *src, mhla_dtype dtype, int64_t ldw) {
    if (dtype == MHLA_Q8_0 || w->dtype == MHLA_Q8_0) return put_rows(w, 0, w->N, src, dtype, ldw);
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

/* ---- Rows in pieces ---- */

/* count numbers of a row from number `at` on, as float32. */
static void widen_part(float *to, const void *row, mhla_dtype dtype, int64_t at, int count) {
    if (dtype == MHLA_F32) memcpy(to, (const float *)row + at, sizeof(float) * (size_t)count);
    if (dtype == MHLA_BF16)
        for (int i = 0; i < count; i++) to[i] = mhla_bf16_to_float(((const uint16_t *)row)[at + i]);
    if (dtype == MHLA_Q8_0) /* whole blocks; bytes, for callers' memory need not be aligned */
        for (int i = 0; i < count; i += MHLA_Q8_COUNT) {
            mhla_q8_block block;
            memcpy(&block, (const char *)row + (at + i) / MHLA_Q8_COUNT * (int64_t)sizeof block, sizeof block);
            mhla_q8_widen(to + i, &block);
        }
}

/* Where rows of W go: n of them, from lane `lane` on of the panel that begins at column `begin`. */
typedef struct lanes {
    char *panel;
    int width, lane, n;
} lanes;

static lanes lanes_of(const mhla_weight *w, int64_t row, int64_t end) {
    int q = 0;
    for (int low = 0, high = w->panels.count - 1; low <= high;) { /* the last panel that begins at or before row */
        const int mid = (low + high) / 2;
        if (mhla_panel_begin(&w->panels, mid) <= row)
            q = mid, low = mid + 1;
        else
            high = mid - 1;
    }
    const int begin = mhla_panel_begin(&w->panels, q), next = mhla_panel_begin(&w->panels, q + 1);
    return (lanes){(char *)w->data + mhla_storage_bytes(w->dtype, w->K, begin), next - begin, (int)(row - begin),
                   (int)((end < next ? end : next) - row)};
}

/* Numbers k .. k+depth-1 of the rows, [n][DEPTH], into their panel. */
static void put_numbers(const mhla_weight *w, const lanes *l, const float *rows, int64_t k, int depth) {
    for (int i = 0; i < depth; i++) {
        const int64_t at = k + i;
        if (w->dtype == MHLA_F32) {
            float *to = (float *)l->panel + at * l->width + l->lane;
            for (int r = 0; r < l->n; r++) to[r] = rows[r * DEPTH + i];
        } else {
            uint16_t *to = (uint16_t *)l->panel + at / 2 * 2 * l->width + 2 * l->lane + at % 2;
            for (int r = 0; r < l->n; r++) to[2 * r] = mhla_float_to_bf16(rows[r * DEPTH + i]);
        }
    }
}

/* Blocks b of the rows into their panel. */
static void put_blocks(const lanes *l, const mhla_q8_block blocks[MHLA_WIDEST], int64_t b) {
    char *to = l->panel + b * (int64_t)sizeof *blocks * l->width;
    uint16_t *d = (uint16_t *)to + l->lane;
    int8_t *q = (int8_t *)to + 2 * l->width + 2 * l->lane;
    for (int r = 0; r < l->n; r++) d[r] = blocks[r].d;
    for (int i = 0; i < MHLA_Q8_COUNT; i++)
        for (int r = 0; r < l->n; r++) q[2 * (i / 2 * l->width + r) + i % 2] = blocks[r].q[i];
}

/* One part of the rows of a panel, DEPTH numbers at most; Q8_0 from Q8_0 as it is. */
static void put_part(const mhla_weight *w, const lanes *l, const char *src, mhla_dtype dtype, size_t stride, int64_t k,
                     int depth, float *rows) {
    mhla_q8_block blocks[MHLA_WIDEST];
    const int as_is = w->dtype == MHLA_Q8_0 && dtype == MHLA_Q8_0;
    for (int r = 0; r < l->n && !as_is; r++) widen_part(rows + r * DEPTH, src + (size_t)r * stride, dtype, k, depth);
    if (w->dtype != MHLA_Q8_0) {
        put_numbers(w, l, rows, k, depth);
        return;
    }
    for (int i = 0; i < depth; i += MHLA_Q8_COUNT) {
        const int64_t b = (k + i) / MHLA_Q8_COUNT;
        for (int r = 0; r < l->n; r++)
            if (as_is)
                memcpy(&blocks[r], src + (size_t)r * stride + (size_t)b * sizeof *blocks, sizeof *blocks);
            else
                mhla_q8_quantise(&blocks[r], rows + r * DEPTH + i);
        put_blocks(l, blocks, b);
    }
}

static mhla_status put_rows(mhla_weight *w, int64_t first, int64_t count, const void *src, mhla_dtype dtype,
                            int64_t ldw) {
    float *rows = mhla_alloc(sizeof(float) * DEPTH * MHLA_WIDEST);
    if (rows == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to pack a weight");
    const size_t stride = mhla_row_bytes(dtype, ldw);
    for (int64_t row = first; row < first + count;) {
        const lanes l = lanes_of(w, row, first + count);
        const char *from = (const char *)src + (size_t)(row - first) * stride;
        for (int64_t k = 0; k < w->K; k += DEPTH)
            put_part(w, &l, from, dtype, stride, k, w->K - k < DEPTH ? (int)(w->K - k) : DEPTH, rows);
        row += l.n;
    }
    mhla_free(rows);
    return MHLA_OK;
}

/* Row `row` as float32 into to [K]. */
static void get_row(float *to, const mhla_weight *w, int64_t row) {
    const lanes l = lanes_of(w, row, row + 1);
    if (w->dtype == MHLA_F32)
        for (int64_t k = 0; k < w->K; k++) to[k] = ((const float *)l.panel)[k * l.width + l.lane];
    if (w->dtype == MHLA_BF16)
        for (int64_t k = 0; k < w->K; k++)
            to[k] = mhla_bf16_to_float(((const uint16_t *)l.panel)[k / 2 * 2 * l.width + 2 * l.lane + k % 2]);
    if (w->dtype == MHLA_Q8_0)
        for (int64_t k = 0; k < w->K; k++) {
            const char *block = l.panel + k / MHLA_Q8_COUNT * (int64_t)sizeof(mhla_q8_block) * l.width;
            const float d = mhla_half_to_float(((const uint16_t *)block)[l.lane]);
            const int64_t pair = k % MHLA_Q8_COUNT / 2 * l.width + l.lane;
            to[k] = d * (float)((const int8_t *)block)[2 * (l.width + pair) + k % 2];
        }
}

static mhla_status check_rows(const mhla_weight *weight, int64_t first, int64_t count) {
    CHECK(weight != NULL, "weight is NULL");
    CHECK(first >= 0 && count >= 1 && count <= weight->N && first <= weight->N - count,
          "rows %lld to %lld of a weight of %lld rows", (long long)first, (long long)(first + count - 1),
          (long long)weight->N);
    return MHLA_OK;
}

mhla_status mhla_weight_set_rows(mhla_weight *weight, int64_t first, int64_t count, const void *w, mhla_dtype dtype,
                                 int64_t ldw) {
    MHLA_TRY(check_rows(weight, first, count));
    MHLA_TRY(mhla_check_weight_shape(w, dtype, count, weight->K, &ldw));
    return put_rows(weight, first, count, w, dtype, ldw);
}

mhla_status mhla_weight_get_rows(const mhla_weight *weight, int64_t first, int64_t count, float *w, int64_t ldw) {
    MHLA_TRY(check_rows(weight, first, count));
    MHLA_TRY(mhla_check_weight_shape(w, MHLA_F32, count, weight->K, &ldw));
    for (int64_t i = 0; i < count; i++) get_row(w + i * ldw, weight, first + i);
    return MHLA_OK;
}

mhla_dtype mhla_weight_dtype(const mhla_weight *weight) { return weight->dtype; }
size_t mhla_weight_bytes(const mhla_weight *weight) { return data_bytes(weight); }

/* ---- Whole weights ---- */

/* A handle whose numbers are not set yet. */
static mhla_status make(mhla_weight **weight, mhla_slab **slab, mhla_dtype dtype, int64_t N, int64_t K) {
    mhla_weight *p = mhla_alloc_zero(sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a weight");
    p->kernels = mhla_kernels_get();
    p->dtype = dtype;
    p->N = N;
    p->K = K;
    p->panels = mhla_product_panels(p->kernels, N, dtype);
    p->in_slab = slab != NULL;
    p->data = slab ? mhla_slab_alloc(slab, data_bytes(p)) : mhla_alloc(data_bytes(p));
    if (p->data == NULL) {
        mhla_weight_free(p);
        return mhla_fail(MHLA_ENOMEM, "no memory for a weight of %lld x %lld", (long long)N, (long long)K);
    }
    *weight = p;
    return MHLA_OK;
}

mhla_status mhla_weight_create(mhla_weight **weight, mhla_dtype dtype, int64_t N, int64_t K) {
    CHECK(weight != NULL, "weight is NULL");
    return mhla_weight_create_in(weight, NULL, dtype, N, K);
}

mhla_status mhla_weight_create_in(mhla_weight **weight, mhla_slab **slab, mhla_dtype dtype, int64_t N, int64_t K) {
    *weight = NULL;
    MHLA_TRY(mhla_check_storage(dtype, N, K));
    MHLA_TRY(make(weight, slab, dtype, N, K));
    memset((*weight)->data, 0, data_bytes(*weight)); /* columns beyond N, too */
    return MHLA_OK;
}

mhla_status mhla_weight_pack(mhla_weight **weight, const void *w, mhla_dtype dtype, int64_t N, int64_t K, int64_t ldw) {
    CHECK(weight != NULL, "weight is NULL");
    *weight = NULL;
    MHLA_TRY(mhla_check_weight_shape(w, dtype, N, K, &ldw));
    mhla_weight *p = NULL;
    if (dtype == MHLA_Q8_0)
        MHLA_TRY(mhla_weight_create(&p, dtype, N, K));
    else
        MHLA_TRY(make(&p, NULL, dtype, N, K));
    const mhla_status status = fill(p, w, dtype, ldw);
    if (status != MHLA_OK) {
        mhla_weight_free(p);
        return status;
    }
    *weight = p;
    return MHLA_OK;
}

void mhla_weight_free(mhla_weight *weight) {
    if (weight == NULL) return;
    if (weight->in_slab)
        mhla_slab_drop(weight->data, data_bytes(weight));
    else
        mhla_free(weight->data);
    mhla_free(weight);
}

mhla_status mhla_weight_update(mhla_weight *weight, const void *w, mhla_dtype dtype, int64_t ldw) {
    CHECK(weight != NULL, "weight is NULL");
    MHLA_TRY(mhla_check_weight_shape(w, dtype, weight->N, weight->K, &ldw));
    return fill(weight, w, dtype, ldw);
}
