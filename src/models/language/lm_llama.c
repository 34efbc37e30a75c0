/* The config.json of Hugging Face's Llama and of those that differ from it in a bias, a norm or a window (Mistral, Qwen 2 and 3). All
 * layers have softmax attention; some may see a window only ("layer_types"). */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/language/mixers/softmax.h"

static mhla_softmax_settings *settings_of(mhla_lm_group *g) { return (mhla_softmax_settings *)(void *)&g->settings; }

/* ---- Reading ---- */

static void standard(mhla_lm_config *c, const char *model_type) {
    (void)model_type;
    c->bos = c->eos = -1;
}

mhla_status mhla_lm_layer_types_read(mhla_lm_config *c, int *windowed, const json_t *tree, const char *path) {
    const json_t *kinds = json_object_get(tree, "layer_types");
    if (kinds && !json_is_null(kinds) && (!json_is_array(kinds) || json_array_size(kinds) != (size_t)c->layers))
        return mhla_fail(MHLA_EDATA, "%s: \"layer_types\" is not a list of %d layers", path, c->layers);
    *windowed = 0;
    for (int i = 0; i < c->layers; i++) {
        const char *kind = json_string_value(json_array_get(kinds, (size_t)i));
        if (json_is_array(kinds) &&
            (kind == NULL || (strcmp(kind, "full_attention") != 0 && strcmp(kind, "sliding_attention") != 0)))
            return mhla_fail(MHLA_ENOTSUP,
                             "%s: \"layer_types\"[%d] is \"%.40s\": known are full_attention and sliding_attention",
                             path, i, kind ? kind : "");
        if (kind) c->group_of[i] = strcmp(kind, "sliding_attention") == 0;
        *windowed += c->group_of[i];
    }
    return MHLA_OK;
}

/* Layers that see `window` tokens only: as "layer_types" lists them, else all from "max_window_layers" on. */
static mhla_status read_windows(mhla_lm_config *c, const json_t *tree, int window, const char *path) {
    int from = 28, windowed = 0;
    MHLA_TRY(mhla_settings_read_int(&from, tree, "max_window_layers", 0, 1 << 16, path));
    for (int i = from; i < c->layers; i++) c->group_of[i] = 1;
    MHLA_TRY(mhla_lm_layer_types_read(c, &windowed, tree, path));
    if (windowed == 0) return MHLA_OK;
    if (window == 0) return mhla_fail(MHLA_EDATA, "%s: layers slide, but there is no \"sliding_window\"", path);
    mhla_lm_group *other = mhla_lm_add_group(c, &mhla_mixer_softmax, NULL);
    if (other == NULL) return mhla_blame(MHLA_EINVAL, path);
    other->settings = c->group[0].settings;
    settings_of(other)->window_size = window;
    return MHLA_OK;
}

static mhla_status llama_read(mhla_lm_config *c, const json_t *tree, const char *path) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    const mhla_mixer *m;
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL && m != &mhla_mixer_softmax; i++) c->attention = i + 1;
    mhla_softmax_settings *s = settings_of(mhla_lm_add_group(c, &mhla_mixer_softmax, NULL));
    int window = 0, slides = 0;
    MHLA_TRY(mhla_settings_read(s, &mhla_mixer_softmax.keys, 0, tree, path));
    MHLA_TRY(mhla_settings_read_int(&s->num_heads, tree, "num_attention_heads", 1, 256, path));
    MHLA_TRY(mhla_settings_read_int(&s->num_kv_heads, tree, "num_key_value_heads", 1, 256, path));
    MHLA_TRY(mhla_settings_read_real(&c->norm_eps, tree, "rms_norm_eps", 0, 1, path));
    MHLA_TRY(mhla_rope_read(&c->scaling, &s->rope_theta, c->positions, tree, path));
    MHLA_TRY(mhla_settings_read_bool(&s->qkv_bias, tree, "attention_bias", path));
    s->out_bias = s->qkv_bias;
    MHLA_TRY(mhla_settings_read_bool(&c->mlp_bias, tree, "mlp_bias", path));
    if (strcmp(type, "llama") != 0) MHLA_TRY(mhla_settings_read_int(&window, tree, "sliding_window", 1, 1 << 30, path));
    if (strcmp(type, "qwen2") == 0) {
        s->qkv_bias = 1;
        s->out_bias = 0;
    }
    if (strcmp(type, "qwen3") == 0) {
        s->qk_norm = 1;
        s->qk_norm_eps = c->norm_eps;
    }
    if (strcmp(type, "mistral") == 0) {
        s->window_size = window;
        return MHLA_OK;
    }
    MHLA_TRY(mhla_settings_read_bool(&slides, tree, "use_sliding_window", path));
    return slides ? read_windows(c, tree, window, path) : MHLA_OK;
}

