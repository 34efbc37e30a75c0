/* A safetensors file is: the header's length (8 bytes, little-endian), the header (JSON), the tensors' bytes without
 * gaps. The header is parsed here in one pass, by hand and for this one shape of JSON, so that memory stays
 * proportional to its length whatever it says and a message can name the byte. The limits are the Rust library's. */
#include "file/safetensors_header.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"

enum { PREFIX = 8, HEADER_MOST = 100000000 };

typedef struct place { /* of a tensor, as the header says it, until it has been checked */
    mhla_stored t;
    int64_t begin, end; /* data_offsets */
    size_t byte;        /* of its name in the file */
} place;

typedef struct parser {
    const char *path;
    const unsigned char *text; /* the whole file */
    size_t at, end;            /* of what is left of the header */
    char *strings;             /* [header's length]: an unescaped string with its NUL never takes more than it did */
    size_t used;
    place *places;
    int64_t count, capacity;
    mhla_pair *pairs;
    int64_t pair_count, pair_capacity;
    const char *tensor; /* the one being read, or NULL */
} parser;

/* ---- Tokens ---- */

/* "path: byte 17, tensor "x": what" */
static mhla_status wrong(const parser *p, size_t byte, const char *format, ...) __attribute__((format(printf, 3, 4)));
static mhla_status wrong(const parser *p, size_t byte, const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (p->tensor)
        return mhla_fail(MHLA_EDATA, "%s: byte %zu, tensor %s: %s", p->path, byte, MHLA_QUOTE(p->tensor), what);
    return mhla_fail(MHLA_EDATA, "%s: byte %zu: %s", p->path, byte, what);
}

static void skip_space(parser *p) {
    while (p->at < p->end && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at]) p->at++;
}

/* Takes the character if it is next. */
static int take(parser *p, char c) {
    skip_space(p);
    if (p->at >= p->end || p->text[p->at] != (unsigned char)c) return 0;
    p->at++;
    return 1;
}

static mhla_status expect(parser *p, char c, const char *where) {
    if (take(p, c)) return MHLA_OK;
    if (p->at >= p->end) return wrong(p, p->at, "the header ends where '%c' was expected %s", c, where);
    const mhla_quoted found = mhla_quote_bytes((const char *)p->text + p->at, 1);
    return wrong(p, p->at, "expected '%c' %s, found %s", c, where, found.text);
}

static int hex4(const parser *p, size_t at, uint32_t *code) {
    if (p->end - at < 4) return 0;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned char c = p->text[at + (size_t)i];
        const int digit = c >= '0' && c <= '9'                 ? c - '0'
                          : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                               : -1;
        if (digit < 0) return 0;
        *code = *code * 16 + (uint32_t)digit;
    }
    return 1;
}

/* \n, \u00e9, \ud83d\ude00: the part behind the backslash at p->at, as UTF-8 at the end of the strings. */
static mhla_status read_escape(parser *p) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const size_t byte = p->at - 1;
    const char c = p->at < p->end ? (char)p->text[p->at++] : '\0';
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        p->strings[p->used++] = meanings[letter - letters];
        return MHLA_OK;
    }
    uint32_t code, low;
    if (c != 'u' || !hex4(p, p->at, &code)) return wrong(p, byte, "an escape that JSON does not have");
    p->at += 4;
    if (code >= 0xd800 && code < 0xdc00 && p->end - p->at >= 6 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u' &&
        hex4(p, p->at + 2, &low) && low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        p->at += 6;
    }
    if (code >= 0xd800 && code < 0xe000) return wrong(p, byte, "half of a surrogate pair");
    if (code == 0) return wrong(p, byte, "a NUL inside a string");
    p->used += (size_t)mhla_utf8_put((unsigned char *)p->strings + p->used, code);
    return MHLA_OK;
}

static mhla_status read_string(parser *p, const char **string, const char *what) {
    MHLA_TRY(expect(p, '"', what));
    const size_t begin = p->used;
    while (p->at < p->end && p->text[p->at] != '"') {
        const unsigned char c = p->text[p->at];
        if (c == '\\') {
            p->at++;
            MHLA_TRY(read_escape(p));
            continue;
        }
        const int length = mhla_utf8_length(p->text + p->at, p->end - p->at);
        if (c < 0x20) return wrong(p, p->at, "a control character inside a string");
        if (length == 0) return wrong(p, p->at, "not UTF-8");
        memcpy(p->strings + p->used, p->text + p->at, (size_t)length);
        p->used += (size_t)length, p->at += (size_t)length;
    }
    if (p->at >= p->end) return wrong(p, p->at, "the header ends inside a string");
    p->at++;
    p->strings[p->used++] = '\0';
    *string = p->strings + begin;
    return MHLA_OK;
}

