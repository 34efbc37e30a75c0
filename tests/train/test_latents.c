/* Latents of a dataset: what is in the files, by definition; a making that is killed ends with the same bytes; what is drawn of
 * them in an epoch; training on them stops and resumes to the same bytes; hostile folders. */
#include "kill_case.h"

#include <mhla/diffusion.h>

#include "core/rng.h"
#include "data/latents.h"
#include "file/npy.h"
#include "file/safetensors.h"

enum { TRAIN = 320, TEST = 64, C = 4, EACH = C * 4 * 4 };

static mhla_model *new_vae(uint64_t seed) {
    mhla_model *vae;
    const char *const settings[] = {"in_channels=1",     "out_channels=1", "block_out_channels=4,8",
                                    "norm_num_groups=2", "sample_size=8",  "scaling_factor=0.5",
                                    "latent_channels=4"};
    if (mhla_model_create(&vae, "sd_vae_nano", settings, 7, seed) != MHLA_OK) fail_msg("%s", mhla_message());
    return vae;
}

static mhla_status make_as(mhla_model *vae, const char *out, mhla_latents_made *made) {
    const mhla_latents_desc d = {.size = sizeof d, .source = in_root("data"), .out = in_root(out)};
    return mhla_latents_make(vae, &d, made);
}

static void assert_same_folder(const char *a, const char *b) {
    static const char *const files[] = {"latents.json", "train-00000.safetensors", "train-00004.safetensors",
                                        "test-00000.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char x[400], y[400];
        snprintf(x, sizeof x, "%s/%s", in_root(a), files[i]);
        snprintf(y, sizeof y, "%s/%s", in_root(b), files[i]);
        assert_same_file(x, y);
    }
}

static pid_t make_in_child(const char *out) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    mhla_model *vae = new_vae(1);
    const mhla_status status = make_as(vae, out, NULL);
    if (status != MHLA_OK) fprintf(stderr, "%s\n", mhla_message());
    _exit(status == MHLA_OK ? FINISHED : FAILED);
}

/* Killed -9 at random moments, it is made by and by, and no half file is taken for a whole one. */
static void killed(void **state) {
    (void)state;
    const double first = mhla_seconds();
    assert_int_equal(wait_for(make_in_child("through")), FINISHED);
    const double duration = mhla_seconds() - first;
    rng r = {(uint64_t)time(NULL)};
    for (int done = 0; done < 8;) {
        const pid_t child = make_in_child("killed");
        pause_for(duration * (0.05 + 0.4 * rng_below(&r, 1000) / 1000.0));
        kill(child, SIGKILL);
        const int how = wait_for(child);
        done += how == -1;
        if (how == FINISHED) {
            assert_same_folder("through", "killed");
            remove_tree(in_root("killed"));
        } else {
            assert_int_equal(how, -1);
        }
    }
    assert_int_equal(wait_for(make_in_child("killed")), FINISHED);
    assert_same_folder("through", "killed");
}

/* Image `index` of the training data, -1..1, as it is and flipped. */
static void fill_images(float images[2][64], mhla_dataset *data, int64_t index, int *label) {
    mhla_image image = {0};
    assert_int_equal(mhla_dataset_get(data, index, &image, label), MHLA_OK);
    for (int i = 0; i < 64; i++) {
        images[0][i] = ((float)image.data[i] / 255.0f - 0.5f) / 0.5f;
        images[1][i / 8 * 8 + 7 - i % 8] = images[0][i];
    }
    mhla_image_free(&image);
}

