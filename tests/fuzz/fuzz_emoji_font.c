/* Any bytes as a font of coloured bitmaps: refused, or every bitmap lies in the bytes. */
#include <stdlib.h>

#include "data/emoji_font.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint32_t codes[] = {0x1f44b, 0x1f3fb, 0x200d, 0x1f600};
    mhla_emoji_font font;
    if (mhla_emoji_font_open(&font, data, size, "fuzz") != MHLA_OK) return 0;
    for (int i = 0; i < 4; i++) (void)mhla_emoji_font_glyph(&font, codes + i, 4 - i);
    for (int glyph = 0; glyph < 64; glyph++) {
        mhla_font_part png;
        if (mhla_emoji_font_png(&png, &font, glyph) != MHLA_OK || png.size == 0) continue;
        if (png.data < data || png.data + png.size > data + size) abort();
    }
    return 0;
}
