/* The loader: the same bytes for any number of workers and after any seek, epochs that are permutations, broken files, errors, ends. */
#include "data/loader.h"
#include "folders.h"
#include "pictures.h"

enum { PICTURES = 23, CLASSES = 3 };

/* A folder of small JPEGs in three classes; with `broken`, some that cannot be decoded among them. */
static void make_folder(char folder[40], int broken) {
    new_folder(folder);
    for (int i = 0; i < PICTURES; i++) {
        mhla_image m = picture(20 + i, 40 - i, i % 4 ? 3 : 1);
        uint8_t *bytes;
        size_t n;
        char name[40];
        ASSERT_OK(mhla_image_encode_jpeg(&bytes, &n, &m, 80));
        snprintf(name, sizeof name, "class%d/%02d.jpg", i % CLASSES, i);
        write_file(folder, name, bytes, broken && i % 5 == 2 ? n - 60 : n);
        free(bytes);
        mhla_image_free(&m);
    }
}

static mhla_loader_desc paper(mhla_dataset *data, int workers) {
    mhla_loader_desc d = {.data = data, .batch = 4, .train = 1, .workers = workers, .seed = 42};
    d.augment = (mhla_augment){.height = 16, .crop = MHLA_CROP_RANDOM, .flip = 0.5f, .erase = 0.25f};
    ASSERT_OK(mhla_augment_parse(&d.augment, "rand-m9-mstd0.5-inc1"));
    d.mix = (mhla_mix){.mixup = 0.2, .cutmix = 1.0, .smoothing = 0.1};
    return d;
}

static uint64_t hash_batch(const mhla_batch *b, int size, int classes) {
    uint64_t h = fnv((const uint8_t *)b->images, (size_t)b->count * 3 * (size_t)(size * size) * sizeof(float));
    if (b->targets) h ^= fnv((const uint8_t *)b->targets, (size_t)(b->count * classes) * sizeof(float)) * 3;
    h ^= fnv((const uint8_t *)b->labels, (size_t)b->count * sizeof(int)) * 5;
    return h ^ (uint64_t)b->epoch * 7 ^ (uint64_t)b->batch * 11;
}

enum { STEPS = 25 };

static void run(uint64_t hash[STEPS], mhla_dataset *data, int workers, int ahead) {
    mhla_loader_desc d = paper(data, workers);
    d.ahead = ahead;
    mhla_loader *l;
    ASSERT_OK(mhla_loader_create(&l, &d));
    const int64_t batches = mhla_loader_batches(l);
    for (int i = 0; i < STEPS; i++) {
        const mhla_batch *b;
        ASSERT_OK(mhla_loader_next(l, &b));
        assert_int_equal(b->epoch, i / batches);
        assert_int_equal(b->batch, i % batches);
        assert_int_equal(b->count, 4);
        hash[i] = hash_batch(b, 16, CLASSES);
    }
    mhla_loader_free(l);
}

static void test_workers(void **state) {
    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        char folder[40];
        make_folder(folder, broken);
        mhla_dataset *data;
        ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
        uint64_t wanted[STEPS], got[STEPS];
        run(wanted, data, 0, 0);
        for (int i = 1; i < STEPS; i++) assert_true(wanted[i] != wanted[i - 1]);
        static const int ways[][2] = {{1, 1}, {1, 0}, {2, 2}, {3, 9}, {7, 4}};
        for (int i = 0; i < 5; i++) {
            run(got, data, ways[i][0], ways[i][1]);
            assert_memory_equal(got, wanted, sizeof got);
        }
        int64_t count;
        const char *sentence;
        assert_int_equal(mhla_dataset_broken(data, &count, &sentence, 1), broken);
        assert_int_equal(count, broken ? 5 : 0);
        mhla_dataset_free(data);
        remove_folder(folder);
    }
}

