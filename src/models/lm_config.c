/* What can be chosen about a decoder. Settings are the keys of config.json as flash-linear-attention spells them; one row
 * per key feeds config.json, the settings of a command line and the `model.` keys of a recipe. Presets, or what a model
 * type means by saying nothing, give the values first; resolve() makes sizes of heads and layers of them. Llama's keys are
 * read into the same settings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/lm.h"

typedef struct settings {
    char model[32];
    int attention; /* of all layers but those of attn */
    int vocab_size, hidden_size, num_hidden_layers, num_heads, num_kv_heads, head_dim, intermediate_size;
    double expand_k, expand_v, hidden_ratio, norm_eps, rope_theta, initializer_range;
    int feature_map, chunk_size, num_blocks, use_output_gate, use_short_conv, conv_size;
    int norm_q, norm_k, norm_feature_map;
    int qkv_bias, out_bias, mlp_bias, qk_norm, window_size;
    double qk_norm_eps;
    int tie_word_embeddings, max_position_embeddings, bos_token_id, eos_token_id;
    int names;
    struct {                                  /* the softmax layers of a hybrid */
        unsigned char layers[MHLA_LM_LAYERS]; /* 1: is one */
        int count, num_heads, num_kv_heads, qkv_bias, qk_norm, window_size;
        double rope_theta;
    } attn;
} settings;

/* ---- Presets ------------------------------------------------------------------------------------------------------ */

static const struct size {
    const char *name;
    int vocabulary, width, layers, heads, softmax_heads, chunk, blocks, bos, eos;
} sizes[] = {
    {"lm_micro", 512, 64, 2, 2, 4, 16, 16, 0, 0},
    {"lm_nano", 8192, 384, 6, 4, 6, 32, 32, 0, 0},
    {"lm_340m", 32000, 1024, 24, 4, 16, 64, 32, 1, 2}, /* the released one */
};
enum { SIZES = sizeof sizes / sizeof *sizes };
#define PRESETS "lm_micro|lm_nano|lm_340m"

/* What flash-linear-attention takes where config.json says nothing. */
static settings standard(int attention) {
    settings s = {
        .attention = attention,
        .vocab_size = 32000,
        .hidden_size = 2048,
        .num_hidden_layers = 24,
        .num_heads = attention == MHLA_ATTENTION_SOFTMAX ? 32 : 4,
        .expand_k = attention == MHLA_ATTENTION_MHLA ? 0.5 : 1.0,
        .expand_v = 1.0,
        .hidden_ratio = 4.0,
        .norm_eps = 1e-6,
        .rope_theta = 10000.0,
        .initializer_range = 0.02,
        .feature_map = attention == MHLA_ATTENTION_LINEAR ? MHLA_LM_ELEMENTWISE_PRODUCT : MHLA_LM_IDENTITY,
        .chunk_size = 64,
        .num_blocks = 32,
        .use_output_gate = attention == MHLA_ATTENTION_MHLA,
        .conv_size = 4,
        .qk_norm_eps = 1e-5,
        .max_position_embeddings = 2048,
        .bos_token_id = 1,
        .eos_token_id = 2,
        .attn = {.rope_theta = 10000.0},
    };
    return s;
}

static mhla_status preset(settings *s, const char *model, int attention) {
    const struct size *z = NULL;
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, sizes[i].name) == 0) z = &sizes[i];
    if (z == NULL)
        return mhla_fail(MHLA_EINVAL, "\"%.40s\" is no language model: there are lm_micro, lm_nano, lm_340m", model);
    *s = standard(attention);
    snprintf(s->model, sizeof s->model, "%s", z->name);
    s->vocab_size = z->vocabulary;
    s->hidden_size = z->width;
    s->num_hidden_layers = z->layers;
    s->num_heads = attention == MHLA_ATTENTION_SOFTMAX ? z->softmax_heads : z->heads;
    if (attention == MHLA_ATTENTION_MHLA) s->feature_map = MHLA_LM_RELU;
    s->chunk_size = z->chunk;
    s->num_blocks = z->blocks;
    s->tie_word_embeddings = 1;
    s->max_position_embeddings = z->chunk * z->blocks;
    s->bos_token_id = z->bos;
    s->eos_token_id = z->eos;
    s->attn.num_heads = z->softmax_heads;
    return MHLA_OK;
}

/* ---- From settings to sizes ----------------------------------------------------------------------------------------- */

static mhla_status divide(int *each, double all, int heads, const char *what) {
    const double whole = floor(all + 1e-6); /* expand_k of 1/3 is not exact */
    if (heads < 1 || whole < heads || fmod(whole, heads) != 0.0)
        return mhla_fail(MHLA_EINVAL, "%s is %g in all, no multiple of %d heads", what, all, heads);
    *each = (int)(whole / heads);
    return MHLA_OK;
}

