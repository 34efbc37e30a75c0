/* The set `text`: English prose and dictionaries out of Debian's packages. Bibles and commentaries are SWORD modules (blocks of
 * OSIS XML, compressed by zlib), dictionaries are dictd's (gzip). Markup is stripped, chapters and stretches of a dictionary
 * become documents, and of those a fixed fiftieth is for validation: chosen by the chapter's name, so that no chapter is
 * for training in one translation and for validation in another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "core/status.h"
#include "data/data_impl.h"
#include "file/file.h"
#include "file/text.h"

/* ---- Text that grows ---------------------------------------------------------------------------------------------------- */

typedef struct chars {
    char *data;
    size_t count, room;
    int failed;
} chars;

static void add(chars *c, const char *bytes, size_t n) {
    if (n == 0) return; /* nothing may come as NULL */
    if (c->room - c->count < n) {
        const size_t room = 2 * c->room + n + 4096;
        char *data = realloc(c->data, room);
        if (data == NULL) {
            c->failed = 1;
            return;
        }
        c->data = data;
        c->room = room;
    }
    memcpy(c->data + c->count, bytes, n);
    c->count += n;
}

/* Both halves of the set, a document at a time; the name of one decides where it goes. */
typedef struct halves {
    chars half[2]; /* training, validation */
    chars text;    /* the document in the making */
    char name[64];
} halves;

enum { SHARE = 50 }; /* one of so many documents is for validation */

static int for_validation(const char *name) {
    uint32_t h = 2166136261u; /* FNV-1a, then mixed: its low bits alone are weak */
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    return h % SHARE == 0;
}

static void trim(chars *c) {
    while (c->count > 0 && (c->data[c->count - 1] == ' ' || c->data[c->count - 1] == '\n')) c->count--;
}

static void end_document(halves *h) {
    trim(&h->text);
    if (h->text.count > 0) {
        chars *to = &h->half[for_validation(h->name)];
        if (to->count > 0) add(to, "\f\n", 2);
        add(to, h->text.data, h->text.count);
        add(to, "\n", 1);
    }
    h->text.count = 0;
}

/* ---- OSIS ------------------------------------------------------------------------------------------------------------------ */

/* The value of an attribute of the tag at [tag, end), copied; "" if it has none. */
static void attribute(char *value, size_t size, const char *tag, const char *end, const char *name) {
    const size_t n = strlen(name);
    *value = '\0';
    for (const char *at = tag; (size_t)(end - at) > n + 2; at++) {
        if (at[0] != ' ' || strncmp(at + 1, name, n) != 0 || at[n + 1] != '=' || at[n + 2] != '"') continue;
        const char *from = at + n + 3, *to = memchr(from, '"', (size_t)(end - from));
        if (to && (size_t)(to - from) < size) {
            memcpy(value, from, (size_t)(to - from));
            value[to - from] = '\0';
        }
        return;
    }
}

static int is_tag(const char *tag, const char *end, const char *name) {
    const size_t n = strlen(name);
    return (size_t)(end - tag) >= n && strncmp(tag, name, n) == 0 &&
           (tag + n == end || tag[n] == ' ' || tag[n] == '/' || tag[n] == '>');
}

static void new_line(chars *c) {
    trim(c);
    if (c->count > 0) add(c, "\n", 1);
}

/* One character of text; white space becomes one space, and none at the start of a line. */
static void add_text(chars *c, char x) {
    if (x == '\n' || x == '\r' || x == '\t') x = ' ';
    if (x == ' ' && (c->count == 0 || c->data[c->count - 1] == ' ' || c->data[c->count - 1] == '\n')) return;
    add(c, &x, 1);
}

