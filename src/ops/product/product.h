/* What the files of the matrix product share: the packed weight, the engine, the checks, and the activations in double
 * that src/simd/kernels/activations.h must meet. */
#ifndef MHLA_OPS_PRODUCT_H
#define MHLA_OPS_PRODUCT_H

#include <math.h>
#include <mhla/mhla.h>

#include "core/memory.h"
#include "core/status.h"
#include "simd/kernels.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return mhla_fail(MHLA_EINVAL, __VA_ARGS__);                                                  \
    } while (0)

struct mhla_weight {
    const mhla_kernels *kernels; /* those whose panels these are; they stay together whatever is chosen later */
    mhla_dtype dtype;
    int64_t N, K;
    mhla_panels panels; /* of the N columns of W^T */
    /* Panel p at mhla_storage_bytes(dtype, K, begin(p)). float32: [K][width]; bfloat16: [ceil(K/2)][width][2]; Q8_0:
     * [K/32] of {float16 d[width]; int8 q[16][width][2]} */
    void *data;
    int in_slab; /* the memory is a slab's */
};

/* mhla_weight_create, its numbers in a slab, which must outlive it. */
mhla_status mhla_weight_create_in(mhla_weight **weight, mhla_slab **slab, mhla_dtype dtype, int64_t N, int64_t K);

/* Bytes of `columns` columns of panels, k numbers deep. */
static inline int64_t mhla_storage_bytes(mhla_dtype dtype, int64_t k, int64_t columns) {
    return columns * (dtype == MHLA_F32 ? 4 * k : dtype == MHLA_BF16 ? (k + 1) / 2 * 4 : k / 32 * 34);
}
/* Bytes of a row of k numbers as callers have it. */
static inline size_t mhla_row_bytes(mhla_dtype dtype, int64_t k) {
    return (size_t)(dtype == MHLA_F32 ? 4 * k : dtype == MHLA_BF16 ? 2 * k : k / 32 * 34);
}

/* The cut of n columns that weights use. */
mhla_panels mhla_product_panels(const mhla_kernels *kernels, int64_t n, mhla_dtype dtype);

/* No panel is wider: four vectors of sixteen. */
enum { MHLA_WIDEST = 64 };

/* Panel i alone, as a matrix of its own. */
static inline mhla_panels mhla_one_panel(const mhla_panels *p, int i) {
    const int begin = mhla_panel_begin(p, i), width = mhla_panel_begin(p, i + 1) - begin;
    const int n = p->n - begin < width ? p->n - begin : width, vectors = width / p->unit;
    return (mhla_panels){.n = n, .unit = p->unit, .vectors = vectors, .count = 1, .base = vectors};
}

/* y [rows,N] = epilogue(x [rows,K] W^T), everything checked and strides filled in. */
mhla_status mhla_product_run(const mhla_linear_desc *desc, float *y, const float *x, const mhla_weight *weight);

/* mhla_linear_forward of the same x for several weights at once: q, k, v and the gate of a token are read by one loop
 * over threads. Context and workspace are those of the first; the workspace suffices for each. */
enum { MHLA_PRODUCTS = 4 };
typedef struct mhla_product_call {
    mhla_linear_desc desc;
    float *y;
    const mhla_weight *weight;
} mhla_product_call;
mhla_status mhla_linears_forward(const mhla_product_call *calls, int count, const float *x);

/* The part of mhla_linear_workspace that this needs. */
size_t mhla_linears_workspace(const mhla_linear_desc *desc, int64_t N, int64_t K, mhla_dtype dtype);

/* Scratch bytes of the gradient of a weight, everything checked; dw tells whether there is one or only db. */
size_t mhla_weight_grad_workspace(const mhla_linear_desc *desc, int dw, int64_t N, int64_t K);

/* A matrix in the caller's memory, for checks of overlap. */
typedef struct mhla_view {
    const char *name;
    const void *base;
    int64_t rows, cols, ld; /* of float32 elements */
} mhla_view;

/* MHLA_EINVAL if `out` and `in` share an element. `in.base` NULL never does. */
mhla_status mhla_product_overlap(mhla_view out, mhla_view in);

/* Copies the description, checks it for x [rows,K], y [rows,N] and fills in the strides. */
mhla_status mhla_linear_check(mhla_linear_desc *desc, const mhla_linear_desc *given, int64_t N, int64_t K);

/* The same plus all that only the forward uses: epilogue and overlaps. */
mhla_status mhla_linear_check_forward(mhla_linear_desc *desc, const mhla_linear_desc *given, const float *y,
                                      const float *x, int64_t N, int64_t K);
mhla_status mhla_check_storage(mhla_dtype dtype, int64_t N, int64_t K);
mhla_status mhla_check_weight_shape(const void *w, mhla_dtype dtype, int64_t N, int64_t K, int64_t *ldw);

static inline double mhla_activation_value(mhla_activation activation, double x) {
    if (x == -HUGE_VAL && activation != MHLA_ACT_NONE) return 0.0; /* the limit, where the formula says inf * 0 */
    switch (activation) {
    case MHLA_ACT_GELU_ERF: return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case MHLA_ACT_GELU_TANH: /* x/2 (1 + tanh z) */
        return x / (1.0 + exp(-2.0 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case MHLA_ACT_SILU: return x / (1.0 + exp(-x));
    case MHLA_ACT_NONE: break;
    }
    return x;
}

static inline double mhla_activation_slope(mhla_activation activation, double x) {
    const double t = x > 40.0 ? 40.0 : x < -40.0 ? -40.0 : x; /* beyond, the slope is 1 or 0 */
    switch (activation) {
    case MHLA_ACT_GELU_ERF: /* Phi + x phi */
        return 0.5 * erfc(-t * 0.70710678118654752440) + t * 0.39894228040143267794 * exp(-0.5 * t * t);
    case MHLA_ACT_GELU_TANH: { /* s + x s (1-s) 2z' */
        const double z2 = 2.0 * 0.79788456080286535588 * (t + 0.044715 * t * t * t);
        const double s = 1.0 / (1.0 + exp(-z2)), rest = 1.0 / (1.0 + exp(z2));
        return s + t * s * rest * 2.0 * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * t * t);
    }
    case MHLA_ACT_SILU: { /* s + x s (1-s) */
        const double s = 1.0 / (1.0 + exp(-x)), rest = 1.0 / (1.0 + exp(x));
        return s + (t != x ? 0.0 : x * s * rest);
    }
    case MHLA_ACT_NONE: break;
    }
    return 1.0;
}

#endif
