#include "data/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/rng.h"
#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/file.h"

int mhla_dataset_path(char *path, const char *folder, const char *name) {
    struct stat info;
    return snprintf(path, 4096, "%s/%s", folder, name) < 4096 && stat(path, &info) == 0;
}

/* ---- Opening ---- */

mhla_status mhla_dataset_open(mhla_dataset **data, const char *folder, mhla_split split) {
    static const mhla_dataset_opener openers[] = {mhla_dataset_open_idx,   mhla_dataset_open_cifar,
                                                  mhla_dataset_open_npy,   mhla_dataset_open_latents,
                                                  mhla_dataset_open_clips, mhla_dataset_open_folder};
    *data = NULL;
    struct stat info;
    if (stat(folder, &info) != 0) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return mhla_fail(MHLA_EIO, "%s: a dataset is a folder, and this is none", folder);
    mhla_dataset *d = calloc(1, sizeof *d);
    if (d == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for the dataset", folder);
    pthread_mutex_init(&d->lock, NULL);
    mhla_status status = MHLA_OK;
    for (size_t i = 0; i < sizeof openers / sizeof *openers && d->format == NULL && status == MHLA_OK; i++)
        status = openers[i](d, folder, split);
    if (status == MHLA_OK && d->format == NULL)
        status = mhla_fail(MHLA_EDATA,
                           "%s: no dataset that is known here: expected IDX or CIFAR files, .npy pairs, or a folder "
                           "of images per class",
                           folder);
    if (status != MHLA_OK) {
        mhla_dataset_free(d);
        return status;
    }
    *data = d;
    return MHLA_OK;
}

mhla_status mhla_dataset_open_images(mhla_dataset **data, const char *folder, mhla_split split) {
    MHLA_TRY(mhla_dataset_open(data, folder, split));
    if ((*data)->frames == 0) return MHLA_OK;
    mhla_dataset_free(*data);
    *data = NULL;
    return mhla_fail(MHLA_EINVAL, "%s holds clips: only a diffusion model of clips learns them", folder);
}

void mhla_dataset_free(mhla_dataset *d) {
    if (d == NULL) return;
    if (d->close) d->close(d);
    for (int i = 0; d->names && i < d->classes; i++) free(d->names[i]);
    free(d->names);
    free(d->shuffled);
    for (int i = 0; i < d->kept; i++) free(d->sentences[i]);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

mhla_status mhla_dataset_read_names(mhla_dataset *d, const char *folder, const char *name, int most) {
    char path[4096];
    if (!mhla_dataset_path(path, folder, name)) return MHLA_OK;
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = MHLA_OK;
    char **names = calloc((size_t)most, sizeof *names);
    int count = 0;
    if (names == NULL) status = mhla_fail(MHLA_ENOMEM, "%s: no memory for its names", path);
    for (size_t at = 0; at < file.size && status == MHLA_OK;) {
        const char *line = (const char *)file.data + at, *newline = memchr(line, '\n', file.size - at);
        size_t n = newline ? (size_t)(newline - line) : file.size - at;
        at += n + 1;
        while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' ')) n--;
        if (n == 0) continue;
        if (count == most)
            status = mhla_fail(MHLA_EDATA, "%s: more than %d names of classes", path, most);
        else if ((names[count] = strndup(line, n)) == NULL)
            status = mhla_fail(MHLA_ENOMEM, "%s: no memory for its names", path);
        else
            count++;
    }
    mhla_file_unmap(&file);
    if (status != MHLA_OK || count == 0) {
        for (int i = 0; i < count; i++) free(names[i]);
        free(names);
        return status;
    }
    d->names = names;
    d->classes = count;
    return MHLA_OK;
}

/* ---- Looking ---- */

const char *mhla_dataset_format(const mhla_dataset *d) { return d->format; }
int64_t mhla_dataset_count(const mhla_dataset *d) { return d->count; }
int mhla_dataset_classes(const mhla_dataset *d) { return d->classes; }
int mhla_dataset_channels(const mhla_dataset *d) { return d->channels; }
int mhla_dataset_frames(const mhla_dataset *d) { return d->frames; }
int mhla_dataset_width(const mhla_dataset *d) { return d->width; }
int mhla_dataset_height(const mhla_dataset *d) { return d->height; }

