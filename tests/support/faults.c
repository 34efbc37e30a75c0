/* See faults.h. */
#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/status.h"
#include "crash_disk.h"

/* ---- When ---------------------------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    int armed, on, fired;
    fault_kind kind;
    long n, calls;
    void *trace[32]; /* of the call that failed first */
    int depth;
} plan = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const kind_names[] = {"memory", "open",   "read", "write",  "sync",
                                         "close",  "rename", "make", "remove", "thread"};

void faults_arm(fault_kind kind, long n, int on) {
    pthread_mutex_lock(&plan.lock);
    plan.armed = 1, plan.kind = kind, plan.n = n, plan.on = on;
    plan.calls = plan.fired = plan.depth = 0;
    pthread_mutex_unlock(&plan.lock);
}

int faults_disarm(void) {
    plan.armed = 0;
    return plan.fired;
}

long faults_calls(void) { return plan.calls; }

static int fails(fault_kind kind, int error) {
    int result = 0;
    pthread_mutex_lock(&plan.lock);
    if (plan.armed && plan.kind == kind) {
        plan.calls++;
        result = plan.calls == plan.n || (plan.on && plan.calls > plan.n);
        if (result && !plan.fired) {
            plan.fired = 1;
            plan.armed = 0; /* backtrace may allocate */
            plan.depth = backtrace(plan.trace, (int)(sizeof plan.trace / sizeof *plan.trace));
            plan.armed = 1;
        }
    }
    pthread_mutex_unlock(&plan.lock);
    if (result) errno = error;
    return result;
}

/* ---- Memory --------------------------------------------------------------------------------------------------------- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
char *__real_realpath(const char *path, char *to);
int __real_vasprintf(char **text, const char *format, va_list args);

typedef struct block {
    struct block *next;
    void *at;
    size_t size;
} block;

enum { BUCKETS = 4096 };
static block *blocks[BUCKETS];
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static fault_held held;

static block **bucket(const void *p) { return &blocks[((uintptr_t)p >> 4) % BUCKETS]; }

static void *keep(void *p, size_t size) {
    block *b = p ? __real_malloc(sizeof *b) : NULL;
    if (b == NULL) return p;
    pthread_mutex_lock(&held_lock);
    *b = (block){*bucket(p), p, size};
    *bucket(p) = b;
    held.blocks++, held.bytes += (long)size;
    pthread_mutex_unlock(&held_lock);
    return p;
}

static void drop(const void *p) {
    pthread_mutex_lock(&held_lock);
    for (block **at = bucket(p), *b; (b = *at) != NULL; at = &b->next)
        if (b->at == p) {
            *at = b->next;
            held.blocks--, held.bytes -= (long)b->size;
            __real_free(b);
            break;
        }
    pthread_mutex_unlock(&held_lock);
}

void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) { return fails(FAULT_MEMORY, ENOMEM) ? NULL : keep(__real_malloc(n), n); }

void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) {
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : keep(__real_calloc(n, size), n * size);
}

void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) {
    if (fails(FAULT_MEMORY, ENOMEM)) return NULL;
    if (p) drop(p);
    return keep(__real_realloc(p, n), n);
}

void __wrap_free(void *p);
void __wrap_free(void *p) {
    if (p) drop(p);
    __real_free(p);
}

char *__wrap_strndup(const char *text, size_t n);
char *__wrap_strndup(const char *text, size_t n) {
    const size_t length = strnlen(text, n);
    char *copy = __wrap_malloc(length + 1);
    if (copy) memcpy(copy, text, length), copy[length] = '\0';
    return copy;
}

char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) { return __wrap_strndup(text, SIZE_MAX); }

int __wrap_vasprintf(char **text, const char *format, va_list args);
int __wrap_vasprintf(char **text, const char *format, va_list args) {
    if (fails(FAULT_MEMORY, ENOMEM)) return -1;
    const int n = __real_vasprintf(text, format, args);
    if (n >= 0) keep(*text, (size_t)n + 1);
    return n;
}

int __wrap_asprintf(char **text, const char *format, ...);
int __wrap_asprintf(char **text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = __wrap_vasprintf(text, format, args);
    va_end(args);
    return n;
}

char *__wrap_realpath(const char *path, char *to);
char *__wrap_realpath(const char *path, char *to) {
    if (to) return __real_realpath(path, to);
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : keep(__real_realpath(path, NULL), 1);
}

/* jansson's lexer drops characters, or aborts, where its buffer cannot grow: json_loadb fails as a whole, or not. */
static _Thread_local int in_lexer;
static void *json_malloc(size_t n) { return in_lexer ? keep(__real_malloc(n), n) : __wrap_malloc(n); }

