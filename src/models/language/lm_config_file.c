/* The config.json of a decoder: keys as flash-linear-attention spells them, or Hugging Face's of Llama and those like it, read
 * into settings (lm_settings.h); what the tensors beside it say; and every key of a config, written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm_settings.h"

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
        char *text = mhla_json_text(v, JSON_COMPACT);
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

static mhla_status read_key(mhla_lm_settings *s, const mhla_lm_key *k, const json_t *tree, const char *name,
                            const char *path) {
    void *to = (char *)s + k->at;
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    switch (k->kind) {
    case MHLA_LM_INT:
        if (strcmp(name, "eos_token_id") == 0 && json_is_array(v)) return MHLA_OK; /* several: mhla_lm_ends_read */
        return read_int(to, tree, name, k->row.least, k->row.most, path);
    case MHLA_LM_REAL: return read_real(to, tree, name, k->row.least, k->row.most, path);
    case MHLA_LM_BOOL: return read_bool(to, tree, name, path);
    case MHLA_LM_CHOICE: {
        const int i = json_is_string(v) ? mhla_lm_choice(k->row.choices, json_string_value(v)) : -1;
        if (i < 0)
            return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\" is \"%.40s\": known are %s", path, name,
                             json_is_string(v) ? json_string_value(v) : mhla_json_type_text(v), k->row.choices);
        *(int *)to = i;
        return MHLA_OK;
    }
    case MHLA_LM_TEXT:
    case MHLA_LM_LAYERS_LIST: break;
    }
    return MHLA_OK;
}

/* "attn" or "linear": a list of layers, and settings of theirs alone. */
static mhla_status read_layers(mhla_lm_settings *s, mhla_lm_layer_list *to, const json_t *tree, const char *name,
                               const char *path) {
    const json_t *object = value_of(tree, name), *layers = value_of(object, "layers");
    const size_t skip = strlen(name) + 1;
    int n;
    const mhla_lm_key *keys = mhla_lm_keys(&n);
    if (object == NULL) return MHLA_OK;
    if (!json_is_array(layers)) return mhla_fail(MHLA_EDATA, "%s: \"%s\" has no list of \"layers\"", path, name);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *v = json_array_get(layers, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= s->num_hidden_layers)
            return mhla_fail(MHLA_EDATA, "%s: %s.layers[%zu] is no layer from 0 to %d", path, name, i,
                             s->num_hidden_layers - 1);
    }
    mhla_lm_set_layers(to, layers);
    for (int i = 0; i < n; i++)
        if (strncmp(keys[i].row.name, name, skip - 1) == 0 && keys[i].row.name[skip - 1] == '_')
            MHLA_TRY(read_key(s, &keys[i], object, keys[i].row.name + skip, path));
    return MHLA_OK;
}

static mhla_status read_keys(mhla_lm_settings *s, const json_t *tree, const char *path) {
    int n;
    const mhla_lm_key *keys = mhla_lm_keys(&n);
    for (int i = 0; i < n; i++)
        if (strncmp(keys[i].row.name, "attn_", 5) != 0 && strncmp(keys[i].row.name, "linear_", 7) != 0)
            MHLA_TRY(read_key(s, &keys[i], tree, keys[i].row.name, path));
    s->attn.num_heads = s->linear.num_heads = s->num_heads;
    MHLA_TRY(read_layers(s, &s->attn.layers, tree, "attn", path));
    return read_layers(s, &s->linear.layers, tree, "linear", path);
}

/* What stands for the network that is computed here, or is not known. */
static mhla_status refuse(const json_t *tree, const char *path) {
    const json_t *shared = value_of(tree, "tie_feature_map_qk");
    if (shared && !json_is_false(shared))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"tie_feature_map_qk\": one feature map for q and k is not known here",
                         path);
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

/* ---- Scaled rotary embeddings: "rope_scaling", or "rope_parameters" of transformers 5 ---- */

static const json_t *rope_object(const json_t *tree, const char **key) {
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = value_of(tree, *key = keys[i]);
        if (v && !json_is_false(v) && !(json_is_object(v) && json_object_size(v) == 0)) return v;
    }
    return NULL;
}

