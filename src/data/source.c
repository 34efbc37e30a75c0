/* Where data lies: a folder as it is, or one of the sets that `mhla data` lays out, by its name. */
#include <dirent.h>
#include <errno.h>
#include <mhla/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/dataset.h"
#include "file/file.h"
#include "file/sha256.h"

mhla_status mhla_data_locate(char *folder, size_t size, const char *source) {
    struct stat at;
    mhla_data_info info = {.size = sizeof info};
    char names[256] = "";
    const char *place = source;
    for (int i = 0; mhla_data_query(i, &info) == MHLA_OK; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", info.name);
        if (strcmp(source, info.name) == 0) place = info.folder;
    }
    if (snprintf(folder, size, "%s", place) >= (int)size)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", place);
    if (stat(folder, &at) == 0) return MHLA_OK;
    if (place != source) return mhla_fail(MHLA_EIO, "%s is missing: mhla data %s downloads it", place, source);
    return mhla_fail(MHLA_EIO, "%s: no such folder; known datasets: %s", source, names);
}

mhla_status mhla_data_whole_path(char *folder, size_t size) {
    char *real = realpath(folder, NULL);
    if (real == NULL) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    const int fits = snprintf(folder, size, "%s", real) < (int)size;
    free(real);
    return fits ? MHLA_OK : mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
}

/* ---- The version of the data: SHA-256 of all names and bytes, in the order of the names ---- */

/* Not what `mhla tokenize` writes beside a text: copies of the data on other machines may lack it. */
static int belongs(const struct dirent *entry) {
    const char *name = entry->d_name, *end = strrchr(name, '.');
    return *name != '.' && strcmp(name, "tokenizer.json") != 0 && !(end && strcmp(end, ".shard") == 0);
}

static mhla_status add_file(mhla_sha256 *sum, const char *path, const char *name) {
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_sha256_add(sum, name, strlen(name) + 1);
    mhla_sha256_add(sum, file.data, file.size);
    mhla_file_unmap(&file);
    return MHLA_OK;
}

static mhla_status add_folder(mhla_sha256 *sum, const char *folder, int depth) {
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, belongs, alphasort);
    mhla_status status = n < 0 ? mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno)) : MHLA_OK;
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat info;
        if (status == MHLA_OK && snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < (int)sizeof path &&
            stat(path, &info) == 0) {
            if (S_ISREG(info.st_mode)) status = add_file(sum, path, entries[i]->d_name);
            if (S_ISDIR(info.st_mode) && depth < 8) status = add_folder(sum, path, depth + 1);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

mhla_status mhla_data_sum(char text[65], const char *folder) {
    mhla_sha256 sum;
    mhla_sha256_begin(&sum);
    MHLA_TRY(add_folder(&sum, folder, 0));
    mhla_sha256_end(&sum, text);
    return MHLA_OK;
}
