/* Values of templates and Python's rules for them: truth, equality, order, arithmetic, slices, and how they print. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"
#include "text/jinja.h"

/* ---- Memory, work, failure ---- */

typedef struct jinja_chunk {
    struct jinja_chunk *next;
    size_t size, used;
    max_align_t data[];
} jinja_chunk;

void mhla_jinja_fail(jinja *j, mhla_status status, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    j->status = mhla_fail(status, "chat template, line %d: %s", j->line, text);
    longjmp(j->entry, 1);
}

void mhla_jinja_work(jinja *j, size_t bytes) {
    j->work += bytes;
    if (j->work > JINJA_WORK)
        mhla_jinja_fail(j, MHLA_ERANGE, "the template does not come to an end in reasonable time");
}

void *mhla_jinja_alloc(jinja *j, size_t bytes) {
    enum { CHUNK = 1 << 16 };
    const size_t size = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (bytes > JINJA_MEMORY || j->used + size > JINJA_MEMORY)
        mhla_jinja_fail(j, MHLA_ERANGE, "the template needs more than %d MiB", JINJA_MEMORY >> 20);
    jinja_chunk *c = j->chunks;
    if (c == NULL || c->size - c->used < size) {
        const size_t room = size > CHUNK ? size : CHUNK;
        c = malloc(sizeof *c + room);
        if (c == NULL) mhla_jinja_fail(j, MHLA_ENOMEM, "no memory for a chat template");
        *c = (jinja_chunk){.next = j->chunks, .size = room};
        j->chunks = c;
        j->used += room - size;
    }
    void *p = (char *)c->data + c->used;
    c->used += size;
    j->used += size;
    mhla_jinja_work(j, size);
    return p;
}

void mhla_jinja_release(jinja *j) {
    while (j->chunks) {
        jinja_chunk *c = j->chunks;
        j->chunks = c->next;
        free(c);
    }
}

void *mhla_jinja_grow(jinja *j, void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return items;
    const size_t more = *capacity ? 2 * *capacity : 4;
    void *p = mhla_jinja_alloc(j, more * size);
    if (count > 0) memcpy(p, items, count * size);
    *capacity = more;
    return p;
}

void mhla_jinja_add(jinja *j, jinja_buffer *b, const char *data, size_t size) {
    if (b->capacity - b->count < size) {
        size_t more = b->capacity ? 2 * b->capacity : 64;
        while (more - b->count < size) more *= 2;
        char *p = mhla_jinja_alloc(j, more);
        if (b->count > 0) memcpy(p, b->data, b->count);
        b->data = p;
        b->capacity = more;
    }
    if (size > 0) memcpy(b->data + b->count, data, size);
    b->count += size;
    mhla_jinja_work(j, size);
}

static void add_text(jinja *j, jinja_buffer *b, const char *text) { mhla_jinja_add(j, b, text, strlen(text)); }

/* ---- Making values ---- */

jinja_value mhla_jinja_undefined(jinja_text what) { return (jinja_value){.kind = JINJA_UNDEFINED, .text = what}; }
jinja_value mhla_jinja_bool(int truth) { return (jinja_value){.kind = JINJA_BOOL, .i = truth != 0}; }
jinja_value mhla_jinja_int(int64_t i) { return (jinja_value){.kind = JINJA_INT, .i = i}; }
jinja_value mhla_jinja_text(jinja_text text) { return (jinja_value){.kind = JINJA_TEXT, .text = text}; }

jinja_value mhla_jinja_copy(jinja *j, const char *data, size_t size) {
    char *p = mhla_jinja_alloc(j, size + 1);
    if (size > 0) memcpy(p, data, size);
    return mhla_jinja_text((jinja_text){p, size});
}

jinja_value mhla_jinja_list(jinja *j) {
    jinja_list *list = mhla_jinja_alloc(j, sizeof *list);
    *list = (jinja_list){0};
    return (jinja_value){.kind = JINJA_LIST, .list = list};
}

jinja_value mhla_jinja_dict(jinja *j) {
    jinja_dict *dict = mhla_jinja_alloc(j, sizeof *dict);
    *dict = (jinja_dict){0};
    return (jinja_value){.kind = JINJA_DICT, .dict = dict};
}

