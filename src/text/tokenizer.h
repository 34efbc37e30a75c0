/* The inside of a tokenizer: what readers of files (tokenizer_json.c, tokenizer_model.c, tokenizer_gguf.c) fill, and
 * encoding and decoding use. Text walks: added tokens cut out -> normalizers -> added tokens of normalised text ->
 * splitters -> byte pair encoding; ids walk back through the decoder. */
#ifndef MHLA_TEXT_TOKENIZER_H
#define MHLA_TEXT_TOKENIZER_H

#include <mhla/lm.h>
#include <pthread.h>

#include "file/json.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/split.h"
#include "text/unigram.h"
#include "text/vocabulary.h"

/* ---- Added tokens: found in the text as they are, before anything else ---- */

typedef struct mhla_added {
    int32_t id;
    char *content; /* [bytes], normalised if it is to be found in normalised text */
    size_t bytes;
    int lstrip, rstrip, single_word, special;
    int normalized; /* 1: found in normalised text, as which its content is normalised; 2: and it is so already */
} mhla_added;

/* A tree of the bytes of added tokens; node 0 is its root. */
typedef struct mhla_added_tree {
    struct mhla_added_node {
        int32_t child, sibling; /* -1: none */
        int32_t token;          /* of mhla_tokenizer.added, or -1 */
        unsigned char byte;
    } * nodes;
    size_t count, capacity;
    unsigned char first[256]; /* some token begins with it */
} mhla_added_tree;

/* ---- Splitters ---- */

typedef enum mhla_behavior {
    MHLA_SPLIT_ISOLATED,
    MHLA_SPLIT_REMOVED,
    MHLA_SPLIT_CONTIGUOUS,
    MHLA_SPLIT_WITH_PREVIOUS,
    MHLA_SPLIT_WITH_NEXT
} mhla_behavior;

typedef struct mhla_splitter {
    int splits; /* by the pattern; else only what follows */
    mhla_pattern pattern;
    mhla_behavior behavior;
    int invert;
    /* before that: Metaspace and ByteLevel(add_prefix_space) */
    enum { MHLA_PREFIX_NEVER, MHLA_PREFIX_FIRST, MHLA_PREFIX_ALWAYS } prefix; /* `mark`, unless it is there */
    int mark_spaces;                                                          /* each " " becomes `mark` */
    char mark[8];
    size_t mark_bytes;
} mhla_splitter;

/* ---- Decoders ---- */

typedef enum mhla_decoder_kind {
    MHLA_DECODER_SPACED,     /* none: pieces with spaces between */
    MHLA_DECODER_BYTE_LEVEL, /* characters stand for bytes */
    MHLA_DECODER_PIECES,     /* pieces, changed one by one; byte tokens; what is stripped of the whole */
    MHLA_DECODER_SENTENCEPIECE
} mhla_decoder_kind;

typedef struct mhla_decoder_step {
    enum { MHLA_DECODE_REPLACE, MHLA_DECODE_STRIP } kind; /* of every piece */
    char *from, *to;                                      /* REPLACE; STRIP: `from` is one character */
    size_t from_bytes, to_bytes;
    int64_t start, stop; /* STRIP: so many at most */
} mhla_decoder_step;

typedef struct mhla_decoding {
    mhla_decoder_kind kind;
    mhla_decoder_step *steps; /* [count], before bytes are joined */
    size_t count, capacity;
    int byte_fallback;
    mhla_decoder_step whole; /* STRIP of the fused text, or from == NULL */
    int metaspace;           /* 1: the mark is a space; 2: and is left out of the first piece */
    char mark[8];            /* of metaspace */
    size_t mark_bytes;
    int dummy_prefix, squeeze; /* SentencePiece: one mark, all marks are left out at the start */
} mhla_decoding;

/* What the ids of a tokenizer turn into, prepared when it is opened. */
typedef struct mhla_decoded {
    uint32_t start;
    int32_t length;      /* -1: not a piece */
    int16_t byte;        /* a byte token: which; else -1 */
    unsigned char whole; /* valid UTF-8 */
    unsigned char ends;  /* a word (bpe.suffix) */
    unsigned char type;  /* SentencePiece: MHLA_TYPE_ */
} mhla_decoded;

/* ---- The whole ---- */

enum { MHLA_TYPE_NORMAL = 1, MHLA_TYPE_UNKNOWN, MHLA_TYPE_CONTROL, MHLA_TYPE_USER, MHLA_TYPE_UNUSED, MHLA_TYPE_BYTE };

struct mhla_tokenizer {
    mhla_vocabulary pieces; /* as the file spells them, added tokens included */
    mhla_bpe bpe;           /* `unk` and `spare` of it are also those of unigram */
    mhla_unigram unigram;   /* instead of it, where it has scores */
    mhla_added *added;
    size_t added_count, added_capacity;
    mhla_added_tree raw, normal; /* of tokens that are looked for in raw, in normalised text */
    mhla_normalizer *normalizers;
    size_t normalizer_count, normalizer_capacity;
    mhla_splitter *splitters;
    size_t splitter_count, splitter_capacity;
    mhla_ids before, after; /* what MHLA_ENCODE_SPECIAL adds */
    mhla_decoding decoding;
    mhla_chars decoded_text;
    mhla_decoded *decoded;  /* [pieces.count] */
    unsigned char *special; /* [pieces.count] */
    unsigned char *types;   /* SentencePiece: [pieces.count] MHLA_TYPE_, or NULL */
    int32_t bos, eos, unk, pad;
    int64_t longest; /* ids of a text at most, with what is added; 0: not known */
    char *chat_template;
    const char *kind;

