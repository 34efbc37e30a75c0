/* Pickles of PyTorch checkpoints, read without running anything: a machine that knows how to stack up dictionaries,
 * lists, texts, numbers and tensors. Whatever else a pickle names, calls or does is refused. */
#ifndef MHLA_FILE_TORCH_PICKLE_H
#define MHLA_FILE_TORCH_PICKLE_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

#include "file/dtype.h"

typedef enum mhla_pickle_kind {
    MHLA_PICKLE_NONE,
    MHLA_PICKLE_BOOL,
    MHLA_PICKLE_INT,
    MHLA_PICKLE_TEXT,    /* also bytes */
    MHLA_PICKLE_TUPLE,   /* cells: elements */
    MHLA_PICKLE_LIST,    /* cells: elements */
    MHLA_PICKLE_DICT,    /* cells: key, value, key, value, ... */
    MHLA_PICKLE_GLOBAL,  /* number: its row in the table of those that are allowed */
    MHLA_PICKLE_STORAGE, /* cells: type, key, location, number of elements, ... */
    MHLA_PICKLE_TENSOR,  /* cells: storage, offset, shape, strides, ... */
    MHLA_PICKLE_MODULE,  /* an object of TorchScript; cells as of a dictionary: its attributes */
    MHLA_PICKLE_OTHER    /* harmless and of no use: floats, settings, ... */
} mhla_pickle_kind;

typedef struct mhla_pickle_value {
    mhla_pickle_kind kind;
    int64_t number;             /* of an int or bool; size of a text */
    const unsigned char *text;  /* in the pickle */
    uint32_t first, last, size; /* cells of a container */
} mhla_pickle_value;

typedef struct mhla_pickle_cell {
    uint32_t value, next; /* next: 0 after the last */
} mhla_pickle_cell;

typedef struct mhla_pickle {
    mhla_pickle_value *values;
    mhla_pickle_cell *cells; /* from 1 on */
    uint32_t root;
    size_t bytes; /* that it took */
    uint32_t count, cell_count;
} mhla_pickle;

/* Reads one pickle from the front of the bytes. `what` stands in messages before the byte. */
mhla_status mhla_pickle_read(mhla_pickle *p, const unsigned char *bytes, size_t size, const char *what);
void mhla_pickle_free(mhla_pickle *p); /* harmless when repeated */

/* The i-th cell's value of a container, NULL past its end. O(i). */
const mhla_pickle_value *mhla_pickle_at(const mhla_pickle *p, const mhla_pickle_value *container, uint32_t i);
/* The value of a key of a dictionary, NULL if there is none. */
const mhla_pickle_value *mhla_pickle_get(const mhla_pickle *p, const mhla_pickle_value *dict, const char *key);
int mhla_pickle_is_text(const mhla_pickle_value *value, const char *text);
/* The type of numbers that a storage's class stands for, -1 if the value is none. */
int mhla_pickle_storage_dtype(const mhla_pickle_value *value);

#endif
