#include "file/toml.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "file/text.h"
#include "file/toml_scalar.h"

enum { BUCKETS = 4096 };

/* How a table or an array came to be, which decides who may add to it. */
enum {
    IMPLIED,  /* a table by a longer header, [a.b] for a: by its own header or by dotted keys, once */
    HEADER,   /* by its own header: nobody but the lines under it */
    DOTTED,   /* by dotted keys: those beside them, and longer headers */
    ELEMENTS, /* an array by [[headers]]: more of them */
    CLOSED    /* inline table or array: nobody */
};

struct mhla_toml {
    mhla_toml_node root;
    mhla_toml_node *newest; /* all but the root, by .before */
    int count;
    char *pool; /* keys, strings and dates, each with a NUL behind it */
    mhla_toml_node *buckets[BUCKETS];
};

typedef struct parser {
    const char *name;
    const unsigned char *text, *at, *end;
    mhla_toml *doc;
    size_t used; /* of the pool */
} parser;

void mhla_toml_where(int *line, int *column, const char *text, size_t place) {
    *line = *column = 1;
    for (size_t i = 0; i < place; i++) {
        if (text[i] == '\n')
            ++*line, *column = 1;
        else if (((unsigned char)text[i] & 0xc0) != 0x80) /* not inside a character */
            ++*column;
    }
}

