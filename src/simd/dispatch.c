/* Which kernels run here: the list of instruction sets, best last, and the choice among them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(MHLA_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "core/clock.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "simd/kernels.h"

static int always(void) { return 1; }

int mhla_half_vectors;

#if defined(MHLA_X86)
__attribute__((constructor)) static void look_at_vectors(void) {
    __builtin_cpu_init();
    mhla_half_vectors = __builtin_cpu_is("amdfam19h"); /* of those with AVX-512: Zen 4 */
}
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static int has_avx512bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#if defined(MHLA_AMX)
static pthread_once_t tiles_asked = PTHREAD_ONCE_INIT;
static int tiles_granted;

/* Tiles are used only by processes that asked for them: their state is large. All threads may, from then on. */
static void ask_for_tiles(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16 && d & AMX_TILE)
        tiles_granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#endif
}
static int has_amx(void) {
    if (!has_avx512bf16()) return 0;
    pthread_once(&tiles_asked, ask_for_tiles);
    return tiles_granted;
}
#define AMX_ROW(X) X(amx, has_amx)
#else
#define AMX_ROW(X)
#endif
#define ISA_LIST(X) X(plain, always) X(avx2, has_avx2) X(avx512, has_avx512) X(avx512bf16, has_avx512bf16) AMX_ROW(X)
#elif defined(MHLA_ARM64)
#define ISA_LIST(X) X(plain, always) X(neon, always)
#else
#define ISA_LIST(X) X(plain, always)
#endif

#define X(isa, test) extern const mhla_kernels mhla_##isa##_table;
ISA_LIST(X)
#undef X

static const struct row {
    const mhla_kernels *table;
    int (*runs_here)(void);
    const char *emulated[2]; /* its names with emulated products of bfloat16 */
} rows[] = {
#define X(isa, test) {&mhla_##isa##_table, test, {#isa "-bf16", #isa "-amx"}},
    ISA_LIST(X)
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };

static _Atomic(const mhla_kernels *) chosen;
static char why[96] = "best of this CPU";

static const mhla_kernels *best(void) {
    for (int i = ROWS - 1; i > 0; i--)
        if (rows[i].runs_here()) return rows[i].table;
    return rows[0].table;
}

/* Tables with emulated products of bfloat16, made when first asked for. */
static mhla_kernels emulated[ROWS][2];
static pthread_once_t emulated_made = PTHREAD_ONCE_INIT;

static void make_emulated(void) {
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++) {
            emulated[i][j] = *rows[i].table;
            emulated[i][j].name = rows[i].emulated[j];
            emulated[i][j].gemm_bf16 = j ? mhla_emulated_gemm_amx : mhla_emulated_gemm_bf16;
            emulated[i][j].same_bits = emulated[i][j].gemm_bf16;
        }
}

int mhla_kernels_emulated(const mhla_kernels *tables[], int capacity) {
    int n = 0;
    pthread_once(&emulated_made, make_emulated);
    for (int i = 0; i < 2 * ROWS && n < capacity; i++)
        if (rows[i / 2].runs_here() && rows[i / 2].table->gemm_bf16 == NULL) tables[n++] = &emulated[i / 2][i % 2];
    return n;
}

static const mhla_kernels *by_name(const char *name) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].table->name, name) == 0 && rows[i].runs_here()) return rows[i].table;
    const mhla_kernels *tables[2 * ROWS];
    const int n = mhla_kernels_emulated(tables, 2 * ROWS);
    for (int i = 0; i < n; i++)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}

const mhla_kernels *mhla_kernels_get(void) {
    const mhla_kernels *k = atomic_load_explicit(&chosen, memory_order_acquire);
    if (k) return k;
    const char *name = getenv("MHLA_ISA");
    if (name && *name) {
        k = by_name(name);
        if (k)
            snprintf(why, sizeof why, "MHLA_ISA");
        else
            snprintf(why, sizeof why, "MHLA_ISA=%.24s is not available here; best of this CPU", name);
    }
    if (k == NULL) k = best();
    atomic_store_explicit(&chosen, k, memory_order_release);
    return k;
}

int mhla_kernels_available(const mhla_kernels *tables[], int capacity) {
    int n = 0;
    for (int i = 0; i < ROWS && n < capacity; i++)
        if (rows[i].runs_here()) tables[n++] = rows[i].table;
    return n;
}

