/* Documents: the texts that language models are trained and measured on, out of plain files, JSON lines and folders of both.
 * The rule of what a document is stands in lm.h. */
#include <dirent.h>
#include <errno.h>
#include <mhla/lm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/file.h"
#include "file/json.h"
#include "file/text.h"

enum { DEPTH = 16 }; /* folders inside of folders */

typedef struct document {
    const char *text;
    size_t bytes;
} document;

struct mhla_documents {
    document *list;
    int64_t count, room;
    mhla_file *files; /* that texts lie in */
    char **owned;     /* texts that were spelled in another way */
    int64_t file_count, owned_count;
};

static mhla_status no_memory(const char *path) { return mhla_fail(MHLA_ENOMEM, "%s: no memory for its texts", path); }

static mhla_status add(mhla_documents *d, const char *text, size_t bytes, const char *path) {
    if (bytes == 0) return MHLA_OK;
    if (d->count == d->room) {
        const int64_t room = d->room ? 2 * d->room : 256;
        document *list = realloc(d->list, (size_t)room * sizeof *list);
        if (list == NULL) return no_memory(path);
        d->list = list;
        d->room = room;
    }
    d->list[d->count++] = (document){text, bytes};
    return MHLA_OK;
}

/* A separator is a line of its own: "\f\n", "\f\r\n", or "\f" at the end of the file. Returns its length, 0 if there is
 * none at `at`, which begins a line. */
static size_t separator(const char *at, const char *end) {
    if (at == end || *at != '\f') return 0;
    if (at + 1 == end) return 1;
    if (at[1] == '\n') return 2;
    return at[1] == '\r' && at + 2 < end && at[2] == '\n' ? 3 : 0;
}

static mhla_status add_plain(mhla_documents *d, const mhla_file *file, const char *path) {
    const char *begin = (const char *)file->data, *end = begin + file->size;
    const size_t bad = mhla_utf8_broken(file->data, file->size);
    if (bad < file->size) return mhla_fail(MHLA_EDATA, "%s: byte %zu is not UTF-8", path, bad);
    const char *first = begin;
    for (const char *at = begin; at < end;) {
        const char *mark = memchr(at, '\f', (size_t)(end - at));
        if (mark == NULL) break;
        const size_t n = mark == begin || mark[-1] == '\n' ? separator(mark, end) : 0;
        if (n) {
            MHLA_TRY(add(d, first, (size_t)(mark - first), path));
            first = mark + n;
        }
        at = mark + (n ? n : 1);
    }
    return add(d, first, (size_t)(end - first), path);
}

/* A copy that lives as long as the documents; NULL without memory. */
static char *keep(mhla_documents *d, const char *text, size_t bytes) {
    char **more = realloc(d->owned, (size_t)(d->owned_count + 1) * sizeof *more);
    if (more == NULL) return NULL;
    d->owned = more;
    char *copy = malloc(bytes + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, text, bytes);
    d->owned[d->owned_count++] = copy;
    return copy;
}

static mhla_status add_lines(mhla_documents *d, const mhla_file *file, const char *path) {
    const char *at = (const char *)file->data, *end = at + file->size;
    for (int64_t number = 1; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t size = (size_t)((stop ? stop : end) - at);
        char name[4200];
        snprintf(name, sizeof name, "%s: line %lld", path, (long long)number);
        size_t blanks = 0;
        while (blanks < size && (at[blanks] == ' ' || at[blanks] == '\t' || at[blanks] == '\r')) blanks++;
        if (blanks < size) {
            json_t *tree = NULL;
            MHLA_TRY(mhla_json_parse(&tree, at, size, name));
            const json_t *text = json_object_get(tree, "text");
            mhla_status status = MHLA_OK;
            if (!json_is_string(text)) {
                status = mhla_fail(MHLA_EDATA, "%s: expected an object with the key \"text\"", name);
            } else {
                const size_t bytes = json_string_length(text);
                const char *copy = keep(d, json_string_value(text), bytes);
                status = copy ? add(d, copy, bytes, path) : no_memory(path);
            }
            json_decref(tree);
            MHLA_TRY(status);
        }
        at = stop ? stop + 1 : end;
    }
    return MHLA_OK;
}

static mhla_status add_file(mhla_documents *d, const char *path) {
    const size_t n = strlen(path);
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    if (file.size == 0) return MHLA_OK;
    mhla_file *more = realloc(d->files, (size_t)(d->file_count + 1) * sizeof *more);
    if (more == NULL) {
        mhla_file_unmap(&file);
        return no_memory(path);
    }
    d->files = more;
    d->files[d->file_count++] = file;
    return n > 6 && strcmp(path + n - 6, ".jsonl") == 0 ? add_lines(d, &file, path) : add_plain(d, &file, path);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int not_hidden(const struct dirent *e) { return e->d_name[0] != '.'; }

static mhla_status add_path(mhla_documents *d, const char *path, int depth) {
    struct stat info;
    if (stat(path, &info) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return add_file(d, path);
    if (depth == DEPTH) return mhla_fail(MHLA_EIO, "%s: more than %d folders inside of one another", path, DEPTH);
    struct dirent **names;
    const int n = scandir(path, &names, not_hidden, by_name);
    if (n < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    mhla_status status = MHLA_OK;
    for (int i = 0; i < n; i++) {
        char inner[4096];
        if (status == MHLA_OK && snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name) >= (int)sizeof inner)
            status = mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
        if (status == MHLA_OK) status = add_path(d, inner, depth + 1);
        free(names[i]);
    }
    free(names);
    return status;
}

mhla_status mhla_documents_open(mhla_documents **documents, const char *const *paths, int count) {
    *documents = NULL;
    mhla_documents *d = calloc(1, sizeof *d);
    if (d == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for documents");
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count && status == MHLA_OK; i++) status = add_path(d, paths[i], 0);
    if (status != MHLA_OK) {
        mhla_documents_free(d);
        return status;
    }
    *documents = d;
    return MHLA_OK;
}

void mhla_documents_free(mhla_documents *d) {
    if (d == NULL) return;
    for (int64_t i = 0; i < d->file_count; i++) mhla_file_unmap(&d->files[i]);
    for (int64_t i = 0; i < d->owned_count; i++) free(d->owned[i]);
    free(d->files);
    free(d->owned);
    free(d->list);
    free(d);
}

int64_t mhla_documents_count(const mhla_documents *d) { return d->count; }

const char *mhla_documents_text(const mhla_documents *d, int64_t i, size_t *bytes) {
    if (bytes) *bytes = d->list[i].bytes;
    return d->list[i].text;
}
