/* The names of the published files: diffusers', which are ours, and the original ones, which count blocks through and parts of a block
 * by their place in a list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/wan_vae.h"

static const mhla_stored *find(const mhla_safetensors *file, const char *name) {
    const mhla_stored *s = mhla_safetensors_find(file, name);
    return s && s->rank >= 4 && s->shape[0] >= 1 && s->shape[0] <= 16384 ? s : NULL;
}

int mhla_wan_vae_layout_of(mhla_wan_vae_layout *layout, const mhla_safetensors *file) {
    static const char *const probes[] = {
        "encoder.down_blocks.0.norm1.gamma", "decoder.up_blocks.0.resnets.0.norm1.gamma",
        "encoder.downsamples.0.residual.0.gamma", "decoder.upsamples.0.residual.0.gamma"};
    for (int i = 0; i < 4; i++)
        if (find(file, probes[i])) {
            *layout = i < 2 ? MHLA_WAN_VAE_CURRENT : MHLA_WAN_VAE_ORIGINAL;
            return 1;
        }
    return 0;
}

/* Parts of a name, ours and the original one, the longest first. */
static const char *const parts[][2] = {
    {"mid_block.resnets.0", "middle.0"},
    {"mid_block.attentions.0", "middle.1"},
    {"mid_block.resnets.1", "middle.2"},
    {"post_quant_conv", "conv2"},
    {"quant_conv", "conv1"},
    {"norm_out", "head.0"},
    {"conv_out", "head.2"},
    {"conv_in", "conv1"},
    {"down_blocks", "downsamples"},
    {"norm1", "residual.0"},
    {"conv1", "residual.2"},
    {"norm2", "residual.3"},
    {"conv2", "residual.6"},
    {"conv_shortcut", "shortcut"},
};

void mhla_wan_vae_name(char name[256], mhla_wan_vae_layout layout, const mhla_wan_vae_config *c,
                       const char *parameter) {
    snprintf(name, 256, "%s", parameter);
    if (layout == MHLA_WAN_VAE_CURRENT) return;
    *name = '\0';
    for (const char *at = parameter; *at;) {
        size_t used = strlen(name), reach = 0;
        int block, number, n = 0;
        if (sscanf(at, "up_blocks.%d.resnets.%d.%n", &block, &number, &n) == 2 && n)
            snprintf(name + used, 256 - used, "upsamples.%d.", block * (c->layers + 2) + number);
        else if (sscanf(at, "up_blocks.%d.upsamplers.0.%n", &block, &n) == 1 && n)
            snprintf(name + used, 256 - used, "upsamples.%d.", block * (c->layers + 2) + c->layers + 1);
        reach = (size_t)n;
        for (size_t i = 0; i < sizeof parts / sizeof *parts && reach == 0; i++) {
            const size_t length = strlen(parts[i][0]);
            if (strncmp(at, parts[i][0], length) != 0 || at[length] != '.') continue;
            snprintf(name + used, 256 - used, "%s.", parts[i][1]);
            reach = length + 1;
        }
        for (at += reach; reach == 0 && *at;) { /* a word as it is */
            used = strlen(name);
            snprintf(name + used, 256 - used, "%c", *at);
            if (*at++ == '.') break;
        }
    }
}

/* ---- What a file is ---- */

static const mhla_stored *find_as(const mhla_safetensors *file, mhla_wan_vae_layout layout,
                                  const mhla_wan_vae_config *c, const char *parameter) {
    char name[256];
    mhla_wan_vae_name(name, layout, c, parameter);
    return find(file, name);
}

/* Blocks of the list that counts them through: the widths of each level, how many of a level, which halve time. */
static mhla_status guess_levels(mhla_wan_vae_config *c, const mhla_safetensors *file, const char *list,
                                mhla_wan_vae_layout layout) {
    const char *conv = layout == MHLA_WAN_VAE_CURRENT ? "conv1" : "residual.2";
    int levels = 0, layers = 0;
    char name[256];
    memset(c->widths, 0, sizeof c->widths);
    memset(c->time, 0, sizeof c->time);
    for (int block = 0; block < 256; block++) {
        snprintf(name, sizeof name, "%s.%d.%s.weight", list, block, conv);
        const mhla_stored *w = find(file, name);
        if (w) {
            if (levels == MHLA_SETTING_LIST_MOST || w->shape[0] % c->base != 0) break;
            c->widths[levels] = (int)(w->shape[0] / c->base);
            layers += levels == 0;
            continue;
        }
        snprintf(name, sizeof name, "%s.%d.resample.1.weight", list, block);
        if (find(file, name) == NULL || levels + 1 >= MHLA_SETTING_LIST_MOST) break;
        snprintf(name, sizeof name, "%s.%d.time_conv.weight", list, block);
        c->time[levels++] = find(file, name) != NULL;
    }
    c->layers = layers;
    if (levels > 0 && c->widths[levels]) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: tensors %s.* are not an autoencoder known here", mhla_safetensors_path(file),
                     list);
}

