/* The benchmark's whole models: DeiT-T with MHLA and with softmax attention, inference and a training step, on random
 * images with fresh weights, which cost what trained ones do. */
#include <mhla/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

typedef struct model_shape {
    const char *name, *attention;
    int64_t batch;
    int train;
} model_shape;

static const model_shape models[] = {
    {"deit-t-32", "attention=mhla", 32, 0},
    {"deit-t-1", "attention=mhla", 1, 0},
    {"deit-t-softmax-32", "attention=softmax", 32, 0},
    {"deit-t-softmax-1", "attention=softmax", 1, 0},
    {"deit-t-train-32", "attention=mhla", 32, 1},
};
enum { MODELS = sizeof models / sizeof *models };

int bench_models_has(const char *shape) {
    for (int i = 0; i < MODELS; i++)
        if (strcmp(models[i].name, shape) == 0) return 1;
    return 0;
}

typedef struct model_work {
    mhla_model *model;
    int64_t batch;
    float *images, *logits; /* [batch,channels,height,width], [batch,classes] */
    int32_t *labels;        /* [batch] */
} model_work;

static mhla_status infer(void *arg) {
    const model_work *w = arg;
    return mhla_model_forward(w->model, w->logits, w->images, w->batch);
}

static mhla_status train(void *arg) {
    const model_work *w = arg;
    return mhla_model_step(w->model, NULL, w->images, w->labels, w->batch, 1e-4);
}

/* The most memory that the process has had since the last reset, in bytes; 0 where the system does not tell. */
static size_t peak_memory(int reset) {
    FILE *f = reset ? fopen("/proc/self/clear_refs", "w") : fopen("/proc/self/status", "r");
    char line[256];
    unsigned long kib = 0;
    if (f == NULL) return 0;
    if (reset) fputs("5", f);
    while (!reset && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lu", &kib) == 1) break;
    fclose(f);
    return (size_t)kib * 1024;
}

static mhla_status make(model_work *w, const model_shape *s, const mhla_context *context, mhla_model_info *info) {
    const char *const settings[] = {"structure=released", s->attention};
    *w = (model_work){.batch = s->batch};
    mhla_status status = mhla_model_create(&w->model, "deit_tiny", settings, 2, 1);
    if (status == MHLA_OK) status = mhla_model_query(w->model, info);
    if (status != MHLA_OK) return status;
    mhla_model_set_context(w->model, context);
    const int64_t pixels = s->batch * info->channels * info->height * info->width;
    uint64_t seed = 1;
    w->images = aligned_new((size_t)pixels * 4);
    w->logits = aligned_new((size_t)(s->batch * info->classes) * 4);
    w->labels = calloc((size_t)s->batch, sizeof *w->labels);
    if (!w->images || !w->logits || !w->labels) return MHLA_ENOMEM;
    random_fill(w->images, MHLA_F32, pixels, &seed);
    for (int64_t i = 0; i < s->batch; i++) w->labels[i] = (int32_t)(i * 31 % info->classes);
    return MHLA_OK;
}

static void drop(model_work *w) {
    mhla_model_free(w->model);
    free(w->images);
    free(w->logits);
    free(w->labels);
}

mhla_status bench_models(bench *b) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < MODELS && status == MHLA_OK; i++) {
        const model_shape *s = &models[i];
        if (!bench_wants(b, "models", s->name) || !(b->dtypes & 1 << MHLA_F32)) continue;
        mhla_model_info info = {.size = sizeof info};
        model_work w;
        peak_memory(1);
        status = make(&w, s, b->context, &info);
        bench_row row = {.group = "models",
                         .shape = s->name,
                         .variant = "",
                         .images = (double)s->batch,
                         .flops = (s->train ? 6.0 : 2.0) * (double)s->batch * (double)info.multiply_adds};
        snprintf(row.sizes, sizeof row.sizes, "%lld image%s, %lld tokens%s", (long long)s->batch,
                 s->batch == 1 ? "" : "s", (long long)info.tokens, s->train ? ", training" : "");
        const work_fn work = s->train ? train : infer;
        if (status == MHLA_OK)
            status = timing_run(&row.time, work, &w, b->context, MHLA_F32, b->seconds, b->format != BENCH_ENGINE);
        row.workspace = peak_memory(0);
        if (status == MHLA_OK) bench_report(b, &row);
        drop(&w);
    }
    return status;
}
