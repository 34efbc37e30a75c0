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
    int64_t window, bucket, batch, limit;
    int by_position, json;
    const mhla_context *context;
} eval_options;

enum { EVAL_STORAGES = 3 };
/* How matrices are kept, one after the other for "all"; NULL past the last. storage NULL: as the file has them. */
const char *eval_storage(const char *storage, int i);

/* Prints what is asked for; `model` is open, with the first storage, and is freed here. */
int eval_language(mhla_model *model, const eval_options *options);

void eval_progress(void *user, int64_t done, int64_t all);

#endif
