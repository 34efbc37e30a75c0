/* Opening safetensors: one file, or the files that an index names, as one list of tensors found by name. */
#include "file/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/file.h"
#include "file/json.h"
#include "file/safetensors_header.h"
#include "file/text.h"
#include "file/torch_file.h"

enum { SHARDS_MOST = 4096, PATH_MOST = 4096 };
#define INDEX_NAME "model.safetensors.index.json"

typedef struct shard {
    char *path;
    mhla_file map;
    mhla_st_header header;
} shard;

struct mhla_safetensors {
    char *path;
    shard *shards;
    int64_t shard_count;
    mhla_stored *tensors;        /* [count], file after file */
    const mhla_stored **by_name; /* [count], sorted */
    int64_t count;
    const mhla_pair *metadata; /* [pairs] of the first file */
    int64_t pairs;
};

static mhla_status no_memory(const char *path) { return mhla_fail(MHLA_ENOMEM, "%s: no memory to open it", path); }

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* folder/name, into path [PATH_MOST] */
static mhla_status join(char *path, const char *folder, size_t folder_length, const char *name) {
    const char *slash = folder_length && folder[folder_length - 1] != '/' ? "/" : "";
    if (snprintf(path, PATH_MOST, "%.*s%s%s", (int)folder_length, folder, slash, name) >= PATH_MOST)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    return MHLA_OK;
}

/* ---- Finding ---- */

static int stored_by_name(const void *a, const void *b) {
    return strcmp((*(const mhla_stored *const *)a)->name, (*(const mhla_stored *const *)b)->name);
}

static const mhla_stored *search(const mhla_stored *const *sorted, int64_t count, const char *name) {
    const mhla_stored key = {.name = name}, *at = &key;
    if (count == 0) return NULL;
    const mhla_stored *const *found = bsearch(&at, sorted, (size_t)count, sizeof *sorted, stored_by_name);
    return found ? *found : NULL;
}

/* Pointers to tensors [count], sorted by name; NULL without memory. */
static const mhla_stored **sort_names(const mhla_stored *tensors, int64_t count) {
    const mhla_stored **sorted = malloc((size_t)(count ? count : 1) * sizeof *sorted);
    if (sorted == NULL) return NULL;
    for (int64_t i = 0; i < count; i++) sorted[i] = &tensors[i];
    qsort(sorted, (size_t)count, sizeof *sorted, stored_by_name);
    return sorted;
}

/* ---- Opening ---- */

/* A safetensors file, or what torch.save wrote. */
static mhla_status read_bytes(shard *s, const unsigned char *bytes, size_t size) {
    if (mhla_torch_file_is(bytes, size)) return mhla_torch_file_read(&s->header, bytes, size, s->path);
    const mhla_status status = mhla_st_header_read(&s->header, bytes, size, s->path);
    const char *ending = strrchr(s->path, '.');
    if (status != MHLA_EDATA || ending == NULL || (strcmp(ending, ".pth") != 0 && strcmp(ending, ".pt") != 0))
        return status;
    return mhla_fail(status, "%s: neither torch.save's formats nor safetensors: not a file of tensors", s->path);
}

static mhla_status open_shard(shard *s, const char *path) {
    s->path = strdup(path);
    if (s->path == NULL) return no_memory(path);
    MHLA_TRY(mhla_file_map(&s->map, path));
    return read_bytes(s, s->map.data, s->map.size);
}

/* After all shards have been read: the order of names, the metadata of the first file. */
static mhla_status finish(mhla_safetensors *f) {
    f->by_name = sort_names(f->tensors, f->count);
    if (f->by_name == NULL) return no_memory(f->path);
    if (f->shard_count) f->metadata = f->shards->header.metadata, f->pairs = f->shards->header.pairs;
    return MHLA_OK;
}

static mhla_status open_single(mhla_safetensors *f) {
    f->shards = calloc(1, sizeof *f->shards);
    if (f->shards == NULL) return no_memory(f->path);
    f->shard_count = 1;
    MHLA_TRY(open_shard(f->shards, f->path));
    f->tensors = f->shards->header.tensors, f->shards->header.tensors = NULL;
    f->count = f->shards->header.count;
    return finish(f);
}

