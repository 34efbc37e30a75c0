#include "file/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"

enum { MAGIC = 6, HEADER_MOST = 65536 };
static const unsigned char magic[MAGIC] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

static const struct {
    const char *descr;
    mhla_io_dtype dtype;
} types[] = {
    {"<f4", MHLA_IO_F32}, {"<f8", MHLA_IO_F64}, {"<f2", MHLA_IO_F16},  {"|u1", MHLA_IO_U8},
    {"<i8", MHLA_IO_I64}, {"<i4", MHLA_IO_I32}, {"|b1", MHLA_IO_BOOL},
};
enum { TYPES = sizeof types / sizeof *types };

/* ---- The header: a Python dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } ---- */

typedef struct parser {
    const char *name;
    const char *text; /* the whole file */
    size_t at, end;
} parser;

static mhla_status wrong(const parser *p, const char *what) {
    return mhla_fail(MHLA_EDATA, "%s: byte %zu: %s", p->name, p->at, what);
}
static void skip_space(parser *p) {
    while (p->at < p->end && (p->text[p->at] == ' ' || p->text[p->at] == '\t' || p->text[p->at] == '\n')) p->at++;
}
static int take(parser *p, char c) {
    skip_space(p);
    if (p->at >= p->end || p->text[p->at] != c) return 0;
    p->at++;
    return 1;
}
static int take_word(parser *p, const char *word) {
    skip_space(p);
    const size_t n = strlen(word);
    if (p->end - p->at < n || memcmp(p->text + p->at, word, n) != 0) return 0;
    p->at += n;
    return 1;
}

/* A string without escapes: where it lies and how long it is. */
static int take_string(parser *p, const char **text, size_t *length) {
    const char quote = take(p, '\'') ? '\'' : take(p, '"') ? '"' : '\0';
    if (quote == '\0') return 0;
    const char *end = memchr(p->text + p->at, quote, p->end - p->at);
    if (end == NULL) return 0;
    *text = p->text + p->at;
    *length = (size_t)(end - *text);
    p->at += *length + 1;
    return 1;
}

static mhla_status read_descr(parser *p, mhla_npy *a) {
    const size_t byte = p->at;
    const char *text;
    size_t length;
    if (!take_string(p, &text, &length)) return wrong(p, "'descr' is not one plain type");
    for (int i = 0; i < TYPES; i++)
        if (length == 3 && memcmp(text + 1, types[i].descr + 1, 2) == 0 &&
            (text[0] == types[i].descr[0] || text[0] == (types[i].descr[0] == '<' ? '=' : '<'))) {
            a->dtype = types[i].dtype;
            return MHLA_OK;
        }
    const mhla_quoted found = mhla_quote_bytes(text, length);
    return mhla_fail(MHLA_ENOTSUP,
                     "%s: byte %zu: type %s: expected float32, float64, float16, uint8, int64, int32 or bool%s",
                     p->name, byte, found.text, length && text[0] == '>' ? " in little-endian order" : "");
}

static mhla_status read_shape(parser *p, mhla_npy *a) {
    if (!take(p, '(')) return wrong(p, "expected '(' for the shape");
    while (!take(p, ')')) {
        if (a->rank == MHLA_NPY_RANK) return wrong(p, "more axes than are supported (8)");
        int64_t n = 0;
        const size_t begin = p->at;
        for (; p->at < p->end && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
            if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, p->text[p->at] - '0', &n))
                return wrong(p, "a size of 2^63 or more");
        if (p->at == begin) return wrong(p, "expected a size, 0 or more");
        a->shape[a->rank++] = n;
        if (take(p, ',')) continue;
        if (!take(p, ')')) return wrong(p, "expected ',' or ')' in the shape");
        break;
    }
    return MHLA_OK;
}

static mhla_status read_header(parser *p, mhla_npy *a) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    int seen[3] = {0};
    if (!take(p, '{')) return wrong(p, "expected '{'");
    while (!take(p, '}')) {
        const char *key;
        size_t length;
        if (!take_string(p, &key, &length)) return wrong(p, "expected a key in quotes");
        int k = 0;
        while (k < 3 && (strlen(keys[k]) != length || memcmp(keys[k], key, length) != 0)) k++;
        if (k == 3 || seen[k]++) return wrong(p, k == 3 ? "an unknown key" : "a key occurs twice");
        if (!take(p, ':')) return wrong(p, "expected ':' after a key");
        if (k == 0) MHLA_TRY(read_descr(p, a));
        if (k == 1) {
            if (take_word(p, "True"))
                return mhla_fail(MHLA_ENOTSUP,
                                 "%s: the array is in Fortran (column-major) order: save numpy.ascontiguousarray(x)",
                                 p->name);
            if (!take_word(p, "False")) return wrong(p, "'fortran_order' is neither True nor False");
        }
        if (k == 2) MHLA_TRY(read_shape(p, a));
        if (take(p, ',')) continue;
        if (!take(p, '}')) return wrong(p, "expected ',' or '}'");
        break;
    }
    for (int k = 0; k < 3; k++)
        if (!seen[k]) return mhla_fail(MHLA_EDATA, "%s: its header lacks '%s'", p->name, keys[k]);
    skip_space(p); /* the padding */
    return p->at == p->end ? MHLA_OK : wrong(p, "there are characters after the header's '}'");
}

