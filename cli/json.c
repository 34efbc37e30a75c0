/* JSON on standard output, or into a file, as it is made: the verbs' results are a page at most, so no document is kept. */
#include <math.h>
#include <stdio.h>

#include "cli.h"

static int depth, first = 1;
static FILE *file; /* NULL: standard output */

void json_put_to(FILE *to) { file = to; }

#define OUT (file ? file : stdout)

static void quoted(const char *text) {
    fputc('"', OUT);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(OUT, "\\%c", c);
        else if (c < 0x20)
            fprintf(OUT, "\\u%04x", c);
        else
            fputc(c, OUT);
    }
    fputc('"', OUT);
}

/* What stands before any value: the comma, a new line for the upper two levels, the key. */
static void begin(const char *key) {
    if (!first) fputc(',', OUT);
    if (depth > 0 && depth <= 2)
        fprintf(OUT, "\n%*s", 2 * depth, "");
    else if (!first)
        fputc(' ', OUT);
    first = 0;
    if (key) {
        quoted(key);
        fprintf(OUT, ": ");
    }
}

void json_put_open(const char *key, char bracket) {
    begin(key);
    fputc(bracket, OUT);
    depth++;
    first = 1;
}

void json_put_close(char bracket) {
    depth--;
    if (depth < 2 && !first) fprintf(OUT, "\n%*s", 2 * depth, "");
    fputc(bracket, OUT);
    first = 0;
    if (depth == 0) {
        fputc('\n', OUT);
        first = 1;
    }
}

void json_put_text(const char *key, const char *value) {
    begin(key);
    quoted(value);
}

void json_put_int(const char *key, int64_t value) {
    begin(key);
    fprintf(OUT, "%lld", (long long)value);
}

void json_put_real(const char *key, double value) {
    begin(key);
    if (isfinite(value))
        fprintf(OUT, "%.6g", value);
    else
        fprintf(OUT, "null");
}

void json_put_bool(const char *key, int value) {
    begin(key);
    fprintf(OUT, "%s", value ? "true" : "false");
}
