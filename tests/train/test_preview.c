/* Training pictures to look at: they are those of the run, pixel for pixel, with the classes that they count as. */
#include "data/dataset.h"
#include "image/image.h"
#include "train_case.h"

enum { COUNT = 20, ACROSS = 5, SIDE = 8, GAP = 2 };

typedef struct seen {
    int64_t index[COUNT];
    int label[COUNT][2], labels[COUNT];
    double share[COUNT][2];
    int count;
} seen;

static void take(void *user, const mhla_preview_picture *p) {
    seen *s = user;
    assert_int_equal(p->number, s->count);
    assert_in_range(p->labels, 1, 2);
    s->index[s->count] = p->index;
    s->labels[s->count] = p->labels;
    for (int i = 0; i < p->labels; i++) s->label[s->count][i] = p->label[i], s->share[s->count][i] = p->share[i];
    s->count++;
}

static mhla_status preview(seen *s, const char *out, const char *extra) {
    char source[128];
    snprintf(source, sizeof source, "data.source=%s/data", root); /* of set_up: 320 pictures of 8 x 8 */
    const char *settings[] = {
        source,         "model.image=8",  "model.padding=0",      "model.patch=2",  "model.dim=16", "model.depth=1",
        "model.crop=1", "model.mean=0.4", "model.deviation=0.25", "train.batch=16", "seed=3",       extra};
    *s = (seen){.count = 0};
    return mhla_train_preview(out, NULL, settings, extra ? 12 : 11, COUNT, ACROSS, take, s);
}

static int pixel(const mhla_image *grid, int number, int y, int x) {
    const int row = number / ACROSS * (SIDE + GAP) + y, column = number % ACROSS * (SIDE + GAP) + x;
    return grid->data[row * grid->width + column];
}

static void shown(void **state) {
    (void)state;
    char out[96], again[96], folder[96];
    seen plain, mixed;
    mhla_dataset *data;
    mhla_image grid = {0}, image = {0}, other = {0};
    snprintf(folder, sizeof folder, "%s/data", root);
    snprintf(out, sizeof out, "%s/a.png", root);
    snprintf(again, sizeof again, "%s/b.png", root);
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));

    /* without augmentation: the pictures themselves, in the order of the run */
    ASSERT_OK(preview(&plain, out, NULL));
    assert_int_equal(plain.count, COUNT);
    ASSERT_OK(mhla_image_read(&grid, out, 0));
    assert_int_equal(grid.width, ACROSS * (SIDE + GAP) - GAP);
    assert_int_equal(grid.height, COUNT / ACROSS * (SIDE + GAP) - GAP);
    for (int i = 0; i < COUNT; i++) {
        int label;
        ASSERT_OK(mhla_dataset_get(data, plain.index[i], &image, &label));
        assert_int_equal(plain.labels[i], 1);
        assert_int_equal(plain.label[i][0], label);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) assert_int_equal(pixel(&grid, i, y, x), image.data[y * SIDE + x]);
    }
    /* mixup: each with its partner, picture 15 - i of the batch of 16, in the shares that are told */
    ASSERT_OK(preview(&mixed, again, "augment.mixup=0.8"));
    ASSERT_OK(mhla_image_read(&grid, again, 0));
    int mixtures = 0;
    for (int i = 0; i < 16; i++) {
        int label, partner;
        assert_int_equal(mixed.index[i], plain.index[i]);
        ASSERT_OK(mhla_dataset_get(data, mixed.index[i], &image, &label));
        ASSERT_OK(mhla_dataset_get(data, mixed.index[15 - i], &other, &partner));
        if (mixed.labels[i] == 1) {
            assert_int_equal(label, partner);
            continue;
        }
        mixtures++;
        const double own = mixed.label[i][0] == label ? mixed.share[i][0] : mixed.share[i][1];
        assert_true(mixed.share[i][0] >= mixed.share[i][1]);
        for (int p = 0; p < SIDE * SIDE; p++)
            assert_true(fabs(own * image.data[p] + (1.0 - own) * other.data[p] - pixel(&grid, i, p / SIDE, p % SIDE)) <=
                        0.51);
    }
    assert_true(mixtures > 4);

    ASSERT_FAILS(preview(&plain, out, "task=text"), MHLA_EINVAL, "");
    ASSERT_FAILS(preview(&plain, out, "augment.mixup=-1"), MHLA_EINVAL, "augment.mixup");
    ASSERT_FAILS(mhla_train_preview(out, NULL, NULL, 0, 401, 8, NULL, NULL), MHLA_EINVAL, "401 images");
    ASSERT_FAILS(mhla_train_preview(NULL, NULL, NULL, 0, 4, 2, NULL, NULL), MHLA_EINVAL, "out is NULL");
    mhla_dataset_free(data);
    mhla_image_free(&grid);
    mhla_image_free(&image);
    mhla_image_free(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shown)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
