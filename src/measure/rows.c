/* Rows of data files: JSON lines, or the examples of one document. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "measure/evaluate_lm.h"

enum { NAME = 4200 }; /* of a row, for messages */

static mhla_status read_lines(const mhla_file *file, const char *path, mhla_row_fn take, void *user) {
    const char *at = (const char *)file->data, *end = at + file->size;
    mhla_status status = MHLA_OK;
    int stop = 0;
    for (int64_t line = 1; at < end && !stop && status == MHLA_OK; line++) {
        char name[NAME];
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t size = (size_t)((newline ? newline : end) - at);
        if (mhla_text_stripped(at, size) > 0) {
            json_t *row = NULL;
            snprintf(name, sizeof name, "%s: line %lld", path, (long long)line);
            status = mhla_json_parse(&row, at, size, name);
            if (status == MHLA_OK) status = take(user, row, name, &stop);
            json_decref(row);
        }
        at += size + 1;
    }
    return status;
}

/* The whole list is parsed at once. */
static mhla_status read_examples(const json_t *tree, const char *path, mhla_row_fn take, void *user) {
    const json_t *list = json_object_get(tree, "examples");
    const size_t n = json_array_size(list);
    int stop = 0;
    if (!json_is_array(list)) return mhla_fail(MHLA_EDATA, "%s: no array \"examples\"", path);
    for (size_t i = 0; i < n && !stop; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "%s: example %zu", path, i);
        MHLA_TRY(take(user, json_array_get(list, i), name, &stop));
    }
    return MHLA_OK;
}

mhla_status mhla_rows_read(const char *path, int bigbench, mhla_row_fn take, void *user) {
    const size_t n = strlen(path);
    mhla_status status;
    if (bigbench && n > 5 && strcmp(path + n - 5, ".json") == 0) {
        json_t *tree = NULL;
        MHLA_TRY(mhla_json_load(&tree, path));
        status = read_examples(tree, path, take, user);
        json_decref(tree);
        return status;
    }
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    status = read_lines(&file, path, take, user);
    mhla_file_unmap(&file);
    return status;
}
