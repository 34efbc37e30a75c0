/* Filters (value | name) and tests (value is name): a row each at the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/text.h"
#include "text/jinja.h"

static const jinja_value none = {.kind = JINJA_NONE};
static const jinja_arguments nothing = {0};
#define NEED(j, a, at, name, kind) mhla_jinja_argument(j, a, at, name, kind, mhla_jinja_undefined(JINJA_LITERAL(name)))
#define OPTIONAL(j, a, at, name, kind, v) mhla_jinja_argument(j, a, at, name, kind, v)

/* A filter that is the method of the same name of the value as text. */
static jinja_value by_method(jinja *j, jinja_value v, const jinja_arguments *a, const char *name) {
    const jinja_function method = mhla_jinja_method(JINJA_TEXT, (jinja_text){name, strlen(name)});
    return method(j, mhla_jinja_text(mhla_jinja_string(j, v)), a);
}
static jinja_value do_trim(jinja *j, jinja_value v, const jinja_arguments *a) { return by_method(j, v, a, "strip"); }
static jinja_value do_upper(jinja *j, jinja_value v, const jinja_arguments *a) { return by_method(j, v, a, "upper"); }
static jinja_value do_lower(jinja *j, jinja_value v, const jinja_arguments *a) { return by_method(j, v, a, "lower"); }
static jinja_value do_title(jinja *j, jinja_value v, const jinja_arguments *a) { return by_method(j, v, a, "title"); }
static jinja_value do_capitalize(jinja *j, jinja_value v, const jinja_arguments *a) {
    return by_method(j, v, a, "capitalize");
}
static jinja_value do_replace(jinja *j, jinja_value v, const jinja_arguments *a) {
    return by_method(j, v, a, "replace");
}

static jinja_value do_length(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    if (v.kind == JINJA_TEXT) {
        mhla_jinja_work(j, v.text.size);
        return mhla_jinja_int((int64_t)mhla_jinja_length(v.text));
    }
    if (v.kind == JINJA_DICT) return mhla_jinja_int((int64_t)v.dict->count);
    if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE) return mhla_jinja_int((int64_t)v.list->count);
    if (v.kind == JINJA_UNDEFINED) return mhla_jinja_int(0);
    mhla_jinja_fail(j, MHLA_EDATA, "the length of %s", mhla_jinja_kind_text(v));
}

static jinja_value do_string(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    return mhla_jinja_text(mhla_jinja_string(j, v));
}
static jinja_value do_safe(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)j;
    (void)a;
    return v;
}

static jinja_value do_default(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value other = OPTIONAL(j, a, 0, "default_value", JINJA_UNDEFINED, mhla_jinja_text(JINJA_LITERAL("")));
    const int any = mhla_jinja_true(OPTIONAL(j, a, 1, "boolean", JINJA_UNDEFINED, mhla_jinja_bool(0)));
    return v.kind == JINJA_UNDEFINED || (any && !mhla_jinja_true(v)) ? other : v;
}

static jinja_value do_tojson(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value indent = OPTIONAL(j, a, 0, "indent", JINJA_UNDEFINED, none);
    const jinja_value sort = OPTIONAL(j, a, 1, "sort_keys", JINJA_UNDEFINED, mhla_jinja_bool(0));
    for (size_t i = 0; i < a->named; i++)
        if (mhla_jinja_is(a->name[i], "separators"))
            mhla_jinja_fail(j, MHLA_ENOTSUP, "tojson with separators is not supported");
    if (indent.kind != JINJA_NONE && (indent.kind != JINJA_INT || indent.i < 0 || indent.i > 16))
        mhla_jinja_fail(j, MHLA_EDATA, "tojson is indented by 0 to 16");
    return mhla_jinja_text(mhla_jinja_json(j, v, indent.kind == JINJA_INT ? (int)indent.i : -1, mhla_jinja_true(sort)));
}

