/* What can be chosen about a DiT, and what it is when nobody chose: the presets. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/dit.h"

/* ---- Presets -------------------------------------------------------------------------------------------------- */

/* The published sizes see latents of 32 x 32 x 4, images of 256 x 256; the small ones see pixels. Blocks keep to the paper's
 * rule for a linear cost, M * M <= T. */
static const struct size {
    const char *name;
    int image, channels, patch, dim, depth, heads, classes, blocks;
} sizes[] = {
    {"dit_nano", 32, 3, 2, 192, 6, 3, 10, 4},      {"dit_micro", 32, 3, 2, 96, 4, 3, 10, 4},
    {"dit_s_2", 32, 4, 2, 384, 12, 6, 1000, 4},    {"dit_s_4", 32, 4, 4, 384, 12, 6, 1000, 2},
    {"dit_s_8", 32, 4, 8, 384, 12, 6, 1000, 2},    {"dit_b_2", 32, 4, 2, 768, 12, 12, 1000, 4},
    {"dit_b_4", 32, 4, 4, 768, 12, 12, 1000, 2},   {"dit_b_8", 32, 4, 8, 768, 12, 12, 1000, 2},
    {"dit_l_2", 32, 4, 2, 1024, 24, 16, 1000, 4},  {"dit_l_4", 32, 4, 4, 1024, 24, 16, 1000, 2},
    {"dit_l_8", 32, 4, 8, 1024, 24, 16, 1000, 2},  {"dit_xl_2", 32, 4, 2, 1152, 28, 16, 1000, 4},
    {"dit_xl_4", 32, 4, 4, 1152, 28, 16, 1000, 2}, {"dit_xl_8", 32, 4, 8, 1152, 28, 16, 1000, 2},
};
enum { SIZES = sizeof sizes / sizeof *sizes, TOKENS_MOST = 1 << 24 };

mhla_status mhla_dit_preset(mhla_dit_config *c, const char *model, int structure, int attention, int process) {
    const struct size *s = NULL;
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, sizes[i].name) == 0) s = &sizes[i];
    if (s == NULL)
        return mhla_fail(MHLA_EINVAL,
                         "\"%.60s\" is not a model: expected dit_nano, dit_micro and dit_{s,b,l,xl}_{2,4,8}", model);
    /* Equal surroundings: whatever can be had with every attention is, so that only the attention differs. */
    *c = (mhla_dit_config){
        .structure = structure,
        .process = process,
        .image = {s->image, s->image},
        .channels = s->channels,
        .patch = s->patch,
        .depth = s->depth,
        .classes = s->classes,
        .mlp_ratio = 4.0,
        .learn_sigma = s->channels == 4 && process != MHLA_DIT_FLOW,
        .null_label = 1,
        .attn = {.attention = attention,
                 .dim = s->dim,
                 .heads = s->heads,
                 .lepe = 3,
                 .gate_norm = 1,
                 .qkv_bias = 1,
                 .qk_norm_eps = 1e-6,
                 .feature_eps = 1e-6,
                 .den_eps = 1e-6,
                 .blocks = {s->blocks, s->blocks},
                 .denominator = MHLA_DEN_EQ4,
                 .mix = MHLA_MIX_PAPER,
                 .mix_low = structure == MHLA_STRUCTURE_RELEASED ? 0.0 : 1e-6}, /* the paper's is an open interval */
    };
    snprintf(c->model, sizeof c->model, "%s", s->name);
    if (structure != MHLA_STRUCTURE_RELEASED) return MHLA_OK;
    if (attention == MHLA_GRID_SOFTMAX) { /* facebookresearch's DiT */
        c->attn.lepe = 0;
        return MHLA_OK;
    }
    c->dropout = 0.1;
    c->attn.inner_norm = 1;
    c->attn.qk_norm_eps = 1.1920928955078125e-07;
    c->attn.denominator = MHLA_DEN_RELEASED;
    c->attn.mix = MHLA_MIX_RELEASED_LINEAR;
    return MHLA_OK;
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_dit_config, member)                                                                          \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_DIT_PRESETS, "the preset that sizes come from"),
    F("structure", TEXT, CHOICE, structure, 0, 0, "equal|released",
      "equal: all but the attention alike for all; released: as published"),
    F("attention", TEXT, CHOICE, attn.attention, 0, 0, "mhla|linear|softmax", "which attention"),
    F("process", TEXT, CHOICE, process, 0, 0, "linear|cosine|flow",
      "what it is trained for: a diffusion by its noise levels, or a flow"),
    F("image", INTS, INT2, image, 1, 16384, NULL, "height, width in training"),
    F("channels", INT, INT, channels, 1, 64, NULL, "1 grey, 3 colour, 4 latents"),
    F("patch", INT, INT, patch, 1, 256, NULL, "side of a patch"),
    F("dim", INT, INT, attn.dim, 4, 16384, NULL, "width of a token"),
    F("depth", INT, INT, depth, 1, 256, NULL, "blocks of the transformer"),
    F("heads", INT, INT, attn.heads, 1, 256, NULL, "attention heads"),
    F("classes", INT, INT, classes, 1, 1000000, NULL, "how many classes"),
    F("mlp_ratio", REAL, REAL, mlp_ratio, 0.01, 64, NULL, "hidden width of the MLP over dim"),
    F("learn_sigma", BOOL, BOOL, learn_sigma, 0, 0, NULL,
      "also predict the variance: the output has twice the channels"),
    F("null_label", BOOL, BOOL, null_label, 0, 0, NULL, "an extra label for \"no class\", which guidance needs"),
    F("cpe", TEXT, CHOICE, cpe, 0, 0, "none|grid|folded",
      "3x3 convolution that ends each block: on the grid, or as released on the tokens' list folded into a square"),
    F("lepe", INT, INT, attn.lepe, 0, 31, NULL, "kernel of the convolution of v added to the attention (3), 0 none"),
    F("gate", BOOL, BOOL, attn.gate, 0, 0, NULL, "the attention's result times silu of a projection"),
    F("gate_norm", BOOL, BOOL, attn.gate_norm, 0, 0, NULL, "with an RMS norm of each head before"),
    F("inner_norm", BOOL, BOOL, attn.inner_norm, 0, 0, NULL, "a second LayerNorm right before the attention"),
    F("qkv_bias", BOOL, BOOL, attn.qkv_bias, 0, 0, NULL, "biases of q, k, v"),
    F("qk_norm", BOOL, BOOL, attn.qk_norm, 0, 0, NULL, "RMS norm of q and k over all heads"),
    F("qk_norm_eps", REAL, REAL, attn.qk_norm_eps, 0, 1, NULL, "its eps"),
    F("dropout", REAL, REAL, dropout, 0, 0.99, NULL, "of the attention's result, in training"),
    F("feature_eps", REAL, REAL, attn.feature_eps, 0, 1, NULL, "added to relu features"),
    F("den_eps", REAL, REAL, attn.den_eps, 0, 1, NULL, "added to the denominator"),
    F("blocks", INTS, INT2, attn.blocks, 1, 256, NULL, "MHLA: pieces per axis of the grid of patches"),
    F("denominator", TEXT, CHOICE, attn.denominator, 0, 0, "eq4|released|none", "MHLA: which denominator"),
    F("mix", TEXT, MIX, attn.mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",
      "MHLA: the mixing matrix before training"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_dit_config, channels)};

