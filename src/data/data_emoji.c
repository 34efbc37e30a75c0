/* Emoji: the coloured bitmaps of Debian's font, sorted into folders by the groups of Unicode's list. A folder per class in train
 * and test; pictures over white, in a square of 64 x 64; their names are their code points. All tones of skin of an emoji are
 * in the same part, so that no test picture has a twin in training. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/rng.h"
#include "core/status.h"
#include "data/data_impl.h"
#include "data/dataset_impl.h"
#include "data/emoji_font.h"
#include "file/file.h"
#include "file/sha256.h"
#include "image/image_codec.h"
#include "image/resize.h"

enum { SIDE = 64, MAX_EMOJI = 1 << 16, MAX_GROUPS = 64, TEST_OF = 10 };

typedef struct emoji {
    uint32_t codes[MHLA_EMOJI_CODES];
    int count;
    int group, test;
    int glyph;
    char about[128]; /* "face-smiling: grinning face" */
} emoji;

typedef struct collection {
    mhla_emoji_font font;
    const char *name; /* of the list, for messages */
    emoji *all;
    int count;
    char groups[MAX_GROUPS][64]; /* as folders */
    int group_count;
    mhla_emoji_counts *counts;
} collection;

/* ---- Unicode's list: "# group: NAME", "# subgroup: NAME", "CODES ; STATUS # CHARACTER VERSION NAME" ------------------- */

/* "Smileys & Emotion" -> "smileys-and-emotion": nothing else than letters, digits and dashes becomes part of a path. */
static void folder_name(char out[64], const char *text, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size && n < 60; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (isalnum(c) && c < 128)
            out[n++] = (char)tolower(c);
        else if (c == '&')
            n += (size_t)sprintf(out + n, "and");
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    }
    while (n > 0 && out[n - 1] == '-') n--;
    out[n] = '\0';
}

static mhla_status begin_group(collection *c, const char *text, size_t size, int *group) {
    char name[64];
    folder_name(name, text, size);
    if (*name == '\0') return mhla_fail(MHLA_EDATA, "%s: a group without a name", c->name);
    for (*group = 0; *group < c->group_count; ++*group)
        if (strcmp(c->groups[*group], name) == 0) return MHLA_OK;
    if (c->group_count == MAX_GROUPS) return mhla_fail(MHLA_EDATA, "%s: more than %d groups", c->name, MAX_GROUPS);
    strcpy(c->groups[c->group_count++], name);
    return MHLA_OK;
}

/* The code points before the semicolon; 0 where there are none, too many, or something else. */
static int read_codes(uint32_t codes[MHLA_EMOJI_CODES], const char *line) {
    int n = 0;
    while (*line == ' ') line++;
    while (isxdigit((unsigned char)*line)) {
        char *end;
        const unsigned long code = strtoul(line, &end, 16);
        if (n == MHLA_EMOJI_CODES || code == 0 || code > 0x10ffff) return 0;
        codes[n++] = (uint32_t)code;
        for (line = end; *line == ' ';) line++;
    }
    return *line == ';' ? n : 0;
}

/* What follows the version ("E1.0 grinning face"), behind the subgroup. Control characters do not get in. */
static void describe(char *about, size_t size, const char *subgroup, const char *line) {
    const char *text = strrchr(line, '#');
    for (int words = 0; text && words < 3; words++) { /* "#", the character, the version */
        text = strchr(text, ' ');
        if (text) text++;
    }
    snprintf(about, size, "%s: %s", subgroup, text ? text : "");
    for (char *x = about; *x; x++)
        if ((unsigned char)*x < 32) *x = ' ';
}

static int same_picture(const collection *c, int glyph, mhla_font_part png) {
    for (int i = 0; i < c->count; i++) {
        mhla_font_part other;
        if (c->all[i].glyph == glyph) return 1;
        if (mhla_emoji_font_png(&other, &c->font, c->all[i].glyph) == MHLA_OK && other.size == png.size &&
            memcmp(other.data, png.data, png.size) == 0)
            return 1;
    }
    return 0;
}

