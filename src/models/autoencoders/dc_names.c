/* The names of the files of an AutoencoderDC: diffusers', which are ours, and its authors', which fuse q, k and v and have levels of
 * modules in between ("main.", "op_list.", "conv."), not the same in all files: names count without them. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/dc.h"
#include "models/layout.h"

static const mhla_rename rules[] = {
    {"^encoder.conv_in.", "encoder.project_in.", 0, 0},
    {"^encoder.conv_out.", "encoder.project_out.0.", 0, 0},
    {"^encoder.down_blocks.", "encoder.stages.", 0, 0},
    {"^decoder.conv_in.", "decoder.project_in.", 0, 0},
    {"^decoder.norm_out.", "decoder.project_out.0.", 0, 0},
    {"^decoder.conv_out.", "decoder.project_out.2.", 0, 0},
    {"^decoder.up_blocks.", "decoder.stages.", 0, 0},
    {"attn.to_qkv_multiscale.", "context_module.aggreg.", 0, 0},
    {"attn.to_q.", "context_module.qkv.", 0, 3},
    {"attn.to_k.", "context_module.qkv.", 1, 3},
    {"attn.to_v.", "context_module.qkv.", 2, 3},
    {"proj_in.", "0.", 0, 0},
    {"proj_out.", "1.", 0, 0},
    {"attn.to_out.", "context_module.proj.", 0, 0},
    {"attn.norm_out.", "context_module.proj.norm.", 0, 0},
    {"conv_out.conv_inverted.", "local_module.inverted_conv.", 0, 0},
    {"conv_out.conv_depth.", "local_module.depth_conv.", 0, 0},
    {"conv_out.conv_point.", "local_module.point_conv.", 0, 0},
    {"conv_out.norm.", "local_module.point_conv.norm.", 0, 0},
    {"norm.", "conv2.norm.", 0, 0},
    {"conv.", "", 0, 0},
    {NULL, NULL, 0, 0},
};
static const char *const levels[] = {"main.", "op_list.", "conv.", NULL};
static const mhla_layout original = {rules, levels, NULL};

static int begins(const mhla_safetensors *file, const char *with) {
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++)
        if (strncmp(mhla_safetensors_at(file, i)->name, with, strlen(with)) == 0) return 1;
    return 0;
}

static const mhla_layout *layout_of(const mhla_safetensors *file) {
    return begins(file, "encoder.stages.0.op_list.") || begins(file, "decoder.stages.0.op_list.") ? &original : NULL;
}

int mhla_dc_fits_tensors(const mhla_safetensors *file) {
    static const char *const probes[] = {"encoder.down_blocks.0.0.conv1.weight",
                                         "encoder.down_blocks.0.0.attn.to_q.weight",
                                         "decoder.up_blocks.0.0.conv.weight"};
    int found = layout_of(file) != NULL;
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) found |= mhla_safetensors_find(file, probes[i]) != NULL;
    return found;
}

mhla_status mhla_dc_load(mhla_params *params, const mhla_safetensors *file) {
    return mhla_layout_load(params, layout_of(file), file);
}

/* ---- What a file is ------------------------------------------------------------------------------------------------------ */

/* The attention of a block: on which scales, and with how many dims of a head. */
static mhla_status guess_attention(mhla_dc_config *c, mhla_dc_stages *s, int i, const mhla_layout_names *n,
                                   const char *block) {
    char name[160];
    const mhla_stored *w;
    for (int k = 0; k < MHLA_DC_SCALES; k++) {
        snprintf(name, sizeof name, "%s.attn.to_qkv_multiscale.%d.proj_in.weight", block, k);
        if (mhla_layout_find(n, name) == NULL) break;
        MHLA_TRY(mhla_layout_need(&w, n, name, 4));
        s->scales[i][k] = w->shape[2] < 32 ? (int)w->shape[2] : 1;
        snprintf(name, sizeof name, "%s.attn.to_qkv_multiscale.%d.proj_out.weight", block, k);
        MHLA_TRY(mhla_layout_need(&w, n, name, 4));
        c->head_dim = w->shape[1] <= 256 ? (int)w->shape[1] : 1;
    }
    return MHLA_OK;
}

