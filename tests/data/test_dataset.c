/* Datasets of every format, made here: counts, names, pictures, labels; and what is broken in each, with its sentence. */
#include <zlib.h>

#include "data/dataset.h"
#include "file/npy.h"
#include "folders.h"
#include "image/resize.h"
#include "pictures.h"

static mhla_dataset *open_ok(const char *folder, mhla_split split) {
    mhla_dataset *d;
    ASSERT_OK(mhla_dataset_open(&d, folder, split));
    return d;
}

#define OPEN_FAILS(folder, split, status, text)                                                                        \
    do {                                                                                                               \
        mhla_dataset *none_;                                                                                           \
        ASSERT_FAILS(mhla_dataset_open(&none_, folder, split), status, text);                                          \
        assert_null(none_);                                                                                            \
    } while (0)

/* ---- IDX ---- */

static size_t idx(uint8_t *out, int axes, const uint32_t *sizes, size_t body) {
    const uint8_t head[4] = {0, 0, 8, (uint8_t)axes};
    memcpy(out, head, 4);
    for (int i = 0; i < axes; i++)
        for (int k = 0; k < 4; k++) out[4 + 4 * i + k] = (uint8_t)(sizes[i] >> (24 - 8 * k));
    for (size_t i = 0; i < body; i++) out[4 + 4 * (size_t)axes + i] = (uint8_t)(axes == 1 ? i % 3 : i * 5 + 1);
    return 4 + 4 * (size_t)axes + body;
}

static void write_gz(const char *folder, const char *name, const void *bytes, size_t size) {
    gzFile f = gzopen(in_folder(folder, name), "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(f), Z_OK);
}

static void test_idx(void **state) {
    (void)state;
    char folder[40];
    uint8_t images[1000], labels[100];
    new_folder(folder);
    const size_t ni = idx(images, 3, (uint32_t[]){7, 4, 5}, 140), nl = idx(labels, 1, (uint32_t[]){7}, 7);
    write_file(folder, "train-images-idx3-ubyte", images, ni);
    write_file(folder, "train-labels-idx1-ubyte", labels, nl);
    write_gz(folder, "t10k-images-idx3-ubyte.gz", images, ni);
    write_gz(folder, "t10k-labels-idx1-ubyte.gz", labels, nl);
    for (int split = 0; split < 2; split++) {
        mhla_dataset *d = open_ok(folder, (mhla_split)split);
        assert_string_equal(mhla_dataset_format(d), "IDX");
        assert_int_equal(mhla_dataset_count(d), 7);
        assert_int_equal(mhla_dataset_classes(d), 3);
        assert_int_equal(mhla_dataset_width(d), 5);
        assert_int_equal(mhla_dataset_height(d), 4);
        assert_int_equal(mhla_dataset_channels(d), 1);
        assert_string_equal(mhla_dataset_class_name(d, 1), "");
        assert_string_equal(mhla_dataset_file(d, 0), "");
        mhla_image m = {0};
        int label;
        for (int i = 0; i < 7; i++) {
            ASSERT_OK(mhla_dataset_get(d, i, &m, &label));
            assert_int_equal(label, i % 3);
            assert_int_equal(mhla_dataset_label(d, i), i % 3);
            assert_memory_equal(m.data, images + 16 + 20 * i, 20);
        }
        ASSERT_FAILS(mhla_dataset_get(d, 7, &m, &label), MHLA_EINVAL, "image 7 of a dataset of 7");
        assert_int_equal(mhla_dataset_label(d, -1), -1);
        mhla_image_free(&m);
        mhla_dataset_free(d);
    }
    write_file(folder, "classes.txt", "one\ntwo\r\nthree\n", 15);
    mhla_dataset *d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_string_equal(mhla_dataset_class_name(d, 1), "two");
    mhla_dataset_free(d);
    /* what goes wrong */
    write_file(folder, "classes.txt", "one\ntwo\n", 8);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "image 2 has label 2 (byte 10): expected 0 to 1");
    unlink(in_folder(folder, "classes.txt"));
    write_file(folder, "train-images-idx3-ubyte", images, ni - 1);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "says it holds 7 x 4 x 5 bytes, but has only 139");
    write_file(folder, "train-images-idx3-ubyte", images, 15);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "15 bytes are too few");
    images[ni] = 0;
    write_file(folder, "train-images-idx3-ubyte", images, ni + 1);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "1 bytes are left over");
    images[2] = 9;
    write_file(folder, "train-images-idx3-ubyte", images, ni);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "begins with 00 00 09 03, expected 00 00 08 03");
    idx(images, 3, (uint32_t[]){0xffffffff, 0xffffffff, 0xffffffff}, 140);
    write_file(folder, "train-images-idx3-ubyte", images, ni);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "says it holds");
    write_gz(folder, "t10k-images-idx3-ubyte.gz", images, ni);
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EDATA, "before unpacking");
    idx(images, 3, (uint32_t[]){6, 4, 5}, 140);
    write_file(folder, "train-images-idx3-ubyte", images, 16 + 120);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "6 images, but");
    write_gz(folder, "t10k-images-idx3-ubyte.gz", images, 16 + 119);
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EDATA, "135 bytes when unpacked, expected 136");
    write_file(folder, "t10k-images-idx3-ubyte.gz", "\x1f\x8b\x08\0\0\0", 6);
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EDATA, "broken gzip");
    unlink(in_folder(folder, "train-labels-idx1-ubyte"));
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EIO, "train-labels-idx1-ubyte is missing");
    remove_folder(folder);
}