/* "a.b.0" of map(attribute=..) and its like. */
jinja_value mhla_jinja_path(jinja *j, jinja_value v, jinja_value path) {
    if (path.kind == JINJA_INT) return mhla_jinja_index(j, v, path);
    if (path.kind != JINJA_TEXT) mhla_jinja_fail(j, MHLA_EDATA, "an attribute by %s", mhla_jinja_kind_text(path));
    jinja_text rest = path.text;
    while (rest.size > 0) {
        const char *dot = memchr(rest.data, '.', rest.size);
        const size_t n = dot ? (size_t)(dot - rest.data) : rest.size;
        int64_t number = 0;
        int digits = n > 0 && n < 10;
        for (size_t i = 0; i < n && digits; i++) {
            digits = rest.data[i] >= '0' && rest.data[i] <= '9';
            number = number * 10 + (rest.data[i] - '0');
        }
        v = mhla_jinja_index(j, v, digits ? mhla_jinja_int(number) : mhla_jinja_text((jinja_text){rest.data, n}));
        rest = dot ? (jinja_text){dot + 1, rest.size - n - 1} : (jinja_text){rest.data + n, 0};
    }
    return v;
}

static jinja_value attribute_of(jinja *j, jinja_value v, jinja_value path) {
    return path.kind == JINJA_NONE ? v : mhla_jinja_path(j, v, path);
}

static jinja_value do_join(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_text by =
        mhla_jinja_string(j, OPTIONAL(j, a, 0, "d", JINJA_UNDEFINED, mhla_jinja_text(JINJA_LITERAL(""))));
    const jinja_value path = OPTIONAL(j, a, 1, "attribute", JINJA_UNDEFINED, none);
    const jinja_list *items = mhla_jinja_items(j, v);
    jinja_buffer b = {0};
    for (size_t i = 0; i < items->count; i++) {
        const jinja_text t = mhla_jinja_string(j, attribute_of(j, items->item[i], path));
        if (i > 0) mhla_jinja_add(j, &b, by.data, by.size);
        mhla_jinja_add(j, &b, t.data, t.size);
    }
    return mhla_jinja_text((jinja_text){b.data, b.count});
}

static jinja_value do_first(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    const jinja_list *items = mhla_jinja_items(j, v);
    return items->count > 0 ? items->item[0] : mhla_jinja_undefined(JINJA_LITERAL("the first of nothing"));
}
static jinja_value do_last(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    const jinja_list *items = mhla_jinja_items(j, v);
    return items->count > 0 ? items->item[items->count - 1]
                            : mhla_jinja_undefined(JINJA_LITERAL("the last of nothing"));
}

static jinja_value copy_list(jinja *j, jinja_value v) {
    const jinja_list *items = mhla_jinja_items(j, v);
    jinja_value list = mhla_jinja_list(j);
    for (size_t i = 0; i < items->count; i++) mhla_jinja_append(j, list.list, items->item[i]);
    return list;
}
static jinja_value do_list(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    return copy_list(j, v);
}

static jinja_value do_reverse(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    const jinja_value range[3] = {none, none, mhla_jinja_int(-1)};
    return mhla_jinja_slice(j, v.kind == JINJA_TEXT ? v : copy_list(j, v), range);
}

static jinja_value do_items(jinja *j, jinja_value v, const jinja_arguments *a) {
    if (v.kind == JINJA_UNDEFINED) return mhla_jinja_list(j);
    if (v.kind != JINJA_DICT) mhla_jinja_fail(j, MHLA_EDATA, "items of %s", mhla_jinja_kind_text(v));
    return mhla_jinja_method(JINJA_DICT, JINJA_LITERAL("items"))(j, v, a);
}

static jinja_value do_sort(jinja *j, jinja_value v, const jinja_arguments *a);

static jinja_value do_dictsort(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value exact = OPTIONAL(j, a, 0, "case_sensitive", JINJA_UNDEFINED, mhla_jinja_bool(0));
    const jinja_text by = OPTIONAL(j, a, 1, "by", JINJA_TEXT, mhla_jinja_text(JINJA_LITERAL("key"))).text;
    const jinja_value back = OPTIONAL(j, a, 2, "reverse", JINJA_UNDEFINED, mhla_jinja_bool(0));
    jinja_value items[3] = {back, exact, mhla_jinja_int(mhla_jinja_is(by, "value"))};
    return do_sort(j, do_items(j, v, &nothing), &(jinja_arguments){.item = items, .count = 3});
}

