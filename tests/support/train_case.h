/* A small training run that the tests of training share: data in a temporary folder, settings with everything random on,
 * comparison of two runs byte by byte. */
#ifndef MHLA_TESTS_NN_TRAIN_CASE_H
#define MHLA_TESTS_NN_TRAIN_CASE_H

#include "support.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/npy.h"
#include "train/train.h"

static char root[64];

/* Pictures of 8 x 8 whose class is where they are bright. */
static inline void make_data(const char *folder, int train, int test) {
    char path[256];
    rng r = {42};
    assert_int_equal(mkdir(folder, 0777), 0);
    for (int split = 0; split < 2; split++) {
        const int64_t n = split ? test : train, shape[] = {n, 8, 8};
        uint8_t *images = new_bytes((size_t)n * 64);
        int64_t *labels = new_bytes((size_t)n * sizeof *labels);
        for (int64_t i = 0; i < n; i++) {
            labels[i] = rng_below(&r, 4);
            for (int y = 0; y < 8; y++)
                for (int x = 0; x < 8; x++)
                    images[i * 64 + y * 8 + x] =
                        (uint8_t)(rng_below(&r, 80) + (y / 4 * 2 + x / 4 == labels[i] ? 160 : 0));
        }
        snprintf(path, sizeof path, "%s/%s_images.npy", folder, split ? "test" : "train");
        assert_int_equal(mhla_npy_write(path, MHLA_IO_U8, 3, shape, images), MHLA_OK);
        snprintf(path, sizeof path, "%s/%s_labels.npy", folder, split ? "test" : "train");
        assert_int_equal(mhla_npy_write(path, MHLA_IO_I64, 1, shape, labels), MHLA_OK);
        free(images);
        free(labels);
    }
}

static inline void remove_tree(const char *path) {
    DIR *dir = opendir(path);
    if (dir) {
        for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
            char inner[2048];
            struct stat info;
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            snprintf(inner, sizeof inner, "%.1024s/%s", path, e->d_name);
            if (lstat(inner, &info) == 0 && S_ISDIR(info.st_mode))
                remove_tree(inner);
            else
                unlink(inner);
        }
        closedir(dir);
    }
    rmdir(path);
}

static inline int set_up(void **state) {
    (void)state;
    char data[128];
    snprintf(root, sizeof root, "/tmp/mhla_train_XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(data, sizeof data, "%s/data", root);
    make_data(data, 320, 64);
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    remove_tree(root);
    return 0;
}

static inline const char *in_root(const char *name) {
    static char paths[8][256];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", root, name);
    return p;
}

/* The settings of all runs here: everything random is on. More may follow, ended by NULL. */
static inline mhla_status create(mhla_trainer **t, const char *run, ...) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *list[48] = {
        source,
        "data.workers=2",
        "model.image=8",
        "model.padding=0",
        "model.patch=2",
        "model.dim=16",
        "model.depth=2",
        "model.crop=1",
        "model.mean=0.4",
        "model.deviation=0.25",
        "train.steps=24",
        "train.batch=32",
        "train.rate=0.003",
        "train.drop_path=0.2",
        "train.smoothing=0.1",
        "train.ema=0.9",
        "augment.flip=0.0",
        "augment.crop=pad",
        "augment.pad=1",
        "augment.mixup=0.2",
        "augment.mix_prob=0.5",
        "augment.erasing=0.2",
        "eval.epochs=1",
        "log.steps=1",
        "train.clip=1",
    };
    int n = 25;
    va_list more;
    va_start(more, run);
    for (const char *s; (s = va_arg(more, const char *)) != NULL && n < 48;) list[n++] = s;
    va_end(more);
    return mhla_trainer_create(t, in_root(run), NULL, list, n);
}

static inline void assert_same_file(const char *a, const char *b) {
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    if (f == NULL || g == NULL) fail_msg("%s or %s is not there", a, b);
    for (long at = 0;; at++) {
        const int x = getc(f), y = getc(g);
        if (x != y) fail_msg("%s and %s differ at byte %ld", a, b, at);
        if (x == EOF) break;
    }
    fclose(f);
    fclose(g);
}

/* The lines of RUN/metrics.jsonl as "step 3, test 3, ". */
typedef struct metrics {
    char text[16384];
    size_t used;
} metrics;

static inline mhla_status add_line(void *user, const json_t *line) {
    metrics *m = user;
    m->used += (size_t)snprintf(m->text + m->used, sizeof m->text - m->used, "%s %lld, ",
                                json_string_value(json_object_get(line, "kind")),
                                (long long)json_integer_value(json_object_get(line, "step")));
    assert_true(m->used < sizeof m->text);
    return MHLA_OK;
}

static inline void assert_same_lines(const char *run_a, const char *run_b) {
    metrics m[2] = {{.used = 0}, {.used = 0}};
    char path[512];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/metrics.jsonl", in_root(i ? run_b : run_a));
        assert_int_equal(mhla_jsonl_read(path, add_line, &m[i]), MHLA_OK);
    }
    assert_string_equal(m[0].text, m[1].text);
}

static inline void assert_same_end(const char *run_a, const char *run_b) {
    static const char *const files[] = {"config.json", "model.safetensors", "ema.safetensors", "optimizer.safetensors",
                                        "state.json"};
    char a[512], b[512];
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++) {
            snprintf(a, sizeof a, "%s/%s/%s", in_root(run_a), k ? "best" : "last", files[i]);
            snprintf(b, sizeof b, "%s/%s/%s", in_root(run_b), k ? "best" : "last", files[i]);
            assert_same_file(a, b);
        }
    assert_same_lines(run_a, run_b);
}

#endif
