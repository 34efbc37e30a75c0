/* Configs as tables: one row per field of a structure feeds config.json, the settings of a command line and the `model.` keys
 * of a recipe. Families of image models share this; their tables stand in config.c and dit_config.c. */
#ifndef MHLA_MODELS_FIELDS_H
#define MHLA_MODELS_FIELDS_H

#include <stddef.h>

#include "io/json.h"
#include "io/recipe.h"

/* TEXT is a char[MHLA_FIELD_CHARS], CHOICE an int that counts the row's choices, MIX an int that is a mhla_mix_init, REAL3 a
 * double[3] of which as many count as the structure has channels. */
typedef enum mhla_field_kind {
    MHLA_FIELD_TEXT,
    MHLA_FIELD_CHOICE,
    MHLA_FIELD_MIX,
    MHLA_FIELD_INT,
    MHLA_FIELD_INT2,
    MHLA_FIELD_REAL,
    MHLA_FIELD_REAL3,
    MHLA_FIELD_BOOL
} mhla_field_kind;
enum { MHLA_FIELD_CHARS = 32, MHLA_FIELDS = 64 };

typedef struct mhla_field {
    mhla_recipe_row row;
    mhla_field_kind kind;
    size_t at; /* in the structure */
} mhla_field;

typedef struct mhla_fields {
    const mhla_field *fields;
    int count;       /* at most MHLA_FIELDS */
    size_t channels; /* where the structure has its int of channels */
} mhla_fields;

/* Fields first .. last-1 that `given`, a recipe with `prefix` before the names, has values of. */
mhla_status mhla_fields_take(void *config, const mhla_fields *table, int first, int last, const mhla_recipe *given,
                             const char *prefix);
/* The rows for a recipe, ended by an empty one. */
void mhla_fields_rows(mhla_recipe_row rows[MHLA_FIELDS + 1], const mhla_fields *table);
/* What config.json says, as a recipe of such rows; keys that are not the table's business are left out. */
mhla_status mhla_fields_parse(mhla_recipe **given, const mhla_recipe_row *rows, const json_t *tree, const char *path);
/* An object with every field: a new reference, NULL without memory. */
json_t *mhla_fields_tree(const void *config, const mhla_fields *table);

#endif