/* Stable, by insertion into the sorted front: lists of templates are short, and the bound on work holds for others. */
static jinja_value do_sort(jinja *j, jinja_value v, const jinja_arguments *a) {
    const int back = mhla_jinja_true(OPTIONAL(j, a, 0, "reverse", JINJA_UNDEFINED, mhla_jinja_bool(0)));
    const int exact = mhla_jinja_true(OPTIONAL(j, a, 1, "case_sensitive", JINJA_UNDEFINED, mhla_jinja_bool(0)));
    const jinja_value path = OPTIONAL(j, a, 2, "attribute", JINJA_UNDEFINED, none);
    jinja_value list = copy_list(j, v);
    jinja_value *x = list.list->item, *key = mhla_jinja_alloc(j, (list.list->count + 1) * sizeof *key);
    for (size_t i = 0; i < list.list->count; i++) {
        const jinja_value item = x[i];
        jinja_value k = attribute_of(j, item, path);
        if (k.kind == JINJA_TEXT && !exact) k = do_lower(j, k, &nothing);
        size_t at = i;
        for (; at > 0; at--) {
            const int c = mhla_jinja_compare(j, key[at - 1], k);
            mhla_jinja_work(j, 16);
            if (back ? c >= 0 : c <= 0) break;
            key[at] = key[at - 1];
            x[at] = x[at - 1];
        }
        key[at] = k;
        x[at] = item;
    }
    return list;
}

static jinja_value do_unique(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    const jinja_list *items = mhla_jinja_items(j, v);
    jinja_value list = mhla_jinja_list(j);
    for (size_t i = 0; i < items->count; i++)
        if (!mhla_jinja_in(j, items->item[i], list)) mhla_jinja_append(j, list.list, items->item[i]);
    return list;
}

/* The rest of the arguments, from `from` on, for the filter or test that another one calls. */
static jinja_arguments rest_of(const jinja_arguments *a, size_t from) {
    jinja_arguments rest = *a;
    if (from > a->count) from = a->count;
    rest.item += from;
    rest.count -= from;
    return rest;
}

/* map, select and their like take none for an empty list. */
static const jinja_list *items_or_none(jinja *j, jinja_value v) {
    return mhla_jinja_items(j, v.kind == JINJA_NONE ? mhla_jinja_list(j) : v);
}

static jinja_value do_map(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_list *items = items_or_none(j, v);
    jinja_value list = mhla_jinja_list(j);
    if (a->count == 0) {
        const jinja_value path = NEED(j, a, 9, "attribute", JINJA_UNDEFINED);
        const jinja_value other = OPTIONAL(j, a, 9, "default", JINJA_UNDEFINED, none);
        for (size_t i = 0; i < items->count; i++) {
            const jinja_value x = mhla_jinja_path(j, items->item[i], path);
            mhla_jinja_append(j, list.list, x.kind == JINJA_UNDEFINED && other.kind != JINJA_NONE ? other : x);
        }
        return list;
    }
    const jinja_text name = NEED(j, a, 0, "filter", JINJA_TEXT).text;
    const jinja_function filter = mhla_jinja_filter(name);
    if (filter == NULL)
        mhla_jinja_fail(j, MHLA_ENOTSUP, "the filter %s is not supported", mhla_quote_bytes(name.data, name.size).text);
    const jinja_arguments rest = rest_of(a, 1);
    for (size_t i = 0; i < items->count; i++) mhla_jinja_append(j, list.list, filter(j, items->item[i], &rest));
    return list;
}

