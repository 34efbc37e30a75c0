/* Decoders of text: tokens become rows of an embedding, a stack of layers lets each token look at those before it, and the
 * last norm's output, times the output matrix, says what comes next. How a layer looks back is its mixer's business (mixer.h). With MHLA
 * this is the language model of the paper.
 *
 *   x = embeddings[ids]
 *   x = x + mixer(norm(x)),  x = x + down(silu(gate(norm(x))) up(norm(x)))      layers times
 *   logits = output(norm(x))
 *
 * In decoders of Mamba's kind a layer is the first of the two sums alone. In Gemma's, x begins as sqrt(width) times the embedding, norms
 * multiply by 1 + w, the gate is GELU, and there are norms behind the mixer and the MLP, too:
 *
 *   x = x + norm(mixer(norm(x))),  x = x + norm(down(gelu(gate(norm(x))) up(norm(x)))) */
#include "models/language/lm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/numbers.h"
#include "core/status.h"
#include "models/layers.h"

/* ---- Parameters, under the names of the published checkpoints ---------------------------------------------------- */

#define NAMES .embeddings = "model.embed_tokens.weight", .layers = "model.layers", .norm = "model.norm.weight"
const mhla_lm_names mhla_lm_names_of[] = {
    {.embeddings = "model.embeddings.weight",
     .layers = "model.layers",
     .mixer_norm = "attn_norm.weight",
     .mixer = "attn",
     .mlp_norm = "mlp_norm.weight",
     .norm = "model.norm.weight"},
    {NAMES, .mixer_norm = "input_layernorm.weight", .mixer = "self_attn",
     .mlp_norm = "post_attention_layernorm.weight"},
    {.embeddings = "backbone.embeddings.weight",
     .layers = "backbone.layers",
     .mixer_norm = "norm.weight",
     .mixer = "mixer",
     .norm = "backbone.norm_f.weight"},
    {NAMES, .mixer_norm = "input_layernorm.weight", .mixer = "self_attn",
     .mixed_norm = "post_attention_layernorm.weight", .mlp_norm = "pre_feedforward_layernorm.weight",
     .fed_norm = "post_feedforward_layernorm.weight", .plus_one = 1, .gelu = 1, .scaled = 1},
};
#undef NAMES

typedef struct block {
    mhla_lm *lm;
    const mhla_mixer *mixer;
    void *mixing;                      /* the mixer's layer */
    mhla_param *attn_norm, *mlp_norm;  /* [D]; no mlp_norm: no MLP */
    mhla_param *mixed_norm, *fed_norm; /* [D], or none */
    mhla_layer gate, up, down;         /* [hidden,D] twice, [D,hidden] */
} block;

struct mhla_lm {
    mhla_lm_config config;
    mhla_params *params;
    void *shared[MHLA_LM_LAYERS + 1]; /* [groups] of the mixers; NULL where a group has no layers */
    mhla_param *embeddings, *norm, *output;
    block *blocks;   /* [layers] */
    mhla_lm_run run; /* of the present forward pass, and of its backward */
    char attention[160];
};

static const mhla_lm_names *names_of(const mhla_lm *m) { return &mhla_lm_names_of[m->config.naming]; }

/* A weight of a norm; NULL where its name is. */
static mhla_param *add_norm(mhla_lm *m, const char *name) {
    const mhla_initial neutral = names_of(m)->plus_one ? MHLA_ZERO : MHLA_ONE;
    return name ? mhla_params_add(m->params, name, MHLA_SHAPE(m->config.width), 0, neutral) : NULL;
}

