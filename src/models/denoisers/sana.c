/* The network of sana.h. x is [B,T,D] throughout. */
#include "models/denoisers/sana.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "models/denoisers/times.h"
#include "nn/op.h"

static const float text_eps = 1e-5f; /* of the norm of the text, and of those of queries and keys */

/* ---- Parameters -------------------------------------------------------------------------------------------------------- */

static mhla_param *table(mhla_params *ps, int64_t rows, int64_t D, const char *name) {
    return mhla_params_add(ps, name, MHLA_SHAPE(rows, D), 0, MHLA_NORMAL(1.0 / sqrt((double)D)));
}

static void declare_cross(mhla_sana_cross *x, mhla_params *ps, const mhla_sana_config *c, const char *name) {
    const int64_t D = c->attn.dim, C = (int64_t)c->cross_heads * c->cross_head_dim, W = c->cross_width;
    x->q = mhla_layer_matrix(ps, C, D, 1, MHLA_XAVIER, mhla_grid_part(name, "to_q"));
    x->k = mhla_layer_matrix(ps, C, W, 1, MHLA_XAVIER, mhla_grid_part(name, "to_k"));
    x->v = mhla_layer_matrix(ps, C, W, 1, MHLA_XAVIER, mhla_grid_part(name, "to_v"));
    if (c->qk_norm) {
        x->q_norm = mhla_layer_norm(ps, C, 0, mhla_grid_part(name, "norm_q")).w;
        x->k_norm = mhla_layer_norm(ps, C, 0, mhla_grid_part(name, "norm_k")).w;
    }
    x->out = mhla_layer_matrix(ps, D, C, 1, MHLA_ZERO, mhla_grid_part(name, "to_out.0"));
}

void mhla_sana_declare_block(mhla_sana_block *b, mhla_params *ps, const mhla_sana_config *c, const char *name) {
    char text[128];
#define NAME(part) (snprintf(text, sizeof text, "%s%s", name, part), text)
    b->table = table(ps, 6, c->attn.dim, NAME("scale_shift_table"));
    mhla_grid_declare(&b->attn, ps, &c->attn, NAME("attn1"));
    declare_cross(&b->cross, ps, c, NAME("attn2"));
    b->mlp = mhla_glumb_declare(ps, c->attn.dim, mhla_sana_hidden(c), NAME("ff"));
#undef NAME
}

static void add_all(mhla_sana *m) {
    const mhla_sana_config *c = &m->config;
    mhla_params *ps = m->params;
    const int64_t D = c->attn.dim, p = c->patch;
    const mhla_initial small = MHLA_NORMAL(0.02);
    char name[64];
    m->table = table(ps, 2, D, "scale_shift_table");
    m->patch = mhla_layer_patches(ps, D, c->channels, p, MHLA_XAVIER, "patch_embed.proj");
    m->time1 = mhla_layer_matrix(ps, D, MHLA_TIME_NUMBERS, 1, small, "time_embed.emb.timestep_embedder.linear_1");
    m->time2 = mhla_layer_matrix(ps, D, D, 1, small, "time_embed.emb.timestep_embedder.linear_2");
    m->time = mhla_layer_matrix(ps, 6 * D, D, 1, small, "time_embed.linear");
    m->caption1 = mhla_layer_matrix(ps, D, c->text_width, 1, small, "caption_projection.linear_1");
    m->caption2 = mhla_layer_matrix(ps, c->cross_width, D, 1, small, "caption_projection.linear_2");
    m->caption_norm = mhla_layer_norm(ps, c->cross_width, 0, "caption_norm").w;
    for (int i = 0; i < c->depth; i++) {
        snprintf(name, sizeof name, "transformer_blocks.%d.", i);
        mhla_sana_declare_block(&m->blocks[i], ps, c, name);
    }
    m->out = mhla_layer_matrix(ps, p * p * mhla_sana_answers(c), D, 1, MHLA_ZERO, "proj_out");
}

/* ---- Making ------------------------------------------------------------------------------------------------------------ */

mhla_status mhla_sana_cross_plan(mhla_plan **plan, const mhla_sana_config *c) {
    const mhla_plan_desc desc = {.size = sizeof desc,
                                 .kind = MHLA_KIND_SOFTMAX,
                                 .heads = c->cross_heads,
                                 .key_dim = c->cross_head_dim,
                                 .value_dim = c->cross_head_dim};
    return mhla_plan_create(plan, &desc);
}