static mhla_status wrong(const parser *p, const unsigned char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static mhla_status wrong(const parser *p, const unsigned char *at, const char *format, ...) {
    char what[320];
    int line, column;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    mhla_toml_where(&line, &column, (const char *)p->text, (size_t)(at - p->text));
    return mhla_fail(MHLA_EDATA, "%s:%d:%d: %s", p->name, line, column, what);
}
static mhla_status no_memory(const parser *p) { return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", p->name); }

static int next(const parser *p) { return p->at < p->end ? *p->at : -1; }
static int next_is(const parser *p, const char *text) {
    const size_t n = strlen(text);
    return (size_t)(p->end - p->at) >= n && memcmp(p->at, text, n) == 0;
}
static void skip_blank(parser *p) {
    while (next(p) == ' ' || next(p) == '\t') p->at++;
}
/* Bytes of the line's end that stands here, or 0. */
static int newline(const parser *p) { return next(p) == '\n' ? 1 : next_is(p, "\r\n") ? 2 : 0; }
/* The character that stands here, for a message. */
static mhla_quoted here(const parser *p) {
    const int n = mhla_utf8_length(p->at, (size_t)(p->end - p->at));
    return mhla_quote_bytes((const char *)p->at, (size_t)n);
}

static mhla_status skip_comment(parser *p) {
    for (; p->at < p->end && !newline(p); p->at++)
        if (mhla_toml_is_control(*p->at)) return wrong(p, p->at, "a control character inside a comment");
    return MHLA_OK;
}

/* Blanks, a comment, and the end of the line or of the file. */
static mhla_status end_line(parser *p) {
    skip_blank(p);
    if (next(p) == '#') MHLA_TRY(skip_comment(p));
    const int n = newline(p);
    p->at += n;
    if (n || p->at == p->end) return MHLA_OK;
    return wrong(p, p->at, "%s where the line should end", here(p).text);
}

/* Inside an array lines may end and comments stand anywhere. */
static mhla_status skip_lines(parser *p) {
    for (;;) {
        skip_blank(p);
        if (!newline(p) && next(p) != '#') return MHLA_OK;
        MHLA_TRY(end_line(p));
    }
}

/* ---- The tree ---- */

typedef struct part {
    const char *text;
    size_t size;
    const unsigned char *at;
} part;

static mhla_toml_node **bucket_of(mhla_toml *doc, const mhla_toml_node *table, const part *k) {
    return &doc->buckets[mhla_hash((uintptr_t)table, k->text, k->size) % BUCKETS];
}
static mhla_toml_node *find(mhla_toml *doc, const mhla_toml_node *table, const part *k) {
    mhla_toml_node *n = *bucket_of(doc, table, k);
    while (n && !(n->parent == table && n->key_size == k->size && memcmp(n->key, k->text, k->size) == 0))
        n = n->in_bucket;
    return n;
}

/* A new last member; `k` is NULL in an array. */
static mhla_status add(parser *p, mhla_toml_node **added, mhla_toml_node *parent, const part *k, mhla_toml_type type) {
    const unsigned char *at = k ? k->at : p->at;
    mhla_toml *doc = p->doc;
    if (parent->depth == MHLA_TOML_DEPTH) return wrong(p, at, "nested more than %d deep", MHLA_TOML_DEPTH);
    if (doc->count == MHLA_TOML_NODES) return wrong(p, at, "more than %d keys and values", MHLA_TOML_NODES);
    mhla_toml_node *n = *added = calloc(1, sizeof *n);
    if (n == NULL) return no_memory(p);
    n->before = doc->newest, doc->newest = n, doc->count++;
    n->type = type;
    n->parent = parent, n->depth = parent->depth + 1;
    n->key_place = n->place = (size_t)(at - p->text);
    if (parent->last)
        parent->last->next = n;
    else
        parent->first = n;
    parent->last = n;
    if (k) {
        mhla_toml_node **bucket = bucket_of(doc, parent, k);
        n->key = k->text, n->key_size = k->size;
        n->in_bucket = *bucket, *bucket = n;
    }
    return MHLA_OK;
}

/* "a.b.c" with its quotes, of a key in a table */
static mhla_quoted path_of(const mhla_toml_node *table, const char *last, size_t size) {
    const mhla_toml_node *up[MHLA_TOML_DEPTH + 1];
    char text[256];
    size_t n = 0;
    int depth = 0;
    for (; table; table = table->parent)
        if (table->key) up[depth++] = table;
    while (depth-- > 0 && n + up[depth]->key_size + 1 < sizeof text) {
        memcpy(text + n, up[depth]->key, up[depth]->key_size);
        n += up[depth]->key_size;
        text[n++] = '.';
    }
    if (n + size < sizeof text) memcpy(text + n, last, size), n += size;
    return mhla_quote_bytes(text, n);
}

/* Why a key that is there cannot be made a table, an array of tables or a value. */
static mhla_status taken(const parser *p, const mhla_toml_node *n, const part *k, int wants_table) {
    const mhla_quoted quoted = path_of(n->parent, k->text, k->size);
    const char *path = quoted.text;
    if (wants_table && n->type != MHLA_TOML_TABLE && n->type != MHLA_TOML_ARRAY)
        return wrong(p, k->at, "%s is a value already, not a table", path);
    if (wants_table && n->made == CLOSED)
        return wrong(p, k->at, "%s is written inline already: nothing can be added", path);
    if (wants_table && n->made == ELEMENTS) return wrong(p, k->at, "%s is an array of tables already", path);
    if (!wants_table && n->type == MHLA_TOML_TABLE && n->made != CLOSED)
        return wrong(p, k->at, "%s is a table already, not a value", path);
    return wrong(p, k->at, "%s occurs twice", path);
}

/* One step down a header, which may go through any table that is not inline and to the last element of an array of tables. */
static mhla_status step_header(parser *p, mhla_toml_node **table, const part *k) {
    mhla_toml_node *n = find(p->doc, *table, k);
    if (n == NULL) return add(p, table, *table, k, MHLA_TOML_TABLE);
    if (n->made == CLOSED || (n->type != MHLA_TOML_TABLE && n->made != ELEMENTS)) return taken(p, n, k, 1);
    *table = n->made == ELEMENTS ? n->last : n;
    return MHLA_OK;
}

/* One step down a dotted key, which may go only through tables that no header has defined. */
static mhla_status step_dotted(parser *p, mhla_toml_node **table, const part *k) {
    mhla_toml_node *n = find(p->doc, *table, k);
    if (n == NULL)
        MHLA_TRY(add(p, &n, *table, k, MHLA_TOML_TABLE));
    else if (n->type == MHLA_TOML_TABLE && n->made == HEADER)
        return wrong(p, k->at, "%s has a header already: dotted keys cannot add to it",
                     path_of(*table, k->text, k->size).text);
    else if (n->type != MHLA_TOML_TABLE || n->made == CLOSED)
        return taken(p, n, k, 1);
    n->made = DOTTED;
    *table = n;
    return MHLA_OK;
}

/* ---- Strings and keys ---- */

static mhla_status read_escape(parser *p, unsigned char *to, int *length) {
    const unsigned char *begin = p->at;
    *length = mhla_toml_escape(&p->at, p->end, to);
    return *length ? MHLA_OK : wrong(p, begin, "an escape that TOML does not have");
}

/* Behind a backslash of a string of several lines: all blanks and newlines, if the line ends here. */
static int skip_continuation(parser *p) {
    const unsigned char *begin = p->at;
    skip_blank(p);
    if (!newline(p)) {
        p->at = begin;
        return 0;
    }
    while (newline(p) || next(p) == ' ' || next(p) == '\t') p->at++;
    return 1;
}

/* Into the pool. Escapes shrink, so that it cannot overflow: see mhla_toml_parse. */
static mhla_status read_string(parser *p, const char **text, size_t *size, int several_lines) {
    const unsigned char *begin = p->at;
    const char quote[] = {(char)*p->at, '\0'}, quotes[] = {quote[0], quote[0], quote[0], '\0'};
    const int multi = several_lines && next_is(p, quotes);
    unsigned char *to = (unsigned char *)p->doc->pool + p->used;
    size_t n = 0;
    p->at += multi ? 3 : 1;
    if (multi) p->at += newline(p);
    for (;;) {
        const int c = next(p);
        if (c < 0 || (!multi && newline(p))) return wrong(p, begin, "a string lacks its closing quote");
        if (!multi && c == quote[0]) break;
        if (multi && next_is(p, quotes)) { /* two more belong to the string */
            for (int extra = 0; extra < 2 && p->at + 3 < p->end && p->at[3] == c; extra++, p->at++)
                to[n++] = (unsigned char)c;
            break;
        }
        if (c == '\\' && quote[0] == '"') {
            int length = 0;
            p->at++;
            if (multi && skip_continuation(p)) continue;
            MHLA_TRY(read_escape(p, to + n, &length));
            n += (size_t)length;
        } else if (newline(p)) { /* the same text whatever the lines of the file end with */
            p->at += newline(p);
            to[n++] = '\n';
        } else if (mhla_toml_is_control(c)) {
            return wrong(p, p->at, "a control character inside a string");
        } else {
            to[n++] = (unsigned char)c, p->at++;
        }
    }
    p->at += multi ? 3 : 1;
    to[n] = '\0';
    *text = (const char *)to, *size = n;
    p->used += n + 1;
    return MHLA_OK;
}

static mhla_status read_key(parser *p, part *k) {
    skip_blank(p);
    k->at = p->at;
    if (next(p) == '"' || next(p) == '\'') return read_string(p, &k->text, &k->size, 0);
    while (p->at < p->end && mhla_toml_is_bare(*p->at)) p->at++;
    k->size = (size_t)(p->at - k->at);
    if (k->size == 0) return wrong(p, p->at, "expected a key");
    char *to = p->doc->pool + p->used;
    memcpy(to, k->at, k->size);
    to[k->size] = '\0';
    k->text = to;
    p->used += k->size + 1;
    return MHLA_OK;
}

/* a.b.c: goes down to *table, that of the last part, which becomes *last. */
static mhla_status read_path(parser *p, mhla_toml_node **table, part *last,
                             mhla_status (*step)(parser *, mhla_toml_node **, const part *)) {
    MHLA_TRY(read_key(p, last));
    for (skip_blank(p); next(p) == '.'; skip_blank(p)) {
        p->at++;
        MHLA_TRY(step(p, table, last));
        MHLA_TRY(read_key(p, last));
    }
    return MHLA_OK;
}

/* ---- Values ---- */

static mhla_status read_assignment(parser *p, mhla_toml_node *table);
static mhla_status read_value(parser *p, mhla_toml_node *n);

static mhla_status read_array(parser *p, mhla_toml_node *array) {
    for (p->at++;; p->at++) {
        MHLA_TRY(skip_lines(p));
        if (next(p) == ']') break;
        mhla_toml_node *n = NULL;
        MHLA_TRY(add(p, &n, array, NULL, MHLA_TOML_STRING));
        MHLA_TRY(read_value(p, n));
        MHLA_TRY(skip_lines(p));
        if (next(p) == ']') break;
        if (next(p) != ',') return wrong(p, p->at, "expected ',' or ']' in an array");
    }
    p->at++;
    return MHLA_OK;
}

/* On one line, and without a comma at its end. */
static mhla_status read_inline_table(parser *p, mhla_toml_node *table) {
    p->at++;
    skip_blank(p);
    for (int more = next(p) != '}'; more;) {
        MHLA_TRY(read_assignment(p, table));
        skip_blank(p);
        if (newline(p))
            return wrong(p, p->at, "a line ends inside {...}: use [table] or dotted keys for several lines");
        if (next(p) != '}' && next(p) != ',') return wrong(p, p->at, "expected ',' or '}' in a table");
        more = next(p) == ',';
        p->at += more;
    }
    p->at++;
    return MHLA_OK;
}

/* A bare word: a number, a date, true, false. */
static mhla_status read_word(parser *p, mhla_toml_node *n) {
    const unsigned char *begin = p->at;
    const size_t length = mhla_toml_word(begin, p->end);
    const mhla_quoted word = mhla_quote_bytes((const char *)begin, length);
    char *scratch = p->doc->pool + p->used;
    if (next(p) < 0 || newline(p) || next(p) == '#') return wrong(p, begin, "a value is missing");
    if (length == 0) return wrong(p, begin, "%s where a value should be", here(p).text);
    switch (mhla_toml_scalar(n, begin, length, scratch)) {
    case MHLA_TOML_FITS: break;
    case MHLA_TOML_TOO_LARGE: return wrong(p, begin, "%s is beyond the range of 64-bit numbers", word.text);
    case MHLA_TOML_NO_VALUE:
        return wrong(p, begin, "%s is not a value: expected \"text\", a number, true, false, a date, [...] or {...}",
                     word.text);
    }
    if (n->text) p->used += n->size + 1;
    p->at += length;
    return MHLA_OK;
}

static mhla_status read_value(parser *p, mhla_toml_node *n) {
    const int c = next(p);
    n->place = (size_t)(p->at - p->text);
    if (c == '"' || c == '\'') {
        n->type = MHLA_TOML_STRING;
        return read_string(p, &n->text, &n->size, 1);
    }
    if (c != '[' && c != '{') return read_word(p, n);
    n->type = c == '[' ? MHLA_TOML_ARRAY : MHLA_TOML_TABLE;
    n->made = CLOSED;
    return c == '[' ? read_array(p, n) : read_inline_table(p, n);
}

/* ---- Lines ---- */

static mhla_status read_assignment(parser *p, mhla_toml_node *table) {
    part k = {0};
    mhla_toml_node *n = NULL;
    MHLA_TRY(read_path(p, &table, &k, step_dotted));
    if (next(p) != '=') return wrong(p, p->at, "expected '=' after %s", path_of(table, k.text, k.size).text);
    p->at++;
    skip_blank(p);
    if ((n = find(p->doc, table, &k))) return taken(p, n, &k, 0);
    MHLA_TRY(add(p, &n, table, &k, MHLA_TOML_STRING));
    return read_value(p, n);
}

/* [a.b] or [[a.b]]; *table becomes the one that the lines under it fill. */
static mhla_status read_header(parser *p, mhla_toml_node **table) {
    const int element = next_is(p, "[[");
    part k = {0};
    p->at += element ? 2 : 1;
    *table = &p->doc->root;
    MHLA_TRY(read_path(p, table, &k, step_header));
    if (!next_is(p, element ? "]]" : "]"))
        return wrong(p, p->at, "expected '%s' after the name of a table", element ? "]]" : "]");
    p->at += element ? 2 : 1;
    mhla_toml_node *n = find(p->doc, *table, &k);
    if (n && !(element ? n->made == ELEMENTS : n->type == MHLA_TOML_TABLE && n->made == IMPLIED))
        return taken(p, n, &k, 1);
    if (n == NULL) MHLA_TRY(add(p, &n, *table, &k, element ? MHLA_TOML_ARRAY : MHLA_TOML_TABLE));
    n->made = element ? ELEMENTS : HEADER;
    if (element) {
        MHLA_TRY(add(p, &n, n, NULL, MHLA_TOML_TABLE));
        n->made = HEADER;
    }
    *table = n;
    return MHLA_OK;
}

mhla_status mhla_toml_parse(mhla_toml **document, const char *text, size_t size, const char *name) {
    *document = NULL;
    if (size > MHLA_TOML_BYTES)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes, more than %d: not a recipe", name, size, MHLA_TOML_BYTES);
    parser p = {.name = name, .text = (const unsigned char *)text, .doc = calloc(1, sizeof *p.doc)};
    p.at = p.text, p.end = p.text + size;
    /* what is kept is no longer than its text, and a NUL behind each */
    if (p.doc) p.doc->pool = malloc(2 * size + 2);
    mhla_status status = p.doc && p.doc->pool ? MHLA_OK : no_memory(&p);
    const size_t broken = mhla_utf8_broken(p.text, size);
    if (status == MHLA_OK && broken < size) status = wrong(&p, p.text + broken, "not UTF-8");
    if (next_is(&p, "\xef\xbb\xbf")) p.at += 3; /* a byte order mark */
    mhla_toml_node *table = p.doc ? &p.doc->root : NULL;
    while (status == MHLA_OK && p.at < p.end) {
        skip_blank(&p);
        if (next(&p) == '[')
            status = read_header(&p, &table);
        else if (next(&p) >= 0 && !newline(&p) && next(&p) != '#')
            status = read_assignment(&p, table);
        if (status == MHLA_OK) status = end_line(&p);
    }
    if (status == MHLA_OK)
        *document = p.doc;
    else
        mhla_toml_free(p.doc);
    return status;
}

const mhla_toml_node *mhla_toml_root(const mhla_toml *document) { return &document->root; }

const mhla_toml_node *mhla_toml_find(const mhla_toml_node *table, const char *key) {
    if (table == NULL || table->type != MHLA_TOML_TABLE) return NULL;
    const mhla_toml_node *n = table->first;
    while (n && strcmp(n->key, key) != 0) n = n->next;
    return n;
}
const char *mhla_toml_text(const mhla_toml_node *node) {
    return node && node->type == MHLA_TOML_STRING ? node->text : NULL;
}

void mhla_toml_free(mhla_toml *document) {
    if (document == NULL) return;
    for (mhla_toml_node *n = document->newest, *before; n; n = before) {
        before = n->before;
        free(n);
    }
    free(document->pool);
    free(document);
}
