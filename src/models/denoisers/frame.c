/* The network of frame.h: what DiT and DiG share, from the parameters to the answer. */
#include "models/denoisers/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/times.h"
#include "nn/op.h"

static const float EPS = 1e-6f; /* of the norms */

/* ---- Parameters ---------------------------------------------------------------------------------------------------- */

static mhla_status fill_positions(mhla_param *p, const void *of);
static const mhla_initial small = {.kind = MHLA_INITIAL_NORMAL, .number = 0.02},
                          identity = {.kind = MHLA_INITIAL_CENTRE};

/* In the order of the published lists. adaLN-Zero: a fresh block adds nothing. */
void mhla_frame_declare_block(mhla_frame_block *b, const mhla_frame *m, int i) {
    char name[64];
    const mhla_frame_config *c = &m->config;
    mhla_params *ps = m->params;
    const int64_t D = c->attn.dim;
#define NAME(suffix) (snprintf(name, sizeof name, "blocks.%d.%s", i, suffix), name)
    mhla_grid_declare(&b->attn, ps, &c->attn, NAME("attn"));
    m->kind->declare_mlp(b, ps, c, NAME("mlp"));
    b->ada = mhla_layer_matrix(ps, 6 * D, D, 1, MHLA_ZERO, NAME("adaLN_modulation.1"));
    if (c->cpe) b->cpe = mhla_layer_depthwise(ps, D, 3, identity, NAME("dw_conv"));
#undef NAME
}

static int64_t out_channels(const mhla_frame_config *c) { return c->learn_sigma ? 2 * c->channels : c->channels; }

static void add_all(mhla_frame *m) {
    const mhla_frame_config *c = &m->config;
    mhla_params *ps = m->params;
    const int64_t D = c->attn.dim, p = c->patch, T = mhla_frame_tokens(c, c->image[0], c->image[1]);
    const mhla_initial positions = {.kind = MHLA_INITIAL_CALL, .fill = fill_positions, .of = c};
    m->pos_embed = mhla_params_add(ps, "pos_embed", MHLA_SHAPE(1, T, D), MHLA_PARAM_FROZEN, positions);
    m->patch = mhla_layer_patches(ps, D, c->channels, p, MHLA_XAVIER, "x_embedder.proj");
    m->time0 = mhla_layer_matrix(ps, D, MHLA_TIME_NUMBERS, 1, small, "t_embedder.mlp.0");
    m->time2 = mhla_layer_matrix(ps, D, D, 1, small, "t_embedder.mlp.2");
    m->labels = mhla_params_add(ps, "y_embedder.embedding_table.weight", MHLA_SHAPE(c->classes + c->null_label, D),
                                MHLA_PARAM_DECAY, small);
    for (int i = 0; i < c->depth; i++) mhla_frame_declare_block(&m->blocks[i], m, i);
    m->final = mhla_layer_matrix(ps, p * p * out_channels(c), D, 1, MHLA_ZERO, "final_layer.linear");
    m->final_ada = mhla_layer_matrix(ps, 2 * D, D, 1, MHLA_ZERO, "final_layer.adaLN_modulation.1");
}

/* ---- What belongs to a size -------------------------------------------------------------------------------------------- */

/* table [H*W, D]: the first half of a row tells the column, the second the row, each [sin, cos] of D/4 frequencies. */
static void write_positions(float *table, int64_t H, int64_t W, int64_t D) {
    const int64_t n = D / 4, sides[2] = {W, H};
    for (int64_t half = 0; half < 2; half++)
        for (int64_t place = 0; place < sides[half]; place++)
            for (int64_t j = 0; j < n; j++) {
                const double angle = (double)place * pow(10000.0, -(double)j / (double)n);
                const float sine = (float)sin(angle), cosine = (float)cos(angle);
                for (int64_t other = 0; other < sides[1 - half]; other++) {
                    float *row = table + (half ? place * W + other : other * W + place) * D + half * 2 * n + j;
                    row[0] = sine;
                    row[n] = cosine;
                }
            }
}

static mhla_status fill_positions(mhla_param *p, const void *of) {
    const mhla_frame_config *c = of;
    write_positions(p->data, c->image[0] / c->patch, c->image[1] / c->patch, c->attn.dim);
    return MHLA_OK;
}

static void grid_free(mhla_frame_grid *g) {
    if (g == NULL) return;
    mhla_grid_place_free(&g->place);
    mhla_params_free(g->own);
    mhla_free(g->order);
    free(g);
}

