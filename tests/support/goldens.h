/* Where the goldens of the published code lie: the folder that MHLA_GOLDENS names, or shared/goldens beside this tree.
 * Tests that read them are skipped, and say so, where there are none. */
#ifndef MHLA_TESTS_GOLDENS_H
#define MHLA_TESTS_GOLDENS_H

#include <dirent.h>
#include <unistd.h>

#include "file/json.h"
#include "file/safetensors.h"
#include "support.h"

/* Where a golden lies, in path [512]; 0 if it is not there. */
static inline int golden_there(char *path, const char *name) {
    const char *given = getenv("MHLA_GOLDENS");
    const char *folders[] = {given ? given : "../../shared/goldens", "../shared/goldens"};
    for (int i = 0; i < (given ? 1 : 2); i++) {
        snprintf(path, 512, "%s/%s", folders[i], name);
        if (access(path, R_OK) == 0) return 1;
    }
    return 0;
}

/* The same; skips the test if it is not there. */
static inline const char *golden_path(char *path, const char *name) {
    if (golden_there(path, name)) return path;
    print_message("[   SKIP   ] no %s: set MHLA_GOLDENS\n", name);
    skip();
    return NULL;
}

/* The file `name`.safetensors, open; skips the test if it is not there. */
static inline mhla_safetensors *open_golden(const char *name) {
    char file[300], path[512];
    mhla_safetensors *f;
    snprintf(file, sizeof file, "%s.safetensors", name);
    ASSERT_OK(mhla_safetensors_open(&f, golden_path(path, file)));
    return f;
}

/* The tensor `prefix``name` as float32, whole numbers too; free() it. */
static inline float *golden(const mhla_safetensors *f, const char *prefix, const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const mhla_stored *s;
    ASSERT_OK(mhla_safetensors_need(&s, f, full));
    float *x = new_bytes(sizeof(float) * (size_t)(s->count + 1));
    if (s->dtype != MHLA_IO_I64) {
        ASSERT_OK(mhla_stored_read(x, s));
        return x;
    }
    for (int64_t i = 0; i < s->count; i++) {
        int64_t whole;
        memcpy(&whole, s->data + sizeof whole * (size_t)i, sizeof whole);
        x[i] = (float)whole;
    }
    return x;
}

/* ---- Every golden of a kind, known by what its metadata says: files have any names, sizes and number ---- */

typedef struct golden_list {
    char **paths; /* sorted */
    int count;
} golden_list;

static inline int golden_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* All files under a folder whose names end so, and folders in it. */
static inline void golden_collect(golden_list *list, const char *where, const char *ending) {
    DIR *d = opendir(where);
    if (d == NULL) return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const size_t n = strlen(e->d_name), m = strlen(ending);
        if (e->d_name[0] == '.') continue;
        char *path = new_bytes(strlen(where) + n + 2);
        sprintf(path, "%s/%s", where, e->d_name);
        golden_collect(list, path, ending);
        if (n >= m && strcmp(e->d_name + n - m, ending) == 0) {
            list->paths = realloc(list->paths, sizeof *list->paths * (size_t)(list->count + 1));
            assert_non_null(list->paths);
            list->paths[list->count++] = path;
        } else {
            free(path);
        }
    }
    closedir(d);
    if (list->count) qsort(list->paths, (size_t)list->count, sizeof *list->paths, golden_order);
}

static inline void golden_list_free(golden_list *list) {
    for (int i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
}

/* What the metadata of a file says, an object: its config with `case` in it; drop the reference. */
static inline json_t *golden_said(const mhla_safetensors *f) {
    const char *text = mhla_safetensors_metadata(f, "config"), *name = mhla_safetensors_metadata(f, "case");
    json_t *said = text ? json_loads(text, 0, NULL) : json_object();
    assert_non_null(said);
    if (name && !json_object_get(said, "case")) json_object_set_new(said, "case", json_string(name));
    return said;
}

/* `check` for every golden whose `key` is `value`, or begins with it where it ends with *. Skips the test where there is none. */
static inline void each_golden(const char *key, const char *value,
                               void (*check)(const char *path, const mhla_safetensors *f, const json_t *said)) {
    char where[512];
    golden_list list = {0};
    int found = 0;
    const size_t n = strlen(value), whole = n == 0 || value[n - 1] != '*';
    golden_path(where, ".");
    golden_collect(&list, where, ".safetensors");
    for (int i = 0; i < list.count; i++) {
        mhla_safetensors *f;
        ASSERT_OK(mhla_safetensors_open(&f, list.paths[i]));
        json_t *said = golden_said(f);
        const char *has = json_string_value(json_object_get(said, key));
        if (has && (whole ? strcmp(has, value) == 0 : strncmp(has, value, n - 1) == 0)) {
            check(list.paths[i], f, said);
            found++;
        }
        json_decref(said);
        mhla_safetensors_close(f);
    }
    golden_list_free(&list);
    if (found) return;
    print_message("[   SKIP   ] no golden whose %s is %s: set MHLA_GOLDENS\n", key, value);
    skip();
}

#endif
