/* Pieces and ids: all pieces in one block of text, found again by an open-addressing table of ids. */
#include "text/vocabulary.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"

void mhla_vocabulary_free(mhla_vocabulary *v) {
    mhla_chars_free(&v->text);
    mhla_free(v->rows);
    mhla_free(v->slots);
    *v = (mhla_vocabulary){0};
}

/* Where the piece is, or the empty slot where it would be. */
static size_t slot_of(const mhla_vocabulary *v, const char *piece, size_t bytes) {
    size_t at = (size_t)mhla_bytes_hash(piece, bytes) & v->mask;
    for (;; at = (at + 1) & v->mask) {
        const int32_t id = v->slots[at];
        if (id < 0) return at;
        if ((size_t)v->rows[id].length == bytes && memcmp(v->text.data + v->rows[id].start, piece, bytes) == 0)
            return at;
    }
}

int32_t mhla_vocabulary_find(const mhla_vocabulary *v, const char *piece, size_t bytes) {
    return v->slots ? v->slots[slot_of(v, piece, bytes)] : -1;
}

static mhla_status rehash(mhla_vocabulary *v) {
    const size_t size = v->slots ? 2 * (v->mask + 1) : 1024;
    int32_t *slots = mhla_alloc(size * sizeof *slots), *old = v->slots;
    if (slots == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a vocabulary of %zu pieces", v->used);
    memset(slots, 0xff, size * sizeof *slots);
    v->slots = slots;
    v->mask = size - 1;
    for (size_t id = 0; id < v->count; id++)
        if (v->rows[id].length >= 0)
            slots[slot_of(v, v->text.data + v->rows[id].start, (size_t)v->rows[id].length)] = (int32_t)id;
    mhla_free(old);
    return MHLA_OK;
}

mhla_status mhla_vocabulary_set(mhla_vocabulary *v, int32_t id, const char *piece, size_t bytes, const char *file) {
    if (id < 0 || id >= MHLA_VOCABULARY_IDS)
        return mhla_fail(MHLA_EDATA, "%s: the piece %s has the id %d: expected 0 to %d", file,
                         mhla_quote_bytes(piece, bytes).text, id, MHLA_VOCABULARY_IDS - 1);
    if (bytes > MHLA_PIECE_BYTES)
        return mhla_fail(MHLA_EDATA, "%s: the piece of id %d has %zu bytes, more than %d", file, id, bytes,
                         MHLA_PIECE_BYTES);
    size_t other;
    const char *there = mhla_vocabulary_piece(v, id, &other);
    if (there)
        return mhla_fail(MHLA_EDATA, "%s: the id %d is given to %s and to %s", file, id,
                         mhla_quote_bytes(there, other).text, mhla_quote_bytes(piece, bytes).text);
    if (v->slots == NULL || 2 * v->used > v->mask) MHLA_TRY(rehash(v));
    const size_t slot = slot_of(v, piece, bytes);
    if (v->slots[slot] >= 0)
        return mhla_fail(MHLA_EDATA, "%s: the piece %s has two ids, %d and %d", file,
                         mhla_quote_bytes(piece, bytes).text, v->slots[slot], id);
    void *rows = v->rows;
    MHLA_TRY(mhla_list_grow(&rows, &v->capacity, (size_t)id + 1, sizeof *v->rows));
    v->rows = rows;
    if (v->text.count > UINT32_MAX - bytes - 1) return mhla_fail(MHLA_EDATA, "%s: more than 4 GiB of pieces", file);
    MHLA_TRY(mhla_chars_reserve(&v->text, bytes + 1));
    for (; v->count <= (size_t)id; v->count++) v->rows[v->count].length = -1;
    v->rows[id].start = (uint32_t)v->text.count;
    v->rows[id].length = (int32_t)bytes;
    if (bytes) memcpy(v->text.data + v->text.count, piece, bytes);
    v->text.data[v->text.count + bytes] = '\0';
    v->text.count += bytes + 1;
    v->slots[slot] = id;
    v->used++;
    return MHLA_OK;
}