/* select, reject (by_path 0) and selectattr, rejectattr. */
static jinja_value choose(jinja *j, jinja_value v, const jinja_arguments *a, int by_path, int keep) {
    const jinja_list *items = items_or_none(j, v);
    jinja_value list = mhla_jinja_list(j);
    const size_t skip = by_path ? 1 : 0;
    const jinja_value path = by_path ? NEED(j, a, 0, "attribute", JINJA_UNDEFINED) : none;
    jinja_function test = NULL;
    if (a->count > skip) {
        const jinja_text name = NEED(j, a, skip, "test", JINJA_TEXT).text;
        test = mhla_jinja_test(name);
        if (test == NULL)
            mhla_jinja_fail(j, MHLA_ENOTSUP, "the test %s is not supported",
                            mhla_quote_bytes(name.data, name.size).text);
    }
    const jinja_arguments rest = rest_of(a, skip + 1);
    for (size_t i = 0; i < items->count; i++) {
        const jinja_value x = attribute_of(j, items->item[i], path);
        if (mhla_jinja_true(test ? test(j, x, &rest) : x) == keep) mhla_jinja_append(j, list.list, items->item[i]);
    }
    return list;
}
static jinja_value do_select(jinja *j, jinja_value v, const jinja_arguments *a) { return choose(j, v, a, 0, 1); }
static jinja_value do_reject(jinja *j, jinja_value v, const jinja_arguments *a) { return choose(j, v, a, 0, 0); }
static jinja_value do_selectattr(jinja *j, jinja_value v, const jinja_arguments *a) { return choose(j, v, a, 1, 1); }
static jinja_value do_rejectattr(jinja *j, jinja_value v, const jinja_arguments *a) { return choose(j, v, a, 1, 0); }

static jinja_value do_int(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value other = OPTIONAL(j, a, 0, "default", JINJA_UNDEFINED, mhla_jinja_int(0));
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) return mhla_jinja_int(v.i);
    if (v.kind == JINJA_REAL) return fabs(v.real) < 9e18 ? mhla_jinja_int((int64_t)v.real) : other;
    if (v.kind != JINJA_TEXT) return other;
    char text[32], *end;
    const jinja_text t = mhla_jinja_strip(v.text, NULL, 1, 1);
    if (t.size == 0 || t.size > 18) return other;
    memcpy(text, t.data, t.size);
    text[t.size] = '\0';
    const long long n = strtoll(text, &end, 10);
    if (*end == '\0') return mhla_jinja_int(n);
    const double x = strtod(text, &end);
    return *end == '\0' && fabs(x) < 9e18 ? mhla_jinja_int((int64_t)x) : other;
}

static jinja_value do_float(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value zero = {.kind = JINJA_REAL, .real = 0.0},
                      other = OPTIONAL(j, a, 0, "default", JINJA_UNDEFINED, zero);
    if (v.kind == JINJA_REAL) return v;
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) return (jinja_value){.kind = JINJA_REAL, .real = (double)v.i};
    char text[64], *end;
    if (v.kind != JINJA_TEXT || v.text.size == 0 || v.text.size >= sizeof text) return other;
    memcpy(text, v.text.data, v.text.size);
    text[v.text.size] = '\0';
    const double x = strtod(text, &end);
    return *end == '\0' ? (jinja_value){.kind = JINJA_REAL, .real = x} : other;
}

static jinja_value do_abs(jinja *j, jinja_value v, const jinja_arguments *a) {
    (void)a;
    if (v.kind == JINJA_REAL) return (jinja_value){.kind = JINJA_REAL, .real = fabs(v.real)};
    return mhla_jinja_compare(j, v, mhla_jinja_int(0)) < 0 ? mhla_jinja_binary(j, OP_SUB, mhla_jinja_int(0), v) : v;
}

static jinja_value extreme(jinja *j, jinja_value v, const jinja_arguments *a, int sign) {
    const jinja_value path = OPTIONAL(j, a, 1, "attribute", JINJA_UNDEFINED, none);
    const jinja_list *items = mhla_jinja_items(j, v);
    if (items->count == 0) return mhla_jinja_undefined(JINJA_LITERAL("the extreme of nothing"));
    jinja_value best = items->item[0];
    for (size_t i = 1; i < items->count; i++)
        if (sign * mhla_jinja_compare(j, attribute_of(j, items->item[i], path), attribute_of(j, best, path)) > 0)
            best = items->item[i];
    return best;
}
static jinja_value do_max(jinja *j, jinja_value v, const jinja_arguments *a) { return extreme(j, v, a, 1); }
static jinja_value do_min(jinja *j, jinja_value v, const jinja_arguments *a) { return extreme(j, v, a, -1); }

