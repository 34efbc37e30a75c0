/* The linear layer by definition: naive, in double, rounded once. */
#include "core/numbers.h"
#include "ops/product/product.h"

static double element(const void *w, mhla_dtype dtype, int64_t i) {
    if (dtype == MHLA_F32) return (double)((const float *)w)[i];
    if (dtype == MHLA_BF16) return (double)mhla_bf16_to_float(((const uint16_t *)w)[i]);
    const mhla_q8_block *block = (const mhla_q8_block *)w + i / MHLA_Q8_COUNT;
    return (double)mhla_half_to_float(block->d) * block->q[i % MHLA_Q8_COUNT];
}

mhla_status mhla_linear_forward_reference(const mhla_linear_desc *desc, float *y, const float *x, const void *w,
                                          mhla_dtype dtype, int64_t N, int64_t K, int64_t ldw) {
    mhla_linear_desc d;
    MHLA_TRY(mhla_check_weight_shape(w, dtype, N, K, &ldw));
    MHLA_TRY(mhla_linear_check_forward(&d, desc, y, x, N, K));
    for (int64_t i = 0; i < d.rows; i++)
        for (int64_t n = 0; n < N; n++) {
            double t = d.bias ? (double)d.bias[n] : 0.0;
            for (int64_t k = 0; k < K; k++) t += (double)x[i * d.ldx + k] * element(w, dtype, n * ldw + k);
            if (d.pre_activation) d.pre_activation[i * N + n] = (float)t;
            t = mhla_activation_value(d.activation, t);
            if (d.residual) t += (double)d.residual[i * d.ldr + n];
            if (d.accumulate) t += (double)y[i * d.ldy + n];
            y[i * d.ldy + n] = (float)t;
        }
    return MHLA_OK;
}
