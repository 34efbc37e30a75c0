#include "file/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"
#include "file/lists.h"

/* ---- Whole files ---- */

/* The digits at `text` are an integer beyond int64: how many; else 0. */
static size_t large_integer(const char *text, size_t size, int negative) {
    static const char *const most[] = {"9223372036854775807", "9223372036854775808"};
    size_t n = 0;
    while (n < size && text[n] >= '0' && text[n] <= '9') n++;
    if (n < 19 || text[0] == '0' || (n < size && (text[n] == '.' || text[n] == 'e' || text[n] == 'E'))) return 0;
    return n > 19 || memcmp(text, most[negative], 19) > 0 ? n : 0;
}

/* Python's json writes Infinity, which JSON does not know: so do some models' configs, for a limit that there is not. */
static size_t infinity(const char *text, size_t size) {
    static const char word[] = "Infinity";
    return size >= sizeof word - 1 && memcmp(text, word, sizeof word - 1) == 0 ? sizeof word - 1 : 0;
}

/* jansson would nest 2048 deep and allocate some fifty bytes for each "0," of a file: count before parsing. It refuses
 * integers beyond int64 and Infinity: *large says that there are some. */
static mhla_status check_limits(const char *text, size_t size, int *large, const char *name) {
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
        if (c == 'I') *large |= infinity(text + i, size - i) > 0;
        if (c >= '1' && c <= '9') {
            *large |= large_integer(text + i, size - i, i > 0 && text[i - 1] == '-') > 0;
            while (i + 1 < size && text[i + 1] >= '0' && text[i + 1] <= '9') i++;
        }
        if ((c == '{' || c == '[') && ++depth > MHLA_JSON_DEPTH)
            return mhla_fail(MHLA_EDATA, "%s:%d: nested more than %d deep", name, line, MHLA_JSON_DEPTH);
        if (c == '}' || c == ']') depth--;
        if ((c == ',' || c == '{' || c == '[') && ++values > MHLA_JSON_VALUES)
            return mhla_fail(MHLA_EDATA, "%s:%d: more than %d values", name, line, MHLA_JSON_VALUES);
    }
    return MHLA_OK;
}

/* A copy in which integers beyond int64 end with "e0": to jansson they are reals then, correctly rounded. Infinity, which
 * jansson cannot hold, becomes the largest number. */
static mhla_status spell_as_reals(mhla_chars *out, const char *text, size_t size) {
    size_t done = 0;
    int inside = 0;
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        if (c == '"') inside = !inside;
        if (c == '\\' && inside) i++;
        if (inside) continue;
        const size_t word = infinity(text + i, size - i);
        if (word) {
            MHLA_TRY(mhla_chars_append(out, text + done, i - done));
            MHLA_TRY(mhla_chars_append(out, "1.7976931348623157e308", 22));
            i += word - 1;
            done = i + 1;
        }
        if (c < '1' || c > '9') continue;
        const size_t n = large_integer(text + i, size - i, i > 0 && text[i - 1] == '-');
        while (i + 1 < size && text[i + 1] >= '0' && text[i + 1] <= '9') i++;
        if (n == 0) continue;
        MHLA_TRY(mhla_chars_append(out, text + done, i + 1 - done));
        MHLA_TRY(mhla_chars_append(out, "e0", 2));
        done = i + 1;
    }
    return mhla_chars_append(out, text + done, size - done);
}

