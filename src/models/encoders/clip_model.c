/* CLIP as an architecture: its files, its role. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "models/encoders/clip.h"
#include "models/model.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_clip_config config;
    MHLA_TRY(mhla_clip_from_recipe(&config, given, prefix));
    return mhla_clip_create((mhla_clip **)net, &config);
}

static void release(void *net) { mhla_clip_free(net); }
static mhla_params *params(const void *net) { return mhla_clip_params(net); }
static json_t *tree(const void *net) { return mhla_clip_config_tree(mhla_clip_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *type = json_string_value(json_object_get(e->config, "model_type"));
    if (type) return strcmp(type, "clip") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) && mhla_clip_fits(e->file);
}

/* Beside a file of tensors there may be what open_clip says of it. */
static mhla_status read_open_config(mhla_clip_config *c, const char *weights) {
    char path[4096];
    const char *slash = strrchr(weights, '/');
    json_t *about = NULL;
    const int n =
        snprintf(path, sizeof path, "%.*sopen_clip_config.json", slash ? (int)(slash - weights) + 1 : 0, weights);
    if (n >= (int)sizeof path || access(path, F_OK) != 0) return MHLA_OK;
    MHLA_TRY(mhla_json_load(&about, path));
    const mhla_status status = mhla_clip_open_config_read(c, about, path);
    json_decref(about);
    return status;
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_clip_config c;
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc ? desc->storage : NULL));
    if (storage > MHLA_F32)
        return mhla_fail(MHLA_EINVAL, "storage \"%s\": a CLIP's weights are kept as float32", desc->storage);
    if (json_object_get(e->config, "model_type")) {
        MHLA_TRY(mhla_clip_config_read(&c, e->config, e->config_path));
    } else {
        MHLA_TRY(mhla_clip_config_guess(&c, e->file));
        MHLA_TRY(read_open_config(&c, mhla_safetensors_path(e->file)));
    }
    if (e->file)
        MHLA_TRY(mhla_config_fits(e->file, (double)c.vocabulary * c.text.width +
                                               8.0 * c.text.layers * (double)c.text.width * c.text.width +
                                               8.0 * c.image.layers * (double)c.image.width * c.image.width));
    return mhla_clip_create((mhla_clip **)net, &c);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    (void)desc; /* read_files has looked at it */
    return mhla_clip_load(m->params, mhla_clip_config_of(m->net), e->file);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_clip_config *c = mhla_clip_config_of(m->net);
    const int64_t side = c->side / c->patch;
    info->name = *c->model ? c->model : "clip";
    info->channels = c->channels;
    info->height = info->width = c->side;
    info->tokens = side * side + 1;
    info->multiply_adds = info->multiply_adds_paper = mhla_clip_multiply_adds(c);
}

static void describe(const void *net, mhla_comparer_info *info) {
    const mhla_clip_config *c = mhla_clip_config_of(net);
    *info = (mhla_comparer_info){
        .vocabulary = c->vocabulary, .tokens = c->positions, .channels = c->channels, .side = c->side, .dims = c->dims};
    memcpy(info->mean, c->mean, sizeof c->mean);
    memcpy(info->deviation, c->deviation, sizeof c->deviation);
}

static mhla_tensor *texts(mhla_tape *t, void *net, const int32_t *ids, int64_t B) {
    return mhla_clip_texts(t, net, ids, B, NULL);
}
static mhla_tensor *images(mhla_tape *t, void *net, mhla_tensor *pixels) {
    return mhla_clip_images(t, net, pixels, NULL);
}

static const mhla_comparer comparer = {describe, texts, images};

const mhla_architecture mhla_architecture_clip = {
    .name = "clip",
    .kind = "comparer",
    .what = "a model that matches images and texts",
    .known = "config.json with the model_type clip, or a bare file with visual.conv1 and token_embedding tensors",
    .presets = MHLA_CLIP_PRESETS,
    .rows = mhla_clip_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .load = load,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .comparer = &comparer,
};
