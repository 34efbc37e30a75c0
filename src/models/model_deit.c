/* Image classifiers behind the public handle: their config.json (ours and timm's), the names of classes, images in and
 * logits out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/model.h"

enum { PATH = 4096, PIECE = 2048 }; /* tokens at a time for each thread: what lies between two layers stays in cache */

/* ---- Making ---------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_of_deit(mhla_model **model, const mhla_deit_config *config, char **class_names) {
    *model = NULL;
    mhla_model *m = calloc(1, sizeof *m);
    char *text = mhla_config_text(mhla_deit_config_tree(config), class_names, config->classes);
    if (m == NULL || text == NULL) {
        free(m);
        free(text);
        mhla_names_free(class_names, config->classes);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    }
    m->family = &mhla_family_deit;
    m->config = text;
    m->class_names = class_names;
    const mhla_status status = mhla_deit_create(&m->deit, config);
    if (status != MHLA_OK) {
        mhla_names_free(m->class_names, config->classes);
        m->class_names = NULL;
        mhla_model_free(m);
        return status;
    }
    m->params = mhla_deit_params(m->deit);
    *model = m;
    return MHLA_OK;
}

static mhla_status deit_create(mhla_model **model, const mhla_recipe *given, const char *prefix) {
    mhla_deit_config config;
    MHLA_TRY(mhla_deit_from_recipe(&config, given, prefix));
    return mhla_model_of_deit(model, &config, NULL);
}

static mhla_status deit_init(mhla_model *m, uint64_t seed) { return mhla_deit_init(m->deit, seed); }

static void deit_release(mhla_model *m) {
    if (m->deit) mhla_names_free(m->class_names, mhla_deit_config_of(m->deit)->classes);
    mhla_deit_free(m->deit);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* timm's config.json: {"architecture": "deit_tiny_patch16_224", "num_classes": 1000, "pretrained_cfg": {...}}. */
static mhla_status read_timm(mhla_deit_config *c, const json_t *tree, const char *path) {
    const char *architecture = json_string_value(json_object_get(tree, "architecture"));
    const char *end = architecture ? strstr(architecture, "_patch") : NULL;
    char model[32];
    int patch, side;
    if (end == NULL || end - architecture > 20 || sscanf(end, "_patch%d_%d", &patch, &side) != 2 || patch < 1 ||
        side < 1 || side > 16384)
        return mhla_fail(MHLA_EDATA,
                         "%s: architecture \"%.60s\" is none that is known here (deit_tiny_patch16_224, ...)", path,
                         architecture ? architecture : "");
    snprintf(model, sizeof model, "%.*s", (int)(end - architecture), architecture);
    MHLA_TRY(mhla_deit_preset(c, model, MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_SOFTMAX));
    c->patch = patch;
    c->image[0] = c->image[1] = side;
    int64_t classes = c->classes;
    MHLA_TRY(mhla_json_get_int(&classes, tree, "num_classes", 1, 1000000, path));
    c->classes = (int)classes;
    const json_t *cfg = json_object_get(tree, "pretrained_cfg"), *crop = json_object_get(cfg, "crop_pct");
    if (json_is_number(crop) && json_number_value(crop) > 0.05 && json_number_value(crop) <= 1.0)
        c->crop = json_number_value(crop);
    for (int i = 0; i < 3; i++) {
        const json_t *mean = json_array_get(json_object_get(cfg, "mean"), (size_t)i);
        const json_t *std = json_array_get(json_object_get(cfg, "std"), (size_t)i);
        if (json_is_number(mean)) c->mean[i] = json_number_value(mean);
        if (json_is_number(std) && json_number_value(std) > 0.0) c->deviation[i] = json_number_value(std);
    }
    return mhla_deit_config_check(c);
}

static mhla_status read_tree(mhla_deit_config *config, char ***class_names, const json_t *tree, const char *path) {
    *class_names = NULL;
    *config = (mhla_deit_config){0};
    MHLA_TRY(json_object_get(tree, "architecture") ? read_timm(config, tree, path)
                                                   : mhla_deit_config_read(config, tree, path));
    return mhla_names_read(class_names, json_object_get(tree, "class_names"), config->classes, path);
}

