/* Clips of things that move, made from pictures: two of one class cross a frame, bounce off its edges and pass each other. Clothes of
 * Fashion-MNIST, grey on black, and emoji, in colour on white. Everything is whole numbers, so that every machine makes the same bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/rng.h"
#include "core/status.h"
#include "data/data_impl.h"
#include "data/dataset_impl.h"
#include "file/file.h"
#include "file/npy.h"

enum { FRAMES = 8, SIDE = 32, MOST = 16, TRIES = 64 };

/* What the clips of a set are made of. */
typedef struct kind {
    int picture;  /* side of a picture ... */
    int times;    /* ... and how much smaller its object is */
    int channels; /* 1 grey on black, 3 colour on white */
    int count[2]; /* clips for training and test */
} kind;

static const kind clothes = {28, 2, 1, {4000, 500}}, emoji = {64, 4, 3, {2000, 250}};

static int object_side(const kind *k) { return k->picture / k->times; }
static int room_of(const kind *k) { return SIDE - object_side(k); }
static uint8_t ground_of(const kind *k) { return k->channels == 1 ? 0 : 255; }
static size_t clip_bytes(const kind *k) { return (size_t)FRAMES * SIDE * SIDE * (size_t)k->channels; }

/* A pixel of the object is the mean of times x times of the picture. */
static void shrink(uint8_t *object, const mhla_image *image, const kind *k) {
    const int side = object_side(k), n = k->times * k->times;
    for (int i = 0; i < side * side * k->channels; i++) {
        const int c = i % k->channels, x = i / k->channels % side * k->times, y = i / k->channels / side * k->times;
        int sum = n / 2;
        for (int j = 0; j < n; j++)
            sum += image->data[((y + j / k->times) * k->picture + x + j % k->times) * k->channels + c];
        object[i] = (uint8_t)(sum / n);
    }
}

/* Where something is that moves between 0 and `room` and turns round there. */
static int bounce(int from, int speed, int time, int room) {
    const int at = ((from + speed * time) % (2 * room) + 2 * room) % (2 * room);
    return at > room ? 2 * room - at : at;
}

static int draw_below(mhla_rng *r, int n) { return (int)(((uint64_t)mhla_rng_next(r) * (uint64_t)n) >> 32); }

static int brightness(const uint8_t *pixel, const kind *k) {
    int sum = 0;
    for (int c = 0; c < k->channels; c++) sum += pixel[c];
    return sum;
}

/* An object in all frames: of two pixels the one that differs more from the ground is seen. */
static void move(uint8_t *clip, const uint8_t *object, const kind *k, mhla_rng *r) {
    const int side = object_side(k), C = k->channels, sign = ground_of(k) ? -1 : 1;
    int from[2], speed[2];
    for (int a = 0; a < 2; a++) {
        from[a] = draw_below(r, room_of(k) + 1);
        speed[a] = 1 + draw_below(r, 3);
        if (draw_below(r, 2)) speed[a] = -speed[a];
    }
    for (int f = 0; f < FRAMES; f++) {
        const int top = bounce(from[0], speed[0], f, room_of(k)), left = bounce(from[1], speed[1], f, room_of(k));
        for (int i = 0; i < side * side; i++) {
            uint8_t *to = clip + (ptrdiff_t)((f * SIDE + top + i / side) * SIDE + left + i % side) * C;
            if (sign * brightness(object + (ptrdiff_t)i * C, k) > sign * brightness(to, k))
                memcpy(to, object + (ptrdiff_t)i * C, (size_t)C);
        }
    }
}