static const char *rope_type(const json_t *rope) {
    const json_t *type = value_of(rope, "rope_type") ? value_of(rope, "rope_type") : value_of(rope, "type");
    return type ? json_string_value(type) : "default"; /* NULL: no text */
}

/* The angles of MHLA's features were never scaled by anybody. */
static mhla_status refuse_scaling(const json_t *tree, const char *path) {
    const char *key;
    const json_t *rope = rope_object(tree, &key);
    const char *type = rope ? rope_type(rope) : "default";
    if (type && strcmp(type, "default") == 0) return MHLA_OK;
    return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\": a scaled rotary embedding is known of softmax attention only", path,
                     key);
}

/* A number that must be there. */
static mhla_status need_real(double *to, const json_t *tree, const char *name, double least, double most,
                             const char *path) {
    if (value_of(tree, name) == NULL)
        return mhla_fail(MHLA_EDATA, "%s: the scaled rotary embedding lacks \"%s\"", path, name);
    return read_real(to, tree, name, least, most, path);
}

/* Like a list: the same factors for short texts and long ones. Which of two it is would depend on the length of the whole
 * text, and keys that were read before would be wrong. */
static mhla_status read_longrope(mhla_scaling *x, const json_t *rope, double positions, const char *path) {
    const json_t *shorter = value_of(rope, "short_factor"), *longer = value_of(rope, "long_factor"), *v;
    size_t i;
    if (!json_is_array(shorter) || !json_is_array(longer))
        return mhla_fail(MHLA_EDATA, "%s: longrope has no lists \"short_factor\" and \"long_factor\"", path);
    if (!json_equal(shorter, longer))
        return mhla_fail(MHLA_ENOTSUP, "%s: rope_type \"longrope\" with other factors for long texts is not known here",
                         path);
    if (json_array_size(shorter) > MHLA_ROPE_PAIRS)
        return mhla_fail(MHLA_EDATA, "%s: \"short_factor\" has %zu factors: expected %d at most", path,
                         json_array_size(shorter), MHLA_ROPE_PAIRS);
    json_array_foreach(shorter, i, v) {
        const double factor = json_is_number(v) ? json_number_value(v) : NAN;
        if (!(factor >= 1e-6 && factor <= 1e6))
            return mhla_fail(MHLA_EDATA, "%s: \"short_factor\"[%zu] is no number from 1e-06 to 1e+06", path, i);
        x->list[i] = (float)factor;
    }
    x->count = (int)json_array_size(shorter);
    double factor = x->original > 0.0 ? positions / x->original : 1.0;
    MHLA_TRY(read_real(&factor, rope, "factor", 1e-6, 1e6, path));
    x->attention = factor > 1.0 && x->original > 1.0 ? sqrt(1.0 + log(factor) / log(x->original)) : 1.0;
    return read_real(&x->attention, rope, "attention_factor", 1e-6, 1e6, path);
}

static double mscale(double factor, double weight) { return factor > 1.0 ? 0.1 * weight * log(factor) + 1.0 : 1.0; }

static mhla_status read_yarn(mhla_scaling *x, const json_t *rope, double positions, const char *path) {
    double all = 0.0, some = 0.0;
    int rounds = 1;
    x->factor = x->original > 0.0 ? positions / x->original : 1.0;
    MHLA_TRY(read_real(&x->factor, rope, "factor", 1e-6, 1e6, path));
    MHLA_TRY(read_real(&some, rope, "mscale", 0.0, 1e6, path));
    MHLA_TRY(read_real(&all, rope, "mscale_all_dim", 0.0, 1e6, path));
    x->attention = some > 0.0 && all > 0.0 ? mscale(x->factor, some) / mscale(x->factor, all) : mscale(x->factor, 1.0);
    MHLA_TRY(read_real(&x->attention, rope, "attention_factor", 1e-6, 1e6, path));
    MHLA_TRY(read_real(&x->beta_fast, rope, "beta_fast", 0.0, 1e6, path));
    MHLA_TRY(read_real(&x->beta_slow, rope, "beta_slow", 0.0, 1e6, path));
    MHLA_TRY(read_bool(&rounds, rope, "truncate", path));
    if (x->beta_fast == 0.0) x->beta_fast = 32.0;
    if (x->beta_slow == 0.0) x->beta_slow = 1.0;
    x->exact = !rounds;
    if (x->beta_fast >= x->beta_slow) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: \"beta_fast\" is %g, less than \"beta_slow\", %g", path, x->beta_fast,
                     x->beta_slow);
}