/* A whole number, 0 to 2^63 - 1. */
static mhla_status read_number(parser *p, int64_t *number, const char *what) {
    skip_space(p);
    const size_t begin = p->at;
    int64_t n = 0;
    for (; p->at < p->end && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, p->text[p->at] - '0', &n))
            return wrong(p, begin, "%s is 2^63 or more", what);
    const unsigned char next = p->at < p->end ? p->text[p->at] : ' ';
    if (p->at == begin || next == '.' || next == 'e' || next == 'E')
        return wrong(p, begin, "%s is not a whole number, 0 or more", what);
    if (p->text[begin] == '0' && p->at > begin + 1) return wrong(p, begin, "%s begins with a zero", what);
    *number = n;
    return MHLA_OK;
}

/* ---- Tensors ---- */

static mhla_status read_dtype(parser *p, mhla_stored *t) {
    skip_space(p);
    const size_t byte = p->at;
    const char *text = "";
    MHLA_TRY(read_string(p, &text, "for the dtype"));
    for (int i = 0; i < MHLA_IO_DTYPES; i++)
        if (strcmp(text, mhla_io_dtype_text((mhla_io_dtype)i)) == 0) {
            t->dtype = (mhla_io_dtype)i;
            return MHLA_OK;
        }
    return wrong(p, byte, "dtype %s is none that is known (F32, BF16, F16, F64, I64, ...)", MHLA_QUOTE(text));
}

static mhla_status read_shape(parser *p, mhla_stored *t) {
    MHLA_TRY(expect(p, '[', "for the shape"));
    if (take(p, ']')) return MHLA_OK;
    do {
        if (t->rank == MHLA_SAFETENSORS_RANK) return wrong(p, p->at, "more than %d axes", MHLA_SAFETENSORS_RANK);
        MHLA_TRY(read_number(p, &t->shape[t->rank++], "a size of the shape"));
    } while (take(p, ','));
    return expect(p, ']', "after the shape");
}

static mhla_status read_offsets(parser *p, place *at) {
    MHLA_TRY(expect(p, '[', "for data_offsets"));
    MHLA_TRY(read_number(p, &at->begin, "the first of data_offsets"));
    MHLA_TRY(expect(p, ',', "between data_offsets"));
    MHLA_TRY(read_number(p, &at->end, "the second of data_offsets"));
    return expect(p, ']', "after data_offsets");
}

/* The bytes that dtype and shape take against those that data_offsets give. */
static mhla_status check_size(parser *p, place *at) {
    mhla_stored *t = &at->t;
    char shape[128];
    int64_t bytes;
    t->count = 1;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
            return wrong(p, at->byte, "shape %s has more elements than can be counted",
                         mhla_io_shape_text(shape, sizeof shape, t->rank, t->shape));
    if (__builtin_mul_overflow(t->count, (int64_t)mhla_io_dtype_size(t->dtype), &bytes))
        return wrong(p, at->byte, "shape %s has more bytes than can be counted",
                     mhla_io_shape_text(shape, sizeof shape, t->rank, t->shape));
    if (at->end < at->begin)
        return wrong(p, at->byte, "data_offsets [%lld, %lld] go backwards", (long long)at->begin, (long long)at->end);
    if (at->end - at->begin != bytes)
        return wrong(p, at->byte, "shape %s of %s takes %lld bytes, data_offsets give it %lld",
                     mhla_io_shape_text(shape, sizeof shape, t->rank, t->shape), mhla_io_dtype_text(t->dtype),
                     (long long)bytes, (long long)(at->end - at->begin));
    t->bytes = (size_t)bytes;
    return MHLA_OK;
}

