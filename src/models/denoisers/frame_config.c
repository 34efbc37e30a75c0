/* The choices of frame.h: presets, recipes, config.json, what a bare file tells; and DiT and DiG as architectures: their role. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/frame.h"
#include "nn/op.h"

enum { TOKENS_MOST = 1 << 24, MOST = 1 << 20 /* of any size in a file */ };

/* ---- Presets -------------------------------------------------------------------------------------------------- */

mhla_status mhla_frame_preset(mhla_frame_config *c, const mhla_frame_size *sizes, int count, const char *known,
                              const char *model, int process) {
    const mhla_frame_size *s = NULL;
    for (int i = 0; i < count; i++)
        if (strcmp(model, sizes[i].name) == 0) s = &sizes[i];
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "\"%.60s\" is not a model: expected %s", model, known);
    *c = (mhla_frame_config){
        .process = process,
        .image = {s->image, s->image},
        .channels = s->channels,
        .patch = s->patch,
        .depth = s->depth,
        .classes = s->classes,
        .learn_sigma = s->channels == 4 && process != MHLA_PROCESS_FLOW,
        .null_label = 1,
        .attn = {.dim = s->dim,
                 .heads = s->heads,
                 .gate_norm = 1,
                 .qk_norm_eps = 1e-6,
                 .feature_eps = 1e-6,
                 .den_eps = 1e-6,
                 .blocks = {s->blocks, s->blocks},
                 .denominator = MHLA_DEN_EQ4,
                 .mix = MHLA_MIX_PAPER,
                 .mix_low = 1e-6, /* the paper's is an open interval */
                 .weights = MHLA_XAVIER,
                 .filters = {.kind = MHLA_INITIAL_CENTRE}},
    };
    snprintf(c->model, sizeof c->model, "%s", s->name);
    return MHLA_OK;
}

/* ---- Recipes, config.json ---------------------------------------------------------------------------------------- */

mhla_status mhla_frame_from_recipe(mhla_frame_config *c, const mhla_frame_kind *kind, const mhla_recipe *given,
                                   const char *prefix) {
    mhla_frame_config chosen = {0};
    snprintf(chosen.model, sizeof chosen.model, "%s", kind->standard);
    MHLA_TRY(mhla_settings_take(&chosen, kind->table, 0, kind->first, given, prefix));
    MHLA_TRY(kind->preset(c, &chosen));
    MHLA_TRY(mhla_settings_take(c, kind->table, kind->first, kind->table->count, given, prefix));
    if (kind->settle) kind->settle(c);
    return mhla_frame_check(kind, c);
}

mhla_status mhla_frame_config_read(mhla_frame_config *c, const mhla_frame_kind *kind, const json_t *tree,
                                   const char *path) {
    mhla_recipe *given = NULL;
    mhla_status status = mhla_settings_parse(&given, mhla_settings_rows(kind->table), tree, path);
    if (status == MHLA_OK) status = mhla_frame_from_recipe(c, kind, given, "");
    mhla_recipe_free(given);
    return mhla_blame(status, path);
}

