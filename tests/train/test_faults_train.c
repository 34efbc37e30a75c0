/* Training of every task whose n-th allocation, write, fsync, rename, .. fails: the run ends with a status and holds nothing, the checkpoint
 * before stays, and without faults the run goes on to the same bytes as one that was never disturbed. Then runs that lose
 * power: whatever the disk shows afterwards, they go on to the same bytes from no earlier than the last checkpoint that they
 * have reported. */
#include "faults.h"

#include "crash_disk.h"
#include "text_case.h"

static mhla_status create_images(mhla_trainer **t, const char *run) {
    return create(t, run, "train.steps=4", "data.workers=1", "train.batch=8", "eval.limit=8", "eval.steps=3",
                  "checkpoint.steps=1", "model.depth=1", NULL);
}

static mhla_status create_language(mhla_trainer **t, const char *run) {
    return create_text(t, run, "train.steps=4", "train.batch=2", "eval.limit=100", "eval.steps=3", "checkpoint.steps=1",
                       "model.num_hidden_layers=1", NULL);
}

static mhla_status create_diffusion(mhla_trainer **t, const char *run) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("data"));
    const char *const list[] = {
        source,          "task=diffusion", "model.model=dit_micro", "model.image=8",    "model.patch=2",
        "model.dim=16",  "model.depth=1",  "model.heads=2",         "model.blocks=2",   "train.steps=4",
        "train.batch=8", "train.ema=0.9",  "train.label_drop=0.2",  "sample.columns=1", "sample.steps=2",
        "eval.limit=8",  "eval.steps=3",   "checkpoint.steps=1",    "log.steps=1"};
    return mhla_trainer_create(t, in_root(run), NULL, list, sizeof list / sizeof *list);
}

static mhla_status (*create_run)(mhla_trainer **t, const char *run) = create_images;
static const char *straight = "straight",
                  *run_name = "straight"; /* a run that was never disturbed, and the one at work */

static mhla_status run_to_end(mhla_trainer *t, mhla_train_fn report, void *user) {
    int finished = 0;
    const mhla_status status = mhla_trainer_run(t, report, user, &finished);
    if (status == MHLA_OK) assert_true(finished);
    return status;
}

/* ---- Faults ---- */

static void begin_anew(void) { remove_tree(in_root(run_name)); }

static mhla_status train(void) {
    mhla_trainer *t = NULL;
    mhla_status status = create_run(&t, run_name);
    if (status == MHLA_OK) status = run_to_end(t, NULL, NULL);
    mhla_trainer_free(t);
    return status;
}

static int set_up_straight(void **state) {
    if (set_up(state) != 0) return -1;
    make_text();
    ASSERT_OK(train());
    return 0;
}

static mhla_status resume(void) {
    mhla_trainer *t = NULL;
    mhla_status status = mhla_trainer_resume(&t, in_root(run_name));
    if (status == MHLA_OK) status = run_to_end(t, NULL, NULL);
    mhla_trainer_free(t);
    return status;
}

static int has_checkpoint(void) {
    char folder[MHLA_RUN_PATH];
    return mhla_checkpoint_find(folder, sizeof folder, in_root(run_name)) == MHLA_OK;
}

/* Without faults it goes on, or begins again where there is nothing yet, and ends as the other. */
static void goes_on(mhla_status status) {
    (void)status;
    const mhla_status again = has_checkpoint() ? resume() : train();
    if (again != MHLA_OK) fail_msg("the run does not go on: %s", mhla_message());
    assert_same_end(straight, run_name);
}

/* A run with half of its steps behind it. */
static void half_way(void *user, const mhla_train_event *e) {
    if (e->kind == MHLA_TRAIN_CHECKPOINT && e->step == 2) mhla_trainer_stop(*(mhla_trainer **)user);
}

static void stop_half_way(void) {
    mhla_trainer *t = NULL;
    int finished;
    begin_anew();
    ASSERT_OK(create_run(&t, run_name));
    ASSERT_OK(mhla_trainer_run(t, half_way, &t, &finished));
    assert_false(finished);
    mhla_trainer_free(t);
}

static void resumes(mhla_status status) {
    (void)status;
    assert_true(has_checkpoint());
    goes_on(status);
}

static void try_training(const char *train_name, const char *resume_name) {
    run_name = "disturbed";
    faults_try(&(fault_case){.name = train_name, .before = begin_anew, .run = train, .after = goes_on});
    faults_try(&(fault_case){.name = resume_name, .before = stop_half_way, .run = resume, .after = resumes});
}

static void faults_of_images(void **state) {
    (void)state;
    try_training("train", "resume");
}

