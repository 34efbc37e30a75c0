/* The config.json of Gemma 2 and 3 (of 3 the text part): softmax attention with soft caps, or with norms of q and k; layers that see a window
 * alternate with layers that see all, in Gemma 3 with rotary angles of their own. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/language/mixers/softmax.h"

enum { LOCAL = 1 }; /* the group of layers with a window; that of the others is 0 */

static mhla_softmax_settings *settings_of(mhla_lm_config *c, int group) {
    return (mhla_softmax_settings *)(void *)&c->group[group].settings;
}

static int is_third(const char *model_type) { return strncmp(model_type, "gemma3", 6) == 0; }

/* ---- Reading ---- */

/* As the published code has it: its configs leave out what they do not change. */
static void standard(mhla_lm_config *c, const char *model_type) {
    const int third = is_third(model_type);
    c->vocabulary = third ? 262208 : 256000;
    c->width = 2304;
    c->layers = 26;
    c->hidden = 9216;
    c->positions = third ? 131072 : 8192;
    c->bos = 2;
    c->eos = 1;
    c->tied = 1;
    c->softcap = third ? 0.0 : 30.0;
}

/* A key that is null says that there is no cap, where one that is not there leaves the usual one. */
static mhla_status read_cap(double *cap, const json_t *tree, const char *name, const char *path) {
    if (json_is_null(json_object_get(tree, name))) *cap = 0.0;
    return mhla_settings_read_real(cap, tree, name, 0, 1e30, path);
}

/* "rope_parameters" of each kind of layer, as transformers 5 writes them; else a base for all layers or two, and a scaling of those that
 * see everything. */
static mhla_status read_angles(mhla_lm_config *c, int third, const json_t *tree, const char *path) {
    mhla_softmax_settings *global = settings_of(c, 0), *local = settings_of(c, LOCAL);
    json_t *kinds = json_object_get(tree, "rope_parameters"), *full = json_object_get(kinds, "full_attention"),
           *sliding = json_object_get(kinds, "sliding_attention");
    if (!json_is_object(full) && !json_is_object(sliding)) {
        MHLA_TRY(mhla_rope_read(&c->scaling, &global->rope_theta, c->positions, tree, path));
        if (!third) local->rope_theta = global->rope_theta;
        if (third) MHLA_TRY(mhla_settings_read_real(&local->rope_theta, tree, "rope_local_base_freq", 1, 1e12, path));
        local->unscaled = third && c->scaling.kind != MHLA_SCALING_NONE;
        return MHLA_OK;
    }
    json_t *one = json_pack("{s:O?}", "rope_parameters", full),
           *other = json_pack("{s:O?}", "rope_parameters", sliding);
    mhla_scaling scaling = {.kind = MHLA_SCALING_NONE};
    mhla_status status = one && other ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory");
    if (status == MHLA_OK) status = mhla_rope_read(&c->scaling, &global->rope_theta, c->positions, one, path);
    if (status == MHLA_OK) status = mhla_rope_read(&scaling, &local->rope_theta, c->positions, other, path);
    json_decref(one);
    json_decref(other);
    if (status == MHLA_OK && scaling.kind != MHLA_SCALING_NONE)
        status =
            mhla_fail(MHLA_ENOTSUP, "%s: \"rope_parameters\": a scaling of sliding_attention is not known here", path);
    local->unscaled = c->scaling.kind != MHLA_SCALING_NONE;
    return status;
}

/* Every so many layers one sees all; "layer_types" counts more. */
static mhla_status read_layers(mhla_lm_config *c, int third, const json_t *tree, const char *path) {
    int period = third ? 6 : 2, windowed;
    MHLA_TRY(mhla_settings_read_int(&period, tree, "_sliding_window_pattern", 1, 1 << 16, path));
    MHLA_TRY(mhla_settings_read_int(&period, tree, "sliding_window_pattern", 1, 1 << 16, path));
    for (int i = 0; i < c->layers; i++) c->group_of[i] = (i + 1) % period == 0 ? 0 : LOCAL;
    return mhla_lm_layer_types_read(c, &windowed, tree, path);
}

static mhla_status gemma_read(mhla_lm_config *c, const json_t *tree, const char *path) {
    const int third = is_third(json_string_value(json_object_get(tree, "model_type")));
    const mhla_mixer *m;
    int both = 0;
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL && m != &mhla_mixer_softmax; i++) c->attention = i + 1;
    MHLA_TRY(read_cap(&c->softcap, tree, "final_logit_softcapping", path));
    MHLA_TRY(mhla_settings_read_bool(&both, tree, "use_bidirectional_attention", path));
    if (both)
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: \"use_bidirectional_attention\": tokens that see those after them are not known here",
                         path);
    if (mhla_lm_add_group(c, &mhla_mixer_softmax, NULL) == NULL) return mhla_blame(MHLA_EINVAL, path);
    mhla_softmax_settings s = {.num_heads = 8,
                               .num_kv_heads = 4,
                               .head_dim = 256,
                               .qk_norm = third,
                               .rope_theta = third ? 1e6 : 1e4,
                               .query_scalar = 256,
                               .softcap = third ? 0.0 : 50.0};
    int window = 4096;
    MHLA_TRY(mhla_settings_read(&s, &mhla_mixer_softmax.keys, 0, tree, path));
    MHLA_TRY(mhla_settings_read_int(&s.num_heads, tree, "num_attention_heads", 1, 256, path));
    MHLA_TRY(mhla_settings_read_int(&s.num_kv_heads, tree, "num_key_value_heads", 1, 256, path));
    MHLA_TRY(mhla_settings_read_int(&window, tree, "sliding_window", 1, 1 << 30, path));
    MHLA_TRY(mhla_settings_read_real(&c->norm_eps, tree, "rms_norm_eps", 0, 1, path));
    MHLA_TRY(mhla_settings_read_bool(&s.qkv_bias, tree, "attention_bias", path));
    MHLA_TRY(read_cap(&s.softcap, tree, "attn_logit_softcapping", path));
    s.out_bias = s.qkv_bias;
    s.qk_norm_eps = third ? c->norm_eps : 1e-5; /* as elsewhere where there is no such norm */
    s.window_size = 0;
    *settings_of(c, 0) = s;
    if (mhla_lm_add_group(c, &mhla_mixer_softmax, NULL) == NULL) return mhla_blame(MHLA_EINVAL, path);
    s.window_size = window;
    s.rope_theta = 1e4; /* Gemma 3's; Gemma 2 has one base for all */
    *settings_of(c, LOCAL) = s;
    MHLA_TRY(read_angles(c, third, tree, path));
    return read_layers(c, third, tree, path);
}

