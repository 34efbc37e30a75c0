/* The config.json of a decoder, with keys as flash-linear-attention spells them: read into a config; what the tensors beside it say; and
 * every key of a config, written. Hugging Face's Llama and its kin have a dialect of their own (lm_llama.c). */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm.h"

/* ---- Reading ---- */

/* NULL where the key is absent or null. */
static const json_t *value_of(const json_t *tree, const char *name) {
    const json_t *v = json_object_get(tree, name);
    return json_is_null(v) ? NULL : v;
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
    if (value_of(tree, "attnres_block_size"))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"attnres_block_size\": attention over residuals is not known here", path);
    return MHLA_OK;
}

/* Gemma's files may have two keys, of which "hidden_activation" counts. */
static mhla_status check_activation(const mhla_lm_config *c, const json_t *tree, const char *path) {
    const int gelu = mhla_lm_names_of[c->naming].gelu;
    const char *key = gelu && value_of(tree, "hidden_activation") ? "hidden_activation" : "hidden_act";
    const char *act = json_string_value(value_of(tree, key));
    if (act == NULL) return MHLA_OK;
    if (gelu ? strcmp(act, "gelu_pytorch_tanh") == 0 : strcmp(act, "swish") == 0 || strcmp(act, "silu") == 0)
        return MHLA_OK;
    return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\" is \"%.40s\": known %s", path, key, act,
                     gelu ? "is gelu_pytorch_tanh" : "are swish and silu");
}

/* Keys of the decoder. Several tokens may end a text: mhla_lm_ends_read. */
static mhla_status read_decoder(mhla_lm_config *c, const json_t *tree, const char *path) {
    json_t *one = NULL;
    if (json_is_array(value_of(tree, "eos_token_id"))) {
        if ((one = json_copy((json_t *)(uintptr_t)tree)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
        json_object_del(one, "eos_token_id");
    }
    if (json_is_null(json_object_get(tree, "max_position_embeddings"))) c->positions = 0; /* as we write it: no limit */
    const mhla_status status = mhla_settings_read(c, &mhla_lm_table, MHLA_LM_CHOOSE, one ? one : tree, path);
    json_decref(one);
    return status;
}

static mhla_status read_group(mhla_lm_config *c, const mhla_mixer *m, const json_t *object, const char *path) {
    const json_t *layers = value_of(object, "layers");
    if (!json_is_array(layers)) return mhla_fail(MHLA_EDATA, "%s: \"%s\" has no list of \"layers\"", path, m->group);
    mhla_lm_group *g = mhla_lm_add_group(c, m, NULL);
    if (g == NULL) return mhla_blame(MHLA_EINVAL, path);
    MHLA_TRY(mhla_blame(mhla_lm_set_layers(c, layers), path));
    return mhla_settings_read(&g->settings, &m->keys, 0, object, path);
}

/* An object, or a list of them: layers of a mixer that is not the rule, or has other settings. */
static mhla_status read_groups(mhla_lm_config *c, const json_t *tree, const char *path) {
    const mhla_mixer *m;
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++) {
        const json_t *value = value_of(tree, m->group), *each;
        size_t k;
        if (value && !json_is_array(value)) MHLA_TRY(read_group(c, m, value, path));
        json_array_foreach(value, k, each) MHLA_TRY(read_group(c, m, each, path));
    }
    return MHLA_OK;
}

/* The names are those that are there; where config.json leaves it open, the output matrix is the embedding if there is no other. Then
 * what each layer's tensors say of its mixer: of a group, the first layer's count. */
static mhla_status look(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file) {
    if (file == NULL) return MHLA_OK;
    if (mhla_safetensors_find(file, mhla_lm_names_of[c->naming].embeddings) == NULL)
        for (int i = MHLA_LM_NAMES_MAMBA; i >= 0; i--)
            if (mhla_safetensors_find(file, mhla_lm_names_of[i].embeddings)) c->naming = i;
    if (value_of(tree, "tie_word_embeddings") == NULL) c->tied = mhla_safetensors_find(file, "lm_head.weight") == NULL;
    unsigned char seen[MHLA_LM_LAYERS + 1] = {0};
    for (int i = 0; i < c->layers; i++) {
        mhla_lm_group *g = &c->group[c->group_of[i]];
        char prefix[64];
        if (g->mixer->look == NULL || seen[c->group_of[i]]++) continue;
        snprintf(prefix, sizeof prefix, "%s.%d.%s", mhla_lm_names_of[c->naming].layers, i,
                 mhla_lm_names_of[c->naming].mixer);
        MHLA_TRY(g->mixer->look(&g->settings, file, prefix));
    }
    return MHLA_OK;
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
            return mhla_fail(MHLA_EDATA, "%s: \"%s\"[%zu] is not a token from 0 to %d", path, key, i,
                             c->vocabulary - 1);
        c->ends[i] = (int32_t)id;
    }
    c->end_count = (int)n;
    return MHLA_OK;
}