static mhla_status softmax_mixer(mhla_lm_mixer *m, const settings *s, int hybrid) {
    *m = (mhla_lm_mixer){
        .heads = hybrid ? s->attn.num_heads : s->num_heads,
        .kv_heads = hybrid ? s->attn.num_kv_heads : s->num_kv_heads,
        .rope = MHLA_ROPE_HALF,
        .rope_theta = hybrid ? s->attn.rope_theta : s->rope_theta,
        .qkv_bias = hybrid ? s->attn.qkv_bias : s->qkv_bias,
        .out_bias = hybrid ? 0 : s->out_bias,
        .qk_norm = hybrid ? s->attn.qk_norm : s->qk_norm,
        .qk_norm_eps = s->qk_norm_eps,
        .window = hybrid ? s->attn.window_size : s->window_size,
        .key_dim = hybrid ? 0 : s->head_dim,
    };
    if (m->key_dim == 0) MHLA_TRY(divide(&m->key_dim, s->hidden_size, m->heads, "hidden_size"));
    m->value_dim = m->rope_dim = m->key_dim;
    return MHLA_OK;
}

static mhla_status linear_mixer(mhla_lm_mixer *m, const settings *s) {
    *m = (mhla_lm_mixer){
        .heads = s->num_heads,
        .kv_heads = s->num_kv_heads,
        .feature = s->feature_map,
        .conv = s->use_short_conv ? s->conv_size : 0,
    };
    MHLA_TRY(divide(&m->key_dim, s->hidden_size * s->expand_k, m->heads, "hidden_size * expand_k"));
    MHLA_TRY(divide(&m->value_dim, s->hidden_size * s->expand_v, m->heads, "hidden_size * expand_v"));
    if (s->attention == MHLA_ATTENTION_MHLA) {
        m->rope = MHLA_ROPE_HALF;
        m->rope_dim = m->key_dim;
        m->rope_theta = s->rope_theta;
        m->chunk = s->chunk_size;
        m->blocks = s->num_blocks;
        m->gate = s->use_output_gate;
    } else {
        m->norm_q = s->norm_q;
        m->norm_k = s->norm_k;
        m->norm_features = s->norm_feature_map;
    }
    return MHLA_OK;
}

static mhla_status resolve(mhla_lm_config *c, const settings *s) {
    *c = (mhla_lm_config){
        .naming = s->names,
        .layers = s->num_hidden_layers,
        .vocabulary = s->vocab_size,
        .width = s->hidden_size,
        .hidden = s->intermediate_size,
        .norm_eps = s->norm_eps,
        .mlp_bias = s->mlp_bias,
        .tied = s->tie_word_embeddings,
        .positions = s->max_position_embeddings,
        .bos = s->bos_token_id,
        .eos = s->eos_token_id,
        .deviation = s->initializer_range,
    };
    memcpy(c->model, s->model, sizeof c->model);
    if (c->hidden == 0) c->hidden = 256 * (int)(((int64_t)(s->hidden_size * s->hidden_ratio * 2.0 / 3.0) + 255) / 256);
    int base = 0, hybrid = 0;
    for (int i = 0; i < c->layers; i++) {
        const int other = s->attn.count && s->attn.layers[i];
        c->kind[i] = (unsigned char)(other ? MHLA_ATTENTION_SOFTMAX : s->attention);
        base += !other;
        hybrid += other;
    }
    if (hybrid != s->attn.count)
        return mhla_fail(MHLA_EINVAL, "attn names layers beyond the %d that there are", c->layers);
    if (hybrid) MHLA_TRY(softmax_mixer(&c->mixer[MHLA_ATTENTION_SOFTMAX], s, 1));
    if (base && s->attention == MHLA_ATTENTION_SOFTMAX)
        MHLA_TRY(softmax_mixer(&c->mixer[MHLA_ATTENTION_SOFTMAX], s, 0));
    if (base && s->attention != MHLA_ATTENTION_SOFTMAX) MHLA_TRY(linear_mixer(&c->mixer[s->attention], s));
    for (int kind = 0; kind < 3; kind++)
        if (c->mixer[kind].kv_heads == 0) c->mixer[kind].kv_heads = c->mixer[kind].heads;
    return mhla_lm_config_check(c);
}

mhla_status mhla_lm_preset(mhla_lm_config *c, const char *model, int attention) {
    settings s;
    MHLA_TRY(preset(&s, model, attention));
    return resolve(c, &s);
}

/* ---- Keys ------------------------------------------------------------------------------------------------------------- */

typedef enum key_kind { TEXT, CHOICE, INT, REAL, BOOL, LAYERS } key_kind;

#define ATTENTIONS "mhla|linear|softmax"
#define FEATURES "relu|elu|identity|hedgehog|t2r|dpfp|elementwise_product|dpfp_paper"

