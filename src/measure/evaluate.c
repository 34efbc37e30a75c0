/* A model and a dataset: how many it gets right; a model and a picture: what it takes it for. */
#include <math.h>
#include <mhla/diffusion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/status.h"
#include "dist/dist.h"
#include "measure/evaluate.h"

enum { BATCH = MHLA_EVALUATE_BATCH, TOP = 5, OWNED = MHLA_UP_TO(mhla_evaluation, class_right) };

/* recipe.json of the run that a model came from, which lies above its checkpoints. *tree is NULL where there is none. */
static mhla_status recipe_of_run(json_t **tree, const mhla_model *model) {
    static const char *const places[] = {"", "/..", "/../.."};
    char path[MHLA_RUN_PATH + 32];
    *tree = NULL;
    for (int i = 0; i < 3 && model->origin && *tree == NULL; i++) {
        snprintf(path, sizeof path, "%.*s%s/recipe.json", MHLA_RUN_PATH, model->origin, places[i]);
        if (access(path, F_OK) == 0) MHLA_TRY(mhla_json_load(tree, path));
    }
    return MHLA_OK;
}

/* Sizes of the pixels that a model makes. */
static mhla_augment size_of_pixels(const mhla_model *model) {
    mhla_denoiser_info d;
    mhla_autoencoder_info a;
    if (mhla_denoiser_query(model, &d) == MHLA_OK)
        return (mhla_augment){
            .height = (int)(d.extent.height * (d.extent.frames ? d.extent.frames : 1)), /* one below the other */
            .width = (int)d.extent.width,
            .channels = d.channels};
    if (mhla_autoencoder_query(model, &a) == MHLA_OK)
        return (mhla_augment){.height = a.side, .width = a.side, .channels = a.channels};
    return (mhla_augment){0};
}

/* -1 .. 1, resized or cut out as they were for the test loss of its run. */
static mhla_augment augment_of_pixels(const mhla_model *model) {
    mhla_augment a = size_of_pixels(model);
    if (a.height == 0) return a;
    a.crop_pct = 1.0;
    json_t *recipe = NULL;
    recipe_of_run(&recipe, model);
    const char *crop = json_string_value(json_object_get(json_object_get(recipe, "augment"), "crop"));
    a.crop = mhla_crop_named(crop ? crop : "none", 1);
    json_decref(recipe);
    for (int i = 0; i < 3; i++) a.mean[i] = a.std[i] = 0.5f;
    return a;
}

mhla_augment mhla_model_augment(const mhla_model *model) {
    mhla_classifier_info c;
    if (mhla_classifier_query(model, &c) != MHLA_OK) return augment_of_pixels(model);
    mhla_augment a = {
        .height = c.height, .width = c.width, .channels = c.channels, .crop = MHLA_CROP_EVAL, .crop_pct = c.crop};
    for (int i = 0; i < 3; i++) {
        a.mean[i] = (float)c.mean[i];
        a.std[i] = (float)c.deviation[i];
    }
    return a;
}

/* -log softmax(logits)[label] */
static double cross_entropy(const float *logits, int n, int label) {
    double most = logits[0], sum = 0.0;
    for (int i = 1; i < n; i++) most = fmax(most, logits[i]);
    for (int i = 0; i < n; i++) sum += exp(logits[i] - most);
    return log(sum) + most - logits[label];
}

/* own [classes of the data]: the model's number of each, by name: a folder may have some of the classes only, or others
 * before them. Where the model knows no name of them, numbers count: ImageNet's folders are called otherwise than its classes. */
static mhla_status match_classes(int *own, const mhla_model *model, const mhla_dataset *data) {
    const int n = mhla_dataset_classes(data), classes = mhla_model_classes(model);
    int known = 0, foreign = -1;
    for (int i = 0; i < n; i++) {
        own[i] = -1;
        for (int k = 0; k < classes && own[i] < 0; k++) { /* beginning at i, where it most likely is */
            const char *name = mhla_model_class_name(model, (i + k) % classes);
            if (name && strcmp(name, mhla_dataset_class_name(data, i)) == 0) own[i] = (i + k) % classes;
        }
        known += own[i] >= 0;
        if (own[i] < 0) foreign = i;
    }
    if (known && foreign >= 0)
        return mhla_fail(MHLA_EINVAL,
                         "the data has a class %s, which the model does not know, beside others that it does",
                         MHLA_QUOTE(mhla_dataset_class_name(data, foreign)));
    for (int i = 0; i < n && !known; i++) own[i] = i;
    return MHLA_OK;
}

