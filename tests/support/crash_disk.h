/* A disk that loses power, for tests: everything that the program does with files below a folder is noted (by the wrapped calls
 * of faults.c), and crash_disk_build makes a folder as a disk could show it after a crash at any moment. What was flushed by
 * fsync is there. Of what was not:
 *
 *   - bytes of a file since its last fsync are there, missing, cut off somewhere, or zeros of the right length, and
 *   - changes of a folder (new, renamed, removed names) since its own last fsync are there up to some point, in their order,
 *     whatever other folders and files have kept. */
#ifndef MHLA_TESTS_CRASH_DISK_H
#define MHLA_TESTS_CRASH_DISK_H

#include <stddef.h>
#include <stdint.h>

void crash_disk_start(const char *folder); /* empty, and on the disk */
long crash_disk_events(void);              /* so far */
void crash_disk_stop(void);                /* notes nothing from now on */
/* The folder `to`, new, as after the first `events` events; `seed` says what of the rest is there, 0: nothing. */
void crash_disk_build(const char *to, long events, uint64_t seed);
/* The number of events up to the next fsync after the first `events`, that one included; 0: there is none. Between two of them
 * what is there for sure stays the same. */
long crash_disk_next_sync(long events);
void crash_disk_free(void);

/* For faults.c: after the fact; harmless while nothing is noted. */
void crash_disk_made(const char *path); /* a file, folder or symbolic link */
void crash_disk_renamed(const char *from, const char *to);
void crash_disk_removed(const char *path);
int64_t crash_disk_place(int fd); /* where the next byte goes */
void crash_disk_wrote(int fd, int64_t at, const void *bytes, size_t size);
void crash_disk_cut(int fd, int64_t size);
void crash_disk_synced(int fd);

#endif
