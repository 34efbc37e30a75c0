/* GGUF, the one-file format of llama.cpp, versions 2 and 3: metadata by key, tensors by name, many of them quantised.
 * Reading maps the file and checks all of its header once, as hostile input; after that everything handed out lies inside
 * the file. Writing is deterministic and atomic. */
#ifndef MHLA_FILE_GGUF_H
#define MHLA_FILE_GGUF_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

enum { MHLA_GGUF_RANK = 4 }; /* most axes of a tensor */

/* Types of tensors that are known here, by their numbers in the file. Quantised rows are blocks of 32 or 256 numbers
 * (gguf_quants.c). */
typedef enum mhla_gguf_type {
    MHLA_GGUF_F32 = 0,
    MHLA_GGUF_F16 = 1,
    MHLA_GGUF_Q4_0 = 2,
    MHLA_GGUF_Q4_1 = 3,
    MHLA_GGUF_Q5_0 = 6,
    MHLA_GGUF_Q5_1 = 7,
    MHLA_GGUF_Q8_0 = 8,
    MHLA_GGUF_Q2_K = 10,
    MHLA_GGUF_Q3_K = 11,
    MHLA_GGUF_Q4_K = 12,
    MHLA_GGUF_Q5_K = 13,
    MHLA_GGUF_Q6_K = 14,
    MHLA_GGUF_BF16 = 30
} mhla_gguf_type;
const char *mhla_gguf_type_text(mhla_gguf_type type); /* "Q8_0" */
/* Bytes of a row of `cols` numbers, which are whole blocks of the type. */
size_t mhla_gguf_row_bytes(mhla_gguf_type type, int64_t cols);
/* count numbers (whole blocks) of a row to float32, exactly as GGUF defines them; any alignment. And back: F32, F16, BF16
 * (to nearest even), and Q8_0 as ggml's reference quantises; no other type. */
void mhla_gguf_to_f32(float *to, const void *from, mhla_gguf_type type, int64_t count);
void mhla_gguf_from_f32(void *to, const float *from, mhla_gguf_type type, int64_t count);

/* Kinds of metadata, by their numbers in the file. */
typedef enum mhla_gguf_kind {
    MHLA_GGUF_UINT8 = 0,
    MHLA_GGUF_INT8,
    MHLA_GGUF_UINT16,
    MHLA_GGUF_INT16,
    MHLA_GGUF_UINT32,
    MHLA_GGUF_INT32,
    MHLA_GGUF_FLOAT32,
    MHLA_GGUF_BOOL,
    MHLA_GGUF_STRING,
    MHLA_GGUF_ARRAY,
    MHLA_GGUF_UINT64,
    MHLA_GGUF_INT64,
    MHLA_GGUF_FLOAT64,
    MHLA_GGUF_KINDS
} mhla_gguf_kind;

/* A text of the file: any bytes, not ended by a zero. */
typedef struct mhla_gguf_string {
    const char *data;
    size_t length;
} mhla_gguf_string;

typedef struct mhla_gguf_value {
    const char *key;
    mhla_gguf_kind kind;             /* of the elements; arrays of arrays are refused */
    int array;                       /* an array of `count`, else one */
    int64_t count;                   /* 1 where it is no array */
    const unsigned char *data;       /* numbers and booleans: as they lie in the file, any alignment */
    const mhla_gguf_string *strings; /* [count] if kind is STRING, else NULL */
} mhla_gguf_value;

/* ---- Reading ---- */

typedef struct mhla_gguf mhla_gguf;

typedef struct mhla_gguf_tensor {
    const char *name;
    mhla_gguf_type type;
    int rank;                      /* 1 .. 4 */
    int64_t shape[MHLA_GGUF_RANK]; /* as everywhere here: rows before columns (the file has them backwards) */
    int64_t count, rows, cols;     /* cols: the last axis; rows * cols = count, at least 1 */
    const unsigned char *data;     /* rows of mhla_gguf_row_bytes(type, cols), one after the other */
    size_t bytes;
    const char *path; /* of the file */
} mhla_gguf_tensor;

/* MHLA_EIO or MHLA_EDATA with a sentence that names the file, key or tensor, and byte; MHLA_ENOTSUP names a type of tensor
 * that is not known here. Everything handed out lives until the close. */
