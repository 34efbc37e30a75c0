/* The network of wan.h. x is [B,T,D] throughout. */
#include "models/denoisers/wan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "nn/op.h"

/* ---- Parameters, in the order of the published lists ---- */

void mhla_wan_declare_block(mhla_wan_block *b, mhla_params *ps, const mhla_wan_config *c, int kind, const char *name) {
    char text[96];
    const int64_t D = c->dim;
#define NAME(part) (snprintf(text, sizeof text, "%s%s", name, part), text)
    b->modulation = mhla_params_add(ps, NAME("modulation"), MHLA_SHAPE(1, 6, D), 0, MHLA_NORMAL(1.0 / sqrt((double)D)));
    mhla_wan_declare_attention(&b->attn, ps, c, kind, NAME("self_attn"));
    b->norm3 = mhla_layer_norm(ps, D, 1, NAME("norm3"));
    mhla_wan_declare_attention(&b->cross, ps, c, MHLA_GRID_SOFTMAX, NAME("cross_attn"));
    b->up = mhla_layer_matrix(ps, c->ffn, D, 1, MHLA_XAVIER, NAME("ffn.0"));
    b->down = mhla_layer_matrix(ps, D, c->ffn, 1, MHLA_XAVIER, NAME("ffn.2"));
#undef NAME
}

static void add_all(mhla_wan *m) {
    const mhla_wan_config *c = &m->config;
    mhla_params *ps = m->params;
    const int64_t D = c->dim, p = c->patch;
    const mhla_initial small = MHLA_NORMAL(0.02);
    char name[64];
    m->patch.w = mhla_params_add(ps, "patch_embedding.weight", MHLA_SHAPE(D, c->channels, 1, p, p), MHLA_PARAM_MATRIX,
                                 MHLA_XAVIER);
    m->patch.b = mhla_params_add(ps, "patch_embedding.bias", MHLA_SHAPE(D), 0, MHLA_ZERO);
    if (c->classes) {
        m->labels = mhla_params_add(ps, "class_embedding.weight", MHLA_SHAPE(c->classes + 1, D), 0, small);
    } else {
        m->text0 = mhla_layer_matrix(ps, D, c->text_width, 1, small, "text_embedding.0");
        m->text2 = mhla_layer_matrix(ps, D, D, 1, small, "text_embedding.2");
    }
    m->time0 = mhla_layer_matrix(ps, D, c->frequencies, 1, small, "time_embedding.0");
    m->time2 = mhla_layer_matrix(ps, D, D, 1, small, "time_embedding.2");
    m->time = mhla_layer_matrix(ps, 6 * D, D, 1, MHLA_XAVIER, "time_projection.1");
    for (int i = 0; i < c->depth; i++) {
        snprintf(name, sizeof name, "blocks.%d.", i);
        mhla_wan_declare_block(&m->blocks[i], ps, c, c->kinds[i], name);
    }
    m->modulation = mhla_params_add(ps, "head.modulation", MHLA_SHAPE(1, 2, D), 0, MHLA_NORMAL(1.0 / sqrt((double)D)));
    m->head = mhla_layer_matrix(ps, p * p * c->channels, D, 1, MHLA_ZERO, "head.head");
}

/* ---- Making ---- */

