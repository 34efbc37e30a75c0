/* Gated DeltaNet: what a key holds is replaced, not added to, and all of it fades.
 *
 *   q, k, v = silu(conv(projections of h)), q and k of length 1;  beta = sigmoid(b_proj h)
 *   decay = exp(-exp(A_log) softplus(a_proj h + dt_bias))
 *   S_t = decay_t S_{t-1},  S_t += k_t (beta_t (v_t - S_t^T k_t))^T,  o_t = K^-1/2 q_t^T S_t
 *   y = o_proj(rms(o) * silu(g_proj h)) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/lm.h"
#include "models/language/mixers/carry.h"
#include "models/layers.h"

/* ---- Settings ---- */

typedef struct settings {
    int num_heads, num_v_heads; /* of q and k; of v, 0: as many */
    int head_dim;               /* K; 0, before it is settled: 3/4 of hidden_size in all */
    double expand_v;            /* V / K */
    int use_gate, use_short_conv, conv_size;
    int allow_neg_eigval; /* beta up to 2 */
    int gate;             /* its activation */
    /* settled */
    int v_heads, key_dim, value_dim, conv; /* HV, K, V; width of the convolutions, 0: none */
} settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of Gated DeltaNet");

enum { SWISH, SILU, SIGMOID }; /* the first two are the same */

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    F("num_heads", INT, INT, num_heads, 1, 256, NULL, "attention heads"),
    F("num_v_heads", INT, OPTIONAL, num_v_heads, 0, 256, NULL, "heads of values, 0: as many as there are"),
    F("head_dim", INT, OPTIONAL, head_dim, 0, 1024, NULL, "dims of a head, 0: hidden_size / num_heads"),
    F("expand_v", REAL, REAL, expand_v, 0.001, 16, NULL, "values of all heads over hidden_size"),
    F("use_gate", BOOL, BOOL, use_gate, 0, 0, NULL, "a gate after the norm"),
    F("use_short_conv", BOOL, BOOL, use_short_conv, 0, 0, NULL, "a short convolution of q, k, v"),
    F("conv_size", INT, INT, conv_size, 1, 64, NULL, "its width"),
    F("allow_neg_eigval", BOOL, BOOL, allow_neg_eigval, 0, 0, NULL, "beta goes up to 2"),
    F("output_gate_activation", TEXT, CHOICE, gate, 0, 0, "swish|silu|sigmoid", "of the gate after the norm"),
};
#undef F

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){.num_heads = size ? size->heads * 3 / 2 : 6,
                                 .head_dim = size ? size->head_dim : 256,
                                 .expand_v = 2.0,
                                 .use_gate = 1,
                                 .use_short_conv = 1,
                                 .conv_size = 4};
}

/* Its layers are larger: of 24 there are 21. */
static void decoder(mhla_lm_config *c, const mhla_lm_size *size) { c->layers = size ? (7 * size->layers + 4) / 8 : 21; }

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    (void)file;
    return type && strcmp(type, "gated_deltanet") == 0;
}

static mhla_status settle(void *to, const mhla_lm_config *c) {
    settings *s = to;
    const int all = c->width * 3 / 4;
    s->v_heads = s->num_v_heads ? s->num_v_heads : s->num_heads;
    s->conv = s->use_short_conv ? s->conv_size : 0;
    if (s->num_heads < 1 || s->v_heads % s->num_heads != 0)
        return mhla_fail(MHLA_EINVAL, "num_v_heads %d is not a multiple of num_heads %d", s->v_heads, s->num_heads);
    if (s->head_dim == 0 && (all < s->num_heads || all % s->num_heads != 0))
        return mhla_fail(MHLA_EINVAL, "3/4 of hidden_size is %d in all, no multiple of %d heads: give head_dim", all,
                         s->num_heads);
    if (s->head_dim == 0) s->head_dim = all / s->num_heads; /* which config.json then says */
    s->key_dim = s->head_dim;
    const double values = s->key_dim * s->expand_v;
    if (values < 1.0 || values > 512.0 || fabs(values - floor(values + 1e-6)) > 1e-6)
        return mhla_fail(MHLA_EINVAL,
                         "a head of %d dims, expand_v %g, has %g of values: expected a whole number to 512", s->key_dim,
                         s->expand_v, values);
    s->value_dim = (int)floor(values + 1e-6);
    return MHLA_OK;
}

