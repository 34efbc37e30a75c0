/* A folder of pictures per class, as ImageNet is laid out. Listing follows symbolic links, but not in circles, and goes as deep
 * as the folders do; names that begin with a dot are left out. The order is that of torchvision's ImageFolder: classes by
 * name, in a class folder by folder, there by name. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/file.h"

enum { MAX_DEPTH = 32, MAX_CLASSES = 1 << 20 };

typedef struct entry {
    size_t path; /* offset in the pool */
    int label;
    int broken; /* told once; under the dataset's lock */
} entry;

typedef struct listing {
    char *pool; /* paths, each with its end */
    size_t used, capacity;
    entry *entries;
    int64_t count, room;
} listing;

static mhla_status no_memory(const char *path) { return mhla_fail(MHLA_ENOMEM, "%s: no memory for listing it", path); }

static mhla_status add(listing *l, const char *path, int label) {
    const size_t n = strlen(path) + 1;
    if (l->used + n > l->capacity) {
        const size_t capacity = (l->capacity + n) * 2;
        char *pool = realloc(l->pool, capacity);
        if (pool == NULL) return no_memory(path);
        l->pool = pool;
        l->capacity = capacity;
    }
    if (l->count == l->room) {
        const int64_t room = l->room * 2 + 256;
        entry *entries = realloc(l->entries, (size_t)room * sizeof *entries);
        if (entries == NULL) return no_memory(path);
        l->entries = entries;
        l->room = room;
    }
    l->entries[l->count++] = (entry){l->used, label, 0};
    memcpy(l->pool + l->used, path, n);
    l->used += n;
    return MHLA_OK;
}

/* Pictures that others read and we do not: told rather than passed over. */
static int is_foreign(const char *name) {
    static const char *const endings[] = {".webp", ".gif", ".bmp", ".tif",  ".tiff",
                                          ".ppm",  ".pgm", ".jp2", ".avif", ".heic"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0) return 1;
    return 0;
}

/* Only the first bytes: what they say about the picture must make sense. */
static mhla_status look_at(const char *path) {
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    int width, height, channels;
    const mhla_status status = mhla_image_probe(&width, &height, &channels, file.data, file.size, path);
    mhla_file_unmap(&file);
    return status;
}

typedef struct folder_id {
    dev_t device;
    ino_t inode;
} folder_id;

/* All pictures below `path`; above[0..depth-1] are the folders on the way. */
static mhla_status list(mhla_dataset *d, listing *l, const char *path, int label, folder_id *above, int depth) {
    struct stat info;
    DIR *dir = opendir(path);
    if (dir == NULL || fstat(dirfd(dir), &info) != 0) {
        const int why = errno;
        if (dir) closedir(dir);
        mhla_fail(MHLA_EIO, "%s: %s", path, strerror(why));
        mhla_dataset_tell(d); /* a folder that may not be read is like a picture that may not */
        return MHLA_OK;
    }
    for (int i = 0; i < depth; i++)
        if (above[i].device == info.st_dev && above[i].inode == info.st_ino) { /* a link back */
            closedir(dir);
            return MHLA_OK;
        }
    above[depth] = (folder_id){info.st_dev, info.st_ino};
    mhla_status status = MHLA_OK;
    for (struct dirent *e; status == MHLA_OK && (e = readdir(dir)) != NULL;) {
        char name[4096];
        if (e->d_name[0] == '.') continue;
        const int fits = snprintf(name, sizeof name, "%s/%s", path, e->d_name) < (int)sizeof name;
        int folder = e->d_type == DT_DIR;
        if (fits && (e->d_type == DT_LNK || e->d_type == DT_UNKNOWN))
            folder = stat(name, &info) == 0 && S_ISDIR(info.st_mode);
        if (folder || !fits) {
            if (fits && depth + 1 < MAX_DEPTH) {
                status = list(d, l, name, label, above, depth + 1);
            } else {
                mhla_fail(MHLA_EIO, "%.200s...: too deep", name);
                mhla_dataset_tell(d);
            }
        } else if (mhla_dataset_is_y4m(name)) {
            mhla_fail(MHLA_EDATA, "%s: a clip: clips.json beside the classes' folders says how many frames are learned",
                      name);
            mhla_dataset_tell(d);
        } else if (is_foreign(e->d_name)) {
            mhla_fail(MHLA_ENOTSUP, "%s: only PNG and JPEG are read", name);
            mhla_dataset_tell(d);
        } else if (mhla_image_name(e->d_name)) {
            if (look_at(name) != MHLA_OK)
                mhla_dataset_tell(d);
            else
                status = add(l, name, label);
        }
    }
    closedir(dir);
    return status;
}

static int by_folder_and_name(const void *x, const void *y, void *pool) {
    const entry *a = x, *b = y;
    if (a->label != b->label) return a->label < b->label ? -1 : 1;
    const char *p = (const char *)pool + a->path, *q = (const char *)pool + b->path;
    const size_t n = (size_t)(strrchr(p, '/') - p), m = (size_t)(strrchr(q, '/') - q);
    const int folders = memcmp(p, q, n < m ? n : m);
    if (folders != 0) return folders;
    if (n != m) return n < m ? -1 : 1;
    return strcmp(p + n, q + m);
}

static int by_text(const void *x, const void *y) { return strcmp(*(char *const *)x, *(char *const *)y); }

