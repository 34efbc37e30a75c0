/* The vocabulary of a tokenizer as the metadata of a GGUF file. */
#ifndef MHLA_TEXT_GGUF_TOKENS_H
#define MHLA_TEXT_GGUF_TOKENS_H

#include "file/gguf.h"
#include "file/json.h"
#include "text/tokenizer.h"

enum { MHLA_GGUF_TOKEN_PAIRS = 32 };

typedef struct mhla_gguf_tokens {
    mhla_gguf_pair pairs[MHLA_GGUF_TOKEN_PAIRS];
    int64_t count;
    /* what they point into */
    mhla_gguf *file;     /* taken as they are from another GGUF, */
    json_t *tree;        /* or made of tokenizer.json, */
    mhla_tokenizer *own; /* and of what it and the files beside it make */
    mhla_gguf_string *tokens, *merges, texts[4];
    char *joined, *pads;
    float *scores;
    int32_t *types;
    uint32_t ids[4];
    uint8_t flags[4];
} mhla_gguf_tokens;

/* Of a .gguf file, or of a folder with tokenizer.json: byte-level BPE, or BPE with byte fallback. `vocabulary`: how many
 * tokens the model has; the file may name fewer. MHLA_OK with no pairs if there is neither. Free it in any case. */
mhla_status mhla_gguf_tokens_make(mhla_gguf_tokens *t, const char *path, int64_t vocabulary);
void mhla_gguf_tokens_free(mhla_gguf_tokens *t);

#endif
