/* The font of emoji and what is laid out of it, with a font of six glyphs made here: sequences become glyphs, transparent pixels
 * white, twins one, tones of skin stay together; truncations and flipped bits are refused or read without harm. */
#include <zlib.h>

#include "data/data_impl.h"
#include "data/dataset.h"
#include "data/emoji_font.h"
#include "folders.h"

/* ---- A font ---- */

typedef struct bytes {
    uint8_t data[16384];
    size_t size;
} bytes;

static void put(bytes *b, uint32_t x, int n) {
    while (n--) b->data[b->size++] = (uint8_t)((uint64_t)x >> (8 * n));
}
static void put_all(bytes *b, const void *data, size_t size) {
    memcpy(b->data + b->size, data, size);
    b->size += size;
}
static void chunk(bytes *b, const char *name, const void *data, size_t size) {
    put(b, (uint32_t)size, 4);
    const size_t at = b->size;
    put_all(b, name, 4);
    put_all(b, data, size);
    put(b, (uint32_t)crc32(0, b->data + at, (uInt)(4 + size)), 4);
}

/* A PNG of 17 x 16: its left half of this colour, the right one transparent. */
static bytes picture(uint8_t red, uint8_t green, uint8_t blue) {
    bytes b = {0}, head = {0};
    uint8_t rows[16 * (1 + 17 * 4)] = {0}, packed[2048];
    uLongf n = sizeof packed;
    for (size_t y = 0; y < 16; y++)
        for (size_t x = 0; x < 17; x++) {
            const uint8_t pixel[4] = {red, green, blue, x < 9 ? 255 : 0};
            memcpy(rows + y * 69 + 1 + 4 * x, pixel, 4);
        }
    assert_int_equal(compress(packed, &n, rows, sizeof rows), Z_OK);
    put_all(&b, "\x89PNG\r\n\x1a\n", 8);
    put(&head, 17, 4), put(&head, 16, 4), put(&head, 0x0806, 2), put(&head, 0, 3);
    chunk(&b, "IHDR", head.data, head.size);
    chunk(&b, "IDAT", packed, n);
    chunk(&b, "IEND", "", 0);
    return b;
}

/* Glyphs 1 U+1F600, 2 U+1F44B, 3 U+1F3FB, 4 = 2 3, 5 U+200D, 6 = 4 5 1 (by the second lookup), 7 U+1F601 like 1. */
static bytes make_cmap(void) {
    static const uint32_t groups[][3] = {{0x200d, 0x200d, 5},
                                         {0x1f3fb, 0x1f3fb, 3},
                                         {0x1f44b, 0x1f44b, 2},
                                         {0x1f600, 0x1f600, 1},
                                         {0x1f601, 0x1f601, 7}};
    bytes b = {0};
    put(&b, 0, 2), put(&b, 1, 2), put(&b, 3, 2), put(&b, 10, 2), put(&b, 12, 4);
    put(&b, 12, 2), put(&b, 0, 2), put(&b, 16 + 5 * 12, 4), put(&b, 0, 4), put(&b, 5, 4);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 3; j++) put(&b, groups[i][j], 4);
    return b;
}

static bytes make_gsub(void) {
    bytes b = {0};
    put(&b, 0x00010000, 4), put(&b, 10, 2), put(&b, 10, 2), put(&b, 10, 2); /* the list of lookups: byte 10 */
    put(&b, 2, 2), put(&b, 6, 2), put(&b, 38, 2);
    /* 16: ligatures, one subtable at 8, of glyph 2 (coverage by list): 2 3 -> 4 */
    put(&b, 4, 2), put(&b, 0, 2), put(&b, 1, 2), put(&b, 8, 2);
    put(&b, 1, 2), put(&b, 8, 2), put(&b, 1, 2), put(&b, 14, 2);
    put(&b, 1, 2), put(&b, 1, 2), put(&b, 2, 2);                               /* coverage */
    put(&b, 1, 2), put(&b, 4, 2), put(&b, 4, 2), put(&b, 2, 2), put(&b, 3, 2); /* set, its ligature */
    /* 48: an extension with ligatures, of glyphs 4..4 (coverage by range): 4 5 1 -> 6 */
    put(&b, 7, 2), put(&b, 0, 2), put(&b, 1, 2), put(&b, 8, 2);
    put(&b, 1, 2), put(&b, 4, 2), put(&b, 8, 4);
    put(&b, 1, 2), put(&b, 8, 2), put(&b, 1, 2), put(&b, 18, 2);
    put(&b, 2, 2), put(&b, 1, 2), put(&b, 4, 2), put(&b, 4, 2), put(&b, 0, 2);
    put(&b, 1, 2), put(&b, 4, 2), put(&b, 6, 2), put(&b, 3, 2), put(&b, 5, 2), put(&b, 1, 2);
    return b;
}

