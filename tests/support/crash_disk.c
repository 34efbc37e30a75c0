/* See crash_disk.h. Files and folders are numbered as they are made; an event names them by number. */
#include "crash_disk.h"

#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef enum event_kind { MADE, RENAMED, REMOVED, WROTE, CUT, SYNCED } event_kind;

enum { NAME = 256 };

typedef struct event {
    event_kind kind;
    int node;            /* what it is about; of REMOVED none */
    int folder, folder2; /* of the names; folder2, name2: RENAMED to */
    char name[NAME], name2[NAME];
    int64_t at;
    size_t size;
    char *bytes; /* WROTE; the target of a link that was MADE */
} event;

typedef struct inode {
    ino_t number;
    int is_folder, is_link;
} inode;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int noting;
static event *events;
static long count, room;
static inode *nodes; /* [node_count]; 0 is the root */
static int node_count, node_room;

/* ---- Noting ---------------------------------------------------------------------------------------------------------- */

static void *grown(void *list, long n, long *space, size_t size) {
    if (n < *space) return list;
    *space = 2 * n + 64;
    list = realloc(list, (size_t)*space * size);
    if (list == NULL) abort();
    return list;
}

static int node_of(const struct stat *info) { /* the newest: numbers are used again */
    for (int i = node_count - 1; i >= 0; i--)
        if (nodes[i].number == info->st_ino) return i;
    return -1;
}

static int node_add(const struct stat *info) {
    long space = node_room;
    nodes = grown(nodes, node_count, &space, sizeof *nodes);
    node_room = (int)space;
    nodes[node_count] = (inode){info->st_ino, S_ISDIR(info->st_mode), S_ISLNK(info->st_mode)};
    return node_count++;
}

/* The number of a path's folder, and its last name. */
static int place_of(char name[NAME], const char *path) {
    char copy[4096], other[4096];
    struct stat info;
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(other, sizeof other, "%s", path);
    snprintf(name, NAME, "%s", basename(other));
    return stat(dirname(copy), &info) == 0 ? node_of(&info) : -1;
}

static void add(event e) {
    events = grown(events, count, &room, sizeof *events);
    events[count++] = e;
}

static char *copy_of(const void *bytes, size_t size) {
    char *copy = malloc(size + 1);
    if (copy == NULL) abort();
    memcpy(copy, bytes, size);
    copy[size] = '\0';
    return copy;
}

void crash_disk_start(const char *folder) {
    struct stat info;
    crash_disk_free();
    if (stat(folder, &info) != 0) abort();
    node_add(&info);
    noting = 1;
}

long crash_disk_events(void) { return count; }
long crash_disk_next_sync(long at) {
    while (at < count && events[at].kind != SYNCED) at++;
    return at < count ? at + 1 : 0;
}
void crash_disk_stop(void) { noting = 0; }

void crash_disk_free(void) {
    noting = 0;
    for (long i = 0; i < count; i++) free(events[i].bytes);
    free(events);
    free(nodes);
    events = NULL, nodes = NULL;
    count = room = 0;
    node_count = node_room = 0;
}

void crash_disk_made(const char *path) {
    struct stat info;
    event e = {.kind = MADE};
    if (!noting) return;
    pthread_mutex_lock(&lock);
    e.folder = place_of(e.name, path);
    if (e.folder >= 0 && lstat(path, &info) == 0) {
        char target[NAME];
        const ssize_t n = S_ISLNK(info.st_mode) ? readlink(path, target, sizeof target) : -1;
        if (n >= 0) e.bytes = copy_of(target, (size_t)n);
        e.node = node_add(&info);
        add(e);
    }
    pthread_mutex_unlock(&lock);
}

void crash_disk_renamed(const char *from, const char *to) {
    struct stat info;
    event e = {.kind = RENAMED};
    if (!noting) return;
    pthread_mutex_lock(&lock);
    e.folder = place_of(e.name, from);
    e.folder2 = place_of(e.name2, to);
    if (e.folder2 >= 0 && lstat(to, &info) == 0 && (e.node = node_of(&info)) >= 0) add(e);
    pthread_mutex_unlock(&lock);
}

void crash_disk_removed(const char *path) {
    event e = {.kind = REMOVED};
    if (!noting) return;
    pthread_mutex_lock(&lock);
    e.folder = place_of(e.name, path);
    if (e.folder >= 0) add(e);
    pthread_mutex_unlock(&lock);
}

int64_t crash_disk_place(int fd) {
    struct stat info;
    if (!noting) return 0;
    if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &info) == 0 ? (int64_t)info.st_size : 0;
    return lseek(fd, 0, SEEK_CUR);
}

/* WROTE, CUT and SYNCED: of a descriptor. */
static void note(int fd, event e) {
    struct stat info;
    pthread_mutex_lock(&lock);
    if (fstat(fd, &info) == 0 && (e.node = node_of(&info)) >= 0)
        add(e);
    else
        free(e.bytes);
    pthread_mutex_unlock(&lock);
}

void crash_disk_wrote(int fd, int64_t at, const void *bytes, size_t size) {
    if (noting) note(fd, (event){.kind = WROTE, .at = at, .size = size, .bytes = copy_of(bytes, size)});
}
void crash_disk_cut(int fd, int64_t size) {
    if (noting) note(fd, (event){.kind = CUT, .at = size});
}
void crash_disk_synced(int fd) {
    if (noting) note(fd, (event){.kind = SYNCED});
}

/* ---- Building -------------------------------------------------------------------------------------------------------------- */