/* A clip and its label. The second object is another one of the first one's class. */
static mhla_status make_clip(uint8_t *clip, uint8_t *label, const kind *k, mhla_dataset *data, mhla_image *image,
                             mhla_rng *r) {
    const int count = (int)mhla_dataset_count(data);
    const int first = draw_below(r, count);
    int second = first, got;
    for (int i = 0;
         i < TRIES && (second == first || mhla_dataset_label(data, second) != mhla_dataset_label(data, first)); i++)
        second = draw_below(r, count);
    if (mhla_dataset_label(data, second) != mhla_dataset_label(data, first)) second = first; /* one in a thousand */
    const int pair[2] = {first, second};
    memset(clip, ground_of(k), clip_bytes(k));
    for (int i = 0; i < 2; i++) {
        uint8_t object[MOST * MOST * 3];
        MHLA_TRY(mhla_dataset_get(data, pair[i], image, &got));
        if (image->width != k->picture || image->height != k->picture || image->channels != k->channels)
            return mhla_fail(MHLA_EDATA, "image %d: expected %d x %d, %s", pair[i], k->picture, k->picture,
                             k->channels == 1 ? "grey" : "in colour");
        shrink(object, image, k);
        move(clip, object, k, r);
    }
    *label = (uint8_t)mhla_dataset_label(data, first);
    return MHLA_OK;
}

static mhla_status make_split(const mhla_data_part *parts, const kind *k, const char *source, const char *folder,
                              mhla_split split) {
    const int64_t n = k->count[split == MHLA_SPLIT_TEST], shape[] = {n, FRAMES, SIDE, SIDE, k->channels};
    const size_t each = clip_bytes(k);
    char path[2][4096];
    mhla_dataset *data = NULL;
    mhla_image image = {0};
    uint8_t *clips = calloc((size_t)n, each), *labels = calloc((size_t)n, 1);
    mhla_status status = clips && labels ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld clips", (long long)n);
    if (status == MHLA_OK) status = mhla_dataset_open(&data, source, split);
    if (status == MHLA_OK && mhla_dataset_frames(data))
        status = mhla_fail(MHLA_EDATA, "%s: holds clips: expected images", source);
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        mhla_rng r = mhla_rng_make(0, (uint64_t)split, (uint64_t)i, MHLA_PLACE_CLIPS);
        status = make_clip(clips + (size_t)i * each, labels + i, k, data, &image, &r);
    }
    for (int i = 0; i < 2 && status == MHLA_OK; i++) status = mhla_data_join(path[i], folder, parts[i].name);
    if (status == MHLA_OK) status = mhla_npy_write(path[0], MHLA_IO_U8, k->channels == 1 ? 4 : 5, shape, clips);
    if (status == MHLA_OK) status = mhla_npy_write(path[1], MHLA_IO_U8, 1, shape, labels);
    mhla_dataset_free(data);
    mhla_image_free(&image);
    free(clips);
    free(labels);
    return status;
}

/* Both parts of pictures in `source`, whose bytes decide: what is made of others is refused by its sum. */
static mhla_status make_parts(const mhla_data_set *set, const kind *k, const char *source, const char *folder) {
    MHLA_TRY(make_split(set->parts, k, source, folder, MHLA_SPLIT_TRAIN));
    MHLA_TRY(make_split(set->parts + 2, k, source, folder, MHLA_SPLIT_TEST));
    for (const mhla_data_part *p = set->parts; p->name; p++) {
        char path[4096];
        mhla_file file;
        MHLA_TRY(mhla_data_join(path, folder, p->name));
        MHLA_TRY(mhla_file_map(&file, path));
        const mhla_status status = mhla_data_check_bytes(p, file.data, file.size, p->name);
        mhla_file_unmap(&file);
        MHLA_TRY(status);
    }
    return MHLA_OK;
}

static mhla_status make_clothes(const mhla_data_set *set, const char *source, const char *folder) {
    return make_parts(set, &clothes, source, folder);
}

/* `source` is the folder of the set `emoji`, or what that is made from: then its pictures are there for a while. */
static mhla_status make_emoji(const mhla_data_set *set, const char *source, const char *folder) {
    char path[4096], pictures[4096];
    if (mhla_dataset_path(path, source, MHLA_EMOJI_LIST)) {
        MHLA_TRY(mhla_emoji_check(source));
        return make_parts(set, &emoji, source, folder);
    }
    MHLA_TRY(mhla_data_join(pictures, folder, "emoji"));
    if (mkdir(pictures, 0777) != 0) return mhla_fail(MHLA_EIO, "%s: %s", pictures, strerror(errno));
    mhla_status status = mhla_data_emoji.make(&mhla_data_emoji, source, pictures);
    if (status == MHLA_OK) status = make_parts(set, &emoji, pictures, folder);
    mhla_folder_remove(pictures);
    return status;
}