static int text_order(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The names of files in the index, sorted and once each: names [count], which borrows from the map. */
static mhla_status shard_names(const char **names, int64_t *count, const json_t *map, const char *index) {
    const char *key;
    const json_t *value;
    *count = 0;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) {
        const char *name = json_string_value(value);
        if (name == NULL)
            return mhla_fail(MHLA_EDATA, "%s: the file of tensor %s is %s, not text", index, MHLA_QUOTE(key),
                             mhla_json_type_text(value));
        if (strchr(name, '/') || *name == '\0' || *name == '.')
            return mhla_fail(MHLA_EDATA, "%s: the file of tensor %s is %s: expected a plain name beside the index",
                             index, MHLA_QUOTE(key), MHLA_QUOTE(name));
        names[(*count)++] = name;
    }
    if (*count) qsort(names, (size_t)*count, sizeof *names, text_order);
    int64_t unique = 0;
    for (int64_t i = 0; i < *count; i++)
        if (i == 0 || strcmp(names[i], names[unique - 1]) != 0) names[unique++] = names[i];
    *count = unique;
    if (unique > SHARDS_MOST)
        return mhla_fail(MHLA_EDATA, "%s: %lld files, more than %d", index, (long long)unique, SHARDS_MOST);
    return MHLA_OK;
}

/* Appends the tensors of shard number s that the index puts there. */
static void take_listed(mhla_safetensors *f, int64_t s, const char *name, const json_t *map) {
    const mhla_st_header *h = &f->shards[s].header;
    for (int64_t i = 0; i < h->count; i++) {
        const char *where = json_string_value(json_object_get(map, h->tensors[i].name));
        if (where && strcmp(where, name) == 0) f->tensors[f->count++] = h->tensors[i];
    }
}

/* Is every tensor of the index in the file where it should be? */
static mhla_status check_listed(const mhla_safetensors *f, const json_t *map) {
    const char *key;
    const json_t *value;
    if ((size_t)f->count == json_object_size(map)) return MHLA_OK;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) {
        if (mhla_safetensors_find(f, key) == NULL)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s should be in %s, which has none of that name", f->path,
                             MHLA_QUOTE(key), MHLA_QUOTE(json_string_value(value)));
    }
    return MHLA_OK;
}

static mhla_status open_index(mhla_safetensors *f, const char *index) {
    json_t *tree = NULL;
    const char **names = NULL;
    const json_t *map = NULL;
    char path[PATH_MOST];
    int64_t count = 0;
    mhla_status status = mhla_json_load(&tree, index);
    if (status == MHLA_OK) status = mhla_json_get_object(&map, tree, "weight_map", index);
    if (status == MHLA_OK && map == NULL) status = mhla_fail(MHLA_EDATA, "%s: \"weight_map\" is missing", index);
    if (status != MHLA_OK) goto done;
    const size_t listed = json_object_size(map);
    names = malloc((listed + 1) * sizeof *names);
    f->tensors = malloc((listed + 1) * sizeof *f->tensors);
    status = names && f->tensors ? shard_names(names, &count, map, index) : no_memory(index);
    if (status != MHLA_OK) goto done;
    f->shards = calloc((size_t)count + 1, sizeof *f->shards);
    if (f->shards == NULL) status = no_memory(index);
    const char *slash = strrchr(index, '/');
    for (int64_t i = 0; i < count && status == MHLA_OK; i++) {
        status = join(path, index, slash ? (size_t)(slash - index) + 1 : 0, names[i]);
        f->shard_count = i + 1;
        if (status == MHLA_OK) status = open_shard(&f->shards[i], path);
        if (status == MHLA_OK) take_listed(f, i, names[i], map);
    }
    if (status == MHLA_OK) status = finish(f);
    if (status == MHLA_OK) status = check_listed(f, map);
done:
    free(names);
    json_decref(tree);
    return status;
}

/* Checkpoints of training may hold an average of the weights, too, and state.json says which of the two did better where
 * they were tested. What cannot be read there decides nothing. */
