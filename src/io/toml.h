/* The part of TOML that recipes need: [tables], dotted bare keys, strings, integers, floats, booleans, arrays of those,
 * comments. All else (dates, tables inside values, arrays of tables, multi-line strings, ...) is refused with its line. */
#ifndef MHLA_IO_TOML_H
#define MHLA_IO_TOML_H

#include <jansson.h>
#include <mhla/mhla.h>
#include <stddef.h>

enum { MHLA_TOML_BYTES = 1 << 20, MHLA_TOML_KEY = 256 };

/* Calls set() for each key, in the order of the file, with its tables ("train.mixup.alpha") and its line; value is
 * borrowed. Stops at the first failure. A key that is there twice, or is both a value and a table, is refused. */
typedef mhla_status (*mhla_toml_fn)(void *user, const char *key, const json_t *value, int line);
mhla_status mhla_toml_parse(const char *text, size_t size, const char *name, mhla_toml_fn set, void *user);

#endif