static mhla_status add_emoji(collection *c, const char *line, int group, const char *subgroup) {
    emoji e = {.group = group};
    mhla_font_part png;
    e.count = read_codes(e.codes, line);
    if (e.count == 0 || group < 0 || c->counts->listed == MAX_EMOJI)
        return mhla_fail(MHLA_EDATA, "%s: not a line of Unicode's list of emoji: \"%.40s\"", c->name, line);
    c->counts->listed++;
    e.glyph = mhla_emoji_font_glyph(&c->font, e.codes, e.count);
    MHLA_TRY(mhla_emoji_font_png(&png, &c->font, e.glyph));
    if (e.glyph == 0 || png.size == 0) {
        c->counts->missing++;
        return MHLA_OK;
    }
    if (same_picture(c, e.glyph, png)) {
        c->counts->twins++;
        return MHLA_OK;
    }
    describe(e.about, sizeof e.about, subgroup, line);
    c->all[c->count++] = e;
    return MHLA_OK;
}

/* Lines of fully qualified emoji; the others are the same ones again, written in other ways, or parts of emoji. */
static mhla_status read_list(collection *c, const char *text, size_t size) {
    char line[512], subgroup[64] = "";
    int group = -1;
    for (size_t at = 0; at < size;) {
        const char *newline = memchr(text + at, '\n', size - at);
        const size_t n = newline ? (size_t)(newline - text) - at : size - at;
        const size_t kept = n < sizeof line - 1 ? n : sizeof line - 1;
        memcpy(line, text + at, kept);
        line[kept] = '\0';
        at += n + 1;
        if (strncmp(line, "# group: ", 9) == 0)
            MHLA_TRY(begin_group(c, line + 9, strlen(line + 9), &group));
        else if (strncmp(line, "# subgroup: ", 12) == 0)
            folder_name(subgroup, line + 12, strlen(line + 12));
        else if (*line != '#' && strstr(line, "; fully-qualified"))
            MHLA_TRY(add_emoji(c, line, group, subgroup));
    }
    if (c->count > 0) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: none of its %d emoji has an image in %s", c->name, c->counts->listed,
                     c->font.name);
}

/* ---- Training and test ---------------------------------------------------------------------------------------------------- */

static int is_tone(uint32_t code) { return code >= 0x1f3fb && code <= 0x1f3ff; }

/* The same emoji, whatever the tones of skin? */
static int same_but_tones(const emoji *a, const emoji *b) {
    int i = 0, j = 0;
    for (;;) {
        while (i < a->count && is_tone(a->codes[i])) i++;
        while (j < b->count && is_tone(b->codes[j])) j++;
        if (i == a->count || j == b->count) return i == a->count && j == b->count;
        if (a->codes[i++] != b->codes[j++]) return 0;
    }
}

/* Of each class, emoji by a fixed seed, with all their tones, until a tenth is reached. A class of one stays in training. */
static void choose_test(collection *c, int *order) {
    for (int group = 0; group < c->group_count; group++) {
        int n = 0, chosen = 0;
        for (int i = 0; i < c->count; i++)
            if (c->all[i].group == group) order[n++] = i;
        mhla_rng rng = mhla_rng_make(20220812, 0, (uint64_t)group, 0);
        for (int i = n - 1; i > 0; i--) {
            const int j = (int)mhla_rng_below(&rng, (uint32_t)i + 1), x = order[i];
            order[i] = order[j];
            order[j] = x;
        }
        for (int i = 0; i < n && chosen < n / TEST_OF; i++)
            for (int j = 0; j < n; j++)
                if (!c->all[order[j]].test && same_but_tones(&c->all[order[i]], &c->all[order[j]])) {
                    c->all[order[j]].test = 1;
                    chosen++;
                }
    }
}

/* ---- Writing -------------------------------------------------------------------------------------------------------------- */

