/* Datasets that `mhla data` fetches: what they are, and how what was fetched becomes a folder that training reads. Every
 * file is checked by its SHA-256; the folder appears under its name when it is complete, or not at all. */
#include <dirent.h>
#include <errno.h>
#include <mhla/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/data_impl.h"
#include "file/file.h"
#include "file/sha256.h"

static const mhla_data_set *const sets[] = {
    &mhla_data_fashion_mnist, &mhla_data_cifar10_test,   &mhla_data_text,
    &mhla_data_smollm2,       &mhla_data_emoji,          &mhla_data_inception,
    &mhla_data_gemma3,        &mhla_data_moving_fashion, &mhla_data_moving_emoji};

mhla_status mhla_data_query(int i, mhla_data_info *info) {
    if (i < 0 || (size_t)i >= sizeof sets / sizeof *sets) return mhla_fail(MHLA_ERANGE, "there is no dataset %d", i);
    return mhla_struct_out(info, &sets[i]->info, sizeof sets[i]->info, "mhla_data_info");
}

static mhla_status find(const mhla_data_set **k, const char *name) {
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (strcmp(sets[i]->info.name, name) == 0) {
            *k = sets[i];
            return MHLA_OK;
        }
    char names[256] = "";
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", sets[i]->info.name);
    return mhla_fail(MHLA_EINVAL, "\"%s\" is not a known dataset: expected one of %s", name, names);
}

mhla_status mhla_data_check_bytes(const mhla_data_part *p, const void *bytes, size_t size, const char *path) {
    char sum[65];
    if (size != p->bytes) return mhla_fail(MHLA_EDATA, "%s: %zu bytes, expected %zu", path, size, p->bytes);
    mhla_sha256_of(bytes, size, sum);
    if (strcmp(sum, p->sha256) == 0) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: its SHA-256 is %s, expected %s", path, sum, p->sha256);
}

mhla_status mhla_data_join(char path[4096], const char *folder, const char *name) {
    if (snprintf(path, 4096, "%s/%s", folder, name) < 4096) return MHLA_OK;
    return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
}

static int is_empty(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n == 2; /* . and .. */
}

mhla_status mhla_data_check(const char *name, const char *folder, int *there) {
    const mhla_data_set *k = NULL;
    struct stat info;
    *there = 0;
    MHLA_TRY(find(&k, name));
    if (stat(folder, &info) != 0) {
        if (errno == ENOENT) return MHLA_OK;
        return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    }
    for (const mhla_data_part *p = k->parts; p->name; p++) {
        char path[4096];
        mhla_file file;
        MHLA_TRY(mhla_data_join(path, folder, p->name));
        if (stat(path, &info) != 0) {
            if (p == k->parts && is_empty(folder)) return MHLA_OK; /* as good as none */
            return mhla_fail(MHLA_EDATA, "%s: exists, but without %s: remove it, or name another folder", folder,
                             p->name);
        }
        MHLA_TRY(mhla_file_map(&file, path));
        const mhla_status status = mhla_data_check_bytes(p, file.data, file.size, path);
        mhla_file_unmap(&file);
        MHLA_TRY(status);
    }
    if (k->check) MHLA_TRY(k->check(folder));
    *there = 1;
    return MHLA_OK;
}

mhla_status mhla_data_write(const char *folder, const char *name, const void *bytes, size_t size) {
    char path[4096];
    MHLA_TRY(mhla_data_join(path, folder, name));
    return mhla_file_write(path, bytes, size);
}

/* An archive is somebody else's until its sum has been compared. */
static mhla_status check_archive(const mhla_data_info *info, const char *source) {
    const mhla_data_part part = {info->archive, (size_t)info->archive_bytes, info->archive_sha256};
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, source));
    const mhla_status status = mhla_data_check_bytes(&part, file.data, file.size, source);
    mhla_file_unmap(&file);
    return status;
}

mhla_status mhla_data_lay_out(const char *name, const char *source, const char *folder) {
    const mhla_data_set *k = NULL;
    mhla_new_folder made;
    int there;
    MHLA_TRY(find(&k, name));
    MHLA_TRY(mhla_data_check(name, folder, &there));
    if (there) return MHLA_OK;
    if (k->info.archive) MHLA_TRY(check_archive(&k->info, source));
    MHLA_TRY(mhla_new_folder_open(&made, folder));
    mhla_status status = k->make(k, source, made.temporary);
    if (status == MHLA_OK && k->classes)
        status = mhla_data_write(made.temporary, "classes.txt", k->classes, strlen(k->classes));
    if (status == MHLA_OK) status = mhla_data_write(made.temporary, "README.txt", k->readme, strlen(k->readme));
    if (status == MHLA_OK) status = mhla_new_folder_commit(&made);
    mhla_new_folder_discard(&made);
    return status;
}

mhla_status mhla_data_write_part(const mhla_data_part *part, const char *folder, const void *bytes, size_t size) {
    MHLA_TRY(mhla_data_check_bytes(part, bytes, size, part->name));
    return mhla_data_write(folder, part->name, bytes, size);
}
