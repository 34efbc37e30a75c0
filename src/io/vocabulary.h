/* Pieces by their ids and ids by their pieces; and lists that grow. A vocabulary may have holes. */
#ifndef MHLA_IO_VOCABULARY_H
#define MHLA_IO_VOCABULARY_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

/* MHLA_ENOMEM leaves the list as it was. */
/* Room for `more` beyond the count; what is there stays. */
mhla_status mhla_ids_reserve(mhla_ids *ids, int64_t more);
mhla_status mhla_chars_reserve(mhla_chars *text, size_t more);

/* An array that grows: `data` to at least `need` elements of `size` bytes; *capacity is in elements. */
mhla_status mhla_list_grow(void **data, size_t *capacity, size_t need, size_t size);

/* A hash of bytes that every program run computes alike. */
uint64_t mhla_bytes_hash(const char *bytes, size_t count);

enum { MHLA_VOCABULARY_IDS = 1 << 22, MHLA_PIECE_BYTES = 1 << 16 };

typedef struct mhla_vocabulary {
    mhla_chars text; /* every piece, a zero behind it */
    struct mhla_vocabulary_row {
        uint32_t start;
        int32_t length; /* -1: a hole */
    } * rows;           /* [count] */
    size_t count, capacity;
    int32_t *slots; /* [mask + 1] id, or -1 */
    size_t mask, used;
} mhla_vocabulary;

void mhla_vocabulary_free(mhla_vocabulary *v);
/* Gives `id` its piece. MHLA_EDATA: it has one, the piece has another id, or either is too large; `file` names it. */
mhla_status mhla_vocabulary_set(mhla_vocabulary *v, int32_t id, const char *piece, size_t bytes, const char *file);
int32_t mhla_vocabulary_find(const mhla_vocabulary *v, const char *piece, size_t bytes); /* -1: none */
/* NULL, and no bytes, for a hole and for what is out of range. */
static inline const char *mhla_vocabulary_piece(const mhla_vocabulary *v, int32_t id, size_t *bytes) {
    *bytes = 0;
    if (id < 0 || (size_t)id >= v->count || v->rows[id].length < 0) return NULL;
    *bytes = (size_t)v->rows[id].length;
    return v->text.data + v->rows[id].start;
}

#endif
