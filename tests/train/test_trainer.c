/* Training: it learns, it can be stopped and go on to the same bytes, parts of a batch add up, what is wrong is told and
 * leaves the last checkpoint alone; fine-tuning takes what fits. */
#include "train_case.h"

#include <fcntl.h>

typedef struct watch {
    mhla_trainer *trainer;
    int64_t stop_at, evaluations, steps;
    int stop_in_evaluation;
    double first_loss, last_loss, accuracy;
    char notes[4096];
} watch;

static void watching(void *user, const mhla_train_event *e) {
    watch *w = user;
    if (e->kind == MHLA_TRAIN_STEP) {
        if (w->steps++ == 0) w->first_loss = e->loss;
        w->last_loss = e->loss;
        if (e->step == w->stop_at) mhla_trainer_stop(w->trainer);
    } else if (e->kind == MHLA_TRAIN_EVALUATED) {
        w->evaluations++;
        w->accuracy = e->test_accuracy;
    } else if (e->kind == MHLA_TRAIN_EVALUATING && w->stop_in_evaluation) {
        mhla_trainer_stop(w->trainer);
    } else if (e->kind == MHLA_TRAIN_NOTE && strlen(w->notes) + strlen(e->text) + 2 < sizeof w->notes) {
        strcat(strcat(w->notes, e->text), "\n");
    }
}

static mhla_status run(mhla_trainer *t, watch *w, int *finished) {
    w->trainer = t;
    return mhla_trainer_run(t, watching, w, finished);
}

