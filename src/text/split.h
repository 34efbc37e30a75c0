/* Cutting text where a pattern matches, as pre-tokenizers do. The patterns of well-known tokenizers are written by hand; any
 * other regular expression goes to PCRE2. Both mean the reference's Unicode: \s is White_Space, \p{L} and \p{N} are the
 * general categories of unicode.h, also where PCRE2 knows another version. */
#ifndef MHLA_TEXT_SPLIT_H
#define MHLA_TEXT_SPLIT_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

#include "text/unicode.h"

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
    /* characters whose category PCRE2 may not know as we do, and one of that category that it does: it
     * is as long, and no literal of the expression tells them apart */
    mhla_char_range *stand_ins; /* [stand_in_count] */
    size_t stand_in_count, stand_in_capacity;
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

/* A text as the pattern is to see it: *copy, which is as long and the caller's to mhla_free, or NULL, and it is the text as it
 * is. text is valid UTF-8. */
mhla_status mhla_pattern_subject(const mhla_pattern *p, char **copy, const char *text, size_t bytes);

/* The first match at or behind `at` that is not empty: text[*start .. *end); *end = 0 if there is none. text is one that
 * mhla_pattern_subject made or left as it is. */
mhla_status mhla_pattern_next(const mhla_pattern *p, mhla_matcher *m, const char *text, size_t bytes, size_t at,
                              size_t *start, size_t *end);

/* The end of the match that begins at `at` < bytes, for the patterns that match everywhere. */
size_t mhla_pattern_end(const mhla_pattern *p, const char *text, size_t bytes, size_t at);

#endif
