/* Runs that are killed -9 at random moments, or that cannot write any more, go on to the same bytes as one that never
 * stopped. MHLA_TEST_KILLS says how often (30). */
#include "kill_case.h"

static mhla_status begin(mhla_trainer **t, const char *name) {
    return create(t, name, "checkpoint.steps=1", "train.steps=40", NULL);
}

static void killed(void **state) {
    (void)state;
    kill_often(begin, 30);
}

static void stop_at_once(void *trainer, const mhla_train_event *event) {
    if (event->kind == MHLA_TRAIN_CHECKPOINT) mhla_trainer_stop(trainer);
}

/* In a child: a run that stops after its first checkpoint. */
static pid_t start_briefly(const char *name) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    mhla_trainer *t = NULL;
    int finished = 0;
    mhla_status status = begin(&t, name);
    if (status == MHLA_OK) status = mhla_trainer_run(t, stop_at_once, t, &finished);
    mhla_trainer_free(t);
    _exit(status != MHLA_OK ? FAILED : finished ? FINISHED : UNFINISHED);
}

/* No checkpoint can be written any more: the run ends with a sentence, and goes on when there is space again. */
static void no_space(void **state) {
    (void)state;
    struct stat info;
    char path[400];
    assert_int_equal(wait_for(start_briefly("full")), UNFINISHED);
    snprintf(path, sizeof path, "%s/straight/last/optimizer.safetensors", root);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(wait_for(start(begin, "full", (rlim_t)info.st_size / 2)), FAILED);
    assert_int_equal(wait_for(start(begin, "full", 0)), FINISHED);
    assert_same_end("straight", "full");
}

static void stop_evaluating(void *trainer, const mhla_train_event *event) {
    if (event->kind == MHLA_TRAIN_EVALUATING) mhla_trainer_stop(trainer);
}

static void die_evaluated(void *trainer, const mhla_train_event *event) {
    (void)trainer;
    if (event->kind == MHLA_TRAIN_EVALUATED) kill(getpid(), SIGKILL);
}

static int go_on(const char *name, mhla_train_fn report) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return wait_for(child);
    mhla_trainer *t = NULL;
    int finished = 0;
    mhla_status status = access(in_root(name), F_OK) == 0 ? mhla_trainer_resume(&t, in_root(name)) : begin(&t, name);
    if (status == MHLA_OK) status = mhla_trainer_run(t, report, t, &finished);
    mhla_trainer_free(t);
    _exit(status != MHLA_OK ? FAILED : finished ? FINISHED : UNFINISHED);
}

/* A checkpoint was written in the middle of an evaluation; the evaluation is then done again, told, and killed before it has
 * a checkpoint: its line must not be there twice. Lines that stay are the bytes that they were. */
static void killed_after_evaluation(void **state) {
    (void)state;
    char path[400], kept[400], command[2000];
    snprintf(path, sizeof path, "%s/twice/metrics.jsonl", root);
    snprintf(kept, sizeof kept, "%s/kept.jsonl", root);
    assert_int_equal(go_on("twice", stop_evaluating), UNFINISHED);
    snprintf(command, sizeof command, "cp %s %s", path, kept);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(go_on("twice", die_evaluated), -1);
    assert_int_equal(go_on("twice", NULL), FINISHED);
    assert_same_end("straight", "twice");
    snprintf(command, sizeof command, "test -s %s && head -c $(wc -c <%s) %s | cmp - %s", kept, kept, path, kept);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(no_space),
                                       cmocka_unit_test(killed_after_evaluation)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
