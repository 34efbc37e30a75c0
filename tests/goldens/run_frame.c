/* run_model's part about a block of DiT or DiG, or its attention alone, of any width: the frame around it would want more of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/denoisers/dig.h"
#include "models/denoisers/dit.h"
#include "run.h"

/* The config as it is written, not checked as a whole. */
static mhla_status read_config(mhla_frame_config *c, const mhla_frame_kind *kind, const json_t *tree) {
    mhla_recipe *given = NULL;
    mhla_frame_config chosen = {0};
    mhla_status status = mhla_settings_parse(&given, mhla_settings_rows(kind->table), tree, "config.json");
    if (status == MHLA_OK) status = mhla_settings_take(&chosen, kind->table, 0, kind->first, given, "");
    if (status == MHLA_OK) status = kind->preset(c, &chosen);
    if (status == MHLA_OK) status = mhla_settings_take(c, kind->table, kind->first, kind->table->count, given, "");
    mhla_recipe_free(given);
    return status;
}

static void keep_grad(const mhla_tensor *x, const float *grad, const char *name) {
    if (x) run_keep(grad, x->dims, x->shape, "%s", name);
}

static mhla_status compute(const mhla_frame *m, const mhla_frame_grid *g, const mhla_safetensors *in, int attention) {
    const char *prefix = attention ? "blocks.0.attn." : "blocks.0.";
    const mhla_stored *sx, *sc, *sd;
    float *x = run_floats(in, "in.x", &sx), *c = run_floats(in, "in.c", &sc), *dy = run_floats(in, "dout.y", &sd);
    mhla_tape *t = NULL;
    mhla_status status = x && dy && (attention || c) ? MHLA_OK : mhla_fail(MHLA_EDATA, "no in.x, in.c or dout.y");
    if (status == MHLA_OK) status = run_fill(m->params, in, prefix);
    if (status == MHLA_OK) status = mhla_tape_create(&t, NULL);
    if (status == MHLA_OK) {
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *from = mhla_nn_variable(t, x, sx->shape, sx->rank);
        mhla_tensor *condition = attention ? NULL : mhla_nn_variable(t, c, sc->shape, sc->rank);
        const mhla_frame_call call = {m, m->blocks, g, 0,
                                      attention ? NULL : mhla_nn_activation(t, MHLA_ACT_SILU, condition)};
        mhla_tensor *y = attention ? mhla_frame_attend(t, &call, from) : mhla_frame_run_block(t, &call, from);
        status = mhla_tape_status(t);
        if (status == MHLA_OK) run_keep(y->data, y->dims, y->shape, "out.y");
        if (status == MHLA_OK) status = mhla_tape_backward_from(t, y, dy);
        if (status == MHLA_OK) {
            keep_grad(from, mhla_tensor_grad(from), "grad.in.x");
            if (condition) keep_grad(condition, mhla_tensor_grad(condition), "grad.in.c");
            for (int i = 0; i < mhla_params_count(m->params); i++) {
                const mhla_param *p = mhla_params_at(m->params, i);
                if (p->has_grad) run_keep(p->grad, p->dims, p->shape, "grad.param.%s", p->name + strlen(prefix));
            }
        }
    }
    mhla_tape_free(t);
    free(x);
    free(c);
    free(dy);
    return status;
}

mhla_status run_frame(char **arg) { /* WHAT CONFIG IN OUT */
    json_t *tree = NULL;
    mhla_safetensors *in = NULL;
    mhla_frame_block block = {0};
    mhla_frame m = {.blocks = &block};
    mhla_frame_grid g = {0};
    mhla_status status = mhla_json_load(&tree, arg[1]);
    if (status == MHLA_OK) {
        const char *type = json_string_value(json_object_get(tree, "model_type"));
        m.kind = type && strcmp(type, "mhla_dig") == 0 ? &mhla_dig_kind : &mhla_dit_kind;
        status = read_config(&m.config, m.kind, tree);
    }
    const int H = m.config.image[0], W = m.config.image[1]; /* patches of 1 */
    m.config.dropout = 0.0;
    if (status == MHLA_OK) status = mhla_grid_check(&m.config.attn, H, W);
    if (status == MHLA_OK) status = mhla_grid_place_make(&g.place, &m.config.attn, H, W);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[2]);
    if (status == MHLA_OK) status = mhla_params_create(&m.params);
    if (status == MHLA_OK) {
        mhla_frame_declare_block(&block, &m, 0);
        status = mhla_params_status(m.params);
    }
    if (status == MHLA_OK) status = compute(&m, &g, in, strcmp(arg[0], "attention") == 0);
    mhla_params_free(m.params);
    mhla_grid_place_free(&g.place);
    mhla_safetensors_close(in);
    json_decref(tree);
    return status;
}