mhla_status mhla_gguf_open(mhla_gguf **file, const char *path);
/* The same of bytes in memory, which must outlive it; `name` stands for the path in messages. */
mhla_status mhla_gguf_open_bytes(mhla_gguf **file, const void *bytes, size_t size, const char *name);
void mhla_gguf_close(mhla_gguf *file); /* NULL is legal */
/* Do these bytes begin as a GGUF does? */
int mhla_gguf_is(const void *bytes, size_t size);

const char *mhla_gguf_path(const mhla_gguf *file);

/* Metadata in the order of the file; by key, NULL if there is none. */
int64_t mhla_gguf_value_count(const mhla_gguf *file);
const mhla_gguf_value *mhla_gguf_value_at(const mhla_gguf *file, int64_t i);
const mhla_gguf_value *mhla_gguf_find_value(const mhla_gguf *file, const char *key);
/* Element i of a value of any numeric or boolean kind; 0 where it is text. */
double mhla_gguf_real_at(const mhla_gguf_value *value, int64_t i);
int64_t mhla_gguf_int_at(const mhla_gguf_value *value, int64_t i); /* reals are cut, UINT64 beyond INT64_MAX is that */

/* What a loader asks. *to keeps what it has if the key is absent; MHLA_EDATA names the key if it is of another kind, no
 * whole number (bool: 0 or 1), or outside low .. high. A text is copied: *to, malloc'ed, ends with a zero; the text may
 * hold none. */
mhla_status mhla_gguf_get_int(int64_t *to, const mhla_gguf *file, const char *key, int64_t low, int64_t high);
mhla_status mhla_gguf_get_real(double *to, const mhla_gguf *file, const char *key);
mhla_status mhla_gguf_get_text(char **to, const mhla_gguf *file, const char *key);
/* An array of texts or of any numbers; *value is NULL if the key is absent. */
mhla_status mhla_gguf_get_strings(const mhla_gguf_value **value, const mhla_gguf *file, const char *key);
mhla_status mhla_gguf_get_numbers(const mhla_gguf_value **value, const mhla_gguf *file, const char *key);

/* Tensors in the order of the file; by name, NULL if there is none; the same, but MHLA_EDATA with the nearest name. */
int64_t mhla_gguf_tensor_count(const mhla_gguf *file);
const mhla_gguf_tensor *mhla_gguf_tensor_at(const mhla_gguf *file, int64_t i);
const mhla_gguf_tensor *mhla_gguf_find_tensor(const mhla_gguf *file, const char *name);
mhla_status mhla_gguf_need_tensor(const mhla_gguf_tensor **tensor, const mhla_gguf *file, const char *name);
/* MHLA_EDATA naming file, tensor and both shapes unless the tensor has this shape. */
mhla_status mhla_gguf_check_shape(const mhla_gguf_tensor *tensor, int rank, const int64_t *shape);
/* Rows first .. first+count-1 as float32 into to [count, cols]; inside the tensor. */
void mhla_gguf_read_rows(float *to, const mhla_gguf_tensor *tensor, int64_t first, int64_t count);

/* ---- Writing ---- */

typedef struct mhla_gguf_pair { /* numbers in native order */
    const char *key;
    mhla_gguf_kind kind; /* of the elements */
    int array;
    int64_t count;                   /* 1 where it is no array */
    const void *data;                /* numbers; booleans are bytes */
    const mhla_gguf_string *strings; /* [count] where kind is STRING */
} mhla_gguf_pair;

/* A tensor to be written. fill writes rows first .. first+count-1 as float32 into rows [count, cols]; they are converted
 * to `type`, so that no whole tensor is ever in memory. */
typedef struct mhla_gguf_storable {
    const char *name;
    mhla_gguf_type type; /* F32, F16, BF16, Q8_0 */
    int rank;
    int64_t shape[MHLA_GGUF_RANK];
    mhla_status (*fill)(float *rows, int64_t first, int64_t count, void *arg);
    void *arg;
} mhla_gguf_storable;

/* Version 3, pairs and tensors in the order given, data aligned to 32, atomically (file/file.h). MHLA_EDATA names a tensor
 * with a number that is finite but infinite as it would be stored; MHLA_EINVAL what cannot be stored at all (rows of a
 * length that the type does not have, two of one name). */
mhla_status mhla_gguf_write(const char *path, const mhla_gguf_pair *pairs, int64_t pair_count,
                            const mhla_gguf_storable *tensors, int64_t tensor_count);

#endif
