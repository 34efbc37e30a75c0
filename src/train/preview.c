/* Training pictures as a run sees them: the first ones of a recipe, after its augmentation and mixing, as one picture. They come
 * from the task itself, so that they are those of the run, seed for seed. */
#include <math.h>
#include <stdlib.h>

#include "core/status.h"
#include "data/latents.h"
#include "train/pictures.h"

enum { MOST = 400, SHARES = 8 };

/* The pixels of a picture of a batch, -1 .. 1. */
static void unnormalise(float *to, const float *from, const mhla_augment *a) {
    const int64_t pixels = (int64_t)a->height * a->width;
    for (int64_t c = 0; c < a->channels; c++)
        for (int64_t i = 0; i < pixels; i++)
            to[c * pixels + i] = 2.0f * (from[c * pixels + i] * a->std[c] + a->mean[c]) - 1.0f;
}

/* What classes a picture counts as, and how much of each, without what smoothing adds to all. */
static void tell(const mhla_pictures *p, const mhla_recipe *r, int i, int classes, int64_t number,
                 mhla_preview_fn report, void *user) {
    const mhla_batch *b = p->batch;
    const double smoothing = mhla_recipe_real(r, "train.smoothing");
    double share[SHARES] = {0.0};
    const char *names[SHARES] = {NULL};
    int label[SHARES] = {0}, n = 0;
    for (int c = 0; c < classes && n < SHARES; c++) {
        share[n] = b->targets ? (b->targets[(int64_t)i * classes + c] - smoothing / classes) / (1.0 - smoothing)
                              : (double)(b->labels[i] == c);
        label[n] = c;
        names[n] = c < mhla_dataset_classes(p->train) ? mhla_dataset_class_name(p->train, c) : "";
        n += share[n] > 1e-4;
    }
    if (n == 2 && share[0] < share[1]) { /* mixing makes two: the larger first */
        const double s = share[0];
        const char *name = names[0];
        const int l = label[0];
        share[0] = share[1], share[1] = s;
        names[0] = names[1], names[1] = name;
        label[0] = label[1], label[1] = l;
    }
    report(user, &(mhla_preview_picture){.size = sizeof(mhla_preview_picture),
                                         .number = number,
                                         .index = b->index[i],
                                         .labels = n,
                                         .label = label,
                                         .name = names,
                                         .share = share});
}

static mhla_status draw(mhla_trainer *t, const char *out, int64_t pictures, int columns, mhla_preview_fn report,
                        void *user) {
    const mhla_pictures *p = t->task->pictures(t);
    mhla_augment a = mhla_model_augment(t->model);
    mhla_image grid = {0};
    MHLA_TRY(mhla_augment_prepare(&a));
    const int64_t numbers = (int64_t)a.channels * a.height * a.width;
    const int classes = (int)mhla_recipe_int(t->recipe, "model.classes");
    float *all = malloc((size_t)(pictures * numbers) * sizeof *all);
    mhla_status status = all ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld images", (long long)pictures);
    for (int64_t n = 0; n < pictures && status == MHLA_OK;) {
        status = t->task->next(t);
        for (int i = 0; status == MHLA_OK && i < p->batch->count && n < pictures; i++, n++) {
            unnormalise(all + n * numbers, p->batch->images + i * numbers, &a);
            if (report) tell(p, t->recipe, i, classes, n, report, user);
        }
    }
    if (status == MHLA_OK) status = mhla_image_grid(&grid, all, pictures, a.channels, a.height, a.width, columns);
    if (status == MHLA_OK) status = mhla_image_write(out, &grid);
    mhla_image_free(&grid);
    free(all);
    return status;
}

mhla_status mhla_train_preview(const char *out, const char *recipe, const char *const *settings, int count,
                               int64_t pictures, int columns, mhla_preview_fn report, void *user) {
    mhla_trainer *t = NULL;
    if (out == NULL) return mhla_fail(MHLA_EINVAL, "out is NULL");
    if (!mhla_image_name(out)) return mhla_fail(MHLA_EINVAL, "%s: expected a name that ends with .png or .jpg", out);
    if (pictures < 1 || pictures > MOST || columns < 1 || columns > pictures)
        return mhla_fail(MHLA_EINVAL, "%lld images in %d columns: expected 1 to %d, and no more columns than images",
                         (long long)pictures, columns, MOST);
    mhla_status status = mhla_trainer_start(&t, "", recipe, settings, count);
    if (status == MHLA_OK && t->task->pictures == NULL)
        status = mhla_fail(MHLA_EINVAL, "the task is %s, which does not read images", t->task->name);
    if (status == MHLA_OK) status = t->task->open(t);
    if (status == MHLA_OK && mhla_dataset_latents(t->task->pictures(t)->train))
        status = mhla_fail(MHLA_EINVAL, "the data are latents, not images");
    if (status == MHLA_OK) status = draw(t, out, pictures, columns, report, user);
    mhla_trainer_free(t);
    return status;
}