/* What a batch adds up to: numbers that are sums, then images and right ones of each class. Batches are added up in their order, so that
 * it does not matter which rank took which. */
enum { SUM_LOSS, SUM_IMAGES, SUM_TOP1, SUM_TOP5, SUM_SQUARES, SUM_MOST, SUM_SEEN, SUMS };

static void count_batch(double *sums, int classes, const float *logits, const mhla_batch *batch, const int *own) {
    for (int b = 0; b < batch->count; b++) {
        const float *y = logits + (int64_t)b * classes;
        if (batch->labels[b] < 0) continue; /* a file that could not be read */
        const int label = own[batch->labels[b]];
        int before = 0; /* classes that the model prefers; on a tie the first one wins */
        for (int i = 0; i < classes; i++) before += y[i] > y[label] || (y[i] == y[label] && i < label);
        sums[SUM_LOSS] += cross_entropy(y, classes, label);
        sums[SUM_IMAGES] += 1.0;
        sums[SUM_TOP1] += before == 0;
        sums[SUM_TOP5] += before < TOP;
        sums[SUMS + label] += 1.0;
        sums[SUMS + classes + label] += before == 0;
    }
}

/* The logits [count,classes] of a batch beside those of the reference. */
static void compare_batch(double *sums, int classes, const float *logits, const float *others, int count) {
    for (int64_t i = 0; i < (int64_t)count * classes; i++) {
        const double d = fabs((double)logits[i] - (double)others[i]);
        if (!(d <= sums[SUM_MOST])) sums[SUM_MOST] = d;
        sums[SUM_SQUARES] += d * d;
    }
}

/* All batches into the result. */
static void add_up(mhla_evaluation *r, const double *rows, int64_t batches, size_t row, double *squares,
                   int64_t *seen) {
    double loss = 0.0;
    *squares = 0.0;
    *seen = 0;
    for (int64_t b = 0; b < batches; b++) {
        const double *sums = rows + (size_t)b * row;
        loss += sums[SUM_LOSS];
        *squares += sums[SUM_SQUARES];
        if (!(sums[SUM_MOST] <= r->logits_max)) r->logits_max = sums[SUM_MOST];
        r->images += (int64_t)sums[SUM_IMAGES];
        r->top1 += (int64_t)sums[SUM_TOP1];
        r->top5 += (int64_t)sums[SUM_TOP5];
        *seen += (int64_t)sums[SUM_SEEN];
        for (int i = 0; i < r->classes; i++) {
            r->class_images[i] += (int64_t)sums[SUMS + i];
            r->class_right[i] += (int64_t)sums[SUMS + r->classes + i];
        }
    }
    r->loss = r->images ? loss / (double)r->images : NAN;
}

