#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/lists.h"
#include "file/text.h"

const char mhla_pattern_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char mhla_pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char mhla_pattern_qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- The well-known patterns: ASCII by a table ---- */

enum { L = MHLA_CHAR_LETTER, N = MHLA_CHAR_NUMBER, S = MHLA_CHAR_SPACE };

enum { APOSTROPHE = 32, BREAK = 64 }; /* BREAK: \r or \n */
static const unsigned char ascii[128] = {
    [9] = S,
    [10] = S | BREAK,
    [11] = S,
    [12] = S,
    [13] = S | BREAK,
    [' '] = S,
    ['\''] = APOSTROPHE,
    ['0'] = N,
    N,
    N,
    N,
    N,
    N,
    N,
    N,
    N,
    N,
    ['A'] = L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    ['a'] = L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
    L,
};

static inline unsigned class_at(const char *at, size_t *length) {
    const unsigned char c = (unsigned char)*at;
    if (c < 128) return *length = 1, ascii[c];
    const uint32_t code = mhla_char_read(at, length);
    return mhla_char_class(code) & (L | N | S);
}

/* Behind the run of characters at `at` whose class is `wanted` (0: neither letter nor number nor space). */
static inline size_t run_of(const char *text, size_t bytes, size_t at, unsigned wanted) {
    for (size_t n; at < bytes; at += n)
        if ((class_at(text + at, &n) & (L | N | S)) != wanted) break;
    return at;
}

/* Behind the run of spaces at `at`; *last_break is behind the last \r or \n of them, 0 if there is none. */
static size_t spaces_end(const char *text, size_t bytes, size_t at, size_t *last_break) {
    *last_break = 0;
    for (size_t n; at < bytes; at += n) {
        const unsigned c = class_at(text + at, &n);
        if ((c & S) == 0) break;
        if (c & BREAK) *last_break = at + n;
    }
    return at;
}

/* 's 't 're 've 'm 'll 'd behind an apostrophe at `at`; 0 if there is none. Ignoring case, U+017F is an s. */
static size_t contraction(const char *text, size_t bytes, size_t at, int ignore_case) {
    const char fold = ignore_case ? 0x20 : 0;
    if (at + 1 >= bytes) return 0;
    const char a = (char)(text[at + 1] | fold), b = at + 2 < bytes ? (char)(text[at + 2] | fold) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    if (ignore_case && at + 2 < bytes && memcmp(text + at + 1, "\xc5\xbf", 2) == 0) return at + 3;
    return 0;
}

/* Where \s+(?!\S)|\s+ ends. */
static size_t spaces_left(const char *text, size_t at, size_t end, size_t bytes) {
    if (end == bytes) return end;
    size_t last = end; /* the last space is left to what follows, unless it is the only one */
    do last--;
    while (((unsigned char)text[last] & 0xc0) == 0x80);
    return last > at ? last : end;
}

static inline size_t gpt2_end(const char *text, size_t bytes, size_t at) {
    size_t n, m, unused;
    unsigned c = class_at(text + at, &n);
    if (c & APOSTROPHE) {
        const size_t end = contraction(text, bytes, at, 0);
        if (end) return end;
    }
    if (c & S) {
        if (text[at] == ' ' && at + 1 < bytes) { /* " ?": the space and what follows it */
            const unsigned d = class_at(text + at + 1, &m) & (L | N | S);
            if (d != S) return run_of(text, bytes, at + 1 + m, d);
        }
        return spaces_left(text, at, spaces_end(text, bytes, at, &unused), bytes);
    }
    return run_of(text, bytes, at + n, c & (L | N));
}

static inline size_t llama3_end(const char *text, size_t bytes, size_t at, int digits) {
    size_t n, m = 0, last_break;
    const unsigned c = class_at(text + at, &n);
    if (c & APOSTROPHE) {
        const size_t end = contraction(text, bytes, at, 1);
        if (end) return end;
    }
    if (c & L) return run_of(text, bytes, at + n, L);
    if (c & N) {
        size_t end = at + n;
        for (int i = 1; i < digits && end < bytes && (class_at(text + end, &m) & N); i++) end += m;
        return end;
    }
    const unsigned d = at + n < bytes ? class_at(text + at + n, &m) & (L | N | S) : S;
    if ((c & BREAK) == 0 && d == L) return run_of(text, bytes, at + n + m, L);
    if ((c & S) == 0 || (text[at] == ' ' && d == 0)) { /* " ?[^\s\p{L}\p{N}]+[\r\n]*" */
        size_t end = run_of(text, bytes, at + n, 0);
        while (end < bytes && (text[end] == '\r' || text[end] == '\n')) end++;
        return end;
    }
    const size_t end = spaces_end(text, bytes, at, &last_break);
    return last_break ? last_break : spaces_left(text, at, end, bytes);
}

