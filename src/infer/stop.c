/* A handful of short strings against a handful of new bytes: compared one by one. */
#include "infer/stop.h"

#include <string.h>

int mhla_stops_find(const mhla_stops *s, const char *text, size_t size, size_t seen, size_t *at) {
    for (size_t end = seen + 1; end <= size; end++) {
        int found = -1;
        size_t length = 0;
        for (int i = 0; i < s->count; i++) {
            const size_t n = strlen(s->text[i]);
            if (n <= length || n > end || memcmp(text + end - n, s->text[i], n) != 0) continue;
            found = i;
            length = n;
        }
        if (found >= 0) {
            *at = end - length;
            return found;
        }
    }
    return -1;
}

size_t mhla_stops_hold(const mhla_stops *s, const char *text, size_t size) {
    size_t hold = 0;
    for (int i = 0; i < s->count; i++) {
        size_t n = strlen(s->text[i]) - 1; /* all of it would be a match */
        for (n = n < size ? n : size; n > hold; n--)
            if (memcmp(text + size - n, s->text[i], n) == 0) hold = n;
    }
    return hold;
}
