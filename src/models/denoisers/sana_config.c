/* What can be chosen about a SANA: the keys of diffusers' config.json and those of MHLA as rows of a table, presets, checks. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/sana.h"

enum { TOKENS_MOST = 1 << 24 };

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_sana_config, member)                                                                         \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_SANA_PRESETS, "the preset that sizes come from"),
    F("attention", TEXT, CHOICE, attention, 0, 0, "linear|mhla", "attention over the grid: as published, or MHLA"),
    F("in_channels", INT, INT, channels, 1, 1024, NULL, "channels of a latent"),
    F("out_channels", INT, OPTIONAL, out_channels, 0, 1024, NULL, "channels of the answer, 0 as many"),
    F("sample_size", INT, INT, side, 1, 16384, NULL, "side of a latent in training"),
    F("patch_size", INT, INT, patch, 1, 256, NULL, "side of a patch"),
    F("num_layers", INT, INT, depth, 1, 256, NULL, "blocks of the transformer"),
    F("num_attention_heads", INT, INT, heads, 1, 1024, NULL, "heads of the attention over the grid"),
    F("attention_head_dim", INT, INT, head_dim, 1, 512, NULL, "numbers of such a head; all together are the width"),
    F("num_cross_attention_heads", INT, INT, cross_heads, 1, 1024, NULL, "heads of the attention to the text"),
    F("cross_attention_head_dim", INT, INT, cross_head_dim, 1, 512, NULL, "numbers of such a head"),
    F("cross_attention_dim", INT, OPTIONAL, cross_width, 0, 65536, NULL,
      "width of the projected text, 0 that of a token"),
    F("caption_channels", INT, INT, text_width, 1, 65536, NULL, "width of a row of text"),
    F("mlp_ratio", REAL, REAL, mlp_ratio, 0.01, 64, NULL, "hidden width of the gated convolution over that of a token"),
    F("attention_bias", BOOL, BOOL, bias, 0, 0, NULL, "biases of q, k, v in the attention over the grid"),
    F("qk_norm", TEXT, CHOICE, qk_norm, 0, 0, "none|rms_norm_across_heads", "norms of queries and keys"),
    F("norm_eps", REAL, REAL, norm_eps, 0, 1, NULL, "eps of the norms in blocks"),
    F("timestep_scale", REAL, REAL, timestep_scale, 1e-6, 1e6, NULL, "times are multiplied by this"),
    F("dropout", REAL, REAL, dropout, 0, 0.99, NULL, "of both attentions' results, in training"),
    F("feature_eps", REAL, REAL, attn.feature_eps, 0, 1, NULL, "added to relu features"),
    F("den_eps", REAL, REAL, attn.den_eps, 0, 1, NULL, "added to the denominator"),
    F("blocks", INTS, INT2, attn.blocks, 1, 256, NULL, "MHLA: pieces per axis of the grid"),
    F("mix", TEXT, MIX, attn.mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",
      "MHLA: the mixing matrix before training"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_sana_config, channels)};

const mhla_recipe_row *mhla_sana_rows(void) { return mhla_settings_rows(&table); }

typedef struct size {
    const char *name;
    int side, channels, depth, heads, head_dim, cross_heads, cross_head_dim, text_width, qk_norm;
} size;

mhla_status mhla_sana_preset(mhla_sana_config *c, const char *model) {
    static const size sizes[] = {
        {"sana_nano", 8, 4, 2, 2, 16, 2, 16, 32, 0},
        {"sana_600m", 16, 32, 28, 36, 32, 16, 72, 2304, 0},
        {"sana_1600m", 32, 32, 20, 70, 32, 20, 112, 2304, 0},
        {"sana15_1600m", 32, 32, 20, 70, 32, 20, 112, 2304, 1},
        {"sana15_4800m", 32, 32, 60, 70, 32, 20, 112, 2304, 1},
    };
    const size *s = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(model, sizes[i].name) == 0) s = &sizes[i];
    if (s == NULL)
        return mhla_fail(MHLA_EINVAL,
                         "\"%.60s\" is not a model: expected sana_nano, sana_600m, sana_1600m, sana15_1600m or "
                         "sana15_4800m",
                         model);
    *c = (mhla_sana_config){.channels = s->channels,
                            .patch = 1,
                            .side = s->side,
                            .depth = s->depth,
                            .heads = s->heads,
                            .head_dim = s->head_dim,
                            .cross_heads = s->cross_heads,
                            .cross_head_dim = s->cross_head_dim,
                            .text_width = s->text_width,
                            .mlp_ratio = 2.5,
                            .norm_eps = 1e-6,
                            .timestep_scale = 1.0,
                            .qk_norm = s->qk_norm,
                            .attn = {.qk_norm_eps = 1e-5,
                                     .den_eps = 1e-15,
                                     .blocks = {4, 4},
                                     .denominator = MHLA_DEN_EQ4,
                                     .mix = MHLA_MIX_PAPER,
                                     .mix_low = 1e-6, /* the paper's is an open interval */
                                     .apart = 1,
                                     .weights = MHLA_XAVIER}};
    snprintf(c->model, sizeof c->model, "%s", s->name);
    return MHLA_OK;
}

