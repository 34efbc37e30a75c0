/* Methods of texts, mappings, lists and the loop, and the functions that every template has. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "file/text.h"
#include "text/jinja.h"

static const jinja_value none = {.kind = JINJA_NONE};

jinja_value mhla_jinja_argument(jinja *j, const jinja_arguments *a, size_t at, const char *name, jinja_kind kind,
                                jinja_value otherwise) {
    jinja_value v = otherwise;
    int given = at < a->count;
    if (given) v = a->item[at];
    for (size_t i = 0; i < a->named; i++)
        if (mhla_jinja_is(a->name[i], name)) {
            v = a->item[a->count + i];
            given = 1;
        }
    if (!given && otherwise.kind == JINJA_UNDEFINED) mhla_jinja_fail(j, MHLA_EDATA, "the argument %s is missing", name);
    if (given && kind == JINJA_INT && v.kind == JINJA_BOOL) v.kind = JINJA_INT;
    if (given && kind != JINJA_UNDEFINED && v.kind != kind)
        mhla_jinja_fail(j, MHLA_EDATA, "the argument %s is %s", name, mhla_jinja_kind_text(v));
    return v;
}
#define NEED(j, a, at, name, kind) mhla_jinja_argument(j, a, at, name, kind, mhla_jinja_undefined(JINJA_LITERAL(name)))

/* ---- Texts ---- */

static jinja_value strip_by(jinja *j, jinja_value self, const jinja_arguments *a, int left, int right) {
    const jinja_value chars = mhla_jinja_argument(j, a, 0, "chars", JINJA_UNDEFINED, none);
    if (chars.kind != JINJA_NONE && chars.kind != JINJA_TEXT)
        mhla_jinja_fail(j, MHLA_EDATA, "the argument chars is %s", mhla_jinja_kind_text(chars));
    mhla_jinja_work(j, chars.kind == JINJA_TEXT ? (1 + chars.text.size) * (1 + self.text.size / 16) : self.text.size);
    return mhla_jinja_text(mhla_jinja_strip(self.text, chars.kind == JINJA_TEXT ? &chars.text : NULL, left, right));
}
static jinja_value text_strip(jinja *j, jinja_value s, const jinja_arguments *a) { return strip_by(j, s, a, 1, 1); }
static jinja_value text_lstrip(jinja *j, jinja_value s, const jinja_arguments *a) { return strip_by(j, s, a, 1, 0); }
static jinja_value text_rstrip(jinja *j, jinja_value s, const jinja_arguments *a) { return strip_by(j, s, a, 0, 1); }

/* mode: 'l'ower, 'u'pper, 't'itle (each word), 'c'apitalize (the first). One character stands for one. */
static jinja_value change_case(jinja *j, jinja_text t, char mode) {
    jinja_buffer b = {0};
    int begins = 1;
    for (size_t at = 0; at < t.size;) {
        int32_t c = 0;
        const utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)t.data + at, (utf8proc_ssize_t)(t.size - at), &c);
        if (n <= 0) {
            mhla_jinja_add(j, &b, t.data + at++, 1);
            continue;
        }
        const int upper = mode == 'u' || (begins && mode != 'l');
        unsigned char bytes[4];
        const int size = mhla_utf8_put(bytes, (uint32_t)(upper ? utf8proc_toupper(c) : utf8proc_tolower(c)));
        mhla_jinja_add(j, &b, (const char *)bytes, (size_t)size);
        const utf8proc_category_t k = utf8proc_category(c);
        begins = mode == 't' && !(k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO);
        at += (size_t)n;
    }
    return mhla_jinja_text((jinja_text){b.data, b.count});
}
static jinja_value text_lower(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    return change_case(j, mhla_jinja_string(j, s), 'l');
}
static jinja_value text_upper(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    return change_case(j, mhla_jinja_string(j, s), 'u');
}
static jinja_value text_title(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    return change_case(j, mhla_jinja_string(j, s), 't');
}
static jinja_value text_capitalize(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    return change_case(j, mhla_jinja_string(j, s), 'c');
}

