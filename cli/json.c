/* JSON on standard output, as it is made: the verbs' results are a page at most, so no document is kept. */
#include <math.h>
#include <stdio.h>

#include "cli.h"

static int depth, first = 1;

static void quoted(const char *text) {
    putchar('"');
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

/* What stands before any value: the comma, a new line for the upper two levels, the key. */
static void begin(const char *key) {
    if (!first) putchar(',');
    if (depth > 0 && depth <= 2)
        printf("\n%*s", 2 * depth, "");
    else if (!first)
        putchar(' ');
    first = 0;
    if (key) {
        quoted(key);
        printf(": ");
    }
}

void json_put_open(const char *key, char bracket) {
    begin(key);
    putchar(bracket);
    depth++;
    first = 1;
}

void json_put_close(char bracket) {
    depth--;
    if (depth < 2 && !first) printf("\n%*s", 2 * depth, "");
    putchar(bracket);
    first = 0;
    if (depth == 0) {
        putchar('\n');
        first = 1;
    }
}

void json_put_text(const char *key, const char *value) {
    begin(key);
    quoted(value);
}

void json_put_int(const char *key, int64_t value) {
    begin(key);
    printf("%lld", (long long)value);
}

void json_put_real(const char *key, double value) {
    begin(key);
    if (isfinite(value))
        printf("%.6g", value);
    else
        printf("null");
}

void json_put_bool(const char *key, int value) {
    begin(key);
    printf("%s", value ? "true" : "false");
}
