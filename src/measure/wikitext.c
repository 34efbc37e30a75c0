/* WikiText's pages as people write them. Its tokens stand apart: " , ", " @-@ ", "( so )". The rules and their order are those of
 * lm-evaluation-harness, odd ones included: perplexities are comparable only if the text is the same to the last byte. */
#include <string.h>

#include "core/status.h"
#include "measure/exams.h"

/* text.replace(from, to) */
static mhla_status replace(mhla_chars *out, const mhla_chars *in, const char *from, const char *to) {
    const size_t n = strlen(from), m = strlen(to);
    const char *at = in->data, *end = in->data + in->count;
    for (const char *hit; at < end && (hit = memmem(at, (size_t)(end - at), from, n)) != NULL; at = hit + n) {
        MHLA_TRY(mhla_chars_append(out, at, (size_t)(hit - at)));
        MHLA_TRY(mhla_chars_append(out, to, m));
    }
    return mhla_chars_append(out, at, (size_t)(end - at));
}

/* Takes white space away behind each opening mark and before the closing one that follows it first. */
static mhla_status tighten(mhla_chars *out, const mhla_chars *in, char open, char close) {
    const char *at = in->data, *end = in->data + in->count;
    while (at < end) {
        const char *first = memchr(at, open, (size_t)(end - at));
        const char *last = first ? memchr(first + 1, close, (size_t)(end - first - 1)) : NULL;
        if (last == NULL) break;
        const size_t n = (size_t)(last - first - 1), leading = mhla_text_leading(first + 1, n);
        const size_t stripped = mhla_text_stripped(first + 1, n);
        MHLA_TRY(mhla_chars_append(out, at, (size_t)(first + 1 - at)));
        if (stripped > leading) MHLA_TRY(mhla_chars_append(out, first + 1 + leading, stripped - leading));
        MHLA_TRY(mhla_chars_append(out, last, 1));
        at = last + 1;
    }
    return mhla_chars_append(out, at, (size_t)(end - at));
}

/* The harness's rule for "/' 3/", which writes its own pattern into the text. */
static mhla_status odd_rule(mhla_chars *out, const mhla_chars *in) {
    const char *at = in->data, *end = in->data + in->count;
    for (const char *hit = at; (hit = memmem(hit, (size_t)(end - hit), "/' ", 3)) != NULL;) {
        if (end - hit < 5 || hit[3] < '0' || hit[3] > '9' || hit[4] != '/') {
            hit++;
            continue;
        }
        MHLA_TRY(mhla_chars_append(out, at, (size_t)(hit - at)));
        MHLA_TRY(mhla_chars_append(out, "/'[0-9]/", 8));
        at = hit += 5;
    }
    return mhla_chars_append(out, at, (size_t)(end - at));
}

typedef struct rule {
    const char *from, *to; /* to NULL: the marks of `from` are tightened; both NULL: the odd rule */
} rule;

mhla_status mhla_wikitext_plain(mhla_chars *plain, const char *page) {
    static const rule rules[] = {
        {"s '", "s'"}, {NULL, NULL},        {" @-@ ", "-"},   {" @,@ ", ","}, {" @.@ ", "."},
        {" : ", ": "}, {" ; ", "; "},       {" . ", ". "},    {" ! ", "! "},  {" ? ", "? "},
        {" , ", ", "}, {"()", NULL},        {"[]", NULL},     {"{}", NULL},   {"\"\"", NULL},
        {"''", NULL},  {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \xc2\xb0 ", "\xc2\xb0"},
        {" \n", "\n"}, {"\n ", "\n"},       {" N ", " 1 "},   {" 's", "'s"},
    };
    mhla_chars in = {0};
    mhla_status status = mhla_chars_append(&in, page, strlen(page));
    for (size_t i = 0; i < sizeof rules / sizeof *rules && status == MHLA_OK && in.count; i++) {
        const rule *r = &rules[i];
        mhla_chars out = {0};
        status = r->to     ? replace(&out, &in, r->from, r->to)
                 : r->from ? tighten(&out, &in, r->from[0], r->from[1])
                           : odd_rule(&out, &in);
        mhla_chars_free(&in);
        in = out;
    }
    if (status == MHLA_OK) status = mhla_chars_append(plain, in.count ? in.data : "", in.count);
    mhla_chars_free(&in);
    return status;
}