static const struct key {
    mhla_recipe_row row;
    key_kind kind;
    size_t at;
} keys[] = {
#define K(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, kind, offsetof(settings, member) }
    K("model", TEXT, TEXT, model, 0, 0, PRESETS, "the preset that sizes come from"),
    K("attention", TEXT, CHOICE, attention, 0, 0, ATTENTIONS, "which attention"),
    K("vocab_size", INT, INT, vocab_size, 1, 1 << 24, NULL, "how many tokens there are"),
    K("hidden_size", INT, INT, hidden_size, 1, 1 << 16, NULL, "width of a token"),
    K("num_hidden_layers", INT, INT, num_hidden_layers, 1, MHLA_LM_LAYERS, NULL, "layers"),
    K("num_heads", INT, INT, num_heads, 1, 256, NULL, "attention heads"),
    K("num_kv_heads", INT, INT, num_kv_heads, 0, 256, NULL, "heads of keys and values, 0: as many"),
    K("head_dim", INT, INT, head_dim, 0, 1024, NULL, "softmax: dims of a head, 0: hidden_size / num_heads"),
    K("intermediate_size", INT, INT, intermediate_size, 0, 1 << 18, NULL,
      "hidden width of the MLP, 0: by hidden_ratio"),
    K("hidden_ratio", REAL, REAL, hidden_ratio, 0.01, 64, NULL, "2/3 of this times hidden_size, in steps of 256"),
    K("expand_k", REAL, REAL, expand_k, 0.001, 16, NULL, "mhla, linear: keys of all heads over hidden_size"),
    K("expand_v", REAL, REAL, expand_v, 0.001, 16, NULL, "mhla, linear: values of all heads over hidden_size"),
    K("feature_map", TEXT, CHOICE, feature_map, 0, 0, FEATURES, "mhla, linear: features of q and k"),
    K("chunk_size", INT, INT, chunk_size, 1, 1 << 16, NULL, "mhla: tokens of a block"),
    K("num_blocks", INT, INT, num_blocks, 1, 4096, NULL, "mhla: blocks, the side of the mixing matrix"),
    K("use_output_gate", BOOL, BOOL, use_output_gate, 0, 0, NULL, "mhla: a gate behind the attention"),
    K("use_short_conv", BOOL, BOOL, use_short_conv, 0, 0, NULL, "mhla: a short convolution of q, k, v"),
    K("conv_size", INT, INT, conv_size, 1, 64, NULL, "its width"),
    K("norm_q", BOOL, BOOL, norm_q, 0, 0, NULL, "linear: features of q over their sum"),
    K("norm_k", BOOL, BOOL, norm_k, 0, 0, NULL, "linear: features of k over their sum"),
    K("norm_feature_map", BOOL, BOOL, norm_feature_map, 0, 0, NULL, "linear: with a denominator"),
    K("qkv_bias", BOOL, BOOL, qkv_bias, 0, 0, NULL, "softmax: biases of q, k, v"),
    K("qk_norm", BOOL, BOOL, qk_norm, 0, 0, NULL, "softmax: RMS norm of each head of q and k"),
    K("window_size", INT, INT, window_size, 0, 1 << 30, NULL, "softmax: tokens seen, 0: all"),
    K("rope_theta", REAL, REAL, rope_theta, 1, 1e12, NULL, "base of the rotary embedding"),
    K("norm_eps", REAL, REAL, norm_eps, 0, 1, NULL, "eps of the norms"),
    K("tie_word_embeddings", BOOL, BOOL, tie_word_embeddings, 0, 0, NULL, "the output matrix is the embedding"),
    K("max_position_embeddings", INT, INT, max_position_embeddings, 0, 1 << 30, NULL, "tokens it is made for"),
    K("initializer_range", REAL, REAL, initializer_range, 0, 10, NULL, "deviation of fresh weights"),
    K("bos_token_id", INT, INT, bos_token_id, -1, 1 << 24, NULL, "token that begins a text, -1: none"),
    K("eos_token_id", INT, INT, eos_token_id, -1, 1 << 24, NULL, "token that ends a text, -1: none"),
    K("parameter_names", TEXT, CHOICE, names, 0, 0, "fla|llama", "names of the parameters in files"),
    K("attn_layers", INTS, LAYERS, attn, 0, MHLA_LM_LAYERS - 1, NULL, "hybrid: layers that have softmax attention"),
    K("attn_num_heads", INT, INT, attn.num_heads, 1, 256, NULL, "hybrid: their heads"),
    K("attn_num_kv_heads", INT, INT, attn.num_kv_heads, 0, 256, NULL, "hybrid: their heads of keys and values"),
    K("attn_qkv_bias", BOOL, BOOL, attn.qkv_bias, 0, 0, NULL, "hybrid: biases of their q, k, v"),
    K("attn_qk_norm", BOOL, BOOL, attn.qk_norm, 0, 0, NULL, "hybrid: RMS norm of their q and k"),
    K("attn_window_size", INT, INT, attn.window_size, 0, 1 << 30, NULL, "hybrid: tokens they see, 0: all"),
    K("attn_rope_theta", REAL, REAL, attn.rope_theta, 1, 1e12, NULL, "hybrid: base of their rotary embedding"),
#undef K
};
enum { KEYS = sizeof keys / sizeof *keys, FIRST = 2 }; /* the first two choose the preset, the rest change it */