const char *mhla_dataset_class_name(const mhla_dataset *d, int label) {
    return d->names && label >= 0 && label < d->classes ? d->names[label] : "";
}
static int label_of(const mhla_dataset *d, int64_t index) {
    return d->shuffled ? d->shuffled[index] : d->label(d, index);
}
int mhla_dataset_label(const mhla_dataset *d, int64_t index) {
    return index >= 0 && index < d->count ? label_of(d, index) : -1;
}
const char *mhla_dataset_file(const mhla_dataset *d, int64_t index) {
    return d->file && index >= 0 && index < d->count ? d->file(d, index) : "";
}

mhla_status mhla_dataset_get(mhla_dataset *d, int64_t index, mhla_image *image, int *label) {
    if (index < 0 || index >= d->count)
        return mhla_fail(MHLA_EINVAL, "image %lld of a dataset of %lld", (long long)index, (long long)d->count);
    *label = label_of(d, index);
    return d->get(d, index, image);
}

mhla_status mhla_dataset_shuffle(mhla_dataset *d, uint64_t seed) {
    int32_t *labels = malloc((size_t)(d->count ? d->count : 1) * sizeof *labels);
    if (labels == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld labels", (long long)d->count);
    for (int64_t i = 0; i < d->count; i++) labels[i] = d->label(d, i);
    mhla_rng r = mhla_rng_make(seed, 0, 0, MHLA_PLACE_LABELS);
    for (int64_t i = d->count - 1; i > 0; i--) { /* Fisher and Yates */
        const int64_t j = mhla_rng_below(&r, (uint32_t)i + 1);
        const int32_t label = labels[i];
        labels[i] = labels[j];
        labels[j] = label;
    }
    free(d->shuffled);
    d->shuffled = labels;
    return MHLA_OK;
}

void mhla_dataset_tell(mhla_dataset *d) {
    pthread_mutex_lock(&d->lock);
    d->broken++;
    if (d->kept < MHLA_DATASET_SENTENCES && (d->sentences[d->kept] = strdup(mhla_message())) != NULL) d->kept++;
    pthread_mutex_unlock(&d->lock);
}

int64_t mhla_dataset_broken(mhla_dataset *d, int64_t *count, const char **sentences, int64_t capacity) {
    pthread_mutex_lock(&d->lock);
    *count = d->broken;
    const int64_t n = d->kept < capacity ? d->kept : capacity;
    for (int64_t i = 0; i < n; i++) sentences[i] = d->sentences[i];
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* ---- Arrays ---- */

static mhla_status array_get(mhla_dataset *d, int64_t index, mhla_image *image) {
    const mhla_dataset_array *a = d->own;
    MHLA_TRY(mhla_image_reserve(image, d->width, d->height, d->channels));
    const size_t n = (size_t)d->width * (size_t)d->height, C = (size_t)d->channels;
    const uint8_t *from = a->pixels + (size_t)index * a->pixel_step;
    if (!a->planar || C == 1)
        memcpy(image->data, from, n * C);
    else
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < C; c++) image->data[i * C + c] = from[c * n + i];
    return MHLA_OK;
}

static int array_label(const mhla_dataset *d, int64_t index) {
    const mhla_dataset_array *a = d->own;
    return a->labels[(size_t)index * a->label_step];
}

static void array_close(mhla_dataset *d) {
    mhla_dataset_array *a = d->own;
    for (size_t i = 0; i < sizeof a->owned / sizeof *a->owned; i++) free(a->owned[i]);
    for (int i = 0; i < a->map_count; i++) mhla_file_unmap(&a->maps[i]);
    free(a->maps);
    free(a);
}

mhla_status mhla_dataset_use_array(mhla_dataset *d, mhla_dataset_array *a, const char *name, size_t first) {
    d->own = a;
    d->get = array_get;
    d->label = array_label;
    d->close = array_close;
    int most = 0;
    for (int64_t i = 0; i < d->count; i++) {
        const int label = array_label(d, i);
        if (d->classes > 0 && label >= d->classes)
            return mhla_fail(MHLA_EDATA, "%s: image %lld has label %d (byte %zu): expected 0 to %d", name, (long long)i,
                             label, first + (size_t)i * a->label_step, d->classes - 1);
        if (label > most) most = label;
    }
    if (d->classes == 0) d->classes = most + 1;
    return MHLA_OK;
}