static jinja_value do_sum(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value path = OPTIONAL(j, a, 0, "attribute", JINJA_UNDEFINED, none);
    const jinja_list *items = mhla_jinja_items(j, v);
    jinja_value sum = OPTIONAL(j, a, 1, "start", JINJA_UNDEFINED, mhla_jinja_int(0));
    for (size_t i = 0; i < items->count; i++)
        sum = mhla_jinja_binary(j, OP_ADD, sum, attribute_of(j, items->item[i], path));
    return sum;
}

/* Lines after the first, unless blank, move to the right. */
static jinja_value do_indent(jinja *j, jinja_value v, const jinja_arguments *a) {
    const jinja_value width = OPTIONAL(j, a, 0, "width", JINJA_UNDEFINED, mhla_jinja_int(4));
    const int first = mhla_jinja_true(OPTIONAL(j, a, 1, "first", JINJA_UNDEFINED, mhla_jinja_bool(0)));
    const int blank = mhla_jinja_true(OPTIONAL(j, a, 2, "blank", JINJA_UNDEFINED, mhla_jinja_bool(0)));
    char spaces[64];
    jinja_text by = {spaces, 0};
    memset(spaces, ' ', sizeof spaces);
    if (width.kind == JINJA_TEXT)
        by = width.text;
    else if (width.kind == JINJA_INT && width.i >= 0 && width.i <= (int64_t)sizeof spaces)
        by.size = (size_t)width.i;
    else
        mhla_jinja_fail(j, MHLA_EDATA, "indent() by 0 to 64");
    jinja_buffer b = {0};
    jinja_text t = mhla_jinja_string(j, v);
    for (int line = 0;; line++) {
        const char *newline = t.size > 0 ? memchr(t.data, '\n', t.size) : NULL;
        const size_t n = newline ? (size_t)(newline - t.data) + 1 : t.size;
        const int empty = n == (size_t)(newline != NULL);
        if (line == 0 ? first : blank || !empty) mhla_jinja_add(j, &b, by.data, by.size);
        mhla_jinja_add(j, &b, t.data, n);
        mhla_jinja_work(j, 16);
        if (newline == NULL) break;
        t = (jinja_text){t.data + n, t.size - n};
    }
    return mhla_jinja_text((jinja_text){b.data, b.count});
}

