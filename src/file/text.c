#include "file/text.h"

#include <stdlib.h>
#include <string.h>

int mhla_utf8_length(const unsigned char *at, size_t size) {
    if (size == 0) return 0;
    if (at[0] < 0x80) return 1;
    const int length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || size < (size_t)length) return 0;
    for (int i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if (at[0] == 0xe0 && at[1] < 0xa0) return 0; /* longer than needed */
    if (at[0] == 0xf0 && at[1] < 0x90) return 0;
    if (at[0] == 0xed && at[1] > 0x9f) return 0; /* half of a surrogate pair */
    if (at[0] == 0xf4 && at[1] > 0x8f) return 0; /* beyond Unicode */
    return length;
}

size_t mhla_utf8_broken(const unsigned char *text, size_t size) {
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        while (at + 8 <= size && (memcpy(&eight, text + at, 8), (eight & 0x8080808080808080u) == 0)) at += 8;
        if (at == size) break;
        const int n = mhla_utf8_length(text + at, size - at);
        if (n == 0) break;
        at += (size_t)n;
    }
    return at;
}

int mhla_utf8_put(unsigned char to[4], uint32_t code) {
    if (code < 0x80) {
        to[0] = (unsigned char)code;
        return 1;
    }
    const int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = length - 1; i > 0; i--, code >>= 6) to[i] = (unsigned char)(0x80 | (code & 0x3f));
    to[0] = (unsigned char)(lead[length] | code);
    return length;
}

mhla_quoted mhla_quote_bytes(const char *foreign, size_t size) {
    mhla_quoted q;
    size_t n = 0;
    q.text[n++] = '"';
    for (size_t i = 0; i < size;) {
        int length = mhla_utf8_length((const unsigned char *)foreign + i, size - i);
        const int c1 = length == 2 && foreign[i] == '\xc2' && (unsigned char)foreign[i + 1] < 0xa0; /* C1 controls */
        const unsigned char c = (unsigned char)foreign[i];
        if (n + 4 + 5 > sizeof q.text) { /* room for this character, dots, quote, end */
            memcpy(q.text + n, "...", 3);
            n += 3;
            break;
        }
        if (length == 0 || c < 0x20 || c == 0x7f || c1) {
            q.text[n++] = '?';
            i += length ? (size_t)length : 1;
        } else {
            memcpy(q.text + n, foreign + i, (size_t)length);
            n += (size_t)length, i += (size_t)length;
        }
    }
    q.text[n++] = '"';
    q.text[n] = '\0';
    return q;
}

mhla_quoted mhla_quote(const char *foreign) { return mhla_quote_bytes(foreign, strlen(foreign)); }

/* Three rows of the table of distances are enough, and names longer than this are not compared. */
enum { LONGEST = 255 };

int mhla_edit_distance(const char *a, const char *b, int limit) {
    const size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST) return strcmp(a, b) == 0 ? 0 : limit + 1;
    if ((n > m ? n - m : m - n) > (size_t)limit) return limit + 1;
    int rows[3][LONGEST + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = before[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = (int)i;
        int least = row[0];
        for (size_t j = 1; j <= m; j++) {
            int d = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < d) d = last[j] + 1;
            if (row[j - 1] + 1 < d) d = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < d)
                d = before[j - 2] + 1;
            row[j] = d;
            if (d < least) least = d;
        }
        if (least > limit) return limit + 1;
        int *spare = before;
        before = last, last = row, row = spare;
    }
    return last[m];
}

mhla_nearest mhla_nearest_begin(const char *name) {
    const int n = (int)strnlen(name, LONGEST);
    return (mhla_nearest){name, NULL, 1 + (n < 4 ? 1 : n < 8 ? 2 : 2 + n / 8)};
}

void mhla_nearest_offer(mhla_nearest *n, const char *candidate) {
    const int d = mhla_edit_distance(n->name, candidate, n->distance - 1);
    if (d < n->distance) n->distance = d, n->best = candidate;
}
