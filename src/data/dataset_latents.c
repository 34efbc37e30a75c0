/* A folder of latents as a dataset: mean and deviation of each image, of which a latent is drawn (latents.h). */
#include "data/latents.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/rng.h"
#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/safetensors.h"

/* ---- What they are ---- */

int mhla_latents_there(const char *folder) {
    char path[4096];
    return mhla_dataset_path(path, folder, "latents.json");
}

void mhla_latents_path(char path[4096], const char *folder, mhla_split split, int64_t number) {
    snprintf(path, 4096, "%.4000s/%s-%05lld.safetensors", folder, split == MHLA_SPLIT_TRAIN ? "train" : "test",
             (long long)number);
}

static mhla_status read_sum(char to[65], const json_t *tree, const char *key, const char *path) {
    const char *text = "";
    MHLA_TRY(mhla_json_get_text(&text, tree, key, path));
    if (strlen(text) != 64) return mhla_fail(MHLA_EDATA, "%s: %s is not a SHA-256", path, key);
    snprintf(to, 65, "%s", text);
    return MHLA_OK;
}

static mhla_status read_about(mhla_latents_about *a, const json_t *tree, const char *path) {
    int64_t channels = 0, factor = 0, height = 0, width = 0, frames = 0, latent_frames = 0;
    const char *source = NULL;
    const json_t *names = NULL;
    MHLA_TRY(read_sum(a->vae, tree, "vae_sha256", path));
    MHLA_TRY(read_sum(a->data, tree, "data_sha256", path));
    MHLA_TRY(mhla_json_get_real(&a->scale, tree, "scale", path));
    MHLA_TRY(mhla_json_get_real(&a->shift, tree, "shift", path));
    MHLA_TRY(mhla_json_get_int(&channels, tree, "channels", 1, 256, path));
    MHLA_TRY(mhla_json_get_int(&factor, tree, "factor", 1, 1024, path));
    MHLA_TRY(mhla_json_get_int(&height, tree, "height", 1, 16384, path));
    MHLA_TRY(mhla_json_get_int(&width, tree, "width", 1, 16384, path));
    MHLA_TRY(mhla_json_get_int(&frames, tree, "frames", 1, 1024, path));
    MHLA_TRY(mhla_json_get_int(&latent_frames, tree, "latent_frames", 1, 1024, path));
    if ((frames == 0) != (latent_frames == 0) || latent_frames > frames)
        return mhla_fail(MHLA_EDATA, "%s: frames is %lld and latent_frames is %lld", path, (long long)frames,
                         (long long)latent_frames);
    MHLA_TRY(mhla_json_get_int(&a->train, tree, "train", 1, INT32_MAX, path));
    MHLA_TRY(mhla_json_get_int(&a->test, tree, "test", 1, INT32_MAX, path));
    MHLA_TRY(mhla_json_get_text(&source, tree, "source", path));
    MHLA_TRY(mhla_json_get_array(&names, tree, "classes", path));
    a->classes = (int)json_array_size(names);
    for (int i = 0; i < a->classes; i++)
        if (!json_is_string(json_array_get(names, (size_t)i)))
            return mhla_fail(MHLA_EDATA, "%s: classes[%d] is not a string", path, i);
    if (a->classes < 1 || a->train < 1 || a->test < 1 || factor < 1 || channels < 1 || height < 1 || width < 1 ||
        height % factor || width % factor || source == NULL || strlen(source) >= sizeof a->source)
        return mhla_fail(MHLA_EDATA,
                         "%s: one of source, classes, train, test, channels, factor, height and width is missing, or "
                         "the factor does not divide the sides",
                         path);
    snprintf(a->source, sizeof a->source, "%s", source);
    a->channels = (int)channels;
    a->factor = (int)factor;
    a->frames = (int)frames;
    a->latent_frames = (int)latent_frames;
    a->height = (int)height;
    a->width = (int)width;
    return MHLA_OK;
}

