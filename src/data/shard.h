/* Shards: documents as token ids, written once by `mhla tokenize`, mapped by training. A file is, little-endian:
 *
 *      0  8 bytes  "mhlashd1"
 *      8  u32      bytes of an id: 2 or 4
 *     12  u32      size of the vocabulary: ids are below it
 *     16  i32 i32  ids of BOS and EOS of the tokenizer, -1: none
 *     24  u64      tokens
 *     32  u64      documents
 *     40  u64      bytes of their text
 *     48  32 bytes SHA-256 of the tokenizer's file (mhla_shard_fingerprint)
 *     80  48 bytes zeros
 *    128  ids, zeros up to a multiple of 8
 *         u64 u64  [documents + 1]: where each document begins, in tokens and in bytes of text; the last row is the end
 *
 * Documents hold their own tokens only: who packs them puts BOS and EOS around. */
#ifndef MHLA_DATA_SHARD_H
#define MHLA_DATA_SHARD_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

#include "file/file.h"

typedef struct mhla_shard_head {
    int vocabulary;
    int32_t bos, eos;
    unsigned char fingerprint[32];
    int64_t tokens, documents, bytes; /* a writer counts these itself */
} mhla_shard_head;

/* ---- Reading: head and table are checked when it is opened, ids when they are read ---- */

typedef struct mhla_shard mhla_shard;

/* MHLA_EDATA names the file, the byte, the document. */
mhla_status mhla_shard_open(mhla_shard **shard, const char *path);
/* The same of bytes in memory, which must stay; `name` stands in messages. */
mhla_status mhla_shard_parse(mhla_shard **shard, const void *bytes, size_t size, const char *name);
void mhla_shard_free(mhla_shard *shard);

const mhla_shard_head *mhla_shard_head_of(const mhla_shard *shard);
/* Where document i begins, in tokens of the shard; i = documents: the end. And in bytes of text. */
int64_t mhla_shard_start(const mhla_shard *shard, int64_t i);
int64_t mhla_shard_byte(const mhla_shard *shard, int64_t i);
/* ids [count] from token `at` of the shard on, all of which must be there. MHLA_EDATA names an id out of range. */
mhla_status mhla_shard_read(const mhla_shard *shard, int32_t *ids, int64_t at, int64_t count);

/* ---- Writing: under another name until the commit ---- */

typedef struct mhla_shard_writer mhla_shard_writer;

mhla_status mhla_shard_writer_open(mhla_shard_writer **writer, const char *path, const mhla_shard_head *head);
/* One document: its ids, without BOS and EOS, and the bytes of its text. MHLA_EINVAL for an id out of range. */
mhla_status mhla_shard_writer_add(mhla_shard_writer *writer, const int32_t *ids, int64_t count, size_t bytes);
/* Ends it; *head, unless NULL, gets the counts. The writer is freed, also on failure. */
mhla_status mhla_shard_writer_commit(mhla_shard_writer *writer, mhla_shard_head *head);
void mhla_shard_writer_discard(mhla_shard_writer *writer); /* NULL is legal */

/* Of the file that mhla_tokenizer_open(path) opens. */
mhla_status mhla_shard_fingerprint(unsigned char fingerprint[32], const char *tokenizer);

#endif
