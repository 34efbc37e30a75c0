/* SANA as an architecture: its files, its role. */
#include <string.h>

#include "core/status.h"
#include "models/denoisers/frame.h" /* what the model is trained for */
#include "models/denoisers/sana.h"

enum { ROWS = 300 }; /* of text, where costs are told */

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_sana_config c;
    MHLA_TRY(mhla_sana_from_recipe(&c, given, prefix));
    return mhla_sana_create((mhla_sana **)net, &c);
}

static void release(void *net) { mhla_sana_free(net); }
static mhla_params *params(const void *net) { return ((const mhla_sana *)net)->params; }
static json_t *tree(const void *net) { return mhla_sana_config_tree(&((const mhla_sana *)net)->config); }

/* ---- Files -------------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *name = json_string_value(json_object_get(e->config, "_class_name"));
    if (name) return strcmp(name, "SanaTransformer2DModel") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) &&
           mhla_sana_fits_tensors(e->file);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_sana_config c;
    (void)desc; /* storage is load's */
    if (json_object_get(e->config, "num_layers")) {
        MHLA_TRY(mhla_sana_config_read(&c, e->config, e->config_path));
        if (json_object_get(e->config, "attention") == NULL) /* diffusers' model, into which MHLA may have been put */
            MHLA_TRY(mhla_sana_find_mix(&c, e->file));
    } else {
        MHLA_TRY(mhla_sana_guess(&c, e->file));
    }
    const double D = c.attn.dim;
    MHLA_TRY(mhla_config_fits(e->file, c.depth * D * (4.0 * D + 3.0 * (double)mhla_sana_hidden(&c))));
    return mhla_sana_create((mhla_sana **)net, &c);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage > MHLA_F32) MHLA_TRY(mhla_params_store(m->params, (mhla_dtype)storage));
    return mhla_sana_load(m->params, e->file);
}

/* ---- Role --------------------------------------------------------------------------------------------------------------- */

static int64_t cost(const void *net, mhla_extent e, int as_paper) {
    return mhla_sana_multiply_adds(&((const mhla_sana *)net)->config, e.height, e.width, ROWS, as_paper);
}

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_sana_config *c = &((const mhla_sana *)m->net)->config;
    const mhla_extent e = {0, c->side, c->side};
    info->name = *c->model ? c->model : "SanaTransformer2DModel";
    info->multiply_adds = cost(m->net, e, 0);
    info->multiply_adds_paper = cost(m->net, e, 1);
}

static void describe(const void *net, mhla_denoiser_info *info) {
    const mhla_sana_config *c = &((const mhla_sana *)net)->config;
    const int grid = c->side / c->patch;
    *info = (mhla_denoiser_info){.channels = c->channels,
                                 .answers = (int)mhla_sana_answers(c),
                                 .extent = {0, c->side, c->side},
                                 .patch = c->patch,
                                 .process = MHLA_PROCESS_FLOW,
                                 .text_width = c->text_width,
                                 .view = {.layers = c->depth, .heads = c->heads, .grid = {grid, grid}}};
    for (int a = 0; a < 2; a++) info->view.blocks[a] = c->attn.blocks[a] < grid ? c->attn.blocks[a] : grid;
}

static mhla_status check(const void *net, mhla_extent e) {
    if (e.frames) return mhla_fail(MHLA_EINVAL, "%lld frames: the model makes single images", (long long)e.frames);
    return mhla_sana_check_size(&((const mhla_sana *)net)->config, e.height, e.width);
}

static int64_t tokens(const void *net, mhla_extent e) {
    return mhla_sana_tokens(&((const mhla_sana *)net)->config, e.height, e.width);
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *x, const float *times,
                            const mhla_condition *condition) {
    return mhla_sana_forward(t, net, run, x, times, condition);
}

static const mhla_denoiser denoiser = {describe, check, tokens, cost, forward};

const mhla_architecture mhla_architecture_sana = {
    .name = "sana",
    .kind = "diffusion",
    .what = "a diffusion model",
    .known = "config.json with \"_class_name\": \"SanaTransformer2DModel\", or a bare file with caption_projection or "
             "attention_y_norm tensors",
    .presets = MHLA_SANA_PRESETS,
    .task = "text-to-image",
    .rows = mhla_sana_rows,
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
