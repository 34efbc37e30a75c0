#include "file/torch_zip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/status.h"
#include "file/text.h"

enum {
    END_SIZE = 22,       /* end of central directory */
    LOCATOR_SIZE = 20,   /* where that of 64 bits is */
    END64_SIZE = 56,     /* that of 64 bits */
    CENTRAL_SIZE = 46,   /* an entry of the central directory, before its name */
    LOCAL_SIZE = 30,     /* before an entry's data, before its name */
    COMMENT_MOST = 65535 /* behind the end */
};

static uint64_t get(const unsigned char *from, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)from[i] << (8 * i);
    return x;
}

typedef struct reader {
    const char *path;
    const unsigned char *bytes;
    size_t size;
} reader;

static mhla_status wrong(const reader *r, uint64_t byte, const char *what) {
    return mhla_fail(MHLA_EDATA, "%s: byte %llu of the zip archive: %s", r->path, (unsigned long long)byte, what);
}
static int inside(const reader *r, uint64_t begin, uint64_t length) {
    return begin <= r->size && length <= r->size - begin;
}

/* Where the central directory is and how many entries it has. */
static mhla_status find_directory(const reader *r, uint64_t *begin, uint64_t *length, uint64_t *count) {
    if (r->size < END_SIZE) return wrong(r, 0, "too short");
    size_t end = r->size - END_SIZE;
    const size_t last = end > COMMENT_MOST ? end - COMMENT_MOST : 0;
    while (get(r->bytes + end, 4) != 0x06054b50) {
        if (end == last) return wrong(r, r->size, "no directory at its end: the file is cut short");
        end--;
    }
    *count = get(r->bytes + end + 10, 2);
    *length = get(r->bytes + end + 12, 4);
    *begin = get(r->bytes + end + 16, 4);
    if (end >= LOCATOR_SIZE && get(r->bytes + end - LOCATOR_SIZE, 4) == 0x07064b50) {
        const uint64_t end64 = get(r->bytes + end - LOCATOR_SIZE + 8, 8);
        if (!inside(r, end64, END64_SIZE) || get(r->bytes + end64, 4) != 0x06064b50)
            return wrong(r, end - LOCATOR_SIZE, "it points to no directory");
        *count = get(r->bytes + end64 + 32, 8);
        *length = get(r->bytes + end64 + 40, 8);
        *begin = get(r->bytes + end64 + 48, 8);
    }
    if (!inside(r, *begin, *length)) return wrong(r, end, "its directory lies outside of the file");
    if (*count > *length / CENTRAL_SIZE) return wrong(r, end, "more entries than its directory has room for");
    return MHLA_OK;
}

/* Sizes and offset that do not fit 32 bits stand in the extra field number 1, those that are needed, in this order. */
static int read_extra(const unsigned char *extra, size_t size, uint64_t *full, uint64_t *packed, uint64_t *offset) {
    uint64_t *const values[] = {full, packed, offset};
    while (size >= 4) {
        const size_t id = get(extra, 2), length = get(extra + 2, 2);
        extra += 4, size -= 4;
        if (length > size) return 0;
        if (id == 1) {
            size_t at = 0;
            for (int i = 0; i < 3; i++) {
                if (*values[i] != 0xffffffffu) continue;
                if (length - at < 8) return 0;
                *values[i] = get(extra + at, 8);
                at += 8;
            }
            return 1;
        }
        extra += length, size -= length;
    }
    return 1;
}