static void describe(const void *of, mhla_mixer_facts *facts) {
    *facts = (mhla_mixer_facts){.heads = ((const settings *)of)->v_heads, .marks = 1};
}

static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    const double all[] = {0x64656c7461, s->num_heads, s->v_heads,          s->key_dim,        s->value_dim,
                          s->use_gate,  s->conv,      s->allow_neg_eigval, s->gate == SIGMOID};
    (void)c;
    return mhla_hash_fold(h, all, sizeof all);
}

/* ---- Cost ---- */

static int64_t keys_of(const settings *s) { return (int64_t)s->num_heads * s->key_dim; }
static int64_t values_of(const settings *s) { return (int64_t)s->v_heads * s->value_dim; }

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    const int64_t parts = 2 * keys_of(s) + values_of(s);
    (void)tokens;
    return c->width * (parts + (s->use_gate ? 2 : 1) * values_of(s) + 2 * s->v_heads) + s->conv * parts +
           4 * values_of(s) * s->key_dim; /* decay, S k, what is added, S q */
}

static int64_t state_bytes(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    const int64_t pasts = s->conv > 1 ? (s->conv - 1) * (2 * keys_of(s) + values_of(s)) : 0;
    (void)c, (void)tokens;
    return (values_of(s) * s->key_dim + pasts) * (int64_t)sizeof(float);
}

/* ---- Network ---- */

typedef struct shared {
    const settings *s;
    int64_t width;
    double norm_eps, deviation;
    mhla_carry_plan plan;
} shared;

enum { Q, K, V, GATE, PARTS };

typedef struct layer {
    mhla_carry_size size;
    shared *shared;
    mhla_layer parts[PARTS];            /* q, k [H*K,D], v, gate [HV*V,D] */
    mhla_layer a, b, o;                 /* [HV,D] twice, [D,HV*V] */
    mhla_param *conv[GATE];             /* [.,1,W] */
    mhla_param *A_log, *dt_bias, *norm; /* [HV] twice, [V] */
} layer;

static void close_shared(void *of) {
    shared *x = of;
    if (x) mhla_plan_free(x->plan.plan);
    free(x);
}

static mhla_status open_shared(void **to, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    shared *x = calloc(1, sizeof *x);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *x = (shared){.s = s,
                  .width = c->width,
                  .norm_eps = c->norm_eps,
                  .deviation = c->deviation,
                  .plan.desc = {.size = sizeof x->plan.desc,
                                .kind = MHLA_KIND_GATED_DELTA,
                                .heads = s->v_heads,
                                .key_heads = s->num_heads,
                                .key_dim = s->key_dim,
                                .value_dim = s->value_dim,
                                .qk_l2norm = 1}};
    const mhla_status status = mhla_plan_create(&x->plan.plan, &x->plan.desc);
    if (status != MHLA_OK) {
        close_shared(x);
        return status;
    }
    *to = x;
    return MHLA_OK;
}