void mhla_jinja_append(jinja *j, jinja_list *list, jinja_value item) {
    list->item = mhla_jinja_grow(j, list->item, list->count, &list->capacity, sizeof item);
    list->item[list->count++] = item;
}

void mhla_jinja_put(jinja *j, jinja_dict *dict, jinja_value key, jinja_value item) {
    const jinja_value *found = mhla_jinja_find(j, dict, key);
    if (found) {
        dict->item[found - dict->item] = item;
        return;
    }
    size_t capacity = dict->capacity;
    dict->key = mhla_jinja_grow(j, dict->key, dict->count, &capacity, sizeof key);
    dict->item = mhla_jinja_grow(j, dict->item, dict->count, &dict->capacity, sizeof item);
    dict->key[dict->count] = key;
    dict->item[dict->count++] = item;
}

const jinja_value *mhla_jinja_find(jinja *j, const jinja_dict *dict, jinja_value key) {
    mhla_jinja_work(j, 8 * dict->count);
    for (size_t i = 0; i < dict->count; i++)
        if (mhla_jinja_equal(j, dict->key[i], key)) return &dict->item[i];
    return NULL;
}

/* ---- Asking values ---- */

int mhla_jinja_same_text(jinja_text a, jinja_text b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}
int mhla_jinja_is(jinja_text a, const char *b) { return mhla_jinja_same_text(a, (jinja_text){b, strlen(b)}); }

const char *mhla_jinja_kind_text(jinja_value v) {
    static const char *const names[] = {"undefined", "none",        "a truth value", "a number",
                                        "a number",  "text",        "a list",        "a tuple",
                                        "a mapping", "a namespace", "the loop",      "a function"};
    return names[v.kind];
}

int mhla_jinja_true(jinja_value v) {
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return 0;
    case JINJA_BOOL:
    case JINJA_INT: return v.i != 0;
    case JINJA_REAL: return v.real != 0.0;
    case JINJA_TEXT: return v.text.size > 0;
    case JINJA_LIST:
    case JINJA_TUPLE: return v.list->count > 0;
    case JINJA_DICT: return v.dict->count > 0;
    default: return 1;
    }
}

static int is_whole(jinja_value v) { return v.kind == JINJA_INT || v.kind == JINJA_BOOL; }
static int is_number(jinja_value v) { return is_whole(v) || v.kind == JINJA_REAL; }
static double to_real(jinja_value v) { return v.kind == JINJA_REAL ? v.real : (double)v.i; }

static void enter(jinja *j) {
    mhla_jinja_work(j, 16);
    if (++j->depth > 2 * JINJA_NESTING) mhla_jinja_fail(j, MHLA_ERANGE, "values are nested too deeply");
}

int mhla_jinja_equal(jinja *j, jinja_value a, jinja_value b) {
    if (is_number(a) && is_number(b)) return is_whole(a) && is_whole(b) ? a.i == b.i : to_real(a) == to_real(b);
    if (a.kind != b.kind) return 0;
    int same = 1;
    switch (a.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return 1;
    case JINJA_TEXT:
        if (a.text.size == b.text.size) mhla_jinja_work(j, a.text.size);
        return mhla_jinja_same_text(a.text, b.text);
    case JINJA_LIST:
    case JINJA_TUPLE:
        if (a.list->count != b.list->count) return 0;
        enter(j);
        for (size_t i = 0; same && i < a.list->count; i++) same = mhla_jinja_equal(j, a.list->item[i], b.list->item[i]);
        j->depth--;
        return same;
    case JINJA_DICT:
        if (a.dict->count != b.dict->count) return 0;
        enter(j);
        for (size_t i = 0; same && i < a.dict->count; i++) {
            const jinja_value *other = mhla_jinja_find(j, b.dict, a.dict->key[i]);
            same = other && mhla_jinja_equal(j, a.dict->item[i], *other);
        }
        j->depth--;
        return same;
    case JINJA_SPACE: return a.dict == b.dict;
    case JINJA_LOOP: return a.loop == b.loop;
    default: return a.callee == b.callee;
    }
}

