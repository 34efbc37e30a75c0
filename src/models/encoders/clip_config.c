/* What can be chosen about a CLIP: presets, and the config.json of Hugging Face and of open_clip. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/encoders/clip.h"

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_clip_config, member)                                                                         \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_CLIP_PRESETS, "the preset that sizes come from"),
    F("image_size", INT, INT, side, 1, 4096, NULL, "side of an image, pixels"),
    F("patch_size", INT, INT, patch, 1, 512, NULL, "side of a patch"),
    F("vision_hidden_size", INT, INT, image.width, 1, 1 << 16, NULL, "width of the tower of images"),
    F("vision_layers", INT, INT, image.layers, 1, 256, NULL, "its layers"),
    F("vision_heads", INT, INT, image.heads, 1, 256, NULL, "its heads"),
    F("vision_intermediate_size", INT, INT, image.hidden, 1, 1 << 18, NULL, "hidden width of its MLPs"),
    F("hidden_size", INT, INT, text.width, 1, 1 << 16, NULL, "width of the tower of texts"),
    F("layers", INT, INT, text.layers, 1, 256, NULL, "its layers"),
    F("heads", INT, INT, text.heads, 1, 256, NULL, "its heads"),
    F("intermediate_size", INT, INT, text.hidden, 1, 1 << 18, NULL, "hidden width of its MLPs"),
    F("vocab_size", INT, INT, vocabulary, 1, 1 << 24, NULL, "how many tokens there are"),
    F("max_position_embeddings", INT, INT, positions, 1, 1 << 16, NULL, "tokens of a text"),
    F("projection_dim", INT, INT, dims, 1, 1 << 16, NULL, "numbers of a vector"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_clip_config, channels)};

/* In a tower's part of a config.json. */
#define F(name, type, kind, member, least, most, choices)                                                              \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, name}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_clip_tower, member)                                                                          \
    }
static const mhla_setting tower_fields[] = {
    F("hidden_size", INT, INT, width, 1, 1 << 16, NULL),
    F("num_hidden_layers", INT, INT, layers, 1, 256, NULL),
    F("num_attention_heads", INT, INT, heads, 1, 256, NULL),
    F("intermediate_size", INT, INT, hidden, 1, 1 << 18, NULL),
    F("hidden_act", TEXT, CHOICE, activation, 0, 0, "quick_gelu|gelu"),
    F("layer_norm_eps", REAL, REAL, eps, 0, 1, NULL),
};
#undef F
static const mhla_settings tower_table = {tower_fields, sizeof tower_fields / sizeof *tower_fields, 0};

const mhla_recipe_row *mhla_clip_rows(void) { return mhla_settings_rows(&table); }

/* ---- Presets: OpenAI's ---- */

static mhla_status preset(mhla_clip_config *c, const char *model) {
    static const struct {
        const char *name;
        mhla_clip_tower text, image;
        int vocabulary, positions, side, patch, dims;
    } known[] = {
        {"clip_vit_b32", {512, 12, 8, 2048, 0, 1e-5}, {768, 12, 12, 3072, 0, 1e-5}, 49408, 77, 224, 32, 512},
        {"clip_vit_b16", {512, 12, 8, 2048, 0, 1e-5}, {768, 12, 12, 3072, 0, 1e-5}, 49408, 77, 224, 16, 512},
        {"clip_vit_l14", {768, 12, 12, 3072, 0, 1e-5}, {1024, 24, 16, 4096, 0, 1e-5}, 49408, 77, 224, 14, 768},
        {"clip_nano", {32, 2, 2, 64, 0, 1e-5}, {48, 2, 3, 96, 0, 1e-5}, 512, 16, 32, 8, 24},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(model, known[i].name) != 0) continue;
        *c = (mhla_clip_config){.text = known[i].text,
                                .image = known[i].image,
                                .vocabulary = known[i].vocabulary,
                                .positions = known[i].positions,
                                .side = known[i].side,
                                .patch = known[i].patch,
                                .channels = 3,
                                .dims = known[i].dims,
                                .mean = {0.48145466, 0.4578275, 0.40821073},
                                .deviation = {0.26862954, 0.26130258, 0.27577711}};
        snprintf(c->model, sizeof c->model, "%s", model);
        return MHLA_OK;
    }
    return mhla_fail(MHLA_EINVAL, "%s is not a CLIP: there are clip_vit_b32, clip_vit_b16, clip_vit_l14, clip_nano",
                     model);
}

