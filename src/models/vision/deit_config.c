/* What can be chosen about a DeiT: one row per field feeds config.json, the settings of a command line and the `model.`
 * keys of a recipe. Presets say what the fields are when nobody chose. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/vision/deit.h"

/* ---- Presets -------------------------------------------------------------------------------------------------- */

static const struct size {
    const char *name;
    int image, patch, padding, dim, depth, heads, blocks;
} sizes[] = {
    {"deit_nano", 28, 4, 2, 64, 4, 2, 2},
    {"deit_tiny", 224, 16, 16, 192, 12, 3, 4},
    {"deit_small", 224, 16, 16, 384, 12, 6, 4},
    {"deit_base", 224, 16, 16, 768, 12, 12, 4},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

mhla_status mhla_deit_preset(mhla_deit_config *c, const char *model, int structure, int attention) {
    const struct size *s = NULL;
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, sizes[i].name) == 0) s = &sizes[i];
    if (s == NULL)
        return mhla_fail(MHLA_EINVAL, "\"%s\" is not a model: expected deit_nano, deit_tiny, deit_small, deit_base",
                         model);
    /* Equal surroundings: whatever can be had with every attention is, so that only the attention differs. */
    *c = (mhla_deit_config){
        .structure = structure,
        .image = {s->image, s->image},
        .channels = 3,
        .padding = {s->padding, s->padding},
        .patch = s->patch,
        .depth = s->depth,
        .classes = 1000,
        .mlp_ratio = 4.0,
        .norm = MHLA_NORM_LAYER,
        .norm_eps = 1e-6,
        .attn = {.attention = attention,
                 .dim = s->dim,
                 .heads = s->heads,
                 .qk_norm = 1,
                 .qk_norm_eps = 1e-6,
                 .lepe = 5,
                 .feature_eps = 1e-6,
                 .den_eps = 1e-6,
                 .blocks = {s->blocks, s->blocks},
                 .denominator = MHLA_DEN_EQ4,
                 .mix = MHLA_MIX_PAPER,
                 .mix_low = structure == MHLA_STRUCTURE_RELEASED ? 0.0 : 1e-6}, /* the paper's is an open interval */
        .mean = {0.485, 0.456, 0.406},
        .deviation = {0.229, 0.224, 0.225},
        .crop = 0.9,
    };
    snprintf(c->model, sizeof c->model, "%s", s->name);
    mhla_grid_preset(&c->attn);
    if (structure != MHLA_STRUCTURE_RELEASED) return MHLA_OK;
    if (attention == MHLA_GRID_MHLA) {
        c->attn.inner_norm = 1;
        c->attn.qk_norm_eps = 0x1p-23; /* PyTorch's RMSNorm without an eps */
        c->attn.denominator = MHLA_DEN_RELEASED;
        c->attn.mix = MHLA_MIX_RELEASED_LINEAR;
    } else {
        c->padding[0] = c->padding[1] = 0;
    }
    if (attention == MHLA_GRID_LINEAR) {
        c->attn.lepe = 0;
        c->norm = MHLA_NORM_RMS;
        c->attn.feature_eps = 0.0;
    }
    if (attention == MHLA_GRID_SOFTMAX) { /* timm's DeiT */
        c->attn.lepe = 0;
        c->attn.class_token = 1;
        c->attn.qkv_bias = 1;
        c->attn.qk_norm = 0;
    }
    if (attention == MHLA_GRID_INLINE) c->attn.class_token = 1;
    return MHLA_OK;
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_deit_config, member)                                                                         \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_DEIT_PRESETS, "the preset that sizes come from"),
    F("structure", TEXT, CHOICE, structure, 0, 0, "equal|released",
      "equal: all but the attention, and what belongs to it, alike for all; released: as published"),
    F("attention", TEXT, GRID, attn.attention, 0, 0, "mhla|linear|softmax|focused|inline|mala|rala", "which attention"),
    F("image", INTS, INT2, image, 1, 16384, NULL, "height, width of an input image"),
    F("channels", INT, INT, channels, 1, 3, NULL, "1 grey, 3 colour"),
    F("padding", INTS, INT2, padding, 0, 4096, NULL, "zero pixels added on each side: above and below, left and right"),
    F("patch", INT, INT, patch, 1, 256, NULL, "side of a patch, pixels"),
    F("dim", INT, INT, attn.dim, 1, 16384, NULL, "width of a token"),
    F("depth", INT, INT, depth, 1, 256, NULL, "blocks of the transformer"),
    F("heads", INT, INT, attn.heads, 1, 256, NULL, "attention heads; inline, where not given: dim over 32"),
    F("classes", INT, INT, classes, 1, 1000000, NULL, "how many classes"),
    F("mlp_ratio", REAL, REAL, mlp_ratio, 0.01, 64, NULL, "hidden width of the MLP over dim"),
    F("class_token", BOOL, BOOL, attn.class_token, 0, 0, NULL,
      "classify from a class token instead of the mean of all tokens; MHLA: it is its own block"),
    F("norm", TEXT, CHOICE, norm, 0, 0, "layer|rms", "norms of blocks and output"),
    F("norm_eps", REAL, REAL, norm_eps, 0, 1, NULL, "their eps"),
    F("cpe", INT, INT, cpe, 0, 31, NULL, "kernel of the convolution that starts each block (3), 0 none"),
    F("inner_norm", BOOL, BOOL, attn.inner_norm, 0, 0, NULL, "a second LayerNorm right before the attention"),
    F("qkv_bias", BOOL, BOOL, attn.qkv_bias, 0, 0, NULL, "biases of q, k, v"),
    F("qk_norm", BOOL, BOOL, attn.qk_norm, 0, 0, NULL, "RMS norm of q and k over all heads"),
    F("qk_norm_eps", REAL, REAL, attn.qk_norm_eps, 0, 1, NULL, "its eps"),
    F("lepe", INT, INT, attn.lepe, 0, 31, NULL,
      "kernel of the convolution of v added to the attention (5, inline 3), 0 none"),
    F("gate", BOOL, BOOL, attn.gate, 0, 0, NULL, "mala, rala: the result times a fourth part of the projection"),
    F("rope", BOOL, BOOL, attn.rope, 0, 0, NULL, "mala, rala: axial rotary embedding"),
    F("power", INT, INT, attn.power, 0, 16, NULL, "focused: of its features (3)"),
    F("feature_eps", REAL, REAL, attn.feature_eps, 0, 1, NULL, "added to relu features"),
    F("den_eps", REAL, REAL, attn.den_eps, 0, 1, NULL, "added to the denominator"),
    F("blocks", INTS, INT2, attn.blocks, 1, 256, NULL, "MHLA: pieces per axis of the grid of patches"),
    F("denominator", TEXT, CHOICE, attn.denominator, 0, 0, "eq4|released|none", "MHLA: which denominator"),
    F("mix", TEXT, MIX, attn.mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",
      "MHLA: the mixing matrix before training"),
    F("mean", REALS, REAL3, mean, 0, 1, NULL, "subtracted from pixels, 0..1, per channel"),
    F("deviation", REALS, REAL3, deviation, 1e-6, 16, NULL, "what they are divided by"),
    F("crop", REAL, REAL, crop, 0.05, 1, NULL, "evaluation: share of the image side that is kept"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_deit_config, channels)};

