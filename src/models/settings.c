/* Configs as tables: from recipes and config.json into structures, and back. */
#include "models/settings.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "models/attention/grid.h"

typedef struct made {
    struct made *next;
    const mhla_settings *of;
    mhla_recipe_row rows[];
} made;

const mhla_recipe_row *mhla_settings_rows(const mhla_settings *table) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static made *all;
    pthread_mutex_lock(&lock);
    made *m = all;
    while (m && m->of != table) m = m->next;
    if (m == NULL && (m = calloc(1, sizeof *m + (size_t)(table->count + 1) * sizeof *m->rows)) != NULL) {
        for (int i = 0; i < table->count; i++) m->rows[i] = table->fields[i].row;
        m->of = table;
        m->next = all;
        all = m;
    }
    pthread_mutex_unlock(&lock);
    return m ? m->rows : NULL;
}

/* The place of text in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text) {
    const size_t n = strlen(text);
    for (int i = 0; choices; i++) {
        const char *end = strchr(choices, '|');
        const size_t length = end ? (size_t)(end - choices) : strlen(choices);
        if (length == n && strncmp(choices, text, n) == 0) return i;
        choices = end ? end + 1 : NULL;
    }
    return -1;
}

static void choice_text(char *text, size_t size, const char *choices, int index) {
    for (; index > 0 && choices; index--) choices = strchr(choices, '|') + 1;
    snprintf(text, size, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* How many numbers a field of several has room for, and of how many of them config.json speaks; 0: it is no such field. */
static int numbers(const mhla_setting *f, const void *config, const mhla_settings *table, int *count) {
    const int room = f->kind == MHLA_SETTING_INT2    ? 2
                     : f->kind == MHLA_SETTING_INT3  ? 3
                     : f->kind == MHLA_SETTING_REAL3 ? 3
                     : f->kind == MHLA_SETTING_INT4  ? 4
                     : f->kind == MHLA_SETTING_REAL4 ? 4
                     : f->kind == MHLA_SETTING_LIST  ? MHLA_SETTING_LIST_MOST
                                                     : 0;
    const int *list = (const int *)((const char *)config + f->at);
    *count = f->kind == MHLA_SETTING_REAL3 ? *(const int *)((const char *)config + table->channels) : room;
    if (f->kind == MHLA_SETTING_LIST)
        for (*count = 0; *count < room && list[*count];) ++*count;
    return room;
}
static int whole(const mhla_setting *f) {
    return f->kind == MHLA_SETTING_INT2 || f->kind == MHLA_SETTING_INT3 || f->kind == MHLA_SETTING_INT4 ||
           f->kind == MHLA_SETTING_LIST;
}

static mhla_status set_numbers(void *config, const mhla_settings *table, const mhla_setting *f, const json_t *array) {
    const size_t n = json_array_size(array);
    void *to = (char *)config + f->at;
    int count;
    const int room = numbers(f, config, table, &count);
    if (n != 1 && n != (size_t)count)
        return mhla_fail(MHLA_EINVAL, "%s has %zu numbers: expected 1 or %d", f->row.name, n, count);
    for (size_t i = 0; i < (size_t)room; i++) {
        const json_t *x = json_array_get(array, n == 1 ? 0 : i < n ? i : n - 1);
        if (whole(f))
            ((int *)to)[i] = (int)json_integer_value(x);
        else
            ((double *)to)[i] = json_number_value(x);
    }
    return MHLA_OK;
}

/* Integers from least to most, as a list; `path`, where it is not NULL, stands in front of messages. */
static mhla_status set_list(int *to, const mhla_setting *f, const json_t *array, const char *path) {
    const size_t n = json_array_size(array);
    const char *before = path ? path : "", *between = path ? ": " : "";
    if (n < 1 || n > MHLA_SETTING_LIST_MOST)
        return mhla_fail(path ? MHLA_EDATA : MHLA_EINVAL, "%s%s%s is not a list of 1 to %d numbers", before, between,
                         f->row.name, MHLA_SETTING_LIST_MOST);
    for (size_t i = 0; i < MHLA_SETTING_LIST_MOST; i++) {
        const json_t *x = json_array_get(array, i);
        const double value = json_is_number(x) ? json_number_value(x) : NAN;
        if (i < n && (!(value >= f->row.least && value <= f->row.most) || value != floor(value)))
            return mhla_fail(path ? MHLA_EDATA : MHLA_EINVAL, "%s%s%s[%zu] is not an integer from %.0f to %.0f", before,
                             between, f->row.name, i, f->row.least, f->row.most);
        to[i] = i < n ? (int)value : 0;
    }
    return MHLA_OK;
}

