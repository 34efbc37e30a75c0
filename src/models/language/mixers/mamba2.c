/* Mamba2: a recurrence whose steps in time the token chooses, one for each head. The longer the step, the more is forgotten, and the more
 * of the token is taken in.
 *
 *   z, x B C, dt = in_proj h;   x, B, C = silu(conv(x B C));   delta = softplus(dt + dt_bias)
 *   S_t = exp(-delta_t exp(A_log)) S_{t-1} + B_t (delta_t x_t)^T,   y_t = C_t^T S_t + D x_t
 *   out_proj(rms(y * silu(z)))                                                  the gate comes before the norm */
#include "models/language/mixers/mamba.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/mixers/carry.h"
#include "models/layers.h"

typedef mhla_mamba2_settings settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of Mamba2");

/* ---- What Mamba shares ---- */

void mhla_mamba_decoder(mhla_lm_config *c, const mhla_lm_size *size) {
    c->naming = MHLA_LM_NAMES_MAMBA;
    c->norm_eps = 1e-5;
    c->layers = size ? 2 * size->layers : 48;
    if (size == NULL) c->positions = 0; /* config.json says nothing of a length, and there is none */
}

mhla_status mhla_mamba_read(mhla_lm_config *c, const json_t *tree, const char *path) {
    return mhla_settings_read_real(&c->norm_eps, tree, "layer_norm_epsilon", 0, 1, path);
}

void mhla_mamba_write(json_t *tree, const mhla_lm_config *c) {
    mhla_json_put(tree, "layer_norm_epsilon", json_real(c->norm_eps));
}

/* ---- Settings ---- */

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    MHLA_MAMBA_FIELDS(F),
    F("num_heads", INT, INT, num_heads, 1, 256, NULL, "attention heads"),
    F("head_dim", INT, OPTIONAL, head_dim, 0, 1024, NULL, "dims of a head, 0: hidden_size / num_heads"),
    F("n_groups", INT, INT, n_groups, 1, 256, NULL, "groups of heads with the same keys and queries"),
    F("norm_groups", INT, OPTIONAL, norm_groups, 0, 256, NULL, "parts of the channels with a norm each, 0: one of all"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){
        .m = {.expand = 2, .state_size = 128, .conv_kernel = 4, .use_conv_bias = 1},
        .num_heads = size ? (size->width + 31) / 32 : 0, /* of 64 dims */
        .head_dim = size ? 0 : 64,
        .n_groups = 1,
        .limit = {0.0, INFINITY},
    };
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    (void)file;
    return type && strcmp(type, "mamba2") == 0;
}

/* A number, or as transformers writes what JSON has no number for: {"__float__": "Infinity"}. */
static double real_of(const json_t *x) {
    const char *text = json_string_value(json_object_get(x, "__float__"));
    const double value = json_is_number(x)                       ? json_number_value(x)
                         : text && strcmp(text, "Infinity") == 0 ? INFINITY
                                                                 : NAN;
    return value > 1e300 ? INFINITY : value;
}

/* transformers norms each group of channels by itself since 5.23, as mamba_ssm and llama.cpp do, and so does flash-linear-attention since its
 * keys are rmsnorm and dt_limit; before, all channels had one norm. */
static int norms_groups(const json_t *tree) {
    const char *version = json_string_value(json_object_get(tree, "transformers_version"));
    int major = 0, minor = 0;
    if (json_object_get(tree, "layer_norm_epsilon") == NULL) return json_object_get(tree, "rmsnorm") != NULL;
    return version && sscanf(version, "%d.%d", &major, &minor) == 2 && (major > 5 || (major == 5 && minor >= 23));
}

static mhla_status read_rest(void *to, mhla_lm_config *c, const json_t *tree, const char *path) {
    settings *s = to;
    /* flash-linear-attention's names beside those of transformers */
    const char *const name = json_object_get(tree, "time_step_limit") ? "time_step_limit" : "dt_limit";
    const json_t *limit = json_object_get(tree, name);
    MHLA_TRY(mhla_mamba_read(c, tree, path));
    if (json_is_false(json_object_get(tree, "rms_norm")) || json_is_false(json_object_get(tree, "rmsnorm")))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"rms_norm\" false: Mamba2 without its norm is not known here", path);
    if (json_is_true(json_object_get(tree, "norm_before_gate")))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"norm_before_gate\": known is the gate before the norm", path);
    if (json_is_true(json_object_get(tree, "D_has_hdim")))
        return mhla_fail(MHLA_ENOTSUP, "%s: \"D_has_hdim\": known is one D for each head", path);
    if (s->n_groups > 1 && json_object_get(tree, "norm_groups") == NULL && norms_groups(tree))
        s->norm_groups = s->n_groups;
    if (limit == NULL || json_is_null(limit)) return MHLA_OK;
    for (size_t i = 0; i < 2; i++) s->limit[i] = real_of(json_array_get(limit, i));
    if (json_array_size(limit) != 2 || !(s->limit[0] >= 0.0 && s->limit[0] <= s->limit[1]))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is not a list of two numbers from 0 on, the first the smaller", path,
                         name);
    return MHLA_OK;
}