/* The files hold what the autoencoder makes of each image; a latent is mean + deviation * noise of (seed, epoch, image). */
static void by_definition(void **state) {
    (void)state;
    mhla_model *vae = new_vae(1);
    mhla_latents_made made = {.size = sizeof made};
    mhla_dataset *data, *latents;
    int flipped = 0;
    if (make_as(vae, "latents", &made) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(made.train, TRAIN);
    assert_int_equal(made.test, TEST);
    assert_int_equal(made.kept + made.unreadable, 0);
    assert_same_folder("through", "latents");
    assert_int_equal(mhla_dataset_open(&data, in_root("data"), MHLA_SPLIT_TRAIN), MHLA_OK);
    if (mhla_dataset_open(&latents, in_root("latents"), MHLA_SPLIT_TRAIN) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_dataset_count(latents), TRAIN);
    assert_int_equal(mhla_dataset_channels(latents), C);
    static const int64_t looked[] = {0, 1, 63, 64, 200, 319};
    for (size_t k = 0; k < sizeof looked / sizeof *looked; k++)
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            float images[2][64], mean[2][EACH], deviation[2][EACH], noise[EACH], got[EACH], other[EACH];
            int label, want;
            fill_images(images, data, looked[k], &want);
            const mhla_coding coding = {.size = sizeof coding};
            assert_int_equal(mhla_model_encode(vae, mean[0], deviation[0], images[0], 2, &coding), MHLA_OK);
            assert_int_equal(mhla_dataset_draw(latents, looked[k], got, &label, 0.5, 3, epoch), MHLA_OK);
            assert_int_equal(label, want);
            mhla_rng turn = mhla_rng_make(3, epoch, (uint64_t)looked[k], MHLA_PLACE_FLIP);
            const int row = (double)mhla_rng_uniform(&turn) < 0.5;
            const mhla_rng draw = mhla_rng_make(3, epoch, (uint64_t)looked[k], MHLA_PLACE_LATENT);
            flipped += row;
            mhla_rng_normals(&draw, noise, EACH);
            for (int i = 0; i < EACH; i++) {
                const float wanted = mean[row][i] + deviation[row][i] * noise[i];
                if (fabsf(got[i] - wanted) > 1e-6f * (1.0f + fabsf(wanted)))
                    fail_msg("image %d, %d: %g, expected %g", (int)looked[k], i, (double)got[i], (double)wanted);
            }
            assert_int_equal(mhla_dataset_draw(latents, looked[k], other, &label, 0.0, 3, epoch + 1), MHLA_OK);
            assert_memory_not_equal(got, other, sizeof got); /* another epoch: drawn anew */
        }
    assert_in_range(flipped, 3, 21); /* of 24 */
    mhla_image image = {0};
    int label;
    assert_int_equal(mhla_dataset_get(latents, 0, &image, &label), MHLA_EINVAL);
    mhla_dataset_free(data);
    mhla_dataset_free(latents);
    mhla_model_free(vae);
}

/* ---- Clips ---- */

enum { CLIPS = 3, FRAMES = 5, PLANE = FRAMES * 64 };

static void new_clips(const char *name) {
    static uint8_t pixels[CLIPS * PLANE], labels[CLIPS];
    static const char *const parts[] = {"train", "test"};
    const int64_t shape[] = {CLIPS, FRAMES, 8, 8};
    char folder[300], path[400];
    snprintf(folder, sizeof folder, "%s", in_root(name));
    assert_int_equal(mkdir(folder, 0777), 0);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * i / 7);
    for (int p = 0; p < 2; p++) {
        snprintf(path, sizeof path, "%s/%s_clips.npy", folder, parts[p]);
        assert_int_equal(mhla_npy_write(path, MHLA_IO_U8, 4, shape, pixels), MHLA_OK);
        snprintf(path, sizeof path, "%s/%s_labels.npy", folder, parts[p]);
        assert_int_equal(mhla_npy_write(path, MHLA_IO_U8, 1, shape, labels), MHLA_OK);
    }
}

