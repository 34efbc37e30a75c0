/* The network of umT5's encoder.
 *
 *   x = embedding(ids)
 *   x = x + o(attention(q(u), k(u), v(u))),  u = norm(x)        not scaled, with a number for each distance and head
 *   x = x + wo(gelu(wi_0(u)) wi_1(u)),       u = norm(x)
 *   rows = norm(x)
 *
 * The weights may be larger than memory: each is needed once for all texts, and is given back then (mhla_param_return). */
#include "models/encoders/umt5.h"

#include <math.h>
#include <stdlib.h>

#include "core/status.h"
#include "models/layers.h"

typedef struct layer {
    mhla_layer norm1, norm2;
    mhla_param *q, *k, *v, *o, *distances, *gate, *up, *down;
} layer;

struct mhla_umt5 {
    mhla_umt5_config config;
    mhla_params *params;
    mhla_param *embedding;
    mhla_layer norm;
    layer *layers;
};

static mhla_param *matrix(mhla_umt5 *m, int64_t N, int64_t K, double deviation, int i, const char *name) {
    return mhla_params_addf(m->params, MHLA_SHAPE(N, K), MHLA_PARAM_DECAY | MHLA_PARAM_MATRIX, MHLA_NORMAL(deviation),
                            "encoder.block.%d.layer.%s.weight", i, name);
}

static mhla_layer norm(mhla_umt5 *m, int i, int part) {
    return (mhla_layer){.w = mhla_params_addf(m->params, MHLA_SHAPE(m->config.width), 0, MHLA_ONE,
                                              "encoder.block.%d.layer.%d.layer_norm.weight", i, part)};
}

/* Deviations as T5 begins. */
static void declare(mhla_umt5 *m) {
    const mhla_umt5_config *c = &m->config;
    const int64_t D = c->width, A = (int64_t)c->heads * c->head_dim, F = c->hidden;
    const double from = 1.0 / sqrt((double)D);
    m->embedding =
        mhla_params_add(m->params, "shared.weight", MHLA_SHAPE(c->vocabulary, D), MHLA_PARAM_MATRIX, MHLA_NORMAL(1.0));
    for (int i = 0; i < c->layers; i++) {
        layer *l = &m->layers[i];
        l->q = matrix(m, A, D, from / sqrt((double)c->head_dim), i, "0.SelfAttention.q");
        l->k = matrix(m, A, D, from, i, "0.SelfAttention.k");
        l->v = matrix(m, A, D, from, i, "0.SelfAttention.v");
        l->o = matrix(m, D, A, 1.0 / sqrt((double)A), i, "0.SelfAttention.o");
        l->distances = mhla_params_addf(m->params, MHLA_SHAPE(c->buckets, c->heads), 0, MHLA_NORMAL(from),
                                        "encoder.block.%d.layer.0.SelfAttention.relative_attention_bias.weight", i);
        l->norm1 = norm(m, i, 0);
        l->gate = matrix(m, F, D, from, i, "1.DenseReluDense.wi_0");
        l->up = matrix(m, F, D, from, i, "1.DenseReluDense.wi_1");
        l->down = matrix(m, D, F, 1.0 / sqrt((double)F), i, "1.DenseReluDense.wo");
        l->norm2 = norm(m, i, 1);
    }
    m->norm = mhla_layer_norm(m->params, D, 0, "encoder.final_layer_norm");
}

void mhla_umt5_free(mhla_umt5 *m) {
    if (m == NULL) return;
    mhla_params_free(m->params);
    free(m->layers);
    free(m);
}