static mhla_status add_block(mhla_lm *m, int i) {
    const mhla_lm_config *c = &m->config;
    const mhla_lm_group *g = mhla_lm_group_of(c, i);
    const mhla_lm_names *names = names_of(m);
    const mhla_initial usual = MHLA_NORMAL(c->deviation);
    const int64_t D = c->width;
    void **shared = &m->shared[c->group_of[i]];
    block *b = &m->blocks[i];
    char start[64], name[128];
    *b = (block){.lm = m, .mixer = g->mixer};
    snprintf(start, sizeof start, "%s.%d", names->layers, i);
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", start, suffix), name)
    if (*shared == NULL) MHLA_TRY(g->mixer->open(shared, &g->settings, c));
    b->attn_norm = add_norm(m, NAME(names->mixer_norm));
    MHLA_TRY(g->mixer->create(&b->mixing, *shared, m->params, NAME(names->mixer), i));
    if (names->mixed_norm) b->mixed_norm = add_norm(m, NAME(names->mixed_norm));
    if (names->mlp_norm == NULL) return MHLA_OK;
    b->mlp_norm = add_norm(m, NAME(names->mlp_norm));
    b->gate = mhla_layer_matrix(m->params, c->hidden, D, c->mlp_bias, usual, NAME("mlp.gate_proj"));
    b->up = mhla_layer_matrix(m->params, c->hidden, D, c->mlp_bias, usual, NAME("mlp.up_proj"));
    b->down = mhla_layer_matrix(m->params, D, c->hidden, c->mlp_bias, usual, NAME("mlp.down_proj"));
    if (names->fed_norm) b->fed_norm = add_norm(m, NAME(names->fed_norm));
#undef NAME
    return MHLA_OK;
}

/* "mhla, linear and softmax", in the order of the list. */
static void name_mixers(mhla_lm *m) {
    const char *names[MHLA_LM_LAYERS];
    const mhla_mixer *x;
    int n = 0;
    for (int i = 0; (x = mhla_mixer_at(i)) != NULL; i++)
        for (int l = 0; l < m->config.layers; l++)
            if (m->blocks[l].mixer == x) {
                names[n++] = x->name;
                break;
            }
    for (int i = 0; i < n; i++) {
        const size_t at = strlen(m->attention);
        snprintf(m->attention + at, sizeof m->attention - at, "%s%s",
                 i == 0       ? ""
                 : i == n - 1 ? " and "
                              : ", ",
                 names[i]);
    }
}

mhla_status mhla_lm_create(mhla_lm **lm, const mhla_lm_config *config) {
    return mhla_lm_create_as(lm, config, MHLA_F32);
}

static mhla_status add_parameters(mhla_lm *m, mhla_dtype storage) {
    const mhla_lm_config *c = &m->config;
    const unsigned matrix = MHLA_PARAM_DECAY | MHLA_PARAM_MATRIX;
    MHLA_TRY(mhla_params_create(&m->params));
    mhla_params *ps = m->params;
    mhla_params_set_storage(ps, storage);
    const mhla_lm_names *names = names_of(m);
    m->embeddings =
        mhla_params_add(ps, names->embeddings, MHLA_SHAPE(c->vocabulary, c->width), matrix, MHLA_NORMAL(c->deviation));
    for (int i = 0; i < c->layers; i++) MHLA_TRY(add_block(m, i));
    m->norm = add_norm(m, names->norm);
    m->output = c->tied ? m->embeddings
                        : mhla_params_add(ps, "lm_head.weight", MHLA_SHAPE(c->vocabulary, c->width), matrix,
                                          MHLA_NORMAL(c->deviation));
    return mhla_params_status(ps);
}

mhla_status mhla_lm_create_as(mhla_lm **lm, const mhla_lm_config *config, mhla_dtype storage) {
    *lm = NULL;
    mhla_lm *m = calloc(1, sizeof *m);
    block *blocks = calloc((size_t)config->layers, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d layers", config->layers);
    }
    m->config = *config;
    m->blocks = blocks;
    const mhla_status status = add_parameters(m, storage);
    if (status != MHLA_OK) {
        mhla_lm_free(m);
        return status;
    }
    name_mixers(m);
    *lm = m;
    return MHLA_OK;
}

void mhla_lm_free(mhla_lm *m) {
    if (m == NULL) return;
    for (int i = 0; i < m->config.layers; i++)
        if (m->blocks[i].mixer) m->blocks[i].mixer->free(m->blocks[i].mixing);
    for (int g = 0; g < m->config.groups; g++)
        if (m->shared[g]) m->config.group[g].mixer->close(m->shared[g]);
    mhla_params_free(m->params);
    free(m->blocks);
    free(m);
}

const mhla_lm_config *mhla_lm_config_of(const mhla_lm *m) { return &m->config; }
mhla_params *mhla_lm_params(const mhla_lm *m) { return m->params; }
mhla_param *mhla_lm_output(const mhla_lm *m) { return m->output; }
const char *mhla_lm_attention_text(const mhla_lm *m) { return m->attention; }
void *mhla_lm_shared(const mhla_lm *m, int i) { return m->shared[m->config.group_of[i]]; }
void *mhla_lm_layer(const mhla_lm *m, int i) { return m->blocks[i].mixing; }

