/* What can be chosen about an autoencoder of Wan: the keys of diffusers' config.json as rows of a table, the lists that no row has, and
 * presets. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/wan_vae.h"

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_wan_vae_config, member)                                                                      \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_WAN_VAE_PRESETS, "the preset that sizes come from"),
    F("in_channels", INT, INT, in_channels, 1, 64, NULL, "channels of a clip that is encoded"),
    F("out_channels", INT, INT, out_channels, 1, 64, NULL, "and of one that is decoded"),
    F("base_dim", INT, INT, base, 2, 4096, NULL, "width of the first level"),
    F("z_dim", INT, INT, latents, 1, MHLA_WAN_VAE_LATENTS, NULL, "channels of a latent"),
    F("dim_mult", INTS, LIST, widths, 1, 64, NULL,
      "width of each level, times base_dim; all but the last halve the sides"),
    F("num_res_blocks", INT, INT, layers, 1, 16, NULL, "residual blocks of a level; one more in the decoder"),
    F("sample_size", INT, INT, side, 1, 16384, NULL, "usual side of a frame, pixels"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_wan_vae_config, in_channels)};

const mhla_recipe_row *mhla_wan_vae_rows(void) { return mhla_settings_rows(&table); }

int mhla_wan_vae_levels(const mhla_wan_vae_config *c) {
    int n = 0;
    while (n < MHLA_SETTING_LIST_MOST && c->widths[n]) n++;
    return n;
}

int mhla_wan_vae_frames(const mhla_wan_vae_config *c) {
    int n = 1;
    for (int i = 0; i + 1 < mhla_wan_vae_levels(c); i++)
        if (c->time[i]) n *= 2;
    return n;
}

/* Of the published latents; other numbers of channels have 0 and 1. */
static void usual_tables(mhla_wan_vae_config *c) {
    static const float mean[] = {-0.7571f, -0.7089f, -0.9113f, 0.1075f,  -0.1745f, 0.9653f,  -0.1517f, 1.5508f,
                                 0.4134f,  -0.0715f, 0.5517f,  -0.3632f, -0.1922f, -0.9497f, 0.2503f,  -0.2921f};
    static const float deviation[] = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f, 2.6052f, 2.0743f,
                                      3.2687f, 2.1526f, 2.8652f, 1.5579f, 1.6382f, 1.1253f, 2.8251f, 1.9160f};
    for (int i = 0; i < MHLA_WAN_VAE_LATENTS; i++) {
        c->mean[i] = c->latents == 16 && i < 16 ? mean[i] : 0.0f;
        c->deviation[i] = c->latents == 16 && i < 16 ? deviation[i] : 1.0f;
    }
}

static mhla_status preset(mhla_wan_vae_config *c, const char *model) {
    *c = (mhla_wan_vae_config){.in_channels = 3,
                               .out_channels = 3,
                               .base = 96,
                               .latents = 16,
                               .widths = {1, 2, 4, 4},
                               .layers = 2,
                               .time = {0, 1, 1, 1, 1, 1, 1, 1},
                               .side = 256,
                               .encoder = 1,
                               .decoder = 1};
    snprintf(c->model, sizeof c->model, "%s", model);
    if (strcmp(model, "wan_vae_nano") == 0) {
        c->base = 8;
        c->layers = 1;
        c->side = 32;
    } else if (strcmp(model, "wan_vae") != 0) {
        return mhla_fail(MHLA_EINVAL, "\"%s\" is not an autoencoder: there are wan_vae, wan_vae_nano", model);
    }
    return MHLA_OK;
}

