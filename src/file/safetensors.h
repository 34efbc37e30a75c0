/* safetensors: named tensors in one file, or in several with an index. Reading maps the file and checks all of its
 * header once, as hostile input; after that every tensor's bytes are inside the file. Writing is deterministic. */
#ifndef MHLA_FILE_SAFETENSORS_H
#define MHLA_FILE_SAFETENSORS_H

#include <mhla/mhla.h>

#include "file/dtype.h"

enum { MHLA_SAFETENSORS_RANK = 8 }; /* most axes of a tensor */

/* ---- Reading ---- */

typedef struct mhla_safetensors mhla_safetensors;

typedef struct mhla_stored {
    const char *name;
    mhla_io_dtype dtype;
    int rank;                             /* 0: a scalar */
    int64_t shape[MHLA_SAFETENSORS_RANK]; /* may hold zeros */
    int64_t count;                        /* product of shape */
    const unsigned char *data;            /* count * size of dtype bytes in the mapping, any alignment; NULL if none */
    size_t bytes;
    const char *path; /* of the file that holds it */
} mhla_stored;

/* Opens a file, an index (*.index.json, whose files lie beside it) or a folder: its model.safetensors,
 * model.safetensors.index.json, pytorch_model.bin (or its index), the same of diffusers, the variants of float16,
 * best/model.safetensors, last/model.safetensors or only *.safetensors, the first that is there; ema.safetensors instead of model.safetensors in a checkpoint of training where
 * the average did better. A PyTorch checkpoint (.pth, .pt, .bin) is opened as well: the tensors of its state_dict; nothing in it is run.
 * MHLA_EIO or MHLA_EDATA with a sentence that names the file, the tensor and the byte. Everything handed out lives until
 * the close. */
mhla_status mhla_safetensors_open(mhla_safetensors **file, const char *path);
/* The same of bytes in memory, which must outlive it; `name` stands for the path in messages. */
mhla_status mhla_safetensors_open_bytes(mhla_safetensors **file, const void *bytes, size_t size, const char *name);
void mhla_safetensors_close(mhla_safetensors *file); /* NULL is legal */

const char *mhla_safetensors_path(const mhla_safetensors *file); /* as opened */

/* Tensors in the order of their bytes, file after file. */
int64_t mhla_safetensors_count(const mhla_safetensors *file);
const mhla_stored *mhla_safetensors_at(const mhla_safetensors *file, int64_t i);
/* By name, in O(log count); NULL if there is none. */
const mhla_stored *mhla_safetensors_find(const mhla_safetensors *file, const char *name);
/* The same, but MHLA_EDATA that names the nearest name there is. */
mhla_status mhla_safetensors_need(const mhla_stored **tensor, const mhla_safetensors *file, const char *name);

/* __metadata__: value of a key, or NULL; pairs by number, sorted by key. Of several files: the first one's. */
const char *mhla_safetensors_metadata(const mhla_safetensors *file, const char *key);
int64_t mhla_safetensors_metadata_count(const mhla_safetensors *file);
void mhla_safetensors_metadata_at(const mhla_safetensors *file, int64_t i, const char **key, const char **value);

/* MHLA_EDATA naming file, tensor and both shapes unless the tensor has this shape. */
mhla_status mhla_stored_check(const mhla_stored *tensor, int rank, const int64_t *shape);
/* This shape but for axes of 1 at its end: a 1x1 convolution [N,K,1,1] is the linear layer [N,K]. */
int mhla_stored_alike(const mhla_stored *tensor, int rank, const int64_t *shape);
/* All of it as float32 into to [count]. MHLA_EDATA for a tensor of integers. */
mhla_status mhla_stored_read(float *to, const mhla_stored *tensor);
/* need + check + read: the one call for loading a weight. to [product of shape]. */
mhla_status mhla_safetensors_load(float *to, const mhla_safetensors *file, const char *name, int rank,
                                  const int64_t *shape);

/* ---- Writing ---- */

typedef struct mhla_storable {
    const char *name;
    int rank;
    const int64_t *shape;
    const void *data;    /* of type `from`, native byte order */
    mhla_io_dtype from;  /* MHLA_IO_F32 for the parameters of a model */
    mhla_io_dtype dtype; /* as which it is stored: `from` itself, or another floating-point type */
} mhla_storable;

typedef struct mhla_pair {
    const char *key, *value;
} mhla_pair;

/* Writes one file, atomically (file/file.h): the name holds the old file until the new one is complete and on the disk.
 * The bytes depend on what is written only, not on its order: tensors are sorted as the Python library sorts them (the
 * wider type first, then by name), the metadata by key; the data begin at a multiple of 8. MHLA_EDATA for a number that
 * is finite but infinite as it would be stored. */
mhla_status mhla_safetensors_write(const char *path, const mhla_storable *tensors, int64_t count,
                                   const mhla_pair *metadata, int64_t pairs);

/* The same where data of tensors may be NULL: fetch() then writes them, float32, into memory that is there while they are stored. */
typedef mhla_status (*mhla_storable_fetch)(void *user, const mhla_storable *tensor, float *data);
mhla_status mhla_safetensors_write_fetched(const char *path, const mhla_storable *tensors, int64_t count,
                                           mhla_storable_fetch fetch, void *user);

/* Writes folder/model-0000i-of-0000n.safetensors of at most shard_bytes of tensors each (a larger tensor has a file of
 * its own) and model.safetensors.index.json; with shard_bytes 0, or when one file is enough, model.safetensors alone.
 * Tensors are dealt out in the given order. `also` (NULL, or paths that end with NULL) are files copied along,
 * *files (may be NULL) is how many hold tensors. The folder must not exist, or be empty: it is filled under a temporary
 * name, then renamed. */
mhla_status mhla_safetensors_write_folder(const char *folder, const mhla_storable *tensors, int64_t count,
                                          const mhla_pair *metadata, int64_t pairs, int64_t shard_bytes,
                                          const char *const *also, int64_t *files);

#endif