    pthread_mutex_t lock; /* of the list of workspaces: a call takes one, or makes it */
    struct mhla_encode_work *idle;
};

/* A tokenizer with nothing in it: a reader fills pieces, bpe, .., and calls _finish, which prepares the rest. */
mhla_status mhla_tokenizer_new(mhla_tokenizer **tokenizer);
mhla_status mhla_tokenizer_finish(mhla_tokenizer *t, const char *file);

/* content must be a piece already. */
mhla_status mhla_tokenizer_add(mhla_tokenizer *t, const mhla_added *token, const char *file);

/* Elements of its lists, zeroed. */
mhla_status mhla_tokenizer_new_normalizer(mhla_tokenizer *t, mhla_normalizer **n);
mhla_status mhla_tokenizer_new_splitter(mhla_tokenizer *t, mhla_splitter **s);
/* A copy, a zero behind it. */
mhla_status mhla_text_copy(char **to, const char *from, size_t bytes);

/* Pieces of a byte-level vocabulary to raw bytes: bpe.symbols from pieces. And the bytes of one piece: 0 where a character
 * stands for no byte. */
mhla_status mhla_byte_level_symbols(mhla_tokenizer *t, const char *file);
int mhla_byte_level_bytes(const char *piece, size_t bytes, char *out, size_t *count);
/* The character that stands for a byte. */
uint32_t mhla_byte_level_char(unsigned char byte);

/* The merges of a model that has scores instead: every way to cut a piece in two pieces, the higher score first. types may
 * be NULL: all are normal. [pieces.count] each. */
mhla_status mhla_scores_merges(mhla_tokenizer *t, const float *scores, const unsigned char *types, const char *file);
/* What SentencePiece does around it where spaces are kept: dummy prefix, U+2581, its way to decode. */
mhla_status mhla_sentencepiece_around(mhla_tokenizer *t, int dummy_prefix, int escape);

/* ---- Readers: bytes of a file, a name for messages ---- */

mhla_status mhla_tokenizer_parse_json(mhla_tokenizer **tokenizer, const char *text, size_t size, const char *name);
/* The same of what was parsed already. */
mhla_status mhla_tokenizer_parse_tree(mhla_tokenizer **tokenizer, const json_t *tree, const char *name);
/* GPT-2's vocab.json and merges.txt, CLIP's of the same names, and, where vocab is NULL, CLIP's bpe_simple_vocab_16e6.txt, of
 * which the vocabulary follows. `config` is the tokenizer_config.json beside it, or NULL. */
mhla_status mhla_tokenizer_parse_merges(mhla_tokenizer **tokenizer, const char *vocab, size_t vocab_size,
                                        const char *merges, size_t merges_size, const json_t *config, const char *name);
/* Lines of a piece in Base64 and its rank. What the pattern and the special tokens are follows from the number of ranks, the
 * name of the file or the model_type beside it, which may be NULL. */
mhla_status mhla_tokenizer_parse_tiktoken(mhla_tokenizer **tokenizer, const char *text, size_t size, const char *model,
                                          const char *name);
int mhla_tiktoken_is(const unsigned char *text, size_t size);
mhla_status mhla_tokenizer_parse_model(mhla_tokenizer **tokenizer, const unsigned char *bytes, size_t size,
                                       const char *name);
mhla_status mhla_tokenizer_parse_gguf(mhla_tokenizer **tokenizer, const char *path);

/* The file that mhla_tokenizer_open(path) opens: of a folder the first of the names below that it has. 0: there is none. */
int mhla_tokenizer_file(char *file, size_t size, const char *path);
extern const char *const mhla_tokenizer_names[]; /* ends with NULL */

/* Normalizer, pre-tokenizer, post-processor, decoder of a tokenizer.json. */
mhla_status mhla_pipeline_read(mhla_tokenizer *t, const json_t *tree, const char *name);
mhla_status mhla_decoding_read(mhla_tokenizer *t, const json_t *decoder, const char *name);

/* tokenizer_config.json beside it: names of special tokens, add_bos_token, chat template. `model`: it belongs to a
 * tokenizer.model, which knows no added tokens itself. */
mhla_status mhla_tokenizer_parse_config(mhla_tokenizer *t, const json_t *tree, int model, const char *name);

/* ---- Encoding (tokenizer_encode.c) ---- */

void mhla_tokenizer_idle_free(mhla_tokenizer *t);
mhla_status mhla_added_tree_add(mhla_added_tree *tree, const char *content, size_t bytes, int32_t token);
/* Runs the normalizers; *text and *bytes become what comes out, in one of the buffers or where it was. *first is how
 * many bytes of it count as the beginning of the text: what is put in front adds to them, what is stripped there takes away. */
mhla_status mhla_normalizers_run(const mhla_tokenizer *t, mhla_matcher *m, mhla_chars buffers[2], const char **text,
                                 size_t *bytes, size_t *first);

/* ---- Decoding (tokenizer_decode.c) ---- */

mhla_status mhla_decoding_prepare(mhla_tokenizer *t);
void mhla_decoding_free(mhla_decoding *d);

#endif