mhla_status mhla_deit_config_load(mhla_deit_config *config, char ***class_names, const char *folder) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *tree = NULL;
    mhla_status status = mhla_json_load(&tree, path);
    *class_names = NULL;
    if (status == MHLA_OK && !json_is_object(tree)) status = mhla_fail(MHLA_EDATA, "%s: no JSON object", path);
    if (status == MHLA_OK) status = read_tree(config, class_names, tree, path);
    json_decref(tree);
    return status;
}

static mhla_status deit_read(mhla_model **model, const json_t *tree, const mhla_safetensors *file,
                             const mhla_open_desc *desc, const char *path) {
    mhla_deit_config config;
    char **names = NULL;
    if (desc && desc->storage && strcmp(desc->storage, "float32") != 0)
        return mhla_fail(MHLA_ENOTSUP, "storage \"%s\": image classifiers are kept as float32", desc->storage);
    MHLA_TRY(read_tree(&config, &names, tree, path));
    const double dim = config.dim, tables = config.attention == MHLA_ATTENTION_FOCUSED ? 1.0 + config.depth : 1.0;
    const double least = config.depth * dim * dim * (4.0 + 2.0 * config.mlp_ratio) + config.classes * dim +
                         tables * (double)mhla_deit_tokens(&config) * dim; /* of positions */
    const mhla_status status = mhla_config_fits(file, least);
    if (status == MHLA_OK) return mhla_model_of_deit(model, &config, names);
    mhla_names_free(names, config.classes);
    return status;
}

static mhla_status deit_load(mhla_model *m, const mhla_safetensors *file) { return mhla_params_load(m->params, file); }

/* Ours have no model_type, timm's an architecture: whatever no other family knows is taken for one. */
static int deit_fits(const json_t *tree) { return json_object_get(tree, "model_type") == NULL; }

/* ---- Looking into it ------------------------------------------------------------------------------------------------ */

static void deit_query(const mhla_model *m, mhla_model_info *info) {
    const mhla_deit_config *c = mhla_deit_config_of(m->deit);
    info->name = c->model;
    info->kind = "classifier";
    info->classes = c->classes;
    info->channels = c->channels;
    info->height = c->image[0];
    info->width = c->image[1];
    info->tokens = mhla_deit_tokens(c);
    info->multiply_adds = mhla_deit_multiply_adds(c, 0);
    info->multiply_adds_paper = mhla_deit_multiply_adds(c, 1);
}

/* ---- Using it --------------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_infer(mhla_model *m, float *logits, const float *images, int64_t n) {
    const mhla_deit_config *c = mhla_deit_config_of(m->deit);
    const int64_t pixels = (int64_t)c->channels * c->image[0] * c->image[1];
    const int64_t most = (int64_t)PIECE * mhla_context_threads(m->context), tokens = mhla_deit_tokens(c);
    const int64_t piece = most > tokens ? most / tokens : 1;
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    for (int64_t at = 0; at < n; at += piece) {
        const int64_t count = n - at < piece ? n - at : piece;
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        mhla_tensor *x =
            mhla_nn_input(m->tape, images + at * pixels, MHLA_SHAPE(count, c->channels, c->image[0], c->image[1]));
        const mhla_tensor *y = mhla_deit_forward(m->tape, m->deit, &(mhla_deit_run){0}, x);
        MHLA_TRY(mhla_tape_status(m->tape));
        memcpy(logits + at * c->classes, y->data, (size_t)(count * c->classes) * sizeof *logits);
    }
    return MHLA_OK;
}

mhla_status mhla_model_forward(mhla_model *m, float *logits, const float *images, int64_t n) {
    if (m == NULL || logits == NULL || images == NULL || n < 0)
        return mhla_fail(MHLA_EINVAL, "%s",
                         m == NULL        ? "model is NULL"
                         : logits == NULL ? "logits is NULL"
                         : images == NULL ? "images is NULL"
                                          : "n is negative");
    MHLA_TRY(mhla_model_need(m, &mhla_family_deit));
    return mhla_model_infer(m, logits, images, n);
}

const mhla_family mhla_family_deit = {
    .what = "an image classifier",
    .presets = "deit_nano|deit_tiny|deit_small|deit_base",
    .rows = mhla_deit_rows,
    .fits = deit_fits,
    .create = deit_create,
    .read = deit_read,
    .init = deit_init,
    .load = deit_load,
    .query = deit_query,
    .release = deit_release,
};
