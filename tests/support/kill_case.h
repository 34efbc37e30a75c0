/* Runs that are killed -9 at random moments, for tests of what they go on to. Everything runs in child processes: a parent
 * that had threads could not fork them. */
#ifndef MHLA_TESTS_NN_KILL_CASE_H
#define MHLA_TESTS_NN_KILL_CASE_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "core/clock.h"
#include "train_case.h"

enum { FINISHED = 10, UNFINISHED = 11, FAILED = 12 };

typedef mhla_status (*begin_fn)(mhla_trainer **t, const char *name);

/* In a child: begins or goes on with a run; `most` limits the bytes of a file that it can write. */
static inline pid_t start(begin_fn begin, const char *name, rlim_t most) {
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
        status = begin(&t, name);
    }
    if (status == MHLA_OK) status = mhla_trainer_run(t, NULL, NULL, &finished);
    if (status != MHLA_OK && !most) fprintf(stderr, "%s\n", mhla_message());
    mhla_trainer_free(t);
    _exit(status != MHLA_OK ? FAILED : finished ? FINISHED : UNFINISHED);
}

static inline int wait_for(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline void pause_for(double time) {
    nanosleep(&(struct timespec){(time_t)time, (long)(1e9 * (time - floor(time)))}, NULL);
}

/* "straight" runs through, "killed" is killed `kills` times (or MHLA_TEST_KILLS): both must end with the same bytes. */
static inline void kill_often(begin_fn begin, int kills) {
    const char *text = getenv("MHLA_TEST_KILLS");
    if (text) kills = atoi(text);
    rng r = {(uint64_t)time(NULL)};
    const double first = mhla_seconds();
    assert_int_equal(wait_for(start(begin, "straight", 0)), FINISHED);
    const double duration = mhla_seconds() - first;
    for (int done = 0; done < kills;) {
        const pid_t child = start(begin, "killed", 0);
        /* mostly a few steps and their checkpoints, now and then half the way */
        const double u = rng_below(&r, 1000) / 1000.0;
        pause_for(duration * (0.02 + 0.5 * u * u * u));
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
    assert_int_equal(wait_for(start(begin, "killed", 0)), FINISHED);
    assert_same_end("straight", "killed");
}

#endif