const mhla_recipe_row *mhla_lm_rows(void) {
    static mhla_recipe_row rows[KEYS + 1]; /* the same bytes whoever fills it */
    for (int i = 0; i < KEYS; i++) rows[i] = keys[i].row;
    return rows;
}

/* The place of text in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text) {
    const size_t n = strlen(text);
    for (int i = 0; choices; i++) {
        if (strcspn(choices, "|") == n && strncmp(choices, text, n) == 0) return i;
        choices = strchr(choices, '|');
        if (choices) choices++;
    }
    return -1;
}

static json_t *choice_text(const char *choices, int index) {
    for (; index > 0; index--) choices = strchr(choices, '|') + 1;
    return json_stringn(choices, strcspn(choices, "|"));
}

static void set_layers(settings *s, const json_t *list) {
    memset(s->attn.layers, 0, sizeof s->attn.layers);
    s->attn.count = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_int_t at = json_integer_value(json_array_get(list, i));
        if (at < 0 || at >= MHLA_LM_LAYERS || s->attn.layers[at]) continue; /* rows have checked the first two */
        s->attn.layers[at] = 1;
        s->attn.count++;
    }
}

static void set_key(settings *s, const struct key *k, const mhla_recipe *given, const char *name) {
    void *to = (char *)s + k->at;
    switch (k->kind) {
    case TEXT: snprintf(to, sizeof s->model, "%s", mhla_recipe_text(given, name)); break;
    case CHOICE: *(int *)to = choice_index(k->row.choices, mhla_recipe_text(given, name)); break;
    case INT: *(int *)to = (int)mhla_recipe_int(given, name); break;
    case REAL: *(double *)to = mhla_recipe_real(given, name); break;
    case BOOL: *(int *)to = mhla_recipe_bool(given, name); break;
    case LAYERS: set_layers(s, mhla_recipe_array(given, name)); break;
    }
}

mhla_status mhla_lm_from_recipe(mhla_lm_config *c, const mhla_recipe *given, const char *prefix) {
    char name[96];
    settings s, first = {.model = "lm_nano"};
    int positions = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = pass ? FIRST : 0; i < (pass ? KEYS : FIRST); i++) {
            snprintf(name, sizeof name, "%s%s", prefix, keys[i].row.name);
            if (!mhla_recipe_has(given, name)) continue;
            set_key(pass ? &s : &first, &keys[i], given, name);
            positions |= keys[i].at == offsetof(settings, max_position_embeddings);
        }
        if (pass == 0) MHLA_TRY(preset(&s, first.model, first.attention));
    }
    if (!positions && s.attention == MHLA_ATTENTION_MHLA) s.max_position_embeddings = s.chunk_size * s.num_blocks;
    return resolve(c, &s);
}

/* ---- config.json: reading ------------------------------------------------------------------------------------------------ */

/* NULL where the key is absent or null. */
static const json_t *value_of(const json_t *tree, const char *name) {
    const json_t *v = json_object_get(tree, name);
    return json_is_null(v) ? NULL : v;
}

/* Numbers may be written 1 or 1.0. */
static mhla_status read_int(int *to, const json_t *tree, const char *name, double least, double most,
                            const char *path) {
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    const double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= least && x <= most) || x != floor(x)) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        const mhla_status status = mhla_fail(MHLA_EDATA, "%s: \"%s\" is %.60s: expected an integer from %.0f to %.0f",
                                             path, name, text ? text : mhla_json_type_text(v), least, most);
        free(text);
        return status;
    }
    *to = (int)x;
    return MHLA_OK;
}

static mhla_status read_real(double *to, const json_t *tree, const char *name, double least, double most,
                             const char *path) {
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    const double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= least && x <= most))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is no number from %g to %g", path, name, least, most);
    *to = x;
    return MHLA_OK;
}

static mhla_status read_bool(int *to, const json_t *tree, const char *name, const char *path) {
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    if (!json_is_boolean(v)) return mhla_fail(MHLA_EDATA, "%s: \"%s\" is neither true nor false", path, name);
    *to = json_is_true(v);
    return MHLA_OK;
}

static mhla_status read_key(settings *s, const struct key *k, const json_t *tree, const char *name, const char *path) {
    void *to = (char *)s + k->at;
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    switch (k->kind) {
    case INT:
        if (strcmp(name, "eos_token_id") == 0 && json_is_array(v)) return MHLA_OK; /* several: mhla_lm_ends_read */
        return read_int(to, tree, name, k->row.least, k->row.most, path);
    case REAL: return read_real(to, tree, name, k->row.least, k->row.most, path);
    case BOOL: return read_bool(to, tree, name, path);
    case CHOICE: {
        const int i = json_is_string(v) ? choice_index(k->row.choices, json_string_value(v)) : -1;
        if (i < 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\" is \"%.40s\": known are %s", path, name,
                             json_is_string(v) ? json_string_value(v) : mhla_json_type_text(v), k->row.choices);
        *(int *)to = i;
        return MHLA_OK;
    }
    case TEXT:
    case LAYERS: break;
    }
    return MHLA_OK;
}

