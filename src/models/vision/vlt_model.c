/* VLT as an architecture: its files, its role. */
#include <string.h>

#include "core/status.h"
#include "models/model.h"
#include "models/vision/vlt.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_vlt_config config;
    MHLA_TRY(mhla_vlt_from_recipe(&config, given, prefix));
    return mhla_vlt_create((mhla_vlt **)net, &config);
}

static void release(void *net) { mhla_vlt_free(net); }
static mhla_params *params(const void *net) { return mhla_vlt_params(net); }
static json_t *tree(const void *net) { return mhla_vlt_config_tree(mhla_vlt_config_of(net)); }

/* config.json names the preset under `model`; one that names nothing stands for its tensors. */
static int fits(const mhla_evidence *e) {
    static const char *const starts[] = {"mhla_vlt_", "ravlt_", "mavit_", "vlt_"};
    const char *model = json_string_value(json_object_get(e->config, "model"));
    for (size_t i = 0; model && i < sizeof starts / sizeof *starts; i++)
        if (strncmp(model, starts[i], strlen(starts[i])) == 0) return 1;
    return e->config && !mhla_evidence_named(e) && e->file &&
           mhla_safetensors_find(e->file, "patch_embed.proj.0.weight") &&
           mhla_safetensors_find(e->file, "layers.0.blocks.0.norm1.norm.weight");
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_vlt_config config = {0};
    double least = 0.0;
    (void)desc; /* storage is the opener's */
    MHLA_TRY(mhla_vlt_config_read(&config, e->config, e->config_path));
    const mhla_vlt_config *c = &config;
    for (int s = 0; s < MHLA_VLT_STAGES; s++)
        least += c->depths[s] * (4.0 + 2.0 * c->mlp_ratios[s]) * c->dims[s] * c->dims[s];
    least += (double)c->projection * (c->dims[MHLA_VLT_STAGES - 1] + c->classes);
    if (e->file) MHLA_TRY(mhla_config_fits(e->file, least));
    return mhla_vlt_create((mhla_vlt **)net, c);
}

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_vlt_config *c = mhla_vlt_config_of(m->net);
    info->name = c->model;
    info->multiply_adds = mhla_vlt_multiply_adds(c, 0);
    info->multiply_adds_paper = mhla_vlt_multiply_adds(c, 1);
}

static void describe(const void *net, mhla_classifier_info *info) {
    const mhla_vlt_config *c = mhla_vlt_config_of(net);
    *info = (mhla_classifier_info){.channels = c->channels,
                                   .height = c->image[0],
                                   .width = c->image[1],
                                   .crop = c->crop,
                                   .classes = c->classes,
                                   .features = c->projection,
                                   .stages = MHLA_VLT_STAGES};
    for (int i = 0; i < 3; i++) {
        info->mean[i] = c->mean[i];
        info->deviation[i] = c->deviation[i];
    }
    for (int s = 0, from = 0; s < MHLA_VLT_STAGES; from += c->depths[s++]) {
        mhla_token_view *v = &info->view[s];
        *v = (mhla_token_view){.from = from, .layers = c->depths[s], .heads = c->heads[s]};
        mhla_vlt_grid(v->grid, c, s);
        for (int i = 0; i < 2; i++) { /* of softmax attention: those of stage 2 */
            const int blocks = c->blocks[2 * (s < 2 ? s : 1) + i];
            v->blocks[i] = blocks < v->grid[i] ? blocks : v->grid[i];
        }
    }
    info->tokens = (int64_t)info->view[0].grid[0] * info->view[0].grid[1];
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *images) {
    return mhla_vlt_forward(t, net, run, images);
}

static const mhla_classifier classifier = {describe, forward};

const mhla_architecture mhla_architecture_vlt = {
    .name = "vlt",
    .kind = "classifier",
    .what = "an image classifier",
    .known =
        "config.json with \"model\": \"mhla_vlt_...\", \"ravlt_...\", \"mavit_...\" or \"vlt_...\", or one without "
        "any such name beside layers.0.blocks tensors",
    .presets = MHLA_VLT_PRESETS,
    .rows = mhla_vlt_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .classifier = &classifier,
};