typedef struct entry {
    char name[NAME];
    int node;
} entry;

typedef struct disk_node { /* what is on the disk for sure, and events that may be */
    char *bytes;
    size_t size;
    entry *entries;
    long entry_count, entry_room;
    long *waiting;
    long waiting_count, waiting_room;
} disk_node;

static uint64_t random_state;
static uint64_t random_below(uint64_t n) { /* splitmix64 */
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % n;
}

static void wait_for(disk_node *d, long i) {
    d->waiting = grown(d->waiting, d->waiting_count, &d->waiting_room, sizeof *d->waiting);
    d->waiting[d->waiting_count++] = i;
}

static void forget(disk_node *d, const char *name) {
    for (long i = 0; i < d->entry_count; i++)
        if (strcmp(d->entries[i].name, name) == 0) {
            d->entries[i] = d->entries[--d->entry_count];
            return;
        }
}

static void enter(disk_node *d, const char *name, int node) {
    forget(d, name);
    d->entries = grown(d->entries, d->entry_count, &d->entry_room, sizeof *d->entries);
    entry *e = &d->entries[d->entry_count++];
    snprintf(e->name, NAME, "%s", name);
    e->node = node;
}

static void set_size(disk_node *d, size_t size) {
    d->bytes = realloc(d->bytes, size + 1);
    if (d->bytes == NULL) abort();
    if (size > d->size) memset(d->bytes + d->size, 0, size - d->size);
    d->size = size;
}

/* `part` of a write's bytes get there; the file is as long as if all had, unless `cut`. */
static void apply_part(disk_node *d, const event *e, size_t part, int cut) {
    const size_t end = (size_t)e->at + (cut ? part : e->size);
    if (end > d->size) set_size(d, end);
    memcpy(d->bytes + e->at, e->bytes, part);
}

static void apply(disk_node *disk, int node, const event *e) {
    disk_node *d = &disk[node];
    switch (e->kind) {
    case MADE: enter(d, e->name, e->node); break;
    case RENAMED:
        if (e->folder == node) forget(d, e->name);
        if (e->folder2 == node) enter(d, e->name2, e->node);
        break;
    case REMOVED: forget(d, e->name); break;
    case WROTE: apply_part(d, e, e->size, 0); break;
    case CUT: set_size(d, (size_t)e->at); break;
    case SYNCED: break;
    }
}

static void sync_node(disk_node *disk, int node) {
    for (long i = 0; i < disk[node].waiting_count; i++) apply(disk, node, &events[disk[node].waiting[i]]);
    disk[node].waiting_count = 0;
}

static void replay(disk_node *disk, long until) {
    for (long i = 0; i < until; i++) {
        const event *e = &events[i];
        switch (e->kind) {
        case SYNCED: sync_node(disk, e->node); break;
        case WROTE:
        case CUT: wait_for(&disk[e->node], i); break;
        case RENAMED:
            if (e->folder2 != e->folder) wait_for(&disk[e->folder2], i);
            if (e->folder >= 0) wait_for(&disk[e->folder], i);
            break;
        default: wait_for(&disk[e->folder], i); break;
        }
    }
}

/* Power is lost: what of the rest is there. mood: -1 nothing, 0 no name and some bytes, 1 all, 2 anything. */
static void crash(disk_node *disk, int node, int mood) {
    disk_node *d = &disk[node];
    const long n = d->waiting_count, kept = mood <= 0 ? 0 : mood == 1 ? n : (long)random_below((uint64_t)n + 1);
    for (long i = 0; i < kept; i++) apply(disk, node, &events[d->waiting[i]]);
    if (nodes[node].is_folder) return;
    const int how = mood < 0 ? 0 : (int)random_below(3);
    for (long i = kept; i < n && how; i++) {
        const event *e = &events[d->waiting[i]];
        if (e->kind != WROTE) break;
        if (how == 1) { /* cut off somewhere */
            apply_part(d, e, random_below(e->size + 1), 1);
            break;
        }
        apply_part(d, e, random_below(2) ? e->size : 0, 0); /* zeros, or there, in any order */
    }
}

static void lay_out(const disk_node *disk, int node, const char *path) {
    const disk_node *d = &disk[node];
    assert_int_equal(mkdir(path, 0777), 0);
    for (long i = 0; i < d->entry_count; i++) {
        const int inner = d->entries[i].node;
        char to[4096];
        snprintf(to, sizeof to, "%s/%s", path, d->entries[i].name);
        if (nodes[inner].is_folder) {
            lay_out(disk, inner, to);
        } else if (nodes[inner].is_link) {
            for (long e = 0; e < count; e++)
                if (events[e].kind == MADE && events[e].node == inner)
                    assert_int_equal(symlink(events[e].bytes, to), 0);
        } else {
            const int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            assert_true(fd >= 0);
            assert_int_equal(write(fd, disk[inner].bytes, disk[inner].size), disk[inner].size);
            close(fd);
        }
    }
}

void crash_disk_build(const char *to, long until, uint64_t seed) {
    disk_node *disk = calloc((size_t)node_count, sizeof *disk);
    if (disk == NULL) abort();
    random_state = seed;
    replay(disk, until);
    const int mood = seed ? (int)random_below(4) : -1;
    for (int i = 0; i < node_count; i++) crash(disk, i, mood);
    lay_out(disk, 0, to);
    for (int i = 0; i < node_count; i++) {
        free(disk[i].bytes);
        free(disk[i].entries);
        free(disk[i].waiting);
    }
    free(disk);
}
