/* Training on text: models of all attentions learn, no document sees another, a run may be stopped anywhere and goes on to
 * the same bytes, threads do not show, parts of a batch add up; adaptation keeps what fits. */
#include "text_case.h"

#include "models/language/lm.h"
#include "models/model.h"

typedef struct watch {
    mhla_trainer *trainer;
    int64_t stop_at;
    int stop_in_evaluation;
    double first_loss, last_loss, bits, pace;
    char notes[4096];
} watch;

static void watching(void *user, const mhla_train_event *e) {
    watch *w = user;
    assert_string_equal(e->task, "text");
    if (e->kind == MHLA_TRAIN_STEP) {
        if (w->first_loss == 0.0) w->first_loss = e->loss;
        w->last_loss = e->loss;
        w->pace = e->tokens_per_second;
        if (e->step == w->stop_at) mhla_trainer_stop(w->trainer);
    } else if (e->kind == MHLA_TRAIN_EVALUATED) {
        w->bits = e->test_bits_per_byte;
    } else if (e->kind == MHLA_TRAIN_EVALUATING && w->stop_in_evaluation) {
        mhla_trainer_stop(w->trainer);
    } else if (e->kind == MHLA_TRAIN_NOTE && strlen(w->notes) + strlen(e->text) + 2 < sizeof w->notes) {
        strcat(strcat(w->notes, e->text), "\n");
    }
}

static int run(mhla_trainer *t, watch *w) {
    int finished;
    w->trainer = t;
    ASSERT_OK(mhla_trainer_run(t, watching, w, &finished));
    return finished;
}

static void whole(const char *name, const char *setting, int threads, watch *w) {
    mhla_trainer *t;
    mhla_context *context = new_context(threads);
    ASSERT_OK(create_text(&t, name, setting, NULL));
    mhla_trainer_set_context(t, context);
    assert_true(run(t, w));
    mhla_trainer_free(t);
    mhla_context_free(context);
}

static void learns(void **state) {
    (void)state;
    static const char *const attentions[] = {"mhla", "softmax", "linear"};
    for (int i = 0; i < 3; i++) {
        char setting[64];
        mhla_trainer *t;
        mhla_model *m;
        watch w = {0};
        snprintf(setting, sizeof setting, "model.attention=%s", attentions[i]);
        ASSERT_OK(create_text(&t, attentions[i], setting, "train.steps=120", "eval.steps=60", "train.rate=0.01", NULL));
        assert_true(run(t, &w));
        mhla_trainer_free(t);
        assert_true(fabs(w.first_loss - log(40.0)) < 0.3);
        /* a byte is half a token; without learning it has log2(40) / 2 bits */
        if (!(w.last_loss < 0.6 * w.first_loss && w.bits < 0.7 * 2.66))
            fail_msg("%s: loss %g to %g, %g bits", attentions[i], w.first_loss, w.last_loss, w.bits);
        assert_true(w.pace > 0.0);
        assert_non_null(strstr(w.notes, "memory: "));
        mhla_lm_info info = {.size = sizeof info};
        ASSERT_OK(mhla_model_open(&m, in_root(attentions[i])));
        ASSERT_OK(mhla_lm_query(m, &info));
        assert_int_equal(info.vocabulary, TEXT_VOCABULARY);
        assert_int_equal(info.bos, TEXT_BOS);
        assert_int_equal(info.eos, TEXT_EOS);
        assert_string_equal(info.attention, attentions[i]);
        mhla_model_free(m);
    }
    char page[256];
    const char *runs[] = {in_root("mhla"), in_root("softmax")};
    snprintf(page, sizeof page, "%s", in_root("report.html"));
    ASSERT_OK(mhla_report_write(page, runs, 2));
}

static void goes_on(void **state) {
    (void)state;
    watch w = {0};
    whole("straight", NULL, 2, &w);
    whole("one-thread", NULL, 1, &(watch){0});
    assert_same_end("straight", "one-thread");
    for (int way = 0; way < 3; way++) {
        char name[32];
        mhla_trainer *t;
        int finished = 0;
        snprintf(name, sizeof name, "stopped%d", way);
        ASSERT_OK(create_text(&t, name, NULL));
        for (int part = 0; !finished; part++) {
            assert_in_range(part, 0, 30);
            watch v = {.stop_at = way == 1 ? 3 * part + 2 : 10, .stop_in_evaluation = way == 2 && part < 2};
            finished = run(t, &v);
            mhla_trainer_free(t);
            if (!finished) ASSERT_OK(mhla_trainer_resume(&t, in_root(name)));
        }
        assert_same_end("straight", name);
    }
}