static const char *add_entity(chars *c, const char *at, const char *end) {
    static const struct {
        const char *name;
        char is;
    } known[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (int i = 0; i < 5; i++) {
        const size_t n = strlen(known[i].name);
        if ((size_t)(end - at) >= n && strncmp(at, known[i].name, n) == 0) {
            add_text(c, known[i].is);
            return at + n;
        }
    }
    add_text(c, '&');
    return at + 1;
}

/* What a tag does to the text: notes are left out, paragraphs and titles are lines, a chapter is a document. A book's title
 * goes with its first chapter. *skipped counts the notes that are open. */
static void see_tag(halves *h, const char *tag, const char *end, int *skipped) {
    static const char *const lines[] = {"title", "/title", "l", "/l", "lg", "/lg", "item", "/item", "lb", "p", "/p"};
    enum { HEADING = 300 }; /* bytes; what is longer is a text of its own, as a preface is */
    char name[48], type[24];
    const int closed = end > tag && end[-1] == '/';
    if (is_tag(tag, end, "note")) *skipped += !closed;
    if (is_tag(tag, end, "/note") && *skipped > 0) --*skipped;
    if (is_tag(tag, end, "chapter")) {
        attribute(name, sizeof name, tag, end, "osisID");
        if (*name == '\0') return;
        if (h->text.count > HEADING || strchr(h->name, '.')) end_document(h);
        snprintf(h->name, sizeof h->name, "%s", name);
    } else if (is_tag(tag, end, "div")) {
        attribute(type, sizeof type, tag, end, "type");
        if (strcmp(type, "book") == 0) {
            attribute(name, sizeof name, tag, end, "osisID");
            if (*name) {
                end_document(h);
                snprintf(h->name, sizeof h->name, "%s", name);
            }
        }
        if (strcmp(type, "x-p") == 0) new_line(&h->text);
    } else {
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            if (is_tag(tag, end, lines[i])) new_line(&h->text);
    }
}

static void strip(halves *h, const char *text, size_t size) {
    const char *end = text + size;
    int skipped = 0;
    for (const char *at = text; at < end;) {
        if (*at == '<') {
            const char *stop = memchr(at, '>', (size_t)(end - at));
            if (stop == NULL) return;
            see_tag(h, at + 1, stop, &skipped);
            at = stop + 1;
        } else if (skipped) {
            at++;
        } else if (*at == '&') {
            at = add_entity(&h->text, at, end);
        } else {
            add_text(&h->text, *at++);
        }
    }
}

/* ---- SWORD modules: .?zs has (offset, size, length) of each block of .?zz ----------------------------------------------------- */

static uint32_t word(const unsigned char *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static mhla_status read_block(chars *book, const mhla_file *data, const unsigned char *row, const char *path) {
    enum { MOST = 64 << 20 };
    const uint32_t offset = word(row), size = word(row + 4), length = word(row + 8);
    if (size == 0) return MHLA_OK;
    if (offset > data->size || size > data->size - offset || length > MOST)
        return mhla_fail(MHLA_EDATA, "%s: a block of %u bytes at %u, which becomes %u", path, size, offset, length);
    char *out = malloc((size_t)length + 1);
    uLongf got = length;
    if (out == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for %u bytes", path, length);
    const int code = uncompress((Bytef *)out, &got, data->data + offset, size);
    if (code == Z_OK) add(book, out, got);
    free(out);
    if (code == Z_OK) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: the block at byte %u does not unpack: %s", path, offset, zError(code));
}

static mhla_status read_module(halves *h, const char *root, const char *module, char kind) {
    for (int testament = 0; testament < 2; testament++) {
        char index_path[4096], path[4096];
        const char *name = testament ? "nt" : "ot";
        mhla_file index = {0}, data = {0};
        chars book = {0};
        if (snprintf(path, sizeof path, "%s/usr/share/sword/modules/%s/%s.%czz", root, module, name, kind) >=
            (int)sizeof path)
            return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", root);
        snprintf(index_path, sizeof index_path, "%.*ss", (int)strlen(path) - 1, path);
        mhla_status status = mhla_file_map(&index, index_path);
        if (status == MHLA_OK) status = mhla_file_map(&data, path);
        for (size_t at = 0; at + 12 <= index.size && status == MHLA_OK; at += 12)
            status = read_block(&book, &data, index.data + at, path);
        if (status == MHLA_OK) strip(h, book.data ? book.data : "", book.count);
        end_document(h);
        mhla_file_unmap(&index);
        mhla_file_unmap(&data);
        if (status == MHLA_OK && book.failed) status = mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", path);
        free(book.data);
        MHLA_TRY(status);
    }
    return MHLA_OK;
}

/* ---- dictd: gzip; the index tells where the entry about the dictionary itself ends ------------------------------------------- */

static mhla_status unpack(chars *text, const char *path) {
    int fd;
    MHLA_TRY(mhla_file_open(&fd, NULL, path));
    gzFile f = gzdopen(fd, "rb");
    if (f == NULL) {
        close(fd);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for unpacking it", path);
    }
    char piece[65536];
    int n;
    while ((n = gzread(f, piece, sizeof piece)) > 0 && text->count < (size_t)256 << 20) add(text, piece, (size_t)n);
    int code;
    const char *why = gzerror(f, &code);
    mhla_status status = MHLA_OK;
    if (n < 0) status = mhla_fail(MHLA_EDATA, "%s: does not unpack: %s", path, why);
    gzclose(f);
    if (status == MHLA_OK && text->failed) status = mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", path);
    return status;
}

static size_t number(const char *at, const char *end) { /* digits of base 64 */
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    for (; at < end && *at && strchr(digits, *at); at++) n = n * 64 + (size_t)(strchr(digits, *at) - digits);
    return n;
}

/* Where the words begin: behind the entry 00-database-info. */
static size_t words_begin(const mhla_file *index) {
    const char *at = (const char *)index->data, *end = at + index->size;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        const char *tab = memchr(at, '\t', (size_t)(stop - at));
        const char *second = tab ? memchr(tab + 1, '\t', (size_t)(stop - tab - 1)) : NULL;
        if (second && ((tab - at == 16 && strncmp(at, "00-database-info", 16) == 0) ||
                       (tab - at == 14 && strncmp(at, "00databaseinfo", 14) == 0)))
            return number(tab + 1, second) + number(second + 1, stop);
        at = stop + 1;
    }
    return 0;
}

/* "[1913 Webster]", "[WordNet 1.5 +PJC]": where GCIDE has an entry from. The bytes of it at `at`, or 0. */
static size_t source_mark(const char *at, const char *end) {
    static const char *const marks[] = {"1913 Webster", "Webster 1913", "WordNet", "PJC"};
    if (*at != '[') return 0;
    const size_t left = (size_t)(end - at) < 48 ? (size_t)(end - at) : 48;
    const char *stop = memchr(at, ']', left);
    for (int i = 0; i < 4 && stop; i++)
        if ((size_t)(stop - at) > strlen(marks[i]) && strncmp(at + 1, marks[i], strlen(marks[i])) == 0)
            return (size_t)(stop - at) + 1;
    return 0;
}

/* Lines without marks of the source; several empty ones become one. A line that is not indented, after an empty one, begins
 * an entry; there a document may end. */
static void read_words(halves *h, const char *text, size_t size, const char *name) {
    enum { STRETCH = 8192 }; /* bytes of a document, at least */
    const char *end = text + size;
    int stretch = 0, empty = 1;
    snprintf(h->name, sizeof h->name, "%s/0", name);
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (stop == NULL) stop = end;
        if (empty && *text != ' ' && h->text.count >= STRETCH) {
            end_document(h);
            snprintf(h->name, sizeof h->name, "%s/%d", name, ++stretch);
        }
        const size_t before = h->text.count;
        for (const char *at = text; at < stop;) {
            const size_t mark = source_mark(at, stop);
            const int n = mark ? 0 : mhla_utf8_length((const unsigned char *)at, (size_t)(stop - at));
            if (mark == 0) add(&h->text, n ? at : "?", n ? (size_t)n : 1); /* three bytes of GCIDE are no UTF-8 */
            at += mark ? mark : n ? (size_t)n : 1;
        }
        while (h->text.count > before && h->text.data[h->text.count - 1] == ' ') h->text.count--;
        const int now_empty = h->text.count == before;
        if (!now_empty || (!empty && h->text.count > 0)) add(&h->text, "\n", 1);
        if (now_empty && stop > text && *text == ' ' && !empty)
            h->text.count--; /* held a mark only: no line at all */
        else
            empty = now_empty;
        text = stop + 1;
    }
    end_document(h);
}

static mhla_status read_dictionary(halves *h, const char *root, const char *name) {
    char path[4096];
    mhla_file index = {0};
    chars text = {0};
    if (snprintf(path, sizeof path, "%s/usr/share/dictd/%s.index", root, name) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", root);
    MHLA_TRY(mhla_file_map(&index, path));
    snprintf(path, sizeof path, "%s/usr/share/dictd/%s.dict.dz", root, name);
    const mhla_status status = unpack(&text, path);
    const size_t begin = words_begin(&index);
    if (status == MHLA_OK && begin < text.count) read_words(h, text.data + begin, text.count - begin, name);
    free(text.data);
    mhla_file_unmap(&index);
    return status;
}

/* ---- The set ---------------------------------------------------------------------------------------------------------------- */

static mhla_status make_text(const mhla_data_set *set, const char *source, const char *folder) {
    static const struct {
        const char *path;
        char kind; /* b: blocks are books, c: chapters */
    } modules[] = {{"texts/ztext/engKJV2006eb", 'b'},
                   {"texts/ztext/engWEB2015eb", 'b'},
                   {"comments/zcom/tdavid", 'c'},
                   {"comments/zcom/mhcc", 'b'},
                   {"comments/zcom/scofield", 'b'}};
    static const char *const dictionaries[] = {"jargon", "devil", "gcide"};
    halves h = {0};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < 5 && status == MHLA_OK; i++) status = read_module(&h, source, modules[i].path, modules[i].kind);
    for (int i = 0; i < 3 && status == MHLA_OK; i++) status = read_dictionary(&h, source, dictionaries[i]);
    if (status == MHLA_OK && (h.text.failed || h.half[0].failed || h.half[1].failed))
        status = mhla_fail(MHLA_ENOMEM, "no memory for the text");
    for (int i = 0; i < 2 && status == MHLA_OK; i++)
        status = mhla_data_write_part(&set->parts[i], folder, h.half[i].data, h.half[i].count);
    free(h.half[0].data);
    free(h.half[1].data);
    free(h.text.data);
    return status;
}

const mhla_data_set mhla_data_text = {
    .info = {.name = "text",
             .folder = "data/text",
             .title = "63 MB of English: two Bibles, three commentaries, three dictionaries; a fiftieth for validation",
             .origin = "Debian's packages sword-text-kjv, sword-text-web, sword-comm-tdavid, sword-comm-mhcc, "
                       "sword-comm-scofield, dict-jargon, dict-devil, dict-gcide (27 MB)",
             .licence = "public domain; dict-gcide: GPL-2+ (the text of Webster's of 1913 is in the public domain)",
             .by_hand = "fetch these packages of Debian 12, unpack each with `dpkg -x "
                        "PACKAGE FOLDER`, then `mhla data text --from FOLDER`"},
    .parts = {{"train.txt", 61701909, "c1b6ed7cc019f1ad47b0ae1ee97c2dd9013ba86d8a40e94ab3078567f2c02300"},
              {"validation.txt", 1225681, "d8f9fe37f901b9181502405fcb64f37a960eddaf79ddf01c0ad6e5ec35e3e4eb"}},
    .readme =
        "English text for training language models: train.txt and validation.txt, documents separated by a line that\n"
        "holds a form feed. Made by `mhla data text` of packages of Debian 12, markup stripped:\n\n"
        "  sword-text-kjv       King James Version of the Bible               public domain\n"
        "  sword-text-web       World English Bible                           public domain\n"
        "  sword-comm-tdavid    Spurgeon, The Treasury of David               public domain\n"
        "  sword-comm-mhcc      Matthew Henry's Concise Commentary            public domain\n"
        "  sword-comm-scofield  Scofield Reference Notes, 1917                public domain\n"
        "  dict-jargon          The Jargon File 4.4.7                         public domain\n"
        "  dict-devil           Bierce, The Devil's Dictionary                public domain\n"
        "  dict-gcide           The Collaborative International Dictionary of English 0.48: Webster's of 1913, with\n"
        "                       additions; GNU GPL, version 2 or later\n\n"
        "A document is a chapter of a Bible or of a commentary, or 8 KB of entries of a dictionary. Which are for\n"
        "validation, a fiftieth, follows from their names: a chapter is so in all Bibles and commentaries, or in "
        "none.\n",
    .make = make_text,
};
