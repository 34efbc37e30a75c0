/* Training in bfloat16: classifiers, diffusion and language models learn as in float32; a stopped run goes on to the same bytes,
 * threads and recomputation do not show. CPUs that do not multiply bfloat16 emulate it here. */
#include "text_case.h"

#include "simd/kernels.h"

enum { TASKS = 4 };

static const char *const names[TASKS] = {"deit", "deit-softmax", "dit", "lm"};

static mhla_status create_task(mhla_trainer **t, int task, const char *run, const char *a, const char *b) {
    if (task < 2)
        return create(t, run, task ? "model.attention=softmax" : "model.attention=mhla", "model.dim=24",
                      "train.dtype=bfloat16", a, b, NULL);
    return create_text(t, run, "train.dtype=bfloat16", a, b, NULL);
}

/* As `create` does, with what a diffusion takes. */
static mhla_status create_dit(mhla_trainer **t, const char *run, const char *a, const char *b) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *list[] = {source,
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
                          "sample.columns=2",
                          "sample.steps=3",
                          "log.steps=1",
                          "train.clip=1",
                          "train.dtype=bfloat16",
                          a,
                          b};
    return mhla_trainer_create(t, in_root(run), NULL, list, b ? 21 : a ? 20 : 19);
}

typedef struct watch {
    mhla_trainer *trainer;
    int64_t stop_at;
    double loss; /* mean of the last four steps */
} watch;

static void watching(void *user, const mhla_train_event *e) {
    watch *w = user;
    if (e->kind != MHLA_TRAIN_STEP) return;
    if (e->step == w->stop_at) mhla_trainer_stop(w->trainer);
    if (e->step > e->steps - 4) w->loss += e->loss / 4.0;
}

/* To the end, stopped every `stop` steps (0: never), on so many threads; the loss at the end. */
static double whole(int task, const char *way, int threads, int stop, const char *a, const char *b) {
    char name[64];
    mhla_trainer *t;
    mhla_context *context = new_context(threads);
    int finished = 0;
    watch w = {0};
    snprintf(name, sizeof name, "%s-%s", names[task], way);
    ASSERT_OK(task == 2 ? create_dit(&t, name, a, b) : create_task(&t, task, name, a, b));
    for (int part = 1; !finished; part++) {
        mhla_trainer_set_context(t, context);
        w = (watch){.trainer = t, .stop_at = (int64_t)stop * part};
        ASSERT_OK(mhla_trainer_run(t, watching, &w, &finished));
        mhla_trainer_free(t);
        if (!finished) ASSERT_OK(mhla_trainer_resume(&t, in_root(name)));
    }
    mhla_context_free(context);
    return w.loss;
}

static void assert_same(int task, const char *a, const char *b) {
    char x[64], y[64];
    snprintf(x, sizeof x, "%s-%s", names[task], a);
    snprintf(y, sizeof y, "%s-%s", names[task], b);
    assert_same_end(x, y);
}

static void test_same_bytes(void **state) {
    (void)state;
    for (int task = 0; task < TASKS; task++) {
        whole(task, "straight", 2, 0, NULL, NULL);
        whole(task, "one", 1, 0, NULL, NULL);
        whole(task, "three", 3, 0, NULL, NULL);
        whole(task, "stopped", 2, 7, NULL, NULL);
        whole(task, "again", 2, 0, "train.recompute=true", NULL);
        assert_same(task, "straight", "one");
        assert_same(task, "straight", "three");
        assert_same(task, "straight", "stopped");
        assert_same(task, "straight", "again");
    }
}

/* Not the numbers of float32, but as good. */
static void test_learns(void **state) {
    (void)state;
    for (int task = 0; task < TASKS; task++) {
        const double bf16 = whole(task, "bf16", 2, 0, "train.steps=100", NULL);
        const double f32 = whole(task, "f32", 2, 0, "train.steps=100", "train.dtype=float32");
        if (!(bf16 != f32 && fabs(bf16 - f32) < 0.05 * f32)) fail_msg("%s: %.9g, float32 %.9g", names[task], bf16, f32);
    }
}

static void test_refused(void **state) {
    (void)state;
    mhla_trainer *t;
    ASSERT_FAILS(create(&t, "wrong", "train.dtype=float16", NULL), MHLA_EINVAL, "train.dtype");
}

static int set_up_all(void **state) {
    const mhla_kernels *tables[8];
    const int n = mhla_kernels_emulated(tables, 8);
    if (mhla_kernels_get()->gemm_bf16 == NULL) ASSERT_OK(mhla_set_isa(tables[n - 1]->name));
    set_up(state);
    make_text();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up_all, tear_down);
}
