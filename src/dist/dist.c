/* One process, or those that a launcher has started. */
#include "dist/dist.h"

#include <dlfcn.h>
#include <mhla/nn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/clock.h"
#include "core/parallel.h"
#include "core/status.h"
#include "dist/transport.h"
#include "dist/watch.h"

#ifndef MHLA_PLUGIN_FOLDER
#define MHLA_PLUGIN_FOLDER "lib/mhla" /* below the prefix of the installation */
#endif

static struct {
    const mhla_transport *transport; /* NULL: one process */
    int rank, ranks, local, launched, agreed_failure;
    int alone, rank_among, ranks_among; /* alone: rank and ranks of mhla_dist_together */
    char name[MHLA_TRANSPORT_TEXT], host[128];
} world = {.ranks = 1, .local = 1};

int mhla_dist_rank(void) { return world.rank; }
int mhla_dist_ranks(void) { return world.ranks; }
int mhla_dist_launched(void) { return world.launched && !world.alone; }
int mhla_dist_local(void) { return world.local; }
const char *mhla_dist_name(void) { return world.name; }
const char *mhla_dist_host(void) {
    if (*world.host == '\0' && gethostname(world.host, sizeof world.host - 1) != 0) strcpy(world.host, "?");
    return world.host;
}

/* ---- The launcher ---- */

typedef struct launcher {
    const char *name; /* NULL: none */
    int ranks;        /* that it says it has started; 0: it does not say */
} launcher;

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : 0;
}

/* Who has started this process, by what it leaves in the environment. */
static launcher find_launcher(void) {
    const char *chosen = getenv("MHLA_LAUNCHER");
    if (chosen && strcmp(chosen, "none") == 0) return (launcher){0};
    if (getenv("OMPI_COMM_WORLD_SIZE")) return (launcher){"mpirun", number_of("OMPI_COMM_WORLD_SIZE")};
    /* A batch script has the variables of its job as well, but SLURM_STEP_NUM_TASKS only what srun has started. */
    if (getenv("SLURM_PROCID") && number_of("SLURM_STEP_NUM_TASKS") > 0)
        return (launcher){"srun", number_of("SLURM_STEP_NUM_TASKS")};
    if (getenv("SLURM_PROCID") && number_of("SLURM_NTASKS") > 1) return (launcher){"Slurm", number_of("SLURM_NTASKS")};
    if (getenv("PMI_SIZE")) return (launcher){"mpirun", number_of("PMI_SIZE")};
    if (getenv("PMIX_RANK") || getenv("PMI_RANK")) return (launcher){"a launcher", 0};
    if (chosen && strcmp(chosen, "mpi") == 0) return (launcher){"MHLA_LAUNCHER", 0};
    return (launcher){0};
}

/* The plugin lies beside the program, as in the build folder, or below the prefix of the installation. */
static const char *find_plugin(char path[4096]) {
    const char *given = getenv("MHLA_MPI_PLUGIN");
    if (given && *given) {
        snprintf(path, 4096, "%s", given);
        return path;
    }
    char program[2048];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    snprintf(path, 4096, "%s/mhla-mpi.so", program);
    if (access(path, R_OK) == 0) return path;
    snprintf(path, 4096, "%s/../" MHLA_PLUGIN_FOLDER "/mhla-mpi.so", program);
    return access(path, R_OK) == 0 ? path : NULL;
}

static const char advice[] = "For one process start mhla without the launcher, or set MHLA_LAUNCHER=none";

static mhla_status open_plugin(const launcher *by) {
    char path[4096], problem[MHLA_TRANSPORT_TEXT] = "";
    if (find_plugin(path) == NULL)
        return mhla_fail(
            MHLA_EIO,
            "%s started this process as one of %d, but this mhla has no mhla-mpi.so: build it where mpi.h is "
            "installed (Debian: libopenmpi-dev). %s",
            by->name, by->ranks, advice);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's own plugins want its symbols */
    if (library == NULL)
        return mhla_fail(MHLA_EIO, "%s cannot be opened: %s. Was it built for another MPI? %s", path, dlerror(),
                         advice);
    const mhla_transport *t = dlsym(library, MHLA_TRANSPORT_SYMBOL);
    if (t == NULL || t->abi != MHLA_TRANSPORT_ABI)
        return mhla_fail(MHLA_EIO, "%s was built for another version of mhla", path);
    if (t->begin(&world.rank, &world.ranks, &world.local, world.name, problem) != 0)
        return mhla_fail(MHLA_EIO, "%s: %s", path, problem);
    if (by->ranks > 0 && world.ranks != by->ranks) {
        const int ranks = world.ranks;
        world.ranks = 1;
        world.rank = 0;
        return mhla_fail(
            MHLA_EIO,
            "%s started %d processes, but %s, which mhla-mpi.so was built for (%s), sees %d: the launcher belongs to "
            "another MPI, or srun needs --mpi=pmix. %s",
            by->name, by->ranks, world.name, t->built_for, ranks, advice);
    }
    world.transport = t;
    return MHLA_OK;
}