static mhla_status set_field(void *config, const mhla_settings *table, const mhla_setting *f, const mhla_recipe *given,
                             const char *key) {
    void *to = (char *)config + f->at;
    switch (f->kind) {
    case MHLA_SETTING_TEXT:
        if (snprintf(to, MHLA_SETTING_CHARS, "%s", mhla_recipe_text(given, key)) >= MHLA_SETTING_CHARS)
            return mhla_fail(MHLA_EINVAL, "%s is %s: at most %d bytes", f->row.name,
                             MHLA_QUOTE(mhla_recipe_text(given, key)), MHLA_SETTING_CHARS - 1);
        break;
    case MHLA_SETTING_CHOICE: *(int *)to = choice_index(f->row.choices, mhla_recipe_text(given, key)); break;
    case MHLA_SETTING_MIX: {
        mhla_mix_init mix;
        MHLA_TRY(mhla_mix_from_name(&mix, mhla_recipe_text(given, key)));
        *(int *)to = (int)mix;
        break;
    }
    case MHLA_SETTING_GRID: *(int *)to = mhla_grid_named(mhla_recipe_text(given, key)); break;
    case MHLA_SETTING_INT:
    case MHLA_SETTING_OPTIONAL: *(int *)to = (int)mhla_recipe_int(given, key); break;
    case MHLA_SETTING_REAL:
    case MHLA_SETTING_OPTIONAL_REAL: *(double *)to = mhla_recipe_real(given, key); break;
    case MHLA_SETTING_BOOL: *(int *)to = mhla_recipe_bool(given, key); break;
    case MHLA_SETTING_LIST: return set_list(to, f, mhla_recipe_array(given, key), NULL);
    case MHLA_SETTING_INT2:
    case MHLA_SETTING_INT3:
    case MHLA_SETTING_INT4:
    case MHLA_SETTING_REAL3:
    case MHLA_SETTING_REAL4: return set_numbers(config, table, f, mhla_recipe_array(given, key));
    }
    return MHLA_OK;
}

mhla_status mhla_settings_take(void *config, const mhla_settings *table, int first, int last, const mhla_recipe *given,
                               const char *prefix) {
    char key[MHLA_RECIPE_KEY];
    for (int i = first; i < last; i++) {
        const mhla_setting *f = &table->fields[i];
        if (snprintf(key, sizeof key, "%s%s", prefix, f->row.name) >= (int)sizeof key)
            return mhla_fail(MHLA_EINVAL, "the key %s is too long: at most %d characters with \"%s\" in front",
                             MHLA_QUOTE(f->row.name), MHLA_RECIPE_KEY - 1, prefix);
        if (mhla_recipe_has(given, key)) MHLA_TRY(set_field(config, table, f, given, key));
    }
    return MHLA_OK;
}

mhla_status mhla_settings_parse(mhla_recipe **given, const mhla_recipe_row *rows, const json_t *tree,
                                const char *path) {
    static const char *const others[] = {"class_names", "format", "model_type"}; /* the caller's business */
    json_t *copy = json_copy((json_t *)(uintptr_t)tree);
    char *text = NULL;
    *given = NULL;
    if (json_object_size(copy) != json_object_size(tree)) { /* without memory it leaves keys out */
        json_decref(copy);
        copy = NULL;
    }
    for (size_t i = 0; copy && i < sizeof others / sizeof *others; i++) json_object_del(copy, others[i]);
    if (copy) text = mhla_json_text(copy, JSON_COMPACT);
    mhla_status status = text ? mhla_recipe_create(given, rows) : mhla_fail(MHLA_ENOMEM, "no memory");
    if (status == MHLA_OK) status = mhla_recipe_parse(*given, text, strlen(text), 1, path);
    free(text);
    json_decref(copy);
    return status;
}

/* ---- Other programs' config.json ---- */

/* NULL where the key is absent or null. */
static const json_t *value_of(const json_t *tree, const char *name) {
    const json_t *v = json_object_get(tree, name);
    return json_is_null(v) ? NULL : v;
}

mhla_status mhla_settings_read_int(int *to, const json_t *tree, const char *name, double least, double most,
                                   const char *path) {
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    const double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= least && x <= most) || x != floor(x)) {
        char *text = mhla_json_text(v, JSON_COMPACT);
        const mhla_status status = mhla_fail(MHLA_EDATA, "%s: \"%s\" is %.60s: expected an integer from %.0f to %.0f",
                                             path, name, text ? text : mhla_json_type_text(v), least, most);
        free(text);
        return status;
    }
    *to = (int)x;
    return MHLA_OK;
}

mhla_status mhla_settings_read_real(double *to, const json_t *tree, const char *name, double least, double most,
                                    const char *path) {
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    const double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= least && x <= most))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is not a number from %g to %g", path, name, least, most);
    *to = x;
    return MHLA_OK;
}

