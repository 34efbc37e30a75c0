/* What can be chosen about a decoder. Settings are the keys of config.json as flash-linear-attention spells them; one row
 * per key feeds config.json (lm_config_file.c), the settings of a command line and the `model.` keys of a recipe. Presets, or
 * what a model type means by saying nothing, give the values first; mhla_lm_resolve makes sizes of heads and layers of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm_settings.h"

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

mhla_lm_settings mhla_lm_standard(int attention) {
    mhla_lm_settings s = {
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
        .linear = {.num_heads = 4,
                   .feature_map = MHLA_LM_ELEMENTWISE_PRODUCT,
                   .conv_size = 4,
                   .expand_k = 1.0,
                   .expand_v = 1.0},
    };
    return s;
}

static mhla_status preset(mhla_lm_settings *s, const char *model, int attention) {
    const struct size *z = NULL;
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, sizes[i].name) == 0) z = &sizes[i];
    if (z == NULL)
        return mhla_fail(MHLA_EINVAL, "\"%.40s\" is no language model: there are lm_micro, lm_nano, lm_340m", model);
    *s = mhla_lm_standard(attention);
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
    s->attn.num_heads = s->linear.num_heads = 0; /* num_heads, unless they are given */
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

static mhla_status softmax_mixer(mhla_lm_mixer *m, const mhla_lm_settings *s, int hybrid) {
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
    if (!hybrid) m->scaling = s->scaling;
    return MHLA_OK;
}

static mhla_status linear_mixer(mhla_lm_mixer *m, const mhla_lm_settings *s) {
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

/* Linear layers have every setting of their own; with those in its place, they are the rule. */
static mhla_lm_settings of_linear_layers(const mhla_lm_settings *s) {
    mhla_lm_settings x = *s;
    x.attention = MHLA_ATTENTION_LINEAR;
    x.num_heads = s->linear.num_heads;
    x.num_kv_heads = s->linear.num_kv_heads;
    x.expand_k = s->linear.expand_k;
    x.expand_v = s->linear.expand_v;
    x.feature_map = s->linear.feature_map;
    x.use_short_conv = s->linear.use_short_conv;
    x.conv_size = s->linear.conv_size;
    x.norm_q = s->linear.norm_q;
    x.norm_k = s->linear.norm_k;
    x.norm_feature_map = s->linear.norm_feature_map;
    return x;
}

/* The attention of each layer, and how many have which: the rule, or one of the two lists. */
static mhla_status resolve_kinds(mhla_lm_config *c, const mhla_lm_settings *s, int counts[3]) {
    int listed[2] = {0, 0};
    if (s->linear.layers.count && s->attention != MHLA_ATTENTION_MHLA)
        return mhla_fail(
            MHLA_EINVAL,
            "linear layers are listed among those of MHLA only: for linear and softmax attention, let linear "
            "be the rule and list the softmax layers");
    for (int i = 0; i < c->layers; i++) {
        const int softmax = s->attn.layers.on[i], linear = s->linear.layers.on[i];
        if (softmax && linear)
            return mhla_fail(MHLA_EINVAL, "layer %d is listed both as a softmax and as a linear one", i);
        const int kind = softmax ? MHLA_ATTENTION_SOFTMAX : linear ? MHLA_ATTENTION_LINEAR : s->attention;
        c->kind[i] = (unsigned char)kind;
        counts[kind]++;
        listed[0] += softmax;
        listed[1] += linear;
    }
    if (listed[0] == s->attn.layers.count && listed[1] == s->linear.layers.count) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s names layers beyond the %d that there are",
                     listed[0] == s->attn.layers.count ? "linear" : "attn", c->layers);
}

