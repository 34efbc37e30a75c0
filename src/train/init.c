/* Fine-tuning: a model takes the values of another that differs in classes, resolution, attention or names. What fits is
 * taken, a learned table of positions is interpolated, one that a formula makes is made anew, the rest keeps its fresh
 * values; all of it is reported. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/train.h"

typedef void (*note_fn)(void *user, const char *text);

/* ---- Tables of positions ------------------------------------------------------------------------------------------------ */

/* The cubic kernel that images are resized with (a = -0.5). */
static double cubic(double x) {
    x = fabs(x);
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
    return x < 2.0 ? ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 : 0.0;
}

static double linear(double x) { return fmax(1.0 - fabs(x), 0.0); }

/* weights [to,from] of one axis: place i of the new grid lies at the same part of the image as what it is made of in the
 * old one. Padding lies outside of the image on both; a place beyond the old grid takes its edge. */
static double *axis_weights(const mhla_param_grid *to, const mhla_param_grid *from, int axis,
                            double (*kernel)(double)) {
    const int n = to->size[axis], m = from->size[axis];
    const double scale = (m - 2.0 * from->pad[axis]) / (n - 2.0 * to->pad[axis]);
    const double wide = fmax(scale, 1.0); /* shrinking averages over more */
    double *w = calloc((size_t)n * (size_t)m, sizeof *w);
    for (int i = 0; w && i < n; i++) {
        double centre = (i + 0.5 - to->pad[axis]) * scale + from->pad[axis];
        if (centre < 0.0) centre = 0.5;
        if (centre > m) centre = m - 0.5;
        double sum = 0.0;
        for (int j = 0; j < m; j++) sum += w[i * m + j] = kernel((j + 0.5 - centre) / wide);
        for (int j = 0; j < m; j++) w[i * m + j] /= sum;
    }
    return w;
}

/* [1, c + h*w, D] -> [1, C + H*W, D]; a class token's row is taken as it is, or left out. */
static mhla_status interpolate(mhla_param *p, const mhla_param *q) {
    const mhla_param_grid *to = &p->grid, *from = &q->grid;
    const int H = to->size[0], W = to->size[1], h = from->size[0], w = from->size[1], D = (int)p->shape[2];
    double *rows = axis_weights(to, from, 0, cubic), *columns = axis_weights(to, from, 1, cubic);
    if (rows == NULL || columns == NULL) {
        free(rows);
        free(columns);
        return mhla_fail(MHLA_ENOMEM, "no memory for a position embedding");
    }
    if (to->first && from->first) memcpy(p->data, q->data, (size_t)D * sizeof *p->data);
    float *data = p->data + (int64_t)to->first * D;
    const float *old = q->data + (int64_t)from->first * D;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int d = 0; d < D; d++) {
                double sum = 0.0;
                for (int i = 0; i < h; i++) {
                    double part = 0.0;
                    if (rows[y * h + i] == 0.0) continue;
                    for (int j = 0; j < w; j++) part += columns[x * w + j] * (double)old[((int64_t)i * w + j) * D + d];
                    sum += rows[y * h + i] * part;
                }
                data[((int64_t)y * W + x) * D + d] = (float)sum;
            }
    free(rows);
    free(columns);
    return MHLA_OK;
}

/* ---- Mixing matrices ----------------------------------------------------------------------------------------------------- */

/* [new blocks, old blocks]: a block between old ones is made of them by its distance, a block that covers several of their
 * mean. A class token's block stands for itself. */
static double *block_weights(const mhla_param_grid *to, const mhla_param_grid *from) {
    const int first = to->first, M = first + to->size[0] * to->size[1], N = first + from->size[0] * from->size[1];
    double *rows = axis_weights(to, from, 0, linear), *columns = axis_weights(to, from, 1, linear);
    double *w = rows && columns ? calloc((size_t)M * (size_t)N, sizeof *w) : NULL;
    for (int i = 0; w && i < M; i++)
        for (int j = 0; j < N; j++) {
            const int p = i - first, q = j - first, W = to->size[1], v = from->size[1];
            w[i * N + j] = i < first || j < first ? (double)(i == j)
                                                  : rows[p / W * from->size[0] + q / v] * columns[p % W * v + q % v];
        }
    free(rows);
    free(columns);
    return w;
}

/* m' = w m w^T: what a block took from another one it takes from each part of it, so that finer blocks mean the same. */
static mhla_status remix(mhla_param *p, const mhla_param *q) {
    const int64_t M = p->shape[0], N = q->shape[0];
    double *w = block_weights(&p->grid, &q->grid), *half = w ? calloc((size_t)(M * N), sizeof *half) : NULL;
    for (int64_t i = 0; half && i < M; i++)
        for (int64_t k = 0; k < N; k++)
            for (int64_t b = 0; b < N; b++) half[i * N + b] += w[i * N + k] * (double)q->data[k * N + b];
    for (int64_t i = 0; half && i < M; i++)
        for (int64_t j = 0; j < M; j++) {
            double sum = 0.0;
            for (int64_t b = 0; b < N; b++) sum += half[i * N + b] * w[j * N + b];
            p->data[i * M + j] = (float)sum;
        }
    const mhla_status status = half ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %s", p->name);
    free(w);
    free(half);
    return status;
}