static int average_counts(const char *folder) {
    char path[PATH_MOST];
    json_t *tree = NULL;
    struct stat info;
    if (join(path, folder, strlen(folder), "ema.safetensors") != MHLA_OK || stat(path, &info) != 0) return 0;
    if (join(path, folder, strlen(folder), "state.json") != MHLA_OK || stat(path, &info) != 0) return 0;
    if (mhla_json_load(&tree, path) != MHLA_OK) return 0;
    const char *counts = json_string_value(json_object_get(tree, "weights"));
    const int average = counts && strcmp(counts, "ema") == 0 &&
                        json_equal(json_object_get(tree, "step"), json_object_get(tree, "evaluated_step"));
    json_decref(tree);
    return average;
}

/* What a folder holds: model.safetensors (or the average beside it), else its index, else PyTorch's, else a run's best or
 * last, else the one *.safetensors. */
static mhla_status find_in_folder(char *path, const char *folder) {
    static const char *const usual[] = {"model.safetensors",
                                        INDEX_NAME,
                                        "pytorch_model.bin",
                                        "pytorch_model.bin.index.json",
                                        "diffusion_pytorch_model.safetensors",
                                        "diffusion_pytorch_model.safetensors.index.json",
                                        "diffusion_pytorch_model.bin",
                                        "model.fp16.safetensors",
                                        "model.safetensors.index.fp16.json",
                                        "diffusion_pytorch_model.fp16.safetensors",
                                        "diffusion_pytorch_model.safetensors.index.fp16.json",
                                        "best/model.safetensors",
                                        "last/model.safetensors"};
    struct stat info;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        MHLA_TRY(join(path, folder, strlen(folder), usual[i]));
        if (stat(path, &info) != 0) continue;
        if (!ends_with(path, "/model.safetensors")) return MHLA_OK;
        char inner[PATH_MOST];
        snprintf(inner, sizeof inner, "%.*s", (int)(strrchr(path, '/') - path), path);
        return average_counts(inner) ? join(path, inner, strlen(inner), "ema.safetensors") : MHLA_OK;
    }
    DIR *list = opendir(folder);
    if (list == NULL) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    int found = 0;
    mhla_status status = MHLA_OK;
    for (const struct dirent *entry; (entry = readdir(list)) != NULL && status == MHLA_OK;)
        if (ends_with(entry->d_name, ".safetensors") && found++ == 0)
            status = join(path, folder, strlen(folder), entry->d_name);
    closedir(list);
    MHLA_TRY(status);
    if (found == 0) return mhla_fail(MHLA_EIO, "%s: no safetensors file in this folder", folder);
    if (found > 1)
        return mhla_fail(MHLA_EIO, "%s: %d safetensors files and no %s: name one of them", folder, found, INDEX_NAME);
    return MHLA_OK;
}

mhla_status mhla_safetensors_open(mhla_safetensors **file, const char *path) {
    *file = NULL;
    char inside[PATH_MOST];
    struct stat info;
    if (stat(path, &info) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        MHLA_TRY(find_in_folder(inside, path));
        path = inside;
    }
    mhla_safetensors *f = calloc(1, sizeof *f);
    if (f) f->path = strdup(path);
    mhla_status status = f == NULL || f->path == NULL ? no_memory(path)
                         : ends_with(path, ".json")   ? open_index(f, path)
                                                      : open_single(f);
    if (status == MHLA_OK)
        *file = f;
    else
        mhla_safetensors_close(f);
    return status;
}

mhla_status mhla_safetensors_open_bytes(mhla_safetensors **file, const void *bytes, size_t size, const char *name) {
    *file = NULL;
    mhla_safetensors *f = calloc(1, sizeof *f);
    if (f) f->path = strdup(name), f->shards = calloc(1, sizeof *f->shards);
    if (f && f->shards) f->shard_count = 1, f->shards->path = strdup(name);
    mhla_status status = MHLA_OK;
    if (f == NULL || f->path == NULL || f->shards == NULL || f->shards->path == NULL)
        status = no_memory(name);
    else
        status = read_bytes(f->shards, bytes, size);
    if (status == MHLA_OK) {
        f->tensors = f->shards->header.tensors, f->shards->header.tensors = NULL;
        f->count = f->shards->header.count;
        status = finish(f);
    }
    if (status == MHLA_OK)
        *file = f;
    else
        mhla_safetensors_close(f);
    return status;
}

