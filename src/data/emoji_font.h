/* A font of coloured bitmaps (OpenType with CBDT and CBLC, as Noto Color Emoji), read as hostile input: which glyph stands for
 * a sequence of code points, and the PNG of a glyph.
 *
 * Sequences become glyphs by the character map (format 12) and by the ligatures of GSUB, all of them in the order of their
 * lookups; no other substitution is done. Bitmaps are those of the largest size. Everything points into the given bytes. */
#ifndef MHLA_DATA_EMOJI_FONT_H
#define MHLA_DATA_EMOJI_FONT_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

/* A range of bytes of the file. */
typedef struct mhla_font_part {
    const unsigned char *data;
    size_t size;
} mhla_font_part;

typedef struct mhla_emoji_font {
    const char *name;               /* for messages */
    mhla_font_part characters;      /* the groups of the character map, 12 bytes each */
    mhla_font_part substitutions;   /* GSUB; size 0: none */
    mhla_font_part places, bitmaps; /* CBLC, CBDT */
    size_t strike;                  /* in places: the size that is used */
} mhla_emoji_font;

/* The bytes and the name must outlive the font. MHLA_EDATA names the table and what is wrong. */
mhla_status mhla_emoji_font_open(mhla_emoji_font *font, const void *bytes, size_t size, const char *name);

enum { MHLA_EMOJI_CODES = 16 }; /* code points of a sequence, at most */

/* The one glyph of a sequence (variation selectors are passed over), 0 if the font has none. */
int mhla_emoji_font_glyph(const mhla_emoji_font *font, const uint32_t *codes, int count);
/* The PNG of a glyph; MHLA_OK and an empty part where it has none, MHLA_EDATA where it lies outside of its table. */
mhla_status mhla_emoji_font_png(mhla_font_part *png, const mhla_emoji_font *font, int glyph);

#endif