/* Over white, in the middle of a square, at the size of the set. */
static mhla_status draw(mhla_image *out, mhla_image *square, mhla_image *decoded, mhla_font_part png,
                        const char *name) {
    const mhla_source source = {png.data, png.size, name};
    MHLA_TRY(mhla_png_decode_over(decoded, &source, 255));
    const int w = decoded->width, h = decoded->height, side = w > h ? w : h;
    if (side > 4096) return mhla_fail(MHLA_EDATA, "%s: %d x %d pixels: too large for an emoji", name, w, h);
    MHLA_TRY(mhla_image_reserve(square, side, side, 3));
    memset(square->data, 255, (size_t)side * (size_t)side * 3);
    for (int y = 0; y < h; y++)
        memcpy(square->data + ((size_t)(y + (side - h) / 2) * (size_t)side + (size_t)((side - w) / 2)) * 3,
               decoded->data + (size_t)y * (size_t)w * 3, (size_t)w * 3);
    return mhla_image_resize(out, square, SIDE, SIDE, MHLA_FILTER_BICUBIC, NULL);
}

static void path_of(char path[256], const collection *c, const emoji *e) {
    int n = snprintf(path, 256, "%s/%s/", e->test ? "test" : "train", c->groups[e->group]);
    for (int i = 0; i < e->count; i++) n += snprintf(path + n, 256 - (size_t)n, "%s%x", i ? "-" : "", e->codes[i]);
    snprintf(path + n, 256 - (size_t)n, ".png");
}

/* Without waiting for the disk at each of some thousand files: the folder has no name yet, and is waited for as a whole. */
static mhla_status write_plainly(const char *folder, const char *name, const void *bytes, size_t size) {
    char path[4096];
    MHLA_TRY(mhla_data_join(path, folder, name));
    FILE *f = fopen(path, "wbxe");
    int ok = f != NULL && fwrite(bytes, 1, size, f) == size;
    if (f) ok = fclose(f) == 0 && ok;
    return ok ? MHLA_OK : mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
}

