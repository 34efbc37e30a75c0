/* DiT as an architecture: its files (config.json, or what its tensors tell where there is none: facebookresearch's DiT comes
 * as a bare file), its role. */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/dit.h"
#include "models/model.h"
#include "nn/op.h"

enum { MOST = 1 << 20 }; /* of any size in a file */

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_dit_config config;
    MHLA_TRY(mhla_dit_from_recipe(&config, given, prefix));
    return mhla_dit_create((mhla_dit **)net, &config);
}

static void release(void *net) { mhla_dit_free(net); }
static mhla_params *params(const void *net) { return mhla_dit_params(net); }
static json_t *tree(const void *net) { return mhla_dit_config_tree(mhla_dit_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *type = json_string_value(json_object_get(e->config, "model_type"));
    if (e->config) return type && strcmp(type, "mhla_dit") == 0;
    return e->file && mhla_safetensors_find(e->file, "x_embedder.proj.weight") &&
           mhla_safetensors_find(e->file, "blocks.0.adaLN_modulation.1.weight");
}

/* The side of a square number, or 0. */
static int64_t root(int64_t n) {
    const int64_t r = (int64_t)(sqrt((double)n) + 0.5);
    return r * r == n ? r : 0;
}

static mhla_status need(const mhla_stored **tensor, const mhla_safetensors *file, const char *name, int rank) {
    MHLA_TRY(mhla_safetensors_need(tensor, file, name));
    const mhla_stored *s = *tensor;
    char text[96];
    int fine = s->rank == rank;
    for (int a = 0; a < s->rank; a++) fine &= s->shape[a] >= 1 && s->shape[a] <= MOST;
    if (fine) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: tensor \"%s\" has the shape %s: expected %d sizes of 1 to %d", s->path, name,
                     mhla_shape_text(text, s->shape, s->rank), rank, MOST);
}

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }

