#include "file/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"

static const char ending[] = ".mhla-tmp";
enum { DIGITS = 16, BASE_MOST = 200 }; /* of the name that it stands for: all of it must fit 255 bytes */

/* ---- Leftovers ---- */

/* ".NAME.0123456789abcdef.mhla-tmp" */
static int is_ours(const char *name) {
    const size_t n = strlen(name), tail = 1 + DIGITS + sizeof ending - 1;
    if (name[0] != '.' || n < 2 + tail || strcmp(name + n - (sizeof ending - 1), ending) != 0) return 0;
    const char *digits = name + n - tail;
    return *digits == '.' && strspn(digits + 1, "0123456789abcdef") == DIGITS;
}

/* Removes one of which nobody holds the lock. Links are left alone, and so is all where the file system knows no locks. */
static void remove_leftover(int folder, const char *folder_name, const char *name) {
    struct stat info, now;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return;
    const int mode =
        S_ISDIR(info.st_mode) ? O_RDONLY | O_DIRECTORY : O_RDWR; /* some locks want a file to be writable */
    const int fd = openat(folder, name, mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 &&
        fstatat(folder, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && info.st_dev == now.st_dev &&
        info.st_ino == now.st_ino) { /* it was not renamed in between */
        char path[4096 + 256];
        if (S_ISREG(info.st_mode))
            unlinkat(folder, name, 0);
        else if (snprintf(path, sizeof path, "%s/%s", folder_name, name) < (int)sizeof path)
            mhla_folder_remove(path);
    }
    close(fd);
}

/* Thousands of pictures go into one folder: it is looked through once, not for each of them. */
static int is_known(const char *folder) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct stat last;
    struct stat info;
    if (stat(folder, &info) != 0) return 1; /* nothing to look at */
    pthread_mutex_lock(&lock);
    const int known = info.st_dev == last.st_dev && info.st_ino == last.st_ino;
    last = info;
    pthread_mutex_unlock(&lock);
    return known;
}

static void remove_leftovers(const char *folder) {
    DIR *list = is_known(folder) ? NULL : opendir(folder);
    if (list == NULL) return;
    for (const struct dirent *e; (e = readdir(list)) != NULL;)
        if (is_ours(e->d_name)) remove_leftover(dirfd(list), folder, e->d_name);
    closedir(list);
}

/* ---- Making ---- */

/* Whoever removes leftovers may have come between the making and the lock: then what we hold is gone, or locked. */
static int is_held(int fd) {
    struct stat info;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK; /* no locks here: nobody removes anything */
    return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

static int make_file(const char *name) {
    return open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

static int make_folder(const char *name) {
    if (mkdir(name, 0777) != 0) return -1;
    return open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static mhla_status make(char *name, size_t size, int *fd, const char *path, int (*make_one)(const char *)) {
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    if (strlen(path) >= sizeof folder || strlen(path) + MHLA_TEMPORARY_MORE > size)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    if (slash) snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    remove_leftovers(folder);
    for (int tries = 0; tries < 16; tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random) break;
        snprintf(name, size, "%.*s.%.*s.%016llx%s", (int)(base - path), path, BASE_MOST, base,
                 (unsigned long long)random, ending);
        *fd = make_one(name);
        if (*fd >= 0 && is_held(*fd)) return MHLA_OK;
        if (*fd < 0 && errno != EEXIST) break;
        if (*fd >= 0) close(*fd);
    }
    *fd = -1;
    return mhla_fail(MHLA_EIO, "%s: not written: %s", path, strerror(errno));
}

mhla_status mhla_temporary_file(char *name, size_t size, int *fd, const char *path) {
    return make(name, size, fd, path, make_file);
}

mhla_status mhla_temporary_folder(char *name, size_t size, int *fd, const char *path) {
    return make(name, size, fd, path, make_folder);
}