static mhla_status make_folders(const collection *c, const char *folder) {
    static const char *const parts[] = {"train", "test"};
    char path[4096], name[256];
    for (int p = 0; p < 2; p++) {
        MHLA_TRY(mhla_data_join(path, folder, parts[p]));
        if (mkdir(path, 0777) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
        for (int g = 0; g < c->group_count; g++) {
            int used = 0;
            for (int i = 0; i < c->count; i++) used |= c->all[i].group == g && c->all[i].test == p;
            if (!used) continue;
            snprintf(name, sizeof name, "%s/%s", parts[p], c->groups[g]);
            MHLA_TRY(mhla_data_join(path, folder, name));
            if (mkdir(path, 0777) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
        }
    }
    return MHLA_OK;
}

typedef struct pictures {
    mhla_image decoded, square, image;
} pictures;

/* A picture, and its line of the list: the SHA-256 of its pixels (a PNG's bytes depend on who packed them), path, name. */
static mhla_status write_emoji(const collection *c, const emoji *e, const char *folder, FILE *list, pictures *p) {
    char path[256], sum[65];
    uint8_t *bytes = NULL;
    size_t size = 0;
    mhla_font_part png;
    path_of(path, c, e);
    MHLA_TRY(mhla_emoji_font_png(&png, &c->font, e->glyph));
    MHLA_TRY(draw(&p->image, &p->square, &p->decoded, png, path));
    MHLA_TRY(mhla_image_encode_png(&bytes, &size, &p->image, NULL, 0));
    const mhla_status status = write_plainly(folder, path, bytes, size);
    free(bytes);
    MHLA_TRY(status);
    mhla_sha256_of(p->image.data, (size_t)SIDE * SIDE * 3, sum);
    fprintf(list, "%s  %s  %s\n", sum, path, e->about);
    return MHLA_OK;
}

static mhla_status write_all(const collection *c, const char *folder) {
    char *text = NULL;
    size_t size = 0;
    pictures p = {0};
    FILE *list = open_memstream(&text, &size);
    mhla_status status = list ? make_folders(c, folder) : mhla_fail(MHLA_ENOMEM, "no memory for a list of images");
    for (int i = 0; i < c->count && status == MHLA_OK; i++) status = write_emoji(c, &c->all[i], folder, list, &p);
    if (list && fclose(list) != 0 && status == MHLA_OK)
        status = mhla_fail(MHLA_ENOMEM, "no memory for a list of images");
    if (status == MHLA_OK) status = mhla_data_write(folder, MHLA_EMOJI_LIST, text, size);
    const int place = status == MHLA_OK ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (place >= 0) {
        if (syncfs(place) != 0) status = mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
        close(place);
    }
    free(text);
    mhla_image_free(&p.decoded);
    mhla_image_free(&p.square);
    mhla_image_free(&p.image);
    return status;
}

mhla_status mhla_emoji_lay_out(mhla_emoji_counts *counts, const char *folder, const mhla_emoji_source *s) {
    *counts = (mhla_emoji_counts){0};
    collection c = {.name = s->list_name, .counts = counts};
    MHLA_TRY(mhla_emoji_font_open(&c.font, s->font, s->font_size, s->font_name));
    c.all = malloc(MAX_EMOJI * sizeof *c.all);
    int *order = malloc(MAX_EMOJI * sizeof *order);
    mhla_status status = c.all && order ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of emoji");
    if (status == MHLA_OK) status = read_list(&c, s->list, s->list_size);
    if (status == MHLA_OK) {
        choose_test(&c, order);
        for (int i = 0; i < c.count; i++) counts->test += c.all[i].test;
        counts->train = c.count - counts->test;
        status = write_all(&c, folder);
    }
    free(order);
    free(c.all);
    return status;
}

/* ---- Checking: every line of the list, whose own SHA-256 was right ---------------------------------------------------------- */

static mhla_status check_line(const char *folder, const char *line, mhla_image *image) {
    char sum[65], name[256], path[4096];
    if (sscanf(line, "%*64[0-9a-f]  %255[^ \n]", name) != 1) /* NOLINT(cert-err34-c): texts only */
        return mhla_fail(MHLA_EDATA, "%s/%s: not a line of it: \"%.40s\"", folder, MHLA_EMOJI_LIST, line);
    MHLA_TRY(mhla_data_join(path, folder, name));
    MHLA_TRY(mhla_image_read(image, path, 3));
    if (image->width != SIDE || image->height != SIDE)
        return mhla_fail(MHLA_EDATA, "%s: %d x %d pixels, expected %d x %d", path, image->width, image->height, SIDE,
                         SIDE);
    mhla_sha256_of(image->data, (size_t)SIDE * SIDE * 3, sum);
    if (strncmp(sum, line, 64) == 0) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: the SHA-256 of its pixels is %s, expected %.64s", path, sum, line);
}

mhla_status mhla_emoji_check(const char *folder) {
    char path[4096], line[1024];
    mhla_image image = {0};
    mhla_file list;
    MHLA_TRY(mhla_data_join(path, folder, MHLA_EMOJI_LIST));
    MHLA_TRY(mhla_file_map(&list, path));
    mhla_status status = MHLA_OK;
    for (size_t at = 0; at < list.size && status == MHLA_OK;) {
        const unsigned char *stop = memchr(list.data + at, '\n', list.size - at);
        const size_t n = stop ? (size_t)(stop - list.data) - at : list.size - at;
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), (const char *)list.data + at);
        status = check_line(folder, line, &image);
        at += n + 1;
    }
    mhla_file_unmap(&list);
    mhla_image_free(&image);
    return status;
}

/* ---- The row ----------------------------------------------------------------------------------------------------------------- */