/* ---- CIFAR ---- */

static void test_cifar(void **state) {
    (void)state;
    enum { RECORD = 3073 };
    char folder[40];
    new_folder(folder);
    uint8_t *bytes = new_bytes(4 * RECORD);
    for (int i = 0; i < 4 * RECORD; i++) bytes[i] = (uint8_t)(i % RECORD == 0 ? i / RECORD : i * 3 + i / 1024);
    write_file(folder, "data_batch_1.bin", bytes, 2 * RECORD);
    write_file(folder, "data_batch_2.bin", bytes + 2 * RECORD, 2 * RECORD);
    write_file(folder, "test_batch.bin", bytes, RECORD);
    write_file(folder, "batches.meta.txt", "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n",
               61);
    mhla_dataset *d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_string_equal(mhla_dataset_format(d), "CIFAR binary");
    assert_int_equal(mhla_dataset_count(d), 4);
    assert_int_equal(mhla_dataset_classes(d), 10);
    assert_string_equal(mhla_dataset_class_name(d, 9), "truck");
    mhla_image m = {0};
    for (int i = 0; i < 4; i++) {
        int label;
        ASSERT_OK(mhla_dataset_get(d, i, &m, &label));
        assert_int_equal(label, i);
        for (int p = 0; p < 1024; p++)
            for (int c = 0; c < 3; c++) assert_int_equal(m.data[3 * p + c], bytes[i * RECORD + 1 + c * 1024 + p]);
    }
    mhla_dataset_free(d);
    d = open_ok(folder, MHLA_SPLIT_TEST);
    assert_int_equal(mhla_dataset_count(d), 1);
    mhla_dataset_free(d);
    bytes[2 * RECORD] = 10;
    write_file(folder, "train.bin", bytes, 3 * RECORD);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "train.bin: image 2 has label 10 (byte 6146): expected 0 to 9");
    write_file(folder, "train.bin", bytes, 3 * RECORD - 1);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "9218 bytes are not a whole number of records of 3073");
    write_file(folder, "train.bin", bytes, 0);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "0 bytes are not a whole number");
    /* CIFAR-100 has a coarse label before the fine one */
    uint8_t *hundred = new_bytes(RECORD + 1);
    hundred[0] = 19;
    memcpy(hundred + 1, bytes, RECORD);
    write_file(folder, "train.bin", hundred, RECORD + 1);
    write_file(folder, "fine_label_names.txt", "apple\nbear\n", 11);
    d = open_ok(folder, MHLA_SPLIT_TRAIN);
    int label;
    ASSERT_OK(mhla_dataset_get(d, 0, &m, &label));
    assert_int_equal(label, 0);
    assert_int_equal(m.data[0], bytes[1]);
    mhla_dataset_free(d);
    mhla_image_free(&m);
    free(bytes);
    free(hundred);
    remove_folder(folder);
}

