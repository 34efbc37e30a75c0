/* Training an autoencoder: it learns, a stopped or killed run goes on to the same bytes whatever the number of threads and with blocks
 * computed again, parts of a batch add up, its scale gives latents a deviation of 1, what is wrong is told. */
#include <mhla/diffusion.h>

#include "kill_case.h"

/* The settings of all runs here: everything random is on. More may follow, ended by NULL. */
static mhla_status create_autoencoder(mhla_trainer **t, const char *run, ...) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *list[48] = {
        source,           "task=autoencoder",    "data.workers=2",          "model.model=kl_f4",
        "augment.flip=0", "model.sample_size=8", "model.norm_num_groups=4", "model.block_out_channels=8,12,16",
        "train.batch=32", "train.steps=24",      "model.latent_channels=3", "train.rate=0.003",
        "train.kl=0.001", "train.ema=0.9",       "augment.flip=0.5",        "augment.crop=pad",
        "augment.pad=1",  "sample.columns=4",    "sample.rows=2",           "eval.epochs=1",
        "log.steps=1",    "train.clip=1",        "train.weight_decay=0",
    };
    int n = 23;
    va_list more;
    va_start(more, run);
    for (const char *s; (s = va_arg(more, const char *)) != NULL && n < 48;) list[n++] = s;
    va_end(more);
    return mhla_trainer_create(t, in_root(run), NULL, list, n);
}

typedef struct watch {
    mhla_trainer *trainer;
    int64_t stop_at;
    double first, last, average;
    char notes[2048];
} watch;

static void watching(void *user, const mhla_train_event *e) {
    watch *w = user;
    if (e->kind == MHLA_TRAIN_STEP && e->step == w->stop_at) mhla_trainer_stop(w->trainer);
    if (e->kind == MHLA_TRAIN_EVALUATED) {
        if (w->first == 0.0) w->first = e->test_loss;
        w->last = e->test_loss;
        w->average = e->ema_loss;
    }
    if (e->kind == MHLA_TRAIN_NOTE && strlen(w->notes) + strlen(e->text) + 2 < sizeof w->notes)
        strcat(strcat(w->notes, e->text), "\n");
}

