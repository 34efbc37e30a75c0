/* Settings as tables: one row per field of a structure feeds config.json, the settings of a command line, the `model.` keys of
 * a recipe, their help and their messages. Every architecture has one table. */
#ifndef MHLA_MODELS_SETTINGS_H
#define MHLA_MODELS_SETTINGS_H

#include <stddef.h>

#include "file/json.h"
#include "file/recipe.h"

/* TEXT is a char[MHLA_SETTING_CHARS], CHOICE an int that counts the row's choices, MIX an int that is a mhla_mix_init, GRID one
 * that is MHLA_GRID_*, INT3 is three ints, INT4 and REAL4 have a number for each of four stages, REAL3 is a double[3] of which as many count as the
 * structure has channels. OPTIONAL is an int whose 0 is null in config.json, where other programs may also say
 * "auto"; OPTIONAL_REAL the same of a double. LIST is an int[MHLA_SETTING_LIST_MOST] of positive numbers, ended by 0 where there are fewer. */
typedef enum mhla_setting_kind {
    MHLA_SETTING_TEXT,
    MHLA_SETTING_CHOICE,
    MHLA_SETTING_MIX,
    MHLA_SETTING_GRID,
    MHLA_SETTING_INT,
    MHLA_SETTING_OPTIONAL,
    MHLA_SETTING_INT2,
    MHLA_SETTING_INT3,
    MHLA_SETTING_INT4,
    MHLA_SETTING_LIST,
    MHLA_SETTING_REAL,
    MHLA_SETTING_OPTIONAL_REAL,
    MHLA_SETTING_REAL3,
    MHLA_SETTING_REAL4,
    MHLA_SETTING_BOOL
} mhla_setting_kind;
enum { MHLA_SETTING_CHARS = 32, MHLA_SETTING_LIST_MOST = 8 };

/* Everything but the attention the same for all attentions, or as published; config: structure. */
enum { MHLA_STRUCTURE_EQUAL, MHLA_STRUCTURE_RELEASED };

typedef struct mhla_setting {
    mhla_recipe_row row;
    mhla_setting_kind kind;
    size_t at; /* in the structure */
} mhla_setting;

typedef struct mhla_settings {
    const mhla_setting *fields;
    int count;
    size_t channels; /* where the structure has its int of channels */
} mhla_settings;

/* Fields first .. last-1 that `given`, a recipe with `prefix` before the names, has values of. */
mhla_status mhla_settings_take(void *config, const mhla_settings *table, int first, int last, const mhla_recipe *given,
                               const char *prefix);
/* The rows for a recipe, ended by an empty one: made once, kept as long as the program. NULL without memory. */
const mhla_recipe_row *mhla_settings_rows(const mhla_settings *table);
/* What config.json says, as a recipe of such rows; keys that are not the table's business are left out. */
mhla_status mhla_settings_parse(mhla_recipe **given, const mhla_recipe_row *rows, const json_t *tree, const char *path);
/* The same for a config.json that other programs write: fields from `first` on that the tree has and that are not null. Other keys are
 * none of the table's business; numbers may be written 1 or 1.0. MHLA_EDATA or, of a choice that is not known, MHLA_ENOTSUP. */
mhla_status mhla_settings_read(void *config, const mhla_settings *table, int first, const json_t *tree,
                               const char *path);
mhla_status mhla_settings_read_int(int *to, const json_t *tree, const char *name, double least, double most,
                                   const char *path);
mhla_status mhla_settings_read_real(double *to, const json_t *tree, const char *name, double least, double most,
                                    const char *path);
mhla_status mhla_settings_read_bool(int *to, const json_t *tree, const char *name, const char *path);
/* The field of a name, NULL if there is none. */
const mhla_setting *mhla_settings_find(const mhla_settings *table, const char *name);
/* An object with every field: a new reference, NULL without memory. */
json_t *mhla_settings_tree(const void *config, const mhla_settings *table);

#endif
