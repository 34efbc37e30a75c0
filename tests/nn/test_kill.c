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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(no_space)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