mhla_status mhla_json_parse(json_t **tree, const char *text, size_t size, const char *name) {
    *tree = NULL;
    if (size == 0) return mhla_fail(MHLA_EDATA, "%s: empty, expected JSON", name);
    int large = 0;
    mhla_chars spelled = {0};
    MHLA_TRY(check_limits(text, size, &large, name));
    /* jansson aborts, or drops characters, where the buffer of its lexer cannot grow: better to know before */
    void *room = malloc(2 * size + 4096);
    free(room);
    if (room == NULL || (large && spell_as_reals(&spelled, text, size) != MHLA_OK)) {
        mhla_chars_free(&spelled);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for its JSON", name);
    }
    json_error_t error;
    errno = 0; /* jansson takes a lack of memory for bad JSON, mostly */
    *tree = json_loadb(large ? spelled.data : text, large ? spelled.count : size, JSON_REJECT_DUPLICATES, &error);
    const int why = errno;
    mhla_chars_free(&spelled);
    if (*tree) return MHLA_OK;
    if (why == ENOMEM || json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0')
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

/* 0.0008, not 0.00080000000000000004: the fewest digits that give the number back, as Python writes it. Returns how many
 * characters; an integral number keeps its ".0", so that it is read as a real again. */
static int shortest(char text[40], double x) {
    if (x == floor(x) && fabs(x) < 1e16) return snprintf(text, 40, "%.1f", x);
    int n = 0;
    for (int digits = 1; digits <= 17; digits++) { /* seventeen always do */
        n = fabs(x) < 1e16 ? snprintf(text, 40, "%.*g", digits, x) : snprintf(text, 40, "%.*e", digits - 1, x);
        if (strtod(text, NULL) == x) break;
    }
    return n;
}

/* jansson goes on where a piece of text finds no memory, and leaves it out: here that is known. */
typedef struct dumping {
    mhla_chars text;
    int lost;
} dumping;

static int dump(const char *bytes, size_t size, void *user) {
    dumping *d = user;
    d->lost |= mhla_chars_append(&d->text, bytes, size) != MHLA_OK;
    return d->lost ? -1 : 0;
}

char *mhla_json_text(const json_t *tree, size_t flags) {
    dumping d = {0};
    errno = 0; /* keys may be left out, too */
    const int bad = json_dump_callback(tree, dump, &d, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (bad || errno == ENOMEM || dump("", 1, &d) != 0) {
        mhla_chars_free(&d.text);
        return NULL;
    }
    char *plain = d.text.data, *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const char *done = plain; /* written up to here */
    int inside = 0;           /* a string */
    for (const char *at = plain; out && *at;) {
        if (inside || (*at != '-' && !(*at >= '0' && *at <= '9'))) {
            if (*at == '"') inside = !inside;
            at += inside && *at == '\\' ? 2 : 1;
            continue;
        }
        char digits[40], *end;
        const size_t length = strspn(at, "-+.eE0123456789");
        const double x = strtod(at, &end);
        if (end == at + length && strcspn(at, ".eE") < length) {
            fwrite(done, 1, (size_t)(at - done), out);
            fwrite(digits, 1, (size_t)shortest(digits, x), out);
            done = end;
        }
        at += length;
    }
    if (out) fputs(done, out);
    if (out && fclose(out) != 0) {
        free(text);
        text = NULL;
    }
    mhla_chars_free(&d.text);
    return text;
}

mhla_status mhla_json_save(const json_t *tree, const char *path) {
    char *text = mhla_json_text(tree, JSON_INDENT(2));
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
    if (json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63) /* an integer, but for int64 too large */
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s: expected %lld to %lld", file, key, found(v).text,
                         (long long)least, (long long)most);
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

static _Thread_local unsigned lost;

void mhla_json_put(json_t *object, const char *key, json_t *value) {
    lost += json_object_set_new(object, key, value) != 0;
}
void mhla_json_add(json_t *array, json_t *value) { lost += json_array_append_new(array, value) != 0; }
unsigned mhla_json_lost(void) { return lost; }

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
    /* a run may come from somebody else: its log must not be a link to a file of ours, or anything but a file */
    const int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, errno == ELOOP ? "a symbolic link" : strerror(errno));
    struct stat info;
    off_t end = -1;
    if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
        close(fd);
        return mhla_fail(MHLA_EIO, "%s: not a regular file", path);
    }
    /* its name must be on the disk before whoever flushes its lines relies on them */
    if (fstat(fd, &info) == 0 && (end = whole_lines(fd, info.st_size)) >= 0 &&
        (end == info.st_size || ftruncate(fd, end) == 0) && mhla_file_sync_folder(path) == 0) {
        log->fd = fd;
        return MHLA_OK;
    }
    const mhla_status status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    close(fd);
    return status;
}