mhla_status mhla_wan_vae_from_recipe(mhla_wan_vae_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_wan_vae_config first = {.model = "wan_vae_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 1, given, prefix));
    MHLA_TRY(preset(c, first.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    usual_tables(c);
    return mhla_wan_vae_config_check(c);
}

/* A key that must be absent, null, false or an empty list. */
static mhla_status need_nothing(const json_t *tree, const char *key, const char *path) {
    const json_t *v = json_object_get(tree, key);
    if (v == NULL || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0))
        return MHLA_OK;
    return mhla_fail(MHLA_ENOTSUP, "%s: %s: an autoencoder with it is not known here", path, key);
}

static mhla_status read_times(mhla_wan_vae_config *c, const json_t *tree, const char *path) {
    const json_t *list = json_object_get(tree, "temperal_downsample");
    const int levels = mhla_wan_vae_levels(c);
    if (list == NULL || json_is_null(list)) return MHLA_OK;
    if (!json_is_array(list) || (int)json_array_size(list) != levels - 1)
        return mhla_fail(MHLA_EDATA, "%s: temperal_downsample is not a list of %d, one less than dim_mult", path,
                         levels - 1);
    for (int i = 0; i + 1 < levels; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_boolean(v))
            return mhla_fail(MHLA_EDATA, "%s: temperal_downsample[%d] is neither true nor false", path, i);
        c->time[i] = json_is_true(v);
    }
    return MHLA_OK;
}

static mhla_status read_table(float *to, int count, const json_t *tree, const char *key, double least,
                              const char *path) {
    const json_t *list = json_object_get(tree, key);
    if (list == NULL || json_is_null(list)) return MHLA_OK;
    if (!json_is_array(list) || (int)json_array_size(list) != count)
        return mhla_fail(MHLA_EDATA, "%s: %s is not a list of %d numbers, as many as z_dim", path, key, count);
    for (int i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        const double x = json_is_number(v) ? json_number_value(v) : NAN;
        if (!(x >= least && x <= 1e6))
            return mhla_fail(MHLA_EDATA, "%s: %s[%d] is not a number from %g to 1e6", path, key, i, least);
        to[i] = (float)x;
    }
    return MHLA_OK;
}

mhla_status mhla_wan_vae_config_read(mhla_wan_vae_config *c, const json_t *tree, const char *path) {
    static const char *const unknown[] = {"attn_scales", "is_residual", "patch_size", "decoder_base_dim"};
    MHLA_TRY(preset(c, "wan_vae"));
    *c->model = '\0'; /* another program's */
    for (int i = 0; i < 4; i++) MHLA_TRY(need_nothing(tree, unknown[i], path));
    MHLA_TRY(mhla_settings_read(c, &table, 1, tree, path));
    MHLA_TRY(read_times(c, tree, path));
    usual_tables(c);
    MHLA_TRY(read_table(c->mean, c->latents, tree, "latents_mean", -1e6, path));
    MHLA_TRY(read_table(c->deviation, c->latents, tree, "latents_std", 1e-6, path));
    while (c->side % mhla_wan_vae_factor(c) != 0 && c->side < 1 << 14) c->side *= 2;
    return mhla_blame(mhla_wan_vae_config_check(c), path);
}

/* As diffusers writes it. */
json_t *mhla_wan_vae_config_tree(const mhla_wan_vae_config *c) {
    json_t *tree = mhla_settings_tree(c, &table);
    if (tree == NULL) return NULL;
    json_object_del(tree, "model");
    json_t *times = json_array(), *mean = json_array(), *deviation = json_array();
    for (int i = 0; i + 1 < mhla_wan_vae_levels(c); i++) json_array_append_new(times, json_boolean(c->time[i]));
    for (int i = 0; i < c->latents; i++) { /* four digits are what they have */
        json_array_append_new(mean, json_real(round((double)c->mean[i] * 1e7) / 1e7));
        json_array_append_new(deviation, json_real(round((double)c->deviation[i] * 1e7) / 1e7));
    }
    const int lost = json_object_set_new(tree, "_class_name", json_string("AutoencoderKLWan")) |
                     json_object_set_new(tree, "temperal_downsample", times) |
                     json_object_set_new(tree, "latents_mean", mean) |
                     json_object_set_new(tree, "latents_std", deviation);
    if (lost == 0) return tree;
    json_decref(tree);
    return NULL;
}

mhla_status mhla_wan_vae_config_check(const mhla_wan_vae_config *c) {
    const int levels = mhla_wan_vae_levels(c);
    if (levels < 2) return mhla_fail(MHLA_EINVAL, "dim_mult has %d numbers: expected 2 or more", levels);
    for (int i = 0; i < levels; i++)
        if (c->base * c->widths[i] > 16384 || (i > 0 && c->base * c->widths[i] % 2 != 0))
            return mhla_fail(MHLA_EINVAL, "base_dim %d times dim_mult %d: expected an even width up to 16384", c->base,
                             c->widths[i]);
    if (c->base * c->widths[levels - 1] > 1024)
        return mhla_fail(MHLA_EINVAL, "base_dim %d times dim_mult %d: attention is over at most 1024 channels", c->base,
                         c->widths[levels - 1]);
    if (c->side % mhla_wan_vae_factor(c) != 0)
        return mhla_fail(MHLA_EINVAL, "sample_size %d is not a multiple of %d", c->side, mhla_wan_vae_factor(c));
    return MHLA_OK;
}