mhla_status mhla_clip_from_recipe(mhla_clip_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_clip_config first = {.model = "clip_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 1, given, prefix));
    MHLA_TRY(preset(c, first.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    return mhla_clip_config_check(c);
}

/* ---- Files ---- */

/* Keys that equal those of B/32 may be missing. */
mhla_status mhla_clip_config_read(mhla_clip_config *c, const json_t *tree, const char *path) {
    const json_t *text = json_object_get(tree, "text_config"), *image = json_object_get(tree, "vision_config");
    MHLA_TRY(preset(c, "clip_vit_b32"));
    *c->model = '\0';
    MHLA_TRY(mhla_settings_read(&c->text, &tower_table, 0, text, path));
    MHLA_TRY(mhla_settings_read(&c->image, &tower_table, 0, image, path));
    MHLA_TRY(mhla_settings_read_int(&c->vocabulary, text, "vocab_size", 1, 1 << 24, path));
    MHLA_TRY(mhla_settings_read_int(&c->positions, text, "max_position_embeddings", 1, 1 << 16, path));
    MHLA_TRY(mhla_settings_read_int(&c->side, image, "image_size", 1, 4096, path));
    MHLA_TRY(mhla_settings_read_int(&c->patch, image, "patch_size", 1, 512, path));
    MHLA_TRY(mhla_settings_read_int(&c->channels, image, "num_channels", 3, 3, path));
    MHLA_TRY(mhla_settings_read_int(&c->dims, tree, "projection_dim", 1, 1 << 16, path));
    return mhla_blame(mhla_clip_config_check(c), path);
}

static mhla_status read_three(double to[3], const json_t *tree, const char *name, const char *path) {
    const json_t *list = json_object_get(tree, name);
    if (list == NULL) return MHLA_OK;
    for (size_t i = 0; i < 3; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_number(x) || json_array_size(list) != 3)
            return mhla_fail(MHLA_EDATA, "%s: \"%s\" is not a list of three numbers", path, name);
        to[i] = json_number_value(x);
    }
    return MHLA_OK;
}

/* Its activation is the exact GELU unless it says otherwise; sizes are those of the tensors, but for heads. */
mhla_status mhla_clip_open_config_read(mhla_clip_config *c, const json_t *tree, const char *path) {
    const json_t *model = json_object_get(tree, "model_cfg"), *about = json_object_get(tree, "preprocess_cfg");
    const json_t *text = json_object_get(model, "text_cfg"), *image = json_object_get(model, "vision_cfg");
    int quick = 0, width = 64;
    if (!json_is_object(text) || !json_is_object(image))
        return mhla_fail(MHLA_EDATA, "%s: no \"model_cfg\" with \"text_cfg\" and \"vision_cfg\"", path);
    if (json_object_get(text, "hf_model_name") || json_object_get(image, "timm_model_name"))
        return mhla_fail(MHLA_ENOTSUP, "%s: towers of other kinds than CLIP's are not known here", path);
    MHLA_TRY(mhla_settings_read_bool(&quick, model, "quick_gelu", path));
    c->text.activation = c->image.activation = !quick;
    MHLA_TRY(mhla_settings_read_int(&c->text.heads, text, "heads", 1, 256, path));
    MHLA_TRY(mhla_settings_read_int(&width, image, "head_width", 1, 1024, path));
    c->image.heads = c->image.width / width;
    MHLA_TRY(read_three(c->mean, about, "mean", path));
    MHLA_TRY(read_three(c->deviation, about, "std", path));
    return mhla_blame(mhla_clip_config_check(c), path);
}

static json_t *tower_tree(const mhla_clip_tower *c, int projection) {
    json_t *tree = mhla_settings_tree(c, &tower_table);
    mhla_json_put(tree, "projection_dim", json_integer(projection));
    return tree;
}

/* As transformers writes it. */
json_t *mhla_clip_config_tree(const mhla_clip_config *c) {
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object(), *text = tower_tree(&c->text, c->dims), *image = tower_tree(&c->image, c->dims);
    mhla_json_put(text, "vocab_size", json_integer(c->vocabulary));
    mhla_json_put(text, "max_position_embeddings", json_integer(c->positions));
    mhla_json_put(text, "eos_token_id", json_integer(2)); /* stands for the largest id */
    mhla_json_put(image, "image_size", json_integer(c->side));
    mhla_json_put(image, "patch_size", json_integer(c->patch));
    mhla_json_put(image, "num_channels", json_integer(c->channels));
    mhla_json_put(tree, "architectures", json_pack("[s]", "CLIPModel"));
    mhla_json_put(tree, "model_type", json_string("clip"));
    mhla_json_put(tree, "projection_dim", json_integer(c->dims));
    mhla_json_put(tree, "text_config", text);
    mhla_json_put(tree, "vision_config", image);
    if (mhla_json_lost() == lost) return tree;
    json_decref(tree);
    return NULL;
}

static mhla_status check_tower(const mhla_clip_tower *c, const char *what) {
    if (c->heads < 1 || c->width % c->heads != 0 || c->width / c->heads > 1024)
        return mhla_fail(MHLA_EINVAL, "%s: hidden_size %d in %d heads", what, c->width, c->heads);
    return MHLA_OK;
}

mhla_status mhla_clip_config_check(const mhla_clip_config *c) {
    MHLA_TRY(check_tower(&c->text, "texts"));
    MHLA_TRY(check_tower(&c->image, "images"));
    if (c->side % c->patch == 0) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "image_size %d is not a multiple of patch_size %d", c->side, c->patch);
}