static void need_defined(jinja *j, jinja_value v) {
    if (v.kind == JINJA_UNDEFINED)
        mhla_jinja_fail(j, MHLA_EDATA, "%s is undefined", mhla_quote_bytes(v.text.data, v.text.size).text);
}

int mhla_jinja_compare(jinja *j, jinja_value a, jinja_value b) {
    need_defined(j, a);
    need_defined(j, b);
    if (is_whole(a) && is_whole(b)) return (a.i > b.i) - (a.i < b.i);
    if (is_number(a) && is_number(b)) return (to_real(a) > to_real(b)) - (to_real(a) < to_real(b));
    if (a.kind == JINJA_TEXT && b.kind == JINJA_TEXT) { /* bytes of UTF-8 have the order of characters */
        const size_t n = a.text.size < b.text.size ? a.text.size : b.text.size;
        mhla_jinja_work(j, n);
        const int c = n > 0 ? memcmp(a.text.data, b.text.data, n) : 0;
        return c ? c : (a.text.size > b.text.size) - (a.text.size < b.text.size);
    }
    if ((a.kind == JINJA_LIST || a.kind == JINJA_TUPLE) && a.kind == b.kind) {
        int c = 0;
        enter(j);
        for (size_t i = 0; c == 0 && i < a.list->count && i < b.list->count; i++)
            c = mhla_jinja_compare(j, a.list->item[i], b.list->item[i]);
        j->depth--;
        return c ? c : (a.list->count > b.list->count) - (a.list->count < b.list->count);
    }
    mhla_jinja_fail(j, MHLA_EDATA, "%s and %s have no order", mhla_jinja_kind_text(a), mhla_jinja_kind_text(b));
}

int mhla_jinja_in(jinja *j, jinja_value item, jinja_value c) {
    switch (c.kind) {
    case JINJA_TEXT:
        if (item.kind != JINJA_TEXT)
            mhla_jinja_fail(j, MHLA_EDATA, "%s is looked for in a text", mhla_jinja_kind_text(item));
        mhla_jinja_work(j, c.text.size);
        return item.text.size == 0 || (c.text.size >= item.text.size &&
                                       memmem(c.text.data, c.text.size, item.text.data, item.text.size) != NULL);
    case JINJA_LIST:
    case JINJA_TUPLE:
        for (size_t i = 0; i < c.list->count; i++) {
            mhla_jinja_work(j, 16);
            if (mhla_jinja_equal(j, c.list->item[i], item)) return 1;
        }
        return 0;
    case JINJA_DICT: return mhla_jinja_find(j, c.dict, item) != NULL;
    case JINJA_UNDEFINED: return 0;
    default: mhla_jinja_fail(j, MHLA_EDATA, "something is looked for in %s", mhla_jinja_kind_text(c));
    }
}

const jinja_list *mhla_jinja_items(jinja *j, jinja_value v) {
    if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE) return v.list;
    jinja_list *list = mhla_jinja_list(j).list;
    if (v.kind == JINJA_DICT) {
        for (size_t i = 0; i < v.dict->count; i++) mhla_jinja_append(j, list, v.dict->key[i]);
    } else if (v.kind == JINJA_TEXT) {
        for (size_t at = 0; at < v.text.size;) {
            const int n = mhla_utf8_length((const unsigned char *)v.text.data + at, v.text.size - at);
            const size_t size = n > 0 ? (size_t)n : 1;
            mhla_jinja_append(j, list, mhla_jinja_text((jinja_text){v.text.data + at, size}));
            at += size;
        }
    } else if (v.kind != JINJA_UNDEFINED) {
        mhla_jinja_fail(j, MHLA_EDATA, "a loop goes over %s", mhla_jinja_kind_text(v));
    }
    return list;
}

/* ---- Printing ---- */