/* ---- Names --------------------------------------------------------------------------------------------------------------- */

/* One name for a layer, whichever its architecture, attention or file gives it. */
static const char *common_name(char name[256], const char *given) {
    static const char *const pairs[][2] = {
        {"model.embed_tokens.", "model.embeddings."},
        {".input_layernorm.", ".attn_norm."},
        {".post_attention_layernorm.", ".mlp_norm."},
        {".self_attn.", ".attn."},
        {".attn.qkvo.", ".attn.qkv."},
        {".attn.to_qkv.", ".attn.qkv."},
        {".attn.to_out.0.", ".attn.proj."},
    };
    snprintf(name, 256, "%s", strncmp(given, "fc_norm.", 8) == 0 ? given + 3 : given);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char rest[256];
        char *at = strstr(name, pairs[i][0]);
        if (at == NULL) continue;
        snprintf(rest, sizeof rest, "%s", at + strlen(pairs[i][0]));
        snprintf(at, 256 - (size_t)(at - name), "%s%s", pairs[i][1], rest);
    }
    return name;
}

/* The parameter of `from` that stands for `name`; its own name first, because a model may have both of a pair. */
static const mhla_param *find(const mhla_model *from, const char *name) {
    const mhla_param *same = mhla_params_find(from->params, name);
    char wanted[256], other[256];
    common_name(wanted, name);
    for (int i = 0; i < mhla_params_count(from->params) && same == NULL; i++) {
        const mhla_param *p = mhla_params_at(from->params, i);
        if (strcmp(common_name(other, p->name), wanted) == 0) same = p;
    }
    /* an output matrix of its own begins as the embedding of a model that ties them */
    if (same == NULL && from->architecture->decoder && strcmp(wanted, "lm_head.weight") == 0)
        same = mhla_text_output(from);
    return same;
}

/* Names for people: "blocks.0.attn.x", "blocks.1.attn.x", ... are reported once, as "blocks.*.attn.x". */
typedef struct name_list {
    char text[768];
    int count;
} name_list;

static void list_add(name_list *l, const char *name) {
    static const char *const starts[] = {"transformer_blocks.", "blocks.", "model.layers.", "backbone.layers."};
    char general[256], quoted[264];
    snprintf(general, sizeof general, "%s", name);
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        const size_t n = strlen(starts[i]);
        const char *at = strstr(name, starts[i]),
                   *dot = at && (at == name || at[-1] == '.') ? strchr(at + n, '.') : NULL;
        if (dot) snprintf(general, sizeof general, "%.*s*%s", (int)(at + n - name), name, dot);
    }
    snprintf(quoted, sizeof quoted, " %s,", general);
    l->count++;
    if (strstr(l->text, quoted)) return;
    const size_t used = strlen(l->text);
    if (used + strlen(quoted) + 8 < sizeof l->text)
        strcat(l->text, quoted);
    else if (used < 4 || strcmp(l->text + used - 4, " ..,") != 0)
        strcat(l->text, " ..,");
}

static void list_report(const name_list *l, const char *what, note_fn note, void *user) {
    char text[900];
    if (l->count == 0) return;
    snprintf(text, sizeof text, "%s (%d):%s", what, l->count, l->text);
    text[strlen(text) - 1] = '\0'; /* the last comma */
    note(user, text);
}

/* ---- The work ------------------------------------------------------------------------------------------------------------ */

static int same_shape(const mhla_param *a, const mhla_param *b) {
    int64_t before = 1, after = 1; /* a 1x1 convolution is a linear layer: ones at the end count for nothing */
    for (int i = 0; i < a->dims || i < b->dims; i++) {
        before = i < a->dims ? a->shape[i] : 1;
        after = i < b->dims ? b->shape[i] : 1;
        if (before != after) return 0;
    }
    return 1;
}

static int same_grid(const mhla_param *a, const mhla_param *b) {
    const mhla_param_grid *x = &a->grid, *y = &b->grid;
    return x->first == y->first && x->size[0] == y->size[0] && x->size[1] == y->size[1] && x->pad[0] == y->pad[0] &&
           x->pad[1] == y->pad[1];
}

/* q, k and v of a projection that has a gate as its fourth part, or for one that has: the first three parts are taken. */
static int same_parts(const mhla_param *p, const mhla_param *q) {
    const int64_t mine = p->shape[0], other = q->shape[0];
    return strstr(p->name, "qkv") && (3 * mine == 4 * other || 4 * mine == 3 * other) &&
           p->count / mine == q->count / other;
}

typedef struct adoption {
    name_list fresh, shapes, unused, parts, mixed;
    int taken, formula; /* tensors; among them those that a formula makes */
    note_fn note;
    void *user;
} adoption;

