/* JSON over jansson: whole files with limits and a message that names file, line and column; typed access that says
 * what was expected; JSON lines for logs. */
#ifndef MHLA_FILE_JSON_H
#define MHLA_FILE_JSON_H

#include <jansson.h>
#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

#include "file/text.h"

enum { MHLA_JSON_BYTES = 64 << 20, MHLA_JSON_DEPTH = 64, MHLA_JSON_VALUES = 4 << 20 };

/* Parses text, refusing more than the limits above, duplicate keys and trailing bytes; `name` stands in messages.
 * An integer beyond int64 becomes a real. */
mhla_status mhla_json_parse(json_t **tree, const char *text, size_t size, const char *name);
mhla_status mhla_json_load(json_t **tree, const char *path);
/* As json_dumps, with the fewest digits that give a real back (0.0008, 1e-06, 2.0); free() releases. NULL: no memory. */
char *mhla_json_text(const json_t *tree, size_t flags);
/* Atomically, indented by two, a newline at the end. */
mhla_status mhla_json_save(const json_t *tree, const char *path);

/* ---- Typed access: fields of one object of a file ----
 *
 * Each getter leaves *value as it is where the key is absent, so that a default is set by assigning it first, and
 * returns MHLA_EDATA naming file, key, the type expected and what was found. `file` is for the message. */
mhla_status mhla_json_get_int(int64_t *value, const json_t *object, const char *key, int64_t least, int64_t most,
                              const char *file);
mhla_status mhla_json_get_real(double *value, const json_t *object, const char *key, const char *file);
mhla_status mhla_json_get_bool(int *value, const json_t *object, const char *key, const char *file);
/* Lives as long as the object. */
mhla_status mhla_json_get_text(const char **value, const json_t *object, const char *key, const char *file);
mhla_status mhla_json_get_object(const json_t **value, const json_t *object, const char *key, const char *file);
mhla_status mhla_json_get_array(const json_t **value, const json_t *object, const char *key, const char *file);
/* The position of the text in `names`, which ends with NULL; MHLA_EDATA with the nearest and all of them otherwise. */
mhla_status mhla_json_get_choice(int *value, const json_t *object, const char *key, const char *const *names,
                                 const char *file);
/* MHLA_EDATA naming the first key of the object that is not in `keys`, which ends with NULL, and the nearest one. */
mhla_status mhla_json_check_keys(const json_t *object, const char *const *keys, const char *file);

/* json_object_set_new and json_array_append_new for trees of many values: without memory (value is NULL then, too) the value is
 * left out and counted. Who builds a tree compares the count, which is per thread, with the one before. */
void mhla_json_put(json_t *object, const char *key, json_t *value);
void mhla_json_add(json_t *array, json_t *value);
unsigned mhla_json_lost(void);

/* A number, or null for what JSON cannot say (NaN, infinity). A new reference. */
json_t *mhla_json_real(double x);
/* A float32 by its shortest decimal form (0.1, not 0.10000000149). A new reference. */
json_t *mhla_json_float(float x);
/* "an integer", "text", ...: what a value is, for messages. */
const char *mhla_json_type_text(const json_t *value);

/* ---- JSON lines ---- */

typedef struct mhla_jsonl {
    int fd;
    char path[4096];
} mhla_jsonl;

/* Opens for appending. A last line without its end, left by a killed writer, is cut off first. */
mhla_status mhla_jsonl_open(mhla_jsonl *log, const char *path);
/* One line, compact, keys in the order of insertion; written by one call, so that a kill tears no line but the last.
 * Takes the reference to `row`, also on failure; NULL counts as no memory. */
mhla_status mhla_jsonl_write(mhla_jsonl *log, json_t *row);
mhla_status mhla_jsonl_flush(const mhla_jsonl *log); /* its lines to the disk */
mhla_status mhla_jsonl_close(mhla_jsonl *log);       /* to the disk; harmless when repeated */

/* Hands each line's value to row(), which borrows it and returns a status, until one is not MHLA_OK. A last line that
 * is torn is passed over; any other that is no JSON is MHLA_EDATA with its number. */
mhla_status mhla_jsonl_read(const char *path, mhla_status (*row)(void *user, const json_t *value), void *user);
/* Cuts the file off before the first line that keep() does not want; the lines before it stay byte for byte. */
mhla_status mhla_jsonl_cut(const char *path, int (*keep)(const void *user, const json_t *value), const void *user);

#endif
