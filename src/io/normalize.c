#include "io/normalize.h"

#include <string.h>
#include <utf8proc.h>

#include "core/memory.h"
#include "core/status.h"
#include "io/text.h"

void mhla_normalizer_free(mhla_normalizer *n) {
    mhla_pattern_free(&n->pattern);
    mhla_free(n->content);
    n->content = NULL;
}

static mhla_status replace(const mhla_normalizer *n, mhla_matcher *m, mhla_chars *out, const char *text, size_t bytes) {
    size_t at = 0, start, end;
    for (;; at = end) {
        MHLA_TRY(mhla_pattern_next(&n->pattern, m, text, bytes, at, &start, &end));
        if (end == 0) break;
        MHLA_TRY(mhla_chars_append(out, text + at, start - at));
        MHLA_TRY(mhla_chars_append(out, n->content, n->bytes));
    }
    return mhla_chars_append(out, text + at, bytes - at);
}

static mhla_status put(mhla_chars *out, uint32_t code) {
    unsigned char bytes[4];
    return mhla_chars_append(out, (const char *)bytes, (size_t)mhla_utf8_put(bytes, code));
}

static mhla_status lowercase(mhla_chars *out, const char *text, size_t bytes) {
    for (size_t i = 0, n; i < bytes; i += n) {
        const uint32_t code = mhla_char_read(text + i, &n);
        if (code == 0x130) { /* the only one that becomes two */
            MHLA_TRY(mhla_chars_append(out, "i\xcc\x87", 3));
            continue;
        }
        MHLA_TRY(put(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code)));
    }
    return MHLA_OK;
}

static int is_accent(uint32_t code) {
    return code >= 128 && utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_MN;
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

static mhla_status squeeze(mhla_chars *out, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ' && (out->count == 0 || out->data[out->count - 1] == ' ')) continue;
        MHLA_TRY(mhla_chars_append(out, text + i, 1));
    }
    if (out->count && out->data[out->count - 1] == ' ') out->count--;
    return MHLA_OK;
}

/* ---- Unicode's normal forms ---- */

static int combining(int32_t code) { return utf8proc_get_property(code)->combining_class; }

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
        const utf8proc_ssize_t got = utf8proc_decompose_char(code, codes + count, 32, options, &last);
        if (got < 0 || got > 32)
            codes[count++] = code;
        else
            count += (size_t)got;
    }
    for (size_t i = 0, end; i < count && status == MHLA_OK; i = end + 1) {
        for (end = i; end < count && combining(codes[end]) != 0;) end++;
        if (end > i + 1) status = order_marks(codes + i, end - i);
    }
    if (status == MHLA_OK && n->compose && count) {
        const utf8proc_ssize_t left =
            utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (left >= 0) count = (size_t)left;
    }
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
    case MHLA_NORMALIZE_LOWERCASE: return lowercase(out, text, bytes);
    case MHLA_NORMALIZE_STRIP: return strip(n, out, text, bytes);
    case MHLA_NORMALIZE_STRIP_ACCENTS: return strip_accents(out, text, bytes);
    case MHLA_NORMALIZE_SQUEEZE: return squeeze(out, text, bytes);
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
