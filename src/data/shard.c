/* The format of shards: see shard.h. Numbers are little-endian, as everywhere on the machines that this runs on. */
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/sha256.h"
#include "text/tokenizer.h"

enum { HEAD = 128, ROW = 16 };
static const char magic[8] = {'m', 'h', 'l', 'a', 's', 'h', 'd', '1'};

/* As the first bytes of a file hold it. */
typedef struct raw_head {
    char magic[8];
    uint32_t width, vocabulary;
    int32_t bos, eos;
    uint64_t tokens, documents, bytes;
    unsigned char fingerprint[32];
    unsigned char zeros[48];
} raw_head;
_Static_assert(sizeof(raw_head) == HEAD, "the head has no holes");

static uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

struct mhla_shard {
    mhla_shard_head head;
    int width;
    const unsigned char *ids, *table;
    mhla_file file; /* of mhla_shard_open */
    char *name;
};

static uint64_t row_at(const mhla_shard *s, int64_t i, int column) {
    uint64_t x;
    memcpy(&x, s->table + (size_t)i * ROW + (size_t)column * 8, 8);
    return x;
}

int64_t mhla_shard_start(const mhla_shard *s, int64_t i) { return (int64_t)row_at(s, i, 0); }
int64_t mhla_shard_byte(const mhla_shard *s, int64_t i) { return (int64_t)row_at(s, i, 1); }
const mhla_shard_head *mhla_shard_head_of(const mhla_shard *s) { return &s->head; }

static mhla_status check_head(const raw_head *h, size_t size, const char *name) {
    static const unsigned char none[sizeof h->zeros];
    if (h->width != 2 && h->width != 4)
        return mhla_fail(MHLA_EDATA, "%s: byte 8: ids of %u bytes, expected 2 or 4", name, h->width);
    if (h->vocabulary < 1 || h->vocabulary > INT32_MAX)
        return mhla_fail(MHLA_EDATA, "%s: byte 12: a vocabulary of %u", name, h->vocabulary);
    const int32_t special[] = {h->bos, h->eos};
    for (int i = 0; i < 2; i++)
        if (special[i] < -1 || special[i] >= (int64_t)h->vocabulary)
            return mhla_fail(MHLA_EDATA, "%s: byte %d: %s is %d, but the vocabulary has %u", name, 16 + 4 * i,
                             i ? "EOS" : "BOS", special[i], h->vocabulary);
    if (memcmp(h->zeros, none, sizeof none) != 0)
        return mhla_fail(MHLA_EDATA, "%s: byte 80: expected zeros; is it of a later version?", name);
    const uint64_t room = size - HEAD;
    if (h->tokens > room / h->width || h->documents >= room / ROW || h->bytes > INT64_MAX ||
        HEAD + padded(h->tokens * h->width) + (h->documents + 1) * ROW != size)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes, but its head tells of %llu tokens in %llu documents", name, size,
                         (unsigned long long)h->tokens, (unsigned long long)h->documents);
    return MHLA_OK;
}

static mhla_status check_table(const mhla_shard *s, const char *name) {
    const int64_t n = s->head.documents;
    const uint64_t ends[] = {(uint64_t)s->head.tokens, (uint64_t)s->head.bytes};
    for (int c = 0; c < 2; c++) {
        if (row_at(s, 0, c) != 0 || row_at(s, n, c) != ends[c])
            return mhla_fail(MHLA_EDATA, "%s: its documents go from %llu to %llu, expected 0 to %llu", name,
                             (unsigned long long)row_at(s, 0, c), (unsigned long long)row_at(s, n, c),
                             (unsigned long long)ends[c]);
        for (int64_t i = 0; i < n; i++)
            if (row_at(s, i + 1, c) < row_at(s, i, c))
                return mhla_fail(MHLA_EDATA, "%s: document %lld ends before it begins", name, (long long)i);
    }
    return MHLA_OK;
}

mhla_status mhla_shard_parse(mhla_shard **shard, const void *bytes, size_t size, const char *name) {
    *shard = NULL;
    raw_head h;
    if (size < HEAD || memcmp(bytes, magic, sizeof magic) != 0)
        return mhla_fail(MHLA_EDATA, "%s: no shard of tokens (%s)", name,
                         size < HEAD ? "it is too short" : "its first bytes differ");
    memcpy(&h, bytes, sizeof h);
    MHLA_TRY(check_head(&h, size, name));
    mhla_shard *s = calloc(1, sizeof *s);
    char *copy = strdup(name);
    if (s == NULL || copy == NULL) {
        free(s);
        free(copy);
        return mhla_fail(MHLA_ENOMEM, "no memory for a shard");
    }
    *s = (mhla_shard){.head = {.vocabulary = (int)h.vocabulary,
                               .bos = h.bos,
                               .eos = h.eos,
                               .tokens = (int64_t)h.tokens,
                               .documents = (int64_t)h.documents,
                               .bytes = (int64_t)h.bytes},
                      .width = (int)h.width,
                      .ids = (const unsigned char *)bytes + HEAD,
                      .table = (const unsigned char *)bytes + HEAD + padded(h.tokens * h.width),
                      .name = copy};
    memcpy(s->head.fingerprint, h.fingerprint, sizeof h.fingerprint);
    const mhla_status status = check_table(s, name);
    if (status != MHLA_OK) {
        mhla_shard_free(s);
        return status;
    }
    *shard = s;
    return MHLA_OK;
}

mhla_status mhla_shard_open(mhla_shard **shard, const char *path) {
    *shard = NULL;
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_shard_parse(shard, file.data, file.size, path);
    if (status == MHLA_OK)
        (*shard)->file = file;
    else
        mhla_file_unmap(&file);
    return status;
}

