/* Reading GGUF: the header goes by a cursor that never leaves the file, everything is checked once, and what is handed
 * out then points into the mapping. Memory stays proportional to the header whatever it says. */
#include "file/gguf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/dtype.h"
#include "file/file.h"
#include "file/gguf_types.h"
#include "file/text.h"

enum { VALUE_LEAST = 13, TENSOR_LEAST = 32, ALIGNMENT = 32, ALIGNMENT_MOST = 1 << 20 };

struct mhla_gguf {
    char *path;
    mhla_file map;
    mhla_gguf_value *values;                 /* [value_count] */
    mhla_gguf_tensor *tensors;               /* [tensor_count] */
    const mhla_gguf_value **value_by_key;    /* sorted */
    const mhla_gguf_tensor **tensor_by_name; /* sorted */
    int64_t value_count, tensor_count;
};

typedef struct cursor {
    mhla_gguf *f;
    const unsigned char *bytes;
    size_t at, size;
    const char *what, *name; /* "key" or "tensor" being read, and its name; NULL: neither */
} cursor;

static mhla_status no_memory(const char *path) { return mhla_fail(MHLA_ENOMEM, "%s: no memory to open it", path); }

/* "path: byte 17, key "x": what" */
static mhla_status wrong(const cursor *c, size_t byte, const char *format, ...) __attribute__((format(printf, 3, 4)));
static mhla_status wrong(const cursor *c, size_t byte, const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (c->name)
        return mhla_fail(MHLA_EDATA, "%s: byte %zu, %s %s: %s", c->f->path, byte, c->what, MHLA_QUOTE(c->name), what);
    return mhla_fail(MHLA_EDATA, "%s: byte %zu: %s", c->f->path, byte, what);
}

static mhla_status take(cursor *c, void *to, size_t bytes, const char *what) {
    if (c->size - c->at < bytes) return wrong(c, c->at, "the file ends inside %s", what);
    memcpy(to, c->bytes + c->at, bytes);
    c->at += bytes;
    return MHLA_OK;
}

static mhla_status take_string(cursor *c, mhla_gguf_string *s, const char *what) {
    uint64_t length = 0;
    MHLA_TRY(take(c, &length, 8, what));
    if (c->size - c->at < length)
        return wrong(c, c->at - 8, "%s of %llu bytes, %zu are left", what, (unsigned long long)length, c->size - c->at);
    *s = (mhla_gguf_string){(const char *)c->bytes + c->at, (size_t)length};
    c->at += (size_t)length;
    return MHLA_OK;
}

/* A key or a name, copied with a zero behind it; who owns *name frees it. */
static mhla_status take_name(cursor *c, const char **name, const char *what) {
    const size_t byte = c->at;
    mhla_gguf_string s = {NULL, 0};
    c->name = NULL;
    MHLA_TRY(take_string(c, &s, what));
    if (s.length == 0) return wrong(c, byte, "%s is empty", what);
    if (memchr(s.data, 0, s.length)) return wrong(c, byte, "a NUL inside %s", what);
    *name = c->name = strndup(s.data, s.length);
    return *name ? MHLA_OK : no_memory(c->f->path);
}

/* ---- Metadata ---- */

static const struct {
    const char *text;
    size_t size; /* bytes of one; 0: strings and arrays */
} kinds[MHLA_GGUF_KINDS] = {
    [MHLA_GGUF_UINT8] = {"uint8", 1},   [MHLA_GGUF_INT8] = {"int8", 1},       [MHLA_GGUF_UINT16] = {"uint16", 2},
    [MHLA_GGUF_INT16] = {"int16", 2},   [MHLA_GGUF_UINT32] = {"uint32", 4},   [MHLA_GGUF_INT32] = {"int32", 4},
    [MHLA_GGUF_UINT64] = {"uint64", 8}, [MHLA_GGUF_INT64] = {"int64", 8},     [MHLA_GGUF_FLOAT32] = {"float32", 4},
    [MHLA_GGUF_BOOL] = {"bool", 1},     [MHLA_GGUF_FLOAT64] = {"float64", 8}, [MHLA_GGUF_STRING] = {"text", 0},
    [MHLA_GGUF_ARRAY] = {"array", 0}};

size_t mhla_gguf_kind_size(mhla_gguf_kind kind) { return kinds[kind].size; }