static mhla_status read_rope(mhla_lm_settings *s, const json_t *tree, const char *path) {
    static const struct {
        const char *type;
        mhla_scaling_kind kind;
    } types[] = {{"default", MHLA_SCALING_NONE},
                 {"linear", MHLA_SCALING_LINEAR},
                 {"llama3", MHLA_SCALING_LLAMA3},
                 {"yarn", MHLA_SCALING_YARN},
                 {"longrope", MHLA_SCALING_LIST}};
    const char *key;
    const json_t *rope = rope_object(tree, &key);
    double part = 1.0, positions = s->max_position_embeddings;
    mhla_scaling x = {.kind = MHLA_SCALING_NONE};
    MHLA_TRY(read_real(&part, tree, "partial_rotary_factor", 0.0, 1.0, path));
    if (rope) {
        const char *type = json_is_object(rope) ? rope_type(rope) : NULL;
        int known = -1;
        for (int i = 0; i < 5 && type; i++)
            if (strcmp(type, types[i].type) == 0) known = i;
        if (type == NULL) return mhla_fail(MHLA_EDATA, "%s: \"%s\" is no object with a \"rope_type\"", path, key);
        if (known < 0)
            return mhla_fail(MHLA_ENOTSUP,
                             "%s: \"%s\": rope_type \"%.40s\" is not known here: known are linear, llama3, yarn, and "
                             "longrope with one list of factors",
                             path, key, type);
        x.kind = types[known].kind;
        MHLA_TRY(read_real(&part, rope, "partial_rotary_factor", 0.0, 1.0, path));
        MHLA_TRY(read_real(&s->rope_theta, rope, "rope_theta", 1, 1e12, path));
        int original = s->max_position_embeddings;
        MHLA_TRY(read_int(&original, rope, "original_max_position_embeddings", 1, 1 << 30, path));
        MHLA_TRY(read_int(&original, tree, "original_max_position_embeddings", 1, 1 << 30, path));
        x.original = original;
        if (x.kind == MHLA_SCALING_LINEAR || x.kind == MHLA_SCALING_LLAMA3)
            MHLA_TRY(need_real(&x.factor, rope, "factor", 1e-6, 1e6, path));
        if (x.kind == MHLA_SCALING_LLAMA3) {
            MHLA_TRY(need_real(&x.low, rope, "low_freq_factor", 1e-6, 1e6, path));
            MHLA_TRY(need_real(&x.high, rope, "high_freq_factor", 1e-6, 1e6, path));
            if (x.high <= x.low)
                return mhla_fail(MHLA_EDATA, "%s: \"high_freq_factor\" is %g, no more than \"low_freq_factor\", %g",
                                 path, x.high, x.low);
        }
        if (x.kind == MHLA_SCALING_YARN) MHLA_TRY(read_yarn(&x, rope, positions, path));
        if (x.kind == MHLA_SCALING_LIST) MHLA_TRY(read_longrope(&x, rope, positions, path));
    }
    if (part != 1.0)
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: \"partial_rotary_factor\" is %g: a head of which a part turns is not known here", path,
                         part);
    s->scaling = x;
    return MHLA_OK;
}