mhla_status mhla_umt5_create(mhla_umt5 **model, const mhla_umt5_config *config, int lending, mhla_dtype precision) {
    mhla_umt5 *m = calloc(1, sizeof *m);
    *model = NULL;
    if (m) m->layers = calloc((size_t)config->layers, sizeof *m->layers);
    if (m == NULL || m->layers == NULL) {
        free(m);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    }
    m->config = *config;
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) {
        mhla_params_set_lending(m->params, lending);
        mhla_params_set_precision(m->params, precision);
        declare(m);
        status = mhla_params_status(m->params);
    }
    if (status != MHLA_OK) {
        mhla_umt5_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

const mhla_umt5_config *mhla_umt5_config_of(const mhla_umt5 *m) { return &m->config; }
mhla_params *mhla_umt5_params(const mhla_umt5 *m) { return m->params; }

/* ---- Forward ------------------------------------------------------------------------------------------------------------ */

/* What the texts of a pass have in each place of the network; NULL where a text is empty. */
enum { X, U, QUERY, KEY, VALUE, GATE, UP, PLACES };
typedef struct pass {
    mhla_tape *t;
    const mhla_umt5 *m;
    int64_t B;
    mhla_tensor **at[PLACES], **rooms; /* [B] each */
} pass;

/* to = activation(w from) + residual, text by text; then w is not needed again. A place below 0: none. */
static void product(const pass *p, mhla_param *w, mhla_activation activation, int to, int residual, int from) {
    for (int64_t b = 0; b < p->B; b++)
        if (p->at[X][b])
            p->at[to][b] =
                mhla_nn_linear(p->t, w, NULL, activation, residual < 0 ? NULL : p->at[residual][b], p->at[from][b]);
    mhla_param_return(w);
}

static void norms(const pass *p, const mhla_layer *l) {
    for (int64_t b = 0; b < p->B; b++)
        if (p->at[X][b]) p->at[U][b] = mhla_nn_rms_norm(p->t, l->w, (float)p->m->config.eps, 0, p->at[X][b]);
}

static void apply(const pass *p, const layer *l) {
    norms(p, &l->norm1);
    product(p, l->q, MHLA_ACT_NONE, QUERY, -1, U);
    product(p, l->k, MHLA_ACT_NONE, KEY, -1, U);
    product(p, l->v, MHLA_ACT_NONE, VALUE, -1, U);
    for (int64_t b = 0; b < p->B; b++)
        if (p->at[X][b])
            p->at[U][b] = mhla_nn_position_attention(p->t, l->distances, p->m->config.distance, p->at[QUERY][b],
                                                     p->at[KEY][b], p->at[VALUE][b]);
    product(p, l->o, MHLA_ACT_NONE, X, X, U);
    norms(p, &l->norm2);
    product(p, l->gate, MHLA_ACT_GELU_TANH, GATE, -1, U);
    product(p, l->up, MHLA_ACT_NONE, UP, -1, U);
    for (int64_t b = 0; b < p->B; b++)
        if (p->at[X][b]) p->at[GATE][b] = mhla_nn_mul(p->t, p->at[GATE][b], p->at[UP][b]);
    product(p, l->down, MHLA_ACT_NONE, X, X, GATE);
}

static mhla_tensor *run(pass *p, mhla_tensor **trace, const int32_t *ids, const int32_t *lengths, int64_t T) {
    mhla_tape *t = p->t;
    const mhla_umt5_config *c = &p->m->config;
    for (int64_t b = 0; b < p->B; b++) {
        const int64_t n = lengths ? lengths[b] : T;
        if (n == 0) continue;
        p->rooms[b] = mhla_tape_room(t, MHLA_SHAPE(1, n, c->width));
        p->at[X][b] = mhla_nn_embedding(t, p->m->embedding, ids ? ids + b * T : NULL, 1, n);
    }
    mhla_param_return(p->m->embedding);
    const mhla_mark mark = mhla_tape_mark(t);
    for (int i = 0; i < c->layers; i++) {
        apply(p, &p->m->layers[i]);
        for (int64_t b = 0; b < p->B; b++)
            if (p->at[X][b]) p->at[X][b] = mhla_tape_keep(t, p->rooms[b], p->at[X][b]);
        mhla_tape_release(t, mark, NULL);
        if (trace) trace[i] = mhla_nn_stack(t, p->at[X], p->B, T, c->width);
    }
    norms(p, &p->m->norm);
    return mhla_nn_stack(t, p->at[U], p->B, T, c->width);
}

mhla_tensor *mhla_umt5_forward(mhla_tape *t, mhla_umt5 *m, mhla_tensor **trace, const int32_t *ids,
                               const int32_t *lengths, int64_t B, int64_t T) {
    pass p = {.t = t, .m = m, .B = B};
    mhla_tensor **lists = calloc((size_t)(B * (PLACES + 1)), sizeof(*lists));
    if (lists == NULL) return mhla_tape_fail(t, MHLA_ENOMEM, "no memory for %lld texts", (long long)B);
    for (int i = 0; i < PLACES; i++) p.at[i] = lists + i * B;
    p.rooms = lists + (int64_t)PLACES * B;
    mhla_tensor *y = run(&p, trace, ids, lengths, T);
    free(lists);
    return y;
}

int64_t mhla_umt5_multiply_adds(const mhla_umt5_config *c, int64_t tokens) {
    const int64_t D = c->width, A = (int64_t)c->heads * c->head_dim;
    return c->layers * tokens * (4 * D * A + 3 * D * c->hidden + 2 * tokens * A);
}