void mhla_safetensors_close(mhla_safetensors *f) {
    if (f == NULL) return;
    for (int64_t i = 0; i < f->shard_count; i++) {
        mhla_st_header_free(&f->shards[i].header);
        mhla_file_unmap(&f->shards[i].map);
        free(f->shards[i].path);
    }
    free(f->shards);
    free(f->tensors);
    free(f->by_name);
    free(f->path);
    free(f);
}

/* ---- Looking ---- */

const char *mhla_safetensors_path(const mhla_safetensors *f) { return f->path; }
int64_t mhla_safetensors_count(const mhla_safetensors *f) { return f->count; }
const mhla_stored *mhla_safetensors_at(const mhla_safetensors *f, int64_t i) { return &f->tensors[i]; }
const mhla_stored *mhla_safetensors_find(const mhla_safetensors *f, const char *name) {
    return search(f->by_name, f->count, name);
}

mhla_status mhla_safetensors_need(const mhla_stored **tensor, const mhla_safetensors *f, const char *name) {
    *tensor = mhla_safetensors_find(f, name);
    if (*tensor) return MHLA_OK;
    mhla_nearest nearest = mhla_nearest_begin(name);
    for (int64_t i = 0; i < f->count; i++) mhla_nearest_offer(&nearest, f->by_name[i]->name);
    if (nearest.best)
        return mhla_fail(MHLA_EDATA, "%s: no tensor %s; the nearest is %s", f->path, MHLA_QUOTE(name),
                         MHLA_QUOTE(nearest.best));
    return mhla_fail(MHLA_EDATA, "%s: no tensor %s among its %lld", f->path, MHLA_QUOTE(name), (long long)f->count);
}

const char *mhla_safetensors_metadata(const mhla_safetensors *f, const char *key) {
    for (int64_t i = 0; i < f->pairs; i++)
        if (strcmp(f->metadata[i].key, key) == 0) return f->metadata[i].value;
    return NULL;
}
int64_t mhla_safetensors_metadata_count(const mhla_safetensors *f) { return f->pairs; }
void mhla_safetensors_metadata_at(const mhla_safetensors *f, int64_t i, const char **key, const char **value) {
    *key = f->metadata[i].key, *value = f->metadata[i].value;
}

int mhla_stored_alike(const mhla_stored *t, int rank, const int64_t *shape) {
    for (int i = 0; i < rank || i < t->rank; i++)
        if ((i < t->rank ? t->shape[i] : 1) != (i < rank ? shape[i] : 1)) return 0;
    return 1;
}

mhla_status mhla_stored_check(const mhla_stored *t, int rank, const int64_t *shape) {
    int same = t->rank == rank;
    for (int i = 0; i < rank && same; i++) same = t->shape[i] == shape[i];
    if (same) return MHLA_OK;
    char found[128], expected[128];
    return mhla_fail(MHLA_EDATA, "%s: tensor %s has the shape %s, expected %s", t->path, MHLA_QUOTE(t->name),
                     mhla_io_shape_text(found, sizeof found, t->rank, t->shape),
                     mhla_io_shape_text(expected, sizeof expected, rank, shape));
}

mhla_status mhla_stored_read(float *to, const mhla_stored *t) {
    if (!mhla_io_dtype_is_float(t->dtype))
        return mhla_fail(MHLA_EDATA, "%s: tensor %s is of dtype %s, expected F32, F64, BF16 or F16", t->path,
                         MHLA_QUOTE(t->name), mhla_io_dtype_text(t->dtype));
    mhla_io_to_f32(to, t->data, t->dtype, (size_t)t->count);
    return MHLA_OK;
}

mhla_status mhla_safetensors_load(float *to, const mhla_safetensors *f, const char *name, int rank,
                                  const int64_t *shape) {
    const mhla_stored *t;
    MHLA_TRY(mhla_safetensors_need(&t, f, name));
    MHLA_TRY(mhla_stored_check(t, rank, shape));
    return mhla_stored_read(to, t);
}