static int ends_match(jinja_text t, jinja_text part, int at_end) {
    return t.size >= part.size &&
           (part.size == 0 || memcmp(t.data + (at_end ? t.size - part.size : 0), part.data, part.size) == 0);
}

static jinja_value matches(jinja *j, jinja_value self, const jinja_arguments *a, int at_end) {
    const jinja_value parts = NEED(j, a, 0, "prefix", JINJA_UNDEFINED);
    if (parts.kind == JINJA_TEXT) return mhla_jinja_bool(ends_match(self.text, parts.text, at_end));
    if (parts.kind != JINJA_TUPLE)
        mhla_jinja_fail(j, MHLA_EDATA, "the argument prefix is %s", mhla_jinja_kind_text(parts));
    for (size_t i = 0; i < parts.list->count; i++) {
        const jinja_value p = parts.list->item[i];
        if (p.kind == JINJA_TEXT && ends_match(self.text, p.text, at_end)) return mhla_jinja_bool(1);
    }
    return mhla_jinja_bool(0);
}
static jinja_value text_startswith(jinja *j, jinja_value s, const jinja_arguments *a) { return matches(j, s, a, 0); }
static jinja_value text_endswith(jinja *j, jinja_value s, const jinja_arguments *a) { return matches(j, s, a, 1); }

static jinja_value text_removeprefix(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_text p = NEED(j, a, 0, "prefix", JINJA_TEXT).text;
    if (ends_match(self.text, p, 0)) self.text = (jinja_text){self.text.data + p.size, self.text.size - p.size};
    return self;
}
static jinja_value text_removesuffix(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_text p = NEED(j, a, 0, "suffix", JINJA_TEXT).text;
    if (ends_match(self.text, p, 1)) self.text.size -= p.size;
    return self;
}

static const char *find_in(jinja *j, jinja_text t, jinja_text part) {
    mhla_jinja_work(j, t.size + 64);
    return part.size == 0 ? t.data : t.size < part.size ? NULL : memmem(t.data, t.size, part.data, part.size);
}

static jinja_value text_replace(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_text from = NEED(j, a, 0, "old", JINJA_TEXT).text, to = NEED(j, a, 1, "new", JINJA_TEXT).text;
    int64_t left = mhla_jinja_argument(j, a, 2, "count", JINJA_INT, mhla_jinja_int(-1)).i;
    jinja_buffer b = {0};
    jinja_text rest = mhla_jinja_string(j, self);
    if (from.size == 0) mhla_jinja_fail(j, MHLA_ENOTSUP, "replacing the empty text is not supported");
    while (left != 0 && rest.size > 0) {
        const char *at = memmem(rest.data, rest.size, from.data, from.size);
        if (at == NULL) break;
        const size_t before = (size_t)(at - rest.data);
        mhla_jinja_add(j, &b, rest.data, before);
        mhla_jinja_add(j, &b, to.data, to.size);
        mhla_jinja_work(j, 64);
        rest = (jinja_text){at + from.size, rest.size - before - from.size};
        left--;
    }
    mhla_jinja_add(j, &b, rest.data, rest.size);
    return mhla_jinja_text((jinja_text){b.data, b.count});
}

static const char *find_last(jinja *j, jinja_text t, jinja_text part) {
    const char *last = NULL;
    for (const char *at; (at = find_in(j, t, part)) != NULL && part.size > 0;) {
        last = at;
        t = (jinja_text){at + 1, t.size - (size_t)(at - t.data) - 1};
    }
    return last;
}

