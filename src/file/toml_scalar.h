/* The words of TOML: characters, escapes, numbers, dates. They know nothing of lines and tables. */
#ifndef MHLA_FILE_TOML_SCALAR_H
#define MHLA_FILE_TOML_SCALAR_H

#include <stddef.h>

#include "file/toml.h"

typedef enum mhla_toml_answer { MHLA_TOML_FITS, MHLA_TOML_NO_VALUE, MHLA_TOML_TOO_LARGE } mhla_toml_answer;

int mhla_toml_is_bare(int c);    /* of a key without quotes */
int mhla_toml_is_control(int c); /* what neither strings nor comments may hold */

/* Behind a backslash: advances *at and returns how many bytes went to `to`, at most 4; 0 if TOML has no such escape. */
int mhla_toml_escape(const unsigned char **at, const unsigned char *end, unsigned char *to);

/* Bytes of the bare word that begins here; a date and a time with a blank between them are one. */
size_t mhla_toml_word(const unsigned char *at, const unsigned char *end);
/* A bare word into type, integer, real, text, size. `scratch` has room for size + 1 bytes and holds text afterwards. */
mhla_toml_answer mhla_toml_scalar(mhla_toml_node *node, const unsigned char *word, size_t size, char *scratch);

#endif
