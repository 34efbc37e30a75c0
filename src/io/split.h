/* Cutting text where a pattern matches, as pre-tokenizers do. The patterns of well-known tokenizers are written by hand; any
 * other regular expression goes to PCRE2. Both mean the reference's Unicode: \s is White_Space, \p{L} and \p{N} are the
 * general categories. */
#ifndef MHLA_IO_SPLIT_H
#define MHLA_IO_SPLIT_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MHLA_CHAR_LETTER = 1,
    MHLA_CHAR_NUMBER = 2,
    MHLA_CHAR_SPACE = 4,
    MHLA_CHAR_WORD = 8,
    MHLA_CHAR_PUNCTUATION = 16
};

/* Bits of the above of a code point. */
unsigned mhla_char_class(uint32_t code);

/* What some table says of characters: ranges in ascending order, which do not overlap. */
typedef struct mhla_char_range {
    uint32_t first, last, value;
} mhla_char_range;
/* The range that a code point is in, or NULL. */
const mhla_char_range *mhla_char_find(const mhla_char_range *ranges, size_t count, uint32_t code);
/* The code point at `at`, which is valid UTF-8, and its length. */
static inline uint32_t mhla_char_read(const char *at, size_t *length) {
    const unsigned char *c = (const unsigned char *)at;
    if (c[0] < 0x80) return *length = 1, c[0];
    if (c[0] < 0xe0) return *length = 2, (uint32_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    if (c[0] < 0xf0) return *length = 3, (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3f);
    return *length = 4,
           (uint32_t)(c[0] & 0x07) << 18 | (uint32_t)(c[1] & 0x3f) << 12 | (uint32_t)(c[2] & 0x3f) << 6 | (c[3] & 0x3f);
}

extern const char mhla_pattern_gpt2[], mhla_pattern_llama3[], mhla_pattern_qwen2[];

typedef enum mhla_pattern_kind {
    MHLA_PATTERN_GPT2,   /* the three expressions above, by hand; each matches everywhere */
    MHLA_PATTERN_LLAMA3, /* of two kinds: `digits` is how many at most */
    MHLA_PATTERN_CLASS,  /* one character of these classes */
    MHLA_PATTERN_WORDS,  /* \w+|[^\w\s]+ */
    MHLA_PATTERN_LITERAL,
    MHLA_PATTERN_REGEX
} mhla_pattern_kind;

typedef struct mhla_pattern {
    mhla_pattern_kind kind;
    unsigned classes;
    int digits;
    char *literal; /* [bytes] */
    size_t bytes;
    void *code; /* pcre2_code */
} mhla_pattern;

/* By hand where the expression is known, unless `never_by_hand`. MHLA_EDATA: it does not compile; `file` is for the message. */
mhla_status mhla_pattern_regex(mhla_pattern *p, const char *expression, size_t bytes, int never_by_hand,
                               const char *file);
mhla_status mhla_pattern_literal(mhla_pattern *p, const char *text, size_t bytes);
void mhla_pattern_free(mhla_pattern *p);

/* What matching needs and threads do not share. */
typedef struct mhla_matcher {
    void *data; /* pcre2_match_data, made when needed */
} mhla_matcher;
void mhla_matcher_free(mhla_matcher *m);

/* The first match at or behind `at` that is not empty: text[*start .. *end); *end = 0 if there is none. text is valid UTF-8. */
mhla_status mhla_pattern_next(const mhla_pattern *p, mhla_matcher *m, const char *text, size_t bytes, size_t at,
                              size_t *start, size_t *end);

/* The end of the match that begins at `at` < bytes, for the patterns that match everywhere. */
size_t mhla_pattern_end(const mhla_pattern *p, const char *text, size_t bytes, size_t at);

#endif