mhla_status mhla_lm_resolve(mhla_lm_config *c, const mhla_lm_settings *s) {
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
    int counts[3] = {0};
    MHLA_TRY(resolve_kinds(c, s, counts));
    const mhla_lm_settings linear = s->linear.layers.count ? of_linear_layers(s) : *s;
    if (counts[MHLA_ATTENTION_SOFTMAX])
        MHLA_TRY(softmax_mixer(&c->mixer[MHLA_ATTENTION_SOFTMAX], s, s->attention != MHLA_ATTENTION_SOFTMAX));
    if (counts[MHLA_ATTENTION_MHLA]) MHLA_TRY(linear_mixer(&c->mixer[MHLA_ATTENTION_MHLA], s));
    if (counts[MHLA_ATTENTION_LINEAR]) MHLA_TRY(linear_mixer(&c->mixer[MHLA_ATTENTION_LINEAR], &linear));
    for (int kind = 0; kind < 3; kind++)
        if (c->mixer[kind].kv_heads == 0) c->mixer[kind].kv_heads = c->mixer[kind].heads;
    return mhla_lm_config_check(c);
}

mhla_status mhla_lm_preset(mhla_lm_config *c, const char *model, int attention) {
    mhla_lm_settings s;
    MHLA_TRY(preset(&s, model, attention));
    return mhla_lm_resolve(c, &s);
}

/* ---- Keys ------------------------------------------------------------------------------------------------------------- */

#define ATTENTIONS "mhla|linear|softmax"

static const mhla_lm_key keys[] = {
#define K(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_LM_##kind, offsetof(mhla_lm_settings, member) }
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
    K("feature_map", TEXT, CHOICE, feature_map, 0, 0, MHLA_LM_FEATURES, "mhla, linear: features of q and k"),
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
    K("attn_layers", INTS, LAYERS_LIST, attn.layers, 0, MHLA_LM_LAYERS - 1, NULL,
      "hybrid: layers that have softmax attention"),
    K("attn_num_heads", INT, INT, attn.num_heads, 1, 256, NULL, "hybrid: their heads; default: num_heads"),
    K("attn_num_kv_heads", INT, INT, attn.num_kv_heads, 0, 256, NULL, "hybrid: their heads of keys and values"),
    K("attn_qkv_bias", BOOL, BOOL, attn.qkv_bias, 0, 0, NULL, "hybrid: biases of their q, k, v"),
    K("attn_qk_norm", BOOL, BOOL, attn.qk_norm, 0, 0, NULL, "hybrid: RMS norm of their q and k"),
    K("attn_window_size", INT, INT, attn.window_size, 0, 1 << 30, NULL, "hybrid: tokens they see, 0: all"),
    K("attn_rope_theta", REAL, REAL, attn.rope_theta, 1, 1e12, NULL, "hybrid: base of their rotary embedding"),
    K("linear_layers", INTS, LAYERS_LIST, linear.layers, 0, MHLA_LM_LAYERS - 1, NULL,
      "hybrid: layers among those of mhla that have linear attention"),
    K("linear_num_heads", INT, INT, linear.num_heads, 1, 256, NULL, "hybrid: their heads; default: num_heads"),
    K("linear_num_kv_heads", INT, INT, linear.num_kv_heads, 0, 256, NULL, "hybrid: their heads of keys and values"),
    K("linear_expand_k", REAL, REAL, linear.expand_k, 0.001, 16, NULL, "hybrid: their keys over hidden_size"),
    K("linear_expand_v", REAL, REAL, linear.expand_v, 0.001, 16, NULL, "hybrid: their values over hidden_size"),
    K("linear_feature_map", TEXT, CHOICE, linear.feature_map, 0, 0, MHLA_LM_FEATURES, "hybrid: their features"),
    K("linear_use_short_conv", BOOL, BOOL, linear.use_short_conv, 0, 0, NULL, "hybrid: a convolution of their q, k, v"),
    K("linear_conv_size", INT, INT, linear.conv_size, 1, 64, NULL, "hybrid: its width"),
    K("linear_norm_q", BOOL, BOOL, linear.norm_q, 0, 0, NULL, "hybrid: their features of q over their sum"),
    K("linear_norm_k", BOOL, BOOL, linear.norm_k, 0, 0, NULL, "hybrid: their features of k over their sum"),
    K("linear_norm_feature_map", BOOL, BOOL, linear.norm_feature_map, 0, 0, NULL, "hybrid: with a denominator"),
#undef K
};
enum { KEYS = sizeof keys / sizeof *keys, FIRST = 2 }; /* the first two choose the preset, the rest change it */

