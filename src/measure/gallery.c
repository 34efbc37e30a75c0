/* Sets of pictures to be measured: a split of a dataset, a folder with pictures in it, an array of them or of latents, or one. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/npy.h"
#include "measure/evaluate.h"
#include "measure/measure.h"

struct mhla_gallery {
    mhla_dataset *data; /* one of these three */
    char **files;
    mhla_npy array;
    uint8_t *decoded; /* [all,sides[0],sides[1],channels] of an array of latents, or NULL */
    int sides[2], channels;
    int64_t all, count; /* there, and used */
    int height, width;  /* of the centre; 0: all of it */
};

static int by_text(const void *x, const void *y) { return strcmp(*(char *const *)x, *(char *const *)y); }

/* Pictures that lie in `folder` itself. */
static mhla_status list_files(mhla_gallery *p, const char *folder) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    int64_t room = 0;
    mhla_status status = MHLA_OK;
    for (struct dirent *e; status == MHLA_OK && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.' || !mhla_image_name(e->d_name)) continue;
        if (p->all == room) {
            room = room * 2 + 256;
            char **files = realloc(p->files, (size_t)room * sizeof *files);
            if (files == NULL) {
                status = mhla_fail(MHLA_ENOMEM, "%s: no memory for listing it", folder);
                break;
            }
            p->files = files;
        }
        const size_t n = strlen(folder) + strlen(e->d_name) + 2;
        char *path = malloc(n);
        if (path == NULL) {
            status = mhla_fail(MHLA_ENOMEM, "%s: no memory for listing it", folder);
            break;
        }
        snprintf(path, n, "%s/%s", folder, e->d_name);
        p->files[p->all++] = path;
    }
    closedir(dir);
    if (p->all > 0) qsort(p->files, (size_t)p->all, sizeof *p->files, by_text);
    return status;
}

/* Pixels of latents [N,C,H,W], one image after the other. */
static mhla_status decode(mhla_gallery *p, const char *path, mhla_model *vae, size_t memory) {
    const mhla_npy *a = &p->array;
    mhla_codec_info c = {.size = sizeof c};
    MHLA_TRY(mhla_codec_query(vae, &c));
    const int64_t n = a->shape[0], each = a->count / n, most = 8192 / c.factor;
    if (a->shape[1] != c.latents || (c.outputs != 1 && c.outputs != 3) || a->shape[2] > most || a->shape[3] > most)
        return mhla_fail(MHLA_EDATA, "%s: latents [N,%lld,%lld,%lld]: the autoencoder makes %d channels of [N,%d,H,W]",
                         path, (long long)a->shape[1], (long long)a->shape[2], (long long)a->shape[3], c.outputs,
                         c.latents);
    const mhla_coding coding = {.size = sizeof coding,
                                .height = (int)a->shape[2] * c.factor,
                                .width = (int)a->shape[3] * c.factor,
                                .memory = memory};
    p->sides[0] = coding.height;
    p->sides[1] = coding.width;
    p->channels = c.outputs;
    const int64_t pixels = (int64_t)c.outputs * coding.height * coding.width;
    float *latent = malloc((size_t)each * sizeof *latent), *image = malloc((size_t)pixels * sizeof *image);
    p->decoded = malloc((size_t)(n * pixels));
    mhla_status status =
        latent && image && p->decoded ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for its images", path);
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        memcpy(latent, a->data + (size_t)(i * each) * sizeof *latent, (size_t)each * sizeof *latent);
        status = mhla_model_decode(vae, image, latent, 1, &coding);
        mhla_picture picture = {.size = sizeof picture};
        if (status == MHLA_OK)
            status = mhla_picture_tile(&picture, image, 1, c.outputs, coding.height, coding.width, 1);
        if (status == MHLA_OK) memcpy(p->decoded + i * pixels, picture.pixels, (size_t)pixels);
        mhla_picture_free(&picture);
    }
    free(latent);
    free(image);
    return status;
}

