/* Runs that are killed -9 at random moments, or that cannot write any more, go on to the same bytes as one that never
 * stopped. MHLA_TEST_KILLS says how often (30). Everything runs in child processes: a parent that had threads could not
 * fork them. */
#include "train_case.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { FINISHED = 10, UNFINISHED = 11, FAILED = 12 };

/* In a child: begins or goes on with a run; `most` limits the bytes of a file that it can write. */
static pid_t start(const char *name, rlim_t most) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    char path[300];
    mhla_trainer *t = NULL;
    int finished = 0;
    if (most) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, RLIM_INFINITY});
    }
    snprintf(path, sizeof path, "%s/checkpoints", in_root(name));
    /* killed before its first checkpoint, a run has to begin again */
    mhla_status status = access(path, F_OK) == 0 ? mhla_trainer_resume(&t, in_root(name)) : MHLA_EIO;
    if (status != MHLA_OK) {
        remove_tree(in_root(name));
        status = create(&t, name, "checkpoint.steps=1", "train.steps=40", NULL);
    }
    if (status == MHLA_OK) status = mhla_trainer_run(t, NULL, NULL, &finished);
    if (status != MHLA_OK && !most) fprintf(stderr, "%s\n", mhla_message());
    mhla_trainer_free(t);
    _exit(status != MHLA_OK ? FAILED : finished ? FINISHED : UNFINISHED);
}

static int wait_for(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static double duration; /* of a whole run, seconds */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void killed(void **state) {
    (void)state;
    const char *text = getenv("MHLA_TEST_KILLS");
    const int kills = text ? atoi(text) : 30;
    rng r = {(uint64_t)time(NULL)};
    const double begin = now();
    assert_int_equal(wait_for(start("straight", 0)), FINISHED);
    duration = now() - begin;
    for (int done = 0, part = 0; done < kills; part++) {
        const pid_t child = start("killed", 0);
        /* mostly a few steps, each of which ends with a checkpoint, now and then half the way */
        const double u = rng_below(&r, 1000) / 1000.0, pause = duration * (0.02 + 0.5 * u * u * u);
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
    int how = wait_for(start("killed", 0));
    assert_int_equal(how, FINISHED);
    assert_same_end("straight", "killed");
}

/* No checkpoint can be written any more: the run ends with a sentence, and goes on when there is space again. */
static void no_space(void **state) {
    (void)state;
    struct stat info;
    char path[400];
    const pid_t child = start("full", 0);
    nanosleep(&(struct timespec){(time_t)(duration / 3), (long)(1e9 * fmod(duration / 3, 1.0))}, NULL);
    kill(child, SIGKILL);
    wait_for(child);
    snprintf(path, sizeof path, "%s/straight/last/optimizer.safetensors", root);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(wait_for(start("full", (rlim_t)info.st_size / 2)), FAILED);
    assert_int_equal(wait_for(start("full", 0)), FINISHED);
    assert_same_end("straight", "full");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(no_space)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
