/* What tasks on pictures share; see pictures.h. */
#include "train/pictures.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/latents.h"
#include "dist/dist.h"
#include "file/text.h"

const mhla_recipe_row mhla_picture_keys[] = {
    {"data.source", MHLA_RECIPE_TEXT, "fashion-mnist", 0, 0, NULL,
     "a folder, or a dataset of mhla data: fashion-mnist, cifar10-test, emoji, text; diffusion: also latents"},
    {"data.shuffle_labels", MHLA_RECIPE_BOOL, "false", 0, 0, NULL,
     "shuffle the labels of training and test: a control in which nothing can be learned"},
    {"data.workers", MHLA_RECIPE_INT, "1", 0, 256, NULL, "threads that load and augment"},
    {"augment.scale", MHLA_RECIPE_REALS, "0.08,1", 0, 1, NULL, "random crop: part of the area, from, to"},
    {"augment.pad", MHLA_RECIPE_INT, "4", 0, 256, NULL, "pad: black pixels around"},
    {"augment.flip", MHLA_RECIPE_REAL, "0", 0, 1, NULL, "probability of a horizontal flip"},
    {0},
};

/* A model of clips is made for those of the data, where the recipe leaves their size open. */
static mhla_status follow_clips(const mhla_pictures *p, mhla_recipe *recipe) {
    const int frames = mhla_dataset_frames(p->train);
    char text[48];
    if (frames != mhla_dataset_frames(p->test))
        return mhla_fail(MHLA_EDATA, "%s: its clips for training have %d frames, those for test %d",
                         mhla_recipe_text(recipe, "data.source"), frames, mhla_dataset_frames(p->test));
    if (frames == 0 || mhla_recipe_find(recipe, "model.frames") == NULL) return MHLA_OK;
    snprintf(text, sizeof text, "%d", frames);
    if (!mhla_recipe_given(recipe, "model.frames")) MHLA_TRY(mhla_recipe_set(recipe, "model.frames", text));
    snprintf(text, sizeof text, "%d,%d", mhla_dataset_height(p->train), mhla_dataset_width(p->train));
    return mhla_recipe_given(recipe, "model.image") ? MHLA_OK : mhla_recipe_set(recipe, "model.image", text);
}

mhla_status mhla_pictures_open(mhla_pictures *p, mhla_recipe *recipe, int may_be_latents) {
    char folder[MHLA_RUN_PATH];
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, mhla_recipe_text(recipe, "data.source")));
    mhla_status (*const open)(mhla_dataset **, const char *, mhla_split) =
        may_be_latents ? mhla_dataset_open : mhla_dataset_open_images;
    MHLA_TRY(open(&p->train, folder, MHLA_SPLIT_TRAIN));
    MHLA_TRY(open(&p->test, folder, MHLA_SPLIT_TEST));
    if (mhla_recipe_bool(recipe, "data.shuffle_labels")) {
        const uint64_t seed = (uint64_t)mhla_recipe_int(recipe, "seed");
        MHLA_TRY(mhla_dataset_shuffle(p->train, 2 * seed));
        MHLA_TRY(mhla_dataset_shuffle(p->test, 2 * seed + 1));
    }
    const int64_t images = mhla_dataset_count(p->train);
    const mhla_latents_about *latents = mhla_dataset_latents(p->train);
    if (latents && !may_be_latents)
        return mhla_fail(MHLA_EINVAL, "%s holds latents: only a diffusion model learns them", folder);
    if (latents && mhla_recipe_find(recipe, "model.image") && !mhla_recipe_given(recipe, "model.image")) {
        char sides[48];
        snprintf(sides, sizeof sides, "%d,%d", latents->height / latents->factor, latents->width / latents->factor);
        MHLA_TRY(mhla_recipe_set(recipe, "model.image", sides));
    }
    MHLA_TRY(follow_clips(p, recipe));
    const struct {
        const char *key;
        int64_t value;
        int wanted; /* where the recipe leaves it to the data */
    } follow[] = {
        {"model.classes", mhla_dataset_classes(p->train), !mhla_recipe_has(recipe, "model.classes")},
        {"model.channels", mhla_dataset_channels(p->train), !mhla_recipe_has(recipe, "model.channels")},
        {"model.in_channels", mhla_dataset_channels(p->train), !mhla_recipe_has(recipe, "model.in_channels")},
        {"model.out_channels", mhla_dataset_channels(p->train), !mhla_recipe_has(recipe, "model.out_channels")},
        {"train.batch", images,
         images > 0 && !mhla_recipe_given(recipe, "train.batch") && images < mhla_recipe_int(recipe, "train.batch")}};
    for (size_t i = 0; i < sizeof follow / sizeof *follow; i++) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)follow[i].value);
        if (follow[i].wanted && mhla_recipe_find(recipe, follow[i].key)) /* a key of this model */
            MHLA_TRY(mhla_recipe_set(recipe, follow[i].key, text));
    }
    return MHLA_OK;
}