/* Both packings, whole batches and parts: the same loss but for rounding. */
static void in_parts(void **state) {
    (void)state;
    static const char *const packings[] = {"train.packing=documents", "train.packing=concatenation"};
    for (int p = 0; p < 2; p++) {
        double losses[2];
        for (int i = 0; i < 2; i++) {
            mhla_trainer *t;
            watch w = {0};
            char name[32];
            snprintf(name, sizeof name, "parts%d%d", p, i);
            ASSERT_OK(create_text(&t, name, packings[p], i ? "train.accumulate=3" : "train.accumulate=1",
                                  "train.steps=6", NULL));
            assert_true(run(t, &w));
            mhla_trainer_free(t);
            losses[i] = w.last_loss;
        }
        assert_true(fabs(losses[0] - losses[1]) < 1e-4);
    }
}

/* What one document holds does not show in the others that are packed with it, nor in their gradients' losses. */
static void no_leaks(void **state) {
    (void)state;
    enum { T = 90, D = 40 };
    static const char *const attentions[] = {"attention=mhla", "attention=softmax", "attention=linear",
                                             "linear_layers=0"};
    const int64_t cu[] = {0, 23, 61, T};
    for (int a = 0; a < 4; a++) {
        mhla_model *m;
        mhla_tape *t;
        int32_t ids[T], labels[T];
        float losses[2][T];
        const char *const settings[] = {attentions[a], "hidden_size=32", "intermediate_size=48", "vocab_size=40"};
        ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 4, 7));
        ASSERT_OK(mhla_tape_create(&t, NULL));
        rng r = {4};
        for (int i = 0; i < T; i++) ids[i] = rng_below(&r, D), labels[i] = rng_below(&r, D);
        for (int k = 0; k < 2; k++) {
            const mhla_lm_run packed = {.mixer = {.cu_seqlens = cu, .sequences = 3}};
            for (int i = 23; i < 61 && k; i++) ids[i] = (ids[i] + 1 + rng_below(&r, D - 1)) % D;
            mhla_tape_begin(t, MHLA_TAPE_INFER);
            mhla_nn_linear_cross_entropy(t, mhla_lm_output(((mhla_lm *)m->net)),
                                         mhla_lm_forward(t, ((mhla_lm *)m->net), &packed, ids, 1, T), labels, 1.0f,
                                         losses[k]);
            ASSERT_OK(mhla_tape_status(t));
        }
        assert_memory_equal(losses[0], losses[1], 23 * sizeof(float));
        assert_memory_equal(losses[0] + 61, losses[1] + 61, (T - 61) * sizeof(float));
        assert_memory_not_equal(losses[0] + 23, losses[1] + 23, 38 * sizeof(float));
        /* and alone each is what it is in the pack */
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        mhla_nn_linear_cross_entropy(t, mhla_lm_output(((mhla_lm *)m->net)),
                                     mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids + 61, 1, T - 61),
                                     labels + 61, 1.0f, losses[0]);
        ASSERT_OK(mhla_tape_status(t));
        for (int i = 0; i < T - 61; i++) assert_true(fabsf(losses[0][i] - losses[1][61 + i]) < 1e-4f);
        mhla_tape_free(t);
        mhla_model_free(m);
    }
}

/* MHLA from a softmax model: projections of the same shape, embedding, norms and MLPs are kept. */
static void adapts(void **state) {
    (void)state;
    mhla_trainer *t;
    watch w = {0}, v = {0};
    char init[300];
    ASSERT_OK(create_text(&t, "teacher", "model.attention=softmax", "model.num_heads=2", "train.steps=60",
                          "train.rate=0.01", "eval.steps=0", NULL));
    assert_true(run(t, &w));
    mhla_trainer_free(t);
    snprintf(init, sizeof init, "train.init=%s", in_root("teacher"));
    ASSERT_OK(create_text(&t, "adapted", init, "model.num_heads=2", "model.expand_k=1", "model.use_output_gate=false",
                          "train.steps=2", NULL));
    assert_true(run(t, &v));
    mhla_trainer_free(t);
    assert_non_null(strstr(v.notes, "weights from "));
    assert_non_null(
        strstr(v.notes, "new, initialised (4): model.layers.*.attn.mixing_matrix, model.layers.*.attn.g_norm"));
    assert_null(strstr(v.notes, "of another shape"));
    assert_true(v.first_loss < 0.95 * log(40.0)); /* it has not forgotten everything */
}

