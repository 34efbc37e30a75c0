/* CIFAR's binary files: records of a label byte (CIFAR-100: a coarse one before it) and three planes of 32 x 32. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/file.h"

enum { PIXELS = 3 * 32 * 32, MAX_FILES = 5 };

static int list_files(char paths[][4096], const char *folder, mhla_split split) {
    if (mhla_dataset_path(paths[0], folder, split == MHLA_SPLIT_TRAIN ? "train.bin" : "test.bin")) return 1;
    if (split == MHLA_SPLIT_TEST) return mhla_dataset_path(paths[0], folder, "test_batch.bin");
    int n = 0;
    for (int i = 1; i <= MAX_FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        if (mhla_dataset_path(paths[n], folder, name)) n++;
    }
    return n;
}

/* One file is used where it lies, several are put behind one another. */
static mhla_status load(const uint8_t **records, size_t *bytes, mhla_dataset_array *a, char paths[][4096], int n,
                        size_t record) {
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        MHLA_TRY(mhla_file_map(&a->maps[i], paths[i]));
        a->map_count++;
        const size_t size = a->maps[i].size;
        if (size == 0 || size % record != 0)
            return mhla_fail(MHLA_EDATA, "%s: %zu bytes are not a whole number of records of %zu", paths[i], size,
                             record);
        *bytes += size;
    }
    *records = a->maps[0].data;
    if (n == 1) return MHLA_OK;
    uint8_t *all = malloc(*bytes + 1);
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for %zu bytes", paths[0], *bytes);
    a->owned[0] = all;
    *records = all;
    for (int i = 0; i < n; i++) {
        memcpy(all, a->maps[i].data, a->maps[i].size);
        all += a->maps[i].size;
    }
    return MHLA_OK;
}

mhla_status mhla_dataset_open_cifar(mhla_dataset *d, const char *folder, mhla_split split) {
    char paths[MAX_FILES][4096], path[4096];
    const int n = list_files(paths, folder, split);
    if (n == 0) {
        if (list_files(paths, folder, split == MHLA_SPLIT_TRAIN ? MHLA_SPLIT_TEST : MHLA_SPLIT_TRAIN) == 0)
            return MHLA_OK;
        return mhla_fail(MHLA_EIO, "%s: %s is missing", folder, split == MHLA_SPLIT_TRAIN ? "train.bin" : "test.bin");
    }
    d->format = "CIFAR binary";
    const int hundred = mhla_dataset_path(path, folder, "fine_label_names.txt");
    const size_t first = hundred ? 1 : 0, record = first + 1 + PIXELS;
    MHLA_TRY(mhla_dataset_read_names(d, folder, hundred ? "fine_label_names.txt" : "classes.txt", 256));
    if (d->names == NULL) MHLA_TRY(mhla_dataset_read_names(d, folder, "batches.meta.txt", 256));
    if (d->classes == 0) d->classes = hundred ? 100 : 10;
    mhla_dataset_array *a = calloc(1, sizeof *a);
    if (a) a->maps = calloc(MAX_FILES, sizeof *a->maps);
    if (a == NULL || a->maps == NULL) {
        free(a);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for the dataset", folder);
    }
    const uint8_t *records = NULL;
    size_t bytes = 0;
    const mhla_status status = load(&records, &bytes, a, paths, n, record);
    d->channels = 3;
    d->width = d->height = 32;
    d->count = status == MHLA_OK ? (int64_t)(bytes / record) : 0;
    a->planar = 1;
    a->pixels = status == MHLA_OK ? records + first + 1 : NULL;
    a->labels = status == MHLA_OK ? records + first : NULL;
    a->pixel_step = a->label_step = record;
    const mhla_status used = mhla_dataset_use_array(d, a, paths[0], first);
    return status != MHLA_OK ? status : used;
}
