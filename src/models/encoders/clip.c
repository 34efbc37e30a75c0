/* CLIP's two towers: layers of attention and an MLP, each behind its norm; of the rows of the last layer one is read, that of the class
 * vector or that of the token which ends the text.
 *
 *   x = x + out(attention(norm(x))),  x = x + fc2(gelu(fc1(norm(x))))      layers times
 *   vector = projection(norm(x)[row]) */
#include "models/encoders/clip.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "models/layers.h"

typedef struct block {
    mhla_layer norm1, q, k, v, out, norm2, fc1, fc2;
} block;

typedef struct tower {
    const mhla_clip_tower *c;
    mhla_plan *plan;
    block *blocks;         /* [layers] */
    mhla_param *positions; /* [tokens, width] */
    mhla_layer last;       /* norm */
    mhla_layer projection;
} tower;

struct mhla_clip {
    mhla_clip_config config;
    mhla_params *params;
    tower text, image;
    mhla_param *tokens;  /* [vocabulary, width] */
    mhla_param *classes; /* [width]: the vector in front of an image's patches */
    mhla_layer patches, first;
    mhla_param *scale; /* [1] the logarithm of what cosines are multiplied by */
    int32_t *rows;     /* [capacity] of the present pass */
    int64_t capacity;
};

/* ---- Parameters ---- */

