/* The network as its picture shows it, tower by tower. Maps are [height,width,channels], of one picture at a time; a convolution gathers the field of
 * each output into a row, [ky][kx][channel], some rows at a time, and is a packed product of those rows; towers write side by side
 * into the map that they make together. */
#include "measure/inception.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"

enum {
    LAYERS = 94,
    FIELD_FLOATS = 256 * 1024, /* gathered at a time: they stay in cache */
    CLASSES = 1008
};

/* ---- The layers, in the order of use ------------------------------------------------------------------------------- */

typedef struct layer {
    char name[48], torch[48]; /* after "net.layers."; in pytorch-fid's file */
    int out, in, kh, kw, stride, pad_h, pad_w;
    mhla_weight *weight; /* [out, kh*kw*in] */
    float *bias;         /* [out] */
} layer;

struct mhla_inception {
    layer layers[LAYERS];
    int count;
    mhla_weight *head; /* [1008,2048], or NULL */
    float *head_bias;
    const mhla_context *context;
    mhla_context *alone; /* of one thread: pictures are dealt out, not layers */
    float *memory;       /* [threads]: maps and fields of a picture */
    int threads;
};

static void add(mhla_inception *m, const char *block, const char *name, const char *torch_block, const char *torch,
                layer l) {
    layer *to = &m->layers[m->count++];
    *to = l;
    snprintf(to->name, sizeof to->name, "%s%s", block, name);
    snprintf(to->torch, sizeof to->torch, "%s%s", torch_block, torch);
}

/* {out, in, kh, kw}; padding keeps the size where `same`, stride 2 has none */
#define LAYER(o, i, h, w, s, same)                                                                                     \
    (layer) {                                                                                                          \
        .out = (o), .in = (i), .kh = (h), .kw = (w), .stride = (s), .pad_h = (same) ? (h) / 2 : 0,                     \
        .pad_w = (same) ? (w) / 2 : 0                                                                                  \
    }

