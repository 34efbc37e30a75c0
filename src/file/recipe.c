#include "file/recipe.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "file/json.h"
#include "file/text.h"
#include "file/toml.h"

enum { KEY_MOST = 256, DEPTH_MOST = 8 };

struct mhla_recipe {
    const mhla_recipe_row *rows;
    size_t count;
    json_t **values; /* [count], NULL: none */
    char *given;     /* [count] */
};

/* ---- Rows ---- */

static int is_array(mhla_recipe_type type) { return type >= MHLA_RECIPE_INTS; }
static mhla_recipe_type element_of(mhla_recipe_type type) {
    return type == MHLA_RECIPE_INTS ? MHLA_RECIPE_INT : type == MHLA_RECIPE_REALS ? MHLA_RECIPE_REAL : MHLA_RECIPE_TEXT;
}
static int has_range(const mhla_recipe_row *row) { return row->least != 0.0 || row->most != 0.0; }

/* Position of the row, count if there is none. */
static size_t row_of(const mhla_recipe *r, const char *key) {
    size_t i = 0;
    while (i < r->count && strcmp(r->rows[i].name, key) != 0) i++;
    return i;
}

const mhla_recipe_row *mhla_recipe_find(const mhla_recipe *r, const char *key) {
    const size_t i = row_of(r, key);
    return i < r->count ? &r->rows[i] : NULL;
}

static const char *last_part(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* First by the whole name, then by its last part: who writes "epochs" or "model.epochs" means "train.epochs". */
const char *mhla_recipe_nearest(const mhla_recipe *r, const char *key) {
    mhla_nearest whole = mhla_nearest_begin(key), part = mhla_nearest_begin(last_part(key));
    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(last_part(r->rows[i].name), last_part(key)) == 0 && part.distance > 0)
            part.distance = 0, part.best = r->rows[i].name;
        mhla_nearest_offer(&whole, r->rows[i].name);
    }
    if (whole.best && (whole.distance <= 2 || part.best == NULL)) return whole.best;
    if (part.best) return part.best;
    for (size_t i = 0; i < r->count; i++) {
        const int before = part.distance;
        mhla_nearest_offer(&part, last_part(r->rows[i].name));
        if (part.distance < before) whole.best = r->rows[i].name;
    }
    return whole.best;
}

const char *mhla_recipe_expected(char *text, size_t size, const mhla_recipe_row *row) {
    const int many = is_array(row->type);
    const mhla_recipe_type type = many ? element_of(row->type) : row->type;
    static const char *const one[] = {"true or false", "an integer", "a number", "text"};
    static const char *const several[] = {"", "an array of integers", "an array of numbers", "an array of texts"};
    size_t n = (size_t)snprintf(text, size, "%s", many ? several[type] : one[type]);
    if (type == MHLA_RECIPE_TEXT && row->choices) {
        n = (size_t)snprintf(text, size, many ? "an array of " : "one of ");
        for (const char *c = row->choices; *c && n + 3 < size; c++) {
            if (*c == '|') text[n++] = ',';
            text[n++] = *c == '|' ? ' ' : *c;
        }
        text[n] = '\0';
    }
    if (type != MHLA_RECIPE_TEXT && type != MHLA_RECIPE_BOOL && has_range(row) && n < size) {
        if (isinf(row->most))
            snprintf(text + n, size - n, ", %.12g or more", row->least);
        else
            snprintf(text + n, size - n, " from %.12g to %.12g", row->least, row->most);
    }
    return text;
}

static int is_choice(const char *choices, const char *text) {
    const size_t n = strlen(text);
    for (const char *c = choices;; c++) {
        const size_t length = strcspn(c, "|");
        if (length == n && memcmp(c, text, n) == 0) return 1;
        c += length;
        if (*c == '\0') return 0;
    }
}