static jinja_value position(jinja_text t, const char *at) {
    return mhla_jinja_int(at ? (int64_t)mhla_jinja_length((jinja_text){t.data, (size_t)(at - t.data)}) : -1);
}
static jinja_value text_find(jinja *j, jinja_value self, const jinja_arguments *a) {
    return position(self.text, find_in(j, self.text, NEED(j, a, 0, "sub", JINJA_TEXT).text));
}
static jinja_value text_rfind(jinja *j, jinja_value self, const jinja_arguments *a) {
    return position(self.text, find_last(j, self.text, NEED(j, a, 0, "sub", JINJA_TEXT).text));
}
static jinja_value text_count(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_text part = NEED(j, a, 0, "sub", JINJA_TEXT).text;
    if (part.size == 0) return mhla_jinja_int((int64_t)mhla_jinja_length(self.text) + 1);
    int64_t n = 0;
    jinja_text t = self.text;
    for (const char *at; t.size > 0 && (at = memmem(t.data, t.size, part.data, part.size)) != NULL; n++)
        t = (jinja_text){at + part.size, t.size - (size_t)(at - t.data) - part.size};
    mhla_jinja_work(j, self.text.size);
    return mhla_jinja_int(n);
}

static void split_space(jinja *j, jinja_list *list, jinja_text t, int64_t most) {
    while ((t = mhla_jinja_strip(t, NULL, 1, 0)).size > 0) {
        if (most-- == 0) {
            mhla_jinja_append(j, list, mhla_jinja_text(mhla_jinja_strip(t, NULL, 0, 1)));
            return;
        }
        size_t n = 0; /* up to the next white space */
        while (n < t.size) {
            const int size = mhla_utf8_length((const unsigned char *)t.data + n, t.size - n);
            const jinja_text c = {t.data + n, size > 0 ? (size_t)size : 1};
            if (mhla_jinja_strip(c, NULL, 1, 0).size == 0) break;
            n += c.size;
        }
        mhla_jinja_append(j, list, mhla_jinja_text((jinja_text){t.data, n}));
        t = (jinja_text){t.data + n, t.size - n};
    }
}

static jinja_value text_split(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_value by = mhla_jinja_argument(j, a, 0, "sep", JINJA_UNDEFINED, none);
    int64_t most = mhla_jinja_argument(j, a, 1, "maxsplit", JINJA_INT, mhla_jinja_int(-1)).i;
    jinja_value list = mhla_jinja_list(j);
    jinja_text t = self.text;
    mhla_jinja_work(j, t.size);
    if (by.kind == JINJA_NONE) {
        split_space(j, list.list, t, most);
        return list;
    }
    if (by.kind != JINJA_TEXT || by.text.size == 0) mhla_jinja_fail(j, MHLA_EDATA, "split() by nothing");
    for (const char *at; most != 0 && t.size > 0 && (at = memmem(t.data, t.size, by.text.data, by.text.size)); most--) {
        const size_t n = (size_t)(at - t.data);
        mhla_jinja_append(j, list.list, mhla_jinja_text((jinja_text){t.data, n}));
        t = (jinja_text){at + by.text.size, t.size - n - by.text.size};
    }
    mhla_jinja_append(j, list.list, mhla_jinja_text(t));
    return list;
}

static jinja_value text_rsplit(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_value by = mhla_jinja_argument(j, a, 0, "sep", JINJA_UNDEFINED, none);
    int64_t most = mhla_jinja_argument(j, a, 1, "maxsplit", JINJA_INT, mhla_jinja_int(-1)).i;
    if (most < 0) return text_split(j, self, a);
    if (by.kind != JINJA_TEXT || by.text.size == 0) mhla_jinja_fail(j, MHLA_ENOTSUP, "rsplit() without a separator");
    jinja_value list = mhla_jinja_list(j);
    jinja_text t = self.text;
    for (const char *at; most > 0 && (at = find_last(j, t, by.text)) != NULL; most--) {
        const size_t n = (size_t)(at - t.data);
        mhla_jinja_append(j, list.list, mhla_jinja_text((jinja_text){at + by.text.size, t.size - n - by.text.size}));
        t.size = n;
    }
    mhla_jinja_append(j, list.list, mhla_jinja_text(t));
    for (size_t i = 0, n = list.list->count; i < n / 2; i++) {
        const jinja_value v = list.list->item[i];
        list.list->item[i] = list.list->item[n - 1 - i];
        list.list->item[n - 1 - i] = v;
    }
    return list;
}

