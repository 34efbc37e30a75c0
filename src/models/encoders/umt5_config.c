/* What can be chosen about umT5's encoder: the keys of config.json as rows of a table, presets; the names of its files. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "models/encoders/umt5.h"

static const mhla_setting fields[] = {
#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_umt5_config, member)                                                                         \
    }
    F("model", TEXT, TEXT, model, 0, 0, MHLA_UMT5_PRESETS, "the preset that sizes come from"),
    F("vocab_size", INT, INT, vocabulary, 1, 1 << 24, NULL, "tokens"),
    F("d_model", INT, INT, width, 1, 1 << 16, NULL, "width of a row"),
    F("num_layers", INT, INT, layers, 1, 1024, NULL, "layers"),
    F("num_heads", INT, INT, heads, 1, 1024, NULL, "heads"),
    F("d_kv", INT, INT, head_dim, 1, 1024, NULL, "width of a head"),
    F("d_ff", INT, INT, hidden, 1, 1 << 18, NULL, "width inside the MLP"),
    F("relative_attention_num_buckets", INT, INT, buckets, 4, 4096, NULL, "kinds of distances, half of them each way"),
    F("relative_attention_max_distance", INT, INT, distance, 2, 1 << 20, NULL, "distances from here on are one kind"),
    F("layer_norm_epsilon", REAL, REAL, eps, 0, 1, NULL, "of the norms"),
#undef F
};
static const mhla_settings table = {fields, sizeof fields / sizeof *fields, offsetof(mhla_umt5_config, width)};

const mhla_recipe_row *mhla_umt5_rows(void) { return mhla_settings_rows(&table); }

static mhla_status preset(mhla_umt5_config *c, const char *model) {
    *c = (mhla_umt5_config){.vocabulary = 256384,
                            .width = 4096,
                            .layers = 24,
                            .heads = 64,
                            .head_dim = 64,
                            .hidden = 10240,
                            .buckets = 32,
                            .distance = 128,
                            .eps = 1e-6};
    snprintf(c->model, sizeof c->model, "%s", model);
    if (strcmp(model, "umt5_nano") == 0) {
        c->vocabulary = 384;
        c->width = 64;
        c->layers = 2;
        c->heads = 4;
        c->head_dim = 16;
        c->hidden = 160;
    } else if (strcmp(model, "umt5_xxl") != 0) {
        return mhla_fail(MHLA_EINVAL, "\"%s\" is not a text encoder: there are umt5_xxl, umt5_nano", model);
    }
    return MHLA_OK;
}

static mhla_status check(const mhla_umt5_config *c) {
    if (c->buckets % 4 != 0 || c->distance <= c->buckets / 4)
        return mhla_fail(
            MHLA_EINVAL,
            "relative_attention_num_buckets %d, relative_attention_max_distance %d: expected a multiple of "
            "4, and more than a quarter of it",
            c->buckets, c->distance);
    return MHLA_OK;
}

mhla_status mhla_umt5_from_recipe(mhla_umt5_config *c, const mhla_recipe *given, const char *prefix) {
    mhla_umt5_config first = {.model = "umt5_nano"};
    MHLA_TRY(mhla_settings_take(&first, &table, 0, 1, given, prefix));
    MHLA_TRY(preset(c, first.model));
    MHLA_TRY(mhla_settings_take(c, &table, 1, table.count, given, prefix));
    return check(c);
}

mhla_status mhla_umt5_config_read(mhla_umt5_config *c, const json_t *tree, const char *path) {
    MHLA_TRY(preset(c, "umt5_xxl"));
    *c->model = '\0'; /* another program's */
    const char *feed = json_string_value(json_object_get(tree, "feed_forward_proj"));
    if (feed && strncmp(feed, "gated-gelu", 10) != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: feed_forward_proj is %s: known is gated-gelu", path, MHLA_QUOTE(feed));
    MHLA_TRY(mhla_settings_read(c, &table, 1, tree, path));
    return mhla_blame(check(c), path);
}

