/* The names of SANA's files: diffusers', which are ours, and its authors', which fuse q, k and v, and k and v of the text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/sana.h"

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }

static int is_original(const mhla_safetensors *file) {
    return has(file, "attention_y_norm.weight") && has(file, "t_block.1.weight");
}

int mhla_sana_fits_tensors(const mhla_safetensors *file) {
    return is_original(file) ||
           (has(file, "caption_projection.linear_1.weight") && has(file, "time_embed.linear.weight"));
}

/* ---- Names -------------------------------------------------------------------------------------------------------------- */

/* One of ours, as the authors call it: piece `part` of `parts` equal ones of its rows. */
typedef struct place {
    char name[256];
    int part, parts;
} place;

typedef struct rule {
    const char *ours, *theirs;
    int part, parts;
} rule;

static const rule around[] = {
    {"patch_embed.proj.", "x_embedder.proj.", 0, 1},
    {"time_embed.emb.timestep_embedder.linear_1.", "t_embedder.mlp.0.", 0, 1},
    {"time_embed.emb.timestep_embedder.linear_2.", "t_embedder.mlp.2.", 0, 1},
    {"time_embed.linear.", "t_block.1.", 0, 1},
    {"caption_projection.linear_1.", "y_embedder.y_proj.fc1.", 0, 1},
    {"caption_projection.linear_2.", "y_embedder.y_proj.fc2.", 0, 1},
    {"caption_norm.", "attention_y_norm.", 0, 1},
    {"proj_out.", "final_layer.linear.", 0, 1},
    {"scale_shift_table", "final_layer.scale_shift_table", 0, 1},
    {NULL, NULL, 0, 0},
};
static const rule inside[] = {
    {"attn1.to_q.", "attn.qkv.", 0, 3},
    {"attn1.to_k.", "attn.qkv.", 1, 3},
    {"attn1.to_v.", "attn.qkv.", 2, 3},
    {"attn1.norm_q.", "attn.q_norm.", 0, 1},
    {"attn1.norm_k.", "attn.k_norm.", 0, 1},
    {"attn1.to_out.0.", "attn.proj.", 0, 1},
    {"attn1.piece_attn.", "attn.piece_attn.", 0, 1},
    {"attn2.to_q.", "cross_attn.q_linear.", 0, 1},
    {"attn2.to_k.", "cross_attn.kv_linear.", 0, 2},
    {"attn2.to_v.", "cross_attn.kv_linear.", 1, 2},
    {"attn2.norm_q.", "cross_attn.q_norm.", 0, 1},
    {"attn2.norm_k.", "cross_attn.k_norm.", 0, 1},
    {"attn2.to_out.0.", "cross_attn.proj.", 0, 1},
    {"ff.conv_inverted.", "mlp.inverted_conv.conv.", 0, 1},
    {"ff.conv_depth.", "mlp.depth_conv.conv.", 0, 1},
    {"ff.conv_point.", "mlp.point_conv.conv.", 0, 1},
    {NULL, NULL, 0, 0},
};