static const mhla_data_part font_part = {"NotoColorEmoji.ttf", 10980856,
                                         "e5899ed38b8ed83e08bd3ac5de09791e9d19d288333a796de1d35ad17396f1ec"};
static const mhla_data_part list_part = {"emoji-test.txt", 593240,
                                         "8445f23ac8388e096be19d0262e14fceff856ff52093f2356dc89485f1a853db"};

/* A file of the source: in it, or where its package puts it. */
static mhla_status map_source(mhla_file *file, char path[4096], const char *source, const char *below,
                              const mhla_data_part *part) {
    char place[256];
    snprintf(place, sizeof place, "%s/%s", below, part->name);
    *file = (mhla_file){0};
    if (!mhla_dataset_path(path, source, part->name) && !mhla_dataset_path(path, source, place))
        return mhla_fail(MHLA_EIO, "%s: neither %s nor %s exists", source, part->name, place);
    MHLA_TRY(mhla_file_map(file, path));
    return mhla_data_check_bytes(part, file->data, file->size, path);
}

static mhla_status make_emoji(const mhla_data_set *set, const char *source, const char *folder) {
    mhla_file font = {0}, list = {0}, made = {0};
    char font_path[4096], list_path[4096], made_path[4096];
    mhla_emoji_counts counts;
    mhla_status status = map_source(&font, font_path, source, "usr/share/fonts/truetype/noto", &font_part);
    if (status == MHLA_OK) status = map_source(&list, list_path, source, "usr/share/unicode/emoji", &list_part);
    if (status == MHLA_OK)
        status = mhla_emoji_lay_out(&counts, folder,
                                    &(mhla_emoji_source){.font = font.data,
                                                         .font_size = font.size,
                                                         .font_name = font_path,
                                                         .list = (const char *)list.data,
                                                         .list_size = list.size,
                                                         .list_name = list_path});
    if (status == MHLA_OK) status = mhla_data_join(made_path, folder, MHLA_EMOJI_LIST);
    if (status == MHLA_OK) status = mhla_file_map(&made, made_path);
    if (status == MHLA_OK) status = mhla_data_check_bytes(set->parts, made.data, made.size, made_path);
    mhla_file_unmap(&font);
    mhla_file_unmap(&list);
    mhla_file_unmap(&made);
    return status;
}

const mhla_data_set mhla_data_emoji = {
    .info = {.name = "emoji",
             .folder = "data/emoji",
             .title = "3,641 emoji in colour, 64 x 64, 9 classes by group, split into 3,275 and 366",
             .origin = "Debian's packages fonts-noto-color-emoji 2.042 and unicode-data 15.0 (18 MB); Google, Unicode",
             .licence = "font: SIL OFL 1.1; Unicode's list: Unicode licence",
             .by_hand = "fetch fonts-noto-color-emoji_2.042-0+deb12u1_all.deb and unicode-data_15.0.0-1_all.deb of "
                        "Debian 12, unpack both into one folder with dpkg -x, then "
                        "`mhla data emoji --from FOLDER`"},
    .parts = {{MHLA_EMOJI_LIST, 534697, "d6a8a710f8c76dc1d277aaacb0659f7821907add00065bf3c9f790387fe8eeeb"}},
    .readme =
        "Emoji: the bitmaps of Noto Color Emoji 2.042 (Google, SIL Open Font License 1.1) as pictures of 64 x 64\n"
        "pixels over white, in folders by the groups of Unicode's emoji-test.txt 15.0. A file's name is its code\n"
        "points; pictures.txt has the SHA-256 of every picture's pixels, its subgroup and its name. Pictures that\n"
        "are there twice (flags of dependent territories, a snowboarder whose skin does not show) are kept once.\n"
        "test/ has a tenth of each group, drawn with a fixed seed, all tones of skin of an emoji together.\n"
        "Made by `mhla data emoji` from Debian's packages fonts-noto-color-emoji and unicode-data.\n",
    .make = make_emoji,
    .check = mhla_emoji_check,
};
