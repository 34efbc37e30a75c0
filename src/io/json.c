#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "io/file.h"

/* ---- Whole files ---- */

/* jansson would nest 2048 deep and allocate some fifty bytes for each "0," of a file: count before parsing. */
static mhla_status check_limits(const char *text, size_t size, const char *name) {
    if (size > MHLA_JSON_BYTES)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes of JSON, more than %d", name, size, MHLA_JSON_BYTES);
    int depth = 0, values = 0, line = 1, inside = 0;
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        if (c == '\n') line++;
        if (inside) {
            if (c == '\\')
                i++;
            else if (c == '"')
                inside = 0;
            continue;
        }
        if (c == '"') inside = 1;
        if ((c == '{' || c == '[') && ++depth > MHLA_JSON_DEPTH)
            return mhla_fail(MHLA_EDATA, "%s:%d: nested more than %d deep", name, line, MHLA_JSON_DEPTH);
        if (c == '}' || c == ']') depth--;
        if ((c == ',' || c == '{' || c == '[') && ++values > MHLA_JSON_VALUES)
            return mhla_fail(MHLA_EDATA, "%s:%d: more than %d values", name, line, MHLA_JSON_VALUES);
    }
    return MHLA_OK;
}

mhla_status mhla_json_parse(json_t **tree, const char *text, size_t size, const char *name) {
    *tree = NULL;
    if (size == 0) return mhla_fail(MHLA_EDATA, "%s: empty, expected JSON", name);
    MHLA_TRY(check_limits(text, size, name));
    json_error_t error;
    *tree = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (*tree) return MHLA_OK;
    if (json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0') /* or it says nothing */
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for its JSON", name);
    /* jansson quotes what it found near the place: make that harmless */
    for (char *c = error.text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return mhla_fail(MHLA_EDATA, "%s:%d:%d: %s", name, error.line, error.column, error.text);
}

mhla_status mhla_json_load(json_t **tree, const char *path) {
    *tree = NULL;
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_json_parse(tree, (const char *)file.data, file.size, path);
    mhla_file_unmap(&file);
    return status;
}

mhla_status mhla_json_save(const json_t *tree, const char *path) {
    char *text = json_dumps(tree, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    mhla_writer w;
    mhla_status status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        fputs(text, w.stream);
        fputc('\n', w.stream);
        status = mhla_writer_commit(&w);
    }
    free(text);
    return status;
}

/* ---- Typed access ---- */

const char *mhla_json_type_text(const json_t *value) {
    if (value == NULL) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "text";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "nothing";
}

/* What was found, with its value where that is short. */
static mhla_quoted found(const json_t *value) {
    mhla_quoted q;
    if (json_is_string(value)) return mhla_quote_bytes(json_string_value(value), json_string_length(value));
    if (json_is_integer(value))
        snprintf(q.text, sizeof q.text, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(q.text, sizeof q.text, "%.9g", json_real_value(value));
    else
        snprintf(q.text, sizeof q.text, "%s", mhla_json_type_text(value));
    return q;
}

static mhla_status mismatch(const char *file, const char *key, const json_t *value, const char *expected) {
    return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s: expected %s", file, key, found(value).text, expected);
}

mhla_status mhla_json_get_int(int64_t *value, const json_t *object, const char *key, int64_t least, int64_t most,
                              const char *file) {
    const json_t *v = json_object_get(object, key);
    if (v == NULL) return MHLA_OK;
    if (!json_is_integer(v)) return mismatch(file, key, v, "an integer");
    const int64_t n = json_integer_value(v);
    if (n < least || n > most)
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %lld: expected %lld to %lld", file, key, (long long)n,
                         (long long)least, (long long)most);
    *value = n;
    return MHLA_OK;
}

mhla_status mhla_json_get_real(double *value, const json_t *object, const char *key, const char *file) {
    const json_t *v = json_object_get(object, key);
    if (v == NULL) return MHLA_OK;
    if (!json_is_number(v)) return mismatch(file, key, v, "a number");
    *value = json_number_value(v);
    return MHLA_OK;
}

mhla_status mhla_json_get_bool(int *value, const json_t *object, const char *key, const char *file) {
    const json_t *v = json_object_get(object, key);
    if (v == NULL) return MHLA_OK;
    if (!json_is_boolean(v)) return mismatch(file, key, v, "true or false");
    *value = json_is_true(v);
    return MHLA_OK;
}

mhla_status mhla_json_get_text(const char **value, const json_t *object, const char *key, const char *file) {
    const json_t *v = json_object_get(object, key);
    if (v == NULL) return MHLA_OK;
    if (!json_is_string(v)) return mismatch(file, key, v, "text");
    *value = json_string_value(v);
    return MHLA_OK;
}

mhla_status mhla_json_get_object(const json_t **value, const json_t *object, const char *key, const char *file) {
    const json_t *v = json_object_get(object, key);
    if (v == NULL) return MHLA_OK;
    if (!json_is_object(v)) return mismatch(file, key, v, "an object");
    *value = v;
    return MHLA_OK;
}

mhla_status mhla_json_get_array(const json_t **value, const json_t *object, const char *key, const char *file) {
    const json_t *v = json_object_get(object, key);
    if (v == NULL) return MHLA_OK;
    if (!json_is_array(v)) return mismatch(file, key, v, "an array");
    *value = v;
    return MHLA_OK;
}

mhla_status mhla_json_get_choice(int *value, const json_t *object, const char *key, const char *const *names,
                                 const char *file) {
    const char *text = NULL;
    MHLA_TRY(mhla_json_get_text(&text, object, key, file));
    if (text == NULL) return MHLA_OK;
    mhla_nearest nearest = mhla_nearest_begin(text);
    char all[200] = "";
    size_t used = 0;
    for (int i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *value = i;
            return MHLA_OK;
        }
        mhla_nearest_offer(&nearest, names[i]);
        if (used < sizeof all) used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    }
    return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s: expected one of %s%s%s", file, key, MHLA_QUOTE(text), all,
                     nearest.best ? "; the nearest is " : "", nearest.best ? nearest.best : "");
}

