#include "text/clean.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/status.h"
#include "file/text.h"

/* Text in the making; characters are added at its end. */
typedef struct text {
    char *data;
    size_t count, room;
    int lost; /* memory */
} text;

static void put_bytes(text *t, const void *bytes, size_t n) {
    if (t->count + n + 1 > t->room) {
        const size_t room = 2 * (t->count + n) + 64;
        char *data = realloc(t->data, room);
        if (data == NULL) {
            t->lost = 1;
            return;
        }
        t->data = data;
        t->room = room;
    }
    memcpy(t->data + t->count, bytes, n);
    t->count += n;
    t->data[t->count] = '\0';
}

static void put(text *t, uint32_t code) {
    unsigned char bytes[4];
    put_bytes(t, bytes, (size_t)mhla_utf8_put(bytes, code));
}

static uint32_t next(const unsigned char **at) {
    utf8proc_int32_t code;
    *at += utf8proc_iterate(*at, -1, &code); /* the text was checked */
    return (uint32_t)code;
}

/* What Python's str.strip and its \s take for whitespace. */
static int is_blank(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 31) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
           category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

static mhla_status finish(char **to, text *t) {
    if (!t->lost && t->data == NULL) put_bytes(t, "", 0);
    *to = t->lost ? NULL : t->data;
    if (*to) return MHLA_OK;
    free(t->data);
    return mhla_fail(MHLA_ENOMEM, "no memory for a prompt");
}

static mhla_status check(const char *from) {
    const size_t n = strlen(from), broken = mhla_utf8_broken((const unsigned char *)from, n);
    if (broken == n) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "the prompt %s is not UTF-8 at byte %zu", MHLA_QUOTE(from), broken);
}

/* Without whitespace at the ends; `runs`: and every run of it one blank. */
static mhla_status strip(char **to, const char *from, int runs) {
    text t = {0};
    size_t end = 0; /* behind the last character that counts */
    for (const unsigned char *at = (const unsigned char *)from; *at;) {
        const uint32_t c = next(&at);
        if (!is_blank(c)) {
            put(&t, c);
            end = t.count;
        } else if (end > 0 && !(runs && t.count > end)) {
            put(&t, runs ? ' ' : c);
        }
    }
    if (t.data) t.data[end] = '\0';
    return finish(to, &t);
}

mhla_status mhla_clean_ends(char **to, const char *from) {
    *to = NULL;
    MHLA_TRY(check(from));
    return strip(to, from, 0);
}

mhla_status mhla_clean_lower(char **to, const char *from) {
    text t = {0};
    char *lower;
    *to = NULL;
    MHLA_TRY(check(from));
    for (const unsigned char *at = (const unsigned char *)from; *at;)
        put(&t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)next(&at)));
    MHLA_TRY(finish(&lower, &t));
    const mhla_status status = strip(to, lower, 0);
    free(lower);
    return status;
}

/* ---- Repair ---- */

static const struct {
    uint32_t code;
    const char *text;
} instead[] = {{0x2018, "'"},   {0x2019, "'"},  {0x201a, "'"},  {0x201b, "'"},  {0x201c, "\""}, {0x201d, "\""},
               {0x201e, "\""},  {0x201f, "\""}, {0xfb00, "ff"}, {0xfb01, "fi"}, {0xfb02, "fl"}, {0xfb03, "ffi"},
               {0xfb04, "ffl"}, {0xfb05, "ſt"}, {0xfb06, "st"}, {0x01c4, "DŽ"}, {0x01c5, "Dž"}, {0x01c6, "dž"},
               {0x01c7, "LJ"},  {0x01c8, "Lj"}, {0x01c9, "lj"}, {0x01ca, "NJ"}, {0x01cb, "Nj"}, {0x01cc, "nj"},
               {0x0132, "IJ"},  {0x0133, "ij"}, {0x0149, "ʼn"}, {0x3000, " "},  {0x2028, "\n"}, {0x2029, "\n"},
               {0x85, "…"},     {0xfeff, ""},   {'\r', "\n"}};
