/* mhla bench --simulate-threads: how finely the work of a call is cut, for more cores than this machine has. Every task of every
 * loop runs on one thread and is timed, by the time of the CPU, so that other programs do not count. A loop then counts as long
 * as list scheduling on N workers would take: the next task goes to the worker that is free first, and all wait for the last one.
 * What is between the loops counts in full. The memory's rate and the waking of threads are not simulated: the result is what the
 * cutting allows, not a forecast. A task, and what is between two loops, counts with the shortest time that it took in any call of
 * the row: on a busy machine one of many is nearly always interrupted, and all would wait for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum { MOST_WORKERS = 1024, MOST_ROWS = 512, CHAINS = 1024 };

static struct {
    double busy[MOST_WORKERS]; /* of each worker in the present loop */
    int workers;
    double saved; /* seconds that N workers would not have taken */
} now;

/* The loops of the calls of a row, in the order in which they were first seen. */
typedef struct seen {
    int64_t kind; /* of the call, */
    int place;    /* the loop's in it */
    int64_t n;
    mhla_task_fn task;
    double before; /* seconds from the loop before, or the call's beginning */
    double *least; /* [n] of the tasks */
    int older;     /* in its chain; -1: none */
} seen;

static struct {
    seen *loop;
    int count, room;
    int latest[CHAINS]; /* 1 + the number of the latest loop of a chain; 0: none */
    int64_t kind;       /* of the present call */
    int place;          /* of its next loop; -1 between calls */
    double since;       /* the end of the loop before */
} calls = {.place = -1};

static void forget_calls(void) {
    for (int i = 0; i < calls.count; i++) free(calls.loop[i].least);
    calls.count = 0;
    memset(calls.latest, 0, sizeof calls.latest);
}

/* The shortest times so far of the loop at hand, or NULL: outside of a call, or no memory, its tasks count as they are. */
static seen *shortest(int64_t n, mhla_task_fn task) {
    if (calls.place < 0) return NULL;
    const int place = calls.place++;
    int *latest = &calls.latest[(31 * calls.kind + place) % CHAINS];
    for (int i = *latest - 1; i >= 0; i = calls.loop[i].older) {
        seen *l = &calls.loop[i];
        if (l->kind == calls.kind && l->place == place && l->n == n && l->task == task) return l;
    }
    if (calls.count == calls.room) {
        seen *more = realloc(calls.loop, (size_t)(2 * calls.room + 64) * sizeof *more);
        if (more == NULL) return NULL;
        calls.loop = more;
        calls.room = 2 * calls.room + 64;
    }
    double *least = malloc((size_t)n * sizeof *least);
    if (least == NULL) return NULL;
    for (int64_t i = 0; i < n; i++) least[i] = 1e9;
    calls.loop[calls.count++] = (seen){calls.kind, place, n, task, 1e9, least, *latest - 1};
    *latest = calls.count;
    return &calls.loop[calls.count - 1];
}

/* What asking the clock twice takes by itself: tasks may be as short. */
static double asking(void) {
    static double least;
    if (least > 0.0) return least;
    least = 1.0;
    for (int i = 0; i < 1000; i++) {
        const double start = thread_seconds(), took = thread_seconds() - start;
        if (took < least) least = took;
    }
    return least;
}

static void loop(void *user, int64_t n, mhla_task_fn task, void *arg) {
    const double begin = thread_seconds(), own = asking();
    seen *known = shortest(n, task);
    double longest = 0.0, *least = known ? known->least : NULL;
    (void)user;
    memset(now.busy, 0, sizeof *now.busy * (size_t)now.workers);
    for (int64_t i = 0; i < n; i++) {
        int worker = 0;
        for (int w = 1; w < now.workers; w++)
            if (now.busy[w] < now.busy[worker]) worker = w;
        const double start = thread_seconds();
        task(arg, i, 0); /* in one workspace, which stays in the cache, as each worker's would */
        double took = thread_seconds() - start - own;
        if (least && least[i] < took) took = least[i];
        if (least) least[i] = took;
        now.busy[worker] += took > 0.0 ? took : 0.0;
    }
    for (int w = 0; w < now.workers; w++)
        if (now.busy[w] > longest) longest = now.busy[w];
    if (known) { /* the serial part before the loop */
        const double before = begin - calls.since;
        if (before < known->before) known->before = before;
        now.saved += before - known->before;
    }
    calls.since = thread_seconds();
    now.saved += calls.since - begin + own - longest; /* what the simulation itself took is not counted either */
}