static mhla_status read_keys(settings *s, const json_t *tree, const char *path) {
    for (int i = FIRST; i < KEYS; i++)
        if (strncmp(keys[i].row.name, "attn_", 5) != 0) MHLA_TRY(read_key(s, &keys[i], tree, keys[i].row.name, path));
    const json_t *attn = value_of(tree, "attn");
    if (attn == NULL) return MHLA_OK;
    const json_t *layers = value_of(attn, "layers");
    if (!json_is_array(layers)) return mhla_fail(MHLA_EDATA, "%s: \"attn\" has no list of \"layers\"", path);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *v = json_array_get(layers, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= s->num_hidden_layers)
            return mhla_fail(MHLA_EDATA, "%s: attn.layers[%zu] is no layer from 0 to %d", path, i,
                             s->num_hidden_layers - 1);
    }
    set_layers(s, layers);
    s->attn.num_heads = s->num_heads;
    for (int i = FIRST; i < KEYS; i++)
        if (strncmp(keys[i].row.name, "attn_", 5) == 0)
            MHLA_TRY(read_key(s, &keys[i], attn, keys[i].row.name + 5, path));
    return MHLA_OK;
}

/* What stands for the network that is computed here, or is not known. */
static mhla_status refuse(const json_t *tree, const char *path) {
    static const struct {
        const char *key, *what;
    } parts[] = {{"tie_feature_map_qk", "one feature map for q and k"}, {"rope_scaling", "a scaled rotary embedding"}};
    for (int i = 0; i < 2; i++) {
        const json_t *v = value_of(tree, parts[i].key);
        if (v && !json_is_false(v)) {
            const json_t *type =
                json_object_get(v, "rope_type") ? json_object_get(v, "rope_type") : json_object_get(v, "type");
            if (json_is_string(type) && strcmp(json_string_value(type), "default") == 0) continue;
            return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\": %s is not known here", path, parts[i].key, parts[i].what);
        }
    }
    if (json_is_false(json_object_get(tree, "elementwise_affine")))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"elementwise_affine\" false: norms without weights are not known here",
                         path);
    const json_t *act = value_of(tree, "hidden_act");
    if (json_is_string(act) && strcmp(json_string_value(act), "swish") != 0 &&
        strcmp(json_string_value(act), "silu") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: \"hidden_act\" is \"%.40s\": known are swish and silu", path,
                         json_string_value(act));
    return MHLA_OK;
}

/* Llama and those that differ from it in a bias, a norm or a window. */
static mhla_status read_llama(settings *s, const json_t *tree, const char *type, const char *path) {
    *s = standard(MHLA_ATTENTION_SOFTMAX);
    s->names = MHLA_LM_NAMES_HF;
    s->bos_token_id = s->eos_token_id = -1;
    MHLA_TRY(read_keys(s, tree, path));
    MHLA_TRY(read_int(&s->num_heads, tree, "num_attention_heads", 1, 256, path));
    MHLA_TRY(read_int(&s->num_kv_heads, tree, "num_key_value_heads", 1, 256, path));
    MHLA_TRY(read_real(&s->norm_eps, tree, "rms_norm_eps", 0, 1, path));
    const json_t *rope = value_of(tree, "rope_parameters"); /* transformers 5 */
    if (rope) {
        const char *kind = json_string_value(json_object_get(rope, "rope_type"));
        if (kind && strcmp(kind, "default") != 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: \"rope_parameters\": rope_type \"%.40s\" is not known here", path,
                             kind);
        MHLA_TRY(read_real(&s->rope_theta, rope, "rope_theta", 1, 1e12, path));
    }
    MHLA_TRY(read_bool(&s->qkv_bias, tree, "attention_bias", path));
    s->out_bias = s->qkv_bias;
    MHLA_TRY(read_bool(&s->mlp_bias, tree, "mlp_bias", path));
    if (strcmp(type, "mistral") == 0) MHLA_TRY(read_int(&s->window_size, tree, "sliding_window", 1, 1 << 30, path));
    if (strncmp(type, "qwen", 4) == 0 && json_is_true(json_object_get(tree, "use_sliding_window")))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"use_sliding_window\" of some layers is not known here", path);
    if (strcmp(type, "qwen2") == 0) {
        s->qkv_bias = 1;
        s->out_bias = 0;
    }
    if (strcmp(type, "qwen3") == 0) {
        s->qk_norm = 1;
        s->qk_norm_eps = s->norm_eps;
    }
    return MHLA_OK;
}

static const mhla_stored *find_part(const mhla_safetensors *file, int layer, const char *part) {
    char name[128];
    static const char *const places[] = {"attn", "self_attn"};
    const mhla_stored *s = NULL;
    for (int i = 0; i < 2 && file && s == NULL; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.%s", layer, places[i], part);
        s = mhla_safetensors_find(file, name);
    }
    return s;
}

/* What the tensors say: M is the side of the mixing matrix, the names are those that are there, and where config.json
 * leaves it open, the output matrix is the embedding if there is no other. */
static mhla_status look(settings *s, const json_t *tree, const mhla_safetensors *file) {
    if (file == NULL) return MHLA_OK;
    for (int i = 0; i < s->num_hidden_layers && i < MHLA_LM_LAYERS; i++) {
        const mhla_stored *mix = find_part(file, i, "mixing_matrix");
        if (mix == NULL) continue;
        if (mix->rank < 2 || mix->shape[0] != mix->shape[1] || mix->shape[0] < 1 || mix->shape[0] > 4096)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is no matrix of as many rows as columns", mix->path, mix->name);
        s->num_blocks = (int)mix->shape[0];
        break;
    }
    if (mhla_safetensors_find(file, "model.embed_tokens.weight")) s->names = MHLA_LM_NAMES_HF;
    if (mhla_safetensors_find(file, "model.embeddings.weight")) s->names = MHLA_LM_NAMES_FLA;
    if (value_of(tree, "tie_word_embeddings") == NULL)
        s->tie_word_embeddings = mhla_safetensors_find(file, "lm_head.weight") == NULL;
    return MHLA_OK;
}

/* fla's model_type "gla" holds MHLA, GLA or simple GLA: by the tensors, then by attn_extends, which is "mhla" if absent. */
static mhla_status check_gla(const json_t *tree, const mhla_safetensors *file, const char *path) {
    const json_t *extends = value_of(tree, "attn_extends");
    const char *what = json_is_string(extends) ? json_string_value(extends) : "mhla";
    for (int i = 0; i < MHLA_LM_LAYERS && file; i++) {
        if (find_part(file, i, "mixing_matrix")) return MHLA_OK;
        const mhla_stored *gk = find_part(file, i, "gk_proj.0.weight");
        if (gk)
            return mhla_fail(MHLA_ENOTSUP, "%s: tensor %s: gated linear attention (GLA) is not known here", gk->path,
                             gk->name);
    }
    if (strcmp(what, "mhla") == 0) return MHLA_OK;
    return mhla_fail(MHLA_ENOTSUP, "%s: \"attn_extends\" is \"%.40s\": gated linear attention (GLA) is not known here",
                     path, what);
}

/* One number is the eos; of several the first is. */
mhla_status mhla_lm_ends_read(mhla_lm_config *c, const json_t *tree, const char *key, const char *path) {
    const json_t *v = value_of(tree, key);
    if (v == NULL) return MHLA_OK;
    const int list = json_is_array(v);
    const size_t n = list ? json_array_size(v) : 1;
    if (n > MHLA_LM_ENDS)
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" has %zu tokens: expected %d at most", path, key, n, MHLA_LM_ENDS);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = list ? json_array_get(v, i) : v;
        const double id = json_is_number(x) ? json_number_value(x) : NAN;
        if (!(id >= 0 && id < c->vocabulary) || id != floor(id))
            return mhla_fail(MHLA_EDATA, "%s: \"%s\"[%zu] is no token from 0 to %d", path, key, i, c->vocabulary - 1);
        c->ends[i] = (int32_t)id;
    }
    c->end_count = (int)n;
    return MHLA_OK;
}

int mhla_lm_config_fits(const json_t *tree) { return json_is_string(json_object_get(tree, "model_type")); }

mhla_status mhla_lm_config_read(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file, const char *path) {
    static const struct {
        const char *type;
        int attention;
    } types[] = {{"gla", MHLA_ATTENTION_MHLA},
                 {"mhla", MHLA_ATTENTION_MHLA},
                 {"transformer", MHLA_ATTENTION_SOFTMAX},
                 {"linear_attn", MHLA_ATTENTION_LINEAR}};
    static const char *const llamas[] = {"llama", "mistral", "qwen2", "qwen3"};
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    settings s;
    int known = 0;
    if (type == NULL) return mhla_fail(MHLA_EDATA, "%s: no \"model_type\"", path);
    MHLA_TRY(refuse(tree, path));
    for (int i = 0; i < 4 && !known; i++)
        if (strcmp(type, types[i].type) == 0) {
            known = 1;
            if (i == 0) MHLA_TRY(check_gla(tree, file, path));
            s = standard(types[i].attention);
            MHLA_TRY(read_keys(&s, tree, path));
        }
    for (int i = 0; i < 4 && !known; i++)
        if (strcmp(type, llamas[i]) == 0) {
            known = 1;
            MHLA_TRY(read_llama(&s, tree, type, path));
        }
    if (!known)
        return mhla_fail(
            MHLA_ENOTSUP,
            "%s: model_type \"%.40s\" is not known here: known are gla with MHLA in it, mhla, transformer, "
            "linear_attn, llama, mistral, qwen2, qwen3",
            path, type);
    MHLA_TRY(look(&s, tree, file));
    snprintf(s.model, sizeof s.model, "%s", type);
    const json_t *ours = value_of(tree, "model"); /* the preset that it was made of */
    if (json_is_string(ours)) snprintf(s.model, sizeof s.model, "%.31s", json_string_value(ours));
    const mhla_status status = resolve(c, &s);
    if (status != MHLA_OK)
        return status == MHLA_EINVAL ? mhla_fail(MHLA_EDATA, "%s: %s", path, mhla_message()) : status;
    if (!json_is_array(value_of(tree, "eos_token_id"))) return MHLA_OK;
    MHLA_TRY(mhla_lm_ends_read(c, tree, "eos_token_id", path));
    c->eos = c->end_count ? c->ends[0] : -1;
    return MHLA_OK;
}