static void print_real(char text[40], double x) {
    if (isnan(x) || isinf(x)) {
        snprintf(text, 40, "%s", isnan(x) ? "nan" : x < 0.0 ? "-inf" : "inf");
        return;
    }
    int digits = 1;
    do snprintf(text, 32, "%.*g", digits, x);
    while (digits++ < 17 && strtod(text, NULL) != x);
    const double size = fabs(x);
    if (size >= 1e-4 && size < 1e16 && strchr(text, 'e')) snprintf(text, 32, "%.0f", x);
    if (strpbrk(text, ".e") == NULL) memcpy(text + strlen(text), ".0", 3);
}

/* As Python's repr() of a text, or as JSON. */
static void quote_text(jinja *j, jinja_buffer *b, jinja_text t, int json) {
    const int has_single = t.size > 0 && memchr(t.data, '\'', t.size),
              has_double = t.size > 0 && memchr(t.data, '"', t.size);
    const char quote = json || (has_single && !has_double) ? '"' : '\'';
    mhla_jinja_add(j, b, &quote, 1);
    for (size_t i = 0; i < t.size; i++) {
        const unsigned char c = (unsigned char)t.data[i];
        static const char from[] = "\n\r\t\b\f", to[] = "nrtbf";
        const char *known = c ? strchr(from, c) : NULL;
        char escape[8] = {(char)c, '\0'};
        if (c == (unsigned char)quote || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", c);
        else if (known && (json || known - from < 3))
            snprintf(escape, sizeof escape, "\\%c", to[known - from]);
        else if (c < 0x20 || (c == 0x7f && !json))
            snprintf(escape, sizeof escape, json ? "\\u%04x" : "\\x%02x", c);
        mhla_jinja_add(j, b, escape, escape[0] ? strlen(escape) : 1);
    }
    mhla_jinja_add(j, b, &quote, 1);
}

static void print(jinja *j, jinja_buffer *b, jinja_value v, int quoted) {
    char number[40];
    const char *brackets = v.kind == JINJA_TUPLE ? "()" : "[]";
    switch (v.kind) {
    case JINJA_UNDEFINED:
        if (quoted) add_text(j, b, "Undefined");
        break;
    case JINJA_NONE: add_text(j, b, "None"); break;
    case JINJA_BOOL: add_text(j, b, v.i ? "True" : "False"); break;
    case JINJA_INT:
        snprintf(number, sizeof number, "%lld", (long long)v.i);
        add_text(j, b, number);
        break;
    case JINJA_REAL:
        print_real(number, v.real);
        add_text(j, b, number);
        break;
    case JINJA_TEXT:
        if (quoted)
            quote_text(j, b, v.text, 0);
        else
            mhla_jinja_add(j, b, v.text.data, v.text.size);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        enter(j);
        mhla_jinja_add(j, b, brackets, 1);
        for (size_t i = 0; i < v.list->count; i++) {
            if (i > 0) add_text(j, b, ", ");
            print(j, b, v.list->item[i], 1);
        }
        if (v.kind == JINJA_TUPLE && v.list->count == 1) add_text(j, b, ",");
        mhla_jinja_add(j, b, brackets + 1, 1);
        j->depth--;
        break;
    case JINJA_DICT:
        enter(j);
        add_text(j, b, "{");
        for (size_t i = 0; i < v.dict->count; i++) {
            if (i > 0) add_text(j, b, ", ");
            print(j, b, v.dict->key[i], 1);
            add_text(j, b, ": ");
            print(j, b, v.dict->item[i], 1);
        }
        add_text(j, b, "}");
        j->depth--;
        break;
    default: mhla_jinja_fail(j, MHLA_ENOTSUP, "%s cannot be printed", mhla_jinja_kind_text(v));
    }
}

jinja_text mhla_jinja_string(jinja *j, jinja_value v) {
    if (v.kind == JINJA_TEXT) return v.text;
    jinja_buffer b = {0};
    print(j, &b, v, 0);
    return (jinja_text){b.data, b.count};
}

static void json_line(jinja *j, jinja_buffer *b, int indent, int level) {
    if (indent < 0) return;
    add_text(j, b, "\n");
    for (int i = 0; i < indent * level; i++) add_text(j, b, " ");
}

static int by_key(const void *a, const void *b) {
    const jinja_text x = (*(const jinja_value *const *)a)->text, y = (*(const jinja_value *const *)b)->text;
    const size_t n = x.size < y.size ? x.size : y.size;
    const int c = n > 0 ? memcmp(x.data, y.data, n) : 0;
    return c ? c : (x.size > y.size) - (x.size < y.size);
}

static void json(jinja *j, jinja_buffer *b, jinja_value v, int indent, int sort, int level) {
    const char *comma = indent < 0 ? ", " : ",";
    char number[40];
    enter(j);
    switch (v.kind) {
    case JINJA_NONE: add_text(j, b, "null"); break;
    case JINJA_BOOL: add_text(j, b, v.i ? "true" : "false"); break;
    case JINJA_INT:
    case JINJA_TEXT:
        if (v.kind == JINJA_TEXT)
            quote_text(j, b, v.text, 1);
        else
            print(j, b, v, 0);
        break;
    case JINJA_REAL:
        print_real(number, v.real);
        add_text(j, b, isnan(v.real) ? "NaN" : isinf(v.real) ? (v.real < 0.0 ? "-Infinity" : "Infinity") : number);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        add_text(j, b, "[");
        for (size_t i = 0; i < v.list->count; i++) {
            if (i > 0) add_text(j, b, comma);
            json_line(j, b, indent, level + 1);
            json(j, b, v.list->item[i], indent, sort, level + 1);
        }
        if (v.list->count > 0) json_line(j, b, indent, level);
        add_text(j, b, "]");
        break;
    case JINJA_DICT: {
        const size_t n = v.dict->count;
        const jinja_value **key = mhla_jinja_alloc(j, (n + 1) * sizeof(jinja_value *));
        for (size_t i = 0; i < n; i++) {
            key[i] = &v.dict->key[i];
            if (key[i]->kind != JINJA_TEXT) mhla_jinja_fail(j, MHLA_ENOTSUP, "keys of JSON are texts");
        }
        if (sort && n > 1) qsort(key, n, sizeof(jinja_value *), by_key);
        add_text(j, b, "{");
        for (size_t i = 0; i < n; i++) {
            if (i > 0) add_text(j, b, comma);
            json_line(j, b, indent, level + 1);
            quote_text(j, b, key[i]->text, 1);
            add_text(j, b, ": ");
            json(j, b, v.dict->item[key[i] - v.dict->key], indent, sort, level + 1);
        }
        if (n > 0) json_line(j, b, indent, level);
        add_text(j, b, "}");
        break;
    }
    default: need_defined(j, v); mhla_jinja_fail(j, MHLA_EDATA, "%s has no form in JSON", mhla_jinja_kind_text(v));
    }
    j->depth--;
}

jinja_text mhla_jinja_json(jinja *j, jinja_value v, int indent, int sort) {
    jinja_buffer b = {0};
    json(j, &b, v, indent, sort, 0);
    return (jinja_text){b.data, b.count};
}

/* ---- Characters ---- */

static int is_lead(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

size_t mhla_jinja_length(jinja_text t) {
    size_t n = 0;
    for (size_t i = 0; i < t.size; i++) n += (size_t)is_lead(t.data[i]);
    return n;
}

size_t mhla_jinja_offset(jinja_text t, size_t n) {
    size_t i = 0;
    for (; i < t.size; i++)
        if (is_lead(t.data[i]) && n-- == 0) break;
    return i;
}

/* What str.isspace() is true for. */
static int is_white(int32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int strips(jinja_text c, const jinja_text *chars) {
    if (chars) return c.size > 0 && chars->size > 0 && memmem(chars->data, chars->size, c.data, c.size) != NULL;
    int32_t code = 0;
    return utf8proc_iterate((const utf8proc_uint8_t *)c.data, (utf8proc_ssize_t)c.size, &code) > 0 && is_white(code);
}

jinja_text mhla_jinja_strip(jinja_text t, const jinja_text *chars, int left, int right) {
    while (left && t.size > 0) {
        size_t n = 1;
        while (n < t.size && !is_lead(t.data[n])) n++;
        if (!strips((jinja_text){t.data, n}, chars)) break;
        t.data += n;
        t.size -= n;
    }
    while (right && t.size > 0) {
        size_t n = 1;
        while (n < t.size && !is_lead(t.data[t.size - n])) n++;
        if (!strips((jinja_text){t.data + t.size - n, n}, chars)) break;
        t.size -= n;
    }
    return t;
}

/* ---- Items and slices ---- */

static jinja_value character(jinja_text t, size_t at) {
    const size_t begin = mhla_jinja_offset(t, at),
                 end = begin + mhla_jinja_offset((jinja_text){t.data + begin, t.size - begin}, 1);
    return mhla_jinja_text((jinja_text){t.data + begin, end - begin});
}

/* v[at], undefined where there is none; by name also its methods. */
jinja_value mhla_jinja_index(jinja *j, jinja_value v, jinja_value at) {
    const jinja_text name = at.kind == JINJA_TEXT ? at.text : JINJA_LITERAL("item");
    need_defined(j, v);
    if (v.kind == JINJA_DICT) {
        const jinja_value *found = mhla_jinja_find(j, v.dict, at);
        if (found) return *found;
    } else if (is_whole(at) && (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE || v.kind == JINJA_TEXT)) {
        if (v.kind == JINJA_TEXT) mhla_jinja_work(j, v.text.size);
        const int64_t n = (int64_t)(v.kind == JINJA_TEXT ? mhla_jinja_length(v.text) : v.list->count);
        const int64_t i = at.i < 0 ? at.i + n : at.i;
        if (i < 0 || i >= n) return mhla_jinja_undefined(JINJA_LITERAL("an item past the end"));
        return v.kind == JINJA_TEXT ? character(v.text, (size_t)i) : v.list->item[i];
    }
    return at.kind == JINJA_TEXT ? mhla_jinja_attribute(j, v, name) : mhla_jinja_undefined(name);
}

jinja_value mhla_jinja_slice(jinja *j, jinja_value v, const jinja_value range[3]) {
    for (int i = 0; i < 3; i++)
        if (range[i].kind != JINJA_NONE && !is_whole(range[i]))
            mhla_jinja_fail(j, MHLA_EDATA, "a slice by %s", mhla_jinja_kind_text(range[i]));
    need_defined(j, v);
    if (v.kind != JINJA_TEXT && v.kind != JINJA_LIST && v.kind != JINJA_TUPLE)
        mhla_jinja_fail(j, MHLA_EDATA, "a slice of %s", mhla_jinja_kind_text(v));
    const jinja_list *items = mhla_jinja_items(j, v);
    const int64_t n = (int64_t)items->count, step = range[2].kind == JINJA_NONE ? 1 : range[2].i;
    if (step == 0 || step < -(1 << 30) || step > 1 << 30)
        mhla_jinja_fail(j, MHLA_EDATA, "a slice in steps of %lld", (long long)step);
    int64_t bound[2];
    for (int i = 0; i < 2; i++) {
        const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
        if (range[i].kind == JINJA_NONE) {
            bound[i] = (step > 0) == (i == 0) ? low : high;
        } else {
            const int64_t at = range[i].i < 0 ? range[i].i + n : range[i].i;
            bound[i] = at < low ? low : at > high ? high : at;
        }
    }
    jinja_value list = mhla_jinja_list(j);
    jinja_buffer b = {0};
    for (int64_t i = bound[0]; step > 0 ? i < bound[1] : i > bound[1]; i += step) {
        if (v.kind == JINJA_TEXT)
            mhla_jinja_add(j, &b, items->item[i].text.data, items->item[i].text.size);
        else
            mhla_jinja_append(j, list.list, items->item[i]);
    }
    if (v.kind == JINJA_TEXT) return mhla_jinja_text((jinja_text){b.data, b.count});
    list.kind = v.kind;
    return list;
}

/* ---- Arithmetic ---- */

static int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

static jinja_value whole_numbers(jinja *j, jinja_op op, int64_t a, int64_t b) {
    int64_t r = 0;
    int over = 0;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_POW:
        for (r = 1; b > 0 && !over; b--) { /* few turns, or a number too large, or one of these: */
            if (a == 0 || a == 1) return mhla_jinja_int(a);
            if (a == -1) return mhla_jinja_int(b % 2 ? -1 : 1);
            over = __builtin_mul_overflow(r, a, &r);
        }
        break;
    default:
        if (b == 0) mhla_jinja_fail(j, MHLA_EDATA, "division by zero");
        over = b == -1 && a == INT64_MIN;
        if (!over) r = op == OP_FLOORDIV ? floor_div(a, b) : a - floor_div(a, b) * b;
    }
    if (over) mhla_jinja_fail(j, MHLA_ERANGE, "a number becomes too large");
    return mhla_jinja_int(r);
}

static jinja_value real_numbers(jinja *j, jinja_op op, double a, double b) {
    double r;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0.0)
        mhla_jinja_fail(j, MHLA_EDATA, "division by zero");
    switch (op) {
    case OP_ADD: r = a + b; break;
    case OP_SUB: r = a - b; break;
    case OP_MUL: r = a * b; break;
    case OP_DIV: r = a / b; break;
    case OP_FLOORDIV: r = floor(a / b); break;
    case OP_MOD:
        r = fmod(a, b);
        if (r != 0.0 && (r < 0.0) != (b < 0.0)) r += b;
        break;
    default: r = pow(a, b);
    }
    return (jinja_value){.kind = JINJA_REAL, .real = r};
}

static jinja_value repeat(jinja *j, jinja_value v, int64_t times) {
    jinja_buffer b = {0};
    jinja_value list = mhla_jinja_list(j);
    list.kind = v.kind;
    for (int64_t i = 0; i < times; i++) {
        mhla_jinja_work(j, 64);
        if (v.kind == JINJA_TEXT)
            mhla_jinja_add(j, &b, v.text.data, v.text.size);
        else
            for (size_t k = 0; k < v.list->count; k++) mhla_jinja_append(j, list.list, v.list->item[k]);
    }
    return v.kind == JINJA_TEXT ? mhla_jinja_text((jinja_text){b.data, b.count}) : list;
}

jinja_value mhla_jinja_binary(jinja *j, jinja_op op, jinja_value a, jinja_value b) {
    if (op == OP_CONCAT) {
        jinja_buffer text = {0};
        print(j, &text, a, 0);
        print(j, &text, b, 0);
        return mhla_jinja_text((jinja_text){text.data, text.count});
    }
    need_defined(j, a);
    need_defined(j, b);
    if (is_whole(a) && is_whole(b) && op != OP_DIV && !(op == OP_POW && b.i < 0)) return whole_numbers(j, op, a.i, b.i);
    if (is_number(a) && is_number(b)) return real_numbers(j, op, to_real(a), to_real(b));
    const int sequences = a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE);
    if (op == OP_ADD && a.kind == JINJA_TEXT && b.kind == JINJA_TEXT) {
        jinja_buffer text = {0};
        mhla_jinja_add(j, &text, a.text.data, a.text.size);
        mhla_jinja_add(j, &text, b.text.data, b.text.size);
        return mhla_jinja_text((jinja_text){text.data, text.count});
    }
    if (op == OP_ADD && sequences) {
        jinja_value list = mhla_jinja_list(j);
        list.kind = a.kind;
        for (size_t i = 0; i < a.list->count; i++) mhla_jinja_append(j, list.list, a.list->item[i]);
        for (size_t i = 0; i < b.list->count; i++) mhla_jinja_append(j, list.list, b.list->item[i]);
        return list;
    }
    if (op == OP_MUL && is_whole(b) && (a.kind == JINJA_TEXT || a.kind == JINJA_LIST)) return repeat(j, a, b.i);
    if (op == OP_MUL && is_whole(a) && (b.kind == JINJA_TEXT || b.kind == JINJA_LIST)) return repeat(j, b, a.i);
    if (op == OP_MOD && a.kind == JINJA_TEXT) mhla_jinja_fail(j, MHLA_ENOTSUP, "formatting by %% is not supported");
    static const char *const names[] = {"", "+", "-", "*", "/", "//", "%", "**"};
    mhla_jinja_fail(j, MHLA_EDATA, "%s %s %s makes no sense", mhla_jinja_kind_text(a), names[op],
                    mhla_jinja_kind_text(b));
}
