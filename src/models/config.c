/* What can be chosen about a DeiT: one row per field feeds config.json, the settings of a command line and the `model.`
 * keys of a recipe. Presets say what the fields are when nobody chose. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/deit.h"
#include "models/fields.h"

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
enum { SIZES = sizeof sizes / sizeof *sizes, INLINE_HEAD = 32 };

/* What belongs to an attention as its authors wrote it, whatever surrounds it. */
static void preset_own(mhla_deit_config *c) {
    if (c->attention < MHLA_ATTENTION_FOCUSED) return;
    c->qkv_bias = 1;
    c->qk_norm = 0;
    if (c->attention == MHLA_ATTENTION_FOCUSED) c->power = 3;
    if (c->attention == MHLA_ATTENTION_INLINE) {
        c->heads = c->dim / INLINE_HEAD;
        c->lepe = 3;
    }
    c->gate = c->rope = c->attention == MHLA_ATTENTION_MALA || c->attention == MHLA_ATTENTION_RALA;
}

mhla_status mhla_deit_preset(mhla_deit_config *c, const char *model, int structure, int attention) {
    const struct size *s = NULL;
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, sizes[i].name) == 0) s = &sizes[i];
    if (s == NULL)
        return mhla_fail(MHLA_EINVAL, "\"%s\" is no model: there are deit_nano, deit_tiny, deit_small, deit_base",
                         model);
    /* Equal surroundings: whatever can be had with every attention is, so that only the attention differs. */
    *c = (mhla_deit_config){
        .structure = structure,
        .attention = attention,
        .image = {s->image, s->image},
        .channels = 3,
        .padding = {s->padding, s->padding},
        .patch = s->patch,
        .dim = s->dim,
        .depth = s->depth,
        .heads = s->heads,
        .classes = 1000,
        .mlp_ratio = 4.0,
        .norm = MHLA_NORM_LAYER,
        .norm_eps = 1e-6,
        .qk_norm = 1,
        .qk_norm_eps = 1e-6,
        .lepe = 5,
        .feature_eps = 1e-6,
        .den_eps = 1e-6,
        .blocks = {s->blocks, s->blocks},
        .denominator = MHLA_DEN_EQ4,
        .mix = MHLA_MIX_PAPER,
        .mean = {0.485, 0.456, 0.406},
        .deviation = {0.229, 0.224, 0.225},
        .crop = 0.9,
    };
    snprintf(c->model, sizeof c->model, "%s", s->name);
    preset_own(c);
    if (structure != MHLA_STRUCTURE_RELEASED) return MHLA_OK;
    if (attention == MHLA_ATTENTION_MHLA) {
        c->inner_norm = 1;
        c->qk_norm_eps = 0x1p-23; /* PyTorch's RMSNorm without an eps */
        c->denominator = MHLA_DEN_RELEASED;
        c->mix = MHLA_MIX_RELEASED_LINEAR;
    } else {
        c->padding[0] = c->padding[1] = 0;
    }
    if (attention == MHLA_ATTENTION_LINEAR) {
        c->lepe = 0;
        c->norm = MHLA_NORM_RMS;
        c->feature_eps = 0.0;
    }
    if (attention == MHLA_ATTENTION_SOFTMAX) { /* timm's DeiT */
        c->lepe = 0;
        c->class_token = 1;
        c->qkv_bias = 1;
        c->qk_norm = 0;
    }
    if (attention == MHLA_ATTENTION_INLINE) c->class_token = 1;
    return MHLA_OK;
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

