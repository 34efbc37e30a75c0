/* run_model's parts about models of clips: a whole denoiser with a text, and the attentions and a block of Wan alone, of any width. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/wan.h"
#include "run.h"

mhla_status run_wan_model(mhla_model *m, const mhla_safetensors *in, char **arg) { /* MODEL IN OUT */
    (void)arg;
    const mhla_stored *sx, *st, *sr, *sd;
    float *x = run_floats(in, "in.x", &sx), *times = run_floats(in, "in.t", &st),
          *rows = run_floats(in, "in.rows", &sr), *dy = run_floats(in, "dout.y", &sd);
    int32_t *lengths = run_labels(in, "in.lengths"), *labels = run_labels(in, "in.label");
    if (x == NULL || times == NULL) return mhla_fail(MHLA_EDATA, "no in.x or in.t");
    mhla_tensor *trace[256] = {0};
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    const mhla_condition condition = {labels, rows, lengths, rows ? sr->shape[1] : 0};
    mhla_denoiser_info info;
    MHLA_TRY(mhla_denoiser_query(m, &info));
    for (int record = 0; record < 2; record++) { /* what is kept of a text and what is not */
        mhla_tape_begin(t, record ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
        mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank);
        mhla_tensor *y =
            mhla_denoiser_forward(t, m, &(mhla_network_run){.trace = record ? trace : NULL}, input, times, &condition);
        MHLA_TRY(mhla_tape_status(t));
        run_keep(y->data, y->dims, y->shape, record ? "out.y" : "out.inferred");
        for (int i = 0; i < info.view.layers && record; i++)
            run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.blocks.%d", i);
        if (!record || dy == NULL) continue;
        MHLA_TRY(mhla_tape_backward_from(t, y, dy));
        run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
        run_keep_grads(m->params);
    }
    mhla_tape_free(t);
    free(x), free(times), free(rows), free(dy), free(lengths), free(labels);
    return MHLA_OK;
}

static mhla_status fill(const mhla_params *ps, const mhla_safetensors *in, const char *prefix) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        char name[128];
        snprintf(name, sizeof name, "param.%s", p->name + strlen(prefix));
        MHLA_TRY(mhla_safetensors_load(p->data, in, name, p->dims, p->shape));
        mhla_param_touch(p);
    }
    return MHLA_OK;
}

/* An input of the case with its gradient, or NULL. */
static mhla_tensor *variable(mhla_tape *t, const mhla_safetensors *in, const char *name, float **data) {
    const mhla_stored *s;
    *data = run_floats(in, name, &s);
    return *data ? mhla_nn_variable(t, *data, s->shape, s->rank) : NULL;
}

static void keep_grad(mhla_tensor *x, const char *name) {
    if (x && mhla_tensor_grad(x)) run_keep(mhla_tensor_grad(x), x->dims, x->shape, "grad.in.%s", name);
}

static mhla_status compute(mhla_wan *m, mhla_wan_block *b, const mhla_wan_place *place, const mhla_safetensors *in,
                           const char *what, const char *prefix) {
    float *data[4] = {NULL, NULL, NULL, NULL};
    const mhla_stored *sd;
    mhla_tape *t;
    MHLA_TRY(fill(m->params, in, prefix));
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = variable(t, in, "in.x", &data[0]), *e = variable(t, in, "in.e", &data[1]),
                *context = variable(t, in, "in.context", &data[2]), *kv[2], *y;
    const mhla_wan_text text = {.rows = context};
    const mhla_wan_call call = {.model = m, .b = b, .place = place, .time = e, .text = &text};
    if (strcmp(what, "block") == 0) {
        y = mhla_wan_run_block(t, &call, x);
    } else if (strcmp(what, "cross") == 0) {
        mhla_wan_keys(t, kv, &b->cross, &m->config, &text);
        y = mhla_wan_cross(t, &b->cross, &m->config, m->cross, &text, kv, NULL, x);
    } else {
        y = mhla_wan_attend(t, &b->attn, &m->config, place, x);
    }
    mhla_status status = mhla_tape_status(t);
    if (status == MHLA_OK) run_keep(y->data, y->dims, y->shape, "out.y");
    float *dy = data[3] = run_floats(in, "dout.y", &sd);
    if (status == MHLA_OK && dy) status = mhla_tape_backward_from(t, y, dy);
    if (status == MHLA_OK && dy) {
        keep_grad(x, "x");
        keep_grad(e, "e");
        keep_grad(context, "context");
        for (int i = 0; i < mhla_params_count(m->params); i++) {
            const mhla_param *p = mhla_params_at(m->params, i);
            if (p->has_grad) run_keep(p->grad, p->dims, p->shape, "grad.param.%s", p->name + strlen(prefix));
        }
    }
    mhla_tape_free(t);
    for (int i = 0; i < 4; i++) free(data[i]);
    return status;
}

mhla_status run_wan(char **arg) { /* WHAT CONFIG IN OUT: attention, cross or block */
    json_t *tree = NULL;
    mhla_safetensors *in = NULL;
    mhla_wan_block block = {0};
    mhla_wan m = {.blocks = &block};
    mhla_wan_place place = {0};
    const mhla_wan_config *c = &m.config;
    const char *prefix = strcmp(arg[0], "block") == 0 ? "b." : "a.";
    int grid[3];
    mhla_status status = mhla_json_load(&tree, arg[1]);
    if (status == MHLA_OK) status = mhla_wan_config_read(&m.config, tree, arg[1]);
    if (status == MHLA_OK) {
        mhla_wan_grid(grid, c, mhla_wan_extent(c));
        status = mhla_wan_place_make(&place, c, grid);
    }
    if (status == MHLA_OK) status = mhla_wan_cross_plan(&m.cross, c, 0);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[2]);
    if (status == MHLA_OK) status = mhla_params_create(&m.params);
    if (status == MHLA_OK) {
        if (strcmp(arg[0], "block") == 0)
            mhla_wan_declare_block(&block, m.params, c, c->kinds[0], "b.");
        else if (strcmp(arg[0], "cross") == 0)
            mhla_wan_declare_attention(&block.cross, m.params, c, MHLA_GRID_SOFTMAX, "a");
        else
            mhla_wan_declare_attention(&block.attn, m.params, c, c->kinds[0], "a");
        status = mhla_params_status(m.params);
    }
    if (status == MHLA_OK) status = compute(&m, &block, &place, in, arg[0], prefix);
    mhla_params_free(m.params);
    mhla_plan_free(m.cross);
    mhla_wan_place_free(&place);
    mhla_safetensors_close(in);
    json_decref(tree);
    return status;
}