const mhla_recipe_row *mhla_deit_rows(void) { return mhla_settings_rows(&table); }

/* The first three fields choose the preset, the rest change it. */
mhla_status mhla_deit_from_recipe(mhla_deit_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_deit_config first = {.model = "deit_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 3, given, prefix));
    MHLA_TRY(mhla_deit_preset(c, first.model, first.structure, first.attn.attention));
    MHLA_TRY(mhla_settings_take(c, &table, 3, table.count, given, prefix));
    char heads[64];
    snprintf(heads, sizeof heads, "%sheads", prefix);
    if (c->attn.attention == MHLA_GRID_INLINE && c->attn.dim % MHLA_GRID_INLINE_HEAD == 0 &&
        !mhla_recipe_has(given, heads))
        c->attn.heads = c->attn.dim / MHLA_GRID_INLINE_HEAD; /* of a width that is not the preset's */
    return mhla_deit_config_check(c);
}

/* timm's config.json: {"architecture": "deit_tiny_patch16_224", "num_classes": 1000, "pretrained_cfg": {...}}. */
static mhla_status read_timm(mhla_deit_config *c, const json_t *tree, const char *path) {
    const char *architecture = json_string_value(json_object_get(tree, "architecture"));
    const char *end = architecture ? strstr(architecture, "_patch") : NULL;
    char model[MHLA_SETTING_CHARS];
    int patch, side;
    if (end == NULL || end - architecture > 20 || sscanf(end, "_patch%d_%d", &patch, &side) != 2 || patch < 1 ||
        side < 1 || side > 16384)
        return mhla_fail(MHLA_EDATA,
                         "%s: architecture \"%.60s\" is none that is known here (deit_tiny_patch16_224, ...)", path,
                         architecture ? architecture : "");
    snprintf(model, sizeof model, "%.*s", (int)(end - architecture), architecture);
    MHLA_TRY(mhla_deit_preset(c, model, MHLA_STRUCTURE_RELEASED, MHLA_GRID_SOFTMAX));
    c->patch = patch;
    c->image[0] = c->image[1] = side;
    int64_t classes = c->classes;
    MHLA_TRY(mhla_json_get_int(&classes, tree, "num_classes", 1, 1000000, path));
    c->classes = (int)classes;
    const json_t *cfg = json_object_get(tree, "pretrained_cfg"), *crop = json_object_get(cfg, "crop_pct");
    if (json_is_number(crop) && json_number_value(crop) > 0.05 && json_number_value(crop) <= 1.0)
        c->crop = json_number_value(crop);
    for (int i = 0; i < 3; i++) {
        const json_t *mean = json_array_get(json_object_get(cfg, "mean"), (size_t)i);
        const json_t *std = json_array_get(json_object_get(cfg, "std"), (size_t)i);
        if (json_is_number(mean)) c->mean[i] = json_number_value(mean);
        if (json_is_number(std) && json_number_value(std) > 0.0) c->deviation[i] = json_number_value(std);
    }
    return mhla_deit_config_check(c);
}

mhla_status mhla_deit_config_read(mhla_deit_config *c, const json_t *tree, const char *path) {
    mhla_recipe *given = NULL;
    if (json_object_get(tree, "architecture")) return read_timm(c, tree, path);
    mhla_status status = mhla_settings_parse(&given, mhla_deit_rows(), tree, path);
    if (status == MHLA_OK) status = mhla_deit_from_recipe(c, given, "");
    mhla_recipe_free(given);
    return mhla_blame(status, path);
}

json_t *mhla_deit_config_tree(const mhla_deit_config *c) { return mhla_settings_tree(c, &table); }

mhla_status mhla_deit_config_check(const mhla_deit_config *c) {
    const mhla_grid_settings *attn = &c->attn;
    int grid[2];
    for (int a = 0; a < 2; a++) {
        const int side = c->image[a] + 2 * c->padding[a];
        if (side % c->patch != 0)
            return mhla_fail(MHLA_EINVAL, "image %d and padding %d make %d pixels, no multiple of patch %d",
                             c->image[a], c->padding[a], side, c->patch);
        grid[a] = side / c->patch;
    }
    if (attn->gate && attn->attention != MHLA_GRID_MALA && attn->attention != MHLA_GRID_RALA)
        return mhla_fail(MHLA_EINVAL, "gate is true: only the attentions mala and rala have it");
    if (c->cpe && c->cpe % 2 == 0) return mhla_fail(MHLA_EINVAL, "cpe is %d: kernels are odd, or 0 for none", c->cpe);
    return mhla_grid_check(attn, grid[0], grid[1]);
}
