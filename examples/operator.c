/* operator.c: one call of the operator, without a plan or a context: an image of 16 x 16 tokens, cut into 4 x 4 blocks.
 * Then the same by definition, in double, to see that both agree.
 *
 *   cc operator.c -o operator $(pkg-config --cflags --libs mhla) -lm */
#include <math.h>
#include <mhla/mhla.h>
#include <stdio.h>

enum { T = 256, H = 3, K = 64, V = 64, M = 16 };

static float q[T * H * K], k[T * H * K], v[T * H * V], o[T * H * V], expected[T * H * V], mix[M * M];

int main(void) {
    const int grid[] = {16, 16}, blocks[] = {4, 4};
    for (int i = 0; i < T * H * K; i++) {
        q[i] = sinf((float)i), k[i] = cosf(0.7f * (float)i);
        v[i] = sinf(0.3f * (float)i);
    }

    /* Row i of mix says how much block i of queries takes from the summary of each block of keys and values. A model learns
     * it; the paper's start is "the nearer, the more". */
    if (mhla_mix_fill(mix, MHLA_MIX_PAPER, 2, blocks, 0.0) ||
        mhla_attention(o, q, k, v, mix, 1, T, H, K, V, 2, grid, blocks)) {
        fprintf(stderr, "operator: %s\n", mhla_message());
        return 1;
    }
    printf("o[0] = %.4f; block 0 takes %.3f from itself, %.3f from the block farthest away\n", o[0], mix[0],
           mix[M - 1]);

    mhla_plan_desc desc = {
        .size = sizeof desc, .kind = MHLA_KIND_BIDIRECTIONAL, .heads = H, .key_dim = K, .value_dim = V};
    desc.feature_eps = 1e-6f;
    desc.axes = 2, desc.grid[0] = desc.grid[1] = 16, desc.blocks[0] = desc.blocks[1] = 4;
    const mhla_call call = {.size = sizeof call, .batch = 1, .tokens = T};
    mhla_plan *plan;
    if (mhla_plan_create(&plan, &desc) || mhla_forward_reference(plan, &call, expected, q, k, v, mix)) {
        fprintf(stderr, "operator: %s\n", mhla_message());
        return 1;
    }
    mhla_plan_free(plan);
    float worst = 0.0f;
    for (int i = 0; i < T * H * V; i++) worst = fmaxf(worst, fabsf(o[i] - expected[i]));
    printf("largest difference from the definition: %.1e\n", worst);
    return !(worst < 1e-5f);
}