/* ---- Writing ---- */

/* The settings of the layers with a window and of the others; 0 if those of one kind differ. A kind that does not occur has the window,
 * or the absence of one, as its only difference. */
int mhla_lm_gemma_kinds(mhla_softmax_settings kinds[2], const mhla_lm_config *c) {
    int seen[2] = {0};
    if (c->naming != MHLA_LM_NAMES_GEMMA) return 0;
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_group *g = mhla_lm_group_of(c, i);
        mhla_softmax_settings s;
        if (g->mixer != &mhla_mixer_softmax) return 0;
        memcpy(&s, &g->settings, sizeof s);
        const int kind = s.window_size ? LOCAL : 0;
        if (seen[kind]++ && (kinds[kind].window_size != s.window_size ||
                             mhla_mixer_softmax.print(0, &kinds[kind], c) != mhla_mixer_softmax.print(0, &s, c)))
            return 0;
        kinds[kind] = s;
    }
    for (int kind = 0; kind < 2; kind++)
        if (!seen[kind]) {
            kinds[kind] = kinds[!kind];
            kinds[kind].window_size = kind == LOCAL ? 4096 : 0;
        }
    /* but for the window and the angles they must be the same */
    mhla_softmax_settings local = kinds[LOCAL];
    local.window_size = 0;
    local.rope_theta = kinds[0].rope_theta;
    local.unscaled = kinds[0].unscaled;
    if (mhla_mixer_softmax.print(0, &local, c) != mhla_mixer_softmax.print(0, &kinds[0], c)) return 0;
    const mhla_softmax_settings *s = &kinds[0];
    if (c->mlp_bias || s->qkv_bias != s->out_bias || (s->unscaled && c->scaling.kind)) return 0;
    return s->qk_norm ? s->qk_norm_eps == c->norm_eps
                      : kinds[LOCAL].rope_theta == s->rope_theta && !kinds[LOCAL].unscaled;
}

static int gemma_fits(const mhla_lm_config *c) {
    mhla_softmax_settings kinds[2] = {0};
    return mhla_lm_gemma_kinds(kinds, c) && (kinds[0].qk_norm == 0 || kinds[LOCAL].unscaled || !c->scaling.kind);
}

static void gemma_write(json_t *tree, const mhla_lm_config *c) {
    mhla_softmax_settings kinds[2] = {0}, *s = &kinds[0];
    mhla_lm_gemma_kinds(kinds, c);
    mhla_json_put(tree, "architectures", json_pack("[s]", s->qk_norm ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM"));
    mhla_json_put(tree, "model_type", json_string(s->qk_norm ? "gemma3_text" : "gemma2"));
    mhla_json_put(tree, "num_attention_heads", json_integer(s->num_heads));
    mhla_json_put(tree, "num_key_value_heads", json_integer(s->kv_heads));
    mhla_json_put(tree, "head_dim", json_integer(s->dim));
    mhla_json_put(tree, "attention_bias", json_boolean(s->out_bias));
    mhla_json_put(tree, "query_pre_attn_scalar", json_real(s->query_scalar != 0.0 ? s->query_scalar : (double)s->dim));
    mhla_json_put(tree, "attn_logit_softcapping", s->softcap != 0.0 ? json_real(s->softcap) : json_null());
    mhla_json_put(tree, "sliding_window", json_integer(kinds[LOCAL].window_size));
    mhla_lm_layer_types_write(tree, c);
    mhla_json_put(tree, "rope_theta", json_real(s->rope_theta));
    if (s->qk_norm) mhla_json_put(tree, "rope_local_base_freq", json_real(kinds[LOCAL].rope_theta));
    if (c->scaling.kind) mhla_json_put(tree, "rope_scaling", mhla_rope_tree(&c->scaling));
    mhla_json_put(tree, "rms_norm_eps", json_real(c->norm_eps));
    mhla_json_put(tree, "hidden_activation", json_string("gelu_pytorch_tanh"));
}

const mhla_lm_dialect mhla_lm_gemma = {
    .types = "gemma2, gemma3_text, gemma3",
    .naming = MHLA_LM_NAMES_GEMMA,
    .standard = standard,
    .read = gemma_read,
    .fits = gemma_fits,
    .write = gemma_write,
};
