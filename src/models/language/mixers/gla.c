/* GLA, gated linear attention: every key channel of a token forgets by a factor that the token itself chooses.
 *
 *   decay_t = sigmoid(gk_proj h_t)^(1/16), gk_proj of low rank */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/mixers/decayed.h"

typedef struct settings {
    mhla_stream_settings s;
    int use_output_gate;
    int gate_low_rank_dim;
    double gate_logit_normalizer;
    double clamp_min; /* above 0: none */
} settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of GLA");

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    MHLA_STREAM_FIELDS(F),
    F("use_output_gate", BOOL, BOOL, use_output_gate, 0, 0, NULL, "a gate after the attention"),
    F("gate_low_rank_dim", INT, INT, gate_low_rank_dim, 1, 4096, NULL, "rank of the matrices of the decays"),
    F("gate_logit_normalizer", REAL, REAL, gate_logit_normalizer, 1e-3, 1e6, NULL, "log-decays are divided by this"),
    F("clamp_min", REAL, REAL, clamp_min, -1e6, 1, NULL, "log-decays are at least this, 1: no bound"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){.s = {.num_heads = size ? size->heads : 4,
                                       .expand_k = 0.5,
                                       .expand_v = 1.0,
                                       .feature_map = MHLA_LM_IDENTITY,
                                       .conv_size = 4},
                                 .use_output_gate = 1,
                                 .gate_low_rank_dim = 16,
                                 .gate_logit_normalizer = 16.0,
                                 .clamp_min = 1.0};
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *kind = mhla_stream_kind(tree, file);
    return kind && strcmp(kind, "gla") == 0;
}

static void write_rest(json_t *tree, const void *of, const mhla_lm_config *c) {
    (void)c;
    mhla_stream_write(tree, &((const settings *)of)->s);
    mhla_json_put(tree, "attn_extends", json_string("gla"));
    if (((const settings *)of)->clamp_min > 0.0) mhla_json_put(tree, "clamp_min", json_null());
}

/* The rank is that of the matrices. */
static mhla_status look(void *to, const mhla_safetensors *file, const char *prefix) {
    char name[128];
    snprintf(name, sizeof name, "%s.gk_proj.0.weight", prefix);
    const mhla_stored *low = mhla_safetensors_find(file, name);
    if (low && low->rank == 2 && low->shape[0] >= 1 && low->shape[0] <= 4096)
        ((settings *)to)->gate_low_rank_dim = (int)low->shape[0];
    return MHLA_OK;
}

static mhla_status settle(void *to, const mhla_lm_config *c) { return mhla_decayed_settle(&((settings *)to)->s, c); }

static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *x = of;
    const mhla_stream_settings *s = &x->s;
    const double all[] = {0x676c61,
                          s->num_heads,
                          s->kv_heads,
                          s->key_dim,
                          s->value_dim,
                          s->feature_map,
                          s->conv,
                          x->use_output_gate,
                          x->gate_low_rank_dim,
                          x->clamp_min,
                          x->gate_logit_normalizer};
    (void)c;
    return mhla_hash_fold(h, all, sizeof all);
}

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *x = of;
    (void)tokens;
    return mhla_decayed_multiply_adds(&x->s, c, x->use_output_gate, x->gate_low_rank_dim);
}

static mhla_status open_shared(void **shared, const void *of, const mhla_lm_config *c) {
    const settings *x = of;
    return mhla_decayed_open(
        shared, &(mhla_decayed){.x = {.s = &x->s,
                                      .width = c->width,
                                      .norm_eps = c->norm_eps,
                                      .deviation = c->deviation,
                                      .gate = x->use_output_gate,
                                      .norm = x->use_output_gate ? "g_norm_swish_gate.weight" : "g_norm.weight"},
                                .rank = x->gate_low_rank_dim,
                                .divisor = x->gate_logit_normalizer,
                                .least = x->clamp_min});
}

const mhla_mixer mhla_mixer_gla = {
    .name = "gla",
    .type = "gla",
    .group = "gla",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .claims = claims,
    .write = write_rest,
    .look = look,
    .settle = settle,
    .print = print,
    .multiply_adds = multiply_adds,
    .open = open_shared,
    MHLA_DECAYED_ROWS,
};