enum { INSTEAD = sizeof instead / sizeof *instead };

static int is_control(uint32_t c) {
    return (c < 32 && c != '\t' && c != '\n' && c != '\f' && c != '\r') || c == 0x7f || (c >= 0x206a && c <= 0x206f) ||
           (c >= 0xfff9 && c <= 0xfffb);
}

static void put_repaired(text *t, uint32_t c) {
    if (is_control(c)) return;
    for (int i = 0; i < INSTEAD; i++)
        if (instead[i].code == c) {
            put_bytes(t, instead[i].text, strlen(instead[i].text));
            return;
        }
    put(t, c >= 0xff01 && c <= 0xff5e ? c - 0xff01 + '!' : c);
}

static const struct {
    const char *name;
    uint32_t code;
} entities[] = {{"amp", '&'},     {"lt", '<'},        {"gt", '>'},       {"quot", '"'},     {"apos", '\''},
                {"nbsp", 0xa0},   {"copy", 0xa9},     {"reg", 0xae},     {"trade", 0x2122}, {"deg", 0xb0},
                {"middot", 0xb7}, {"hellip", 0x2026}, {"ndash", 0x2013}, {"mdash", 0x2014}, {"lsquo", '\''},
                {"rsquo", '\''},  {"ldquo", '"'},     {"rdquo", '"'},    {"laquo", 0xab},   {"raquo", 0xbb},
                {"times", 0xd7},  {"bull", 0x2022},   {"eacute", 0xe9},  {"euro", 0x20ac},  {"pound", 0xa3}};
enum { ENTITIES = sizeof entities / sizeof *entities };

/* The character of an entity at `at`, which begins with &, and its length; 0: there is none. */
static size_t entity_at(uint32_t *code, const char *at) {
    const char *end = strchr(at, ';');
    const size_t n = end ? (size_t)(end - at) : 0;
    if (n < 2 || n > 12) return 0;
    if (at[1] == '#') {
        const int hex = at[2] == 'x' || at[2] == 'X';
        char *stop;
        const unsigned long value = strtoul(at + (hex ? 3 : 2), &stop, hex ? 16 : 10);
        *code = (uint32_t)value;
        return stop == end && n > (hex ? 3u : 2u) && utf8proc_codepoint_valid((utf8proc_int32_t)*code) &&
                       value < 0x110000
                   ? n + 1
                   : 0;
    }
    for (int i = 0; i < ENTITIES; i++)
        if (strlen(entities[i].name) == n - 1 && memcmp(entities[i].name, at + 1, n - 1) == 0) {
            *code = entities[i].code;
            return n + 1;
        }
    return 0;
}

static mhla_status without_entities(char **to, const char *from) {
    text t = {0};
    while (*from) {
        uint32_t code = 0;
        const size_t n = *from == '&' ? entity_at(&code, from) : 0;
        if (n && code) put(&t, code);
        if (n == 0) put_bytes(&t, from, 1);
        from += n ? n : 1;
    }
    return finish(to, &t);
}

static mhla_status repaired(char **to, const char *from) {
    text t = {0};
    char *all = NULL;
    for (const unsigned char *at = (const unsigned char *)from; *at;) put_repaired(&t, next(&at));
    MHLA_TRY(finish(&all, &t));
    *to = (char *)utf8proc_NFC((const utf8proc_uint8_t *)all);
    free(all);
    return *to ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a prompt");
}

mhla_status mhla_clean_repair(char **to, const char *from) {
    char *once = NULL, *twice = NULL, *whole = NULL;
    *to = NULL;
    MHLA_TRY(check(from));
    mhla_status status = without_entities(&once, from);
    if (status == MHLA_OK) status = without_entities(&twice, once);
    if (status == MHLA_OK) status = repaired(&whole, twice);
    if (status == MHLA_OK) status = strip(to, whole, 1);
    free(once);
    free(twice);
    free(whole);
    return status;
}
