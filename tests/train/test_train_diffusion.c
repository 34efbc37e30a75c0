/* Training a diffusion model: it learns, grids of pictures appear, a stopped or killed run goes on to the same bytes whatever
 * the number of threads, parts of a batch add up, what is wrong is told. */
#include "kill_case.h"

/* The settings of all runs here: everything random is on. More may follow, ended by NULL. */
static mhla_status create_diffusion(mhla_trainer **t, const char *run, ...) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *list[48] = {
        source,
        "data.workers=2",
        "model.model=dit_micro",
        "model.image=8",
        "model.patch=2",
        "model.dim=16",
        "model.depth=2",
        "model.heads=2",
        "model.blocks=2",
        "model.dropout=0.1",
        "train.steps=24",
        "train.batch=32",
        "train.rate=0.003",
        "train.ema=0.9",
        "train.label_drop=0.2",
        "augment.flip=0.5",
        "augment.crop=pad",
        "augment.pad=1",
        "sample.columns=2",
        "sample.steps=3",
        "eval.epochs=1",
        "log.steps=1",
        "train.clip=1",
    };
    int n = 23;
    va_list more;
    va_start(more, run);
    for (const char *s; (s = va_arg(more, const char *)) != NULL && n < 48;)
        list[strncmp(s, "model.model=", 12) == 0 ? 2 : n++] = s; /* it decides which keys there are */
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

/* Of every process. */
static void learns(void **state) {
    (void)state;
    static const char *const processes[] = {"linear", "cosine", "flow"};
    static const double most[] = {0.2, 0.35, 0.7}; /* of an answer of zeros: 1, 1, and the data besides */
    for (int i = 0; i < 3; i++) {
        mhla_trainer *t;
        watch w = {0};
        char process[40];
        snprintf(process, sizeof process, "model.process=%s", processes[i]);
        if (create_diffusion(&t, processes[i], process, "train.steps=200", "train.rate=0.01", "eval.epochs=5",
                             i ? "train.logit_normal=false" : "train.recompute=true",
                             i == 2 ? "train.logit_normal=true" : NULL, NULL) != MHLA_OK)
            fail_msg("%s", mhla_message());
        assert_int_equal(run(t, &w), 1);
        assert_non_null(strstr(w.notes, "memory: "));
        if (!(w.last < most[i] && w.last < w.first && isfinite(w.average)))
            fail_msg("%s: %g to %g, %g", processes[i], w.first, w.last, w.average);
    }
    char report[256], page[512];
    const char *runs[] = {in_root("linear"), in_root("cosine"), in_root("flow")};
    snprintf(report, sizeof report, "%s", in_root("report.html"));
    if (mhla_report_write(report, runs, 3) != MHLA_OK) fail_msg("%s", mhla_message());
    FILE *f = fopen(report, "r");
    int grids = 0, named = 0;
    assert_non_null(f);
    while (fgets(page, sizeof page, f)) {
        grids += strstr(page, "images after step 200") != NULL;
        named +=
            strstr(page, "<div class=\"rows\"><span>0</span><span>1</span><span>2</span><span>3</span></div>") != NULL;
    }
    fclose(f);
    assert_int_equal(grids, 3);
    assert_true(named >= 3); /* each row of a grid has its class beside it */
}

/* DiG: the same, stopped in the middle. */
static void goes_on_dig(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    ASSERT_OK(create_diffusion(&t, "dig", "model.model=dig_micro", NULL));
    assert_int_equal(run(t, &w), 1);
    ASSERT_OK(create_diffusion(&t, "dig-stopped", "model.model=dig_micro", "train.recompute=true", NULL));
    w = (watch){.stop_at = 11};
    assert_int_equal(run(t, &w), 0);
    ASSERT_OK(mhla_trainer_resume(&t, in_root("dig-stopped")));
    w = (watch){0};
    assert_int_equal(run(t, &w), 1);
    assert_same_run("dig", "dig-stopped");
}

