/* The verb of run_model for pipelines: a prompt and noise to pixels, by the public functions, with the latent after every step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "infer/pipeline.h"
#include "run.h"

typedef struct seen {
    int64_t shape[5];
    int axes;
} seen;

static int on_report(void *user, const mhla_make_state *s) {
    const seen *x = user;
    if (s->latents) run_keep(s->latents, x->axes, x->shape, "out.latent.%d", s->step - 1);
    return 0;
}

static mhla_status keep_rows(mhla_pipeline *p, const mhla_make_desc *d) {
    mhla_text_rows rows = {.size = sizeof rows};
    int32_t prompt, negative;
    int stopped = 0;
    MHLA_TRY(mhla_pipeline_texts(p, &rows, &prompt, &negative, d, &stopped));
    for (int k = 0; k < 2; k++) {
        const int32_t at = k ? negative : prompt;
        const int64_t shape[] = {1, rows.lengths[at], rows.width};
        run_keep(rows.rows + at * rows.longest * rows.width, 3, shape, k ? "out.negative_rows" : "out.text_rows");
    }
    mhla_text_rows_free(&rows);
    return MHLA_OK;
}

static mhla_status make(mhla_pipeline *p, mhla_make_desc *d, const mhla_safetensors *in) {
    const mhla_stored *s;
    seen x = {{0}, 0};
    mhla_pipeline_info info = {.size = sizeof info};
    float *noise = run_floats(in, "in.noise", &s);
    if (noise == NULL) return mhla_fail(MHLA_EDATA, "no in.noise");
    MHLA_TRY(mhla_pipeline_query(p, &info));
    x.axes = s->rank;
    memcpy(x.shape, s->shape, sizeof *x.shape * (size_t)s->rank);
    d->start = noise;
    d->height = (int)s->shape[s->rank - 2] * p->autoencoder.factor;
    d->width = (int)s->shape[s->rank - 1] * p->autoencoder.factor;
    d->frames = info.clips ? 1 + (int)(s->shape[2] - 1) * info.frames : 0;
    d->exact = 1;
    d->report = on_report;
    d->user = &x;
    MHLA_TRY(mhla_pipeline_settle(p, d));
    const int64_t image[] = {1, info.outputs, d->height, d->width},
                  clip[] = {1, info.outputs, d->frames, d->height, d->width};
    float *pixels = malloc(sizeof *pixels * (size_t)(info.outputs * (info.clips ? d->frames : 1)) * (size_t)d->height *
                           (size_t)d->width);
    mhla_status status = mhla_pipeline_make(p, pixels, d, NULL);
    if (status == MHLA_OK) run_keep(pixels, info.clips ? 5 : 4, info.clips ? clip : image, "out.pixels");
    if (status == MHLA_OK) status = keep_rows(p, d);
    free(pixels);
    free(noise);
    return status;
}

mhla_status run_pipeline(char **arg) { /* FOLDER IN OUT PROMPT NEGATIVE INSTRUCTION ROWS STEPS GUIDANCE */
    static const uint64_t seed;
    const char *prompt = arg[3];
    mhla_pipeline *p = NULL;
    mhla_safetensors *in = NULL;
    mhla_make_desc d = {.size = sizeof d,
                        .images = 1,
                        .prompts = &prompt,
                        .negative = arg[4],
                        .instruction = arg[5],
                        .seeds = &seed,
                        .rows = atoll(arg[6]),
                        .steps = atoi(arg[7]),
                        .guidance = atof(arg[8])};
    mhla_status status =
        mhla_pipeline_open(&p, &(mhla_pipeline_desc){.size = sizeof(mhla_pipeline_desc), .folder = arg[0]});
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = make(p, &d, in);
    mhla_safetensors_close(in);
    mhla_pipeline_free(p);
    return status;
}