/* The same of a decoder of diffusers, which has blocks of blocks; of either, in the order of the encoder. */
static mhla_status guess_decoder(mhla_wan_vae_config *c, const mhla_safetensors *file, mhla_wan_vae_layout layout) {
    char name[256];
    int levels = 0, n = 0;
    if (layout == MHLA_WAN_VAE_ORIGINAL) {
        MHLA_TRY(guess_levels(c, file, "decoder.upsamples", layout));
        levels = mhla_wan_vae_levels(c);
        n = c->layers;
    } else {
        memset(c->widths, 0, sizeof c->widths);
        for (;; levels++) {
            snprintf(name, sizeof name, "decoder.up_blocks.%d.resnets.0.conv1.weight", levels);
            const mhla_stored *w = find(file, name);
            if (w == NULL || levels == MHLA_SETTING_LIST_MOST) break;
            c->widths[levels] = (int)(w->shape[0] / c->base);
            snprintf(name, sizeof name, "decoder.up_blocks.%d.upsamplers.0.time_conv.weight", levels);
            c->time[levels] = find(file, name) != NULL;
        }
        for (;; n++) {
            snprintf(name, sizeof name, "decoder.up_blocks.0.resnets.%d.conv1.weight", n);
            if (find(file, name) == NULL || n > 32) break;
        }
    }
    c->layers = n - 1;
    for (int i = 0; i < levels / 2; i++) {
        const int w = c->widths[i];
        c->widths[i] = c->widths[levels - 1 - i];
        c->widths[levels - 1 - i] = w;
    }
    for (int i = 0; i < (levels - 1) / 2; i++) {
        const int on = c->time[i];
        c->time[i] = c->time[levels - 2 - i];
        c->time[levels - 2 - i] = on;
    }
    return levels > 1 && c->layers > 0
               ? MHLA_OK
               : mhla_fail(MHLA_EDATA, "%s: tensors decoder.* are not an autoencoder known here",
                           mhla_safetensors_path(file));
}

mhla_status mhla_wan_vae_config_complete(mhla_wan_vae_config *c, const mhla_safetensors *file, int guess) {
    mhla_wan_vae_layout layout;
    const char *path = mhla_safetensors_path(file);
    if (!mhla_wan_vae_layout_of(&layout, file)) {
        const mhla_stored *first = mhla_safetensors_at(file, 0);
        return mhla_fail(
            MHLA_EDATA,
            "%s: no tensors of an AutoencoderKLWan (encoder.down_blocks or decoder.up_blocks), the first is "
            "\"%.100s\"",
            path, first ? first->name : "");
    }
    const mhla_stored *into = find_as(file, layout, c, "encoder.conv_in.weight");
    const mhla_stored *from = find_as(file, layout, c, "decoder.conv_in.weight");
    c->encoder = into != NULL;
    c->decoder = from != NULL;
    if (!guess) return MHLA_OK;
    const mhla_stored *out = find_as(file, layout, c, "decoder.conv_out.weight");
    const mhla_stored *moments = find_as(file, layout, c, "encoder.conv_out.weight");
    if (!(into || (from && out)))
        return mhla_fail(MHLA_EDATA, "%s: neither an encoder nor a decoder that is whole", path);
    c->base = (int)(into ? into->shape[0] : out->shape[1]);
    if (into) c->in_channels = c->out_channels = (int)into->shape[1];
    if (out) c->out_channels = (int)out->shape[0];
    c->latents = (int)(from ? from->shape[1] : moments ? moments->shape[0] / 2 : 0);
    if (c->base < 2 || c->base > 4096 || c->in_channels < 1 || c->in_channels > 64 || c->out_channels > 64 ||
        c->latents < 1 || c->latents > MHLA_WAN_VAE_LATENTS)
        return mhla_fail(MHLA_EDATA, "%s: clips of %d channels, latents of %d: no autoencoder known here", path,
                         c->in_channels, c->latents);
    if (into)
        MHLA_TRY(guess_levels(c, file, layout == MHLA_WAN_VAE_CURRENT ? "encoder.down_blocks" : "encoder.downsamples",
                              layout));
    else
        MHLA_TRY(guess_decoder(c, file, layout));
    if (c->latents != 16)
        for (int i = 0; i < MHLA_WAN_VAE_LATENTS; i++) c->mean[i] = 0.0f, c->deviation[i] = 1.0f;
    while (c->side % mhla_wan_vae_factor(c) != 0 && c->side < 1 << 14) c->side *= 2;
    return mhla_blame(mhla_wan_vae_config_check(c), path);
}

typedef struct naming {
    mhla_wan_vae_layout layout;
    const mhla_wan_vae_config *config;
} naming;

static void name_of(char name[256], const void *of, const char *parameter) {
    const naming *n = of;
    mhla_wan_vae_name(name, n->layout, n->config, parameter);
}

mhla_status mhla_wan_vae_load(mhla_params *params, const mhla_wan_vae_config *c, const mhla_safetensors *file) {
    naming n = {MHLA_WAN_VAE_CURRENT, c};
    (void)mhla_wan_vae_layout_of(&n.layout, file); /* asked for when the config was made */
    return mhla_params_load_named(params, file, &(mhla_naming){.name = name_of, .of = &n, .what = "the autoencoder"});
}
