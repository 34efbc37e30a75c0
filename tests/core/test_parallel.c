/* Every task is done once, by a worker that there is, whoever runs them and in whatever order they are handed out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/parallel.h"

#ifdef __has_feature
#define MHLA_CLANG_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#endif

enum { MOST = 200 };

typedef struct work {
    int threads;
    atomic_int done[MOST], strange;
} work;

static void note(void *arg, int64_t i, int worker) {
    work *w = arg;
    atomic_fetch_add(&w->done[i], 1);
    if (worker < 0 || worker >= w->threads) atomic_fetch_add(&w->strange, 1);
}

/* From the last one to the first, by one worker after the other, most of them by the last. */
static void backwards(void *user, int64_t n, mhla_task_fn task, void *arg) {
    const int threads = *(int *)user;
    for (int64_t i = n; i-- > 0;) task(arg, i, i % 5 ? threads - 1 : (int)(i % threads));
}

static void once_each(void **state) {
    (void)state;
    static const mhla_backend backends[] = {MHLA_BACKEND_OPENMP, MHLA_BACKEND_PTHREADS, MHLA_BACKEND_CUSTOM};
    static const int threads[] = {1, 2, 3, 7, 100}; /* the last: more than there are stretches */
    static const int64_t counts[] = {0, 1, 2, 6, 63, MOST};
    void (*const ways[])(const mhla_context *, int64_t, mhla_task_fn, void *) = {mhla_parallel,
                                                                                 mhla_parallel_stretches};
    for (int b = 0; b < 3; b++)
        for (int t = 0; t < 5; t++) {
            int number = threads[t];
            mhla_context *context = NULL;
            assert_int_equal(mhla_context_create(&context, &(mhla_context_desc){.size = sizeof(mhla_context_desc),
                                                                                .backend = backends[b],
                                                                                .threads = number,
                                                                                .parallel = backwards,
                                                                                .user = &number}),
                             MHLA_OK);
            for (int c = 0; c < 6; c++)
                for (int k = 0; k < 2; k++) {
                    work w = {.threads = number};
                    ways[k](context, counts[c], note, &w);
                    for (int64_t i = 0; i < MOST; i++)
                        if (w.done[i] != (i < counts[c]))
                            fail_msg("backend %d, %d threads, %d tasks, way %d: task %d is done %d times", b, number,
                                     (int)counts[c], k, (int)i, w.done[i]);
                    assert_int_equal(w.strange, 0);
                }
            mhla_context_free(context);
        }
}

/* Whoever is alone in his stretch takes it in order. */
static int64_t order[MOST];
static int taken;
static void remember(void *arg, int64_t i, int worker) {
    (void)arg;
    (void)worker;
    order[taken++] = i;
}

static void in_stretches(void **state) {
    (void)state;
    int threads = 2;
    mhla_context *context = NULL;
    assert_int_equal(mhla_context_create(&context, &(mhla_context_desc){.size = sizeof(mhla_context_desc),
                                                                        .backend = MHLA_BACKEND_CUSTOM,
                                                                        .threads = threads,
                                                                        .parallel = backwards,
                                                                        .user = &threads}),
                     MHLA_OK);
    mhla_parallel_stretches(context, 10, remember, NULL);
    mhla_context_free(context);
    /* tickets 9 .. 0; 5 is worker 1's as the others are, 0 is worker 0's */
    static const int64_t want[] = {5, 6, 7, 8, 9, 0, 1, 2, 3, 4};
    assert_memory_equal(order, want, sizeof want);
}

/* A limit of the address space that leaves no room for a thread's stack: the work is done by fewer threads, and the
 * process goes on. First of all tests: a parent that had threads could not fork them. */
static void without_room(void **state) {
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || MHLA_CLANG_SANITIZER
    skip(); /* they need the whole address space */
#endif
    for (int room = 0; room < 3; room++) { /* for no thread, for one, for many */
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            long pages = 0;
            FILE *f = fopen("/proc/self/statm", "r");
            if (f == NULL || fscanf(f, "%ld", &pages) != 1) _exit(2);
            fclose(f);
            const rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)(512 << 10) << (room * 7));
            setrlimit(RLIMIT_STACK, &(struct rlimit){8 << 20, RLIM_INFINITY});
            if (setrlimit(RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY}) != 0) _exit(2);
            static const int threads[] = {6, 2, 30};
            for (int t = 0; t < 3; t++) {
                mhla_context *context = NULL;
                const mhla_context_desc desc = {.size = sizeof desc, .threads = threads[t]};
                if (mhla_context_create(&context, &desc) != MHLA_OK) _exit(3);
                work w = {.threads = threads[t]};
                mhla_parallel(context, MOST, note, &w);
                for (int i = 0; i < MOST; i++)
                    if (w.done[i] != 1) _exit(4);
                if (w.strange) _exit(5);
                mhla_context_free(context);
            }
            _exit(0);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        if (how != 0) fail_msg("room %d: the child ended with %d", room, how);
    }
}

/* Threads do not survive a fork. A child's loops, and those of its own child, run all the same, with contexts from before. */
static int all_done(const mhla_context *context) {
    work w = {.threads = mhla_context_threads(context)};
    mhla_parallel(context, MOST, note, &w);
    int done = 0;
    for (int64_t i = 0; i < MOST; i++) done += w.done[i] == 1;
    return done == MOST && w.strange == 0;
}

static int in_a_child(mhla_context *const contexts[2], int depth) {
    const pid_t pid = fork();
    if (pid != 0) {
        int status = -1;
        return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    alarm(60); /* a loop that waits for threads of the parent ends here */
    int good = 1;
    for (int round = 0; round < 3; round++)
        for (int c = 0; c < 2; c++) good &= all_done(contexts[c]);
    if (depth > 1) good &= in_a_child(contexts, depth - 1);
    for (int c = 0; c < 2; c++) mhla_context_free(contexts[c]);
    _exit(good ? 0 : 1);
}

static void after_a_fork(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("[   SKIP   ] ThreadSanitizer knows no threads in a child of a process that has threads\n");
    skip();
#endif
    if (getenv("MHLA_TEST_EMULATOR")) { /* qemu-user of Debian 12 aborts there itself */
        print_message("[   SKIP   ] %s knows no threads in a child of a process that has threads\n",
                      getenv("MHLA_TEST_EMULATOR"));
        skip();
    }
    mhla_context *contexts[2];
    for (int c = 0; c < 2; c++)
        assert_int_equal(mhla_context_create(&contexts[c], &(mhla_context_desc){.size = sizeof(mhla_context_desc),
                                                                                .backend = (mhla_backend)c,
                                                                                .threads = c + 3}),
                         MHLA_OK);
    for (int c = 0; c < 2; c++) assert_true(all_done(contexts[c])); /* both have threads now */
    assert_true(in_a_child(contexts, 2));
    for (int c = 0; c < 2; c++) {
        assert_true(all_done(contexts[c]));
        mhla_context_free(contexts[c]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_room), cmocka_unit_test(once_each),
                                       cmocka_unit_test(in_stretches), cmocka_unit_test(after_a_fork)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
