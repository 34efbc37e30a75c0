#include "text/normalize.h"

#include <string.h>
#include <utf8proc.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"

void mhla_normalizer_free(mhla_normalizer *n) {
    mhla_pattern_free(&n->pattern);
    mhla_charsmap_free(&n->map);
    mhla_free(n->content);
    n->content = NULL;
}

static mhla_status replace_matches(const mhla_normalizer *n, mhla_matcher *m, mhla_chars *out, const char *text,
                                   const char *subject, size_t bytes) {
    size_t at = 0, start, end;
    for (;; at = end) {
        MHLA_TRY(mhla_pattern_next(&n->pattern, m, subject, bytes, at, &start, &end));
        if (end == 0) break;
        MHLA_TRY(mhla_chars_append(out, text + at, start - at));
        MHLA_TRY(mhla_chars_append(out, n->content, n->bytes));
    }
    return mhla_chars_append(out, text + at, bytes - at);
}

static mhla_status replace(const mhla_normalizer *n, mhla_matcher *m, mhla_chars *out, const char *text, size_t bytes) {
    char *copy;
    MHLA_TRY(mhla_pattern_subject(&n->pattern, &copy, text, bytes));
    const mhla_status status = replace_matches(n, m, out, text, copy ? copy : text, bytes);
    mhla_free(copy);
    return status;
}

static mhla_status put(mhla_chars *out, uint32_t code) {
    unsigned char bytes[4];
    return mhla_chars_append(out, (const char *)bytes, (size_t)mhla_utf8_put(bytes, code));
}

