#include "data/emoji_font.h"

#include <string.h>

#include "core/status.h"

/* ---- Big-endian numbers; what lies outside of its part reads as 0 ------------------------------------------------- */

static uint32_t number(mhla_font_part p, size_t at, size_t bytes) {
    uint32_t x = 0;
    if (at > p.size || p.size - at < bytes) return 0;
    for (size_t i = 0; i < bytes; i++) x = x << 8 | p.data[at + i];
    return x;
}
static uint32_t u16(mhla_font_part p, size_t at) { return number(p, at, 2); }
static uint32_t u32(mhla_font_part p, size_t at) { return number(p, at, 4); }

/* From `at` to the end; empty if that is outside. */
static mhla_font_part from(mhla_font_part p, size_t at) {
    return at < p.size ? (mhla_font_part){p.data + at, p.size - at} : (mhla_font_part){0};
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static mhla_status find_table(mhla_font_part *table, mhla_font_part file, const char *tag, int needed,
                              const char *name) {
    *table = (mhla_font_part){0};
    const uint32_t count = u16(file, 4);
    for (size_t i = 0; i < count; i++) {
        const size_t row = 12 + 16 * i;
        if (file.size < row + 16)
            return mhla_fail(MHLA_EDATA, "%s: its directory of %u tables is cut short", name, count);
        if (memcmp(file.data + row, tag, 4) != 0) continue;
        const size_t at = u32(file, row + 8), size = u32(file, row + 12);
        if (at > file.size || size > file.size - at)
            return mhla_fail(MHLA_EDATA, "%s: table %s (bytes %zu to %zu) lies outside of the file", name, tag, at,
                             at + size);
        *table = (mhla_font_part){file.data + at, size};
        return MHLA_OK;
    }
    if (needed) return mhla_fail(MHLA_EDATA, "%s: no table %s: not a font of coloured bitmaps", name, tag);
    return MHLA_OK;
}

static mhla_status find_characters(mhla_emoji_font *font, mhla_font_part cmap) {
    const uint32_t count = u16(cmap, 2);
    for (size_t i = 0; i < count; i++) {
        const mhla_font_part map = from(cmap, u32(cmap, 4 + 8 * i + 4));
        if (u16(map, 0) != 12) continue;
        const size_t groups = u32(map, 12);
        if (map.size < 16 || groups > (map.size - 16) / 12)
            return mhla_fail(MHLA_EDATA, "%s: table cmap has no room for its %zu groups", font->name, groups);
        font->characters = (mhla_font_part){map.data + 16, groups * 12};
        return MHLA_OK;
    }
    return mhla_fail(MHLA_EDATA, "%s: table cmap has no map of format 12", font->name);
}

enum { STRIKE = 48 }; /* bytes of a size in CBLC */

static mhla_status find_strike(mhla_emoji_font *font) {
    const uint32_t count = u32(font->places, 4);
    uint32_t best = 0;
    if (count > font->places.size / STRIKE)
        return mhla_fail(MHLA_EDATA, "%s: table CBLC has no room for its %u sizes", font->name, count);
    for (size_t i = 0; i < count; i++) {
        const uint32_t height = number(font->places, 8 + STRIKE * i + 45, 1);
        if (height <= best) continue;
        best = height;
        font->strike = 8 + STRIKE * i;
    }
    return best ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: table CBLC has no bitmaps", font->name);
}

mhla_status mhla_emoji_font_open(mhla_emoji_font *font, const void *bytes, size_t size, const char *name) {
    *font = (mhla_emoji_font){.name = name};
    const mhla_font_part file = {bytes, size};
    mhla_font_part cmap;
    const uint32_t kind = u32(file, 0);
    if (kind != 0x00010000 && kind != 0x4f54544f) /* "OTTO" */
        return mhla_fail(MHLA_EDATA, "%s: not an OpenType font by its first bytes", name);
    MHLA_TRY(find_table(&cmap, file, "cmap", 1, name));
    MHLA_TRY(find_table(&font->places, file, "CBLC", 1, name));
    MHLA_TRY(find_table(&font->bitmaps, file, "CBDT", 1, name));
    MHLA_TRY(find_table(&font->substitutions, file, "GSUB", 0, name));
    MHLA_TRY(find_characters(font, cmap));
    return find_strike(font);
}

/* ---- Code points to glyphs ------------------------------------------------------------------------------------------ */

static int glyph_of(const mhla_emoji_font *font, uint32_t code) {
    size_t low = 0, high = font->characters.size / 12;
    while (low < high) { /* groups (first, last, glyph of the first) are sorted; in a broken font nothing is found */
        const size_t middle = (low + high) / 2;
        const uint32_t first = u32(font->characters, 12 * middle), last = u32(font->characters, 12 * middle + 4);
        if (code < first)
            high = middle;
        else if (code > last)
            low = middle + 1;
        else
            return (int)((u32(font->characters, 12 * middle + 8) + (code - first)) & 0xffff);
    }
    return 0;
}

/* Tables may point at one another without end: a sequence is given up after so many steps. The real font needs some thousand. */
enum { MOST_STEPS = 1 << 22 };

/* The place of a glyph in a coverage table, -1: it is not covered. */
static int coverage(mhla_font_part table, int glyph, int *steps) {
    const uint32_t format = u16(table, 0), count = u16(table, 2);
    for (uint32_t i = 0; i < count && ++*steps < MOST_STEPS; i++) {
        if (format == 1 && (int)u16(table, 4 + 2 * i) == glyph) return (int)i;
        const size_t range = 4 + 6 * (size_t)i;
        if (format == 2 && (int)u16(table, range) <= glyph && glyph <= (int)u16(table, range + 2))
            return (int)u16(table, range + 4) + glyph - (int)u16(table, range);
    }
    return -1;
}

/* The first ligature of a subtable that begins at glyphs[0]: its glyph, and how many it stands for; 0: none. */
static int ligature(mhla_font_part table, const int *glyphs, int count, int *taken, int *steps) {
    if (u16(table, 0) != 1) return 0;
    const int place = coverage(from(table, u16(table, 2)), glyphs[0], steps);
    if (place < 0 || place >= (int)u16(table, 4)) return 0;
    const mhla_font_part set = from(table, u16(table, 6 + 2 * (size_t)place));
    const uint32_t ligatures = u16(set, 0);
    for (uint32_t i = 0; i < ligatures && ++*steps < MOST_STEPS; i++) {
        const mhla_font_part one = from(set, u16(set, 2 + 2 * (size_t)i));
        const int parts = (int)u16(one, 2);
        int same = 1;
        if (parts < 1 || parts > count) continue;
        while (same < parts && (int)u16(one, 4 + 2 * (size_t)(same - 1)) == glyphs[same]) same++;
        if (same < parts) continue;
        *taken = parts;
        return (int)u16(one, 0);
    }
    return 0;
}

enum { LIGATURES = 4, EXTENSION = 7 };

static int try_lookup(mhla_font_part lookup, const int *glyphs, int count, int *taken, int *steps) {
    const uint32_t kind = u16(lookup, 0), tables = u16(lookup, 4);
    if (kind != LIGATURES && kind != EXTENSION) return 0;
    for (uint32_t i = 0; i < tables && ++*steps < MOST_STEPS; i++) {
        mhla_font_part table = from(lookup, u16(lookup, 6 + 2 * (size_t)i));
        if (kind == EXTENSION) {
            if (u16(table, 2) != LIGATURES) continue;
            table = from(table, u32(table, 4));
        }
        const int made = ligature(table, glyphs, count, taken, steps);
        if (made) return made;
    }
    return 0;
}

/* Left to right: what a lookup finds is replaced, what it does not stays. Returns how many are left. */
static int apply(mhla_font_part lookup, int *glyphs, int count, int *steps) {
    int written = 0;
    for (int at = 0; at < count; written++) {
        int taken = 1;
        const int made = try_lookup(lookup, glyphs + at, count - at, &taken, steps);
        glyphs[written] = made ? made : glyphs[at];
        at += taken;
    }
    return written;
}

int mhla_emoji_font_glyph(const mhla_emoji_font *font, const uint32_t *codes, int count) {
    int glyphs[MHLA_EMOJI_CODES], n = 0, steps = 0;
    for (int i = 0; i < count; i++) {
        if (codes[i] == 0xfe0e || codes[i] == 0xfe0f) continue;
        if (n == MHLA_EMOJI_CODES) return 0;
        glyphs[n] = glyph_of(font, codes[i]);
        if (glyphs[n++] == 0) return 0;
    }
    const mhla_font_part lookups = from(font->substitutions, u16(font->substitutions, 8));
    const uint32_t all = font->substitutions.size ? u16(lookups, 0) : 0;
    for (uint32_t i = 0; i < all && n > 1; i++)
        n = apply(from(lookups, u16(lookups, 2 + 2 * (size_t)i)), glyphs, n, &steps);
    return n == 1 && steps < MOST_STEPS ? glyphs[0] : 0;
}

/* ---- Bitmaps --------------------------------------------------------------------------------------------------------- */

/* Where a glyph's data begin and end in CBDT, by a subtable for glyphs first..; 0: it has none. */
static int data_range(const mhla_emoji_font *font, size_t subtable, int index, size_t *begin, size_t *end) {
    const mhla_font_part s = from(font->places, subtable);
    const uint32_t format = u16(s, 0);
    const size_t each = format == 1 ? 4 : 2, base = u32(s, 4), at = 8 + each * (size_t)index;
    if ((format != 1 && format != 3) || s.size < at + 2 * each) return 0;
    *begin = base + number(s, at, each);
    *end = base + number(s, at + each, each);
    return *end > *begin;
}

mhla_status mhla_emoji_font_png(mhla_font_part *png, const mhla_emoji_font *font, int glyph) {
    *png = (mhla_font_part){0};
    const size_t array = u32(font->places, font->strike);
    const uint32_t count = u32(font->places, font->strike + 8);
    for (size_t i = 0; i < count; i++) {
        const mhla_font_part row = from(font->places, array + 8 * i);
        if (row.size < 8) break;
        const int first = (int)u16(row, 0), last = (int)u16(row, 2);
        if (glyph < first || glyph > last) continue;
        const size_t subtable = array + u32(row, 4);
        size_t begin, end;
        if (!data_range(font, subtable, glyph - first, &begin, &end)) return MHLA_OK;
        const uint32_t format = u16(from(font->places, subtable), 2);
        const size_t metrics = format == 17 ? 5 : format == 18 ? 8 : 0;
        if (format < 17 || format > 19) return MHLA_OK; /* not a PNG */
        if (end > font->bitmaps.size || end - begin < metrics + 4)
            return mhla_fail(MHLA_EDATA, "%s: glyph %d: its bitmap lies outside of table CBDT", font->name, glyph);
        const size_t size = u32(font->bitmaps, begin + metrics);
        if (size > end - begin - metrics - 4)
            return mhla_fail(MHLA_EDATA, "%s: glyph %d: a PNG of %zu bytes in %zu (byte %zu of table CBDT)", font->name,
                             glyph, size, end - begin, begin);
        *png = (mhla_font_part){font->bitmaps.data + begin + metrics + 4, size};
        return MHLA_OK;
    }
    return MHLA_OK;
}