mhla_status mhla_npy_open_bytes(mhla_npy *a, const void *bytes, size_t size, const char *name) {
    *a = (mhla_npy){0};
    const unsigned char *b = bytes;
    if (size < MAGIC + 4 || memcmp(b, magic, MAGIC) != 0)
        return mhla_fail(MHLA_EDATA, "%s: byte 0: not an .npy file", name);
    const int version = b[MAGIC];
    const size_t prefix = version == 1 ? MAGIC + 4 : MAGIC + 6;
    if (version < 1 || version > 3)
        return mhla_fail(MHLA_ENOTSUP, "%s: byte %d: version %d of .npy, expected 1 to 3", name, MAGIC, version);
    uint64_t length = b[8] | (uint64_t)b[9] << 8;
    if (version > 1 && size >= prefix) length |= (uint64_t)b[10] << 16 | (uint64_t)b[11] << 24;
    if (size < prefix || length > size - prefix || length > HEADER_MOST)
        return mhla_fail(MHLA_EDATA, "%s: byte 8: a header of %llu bytes in a file of %zu", name,
                         (unsigned long long)length, size);
    parser p = {name, bytes, prefix, prefix + (size_t)length};
    mhla_npy found = {0};
    MHLA_TRY(read_header(&p, &found));
    char shape[128];
    int64_t count = 1, total;
    int overflow = 0;
    for (int i = 0; i < found.rank; i++) overflow |= __builtin_mul_overflow(count, found.shape[i], &count);
    overflow |= __builtin_mul_overflow(count, (int64_t)mhla_io_dtype_size(found.dtype), &total);
    if (overflow || (uint64_t)total != size - p.end)
        return mhla_fail(MHLA_EDATA, "%s: shape %s of %s does not fill the %zu bytes after byte %zu", name,
                         mhla_io_shape_text(shape, sizeof shape, found.rank, found.shape),
                         mhla_io_dtype_text(found.dtype), size - p.end, p.end);
    found.count = count;
    found.bytes = (size_t)total;
    found.data = total ? b + p.end : NULL;
    *a = found;
    return MHLA_OK;
}

mhla_status mhla_npy_open(mhla_npy *a, const char *path) {
    mhla_file file;
    *a = (mhla_npy){0};
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_npy_open_bytes(a, file.data, file.size, path);
    if (status == MHLA_OK)
        a->file = file;
    else
        mhla_file_unmap(&file);
    return status;
}

void mhla_npy_close(mhla_npy *a) {
    mhla_file_unmap(&a->file);
    *a = (mhla_npy){0};
}

/* ---- Writing ---- */

mhla_status mhla_npy_write(const char *path, mhla_io_dtype dtype, int rank, const int64_t *shape, const void *data) {
    int t = 0;
    while (t < TYPES && types[t].dtype != dtype) t++;
    if (t == TYPES) return mhla_fail(MHLA_EINVAL, "%s: %s is not written to .npy", path, mhla_io_dtype_text(dtype));
    if (rank < 0 || rank > MHLA_NPY_RANK)
        return mhla_fail(MHLA_EINVAL, "%s: %d axes, expected 0 to %d", path, rank, MHLA_NPY_RANK);
    char header[512];
    size_t bytes = mhla_io_dtype_size(dtype);
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[t].descr);
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, (size_t)shape[i], &bytes))
            return mhla_fail(MHLA_EINVAL, "%s: size %d of the shape is %lld", path, i, (long long)shape[i]);
        n += snprintf(header + n, sizeof header - (size_t)n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    }
    n += snprintf(header + n, sizeof header - (size_t)n, "%s), }", rank == 1 ? "," : "");
    while ((MAGIC + 4 + n + 1) % 64) header[n++] = ' '; /* the data begin at a multiple of 64 */
    header[n++] = '\n';
    mhla_writer w;
    MHLA_TRY(mhla_writer_open(&w, path));
    const unsigned char length[4] = {1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
    if (fwrite(magic, 1, MAGIC, w.stream) == MAGIC && fwrite(length, 1, 4, w.stream) == 4 &&
        fwrite(header, 1, (size_t)n, w.stream) == (size_t)n &&
        (bytes == 0 || fwrite(data, 1, bytes, w.stream) == bytes))
        return mhla_writer_commit(&w);
    const mhla_status status = mhla_fail(MHLA_EIO, "%s: not written: %s", path, strerror(errno));
    mhla_writer_discard(&w);
    return status;
}