static mhla_status create(void **to, void *of, mhla_params *ps, const char *prefix, int index) {
    static const char *const names[] = {"q_proj", "k_proj", "v_proj", "g_proj"}, *const convs[] = {"q_conv1d.weight",
                                                                                                   "k_conv1d.weight",
                                                                                                   "v_conv1d.weight"};
    shared *x = of;
    const settings *s = x->s;
    const int64_t D = x->width, H = s->v_heads;
    const int64_t rows[PARTS] = {keys_of(s), keys_of(s), values_of(s), values_of(s)};
    const mhla_initial usual = MHLA_NORMAL(x->deviation);
    layer *l = calloc(1, sizeof *l);
    char name[128];
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *l = (layer){.size = {.index = index, .plan = x->plan.plan, .width = s->conv, .convs = {rows[Q], rows[K], rows[V]}},
                 .shared = x};
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", prefix, suffix), name)
    for (int i = 0; i < (s->use_gate ? PARTS : GATE); i++)
        l->parts[i] = mhla_layer_matrix(ps, rows[i], D, 0, usual, NAME(names[i]));
    l->a = mhla_layer_matrix(ps, H, D, 0, usual, NAME("a_proj"));
    l->b = mhla_layer_matrix(ps, H, D, 0, usual, NAME("b_proj"));
    l->A_log = mhla_params_add(ps, NAME("A_log"), MHLA_SHAPE(H), 0,
                               (mhla_initial){.kind = MHLA_INITIAL_LOG_UNIFORM, .number = 16.0});
    l->dt_bias =
        mhla_params_add(ps, NAME("dt_bias"), MHLA_SHAPE(H), 0, (mhla_initial){.kind = MHLA_INITIAL_TIME_STEPS});
    for (int i = 0; i < GATE && s->conv; i++)
        l->conv[i] = mhla_params_add(ps, NAME(convs[i]), MHLA_SHAPE(rows[i], 1, s->conv), MHLA_PARAM_DECAY, usual);
    l->norm = mhla_params_add(ps, NAME("o_norm.weight"), MHLA_SHAPE(s->value_dim), 0, MHLA_ONE);
    l->o = mhla_layer_matrix(ps, D, values_of(s), 0, usual, NAME("o_proj"));
#undef NAME
    *to = l;
    return MHLA_OK;
}

static mhla_tensor *forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual, mhla_tensor *h) {
    const layer *l = of;
    const shared *x = l->shared;
    const settings *s = x->s;
    const float eps = (float)x->norm_eps;
    mhla_tensor *y[PARTS] = {NULL}, *gates[2];
    mhla_nn_linears(t, y, l->parts, s->use_gate ? PARTS : GATE, h);
    mhla_nn_linears(t, gates, (const mhla_layer[]){l->a, l->b}, 2, h);
    for (int i = 0; i < GATE; i++)
        y[i] = l->conv[i] ? mhla_carry_convolve(t, &l->size, run, i, l->conv[i], NULL, y[i])
                          : mhla_nn_activation(t, MHLA_ACT_SILU, y[i]);
    mhla_tensor *decay = mhla_nn_rates(t, l->A_log, mhla_nn_time_steps(t, l->dt_bias, 0.0f, INFINITY, gates[0]));
    mhla_tensor *beta = mhla_nn_sigmoid(t, s->allow_neg_eigval ? 2.0f : 1.0f, gates[1]);
    mhla_tensor *o = mhla_carry_recur(t, &l->size, run, &x->plan,
                                      (mhla_carried){.q = y[Q], .k = y[K], .v = y[V], .decay = decay, .beta = beta});
    if (s->use_gate && s->gate != SIGMOID)
        o = mhla_nn_rms_norm_gated(t, l->norm, eps, s->value_dim, o, y[GATE]);
    else
        o = mhla_nn_rms_norm(t, l->norm, eps, s->value_dim, o);
    if (s->use_gate && s->gate == SIGMOID) o = mhla_nn_mul(t, o, mhla_nn_sigmoid(t, 1.0f, y[GATE]));
    return mhla_nn_linear(t, l->o.w, NULL, MHLA_ACT_NONE, residual, o);
}

const mhla_mixer mhla_mixer_gated_deltanet = {
    .name = "gated_deltanet",
    .type = "gated_deltanet",
    .group = "gated_deltanet",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .decoder = decoder,
    .claims = claims,
    .settle = settle,
    .describe = describe,
    .print = print,
    .multiply_adds = multiply_adds,
    .state_bytes = state_bytes,
    .open = open_shared,
    .close = close_shared,
    .create = create,
    .free = free,
    .forward = forward,
    MHLA_CARRY_ROWS,
};