static place place_of(const char *ours, int original) {
    static const char blocks[] = "transformer_blocks.";
    place p = {.parts = 1};
    const rule *rules = around;
    const char *rest = ours;
    char front[32] = "";
    snprintf(p.name, sizeof p.name, "%s", ours);
    if (!original) return p;
    if (strncmp(ours, blocks, sizeof blocks - 1) == 0) {
        rest = strchr(ours + sizeof blocks - 1, '.') + 1;
        snprintf(front, sizeof front, "%.*s", (int)(rest - ours - (long)(sizeof "transformer_" - 1)),
                 ours + sizeof "transformer_" - 1);
        rules = inside;
    }
    for (; rules->ours && strncmp(rest, rules->ours, strlen(rules->ours)) != 0;) rules++;
    if (rules->ours == NULL) { /* a block's table */
        snprintf(p.name, sizeof p.name, "%s%s", front, rest);
        return p;
    }
    snprintf(p.name, sizeof p.name, "%s%s%s", front, rules->theirs, rest + strlen(rules->ours));
    p.part = rules->part;
    p.parts = rules->parts;
    return p;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

static mhla_status read_place(mhla_param *p, const place *at, const mhla_safetensors *file) {
    const mhla_stored *s;
    int64_t shape[MHLA_MAX_DIMS];
    memcpy(shape, p->shape, sizeof shape);
    shape[0] *= at->parts;
    MHLA_TRY(mhla_safetensors_need(&s, file, at->name));
    if (!mhla_stored_alike(s, p->dims, shape)) MHLA_TRY(mhla_stored_check(s, p->dims, shape));
    mhla_stored piece = *s;
    piece.count /= at->parts;
    piece.bytes /= (size_t)at->parts;
    piece.data += (size_t)at->part * piece.bytes;
    return mhla_param_read(p, &piece);
}

/* What the authors' files have beside the model: a table of positions that is not used, and the text that stands for none in training. */
static int is_extra(const char *name) {
    return strcmp(name, "pos_embed") == 0 || strcmp(name, "y_embedder.y_embedding") == 0;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

mhla_status mhla_sana_load(mhla_sana *m, const mhla_safetensors *file) {
    const int count = mhla_params_count(m->params), original = is_original(file);
    char(*names)[256] = malloc((size_t)count * sizeof *names);
    mhla_status status = names ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the names of %d tensors", count);
    for (int i = 0; i < count && status == MHLA_OK; i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        const place at = place_of(p->name, original);
        memcpy(names[i], at.name, sizeof *names);
        status = read_place(p, &at, file);
    }
    if (status == MHLA_OK) qsort(names, (size_t)count, sizeof *names, by_name);
    for (int64_t i = 0; i < mhla_safetensors_count(file) && status == MHLA_OK; i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        if ((original && is_extra(s->name)) || bsearch(s->name, names, (size_t)count, sizeof *names, by_name)) continue;
        status = mhla_fail(MHLA_EDATA, "%s: tensor \"%.150s\" is not part of the model", s->path, s->name);
    }
    free(names);
    return status;
}

/* ---- Sizes of a file without config.json --------------------------------------------------------------------------------- */

static mhla_status need(const mhla_stored **s, const mhla_safetensors *file, const char *ours, int rank) {
    const place at = place_of(ours, is_original(file));
    MHLA_TRY(mhla_safetensors_need(s, file, at.name));
    int fine = (*s)->rank == rank;
    for (int a = 0; a < (*s)->rank && fine; a++) fine = (*s)->shape[a] >= 1 && (*s)->shape[a] <= 1 << 20;
    if (fine) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: tensor \"%.150s\" has no shape of a SANA", (*s)->path, (*s)->name);
}

static int has_ours(const mhla_safetensors *file, const char *ours) {
    const place at = place_of(ours, is_original(file));
    return has(file, at.name);
}

mhla_status mhla_sana_guess(mhla_sana_config *c, const mhla_safetensors *file) {
    const mhla_stored *patch, *caption, *point, *out, *mix;
    const char *path = mhla_safetensors_path(file);
    char name[64];
    MHLA_TRY(need(&patch, file, "patch_embed.proj.weight", 4));
    MHLA_TRY(need(&caption, file, "caption_projection.linear_1.weight", 2));
    MHLA_TRY(need(&point, file, "transformer_blocks.0.ff.conv_point.weight", 4));
    MHLA_TRY(need(&out, file, "proj_out.weight", 2));
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
        if (!has_ours(file, name)) break;
    }
    if (c->depth == 0 || patch->shape[1] > 1024 || p > 256 || p != patch->shape[3] || caption->shape[1] > 65536)
        return mhla_fail(MHLA_EDATA, "%s: no shapes of a SANA", path);
    c->channels = (int)patch->shape[1];
    c->patch = (int)p;
    c->text_width = (int)caption->shape[1];
    c->mlp_ratio = (double)point->shape[1] / (double)dim;
    if (out->shape[0] / (p * p) <= 1024) c->out_channels = (int)(out->shape[0] / (p * p));
    c->qk_norm = has_ours(file, "transformer_blocks.0.attn1.norm_q.weight");
    c->bias = has_ours(file, "transformer_blocks.0.attn1.to_q.bias");
    if (has_ours(file, "transformer_blocks.0.attn1.piece_attn.conv.weight")) {
        MHLA_TRY(need(&mix, file, "transformer_blocks.0.attn1.piece_attn.conv.weight", 4));
        const int side = (int)(sqrt((double)mix->shape[0]) + 0.5);
        if ((int64_t)side * side != mix->shape[0] || side > 256)
            return mhla_fail(MHLA_EDATA, "%s: a mixing matrix of %lld blocks, which is not a square number", path,
                             (long long)mix->shape[0]);
        c->attention = MHLA_SANA_MHLA;
        c->attn.blocks[0] = c->attn.blocks[1] = side;
    }
    c->side *= c->patch;
    return mhla_blame(mhla_sana_settle(c), path);
}