static mhla_status read_tensor(parser *p, const char *name, size_t byte) {
    if (p->count == p->capacity) {
        const int64_t capacity = p->capacity ? 2 * p->capacity : 64;
        place *grown = realloc(p->places, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its header", p->path);
        p->places = grown, p->capacity = capacity;
    }
    place *at = &p->places[p->count++];
    *at = (place){.t = {.name = name, .path = p->path}, .byte = byte};
    p->tensor = name;
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    int seen[3] = {0};
    MHLA_TRY(expect(p, '{', "for a tensor"));
    do {
        skip_space(p);
        const size_t key_byte = p->at;
        const char *key = "";
        MHLA_TRY(read_string(p, &key, "for a field"));
        MHLA_TRY(expect(p, ':', "after a field's name"));
        int f = 0;
        while (f < 3 && strcmp(key, fields[f]) != 0) f++;
        if (f == 3) return wrong(p, key_byte, "field %s is none of dtype, shape, data_offsets", MHLA_QUOTE(key));
        if (seen[f]++) return wrong(p, key_byte, "field \"%s\" occurs twice", key);
        MHLA_TRY(f == 0 ? read_dtype(p, &at->t) : f == 1 ? read_shape(p, &at->t) : read_offsets(p, at));
    } while (take(p, ','));
    MHLA_TRY(expect(p, '}', "after a tensor"));
    for (int f = 0; f < 3; f++)
        if (!seen[f]) return wrong(p, byte, "field \"%s\" is missing", fields[f]);
    MHLA_TRY(check_size(p, at));
    p->tensor = NULL;
    return MHLA_OK;
}

static mhla_status read_metadata(parser *p) {
    MHLA_TRY(expect(p, '{', "for __metadata__"));
    if (take(p, '}')) return MHLA_OK;
    do {
        if (p->pair_count == p->pair_capacity) {
            const int64_t capacity = p->pair_capacity ? 2 * p->pair_capacity : 8;
            mhla_pair *grown = realloc(p->pairs, (size_t)capacity * sizeof *grown);
            if (grown == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its metadata", p->path);
            p->pairs = grown, p->pair_capacity = capacity;
        }
        mhla_pair *pair = &p->pairs[p->pair_count++];
        MHLA_TRY(read_string(p, &pair->key, "for a key of __metadata__"));
        MHLA_TRY(expect(p, ':', "after a key of __metadata__"));
        MHLA_TRY(read_string(p, &pair->value, "for a value of __metadata__, which holds texts only,"));
    } while (take(p, ','));
    return expect(p, '}', "after __metadata__");
}

static mhla_status read_all(parser *p) {
    if (p->text[p->at] != '{') return wrong(p, p->at, "the header does not begin with '{': not a safetensors file");
    p->at++;
    int metadata = 0;
    if (!take(p, '}')) {
        do {
            skip_space(p);
            const size_t byte = p->at;
            const char *name = "";
            MHLA_TRY(read_string(p, &name, "for a tensor's name"));
            MHLA_TRY(expect(p, ':', "after a tensor's name"));
            if (strcmp(name, "__metadata__") != 0) {
                MHLA_TRY(read_tensor(p, name, byte));
            } else {
                if (metadata++) return wrong(p, byte, "__metadata__ occurs twice");
                MHLA_TRY(read_metadata(p));
            }
        } while (take(p, ','));
        MHLA_TRY(expect(p, '}', "at the end of the header"));
    }
    skip_space(p);
    if (p->at < p->end) return wrong(p, p->at, "there are characters after the header's last '}'");
    return MHLA_OK;
}

/* ---- The whole against itself ---- */

static int by_name(const void *a, const void *b) {
    const place *x = *(const place *const *)a, *y = *(const place *const *)b;
    const int c = strcmp(x->t.name, y->t.name);
    return c ? c : (x->byte > y->byte) - (x->byte < y->byte);
}
static int by_offset(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return (x->byte > y->byte) - (x->byte < y->byte);
}

static int pair_by_key(const void *a, const void *b) {
    return strcmp(((const mhla_pair *)a)->key, ((const mhla_pair *)b)->key);
}

static mhla_status check_unique(parser *p) {
    const place **sorted = malloc((size_t)(p->count ? p->count : 1) * sizeof *sorted);
    if (sorted == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its names", p->path);
    for (int64_t i = 0; i < p->count; i++) sorted[i] = &p->places[i];
    qsort(sorted, (size_t)p->count, sizeof *sorted, by_name);
    mhla_status status = MHLA_OK;
    for (int64_t i = 1; i < p->count && status == MHLA_OK; i++)
        if (strcmp(sorted[i - 1]->t.name, sorted[i]->t.name) == 0) {
            p->tensor = sorted[i]->t.name;
            status = wrong(p, sorted[i]->byte, "the name occurs twice, first at byte %zu", sorted[i - 1]->byte);
        }
    free(sorted);
    MHLA_TRY(status);
    if (p->pair_count) qsort(p->pairs, (size_t)p->pair_count, sizeof *p->pairs, pair_by_key);
    for (int64_t i = 1; i < p->pair_count; i++)
        if (strcmp(p->pairs[i - 1].key, p->pairs[i].key) == 0)
            return mhla_fail(MHLA_EDATA, "%s: key %s of __metadata__ occurs twice", p->path,
                             MHLA_QUOTE(p->pairs[i].key));
    return MHLA_OK;
}

/* Sorts the tensors by their bytes, which must fill what follows the header without gap or overlap. */
static mhla_status check_layout(parser *p, size_t size) {
    const int64_t room = (int64_t)(size - p->end);
    if (p->count) qsort(p->places, (size_t)p->count, sizeof *p->places, by_offset);
    int64_t filled = 0;
    for (int64_t i = 0; i < p->count; i++) {
        place *at = &p->places[i];
        p->tensor = at->t.name;
        if (at->begin < filled)
            return wrong(p, at->byte, "its data begin at %lld, inside those of %s, which end at %lld",
                         (long long)at->begin, MHLA_QUOTE(p->places[i - 1].t.name), (long long)filled);
        if (at->end > room)
            return wrong(p, at->byte, "its data end at %lld, but there are %lld bytes of data: the file is cut short",
                         (long long)at->end, (long long)room);
        if (at->begin > filled)
            return wrong(p, at->byte, "its data begin at %lld, which leaves a gap after %lld", (long long)at->begin,
                         (long long)filled);
        filled = at->end;
        at->t.data = at->t.bytes ? p->text + p->end + at->begin : NULL;
    }
    p->tensor = NULL;
    if (filled != room)
        return wrong(p, p->end + (size_t)filled, "%lld bytes follow the last tensor", (long long)(room - filled));
    return MHLA_OK;
}

mhla_status mhla_st_header_read(mhla_st_header *h, const unsigned char *bytes, size_t size, const char *path) {
    *h = (mhla_st_header){0};
    if (size < PREFIX + 2) return mhla_fail(MHLA_EDATA, "%s: %zu bytes are too few for a safetensors file", path, size);
    uint64_t length = 0;
    for (int i = 0; i < PREFIX; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HEADER_MOST)
        return mhla_fail(MHLA_EDATA, "%s: byte 0: the header's length is %llu, more than %d: not a safetensors file",
                         path, (unsigned long long)length, HEADER_MOST);
    if (length > size - PREFIX || length < 2)
        return mhla_fail(MHLA_EDATA, "%s: byte 0: the header's length is %llu, but %zu bytes follow%s", path,
                         (unsigned long long)length, size - PREFIX, length < 2 ? "" : ": the file is cut short");
    parser p = {.path = path, .text = bytes, .at = PREFIX, .end = PREFIX + (size_t)length};
    p.strings = malloc((size_t)length);
    mhla_status status = p.strings ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for its header", path);
    if (status == MHLA_OK) status = read_all(&p);
    if (status == MHLA_OK) status = check_unique(&p);
    if (status == MHLA_OK) status = check_layout(&p, size);
    if (status == MHLA_OK && p.count) {
        h->tensors = malloc((size_t)p.count * sizeof *h->tensors);
        if (h->tensors == NULL) status = mhla_fail(MHLA_ENOMEM, "%s: no memory for its tensors", path);
    }
    if (status == MHLA_OK) {
        for (int64_t i = 0; i < p.count; i++) h->tensors[i] = p.places[i].t;
        h->count = p.count;
        h->metadata = p.pairs, h->pairs = p.pair_count;
        h->strings = p.strings;
    } else {
        free(p.pairs);
        free(p.strings);
    }
    free(p.places);
    return status;
}

void mhla_st_header_free(mhla_st_header *h) {
    for (int64_t i = 0; h->copies && i < h->count; i++) free(h->copies[i]);
    free(h->copies);
    free(h->tensors);
    free(h->metadata);
    free(h->strings);
    *h = (mhla_st_header){0};
}
