/* run_model's part about DiT: forward and backward, guided answers, updates, the table of positions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/model.h"
#include "nn/optim.h"
#include "nn/run.h"

typedef struct batch {
    float *x, *times;
    int32_t *labels;
    const mhla_stored *shape;
} batch;

static mhla_status read_batch(batch *b, const mhla_safetensors *in, const char *suffix) {
    char name[32];
    const mhla_stored *s;
    snprintf(name, sizeof name, "in.x%s", suffix);
    b->x = run_floats(in, name, &b->shape);
    snprintf(name, sizeof name, "in.t%s", suffix);
    b->times = run_floats(in, name, &s);
    snprintf(name, sizeof name, "in.label%s", suffix);
    float *labels = run_floats(in, name, &s);
    if (b->x == NULL || b->times == NULL || labels == NULL || b->shape->rank != 4)
        return mhla_fail(MHLA_EDATA, "no in.x%s, in.t%s or in.label%s", suffix, suffix, suffix);
    b->labels = malloc((size_t)b->shape->shape[0] * sizeof *b->labels);
    for (int64_t i = 0; b->labels && i < b->shape->shape[0]; i++) b->labels[i] = (int32_t)labels[i];
    free(labels);
    return b->labels ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory");
}

static void drop_batch(batch *b) {
    free(b->x);
    free(b->times);
    free(b->labels);
}

mhla_status run_dit_forward(mhla_model *m, const mhla_safetensors *in) {
    const mhla_stored *s;
    batch b = {0};
    MHLA_TRY(read_batch(&b, in, ""));
    float *dy = run_floats(in, "dout.y", &s);
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, dy ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    mhla_tensor *x = mhla_nn_variable(t, b.x, b.shape->shape, 4);
    mhla_tensor *y = mhla_dit_forward(t, m->dit, &(mhla_dit_run){0}, x, b.times, b.labels);
    MHLA_TRY(mhla_tape_status(t));
    run_keep(y->data, y->dims, y->shape, "out.y");
    if (dy) {
        MHLA_TRY(mhla_tape_backward_from(t, y, dy));
        run_keep(mhla_tensor_grad(x), 4, b.shape->shape, "grad.in.x");
        for (int i = 0; i < mhla_params_count(m->params); i++) {
            const mhla_param *p = mhla_params_at(m->params, i);
            if (p->has_grad) run_keep(p->grad, p->dims, p->shape, "grad.param.%s", p->name);
        }
    }
    mhla_tape_free(t);
    drop_batch(&b);
    free(dy);
    return MHLA_OK;
}

/* AdamW by the mean square against in.target.N, then the average, which the first update does not copy. */
mhla_status run_dit_steps(mhla_model *m, const mhla_safetensors *in, double rate, double decay, double average) {
    mhla_params *ps = m->params;
    mhla_optim *optim;
    mhla_ema *ema;
    mhla_tape *t;
    MHLA_TRY(mhla_optim_create(&optim, ps, &(mhla_optim_desc){.kind = MHLA_OPTIM_ADAMW, .weight_decay = decay}));
    MHLA_TRY(mhla_ema_create(&ema, ps, average, 0));
    MHLA_TRY(mhla_tape_create(&t, NULL));
    for (int step = 0;; step++) {
        char suffix[16], name[32];
        const mhla_stored *s;
        batch b = {0};
        snprintf(suffix, sizeof suffix, ".%d", step);
        snprintf(name, sizeof name, "in.target%s", suffix);
        float *target = run_floats(in, name, &s);
        if (target == NULL) break;
        MHLA_TRY(read_batch(&b, in, suffix));
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *y = mhla_dit_forward(t, m->dit, &(mhla_dit_run){0}, mhla_nn_input(t, b.x, b.shape->shape, 4),
                                          b.times, b.labels);
        mhla_tensor *loss = mhla_nn_mse(t, y, target);
        MHLA_TRY(mhla_tape_backward(t, loss, 1.0f));
        run_keep(loss->data, 0, NULL, "out.loss.%d", step);
        MHLA_TRY(mhla_optim_step(optim, rate, NULL, NULL));
        mhla_ema_update(ema, NULL);
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            run_keep(p->data, p->dims, p->shape, "out.step%d.%s", step + 1, p->name);
            run_keep(mhla_ema_data(ema, i), p->dims, p->shape, "out.ema%d.%s", step + 1, p->name);
        }
        drop_batch(&b);
        free(target);
    }
    mhla_tape_free(t);
    mhla_ema_free(ema);
    mhla_optim_free(optim);
    return MHLA_OK;
}

mhla_status run_positions(int dim, int grid) {
    char image[32], width[32];
    mhla_model *m;
    snprintf(image, sizeof image, "image=%d", 2 * grid);
    snprintf(width, sizeof width, "dim=%d", dim);
    MHLA_TRY(mhla_model_create(&m, "dit_micro",
                               (const char *[]){image, width, "depth=1", "heads=1", "attention=linear"}, 5, 1));
    const mhla_param *table = mhla_params_find(m->params, "pos_embed");
    run_keep(table->data, 2, table->shape + 1, "out.pos_embed");
    mhla_model_free(m);
    return MHLA_OK;
}