mhla_status mhla_pictures_load(mhla_pictures *p, const mhla_trainer *t, mhla_loader_desc d) {
    const mhla_recipe *r = t->recipe;
    int64_t first, last;
    mhla_ranks_rows(t, mhla_recipe_int(r, "train.batch"), &first, &last);
    d.first = (int)first;
    d.last = (int)last;
    d.data = p->train;
    d.batch = (int)mhla_recipe_int(r, "train.batch");
    d.train = 1;
    d.workers = (int)mhla_recipe_int(r, "data.workers");
    d.ahead = MHLA_TRAIN_AHEAD;
    d.seed = (uint64_t)mhla_recipe_int(r, "seed");
    d.augment.crop = mhla_crop_named(mhla_recipe_text(r, "augment.crop"), 0);
    const json_t *scale = mhla_recipe_array(r, "augment.scale");
    if (json_array_size(scale) != 2)
        return mhla_fail(MHLA_EINVAL, "augment.scale has %zu numbers: expected 2", json_array_size(scale));
    for (int i = 0; i < 2; i++) d.augment.scale[i] = json_number_value(json_array_get(scale, (size_t)i));
    d.augment.pad = (int)mhla_recipe_int(r, "augment.pad");
    d.augment.flip = (float)mhla_recipe_real(r, "augment.flip");
    if (d.batch > mhla_dataset_count(p->train))
        return mhla_fail(MHLA_EINVAL, "train.batch is %d, more than the %lld images of the data", d.batch,
                         (long long)mhla_dataset_count(p->train));
    return mhla_loader_create(&p->loader, &d);
}

void mhla_pictures_close(mhla_pictures *p) {
    mhla_loader_free(p->loader);
    mhla_dataset_free(p->train);
    mhla_dataset_free(p->test);
}

mhla_status mhla_pictures_names(const mhla_pictures *p, char ***names, int classes) {
    const int known = mhla_dataset_classes(p->train);
    if (classes < known)
        return mhla_fail(MHLA_EINVAL, "model.classes is %d, but the data has %d classes", classes, known);
    char **list = calloc((size_t)classes, sizeof *list);
    for (int i = 0; list && i < classes; i++) {
        char number[16];
        const char *name = i < known ? mhla_dataset_class_name(p->train, i) : "";
        snprintf(number, sizeof number, "%d", i);
        if (mhla_utf8_broken((const unsigned char *)name, strlen(name)) <
            strlen(name)) { /* config.json could not say it */
            const mhla_quoted quoted = mhla_quote(name);
            mhla_names_free(list, classes);
            return mhla_fail(MHLA_EDATA, "class %d of the data is called %s, which is not UTF-8", i, quoted.text);
        }
        if ((list[i] = strdup(*name ? name : number)) == NULL) {
            mhla_names_free(list, classes);
            list = NULL;
        }
    }
    *names = list;
    return list ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d names", classes);
}

int64_t mhla_pictures_part(const mhla_pictures *p, const mhla_recipe *recipe, int dry, int64_t part, int64_t parts,
                           int64_t *first, double *share) {
    const int64_t all = dry ? mhla_recipe_int(recipe, "train.batch") : p->batch->count;
    *first = dry ? 0 : part * all / parts;
    const int64_t rows = dry ? (all + parts - 1) / parts : (part + 1) * all / parts - *first;
    *share = (double)rows / (double)all;
    return rows;
}

int64_t mhla_pictures_tested(const mhla_pictures *p, int64_t limit) {
    const int64_t all = mhla_dataset_count(p->test);
    return limit > 0 && limit < all ? limit : all;
}

mhla_status mhla_pictures_each(mhla_trainer *t, const mhla_pictures *p, int64_t limit, mhla_pictures_fn fn,
                               double *sums, int n, mhla_progress_fn progress, void *user) {
    const int64_t all = mhla_pictures_tested(p, limit), batches = (all + MHLA_EVALUATE_BATCH - 1) / MHLA_EVALUATE_BATCH;
    const size_t row = (size_t)n + 1; /* a number more than none */
    mhla_loader *loader = NULL;
    mhla_loader_desc d = {.data = p->test,
                          .batch = MHLA_EVALUATE_BATCH,
                          .workers = (int)mhla_recipe_int(t->recipe, "data.workers"),
                          .ahead = MHLA_EVALUATE_AHEAD,
                          .augment = mhla_model_augment(t->model),
                          .classes = mhla_model_classes(t->model),
                          .no_targets = 1,
                          .latents = mhla_dataset_latents(p->test) != NULL,
                          .limit = limit,
                          .rank = mhla_dist_rank(),
                          .ranks = mhla_dist_ranks()};
    d.augment.crop = mhla_crop_named(mhla_recipe_text(t->recipe, "augment.crop"), 1);
    double *rows = calloc((size_t)batches * row + 1, sizeof *rows);
    mhla_status status = rows ? mhla_loader_create(&loader, &d) : mhla_fail(MHLA_ENOMEM, "no memory for an evaluation");
    while (status == MHLA_OK && !t->stop) {
        const mhla_batch *batch;
        status = mhla_loader_next(loader, &batch);
        if (status != MHLA_OK || batch->count == 0) break;
        status = fn(t, batch, batch->start, rows + (size_t)(batch->start / MHLA_EVALUATE_BATCH) * row);
        if (progress) progress(user, batch->start + batch->count, all);
    }
    mhla_loader_free(loader);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_merge(rows, batches, row * sizeof *rows);
    for (int i = 0; i < n; i++) sums[i] = 0.0;
    for (int64_t b = 0; status == MHLA_OK && b < batches; b++)
        for (int i = 0; i < n; i++) sums[i] += rows[(size_t)b * row + (size_t)i];
    free(rows);
    return status;
}