static void test_npy(void **state) {
    (void)state;
    char folder[40];
    new_folder(folder);
    uint8_t pixels[3 * 2 * 4 * 3];
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)i;
    const int64_t labels[3] = {4, 0, 2};
    ASSERT_OK(mhla_npy_write(in_folder(folder, "train_images.npy"), MHLA_IO_U8, 4, (int64_t[]){3, 2, 4, 3}, pixels));
    ASSERT_OK(mhla_npy_write(in_folder(folder, "train_labels.npy"), MHLA_IO_I64, 1, (int64_t[]){3}, labels));
    mhla_dataset *d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_string_equal(mhla_dataset_format(d), "npy");
    assert_int_equal(mhla_dataset_classes(d), 5);
    mhla_image m = {0};
    int label;
    ASSERT_OK(mhla_dataset_get(d, 2, &m, &label));
    assert_int_equal(label, 2);
    assert_memory_equal(m.data, pixels + 48, 24);
    mhla_dataset_free(d);
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EIO, "test_images.npy is missing");
    ASSERT_OK(mhla_npy_write(in_folder(folder, "train_labels.npy"), MHLA_IO_I64, 1, (int64_t[]){2}, labels));
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "2 labels for 3 images");
    ASSERT_OK(
        mhla_npy_write(in_folder(folder, "train_labels.npy"), MHLA_IO_I64, 1, (int64_t[]){3}, (int64_t[]){1, -1, 0}));
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "image 1 has label -1");
    ASSERT_OK(mhla_npy_write(in_folder(folder, "train_images.npy"), MHLA_IO_U8, 2, (int64_t[]){6, 12}, pixels));
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "expected uint8 images");
    mhla_image_free(&m);
    remove_folder(folder);
}

/* ---- Folders of pictures ---- */

static void write_picture(const char *folder, const char *name, int side) {
    mhla_image m = picture(side, side + 1, 3);
    uint8_t *bytes;
    size_t n;
    if (strstr(name, ".png"))
        ASSERT_OK(mhla_image_encode_png(&bytes, &n, &m, NULL, 0));
    else
        ASSERT_OK(mhla_image_encode_jpeg(&bytes, &n, &m, 90));
    write_file(folder, name, bytes, n);
    free(bytes);
    mhla_image_free(&m);
}

static void test_folder(void **state) {
    (void)state;
    char folder[40];
    new_folder(folder);
    write_picture(folder, "train/cat/b.JPEG", 5);
    write_picture(folder, "train/cat/a.png", 6);
    write_picture(folder, "train/cat/deep/er/0.jpg", 7);
    write_picture(folder, "train/ape/z.png", 8);
    write_picture(folder, "val/cat/1.png", 9);
    write_picture(folder, "elsewhere/linked.png", 10);
    write_file(folder, "train/cat/notes.txt", "x", 1);
    write_file(folder, "train/cat/.hidden.png", "x", 1);
    write_file(folder, "train/README", "x", 1);
    assert_int_equal(symlink("../../elsewhere", in_folder(folder, "train/ape/link")), 0);
    assert_int_equal(symlink("..", in_folder(folder, "train/ape/circle")), 0);
    mhla_dataset *d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_string_equal(mhla_dataset_format(d), "image folder");
    assert_int_equal(mhla_dataset_classes(d), 2);
    assert_string_equal(mhla_dataset_class_name(d, 0), "ape");
    assert_string_equal(mhla_dataset_class_name(d, 1), "cat");
    static const struct {
        const char *end;
        int label, side;
    } wanted[] = {
        {"ape/z.png", 0, 8}, {"link/linked.png", 0, 10}, {"cat/a.png", 1, 6}, {"cat/b.JPEG", 1, 5}, {"er/0.jpg", 1, 7}};
    mhla_image m = {0};
    int label;
    assert_int_equal(mhla_dataset_count(d), 5); /* nothing through the circle */
    for (int i = 0; i < 5; i++) {
        assert_non_null(strstr(mhla_dataset_file(d, i), wanted[i].end));
        ASSERT_OK(mhla_dataset_get(d, i, &m, &label));
        assert_int_equal(label, wanted[i].label);
        assert_int_equal(m.width, wanted[i].side);
        assert_int_equal(m.channels, 3);
    }
    int64_t broken;
    assert_int_equal(mhla_dataset_broken(d, &broken, NULL, 0), 0);
    assert_int_equal(broken, 0);
    mhla_dataset_free(d);
    d = open_ok(folder, MHLA_SPLIT_TEST); /* train's classes, one of which has no test */
    assert_int_equal(mhla_dataset_classes(d), 2);
    assert_int_equal(mhla_dataset_count(d), 1);
    assert_int_equal(mhla_dataset_label(d, 0), 1);
    mhla_dataset_free(d);
    write_picture(folder, "val/dog/1.png", 9);
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EDATA, "val/dog: no class of this name in");
    d = open_ok(in_folder(folder, "val"), MHLA_SPLIT_TRAIN); /* one folder for all */
    assert_int_equal(mhla_dataset_classes(d), 2);
    mhla_dataset_free(d);
    mhla_image_free(&m);
    remove_folder(folder);
}

