/* What can be chosen about an AutoencoderDC: the keys of diffusers' config.json as rows of a table, the lists that no row has, and presets. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/dc.h"

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_dc_config, member)                                                                           \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_DC_PRESETS, "the preset that sizes come from"),
    F("in_channels", INT, INT, channels, 1, 64, NULL, "channels of an image"),
    F("latent_channels", INT, INT, latents, 1, 1024, NULL, "channels of a latent"),
    F("attention_head_dim", INT, INT, head_dim, 1, 256, NULL, "dims of a head"),
    F("encoder_block_out_channels", INTS, LIST, encoder.widths, 1, 16384, NULL,
      "width of each stage; all but the last halve the sides, the later half have attention"),
    F("decoder_block_out_channels", INTS, LIST, decoder.widths, 1, 16384, NULL,
      "the same of the decoder, from its end"),
    F("encoder_layers_per_block", INTS, LIST, encoder.layers, 1, 64, NULL, "blocks of each stage; one number: of all"),
    F("decoder_layers_per_block", INTS, LIST, decoder.layers, 1, 64, NULL, "the same of the decoder"),
    F("downsample_block_type", TEXT, CHOICE, unshuffle, 0, 0, "conv|pixel_unshuffle",
      "conv: of stride 2; pixel_unshuffle: pixels become channels after it"),
    F("upsample_block_type", TEXT, CHOICE, shuffle, 0, 0, "interpolate|pixel_shuffle",
      "interpolate: pixels are doubled before the convolution; pixel_shuffle: channels become pixels after it"),
    F("encoder_out_shortcut", BOOL, BOOL, out_shortcut, 0, 0, NULL, "the mean of channels is added to latents"),
    F("decoder_in_shortcut", BOOL, BOOL, in_shortcut, 0, 0, NULL, "latents, repeated, are added to the first channels"),
    F("decoder_conv_act_fn", TEXT, CHOICE, end, 0, 0, "relu|silu", "before the last convolution"),
    F("sample_size", INT, INT, side, 1, 16384, NULL, "side of an image in training, pixels"),
    F("scaling_factor", REAL, REAL, scale, 1e-6, 1e6, NULL, "scale of the latents for diffusion models"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_dc_config, channels)};

const mhla_recipe_row *mhla_dc_rows(void) { return mhla_settings_rows(&table); }

int mhla_dc_count(const mhla_dc_stages *s) {
    int n = 0;
    while (n < MHLA_DC_STAGES && s->widths[n]) n++;
    return n;
}

/* The later half of the stages has attention, on one scale besides the pixels'. */
static void usual_blocks(mhla_dc_stages *s) {
    const int count = mhla_dc_count(s);
    memset(s->attends, 0, sizeof s->attends);
    memset(s->scales, 0, sizeof s->scales);
    for (int i = count / 2; i < count; i++) s->attends[i] = 1, s->scales[i][0] = 5;
}

mhla_status mhla_dc_preset(mhla_dc_config *c, const char *model) {
    *c = (mhla_dc_config){.channels = 3,
                          .latents = 32,
                          .head_dim = 32,
                          .encoder = {.widths = {128, 256, 512, 512, 1024, 1024}, .layers = {2, 2, 2, 3, 3, 3}},
                          .decoder = {.widths = {128, 256, 512, 512, 1024, 1024}, .layers = {3, 3, 3, 3, 3, 3}},
                          .out_shortcut = 1,
                          .in_shortcut = 1,
                          .side = 512,
                          .scale = 0.41407,
                          .encodes = 1,
                          .decodes = 1};
    snprintf(c->model, sizeof c->model, "%s", model);
    if (strcmp(model, "dc_ae_nano") == 0) {
        c->latents = 8;
        c->head_dim = 8;
        c->encoder = c->decoder = (mhla_dc_stages){.widths = {16, 16, 32, 32}, .layers = {1, 1, 1, 1}};
        c->side = 32;
    } else if (strcmp(model, "dc_ae") != 0) {
        return mhla_fail(MHLA_EINVAL, "\"%s\" is not an autoencoder: expected one of " MHLA_DC_PRESETS, model);
    }
    usual_blocks(&c->encoder);
    usual_blocks(&c->decoder);
    return MHLA_OK;
}