mhla_status mhla_evaluate(mhla_model *model, mhla_model *reference, mhla_evaluation *result, mhla_dataset *data,
                          int workers, int64_t limit, volatile sig_atomic_t *stop, mhla_progress_fn progress,
                          void *user) {
    const int classes = mhla_model_classes(model);
    *result = (mhla_evaluation){.size = sizeof *result, .classes = classes};
    if (reference && mhla_model_classes(reference) != classes)
        return mhla_fail(MHLA_EINVAL, "the reference has %d classes, the model %d", mhla_model_classes(reference),
                         classes);
    if (mhla_dataset_classes(data) > classes)
        return mhla_fail(MHLA_EINVAL, "the data has %d classes, the model %d", mhla_dataset_classes(data), classes);
    int64_t all = mhla_dataset_count(data);
    if (limit > 0 && limit < all) all = limit;
    const double begin = mhla_seconds();
    double squares = 0.0, beside = 0.0;
    int64_t done = 0;
    const int64_t batches = (all + BATCH - 1) / BATCH;
    const size_t row = SUMS + 2 * (size_t)classes;
    double *rows = calloc((size_t)batches * row + 1, sizeof *rows);
    mhla_loader *loader = NULL;
    float *logits = malloc(2 * (size_t)BATCH * (size_t)classes * sizeof *logits);
    float *const others = logits ? logits + (int64_t)BATCH * classes : NULL;
    int *own = malloc((size_t)classes * sizeof *own);
    result->class_images = calloc((size_t)classes, sizeof *result->class_images);
    result->class_right = calloc((size_t)classes, sizeof *result->class_right);
    mhla_status status = logits && own && rows && result->class_images && result->class_right
                             ? match_classes(own, model, data)
                             : mhla_fail(MHLA_ENOMEM, "no memory for %d classes", classes);
    if (status == MHLA_OK)
        status = mhla_loader_create(&loader, &(mhla_loader_desc){.data = data,
                                                                 .batch = BATCH,
                                                                 .workers = workers,
                                                                 .ahead = MHLA_EVALUATE_AHEAD,
                                                                 .augment = mhla_model_augment(model),
                                                                 .classes = classes,
                                                                 .no_targets = 1,
                                                                 .limit = limit,
                                                                 .rank = mhla_dist_rank(),
                                                                 .ranks = mhla_dist_ranks()});
    while (status == MHLA_OK && !(stop && *stop)) {
        const mhla_batch *batch;
        status = mhla_loader_next(loader, &batch);
        if (status != MHLA_OK || batch->count == 0) break;
        status = mhla_model_infer(model, logits, batch->images, batch->count);
        if (status != MHLA_OK) break;
        double *sums = rows + (size_t)(batch->start / BATCH) * row;
        count_batch(sums, classes, logits, batch, own);
        sums[SUM_SEEN] = batch->count;
        if (reference) {
            const double start = mhla_seconds();
            status = mhla_model_infer(reference, others, batch->images, batch->count);
            if (status != MHLA_OK) break;
            compare_batch(sums, classes, logits, others, batch->count);
            beside += mhla_seconds() - start;
        }
        if (progress) progress(user, batch->start + batch->count, all);
    }
    mhla_loader_free(loader);
    free(logits);
    free(own);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_merge(rows, batches, row * sizeof *rows);
    if (status == MHLA_OK) add_up(result, rows, batches, row, &squares, &done);
    free(rows);
    if (status == MHLA_OK && result->images == 0 && (done > 0 || all == 0)) /* none was seen: told to stop */
        status = mhla_fail(MHLA_EDATA, "none of %lld images could be read", (long long)all);
    if (status != MHLA_OK) {
        mhla_evaluation_free(result);
        return status;
    }
    result->seconds = mhla_seconds() - begin - beside;
    if (reference)
        result->logits_rms = sqrt(squares / (double)(done * classes));
    else
        result->logits_max = result->logits_rms = NAN;
    return MHLA_OK;
}

mhla_status mhla_data_of_run(char *source, size_t size, const mhla_model *model) {
    json_t *recipe = NULL;
    MHLA_TRY(recipe_of_run(&recipe, model));
    const char *text = json_string_value(json_object_get(json_object_get(recipe, "data"), "source"));
    snprintf(source, size, "%s", text ? text : "");
    json_decref(recipe);
    if (*source) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s: no run says what data it was trained on; name the data",
                     model->origin ? model->origin : "the model");
}

static mhla_status open_split(mhla_dataset **set, const char *data, const char *split) {
    char folder[MHLA_RUN_PATH];
    const int train = split && strcmp(split, "train") == 0;
    if (split && !train && strcmp(split, "test") != 0)
        return mhla_fail(MHLA_EINVAL, "split is \"%s\": expected test or train", split);
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, data));
    return mhla_dataset_open_images(set, folder, train ? MHLA_SPLIT_TRAIN : MHLA_SPLIT_TEST);
}

mhla_status mhla_data_export(const char *data, const char *split, int64_t index, const char *path, int *label) {
    mhla_dataset *set = NULL;
    mhla_image image = {0};
    mhla_status status = open_split(&set, data, split);
    if (status == MHLA_OK && (index < 0 || index >= mhla_dataset_count(set)))
        status = mhla_fail(MHLA_EINVAL, "image %lld of %lld", (long long)index, (long long)mhla_dataset_count(set));
    if (status == MHLA_OK) status = mhla_dataset_get(set, index, &image, label);
    if (status == MHLA_OK) status = mhla_image_write(path, &image);
    mhla_image_free(&image);
    mhla_dataset_free(set);
    return status;
}

/* Several ranks share the images only if they have the same ones, and the same model. */
static mhla_status compare_ranks(const mhla_model *model, const char *data) {
    char folder[MHLA_RUN_PATH], sum[65] = "";
    if (mhla_dist_ranks() == 1) return MHLA_OK;
    mhla_status status = mhla_model_hash(model, sum);
    MHLA_TRY(mhla_dist_agree(status));
    MHLA_TRY(mhla_dist_same("SHA-256 of the model", sum));
    status = mhla_data_locate(folder, sizeof folder, data);
    if (status == MHLA_OK) status = mhla_data_sum(sum, folder);
    MHLA_TRY(mhla_dist_agree(status));
    return mhla_dist_same("SHA-256 of the data", sum);
}

