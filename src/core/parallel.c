/* Contexts and the parallel for. Tasks are handed out one by one from a shared counter; which worker does which task never
 * changes a result, because no task's arithmetic depends on it.
 *
 * A child of fork has none of its parent's threads. A pool starts its own again there; OpenMP's runtime may wait for the
 * lost ones forever (libgomp does), so its loops run in a pool instead. */
#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/memory.h"
#include "core/status.h"

enum { MAX_THREADS = 1024, STRETCHES = 64, LINE = 64 };

typedef struct pool {
    pthread_t *threads; /* [workers], of which the first `started` run: workers 1.. */
    int workers, started;
    atomic_int age;       /* `forks` when they were started */
    pthread_mutex_t busy; /* held by the call that uses the pool */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t round; /* of work; workers wait for it to change */
    int working, quit;
    /* the present loop */
    int64_t n;
    int limit; /* workers from this one on stay out of it */
    atomic_llong next;
    mhla_task_fn task;
    void *arg;
} pool;

static atomic_int forks; /* between the process that loaded the library and this one */
static pthread_mutex_t restart = PTHREAD_MUTEX_INITIALIZER;
static pool instead_of_openmp; /* in a child; as many workers as the first loop there asks for */

static void in_the_child(void) {
    pthread_mutex_init(&restart, NULL); /* another thread of the parent may have held it */
    atomic_fetch_add(&forks, 1);
}

int64_t mhla_l2_bytes;

__attribute__((constructor)) static void when_loaded(void) {
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE); /* slow in virtual machines */
    mhla_l2_bytes = l2 > 0 ? l2 : 0;
    pthread_atfork(NULL, NULL, in_the_child);
}

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
    while (worker < p->limit) {
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
    if (atomic_load(&p->age) == atomic_load(&forks)) { /* else there is nobody to wait for */
        pthread_mutex_lock(&p->lock);
        p->quit = 1;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->started; i++) pthread_join(p->threads[i], NULL);
        pthread_mutex_destroy(&p->busy);
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->wake);
        pthread_cond_destroy(&p->idle);
    }
    mhla_free(p->threads);
    mhla_free(p);
}

/* Starts p->workers threads, or as many of them as can be had; nothing of an earlier start is looked at. */
static void pool_start(pool *p) {
    pthread_mutex_init(&p->busy, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->round = 0;
    for (p->started = 0; p->started < p->workers; p->started++) {
        struct worker_start *start = mhla_alloc(sizeof *start);
        if (start == NULL) break;
        *start = (struct worker_start){p, p->started + 1};
        if (pthread_create(&p->threads[p->started], NULL, worker_main, start) != 0) {
            mhla_free(start);
            break;
        }
    }
    atomic_store(&p->age, atomic_load(&forks));
}

/* `least` of the workers must start. */
static pool *pool_create(int workers, int least) {
    pool *p = mhla_alloc_zero(sizeof *p);
    if (p == NULL) return NULL;
    p->workers = workers;
    p->threads = mhla_alloc((size_t)(workers > 0 ? workers : 1) * sizeof *p->threads);
    if (p->threads) pool_start(p);
    if (p->threads && p->started >= least) return p;
    if (p->threads)
        pool_free(p);
    else
        mhla_free(p);
    return NULL;
}

/* The first loop of a child finds the pool without its threads; the first OpenMP loop finds no pool at all. */
static void pool_restart(pool *p, int workers) {
    if (atomic_load(&p->age) == atomic_load(&forks)) return;
    pthread_mutex_lock(&restart);
    if (atomic_load(&p->age) != atomic_load(&forks)) {
        if (p->threads == NULL) {
            p->threads = mhla_alloc((size_t)workers * sizeof *p->threads);
            p->workers = p->threads ? workers : 0;
        }
        pool_start(p);
    }
    pthread_mutex_unlock(&restart);
}

static void pool_run(pool *p, int threads, int64_t n, mhla_task_fn task, void *arg) {
    pthread_mutex_lock(&p->lock);
    p->n = n;
    p->limit = threads;
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
    MHLA_TRY(mhla_struct_in(&desc, sizeof desc, given, "mhla_context_desc"));
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
        c->pool = pool_create(c->threads - 1, c->threads - 1);
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

/* One loop at a time; a concurrent one runs in its caller's thread. */
static void pooled(pool *p, int threads, int64_t n, mhla_task_fn task, void *arg) {
    pool_restart(p, threads - 1);
    if (pthread_mutex_trylock(&p->busy) != 0) {
        serial(n, task, arg);
        return;
    }
    pool_run(p, threads, n, task, arg);
    pthread_mutex_unlock(&p->busy);
}

#ifdef _OPENMP
/* OpenMP's runtime ends the process where it cannot start a thread. That is likely where the address space is limited
 * (ulimit -v): there our own threads take its place, as many as can be started, and no more than one for each 256 MiB,
 * because a thread takes a stack (8 MiB) and what malloc reserves for it (64 MiB). Never freed. */
static int is_limited;
static pool *limited_pool; /* NULL: not even memory for it */
static void limited_create(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const int most = omp_get_max_threads(), cpus = mhla_cpu_count(), all = most > cpus ? most : cpus;
    const rlim_t room = limit.rlim_cur >> 28;
    limited_pool = pool_create(room < (rlim_t)all ? (int)room : all, 0);
    is_limited = 1;
}
#endif

static void openmp_run(int threads, int64_t n, mhla_task_fn task, void *arg) {
#ifdef _OPENMP
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, limited_create);
    if (is_limited) {
        if (limited_pool)
            pooled(limited_pool, threads, n, task, arg);
        else
            serial(n, task, arg);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < n; i++) task(arg, i, omp_get_thread_num());
#else
    (void)threads;
    serial(n, task, arg);
#endif
}

void mhla_parallel(const mhla_context *context, int64_t n, mhla_task_fn task, void *arg) {
    const int threads = mhla_context_threads(context);
    if (n <= 0) return;
    if (n > 1 && context && context->backend == MHLA_BACKEND_CUSTOM) { /* with one thread, too: it may be measuring */
        context->parallel(context->user, n, task, arg);
    } else if (threads == 1 || n == 1) {
        serial(n, task, arg);
    } else if (context && context->backend == MHLA_BACKEND_PTHREADS) {
        pooled(context->pool, threads, n, task, arg);
    } else if (atomic_load(&forks) != 0) {
        pooled(&instead_of_openmp, threads, n, task, arg);
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