const mhla_data_set mhla_data_moving_emoji = {
    .info = {.name = "moving-emoji",
             .folder = "data/moving-emoji",
             .title = "2,000 + 250 clips in colour of two emoji that move, 8 frames of 32 x 32, 9 classes",
             .origin =
                 "made from Debian's packages fonts-noto-color-emoji 2.042 and unicode-data 15.0 (18 MB); Google, "
                 "Unicode",
             .licence = "font: SIL OFL 1.1; Unicode's list: Unicode licence",
             .by_hand = "`mhla data emoji`, then `mhla data moving-emoji --from data/emoji`"},
    .parts = {{"train_clips.npy", 49152128, "28d6fd547d0dff97c3783090aff001d6b2e8b46db4680561c3c08cb3d65aa008"},
              {"train_labels.npy", 2128, "f5631ae827b4325aa402d3473f52385ad883b49186b2237ec380ef30a9918938"},
              {"test_clips.npy", 6144128, "5ce199cb374be013705db512f498cc5217b3d373df66958f5939eebe861f5153"},
              {"test_labels.npy", 378, "93d3dd57580b0fe1d954a7087e2522655f00818712eaeddbe498d19c45e3c7ba"}},
    .classes = "activities\nanimals-and-nature\nflags\nfood-and-drink\nobjects\npeople-and-body\nsmileys-and-emotion\n"
               "symbols\ntravel-and-places\n",
    .readme =
        "Moving emoji: clips of 8 frames of 32 x 32 pixels. Two emoji of one group of Unicode's list, 16 x 16 pixels,\n"
        "move over white in straight lines, bounce off the edges and pass each other; training and test have "
        "different\n"
        "emoji. Made with a fixed seed by `mhla data moving-emoji` from Noto Color Emoji 2.042 (Google, SIL Open Font\n"
        "License 1.1) and Unicode's emoji-test.txt 15.0.\n",
    .make = make_emoji};

const mhla_data_set mhla_data_moving_fashion = {
    .info = {.name = "moving-fashion",
             .folder = "data/moving-fashion",
             .title = "4,000 + 500 grey clips of two pieces of clothing that move, 8 frames of 32 x 32, 10 classes",
             .origin = "made from Fashion-MNIST, Debian's package dataset-fashion-mnist (31 MB); Zalando SE, 2017",
             .licence = "MIT",
             .by_hand = "`mhla data fashion-mnist`, then `mhla data moving-fashion --from data/fashion-mnist`"},
    .parts = {{"train_clips.npy", 32768128, "8260c1a3b2513867d5361b4d3cbb10c33b5cc9444e132eaabd6a0a1428033d61"},
              {"train_labels.npy", 4128, "9c2322c407b5a7d317548ab19bbba2d1ea395d7ca67ba107014381c72b44f735"},
              {"test_clips.npy", 4096128, "11fd7195d13c670a9c08f2fbf3cdf9c8e543a5cf08958c15fccf476bacc9f0d0"},
              {"test_labels.npy", 628, "d415f165a6a9f18fd22f23c561b51fb259aa0b77d75a9b071c11ddc75ffc5353"}},
    .classes = "T-shirt/top\nTrouser\nPullover\nDress\nCoat\nSandal\nShirt\nSneaker\nBag\nAnkle boot\n",
    .readme =
        "Moving Fashion-MNIST: clips of 8 frames of 32 x 32 pixels. Two pieces of clothing of one class, 14 x 14 "
        "pixels,\n"
        "move in straight lines, bounce off the edges and pass each other. Made from Fashion-MNIST (Zalando SE, 2017,\n"
        "MIT licence) with a fixed seed by `mhla data moving-fashion`.\n",
    .make = make_clothes};
