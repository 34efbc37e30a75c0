/* JSON on standard output, or into a file, as it is made: the verbs' results are a page at most, so no document is kept. */
#include <math.h>
#include <stdio.h>

#include "cli.h"

static int depth, first = 1;
static FILE *file; /* NULL: standard output */

void json_put_to(FILE *to) { file = to; }

#define OUT (file ? file : stdout)

/* Bytes of the character that p begins with; 0 if that is no UTF-8. */
static int character(const unsigned char *p) {
    const int c = p[0], n = c < 0x80 ? 1 : c < 0xc2 || c > 0xf4 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    /* longer than need be, half of a pair, beyond the last one */
    const int wrong = (c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) ||
                      (c == 0xf4 && p[1] > 0x8f);
    return wrong ? 0 : n;
}

/* Names of files may hold any bytes, JSON may not: what is no UTF-8 is written as U+FFFD. */
static void quoted(const char *text) {
    fputc('"', OUT);
    for (int n; *text; text += n ? n : 1) {
        const unsigned char c = (unsigned char)*text;
        n = character((const unsigned char *)text);
        if (n == 0)
            fprintf(OUT, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\')
            fprintf(OUT, "\\%c", c);
        else if (c < 0x20)
            fprintf(OUT, "\\u%04x", c);
        else
            fwrite(text, 1, (size_t)n, OUT);
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