static void goes_on(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    if (create_diffusion(&t, "through", NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(run(t, &w), 1);
    assert_int_equal(create_diffusion(&t, "stopped", "data.workers=0", NULL), MHLA_OK);
    for (int part = 0, finished = 0; !finished; part++) {
        w = (watch){.stop_at = 5 * part + 3};
        finished = run(t, &w);
        if (!finished && mhla_trainer_resume(&t, in_root("stopped")) != MHLA_OK) fail_msg("%s", mhla_message());
    }
    assert_same_run("through", "stopped");
    mhla_context *context;
    assert_int_equal(
        mhla_context_create(&context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}), MHLA_OK);
    assert_int_equal(create_diffusion(&t, "one-thread", NULL), MHLA_OK);
    mhla_trainer_set_context(t, context);
    w = (watch){0};
    assert_int_equal(run(t, &w), 1);
    mhla_context_free(context);
    assert_same_run("through", "one-thread");
}

/* 32 = 2 x 16, to rounding: times, noise and dropped labels belong to the sample, not to the part. */
static void accumulates(void **state) {
    (void)state;
    mhla_trainer *t[2];
    for (int i = 0; i < 2; i++) {
        int finished;
        assert_int_equal(create_diffusion(&t[i], i ? "parts" : "whole", "train.steps=3", "eval.limit=8",
                                          i ? "train.accumulate=2" : "train.accumulate=1", NULL),
                         MHLA_OK);
        assert_int_equal(mhla_trainer_run(t[i], NULL, NULL, &finished), MHLA_OK);
    }
    const mhla_params *a = t[0]->model->params, *b = t[1]->model->params;
    for (int i = 0; i < mhla_params_count(a); i++) {
        const mhla_param *p = mhla_params_at(a, i), *q = mhla_params_at(b, i);
        for (int64_t k = 0; k < p->count; k++)
            if (fabsf(p->data[k] - q->data[k]) > 2e-4f)
                fail_msg("%s[%lld]: %g %g", p->name, (long long)k, p->data[k], q->data[k]);
    }
    mhla_trainer_free(t[0]);
    mhla_trainer_free(t[1]);
}

/* Where every label is dropped only the null label's row learns, where none is, only the others. */
static void drops_labels(void **state) {
    (void)state;
    for (int all = 0; all < 2; all++) {
        mhla_trainer *t;
        int finished;
        mhla_model *fresh;
        assert_int_equal(create_diffusion(&t, all ? "dropped" : "kept",
                                          all ? "train.label_drop=1" : "train.label_drop=0", "train.weight_decay=0",
                                          "train.steps=4", "eval.limit=8", NULL),
                         MHLA_OK);
        char path[300];
        snprintf(path, sizeof path, "%s/checkpoints/step-00000000", in_root(all ? "dropped" : "kept"));
        if (mhla_model_open_weights(&fresh, path, "raw") != MHLA_OK) fail_msg("%s", mhla_message());
        assert_int_equal(mhla_trainer_run(t, NULL, NULL, &finished), MHLA_OK);
        const mhla_param *a = mhla_params_find(fresh->params, "y_embedder.embedding_table.weight");
        const mhla_param *b = mhla_params_find(t->model->params, "y_embedder.embedding_table.weight");
        assert_int_equal(a->shape[0], 5);
        for (int row = 0; row < 5; row++) {
            const int same = memcmp(a->data + row * 16, b->data + row * 16, 16 * sizeof(float)) == 0;
            assert_int_equal(same, (row < 4) == all);
        }
        mhla_model_free(fresh);
        mhla_trainer_free(t);
    }
}

static void goes_wrong(void **state) {
    (void)state;
    static const struct {
        const char *settings[2], *message;
    } cases[] = {
        {{"model.null_label=false", NULL}, "null label"},
        {{"model.image=9", NULL}, "patch"},
        {{"model.classes=3", NULL}, "classes"},
        {{"train.batch=1000", NULL}, "train.batch"},
        {{"sample.sampler=euler", NULL}, "euler"},
        {{"train.logit_normal=true", NULL}, "logit_normal is for flows"},
        {{"train.shift=3", NULL}, "shift is for flows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_trainer *t = NULL;
        assert_int_not_equal(create_diffusion(&t, "wrong", cases[i].settings[0], cases[i].settings[1], NULL), MHLA_OK);
        if (!strstr(mhla_message(), cases[i].message)) fail_msg("%s", mhla_message());
        assert_null(t);
        assert_int_not_equal(access(in_root("wrong"), F_OK), 0);
    }
    /* config.json, which is UTF-8, could not say this name, and the run could not be opened again */
    mhla_trainer *t = NULL;
    FILE *f = fopen(in_root("data/classes.txt"), "w");
    assert_non_null(f);
    fputs("one\ntwo\nth\xe9\nfour\n", f);
    fclose(f);
    assert_int_not_equal(create_diffusion(&t, "wrong", NULL), MHLA_OK);
    unlink(in_root("data/classes.txt"));
    if (!strstr(mhla_message(), "class 2 of the data")) fail_msg("%s", mhla_message());
}

/* Who opens the model of a run prepares pictures at the scale at which it saw them. */
static void same_pictures(void **state) {
    (void)state;
    static const struct {
        const char *setting;
        mhla_crop crop;
    } cases[] = {{"augment.crop=none", MHLA_CROP_EVAL},
                 {"augment.crop=random", MHLA_CROP_EVAL},
                 {"augment.crop=pad", MHLA_CROP_CENTRE},
                 {"augment.crop=centre", MHLA_CROP_CENTRE}};
    for (int i = 0; i < 4; i++) {
        mhla_trainer *t;
        mhla_model *m;
        const char *run = cases[i].setting + 8; /* crop=... */
        assert_int_equal(create_diffusion(&t, run, "model.image=12", cases[i].setting, NULL), MHLA_OK);
        assert_int_equal(mhla_model_augment(t->model).crop, MHLA_CROP_EVAL); /* it is of no run yet */
        mhla_trainer_free(t);
        if (mhla_model_open(&m, in_root(run)) != MHLA_OK) fail_msg("%s", mhla_message());
        const mhla_augment a = mhla_model_augment(m);
        assert_int_equal(a.crop, cases[i].crop);
        assert_int_equal(a.height, 12);
        assert_true(a.mean[0] == 0.5f && a.std[2] == 0.5f);
        mhla_model_free(m);
    }
}

static mhla_status begin(mhla_trainer **t, const char *name) {
    return create_diffusion(t, name, "checkpoint.steps=2", NULL);
}

static void killed(void **state) {
    (void)state;
    kill_often(begin, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),       cmocka_unit_test(learns),        cmocka_unit_test(goes_on),
        cmocka_unit_test(goes_on_dig),  cmocka_unit_test(accumulates),   cmocka_unit_test(goes_wrong),
        cmocka_unit_test(drops_labels), cmocka_unit_test(same_pictures),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
