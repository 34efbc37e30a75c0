/* Text to image: rows of captions by definition, killed while they are made; training with them: the loss by hand, stopped and killed runs
 * that end with the same bytes, captions that are dropped, fine-tuning to MHLA; what has changed since is noticed, what is wrong is told. */
#include "kill_case.h"

#include <mhla/diffusion.h>
#include <mhla/lm.h>

#include "core/rng.h"
#include "data/captions.h"
#include "diffusion/diffusion.h"
#include "image/image.h"

enum { TRAIN = 150, TEST = 18, WIDTH = 16, SIDE = 8, EACH = 3 * SIDE * SIDE };

static const char *const colours[] = {"red", "green", "blue"}, *const places[] = {"left", "right"};
static const char instruction[] = "A picture: ";

static void write_text_file(const char *path, const char *text, const char *mode) {
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* A picture that is bright on one side, in a colour; its caption says which. The captions of the training are beside it, those of the test
 * in the folder of the data. */
static void add_picture(const char *data, int test, int i, const char *extra) {
    char name[200], path[400], line[400];
    const int c = i % 3, side = i / 3 % 2;
    mhla_image image = {0};
    ASSERT_OK(mhla_image_reserve(&image, SIDE, SIDE, 3));
    for (int p = 0; p < SIDE * SIDE; p++)
        for (int k = 0; k < 3; k++)
            image.data[3 * p + k] = (uint8_t)(k == c && p % SIDE / 4 == side ? 250 : (i * 7 + p) % 40);
    snprintf(name, sizeof name, "%s/%03d.png", side ? "b" : "a", i);
    snprintf(path, sizeof path, "%s/%s/%s", data, test ? "test" : "train", name);
    ASSERT_OK(mhla_image_write(path, &image));
    mhla_image_free(&image);
    snprintf(path, sizeof path, "%s/%smetadata.jsonl", data, test ? "" : "train/");
    snprintf(line, sizeof line, "{\"file_name\": \"%s%s\", \"text\": \"%s on the %s%s\"}\n", test ? "test/" : "", name,
             colours[c], places[side], extra);
    write_text_file(path, line, "a");
}

static void make_pictures(const char *data, const char *extra) {
    static const char *const folders[] = {"", "/train", "/test", "/train/a", "/train/b", "/test/a", "/test/b"};
    for (size_t i = 0; i < 7; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s%s", data, folders[i]);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    for (int i = 0; i < TRAIN; i++) add_picture(data, 0, i, i % 5 == 0 ? ", rather dark" : extra);
    for (int i = 0; i < TEST; i++) add_picture(data, 1, i, extra);
}

static void make_encoder(const char *folder, uint64_t seed) {
    const char *settings[] = {"vocab_size=300", "hidden_size=16", "intermediate_size=24", "num_hidden_layers=2",
                              "attention=softmax"};
    const char *const special[] = {"<|endoftext|>"}, *files[] = {in_root("text.txt")};
    const mhla_tokenizer_training training = {
        .size = sizeof training, .vocabulary = 300, .special = special, .specials = 1};
    mhla_model *fresh;
    char path[300];
    ASSERT_OK(mhla_model_create(&fresh, "lm_micro", settings, 5, seed));
    ASSERT_OK(mhla_model_save(fresh, folder));
    mhla_model_free(fresh);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    ASSERT_OK(mhla_tokenizer_train(path, files, 1, &training, NULL, NULL));
}

static int begin(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/mhla_train_XXXXXX");
    assert_non_null(mkdtemp(root));
    write_text_file(in_root("text.txt"),
                    "A picture: red on the left, green on the right, blue on the left, rather dark\n", "w");
    make_pictures(in_root("data"), "");
    make_encoder(in_root("encoder"), 5);
    make_encoder(in_root("other"), 6);
    return 0;
}

/* ---- Rows --------------------------------------------------------------------------------------------------------------- */

static mhla_status make_as(const char *encoder, const char *data, const char *first, const char *out,
                           mhla_captions_made *made) {
    mhla_model *m;
    const mhla_captions_desc d = {
        .size = sizeof d, .source = in_root(data), .out = in_root(out), .instruction = first, .longest = 12};
    ASSERT_OK(mhla_model_open(&m, in_root(encoder)));
    const mhla_status status = mhla_captions_make(m, &d, made);
    mhla_model_free(m);
    return status;
}

static void assert_same_rows(const char *a, const char *b) {
    static const char *const files[] = {"captions.json", "rows-00000.safetensors", "rows-00001.safetensors"};
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
    const mhla_status status = make_as("encoder", "data", instruction, out, NULL);
    if (status != MHLA_OK) fprintf(stderr, "%s\n", mhla_message());
    _exit(status == MHLA_OK ? FINISHED : FAILED);
}

static void killed_making(void **state) {
    (void)state;
    const double first = mhla_seconds();
    assert_int_equal(wait_for(make_in_child("rows")), FINISHED);
    const double duration = mhla_seconds() - first;
    rng r = {(uint64_t)time(NULL)};
    for (int done = 0; done < 6;) {
        const pid_t child = make_in_child("killed-rows");
        pause_for(duration * (0.05 + 0.7 * rng_below(&r, 1000) / 1000.0));
        kill(child, SIGKILL);
        const int how = wait_for(child);
        done += how == -1;
        if (how == FINISHED) {
            assert_same_rows("rows", "killed-rows");
            remove_tree(in_root("killed-rows"));
        } else {
            assert_int_equal(how, -1);
        }
    }
    assert_int_equal(wait_for(make_in_child("killed-rows")), FINISHED);
    assert_same_rows("rows", "killed-rows");
}

/* Each text's rows are what the encoder makes of it alone; the order is the dataset's. */
static void by_definition(void **state) {
    (void)state;
    mhla_captions c;
    mhla_model *m;
    mhla_captions_made made = {.size = sizeof made};
    ASSERT_OK(make_as("encoder", "data", instruction, "rows", &made));
    assert_int_equal(made.kept, 1 + TRAIN + TEST);
    assert_int_equal(made.train, TRAIN);
    assert_int_equal(made.test, TEST);
    ASSERT_OK(mhla_captions_open(&c, in_root("rows")));
    ASSERT_OK(mhla_model_open(&m, in_root("encoder")));
    assert_int_equal(c.texts, 1 + TRAIN + TEST);
    assert_string_equal(mhla_captions_text(&c, 0), "");
    assert_string_equal(mhla_captions_text(&c, 1), "red on the left, rather dark"); /* train/a/000.png */
    assert_string_equal(mhla_captions_text(&c, 2), "green on the left");            /* train/a/001.png */
    assert_string_equal(mhla_captions_text(&c, 1 + TRAIN / 2), "red on the right"); /* train/b/003.png */
    assert_string_equal(mhla_captions_text(&c, TRAIN + TEST), "blue on the right"); /* test/b/017.png */
    for (int64_t i = 0; i < c.texts; i++) {
        const char *text = mhla_captions_text(&c, i);
        mhla_text_rows rows = {.size = sizeof rows};
        const mhla_encoder_desc how = {.size = sizeof how, .longest = 12, .instruction = instruction};
        float got[20 * WIDTH];
        ASSERT_OK(mhla_text_encode(m, &rows, &text, 1, &how));
        assert_true(c.longest <= 20);
        assert_int_equal(mhla_captions_get(&c, got, c.longest, i), rows.lengths[0]);
        assert_memory_equal(got, rows.rows, (size_t)(rows.lengths[0] * WIDTH) * sizeof *got);
        for (int64_t k = rows.lengths[0] * WIDTH; k < c.longest * WIDTH; k++) assert_true(got[k] == 0.0f);
        mhla_text_rows_free(&rows);
    }
    mhla_captions_free(&c);
    mhla_model_free(m);
    /* lines of a text file */
    write_text_file(in_root("words.txt"), "  red heart \n\nblue on the left", "w");
    ASSERT_OK(make_as("encoder", "words.txt", NULL, "words", &made));
    ASSERT_OK(mhla_captions_open(&c, in_root("words")));
    assert_int_equal(c.texts, 3);
    assert_int_equal(c.about.test, 0);
    assert_int_equal(c.lengths[0], 0); /* no instruction, and a tokenizer that adds nothing */
    assert_string_equal(mhla_captions_text(&c, 1), "red heart");
    assert_string_equal(mhla_captions_text(&c, 2), "blue on the left");
    mhla_captions_free(&c);
}

/* ---- Training ------------------------------------------------------------------------------------------------------------ */

static mhla_status create_run(mhla_trainer **t, const char *run, ...) {
    char source[300], captions[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    snprintf(captions, sizeof captions, "data.captions=%s", in_root("rows"));
    const char *list[48] = {source,
                            captions,
                            "model.model=sana_nano",
                            "model.attention=mhla",
                            "model.in_channels=3",
                            "model.sample_size=8",
                            "model.patch_size=2",
                            "model.blocks=2",
                            "model.dropout=0.1",
                            "train.steps=12",
                            "train.batch=30",
                            "train.rate=0.003",
                            "train.ema=0.9",
                            "train.caption_drop=0.2",
                            "augment.flip=0.5",
                            "data.workers=2",
                            "sample.rows=3",
                            "sample.columns=2",
                            "sample.steps=2",
                            "eval.epochs=1",
                            "log.steps=1",
                            "train.clip=1"};
    int n = 22;
    va_list more;
    va_start(more, run);
    for (const char *s; (s = va_arg(more, const char *)) != NULL && n < 48;) {
        int at = 0; /* instead of what stands there */
        while (at < n && strncmp(list[at], s, strcspn(s, "=") + 1) != 0) at++;
        list[at] = s;
        n += at == n;
    }
    va_end(more);
    return mhla_trainer_create(t, in_root(run), NULL, list, n);
}

static int64_t stop_at;
static mhla_trainer *running;
static double test_loss;
static char notes[4096];
static void watching(void *user, const mhla_train_event *e) {
    (void)user;
    if (e->kind == MHLA_TRAIN_STEP && e->step == stop_at) mhla_trainer_stop(running);
    if (e->kind == MHLA_TRAIN_EVALUATED) test_loss = e->test_loss;
    if (e->kind == MHLA_TRAIN_NOTE && strlen(notes) + strlen(e->text) + 2 < sizeof notes)
        strcat(strcat(notes, e->text), "\n");
}

static int run(mhla_trainer *t, int64_t stop) {
    int finished = 0;
    running = t;
    stop_at = stop;
    *notes = '\0';
    if (mhla_trainer_run(t, watching, NULL, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    return finished;
}

/* Stopped, resumed, with one thread, with recomputation, in parts of another number of workers: the same bytes, pictures too. */
static void goes_on(void **state) {
    (void)state;
    mhla_trainer *t;
    mhla_context *one;
    char a[400], b[400];
    if (create_run(&t, "whole", NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(run(t, -1), 1);
    mhla_trainer_free(t);
    ASSERT_OK(create_run(&t, "parts", "data.workers=0", "train.recompute=true", NULL));
    ASSERT_OK(mhla_context_create(&one, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}));
    mhla_trainer_set_context(t, one);
    assert_int_equal(run(t, 7), 0);
    mhla_trainer_free(t);
    ASSERT_OK(mhla_trainer_resume(&t, in_root("parts")));
    mhla_trainer_set_context(t, one);
    assert_int_equal(run(t, -1), 1);
    mhla_trainer_free(t);
    mhla_context_free(one);
    assert_same_end("whole", "parts");
    static const char *const files[] = {"samples/step-00000010.png", "samples/rows.json", "last/text.json"};
    for (int i = 0; i < 3; i++) {
        snprintf(a, sizeof a, "%s/%s", in_root("whole"), files[i]);
        snprintf(b, sizeof b, "%s/%s", in_root("parts"), files[i]);
        assert_same_file(a, b);
    }
    json_t *rows;
    ASSERT_OK(mhla_json_load(&rows, in_root("whole/samples/rows.json")));
    const json_t *names = json_object_get(rows, "rows"), *held = json_object_get(rows, "held_out");
    assert_int_equal(json_array_size(names), 3);
    assert_string_equal(json_string_value(json_array_get(names, 0)), "red on the left, rather dark");
    assert_true(json_is_false(json_array_get(held, 1)));
    assert_true(json_is_true(json_array_get(held, 2)));
    assert_string_equal(json_string_value(json_array_get(names, 2)), "red on the left");
    json_decref(rows);
}

static mhla_status begin_run(mhla_trainer **t, const char *name) {
    return create_run(t, name, "checkpoint.steps=2", "sample.columns=1", NULL);
}

static void killed_training(void **state) {
    (void)state;
    kill_often(begin_run, 3);
}

/* The test loss of a trained model, from its own answers: mean over held-out pictures of |noise - picture - answer|^2. */
static void loss_by_hand(void **state) {
    (void)state;
    mhla_trainer *t;
    mhla_dataset *data;
    mhla_captions c;
    mhla_noising *noising;
    ASSERT_OK(create_run(&t, "loss", "seed=3", "train.ema=0", "eval.epochs=0", "sample.columns=0", NULL));
    assert_int_equal(run(t, -1), 1);
    ASSERT_OK(mhla_dataset_open(&data, in_root("data"), MHLA_SPLIT_TEST));
    ASSERT_OK(mhla_captions_open(&c, in_root("rows")));
    ASSERT_OK(mhla_noising_create(&noising, MHLA_PROCESS_FLOW, 0, 0, 1.0));
    double sum = 0.0, other = 0.0;
    float *rows = new_bytes((size_t)(c.longest * WIDTH) * sizeof *rows);
    for (int64_t i = 0; i < TEST; i++) {
        mhla_image image = {0};
        int label;
        float x[EACH], noise[EACH], answer[EACH];
        ASSERT_OK(mhla_dataset_get(data, i, &image, &label));
        mhla_rng time = mhla_rng_make(3, 0, (uint64_t)i, MHLA_PLACE_TEST_TIME);
        const mhla_rng draw = mhla_rng_make(3, 0, (uint64_t)i, MHLA_PLACE_TEST_NOISE);
        const double at = mhla_noising_time(noising, ((double)mhla_rng_next(&time) + 0.5) * 0x1p-32);
        mhla_rng_normals(&draw, noise, EACH);
        for (int k = 0; k < 3; k++)
            for (int p = 0; p < SIDE * SIDE; p++) x[k * 64 + p] = (float)image.data[3 * p + k] / 127.5f - 1.0f;
        float noisy[EACH];
        for (int k = 0; k < EACH; k++)
            noisy[k] = (float)((1.0 - at / 1000.0) * (double)x[k] + at / 1000.0 * (double)noise[k]);
        for (int empty = 0; empty < 2; empty++) {
            const int32_t n = mhla_captions_get(&c, rows, c.longest, empty ? 0 : 1 + TRAIN + i);
            const mhla_denoise asked = {.size = sizeof asked,
                                        .count = 1,
                                        .x = noisy,
                                        .times = &(const float){(float)at},
                                        .rows = rows,
                                        .lengths = &n,
                                        .longest = c.longest};
            ASSERT_OK(mhla_model_denoise(mhla_trainer_model(t), answer, &asked));
            double each = 0.0;
            for (int k = 0; k < EACH; k++) each += pow((double)noise[k] - (double)x[k] - (double)answer[k], 2.0) / EACH;
            *(empty ? &other : &sum) += each / TEST;
        }
        mhla_image_free(&image);
    }
    if (fabs(sum - test_loss) > 1e-5 * sum) fail_msg("%.9g, by hand %.9g", test_loss, sum);
    assert_true(fabs(other - test_loss) > 1e-4 * sum); /* the captions count */
    free(rows);
    mhla_noising_free(noising);
    mhla_captions_free(&c);
    mhla_dataset_free(data);
    mhla_trainer_free(t);
}

/* Where every caption is dropped it does not matter what they say; else it does. */
static void drops_captions(void **state) {
    (void)state;
    char other[300], rows[300];
    make_pictures(in_root("data2"), " and bright");
    ASSERT_OK(make_as("encoder", "data2", instruction, "rows2", NULL));
    snprintf(other, sizeof other, "data.source=%s", in_root("data2"));
    snprintf(rows, sizeof rows, "data.captions=%s", in_root("rows2"));
    for (int all = 0; all < 2; all++)
        for (int k = 0; k < 2; k++) {
            mhla_trainer *t;
            const char *drop = all ? "train.caption_drop=1" : "train.caption_drop=0", *name = k ? "second" : "first";
            ASSERT_OK(create_run(&t, name, drop, "train.steps=3", "eval.limit=4", "sample.columns=0", "train.ema=0",
                                 k ? other : "data.workers=1", k ? rows : NULL, NULL));
            assert_int_equal(run(t, -1), 1);
            mhla_trainer_free(t);
            if (k == 0) continue;
            mhla_model *m[2];
            char hash[2][65];
            for (int i = 0; i < 2; i++) {
                ASSERT_OK(mhla_model_open(&m[i], in_root(i ? "second" : "first")));
                ASSERT_OK(mhla_model_hash(m[i], hash[i]));
                mhla_model_free(m[i]);
            }
            assert_int_equal(strcmp(hash[0], hash[1]) == 0, all);
            remove_tree(in_root("first"));
            remove_tree(in_root("second"));
        }
}

/* From linear attention, as published, to MHLA: all but the mixing matrices is there. With matrices of ones nothing changes. */
static void fine_tunes(void **state) {
    (void)state;
    mhla_trainer *t;
    char init[300];
    ASSERT_OK(create_run(&t, "linear", "model.attention=linear", "model.dropout=0", "train.ema=0", NULL));
    assert_int_equal(run(t, -1), 1);
    const double before = test_loss;
    mhla_trainer_free(t);
    snprintf(init, sizeof init, "train.init=%s", in_root("linear"));
    ASSERT_OK(create_run(&t, "tuned", init, "model.mix=uniform", "model.dropout=0", "train.rate=0", "train.ema=0",
                         "train.steps=1", "train.weight_decay=0", "train.warmup_rate=0", NULL));
    assert_int_equal(run(t, -1), 1);
    if (fabs(test_loss - before) > 1e-6 * before) fail_msg("%.9g, was %.9g", test_loss, before);
    assert_non_null(strstr(notes, "new, initialised (2): transformer_blocks.*.attn1.piece_attn.conv.weight"));
    mhla_trainer_free(t);
}

/* ---- What is refused ------------------------------------------------------------------------------------------------------ */

#define REFUSED(call, text)                                                                                            \
    do {                                                                                                               \
        assert_int_not_equal(call, MHLA_OK);                                                                           \
        if (strstr(mhla_message(), text) == NULL) fail_msg("%s: expected \"%s\"", mhla_message(), text);               \
    } while (0)

static void wrong(void **state) {
    (void)state;
    static const struct {
        const char *settings[2], *message;
    } cases[] = {
        {{"data.captions=", NULL}, "data.captions is missing"},
        {{"data.captions=no/such", NULL}, "no/such/captions.json"},
        {{"model.caption_channels=8", NULL}, "the model takes 8 numbers per token"},
        {{"model.in_channels=1", NULL}, "the model takes 1 channels, the data have 3"},
        {{"model.out_channels=1", NULL}, "the model reads 3 channels and predicts 1"},
        {{"model.sample_size=9", NULL}, "multiple of patch 2"},
        {{"sample.sampler=ddpm", NULL}, "ddpm"},
        {{"task=diffusion", "data.captions="}, "data.captions"},
    };
    mhla_trainer *t = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSED(create_run(&t, "wrong", cases[i].settings[0], cases[i].settings[1], NULL), cases[i].message);
    const char *const classes[] = {"task=text-to-image", "model.model=dit_micro", "data.source=x"};
    REFUSED(mhla_trainer_create(&t, in_root("wrong"), NULL, classes, 3), "no such folder");
    assert_int_not_equal(access(in_root("wrong"), F_OK), 0);
    /* another encoder, another instruction, folders of something else */
    REFUSED(make_as("other", "data", instruction, "rows", NULL), "encoded by another encoder");
    REFUSED(make_as("encoder", "data", "A drawing: ", "rows", NULL), "another instruction or limit");
    REFUSED(make_as("encoder", "data", instruction, "whole", NULL), "is not empty");
    REFUSED(make_as("encoder", "rows", instruction, "x", NULL), "no folder in it");
    mhla_model *image;
    ASSERT_OK(mhla_model_open(&image, in_root("whole")));
    const mhla_captions_desc d = {.size = sizeof d, .source = in_root("data"), .out = in_root("x")};
    REFUSED(mhla_captions_make(image, &d, NULL), "this needs a text encoder");
    mhla_model_free(image);
    assert_int_not_equal(access(in_root("x"), F_OK), 0);
    /* a run goes on with the rows that it began with */
    ASSERT_OK(create_run(&t, "began", "sample.columns=0", NULL));
    assert_int_equal(run(t, 3), 0);
    mhla_trainer_free(t);
    assert_int_equal(rename(in_root("rows"), in_root("kept")), 0);
    ASSERT_OK(make_as("other", "data", instruction, "rows", NULL));
    REFUSED(mhla_trainer_resume(&t, in_root("began")), "encoded by another encoder");
    remove_tree(in_root("rows"));
    assert_int_equal(rename(in_root("kept"), in_root("rows")), 0);
    ASSERT_OK(mhla_trainer_resume(&t, in_root("began")));
    mhla_trainer_free(t);
    /* files that are missing or of another shape */
    assert_int_equal(rename(in_root("rows/rows-00001.safetensors"), in_root("kept")), 0);
    REFUSED(create_run(&t, "wrong", NULL), "rows-00001.safetensors is missing");
    ASSERT_OK(make_as("encoder", "words.txt", NULL, "words", NULL));
    assert_int_equal(link(in_root("rows/rows-00000.safetensors"), in_root("rows/rows-00001.safetensors")), 0);
    REFUSED(create_run(&t, "wrong", NULL), "lengths");
    unlink(in_root("rows/rows-00001.safetensors"));
    assert_int_equal(rename(in_root("kept"), in_root("rows/rows-00001.safetensors")), 0);
}

static void changes(void **state) {
    (void)state;
    mhla_trainer *t = NULL;
    char test[300];
    snprintf(test, sizeof test, "%s", in_root("data/metadata.jsonl"));
    /* a caption that changed is named */
    FILE *f = fopen(test, "r+");
    char line[300];
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f)); /* test/a/000.png, red */
    char *at = strstr(line, "red");
    assert_non_null(at);
    fseek(f, at - line, SEEK_SET);
    fputs("tan", f);
    fclose(f);
    REFUSED(create_run(&t, "wrong", NULL),
            "the caption of \"test/a/000.png\" was \"red on the left\" and is \"tan on the left\"");
    REFUSED(mhla_trainer_resume(&t, in_root("began")), "test/a/000.png");
    REFUSED(make_as("encoder", "data", instruction, "rows", NULL), "was \"red on the left\"");
    /* made anew elsewhere, the run notices that they are others */
    assert_int_equal(rename(in_root("rows"), in_root("kept")), 0);
    ASSERT_OK(make_as("encoder", "data", instruction, "rows", NULL));
    REFUSED(mhla_trainer_resume(&t, in_root("began")), "differ from those at the start of the run");
    write_text_file(test, "{\"file_name\": \"test/a/000.png\", \"text\": \"twice\"}\n", "a");
    REFUSED(create_run(&t, "wrong", NULL), "two captions");
    write_text_file(test, "{\"file_name\": \"test/a/000.png\"}\n", "w");
    REFUSED(create_run(&t, "wrong", NULL), "metadata.jsonl: line 1: expected an object with file_name and text");
    write_text_file(test, "{\"file_name\": \"test/a/000.png\", \"text\": \"one alone\"}", "w");
    REFUSED(create_run(&t, "wrong", NULL), "test/a/001.png: no caption for it");
    write_text_file(test, "not json\n", "w");
    REFUSED(create_run(&t, "wrong", NULL), "metadata.jsonl: line 1");
    unlink(test);
    unlink(in_root("data/train/metadata.jsonl"));
    REFUSED(create_run(&t, "wrong", NULL), "no captions: expected metadata.jsonl");
    make_data(in_root("arrays"), 30, 6);
    REFUSED(make_as("encoder", "arrays", instruction, "x", NULL), "have no files of their own");
    add_picture(in_root("data"), 0, TRAIN, "");
    REFUSED(create_run(&t, "wrong", NULL), "has 150 and 18 encoded captions, and");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_making), cmocka_unit_test(by_definition), cmocka_unit_test(killed_training),
        cmocka_unit_test(goes_on),       cmocka_unit_test(loss_by_hand),  cmocka_unit_test(drops_captions),
        cmocka_unit_test(fine_tunes),    cmocka_unit_test(wrong),         cmocka_unit_test(changes),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
