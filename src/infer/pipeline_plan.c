/* What a pipeline will take: the memory of each component from a dry run of its tape, its work from its sizes. */
#include <stdlib.h>

#include "core/status.h"
#include "infer/images.h"
#include "infer/pipeline.h"

enum { ROWS = 64 }; /* of a text, where there is no limit */

/* Bytes of the weights as they would be stored, of float32 with their packed copies; of a model that was looked at, whose matrices have no
 * memory. vocabulary: of an encoder whose matrices stay in their file, of which one at a time is packed, but not the embedding; 0: all are. */
static size_t weights_of(const mhla_model *m, const char *storage, int vocabulary) {
    size_t bytes = mhla_params_bytes(m->params, 0), most = 0;
    int asked;
    (void)mhla_storage_named(&asked, storage); /* the pipeline knows it */
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        const int half = p->dtype == MHLA_BF16 || asked == MHLA_BF16;
        size_t n = 0;
        if (p->data == NULL && p->shape[0] != vocabulary)
            n = (size_t)p->count * (half ? 64 : p->dtype == MHLA_Q8_0 ? 34 : 256) / 32;
        if (n > most) most = n;
        bytes += vocabulary ? 0 : n;
    }
    return vocabulary ? bytes + most : bytes;
}

static mhla_status plan_texts(mhla_pipeline *p, mhla_component_plan *plan, const mhla_make_desc *d) {
    mhla_model *m = NULL;
    mhla_model_info info = {.size = sizeof info};
    int64_t tokens = 0;
    mhla_status status = mhla_pipeline_tokens(p, &m, &tokens, d);
    if (status == MHLA_OK && m) status = mhla_model_query(m, &info);
    if (status == MHLA_OK && m) {                             /* else all rows are there */
        const int of_text = m->architecture->decoder != NULL; /* multiply_adds are of one token there */
        plan->parameters = info.parameters;
        plan->weights = weights_of(m, p->storage, p->encoder.together ? p->encoder.vocabulary : 0);
        plan->multiply_adds = (double)info.multiply_adds * (double)tokens / (of_text ? 1.0 : (double)info.tokens);
    }
    mhla_model_free(m);
    return status;
}

/* The tape of one evaluation of the batch. */
static mhla_status plan_latents(mhla_pipeline *p, mhla_component_plan *plan, const mhla_make_desc *d) {
    mhla_model *m;
    mhla_tape *t = NULL;
    const mhla_extent e = mhla_make_extent(p, d);
    MHLA_TRY(mhla_pipeline_part(&m, p, MHLA_TRANSFORMER, 1));
    const int twice = d->guidance == 1.0 ? 1 : 2;
    int apart;
    int64_t rows = mhla_sample_batch(&apart, m, e, twice == 2, d->batch, d->images);
    if (!apart) rows *= twice;
    mhla_status status = mhla_tape_create(&t, m->context);
    if (status == MHLA_OK) {
        mhla_tape_begin(t, MHLA_TAPE_INFER | MHLA_TAPE_DRY);
        mhla_tensor *x = mhla_denoiser_input(t, NULL, rows, p->denoiser.channels, e);
        const mhla_condition condition = {.longest = d->rows ? d->rows : ROWS};
        (void)mhla_denoiser_forward(t, m, &(mhla_network_run){0}, x, NULL, &condition);
        status = mhla_tape_status(t);
    }
    if (status == MHLA_OK) {
        plan->parameters = mhla_params_elements(m->params);
        plan->weights = weights_of(m, p->storage, 0);
        plan->work = mhla_tape_peak(t);
        plan->multiply_adds = (double)mhla_denoiser_cost(m, e, 0) * twice * (double)d->images * (double)d->steps;
    }
    mhla_tape_free(t);
    mhla_model_free(m);
    return status;
}

static mhla_status plan_pixels(mhla_pipeline *p, mhla_component_plan *plan, const mhla_make_desc *d) {
    mhla_model *m;
    mhla_coding coding = mhla_make_coding(d);
    if (p->parts[MHLA_PART_VAE] == NULL) return MHLA_OK; /* a model of pixels */
    MHLA_TRY(mhla_pipeline_part(&m, p, MHLA_VAE, 1));
    const mhla_status status = mhla_coding_settle(m, &coding, 1);
    if (status == MHLA_OK) {
        const size_t stored = weights_of(m, p->storage, 0), all = mhla_params_bytes(m->params, 0);
        plan->parameters = mhla_params_elements(m->params);
        plan->weights = stored;
        plan->work = coding.peak > all ? coding.peak - all : 0;
        /* all pixels: as they come out of the network, as they are handed on, and the caller's */
        plan->work += 3 * sizeof(float) * (size_t)p->autoencoder.outputs * (size_t)(d->frames ? d->frames : 1) *
                      (size_t)d->made_height * (size_t)d->made_width;
        plan->multiply_adds = (double)coding.multiply_adds * (double)d->images;
    }
    mhla_model_free(m);
    return status;
}

mhla_status mhla_pipeline_plan(mhla_pipeline *p, mhla_component component, mhla_component_plan *plan,
                               const mhla_make_desc *desc) {
    static mhla_status (*const plans[])(mhla_pipeline *, mhla_component_plan *,
                                        const mhla_make_desc *) = {plan_texts, plan_latents, plan_pixels};
    mhla_make_desc d;
    mhla_component_plan full = {.size = sizeof full};
    MHLA_TRY(mhla_make_settle(p, &d, desc));
    if ((unsigned)component >= MHLA_COMPONENTS) return mhla_fail(MHLA_EINVAL, "component %d: there is none", component);
    MHLA_TRY(plans[component](p, &full, &d));
    return mhla_struct_out(plan, &full, sizeof full, "mhla_component_plan");
}