static void write_rest(json_t *tree, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    mhla_mamba_write(tree, c);
    mhla_json_put(tree, "chunk_size", json_integer(256)); /* how others cut the work up: no result depends on it */
    mhla_json_put(tree, "rms_norm", json_true());
    if (s->limit[0] == 0.0 && isinf(s->limit[1])) return;
    json_t *limit = json_array();
    mhla_json_add(limit, json_real(s->limit[0]));
    mhla_json_add(limit, json_real(isinf(s->limit[1]) ? 1.7976931348623157e308 : s->limit[1]));
    mhla_json_put(tree, "dt_limit", json_incref(limit));
    mhla_json_put(tree, "time_step_limit", limit);
}

static mhla_status settle(void *to, const mhla_lm_config *c) {
    settings *s = to;
    const int64_t inner = (int64_t)s->m.expand * c->width;
    if (s->num_heads == 0 && s->head_dim > 0) s->num_heads = (int)(inner / s->head_dim);
    if (s->head_dim == 0 && s->num_heads > 0) s->head_dim = (int)(inner / s->num_heads);
    if (s->num_heads < 1 || s->head_dim < 1 || (int64_t)s->num_heads * s->head_dim != inner)
        return mhla_fail(MHLA_EINVAL,
                         "num_heads %d of head_dim %d are not the %lld inner channels, expand * hidden_size",
                         s->num_heads, s->head_dim, (long long)inner);
    if (s->n_groups < 1 || s->num_heads % s->n_groups != 0)
        return mhla_fail(MHLA_EINVAL, "num_heads %d is not a multiple of n_groups %d", s->num_heads, s->n_groups);
    if (s->norm_groups > 0 && inner % s->norm_groups != 0)
        return mhla_fail(MHLA_EINVAL, "%lld inner channels are not a multiple of norm_groups %d", (long long)inner,
                         s->norm_groups);
    if (s->head_dim > 512 || s->num_heads > 65536)
        return mhla_fail(MHLA_EINVAL, "%d heads of %d dims are too large", s->num_heads, s->head_dim);
    s->m.inner = (int)inner;
    return MHLA_OK;
}

static void describe(const void *of, mhla_mixer_facts *facts) {
    *facts = (mhla_mixer_facts){.heads = ((const settings *)of)->num_heads, .marks = 1};
}

static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    const double all[] = {0x6d616d626132, s->m.inner,         s->m.state_size, s->m.conv_kernel,
                          s->m.use_bias,  s->m.use_conv_bias, s->num_heads,    s->n_groups,
                          s->norm_groups, s->limit[0],        s->limit[1]};
    (void)c;
    return mhla_hash_fold(h, all, sizeof all);
}

/* ---- Cost ---- */

static int64_t keys_of(const settings *s) { return (int64_t)s->n_groups * s->m.state_size; }
static int64_t convolved(const settings *s) { return s->m.inner + 2 * keys_of(s); }

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    const int64_t I = s->m.inner, D = c->width;
    (void)tokens;
    return D * (I + convolved(s) + s->num_heads) + s->m.conv_kernel * convolved(s) + 3 * I * s->m.state_size + 2 * I +
           I * D;
}

static int64_t state_bytes(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    (void)c, (void)tokens;
    return ((int64_t)s->m.inner * s->m.state_size + (s->m.conv_kernel - 1) * convolved(s)) * (int64_t)sizeof(float);
}

/* ---- Network ---- */

typedef struct shared {
    const settings *s;
    int64_t width;
    int layers;
    double norm_eps, deviation;
    mhla_carry_plan plan;
} shared;

typedef struct layer {
    mhla_carry_size size;
    shared *shared;
    mhla_layer in, out;                     /* [2I + 2GN + H,D], [D,I] */
    mhla_param *conv, *conv_bias;           /* [I + 2GN,1,W], [I + 2GN] */
    mhla_param *dt_bias, *A_log, *D, *norm; /* [H] three times, [I] */
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
                  .layers = c->layers,
                  .norm_eps = c->norm_eps,
                  .deviation = c->deviation,
                  .plan.desc = {.size = sizeof x->plan.desc,
                                .kind = MHLA_KIND_SIMPLE_GLA,
                                .heads = s->num_heads,
                                .key_heads = s->n_groups,
                                .key_dim = s->m.state_size,
                                .value_dim = s->head_dim,
                                .scale = 1.0f}};
    const mhla_status status = mhla_plan_create(&x->plan.plan, &x->plan.desc);
    if (status != MHLA_OK) {
        close_shared(x);
        return status;
    }
    *to = x;
    return MHLA_OK;
}

