#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "measure/longbench.h"

/* ---- Words ---- */

typedef struct word {
    const char *text;
    size_t size;
} word;

typedef struct words {
    word *list; /* [count] into `text` */
    int count;
    mhla_chars text;
} words;

static void words_free(words *w) {
    free(w->list);
    mhla_chars_free(&w->text);
}

static int by_text(const void *a, const void *b) {
    const word *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static int32_t next_code(const char **at) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)*at, -1, &code);
    *at += n > 0 ? n : 1;
    return n > 0 ? code : 0xfffd;
}

static int put_code(mhla_chars *text, int32_t code) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t n = utf8proc_encode_char(code, bytes);
    return mhla_chars_append(text, (const char *)bytes, (size_t)n) == MHLA_OK;
}

static int is_space(int32_t c) {
    char bytes[8] = "";
    const utf8proc_ssize_t n = utf8proc_encode_char(c, (utf8proc_uint8_t *)bytes);
    return mhla_text_stripped(bytes, (size_t)n) == 0;
}

static int is_mark(int32_t c) { /* Python's string.punctuation */
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/* Python's \w */
static int is_letter(int32_t c) {
    const int kind = utf8proc_category(c);
    return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) ||
           (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO);
}

/* Splits w->text at white space. 0: no memory. */
static int split(words *w) {
    if (mhla_chars_append(&w->text, "", 1) != MHLA_OK) return 0;
    w->list = calloc(w->text.count + 1, sizeof *w->list);
    if (w->list == NULL) return 0;
    const char *at = w->text.data, *begin = NULL;
    for (;;) {
        const char *here = at;
        const int end = *at == '\0', space = end || is_space(next_code(&at));
        if (space && begin) w->list[w->count++] = (word){begin, (size_t)(here - begin)};
        begin = space ? NULL : begin ? begin : here;
        if (end) return 1;
    }
}

/* A text in lower case without ASCII punctuation; articles become spaces. */
static int normalise(mhla_chars *out, const char *text) {
    static const char *const articles[] = {"a", "an", "the"};
    mhla_chars plain = {0};
    int ok = 1, before = 0;
    for (const char *at = text; *at && ok;) {
        const int32_t c = utf8proc_tolower(next_code(&at));
        if (!is_mark(c)) ok = put_code(&plain, c);
    }
    ok = ok && mhla_chars_append(&plain, "", 1) == MHLA_OK;
    for (const char *at = plain.data; ok && *at;) {
        size_t article = 0;
        for (int i = 0; i < 3 && !before; i++) {
            const size_t n = strlen(articles[i]);
            const char *behind = at + n;
            if (strncmp(at, articles[i], n) == 0 && !is_letter(*behind ? next_code(&behind) : ' ')) article = n;
        }
        if (article) {
            ok = mhla_chars_append(out, " ", 1) == MHLA_OK;
            at += article;
        } else {
            const int32_t c = next_code(&at);
            before = is_letter(c);
            ok = put_code(out, c);
        }
    }
    mhla_chars_free(&plain);
    return ok;
}

/* Every character apart; those that are no part of a word go, unless all are kept. */
static int characters(mhla_chars *out, const char *text, int all) {
    for (const char *at = text; *at;) {
        const int32_t c = next_code(&at);
        const int kind = utf8proc_category(c);
        const int mark = kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_SO;
        if (mark && !all) continue;
        if (!put_code(out, all ? c : utf8proc_tolower(c)) || !put_code(out, ' ')) return 0;
    }
    return 1;
}

/* ---- F1 ---- */

