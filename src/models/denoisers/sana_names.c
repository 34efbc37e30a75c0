/* The names of SANA's files: diffusers', which are ours, and its authors', which fuse q, k and v, and k and v of the text. */
#include <math.h>
#include <stdio.h>

#include "core/status.h"
#include "models/denoisers/sana.h"
#include "models/layout.h"

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }

static int is_original(const mhla_safetensors *file) {
    return has(file, "attention_y_norm.weight") && has(file, "t_block.1.weight");
}

int mhla_sana_fits_tensors(const mhla_safetensors *file) {
    return is_original(file) ||
           (has(file, "caption_projection.linear_1.weight") && has(file, "time_embed.linear.weight"));
}

static const mhla_rename rules[] = {
    {"^patch_embed.proj.", "x_embedder.proj.", 0, 0},
    {"^time_embed.emb.timestep_embedder.linear_1.", "t_embedder.mlp.0.", 0, 0},
    {"^time_embed.emb.timestep_embedder.linear_2.", "t_embedder.mlp.2.", 0, 0},
    {"^time_embed.linear.", "t_block.1.", 0, 0},
    {"^caption_projection.linear_1.", "y_embedder.y_proj.fc1.", 0, 0},
    {"^caption_projection.linear_2.", "y_embedder.y_proj.fc2.", 0, 0},
    {"^caption_norm.", "attention_y_norm.", 0, 0},
    {"^proj_out.", "final_layer.linear.", 0, 0},
    {"^scale_shift_table", "final_layer.scale_shift_table", 0, 0},
    {"^transformer_blocks.", "blocks.", 0, 0},
    {"attn1.to_q.", "attn.qkv.", 0, 3},
    {"attn1.to_k.", "attn.qkv.", 1, 3},
    {"attn1.to_v.", "attn.qkv.", 2, 3},
    {"attn1.norm_q.", "attn.q_norm.", 0, 0},
    {"attn1.norm_k.", "attn.k_norm.", 0, 0},
    {"attn1.to_out.0.", "attn.proj.", 0, 0},
    {"attn1.piece_attn.", "attn.piece_attn.", 0, 0},
    {"attn2.to_q.", "cross_attn.q_linear.", 0, 0},
    {"attn2.to_k.", "cross_attn.kv_linear.", 0, 2},
    {"attn2.to_v.", "cross_attn.kv_linear.", 1, 2},
    {"attn2.norm_q.", "cross_attn.q_norm.", 0, 0},
    {"attn2.norm_k.", "cross_attn.k_norm.", 0, 0},
    {"attn2.to_out.0.", "cross_attn.proj.", 0, 0},
    {"ff.conv_inverted.", "mlp.inverted_conv.conv.", 0, 0},
    {"ff.conv_depth.", "mlp.depth_conv.conv.", 0, 0},
    {"ff.conv_point.", "mlp.point_conv.conv.", 0, 0},
    {NULL, NULL, 0, 0},
};
/* A table of positions that is not used, and the text that stands for none in training. */
static const char *const beside[] = {"pos_embed", "y_embedder.y_embedding", NULL};
static const mhla_layout original = {rules, NULL, beside};

mhla_status mhla_sana_load(mhla_params *params, const mhla_safetensors *file) {
    return mhla_layout_load(params, is_original(file) ? &original : NULL, file);
}

/* ---- Sizes of a file without config.json --------------------------------------------------------------------------------- */

/* With a mixing matrix the attention is MHLA, of as many blocks as the matrix has rows. */
static mhla_status find_mix(mhla_sana_config *c, const mhla_layout_names *n, const char *path) {
    static const char *const name = "transformer_blocks.0.attn1.piece_attn.conv.weight";
    const mhla_stored *mix;
    if (mhla_layout_find(n, name) == NULL) return MHLA_OK;
    MHLA_TRY(mhla_layout_need(&mix, n, name, 4));
    const int side = (int)(sqrt((double)mix->shape[0]) + 0.5);
    if ((int64_t)side * side != mix->shape[0] || side > 256)
        return mhla_fail(MHLA_EDATA, "%s: a mixing matrix of %lld blocks, which is not a square number", path,
                         (long long)mix->shape[0]);
    c->attention = MHLA_SANA_MHLA;
    c->attn.blocks[0] = c->attn.blocks[1] = side;
    return MHLA_OK;
}

static mhla_status guess(mhla_sana_config *c, const mhla_layout_names *n, const char *path) {
    const mhla_stored *patch, *caption, *point, *out;
    char name[64];
    MHLA_TRY(mhla_layout_need(&patch, n, "patch_embed.proj.weight", 4));
    MHLA_TRY(mhla_layout_need(&caption, n, "caption_projection.linear_1.weight", 2));
    MHLA_TRY(mhla_layout_need(&point, n, "transformer_blocks.0.ff.conv_point.weight", 4));
    MHLA_TRY(mhla_layout_need(&out, n, "proj_out.weight", 2));
    const int64_t dim = patch->shape[0], p = patch->shape[2];
    if (dim != 1152 && dim != 2240)
        return mhla_fail(MHLA_EDATA,
                         "%s: a SANA of width %lld, and no config.json beside it: the number of heads is known only "
                         "for widths of 1152 and 2240",
                         path, (long long)dim);
    MHLA_TRY(mhla_sana_preset(c, dim == 1152 ? "sana_600m" : "sana_1600m"));
    *c->model = '\0';
    for (c->depth = 0; c->depth < 256; c->depth++) {
        snprintf(name, sizeof name, "transformer_blocks.%d.scale_shift_table", c->depth);
        if (mhla_layout_find(n, name) == NULL) break;
    }
    if (c->depth == 0 || patch->shape[1] > 1024 || p > 256 || p != patch->shape[3] || caption->shape[1] > 65536)
        return mhla_fail(MHLA_EDATA, "%s: no shapes of a SANA", path);
    c->channels = (int)patch->shape[1];
    c->patch = (int)p;
    c->text_width = (int)caption->shape[1];
    c->mlp_ratio = (double)point->shape[1] / (double)dim;
    if (out->shape[0] / (p * p) <= 1024) c->out_channels = (int)(out->shape[0] / (p * p));
    c->qk_norm = mhla_layout_find(n, "transformer_blocks.0.attn1.norm_q.weight") != NULL;
    c->bias = mhla_layout_find(n, "transformer_blocks.0.attn1.to_q.bias") != NULL;
    MHLA_TRY(find_mix(c, n, path));
    c->side *= c->patch;
    return mhla_blame(mhla_sana_settle(c), path);
}

mhla_status mhla_sana_find_mix(mhla_sana_config *c, const mhla_safetensors *file) {
    mhla_layout_names *n;
    MHLA_TRY(mhla_layout_open(&n, is_original(file) ? &original : NULL, file));
    mhla_status status = find_mix(c, n, mhla_safetensors_path(file));
    mhla_layout_close(n);
    if (status == MHLA_OK) status = mhla_blame(mhla_sana_settle(c), mhla_safetensors_path(file));
    return status;
}

mhla_status mhla_sana_guess(mhla_sana_config *c, const mhla_safetensors *file) {
    mhla_layout_names *n;
    MHLA_TRY(mhla_layout_open(&n, is_original(file) ? &original : NULL, file));
    const mhla_status status = guess(c, n, mhla_safetensors_path(file));
    mhla_layout_close(n);
    return status;
}
