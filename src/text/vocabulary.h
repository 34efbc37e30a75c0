/* Pieces by their ids and ids by their pieces. A vocabulary may have holes. */
#ifndef MHLA_TEXT_VOCABULARY_H
#define MHLA_TEXT_VOCABULARY_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

#include "file/lists.h"

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
