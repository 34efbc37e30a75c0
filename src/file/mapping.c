#include "file/mapping.h"

#include <errno.h>
#include <mhla/nn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"

/* The handler walks the list while other threads change it. So a row is never freed: it becomes free for the next mapping. */
typedef struct mhla_mapping {
    struct mhla_mapping *next; /* as it was when the row came into the list */
    _Atomic(uintptr_t) begin;  /* FREE, TAKEN, or an address */
    _Atomic(size_t) size;
    char *name; /* its path without control characters: it goes to a terminal */
} mapping;

enum { FREE, TAKEN };
static _Atomic(mapping *) mappings;

static mapping *take_row(void) {
    for (mapping *m = atomic_load(&mappings); m; m = m->next) {
        uintptr_t was = FREE;
        if (atomic_compare_exchange_strong(&m->begin, &was, TAKEN)) return m;
    }
    mapping *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    atomic_init(&m->begin, TAKEN);
    m->next = atomic_load(&mappings);
    while (!atomic_compare_exchange_weak(&mappings, &m->next, m)) {
    }
    return m;
}

static void leave_row(mapping *m) {
    free(m->name);
    m->name = NULL;
    atomic_store(&m->begin, FREE);
}

mhla_status mhla_mapping_create(mhla_file *file, int fd, size_t size, const char *path) {
    mapping *m = take_row();
    if (m) m->name = strdup(path);
    if (m == NULL || m->name == NULL) {
        if (m) leave_row(m);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for its name", path);
    }
    for (char *c = m->name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        const int why = errno;
        leave_row(m);
        return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(why));
    }
    atomic_store(&m->size, size);
    atomic_store(&m->begin, (uintptr_t)data);
    *file = (mhla_file){.data = data, .size = size, .mapping = m};
    return MHLA_OK;
}

void mhla_mapping_free(mhla_file *file) {
    mapping *m = file->mapping;
    atomic_store(&m->begin, TAKEN); /* before the addresses may become another's */
    munmap((void *)(uintptr_t)file->data, file->size);
    leave_row(m);
}

void mhla_mapping_leave(const void *data, size_t bytes) {
    const uintptr_t from = (uintptr_t)data, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (from + page - 1) & ~(page - 1), end = (from + bytes) & ~(page - 1);
    for (mapping *m = atomic_load(&mappings); m && first < end; m = m->next) {
        const uintptr_t begin = atomic_load(&m->begin);
        if (begin <= TAKEN || from < begin || from - begin >= atomic_load(&m->size)) continue;
        madvise((void *)first, end - first, MADV_DONTNEED);
        return;
    }
}

/* ---- SIGBUS ---- */

static struct sigaction before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* who installs and removes the handler */
static int installed;
static _Atomic(mhla_file_lost_fn) told;
static atomic_int guards;
static atomic_llong losses;
static atomic_flag naming = ATOMIC_FLAG_INIT;
static char lost_name[4096]; /* of the last file, its last byte always 0 */

/* Puts zeros in the place of what the file has lost, from the page at `at` to the end. */
static int fill(const mapping *m, uintptr_t at, uintptr_t begin) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = at & ~(page - 1);
    if (!atomic_flag_test_and_set(&naming)) {
        size_t n = 0;
        for (; m->name[n] && n < sizeof lost_name - 1; n++) lost_name[n] = m->name[n];
        lost_name[n] = '\0';
        atomic_flag_clear(&naming);
    }
    atomic_fetch_add(&losses, 1);
    return mmap((void *)first, begin + atomic_load(&m->size) - first, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* What is not about a mapping goes to whom it went before: the instruction faults again when this returns. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    const mhla_file_lost_fn lost = atomic_load(&told);
    const uintptr_t at = (uintptr_t)info->si_addr;
    const int was = errno;
    if (info->si_code > 0) /* of the kernel's, not sent by somebody */
        for (mapping *m = atomic_load(&mappings); m; m = m->next) {
            const uintptr_t begin = atomic_load(&m->begin);
            if (begin <= TAKEN || at < begin || at - begin >= atomic_load(&m->size)) continue;
            if (atomic_load(&guards) > 0 && fill(m, at, begin)) {
                errno = was;
                return;
            }
            if (lost) lost(m->name);
        }
    sigaction(SIGBUS, &before, NULL);
    if (info->si_code <= 0) raise(number);
}

/* Installs the handler or removes it, as somebody or nobody wants it; under the lock. */
static void install(void) {
    const int want = atomic_load(&told) != NULL || atomic_load(&guards) > 0;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (want && !installed)
        sigaction(SIGBUS, &action, &before);
    else if (!want && installed)
        sigaction(SIGBUS, &before, NULL);
    installed = want;
}

void mhla_files_watch(mhla_file_lost_fn lost) {
    pthread_mutex_lock(&lock);
    atomic_store(&told, lost);
    install();
    pthread_mutex_unlock(&lock);
}

int64_t mhla_files_guard(void) {
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&guards, 1);
    install();
    pthread_mutex_unlock(&lock);
    return atomic_load(&losses);
}

mhla_status mhla_files_release(int64_t guard) {
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&guards, 1);
    install();
    pthread_mutex_unlock(&lock);
    if (atomic_load(&losses) == guard) return MHLA_OK;
    return mhla_fail(MHLA_EIO, "%s: became shorter while it was read, or its disk failed", lost_name);
}