static mhla_status add_tower(mhla_clip *m, tower *x, const mhla_clip_tower *c, const char *prefix, int causal) {
    const mhla_plan_desc desc = {.size = sizeof desc,
                                 .kind = MHLA_KIND_SOFTMAX,
                                 .heads = c->heads,
                                 .key_dim = c->width / c->heads,
                                 .value_dim = c->width / c->heads,
                                 .causal = causal};
    const mhla_initial usual = MHLA_NORMAL(0.02);
    const int64_t D = c->width;
    char start[96], name[160];
    x->c = c;
    x->blocks = calloc((size_t)c->layers, sizeof *x->blocks);
    if (x->blocks == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d layers", c->layers);
    MHLA_TRY(mhla_plan_create(&x->plan, &desc));
    for (int i = 0; i < c->layers; i++) {
        block *b = &x->blocks[i];
        snprintf(start, sizeof start, "%s.encoder.layers.%d", prefix, i);
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", start, suffix), name)
        b->norm1 = mhla_layer_norm(m->params, D, 1, NAME("layer_norm1"));
        b->q = mhla_layer_linear(m->params, D, D, 1, usual, NAME("self_attn.q_proj"));
        b->k = mhla_layer_linear(m->params, D, D, 1, usual, NAME("self_attn.k_proj"));
        b->v = mhla_layer_linear(m->params, D, D, 1, usual, NAME("self_attn.v_proj"));
        b->out = mhla_layer_linear(m->params, D, D, 1, usual, NAME("self_attn.out_proj"));
        b->norm2 = mhla_layer_norm(m->params, D, 1, NAME("layer_norm2"));
        b->fc1 = mhla_layer_linear(m->params, c->hidden, D, 1, usual, NAME("mlp.fc1"));
        b->fc2 = mhla_layer_linear(m->params, D, c->hidden, 1, usual, NAME("mlp.fc2"));
#undef NAME
    }
    return MHLA_OK;
}

static mhla_status add_parameters(mhla_clip *m) {
    const mhla_clip_config *c = &m->config;
    const int64_t side = c->side / c->patch, T = c->text.width, D = c->image.width;
    const mhla_initial usual = MHLA_NORMAL(0.02);
    MHLA_TRY(mhla_params_create(&m->params));
    mhla_params *ps = m->params;
    m->scale = mhla_params_add(ps, "logit_scale", MHLA_SHAPE(1), 0,
                               ((mhla_initial){.kind = MHLA_INITIAL_CONSTANT, .number = 2.6592}));
    m->tokens =
        mhla_params_add(ps, "text_model.embeddings.token_embedding.weight", MHLA_SHAPE(c->vocabulary, T), 0, usual);
    m->text.positions =
        mhla_params_add(ps, "text_model.embeddings.position_embedding.weight", MHLA_SHAPE(c->positions, T), 0, usual);
    MHLA_TRY(add_tower(m, &m->text, &c->text, "text_model", 1));
    m->text.last = mhla_layer_norm(ps, T, 1, "text_model.final_layer_norm");
    m->text.projection = mhla_layer_linear(ps, c->dims, T, 0, usual, "text_projection");
    m->classes = mhla_params_add(ps, "vision_model.embeddings.class_embedding", MHLA_SHAPE(D), 0, usual);
    m->patches = (mhla_layer){mhla_params_add(ps, "vision_model.embeddings.patch_embedding.weight",
                                              MHLA_SHAPE(D, c->channels, c->patch, c->patch), 0, usual),
                              NULL};
    m->image.positions = mhla_params_add(ps, "vision_model.embeddings.position_embedding.weight",
                                         MHLA_SHAPE(side * side + 1, D), 0, usual);
    m->first = mhla_layer_norm(ps, D, 1, "vision_model.pre_layrnorm");
    MHLA_TRY(add_tower(m, &m->image, &c->image, "vision_model", 0));
    m->image.last = mhla_layer_norm(ps, D, 1, "vision_model.post_layernorm");
    m->image.projection = mhla_layer_linear(ps, c->dims, D, 0, usual, "visual_projection");
    return mhla_params_status(ps);
}

mhla_status mhla_clip_create(mhla_clip **net, const mhla_clip_config *config) {
    *net = NULL;
    mhla_clip *m = calloc(1, sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    m->config = *config;
    const mhla_status status = add_parameters(m);
    if (status != MHLA_OK) {
        mhla_clip_free(m);
        return status;
    }
    *net = m;
    return MHLA_OK;
}

void mhla_clip_free(mhla_clip *m) {
    if (m == NULL) return;
    mhla_plan_free(m->text.plan);
    mhla_plan_free(m->image.plan);
    free(m->text.blocks);
    free(m->image.blocks);
    free(m->rows);
    mhla_params_free(m->params);
    free(m);
}

const mhla_clip_config *mhla_clip_config_of(const mhla_clip *m) { return &m->config; }
mhla_params *mhla_clip_params(const mhla_clip *m) { return m->params; }

/* ---- Forward: x is [B,T,D] ---- */

/* x logistic(1.702 x), or the exact GELU */
static mhla_tensor *gelu(mhla_tape *t, const mhla_clip_tower *c, const mhla_layer *fc, mhla_tensor *x) {
    if (c->activation) return mhla_nn_linear(t, fc->w, fc->b, MHLA_ACT_GELU_ERF, NULL, x);
    x = mhla_nn_linear(t, fc->w, fc->b, MHLA_ACT_NONE, NULL, x);
    return mhla_nn_mul(t, x, mhla_nn_sigmoid(t, 1.0f, mhla_nn_scale(t, 1.702f, x)));
}

static mhla_tensor *norm(mhla_tape *t, const tower *m, const mhla_layer *n, mhla_tensor *x) {
    return mhla_nn_layer_norm(t, n->w, n->b, (float)m->c->eps, x);
}

static mhla_tensor *layers(mhla_tape *t, const tower *m, mhla_tensor *x, mhla_tensor **trace) {
    if (trace) trace[0] = x;
    const mhla_mark mark = mhla_tape_mark(t);
    for (int i = 0; i < m->c->layers; i++) {
        const block *b = &m->blocks[i];
        mhla_tensor *y[3];
        mhla_nn_linears(t, y, (const mhla_layer[]){b->q, b->k, b->v}, 3, norm(t, m, &b->norm1, x));
        mhla_tensor *o = mhla_nn_attention(t, m->plan, NULL, NULL, y[0], y[1], y[2]);
        x = mhla_nn_linear(t, b->out.w, b->out.b, MHLA_ACT_NONE, x, o);
        o = gelu(t, m->c, &b->fc1, norm(t, m, &b->norm2, x));
        x = mhla_nn_linear(t, b->fc2.w, b->fc2.b, MHLA_ACT_NONE, x, o);
        if (trace)
            trace[i + 1] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    return x;
}

static mhla_status reserve_rows(mhla_clip *m, int64_t B) {
    if (m->capacity >= B) return MHLA_OK;
    free(m->rows);
    m->rows = malloc((size_t)B * sizeof *m->rows);
    m->capacity = m->rows ? B : 0;
    return m->rows ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld rows", (long long)B);
}

static mhla_tensor *project(mhla_tape *t, const mhla_clip *m, const tower *x, int64_t B, mhla_tensor *rows) {
    rows = norm(t, x, &x->last, mhla_nn_take_rows(t, m->rows, B, rows));
    return mhla_nn_linear(t, x->projection.w, NULL, MHLA_ACT_NONE, NULL, rows);
}

/* The row that is read is that of the token which ends the text: the largest id, where it comes first. */
mhla_tensor *mhla_clip_texts(mhla_tape *t, mhla_clip *m, const int32_t *ids, int64_t B, mhla_tensor **trace) {
    const int64_t T = m->config.positions;
    if (reserve_rows(m, B) != MHLA_OK) return mhla_tape_fail(t, MHLA_ENOMEM, "%s", mhla_message());
    for (int64_t b = 0; b < B; b++) {
        int64_t last = 0;
        for (int64_t i = 1; i < T; i++)
            if (ids[b * T + i] > ids[b * T + last]) last = i;
        m->rows[b] = (int32_t)(b * T + last);
    }
    mhla_tensor *x = mhla_nn_add_position(t, m->text.positions, mhla_nn_embedding(t, m->tokens, ids, B, T));
    return project(t, m, &m->text, B, layers(t, &m->text, x, trace));
}

mhla_tensor *mhla_clip_images(mhla_tape *t, mhla_clip *m, mhla_tensor *pixels, mhla_tensor **trace) {
    const int64_t side = m->config.side / m->config.patch, B = pixels->shape[0];
    if (reserve_rows(m, B) != MHLA_OK) return mhla_tape_fail(t, MHLA_ENOMEM, "%s", mhla_message());
    for (int64_t b = 0; b < B; b++) m->rows[b] = (int32_t)(b * (side * side + 1));
    mhla_tensor *x = mhla_nn_prepend(t, m->classes, mhla_nn_patch_embed(t, m->patches.w, NULL, pixels));
    x = norm(t, &m->image, &m->first, mhla_nn_add_position(t, m->image.positions, x));
    return project(t, m, &m->image, B, layers(t, &m->image, x, trace));
}

/* ---- Cost ---- */

static int64_t tower_cost(const mhla_clip_tower *c, int64_t tokens) {
    const int64_t D = c->width;
    return c->layers * tokens * (4 * D * D + 2 * D * c->hidden + 2 * tokens * D);
}

int64_t mhla_clip_multiply_adds(const mhla_clip_config *c) {
    const int64_t side = c->side / c->patch, patches = side * side, D = c->image.width;
    return tower_cost(&c->text, c->positions) + tower_cost(&c->image, patches + 1) +
           patches * c->channels * c->patch * c->patch * D + (c->text.width + D) * (int64_t)c->dims;
}
