/* What cmd_eval.c hands to the part that evaluates language models. */
#ifndef MHLA_CLI_EVAL_H
#define MHLA_CLI_EVAL_H

#include <mhla/lm.h>

#include "cli.h"

typedef struct eval_options {
    const char *path;        /* of the model */
    const char *const *data; /* [files] texts and folders of texts */
    int files;
    const char *choices, *samples, *storage, *beyond, *weights;
    const char *task;                         /* DATA are its files */
    const char *longbench, *lengths, *depths; /* a folder; lists of numbers */
    const char *out;                          /* of a page */
    int64_t window, bucket, batch, limit, max_tokens, repeats, seed;
    int by_position, json, needle;
    const mhla_context *context;
} eval_options;

enum { EVAL_STORAGES = 3 };
/* How matrices are kept, one after the other for "all"; NULL past the last. storage NULL: as the file has them. */
const char *eval_storage(const char *storage, int i);

/* Prints what is asked for; `model` is open, with the first storage, and is freed here. */
int eval_language(mhla_model *model, const eval_options *options);

/* The same of --longbench and of --needle; the model stays. */
int eval_longbench(mhla_model *model, const eval_options *options);
int eval_needle(mhla_model *model, const eval_options *options);

/* The policy that --beyond names; it has been checked. */
mhla_beyond eval_beyond(const eval_options *options);

/* "model  NAME: attention, N parameters, storage"; and the first fields of a JSON document, which is left open. */
mhla_status eval_print_model(const mhla_model *model, int json);

/* The file of --log-samples, opened before anything is computed; NULL and errno. What is in the file stays until
 * eval_samples_begin, which is called before each line. eval_samples_end: 0, or errno. */
FILE *eval_samples_open(const char *path);
void eval_samples_begin(FILE *file);
int eval_samples_end(FILE *file);

void eval_progress(void *user, int64_t done, int64_t all);

#endif