mhla_status mhla_settings_read_bool(int *to, const json_t *tree, const char *name, const char *path) {
    const json_t *v = value_of(tree, name);
    if (v == NULL) return MHLA_OK;
    if (!json_is_boolean(v)) return mhla_fail(MHLA_EDATA, "%s: \"%s\" is neither true nor false", path, name);
    *to = json_is_true(v);
    return MHLA_OK;
}

mhla_status mhla_settings_read(void *config, const mhla_settings *table, int first, const json_t *tree,
                               const char *path) {
    for (int i = first; i < table->count; i++) {
        const mhla_setting *f = &table->fields[i];
        const mhla_recipe_row *row = &f->row;
        const json_t *v = value_of(tree, row->name);
        void *to = (char *)config + f->at;
        if (v == NULL) continue;
        switch (f->kind) {
        case MHLA_SETTING_OPTIONAL:
            if (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0) {
                *(int *)to = 0;
                break;
            } /* fallthrough */
        case MHLA_SETTING_INT:
            MHLA_TRY(mhla_settings_read_int(to, tree, row->name, row->least, row->most, path));
            break;
        case MHLA_SETTING_REAL:
        case MHLA_SETTING_OPTIONAL_REAL:
            MHLA_TRY(mhla_settings_read_real(to, tree, row->name, row->least, row->most, path));
            break;
        case MHLA_SETTING_BOOL: MHLA_TRY(mhla_settings_read_bool(to, tree, row->name, path)); break;
        case MHLA_SETTING_CHOICE: {
            const int index = json_is_string(v) ? choice_index(row->choices, json_string_value(v)) : -1;
            if (index < 0)
                return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\" is \"%.40s\": known are %s", path, row->name,
                                 json_is_string(v) ? json_string_value(v) : mhla_json_type_text(v), row->choices);
            *(int *)to = index;
            break;
        }
        case MHLA_SETTING_LIST: MHLA_TRY(set_list(to, f, v, path)); break;
        case MHLA_SETTING_INT2: {
            int list[MHLA_SETTING_LIST_MOST];
            MHLA_TRY(set_list(list, f, v, path));
            if (json_array_size(v) != 2)
                return mhla_fail(MHLA_EDATA, "%s: %s has %zu numbers: expected 2", path, row->name, json_array_size(v));
            memcpy(to, list, 2 * sizeof *list);
            break;
        }
        case MHLA_SETTING_MIX: {
            mhla_mix_init mix;
            MHLA_TRY(mhla_blame(mhla_mix_from_name(&mix, json_is_string(v) ? json_string_value(v) : ""), path));
            *(int *)to = (int)mix;
            break;
        }
        default: break; /* other kinds are in tables of ours alone */
        }
    }
    return MHLA_OK;
}

const mhla_setting *mhla_settings_find(const mhla_settings *table, const char *name) {
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->fields[i].row.name, name) == 0) return &table->fields[i];
    return NULL;
}

static json_t *field_value(const void *config, const mhla_settings *table, const mhla_setting *f) {
    const void *from = (const char *)config + f->at;
    char text[64];
    switch (f->kind) {
    case MHLA_SETTING_TEXT: return json_string(from);
    case MHLA_SETTING_CHOICE:
        choice_text(text, sizeof text, f->row.choices, *(const int *)from);
        return json_string(text);
    case MHLA_SETTING_MIX: return json_string(mhla_mix_name((mhla_mix_init) * (const int *)from));
    case MHLA_SETTING_GRID: return json_string(mhla_grid_name(*(const int *)from));
    case MHLA_SETTING_OPTIONAL:
        if (*(const int *)from == 0) return json_null(); /* fallthrough */
    case MHLA_SETTING_INT: return json_integer(*(const int *)from);
    case MHLA_SETTING_OPTIONAL_REAL:
        if (*(const double *)from == 0.0) return json_null(); /* fallthrough */
    case MHLA_SETTING_REAL: return json_real(*(const double *)from);
    case MHLA_SETTING_BOOL: return json_boolean(*(const int *)from);
    default: break;
    }
    int count;
    numbers(f, config, table, &count);
    json_t *value = json_array();
    for (int k = 0; k < count; k++)
        if (json_array_append_new(value, whole(f) ? json_integer(((const int *)from)[k])
                                                  : json_real(((const double *)from)[k])) != 0) {
            json_decref(value);
            return NULL;
        }
    return value;
}

json_t *mhla_settings_tree(const void *config, const mhla_settings *table) {
    json_t *tree = json_object();
    for (int i = 0; i < table->count; i++)
        if (json_object_set_new(tree, table->fields[i].row.name, field_value(config, table, &table->fields[i])) != 0) {
            json_decref(tree);
            return NULL;
        }
    return tree;
}
