/* Template source to tokens. White space follows transformers' settings (trim_blocks, lstrip_blocks, no trailing newline):
 * the newline after a block tag goes, and so do blanks between the start of a line and a block tag; - takes all white
 * space on its side, + keeps it. */
#include <stdlib.h>
#include <string.h>

#include "file/text.h"
#include "text/jinja.h"

typedef struct lexer {
    jinja *j;
    const char *source;
    size_t size, at;
    int line;
    int line_starting; /* what was read last ended with a newline, or nothing was read */
    jinja_tokens tokens;
} lexer;

static void push(lexer *l, jinja_token_kind kind, jinja_text text) {
    l->tokens.item =
        mhla_jinja_grow(l->j, l->tokens.item, l->tokens.count, &l->tokens.capacity, sizeof *l->tokens.item);
    l->tokens.item[l->tokens.count++] = (jinja_token){.kind = kind, .line = l->line, .text = text};
}

static int has(const lexer *l, size_t at, const char *what) {
    const size_t n = strlen(what);
    return at <= l->size && l->size - at >= n && memcmp(l->source + at, what, n) == 0;
}

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80); }

static void move_to(lexer *l, size_t at) {
    for (; l->at < at; l->at++) l->line += l->source[l->at] == '\n';
    l->j->line = l->line;
}

static void skip_space(lexer *l) {
    size_t at = l->at;
    while (at < l->size && is_space(l->source[at])) at++;
    move_to(l, at);
}

/* The end of a tag at `at`: `sign` is what stands before `close`. Moves behind it and what it takes along. */
static int end_of_tag(lexer *l, const char *close, int trim) {
    const size_t n = strlen(close);
    if (has(l, l->at, "-") && has(l, l->at + 1, close)) {
        move_to(l, l->at + 1 + n);
        skip_space(l);
    } else if (trim && has(l, l->at, "+") && has(l, l->at + 1, close)) {
        move_to(l, l->at + 1 + n);
    } else if (has(l, l->at, close)) {
        move_to(l, l->at + n);
        if (trim && has(l, l->at, "\n")) move_to(l, l->at + 1);
    } else {
        return 0;
    }
    l->line_starting = l->source[l->at - 1] == '\n';
    return 1;
}

/* ---- Inside tags ---- */

static uint32_t digits(lexer *l, const char **p, const char *end, int most, int base) {
    uint32_t code = 0;
    int n = 0;
    for (; n < most && *p < end; n++, (*p)++) {
        const char c = **p;
        const int d = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : 99;
        if (d >= base) break;
        code = code * (uint32_t)base + (uint32_t)d;
    }
    if (base == 16 && n < most) mhla_jinja_fail(l->j, MHLA_EDATA, "an escape in a text lacks digits");
    return code;
}

static void put_code(lexer *l, jinja_buffer *b, uint32_t code) {
    unsigned char bytes[4];
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        mhla_jinja_fail(l->j, MHLA_EDATA, "an escape in a text stands for no character");
    mhla_jinja_add(l->j, b, (const char *)bytes, (size_t)mhla_utf8_put(bytes, code));
}

