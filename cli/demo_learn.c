/* The third and fourth part of the demo: three vision transformers, which differ only in their attention, learn at 1,024 tokens; then
 * what a query of each attends to, and the rank of its attention matrices. */
#include <math.h>
#include <mhla/analysis.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"

enum { BATCH = 32, TESTED = 1000 };

typedef struct watcher {
    demo *d;
    int arm;
} watcher;

static void watch(void *user, const mhla_train_event *e) {
    const watcher *w = user;
    demo *d = w->d;
    if (e->kind == MHLA_TRAIN_EVALUATED) d->accuracy[w->arm] = e->test_accuracy;
    if (e->kind == MHLA_TRAIN_EVALUATING) d->test_images = e->all;
    if (e->kind == MHLA_TRAIN_STEP && e->step >= 1 && e->step <= d->steps) {
        d->step[e->step - 1] = (double)e->step;
        d->loss[w->arm][e->step - 1] = e->loss;
    }
    if (e->kind == MHLA_TRAIN_STEP || e->kind == MHLA_TRAIN_EVALUATING) train_show(NULL, e);
}

/* The same settings for all three but for one: recipes/fashion-mnist.toml with a patch of one pixel, two layers and a higher rate. */
static mhla_status learn(demo *d, int arm, int *finished) {
    char run[DEMO_PATH], which[64], length[64], warmup[64], source[4200], batch[32], limit[32];
    snprintf(run, sizeof run, "%s/%s", d->folder, demo_attention[arm]);
    snprintf(which, sizeof which, "model.attention=%s", demo_attention[arm]);
    snprintf(length, sizeof length, "train.steps=%lld", (long long)d->steps);
    snprintf(warmup, sizeof warmup, "train.warmup_steps=%lld", (long long)d->steps / 10);
    snprintf(source, sizeof source, "data.source=%s", d->data);
    snprintf(batch, sizeof batch, "train.batch=%d", BATCH);
    snprintf(limit, sizeof limit, "eval.limit=%d", TESTED);
    const char *const settings[] = {which,
                                    length,
                                    warmup,
                                    source,
                                    batch,
                                    limit,
                                    "seed=1",
                                    "model.model=deit_nano",
                                    "model.image=28,28",
                                    "model.padding=2,2",
                                    "model.patch=1",
                                    "model.blocks=4,4",
                                    "model.depth=2",
                                    "model.mean=0.286",
                                    "model.deviation=0.353",
                                    "model.crop=1",
                                    "train.rate=2e-3",
                                    "train.weight_decay=0.05",
                                    "train.smoothing=0.1",
                                    "train.drop_path=0.05",
                                    "train.clip=1",
                                    "augment.crop=pad",
                                    "augment.pad=2",
                                    "augment.flip=0.5"};
    mhla_trainer *trainer = NULL;
    mhla_model_info info = {.size = sizeof info};
    watcher w = {d, arm};
    mhla_status status = mhla_trainer_create(&trainer, run, NULL, settings, sizeof settings / sizeof *settings);
    if (status != MHLA_OK) return status;
    status = mhla_model_query(mhla_trainer_model(trainer), &info);
    d->parameters[arm] = info.parameters;
    d->attention_tokens = info.tokens;
    const double begin = now_seconds();
    demo_clock(&d->learn_share, 1);
    if (status == MHLA_OK) status = train_run(trainer, watch, &w, finished);
    d->learn_seconds[arm] = now_seconds() - begin;
    demo_clock(&d->learn_share, 0);
    train_clear_bar();
    mhla_trainer_free(trainer);
    return status;
}

static int fetch(const demo *d) {
    if (strcmp(d->data, "fashion-mnist") != 0) return CLI_OK;
    char name[] = "fashion-mnist", *arguments[] = {name}; /* fetched unless it is there */
    printf("\n");
    const int code = cmd_data(1, arguments);
    if (code != CLI_OK) printf("Without Fashion-MNIST the parts on learning and attention are skipped.\n");
    return code;
}

