/* The feature maps phi and their derivatives. To add one: its name in mhla_feature (mhla.h), its two functions here,
 * and a line in each of the two switches, and in the reference's (src/ops/features.h). */
#ifndef MHLA_SIMD_FEATURES_H
#define MHLA_SIMD_FEATURES_H

#include "simd/kernels/math.h"

/* max(x,0) + eps; NaN stays NaN */
INLINE vf relu(vf x, vf eps) { return vselect(x < 0.0f, vset(0.0f), x) + eps; }
INLINE vf relu_grad(vf x, vf d) { return vselect(x <= 0.0f, vset(0.0f), d); }

/* elu(x) + 1 = x + 1 above 0, exp(x) below */
INLINE vf elu(vf x) { return vselect(x > 0.0f, x + 1.0f, vexpf(x)); }
INLINE vf elu_grad(vf x, vf d) { return vselect(x > 0.0f, d, d * vexpf(x)); }

INLINE vf feature_apply(mhla_feature feature, vf x, vf eps) {
    switch (feature) {
    case MHLA_FEATURE_RELU: return relu(x, eps);
    case MHLA_FEATURE_ELU: return elu(x);
    case MHLA_FEATURE_IDENTITY: break;
    }
    return x;
}

/* d * phi'(x) */
INLINE vf feature_grad(mhla_feature feature, vf x, vf d) {
    switch (feature) {
    case MHLA_FEATURE_RELU: return relu_grad(x, d);
    case MHLA_FEATURE_ELU: return elu_grad(x, d);
    case MHLA_FEATURE_IDENTITY: break;
    }
    return d;
}

#endif