static void test_broken_files(void **state) {
    (void)state;
    char folder[40];
    new_folder(folder);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "no folder in it: expected one for each class");
    OPEN_FAILS(in_folder(folder, "none"), MHLA_SPLIT_TRAIN, MHLA_EIO, "none: No such file");
    write_picture(folder, "train/a/1.png", 5);
    OPEN_FAILS(in_folder(folder, "train/a/1.png"), MHLA_SPLIT_TRAIN, MHLA_EIO, "a dataset is a folder");
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EIO, "none of val, validation, valid, test exists");
    mkdir(in_folder(folder, "train/b"), 0777);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "train/b: no readable image of this class");
    write_file(folder, "train/b/empty.png", "", 0);
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "for example ");
    write_picture(folder, "train/b/2.jpg", 60);
    write_file(folder, "train/b/text.jpg", "no picture at all", 17);
    write_file(folder, "train/b/other.webp", "RIFF", 4);
    assert_int_equal(symlink("nowhere", in_folder(folder, "train/b/dangling.png")), 0);
    /* a good beginning, and nothing behind it */
    FILE *f = fopen(in_folder(folder, "train/b/2.jpg"), "rb");
    uint8_t bytes[700];
    assert_int_equal(fread(bytes, 1, sizeof bytes, f), sizeof bytes);
    fclose(f);
    write_file(folder, "train/b/cut.jpg", bytes, sizeof bytes);
    mhla_dataset *d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_int_equal(mhla_dataset_count(d), 3); /* 1.png, 2.jpg, cut.jpg */
    int64_t broken;
    const char *sentences[10];
    assert_int_equal(mhla_dataset_broken(d, &broken, sentences, 10), 4);
    assert_int_equal(broken, 4);
    for (int i = 0; i < 4; i++) assert_ptr_equal(strstr(sentences[i], folder), sentences[i]);
    mhla_image m = {0};
    int label;
    for (int round = 0; round < 2; round++) /* told once */
        ASSERT_FAILS(mhla_dataset_get(d, 2, &m, &label), MHLA_EDATA,
                     "b/cut.jpg: broken JPEG: the file ends in the middle");
    assert_int_equal(mhla_dataset_broken(d, &broken, sentences, 1), 1);
    assert_int_equal(broken, 5);
    ASSERT_OK(mhla_dataset_get(d, 1, &m, &label));
    mhla_image_free(&m);
    mhla_dataset_free(d);
    remove_folder(folder);
}

/* ---- Clips of one's own ---- */

/* A .y4m of grey frames of that side whose i-th frame has the level 16 + 10 i. */
static void write_y4m(const char *folder, const char *name, int side, int frames) {
    uint8_t *bytes = new_bytes((size_t)(64 + frames * (6 + side * side)));
    size_t n = (size_t)sprintf((char *)bytes, "YUV4MPEG2 W%d H%d F8:1 Cmono\n", side, side);
    for (int i = 0; i < frames; i++) {
        n += (size_t)sprintf((char *)bytes + n, "FRAME\n");
        memset(bytes + n, 16 + 10 * i, (size_t)(side * side));
        n += (size_t)(side * side);
    }
    write_file(folder, name, bytes, n);
    free(bytes);
}

static void about_clips(const char *folder, const char *text) { write_file(folder, "clips.json", text, strlen(text)); }

