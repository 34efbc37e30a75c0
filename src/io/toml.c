#include "io/toml.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "io/text.h"

enum { ELEMENTS_MOST = 65536, NUMBER_MOST = 64 };

typedef struct parser {
    const char *name;
    const unsigned char *at, *end;
    int line;
    json_t *seen;              /* dotted name -> true: a value, false: a table by a key or a longer header, */
    char table[MHLA_TOML_KEY]; /*             -> null: a table by its own header */
    unsigned char *string;     /* [size of the text]: the string being read */
} parser;

static mhla_status wrong(const parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static mhla_status wrong(const parser *p, const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return mhla_fail(MHLA_EDATA, "%s:%d: %s", p->name, p->line, what);
}
static mhla_status no_memory(const parser *p) { return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", p->name); }

static int next(const parser *p) { return p->at < p->end ? *p->at : -1; }
static void skip_blank(parser *p) {
    while (next(p) == ' ' || next(p) == '\t') p->at++;
}

/* Blanks, a comment, and the end of the line or of the file. */
static mhla_status end_line(parser *p) {
    skip_blank(p);
    if (next(p) == '#')
        while (p->at < p->end && *p->at != '\n') p->at++;
    if (next(p) == '\r' && p->at + 1 < p->end && p->at[1] == '\n') p->at++;
    if (next(p) == '\n') {
        p->at++, p->line++;
        return MHLA_OK;
    }
    if (p->at == p->end) return MHLA_OK;
    return wrong(p, "%s where the line should end", mhla_quote_bytes((const char *)p->at, 1).text);
}

/* ---- Keys ---- */

static int is_key(int c) { return c == '_' || c == '-' || (c < 128 && c >= 0 && isalnum(c)); }

/* a.b.c, appended to key [MHLA_TOML_KEY], which holds the table or "" */
static mhla_status read_key(parser *p, char *key) {
    size_t n = strlen(key);
    do {
        skip_blank(p);
        if (next(p) == '"' || next(p) == '\'') return wrong(p, "quoted keys are not supported");
        const unsigned char *begin = p->at;
        while (is_key(next(p))) p->at++;
        const size_t length = (size_t)(p->at - begin);
        if (length == 0) return wrong(p, "expected a key");
        if (n + length + 2 > MHLA_TOML_KEY) return wrong(p, "a key of more than %d characters", MHLA_TOML_KEY - 2);
        if (n) key[n++] = '.';
        memcpy(key + n, begin, length);
        n += length;
        key[n] = '\0';
        skip_blank(p);
    } while (next(p) == '.' && p->at++);
    return MHLA_OK;
}

/* Notes the key and the tables it lies in. `mark`: true for a value, null for a table by its header. */
static mhla_status note(parser *p, const char *key, json_t *mark) {
    char part[MHLA_TOML_KEY];
    for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
        memcpy(part, key, (size_t)(dot - key));
        part[dot - key] = '\0';
        const json_t *before = json_object_get(p->seen, part);
        if (json_is_true(before)) return wrong(p, "\"%s\" is a value already, not a table", part);
        if (before == NULL && json_object_set_new(p->seen, part, json_false()) != 0) return no_memory(p);
    }
    const json_t *before = json_object_get(p->seen, key);
    const int again = json_is_true(mark) ? json_is_true(before) : json_is_null(before);
    if (again) return wrong(p, "\"%s\" is there twice", key);
    if (json_is_true(mark) && before) return wrong(p, "\"%s\" is a table already, not a value", key);
    if (json_is_true(before)) return wrong(p, "\"%s\" is a value already, not a table", key);
    return json_object_set_new(p->seen, key, mark) == 0 ? MHLA_OK : no_memory(p);
}

/* ---- Values ---- */

static int hex_digits(parser *p, int count, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < count; i++, p->at++) {
        const int c = next(p);
        if (c < 0 || c > 127 || !isxdigit(c)) return 0;
        *code = *code * 16 + (uint32_t)(isdigit(c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    return 1;
}

/* Behind the backslash; returns how many bytes went to `to`, 0 if it is none of TOML's escapes. */
static int read_escape(parser *p, unsigned char *to) {
    static const char letters[] = "btnfr\"\\", meanings[] = "\b\t\n\f\r\"\\";
    const int c = next(p);
    if (c <= 0) return 0;
    p->at++;
    const char *letter = strchr(letters, c);
    if (letter) {
        to[0] = (unsigned char)meanings[letter - letters];
        return 1;
    }
    uint32_t code;
    if ((c != 'u' && c != 'U') || !hex_digits(p, c == 'u' ? 4 : 8, &code)) return 0;
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    return mhla_utf8_put(to, code);
}

static mhla_status read_string(parser *p, json_t **value) {
    const int quote = *p->at++;
    if (p->end - p->at >= 2 && p->at[0] == quote && p->at[1] == quote)
        return wrong(p, "strings of several lines are not supported");
    size_t n = 0;
    while (next(p) != quote) {
        const int c = next(p);
        if (c < 0 || c == '\n' || c == '\r') return wrong(p, "a string lacks its closing quote");
        if ((c < 0x20 && c != '\t') || c == 0x7f) return wrong(p, "a control character inside a string");
        if (c == '\\' && quote == '"') {
            p->at++;
            const int length = read_escape(p, p->string + n);
            if (length == 0) return wrong(p, "an escape that TOML does not have");
            n += (size_t)length;
            continue;
        }
        const int length = mhla_utf8_length(p->at, (size_t)(p->end - p->at));
        if (length == 0) return wrong(p, "not UTF-8");
        memcpy(p->string + n, p->at, (size_t)length);
        n += (size_t)length, p->at += length;
    }
    p->at++;
    *value = json_stringn((const char *)p->string, n);
    return *value ? MHLA_OK : no_memory(p);
}

/* [+-]digits[.digits][e[+-]digits], underscores between digits; anything else of a bare word is named. */
static mhla_status read_number(parser *p, json_t **value) {
    const unsigned char *begin = p->at;
    while (p->at < p->end && (is_key(*p->at) || strchr("+.:", *p->at)) && *p->at) p->at++;
    const size_t length = (size_t)(p->at - begin);
    const mhla_quoted word = mhla_quote_bytes((const char *)begin, length ? length : begin < p->end);
    char text[NUMBER_MOST];
    size_t n = 0, i = 0;
    int real = 0, digits = 0;
    if (length == 0 || length >= NUMBER_MOST) goto bad;
    if (begin[i] == '+' || begin[i] == '-') text[n++] = (char)begin[i++];
    if (i + 1 < length && begin[i] == '0' && (isdigit(begin[i + 1]) || begin[i + 1] == '_')) goto bad;
    for (; i < length; i++) {
        const int c = begin[i];
        if (isdigit(c)) {
            digits++;
        } else if (c == '_') {
            if (!digits || i + 1 == length || !isdigit(begin[i + 1])) goto bad;
            continue;
        } else if (c == '.') {
            if (real || !digits) goto bad;
            real = 1, digits = 0;
        } else if (c == 'e' || c == 'E') {
            if (real == 2 || !digits) goto bad;
            real = 2, digits = 0;
            if (i + 1 < length && (begin[i + 1] == '+' || begin[i + 1] == '-')) text[n++] = (char)c, i++;
        } else {
            goto bad;
        }
        text[n++] = (char)begin[i];
    }
    if (!digits) goto bad;
    text[n] = '\0';
    errno = 0;
    if (real) {
        *value = json_real(strtod(text, NULL)); /* NULL for infinity */
        return *value ? MHLA_OK : wrong(p, "%s is beyond the range of numbers", word.text);
    }
    const long long integer = strtoll(text, NULL, 10);
    if (errno == ERANGE) return wrong(p, "%s is beyond the range of integers", word.text);
    *value = json_integer(integer);
    return *value ? MHLA_OK : no_memory(p);
bad:
    if (begin == p->end || *begin == '\n' || *begin == '\r' || *begin == '#') return wrong(p, "a value is missing");
    return wrong(p, "%s is no value: expected \"text\", a decimal number, true, false or an array", word.text);
}

static int take_word(parser *p, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0) return 0;
    if (p->at + n < p->end && is_key(p->at[n])) return 0;
    p->at += n;
    return 1;
}

static mhla_status read_scalar(parser *p, json_t **value) {
    const int c = next(p);
    if (c == '"' || c == '\'') return read_string(p, value);
    if (c == '{') return wrong(p, "tables inside values are not supported: use [table] or dotted keys");
    if (take_word(p, "true"))
        *value = json_true();
    else if (take_word(p, "false"))
        *value = json_false();
    else
        return read_number(p, value);
    return MHLA_OK;
}

/* Inside an array lines may end and comments stand anywhere. */
static mhla_status skip_lines(parser *p) {
    for (;;) {
        skip_blank(p);
        if (next(p) != '\n' && next(p) != '\r' && next(p) != '#') return MHLA_OK;
        MHLA_TRY(end_line(p));
    }
}

static mhla_status read_array(parser *p, json_t *array) {
    p->at++;
    for (;;) {
        MHLA_TRY(skip_lines(p));
        if (next(p) == ']') break;
        if (next(p) == '[') return wrong(p, "arrays inside arrays are not supported");
        if (json_array_size(array) == ELEMENTS_MOST) return wrong(p, "more than %d elements", ELEMENTS_MOST);
        json_t *value = NULL;
        MHLA_TRY(read_scalar(p, &value));
        if (json_array_append_new(array, value) != 0) return no_memory(p);
        MHLA_TRY(skip_lines(p));
        if (next(p) == ']') break;
        if (next(p) != ',') return wrong(p, "expected ',' or ']' in an array");
        p->at++;
    }
    p->at++;
    return MHLA_OK;
}

/* ---- Lines ---- */

static mhla_status read_table(parser *p) {
    p->at++;
    if (next(p) == '[') return wrong(p, "arrays of tables are not supported");
    p->table[0] = '\0';
    MHLA_TRY(read_key(p, p->table));
    if (next(p) != ']') return wrong(p, "expected ']' after the name of a table");
    p->at++;
    return note(p, p->table, json_null());
}

static mhla_status read_assignment(parser *p, mhla_toml_fn set, void *user) {
    char key[MHLA_TOML_KEY];
    const int line = p->line;
    memcpy(key, p->table, sizeof key);
    MHLA_TRY(read_key(p, key));
    if (next(p) != '=') return wrong(p, "expected '=' after \"%s\"", key);
    p->at++;
    skip_blank(p);
    MHLA_TRY(note(p, key, json_true()));
    json_t *value = next(p) == '[' ? json_array() : NULL;
    mhla_status status = value ? read_array(p, value) : read_scalar(p, &value);
    if (status == MHLA_OK) status = set(user, key, value, line);
    json_decref(value);
    return status;
}

mhla_status mhla_toml_parse(const char *text, size_t size, const char *name, mhla_toml_fn set, void *user) {
    if (size > MHLA_TOML_BYTES)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes, more than %d: not a recipe", name, size, MHLA_TOML_BYTES);
    if (size == 0) return MHLA_OK;
    parser p = {.name = name, .at = (const unsigned char *)text, .line = 1};
    p.end = p.at + size;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) p.at += 3; /* a byte order mark */
    p.seen = json_object();
    p.string = malloc(size);
    mhla_status status = p.seen && p.string ? MHLA_OK : no_memory(&p);
    while (status == MHLA_OK && p.at < p.end) {
        skip_blank(&p);
        const int c = next(&p);
        if (c == '[')
            status = read_table(&p);
        else if (c >= 0 && c != '\n' && c != '\r' && c != '#')
            status = read_assignment(&p, set, user);
        if (status == MHLA_OK) status = end_line(&p);
    }
    json_decref(p.seen);
    free(p.string);
    return status;
}