/* The mixer that a config.json has as its rule: exactly one may claim it. NULL: none does, or two do. */
static const mhla_mixer *rule_of(const json_t *tree, const mhla_safetensors *file, int *index) {
    const mhla_mixer *m, *found = NULL;
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++) {
        if (!m->claims(tree, file)) continue;
        if (found) return NULL;
        found = m;
        *index = i;
    }
    return found;
}

static const mhla_lm_dialect *const dialects[] = {&mhla_lm_llama, &mhla_lm_gemma};
enum { DIALECTS = sizeof dialects / sizeof *dialects };

/* The dialect of a model type; NULL: it is flash-linear-attention's. */
static const mhla_lm_dialect *dialect_of(const char *model_type) {
    const size_t n = strlen(model_type);
    for (int i = 0; i < DIALECTS; i++)
        for (const char *at = dialects[i]->types; *at; at += strcspn(at, ","), at += strspn(at, ", "))
            if (strcspn(at, ",") == n && strncmp(at, model_type, n) == 0) return dialects[i];
    return NULL;
}

int mhla_lm_config_fits(const json_t *tree) {
    int index;
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    /* gla that is none of our mixers is a language model, too: opening it says what is missing */
    return type && (dialect_of(type) || strcmp(type, "gla") == 0 || rule_of(tree, NULL, &index) != NULL);
}

static char types[256];
static void list_types(void) {
    const mhla_mixer *m;
    for (int i = 0; i < DIALECTS; i++)
        snprintf(types + strlen(types), sizeof types - strlen(types), "%s%s", i ? ", " : "", dialects[i]->types);
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++)
        snprintf(types + strlen(types), sizeof types - strlen(types), ", %s", m->type);
}

const char *mhla_lm_types(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_types);
    return types;
}

/* The decoder's keys, then its rule's. */
static mhla_status read_rule(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file, const char *path) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    const json_t *extends = value_of(tree, "attn_extends");
    int attention = 0;
    const mhla_mixer *rule = rule_of(tree, file, &attention);
    if (rule == NULL && strcmp(type, "gla") == 0 && !json_is_string(extends))
        return mhla_fail(MHLA_ENOTSUP, "%s: attn_extends is %s: known are mhla and gla", path,
                         mhla_json_type_text(extends));
    if (rule == NULL && strcmp(type, "gla") == 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: attn_extends is \"%.40s\": known are mhla and gla", path,
                         json_string_value(extends));
    if (rule == NULL)
        return mhla_fail(MHLA_ENOTSUP, "%s: model_type \"%.40s\" is not known here: known are %s", path, type,
                         mhla_lm_types());
    c->attention = attention;
    if (rule->decoder) rule->decoder(c, NULL);
    MHLA_TRY(read_decoder(c, tree, path));
    mhla_lm_group *g = mhla_lm_add_group(c, rule, NULL);
    if (g == NULL) return mhla_blame(MHLA_EINVAL, path);
    MHLA_TRY(mhla_settings_read(&g->settings, &rule->keys, 0, tree, path));
    return rule->read ? rule->read(&g->settings, c, tree, path) : MHLA_OK;
}

