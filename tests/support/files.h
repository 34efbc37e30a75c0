/* What the tests of file readers share: a folder of their own, and messages that must hold a word. */
#ifndef MHLA_TESTS_FILES_H
#define MHLA_TESTS_FILES_H

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/mhla-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static inline int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command); /* NOLINT: the path is ours */
}
/* folder/name; valid for the next seven calls. */
static inline const char *in_folder(const char *name) {
    static char paths[8][256];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}
static inline void write_file(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}
/* All of a file, with a NUL behind it; free() it. */
static inline char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = new_bytes(1 << 20);
    *size = fread(text, 1, (1 << 20) - 1, f);
    text[*size] = '\0';
    fclose(f);
    return text;
}
static inline int exists(const char *path) { return access(path, F_OK) == 0; }
static inline int entries(const char *path) {
    int n = 0;
    DIR *list = opendir(path);
    assert_non_null(list);
    while (readdir(list)) n++;
    closedir(list);
    return n - 2;
}

/* The last message holds the word. */
static inline void message_has(const char *input, const char *word) {
    if (strstr(mhla_message(), word) == NULL) fail_msg("%s: \"%s\" is not in: %s", input, word, mhla_message());
}

#endif
