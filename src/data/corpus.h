/* A corpus: documents as tokens, whether they come from shards or from text that is tokenised when it is opened. Training
 * sees one long list of tokens and where documents begin in it. */
#ifndef MHLA_DATA_CORPUS_H
#define MHLA_DATA_CORPUS_H

#include <mhla/lm.h>

#include "data/shard.h"

/* Hands the ids of each document to sink(), in order; documents of a group are tokenised by all threads at once. What sink
 * returns ends it unless it is MHLA_OK. progress (may be NULL) counts bytes. */
typedef mhla_status (*mhla_encoded_fn)(void *user, const int32_t *ids, int64_t count, size_t bytes);
mhla_status mhla_documents_encode(const mhla_documents *documents, const mhla_tokenizer *tokenizer,
                                  const mhla_context *context, mhla_encoded_fn sink, void *user,
                                  mhla_progress_fn progress, void *progress_user);

typedef struct mhla_corpus mhla_corpus;

/* `path` is a shard, a folder whose files are shards, or text as mhla_documents_open takes it; `tokenizer`, a path, is
 * needed for text, and must be that of the shards unless it is NULL. MHLA_EDATA where shards differ in their tokenizer. */
mhla_status mhla_corpus_open(mhla_corpus **corpus, const char *path, const char *tokenizer,
                             const mhla_context *context);
void mhla_corpus_free(mhla_corpus *corpus);

const mhla_shard_head *mhla_corpus_head(const mhla_corpus *corpus);
int64_t mhla_corpus_start(const mhla_corpus *corpus, int64_t document); /* in tokens; [documents]: the end */
int64_t mhla_corpus_byte(const mhla_corpus *corpus, int64_t document);  /* the same in bytes of text */
mhla_status mhla_corpus_read(const mhla_corpus *corpus, int32_t *ids, int64_t at, int64_t count);

/* A part ("train", "validation") of a folder: NAME.shard, a folder NAME, NAME.txt or NAME.jsonl; validation also goes by
 * the names valid, val and test. 0 if there is none. */
int mhla_corpus_part(char *path, size_t size, const char *folder, const char *part);

#endif