/* ---- Writing ---- */

static mhla_softmax_settings settings_at(const mhla_lm_config *c, int layer) {
    mhla_softmax_settings s;
    memcpy(&s, &mhla_lm_group_of(c, layer)->settings, sizeof s);
    return s;
}

static const char *type_of(const mhla_softmax_settings *s, int windowed) {
    return s->qk_norm ? "qwen3" : s->qkv_bias && !s->out_bias ? "qwen2" : windowed ? "mistral" : "llama";
}

/* Layers that see a window only, and how many tokens: 0 if there are several windows. */
static int windows(const mhla_lm_config *c, int *window) {
    int windowed = 0;
    *window = 0;
    for (int i = 0; i < c->layers; i++) {
        const int w = settings_at(c, i).window_size;
        if (w == 0) continue;
        *window = windowed++ == 0 || w == *window ? w : 0;
    }
    return windowed;
}

/* Softmax everywhere, the same but for a window of some layers, and biases as one of the model types has them. */
static int llama_fits(const mhla_lm_config *c) {
    for (int i = 0; i < c->layers; i++)
        if (mhla_lm_group_of(c, i)->mixer != &mhla_mixer_softmax) return 0;
    mhla_softmax_settings first = settings_at(c, 0);
    int window;
    const int windowed = windows(c, &window), qwen = type_of(&first, windowed)[0] == 'q';
    if (windowed && (window == 0 || (windowed < c->layers && !qwen))) return 0;
    if (first.qk_norm ? first.qkv_bias != first.out_bias || first.qk_norm_eps != c->norm_eps
                      : first.qkv_bias < first.out_bias)
        return 0;
    if (first.softcap != 0.0 || first.query_scalar != 0.0 || first.unscaled || c->softcap != 0.0) return 0;
    first.window_size = 0;
    for (int i = 0; i < c->layers; i++) {
        mhla_softmax_settings s = settings_at(c, i);
        s.window_size = 0;
        if (mhla_mixer_softmax.print(0, &s, c) != mhla_mixer_softmax.print(0, &first, c)) return 0;
    }
    return 1;
}

void mhla_lm_layer_types_write(json_t *tree, const mhla_lm_config *c) {
    json_t *kinds = json_array();
    for (int i = 0; i < c->layers; i++)
        mhla_json_add(kinds, json_string(settings_at(c, i).window_size ? "sliding_attention" : "full_attention"));
    mhla_json_put(tree, "layer_types", kinds);
}

static void llama_write(json_t *tree, const mhla_lm_config *c) {
    const mhla_softmax_settings s = settings_at(c, 0);
    int window;
    const int windowed = windows(c, &window);
    const char *type = type_of(&s, windowed);
    mhla_json_put(tree, "architectures", json_pack("[s]", "LlamaForCausalLM"));
    mhla_json_put(tree, "model_type", json_string(type));
    mhla_json_put(tree, "num_attention_heads", json_integer(s.num_heads));
    mhla_json_put(tree, "num_key_value_heads", json_integer(s.kv_heads));
    mhla_json_put(tree, "head_dim", json_integer(s.dim));
    mhla_json_put(tree, "attention_bias", json_boolean(s.out_bias));
    mhla_json_put(tree, "mlp_bias", json_boolean(c->mlp_bias));
    if (windowed) mhla_json_put(tree, "sliding_window", json_integer(window));
    if (windowed && type[0] == 'q') {
        mhla_json_put(tree, "use_sliding_window", json_true());
        mhla_lm_layer_types_write(tree, c);
    }
    mhla_json_put(tree, "rope_theta", json_real(s.rope_theta));
    if (c->scaling.kind) mhla_json_put(tree, "rope_scaling", mhla_rope_tree(&c->scaling));
    mhla_json_put(tree, "rms_norm_eps", json_real(c->norm_eps));
}

const mhla_lm_dialect mhla_lm_llama = {
    .types = "llama, mistral, qwen2, qwen3",
    .naming = MHLA_LM_NAMES_HF,
    .standard = standard,
    .read = llama_read,
    .fits = llama_fits,
    .write = llama_write,
};
