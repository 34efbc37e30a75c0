/* Every task is done once, by a worker that there is, whoever runs them and in whatever order they are handed out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/parallel.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(once_each), cmocka_unit_test(in_stretches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
