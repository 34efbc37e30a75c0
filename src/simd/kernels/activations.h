/* The activations of linear layers and their derivatives. To add one: its name in mhla_activation (mhla.h), its two
 * functions here, a line in each of the two switches, and its definition in double (src/ops/product/product.h).
 *
 * They follow the float32 form of their definitions: the error is about 1e-7 of the result where the result is of the
 * size of x, and 1e-7 of |x| in the negative tail, where the definition itself cancels. NaN stays NaN; at -inf the
 * value is the limit, 0. */
#ifndef MHLA_SIMD_ACTIVATIONS_H
#define MHLA_SIMD_ACTIVATIONS_H

#include "simd/kernels/math.h"

/* x Phi(x) */
INLINE vf gelu_erf(vf x) { return vselect(x < -NORMAL_END, vset(0.0f), x * vnormal(x)); }

/* Phi(x) + x phi(x) */
INLINE vf gelu_erf_grad(vf x, vf d) {
    const vf t = vmax(vmin(x, 12.0f), -12.0f); /* x phi(x) is 0 beyond, and inf * 0 is not */
    const vf density = 0.39894228040143268f * vexp2_flush(-0.72134752044448170f * t * t);
    return d * (vselect(x < -NORMAL_END, vset(0.0f), vnormal(x)) + t * density);
}

/* x logistic(2 z), z = sqrt(2/pi) (x + 0.044715 x^3), which is x/2 (1 + tanh z). The exponent below is -2 z log2(e):
 * x (A + B x^2). Beyond -11 it overflows and the quotient is 0, as it should be. */
#define GELU_A -2.30220818f
#define GELU_B -0.102943235f
INLINE vf gelu_tanh(vf x) {
    const vf t = vmax(x, -11.0f);
    return t / (1.0f + vexp2_flush(t * (GELU_A + GELU_B * t * t)));
}

/* s + x s (1-s) 2z', s = logistic(2 z), 1 - s = e s */
INLINE vf gelu_tanh_grad(vf x, vf d) {
    const vf t = vmax(vmin(x, 10.0f), -10.0f);
    const vf e = vexp2_flush(t * (GELU_A + GELU_B * t * t)), s = 1.0f / (1.0f + e);
    const vf slope = 1.59576912f + 0.214064485f * t * t; /* 2 z' */
    return d * (s + t * slope * (s * (e * s)));
}

/* x logistic(x); beyond -104 the exponential overflows and the quotient is 0 */
INLINE vf silu(vf x) {
    const vf t = vmax(x, -104.0f);
    return t / (1.0f + vexp2_flush(-1.44269504f * t));
}

/* s + x s (1-s) */
INLINE vf silu_grad(vf x, vf d) {
    const vf t = vmax(vmin(x, 87.0f), -87.0f);
    const vf e = vexp2_flush(-1.44269504f * t), s = 1.0f / (1.0f + e);
    return d * (s + t * s * (e * s));
}

INLINE vf activation_apply(const mhla_activation activation, vf x) {
    switch (activation) {
    case MHLA_ACT_GELU_ERF: return gelu_erf(x);
    case MHLA_ACT_GELU_TANH: return gelu_tanh(x);
    case MHLA_ACT_SILU: return silu(x);
    case MHLA_ACT_NONE: break;
    }
    return x;
}

/* d * activation'(x) */
INLINE vf activation_grad(const mhla_activation activation, vf x, vf d) {
    switch (activation) {
    case MHLA_ACT_GELU_ERF: return gelu_erf_grad(x, d);
    case MHLA_ACT_GELU_TANH: return gelu_tanh_grad(x, d);
    case MHLA_ACT_SILU: return silu_grad(x, d);
    case MHLA_ACT_NONE: break;
    }
    return d;
}

#endif