/* As Python unescapes: what is not known keeps its backslash. */
static jinja_text unescape(lexer *l, const char *p, const char *end) {
    jinja_buffer b = {0};
    while (p < end) {
        if (*p != '\\' || p + 1 == end) {
            const char *next = memchr(p + 1, '\\', (size_t)(end - p) - 1);
            if (next == NULL) next = end;
            mhla_jinja_add(l->j, &b, p, (size_t)(next - p));
            p = next;
            continue;
        }
        static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        const char c = p[1], *known = strchr(from, c);
        p += 2;
        if (c == '\n') continue;
        if (known && c) {
            mhla_jinja_add(l->j, &b, &to[known - from], 1);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            uint32_t code = digits(l, &p, end, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
            if (code >= 0xd800 && code < 0xdc00 && end - p >= 6 && p[0] == '\\' &&
                p[1] == 'u') { /* a pair, as JSON has */
                p += 2;
                code = 0x10000 + ((code - 0xd800) << 10) + (digits(l, &p, end, 4, 16) - 0xdc00);
            }
            put_code(l, &b, code);
        } else if (c >= '0' && c <= '7') {
            p--;
            put_code(l, &b, digits(l, &p, end, 3, 8));
        } else {
            mhla_jinja_add(l->j, &b, p - 2, 2);
        }
    }
    return (jinja_text){b.data, b.count};
}

static void lex_string(lexer *l) {
    const char quote = l->source[l->at];
    size_t end = l->at + 1;
    while (end < l->size && l->source[end] != quote) end += l->source[end] == '\\' ? 2 : 1;
    if (end >= l->size) mhla_jinja_fail(l->j, MHLA_EDATA, "a text in quotes has no end");
    push(l, TOKEN_STRING, unescape(l, l->source + l->at + 1, l->source + end));
    move_to(l, end + 1);
}

static void lex_number(lexer *l) {
    char digits_only[64];
    size_t n = 0, at = l->at;
    int real = 0;
    for (; at < l->size; at++) {
        const char c = l->source[at];
        const int sign = (c == '-' || c == '+') && real && (digits_only[n - 1] == 'e' || digits_only[n - 1] == 'E');
        const int point = c == '.' && !real && at + 1 < l->size && is_digit(l->source[at + 1]);
        const int power = (c == 'e' || c == 'E') && at + 1 < l->size && n > 0 &&
                          (is_digit(l->source[at + 1]) || l->source[at + 1] == '-' || l->source[at + 1] == '+');
        if (c == '_') continue;
        if (!is_digit(c) && !point && !power && !sign) break;
        real |= point | power;
        if (n + 1 == sizeof digits_only) mhla_jinja_fail(l->j, MHLA_EDATA, "a number is too long");
        digits_only[n++] = c;
    }
    digits_only[n] = '\0';
    push(l, real ? TOKEN_REAL : TOKEN_INT, (jinja_text){l->source + l->at, at - l->at});
    jinja_value *v = &l->tokens.item[l->tokens.count - 1].value;
    if (real) {
        *v = (jinja_value){.kind = JINJA_REAL, .real = strtod(digits_only, NULL)};
    } else {
        if (n > 18) mhla_jinja_fail(l->j, MHLA_ENOTSUP, "the number %s is too large", digits_only);
        *v = mhla_jinja_int(strtoll(digits_only, NULL, 10));
    }
    move_to(l, at);
}

static void lex_tag(lexer *l, const char *close, int block) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    char open[JINJA_NESTING];
    int nested = 0;
    for (;;) {
        skip_space(l);
        if (l->at == l->size) mhla_jinja_fail(l->j, MHLA_EDATA, "a tag has no end \"%s\"", close);
        const int line = l->line;
        if (nested == 0 && end_of_tag(l, close, block)) {
            push(l, block ? TOKEN_BLOCK_END : TOKEN_PRINT_END, JINJA_LITERAL("end of tag"));
            l->tokens.item[l->tokens.count - 1].line = line;
            return;
        }
        const char c = l->source[l->at];
        if (is_digit(c)) {
            lex_number(l);
        } else if (is_name(c)) {
            size_t end = l->at;
            while (end < l->size && (is_name(l->source[end]) || is_digit(l->source[end]))) end++;
            push(l, TOKEN_NAME, (jinja_text){l->source + l->at, end - l->at});
            move_to(l, end);
        } else if (c == '"' || c == '\'') {
            lex_string(l);
        } else {
            size_t i = 0, count = sizeof operators / sizeof *operators;
            while (i < count && !has(l, l->at, operators[i])) i++;
            if (i == count) mhla_jinja_fail(l->j, MHLA_EDATA, "unexpected character %s", mhla_quote_bytes(&c, 1).text);
            if (strchr("([{", c)) {
                if (nested == JINJA_NESTING) mhla_jinja_fail(l->j, MHLA_ENOTSUP, "brackets are nested too deeply");
                open[nested++] = c == '(' ? ')' : c == '[' ? ']' : '}';
            } else if (strchr(")]}", c)) {
                if (nested == 0 || open[--nested] != c) mhla_jinja_fail(l->j, MHLA_EDATA, "unexpected \"%c\"", c);
            }
            push(l, TOKEN_OPERATOR, (jinja_text){operators[i], strlen(operators[i])});
            move_to(l, l->at + strlen(operators[i]));
        }
    }
}

