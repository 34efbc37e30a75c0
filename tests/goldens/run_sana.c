/* run_model's part about a block of SANA, of any width. */
#include <stdlib.h>

#include "core/status.h"
#include "models/denoisers/sana.h"
#include "run.h"

static mhla_status compute(const mhla_sana *m, const mhla_grid_place *place, const mhla_safetensors *in, mhla_tape *t) {
    const mhla_stored *sx, *st, *se, *sd;
    float *x = run_floats(in, "in.x", &sx), *time = run_floats(in, "in.time_mod", &st),
          *text = run_floats(in, "in.encoder", &se), *dy = run_floats(in, "in.gy", &sd);
    int32_t *lengths = run_labels(in, "in.lengths");
    if (!x || !time || !text || !dy) return mhla_fail(MHLA_EDATA, "no in.x, in.time_mod, in.encoder or in.gy");
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *from = mhla_nn_variable(t, x, sx->shape, sx->rank),
                *m6 = mhla_nn_variable(t, time, st->shape, st->rank),
                *rows = mhla_nn_variable(t, text, se->shape, se->rank);
    const mhla_sana_call call = {m, m->blocks, place, m6, rows, lengths};
    mhla_tensor *y = mhla_sana_run_block(t, &call, from);
    MHLA_TRY(mhla_tape_status(t));
    run_keep(y->data, y->dims, y->shape, "out.y");
    MHLA_TRY(mhla_tape_backward_from(t, y, dy));
    run_keep(mhla_tensor_grad(from), sx->rank, sx->shape, "grad.in.x");
    run_keep(mhla_tensor_grad(m6), st->rank, st->shape, "grad.in.time_mod");
    run_keep(mhla_tensor_grad(rows), se->rank, se->shape, "grad.in.encoder");
    run_keep_grads(m->params);
    free(x);
    free(time);
    free(text);
    free(dy);
    free(lengths);
    return MHLA_OK;
}

mhla_status run_sana(char **arg) { /* CONFIG IN OUT */
    json_t *tree = NULL;
    mhla_safetensors *in = NULL;
    mhla_sana_block block = {0};
    mhla_sana m = {.blocks = &block};
    mhla_grid_place place = {0};
    mhla_tape *t = NULL;
    int64_t grid[2] = {0, 0};
    mhla_status status = mhla_json_load(&tree, arg[0]);
    if (status == MHLA_OK) status = mhla_sana_config_read(&m.config, tree, arg[0]);
    for (size_t a = 0; a < 2; a++) grid[a] = json_integer_value(json_array_get(json_object_get(tree, "grid"), a));
    if (status == MHLA_OK) status = mhla_sana_check_size(&m.config, grid[0], grid[1]);
    if (status == MHLA_OK) status = mhla_grid_place_make(&place, &m.config.attn, (int)grid[0], (int)grid[1]);
    if (status == MHLA_OK) status = mhla_sana_cross_plan(&m.cross, &m.config);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = mhla_params_create(&m.params);
    if (status == MHLA_OK) {
        mhla_sana_declare_block(&block, m.params, &m.config, "");
        status = mhla_params_status(m.params);
    }
    if (status == MHLA_OK) status = run_fill(m.params, in, "");
    if (status == MHLA_OK) status = mhla_tape_create(&t, NULL);
    if (status == MHLA_OK) status = compute(&m, &place, in, t);
    mhla_tape_free(t);
    mhla_params_free(m.params);
    mhla_plan_free(m.cross);
    mhla_grid_place_free(&place);
    mhla_safetensors_close(in);
    json_decref(tree);
    return status;
}
