/* What can be chosen about an autoencoder of Stable Diffusion: the keys of diffusers' config.json as rows of a table, and presets. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/sd.h"

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_sd_config, member)                                                                           \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_SD_PRESETS, "the preset that sizes come from"),
    F("in_channels", INT, INT, in_channels, 1, 64, NULL, "channels of an image that is encoded"),
    F("out_channels", INT, INT, out_channels, 1, 64, NULL, "and of one that is decoded"),
    F("latent_channels", INT, INT, latent_channels, 1, 256, NULL, "channels of a latent"),
    F("block_out_channels", INTS, LIST, widths, 1, 16384, NULL,
      "width of each level; all but the last halve the sides"),
    F("layers_per_block", INT, INT, layers, 1, 16, NULL, "residual blocks of a level; one more in the decoder"),
    F("norm_num_groups", INT, INT, groups, 1, 1024, NULL, "groups of the group norms"),
    F("mid_block_add_attention", BOOL, BOOL, attention, 0, 0, NULL, "attention over all pixels of a latent's size"),
    F("use_quant_conv", BOOL, BOOL, quant, 0, 0, NULL, "a last convolution of the encoder, 1x1"),
    F("use_post_quant_conv", BOOL, BOOL, post_quant, 0, 0, NULL, "a first convolution of the decoder, 1x1"),
    F("sample_size", INT, INT, side, 1, 16384, NULL, "side of an image in training, pixels"),
    F("scaling_factor", REAL, REAL, scale, 1e-6, 1e6, NULL, "scale of the latents for diffusion models"),
    F("shift_factor", REAL, REAL, shift, -1e6, 1e6, NULL, "and minus this before"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_sd_config, in_channels)};

const mhla_recipe_row *mhla_sd_rows(void) { return mhla_settings_rows(&table); }

static mhla_status preset(mhla_sd_config *c, const char *model) {
    *c = (mhla_sd_config){.in_channels = 3,
                          .out_channels = 3,
                          .latent_channels = 4,
                          .widths = {128, 256, 512, 512},
                          .layers = 2,
                          .groups = 32,
                          .attention = 1,
                          .quant = 1,
                          .post_quant = 1,
                          .side = 256,
                          .scale = 0.18215,
                          .encoder = 1,
                          .decoder = 1};
    snprintf(c->model, sizeof c->model, "%s", model);
    /* the small ones; scale 0: the published one's */
    static const struct {
        const char *name;
        int widths[4], side;
        double scale;
    } small[] = {{"sd_vae_nano", {16, 32, 32}, 32, 0.0},
                 {"kl_f4", {16, 32, 64}, 64, 1.0}, /* training measures the scale */
                 {"kl_f8", {16, 32, 64, 64}, 64, 1.0}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        if (strcmp(model, small[i].name) != 0) continue;
        memset(c->widths, 0, sizeof c->widths);
        memcpy(c->widths, small[i].widths, sizeof small[i].widths);
        c->layers = 1;
        c->groups = 8;
        c->side = small[i].side;
        if (small[i].scale > 0.0) c->scale = small[i].scale;
        return MHLA_OK;
    }
    return strcmp(model, "sd_vae") == 0
               ? MHLA_OK
               : mhla_fail(MHLA_EINVAL, "\"%s\" is not an autoencoder: expected one of " MHLA_SD_PRESETS, model);
}

mhla_status mhla_sd_from_recipe(mhla_sd_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_sd_config first = {.model = "sd_vae_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 1, given, prefix));
    MHLA_TRY(preset(c, first.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    return mhla_sd_config_check(c);
}

/* A list that has the same text throughout, or is not there. */
static mhla_status need_blocks(const json_t *tree, const char *key, const char *want, const char *path) {
    const json_t *list = json_object_get(tree, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL || strcmp(text, want) != 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: %s has \"%.60s\": known is %s", path, key, text ? text : "", want);
    }
    return MHLA_OK;
}

mhla_status mhla_sd_config_read(mhla_sd_config *c, const json_t *tree, const char *path) {
    MHLA_TRY(preset(c, "sd_vae"));
    *c->model = '\0'; /* another program's */
    MHLA_TRY(need_blocks(tree, "down_block_types", "DownEncoderBlock2D", path));
    MHLA_TRY(need_blocks(tree, "up_block_types", "UpDecoderBlock2D", path));
    const char *act = json_string_value(json_object_get(tree, "act_fn"));
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: act_fn is \"%.60s\": known is silu", path, act);
    const json_t *means = json_object_get(tree, "latents_mean"), *stds = json_object_get(tree, "latents_std");
    if ((means && !json_is_null(means)) || (stds && !json_is_null(stds)))
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: latents_mean and latents_std: only scaling_factor and shift_factor are known", path);
    MHLA_TRY(mhla_settings_read(c, &table, 1, tree, path));
    return mhla_blame(mhla_sd_config_check(c), path);
}

/* As diffusers writes it. */
json_t *mhla_sd_config_tree(const mhla_sd_config *c) {
    json_t *tree = mhla_settings_tree(c, &table);
    if (tree == NULL) return NULL;
    json_object_del(tree, "model");
    json_t *down = json_array(), *up = json_array();
    for (int i = 0; i < mhla_sd_levels(c); i++) {
        json_array_append_new(down, json_string("DownEncoderBlock2D"));
        json_array_append_new(up, json_string("UpDecoderBlock2D"));
    }
    const int lost = json_object_set_new(tree, "_class_name", json_string("AutoencoderKL")) |
                     json_object_set_new(tree, "act_fn", json_string("silu")) |
                     json_object_set_new(tree, "down_block_types", down) |
                     json_object_set_new(tree, "up_block_types", up);
    if (lost == 0) return tree;
    json_decref(tree);
    return NULL;
}

mhla_status mhla_sd_config_check(const mhla_sd_config *c) {
    const int levels = mhla_sd_levels(c);
    if (levels < 1) return mhla_fail(MHLA_EINVAL, "block_out_channels is empty");
    for (int i = 0; i < levels; i++)
        if (c->widths[i] % c->groups != 0)
            return mhla_fail(MHLA_EINVAL, "block_out_channels %d is not a multiple of norm_num_groups %d", c->widths[i],
                             c->groups);
    if (c->attention && c->widths[levels - 1] > 1024)
        return mhla_fail(MHLA_EINVAL, "block_out_channels %d: attention is over at most 1024 channels",
                         c->widths[levels - 1]);
    if (c->side % mhla_sd_factor(c) != 0)
        return mhla_fail(MHLA_EINVAL, "sample_size %d is not a multiple of %d", c->side, mhla_sd_factor(c));
    return MHLA_OK;
}