mhla_status mhla_wan_create(mhla_wan **model, const mhla_wan_config *config) {
    *model = NULL;
    MHLA_TRY(mhla_wan_check(config));
    mhla_wan *m = calloc(1, sizeof *m);
    mhla_wan_block *blocks = calloc((size_t)config->depth, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d blocks", config->depth);
    }
    m->config = *config;
    m->blocks = blocks;
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) status = mhla_wan_cross_plan(&m->cross, config, config->classes == 0);
    if (status == MHLA_OK) {
        add_all(m);
        status = mhla_params_status(m->params);
    }
    if (status != MHLA_OK) {
        mhla_wan_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_wan_free(mhla_wan *m) {
    if (m == NULL) return;
    for (mhla_wan_place *p = m->places, *next; p; p = next) {
        next = p->next;
        mhla_wan_place_free(p);
        free(p);
    }
    mhla_wan_prompts_free(m);
    mhla_plan_free(m->cross);
    mhla_params_free(m->params);
    free(m->blocks);
    free(m->note);
    free(m);
}

static mhla_status place_of(const mhla_wan_place **found, mhla_wan *m, mhla_extent e) {
    int grid[3];
    MHLA_TRY(mhla_wan_check_size(&m->config, e));
    mhla_wan_grid(grid, &m->config, e);
    mhla_wan_place *p = m->places;
    while (p && (p->grid[0] != grid[0] || p->grid[1] != grid[1] || p->grid[2] != grid[2])) p = p->next;
    if (p == NULL) {
        p = calloc(1, sizeof *p);
        if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a grid");
        const mhla_status status = mhla_wan_place_make(p, &m->config, grid);
        if (status != MHLA_OK) {
            free(p);
            return status;
        }
        p->next = m->places;
        m->places = p;
    }
    *found = p;
    return MHLA_OK;
}

/* ---- Forward ---- */

static mhla_tensor *linear(mhla_tape *t, mhla_layer l, mhla_activation activation, mhla_tensor *x) {
    return mhla_nn_linear(t, l.w, l.b, activation, NULL, x);
}

/* modulation [1,n,D] + v [B,n,D]: n vectors [B,D]. */
static void modulation(mhla_tape *t, mhla_tensor **part, mhla_param *p, mhla_tensor *v) {
    const int64_t n = p->shape[1], D = p->shape[2];
    mhla_tensor *all = mhla_nn_add_position(t, p, v);
    if (all) all = mhla_nn_reshape(t, all, MHLA_SHAPE(all->shape[0], n * D));
    for (int64_t i = 0; i < n; i++) part[i] = all ? mhla_nn_slice(t, all, i * D, D) : NULL;
}

mhla_tensor *mhla_wan_run_block(mhla_tape *t, const void *call, mhla_tensor *x) {
    const mhla_wan_call *a = call;
    const mhla_wan_block *b = a->b;
    const mhla_wan_config *c = &a->model->config;
    const float eps = (float)c->eps;
    mhla_wan_text text = *a->text;
    mhla_tensor *part[6] = {0}, *kv[2], *h; /* shift, scale, gate; twice */
    if (x == NULL) return NULL;
    modulation(t, part, b->modulation, a->time);
    const mhla_mark mark = mhla_tape_mark(t);
    h = mhla_wan_attend(t, &b->attn, c, a->place, mhla_nn_modulated_norm(t, eps, part[0], part[1], x));
    x = mhla_tape_release(t, mark, mhla_nn_gate_add(t, x, part[2], h));
    if (a->prompts)
        mhla_wan_prompt_keys(t, kv, &text, a->model, a->index, a->prompts, a->time->shape[0]);
    else
        mhla_wan_keys(t, kv, &b->cross, c, &text);
    h = mhla_nn_layer_norm(t, b->norm3.w, b->norm3.b, eps, x);
    x = mhla_tape_release(t, mark, mhla_wan_cross(t, &b->cross, c, a->model->cross, &text, kv, x, h));
    h = linear(t, b->up, MHLA_ACT_GELU_TANH, mhla_nn_modulated_norm(t, eps, part[3], part[4], x));
    return mhla_nn_gate_add(t, x, part[5], linear(t, b->down, MHLA_ACT_NONE, h));
}

/* [B,frequencies] of times: cosines, then sines, in double because float32 would be off by 3e-5 at the last steps. */
static mhla_tensor *sinusoids(mhla_tape *t, const float *times, int64_t B, int frequencies) {
    const int half = frequencies / 2, dry = mhla_tape_dry(t);
    float *numbers = mhla_tape_floats(t, B * frequencies);
    if (numbers == NULL) return NULL;
    MHLA_NEED(t, dry || times, "times is NULL");
    for (int64_t b = 0; b < B && !dry; b++) {
        MHLA_NEED(t, isfinite(times[b]), "times[%lld] is not finite", (long long)b);
        for (int i = 0; i < half; i++) {
            const double angle = (double)times[b] * exp(-log(10000.0) * i / half);
            numbers[b * frequencies + i] = (float)cos(angle);
            numbers[b * frequencies + half + i] = (float)sin(angle);
        }
    }
    return mhla_nn_input(t, numbers, MHLA_SHAPE(B, frequencies));
}

mhla_tensor *mhla_wan_forward(mhla_tape *t, mhla_wan *m, const mhla_network_run *run, mhla_tensor *x,
                              const float *times, const mhla_condition *condition) {
    const mhla_wan_config *c = &m->config;
    const int64_t D = c->dim;
    const mhla_wan_place *place = NULL;
    MHLA_GIVEN(t, x);
    MHLA_NEED(t, x->dims == 5 && x->shape[1] == c->channels, "x has %d axes and %lld channels: expected 5 and %d",
              x->dims, x->dims > 1 ? (long long)x->shape[1] : 0, c->channels);
    const int64_t B = x->shape[0];
    mhla_status status = place_of(&place, m, (mhla_extent){x->shape[2], x->shape[3], x->shape[4]});
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
    const int64_t grid[3] = {place->grid[0], place->grid[1], place->grid[2]};
    mhla_tensor *e = sinusoids(t, times, B, c->frequencies);
    e = linear(t, m->time2, MHLA_ACT_NONE, linear(t, m->time0, MHLA_ACT_SILU, e));
    mhla_tensor *time = linear(t, m->time, MHLA_ACT_NONE, mhla_nn_activation(t, MHLA_ACT_SILU, e));
    if (time) time = mhla_nn_reshape(t, time, MHLA_SHAPE(B, 6, D));
    /* while nothing is recorded, keys and values of a text are kept for the next step */
    const int keep = !(mhla_tape_mode(t) & (MHLA_TAPE_RECORD | MHLA_TAPE_DRY)) && c->classes == 0;
    mhla_wan_text *text = mhla_tape_op(t, sizeof *text);
    mhla_wan_call *calls = mhla_tape_op(t, sizeof *calls * (size_t)c->depth);
    mhla_wan_prompt **prompts = keep ? mhla_tape_op(t, sizeof(mhla_wan_prompt *) * (size_t)B) : NULL;
    if (text == NULL || calls == NULL || (keep && prompts == NULL)) return NULL;
    status = keep ? mhla_wan_find_prompts(t, prompts, m, B, condition) : mhla_wan_read_text(t, text, m, B, condition);
    if (status != MHLA_OK) return mhla_tape_fail(t, status, "%s", mhla_message());
    const mhla_mark mark = mhla_tape_mark(t);
    x = mhla_nn_patch_embed(t, m->patch.w, m->patch.b, x);
    for (int i = 0; i < c->depth; i++) {
        calls[i] = (mhla_wan_call){m, &m->blocks[i], place, i, time, text, prompts};
        x = run->recompute ? mhla_nn_checkpoint(t, mhla_wan_run_block, &calls[i], x)
                           : mhla_wan_run_block(t, &calls[i], x);
        if (run->trace)
            run->trace[i] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    mhla_tensor *part[2] = {0}; /* shift, scale */
    if (e) e = mhla_nn_reshape(t, e, MHLA_SHAPE(B, 1, D));
    modulation(t, part, m->modulation, mhla_nn_concat_tokens(t, e, e));
    x = mhla_nn_modulated_norm(t, (float)c->eps, part[0], part[1], x);
    return mhla_nn_unpatch_clip(t, c->patch, grid, linear(t, m->head, MHLA_ACT_NONE, x));
}

/* ---- What one sample costs ---- */

int64_t mhla_wan_multiply_adds(const mhla_wan_config *c, mhla_extent e, int as_paper) {
    int grid[3];
    mhla_wan_grid(grid, c, e);
    const int64_t T = (int64_t)grid[0] * grid[1] * grid[2], D = c->dim, pixels = (int64_t)c->patch * c->patch;
    const int64_t rows = c->classes ? 1 : c->text_length; /* as many as a text may have */
    const int64_t text = c->classes ? 0 : rows * (c->text_width * D + D * D);
    int64_t all = 2 * T * c->channels * pixels * D + c->frequencies * D + 7 * D * D + text;
    for (int i = 0; i < c->depth; i++)
        all += mhla_wan_attention_cost(c, c->kinds[i], T, as_paper) + 2 * (T + rows) * D * D +
               (as_paper ? 0 : 2 * T * rows * D) + 2 * T * D * c->ffn;
    return all;
}