mhla_status mhla_pictures_save(const mhla_trainer *t, const mhla_picture *grids, int64_t frames) {
    char path[MHLA_RUN_PATH];
    if (mhla_dist_rank() > 0) return MHLA_OK;
    double *seconds = calloc((size_t)frames, sizeof *seconds);
    if (seconds == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld frames", (long long)frames);
    for (int64_t f = 0; f < frames; f++) seconds[f] = MHLA_FRAME_SECONDS;
    snprintf(path, sizeof path, "%s/samples", t->run);
    mhla_status status = MHLA_OK;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/samples/step-%08lld.png", t->run, (long long)t->step);
    if (status == MHLA_OK) status = mhla_picture_write(path, grids, frames, seconds);
    free(seconds);
    return status;
}

double mhla_pictures_bytes(const mhla_pictures *p, const mhla_recipe *r, double numbers) {
    double bytes =
        sizeof(float) * numbers *
        (MHLA_TRAIN_AHEAD * (double)mhla_recipe_int(r, "train.batch") + MHLA_EVALUATE_AHEAD * MHLA_EVALUATE_BATCH);
    const mhla_dataset *const sets[] = {p->train, p->test};
    for (int i = 0; i < 2; i++)
        if (sets[i])
            bytes += (double)mhla_dataset_count(sets[i]) * mhla_dataset_width(sets[i]) * mhla_dataset_height(sets[i]) *
                     mhla_dataset_channels(sets[i]) * (mhla_dataset_frames(sets[i]) ? mhla_dataset_frames(sets[i]) : 1);
    return bytes;
}

/* ---- For the rows of tasks ---- */

const mhla_pictures *mhla_pictures_of(const mhla_trainer *t) { return t->job; }

mhla_status mhla_pictures_seek(mhla_trainer *t, int64_t epoch, int64_t batch) {
    const mhla_pictures *p = t->job;
    return mhla_loader_seek(p->loader, epoch, batch);
}

mhla_status mhla_pictures_next(mhla_trainer *t) {
    mhla_pictures *p = t->job;
    return mhla_loader_next(p->loader, &p->batch);
}

double mhla_pictures_count(mhla_trainer *t, mhla_train_event *e) {
    const mhla_pictures *p = t->job;
    (void)e;
    return p->batch->count;
}

void mhla_pictures_tell_loss(mhla_train_event *e, const mhla_score *plain, const mhla_score *average) {
    e->test_loss = plain->loss;
    if (average) e->ema_loss = average->loss;
}

mhla_status mhla_pictures_adopt(mhla_trainer *t, const char *path, void (*note)(void *user, const char *text),
                                void *user) {
    return mhla_model_adopt(t->model, path, note, user);
}

/* Files of either part of the data that were not told yet: some show only when they are decoded. */
void mhla_pictures_complain(mhla_trainer *t, void (*note)(mhla_trainer *t, const char *text)) {
    enum { MOST = 5 };
    mhla_pictures *p = t->job;
    mhla_dataset *const parts[2] = {p->train, p->test};
    for (int i = 0; i < 2 && parts[i]; i++) {
        int64_t count = 0;
        const char *sentences[100];
        char text[600];
        const int64_t kept = mhla_dataset_broken(parts[i], &count, sentences, 100), from = p->told[i];
        if (count == from) continue;
        const int64_t to = kept < from + MOST ? kept : from + MOST;
        snprintf(text, sizeof text, "%lld%s file%s of the %s data could not be read:", (long long)(count - from),
                 from ? " more" : "", count - from == 1 ? "" : "s", i ? "test" : "training");
        note(t, text);
        for (int64_t k = from; k < to; k++) {
            snprintf(text, sizeof text, "  %s", sentences[k]);
            note(t, text);
        }
        if (count > to) {
            snprintf(text, sizeof text, "  and %lld more", (long long)(count - to));
            note(t, text);
        }
        p->told[i] = count;
    }
}