int demo_learn(demo *d) {
    const int code = fetch(d);
    if (code != CLI_OK) return code;
    d->batch = BATCH;
    d->step = calloc((size_t)d->steps, sizeof *d->step);
    for (int arm = 0; arm < DEMO_ARMS; arm++) d->loss[arm] = calloc((size_t)d->steps, sizeof *d->loss[arm]);
    if (d->step == NULL || d->loss[0] == NULL || d->loss[1] == NULL || d->loss[2] == NULL)
        return cli_failed("demo", MHLA_ENOMEM);
    printf("\n3. Learning: three vision transformers that differ only in the attention read Fashion-MNIST as\n"
           "   1,024 tokens, one for each pixel. %lld updates of %d images, seed 1.\n\n%-9s %11s %15s %10s\n",
           (long long)d->steps, BATCH, "", "parameters", "test accuracy", "time");
    fflush(stdout);
    for (int arm = 0; arm < DEMO_ARMS; arm++) {
        int finished = 0;
        char count[32], time[32];
        const mhla_status status = learn(d, arm, &finished);
        if (status != MHLA_OK) return cli_failed("demo", status);
        if (!finished) {
            fprintf(stderr, "Stopped. Resume this run with: %s train --resume %s/%s\n", cli_program, d->folder,
                    demo_attention[arm]);
            return interrupt_code();
        }
        d->learned = arm + 1;
        printf("%-9s %11s %13.1f %% %10s\n", demo_name[arm], text_count(count, sizeof count, d->parameters[arm]),
               100.0 * d->accuracy[arm], text_time(time, sizeof time, d->learn_seconds[arm]));
        fflush(stdout);
    }
    return CLI_OK;
}

/* ---- What they attend to ---- */

/* Means over layers and heads; the map is that of the last layer's first head. */
static mhla_status take(demo *d, int arm, const mhla_analysis *a) {
    mhla_analysis_info info = {.size = sizeof info};
    mhla_status status = mhla_analysis_query(a, &info);
    int count = 0;
    for (int l = 0; l < info.layers && status == MHLA_OK; l++) {
        mhla_head_analysis h = {.size = sizeof h};
        for (int n = 0; n < info.heads && status == MHLA_OK; n++, count++) {
            status = mhla_analysis_head(a, l, n, &h);
            if (status != MHLA_OK) break;
            d->rank[arm] += h.rank;
            d->effective[arm] += h.effective_rank;
            d->entropy[arm] += h.entropy;
            d->own[arm] += h.own;
            if (h.bound > d->bound[arm]) d->bound[arm] = h.bound;
        }
    }
    if (status != MHLA_OK || count == 0) return status;
    d->rank[arm] /= count;
    d->effective[arm] /= count;
    d->entropy[arm] /= count;
    d->own[arm] /= count;
    d->attention_tokens = info.tokens;
    memcpy(d->grid, info.grid, sizeof d->grid);
    d->query = info.grid[0] / 2 * info.grid[1] + info.grid[1] / 2;
    float *weights = malloc((size_t)info.tokens * sizeof *weights);
    if (weights == NULL) return MHLA_ENOMEM;
    status = mhla_analysis_map(a, weights, 0, info.layers - 1, 0, info.first + d->query);
    memmove(weights, weights + info.first, (size_t)(info.tokens - info.first) * sizeof *weights);
    d->map[arm] = weights;
    return status;
}

static mhla_status look(demo *d, int arm) {
    const mhla_analysis_desc desc = {.size = sizeof desc, .data = d->seen, .samples = 1, .rank_samples = 1, .maps = 1};
    char run[DEMO_PATH];
    mhla_model *model = NULL;
    mhla_analysis *analysis = NULL;
    snprintf(run, sizeof run, "%s/%s", d->folder, demo_attention[arm]);
    mhla_status status = mhla_model_open(&model, run);
    if (status == MHLA_OK) status = mhla_analysis_create(&analysis, model, &desc);
    if (status == MHLA_OK) status = take(d, arm, analysis);
    mhla_analysis_free(analysis);
    mhla_model_free(model);
    return status;
}

int demo_look(demo *d) {
    printf("\n4. Attention: the matrices of these three models for one test image, means over layers and heads\n\n"
           "%-9s %8s %9s %10s %9s %11s\n",
           "", "rank", "at most", "effective", "entropy", "own block");
    fflush(stdout);
    int label;
    snprintf(d->seen, sizeof d->seen, "%s/test-image.png", d->folder);
    mhla_status status = mhla_data_export(d->data, "test", 9, d->seen, &label);
    for (int arm = 0; arm < d->learned && status == MHLA_OK; arm++) {
        status = look(d, arm);
        if (status != MHLA_OK) break;
        d->looked = arm + 1;
        printf("%-9s %8.1f %9lld %10.1f %9.2f %9.1f %%\n", demo_name[arm], d->rank[arm], (long long)d->bound[arm],
               d->effective[arm], d->entropy[arm], 100.0 * d->own[arm]);
        fflush(stdout);
    }
    return status == MHLA_OK ? CLI_OK : cli_failed("demo", status);
}
