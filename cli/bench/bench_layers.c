/* The benchmark's linear layers: the products of DeiT-T and of the 340M language model with the epilogues that the
 * models put on them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

typedef struct layer_shape {
    const char *name;
    int64_t rows, N, K;
    int bias;
    mhla_activation activation;
    int residual;
    const char *epilogue;
} layer_shape;

static const layer_shape layers[] = {
    {"deit-qkv-256", 256, 576, 192, 0, MHLA_ACT_NONE, 0, "none"},
    {"deit-out-256", 256, 192, 192, 1, MHLA_ACT_NONE, 1, "bias, residual"},
    {"deit-fc1-256", 256, 768, 192, 1, MHLA_ACT_GELU_ERF, 0, "bias, gelu"},
    {"deit-fc2-256", 256, 192, 768, 1, MHLA_ACT_NONE, 1, "bias, residual"},
    {"deit-qkv-8192", 8192, 576, 192, 0, MHLA_ACT_NONE, 0, "none"},
    {"deit-out-8192", 8192, 192, 192, 1, MHLA_ACT_NONE, 1, "bias, residual"},
    {"deit-fc1-8192", 8192, 768, 192, 1, MHLA_ACT_GELU_ERF, 0, "bias, gelu"},
    {"deit-fc2-8192", 8192, 192, 768, 1, MHLA_ACT_NONE, 1, "bias, residual"},
    {"lm-gate-1", 1, 2816, 1024, 0, MHLA_ACT_SILU, 0, "silu"},
    {"lm-gate-8", 8, 2816, 1024, 0, MHLA_ACT_SILU, 0, "silu"},
    {"lm-head-1", 1, 32000, 1024, 0, MHLA_ACT_NONE, 0, "none"},
    {"lm-head-8", 8, 32000, 1024, 0, MHLA_ACT_NONE, 0, "none"},
    {"lm-head-2048", 2048, 32000, 1024, 0, MHLA_ACT_NONE, 0, "none"},
    {"lm-proj-1", 1, 1024, 1024, 0, MHLA_ACT_NONE, 1, "residual"},
    {"lm-proj-8", 8, 1024, 1024, 0, MHLA_ACT_NONE, 1, "residual"},
    {"lm-proj-256", 256, 1024, 1024, 0, MHLA_ACT_NONE, 1, "residual"},
    {"lm-gate-256", 256, 2816, 1024, 0, MHLA_ACT_SILU, 0, "silu"},
    {"lm-proj-2048", 2048, 1024, 1024, 0, MHLA_ACT_NONE, 1, "residual"},
    {"lm-gate-2048", 2048, 2816, 1024, 0, MHLA_ACT_SILU, 0, "silu"},
    {"lm-down-2048", 2048, 1024, 2816, 0, MHLA_ACT_NONE, 1, "residual"},
    {"lm-head-256", 256, 32000, 1024, 0, MHLA_ACT_NONE, 0, "none"},
};
enum { LAYERS = sizeof layers / sizeof *layers };

int bench_layers_has(const char *shape) {
    for (int i = 0; i < LAYERS; i++)
        if (strcmp(layers[i].name, shape) == 0) return 1;
    return 0;
}

typedef struct layer_work {
    mhla_linear_desc desc;
    float *x, *y, *bias, *residual; /* [rows,K], [rows,N], [N], [rows,N] */
    void *w;                        /* [N,K] */
    /* Few rows: as many copies as no cache holds, in turn, because a model has read others before it is back here. */
    mhla_weight **weights;
    int64_t copies, turn;
} layer_work;

enum { FEW_ROWS = 8, COPIES_BYTES = 200000000 };

static mhla_status run(void *arg) {
    layer_work *l = arg;
    const mhla_weight *weight = l->weights[l->turn++ % l->copies];
    return mhla_linear_forward(&l->desc, l->y, l->x, weight);
}

static mhla_status make(layer_work *l, const layer_shape *s, mhla_dtype dtype, const mhla_context *context) {
    uint64_t seed = 1;
    *l = (layer_work){.x = aligned_new((size_t)(s->rows * s->K) * 4),
                      .y = aligned_new((size_t)(s->rows * s->N) * 4),
                      .bias = aligned_new((size_t)s->N * 4),
                      .residual = aligned_new((size_t)(s->rows * s->N) * 4),
                      .w = aligned_new((size_t)(s->N * s->K) * 4)};
    if (s->rows <= FEW_ROWS) l->copies = COPIES_BYTES / (s->N * s->K);
    if (l->copies < 1) l->copies = 1;
    l->weights = calloc((size_t)l->copies, sizeof(*l->weights));
    if (!l->x || !l->y || !l->bias || !l->residual || !l->w || !l->weights) return MHLA_ENOMEM;
    random_fill(l->x, MHLA_F32, s->rows * s->K, &seed);
    random_fill(l->bias, MHLA_F32, s->N, &seed);
    random_fill(l->residual, MHLA_F32, s->rows * s->N, &seed);
    random_fill(l->w, MHLA_F32, s->N * s->K, &seed);
    l->desc = (mhla_linear_desc){.size = sizeof l->desc,
                                 .context = context,
                                 .rows = s->rows,
                                 .bias = s->bias ? l->bias : NULL,
                                 .activation = s->activation,
                                 .residual = s->residual ? l->residual : NULL};
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < l->copies && status == MHLA_OK; i++) {
        status = mhla_weight_create(&l->weights[i], dtype, s->N, s->K);
        if (status == MHLA_OK) status = mhla_weight_update(l->weights[i], l->w, MHLA_F32, 0);
    }
    return status;
}

static void drop(layer_work *l) {
    for (int64_t i = 0; i < l->copies && l->weights; i++) mhla_weight_free(l->weights[i]);
    free(l->weights);
    free(l->x);
    free(l->y);
    free(l->bias);
    free(l->residual);
    free(l->w);
}

mhla_status bench_layers(bench *b) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < LAYERS && status == MHLA_OK; i++)
        for (int dtype = MHLA_F32; dtype <= MHLA_Q8_0 && status == MHLA_OK; dtype++) {
            const layer_shape *s = &layers[i];
            if (!bench_wants(b, "layers", s->name) || !(b->dtypes & 1 << dtype)) continue;
            bench_row row = {.group = "layers",
                             .shape = s->name,
                             .variant = "",
                             .dtype = (mhla_dtype)dtype,
                             .flops = 2.0 * (double)s->rows * (double)s->N * (double)s->K};
            snprintf(row.sizes, sizeof row.sizes, "%lldx%lldx%lld, %s", (long long)s->rows, (long long)s->N,
                     (long long)s->K, s->epilogue);
            layer_work l;
            status = make(&l, s, row.dtype, b->context);
            if (status == MHLA_OK)
                status = timing_run(&row.time, run, &l, b->context, row.dtype, b->seconds, bench_rates(b));
            if (status == MHLA_OK) bench_report(b, &row);
            drop(&l);
        }
    return status;
}
