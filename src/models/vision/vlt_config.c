/* What can be chosen about a VLT: one row per field feeds config.json, the settings of a command line and the `model.` keys
 * of a recipe. Presets say what the fields are when nobody chose. */
#include "models/vision/vlt.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"

/* ---- Presets -------------------------------------------------------------------------------------------------- */

enum { MHLA, RALA, MALA };
static const int kinds[] = {MHLA_GRID_MHLA, MHLA_GRID_RALA, MHLA_GRID_MALA};

/* MHLA's tables match MAViT's head of 2048: RAVLT's of 1024 would be 1.5 million parameters less than published. */
static const struct size {
    const char *name;
    int attention, dims[4], depths[4], heads[4], projection;
    double deep; /* layer scale of stages 3 and 4 */
} sizes[] = {
    {"vlt_nano", MHLA, {32, 64, 96, 128}, {1, 1, 2, 1}, {1, 2, 3, 4}, 256, 1.0},
    {"mhla_vlt_tiny", MHLA, {64, 128, 256, 512}, {2, 2, 6, 2}, {1, 2, 4, 8}, 2048, 1.0},
    {"mhla_vlt_small", MHLA, {64, 128, 320, 512}, {3, 5, 9, 3}, {1, 2, 5, 8}, 2048, 1.0},
    {"ravlt_tiny", RALA, {64, 128, 256, 512}, {2, 2, 6, 2}, {1, 2, 4, 8}, 1024, 1.0},
    {"ravlt_small", RALA, {64, 128, 320, 512}, {3, 5, 9, 3}, {1, 2, 5, 8}, 1024, 1.0},
    {"ravlt_base", RALA, {96, 192, 384, 512}, {4, 6, 12, 6}, {1, 2, 6, 8}, 1024, 1e-6},
    {"ravlt_large", RALA, {96, 192, 448, 640}, {4, 7, 19, 8}, {1, 2, 7, 10}, 1024, 1e-6},
    {"mavit_tiny", MALA, {64, 128, 256, 512}, {2, 2, 6, 2}, {1, 2, 4, 8}, 2048, 1.0},
    {"mavit_small", MALA, {64, 128, 320, 512}, {3, 5, 9, 3}, {1, 2, 5, 8}, 2048, 1.0},
    {"mavit_base", MALA, {96, 192, 384, 512}, {4, 6, 12, 6}, {1, 2, 6, 8}, 2048, 1e-6},
    {"mavit_large", MALA, {96, 192, 448, 640}, {4, 7, 19, 8}, {1, 2, 7, 10}, 2560, 1e-6},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

mhla_status mhla_vlt_preset(mhla_vlt_config *c, const char *model) {
    const struct size *s = NULL;
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, sizes[i].name) == 0) s = &sizes[i];
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "\"%s\" is not a model: expected one of %s", model, MHLA_VLT_PRESETS);
    const int nano = s == sizes, large = strstr(s->name, "_large") != NULL;
    *c = (mhla_vlt_config){
        .attention = s->attention,
        .image = {nano ? 32 : 224, nano ? 32 : 224},
        .channels = 3,
        .mlp_ratios = {3.5, 3.5, 3.5, 3.5},
        .layer_scale = {large ? s->deep : 1.0, large ? s->deep : 1.0, s->deep, s->deep},
        .projection = s->projection,
        .classes = 1000,
        .gate = 1,
        .rope = 1,
        .lepe = 5,
        .qk_norm_eps = 1e-6,
        .blocks = {nano ? 4 : 7, nano ? 4 : 7, nano ? 2 : 4, nano ? 2 : 4},
        .phi = MHLA_FEATURE_ELU,
        .feature_eps = 1e-6,
        .den_eps = 1e-6,
        .denominator = MHLA_DEN_EQ4,
        .mix = MHLA_MIX_PAPER,
        .mix_low = 1e-6, /* the paper's is an open interval */
        .mix_decay = 1,
        .mean = {0.485, 0.456, 0.406},
        .deviation = {0.229, 0.224, 0.225},
        .crop = nano ? 1.0 : 0.875,
    };
    memcpy(c->dims, s->dims, sizeof c->dims);
    memcpy(c->depths, s->depths, sizeof c->depths);
    memcpy(c->heads, s->heads, sizeof c->heads);
    snprintf(c->model, sizeof c->model, "%s", s->name);
    return MHLA_OK;
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_vlt_config, member)                                                                          \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_VLT_PRESETS, "the preset that sizes come from"),
    F("attention", TEXT, CHOICE, attention, 0, 0, "mhla|rala|mala", "which linear attention stages 1 and 2 have"),
    F("image", INTS, INT2, image, 1, 16384, NULL, "height, width of an input image"),
    F("channels", INT, INT, channels, 1, 3, NULL, "1 grey, 3 colour"),
    F("dims", INTS, INT4, dims, 2, 16384, NULL, "width of a token in each stage"),
    F("depths", INTS, INT4, depths, 1, 64, NULL, "blocks of each stage"),
    F("heads", INTS, INT4, heads, 1, 256, NULL, "attention heads of each stage"),
    F("mlp_ratios", REALS, REAL4, mlp_ratios, 0.01, 64, NULL, "hidden width of the FFN over dims, each stage"),
    F("layer_scale", REALS, REAL4, layer_scale, 0, 10, NULL, "initial layer scale of each stage, 0: none"),
    F("projection", INT, INT, projection, 1, 65536, NULL, "width of the layer before the classes"),
    F("classes", INT, INT, classes, 1, 1000000, NULL, "how many classes"),
    F("gate", BOOL, BOOL, gate, 0, 0, NULL, "the attention's result times a fourth part of the projection"),
    F("rope", BOOL, BOOL, rope, 0, 0, NULL, "axial rotary embedding"),
    F("lepe", INT, INT, lepe, 0, 31, NULL, "kernel of the convolution of v added to the attention (5), 0 none"),
    F("qk_norm", BOOL, BOOL, qk_norm, 0, 0, NULL, "RMS norm of q and k over all heads"),
    F("qk_norm_eps", REAL, REAL, qk_norm_eps, 0, 1, NULL, "its eps"),
    F("blocks", INTS, INT4, blocks, 1, 256, NULL, "MHLA: pieces of rows and columns, of stage 1 and of stage 2"),
    F("phi", TEXT, CHOICE, phi, 0, 0, "relu|elu", "MHLA: feature map, relu + feature_eps or elu + 1"),
    F("feature_eps", REAL, REAL, feature_eps, 0, 1, NULL, "MHLA: added to relu features"),
    F("den_eps", REAL, REAL, den_eps, 0, 1, NULL, "linear attention: added to the denominator"),
    F("denominator", TEXT, CHOICE, denominator, 0, 0, "eq4|released|none", "MHLA: which denominator"),
    F("mix", TEXT, MIX, mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",
      "MHLA: the mixing matrix before training"),
    F("mix_decay", BOOL, BOOL, mix_decay, 0, 0, NULL, "MHLA: weight decay applies to mixing matrices"),
    F("mean", REALS, REAL3, mean, 0, 1, NULL, "subtracted from pixels, 0..1, per channel"),
    F("deviation", REALS, REAL3, deviation, 1e-6, 16, NULL, "what they are divided by"),
    F("crop", REAL, REAL, crop, 0.05, 1, NULL, "evaluation: share of the image side that is kept"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_vlt_config, channels)};

