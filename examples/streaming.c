/* streaming.c: causal MHLA one token at a time, as a language model decodes: a state is fed, forked into two continuations,
 * and rolled back. Finished chunks are never written again, so a fork shares them and a rollback is exact.
 *
 *   cc streaming.c -o streaming $(pkg-config --cflags --libs mhla) -lm */
#include <math.h>
#include <mhla/mhla.h>
#include <stdio.h>
#include <string.h>

enum { T = 200, H = 2, K = 16, V = 32, CHUNK = 16, M = 16 };

static float q[T * H * K], k[T * H * K], v[T * H * V], whole[T * H * V], o[T * H * V], other[H * V], mix[M * M];
static mhla_plan *plan;

/* Feeds the tokens first .. first+n-1, whose outputs go to their places in o. */
static mhla_status feed(mhla_state *state, int first, int n) {
    const mhla_call call = {.size = sizeof call, .batch = 1, .tokens = n};
    return mhla_step(plan, &call, &state, 1, o + first * H * V, q + first * H * K, k + first * H * K, v + first * H * V,
                     mix);
}

static int failed(const char *what) {
    fprintf(stderr, "streaming: %s: %s\n", what, mhla_message());
    return 1;
}

int main(void) {
    const int blocks[] = {M};
    for (int i = 0; i < T * H * K; i++) q[i] = sinf((float)i), k[i] = cosf(0.7f * (float)i);
    for (int i = 0; i < T * H * V; i++) v[i] = sinf(0.3f * (float)i);

    /* all at once, as in training */
    mhla_plan_desc desc = {.size = sizeof desc, .kind = MHLA_KIND_CAUSAL, .heads = H, .key_dim = K, .value_dim = V};
    desc.denominator = MHLA_DEN_NONE;
    desc.chunk = CHUNK, desc.chunks = M;
    if (mhla_mix_fill(mix, MHLA_MIX_CAUSAL, 1, blocks, 0.0) || mhla_plan_create(&plan, &desc)) return failed("plan");
    const mhla_call call = {.size = sizeof call, .batch = 1, .tokens = T};
    if (mhla_forward(plan, &call, whole, q, k, v, mix, NULL)) return failed("forward");

    /* a prompt in one piece, the rest token by token: the same outputs, to rounding */
    mhla_state *state, *twin;
    if (mhla_state_create(&state, plan, mix) || feed(state, 0, 100)) return failed("prompt");
    for (int t = 100; t < T; t++)
        if (feed(state, t, 1)) return failed("token");
    float worst = 0.0f;
    for (int i = 0; i < T * H * V; i++) worst = fmaxf(worst, fabsf(o[i] - whole[i]));
    printf("%lld tokens one by one: %.1e from all at once; the state takes %zu bytes\n",
           (long long)mhla_state_tokens(state), worst, mhla_state_bytes(state));

    /* back to token 96, a boundary of chunks, and the same way again: the same bits */
    memcpy(whole, o, sizeof o);
    if (mhla_state_rollback(state, 96, plan, mix) || mhla_state_fork(&twin, state)) return failed("rollback");
    for (int t = 96; t < T; t++)
        if (feed(state, t, 1)) return failed("token");
    const int same = memcmp(o + 100 * H * V, whole + 100 * H * V, sizeof(float) * (T - 100) * H * V) == 0;
    printf("rolled back to 96 and fed again: %s\n", same ? "the same bits" : "DIFFERENT");

    /* the fork stayed at token 96; what follows there is another text */
    memcpy(other, o + 96 * H * V, sizeof other);
    for (int i = 0; i < H * V; i++) v[96 * H * V + i] += 1.0f;
    if (feed(twin, 96, 1)) return failed("fork");
    const int differs = memcmp(other, o + 96 * H * V, sizeof other) != 0;
    printf("the fork is at token %lld, the first at %lld\n", (long long)mhla_state_tokens(twin),
           (long long)mhla_state_tokens(state));

    mhla_state_free(twin);
    mhla_state_free(state);
    mhla_plan_free(plan);
    return !(worst < 1e-4f && same && differs);
}
