/* The names of the published files: diffusers' of today, which are ours, those that it had when the files were published, and
 * those of latent diffusion, whose decoder counts its levels from the last one. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/sd.h"
#include "models/model.h"

static const char *const prefixes[] = {"", "first_stage_model."}; /* the latter in checkpoints of a whole diffusion */
enum { PREFIXES = sizeof prefixes / sizeof *prefixes };

static const mhla_stored *find(const mhla_safetensors *file, const char *prefix, const char *name) {
    char text[256];
    snprintf(text, sizeof text, "%s%s", prefix, name);
    return mhla_safetensors_find(file, text);
}

int mhla_sd_layout_of(mhla_sd_layout *layout, const char **prefix, const mhla_safetensors *file) {
    static const char *const halves[] = {"encoder", "decoder"};
    char name[128];
    for (int p = 0; p < PREFIXES; p++)
        for (int h = 0; h < 2; h++) {
            *prefix = prefixes[p];
            snprintf(name, sizeof name, "%s.conv_in.weight", halves[h]);
            const mhla_stored *in = find(file, *prefix, name);
            if (in == NULL || in->rank != 4) continue;
            snprintf(name, sizeof name, "%s.mid.block_1.conv1.weight", halves[h]);
            const mhla_stored *original = find(file, *prefix, name);
            snprintf(name, sizeof name, "%s.mid_block.resnets.0.conv1.weight", halves[h]);
            const mhla_stored *mid = original ? original : find(file, *prefix, name);
            if (mid == NULL || mid->rank != 4) continue;
            snprintf(name, sizeof name, "%s.mid_block.attentions.0.query.weight", halves[h]);
            *layout = original ? MHLA_SD_ORIGINAL : find(file, *prefix, name) ? MHLA_SD_PUBLISHED : MHLA_SD_CURRENT;
            return 1;
        }
    return 0;
}

/* One replacement: what begins with `from` at `at` of the name. '#' in both is a number that is kept; '~' is that of a decoder's level
 * counted from the other end, '+' a number one higher. */
typedef struct rule {
    const char *from, *to;
} rule;

static const rule published[] = {
    {"attentions.0.to_q", "attentions.0.query"},
    {"attentions.0.to_k", "attentions.0.key"},
    {"attentions.0.to_v", "attentions.0.value"},
    {"attentions.0.to_out.0", "attentions.0.proj_attn"},
    {NULL, NULL},
};
static const rule original[] = {
    {"down_blocks.#.resnets.#", "down.#.block.#"},
    {"down_blocks.#.downsamplers.0", "down.#.downsample"},
    {"up_blocks.~.resnets.#", "up.~.block.#"},
    {"up_blocks.~.upsamplers.0", "up.~.upsample"},
    {"mid_block.resnets.+", "mid.block_+"},
    {"mid_block.attentions.0.group_norm", "mid.attn_1.norm"},
    {"mid_block.attentions.0.to_q", "mid.attn_1.q"},
    {"mid_block.attentions.0.to_k", "mid.attn_1.k"},
    {"mid_block.attentions.0.to_v", "mid.attn_1.v"},
    {"mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out"},
    {"conv_norm_out", "norm_out"},
    {"conv_shortcut", "nin_shortcut"},
    {NULL, NULL},
};

static int is_number(char c) { return c == '#' || c == '~' || c == '+'; }

/* Does the rule stand at `at`? Appends what it makes to `to` and returns how far it reaches, else 0. */
static size_t apply(char to[256], const rule *r, const char *at, int levels) {
    int numbers[4] = {0}, n = 0;
    const char *text = at;
    for (const char *f = r->from; *f; f++) {
        if (!is_number(*f)) {
            if (*text++ != *f) return 0;
            continue;
        }
        char *end;
        if (!isdigit((unsigned char)*text)) return 0;
        const long value = strtol(text, &end, 10);
        numbers[n++] = (int)(*f == '~' ? levels - 1 - value : *f == '+' ? value + 1 : value);
        text = end;
    }
    if (*text != '.' && *text != '\0') return 0;
    n = 0;
    for (const char *c = r->to; *c; c++) {
        const size_t used = strlen(to);
        if (is_number(*c))
            snprintf(to + used, 256 - used, "%d", numbers[n++]);
        else
            snprintf(to + used, 256 - used, "%c", *c);
    }
    return (size_t)(text - at);
}

void mhla_sd_name(char name[256], mhla_sd_layout layout, const char *prefix, int levels, const char *parameter) {
    static const rule none = {NULL, NULL};
    const rule *rules = layout == MHLA_SD_ORIGINAL ? original : layout == MHLA_SD_PUBLISHED ? published : &none;
    snprintf(name, 256, "%s", prefix);
    for (const char *at = parameter; *at;) {
        size_t reach = 0;
        const int begins = at == parameter || at[-1] == '.';
        for (const rule *r = rules; begins && r->from && reach == 0; r++) reach = apply(name, r, at, levels);
        at += reach;
        const size_t used = strlen(name);
        if (*at) snprintf(name + used, 256 - used, "%c", *at++);
    }
}

/* ---- What a file is ---- */

static const mhla_stored *find_as(const mhla_safetensors *file, mhla_sd_layout layout, const char *prefix, int levels,
                                  const char *parameter) {
    char name[256];
    mhla_sd_name(name, layout, prefix, levels, parameter);
    return mhla_safetensors_find(file, name);
}

