/* TOML 1.0, all of it: a text becomes a tree of nodes. Refused with line and column is what the specification refuses,
 * a number beyond 64 bits, and what goes beyond the limits below. */
#ifndef MHLA_FILE_TOML_H
#define MHLA_FILE_TOML_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

enum { MHLA_TOML_BYTES = 1 << 20, MHLA_TOML_DEPTH = 64, MHLA_TOML_NODES = 65536 };

typedef enum mhla_toml_type {
    MHLA_TOML_TABLE,
    MHLA_TOML_ARRAY,
    MHLA_TOML_STRING,
    MHLA_TOML_INTEGER,
    MHLA_TOML_FLOAT,
    MHLA_TOML_BOOL,
    MHLA_TOML_DATETIME, /* with an offset from UTC */
    MHLA_TOML_DATETIME_LOCAL,
    MHLA_TOML_DATE_LOCAL,
    MHLA_TOML_TIME_LOCAL
} mhla_toml_type;

typedef struct mhla_toml_node mhla_toml_node;
struct mhla_toml_node {
    mhla_toml_type type;
    const char *key; /* in its table, which may hold any character; NULL in an array and at the root */
    size_t key_size;
    const char *text; /* a string, which may hold any character; a date as "1979-05-27T07:32:00.5Z" */
    size_t size;
    int64_t integer;                    /* also of a boolean */
    double real;                        /* of a float, which may be infinite or NaN */
    const mhla_toml_node *first, *next; /* members in the order of the file */
    size_t key_place, place;            /* bytes of the text before the key, before the value */

    mhla_toml_node *parent, *last, *in_bucket, *before; /* for the parser only, as is the rest */
    int depth, made;
};

typedef struct mhla_toml mhla_toml;

/* `name` stands in messages: "name:line:column: ...". */
mhla_status mhla_toml_parse(mhla_toml **document, const char *text, size_t size, const char *name);
const mhla_toml_node *mhla_toml_root(const mhla_toml *document); /* a table; lives as long as the document */
void mhla_toml_free(mhla_toml *document);
/* A member of a table; NULL if it has none, or is not a table. Then its text; NULL if it is not a string. */
const mhla_toml_node *mhla_toml_find(const mhla_toml_node *table, const char *key);
const char *mhla_toml_text(const mhla_toml_node *node);

/* Line and column, both from 1, columns in characters, of a place in a text. */
void mhla_toml_where(int *line, int *column, const char *text, size_t place);

#endif
