/* The choices about Wan: presets, recipes, config.json of ours. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/frame.h"
#include "models/denoisers/wan.h"

enum { TOKENS_MOST = 1 << 24, TURNED_MOST = 1024 /* positions of the rotary embedding on an axis */ };

/* ---- Presets ---- */

/* The published size sees 81 frames of 480 x 800 as latents; the small ones see pixels. Blocks are the release's, 7 x 6 x 5 tokens. */
static const mhla_wan_config presets[] = {
    {.model = "wan_nano",
     .frames = 8,
     .image = {32, 32},
     .channels = 1,
     .patch = 4,
     .dim = 192,
     .ffn = 768,
     .depth = 6,
     .heads = 3,
     .text_width = 64,
     .text_length = 16,
     .classes = 10,
     .blocks = {4, 2, 2}},
    {.model = "wan_micro",
     .frames = 8,
     .image = {32, 32},
     .channels = 1,
     .patch = 4,
     .dim = 96,
     .ffn = 384,
     .depth = 4,
     .heads = 3,
     .text_width = 64,
     .text_length = 16,
     .classes = 10,
     .blocks = {4, 2, 2}},
    {.model = "wan_1300m",
     .frames = 21,
     .image = {60, 100},
     .channels = 16,
     .patch = 2,
     .dim = 1536,
     .ffn = 8960,
     .depth = 30,
     .heads = 12,
     .text_width = 4096,
     .text_length = 512,
     .blocks = {3, 5, 10}},
};
enum { PRESETS = sizeof presets / sizeof *presets };

mhla_status mhla_wan_preset(mhla_wan_config *c, const char *model) {
    const mhla_wan_config *p = NULL;
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].model, model) == 0) p = &presets[i];
    if (p == NULL)
        return mhla_fail(MHLA_EINVAL, "\"%.60s\" is not a model: expected wan_nano, wan_micro or wan_1300m", model);
    *c = *p;
    c->frequencies = 256;
    c->eps = 1e-6;
    c->attention = MHLA_GRID_MHLA;
    c->denominator = MHLA_DEN_NONE;
    c->mix = MHLA_MIX_PAPER;
    c->mix_clip = 1;
    return MHLA_OK;
}

/* ---- Fields ---- */

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_wan_config, member)                                                                          \
    }
static const mhla_setting fields[] = {
    F("model", TEXT, TEXT, model, 0, 0, MHLA_WAN_PRESETS, "the preset that sizes come from"),
    F("attention", TEXT, GRID, attention, 0, 0, "mhla|linear|softmax", "which attention"),
    F("hybrid", INT, INT, hybrid, 0, MHLA_WAN_DEPTH, NULL,
      "softmax attention in every N-th layer, from the first on; 0: none"),
    F("frames", INT, INT, frames, 1, 1024, NULL, "of a clip in training"),
    F("image", INTS, INT2, image, 1, 16384, NULL, "height, width in training"),
    F("channels", INT, INT, channels, 1, 64, NULL, "1 grey, 3 colour, 16 latents"),
    F("patch", INT, INT, patch, 1, 256, NULL, "side of a patch of one frame"),
    F("dim", INT, INT, dim, 4, 16384, NULL, "width of a token"),
    F("ffn", INT, INT, ffn, 1, 65536, NULL, "hidden width of the MLP"),
    F("depth", INT, INT, depth, 1, MHLA_WAN_DEPTH, NULL, "blocks of the transformer"),
    F("heads", INT, INT, heads, 1, 256, NULL, "attention heads"),
    F("frequencies", INT, INT, frequencies, 2, 4096, NULL, "numbers that a time becomes"),
    F("text_width", INT, INT, text_width, 1, 65536, NULL, "width of the rows of a text"),
    F("text_length", INT, INT, text_length, 1, 65536, NULL, "texts are padded to this number of tokens"),
    F("classes", INT, INT, classes, 0, 1000000, NULL, "number of classes; 0: clips from text"),
    F("eps", REAL, REAL, eps, 0, 1, NULL, "of the norms"),
    F("gate", BOOL, BOOL, gate, 0, 0, NULL, "MHLA: the result times silu of a projection"),
    F("lepe", BOOL, BOOL, lepe, 0, 0, NULL, "MHLA: a 3x3x3 convolution of v is added to the result"),
    F("blocks", INTS, INT3, blocks, 1, 1024, NULL, "MHLA: pieces of frames, rows, columns of tokens"),
    F("denominator", TEXT, CHOICE, denominator, 0, 0, "eq4|released|none", "MHLA: which denominator"),
    F("mix", TEXT, MIX, mix, 0, 0, "paper|released-linear|cos|exp|gaussian|local|uniform",
      "MHLA: the mixing matrix before training"),
    F("mix_clip", BOOL, BOOL, mix_clip, 0, 0, NULL, "MHLA: the mixing matrix is kept between 0 and 1 in training"),
};
#undef F
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_wan_config, channels)};

