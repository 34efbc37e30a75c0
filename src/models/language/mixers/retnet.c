/* RetNet: heads forget at fixed rates, head h keeps 1 - 2^(-5-h) of its state from token to token. q and k are rotated. */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/mixers/decayed.h"

typedef struct settings {
    mhla_stream_settings s;
    int use_output_gate;
} settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of RetNet");

#define THETA 10000.0 /* of the rotary embedding: config.json has no key for it */

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    MHLA_STREAM_FIELDS(F),
    F("use_output_gate", BOOL, BOOL, use_output_gate, 0, 0, NULL, "a gate after the attention"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){.s = {.num_heads = size ? size->heads : 8,
                                       .expand_k = 1.0,
                                       .expand_v = 2.0,
                                       .feature_map = MHLA_LM_IDENTITY,
                                       .conv_size = 4},
                                 .use_output_gate = 1};
}

/* flash-linear-attention's RetNet has a smaller MLP where config.json says nothing. */
static void decoder(mhla_lm_config *c, const mhla_lm_size *size) {
    if (size == NULL) c->hidden_ratio = 2.0;
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    (void)file;
    return type && strcmp(type, "retnet") == 0;
}

static void write_rest(json_t *tree, const void *of, const mhla_lm_config *c) {
    (void)c;
    mhla_stream_write(tree, &((const settings *)of)->s);
}

static mhla_status settle(void *to, const mhla_lm_config *c) {
    static const mhla_scaling none;
    mhla_stream_settings *s = &((settings *)to)->s;
    MHLA_TRY(mhla_decayed_settle(s, c));
    return mhla_rope_check(s->key_dim, s->key_dim, THETA, &none);
}

static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *x = of;
    const mhla_stream_settings *s = &x->s;
    const double all[] = {0x7265746e6574, s->num_heads,   s->kv_heads, s->key_dim,
                          s->value_dim,   s->feature_map, s->conv,     x->use_output_gate};
    (void)c;
    return mhla_hash_fold(h, all, sizeof all);
}

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *x = of;
    (void)tokens;
    return mhla_decayed_multiply_adds(&x->s, c, x->use_output_gate, 0);
}

static mhla_status open_shared(void **shared, const void *of, const mhla_lm_config *c) {
    static const mhla_scaling none;
    const settings *x = of;
    return mhla_decayed_open(
        shared, &(mhla_decayed){.x = {.s = &x->s,
                                      .width = c->width,
                                      .norm_eps = c->norm_eps,
                                      .deviation = c->deviation,
                                      .gate = x->use_output_gate,
                                      .norm = x->use_output_gate ? "g_norm_swish_gate.weight" : "g_norm.weight",
                                      .angles = {.dims = x->s.key_dim, .theta = THETA, .scaling = &none}}});
}

const mhla_mixer mhla_mixer_retnet = {
    .name = "retnet",
    .type = "retnet",
    .group = "retnet",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .decoder = decoder,
    .claims = claims,
    .write = write_rest,
    .settle = settle,
    .print = print,
    .multiply_adds = multiply_adds,
    .open = open_shared,
    MHLA_DECAYED_ROWS,
};