mhla_status mhla_dataset_list_classes(mhla_dataset *d, const char *path) {
    DIR *dir = opendir(path);
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    mhla_status status = MHLA_OK;
    int room = 0;
    for (struct dirent *e; status == MHLA_OK && (e = readdir(dir)) != NULL;) {
        char name[4096];
        struct stat info;
        if (e->d_name[0] == '.' || snprintf(name, sizeof name, "%s/%s", path, e->d_name) >= (int)sizeof name) continue;
        if (stat(name, &info) != 0 || !S_ISDIR(info.st_mode)) continue;
        if (d->classes == MAX_CLASSES) {
            status = mhla_fail(MHLA_EDATA, "%s: more than %d classes", path, MAX_CLASSES);
        } else if (d->classes == room) {
            room = room * 2 + 64;
            char **names = realloc(d->names, (size_t)room * sizeof *names);
            if (names == NULL)
                status = no_memory(path);
            else
                d->names = names;
        }
        if (status == MHLA_OK && (d->names[d->classes] = strdup(e->d_name)) == NULL) status = no_memory(path);
        if (status == MHLA_OK) d->classes++;
    }
    closedir(dir);
    if (d->classes > 0) qsort(d->names, (size_t)d->classes, sizeof *d->names, by_text);
    return status;
}

static mhla_status folder_get(mhla_dataset *d, int64_t index, mhla_image *image) {
    listing *l = d->own;
    const mhla_status status = mhla_image_read(image, l->pool + l->entries[index].path, 3);
    if (status != MHLA_OK && status != MHLA_ENOMEM) {
        pthread_mutex_lock(&d->lock);
        const int first = !l->entries[index].broken;
        l->entries[index].broken = 1;
        pthread_mutex_unlock(&d->lock);
        if (first) mhla_dataset_tell(d);
    }
    return status;
}

static int folder_label(const mhla_dataset *d, int64_t index) {
    return ((const listing *)d->own)->entries[index].label;
}

static const char *folder_file(const mhla_dataset *d, int64_t index) {
    const listing *l = d->own;
    return l->pool + l->entries[index].path;
}

static void folder_close(mhla_dataset *d) {
    listing *l = d->own;
    free(l->pool);
    free(l->entries);
    free(l);
}

mhla_status mhla_dataset_find_split(char *part, char *classes, const char *folder, mhla_split split) {
    static const char *const tests[] = {"val", "validation", "valid", "test"};
    const int has_train = mhla_dataset_path(classes, folder, "train");
    int has_test = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests && !has_test; i++)
        has_test = mhla_dataset_path(part, folder, tests[i]);
    if (!has_train && !has_test) { /* one folder for all */
        if (snprintf(part, 4096, "%s", folder) >= 4096)
            return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
        memcpy(classes, part, 4096);
        return MHLA_OK;
    }
    if (split == MHLA_SPLIT_TRAIN && !has_train) return mhla_fail(MHLA_EIO, "%s: train is missing", folder);
    if (split == MHLA_SPLIT_TEST && !has_test)
        return mhla_fail(MHLA_EIO, "%s: none of val, validation, valid, test exists", folder);
    if (split == MHLA_SPLIT_TRAIN)
        memcpy(part, classes, 4096);
    else if (!has_train)
        memcpy(classes, part, 4096);
    return MHLA_OK;
}

mhla_status mhla_dataset_check_classes(const mhla_dataset *d, const char *part, const char *classes) {
    if (strcmp(part, classes) == 0) return MHLA_OK;
    DIR *dir = opendir(part);
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s", part, strerror(errno));
    mhla_status status = MHLA_OK;
    for (struct dirent *e; status == MHLA_OK && (e = readdir(dir)) != NULL;) {
        char name[4096];
        const char *key = e->d_name;
        struct stat info;
        if (key[0] == '.' || snprintf(name, sizeof name, "%s/%s", part, key) >= (int)sizeof name) continue;
        if (stat(name, &info) != 0 || !S_ISDIR(info.st_mode)) continue;
        if (bsearch(&key, d->names, (size_t)d->classes, sizeof *d->names, by_text) == NULL)
            status = mhla_fail(MHLA_EDATA, "%s: no class of this name in %s", name, classes);
    }
    closedir(dir);
    return status;
}

mhla_status mhla_dataset_open_folder(mhla_dataset *d, const char *folder, mhla_split split) {
    char part[4096], classes[4096];
    MHLA_TRY(mhla_dataset_find_split(part, classes, folder, split));
    MHLA_TRY(mhla_dataset_list_classes(d, classes));
    if (d->classes == 0)
        return mhla_fail(MHLA_EDATA, "%s: no folder in it: expected one for each class, with its images", classes);
    MHLA_TRY(mhla_dataset_check_classes(d, part, classes));
    listing *l = calloc(1, sizeof *l);
    if (l == NULL) return no_memory(folder);
    d->format = "image folder";
    d->own = l;
    d->get = folder_get;
    d->label = folder_label;
    d->file = folder_file;
    d->close = folder_close;
    d->channels = 3;
    folder_id above[MAX_DEPTH] = {0};
    struct stat info;
    if (stat(folder, &info) == 0) above[0] = (folder_id){info.st_dev, info.st_ino};
    if (stat(part, &info) == 0) above[1] = (folder_id){info.st_dev, info.st_ino};
    for (int i = 0; i < d->classes; i++) {
        char path[4096];
        const int64_t before = l->count;
        if (!mhla_dataset_path(path, part, d->names[i])) continue; /* a test without that class */
        MHLA_TRY(list(d, l, path, i, above, 2));
        if (l->count == before && split == MHLA_SPLIT_TRAIN)
            return mhla_fail(MHLA_EDATA, "%s: no readable image of this class%s%s", path,
                             d->kept ? "; for example " : "", d->kept ? d->sentences[d->kept - 1] : "");
    }
    if (l->count == 0) return mhla_fail(MHLA_EDATA, "%s: no readable image in it", part);
    qsort_r(l->entries, (size_t)l->count, sizeof *l->entries, by_folder_and_name, l->pool);
    d->count = l->count;
    return MHLA_OK;
}
