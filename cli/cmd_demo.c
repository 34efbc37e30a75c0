/* mhla demo: a short check; a table that shows what MHLA is for, beside linear and softmax attention, at growing numbers
 * of tokens; then three small vision transformers that differ in nothing but the attention learn to tell clothes apart. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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
static double epochs = 2.0;
static const char *data = "fashion-mnist";

static const cli_option options[] = {
    {"quick", CLI_FLAG, &quick, NULL, "the table up to 4,096 tokens only, no training"},
    {"epochs", CLI_REAL, &epochs, "N", "train for N epochs instead of 2"},
    {"data", CLI_TEXT, &data, "FOLDER", "where Fashion-MNIST lies; default: it is fetched"},
    {0},
};
static const cli_usage usage = {
    .verb = "demo",
    .arguments = "",
    .options = options,
    .text = "Checks the operators against their references, prints one table (MHLA, linear and softmax\n"
            "attention from 256 to 31,500 tokens, a five-second video, with time, percent of this\n"
            "machine's peak, memory and rank), then trains a small vision transformer with each of the\n"
            "three on Fashion-MNIST, tests them, and classifies ten pictures. Takes about five minutes.\n",
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

/* ---- Three models learn ---- */

static const char *const attentions[] = {"mhla", "linear", "softmax"};
static char folder[64];

typedef struct outcome {
    int64_t parameters;
    double accuracy, seconds;
} outcome;

static void watch(void *user, const mhla_train_event *e) {
    if (e->kind == MHLA_TRAIN_EVALUATED) ((outcome *)user)->accuracy = e->test_accuracy;
    if (e->kind == MHLA_TRAIN_STEP || e->kind == MHLA_TRAIN_EVALUATING) train_show(NULL, e);
}

/* The same settings for all three but for one. */
static mhla_status learn(const char *attention, outcome *result, int *finished) {
    char run[128], which[64], length[64], source[4200];
    snprintf(run, sizeof run, "%s/%s", folder, attention);
    snprintf(which, sizeof which, "model.attention=%s", attention);
    snprintf(length, sizeof length, "train.epochs=%g", epochs);
    snprintf(source, sizeof source, "data.source=%s", data);
    const char *const settings[] = {which,
                                    length,
                                    source,
                                    "model.model=deit_nano",
                                    "model.mean=0.286",
                                    "model.deviation=0.353",
                                    "model.crop=1",
                                    "train.batch=64",
                                    "train.rate=2e-3",
                                    "train.warmup_epochs=0.2",
                                    "train.clip=1",
                                    "augment.flip=0.5",
                                    "eval.epochs=0.5"};
    mhla_trainer *trainer = NULL;
    mhla_model_info info = {.size = sizeof info};
    const double begin = now_seconds();
    mhla_status status = mhla_trainer_create(&trainer, run, NULL, settings, sizeof settings / sizeof *settings);
    if (status != MHLA_OK) return status;
    status = mhla_model_query(mhla_trainer_model(trainer), &info);
    result->parameters = info.parameters;
    if (status == MHLA_OK) status = train_run(trainer, watch, result, finished);
    train_clear_bar();
    mhla_trainer_free(trainer);
    result->seconds = now_seconds() - begin;
    return status;
}

/* Ten test pictures, as files, so that anybody may try them again. */
static mhla_status classify_some(void) {
    char path[256], run[128];
    mhla_model *model = NULL;
    float probabilities[10];
    int right = 0;
    snprintf(run, sizeof run, "%s/mhla", folder);
    snprintf(path, sizeof path, "%s/pictures", folder);
    if (mkdir(path, 0777) != 0) perror(path);
    mhla_status status = mhla_model_open(&model, run);
    printf("\n4. Ten test pictures, as the model with MHLA sees them (%s/pictures)\n\n", folder);
    for (int i = 0; i < 10 && status == MHLA_OK; i++) {
        int label = 0, best = 0;
        snprintf(path, sizeof path, "%s/pictures/%d.png", folder, i);
        status = mhla_data_export(data, "test", i, path, &label);
        if (status == MHLA_OK) status = mhla_model_classify(model, probabilities, path);
        if (status != MHLA_OK) break;
        for (int k = 1; k < 10; k++)
            if (probabilities[k] > probabilities[best]) best = k;
        right += best == label;
        printf("  %d.png  %-12s taken for %-12s %5.1f %%%s\n", i, mhla_model_class_name(model, label),
               mhla_model_class_name(model, best), 100.0 * (double)probabilities[best], best == label ? "" : "  wrong");
    }
    if (status == MHLA_OK) printf("\n  %d of 10 are right.\n", right);
    mhla_model_free(model);
    return status;
}

static int train_three(void) {
    outcome results[3] = {{0}};
    mhla_status status = MHLA_OK;
    if (strcmp(data, "fashion-mnist") == 0) { /* fetched unless it is there */
        char name[] = "fashion-mnist", *arguments[] = {name};
        printf("\n");
        const int code = cmd_data(1, arguments);
        if (code != CLI_OK) return code;
    }
    mkdir("runs", 0777);
    for (int n = 1; n < 10000; n++) { /* never into what is there */
        snprintf(folder, sizeof folder, "runs/demo-%d", n);
        if (mkdir(folder, 0777) == 0) break;
        if (errno != EEXIST) {
            perror(folder);
            return CLI_FAILED;
        }
    }
    printf(
        "\n3. Does it learn? Three vision transformers, alike in everything but the attention, see 60,000 pictures of\n"
        "   clothes %g times.\n\n%-9s %11s %15s %10s\n",
        epochs, "", "parameters", "test accuracy", "time");
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        int finished = 0;
        char count[32];
        status = learn(attentions[i], &results[i], &finished);
        if (status != MHLA_OK) return cli_failed(usage.verb, status);
        if (!finished) {
            fprintf(stderr, "Stopped. Go on with: %s train --resume %s/%s\n", cli_program, folder, attentions[i]);
            return interrupt_code();
        }
        printf("%-9s %11s %13.2f %% %8.0f s\n", attentions[i], text_count(count, sizeof count, results[i].parameters),
               100.0 * results[i].accuracy, results[i].seconds);
        fflush(stdout);
    }
    status = classify_some();
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    char paths[3][128], report[128];
    const char *runs[3];
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, attentions[i]);
        runs[i] = paths[i];
    }
    snprintf(report, sizeof report, "%s/report.html", folder);
    status = mhla_report_write(report, runs, 3);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    printf("\nCurves, mixing matrices and predictions: %s\n"
           "Try: %s classify %s/pictures --model %s/mhla --top 3\n",
           report, cli_program, folder, folder);
    return CLI_OK;
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
    return quick ? CLI_OK : train_three();
}
