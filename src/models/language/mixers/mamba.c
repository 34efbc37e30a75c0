/* Mamba: a recurrence for each channel by itself, whose steps in time the token chooses for each channel.
 *
 *   x, z = in_proj h;   x = silu(conv(x));   dt, B, C = x_proj x
 *   delta = softplus(dt_proj dt),  A = -exp(A_log)
 *   s_t = exp(delta_t A) s_{t-1} + (delta_t x_t) B_t^T,   y_t = s_t C_t + D x_t
 *   out_proj(y * silu(z)) */
#include "models/language/mixers/mamba.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "models/language/mixers/carry.h"
#include "models/layers.h"

typedef mhla_mamba1_settings settings;
_Static_assert(sizeof(settings) <= MHLA_MIXER_BYTES, "settings of Mamba");

/* ---- Settings ---- */

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    { {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind, offsetof(settings, member) }
static const mhla_setting fields[] = {
    MHLA_MAMBA_FIELDS(F),
    F("time_step_rank", INT, OPTIONAL, time_step_rank, 0, 65536, NULL, "rank of time steps, 0: hidden_size / 16"),
};

static void standard(void *to, const mhla_lm_size *size) {
    *(settings *)to = (settings){
        .m = {.expand = 2, .state_size = 16, .conv_kernel = 4, .use_conv_bias = 1},
        .time_step_rank = size ? (size->width + 7) / 8 : 0, /* 128 of 1024, as flash-linear-attention's 340M */
    };
}

static int claims(const json_t *tree, const mhla_safetensors *file) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    (void)file;
    return type && strcmp(type, "mamba") == 0;
}

static mhla_status read_rest(void *to, mhla_lm_config *c, const json_t *tree, const char *path) {
    const char *act = json_string_value(json_object_get(tree, "hidden_act"));
    const json_t *rank = json_object_get(tree, "dt_rank"); /* as flash-linear-attention calls it now */
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: \"hidden_act\" is \"%.40s\": Mamba has silu here", path, act);
    if (rank && !json_is_null(rank) && !json_is_string(rank) &&
        !json_is_number(json_object_get(tree, "time_step_rank")))
        MHLA_TRY(mhla_settings_read_int(&((settings *)to)->time_step_rank, tree, "dt_rank", 1, 65536, path));
    return mhla_mamba_read(c, tree, path);
}

static void write_rest(json_t *tree, const void *of, const mhla_lm_config *c) {
    mhla_mamba_write(tree, c);
    mhla_json_put(tree, "dt_rank", json_integer(((const settings *)of)->time_step_rank));
    mhla_json_put(tree, "hidden_act", json_string("silu"));
}

static mhla_status settle(void *to, const mhla_lm_config *c) {
    settings *s = to;
    const int64_t inner = (int64_t)s->m.expand * c->width;
    if (inner > 1 << 24) return mhla_fail(MHLA_EINVAL, "%lld inner channels are too many", (long long)inner);
    s->m.inner = (int)inner;
    if (s->time_step_rank == 0) s->time_step_rank = (c->width + 15) / 16;
    return MHLA_OK;
}

static void describe(const void *of, mhla_mixer_facts *facts) {
    (void)of;
    *facts = (mhla_mixer_facts){.heads = 1, .marks = 1};
}

static uint64_t print(uint64_t h, const void *of, const mhla_lm_config *c) {
    const settings *s = of;
    const int64_t all[] = {0x6d616d6261,  s->m.inner,         s->m.state_size,  s->m.conv_kernel,
                           s->m.use_bias, s->m.use_conv_bias, s->time_step_rank};
    (void)c;
    return mhla_hash_fold(h, all, sizeof all);
}

/* ---- Cost ---- */

static int64_t multiply_adds(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    const int64_t I = s->m.inner, D = c->width, N = s->m.state_size, R = s->time_step_rank;
    (void)tokens;
    return 2 * I * D + s->m.conv_kernel * I + I * (R + 2 * N) + I * R + 4 * I * N + 2 * I + I * D;
}

static int64_t state_bytes(const void *of, const mhla_lm_config *c, int64_t tokens) {
    const settings *s = of;
    (void)c, (void)tokens;
    return (int64_t)s->m.inner * (s->m.state_size + s->m.conv_kernel - 1) * (int64_t)sizeof(float);
}

/* ---- Network ---- */

typedef struct shared {
    const settings *s;
    int64_t width;
    double deviation;
} shared;

typedef struct layer {
    mhla_carry_size size;
    shared *shared;
    mhla_layer in, out, x, dt;       /* [2I,D], [D,I], [R+2N,I], [I,R] */
    mhla_param *conv, *conv_bias;    /* [I,1,W], [I] */
    mhla_param *dt_bias, *A_log, *D; /* [I], [I,N], [I] */
} layer;

static mhla_status open_shared(void **to, const void *of, const mhla_lm_config *c) {
    shared *x = calloc(1, sizeof *x);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *x = (shared){.s = of, .width = c->width, .deviation = c->deviation};
    *to = x;
    return MHLA_OK;
}

