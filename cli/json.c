/* JSON on standard output, or into a file, as it is made: the verbs' results are a page at most, so no document is kept. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static int depth, first = 1, flat;
static FILE *file; /* NULL: standard output */

void json_put_to(FILE *to) { file = to; }

void json_put_flat(int on) { flat = on; }

#define OUT (file ? file : stdout)

/* Names of files may hold any bytes, JSON may not: what is no UTF-8 is written as U+FFFD. What a terminal would obey is
 * escaped, as text_print does it. */
void json_put_quoted(FILE *to, const char *text, size_t bytes) {
    fputc('"', to);
    for (size_t i = 0, n; i < bytes; i += n) {
        const int length = text_character(text + i, bytes - i);
        const unsigned code = length ? text_hidden(text + i, length) : 0;
        n = length ? (size_t)length : 1;
        if (length == 0)
            fputs("\xef\xbf\xbd", to);
        else if (text[i] == '"' || text[i] == '\\')
            fprintf(to, "\\%c", text[i]);
        else if (code > 0x10ffff)
            fputs("\\u0000", to);
        else if (code > 0xffff)
            fprintf(to, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
        else if (code)
            fprintf(to, "\\u%04x", code);
        else
            fwrite(text + i, 1, n, to);
    }
    fputc('"', to);
}

static void quoted(const char *text) { json_put_quoted(OUT, text, strlen(text)); }

/* What stands before any value: the comma, a new line for the upper two levels, the key. */
static void begin(const char *key) {
    if (!first) fputc(',', OUT);
    if (depth > 0 && depth <= 2 && !flat)
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
    if (depth < 2 && !first && !flat) fprintf(OUT, "\n%*s", 2 * depth, "");
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
