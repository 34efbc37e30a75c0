/* The header of a safetensors file, read as hostile input: private to the safetensors files of this room. */
#ifndef MHLA_FILE_SAFETENSORS_HEADER_H
#define MHLA_FILE_SAFETENSORS_HEADER_H

#include "file/safetensors.h"

typedef struct mhla_st_header {
    mhla_stored *tensors; /* [count], in the order of their bytes */
    int64_t count;
    mhla_pair *metadata; /* [pairs], sorted by key */
    int64_t pairs;
    char *strings; /* what all names, keys and values point into */
    void **copies; /* NULL, or [count]: memory of tensors that do not lie in the file as they should */
} mhla_st_header;

/* Checks everything: afterwards each tensor's data lie inside the bytes, none overlaps another, names are unique.
 * `path` is kept by the tensors. On failure nothing is left to free. */
mhla_status mhla_st_header_read(mhla_st_header *h, const unsigned char *bytes, size_t size, const char *path);
void mhla_st_header_free(mhla_st_header *h);

#endif
