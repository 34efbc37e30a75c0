/* DeiT as an architecture: its files (config.json, ours and timm's), its role. */
#include <string.h>

#include "core/status.h"
#include "models/model.h"
#include "models/vision/deit.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_deit_config config;
    MHLA_TRY(mhla_deit_from_recipe(&config, given, prefix));
    return mhla_deit_create((mhla_deit **)net, &config);
}

static void release(void *net) { mhla_deit_free(net); }
static mhla_params *params(const void *net) { return mhla_deit_params(net); }
static json_t *tree(const void *net) { return mhla_deit_config_tree(mhla_deit_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Ours name the preset under `model`, timm's the architecture; a config.json that names neither stands for its tensors. */
static int fits(const mhla_evidence *e) {
    const char *model = json_string_value(json_object_get(e->config, "model")),
               *architecture = json_string_value(json_object_get(e->config, "architecture"));
    if ((model && strncmp(model, "deit_", 5) == 0) || (architecture && strncmp(architecture, "deit_", 5) == 0))
        return 1;
    return e->config && !mhla_evidence_named(e) && e->file &&
           mhla_safetensors_find(e->file, "patch_embed.proj.weight") &&
           mhla_safetensors_find(e->file, "blocks.0.norm1.weight");
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_deit_config config = {0};
    (void)desc; /* storage is the opener's */
    MHLA_TRY(mhla_deit_config_read(&config, e->config, e->config_path));
    const double dim = config.attn.dim, tables = config.attn.attention == MHLA_GRID_FOCUSED ? 1.0 + config.depth : 1.0;
    const double least = config.depth * dim * dim * (4.0 + 2.0 * config.mlp_ratio) + config.classes * dim +
                         tables * (double)mhla_deit_tokens(&config) * dim; /* of positions */
    if (e->file) MHLA_TRY(mhla_config_fits(e->file, least));
    return mhla_deit_create((mhla_deit **)net, &config);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_deit_config *c = mhla_deit_config_of(m->net);
    info->name = c->model;
    info->multiply_adds = mhla_deit_multiply_adds(c, 0);
    info->multiply_adds_paper = mhla_deit_multiply_adds(c, 1);
}

static void describe(const void *net, mhla_classifier_info *info) {
    const mhla_deit_config *c = mhla_deit_config_of(net);
    *info =
        (mhla_classifier_info){.channels = c->channels,
                               .height = c->image[0],
                               .width = c->image[1],
                               .crop = c->crop,
                               .classes = c->classes,
                               .features = c->attn.dim,
                               .tokens = mhla_deit_tokens(c),
                               .stages = 1,
                               .view = {{.layers = c->depth, .heads = c->attn.heads, .first = c->attn.class_token}}};
    for (int i = 0; i < 3; i++) {
        info->mean[i] = c->mean[i];
        info->deviation[i] = c->deviation[i];
    }
    for (int i = 0; i < 2; i++) {
        const int grid = (c->image[i] + 2 * c->padding[i]) / c->patch;
        info->padding[i] = c->padding[i];
        info->view[0].grid[i] = grid;
        info->view[0].blocks[i] = c->attn.blocks[i] < grid ? c->attn.blocks[i] : grid;
    }
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *images) {
    return mhla_deit_forward(t, net, run, images);
}

static const mhla_classifier classifier = {describe, forward};

const mhla_architecture mhla_architecture_deit = {
    .name = "deit",
    .kind = "classifier",
    .what = "an image classifier",
    .known =
        "config.json with \"model\": \"deit_...\", timm's with \"architecture\": \"deit_...\", or one without any such "
        "name beside patch_embed and blocks tensors",
    .presets = MHLA_DEIT_PRESETS,
    .rows = mhla_deit_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .classifier = &classifier,
};