/* The stages of a half, and whether pixels are shuffled on the way from one to the next. */
static mhla_status guess_stages(mhla_dc_config *c, mhla_dc_stages *s, const mhla_layout_names *n, int decode) {
    const char *list = decode ? "decoder.up_blocks" : "encoder.down_blocks";
    char block[64], name[160];
    const mhla_stored *w;
    memset(s, 0, sizeof *s);
    for (int i = 0; i < MHLA_DC_STAGES; i++) {
        snprintf(name, sizeof name, "%s.%d.0.conv.weight", list, i);
        const int before = mhla_layout_find(n, name) != NULL; /* the way up of a decoder's stage */
        for (int k = 0;; k++) {
            snprintf(block, sizeof block, "%s.%d.%d", list, i, k + before);
            snprintf(name, sizeof name, "%s.attn.to_out.weight", block);
            const int attends = mhla_layout_find(n, name) != NULL;
            if (!attends) snprintf(name, sizeof name, "%s.conv1.weight", block);
            const mhla_stored *found = mhla_layout_find(n, name);
            if (found == NULL) break;
            MHLA_TRY(mhla_layout_need(&w, n, name, attends ? found->rank : 4));
            s->widths[i] = w->shape[0] <= 16384 ? (int)w->shape[0] : 1;
            s->attends[i] = attends;
            s->layers[i] = k + 1;
            if (attends && k == 0) MHLA_TRY(guess_attention(c, s, i, n, block));
        }
        if (s->layers[i] == 0) break;
    }
    const int behind = decode ? 0 : s->layers[0];
    snprintf(name, sizeof name, "%s.0.%d.conv.weight", list, behind);
    MHLA_TRY(mhla_layout_need(&w, n, name, 4));
    if (decode) c->shuffle = w->shape[0] == 4 * (int64_t)s->widths[0];
    if (!decode) c->unshuffle = 4 * w->shape[0] == s->widths[1];
    return MHLA_OK;
}

static mhla_status guess(mhla_dc_config *c, const mhla_layout_names *n, const char *path) {
    const mhla_stored *pixels, *latents;
    if (c->encodes) {
        MHLA_TRY(mhla_layout_need(&pixels, n, "encoder.conv_in.weight", 4));
        MHLA_TRY(mhla_layout_need(&latents, n, "encoder.conv_out.weight", 4));
        MHLA_TRY(guess_stages(c, &c->encoder, n, 0));
        c->channels = pixels->shape[1] <= 64 ? (int)pixels->shape[1] : 0;
        c->latents = latents->shape[0] <= 1024 ? (int)latents->shape[0] : 0;
    }
    if (c->decodes) {
        MHLA_TRY(mhla_layout_need(&pixels, n, "decoder.conv_out.weight", 4));
        MHLA_TRY(mhla_layout_need(&latents, n, "decoder.conv_in.weight", 4));
        MHLA_TRY(guess_stages(c, &c->decoder, n, 1));
        c->channels = pixels->shape[0] <= 64 ? (int)pixels->shape[0] : 0;
        c->latents = latents->shape[1] <= 1024 ? (int)latents->shape[1] : 0;
    }
    if (c->channels < 1 || c->latents < 1)
        return mhla_fail(MHLA_EDATA, "%s: images of %lld channels, latents of %lld: no autoencoder known here", path,
                         (long long)pixels->shape[c->decodes ? 0 : 1], (long long)latents->shape[c->decodes ? 1 : 0]);
    if (!c->encodes) c->encoder = c->decoder;
    if (!c->decodes) c->decoder = c->encoder;
    while (c->side % mhla_dc_factor(c) != 0) c->side *= 2;
    return mhla_blame(mhla_dc_config_check(c), path);
}

mhla_status mhla_dc_config_complete(mhla_dc_config *c, const mhla_safetensors *file, int guessing) {
    const char *path = mhla_safetensors_path(file);
    if (!mhla_dc_fits_tensors(file)) {
        const mhla_stored *first = mhla_safetensors_at(file, 0);
        return mhla_fail(
            MHLA_EDATA,
            "%s: no tensors of an AutoencoderDC (encoder.down_blocks.0.0 or decoder.up_blocks.0.0, or stages "
            "and op_list), the first is \"%.100s\"",
            path, first ? first->name : "");
    }
    c->encodes = begins(file, "encoder.");
    c->decodes = begins(file, "decoder.");
    if (!guessing) return MHLA_OK;
    mhla_layout_names *n;
    MHLA_TRY(mhla_layout_open(&n, layout_of(file), file));
    const mhla_status status = guess(c, n, path);
    mhla_layout_close(n);
    return status;
}
