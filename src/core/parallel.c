/* Contexts and the parallel for. Tasks are handed out one by one from a shared counter; which worker does which task never
 * changes a result, because no task's arithmetic depends on it. */
#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/memory.h"
#include "core/status.h"

enum { MAX_THREADS = 1024, STRETCHES = 64, LINE = 64 };

typedef struct pool {
    pthread_t *threads; /* [started]: workers 1.. */
    int started;
    pthread_mutex_t busy; /* held by the call that uses the pool */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t round; /* of work; workers wait for it to change */
    int working, quit;
    /* the present loop */
    int64_t n;
    atomic_llong next;
    mhla_task_fn task;
    void *arg;
} pool;

struct mhla_context {
    mhla_backend backend;
    int threads;
    mhla_parallel_fn parallel;
    void *user;
    pool *pool;
};

struct worker_start {
    pool *pool;
    int worker;
};

int mhla_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int n = CPU_COUNT(&set);
        if (n > 0) return n;
    }
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static void drain(pool *p, int worker) {
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->task(p->arg, i, worker);
    }
}

static void *worker_main(void *start) {
    pool *p = ((struct worker_start *)start)->pool;
    const int worker = ((struct worker_start *)start)->worker;
    mhla_free(start);
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->round == seen && !p->quit) pthread_cond_wait(&p->wake, &p->lock);
        if (p->quit) break;
        seen = p->round;
        pthread_mutex_unlock(&p->lock);
        drain(p, worker);
        pthread_mutex_lock(&p->lock);
        if (--p->working == 0) pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_free(pool *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->quit = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->busy);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    mhla_free(p->threads);
    mhla_free(p);
}