static mhla_status open_array(mhla_gallery *p, const char *path, mhla_model *vae, size_t memory) {
    MHLA_TRY(mhla_npy_open(&p->array, path));
    const mhla_npy *a = &p->array;
    p->all = a->rank > 0 ? a->shape[0] : 0;
    if (a->dtype == MHLA_IO_F32 && a->rank == 4 && a->count > 0) {
        if (vae) return decode(p, path, vae, memory);
        return mhla_fail(MHLA_EDATA, "%s: latents [N,%lld,%lld,%lld]: an autoencoder (vae) has to decode them", path,
                         (long long)a->shape[1], (long long)a->shape[2], (long long)a->shape[3]);
    }
    if (a->dtype != MHLA_IO_U8 || (a->rank != 3 && a->rank != 4) || (a->rank == 4 && a->shape[3] != 3) ||
        a->count == 0 || a->shape[1] > 8192 || a->shape[2] > 8192)
        return mhla_fail(MHLA_EDATA, "%s: expected uint8 images [N,H,W] or [N,H,W,3] of 8192 x 8192 at most", path);
    p->all = a->shape[0];
    return MHLA_OK;
}

static mhla_status open_picture(mhla_gallery *p, const char *path) {
    p->files = calloc(1, sizeof *p->files);
    if (p->files) p->files[0] = strdup(path);
    if (p->files == NULL || p->files[0] == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for opening it", path);
    p->all = 1;
    return MHLA_OK;
}

static mhla_status check_split(const char *split) {
    if (split == NULL || strcmp(split, "train") == 0 || strcmp(split, "test") == 0) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "split is \"%s\": expected test or train", split);
}

static mhla_status open_source(mhla_gallery *p, const char *source, const char *split, mhla_model *vae, size_t memory) {
    char folder[MHLA_RUN_PATH];
    struct stat info;
    const int train = split && strcmp(split, "train") == 0;
    MHLA_TRY(check_split(split));
    if (stat(source, &info) == 0 && !S_ISDIR(info.st_mode))
        return mhla_image_name(source) ? open_picture(p, source) : open_array(p, source, vae, memory);
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, source));
    MHLA_TRY(list_files(p, folder));
    if (p->all > 0) return MHLA_OK;
    MHLA_TRY(mhla_dataset_open_images(&p->data, folder, train ? MHLA_SPLIT_TRAIN : MHLA_SPLIT_TEST));
    p->all = mhla_dataset_count(p->data);
    return MHLA_OK;
}

mhla_status mhla_gallery_open(mhla_gallery **pictures, const char *source, const char *split, int64_t limit) {
    return mhla_gallery_decode(pictures, source, split, limit, NULL, 0);
}

/* Opened: how many of them are used; or not. */
static mhla_status finish(mhla_gallery **pictures, mhla_gallery *p, mhla_status status, int64_t limit) {
    if (status != MHLA_OK) {
        mhla_gallery_free(p);
        return status;
    }
    p->count = limit > 0 && limit < p->all ? limit : p->all;
    *pictures = p;
    return MHLA_OK;
}

mhla_status mhla_gallery_decode(mhla_gallery **pictures, const char *source, const char *split, int64_t limit,
                                mhla_model *vae, size_t memory) {
    *pictures = NULL;
    mhla_gallery *p = calloc(1, sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for opening it", source);
    const mhla_status status = open_source(p, source, split, vae, memory);
    return finish(pictures, p, status, limit);
}

static mhla_status check_clips(const mhla_dataset *d, const char *source, mhla_extent e) {
    const int frames = mhla_dataset_frames(d), height = mhla_dataset_height(d), width = mhla_dataset_width(d);
    if (frames == 0) return mhla_fail(MHLA_EINVAL, "%s holds images, and the model makes clips", source);
    if (frames == e.frames && height == e.height && width == e.width) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s holds clips of %d frames of %d x %d, and the model makes %lld of %lld x %lld",
                     source, frames, width, height, (long long)e.frames, (long long)e.width, (long long)e.height);
}