const mhla_recipe_row *mhla_wan_rows(void) { return mhla_settings_rows(&table); }

mhla_status mhla_wan_from_recipe(mhla_wan_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_wan_config chosen = {.model = "wan_nano"};
    MHLA_TRY(mhla_settings_take(&chosen, &table, 0, 1, given, prefix));
    MHLA_TRY(mhla_wan_preset(c, chosen.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    for (int i = 0; i < c->depth; i++)
        c->kinds[i] = (unsigned char)(c->hybrid && i % c->hybrid == 0 ? MHLA_GRID_SOFTMAX : c->attention);
    return mhla_wan_check(c);
}

mhla_status mhla_wan_config_read(mhla_wan_config *c, const json_t *tree, const char *path) {
    mhla_recipe *given = NULL;
    mhla_status status = mhla_settings_parse(&given, mhla_wan_rows(), tree, path);
    if (status == MHLA_OK) status = mhla_wan_from_recipe(c, given, "");
    mhla_recipe_free(given);
    return mhla_blame(status, path);
}

json_t *mhla_wan_config_tree(const mhla_wan_config *c) {
    json_t *tree = mhla_settings_tree(c, &table);
    if (json_object_set_new(tree, "model_type", json_string("mhla_wan")) == 0) return tree;
    json_decref(tree);
    return NULL;
}

/* ---- Checks ---- */

void mhla_wan_grid(int grid[3], const mhla_wan_config *c, mhla_extent e) {
    grid[0] = (int)e.frames;
    grid[1] = (int)(e.height / c->patch);
    grid[2] = (int)(e.width / c->patch);
}

static int has_mhla(const mhla_wan_config *c) {
    for (int i = 0; i < c->depth; i++)
        if (c->kinds[i] == MHLA_GRID_MHLA) return 1;
    return 0;
}

static const char *const axes[] = {"frames", "rows", "columns"};

mhla_status mhla_wan_check_size(const mhla_wan_config *c, mhla_extent e) {
    const int64_t side[2] = {e.height, e.width};
    if (e.frames < 1 || e.frames > TURNED_MOST)
        return mhla_fail(MHLA_EINVAL, "%lld frames: the model makes clips of 1 to %d", (long long)e.frames,
                         TURNED_MOST);
    for (int a = 0; a < 2; a++)
        if (side[a] < 1 || side[a] % c->patch != 0 || side[a] / c->patch > TURNED_MOST)
            return mhla_fail(MHLA_EINVAL, "%s is %lld: expected a multiple of patch %d up to %d",
                             a ? "width" : "height", (long long)side[a], c->patch, c->patch * TURNED_MOST);
    int grid[3];
    mhla_wan_grid(grid, c, e);
    const int64_t tokens = (int64_t)grid[0] * grid[1] * grid[2];
    if (tokens > TOKENS_MOST)
        return mhla_fail(MHLA_EINVAL, "%lld x %lld x %lld makes %lld tokens: expected at most %d", (long long)e.frames,
                         (long long)e.height, (long long)e.width, (long long)tokens, TOKENS_MOST);
    for (int a = 0; a < 3 && has_mhla(c); a++)
        if (c->denominator == MHLA_DEN_RELEASED && grid[a] % c->blocks[a] != 0)
            return mhla_fail(MHLA_EINVAL,
                             "denominator released needs equal blocks: %d %s of tokens are not a multiple of %d blocks",
                             grid[a], axes[a], c->blocks[a]);
    return MHLA_OK;
}

/* In training no block is without tokens: nothing would be learned of it. */
static mhla_status check_blocks(const mhla_wan_config *c) {
    int grid[3];
    mhla_wan_grid(grid, c, mhla_wan_extent(c));
    for (int a = 0; a < 3 && has_mhla(c); a++)
        if (c->blocks[a] > grid[a])
            return mhla_fail(MHLA_EINVAL, "blocks is %d on an axis of %d %s of tokens: at most one block per token",
                             c->blocks[a], grid[a], axes[a]);
    return MHLA_OK;
}

mhla_status mhla_wan_check(const mhla_wan_config *c) {
    if (c->dim % c->heads != 0) return mhla_fail(MHLA_EINVAL, "dim %d is not a multiple of heads %d", c->dim, c->heads);
    const int K = c->dim / c->heads;
    if (K % 2 != 0 || K > 512)
        return mhla_fail(MHLA_EINVAL, "dim %d over heads %d is %d per head: expected an even number up to 512", c->dim,
                         c->heads, K);
    if (c->frequencies % 2 != 0)
        return mhla_fail(MHLA_EINVAL, "frequencies is %d: expected an even number", c->frequencies);
    if ((int64_t)c->blocks[0] * c->blocks[1] * c->blocks[2] > 65536)
        return mhla_fail(MHLA_EINVAL, "blocks multiply to more than 65536");
    MHLA_TRY(check_blocks(c));
    return mhla_wan_check_size(c, mhla_wan_extent(c));
}