const mhla_recipe_row *mhla_vlt_rows(void) { return mhla_settings_rows(&table); }

/* The first field chooses the preset, the rest change it. */
mhla_status mhla_vlt_from_recipe(mhla_vlt_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_vlt_config first = {.model = "vlt_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 1, given, prefix));
    MHLA_TRY(mhla_vlt_preset(c, first.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    return mhla_vlt_config_check(c);
}

mhla_status mhla_vlt_config_read(mhla_vlt_config *c, const json_t *tree, const char *path) {
    mhla_recipe *given = NULL;
    mhla_status status = mhla_settings_parse(&given, mhla_vlt_rows(), tree, path);
    if (status == MHLA_OK) status = mhla_vlt_from_recipe(c, given, "");
    mhla_recipe_free(given);
    return mhla_blame(status, path);
}

json_t *mhla_vlt_config_tree(const mhla_vlt_config *c) { return mhla_settings_tree(c, &table); }

void mhla_vlt_grid(int grid[2], const mhla_vlt_config *c, int s) {
    for (int a = 0; a < 2; a++) {
        grid[a] = (c->image[a] + 1) / 2;
        for (int i = 0; i <= s; i++) grid[a] = (grid[a] + 1) / 2; /* a 3x3 convolution, stride 2, padding 1 */
    }
}

mhla_grid_settings mhla_vlt_attention_of(const mhla_vlt_config *c, int s) {
    const mhla_initial usual = MHLA_TRUNC_NORMAL(0.02);
    mhla_grid_settings a = {
        .attention = s < 2 ? kinds[c->attention] : MHLA_GRID_SOFTMAX,
        .dim = c->dims[s],
        .heads = c->heads[s],
        .pointwise = 1,
        .qkv_bias = 1,
        .qk_norm = c->qk_norm,
        .qk_norm_eps = c->qk_norm_eps,
        .lepe = c->lepe,
        .gate = c->gate,
        .rope = c->rope,
        .den_eps = c->den_eps,
        .weights = usual,
        .filters = usual,
    };
    if (a.attention != MHLA_GRID_MHLA) return a;
    a.elu = c->phi == MHLA_FEATURE_ELU;
    a.feature_eps = c->feature_eps;
    for (int i = 0; i < 2; i++) a.blocks[i] = c->blocks[2 * s + i];
    a.denominator = c->denominator;
    a.mix = c->mix;
    a.mix_low = c->mix_low;
    a.mix_constant = !c->mix_decay;
    return a;
}

mhla_status mhla_vlt_config_check(const mhla_vlt_config *c) {
    if (c->dims[0] % 2 != 0)
        return mhla_fail(MHLA_EINVAL, "dims begins with %d: the first convolutions have half as many channels",
                         c->dims[0]);
    for (int s = 0; s < MHLA_VLT_STAGES; s++) {
        const mhla_grid_settings a = mhla_vlt_attention_of(c, s);
        int grid[2];
        mhla_vlt_grid(grid, c, s);
        if ((int)(c->mlp_ratios[s] * c->dims[s]) < 1)
            return mhla_fail(MHLA_EINVAL, "mlp_ratios %g of a width of %d is less than one", c->mlp_ratios[s],
                             c->dims[s]);
        const mhla_status status = mhla_grid_check(&a, grid[0], grid[1]);
        if (status != MHLA_OK) {
            char why[256];
            snprintf(why, sizeof why, "%s", mhla_message());
            return mhla_fail(status, "stage %d, a grid of %d x %d: %s", s + 1, grid[0], grid[1], why);
        }
    }
    return MHLA_OK;
}