mhla_status mhla_sana_from_recipe(mhla_sana_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_sana_config chosen = {.model = "sana_nano"};
    MHLA_TRY(mhla_settings_take(&chosen, &table, 0, 1, given, prefix));
    MHLA_TRY(mhla_sana_preset(c, chosen.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    return mhla_sana_settle(c);
}

/* ---- config.json -------------------------------------------------------------------------------------------------------- */

/* What this model does not have: a key that is neither absent nor null nor false. */
static mhla_status need_none(const json_t *tree, const char *key, const char *path) {
    const json_t *v = json_object_get(tree, key);
    if (v == NULL || json_is_null(v) || json_is_false(v)) return MHLA_OK;
    return mhla_fail(MHLA_ENOTSUP, "%s: %s is set: only models without it are known", path, key);
}

mhla_status mhla_sana_config_read(mhla_sana_config *c, const json_t *tree, const char *path) {
    MHLA_TRY(mhla_sana_preset(c, "sana_600m"));
    *c->model = '\0'; /* another program's */
    MHLA_TRY(need_none(tree, "guidance_embeds", path));
    MHLA_TRY(need_none(tree, "interpolation_scale", path));
    MHLA_TRY(need_none(tree, "norm_elementwise_affine", path));
    MHLA_TRY(mhla_settings_read(c, &table, 1, tree, path));
    return mhla_blame(mhla_sana_settle(c), path);
}

/* As diffusers writes it, with MHLA's keys. */
json_t *mhla_sana_config_tree(const mhla_sana_config *c) {
    json_t *tree = mhla_settings_tree(c, &table);
    if (tree == NULL) return NULL;
    json_object_del(tree, "model");
    int lost = json_object_set_new(tree, "_class_name", json_string("SanaTransformer2DModel")) |
               json_object_set_new(tree, "norm_elementwise_affine", json_false()) |
               json_object_set_new(tree, "guidance_embeds", json_false()) |
               json_object_set_new(tree, "interpolation_scale", json_null());
    if (!c->qk_norm) lost |= json_object_set_new(tree, "qk_norm", json_null());
    if (lost == 0) return tree;
    json_decref(tree);
    return NULL;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------------- */

mhla_status mhla_sana_check_size(const mhla_sana_config *c, int64_t height, int64_t width) {
    const int64_t side[2] = {height, width};
    for (int a = 0; a < 2; a++)
        if (side[a] < 1 || side[a] > 65536 || side[a] % c->patch != 0)
            return mhla_fail(MHLA_EINVAL, "%s of a latent is %lld: expected a multiple of patch %d up to 65536",
                             a ? "width" : "height", (long long)side[a], c->patch);
    if (mhla_sana_tokens(c, height, width) > TOKENS_MOST)
        return mhla_fail(MHLA_EINVAL, "%lld x %lld makes more than %d tokens", (long long)height, (long long)width,
                         TOKENS_MOST);
    return mhla_grid_check(&c->attn, height / c->patch, width / c->patch);
}

mhla_status mhla_sana_settle(mhla_sana_config *c) {
    const int64_t dim = (int64_t)c->heads * c->head_dim;
    if (dim > 65536)
        return mhla_fail(MHLA_EINVAL,
                         "num_attention_heads %d times attention_head_dim %d is %lld: expected up to 65536", c->heads,
                         c->head_dim, (long long)dim);
    if (c->cross_width == 0) c->cross_width = (int)dim;
    if (c->cross_width != dim)
        return mhla_fail(MHLA_EINVAL, "cross_attention_dim is %d: expected the width of a token, %lld", c->cross_width,
                         (long long)dim);
    c->attn.attention = c->attention == MHLA_SANA_MHLA ? MHLA_GRID_MHLA : MHLA_GRID_LINEAR;
    c->attn.dim = (int)dim;
    c->attn.heads = c->heads;
    c->attn.qkv_bias = c->bias;
    c->attn.qk_norm = c->qk_norm;
    c->attn.tokens = mhla_sana_tokens(c, c->side, c->side);
    if (mhla_sana_hidden(c) < 1) return mhla_fail(MHLA_EINVAL, "mlp_ratio %g leaves no hidden width", c->mlp_ratio);
    return mhla_sana_check_size(c, c->side, c->side);
}