mhla_status mhla_json_check_keys(const json_t *object, const char *const *keys, const char *file) {
    const char *key;
    const json_t *value;
    if (!json_is_object(object))
        return mhla_fail(MHLA_EDATA, "%s: %s where an object was expected", file, mhla_json_type_text(object));
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int i = 0;
        mhla_nearest nearest = mhla_nearest_begin(key);
        for (; keys[i] && strcmp(keys[i], key) != 0; i++) mhla_nearest_offer(&nearest, keys[i]);
        if (keys[i]) continue;
        return mhla_fail(MHLA_EDATA, "%s: unknown key %s%s%s%s", file, MHLA_QUOTE(key),
                         nearest.best ? "; did you mean \"" : "", nearest.best ? nearest.best : "",
                         nearest.best ? "\"?" : "");
    }
    return MHLA_OK;
}

json_t *mhla_json_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *mhla_json_float(float x) {
    if (!isfinite(x)) return json_null();
    char text[32];
    double shortest = x;
    for (int digits = 6; digits <= 9; digits++) { /* nine always give the number back */
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        shortest = strtod(text, NULL);
        if ((float)shortest == x) break;
    }
    return json_real(shortest);
}

/* ---- JSON lines ---- */

/* Position after the last complete line. */
static off_t whole_lines(int fd, off_t size) {
    char block[4096];
    for (off_t end = size; end > 0;) {
        const off_t begin = end > (off_t)sizeof block ? end - (off_t)sizeof block : 0;
        const ssize_t n = pread(fd, block, (size_t)(end - begin), begin);
        if (n != end - begin) return -1;
        for (ssize_t i = n; i > 0; i--)
            if (block[i - 1] == '\n') return begin + i;
        end = begin;
    }
    return 0;
}

mhla_status mhla_jsonl_open(mhla_jsonl *log, const char *path) {
    log->fd = -1;
    if (snprintf(log->path, sizeof log->path, "%s", path) >= (int)sizeof log->path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    const int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    struct stat info;
    off_t end = -1;
    if (fstat(fd, &info) == 0 && (end = whole_lines(fd, info.st_size)) >= 0 &&
        (end == info.st_size || ftruncate(fd, end) == 0)) {
        log->fd = fd;
        return MHLA_OK;
    }
    const mhla_status status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    close(fd);
    return status;
}

mhla_status mhla_jsonl_write(mhla_jsonl *log, json_t *row) {
    char *text = row ? json_dumps(row, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(row);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for a line", log->path);
    const size_t length = strlen(text);
    char *line = realloc(text, length + 2);
    if (line == NULL) {
        free(text);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for a line", log->path);
    }
    line[length] = '\n';
    ssize_t n;
    do n = write(log->fd, line, length + 1);
    while (n < 0 && errno == EINTR);
    free(line);
    if (n == (ssize_t)length + 1) return MHLA_OK;
    return mhla_fail(MHLA_EIO, "%s: not written: %s", log->path, n < 0 ? strerror(errno) : "no space left");
}

mhla_status mhla_jsonl_close(mhla_jsonl *log) {
    if (log->fd < 0) return MHLA_OK;
    const int bad = fsync(log->fd) != 0 && errno != EINVAL, why = errno;
    close(log->fd);
    log->fd = -1;
    return bad ? mhla_fail(MHLA_EIO, "%s: %s", log->path, strerror(why)) : MHLA_OK;
}

mhla_status mhla_jsonl_read(const char *path, mhla_status (*row)(void *user, const json_t *value), void *user) {
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = MHLA_OK;
    const char *at = (const char *)file.data, *end = at + file.size;
    for (int64_t number = 1; at < end && status == MHLA_OK; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (newline == NULL) break; /* torn */
        json_t *value = NULL;
        char name[4200];
        snprintf(name, sizeof name, "%s: line %lld", path, (long long)number);
        status = mhla_json_parse(&value, at, (size_t)(newline - at), name);
        if (status == MHLA_OK) status = row(user, value);
        json_decref(value);
        at = newline + 1;
    }
    mhla_file_unmap(&file);
    return status;
}