/* Capitals of Unicode 15.1 to 17, which the reference library knows and a utf8proc may not yet. */
static uint32_t to_lower(uint32_t code) {
    static const mhla_char_range newer[] = {
        {0x1c89, 0x1c89, 0x1c8a},    {0xa7cb, 0xa7cb, 0x264},    {0xa7cc, 0xa7cc, 0xa7cd}, {0xa7ce, 0xa7ce, 0xa7cf},
        {0xa7d2, 0xa7d2, 0xa7d3},    {0xa7d4, 0xa7d4, 0xa7d5},   {0xa7da, 0xa7da, 0xa7db}, {0xa7dc, 0xa7dc, 0x19b},
        {0x10d50, 0x10d65, 0x10d70}, {0x16ea0, 0x16eb8, 0x16ebb}};
    const mhla_char_range *range =
        code >= newer->first ? mhla_char_find(newer, sizeof newer / sizeof *newer, code) : NULL;
    if (range) return range->value + (code - range->first);
    return mhla_char_category(code) == UTF8PROC_CATEGORY_CN ? code : (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

/* The nearest character before (step -1) or behind a place that is not ignored where cases are asked for: is it of a case? */
static int next_to_cased(const char *text, size_t bytes, size_t at, int step) {
    for (size_t n = 0;; at += n) {
        if (step < 0) {
            if (at == 0) return 0;
            do at--;
            while (((unsigned char)text[at] & 0xc0) == 0x80);
        } else if (at >= bytes) {
            return 0;
        }
        const uint32_t code = mhla_char_read(text + at, &n);
        const int c = mhla_char_category(code);
        if (c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT) return 1;
        const int ignored = c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
                            c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || code == '\'' || code == '.' ||
                            code == ':' || code == 0xb7 || code == 0x2019;
        if (!ignored) return 0;
        if (step < 0) n = 0;
    }
}

static mhla_status lowercase(const mhla_normalizer *how, mhla_chars *out, const char *text, size_t bytes) {
    for (size_t i = 0, n; i < bytes; i += n) {
        const uint32_t code = mhla_char_read(text + i, &n);
        if (code == 0x3a3 && how->final_sigma && next_to_cased(text, bytes, i, -1) &&
            !next_to_cased(text, bytes, i + n, 1)) {
            MHLA_TRY(put(out, 0x3c2));
            continue;
        }
        if (code == 0x130) { /* the only one that becomes two */
            MHLA_TRY(mhla_chars_append(out, "i\xcc\x87", 3));
            continue;
        }
        MHLA_TRY(put(out, to_lower(code)));
    }
    return MHLA_OK;
}

/* Marks of all kinds, those that take room (vowel signs of Indian scripts) and enclose included, as the reference has it. */
static int is_accent(uint32_t code) {
    const int category = code >= 0x300 ? mhla_char_category(code) : 0;
    const int mark =
        category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
    return (mark && !mhla_char_newer(code)) || code == 0x1cf2 || code == 0x1cf3; /* these two were marks then */
}

static mhla_status strip_accents(mhla_chars *out, const char *text, size_t bytes) {
    for (size_t i = 0, n; i < bytes; i += n)
        if (!is_accent(mhla_char_read(text + i, &n))) MHLA_TRY(mhla_chars_append(out, text + i, n));
    return MHLA_OK;
}

static mhla_status strip(const mhla_normalizer *n, mhla_chars *out, const char *text, size_t bytes) {
    size_t begin = 0, end = 0, length; /* end: behind the last that is no space */
    int started = 0;
    for (size_t i = 0; i < bytes; i += length) {
        if (mhla_char_class(mhla_char_read(text + i, &length)) & MHLA_CHAR_SPACE) continue;
        if (!started) begin = i;
        started = 1;
        end = i + length;
    }
    if (!started) begin = n->left ? bytes : 0, end = n->right ? 0 : bytes;
    if (!n->left) begin = 0;
    if (!n->right) end = bytes;
    return begin < end ? mhla_chars_append(out, text + begin, end - begin) : MHLA_OK;
}

/* ---- Rules of SentencePiece ---- */

/* Of a short group of characters that are one to the reader the first rule, the shortest, speaks for all of it; else each
 * character has its own. That is what the reference does. */
static mhla_status precompiled(const mhla_normalizer *n, mhla_chars *out, const char *text, size_t bytes) {
    size_t end, length;
    for (size_t at = 0; at < bytes; at = end) {
        utf8proc_int32_t state = 0;
        int32_t code = (int32_t)mhla_char_read(text + at, &length);
        for (end = at + length; end < bytes; end += length) {
            const int32_t next = (int32_t)mhla_char_read(text + end, &length);
            if (utf8proc_grapheme_break_stateful(code, next, &state) && !(next >= 0x1acf && next <= 0x1aeb))
                break; /* marks of Unicode 17, which the reference knows and a utf8proc may not yet */
            code = next;
        }
        const char *to = end - at < 6 ? mhla_charsmap_find(&n->map, text + at, end - at, 1, &length) : NULL;
        if (to) {
            MHLA_TRY(mhla_chars_append(out, to, strlen(to)));
            continue;
        }
        for (size_t i = at; i < end;) {
            size_t unused;
            mhla_char_read(text + i, &length);
            to = mhla_charsmap_find(&n->map, text + i, length, 1, &unused);
            MHLA_TRY(to ? mhla_chars_append(out, to, strlen(to)) : mhla_chars_append(out, text + i, length));
            i += length;
        }
    }
    return MHLA_OK;
}

/* What stands for the beginning of a text, the longest that there is a rule for or one character. */
static const char *next_rule(const mhla_normalizer *n, const char *text, size_t bytes, size_t *length, size_t *size) {
    const char *to = mhla_charsmap_find(&n->map, text, bytes, 0, length);
    if (to == NULL) mhla_char_read(text, length);
    *size = to ? strlen(to) : *length;
    return to ? to : text;
}

static mhla_status sentencepiece(const mhla_normalizer *n, mhla_chars *out, const char *text, size_t bytes) {
    static const char mark[] = "\xe2\x96\x81";
    const char *space = n->escape ? mark : " ";
    const size_t width = n->escape ? 3 : 1;
    size_t at = 0, length, size;
    for (; n->squeeze && at < bytes; at += length) { /* none at the beginning */
        const char *to = next_rule(n, text + at, bytes - at, &length, &size);
        if (size != 1 || *to != ' ') break;
    }
    if (at == bytes) return MHLA_OK;
    if (n->prefix) MHLA_TRY(mhla_chars_append(out, space, width));
    int after_space = n->squeeze;
    for (; at < bytes; at += length) {
        const char *to = next_rule(n, text + at, bytes - at, &length, &size);
        while (after_space && size > 0 && *to == ' ') to++, size--;
        for (size_t i = 0; i < size; i++)
            MHLA_TRY(to[i] == ' ' ? mhla_chars_append(out, space, width) : mhla_chars_append(out, to + i, 1));
        if (size > 0) after_space = n->squeeze && to[size - 1] == ' ';
    }
    while (n->squeeze && out->count >= width && memcmp(out->data + out->count - width, space, width) == 0)
        out->count -= width;
    return MHLA_OK;
}

/* ---- Unicode's normal forms ---- */

static int combining(int32_t code) {
    const int class = utf8proc_get_property(code)->combining_class;
    return class && mhla_char_newer((uint32_t)code) ? 0 : class;
}

/* Marks between two starters in the order of their classes, those of one class as they were. utf8proc's own sort takes
 * quadratic time, so long runs are counted. */
static mhla_status order_marks(int32_t *run, size_t n) {
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            const int32_t mark = run[i];
            size_t k = i;
            for (; k > 0 && combining(run[k - 1]) > combining(mark); k--) run[k] = run[k - 1];
            run[k] = mark;
        }
        return MHLA_OK;
    }
    int32_t *sorted = mhla_alloc(n * sizeof *sorted);
    if (sorted == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to normalise %zu marks", n);
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[combining(run[i]) + 1]++;
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) sorted[start[combining(run[i])]++] = run[i];
    memcpy(run, sorted, n * sizeof *run);
    mhla_free(sorted);
    return MHLA_OK;
}

