/* run_model's part about CLIP: vectors of texts and images, and how well they fit. */
#include <math.h>
#include <stdlib.h>

#include "core/status.h"
#include "models/encoders/clip.h"
#include "models/model.h"
#include "run.h"

static void keep_trace(mhla_tensor *const *trace, const char *first, const char *what, int layers) {
    for (int i = 0; i <= layers; i++)
        if (i == 0)
            run_keep(trace[0]->data, trace[0]->dims, trace[0]->shape, "out.%s", first);
        else
            run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.%s.layers.%d", what, i - 1);
}

/* Each vector as it is, and of length 1: malloc'ed. */
static float *keep_vectors(const mhla_tensor *x, const char *what) {
    float *units = malloc((size_t)(x->rows * x->cols) * sizeof *units);
    run_keep(x->data, x->dims, x->shape, "out.%s_features", what);
    for (int64_t r = 0; units && r < x->rows; r++) {
        double squares = 0.0;
        for (int64_t i = 0; i < x->cols; i++)
            squares += (double)x->data[r * x->ld + i] * (double)x->data[r * x->ld + i];
        for (int64_t i = 0; i < x->cols; i++)
            units[r * x->cols + i] = (float)((double)x->data[r * x->ld + i] / sqrt(squares));
    }
    if (units) run_keep(units, x->dims, x->shape, "out.%s_embeds", what);
    return units;
}

mhla_status run_clip(char **arg) { /* MODEL IN OUT */
    mhla_model *m = NULL;
    mhla_safetensors *in = NULL;
    mhla_tape *t = NULL;
    mhla_tensor *trace[257];
    const mhla_stored *pixels = NULL;
    int32_t *ids = NULL;
    float *x = NULL, *text = NULL, *image = NULL;
    mhla_status status = mhla_model_open(&m, arg[0]);
    if (status == MHLA_OK) status = mhla_model_need(m, MHLA_ROLE_COMPARER);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = mhla_tape_create(&t, NULL);
    if (status != MHLA_OK) goto done;
    const mhla_clip_config *c = mhla_clip_config_of(m->net);
    ids = run_labels(in, "in.input_ids");
    x = run_floats(in, "in.pixel_values", &pixels);
    if (ids == NULL || x == NULL) {
        status = mhla_fail(MHLA_EDATA, "no in.input_ids and in.pixel_values");
        goto done;
    }
    const int64_t B = pixels->shape[0], D = c->dims;
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y = mhla_clip_texts(t, m->net, ids, B, trace);
    if ((status = mhla_tape_status(t)) != MHLA_OK) goto done;
    keep_trace(trace, "text.embeddings", "text", c->text.layers);
    text = keep_vectors(y, "text");
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    y = mhla_clip_images(t, m->net, mhla_nn_input(t, x, MHLA_SHAPE(B, 3, c->side, c->side)), trace);
    if ((status = mhla_tape_status(t)) != MHLA_OK) goto done;
    keep_trace(trace, "image.pre_norm", "image", c->image.layers);
    image = keep_vectors(y, "image");
    const double scale = exp((double)*mhla_params_find(m->params, "logit_scale")->data);
    for (int64_t b = 0; b < B && text && image; b++) {
        float logits[64];
        for (int64_t k = 0; k < B && k < 64; k++) {
            double cosine = 0.0;
            for (int64_t d = 0; d < D; d++) cosine += (double)image[b * D + d] * (double)text[k * D + d];
            logits[k] = (float)(scale * cosine);
            if (k == b)
                run_keep(&(float){(float)(100.0 * cosine)}, 1, (const int64_t[]){1}, "out.clip_score.%d", (int)b);
        }
        run_keep(logits, 1, (const int64_t[]){B < 64 ? B : 64}, "out.logits_per_image.%d", (int)b);
    }
done:
    mhla_tape_free(t);
    free(ids);
    free(x);
    free(text);
    free(image);
    mhla_safetensors_close(in);
    mhla_model_free(m);
    return status;
}