static void whole(const char *name, ...) {
    mhla_trainer *t;
    watch w = {0};
    int finished;
    va_list more;
    va_start(more, name);
    const char *a = va_arg(more, const char *);
    const char *b = a ? va_arg(more, const char *) : NULL;
    va_end(more);
    if (create(&t, name, a, b, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    if (run(t, &w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(finished, 1);
    mhla_trainer_free(t);
}

static void learns(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    int finished;
    if (create(&t, "learns", "train.steps=150", "augment.mixup=0", "augment.erasing=0", "train.drop_path=0",
               "train.rate=0.01", NULL) != MHLA_OK)
        fail_msg("%s", mhla_message());
    if (run(t, &w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    mhla_trainer_free(t);
    assert_int_equal(w.steps, 150);
    assert_int_equal(w.evaluations, 15);
    assert_non_null(strstr(w.notes, "memory: "));
    assert_true(w.last_loss < w.first_loss);
    if (!(w.accuracy > 0.8)) fail_msg("accuracy %g", w.accuracy);
    /* what is on the disk is the model that was tested */
    mhla_model *m;
    mhla_evaluation r = {.size = sizeof r};
    if (mhla_model_open(&m, in_root("learns")) != MHLA_OK) fail_msg("%s", mhla_message());
    if (mhla_model_evaluate(m, &r, NULL, "test", 0, NULL, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(r.images, 64);
    assert_true(r.top1 > 50);
    assert_true(isnan(r.logits_max) && isnan(r.logits_rms));
    mhla_evaluation_free(&r);
    /* other storage: near, and the distance is that of the logits */
    mhla_model *short_, *itself = m;
    const mhla_open_desc desc = {.size = sizeof desc, .storage = "bfloat16"};
    ASSERT_OK(mhla_model_open_as(&short_, in_root("learns"), &desc));
    ASSERT_OK(mhla_model_evaluate_beside(short_, m, &r, NULL, "test", 0, NULL, NULL));
    if (!(r.logits_rms > 0.0 && r.logits_rms <= r.logits_max && r.logits_max < 0.2 && r.top1 > 48))
        fail_msg("bfloat16: logits differ by %g, %g, %d are right", r.logits_max, r.logits_rms, (int)r.top1);
    mhla_evaluation_free(&r);
    ASSERT_OK(mhla_model_evaluate_beside(m, itself, &r, NULL, "test", 0, NULL, NULL));
    assert_true(r.logits_max == 0.0 && r.logits_rms == 0.0);
    mhla_evaluation_free(&r);
    mhla_model_free(short_);
    mhla_model_free(m);
    char report[256];
    const char *runs[] = {in_root("learns")};
    snprintf(report, sizeof report, "%s", in_root("report.html"));
    if (mhla_report_write(report, runs, 1) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(access(report, F_OK), 0);
}

/* A run stands for the weights that counted as best, they themselves or their average: evaluated again, they reach what
 * state.json says; either can be asked for. */
static void counted(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) {
        char name[32], path[600], init[300];
        snprintf(name, sizeof name, "counted%d", way);
        /* from a trained run: a rate that grows until it ruins the weights, and an average that hardly moves; or an average
         * that stays with its untrained beginning */
        mhla_trainer *t;
        watch w = {0};
        int finished;
        snprintf(init, sizeof init, "train.init=%s", way ? "" : in_root("learns"));
        if (create(&t, name, init, "train.ema=0.9999", way ? "train.rate=0.01" : "train.rate=1", "train.warmup_rate=0",
                   "train.warmup_epochs=1", way ? "train.steps=60" : "train.steps=10", "eval.epochs=0",
                   NULL) != MHLA_OK)
            fail_msg("%s", mhla_message());
        if (run(t, &w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
        mhla_trainer_free(t);
        json_t *tree = NULL;
        snprintf(path, sizeof path, "%s/best/state.json", in_root(name));
        assert_int_equal(mhla_json_load(&tree, path), MHLA_OK);
        const int average = strcmp(json_string_value(json_object_get(tree, "weights")), "ema") == 0;
        const double best = json_number_value(json_object_get(tree, "best_accuracy"));
        assert_int_equal(average, way == 0);
        static const char *const which[] = {NULL, "raw", "ema"};
        for (int k = 0; k < 3; k++) {
            mhla_model *m;
            mhla_model_info info = {.size = sizeof info};
            mhla_evaluation r = {.size = sizeof r};
            if (mhla_model_open_weights(&m, in_root(name), which[k]) != MHLA_OK) fail_msg("%s", mhla_message());
            assert_int_equal(mhla_model_query(m, &info), MHLA_OK);
            const int file = strstr(info.weights, "/best/ema.safetensors") != NULL;
            assert_int_equal(file, k == 2 || (k == 0 && average));
            assert_int_equal(mhla_model_evaluate(m, &r, NULL, "test", 0, NULL, NULL), MHLA_OK);
            const double accuracy = (double)r.top1 / (double)r.images;
            if (k == 0) assert_true(accuracy == best);
            assert_true(accuracy <= best);
            mhla_evaluation_free(&r);
            mhla_model_free(m);
        }
        json_decref(tree);
    }
    mhla_model *m;
    whole("no-average", "train.ema=0", "train.steps=2", NULL);
    assert_int_equal(mhla_model_open_weights(&m, in_root("no-average"), "ema"), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "no average of the weights"));
    assert_int_equal(mhla_model_open_weights(&m, in_root("no-average"), "fine"), MHLA_EINVAL);
}

/* Classes of other data are those of the same name; numbers count where none is known. */
static void named(void **state) {
    (void)state;
    static const char *const folders[][2] = {{"some/1", "some/3"}, {"part/3", "part/x"}, {"other/x", "other/y"}};
    mhla_model *m;
    assert_int_equal(mhla_model_open(&m, in_root("learns")), MHLA_OK);
    for (int way = 0; way < 3; way++) {
        char path[600];
        int label, n[2] = {0};
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s", in_root(folders[way][k]));
            assert_int_equal(mhla_folder_make(path), MHLA_OK);
        }
        for (int i = 0; i < 32; i++) {
            snprintf(path, sizeof path, "%s/picture.png", root);
            assert_int_equal(mhla_data_export(in_root("data"), "test", i, path, &label), MHLA_OK);
            if (label % 2 == 0) continue;
            char to[900];
            snprintf(to, sizeof to, "%s/%d.png", in_root(folders[way][label == 3]), i);
            assert_int_equal(rename(path, to), 0);
            n[label == 3]++;
        }
        mhla_evaluation r = {.size = sizeof r};
        char set[16];
        snprintf(set, sizeof set, "%.*s", (int)strcspn(folders[way][0], "/"), folders[way][0]);
        snprintf(path, sizeof path, "%s/broken.png", in_root(folders[way][0]));
        assert_int_equal(close(creat(path, 0666)), 0);
        const mhla_status status = mhla_model_evaluate(m, &r, in_root(set), "test", 0, NULL, NULL);
        assert_int_equal(status, way == 1 ? MHLA_EINVAL : MHLA_OK);
        if (way == 1) assert_non_null(strstr(mhla_message(), "\"x\""));
        if (way == 0) assert_true(r.class_images[1] == n[0] && r.class_images[3] == n[1] && r.class_images[0] == 0);
        if (way == 2) assert_true(r.class_images[0] == n[0] && r.class_images[1] == n[1] && r.class_images[3] == 0);
        if (way != 1) assert_true(r.images == n[0] + n[1] && r.unreadable == 1);
        mhla_evaluation_free(&r);
    }
    mhla_model_free(m);
}

/* Images that are wider than high, in blocks that are not square either: trained, evaluated, classified, reported. */
static void oblong(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    int finished, label;
    if (create(&t, "oblong", "model.image=8,12", "model.blocks=2,3", "augment.crop=random", "augment.scale=0.5,1",
               "augment.cutmix=1", "augment.randaugment=rand-m5", "train.rate=0.01", "train.steps=100",
               NULL) != MHLA_OK)
        fail_msg("%s", mhla_message());
    if (run(t, &w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    mhla_trainer_free(t);
    if (!(w.accuracy > 0.7)) fail_msg("accuracy %g", w.accuracy);
    mhla_model *m;
    mhla_model_info info = {.size = sizeof info};
    mhla_evaluation r = {.size = sizeof r};
    if (mhla_model_open(&m, in_root("oblong")) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_model_query(m, &info), MHLA_OK);
    assert_true(info.height == 8 && info.width == 12 && info.tokens == 24);
    if (mhla_model_evaluate(m, &r, NULL, "test", 0, NULL, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_true(r.top1 > 44);
    mhla_evaluation_free(&r);
    /* classified one by one: as many right as in the evaluation, which saw the same crops */
    int right = 0;
    for (int i = 0; i < 64; i++) {
        float p[4];
        assert_int_equal(mhla_data_export(in_root("data"), "test", i, in_root("one.png"), &label), MHLA_OK);
        if (mhla_model_classify(m, p, in_root("one.png")) != MHLA_OK) fail_msg("%s", mhla_message());
        int best = 0;
        for (int k = 1; k < 4; k++)
            if (p[k] > p[best]) best = k;
        right += best == label;
    }
    assert_int_equal(right, r.top1);
    mhla_model_free(m);
    const char *runs[] = {in_root("oblong")};
    if (mhla_report_write(in_root("oblong.html"), runs, 1) != MHLA_OK) fail_msg("%s", mhla_message());
}

/* Stopped at every odd place, also in the middle of an evaluation; and whatever the number of workers and threads. */
static void goes_on(void **state) {
    (void)state;
    whole("straight", NULL);
    for (int way = 0; way < 3; way++) {
        char name[32];
        mhla_trainer *t;
        int finished = 0;
        snprintf(name, sizeof name, "stopped%d", way);
        assert_int_equal(create(&t, name, way == 2 ? "data.workers=0" : NULL, NULL), MHLA_OK);
        for (int part = 0; !finished; part++) {
            assert_in_range(part, 0, 30);
            watch w = {.stop_at = way == 0   ? 7
                                  : way == 1 ? 3 * part + 2
                                             : 10,
                       .stop_in_evaluation = way == 2 && part < 2};
            if (run(t, &w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
            mhla_trainer_free(t);
            if (!finished && mhla_trainer_resume(&t, in_root(name)) != MHLA_OK) fail_msg("%s", mhla_message());
        }
        assert_same_end("straight", name);
    }
    /* a finished run has nothing left to do */
    mhla_trainer *t;
    watch w = {0};
    int finished = 0;
    assert_int_equal(mhla_trainer_resume(&t, in_root("straight")), MHLA_OK);
    assert_int_equal(run(t, &w, &finished), MHLA_OK);
    assert_int_equal(finished, 1);
    assert_int_equal(w.steps, 0);
    mhla_trainer_free(t);
}

/* The same seed with 1 and 2 threads. */
static void threads(void **state) {
    (void)state;
    mhla_context *context;
    mhla_trainer *t;
    watch w = {0};
    int finished;
    assert_int_equal(
        mhla_context_create(&context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}), MHLA_OK);
    assert_int_equal(create(&t, "one-thread", NULL), MHLA_OK);
    mhla_trainer_set_context(t, context);
    assert_int_equal(run(t, &w, &finished), MHLA_OK);
    mhla_trainer_free(t);
    mhla_context_free(context);
    assert_same_end("straight", "one-thread");
}

/* 32 = 2 x 16, to rounding. */
static void accumulates(void **state) {
    (void)state;
    mhla_trainer *t[2];
    for (int i = 0; i < 2; i++) {
        watch w = {0};
        int finished;
        assert_int_equal(create(&t[i], i ? "parts" : "whole", "train.steps=3", "eval.limit=8",
                                i ? "train.accumulate=2" : "train.accumulate=1", NULL),
                         MHLA_OK);
        assert_int_equal(run(t[i], &w, &finished), MHLA_OK);
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

/* What the recipe says of the optimiser is what it does and what is told of its memory. */
static void optimisers(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    int finished;
    assert_int_equal(create(&t, "sgd", "train.optimizer=sgd", "model.dim=128", "train.steps=1", "eval.limit=1", NULL),
                     MHLA_OK);
    assert_int_equal(run(t, &w, &finished), MHLA_OK);
    const mhla_params *ps = t->model->params;
    char told[64];
    snprintf(told, sizeof told, ", %.1f optimiser,", 2.0 * 4.0 * (double)mhla_params_elements(ps) / 0x1p20);
    assert_non_null(strstr(w.notes, told)); /* momentum, and the average */
    mhla_trainer_free(t);
    /* betas of 0: the moments are the gradient and its square */
    assert_int_equal(create(&t, "memoryless", "train.beta1=0", "train.beta2=0", "train.steps=2", NULL), MHLA_OK);
    assert_int_equal(run(t, &w, &finished), MHLA_OK);
    const float *g = mhla_optim_slot(t->optim, 0, 0), *square = mhla_optim_slot(t->optim, 0, 1);
    for (int64_t i = 0; i < mhla_params_at(t->model->params, 0)->count; i++)
        assert_true(fabsf(square[i] - g[i] * g[i]) <= 1e-6f * g[i] * g[i]);
    mhla_trainer_free(t);
    assert_int_equal(create(&t, "noeps", "train.eps=0", NULL), MHLA_EINVAL);
}

static void goes_wrong(void **state) {
    (void)state;
    mhla_trainer *t = NULL;
    watch w = {0};
    int finished;
    /* the loss explodes: the checkpoint before it stays, the message names the step */
    assert_int_equal(create(&t, "explodes", "train.rate=1e30", "train.clip=0", "train.optimizer=sgd",
                            "train.warmup_epochs=0", "checkpoint.steps=1", NULL),
                     MHLA_OK);
    assert_int_equal(run(t, &w, &finished), MHLA_ERANGE);
    assert_non_null(strstr(mhla_message(), "step"));
    assert_non_null(strstr(mhla_message(), "train.rate"));
    mhla_trainer_free(t);
    mhla_model *m;
    assert_int_equal(mhla_model_open(&m, in_root("explodes")), MHLA_OK);
    mhla_model_free(m);
    /* a run is there already */
    assert_int_equal(create(&t, "explodes", NULL), MHLA_EIO);
    assert_non_null(strstr(mhla_message(), "--resume"));
    /* one that was killed before its first checkpoint is in nobody's way */
    assert_int_equal(mkdir(in_root("begun"), 0777), 0);
    assert_int_equal(mkdir(in_root("begun/checkpoints"), 0777), 0);
    assert_int_equal(mhla_trainer_resume(&t, in_root("begun")), MHLA_EDATA);
    assert_int_equal(create(&t, "begun", NULL), MHLA_OK);
    mhla_trainer *second = NULL; /* not while the first one is there */
    assert_int_equal(mhla_trainer_resume(&second, in_root("begun")), MHLA_EIO);
    assert_non_null(strstr(mhla_message(), "another process"));
    mhla_trainer_free(t);
    /* keys and values */
    assert_int_not_equal(create(&t, "x", "train.epoch=3", NULL), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "train.epochs"));
    assert_int_not_equal(create(&t, "x", "train.batch=1000", NULL), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "1000"));
    assert_int_not_equal(create(&t, "x", "model.classes=2", NULL), MHLA_OK);
    assert_int_not_equal(create(&t, "x", "train.freeze=blocks.9.*", NULL), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "blocks.9.*"));
    assert_int_not_equal(create(&t, "x", "data.source=/nowhere/at/all", NULL), MHLA_OK);
    assert_int_not_equal(access(in_root("x"), F_OK), 0);
    assert_int_not_equal(mhla_trainer_resume(&t, in_root("x")), MHLA_OK);
    assert_int_not_equal(mhla_trainer_resume(&t, in_root("data")), MHLA_OK);
}

/* From softmax at one resolution to MHLA at another, with another head; the norms frozen. */
static void fine_tunes(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0};
    int finished;
    char init[300];
    whole("softmax", "model.attention=softmax", NULL);
    snprintf(init, sizeof init, "train.init=%s", in_root("softmax"));
    if (create(&t, "tuned", init, "model.patch=1", "model.classes=6", "train.freeze=*norm*,*fc1*", "train.steps=4",
               "eval.limit=16", NULL) != MHLA_OK)
        fail_msg("%s", mhla_message());
    mhla_params *ps = t->model->params;
    const mhla_param *norm = mhla_params_find(ps, "blocks.1.norm1.weight");
    const mhla_param *frozen = mhla_params_find(ps, "blocks.1.mlp.fc1.weight");
    mhla_model *from;
    assert_int_equal(mhla_model_open(&from, in_root("softmax")), MHLA_OK);
    mhla_params *old = from->params;
    const mhla_param *a = mhla_params_find(ps, "blocks.1.attn.to_qkv.weight"),
                     *b = mhla_params_find(old, "blocks.1.attn.qkv.weight");
    assert_memory_equal(a->data, b->data, (size_t)a->count * sizeof(float));
    float *before = new_bytes((size_t)norm->count * sizeof(float));
    memcpy(before, norm->data, (size_t)norm->count * sizeof(float));
    assert_memory_equal(before, mhla_params_find(old, "blocks.1.norm1.weight")->data,
                        (size_t)norm->count * sizeof(float));
    if (run(t, &w, &finished) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_memory_equal(before, norm->data, (size_t)norm->count * sizeof(float));
    for (int i = 0; i < mhla_params_count(ps); i++) /* nor does its average move */
        if (mhla_params_at(ps, i) == frozen)
            assert_memory_equal(frozen->data, mhla_ema_data(t->ema, i), (size_t)frozen->count * sizeof(float));
    assert_memory_not_equal(a->data, b->data, (size_t)a->count * sizeof(float));
    assert_non_null(strstr(w.notes, "interpolated from 16 to 64"));
    assert_non_null(strstr(w.notes, "blocks.*.attn.piece_attn.conv.weight"));
    assert_non_null(strstr(w.notes, "head.weight"));
    free(before);
    mhla_model_free(from);
    mhla_trainer_free(t);
    /* nothing of it fits */
    assert_int_not_equal(create(&t, "nothing", "train.init=/nowhere", NULL), MHLA_OK);
}

static void ignore(void *user, const char *text) { (void)user, (void)text; }

/* Position embeddings as torch interpolates them (bicubic, antialiased), up and down; padding takes the edge. */
static void interpolates(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *padding;
        int n, m;
        double expected[8];
    } cases[] = {
        {"patch=2",
         "patch=1",
         "padding=0",
         4,
         8,
         {-0.088235296, 0.124087587, 0.572519064, 1.5625, 3.0625, 5.312977791, 8.116788864, 9.441176414}},
        {"patch=1", "patch=2", "padding=0", 8, 4, {0.410041869, 6.189189434, 20.756757736, 41.794979096}},
        {"patch=2", "patch=2", "padding=2", 4, 6, {0, 0, 1, 4, 9, 9}},
    };
    for (int k = 0; k < 3; k++) {
        const char *const a[] = {"image=8", "padding=0", "dim=8", "depth=1", cases[k].from};
        const char *const b[] = {"image=8", cases[k].padding, "dim=8", "depth=1", cases[k].to};
        mhla_model *from, *to;
        assert_int_equal(mhla_model_create(&from, "deit_nano", a, 5, 1), MHLA_OK);
        assert_int_equal(mhla_model_create(&to, "deit_nano", b, 5, 2), MHLA_OK);
        const int n = cases[k].n, m = cases[k].m;
        mhla_param *p = mhla_params_find(from->params, "pos_embed");
        assert_int_equal(p->count, 8 * n * n);
        for (int i = 0; i < 8 * n * n; i++) p->data[i] = (float)((i / 8 % n) * (i / 8 % n));
        assert_int_equal(mhla_model_save(from, in_root("positions")), MHLA_OK);
        if (mhla_model_adopt(to, in_root("positions"), ignore, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
        p = mhla_params_find(to->params, "pos_embed");
        assert_int_equal(p->count, 8 * m * m);
        for (int i = 0; i < 8 * m * m; i++)
            if (fabs((double)p->data[i] - cases[k].expected[i / 8 % m]) > 1e-5)
                fail_msg("case %d, column %d: %g, expected %g", k, i / 8 % m, p->data[i], cases[k].expected[i / 8 % m]);
        mhla_model_free(from);
        mhla_model_free(to);
    }
}

/* To MALA, whose projection has a gate besides, and from it to MHLA: q, k and v go over, 1x1 convolutions are linear layers. */
static void other_attentions(void **state) {
    (void)state;
    const char *const a[] = {"attention=softmax", "qkv_bias=true", "depth=1"}, *const b[] = {"attention=mala",
                                                                                             "depth=1"};
    const char *const c[] = {"depth=1"};
    mhla_model *from, *to, *back;
    assert_int_equal(mhla_model_create(&from, "deit_nano", a, 3, 1), MHLA_OK);
    assert_int_equal(mhla_model_create(&to, "deit_nano", b, 2, 2), MHLA_OK);
    assert_int_equal(mhla_model_create(&back, "deit_nano", c, 1, 3), MHLA_OK);
    const mhla_param *qkv = mhla_params_find(from->params, "blocks.0.attn.qkv.weight"),
                     *qkvo = mhla_params_find(to->params, "blocks.0.attn.qkvo.weight"),
                     *again = mhla_params_find(back->params, "blocks.0.attn.to_qkv.weight"),
                     *out = mhla_params_find(from->params, "blocks.0.attn.proj.weight"),
                     *pointwise = mhla_params_find(to->params, "blocks.0.attn.proj.weight");
    float gate[64 * 64];
    memcpy(gate, qkvo->data + qkv->count, sizeof gate);
    assert_int_equal(mhla_model_save(from, in_root("parts")), MHLA_OK);
    if (mhla_model_adopt(to, in_root("parts"), ignore, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_memory_equal(qkvo->data, qkv->data, (size_t)qkv->count * sizeof(float));
    assert_memory_equal(qkvo->data + qkv->count, gate, sizeof gate); /* as it was initialised */
    assert_memory_equal(pointwise->data, out->data, (size_t)out->count * sizeof(float));
    assert_int_equal(mhla_model_save(to, in_root("gated")), MHLA_OK);
    if (mhla_model_adopt(back, in_root("gated"), ignore, NULL) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_memory_equal(again->data, qkv->data, (size_t)qkv->count * sizeof(float));
    mhla_model_free(from);
    mhla_model_free(to);
    mhla_model_free(back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns),           cmocka_unit_test(oblong),     cmocka_unit_test(counted),
        cmocka_unit_test(goes_on),          cmocka_unit_test(threads),    cmocka_unit_test(accumulates),
        cmocka_unit_test(goes_wrong),       cmocka_unit_test(fine_tunes), cmocka_unit_test(interpolates),
        cmocka_unit_test(other_attentions), cmocka_unit_test(optimisers), cmocka_unit_test(named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