mhla_status mhla_gallery_open_clips(mhla_gallery **clips, const char *source, const char *split, int64_t limit,
                                    mhla_extent extent) {
    char folder[MHLA_RUN_PATH];
    *clips = NULL;
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, source));
    mhla_gallery *p = calloc(1, sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for opening it", source);
    const int train = split && strcmp(split, "train") == 0;
    mhla_status status = check_split(split);
    if (status == MHLA_OK) status = mhla_dataset_open(&p->data, folder, train ? MHLA_SPLIT_TRAIN : MHLA_SPLIT_TEST);
    if (status == MHLA_OK) status = check_clips(p->data, source, extent);
    if (status == MHLA_OK) p->all = mhla_dataset_count(p->data);
    return finish(clips, p, status, limit);
}

void mhla_gallery_free(mhla_gallery *p) {
    if (p == NULL) return;
    mhla_dataset_free(p->data);
    for (int64_t i = 0; p->files && i < p->all; i++) free(p->files[i]);
    free(p->files);
    mhla_npy_close(&p->array);
    free(p->decoded);
    free(p);
}

int64_t mhla_gallery_count(const mhla_gallery *p) { return p->count; }
int64_t mhla_gallery_all(const mhla_gallery *p) { return p->all; }
int64_t mhla_gallery_index(const mhla_gallery *p, int64_t i) {
    return p->count == p->all ? i : (int64_t)((double)i * (double)p->all / (double)p->count);
}
const char *mhla_gallery_left_out(mhla_gallery *p) {
    int64_t count;
    const char *sentence = NULL;
    if (p->data) mhla_dataset_broken(p->data, &count, &sentence, 1);
    return sentence;
}
int mhla_gallery_classes(const mhla_gallery *p) { return p->data ? mhla_dataset_classes(p->data) : 0; }
const char *mhla_gallery_class_name(const mhla_gallery *p, int label) {
    return p->data ? mhla_dataset_class_name(p->data, label) : "";
}

void mhla_gallery_frame(mhla_gallery *p, int height, int width) {
    p->height = height;
    p->width = width;
}

/* The centre, with black around what is smaller. */
static mhla_status frame(mhla_image *image, int height, int width) {
    mhla_image whole = *image;
    const size_t C = (size_t)image->channels;
    const int dy = (height - whole.height) / 2, dx = (width - whole.width) / 2; /* from the old to the new */
    *image = (mhla_image){0};
    const mhla_status status = mhla_image_reserve(image, width, height, whole.channels);
    if (status == MHLA_OK) {
        memset(image->data, 0, (size_t)height * (size_t)width * C);
        const int left = dx > 0 ? dx : 0, right = dx + whole.width < width ? dx + whole.width : width;
        for (int y = dy > 0 ? dy : 0; y < height && y - dy < whole.height; y++)
            memcpy(image->data + ((size_t)y * (size_t)width + (size_t)left) * C,
                   whole.data + ((size_t)(y - dy) * (size_t)whole.width + (size_t)(left - dx)) * C,
                   (size_t)(right - left) * C);
    }
    mhla_image_free(&whole);
    return status;
}

static mhla_status read_one(mhla_gallery *p, int64_t index, mhla_image *image, int *label) {
    *label = -1;
    if (p->data) return mhla_dataset_get(p->data, index, image, label);
    if (p->files) return mhla_image_read(image, p->files[index], 0);
    const int channels = p->decoded ? p->channels : p->array.rank == 4 ? 3 : 1;
    const int64_t height = p->decoded ? p->sides[0] : p->array.shape[1],
                  width = p->decoded ? p->sides[1] : p->array.shape[2];
    MHLA_TRY(mhla_image_reserve(image, (int)width, (int)height, channels));
    const size_t bytes = (size_t)image->width * (size_t)image->height * (size_t)channels;
    memcpy(image->data, (p->decoded ? p->decoded : p->array.data) + (size_t)index * bytes, bytes);
    return MHLA_OK;
}

mhla_status mhla_gallery_get(mhla_gallery *p, int64_t i, mhla_image *image, int *label) {
    MHLA_TRY(read_one(p, mhla_gallery_index(p, i), image, label));
    if (p->height == 0 || (p->height == image->height && p->width == image->width)) return MHLA_OK;
    return frame(image, p->height, p->width);
}
