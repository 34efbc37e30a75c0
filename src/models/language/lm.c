/* Decoders of text: tokens become rows of an embedding, a stack of layers lets each token look at those before it, and the
 * last norm's output, times the output matrix, says what comes next. How a layer looks back is its mixer's business (mixer.h). With MHLA
 * this is the language model of the paper.
 *
 *   x = embeddings[ids]
 *   x = x + mixer(norm(x)),  x = x + down(silu(gate(norm(x))) up(norm(x)))      layers times
 *   logits = output(norm(x))
 *
 * In decoders of Mamba's kind a layer is the first of the two sums alone. */
#include "models/language/lm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/layers.h"

/* ---- Parameters, under the names of the published checkpoints ---------------------------------------------------- */

const mhla_lm_names mhla_lm_names_of[] = {
    {"model.embeddings.weight", "model.layers", "attn_norm.weight", "attn", "mlp_norm.weight", "model.norm.weight"},
    {"model.embed_tokens.weight", "model.layers", "input_layernorm.weight", "self_attn",
     "post_attention_layernorm.weight", "model.norm.weight"},
    {"backbone.embeddings.weight", "backbone.layers", "norm.weight", "mixer", NULL, "backbone.norm_f.weight"},
};

typedef struct block {
    mhla_lm *lm;
    const mhla_mixer *mixer;
    void *mixing;                     /* the mixer's layer */
    mhla_param *attn_norm, *mlp_norm; /* [D]; no mlp_norm: no MLP */
    mhla_layer gate, up, down;        /* [hidden,D] twice, [D,hidden] */
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

static mhla_status add_block(mhla_lm *m, int i) {
    const mhla_lm_config *c = &m->config;
    const mhla_lm_group *g = mhla_lm_group_of(c, i);
    const mhla_lm_names *names = &mhla_lm_names_of[c->naming];
    const mhla_initial usual = MHLA_NORMAL(c->deviation);
    const int64_t D = c->width;
    void **shared = &m->shared[c->group_of[i]];
    block *b = &m->blocks[i];
    char start[64], name[128];
    *b = (block){.lm = m, .mixer = g->mixer};
    snprintf(start, sizeof start, "%s.%d", names->layers, i);
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", start, suffix), name)
    if (*shared == NULL) MHLA_TRY(g->mixer->open(shared, &g->settings, c));
    b->attn_norm = mhla_params_add(m->params, NAME(names->mixer_norm), MHLA_SHAPE(D), 0, MHLA_ONE);
    MHLA_TRY(g->mixer->create(&b->mixing, *shared, m->params, NAME(names->mixer), i));
    if (names->mlp_norm == NULL) return MHLA_OK;
    b->mlp_norm = mhla_params_add(m->params, NAME(names->mlp_norm), MHLA_SHAPE(D), 0, MHLA_ONE);
    b->gate = mhla_layer_matrix(m->params, c->hidden, D, c->mlp_bias, usual, NAME("mlp.gate_proj"));
    b->up = mhla_layer_matrix(m->params, c->hidden, D, c->mlp_bias, usual, NAME("mlp.up_proj"));
    b->down = mhla_layer_matrix(m->params, D, c->hidden, c->mlp_bias, usual, NAME("mlp.down_proj"));
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
    const mhla_lm_names *names = &mhla_lm_names_of[c->naming];
    m->embeddings =
        mhla_params_add(ps, names->embeddings, MHLA_SHAPE(c->vocabulary, c->width), matrix, MHLA_NORMAL(c->deviation));
    for (int i = 0; i < c->layers; i++) MHLA_TRY(add_block(m, i));
    m->norm = mhla_params_add(ps, names->norm, MHLA_SHAPE(c->width), 0, MHLA_ONE);
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

static mhla_tensor *mlp(mhla_tape *t, const block *b, mhla_tensor *x, mhla_tensor *h) {
    mhla_tensor *y[2];
    mhla_nn_linears(t, y, (const mhla_layer[]){b->gate, b->up}, 2, h);
    return mhla_nn_linear(t, b->down.w, b->down.b, MHLA_ACT_NONE, x, mhla_nn_swiglu(t, y[0], y[1]));
}

static mhla_tensor *decoder_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const float eps = (float)b->lm->config.norm_eps;
    x = b->mixer->forward(t, b->mixing, &b->lm->run.mixer, x, mhla_nn_rms_norm(t, b->attn_norm, eps, 0, x));
    return b->mlp_norm ? mlp(t, b, x, mhla_nn_rms_norm(t, b->mlp_norm, eps, 0, x)) : x;
}

mhla_tensor *mhla_lm_forward(mhla_tape *t, mhla_lm *m, const mhla_lm_run *run, const int32_t *ids, int64_t B,
                             int64_t T) {
    m->run = *run;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_nn_embedding(t, m->embeddings, ids, B, T);
    if (run->trace) run->trace[0] = x;
    for (int i = 0; i < m->config.layers; i++) {
        const block *b = &m->blocks[i];
        x = run->recompute ? mhla_nn_checkpoint(t, decoder_block, b, x) : decoder_block(t, b, x);
        if (run->trace)
            run->trace[i + 1] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    return mhla_nn_rms_norm(t, m->norm, (float)m->config.norm_eps, 0, x);
}

mhla_tensor *mhla_lm_mix(mhla_tape *t, mhla_lm *m, const mhla_lm_run *run, int i, mhla_tensor *residual,
                         mhla_tensor *h) {
    m->run = *run;
    return m->blocks[i].mixer->forward(t, m->blocks[i].mixing, &m->run.mixer, residual, h);
}

mhla_tensor *mhla_lm_logits(mhla_tape *t, mhla_lm *m, mhla_tensor *hidden) {
    return mhla_nn_linear(t, m->output, NULL, MHLA_ACT_NONE, NULL, hidden);
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
