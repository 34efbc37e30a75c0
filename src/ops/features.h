/* The feature maps in double, for the references: the definition that src/simd/kernels/features.h must meet. */
#ifndef MHLA_OPS_FEATURES_H
#define MHLA_OPS_FEATURES_H

#include <math.h>
#include <mhla/mhla.h>

static inline double mhla_feature_value(mhla_feature feature, double x, double eps) {
    switch (feature) {
    case MHLA_FEATURE_RELU: return (x < 0.0 ? 0.0 : x) + eps;
    case MHLA_FEATURE_ELU: return x > 0.0 ? x + 1.0 : exp(x);
    case MHLA_FEATURE_IDENTITY: break;
    }
    return x;
}

static inline double mhla_feature_slope(mhla_feature feature, double x) {
    switch (feature) {
    case MHLA_FEATURE_RELU: return x <= 0.0 ? 0.0 : 1.0;
    case MHLA_FEATURE_ELU: return x > 0.0 ? 1.0 : exp(x);
    case MHLA_FEATURE_IDENTITY: break;
    }
    return 1.0;
}

/* Rotates (sign 1) or rotates back (sign -1) the first `dim` of row in place by row `at` of the table. */
static inline void mhla_rotate_row(double *row, mhla_rope rope, int dim, const float *cos_table, const float *sin_table,
                                   int64_t at, double sign) {
    const int half = dim / 2;
    for (int j = 0; j < half; j++) {
        const int a = rope == MHLA_ROPE_HALF ? j : 2 * j, b = rope == MHLA_ROPE_HALF ? j + half : 2 * j + 1;
        const double c = (double)cos_table[at * half + j], s = sign * (double)sin_table[at * half + j];
        const double x = row[a], y = row[b];
        row[a] = x * c - y * s;
        row[b] = x * s + y * c;
    }
}

#endif
