/* What is said of pictures: metadata.jsonl, or the list of emoji. See captions.h. */
#include "data/captions.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "data/data_impl.h"
#include "data/dataset_impl.h"
#include "file/file.h"

/* ---- A table of files and texts, sorted by file when it is complete ---- */

static mhla_status add(mhla_caption_list *l, const char *file, const char *text, size_t size) {
    if (l->count == l->room) {
        const int64_t room = 2 * l->room + 256;
        char **files = realloc(l->files, (size_t)room * sizeof *files);
        if (files) l->files = files;
        char **texts = realloc(l->texts, (size_t)room * sizeof *texts);
        if (texts) l->texts = texts;
        if (files == NULL || texts == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for captions");
        l->room = room;
    }
    char *name = strdup(file), *copy = strndup(text, size);
    if (name == NULL || copy == NULL) {
        free(name);
        free(copy);
        return mhla_fail(MHLA_ENOMEM, "no memory for captions");
    }
    l->files[l->count] = name;
    l->texts[l->count++] = copy;
    return MHLA_OK;
}

void mhla_caption_list_free(mhla_caption_list *l) {
    for (int64_t i = 0; i < l->count; i++) {
        free(l->files[i]);
        free(l->texts[i]);
    }
    free(l->files);
    free(l->texts);
    *l = (mhla_caption_list){0};
}

/* Bytes at the beginning that are not, or, with `these`, that are one of these; no more than n. */
static size_t span(const char *at, size_t n, const char *set, int these) {
    size_t k = 0;
    while (k < n && (at[k] != '\0' && strchr(set, at[k]) != NULL) == these) k++;
    return k;
}

/* ---- metadata.jsonl ---- */

static mhla_status add_row(mhla_caption_list *l, const json_t *row, const char *below, const char *where) {
    const char *name = NULL, *text = NULL;
    char file[4096];
    MHLA_TRY(mhla_json_get_text(&name, row, "file_name", where));
    MHLA_TRY(mhla_json_get_text(&text, row, "text", where));
    if (name == NULL || text == NULL)
        return mhla_fail(MHLA_EDATA, "%s: expected an object with file_name and text", where);
    if (strncmp(name, "./", 2) == 0) name += 2;
    if (snprintf(file, sizeof file, "%s%s%s", below, *below ? "/" : "", name) >= (int)sizeof file)
        return mhla_fail(MHLA_EDATA, "%s: file_name is too long", where);
    return add(l, file, text, strlen(text));
}

/* folder/below/metadata.jsonl, where there is one. */
static mhla_status read_metadata(mhla_caption_list *l, const char *folder, const char *below, int *found) {
    char place[4096], path[4096];
    mhla_file file;
    if (snprintf(place, sizeof place, "%s%s%s", folder, *below ? "/" : "", below) >= (int)sizeof place ||
        !mhla_dataset_path(path, place, "metadata.jsonl"))
        return MHLA_OK;
    *found = 1;
    MHLA_TRY(mhla_file_map(&file, path));
    const char *at = (const char *)file.data, *end = at + file.size;
    mhla_status status = MHLA_OK;
    for (long long number = 1; at < end && status == MHLA_OK; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((stop ? stop : end) - at);
        char where[4200];
        snprintf(where, sizeof where, "%s: line %lld", path, number);
        json_t *row = NULL;
        if (span(at, n, " \t\r", 1) < n) status = mhla_json_parse(&row, at, n, where);
        if (row) status = add_row(l, row, below, where);
        json_decref(row);
        at += n + 1;
    }
    mhla_file_unmap(&file);
    return status;
}

/* ---- pictures.txt: "SHA-256  path  subgroup: name" ---- */

static mhla_status read_emoji(mhla_caption_list *l, const char *folder, int *found) {
    char path[4096], name[256];
    mhla_file file;
    if (!mhla_dataset_path(path, folder, MHLA_EMOJI_LIST)) return MHLA_OK;
    MHLA_TRY(mhla_file_map(&file, path));
    const char *at = (const char *)file.data, *end = at + file.size;
    mhla_status status = MHLA_OK;
    for (; at < end && status == MHLA_OK;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        const char *picture = at + 66, *text = NULL;
        const size_t n = stop - at > 66 ? span(picture, (size_t)(stop - picture), " ", 0) : 0;
        if (n > 0 && n < sizeof name && stop - picture > (ptrdiff_t)n + 2)
            text = memchr(picture + n + 2, ':', (size_t)(stop - picture) - n - 2);
        if (text && stop - text >= 2 && text[1] == ' ') {
            const char *group = picture + n + 2; /* where there is no name: "keycap: " */
            const int named = stop - text > 2;
            snprintf(name, sizeof name, "%.*s", (int)n, picture);
            status = add(l, name, named ? text + 2 : group, (size_t)(named ? stop - text - 2 : text - group));
            *found = 1;
        }
        at = stop + 1;
    }
    mhla_file_unmap(&file);
    return status;
}

/* ---- The captions of a dataset ---- */

static int by_file(const void *a, const void *b, void *of) {
    const mhla_caption_list *l = of;
    return strcmp(l->files[*(const int64_t *)a], l->files[*(const int64_t *)b]);
}

/* Numbers of the table's rows in the order of their files. */
static mhla_status sort(int64_t **order, mhla_caption_list *table, const char *folder) {
    *order = malloc((size_t)(table->count + 1) * sizeof **order);
    if (*order == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for captions");
    for (int64_t i = 0; i < table->count; i++) (*order)[i] = i;
    qsort_r(*order, (size_t)table->count, sizeof **order, by_file, table);
    for (int64_t i = 1; i < table->count; i++)
        if (strcmp(table->files[(*order)[i - 1]], table->files[(*order)[i]]) == 0)
            return mhla_fail(MHLA_EDATA, "%s: %s has two captions", folder, MHLA_QUOTE(table->files[(*order)[i]]));
    return MHLA_OK;
}

static const char *look_up(const mhla_caption_list *table, const int64_t *order, const char *file) {
    int64_t low = 0, high = table->count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const int sign = strcmp(table->files[order[middle]], file);
        if (sign == 0) return table->texts[order[middle]];
        *(sign < 0 ? &low : &high) = sign < 0 ? middle + 1 : middle;
    }
    return NULL;
}

/* All that is said in the folder, and in the folders in it that have pictures of the data: names come sorted, so that a folder is
 * entered once. */
static mhla_status read_all(mhla_caption_list *table, const mhla_dataset *data, const char *folder) {
    const size_t above = strlen(folder) + 1;
    char last[4096] = "";
    int found = 0;
    MHLA_TRY(read_metadata(table, folder, "", &found));
    for (int64_t i = 0; i < mhla_dataset_count(data); i++) {
        const char *file = mhla_dataset_file(data, i) + above;
        const size_t n = strcspn(file, "/");
        if (n >= sizeof last || (strncmp(last, file, n) == 0 && last[n] == '\0')) continue;
        snprintf(last, sizeof last, "%.*s", (int)n, file);
        MHLA_TRY(read_metadata(table, folder, last, &found));
    }
    if (!found) MHLA_TRY(read_emoji(table, folder, &found));
    if (found) return MHLA_OK;
    return mhla_fail(MHLA_EDATA,
                     "%s: no captions: expected metadata.jsonl, a line {\"file_name\": .., \"text\": ..} "
                     "for each image, in it or in its parts",
                     folder);
}

mhla_status mhla_captions_of(mhla_caption_list *list, const mhla_dataset *data, const char *folder) {
    mhla_caption_list table = {0};
    int64_t *order = NULL;
    if (*mhla_dataset_file(data, 0) == '\0')
        return mhla_fail(MHLA_EINVAL, "%s: its images (%s) have no files of their own, and so no captions", folder,
                         mhla_dataset_format(data));
    mhla_status status = read_all(&table, data, folder);
    if (status == MHLA_OK) status = sort(&order, &table, folder);
    for (int64_t i = 0; i < mhla_dataset_count(data) && status == MHLA_OK; i++) {
        const char *file = mhla_dataset_file(data, i), *text = look_up(&table, order, file + strlen(folder) + 1);
        if (text == NULL) status = mhla_fail(MHLA_EDATA, "%s: no caption for it", file);
        if (text) status = add(list, file + strlen(folder) + 1, text, strlen(text));
    }
    mhla_caption_list_free(&table);
    free(order);
    return status;
}

mhla_status mhla_captions_of_lines(mhla_caption_list *list, const char *path) {
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const char *at = (const char *)file.data, *end = at + file.size;
    const size_t broken = mhla_utf8_broken(file.data, file.size);
    mhla_status status =
        broken < file.size ? mhla_fail(MHLA_EDATA, "%s: byte %zu is not UTF-8", path, broken) : MHLA_OK;
    while (at < end && status == MHLA_OK) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((stop ? stop : end) - at);
        const size_t whole = n, blank = span(at, n, " \t", 1);
        at += blank;
        n -= blank;
        while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t' || at[n - 1] == '\r')) n--;
        if (n > 0 && memchr(at, 0, n)) status = mhla_fail(MHLA_EDATA, "%s: a text has a zero byte", path);
        if (n > 0 && status == MHLA_OK) status = add(list, "", at, n);
        at += whole - blank + 1;
    }
    mhla_file_unmap(&file);
    if (status == MHLA_OK && list->count == 0) return mhla_fail(MHLA_EDATA, "%s: no text in it", path);
    return status;
}

mhla_status mhla_captions_check(const mhla_captions *c, const mhla_caption_list *list, const char *folder) {
    if (list->count != c->texts - 1)
        return mhla_fail(MHLA_EDATA, "%s has %lld encoded captions, and the data has %lld now: encode them again",
                         folder, (long long)c->texts - 1, (long long)list->count);
    for (int64_t i = 0; i < list->count; i++) {
        const char *file = json_string_value(json_array_get(c->files, (size_t)i)), *text = mhla_captions_text(c, i + 1);
        if (strcmp(file, list->files[i]) != 0)
            return mhla_fail(MHLA_EDATA, "%s was made from other images: number %lld is %s, and was %s", folder,
                             (long long)i, MHLA_QUOTE(list->files[i]), MHLA_QUOTE(file));
        if (strcmp(text, list->texts[i]) == 0) continue;
        return mhla_fail(MHLA_EDATA, "%s: the caption of %s was %s and is %s: encode the captions again", folder,
                         *file ? MHLA_QUOTE(file) : "a text", MHLA_QUOTE(text), MHLA_QUOTE(list->texts[i]));
    }
    return MHLA_OK;
}
