#include "text/charsmap.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/text.h"

/* A unit of the array: a label and an offset to its children; where a text ends, a value. */
static inline uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
static inline uint32_t label_of(uint32_t unit) { return unit & (1u << 31 | 0xff); }
static inline int has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
static inline uint32_t value_of(uint32_t unit) { return unit & 0x7fffffff; }

/* Of a character that began before: no rule of an honest file ends or begins there. */
static inline int is_inside(char byte) { return ((unsigned char)byte & 0xc0) == 0x80; }

mhla_status mhla_charsmap_read(mhla_charsmap *map, const unsigned char *bytes, size_t size, const char *name) {
    uint32_t length = 0;
    *map = (mhla_charsmap){0};
    for (int i = 0; i < 4 && size >= 4; i++) length |= (uint32_t)bytes[i] << (8 * i);
    if (size < 4 || length > size - 4 || length % 4 != 0 || length < 1024)
        return mhla_fail(MHLA_EDATA, "%s: rules of normalisation of %zu bytes, %u of them their array: not possible",
                         name, size, length);
    map->count = length / 4;
    map->bytes = size - 4 - length;
    if (map->bytes == 0 || bytes[size - 1] != 0)
        return mhla_fail(MHLA_EDATA, "%s: the texts of the rules of normalisation are cut off", name);
    const size_t broken = mhla_utf8_broken(bytes + 4 + length, map->bytes);
    if (broken < map->bytes)
        return mhla_fail(MHLA_EDATA, "%s: byte %zu of the texts of its rules of normalisation is not UTF-8", name,
                         broken);
    map->units = mhla_alloc(length);
    map->texts = mhla_alloc(map->bytes);
    if (map->units == NULL || map->texts == NULL)
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for its rules of normalisation", name);
    for (size_t i = 0; i < map->count; i++) {
        const unsigned char *p = bytes + 4 + 4 * i;
        map->units[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    memcpy(map->texts, bytes + 4 + length, map->bytes);
    return MHLA_OK;
}

void mhla_charsmap_free(mhla_charsmap *map) {
    mhla_free(map->units);
    mhla_free(map->texts);
    *map = (mhla_charsmap){0};
}

const char *mhla_charsmap_find(const mhla_charsmap *map, const char *text, size_t bytes, int shortest, size_t *length) {
    const char *found = NULL;
    if (map->count == 0) return NULL;
    size_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        at ^= c;
        if (at >= map->count || c == 0 || label_of(map->units[at]) != c) break;
        const uint32_t unit = map->units[at];
        at ^= offset_of(unit);
        if (at >= map->count) break; /* of a file that somebody made */
        const uint32_t value = value_of(map->units[at]);
        if (!has_leaf(unit) || value >= map->bytes || is_inside(map->texts[value])) continue;
        if (i + 1 < bytes && is_inside(text[i + 1])) continue;
        found = map->texts + value;
        *length = i + 1;
        if (shortest) break;
    }
    return found;
}
