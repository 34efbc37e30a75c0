/* Training on text that is killed -9 at random moments goes on to the same bytes as a run that never stopped; see
 * test_kill.c. MHLA_TEST_KILLS says how often (4). */
#include "text_case.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { FINISHED = 10, FAILED = 12 };

static pid_t start(const char *name) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    mhla_trainer *t = NULL;
    int finished = 0;
    char path[300];
    snprintf(path, sizeof path, "%s/checkpoints", in_root(name));
    mhla_status status = access(path, F_OK) == 0 ? mhla_trainer_resume(&t, in_root(name)) : MHLA_EIO;
    if (status != MHLA_OK) { /* killed before its first checkpoint, a run has to begin again */
        remove_tree(in_root(name));
        status = create_text(&t, name, "checkpoint.steps=2", "train.steps=40", NULL);
    }
    if (status == MHLA_OK) status = mhla_trainer_run(t, NULL, NULL, &finished);
    if (status != MHLA_OK) fprintf(stderr, "%s\n", mhla_message());
    mhla_trainer_free(t);
    _exit(status == MHLA_OK && finished ? FINISHED : FAILED);
}

static int wait_for(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void killed(void **state) {
    (void)state;
    const char *text = getenv("MHLA_TEST_KILLS");
    const int kills = text ? atoi(text) : 4;
    rng r = {(uint64_t)time(NULL)};
    const double begin = now();
    assert_int_equal(wait_for(start("straight")), FINISHED);
    const double duration = now() - begin;
    for (int done = 0; done < kills;) {
        const pid_t child = start("killed");
        const double pause = duration * (0.02 + 0.5 * rng_below(&r, 1000) / 1000.0);
        nanosleep(&(struct timespec){(time_t)pause, (long)(1e9 * (pause - floor(pause)))}, NULL);
        kill(child, SIGKILL);
        const int how = wait_for(child);
        done += how == -1;
        if (how == FINISHED) {
            assert_same_end("straight", "killed");
            remove_tree(in_root("killed"));
        } else {
            assert_int_equal(how, -1);
        }
    }
    assert_int_equal(wait_for(start("killed")), FINISHED);
    assert_same_end("straight", "killed");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed)};
    return cmocka_run_group_tests(tests, set_up_text, tear_down);
}