mhla_status mhla_sana_create(mhla_sana **model, const mhla_sana_config *config) {
    *model = NULL;
    mhla_sana *m = calloc(1, sizeof *m);
    mhla_sana_block *blocks = calloc((size_t)config->depth, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d blocks", config->depth);
    }
    m->config = *config;
    m->blocks = blocks;
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) status = mhla_sana_cross_plan(&m->cross, config);
    if (status == MHLA_OK) {
        add_all(m);
        status = mhla_params_status(m->params);
    }
    if (status != MHLA_OK) {
        mhla_sana_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_sana_free(mhla_sana *m) {
    if (m == NULL) return;
    for (mhla_sana_grid *g = m->grids, *next; g; g = next) {
        next = g->next;
        mhla_grid_place_free(&g->place);
        free(g);
    }
    mhla_plan_free(m->cross);
    mhla_params_free(m->params);
    free(m->blocks);
    free(m);
}

static mhla_status place_of(const mhla_grid_place **found, mhla_sana *m, int64_t height, int64_t width) {
    const mhla_sana_config *c = &m->config;
    MHLA_TRY(mhla_sana_check_size(c, height, width));
    const int H = (int)(height / c->patch), W = (int)(width / c->patch);
    mhla_sana_grid *g = m->grids;
    while (g && (g->place.H != H || g->place.W != W)) g = g->next;
    if (g == NULL) {
        g = calloc(1, sizeof *g);
        if (g == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a grid");
        const mhla_status status = mhla_grid_place_make(&g->place, &c->attn, H, W);
        if (status != MHLA_OK) {
            free(g);
            return status;
        }
        g->next = m->grids;
        m->grids = g;
    }
    *found = &g->place;
    return MHLA_OK;
}

/* ---- Forward ------------------------------------------------------------------------------------------------------------ */

static mhla_tensor *linear(mhla_tape *t, mhla_layer l, mhla_activation activation, mhla_tensor *x) {
    return mhla_nn_linear(t, l.w, l.b, activation, NULL, x);
}

/* table [n,D] + v [B,n,D], [B,n*D] */
static mhla_tensor *add_table(mhla_tape *t, mhla_param *table, mhla_tensor *v) {
    if (v == NULL) return NULL;
    const int64_t B = v->shape[0], all = v->rows / B * v->cols;
    return mhla_nn_reshape(t, mhla_nn_add_position(t, table, v), MHLA_SHAPE(B, all));
}

mhla_tensor *mhla_sana_attend(mhla_tape *t, const mhla_sana_call *a, mhla_tensor *h) {
    const mhla_grid_attention *attn = &a->b->attn;
    h = linear(t, attn->out, MHLA_ACT_NONE, mhla_grid_forward(t, attn, a->place, h));
    return mhla_nn_dropout(t, (float)a->model->config.dropout, h);
}

mhla_tensor *mhla_sana_read_text(mhla_tape *t, const mhla_sana_call *a, mhla_tensor *x) {
    const mhla_sana_cross *c = &a->b->cross;
    mhla_tensor *q = linear(t, c->q, MHLA_ACT_NONE, x), *kv[2];
    mhla_nn_linears(t, kv, (const mhla_layer[]){c->k, c->v}, 2, a->text);
    if (c->q_norm) {
        q = mhla_nn_rms_norm(t, c->q_norm, text_eps, 0, q);
        kv[0] = mhla_nn_rms_norm(t, c->k_norm, text_eps, 0, kv[0]);
    }
    mhla_tensor *o = mhla_nn_cross_attention(t, a->model->cross, a->lengths, q, kv[0], kv[1]);
    return mhla_nn_dropout(t, (float)a->model->config.dropout, linear(t, c->out, MHLA_ACT_NONE, o));
}

mhla_tensor *mhla_sana_run_block(mhla_tape *t, const void *call, mhla_tensor *x) {
    const mhla_sana_call *a = call;
    const mhla_sana_config *c = &a->model->config;
    const int64_t D = c->attn.dim;
    const float eps = (float)c->norm_eps;
    mhla_tensor *time = mhla_nn_reshape(t, a->time, MHLA_SHAPE(a->time->rows, 1, 6 * D)), *part[6];
    time = add_table(t, a->b->table, time);
    for (int i = 0; i < 6; i++) part[i] = mhla_nn_slice(t, time, i * D, D); /* shift, scale, gate; twice */
    mhla_tensor *h = mhla_sana_attend(t, a, mhla_nn_modulated_norm(t, eps, part[0], part[1], x));
    x = mhla_nn_gate_add(t, x, part[2], h);
    x = mhla_nn_add(t, x, mhla_sana_read_text(t, a, x));
    h = mhla_nn_modulated_norm(t, eps, part[3], part[4], x);
    return mhla_nn_gate_add(t, x, part[5], mhla_glumb_forward(t, &a->b->mlp, a->place->H, a->place->W, h));
}

/* The rows of text, projected: [B,longest,cross_width]. */
static mhla_tensor *read_condition(mhla_tape *t, const mhla_sana *m, int64_t B, const mhla_condition *condition) {
    const mhla_condition *c = condition;
    MHLA_NEED(t, c && (c->rows || mhla_tape_dry(t)) && c->longest > 0, "the model takes text, and none is given");
    mhla_tensor *text = mhla_nn_input(t, c->rows, MHLA_SHAPE(B, c->longest, m->config.text_width));
    text = linear(t, m->caption2, MHLA_ACT_NONE, linear(t, m->caption1, MHLA_ACT_GELU_TANH, text));
    return mhla_nn_rms_norm(t, m->caption_norm, text_eps, 0, text);
}

mhla_tensor *mhla_sana_forward(mhla_tape *t, mhla_sana *m, const mhla_network_run *run, mhla_tensor *x,
                               const float *times, const mhla_condition *condition) {
    const mhla_sana_config *c = &m->config;
    const int64_t D = c->attn.dim;
    const mhla_grid_place *place = NULL;
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, x->dims == 4 && x->shape[1] == c->channels, "x has %d axes and %lld channels: expected 4 and %d",
              x->dims, x->dims == 4 ? (long long)x->shape[1] : 0, c->channels);
    const int64_t B = x->shape[0];
    const mhla_status status = place_of(&place, m, x->shape[2], x->shape[3]);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
    mhla_tensor *e = mhla_denoiser_times(t, times, c->timestep_scale, B);
    e = linear(t, m->time2, MHLA_ACT_NONE, linear(t, m->time1, MHLA_ACT_SILU, e));
    mhla_tensor *time = linear(t, m->time, MHLA_ACT_NONE, mhla_nn_activation(t, MHLA_ACT_SILU, e));
    mhla_tensor *text = read_condition(t, m, B, condition);
    mhla_sana_call *calls = mhla_tape_op(t, sizeof *calls * (size_t)c->depth);
    if (calls == NULL) return NULL;
    const mhla_mark mark = mhla_tape_mark(t);
    x = mhla_nn_patch_embed(t, m->patch.w, m->patch.b, x);
    for (int i = 0; i < c->depth; i++) {
        calls[i] = (mhla_sana_call){m, &m->blocks[i], place, time, text, condition ? condition->lengths : NULL};
        x = run->recompute ? mhla_nn_checkpoint(t, mhla_sana_run_block, &calls[i], x)
                           : mhla_sana_run_block(t, &calls[i], x);
        if (run->trace)
            run->trace[i] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    e = mhla_nn_reshape(t, e, MHLA_SHAPE(B, 1, D));
    e = add_table(t, m->table, mhla_nn_concat_tokens(t, e, e));
    x = mhla_nn_modulated_norm(t, (float)c->norm_eps, mhla_nn_slice(t, e, 0, D), mhla_nn_slice(t, e, D, D), x);
    return mhla_nn_unpatch(t, c->patch, place->H, place->W, linear(t, m->out, MHLA_ACT_NONE, x));
}

/* ---- What one sample costs ---------------------------------------------------------------------------------------------- */

int64_t mhla_sana_multiply_adds(const mhla_sana_config *c, int64_t height, int64_t width, int64_t rows, int as_paper) {
    const int64_t T = mhla_sana_tokens(c, height, width), D = c->attn.dim, W = c->cross_width, p2 = c->patch * c->patch,
                  C = (int64_t)c->cross_heads * c->cross_head_dim;
    const int64_t cross = 2 * T * D * C + 2 * rows * W * C + (as_paper ? 0 : 2 * T * rows * C);
    const int64_t each = mhla_grid_cost(&c->attn, T, T, as_paper) + cross + T * mhla_glumb_cost(D, mhla_sana_hidden(c));
    return T * c->channels * p2 * D + MHLA_TIME_NUMBERS * D + 7 * D * D + rows * (c->text_width * D + D * W) +
           c->depth * each + T * D * p2 * mhla_sana_answers(c);
}
