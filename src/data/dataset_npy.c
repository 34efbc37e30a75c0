/* Pairs of .npy: SPLIT_images.npy of unsigned bytes [N,H,W] or [N,H,W,1 or 3], SPLIT_labels.npy of whole numbers [N]; or
 * of clips, SPLIT_clips.npy [N,F,H,W] or [N,F,H,W,1 or 3]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/npy.h"

typedef struct pair {
    mhla_npy images, labels;
    int *label; /* [count] */
} pair;

static mhla_status pair_get(mhla_dataset *d, int64_t index, mhla_image *image) {
    const pair *p = d->own;
    const int height = d->height * (d->frames ? d->frames : 1);
    MHLA_TRY(mhla_image_reserve(image, d->width, height, d->channels));
    const size_t n = (size_t)d->width * (size_t)height * (size_t)d->channels;
    memcpy(image->data, p->images.data + (size_t)index * n, n);
    return MHLA_OK;
}

static int pair_label(const mhla_dataset *d, int64_t index) { return ((const pair *)d->own)->label[index]; }

static void pair_close(mhla_dataset *d) {
    pair *p = d->own;
    mhla_npy_close(&p->images);
    mhla_npy_close(&p->labels);
    free(p->label);
    free(p);
}

static int64_t whole(const mhla_npy *a, int64_t i) {
    int32_t narrow;
    int64_t wide;
    switch (a->dtype) {
    case MHLA_IO_U8: return a->data[i];
    case MHLA_IO_I32: memcpy(&narrow, a->data + 4 * i, 4); return narrow;
    default: memcpy(&wide, a->data + 8 * i, 8); return wide;
    }
}

static mhla_status read_labels(mhla_dataset *d, pair *p, const char *path) {
    const mhla_npy *a = &p->labels;
    if (a->rank != 1 || (a->dtype != MHLA_IO_U8 && a->dtype != MHLA_IO_I32 && a->dtype != MHLA_IO_I64))
        return mhla_fail(MHLA_EDATA, "%s: expected one axis of uint8, int32 or int64", path);
    if (a->count != d->count)
        return mhla_fail(MHLA_EDATA, "%s: %lld labels for %lld images", path, (long long)a->count, (long long)d->count);
    p->label = malloc((size_t)d->count * sizeof *p->label);
    if (p->label == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its labels", path);
    const int64_t limit = d->classes > 0 ? d->classes : 1 << 20;
    int most = 0;
    for (int64_t i = 0; i < d->count; i++) {
        const int64_t label = whole(a, i);
        if (label < 0 || label >= limit)
            return mhla_fail(MHLA_EDATA, "%s: image %lld has label %lld: expected 0 to %lld", path, (long long)i,
                             (long long)label, (long long)limit - 1);
        p->label[i] = (int)label;
        if (label > most) most = (int)label;
    }
    if (d->classes == 0) d->classes = most + 1;
    return MHLA_OK;
}

/* What the folder has of this split: images or clips; path [4096] of them, *clips. 0: neither, nor of the other split; -1: of the other. */
static int find_arrays(char *path, const char *folder, mhla_split split, int *clips) {
    static const char *const names[2][2] = {{"train_images.npy", "train_clips.npy"},
                                            {"test_images.npy", "test_clips.npy"}};
    const int test = split == MHLA_SPLIT_TEST;
    for (*clips = 0; *clips < 2; ++*clips)
        if (mhla_dataset_path(path, folder, names[test][*clips])) return 1;
    for (*clips = 0; *clips < 2; ++*clips)
        if (mhla_dataset_path(path, folder, names[!test][*clips])) return -1;
    return 0;
}

/* [N,H,W], [N,H,W,1 or 3]; of clips [N,F,H,W], [N,F,H,W,1 or 3]. */
static mhla_status take_shape(mhla_dataset *d, const mhla_npy *a, int clips, const char *path) {
    const int64_t *side = a->shape + 1 + clips;
    const int64_t frames = clips && a->rank > 1 ? a->shape[1] : 0, channels = a->rank == 4 + clips ? side[2] : 1;
    const int fine = a->dtype == MHLA_IO_U8 && (a->rank == 3 + clips || a->rank == 4 + clips) && a->count > 0;
    if (!fine || (channels != 1 && channels != 3) || side[0] > 8192 || side[1] > 8192 || frames > 1024 ||
        (frames + !clips) * side[0] > 1 << 20)
        return mhla_fail(MHLA_EDATA, "%s: expected uint8 %s of 8192 x 8192 at most", path,
                         clips ? "clips [N,F,H,W] or [N,F,H,W,3]" : "images [N,H,W] or [N,H,W,3]");
    d->count = a->shape[0];
    d->frames = (int)frames;
    d->height = (int)side[0];
    d->width = (int)side[1];
    d->channels = (int)channels;
    return MHLA_OK;
}

mhla_status mhla_dataset_open_npy(mhla_dataset *d, const char *folder, mhla_split split) {
    char images[4096], labels[4096], name[32];
    const char *start = split == MHLA_SPLIT_TRAIN ? "train" : "test";
    int clips;
    const int found = find_arrays(images, folder, split, &clips);
    if (found == 0) return MHLA_OK;
    if (found < 0) return mhla_fail(MHLA_EIO, "%s: %s_%s.npy is missing", folder, start, clips ? "clips" : "images");
    snprintf(name, sizeof name, "%s_labels.npy", start);
    if (!mhla_dataset_path(labels, folder, name)) return mhla_fail(MHLA_EIO, "%s: %s is missing", folder, name);
    d->format = clips ? "clips" : "npy";
    MHLA_TRY(mhla_dataset_read_names(d, folder, "classes.txt", 1 << 20));
    pair *p = calloc(1, sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for the dataset", folder);
    d->own = p;
    d->get = pair_get;
    d->label = pair_label;
    d->close = pair_close;
    MHLA_TRY(mhla_npy_open(&p->images, images));
    MHLA_TRY(take_shape(d, &p->images, clips, images));
    MHLA_TRY(mhla_npy_open(&p->labels, labels));
    return read_labels(d, p, labels);
}