static void add_a(mhla_inception *m, const char *b, const char *t, int in, int pool) {
    add(m, b, "conv", t, "branch1x1", LAYER(64, in, 1, 1, 1, 1));
    add(m, b, "tower.conv", t, "branch5x5_1", LAYER(48, in, 1, 1, 1, 1));
    add(m, b, "tower.conv_1", t, "branch5x5_2", LAYER(64, 48, 5, 5, 1, 1));
    add(m, b, "tower_1.conv", t, "branch3x3dbl_1", LAYER(64, in, 1, 1, 1, 1));
    add(m, b, "tower_1.conv_1", t, "branch3x3dbl_2", LAYER(96, 64, 3, 3, 1, 1));
    add(m, b, "tower_1.conv_2", t, "branch3x3dbl_3", LAYER(96, 96, 3, 3, 1, 1));
    add(m, b, "tower_2.conv", t, "branch_pool", LAYER(pool, in, 1, 1, 1, 1));
}
static void add_b(mhla_inception *m, const char *b, const char *t) {
    add(m, b, "conv", t, "branch3x3", LAYER(384, 288, 3, 3, 2, 0));
    add(m, b, "tower.conv", t, "branch3x3dbl_1", LAYER(64, 288, 1, 1, 1, 1));
    add(m, b, "tower.conv_1", t, "branch3x3dbl_2", LAYER(96, 64, 3, 3, 1, 1));
    add(m, b, "tower.conv_2", t, "branch3x3dbl_3", LAYER(96, 96, 3, 3, 2, 0));
}
static void add_c(mhla_inception *m, const char *b, const char *t, int c) {
    add(m, b, "conv", t, "branch1x1", LAYER(192, 768, 1, 1, 1, 1));
    add(m, b, "tower.conv", t, "branch7x7_1", LAYER(c, 768, 1, 1, 1, 1));
    add(m, b, "tower.conv_1", t, "branch7x7_2", LAYER(c, c, 1, 7, 1, 1));
    add(m, b, "tower.conv_2", t, "branch7x7_3", LAYER(192, c, 7, 1, 1, 1));
    add(m, b, "tower_1.conv", t, "branch7x7dbl_1", LAYER(c, 768, 1, 1, 1, 1));
    add(m, b, "tower_1.conv_1", t, "branch7x7dbl_2", LAYER(c, c, 7, 1, 1, 1));
    add(m, b, "tower_1.conv_2", t, "branch7x7dbl_3", LAYER(c, c, 1, 7, 1, 1));
    add(m, b, "tower_1.conv_3", t, "branch7x7dbl_4", LAYER(c, c, 7, 1, 1, 1));
    add(m, b, "tower_1.conv_4", t, "branch7x7dbl_5", LAYER(192, c, 1, 7, 1, 1));
    add(m, b, "tower_2.conv", t, "branch_pool", LAYER(192, 768, 1, 1, 1, 1));
}
static void add_d(mhla_inception *m, const char *b, const char *t) {
    add(m, b, "tower.conv", t, "branch3x3_1", LAYER(192, 768, 1, 1, 1, 1));
    add(m, b, "tower.conv_1", t, "branch3x3_2", LAYER(320, 192, 3, 3, 2, 0));
    add(m, b, "tower_1.conv", t, "branch7x7x3_1", LAYER(192, 768, 1, 1, 1, 1));
    add(m, b, "tower_1.conv_1", t, "branch7x7x3_2", LAYER(192, 192, 1, 7, 1, 1));
    add(m, b, "tower_1.conv_2", t, "branch7x7x3_3", LAYER(192, 192, 7, 1, 1, 1));
    add(m, b, "tower_1.conv_3", t, "branch7x7x3_4", LAYER(192, 192, 3, 3, 2, 0));
}
static void add_e(mhla_inception *m, const char *b, const char *t, int in) {
    add(m, b, "conv", t, "branch1x1", LAYER(320, in, 1, 1, 1, 1));
    add(m, b, "tower_conv", t, "branch3x3_1", LAYER(384, in, 1, 1, 1, 1));
    add(m, b, "tower_mixed_conv", t, "branch3x3_2a", LAYER(384, 384, 1, 3, 1, 1));
    add(m, b, "tower_mixed_conv_1", t, "branch3x3_2b", LAYER(384, 384, 3, 1, 1, 1));
    add(m, b, "tower_1_conv", t, "branch3x3dbl_1", LAYER(448, in, 1, 1, 1, 1));
    add(m, b, "tower_1_conv_1", t, "branch3x3dbl_2", LAYER(384, 448, 3, 3, 1, 1));
    add(m, b, "tower_1_mixed_conv", t, "branch3x3dbl_3a", LAYER(384, 384, 1, 3, 1, 1));
    add(m, b, "tower_1_mixed_conv_1", t, "branch3x3dbl_3b", LAYER(384, 384, 3, 1, 1, 1));
    add(m, b, "tower_2_conv", t, "branch_pool", LAYER(192, in, 1, 1, 1, 1));
}

static void list_layers(mhla_inception *m) {
    add(m, "", "conv", "", "Conv2d_1a_3x3", LAYER(32, 3, 3, 3, 2, 0));
    add(m, "", "conv_1", "", "Conv2d_2a_3x3", LAYER(32, 32, 3, 3, 1, 0));
    add(m, "", "conv_2", "", "Conv2d_2b_3x3", LAYER(64, 32, 3, 3, 1, 1));
    add(m, "", "conv_3", "", "Conv2d_3b_1x1", LAYER(80, 64, 1, 1, 1, 0));
    add(m, "", "conv_4", "", "Conv2d_4a_3x3", LAYER(192, 80, 3, 3, 1, 0));
    add_a(m, "mixed.", "Mixed_5b.", 192, 32);
    add_a(m, "mixed_1.", "Mixed_5c.", 256, 64);
    add_a(m, "mixed_2.", "Mixed_5d.", 288, 64);
    add_b(m, "mixed_3.", "Mixed_6a.");
    add_c(m, "mixed_4.", "Mixed_6b.", 128);
    add_c(m, "mixed_5.", "Mixed_6c.", 160);
    add_c(m, "mixed_6.", "Mixed_6d.", 160);
    add_c(m, "mixed_7.", "Mixed_6e.", 192);
    add_d(m, "mixed_8.", "Mixed_7a.");
    add_e(m, "mixed_9.", "Mixed_7b.", 1280);
    add_e(m, "mixed_10.", "Mixed_7c.", 2048);
}