const mhla_lm_key *mhla_lm_keys(int *count) {
    *count = KEYS - FIRST;
    return keys + FIRST;
}

const mhla_recipe_row *mhla_lm_rows(void) {
    static mhla_recipe_row rows[KEYS + 1]; /* the same bytes whoever fills it */
    for (int i = 0; i < KEYS; i++) rows[i] = keys[i].row;
    return rows;
}

int mhla_lm_choice(const char *choices, const char *text) {
    const size_t n = strlen(text);
    for (int i = 0; choices; i++) {
        if (strcspn(choices, "|") == n && strncmp(choices, text, n) == 0) return i;
        choices = strchr(choices, '|');
        if (choices) choices++;
    }
    return -1;
}

void mhla_lm_set_layers(mhla_lm_layer_list *to, const json_t *list) {
    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_int_t at = json_integer_value(json_array_get(list, i));
        if (at < 0 || at >= MHLA_LM_LAYERS || to->on[at]) continue; /* rows have checked the first two */
        to->on[at] = 1;
        to->count++;
    }
}

static void set_key(mhla_lm_settings *s, const mhla_lm_key *k, const mhla_recipe *given, const char *name) {
    void *to = (char *)s + k->at;
    switch (k->kind) {
    case MHLA_LM_TEXT: snprintf(to, sizeof s->model, "%s", mhla_recipe_text(given, name)); break;
    case MHLA_LM_CHOICE: *(int *)to = mhla_lm_choice(k->row.choices, mhla_recipe_text(given, name)); break;
    case MHLA_LM_INT: *(int *)to = (int)mhla_recipe_int(given, name); break;
    case MHLA_LM_REAL: *(double *)to = mhla_recipe_real(given, name); break;
    case MHLA_LM_BOOL: *(int *)to = mhla_recipe_bool(given, name); break;
    case MHLA_LM_LAYERS_LIST: mhla_lm_set_layers(to, mhla_recipe_array(given, name)); break;
    }
}

mhla_status mhla_lm_from_recipe(mhla_lm_config *c, const mhla_recipe *given, const char *prefix) {
    char name[96];
    mhla_lm_settings s, first = {.model = "lm_nano"};
    int positions = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = pass ? FIRST : 0; i < (pass ? KEYS : FIRST); i++) {
            snprintf(name, sizeof name, "%s%s", prefix, keys[i].row.name);
            if (!mhla_recipe_has(given, name)) continue;
            set_key(pass ? &s : &first, &keys[i], given, name);
            positions |= keys[i].at == offsetof(mhla_lm_settings, max_position_embeddings);
        }
        if (pass == 0) MHLA_TRY(preset(&s, first.model, first.attention));
    }
    if (s.attn.num_heads == 0) s.attn.num_heads = s.num_heads; /* as those of config.json do */
    if (s.linear.num_heads == 0) s.linear.num_heads = s.num_heads;
    if (!positions && s.attention == MHLA_ATTENTION_MHLA) s.max_position_embeddings = s.chunk_size * s.num_blocks;
    return mhla_lm_resolve(c, &s);
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
    if (m->scaling.kind == MHLA_SCALING_LIST && m->scaling.count != m->rope_dim / 2)
        return mhla_fail(MHLA_EINVAL, "the rotary embedding is scaled by %d factors: a head has %d pairs",
                         m->scaling.count, m->rope_dim / 2);
    if (m->scaling.kind == MHLA_SCALING_YARN && !(m->rope_theta > 1.0))
        return mhla_fail(MHLA_EINVAL, "rope_theta is %g: yarn needs more than 1", m->rope_theta);
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
