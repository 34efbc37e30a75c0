/* What evaluation needs of texts and lists alone: rolling windows, and white space as Python's str has it. */
#include "file/text.h"
#include "measure/evaluate_lm.h"

int mhla_window_next(mhla_window *w, int64_t n, int64_t m) {
    const int64_t done = w->begin + w->inputs; /* tokens that have been scored */
    const int64_t left = n - done;
    if (left <= 0) return 0;
    const int64_t scored = left < m ? left : m, end = done + scored;
    w->inputs = end < m ? end : m;
    w->begin = end - w->inputs;
    w->scored = scored;
    return 1;
}

/* str.isspace() */
static int is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The character at text[*at], which moves on; what is no UTF-8 counts byte by byte. */
static uint32_t next_character(const char *text, size_t bytes, size_t *at) {
    static const unsigned char lead[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const unsigned char *p = (const unsigned char *)text + *at;
    const int length = mhla_utf8_length(p, bytes - *at);
    *at += length ? (size_t)length : 1;
    uint32_t c = p[0] & lead[length];
    for (int i = 1; i < length; i++) c = c << 6 | (p[i] & 0x3f);
    return c;
}

int64_t mhla_text_words(const char *text, size_t bytes) {
    int64_t words = 1;
    int before = 0;
    for (size_t at = 0; at < bytes;) {
        const int space = is_space(next_character(text, bytes, &at));
        words += space && !before;
        before = space;
    }
    return words;
}

size_t mhla_text_stripped(const char *text, size_t bytes) {
    size_t end = 0;
    for (size_t at = 0; at < bytes;)
        if (!is_space(next_character(text, bytes, &at))) end = at;
    return end;
}

size_t mhla_text_leading(const char *text, size_t bytes) {
    size_t at = 0;
    for (size_t next = 0; next < bytes && is_space(next_character(text, bytes, &next));) at = next;
    return at;
}

int64_t mhla_text_characters(const char *text, size_t bytes) {
    int64_t count = 0;
    for (size_t at = 0; at < bytes; count++) next_character(text, bytes, &at);
    return count;
}
