/* Everything that the program prints for people. A text that comes in by %s is foreign: the name of a file, of a class, of a
 * tensor, a message about them. What a terminal would obey, or what would deceive a reader, is shown instead: \n, \t, \r,
 * \x1b for bytes below 0x20, 0x7f and bytes that are no UTF-8, \u0085 and \u202e for C1 controls and for characters that are
 * not seen but turn or hide others. cli.h makes printf and fprintf of the verbs these functions. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

#undef printf
#undef fprintf

int text_character(const char *text, size_t bytes) {
    const unsigned char *p = (const unsigned char *)text;
    const int c = p[0], n = c < 0x80 ? 1 : c < 0xc2 || c > 0xf4 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if ((size_t)n > bytes) return 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    /* longer than need be, half of a pair, beyond the last one */
    const int wrong = (c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) ||
                      (c == 0xf4 && p[1] > 0x8f);
    return wrong ? 0 : n;
}

unsigned text_hidden(const char *text, int length) {
    static const unsigned ranges[][2] = {
        {0x00, 0x1f},     {0x7f, 0x9f},     {0x061c, 0x061c}, {0x180e, 0x180e}, {0x200b, 0x200b},   {0x200e, 0x200f},
        {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f},
    };
    const unsigned char *p = (const unsigned char *)text;
    unsigned code = length == 1 ? p[0] : p[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) code = code << 6 | (p[i] & 0x3fu);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1]) return code ? code : 0x110000; /* NUL is hidden, too */
    return 0;
}

/* `kept`: characters that are written as they are. */
static void put(FILE *to, const char *text, size_t bytes, const char *kept) {
    for (size_t i = 0, n; i < bytes; i += n) {
        const unsigned char c = (unsigned char)text[i];
        const int length = text_character(text + i, bytes - i);
        const unsigned code = length ? text_hidden(text + i, length) : 0;
        n = length ? (size_t)length : 1;
        if (length && (code == 0 || (c && strchr(kept, c))))
            fwrite(text + i, 1, n, to);
        else if (c == '\n' || c == '\t' || c == '\r')
            fprintf(to, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        else if (length < 2)
            fprintf(to, "\\x%02x", c);
        else
            fprintf(to, code > 0xffff ? "\\U%08x" : "\\u%04x", code);
    }
}

void text_put(FILE *to, const char *text, size_t bytes) { put(to, text, bytes, "\n\t"); }

void text_write(const char *text, size_t bytes) {
    if (isatty(STDOUT_FILENO))
        text_put(stdout, text, bytes);
    else if (bytes > 0) /* no bytes may come as NULL */
        fwrite(text, 1, bytes, stdout);
}

/* %s with its flags, width and precision. */
static void put_string(FILE *to, char spec[64], const char *text) {
    char *safe = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&safe, &size);
    if (memory == NULL) return;
    if (text == NULL) text = "(null)";
    const char *dot = strchr(spec, '.'); /* a text of %.*s may lack its end */
    put(memory, text, dot ? strnlen(text, strtoul(dot + 1, NULL, 10)) : strlen(text), "");
    if (fclose(memory) == 0) fprintf(to, strcat(spec, "s"), safe);
    free(safe);
}

/* Whole numbers become long long on the way: spec is without its letter then. */
static void put_number(FILE *to, char spec[64], const char *length, char kind, va_list *args) {
    const size_t n = strlen(spec);
    if (strchr("eEfFgG", kind)) {
        snprintf(spec + n, 64 - n, "%c", kind);
        fprintf(to, spec, va_arg(*args, double));
        return;
    }
    const int whole = kind != 'c', plain = kind == 'd' || kind == 'i' || kind == 'c';
    const long long value = strcmp(length, "ll") == 0  ? va_arg(*args, long long)
                            : strcmp(length, "l") == 0 ? va_arg(*args, long)
                            : *length == 'z'           ? (long long)va_arg(*args, size_t)
                            : plain                    ? va_arg(*args, int)
                                                       : (long long)va_arg(*args, unsigned);
    snprintf(spec + n, 64 - n, "%s%c", whole ? "ll" : "", kind);
    if (whole)
        fprintf(to, spec, value);
    else
        fprintf(to, spec, (int)value);
}

void text_vprint(FILE *to, const char *format, va_list *args) {
    for (const char *at = format; *at;) {
        const size_t plain = strcspn(at, "%");
        fwrite(at, 1, plain, to);
        at += plain;
        if (*at == '\0') break;
        if (at[1] == '%') {
            fputc('%', to);
            at += 2;
            continue;
        }
        char spec[64] = "%", length[3] = "";
        size_t n = 1;
        for (at++; *at && !isalpha((unsigned char)*at) && n < 40; at++)
            if (*at == '*')
                n += (size_t)snprintf(spec + n, sizeof spec - n, "%d", va_arg(*args, int));
            else
                spec[n++] = *at;
        for (int i = 0; i < 2 && *at && strchr("lzh", *at); i++) length[i] = *at++;
        if (*at == '\0') break;
        spec[n] = '\0';
        if (*at == 's')
            put_string(to, spec, va_arg(*args, const char *));
        else
            put_number(to, spec, length, *at, args);
        at++;
    }
}

int text_print(FILE *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    text_vprint(to, format, &args);
    va_end(args);
    return 0;
}
