#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"

mhla_status mhla_file_map(mhla_file *file, const char *path) {
    *file = (mhla_file){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold us */
    if (fd < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    mhla_status status = MHLA_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = mhla_fail(MHLA_EIO, "%s: not a regular file", path);
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
        else
            *file = (mhla_file){data, (size_t)info.st_size};
    }
    close(fd);
    return status;
}

void mhla_file_unmap(mhla_file *file) {
    if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
    *file = (mhla_file){0};
}

mhla_status mhla_writer_open(mhla_writer *w, const char *path) {
    w->stream = NULL;
    if (snprintf(w->path, sizeof w->path, "%s", path) >= (int)sizeof w->path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    struct stat info;
    if (stat(w->path, &info) == 0 && !S_ISREG(info.st_mode)) /* it would be replaced: /dev/null by a file, say */
        return mhla_fail(MHLA_EIO, "%s: not written: %s", w->path,
                         S_ISDIR(info.st_mode) ? strerror(EISDIR) : "not a regular file");
    snprintf(w->temporary, sizeof w->temporary, "%s.%ld.tmp", w->path, (long)getpid());
    w->stream = fopen(w->temporary, "wbe");
    if (w->stream == NULL) return mhla_fail(MHLA_EIO, "%s: not written: %s", w->path, strerror(errno));
    return MHLA_OK;
}

int mhla_file_sync_folder(const char *path) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = '\0';
    const int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    const int result = fsync(fd);
    close(fd);
    return result == 0 || errno == EINVAL ? 0 : -1; /* some file systems cannot */
}

mhla_status mhla_writer_commit(mhla_writer *w) {
    int bad = ferror(w->stream) || fflush(w->stream) != 0 || fsync(fileno(w->stream)) != 0;
    int why = errno;
    if (fclose(w->stream) != 0 && !bad) bad = 1, why = errno;
    w->stream = NULL;
    if (!bad && rename(w->temporary, w->path) != 0) bad = 1, why = errno;
    if (bad) {
        unlink(w->temporary);
        return mhla_fail(MHLA_EIO, "%s: not written: %s", w->path, why ? strerror(why) : "a write failed");
    }
    if (mhla_file_sync_folder(w->path) != 0) return mhla_fail(MHLA_EIO, "%s: %s", w->path, strerror(errno));
    return MHLA_OK;
}

void mhla_writer_discard(mhla_writer *w) {
    if (w->stream == NULL) return;
    fclose(w->stream);
    w->stream = NULL;
    unlink(w->temporary);
}

mhla_status mhla_folder_make(const char *path) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        const char end = *at;
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return mhla_fail(MHLA_EIO, "%s: %s", part, strerror(errno));
        if (end == '\0') return MHLA_OK;
        *at = end;
    }
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk) {
    (void)info, (void)flag, (void)walk;
    return remove(path);
}

void mhla_folder_remove(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }
