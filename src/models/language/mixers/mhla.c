/* MHLA: chunks of tokens have a summary each, and every chunk reads its own learned mixture of the summaries before it. With a rotary
 * embedding of the features and a gate it is the language model of the paper. */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/mixers/stream.h"

typedef struct settings {
    mhla_stream_settings s;
    int chunk_size, num_blocks; /* C, M */
    int use_output_gate;
    double rope_theta;
} settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of MHLA");

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    MHLA_STREAM_FIELDS(F),
    F("chunk_size", INT, INT, chunk_size, 1, 1 << 16, NULL, "tokens of a block"),
    F("num_blocks", INT, INT, num_blocks, 1, 4096, NULL, "blocks, the side of the mixing matrix"),
    F("use_output_gate", BOOL, BOOL, use_output_gate, 0, 0, NULL, "a gate after the attention"),
    F("rope_theta", REAL, REAL, rope_theta, 1, 1e12, NULL, "base of the rotary embedding"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){.s = {.num_heads = size ? size->heads : 4,
                                       .expand_k = 0.5,
                                       .expand_v = 1.0,
                                       .feature_map = size ? MHLA_LM_RELU : MHLA_LM_IDENTITY,
                                       .conv_size = 4},
                                 .chunk_size = size ? size->chunk : 64,
                                 .num_blocks = size ? size->blocks : 32,
                                 .use_output_gate = 1,
                                 .rope_theta = 10000.0};
}

static const mhla_stored *mixing_matrix(const mhla_safetensors *file, const char *prefix) {
    char name[128];
    snprintf(name, sizeof name, "%s.mixing_matrix", prefix);
    return mhla_safetensors_find(file, name);
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type")), *kind = mhla_stream_kind(tree, file);
    return (type && strcmp(type, "mhla") == 0) || (kind && strcmp(kind, "mhla") == 0);
}

static mhla_status read_rest(void *to, mhla_lm_config *c, const json_t *tree, const char *path) {
    (void)to, (void)c;
    return mhla_rope_refuse(tree, path);
}

static void write_rest(json_t *tree, const void *of, const mhla_lm_config *c) {
    (void)of, (void)c;
    mhla_json_put(tree, "attn_extends", json_string("mhla"));
}

/* M is the side of the mixing matrix. */
static mhla_status look(void *to, const mhla_safetensors *file, const char *prefix) {
    const mhla_stored *mix = mixing_matrix(file, prefix);
    if (mix == NULL) return MHLA_OK;
    if (mix->rank < 2 || mix->shape[0] != mix->shape[1] || mix->shape[0] < 1 || mix->shape[0] > 4096)
        return mhla_fail(MHLA_EDATA, "%s: tensor %s is not a matrix of as many rows as columns", mix->path, mix->name);
    ((settings *)to)->num_blocks = (int)mix->shape[0];
    return MHLA_OK;
}

static mhla_status settle(void *to, const mhla_lm_config *c) {
    static const mhla_scaling none;
    settings *x = to;
    MHLA_TRY(mhla_stream_settle(&x->s, c));
    if (x->chunk_size < 1 || x->num_blocks < 1)
        return mhla_fail(MHLA_EINVAL, "chunk_size is %d, num_blocks is %d: both are at least 1", x->chunk_size,
                         x->num_blocks);
    return mhla_rope_check(x->s.key_dim, x->s.key_dim, x->rope_theta, &none);
}

static void describe(const void *of, mhla_mixer_facts *facts) {
    const settings *x = of;
    *facts = (mhla_mixer_facts){.heads = x->s.num_heads,
                                .chunk = x->chunk_size,
                                .longest = (int64_t)x->chunk_size * x->num_blocks,
                                .marks = x->s.conv > 1};
}

/* As version 0.1 made it, so that its saved sequences load. */
static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *x = of;
    const mhla_stream_settings *s = &x->s;
    const uint64_t kind = 0;
    const double all[20] = {
        [0] = s->num_heads,   [1] = s->kv_heads,    [2] = s->key_dim,          [3] = s->value_dim,
        [4] = MHLA_ROPE_HALF, [5] = s->key_dim,     [6] = x->rope_theta,       [10] = s->feature_map,
        [13] = x->chunk_size, [14] = x->num_blocks, [15] = x->use_output_gate, [16] = s->conv};
    (void)c;
    return mhla_hash_fold(mhla_hash_fold(h, &kind, sizeof kind), all, sizeof all);
}

static int64_t chunks_of(const settings *x, int64_t tokens) {
    const int64_t chunks = (tokens + x->chunk_size - 1) / x->chunk_size;
    return chunks < x->num_blocks ? chunks : x->num_blocks;
}

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *x = of;
    const int64_t summary = mhla_stream_summary_bytes(&x->s, 0) / (int64_t)sizeof(float);
    /* and the mixture: m[i,i] S + P for each token; P, once per chunk */
    return mhla_stream_multiply_adds(&x->s, c, x->use_output_gate) + summary +
           (chunks_of(x, tokens) - 1) * summary / 2 / x->chunk_size;
}

/* A summary for each chunk, the open one's, the mixture that it reads. */
static int64_t state_bytes(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *x = of;
    (void)c;
    return mhla_stream_conv_bytes(&x->s) + (chunks_of(x, tokens) + 2) * mhla_stream_summary_bytes(&x->s, 0);
}

static mhla_status open_shared(void **shared, const void *of, const mhla_lm_config *c) {
    static const mhla_scaling none;
    const settings *x = of;
    return mhla_stream_open(shared,
                            &(mhla_stream){.s = &x->s,
                                           .width = c->width,
                                           .norm_eps = c->norm_eps,
                                           .deviation = c->deviation,
                                           .gate = x->use_output_gate,
                                           .mix = x->num_blocks,
                                           .norm = x->use_output_gate ? "g_norm_swish_gate.weight" : "g_norm.weight",
                                           .desc = {.kind = MHLA_KIND_CAUSAL,
                                                    .denominator = MHLA_DEN_NONE,
                                                    .chunk = x->chunk_size,
                                                    .chunks = x->num_blocks,
                                                    .rope = MHLA_ROPE_HALF,
                                                    .rope_dim = x->s.key_dim},
                                           .angles = {.dims = x->s.key_dim, .theta = x->rope_theta, .scaling = &none}});
}

const mhla_mixer mhla_mixer_mhla = {
    .name = "mhla",
    .type = "mhla",
    .group = "mhla",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .claims = claims,
    .read = read_rest,
    .write = write_rest,
    .look = look,
    .settle = settle,
    .describe = describe,
    .print = print,
    .multiply_adds = multiply_adds,
    .state_bytes = state_bytes,
    .open = open_shared,
    MHLA_STREAM_ROWS,
};