/* Any position can be gone back to, from anywhere, with the same batches from there on. */
static void test_seek(void **state) {
    (void)state;
    char folder[40];
    make_folder(folder, 0);
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
    uint64_t wanted[STEPS];
    run(wanted, data, 0, 0);
    mhla_loader_desc d = paper(data, 2);
    mhla_loader *l;
    ASSERT_OK(mhla_loader_create(&l, &d));
    const int64_t batches = mhla_loader_batches(l);
    assert_int_equal(batches, PICTURES / 4);
    rng r = {3};
    for (int round = 0; round < 20; round++) {
        const int at = rng_below(&r, STEPS - 3);
        if (at > 0 && at % batches == 0) /* the end of an epoch is the beginning of the next */
            ASSERT_OK(mhla_loader_seek(l, at / batches - 1, batches));
        else
            ASSERT_OK(mhla_loader_seek(l, at / batches, at % batches));
        for (int i = at; i < at + 3; i++) {
            const mhla_batch *b;
            ASSERT_OK(mhla_loader_next(l, &b));
            assert_true(hash_batch(b, 16, CLASSES) == wanted[i]);
        }
    }
    ASSERT_FAILS(mhla_loader_seek(l, 0, batches + 1), MHLA_EINVAL, "an epoch has 5");
    ASSERT_FAILS(mhla_loader_seek(l, -1, 0), MHLA_EINVAL, "epoch -1");
    mhla_loader_free(l);
    /* and a fresh one that starts in the middle */
    d.workers = 3;
    ASSERT_OK(mhla_loader_create(&l, &d));
    ASSERT_OK(mhla_loader_seek(l, 2, 3));
    const mhla_batch *b;
    ASSERT_OK(mhla_loader_next(l, &b));
    assert_true(hash_batch(b, 16, CLASSES) == wanted[2 * batches + 3]);
    mhla_loader_free(l);
    mhla_dataset_free(data);
    remove_folder(folder);
}

static void test_order(void **state) {
    (void)state;
    char folder[40];
    make_folder(folder, 0);
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
    mhla_loader_desc d = {.data = data, .batch = 1, .train = 1, .workers = 1, .seed = 1, .no_targets = 1};
    d.augment = (mhla_augment){.height = 4, .crop = MHLA_CROP_SQUASH};
    mhla_loader *l;
    ASSERT_OK(mhla_loader_create(&l, &d));
    int64_t before[PICTURES] = {0};
    for (int epoch = 0; epoch < 4; epoch++) {
        int seen[PICTURES] = {0}, same = 0;
        for (int i = 0; i < PICTURES; i++) {
            const mhla_batch *b;
            ASSERT_OK(mhla_loader_next(l, &b));
            assert_null(b->targets);
            assert_int_equal(b->labels[0], mhla_dataset_label(data, b->index[0]));
            assert_int_equal(seen[b->index[0]]++, 0);
            same += before[i] == b->index[0];
            before[i] = b->index[0];
        }
        assert_true(epoch == 0 || same < 8);
    }
    mhla_loader_free(l);
    mhla_dataset_free(data);
    remove_folder(folder);
}

/* Some of the data, from all of it. */
static void test_limit(void **state) {
    (void)state;
    char folder[40];
    make_folder(folder, 0);
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
    mhla_loader_desc d = {.data = data, .batch = 3, .workers = 1, .no_targets = 1, .limit = 7};
    d.augment = (mhla_augment){.height = 4, .crop = MHLA_CROP_SQUASH};
    mhla_loader *l;
    ASSERT_OK(mhla_loader_create(&l, &d));
    for (int64_t i = 0; i < 7;) {
        const mhla_batch *b;
        ASSERT_OK(mhla_loader_next(l, &b));
        assert_int_equal(b->count, i < 6 ? 3 : 1);
        for (int j = 0; j < b->count; j++, i++) {
            assert_int_equal(b->index[j], i * PICTURES / 7);
            assert_int_equal(b->labels[j], mhla_dataset_label(data, b->index[j]));
        }
    }
    mhla_loader_free(l);
    mhla_dataset_free(data);
    remove_folder(folder);
}