static double begin_call(int64_t kind) {
    calls.kind = kind;
    calls.place = 0;
    calls.since = thread_seconds();
    return calls.since - now.saved;
}

static double end_call(void) {
    calls.place = -1;
    return thread_seconds() - now.saved;
}

/* ---- Rows of all numbers of workers ---- */

typedef struct simulated {
    char name[112];
    double best[BENCH_SIMULATED]; /* seconds, by number of workers; 0: not measured */
} simulated;

static simulated rows[MOST_ROWS];
static int count, at;

void bench_simulated(const char *group, const char *shape, const char *variant, mhla_dtype dtype, double best) {
    char name[sizeof rows->name];
    int i = 0;
    snprintf(name, sizeof name, "%s %s%s%s%s", group, shape, *variant ? " " : "", variant,
             dtype == MHLA_BF16   ? " bf16"
             : dtype == MHLA_Q8_0 ? " q8_0"
                                  : "");
    while (i < count && strcmp(rows[i].name, name) != 0) i++;
    if (i == MOST_ROWS) return;
    if (i == count) snprintf(rows[count++].name, sizeof rows->name, "%s", name);
    rows[i].best[at] = best;
    forget_calls();
}

static void text_page(const int *workers, int n) {
    char text[32];
    printf("%-40s %10s", "", "1 thread");
    for (int k = 1; k < n; k++) printf("  %9s %4s", text_count(text, sizeof text, workers[k]), "of");
    printf("\n");
    for (int i = 0; i < count; i++) {
        printf("%-40s %10s", rows[i].name, text_time(text, sizeof text, rows[i].best[0]));
        for (int k = 1; k < n; k++) {
            const double faster = rows[i].best[k] > 0.0 ? rows[i].best[0] / rows[i].best[k] : 0.0;
            printf("  %8.1fx %3.0f%%", faster, 100.0 * faster / workers[k]);
        }
        printf("\n");
    }
    printf("\nHow many times faster than one thread, and the share of the ideal, if tasks were all that counts: each "
           "ran on one thread and was\n"
           "timed; loops end when their last task does. The memory's rate and the waking of threads are not in it.\n");
}

static void json_page(const int *workers, int n) {
    json_put_open(NULL, '{');
    json_put_text("version", mhla_version());
    json_put_open("rows", '[');
    for (int i = 0; i < count; i++) {
        json_put_open(NULL, '{');
        json_put_text("name", rows[i].name);
        json_put_real("one_thread_ms", 1e3 * rows[i].best[0]);
        json_put_open("simulated", '[');
        for (int k = 1; k < n; k++) {
            json_put_open(NULL, '{');
            json_put_int("threads", workers[k]);
            json_put_real("ms", 1e3 * rows[i].best[k]);
            json_put_real("speedup", rows[i].best[k] > 0.0 ? rows[i].best[0] / rows[i].best[k] : 0.0);
            json_put_close('}');
        }
        json_put_close(']');
        json_put_close('}');
    }
    json_put_close(']');
    json_put_close('}');
}

int bench_simulate_parse(int *workers, const char *list) {
    int n = 1;
    workers[0] = 1;
    for (const char *p = list;; p++) {
        char *end;
        const long x = strtol(p, &end, 10);
        if (end == p || x < 2 || x > MOST_WORKERS || n == BENCH_SIMULATED || (*end != '\0' && *end != ',')) return 0;
        workers[n++] = (int)x;
        p = end;
        if (*p == '\0') return n;
    }
}

mhla_status bench_simulate(bench *b, const int *workers, int n, mhla_status (*all)(bench *b, const void *arg),
                           const void *arg) {
    const int json = b->format == BENCH_JSON;
    mhla_status status = MHLA_OK;
    b->format = BENCH_SIMULATE;
    work_begin = begin_call;
    work_end = end_call;
    for (at = 0; at < n && status == MHLA_OK; at++) {
        mhla_context *context;
        const mhla_context_desc desc = {
            .size = sizeof desc, .backend = MHLA_BACKEND_CUSTOM, .threads = workers[at], .parallel = loop};
        now.workers = workers[at];
        status = mhla_context_create(&context, &desc);
        if (status != MHLA_OK) break;
        b->context = context;
        status = all(b, arg);
        b->context = NULL;
        mhla_context_free(context);
    }
    if (status != MHLA_OK || count == 0) return status;
    b->begun = 1;
    (json ? json_page : text_page)(workers, n);
    return MHLA_OK;
}