/* As many threads as leave a core to each, unless the user says so. */
static void choose_threads(void) {
#ifdef _OPENMP
    if (getenv("OMP_NUM_THREADS")) return;
    const int cpus = mhla_cpu_count(); /* that this process may run on: a launcher that binds has shared them out */
    const long all = sysconf(_SC_NPROCESSORS_ONLN);
    int each = (int)(all / world.local);
    if (each > cpus) each = cpus;
    omp_set_num_threads(each > 0 ? each : 1);
#endif
}

mhla_status mhla_dist_begin(void) {
    const launcher by = find_launcher();
    if (by.name == NULL || world.transport) return MHLA_OK;
    world.launched = 1;
    if (by.ranks == 1) return MHLA_OK; /* nobody to talk to */
    MHLA_TRY(open_plugin(&by));
    choose_threads();
    if (world.ranks == 1) return MHLA_OK;
    MHLA_TRY(mhla_watch_begin(world.rank, world.ranks));
    return mhla_dist_same("the version of mhla", mhla_version());
}

void mhla_dist_alone(void) {
    if (world.alone || world.ranks == 1) return;
    world.alone = 1;
    world.rank_among = world.rank;
    world.ranks_among = world.ranks;
    world.rank = 0;
    world.ranks = 1;
}

void mhla_dist_together(void) {
    if (!world.alone) return;
    world.alone = 0;
    world.rank = world.rank_among;
    world.ranks = world.ranks_among;
}

/* What the launcher says of this process, before the others are known. */
static int supposed_rank(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i])) return number_of(variables[i]);
    return 0;
}

int mhla_dist_tells(void) {
    mhla_dist_together();
    if (world.launched && world.transport == NULL) return supposed_rank() == 0;
    if (world.ranks == 1 || world.rank == 0) return 1;
    const long ms = world.agreed_failure ? 5000 : 300 + 20 * (world.rank < 100 ? world.rank : 100);
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
    return !world.agreed_failure;
}

void mhla_dist_end(int code) {
    mhla_dist_together();
    if (world.transport == NULL) return;
    if (world.ranks > 1 && code == 0) mhla_dist_agree(MHLA_OK); /* nobody leaves while others still work */
    if (world.ranks > 1) mhla_watch_end(code);
    const mhla_transport *t = world.transport;
    world.transport = NULL;
    if (code == 0) t->end(); /* after a failure it would wait for ranks that have been ended */
    world.rank = 0;
    world.ranks = 1;
}

/* ---- Bytes ---- */