static const mhla_field fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_FIELD_##kind,                               \
            offsetof(mhla_deit_config, member)                                                                         \
    }
    F("model", TEXT, TEXT, model, 0, 0, "deit_nano|deit_tiny|deit_small|deit_base", "the preset that sizes come from"),
    F("structure", TEXT, CHOICE, structure, 0, 0, "equal|released",
      "equal: all but the attention, and what belongs to it, alike for all; released: as published"),
    F("attention", TEXT, CHOICE, attention, 0, 0, "mhla|linear|softmax|focused|inline|mala|rala", "which attention"),
    F("image", INTS, INT2, image, 1, 16384, NULL, "height, width of an input image"),
    F("channels", INT, INT, channels, 1, 3, NULL, "1 grey, 3 colour"),
    F("padding", INTS, INT2, padding, 0, 4096, NULL, "zero pixels added on each side: above and below, left and right"),
    F("patch", INT, INT, patch, 1, 256, NULL, "side of a patch, pixels"),
    F("dim", INT, INT, dim, 1, 16384, NULL, "width of a token"),
    F("depth", INT, INT, depth, 1, 256, NULL, "blocks of the transformer"),
    F("heads", INT, INT, heads, 1, 256, NULL, "attention heads; inline, where not given: dim over 32"),
    F("classes", INT, INT, classes, 1, 1000000, NULL, "how many classes"),
    F("mlp_ratio", REAL, REAL, mlp_ratio, 0.01, 64, NULL, "hidden width of the MLP over dim"),
    F("class_token", BOOL, BOOL, class_token, 0, 0, NULL,
      "read a class token out instead of the mean of all tokens; MHLA: a block of its own"),
    F("norm", TEXT, CHOICE, norm, 0, 0, "layer|rms", "norms of blocks and output"),
    F("norm_eps", REAL, REAL, norm_eps, 0, 1, NULL, "their eps"),
    F("cpe", INT, INT, cpe, 0, 31, NULL, "kernel of the convolution that starts each block (3), 0 none"),
    F("inner_norm", BOOL, BOOL, inner_norm, 0, 0, NULL, "a second LayerNorm right before the attention"),
    F("qkv_bias", BOOL, BOOL, qkv_bias, 0, 0, NULL, "biases of q, k, v"),
    F("qk_norm", BOOL, BOOL, qk_norm, 0, 0, NULL, "RMS norm of q and k over all heads"),
    F("qk_norm_eps", REAL, REAL, qk_norm_eps, 0, 1, NULL, "its eps"),
    F("lepe", INT, INT, lepe, 0, 31, NULL,
      "kernel of the convolution of v added to the attention (5, inline 3), 0 none"),
    F("gate", BOOL, BOOL, gate, 0, 0, NULL, "mala, rala: the result times a fourth part of the projection"),
    F("rope", BOOL, BOOL, rope, 0, 0, NULL, "mala, rala: axial rotary embedding"),
    F("power", INT, INT, power, 0, 16, NULL, "focused: of its features (3)"),
    F("feature_eps", REAL, REAL, feature_eps, 0, 1, NULL, "added to relu features"),
    F("den_eps", REAL, REAL, den_eps, 0, 1, NULL, "added to the denominator"),
    F("blocks", INTS, INT2, blocks, 1, 256, NULL, "MHLA: pieces per axis of the grid of patches"),
    F("denominator", TEXT, CHOICE, denominator, 0, 0, "eq4|released|none", "MHLA: which denominator"),
    F("mix", TEXT, MIX, mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",
      "MHLA: the mixing matrix before training"),
    F("mean", REALS, REAL3, mean, 0, 1, NULL, "subtracted from pixels, 0..1, per channel"),
    F("deviation", REALS, REAL3, deviation, 1e-6, 16, NULL, "what they are divided by"),
    F("crop", REAL, REAL, crop, 0.05, 1, NULL, "evaluation: part of the image's side that is seen"),
#undef F
};
static const mhla_fields table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_deit_config, channels)};

const mhla_recipe_row *mhla_deit_rows(void) {
    static mhla_recipe_row rows[MHLA_FIELDS + 1]; /* the same bytes whoever fills it */
    mhla_fields_rows(rows, &table);
    return rows;
}

