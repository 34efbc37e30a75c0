/* mhla demo: a short check, then one table that shows what MHLA is for: beside linear and softmax attention, at growing
 * numbers of tokens, its time, its memory and how rich an attention matrix it can express. */
#include <stdio.h>

#include "cli.h"

enum { H = 6, K = 64, V = 64 };

/* Blocks: about as many as the square root of the tokens, so that mixing stays linear (M * M <= T). */
static const struct row {
    int64_t T;
    int grid[2], blocks[2];
} rows[] = {
    {256, {16, 16}, {4, 4}},      {1024, {32, 32}, {4, 8}},      {4096, {64, 64}, {8, 8}},
    {16384, {128, 128}, {8, 16}}, {31500, {150, 210}, {10, 14}},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int quick;

static const cli_option options[] = {
    {"quick", CLI_FLAG, &quick, NULL, "up to 4,096 tokens only"},
    {0},
};
static const cli_usage usage = {
    .verb = "demo",
    .arguments = "",
    .options = options,
    .text = "Checks the operators against their references, then prints one table: MHLA, linear\n"
            "and softmax attention from 256 to 31,500 tokens (a five-second video), with time,\n"
            "percent of this machine's peak, memory and rank. Takes less than a minute.\n",
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many independent rows the attention matrix can have: MHLA's is the sum over blocks of min(tokens, K). */
static int64_t rank_bound(const struct row *r, int op) {
    if (op == 1) return least(r->T, K);
    if (op == 2) return r->T;
    int64_t sum = 0;
    for (int i = 0; i < r->blocks[0]; i++)
        for (int j = 0; j < r->blocks[1]; j++) {
            const int64_t high = (int64_t)(i + 1) * r->grid[0] / r->blocks[0] - (int64_t)i * r->grid[0] / r->blocks[0];
            const int64_t wide = (int64_t)(j + 1) * r->grid[1] / r->blocks[1] - (int64_t)j * r->grid[1] / r->blocks[1];
            sum += least(high * wide, K);
        }
    return least(r->T, sum);
}

static mhla_status work(void *arg) { return problem_forward(arg); }

/* One line of the table. Softmax at many tokens is measured on one head and multiplied; returns through *starred. */
static mhla_status measure(const struct row *r, int op, int *starred) {
    static const mhla_kind kinds[] = {MHLA_KIND_BIDIRECTIONAL, MHLA_KIND_LINEAR, MHLA_KIND_SOFTMAX};
    static const char *const names[] = {"MHLA", "linear", "softmax"};
    const double M = (double)r->blocks[0] * r->blocks[1], T = (double)r->T;
    const double flops = op == 0 ? flops_mhla(T, K, V, M) : op == 1 ? flops_linear(T, K, V) : flops_softmax(T, K, V);
    static double peak;
    if (peak == 0.0) peak = peak_settled(MHLA_F32, NULL);
    const int heads = op == 2 && H * flops / (peak * 1e9) > 1.5 ? 1 : H;
    problem_desc desc = {.seed = 1, .call = {.batch = 1, .tokens = r->T}};
    desc.plan = (mhla_plan_desc){.kind = kinds[op], .heads = heads, .key_dim = K, .value_dim = V};
    if (op < 2) desc.plan.feature_eps = desc.plan.den_eps = 1e-6f;
    if (op == 0) {
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
    status = timing_run(&t, work, &p, NULL, MHLA_F32, 0.5, 1);
    if (status == MHLA_OK) {
        char tokens[24] = "", time[24], memory[24], rank[24], matrix[24] = "";
        const double scale = (double)H / heads;
        if (op == 0) text_count(tokens, sizeof tokens, r->T);
        if (op == 2) text_bytes(matrix, sizeof matrix, 4.0 * H * T * T);
        printf("%7s  %-8s %10s%s %6.0f %% %11s %11s %13s\n", tokens, names[op],
               text_time(time, sizeof time, scale * t.best), heads < H ? "*" : " ",
               100.0 * heads * flops / t.best * 1e-9 / t.peak, text_bytes(memory, sizeof memory, (double)p.ws_bytes),
               matrix, text_count(rank, sizeof rank, rank_bound(r, op)));
        fflush(stdout);
        *starred |= heads < H;
        timing_free(&t);
    }
    problem_free(&p);
    return status;
}

int cmd_demo(int argc, char **argv) {
    const int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    mhla_cpu_info info = {.size = sizeof info};
    mhla_status status = mhla_cpu_query(&info);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    printf("mhla %s on %s, %d thread%s, %s kernels\n\n1. Does it compute the right thing?\n\n", mhla_version(),
           info.model, info.threads, info.threads == 1 ? "" : "s", info.isa);
    const int check = check_run(&(check_options){.brief = 1});
    if (check != CLI_OK) return check;
    printf("\n2. What does it cost? One layer of %d heads of %d, float32.\n\n", H, K);
    printf("%7s  %-8s %10s  %8s %11s %11s %13s\n", "tokens", "", "time", "of peak", "memory", "T x T", "rank at most");
    int starred = 0;
    for (int i = 0; i < ROWS && status == MHLA_OK; i++) {
        if (quick && rows[i].T > 4096) break;
        if (i > 0) printf("\n");
        for (int op = 0; op < 3 && status == MHLA_OK; op++) status = measure(&rows[i], op, &starred);
    }
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (starred) printf("\n* measured on one of the %d heads and multiplied.\n", H);
    printf("\nFour times the tokens cost softmax attention sixteen times the time, MHLA and linear attention\n"
           "only four times. Linear attention pays for that with an attention matrix of rank %d at most, however\n"
           "many tokens there are; MHLA mixes a summary of each block instead of one for all, which costs little\n"
           "more and gives most of the rank back.\n",
           K);
    return CLI_OK;
}