static jinja_value text_splitlines(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)a;
    jinja_value list = mhla_jinja_list(j);
    for (jinja_text t = self.text; t.size > 0;) {
        size_t n = 0;
        while (n < t.size && t.data[n] != '\n' && t.data[n] != '\r') n++;
        mhla_jinja_append(j, list.list, mhla_jinja_text((jinja_text){t.data, n}));
        if (n < t.size) n += n + 1 < t.size && t.data[n] == '\r' && t.data[n + 1] == '\n' ? 2 : 1;
        t = (jinja_text){t.data + n, t.size - n};
    }
    mhla_jinja_work(j, self.text.size);
    return list;
}

static jinja_value text_join(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_list *items = mhla_jinja_items(j, NEED(j, a, 0, "iterable", JINJA_UNDEFINED));
    jinja_buffer b = {0};
    for (size_t i = 0; i < items->count; i++) {
        if (items->item[i].kind != JINJA_TEXT)
            mhla_jinja_fail(j, MHLA_EDATA, "join() of %s", mhla_jinja_kind_text(items->item[i]));
        if (i > 0) mhla_jinja_add(j, &b, self.text.data, self.text.size);
        mhla_jinja_add(j, &b, items->item[i].text.data, items->item[i].text.size);
    }
    return mhla_jinja_text((jinja_text){b.data, b.count});
}

/* "{} {0} {name}", without the small language behind a colon. */
static jinja_value text_format(jinja *j, jinja_value self, const jinja_arguments *a) {
    jinja_buffer b = {0};
    const jinja_text t = self.text;
    size_t automatic = 0;
    for (size_t at = 0; at < t.size; at++) {
        const char c = t.data[at];
        if ((c == '{' || c == '}') && at + 1 < t.size && t.data[at + 1] == c) {
            mhla_jinja_add(j, &b, &t.data[at++], 1);
            continue;
        }
        if (c != '{') {
            mhla_jinja_add(j, &b, &t.data[at], 1);
            continue;
        }
        const char *end = memchr(t.data + at, '}', t.size - at);
        if (end == NULL) mhla_jinja_fail(j, MHLA_EDATA, "format() of a text with a single {");
        const jinja_text field = {t.data + at + 1, (size_t)(end - t.data) - at - 1};
        size_t i = field.size == 0 ? automatic++ : a->count + a->named;
        if (field.size == 1 && field.data[0] >= '0' && field.data[0] <= '9') i = (size_t)(field.data[0] - '0');
        for (size_t k = 0; k < a->named; k++)
            if (mhla_jinja_same_text(a->name[k], field)) i = a->count + k;
        if (i >= a->count + a->named)
            mhla_jinja_fail(j, MHLA_ENOTSUP, "format() of %s is not supported",
                            mhla_quote_bytes(field.data, field.size).text);
        const jinja_text value = mhla_jinja_string(j, a->item[i]);
        mhla_jinja_add(j, &b, value.data, value.size);
        at = (size_t)(end - t.data);
    }
    return mhla_jinja_text((jinja_text){b.data, b.count});
}

/* True if there are characters and all are of categories first..last. */
static jinja_value all_of(jinja *j, jinja_text t, int first, int last) {
    size_t at = 0;
    mhla_jinja_work(j, t.size);
    while (at < t.size) {
        int32_t c = 0;
        const utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)t.data + at, (utf8proc_ssize_t)(t.size - at), &c);
        const int k = n > 0 ? (int)utf8proc_category(c) : 0;
        if (n <= 0 || k < first || k > last) return mhla_jinja_bool(0);
        at += (size_t)n;
    }
    return mhla_jinja_bool(t.size > 0);
}
static jinja_value text_isdigit(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    return all_of(j, s.text, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND);
}
static jinja_value text_isalpha(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    return all_of(j, s.text, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}
static jinja_value text_isspace(jinja *j, jinja_value s, const jinja_arguments *a) {
    (void)a;
    mhla_jinja_work(j, s.text.size);
    return mhla_jinja_bool(s.text.size > 0 && mhla_jinja_strip(s.text, NULL, 1, 0).size == 0);
}

/* ---- Mappings, lists, the loop ---- */

static jinja_value dict_items(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)a;
    jinja_value list = mhla_jinja_list(j);
    for (size_t i = 0; i < self.dict->count; i++) {
        jinja_value pair = mhla_jinja_list(j);
        pair.kind = JINJA_TUPLE;
        mhla_jinja_append(j, pair.list, self.dict->key[i]);
        mhla_jinja_append(j, pair.list, self.dict->item[i]);
        mhla_jinja_append(j, list.list, pair);
    }
    return list;
}
static jinja_value dict_keys(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)a;
    jinja_value list = mhla_jinja_list(j);
    for (size_t i = 0; i < self.dict->count; i++) mhla_jinja_append(j, list.list, self.dict->key[i]);
    return list;
}
static jinja_value dict_values(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)a;
    jinja_value list = mhla_jinja_list(j);
    for (size_t i = 0; i < self.dict->count; i++) mhla_jinja_append(j, list.list, self.dict->item[i]);
    return list;
}
static jinja_value dict_get(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_value *found = mhla_jinja_find(j, self.dict, NEED(j, a, 0, "key", JINJA_UNDEFINED));
    return found ? *found : mhla_jinja_argument(j, a, 1, "default", JINJA_UNDEFINED, none);
}