mhla_status mhla_dc_from_recipe(mhla_dc_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_dc_config first = {.model = "dc_ae_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 1, given, prefix));
    MHLA_TRY(mhla_dc_preset(c, first.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    for (int decode = 0; decode < 2; decode++) {
        mhla_dc_stages *s = decode ? &c->decoder : &c->encoder;
        if (s->layers[1] == 0) /* one number counts for every stage */
            for (int i = 1; i < mhla_dc_count(s); i++) s->layers[i] = s->layers[0];
        usual_blocks(s);
    }
    return mhla_dc_config_check(c);
}

/* ---- config.json ---- */

static const char *const halves[] = {"encoder", "decoder"};

/* The i-th of a list of `count`, or the same text for all; NULL where the key is absent. */
static mhla_status read_text(const char **text, const json_t *tree, const char *key, int i, int count,
                             const char *path) {
    const json_t *v = json_object_get(tree, key);
    *text = NULL;
    if (v == NULL || json_is_null(v)) return MHLA_OK;
    if (json_is_array(v) && (int)json_array_size(v) == count) v = json_array_get(v, (size_t)i);
    *text = json_string_value(v);
    return *text ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: %s is neither a text nor a list of %d texts", path, key, count);
}

/* Keys that name one thing throughout, which has to be `want`. */
static mhla_status need_text(const json_t *tree, const char *key, const char *want, int count, const char *path) {
    for (int i = 0; i < count; i++) {
        const char *text;
        MHLA_TRY(read_text(&text, tree, key, i, count, path));
        if (text && strcmp(text, want) != 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: %s has \"%.60s\": known is %s", path, key, text, want);
    }
    return MHLA_OK;
}

static mhla_status read_scales(int to[MHLA_DC_SCALES], const json_t *list, const char *key, int stage,
                               const char *path) {
    const size_t n = json_array_size(list);
    memset(to, 0, MHLA_DC_SCALES * sizeof *to);
    if (!json_is_array(list) || n > MHLA_DC_SCALES)
        return mhla_fail(MHLA_EDATA, "%s: %s[%d] is not a list of up to %d numbers", path, key, stage, MHLA_DC_SCALES);
    for (size_t i = 0; i < n; i++) {
        const json_int_t k = json_integer_value(json_array_get(list, i));
        if (k < 1 || k > 31 || k % 2 == 0)
            return mhla_fail(MHLA_EDATA, "%s: %s[%d][%zu] is not an odd number from 1 to 31", path, key, stage, i);
        to[i] = (int)k;
    }
    return MHLA_OK;
}

/* Which blocks the stages of a half have. */
static mhla_status read_blocks(mhla_dc_stages *s, const char *half, const json_t *tree, const char *path) {
    const int count = mhla_dc_count(s);
    char types[64], key[64];
    snprintf(types, sizeof types, "%s_block_types", half);
    snprintf(key, sizeof key, "%s_qkv_multiscales", half);
    const json_t *scales = json_object_get(tree, key);
    if (json_is_null(scales)) scales = NULL;
    if (scales && (!json_is_array(scales) || (int)json_array_size(scales) != count))
        return mhla_fail(MHLA_EDATA, "%s: %s is not a list of %d lists", path, key, count);
    for (int i = 0; i < count; i++) {
        const char *type;
        MHLA_TRY(read_text(&type, tree, types, i, count, path));
        s->attends[i] = type && strcmp(type, "EfficientViTBlock") == 0;
        if (type && !s->attends[i] && strcmp(type, "ResBlock") != 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: %s has \"%.60s\": known are ResBlock and EfficientViTBlock", path,
                             types, type);
        memset(s->scales[i], 0, sizeof s->scales[i]);
        if (scales) MHLA_TRY(read_scales(s->scales[i], json_array_get(scales, (size_t)i), key, i, path));
        if (scales == NULL && i >= 3) s->scales[i][0] = 5; /* as diffusers has it */
        if (!s->attends[i]) memset(s->scales[i], 0, sizeof s->scales[i]);
    }
    return MHLA_OK;
}

/* A stage without blocks, at the end of the pixels: its neighbour is then joined to the pixels by a way up or down. */
static mhla_status need_layers(const char *half, const json_t *tree, const char *path) {
    char key[64];
    snprintf(key, sizeof key, "%s_layers_per_block", half);
    const json_t *list = json_object_get(tree, key), *v;
    size_t i;
    json_array_foreach(list, i, v) if (json_is_integer(v) && json_integer_value(v) == 0) return mhla_fail(
        MHLA_ENOTSUP, "%s: %s[%zu] is 0: an autoencoder with a stage without blocks is not known here", path, key, i);
    return MHLA_OK;
}

static mhla_status read_tree(mhla_dc_config *c, const json_t *tree, const char *path) {
    MHLA_TRY(mhla_dc_preset(c, "dc_ae"));
    *c->model = '\0';                           /* another program's */
    if (json_object_get(tree, "_class_name")) { /* what diffusers means where a key is missing */
        c->shuffle = c->unshuffle = 1;
        c->scale = 1.0;
    }
    for (int i = 0; i < 2; i++) MHLA_TRY(need_layers(halves[i], tree, path));
    MHLA_TRY(mhla_settings_read(c, &table, 1, tree, path));
    const int count = mhla_dc_count(&c->decoder);
    MHLA_TRY(need_text(tree, "decoder_norm_types", "rms_norm", count, path));
    MHLA_TRY(need_text(tree, "decoder_act_fns", "silu", count, path));
    if (json_object_get(tree, "_class_name")) {
        MHLA_TRY(read_blocks(&c->encoder, halves[0], tree, path));
        MHLA_TRY(read_blocks(&c->decoder, halves[1], tree, path));
    }
    while (c->side % mhla_dc_factor(c) != 0 && c->side < 1 << 14) c->side *= 2;
    return mhla_blame(mhla_dc_config_check(c), path);
}

/* SANA's published file has "Conv" for what is "conv" in others. */
mhla_status mhla_dc_config_read(mhla_dc_config *c, const json_t *tree, const char *path) {
    static const char key[] = "downsample_block_type";
    const char *down = json_string_value(json_object_get(tree, key));
    if (down == NULL || strcmp(down, "Conv") != 0) return read_tree(c, tree, path);
    json_t *same = json_copy((json_t *)(uintptr_t)tree);
    if (same == NULL || json_object_set_new(same, key, json_string("conv")) != 0) {
        json_decref(same);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for it", path);
    }
    const mhla_status status = read_tree(c, same, path);
    json_decref(same);
    return status;
}

static int put_blocks(json_t *tree, const mhla_dc_stages *s, const char *half) {
    char key[64];
    json_t *types = json_array(), *scales = json_array();
    for (int i = 0; i < mhla_dc_count(s); i++) {
        json_t *list = json_array();
        for (int k = 0; k < MHLA_DC_SCALES && s->scales[i][k]; k++)
            json_array_append_new(list, json_integer(s->scales[i][k]));
        json_array_append_new(types, json_string(s->attends[i] ? "EfficientViTBlock" : "ResBlock"));
        json_array_append_new(scales, list);
    }
    snprintf(key, sizeof key, "%s_block_types", half);
    const int lost = json_object_set_new(tree, key, types);
    snprintf(key, sizeof key, "%s_qkv_multiscales", half);
    return lost | json_object_set_new(tree, key, scales);
}

/* As diffusers writes it. */
json_t *mhla_dc_config_tree(const mhla_dc_config *c) {
    json_t *tree = mhla_settings_tree(c, &table);
    if (tree == NULL) return NULL;
    json_object_del(tree, "model");
    const int lost = json_object_set_new(tree, "_class_name", json_string("AutoencoderDC")) |
                     json_object_set_new(tree, "decoder_norm_types", json_string("rms_norm")) |
                     json_object_set_new(tree, "decoder_act_fns", json_string("silu")) |
                     put_blocks(tree, &c->encoder, halves[0]) | put_blocks(tree, &c->decoder, halves[1]);
    if (lost == 0) return tree;
    json_decref(tree);
    return NULL;
}

/* ---- Checks ---- */

static mhla_status check_stages(const mhla_dc_config *c, int decode) {
    const mhla_dc_stages *s = decode ? &c->decoder : &c->encoder;
    const char *half = halves[decode];
    const int count = mhla_dc_count(s);
    int layers = 0;
    while (layers < MHLA_DC_STAGES && s->layers[layers]) layers++;
    if (count < 2)
        return mhla_fail(MHLA_EINVAL, "%s_block_out_channels has %d numbers: expected 2 or more", half, count);
    if (layers != count)
        return mhla_fail(MHLA_EINVAL, "%s_layers_per_block has %d numbers, %s_block_out_channels %d", half, layers,
                         half, count);
    for (int i = 0; i < count; i++) {
        const int width = s->widths[i], next = s->widths[i + 1 < count ? i + 1 : i];
        if (s->attends[i] && width % c->head_dim != 0)
            return mhla_fail(MHLA_EINVAL, "%s_block_out_channels %d is not a multiple of attention_head_dim %d", half,
                             width, c->head_dim);
        if (4 * width % next != 0)
            return mhla_fail(MHLA_EINVAL,
                             "%s_block_out_channels %d and %d: 4 times the first is not a multiple of the second", half,
                             width, next);
        if (!decode && c->unshuffle && next % 4 != 0)
            return mhla_fail(MHLA_EINVAL,
                             "%s_block_out_channels %d is not a multiple of 4, which pixel_unshuffle makes", half,
                             next);
    }
    const int last = s->widths[count - 1];
    if ((decode ? c->in_shortcut : c->out_shortcut) && last % c->latents != 0)
        return mhla_fail(MHLA_EINVAL, "%s_block_out_channels %d is not a multiple of latent_channels %d", half, last,
                         c->latents);
    return MHLA_OK;
}

mhla_status mhla_dc_config_check(const mhla_dc_config *c) {
    for (int decode = 0; decode < 2; decode++) MHLA_TRY(check_stages(c, decode));
    if (mhla_dc_count(&c->encoder) != mhla_dc_count(&c->decoder))
        return mhla_fail(MHLA_EINVAL, "the encoder has %d stages, the decoder %d", mhla_dc_count(&c->encoder),
                         mhla_dc_count(&c->decoder));
    if (c->side % mhla_dc_factor(c) != 0)
        return mhla_fail(MHLA_EINVAL, "sample_size %d is not a multiple of %d", c->side, mhla_dc_factor(c));
    return MHLA_OK;
}