/* ---- config.json: writing -------------------------------------------------------------------------------------------------- */

static void put(json_t *tree, const char *name, json_t *value) { json_object_set_new(tree, name, value); }
static json_t *number_or_null(int64_t x) { return x ? json_integer(x) : json_null(); }

static void put_softmax(json_t *tree, const mhla_lm_mixer *m) {
    put(tree, "num_heads", json_integer(m->heads));
    put(tree, "num_kv_heads", json_integer(m->kv_heads));
    put(tree, "qkv_bias", json_boolean(m->qkv_bias));
    put(tree, "qk_norm", json_boolean(m->qk_norm));
    put(tree, "window_size", number_or_null(m->window));
    put(tree, "rope_theta", json_real(m->rope_theta));
}

static void put_linear(json_t *tree, const mhla_lm_config *c, int kind) {
    const mhla_lm_mixer *m = &c->mixer[kind];
    put(tree, "num_heads", json_integer(m->heads));
    put(tree, "num_kv_heads", m->kv_heads == m->heads ? json_null() : json_integer(m->kv_heads));
    put(tree, "expand_k", json_real((double)m->heads * m->key_dim / c->width));
    put(tree, "expand_v", json_real((double)m->heads * m->value_dim / c->width));
    put(tree, "feature_map", choice_text(FEATURES, m->feature));
    put(tree, "use_short_conv", json_boolean(m->conv));
    if (m->conv) put(tree, "conv_size", json_integer(m->conv));
    if (kind == MHLA_ATTENTION_MHLA) {
        put(tree, "attn_extends", json_string("mhla"));
        put(tree, "chunk_size", json_integer(m->chunk));
        put(tree, "num_blocks", json_integer(m->blocks));
        put(tree, "use_output_gate", json_boolean(m->gate));
        put(tree, "rope_theta", json_real(m->rope_theta));
    } else {
        put(tree, "norm_q", json_boolean(m->norm_q));
        put(tree, "norm_k", json_boolean(m->norm_k));
        put(tree, "norm_feature_map", json_boolean(m->norm_features));
    }
}

static void put_llama(json_t *tree, const mhla_lm_config *c) {
    const mhla_lm_mixer *m = &c->mixer[MHLA_ATTENTION_SOFTMAX];
    put(tree, "architectures", json_pack("[s]", "LlamaForCausalLM"));
    put(tree, "model_type",
        json_string(m->qk_norm                    ? "qwen3"
                    : m->qkv_bias && !m->out_bias ? "qwen2"
                    : m->window                   ? "mistral"
                                                  : "llama"));
    put(tree, "num_attention_heads", json_integer(m->heads));
    put(tree, "num_key_value_heads", json_integer(m->kv_heads));
    put(tree, "head_dim", json_integer(m->key_dim));
    put(tree, "attention_bias", json_boolean(m->out_bias));
    put(tree, "mlp_bias", json_boolean(c->mlp_bias));
    if (m->window) put(tree, "sliding_window", json_integer(m->window));
    put(tree, "rope_theta", json_real(m->rope_theta));
    put(tree, "rms_norm_eps", json_real(c->norm_eps));
}

/* A list where there are several; the first is the eos. */
static json_t *ends_tree(const mhla_lm_config *c) {
    if (c->end_count == 0 || (c->end_count == 1 && c->ends[0] == c->eos))
        return c->eos < 0 ? json_null() : json_integer(c->eos);
    json_t *list = json_array();
    if (c->eos >= 0) json_array_append_new(list, json_integer(c->eos));
    for (int i = 0; i < c->end_count; i++)
        if (c->ends[i] != c->eos) json_array_append_new(list, json_integer(c->ends[i]));
    return list;
}

