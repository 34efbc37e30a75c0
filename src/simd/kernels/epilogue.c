/* The end of a linear layer (bias, activation, residual) on a tile of the product while it is near, and the way back
 * through the activation. */
#include "simd/kernels/activations.h"

/* y (=, +=) activation(src + bias) + residual on one vector, of which `lanes` count. */
INLINE void epilogue_vector(const mhla_epilogue *e, const mhla_activation activation, int i, int j, const int whole,
                            int lanes) {
    vf t = whole ? vload(e->src + i * e->ld + j) : vload_n(e->src + i * e->ld + j, lanes);
    if (e->bias) t += whole ? vload(e->bias + j) : vload_n(e->bias + j, lanes);
    if (e->pre && whole) vstore(e->pre + i * e->ldpre + j, t);
    if (e->pre && !whole) vstore_n(e->pre + i * e->ldpre + j, t, lanes);
    t = activation_apply(activation, t);
    if (e->residual) t += whole ? vload(e->residual + i * e->ldr + j) : vload_n(e->residual + i * e->ldr + j, lanes);
    float *y = e->y + i * e->ldy + j;
    if (e->accumulate) t += whole ? vload(y) : vload_n(y, lanes);
    if (whole)
        vstore(y, t);
    else
        vstore_n(y, t, lanes);
}

INLINE void epilogue_body(const mhla_epilogue *given, const mhla_activation activation) {
    const mhla_epilogue e = *given; /* a copy that no store can alias, so that its fields stay in registers */
    for (int i = 0; i < e.m; i++) {
        int j = 0;
        for (; j + LANES <= e.n; j += LANES) epilogue_vector(&e, activation, i, j, 1, LANES);
        if (j < e.n) epilogue_vector(&e, activation, i, j, 0, e.n - j);
    }
}

void KERNEL(epilogue)(const mhla_epilogue *e) {
    switch (e->activation) {
    case MHLA_ACT_NONE: epilogue_body(e, MHLA_ACT_NONE); return;
    case MHLA_ACT_GELU_ERF: epilogue_body(e, MHLA_ACT_GELU_ERF); return;
    case MHLA_ACT_GELU_TANH: epilogue_body(e, MHLA_ACT_GELU_TANH); return;
    case MHLA_ACT_SILU: epilogue_body(e, MHLA_ACT_SILU); return;
    }
}

/* y = activation(pre):  dpre = dy * activation'(pre) */
INLINE void backward_body(float *dpre, const float *dy, const float *pre, int64_t n, const mhla_activation activation) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(dpre + i, activation_grad(activation, vload(pre + i), vload(dy + i)));
    const int left = (int)(n - i);
    if (left) vstore_n(dpre + i, activation_grad(activation, vload_n(pre + i, left), vload_n(dy + i, left)), left);
}

void KERNEL(activation_backward)(float *dpre, const float *dy, const float *pre, int64_t n,
                                 mhla_activation activation) {
    switch (activation) {
    case MHLA_ACT_NONE: backward_body(dpre, dy, pre, n, MHLA_ACT_NONE); return;
    case MHLA_ACT_GELU_ERF: backward_body(dpre, dy, pre, n, MHLA_ACT_GELU_ERF); return;
    case MHLA_ACT_GELU_TANH: backward_body(dpre, dy, pre, n, MHLA_ACT_GELU_TANH); return;
    case MHLA_ACT_SILU: backward_body(dpre, dy, pre, n, MHLA_ACT_SILU); return;
    }
}