static mhla_status take(adoption *a, mhla_param *p, const mhla_param *q) {
    char text[160];
    const int places = p->grid.size[0] && q->grid.size[0], mix = places && (p->flags & q->flags & MHLA_PARAM_MIX);
    const int grid = places && !mix && p->shape[2] == q->shape[2];
    if (p->initial.kind == MHLA_INITIAL_CALL && (p->flags & MHLA_PARAM_FROZEN)) {
        snprintf(text, sizeof text, "%.100s: computed for this size", p->name);
        if (p->count != q->count) a->note(a->user, text);
        a->taken++;
        a->formula++;
        return MHLA_OK;
    }
    if (grid && !same_grid(p, q)) {
        MHLA_TRY(interpolate(p, q));
        snprintf(text, sizeof text, "%.60s: interpolated from %lld to %lld positions", p->name, (long long)q->shape[1],
                 (long long)p->shape[1]);
        a->note(a->user, text);
    } else if (mix && p->grid.first == q->grid.first && !same_grid(p, q)) {
        MHLA_TRY(remix(p, q));
        snprintf(text, sizeof text, "%.80s from %d x %d to %d x %d", p->name, q->grid.size[0], q->grid.size[1],
                 p->grid.size[0], p->grid.size[1]);
        list_add(&a->mixed, text);
    } else if (same_shape(p, q)) {
        memcpy(p->data, q->data, (size_t)p->count * sizeof *p->data);
    } else if (same_parts(p, q)) {
        memcpy(p->data, q->data, (size_t)(p->count < q->count ? p->count : q->count) * sizeof *p->data);
        list_add(&a->parts, p->name);
    } else {
        list_add(&a->shapes, p->name);
        return MHLA_OK;
    }
    mhla_param_touch(p);
    a->taken++;
    return MHLA_OK;
}

/* Classifiers of images of another size. */
static void note_size(const adoption *a, const mhla_model *model, const mhla_model *from) {
    mhla_classifier_info to, was;
    char text[160];
    if (!model->architecture->classifier || !from->architecture->classifier) return;
    model->architecture->classifier->describe(model->net, &to);
    from->architecture->classifier->describe(from->net, &was);
    if (to.height == was.height && to.width == was.width) return;
    snprintf(text, sizeof text, "images: from %d x %d to %d x %d pixels", was.height, was.width, to.height, to.width);
    a->note(a->user, text);
}

static mhla_status adopt(adoption *a, mhla_model *model, const mhla_model *from, const char *path) {
    const int n = mhla_params_count(model->params), others = mhla_params_count(from->params);
    char *used = calloc((size_t)others + 1, 1), text[300];
    mhla_status status = used ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of tensors");
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        mhla_param *p = mhla_params_at(model->params, i);
        const mhla_param *q = find(from, p->name);
        for (int k = 0; k < others && q; k++) used[k] |= mhla_params_at(from->params, k) == q;
        if (q)
            status = take(a, p, q);
        else
            list_add(&a->fresh, p->name);
    }
    for (int k = 0; k < others && status == MHLA_OK; k++)
        if (!used[k]) list_add(&a->unused, mhla_params_at(from->params, k)->name);
    free(used);
    MHLA_TRY(status);
    if (a->taken == a->formula) return mhla_fail(MHLA_EDATA, "%s: not one tensor fits this model", path);
    snprintf(text, sizeof text, "weights from %.200s: %d of %d tensors", path, a->taken, n);
    a->note(a->user, text);
    note_size(a, model, from);
    list_report(&a->fresh, "new, initialised", a->note, a->user);
    list_report(&a->mixed, "mixing matrices, interpolated to the new blocks", a->note, a->user);
    list_report(&a->parts, "of q, k and v only, without the gate", a->note, a->user);
    list_report(&a->shapes, "of another shape, initialised", a->note, a->user);
    list_report(&a->unused, "not used", a->note, a->user);
    return MHLA_OK;
}

mhla_status mhla_model_adopt(mhla_model *model, const char *path, note_fn note, void *user) {
    adoption a = {.note = note, .user = user};
    mhla_model *from = NULL;
    MHLA_TRY(mhla_model_open_as(&from, path, &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = "float32"}));
    const mhla_architecture *same = from->architecture;
    mhla_model_info info = {.size = sizeof info};
    mhla_status status = mhla_model_query(from, &info);
    if (status == MHLA_OK && info.note) note(user, info.note);
    if (status == MHLA_OK && same == model->architecture && same->adapt) status = same->adapt(from, model);
    if (status == MHLA_OK) status = adopt(&a, model, from, from->weights ? from->weights : path);
    mhla_model_free(from);
    return status;
}

mhla_status mhla_params_freeze(mhla_params *params, const json_t *patterns) {
    for (size_t k = 0; k < json_array_size(patterns); k++) {
        const char *pattern = json_string_value(json_array_get(patterns, k));
        int found = 0;
        for (int i = 0; i < mhla_params_count(params); i++) {
            mhla_param *p = mhla_params_at(params, i);
            if (fnmatch(pattern, p->name, 0) != 0) continue;
            p->flags |= MHLA_PARAM_FROZEN;
            found = 1;
        }
        if (!found)
            return mhla_fail(MHLA_EINVAL, "train.freeze: no parameter is called like \"%s\"; mhla info lists them",
                             pattern);
    }
    return MHLA_OK;
}