/* Files that the ranks could not read: each has looked at its own images. */
static mhla_status add_unreadable(int64_t *files) {
    const int ranks = mhla_dist_ranks();
    int64_t *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the results of %d ranks", ranks);
    const mhla_status status = mhla_dist_gather_all(all, files, sizeof *all);
    *files = 0;
    for (int r = 0; r < ranks; r++) *files += all[r];
    free(all);
    return status;
}

mhla_status mhla_model_evaluate_beside(mhla_model *model, mhla_model *reference, mhla_evaluation *result,
                                       const char *data, const char *split, int64_t limit, mhla_progress_fn progress,
                                       void *user) {
    char source[MHLA_RUN_PATH];
    mhla_dataset *set = NULL;
    mhla_evaluation full = {.size = sizeof full};
    MHLA_TRY(mhla_model_need(model, MHLA_ROLE_CLASSIFIER));
    if (reference) MHLA_TRY(mhla_model_need(reference, MHLA_ROLE_CLASSIFIER));
    MHLA_TRY(mhla_struct_check(result, OWNED, "mhla_evaluation"));
    if (data == NULL) {
        MHLA_TRY(mhla_data_of_run(source, sizeof source, model));
        data = source;
    }
    MHLA_TRY(mhla_dist_agree(open_split(&set, data, split)));
    mhla_status status = compare_ranks(model, data);
    if (status == MHLA_OK) status = mhla_evaluate(model, reference, &full, set, 1, limit, NULL, progress, user);
    mhla_dataset_broken(set, &full.unreadable, NULL, 0);
    if (status == MHLA_OK) status = add_unreadable(&full.unreadable);
    mhla_dataset_free(set);
    return status == MHLA_OK ? mhla_struct_out(result, &full, sizeof full, "mhla_evaluation") : status;
}

mhla_status mhla_model_evaluate(mhla_model *model, mhla_evaluation *result, const char *data, const char *split,
                                int64_t limit, mhla_progress_fn progress, void *user) {
    return mhla_model_evaluate_beside(model, NULL, result, data, split, limit, progress, user);
}

void mhla_evaluation_free(mhla_evaluation *result) {
    if (!mhla_struct_holds(result, OWNED)) return;
    free(result->class_images);
    free(result->class_right);
    result->class_images = result->class_right = NULL;
}

/* ---- One picture --------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_classify_image(mhla_model *model, float *probabilities, const mhla_image *image) {
    mhla_classifier_info c;
    MHLA_TRY(mhla_classifier_query(model, &c));
    const int classes = c.classes;
    mhla_augment a = mhla_model_augment(model);
    mhla_augment_scratch scratch = {0};
    float *x = malloc((size_t)c.channels * (size_t)c.height * (size_t)c.width * sizeof *x);
    mhla_status status = x ? mhla_augment_prepare(&a) : mhla_fail(MHLA_ENOMEM, "no memory for an image");
    if (status == MHLA_OK) status = mhla_augment_apply(x, image, &a, &scratch, 0, 0, 0);
    if (status == MHLA_OK) status = mhla_model_infer(model, probabilities, x, 1);
    if (status == MHLA_OK) {
        double most = -INFINITY, sum = 0.0;
        for (int i = 0; i < classes; i++) most = fmax(most, probabilities[i]);
        for (int i = 0; i < classes; i++) sum += exp(probabilities[i] - most);
        for (int i = 0; i < classes; i++) probabilities[i] = (float)(exp(probabilities[i] - most) / sum);
    }
    mhla_augment_scratch_free(&scratch);
    free(x);
    return status;
}

mhla_status mhla_model_classify_bytes(mhla_model *model, float *probabilities, const void *bytes, size_t size,
                                      const char *name) {
    mhla_image image = {0};
    MHLA_TRY(mhla_model_need(model, MHLA_ROLE_CLASSIFIER));
    mhla_status status = mhla_image_decode(&image, bytes, size, mhla_model_augment(model).channels, name);
    if (status == MHLA_OK) status = mhla_model_classify_image(model, probabilities, &image);
    mhla_image_free(&image);
    return status;
}

mhla_status mhla_model_classify(mhla_model *model, float *probabilities, const char *path) {
    mhla_image image = {0};
    MHLA_TRY(mhla_model_need(model, MHLA_ROLE_CLASSIFIER));
    mhla_status status = mhla_image_read(&image, path, mhla_model_augment(model).channels);
    if (status == MHLA_OK) status = mhla_model_classify_image(model, probabilities, &image);
    mhla_image_free(&image);
    return status;
}