json_t *__real_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error) {
    memset(error, 0, sizeof *error);
    if (fails(FAULT_MEMORY, ENOMEM)) return NULL;
    in_lexer = 1;
    json_t *tree = __real_json_loadb(text, size, flags, error);
    in_lexer = 0;
    return tree;
}

void faults_start(void) { json_set_alloc_funcs(json_malloc, __wrap_free); }

/* ---- Files ------------------------------------------------------------------------------------------------------------ */

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
FILE *__real_fopen(const char *path, const char *mode);
FILE *__real_fdopen(int fd, const char *mode);
int __real_fclose(FILE *f);
int __real_fileno(FILE *f);
DIR *__real_opendir(const char *path);
ssize_t __real_read(int fd, void *to, size_t n);
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
size_t __real_fread(void *to, size_t size, size_t n, FILE *f);
int __real_fstat(int fd, struct stat *info);
void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);
ssize_t __real_write(int fd, const void *from, size_t n);
int __real_ftruncate(int fd, off_t size);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_symlink(const char *target, const char *path);
int __real_mkdir(const char *path, mode_t mode);
int __real_unlink(const char *path);
int __real_unlinkat(int fd, const char *name, int flags);
int __real_rmdir(const char *path);
int __real_remove(const char *path);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *), void *arg);

int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    if (fails(FAULT_OPEN, EMFILE)) return -1;
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    struct stat info;
    const int there = lstat(path, &info) == 0;
    const int fd = __real_open(path, flags, mode);
    if (fd >= 0 && !there) crash_disk_made(path);
    if (fd >= 0 && there && (flags & O_TRUNC)) crash_disk_cut(fd, 0);
    return fd;
}

int __wrap_close(int fd);
int __wrap_close(int fd) {
    const int result = __real_close(fd);
    return fails(FAULT_CLOSE, EIO) ? -1 : result;
}

DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path) { return fails(FAULT_OPEN, EMFILE) ? NULL : __real_opendir(path); }

ssize_t __wrap_read(int fd, void *to, size_t n);
ssize_t __wrap_read(int fd, void *to, size_t n) { return fails(FAULT_READ, EIO) ? -1 : __real_read(fd, to, n); }

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at) {
    return fails(FAULT_READ, EIO) ? -1 : __real_pread(fd, to, n, at);
}

size_t __wrap_fread(void *to, size_t size, size_t n, FILE *f);
size_t __wrap_fread(void *to, size_t size, size_t n, FILE *f) {
    return fails(FAULT_READ, EIO) ? 0 : __real_fread(to, size, n, f);
}

int __wrap_fstat(int fd, struct stat *info);
int __wrap_fstat(int fd, struct stat *info) { return fails(FAULT_READ, EIO) ? -1 : __real_fstat(fd, info); }

static void count_maps(int change) {
    pthread_mutex_lock(&held_lock);
    held.maps += change;
    pthread_mutex_unlock(&held_lock);
}

void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    if (fails(fd >= 0 ? FAULT_READ : FAULT_MEMORY, ENOMEM)) return MAP_FAILED;
    void *p = __real_mmap(at, n, protection, flags, fd, offset);
    if (p != MAP_FAILED) count_maps(1);
    return p;
}

int __wrap_munmap(void *at, size_t n);
int __wrap_munmap(void *at, size_t n) {
    count_maps(-1);
    return __real_munmap(at, n);
}

ssize_t __wrap_write(int fd, const void *from, size_t n);
ssize_t __wrap_write(int fd, const void *from, size_t n) {
    if (fails(FAULT_WRITE, ENOSPC)) { /* as a disk that becomes full: what still fits, then nothing */
        n = plan.n % 2 ? 0 : n / 2;
        if (n == 0) return -1;
    }
    const int64_t at = crash_disk_place(fd);
    const ssize_t done = __real_write(fd, from, n);
    if (done > 0) crash_disk_wrote(fd, at, from, (size_t)done);
    return done;
}

int __wrap_ftruncate(int fd, off_t size);
int __wrap_ftruncate(int fd, off_t size) {
    if (fails(FAULT_WRITE, EIO)) return -1;
    const int result = __real_ftruncate(fd, size);
    if (result == 0) crash_disk_cut(fd, size);
    return result;
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    if (fails(FAULT_SYNC, EIO)) return -1;
    crash_disk_synced(fd);
    return 0; /* the real one is slow, and nobody pulls the plug here */
}

int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    if (fails(FAULT_RENAME, EIO)) return -1;
    const int result = __real_rename(from, to);
    if (result == 0) crash_disk_renamed(from, to);
    return result;
}

int __wrap_symlink(const char *target, const char *path);
int __wrap_symlink(const char *target, const char *path) {
    if (fails(FAULT_RENAME, ENOSPC)) return -1;
    const int result = __real_symlink(target, path);
    if (result == 0) crash_disk_made(path);
    return result;
}