void mhla_shard_free(mhla_shard *s) {
    if (s == NULL) return;
    mhla_file_unmap(&s->file);
    free(s->name);
    free(s);
}

mhla_status mhla_shard_read(const mhla_shard *s, int32_t *ids, int64_t at, int64_t count) {
    const unsigned char *from = s->ids + (size_t)at * (size_t)s->width;
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t id = 0;
        if (s->width == 2) {
            uint16_t half;
            memcpy(&half, from + 2 * i, 2);
            id = half;
        } else {
            memcpy(&id, from + 4 * i, 4);
        }
        ids[i] = (int32_t)id;
        most = id > most ? id : most;
    }
    if (count == 0 || most < (uint32_t)s->head.vocabulary) return MHLA_OK;
    int64_t bad = 0;
    while ((uint32_t)ids[bad] < (uint32_t)s->head.vocabulary) bad++;
    return mhla_fail(MHLA_EDATA, "%s: token %lld is %u, but the vocabulary has %d", s->name, (long long)(at + bad),
                     (uint32_t)ids[bad], s->head.vocabulary);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------------- */

struct mhla_shard_writer {
    mhla_writer file;
    raw_head head;
    uint64_t *table; /* [documents + 1][2] */
    int64_t rows;    /* that it has room for */
};

/* The end of the documents so far. */
static mhla_status add_row(mhla_shard_writer *w) {
    const int64_t n = (int64_t)w->head.documents;
    if (n >= w->rows) {
        const int64_t more = w->rows ? 2 * w->rows : 1024;
        uint64_t *table = realloc(w->table, (size_t)more * ROW);
        if (table == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld documents", (long long)more);
        w->table = table;
        w->rows = more;
    }
    w->table[2 * n] = w->head.tokens;
    w->table[2 * n + 1] = w->head.bytes;
    return MHLA_OK;
}

mhla_status mhla_shard_writer_open(mhla_shard_writer **writer, const char *path, const mhla_shard_head *head) {
    *writer = NULL;
    if (head->vocabulary < 1) return mhla_fail(MHLA_EINVAL, "a shard for a vocabulary of %d", head->vocabulary);
    mhla_shard_writer *w = calloc(1, sizeof *w);
    if (w == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a shard");
    w->head = (raw_head){.width = head->vocabulary <= 65536 ? 2 : 4,
                         .vocabulary = (uint32_t)head->vocabulary,
                         .bos = head->bos,
                         .eos = head->eos};
    memcpy(w->head.magic, magic, sizeof magic);
    memcpy(w->head.fingerprint, head->fingerprint, sizeof head->fingerprint);
    mhla_status status = mhla_writer_open(&w->file, path);
    if (status == MHLA_OK) status = add_row(w);
    if (status != MHLA_OK) {
        mhla_shard_writer_discard(w);
        return status;
    }
    fwrite(&w->head, 1, HEAD, w->file.stream); /* commit asks for errors, and writes it again */
    *writer = w;
    return MHLA_OK;
}

mhla_status mhla_shard_writer_add(mhla_shard_writer *w, const int32_t *ids, int64_t count, size_t bytes) {
    enum { PIECE = 4096 };
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= w->head.vocabulary)
            return mhla_fail(MHLA_EINVAL, "ids[%lld] is %d: the vocabulary has %u", (long long)i, ids[i],
                             w->head.vocabulary);
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        uint16_t narrow[PIECE];
        for (int64_t i = 0; i < n && w->head.width == 2; i++) narrow[i] = (uint16_t)ids[at + i];
        fwrite(w->head.width == 2 ? (const void *)narrow : ids + at, w->head.width, (size_t)n, w->file.stream);
    }
    w->head.tokens += (uint64_t)count;
    w->head.bytes += bytes;
    w->head.documents++;
    return add_row(w);
}

mhla_status mhla_shard_writer_commit(mhla_shard_writer *w, mhla_shard_head *head) {
    static const char zeros[8];
    const uint64_t used = w->head.tokens * w->head.width;
    FILE *f = w->file.stream;
    fwrite(zeros, 1, (size_t)(padded(used) - used), f);
    fwrite(w->table, ROW, (size_t)w->head.documents + 1, f);
    if (fseek(f, 0, SEEK_SET) == 0) fwrite(&w->head, 1, HEAD, f);
    const mhla_status status = mhla_writer_commit(&w->file);
    if (head)
        *head = (mhla_shard_head){.vocabulary = (int)w->head.vocabulary,
                                  .bos = w->head.bos,
                                  .eos = w->head.eos,
                                  .tokens = (int64_t)w->head.tokens,
                                  .documents = (int64_t)w->head.documents,
                                  .bytes = (int64_t)w->head.bytes};
    if (head) memcpy(head->fingerprint, w->head.fingerprint, sizeof head->fingerprint);
    mhla_shard_writer_discard(w);
    return status;
}

void mhla_shard_writer_discard(mhla_shard_writer *w) {
    if (w == NULL) return;
    mhla_writer_discard(&w->file);
    free(w->table);
    free(w);
}

mhla_status mhla_shard_fingerprint(unsigned char fingerprint[32], const char *tokenizer) {
    char path[4096], text[65];
    mhla_file file;
    if (!mhla_tokenizer_file(path, sizeof path, tokenizer))
        return mhla_fail(MHLA_EIO, "%s: neither a tokenizer's file nor a folder that has one", tokenizer);
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_sha256_of(file.data, file.size, text);
    mhla_file_unmap(&file);
    for (int i = 0; i < 32; i++) {
        const char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        fingerprint[i] = (unsigned char)strtol(pair, NULL, 16);
    }
    return MHLA_OK;
}