static mhla_status grid_fill(mhla_frame_grid *g, const mhla_frame *m, int H, int W) {
    const mhla_frame_config *c = &m->config;
    const int64_t T = (int64_t)H * W;
    const int orders = m->kind->orders(c);
    MHLA_TRY(mhla_grid_place_make(&g->place, &c->attn, H, W));
    if (orders) {
        g->order = mhla_alloc(sizeof *g->order * (size_t)(orders * T));
        if (g->order == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the order of %lld tokens", (long long)T);
        m->kind->order(g->order, c, H, W);
    }
    g->position = m->pos_embed;
    if (H * c->patch == c->image[0] && W * c->patch == c->image[1]) return MHLA_OK;
    MHLA_TRY(mhla_params_create(&g->own));
    g->position = mhla_params_add(g->own, "pos_embed", MHLA_SHAPE(1, T, c->attn.dim), MHLA_PARAM_FROZEN, MHLA_ZERO);
    MHLA_TRY(mhla_params_status(g->own));
    write_positions(g->position->data, H, W, c->attn.dim);
    return MHLA_OK;
}

mhla_status mhla_frame_grid_of(const mhla_frame_grid **found, mhla_frame *m, int64_t height, int64_t width) {
    const mhla_frame_config *c = &m->config;
    MHLA_TRY(mhla_frame_check_size(m->kind, c, height, width));
    const int H = (int)(height / c->patch), W = (int)(width / c->patch);
    mhla_frame_grid *g = m->grids;
    while (g && (g->place.H != H || g->place.W != W)) g = g->next;
    if (g == NULL) {
        g = calloc(1, sizeof *g);
        if (g == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a grid");
        const mhla_status status = grid_fill(g, m, H, W);
        if (status != MHLA_OK) {
            grid_free(g);
            return status;
        }
        g->next = m->grids;
        m->grids = g;
    }
    *found = g;
    return MHLA_OK;
}

/* ---- Making ------------------------------------------------------------------------------------------------------------ */

mhla_status mhla_frame_create(mhla_frame **model, const mhla_frame_kind *kind, const mhla_frame_config *config) {
    *model = NULL;
    MHLA_TRY(mhla_frame_check(kind, config));
    mhla_frame *m = calloc(1, sizeof *m);
    mhla_frame_block *blocks = calloc((size_t)config->depth, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d blocks", config->depth);
    }
    m->kind = kind;
    m->config = *config;
    m->blocks = blocks;
    m->config.attn.tokens = mhla_frame_tokens(config, config->image[0], config->image[1]);
    const mhla_frame_grid *g;
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) {
        add_all(m);
        status = mhla_params_status(m->params);
    }
    if (status == MHLA_OK) status = mhla_param_init(m->pos_embed, 0);
    if (status == MHLA_OK) status = mhla_frame_grid_of(&g, m, config->image[0], config->image[1]);
    if (status != MHLA_OK) {
        mhla_frame_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_frame_free(mhla_frame *m) {
    if (m == NULL) return;
    for (mhla_frame_grid *g = m->grids, *next; g; g = next) {
        next = g->next;
        grid_free(g);
    }
    mhla_params_free(m->params);
    free(m->blocks);
    free(m);
}

/* ---- Forward: x is [B,T,D] throughout ------------------------------------------------------------------------------ */

static mhla_tensor *linear(mhla_tape *t, mhla_layer l, mhla_activation activation, mhla_tensor *x) {
    return mhla_nn_linear(t, l.w, l.b, activation, NULL, x);
}

mhla_tensor *mhla_frame_attend(mhla_tape *t, const mhla_frame_call *a, mhla_tensor *h) {
    const mhla_grid_attention *attn = &a->b->attn;
    mhla_tensor *o = linear(t, attn->out, MHLA_ACT_NONE, mhla_grid_forward(t, attn, &a->g->place, h));
    return mhla_nn_dropout(t, (float)a->model->config.dropout, o);
}

mhla_tensor *mhla_frame_run_block(mhla_tape *t, const void *call, mhla_tensor *x) {
    const mhla_frame_call *a = call;
    const mhla_frame *m = a->model;
    const int64_t D = m->config.attn.dim;
    if (a->index > 0 && m->kind->arrange) x = m->kind->arrange(t, a->g, &m->config, a->index, x);
    mhla_tensor *ada = linear(t, a->b->ada, MHLA_ACT_NONE, a->c), *part[6]; /* shift, scale, gate; twice */
    for (int i = 0; i < 6; i++) part[i] = mhla_nn_slice(t, ada, i * D, D);
    x = mhla_nn_gate_add(t, x, part[2], mhla_frame_attend(t, a, mhla_nn_modulated_norm(t, EPS, part[0], part[1], x)));
    x = mhla_nn_gate_add(t, x, part[5], m->kind->mlp(t, a->b, mhla_nn_modulated_norm(t, EPS, part[3], part[4], x)));
    return m->config.cpe ? m->kind->convolve(t, a, x) : x;
}

/* silu(mlp(sinusoid of the time) + row of the label), [B,D] */
static mhla_tensor *condition(mhla_tape *t, const mhla_frame *m, int64_t B, const float *times, const int32_t *labels) {
    for (int64_t b = 0; b < B && labels && !mhla_tape_dry(t); b++)
        if (labels[b] < 0 || labels[b] >= m->labels->shape[0])
            return mhla_tape_fail(t, MHLA_EINVAL, "labels[%lld] is %d: the model has %d classes%s", (long long)b,
                                  labels[b], m->config.classes,
                                  m->config.null_label ? " and one label more for none" : " and no label for none");
    mhla_tensor *time = mhla_denoiser_times(t, times, 1.0, B);
    mhla_tensor *label =
        mhla_nn_reshape(t, mhla_nn_embedding(t, m->labels, labels, B, 1), MHLA_SHAPE(B, m->config.attn.dim));
    time = linear(t, m->time2, MHLA_ACT_NONE, linear(t, m->time0, MHLA_ACT_SILU, time));
    return mhla_nn_activation(t, MHLA_ACT_SILU, mhla_nn_add(t, time, label));
}

mhla_tensor *mhla_frame_forward(mhla_tape *t, mhla_frame *m, const mhla_network_run *run, mhla_tensor *x,
                                const float *times, const int32_t *labels) {
    const mhla_frame_config *c = &m->config;
    const int64_t D = c->attn.dim;
    const mhla_frame_grid *g;
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, x->dims == 4 && x->shape[1] == c->channels, "x has %d axes and %lld channels: expected 4 and %d",
              x->dims, x->dims == 4 ? (long long)x->shape[1] : 0, c->channels);
    const mhla_status status = mhla_frame_grid_of(&g, m, x->shape[2], x->shape[3]);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
    mhla_tensor *cond = condition(t, m, x->shape[0], times, labels);
    mhla_frame_call *calls = mhla_tape_op(t, sizeof *calls * (size_t)c->depth);
    const mhla_mark mark = mhla_tape_mark(t);
    x = mhla_nn_add_position(t, g->position, mhla_nn_patch_embed(t, m->patch.w, m->patch.b, x));
    for (int i = 0; i < c->depth && calls; i++) {
        calls[i] = (mhla_frame_call){m, &m->blocks[i], g, i, cond};
        x = run->recompute ? mhla_nn_checkpoint(t, mhla_frame_run_block, &calls[i], x)
                           : mhla_frame_run_block(t, &calls[i], x);
        if (run->trace)
            run->trace[i] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    if (m->kind->arrange) x = m->kind->arrange(t, g, c, c->depth, x);
    mhla_tensor *ada = linear(t, m->final_ada, MHLA_ACT_NONE, cond);
    x = mhla_nn_modulated_norm(t, EPS, mhla_nn_slice(t, ada, 0, D), mhla_nn_slice(t, ada, D, D), x);
    return mhla_nn_unpatch(t, c->patch, g->place.H, g->place.W, linear(t, m->final, MHLA_ACT_NONE, x));
}

/* ---- What one sample costs ---------------------------------------------------------------------------------------------- */

int64_t mhla_frame_tokens(const mhla_frame_config *c, int64_t height, int64_t width) {
    return height / c->patch * (width / c->patch);
}

int64_t mhla_frame_multiply_adds(const mhla_frame_kind *kind, const mhla_frame_config *c, int64_t height, int64_t width,
                                 int as_paper) {
    const int64_t T = mhla_frame_tokens(c, height, width), D = c->attn.dim, p2 = c->patch * c->patch;
    const int64_t each = mhla_grid_cost(&c->attn, T, T, as_paper) + T * kind->mlp_weights(c) + 6 * D * D /* adaLN */
                         + T * D * (c->cpe ? 9 : 0);
    return T * c->channels * p2 * D + MHLA_TIME_NUMBERS * D + D * D + c->depth * each + 2 * D * D +
           T * D * p2 * out_channels(c);
}