const mhla_recipe_row *mhla_dit_rows(void) { return mhla_settings_rows(&table); }

/* The first four fields choose the preset, the rest change it. */
mhla_status mhla_dit_from_recipe(mhla_dit_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_dit_config first = {.model = "dit_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 4, given, prefix));
    MHLA_TRY(mhla_dit_preset(c, first.model, first.structure, first.attn.attention, first.process));
    MHLA_TRY(mhla_settings_take(c, &table, 4, table.count, given, prefix));
    return mhla_dit_config_check(c);
}

mhla_status mhla_dit_config_read(mhla_dit_config *c, const json_t *tree, const char *path) {
    mhla_recipe *given = NULL;
    mhla_status status = mhla_settings_parse(&given, mhla_dit_rows(), tree, path);
    if (status == MHLA_OK) status = mhla_dit_from_recipe(c, given, "");
    mhla_recipe_free(given);
    return mhla_blame(status, path);
}

json_t *mhla_dit_config_tree(const mhla_dit_config *c) {
    json_t *tree = mhla_settings_tree(c, &table);
    if (json_object_set_new(tree, "model_type", json_string("mhla_dit")) == 0) return tree;
    json_decref(tree);
    return NULL;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------- */

mhla_status mhla_dit_check_size(const mhla_dit_config *c, int64_t height, int64_t width) {
    const int64_t side[2] = {height, width};
    for (int a = 0; a < 2; a++) {
        if (side[a] < 1 || side[a] > 65536 || side[a] % c->patch != 0)
            return mhla_fail(MHLA_EINVAL, "%s is %lld: expected a multiple of patch %d up to 65536",
                             a ? "width" : "height", (long long)side[a], c->patch);
        if (c->cpe == MHLA_DIT_CPE_FOLDED && c->attn.blocks[a] > side[a] / c->patch)
            return mhla_fail(MHLA_EINVAL, "blocks is %d on an axis of %lld patches: at most one block per patch",
                             c->attn.blocks[a], (long long)(side[a] / c->patch));
    }
    MHLA_TRY(mhla_grid_check(&c->attn, height / c->patch, width / c->patch));
    const int64_t tokens = mhla_dit_tokens(c, height, width);
    if (tokens > TOKENS_MOST)
        return mhla_fail(MHLA_EINVAL, "%lld x %lld makes %lld tokens: expected at most %d", (long long)height,
                         (long long)width, (long long)tokens, TOKENS_MOST);
    int64_t root = 1;
    while (root * root < tokens) root++;
    if (c->cpe == MHLA_DIT_CPE_FOLDED && root * root != tokens)
        return mhla_fail(MHLA_EINVAL, "cpe \"folded\" makes a square of the tokens: %lld are none; \"grid\" takes any",
                         (long long)tokens);
    return MHLA_OK;
}

mhla_status mhla_dit_config_check(const mhla_dit_config *c) {
    if (c->attn.dim % 4 != 0)
        return mhla_fail(MHLA_EINVAL, "dim is %d: the position table needs a multiple of 4", c->attn.dim);
    if (c->learn_sigma && c->process == MHLA_DIT_FLOW)
        return mhla_fail(MHLA_EINVAL, "learn_sigma is true and process is flow: a flow has no variance to learn");
    return mhla_dit_check_size(c, c->image[0], c->image[1]);
}
