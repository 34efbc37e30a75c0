/* The rotary embedding in config.json: "rope_scaling", or "rope_parameters" of transformers 5, read and written. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/language/rope.h"
#include "models/settings.h"

/* NULL where the key is absent or null. */
static const json_t *value_of(const json_t *tree, const char *name) {
    const json_t *v = json_object_get(tree, name);
    return json_is_null(v) ? NULL : v;
}

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

mhla_status mhla_rope_refuse(const json_t *tree, const char *path) {
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
    return mhla_settings_read_real(to, tree, name, least, most, path);
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
            return mhla_fail(MHLA_EDATA, "%s: \"short_factor\"[%zu] is not a number from 1e-06 to 1e+06", path, i);
        x->list[i] = (float)factor;
    }
    x->count = (int)json_array_size(shorter);
    double factor = x->original > 0.0 ? positions / x->original : 1.0;
    MHLA_TRY(mhla_settings_read_real(&factor, rope, "factor", 1e-6, 1e6, path));
    x->attention = factor > 1.0 && x->original > 1.0 ? sqrt(1.0 + log(factor) / log(x->original)) : 1.0;
    return mhla_settings_read_real(&x->attention, rope, "attention_factor", 1e-6, 1e6, path);
}

static double mscale(double factor, double weight) { return factor > 1.0 ? 0.1 * weight * log(factor) + 1.0 : 1.0; }

static mhla_status read_yarn(mhla_scaling *x, const json_t *rope, double positions, const char *path) {
    double all = 0.0, some = 0.0;
    int rounds = 1;
    x->factor = x->original > 0.0 ? positions / x->original : 1.0;
    MHLA_TRY(mhla_settings_read_real(&x->factor, rope, "factor", 1e-6, 1e6, path));
    MHLA_TRY(mhla_settings_read_real(&some, rope, "mscale", 0.0, 1e6, path));
    MHLA_TRY(mhla_settings_read_real(&all, rope, "mscale_all_dim", 0.0, 1e6, path));
    x->attention = some > 0.0 && all > 0.0 ? mscale(x->factor, some) / mscale(x->factor, all) : mscale(x->factor, 1.0);
    MHLA_TRY(mhla_settings_read_real(&x->attention, rope, "attention_factor", 1e-6, 1e6, path));
    MHLA_TRY(mhla_settings_read_real(&x->beta_fast, rope, "beta_fast", 0.0, 1e6, path));
    MHLA_TRY(mhla_settings_read_real(&x->beta_slow, rope, "beta_slow", 0.0, 1e6, path));
    MHLA_TRY(mhla_settings_read_bool(&rounds, rope, "truncate", path));
    if (x->beta_fast == 0.0) x->beta_fast = 32.0;
    if (x->beta_slow == 0.0) x->beta_slow = 1.0;
    x->exact = !rounds;
    if (x->beta_fast >= x->beta_slow) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: \"beta_fast\" is %g, less than \"beta_slow\", %g", path, x->beta_fast,
                     x->beta_slow);
}

mhla_status mhla_rope_read(mhla_scaling *scaling, double *theta, int positions, const json_t *tree, const char *path) {
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
    double part = 1.0;
    mhla_scaling x = {.kind = MHLA_SCALING_NONE};
    MHLA_TRY(mhla_settings_read_real(&part, tree, "partial_rotary_factor", 0.0, 1.0, path));
    if (rope) {
        const char *type = json_is_object(rope) ? rope_type(rope) : NULL;
        int known = -1;
        for (int i = 0; i < 5 && type; i++)
            if (strcmp(type, types[i].type) == 0) known = i;
        if (type == NULL) return mhla_fail(MHLA_EDATA, "%s: \"%s\" is not an object with a \"rope_type\"", path, key);
        if (known < 0)
            return mhla_fail(MHLA_ENOTSUP,
                             "%s: \"%s\": rope_type \"%.40s\" is not known here: known are linear, llama3, yarn, and "
                             "longrope with one list of factors",
                             path, key, type);
        x.kind = types[known].kind;
        MHLA_TRY(mhla_settings_read_real(&part, rope, "partial_rotary_factor", 0.0, 1.0, path));
        MHLA_TRY(mhla_settings_read_real(theta, rope, "rope_theta", 1, 1e12, path));
        int original = positions;
        MHLA_TRY(mhla_settings_read_int(&original, rope, "original_max_position_embeddings", 1, 1 << 30, path));
        MHLA_TRY(mhla_settings_read_int(&original, tree, "original_max_position_embeddings", 1, 1 << 30, path));
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
    *scaling = x;
    return MHLA_OK;
}

/* ---- Writing ---- */

static void put(json_t *tree, const char *name, json_t *value) { mhla_json_put(tree, name, value); }

/* NULL: not scaled. A list is written as what transformers calls longrope, the same for short and long texts. */
json_t *mhla_rope_tree(const mhla_scaling *s) {
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

/* ---- Sense ---- */

mhla_status mhla_rope_check(int dims, int head, double theta, const mhla_scaling *scaling) {
    if (dims < 2 || dims % 2 != 0 || dims > head)
        return mhla_fail(MHLA_EINVAL, "rotary embedding needs an even number of dims: a head has %d", head);
    if (scaling->kind == MHLA_SCALING_LIST && scaling->count != dims / 2)
        return mhla_fail(MHLA_EINVAL, "the rotary embedding is scaled by %d factors: a head has %d pairs",
                         scaling->count, dims / 2);
    if (scaling->kind == MHLA_SCALING_YARN && !(theta > 1.0))
        return mhla_fail(MHLA_EINVAL, "rope_theta is %g: yarn needs more than 1", theta);
    return MHLA_OK;
}