static mhla_status create(void **to, void *of, mhla_params *ps, const char *prefix, int index) {
    shared *x = of;
    const settings *s = x->s;
    const int64_t D = x->width, I = s->m.inner, H = s->num_heads, X = convolved(s), W = s->m.conv_kernel;
    const mhla_initial usual = MHLA_NORMAL(x->deviation);
    layer *l = calloc(1, sizeof *l);
    char name[128];
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *l = (layer){.size = {.index = index, .plan = x->plan.plan, .width = W, .convs = {X}}, .shared = x};
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", prefix, suffix), name)
    l->in = mhla_layer_matrix(ps, I + X + H, D, s->m.use_bias, usual, NAME("in_proj"));
    l->conv = mhla_params_add(ps, NAME("conv1d.weight"), MHLA_SHAPE(X, 1, W), MHLA_PARAM_DECAY, usual);
    if (s->m.use_conv_bias) l->conv_bias = mhla_params_add(ps, NAME("conv1d.bias"), MHLA_SHAPE(X), 0, MHLA_ZERO);
    l->dt_bias =
        mhla_params_add(ps, NAME("dt_bias"), MHLA_SHAPE(H), 0, (mhla_initial){.kind = MHLA_INITIAL_TIME_STEPS});
    l->A_log = mhla_params_add(ps, NAME("A_log"), MHLA_SHAPE(H), 0, (mhla_initial){.kind = MHLA_INITIAL_LOG_COUNT});
    l->D = mhla_params_add(ps, NAME("D"), MHLA_SHAPE(H), 0, MHLA_ONE);
    l->norm = mhla_params_add(ps, NAME("norm.weight"), MHLA_SHAPE(I), 0, MHLA_ONE);
    /* small, because as many residuals are added as there are layers */
    l->out = mhla_layer_matrix(ps, D, I, s->m.use_bias, MHLA_TORCH(I * x->layers), NAME("out_proj"));
#undef NAME
    *to = l;
    return MHLA_OK;
}

static mhla_tensor *forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual, mhla_tensor *h) {
    const layer *l = of;
    const shared *x = l->shared;
    const settings *s = x->s;
    const int64_t I = s->m.inner, keys = keys_of(s), X = convolved(s);
    mhla_tensor *all = mhla_nn_linear(t, l->in.w, l->in.b, MHLA_ACT_NONE, NULL, h);
    mhla_tensor *z = mhla_nn_slice(t, all, 0, I), *xbc = mhla_nn_slice(t, all, I, X);
    mhla_tensor *dt = mhla_nn_slice(t, all, I + X, s->num_heads);
    xbc = mhla_carry_convolve(t, &l->size, run, 0, l->conv, l->conv_bias, xbc);
    mhla_tensor *v = mhla_nn_slice(t, xbc, 0, I), *B = mhla_nn_slice(t, xbc, I, keys),
                *C = mhla_nn_slice(t, xbc, I + keys, keys);
    mhla_tensor *delta = mhla_nn_time_steps(t, l->dt_bias, (float)s->limit[0], (float)s->limit[1], dt);
    mhla_tensor *y = mhla_carry_recur(
        t, &l->size, run, &x->plan,
        (mhla_carried){
            .q = C, .k = B, .v = mhla_nn_mul_heads(t, v, delta), .decay = mhla_nn_rates(t, l->A_log, delta)});
    y = mhla_nn_swiglu(t, z, mhla_nn_skip_heads(t, l->D, v, y));
    if (s->norm_groups > 1)
        y = mhla_nn_channels(t, l->norm, mhla_nn_rms_norm(t, NULL, (float)x->norm_eps, I / s->norm_groups, y));
    else
        y = mhla_nn_rms_norm(t, l->norm, (float)x->norm_eps, 0, y);
    return mhla_nn_linear(t, l->out.w, l->out.b, MHLA_ACT_NONE, residual, y);
}

const mhla_mixer mhla_mixer_mamba2 = {
    .name = "mamba2",
    .type = "mamba2",
    .group = "mamba2",
    .bytes = sizeof(settings),
    .keys = {fields, sizeof fields / sizeof *fields, 0},
    .standard = standard,
    .decoder = mhla_mamba_decoder,
    .claims = claims,
    .read = read_rest,
    .write = write_rest,
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