/* One value of a scalar type; a new reference, NULL if it does not fit (or there is no memory). */
static json_t *fit_scalar(const mhla_recipe_row *row, mhla_recipe_type type, const json_t *value) {
    if (type == MHLA_RECIPE_BOOL) return json_is_boolean(value) ? json_boolean(json_is_true(value)) : NULL;
    if (type == MHLA_RECIPE_TEXT) {
        const char *text = json_string_value(value);
        if (text == NULL || strlen(text) != json_string_length(value)) return NULL;
        return row->choices && !is_choice(row->choices, text) ? NULL : json_string(text);
    }
    if (!(type == MHLA_RECIPE_INT ? json_is_integer(value) : json_is_number(value))) return NULL;
    const double x = json_number_value(value);
    if (!isfinite(x) || (has_range(row) && !(x >= row->least && x <= row->most))) return NULL;
    return type == MHLA_RECIPE_INT ? json_integer(json_integer_value(value)) : json_real(x);
}

static json_t *fit(const mhla_recipe_row *row, const json_t *value) {
    if (!is_array(row->type)) return fit_scalar(row, row->type, value);
    if (!json_is_array(value)) return NULL;
    json_t *array = json_array();
    for (size_t i = 0; array && i < json_array_size(value); i++)
        if (json_array_append_new(array, fit_scalar(row, element_of(row->type), json_array_get(value, i))) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* ---- From files ---- */

typedef struct loading { /* a file being read: taken over only if all of it is right */
    const mhla_recipe *recipe;
    const char *name;
    json_t **values; /* [count], what the file sets */
} loading;

/* What was found, shortened: a text in quotes, a number, else JSON. */
static mhla_quoted found_text(const json_t *value) {
    mhla_quoted q = {""};
    if (json_is_string(value)) return mhla_quote_bytes(json_string_value(value), json_string_length(value));
    char text[64];
    size_t n = json_dumpb(value, text, sizeof text - 1, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (n == 0 || n >= sizeof text) {
        snprintf(q.text, sizeof q.text, "%s", mhla_json_type_text(value));
        return q;
    }
    text[n] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    snprintf(q.text, sizeof q.text, "%s", text);
    return q;
}

/* Refuses a key of a file that is not in the table. `where` is ":line:column" or "". */
static mhla_status unknown_key(const loading *l, const char *where, const char *key) {
    const char *nearest = mhla_recipe_nearest(l->recipe, key);
    return mhla_fail(MHLA_EDATA, "%s%s: unknown key %s%s%s%s", l->name, where, MHLA_QUOTE(key),
                     nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static mhla_status set_loaded(const loading *l, const char *key, const json_t *value, const char *where) {
    char expected[256];
    const size_t i = row_of(l->recipe, key);
    if (i == l->recipe->count) return unknown_key(l, where, key);
    if (l->values[i]) return mhla_fail(MHLA_EDATA, "%s%s: \"%s\" occurs twice", l->name, where, key);
    errno = 0;
    json_t *fitting = fit(&l->recipe->rows[i], value);
    if (fitting == NULL && errno == ENOMEM) return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", l->name);
    if (fitting == NULL)
        return mhla_fail(MHLA_EDATA, "%s%s: \"%s\" is %s: expected %s", l->name, where, key, found_text(value).text,
                         mhla_recipe_expected(expected, sizeof expected, &l->recipe->rows[i]));
    l->values[i] = fitting;
    return MHLA_OK;
}

/* The tables of a JSON tree, name by name. */
static mhla_status walk(loading *l, const char *prefix, const json_t *object, int depth) {
    const char *part;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, part, value) {
        char key[KEY_MOST];
        if (snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", part) >= KEY_MOST || depth == DEPTH_MOST)
            return mhla_fail(MHLA_EDATA, "%s: unknown key %s", l->name, MHLA_QUOTE(part));
        if (json_is_object(value) && mhla_recipe_find(l->recipe, key) == NULL)
            MHLA_TRY(walk(l, key, value, depth + 1));
        else
            MHLA_TRY(set_loaded(l, key, value, ""));
    }
    return MHLA_OK;
}

static mhla_status parse_json(loading *l, const char *text, size_t size) {
    json_t *tree;
    MHLA_TRY(mhla_json_parse(&tree, text, size, l->name));
    mhla_status status = MHLA_OK;
    if (json_is_object(tree))
        status = walk(l, "", tree, 0);
    else
        status = mhla_fail(MHLA_EDATA, "%s: %s where an object was expected", l->name, mhla_json_type_text(tree));
    json_decref(tree);
    return status;
}

/* ":line:column" of a place in a TOML text */
typedef struct spot {
    char text[32];
} spot;
static spot spot_of(const char *text, size_t place) {
    spot s;
    int line, column;
    mhla_toml_where(&line, &column, text, place);
    snprintf(s.text, sizeof s.text, ":%d:%d", line, column);
    return s;
}

/* A value of TOML as JSON, a new reference. NULL where a date or a number that is not finite, which recipes do not take, is found (*odd),
 * or where there is no memory. */
static json_t *json_of(const mhla_toml_node *n, const mhla_toml_node **odd) {
    if (n->type == MHLA_TOML_STRING) return json_stringn(n->text, n->size);
    if (n->type == MHLA_TOML_INTEGER) return json_integer(n->integer);
    if (n->type == MHLA_TOML_BOOL) return json_boolean(n->integer);
    if (n->type == MHLA_TOML_FLOAT && isfinite(n->real)) return json_real(n->real);
    if (n->type != MHLA_TOML_ARRAY && n->type != MHLA_TOML_TABLE) {
        *odd = n;
        return NULL;
    }
    json_t *value = n->type == MHLA_TOML_ARRAY ? json_array() : json_object();
    for (const mhla_toml_node *m = n->first; m && value; m = m->next) {
        const int bad = m->key ? json_object_setn_new(value, m->key, m->key_size, json_of(m, odd))
                               : json_array_append_new(value, json_of(m, odd));
        if (bad) json_decref(value), value = NULL;
    }
    return value;
}

static mhla_status set_toml(const loading *l, const char *text, const char *key, const mhla_toml_node *n) {
    const size_t i = row_of(l->recipe, key);
    if (i == l->recipe->count) return unknown_key(l, spot_of(text, n->key_place).text, key);
    const mhla_toml_node *odd = NULL;
    json_t *value = json_of(n, &odd);
    if (value) {
        const mhla_status status = set_loaded(l, key, value, spot_of(text, n->place).text);
        json_decref(value);
        return status;
    }
    if (odd == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", l->name);
    char expected[256];
    const char *is_float = isnan(odd->real) ? "nan" : odd->real > 0 ? "inf" : "-inf";
    return mhla_fail(MHLA_EDATA, "%s%s: \"%s\" %s %s%s: expected %s", l->name, spot_of(text, odd->place).text, key,
                     odd == n ? "is" : "contains", odd->type == MHLA_TOML_FLOAT ? "" : "the date or time ",
                     odd->type == MHLA_TOML_FLOAT ? is_float : odd->text,
                     mhla_recipe_expected(expected, sizeof expected, &l->recipe->rows[i]));
}

/* The tables of a TOML tree, as walk(). */
static mhla_status walk_toml(const loading *l, const char *text, const char *prefix, const mhla_toml_node *table,
                             int depth) {
    for (const mhla_toml_node *n = table->first; n; n = n->next) {
        char key[KEY_MOST];
        if (strlen(n->key) != n->key_size || depth == DEPTH_MOST ||
            snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", n->key) >= KEY_MOST)
            return unknown_key(l, spot_of(text, n->key_place).text, n->key);
        if (n->type == MHLA_TOML_TABLE && mhla_recipe_find(l->recipe, key) == NULL)
            MHLA_TRY(walk_toml(l, text, key, n, depth + 1));
        else
            MHLA_TRY(set_toml(l, text, key, n));
    }
    return MHLA_OK;
}

static mhla_status parse_toml(const loading *l, const char *text, size_t size) {
    mhla_toml *document;
    MHLA_TRY(mhla_toml_parse(&document, text, size, l->name));
    const mhla_status status = walk_toml(l, text, "", mhla_toml_root(document), 0);
    mhla_toml_free(document);
    return status;
}

mhla_status mhla_recipe_parse(mhla_recipe *r, const char *text, size_t size, int json, const char *name) {
    loading l = {r, name, calloc(r->count + 1, sizeof *l.values)};
    if (l.values == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", name);
    const mhla_status status = json ? parse_json(&l, text, size) : parse_toml(&l, text, size);
    for (size_t i = 0; i < r->count; i++) {
        if (l.values[i] == NULL) continue;
        if (status == MHLA_OK) {
            json_decref(r->values[i]);
            r->values[i] = l.values[i];
            r->given[i] = 1;
        } else {
            json_decref(l.values[i]);
        }
    }
    free(l.values);
    return status;
}

mhla_status mhla_recipe_load(mhla_recipe *r, const char *path) {
    const size_t n = strlen(path);
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const int json = n >= 5 && strcmp(path + n - 5, ".json") == 0;
    const mhla_status status = mhla_recipe_parse(r, (const char *)file.data, file.size, json, path);
    mhla_file_unmap(&file);
    return status;
}

/* ---- From texts ---- */

/* One value of a scalar type as JSON, without looking at the row's range; NULL if it cannot be one. */
static json_t *scalar_from_text(mhla_recipe_type type, const char *text) {
    char *end;
    errno = 0;
    if (type == MHLA_RECIPE_TEXT) return json_string(text);
    if (type == MHLA_RECIPE_BOOL) {
        if (strcmp(text, "true") == 0 || strcmp(text, "yes") == 0) return json_true();
        return strcmp(text, "false") == 0 || strcmp(text, "no") == 0 ? json_false() : NULL;
    }
    if (*text == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0') return NULL;
    if (type == MHLA_RECIPE_INT) {
        const long long n = strtoll(text, &end, 10);
        return *end || errno ? NULL : json_integer(n);
    }
    const double x = strtod(text, &end);
    return *end || !isfinite(x) ? NULL : json_real(x);
}

/* "1,2,3", also "[1, 2, 3]" */
static json_t *array_from_text(mhla_recipe_type type, const char *text) {
    char *copy = strdup(text), *at = copy;
    json_t *array = copy ? json_array() : NULL;
    const size_t n = strlen(text);
    if (array && n >= 2 && at[0] == '[' && at[n - 1] == ']') at[n - 1] = '\0', at++;
    at += array ? strspn(at, " ") : 0;
    while (array && *at) {
        char *comma = strchr(at, ','), *end = comma ? comma : at + strlen(at), *next = comma ? comma + 1 : end;
        at += strspn(at, " ");
        while (end > at && end[-1] == ' ') end--;
        if (end < at) at = end;
        *end = '\0';
        if ((comma && *next == '\0') || json_array_append_new(array, scalar_from_text(type, at)) != 0) {
            json_decref(array);
            array = NULL;
        }
        at = next;
    }
    free(copy);
    return array;
}

mhla_status mhla_recipe_set(mhla_recipe *r, const char *key, const char *text) {
    const size_t i = row_of(r, key);
    if (i == r->count) {
        const char *nearest = mhla_recipe_nearest(r, key);
        return mhla_fail(MHLA_EINVAL, "unknown key %s%s%s%s", MHLA_QUOTE(key), nearest ? "; did you mean \"" : "",
                         nearest ? nearest : "", nearest ? "\"?" : "");
    }
    const mhla_recipe_row *row = &r->rows[i];
    errno = 0;
    json_t *value =
        is_array(row->type) ? array_from_text(element_of(row->type), text) : scalar_from_text(row->type, text);
    json_t *fitting = value ? fit(row, value) : NULL;
    json_decref(value);
    if (fitting == NULL && errno == ENOMEM) return mhla_fail(MHLA_ENOMEM, "no memory for \"%s\"", key);
    if (fitting == NULL) {
        char expected[256];
        return mhla_fail(MHLA_EINVAL, "\"%s\" is %s: expected %s", key, MHLA_QUOTE(text),
                         mhla_recipe_expected(expected, sizeof expected, row));
    }
    json_decref(r->values[i]);
    r->values[i] = fitting;
    r->given[i] = 1;
    return MHLA_OK;
}

mhla_status mhla_recipe_assign(mhla_recipe *r, const char *assignment) {
    const char *equals = strchr(assignment, '=');
    char key[KEY_MOST];
    if (equals == NULL || equals == assignment)
        return mhla_fail(MHLA_EINVAL, "%s: expected key=value", MHLA_QUOTE(assignment));
    if (equals - assignment >= KEY_MOST) return mhla_fail(MHLA_EINVAL, "unknown key %s", MHLA_QUOTE(assignment));
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = '\0';
    return mhla_recipe_set(r, key, equals + 1);
}

/* ---- The whole ---- */

static mhla_status check_names(const mhla_recipe_row *rows) {
    for (int i = 0; rows[i].name; i++) {
        if (strlen(rows[i].name) >= MHLA_RECIPE_KEY)
            return mhla_fail(MHLA_EINVAL, "the key %s is too long: at most %d characters", MHLA_QUOTE(rows[i].name),
                             MHLA_RECIPE_KEY - 1);
        for (int k = 0; k < i; k++)
            if (strcmp(rows[i].name, rows[k].name) == 0)
                return mhla_fail(MHLA_EINVAL, "the key %s is in the table twice", MHLA_QUOTE(rows[i].name));
    }
    return MHLA_OK;
}

mhla_status mhla_recipe_create(mhla_recipe **recipe, const mhla_recipe_row *rows) {
    *recipe = NULL;
    if (rows == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a table of settings");
    MHLA_TRY(check_names(rows));
    mhla_recipe *r = calloc(1, sizeof *r);
    if (r == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a recipe");
    r->rows = rows;
    while (rows[r->count].name) r->count++;
    r->values = calloc(r->count + 1, sizeof(json_t *));
    r->given = calloc(r->count + 1, 1);
    mhla_status status = r->values && r->given ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a recipe");
    for (size_t i = 0; i < r->count && status == MHLA_OK; i++)
        if (rows[i].fallback) status = mhla_recipe_set(r, rows[i].name, rows[i].fallback);
    if (status == MHLA_OK) {
        memset(r->given, 0, r->count);
        *recipe = r;
    } else {
        mhla_recipe_free(r);
    }
    return status;
}

void mhla_recipe_free(mhla_recipe *r) {
    if (r == NULL) return;
    for (size_t i = 0; r->values && i < r->count; i++) json_decref(r->values[i]);
    free((void *)r->values);
    free(r->given);
    free(r);
}

static const json_t *value_of(const mhla_recipe *r, const char *key) {
    const size_t i = row_of(r, key);
    return i < r->count ? r->values[i] : NULL;
}
int mhla_recipe_bool(const mhla_recipe *r, const char *key) { return json_is_true(value_of(r, key)); }
int64_t mhla_recipe_int(const mhla_recipe *r, const char *key) { return json_integer_value(value_of(r, key)); }
double mhla_recipe_real(const mhla_recipe *r, const char *key) { return json_number_value(value_of(r, key)); }
const char *mhla_recipe_text(const mhla_recipe *r, const char *key) {
    const char *text = json_string_value(value_of(r, key));
    return text ? text : "";
}
const json_t *mhla_recipe_array(const mhla_recipe *r, const char *key) { return value_of(r, key); }
int mhla_recipe_has(const mhla_recipe *r, const char *key) { return value_of(r, key) != NULL; }
int mhla_recipe_given(const mhla_recipe *r, const char *key) {
    const size_t i = row_of(r, key);
    return i < r->count && r->given[i];
}

json_t *mhla_recipe_tree(const mhla_recipe *r) {
    json_t *tree = json_object();
    for (size_t i = 0; tree && i < r->count; i++) {
        if (r->values[i] == NULL) continue;
        json_t *at = tree;
        const char *part = r->rows[i].name;
        for (const char *dot = strchr(part, '.'); at && dot; part = dot + 1, dot = strchr(part, '.')) {
            char name[KEY_MOST];
            snprintf(name, sizeof name, "%.*s", (int)(dot - part), part);
            json_t *inner = json_object_get(at, name);
            if (inner == NULL && json_object_set_new(at, name, json_object()) == 0) inner = json_object_get(at, name);
            at = inner;
        }
        if (at == NULL || json_object_set(at, part, r->values[i]) != 0) {
            json_decref(tree);
            tree = NULL;
        }
    }
    return tree;
}