json_t *mhla_frame_config_tree(const mhla_frame_config *c, const mhla_frame_kind *kind) {
    json_t *tree = mhla_settings_tree(c, kind->table);
    if (json_object_set_new(tree, "model_type", json_string(kind->model_type)) == 0) return tree;
    json_decref(tree);
    return NULL;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------- */

mhla_status mhla_frame_check_size(const mhla_frame_kind *kind, const mhla_frame_config *c, int64_t height,
                                  int64_t width) {
    const int64_t side[2] = {height, width};
    for (int a = 0; a < 2; a++)
        if (side[a] < 1 || side[a] > 65536 || side[a] % c->patch != 0)
            return mhla_fail(MHLA_EINVAL, "%s is %lld: expected a multiple of patch %d up to 65536",
                             a ? "width" : "height", (long long)side[a], c->patch);
    MHLA_TRY(kind->check(c, height / c->patch, width / c->patch));
    MHLA_TRY(mhla_grid_check(&c->attn, height / c->patch, width / c->patch));
    const int64_t tokens = mhla_frame_tokens(c, height, width);
    if (tokens > TOKENS_MOST)
        return mhla_fail(MHLA_EINVAL, "%lld x %lld makes %lld tokens: expected at most %d", (long long)height,
                         (long long)width, (long long)tokens, TOKENS_MOST);
    return MHLA_OK;
}

mhla_status mhla_frame_check(const mhla_frame_kind *kind, const mhla_frame_config *c) {
    if (c->attn.dim % 4 != 0)
        return mhla_fail(MHLA_EINVAL, "dim is %d: the position table needs a multiple of 4", c->attn.dim);
    if (c->learn_sigma && c->process == MHLA_PROCESS_FLOW)
        return mhla_fail(MHLA_EINVAL, "learn_sigma is true and process is flow: a flow has no variance to learn");
    return mhla_frame_check_size(kind, c, c->image[0], c->image[1]);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

int mhla_frame_fits(const mhla_evidence *e, const char *model_type) {
    const char *type = json_string_value(json_object_get(e->config, "model_type"));
    if (e->config) return type && strcmp(type, model_type) == 0;
    return e->file && mhla_safetensors_find(e->file, "x_embedder.proj.weight") &&
           mhla_safetensors_find(e->file, "blocks.0.adaLN_modulation.1.weight");
}

mhla_status mhla_frame_need(const mhla_stored **tensor, const mhla_safetensors *file, const char *name, int rank) {
    MHLA_TRY(mhla_safetensors_need(tensor, file, name));
    const mhla_stored *s = *tensor;
    char text[96];
    int fine = s->rank == rank;
    for (int a = 0; a < s->rank; a++) fine &= s->shape[a] >= 1 && s->shape[a] <= MOST;
    if (fine) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: tensor \"%s\" has the shape %s: expected %d sizes of 1 to %d", s->path, name,
                     mhla_shape_text(text, s->shape, s->rank), rank, MOST);
}

/* The side of a square number, or 0. */
static int64_t root(int64_t n) {
    const int64_t r = (int64_t)(sqrt((double)n) + 0.5);
    return r * r == n ? r : 0;
}

mhla_status mhla_frame_guess(mhla_frame_config *c, const mhla_frame_kind *kind, const mhla_safetensors *file) {
    const mhla_stored *patch, *position, *labels, *last, *mix = NULL;
    static const char *const name = "blocks.0.attn.piece_attn.conv.weight";
    const char *path = mhla_safetensors_path(file);
    *c = (mhla_frame_config){0};
    MHLA_TRY(mhla_frame_need(&patch, file, "x_embedder.proj.weight", 4));
    MHLA_TRY(mhla_frame_need(&position, file, "pos_embed", 3));
    MHLA_TRY(mhla_frame_need(&labels, file, "y_embedder.embedding_table.weight", 2));
    MHLA_TRY(mhla_frame_need(&last, file, "final_layer.linear.weight", 2));
    if (mhla_safetensors_find(file, name)) MHLA_TRY(mhla_frame_need(&mix, file, name, 4));
    const int64_t dim = patch->shape[0], channels = patch->shape[1], p = patch->shape[2];
    const int64_t side = root(position->shape[1]), pieces = mix ? root(mix->shape[0]) : 1;
    c->attn.dim = (int)dim;
    MHLA_TRY(kind->guess(c, file));
    if (pieces == 0)
        return mhla_fail(MHLA_EDATA, "%s: a mixing matrix of %lld blocks, which is not a square number", path,
                         (long long)mix->shape[0]);
    if (side == 0 || side > 512 || p > 64 || channels > 64)
        return mhla_fail(MHLA_EDATA, "%s: %lld tokens, patches of %lld: no %s of a square image", path,
                         (long long)position->shape[1], (long long)p, kind->name);
    c->patch = (int)p;
    c->channels = (int)channels;
    c->image[0] = c->image[1] = (int)(side * p);
    c->learn_sigma = last->shape[0] == 2 * p * p * channels;
    c->classes = (int)labels->shape[0] - 1;
    c->null_label = 1;
    if (c->classes < 1) return mhla_fail(MHLA_EDATA, "%s: a label table of one row", path);
    if (mix) c->attn.blocks[0] = c->attn.blocks[1] = (int)pieces;
    for (c->depth = 0; c->depth < 256; c->depth++) {
        char block[64];
        snprintf(block, sizeof block, "blocks.%d.adaLN_modulation.1.weight", c->depth);
        if (mhla_safetensors_find(file, block) == NULL) break;
    }
    return mhla_frame_check(kind, c);
}

mhla_status mhla_frame_read(void **net, const mhla_frame_kind *kind, const mhla_evidence *e) {
    mhla_frame_config c = {0};
    MHLA_TRY(e->config ? mhla_frame_config_read(&c, kind, e->config, e->config_path)
                       : mhla_frame_guess(&c, kind, e->file));
    const double dim = c.attn.dim, tokens = (double)mhla_frame_tokens(&c, c.image[0], c.image[1]);
    if (e->file)
        MHLA_TRY(mhla_config_fits(e->file, c.depth * (dim * dim * 6.0 + (double)kind->mlp_weights(&c)) +
                                               (c.classes + tokens) * dim));
    return mhla_frame_create((mhla_frame **)net, kind, &c);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

mhla_status mhla_frame_create_net(void **net, const mhla_frame_kind *kind, const mhla_recipe *given,
                                  const char *prefix) {
    mhla_frame_config c = {0};
    MHLA_TRY(mhla_frame_from_recipe(&c, kind, given, prefix));
    return mhla_frame_create((mhla_frame **)net, kind, &c);
}

void mhla_frame_free_net(void *net) { mhla_frame_free(net); }
mhla_params *mhla_frame_params(const void *net) { return ((const mhla_frame *)net)->params; }

json_t *mhla_frame_tree(const void *net) {
    const mhla_frame *m = net;
    return mhla_frame_config_tree(&m->config, m->kind);
}

static int64_t cost(const void *net, mhla_extent e, int as_paper) {
    const mhla_frame *m = net;
    return mhla_frame_multiply_adds(m->kind, &m->config, e.height, e.width, as_paper);
}

void mhla_frame_query(const mhla_model *model, mhla_model_info *info) {
    const mhla_frame_config *c = &((const mhla_frame *)model->net)->config;
    const mhla_extent e = {0, c->image[0], c->image[1]};
    info->name = c->model;
    info->multiply_adds = cost(model->net, e, 0);
    info->multiply_adds_paper = cost(model->net, e, 1);
}

static void describe(const void *net, mhla_denoiser_info *info) {
    const mhla_frame *m = net;
    const mhla_frame_config *c = &m->config;
    *info = (mhla_denoiser_info){.channels = c->channels,
                                 .answers = c->learn_sigma ? 2 * c->channels : c->channels,
                                 .extent = {0, c->image[0], c->image[1]},
                                 .process = c->process,
                                 .classes = c->classes,
                                 .null_label = c->null_label,
                                 .view = {.layers = c->depth, .heads = c->attn.heads}};
    for (int i = 0; i < 2; i++) {
        const int grid = c->image[i] / c->patch;
        info->view.grid[i] = grid;
        info->view.blocks[i] = c->attn.blocks[i] < grid ? c->attn.blocks[i] : grid;
    }
    if (m->kind->view) m->kind->view(m, &info->view);
}

static mhla_status check(const void *net, mhla_extent e) {
    const mhla_frame *m = net;
    if (e.frames) return mhla_fail(MHLA_EINVAL, "%lld frames: the model makes single images", (long long)e.frames);
    return mhla_frame_check_size(m->kind, &m->config, e.height, e.width);
}

static int64_t tokens(const void *net, mhla_extent e) {
    return mhla_frame_tokens(&((const mhla_frame *)net)->config, e.height, e.width);
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *x, const float *times,
                            const mhla_condition *condition) {
    return mhla_frame_forward(t, net, run, x, times, condition->labels);
}

const mhla_denoiser mhla_frame_denoiser = {describe, check, tokens, cost, forward};