static jinja_value list_index(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_value v = NEED(j, a, 0, "value", JINJA_UNDEFINED);
    for (size_t i = 0; i < self.list->count; i++)
        if (mhla_jinja_equal(j, self.list->item[i], v)) return mhla_jinja_int((int64_t)i);
    mhla_jinja_fail(j, MHLA_EDATA, "index() of what is not in the list");
}
static jinja_value list_count(jinja *j, jinja_value self, const jinja_arguments *a) {
    const jinja_value v = NEED(j, a, 0, "value", JINJA_UNDEFINED);
    int64_t n = 0;
    for (size_t i = 0; i < self.list->count; i++) n += mhla_jinja_equal(j, self.list->item[i], v);
    return mhla_jinja_int(n);
}

static jinja_value loop_cycle(jinja *j, jinja_value self, const jinja_arguments *a) {
    if (a->count == 0) mhla_jinja_fail(j, MHLA_EDATA, "cycle() of nothing");
    return a->item[self.loop->index % a->count];
}
static jinja_value loop_changed(jinja *j, jinja_value self, const jinja_arguments *a) {
    jinja_value now = mhla_jinja_list(j);
    for (size_t i = 0; i < a->count; i++) mhla_jinja_append(j, now.list, a->item[i]);
    const int same = mhla_jinja_equal(j, self.loop->changed, now);
    self.loop->changed = now;
    return mhla_jinja_bool(!same);
}

jinja_function mhla_jinja_method(jinja_kind kind, jinja_text name) {
    static const struct {
        jinja_kind kind;
        const char *name;
        jinja_function function;
    } table[] = {
        {JINJA_TEXT, "strip", text_strip},
        {JINJA_TEXT, "lstrip", text_lstrip},
        {JINJA_TEXT, "rstrip", text_rstrip},
        {JINJA_TEXT, "lower", text_lower},
        {JINJA_TEXT, "upper", text_upper},
        {JINJA_TEXT, "title", text_title},
        {JINJA_TEXT, "capitalize", text_capitalize},
        {JINJA_TEXT, "startswith", text_startswith},
        {JINJA_TEXT, "endswith", text_endswith},
        {JINJA_TEXT, "removeprefix", text_removeprefix},
        {JINJA_TEXT, "removesuffix", text_removesuffix},
        {JINJA_TEXT, "replace", text_replace},
        {JINJA_TEXT, "find", text_find},
        {JINJA_TEXT, "rfind", text_rfind},
        {JINJA_TEXT, "count", text_count},
        {JINJA_TEXT, "split", text_split},
        {JINJA_TEXT, "rsplit", text_rsplit},
        {JINJA_TEXT, "splitlines", text_splitlines},
        {JINJA_TEXT, "join", text_join},
        {JINJA_TEXT, "format", text_format},
        {JINJA_TEXT, "isdigit", text_isdigit},
        {JINJA_TEXT, "isalpha", text_isalpha},
        {JINJA_TEXT, "isspace", text_isspace},
        {JINJA_DICT, "items", dict_items},
        {JINJA_DICT, "keys", dict_keys},
        {JINJA_DICT, "values", dict_values},
        {JINJA_DICT, "get", dict_get},
        {JINJA_LIST, "index", list_index},
        {JINJA_LIST, "count", list_count},
        {JINJA_TUPLE, "index", list_index},
        {JINJA_TUPLE, "count", list_count},
        {JINJA_LOOP, "cycle", loop_cycle},
        {JINJA_LOOP, "changed", loop_changed},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].kind == kind && mhla_jinja_is(name, table[i].name)) return table[i].function;
    return NULL;
}