static void test_evaluation(void **state) {
    (void)state;
    char folder[40];
    make_folder(folder, 1);
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TEST));
    for (int workers = 0; workers < 4; workers++) {
        mhla_loader_desc d = {
            .data = data, .batch = 5, .workers = workers, .classes = 4, .mix = {.mixup = 0.5, .smoothing = 0.1}};
        d.augment = (mhla_augment){.height = 12, .crop = MHLA_CROP_EVAL};
        mhla_loader *l;
        ASSERT_OK(mhla_loader_create(&l, &d));
        assert_int_equal(mhla_loader_batches(l), 5);
        for (int pass = 0; pass < 3; pass++) {
            int n = 0, missing = 0;
            const mhla_batch *b;
            for (;;) {
                ASSERT_OK(mhla_loader_next(l, &b));
                if (b->count == 0) break;
                assert_int_equal(b->epoch, pass);
                for (int i = 0; i < b->count; i++, n++) {
                    assert_int_equal(b->index[i], n);
                    if (b->labels[i] < 0) missing++;
                    for (int c = 0; c < 4; c++) assert_true(b->targets[4 * i + c] == (b->labels[i] == c ? 1.0f : 0.0f));
                    for (int p = 0; b->labels[i] < 0 && p < 3 * 144; p++)
                        assert_true(b->images[i * 3 * 144 + p] == 0.0f);
                }
            }
            assert_int_equal(n, PICTURES);
            assert_int_equal(missing, 5);
            if (pass == 1) { /* an end in the middle */
                ASSERT_OK(mhla_loader_seek(l, 2, 0));
            }
        }
        mhla_loader_free(l);
    }
    mhla_dataset_free(data);
    remove_folder(folder);
}

static void test_errors(void **state) {
    (void)state;
    char folder[40];
    make_folder(folder, 0);
    mhla_dataset *data;
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
    mhla_loader *l;
    const mhla_batch *b;
    for (int workers = 0; workers < 3; workers++) {
        mhla_loader_desc d = paper(data, workers);
        d.classes = 2; /* the data has three */
        d.batch = PICTURES;
        ASSERT_OK(mhla_loader_create(&l, &d));
        for (int again = 0; again < 3; again++)
            ASSERT_FAILS(mhla_loader_next(l, &b), MHLA_EDATA, "has label 2: expected 0 to 1");
        assert_null(b);
        mhla_loader_free(l);
    }
    mhla_loader_desc d = paper(data, 1);
    ASSERT_OK(mhla_loader_create(&l, &d));
    mhla_loader_free(l); /* at once, with work under way */
    d.batch = PICTURES + 1;
    ASSERT_FAILS(mhla_loader_create(&l, &d), MHLA_EINVAL, "the data has only 23");
    d.batch = 0;
    ASSERT_FAILS(mhla_loader_create(&l, &d), MHLA_EINVAL, "a batch of 0");
    d.batch = 2;
    d.workers = -1;
    ASSERT_FAILS(mhla_loader_create(&l, &d), MHLA_EINVAL, "-1 workers");
    d.workers = 1;
    d.mix.smoothing = 1.0;
    ASSERT_FAILS(mhla_loader_create(&l, &d), MHLA_EINVAL, "smoothing 1");
    d.mix.smoothing = 0.0;
    d.no_targets = 1;
    ASSERT_FAILS(mhla_loader_create(&l, &d), MHLA_EINVAL, "need targets");
    d.no_targets = 0;
    d.augment.height = 0;
    ASSERT_FAILS(mhla_loader_create(&l, &d), MHLA_EINVAL, "image size 0");
    mhla_loader_free(NULL);
    mhla_dataset_free(data);
    /* nothing can be read any more */
    ASSERT_OK(mhla_dataset_open(&data, folder, MHLA_SPLIT_TRAIN));
    remove_folder(folder);
    d = paper(data, 2);
    ASSERT_OK(mhla_loader_create(&l, &d));
    ASSERT_FAILS(mhla_loader_next(l, &b), MHLA_EIO, "none of the 23 images can be read");
    mhla_loader_free(l);
    mhla_dataset_free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers), cmocka_unit_test(test_seek),       cmocka_unit_test(test_order),
        cmocka_unit_test(test_limit),   cmocka_unit_test(test_evaluation), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
