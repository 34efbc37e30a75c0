/* One OpenMP runtime for the process. A torch wheel brings its own; where that one is called libgomp.so.1, as we ask for,
 * it serves us too and there is nothing to do. Some wheels give theirs another name, and then two runtimes are loaded,
 * whose waiting threads would take the CPUs from each other: here our loops are handed to theirs instead, and ours never
 * starts a thread. In a child of fork that runtime may hang, so the library's own threads do the work there. */
#include "binding.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

static struct runtime {
    void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel */
    int (*max_threads)(void);
    int (*thread_num)(void);
    int (*in_parallel)(void);
} theirs;

static int forked;
static void in_the_child(void) { forked = 1; }

enum { MOST_THREADS = 1024 };
static mhla_context *contexts[MOST_THREADS + 1]; /* by number of threads; made under the GIL, kept */

typedef struct loop {
    int64_t n;
    mhla_task_fn task;
    void *arg;
    atomic_llong next;
} loop;

static void body(void *data) {
    loop *l = data;
    const int worker = theirs.thread_num();
    for (int64_t i; (i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->n;)
        l->task(l->arg, i, worker);
}

static void run(void *user, int64_t n, mhla_task_fn task, void *arg) {
    const int threads = (int)(intptr_t)user;
    loop l = {.n = n, .task = task, .arg = arg};
    if (forked) { /* a context from before the fork that set_threads chose */
        for (int64_t i = 0; i < n; i++) task(arg, i, 0);
        return;
    }
    theirs.parallel(body, &l, n < threads ? (unsigned)n : (unsigned)threads, 0);
}

PyObject *binding_use_openmp(PyObject *module, PyObject *args) {
    (void)module;
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path)) return NULL;
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    struct runtime r = {NULL, NULL, NULL, NULL};
    if (library) {
        *(void **)&r.parallel = dlsym(library, "GOMP_parallel"); /* libomp and libiomp have it as well */
        *(void **)&r.max_threads = dlsym(library, "omp_get_max_threads");
        *(void **)&r.thread_num = dlsym(library, "omp_get_thread_num");
        *(void **)&r.in_parallel = dlsym(library, "omp_in_parallel");
    }
    if (!r.parallel || !r.max_threads || !r.thread_num || !r.in_parallel) Py_RETURN_FALSE;
    if (theirs.parallel == NULL) pthread_atfork(NULL, NULL, in_the_child);
    theirs = r;
    Py_RETURN_TRUE;
}

mhla_context *binding_foreign_context(int threads) {
    if (theirs.parallel == NULL || forked) return NULL;
    if (threads == 0) threads = theirs.in_parallel() ? 1 : theirs.max_threads();
    if (threads < 1) threads = 1;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (contexts[threads] == NULL) {
        const mhla_context_desc d = {.size = sizeof d,
                                     .backend = MHLA_BACKEND_CUSTOM,
                                     .threads = threads,
                                     .parallel = run,
                                     .user = (void *)(intptr_t)threads};
        if (mhla_context_create(&contexts[threads], &d) != MHLA_OK) return NULL;
    }
    return contexts[threads];
}