double mhla_score_f1(const char *answer, const char *wanted, int chinese) {
    words w[2] = {{0}};
    const char *const texts[2] = {answer, wanted};
    int ok = 1, same = 0;
    for (int i = 0; i < 2 && ok; i++) {
        ok = chinese ? characters(&w[i].text, texts[i], 0) : normalise(&w[i].text, texts[i]);
        ok = ok && split(&w[i]);
        if (ok && w[i].count > 1) qsort(w[i].list, (size_t)w[i].count, sizeof(word), by_text);
    }
    for (int i = 0, j = 0; ok && i < w[0].count && j < w[1].count;) {
        const int order = by_text(&w[0].list[i], &w[1].list[j]);
        same += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    const double f = same ? 2.0 * same / (w[0].count + w[1].count) : 0.0;
    words_free(&w[0]);
    words_free(&w[1]);
    return f;
}

/* ---- ROUGE-L ---- */

typedef struct summary {
    words words;
    int *ids;                   /* [words.count] the same number for the same word */
    int *begins;                /* [sentences + 1] */
    int sentences, ids_of_both; /* ids are below that */
} summary;

/* Words of each sentence; one of white space alone has one word, the empty one, as in Python "".split(" ") has. */
static int read_summary(summary *s, const char *text, int chinese) {
    mhla_chars apart = {0};
    words *w = &s->words;
    if (chinese && (!characters(&apart, text, 1) || mhla_chars_append(&apart, "", 1) != MHLA_OK)) return 0;
    const size_t n = chinese ? apart.count - 1 : strlen(text);
    int ok = mhla_chars_append(&w->text, chinese ? apart.data : text, n) == MHLA_OK &&
             mhla_chars_append(&w->text, "", 1) == MHLA_OK;
    mhla_chars_free(&apart);
    w->list = calloc(2 * n + 2, sizeof *w->list);
    s->begins = malloc((n + 2) * sizeof *s->begins);
    if (!ok || w->list == NULL || s->begins == NULL) return 0;
    for (const char *at = w->text.data; *at;) {
        const char *stop = at + strcspn(at, "."), *begin = NULL;
        const int first = w->count;
        if (stop > at) {
            s->begins[s->sentences++] = first;
            while (at < stop) {
                const char *here = at;
                const int space = is_space(next_code(&at));
                if (space && begin) w->list[w->count++] = (word){begin, (size_t)(here - begin)};
                begin = space ? NULL : begin ? begin : here;
            }
            if (begin) w->list[w->count++] = (word){begin, (size_t)(stop - begin)};
            if (w->count == first) w->list[w->count++] = (word){stop, 0};
        }
        at = *stop ? stop + 1 : stop;
    }
    s->begins[s->sentences] = w->count;
    return 1;
}

/* Gives equal words of both equal numbers. */
static int number_words(summary s[2]) {
    const int all = s[0].words.count + s[1].words.count;
    int unique = 0;
    if (s[0].words.count < 1 || s[1].words.count < 1) return 0; /* every sentence has a word */
    word *sorted = calloc((size_t)all, sizeof *sorted);
    if (sorted == NULL) return 0;
    for (int i = 0, n = 0; i < 2; i++)
        for (int k = 0; k < s[i].words.count; k++) sorted[n++] = s[i].words.list[k];
    qsort(sorted, (size_t)all, sizeof *sorted, by_text);
    for (int i = 0; i < all; i++)
        if (i == 0 || by_text(&sorted[unique - 1], &sorted[i]) != 0) sorted[unique++] = sorted[i];
    int ok = 1;
    for (int i = 0; i < 2; i++) {
        s[i].ids_of_both = unique;
        s[i].ids = calloc((size_t)s[i].words.count, sizeof *s[i].ids);
        ok = ok && s[i].ids;
        for (int k = 0; ok && k < s[i].words.count; k++) {
            const word *found = bsearch(&s[i].words.list[k], sorted, (size_t)unique, sizeof *sorted, by_text);
            s[i].ids[k] = (int)(found - sorted);
        }
    }
    free(sorted);
    return ok;
}

/* Marks in `seen` the words of a longest common subsequence of x [n] and y [m]; of several the one that `rouge` finds. */
static int mark_common(unsigned char *seen, const int *x, int n, const int *y, int m) {
    const size_t row = (size_t)m + 1;
    int *table = calloc(((size_t)n + 1) * row, sizeof *table);
    if (table == NULL) return 0;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            const int up = table[(size_t)(i - 1) * row + j], left = table[(size_t)i * row + j - 1];
            table[(size_t)i * row + j] = x[i - 1] == y[j - 1] ? table[(size_t)(i - 1) * row + j - 1] + 1
                                         : up > left          ? up
                                                              : left;
        }
    for (int i = n, j = m; i > 0 && j > 0;) {
        if (x[i - 1] == y[j - 1]) {
            seen[x[i - 1]] = 1;
            i--, j--;
        } else if (table[(size_t)(i - 1) * row + j] > table[(size_t)i * row + j - 1])
            i--;
        else
            j--;
    }
    free(table);
    return 1;
}

static int marked(const unsigned char *seen, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += seen[i];
    return count;
}

/* How many different words there are. */
static int different(const summary *s, unsigned char *seen) {
    memset(seen, 0, (size_t)s->ids_of_both);
    for (int i = 0; i < s->words.count; i++) seen[s->ids[i]] = 1;
    return marked(seen, s->ids_of_both);
}

