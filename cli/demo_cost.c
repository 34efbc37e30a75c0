/* The second part of the demo: time and memory of one layer of attention against the number of tokens. */
#include <stdio.h>

#include "demo.h"

enum { H = 6, K = 64, V = 64 };

/* Blocks: about as many as the square root of the tokens, so that mixing stays linear (M * M <= T). */
static const struct row {
    int64_t T;
    int grid[2], blocks[2];
} rows[DEMO_LENGTHS] = {
    {256, {16, 16}, {4, 4}},      {1024, {32, 32}, {4, 8}},      {4096, {64, 64}, {8, 8}},
    {16384, {128, 128}, {8, 16}}, {31500, {150, 210}, {10, 14}},
};

static mhla_status work(void *arg) { return problem_forward(arg); }

/* One line of the table. Softmax at many tokens is measured on one head and multiplied; sets *starred. */
static mhla_status measure(demo *d, int i, int arm, int *starred) {
    static const mhla_kind kinds[] = {MHLA_KIND_BIDIRECTIONAL, MHLA_KIND_LINEAR, MHLA_KIND_SOFTMAX};
    const struct row *r = &rows[i];
    const double M = (double)r->blocks[0] * r->blocks[1], T = (double)r->T;
    const double flops = arm == 0 ? flops_mhla(T, K, V, M) : arm == 1 ? flops_linear(T, K, V) : flops_softmax(T, K, V);
    static double peak;
    if (peak == 0.0) peak = peak_settled(MHLA_F32, NULL);
    const int heads = arm == 2 && H * flops / (peak * 1e9) > 1.5 ? 1 : H;
    problem_desc desc = {.seed = 1, .call = {.batch = 1, .tokens = r->T}};
    desc.plan = (mhla_plan_desc){.kind = kinds[arm], .heads = heads, .key_dim = K, .value_dim = V};
    if (arm < 2) desc.plan.feature_eps = desc.plan.den_eps = 1e-6f;
    if (arm == 0) {
        desc.plan.axes = 2;
        for (int a = 0; a < 2; a++) {
            desc.plan.grid[a] = r->grid[a];
            desc.plan.blocks[a] = r->blocks[a];
        }
    }
    problem p;
    timing t;
    mhla_status status = problem_create(&p, &desc);
    if (status != MHLA_OK) return status;
    if (r->T >= 4096) demo_clock(&d->cost_share, 1);
    status = timing_run(&t, work, &p, NULL, MHLA_F32, 0.5, 1);
    if (r->T >= 4096) demo_clock(&d->cost_share, 0);
    if (status == MHLA_OK) {
        char tokens[24] = "", time[24], memory[24], matrix[24] = "";
        d->tokens[i] = T;
        d->matrix[i] = 4.0 * H * T * T;
        d->seconds[arm][i] = (double)H / heads * t.best;
        d->bytes[arm][i] = (double)p.ws_bytes;
        if (arm == 0) text_count(tokens, sizeof tokens, r->T);
        if (arm == 2) text_bytes(matrix, sizeof matrix, d->matrix[i]);
        printf("%7s  %-8s %10s%s %6.0f %% %11s %11s\n", tokens, demo_name[arm],
               text_time(time, sizeof time, d->seconds[arm][i]), heads < H ? "*" : " ",
               100.0 * heads * flops / t.best * 1e-9 / t.peak, text_bytes(memory, sizeof memory, d->bytes[arm][i]),
               matrix);
        fflush(stdout);
        *starred |= heads < H;
        timing_free(&t);
    }
    problem_free(&p);
    return status;
}

int demo_cost(demo *d) {
    printf("\n2. Cost: one layer of %d heads of %d, float32\n\n", H, K);
    printf("%7s  %-8s %10s  %8s %11s %11s\n", "tokens", "", "time", "of peak", "workspace", "T x T");
    int starred = 0;
    mhla_status status = MHLA_OK;
    for (int i = 0; i < DEMO_LENGTHS && status == MHLA_OK; i++) {
        if (d->quick && rows[i].T > 4096) break;
        if (i > 0) printf("\n");
        for (int arm = 0; arm < DEMO_ARMS && status == MHLA_OK; arm++) status = measure(d, i, arm, &starred);
        if (status == MHLA_OK) d->lengths = i + 1;
    }
    if (status != MHLA_OK) return cli_failed("demo", status);
    if (starred) printf("\n* measured on one of the %d heads and multiplied.\n", H);
    printf("\nT x T: the memory of the scores of all heads. Softmax attention here does not store them.\n");
    return CLI_OK;
}