size_t mhla_pattern_end(const mhla_pattern *p, const char *text, size_t bytes, size_t at) {
    return p->kind == MHLA_PATTERN_GPT2 ? gpt2_end(text, bytes, at) : llama3_end(text, bytes, at, p->digits);
}

/* ---- Any other expression ---- */

/* The code point of hexadecimal digits at `at`, up to `most` of them or to the first that is none. */
static uint32_t read_hex(const char *at, size_t most) {
    uint32_t code = 0;
    for (size_t i = 0; i < most && code < 0x110000; i++) {
        const char c = at[i], low = (char)(c | 0x20);
        if (!((c >= '0' && c <= '9') || (low >= 'a' && low <= 'f'))) break;
        code = code << 4 | (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
    }
    return code;
}

/* PCRE2's \s and \h have U+180E, which is no White_Space; its \w lacks marks. Spells \s, \S and \w out; \S and \W inside of
 * brackets cannot be spelled so and stay. */
static mhla_status spell(mhla_chars *out, const char *expression, size_t bytes) {
    static const char spaces[] =
        "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
        "\\x{3000}",
                      word[] =
                          "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"
                          "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
    int inside = 0; /* brackets */
    for (size_t i = 0; i < bytes; i++) {
        const char c = expression[i], d = i + 1 < bytes ? expression[i + 1] : 0;
        if (c == '\\' && (d == 's' || d == 'w' || (!inside && (d == 'S' || d == 'W')))) {
            const char *set = d == 's' || d == 'S' ? spaces : word;
            if (!inside)
                MHLA_TRY(mhla_chars_append(out, d == 'S' || d == 'W' ? "[^" : "[", d == 'S' || d == 'W' ? 2 : 1));
            MHLA_TRY(mhla_chars_append(out, set, strlen(set)));
            if (!inside) MHLA_TRY(mhla_chars_append(out, "]", 1));
            i++;
            continue;
        }
        if (c == '\\' && d == 'u' && i + 5 < bytes) { /* \uHHHH, which PCRE2 spells otherwise */
            char hex[16];
            const int n = snprintf(hex, sizeof hex, "\\x{%04x}", (unsigned)read_hex(expression + i + 2, 4));
            MHLA_TRY(mhla_chars_append(out, hex, (size_t)n));
            i += 5;
            continue;
        }
        if (c == '\\') {
            MHLA_TRY(mhla_chars_append(out, expression + i, d ? 2 : 1));
            i++;
            continue;
        }
        MHLA_TRY(mhla_chars_append(out, &c, 1));
        if (!inside && c == '[') {
            inside = 1;
            if (d == '^') MHLA_TRY(mhla_chars_append(out, expression + ++i, 1));
            if (i + 1 < bytes && expression[i + 1] == ']') MHLA_TRY(mhla_chars_append(out, expression + ++i, 1));
        } else if (c == ']') {
            inside = 0;
        }
    }
    return MHLA_OK;
}

/* Code points from *low up to *high, `code` among them, are one to the literals of an expression: it names none of them, alone
 * or as the end of a range. */
static void literal_bounds(const char *expression, size_t bytes, uint32_t code, uint32_t *low, uint32_t *high) {
    for (size_t i = 0, n; i < bytes; i += n) {
        uint32_t c;
        n = (size_t)mhla_utf8_length((const unsigned char *)expression + i, bytes - i);
        if (n == 0) n = 1;
        if (expression[i] != '\\')
            c = n > 1 ? mhla_char_read(expression + i, &n) : 0;
        else if (i + 3 < bytes && expression[i + 1] == 'x' && expression[i + 2] == '{')
            c = read_hex(expression + i + 3, bytes - i - 3);
        else if (i + 5 < bytes && expression[i + 1] == 'u')
            c = read_hex(expression + i + 2, 4);
        else
            c = 0, n = 2;
        if (c == 0) continue;
        for (uint32_t end = c; end <= c + 1; end++) {
            if (end <= code && end > *low) *low = end;
            if (end > code && end < *high) *high = end;
        }
    }
}

static int is_stand_in(uint32_t code, uint32_t low, uint32_t high, int category) {
    return code >= low && code < high && (code < 0xd800 || code >= 0xe000) &&
           (int)utf8proc_category((utf8proc_int32_t)code) == category &&
           mhla_char_find(mhla_char_changes, mhla_char_change_count, code) == NULL;
}

/* The nearest character that all versions have in this category, 0 if there is none. */
static uint32_t find_stand_in(uint32_t first, uint32_t last, uint32_t low, uint32_t high, int category) {
    for (uint32_t d = 1; first >= low + d || last + d < high; d++) {
        if (first >= low + d && is_stand_in(first - d, low, high, category)) return first - d;
        if (is_stand_in(last + d, low, high, category)) return last + d;
    }
    return 0;
}

enum { EXPRESSION_BYTES = 1 << 16, STAND_INS = 1024 };

/* An expression that asks for properties of characters gets a stand-in for each that libraries do not agree on. */
static mhla_status add_stand_ins(mhla_pattern *p, const char *expression, size_t bytes) {
    int asks = 0;
    for (size_t i = 0; i + 1 < bytes; i++) {
        asks |= expression[i] == '\\' && strchr("pPwWdDbBX", expression[i + 1]) && expression[i + 1];
        asks |= expression[i] == '[' && expression[i + 1] == ':';
        i += expression[i] == '\\';
    }
    for (size_t i = 0; asks && i < mhla_char_change_count; i++) {
        const mhla_char_range *change = &mhla_char_changes[i];
        for (uint32_t first = change->first; first <= change->last;) {
            const uint32_t at_least = first < 0x800 ? 0x80 : first < 0x10000 ? 0x800 : 0x10000;
            uint32_t low = at_least, high = first < 0x800 ? 0x800 : first < 0x10000 ? 0x10000 : 0x110000;
            literal_bounds(expression, bytes, first, &low, &high);
            if (p->stand_in_count > STAND_INS)
                high = change->last + 1; /* nobody names so many: no end of work for it */
            const uint32_t last = change->last < high ? change->last : high - 1;
            const uint32_t other = find_stand_in(first, last, low, high, (int)change->value);
            void *list = p->stand_ins;
            MHLA_TRY(mhla_list_grow(&list, &p->stand_in_capacity, p->stand_in_count + 1, sizeof *p->stand_ins));
            p->stand_ins = list;
            if (other) p->stand_ins[p->stand_in_count++] = (mhla_char_range){first, last, other};
            first = last + 1;
        }
    }
    return MHLA_OK;
}

mhla_status mhla_pattern_subject(const mhla_pattern *p, char **copy, const char *text, size_t bytes) {
    *copy = NULL;
    if (p->stand_in_count == 0) return MHLA_OK;
    const uint32_t least = p->stand_ins[0].first;
    for (size_t i = 0, n; i < bytes; i += n) {
        const uint32_t code = mhla_char_read(text + i, &n);
        if (code < least) continue;
        const mhla_char_range *other = mhla_char_find(p->stand_ins, p->stand_in_count, code);
        if (other == NULL) continue;
        if (*copy == NULL) {
            *copy = mhla_alloc(bytes);
            if (*copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to match a text of %zu bytes", bytes);
            memcpy(*copy, text, bytes);
        }
        mhla_utf8_put((unsigned char *)*copy + i, other->value);
    }
    return MHLA_OK;
}

mhla_status mhla_pattern_regex(mhla_pattern *p, const char *expression, size_t bytes, int never_by_hand,
                               const char *file) {
    static const struct {
        const char *expression;
        mhla_pattern_kind kind;
        int digits;
    } known[] = {{mhla_pattern_gpt2, MHLA_PATTERN_GPT2, 0},
                 {mhla_pattern_llama3, MHLA_PATTERN_LLAMA3, 3},
                 {mhla_pattern_qwen2, MHLA_PATTERN_LLAMA3, 1}};
    *p = (mhla_pattern){.kind = MHLA_PATTERN_REGEX};
    for (size_t i = 0; i < sizeof known / sizeof *known && !never_by_hand; i++)
        if (strlen(known[i].expression) == bytes && memcmp(known[i].expression, expression, bytes) == 0) {
            p->kind = known[i].kind;
            p->digits = known[i].digits;
            return MHLA_OK;
        }
    if (bytes > EXPRESSION_BYTES)
        return mhla_fail(MHLA_EDATA, "%s: a pattern of %zu bytes, more than %d", file, bytes, EXPRESSION_BYTES);
    mhla_chars spelled = {0};
    mhla_status status = spell(&spelled, expression, bytes);
    int error = 0;
    PCRE2_SIZE offset = 0;
    if (status == MHLA_OK) /* ^ and $ are those of lines in the reference's syntax */
        p->code =
            pcre2_compile((PCRE2_SPTR)(spelled.count ? spelled.data : ""), spelled.count,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (status == MHLA_OK && p->code == NULL) {
        char why[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        status = mhla_fail(MHLA_EDATA, "%s: the pattern %s: %s", file, mhla_quote_bytes(expression, bytes).text, why);
    }
    mhla_chars_free(&spelled);
    if (status == MHLA_OK) status = add_stand_ins(p, expression, bytes);
    if (status == MHLA_OK) pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* slower without, no more */
    return status;
}

mhla_status mhla_pattern_literal(mhla_pattern *p, const char *text, size_t bytes) {
    *p = (mhla_pattern){.kind = MHLA_PATTERN_LITERAL, .bytes = bytes, .literal = mhla_alloc(bytes + 1)};
    if (p->literal == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a pattern of %zu bytes", bytes);
    memcpy(p->literal, text, bytes);
    return MHLA_OK;
}

void mhla_pattern_free(mhla_pattern *p) {
    mhla_free(p->literal);
    pcre2_code_free(p->code);
    mhla_free(p->stand_ins);
    *p = (mhla_pattern){0};
}

void mhla_matcher_free(mhla_matcher *m) {
    pcre2_match_data_free(m->data);
    m->data = NULL;
}

static mhla_status regex_next(const mhla_pattern *p, mhla_matcher *m, const char *text, size_t bytes, size_t at,
                              size_t *start, size_t *end) {
    if (m->data == NULL) m->data = pcre2_match_data_create(1, NULL);
    if (m->data == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to match a pattern");
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int found = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, at, options, m->data, NULL);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, at, options | PCRE2_NO_JIT, m->data, NULL);
    if (found == PCRE2_ERROR_NOMATCH) return MHLA_OK;
    if (found < 0) {
        char why[128];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
        return mhla_fail(MHLA_EDATA, "a pattern of the tokenizer cannot cope with the text from byte %zu on: %s", at,
                         why);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(m->data);
    if (ends[1] <= ends[0] || ends[0] < at) return MHLA_OK; /* \K and the like can make it so */
    *start = ends[0];
    *end = ends[1];
    return MHLA_OK;
}

/* The next character that has one of the classes. */
static void class_next(unsigned classes, const char *text, size_t bytes, size_t at, size_t *start, size_t *end) {
    for (size_t n; at < bytes; at += n)
        if (mhla_char_class(mhla_char_read(text + at, &n)) & classes) {
            *start = at;
            *end = at + n;
            return;
        }
}

/* \w+|[^\w\s]+ */
static void words_next(const char *text, size_t bytes, size_t at, size_t *start, size_t *end) {
    unsigned kind = MHLA_CHAR_SPACE; /* of the first character that is no space */
    for (size_t n; at < bytes; at += n) {
        const unsigned c = mhla_char_class(mhla_char_read(text + at, &n)) & (MHLA_CHAR_WORD | MHLA_CHAR_SPACE);
        if (kind == MHLA_CHAR_SPACE && c == kind) continue;
        if (kind == MHLA_CHAR_SPACE) kind = c, *start = at;
        if (c != kind) break;
        *end = at + n;
    }
}

mhla_status mhla_pattern_next(const mhla_pattern *p, mhla_matcher *m, const char *text, size_t bytes, size_t at,
                              size_t *start, size_t *end) {
    *start = *end = 0;
    if (at >= bytes) return MHLA_OK;
    switch (p->kind) {
    case MHLA_PATTERN_GPT2:
    case MHLA_PATTERN_LLAMA3:
        *start = at;
        *end = mhla_pattern_end(p, text, bytes, at);
        break;
    case MHLA_PATTERN_CLASS: class_next(p->classes, text, bytes, at, start, end); break;
    case MHLA_PATTERN_WORDS: words_next(text, bytes, at, start, end); break;
    case MHLA_PATTERN_LITERAL: {
        const char *found = p->bytes ? memmem(text + at, bytes - at, p->literal, p->bytes) : NULL;
        if (found) *start = (size_t)(found - text), *end = *start + p->bytes;
        break;
    }
    case MHLA_PATTERN_REGEX: return regex_next(p, m, text, bytes, at, start, end);
    }
    return MHLA_OK;
}