/* As Hugging Face writes it. */
json_t *mhla_umt5_config_tree(const mhla_umt5_config *c) {
    json_t *tree = mhla_settings_tree(c, &table), *list = json_array();
    if (tree == NULL || list == NULL || json_array_append_new(list, json_string("UMT5EncoderModel")) != 0 ||
        json_object_del(tree, "model") != 0 || json_object_set_new(tree, "model_type", json_string("umt5")) != 0 ||
        json_object_set_new(tree, "feed_forward_proj", json_string("gated-gelu")) != 0 ||
        json_object_set(tree, "architectures", list) != 0) {
        json_decref(tree);
        tree = NULL;
    }
    json_decref(list);
    return tree;
}

/* ---- Names ---- */

static const mhla_stored *find(const mhla_safetensors *file, const char *name) {
    const mhla_stored *s = mhla_safetensors_find(file, name);
    return s && s->rank == 2 ? s : NULL;
}

int mhla_umt5_layout_of(int *original, const mhla_safetensors *file) {
    *original = find(file, "blocks.0.pos_embedding.embedding.weight") && find(file, "token_embedding.weight");
    return *original || (find(file, "shared.weight") &&
                         find(file, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight") &&
                         find(file, "encoder.block.0.layer.1.DenseReluDense.wi_1.weight"));
}

/* Ends of names in a layer. */
static const char *const ends[][2] = {
    {"layer.0.SelfAttention.relative_attention_bias", "pos_embedding.embedding"},
    {"layer.0.SelfAttention.q", "attn.q"},
    {"layer.0.SelfAttention.k", "attn.k"},
    {"layer.0.SelfAttention.v", "attn.v"},
    {"layer.0.SelfAttention.o", "attn.o"},
    {"layer.0.layer_norm", "norm1"},
    {"layer.1.layer_norm", "norm2"},
    {"layer.1.DenseReluDense.wi_0", "ffn.gate.0"},
    {"layer.1.DenseReluDense.wi_1", "ffn.fc1"},
    {"layer.1.DenseReluDense.wo", "ffn.fc2"},
};

void mhla_umt5_name(char name[256], int original, const char *parameter) {
    int layer, reach = 0;
    snprintf(name, 256, "%s", parameter);
    if (!original) return;
    if (strcmp(parameter, "shared.weight") == 0) snprintf(name, 256, "token_embedding.weight");
    if (strcmp(parameter, "encoder.final_layer_norm.weight") == 0) snprintf(name, 256, "norm.weight");
    if (sscanf(parameter, "encoder.block.%d.%n", &layer, &reach) != 1 || reach == 0) return;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i][0]);
        if (strncmp(parameter + reach, ends[i][0], n) == 0 && strcmp(parameter + reach + n, ".weight") == 0)
            snprintf(name, 256, "blocks.%d.%s.weight", layer, ends[i][1]);
    }
}

mhla_status mhla_umt5_config_guess(mhla_umt5_config *c, const mhla_safetensors *file) {
    static const char *const wanted[] = {
        "shared.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.block.0.layer.1.DenseReluDense.wi_1.weight"};
    const mhla_stored *s[4];
    char name[256], ours[128];
    int original;
    const char *path = mhla_safetensors_path(file);
    if (!mhla_umt5_layout_of(&original, file)) return mhla_fail(MHLA_EDATA, "%s: no tensors of umT5's encoder", path);
    for (int i = 0; i < 4; i++) {
        mhla_umt5_name(name, original, wanted[i]);
        s[i] = find(file, name);
        if (s[i] == NULL || s[i]->shape[0] < 1 || s[i]->shape[0] > 1 << 24 || s[i]->shape[1] < 1 ||
            s[i]->shape[1] > 1 << 16)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is not a matrix of umT5's encoder", path, MHLA_QUOTE(name));
    }
    c->vocabulary = (int)s[0]->shape[0];
    c->width = (int)s[0]->shape[1];
    c->buckets = (int)s[1]->shape[0];
    c->heads = (int)s[1]->shape[1];
    c->head_dim = (int)(s[2]->shape[0] / c->heads);
    c->hidden = (int)s[3]->shape[0];
    for (c->layers = 0; c->layers < 1024; c->layers++) {
        snprintf(ours, sizeof ours, "encoder.block.%d.layer.0.SelfAttention.q.weight", c->layers);
        mhla_umt5_name(name, original, ours);
        if (find(file, name) == NULL) break;
    }
    if (c->head_dim < 1 || c->layers < 1) return mhla_fail(MHLA_EDATA, "%s: no layers of umT5's encoder", path);
    return mhla_blame(check(c), path);
}