/* Nothing is joined with a newer character, nor across one. */
static size_t compose(int32_t *codes, size_t count) {
    size_t kept = 0;
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && !mhla_char_newer((uint32_t)codes[end]);) end++;
        utf8proc_ssize_t left = (utf8proc_ssize_t)(end - i);
        if (left > 1) left = utf8proc_normalize_utf32(codes + i, left, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (left < 0) left = (utf8proc_ssize_t)(end - i); /* as it was */
        memmove(codes + kept, codes + i, (size_t)left * sizeof *codes);
        kept += (size_t)left;
        for (; end < count && mhla_char_newer((uint32_t)codes[end]); end++) codes[kept++] = codes[end];
    }
    return kept;
}

static mhla_status normal_form(const mhla_normalizer *n, mhla_chars *out, const char *text, size_t bytes) {
    const utf8proc_option_t options = n->compatible ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE;
    int32_t *codes = NULL;
    size_t count = 0, capacity = 0;
    mhla_status status = MHLA_OK;
    for (size_t i = 0, length; i < bytes && status == MHLA_OK; i += length) {
        const int32_t code = (int32_t)mhla_char_read(text + i, &length);
        void *list = codes;
        status = mhla_list_grow(&list, &capacity, count + 32, sizeof *codes); /* no character becomes more than 18 */
        codes = list;
        if (status != MHLA_OK) break;
        int last = 0;
        const utf8proc_ssize_t got =
            mhla_char_newer((uint32_t)code) ? -1 : utf8proc_decompose_char(code, codes + count, 32, options, &last);
        if (got < 0 || got > 32)
            codes[count++] = code;
        else
            count += (size_t)got;
    }
    for (size_t i = 0, end; i < count && status == MHLA_OK; i = end + 1) {
        for (end = i; end < count && combining(codes[end]) != 0;) end++;
        if (end > i + 1) status = order_marks(codes + i, end - i);
    }
    if (status == MHLA_OK && n->compose) count = compose(codes, count);
    for (size_t i = 0; i < count && status == MHLA_OK; i++) status = put(out, (uint32_t)codes[i]);
    mhla_free(codes);
    return status;
}

/* Nothing below U+00A0 changes in any form, nothing below U+0300 in NFC. */
static int is_normal(const mhla_normalizer *n, const char *text, size_t bytes) {
    const unsigned char least = n->compose && !n->compatible ? 0xcc : 0xc2;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= least) return 0;
    return 1;
}

mhla_status mhla_normalize(const mhla_normalizer *n, mhla_matcher *m, mhla_chars *out, const char *text, size_t bytes,
                           int *same) {
    out->count = 0;
    *same = bytes == 0;
    if (bytes == 0) return MHLA_OK;
    switch (n->kind) {
    case MHLA_NORMALIZE_PREPEND:
        MHLA_TRY(mhla_chars_append(out, n->content, n->bytes));
        return mhla_chars_append(out, text, bytes);
    case MHLA_NORMALIZE_REPLACE: return replace(n, m, out, text, bytes);
    case MHLA_NORMALIZE_FORM:
        *same = is_normal(n, text, bytes);
        return *same ? MHLA_OK : normal_form(n, out, text, bytes);
    case MHLA_NORMALIZE_LOWERCASE: return lowercase(n, out, text, bytes);
    case MHLA_NORMALIZE_STRIP: return strip(n, out, text, bytes);
    case MHLA_NORMALIZE_STRIP_ACCENTS: return strip_accents(out, text, bytes);
    case MHLA_NORMALIZE_PRECOMPILED: return precompiled(n, out, text, bytes);
    case MHLA_NORMALIZE_SENTENCEPIECE: return sentencepiece(n, out, text, bytes);
    }
    return MHLA_OK;
}

size_t mhla_normalize_first(const mhla_normalizer *n, const char *text, size_t bytes, size_t first) {
    if (n->kind == MHLA_NORMALIZE_PREPEND) return first && bytes ? first + n->bytes : first;
    const int strips = n->kind == MHLA_NORMALIZE_STRIP && n->left, accents = n->kind == MHLA_NORMALIZE_STRIP_ACCENTS;
    if (!strips && !accents) return first;
    size_t left = first;
    for (size_t at = 0, length; at < first && at < bytes; at += length) {
        const uint32_t code = mhla_char_read(text + at, &length);
        const int goes = accents ? is_accent(code) : (mhla_char_class(code) & MHLA_CHAR_SPACE) != 0;
        if (!goes && strips) break;
        if (goes) left -= length < first - at ? length : first - at;
    }
    return left;
}