/* Llama and those that differ from it in a bias, a norm or a window. */
static mhla_status read_llama(mhla_lm_settings *s, const json_t *tree, const char *type, const char *path) {
    *s = mhla_lm_standard(MHLA_ATTENTION_SOFTMAX);
    s->names = MHLA_LM_NAMES_HF;
    s->bos_token_id = s->eos_token_id = -1;
    MHLA_TRY(read_keys(s, tree, path));
    MHLA_TRY(read_int(&s->num_heads, tree, "num_attention_heads", 1, 256, path));
    MHLA_TRY(read_int(&s->num_kv_heads, tree, "num_key_value_heads", 1, 256, path));
    MHLA_TRY(read_real(&s->norm_eps, tree, "rms_norm_eps", 0, 1, path));
    MHLA_TRY(read_rope(s, tree, path));
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
static mhla_status look(mhla_lm_settings *s, const json_t *tree, const mhla_safetensors *file) {
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

/* model_type, and the attention of those whose keys are flash-linear-attention's; the others are Hugging Face's. */
static const struct {
    const char *type;
    int attention;
} types[] = {{"gla", MHLA_ATTENTION_MHLA},
             {"mhla", MHLA_ATTENTION_MHLA},
             {"transformer", MHLA_ATTENTION_SOFTMAX},
             {"linear_attn", MHLA_ATTENTION_LINEAR},
             {"llama", -1},
             {"mistral", -1},
             {"qwen2", -1},
             {"qwen3", -1}};
enum { TYPES = sizeof types / sizeof *types };

static int type_of(const json_t *tree) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    for (int i = 0; i < TYPES && type; i++)
        if (strcmp(type, types[i].type) == 0) return i;
    return -1;
}

int mhla_lm_config_fits(const json_t *tree) { return type_of(tree) >= 0; }

mhla_status mhla_lm_config_read(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file, const char *path) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    const int which = type_of(tree);
    mhla_lm_settings s;
    if (type == NULL) return mhla_fail(MHLA_EDATA, "%s: no \"model_type\"", path);
    MHLA_TRY(refuse(tree, path));
    if (which < 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: model_type \"%.40s\" is not known here: known are " MHLA_LM_TYPES, path,
                         type);
    if (types[which].attention < 0) {
        MHLA_TRY(read_llama(&s, tree, type, path));
    } else {
        if (strcmp(type, "gla") == 0) MHLA_TRY(check_gla(tree, file, path));
        s = mhla_lm_standard(types[which].attention);
        MHLA_TRY(read_keys(&s, tree, path));
        MHLA_TRY(s.attention == MHLA_ATTENTION_SOFTMAX ? read_rope(&s, tree, path) : refuse_scaling(tree, path));
    }
    MHLA_TRY(look(&s, tree, file));
    snprintf(s.model, sizeof s.model, "%s", type);
    const json_t *ours = value_of(tree, "model"); /* the preset that it was made of */
    if (json_is_string(ours)) snprintf(s.model, sizeof s.model, "%.31s", json_string_value(ours));
    MHLA_TRY(mhla_blame(mhla_lm_resolve(c, &s), path));
    if (!json_is_array(value_of(tree, "eos_token_id"))) return MHLA_OK;
    MHLA_TRY(mhla_lm_ends_read(c, tree, "eos_token_id", path));
    c->eos = c->end_count ? c->ends[0] : -1;
    return MHLA_OK;
}

/* ---- config.json: writing -------------------------------------------------------------------------------------------------- */

static void put(json_t *tree, const char *name, json_t *value) { mhla_json_put(tree, name, value); }
static json_t *choice_text(const char *choices, int index) {
    for (; index > 0; index--) choices = strchr(choices, '|') + 1;
    return json_stringn(choices, strcspn(choices, "|"));
}
static json_t *number_or_null(int64_t x) { return x ? json_integer(x) : json_null(); }

