/* Byte pair encoding of one word after the other: the pair of neighbours of the lowest rank becomes one symbol, the
 * leftmost first, until no pair is known. Immutable once built; what a thread changes is its mhla_bpe_work. */
#ifndef MHLA_TEXT_BPE_H
#define MHLA_TEXT_BPE_H

#include "text/vocabulary.h"

typedef struct mhla_bpe {
    /* What words consist of: for byte-level models the pieces as raw bytes, else as they are spelled. Ids of `symbols` from
     * `limit` on are characters that only occur inside of pieces (SentencePiece): they are merged, but never written. */
    mhla_vocabulary symbols;
    int32_t limit;
    int byte_level;     /* a word begins as bytes, not as characters */
    int ignore_merges;  /* a word that is a piece is that piece */
    int fuse_unk;       /* neighbouring unknown characters give one unknown token */
    int late;           /* unknown characters are looked at after merging (SentencePiece), not before */
    int32_t unk;        /* -1: what is unknown is left out */
    int32_t first[256]; /* symbol of a byte, or of an ASCII character; -1 */
    char suffix[16];    /* what the last character of a word has behind it ("</w>") */
    size_t suffix_bytes;
    int32_t spare[256]; /* ids of <0x00> .. <0xFF>, -1; an unknown character becomes its bytes if it has all */
    struct mhla_bpe_pair {
        uint64_t key; /* left << 32 | right; all ones: empty */
        uint32_t rank;
        int32_t id;
    } * pairs; /* [mask + 1] */
    size_t mask, used;
    /* No piece holds U+2581 behind one of these characters: a text may be cut there, and its parts be cached. */
    unsigned char cut[128];
    int cut_other; /* behind any other character but itself */
    int cuts;      /* at all */
} mhla_bpe;

typedef struct mhla_bpe_work mhla_bpe_work;

void mhla_bpe_free(mhla_bpe *b);
/* left and right, neighbours, become id. A pair that is known keeps its lower rank. */
mhla_status mhla_bpe_merge_add(mhla_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Fills what follows from symbols and merges: first, cut. */
void mhla_bpe_finish(mhla_bpe *b);

mhla_status mhla_bpe_work_create(mhla_bpe_work **work);
void mhla_bpe_work_free(mhla_bpe_work *work);

/* Appends the ids of a word, which is UTF-8 or, for byte-level models, whole characters of it. */
mhla_status mhla_bpe_encode(const mhla_bpe *b, mhla_bpe_work *work, mhla_ids *ids, const char *word, size_t bytes);

#endif