/* ---- Outside ---- */

/* Text before a tag that begins at `end` with `sign`. */
static void lex_data(lexer *l, size_t end, char sign, int strips) {
    jinja_text text = {l->source + l->at, end - l->at};
    if (sign == '-') {
        text = mhla_jinja_strip(text, NULL, 0, 1);
    } else if (sign != '+' && strips) {
        size_t n = text.size;
        while (n > 0 && text.data[n - 1] != '\n' && is_space(text.data[n - 1])) n--;
        if (n > 0 ? text.data[n - 1] == '\n' : l->line_starting) text.size = n;
    }
    if (text.size > 0) push(l, TOKEN_DATA, text);
    move_to(l, end);
}

static char sign_at(const lexer *l, size_t at) {
    return at < l->size && (l->source[at] == '-' || l->source[at] == '+') ? l->source[at] : '\0';
}

/* "{%- raw -%}" or "endraw" at `at`, whose end is *end; 0 if it is something else. */
static int is_raw(const lexer *l, size_t at, const char *word, size_t *end) {
    at += 2;
    at += sign_at(l, at) != '\0';
    while (at < l->size && is_space(l->source[at])) at++;
    if (!has(l, at, word)) return 0;
    at += strlen(word);
    while (at < l->size && is_space(l->source[at])) at++;
    *end = at;
    return has(l, at, "%}") || has(l, at, "-%}") || (word[0] == 'e' && has(l, at, "+%}"));
}

static void lex_raw(lexer *l, size_t end) {
    move_to(l, end);
    end_of_tag(l, "%}", 0);
    for (size_t at = l->at; at < l->size; at++) {
        if (!has(l, at, "{%") || !is_raw(l, at, "endraw", &end)) continue;
        lex_data(l, at, sign_at(l, at + 2), 1);
        move_to(l, end);
        end_of_tag(l, "%}", 1);
        return;
    }
    mhla_jinja_fail(l->j, MHLA_EDATA, "{%% raw %%} has no {%% endraw %%}");
}

static void lex_comment(lexer *l) {
    for (size_t at = l->at + 2; at < l->size; at++) {
        const size_t skip = sign_at(l, at) != '\0';
        if (!has(l, at, "#}") && !(skip && has(l, at + 1, "#}"))) continue;
        move_to(l, at);
        end_of_tag(l, "#}", 1);
        return;
    }
    mhla_jinja_fail(l->j, MHLA_EDATA, "a comment has no end");
}

jinja_tokens mhla_jinja_lex(jinja *j, const char *source, size_t size) {
    /* one kind of newline, none at the end */
    char *copy = mhla_jinja_alloc(j, size + 1);
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n') continue;
        copy[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && copy[n - 1] == '\n') n--;
    lexer l = {.j = j, .source = copy, .size = n, .line = 1, .line_starting = 1};
    for (;;) {
        size_t at = l.at, end = 0;
        while (at < n && !(has(&l, at, "{%") || has(&l, at, "{{") || has(&l, at, "{#"))) at++;
        if (at >= n) {
            lex_data(&l, n, '+', 0);
            push(&l, TOKEN_END, JINJA_LITERAL("end of template"));
            return l.tokens;
        }
        const char kind = copy[at + 1], sign = sign_at(&l, at + 2);
        lex_data(&l, at, sign, kind != '{');
        if (kind == '#') {
            lex_comment(&l);
        } else if (kind == '%' && is_raw(&l, at, "raw", &end)) {
            lex_raw(&l, end);
        } else {
            push(&l, kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN, JINJA_LITERAL("tag"));
            move_to(&l, at + 2 + (sign != '\0'));
            lex_tag(&l, kind == '%' ? "%}" : "}}", kind == '%');
        }
    }
}