mhla_status mhla_dit_config_guess(mhla_dit_config *c, const mhla_safetensors *file) {
    const mhla_stored *patch, *position, *labels, *fc1, *last, *mix, *lepe, *head;
    const int softmax = !has(file, "blocks.0.attn.to_qkv.weight");
    const int mhla = has(file, "blocks.0.attn.piece_attn.conv.weight");
    MHLA_TRY(need(&patch, file, "x_embedder.proj.weight", 4));
    MHLA_TRY(need(&position, file, "pos_embed", 3));
    MHLA_TRY(need(&labels, file, "y_embedder.embedding_table.weight", 2));
    MHLA_TRY(need(&fc1, file, "blocks.0.mlp.fc1.weight", 2));
    MHLA_TRY(need(&last, file, "final_layer.linear.weight", 2));
    if (mhla) MHLA_TRY(need(&mix, file, "blocks.0.attn.piece_attn.conv.weight", 4));
    const int64_t dim = patch->shape[0], channels = patch->shape[1], p = patch->shape[2];
    static const char *const presets[] = {"dit_s_2", "dit_b_2", "dit_l_2", "dit_xl_2"};
    int known = 0;
    for (int i = 0; i < 4 && !known; i++) {
        MHLA_TRY(mhla_dit_preset(c, presets[i], MHLA_STRUCTURE_RELEASED,
                                 mhla      ? MHLA_GRID_MHLA
                                 : softmax ? MHLA_GRID_SOFTMAX
                                           : MHLA_GRID_LINEAR,
                                 MHLA_DIT_LINEAR));
        known = c->attn.dim == dim;
    }
    const char *path = mhla_safetensors_path(file);
    if (!known)
        return mhla_fail(MHLA_EDATA,
                         "%s: a DiT of width %lld, and no config.json beside it: its number of heads is in "
                         "widths of 384, 768, 1024 and 1152 only",
                         path, (long long)dim);
    const int64_t side = root(position->shape[1]), pieces = mhla ? root(mix->shape[0]) : 1;
    if (pieces == 0)
        return mhla_fail(MHLA_EDATA, "%s: a mixing matrix of %lld blocks, which are no square of them", path,
                         (long long)mix->shape[0]);
    if (side == 0 || side > 512 || p > 64 || channels > 64)
        return mhla_fail(MHLA_EDATA, "%s: %lld tokens, patches of %lld: no DiT of a square image", path,
                         (long long)position->shape[1], (long long)p);
    c->patch = (int)p;
    c->channels = (int)channels;
    c->image[0] = c->image[1] = (int)(side * p);
    c->mlp_ratio = (double)fc1->shape[0] / (double)dim;
    c->learn_sigma = last->shape[0] == 2 * p * p * channels;
    c->classes = (int)labels->shape[0] - 1;
    c->null_label = 1;
    if (c->classes < 1) return mhla_fail(MHLA_EDATA, "%s: a label table of one row", path);
    if (mhla) c->attn.blocks[0] = c->attn.blocks[1] = (int)pieces;
    c->attn.qkv_bias = has(file, softmax ? "blocks.0.attn.qkv.bias" : "blocks.0.attn.to_qkv.bias");
    c->attn.qk_norm = has(file, "blocks.0.attn.q_norm.weight");
    c->attn.inner_norm = has(file, "blocks.0.attn.norm.weight");
    c->attn.gate = has(file, "blocks.0.attn.g.weight");
    if (c->attn.gate) c->attn.gate_norm = has(file, "blocks.0.attn.g_norm.weight");
    c->attn.lepe = 0;
    if (has(file, "blocks.0.attn.lepe.weight")) {
        MHLA_TRY(need(&lepe, file, "blocks.0.attn.lepe.weight", 4));
        c->attn.lepe = (int)lepe->shape[2];
    }
    if (c->attn.gate && c->attn.gate_norm) { /* it is as wide as a head */
        MHLA_TRY(need(&head, file, "blocks.0.attn.g_norm.weight", 1));
        if (dim % head->shape[0] == 0) c->attn.heads = (int)(dim / head->shape[0]);
    }
    if (has(file, "blocks.0.dw_conv.weight")) c->cpe = MHLA_DIT_CPE_FOLDED;
    for (c->depth = 0; c->depth < 256; c->depth++) {
        char name[64];
        snprintf(name, sizeof name, "blocks.%d.mlp.fc1.weight", c->depth);
        if (mhla_safetensors_find(file, name) == NULL) break;
    }
    snprintf(c->model, sizeof c->model, "dit_%s_%lld",
             dim == 384    ? "s"
             : dim == 768  ? "b"
             : dim == 1024 ? "l"
                           : "xl",
             (long long)p);
    if (p != 2 && p != 4 && p != 8) snprintf(c->model, sizeof c->model, "%s", presets[0]);
    return mhla_dit_config_check(c);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_dit_config c = {0};
    (void)desc; /* storage is the opener's */
    MHLA_TRY(e->config ? mhla_dit_config_read(&c, e->config, e->config_path) : mhla_dit_config_guess(&c, e->file));
    const double dim = c.attn.dim, tokens = (double)mhla_dit_tokens(&c, c.image[0], c.image[1]);
    if (e->file)
        MHLA_TRY(
            mhla_config_fits(e->file, c.depth * dim * dim * (10.0 + 2.0 * c.mlp_ratio) + (c.classes + tokens) * dim));
    return mhla_dit_create((mhla_dit **)net, &c);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_dit_config *c = mhla_dit_config_of(m->net);
    info->name = c->model;
    info->multiply_adds = mhla_dit_multiply_adds(c, c->image[0], c->image[1], 0);
    info->multiply_adds_paper = mhla_dit_multiply_adds(c, c->image[0], c->image[1], 1);
}

static void describe(const void *net, mhla_denoiser_info *info) {
    const mhla_dit_config *c = mhla_dit_config_of(net);
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
}

static mhla_status check(const void *net, mhla_extent e) {
    if (e.frames) return mhla_fail(MHLA_EINVAL, "%lld frames: the model makes single images", (long long)e.frames);
    return mhla_dit_check_size(mhla_dit_config_of(net), e.height, e.width);
}

static int64_t tokens(const void *net, mhla_extent e) {
    return mhla_dit_tokens(mhla_dit_config_of(net), e.height, e.width);
}

static int64_t cost(const void *net, mhla_extent e, int as_paper) {
    return mhla_dit_multiply_adds(mhla_dit_config_of(net), e.height, e.width, as_paper);
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *x, const float *times,
                            const mhla_condition *condition) {
    return mhla_dit_forward(t, net, run, x, times, condition->labels);
}

static const mhla_denoiser denoiser = {describe, check, tokens, cost, forward};

const mhla_architecture mhla_architecture_dit = {
    .name = "dit",
    .kind = "diffusion",
    .what = "a diffusion model",
    .known =
        "config.json with \"model_type\": \"mhla_dit\", or a bare file with x_embedder and adaLN_modulation tensors",
    .presets = MHLA_DIT_PRESETS,
    .rows = mhla_dit_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .denoiser = &denoiser,
};
