#include "file/toml_scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/text.h"

static int is_digit(int c) { return c >= '0' && c <= '9'; }
static int is_letter(int c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
int mhla_toml_is_bare(int c) { return is_digit(c) || is_letter(c) || c == '_' || c == '-'; }
int mhla_toml_is_control(int c) { return (c < 0x20 && c != '\t') || c == 0x7f; }

/* 0 to base - 1, or -1 */
static int digit_of(int c, int base) {
    const int d = is_digit(c) ? c - '0' : is_letter(c) ? (c | 32) - 'a' + 10 : 99;
    return d < base ? d : -1;
}

int mhla_toml_escape(const unsigned char **at, const unsigned char *end, unsigned char *to) {
    static const char letters[] = "btnfr\"\\", meanings[] = "\b\t\n\f\r\"\\";
    if (*at == end || **at == '\0') return 0;
    const int c = *(*at)++;
    const char *letter = strchr(letters, c);
    if (letter) {
        to[0] = (unsigned char)meanings[letter - letters];
        return 1;
    }
    uint32_t code = 0;
    const int count = c == 'u' ? 4 : c == 'U' ? 8 : 0;
    for (int i = 0; i < count; i++, ++*at) {
        const int d = *at < end ? digit_of(**at, 16) : -1;
        if (d < 0) return 0;
        code = code * 16 + (uint32_t)d;
    }
    if (count == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    return mhla_utf8_put(to, code);
}

/* ---- Dates ---- */

/* Digits as `form` has them ('d' is one, all else itself), of the bytes at *at; the numbers go to `numbers`. */
static int take(const char **at, const char *form, int *numbers) {
    const char *s = *at;
    int number = 0;
    for (; *form; form++, s++) {
        if (*form == 'd' ? !is_digit(*s) : *form != *s) return 0;
        number = *form == 'd' ? number * 10 + (*s - '0') : 0;
        if (*form == 'd' && form[1] != 'd') *numbers++ = number;
    }
    *at = s;
    return 1;
}

static int is_day(const int date[3]) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const int y = date[0], m = date[1];
    if (m < 1 || m > 12) return 0;
    const int leap = m == 2 && y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    return date[2] >= 1 && date[2] <= days[m - 1] + leap;
}

/* hh:mm:ss[.f]; a minute may have a leap second */
static int take_time(const char **at) {
    int time[3];
    if (!take(at, "dd:dd:dd", time) || time[0] > 23 || time[1] > 59 || time[2] > 60) return 0;
    if (**at != '.') return 1;
    ++*at;
    if (!is_digit(**at)) return 0;
    while (is_digit(**at)) ++*at;
    return 1;
}

/* `text` ends with a NUL and is written as RFC 3339 has it, with T and Z. */
static int is_date(mhla_toml_type *type, char *text) {
    const char *at = text;
    int date[3], offset[2];
    if (take(&at, "dddd-dd-dd", date)) {
        if (!is_day(date)) return 0;
        *type = MHLA_TOML_DATE_LOCAL;
        if (*at == '\0') return 1;
        if (*at != 'T' && *at != 't' && *at != ' ') return 0;
        text[at++ - text] = 'T';
        if (!take_time(&at)) return 0;
        *type = *at ? MHLA_TOML_DATETIME : MHLA_TOML_DATETIME_LOCAL;
        if (*at == '\0') return 1;
        if ((*at == 'Z' || *at == 'z') && at[1] == '\0') {
            text[at - text] = 'Z';
            return 1;
        }
        return (take(&at, "+dd:dd", offset) || take(&at, "-dd:dd", offset)) && *at == '\0' && offset[0] <= 23 &&
               offset[1] <= 59;
    }
    *type = MHLA_TOML_TIME_LOCAL;
    return take_time(&at) && *at == '\0';
}

static size_t word(const unsigned char *at, const unsigned char *end) {
    size_t n = 0;
    const size_t size = (size_t)(end - at);
    while (n < size && (mhla_toml_is_bare(at[n]) || at[n] == '+' || at[n] == '.' || at[n] == ':')) n++;
    return n;
}

/* A date may have a space before its time. */
size_t mhla_toml_word(const unsigned char *at, const unsigned char *end) {
    const size_t n = word(at, end), size = (size_t)(end - at);
    const int more = n == 10 && at[4] == '-' && n + 1 < size && at[n] == ' ' && is_digit(at[n + 1]);
    return more ? n + 1 + word(at + n + 1, end) : n;
}

/* ---- Numbers ---- */

/* Digits with single underscores between them, which are left out of the copy; returns how many, 0 if there is none or they are wrong. */
static size_t copy_digits(char **to, const char **at, int base) {
    const char *s = *at;
    size_t n = 0;
    for (; digit_of(*s, base) >= 0; s++) {
        *(*to)++ = *s;
        n++;
        if (s[1] == '_' && digit_of(s[2], base) >= 0) s++;
    }
    *at = s;
    return n;
}

static mhla_toml_answer whole(mhla_toml_node *node, const char *digits, int base, int negative) {
    uint64_t x = 0;
    const uint64_t most = (uint64_t)INT64_MAX + (uint64_t)negative;
    for (; *digits; digits++) {
        const uint64_t d = (uint64_t)digit_of(*digits, base), b = (uint64_t)base;
        if (x > (most - d) / b) return MHLA_TOML_TOO_LARGE;
        x = x * b + d;
    }
    node->type = MHLA_TOML_INTEGER;
    node->integer = negative ? (int64_t)(0 - x) : (int64_t)x;
    return MHLA_TOML_FITS;
}

/* `text` ends with a NUL; its digits are moved to its front on the way. */
static mhla_toml_answer number(mhla_toml_node *node, char *text) {
    const char *at = text, *begin;
    char *to = text;
    const int sign = *at == '+' || *at == '-', negative = *at == '-';
    const int base = at[0] != '0' ? 10 : at[1] == 'x' ? 16 : at[1] == 'o' ? 8 : at[1] == 'b' ? 2 : 10;
    if (base != 10) {
        at += 2;
        if (!copy_digits(&to, &at, base) || *at) return MHLA_TOML_NO_VALUE;
        *to = '\0';
        return whole(node, text, base, 0);
    }
    at += sign, to += sign;
    begin = to;
    if (strcmp(at, "inf") == 0 || strcmp(at, "nan") == 0) {
        node->type = MHLA_TOML_FLOAT;
        node->real = *at == 'n' ? (double)NAN : negative ? -(double)INFINITY : (double)INFINITY;
        return MHLA_TOML_FITS;
    }
    const size_t digits = copy_digits(&to, &at, 10);
    if (digits == 0 || (digits > 1 && *begin == '0')) return MHLA_TOML_NO_VALUE;
    if (*at == '\0') {
        *to = '\0';
        return whole(node, begin, 10, negative);
    }
    if (*at == '.') {
        *to++ = *at++;
        if (!copy_digits(&to, &at, 10)) return MHLA_TOML_NO_VALUE;
    }
    if (*at == 'e' || *at == 'E') {
        *to++ = *at++;
        if (*at == '+' || *at == '-') *to++ = *at++;
        if (!copy_digits(&to, &at, 10)) return MHLA_TOML_NO_VALUE;
    }
    if (*at) return MHLA_TOML_NO_VALUE;
    *to = '\0';
    node->type = MHLA_TOML_FLOAT;
    node->real = strtod(text, NULL);
    return isfinite(node->real) ? MHLA_TOML_FITS : MHLA_TOML_TOO_LARGE;
}

mhla_toml_answer mhla_toml_scalar(mhla_toml_node *node, const unsigned char *word, size_t size, char *scratch) {
    memcpy(scratch, word, size);
    scratch[size] = '\0';
    if (strcmp(scratch, "true") == 0 || strcmp(scratch, "false") == 0) {
        node->type = MHLA_TOML_BOOL;
        node->integer = *scratch == 't';
        return MHLA_TOML_FITS;
    }
    if (size < 3 || (scratch[2] != ':' && (size < 5 || scratch[4] != '-'))) return number(node, scratch);
    if (is_date(&node->type, scratch)) {
        node->text = scratch, node->size = size;
        return MHLA_TOML_FITS;
    }
    node->type = MHLA_TOML_STRING; /* such as 1.5e-3 */
    return number(node, scratch);
}