static pool *pool_create(int workers) {
    pool *p = mhla_alloc_zero(sizeof *p);
    if (p == NULL) return NULL;
    pthread_mutex_init(&p->busy, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->threads = mhla_alloc((size_t)(workers > 0 ? workers : 1) * sizeof *p->threads);
    if (p->threads == NULL) goto fail;
    for (int i = 0; i < workers; i++) {
        struct worker_start *start = mhla_alloc(sizeof *start);
        if (start == NULL) goto fail;
        *start = (struct worker_start){p, i + 1};
        if (pthread_create(&p->threads[i], NULL, worker_main, start) != 0) {
            mhla_free(start);
            goto fail;
        }
        p->started++;
    }
    return p;
fail:
    pool_free(p);
    return NULL;
}

static void pool_run(pool *p, int64_t n, mhla_task_fn task, void *arg) {
    pthread_mutex_lock(&p->lock);
    p->n = n;
    p->task = task;
    p->arg = arg;
    atomic_store(&p->next, 0);
    p->working = p->started;
    p->round++;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    drain(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->working > 0) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

mhla_status mhla_context_create(mhla_context **context, const mhla_context_desc *given) {
    if (context == NULL) return mhla_fail(MHLA_EINVAL, "context is NULL");
    *context = NULL;
    mhla_context_desc desc;
    MHLA_TRY(mhla_copy_struct(&desc, sizeof desc, given, "context_desc"));
    if (desc.threads < 0 || desc.threads > MAX_THREADS)
        return mhla_fail(MHLA_EINVAL, "threads is %d: expected 0 to %d", desc.threads, MAX_THREADS);
    if ((unsigned)desc.backend > MHLA_BACKEND_CUSTOM)
        return mhla_fail(MHLA_EINVAL, "backend is %d: no such backend", (int)desc.backend);
    if (desc.backend == MHLA_BACKEND_CUSTOM && (desc.parallel == NULL || desc.threads == 0))
        return mhla_fail(MHLA_EINVAL, "a custom backend needs `parallel` and `threads`");
#ifndef _OPENMP
    if (desc.backend == MHLA_BACKEND_OPENMP) desc.backend = MHLA_BACKEND_PTHREADS;
#endif
    mhla_context *c = mhla_alloc_zero(sizeof *c);
    if (c == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a context");
    c->backend = desc.backend;
    c->threads = desc.threads;
    c->parallel = desc.parallel;
    c->user = desc.user;
    if (c->threads == 0 && c->backend == MHLA_BACKEND_PTHREADS) c->threads = mhla_cpu_count();
    if (c->backend == MHLA_BACKEND_PTHREADS && c->threads > 1) {
        c->pool = pool_create(c->threads - 1);
        if (c->pool == NULL) {
            mhla_free(c);
            return mhla_fail(MHLA_ENOMEM, "cannot start %d threads", desc.threads);
        }
    }
    *context = c;
    return MHLA_OK;
}

void mhla_context_free(mhla_context *context) {
    if (context == NULL) return;
    pool_free(context->pool);
    mhla_free(context);
}

/* Inside a parallel region of the caller's, OpenMP would give one thread; ask for no more than that. */
static int openmp_threads(void) {
#ifdef _OPENMP
    const int n = omp_in_parallel() ? 1 : omp_get_max_threads();
    return n < MAX_THREADS ? n : MAX_THREADS;
#else
    return 1;
#endif
}

int mhla_context_threads(const mhla_context *context) {
    if (context == NULL || context->threads == 0) return openmp_threads();
    return context->threads;
}

static void serial(int64_t n, mhla_task_fn task, void *arg) {
    for (int64_t i = 0; i < n; i++) task(arg, i, 0);
}

static void openmp_run(int threads, int64_t n, mhla_task_fn task, void *arg) {
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < n; i++) task(arg, i, omp_get_thread_num());
#else
    (void)threads;
    serial(n, task, arg);
#endif
}

void mhla_parallel(const mhla_context *context, int64_t n, mhla_task_fn task, void *arg) {
    int threads = mhla_context_threads(context);
    if (n <= 0) return;
    if (threads == 1 || n == 1) {
        serial(n, task, arg);
    } else if (context && context->backend == MHLA_BACKEND_CUSTOM) {
        context->parallel(context->user, n, task, arg);
    } else if (context && context->backend == MHLA_BACKEND_PTHREADS) {
        pool *p = context->pool;
        if (pthread_mutex_trylock(&p->busy) != 0) {
            serial(n, task, arg);
            return;
        }
        pool_run(p, n, task, arg);
        pthread_mutex_unlock(&p->busy);
    } else {
        openmp_run(n < threads ? (int)n : threads, n, task, arg);
    }
}

/* Tasks next .. end-1 are still to be done; on a cache line of its own. */
typedef struct stretch {
    _Alignas(LINE) atomic_llong next;
    int64_t end;
} stretch;

typedef struct stretches {
    stretch each[STRETCHES];
    int count;
    mhla_task_fn task;
    void *arg;
} stretches;

/* There are as many tickets as tasks, so that each finds one. */
static void ticket(void *arg, int64_t number, int worker) {
    stretches *s = arg;
    (void)number;
    for (int i = 0;; i++) {
        stretch *own = &s->each[(worker + i) % s->count];
        if (atomic_load_explicit(&own->next, memory_order_relaxed) >= own->end) continue;
        const int64_t index = atomic_fetch_add_explicit(&own->next, 1, memory_order_relaxed);
        if (index >= own->end) continue;
        s->task(s->arg, index, worker);
        return;
    }
}

void mhla_parallel_stretches(const mhla_context *context, int64_t n, mhla_task_fn task, void *arg) {
    const int threads = mhla_context_threads(context);
    stretches s = {.count = threads < STRETCHES ? threads : STRETCHES, .task = task, .arg = arg};
    for (int i = 0; i < s.count; i++) {
        atomic_init(&s.each[i].next, n * i / s.count);
        s.each[i].end = n * (i + 1) / s.count;
    }
    mhla_parallel(context, n, ticket, &s);
}
