/* Temporary files and folders, beside the path that they get once they are complete: a random name that nobody can foresee, made
 * anew and never through a symbolic link, hidden from whoever lists a folder of data. Who makes one holds a lock on it (flock)
 * until it has its own name, so that what a killed process left behind can be told from what is being written. */
#ifndef MHLA_FILE_TEMPORARY_H
#define MHLA_FILE_TEMPORARY_H

#include <mhla/mhla.h>
#include <stddef.h>

enum { MHLA_TEMPORARY_MORE = 64 }; /* bytes that a temporary name may be longer than the path */

/* Makes a file (open for writing) or a folder for `path` and tells its name and its descriptor, which holds the lock: rename it,
 * then close it. Modes are as the umask says. The first time that a folder is written into, leftovers in it are removed. */
mhla_status mhla_temporary_file(char *name, size_t size, int *fd, const char *path);
mhla_status mhla_temporary_folder(char *name, size_t size, int *fd, const char *path);

#endif
