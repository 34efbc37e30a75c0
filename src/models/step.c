/* One step of training with the caller's own batch: the loop of src/train without its data, schedules and files. Who
 * measures a step, or writes a loop of his own, needs no more. */
#include "core/status.h"
#include "models/model.h"
#include "nn/optim.h"

static const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW, .weight_decay = 0.05};

static mhla_status check(const mhla_model *m, const float *images, const int32_t *labels, int64_t n) {
    if (m == NULL || images == NULL || labels == NULL || n < 1)
        return mhla_fail(MHLA_EINVAL, "%s",
                         m == NULL        ? "model is NULL"
                         : images == NULL ? "images is NULL"
                         : labels == NULL ? "labels is NULL"
                                          : "n is not positive");
    MHLA_TRY(mhla_model_need(m, &mhla_family_deit));
    const int classes = mhla_deit_config_of(m->deit)->classes;
    for (int64_t i = 0; i < n; i++)
        if (labels[i] < 0 || labels[i] >= classes)
            return mhla_fail(MHLA_EINVAL, "labels[%lld] is %d: the model has %d classes", (long long)i, labels[i],
                             classes);
    return MHLA_OK;
}

mhla_status mhla_model_step(mhla_model *m, float *loss, const float *images, const int32_t *labels, int64_t n,
                            double rate) {
    MHLA_TRY(check(m, images, labels, n));
    const mhla_deit_config *c = mhla_deit_config_of(m->deit);
    if (m->training == NULL) MHLA_TRY(mhla_tape_create(&m->training, m->context));
    if (m->optim == NULL) MHLA_TRY(mhla_optim_create(&m->optim, m->params, &adamw));
    mhla_tape *t = m->training;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_input(t, images, MHLA_SHAPE(n, c->channels, c->image[0], c->image[1]));
    mhla_tensor *y = mhla_deit_forward(t, m->deit, &(mhla_deit_run){0}, x);
    mhla_tensor *mean = mhla_nn_cross_entropy(t, y, labels, NULL, 0.0f, NULL);
    MHLA_TRY(mhla_tape_status(t));
    MHLA_TRY(mhla_tape_backward(t, mean, 1.0f));
    if (loss) *loss = *mean->data;
    return mhla_optim_step(m->optim, rate, m->context, NULL);
}