static void test_clips(void **state) {
    (void)state;
    char folder[40], name[64];
    new_folder(folder);
    write_y4m(folder, "train/a/long.y4m", 4, 9);
    write_y4m(folder, "train/a/short.y4m", 4, 2); /* too short: told */
    write_y4m(folder, "train/b/large.y4m", 8, 3);
    for (int i = 0; i < 4; i++) { /* a folder of frames, of other sides */
        snprintf(name, sizeof name, "train/b/frames/%03d.png", i);
        write_picture(folder, name, 4);
    }
    write_file(folder, "train/b/notes.txt", "x", 1);
    about_clips(folder, "{\"frames\": 3}");
    mhla_dataset *d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_string_equal(mhla_dataset_format(d), "clips of files");
    assert_int_equal(mhla_dataset_frames(d), 3);
    assert_true(mhla_dataset_width(d) == 4 && mhla_dataset_height(d) == 4 && mhla_dataset_channels(d) == 3);
    assert_int_equal(mhla_dataset_count(d), 5); /* 3 of long, frames 0 to 2 of frames, large */
    mhla_image m = {0};
    int label;
    for (int k = 0; k < 3; k++) {
        ASSERT_OK(mhla_dataset_get(d, k, &m, &label));
        assert_int_equal(label, 0);
        assert_true(m.width == 4 && m.height == 12 && m.channels == 3);
        for (int f = 0; f < 3; f++) { /* grey levels of 219 steps */
            const double expected = 10.0 * (3 * k + f) * 255.0 / 219.0;
            for (int i = 0; i < 48; i++) assert_true(fabs(m.data[48 * f + i] - expected) <= 0.51);
        }
    }
    ASSERT_OK(mhla_dataset_get(d, 3, &m, &label)); /* resized */
    assert_true(label == 1 && strstr(mhla_dataset_file(d, 3), "train/b/frames") != NULL);
    mhla_image frame = {0}, fitted = {0};
    ASSERT_OK(mhla_image_read(&frame, in_folder(folder, "train/b/frames/002.png"), 3));
    ASSERT_OK(mhla_image_eval_crop(&fitted, &frame, 4, 4, 1.0, MHLA_FILTER_BICUBIC));
    assert_memory_equal(m.data + 96, fitted.data, 48);
    ASSERT_OK(mhla_dataset_get(d, 4, &m, &label));
    assert_true(label == 1 && strstr(mhla_dataset_file(d, 4), "large") != NULL && m.height == 12);
    const char *told[2];
    int64_t broken;
    assert_int_equal(mhla_dataset_broken(d, &broken, told, 2), 1);
    assert_non_null(strstr(told[0], "short.y4m: 2 frames: a sample takes 3"));
    unlink(in_folder(folder, "train/b/frames/001.png")); /* gone since */
    assert_int_equal(mhla_dataset_get(d, 3, &m, &label), MHLA_EIO);
    mhla_dataset_broken(d, &broken, told, 2);
    assert_int_equal(broken, 2);
    mhla_dataset_free(d);
    /* every second frame, and a size */
    about_clips(folder, "{\"frames\": 2, \"step\": 2, \"height\": 2, \"width\": 6}");
    d = open_ok(folder, MHLA_SPLIT_TRAIN);
    assert_int_equal(mhla_dataset_count(d), 2 + 1 + 1); /* of 9 frames: 0, 2; 4, 6. 8 has none to follow */
    ASSERT_OK(mhla_dataset_get(d, 1, &m, &label));
    assert_true(m.width == 6 && m.height == 4);
    assert_true(fabs(m.data[0] - 40.0 * 255.0 / 219.0) <= 0.51 && fabs(m.data[36] - 60.0 * 255.0 / 219.0) <= 0.51);
    mhla_dataset_free(d);
    mhla_image_free(&m);
    mhla_image_free(&frame);
    mhla_image_free(&fitted);
    /* what goes wrong */
    OPEN_FAILS(folder, MHLA_SPLIT_TEST, MHLA_EIO, "none of val, validation, valid, test exists");
    about_clips(folder, "{\"frames\": 8}");
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "train/b: no clip of this class that can be read; for example ");
    about_clips(folder, "{\"frame\": 8}");
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "clips.json: ");
    about_clips(folder, "{}");
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "clips.json: frames is missing");
    about_clips(folder, "{\"frames\": 3, \"width\": 9}");
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "clips.json: width is there without height");
    about_clips(folder, "{\"frames\": 0}");
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "frames");
    unlink(in_folder(folder, "clips.json")); /* an image folder then */
    OPEN_FAILS(folder, MHLA_SPLIT_TRAIN, MHLA_EDATA, "clips.json");
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx),   cmocka_unit_test(test_cifar),  cmocka_unit_test(test_npy),
        cmocka_unit_test(test_clips), cmocka_unit_test(test_folder), cmocka_unit_test(test_broken_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
