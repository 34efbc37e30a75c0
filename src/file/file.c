#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <mhla/nn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "file/mapping.h"

/* ---- Reading ---- */

mhla_status mhla_file_open(int *fd, size_t *size, const char *path) {
    struct stat info = {0};
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO without a writer must not block */
    if (*fd < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    const char *why = NULL;
    if (fstat(*fd, &info) != 0)
        why = strerror(errno);
    else if (!S_ISREG(info.st_mode))
        why = S_ISDIR(info.st_mode) ? strerror(EISDIR) : "not a regular file";
    if (size) *size = (size_t)info.st_size;
    if (why == NULL) return MHLA_OK;
    close(*fd);
    *fd = -1;
    return mhla_fail(MHLA_EIO, "%s: %s", path, why);
}

/* A small file as a copy: whoever shortens it later does no harm. */
static mhla_status read_small(mhla_file *file, int fd, size_t size, const char *path) {
    unsigned char *data = malloc(size);
    if (data == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for %zu bytes", path, size);
    size_t got = 0;
    while (got < size) {
        const ssize_t n = read(fd, data + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int why = errno;
            free(data);
            if (n < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(why));
            return mhla_fail(MHLA_EIO, "%s: became shorter while it was read: %zu bytes, %zu before", path, got, size);
        }
        got += (size_t)n;
    }
    *file = (mhla_file){.data = data, .size = size};
    return MHLA_OK;
}

mhla_status mhla_file_map(mhla_file *file, const char *path) {
    int fd;
    size_t size = 0;
    *file = (mhla_file){0};
    MHLA_TRY(mhla_file_open(&fd, &size, path));
    mhla_status status = MHLA_OK;
    if (size == 0)
        *file = (mhla_file){.data = (const unsigned char *)""}; /* nothing, at a place that may be added to */
    else if (size <= MHLA_FILE_SMALL)
        status = read_small(file, fd, size, path);
    else
        status = mhla_mapping_create(file, fd, size, path);
    close(fd);
    return status;
}

void mhla_file_unmap(mhla_file *file) {
    if (file->mapping)
        mhla_mapping_free(file);
    else if (file->size)
        free((void *)(uintptr_t)file->data);
    *file = (mhla_file){0};
}

const char *mhla_write_problem(int number) {
    if (number == EFAULT) return "a file that it is made of became shorter"; /* write() from a mapping */
    return number ? strerror(number) : "a write failed";
}

/* ---- Writing ---- */

mhla_status mhla_writer_open(mhla_writer *w, const char *path) {
    w->stream = NULL;
    if (snprintf(w->path, sizeof w->path, "%s", path) >= (int)sizeof w->path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    struct stat info;
    if (stat(w->path, &info) == 0 && !S_ISREG(info.st_mode)) /* it would be replaced: /dev/null by a file, say */
        return mhla_fail(MHLA_EIO, "%s: not written: %s", w->path,
                         S_ISDIR(info.st_mode) ? strerror(EISDIR) : "not a regular file");
    int fd;
    MHLA_TRY(mhla_temporary_file(w->temporary, sizeof w->temporary, &fd, w->path));
    w->stream = fdopen(fd, "wb");
    if (w->stream) return MHLA_OK;
    unlink(w->temporary);
    close(fd);
    return mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", w->path);
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
    if (!bad) bad = rename(w->temporary, w->path) != 0; /* while it is open: that is its lock */
    const int why = errno;
    if (bad) unlink(w->temporary);
    fclose(w->stream); /* all of it is on the disk already */
    w->stream = NULL;
    if (bad) return mhla_fail(MHLA_EIO, "%s: not written: %s", w->path, mhla_write_problem(why));
    if (mhla_file_sync_folder(w->path) != 0) return mhla_fail(MHLA_EIO, "%s: %s", w->path, strerror(errno));
    return MHLA_OK;
}

void mhla_writer_discard(mhla_writer *w) {
    if (w->stream == NULL) return;
    unlink(w->temporary);
    fclose(w->stream);
    w->stream = NULL;
}

mhla_status mhla_file_write(const char *path, const void *bytes, size_t size) {
    mhla_writer w;
    MHLA_TRY(mhla_writer_open(&w, path));
    fwrite(bytes, 1, size, w.stream); /* commit asks for errors */
    return mhla_writer_commit(&w);
}

/* ---- Folders ---- */

mhla_status mhla_new_folder_open(mhla_new_folder *f, const char *path) {
    f->fd = -1;
    if (snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    for (size_t n = strlen(f->path); n > 1 && f->path[n - 1] == '/'; n--) f->path[n - 1] = '\0';
    return mhla_temporary_folder(f->temporary, sizeof f->temporary, &f->fd, f->path);
}

mhla_status mhla_new_folder_commit(mhla_new_folder *f) {
    mhla_status status = MHLA_OK;
    if (rename(f->temporary, f->path) != 0 || mhla_file_sync_folder(f->path) != 0)
        status = mhla_fail(MHLA_EIO, "%s: %s", f->path, strerror(errno));
    mhla_new_folder_discard(f); /* where it has its name, there is nothing to remove */
    return status;
}

void mhla_new_folder_discard(mhla_new_folder *f) {
    if (f->fd < 0) return;
    mhla_folder_remove(f->temporary);
    close(f->fd);
    f->fd = -1;
}

mhla_status mhla_folder_make(const char *path) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        const char end = *at;
        *at = '\0';
        const int made = mkdir(part, 0777) == 0;
        /* what is put into it must not be lost with its name */
        if ((!made && errno != EEXIST) || (made && mhla_file_sync_folder(part) != 0))
            return mhla_fail(MHLA_EIO, "%s: %s", part, strerror(errno));
        if (end == '\0') return MHLA_OK;
        *at = end;
    }
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk) {
    (void)info, (void)flag, (void)walk;
    return remove(path);
}

void mhla_folder_remove(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }
