/* The verb of run_model for text encoders: ids to rows by the public function, and what comes out of each layer. */
#include <mhla/lm.h>
#include <stdlib.h>

#include "core/status.h"
#include "models/encoders/umt5.h"
#include "models/model.h"
#include "run.h"

static mhla_status keep_layers(mhla_model *m, const int32_t *ids, const int32_t *lengths, int64_t B, int64_t T) {
    mhla_tape *t;
    mhla_tensor *trace[64] = {NULL};
    const mhla_umt5_config *c = mhla_umt5_config_of(m->net);
    if (c->layers > 64) return mhla_fail(MHLA_ENOTSUP, "%d layers", c->layers);
    MHLA_TRY(mhla_tape_create(&t, NULL));
    for (int i = 0; i < mhla_params_count(m->params); i++) mhla_params_at(m->params, i)->flags |= MHLA_PARAM_FROZEN;
    mhla_tape_begin(t, MHLA_TAPE_RECORD); /* what is between lives only so */
    mhla_umt5_forward(t, m->net, trace, ids, lengths, B, T);
    const mhla_status status = mhla_tape_status(t);
    for (int i = 0; i < c->layers && status == MHLA_OK; i++)
        run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.block.%d", i);
    mhla_tape_free(t);
    return status;
}

static void keep_buckets(const mhla_model *m, const mhla_safetensors *in) {
    const mhla_stored *s;
    const mhla_umt5_config *c = mhla_umt5_config_of(m->net);
    float *relative = run_floats(in, "in.bucket_rel", &s);
    if (relative == NULL) return;
    for (int64_t i = 0; i < s->count; i++)
        relative[i] = (float)mhla_position_bucket((int64_t)relative[i], c->buckets, c->distance);
    run_keep(relative, s->rank, s->shape, "out.bucket");
    free(relative);
}

mhla_status run_encoder(mhla_model *m, const mhla_safetensors *in, char **arg) {
    const mhla_stored *s = mhla_safetensors_find(in, "in.input_ids");
    mhla_text_encoder_info info = {.size = sizeof info};
    (void)arg;
    if (s == NULL || s->rank != 2) return mhla_fail(MHLA_EDATA, "no in.input_ids [B,T]");
    MHLA_TRY(mhla_text_encoder_query(m, &info));
    const int64_t B = s->shape[0], T = s->shape[1], shape[] = {B, T, info.width};
    int32_t *ids = run_labels(in, "in.input_ids"), *mask = run_labels(in, "in.attention_mask");
    int32_t *lengths = calloc((size_t)B + 1, sizeof *lengths);
    float *rows = malloc(sizeof *rows * (size_t)(B * T * info.width));
    for (int64_t i = 0; lengths && mask && i < B * T; i++) lengths[i / T] += mask[i] != 0;
    mhla_status status = mhla_text_encode_ids(m, rows, ids, mask ? lengths : NULL, B, T);
    if (status == MHLA_OK) run_keep(rows, 3, shape, "out.last_hidden_state");
    if (status == MHLA_OK) status = keep_layers(m, ids, mask ? lengths : NULL, B, T);
    keep_buckets(m, in);
    free(ids);
    free(mask);
    free(lengths);
    free(rows);
    return status;
}