static mhla_status take_kind(cursor *c, mhla_gguf_kind *kind) {
    uint32_t k = 0;
    const size_t byte = c->at;
    MHLA_TRY(take(c, &k, 4, "the kind of a value"));
    if (k >= MHLA_GGUF_KINDS) return wrong(c, byte, "%u is not a kind of value", (unsigned)k);
    *kind = (mhla_gguf_kind)k;
    return MHLA_OK;
}

static mhla_status take_strings(cursor *c, mhla_gguf_value *v) {
    if ((uint64_t)v->count > (c->size - c->at) / 8)
        return wrong(c, c->at, "%lld texts, but %zu bytes are left", (long long)v->count, c->size - c->at);
    mhla_gguf_string *list = malloc(((size_t)v->count + 1) * sizeof *list);
    if (list == NULL) return no_memory(c->f->path);
    v->strings = list;
    for (int64_t i = 0; i < v->count; i++) MHLA_TRY(take_string(c, &list[i], "a text"));
    return MHLA_OK;
}

static mhla_status take_value(cursor *c, mhla_gguf_value *v) {
    MHLA_TRY(take_name(c, &v->key, "a key"));
    MHLA_TRY(take_kind(c, &v->kind));
    v->count = 1;
    if (v->kind == MHLA_GGUF_ARRAY) {
        uint64_t count = 0;
        v->array = 1;
        MHLA_TRY(take_kind(c, &v->kind));
        if (v->kind == MHLA_GGUF_ARRAY) return wrong(c, c->at - 4, "an array of arrays");
        MHLA_TRY(take(c, &count, 8, "the length of an array"));
        if (count > c->size - c->at)
            return wrong(c, c->at - 8, "an array of %llu, but %zu bytes are left", (unsigned long long)count,
                         c->size - c->at);
        v->count = (int64_t)count;
    }
    if (v->kind == MHLA_GGUF_STRING) return take_strings(c, v);
    const size_t size = kinds[v->kind].size;
    if ((uint64_t)v->count > (c->size - c->at) / size)
        return wrong(c, c->at, "%lld of kind %s, but %zu bytes are left", (long long)v->count, kinds[v->kind].text,
                     c->size - c->at);
    v->data = c->bytes + c->at;
    c->at += (size_t)v->count * size;
    return MHLA_OK;
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(const mhla_gguf_value *const *)a)->key, (*(const mhla_gguf_value *const *)b)->key);
}

static mhla_status take_values(cursor *c, uint64_t count) {
    mhla_gguf *f = c->f;
    if (count > (c->size - c->at) / VALUE_LEAST)
        return wrong(c, 16, "%llu keys, but %zu bytes are left", (unsigned long long)count, c->size - c->at);
    f->values = calloc((size_t)count + 1, sizeof *f->values);
    f->value_by_key = malloc(((size_t)count + 1) * sizeof *f->value_by_key);
    if (f->values == NULL || f->value_by_key == NULL) return no_memory(f->path);
    for (uint64_t i = 0; i < count; i++) {
        f->value_count++;
        f->value_by_key[i] = &f->values[i];
        MHLA_TRY(take_value(c, &f->values[i]));
    }
    c->name = NULL;
    qsort(f->value_by_key, (size_t)count, sizeof *f->value_by_key, by_key);
    for (uint64_t i = 1; i < count; i++)
        if (by_key(&f->value_by_key[i - 1], &f->value_by_key[i]) == 0)
            return mhla_fail(MHLA_EDATA, "%s: the key %s occurs twice", f->path, MHLA_QUOTE(f->value_by_key[i]->key));
    return MHLA_OK;
}

/* ---- Tensors ---- */

