/* The benchmark's whole models: DeiT-T and DiT-S/2 with MHLA and with softmax attention, DiG-S/2 with GLA and with MHLA, VLT-T with
 * MHLA, inference and a training step, DeiT-T with the attentions that MHLA is compared with, Stable Diffusion's autoencoder, and DiT-S/2
 * on ever larger images.
 * Random inputs and fresh weights cost what real ones do. */
#include <mhla/diffusion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

typedef enum pass { INFER, TRAIN, ENCODE, DECODE } pass;

typedef struct model_shape {
    const char *name, *preset;
    const char *attention; /* NULL: it has no choice */
    int64_t batch;
    pass pass;
    int side; /* of the input, or of the image that is encoded or decoded; 0: the preset's */
} model_shape;

static const model_shape models[] = {
    {"deit-t-32", "deit_tiny", "mhla", 32, INFER, 0},
    {"deit-t-1", "deit_tiny", "mhla", 1, INFER, 0},
    {"deit-t-softmax-32", "deit_tiny", "softmax", 32, INFER, 0},
    {"deit-t-softmax-1", "deit_tiny", "softmax", 1, INFER, 0},
    {"deit-t-train-32", "deit_tiny", "mhla", 32, TRAIN, 0},
    {"deit-t-softmax-train-32", "deit_tiny", "softmax", 32, TRAIN, 0},
    {"deit-t-focused-32", "deit_tiny", "focused", 32, INFER, 0},
    {"deit-t-focused-train-32", "deit_tiny", "focused", 32, TRAIN, 0},
    {"deit-t-inline-32", "deit_tiny", "inline", 32, INFER, 0},
    {"deit-t-inline-train-32", "deit_tiny", "inline", 32, TRAIN, 0},
    {"deit-t-mala-32", "deit_tiny", "mala", 32, INFER, 0},
    {"deit-t-mala-train-32", "deit_tiny", "mala", 32, TRAIN, 0},
    {"deit-t-rala-32", "deit_tiny", "rala", 32, INFER, 0},
    {"deit-t-rala-train-32", "deit_tiny", "rala", 32, TRAIN, 0},
    {"vlt-t-32", "mhla_vlt_tiny", "mhla", 32, INFER, 0},
    {"vlt-t-1", "mhla_vlt_tiny", "mhla", 1, INFER, 0},
    {"vlt-t-train-32", "mhla_vlt_tiny", "mhla", 32, TRAIN, 0},
    {"dit-s-8", "dit_s_2", "mhla", 8, INFER, 0},
    {"dit-s-1", "dit_s_2", "mhla", 1, INFER, 0},
    {"dit-s-softmax-8", "dit_s_2", "softmax", 8, INFER, 0},
    {"dit-s-softmax-1", "dit_s_2", "softmax", 1, INFER, 0},
    {"dit-s-train-8", "dit_s_2", "mhla", 8, TRAIN, 0},
    {"dit-s-softmax-train-8", "dit_s_2", "softmax", 8, TRAIN, 0},
    {"dig-s-8", "dig_s", "gla", 8, INFER, 0},
    {"dig-s-1", "dig_s", "gla", 1, INFER, 0},
    {"dig-s-mhla-8", "dig_s", "mhla", 8, INFER, 0},
    {"dig-s-mhla-1", "dig_s", "mhla", 1, INFER, 0},
    {"dig-s-train-8", "dig_s", "gla", 8, TRAIN, 0},
    {"dig-s-mhla-train-8", "dig_s", "mhla", 8, TRAIN, 0},
    {"sd-vae-decode-256", "sd_vae", NULL, 1, DECODE, 256},
    {"sd-vae-decode-512", "sd_vae", NULL, 1, DECODE, 512},
    {"sd-vae-encode-256", "sd_vae", NULL, 1, ENCODE, 256},
    {"sd-vae-encode-512", "sd_vae", NULL, 1, ENCODE, 512},
    {"dc-ae-decode-512", "dc_ae", NULL, 1, DECODE, 512},
    {"dc-ae-encode-512", "dc_ae", NULL, 1, ENCODE, 512},
};
enum { MODELS = sizeof models / sizeof *models };

/* Group resolution: one image of DiT-S/2 with ever more tokens, for each operator asked for. */
static const model_shape resolutions[] = {
    {"dit-256", "dit_s_2", "mhla", 1, INFER, 32},    {"dit-1024", "dit_s_2", "mhla", 1, INFER, 64},
    {"dit-4096", "dit_s_2", "mhla", 1, INFER, 128},  {"dit-16384", "dit_s_2", "mhla", 1, INFER, 256},
    {"dit-65536", "dit_s_2", "mhla", 1, INFER, 512},
};
enum { RESOLUTIONS = sizeof resolutions / sizeof *resolutions };