json_t *mhla_lm_config_tree(const mhla_lm_config *c) {
    json_t *tree = json_object();
    int base = MHLA_ATTENTION_SOFTMAX;
    for (int i = 0; i < c->layers; i++)
        if (c->kind[i] != MHLA_ATTENTION_SOFTMAX) base = c->kind[i];
    if (base == MHLA_ATTENTION_SOFTMAX && c->naming == MHLA_LM_NAMES_HF) {
        put_llama(tree, c);
    } else if (base == MHLA_ATTENTION_SOFTMAX) {
        put(tree, "model_type", json_string("transformer"));
        put_softmax(tree, &c->mixer[base]);
        put(tree, "head_dim", json_integer(c->mixer[base].key_dim));
    } else {
        put(tree, "model_type", json_string(base == MHLA_ATTENTION_MHLA ? "mhla" : "linear_attn"));
        put_linear(tree, c, base);
        json_t *layers = json_array();
        for (int i = 0; i < c->layers; i++)
            if (c->kind[i] == MHLA_ATTENTION_SOFTMAX) json_array_append_new(layers, json_integer(i));
        json_t *attn = json_array_size(layers) ? json_object() : json_null();
        if (json_is_object(attn)) {
            put_softmax(attn, &c->mixer[MHLA_ATTENTION_SOFTMAX]);
            json_object_set(attn, "layers", layers);
        }
        json_decref(layers);
        put(tree, "attn", attn);
    }
    if (c->naming == MHLA_LM_NAMES_HF) put(tree, "parameter_names", json_string("llama"));
    put(tree, "model", json_string(c->model));
    put(tree, "vocab_size", json_integer(c->vocabulary));
    put(tree, "hidden_size", json_integer(c->width));
    put(tree, "num_hidden_layers", json_integer(c->layers));
    put(tree, "intermediate_size", json_integer(c->hidden));
    put(tree, "hidden_act", json_string(c->naming == MHLA_LM_NAMES_HF ? "silu" : "swish"));
    put(tree, "norm_eps", json_real(c->norm_eps));
    put(tree, "tie_word_embeddings", json_boolean(c->tied));
    put(tree, "max_position_embeddings", number_or_null(c->positions));
    put(tree, "initializer_range", json_real(c->deviation));
    put(tree, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    put(tree, "eos_token_id", ends_tree(c));
    put(tree, "torch_dtype", json_string("float32"));
    return tree;
}

/* ---- Sense ------------------------------------------------------------------------------------------------------------------- */

static mhla_status check_mixer(const mhla_lm_mixer *m, int kind) {
    const int expands = m->feature == MHLA_LM_HEDGEHOG                                   ? 2
                        : m->feature == MHLA_LM_DPFP || m->feature == MHLA_LM_DPFP_PAPER ? 8
                                                                                         : 1;
    if (m->heads < 1 || m->kv_heads < 1 || m->heads % m->kv_heads != 0)
        return mhla_fail(MHLA_EINVAL, "num_heads %d is no multiple of num_kv_heads %d", m->heads, m->kv_heads);
    if (m->key_dim < 1 || m->value_dim < 1 || (int64_t)m->key_dim * expands > 1024 ||
        m->value_dim > (kind == MHLA_ATTENTION_SOFTMAX ? 1024 : 512))
        return mhla_fail(MHLA_EINVAL, "a head of %d dims of keys (%d with its features) and %d of values is too large",
                         m->key_dim, m->key_dim * expands, m->value_dim);
    if (m->rope != MHLA_ROPE_NONE && (m->rope_dim < 2 || m->rope_dim % 2 != 0 || m->rope_dim > m->key_dim))
        return mhla_fail(MHLA_EINVAL, "rotary embedding needs an even number of dims: a head has %d", m->key_dim);
    if (kind == MHLA_ATTENTION_MHLA && (m->chunk < 1 || m->blocks < 1))
        return mhla_fail(MHLA_EINVAL, "chunk_size is %d, num_blocks is %d: both are at least 1", m->chunk, m->blocks);
    return MHLA_OK;
}

mhla_status mhla_lm_config_check(const mhla_lm_config *c) {
    if (c->layers < 1 || c->layers > MHLA_LM_LAYERS)
        return mhla_fail(MHLA_EINVAL, "%d layers: expected 1 to %d", c->layers, MHLA_LM_LAYERS);
    if (c->vocabulary < 1 || c->width < 1 || c->hidden < 1)
        return mhla_fail(MHLA_EINVAL, "vocab_size %d, hidden_size %d, intermediate_size %d: all are at least 1",
                         c->vocabulary, c->width, c->hidden);
    if (c->bos >= c->vocabulary || c->eos >= c->vocabulary)
        return mhla_fail(MHLA_EINVAL, "bos_token_id %d, eos_token_id %d: there are %d tokens", c->bos, c->eos,
                         c->vocabulary);
    for (int i = 0; i < c->layers; i++) MHLA_TRY(check_mixer(&c->mixer[c->kind[i]], c->kind[i]));
    return MHLA_OK;
}

int64_t mhla_lm_context(const mhla_lm_config *c) {
    int64_t most = 0;
    for (int i = 0; i < c->layers; i++)
        if (c->kind[i] == MHLA_ATTENTION_MHLA)
            most = (int64_t)c->mixer[MHLA_ATTENTION_MHLA].chunk * c->mixer[MHLA_ATTENTION_MHLA].blocks;
    return most ? most : c->positions;
}
