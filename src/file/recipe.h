/* Recipes: settings by name, checked against a table of what there is. A recipe file is TOML 1.0 or JSON; flags of a
 * command line override it through the same table. Values end in one JSON tree, nested by the dots of their names.
 *
 *     static const mhla_recipe_row rows[] = {
 *         {"train.epochs", MHLA_RECIPE_INT, "300", 1, 1e6, NULL, "passes over the training images"},
 *         {"model.attention", MHLA_RECIPE_TEXT, "mhla", 0, 0, "mhla|softmax|linear", "which attention"},
 *         {0},
 *     };
 *     mhla_recipe_create(&r, rows); mhla_recipe_load(r, "deit.toml"); mhla_recipe_assign(r, "train.epochs=5");
 *     const int64_t epochs = mhla_recipe_int(r, "train.epochs"); */
#ifndef MHLA_FILE_RECIPE_H
#define MHLA_FILE_RECIPE_H

#include <jansson.h>
#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mhla_recipe_type {
    MHLA_RECIPE_BOOL,
    MHLA_RECIPE_INT,
    MHLA_RECIPE_REAL, /* an integer is one, too */
    MHLA_RECIPE_TEXT,
    MHLA_RECIPE_INTS, /* arrays of such; on a command line 1,2,3 */
    MHLA_RECIPE_REALS,
    MHLA_RECIPE_TEXTS
} mhla_recipe_type;

typedef struct mhla_recipe_row {
    const char *name; /* "train.epochs"; ends the table if NULL */
    mhla_recipe_type type;
    const char *fallback; /* as typed on a command line; NULL: no value unless given */
    double least, most;   /* of numbers, also of those in arrays; both 0: any finite one */
    const char *choices;  /* of texts: "mhla|softmax|linear"; NULL: any */
    const char *help;     /* one line */
} mhla_recipe_row;

typedef struct mhla_recipe mhla_recipe;

enum { MHLA_RECIPE_KEY = 64 }; /* bytes of the longest name in a table, with its prefix and its end */

/* All at their defaults. The table must outlive it; it is checked here, before anything is read by it. MHLA_EINVAL for a default
 * that does not fit its row, a name that is too long or in the table twice; MHLA_ENOMEM where rows is NULL: there was no memory
 * to make the table. */
mhla_status mhla_recipe_create(mhla_recipe **recipe, const mhla_recipe_row *rows);
void mhla_recipe_free(mhla_recipe *recipe);

/* Sets what the file says. *.json is JSON, all else TOML. MHLA_EDATA names file, line and column (TOML), key, and the nearest
 * right key, or the type expected and what was found; the recipe is then unchanged. */
mhla_status mhla_recipe_load(mhla_recipe *recipe, const char *path);
mhla_status mhla_recipe_parse(mhla_recipe *recipe, const char *text, size_t size, int json, const char *name);

/* Sets one value from a command line: "train.epochs=5"; or the key and the text. MHLA_EINVAL with such a sentence. */
mhla_status mhla_recipe_assign(mhla_recipe *recipe, const char *assignment);
mhla_status mhla_recipe_set(mhla_recipe *recipe, const char *key, const char *text);

/* The key must be in the table with that type. Without a value: 0, "", NULL (whose json_array_size is 0). */
int mhla_recipe_bool(const mhla_recipe *recipe, const char *key);
int64_t mhla_recipe_int(const mhla_recipe *recipe, const char *key);
double mhla_recipe_real(const mhla_recipe *recipe, const char *key);
const char *mhla_recipe_text(const mhla_recipe *recipe, const char *key); /* until the next change of the key */
const json_t *mhla_recipe_array(const mhla_recipe *recipe, const char *key);

/* Has it a value, default or not; and was it given by a file or a flag. */
int mhla_recipe_has(const mhla_recipe *recipe, const char *key);
int mhla_recipe_given(const mhla_recipe *recipe, const char *key);

/* All that have a value, as a nested object in the order of the table: what a run folder keeps, and what loads again.
 * A new reference, NULL without memory. */
json_t *mhla_recipe_tree(const mhla_recipe *recipe);
/* The row of a key, NULL if there is none; the nearest key to it, NULL if none is near. */
const mhla_recipe_row *mhla_recipe_find(const mhla_recipe *recipe, const char *key);
const char *mhla_recipe_nearest(const mhla_recipe *recipe, const char *key);
/* "an integer from 1 to 1000000", "one of mhla, softmax, linear": what a row takes, for messages and help. */
const char *mhla_recipe_expected(char *text, size_t size, const mhla_recipe_row *row);

#endif