/* A document of many windows, the last one short: each is measured on its own. */
static void long_document(void **state) {
    (void)state;
    enum { N = 500, T = 48 };
    static const char *const attentions[] = {"model.attention=softmax", "model.attention=mhla"};
    int32_t stream[N + 2] = {TEXT_BOS};
    char source[300];
    mhla_shard_writer *w;
    const mhla_shard_head head = {.vocabulary = TEXT_VOCABULARY, .bos = TEXT_BOS, .eos = TEXT_EOS};
    assert_int_equal(mkdir(in_root("long"), 0777), 0);
    write_text(in_root("long/train.shard"), 40, 1);
    for (int i = 0; i < N; i++) stream[i + 1] = 2 + (i * i + 3 * i) % 37;
    stream[N + 1] = TEXT_EOS;
    ASSERT_OK(mhla_shard_writer_open(&w, in_root("long/validation.shard"), &head));
    ASSERT_OK(mhla_shard_writer_add(w, stream + 1, N, 2 * N));
    ASSERT_OK(mhla_shard_writer_commit(w, NULL));
    snprintf(source, sizeof source, "data.source=%s", in_root("long"));
    for (int a = 0; a < 2; a++) {
        mhla_trainer *t;
        mhla_model *m;
        mhla_tape *tape;
        watch seen = {0};
        double sum = 0.0;
        ASSERT_OK(create_text(&t, a ? "long-mhla" : "long-softmax", source, attentions[a], "train.ema=0",
                              "train.rate=0.01", NULL));
        assert_true(run(t, &seen));
        mhla_trainer_free(t);
        ASSERT_OK(mhla_model_open_weights(&m, in_root(a ? "long-mhla/last" : "long-softmax/last"), "raw"));
        ASSERT_OK(mhla_tape_create(&tape, NULL));
        for (int at = 0; at < N + 1; at += T) {
            const int n = N + 1 - at < T ? N + 1 - at : T;
            mhla_tape_begin(tape, MHLA_TAPE_INFER);
            const mhla_tensor *mean = mhla_nn_linear_cross_entropy(
                tape, mhla_lm_output(((mhla_lm *)m->net)),
                mhla_lm_forward(tape, ((mhla_lm *)m->net), &(mhla_lm_run){0}, stream + at, 1, n), stream + at + 1, 1.0f,
                NULL);
            ASSERT_OK(mhla_tape_status(tape));
            sum += n * (double)mean->data[0];
        }
        const double bits = sum / log(2.0) / (2 * N);
        if (!(fabs(bits - seen.bits) < 1e-5 * bits)) fail_msg("%g bits, by hand %g", seen.bits, bits);
        mhla_tape_free(tape);
        mhla_model_free(m);
    }
}

static void wrong(void **state) {
    (void)state;
    mhla_trainer *t;
    ASSERT_FAILS(create_text(&t, "w", "train.context=257", NULL), MHLA_EINVAL, "the model takes 256 tokens");
    ASSERT_FAILS(create_text(&t, "w", "model.vocab_size=39", NULL), MHLA_EINVAL, "the tokenizer has 40 tokens");
    ASSERT_FAILS(create_text(&t, "w", "augment.flip=1", NULL), MHLA_EINVAL, "augment.flip");
    ASSERT_FAILS(create_text(&t, "w", "task=speech", NULL), MHLA_EINVAL,
                 "the task is \"speech\": expected images, text, diffusion, video, autoencoder or text-to-image");
    assert_int_equal(mkdir(in_root("half"), 0777), 0);
    write_text(in_root("half/train.shard"), 4, 1);
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("half"));
    ASSERT_FAILS(create_text(&t, "w", source, NULL), MHLA_EIO, "no validation.shard, .txt, .jsonl or folder in it");
    assert_int_equal(access(in_root("w"), F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns), cmocka_unit_test(goes_on), cmocka_unit_test(in_parts),     cmocka_unit_test(no_leaks),
        cmocka_unit_test(adapts), cmocka_unit_test(wrong),   cmocka_unit_test(long_document)};
    return cmocka_run_group_tests(tests, set_up_text, tear_down);
}
