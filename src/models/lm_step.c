/* What a measurement, or a loop of one's own, needs of a language model: other storage of the weights it has, and one step
 * of training on tokens. */
#include <stdlib.h>

#include "core/memory.h"
#include "core/status.h"
#include "models/lm_files.h"
#include "models/model.h"

mhla_status mhla_lm_store(mhla_model *m, const char *storage) {
    int dtype;
    MHLA_TRY(mhla_model_need(m, &mhla_family_lm));
    if (storage == NULL) return mhla_fail(MHLA_EINVAL, "storage is NULL");
    MHLA_TRY(mhla_storage_named(&dtype, storage));
    if (m->reader || m->training) return mhla_fail(MHLA_EINVAL, "storage is changed before a model is used, not after");
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        const int fits = dtype != MHLA_Q8_0 || p->count / p->shape[0] % 32 == 0;
        if ((p->flags & MHLA_PARAM_MATRIX) && fits) MHLA_TRY(mhla_param_store(p, (mhla_dtype)dtype));
    }
    return MHLA_OK;
}

static const mhla_optim_desc adamw = {
    .kind = MHLA_OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.01, .clip_norm = 1.0};

mhla_status mhla_lm_step(mhla_model *m, float *loss, const int32_t *ids, int64_t B, int64_t T, double rate) {
    MHLA_TRY(mhla_model_need(m, &mhla_family_lm));
    if (ids == NULL || B < 1 || T < 2)
        return mhla_fail(MHLA_EINVAL, "%s", ids == NULL ? "ids is NULL" : "sequences of 2 tokens or more are expected");
    if (m->training == NULL) MHLA_TRY(mhla_tape_create(&m->training, m->context));
    if (m->optim == NULL) MHLA_TRY(mhla_optim_create(&m->optim, m->params, &adamw));
    int32_t *labels = mhla_alloc((size_t)(B * T) * sizeof *labels); /* the token after each; none after the last */
    if (labels == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld labels", (long long)(B * T));
    for (int64_t i = 0; i < B * T; i++) labels[i] = (i + 1) % T ? ids[i + 1] : -1;
    mhla_tape *t = m->training;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_lm_forward(t, m->lm, &(mhla_lm_run){0}, ids, B, T);
    mhla_tensor *mean = mhla_nn_linear_cross_entropy(t, mhla_lm_output(m->lm), x, labels, 1.0f, NULL);
    mhla_status status = mhla_tape_status(t);
    if (status == MHLA_OK) status = mhla_tape_backward(t, mean, 1.0f);
    if (status == MHLA_OK && loss) *loss = *mean->data;
    if (status == MHLA_OK) status = mhla_optim_step(m->optim, rate, m->context, NULL);
    mhla_free(labels);
    return status;
}