/* Glyphs 1.. with these bitmaps; size 0: none. */
static bytes assemble(bytes cmap, bytes gsub, const bytes *pictures, int count) {
    bytes cblc = {0}, cbdt = {0}, font = {0};
    const uint32_t last = (uint32_t)count;
    put(&cbdt, 0x00030000, 4);
    put(&cblc, 0x00030000, 4), put(&cblc, 1, 4);
    put(&cblc, 56, 4), put(&cblc, 0, 4), put(&cblc, 1, 4), put(&cblc, 0, 4);
    cblc.size += 24;
    put(&cblc, 1, 2), put(&cblc, last, 2), put(&cblc, 16, 1), put(&cblc, 16, 1), put(&cblc, 32, 1), put(&cblc, 1, 1);
    put(&cblc, 1, 2), put(&cblc, last, 2), put(&cblc, 8, 4);
    put(&cblc, 1, 2), put(&cblc, 17, 2), put(&cblc, 4, 4);
    for (int i = 0; i < count; i++) {
        put(&cblc, (uint32_t)cbdt.size - 4, 4);
        if (pictures[i].size == 0) continue;
        put(&cbdt, 0x10110011, 4), put(&cbdt, 17, 1), put(&cbdt, (uint32_t)pictures[i].size, 4);
        put_all(&cbdt, pictures[i].data, pictures[i].size);
    }
    put(&cblc, (uint32_t)cbdt.size - 4, 4);
    const struct {
        const char *tag;
        bytes table;
    } tables[] = {{"CBDT", cbdt}, {"CBLC", cblc}, {"GSUB", gsub}, {"cmap", cmap}};
    put(&font, 0x00010000, 4), put(&font, 4, 2), put(&font, 0, 6);
    size_t at = 12 + 4 * 16;
    for (int i = 0; i < 4; i++) {
        put_all(&font, tables[i].tag, 4);
        put(&font, 0, 4), put(&font, (uint32_t)at, 4), put(&font, (uint32_t)tables[i].table.size, 4);
        at += tables[i].table.size;
    }
    for (int i = 0; i < 4; i++) put_all(&font, tables[i].table.data, tables[i].table.size);
    return font;
}

static bytes make_font(void) {
    static bytes pictures[7];
    pictures[0] = picture(255, 0, 0), pictures[1] = picture(0, 255, 0), pictures[3] = picture(0, 128, 0);
    pictures[5] = picture(9, 9, 9), pictures[6] = picture(255, 0, 0);
    return assemble(make_cmap(), make_gsub(), pictures, 7);
}