/* NULL: not scaled. A list is written as what transformers calls longrope, the same for short and long texts. */
static json_t *scaling_tree(const mhla_scaling *s) {
    static const char *const names[] = {"default", "linear", "llama3", "yarn", "longrope"};
    if (s->kind == MHLA_SCALING_NONE) return NULL;
    json_t *tree = json_object(), *list;
    put(tree, "rope_type", json_string(names[s->kind]));
    if (s->kind != MHLA_SCALING_LIST) put(tree, "factor", json_real(s->factor));
    if (s->kind != MHLA_SCALING_LINEAR)
        put(tree, "original_max_position_embeddings", json_integer((json_int_t)s->original));
    if (s->kind == MHLA_SCALING_LLAMA3) {
        put(tree, "low_freq_factor", json_real(s->low));
        put(tree, "high_freq_factor", json_real(s->high));
    }
    if (s->kind == MHLA_SCALING_YARN) {
        put(tree, "beta_fast", json_real(s->beta_fast));
        put(tree, "beta_slow", json_real(s->beta_slow));
        put(tree, "truncate", json_boolean(!s->exact));
    }
    if (s->kind == MHLA_SCALING_LIST) {
        list = json_array();
        for (int j = 0; j < s->count; j++) mhla_json_add(list, json_real((double)s->list[j]));
        put(tree, "short_factor", list);
        put(tree, "long_factor", json_deep_copy(list));
    }
    if (s->kind == MHLA_SCALING_YARN || s->kind == MHLA_SCALING_LIST)
        put(tree, "attention_factor", json_real(s->attention != 0.0 ? s->attention : 1.0));
    return tree;
}

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
    put(tree, "feature_map", choice_text(MHLA_LM_FEATURES, m->feature));
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
    if (m->scaling.kind) put(tree, "rope_scaling", scaling_tree(&m->scaling));
    put(tree, "rms_norm_eps", json_real(c->norm_eps));
}

/* A list where there are several; the first is the eos. */
static json_t *ends_tree(const mhla_lm_config *c) {
    if (c->end_count == 0 || (c->end_count == 1 && c->ends[0] == c->eos))
        return c->eos < 0 ? json_null() : json_integer(c->eos);
    json_t *list = json_array();
    if (c->eos >= 0) mhla_json_add(list, json_integer(c->eos));
    for (int i = 0; i < c->end_count; i++)
        if (c->ends[i] != c->eos) mhla_json_add(list, json_integer(c->ends[i]));
    return list;
}

/* {"layers": those of a kind}, or NULL: there are none. */
static json_t *layers_tree(const mhla_lm_config *c, int kind) {
    json_t *list = json_array(), *tree = json_object();
    for (int i = 0; i < c->layers; i++)
        if (c->kind[i] == kind) mhla_json_add(list, json_integer(i));
    const int some = json_array_size(list) > 0;
    put(tree, "layers", list);
    if (some) return tree;
    json_decref(tree);
    return NULL;
}

json_t *mhla_lm_config_tree(const mhla_lm_config *c) {
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object();
    int counts[3] = {0};
    for (int i = 0; i < c->layers; i++) counts[c->kind[i]]++;
    const int base = counts[MHLA_ATTENTION_MHLA]     ? MHLA_ATTENTION_MHLA
                     : counts[MHLA_ATTENTION_LINEAR] ? MHLA_ATTENTION_LINEAR
                                                     : MHLA_ATTENTION_SOFTMAX;
    if (base == MHLA_ATTENTION_SOFTMAX && c->naming == MHLA_LM_NAMES_HF) {
        put_llama(tree, c);
    } else if (base == MHLA_ATTENTION_SOFTMAX) {
        put(tree, "model_type", json_string("transformer"));
        put_softmax(tree, &c->mixer[base]);
        if (c->mixer[base].scaling.kind) put(tree, "rope_scaling", scaling_tree(&c->mixer[base].scaling));
        put(tree, "head_dim", json_integer(c->mixer[base].key_dim));
    } else {
        put(tree, "model_type", json_string(base == MHLA_ATTENTION_MHLA ? "mhla" : "linear_attn"));
        put_linear(tree, c, base);
        json_t *attn = layers_tree(c, MHLA_ATTENTION_SOFTMAX);
        if (attn) put_softmax(attn, &c->mixer[MHLA_ATTENTION_SOFTMAX]);
        put(tree, "attn", attn ? attn : json_null());
        json_t *linear = base == MHLA_ATTENTION_MHLA ? layers_tree(c, MHLA_ATTENTION_LINEAR) : NULL;
        if (linear) put_linear(linear, c, MHLA_ATTENTION_LINEAR);
        if (linear) put(tree, "linear", linear);
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
    if (mhla_json_lost() == lost) return tree;
    json_decref(tree);
    return NULL;
}
