/* Rows that a frozen text encoder made of texts, in files. `mhla captions` makes them once, into a folder with
 *
 *   captions.json             of what they were made and by what (mhla_captions_about), with all texts and the files of the pictures
 *   rows-00000.safetensors    MHLA_CAPTIONS_SHARD texts each: rows [of all of them,width], one text behind the other, as float32 or
 *                             bfloat16; lengths [texts]
 *
 * Text 0 is the empty one, which guidance leads away from; then come those of the training pictures, in the order of the dataset, and
 * those of the test pictures. */
#ifndef MHLA_TEXT_CAPTION_ROWS_H
#define MHLA_TEXT_CAPTION_ROWS_H

#include "file/dtype.h"
#include "file/json.h"

enum { MHLA_CAPTIONS_SHARD = 128 };

typedef struct mhla_captions_about {
    char encoder[4096];    /* its path */
    char encoder_hash[65]; /* its mhla_model_hash */
    char *instruction;     /* in front of every text; "" without */
    int64_t limit;         /* rows of a text, at most; 0: any number */
    int width;             /* of a row */
    mhla_io_dtype dtype;   /* of the rows in files */
    char source[4096];     /* the folder of the pictures, or the file of the texts */
    int64_t train, test;   /* texts of each part */
} mhla_captions_about;

typedef struct mhla_captions {
    mhla_captions_about about;
    json_t *tree; /* captions.json */
    const json_t *files, *lines;
    struct mhla_safetensors **shards; /* [shard_count] */
    int64_t texts, shard_count;
    int64_t longest;            /* rows of the longest text, at least 1 */
    int32_t *lengths;           /* [texts] */
    const unsigned char **rows; /* [texts]: of about.dtype, at any address */
} mhla_captions;

/* What folder/captions.json says, without the rows. */
mhla_status mhla_captions_read(mhla_captions *captions, const char *folder);
/* All of it. Both are freed by mhla_captions_free, also after a failure. */
mhla_status mhla_captions_open(mhla_captions *captions, const char *folder);
void mhla_captions_free(mhla_captions *captions);
int mhla_captions_there(const char *folder);
/* The file of texts number * MHLA_CAPTIONS_SHARD and on. */
void mhla_captions_path(char path[4096], const char *folder, int64_t number);

const char *mhla_captions_text(const mhla_captions *captions, int64_t i); /* "" for text 0 */
/* Text i's rows into to [longest,width], zeros behind them; how many there are. */
int32_t mhla_captions_get(const mhla_captions *captions, float *to, int64_t longest, int64_t i);

#endif
