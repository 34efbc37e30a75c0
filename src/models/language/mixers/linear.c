/* Causal linear attention as flash-linear-attention has it: one sum over all tokens, no gate, no rotary embedding. */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/mixers/stream.h"

typedef struct settings {
    mhla_stream_settings s;
    int norm_q, norm_k, norm_feature_map; /* features over their sum; a denominator */
} settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of linear attention");

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    MHLA_STREAM_FIELDS(F),
    F("norm_q", BOOL, BOOL, norm_q, 0, 0, NULL, "features of q over their sum"),
    F("norm_k", BOOL, BOOL, norm_k, 0, 0, NULL, "features of k over their sum"),
    F("norm_feature_map", BOOL, BOOL, norm_feature_map, 0, 0, NULL, "with a denominator"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){.s = {.num_heads = size ? size->heads : 4,
                                       .expand_k = 1.0,
                                       .expand_v = 1.0,
                                       .feature_map = MHLA_LM_ELEMENTWISE_PRODUCT,
                                       .conv_size = 4}};
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    (void)file;
    return type && strcmp(type, "linear_attn") == 0;
}

static mhla_status read_rest(void *to, mhla_lm_config *c, const json_t *tree, const char *path) {
    (void)to, (void)c;
    return mhla_rope_refuse(tree, path);
}

static mhla_status settle(void *to, const mhla_lm_config *c) { return mhla_stream_settle(&((settings *)to)->s, c); }

static void describe(const void *of, mhla_mixer_facts *facts) {
    *facts = (mhla_mixer_facts){.heads = ((const settings *)of)->s.num_heads, .marks = 1};
}

/* As version 0.1 made it, so that its saved sequences load. */
static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *x = of;
    const mhla_stream_settings *s = &x->s;
    const uint64_t kind = 1;
    const double all[20] = {
        [0] = s->num_heads, [1] = s->kv_heads, [2] = s->key_dim, [3] = s->value_dim,        [10] = s->feature_map,
        [16] = s->conv,     [17] = x->norm_q,  [18] = x->norm_k, [19] = x->norm_feature_map};
    (void)c;
    return mhla_hash_fold(mhla_hash_fold(h, &kind, sizeof kind), all, sizeof all);
}

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    (void)tokens;
    return mhla_stream_multiply_adds(&((const settings *)of)->s, c, 0);
}

static int64_t state_bytes(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *x = of;
    (void)c, (void)tokens;
    return mhla_stream_conv_bytes(&x->s) + mhla_stream_summary_bytes(&x->s, x->norm_feature_map);
}

static mhla_status open_shared(void **shared, const void *of, const mhla_lm_config *c) {
    const settings *x = of;
    return mhla_stream_open(shared,
                            &(mhla_stream){.s = &x->s,
                                           .width = c->width,
                                           .norm_eps = c->norm_eps,
                                           .deviation = c->deviation,
                                           .norm_q = x->norm_q,
                                           .norm_k = x->norm_k,
                                           .norm = "norm.weight",
                                           .desc = {.kind = MHLA_KIND_LINEAR_CAUSAL,
                                                    .denominator = x->norm_feature_map ? MHLA_DEN_EQ4 : MHLA_DEN_NONE,
                                                    .den_eps = x->norm_feature_map ? 1e-10f : 0.0f}});
}

const mhla_mixer mhla_mixer_linear = {
    .name = "linear",
    .type = "linear_attn",
    .group = "linear",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .claims = claims,
    .read = read_rest,
    .settle = settle,
    .describe = describe,
    .print = print,
    .multiply_adds = multiply_adds,
    .state_bytes = state_bytes,
    .open = open_shared,
    MHLA_STREAM_ROWS,
};