/* ---- Loading -------------------------------------------------------------------------------------------------------- */

static const char first_name[] = "net.layers.conv.weight", first_torch[] = "Conv2d_1a_3x3.conv.weight";

int mhla_inception_fits(const mhla_safetensors *file) {
    return mhla_safetensors_find(file, first_name) || mhla_safetensors_find(file, first_torch);
}

static mhla_status load_vector(float *to, const mhla_safetensors *file, const char *format, const char *name, int n) {
    char full[128];
    snprintf(full, sizeof full, format, name);
    return mhla_safetensors_load(to, file, full, 1, (const int64_t[]){n});
}

/* Weight and normalisation of one layer: y = (w x - mean) factor / sqrt(var + 0.001) + beta. */
static mhla_status load_layer(layer *l, const mhla_safetensors *file, int torch, float *raw, float *turned) {
    float vectors[4][512]; /* factor, beta, mean, variance */
    char full[128];
    const int taps = l->kh * l->kw;
    snprintf(full, sizeof full, torch ? "%s.conv.weight" : "net.layers.%s.weight", torch ? l->torch : l->name);
    MHLA_TRY(mhla_safetensors_load(raw, file, full, 4, (const int64_t[]){l->out, l->in, l->kh, l->kw}));
    if (torch) {
        MHLA_TRY(load_vector(vectors[0], file, "%s.bn.weight", l->torch, l->out));
        MHLA_TRY(load_vector(vectors[1], file, "%s.bn.bias", l->torch, l->out));
        MHLA_TRY(load_vector(vectors[2], file, "%s.bn.running_mean", l->torch, l->out));
        MHLA_TRY(load_vector(vectors[3], file, "%s.bn.running_var", l->torch, l->out));
    } else {
        for (int o = 0; o < l->out; o++) vectors[0][o] = 1.0f;
        MHLA_TRY(load_vector(vectors[1], file, "net.layers.%s.beta", l->name, l->out));
        MHLA_TRY(load_vector(vectors[2], file, "net.layers.%s.mean", l->name, l->out));
        MHLA_TRY(load_vector(vectors[3], file, "net.layers.%s.var", l->name, l->out));
    }
    l->bias = malloc((size_t)l->out * sizeof *l->bias);
    if (l->bias == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %s", full);
    for (int o = 0; o < l->out; o++) {
        const double factor = vectors[0][o] / sqrt((double)vectors[3][o] + 0.001);
        if (!isfinite(factor))
            return mhla_fail(MHLA_EDATA, "%s: %s: the variance of output %d is %g", mhla_safetensors_path(file), full,
                             o, vectors[3][o]);
        l->bias[o] = (float)(vectors[1][o] - vectors[2][o] * factor);
        for (int i = 0; i < l->in; i++)
            for (int k = 0; k < taps; k++)
                turned[((size_t)o * (size_t)taps + (size_t)k) * (size_t)l->in + (size_t)i] =
                    (float)(raw[((size_t)o * (size_t)l->in + (size_t)i) * (size_t)taps + (size_t)k] * factor);
    }
    return mhla_weight_pack(&l->weight, turned, MHLA_F32, l->out, (int64_t)taps * l->in, 0);
}

static mhla_status load_head(mhla_inception *m, const mhla_safetensors *file, float *raw) {
    if (mhla_safetensors_find(file, "fc.weight") == NULL) return MHLA_OK;
    m->head_bias = calloc(CLASSES, sizeof *m->head_bias);
    if (m->head_bias == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for fc.bias");
    MHLA_TRY(mhla_safetensors_load(raw, file, "fc.weight", 2, (const int64_t[]){CLASSES, MHLA_INCEPTION_FEATURES}));
    MHLA_TRY(load_vector(m->head_bias, file, "%s", "fc.bias", CLASSES));
    return mhla_weight_pack(&m->head, raw, MHLA_F32, CLASSES, MHLA_INCEPTION_FEATURES, 0);
}

mhla_status mhla_inception_open(mhla_inception **model, const mhla_safetensors *file, const mhla_context *context) {
    const int torch = mhla_safetensors_find(file, first_name) == NULL;
    *model = NULL;
    mhla_inception *m = calloc(1, sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the Inception network");
    m->context = context;
    list_layers(m);
    size_t most = (size_t)CLASSES * MHLA_INCEPTION_FEATURES;
    for (int i = 0; i < m->count; i++) {
        const layer *l = &m->layers[i];
        const size_t n = (size_t)l->out * (size_t)l->in * (size_t)(l->kh * l->kw);
        if (n > most) most = n;
    }
    float *raw = malloc(2 * most * sizeof *raw);
    mhla_status status = raw ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the Inception network");
    if (status == MHLA_OK)
        status = mhla_context_create(&m->alone, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1});
    for (int i = 0; i < m->count && status == MHLA_OK; i++)
        status = load_layer(&m->layers[i], file, torch, raw, raw + most);
    if (status == MHLA_OK) status = load_head(m, file, raw);
    free(raw);
    if (status != MHLA_OK) {
        mhla_inception_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_inception_free(mhla_inception *m) {
    if (m == NULL) return;
    for (int i = 0; i < m->count; i++) {
        mhla_weight_free(m->layers[i].weight);
        free(m->layers[i].bias);
    }
    mhla_weight_free(m->head);
    free(m->head_bias);
    mhla_free(m->memory);
    mhla_context_free(m->alone);
    free(m);
}

int mhla_inception_classes(const mhla_inception *m) { return m->head ? CLASSES : 0; }

/* ---- Maps and what is done with them ----------------------------------------------------------------------------------- */

/* [H,W,C], from pixel to pixel `ld` floats: a map may be some channels of a wider one. */
typedef struct map {
    float *x;
    int H, W, C, ld;
} map;

typedef struct run {
    mhla_inception *net;
    const mhla_context *context;
    int next;       /* layer */
    float *maps[4]; /* the input, the output and two between them */
    float *fields;
    mhla_status status;
} run;

typedef struct gather {
    const layer *l;
    map in, out;
    int64_t first; /* row of the outputs */
    float *fields;
} gather;

/* The field of one output. Where it lies inside, a line of it is one stretch of the map. */
static void gather_task(void *arg, int64_t task, int worker) {
    const gather *g = arg;
    const layer *l = g->l;
    (void)worker;
    const int row = (int)(g->first + task);
    const int y = row / g->out.W * l->stride - l->pad_h, x = row % g->out.W * l->stride - l->pad_w;
    const size_t C = (size_t)l->in;
    float *to = g->fields + (size_t)task * C * (size_t)(l->kh * l->kw);
    for (int ky = 0; ky < l->kh; ky++) {
        const int h = y + ky;
        const float *line = g->in.x + ((int64_t)h * g->in.W + x) * g->in.ld;
        if (h < 0 || h >= g->in.H) {
            memset(to, 0, C * (size_t)l->kw * sizeof *to);
        } else if (x >= 0 && x + l->kw <= g->in.W && (size_t)g->in.ld == C) {
            memcpy(to, line, C * (size_t)l->kw * sizeof *to);
        } else {
            for (int kx = 0; kx < l->kw; kx++) {
                if (x + kx < 0 || x + kx >= g->in.W)
                    memset(to + (size_t)kx * C, 0, C * sizeof *to);
                else
                    memcpy(to + (size_t)kx * C, line + (int64_t)kx * g->in.ld, C * sizeof *to);
            }
        }
        to += C * (size_t)l->kw;
    }
}

enum { RELU_ROWS = 64 };
typedef struct rectify {
    float *y;
    int64_t rows;
    int cols, ld;
} rectify;

static void relu_task(void *arg, int64_t task, int worker) {
    const rectify *r = arg;
    (void)worker;
    const int64_t begin = task * RELU_ROWS, end = begin + RELU_ROWS < r->rows ? begin + RELU_ROWS : r->rows;
    for (int64_t i = begin; i < end; i++)
        for (int j = 0; j < r->cols; j++) {
            float *y = r->y + i * r->ld + j;
            *y = *y > 0.0f ? *y : 0.0f;
        }
}

/* The next layer, from `in` into memory of the given width; without one (to NULL) nothing is done. */
static map conv(run *r, float *to, int ld, map in) {
    const layer *l = &r->net->layers[r->next++];
    map out = {to, (in.H + 2 * l->pad_h - l->kh) / l->stride + 1, (in.W + 2 * l->pad_w - l->kw) / l->stride + 1, l->out,
               ld ? ld : l->out};
    const int64_t rows = (int64_t)out.H * out.W, K = (int64_t)l->in * l->kh * l->kw;
    const int plain = l->kh == 1 && l->kw == 1 && l->stride == 1;
    const int64_t piece = plain ? rows : FIELD_FLOATS / K;
    for (int64_t at = 0; at < rows && r->status == MHLA_OK; at += piece) {
        const int64_t count = rows - at < piece ? rows - at : piece;
        gather g = {.l = l, .in = in, .out = out, .first = at, .fields = r->fields};
        if (!plain) mhla_parallel(r->context, count, gather_task, &g);
        const mhla_linear_desc d = {.size = sizeof d,
                                    .context = r->context,
                                    .rows = count,
                                    .ldx = plain ? in.ld : K,
                                    .ldy = out.ld,
                                    .bias = l->bias};
        rectify relu = {out.x + at * out.ld, count, l->out, out.ld};
        r->status = mhla_linear_forward(&d, relu.y, plain ? in.x + at * in.ld : r->fields, l->weight);
        if (r->status == MHLA_OK) mhla_parallel(r->context, (count + RELU_ROWS - 1) / RELU_ROWS, relu_task, &relu);
    }
    return out;
}

typedef struct pooling {
    map in, out;
    int stride, pad, average;
} pooling;

/* 3 x 3: one row. What lies outside does not count. */
static void pool_task(void *arg, int64_t task, int worker) {
    const pooling *p = arg;
    (void)worker;
    const int y0 = (int)task * p->stride - p->pad;
    for (int ox = 0; ox < p->out.W; ox++) {
        const int x0 = ox * p->stride - p->pad;
        float *to = p->out.x + (task * p->out.W + ox) * p->out.ld;
        int taken = 0;
        for (int y = y0 < 0 ? 0 : y0; y < y0 + 3 && y < p->in.H; y++)
            for (int x = x0 < 0 ? 0 : x0; x < x0 + 3 && x < p->in.W; x++) {
                const float *from = p->in.x + ((int64_t)y * p->in.W + x) * p->in.ld;
                if (taken++ == 0)
                    memcpy(to, from, (size_t)p->in.C * sizeof *to);
                else if (p->average)
                    for (int c = 0; c < p->in.C; c++) to[c] += from[c];
                else
                    for (int c = 0; c < p->in.C; c++) to[c] = to[c] > from[c] ? to[c] : from[c];
            }
        if (p->average)
            for (int c = 0; c < p->in.C; c++) to[c] /= (float)taken;
    }
}

static map pool(run *r, float *to, int ld, map in, int stride, int average) {
    pooling p = {.in = in, .stride = stride, .pad = stride == 1, .average = average};
    p.out = (map){to, (in.H + 2 * p.pad - 3) / stride + 1, (in.W + 2 * p.pad - 3) / stride + 1, in.C, ld ? ld : in.C};
    mhla_parallel(r->context, p.out.H, pool_task, &p);
    return p.out;
}

/* ---- The blocks: each returns the map that its towers made side by side ------------------------------------------------ */

static map block_a(run *r, map x, float *y, int channels) {
    float *a = r->maps[2], *b = r->maps[3];
    conv(r, y, channels, x);
    conv(r, y + 64, channels, conv(r, a, 0, x));
    map tower = conv(r, a, 0, x);
    tower = conv(r, b, 0, tower);
    conv(r, y + 128, channels, tower);
    conv(r, y + 224, channels, pool(r, a, 0, x, 1, 1));
    return (map){y, x.H, x.W, channels, channels};
}

static map block_b(run *r, map x, float *y) {
    float *a = r->maps[2], *b = r->maps[3];
    const map first = conv(r, y, 768, x);
    map tower = conv(r, a, 0, x);
    tower = conv(r, b, 0, tower);
    conv(r, y + 384, 768, tower);
    pool(r, y + 480, 768, x, 2, 0);
    return (map){y, first.H, first.W, 768, 768};
}

static map block_c(run *r, map x, float *y) {
    float *a = r->maps[2], *b = r->maps[3];
    conv(r, y, 768, x);
    map tower = conv(r, a, 0, x);
    tower = conv(r, b, 0, tower);
    conv(r, y + 192, 768, tower);
    tower = conv(r, a, 0, x);
    tower = conv(r, b, 0, tower);
    tower = conv(r, a, 0, tower);
    tower = conv(r, b, 0, tower);
    conv(r, y + 384, 768, tower);
    conv(r, y + 576, 768, pool(r, a, 0, x, 1, 1));
    return (map){y, x.H, x.W, 768, 768};
}

static map block_d(run *r, map x, float *y) {
    float *a = r->maps[2], *b = r->maps[3];
    const map first = conv(r, y, 1280, conv(r, a, 0, x));
    map tower = conv(r, a, 0, x);
    tower = conv(r, b, 0, tower);
    tower = conv(r, a, 0, tower);
    conv(r, y + 320, 1280, tower);
    pool(r, y + 512, 1280, x, 2, 0);
    return (map){y, first.H, first.W, 1280, 1280};
}

static map block_e(run *r, map x, float *y, int average) {
    float *a = r->maps[2], *b = r->maps[3];
    conv(r, y, 2048, x);
    map tower = conv(r, a, 0, x);
    conv(r, y + 320, 2048, tower);
    conv(r, y + 704, 2048, tower);
    tower = conv(r, b, 0, conv(r, a, 0, x));
    conv(r, y + 1088, 2048, tower);
    conv(r, y + 1472, 2048, tower);
    conv(r, y + 1856, 2048, pool(r, a, 0, x, 1, average));
    return (map){y, x.H, x.W, 2048, 2048};
}

/* ---- All of it ------------------------------------------------------------------------------------------------------------ */

/* The largest maps of a picture: after the third layer; between the layers of towers, or pooled for them. */
enum { MAP = 147 * 147 * 64, TOWER = 35 * 35 * 288, MAPS = 2 * MAP + 2 * TOWER };

/* Its spatial features, too, unless `spatial` is NULL. */
static map forward(run *r, float *spatial, const float *pictures) {
    float *p = r->maps[0], *q = r->maps[1];
    map x = {(float *)(uintptr_t)pictures, MHLA_INCEPTION_SIZE, MHLA_INCEPTION_SIZE, 3, 3};
    x = conv(r, p, 0, x);
    x = conv(r, q, 0, x);
    x = conv(r, p, 0, x);
    x = pool(r, q, 0, x, 2, 0);
    x = conv(r, p, 0, x);
    x = conv(r, q, 0, x);
    x = pool(r, p, 0, x, 2, 0);
    x = block_a(r, x, q, 256);
    x = block_a(r, x, p, 288);
    x = block_a(r, x, q, 288);
    x = block_b(r, x, p);
    x = block_c(r, x, q);
    x = block_c(r, x, p);
    x = block_c(r, x, q); /* mixed_6, whose first tower is one convolution */
    for (int i = 0; i < x.H * x.W && spatial; i++)
        memcpy(spatial + (size_t)i * MHLA_INCEPTION_CHANNELS, x.x + (size_t)i * (size_t)x.ld,
               MHLA_INCEPTION_CHANNELS * sizeof *spatial);
    x = block_c(r, x, p);
    x = block_d(r, x, q);
    x = block_e(r, x, p, 1);
    return block_e(r, x, q, 0);
}

typedef struct crowd {
    mhla_inception *net;
    const mhla_context *inner; /* of a picture's layers */
    float *features, *spatial;
    const float *x;
    mhla_status *status; /* [n] */
} crowd;

static void picture_task(void *arg, int64_t i, int worker) {
    const crowd *c = arg;
    float *memory = c->net->memory + (size_t)worker * (MAPS + FIELD_FLOATS),
          *to = c->features + i * MHLA_INCEPTION_FEATURES;
    run r = {.net = c->net,
             .context = c->inner,
             .maps = {memory, memory + MAP, memory + 2 * MAP, memory + 2 * MAP + TOWER},
             .fields = memory + MAPS};
    float *spatial = c->spatial ? c->spatial + i * MHLA_INCEPTION_SPATIAL : NULL;
    const map y = forward(&r, spatial, c->x + i * MHLA_INCEPTION_SIZE * MHLA_INCEPTION_SIZE * 3);
    c->status[i] = r.status;
    memset(to, 0, MHLA_INCEPTION_FEATURES * sizeof *to);
    for (int p = 0; p < y.H * y.W; p++)
        for (int k = 0; k < y.C; k++) to[k] += y.x[p * y.ld + k];
    for (int k = 0; k < y.C; k++) to[k] /= (float)(y.H * y.W);
}

mhla_status mhla_inception_run(mhla_inception *m, float *features, float *spatial, float *logits, const float *x,
                               int64_t n) {
    const int threads = mhla_context_threads(m->context);
    if (m->memory == NULL || m->threads < threads) {
        mhla_free(m->memory);
        m->memory = mhla_alloc((size_t)threads * (MAPS + FIELD_FLOATS) * sizeof(float));
        m->threads = threads;
    }
    mhla_status *all = malloc((size_t)(n + 1) * sizeof *all), status = MHLA_OK;
    if (m->memory == NULL || all == NULL) {
        free(all);
        return mhla_fail(MHLA_ENOMEM, "no memory for the Inception network's maps");
    }
    crowd c = {.net = m,
               .inner = n > 1 ? m->alone : m->context,
               .features = features,
               .spatial = spatial,
               .x = x,
               .status = all};
    mhla_parallel(m->context, n, picture_task, &c);
    for (int64_t i = 0; i < n && status == MHLA_OK; i++)
        if (all[i] != MHLA_OK) status = mhla_fail(all[i], "the Inception network could not run: no memory");
    free(all);
    MHLA_TRY(status);
    if (logits == NULL || m->head == NULL) return MHLA_OK;
    const mhla_linear_desc d = {.size = sizeof d, .context = m->context, .rows = n, .bias = m->head_bias};
    return mhla_linear_forward(&d, logits, features, m->head);
}

/* ---- Pictures ---------------------------------------------------------------------------------------------------------- */

typedef struct between {
    int a, b; /* neighbours */
    float t;  /* how far from a to b */
} between;

static between between_of(int i, int size, mhla_inception_resize how) {
    const double scale = (double)size / MHLA_INCEPTION_SIZE;
    double at = how == MHLA_INCEPTION_TF1 ? i * scale : (i + 0.5) * scale - 0.5;
    if (at < 0.0) at = 0.0;
    const int a = (int)at < size - 1 ? (int)at : size - 1;
    return (between){a, a + 1 < size ? a + 1 : a, (float)(at - a)};
}

void mhla_inception_scale(float *out, const float *in, int height, int width, int channels, mhla_inception_resize how) {
    for (int y = 0; y < MHLA_INCEPTION_SIZE; y++) {
        const between v = between_of(y, height, how);
        for (int x = 0; x < MHLA_INCEPTION_SIZE; x++) {
            const between h = between_of(x, width, how);
            for (int c = 0; c < 3; c++) {
                const int k = channels == 1 ? 0 : c;
#define AT(row, col) in[((size_t)(row) * (size_t)width + (size_t)(col)) * (size_t)channels + (size_t)k]
                const float top = AT(v.a, h.a) * (1.0f - h.t) + AT(v.a, h.b) * h.t;
                const float bottom = AT(v.b, h.a) * (1.0f - h.t) + AT(v.b, h.b) * h.t;
#undef AT
                *out++ = top * (1.0f - v.t) + bottom * v.t;
            }
        }
    }
}

mhla_status mhla_inception_input(float *x, const mhla_image *image, mhla_inception_resize how) {
    const size_t n = (size_t)image->width * (size_t)image->height * (size_t)image->channels;
    float *in = malloc(n * sizeof *in);
    if (in == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an image");
    for (size_t i = 0; i < n; i++)
        in[i] = how == MHLA_INCEPTION_TF1 ? ((float)image->data[i] - 128.0f) / 128.0f
                                          : (float)image->data[i] / 127.5f - 1.0f;
    mhla_inception_scale(x, in, image->height, image->width, image->channels, how);
    free(in);
    return MHLA_OK;
}
