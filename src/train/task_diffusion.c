/* The task `diffusion`: a network learns to tell the noise in pictures or clips of a class. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/denoising.h"

static const mhla_recipe_row keys[] = {
    {"train.label_drop", MHLA_RECIPE_REAL, "0.1", 0, 1, NULL, "diffusion: share of images trained without their class"},
    {"sample.columns", MHLA_RECIPE_INT, "6", 0, 64, NULL,
     "diffusion: images of each class in the sample grid of an evaluation; text-to-image: of each caption; "
     "autoencoder: images of a row; "
     "0: no grids"},
    {"sample.rows", MHLA_RECIPE_INT, "10", 1, 64, NULL,
     "diffusion: classes in it, spread over all; text-to-image: captions; autoencoder: rows of images"},
    MHLA_DENOISING_KEYS,
    {0},
};

/* ---- Making ---------------------------------------------------------------------------------------------------------- */

static mhla_status make_model(mhla_trainer *t, mhla_denoising *j) {
    char **names = NULL;
    MHLA_TRY(mhla_model_of_recipe(&t->model, MHLA_ROLE_DENOISER, t->recipe, "model."));
    MHLA_TRY(mhla_denoiser_query(t->model, &j->info));
    const int classes = j->info.classes;
    if (j->info.text_width)
        return mhla_fail(MHLA_EINVAL, "model.model is %s: it takes text: task \"text-to-image\"",
                         MHLA_QUOTE(mhla_recipe_text(t->recipe, "model.model")));
    if (!j->info.null_label && mhla_recipe_real(t->recipe, "train.label_drop") > 0.0)
        return mhla_fail(MHLA_EINVAL, "train.label_drop is %g, but the model has no null label (model.null_label)",
                         mhla_recipe_real(t->recipe, "train.label_drop"));
    MHLA_TRY(mhla_pictures_names(&j->p, &names, classes));
    const mhla_status status = mhla_model_name_classes(t->model, names, classes);
    mhla_names_free(names, classes);
    MHLA_TRY(status);
    return mhla_params_init(t->model->params, (uint64_t)mhla_recipe_int(t->recipe, "seed"));
}

/* -1: a picture of evaluation that could not be read */
static int32_t label(const mhla_denoising *j, const mhla_batch *batch, int64_t i, int test) {
    (void)j, (void)test;
    return batch->labels[i] < 0 ? 0 : batch->labels[i];
}

static mhla_condition condition(mhla_denoising *j, int64_t rows, int dry) {
    (void)rows, (void)dry;
    return (mhla_condition){.labels = j->labels};
}

static mhla_status open_job(mhla_trainer *t) {
    mhla_denoising *j = calloc(1, sizeof *j);
    if (j == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->job = j;
    MHLA_TRY(mhla_pictures_open(&j->p, t->recipe, 1));
    MHLA_TRY(mhla_denoising_open_latents(t, j));
    MHLA_TRY(make_model(t, j));
    MHLA_TRY(mhla_denoising_check_clips(t, j));
    j->drop = mhla_recipe_real(t->recipe, "train.label_drop");
    j->none = j->info.classes;
    j->label = label;
    j->condition = condition;
    return mhla_denoising_prepare(t, j);
}

static void close_job(mhla_trainer *t) {
    if (t->job) mhla_denoising_close(t->job);
    free(t->job);
}

/* ---- Pictures: a row for each of the classes, spread over all --------------------------------------------------------- */

static mhla_status show(mhla_trainer *t) {
    const mhla_denoising *j = t->job;
    const mhla_denoiser_info *c = &j->info;
    const int columns = (int)mhla_recipe_int(t->recipe, "sample.columns");
    int rows = (int)mhla_recipe_int(t->recipe, "sample.rows");
    if (rows > c->classes) rows = c->classes;
    if (rows * columns == 0 || !mhla_denoising_shows(j)) return MHLA_OK;
    int32_t *classes = calloc((size_t)rows, sizeof *classes);
    if (classes == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d classes", rows);
    for (int i = 0; i < rows; i++) classes[i] = (int32_t)((int64_t)i * c->classes / rows);
    const mhla_sample_desc d = {.size = sizeof d,
                                .guidance = c->null_label ? mhla_recipe_real(t->recipe, "sample.guidance") : 1.0};
    const mhla_status status = mhla_denoising_show(t, &d, classes, rows, columns);
    free(classes);
    return status;
}

const mhla_task mhla_task_diffusion = {
    .name = "diffusion",
    .role = MHLA_ROLE_DENOISER,
    .rows = keys,
    .shared = mhla_picture_keys,
    .measure = "loss",
    .lower = 1,
    .unit = "images",
    .open = open_job,
    .close = close_job,
    .seek = mhla_pictures_seek,
    .next = mhla_pictures_next,
    .loss = mhla_denoising_loss,
    .count = mhla_pictures_count,
    .data_bytes = mhla_denoising_data_bytes,
    .evaluate = mhla_denoising_evaluate,
    .show = show,
    .tell = mhla_pictures_tell_loss,
    .adopt = mhla_pictures_adopt,
    .complain = mhla_pictures_complain,
    .pictures = mhla_pictures_of,
};