static mhla_status create(void **to, void *of, mhla_params *ps, const char *prefix, int index) {
    shared *x = of;
    const settings *s = x->s;
    const int64_t D = x->width, I = s->m.inner, N = s->m.state_size, R = s->time_step_rank, W = s->m.conv_kernel;
    const mhla_initial usual = MHLA_NORMAL(x->deviation);
    layer *l = calloc(1, sizeof *l);
    char name[128];
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    *l = (layer){.size = {.index = index, .state = I * N, .width = W, .convs = {I}}, .shared = x};
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", prefix, suffix), name)
    l->A_log = mhla_params_add(ps, NAME("A_log"), MHLA_SHAPE(I, N), 0, (mhla_initial){.kind = MHLA_INITIAL_LOG_COUNT});
    l->D = mhla_params_add(ps, NAME("D"), MHLA_SHAPE(I), 0, MHLA_ONE);
    l->conv = mhla_params_add(ps, NAME("conv1d.weight"), MHLA_SHAPE(I, 1, W), MHLA_PARAM_DECAY, usual);
    if (s->m.use_conv_bias) l->conv_bias = mhla_params_add(ps, NAME("conv1d.bias"), MHLA_SHAPE(I), 0, MHLA_ZERO);
    l->in = mhla_layer_matrix(ps, 2 * I, D, s->m.use_bias, usual, NAME("in_proj"));
    l->x = mhla_layer_matrix(ps, R + 2 * N, I, 0, usual, NAME("x_proj"));
    l->dt = mhla_layer_matrix(ps, I, R, 0, MHLA_TORCH(R), NAME("dt_proj"));
    l->dt_bias =
        mhla_params_add(ps, NAME("dt_proj.bias"), MHLA_SHAPE(I), 0, (mhla_initial){.kind = MHLA_INITIAL_TIME_STEPS});
    l->out = mhla_layer_matrix(ps, D, I, s->m.use_bias, usual, NAME("out_proj"));
#undef NAME
    *to = l;
    return MHLA_OK;
}

/* The scan of whole texts, or of tokens of several sequences, whose states go on. */
static mhla_tensor *scan(mhla_tape *t, const layer *l, const mhla_mixer_run *run, mhla_tensor *const in[5]) {
    const mhla_pass *pass = run->pass;
    mhla_nn_scan p = {l->A_log, l->D, l->dt_bias, run->cu_seqlens, run->sequences, NULL};
    int64_t cu_seqlens[MHLA_PASS + 1];
    float *states[MHLA_PASS];
    if (pass) {
        mhla_pass_sequences(pass, cu_seqlens);
        p.cu_seqlens = cu_seqlens;
        p.sequences = pass->n;
        p.states = states;
        for (int i = 0; i < pass->n; i++) states[i] = ((mhla_carry *)pass->segments[i].memory[l->size.index])->state;
    }
    mhla_tensor *y = mhla_nn_selective_scan(t, &p, in[0], in[1], in[2], in[3], in[4]);
    for (int i = 0; pass && y && i < pass->n; i++)
        ((mhla_carry *)pass->segments[i].memory[l->size.index])->at += pass->segments[i].n;
    return y;
}

static mhla_tensor *forward(mhla_tape *t, void *of, const mhla_mixer_run *run, mhla_tensor *residual, mhla_tensor *h) {
    const layer *l = of;
    const settings *s = l->shared->s;
    const int64_t I = s->m.inner, N = s->m.state_size, R = s->time_step_rank;
    mhla_tensor *all = mhla_nn_linear(t, l->in.w, l->in.b, MHLA_ACT_NONE, NULL, h);
    mhla_tensor *x = mhla_nn_slice(t, all, 0, I), *z = mhla_nn_slice(t, all, I, I);
    x = mhla_carry_convolve(t, &l->size, run, 0, l->conv, l->conv_bias, x);
    mhla_tensor *chosen = mhla_nn_linear(t, l->x.w, NULL, MHLA_ACT_NONE, NULL, x);
    mhla_tensor *dt = mhla_nn_slice(t, chosen, 0, R), *B = mhla_nn_slice(t, chosen, R, N),
                *C = mhla_nn_slice(t, chosen, R + N, N);
    mhla_tensor *delta = mhla_nn_linear(t, l->dt.w, NULL, MHLA_ACT_NONE, NULL, dt);
    mhla_tensor *y = scan(t, l, run, (mhla_tensor *const[]){x, delta, B, C, z});
    return mhla_nn_linear(t, l->out.w, l->out.b, MHLA_ACT_NONE, residual, y);
}

const mhla_mixer mhla_mixer_mamba = {
    .name = "mamba",
    .type = "mamba",
    .group = "mamba",
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
    .close = free,
    .create = create,
    .free = free,
    .forward = forward,
    MHLA_CARRY_ROWS,
};
