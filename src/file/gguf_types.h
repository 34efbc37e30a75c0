/* What the GGUF files of this room share: how the numbers of each type lie in a row. */
#ifndef MHLA_FILE_GGUF_TYPES_H
#define MHLA_FILE_GGUF_TYPES_H

#include "file/gguf.h"
#include "file/gguf_quants.h"

typedef struct mhla_gguf_layout {
    const char *text;
    int block, bytes;      /* numbers of a block, and its bytes */
    int readable;          /* mhla_gguf_to_f32 knows it; others are only measured, so that their file can be opened */
    mhla_gguf_widen widen; /* of quantised ones that are readable */
} mhla_gguf_layout;

/* NULL for a number that is no type. */
const mhla_gguf_layout *mhla_gguf_layout_of(uint32_t type);

/* Bytes of one value of a kind; 0 for texts and arrays. */
size_t mhla_gguf_kind_size(mhla_gguf_kind kind);

#endif