/* ---- Forward: x is [B,T,D] throughout ---------------------------------------------------------------------------------- */

static mhla_tensor *norm(mhla_tape *t, const mhla_lm *m, mhla_param *w, mhla_tensor *x) {
    const float eps = (float)m->config.norm_eps;
    return names_of(m)->plus_one ? mhla_nn_rms_norm_plus_one(t, w, eps, 0, x) : mhla_nn_rms_norm(t, w, eps, 0, x);
}

/* residual (or NULL) + the MLP of h. */
static mhla_tensor *mlp(mhla_tape *t, const block *b, mhla_tensor *residual, mhla_tensor *h) {
    mhla_tensor *y[2];
    mhla_nn_linears(t, y, (const mhla_layer[]){b->gate, b->up}, 2, h);
    mhla_tensor *z = names_of(b->lm)->gelu ? mhla_nn_mul(t, mhla_nn_activation(t, MHLA_ACT_GELU_TANH, y[0]), y[1])
                                           : mhla_nn_swiglu(t, y[0], y[1]);
    return mhla_nn_linear(t, b->down.w, b->down.b, MHLA_ACT_NONE, residual, z);
}

static mhla_tensor *mix(mhla_tape *t, const block *b, mhla_tensor *residual, mhla_tensor *h) {
    return b->mixer->forward(t, b->mixing, &b->lm->run.mixer, residual, h);
}

static mhla_tensor *decoder_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const mhla_lm *m = b->lm;
    mhla_tensor *h = norm(t, m, b->attn_norm, x);
    x = b->mixed_norm ? mhla_nn_add(t, x, norm(t, m, b->mixed_norm, mix(t, b, NULL, h))) : mix(t, b, x, h);
    if (b->mlp_norm == NULL) return x;
    h = norm(t, m, b->mlp_norm, x);
    return b->fed_norm ? mhla_nn_add(t, x, norm(t, m, b->fed_norm, mlp(t, b, NULL, h))) : mlp(t, b, x, h);
}

/* As the published code rounds it: to the type that the embedding is kept in. */
static float embedding_scale(const mhla_lm *m) {
    const float root = sqrtf((float)m->config.width);
    return m->embeddings->dtype == MHLA_BF16 ? mhla_bf16_to_float(mhla_float_to_bf16(root)) : root;
}

mhla_tensor *mhla_lm_forward(mhla_tape *t, mhla_lm *m, const mhla_lm_run *run, const int32_t *ids, int64_t B,
                             int64_t T) {
    m->run = *run;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_nn_embedding(t, m->embeddings, ids, B, T);
    if (names_of(m)->scaled) x = mhla_nn_scale(t, embedding_scale(m), x);
    if (run->trace) run->trace[0] = x;
    for (int i = 0; i < m->config.layers; i++) {
        const block *b = &m->blocks[i];
        x = run->recompute ? mhla_nn_checkpoint(t, decoder_block, b, x) : decoder_block(t, b, x);
        if (run->trace)
            run->trace[i + 1] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    return norm(t, m, m->norm, x);
}

mhla_tensor *mhla_lm_mix(mhla_tape *t, mhla_lm *m, const mhla_lm_run *run, int i, mhla_tensor *residual,
                         mhla_tensor *h) {
    m->run = *run;
    return mix(t, &m->blocks[i], residual, h);
}

mhla_tensor *mhla_lm_logits(mhla_tape *t, mhla_lm *m, mhla_tensor *hidden) {
    return mhla_nn_softcap(t, (float)m->config.softcap,
                           mhla_nn_linear(t, m->output, NULL, MHLA_ACT_NONE, NULL, hidden));
}

/* ---- What a token costs ------------------------------------------------------------------------------------------------ */

int64_t mhla_lm_multiply_adds(const mhla_lm_config *c, int64_t tokens) {
    int64_t all = (int64_t)c->vocabulary * c->width;
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_group *g = mhla_lm_group_of(c, i);
        all += 3 * (int64_t)c->width * c->hidden + g->mixer->multiply_adds(&g->settings, c, tokens);
    }
    return all;
}

int64_t mhla_lm_state_bytes(const mhla_lm_config *c, int64_t tokens) {
    int64_t bytes = 0;
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_group *g = mhla_lm_group_of(c, i);
        bytes += g->mixer->state_bytes(&g->settings, c, tokens);
    }
    return bytes;
}
