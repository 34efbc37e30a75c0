/* The table of this instruction set, and its ceilings: the FMA rate and the rate of reading memory. */
#include "simd/kernels/isa.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define X(name, args) void KERNEL(name) args;
MHLA_KERNEL_LIST(X)
#undef X
#if defined(__AVX512BF16__)
void KERNEL(gemm_bf16)(const mhla_gemm_bf16 *g);
#endif

enum { CHAINS = 12 }; /* covers two ports times the latency */

static double fma_flops(int64_t iterations) {
    vf acc[CHAINS];
    const vf a = vset(0.999f), b = vset(1e-3f);
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) acc[i] = b + (float)i;
    for (int64_t n = 0; n < iterations; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = acc[i] * a + b;
        __asm__ volatile("" ::: "memory"); /* keep the loop as written */
    }
    vf s = acc[0];
#pragma GCC unroll 12
    for (int i = 1; i < CHAINS; i++) s += acc[i]; /* unrolled: an index at run time would keep acc in memory */
    volatile float sink = vsum(s);
    (void)sink;
    return 2.0 * CHAINS * LANES * (double)iterations;
}

#if defined(__AMX_BF16__)
double KERNEL(tile_flops)(int64_t iterations);
#elif defined(__AVX512BF16__)
static double bf16_flops(int64_t iterations) {
    __m512 acc[CHAINS];
    __m512bh a, b;
    memset(&a, 0x3f, sizeof a);
    memset(&b, 0x3e, sizeof b);
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i); /* equal chains would be merged into one */
    for (int64_t n = 0; n < iterations; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
        __asm__ volatile("" ::: "memory");
    }
    __m512 s = acc[0];
#pragma GCC unroll 12
    for (int i = 1; i < CHAINS; i++) s += acc[i];
    volatile float sink = _mm512_reduce_add_ps(s);
    (void)sink;
    return 4.0 * CHAINS * 16 * (double)iterations;
}
#endif

static float read_sum(const float *p, int64_t n) {
    vf s[8] = {0};
    for (int64_t i = 0; i + 8 * LANES <= n; i += 8 * LANES)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) s[j] += vload(p + i + j * LANES);
    for (int j = 1; j < 8; j++) s[0] += s[j];
    return vsum(s[0]);
}

const mhla_kernels KERNEL(table) = {
    .name = ISA_TEXT(MHLA_ISA),
#define X(name, args) .name = KERNEL(name),
    MHLA_KERNEL_LIST(X)
#undef X
        .fma_flops = fma_flops,
#if defined(__AMX_BF16__)
    .bf16_flops = KERNEL(tile_flops),
    .gemm_bf16 = KERNEL(gemm_bf16),
    .same_bits = mhla_emulated_gemm_amx,
#elif defined(__AVX512BF16__)
    .bf16_flops = bf16_flops,
    .gemm_bf16 = KERNEL(gemm_bf16),
    .same_bits = mhla_emulated_gemm_bf16,
#endif
    .read_sum = read_sum,
};
