/* Moving Fashion-MNIST: clips in which two pieces of clothing of one class cross a black frame, bounce off its edges and pass each
 * other. Everything is whole numbers, so that every machine makes the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/status.h"
#include "data/data_impl.h"
#include "data/dataset.h"
#include "file/file.h"
#include "file/npy.h"

enum { FRAMES = 8, SIDE = 32, OBJECT = 14, ROOM = SIDE - OBJECT, TRAIN = 4000, TEST = 500, TRIES = 64 };

/* Half the size of a picture of 28 x 28: means of four pixels. */
static void shrink(uint8_t object[OBJECT * OBJECT], const mhla_image *image) {
    for (int y = 0; y < OBJECT; y++)
        for (int x = 0; x < OBJECT; x++) {
            const uint8_t *p = image->data + (size_t)(2 * y) * 28 + (size_t)(2 * x);
            object[y * OBJECT + x] = (uint8_t)((p[0] + p[1] + p[28] + p[29] + 2) / 4);
        }
}

/* Where something is that moves between 0 and ROOM and turns round there. */
static int bounce(int from, int speed, int time) {
    const int at = ((from + speed * time) % (2 * ROOM) + 2 * ROOM) % (2 * ROOM);
    return at > ROOM ? 2 * ROOM - at : at;
}

static int draw_below(mhla_rng *r, int n) { return (int)(((uint64_t)mhla_rng_next(r) * (uint64_t)n) >> 32); }

/* An object in all frames: the lighter pixel is seen. */
static void move(uint8_t *clip, const uint8_t object[OBJECT * OBJECT], mhla_rng *r) {
    int from[2], speed[2];
    for (int a = 0; a < 2; a++) {
        from[a] = draw_below(r, ROOM + 1);
        speed[a] = 1 + draw_below(r, 3);
        if (draw_below(r, 2)) speed[a] = -speed[a];
    }
    for (int f = 0; f < FRAMES; f++) {
        const int top = bounce(from[0], speed[0], f), left = bounce(from[1], speed[1], f);
        for (int i = 0; i < OBJECT * OBJECT; i++) {
            uint8_t *to = clip + (f * SIDE + top + i / OBJECT) * SIDE + left + i % OBJECT;
            if (object[i] > *to) *to = object[i];
        }
    }
}

/* A clip and its label. The second object is another one of the first one's class. */
static mhla_status make_clip(uint8_t *clip, uint8_t *label, mhla_dataset *data, mhla_image *image, mhla_rng *r) {
    const int count = (int)mhla_dataset_count(data);
    const int first = draw_below(r, count);
    int second = first, got;
    for (int i = 0;
         i < TRIES && (second == first || mhla_dataset_label(data, second) != mhla_dataset_label(data, first)); i++)
        second = draw_below(r, count);
    if (mhla_dataset_label(data, second) != mhla_dataset_label(data, first)) second = first; /* one in a thousand */
    const int pair[2] = {first, second};
    for (int i = 0; i < 2; i++) {
        uint8_t object[OBJECT * OBJECT];
        MHLA_TRY(mhla_dataset_get(data, pair[i], image, &got));
        shrink(object, image);
        move(clip, object, r);
    }
    *label = (uint8_t)mhla_dataset_label(data, first);
    return MHLA_OK;
}

static mhla_status make_split(const mhla_data_part *parts, const char *source, const char *folder, mhla_split split) {
    const int64_t n = split == MHLA_SPLIT_TRAIN ? TRAIN : TEST, shape[] = {n, FRAMES, SIDE, SIDE};
    const size_t each = (size_t)FRAMES * SIDE * SIDE;
    char path[2][4096];
    mhla_dataset *data = NULL;
    mhla_image image = {0};
    uint8_t *clips = calloc((size_t)n, each), *labels = calloc((size_t)n, 1);
    mhla_status status = clips && labels ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %lld clips", (long long)n);
    if (status == MHLA_OK) status = mhla_dataset_open(&data, source, split);
    if (status == MHLA_OK && (mhla_dataset_width(data) != 28 || mhla_dataset_height(data) != 28 ||
                              mhla_dataset_channels(data) != 1 || mhla_dataset_frames(data)))
        status = mhla_fail(MHLA_EDATA, "%s: expected grey pictures of 28 x 28", source);
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        mhla_rng r = mhla_rng_make(0, (uint64_t)split, (uint64_t)i, MHLA_PLACE_CLIPS);
        status = make_clip(clips + (size_t)i * each, labels + i, data, &image, &r);
    }
    for (int i = 0; i < 2 && status == MHLA_OK; i++) status = mhla_data_join(path[i], folder, parts[i].name);
    if (status == MHLA_OK) status = mhla_npy_write(path[0], MHLA_IO_U8, 4, shape, clips);
    if (status == MHLA_OK) status = mhla_npy_write(path[1], MHLA_IO_U8, 1, shape, labels);
    mhla_dataset_free(data);
    mhla_image_free(&image);
    free(clips);
    free(labels);
    return status;
}

/* `source` is a folder of Fashion-MNIST, whose bytes decide: what is made of others is refused by its sum. */
static mhla_status make_moving(const mhla_data_set *set, const char *source, const char *folder) {
    MHLA_TRY(make_split(set->parts, source, folder, MHLA_SPLIT_TRAIN));
    MHLA_TRY(make_split(set->parts + 2, source, folder, MHLA_SPLIT_TEST));
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
    .make = make_moving};