double mhla_score_rouge(const char *answer, const char *wanted, int chinese) {
    summary s[2] = {{.ids = NULL}};
    double f = 0.0;
    int ok = read_summary(&s[0], answer, chinese) && read_summary(&s[1], wanted, chinese);
    ok = ok && s[0].sentences && s[1].sentences && number_words(s);
    unsigned char *seen = ok ? calloc((size_t)s[0].ids_of_both + 1, 1) : NULL;
    if (seen) {
        const double n = different(&s[0], seen), m = different(&s[1], seen);
        memset(seen, 0, (size_t)s[0].ids_of_both);
        for (int j = 0; j < s[1].sentences && ok; j++)
            for (int i = 0; i < s[0].sentences && ok; i++)
                ok = mark_common(seen, s[1].ids + s[1].begins[j], s[1].begins[j + 1] - s[1].begins[j],
                                 s[0].ids + s[0].begins[i], s[0].begins[i + 1] - s[0].begins[i]);
        const double common = marked(seen, s[0].ids_of_both), p = common / n, r = common / m;
        f = 2.0 * (p * r / (p + r + 1e-8));
    }
    free(seen);
    for (int i = 0; i < 2; i++) {
        words_free(&s[i].words);
        free(s[i].ids);
        free(s[i].begins);
    }
    return ok ? f : 0.0;
}

/* ---- Code ---- */

/* The first line that is neither blank nor a comment or a fence: its bytes, [*size]. */
static const char *code_line(const char *text, size_t *size) {
    for (const char *at = text;; at += *size + 1) {
        *size = strcspn(at, "\n");
        int bad = mhla_text_stripped(at, *size) == 0;
        for (size_t i = 0; i < *size; i++)
            bad |= at[i] == '`' || at[i] == '#' || (at[i] == '/' && i + 1 < *size && at[i + 1] == '/');
        if (!bad) return at;
        if (at[*size] == '\0') break;
    }
    *size = 0;
    return "";
}

static int32_t *codes_of(const char *text, size_t size, int64_t *count) {
    int32_t *codes = malloc((size + 1) * sizeof *codes);
    *count = 0;
    for (const char *at = text; codes && at < text + size;) codes[(*count)++] = next_code(&at);
    return codes;
}

double mhla_score_code(const char *answer, const char *wanted) {
    size_t size = 0;
    const char *line = code_line(answer, &size);
    int64_t n = 0, m = 0;
    if (strlen(wanted) == size && memcmp(line, wanted, size) == 0) return 1.0;
    int32_t *x = codes_of(line, size, &n), *y = codes_of(wanted, strlen(wanted), &m);
    int64_t *row = calloc((size_t)m + 1, sizeof *row);
    for (int64_t i = 0; x && y && row && i < n; i++)
        for (int64_t j = 1, corner = 0; j <= m; j++) { /* corner: one up and to the left */
            const int64_t up = row[j];
            row[j] = x[i] == y[j - 1] ? corner + 1 : up > row[j - 1] ? up : row[j - 1];
            corner = up;
        }
    const double ratio = row && n > 0 && m > 0 ? 2.0 * (double)row[m] / (double)(n + m) : 0.0;
    free(x);
    free(y);
    free(row);
    return nearbyint(100.0 * ratio) / 100.0;
}

/* ---- Numbers, classes ---- */

double mhla_score_number(const char *answer, const char *wanted, const char *mark) {
    static const char digits[] = "0123456789";
    const char *number = strstr(wanted, mark);
    if (number == NULL) return 0.0;
    number += strlen(mark);
    const size_t n = *mark ? strspn(number, digits) : strlen(number);
    int all = 0, right = 0;
    for (const char *at = answer + strcspn(answer, digits); *at; at += strcspn(at, digits)) {
        const size_t size = strspn(at, digits);
        all++;
        right += size == n && memcmp(at, number, n) == 0;
        at += size;
    }
    return all ? (double)right / all : 0.0;
}

double mhla_score_class(const char *answer, const char *wanted, const char *const *classes, int count) {
    const char **named = malloc(((size_t)count + 1) * sizeof *named);
    int n = 0, right = 0;
    if (named == NULL) return 0.0;
    for (int i = 0; i < count; i++)
        if (strstr(answer, classes[i])) named[n++] = classes[i];
    for (int i = 0; i < n; i++) /* of one that is taken away the next is not looked at: so LongBench has it */
        if (strstr(wanted, named[i]) && strcmp(wanted, named[i]) != 0) {
            memmove(&named[i], &named[i + 1], (size_t)(n - i - 1) * sizeof *named);
            n--;
        }
    for (int i = 0; i < n; i++) right |= strcmp(named[i], wanted) == 0;
    free(named);
    return right ? 1.0 / n : 0.0;
}