/* Waits without taking the CPU from whoever the wait is for: ranks may be more than cores. */
static mhla_status finish(void *handle) {
    if (handle == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a message");
    const double begin = mhla_seconds();
    int state;
    while ((state = world.transport->done(handle)) == 0) {
        if (mhla_seconds() - begin < 2e-4)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return state > 0 ? MHLA_OK : mhla_fail(MHLA_EIO, "%s: a message between processes failed", world.name);
}

mhla_status mhla_dist_gather_all(void *all, const void *mine, size_t bytes) {
    if (world.ranks == 1) {
        if (bytes) memcpy(all, mine, bytes);
        return MHLA_OK;
    }
    return finish(world.transport->gather_all(all, mine, bytes));
}

mhla_status mhla_dist_spread(void *data, size_t bytes, int root) {
    if (world.ranks == 1) return MHLA_OK;
    return finish(world.transport->spread(data, bytes, root));
}

mhla_status mhla_dist_merge(void *rows, int64_t n, size_t bytes) {
    const int64_t P = world.ranks, each = (n + P - 1) / P;
    if (P == 1 || n == 0) return MHLA_OK;
    char *mine = calloc((size_t)each, bytes), *all = malloc((size_t)(P * each) * bytes);
    mhla_status status =
        mine && all ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the results of %d ranks", world.ranks);
    for (int64_t k = 0; status == MHLA_OK && k * P + world.rank < n; k++)
        memcpy(mine + (size_t)k * bytes, (char *)rows + (size_t)(k * P + world.rank) * bytes, bytes);
    if (status == MHLA_OK) status = mhla_dist_gather_all(all, mine, (size_t)each * bytes);
    for (int64_t i = 0; status == MHLA_OK && i < n; i++)
        memcpy((char *)rows + (size_t)i * bytes, all + (size_t)(i % P * each + i / P) * bytes, bytes);
    free(mine);
    free(all);
    return status;
}

mhla_status mhla_dist_agree(mhla_status mine) {
    if (world.ranks == 1) return mine;
    char text[512];
    snprintf(text, sizeof text, "%s", mine == MHLA_OK ? "" : mhla_message());
    int32_t own = (int32_t)mine, *all = malloc((size_t)world.ranks * sizeof *all);
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the state of %d ranks", world.ranks);
    mhla_status status = mhla_dist_gather_all(all, &own, sizeof own);
    int failed = 0, others = 0;
    while (status == MHLA_OK && failed < world.ranks && all[failed] == MHLA_OK) failed++;
    for (int r = 0; status == MHLA_OK && r < world.ranks; r++) others += all[r] == MHLA_OK;
    if (status == MHLA_OK && failed < world.ranks) {
        const mhla_status what = (mhla_status)all[failed];
        status = mhla_dist_spread(text, sizeof text, failed);
        world.agreed_failure = 1;
        if (status == MHLA_OK) /* what all have found is no one's in particular */
            status = others == 0 ? mhla_fail(what, "%s", text) : mhla_fail(what, "rank %d: %s", failed, text);
    }
    free(all);
    return status;
}

mhla_status mhla_dist_same(const char *what, const char *text) {
    if (world.ranks == 1) return MHLA_OK;
    int64_t size = (int64_t)strlen(text) + 1;
    MHLA_TRY(mhla_dist_spread(&size, sizeof size, 0));
    char *first = malloc((size_t)size);
    mhla_status status = mhla_dist_agree(first ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory to compare ranks"));
    if (status == MHLA_OK && world.rank == 0) memcpy(first, text, (size_t)size);
    if (status == MHLA_OK) status = mhla_dist_spread(first, (size_t)size, 0);
    if (status == MHLA_OK)
        status =
            mhla_dist_agree(strcmp(first, text) == 0
                                ? MHLA_OK
                                : mhla_fail(MHLA_EINVAL, "%s is %.160s, at rank 0 it is %.160s", what, text, first));
    free(first);
    return status;
}

static mhla_status begun(mhla_message_t *m) {
    return m->handle ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a message");
}

mhla_status mhla_dist_send(mhla_message_t *m, const void *data, size_t bytes, int to, int tag) {
    m->handle = world.transport->send(data, bytes, to, tag);
    return begun(m);
}

mhla_status mhla_dist_receive(mhla_message_t *m, void *data, size_t bytes, int from, int tag) {
    m->handle = world.transport->receive(data, bytes, from, tag);
    return begun(m);
}

mhla_status mhla_dist_wait(mhla_message_t *list, int count) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count; i++) {
        if (list[i].handle == NULL) continue;
        const mhla_status one = finish(list[i].handle);
        list[i].handle = NULL;
        if (status == MHLA_OK) status = one;
    }
    return status;
}

mhla_status mhla_dist_test(mhla_message_t *list, int count, int *all) {
    *all = 1;
    for (int i = 0; i < count; i++) {
        if (list[i].handle == NULL) continue;
        const int state = world.transport->done(list[i].handle);
        if (state != 0) list[i].handle = NULL;
        if (state < 0) return mhla_fail(MHLA_EIO, "%s: a message between processes failed", world.name);
        if (state == 0) *all = 0;
    }
    return MHLA_OK;
}

/* ---- For programs ---- */

mhla_status mhla_ranks_begin(void) { return mhla_dist_begin(); }
void mhla_ranks_end(int code) { mhla_dist_end(code); }
int mhla_rank(void) { return world.rank; }
int mhla_ranks(void) { return world.ranks; }
int mhla_rank_tells(void) { return mhla_dist_tells(); }
mhla_status mhla_ranks_agree(mhla_status mine) { return mhla_dist_agree(mine); }
mhla_status mhla_ranks_same(const char *what, const char *text) { return mhla_dist_same(what, text); }
mhla_status mhla_ranks_merge(void *rows, int64_t n, size_t bytes) { return mhla_dist_merge(rows, n, bytes); }