static int run(mhla_trainer *t, watch *w) {
    int finished = 0;
    w->trainer = t;
    if (mhla_trainer_run(t, watching, w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    mhla_trainer_free(t);
    return finished;
}

static void assert_same_run(const char *a, const char *b) {
    char x[512], y[512];
    assert_same_end(a, b);
    snprintf(x, sizeof x, "%s/samples/step-00000020.png", in_root(a));
    snprintf(y, sizeof y, "%s/samples/step-00000020.png", in_root(b));
    assert_same_file(x, y);
}

/* Latents of the training images as a diffusion model sees them: their deviation. */
static double deviation_of(const char *vae, const char *out, int channels) {
    char path[300];
    mhla_model *m;
    mhla_dataset *data;
    ASSERT_OK(mhla_model_open(&m, in_root(vae)));
    snprintf(path, sizeof path, "%s", in_root("data"));
    const mhla_latents_desc d = {.size = sizeof d, .source = path, .out = in_root(out)};
    ASSERT_OK(mhla_latents_make(m, &d, NULL));
    mhla_model_free(m);
    ASSERT_OK(mhla_dataset_open(&data, in_root(out), MHLA_SPLIT_TRAIN));
    mhla_loader *loader;
    const mhla_batch *batch;
    ASSERT_OK(
        mhla_loader_create(&loader, &(mhla_loader_desc){.data = data,
                                                        .batch = 320,
                                                        .train = 1,
                                                        .no_targets = 1,
                                                        .latents = 1,
                                                        .augment = {.height = 2, .width = 2, .channels = channels}}));
    ASSERT_OK(mhla_loader_next(loader, &batch));
    double sum = 0.0, square = 0.0;
    const int n = 320 * 4 * channels;
    for (int i = 0; i < n; i++) {
        sum += (double)batch->images[i] / n;
        square += (double)batch->images[i] * (double)batch->images[i] / n;
    }
    mhla_loader_free(loader);
    mhla_dataset_free(data);
    return sqrt(square - sum * sum);
}

static void learns(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    ASSERT_OK(create_autoencoder(&t, "learns", "train.steps=100", "train.rate=0.01", "eval.steps=4",
                                 "augment.crop=none", NULL));
    assert_int_equal(run(t, &w), 1);
    assert_non_null(strstr(w.notes, "memory: "));
    if (!(w.last < 0.2 && w.last < 0.7 * w.first && isfinite(w.average)))
        fail_msg("%g to %g, %g", w.first, w.last, w.average);
    const double deviation = deviation_of("learns", "latents", 3);
    if (!(deviation > 0.9 && deviation < 1.1)) fail_msg("latents have a deviation of %g", deviation);

    char report[256], page[512];
    const char *runs[] = {in_root("learns")};
    snprintf(report, sizeof report, "%s", in_root("report.html"));
    ASSERT_OK(mhla_report_write(report, runs, 1));
    FILE *f = fopen(report, "r");
    int grids = 0, said = 0;
    assert_non_null(f);
    while (fgets(page, sizeof page, f)) {
        grids += strstr(page, "images after step 100") != NULL;
        said += strstr(page, "reconstruct") != NULL;
    }
    fclose(f);
    assert_int_equal(grids, 1);
    assert_true(said > 0);
}

/* Diffusions of both kinds on what it makes. */
static void is_learned_from(void **state) {
    (void)state;
    static const char *const models[] = {"model.model=dit_micro", "model.model=dig_micro"};
    for (int i = 0; i < 2; i++) {
        char source[300], vae[300];
        mhla_trainer *t;
        watch w = {0};
        snprintf(source, sizeof source, "data.source=%s", in_root("latents"));
        snprintf(vae, sizeof vae, "sample.vae=%s", in_root("learns"));
        const char *const settings[] = {source,
                                        models[i],
                                        "model.patch=1",
                                        "model.dim=16",
                                        "model.depth=2",
                                        "model.heads=2",
                                        "train.batch=32",
                                        "train.steps=60",
                                        "train.rate=0.01",
                                        "sample.steps=3",
                                        "sample.columns=2",
                                        "model.process=flow",
                                        vae,
                                        "model.blocks=2",
                                        "sample.sampler=euler",
                                        "eval.epochs=2"};
        ASSERT_OK(mhla_trainer_create(&t, in_root(i ? "dig" : "dit"), NULL, settings, 16));
        assert_int_equal(run(t, &w), 1);
        assert_true(w.last < w.first);
        char grid[300];
        snprintf(grid, sizeof grid, "%s/samples/step-00000060.png", in_root(i ? "dig" : "dit"));
        assert_int_equal(access(grid, F_OK), 0);
    }
}

static void goes_on(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    ASSERT_OK(create_autoencoder(&t, "through", NULL));
    assert_int_equal(run(t, &w), 1);
    ASSERT_OK(create_autoencoder(&t, "stopped", "data.workers=0", "train.recompute=true", NULL));
    for (int part = 0, finished = 0; !finished; part++) {
        w = (watch){.stop_at = 5 * part + 3};
        finished = run(t, &w);
        if (!finished) ASSERT_OK(mhla_trainer_resume(&t, in_root("stopped")));
    }
    assert_same_run("through", "stopped");
    mhla_context *context;
    ASSERT_OK(mhla_context_create(&context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}));
    ASSERT_OK(create_autoencoder(&t, "one-thread", NULL));
    mhla_trainer_set_context(t, context);
    w = (watch){0};
    assert_int_equal(run(t, &w), 1);
    mhla_context_free(context);
    assert_same_run("through", "one-thread");
}

/* The same of a network whose latents are certain: the loss is the error alone, and its scale is measured. */
static mhla_status create_deep(mhla_trainer **t, const char *run, const char *setting) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *list[] = {source,
                          "task=autoencoder",
                          "model.model=dc_ae_nano",
                          "model.sample_size=8",
                          "model.encoder_block_out_channels=8,8,16",
                          "model.decoder_block_out_channels=8,8,16",
                          "model.encoder_layers_per_block=1",
                          "model.decoder_layers_per_block=1",
                          "model.latent_channels=4",
                          "train.batch=32",
                          "train.steps=60",
                          "train.rate=0.003",
                          "train.ema=0.9",
                          "augment.flip=0.5",
                          "sample.columns=4",
                          "sample.rows=2",
                          "eval.epochs=1",
                          "log.steps=1",
                          setting};
    return mhla_trainer_create(t, in_root(run), NULL, list, sizeof list / sizeof *list);
}

static void deep(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    ASSERT_OK(create_deep(&t, "deep", "train.recompute=false"));
    assert_int_equal(run(t, &w), 1);
    if (!(w.last < 0.8 * w.first && isfinite(w.average))) fail_msg("%g to %g, %g", w.first, w.last, w.average);
    const double deviation = deviation_of("deep", "deep-latents", 4);
    if (!(deviation > 0.8 && deviation < 1.2)) fail_msg("latents have a deviation of %g", deviation);
    ASSERT_OK(create_deep(&t, "deep-stopped", "train.recompute=true"));
    for (int part = 0, finished = 0; !finished; part++) {
        w = (watch){.stop_at = 15 * part + 7};
        finished = run(t, &w);
        if (!finished) ASSERT_OK(mhla_trainer_resume(&t, in_root("deep-stopped")));
    }
    assert_same_end("deep", "deep-stopped");
    mhla_context *context;
    ASSERT_OK(mhla_context_create(&context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}));
    ASSERT_OK(create_deep(&t, "deep-thread", "train.kl=1e-6")); /* the usual one, which counts for nothing here */
    mhla_trainer_set_context(t, context);
    w = (watch){0};
    assert_int_equal(run(t, &w), 1);
    mhla_context_free(context);
    assert_same_end("deep", "deep-thread");
    assert_int_equal(create_deep(&t, "deep-wrong", "train.kl=1e-3"), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "train.kl is 0.001: the latents of this autoencoder are not drawn"));
    assert_int_equal(create_deep(&t, "deep-wrong", "model.in_channels=3"), MHLA_EINVAL);
}