/* The first three fields choose the preset, the rest change it. */
mhla_status mhla_deit_from_recipe(mhla_deit_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_deit_config first = {.model = "deit_nano"};
    MHLA_TRY(mhla_fields_take(&first, &table, 0, 3, given, prefix));
    MHLA_TRY(mhla_deit_preset(c, first.model, first.structure, first.attention));
    MHLA_TRY(mhla_fields_take(c, &table, 3, table.count, given, prefix));
    char heads[64];
    snprintf(heads, sizeof heads, "%sheads", prefix);
    if (c->attention == MHLA_ATTENTION_INLINE && c->dim % INLINE_HEAD == 0 && !mhla_recipe_has(given, heads))
        c->heads = c->dim / INLINE_HEAD; /* of a width that is not the preset's */
    return mhla_deit_config_check(c);
}

mhla_status mhla_deit_config_read(mhla_deit_config *c, const json_t *tree, const char *path) {
    mhla_recipe *given = NULL;
    mhla_status status = mhla_fields_parse(&given, mhla_deit_rows(), tree, path);
    if (status == MHLA_OK) status = mhla_deit_from_recipe(c, given, "");
    mhla_recipe_free(given);
    return mhla_blame(status, path);
}

json_t *mhla_deit_config_tree(const mhla_deit_config *c) { return mhla_fields_tree(c, &table); }

mhla_status mhla_deit_config_check(const mhla_deit_config *c) {
    for (int a = 0; a < 2; a++) {
        const int side = c->image[a] + 2 * c->padding[a];
        if (side % c->patch != 0)
            return mhla_fail(MHLA_EINVAL, "image %d and padding %d make %d pixels, no multiple of patch %d",
                             c->image[a], c->padding[a], side, c->patch);
        const int grid = side / c->patch;
        if (c->attention != MHLA_ATTENTION_MHLA) continue;
        if (c->blocks[a] > grid)
            return mhla_fail(MHLA_EINVAL, "blocks is %d on an axis of %d patches: at most one block per patch",
                             c->blocks[a], grid);
        if (c->denominator == MHLA_DEN_RELEASED && grid % c->blocks[a] != 0)
            return mhla_fail(MHLA_EINVAL,
                             "denominator \"released\" needs equal blocks: %d patches are no multiple of %d blocks",
                             grid, c->blocks[a]);
    }
    if (c->dim % c->heads != 0) return mhla_fail(MHLA_EINVAL, "dim %d is no multiple of heads %d", c->dim, c->heads);
    if ((c->gate || c->rope) && c->attention != MHLA_ATTENTION_MALA && c->attention != MHLA_ATTENTION_RALA)
        return mhla_fail(MHLA_EINVAL, "%s is true: only the attentions mala and rala have it",
                         c->gate ? "gate" : "rope");
    if (c->rope && c->dim / c->heads % 4 != 0)
        return mhla_fail(MHLA_EINVAL,
                         "dim %d over heads %d is %d per head: an axial rotary embedding (rope) needs a multiple of 4",
                         c->dim, c->heads, c->dim / c->heads);
    if ((c->power > 0) != (c->attention == MHLA_ATTENTION_FOCUSED))
        return mhla_fail(MHLA_EINVAL, "power is %d: the attention focused has one, 1 to 16, the others none (0)",
                         c->power);
    if ((c->lepe && c->lepe % 2 == 0) || (c->cpe && c->cpe % 2 == 0))
        return mhla_fail(MHLA_EINVAL, "lepe is %d, cpe is %d: kernels are odd, or 0 for none", c->lepe, c->cpe);
    if (c->attention == MHLA_ATTENTION_MHLA && c->class_token && c->denominator == MHLA_DEN_RELEASED)
        return mhla_fail(MHLA_EINVAL,
                         "denominator \"released\" needs equal blocks, and a class token is a block of one "
                         "token: set denominator to eq4, or class_token to false");
    if (c->dim / c->heads > 512)
        return mhla_fail(MHLA_EINVAL, "dim %d over heads %d is more than 512 per head", c->dim, c->heads);
    return MHLA_OK;
}