mhla_status mhla_jsonl_write(mhla_jsonl *log, json_t *row) {
    char *text = row ? mhla_json_text(row, JSON_COMPACT) : NULL;
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

mhla_status mhla_jsonl_flush(const mhla_jsonl *log) {
    if (log->fd < 0 || fsync(log->fd) == 0 || errno == EINVAL) return MHLA_OK; /* some file systems cannot */
    return mhla_fail(MHLA_EIO, "%s: %s", log->path, strerror(errno));
}

mhla_status mhla_jsonl_close(mhla_jsonl *log) {
    if (log->fd < 0) return MHLA_OK;
    const mhla_status status = mhla_jsonl_flush(log);
    close(log->fd);
    log->fd = -1;
    return status;
}

/* The value of the line at *at, which moves behind it; NULL at the end, or where the last line is torn. */
static mhla_status next_line(json_t **value, const char **at, const mhla_file *file, const char *path, int64_t number) {
    const char *end = (const char *)file->data + file->size;
    const char *newline = *at < end ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;
    char name[4200];
    *value = NULL;
    if (newline == NULL) return MHLA_OK;
    snprintf(name, sizeof name, "%s: line %lld", path, (long long)number);
    MHLA_TRY(mhla_json_parse(value, *at, (size_t)(newline - *at), name));
    *at = newline + 1;
    return MHLA_OK;
}

mhla_status mhla_jsonl_read(const char *path, mhla_status (*row)(void *user, const json_t *value), void *user) {
    mhla_file file;
    json_t *value;
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = MHLA_OK;
    const char *at = (const char *)file.data;
    for (int64_t number = 1; status == MHLA_OK; number++) {
        status = next_line(&value, &at, &file, path, number);
        if (value == NULL) break;
        status = row(user, value);
        json_decref(value);
    }
    mhla_file_unmap(&file);
    return status;
}

/* Where the lines that keep() wants end. After a loss of power lines may be damaged, but none that was flushed: a damaged line
 * ends the file, unless one that is wanted comes behind it. */
static mhla_status wanted_end(const char **end, const mhla_file *file, const char *path,
                              int (*keep)(const void *user, const json_t *value), const void *user) {
    const char *at = (const char *)file->data;
    mhla_status damaged = MHLA_OK;
    char why[512] = "";
    json_t *value;
    *end = at;
    for (int64_t number = 1;; number++) {
        const mhla_status status = next_line(&value, &at, file, path, number);
        if (status != MHLA_OK && status != MHLA_EDATA) return status;
        if (status == MHLA_EDATA) {
            const char *newline = memchr(at, '\n', file->size - (size_t)(at - (const char *)file->data));
            if (damaged == MHLA_OK) snprintf(why, sizeof why, "%s", mhla_message());
            damaged = status;
            at = newline + 1;
            continue;
        }
        if (value == NULL) return MHLA_OK;
        const int kept = keep(user, value);
        json_decref(value);
        if (kept && damaged != MHLA_OK) return mhla_fail(damaged, "%s", why);
        if (!kept) return MHLA_OK;
        *end = at;
    }
}

mhla_status mhla_jsonl_cut(const char *path, int (*keep)(const void *user, const json_t *value), const void *user) {
    mhla_file file;
    const char *end;
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = wanted_end(&end, &file, path, keep, user);
    const off_t size = status == MHLA_OK ? end - (const char *)file.data : 0;
    mhla_file_unmap(&file);
    MHLA_TRY(status);
    const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* a link's file is not ours to cut */
    if (fd < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, errno == ELOOP ? "a symbolic link" : strerror(errno));
    if (ftruncate(fd, size) != 0) status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    close(fd);
    return status;
}
