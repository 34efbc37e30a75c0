/* A folder of the test's own, files in it, and its end. */
#ifndef MHLA_TESTS_FOLDERS_H
#define MHLA_TESTS_FOLDERS_H

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

static inline void new_folder(char folder[40]) {
    strcpy(folder, "/tmp/mhla-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static inline int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk) {
    (void)info, (void)flag, (void)walk;
    return remove(path);
}
static inline void remove_folder(const char *folder) {
    assert_int_equal(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* "folder/name"; valid until the fourth call from now. */
static inline const char *in_folder(const char *folder, const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Writes the file, and the folders on the way. */
static inline void write_file(const char *folder, const char *name, const void *bytes, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

#endif