int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode) {
    if (fails(FAULT_MAKE, ENOSPC)) return -1;
    const int result = __real_mkdir(path, mode);
    if (result == 0) crash_disk_made(path);
    return result;
}

static int removed(int result, const char *path) {
    if (result == 0) crash_disk_removed(path);
    return result;
}

int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path) { return fails(FAULT_REMOVE, EIO) ? -1 : removed(__real_unlink(path), path); }

int __wrap_rmdir(const char *path);
int __wrap_rmdir(const char *path) { return fails(FAULT_REMOVE, EIO) ? -1 : removed(__real_rmdir(path), path); }

int __wrap_remove(const char *path);
int __wrap_remove(const char *path) { return fails(FAULT_REMOVE, EIO) ? -1 : removed(__real_remove(path), path); }

int __wrap_unlinkat(int fd, const char *name, int flags);
int __wrap_unlinkat(int fd, const char *name, int flags) {
    if (fails(FAULT_REMOVE, EIO)) return -1;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 256);
    const int result = __real_unlinkat(fd, name, flags);
    if (n < 0) return result;
    snprintf(path + n, sizeof path - (size_t)n, "/%.200s", name);
    return removed(result, path);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *), void *arg) {
    return fails(FAULT_THREAD, EAGAIN) ? EAGAIN : __real_pthread_create(thread, a, run, arg);
}

/* ---- Streams that are written: to a file, or to memory ------------------------------------------------------------------ */

typedef struct sink {
    FILE *stream;
    int fd;      /* -1: memory */
    char **text; /* of open_memstream */
    size_t *size, used, at, room;
    char *memory;
    struct sink *next;
} sink;

static sink *sinks;

static sink *sink_of(const FILE *f) {
    pthread_mutex_lock(&held_lock);
    sink *s = sinks;
    while (s && s->stream != f) s = s->next;
    pthread_mutex_unlock(&held_lock);
    return s;
}

static ssize_t sink_write(void *cookie, const char *from, size_t n) {
    sink *s = cookie;
    if (s->fd >= 0) {
        size_t done = 0;
        while (done < n) {
            const ssize_t part = __wrap_write(s->fd, from + done, n - done);
            if (part <= 0) break;
            done += (size_t)part;
        }
        return (ssize_t)done;
    }
    if (s->at + n + 1 > s->room) {
        char *more = __wrap_realloc(s->memory, 2 * (s->at + n + 1));
        if (more == NULL) return 0;
        s->memory = more;
        s->room = 2 * (s->at + n + 1);
    }
    memcpy(s->memory + s->at, from, n);
    s->at += n;
    if (s->at > s->used) s->used = s->at;
    s->memory[s->used] = '\0';
    return (ssize_t)n;
}

static int sink_seek(void *cookie, off64_t *offset, int whence) {
    sink *s = cookie;
    if (s->fd >= 0) {
        *offset = lseek(s->fd, *offset, whence);
        return *offset < 0 ? -1 : 0;
    }
    const int64_t to = *offset + (whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (int64_t)s->at : (int64_t)s->used);
    if (to < 0 || to > (int64_t)s->used) return -1;
    s->at = (size_t)to;
    *offset = to;
    return 0;
}

static int sink_close(void *cookie) {
    sink *s = cookie;
    pthread_mutex_lock(&held_lock);
    for (sink **at = &sinks; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    pthread_mutex_unlock(&held_lock);
    int result = 0;
    if (s->fd >= 0) {
        result = __wrap_close(s->fd);
    } else {
        *s->text = s->memory;
        *s->size = s->used;
    }
    __real_free(s);
    return result;
}

static FILE *sink_open(int fd, char **text, size_t *size, char *memory) {
    sink *s = __real_calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    *s = (sink){.fd = fd, .text = text, .size = size, .memory = memory, .room = memory ? 1 : 0};
    s->stream =
        fopencookie(s, "w", (cookie_io_functions_t){.write = sink_write, .seek = sink_seek, .close = sink_close});
    pthread_mutex_lock(&held_lock);
    s->next = sinks;
    sinks = s;
    pthread_mutex_unlock(&held_lock);
    return s->stream;
}

FILE *__wrap_open_memstream(char **text, size_t *size);
FILE *__wrap_open_memstream(char **text, size_t *size) {
    char *memory = __wrap_malloc(1);
    if (memory) *memory = '\0';
    return memory ? sink_open(-1, text, size, memory) : NULL;
}

FILE *__wrap_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode) {
    if (fails(FAULT_OPEN, ENOMEM)) return NULL;
    return *mode == 'w' ? sink_open(fd, NULL, NULL, NULL) : __real_fdopen(fd, mode);
}

FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    if (*mode == 'w') {
        const int fd =
            __wrap_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (strchr(mode, 'x') ? O_EXCL : 0), 0666);
        return fd < 0 ? NULL : sink_open(fd, NULL, NULL, NULL);
    }
    return fails(FAULT_OPEN, EMFILE) ? NULL : __real_fopen(path, mode);
}

int __wrap_fileno(FILE *f);
int __wrap_fileno(FILE *f) {
    const sink *s = sink_of(f);
    return s ? s->fd : __real_fileno(f);
}

int __wrap_fclose(FILE *f);
int __wrap_fclose(FILE *f) {
    const int is_sink = sink_of(f) != NULL, result = __real_fclose(f); /* a sink's close is counted there */
    return !is_sink && fails(FAULT_CLOSE, EIO) ? EOF : result;
}

/* ---- Cases -------------------------------------------------------------------------------------------------------------- */

fault_held faults_held(void) {
    fault_held h = held;
    DIR *dir = __real_opendir("/proc/self/fd");
    while (dir && readdir(dir)) h.descriptors++;
    if (dir) closedir(dir);
    return h;
}

static void show_trace(void) {
    char **names = backtrace_symbols(plan.trace, plan.depth);
    for (int i = 2; names && i < plan.depth && i < 14; i++) print_message("    %s\n", names[i]);
    __real_free(names);
}

#define WRONG(...)                                                                                                     \
    do {                                                                                                               \
        print_message("%s, %s call %ld%s fails: ", c->name, kind_names[kind], n, on ? " and all after it" : "");       \
        print_message(__VA_ARGS__);                                                                                    \
        print_message("\n");                                                                                           \
        show_trace();                                                                                                  \
        if (getenv("MHLA_FAULTS_ALL") == NULL) fail();                                                                 \
        failed++;                                                                                                      \
    } while (0)

static int fits(mhla_status status, fault_kind kind) {
    if (kind == FAULT_MEMORY || kind == FAULT_THREAD) return status == MHLA_ENOMEM;
    return status == MHLA_EIO || status == MHLA_ENOMEM;
}

static int failed;

/* 0: there are fewer than n calls. */
static int try_one(const fault_case *c, fault_kind kind, long n, int on) {
    static const char none[] = "no message of this call";
    if (c->before) c->before();
    const fault_held before = faults_held();
    mhla_fail(MHLA_OK, none);
    faults_arm(kind, n, on);
    const mhla_status status = c->run();
    if (!faults_disarm()) {
        if (status != MHLA_OK) fail_msg("%s fails without a fault: %s", c->name, mhla_message());
        if (c->after) c->after(status);
        return 0;
    }
    const fault_held after = faults_held();
    if (after.blocks != before.blocks)
        WRONG("%ld blocks, %ld bytes are not freed (%s)", after.blocks - before.blocks, after.bytes - before.bytes,
              mhla_message());
    if (after.maps != before.maps) WRONG("%ld files stay mapped (%s)", after.maps - before.maps, mhla_message());
    if (after.descriptors != before.descriptors)
        WRONG("%ld descriptors stay open (%s)", after.descriptors - before.descriptors, mhla_message());
    if (status != MHLA_OK && (strcmp(mhla_message(), none) == 0 || *mhla_message() == '\0'))
        WRONG("no message with status %d", (int)status);
    else if (status != MHLA_OK && !fits(status, kind))
        WRONG("status %d (%s): %s", (int)status, mhla_status_text(status), mhla_message());
    if (getenv("MHLA_FAULTS_SHOW"))
        print_message("%s, %s %ld: %s\n", c->name, kind_names[kind], n, status ? mhla_message() : "tolerated");
    if (c->after) c->after(status);
    return 1;
}

void faults_try(const fault_case *c) {
    const int full = getenv("MHLA_FULL") != NULL, quick = getenv("MHLA_TEST_QUICK") != NULL;
    if (c->before) c->before(); /* what is made once and kept is made now */
    assert_int_equal(c->run(), MHLA_OK);
    if (c->after) c->after(MHLA_OK);
    failed = 0;
    for (int kind = 0; kind < FAULT_KINDS; kind++) {
        if (c->kinds && !(c->kinds >> kind & 1)) continue;
        long cases = 0, n = 1;
        for (int there = 1; there; cases += 2) {
            there = try_one(c, (fault_kind)kind, n, 0) && try_one(c, (fault_kind)kind, n, 1);
            /* every one at first, then with growing gaps */
            n += full ? 1 : 1 + n * n / (quick ? n * 2 + 8 : n * 5 + 80);
        }
        print_message("%s: %ld faults of %s\n", c->name, cases - 2, kind_names[kind]);
    }
    assert_int_equal(failed, 0);
}