static void test_font(void **state) {
    (void)state;
    const bytes b = make_font();
    mhla_emoji_font font;
    ASSERT_OK(mhla_emoji_font_open(&font, b.data, b.size, "tiny"));
    static const struct {
        uint32_t codes[5];
        int count, glyph;
    } cases[] = {{{0x1f600}, 1, 1},
                 {{0x1f600, 0xfe0f}, 2, 1},
                 {{0x1f44b, 0x1f3fb}, 2, 4},
                 {{0x1f44b, 0x1f3fb, 0x200d, 0x1f600}, 4, 6},
                 {{0x1f44b, 0x200d, 0x1f600}, 3, 0}, /* no ligature */
                 {{0x1f3fb, 0x1f44b}, 2, 0},         /* the wrong way round */
                 {{0x1f602}, 1, 0},
                 {{0xfe0f}, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(mhla_emoji_font_glyph(&font, cases[i].codes, cases[i].count), cases[i].glyph);
    mhla_font_part png;
    const bytes fourth = picture(0, 128, 0);
    ASSERT_OK(mhla_emoji_font_png(&png, &font, 4));
    assert_int_equal(png.size, fourth.size);
    assert_memory_equal(png.data, fourth.data, png.size);
    ASSERT_OK(mhla_emoji_font_png(&png, &font, 3));
    assert_int_equal(png.size, 0);
    ASSERT_OK(mhla_emoji_font_png(&png, &font, 8));
    assert_int_equal(png.size, 0);
}

/* Cut anywhere or with any bit flipped: refused, or every part lies in the bytes (which end where memory does). */
static void try_all(const uint8_t *data, size_t size) {
    uint8_t *exact = new_bytes(size);
    memcpy(exact, data, size);
    mhla_emoji_font font;
    static const uint32_t codes[] = {0x1f44b, 0x1f3fb, 0x200d, 0x1f600};
    if (mhla_emoji_font_open(&font, exact, size, "broken") == MHLA_OK) {
        (void)mhla_emoji_font_glyph(&font, codes, 4);
        for (int i = 0; i < 10; i++) {
            mhla_font_part png;
            if (mhla_emoji_font_png(&png, &font, i) != MHLA_OK || png.size == 0) continue;
            assert_true(png.data >= font.bitmaps.data && png.data + png.size <= font.bitmaps.data + font.bitmaps.size);
        }
    }
    free(exact);
}

static void test_broken_font(void **state) {
    (void)state;
    bytes b = make_font();
    for (size_t n = 0; n < b.size; n++) try_all(b.data, n);
    for (size_t i = 0; i < 8 * b.size; i++) {
        b.data[i / 8] ^= (uint8_t)(1 << (i % 8));
        try_all(b.data, b.size);
        b.data[i / 8] ^= (uint8_t)(1 << (i % 8));
    }
    mhla_emoji_font font;
    ASSERT_FAILS(mhla_emoji_font_open(&font, "RIFFxxxxyyyyzzzz", 16, "wave"), MHLA_EDATA, "wave: not an OpenType font");
    ASSERT_FAILS(mhla_emoji_font_open(&font, b.data, 40, "cut"), MHLA_EDATA, "cut: its directory of 4 tables");
    ASSERT_FAILS(mhla_emoji_font_open(&font, b.data, b.size - 1, "cut"), MHLA_EDATA, "cut: table cmap (bytes");
}

/* ---- The layout ---- */

static const char list[] = "# group: Smileys & Emotion\n# subgroup: face-smiling\n"
                           "1F600        ; fully-qualified     # x E1.0 grinning face\n"
                           "1F601        ; fully-qualified     # x E1.0 its twin\n"
                           "1F602        ; fully-qualified     # x E1.0 not in the font\n"
                           "263A         ; unqualified         # x E0.6 not counted\n"
                           "\n# group: People & Body\n# subgroup: hand\n"
                           "1F44B        ; fully-qualified     # x E0.6 waving hand\n"
                           "1F44B 1F3FB  ; fully-qualified     # x E1.0 waving hand: light skin tone\n"
                           "1F44B 1F3FB 200D 1F600 FE0F ; fully-qualified # x E1.0 a long one";

static void test_layout(void **state) {
    (void)state;
    char folder[40];
    new_folder(folder);
    const bytes font = make_font();
    mhla_emoji_counts n;
    ASSERT_OK(
        mhla_emoji_lay_out(&n, folder, &(mhla_emoji_source){font.data, font.size, "tiny", list, strlen(list), "list"}));
    assert_int_equal(n.listed, 6);
    assert_int_equal(n.missing, 1);
    assert_int_equal(n.twins, 1);
    assert_int_equal(n.train, 4); /* classes of less than ten have no test */
    assert_int_equal(n.test, 0);
    ASSERT_OK(mhla_emoji_check(folder));
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
    assert_int_equal(mhla_dataset_count(data), 4);
    assert_int_equal(mhla_dataset_classes(data), 2);
    assert_string_equal(mhla_dataset_class_name(data, 0), "people-and-body");
    assert_string_equal(mhla_dataset_class_name(data, 1), "smileys-and-emotion");
    assert_non_null(strstr(mhla_dataset_file(data, 1), "people-and-body/1f44b-1f3fb.png"));
    mhla_image image = {0};
    int label;
    ASSERT_OK(mhla_dataset_get(data, 3, &image, &label));
    assert_int_equal(label, 1);
    assert_int_equal(image.width, 64);
    assert_int_equal(image.height, 64);
    const uint8_t red[3] = {255, 0, 0}, white[3] = {255, 255, 255};
    assert_memory_equal(image.data + (32 * 64 + 8) * 3, red, 3);
    assert_memory_equal(image.data + (32 * 64 + 56) * 3, white, 3); /* transparent */
    assert_memory_equal(image.data + (63 * 64 + 8) * 3, white, 3);  /* below the picture: 16 of 17 rows */
    mhla_image_free(&image);
    mhla_dataset_free(data);
    write_file(folder, "train/people-and-body/1f44b.png", "x", 1);
    ASSERT_FAILS(mhla_emoji_check(folder), MHLA_EDATA, "1f44b.png: neither PNG nor JPEG");
    remove_folder(folder);
}

/* Ten emoji, each in three tones of skin: glyphs 1, 2 are tones, 3.. the emoji, 13.. with a tone each. */
static bytes make_tones(void) {
    enum { EMOJI = 10 };
    bytes cmap = {0}, gsub = {0};
    static bytes pictures[2 + 3 * EMOJI];
    put(&cmap, 0, 2), put(&cmap, 1, 2), put(&cmap, 3, 2), put(&cmap, 10, 2), put(&cmap, 12, 4);
    put(&cmap, 12, 2), put(&cmap, 0, 2), put(&cmap, 16 + 2 * 12, 4), put(&cmap, 0, 4), put(&cmap, 2, 4);
    put(&cmap, 0x1f3fb, 4), put(&cmap, 0x1f3fc, 4), put(&cmap, 1, 4);
    put(&cmap, 0x1f400, 4), put(&cmap, 0x1f400 + EMOJI - 1, 4), put(&cmap, 3, 4);
    put(&gsub, 0x00010000, 4), put(&gsub, 10, 2), put(&gsub, 10, 2), put(&gsub, 10, 2);
    put(&gsub, 1, 2), put(&gsub, 4, 2);
    put(&gsub, 4, 2), put(&gsub, 0, 2), put(&gsub, 1, 2), put(&gsub, 8, 2);
    const uint32_t sets = 6 + 2 * EMOJI + 10; /* from the subtable: behind its head and the coverage */
    put(&gsub, 1, 2), put(&gsub, 6 + 2 * EMOJI, 2), put(&gsub, EMOJI, 2);
    for (uint32_t i = 0; i < EMOJI; i++) put(&gsub, sets + 18 * i, 2);
    put(&gsub, 2, 2), put(&gsub, 1, 2), put(&gsub, 3, 2), put(&gsub, 3 + EMOJI - 1, 2), put(&gsub, 0, 2);
    for (uint32_t i = 0; i < EMOJI; i++) {
        put(&gsub, 2, 2), put(&gsub, 6, 2), put(&gsub, 12, 2);
        for (uint32_t tone = 0; tone < 2; tone++)
            put(&gsub, 13 + 2 * i + tone, 2), put(&gsub, 2, 2), put(&gsub, 1 + tone, 2);
    }
    for (int i = 2; i < 2 + 3 * EMOJI; i++) pictures[i] = picture((uint8_t)(8 * i), (uint8_t)i, 100);
    return assemble(cmap, gsub, pictures, 2 + 3 * EMOJI);
}

/* A tenth of thirty pictures is for test, and those are one emoji in its three tones. */
static void test_tones(void **state) {
    (void)state;
    char folder[40], text[4096] = "# group: Animals\n";
    for (int i = 0; i < 10; i++)
        for (int tone = 0; tone < 3; tone++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%X%s ; fully-qualified # x E1 y\n", 0x1f400 + i,
                     tone == 0   ? ""
                     : tone == 1 ? " 1F3FB"
                                 : " 1F3FC");
    new_folder(folder);
    const bytes font = make_tones();
    mhla_emoji_counts n;
    ASSERT_OK(mhla_emoji_lay_out(&n, folder,
                                 &(mhla_emoji_source){font.data, font.size, "tones", text, strlen(text), "list"}));
    assert_int_equal(n.missing, 0);
    assert_int_equal(n.twins, 0);
    assert_int_equal(n.train, 27);
    assert_int_equal(n.test, 3);
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TEST));
    assert_int_equal(mhla_dataset_count(data), 3);
    const char *first = strrchr(mhla_dataset_file(data, 0), '/');
    for (int i = 1; i < 3; i++) assert_memory_equal(strrchr(mhla_dataset_file(data, i), '/'), first, 6);
    mhla_dataset_free(data);
    remove_folder(folder);
}

/* A font without pictures of what is listed, a list that is none, paths that a list cannot make. */
static void test_wrong_lists(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {{"", "list: none of its 0 emoji"},
                 {"# group: A\n1F602 ; fully-qualified # x E1 y\n", "none of its 1 emoji has an image in tiny"},
                 {"1F600 ; fully-qualified # x E1 y\n", "not a line of Unicode's list"},
                 {"# group: A\nxyz ; fully-qualified # x E1 y\n", "not a line of Unicode's list"},
                 {"# group: A\n110000 ; fully-qualified\n", "not a line of Unicode's list"},
                 {"# group: ../..\n1F600 ; fully-qualified\n", "a group without a name"}};
    const bytes font = make_font();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[40];
        mhla_emoji_counts n;
        new_folder(folder);
        ASSERT_FAILS(mhla_emoji_lay_out(&n, folder,
                                        &(mhla_emoji_source){font.data, font.size, "tiny", cases[i].text,
                                                             strlen(cases[i].text), "list"}),
                     MHLA_EDATA, cases[i].message);
        remove_folder(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_font),  cmocka_unit_test(test_broken_font), cmocka_unit_test(test_layout),
        cmocka_unit_test(test_tones), cmocka_unit_test(test_wrong_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