mhla_status mhla_latents_read(mhla_latents_about *about, json_t **tree, const char *folder) {
    char path[4096];
    json_t *read = NULL;
    *about = (mhla_latents_about){0};
    (void)mhla_dataset_path(path, folder, "latents.json");
    MHLA_TRY(mhla_json_load(&read, path));
    const mhla_status status = read_about(about, read, path);
    if (status == MHLA_OK && tree)
        *tree = read;
    else
        json_decref(read);
    return status;
}

mhla_status mhla_latents_check_source(const mhla_latents_about *about, const char *folder) {
    struct stat info;
    char sum[65];
    if (stat(about->source, &info) != 0) return MHLA_OK; /* latents do without it */
    MHLA_TRY(mhla_data_sum(sum, about->source));
    if (strcmp(sum, about->data) == 0) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: its images in %s have changed since these latents were made", folder,
                     about->source);
}

/* ---- As a dataset ---- */

typedef struct shard {
    mhla_safetensors *file;
    const mhla_stored *mean, *deviation, *labels;
} shard;

typedef struct latents {
    mhla_latents_about about;
    int64_t each; /* numbers of a latent */
    int64_t count;
    shard *shards; /* [count] */
} latents;

static mhla_status get(mhla_dataset *d, int64_t index, mhla_image *image) {
    (void)index, (void)image;
    return mhla_fail(MHLA_EINVAL, "the data are latents of %d channels, not images", d->channels);
}

static int label(const mhla_dataset *d, int64_t index) {
    const latents *l = d->own;
    int32_t value;
    memcpy(&value, l->shards[index / MHLA_LATENTS_SHARD].labels->data + 4 * (index % MHLA_LATENTS_SHARD), 4);
    return value;
}

static void close_shards(mhla_dataset *d) {
    latents *l = d->own;
    for (int64_t i = 0; l && i < l->count; i++) mhla_safetensors_close(l->shards[i].file);
    if (l) free(l->shards);
    free(l);
}

static mhla_status open_shard(shard *s, const latents *l, const char *path, int64_t images) {
    struct stat info;
    const mhla_latents_about *a = &l->about;
    const int clip = a->frames > 0;
    const int64_t h = a->height / a->factor, w = a->width / a->factor, pictures[] = {images, 2, a->channels, h, w},
                  clips[] = {images, 2, a->channels, a->latent_frames, h, w}, *shape = clip ? clips : pictures;
    if (stat(path, &info) != 0)
        return mhla_fail(MHLA_EDATA, "%s is missing: run the same mhla latents again to complete them", path);
    MHLA_TRY(mhla_safetensors_open(&s->file, path));
    MHLA_TRY(mhla_safetensors_need(&s->mean, s->file, "mean"));
    MHLA_TRY(mhla_safetensors_need(&s->deviation, s->file, "deviation"));
    MHLA_TRY(mhla_safetensors_need(&s->labels, s->file, "labels"));
    MHLA_TRY(mhla_stored_check(s->mean, 5 + clip, shape));
    MHLA_TRY(mhla_stored_check(s->deviation, 5 + clip, shape));
    MHLA_TRY(mhla_stored_check(s->labels, 1, shape));
    if (s->mean->dtype != MHLA_IO_F32 || s->deviation->dtype != MHLA_IO_F32 || s->labels->dtype != MHLA_IO_I32)
        return mhla_fail(MHLA_EDATA, "%s: expected mean and deviation as F32, labels as I32", path);
    for (int64_t i = 0; i < images; i++) {
        int32_t value;
        memcpy(&value, s->labels->data + 4 * i, 4);
        if (value < -1 || value >= a->classes)
            return mhla_fail(MHLA_EDATA, "%s: labels[%lld] is %d: expected -1 to %d", path, (long long)i, value,
                             a->classes - 1);
    }
    return MHLA_OK;
}