static int has(const model_shape *list, int count, const char *shape) {
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, shape) == 0) return 1;
    return 0;
}
int bench_models_has(const char *shape) { return has(models, MODELS, shape); }
int bench_resolution_has(const char *shape) { return has(resolutions, RESOLUTIONS, shape); }

typedef struct model_work {
    mhla_model *model;
    int64_t batch;
    int side;
    float *images;   /* [batch,channels,height,width] */
    float *answers;  /* logits [batch,classes], or of a diffusion [batch,2*channels,height,width] */
    float *targets;  /* like those of a diffusion */
    float *times;    /* [batch] */
    int32_t *labels; /* [batch] */
    int64_t multiply_adds, tokens;
    mhla_coding coding; /* of autoencoders */
} model_work;

static mhla_status infer(void *arg) {
    const model_work *w = arg;
    return mhla_model_forward(w->model, w->answers, w->images, w->batch);
}

static mhla_status train(void *arg) {
    const model_work *w = arg;
    return mhla_model_step(w->model, NULL, w->images, w->labels, w->batch, 1e-4);
}

static mhla_denoise noisy(const model_work *w) {
    return (mhla_denoise){.size = sizeof(mhla_denoise),
                          .count = w->batch,
                          .x = w->images,
                          .times = w->times,
                          .labels = w->labels,
                          .height = w->side,
                          .width = w->side};
}

static mhla_status denoise(void *arg) {
    const model_work *w = arg;
    const mhla_denoise d = noisy(w);
    return mhla_model_denoise(w->model, w->answers, &d);
}

static mhla_status denoise_train(void *arg) {
    const model_work *w = arg;
    const mhla_denoise d = noisy(w);
    return mhla_model_denoise_step(w->model, NULL, &d, w->targets, 1e-4);
}

static mhla_status encode(void *arg) {
    const model_work *w = arg;
    return mhla_model_encode(w->model, w->answers, NULL, w->images, w->batch, &w->coding);
}

static mhla_status decode(void *arg) {
    const model_work *w = arg;
    return mhla_model_decode(w->model, w->answers, w->images, w->batch, &w->coding);
}