jinja_function mhla_jinja_filter(jinja_text name) {
    static const struct {
        const char *name;
        jinja_function function;
    } table[] = {
        {"trim", do_trim},       {"length", do_length},
        {"count", do_length},    {"upper", do_upper},
        {"lower", do_lower},     {"title", do_title},
        {"replace", do_replace}, {"capitalize", do_capitalize},
        {"string", do_string},   {"safe", do_safe},
        {"default", do_default}, {"d", do_default},
        {"tojson", do_tojson},   {"join", do_join},
        {"first", do_first},     {"last", do_last},
        {"list", do_list},       {"reverse", do_reverse},
        {"items", do_items},     {"sort", do_sort},
        {"unique", do_unique},   {"map", do_map},
        {"select", do_select},   {"reject", do_reject},
        {"int", do_int},         {"selectattr", do_selectattr},
        {"float", do_float},     {"rejectattr", do_rejectattr},
        {"abs", do_abs},         {"max", do_max},
        {"min", do_min},         {"sum", do_sum},
        {"indent", do_indent},   {"dictsort", do_dictsort},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (mhla_jinja_is(name, table[i].name)) return table[i].function;
    return NULL;
}

/* ---- Tests ---- */

#define TEST(name, condition)                                                                                          \
    static jinja_value name(jinja *j, jinja_value v, const jinja_arguments *a) {                                       \
        (void)j;                                                                                                       \
        (void)a;                                                                                                       \
        return mhla_jinja_bool(condition);                                                                             \
    }
#define OTHER NEED(j, a, 0, "other", JINJA_UNDEFINED)

TEST(is_defined, v.kind != JINJA_UNDEFINED)
TEST(is_undefined, v.kind == JINJA_UNDEFINED)
TEST(is_none, v.kind == JINJA_NONE)
TEST(is_string, v.kind == JINJA_TEXT)
TEST(is_number, v.kind == JINJA_INT || v.kind == JINJA_REAL || v.kind == JINJA_BOOL)
TEST(is_integer, v.kind == JINJA_INT)
TEST(is_float, v.kind == JINJA_REAL)
TEST(is_boolean, v.kind == JINJA_BOOL)
TEST(is_true, v.kind == JINJA_BOOL && v.i)
TEST(is_false, v.kind == JINJA_BOOL && !v.i)
TEST(is_mapping, v.kind == JINJA_DICT)
TEST(is_sequence, v.kind == JINJA_LIST || v.kind == JINJA_TUPLE || v.kind == JINJA_TEXT || v.kind == JINJA_DICT ||
                      v.kind == JINJA_UNDEFINED)
TEST(is_callable, v.kind == JINJA_CALL)
TEST(is_odd, mhla_jinja_binary(j, OP_MOD, v, mhla_jinja_int(2)).i == 1)
TEST(is_even, mhla_jinja_binary(j, OP_MOD, v, mhla_jinja_int(2)).i == 0)
TEST(is_divisible, mhla_jinja_equal(j, mhla_jinja_binary(j, OP_MOD, v, OTHER), mhla_jinja_int(0)))
TEST(is_equal, mhla_jinja_equal(j, v, OTHER))
TEST(is_unequal, !mhla_jinja_equal(j, v, OTHER))
TEST(is_less, mhla_jinja_compare(j, v, OTHER) < 0)
TEST(is_at_most, mhla_jinja_compare(j, v, OTHER) <= 0)
TEST(is_greater, mhla_jinja_compare(j, v, OTHER) > 0)
TEST(is_at_least, mhla_jinja_compare(j, v, OTHER) >= 0)
TEST(is_in, mhla_jinja_in(j, v, OTHER))
TEST(is_same, OTHER.kind == v.kind && mhla_jinja_equal(j, v, OTHER))
TEST(is_lower, mhla_jinja_equal(j, v, do_lower(j, v, &nothing)) && !mhla_jinja_equal(j, v, do_upper(j, v, &nothing)))
TEST(is_upper, mhla_jinja_equal(j, v, do_upper(j, v, &nothing)) && !mhla_jinja_equal(j, v, do_lower(j, v, &nothing)))

jinja_function mhla_jinja_test(jinja_text name) {
    static const struct {
        const char *name;
        jinja_function function;
    } table[] = {
        {"defined", is_defined},
        {"undefined", is_undefined},
        {"none", is_none},
        {"string", is_string},
        {"number", is_number},
        {"integer", is_integer},
        {"float", is_float},
        {"boolean", is_boolean},
        {"true", is_true},
        {"false", is_false},
        {"mapping", is_mapping},
        {"sequence", is_sequence},
        {"iterable", is_sequence},
        {"callable", is_callable},
        {"odd", is_odd},
        {"even", is_even},
        {"in", is_in},
        {"equalto", is_equal},
        {"eq", is_equal},
        {"divisibleby", is_divisible},
        {"ne", is_unequal},
        {"lt", is_less},
        {"lessthan", is_less},
        {"le", is_at_most},
        {"gt", is_greater},
        {"greaterthan", is_greater},
        {"ge", is_at_least},
        {"sameas", is_same},
        {"lower", is_lower},
        {"upper", is_upper},
        {"==", is_equal},
        {"!=", is_unequal},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (mhla_jinja_is(name, table[i].name)) return table[i].function;
    return NULL;
}