static mhla_status take_names(mhla_dataset *d, const json_t *names, const char *folder) {
    const int n = (int)json_array_size(names);
    d->names = calloc((size_t)n, sizeof *d->names);
    if (d->names == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its names", folder);
    d->classes = n;
    for (int i = 0; i < n; i++)
        if ((d->names[i] = strdup(json_string_value(json_array_get(names, (size_t)i)))) == NULL)
            return mhla_fail(MHLA_ENOMEM, "%s: no memory for its names", folder);
    return MHLA_OK;
}

mhla_status mhla_dataset_open_latents(mhla_dataset *d, const char *folder, mhla_split split) {
    char path[4096];
    json_t *tree = NULL;
    if (!mhla_latents_there(folder)) return MHLA_OK;
    latents *l = calloc(1, sizeof *l);
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for the dataset", folder);
    d->format = "latents";
    d->own = l;
    d->get = get;
    d->label = label;
    d->close = close_shards;
    MHLA_TRY(mhla_latents_read(&l->about, &tree, folder));
    const mhla_latents_about *a = &l->about;
    mhla_status status = take_names(d, json_object_get(tree, "classes"), folder);
    json_decref(tree);
    MHLA_TRY(status);
    d->count = split == MHLA_SPLIT_TRAIN ? a->train : a->test;
    d->channels = a->channels;
    l->each =
        (int64_t)a->channels * (a->frames ? a->latent_frames : 1) * (a->height / a->factor) * (a->width / a->factor);
    if (a->frames) {
        d->frames = a->latent_frames;
        d->height = a->height / a->factor;
        d->width = a->width / a->factor;
    }
    const int64_t shards = (d->count + MHLA_LATENTS_SHARD - 1) / MHLA_LATENTS_SHARD;
    l->shards = calloc((size_t)shards, sizeof *l->shards);
    if (l->shards == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for the dataset", folder);
    for (l->count = 0; l->count < shards && status == MHLA_OK;) {
        const int64_t left = d->count - l->count * MHLA_LATENTS_SHARD;
        mhla_latents_path(path, folder, split, l->count);
        status = open_shard(&l->shards[l->count], l, path, left < MHLA_LATENTS_SHARD ? left : MHLA_LATENTS_SHARD);
        l->count++; /* also of one that is half open: it is closed */
    }
    return status;
}

const mhla_latents_about *mhla_dataset_latents(const mhla_dataset *d) {
    return d->get == get ? &((const latents *)d->own)->about : NULL;
}

mhla_status mhla_dataset_draw(mhla_dataset *d, int64_t index, float *latent, int *of, double flip, uint64_t seed,
                              uint64_t epoch) {
    const latents *l = d->own;
    const shard *s = &l->shards[index / MHLA_LATENTS_SHARD];
    *of = mhla_dataset_label(d, index);
    if (label(d, index) < 0) return mhla_fail(MHLA_EDATA, "image %lld has no latent", (long long)index);
    mhla_rng turn = mhla_rng_make(seed, epoch, (uint64_t)index, MHLA_PLACE_FLIP);
    const int row = flip > 0.0 && (double)mhla_rng_uniform(&turn) < flip;
    const mhla_rng noise = mhla_rng_make(seed, epoch, (uint64_t)index, MHLA_PLACE_LATENT);
    const size_t from = (size_t)((2 * (index % MHLA_LATENTS_SHARD) + row) * l->each) * sizeof(float);
    mhla_rng_normals(&noise, latent, l->each);
    for (int64_t i = 0; i < l->each; i++) {
        float mean, deviation;
        memcpy(&mean, s->mean->data + from + sizeof mean * (size_t)i, sizeof mean);
        memcpy(&deviation, s->deviation->data + from + sizeof mean * (size_t)i, sizeof mean);
        latent[i] = mean + deviation * latent[i];
    }
    return MHLA_OK;
}