/* How many levels and residual blocks of a level, and their widths, there are. */
static mhla_status guess_sizes(mhla_sd_config *c, const mhla_safetensors *file, mhla_sd_layout layout,
                               const char *prefix) {
    const char *half = c->encoder ? "encoder.down" : "decoder.up", *path = mhla_safetensors_path(file);
    char name[128];
    int levels = 0, layers = 0;
    memset(c->widths, 0, sizeof c->widths);
    for (;;
         levels++) { /* names of latent diffusion count a decoder's levels from the other end: asked for as they lie */
        if (layout == MHLA_SD_ORIGINAL)
            snprintf(name, sizeof name, "%s%s.%d.block.0.conv1.weight", prefix, half, levels);
        else
            snprintf(name, sizeof name, "%s%s_blocks.%d.resnets.0.conv1.weight", prefix, half, levels);
        const mhla_stored *conv = mhla_safetensors_find(file, name);
        if (conv == NULL) break;
        if (levels == MHLA_SETTING_LIST_MOST || conv->rank != 4 || conv->shape[0] < 1 || conv->shape[0] > 16384)
            return mhla_fail(MHLA_EDATA, "%s: tensor \"%s\" is not a convolution of an autoencoder known here", path,
                             name);
        c->widths[levels] = (int)conv->shape[0];
    }
    if (levels == 0) return mhla_fail(MHLA_EDATA, "%s: no tensor \"%s\"", path, name);
    if (!c->encoder && layout != MHLA_SD_ORIGINAL)
        for (int i = 0; i < levels / 2; i++) {
            const int w = c->widths[i];
            c->widths[i] = c->widths[levels - 1 - i];
            c->widths[levels - 1 - i] = w;
        }
    for (;; layers++) {
        snprintf(name, sizeof name, "%s_blocks.0.resnets.%d.conv1.weight", half, layers);
        if (find_as(file, layout, prefix, levels, name) == NULL || layers > 16) break;
    }
    c->layers = c->encoder ? layers : layers - 1;
    return MHLA_OK;
}

mhla_status mhla_sd_config_complete(mhla_sd_config *c, const mhla_safetensors *file, int guess) {
    mhla_sd_layout layout;
    const char *prefix, *path = mhla_safetensors_path(file);
    if (!mhla_sd_layout_of(&layout, &prefix, file)) {
        const mhla_stored *first = mhla_safetensors_at(file, 0);
        return mhla_fail(MHLA_EDATA,
                         "%s: no tensors of an AutoencoderKL (encoder.conv_in.weight, decoder.conv_in.weight and "
                         "mid_block), the first is \"%.100s\"",
                         path, first ? first->name : "");
    }
    const mhla_stored *into = find(file, prefix, "encoder.conv_in.weight");
    const mhla_stored *from = find(file, prefix, "decoder.conv_in.weight");
    c->encoder = into != NULL;
    c->decoder = from != NULL;
    if (!guess) return MHLA_OK;
    MHLA_TRY(guess_sizes(c, file, layout, prefix));
    const mhla_stored *out = find(file, prefix, "decoder.conv_out.weight");
    const mhla_stored *moments = find(file, prefix, "encoder.conv_out.weight");
    c->quant = find(file, prefix, "quant_conv.weight") != NULL;
    c->post_quant = find(file, prefix, "post_quant_conv.weight") != NULL;
    c->attention = find_as(file, layout, prefix, 1, "encoder.mid_block.attentions.0.to_q.weight") ||
                   find_as(file, layout, prefix, 1, "decoder.mid_block.attentions.0.to_q.weight");
    if (into && into->rank == 4) c->in_channels = c->out_channels = (int)into->shape[1];
    if (out && out->rank == 4) c->out_channels = (int)out->shape[0];
    if (moments && moments->rank == 4) c->latent_channels = (int)(moments->shape[0] / 2);
    if (from && from->rank == 4) c->latent_channels = (int)from->shape[1];
    if (c->in_channels < 1 || c->out_channels < 1 || c->latent_channels < 1 || c->in_channels > 64 ||
        c->out_channels > 64 || c->latent_channels > 256)
        return mhla_fail(MHLA_EDATA, "%s: images of %d channels, latents of %d: no autoencoder known here", path,
                         c->in_channels, c->latent_channels);
    while (c->side % mhla_sd_factor(c) != 0) c->side *= 2;
    return mhla_blame(mhla_sd_config_check(c), path);
}

/* The names of a file. */
typedef struct naming {
    mhla_sd_layout layout;
    const char *prefix;
    int levels;
} naming;

static void name_of(char name[256], const void *of, const char *parameter) {
    const naming *n = of;
    mhla_sd_name(name, n->layout, n->prefix, n->levels, parameter);
}

/* What a checkpoint of training has beside the autoencoder. */
static int is_other(const void *of, const char *name) {
    const char *prefix = ((const naming *)of)->prefix;
    return strncmp(name, prefix, strlen(prefix)) != 0 || strncmp(name + strlen(prefix), "loss.", 5) == 0 ||
           strncmp(name, "model_ema.", 10) == 0;
}

mhla_status mhla_sd_load(mhla_params *params, const mhla_sd_config *c, const mhla_safetensors *file) {
    naming n = {MHLA_SD_CURRENT, "", mhla_sd_levels(c)};
    (void)mhla_sd_layout_of(&n.layout, &n.prefix, file); /* asked for when the config was made */
    return mhla_params_load_named(
        params, file, &(mhla_naming){.name = name_of, .others = is_other, .of = &n, .what = "the autoencoder"});
}