/* An autoencoder of images takes the frames one by one; one of clips makes 2 frames of latents of 5. */
static void of_clips(void **state) {
    (void)state;
    mhla_model *vae = new_vae(1), *wan;
    mhla_dataset *data, *latents;
    mhla_image image = {0};
    float clip[PLANE], mean[EACH], deviation[EACH], got[FRAMES * EACH], back[PLANE], frame[64];
    int label;
    new_clips("clips");
    const mhla_latents_desc d = {.size = sizeof d, .source = in_root("clips"), .out = in_root("clip-latents")};
    if (mhla_latents_make(vae, &d, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_dataset_open(&data, in_root("clips"), MHLA_SPLIT_TRAIN), MHLA_OK);
    if (mhla_dataset_open(&latents, in_root("clip-latents"), MHLA_SPLIT_TRAIN) != MHLA_OK)
        fail_msg("%s", mhla_message());
    assert_true(mhla_dataset_frames(latents) == FRAMES && mhla_dataset_height(latents) == 4);
    assert_int_equal(mhla_dataset_get(data, 1, &image, &label), MHLA_OK);
    for (int i = 0; i < PLANE; i++) clip[i] = ((float)image.data[i] / 255.0f - 0.5f) / 0.5f;
    assert_int_equal(mhla_dataset_draw(latents, 1, got, &label, 0.0, 3, 0), MHLA_OK);
    const mhla_rng draw = mhla_rng_make(3, 0, 1, MHLA_PLACE_LATENT);
    float noise[FRAMES * EACH];
    mhla_rng_normals(&draw, noise, FRAMES * EACH);
    const mhla_coding one = {.size = sizeof one}, whole = {.size = sizeof whole, .frames = FRAMES};
    for (int f = 0; f < FRAMES; f++) {
        assert_int_equal(mhla_model_encode(vae, mean, deviation, clip + f * 64, 1, &one), MHLA_OK);
        for (int i = 0; i < EACH; i++) {
            const int at = (i / 16 * FRAMES + f) * 16 + i % 16;
            const float wanted = mean[i] + deviation[i] * noise[at];
            if (fabsf(got[at] - wanted) > 1e-5f * (1.0f + fabsf(wanted)))
                fail_msg("frame %d, %d: %g, expected %g", f, i, (double)got[at], (double)wanted);
        }
    }
    /* and back: frame by frame the same */
    assert_int_equal(mhla_model_decode(vae, back, got, 1, &whole), MHLA_OK);
    for (int f = 0; f < FRAMES; f++) {
        for (int i = 0; i < EACH; i++) mean[i] = got[(i / 16 * FRAMES + f) * 16 + i % 16];
        assert_int_equal(mhla_model_decode(vae, frame, mean, 1, &one), MHLA_OK);
        assert_memory_equal(frame, back + f * 64, sizeof frame);
    }
    mhla_dataset_free(data);
    mhla_dataset_free(latents);
    mhla_image_free(&image);
    /* resumed: nothing is made again; another size is refused, and frames that an autoencoder of clips cannot take */
    mhla_latents_made made = {.size = sizeof made};
    assert_int_equal(mhla_latents_make(vae, &d, &made), MHLA_OK);
    assert_int_equal(made.kept, 2 * CLIPS);
    mhla_latents_desc other = d;
    other.height = other.width = 16;
    assert_int_equal(mhla_latents_make(vae, &other, &made), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "holds clips of 8 x 8"));
    mhla_model_free(vae);
    assert_int_equal(mhla_model_create(&wan, "wan_vae_nano", NULL, 0, 1), MHLA_OK);
    other = d;
    other.out = in_root("wan-latents");
    if (mhla_latents_make(wan, &other, &made) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_dataset_open(&latents, in_root("wan-latents"), MHLA_SPLIT_TEST), MHLA_OK);
    assert_true(mhla_dataset_frames(latents) == 2 && mhla_dataset_height(latents) == 1 &&
                mhla_dataset_channels(latents) == 16);
    mhla_dataset_free(latents);
    mhla_model_free(wan);
}

/* ---- Training ---- */

static mhla_status create_run(mhla_trainer **t, const char *run, const char *more) {
    char source[300], vae[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("latents"));
    snprintf(vae, sizeof vae, "sample.vae=%s", in_root("vae"));
    const char *const list[] = {source,           vae,
                                "data.workers=2", "model.model=dit_micro",
                                "model.patch=1",  "model.dim=16",
                                "model.depth=1",  "model.heads=2",
                                "model.blocks=2", "train.steps=24",
                                "train.batch=32", "train.rate=0.003",
                                "train.ema=0.9",  "augment.flip=0.5",
                                "sample.rows=2",  "sample.columns=1",
                                "sample.steps=2", "eval.epochs=1",
                                "log.steps=1",    more};
    return mhla_trainer_create(t, in_root(run), NULL, list, more ? 20 : 19);
}

static int64_t stop_at;
static mhla_trainer *running;
static void watching(void *user, const mhla_train_event *e) {
    (void)user;
    if (e->kind == MHLA_TRAIN_STEP && e->step == stop_at) mhla_trainer_stop(running);
}