/* Everything but where its bytes lie; *offset is that, from the beginning of the data. */
static mhla_status take_tensor(cursor *c, mhla_gguf_tensor *t, uint64_t *offset) {
    uint32_t rank = 0, type = 0;
    MHLA_TRY(take_name(c, &t->name, "the name of a tensor"));
    MHLA_TRY(take(c, &rank, 4, "a tensor's rank"));
    if (rank < 1 || rank > MHLA_GGUF_RANK)
        return wrong(c, c->at - 4, "%u axes: expected 1 to %d", (unsigned)rank, MHLA_GGUF_RANK);
    t->rank = (int)rank;
    t->count = 1;
    for (int i = t->rank - 1; i >= 0; i--) { /* the file begins with the columns */
        uint64_t n = 0;
        MHLA_TRY(take(c, &n, 8, "a tensor's shape"));
        if (n < 1 || n > INT64_MAX / 64 || __builtin_mul_overflow(t->count, (int64_t)n, &t->count) ||
            t->count > INT64_MAX / 64)
            return wrong(c, c->at - 8, "an axis of %llu: more than a file can hold, or none", (unsigned long long)n);
        t->shape[i] = (int64_t)n;
    }
    t->cols = t->shape[t->rank - 1];
    t->rows = t->count / t->cols;
    MHLA_TRY(take(c, &type, 4, "a tensor's type"));
    const mhla_gguf_layout *l = mhla_gguf_layout_of(type);
    if (l == NULL)
        return mhla_fail(MHLA_ENOTSUP, "%s: byte %zu, tensor %s: no type number %u is known", c->f->path, c->at - 4,
                         MHLA_QUOTE(t->name), (unsigned)type);
    if (t->cols % l->block != 0)
        return wrong(c, c->at - 4, "rows of %lld cannot be %s, which has blocks of %d", (long long)t->cols, l->text,
                     l->block);
    t->type = (mhla_gguf_type)type;
    t->bytes = (size_t)(t->count / l->block) * (size_t)l->bytes;
    t->path = c->f->path;
    return take(c, offset, 8, "a tensor's offset");
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const mhla_gguf_tensor *const *)a)->name, (*(const mhla_gguf_tensor *const *)b)->name);
}
static int by_data(const void *a, const void *b) {
    const unsigned char *x = (*(const mhla_gguf_tensor *const *)a)->data,
                        *y = (*(const mhla_gguf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

/* Puts each tensor into the data, which begin at `begin`: inside, aligned. */
static mhla_status place_tensors(cursor *c, const uint64_t *offsets, size_t begin, int64_t alignment) {
    mhla_gguf *f = c->f;
    const size_t room = c->size > begin ? c->size - begin : 0;
    c->what = "tensor";
    for (int64_t i = 0; i < f->tensor_count; i++) {
        mhla_gguf_tensor *t = &f->tensors[i];
        c->name = t->name;
        if (offsets[i] % (uint64_t)alignment != 0)
            return wrong(c, begin, "its offset of %llu is not a multiple of %lld", (unsigned long long)offsets[i],
                         (long long)alignment);
        if (offsets[i] > room || t->bytes > room - offsets[i])
            return wrong(c, begin, "its %zu bytes at offset %llu of the data end after the file's end", t->bytes,
                         (unsigned long long)offsets[i]);
        t->data = c->bytes + begin + offsets[i];
    }
    c->name = NULL;
    return MHLA_OK;
}

/* No bytes belong to two tensors, no name to two. */
static mhla_status check_apart(mhla_gguf *f) {
    const mhla_gguf_tensor **list = f->tensor_by_name;
    const int64_t n = f->tensor_count;
    for (int64_t i = 0; i < n; i++) list[i] = &f->tensors[i];
    qsort(list, (size_t)n, sizeof *list, by_data);
    for (int64_t i = 1; i < n; i++)
        if (list[i - 1]->data + list[i - 1]->bytes > list[i]->data)
            return mhla_fail(MHLA_EDATA, "%s: the tensors %s and %s overlap", f->path, MHLA_QUOTE(list[i - 1]->name),
                             MHLA_QUOTE(list[i]->name));
    qsort(list, (size_t)n, sizeof *list, by_name);
    for (int64_t i = 1; i < n; i++)
        if (by_name(&list[i - 1], &list[i]) == 0)
            return mhla_fail(MHLA_EDATA, "%s: the tensor %s occurs twice", f->path, MHLA_QUOTE(list[i]->name));
    return MHLA_OK;
}

static mhla_status take_tensors(cursor *c, uint64_t count) {
    mhla_gguf *f = c->f;
    if (count > (c->size - c->at) / TENSOR_LEAST)
        return wrong(c, 8, "%llu tensors, but %zu bytes are left", (unsigned long long)count, c->size - c->at);
    f->tensors = calloc((size_t)count + 1, sizeof *f->tensors);
    f->tensor_by_name = malloc(((size_t)count + 1) * sizeof *f->tensor_by_name);
    uint64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
    mhla_status status = f->tensors && f->tensor_by_name && offsets ? MHLA_OK : no_memory(f->path);
    c->what = "tensor";
    for (uint64_t i = 0; i < count && status == MHLA_OK; i++) {
        f->tensor_count++;
        status = take_tensor(c, &f->tensors[i], &offsets[i]);
    }
    c->name = NULL;
    int64_t alignment = ALIGNMENT;
    if (status == MHLA_OK) status = mhla_gguf_get_int(&alignment, f, "general.alignment", 8, ALIGNMENT_MOST);
    if (status == MHLA_OK && alignment % 8 != 0)
        status = mhla_fail(MHLA_EDATA, "%s: general.alignment is %lld: expected a multiple of 8", f->path,
                           (long long)alignment);
    if (status == MHLA_OK) {
        const size_t a = (size_t)alignment, begin = (c->at + a - 1) / a * a;
        status = place_tensors(c, offsets, begin, alignment);
    }
    free(offsets);
    return status == MHLA_OK ? check_apart(f) : status;
}

/* ---- Opening ---- */

int mhla_gguf_is(const void *bytes, size_t size) { return size >= 4 && memcmp(bytes, "GGUF", 4) == 0; }

static mhla_status read_all(mhla_gguf *f, const unsigned char *bytes, size_t size) {
    cursor c = {.f = f, .bytes = bytes, .size = size, .what = "key"};
    uint32_t version = 0;
    uint64_t counts[2] = {0}; /* tensors, keys */
    if (!mhla_gguf_is(bytes, size)) return mhla_fail(MHLA_EDATA, "%s: does not begin with \"GGUF\"", f->path);
    c.at = 4;
    MHLA_TRY(take(&c, &version, 4, "the version"));
    if (version >= 1u << 24) return mhla_fail(MHLA_ENOTSUP, "%s: a GGUF for big-endian machines", f->path);
    if (version != 2 && version != 3)
        return mhla_fail(MHLA_ENOTSUP, "%s: GGUF version %u: 2 and 3 are known", f->path, (unsigned)version);
    MHLA_TRY(take(&c, counts, 16, "the numbers of tensors and keys"));
    MHLA_TRY(take_values(&c, counts[1]));
    return take_tensors(&c, counts[0]);
}

static mhla_status open_with(mhla_gguf **file, const char *path, const void *bytes, size_t size, int map) {
    *file = NULL;
    mhla_gguf *f = calloc(1, sizeof *f);
    if (f) f->path = strdup(path);
    mhla_status status = f && f->path ? MHLA_OK : no_memory(path);
    if (status == MHLA_OK && map) {
        status = mhla_file_map(&f->map, path);
        bytes = f->map.data, size = f->map.size;
    }
    if (status == MHLA_OK) status = read_all(f, bytes, size);
    if (status == MHLA_OK)
        *file = f;
    else
        mhla_gguf_close(f);
    return status;
}

mhla_status mhla_gguf_open(mhla_gguf **file, const char *path) { return open_with(file, path, NULL, 0, 1); }
mhla_status mhla_gguf_open_bytes(mhla_gguf **file, const void *bytes, size_t size, const char *name) {
    return open_with(file, name, bytes, size, 0);
}

void mhla_gguf_close(mhla_gguf *f) {
    if (f == NULL) return;
    for (int64_t i = 0; i < f->value_count; i++) {
        free((void *)(uintptr_t)f->values[i].key);
        free((void *)(uintptr_t)f->values[i].strings);
    }
    for (int64_t i = 0; i < f->tensor_count; i++) free((void *)(uintptr_t)f->tensors[i].name);
    free(f->values);
    free(f->value_by_key);
    free(f->tensors);
    free(f->tensor_by_name);
    mhla_file_unmap(&f->map);
    free(f->path);
    free(f);
}

const char *mhla_gguf_path(const mhla_gguf *f) { return f->path; }

/* ---- Looking at metadata ---- */

int64_t mhla_gguf_value_count(const mhla_gguf *f) { return f->value_count; }
const mhla_gguf_value *mhla_gguf_value_at(const mhla_gguf *f, int64_t i) { return &f->values[i]; }

const mhla_gguf_value *mhla_gguf_find_value(const mhla_gguf *f, const char *key) {
    const mhla_gguf_value wanted = {.key = key}, *at = &wanted;
    if (f->value_count == 0) return NULL;
    const mhla_gguf_value *const *found =
        bsearch(&at, f->value_by_key, (size_t)f->value_count, sizeof *f->value_by_key, by_key);
    return found ? *found : NULL;
}

#define NUMBER(c_type)                                                                                                 \
    {                                                                                                                  \
        c_type x;                                                                                                      \
        memcpy(&x, v->data + (size_t)i * sizeof x, sizeof x);                                                          \
        return x;                                                                                                      \
    }

int64_t mhla_gguf_int_at(const mhla_gguf_value *v, int64_t i) {
    switch (v->kind) {
    case MHLA_GGUF_UINT8: NUMBER(uint8_t)
    case MHLA_GGUF_INT8: NUMBER(int8_t)
    case MHLA_GGUF_UINT16: NUMBER(uint16_t)
    case MHLA_GGUF_INT16: NUMBER(int16_t)
    case MHLA_GGUF_UINT32: NUMBER(uint32_t)
    case MHLA_GGUF_INT32: NUMBER(int32_t)
    case MHLA_GGUF_INT64: NUMBER(int64_t)
    case MHLA_GGUF_BOOL: return v->data[i] != 0;
    case MHLA_GGUF_UINT64: {
        uint64_t x;
        memcpy(&x, v->data + (size_t)i * sizeof x, sizeof x);
        return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    }
    case MHLA_GGUF_FLOAT32:
    case MHLA_GGUF_FLOAT64: {
        const double x = mhla_gguf_real_at(v, i);
        return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : x == x ? (int64_t)x : 0;
    }
    default: return 0;
    }
}

double mhla_gguf_real_at(const mhla_gguf_value *v, int64_t i) {
    if (v->kind == MHLA_GGUF_FLOAT32) {
        float x;
        memcpy(&x, v->data + (size_t)i * sizeof x, sizeof x);
        return (double)x;
    }
    if (v->kind == MHLA_GGUF_FLOAT64) {
        double x;
        memcpy(&x, v->data + (size_t)i * sizeof x, sizeof x);
        return x;
    }
    return (double)mhla_gguf_int_at(v, i);
}

static mhla_status wrong_kind(const mhla_gguf *f, const mhla_gguf_value *v, const char *expected) {
    return mhla_fail(MHLA_EDATA, "%s: key %s is %s%s, expected %s", f->path, MHLA_QUOTE(v->key),
                     v->array ? "an array of " : "", kinds[v->kind].text, expected);
}

static int is_real(const mhla_gguf_value *v) { return v->kind == MHLA_GGUF_FLOAT32 || v->kind == MHLA_GGUF_FLOAT64; }

mhla_status mhla_gguf_get_int(int64_t *to, const mhla_gguf *f, const char *key, int64_t low, int64_t high) {
    const mhla_gguf_value *v = mhla_gguf_find_value(f, key);
    if (v == NULL) return MHLA_OK;
    if (v->array || v->kind == MHLA_GGUF_STRING || is_real(v)) return wrong_kind(f, v, "a whole number");
    const int64_t n = mhla_gguf_int_at(v, 0);
    if (n < low || n > high)
        return mhla_fail(MHLA_EDATA, "%s: key %s is %lld, expected %lld to %lld", f->path, MHLA_QUOTE(key),
                         (long long)n, (long long)low, (long long)high);
    *to = n;
    return MHLA_OK;
}

mhla_status mhla_gguf_get_real(double *to, const mhla_gguf *f, const char *key) {
    const mhla_gguf_value *v = mhla_gguf_find_value(f, key);
    if (v == NULL) return MHLA_OK;
    if (v->array || v->kind == MHLA_GGUF_STRING) return wrong_kind(f, v, "a number");
    const double x = mhla_gguf_real_at(v, 0);
    if (!isfinite(x)) return mhla_fail(MHLA_EDATA, "%s: key %s is %g", f->path, MHLA_QUOTE(key), x);
    *to = x;
    return MHLA_OK;
}

mhla_status mhla_gguf_get_text(char **to, const mhla_gguf *f, const char *key) {
    const mhla_gguf_value *v = mhla_gguf_find_value(f, key);
    if (v == NULL) return MHLA_OK;
    if (v->array || v->kind != MHLA_GGUF_STRING) return wrong_kind(f, v, "text");
    if (memchr(v->strings->data, 0, v->strings->length))
        return mhla_fail(MHLA_EDATA, "%s: key %s has a NUL inside its text", f->path, MHLA_QUOTE(key));
    char *copy = strndup(v->strings->data, v->strings->length);
    if (copy == NULL) return no_memory(f->path);
    *to = copy;
    return MHLA_OK;
}

mhla_status mhla_gguf_get_strings(const mhla_gguf_value **value, const mhla_gguf *f, const char *key) {
    const mhla_gguf_value *v = *value = mhla_gguf_find_value(f, key);
    return v && (!v->array || v->kind != MHLA_GGUF_STRING) ? wrong_kind(f, v, "an array of texts") : MHLA_OK;
}

mhla_status mhla_gguf_get_numbers(const mhla_gguf_value **value, const mhla_gguf *f, const char *key) {
    const mhla_gguf_value *v = *value = mhla_gguf_find_value(f, key);
    return v && (!v->array || v->kind == MHLA_GGUF_STRING) ? wrong_kind(f, v, "an array of numbers") : MHLA_OK;
}

/* ---- Looking at tensors ---- */

int64_t mhla_gguf_tensor_count(const mhla_gguf *f) { return f->tensor_count; }
const mhla_gguf_tensor *mhla_gguf_tensor_at(const mhla_gguf *f, int64_t i) { return &f->tensors[i]; }

const mhla_gguf_tensor *mhla_gguf_find_tensor(const mhla_gguf *f, const char *name) {
    const mhla_gguf_tensor wanted = {.name = name}, *at = &wanted;
    if (f->tensor_count == 0) return NULL;
    const mhla_gguf_tensor *const *found =
        bsearch(&at, f->tensor_by_name, (size_t)f->tensor_count, sizeof *f->tensor_by_name, by_name);
    return found ? *found : NULL;
}

static mhla_status check_type(const mhla_gguf_tensor *t) {
    if (mhla_gguf_layout_of((uint32_t)t->type)->readable) return MHLA_OK;
    return mhla_fail(MHLA_ENOTSUP,
                     "%s: tensor %s is of type %s; known are F32, F16, BF16, Q8_0, Q4_0, Q4_1, "
                     "Q5_0, Q5_1 and Q2_K to Q6_K",
                     t->path, MHLA_QUOTE(t->name), mhla_gguf_type_text(t->type));
}

mhla_status mhla_gguf_need_tensor(const mhla_gguf_tensor **tensor, const mhla_gguf *f, const char *name) {
    *tensor = mhla_gguf_find_tensor(f, name);
    if (*tensor) return check_type(*tensor);
    mhla_nearest nearest = mhla_nearest_begin(name);
    for (int64_t i = 0; i < f->tensor_count; i++) mhla_nearest_offer(&nearest, f->tensor_by_name[i]->name);
    if (nearest.best)
        return mhla_fail(MHLA_EDATA, "%s: no tensor %s; the nearest is %s", f->path, MHLA_QUOTE(name),
                         MHLA_QUOTE(nearest.best));
    return mhla_fail(MHLA_EDATA, "%s: no tensor %s among its %lld", f->path, MHLA_QUOTE(name),
                     (long long)f->tensor_count);
}

mhla_status mhla_gguf_check_shape(const mhla_gguf_tensor *t, int rank, const int64_t *shape) {
    MHLA_TRY(check_type(t));
    int same = t->rank == rank;
    for (int i = 0; i < rank && same; i++) same = t->shape[i] == shape[i];
    if (same) return MHLA_OK;
    char found[128], expected[128];
    return mhla_fail(MHLA_EDATA, "%s: tensor %s has the shape %s, expected %s", t->path, MHLA_QUOTE(t->name),
                     mhla_io_shape_text(found, sizeof found, t->rank, t->shape),
                     mhla_io_shape_text(expected, sizeof expected, rank, shape));
}

void mhla_gguf_read_rows(float *to, const mhla_gguf_tensor *t, int64_t first, int64_t count) {
    mhla_gguf_to_f32(to, t->data + (size_t)first * mhla_gguf_row_bytes(t->type, t->cols), t->type, count * t->cols);
}