/* The most memory that the process has had since the last reset, in bytes; 0 where the system does not tell. */
static size_t peak_memory(int reset) {
    FILE *f = reset ? fopen("/proc/self/clear_refs", "we") : fopen("/proc/self/status", "re");
    char line[256];
    unsigned long kib = 0;
    if (f == NULL) return 0;
    if (reset) fputs("5", f);
    while (!reset && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lu", &kib) == 1) break;
    fclose(f);
    return (size_t)kib * 1024;
}

static mhla_status make(model_work *w, const model_shape *s, mhla_dtype dtype, const mhla_context *context,
                        work_fn *work) {
    char attention[32];
    const char *const settings[] = {attention, "structure=released"};
    const int one = strncmp(s->preset, "dig_", 4) == 0 || strstr(s->preset, "vlt") != NULL; /* have one structure */
    snprintf(attention, sizeof attention, "attention=%s", s->attention ? s->attention : "");
    mhla_model_info info = {.size = sizeof info};
    mhla_codec_info codec = {.size = sizeof codec};
    *w = (model_work){.batch = s->batch, .side = s->side, .coding = {.size = sizeof w->coding}};
    mhla_status status = mhla_model_create(&w->model, s->preset, settings, !s->attention ? 0 : one ? 1 : 2, 1);
    if (status == MHLA_OK) status = mhla_model_query(w->model, &info);
    if (status == MHLA_OK && dtype != MHLA_F32)
        status = (s->pass == TRAIN ? mhla_model_set_precision : mhla_model_store)(w->model, bench_dtype_names[dtype]);
    if (status != MHLA_OK) return status;
    mhla_model_set_context(w->model, context);
    const int diffusion = mhla_model_has(w->model, MHLA_ROLE_DENOISER);
    w->multiply_adds = info.multiply_adds;
    w->tokens = info.tokens;
    if (w->side == 0) w->side = info.height;
    int64_t pixels = s->batch * info.channels * w->side * w->side;
    int64_t answers = diffusion ? 2 * pixels : s->batch * info.classes;
    *work = diffusion ? (s->pass == TRAIN ? denoise_train : denoise) : (s->pass == TRAIN ? train : infer);
    if (diffusion) status = mhla_model_denoise_cost(w->model, &w->multiply_adds, &w->tokens, w->side, w->side);
    if (s->pass >= ENCODE) {
        w->coding.height = w->coding.width = w->side;
        *work = s->pass == DECODE ? decode : encode;
        status = mhla_codec_query(w->model, &codec);
        if (status == MHLA_OK) status = mhla_coding_settle(w->model, &w->coding, s->pass == DECODE);
        if (status != MHLA_OK) return status;
        w->multiply_adds = w->coding.multiply_adds;
        w->tokens = (int64_t)w->side / codec.factor * (w->side / codec.factor);
        const int64_t latents = s->batch * codec.latents * w->tokens;
        answers = s->pass == DECODE ? s->batch * codec.outputs * w->side * w->side : latents;
        if (s->pass == DECODE) pixels = latents;
    }
    uint64_t seed = 1;
    w->images = aligned_new((size_t)pixels * 4);
    w->answers = aligned_new((size_t)answers * 4);
    w->targets = aligned_new((size_t)answers * 4);
    w->times = calloc((size_t)s->batch, sizeof *w->times);
    w->labels = calloc((size_t)s->batch, sizeof *w->labels);
    if (!w->images || !w->answers || !w->targets || !w->times || !w->labels) return MHLA_ENOMEM;
    random_fill(w->images, MHLA_F32, pixels, &seed);
    random_fill(w->targets, MHLA_F32, answers, &seed);
    for (int64_t i = 0; i < s->batch; i++) {
        w->labels[i] = info.classes ? (int32_t)(i * 31 % info.classes) : 0;
        w->times[i] = (float)(i * 173 % 1000);
    }
    return status;
}

static void drop(model_work *w) {
    mhla_model_free(w->model);
    free(w->images);
    free(w->answers);
    free(w->targets);
    free(w->times);
    free(w->labels);
}

/* `most` seconds of a call, or it is not measured; 0: any. */
static mhla_status measure(bench *b, const char *group, const model_shape *s, const char *variant, mhla_dtype dtype,
                           double most) {
    model_work w;
    work_fn work = NULL;
    peak_memory(1);
    mhla_status status = make(&w, s, dtype, b->context, &work);
    bench_row row = {.group = group,
                     .shape = s->name,
                     .variant = variant,
                     .dtype = dtype,
                     .images = (double)s->batch,
                     .flops = (s->pass == TRAIN ? 6.0 : 2.0) * (double)s->batch * (double)w.multiply_adds};
    snprintf(row.sizes, sizeof row.sizes, "%lld image%s, %lld tokens%s", (long long)s->batch, s->batch == 1 ? "" : "s",
             (long long)w.tokens, s->pass == TRAIN ? ", training" : "");
    if (status == MHLA_OK && most > 0.0 && bench_estimate(b, row.flops, dtype) > most)
        row.note = NOTE_TOO_LONG;
    else if (status == MHLA_OK)
        status = timing_run(&row.time, work, &w, b->context, dtype, b->seconds, bench_rates(b));
    row.workspace = peak_memory(0);
    if (status == MHLA_OK) bench_report(b, &row);
    drop(&w);
    return status;
}

static int is_named(const bench *b, const char *shape) {
    for (int k = 0; k < b->names; k++)
        if (strcmp(b->name[k], shape) == 0) return 1;
    return 0;
}

/* Of autoencoders ten seconds of arithmetic are measured, or more where the row is named. */
mhla_status bench_models(bench *b) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < MODELS; i++)
        for (int dtype = MHLA_F32; dtype <= MHLA_Q8_0 && status == MHLA_OK; dtype++)
            if (bench_wants(b, "models", models[i].name) && (b->dtypes & 1 << dtype) &&
                (dtype != MHLA_Q8_0 || models[i].pass == INFER))
                status = measure(b, "models", &models[i], "", (mhla_dtype)dtype,
                                 models[i].pass < ENCODE || is_named(b, models[i].name) ? 0.0 : 10.0);
    return status;
}

/* Only where the group or a row of it is named: whole images of 65,536 tokens take seconds, and softmax on them minutes.
 * Ten seconds of arithmetic are measured, or more where the row is named. */
mhla_status bench_resolution(bench *b) {
    static const char *const variants[] = {"mhla", "linear", "softmax"};
    mhla_status status = MHLA_OK;
    if (b->names == 0) return MHLA_OK;
    for (int i = 0; i < RESOLUTIONS; i++) {
        const int named = is_named(b, resolutions[i].name);
        for (int op = OPERATOR_MHLA; op <= OPERATOR_SOFTMAX; op++)
            for (int dtype = MHLA_F32; dtype <= MHLA_Q8_0 && status == MHLA_OK; dtype++) {
                if (!bench_wants(b, "resolution", resolutions[i].name) || !(b->operators & 1 << op)) continue;
                if (!(b->dtypes & 1 << dtype)) continue;
                model_shape s = resolutions[i];
                s.attention = variants[op];
                status = measure(b, "resolution", &s, variants[op], (mhla_dtype)dtype, named ? 0.0 : 10.0);
            }
    }
    return status;
}