static int run(mhla_trainer *t, int64_t stop) {
    int finished = 0;
    running = t;
    stop_at = stop;
    if (mhla_trainer_run(t, watching, NULL, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    mhla_trainer_free(t);
    return finished;
}

static void trains(void **state) {
    (void)state;
    mhla_trainer *t;
    mhla_context *one;
    mhla_model *vae = new_vae(1);
    char a[400], b[400];
    assert_int_equal(mhla_model_save(vae, in_root("vae")), MHLA_OK);
    mhla_model_free(vae);
    if (create_run(&t, "whole", NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(run(t, -1), 1);
    assert_int_equal(create_run(&t, "parts", "data.workers=0"), MHLA_OK);
    assert_int_equal(mhla_context_create(&one, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}),
                     MHLA_OK);
    mhla_trainer_set_context(t, one);
    assert_int_equal(run(t, 13), 0);
    assert_int_equal(mhla_trainer_resume(&t, in_root("parts")), MHLA_OK);
    mhla_trainer_set_context(t, one);
    assert_int_equal(run(t, -1), 1);
    mhla_context_free(one);
    assert_same_end("whole", "parts");
    snprintf(a, sizeof a, "%s/samples/step-00000020.png", in_root("whole"));
    snprintf(b, sizeof b, "%s/samples/step-00000020.png", in_root("parts"));
    assert_same_file(a, b);
}

/* ---- What is refused ---- */

#define REFUSED(call, text)                                                                                            \
    do {                                                                                                               \
        assert_int_not_equal(call, MHLA_OK);                                                                           \
        if (strstr(mhla_message(), text) == NULL) fail_msg("%s: expected \"%s\"", mhla_message(), text);               \
    } while (0)

/* A file of latents as it is written, but for one thing. */
static void write_shard(const char *path, int64_t images, int64_t channels, int32_t label, mhla_io_dtype dtype) {
    const int64_t shape[] = {images, 2, channels, 4, 4};
    float *numbers = calloc((size_t)(images * 2 * channels * 16), sizeof *numbers);
    int32_t *labels = calloc((size_t)images, sizeof *labels);
    assert_non_null(numbers);
    assert_non_null(labels);
    labels[images - 1] = label;
    const mhla_storable tensors[] = {{"mean", 5, shape, numbers, MHLA_IO_F32, dtype},
                                     {"deviation", 5, shape, numbers, MHLA_IO_F32, dtype},
                                     {"labels", 1, shape, labels, MHLA_IO_I32, MHLA_IO_I32}};
    assert_int_equal(mhla_safetensors_write(path, tensors, 3, NULL, 0), MHLA_OK);
    free(numbers);
    free(labels);
}

static void refused(void **state) {
    (void)state;
    mhla_dataset *d;
    char path[400];
    snprintf(path, sizeof path, "%s/test-00000.safetensors", in_root("killed"));
    write_shard(path, TEST, C, 3, MHLA_IO_F32);
    assert_int_equal(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), MHLA_OK);
    mhla_dataset_free(d);
    write_shard(path, TEST - 1, C, 3, MHLA_IO_F32);
    REFUSED(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), "[63, 2, 4, 4, 4]");
    write_shard(path, TEST, C + 1, 3, MHLA_IO_F32);
    REFUSED(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), "[64, 2, 5, 4, 4]");
    write_shard(path, TEST, C, 4, MHLA_IO_F32);
    REFUSED(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), "labels[63] is 4");
    write_shard(path, TEST, C, 3, MHLA_IO_BF16);
    REFUSED(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), "expected mean and deviation as F32");
    unlink(path);
    REFUSED(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), "is missing: run the same");
    /* an image without a latent: another one takes its place in training, none in evaluation */
    write_shard(path, TEST, C, -1, MHLA_IO_F32);
    assert_int_equal(mhla_dataset_open(&d, in_root("killed"), MHLA_SPLIT_TEST), MHLA_OK);
    for (int train = 0; train < 2; train++) {
        mhla_loader *l;
        const mhla_batch *batch;
        mhla_loader_desc desc = {.data = d, .batch = TEST, .train = train, .no_targets = 1, .latents = 1};
        desc.augment = (mhla_augment){.channels = C, .height = 4, .width = 4};
        assert_int_equal(mhla_loader_create(&l, &desc), MHLA_OK);
        assert_int_equal(mhla_loader_next(l, &batch), MHLA_OK);
        int without = 0;
        for (int i = 0; i < batch->count; i++) without += batch->labels[i] < 0;
        assert_int_equal(without, !train);
        mhla_loader_free(l);
        desc.latents = 0;
        REFUSED(mhla_loader_create(&l, &desc), "only a diffusion model learns them");
    }
    mhla_dataset_free(d);
    mhla_trainer *t;
    REFUSED(create_run(&t, "x", "model.channels=3"), "the data are latents of 4 x 4 x 4, the model takes 3 x 4 x 4");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), /* first: it forks */
                                       cmocka_unit_test(by_definition), cmocka_unit_test(of_clips),
                                       cmocka_unit_test(trains), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