mhla_status mhla_lm_config_read(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file, const char *path) {
    const json_t *whole = tree, *text = value_of(tree, "text_config"); /* of a model that sees images, too */
    if (json_is_object(text) && value_of(text, "model_type")) tree = text;
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    if (type == NULL) return mhla_fail(MHLA_EDATA, "%s: no \"model_type\"", path);
    MHLA_TRY(refuse(tree, path));
    *c = (mhla_lm_config){.vocabulary = 32000,
                          .width = 2048,
                          .layers = 24,
                          .hidden_ratio = 4.0,
                          .norm_eps = 1e-6,
                          .deviation = 0.02,
                          .positions = 2048,
                          .bos = 1,
                          .eos = 2};
    const mhla_lm_dialect *dialect = dialect_of(type);
    if (dialect) {
        c->naming = dialect->naming;
        dialect->standard(c, type);
        MHLA_TRY(read_decoder(c, tree, path));
    }
    MHLA_TRY(dialect ? dialect->read(c, tree, path) : read_rule(c, tree, file, path));
    MHLA_TRY(read_groups(c, tree, path));
    MHLA_TRY(look(c, tree, file));
    MHLA_TRY(check_activation(c, tree, path));
    const json_t *ours = value_of(tree, "model"); /* the preset that it was made of */
    snprintf(c->model, sizeof c->model, "%.31s", json_is_string(ours) ? json_string_value(ours) : type);
    MHLA_TRY(mhla_blame(mhla_lm_settle(c), path));
    const json_t *ends = value_of(whole, "eos_token_id") ? whole : tree;
    if (!json_is_array(value_of(ends, "eos_token_id"))) return MHLA_OK;
    MHLA_TRY(mhla_lm_ends_read(c, ends, "eos_token_id", path));
    c->eos = c->end_count ? c->ends[0] : -1;
    return MHLA_OK;
}

/* ---- Writing ---- */

static void put(json_t *tree, const char *name, json_t *value) { mhla_json_put(tree, name, value); }

static void put_all(json_t *tree, const void *settings, const mhla_settings *table) {
    json_t *keys = mhla_settings_tree(settings, table), *value;
    const char *name;
    if (keys == NULL) put(tree, "model", NULL); /* counts as lost */
    json_object_foreach(keys, name, value) put(tree, name, json_incref(value));
    json_decref(keys);
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

/* {"layers": its own, and its settings} */
static json_t *group_tree(const mhla_lm_config *c, int group) {
    const mhla_lm_group *g = &c->group[group];
    json_t *list = json_array(), *tree = json_object();
    for (int i = 0; i < c->layers; i++)
        if (c->group_of[i] == group) mhla_json_add(list, json_integer(i));
    put(tree, "layers", list);
    put_all(tree, &g->settings, &g->mixer->keys);
    return tree;
}

static void put_groups(json_t *tree, const mhla_lm_config *c) {
    const mhla_mixer *m;
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++) {
        json_t *list = json_array();
        for (int g = 1; g < c->groups; g++)
            if (c->group[g].mixer == m) mhla_json_add(list, group_tree(c, g));
        if (json_array_size(list) == 1)
            put(tree, m->group, json_incref(json_array_get(list, 0)));
        else if (json_array_size(list) > 1)
            put(tree, m->group, json_incref(list));
        json_decref(list);
    }
}

/* Names that a config.json with this rule need not mention. */
static int usual_names(const mhla_mixer *rule) {
    mhla_lm_config c = {.naming = MHLA_LM_NAMES_FLA};
    if (rule->decoder) rule->decoder(&c, NULL);
    return c.naming;
}

json_t *mhla_lm_config_tree(const mhla_lm_config *c) {
    const unsigned lost = mhla_json_lost();
    const mhla_lm_group *rule = &c->group[0];
    json_t *tree = json_object();
    const mhla_lm_dialect *dialect = NULL;
    for (int i = 0; i < DIALECTS; i++)
        if (dialects[i]->naming == c->naming && dialects[i]->fits(c)) dialect = dialects[i];
    if (dialect) {
        dialect->write(tree, c);
    } else {
        put(tree, "model_type", json_string(rule->mixer->type));
        put_all(tree, &rule->settings, &rule->mixer->keys);
        if (rule->mixer->write) rule->mixer->write(tree, &rule->settings, c);
        put_groups(tree, c);
    }
    put_all(tree, c, &mhla_lm_table);
    json_object_del(tree, "attention");                             /* model_type says it */
    json_object_del(tree, "hidden_ratio");                          /* intermediate_size says it */
    if (c->hidden == 0) json_object_del(tree, "intermediate_size"); /* there is no MLP */
    if (c->naming == usual_names(rule->mixer)) json_object_del(tree, "parameter_names");
    put(tree, "hidden_act",
        json_string(mhla_lm_names_of[c->naming].gelu ? "gelu_pytorch_tanh"
                    : c->naming == MHLA_LM_NAMES_FLA ? "swish"
                                                     : "silu"));
    if (c->bos < 0) put(tree, "bos_token_id", json_null());
    put(tree, "eos_token_id", ends_tree(c));
    put(tree, "torch_dtype", json_string("float32"));
    if (mhla_json_lost() == lost) return tree;
    json_decref(tree);
    return NULL;
}