/* ---- Functions ---- */

static jinja_value make_range(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)self;
    int64_t bound[3] = {0, 0, 1};
    if (a->count < 1 || a->count > 3) mhla_jinja_fail(j, MHLA_EDATA, "range() takes one to three numbers");
    for (size_t i = 0; i < a->count; i++) {
        if (a->item[i].kind != JINJA_INT)
            mhla_jinja_fail(j, MHLA_EDATA, "range() of %s", mhla_jinja_kind_text(a->item[i]));
        bound[a->count == 1 ? 1 : i] = a->item[i].i;
    }
    if (bound[2] == 0) mhla_jinja_fail(j, MHLA_EDATA, "range() in steps of 0");
    jinja_value list = mhla_jinja_list(j);
    for (int64_t i = bound[0]; bound[2] > 0 ? i < bound[1] : i > bound[1];) {
        mhla_jinja_append(j, list.list, mhla_jinja_int(i));
        mhla_jinja_work(j, 32);
        if (__builtin_add_overflow(i, bound[2], &i)) break;
    }
    return list;
}

static jinja_value make_dict(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)self;
    jinja_value dict = mhla_jinja_dict(j);
    if (a->count > 1 || (a->count == 1 && a->item[0].kind != JINJA_DICT))
        mhla_jinja_fail(j, MHLA_ENOTSUP, "dict() and namespace() take a mapping and names");
    for (size_t i = 0; a->count == 1 && i < a->item[0].dict->count; i++)
        mhla_jinja_put(j, dict.dict, a->item[0].dict->key[i], a->item[0].dict->item[i]);
    for (size_t i = 0; i < a->named; i++)
        mhla_jinja_put(j, dict.dict, mhla_jinja_text(a->name[i]), a->item[a->count + i]);
    return dict;
}
static jinja_value make_namespace(jinja *j, jinja_value self, const jinja_arguments *a) {
    jinja_value space = make_dict(j, self, a);
    space.kind = JINJA_SPACE;
    return space;
}

static jinja_value raise_exception(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)self;
    const jinja_text t = mhla_jinja_string(j, NEED(j, a, 0, "message", JINJA_UNDEFINED));
    mhla_jinja_fail(j, MHLA_EINVAL, "it refuses the conversation: %s", mhla_quote_bytes(t.data, t.size).text);
}

static jinja_value strftime_now(jinja *j, jinja_value self, const jinja_arguments *a) {
    (void)self;
    const jinja_text t = NEED(j, a, 0, "format", JINJA_TEXT).text;
    char format[128], text[512] = "";
    struct tm now;
    const time_t seconds = time(NULL);
    if (t.size >= sizeof format) mhla_jinja_fail(j, MHLA_EDATA, "the format of a date is too long");
    if (t.size > 0) memcpy(format, t.data, t.size);
    format[t.size] = '\0';
    const size_t n = localtime_r(&seconds, &now) ? strftime(text, sizeof text, format, &now) : 0; /* NOLINT */
    return mhla_jinja_copy(j, text, n);
}

jinja_function mhla_jinja_global(jinja_text name) {
    static const struct {
        const char *name;
        jinja_function function;
    } table[] = {{"range", make_range},
                 {"dict", make_dict},
                 {"namespace", make_namespace},
                 {"raise_exception", raise_exception},
                 {"strftime_now", strftime_now}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (mhla_jinja_is(name, table[i].name)) return table[i].function;
    return NULL;
}