static void faults_of_text(void **state) {
    (void)state;
    create_run = create_language;
    run_name = straight = "straight-text";
    ASSERT_OK(train());
    try_training("train on text", "resume on text");
}

/* Its grids of samples are files of a run as well. */
static void same_grids(mhla_status status) {
    goes_on(status);
    for (int step = 3; step <= 4; step++) {
        char a[400], b[400];
        snprintf(a, sizeof a, "%s/samples/step-%08d.png", in_root(straight), step);
        snprintf(b, sizeof b, "%s/samples/step-%08d.png", in_root(run_name), step);
        assert_same_file(a, b);
    }
}

static void resumes_with_grids(mhla_status status) {
    assert_true(has_checkpoint());
    same_grids(status);
}

static void faults_of_diffusion(void **state) {
    (void)state;
    create_run = create_diffusion;
    run_name = straight = "straight-diffusion";
    ASSERT_OK(train());
    run_name = "disturbed";
    faults_try(&(fault_case){.name = "train diffusion", .before = begin_anew, .run = train, .after = same_grids});
    faults_try(
        &(fault_case){.name = "resume diffusion", .before = stop_half_way, .run = resume, .after = resumes_with_grids});
}

/* ---- Power loss ---- */

typedef struct reported { /* checkpoint `step` was on the disk when there were `events` */
    int64_t step;
    long events;
} reported;

static reported promises[64];
static int promise_count;

static void promise(int64_t step) { promises[promise_count++] = (reported){step, crash_disk_events()}; }

static void note_checkpoint(void *user, const mhla_train_event *e) {
    (void)user;
    if (e->kind == MHLA_TRAIN_CHECKPOINT) promise(e->step);
}

/* Power is lost after `events` events: the run goes on from its last checkpoint, or one that is newer, and ends as the other. */
static void lose_power(long events, uint64_t seed) {
    mhla_trainer *t = NULL;
    int64_t least = -1;
    for (int p = 0; p < promise_count; p++)
        if (promises[p].events <= events) least = promises[p].step;
    remove_tree(in_root("after"));
    crash_disk_build(in_root("after"), events, seed);
    run_name = "after/runs/noted";
    mhla_status status = MHLA_EIO;
    if (has_checkpoint())
        status = mhla_trainer_resume(&t, in_root(run_name));
    else if (least < 0)
        status = create_run(&t, run_name);
    if (status != MHLA_OK)
        fail_msg("power lost after event %ld of %ld (seed %llu), checkpoint %lld was written: %s", events,
                 crash_disk_events(), (unsigned long long)seed, (long long)least, mhla_message());
    if (t->step < least)
        fail_msg("power lost after event %ld (seed %llu): checkpoint %lld is lost, %lld is there", events,
                 (unsigned long long)seed, (long long)least, (long long)t->step);
    ASSERT_OK(run_to_end(t, NULL, NULL));
    mhla_trainer_free(t);
    assert_same_end(straight, run_name);
}

static void power_loss(void **state) {
    (void)state;
    const char *text = getenv("MHLA_TEST_CRASHES");
    const int crashes = text ? atoi(text) : getenv("MHLA_FULL") ? 500 : getenv("MHLA_TEST_QUICK") ? 10 : 60;
    rng r = {7};
    mhla_trainer *t = NULL;
    run_name = "disk/runs/noted"; /* below folders that are new, too */
    assert_int_equal(mkdir(in_root("disk"), 0777), 0);
    crash_disk_start(in_root("disk"));
    ASSERT_OK(create_run(&t, run_name));
    promise(0);
    ASSERT_OK(run_to_end(t, note_checkpoint, NULL));
    mhla_trainer_free(t);
    crash_disk_stop();
    assert_true(promise_count >= 4);
    int flushed = 0; /* every moment of a disk that has what was flushed, and nothing else */
    for (long events = 0; (events = crash_disk_next_sync(events)) > 0; flushed++) lose_power(events, 0);
    for (int i = 0; i < crashes; i++) {
        const long events = 1 + rng_below(&r, (int)crash_disk_events());
        lose_power(events, rng_next(&r));
    }
    print_message("power was lost %d times, at one of %ld moments\n", flushed + crashes, crash_disk_events());
    crash_disk_free();
}

int main(void) {
    faults_start();
    const struct CMUnitTest tests[] = {cmocka_unit_test(power_loss), cmocka_unit_test(faults_of_images),
                                       cmocka_unit_test(faults_of_text), cmocka_unit_test(faults_of_diffusion)};
    return cmocka_run_group_tests(tests, set_up_straight, tear_down);
}