/* Recomputed blocks take less memory; products of bfloat16 give other numbers, but not far. */
static void less(void **state) {
    (void)state;
    static const char *const settings[] = {"train.recompute=false", "train.recompute=true", "train.dtype=bfloat16"};
    double memory[3], losses[3];
    for (int i = 0; i < 3; i++) {
        mhla_trainer *t;
        watch w = {0};
        char name[16];
        snprintf(name, sizeof name, "less-%d", i);
        ASSERT_OK(create_autoencoder(&t, name, settings[i], "train.steps=10", NULL));
        assert_int_equal(run(t, &w), 1);
        memory[i] = atof(strchr(strstr(w.notes, "memory: "), '(') + 1);
        losses[i] = w.last;
    }
    assert_true(memory[1] < 0.8 * memory[0]);
    assert_true(losses[0] == losses[1] && losses[2] != losses[0] && fabs(losses[2] / losses[0] - 1.0) < 0.05);
}

/* 32 = 2 x 16, to rounding: the noise belongs to the sample, not to the part. */
static void accumulates(void **state) {
    (void)state;
    mhla_trainer *t[2];
    for (int i = 0; i < 2; i++) {
        int finished;
        ASSERT_OK(create_autoencoder(&t[i], i ? "parts" : "whole", "train.steps=2", "eval.limit=8",
                                     i ? "train.accumulate=2" : "train.accumulate=1", NULL));
        ASSERT_OK(mhla_trainer_run(t[i], NULL, NULL, &finished));
    }
    const mhla_params *a = t[0]->model->params, *b = t[1]->model->params;
    for (int i = 0; i < mhla_params_count(a); i++) {
        const mhla_param *p = mhla_params_at(a, i), *q = mhla_params_at(b, i);
        double sum = 0.0, all = 0.0;
        for (int64_t k = 0; k < p->count; k++) {
            sum += fabs((double)p->data[k] - (double)q->data[k]);
            all += fabs((double)p->data[k]);
        }
        if (sum > 1e-3 * all + 1e-4 * (double)p->count) fail_msg("%s: %g of %g", p->name, sum, all);
    }
    mhla_trainer_free(t[0]);
    mhla_trainer_free(t[1]);
}

static void goes_wrong(void **state) {
    (void)state;
    static const struct {
        const char *setting, *message;
    } cases[] = {
        {"train.kl=-1", "train.kl"},
        {"model.in_channels=3", "model.in_channels is 3 and model.out_channels 1: the images of"},
        {"model.out_channels=2", "have 1"},
        {"model.sample_size=10", "sample_size 10 is not a multiple of 4"},
        {"model.norm_num_groups=5", "not a multiple of norm_num_groups 5"},
        {"model.model=dit_nano", "model.model"},
        {"train.batch=1000", "train.batch"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_trainer *t = NULL;
        assert_int_not_equal(create_autoencoder(&t, "wrong", cases[i].setting, NULL), MHLA_OK);
        if (!strstr(mhla_message(), cases[i].message)) fail_msg("%s: %s", cases[i].setting, mhla_message());
        assert_null(t);
        assert_int_not_equal(access(in_root("wrong"), F_OK), 0);
    }
}

/* A checkpoint whose scale somebody has changed is not gone on with. */
static void broken_scale(void **state) {
    (void)state;
    static const char text[] = "{\"_class_name\": \"AutoencoderKL\", \"scaling_factor\": 0}";
    mhla_trainer *t;
    watch w = {.stop_at = 3};
    ASSERT_OK(create_autoencoder(&t, "broken", NULL));
    assert_int_equal(run(t, &w), 0);
    char path[300];
    snprintf(path, sizeof path, "%s/last/config.json", in_root("broken"));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(mhla_trainer_resume(&t, in_root("broken")), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "scaling_factor"));
}

static mhla_status begin(mhla_trainer **t, const char *name) {
    return create_autoencoder(t, name, "checkpoint.steps=2", NULL);
}

static void killed(void **state) {
    (void)state;
    kill_often(begin, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),      cmocka_unit_test(learns),     cmocka_unit_test(is_learned_from),
        cmocka_unit_test(goes_on),     cmocka_unit_test(deep),       cmocka_unit_test(less),
        cmocka_unit_test(accumulates), cmocka_unit_test(goes_wrong), cmocka_unit_test(broken_scale),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
