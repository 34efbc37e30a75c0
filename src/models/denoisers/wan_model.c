/* Wan as an architecture: its files, its role. */
#include <string.h>

#include "core/status.h"
#include "models/denoisers/frame.h"
#include "models/denoisers/wan.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_wan_config config;
    MHLA_TRY(mhla_wan_from_recipe(&config, given, prefix));
    return mhla_wan_create((mhla_wan **)net, &config);
}

static void release(void *net) { mhla_wan_free(net); }
static mhla_params *params(const void *net) { return ((const mhla_wan *)net)->params; }
static json_t *tree(const void *net) { return mhla_wan_config_tree(&((const mhla_wan *)net)->config); }

/* ---- Files ---- */

static int is_ours(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && strcmp(type, "mhla_wan") == 0;
}

static int fits(const mhla_evidence *e) {
    const char *name = json_string_value(json_object_get(e->config, "_class_name"));
    if (is_ours(e->config)) return 1;
    if (name) return strcmp(name, "WanModel") == 0 || strcmp(name, "WanTransformer3DModel") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) &&
           mhla_wan_fits_tensors(e->file);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_wan_config c = {0};
    (void)desc; /* storage is asked for below */
    if (is_ours(e->config)) {
        MHLA_TRY(mhla_wan_config_read(&c, e->config, e->config_path));
        if (e->file) MHLA_TRY(mhla_wan_complete(&c, e->file));
    } else {
        if (e->file == NULL) return mhla_fail(MHLA_EDATA, "%s: no weights beside config.json", e->path);
        MHLA_TRY(mhla_wan_guess(&c, e->file, e->config, e->config ? e->config_path : e->path));
    }
    const double dim = c.dim;
    if (e->file) MHLA_TRY(mhla_config_fits(e->file, c.depth * (8.0 * dim + 2.0 * c.ffn) * dim));
    return mhla_wan_create((mhla_wan **)net, &c);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage > MHLA_F32) MHLA_TRY(mhla_params_store(m->params, (mhla_dtype)storage));
    return mhla_wan_load(m->net, e->file);
}

/* ---- Role ---- */

static int64_t cost(const void *net, mhla_extent e, int as_paper) {
    return mhla_wan_multiply_adds(&((const mhla_wan *)net)->config, e, as_paper);
}

static int64_t tokens(const void *net, mhla_extent e) {
    int grid[3];
    mhla_wan_grid(grid, &((const mhla_wan *)net)->config, e);
    return (int64_t)grid[0] * grid[1] * grid[2];
}

static void query(const mhla_model *model, mhla_model_info *info) {
    const mhla_wan *m = model->net;
    const mhla_extent e = mhla_wan_extent(&m->config);
    info->name = m->config.model;
    info->frames = m->config.frames;
    info->note = m->note;
    info->multiply_adds = cost(m, e, 0);
    info->multiply_adds_paper = cost(m, e, 1);
}

static void describe(const void *net, mhla_denoiser_info *info) {
    const mhla_wan_config *c = &((const mhla_wan *)net)->config;
    const int H = c->image[0] / c->patch, W = c->image[1] / c->patch;
    *info = (mhla_denoiser_info){.channels = c->channels,
                                 .answers = c->channels,
                                 .extent = mhla_wan_extent(c),
                                 .patch = c->patch,
                                 .process = MHLA_PROCESS_FLOW,
                                 .classes = c->classes,
                                 .null_label = c->classes > 0,
                                 .text_width = c->classes ? 0 : c->text_width,
                                 .text_rows = c->text_length,
                                 .view = {.layers = c->depth,
                                          .heads = c->heads,
                                          .frames = c->frames,
                                          .frame_blocks = c->blocks[0],
                                          .grid = {H, W},
                                          .blocks = {c->blocks[1], c->blocks[2]}}};
}

static mhla_status check(const void *net, mhla_extent e) {
    return mhla_wan_check_size(&((const mhla_wan *)net)->config, e);
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *x, const float *times,
                            const mhla_condition *condition) {
    return mhla_wan_forward(t, net, run, x, times, condition);
}

static const mhla_denoiser denoiser = {describe, check, tokens, cost, forward};

const mhla_architecture mhla_architecture_wan = {
    .name = "wan",
    .kind = "diffusion",
    .what = "a diffusion model",
    .known = "config.json with \"model_type\": \"mhla_wan\" or \"_class_name\": \"WanModel\" or "
             "\"WanTransformer3DModel\", or a bare file with patch_embedding and blocks.0.modulation (or "
             "scale_shift_table) tensors",
    .presets = MHLA_WAN_PRESETS,
    .rows = mhla_wan_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .load = load,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .denoiser = &denoiser,
};
