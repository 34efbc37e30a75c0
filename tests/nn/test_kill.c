/* Runs that are killed -9 at random moments, or that cannot write any more, go on to the same bytes as one that never
 * stopped. MHLA_TEST_KILLS says how often (30). */
#include "kill_case.h"

static mhla_status begin(mhla_trainer **t, const char *name) {
    return create(t, name, "checkpoint.steps=1", "train.steps=40", NULL);
}

static double duration; /* of a whole run, seconds */

static void killed(void **state) {
    (void)state;
    duration = kill_often(begin, 30);
}

/* No checkpoint can be written any more: the run ends with a sentence, and goes on when there is space again. */
static void no_space(void **state) {
    (void)state;
    struct stat info;
    char path[400];
    const pid_t child = start(begin, "full", 0);
    pause_for(duration / 3);
    kill(child, SIGKILL);
    wait_for(child);
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