static mhla_status read_entry(const reader *r, uint64_t *at, uint64_t end, mhla_zip_entry *e) {
    const unsigned char *p = r->bytes + *at;
    if (end - *at < CENTRAL_SIZE || get(p, 4) != 0x02014b50) return wrong(r, *at, "no entry of the directory");
    const size_t name = get(p + 28, 2), extra = get(p + 30, 2), comment = get(p + 32, 2);
    uint64_t packed = get(p + 20, 4), full = get(p + 24, 4), offset = get(p + 42, 4);
    if (end - *at - CENTRAL_SIZE < name + extra + comment) return wrong(r, *at, "an entry goes beyond the directory");
    if (!read_extra(p + CENTRAL_SIZE + name, extra, &full, &packed, &offset))
        return wrong(r, *at, "an entry's sizes are broken");
    if (get(p + 8, 2) & 1) return wrong(r, *at, "an entry is encrypted");
    const int compressed = get(p + 10, 2) != 0;
    if (!compressed && packed != full) return wrong(r, *at, "an entry has two sizes");
    if (!inside(r, offset, LOCAL_SIZE) || get(r->bytes + offset, 4) != 0x04034b50)
        return wrong(r, *at, "an entry points to none");
    const uint64_t data = offset + LOCAL_SIZE + get(r->bytes + offset + 26, 2) + get(r->bytes + offset + 28, 2);
    if (!inside(r, data, packed)) return wrong(r, *at, "an entry lies outside of the file");
    *e = (mhla_zip_entry){(const char *)p + CENTRAL_SIZE, name,      r->bytes + data, (size_t)packed,
                          (uint32_t)get(p + 16, 4),       compressed};
    *at += CENTRAL_SIZE + name + extra + comment;
    return MHLA_OK;
}

static int by_name(const void *a, const void *b) {
    const mhla_zip_entry *x = a, *y = b;
    const int c = memcmp(x->name, y->name, x->name_size < y->name_size ? x->name_size : y->name_size);
    return c ? c : (x->name_size > y->name_size) - (x->name_size < y->name_size);
}

mhla_status mhla_zip_open(mhla_zip *zip, const unsigned char *bytes, size_t size, const char *path) {
    *zip = (mhla_zip){.path = path};
    const reader r = {path, bytes, size};
    uint64_t at = 0, length = 0, count = 0;
    MHLA_TRY(find_directory(&r, &at, &length, &count));
    zip->entries = calloc((size_t)count + 1, sizeof *zip->entries);
    if (zip->entries == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its directory", path);
    const uint64_t end = at + length;
    mhla_status status = MHLA_OK;
    for (; zip->count < count && status == MHLA_OK; zip->count++)
        status = read_entry(&r, &at, end, &zip->entries[zip->count]);
    if (status == MHLA_OK) qsort(zip->entries, zip->count, sizeof *zip->entries, by_name);
    for (size_t i = 1; i < zip->count && status == MHLA_OK; i++)
        if (by_name(&zip->entries[i - 1], &zip->entries[i]) == 0) {
            const mhla_quoted name = mhla_quote_bytes(zip->entries[i].name, zip->entries[i].name_size);
            status = mhla_fail(MHLA_EDATA, "%s: entry %s occurs twice", path, name.text);
        }
    if (status != MHLA_OK) mhla_zip_close(zip);
    return status;
}

void mhla_zip_close(mhla_zip *zip) {
    free(zip->entries);
    *zip = (mhla_zip){0};
}

mhla_status mhla_zip_find(const mhla_zip_entry **entry, const mhla_zip *zip, const char *prefix, size_t prefix_size,
                          const char *name, size_t name_size) {
    *entry = NULL;
    char full[512];
    const mhla_quoted quoted = mhla_quote_bytes(name, name_size);
    if (prefix_size + name_size <= sizeof full && zip->count) {
        memcpy(full, prefix, prefix_size);
        memcpy(full + prefix_size, name, name_size);
        const mhla_zip_entry key = {.name = full, .name_size = prefix_size + name_size};
        *entry = bsearch(&key, zip->entries, zip->count, sizeof key, by_name);
    }
    const mhla_zip_entry *e = *entry;
    if (e == NULL) return mhla_fail(MHLA_EDATA, "%s: entry %s is missing", zip->path, quoted.text);
    if (e->compressed)
        return mhla_fail(MHLA_ENOTSUP, "%s: entry %s is compressed, which torch.save never does", zip->path,
                         quoted.text);
    if ((uint32_t)crc32_z(crc32_z(0, NULL, 0), e->data, e->size) != e->crc)
        return mhla_fail(MHLA_EDATA, "%s: entry %s was altered: its checksum does not fit", zip->path, quoted.text);
    return MHLA_OK;
}