mhla_status mhla_set_isa(const char *name) {
    const mhla_kernels *k = name ? by_name(name) : best();
    if (k == NULL) return mhla_fail(MHLA_ENOTSUP, "isa is \"%s\": not one that runs on this CPU", name);
    snprintf(why, sizeof why, name ? "mhla_set_isa" : "best of this CPU");
    atomic_store_explicit(&chosen, k, memory_order_release);
    return MHLA_OK;
}

/* ---- What the machine has ---- */

static size_t cache_size(int name) {
    const long n = sysconf(name);
    return n > 0 ? (size_t)n : 0;
}

static const char *cpu_model(void) {
    static char model[128];
    if (model[0]) return model;
    char line[256], found[sizeof model] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            snprintf(found, sizeof found, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (f) fclose(f);
    memcpy(model, found, sizeof model);
    return model;
}

mhla_status mhla_cpu_query(mhla_cpu_info *info) {
    static char available[96];
    char text[sizeof available] = "";
    for (int i = 0; i < ROWS; i++)
        if (rows[i].runs_here())
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "", rows[i].table->name);
    memcpy(available, text, sizeof available);
    const mhla_cpu_info full = {
        .size = sizeof full,
        .isa = mhla_kernels_get()->name,
        .why = why,
        .available = available,
        .model = cpu_model(),
        .cpus = mhla_cpu_count(),
        .threads = mhla_context_threads(NULL),
        .l1d = cache_size(_SC_LEVEL1_DCACHE_SIZE),
        .l2 = cache_size(_SC_LEVEL2_CACHE_SIZE),
        .l3 = cache_size(_SC_LEVEL3_CACHE_SIZE),
    };
    return mhla_struct_out(info, &full, sizeof full, "mhla_cpu_info");
}

/* ---- Ceilings ---- */

struct ceiling {
    double (*flops)(int64_t iterations);
    int64_t iterations;
    double done[1024]; /* per task */
    const float *memory;
    int64_t floats; /* per task */
};

static void flops_task(void *arg, int64_t i, int worker) {
    struct ceiling *c = arg;
    (void)worker;
    c->done[i] = c->flops(c->iterations);
}

static void read_task(void *arg, int64_t i, int worker) {
    struct ceiling *c = arg;
    (void)worker;
    c->done[i] = (double)mhla_kernels_get()->read_sum(c->memory + i * c->floats, c->floats);
}

/* The best of many short rounds: the machine may be busy with other things. */
static double best_rate(const mhla_context *context, double seconds, mhla_task_fn task, struct ceiling *c,
                        double work) {
    const int threads = mhla_context_threads(context);
    double rate = 0.0;
    for (const double end = mhla_seconds() + seconds;;) {
        const double start = mhla_seconds();
        mhla_parallel(context, threads, task, c);
        const double stop = mhla_seconds();
        if (stop > start && work * threads / (stop - start) > rate) rate = work * threads / (stop - start);
        if (stop >= end) return rate * 1e-9;
    }
}

double mhla_measure_peak(mhla_dtype dtype, const mhla_context *context, double seconds) {
    const mhla_kernels *k = mhla_kernels_get();
    struct ceiling c = {.flops = dtype == MHLA_BF16 ? k->bf16_flops : k->fma_flops, .iterations = 200000};
    if (c.flops == NULL) return 0.0;
    const double work = c.flops(c.iterations);
    return best_rate(context, seconds, flops_task, &c, work);
}

double mhla_measure_bandwidth(const mhla_context *context, double seconds) {
    const int threads = mhla_context_threads(context);
    /* Half a GiB in all: of 128 MiB a cache of 32 still gave a good part. */
    const int64_t floats = (int64_t)(threads < 8 ? 512 / threads : 64) << 18;
    float *memory = mhla_alloc((size_t)threads * (size_t)floats * sizeof *memory);
    if (memory == NULL) return 0.0;
    memset(memory, 0, (size_t)threads * (size_t)floats * sizeof *memory);
    struct ceiling c = {.memory = memory, .floats = floats};
    const double rate = best_rate(context, seconds, read_task, &c, (double)floats * 4);
    mhla_free(memory);
    return rate;
}
